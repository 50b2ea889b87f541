"""Marks: interesting things that simulated runs must come upon, or the campaign has looked at nothing.

A run without a violation says little unless it is known what happened in it. So each rare situation has a name here,
and is looked for from outside: by `watch` after every step, and by `World.reached` where what matters is how things
stood before it. Nothing in the machines knows of marks. A campaign of storms that never meets one of them fails, as a
test with an assertion that is never reached should.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..phases import RunPhase
from .action import COORDINATOR
from .step import Run

if TYPE_CHECKING:
    from .world import Step, World

__all__ = ["MARKS", "Marks"]

MARKS: dict[str, str] = {
    "a cycle ended without a consensus": "C-17",
    "a dead rank came back": "M-7",
    "a rank came anew": "M-22",
    "a joiner was promoted": "M-25",
    "a donor was asked": "M-24",
    "a rank left politely": "M-8",
    "a rank died": "M-18",
    "a rank died while a cycle was pending": "C-37",
    "a contribution outlived its rank": "M-19",
    "all ranks were lost": "M-21",
    "a silent rank was given up": "M-17",
    "a stale life was told so": "N-6",
    "a life was heard when the next one had its seat": "N-6",
    "a report was missing": "N-3",
    "a report came twice": "N-3",
    "a message was missing": "N-2",
    "a message came twice": "N-2",
    "a message could not be sent": "N-10",
    "late acknowledgement after finalize": "C-43",
    "late contribution after finalize": "R-1",
    "late result after a new attempt": "W-11",
    "an attempt was repeated": "R-18",
    "a contribution was refused as not finite": "R-4",
    "a contribution was refused for its steps": "R-4",
    "picks were given back": "D-19",
    "a rank was suspected": "M-12",
    "a rank was nudged": "M-13",
    "a rank was excluded": "M-14",
    "an excluded rank came back": "M-14",
    "the coordinator was away": "M-9",
    "a run was saved and stopped": "M-50",
    "an operator stopped the run": "M-54",
    "a bundle was written": "K-7",
    "a bundle could not be written": "K-8",
    "a checkpoint callback failed": "K-9",
    "an evaluation came back": "K-16",
    "a callback role went on": "M-33",
    "a rank lost the coordinator": "W-21",
    "a rank broke the protocol": "N-7",
    "the anchor grew": "B-7",
    "a plan was taken back": "D-14",
    "an epoch closed": "D-20",
    "a knock was refused": "M-5",
    "a coordinator came back": "M-40",
    "a coordinator came back in the middle of a cycle": "M-43",
    "a cycle went on after a restart": "M-43",
    "the end of a journal was lost": "M-45",
    "a rank knew more than the journal": "M-45",
    "a rank was taken back": "M-42",
    "a rank was taken back after a lost link": "M-42",
    "a rank was not taken back in time": "M-42",
    "a message was sent again": "M-42",
    "a report was sent again": "M-42",
    "a rank began a new life": "W-21",
    "the averager got its consensus back": "M-44",
    "a session was renewed": "M-30",
    "a generator did not answer": "M-32",
    "a collective was repeated": "C-38",
    "a call failed": "R-18",
    "a call that had succeeded was taken back": "W-14",
    "a single survivor": "M-21",
    "half a frame waited": "N-25",
    "a damaged frame ended a link": "N-23",
    "a damaged block ended a link": "N-23",
}
"""Every mark, with the rule that it is about."""

BY_EMIT = {
    "Suspect": "a rank was suspected", "Nudge": "a rank was nudged", "Excluded": "a rank was excluded",
    "Left": "a rank left politely", "SendFailed": "a message could not be sent", "Returned": "picks were given back",
    "EpochEnd": "an epoch closed", "Evaluated": "an evaluation came back", "AnchorChanged": "the anchor grew",
}  # fmt: skip
OF_JOURNAL = ("accounting", "journal")
CONSULTED = frozenset({"guard", "cadence", "meta"})
"""Policies whose failures are told by an alert, under these names (C-13)."""
MISSING = re.compile(r"(report|message) \d+ is missing")
"""In what is said of a lane with a hole, by either end."""
BY_ALERT = {"checkpoint_failed": "a checkpoint callback failed", "refused": "a rank broke the protocol"}

EVENTS = frozenset({ev.RoundReduced, ev.ConsensusSaved, ev.MetaWritten})
EFFECTS = frozenset({fx.Emit, fx.OpenRound, fx.SendFenced, fx.Refuse, fx.Admit, fx.Alert, fx.Send, fx.Finish})
"""What of the coordinator is looked at; most of what happens is nothing of these."""

BY_REFUSAL = {
    m.Refusal.NONFINITE: "a contribution was refused as not finite",
    m.Refusal.STEPS: "a contribution was refused for its steps",
}


class Marks:
    """What the runs so far came upon, and how often. No mark, but found on the way: `policy_failure`, what the first
    policy that raised said (C-13)."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.policy_failure = ""
        self._excluded: set[tuple[int, int]] = set()
        self._holder: int | None = None
        self._asked = 0
        self._pending = -1

    def reach(self, mark: str) -> None:
        """It happened. Raises `KeyError` for a mark that is in no list: a campaign could not ask for it."""
        MARKS[mark]
        self.reached[mark] += 1

    def watch(self, world: World, step: Step) -> None:
        """Look at what one step led to."""
        for turn in step.parts:
            if isinstance(turn, Run):
                continue  # nothing in it is rare
            kind = turn.event.__class__
            if turn.who == COORDINATOR:
                if kind in EVENTS:
                    self._event(turn.event)
                for effect in turn.effects:
                    if effect.__class__ in EFFECTS:
                        self._effect(world, effect)
            else:
                if kind is ev.CollectiveFailed:
                    self.reach("a call failed")
                for effect in turn.effects:
                    if effect.__class__ is fx.Stop:
                        self._stopped(effect)

    def _stopped(self, effect: fx.Stop) -> None:
        if effect.status == "coordinator_lost":
            self.reach("a rank lost the coordinator")
        elif effect.status == "failed" and MISSING.search(effect.text):
            self.reach("a message was missing")

    def _event(self, event: Any) -> None:
        kind = event.__class__
        if kind is ev.RoundReduced:
            for _, why in event.refused:
                if why in BY_REFUSAL:
                    self.reach(BY_REFUSAL[why])
        elif kind is ev.ConsensusSaved or kind is ev.MetaWritten:
            self.reach("a bundle was written" if event.error is None else "a bundle could not be written")

    def _effect(self, world: World, effect: Any) -> None:
        kind = effect.__class__
        if kind is fx.Send:
            self._send(world, effect.message)
        elif kind is fx.Emit and not effect.facts.get("again"):
            self._emit(world, effect.name, effect.facts)
        elif kind is fx.OpenRound:
            if effect.attempt > 0:
                self.reach("an attempt was repeated")
            if effect.key.is_transfer:
                self.reach("a donor was asked")
        elif kind is fx.SendFenced:
            self.reach("a stale life was told so")
            if effect.fenced.why == "stale" and effect.incarnation < world.co.peers[effect.rank].incarnation:
                self.reach("a life was heard when the next one had its seat")
        elif kind is fx.Refuse:
            self.reach("a knock was refused")
        elif kind is fx.Admit and effect.incarnation > 1:
            self.reach("a dead rank came back")
        elif kind is fx.Admit and world.co.run.phase == RunPhase.TRAINING:
            self.reach("a rank came anew")
        elif kind is fx.Alert and effect.again:
            return  # it was looked at when it was said first (M-44)
        elif kind is fx.Alert and (effect.kind, effect.path) == OF_JOURNAL:
            self.reach("a rank knew more than the journal")
        elif kind is fx.Alert and effect.kind == "callback_failed" and effect.path.partition(".")[0] in CONSULTED:
            self.policy_failure = self.policy_failure or f"{effect.path}: {effect.text}"
        elif kind is fx.Alert and effect.kind in BY_ALERT:
            if effect.kind != "refused" or effect.text.startswith("broke"):
                self.reach(BY_ALERT[effect.kind])
            if effect.kind == "refused" and MISSING.search(effect.text):
                self.reach("a report was missing")
        elif kind is fx.Finish and effect.text.startswith("no rank is left"):
            self.reach("all ranks were lost")
        elif kind is fx.Finish and effect.status == "stopped":
            self.reach("an operator stopped the run")

    def _send(self, world: World, message: Any) -> None:
        kind = message.__class__
        if kind is m.SetEpochCallbackRole:
            if self._holder not in (None, message.holder):
                self.reach("a callback role went on")
            self._holder = message.holder
        elif kind is m.ShutdownWithSave:
            self.reach("a run was saved and stopped")
            if message.reason == m.SaveReason.SINGLE_SURVIVOR and world.config.is_collective:
                self.reach("a single survivor")
        elif kind is m.RequestSessionId:
            if self._asked == message.session_id:
                self.reach("a generator did not answer")
            self._asked = message.session_id

    def _emit(self, world: World, name: str, facts: dict[str, Any]) -> None:
        if name in BY_EMIT:
            self.reach(BY_EMIT[name])
        if name == "Died":
            self.reach("a rank died")
            if world.co.cycle.pending:
                self.reach("a rank died while a cycle was pending")
            if world.co.book.limbo:
                self.reach("a contribution outlived its rank")
            if facts["cause"].startswith("silent"):
                self.reach("a silent rank was given up")
            if facts["cause"] == "not_reattached":
                self.reach("a rank was not taken back in time")
        elif name == "Restarted":
            self.reach("a coordinator came back")
            self._pending = world.co.cycle.number if world.co.cycle.pending else -1
            if world.co.cycle.pending:
                self.reach("a coordinator came back in the middle of a cycle")
        elif name == "Reattached":
            if world.co.generation == 1:
                self.reach("a rank was taken back after a lost link")
            if facts["reports_missing"]:
                self.reach("a report was sent again")
        elif name == "SessionNew" and facts["session"] > 1:
            self.reach("a session was renewed")
            if facts["cycle"] is not None:
                self.reach("a collective was repeated")
        elif name == "SyncEnd" and facts["cycle"] == self._pending:
            self.reach("a cycle went on after a restart")
        elif name == "Cycle" and not facts["realized"]:
            self.reach("a cycle ended without a consensus")
        elif name == "Excluded":
            self._excluded.add((facts["rank"], world.co.peers[facts["rank"]].incarnation))
        elif name == "Promoted" and world.co.cycle.number > 0:
            back = (facts["rank"], world.co.peers[facts["rank"]].incarnation) in self._excluded
            self.reach("an excluded rank came back" if back else "a joiner was promoted")
