"""Which of two rows about a link comes first, at a rank and at the coordinator, and what is counted as stale.

Whatever is said of a connection that was replaced is stale; what is known already, or comes too late to matter, is
nobody's fault and is passed over without a count.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.cycle import MAX_ATTEMPTS
from paceline.core.phases import CyclePhase, PeerPhase, WorkerPhase

from support.hand import Hand, alerts, messages, named, pending
from support.rank import Rank, of
from support.words import hello

J, W, T, P, D = (
    WorkerPhase.JOINING, WorkerPhase.WAITING, WorkerPhase.TRAINING, WorkerPhase.THROTTLED, WorkerPhase.DRAINING,
)  # fmt: skip
LOST = ev.LinkLost(cause="reset")
BUSY = m.Reject(code=14, text="busy", retry=True, after_s=3.0)
FROZEN = m.Reject(code=11, text="frozen")


def counts(r: Rank) -> tuple[int, int, int]:
    """What a rank has counted as stale, as refused and as a violation."""
    return r.worker.fenced, r.worker.refused, r.worker.violations


def welcome(status: m.WelcomeStatus, incarnation: int = 1) -> m.Welcome:
    """The answer of a coordinator in its second life."""
    return m.Welcome(rank=1, incarnation=incarnation, generation=2, status=status, control_seq=0, report_seq=0,
                     config={})  # fmt: skip


# --- a rank ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [J, W, T, P, D])
def test_a_notice_of_the_own_life_is_no_stale_message(phase: WorkerPhase) -> None:
    """W-21: something that this rank sent was stale; what it is told of that is not."""
    r = Rank(phase)
    assert r.feed(ev.Received(m.Fenced(generation=1, incarnation=1, cycle=3, why="stale"))) == []
    assert counts(r) == (0, 0, 0) and r.worker.phase == phase


@pytest.mark.parametrize("answer", [BUSY, FROZEN, welcome(m.WelcomeStatus.RESUMED)], ids=["for now", "for ever", "in"])
@pytest.mark.parametrize("phase", [J, W, T, P, D])
def test_an_answer_to_no_hello_ends_the_session(answer: Any, phase: WorkerPhase) -> None:
    """N-7, before anything that the answer says is looked at."""
    r = Rank(phase)
    assert [type(order) for order in r.feed(ev.Received(answer))] == [fx.Stop] and counts(r) == (0, 0, 1)


@pytest.mark.parametrize("phase", [J, W, T, P])
def test_what_a_former_coordinator_asked_is_stale(phase: WorkerPhase) -> None:
    """M-43, N-6: whatever it was about, the averager's own consensus too."""
    r = Rank(phase, reconnect_window_s=60.0)
    r.feed(LOST)
    r.feed(ev.Received(welcome(m.WelcomeStatus.RESUMED)))
    orders = r.control(m.RequestParams, cycle=1, attempt=0, observer=False)
    orders += r.control(m.RequestState, transfer_id=1, joiner_rank=m.NO_RANK, joiner_incarnation=0)
    assert orders == [] and counts(r) == (2, 0, 0)


@pytest.mark.parametrize("phase", [J, D])
def test_who_has_no_state_to_give_passes_over_the_wish(phase: WorkerPhase) -> None:
    """M-27, W-23: another donor is asked, and nothing was stale."""
    r = Rank(phase)
    assert r.control(m.RequestState, transfer_id=1, joiner_rank=2, joiner_incarnation=1) == []
    assert counts(r) == (0, 0, 0)


def saver() -> Rank:
    """A rank that writes the last save, and has no link."""
    r = Rank(T, save_path="runs", heartbeat_s=1e3)
    r.control(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
    r.step(last=True)
    assert r.worker.phase == D
    return r


FENCED = ev.Received(m.Fenced(generation=1, incarnation=2, cycle=3, why="stale"))
ANSWERS = [ev.Received(welcome(m.WelcomeStatus.JOINING, 2)), ev.Received(FROZEN)]


@pytest.mark.parametrize(("event", "linked"), [
    *((event, linked) for event in (LOST, ev.LaneClosed(), FENCED, ev.Tick()) for linked in (True, False)),
    *((event, False) for event in ANSWERS),
], ids=lambda value: value if isinstance(value, bool) else type(getattr(value, "message", value)).__name__)  # fmt: skip
def test_nothing_about_a_link_stops_a_save(event: Any, linked: bool) -> None:
    """W-23: the end of the save stops the rank; a silence, or a window that is over, is not counted as anything."""
    r = saver()
    if not linked:
        r.worker.linked, r.worker.look_until = False, r.now + 31.0
    r.now += 31.0
    assert not of(r.feed(event), fx.Stop) and r.worker.phase == D and counts(r) == (0, 0, 0)
    if isinstance(event, ev.Tick) and not linked:
        due = r.worker.poll_timeout()
        assert due is not None and due > r.now, "a window that is over must not make a Tick due for ever"


# --- the coordinator -------------------------------------------------------------------------------------------------


def about_link(kind: str, link: int | None) -> Any:
    """A loss or a failed send on a connection of rank 0."""
    return ev.LinkLost(0, 1, "reset", link) if kind == "loss" else ev.SendFailed((0, 1, 3), link)


def fenced(hand: Hand) -> int:
    """How much was counted as stale."""
    return sum(hand.co.fenced.values())


def back(hand: Hand, rank: int = 0, **fields: Any) -> list[Any]:
    """The rank knocks with a claim on its life."""
    peer = hand.co.peers[rank]
    known: dict[str, Any] = dict(
        generation=hand.co.generation, incarnation=peer.incarnation, version=hand.co.cycle.version,
        cycle=max(0, hand.co.cycle.finished), snapshot_cycle=hand.co.cycle.number, attempt=hand.co.cycle.attempt,
        shipped=0, step_count=peer.last_step_count, control_seq=peer.control_seq, report_seq=peer.report_seq,
    )  # fmt: skip
    resume = m.ResumeClaim(**{**known, **fields})
    return hand.feed(ev.HelloReceived(77, hello(hand.samples, wanted_rank=rank, resume=resume)))


@pytest.mark.parametrize("told", [False, True])
def test_a_life_that_is_over_is_not_gone_on_with_where_the_journal_has_lost_its_end(told: bool) -> None:
    """W-21, M-22, M-45: a rank that was silent for too long was told so, and dropped its steps. The coordinator came
    back without the end of its journal, took that life up again, and waited for steps that nobody had any more (W-9).
    Found by a storm of 14 ranks, seed 19401732."""
    hand, rank = Hand(2).form(), Rank(T, reconnect_window_s=60.0)
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), hand.now)
    rank.step(2)
    rank.feed(FENCED if told else LOST)
    claim = rank.worker.claim()
    assert claim is not None and (claim.incarnation, claim.over, rank.worker.steps_since_avg) == (1, told, 2 - 2 * told)

    [admit] = of(back(hand, 1, generation=1, over=claim.over), fx.Admit)
    assert (admit.rank, admit.incarnation) == (1, 1 + told)
    rank.feed(ev.Received(welcome(admit.welcome.status, admit.incarnation)))
    after = rank.worker.claim()
    assert rank.worker.linked and after is not None and (after.incarnation, after.over) == (1 + told, False)


@pytest.mark.parametrize("kind", ["loss", "send"])
def test_of_a_detached_rank_only_the_own_link_is_old_news(kind: str) -> None:
    """M-42, N-10: another link is stale first; the known loss is no stale one and gives no more time."""
    hand = Hand(2, link_grace_s=5.0).form()
    hand.feed(about_link("loss", None))
    until = hand.co.peers[0].return_until
    hand.now += 1.0
    effects = hand.feed(about_link(kind, None))
    assert not named(effects, "Detached") and hand.co.peers[0].return_until == until and fenced(hand) == 0
    hand.feed(about_link(kind, 99))
    assert fenced(hand) == 1 and hand.co.peers[0].return_until == until


@pytest.mark.parametrize("grace", [0.0, 5.0])
@pytest.mark.parametrize("kind", ["loss", "send"])
def test_what_is_said_of_the_link_of_who_has_gone_is_not_stale(kind: str, grace: float) -> None:
    """M-17: the end of its link is what everybody expects then."""
    hand = Hand(2, link_grace_s=grace).form()
    hand.say(0, m.Exiting, reason="done")
    hand.feed(about_link(kind, None))
    assert fenced(hand) == 0 and hand.co.peers[0].phase == PeerPhase.EXITED and not named(hand.effects, "Died")


def exhausted() -> Hand:
    """A pending cycle in its last attempt, with rank 0 detached."""
    hand = pending(link_grace_s=5.0)
    for _ in range(MAX_ATTEMPTS):
        hand.feed(ev.RoundAborted(hand.co.cycle.key, hand.co.cycle.attempt, "torn"))
    assert hand.co.cycle.pending and hand.co.cycle.attempt == MAX_ATTEMPTS
    hand.feed(ev.LinkLost(0, 1, "reset"))
    return hand


def test_a_torn_last_attempt_stalls_the_run() -> None:
    """R-18, M-42, C-16: the round is given up first, then the run saves."""
    hand = exhausted()
    effects = back(hand)
    kinds = [type(effect).__name__ for effect in effects]
    assert hand.co.cycle.phase == CyclePhase.STALLED and len(alerts(effects, "stalled")) == 1
    assert "AbortRound" in kinds[: kinds.index("Alert")] and named(effects, "Stalled")


def test_a_torn_attempt_is_followed_by_the_next() -> None:
    """M-42: the cycle goes on."""
    hand = pending(link_grace_s=5.0)
    hand.feed(ev.LinkLost(0, 1, "reset"))
    back(hand)
    assert hand.co.cycle.phase == CyclePhase.PENDING and hand.co.cycle.attempt == 1


def test_a_cycle_that_was_put_off_goes_on() -> None:
    """M-43, M-44: once the averager has its consensus again, everyone is asked, and the cycle waits for them."""
    hand = pending(reconnect_window_s=60.0)
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), 3.0)
    hand.now = 3.0
    hand.feed(ev.Tick())
    effects = back(hand, generation=1, snapshot_cycle=0)
    [order] = messages(effects, m.RequestState)
    assert [facts["rank"] for facts in named(effects, "Custom") if facts["what"] == "state_transfer"] == ["averager"]
    effects = hand.feed(ev.RoundProgress(m.transfer_key(2, order.transfer_id), 0, 8, True))
    assert messages(effects, m.RequestParams) and hand.co.cycle.phase == CyclePhase.PENDING


def test_whose_part_is_done_tears_no_last_attempt() -> None:
    """M-42 before R-18: whether the attempt can end is asked first."""
    hand = exhausted()
    back(hand, staged=True)
    assert hand.co.cycle.pending and hand.co.cycle.attempt == MAX_ATTEMPTS and hand.co.peers[0].attached


def test_who_knows_more_than_the_journal_ends_the_round_that_is_pending() -> None:
    """M-45: at the averager too, and its number is not used again."""
    hand = pending(reconnect_window_s=60.0)
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), 3.0)
    hand.now = 3.0
    hand.co.take_ready()
    number = hand.co.cycle.number
    effects = back(hand, generation=1, version=5, cycle=number, control_seq=900, report_seq=900)
    assert [effect.key.cycle for effect in effects if isinstance(effect, fx.AbortRound)] == [number]
    assert hand.co.cycle.phase == CyclePhase.IDLE and not messages(effects, m.RequestParams)
    [order] = messages(effects, m.RequestState)
    assert order.rank == 0 and not messages(hand.tick(2.0), m.RequestState), "it is asked once (M-44)"
