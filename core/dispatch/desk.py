"""The desk: how much work a rank may be given, when, and from where (D-4 to D-9, D-13, D-16 to D-22).

The book knows where each batch is; the desk decides who gets which next. Barrier-paced ranks (Sync, Cadence) may not
cross an averaging or epoch barrier, so their next chunk rides in the `Update` of a finish. Whatever leaves the desk is
a promise that can be broken: a plan whose message is lost is rolled back as if it had never been taken (D-14).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from ..effects import Alert, Emit, Invoke
from ..messages import ExtendPartition, Metrics, Plan, StartEpoch, Throttle, ThrottleReason
from ..participation import participation
from ..phases import VOTER, RunPhase
from ..policies import readings, recent_share
from ..values import state
from .advisory import advise
from .book import Covered
from .holds import why_held
from .pool import Pool, Range
from .shares import Share, shares, split_returned
from .tally import EpochTally
from .window import final_window

if TYPE_CHECKING:
    from ..coordinator import Coordinator
    from ..peer import Peer

__all__ = ["Desk"]

ASYNC_PLANS = 2
"""Async keeps one plan running and one in the mailbox (D-15)."""
PROBE_SHARE = 10
"""An uncalibrated async rank gets a tenth of its share of a pass (D-6)."""


@state
class FinalWindow:
    """The planned last window of an epoch (D-7): slots as planned, and what of them is not served yet."""

    epoch: int
    counts: tuple[tuple[int, int], ...]
    planned: dict[int, int]
    left: dict[int, int]


@state
class Desk:
    """Dispatch decisions over the coordinator's book, balancer and voters. `advice_due` says that an epoch has begun
    and nobody was told yet what may come next (D-24); `whole` is a window of all voters in steps, `probing` that no
    speed is known: the survey of D-6, which every chunk asks for. `holds` says by what each idle rank is held (D-8),
    `untold` which of these episodes are not on the timeline yet."""

    co: Coordinator
    window: FinalWindow | None = None
    dispatched_epoch: int = -1
    tallies: dict[int, EpochTally] = attrs.field(factory=dict)
    awaiting: list[int] = attrs.field(factory=list)
    advice_due: bool = False
    whole: int = 0
    probing: bool = True
    holds: dict[int, str] = attrs.field(factory=dict)
    untold: dict[int, str] = attrs.field(factory=dict)

    # --- budgets -------------------------------------------------------------------------------------------------

    def quota(self, rank: int) -> int:
        """Steps a rank owes before the gate may fire (D-5); in Sync one (G-1)."""
        if self.co.config.policy == "sync":
            return 1
        count = self.co.balancer.counts[rank]
        return count if self.window is None else max(count, self.window.planned.get(rank, 0))

    def quotas(self, ranks: Iterable[int]) -> Mapping[int, int]:
        """That of each of these, if not of more: outside a final window what the balancer says (G-7); under sync a
        single step, whatever a share is (G-6)."""
        if self.window is None and self.co.config.policy != "sync":
            return self.co.balancer.counts
        return {rank: self.quota(rank) for rank in ranks}

    def left(self, rank: int) -> int:
        """Batches a rank may still be given in this window (D-5)."""
        co = self.co
        config = co.config
        if not config.is_progressive:
            return co.book.total(min(co.book.first_live, co.book.num_epochs - 1))
        if config.policy != "async":
            limit = self.quota(rank)
        else:
            limit = co.balancer.counts[rank] + co.balancer.overshoots.get(rank, 0)
        taken, held = co.peers[rank].steps, co.book.ranks.get(rank)
        if held is not None:
            taken += held.in_flight_batches
        return limit - taken if taken < limit else 0

    def enterable(self) -> range:
        """Epochs a rank may enter now (D-4)."""
        book = self.co.book
        first = book.last_closed_epoch + 1
        last = first + 1 if self.co.config.policy == "async" else first
        return range(first, last + 1 if last < book.num_epochs else book.num_epochs)

    def size(self, rank: int, pool: Pool) -> int:
        """Batches of the next chunk (D-6)."""
        co, rem, left, window = self.co, pool.free, self.left(rank), self.window
        if rem == 0 or left == 0:
            return 0
        counts = co.balancer.counts
        if window is not None and window.epoch == pool.epoch:
            size = window.left.get(rank, 0)
        elif co.config.policy != "async" or rem < self.whole:
            size = counts[rank]
        elif self.probing:
            probe = co.book.picks // (len(co.seats) * PROBE_SHARE * co.book.batch_size)
            size = max(co.config.min_chunk, probe)
        else:
            size = max(-(-rem * counts[rank] // self.whole), co.config.min_chunk)
        size = rem if rem < size else size  # `min` of three takes as long as all else here
        return left if left < size else size

    def quiesced(self, ranks: Iterable[int]) -> set[int]:
        """Which of these have nothing in flight and no work they could be given (G-4)."""
        held, window = self.co.book.ranks, self.window
        idle = {rank for rank in ranks if rank not in held or not held[rank].plans}
        if not idle or self.used_up():
            return idle
        return set() if window is None else {rank for rank in idle if not window.left.get(rank)}

    # --- final window --------------------------------------------------------------------------------------------

    def refresh_window(self, *, finishing: bool = False) -> None:
        """Pin, keep or clear the final window (D-7). At a finish a window served to its end is over."""
        co = self.co
        if not (co.config.is_progressive and co.config.barrier_paced):
            return
        pool = co.book.pools.get(co.book.first_live)
        counts = {rank: co.balancer.counts[rank] for rank in co.voters}
        if pool is None or not counts:
            self.window = None
            return
        old = self.window
        same = old is not None and old.epoch == pool.epoch and old.counts == tuple(counts.items())
        if old is not None and old.epoch == pool.epoch and pool.free == 0 and not finishing:
            return
        if same and old is not None and pool.free and pool.free == sum(old.left.values()):
            return
        slots = final_window(pool.free, counts)
        self.window = None
        if slots is not None:
            self.window = FinalWindow(pool.epoch, tuple(counts.items()), dict(slots), dict(slots))

    def _survey(self) -> None:
        """What the size of a chunk depends on beside its own rank (D-6). Whoever hands out to many looks at everyone
        once, and comes after whatever changes counts or voters."""
        counts = self.co.balancer.counts
        self.whole = sum([counts[rank] for rank in self.co.voters])
        self.probing = not self.measured

    @property
    def measured(self) -> bool:
        """Whether the counts say who is faster (D-3, B-15)."""
        return self.co.balancer.calibrated or self.co.balancer.hinted

    def _serve(self, rank: int, epoch: int, batches: int) -> None:
        if self.window is not None and self.window.epoch == epoch and rank in self.window.left:
            self.window.left[rank] = max(0, self.window.left[rank] - batches)

    # --- handing out ---------------------------------------------------------------------------------------------

    def take(self, rank: int, epoch: int, batches: int) -> Plan | None:
        """Take and serve in one act."""
        plan = self.co.book.take(rank, epoch, batches)
        if plan is not None:
            self.holds.pop(rank, None)
            self._note_work(rank, plan)
            if self.window is not None:
                self._serve(rank, epoch, -(-plan.size // self.co.book.batch_size))
        return plan

    def _note_work(self, rank: int, plan: Plan) -> None:
        """O-4: it has work since now, if this is all it has."""
        head = self.co.book.head(rank)
        if head is not None and head.plan.plan_id == plan.plan_id:
            self.co.peers[rank].since.work = self.co.now

    def rollback(self, rank: int, plan_id: int) -> None:
        """Undo a take whose message was lost, with its slot (D-14)."""
        held = self.co.book.holdings(rank)
        entry = next((e for e in held.plans if e.plan.plan_id == plan_id), None)
        if entry is not None and entry is not held.plans[-1]:
            text = f"plan {plan_id} was not sent, and a newer one is held"
            self.co.emit(Alert("accounting", f"rank {rank}", text))
        if entry is not None and self.co.book.rollback(rank, plan_id):
            window = self.window
            if window is not None and window.epoch == entry.plan.epoch and rank in window.left:
                window.left[rank] += entry.slice.count - entry.done
            self.co.returned = True

    def open_pool(self, epoch: int) -> Pool:
        """The pool of an epoch, with the spans of this moment (D-3)."""
        co = self.co
        pool = co.book.pools.get(epoch)
        if pool is None:
            pool = co.book.open_pool(epoch, co.voters, co.balancer.counts if self.measured else None)
            self._begin(epoch, pool)
            self.refresh_window()
        return pool

    def _begin(self, epoch: int, pool: Pool) -> None:
        self.tallies[epoch] = EpochTally(opened_at=self.co.now)
        self.advice_due = True
        self.co.emit(Emit("EpochStart", {"epoch": epoch, "batches": pool.total}))

    def advise(self) -> None:
        """Tell each voter what may come next (D-24)."""
        self.advice_due = False
        advise(self.co)

    def may_serve(self, peer: Peer) -> bool:
        """D-8.1 and D-8.2: an attached voter with room in its hands, and a run that goes on."""
        co = self.co
        held = co.book.ranks.get(peer.rank)
        # Asked first, because whoever is asked about all voters hears it of most.
        if held is not None and held.plans and (co.config.policy != "async" or len(held.plans) >= ASYNC_PLANS):
            return False
        return peer.phase == VOTER and peer.attached and not (co.stopping or co.save_issued)

    def told_holds(self) -> dict[str, str]:
        """The holds that have begun since this was asked last, by rank: each episode is told once (D-8)."""
        fresh, self.untold = self.untold, {}
        return {str(rank): fresh[rank] for rank in sorted(fresh)}

    def _hold(self, rank: int) -> None:
        """D-8: the rank gets nothing. An episode lasts until it is given a plan, or its window ends (C-15.10), and is
        noted where it begins: whoever asks for one meanwhile, and that may be every pass, finds it noted."""
        held = self.co.book.ranks.get(rank)
        if rank not in self.holds and (held is None or not held.plans):
            self.holds[rank] = self.untold[rank] = why_held(self, rank)

    def dispatch_next(self, rank: int) -> bool:
        """Give a rank its next chunk, if it may have one (D-8)."""
        given = self._dispatch(rank)
        if not given:
            self._hold(rank)
        return given

    def _dispatch(self, rank: int) -> bool:
        peer = self.co.peers[rank]
        if not self.may_serve(peer):
            return False
        for epoch in self.enterable():
            pool = self.co.book.pools.get(epoch)
            if pool is None:
                # Nobody opens an epoch by being asked in vain: when it begins does not depend on how often the voters
                # are looked at (C-4).
                if not self.left(rank):
                    return False
                pool = self.open_pool(epoch)
            if not pool.free:
                continue
            size = self.size(rank, pool)
            plan = self.take(rank, epoch, size) if size else None
            if plan is None:
                return False
            self.co.tell((rank,), StartEpoch, plan=plan, cycle=self.co.cycle.finished)
            return True
        return False

    def wake(self) -> None:
        """D-16: an idle rank sends no completion, so nothing else would restart it."""
        if not self.co.config.is_progressive or self.co.run.phase != RunPhase.TRAINING:
            return
        self._survey()
        # Who has its hands full, after a finish everyone, is not even looked at (D-8.1).
        held, room = self.co.book.ranks, ASYNC_PLANS if self.co.config.policy == "async" else 1
        self._serve_all([rank for rank in self.co.voters if rank not in held or len(held[rank].plans) < room])

    def compose(self) -> dict[int, Plan]:
        """The plans that ride in the Updates of a finish, by rank (D-13)."""
        co, plans = self.co, {}
        pool = co.book.pools.get(co.book.first_live)
        if pool is not None and co.config.is_progressive and co.config.policy == "cadence":
            for rank in co.voters:
                size = self.size(rank, pool) if self.may_serve(co.peers[rank]) else 0
                plan = self.take(rank, pool.epoch, size) if size else None
                if plan is not None:
                    plans[rank] = plan
        return plans

    # --- completions and epochs ----------------------------------------------------------------------------------

    def tally(self, epoch: int) -> EpochTally:
        """The metrics of an open epoch; of one that a run before this one has begun from now on."""
        if epoch not in self.tallies:
            self.tallies[epoch] = EpochTally(opened_at=self.co.now)
        return self.tallies[epoch]

    def completed(self, rank: int, epoch: int, metrics: Metrics, parts: Sequence[Range] = ()) -> None:
        """Keep the metrics of a chunk (K-20), which is made of these batches, and remember whom to serve (C-3.11).
        `epoch` is that of the plan: a label that a rank made up would open the tally of an epoch that does not exist,
        and nothing would ever close it."""
        if epoch in self.co.book.pools:
            self.tally(epoch).add(rank, metrics, parts, self.co.book.picks_in(epoch))
        self.awaiting.append(rank)

    def note_divergence(self, epoch: int, largest: float) -> None:
        """The largest divergence of an average that belongs to this epoch (C-15.4)."""
        if epoch in self.co.book.pools:
            self.tally(epoch).diverged(largest)

    def note_covered(self, covered: Iterable[Covered]) -> None:
        """Where each pick was finally trained, and what of the chunks can come into no consensus any more (K-20)."""
        book, known = self.co.book, -1
        for rank, epoch, first, count in covered:
            if epoch != known:  # what a finish covers is of one epoch, as a rule
                known, tally, picks = epoch, self.tally(epoch), book.picks_in(epoch)
            tally.of(rank).cover(first, count, picks)
        for epoch, tally in self.tallies.items():
            for rank, seen in tally.ranks.items():
                if seen.waiting or seen.early:
                    seen.settle(*book.unmerged(rank, epoch))

    def tell_parts(self) -> None:
        """O-5: a record of an open epoch whenever another part of it is covered, `reports_per_epoch` in all."""
        co, wanted = self.co, self.co.config.reports_per_epoch
        for epoch, pool in co.book.pools.items() if wanted else ():
            tally, done = self.tally(epoch), pool.covered * wanted // max(1, pool.total)
            if done > tally.parts:
                tally.parts = done
                ranks = {str(rank): facts for rank, facts in participation(co, co.voters).items()}
                co.emit(Emit("Custom", {
                    "what": "epoch_part", "epoch": epoch, "part": done, "of": wanted, "covered": pool.covered,
                    "total": pool.total, **tally.cohort(co.now), "scalars": tally.scalars(), "ranks": ranks,
                }))  # fmt: skip

    def serve_completions(self) -> None:
        """Step 11 of the pass: dispatch after completions (D-9)."""
        if self.awaiting:
            self._survey()
            self.follow_up()

    def follow_up(self) -> None:
        """The next plans of those that have ended one. No look at other ranks: the hot path comes here (C-4)."""
        waiting, self.awaiting = self.awaiting, []
        if self.co.config.is_progressive:
            self._serve_all(waiting if len(waiting) == 1 else sorted(set(waiting)))

    def _serve_all(self, ranks: Iterable[int]) -> None:
        """As many plans to each of these as it may have now (D-15)."""
        for rank in ranks:
            for _ in range(ASYNC_PLANS):
                if not self.dispatch_next(rank):
                    break

    def close_epochs(self) -> None:
        """The rest of step 11: an epoch closes when all of it is covered (D-20). That lets ranks into the next one,
        also with a cycle pending that was armed a moment ago, when D-21 waits for its end (D-16)."""
        closed = self.co.book.close_complete()
        for epoch in closed:
            self._closed(epoch)
        if closed:
            self.wake()

    def used_up(self) -> bool:
        """Whether no epoch that may be entered has a free batch: whoever is idle is quiesced then (G-4). One that is
        not open yet has all of them."""
        pools = self.co.book.pools
        for epoch in self.enterable():  # written out: every end of a plan asks, and the first epoch answers
            pool = pools.get(epoch)
            if pool is None or pool.free:
                return False
        return True

    def _closed(self, epoch: int) -> None:
        tally = self.tally(epoch)
        del self.tallies[epoch]
        self.window = None
        cohort, scalars = tally.cohort(self.co.now), tally.scalars()
        facts = {**cohort, "scalars": scalars, "ranks": tally.by_rank(recent_share(self.co))}
        # K-20: the callback, the broadcast, the record, in this order.
        self.co.emit(Invoke("epoch_closed", (epoch, facts)))
        self.co.broadcast_epoch(epoch, {**cohort, **{f"scalars.{name}": mean for name, mean in scalars.items()}})
        self.co.emit(Emit("EpochEnd", {"epoch": epoch, **facts}))
        seen = tally.divergence
        if seen is not None:
            self.co.emit(Emit("DivergenceEpoch", {
                "epoch": epoch, "cycles": seen.cycles, "min": seen.least, "max": seen.most,
                "mean": seen.total / seen.cycles, "last": seen.last,
            }))  # fmt: skip

    def advance(self) -> None:
        """D-21, with phase Idle: the next epoch, if there is one and it is not out yet."""
        co = self.co
        epoch = co.book.first_live
        if co.stopping or co.save_issued or epoch >= co.book.num_epochs:
            return
        if co.config.is_progressive:
            self.wake()
        elif self.dispatched_epoch < epoch and not any(co.peers[rank].detached for rank in co.voters):
            self.dispatch_epoch(epoch)

    def dispatch_epoch(self, epoch: int) -> None:
        """Whole shares of an epoch, latched only when they are out (D-17, D-18, D-21): while no voter can be reached
        they stay where they are, or they would be given to nobody and never trained."""
        co = self.co
        if not co.config.is_progressive and not self._attached():
            return
        pool = co.book.pools.get(epoch)
        if pool is not None and not co.config.is_progressive:  # of a run that is resumed: its holes, in the same shares
            holes = pool.drain()
            for rank, first, count in self.shares(sum(size for _, size in holes), holes):
                self._start(rank, epoch, first, count)
        elif pool is not None:
            self.redistribute()
        elif not co.config.is_progressive:
            pool = co.book.open_pool(epoch, (), None)
            self._begin(epoch, pool)
            for rank, first, count in self.shares(pool.total):
                self._start(rank, epoch, first, count)
        else:
            self.open_pool(epoch)
            self.wake()
        self.dispatched_epoch = epoch

    def _attached(self) -> list[int]:
        """Voters that can be sent a plan (N-10)."""
        return [rank for rank in self.co.voters if self.co.peers[rank].attached]

    def shares(self, total: int, holes: Sequence[Range] | None = None) -> list[Share]:
        """D-17. A rank that has never been measured counts as the slowest one: read as 0 ms it would get it all."""
        co, voters = self.co, self._attached()
        ratios, ms = None, None
        if co.config.partition_ratios is not None:
            given = co.config.partition_ratios
            ratios = {rank: given[rank] if rank < len(given) else given[-1] for rank in voters}
        elif co.config.policy != "sync" and co.balancer.calibrated:
            known = readings(co, voters)
            slowest = max(known, default=0.0)
            ms = {rank: reading or slowest for rank, reading in zip(voters, known, strict=True)}
        return shares(total, voters, ratios=ratios, ms=ms, holes=holes)

    def _start(self, rank: int, epoch: int, first: int, count: int) -> None:
        held = self.co.book.holdings(rank)
        newest = held.plans[-1].plan if held.plans else None
        plan = self.co.book.give(rank, epoch, first, count)
        self._note_work(rank, plan)
        if newest is None:
            self.co.tell((rank,), StartEpoch, plan=plan, cycle=self.co.cycle.finished)
        else:
            self.co.tell((rank,), ExtendPartition, plan=plan, extends=newest.plan_id, cycle=self.co.cycle.finished)

    def redistribute(self) -> None:
        """Batches came back to the pools, so the final window is another one (D-7), and they go out again."""
        self.refresh_window()
        self.hand_out()

    def hand_out(self) -> None:
        """What is free goes out: by waking idle ranks (D-16), or as extensions (D-22). The window that is pinned stays:
        pinned anew after its plans are out, it would be that of the next window, and be served within this one."""
        co = self.co
        if co.run.phase != RunPhase.TRAINING or co.stopping or co.save_issued:
            return
        if co.config.is_progressive:
            self.wake()
            return
        voters = self._attached()
        for epoch in self.enterable():
            pool = co.book.pools.get(epoch)
            if pool is None or not pool.free or not voters:
                continue
            for rank, first, count in split_returned(pool.drain(), voters):
                self._start(rank, epoch, first, count)

    # --- lead limit ----------------------------------------------------------------------------------------------

    def leading(self) -> list[int]:
        """G-8: who is more than D steps ahead of the slowest rank that still has work, and is not parked yet."""
        co = self.co
        if co.park_above == math.inf:
            return []
        far = [rank for rank in co.voters if (peer := co.peers[rank]).steps > co.park_above and peer.throttled is None]
        return [rank for rank in far if co.book.holdings(rank).plans]

    def limit_lead(self) -> bool:
        """G-8: park them. Whether anyone was."""
        co, leading = self.co, self.leading()
        release = co.cycle.number if co.cycle.pending else co.cycle.number + 1
        for rank in leading:
            peer = co.peers[rank]
            peer.throttled, peer.since.parked = ThrottleReason.LEAD, co.now
            co.emit(Emit("Throttle", {"rank": rank, "reason": "lead", "lead": peer.steps - co.low}))
            co.tell((rank,), Throttle, cycle=release, reason=ThrottleReason.LEAD)
        return bool(leading)
