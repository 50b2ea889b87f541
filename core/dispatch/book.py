"""The book: which incarnation holds which batches, and what became of them (D-3, D-9 to D-15, D-19, D-20).

A batch is at any time in exactly one place. *Free* ones are the pool's (`pool.py`). *In flight*: part of a plan given
to a rank and not stepped yet. *Trained*: stepped, but not merged into a consensus. *Limbo*: trained by a rank that
died after it had shipped them, while the data round is still open (M-19). *Covered*: merged. Only the last is final;
everything else can return to the pool, and what was trained and returns is counted as replayed (I42).

    take -> in flight --Batch--> trained --Update(merged)--> covered
     ^          |                   |
     '-- rollback, forfeit, short plan, refusal, void: back to the pool, as holes

Per rank both queues are in the order of dispatch, so a step moves the next batch of the oldest plan, in O(1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from ..errors import InvariantError
from ..messages import Plan
from ..values import maker, state
from .permutation import epoch_bounds
from .pool import Pool, Range, Slice, Taken, batches_in, initial_spans, merge_ranges, picks_of

__all__ = ["Book", "Covered", "InFlight"]

NOT_REPORTED = -1
"""The base cycle of batches in flight: nobody has said that they were trained."""


Covered = tuple[int, int, int, int]
"""Batches that a consensus now contains: the rank that trained them, their epoch, the first of them, how many."""


@state
class InFlight:
    """A plan out with a rank: its slice, which knows how to undo its take if there was one, the epoch that the rank was
    in before, and how many batches were stepped."""

    plan: Plan
    slice: Slice
    epoch_before: int
    done: int = 0


new_plan: Callable[..., Plan] = maker(Plan)
new_in_flight: Callable[..., InFlight] = maker(InFlight)
"""A finish makes one of each per rank."""


@state
class Trained:
    """A run of stepped batches with one base cycle."""

    epoch: int
    first: int
    count: int
    base_cycle: int


@state
class Holdings:
    """What one incarnation holds. `in_flight_batches` counts the batches of its plans that are not stepped yet."""

    plans: deque[InFlight] = attrs.field(factory=deque)
    trained: deque[Trained] = attrs.field(factory=deque)
    in_flight_batches: int = 0
    trained_batches: int = 0
    epoch: int = -1


@state
class Book:
    """All pools and holdings of a run. Sizes are whole batches except where a name says picks."""

    picks: int
    batch_size: int
    epoch_splits: int
    num_epochs: int
    drop_last: bool
    pools: dict[int, Pool] = attrs.field(factory=dict)
    ranks: dict[int, Holdings] = attrs.field(factory=dict)
    limbo: dict[int, list[Trained]] = attrs.field(factory=dict)
    last_closed_epoch: int = -1
    next_plan_id: int = 1
    replayed: int = 0
    covered: int = 0

    # --- epochs --------------------------------------------------------------------------------------------------

    @property
    def first_live(self) -> int:
        """The lowest epoch that is not closed (D-4)."""
        return self.last_closed_epoch + 1

    def length(self, epoch: int) -> int:
        """Picks of an epoch (D-2)."""
        return epoch_bounds(self.picks, self.epoch_splits, epoch)[2]

    @property
    def never_trained(self) -> int:
        """Picks that no epoch of this run hands out: the tails that `drop_last` leaves behind, if the run is one pass
        or less (D-2). In a further pass the order is another one, and so are its tails."""
        if not self.drop_last or self.num_epochs > self.epoch_splits:
            return 0
        return sum(self.length(epoch) % self.batch_size for epoch in range(self.num_epochs))

    @property
    def first_uncovered(self) -> int:
        """The lowest epoch that the consensus lacks something of. Within a finish it is ahead of the lowest open one:
        what has just been covered is closed later in the pass (D-20)."""
        epoch = self.first_live
        while epoch in self.pools and self.pools[epoch].complete:
            epoch += 1
        return epoch

    def total(self, epoch: int) -> int:
        """Batches of an epoch (D-3)."""
        return batches_in(self.length(epoch), self.batch_size, self.drop_last)

    def picks_in(self, epoch: int) -> Callable[[int, int], int]:
        """How many picks so many batches of an epoch from one on are, as a function of the first and their number."""
        size, length = self.batch_size, self.length(epoch)
        return lambda first, count: picks_of(first, count, size, length)[1]

    def open_pool(self, epoch: int, voters: Sequence[int], counts: Mapping[int, int] | None) -> Pool:
        """The pool of an epoch, created at its first use with spans for the voters of that moment (D-3, D-4). Without
        voters every batch counts as out already: a run of whole shares books them at once (D-17)."""
        if epoch <= self.last_closed_epoch or epoch >= self.num_epochs:
            raise InvariantError(f"I13: a pool for epoch {epoch}, but {self.last_closed_epoch} is closed")
        if epoch not in self.pools:
            spans = initial_spans(self.total(epoch), voters, counts) if voters else {}
            self.pools[epoch] = Pool(epoch, self.total(epoch), spans)
        return self.pools[epoch]

    def close_complete(self) -> list[int]:
        """Close every epoch whose batches are all covered, in order, stopping at the first that is not (D-20)."""
        closed = list(range(self.first_live, self.first_uncovered))
        for epoch in closed:
            del self.pools[epoch]
        self.last_closed_epoch += len(closed)
        return closed

    # --- handing out ---------------------------------------------------------------------------------------------

    def holdings(self, rank: int) -> Holdings:
        """What a rank holds; an empty one that nobody keeps for a rank that never held anything."""
        held = self.ranks.get(rank)
        return Holdings() if held is None else held

    def take(self, rank: int, epoch: int, most: int) -> Plan | None:
        """Take at most `most` batches for a rank and book them as one plan; None when the pool has none (D-8.5)."""
        taken = self.pools[epoch].take(rank, most)
        return None if taken is None else self._book(rank, taken)

    def give(self, rank: int, epoch: int, first: int, count: int) -> Plan:
        """Book a given slice, for runs that hand out whole shares (D-17, D-22). It must be free, as a hole or span."""
        return self._book(rank, Slice(epoch, first, count))

    def _book(self, rank: int, part: Slice) -> Plan:
        epoch = part.epoch
        offset, size = picks_of(part.first, part.count, self.batch_size, self.length(epoch))
        plan = new_plan(self.next_plan_id, epoch, offset, size)
        self.next_plan_id += 1
        held = self.ranks.get(rank)
        if held is None:
            held = self.ranks[rank] = Holdings()
        held.plans.append(new_in_flight(plan, part, held.epoch))
        held.in_flight_batches += part.count
        held.epoch = epoch
        return plan

    def rollback(self, rank: int, plan_id: int) -> bool:
        """Undo a take whose message was lost (D-14). A plan that is not held any more is ignored: the batches have
        found their way back already, and reclaiming them again would give them out twice."""
        held = self.holdings(rank)
        entry = next((e for e in reversed(held.plans) if e.plan.plan_id == plan_id), None)
        if entry is None:
            return False
        place = held.plans.index(entry)
        del held.plans[place]
        held.in_flight_batches -= entry.slice.count - entry.done
        if place == len(held.plans):
            held.epoch = entry.epoch_before
        else:  # what was given after it comes after what was before it
            held.plans[place].epoch_before = entry.epoch_before
        pool = self.pools[entry.slice.epoch]
        if isinstance(entry.slice, Taken):
            pool.undo(entry.slice, entry.done)
        else:
            pool.reclaim([(entry.slice.first + entry.done, entry.slice.count - entry.done)])
        return True

    # --- steps ---------------------------------------------------------------------------------------------------

    def head(self, rank: int) -> InFlight | None:
        """The oldest plan of a rank that still has a batch to step."""
        held = self.ranks.get(rank)
        if held is not None:
            for entry in held.plans:  # the finished ones before it only wait for their Metrics
                if entry.done < entry.slice.count:
                    return entry
        return None

    def samples_due(self, entry: InFlight) -> int:
        """Picks of the next batch of a plan: the batch size, but for a short last batch (D-11)."""
        size = self.batch_size
        left: int = entry.plan.size - entry.done * size
        return left if left < size else size

    def count_step(self, rank: int, base_cycle: int) -> None:
        """Move the next batch of the plan at the head from in flight to trained (D-11). Raises `InvariantError` if
        there is none (D-12)."""
        entry = self.head(rank)
        if entry is None:
            raise _without_plan(rank)
        held, part = self.ranks[rank], entry.slice
        batch, trained = part.first + entry.done, held.trained
        entry.done += 1
        held.in_flight_batches -= 1
        held.trained_batches += 1
        if trained:
            last = trained[-1]
            if last.first + last.count == batch and last.base_cycle == base_cycle and last.epoch == part.epoch:
                last.count += 1
                return
        trained.append(Trained(part.epoch, batch, 1, base_cycle))

    def void_step(self, rank: int) -> None:
        """A step whose basis was refused: the batch returns, untrained as far as the book knows (C-8)."""
        entry = self.head(rank)
        if entry is None:
            raise _without_plan(rank)
        batch = entry.slice.first + entry.done
        entry.done += 1
        self.ranks[rank].in_flight_batches -= 1
        self._return([Trained(entry.slice.epoch, batch, 1, -1)], replayed=True)

    def holds(self, rank: int, plan_ids: Iterable[int]) -> bool:
        """Whether these are exactly the oldest plans of the rank, in order (D-9)."""
        held, ids = self.ranks.get(rank), list(plan_ids)
        mine = [] if held is None else [entry.plan.plan_id for entry in held.plans]
        return bool(ids) and mine[: len(ids)] == ids

    def complete(self, rank: int, plan_ids: Iterable[int]) -> int:
        """End the oldest plans; what of them was not stepped returns (D-9). Gives the number of those batches."""
        held, short = self.holdings(rank), 0
        for _ in tuple(plan_ids):
            entry = held.plans.popleft()
            missing = entry.slice.count - entry.done
            if missing:
                held.in_flight_batches -= missing
                self.pools[entry.slice.epoch].reclaim([(entry.slice.first + entry.done, missing)])
                short += missing
        return short

    # --- what becomes of steps -----------------------------------------------------------------------------------

    def merge(self, merged: Mapping[int, int]) -> list[Covered]:
        """Of each rank the oldest trained batches are in the consensus, so many as are said here (D-12)."""
        covered: list[Covered] = []
        for rank, steps in merged.items():
            held = self.holdings(rank)
            for run in self._split(held.trained, steps, rank):
                covered.append((rank, run.epoch, run.first, run.count))
            held.trained_batches -= steps
        return self._cover(covered)

    def refuse(self, rank: int, before_cycle: int) -> int:
        """Batches trained on a basis older than `before_cycle` return (D-12). Gives their number."""
        held = self.holdings(rank)
        out = [run for run in held.trained if run.base_cycle < before_cycle]
        held.trained = deque(run for run in held.trained if run.base_cycle >= before_cycle)
        count = sum(run.count for run in out)
        held.trained_batches -= count
        self._return(out, replayed=True)
        return count

    def into_limbo(self, rank: int, steps: int) -> None:
        """Set the shipped batches of a dead rank aside until it is known whether they were merged (M-19)."""
        held = self.holdings(rank)
        self.limbo[rank] = self._split(held.trained, steps, rank)
        held.trained_batches -= steps

    def all_into_limbo(self, rank: int) -> None:
        """Set aside everything a dead rank held, when nobody knows how much of it was merged: what it is known to have
        trained first, then the rest of its plans, in the order in which it would have (M-19)."""
        held = self.ranks.pop(rank, None)
        if held is not None:
            flying = [
                Trained(e.slice.epoch, e.slice.first + e.done, e.slice.count - e.done, NOT_REPORTED)
                for e in held.plans if e.done < e.slice.count
            ]  # fmt: skip
            self.limbo[rank] = [*held.trained, *flying]

    def limbo_batches(self, rank: int) -> int:
        """Batches of a rank that wait for the end of the data round (M-19)."""
        return sum(run.count for run in self.limbo.get(rank, ()))

    def resolve_limbo(self, merged: Mapping[int, int]) -> list[Covered]:
        """Limbo ends with the cycle: merged batches, the oldest, are covered, all others return (M-19)."""
        covered: list[Covered] = []
        for rank in sorted(self.limbo):
            runs = deque(self.limbo[rank])
            done = self._split(runs, merged.get(rank, 0), rank)
            covered += self._cover([(rank, run.epoch, run.first, run.count) for run in done])
            self.replayed += sum(run.count for run in runs if run.base_cycle != NOT_REPORTED)
            self._return(runs, replayed=False)
        self.limbo.clear()
        return covered

    def forfeit(self, rank: int) -> int:
        """Everything an ended incarnation still holds returns, ascending (D-19). Idempotent; gives the batches."""
        held = self.ranks.pop(rank, None)
        if held is None:
            return 0
        rest = [
            Trained(e.slice.epoch, e.slice.first + e.done, e.slice.count - e.done, NOT_REPORTED)
            for e in held.plans if e.done < e.slice.count
        ]  # fmt: skip
        self.replayed += held.trained_batches
        # In one act: what was trained of a plan and what was not are neighbours, and come back as one hole.
        self._return([*held.trained, *rest], replayed=False)
        return held.trained_batches + held.in_flight_batches

    # --- looking -------------------------------------------------------------------------------------------------

    def in_flight(self, epoch: int) -> int:
        """Batches of an epoch that are given out and not stepped yet."""
        return sum(
            entry.slice.count - entry.done
            for rank in sorted(self.ranks) for entry in self.ranks[rank].plans if entry.slice.epoch == epoch
        )  # fmt: skip

    def unmerged(self, rank: int, epoch: int) -> tuple[list[Range], list[Range]]:
        """Batches of an epoch that a rank has trained and no consensus contains, and all those of plans it has."""
        held = self.holdings(rank)
        trained = [(run.first, run.count) for run in held.trained if run.epoch == epoch]
        return trained, [(e.slice.first, e.slice.count) for e in held.plans if e.slice.epoch == epoch]

    def uncovered(self, epoch: int) -> list[Range]:
        """Batches of an open epoch that no consensus contains, ascending, merged (K-10)."""
        if epoch <= self.last_closed_epoch:
            return []
        if epoch not in self.pools:
            return [(0, self.total(epoch))]
        runs = list(self.pools[epoch].free_ranges())
        for held in self.ranks.values():
            runs += [(e.slice.first + e.done, e.slice.count - e.done) for e in held.plans if e.slice.epoch == epoch]
            runs += [(run.first, run.count) for run in held.trained if run.epoch == epoch]
        runs += [(run.first, run.count) for out in self.limbo.values() for run in out if run.epoch == epoch]
        return merge_ranges([run for run in runs if run[1]])

    # --- helpers -------------------------------------------------------------------------------------------------

    def _split(self, trained: deque[Trained], steps: int, rank: int) -> list[Trained]:
        if trained and trained[0].count == steps:  # a window on one basis is one run: so it is with nearly every merge
            return [trained.popleft()]
        runs: list[Trained] = []
        left = steps
        while left:
            if not trained:
                raise InvariantError(f"I46: rank {rank} merged {steps} steps, {steps - left} of them are in the book")
            run = trained[0]
            if run.count <= left:
                runs.append(trained.popleft())
                left -= run.count
                continue
            runs.append(Trained(run.epoch, run.first, left, run.base_cycle))
            run.first += left
            run.count -= left
            left = 0
        return runs

    def _cover(self, covered: list[Covered]) -> list[Covered]:
        """Count these, which have left the holdings of their ranks."""
        for epoch in sorted({epoch for _, epoch, _, _ in covered}):
            count = sum([count for _, of, _, count in covered if of == epoch])
            self.pools[epoch].cover(count)
            self.covered += count
        return covered

    def _return(self, runs: Iterable[Trained], *, replayed: bool) -> None:
        by_epoch: dict[int, list[Range]] = {}
        for run in runs:
            by_epoch.setdefault(run.epoch, []).append((run.first, run.count))
            if replayed:
                self.replayed += run.count
        for epoch in sorted(by_epoch):
            self.pools[epoch].reclaim(by_epoch[epoch])


def _without_plan(rank: int) -> InvariantError:
    return InvariantError(f"D-12: rank {rank} stepped without a plan, and the guards let it pass")
