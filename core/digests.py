"""Whether all ranks hold the same bytes: of a consensus (protocol C-18, C-6), or of the state they begin from (M-6)."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from . import messages as m
from .effects import Alert

if TYPE_CHECKING:
    from .cycle import Cycle

__all__ = ["by_digest", "compare_norms", "minority", "owed", "refuse"]

AVERAGER = -1
"""Stands for the averager among the ranks whose digests are compared."""
NORM_TOLERANCE = 1e-6
"""Relative difference of two post-norms of one cycle that is worth an alert (C-6)."""
SHOWN = 8
"""Of so many digests it is told who has them: where each rank has another one, a few tell as much as all."""


def owed(cycle: Cycle) -> bool:
    """Whether what a rank holds has a name: what it has brought (M-6), or what it was delivered. A cycle that is not
    realized delivers nothing new (R-8), and where the averager says no digest itself there is none to compare with."""
    made = cycle.reduced
    named = cycle.co.config.digest and made is not None and made.realized and made.digest is not None
    return named or cycle.checking


def minority(cycle: Cycle) -> tuple[int, ...] | None:
    """The ranks that were delivered other bytes than more than half, ascending; None if no more than half agree."""
    digests = _of(cycle)
    if not digests:
        return ()
    best, count = Counter(digests.values()).most_common(1)[0]
    if 2 * count <= len(digests):
        return None
    return tuple(sorted(rank for rank, digest in digests.items() if digest != best and rank != AVERAGER))


def by_digest(cycle: Cycle) -> dict[bytes, list[int]]:
    """Who holds which bytes: the ranks of each digest, ascending, by the lowest of them."""
    found: dict[bytes, list[int]] = {}
    for rank, digest in _of_ranks(cycle).items():
        found.setdefault(digest, []).append(rank)
    return found


def refuse(cycle: Cycle) -> None:
    """M-6: there is no run. It is told which rank brought which state, those that most ranks have first, and what to do
    about it."""
    groups = sorted(by_digest(cycle).items(), key=lambda group: (-len(group[1]), group[1]))
    told = [f"{_named(ranks)} {digest.hex()}" for digest, ranks in groups[:SHOWN]]
    more = sum(len(ranks) for _, ranks in groups[SHOWN:])
    rest = f", and {more} ranks still others" if more else ""
    text = (
        f"the ranks do not begin from the same state, and initial_state = 'check' sends none: {', '.join(told)}{rest}; "
        "give every rank the same weights and buffers, by one seed or one file, or set initial_state = 'rank' to begin "
        "from those of the lowest rank"
    )
    cycle.co.emit(Alert("digest_mismatch", f"cycle {cycle.number}", text, critical=True))
    cycle.co.condemn(m.SaveReason.CONSENSUS_MISMATCH, text)


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


def compare_norms(cycle: Cycle, norm: float) -> None:
    """C-6: said once, when the first one differs. A norm that is no number is no norm of a consensus (R-6), and none
    that comes after it makes up for that."""
    before = cycle.post_norms
    if not math.isfinite(norm):
        cycle.post_norms = math.nan, math.nan
    else:
        low, high = before or (norm, norm)
        cycle.post_norms = min(low, norm), max(high, norm)
    if _differ(cycle.post_norms) and not (before and _differ(before)):
        text = "post-norms from {} to {}".format(*cycle.post_norms)
        cycle.co.emit(Alert("norm_mismatch", f"cycle {cycle.number}", text))


def _differ(norms: tuple[float, float]) -> bool:
    """Whether the lowest and highest norm are too far apart to be of one consensus (C-6)."""
    low, high = norms
    return not high - low <= NORM_TOLERANCE * high


def _of(cycle: Cycle) -> dict[int, bytes]:
    """Digests of who acknowledged, the averager's own as rank AVERAGER."""
    if not cycle.co.config.digest:
        return {}
    known = _of_ranks(cycle)
    if cycle.reduced is not None and cycle.reduced.digest is not None and known:
        known[AVERAGER] = cycle.reduced.digest
    return known


def _of_ranks(cycle: Cycle) -> dict[int, bytes]:
    """Digests of who acknowledged, and has not left since."""
    peers = [cycle.co.peers[rank] for rank in cycle.participants if cycle.takes_part(rank)]
    return {peer.rank: peer.digest for peer in peers if peer.digest is not None and peer.alive}
