"""Old ways of averaging in place, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import in_place
from paceline.core import messages as m
from paceline.core.cycle import Cycle
from paceline.core.run import Run
from paceline.core.sessions import Sessions
from paceline.core.worker_collective import Call, WorkerCollective

from .mutants import OldWays, Patch, around

OLD_WAYS = OldWays()


@OLD_WAYS.old_way("17.1 #7")
def a_call_is_no_step(patch: Patch) -> None:
    """The local step count stays where it is in a collective."""

    def change(end: Any, worker: WorkerCollective, event: ev.CollectiveDone) -> None:
        end(worker, event)
        worker.local_step -= 1

    around(patch, WorkerCollective, "end_call", change)


@OLD_WAYS.old_way("17.1 #8")
def a_call_is_a_batch(patch: Patch) -> None:
    """What proves that a rank was in the call is one more step of it."""

    def change(record: Any, cycle: Cycle, event: m.SyncAck) -> None:
        record(cycle, event)
        cycle.global_step += 1

    around(patch, Cycle, "record_ack", change)


@OLD_WAYS.old_way("17.1 #18")
def shutdown_over_a_pending_call(patch: Patch) -> None:
    """A stop that finds nobody else to wait for ends the run at once."""

    def change(done: Any, run: Run, event: object) -> bool:
        return run.stop_number is not None or done(run, event)

    around(patch, Run, "work_done", change)


@OLD_WAYS.old_way("17.1 #26")
def the_handle_of_the_first_call(patch: Patch) -> None:
    """What is aborted is the session in which the first call ran."""

    def change(abort: Any, worker: WorkerCollective, event: object) -> None:
        worker.outbox.append(fx.AbortCollective(1))

    around(patch, WorkerCollective, "abort_call", change)


@OLD_WAYS.old_way("17.1 #36")
def something_follows_the_call(patch: Patch) -> None:
    """The consensus is written to the parameters once more after the call."""

    def change(take: Any, worker: WorkerCollective, event: m.Update) -> None:
        take(worker, event)
        if worker.settings.collective:
            worker.outbox.append(fx.Adopt(event.cycle, "overwrite", False, event.outcome))

    around(patch, WorkerCollective, "take_over", change)


@OLD_WAYS.old_way("17.2 #3")
def any_ack_of_the_cycle_counts(patch: Patch) -> None:
    """Evidence of an attempt that was given up fills the gate of the next one."""
    patch.setattr(Cycle, "round_current", lambda cycle, event: event.cycle == cycle.number)


@OLD_WAYS.old_way("17.2 #4")
def calls_are_matched_by_position(patch: Patch) -> None:
    """A rank runs the call that it was asked for next, whatever has become of it meanwhile."""

    def change(join: Any, worker: WorkerCollective, event: m.SyncNow) -> None:
        join(worker, event)
        assert worker.call is not None
        worker.call.attempt = event.attempt

    around(patch, WorkerCollective, "join_call", change)


@OLD_WAYS.old_way("W-14")
def a_success_stays(patch: Patch) -> None:
    """A rank whose call succeeded takes the average of it into the retry."""

    def change(put_back: Any, worker: WorkerCollective, call: Call) -> None:
        steps = worker.steps_since_avg
        put_back(worker, call)
        worker.steps_since_avg = call.steps = steps

    around(patch, WorkerCollective, "_put_back", change)


@OLD_WAYS.old_way("W-14")
def steps_before_the_update(patch: Patch) -> None:
    """A rank trains on as soon as its call has returned, as it may where no call is ever taken back."""

    def change(acknowledge: Any, worker: WorkerCollective, event: object) -> None:
        acknowledge(worker, event)
        if worker.parked:
            worker.parked = False
            worker.outbox.append(fx.Unpark())

    around(patch, WorkerCollective, "acknowledge_call", change)


@OLD_WAYS.old_way("M-19")
def the_dead_gave_nothing(patch: Patch) -> None:
    """What a dead rank held returns, although the consensus may have it."""
    patch.setattr(in_place, "set_aside", lambda cycle, peer: None)


@OLD_WAYS.old_way("M-19")
def the_dead_gave_what_it_had_reported(patch: Patch) -> None:
    """The steps in the book are those in the consensus, whatever the acks say."""

    def change(accepted: Any, cycle: Cycle) -> Any:
        merged, refused, realized = accepted(cycle)
        for rank in cycle.doubtful:
            runs = cycle.co.book.limbo.get(rank, [])
            merged[rank] = sum(run.count for run in runs if run.base_cycle >= 0)
        return merged, refused, realized

    around(patch, in_place, "accepted", change)


@OLD_WAYS.old_way("G-1")
def armed_without_a_session(patch: Patch) -> None:
    """An average is begun while the session in which it could happen is on its way."""
    patch.setattr(Sessions, "current", lambda sessions: bool(sessions.members))


@OLD_WAYS.old_way("M-31")
def anybody_may_make_the_id(patch: Patch) -> None:
    """The first answer is taken, whoever gives it."""
    patch.setattr(Sessions, "awaits", lambda sessions, event: sessions.renewal is not None)


@OLD_WAYS.old_way("M-32")
def the_generator_is_waited_for(patch: Patch) -> None:
    """A rank that was asked for an id has all the time it wants."""
    patch.setattr(Sessions, "deadline", property(lambda sessions: None))
