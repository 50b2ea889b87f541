"""What somebody sees of a run who looks at its lanes and its clock alone: which events came when, and what they led to.

The ghost judges what is said; the watch judges when, how often, and after what. It reads no machine: a message is stale
because the life that sent it was declared over before, a rank is silent because nothing came from it, a cycle hangs
because nothing came at all. So it cannot agree with a mistake in the books. The checks, by the invariant of section 16:

    I3   of a report of a life that is over nothing comes but a word to that life; nothing at all of the end of such a
         life or of a link that has been replaced, and no step of a cycle of evidence of another cycle or attempt
    I31  time ends a life only after silence or without a link, and finishes no cycle; what it may end can finish one,
         and who is refused in that finish for the third time in a row goes for what it shipped (D-12)
    I32  what hangs longer than the ceiling stalls: not before, unless it was tried too often (R-18), not later, once,
         with one dump and one decision to save
    I33  a heartbeat is no step of the ladder
    M-33 whoever has a vote knows who calls the callback of an epoch; what else goes with what is in `goes_with.py`
    I53  control messages of a life are numbered without a hole, say the same when they are said again, and do
         something only the first time they arrive; so each consensus is adopted once, and each plan begun once

Turns are seen in their order, by whoever runs a world through time. A search that jumps between states has none, so
its world is not watched (`asleep`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import attrs

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..config import Config
from ..coordinator import Coordinator
from ..values import state
from .action import COORDINATOR
from .goes_with import NOTABLE, OVER, Life, broadcasts, chain_of_end
from .lost_tail import is_over
from .step import Run, Turn
from .violation import Violation, require

__all__ = ["Watch"]

NOBODY = m.NO_RANK
"""Calls the callback of an epoch, as far as a life knows that was told nothing."""
MOST_ATTEMPTS = 32
"""Of one cycle (R-18)."""
MOST_REFUSALS = 3
"""Of one rank in a row, for values that are not finite (D-12)."""
ENDS = frozenset({ev.LinkLost, ev.ProcessExited, ev.SendFailed})
"""What the driver tells of a link, or of the process at its other end."""
EVIDENCE = frozenset({m.SnapshotReady, m.SyncAck, m.RoundFailed})
OF_ROUND = frozenset({ev.RoundReduced, ev.RoundAborted})
"""What tells of an attempt of a cycle: ranks, and the averager."""
STEPS = (fx.OpenRound, fx.AdmitContribution, fx.AbortRound)
"""Of a cycle, beside its end."""
NO_ROUND = (-1, -1)
"""A cycle and an attempt that never are."""
SIGNS_OF_LIFE = frozenset({ev.Tick, m.Heartbeat})
"""Events that say nothing about the work of anybody."""
LADDER = frozenset({"Suspect", "Nudge", "Excluded", "StateDump", "Stalled"})
"""Its steps, and what stands at its end."""
GONE = frozenset({*OVER, "Excluded"})
"""After these a rank is waited for no more."""
MOVES = frozenset({*GONE, "Promoted", "Joined", "SyncStart", "Cycle", "SyncEnd"})
"""After these others are waited for, or for something else."""


@state
class Watch:
    """Of each life: the number of the newest control message said to it, the words that it has not confirmed, when it
    was heard last. Of each process: the newest control message given to it, the last cycle it adopted, the last plan it
    began.

    `links` is the newest link of each life, `cut` are lives without one, `ended` those that are over; `voted` are ranks
    whose life has had a vote; `refused` is how many contributions of a rank in a row were not finite. `cycle` is the
    open cycle, or None, `since` when it was armed or the last one ended, `attempts` how many the newest one had;
    `round` is the newest data round, as cycle and attempt, or None where a coordinator that was started anew has yet to
    open one; `still` is when anything was heard last that is no mere sign of life; `before` is when the coordinator
    last did anything, `due` when it wants to be told the time; with more than `away_s` between two events it was
    away."""

    config: Config
    asleep: bool = False
    said: dict[Life, int] = attrs.field(factory=dict)
    words: dict[Life, dict[int, m.Control]] = attrs.field(factory=dict)
    given: dict[int, int] = attrs.field(factory=dict)
    adopted: dict[int, int] = attrs.field(factory=dict)
    begun: dict[int, int] = attrs.field(factory=dict)
    heard: dict[Life, float] = attrs.field(factory=dict)
    links: dict[Life, int] = attrs.field(factory=dict)
    cut: set[Life] = attrs.field(factory=set)
    ended: set[Life] = attrs.field(factory=set)
    voted: set[int] = attrs.field(factory=set)
    refused: dict[int, int] = attrs.field(factory=dict)
    notable: list[fx.Emit] = attrs.field(factory=list)
    callers: dict[Life, int] = attrs.field(factory=dict)
    caller: int = NOBODY
    cycle: int | None = None
    since: float = 0.0
    attempts: int = 0
    round: tuple[int, int] | None = NO_ROUND
    still: float = 0.0
    before: float = 0.0
    due: float = -math.inf
    stopping: bool = False
    stalled: bool = False
    away_s: float = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.config.staleness_s / 2, takes_self=True)
    )

    def see(self, turns: Iterable[Turn | Run], now: float, due: float | None) -> None:
        """The turns of a step, at this second of the coordinator's clock, and when it wants a `Tick` after them. Raises
        `Violation`."""
        if self.asleep:
            return
        for turn in turns:
            if turn.who == COORDINATOR:
                if isinstance(turn, Run):
                    self._run(turn.events, now)
                else:
                    self._coordinator(turn.event, turn.effects, now)
                self.due = math.inf  # whatever was due has been done, with this event or before
            elif not isinstance(turn, Run):
                self._process(turn)
        self.due = math.inf if due is None else due

    def forget(self, co: Coordinator) -> None:
        """The coordinator is back without the end of its journal (M-45): it may say other things under the numbers that
        are lost, and give lives that ended there anew; who was promoted there has no vote, and the cycle that is open
        is one that was seen before."""
        self.said.clear()
        self.words.clear()
        self.ended = {life for life in self.ended if is_over(co, life)}
        self.voted &= set(co.voters)
        self.refused = {rank: co.peers[rank].refusals_in_row for rank in co.alive}
        self.cycle, self.since = None, -math.inf

    # --- the coordinator -------------------------------------------------------------------------------------------

    def _coordinator(self, event: Any, effects: tuple[Any, ...], now: float) -> None:
        kind = event.__class__
        told = event.message if kind is ev.Received else event
        what = told.__class__
        if kind is ev.OperatorRequest and event.kind is ev.Operator.START:
            self._restarted(now)
        elif now > self.before + self.away_s:  # it was away: what it missed, it gives time for
            self.still = now
        self.before = now
        if what in m.REPORT_CLASSES:
            if effects and now < self.due:  # else time speaks with the next event, whichever it is (C-4)
                self._i3_over_is_over(told, effects)
                done = _before_its_end(told, effects)
                self._i33_no_step_by_a_heartbeat(told, done)
                if what in EVIDENCE:
                    self._i3_of_this_attempt(what, told.cycle, told.attempt, done)
            self._hear(told, now)
        elif kind in ENDS:
            self._end(event, effects if now < self.due else ())
        elif kind in OF_ROUND and effects and now < self.due and not event.key.is_transfer:
            self._i3_of_this_attempt(what, event.key.cycle, event.attempt, effects)
        if what not in SIGNS_OF_LIFE:
            self.still = now
        for effect in effects:
            self._effect(event, effect, now, effects)
        if self.notable:
            self._goes_with(effects)
        if kind is ev.Tick:
            self._i32_not_later(now)

    def _run(self, events: tuple[Any, ...], now: float) -> None:
        """Of quiet reports of one life the newest says it all (its life was heard now, and what it confirms), but for a
        step that is followed by a sign of life."""
        self._coordinator(events[-1], (), now)
        for event in events:
            if event.message.__class__ not in SIGNS_OF_LIFE:
                self.still = now
                break

    def _restarted(self, now: float) -> None:
        """Nobody has a link to it yet, and it waits for everybody anew (M-43)."""
        self.still = now
        self.round = None
        self.cut |= self.heard.keys() - self.ended

    def _hear(self, report: m.Report, now: float) -> None:
        life = (report.rank, report.incarnation)
        self.heard[life] = now
        words = self.words.get(life)
        while words and (first := next(iter(words))) <= report.control_seq:
            del words[first]

    def _end(self, event: Any, effects: tuple[Any, ...]) -> None:
        """Of a life, or of its link."""
        life = event.token[:2] if event.__class__ is ev.SendFailed else (event.rank, event.incarnation)
        link = None if event.__class__ is ev.ProcessExited else event.link
        if life in self.ended or link not in (None, self.links.get(life, link)):
            require(not effects, "I3", f"{event} is no news of a life that goes on, and led to {effects}")
        else:
            self.cut.add(life)

    def _effect(self, event: Any, effect: Any, now: float, effects: tuple[Any, ...]) -> None:
        kind = effect.__class__
        if kind is fx.Send:
            message = effect.message
            self._i53_said((message.rank, message.incarnation), message)
            self._told(message)
        elif kind is fx.Admit:
            life = (effect.rank, effect.incarnation)
            self.cut.discard(life)
            self.heard[life], self.links[life] = now, effect.link
            for message in effect.resend:
                self._i53_said(life, message)
                self._told(message)
        elif kind is fx.CloseLink:
            self.cut.add((effect.rank, effect.incarnation))
        elif kind is fx.OpenRound and not effect.key.is_transfer:
            self.attempts, self.round = effect.attempt + 1, (effect.key.cycle, effect.attempt)
        elif kind is fx.Emit and not effect.facts.get("again"):
            self._happened(event, effect, now, effects)

    def _told(self, message: m.Control) -> None:
        if message.__class__ is m.SetEpochCallbackRole:
            self.callers[message.rank, message.incarnation] = message.holder
        elif message.__class__ in (m.ShutdownWithSave, m.Shutdown):
            self.stopping = True

    def _happened(self, event: Any, told: fx.Emit, now: float, effects: tuple[Any, ...]) -> None:
        name, facts = told.name, told.facts
        if name in NOTABLE or name == "Promoted":
            self.notable.append(told)
        if name in MOVES:
            self.still = now
        if name == "PhaseChanged":
            self.stopping = self.stopping or facts["phase"] == "shutting_down"  # also where nobody is there to be told
        elif name == "SyncStart":
            self.cycle, self.since = facts["cycle"], now
        elif name == "SyncEnd":
            self.cycle, self.since, self.attempts, self.round = None, now, 0, NO_ROUND
        elif name == "Cycle":
            if event.__class__ is ev.Tick:
                self._i31_a_loss_finishes(told, effects)
            for rank, steps in facts["merged"].items():
                if steps:
                    self.refused.pop(int(rank), None)
        elif name == "Refused" and "rank" in facts:  # else it is one that was not let in
            again = facts["why"] == "nonfinite"
            self.refused[facts["rank"]] = self.refused.get(facts["rank"], 0) + 1 if again else 0
        elif name == "Promoted":
            self.voted.add(facts["rank"])
        elif name in OVER:
            life = (facts["rank"], facts["incarnation"])
            if event.__class__ is ev.Tick and name == "Died":
                self._i31_only_the_silent_end(life, facts, now, effects)
            self.ended.add(life)
            self.voted.discard(life[0])
            self.refused.pop(life[0], None)
            self.cut.discard(life)
            self.words.pop(life, None)
            self.links.pop(life, None)
            self.callers.pop(life, None)
        elif name == "Stalled":
            self._i32_stalled(facts, now, effects)

    # --- named checks ----------------------------------------------------------------------------------------------

    def _goes_with(self, effects: tuple[Any, ...]) -> None:
        """Who is there at the end of a batch was there all the while, but for whom it lets in."""
        notable, self.notable = self.notable, []
        came = {(effect.rank, effect.incarnation) for effect in effects if effect.__class__ is fx.Admit}
        there = [life for life in self.heard if not (life in self.ended or life in self.cut or life in came)]
        for told in notable:
            if told.name == "RoleChanged" and told.facts["role"] == "epoch":
                self.caller = NOBODY if told.facts["to"] is None else told.facts["to"]
            if told.name in NOTABLE:
                broadcasts(told, effects, there, stopping=self.stopping)
            if told.name in OVER:
                chain_of_end(told, effects)
        if not self.stopping:
            lost = [life for life in there if life[0] in self.voted and self.callers.get(life, NOBODY) != self.caller]
            require(not lost, "M-33", f"lives {lost} vote and do not know that rank {self.caller} calls the callback")

    def _i3_over_is_over(self, report: m.Report, effects: tuple[Any, ...]) -> None:
        life = (report.rank, report.incarnation)
        if life not in self.ended:
            return
        for effect in effects:
            if effect.__class__ is not fx.SendFenced or (effect.rank, effect.incarnation) != life:
                raise Violation("I3", f"{type(report).__name__} of life {life}, which is over, led to {effect}")

    def _i3_of_this_attempt(self, what: type, cycle: int, attempt: int, effects: tuple[Any, ...]) -> None:
        if self.round in (None, (cycle, attempt)):
            return
        for effect in effects:
            if isinstance(effect, STEPS) and effect.key.is_transfer:
                continue
            if isinstance(effect, STEPS) or (effect.__class__ is fx.Emit and effect.name == "Cycle"):
                text = f"{what.__name__} of cycle {cycle}, attempt {attempt}, led to {effect} in round {self.round}"
                raise Violation("I3", text)

    def _i33_no_step_by_a_heartbeat(self, report: m.Report, effects: tuple[Any, ...]) -> None:
        for effect in effects if report.__class__ is m.Heartbeat else ():
            if effect.__class__ is fx.Emit and effect.name in LADDER:
                raise Violation("I33", f"a heartbeat of rank {report.rank} led to {effect}")

    def _i31_a_loss_finishes(self, cycle: fx.Emit, effects: tuple[Any, ...]) -> None:
        before = itertools.takewhile(lambda effect: effect is not cycle, effects)
        if not any(effect.__class__ is fx.Emit and effect.name in GONE for effect in before):
            raise Violation("I31", f"time alone finished cycle {cycle.facts['cycle']}")

    def _i31_only_the_silent_end(
        self, life: Life, facts: dict[str, Any], now: float, effects: tuple[Any, ...]
    ) -> None:
        heard = self.heard.get(life)
        if self.stopping or heard is None or life in self.cut or life[0] not in self.voted:
            return  # who has never had a vote had a time to come to it (M-6, M-26)
        if self.refused.get(life[0], 0) >= MOST_REFUSALS and _refuses(effects, life[0]):
            return  # D-12: by the finish of a cycle that waited for nobody else any more
        if now <= heard + self.config.staleness_s:
            raise Violation("I31", f"time alone ended life {life}, heard {now - heard:g} s ago: {facts}")

    def _i32_stalled(self, facts: dict[str, Any], now: float, effects: tuple[Any, ...]) -> None:
        require(not self.stalled, "I32", "the run stalls a second time")
        self.stalled = True
        ceiling = self.config.window_ceiling if self.cycle is None else self.config.reduce_ceiling
        if now <= self.since + ceiling and self.attempts <= MOST_ATTEMPTS:
            raise Violation("I32", f"stalled {now - self.since:g} s after it began to wait, the ceiling is {ceiling:g}")
        dumps = [e for e in effects if e.__class__ is fx.Emit and e.name in ("Stalled", "StateDump")]
        if len(dumps) != 1 or not facts["dump"]:
            raise Violation("I32", f"{len(dumps)} dumps go with the stall of cycle {facts['cycle']}")
        saves = [e.message for e in effects if e.__class__ is fx.Send and e.message.__class__ is m.ShutdownWithSave]
        there = self.heard.keys() - self.ended - self.cut
        if there and {save.reason for save in saves} != {m.SaveReason.REDUCE_STALL}:
            raise Violation("I32", f"of the stall came {saves}, not one decision to save for it")
        require(len({save.decision_id for save in saves}) <= 1, "I32", f"the stall decides twice: {saves}")

    def _i32_not_later(self, now: float) -> None:
        if not self.cycle or self.stalled or self.stopping or self.cut:
            return  # cycle 0 has no ceiling, and the window of a rank without a link ends that wait (M-42)
        waited = now - max(self.still, self.since)
        if waited > self.config.reduce_ceiling:
            raise Violation("I32", f"cycle {self.cycle} has heard nothing for {waited:g} s and does not stall")

    def _i53_said(self, life: Life, message: m.Control) -> None:
        number, newest = message.control_seq, self.said.get(life)
        words = self.words.setdefault(life, {})
        if newest is None or number == newest + 1:
            self.said[life] = number
            words[number] = message
        elif number > newest:
            raise Violation("I53", f"control message {number} to life {life} follows {newest}")
        elif words.get(number, message) != message:
            raise Violation("I53", f"control message {number} to life {life} was {words[number]}, now {message}")

    # --- the processes ---------------------------------------------------------------------------------------------

    def _process(self, turn: Turn) -> None:
        event = turn.event
        if event.__class__ is ev.Received and isinstance(event.message, m.Control):
            self._i53_given(turn.who, event.message, turn.effects)
        for effect in turn.effects:
            if effect.__class__ is fx.Adopt:
                last = self.adopted.get(turn.who, -1)
                require(effect.cycle > last, "I53", f"process {turn.who} adopts cycle {effect.cycle} after {last}")
                self.adopted[turn.who] = effect.cycle
            elif effect.__class__ is fx.Train:
                plan, last = effect.plan.plan_id, self.begun.get(turn.who, -1)
                require(plan > last, "I53", f"process {turn.who} begins plan {plan} after {last}")
                self.begun[turn.who] = plan

    def _i53_given(self, who: int, message: m.Control, effects: tuple[Any, ...]) -> None:
        number, newest = message.control_seq, self.given.get(who)
        if newest is None or number == newest + 1:
            self.given[who] = number
            return
        life = (message.rank, message.incarnation)
        if number <= newest:
            if effects:
                raise Violation("I53", f"control message {number} came to life {life} again and led to {effects}")
        elif any(effect.__class__ is not fx.Stop for effect in effects):
            raise Violation("I53", f"control message {number} came to life {life} after {newest} and led to {effects}")


def _before_its_end(report: m.Report, effects: tuple[Any, ...]) -> tuple[Any, ...]:
    """What comes of this report itself. One that cannot be, behind a hole say (N-7), ends its own life, and whatever
    follows is due for that end: a round without its source, another look at who is late."""
    own = {"rank": report.rank, "incarnation": report.incarnation}
    for place, effect in enumerate(effects):
        if effect.__class__ is fx.Emit and effect.name in OVER and own.items() <= effect.facts.items():
            return effects[:place]
    return effects


def _refuses(effects: tuple[Any, ...], rank: int) -> bool:
    """Whether a cycle that ended here had what this rank shipped, and it was not finite."""
    told = [effect.facts for effect in effects if effect.__class__ is fx.Emit and effect.name == "Refused"]
    return any(facts.get("rank") == rank and facts["why"] == "nonfinite" for facts in told)
