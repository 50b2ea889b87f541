"""Numbers and records in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.waiting import NAMED

__all__ = ["alert_in_words", "counted", "ranks_in_words", "waited_in_words", "waiting_in_words"]

SIGNS = {
    "hello": "its hello", "Batch": "a step", "Metrics": "the end of a plan", "SnapshotReady": "its copy",
    "RoundProgress": "bytes of its upload", "SyncAck": "an acknowledgement", "EvalResult": "an evaluation",
    "CheckpointResult": "a checkpoint", "EpochFnElapsed": "the end of a callback",
}  # fmt: skip
"""What a training thread shows, by the name of its report (M-2)."""
SHOWN = 8
"""Ranks that are listed one by one."""


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 cycle`, `2 cycles`, `1,000 cycles`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def ranks_in_words(ranks: Sequence[int | str]) -> str:
    """`rank 5`, `ranks 1, 3 and 5`; of many the first ones, and how many more."""
    listed = [str(rank) for rank in ranks[:SHOWN]]
    if len(ranks) > SHOWN:
        listed.append(f"{len(ranks) - SHOWN:,} more")
    together = " and ".join([", ".join(listed[:-1]), listed[-1]]) if listed[1:] else listed[0]
    return f"rank{'s' if listed[1:] else ''} {together}"


def alert_in_words(path: str, text: str, count: int) -> str:
    """An alert (O-2); `count` of more than one says how often it was given so far."""
    return f"{path}: {text}" + (f" ({count:,} times so far)" if count > 1 else "")


def waiting_in_words(facts: Mapping[str, Any]) -> str:
    """The line of a `Waiting` (O-3): who is waited for and why, the last sign of those ranks, the next step."""
    whom = f" for {ranks_in_words(facts['missing'])}" if facts["missing"] else ""
    why = "; ".join([*([facts["why"]] if facts["why"] else []), *facts["what"]])
    line = f"waiting{whom} for {facts['waited_s']:.0f} s (cycle {facts['cycle']}, {facts['during']})"
    line += f": {why}" if why else ""
    seen = sorted([(sign["ago_s"], rank, sign["kind"]) for rank, sign in facts["progress"].items() if sign])
    signs = [f"rank {rank} {SIGNS.get(kind, kind)} {ago:.0f} s ago" for ago, rank, kind in seen[-NAMED:]]
    line += f"; last sign: {', '.join(signs)}" if signs else ""
    return line + (f"; in {facts['next_s']:.0f} s {facts['next']}" if facts["next"] else "")


def waited_in_words(facts: Mapping[str, Any]) -> str:
    """The line of a `Waited` (O-3): `rank 5 arrived after 45 s`."""
    ends: dict[str, list[str]] = {}
    for rank, how in facts["how"].items():
        ends.setdefault(how, []).append(rank)
    told = [f"{ranks_in_words(ranks)} {how}" for how, ranks in ends.items()] or ["the wait is over"]
    return f"{'; '.join(told)} after {facts['waited_s']:.0f} s"
