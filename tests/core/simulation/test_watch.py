"""The watch notices faults of the machines that look right in their own books: each is put into them here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import gates, ladder
from paceline.core import messages as m
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.simulation.action import COORDINATOR, act
from paceline.core.simulation.setup import Setup
from paceline.core.simulation.simulator import Case, simulate
from paceline.core.simulation.step import Turn
from paceline.core.simulation.violation import Violation
from paceline.core.simulation.watch import Watch
from paceline.core.simulation.world import World
from paceline.core.worker import Worker

from support.mutants import Patch, around

HEARTBEAT = ev.Received(m.Heartbeat(
    run_id=b"r" * 16, generation=1, rank=0, incarnation=1, report_seq=1, control_seq=0, step_count=0, state="x"
))  # fmt: skip


def a_late_report_ends_the_life_after_it(patch: Patch) -> None:
    """What a dead incarnation had still under way is held against the living one."""

    def change(tell: Any, co: Coordinator, message: m.Report, peer: Any) -> None:
        tell(co, message, peer)
        if peer is not None and message.incarnation < peer.incarnation and peer.alive:
            co.lose(message.rank, "sent something stale")

    around(patch, Coordinator, "_tell_stale", change)


def heartbeats_are_no_sign_of_life(patch: Patch) -> None:
    """Only progress is: a rank that is parked for long is taken for dead."""

    def change(receive: Any, co: Coordinator, message: Any) -> None:
        peer = co.peers.get(message.rank) if isinstance(message, m.Heartbeat) else None
        before = None if peer is None else peer.last_seen
        receive(co, message)
        if peer is not None and before is not None:
            peer.last_seen = before

    around(patch, Coordinator, "_receive", change)


def the_ceiling_is_lower_than_it_says(patch: Patch) -> None:
    """A tenth of it."""

    def change(ceiling: Any, co: Coordinator) -> float | None:
        due = ceiling(co)
        return None if due is None else due - 0.9 * co.config.reduce_ceiling

    around(patch, gates, "ceiling", change)


def a_heartbeat_asks_again(patch: Patch) -> None:
    """Each one nudges whoever is waited for."""

    def change(receive: Any, co: Coordinator, message: Any) -> None:
        receive(co, message)
        if isinstance(message, m.Heartbeat) and co.cycle.pending:
            for peer, stage, since in list(ladder._owing(co)):
                co.emit(fx.Emit("Nudge", ladder._facts(co, peer, stage, since, ladder.learned(co, peer, stage))))

    around(patch, Coordinator, "_receive", change)


def a_number_is_left_out(patch: Patch) -> None:
    """One of the lane, now and then."""

    def change(tell: Any, co: Coordinator, ranks: Any, message: type[m.Control], *own: Any, **fields: Any) -> None:
        for rank in ranks if message is m.Update else ():
            co.peers[rank].control_seq += 1
        tell(co, ranks, message, *own, **fields)

    around(patch, Coordinator, "tell", change)


def heartbeats_push_the_ceiling_out(patch: Patch) -> None:
    """A cycle in which nothing but heartbeats flows hangs for ever."""

    def change(receive: Any, co: Coordinator, message: Any) -> None:
        receive(co, message)
        if isinstance(message, m.Heartbeat):
            co.cycle.last_evidence_at = co.now

    around(patch, Coordinator, "_receive", change)


def what_comes_twice_is_done_twice(patch: Patch) -> None:
    """A worker that does not look at the numbers of what it is sent."""

    def change(admissible: Any, worker: Worker, message: m.Control) -> bool:
        seen, worker.control_seen = worker.control_seen, message.control_seq - 1
        try:
            return bool(admissible(worker, message))
        finally:
            worker.control_seen = max(seen, worker.control_seen)

    around(patch, Worker, "_admissible", change)


@pytest.mark.parametrize(
    ("fault", "breaks", "seed"),
    [
        (a_late_report_ends_the_life_after_it, "I3", 45), (heartbeats_are_no_sign_of_life, "I31", 0),
        (the_ceiling_is_lower_than_it_says, "I32", 0), (a_heartbeat_asks_again, "I33", 0),
        (a_number_is_left_out, "I53", 0),
    ],
)  # fmt: skip
def test_a_fault_that_the_books_do_not_show_is_seen_from_outside(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[Patch], None], breaks: str, seed: int
) -> None:
    """I3, I31, I32, I33, I53: the first that storms break is this one; `seed` spares those known to be too quiet."""
    fault(monkeypatch)
    broken = (simulate(Case(seed=number, ranks=3)).violation for number in range(seed, seed + 100))
    found = next((violation for violation in broken if violation is not None), None)
    assert found is not None and found.name == breaks, found


def hung(world: World) -> None:
    """Two ranks up to a cycle, in which the second does nothing any more but read its lane and send heartbeats."""
    while world.ghost.armed < 1 or not world.ghost.arms_open:
        world.do(world.enabled()[0])
    while world.finish is None and not world.watch.stalled:
        world.do(next(action for action in world.enabled() if action.who != 1 or action.kind in ("report", "control")))


def test_a_cycle_that_hangs_stalls_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """I32: heartbeats flow; at the first pass strictly after the ceiling it stalls, and not if they count as more."""
    world = World(Setup(ranks=2, samples=24))
    hung(world)
    assert world.watch.stalled

    heartbeats_push_the_ceiling_out(monkeypatch)
    with pytest.raises(Violation, match=r"^I32: cycle 1 has heard nothing for"):
        hung(World(Setup(ranks=2, samples=24)))


def repeated(world: World) -> None:
    """The dullest run, but that each control message is in the lane twice."""
    last = None
    while world.enabled() and not world.over:
        twice = [process for process in world.processes if process.down and process.down[0] is not last]
        if twice and act("repeat", twice[0].number) in world.faults():
            last = twice[0].down[0]
            world.do(act("repeat", twice[0].number))
        world.do(world.enabled()[0])


def test_what_arrives_twice_does_nothing_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """I53, N-2: not once in a whole run; and a worker that looks at no number is found out."""
    world = World(Setup(ranks=2, samples=12))
    repeated(world)
    assert world.finished

    what_comes_twice_is_done_twice(monkeypatch)
    with pytest.raises(Violation, match=r"^I53: "):
        repeated(World(Setup(ranks=2, samples=12)))


# --- word by word ----------------------------------------------------------------------------------------------------


def beacon(number: int, phase: int = 1) -> fx.Send:
    """A control message of rank 0 with this number."""
    message = m.Beacon(run_id=b"r" * 16, generation=1, rank=0, incarnation=1, control_seq=number, report_seq=0,
                       run_phase=phase, cycle_phase=0, cycle=0)  # fmt: skip
    return fx.Send(message)


def died(rank: int, cause: str) -> fx.Emit:
    """A life ends."""
    return fx.Emit("Died", {"rank": rank, "incarnation": 1, "cause": cause})


def goodbye(rank: int) -> tuple[Any, ...]:
    """What goes with that (M-18)."""
    fenced = m.Fenced(generation=1, incarnation=2, cycle=0, why="silent")
    return fx.SendFenced(rank, 1, fenced), fx.CloseLink(rank, 1, "silent")


def finished(cycle: int, **merged: int) -> fx.Emit:
    """A cycle ends; ranks by their number."""
    return fx.Emit("Cycle", {"cycle": cycle, "merged": merged})


def of_cycle(cycle: int, outcome: str) -> tuple[fx.Emit, ...]:
    """What is told of rank 0 in a finish: it is merged, or refused for this reason."""
    if outcome == "merged":
        return (finished(cycle, **{"0": 3}),)
    return finished(cycle, **{"0": 0}), fx.Emit("Refused", {"rank": 0, "why": outcome, "steps": 3})


def test_what_is_said_again_is_the_same_word() -> None:
    """I53, M-42: what a rank has not confirmed is sent again as it was."""
    watch = Watch(Config())
    watch.see([Turn(COORDINATOR, ev.Tick(), (beacon(1), beacon(2), beacon(1)))], 1.0, None)
    with pytest.raises(Violation, match=r"I53: control message 2 to life .* was"):
        watch.see([Turn(COORDINATOR, ev.Tick(), (beacon(2, phase=2),))], 2.0, None)


def test_evidence_of_another_attempt_takes_no_step() -> None:
    """I3, N-6: nor does that of a cycle that is over; what a coordinator that was started anew has yet to open is not
    known, and to order a transfer is no step of a cycle."""
    key, stale = m.RoundKey(generation=1, cycle=2, kind=m.RoundKind.PARAMS), fx.AdmitContribution
    watch = Watch(Config())

    def hear(cycle: int, attempt: int, *effects: Any) -> None:
        aborted = ev.RoundAborted(attrs.evolve(key, cycle=cycle), attempt, "the averager raised")
        watch.see([Turn(COORDINATOR, aborted, effects)], 1.0, 5.0)

    watch.see([Turn(COORDINATOR, ev.Tick(), (fx.OpenRound(key, 1, (), ()),))], 1.0, 5.0)
    hear(2, 1, stale(key, 1, 0, 3))
    hear(2, 0, fx.OpenRound(m.transfer_key(1, 1), 0, (), ()))
    for cycle, attempt in ((2, 0), (1, 1)):
        with pytest.raises(Violation, match=f"I3: RoundAborted of cycle {cycle}, attempt {attempt}, led to"):
            hear(cycle, attempt, stale(key, 1, 0, 3))
    watch.see([Turn(COORDINATOR, ev.OperatorRequest(ev.Operator.START), ())], 2.0, 5.0)
    hear(2, 0, stale(key, 0, 0, 3))


def test_what_is_due_for_the_end_of_a_life_is_no_step_of_the_report_that_ended_it() -> None:
    """I3, I33, N-7: behind a hole. What comes before the end is, and what follows the end of another life."""
    key = m.RoundKey(generation=1, cycle=2, kind=m.RoundKind.PARAMS)
    stamp: dict[str, Any] = dict(run_id=b"r" * 16, generation=1, rank=0, incarnation=1, report_seq=1, control_seq=0)
    failed = m.RoundFailed(**stamp, cycle=2, attempt=0, round=m.RoundKind.PARAMS, cause="torn", retryable=True)
    late = fx.Emit("Suspect", {"rank": 2})

    def hear(report: m.Report, due: Any, rank: int, *, before: bool = False) -> None:
        end = (fx.Emit("Died", {"rank": rank, "incarnation": 1, "cause": "a hole"}), fx.CloseLink(rank, 1, "a hole"),
               fx.SendFenced(rank, 1, m.Fenced(generation=1, incarnation=2, cycle=2, why="a hole")))  # fmt: skip
        watch = Watch(Config())
        watch.see([Turn(COORDINATOR, ev.Tick(), (fx.OpenRound(key, 1, (), ()),))], 1.0, 5.0)
        watch.see([Turn(COORDINATOR, ev.Received(report), (due, *end) if before else (*end, due))], 2.0, 5.0)

    for report, due, rule in ((failed, fx.AbortRound(key), "I3"), (HEARTBEAT.message, late, "I33")):
        hear(report, due, 0)
        with pytest.raises(Violation, match=f"^{rule}: "):
            hear(report, due, 0, before=True)
        with pytest.raises(Violation, match=f"^{rule}: "):
            hear(report, due, 1)


def test_no_news_of_an_old_link_or_life_leads_to_anything() -> None:
    """I3, M-17: the end of a connection that was replaced, and whatever is told late of a life that is over."""
    watch, told = Watch(Config()), (fx.Emit("Custom", {}),)
    watch.links[0, 1] = 7
    for event in (ev.LinkLost(0, 1, "reset", 7), ev.LinkLost(0, 1, "reset"), ev.SendFailed((0, 1, 3), 7),
                  ev.ProcessExited(0, 1, 9)):  # fmt: skip
        watch.see([Turn(COORDINATOR, event, told)], 1.0, 5.0)
    late = [ev.LinkLost(0, 1, "reset", 6), ev.SendFailed((0, 1, 3), 6)]
    watch.ended.add((1, 1))
    for event in (*late, ev.LinkLost(1, 1, "reset", 8), ev.SendFailed((1, 1, 3), 8), ev.ProcessExited(1, 1, 9)):
        watch.cut.clear()
        watch.see([Turn(COORDINATOR, event, ())], 1.0, 5.0)
        assert not watch.cut
        with pytest.raises(Violation, match=r"^I3: .* is no news of a life that goes on"):
            watch.see([Turn(COORDINATOR, event, told)], 1.0, 5.0)


def message(kind: type[m.Control], rank: int, **fields: Any) -> fx.Send:
    stamp = {"run_id": b"r" * 16, "generation": 1, "rank": rank, "incarnation": 1, "control_seq": 1, "report_seq": 0}
    return fx.Send(kind(**stamp, **fields))


def told(name: str, **facts: Any) -> fx.Emit:
    return fx.Emit(name, facts)


ALONG: dict[str, tuple[fx.Emit, Callable[[int], fx.Send], tuple[Any, ...]]] = {
    "M-18": (died(2, "not_reattached"), lambda rank: message(m.DeclareDead, rank, dead_rank=2, dead_incarnation=1),
             goodbye(2)),
    "K-20": (told("EpochEnd", epoch=3), lambda rank: message(m.EpochAggregated, rank, epoch=3, metrics={}), ()),
    "K-16": (told("Evaluated", metric=0.5, rank=0),
             lambda rank: message(m.EvalBroadcast, rank, schedule_id=1, epoch=0, version=1, metric=0.5), ()),
    "M-33": (told("RoleChanged", role="epoch", to=1),
             lambda rank: message(m.SetEpochCallbackRole, rank, holder=1), ()),
}  # fmt: skip
"""What happened, the word that everybody who is there is told of it, and what else goes with it; by the rule."""
AMISS: dict[str, dict[str, Any]] = {
    "M-18": {"dead_rank": 4}, "K-20": {"epoch": 2}, "K-16": {"metric": 0.25}, "M-33": {"holder": 0},
}  # fmt: skip
"""What makes such a word one of something else."""


@pytest.mark.parametrize("rule", list(ALONG))
def test_what_happened_is_told_to_everybody_who_is_there(rule: str) -> None:
    """M-18, K-16, K-20, M-33, N-11: not to who has ended, has no link, or is let in by the same event."""
    event, word, rest = ALONG[rule]

    def see(*effects: Any) -> None:
        watch = Watch(Config(), heard={(rank, 1): 0.0 for rank in range(5)}, ended={(3, 1)}, cut={(4, 1)})
        watch.see([Turn(COORDINATOR, ev.Tick(), (event, *effects, *rest))], 1.0, 5.0)

    ranks = (0, 1) if rule == "M-18" else (0, 1, 2)
    see(*map(word, ranks))
    for missing in ranks:
        with pytest.raises(Violation, match=rf"^{rule}: .*\[\({missing}, 1\)\] are there and were not told"):
            see(*(word(rank) for rank in ranks if rank != missing))
        with pytest.raises(Violation, match=rf"^{rule}: .*\[\({missing}, 1\)\] are there and were not told"):
            other = fx.Send(attrs.evolve(word(missing).message, **AMISS[rule]))
            see(*(word(rank) for rank in ranks if rank != missing), other)


def test_a_life_that_ends_is_cut_off_and_told_so() -> None:
    """M-18."""
    for effect, said in zip(goodbye(2), ("its link is not closed", "is not told so"), strict=True):
        watch = Watch(Config(), heard={(2, 1): 0.0})
        with pytest.raises(Violation, match=rf"^M-18: .* {said}"):
            watch.see([Turn(COORDINATOR, ev.Tick(), (ALONG["M-18"][0], effect))], 1.0, 5.0)


def test_who_votes_knows_who_calls_the_callback() -> None:
    """M-33, M-35: also the new life of the rank itself, with which the role has stayed."""
    watch = Watch(Config(), heard={(1, 1): 0.0}, voted={1})
    watch.see([Turn(COORDINATOR, ev.Tick(), (ALONG["M-33"][0], ALONG["M-33"][1](1)))], 1.0, 5.0)
    watch.heard[0, 1] = 0.0
    with pytest.raises(Violation, match=r"^M-33: lives \[\(0, 1\)\] vote and do not know that rank 1"):
        watch.see([Turn(COORDINATOR, ev.Tick(), (told("Promoted", rank=0),))], 1.0, 5.0)


def test_a_finish_that_comes_with_the_time_alone_is_seen() -> None:
    """I31: whoever is lost in it is lost behind it."""
    finish = finished(4)
    for effects in ((finish,), (finish, died(1, "silent for 60.0 s"))):
        with pytest.raises(Violation, match="I31: time alone finished cycle 4"):
            Watch(Config()).see([Turn(COORDINATOR, ev.Tick(), effects)], 1.0, None)


@pytest.mark.parametrize(
    ("earlier", "now", "ends"),
    [
        (("nonfinite", "nonfinite"), "nonfinite", True), (("nonfinite",), "nonfinite", False),
        (("nonfinite", "nonfinite", "merged"), "nonfinite", False),
        (("nonfinite", "nonfinite", "steps"), "nonfinite", False),
        (("nonfinite", "nonfinite"), "steps", False), (("nonfinite", "nonfinite", "nonfinite"), "merged", False),
    ],
)  # fmt: skip
def test_who_ships_rubbish_goes_in_the_finish_that_the_silence_of_another_brings(
    earlier: tuple[str, ...], now: str, ends: bool
) -> None:
    """I31, D-12: the third cycle in a row has waited for rank 1 alone, and finishes when that is given up. So a rank
    goes with a tick that was heard a moment ago; not for less (storms of seeds 13033894 and 13034383)."""
    watch = Watch(Config())
    promoted = [fx.Emit("Promoted", {"rank": rank}) for rank in (0, 1)]
    watch.see([Turn(COORDINATOR, HEARTBEAT, tuple(promoted))], 1.0, None)
    for number, outcome in enumerate(earlier):
        watch.see([Turn(COORDINATOR, HEARTBEAT, of_cycle(number, outcome))], 2.0 + number, None)
    ends_of = (*goodbye(1), *goodbye(0))
    effects = (died(1, "silent for 60.0 s"), *of_cycle(9, now), died(0, "unhealthy"), *ends_of)
    turns = [Turn(COORDINATOR, HEARTBEAT, ()), Turn(COORDINATOR, ev.Tick(), effects)]
    if ends:
        watch.see(turns, 90.0, None)
    else:
        with pytest.raises(Violation, match=r"I31: time alone ended life \(0, 1\), heard 0 s ago"):
            watch.see(turns, 90.0, None)


def test_a_stall_has_one_dump_and_one_decision_to_save() -> None:
    """I32."""
    stalled = fx.Emit("Stalled", {"cycle": 0, "waited_s": 9e3, "dump": {"a": 1}})
    for effects in ((stalled, stalled), (stalled, fx.Emit("StateDump", {})), (stalled,)):
        watch = Watch(Config())
        watch.see([Turn(COORDINATOR, HEARTBEAT, ())], 1.0, None)
        with pytest.raises(Violation, match="I32"):
            watch.see([Turn(COORDINATOR, ev.Tick(), effects)], 9e3, None)


def test_a_cycle_that_was_tried_too_often_stalls_before_its_ceiling() -> None:
    """I32, R-18: no time has passed, but the attempt that fails is the 33rd."""
    world = World(Setup())
    while world.finish is None:
        fails = world.co.cycle.number == 1 and world.co.cycle.pending
        world.do(act("abort") if fails else world.enabled()[0])

    assert world.finish.status == "saved" and world.watch.stalled and world.co.cycle.attempt == 32


def test_a_run_is_watched_from_its_first_knock_on() -> None:
    """I53, I32: those who are there from the start are heard, the cycle that their last knock opens is open, and what
    is said to them then cannot be said again as something else."""
    world = World(Setup(ranks=2, samples=12))
    life = (0, 1)
    (first,) = world.watch.words[life].values()
    assert isinstance(first, m.RequestParams) and world.watch.heard.keys() == {life, (1, 1)} and world.watch.cycle == 0

    other = fx.Send(attrs.evolve(first, attempt=first.attempt + 1))
    with pytest.raises(Violation, match=r"I53: control message 1 to life .* was RequestParams"):
        world.watch.see([Turn(COORDINATOR, ev.Tick(), (other,))], 1.0, None)


def test_a_world_that_jumps_is_not_watched() -> None:
    """What led to a state that was loaded is not known."""
    world = World(Setup(ranks=2, samples=12))
    assert not world.watch.asleep
    world.load(World(Setup(ranks=2, samples=12)).snapshot())
    assert world.watch.asleep
