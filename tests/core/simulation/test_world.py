"""The world of a simulated run: the dullest run of each kind ends well, any order of events is allowed, and a snapshot
is the whole of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from paceline.core.errors import ConfigError, LocalProtocolError
from paceline.core.simulation import Action, Setup, Violation, World
from paceline.transports.codec import MsgpackCodec

EVERYTHING: dict[str, Any] = dict(
    ranks=3, samples=24, stateful=True, blocks=2, callbacks=("epoch", "evaluate", "checkpoint"),
)  # fmt: skip
KNOBS: dict[str, Any] = dict(num_epochs=2, eval_every=1, checkpoint_every=1, save_path="/files")


def dull(world: World, most: int = 5_000) -> World:
    for _ in range(most):
        if world.over:
            return world
        world.do(world.enabled()[0])
    raise AssertionError(f"the run does not end: {world.co.explain()}")


def wander(world: World, random: Random, actions: int, faults: float = 0.0) -> None:
    for _ in range(actions):
        if world.over:
            return
        struck = world.faults() if random.random() < faults else ()
        world.do(random.choice(struck or world.enabled()))


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_the_dullest_run_ends_well(policy: str) -> None:
    world = dull(World(Setup(**EVERYTHING, knobs={**KNOBS, "policy": policy})))

    assert world.finished
    assert len(world.ghost.merged) == 48


def test_on_the_wire_the_dullest_run_is_the_same() -> None:
    plain, framed = (World(Setup(ranks=2, wire=wire), codec=MsgpackCodec() if wire else None) for wire in (False, True))
    dull(plain)
    dull(framed)

    assert framed.finished
    assert framed.ghost.means == plain.ghost.means


def framed() -> World:
    """A run on the wire whose first report is under way."""
    world = World(Setup(ranks=2, wire=True), codec=MsgpackCodec())
    for line in ("control 0", "order 0"):
        world.do(Action.parse(line))
    assert len(world.processes[0].up) == 1
    return world


def test_a_frame_that_is_cut_in_two_is_heard_in_the_end() -> None:
    """N-25, I22."""
    world = framed()

    assert world.do(Action("split", 0, 17)).turns == ()
    assert len(world.do(Action("report", 0)).turns) == 1
    assert dull(world).finished


@pytest.mark.parametrize(("faults", "cause"), [
    (("corrupt 0 40",), "wrong tag"), (("corrupt 0 2",), "out of step"), (("sever 0 33",), "went away inside a frame"),
    (("duplicate 0",), "has number 0 where 1 is due"), (("cut 0",), "reset"),
])  # fmt: skip
def test_what_damages_a_link_ends_one_rank_only(faults: tuple[str, ...], cause: str) -> None:
    """I22, N-23: the other rank does all the work."""
    world = framed()
    for line in faults:
        world.do(Action.parse(line))
    lost = [event for _ in range(2) if "report" in world.possible(world.processes[0])
            for _, event in world.do(Action("report", 0)).events]  # fmt: skip

    assert cause in lost[-1].cause
    assert dull(world).finished and world.co.deaths == 1


def test_a_coordinator_dies_between_two_effects() -> None:
    """What it had said before has left; every rank finds its link lost, looks for it until its window is over, and
    ends (W-21)."""
    world = World(Setup(ranks=3, knobs={"reconnect_window_s": 90.0}))
    world.do(Action("die", -1, 2))
    while world.alive:
        world.do(world.enabled()[0])
    died_at = world.now
    for _ in range(200):
        if not world.enabled():
            break
        world.do(world.enabled()[0])

    assert world.finish is None and world.over and not world.finished
    assert world.now - died_at == 90.0
    assert [process.ended and process.ended.status for process in world.processes] == ["coordinator_lost"] * 3
    assert not any(process.alive for process in world.processes)


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_is_the_whole_world(seed: int) -> None:
    """N-13, I25: from a snapshot on the same actions have the same effects."""
    random = Random(seed)
    setup = Setup(**EVERYTHING, knobs={**KNOBS, "policy": ("sync", "cadence", "async")[seed % 3]})
    world = World(setup)
    wander(world, random, 150, 0.03)
    snapshot = world.snapshot()
    twin = World.restore(setup, snapshot)

    assert twin.snapshot() == snapshot and hash(twin.snapshot()) == hash(snapshot)
    for _ in range(100):
        assert twin.enabled() == world.enabled() and twin.faults() == world.faults()
        if world.over:
            break
        action = random.choice(world.enabled())
        assert world.do(action) == twin.do(action)
    world.load(snapshot)
    assert world.snapshot() == snapshot


def test_parts_that_did_not_change_are_the_same_objects() -> None:
    world = World(Setup(ranks=3, samples=24))
    before = world.snapshot()
    world.do(Action("control", 1))
    after = world.snapshot()

    assert after[1] is before[1] and after[2] is before[2]
    assert [a[2] is b[2] for a, b in zip(after[4], before[4], strict=True)] == [True, False, True]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_events_and_faults_breaks_nothing(seed: int) -> None:
    """The invariants hold on a walk at random, without clocks, and after it the dullest run ends."""
    random = Random(seed)
    knobs = {"policy": random.choice(["sync", "cadence", "async"]), "laggards": random.choice(["wait", "exclude"])}
    world = World(Setup(ranks=random.randint(1, 4), samples=16, stateful=random.random() < 0.5, knobs=knobs))
    wander(world, random, 400, 0.02)
    while not world.over:
        world.do(world.enabled()[0])

    assert world.finish is not None or not world.alive


def test_what_cannot_happen_is_refused() -> None:
    world = World(Setup(ranks=2))

    with pytest.raises(LocalProtocolError, match="reduce cannot happen now"):
        world.do(Action("reduce"))
    with pytest.raises(LocalProtocolError, match="there is no process 7 yet"):
        world.do(Action("step", 7))
    world.do(Action("tick"), 3.0)
    with pytest.raises(LocalProtocolError, match="lies before"):
        world.do(Action("tick"), 2.0)
    with pytest.raises(LocalProtocolError, match="needs a codec"):
        World(Setup(wire=True))
    with pytest.raises(ConfigError, match="no knob"):
        Setup(knobs={"speed": 3})


@pytest.mark.parametrize("text", ["report 1", "reduce", "crash 2 3", "jump coordinator 9", "tick coordinator"])
def test_an_action_is_a_line_of_text(text: str) -> None:
    assert str(Action.parse(text)) == text


@pytest.mark.parametrize("text", ["fly 1", "report x", "report 1 2 3", "report -1", "crash 1 ²"])
def test_a_line_that_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Action.parse(text)


def test_a_violation_has_the_name_of_its_invariant() -> None:
    """The ghost notices a consensus that is not the mean of what was accepted (R-6)."""
    world = World(Setup(ranks=2))
    world.processes[0].theta += 1.0

    with pytest.raises(Violation, match="R-16") as caught:
        dull(world)
    assert caught.value.name == "R-16"
