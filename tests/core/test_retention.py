"""What a lane keeps until it is confirmed (N-9), against a plain list of everything that was sent."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core.plain import decode, encode
from paceline.core.retention import MOST_BYTES, MOST_MESSAGES, Retained, weight
from paceline.core.telling import teller
from paceline.transports.codec import MsgpackCodec

from support.transports import beacon

OPERATIONS = st.lists(st.tuples(st.sampled_from(["send", "confirm"]), st.integers(0, 12)), max_size=60)


def keep(lane: Retained, message: Any) -> None:
    lane.append(message.control_seq, message, weight(message))


@given(OPERATIONS, st.integers(0, 60))
def test_a_lane_gives_exactly_what_the_other_end_lacks(operations: list[tuple[str, int]], seen: int) -> None:
    """I53: after any sends and confirmations, for whatever the other end has seen."""
    lane, sent, confirmed = Retained(), 0, 0
    for what, amount in operations:
        if what == "send":
            sent += 1
            keep(lane, beacon(sent))
        else:
            confirmed = max(confirmed, min(sent, amount))
            lane.release(amount if amount <= sent else confirmed)
    assert [b.control_seq for b in lane.after(0)] == list(range(confirmed + 1, sent + 1))
    assert lane.bytes == sum(weight(b) for b in lane.after(0))
    possible = confirmed <= seen <= sent
    assert lane.covers(seen, sent) is possible
    if possible:
        assert [b.control_seq for b in lane.after(seen)] == list(range(seen + 1, sent + 1))


@given(st.lists(st.integers(0, 12), max_size=20))
def test_what_is_kept_goes_through_a_snapshot(confirmations: list[int]) -> None:
    """M-40: a coordinator that is started anew finds it there."""
    lane = Retained()
    for number in range(1, 11):
        keep(lane, beacon(number))
    for confirmed in confirmations:
        lane.release(confirmed)
    again = decode(encode(lane))
    assert again.after(0) == lane.after(0) and again.bytes == lane.bytes


def test_a_lane_has_two_limits() -> None:
    """N-9: 4096 messages, or 4 MiB, and one more of either is too much; what is confirmed makes room."""
    many, large = Retained(), Retained()
    for number in range(1, MOST_MESSAGES + 1):
        keep(many, beacon(number))
    assert not many.overfull
    keep(many, beacon(MOST_MESSAGES + 1))
    assert many.overfull
    many.release(1)
    assert not many.overfull and next(b.control_seq for b in many.after(0)) == 2
    assert not many.covers(0, MOST_MESSAGES + 1) and many.covers(1, MOST_MESSAGES + 1)
    keep(large, m.StageAdvisory(**_stamp(1), counts=(), segments=((0, ((1 << 60, 1),) * (MOST_BYTES // 20)),)))
    assert large.overfull and len(large) == 1
    large.release(1)
    assert len(large) == 0 and large.bytes == 0


@pytest.mark.parametrize("message", [
    beacon(7), m.Fenced(generation=1, incarnation=2, cycle=3, why="ü" * 900),
    m.EpochAggregated(**{"run_id": b"r" * 16, "generation": 1, "rank": 1, "incarnation": 1}, epoch=3,
                      metrics={f"name{n}": 0.5 for n in range(90)}),
], ids=lambda message: type(message).__name__)  # fmt: skip
def test_a_message_never_weighs_less_than_its_frame(message: Any) -> None:
    """N-9: the core knows no codec, so it counts too much rather than too little."""
    assert (size := len(MsgpackCodec().encode(message))) <= weight(message) <= 20 * size


@pytest.mark.parametrize("message", [
    m.Update(cycle=1, attempt=0, version=2, global_step=3, outcome=m.Outcome.MERGED, merged_steps=4,
             next_plan=m.Plan(plan_id=1, epoch=2, offset=3, size=4), run_id=b"run"),
    m.Update(cycle=1, attempt=0, version=2, global_step=3, outcome=m.Outcome.MERGED, merged_steps=4),
    m.StageAdvisory(counts=(1, 2, 3), segments=((0, ((1, 2), (3, 4))), (1, ()))),
    m.Metrics(cycle=1, plan_ids=(1, 2), epoch=0, batches=1, samples=2, epoch_ms=1.0, share_complete_ms=1.0,
              compute_only_ms=1.0, data_starve_ms=0.0, scalars={"loss": (0.5, 3)}, resources={"gpu": 0.5}),
    m.CheckpointResult(decision_id=1, version=2, elapsed_ms=3.0, error="disk füll"),
    m.Batch(run_id=b"run", cycle=1, plan_id=2, step_count=3, samples=4, batch_ms=5.0, data_ms=6.0),
], ids=lambda message: type(message).__name__)  # fmt: skip
def test_what_is_known_of_a_class_beforehand_is_what_its_messages_hold(message: Any) -> None:
    """N-9: the declared types say as much as a look at every single thing in it."""
    assert weight(message) == 64 + _looked_at(message)


def _looked_at(thing: Any) -> int:
    if isinstance(thing, str):
        return 9 + len(thing.encode())
    if isinstance(thing, bytes):
        return 9 + len(thing)
    if isinstance(thing, tuple):
        return 9 + sum(map(_looked_at, thing))
    if isinstance(thing, dict):
        return 9 + sum(_looked_at(key) + _looked_at(item) for key, item in thing.items())
    if attrs.has(type(thing)):
        names = [field.name for field in attrs.fields(type(thing))]
        return 9 + sum(1 + len(name) + _looked_at(getattr(thing, name)) for name in names)
    return 9


@attrs.define
class Reader:
    """What a loop over the cohort knows of a rank."""

    rank: int
    attached: bool = True
    incarnation: int = 2
    control_seq: int = 8
    report_seq: int = 5
    retained: Retained = attrs.field(factory=Retained)


@pytest.mark.parametrize("kind", m.CONTROLS, ids=lambda kind: kind.__name__)
def test_what_many_are_told_is_what_each_would_have_been_told_alone(kind: type[m.Control]) -> None:
    """N-6, N-9, N-10: each under its own rank, incarnation and numbers, with what is its own; kept for all, sent to who
    has a link."""
    names = [field.name for field in attrs.fields(kind) if field.name not in attrs.fields_dict(m.Control)]
    says = {name: f"what {name} says" for name in names}
    mine = dict(list(says.items())[:1])
    like, peers, outbox = kind(run_id=b"run", generation=7, **says), [Reader(3), Reader(4, attached=False)], []
    rows = [tuple(f"{rank}: {text}" for text in mine.values()) for rank in (3, 4)]
    assert teller(kind, tuple(mine))(like, peers, rows, [70, 80], outbox) == []  # type: ignore[arg-type]
    made = [
        kind(run_id=b"run", generation=7, rank=rank, incarnation=2, control_seq=9, report_seq=5,
             **{**says, **dict(zip(mine, row, strict=True))})
        for rank, row in zip((3, 4), rows, strict=True)
    ]  # fmt: skip
    assert outbox == [fx.Send(made[0])] and [peer.control_seq for peer in peers] == [9, 9]
    assert [list(peer.retained.kept) for peer in peers] == [[(9, 70, made[0])], [(9, 80, made[1])]]
    assert [peer.retained.bytes for peer in peers] == [70, 80]
    assert like == kind(run_id=b"run", generation=7, **says)


def test_a_loop_over_the_cohort_says_whose_lane_is_overfull() -> None:
    """N-9: with the first message beyond a limit, as one that is kept alone."""
    full, large, alone = Reader(0), Reader(1), Retained()
    for number in range(1, MOST_MESSAGES + 1):
        full.retained.append(number, None, 1)
        alone.append(number, None, 1)
    told = teller(m.Shutdown)
    like = m.Shutdown(reason=m.SaveReason.GRACEFUL)
    assert told(like, [full, large], [(), ()], [1, MOST_BYTES], []) == [full]  # type: ignore[list-item]
    assert alone.append(MOST_MESSAGES + 1, None, 1) and full.retained.overfull and not large.retained.overfull
    assert told(like, [large], [()], [1], []) == [large]  # type: ignore[list-item]


def _stamp(number: int) -> dict[str, Any]:
    return {"run_id": b"r" * 16, "generation": 1, "rank": 1, "incarnation": 1, "control_seq": number}
