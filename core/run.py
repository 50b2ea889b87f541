"""The run: forming, training, final evaluation, shutting down, stopped (protocol C-25, M-4 to M-6, M-50 to M-54).

The guards and effects of `tables.RUN` are its methods. It holds the decisions that exist once per run: the window of
formation, the stop, the one save, the one shutdown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import messages as m
from .effects import Alert, CloseLink, Emit, Finish, SaveConsensus, WriteMeta
from .errors import InvariantError
from .ledger import META_FORMAT
from .phases import CyclePhase, PeerPhase, RunPhase
from .policies import consulted
from .roles import EVALUATE
from .values import state

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["Run"]

FINAL_STEM = "consensus"
NOT_KEPT = "its state is not kept, and a run that goes on from here begins with a fresh one"
"""What becomes of the record if a policy cannot say what it holds (C-13)."""
RANKS_WRITE = ("shared", "collective")
"""Averagers that keep no consensus of their own: the holder of the checkpoint role writes it (K-7)."""


@state
class Run:
    """State of the run. Deadlines are monotonic seconds; None is unarmed. `expected` are the ranks that a window waits
    for which was opened a second time (M-45), `unformed` is what those are told who came to a run that did not form;
    `stopped_at` and `ended_at` are when a stop was asked for and when the save or the shutdown was told, for people
    (O-4)."""

    co: Coordinator
    phase: RunPhase = RunPhase.FORMING
    opened_at: float = 0.0
    window_closed: bool = False
    closed_at: float = 0.0
    expected: int | None = None
    stop_number: int | None = None
    stop_text: str = ""
    stopped_at: float = 0.0
    save: m.ShutdownWithSave | None = None
    save_deadline: float | None = None
    below_min_since: float | None = None
    shutdown_issued: bool = False
    exit_deadline: float | None = None
    ended_at: float = 0.0
    status: str = "ok"
    text: str = "every epoch is trained and merged"
    unformed: m.SaveReason = m.SaveReason.GRACEFUL
    decisions: int = 0
    finished: bool = False

    # --- formation -----------------------------------------------------------------------------------------------

    def form(self) -> None:
        """M-4 and the deadline of M-6, judged in each pass while forming."""
        co, config = self.co, self.co.config
        if self.stop_number is not None:
            self.fail(f"{self.stop_text} to stop", status="stopped")
        elif self._deserted():
            self.fail(f"everyone who came has left, nobody came within {config.scaled(config.rejoin_window_s):g} s")
        elif not self.window_closed:
            here, waited = co.alive_count, co.now - self.opened_at
            enough = here >= config.min_ranks
            by_itself = config.start != "manual" or self.expected is not None
            target = config.target_ranks if self.expected is None else self.expected
            full = by_itself and target is not None and here >= max(1, target)
            timed = by_itself and waited >= config.scaled(config.join_timeout_s)
            if full or (enough and timed):
                self.close_window()
            elif waited >= config.scaled(config.max_join_timeout_s):
                remedy = "start the missing ones, or lower min_ranks"
                if enough:
                    remedy = "no operator started it; do so, or set start = 'auto'"
                self.fail(f"{here} of {config.min_ranks} ranks came within {waited:.0f} s (here: "
                          f"{', '.join(str(r) for r in co.alive) or 'nobody'}); {remedy}")  # fmt: skip
        elif co.lost_tail.version is not None and co.lost_tail.giver is None:
            self.fail(f"nobody is left who holds version {co.cycle.version}")  # M-45, M-27
        elif co.alive_count < config.min_ranks:
            self.fail(f"{co.alive_count} ranks are left of the {config.min_ranks} that a run needs")
        elif co.now > self.closed_at + config.scaled(config.formation_s):
            for rank in co.cycle.unformed():
                co.lose(rank, f"not formed within {config.scaled(config.formation_s):g} s")

    def _deserted(self) -> bool:
        """M-54: nobody is left of who had come, for `rejoin_window_s`. Who is yet to come is waited for by M-4."""
        if self.co.alive_count or not self.co.seats:
            self.below_min_since = None
        elif self.below_min_since is None:
            self.below_min_since = self.co.now
        return self.co.now >= self.rejoin_deadline

    def form_anew(self) -> None:
        """Another source gives the initial state, or a collective has a session in which it can: it and those who wait
        for it have `formation_s` again (M-6)."""
        self.closed_at = self.co.now

    def open_again(self) -> None:
        """M-45: who had come comes again as a new life, and is waited for as in the beginning. A window that was closed
        needs no operator and no timeout a second time: it closes as soon as they are all back."""
        if self.window_closed:
            self.window_closed, self.expected, self.opened_at = False, self.co.alive_count, self.co.now

    def close_window(self) -> None:
        """Nobody else is waited for; cycle 0 can be armed."""
        self.window_closed, self.closed_at = True, self.co.now
        self.co.emit(Emit("PhaseChanged", {"phase": "forming", "ranks": list(self.co.alive)}))

    def can_start(self) -> bool:
        """Whether an operator may close the window by hand (M-4)."""
        forming = self.phase == RunPhase.FORMING and not self.window_closed and self.co.config.start != "auto"
        return forming and self.co.alive_count >= self.co.config.min_ranks

    def fail(self, why: str, status: str = "failed", reason: m.SaveReason = m.SaveReason.GRACEFUL) -> None:
        """Formation is over without a run (C-25). Who is there is told the `reason`."""
        self.status, self.text, self.unformed = status, f"the run did not form: {why}", reason
        self.co.couple("FormationOver")

    def formed(self) -> None:
        """Cycle 0 is finished (M-6)."""
        self.co.couple("Formed")

    def start_training(self, event: object) -> None:
        """The first epoch goes out (C-25, D-18). From here on a run may be unrecoverable (M-21): that is judged in this
        very pass."""
        self.co.emit(Emit("PhaseChanged", {"phase": "training", "ranks": list(self.co.voters)}))
        self.co.starting = self.co.urgent = True

    def anyone_alive(self, event: object) -> bool:
        """Somebody has to be told."""
        return self.co.alive_count > 0

    def dismiss(self, event: object) -> None:
        """A run that did not form tells who is there, and who looks on before the ranks are seen to end."""
        self.co.emit(Emit("PhaseChanged", {"phase": "shutting_down", "why": self.text}))
        self._shutdown(self.unformed)

    # --- while training ------------------------------------------------------------------------------------------

    def advance(self, event: object) -> None:
        """D-21, only with phase Idle."""
        if self.co.cycle.phase == CyclePhase.IDLE:
            self.co.desk.advance()

    def request_stop(self, text: str) -> None:
        """M-54: one decision for all ranks; a second request is nothing, nor is one to a run that ends (C-44)."""
        if self.stop_number is None and self.phase not in (RunPhase.SHUTTING_DOWN, RunPhase.STOPPED):
            self.stop_number, self.stop_text, self.stopped_at = self.co.cycle.number, text, self.co.now
            self.co.stopping = True
            self.co.emit(Emit("PhaseChanged", {"phase": "stopping", "why": text}))

    def work_done(self, event: object) -> bool:
        """C-25: the last epoch is closed, or a cycle armed after the stop has finished, or nobody held steps."""
        co = self.co
        if co.cycle.phase != CyclePhase.IDLE or co.save_issued or self.awaits_consensus:
            return False
        if co.book.first_live >= co.book.num_epochs:
            return True
        return self.stop_number is not None and (co.cycle.finished > self.stop_number or co.movers == 0)

    def can_evaluate(self, event: object) -> bool:
        """C-25: evaluation exists and its role is alive."""
        return self.co.roles.served(EVALUATE)

    def begin_final(self, event: object) -> None:
        """K-17: once, at the end, on the last consensus."""
        self.co.emit(Emit("PhaseChanged", {"phase": "final_eval", "rank": self.co.roles.holder(EVALUATE)}))
        self.co.actions.begin_final()

    def final_open(self, event: object) -> bool:
        """The final evaluation has neither a result nor run out of time or candidates (K-17)."""
        return self.co.actions.final_open() or self.awaits_consensus

    @property
    def awaits_consensus(self) -> bool:
        """K-4, M-44: what a clean end leaves is about to be given to the averager, which lacks it; a run that ends
        before its first average from what its ranks have brought would leave nothing else (M-6). A donor has as long as
        an averager has for a round (M-16)."""
        co = self.co
        asked = co.joins.consensus_lost and co.config.save_path is not None and bool(co.voters)
        return asked and co.now <= self._given_until

    @property
    def _given_until(self) -> float:
        return self.co.cycle.idle_since + self.co.config.reduce_ceiling

    def shut_down(self, event: object) -> None:
        """M-53: the averager's consensus is written, then everyone is told once."""
        co = self.co
        if self.stop_number is not None:
            self.status, self.text = "stopped", f"stopped on request: {self.stop_text}"
        elif any(co.peers[rank].steps for rank in co.voters):
            raise InvariantError("I10: the last epoch is closed, but a voter holds unmerged steps (D-21)")
        if not self.co.actions.is_kept():
            self._write_consensus(m.SaveReason.GRACEFUL)
            # Of this consensus nobody has stepped away, so a rank can still write it (K-4, K-7).
            if co.config.averager in RANKS_WRITE and co.config.save_path is not None and co.voters and not co.movers:
                stem = f"{co.config.save_path}/{FINAL_STEM}"
                co.actions.order_model(self.decisions, stem, co.cycle.version, max(0, co.cycle.finished))
        self._shutdown()

    def _shutdown(self, reason: m.SaveReason = m.SaveReason.GRACEFUL) -> None:
        co = self.co
        self.ended_at = self.ended_at if co.save_issued else co.now
        self.shutdown_issued = True
        self.exit_deadline = co.now + co.config.scaled(co.config.exit_grace_s)
        co.tell(co.alive, m.Shutdown, reason=reason)

    # --- saving --------------------------------------------------------------------------------------------------

    def begin_save(self, reason: m.SaveReason, text: str) -> None:
        """M-50, M-51: once per run; the record first, then the message, whatever becomes of the sends (C-16)."""
        if self.co.save_issued:
            return
        self.co.save_issued, self.ended_at = True, self.co.now
        self.status, self.text = "saved", text
        stem = None if self.co.config.save_path is None else f"{self.co.config.save_path}/{reason.name.lower()}"
        self._write_consensus(reason, f"{reason.name.lower()}.model")
        saver = self._next_saver(())
        self.save = m.ShutdownWithSave(decision_id=self.decisions, reason=reason, saver=saver, stem=stem)
        self.save_deadline = self.co.now + self.co.config.scaled(self.co.config.save_limit_s)
        self._tell_save(self.co.alive)
        self.co.couple("SaveIssued")

    def _tell_save(self, ranks: Sequence[int]) -> None:
        save = self.save
        if save is None:
            raise InvariantError("M-51: a save is sent before it was decided")
        self.co.tell(ranks, m.ShutdownWithSave, decision_id=save.decision_id, reason=save.reason, saver=save.saver,
                     stem=save.stem)  # fmt: skip

    def _next_saver(self, tried: tuple[int, ...]) -> int:
        """Rank 0 if it is a voter, else the lowest voter that has not stopped (M-51, M-52)."""
        fit = [r for r in self.co.voters if r not in tried and not self.co.peers[r].stopped]
        return fit[0] if fit else m.NO_RANK

    def note_saved(self, peer: Peer, event: m.CheckpointResult) -> None:
        """M-52: an error of the saver names the next candidate, with the same decision id."""
        save = self.save
        if save is None or event.decision_id != save.decision_id:
            return
        peer.stopped = True
        if event.error is None:
            self.co.emit(Emit("CheckpointWritten", {"rank": peer.rank, "version": event.version}))
            return
        self.co.emit(Alert("checkpoint_failed", f"rank {peer.rank}", event.error))
        if peer.rank == save.saver:
            self.replace_saver()

    def replace_saver(self) -> None:
        """The saver failed or died: name the next one (M-52)."""
        save = self.save
        if save is None or self.shutdown_issued:
            return
        saver = self._next_saver((save.saver,))
        if saver == m.NO_RANK:
            return
        self.save = m.ShutdownWithSave(decision_id=save.decision_id, reason=save.reason, saver=saver, stem=save.stem)
        self._tell_save((saver,))

    def _write_consensus(self, reason: m.SaveReason, by_rank: str = FINAL_STEM) -> None:
        """K-6, K-7, M-52: the record, then the averager's consensus where it keeps one; else a rank writes `by_rank`
        beside it."""
        self.decisions += 1
        if self.co.config.save_path is not None:
            name = by_rank if self.co.config.averager in RANKS_WRITE else FINAL_STEM
            self.write_bundle(reason, self.decisions, f"{self.co.config.save_path}/{name}")

    def write_bundle(self, reason: m.SaveReason, decision_id: int, stem: str) -> None:
        """The record goes ahead of the order to write; the averager puts it in place last (K-8). A file that a rank
        writes is named in it, and says the rest itself (K-6)."""
        record, by_rank = self.meta(reason, decision_id), self.co.config.averager in RANKS_WRITE
        if by_rank:
            record["files"] = {f"{stem.rpartition('/')[2]}.safetensors": None}
        self.co.emit(WriteMeta(record))
        if not by_rank:
            self.co.emit(SaveConsensus(decision_id, self.co.cycle.version, stem))
            self.co.actions.note_ordered(decision_id, reason, stem)

    def meta(self, reason: m.SaveReason, decision_id: int) -> dict[str, Any]:
        """The record a resume reads (K-6): counters, coverage as uncovered batches per open epoch (K-10)."""
        co, cycle = self.co, self.co.cycle
        first = co.book.first_uncovered
        nothing: dict[str, Any] = {}
        open_epochs = [e for e in range(first, co.book.num_epochs) if e in co.book.pools]
        return {
            "format": META_FORMAT, "decision_id": decision_id, "run_id": co.config.run_id.hex(),
            "generation": co.generation, "version": cycle.version, "cycle": cycle.number,
            "sync_rounds": cycle.sync_rounds, "global_step": cycle.global_step, "world": len(co.seats),
            "reason": reason.name.lower(),
            "balancer": consulted(co, "cadence.saved", lambda: co.balancer.saved(), nothing, NOT_KEPT),
            "guard": consulted(co, "guard.saved", lambda: co.guard.saved(), nothing, NOT_KEPT),
            "uncovered": {str(e): [list(r) for r in co.book.uncovered(e)] for e in open_epochs},
            "last_closed_epoch": first - 1, "reached": co.actions.reached,
            "evaluated": co.actions.evaluated, "replayed": co.book.replayed, "seed": co.config.seed,
            "epoch_splits": co.config.epoch_splits, "batch_size": co.config.batch_size,
            "repeats": co.config.repeats, "drop_last": co.config.drop_last, "schema_hash": co.schema_hash.hex(),
            "dataset": (co.dataset or b"").hex(),
        }  # fmt: skip

    def shut_down_saving(self, event: object) -> None:
        """Everybody saves and leaves by itself; the messages are out already (M-51)."""

    @property
    def rejoin_deadline(self) -> float:
        """When too few ranks have waited long enough for others (M-21); infinite while there are enough."""
        if self.below_min_since is None:
            return math.inf
        return self.below_min_since + self.co.config.scaled(self.co.config.rejoin_window_s)

    # --- the end -------------------------------------------------------------------------------------------------

    def everyone_gone(self, event: object) -> bool:
        """Each addressed rank is Exited or Dead (M-53)."""
        return self.co.alive_count == 0

    def save_settled(self, event: object) -> bool:
        """Who is still there has saved, or had its time (M-52)."""
        if self.save_deadline is None or self.shutdown_issued:
            return False
        return self.co.now >= self.save_deadline or all(self.co.peers[r].stopped for r in self.co.alive)

    def send_shutdown(self, event: object) -> None:
        """After a settled save: stop (M-52)."""
        self._shutdown()

    def grace_over(self, event: object) -> bool:
        """Whoever is still there had its time (M-53)."""
        return self.exit_deadline is not None and self.co.now >= self.exit_deadline

    def cut_off(self, event: object) -> None:
        """Close the links of who did not go."""
        for rank in self.co.alive:
            peer = self.co.peers[rank]
            self.co.emit(Alert("unserved_role", f"rank {rank}", "did not exit in time; its link is closed"))
            self.co.emit(CloseLink(rank, peer.incarnation, "did not exit in time"))

    def finish_run(self, event: object) -> None:
        """The last effect of a run."""
        self.finished = True
        self.co.emit(Emit("PhaseChanged", {"phase": "stopped", "status": self.status, "why": self.text}))
        self.co.emit(Finish(self.status, self.text))

    def deadlines(self) -> list[float]:
        """What is timed in this phase."""
        config = self.co.config
        timed = (self.save_deadline, self.exit_deadline, self.rejoin_deadline)
        due = [d for d in timed if d is not None and d > self.co.now]
        if self.awaits_consensus:
            due.append(math.nextafter(self._given_until, math.inf))
        if self.phase == RunPhase.FORMING:
            if self.window_closed:
                due.append(math.nextafter(self.closed_at + config.scaled(config.formation_s), math.inf))
            else:
                due.append(self.opened_at + config.scaled(config.join_timeout_s))
                due.append(self.opened_at + config.scaled(config.max_join_timeout_s))
        return [d for d in due if d > self.co.now]

    def dead(self, peer: Peer) -> None:
        """A death while saving: the saver's is made good (M-52)."""
        if self.save is not None and self.save.saver == peer.rank and peer.phase != PeerPhase.EXITED:
            self.replace_saver()
