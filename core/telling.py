"""What many ranks are told, in one loop that is written out for each kind of message (protocol N-9, N-11).

Most of what a cohort is told it is told alike, and a finish says three things to each rank. So the messages of one kind
are made, numbered, kept and sent in one pass. A copy that is written out field by field costs a third of what the
constructor does, which has to sort out each time which of its arguments is which; one loop took about four fifths of
the time of one call each for copy, lane and effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs

from .control_messages import Control
from .effects import Send
from .retention import MOST_BYTES, MOST_MESSAGES

if TYPE_CHECKING:
    from .peer import Peer

__all__ = ["teller"]

STAMP = {
    "rank": "peer.rank", "incarnation": "peer.incarnation", "control_seq": "number", "report_seq": "peer.report_seq",
}  # fmt: skip
"""What of a message is its reader's, and where it comes from."""

LOOP = """
def told(like, peers, rows, sizes, outbox):
    overfull = []
    {shared}
    for peer, row, size in zip(peers, rows, sizes):
        number = peer.control_seq = peer.control_seq + 1
        made = new(kind)
        {copied}
        lane = peer.retained
        kept = lane.kept
        kept.append((number, size, made))
        lane.bytes = weighs = lane.bytes + size
        if weighs > MOST_BYTES or len(kept) > MOST_MESSAGES:
            overfull.append(peer)
        if peer.attached:
            sent = new(Send)
            sent.message = made
            outbox.append(sent)
    return overfull
"""
"""`Retained.append` and the constructor of `Send` are written out in it."""

Told = Callable[[Control, "Iterable[Peer]", Iterable[Any], Iterable[int], list[Any]], "list[Peer]"]


@functools.cache
def teller(kind: type[Control], own: tuple[str, ...] = ()) -> Told:
    """A function of `like`, peers, and for each of them a tuple of the fields named in `own` and the weight of its
    message, and of the outbox: each peer is told what `like` says, under its next number, but for its own fields. It
    gives the peers whose lane is overfull now.
    """
    shared = [field.name for field in attrs.fields(kind) if field.name not in own and field.name not in STAMP]
    copied = [f"made.{name} = {name}" for name in shared] + [f"made.{name} = {where}" for name, where in STAMP.items()]
    copied += [f"{''.join(f'made.{name}, ' for name in own)}= row"] if own else []
    looked_up = "\n    ".join(f"{name} = like.{name}" for name in shared)
    source = LOOP.format(shared=looked_up, copied="\n        ".join(copied))
    known: dict[str, Any] = {
        "kind": kind, "new": object.__new__, "Send": Send, "MOST_BYTES": MOST_BYTES, "MOST_MESSAGES": MOST_MESSAGES,
    }  # fmt: skip
    exec(source, known)
    told: Told = known["told"]
    return told
