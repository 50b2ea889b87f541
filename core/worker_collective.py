"""What the worker does inside a collective, and about communicator sessions (protocol W-14, W-20, R-13, R-15).

The collective flavour has no copy that lies beside the live parameters: the average appears in them, inside one call of
all ranks. So a rank that has come back from the call stands where nobody can follow it yet: it holds a consensus that
counts only when the coordinator says so. Until the `Update` of that cycle it takes no step, and keeps what it needs to
go back: a peer may have failed in the very call that succeeded here, and then the cycle is repeated with who is left.

    SyncNow --> [BuildSession, ShareState] RunCollective --> CollectiveDone --> SyncAck, armed actions --> Update
                                                 |                |
                                          CollectiveFailed        '-- a retry: put everything back first
                                                 '--> RoundFailed, parked until NewSession names the next attempt

A communicator, once a member of it is gone, is of no use to anyone: whoever is inside is freed by an abort, and the
cycle goes on in a new session. `session` is the newest one the rank was told of, `built` the one its training process
was ordered to enter. It enters a new one only together with a call, because all members have to take part in that.
"""

from __future__ import annotations

from typing import Any

from . import messages as m
from .effects import AbortCollective, BuildSession, MakeSessionId, Publish, RunCollective, ShareState, Stop
from .events import ActionDone, CollectiveDone, CollectiveFailed, SessionIdMade
from .phases import WorkerPhase
from .roles import CHECKPOINT, EVALUATE
from .values import state
from .worker_orders import WorkerOrders

__all__ = ["NO_SESSION", "Call", "WorkerCollective"]

NO_SESSION = 0
"""Below every session number."""
BETWEEN_CALLS = (WorkerPhase.JOINING, WorkerPhase.THROTTLED)
"""Where a rank is whose call has failed, and that waits for the session of the next one (R-15)."""


@state
class Standing:
    """Where a rank stood before a call: what an average that does not count takes it back to (W-14)."""

    version: int
    global_step: int
    cycle: int
    armed: dict[str, Any]
    served: dict[str, int]


@state
class Call:
    """The part of this rank in the collective of one cycle. `generation` is that of the request, since attempts count
    from 0 again after a restart (M-43); `version` is the one it creates, `base` the schedule base before it, `steps`
    the own contribution. `ended` is the success of the newest attempt, `before` where the rank stood until then,
    `acting` the callbacks that began on its consensus, as (kind, decision), `held` the results of those that are over:
    they count when the consensus does."""

    cycle: int
    generation: int
    attempt: int
    session_id: int
    version: int
    base: int
    steps: int
    observer: bool
    ended: CollectiveDone | None = None
    before: Standing | None = None
    acting: tuple[tuple[str, int], ...] = ()
    held: tuple[ActionDone, ...] = ()

    @property
    def key(self) -> tuple[int, int, int]:
        """Cycle, generation and attempt: of two requests the later one has the higher key (W-10)."""
        return self.cycle, self.generation, self.attempt

    @property
    def outcome(self) -> m.Outcome:
        """What became of the contribution. Nobody moved in cycle 0, and yet all take over its state (M-6)."""
        realized = self.ended is not None and self.ended.total_steps > 0
        if self.observer:
            return m.Outcome.OBSERVER if realized or self.cycle == 0 else m.Outcome.UNREALIZED
        if self.ended is not None and self.ended.refusal is not None:
            return m.Outcome.REFUSED
        return m.Outcome.MERGED if realized else m.Outcome.UNREALIZED

    @property
    def merged(self) -> int:
        """Steps that are in the consensus."""
        return self.steps if self.outcome == m.Outcome.MERGED else 0


@state
class WorkerCollective(WorkerOrders):
    """Guards and effects of `table_worker_collective.py`, over the plans of `WorkerOrders`. `aborted` is the newest
    session whose calls were aborted, `void` are callbacks whose consensus was taken back while they ran."""

    session: m.NewSession | None = None
    built: int = NO_SESSION
    aborted: int = NO_SESSION
    call: Call | None = None
    session_until: float | None = None
    departing: bool = False
    void: tuple[tuple[str, int], ...] = ()

    # --- sessions (M-30, M-31) -------------------------------------------------------------------------------------

    def forget_session(self) -> None:
        """A new life is in no session and in no call, whatever its training process still holds (W-21). Of the dead it
        has heard by the old one: a coordinator that has lost that may give their numbers again (M-45)."""
        self.session = self.call = self.session_until = None
        self.departing, self.void, self.dead_peers = False, (), ()

    def in_place(self, event: object) -> bool:
        """This run averages by collectives (C-19)."""
        return self.settings.collective

    def lacks_session(self, event: Any) -> None:
        """Loud and harmless: without a collective averager there is no communicator to renew."""
        self.outbox.append(Publish("session_refused", {"session": event.session_id, "why": "no collective averager"}))

    def make_session_id(self, event: m.RequestSessionId) -> None:
        """Asked even inside a call: the others are waiting (W-20)."""
        self.outbox.append(MakeSessionId(event.session_id))

    def tell_session_id(self, event: SessionIdMade) -> None:
        """The answer to RequestSessionId (M-31)."""
        self.report(m.SessionIdGenerated, session_id=event.session_id, uid=event.uid)

    def session_old(self, event: m.NewSession) -> bool:
        """Not newer than the one this rank knows."""
        return self.session is not None and event.session_id <= self.session.session_id

    def stage_session(self, event: m.NewSession) -> None:
        """Entered with the next call (W-20)."""
        self.session, self.session_until = event, None

    def retries_call(self, event: m.NewSession) -> bool:
        """It repeats the cycle in which this rank takes part (R-15)."""
        return self.call is not None and event.cycle == self.call.cycle

    def retries_cycle(self, event: m.NewSession) -> bool:
        """It repeats a cycle that began before this rank was here (M-31)."""
        return event.cycle is not None

    def session_torn(self, event: object) -> bool:
        """A member of the newest session is known to be gone: nobody would ever come out of a call in it."""
        return any(member in self.dead_peers for member in self._session.members)

    @property
    def _session(self) -> m.NewSession:
        assert self.session is not None, "guards let nothing pass that needs a session before there is one"
        return self.session

    @property
    def _call(self) -> Call:
        assert self.call is not None, "guards let nothing pass that needs a call before there is one"
        return self.call

    # --- SyncNow (W-14) --------------------------------------------------------------------------------------------

    def lacks_collective(self, event: m.SyncNow) -> None:
        """A rank that cannot average must go, not park (R-18): say so, not retryable."""
        self.report(m.RoundFailed, cycle=event.cycle, attempt=event.attempt, round=m.RoundKind.PARAMS,
                    cause="this rank has no collective averager", retryable=False)  # fmt: skip

    def call_over(self, event: m.SyncNow) -> bool:
        """Of a cycle whose Update is handled."""
        return event.cycle <= self.committed

    def call_ended(self, event: m.SyncNow) -> bool:
        """The nudge, after the call succeeded here (M-13)."""
        call = self.call
        same = call is not None and (event.cycle, event.generation, event.attempt) == call.key
        return same and self._call.ended is not None

    def call_known(self, event: m.SyncNow) -> bool:
        """The nudge of an attempt that failed here, or is superseded: what it asks for was tried."""
        call = self.call
        return call is not None and (event.cycle, event.generation, event.attempt) <= call.key

    def session_unknown(self, event: m.SyncNow) -> bool:
        """A session that nobody told this rank of (N-2)."""
        return self.session is None or event.session_id > self.session.session_id

    def join_call(self, event: m.SyncNow) -> None:
        """From here to the Update no step (W-14). NewSession overtakes what waits for a drain point (W-20), so the
        attempt may be a later one than that of the request."""
        session = self._session
        observer = self.phase == WorkerPhase.JOINING
        request = session if session.cycle == event.cycle else event
        self.call = Call(
            cycle=event.cycle, generation=request.generation, attempt=request.attempt, session_id=session.session_id,
            version=event.version, base=event.global_step, steps=0 if observer else self.steps_since_avg,
            observer=observer,
        )  # fmt: skip
        if not observer:
            self.throttle = max(self.throttle, event.cycle)
            self._park()

    def join_retry(self, event: m.NewSession) -> None:
        """A newcomer takes part in a cycle that is repeated; version and base come with the Update (M-31)."""
        self.call = Call(cycle=event.cycle or 0, generation=event.generation, attempt=event.attempt,
                         session_id=event.session_id,
                         version=self.version, base=self.global_step, steps=0, observer=True)  # fmt: skip
        self._run(restore=False)

    def run_call(self, event: object) -> None:
        """Enter the newest session if need be, then the call."""
        self._run(restore=False)

    def rejoin_call(self, event: object) -> None:
        """R-15, W-14: the same cycle in a new session; what succeeded here alone is put back first."""
        call, session = self._call, self._session
        restore = call.ended is not None
        if restore:
            self._put_back(call)
        call.generation, call.attempt, call.session_id = session.generation, session.attempt, session.session_id
        self._run(restore=restore)

    def _run(self, *, restore: bool) -> None:
        session, call = self._session, self._call
        self.session_until = None
        if self.built != session.session_id:
            self.built = session.session_id
            self.outbox.append(BuildSession(
                session.session_id, session.uid, session.new_rank, session.new_world_size, session.members
            ))  # fmt: skip
            if session.state_from != m.NO_RANK:
                gives = session.state_from == self.settings.rank
                # A source without a vote is the one that the run is built on, perhaps anew (M-6, M-45).
                self.outbox.append(ShareState(
                    session.session_id, session.state_from, adopts=call.observer and not gives,
                    put_back=call.observer and gives,
                ))  # fmt: skip
        self.outbox.append(RunCollective(
            call.cycle, call.attempt, session.session_id, call.steps, call.observer, restore,
            check=call.cycle == 0 and self.checks,
        ))  # fmt: skip

    def _put_back(self, call: Call) -> None:
        """The average of this call does not count: everything is as before it, but the local step, which never falls
        (W-1). Callbacks that saw its consensus run again, and what they say of it is dropped."""
        before = call.before
        assert before is not None, "a call that has ended knows where it began"
        self.version, self.global_step, self.cycle = before.version, before.global_step, before.cycle
        self.armed, self.served = before.armed, before.served
        if not call.observer:
            self.steps_since_avg = call.steps
        finished = [(result.kind, result.decision_id) for result in call.held]
        self.void += tuple(action for action in call.acting if action not in finished)
        self.asked = tuple(asked for asked in self.asked if (EVALUATE, asked.schedule_id) not in call.acting)
        call.ended = call.before = None
        call.acting, call.held = (), ()

    # --- inside (R-13, R-15) ---------------------------------------------------------------------------------------

    def peer_of_call(self, event: m.DeclareDead) -> bool:
        """The dead rank is a member of the session in which this rank waits."""
        return (event.dead_rank, event.dead_incarnation) in self._session.members

    def abort_call(self, event: object) -> None:
        """Free this rank. It is the session of now that is aborted, whichever the call began in (W-20)."""
        if self.aborted != self.built:
            self.aborted = self.built
            self.outbox.append(AbortCollective(self.built))

    def call_current(self, event: CollectiveDone | CollectiveFailed) -> bool:
        """It is the call that this rank is in."""
        call = self._call
        return (event.cycle, event.attempt) == (call.cycle, call.attempt) and event.session_id in (
            None, call.session_id
        )  # fmt: skip

    def retry_staged(self, event: object) -> bool:
        """While it was inside, the coordinator has begun the next attempt (R-15)."""
        call, session = self._call, self._session
        return session.cycle == call.cycle and (session.generation, session.attempt) > (call.generation, call.attempt)

    def observes(self, event: object) -> bool:
        """It has no vote yet (M-23)."""
        return self._call.observer

    def end_call(self, event: CollectiveDone) -> None:
        """W-14, one act. Nothing can step inside, so zero steps is exact. The extra local step makes the ack exceed the
        count of the arm also where no batch follows."""
        call = self._call
        call.before = Standing(self.version, self.global_step, self.cycle, dict(self.armed), dict(self.served))
        call.ended = event
        self.in_mid_step = False
        self.local_step += 1
        if call.observer:
            return
        self.cycle, self.shipped = call.cycle, 0
        if call.outcome != m.Outcome.UNREALIZED:
            self.steps_since_avg = 0
        if event.total_steps > 0:
            self.version, self.global_step = call.version, call.base + event.total_steps

    def acknowledge_call(self, event: object) -> None:
        """The only evidence of a cycle (C-6), said again when asked again."""
        call = self._call
        done = call.ended
        assert done is not None, "guards let only a call that has ended be acknowledged"
        self.report(
            m.SyncAck, cycle=call.cycle, attempt=call.attempt, step_count=self.local_step, shipped_steps=call.merged,
            total_steps=done.total_steps, outcome=call.outcome, refusal=done.refusal, divergence=done.divergence,
            pre_norm=done.pre_norm, post_norm=done.post_norm, digest=done.digest, state_complete=done.state_complete,
        )  # fmt: skip

    def serve_call(self, event: object) -> None:
        """The armed actions, after the ack and before any step: an evaluation must not hold everyone's cycle."""
        before = self.served.copy()
        self.serve_armed()
        kinds = {"Checkpoint": CHECKPOINT, "ExecuteEvalCallback": EVALUATE}
        self._call.acting = tuple(
            (kinds[name], decision) for name, decision in self.served.items()
            if name in kinds and before.get(name) != decision
        )  # fmt: skip

    def fail_call(self, event: CollectiveFailed) -> None:
        """Only the coordinator decides about a retry (N-1, R-18)."""
        self.round_broken(event)

    def hopeless(self, event: CollectiveFailed) -> bool:
        """This rank cannot average at all (R-18)."""
        return not event.retryable

    def stop_unable(self, event: CollectiveFailed) -> None:
        """It must go, not park. No Exiting: the link that closes is the death report (W-24)."""
        self._let_go()
        self.outbox.append(Stop("failed", f"this rank cannot average: {event.cause}"))

    # --- between two sessions (R-15) -------------------------------------------------------------------------------

    def await_session(self, event: object) -> None:
        """The next session is waited for, unless it is here already."""
        if self._session.session_id == self._call.session_id:
            self.session_until = self.last_now + self.settings.session_wait_s

    @property
    def session_deadline(self) -> float | None:
        """When the wait for a session ends. Of too few ranks no session is made, and the coordinator may wait long for
        others to come (M-21): then the wait is its business. Without a link none can come (W-21), and who leaves waits
        for none."""
        if self.session_until is None or self.session is None or not self.linked or self.phase not in BETWEEN_CALLS:
            return None
        left = [member for member in self.session.members if member not in self.dead_peers]
        return self.session_until if len(left) >= self.settings.min_ranks else None

    def give_up_session(self, event: object) -> None:
        """A rank that cannot average must go (R-18). No Exiting: the link that closes is the death report (W-24)."""
        call, waited = self._call, self.settings.session_wait_s
        text = f"no new session came within {waited:g} s after the collective of cycle {call.cycle} had failed"
        self.report(m.RoundFailed, cycle=call.cycle, attempt=call.attempt, round=m.RoundKind.PARAMS, cause=text,
                    retryable=False)  # fmt: skip
        self._let_go()
        self.outbox.append(Stop("failed", f"{text}; the coordinator's log says why"))

    # --- Update (W-12) ---------------------------------------------------------------------------------------------

    def adopted_steps(self, event: m.Update) -> int | None:
        """In this flavour what the Update is about is in the live parameters already."""
        if not self.settings.collective:
            return super().adopted_steps(event)
        call = self.call
        if call is None or call.ended is None or (call.cycle, call.attempt) != (event.cycle, event.attempt):
            return None
        return call.merged

    def take_over(self, event: m.Update) -> None:
        """Nothing is left to adopt; what the call changed is for good, and what callbacks found may be told."""
        if not self.settings.collective:
            super().take_over(event)

    def serve_adopted(self) -> None:
        """W-14 has ordered the armed actions; their results count now."""
        if not self.settings.collective:
            super().serve_adopted()
            return
        call, self.call = self.call, None
        for result in () if call is None else call.held:
            self.report_result(result)

    @property
    def steps_booked(self) -> int:
        """W-9: what the coordinator's book has of this rank once the report lane is empty. What a call has averaged
        stays booked until its Update."""
        call = self.call
        taken = call is not None and call.before is not None and call.outcome in (m.Outcome.MERGED, m.Outcome.REFUSED)
        return self.steps_since_avg + (self._call.steps if taken else 0)

    @property
    def version_to_save(self) -> int:
        """An average that the coordinator does not know of is saved under the version it knows: its coverage is that of
        the version, and may be less than what the file holds, never more (K-10)."""
        uncommitted = self.call is not None and self.call.before is not None
        return self._call.before.version if uncommitted and self._call.before is not None else self.version

    # --- results of callbacks --------------------------------------------------------------------------------------

    def result_void(self, event: ActionDone) -> bool:
        """Of a consensus that was taken back; the callback runs again."""
        return (event.kind, event.decision_id) in self.void

    def drop_result(self, event: ActionDone) -> None:
        """The training process obeys in order, so the first end is that of the first run."""
        void = list(self.void)
        void.remove((event.kind, event.decision_id))
        self.void = tuple(void)

    def result_early(self, event: ActionDone) -> bool:
        """The consensus that the callback saw does not count yet."""
        return self.call is not None and (event.kind, event.decision_id) in self.call.acting

    def hold_result(self, event: ActionDone) -> None:
        """Told with the Update."""
        self._call.held += (event,)

    def report_result(self, event: ActionDone) -> None:
        """What a callback found, on a consensus that counts (K-9, K-16)."""
        if event.kind == CHECKPOINT:
            self.report_checkpoint(event)
        else:
            self.report_evaluation(event)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def leave_later(self, event: object) -> None:
        """W-28: the step to be finished first is the call; the grace bounds it too."""
        self.departing = True
        self.drain_until = self.last_now + self.settings.leave_grace_s

    def departs(self, event: object) -> bool:
        """A wish to leave came while it was inside."""
        return self.departing
