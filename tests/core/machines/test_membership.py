"""Who comes and goes: the door, failed sends, deaths, departures, violations (sections 2 and 11)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import Config, config_digest
from paceline.core.coordinator import Coordinator
from paceline.core.errors import LocalProtocolError
from paceline.core.phases import PeerPhase, RunPhase
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature

from support.hand import Hand, alerts, messages, named, pending
from support.words import hello

OTHER = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(3,), dtype="float32"),))

# --- the door (M-5, M-7) ---------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], m.RejectCode, str]] = [
    ({"protocol": 9}, m.RejectCode.PROTOCOL, "9"),
    ({"byte_order": 1}, m.RejectCode.BYTE_ORDER, "little-endian"),
    ({"averagers": ("collective",)}, m.RejectCode.AVERAGER, "collective"),
    ({"schema": OTHER}, m.RejectCode.SCHEMA, "hash"),
    ({"schema": OTHER, "schema_hash": OTHER.hash()}, m.RejectCode.SCHEMA, "w"),
    ({"dataset_signature": dataset_signature(61, b"x")}, m.RejectCode.DATASET, "61"),
    ({"dataset_signature": dataset_signature(60, b"y")}, m.RejectCode.DATASET, "content"),
    ({"dataset_signature": dataset_signature(0, b"x")}, m.RejectCode.DATASET, "empty"),
    ({"wishes": {"batch_size": 3}}, m.RejectCode.CONFIG, "3"),
    ({"wishes": {"policy": "sync"}}, m.RejectCode.CONFIG, "policy"),
    ({"wanted_rank": 0}, m.RejectCode.SEAT, "taken"),
    ({"wanted_rank": 7}, m.RejectCode.SEAT, "7"),
]


@pytest.mark.parametrize(("changes", "code", "word"), REFUSED, ids=[str(case[1].name) for case in REFUSED])
def test_a_refused_hello_leaves_every_table_as_it_was(changes: dict[str, Any], code: m.RejectCode, word: str) -> None:
    """M-5: both values are named, and only closing, full and busy may try again."""
    hand = Hand(3, target_ranks=5)
    before = hand.co.snapshot()
    effects = hand.feed(ev.HelloReceived(9, attrs.evolve(hello(60), **changes)))
    reject = next(e.reject for e in effects if isinstance(e, fx.Refuse))

    assert (reject.code, reject.retry) == (code, False) and word in reject.text
    assert hand.co.snapshot() == before


REMEDIES = {
    m.RejectCode.PROTOCOL: "install the same version", m.RejectCode.SCHEMA: "same", m.RejectCode.DATASET: "give",
    m.RejectCode.CONFIG: "leave it open", m.RejectCode.AVERAGER: "install there", m.RejectCode.SEAT: "rank",
    m.RejectCode.BYTE_ORDER: "run this rank on",
}  # fmt: skip
"""What to do, in a refusal of `REFUSED`; codes of other tests are not here."""


@pytest.mark.parametrize(("changes", "code"), [case[:2] for case in REFUSED if case[2] != "policy"])
def test_a_refusal_says_what_to_do(changes: dict[str, Any], code: m.RejectCode) -> None:
    """N-29: the line on the terminal of the rank is enough to mend it."""
    effects = Hand(3, target_ranks=5).feed(ev.HelloReceived(9, attrs.evolve(hello(60), **changes)))
    [text] = [e.reject.text for e in effects if isinstance(e, fx.Refuse)]
    assert REMEDIES[code] in text.partition(";")[2], text


def test_other_versions_are_let_in_with_a_warning() -> None:
    """F67, N-29: of the package or of torch; a difference of Python alone is nobody's business."""
    hand = Hand(0, target_ranks=4)
    told = [("paceline 1", "python 3.11, torch 2.13.0"), ("paceline 1", "python 3.12, torch 2.13.0"),
            ("paceline 2", "python 3.11, torch 2.13.0"), ("paceline 1", "python 3.11, torch 2.13.1")]  # fmt: skip
    for link, (package, runtime) in enumerate(told):
        hand.feed(ev.HelloReceived(link, hello(60, package=package, runtime=runtime)))
    assert hand.co.alive == [0, 1, 2, 3]
    warned = alerts(hand.effects, "versions")
    assert [(alert.path, alert.critical) for alert in warned] == [("rank 2", False), ("rank 3", False)]
    assert "paceline 2" in warned[0].text and "torch 2.13.1; rank 0 runs paceline 1, torch 2.13.0" in warned[1].text


def test_a_batch_longer_than_an_epoch_is_refused_at_the_door() -> None:
    """D-2: it names what to do."""
    hand = Hand(0, target_ranks=2, batch_size=50, epoch_splits=2)
    effects = hand.feed(ev.HelloReceived(1, hello(60)))
    assert "smaller batch_size" in next(e.reject.text for e in effects if isinstance(e, fx.Refuse))


def test_a_model_above_the_limit_is_refused() -> None:
    """N-25: max_model_bytes."""
    hand = Hand(0, target_ranks=2, max_model_bytes=4)
    effects = hand.feed(ev.HelloReceived(1, hello(60)))
    assert next(e.reject.code for e in effects if isinstance(e, fx.Refuse)) == m.RejectCode.SIZE


def test_nobody_joins_a_frozen_run_that_has_begun_or_one_that_ends() -> None:
    """M-22, I20: frozen while it runs; closing, which may be tried again, at its end."""
    hand = Hand(2, target_ranks=2, elastic=False)
    late = ev.HelloReceived(7, hello(60))
    codes = [next(e.reject.code for e in hand.feed(late) if isinstance(e, fx.Refuse))]
    hand.form()
    codes.append(next(e.reject.code for e in hand.feed(late) if isinstance(e, fx.Refuse)))
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    codes.append(next(e.reject.code for e in hand.feed(late) if isinstance(e, fx.Refuse)))

    assert codes == [m.RejectCode.FROZEN, m.RejectCode.FROZEN, m.RejectCode.CLOSING]


def test_a_seat_that_died_while_forming_is_given_again_as_another_incarnation() -> None:
    """M-7, I19: what the first life still says is fenced."""
    hand = Hand(2, target_ranks=3)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    hand.feed(ev.HelloReceived(5, hello(60)))
    assert (hand.co.peers[0].incarnation, hand.co.alive) == (2, [0, 1])
    effects = hand.say(0, m.Heartbeat, step_count=0, state="x", incarnation=1)
    assert [e for e in effects if isinstance(e, fx.SendFenced)]


def test_a_stale_session_is_told_so_once_a_second() -> None:
    """N-6: each message is counted, and one answer a second says what is current."""
    hand = Hand(2, target_ranks=3)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    told = []
    for second in (0.0, 0.0, 0.9, 1.0, 1.5, 2.0):
        hand.now = 50.0 + second
        effects = hand.say(0, m.Heartbeat, step_count=0, state="x", incarnation=9)
        told.append(len([e for e in effects if isinstance(e, fx.SendFenced)]))
    assert told == [1, 0, 0, 1, 0, 1] and hand.co.fenced[0, "stale"] == 6


# --- a send that failed (N-10, C-14, C-22, I5) -----------------------------------------------------------------------


def _state(hand: Hand, rank: int) -> tuple[Any, ...]:
    held = hand.co.book.holdings(rank)
    pools = {epoch: (pool.free, tuple(pool.free_ranges())) for epoch, pool in hand.co.book.pools.items()}
    return pools, [entry.plan.plan_id for entry in held.plans], held.epoch, hand.co.desk.left(rank)


def test_a_failed_update_undoes_its_plan_and_touches_nobody_else() -> None:
    """I5, C-14, 17.1 #2 and #12: pool, queue, slot and epoch are as before compose; the others have their Update."""
    hand = pending(3, samples=400)
    effects = hand.average()
    update = next(e for e in effects if isinstance(e, fx.Send) and isinstance(e.message, m.Update) and e.rank == 2)
    assert update.message.next_plan is not None and len(messages(effects, m.Update)) == 3
    others = [_state(hand, rank)[1:] for rank in (0, 1)]
    free = hand.co.book.pools[0].free
    effects = hand.feed(ev.SendFailed(update.token))

    pools, plans, epoch, left = _state(hand, 2)
    assert (plans, epoch, left) == ([], 0, hand.co.desk.quota(2)) and pools[0][0] == free + 3
    assert [_state(hand, rank)[1:] for rank in (0, 1)] == others
    assert hand.co.lost_sends == 1 and alerts(effects, "send_failed")
    assert hand.co.voters == [0, 1, 2], "it stays a voter until its link or its silence says more"


def test_after_a_failed_send_nothing_is_sent_and_the_gates_wait() -> None:
    """N-10: no plan either, or a wake would serve it for ever; its end frees the rest."""
    hand = pending(2, samples=400)
    hand.average()
    token = next(e.token for e in reversed(hand.effects) if isinstance(e, fx.Send) and e.rank == 1)
    hand.feed(ev.SendFailed(token))
    hand.step(0, 3)
    hand.complete(0)
    effects = hand.tick(3)

    assert not messages(effects, m.Beacon, 1) and not hand.co.cycle.pending
    effects = hand.feed(ev.LinkLost(1, 1, "reset"))
    assert hand.co.cycle.pending and hand.co.voters == [0]


def test_a_confirmed_message_is_not_rolled_back() -> None:
    """N-10 (a): a report that acknowledges the number makes the reservation final."""
    hand = Hand(2, samples=400).form()
    token = next(e.token for e in hand.effects if isinstance(e, fx.Send) and isinstance(e.message, m.StartEpoch))
    hand.say(token[0], m.Heartbeat, step_count=0, state="x", control_seq=token[2])
    plans = list(hand.co.book.holdings(token[0]).plans)
    hand.feed(ev.SendFailed(token))

    assert hand.co.book.holdings(token[0]).plans and list(hand.co.book.holdings(token[0]).plans) == plans


def test_a_failed_send_to_who_is_gone_or_being_dismissed_raises_no_alert() -> None:
    """C-22, 17.1 #39."""
    hand = Hand(2, samples=400).form()
    token = next(e.token for e in hand.effects if isinstance(e, fx.Send) and e.rank == 1)
    hand.feed(ev.LinkLost(1, 1, "reset"))
    assert not alerts(hand.feed(ev.SendFailed(token)), "send_failed") and hand.co.lost_sends == 0
    hand.feed(ev.OperatorRequest(ev.Operator.STOP))
    number = hand.co.peers[0].control_seq
    assert not alerts(hand.feed(ev.SendFailed((0, 1, number))), "send_failed") and hand.co.lost_sends == 1


def test_an_order_to_save_that_cannot_be_sent_is_alerted() -> None:
    """C-22: it is no clean end, and no shutdown was issued before it; of what was sent earlier nobody needs to know."""
    hand = Hand(3, samples=400, max_failure=1).form()
    lost = hand.feed(ev.LinkLost(2, 1, "reset"))
    tokens = {e.rank: e.token for e in lost if isinstance(e, fx.Send) and isinstance(e.message, m.ShutdownWithSave)}
    [alert] = alerts(hand.feed(ev.SendFailed(tokens[0])), "send_failed")
    before = alerts(hand.feed(ev.SendFailed((1, 1, tokens[1][2] - 1))), "send_failed")

    assert alert.critical and alert.path == "rank 0" and "ShutdownWithSave" in alert.text
    assert before == [] and hand.co.lost_sends == 2


def test_the_alert_of_a_failed_send_names_the_message() -> None:
    """C-22: what did not arrive decides what is missing at the rank."""
    hand = Hand(2, samples=400).form()
    token = next(e.token for e in hand.effects if isinstance(e, fx.Send) and isinstance(e.message, m.StartEpoch))
    [alert] = alerts(hand.feed(ev.SendFailed(token)), "send_failed")

    assert alert.text == "StartEpoch could not be sent"


@settings(max_examples=60)
@given(st.sets(st.integers(0, 3), min_size=1, max_size=3))
def test_any_set_of_failed_updates_leaves_the_others_served(failing: set[int]) -> None:
    """I5, and afterwards the run goes on without the failed ones."""
    hand = pending(4, samples=400)
    effects = hand.average()
    sends = {e.rank: e.token for e in effects if isinstance(e, fx.Send) and isinstance(e.message, m.Update)}
    for rank in sorted(failing):
        hand.feed(ev.SendFailed(sends[rank]))
    for rank in sorted(failing):
        hand.feed(ev.LinkLost(rank, 1, "reset"))
    hand.window()

    assert hand.co.cycle.version == 2 and hand.co.voters == [r for r in range(4) if r not in failing]


# --- deaths and departures (M-8, M-17, M-18) -------------------------------------------------------------------------


def test_a_death_in_the_order_of_the_chain() -> None:
    """M-18: alert, removed from the round, forfeited, declared to the rest, its link closed; once."""
    hand = pending(3)
    effects = hand.feed(ev.ProcessExited(1, 1, -9))
    kinds = [type(e.message).__name__ if isinstance(e, fx.Send) else getattr(e, "name", type(e).__name__)
             for e in effects]  # fmt: skip
    wanted = ["Died", "Alert", "RemoveFromRound", "Returned", "DeclareDead", "DeclareDead", "CloseLink"]
    assert [kind for kind in kinds if kind in wanted] == wanted
    again = hand.feed(ev.LinkLost(1, 1, "reset"))
    assert not named(again, "Died") and hand.co.deaths == 1


def test_a_polite_leave_is_no_death() -> None:
    """M-8, 17.1 #21 and #39: no alert, not counted, and what it held is trained by the rest."""
    hand = Hand(2).form()
    hand.step(0, 2)
    effects = hand.say(0, m.Exiting, reason="leave")

    assert hand.co.peers[0].phase == PeerPhase.EXITED and hand.co.deaths == 0 and not alerts(effects, "rank_lost")
    assert [e for e in effects if isinstance(e, fx.CloseLink)] and named(effects, "Left")[0]["unmerged"] == 2
    hand.feed(ev.LinkLost(0, 1, "closed"))
    assert hand.co.deaths == 0 and hand.co.book.replayed == 2
    assert hand.say(0, m.Exiting, reason="again") == [] and hand.co.fenced[0, "Exiting"] == 1


def test_silence_is_judged_strictly_after_the_staleness() -> None:
    """M-3, M-17: heartbeats are enough, at the very instant it is not too late."""
    hand = Hand(2).form()
    start = hand.now
    while hand.now < start + 30.0:
        hand.now = min(hand.co.poll_timeout() or 0.0, start + 30.0)
        hand.say(1, m.Heartbeat, step_count=0, state="x")
        hand.feed(ev.Tick())
    assert hand.co.voters == [0, 1]
    hand.now += 0.001
    effects = hand.feed(ev.Tick())
    assert hand.co.voters == [1] and "silent" in named(effects, "Died")[0]["cause"]


def test_silence_is_counted_from_the_last_word() -> None:
    """M-3: strictly also where the silence is found out at an instant that was put down for an older word."""
    hand = Hand(2).form()
    start, hand.now = hand.now, hand.now + 10.0
    for rank in (0, 1):
        hand.say(rank, m.Heartbeat, step_count=0, state="x")
    hand.now, hand.co.late_after = start + 40.0, float("inf")
    hand.say(1, m.Heartbeat, step_count=0, state="x")
    hand.feed(ev.Tick())
    assert hand.co.voters == [0, 1]


@pytest.mark.parametrize("first", ["tick", "report"])
def test_a_coordinator_that_was_away_itself_judges_nobody(first: str) -> None:
    """M-9: whatever it hears first after a suspension."""
    hand = Hand(2).form()
    hand.now += 500.0
    if first == "tick":
        hand.feed(ev.Tick())
    else:
        hand.say(1, m.Heartbeat, step_count=0, state="x")
    assert hand.co.voters == [0, 1]
    hand.tick(29.0)
    assert hand.co.voters == [0, 1]


def test_beacons_leave_every_second_in_every_phase() -> None:
    """N-8, I40."""
    for hand in (Hand(1, target_ranks=2), Hand(2).form(), pending(2)):
        effects = hand.tick(10.0)
        assert len(messages(effects, m.Beacon, 0)) == 10


# --- too few left (M-21) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "deaths", "reason"),
    [
        ({"max_failure": 2}, 2, m.SaveReason.MAX_FAILURE),
        ({"max_failure": 0.5}, 2, m.SaveReason.MAX_FAILURE),
        ({"max_failure": 1.0}, 4, m.SaveReason.MAX_FAILURE),
        ({}, 4, m.SaveReason.ALL_RANKS_LOST),
        ({"min_ranks": 3, "elastic": False}, 2, m.SaveReason.SINGLE_SURVIVOR),
    ],
)
@pytest.mark.parametrize("armed", [False, True])
def test_when_a_run_cannot_go_on(knobs: dict[str, Any], deaths: int, reason: m.SaveReason, armed: bool) -> None:
    """M-21, C-42, C-46: the reasons in their order, at the death that brings it about."""
    hand = pending(4, **knobs) if armed else Hand(4, **knobs).form()
    for rank in range(deaths):
        assert not hand.co.save_issued
        hand.feed(ev.LinkLost(rank, 1, "reset"))

    assert hand.co.save_issued and hand.co.run.save is not None and hand.co.run.save.reason == reason


@pytest.mark.parametrize(("limit", "said"), [(1, "1 rank died"), (2, "2 ranks died")])
def test_how_many_have_died_is_said(limit: int, said: str) -> None:
    """M-21: with the knob that it was too many for."""
    hand = Hand(3, max_failure=limit).form()
    for rank in range(limit):
        hand.feed(ev.LinkLost(rank, 1, "reset"))
    assert hand.co.run.text == f"{said}, max_failure is {limit}"


# --- what no rank sends (N-7, I22) -----------------------------------------------------------------------------------


def test_a_hole_in_the_lane_ends_that_session_only() -> None:
    """N-3, N-7."""
    hand = Hand(2).form()
    hand.say(0, m.Heartbeat, gap=1, step_count=0, state="x")
    assert hand.co.voters == [1] and hand.co.violations == 1


def test_a_confirmation_of_what_was_never_sent_ends_the_session() -> None:
    """N-2, N-7."""
    hand = Hand(2).form()
    hand.say(0, m.Heartbeat, step_count=0, state="x", control_seq=10_000)
    assert hand.co.voters == [1]


@pytest.mark.parametrize(
    "message",
    [m.Shutdown(run_id=b"\0" * 16, generation=1, rank=0, incarnation=1, reason=m.SaveReason.GRACEFUL),
     m.Reject(code=1, text="x"), m.Fenced(generation=1, incarnation=1, cycle=0, why="x")],
)  # fmt: skip
def test_a_message_of_the_other_direction_never_raises(message: Any) -> None:
    """I22: with a stamp it ends that session, without one it is counted."""
    hand = Hand(2).form()
    hand.feed(ev.Received(message))
    assert hand.co.violations == 1
    assert hand.co.voters == ([1] if isinstance(message, m.Shutdown) else [0, 1])


BAD_BATCHES: list[tuple[dict[str, Any], bool]] = [
    ({"plan_id": 99}, True), ({"samples": 1}, False), ({"step_count": 0}, False),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "violation"), BAD_BATCHES)
def test_an_impossible_batch(fields: dict[str, Any], violation: bool) -> None:
    """C-8, D-11, D-12: another plan ends the session, other samples or an old count are refused and counted."""
    hand = Hand(2).form()
    hand.step(0, **fields)
    assert hand.co.peers[0].steps == 0 and hand.co.peers[0].alive is not violation
    assert bool(hand.co.refused) is not violation


@settings(max_examples=100)
@given(st.data())
def test_whatever_one_rank_sends_only_that_rank_suffers(data: st.DataObject) -> None:
    """I22: no message of any kind, in any order, raises or harms another's session."""
    from support.messages import FROM_RANK

    hand = pending(2) if data.draw(st.booleans()) else Hand(2).form()
    for _ in range(data.draw(st.integers(1, 5))):
        message = data.draw(FROM_RANK)
        number = hand.co.peers[0].report_seq + 1
        hand.feed(ev.Received(attrs.evolve(
            message, run_id=hand.co.config.run_id, generation=1, rank=0, incarnation=1, report_seq=number,
            control_seq=min(message.control_seq, hand.co.peers[0].control_seq),
        )))  # fmt: skip
    assert hand.co.peers[1].alive


# --- local misuse ----------------------------------------------------------------------------------------------------


def test_local_misuse_raises_and_changes_nothing() -> None:
    """N-7: time that goes back, something that is no event."""
    hand = Hand(2).form()
    before = hand.co.snapshot()
    with pytest.raises(LocalProtocolError, match="went back"):
        hand.co.handle(ev.Tick(), hand.now - 1)
    with pytest.raises(LocalProtocolError, match="not an event"):
        hand.co.handle("tick", hand.now)  # type: ignore[arg-type]
    assert hand.co.snapshot() == before and hand.co.take_ready().effects == ()


def test_handle_does_not_nest() -> None:
    """N-12: a guard that feeds the machine from inside is told to queue."""
    seen: list[str] = []

    class Nosy:
        reports_telemetry = False

        def observe(self, cycle: Any) -> Any:
            try:
                hand.co.handle(ev.Tick(), hand.now)
            except LocalProtocolError as error:
                seen.append(str(error))
            raise ValueError

        def saved(self) -> dict[str, Any]:
            return {}

        def restore(self, saved: Any) -> bool:
            return False

    hand = pending(2, guard=Nosy())
    hand.average()
    assert len(seen) == 1 and hand.co.cycle.version == 1


def test_a_coordinator_that_is_asked_first_knows_its_next_deadline() -> None:
    """I40: the deadline is set from the beginning."""
    co = Coordinator(Config(batch_size=1, num_epochs=1), now=3.0)
    assert co.poll_timeout() == 3.0 and co.run.phase == RunPhase.FORMING


def test_a_digest_that_is_not_that_of_the_stated_values_is_refused() -> None:
    """M-5, V-5: whoever counts its values otherwise may read them otherwise; nothing changes at the run."""
    hand = Hand(1, target_ranks=3)
    before = hand.co.snapshot()
    for wishes, digest in (({"seed": 42}, bytes(32)), ({}, config_digest({"seed": 42}))):
        effects = hand.feed(ev.HelloReceived(9, hello(60, wishes=wishes, config_digest=digest)))
        [reject] = [e.reject for e in effects if isinstance(e, fx.Refuse)]
        assert reject.code == m.RejectCode.CONFIG and digest.hex()[:16] in reject.text
        hand.co.records.clear()
    assert hand.co.alive == [0] and len(before) == len(hand.co.snapshot())
    wished = {"seed": 42}
    assert not [e for e in hand.feed(ev.HelloReceived(9, hello(60, wishes=wished))) if isinstance(e, fx.Refuse)]
