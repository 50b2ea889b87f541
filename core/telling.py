"""How ranks are told something: stamped, numbered, reserved, kept, sent (protocol N-9 to N-11, M-42).

`Coordinator.tell` is the one way here. What one rank is told is made once and sent as it is; every end of a plan brings
such a message (D-9). Most of what a cohort is told it is told alike, and a finish says three things to each rank: what
many are told is made, numbered, kept and sent in one loop, which is written out for each kind of message. A copy field
by field costs a third of what the constructor does, which has to sort out each time which of its arguments is which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import attrs

from .control_messages import Control
from .effects import Send
from .errors import InvariantError
from .message_types import Plan
from .retention import MOST_BYTES, MOST_MESSAGES, weight, weights
from .values import maker

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = ["tell_many", "tell_one", "teller"]

new_send: Callable[..., Send] = maker(Send)


def tell_one(co: Coordinator, peer: Peer, kind: Any, fields: Mapping[str, Any]) -> None:
    """One rank, with a value for each field of the message that is no stamp."""
    if not peer.attached and not peer.detached:  # who has left or died is told nothing
        return
    number = peer.control_seq = peer.control_seq + 1
    message = maker(kind)(co.config.run_id, co.generation, peer.rank, peer.incarnation, number, peer.report_seq,
                          **fields)  # fmt: skip
    _reserve(co, peer, fields.get("plan"))
    if peer.retained.append(number, message, weight(message)):
        _overflow(co, peer)
    if peer.attached:
        co.outbox.append(new_send(message))


def tell_many(
    co: Coordinator, ranks: Sequence[int], kind: type[Control], own: Mapping[str, Sequence[Any]],
    fields: Mapping[str, Any],
) -> None:  # fmt: skip
    """All of these ranks, in this order, the same but for the fields in `own`, which have a value per rank."""
    if any([len(column) != len(ranks) for column in own.values()]):
        sizes = {name: len(column) for name, column in own.items()}
        raise InvariantError(f"{kind.__name__} to {len(ranks)} ranks: a value for each is needed, here are {sizes}")
    peers = list(map(co.peers.__getitem__, ranks))
    if not all([peer.attached for peer in peers]):
        reached = [peer.reachable for peer in peers]
        peers = list(compress(peers, reached))
        own = {name: list(compress(column, reached)) for name, column in own.items()}
    if not peers:
        return
    first = {name: column[0] for name, column in own.items()}
    like: Any = kind(run_id=co.config.run_id, generation=co.generation, **fields, **first)
    rows = zip(*own.values(), strict=True) if own else repeat(())
    overfull = teller(like.__class__, tuple(own))(like, peers, rows, weights(like, own), co.outbox)
    if "next_plan" in own or "plan" in fields:
        for peer, plan in zip(peers, own.get("next_plan") or repeat(fields.get("plan")), strict=False):
            _reserve(co, peer, plan)
    for peer in overfull:
        _overflow(co, peer)


def _reserve(co: Coordinator, peer: Peer, plan: Plan | None) -> None:
    """N-10: the plan in the message that this rank was told last."""
    if plan is not None:
        peer.tokens[peer.control_seq] = plan.plan_id
        if plan.epoch > peer.entered_epoch:
            co.actions.entered(peer)


def _overflow(co: Coordinator, peer: Peer) -> None:
    """N-9: a rank that confirms nothing for so long has ended."""
    co.lose(peer.rank, f"overflow: {len(peer.retained)} messages are not confirmed")


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
