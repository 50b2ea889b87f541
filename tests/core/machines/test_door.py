"""The door, member by member of its lists: what is asked of a rank, what it is told, and its seat (M-5, M-7, N-29)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import WISHABLE, config_digest
from paceline.core.door import misstamped
from paceline.core.policies import readings
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature
from paceline.core.wire import Link, Role
from paceline.transports.codec import MsgpackCodec

from support.hand import Hand
from support.hand_collective import Joint
from support.words import hello

CODES = {
    "protocol": 1, "other_run": 2, "schema": 3, "dataset": 4, "config": 5, "averager": 6, "vendor": 7, "seat": 8,
    "byte_order": 9, "size": 10, "frozen": 11, "closing": 12, "full": 13, "busy": 14,
}  # fmt: skip


def knock(hand: Hand, **changes: Any) -> m.Welcome | m.Reject:
    """The answer to a Hello."""
    known = hello(hand.samples, **changes)
    if "wishes" in changes:
        known = attrs.evolve(known, config_digest=config_digest(changes["wishes"]))
    effects = hand.feed(ev.HelloReceived(77, known))
    [answer] = [e for e in effects if isinstance(e, fx.Refuse | fx.Admit)]
    return answer.reject if isinstance(answer, fx.Refuse) else answer.welcome


def claim(**fields: Any) -> m.ResumeClaim:
    """Of a rank that was welcomed, and no more."""
    known: dict[str, Any] = dict(generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0,
                                 step_count=0, control_seq=0, report_seq=0)  # fmt: skip
    return m.ResumeClaim(**{**known, **fields})


def refused_as(answer: m.Welcome | m.Reject) -> int | None:
    """The code of a refusal, None for a welcome."""
    return answer.code if isinstance(answer, m.Reject) else None


def turned_away(hand: Hand, **changes: Any) -> m.Reject:
    """The refusal of a Hello."""
    answer = knock(hand, **changes)
    assert isinstance(answer, m.Reject), answer
    return answer


# --- what is asked (M-5) ---------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"batch_size": 2, "num_epochs": 2, "seed": 7, "repeats": 3, "epoch_splits": 2, "drop_last": True}
OTHER: dict[str, Any] = {
    "batch_size": 4, "num_epochs": 3, "seed": 8, "repeats": 1, "epoch_splits": 1, "drop_last": False,
}  # fmt: skip


@pytest.mark.parametrize("knob", RUN)
def test_each_value_that_decides_what_is_trained_must_agree(knob: str) -> None:
    """M-5: a rank may state it; the same is let in, another one is told both."""
    assert set(RUN) == set(WISHABLE)
    hand = Hand(0, target_ranks=3, **RUN)
    assert isinstance(knock(hand, wishes={knob: RUN[knob]}), m.Welcome)
    reject = turned_away(hand, wishes={knob: OTHER[knob]})
    assert reject.code == m.RejectCode.CONFIG
    assert all(word in reject.text for word in (knob, str(RUN[knob]), str(OTHER[knob])))


@pytest.mark.parametrize(("knob", "value"), [("policy", "cadence"), ("averager", "star"), ("gamma", 1.0)])
def test_what_the_coordinator_alone_decides_is_nothing_a_rank_may_state(knob: str, value: Any) -> None:
    """M-5, V-6: not even as it is; a script that states it would think that it had a say."""
    hand = Hand(0, target_ranks=2)
    assert getattr(hand.co.config, knob) == value
    assert knob in turned_away(hand, wishes={knob: value}).text


def test_a_model_as_large_as_the_limit_is_let_in() -> None:
    """F65, N-25: above it is refused at Hello, and both sizes are named."""
    size = sum(entry.nbytes for entry in hello(60).schema.entries)
    assert isinstance(knock(Hand(0, target_ranks=2, max_model_bytes=size)), m.Welcome)
    reject = turned_away(Hand(0, target_ranks=2, max_model_bytes=size - 1))
    assert f"{size} bytes" in reject.text and str(size - 1) in reject.text


@pytest.mark.parametrize(("first", "second", "fits"), [
    (("NVIDIA H200", "NVIDIA A100"), ("NVIDIA L4",), True),
    (("NVIDIA H200", "AMD MI300X"), ("NVIDIA H200",), False),
    ((), ("cpu",), False),
])  # fmt: skip
def test_a_vendor_is_the_first_word_of_every_device(
    first: tuple[str, ...], second: tuple[str, ...], fits: bool
) -> None:
    """M-5: models of one vendor mix, vendors do not, and one device of another is enough."""
    hand = Joint(0, target_ranks=3)
    knock(hand, devices=first)
    answer = knock(hand, devices=second)
    assert refused_as(answer) == (None if fits else m.RejectCode.VENDOR)


@pytest.mark.parametrize(("runtime", "fits"), [
    ("python 3.12, torch 2.13.4+cu130", True), ("python 3.11, torch 2.14.0", False),
    ("python 3.11, torch 2.1.0", False), ("python 3.11, torch 3.13.0", False), ("python 3.11", False),
])  # fmt: skip
def test_a_collective_needs_the_major_and_minor_version_of_its_library(runtime: str, fits: bool) -> None:
    """M-5."""
    hand = Joint(0, target_ranks=3)
    knock(hand, runtime="python 3.11, torch 2.13.0")
    answer = knock(hand, runtime=runtime)
    assert refused_as(answer) == (None if fits else m.RejectCode.VENDOR)


@pytest.mark.parametrize(("changes", "code"), [
    ({"protocol": 9}, m.RejectCode.PROTOCOL),
    ({"dataset_signature": dataset_signature(61, b"x")}, m.RejectCode.DATASET),
    ({"wishes": {"batch_size": 4}}, m.RejectCode.CONFIG),
])  # fmt: skip
def test_who_claims_its_life_is_asked_the_same(changes: dict[str, Any], code: m.RejectCode) -> None:
    """M-5, M-42: it may come from a script that was changed meanwhile; its seat waits for the one that it was."""
    hand = Hand(2, link_grace_s=60.0).form()
    hand.feed(ev.LinkLost(0, 1, "reset"))
    peer = hand.co.peers[0]
    resume = claim(control_seq=peer.control_seq, report_seq=peer.report_seq)
    assert turned_away(hand, wanted_rank=0, resume=resume, **changes).code == code and peer.detached
    assert isinstance(knock(hand, wanted_rank=0, resume=resume), m.Welcome) and peer.attached


# --- what is told (N-29) ---------------------------------------------------------------------------------------------


def test_refusals_have_the_numbers_of_the_table() -> None:
    """N-29: they travel, so they never change."""
    assert {code.name.lower(): code.value for code in m.RejectCode} == CODES


def test_three_refusals_may_be_tried_again_and_say_when() -> None:
    """M-5, N-29: full, busy and closing; all others are meant for a person."""
    forming = Hand(2, max_ranks=3)
    frozen = Hand(2, elastic=False)
    full = Hand(2, max_ranks=2).form()
    closing = Hand(2).form()
    closing.feed(ev.OperatorRequest(ev.Operator.STOP))
    told = [turned_away(hand) for hand in (forming, frozen, full, closing)]
    assert [(reject.code, reject.retry, reject.after_s) for reject in told] == [
        (CODES["busy"], True, 1.0), (CODES["frozen"], False, 0.0), (CODES["full"], True, 1.0),
        (CODES["closing"], True, 1.0),
    ]  # fmt: skip


def test_a_run_that_ends_says_so_to_whoever_knocks() -> None:
    """M-5, M-22: what else is wrong with it is no matter any more, and coming again may be worth it."""
    hand = Hand(2).form()
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    assert turned_away(hand, protocol=9).code == m.RejectCode.CLOSING


# --- seats (M-7) -----------------------------------------------------------------------------------------------------


def seat(answer: m.Welcome | m.Reject) -> tuple[int, int]:
    """Rank and incarnation."""
    assert isinstance(answer, m.Welcome), answer
    return answer.rank, answer.incarnation


def test_seats_are_given_in_the_order_of_coming_and_the_lowest_vacant_one_later() -> None:
    """M-7: or a wanted one that is vacant; each time the next incarnation of that seat; a new one only when all that
    there were are taken."""
    hand = Hand(0, target_ranks=4, max_ranks=5)
    assert [seat(knock(hand)) for _ in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    hand.form()
    for rank in (1, 2, 3):
        hand.feed(ev.LinkLost(rank, 1, "reset"))
    assert [seat(knock(hand, wanted_rank=2)), seat(knock(hand)), seat(knock(hand)), seat(knock(hand))] == [
        (2, 2), (1, 2), (3, 2), (4, 1),
    ]  # fmt: skip
    hand.feed(ev.LinkLost(2, 2, "reset"))
    assert seat(knock(hand)) == (2, 3)


@pytest.mark.parametrize(("knobs", "seats"), [
    ({"max_ranks": 5, "target_ranks": 2}, 5), ({"target_ranks": 3}, 3), ({"target_ranks": None}, 4096),
])  # fmt: skip
def test_there_are_as_many_seats_as_the_run_says(knobs: dict[str, Any], seats: int) -> None:
    """M-7: max_ranks, else those that are waited for, else a bound; and the last of them may be wanted."""
    hand = Hand(0, **knobs)
    assert turned_away(hand, wanted_rank=seats).code == m.RejectCode.SEAT
    assert seat(knock(hand, wanted_rank=seats - 1)) == (seats - 1, 1)


def test_a_new_life_has_the_record_of_a_seat_that_nobody_had() -> None:
    """M-7: stamps of now; counters, histories, step counts and readings empty, whatever the old life had of them."""
    hand = Hand(3, max_ranks=4, samples=400, anchor=3).form()
    for rank in range(3):
        hand.step(rank, 3)
        hand.complete(rank)
    hand.average(refused=[1])
    hand.step(1, 2, batch_loss=0.5), hand.say(1, m.LrUpdate, lr=0.1, position=3)
    hand.say(1, m.Intent, intent_id=4, kind=m.IntentKind.CHECKPOINT_NOW)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    hand.now += 5.0
    hand.feed(ev.Tick())
    knock(hand, wanted_rank=1), knock(hand, wanted_rank=3)
    reborn, fresh = (attrs.asdict(hand.co.peers[rank], filter=lambda field, _: field.name != "co") for rank in (1, 3))
    assert {name for name in reborn if reborn[name] != fresh[name]} == {"rank", "incarnation"}
    assert reborn["last_seen"] == reborn["last_progress"] == hand.now
    assert not any(readings(hand.co, [1])) and all(readings(hand.co, [0, 2]))


def test_a_seat_that_is_taken_over_has_one_life() -> None:
    """M-7, I19: the process began anew while its old link still seemed to be up; the old life ends before the new one
    is booked, and a full run has room for it."""
    hand = Hand(2, max_ranks=2).form()
    assert seat(knock(hand, wanted_rank=1, resume=claim())) == (1, 2)
    assert hand.co.alive == [0, 1] and hand.co.deaths == 1 and hand.co.voters == [0]


def test_the_number_of_a_life_that_is_in_no_books_never_comes_back() -> None:
    """M-7, M-45: the journal has lost it, its messages may still be on the way."""
    hand = Hand(0, target_ranks=3)
    assert seat(knock(hand, wanted_rank=1, resume=claim(incarnation=5))) == (1, 6)
    hand.feed(ev.LinkLost(1, 6, "reset"))
    assert seat(knock(hand, wanted_rank=1)) == (1, 7)


# --- what no rank can be (N-7, N-25) ---------------------------------------------------------------------------------


def model(shape: tuple[int, ...] = (2,), dtype: str = "float32", cls: EntryClass = EntryClass.PARAM) -> dict[str, Any]:
    """The fields of a Hello with a model of one entry."""
    schema = Schema(entries=(SchemaEntry(name="w", cls=cls, shape=shape, dtype=dtype),))
    return {"schema": schema, "schema_hash": schema.hash()}


def samples(length: int) -> dict[str, Any]:
    """The fields of a Hello with a data set of that length."""
    return {"dataset_signature": dataset_signature(length, b"x")}


BEYOND: list[tuple[dict[str, Any], m.RejectCode, str]] = [
    (model(dtype="float8_e4m3fn"), m.RejectCode.SCHEMA, "w: param float8_e4m3fn[2]; known are float64"),
    (model(dtype="int64"), m.RejectCode.SCHEMA, "w: param int64[2]; only float64"),
    (model(dtype="bool", cls=EntryClass.BUFFER), m.RejectCode.SCHEMA, "w: buffer bool[2]; only float64"),
    (model((1,) * 65), m.RejectCode.SCHEMA, "w has 65 dimensions, 64 are possible"),
    (model((2**64 - 1,) * 100_000), m.RejectCode.SCHEMA, "100000 dimensions"),
    (model((2**64 - 1,) * 64), m.RejectCode.SIZE, "max_model_bytes"),
    (samples(2**62), m.RejectCode.DATASET, f"{2**62} samples, 2 times each"),
    *(({"resume": claim(**{field: 2**31}), "wanted_rank": 0}, m.RejectCode.SEAT, f"{field} {2**31}")
      for field in ("generation", "incarnation", "attempt", "session_id")),
    *(({"resume": claim(**{field: 2**63}), "wanted_rank": 0}, m.RejectCode.SEAT, f"{field} {2**63}")
      for field in ("version", "cycle", "snapshot_cycle", "shipped", "step_count", "control_seq", "report_seq",
                    "global_step")),
]  # fmt: skip


@pytest.mark.parametrize("met", [0, 1], ids=["the first", "one that comes back"])
@pytest.mark.parametrize(("changes", "code", "word"), BEYOND, ids=[case[2][:24] for case in BEYOND])
def test_what_no_rank_can_have_is_refused_before_anything_is_computed_of_it(
    changes: dict[str, Any], code: m.RejectCode, word: str, met: int
) -> None:
    """N-7, R-3: neither the dtype of a later version nor a number without end raises or takes its time; and what is
    counted on from a claim stays what a frame can hold. Of the first rank too, with which nobody can be compared."""
    hand = Hand(met, target_ranks=3, repeats=2, link_grace_s=30.0)
    hand.feed(ev.LinkLost(0, 1, "reset") if met else ev.Tick())
    before = hand.co.snapshot()
    reject = turned_away(hand, **changes)

    assert (reject.code, reject.retry) == (code, False) and word in reject.text
    assert hand.co.snapshot() == before


@pytest.mark.parametrize("changes", [
    model((1,) * 64), model(dtype="bfloat16", cls=EntryClass.BUFFER), model(dtype="bool", cls=EntryClass.LOCAL),
    model(dtype="int8", cls=EntryClass.FROZEN), samples(2**62 - 1),
    {"resume": claim(incarnation=2**31 - 1, version=2**63 - 1, control_seq=2**63 - 1), "wanted_rank": 0},
], ids=["dimensions", "buffer", "local", "frozen", "samples", "claim"])  # fmt: skip
def test_what_a_rank_can_just_have_is_let_in(changes: dict[str, Any]) -> None:
    """R-3: what rides is floating, the rest may be anything; the largest numbers are still numbers."""
    welcome = knock(Hand(0, target_ranks=3, repeats=2), **changes)
    assert isinstance(welcome, m.Welcome)
    Link(codec=MsgpackCodec(), keys=None, role=Role.COORDINATOR).send(welcome)


@pytest.mark.parametrize("changes", [
    {"averagers": ("",) * 900_000}, {"wishes": {"x" * 1_000_000: 1}}, {"wishes": {"seed": "\0" * 500_000}},
    model(dtype="\0" * 1_000_000),
], ids=["averagers", "name of a wish", "wish", "dtype"])  # fmt: skip
def test_a_refusal_fits_its_frame_whatever_it_names(changes: dict[str, Any]) -> None:
    """N-25, N-29: a Hello may have a mebibyte, and so may its refusal, in which the same is said in more words. What is
    wrong and what to do are in it all the same."""
    reject = turned_away(Hand(0, target_ranks=3), **changes)
    assert len(reject.text) < 1000 and " [...] " in reject.text
    assert reject.text.endswith(("install there the package that brings it", "or leave it open",
                                 "is wanted (section 15)", "install the same version everywhere"))  # fmt: skip
    Link(codec=MsgpackCodec(), keys=None, role=Role.COORDINATOR).send(reject)


# --- whose word it is (N-6) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stamp", "code", "told"), [
    ({}, None, ()),
    ({"run_id": b"z" * 16}, m.RejectCode.OTHER_RUN, ("7a" * 16, "00" * 16)),
    ({"run_id": b"z" * 16, "rank": 0}, m.RejectCode.OTHER_RUN, ("7a" * 16, "00" * 16)),
    ({"rank": 0}, m.RejectCode.SEAT, ("0.1", "1.1")),
    ({"incarnation": 2}, m.RejectCode.SEAT, ("1.2", "1.1")),
], ids=["own", "run", "run before rank", "rank", "incarnation"])  # fmt: skip
def test_a_report_under_another_stamp_ends_the_session_it_came_over(
    stamp: dict[str, Any], code: int | None, told: tuple[str, ...]
) -> None:
    """N-6, N-7: the run is asked for first, then whose word it is; both values are named, and trying again is of no
    use. A generation that is over is no reason: what was not confirmed is sent again under its old stamp (M-42)."""
    hand = Hand(2).form()
    own = m.Heartbeat(run_id=bytes(16), generation=7, rank=1, incarnation=1, report_seq=1, control_seq=0, step_count=0,
                      state="training")  # fmt: skip
    before = hand.co.snapshot()
    answer = misstamped(hand.co, attrs.evolve(own, **stamp), (1, 1))

    assert (None if answer is None else answer.code) == code
    assert answer is None or (not answer.retry and all(value in answer.text for value in told))
    assert hand.co.snapshot() == before
