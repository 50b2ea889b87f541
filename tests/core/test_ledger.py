"""A run that goes on from the record of another trains exactly what that one's consensus lacks (K-10, K-12, D-23)."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence import Balancer
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.errors import CheckpointError
from paceline.core.guard import GrowthGuard, LevelGuard
from paceline.core.journal import first_difference, replay
from paceline.core.ledger import META_FORMAT, Resume
from paceline.core.roles import ROLES
from paceline.core.schema import dataset_signature
from paceline.core.simulation.action import COORDINATOR

from support.cohort import Cohort, Fault
from support.hand import Hand, alerts, messages, named
from support.resuming import record_of, resumed
from support.runs import run_faults, run_knobs, schedules
from support.words import hello

# --- I52 -------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(), run_faults(), st.integers(0, 250), st.integers(1, 5), run_knobs(), schedules(100))
def test_a_resume_trains_exactly_the_complement(
    made: dict[str, Any], schedule: bytes, struck: list[Fault], stop: int, ranks: int, other: dict[str, Any],
    later: bytes,
) -> None:  # fmt: skip
    """I52: stopped at a random point, or broken off by deaths; resumed by any number of ranks under any policy. The
    ghosts count merges one by one: none is missing, none is twice."""
    first = Cohort(save_path="runs", **made)
    first.run(schedule, [*struck, Fault(stop, "stop")])
    assume(any(isinstance(effect, fx.WriteMeta) for effect in first.effects))
    record = record_of(first.effects)
    _check_coverage(first, record)

    same = {knob: made[knob] for knob in ("samples", "batch_size", "drop_last", "num_epochs", "epoch_splits")}
    second = resumed(first, **{**other, **same, "ranks": ranks})
    second.run(later)

    assert second.finish is not None and second.finish.status == "ok"
    assert second.co.cycle.global_step == len(second.ghost.merged)
    assert second.co.book.covered == len(second.ghost.merged)
    retrained = [pick for pick in second.ghost.trained if second.ghost.trained[pick] > 1]
    assert retrained == [], "nothing the consensus contains is trained again"


def _check_coverage(ended: Cohort, record: dict[str, Any]) -> None:
    """K-10: what is not uncovered was merged, batch by batch."""
    resume, book = Resume.read(record), ended.co.book
    holes = [(epoch, first, count) for epoch, ranges in resume.uncovered for first, count in ranges]
    missing = {(epoch, batch) for epoch, first, count in holes for batch in range(first, first + count)}
    opened = range(resume.last_closed_epoch + 1 + len(resume.uncovered))
    assert {(e, b) for e in opened for b in range(book.total(e))} - missing == set(ended.ghost.merged)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(), st.lists(st.integers(0, 120), min_size=2, max_size=4))
def test_a_run_may_be_stopped_and_resumed_again_and_again(
    made: dict[str, Any], schedule: bytes, stops: list[int]
) -> None:
    """I52 holds along a chain of runs; version, schedule position and the number of averages only rise."""
    cohort = Cohort(save_path="runs", **made)
    for stop in stops:
        cohort.run(schedule, [Fault(stop, "stop")])
        assume(any(isinstance(effect, fx.WriteMeta) for effect in cohort.effects))
        before = cohort.co.cycle
        cohort = resumed(cohort, **made)
        after = cohort.co.cycle
        assert (after.version, after.global_step, after.sync_rounds) == (
            before.version, before.global_step, before.sync_rounds,
        )  # fmt: skip
    cohort.run(schedule)
    assert cohort.finish is not None and cohort.finish.status == "ok"


def test_the_ranks_of_a_resumed_run_get_its_version_and_schedule_position() -> None:
    """K-12, M-6: with the Update of cycle 0, before the first step."""
    first = stopped()
    cohort = resumed(first, ranks=3, samples=60)
    cohort.run_until(lambda: cohort.sent(m.StartEpoch))
    [update] = cohort.sent(m.Update, 0)
    version, position = first.co.cycle.version, first.co.cycle.global_step
    assert version > 0 and position > 0
    assert (update.cycle, update.version, update.global_step) == (0, version, position)
    cohort.run()
    assert all(process.worker.version > version for process in cohort.processes)


def test_a_run_with_nothing_left_ends_at_once() -> None:
    """D-21: every epoch that is asked for is closed; nobody trains."""
    first = Cohort(ranks=2, save_path="runs")
    first.run()
    second = resumed(first, ranks=2)
    second.run()
    assert second.finish is not None and second.finish.status == "ok"
    assert second.sent(m.StartEpoch) == [] and second.ghost.merged == first.ghost.merged
    third = resumed(first, ranks=2, num_epochs=3)
    third.run()
    assert third.ghost.closed == 3, "more epochs may be asked for"


def stopped(**knobs: Any) -> Cohort:
    """A run that was stopped in its first epoch."""
    cohort = Cohort(ranks=2, samples=60, save_path="runs", **knobs)
    cohort.run_until(lambda: cohort.co.cycle.version == 2)
    cohort.strike("stop")
    cohort.run()
    assert cohort.co.book.last_closed_epoch == -1
    return cohort


# --- what goes on ----------------------------------------------------------------------------------------------------


def test_balancer_and_guard_go_on_where_they_stood() -> None:
    """B-16, K-12: with as many ranks the counts and the history stay, so the first window keeps its schedule."""
    first = stopped()
    second = resumed(first, ranks=2, samples=60)
    second.run_until(lambda: second.sent(m.StartEpoch))
    record = record_of(first.effects)
    assert second.co.balancer.saved() == record["balancer"]
    assert second.co.balancer.calibrated
    assert second.co.guard.saved() == record["guard"]
    assert second.alerts("refused") == []


def test_another_number_of_ranks_starts_the_balancer_afresh_and_says_so() -> None:
    """B-16: the coverage does not depend on who trained it."""
    second = resumed(stopped(), ranks=3, samples=60)
    second.run_until(lambda: second.sent(m.StartEpoch))
    [alert] = second.alerts("refused")
    assert alert.path == "balancer" and not second.co.balancer.calibrated


def test_a_policy_that_cannot_read_what_it_kept_starts_afresh_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-13, B-16."""
    first = stopped()

    def fails(*_: object) -> NoReturn:
        raise KeyError("ms")

    monkeypatch.setattr(Balancer, "restore", fails)
    monkeypatch.setattr(LevelGuard, "restore", fails)
    second = resumed(first, ranks=2, samples=60)
    second.run_until(lambda: second.sent(m.StartEpoch))

    assert [alert.path for alert in second.alerts("refused")] == ["balancer", "guard"]
    assert [alert.path for alert in second.alerts("callback_failed")] == ["cadence.restore", "guard.restore"]


def test_another_guard_starts_afresh_and_says_so() -> None:
    """Its history would mean nothing to this one."""
    second = resumed(stopped(), ranks=2, samples=60, guard=GrowthGuard())
    second.run_until(lambda: second.sent(m.StartEpoch))
    assert [alert.path for alert in second.alerts("refused")] == ["guard"]


def test_a_resumed_run_can_be_restored_from_a_snapshot() -> None:
    """I25: the record is part of the state until training begins."""
    record = Resume.read(record_of(stopped().effects))
    config = Config(batch_size=2, num_epochs=2, target_ranks=1, anchor=3)
    co = Coordinator(config, now=1.0, resume=record)
    twin = Coordinator.restore(config, json.loads(json.dumps(co.snapshot())))
    assert twin.resume == record and twin.resume.balancer == record.balancer
    assert twin.snapshot() == co.snapshot()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(run_knobs(), schedules(150), st.integers(0, 100))
def test_a_resumed_run_can_be_replayed(made: dict[str, Any], schedule: bytes, stop: int) -> None:
    """O-8: its journal begins with a snapshot, which holds the record it goes on from."""
    first = Cohort(save_path="runs", **made)
    first.run(schedule, [Fault(stop, "stop")])
    assume(any(isinstance(effect, fx.WriteMeta) for effect in first.effects))
    second = resumed(first, **made)
    second.run(schedule)
    begun = Coordinator(second.config, now=100.0, resume=Resume.read(record_of(first.effects))).snapshot()
    again = replay(second.config, second.records[COORDINATOR], snapshot=json.loads(json.dumps(begun)))
    assert first_difference(second.effects, again) is None


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["sync", "cadence", "async"]), st.integers(0, 500), schedules(150), schedules(100))
def test_over_both_runs_everything_is_triggered_once(
    policy: str, stop: int, schedule: bytes, later: bytes
) -> None:
    """K-2, K-12: a bundle with the first average after epochs 2, 3 and 4 are entered, evaluations of epochs 1 and 3;
    none again, none left out. One bundle serves all that is due with an average, also where the tail of the run asks
    for one anyway (K-4), and the tail may ask for more."""
    knobs: dict[str, Any] = dict(ranks=2, samples=24, num_epochs=6, policy=policy, callbacks=ROLES,
                                 checkpoint_every=2, checkpoint_at_epoch=3, eval_every=2)  # fmt: skip
    first = Cohort(save_path="runs", **knobs)
    first.run(schedule, [Fault(stop, "stop")])
    assume(any(isinstance(effect, fx.WriteMeta) for effect in first.effects))
    second = resumed(first, **knobs)
    second.run(later)

    orders = first.sent(m.ExecuteEvalCallback) + second.sent(m.ExecuteEvalCallback)
    assert [order.epoch for order in orders if order.schedule_id != m.FINAL_EVALUATION] == [1, 3]
    saved = [*_bundles(first.effects), *_bundles(second.effects)]
    due = {2, 3, 4}
    for entered, stems in saved:
        crossed = {epoch for epoch in due if epoch <= entered}
        due -= crossed
        assert sum("checkpoint." in stem for stem in stems) <= bool(crossed) <= len(stems), saved
    assert due == set()


def _bundles(effects: list[Any]) -> list[tuple[int, list[str]]]:
    """For each cycle of a run: the highest epoch that a rank had entered when it was armed, and the bundles that were
    written of its consensus."""
    found: list[tuple[int, list[str]]] = []
    entered = -1
    for effect in effects:
        if isinstance(effect, fx.OpenRound):
            found.append((entered, []))
        elif isinstance(effect, fx.SaveConsensus):
            found[-1][1].append(effect.stem)
        elif isinstance(effect, fx.Send) and isinstance(effect.message, m.StartEpoch):
            entered = max(entered, effect.message.plan.epoch)
    return found


def test_what_was_replayed_is_counted_on() -> None:
    """K-6: the sum over all runs is what the training has cost."""
    first = Cohort(ranks=3, samples=60, save_path="runs")
    first.run_until(lambda: first.co.cycle.version == 2 and first.co.peers[1].steps)
    first.strike("crash", 1)
    first.run(faults=[Fault(40, "stop")])
    second = resumed(first, ranks=2, samples=60)
    assert first.co.book.replayed > 0
    second.run_until(lambda: second.sent(m.StartEpoch))
    assert second.co.book.replayed == first.co.book.replayed


def test_two_open_epochs_are_handed_out_one_after_the_other_by_a_paced_run() -> None:
    """I13, D-4: async leaves two epochs half trained; ranks of sync and cadence enter the first one only."""
    record = {**record_of(stopped().effects), "uncovered": {"0": [[3, 4], [20, 2]], "1": [[0, 5]]}}
    for policy in ("sync", "cadence", "async"):
        cohort = Cohort(ranks=2, samples=60, policy=policy, resume=Resume.read(record))
        cohort.run_until(lambda cohort=cohort: len(cohort.co.book.ranks) == 2)  # type: ignore[misc]
        plans = [message.plan for message in cohort.sent(m.StartEpoch) + cohort.sent(m.ExtendPartition)]
        assert {plan.epoch for plan in plans} == ({0, 1} if policy == "async" else {0}), policy


def test_a_resumed_epoch_is_announced_with_what_it_had() -> None:
    """O-1: whoever counts from the timeline needs its length."""
    first = stopped()
    second = resumed(first, ranks=2, samples=60)
    second.run_until(lambda: second.sent(m.StartEpoch))
    [told] = second.events("Resumed")
    assert told["covered"] == len(first.ghost.merged) and told["version"] == first.co.cycle.version
    assert second.events("EpochStart") == [{"epoch": 0, "batches": 30}]


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_a_run_leaves_open_is_taken_from_the_record() -> None:
    """K-12: batch size and seed need not be said again."""
    record = Resume.read(record_of(stopped(seed=7).effects))
    co = Coordinator(Config(target_ranks=2), resume=record)
    assert (co.config.batch_size, co.config.seed) == (2, 7)


@pytest.mark.parametrize(("knob", "ours", "theirs"), [
    ("seed", 8, 7), ("batch_size", 3, 2), ("repeats", 2, 1), ("epoch_splits", 3, 1), ("drop_last", False, True),
])  # fmt: skip
def test_a_knob_that_decides_the_samples_must_be_the_same(knob: str, ours: Any, theirs: Any) -> None:
    """K-12: refused before anybody joins, with both values."""
    record = Resume.read(record_of(stopped(seed=7).effects))
    with pytest.raises(CheckpointError, match=f"^{knob}: .*{theirs!r}.*{ours!r}"):
        Coordinator(Config(**{knob: ours}), resume=record)


def _refused(**changes: Any) -> m.Reject:
    record = Resume.read(record_of(stopped().effects))
    co = Coordinator(Config(target_ranks=1, num_epochs=2), resume=record)
    co.handle(ev.HelloReceived(1, attrs.evolve(hello(60), **changes)), 1.0)
    [effect] = [e for e in co.take_ready().effects if isinstance(e, fx.Refuse | fx.Admit)]
    return effect.reject if isinstance(effect, fx.Refuse) else m.Reject(code=0, text="admitted")


def test_a_rank_with_other_data_or_another_model_is_refused_at_the_door() -> None:
    """K-12, M-5: both values are named; a rank that fits is admitted."""
    assert _refused().code == 0
    other = _refused(dataset_signature=dataset_signature(61, b"x"))
    assert other.code == m.RejectCode.DATASET and "60" in other.text and "61" in other.text
    wider = attrs.evolve(hello(60).schema.entries[0], shape=(3,))
    schema = attrs.evolve(hello(60).schema, entries=(wider,))
    model = _refused(schema=schema, schema_hash=schema.hash())
    assert model.code == m.RejectCode.SCHEMA
    assert hello(60).schema_hash.hex()[:16] in model.text and schema.hash().hex()[:16] in model.text
    wish = _refused(wishes={"batch_size": 5})
    assert wish.code == m.RejectCode.CONFIG and "2" in wish.text and "5" in wish.text


DAMAGE: list[tuple[dict[str, Any], str]] = [
    ({"format": META_FORMAT + 1}, f"format: the record has {META_FORMAT + 1}.* reads {META_FORMAT}"),
    ({"format": None}, "no format"),
    ({"format": True}, "no format"),
    ({"version": -1}, "version"), ({"version": "3"}, "version"), ({"global_step": None}, "global_step"),
    ({"reached": -1}, "reached"), ({"evaluated": -2}, "evaluated"),
    ({"batch_size": 0}, "at least 1"), ({"epoch_splits": 0}, "at least 1"),
    ({"schema_hash": "00"}, "1 bytes"), ({"schema_hash": "zz"}, "damaged"), ({"dataset": ""}, "0 bytes"),
    ({"balancer": None}, "damaged"), ({"guard": 3}, "damaged"), ({"files": 4}, "damaged"),
    ({"uncovered": []}, "damaged"), ({"uncovered": {"x": []}}, "damaged"), ({"uncovered": {"0": [3]}}, "damaged"),
    ({"uncovered": {"1": [[0, 2]]}}, "first open one is 1"),
    ({"uncovered": {"0": [[0, 2]], "2": []}}, "have a gap"),
    ({"uncovered": {"0": [[0, 31]]}}, "damaged"), ({"uncovered": {"0": [[0, 2], [1, 2]]}}, "damaged"),
    ({"uncovered": {"0": [[-1, 2]]}}, "damaged"),
]


@pytest.mark.parametrize(("changes", "said"), DAMAGE)
def test_a_damaged_or_newer_record_is_refused(changes: dict[str, Any], said: str) -> None:
    """K-12: it is never guessed what a run has trained."""
    with pytest.raises(CheckpointError, match=said):
        Resume.read({**record_of(stopped().effects), **changes})


@pytest.mark.parametrize("name", [
    "version", "seed", "dataset", "drop_last", "balancer", "last_closed_epoch", "reached", "evaluated",
])  # fmt: skip
def test_a_record_that_lacks_something_is_refused(name: str) -> None:
    """By the name of what it lacks."""
    record = record_of(stopped().effects)
    del record[name]
    with pytest.raises(CheckpointError, match=name):
        Resume.read(record)


@pytest.mark.parametrize("record", [None, [], "x", {}])
def test_what_is_no_record_is_refused(record: Any) -> None:
    """Another file."""
    with pytest.raises(CheckpointError, match="no meta record"):
        Resume.read(record)


def test_a_record_without_coverage_starts_at_the_next_epoch() -> None:
    """K-12: nothing is known about open epochs, so they are trained from their start."""
    record = record_of(stopped().effects)
    del record["uncovered"]
    cohort = Cohort(ranks=2, samples=60, resume=Resume.read({**record, "last_closed_epoch": 0}))
    cohort.run_until(lambda: cohort.sent(m.StartEpoch))
    assert cohort.co.book.first_live == 1 and cohort.co.book.pools[1].covered == 0
    assert {plan.plan.epoch for plan in cohort.sent(m.StartEpoch)} == {1}


# --- the welcome -----------------------------------------------------------------------------------------------------


def test_the_source_is_told_where_the_weights_are_and_what_they_must_hash_to() -> None:
    """M-6: the loader is the source of cycle 0; a file of the same name on another host is not enough."""
    record = Resume.read({**record_of(stopped().effects), "files": {"consensus.safetensors": "ab" * 32}})
    config = Config(target_ranks=1, num_epochs=2, initial_state="old/consensus.safetensors")
    co = Coordinator(config, resume=record)
    co.handle(ev.HelloReceived(1, hello(60)), 1.0)
    [admit] = [e for e in co.take_ready().effects if isinstance(e, fx.Admit)]
    assert admit.welcome.config["initial_state"] == "old/consensus.safetensors"
    assert admit.welcome.config["initial_sha256"] == "ab" * 32
    fresh = Hand(1, target_ranks=1)
    [admit] = [e for e in fresh.effects if isinstance(e, fx.Admit)]
    assert (admit.welcome.config["initial_state"], admit.welcome.config["initial_sha256"]) == ("rank", None)


def test_the_rest_of_a_resumed_epoch_is_shared_in_the_wished_ratios() -> None:
    """D-17, D-23: as a whole epoch would be, and as the next one is."""
    first = stopped()
    left = sum(count for _, count in Resume.read(record_of(first.effects)).uncovered[0][1])
    second = resumed(first, ranks=2, samples=60, policy="sync", partition_ratios=(4.0, 1.0))
    second.run_until(lambda: second.co.book.ranks.get(1) is not None)

    given = {rank: second.co.book.holdings(rank).in_flight_batches for rank in (0, 1)}
    assert given == {0: left - left // 5, 1: left // 5} and left // 5 != left // 2
    second.run()


def test_a_whole_share_run_hands_out_holes_only() -> None:
    """D-23, D-22: no rank gets a whole share of an epoch that is half trained."""
    first = stopped()
    left = Resume.read(record_of(first.effects)).uncovered[0][1]
    second = resumed(first, ranks=2, samples=60, policy="sync")
    second.run_until(lambda: second.co.book.ranks.get(1) is not None)
    plans = [message.plan for message in second.sent(m.StartEpoch) + second.sent(m.ExtendPartition)]
    assert sum(plan.size for plan in plans) == 2 * sum(count for _, count in left)
    assert named(second.effects, "EpochStart") and not alerts(second.effects, "accounting")
    assert messages(second.effects, m.ShutdownWithSave) == []
