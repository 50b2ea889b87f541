"""Old ways of averaging and of ending, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

from paceline.core import finish, gates, ladder, membership
from paceline.core import messages as m
from paceline.core import peer as peers
from paceline.core.coordinator import Coordinator
from paceline.core.cycle import Cycle
from paceline.core.dispatch.desk import Desk
from paceline.core.effects import Alert
from paceline.core.engine import Kind
from paceline.core.phases import CyclePhase
from paceline.core.run import Run

from .mutants import OldWays, Patch, around, change_rows, raise_for_a_bad_link

OLD_WAYS = OldWays()

# --- the cycle -----------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.1 #1")
def phase_before_finish(patch: Patch) -> None:
    """The cycle counts as over before it is finished."""

    def change(finish_it: Any, cycle: Cycle, event: object) -> None:
        cycle.phase = CyclePhase.IDLE
        finish_it(cycle, event)

    around(patch, Cycle, "finish", change)


@OLD_WAYS.old_way("17.1 #2")
def fan_out_stops_at_a_bad_link(patch: Patch) -> None:
    """An Update that cannot be sent ends the loop over the ranks."""
    raise_for_a_bad_link(patch, m.Update)


@OLD_WAYS.old_way("17.2 #13")
def throttle_to_a_bad_link_ends_the_tick(patch: Patch) -> None:
    """A throttle that cannot be sent raises."""
    raise_for_a_bad_link(patch, m.Throttle)


@OLD_WAYS.old_way("17.1 #3")
def plans_sized_before_steps_fall(patch: Patch) -> None:
    """Plans are composed with the steps of the window that is over."""
    waiting: list[tuple[Any, ...]] = []
    settle = finish._settle_ledger
    patch.setattr(finish, "_settle_ledger", lambda *arguments: waiting.append(arguments))

    def change(fan_out: Any, *arguments: Any) -> None:
        fan_out(*arguments)
        settle(*waiting.pop())

    around(patch, finish, "_fan_out", change)


@OLD_WAYS.old_way("17.1 #4")
def ack_moves_the_step_count(patch: Patch) -> None:
    """An ack stands in for steps: the step count of the rank follows it."""

    def change(record: Any, cycle: Cycle, event: m.SyncAck) -> None:
        record(cycle, event)
        peer = cycle.co.peers[event.rank]
        peer.last_step_count = max(peer.last_step_count, event.step_count)

    around(patch, Cycle, "record_ack", change)


@OLD_WAYS.old_way("17.1 #5")
def gate_on_wall_time(patch: Patch) -> None:
    """A rank has its quota when its window has lasted long enough."""

    def change(fires: Any, cycle: Cycle, event: object) -> bool:
        slow = max((cycle.co.peers[rank].window.wall_ms for rank in cycle.co.voters), default=0.0)
        return bool(fires(cycle, event)) and (cycle.forming or slow >= cycle.co.balancer.anchor * 1.0)

    around(patch, Cycle, "fires", change)


@OLD_WAYS.old_way("17.1 #8")
def evidence_counts_as_a_step(patch: Patch) -> None:
    """What a rank sends for an average is counted like a batch."""

    def change(record: Any, cycle: Cycle, event: m.SyncAck) -> None:
        record(cycle, event)
        cycle.global_step += 1

    around(patch, Cycle, "record_ack", change)


@OLD_WAYS.old_way("17.1 #9")
def nobody_is_parked(patch: Patch) -> None:
    """A run of whole shares averages without parking who could go on."""

    def change(tell: Any, co: Coordinator, ranks: Any, message: type[m.Control], *own: Any, **fields: Any) -> None:
        if message is not m.Throttle:
            tell(co, ranks, message, *own, **fields)

    around(patch, Coordinator, "tell", change)


@OLD_WAYS.old_way("17.1 #17")
def silent_while_pending(patch: Patch) -> None:
    """No beacon leaves while an average is waited for."""

    def change(beacon: Any, co: Coordinator) -> None:
        if co.cycle.pending:
            co.next_beacon = max(co.next_beacon, co.now + co.config.beacon_s)
        else:
            beacon(co)

    around(patch, Coordinator, "beacon", change)


@OLD_WAYS.old_way("17.2 #2")
def later_steps_move_the_clock(patch: Patch) -> None:
    """A step while the cycle is pending counts as the end of its reduce."""

    def change(count: Any, peer: peers.Peer, event: m.Batch) -> None:
        count(peer, event)
        if peer.co.cycle.pending:
            peer.co.cycle.last_ack_at = peer.co.now

    around(patch, peers.Peer, "count_batch", change)


@OLD_WAYS.old_way("17.2 #3")
def evidence_without_a_number(patch: Patch) -> None:
    """An ack counts for whatever cycle is pending."""

    def change(current: Any, cycle: Cycle, event: Any) -> bool:
        return isinstance(event, m.SyncAck) or bool(current(cycle, event))

    around(patch, Cycle, "round_current", change)


@OLD_WAYS.old_way("17.2 #4")
def rounds_by_position(patch: Patch) -> None:
    """The next result of the averager is taken for the round that is open."""

    def change(current: Any, cycle: Cycle, event: Any) -> bool:
        return not isinstance(event, m.Report) or bool(current(cycle, event))

    around(patch, Cycle, "round_current", change)


@OLD_WAYS.old_way("17.2 #5")
def a_step_is_evidence(patch: Patch) -> None:
    """A batch after the arm settles what its rank owes."""

    def change(count: Any, peer: peers.Peer, event: m.Batch) -> None:
        count(peer, event)
        if peer.co.cycle.owes(peer.rank):
            peer.acked = True
            peer.co.cycle.owing -= 1
            peer.co.urgent = True

    around(patch, peers.Peer, "count_batch", change)


@OLD_WAYS.old_way("17.2 #6")
def a_stall_is_a_rest(patch: Patch) -> None:
    """After a stall the phase is idle, and nothing says that it is over."""
    change_rows(
        patch, "cycle", lambda row: row.source == CyclePhase.PENDING and row.event == "Ceiling", target=CyclePhase.IDLE
    )
    patch.setattr(Run, "begin_save", lambda *arguments: None)


@OLD_WAYS.old_way("17.2 #7")
def a_lost_rank_ends_averaging(patch: Patch) -> None:
    """When a rank is lost in a round, the averager is done for."""

    def change(gone: Any, cycle: Cycle, rank: int) -> None:
        gone(cycle, rank)
        cycle.co.condemn(m.SaveReason.REDUCE_STALL, "the averager is gone")

    around(patch, Cycle, "member_gone", change)


# --- the gate ------------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.2 #8")
def a_lost_request_waits_for_the_ceiling(patch: Patch) -> None:
    """Nobody is asked twice."""
    patch.setattr(ladder, "_nudge", lambda *what: None)


@OLD_WAYS.old_way("17.1 #16")
def no_work_is_no_excuse(patch: Patch) -> None:
    """A rank that has nothing to do is waited for."""
    patch.setattr(Desk, "quiesced", lambda desk, ranks: set())


@OLD_WAYS.old_way("17.2 #10")
def a_finished_share_is_no_excuse(patch: Patch) -> None:
    """In a run of whole shares every rank has to step before each average."""

    def change(quiesced: Any, desk: Desk, ranks: Any) -> Any:
        return quiesced(desk, ranks) if desk.co.config.is_progressive else set()

    around(patch, Desk, "quiesced", change)


@OLD_WAYS.old_way("17.1 #15")
def a_rank_without_a_slot_blocks(patch: Patch) -> None:
    """The last window gives a rank nothing and waits for it."""

    def change(quiesced: Any, desk: Desk, ranks: Any) -> Any:
        window, desk.window = desk.window, None
        try:
            return quiesced(desk, ranks)
        finally:
            desk.window = window

    around(patch, Desk, "quiesced", change)


@OLD_WAYS.old_way("17.1 #15")
def the_last_window_outlives_its_counts(patch: Patch) -> None:
    """The plan of the last window is kept although the counts have changed."""

    def change(refresh: Any, desk: Desk, *, finishing: bool = False) -> None:
        if desk.window is None or finishing:
            refresh(desk, finishing=finishing)

    around(patch, Desk, "refresh_window", change)


@OLD_WAYS.old_way("17.2 #1")
def parked_and_still_owing(patch: Patch) -> None:
    """A rank that the lead limit parks has to reach its quota all the same."""

    def change(count: Any, co: Coordinator) -> None:
        count(co)
        for rank in co.voters:
            peer = co.peers[rank]
            if peer.throttled == m.ThrottleReason.LEAD and peer.steps < peer.quota and peer.satisfied:
                peer.satisfied = False
                co.short += 1

    around(patch, gates, "count_gate", change)


# --- the end -------------------------------------------------------------------------------------------------------


@OLD_WAYS.old_way("17.1 #18")
def shutdown_while_pending(patch: Patch) -> None:
    """A stop is obeyed at once, whatever is in flight."""

    def change(done: Any, run: Run, event: object) -> bool:
        return run.stop_number is not None or bool(done(run, event))

    around(patch, Run, "work_done", change)


@OLD_WAYS.old_way("17.1 #19")
def the_end_before_the_last_steps(patch: Patch) -> None:
    """The end is decided although steps that were reported are not merged."""

    def change(done: Any, run: Run, event: object) -> bool:
        idle = run.co.cycle.phase == CyclePhase.IDLE
        return (idle and run.stop_number is not None) or bool(done(run, event))

    around(patch, Run, "work_done", change)
    patch.setattr(Cycle, "fires", lambda cycle, event: cycle.forming and cycle.co.run.window_closed)


@OLD_WAYS.old_way("17.1 #21")
def the_departed_die_as_well(patch: Patch) -> None:
    """A rank that has left is declared dead when its link closes."""
    change_rows(
        patch, "peer", lambda row: row.event in ("Lost", "LinkLost") and row.kind is Kind.IGNORE and not row.guards,
        kind=Kind.ACCEPT, effects=("die",),
    )  # fmt: skip


@OLD_WAYS.old_way("17.1 #22")
def an_error_says_goodbye(patch: Patch) -> None:
    """A rank that fails announces a clean end."""
    change_rows(
        patch, "worker", lambda row: row.event == "TrainingFailed" and row.kind is Kind.ACCEPT,
        effects=("say_goodbye", "fail_training"),
    )  # fmt: skip


@OLD_WAYS.old_way("17.1 #23")
def a_handle_is_a_life(patch: Patch) -> None:
    """As long as the coordinator has a record of a rank, the rank is there."""
    patch.setattr(Run, "everyone_gone", lambda run, event: not run.co.peers)


@OLD_WAYS.old_way("17.1 #39")
def red_alert_at_a_clean_end(patch: Patch) -> None:
    """A send that fails is always an alarm."""

    def change(failed: Any, co: Coordinator, event: Any) -> None:
        failed(co, event)
        co.emit(Alert("send_failed", f"rank {event.token[0]}", "a message could not be sent", critical=True))

    around(patch, membership, "send_failed", change)
