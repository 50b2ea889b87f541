"""Single cases of reattachment and recovery (M-40 to M-45, N-9, N-10, W-20, W-21), fed by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core import retention
from paceline.core.coordinator import Coordinator
from paceline.core.explain import explain
from paceline.core.phases import PeerPhase, RunPhase, WorkerPhase
from paceline.core.timeline import AGAIN, TIMELINE
from paceline.core.worker_link import pause_s

from support.hand import Hand, alerts, messages, named, pending
from support.hand_collective import joint
from support.rank import RUN, Rank, reports
from support.words import hello

GRACE_S = 5.0


def claim(hand: Hand, rank: int = 0, unseen: int = 0, **fields: Any) -> m.ResumeClaim:
    """What an honest rank claims that has not seen the last `unseen` messages."""
    peer = hand.co.peers[rank]
    known: dict[str, Any] = dict(
        generation=hand.co.generation, incarnation=peer.incarnation, version=hand.co.cycle.version,
        cycle=max(0, hand.co.cycle.finished), snapshot_cycle=0, shipped=0, step_count=peer.last_step_count,
        control_seq=peer.control_seq - unseen, report_seq=peer.report_seq,
    )  # fmt: skip
    known.update(fields)
    return m.ResumeClaim(**known)


def knock(hand: Hand, resume: m.ResumeClaim | None, rank: int = 0, link: int = 77, **changes: Any) -> list[Any]:
    """A Hello of that rank."""
    return hand.feed(ev.HelloReceived(link, hello(hand.samples, wanted_rank=rank, resume=resume, **changes)))


def admitted(effects: list[Any]) -> fx.Admit:
    """The one admission among effects."""
    [found] = [e for e in effects if isinstance(e, fx.Admit)]
    return found


def lose(hand: Hand, rank: int = 0, link: int | None = None) -> list[Any]:
    """The link of a rank breaks."""
    return hand.feed(ev.LinkLost(rank, hand.co.peers[rank].incarnation, "reset", link))


def restarted(hand: Hand, now: float = 3.0, undone: tuple[Any, ...] = ()) -> list[Any]:
    """The coordinator of a hand dies and is started anew, on another clock."""
    hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), now, undone=undone)
    hand.now = now
    return list(hand.co.take_ready().effects) + hand.feed(ev.Tick())


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", range(6))
def test_what_was_queued_for_a_lost_link_arrives_whole_and_in_order(queued: int) -> None:
    """F16, M-42, I53: with session resume all of it, wherever the loss came; while it is away, too."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    lose(hand)
    for number in range(queued):
        hand.co.tell((0,), m.SetGlobalStep, version=0, global_step=number)
    assert not messages(hand.co.take_ready().effects, m.SetGlobalStep), "nothing is sent over a link that is gone"
    last = hand.co.peers[0].control_seq
    admit = admitted(knock(hand, claim(hand, unseen=queued)))
    assert (admit.welcome.status, admit.rank, admit.incarnation) == (m.WelcomeStatus.RESUMED, 0, 1)
    assert [message.control_seq for message in admit.resend] == list(range(last - queued + 1, last + 1))


def test_a_rank_that_is_not_back_in_time_is_dead_once() -> None:
    """M-42, I19: at the deadline, exceeded strictly; until then it is a voter and nothing is given away."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    held = hand.co.book.holdings(0).in_flight_batches
    [facts] = named(lose(hand), "Detached")
    assert facts["until"] == hand.now + GRACE_S and hand.co.voters == [0, 1]
    [reason] = explain(hand.co, 0)
    assert (reason.code, reason.rule, reason.until) == ("E22", "M-42", hand.now + GRACE_S)
    lose(hand)
    until = hand.now + GRACE_S
    while hand.now < until:
        hand.now = min(until, hand.now + 0.5)
        assert not named(hand.feed(ev.Tick()), "Died") and hand.co.book.holdings(0).in_flight_batches == held
    hand.now = hand.co.poll_timeout() or 0.0
    [facts] = named(hand.feed(ev.Tick()), "Died")
    assert facts["cause"] == "not_reattached" and hand.co.voters == [1]


def test_without_a_grace_a_lost_link_is_the_end() -> None:
    """M-17: as ever; and a claim that comes before the loss is noticed does not mend it."""
    hand = Hand(2).form()
    assert named(lose(hand), "Died")
    hand = Hand(2, max_ranks=4).form()
    effects = knock(hand, claim(hand))
    assert named(effects, "Died") and admitted(effects).welcome.status == m.WelcomeStatus.JOINING


@pytest.mark.parametrize("lie", [
    {"version": 2}, {"control_seq": 10_000}, {"control_seq": 0}, {"report_seq": 0}, {"generation": 9},
], ids=str)  # fmt: skip
def test_a_claim_that_does_not_fit_begins_a_new_life(lie: dict[str, Any]) -> None:
    """M-42: an old version, a hole in a lane, another generation; the old life ends as dead, its picks return."""
    hand = Hand(2, link_grace_s=GRACE_S, samples=400).form()
    for _ in range(4):
        hand.window()
    for rank in (0, 1):
        hand.say(rank, m.Heartbeat, step_count=0, state="x", control_seq=hand.co.peers[rank].control_seq)
    lose(hand)
    effects = knock(hand, claim(hand, **lie))
    assert (admitted(effects).incarnation, admitted(effects).welcome.status) == (2, m.WelcomeStatus.JOINING)
    assert [facts["incarnation"] for facts in named(effects, "Died")] == [1]
    assert hand.co.voters == [1] and hand.co.peers[0].phase == PeerPhase.JOINING


def test_a_refused_claim_changes_nothing() -> None:
    """F17, M-5: another model knocks with a claim; the seat waits on for its rank."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    lose(hand)
    before = hand.co.snapshot()
    effects = knock(hand, claim(hand), schema_hash=b"\1" * 32)
    assert [type(e) for e in effects] == [fx.Refuse, fx.Emit] and hand.co.snapshot() == before
    assert admitted(knock(hand, claim(hand))).incarnation == 1


def test_what_is_said_of_a_replaced_link_means_nothing() -> None:
    """F18, M-42: the loss of the old link is noticed after the rank has come back over a new one."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    admitted(knock(hand, claim(hand), link=77))
    for event in (ev.LinkLost(0, 1, "reset", 0), ev.SendFailed((0, 1, 3), 0)):
        hand.feed(event)
        assert hand.co.peers[0].attached and hand.co.fenced
    hand.feed(ev.LinkLost(0, 1, "reset", 77))
    assert hand.co.peers[0].detached


def test_a_report_that_comes_twice_counts_once() -> None:
    """I53: sent over the old link and sent again over the new one."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    hand.step(0)
    steps, hand.sequence[0] = hand.co.peers[0].steps, hand.sequence[0] - 1
    hand.step(0, step_count=1)
    assert hand.co.peers[0].steps == steps == 1 and not hand.co.violations


def test_a_failed_send_is_undone_only_where_nobody_may_come_back() -> None:
    """N-10: with a grace the message is kept for the rank; without one the lane has a hole that no claim bridges."""
    kept, undone = Hand(2, link_grace_s=GRACE_S).form(), Hand(2, max_ranks=4).form()
    for hand in (kept, undone):
        number = next(iter(hand.co.peers[0].tokens))
        held = hand.co.book.holdings(0).in_flight_batches
        hand.feed(ev.SendFailed((0, 1, number)))
        assert (hand.co.book.holdings(0).in_flight_batches == held) is (hand is kept)
    assert kept.co.peers[0].detached and not alerts(kept.effects, "send_failed")
    restarted(undone)
    assert admitted(knock(undone, claim(undone))).incarnation == 2


def test_who_confirms_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-9, O-2: overflow, said once under that name, and nobody else is touched."""
    monkeypatch.setattr(retention, "MOST_MESSAGES", 40)
    hand = Hand(2).form()
    for _ in range(60):
        hand.co.tell((0,), m.SetGlobalStep, version=0, global_step=1)
    effects = hand.feed(ev.Tick())
    [facts] = named(effects, "Died")
    assert "overflow" in facts["cause"] and hand.co.voters == [1]
    assert [alert.critical for alert in alerts(effects, "overflow")] == [False]


def test_many_reports_are_confirmed_before_the_next_beacon() -> None:
    """N-9: a rank of ten thousand steps a second never has to keep more than its lane may hold."""
    hand = Hand(2).form()
    confirmed, most = hand.co.peers[0].report_seq, 0
    for _ in range(3 * retention.MOST_MESSAGES):
        for effect in hand.say(0, m.Heartbeat, step_count=0, state="training"):
            if isinstance(effect, fx.Send) and effect.message.rank == 0:
                confirmed = effect.message.report_seq
        most = max(most, hand.co.peers[0].report_seq - confirmed)
    assert 0 < most < retention.MOST_MESSAGES / 2


def test_a_rank_that_is_declared_dead_is_told_before_its_link_is_closed() -> None:
    """W-20, W-21: only slow, it learns that it may come anew; what is named is its next life."""
    hand = Hand(2).form()
    effects: list[Any] = []
    while not named(effects, "Died"):
        hand.now = hand.co.poll_timeout() or 0.0
        effects = hand.say(1, m.Heartbeat, step_count=0, state="x") + hand.feed(ev.Tick())
    told = next(i for i, e in enumerate(effects) if isinstance(e, fx.SendFenced) and e.rank == 0)
    closed = next(i for i, e in enumerate(effects) if isinstance(e, fx.CloseLink) and e.rank == 0)
    assert told < closed and effects[told].fenced.incarnation == 2


def test_a_seat_without_a_link_may_be_taken_by_a_new_process_and_no_other() -> None:
    """M-7: a life ends with a new Hello; a stranger never ends one whose link is up."""
    hand = Hand(2, link_grace_s=GRACE_S, max_ranks=4).form()
    [refuse] = [e for e in knock(hand, None) if isinstance(e, fx.Refuse)]
    assert refuse.reject.code == m.RejectCode.SEAT
    lose(hand)
    assert admitted(knock(hand, None)).incarnation == 2


@pytest.mark.parametrize("seats", [2, 3])
def test_a_seat_whose_rank_is_awaited_is_not_for_a_life_that_was_given_up(seats: int) -> None:
    """M-7, M-42: a rank fell silent and another process has its seat. Behind a restart of the coordinator both look for
    it, and the first that came had the seat: a healthy rank lost its life, its seat, and its work to one that was given
    up (a storm of 4 ranks, seed 13003100)."""
    hand = Hand(2, max_ranks=seats).form()
    stale = claim(hand)
    hand.co.lose(0, "silent")
    hand.feed(ev.Tick())
    assert admitted(knock(hand, None)).incarnation == 2
    restarted(hand)
    [answer] = [e for e in knock(hand, stale) if isinstance(e, fx.Refuse | fx.Admit)]
    if isinstance(answer, fx.Refuse):
        assert seats == 2 and answer.reject.code == m.RejectCode.FULL and answer.reject.retry
    else:
        assert seats == 3 and (answer.rank, answer.incarnation) == (2, 2)
    assert hand.co.peers[0].detached and hand.co.peers[0].incarnation == 2
    admit = admitted(knock(hand, claim(hand)))
    assert (admit.incarnation, admit.welcome.status) == (2, m.WelcomeStatus.RESUMED)


@pytest.mark.parametrize("noticed", [True, False])
def test_who_has_not_read_which_life_it_was_given_asks_for_its_seat_again(noticed: bool) -> None:
    """M-7: the link broke with the welcome under way, whether the coordinator has heard of that or not. It is the rank
    itself, though what it claims is over; it was given another seat, or none in a full run."""
    hand = Hand(2, max_ranks=2, link_grace_s=GRACE_S).form()
    old = claim(hand)
    hand.co.lose(0, "silent")
    hand.feed(ev.Tick())
    assert admitted(knock(hand, old)).incarnation == 2
    if noticed:
        lose(hand)
    admit = admitted(knock(hand, old))
    assert (admit.rank, admit.incarnation, hand.co.alive) == (0, 3, [0, 1])
    zero = [e for e in knock(hand, claim(hand, incarnation=0)) if isinstance(e, fx.Refuse)]
    assert zero and hand.co.peers[0].incarnation == 3, "a life that nobody ever had"


def test_a_link_that_breaks_in_the_middle_of_a_round_costs_an_attempt() -> None:
    """M-42, R-18: what was in transit is gone; who had staged the result, or not begun, costs nothing."""
    for staged, begun, attempts in ((False, True, 1), (True, True, 0), (False, False, 0)):
        hand = pending(link_grace_s=GRACE_S)
        lose(hand)
        resume = claim(hand, snapshot_cycle=1 if begun else 0, staged=staged)
        effects = knock(hand, resume)
        assert hand.co.cycle.attempt == attempts
        assert len(messages(effects, m.RequestParams)) == 2 * attempts


# --- a new coordinator -----------------------------------------------------------------------------------------------


def test_a_restart_begins_every_wait_anew_on_the_new_clock() -> None:
    """M-40, F95: generation + 1, everyone detached for reconnect_window_s, deadlines of the old clock mean nothing."""
    hand = pending(reconnect_window_s=20.0)
    hand.co.peers[0].merged_at = hand.now
    hand.tick(12.0)
    effects = restarted(hand, now=3.0)
    assert hand.co.generation == 2 and named(effects, "Restarted")[0]["generation"] == 2
    assert [facts["until"] for facts in named(effects, "Detached")] == [23.0, 23.0]
    assert hand.co.cycle.pending and (hand.co.cycle.number, hand.co.cycle.attempt) == (1, 0)
    assert {reason.code for reason in hand.co.explain()} == {"E22"}
    assert [rank["last_merge_s"] for rank in hand.co.dump()["ranks"]] == [0.0, None]
    due = hand.co.poll_timeout()
    assert due is not None and 3.0 < due < 23.1
    while hand.now <= 23.0:
        assert not named(hand.feed(ev.Tick()), "Died")
        hand.now = hand.co.poll_timeout() or 0.0
    assert len(named(hand.feed(ev.Tick()), "Died")) == 2


def test_a_restart_begins_a_renewal_anew_on_the_new_clock() -> None:
    """M-40, M-32: since when a session is wanted is an instant of the old clock too."""
    hand = joint(3)
    hand.feed(ev.LinkLost(2, 1, "reset"))
    restarted(hand)
    renewal = hand.co.sessions.renewal
    assert renewal is not None and (renewal.since, renewal.asked_at) == (3.0, 3.0)


def test_whose_return_is_awaited_does_not_use_up_the_ceiling_of_a_renewal() -> None:
    """M-15, M-42: the wait as a whole begins anew when a lost link is back."""
    hand = joint(4, link_grace_s=30.0)
    lose(hand, 3)
    hand.tick(30.1)
    begun = hand.co.sessions.renewal
    lose(hand, 1)
    hand.now += 20.0
    knock(hand, claim(hand, 1), rank=1)
    renewal = hand.co.sessions.renewal
    assert begun is not None and renewal is not None and renewal.since == hand.now > begun.since


def test_a_pending_cycle_is_asked_for_again_when_the_averager_has_its_consensus() -> None:
    """M-43, M-44: donor is the lowest voter that is back; then everyone is asked, attempt 0 of the new generation."""
    hand = pending()
    restarted(hand)
    effects = knock(hand, claim(hand, 1, generation=1), rank=1)
    [order] = messages(effects, m.RequestState)
    assert (order.rank, order.joiner_rank) == (1, m.NO_RANK) and not messages(effects, m.RequestParams)
    key = m.transfer_key(2, order.transfer_id)
    hand.feed(ev.RoundProgress(attrs.evolve(key, cycle=key.cycle + 1), 1, 8, True))
    assert hand.co.joins.consensus_lost, "of another transfer"
    effects = hand.feed(ev.RoundProgress(key, 1, 8, True))
    assert [(r.rank, r.attempt, r.generation) for r in messages(effects, m.RequestParams)] == [(1, 0, 2)]
    [opened] = [e for e in effects if isinstance(e, fx.OpenRound)]
    assert opened.key.generation == 2 and [rank for rank, _, _ in opened.members] == [0, 1]
    admit = admitted(knock(hand, claim(hand, 0, generation=1, unseen=1)))
    assert isinstance(admit.resend[-1], m.RequestParams) and admit.resend[-1].generation == 2


def test_evidence_of_a_former_generation_counts_as_sent_and_as_nothing_else() -> None:
    """M-43, N-6: its number is taken, the round it is of is over; a step of that time counts."""
    hand = pending()
    restarted(hand)
    knock(hand, claim(hand, 0, generation=1, report_seq=99))
    seen = hand.co.peers[0].report_seq
    hand.say(0, m.SnapshotReady, cycle=1, attempt=0, shipped_steps=3)  # stamped with generation 1
    assert hand.co.peers[0].report_seq == seen + 1 and hand.co.peers[0].shipped is None
    assert hand.co.fenced[0, "SnapshotReady"] == 1 and not hand.co.violations


def test_files_that_were_being_written_are_ordered_again() -> None:
    """M-44: same decision, name and version, once the averager has something to write; an older one is told as lost."""
    hand = Hand(2, samples=40, num_epochs=1, save_path="d", checkpoint_every=1).form()
    while not any(isinstance(e, fx.SaveConsensus) for e in hand.effects):
        hand.window()
    [order] = [e for e in hand.effects if isinstance(e, fx.SaveConsensus)]
    assert hand.co.run.phase == RunPhase.TRAINING
    effects = restarted(hand)
    assert not [e for e in effects if isinstance(e, fx.SaveConsensus)]
    [ask] = messages(knock(hand, claim(hand, generation=1)), m.RequestState)
    effects = hand.feed(ev.RoundProgress(m.transfer_key(2, ask.transfer_id), 0, 8, True))
    assert [e for e in effects if isinstance(e, fx.SaveConsensus)][:1] == [order]
    assert [e.record["decision_id"] for e in effects if isinstance(e, fx.WriteMeta)][:1] == [order.decision_id]


def test_a_file_that_could_not_be_written_is_not_ordered_again_after_a_crash() -> None:
    """M-44, K-8: its failure was told, and the training went on; only what was being written may be there or not."""
    hand = Hand(2, samples=40, num_epochs=1, save_path="d", checkpoint_every=1).form()
    while not any(isinstance(e, fx.SaveConsensus) for e in hand.effects):
        hand.window()
    [order] = [e for e in hand.effects if isinstance(e, fx.SaveConsensus)]
    assert alerts(hand.feed(ev.ConsensusSaved(order.decision_id, order.version, "no space")), "checkpoint_failed")
    restarted(hand)
    [ask] = messages(knock(hand, claim(hand, generation=1)), m.RequestState)
    effects = hand.feed(ev.RoundProgress(m.transfer_key(2, ask.transfer_id), 0, 8, True))
    assert not hand.co.joins.consensus_lost and not [e for e in effects if isinstance(e, fx.SaveConsensus)]


def test_what_may_have_been_told_is_told_again_with_a_mark() -> None:
    """M-44: people and hooks; no message and no round of the dead process is repeated."""
    hand = Hand(2).form()
    undone = (fx.Emit("Cycle", {"cycle": 1}), fx.Invoke("epoch_closed", (0,)), fx.CloseLink(1, 1, "x"),
              fx.Alert("drift", "x", "y"))  # fmt: skip
    effects = restarted(hand, undone=undone)
    assert effects[:3] == [fx.Emit("Cycle", {"cycle": 1, "again": True}),
                           fx.Invoke("epoch_closed", (0, {"replayed": True})),
                           fx.Alert("drift", "x", "y", again=True)]  # fmt: skip
    assert not [e for e in effects if isinstance(e, (fx.Send, fx.CloseLink, fx.OpenRound))]


def test_the_mark_of_an_event_hides_none_of_its_facts() -> None:
    """M-44, I42: how many batches were trained twice is a fact called `replayed`, so events say `again`."""
    hand = Hand(2).form()
    covered = fx.Emit("Covered", {"cycle": 1, "replayed": 3, "slices": []})
    assert restarted(hand, undone=(covered,))[0] == fx.Emit("Covered", {**covered.facts, "again": True})
    assert not [name for name, event in TIMELINE.items() if AGAIN in event.fields or f"{AGAIN}?" in event.fields]


def test_a_run_that_was_over_is_over_again() -> None:
    """M-53: the last words, once more, and nothing else."""
    hand = Hand(1, target_ranks=2, min_ranks=2)
    hand.tick(640.0)
    assert hand.co.finished
    again = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), 1.0)
    assert isinstance(again.take_ready().effects[-1], fx.Finish) and again.poll_timeout() is None


def test_a_rank_of_a_collective_is_dead_with_its_link() -> None:
    """M-17, W-20: without a grace nobody waits for it, and the others are freed from the call with it at once."""
    hand = joint(3)
    effects = lose(hand, 2)

    assert [told.dead_rank for told in messages(effects, m.DeclareDead)] == [2, 2]
    assert hand.co.peers[2].phase == PeerPhase.DEAD and messages(effects, m.RequestSessionId)


def test_a_rank_that_knows_more_than_the_journal_moves_the_run_forward() -> None:
    """M-45, I7: version and base of the highest claim; everyone begins anew as an observer and stands on what that rank
    still holds; the cycle number it has seen is never used again (I8)."""
    hand = Hand(2, samples=400).form()
    hand.window()
    restarted(hand)
    knock(hand, claim(hand, 1, generation=1), rank=1)
    assert hand.co.peers[1].attached
    ahead = claim(hand, 0, generation=1, version=5, cycle=7, global_step=99, control_seq=900, report_seq=900)
    effects = knock(hand, ahead)
    cycle = hand.co.cycle
    assert (cycle.version, cycle.number, cycle.global_step) == (5, 7, 99) and not hand.co.voters
    assert admitted(effects).incarnation == 2 and len(named(effects, "Died")) == 2
    assert alerts(effects, "accounting")[0].critical
    [order] = messages(hand.effects, m.RequestState, 0)
    assert order.joiner_rank == m.NO_RANK and not hand.co.save_issued
    hand.sequence.clear(), hand.counted.clear()
    effects = hand.feed(ev.RoundProgress(m.transfer_key(2, order.transfer_id), 0, 8, True))
    [opened] = [e for e in effects if isinstance(e, fx.OpenRound) and not e.key.is_transfer]
    assert opened.key.cycle == 8 and opened.members == () and [r for r, _ in opened.observers] == [0]
    for say in (hand.ready, lambda r, **g: hand.reduce((), ()), hand.ack):
        say(0, generation=2)
    assert hand.co.voters == [0] and cycle.version == 5 and hand.co.run.phase == RunPhase.TRAINING


def test_a_number_that_was_given_twice_is_no_message_that_was_handled() -> None:
    """M-45, N-9: the lost end of the journal held a message to rank 1, who has handled it; its number went to another
    one meanwhile, which waits for rank 1 to come back. That was taken for handled, and the cycle waited for an answer
    until its ceiling. Found by `paceline simulate --ranks 8 --seed 3423`."""
    hand = Hand(2, link_grace_s=GRACE_S).form()
    restarted(hand)
    known = hand.co.peers[1].control_seq
    hand.co.tell((1,), m.SetGlobalStep, version=0, global_step=0)
    effects = knock(hand, claim(hand, 1, generation=1, control_seq=known + 1), 1)

    assert [died["rank"] for died in named(effects, "Died")] == [1]
    assert admitted(effects).incarnation == 2


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_the_pauses_between_two_tries_grow_and_differ() -> None:
    """M-40: 0.5, 1, 2, ... 10, each up to 20 % longer, the same in every process, another one at every rank."""
    for rank in range(3):
        pauses = [pause_s(RUN, rank, attempt) for attempt in range(9)]
        for pause, base in zip(pauses, (0.5, 1, 2, 4, 8, 10, 10, 10, 10), strict=True):
            assert base <= pause <= 1.2 * base
        assert all(a != b for a, b in pairwise(pauses))
    assert len({pause_s(RUN, rank, 0) for rank in range(50)}) == 50
    assert pause_s(b"r" * 16, 1, 0) == pause_s(b"r" * 16, 1, 0)


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_what_a_rank_does_without_a_link_is_scaled(scale: float) -> None:
    """M-3: the pauses between two tries, and how long a fenced rank looks for a seat."""
    rank = Rank(WorkerPhase.TRAINING, reconnect_window_s=1.0, time_scale=scale)
    orders = rank.feed(ev.Received(m.Fenced(generation=1, incarnation=2, cycle=3, why="stale")))
    [dial] = [order for order in orders if isinstance(order, fx.Dial)]
    assert dial.after_s == pause_s(RUN, 1, 0) * scale
    assert rank.worker.look_until == rank.now + 30.0 * scale


def test_a_rank_goes_on_with_the_plan_in_hand_and_resends_what_was_lost() -> None:
    """W-21, N-9, I53: nothing leaves while the link is down; then exactly what the coordinator lacks, as it was."""
    rank = Rank(WorkerPhase.TRAINING, reconnect_window_s=60.0)
    rank.step()
    known = rank.worker.report_seq - 1  # the last one was lost on the wire
    rank.feed(ev.LinkLost(cause="reset"))
    before = rank.worker.claim()
    orders = [*rank.step(), *rank.step()]
    assert not [o for o in orders if isinstance(o, fx.Reporting)]
    after = rank.worker.claim()
    assert before is not None and after is not None and after.report_seq == before.report_seq + 2 == known + 3
    welcome = m.Welcome(rank=1, incarnation=1, generation=2, status=m.WelcomeStatus.RESUMED, control_seq=0,
                        report_seq=known + 1, config={})  # fmt: skip
    again = [o.report for o in rank.feed(ev.Received(welcome)) if isinstance(o, fx.Reporting)]
    assert [r.report_seq for r in again] == [known + 2, known + 3] and {r.generation for r in again} == {1}
    assert [type(r) for r in again] == [m.Batch, m.Batch]
    [mine] = [o.report for o in rank.step() if isinstance(o, fx.Reporting)]
    assert (mine.report_seq, mine.generation) == (known + 4, 2)


def test_a_rank_forgets_what_is_confirmed_and_notices_a_silent_coordinator_once() -> None:
    """N-9, W-22: any message confirms; silence is a lost link, and one that is being looked for is not lost again."""
    rank = Rank(WorkerPhase.TRAINING, reconnect_window_s=60.0)
    rank.step()
    rank.control(m.Beacon, run_phase=1, cycle_phase=0, cycle=0, report_seq=rank.worker.report_seq)
    assert len(rank.worker.reports) == 0
    assert [type(o) for o in rank.pass_time(31.0) if not reports([o], m.Heartbeat)] == [fx.Publish, fx.Dial]
    rank.now += 1.0
    assert rank.feed(ev.Tick()) == [] and rank.worker.explain()
