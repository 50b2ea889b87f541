"""A journal that has lost its end: what the simulated run makes of it (M-45)."""

from __future__ import annotations

import pytest

from paceline.core import effects as fx
from paceline.core.simulation.action import COORDINATOR, Action, act
from paceline.core.simulation.comeback import Journal
from paceline.core.simulation.lost_tail import forgotten, moved_forward
from paceline.core.simulation.setup import Setup
from paceline.core.simulation.step import Step
from paceline.core.simulation.world import World


def run(averager: str, lost: int, version: int = 8, stateful: bool = False, **more: object) -> tuple[World, list[str]]:
    """Two ranks whose coordinator dies at this version and comes back without its newest batches."""
    knobs = {"averager": averager, "reconnect_window_s": 200.0, "min_ranks": 1, "max_anchor": 2, "max_ranks": 4, **more}
    world, reached = World(Setup(ranks=2, samples=80, stateful=stateful, knobs=knobs)), []
    world.reached = reached.append
    while world.co.cycle.version < version:
        world.do(world.enabled()[0])
    world.do(act("die", COORDINATOR))
    known = world.co.cycle.version, world.co.cycle.global_step
    world.do(Action("revive", COORDINATOR, lost))
    began = world.co.cycle.version
    while world.enabled():
        world.do(world.enabled()[0])
        assert world.co.cycle.version >= began, "M-45: never backward"
    assert world.finish is not None and world.finish.status == "ok", world.finish
    assert world.co.cycle.version >= known[0] and world.co.cycle.global_step >= known[1]
    return world, reached


def revived(averager: str, lost: int) -> World:
    """Two ranks of `cadence`, or of `async` if they average by star, whose coordinator has just come back from what is
    left of its journal."""
    policy = "async" if averager == "star" else "cadence"
    knobs = {"averager": averager, "policy": policy, "reconnect_window_s": 200.0, "min_ranks": 1, "max_ranks": 4}
    world = World(Setup(ranks=2, samples=80, knobs={**knobs, "max_anchor": 2}))
    while world.co.cycle.version < 8:
        world.do(world.enabled()[0])
    world.do(act("die", COORDINATOR))
    world.do(Action("revive", COORDINATOR, lost))
    return world


@pytest.mark.parametrize("averager", ["star", "collective"])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("lost", [1, 8, 25, 50])
def test_the_version_goes_forward_and_all_is_covered(averager: str, lost: int, stateful: bool) -> None:
    """M-45, I42, I44: whatever is missing, the run ends with every pick covered, and what ranks had averaged is in the
    base, counted nowhere else. M-24: who alone stands on the version has all parts of the model, and asks nobody for
    the static one; it asked itself once (`paceline simulate --ranks 8 --seed 6293`)."""
    world, reached = run(averager, lost, stateful=stateful)

    assert "the end of a journal was lost" in reached
    assert world.ghost.uncounted >= 0 and len(world.ghost.merged) == 80


@pytest.mark.parametrize("lost", [25, 50])
def test_ranks_that_blend_go_on_from_the_average_and_not_from_what_they_made_of_it(lost: int) -> None:
    """M-45, R-17: no rank of `async` holds the consensus, and each keeps it (`paceline simulate --ranks 5 --seed
    8051682`, I59)."""
    world, reached = run("star", lost, policy="async")

    assert "the end of a journal was lost" in reached
    assert len(world.ghost.merged) == 80


@pytest.mark.parametrize(("policy", "lost"), [("async", 12), ("cadence", 10), ("sync", 8)])
@pytest.mark.parametrize("more", [{}, {"elastic": False, "max_batch_diff": None}, {"max_failure": 1}], ids=str)
def test_ranks_on_the_version_of_the_books_go_on_from_it(policy: str, lost: int, more: dict[str, object]) -> None:
    """M-45, M-27, M-22: all of them have been told what is lost, so no life can be gone on with; but the version is
    there. Nobody has died, so no `max_failure` is reached, and a frozen cohort takes back who was in it."""
    world, _ = run("star", lost, policy=policy, **more)

    assert {(0, 1), (1, 1)} <= world.ghost.ended and world.ghost.uncounted == 0
    assert len(world.ghost.merged) == 80


@pytest.mark.parametrize(("averager", "lost"), [("star", 12), ("star", 50), ("collective", 50)])
@pytest.mark.parametrize("again", [1, 8, 20, 1000])
def test_a_second_journal_that_loses_its_end_ends_nothing(averager: str, lost: int, again: int) -> None:
    """M-45: the ranks hold a life more than the books know, and the version still."""
    world = revived(averager, lost)
    while not world.co.voters or world.co.generation != 2 or not world.co.peers[0].attached:
        world.do(world.enabled()[0])
    for _ in range(6):
        world.do(world.enabled()[0])
    world.do(act("die", COORDINATOR))
    world.do(Action("revive", COORDINATOR, again))
    while world.enabled():
        world.do(world.enabled()[0])

    assert world.finish is not None and world.finish.status == "ok", world.finish
    assert len(world.ghost.merged) == 80


def test_who_was_turned_away_goes_on_when_the_last_voter_dies() -> None:
    """M-45, M-27: rank 0 came back with the version and without a vote; rank 1 has one, and never comes."""
    world = revived("star", 12)
    while not world.co.peers[0].attached:
        world.do(world.enabled()[0])
    assert world.co.voters == [1] and world.co.lost_tail.giver == 0
    world.do(act("crash", 1))
    while world.enabled():
        world.do(world.enabled()[0])

    assert world.finish is not None and world.finish.status == "ok", world.finish
    assert len(world.ghost.merged) == 80


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_picks_of_a_cycle_that_the_journal_lost_are_trained_again(averager: str) -> None:
    """M-45: the ranks stand on an average that is in no books."""
    world, _ = run(averager, 50)

    assert world.ghost.uncounted > 0
    assert max(world.ghost.trained.values()) > 1


@pytest.mark.parametrize(("lost", "left"), [(0, "abcd"), (1, "abc"), (2, "a"), (3, ""), (9, "")])
def test_a_journal_loses_whole_batches(lost: int, left: str) -> None:
    """M-40: the newest first, and no more than there are since the snapshot."""
    journal = Journal(None, (), list("abcd"), [1, 3, 4])

    assert "".join(journal.without(lost) if lost else journal.records) == left


@pytest.mark.parametrize("averager", ["star", "collective"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("elastic", [True, False])
def test_a_run_that_is_forgotten_back_to_its_forming_goes_forward_too(
    averager: str, version: int, elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-45: the journal has nothing left behind its head, which knows of no training."""
    monkeypatch.setattr("paceline.core.simulation.comeback.SNAPSHOT_EVERY", 1000)
    world, reached = run(averager, 1000, version, elastic=elastic, max_batch_diff=None)

    assert "the end of a journal was lost" in reached and world.ghost.uncounted > 0
    assert len(world.ghost.merged) == 80 and max(world.ghost.trained.values()) > 1


def test_the_version_that_a_claim_brings_back_is_what_its_rank_stands_on() -> None:
    """M-45: an average in place that no coordinator ever finished, and the end of the journal is lost once more before
    the rank has given it to the others (`paceline simulate --ranks 5 --seed 1026799 --policy cadence --set
    averager=collective`)."""
    world = World(Setup(ranks=2, samples=80, knobs={"averager": "collective"}))
    while world.co.cycle.version < 2:
        world.do(world.enabled()[0])
    ghost, co = world.ghost, world.co
    ghost.held[1], ghost.base[1], co.cycle.version = 3, 0.125, 3
    moved_forward(ghost, co)
    assert ghost.means[3] == 0.125
    co.cycle.version, co.cycle.finished = 2, co.cycle.number - 1
    forgotten(ghost, co)
    assert ghost.former[co.cycle.number] == ((3, 0.125),)


@pytest.mark.parametrize("averager", ["star", "collective"])
def test_a_coordinator_that_dies_as_it_moves_forward_does_so_once(averager: str) -> None:
    """M-44, M-45: the next one says that the journal was behind a rank once more, with a mark, and moves nowhere (a
    storm of 5 ranks, collective, seed 4022142)."""
    world = World(Setup(ranks=2, samples=80, knobs={"averager": averager, "reconnect_window_s": 200.0, "min_ranks": 1}))
    while world.co.cycle.version < 8:
        world.do(world.enabled()[0])
    world.do(act("die", COORDINATOR))
    world.do(Action("revive", COORDINATOR, 50))
    marks: list[bool] = []
    while not marks:
        marks += told_behind(world.do(world.enabled()[0]))
    world.do(act("die", COORDINATOR))
    version = world.co.cycle.version
    marks += told_behind(world.do(act("revive", COORDINATOR)))

    assert marks == [False, True] and world.ghost.version == world.co.cycle.version == version
    while world.enabled():
        assert not told_behind(world.do(world.enabled()[0]))
    assert world.finished and len(world.ghost.merged) == 80


def told_behind(step: Step) -> list[bool]:
    """Of each time that the journal was found behind a rank, whether that was said again."""
    effects = [effect for turn in step.turns for effect in turn.effects if isinstance(effect, fx.Alert)]
    return [alert.again for alert in effects if (alert.kind, alert.path) == ("accounting", "journal")]


def test_what_a_rank_ships_without_a_link_reaches_nobody() -> None:
    """N-26: a rank that does not know yet that the coordinator is another one answers an old request. The averager took
    that for the answer to the new one, and the result of it was lost with the link (`--ranks 3 --seed 1056239`)."""
    world = World(Setup(ranks=2, samples=80, knobs={"batch_size": 1, "link_grace_s": 60.0}))
    while not world.processes[1].orders:
        world.do(world.enabled()[0])
    world.do(act("deafen", 1))
    world.do(act("die", COORDINATOR))
    assert not world.processes[1].linked
    world.do(act("order", 1))
    assert not world.processes[1].bulk_up


def test_a_seat_is_of_who_was_let_in_last() -> None:
    """M-45: another process has the seat of a rank that is away, and the coordinator forgets that when its journal
    loses its end. The rank comes back to its seat and is sent the next average, which went to the other one
    (`paceline simulate --ranks 12 --seed 7035820`, I30)."""
    knobs = {"reconnect_window_s": 200.0, "min_ranks": 1, "max_anchor": 2, "max_ranks": 4}
    world = World(Setup(ranks=2, samples=80, knobs=knobs))
    while world.co.cycle.version < 4:
        world.do(world.enabled()[0])
    for action in (act("die", COORDINATOR), act("revive", COORDINATOR), act("join", 1)):
        world.do(action)
    other = world.processes[-1]
    assert (other.rank, other.incarnation) == (1, 2)

    world.do(act("die", COORDINATOR))
    world.do(Action("revive", COORDINATOR, 1))
    while world.enabled():
        world.do(world.enabled()[0])

    assert world.finish is not None and world.finish.status == "ok", world.finish
