"""The record that a resume reads, entry by entry: each has a value of its own, so none passes for another (K-6, K-10).
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import CheckpointError
from paceline.core.ledger import META_FORMAT, Resume
from paceline.core.schema import dataset_signature

from support.hand import Hand, messages, pending
from support.hand_collective import joint

KNOBS: dict[str, Any] = {"save_path": "runs", "seed": 9, "repeats": 2, "epoch_splits": 3, "drop_last": False}


def records(effects: list[Any]) -> list[dict[str, Any]]:
    """What was given to be written, in order."""
    return [effect.record for effect in effects if isinstance(effect, fx.WriteMeta)]


def train(hand: Hand) -> None:
    """Every rank to the end of the plan in its hands."""
    for rank in hand.co.voters:
        head = hand.co.book.head(rank)
        if head is not None:
            hand.step(rank, head.slice.count - head.done)
            hand.complete(rank)


def test_each_entry_of_a_record_is_what_its_name_says() -> None:
    """K-6: the list of the rule. One of the four seats is empty, one cycle brought no consensus, the epochs of a run
    before this one are closed."""
    hand = pending(4, samples=400, run_id=b"0123456789abcdef", policy="async", **KNOBS)
    hand.average()
    for rank in range(4):
        hand.step(rank, hand.co.desk.quota(rank))
    hand.average(refused=(0, 1, 2, 3))
    hand.feed(ev.LinkLost(3, 1, "reset"))
    co = hand.co
    co.generation, co.actions.reached, co.actions.evaluated, co.book.replayed = 6, 4, 3, 11
    record = co.run.meta(m.SaveReason.DIVERGED, 17)
    named = {name: value for name, value in record.items() if name not in ("balancer", "guard", "uncovered")}

    assert named == {
        "format": META_FORMAT, "decision_id": 17, "run_id": b"0123456789abcdef".hex(), "generation": 6, "version": 1,
        "cycle": 2, "sync_rounds": 2, "global_step": 12, "world": 4, "reason": "diverged", "last_closed_epoch": -1,
        "reached": 4, "evaluated": 3, "replayed": 11, "seed": 9, "epoch_splits": 3, "batch_size": 2, "repeats": 2,
        "drop_last": False, "schema_hash": co.schema_hash.hex(),
        "dataset": dataset_signature(400, b"simulated").hex(),
    }  # fmt: skip
    assert META_FORMAT == 1
    assert (record["balancer"], record["guard"]) == (co.balancer.saved(), co.guard.saved())
    assert record["balancer"] and record["guard"]
    assert record["uncovered"] == {"0": [list(run) for run in co.book.uncovered(0)]}


def test_a_record_of_two_open_epochs_has_the_holes_of_both() -> None:
    """K-10: free, in flight and trained batches of each, sorted and merged; what is not there is covered."""
    hand = Hand(2, samples=24, num_epochs=3, policy="async", anchor=4, save_path="runs").form()
    for _ in range(20):
        if len(hand.co.book.pools) == 2:
            break
        if hand.co.cycle.pending:
            hand.average()
        train(hand)
    record = hand.co.run.meta(m.SaveReason.GRACEFUL, 1)
    resume = Resume.read({**record, "files": {}})
    assert [epoch for epoch, _ in resume.uncovered] == sorted(hand.co.book.pools) != [0]
    for epoch, holes in resume.uncovered:
        assert sum(count for _, count in holes) == hand.co.book.total(epoch) - hand.co.book.pools[epoch].covered
        assert all(first + count < after for (first, count), (after, _) in pairwise(holes))


@pytest.mark.parametrize("stop", ["saved", "stopped", "done"])
def test_every_end_leaves_a_record_with_its_coverage(stop: str) -> None:
    """K-6: shutdown saves record it too, whatever ends the run, and for that reason."""
    hand = pending(2, samples=40, num_epochs=1, save_path="runs", **({"max_failure": 1} if stop == "saved" else {}))
    if stop == "stopped":
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
        hand.average()
    elif stop == "saved":
        hand.feed(ev.LinkLost(1, 1, "reset"))
    for _ in range(20 if stop == "done" else 0):
        if hand.co.cycle.pending:
            hand.average()
        train(hand)
    record = records(hand.effects)[-1]
    left = Resume.read({**record, "files": {}}).uncovered
    assert record["version"] == hand.co.cycle.version
    if stop == "saved":
        assert (record["reason"], left) == ("max_failure", ((0, ((0, 20),)),))
    elif stop == "stopped":
        assert left == ((0, ((3, 7), (13, 7))),)
    else:
        assert (record["last_closed_epoch"], left) == (0, ())


@pytest.mark.parametrize("why", ["wished", "stopped", "done", "saved"])
def test_a_record_names_the_file_that_a_rank_is_to_write(why: str) -> None:
    """K-6, K-7, M-51: averaged in place, the consensus is a rank's to write, and no report says that it has: its name
    is in the record, for a save that of the saver's model; its hash nobody knows yet. The averager of a star run is
    told both, so there the record has neither before the file is there."""
    samples = 24 if why == "done" else 400
    hand = joint(2, save_path="runs/x", samples=samples, num_epochs=1, **({"max_failure": 1} if why == "saved" else {}))
    if why == "saved":
        hand.feed(ev.LinkLost(1, 1, "reset"))
    elif why == "stopped":
        hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    else:
        hand.average()
        hand.feed(ev.OperatorRequest(ev.Operator.CHECKPOINT))
        train(hand)
    if why != "saved":
        hand.average()
    *_, record = records(hand.effects)
    orders = messages(hand.effects, m.ShutdownWithSave if why == "saved" else m.SaveConsensusModel)
    stem = f"{orders[-1].stem}.model" if why == "saved" else orders[-1].stem
    assert record["files"] == {f"{stem.removeprefix('runs/x/')}.safetensors": None}
    assert Resume.read(json.loads(json.dumps(record))).files == record["files"]

    star = pending(2, save_path="runs/x", samples=400, num_epochs=1)
    star.feed(ev.OperatorRequest(ev.Operator.STOP))
    star.average()
    assert all("files" not in record for record in records(star.effects)) and records(star.effects)


@pytest.mark.parametrize(("said", "differs"), [
    ({}, None), ({"version": "1"}, "version: .* of 1;"), ({"run_id": "00"}, "run_id: .* of 00;"),
    ({"version": None}, "version: .* of None;"),
])  # fmt: skip
def test_a_file_of_a_rank_goes_with_the_record_of_its_run_and_version(
    said: dict[str, Any], differs: str | None
) -> None:
    """K-6: both values are named."""
    record = pending(run_id=b"0123456789abcdef").co.run.meta(m.SaveReason.GRACEFUL, 1)
    told = {"run_id": b"0123456789abcdef".hex(), "version": "0", **said}
    resume = Resume.read(record)
    if differs is None:
        resume.check_told("c.safetensors", told)
        return
    with pytest.raises(CheckpointError, match=differs):
        resume.check_told("c.safetensors", {name: text for name, text in told.items() if text is not None})


def test_what_waits_in_limbo_is_not_covered() -> None:
    """K-10, M-19: a rank has shipped and died, and no consensus is made of it any more."""
    hand = pending(2, samples=40, num_epochs=1, save_path="runs", max_failure=1)
    hand.ready(0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    assert hand.co.book.limbo_batches(0) == 3
    assert records(hand.effects)[-1]["uncovered"] == {"0": [[0, 20]]}


@pytest.mark.parametrize("uncovered", [{"0": [[0, 2]], "2": [[0, 5]]}, {"1": [[0, 2]]}])
def test_a_record_with_a_gap_between_its_open_epochs_is_damaged(uncovered: dict[str, Any]) -> None:
    """K-10: what is not named is covered, so an epoch that is left out would never be trained."""
    record = pending(save_path="runs").co.run.meta(m.SaveReason.GRACEFUL, 1)
    with pytest.raises(CheckpointError, match="damaged"):
        Resume.read({**record, "uncovered": uncovered})


def test_a_record_of_a_newer_format_is_refused_and_one_of_this_is_not() -> None:
    """K-6: the next number already may mean anything."""
    record = pending(save_path="runs").co.run.meta(m.SaveReason.GRACEFUL, 1)
    assert Resume.read({**record, "format": META_FORMAT}).version == 0
    with pytest.raises(CheckpointError, match=f"the record has {META_FORMAT + 1}, this version of paceline reads 1"):
        Resume.read({**record, "format": META_FORMAT + 1})
