"""Which events move which machine at all: everything else leaves it where it is, whatever its guards say.

Guards and effects are taken out of the real machines: a guard answers what the test says, an effect does nothing. So
this is a statement about the tables alone, in phases that no scenario brings together with that event.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest

from paceline.core.engine import Kind, cells, literal
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase, WorkerPhase
from paceline.core.tables import TABLES, engine_for, machine_class

from support.hand import Hand
from support.rank import Rank

MOVING = {
    "peer": {"Exiting", "Lost", "Promoted", "Excluded"},
    "cycle": {"Judge", "RoundAborted", "RoundFailed", "Back", "Overtaken", "Ceiling", "Abandoned", "Unrecoverable"},
    "run": {"Formed", "FormationFailed", "Judge", "Saving"},
    "worker": {
        "RequestParams", "Update", "StartEpoch", "ExtendPartition", "Throttle", "ChunkDone", "ShutdownWithSave",
        "Shutdown", "ActionDone", "Fenced", "LinkLost", "LaneClosed", "GraceOver", "LeaveRequested", "TrainingFailed",
        "SyncNow", "NewSession", "SessionOverdue", "CollectiveDone", "CollectiveFailed", "Welcome", "Reject",
        "WindowOver", "Overflow",
    },
}  # fmt: skip
"""The events that may move a machine (M-1, C-2, C-25, section 5)."""
LIVE = (WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED)
INSIDE = WorkerPhase.IN_COLLECTIVE
AT_REST = (WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.THROTTLED, INSIDE)
"""Where no order to stop can wait in the lane (W-24)."""
ALIVE = (PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING)
ENDS: dict[tuple[str, str], dict[Any, IntEnum]] = {
    ("peer", "Exiting"): dict.fromkeys(ALIVE, PeerPhase.EXITED),
    ("peer", "Lost"): dict.fromkeys(ALIVE, PeerPhase.DEAD),
    ("peer", "Promoted"): dict.fromkeys((PeerPhase.JOINING, PeerPhase.LAGGING), PeerPhase.VOTER),
    ("peer", "Excluded"): {PeerPhase.VOTER: PeerPhase.LAGGING},
    ("cycle", "Abandoned"): {CyclePhase.PENDING: CyclePhase.STALLED},
    ("cycle", "Unrecoverable"): {CyclePhase.PENDING: CyclePhase.STALLED},
    ("cycle", "Overtaken"): {CyclePhase.PENDING: CyclePhase.IDLE},
    ("cycle", "Ceiling"): {CyclePhase.IDLE: CyclePhase.STALLED},
    ("run", "Formed"): {RunPhase.FORMING: RunPhase.TRAINING},
    ("run", "Saving"): dict.fromkeys((RunPhase.TRAINING, RunPhase.FINAL_EVAL), RunPhase.SHUTTING_DOWN),
    ("worker", "LeaveRequested"): dict.fromkeys(LIVE, WorkerPhase.DRAINING),
    ("worker", "Shutdown"): dict.fromkeys((*LIVE, INSIDE), WorkerPhase.STOPPED),
    ("worker", "WindowOver"): dict.fromkeys(AT_REST, WorkerPhase.STOPPED),
    ("worker", "SessionOverdue"): dict.fromkeys((WorkerPhase.JOINING, WorkerPhase.THROTTLED), WorkerPhase.STOPPED),
    ("worker", "LaneClosed"): dict.fromkeys(AT_REST, WorkerPhase.STOPPED),
    ("worker", "TrainingFailed"): dict.fromkeys((*AT_REST, WorkerPhase.DRAINING), WorkerPhase.STOPPED),
}
"""Where an event leads from a phase whatever the guards say."""


def puppet(name: str, answers: dict[str, bool]) -> Any:
    """A machine of the table whose guards answer as told and whose effects do nothing."""
    hand = Hand(1)
    machine: Any = {"peer": hand.co.peers[0], "cycle": hand.co.cycle, "run": hand.co.run, "worker": Rank().worker}[name]
    rows = TABLES[name].rows
    known: dict[str, Any] = {effect: lambda self, event: None for row in rows for effect in row.effects}
    for guard in {literal(guard)[0] for row in rows for guard in row.guards}:
        known[guard] = lambda self, event, guard=guard: answers.get(guard, False)
    owner = machine_class(name)
    machine.__class__ = type(f"Puppet{owner.__name__}", (owner,), {"__slots__": (), **known})
    return machine


def outcomes(name: str, event: str) -> Iterator[tuple[IntEnum, IntEnum, Kind]]:
    """Every phase, with the phases and kinds that this event can lead to from there."""
    answers: dict[str, bool] = {}
    machine = puppet(name, answers)
    for phase in TABLES[name].phases:
        asked = sorted({literal(guard)[0] for row in cells(TABLES[name])[phase, event] for guard in row.guards})
        for answer in itertools.product((True, False), repeat=len(asked)):
            answers.clear()
            answers.update(zip(asked, answer, strict=True))
            machine.phase = phase
            kind = engine_for(name).fire(machine, event, None).kind
            yield phase, machine.phase, kind


@pytest.mark.parametrize("name", sorted(TABLES))
def test_only_events_that_may_move_a_machine_do(name: str) -> None:
    """I19, C-2, M-1, W-17, W-21, R-15: notices, evidence and reports are answered where the machine stands."""
    moved = {
        (event, before.name, after.name)
        for event in TABLES[name].events if event not in MOVING[name]
        for before, after, _ in outcomes(name, event) if before is not after
    }  # fmt: skip
    assert moved == set()


@pytest.mark.parametrize(("name", "event"), sorted(ENDS))
def test_events_that_depend_on_nothing_lead_where_they_lead(name: str, event: str) -> None:
    """M-1, M-8, M-14, M-17, M-25, M-45, C-25, C-41, C-42, C-45, R-15, W-19, W-21, W-24, W-28."""
    for before, after, _ in outcomes(name, event):
        assert after is ENDS[name, event].get(before, after), before.name


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_violation_leaves_the_end_to_whoever_counts_it(name: str) -> None:
    """N-7: the session is ended by the machine that counts violations, with a notice; the row itself moves nothing."""
    impossible = {row.event for row in TABLES[name].rows if row.kind is Kind.VIOLATION}
    moved = {
        (event, before.name)
        for event in TABLES[name].events if event in impossible
        for before, after, kind in outcomes(name, event) if kind is Kind.VIOLATION and before is not after
    }  # fmt: skip
    assert moved == set()
