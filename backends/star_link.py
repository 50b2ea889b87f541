"""The star averager inside a rank: ship a copy, receive the consensus, stage it (W-10, W-11, R-16).

The training thread takes the copy (`offer`) and later adopts what is staged (`take`); everything between happens in
the trio thread. The order per attempt is that of W-10: copy, SnapshotReady, upload, consensus, triple, SyncAck. The
numbers over a whole model (finite, triple, digest) are computed in a thread, so heartbeats go on (N-5).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack

import attrs
import trio

from ..core import effects as fx
from ..core import events as ev
from ..core import messages as m
from ..core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from ..transports.api import Channel
from ..transports.codec import decode_record, encode_record
from ..transports.groups import first_error
from ..transports.rank_driver import RankDriver
from .divergence import digest, divergence
from .flat import FlatModel, Snapshot
from .layout import DoubleBuffer, allocate, header_block
from .star_client import ConsensusReceiver, Staged, contribute_blocks
from .transfer import Assembly, discarded

__all__ = ["StarLink"]

MAX_RESULT = 64 * 1024
"""Most bytes of a result header (N-25)."""


@attrs.define(eq=False)
class _Attempt:
    """One attempt of a round at this rank: what is shipped, what comes back, and what is staged of it when all of it
    is here."""

    order: fx.TakeSnapshot
    snapshot: Snapshot | None
    receiver: ConsensusReceiver
    key: m.RoundKey
    staged: Staged | None = None


class StarLink:
    """See the module. One rank has one of it, whatever channels come and go: what a broken one had in transit is
    shipped again when the coordinator asks for the next attempt (M-42). `finite` is asked about the copy before it is
    announced (R-4). A rank that joins a running cohort (`joining`) stages nothing before it has the static part of
    the state too (M-24)."""

    def __init__(self, driver: RankDriver, model: FlatModel, *, with_digest: bool, joining: bool = False) -> None:
        self._driver = driver
        self._channel: Channel
        self._model = model
        self._with_digest = with_digest
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._unshipped: _Attempt | None = None
        self._offered = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._buffer = DoubleBuffer(model.riding.nbytes)
        self._lacks_static = joining and model.static.nbytes > 0
        self._static: Assembly | None = None
        self._gifts: deque[tuple[fx.SendState, Snapshot | None]] = deque()
        self._given = trio.Event()

    # --- training thread -----------------------------------------------------------------------------------------

    def offer(self, order: fx.TakeSnapshot, snapshot: Snapshot | None) -> None:
        """A copy is taken (None: header only). From now on this attempt is the one that counts."""
        settings = self._driver.worker.settings
        state = order.cycle == 0
        kind = m.RoundKind.STATE if state else m.RoundKind.PARAMS
        key = m.RoundKey(generation=order.generation, cycle=order.cycle, kind=kind)
        layout = self._model.whole if state else self._model.riding
        memory = allocate(layout.nbytes) if state else self._buffer.spare()
        receiver = ConsensusReceiver(layout, memory, key, order.attempt, settings.rank, settings.incarnation)
        with self._lock:
            self._attempt = self._unshipped = _Attempt(order, snapshot, receiver, key)
            self._lacks_static = self._lacks_static and not state  # cycle 0 brings all of it (M-6, M-45)
        try:
            self._token.run_sync_soon(self._wake)
        except trio.RunFinishedError:
            return  # the link is gone, and an order to stop waits behind the one that led here

    def donate(self, order: fx.SendState, snapshot: Snapshot | None) -> None:
        """The static part for a joiner is copied (M-24), or the averager asks for the retained consensus (None,
        M-44); it leaves beside the contributions, block by block."""
        self._gifts.append((order, snapshot))
        try:
            self._token.run_sync_soon(self._wake_giver)
        except trio.RunFinishedError:
            return  # as in `offer`

    def take_static(self) -> memoryview | None:
        """What a donor sent, once; None if this rank needs nothing of the kind."""
        static, self._static = self._static, None
        return None if static is None or self._lacks_static else static.memory

    def take(self, cycle: int) -> tuple[memoryview | None, bool]:
        """What was staged for a cycle: flat bytes or None (keep), and whether they are a whole state (cycle 0)."""
        with self._lock:
            attempt = self._attempt
        if attempt is None or attempt.order.cycle != cycle or attempt.staged is None:
            raise LocalProtocolError(f"no consensus of cycle {cycle} is staged; adopt what was acknowledged (W-12)")
        return attempt.staged.flat, attempt.key.kind == m.RoundKind.STATE

    def adopted_state(self, flat: memoryview | None) -> None:
        """Version 0, or the one a run resumes from, is in the model: what of it a consensus holds is retained like one
        (R-10). None at the rank that gave it, or brought it: its own copy."""
        with self._lock:
            attempt = self._attempt
        if flat is None and attempt is not None and attempt.snapshot is not None:
            flat = attempt.snapshot.memory
        if flat is not None:
            self._buffer.spare()[:] = flat[: self._buffer.nbytes]
            self._buffer.keep()

    def adopted(self) -> None:
        """The consensus that `take` gave is in the model: it becomes the retained one (R-10)."""
        self._buffer.keep()

    @property
    def retained(self) -> memoryview | None:
        """The consensus adopted last, None before the first (R-10)."""
        return self._buffer.kept

    # --- trio thread ---------------------------------------------------------------------------------------------

    async def run(self, channel: Channel) -> None:
        """Ship and receive over a channel until its lane ends; its end is told by the control lane."""
        self._channel = channel
        self._static = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ship)
                nursery.start_soon(self._give)
                await self._receive()
        except* TransportError:
            pass
        except* RemoteProtocolError as group:
            self._driver.feed(ev.LinkLost(cause=str(first_error(group))))

    def _wake(self) -> None:
        self._offered.set()

    def _wake_giver(self) -> None:
        self._given.set()

    async def _give(self) -> None:
        """Transfers that this rank is the donor of (M-24)."""
        settings = self._driver.worker.settings
        while True:
            await self._given.wait()
            self._given = trio.Event()
            while self._gifts:
                order, snapshot = self._gifts.popleft()
                key = m.transfer_key(order.generation, order.transfer_id)
                with ExitStack() as held:
                    if snapshot is None:
                        layout, memory = self._model.riding, held.enter_context(self._buffer.reading())
                    else:
                        layout, memory = snapshot.layout, snapshot.memory
                    for block, body in layout.cut(memory, key, 0, settings.rank, settings.incarnation):
                        await self._channel.send_bulk(block, body)

    async def _ship(self) -> None:
        """Each attempt once, and only the newest: a second header of one attempt would tear its contribution (R-1)."""
        while True:
            await self._offered.wait()
            self._offered = trio.Event()
            with self._lock:
                attempt, self._unshipped = self._unshipped, None
            if attempt is not None:
                await self._ship_one(attempt)

    async def _ship_one(self, attempt: _Attempt) -> None:
        if attempt.order.check:  # M-6: all that leaves is the digest of what this rank has brought
            await self._stage(attempt, Staged(m.Outcome.OBSERVER, 0, None, None))
            return
        order, snapshot, settings = attempt.order, attempt.snapshot, self._driver.worker.settings
        finite = snapshot is None or await trio.to_thread.run_sync(self._model.finite, snapshot)
        ships = snapshot is not None and finite and not order.header_only
        schema_hash = self._model.schema_hash if snapshot is None else snapshot.schema_hash
        header = m.Contribution(
            run_id=settings.run_id, generation=order.generation, rank=settings.rank,
            incarnation=settings.incarnation, cycle=order.cycle, attempt=order.attempt, schema_hash=schema_hash,
            steps=order.shipped, finite=finite, bytes=len(snapshot.memory) if ships and snapshot is not None else 0,
        )  # fmt: skip
        data = memoryview(encode_record(header))
        head = header_block(attempt.key, order.attempt, settings.rank, settings.incarnation, len(data))
        await self._channel.send_bulk(head, data)
        if not ships or snapshot is None:
            return
        for block, body in contribute_blocks(
            snapshot, attempt.key, order.attempt, settings.rank, settings.incarnation
        ):
            if self._attempt is not attempt:
                return  # a newer attempt is asked for; the averager drops what it has of this one
            await self._channel.send_bulk(block, body)

    async def _receive(self) -> None:
        while True:
            attempt: _Attempt | None = None
            memory = memoryview(b"")

            def place(block: m.BulkBlock) -> memoryview:
                nonlocal attempt, memory
                with self._lock:
                    attempt = self._attempt
                if block.key.is_transfer:
                    memory = self._place_static(block)
                elif block.key.kind == m.RoundKind.COUNTS or attempt is None:
                    if block.bytes > MAX_RESULT:
                        raise RemoteProtocolError(f"a result header of {block.bytes} bytes")
                    memory = memoryview(bytearray(block.bytes))
                else:
                    memory = attempt.receiver.place(block)
                return memory

            block = await self._channel.receive_bulk(place)
            if block.key.is_transfer:
                self._take_static_in(block)
            elif attempt is not None:
                self._take_in(attempt, block, memory)
            current = self._attempt
            if current is None or self._lacks_static:
                continue
            if current.receiver.complete and current.staged is None:
                await self._stage(current, current.receiver.staged())

    def _place_static(self, block: m.BulkBlock) -> memoryview:
        """A transfer that begins anew is that of another donor: the first one is gone (M-24)."""
        if not self._lacks_static:
            return discarded(block)
        if self._static is None or self._static.key != block.key:
            self._static = Assembly.begin(self._model.static, block.key)
        return self._static.place(block)

    def _take_static_in(self, block: m.BulkBlock) -> None:
        static = self._static
        if static is not None and self._lacks_static and static.key == block.key:
            static.arrived += 1
            self._lacks_static = not static.complete

    def _take_in(self, attempt: _Attempt, block: m.BulkBlock, memory: memoryview) -> None:
        if block.key.kind == m.RoundKind.COUNTS:
            attempt.receiver.on_result(block, decode_record(m.RoundResult, memory))
        else:
            attempt.receiver.on_block(block)

    async def _stage(self, attempt: _Attempt, staged: Staged) -> None:
        """Triple and digest, then SyncAck (R-16, C-18). The source of cycle 0 stages its own copy, and so does each
        rank where all have brought the same (M-6)."""
        event = await trio.to_thread.run_sync(self._judge, attempt, staged, attempt.snapshot)
        attempt.staged = staged  # before the machine hears of it, which may order the adoption at once
        self._driver.feed(event)  # of an attempt that is over by now: ignored (W-11)

    def _judge(self, attempt: _Attempt, staged: Staged, own: Snapshot | None) -> ev.ConsensusStaged:
        flat = staged.flat
        if flat is None and attempt.order.state and own is not None:
            flat = own.memory
        name = digest(flat) if flat is not None and (self._with_digest or attempt.order.check) else None
        triple = None
        if own is not None and staged.flat is not None and attempt.key.kind == m.RoundKind.PARAMS:
            triple = divergence(own.layout, own.memory, staged.flat)
        return ev.ConsensusStaged(
            cycle=attempt.order.cycle, attempt=attempt.order.attempt, outcome=staged.outcome,
            total_steps=staged.total_steps, refusal=staged.refusal, digest=name,
            divergence=None if triple is None else triple.divergence,
            pre_norm=None if triple is None else triple.pre_norm,
            post_norm=None if triple is None else triple.post_norm, generation=attempt.order.generation,
        )  # fmt: skip


