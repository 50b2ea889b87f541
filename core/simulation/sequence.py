"""A run as a Mermaid sequence diagram: who said what to whom, in the order in which it arrived.

Arrows are messages where they were delivered, dotted ones parts of contributions and results; notes are faults, and
what the coordinator tells its timeline. Heartbeats, beacons and steps are counted and not drawn, or nothing else would
be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from .action import COORDINATOR, FAULTS, WISHES
from .transcript import describe

if TYPE_CHECKING:
    from .world import Step

__all__ = ["Sequence", "of_records", "of_steps"]

QUIET = (m.Heartbeat, m.Beacon, m.Batch, m.LrUpdate, m.SetGlobalStep, m.SetEpochCallbackRole, m.ResourceSample)
"""Messages that are not drawn."""
TOLD = frozenset({
    "SyncStart", "Cycle", "EpochEnd", "Died", "Left", "Joined", "Promoted", "Excluded", "Suspect", "Nudge", "Returned",
    "Refused", "Stalled",
})  # fmt: skip
"""Timeline events that are drawn as notes."""


class Sequence:
    """A diagram in the making. `text` is the whole of it."""

    def __init__(self) -> None:
        self.people: dict[str, str] = {"C": "coordinator"}
        self._lines: list[str] = []
        self._steps: dict[str, int] = {}

    def arrow(self, sender: str, receiver: str, text: str, *, bulk: bool = False) -> None:
        """One message that arrived."""
        self._flush(sender)
        self._flush(receiver)
        self._lines.append(f"{sender}{'-->>' if bulk else '->>'}{receiver}: {_plain(text)}")

    def note(self, who: str, text: str) -> None:
        """A remark over one of them."""
        self._lines.append(f"Note over {who}: {_plain(text)}")

    def step(self, who: str) -> None:
        """A step that was trained."""
        self._steps[who] = self._steps.get(who, 0) + 1

    def _flush(self, who: str) -> None:
        steps = self._steps.pop(who, 0)
        if steps:
            self.note(who, f"{steps} step{'s' if steps > 1 else ''}")

    def rank(self, rank: int, incarnation: int) -> str:
        """The name of a life of a rank in the diagram."""
        name = f"R{rank}" if incarnation == 1 else f"R{rank}i{incarnation}"
        self.people.setdefault(name, f"rank {rank}" if incarnation == 1 else f"rank {rank}.{incarnation}")
        return name

    def averager(self) -> str:
        """The name of the averager in the diagram."""
        self.people.setdefault("A", "averager")
        return "A"

    @property
    def text(self) -> str:
        """The diagram, as Mermaid reads it."""
        for who in list(self._steps):
            self._flush(who)
        people = [f"participant {name} as {told}" for name, told in self.people.items()]
        return "".join(f"{line}\n" for line in ("sequenceDiagram", *(f"    {line}" for line in people + self._lines)))


def of_steps(lives: Iterable[tuple[int, int]], steps: Iterable[Step]) -> str:
    """The diagram of a simulated run. `lives` are rank and incarnation of each process; it is read while the steps
    are, so a list that grows with the run will do."""
    made = Sequence()
    known = lives if isinstance(lives, list) else list(lives)
    for rank, incarnation in known:
        made.rank(rank, incarnation)
    for step in steps:
        action = step.action
        who = made.rank(*known[action.who]) if 0 <= action.who < len(known) else "C"
        if action.kind in FAULTS or action.kind in WISHES:
            made.note(who, str(action))
        elif action.kind == "step":
            made.step(who)
        elif action.kind == "upload":
            made.arrow(who, made.averager(), step.moved, bulk=True)
        elif action.kind == "result":
            made.arrow(made.averager(), who, step.moved, bulk=True)
        elif action.kind == "reduce":
            made.note(made.averager(), "reduce")
        for turn in step.turns:
            if turn.who != COORDINATOR:
                life = made.rank(*known[turn.who])
                _into_rank(made, life, turn.event)
                _stops(made, life, turn.effects)
            else:
                _into_coordinator(made, turn.event)
                _notes(made, turn.effects)
    return made.text


def of_records(turns: Iterable[tuple[Any, Iterable[Any]]]) -> str:
    """The diagram of the journal of a coordinator: its events with their effects. Messages to ranks are drawn where
    they were sent, since a journal does not say when they arrived."""
    made = Sequence()
    for event, effects in turns:
        _into_coordinator(made, event)
        for effect in effects:
            if isinstance(effect, fx.Send) and not isinstance(effect.message, QUIET):
                made.arrow("C", made.rank(effect.rank, effect.incarnation), _message(effect.message))
            else:
                _notes(made, [effect])
    return made.text


def _into_rank(made: Sequence, life: str, event: Any) -> None:
    if isinstance(event, ev.Received) and not isinstance(event.message, QUIET):
        made.arrow("C", life, _message(event.message))
    elif isinstance(event, (ev.LinkLost, ev.LaneClosed)):
        made.note(life, describe(event))


def _into_coordinator(made: Sequence, event: Any) -> None:
    if isinstance(event, ev.Received):
        message = event.message
        if isinstance(message, m.Report) and not isinstance(message, QUIET):
            made.arrow(made.rank(message.rank, message.incarnation), "C", _message(message))
    elif isinstance(event, (ev.LinkLost, ev.SendFailed, ev.RoundAborted, ev.OperatorRequest)):
        made.note("C", describe(event))


def _notes(made: Sequence, effects: Iterable[Any]) -> None:
    for effect in effects:
        if isinstance(effect, fx.Emit) and effect.name in TOLD:
            shown = [key for key in ("rank", "cycle", "version", "epoch") if key in effect.facts]
            facts = [f"{key} {effect.facts[key]}" for key in shown]
            made.note("C", " ".join((effect.name, *facts)))
        elif isinstance(effect, fx.Finish):
            made.note("C", f"Finish {effect.status}")


def _stops(made: Sequence, life: str, effects: Iterable[Any]) -> None:
    for effect in effects:
        if isinstance(effect, fx.Stop):
            made.note(life, f"Stop {effect.status}")


def _message(message: Any) -> str:
    names = ("cycle", "attempt", "outcome", "version", "shipped_steps", "merged_steps", "plan", "next_plan", "reason")
    return " ".join((type(message).__name__, *_parts(message, names)))


def _parts(message: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(message, name, None)
        if isinstance(value, m.Plan):
            yield f"plan {value.plan_id} ({value.epoch}:{value.offset}+{value.size})"
        elif value is not None and (value != 0 or name == "cycle"):
            yield f"{name.removesuffix('_steps')} {getattr(value, 'name', str(value)).lower()}"


def _plain(text: str) -> str:
    """Mermaid takes some signs for its own."""
    return text.replace(";", ",").replace("#", "no. ")
