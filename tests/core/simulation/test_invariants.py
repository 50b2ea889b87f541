"""The checks themselves: each has an id of the protocol, and each notices what it is for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core import recovery
from paceline.core.events import LeaveRequested
from paceline.core.phases import WorkerPhase
from paceline.core.simulation import Setup, Violation, World
from paceline.core.simulation.action import COORDINATOR, act
from paceline.core.simulation.averager import Averager
from paceline.core.simulation.faults import SITES
from paceline.core.simulation.invariants import blamed, books, explained, parked
from paceline.core.simulation.marks import MARKS
from paceline.core.simulation.together import obey

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "core" / "simulation"
NAMED = re.compile(r'"([A-Z]-\d+|I\d+)",\s*(?:f?"|text)')


def rules() -> set[str]:
    return {rule for section in tomllib.loads((ROOT / "docs" / "rules.toml").read_text()).values() for rule in section}


def named() -> set[str]:
    return {name for file in PACKAGE.glob("*.py") for name in NAMED.findall(file.read_text())}


def training(**changes: Any) -> World:
    """A run in its first window."""
    world = World(Setup(ranks=2, samples=12, **changes))
    while not world.processes[1].plans:
        world.do(world.enabled()[0])
    return world


def test_every_check_and_every_mark_is_about_a_rule() -> None:
    assert named() | set(MARKS.values()) <= rules()
    assert len(named()) >= 35


def test_every_site_and_every_mark_is_used() -> None:
    text = "".join(file.read_text() for file in PACKAGE.glob("*.py") if file.name != "faults.py")
    marks = "".join(file.read_text() for file in PACKAGE.glob("*.py"))

    assert [site for site in SITES if f'"{site}"' not in text] == []
    assert [mark for mark in MARKS if marks.count(f'"{mark}"') < 2] == []


def _forgets_a_batch(world: World) -> None:
    world.co.book.holdings(0).plans.clear()


def _counts_a_step_too_many(world: World) -> None:
    world.co.peers[0].steps += 1


def _loses_a_voter(world: World) -> None:
    world.co.voters.remove(1)


def _waits_for_nobody(world: World) -> None:
    while not world.co.cycle.pending:
        world.do(world.enabled()[0])
    world.co.cycle.owing = 0


@pytest.mark.parametrize(("damage", "name"), [
    (_forgets_a_batch, "D-11"), (_counts_a_step_too_many, "D-11"), (_loses_a_voter, "I19"), (_waits_for_nobody, "I27"),
])  # fmt: skip
def test_books_that_do_not_agree_are_noticed(damage: Callable[[World], None], name: str) -> None:
    world = training()
    damage(world)

    with pytest.raises(Violation, match=f"^{name}:"):
        books(world.co)


def _averages_wrongly(world: World) -> None:
    world.ghost.base[0] += 1.0


def _steps_unseen(world: World) -> None:
    world.processes[1].worker.steps_since_avg += 1


def _covers_too_much(world: World) -> None:
    world.co.cycle.global_step += 1


@pytest.mark.parametrize("damage", [
    _forgets_a_batch, _counts_a_step_too_many, _loses_a_voter, _waits_for_nobody, _averages_wrongly, _steps_unseen,
    _covers_too_much,
])  # fmt: skip
def test_quick_checks_find_what_thorough_ones_find(damage: Callable[[World], None]) -> None:
    """Books that are compared only after what had an effect break by the same rule as those compared every time."""
    found = []
    for thorough in (True, False):
        world = training(thorough=thorough)
        damage(world)
        with pytest.raises(Violation) as broken:
            while world.enabled():
                world.do(world.enabled()[0])
        found.append(broken.value.name)

    assert found[0] == found[1]


def _emit(name: str, **facts: Any) -> fx.Emit:
    return fx.Emit(name, facts)


def _send(world: World, kind: type, **fields: Any) -> fx.Send:
    return fx.Send(kind(rank=0, incarnation=1, control_seq=99, **fields))


PLAN = m.Plan(plan_id=9, epoch=0, offset=0, size=1)


@pytest.mark.parametrize(("effects", "name"), [
    (lambda world: [_emit("SyncStart", cycle=1), _emit("SyncStart", cycle=2)], "I1"),
    (lambda world: [_emit("SyncStart", cycle=5)], "I8"),
    (lambda world: [_emit("Covered", slices=[[0, 0, 0, 1]])], "I42"),
    (lambda world: [_emit("EpochEnd", epoch=1)], "I13"),
    (lambda world: [_emit("Died", rank=0, incarnation=1), _emit("Left", rank=0, incarnation=1)], "I19"),
    (lambda world: [_emit("Died", rank=0, incarnation=1), _send(world, m.Beacon, run_phase=1, cycle_phase=0, cycle=0)],
     "N-11"),
    (lambda world: [_send(world, m.Throttle, cycle=1, reason=m.ThrottleReason.BARRIER)], "I6"),
    (lambda world: [_send(world, m.ShutdownWithSave, decision_id=1, reason=m.SaveReason.GRACEFUL, saver=0),
                    _send(world, m.StartEpoch, cycle=0, plan=PLAN)], "I9"),
    (lambda world: [_send(world, m.Shutdown, reason=m.SaveReason.GRACEFUL)] * 2, "I9"),
    (lambda world: [_emit("Excluded", rank=0), _send(world, m.StartEpoch, cycle=0, plan=PLAN)], "I18"),
    (lambda world: [fx.Finish("ok", ""), _emit("SyncStart", cycle=1)], "C-25"),
])  # fmt: skip
def test_the_ghost_notices_what_may_not_be_said(effects: Callable[[World], list[Any]], name: str) -> None:
    world = training()

    with pytest.raises(Violation, match=f"^{name}:"):
        for effect in effects(world):
            world.ghost.see(world.co, effect)


@pytest.mark.parametrize("ends", [fx.CloseRound, fx.AbortRound, None])
def test_a_round_is_over_before_another_begins(ends: type[Any] | None) -> None:
    """R-1: an averager that is to hold two would take the consensus of the first back (K-10)."""
    averager = Averager(Setup())
    first, second = (m.RoundKey(generation=1, cycle=number, kind=m.RoundKind.PARAMS) for number in (1, 2))
    averager.perform(fx.OpenRound(first, 0, (), ()))
    averager.perform(fx.OpenRound(first, 1, (), ()))
    if ends is not None:
        averager.perform(ends(first))
        averager.perform(fx.OpenRound(second, 0, (), ()))
        assert averager.round is not None and averager.round.opened.key == second
    else:
        with pytest.raises(Violation, match=r"^R-1: .*cycle=2.* is opened, .*cycle=1.* was not closed"):
            averager.perform(fx.OpenRound(second, 0, (), ()))


def test_a_parked_rank_goes_on_only_by_its_update() -> None:
    """I15, I23."""
    world = training()
    process = world.processes[0]
    assert process.worker.phase == WorkerPhase.TRAINING

    with pytest.raises(Violation, match=r"^I15:"):
        parked(process, WorkerPhase.THROTTLED, 3, LeaveRequested())
    process.worker.phase = WorkerPhase.THROTTLED
    with pytest.raises(Violation, match=r"^I23:"):
        parked(process, WorkerPhase.DRAINING, 3, LeaveRequested())


def test_nobody_is_blamed_for_what_nothing_had_struck() -> None:
    """N-7: an end that says that the other one broke the protocol is at fault, unless a lane was tampered with."""
    world = training()
    process = world.processes[1]
    blamed(process, "silent for 61 s")
    for why in ("broke the protocol: report 1 is missing, 9 came", "the coordinator broke the protocol: a hole"):
        with pytest.raises(Violation, match=rf"^N-7: nothing had struck the lanes of process 1.*{why}"):
            blamed(process, why)
    process.worker.control_seen = 0  # so that what comes next leaves a hole
    with pytest.raises(Violation, match=r"^N-7: .* the coordinator broke the protocol: control message 1 is missing"):
        while True:
            world.do(next(action for action in world.enabled() if action.kind != "step" or action.who != 1))
    world = training()
    world.co.peers[1].report_seq -= 1
    world.processes[1].tampered = True
    while world.co.peers[1].alive:
        world.do(world.enabled()[0])


def test_a_session_has_the_id_that_was_made_for_it() -> None:
    """M-31: another one leads into another session, or into none."""
    world = World(Setup(ranks=2, samples=12, knobs={"averager": "collective"}))
    with pytest.raises(Violation, match=r"^M-31: the id of session 1 is b'session 2'"):
        obey(world, world.processes[0], fx.BuildSession(1, b"session 2", 0, 2, ((0, 1), (1, 1))))


def test_a_coordinator_that_comes_back_says_again_what_may_not_have_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """M-44."""
    for says in (True, False):
        world = training()
        while not any(isinstance(effect, fx.Emit) for effect in world.journal.undone):
            world.do(world.enabled()[0])
        world.do(act("die", COORDINATOR))
        if says:
            world.do(act("revive", COORDINATOR))
            continue
        monkeypatch.setattr(recovery, "_again", lambda effect: None)
        with pytest.raises(Violation, match=r"^M-44: .* was to be told again, told was"):
            world.do(act("revive", COORDINATOR))


def test_what_waits_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """I39."""
    world = World(Setup(ranks=2))
    monkeypatch.setattr(type(world.co), "explain", lambda self, rank=None: [])

    with pytest.raises(Violation, match=r"^I39:"):
        explained(world.co)
