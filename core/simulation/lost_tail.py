"""The ghost of a run whose coordinator came back without the end of its journal (M-45).

What was averaged in the part that is lost has happened: ranks stand on it. But it is in no books, so the batches in it
are to be trained again, and a version and a `global_step` that a rank brings back are ahead of what is covered. The
ghost forgets what the coordinator has forgotten, remembers the averages as `former` ones, which lives of before may yet
take over, and sees to it that the version goes forward and never back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .violation import require

if TYPE_CHECKING:
    from ..coordinator import Coordinator
    from .ghost import Ghost

__all__ = ["LOST", "forgotten", "is_over", "moved_forward"]


def forgotten(ghost: Ghost, co: Coordinator) -> None:
    """The coordinator knows no more than `co` does."""
    finished = co.cycle.finished
    for cycle, version in list(ghost.realized.items()):
        if cycle > max(0, finished):
            ghost.former[cycle] = (*ghost.former.get(cycle, ()), (version, ghost.means[version]))
            del ghost.realized[cycle]
    if co.cycle.version not in ghost.realized.values():  # what it was moved forward to, and no cycle of the books made
        ghost.realized[co.cycle.number] = co.cycle.version
    ghost.merged = dict.fromkeys(_covered(co), 1)
    ghost.uncounted = co.cycle.global_step - len(ghost.merged)
    ghost.version, ghost.closed = co.cycle.version, co.book.last_closed_epoch + 1
    ghost.armed, ghost.arms_open = co.cycle.number, int(co.cycle.pending)
    if not co.cycle.pending and finished < 0:
        ghost.armed = -1  # cycle 0 is armed once more
    ghost.updated = {life: min(cycle, finished) for life, cycle in ghost.updated.items()}
    ghost.voting = set(co.voters)
    ghost.ended = {life for life in ghost.ended if is_over(co, life)}  # others may be given again
    ghost.ambiguous = ghost.forgot = True


def is_over(co: Coordinator, life: tuple[int, int]) -> bool:
    """Whether the books know this life, and that it has ended."""
    peer = co.peers.get(life[0])
    return peer is not None and (life[1] < peer.incarnation or (life[1] == peer.incarnation and not peer.alive))


def _covered(co: Coordinator) -> list[tuple[int, int]]:
    """What the books say is covered: all that is nowhere else."""
    found = [(epoch, batch) for epoch in range(co.book.last_closed_epoch + 1) for batch in range(co.book.total(epoch))]
    for epoch, pool in co.book.pools.items():
        ranges = [*pool.free_ranges()]
        for held in co.book.ranks.values():
            ranges += [(entry.slice.first + entry.done, entry.slice.count - entry.done) for entry in held.plans
                       if entry.slice.epoch == epoch]  # fmt: skip
            ranges += [(run.first, run.count) for run in held.trained if run.epoch == epoch]
        for runs in co.book.limbo.values():
            ranges += [(run.first, run.count) for run in runs if run.epoch == epoch]
        elsewhere = {batch for first, count in ranges for batch in range(first, first + count)}
        found += [(epoch, batch) for batch in range(pool.total) if batch not in elsewhere]
    return found


def moved_forward(ghost: Ghost, co: Coordinator) -> None:
    """M-45: version and base are those of a claim, and never fall; what led there is covered nowhere."""
    cycle = co.cycle
    if cycle.forming and cycle.version == ghost.version:  # that it had formed is lost, and nothing else
        ghost.armed, ghost.arms_open = -1, 0
        return
    if cycle.version == ghost.version:  # behind it there were reports and plans, no average
        require(ghost.forgot, "M-45", f"version {cycle.version} is that of the books, and their journal is whole")
        return
    require(cycle.version > ghost.version, "M-45", f"version {cycle.version} follows {ghost.version}")
    holds = [number for number, version in ghost.held.items() if version == cycle.version]
    require(bool(holds), "M-45", f"no rank holds version {cycle.version}")
    if co.config.alpha is None or cycle.version not in ghost.means:  # else they blend, and none stands on it
        ghost.means[cycle.version] = ghost.base[holds[-1]]  # what it is, until one of them gives it to all
    base = len(ghost.merged) + ghost.uncounted
    require(cycle.global_step >= base, "M-45", f"global_step {cycle.global_step} follows {base}")
    ghost.version, ghost.arms_open = cycle.version, 0
    ghost.armed = -1 if cycle.forming else cycle.number
    ghost.realized[cycle.number] = cycle.version
    ghost.uncounted = cycle.global_step - len(ghost.merged)


def taken_over(ghost: Ghost, co: Coordinator) -> None:
    """M-45: nobody who votes is left, and the cycle that was pending is over without its finish."""
    require(ghost.forgot and not ghost.voting, "M-45", f"ranks {sorted(ghost.voting)} vote, and are passed over")
    ghost.arms_open = 0


LOST = {"journal": moved_forward, "voters": taken_over}
"""What an alert on the accounting says of a lost journal, by its path."""
