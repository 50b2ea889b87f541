"""The star averager in the coordinator's process: bulk lanes in, one streamed sum, bulk lanes out (R-11).

`StarAverager` is the passive half and knows what may be added when. This module moves the bytes: it reads a rank's
lane only while there is memory for its next block, reduces in a thread, lets `RoundReduced` reach the machine before
a byte of the scatter leaves (R-2), and scatters to all receivers at once. Files are written in threads by a task of
their own, from the consensus as it was when they were ordered, so a slow disk delays no average (K-7).

A scatter that is overtaken by another attempt, or whose receiver is gone, stops between two blocks. It is never
cancelled: a frame that is torn would cost a healthy rank its link (N-4).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import CheckpointError, RemoteProtocolError, TransportError
from ..core.messages import BulkBlock, Contribution, RoundKey, RoundKind
from ..core.schema import Schema
from ..transports.api import Channel
from ..transports.codec import decode_record, encode_record
from ..transports.driver import CoordinatorDriver
from .averager import Averager, RoundEvent
from .backlog import Backlog, left_out
from .bundle import replacing_weights, write_record
from .layout import FlatLayout, header_block
from .tensor_file import save_flat
from .transfer import Passage, Relay

__all__ = ["StarServer"]

MAX_HEADER = 64 * 1024
"""Most bytes of a contribution header: it is a small map, and memory is given before it is read (N-25)."""


PROGRESS_S = 1.0
"""Least time between two reports of progress of one rank (R-11)."""
PROGRESS_BYTES = 1 << 20
"""Least growth between two reports of progress, but for the end of a contribution (R-11)."""


@attrs.frozen
class _Told:
    """The last progress of a rank that the coordinator was told."""

    key: RoundKey
    bytes: int
    at: float


@attrs.frozen(eq=False)
class _Bundle:
    """Files to write: the consensus of the instant of the order, held for its writer, and the record about it."""

    order: fx.SaveConsensus
    record: dict[str, Any] | None
    flat: memoryview | None
    held: ExitStack


class StarServer:
    """The data plane of a coordinator; `make` builds the averager once the schema of the run is known."""

    def __init__(self, schema: Callable[[], Schema | None], make: Callable[[Schema], Averager]) -> None:
        self._schema = schema
        self._make = make
        self._averager: Averager | None = None
        self._channels: dict[int, tuple[int, Channel]] = {}
        self._changed = trio.Event()
        self._announced: dict[int, tuple[int, int]] = {}
        self._told: dict[int, _Told] = {}
        self._bundles: Backlog[_Bundle] = Backlog()
        self._record: dict[str, Any] | None = None
        self._driver: CoordinatorDriver | None = None
        self._busy = False
        self._deferred: list[Any] = []
        self.failure: str | None = None
        """Why the newest bundle could not be written, None if it was."""
        self._relay = Relay()

    # --- orders --------------------------------------------------------------------------------------------------

    def perform(self, effect: Any) -> None:
        """See `DataPlane.perform`."""
        if isinstance(effect, fx.WriteMeta):
            self._record = effect.record  # goes into place last, once the file it names is there (K-8)
        elif isinstance(effect, fx.SaveConsensus):
            self._queue(self._bundle(effect))
        elif isinstance(effect, (fx.OpenRound, fx.CloseRound)) and effect.key.is_transfer:
            schema = self._schema()
            assert schema is not None, "a transfer needs a joiner"
            own = isinstance(effect, fx.OpenRound) and not effect.observers
            self._relay.perform(effect, FlatLayout.riding(schema) if own else FlatLayout.static(schema))
        elif self._busy:
            self._deferred.append(effect)  # a reduce in its thread owns the averager
        else:
            self._round(effect)
        self._notify()

    def _round(self, effect: Any) -> None:
        averager = self._built()
        if isinstance(effect, fx.OpenRound):
            averager.open(effect)
        elif isinstance(effect, fx.AdmitContribution):
            self._post(averager.admit(effect))
        elif isinstance(effect, fx.RemoveFromRound):
            self._post(averager.remove(effect))
        elif isinstance(effect, fx.AbortRound):
            averager.abort(effect)
        elif isinstance(effect, fx.CloseRound):
            averager.close(effect)

    def _built(self) -> Averager:
        if self._averager is None:
            schema = self._schema()
            assert schema is not None, "a round opens only after a rank was admitted"
            self._averager = self._make(schema)
        return self._averager

    def _post(self, events: tuple[RoundEvent, ...]) -> None:
        if self._driver is not None:
            for event in events:
                if not isinstance(event, ev.RoundProgress) or self._worth_telling(event):
                    self._driver.post(event)
        self._notify()

    def _worth_telling(self, event: ev.RoundProgress) -> bool:
        """R-11: an averager tells every block, the coordinator wants to hear of a rank once a second at most. The end
        of a contribution is always told: who has shipped all of it owes nothing any more (M-10)."""
        now, told = trio.current_time(), self._told.get(event.rank)
        if told is not None:
            known = told.bytes if told.key == event.key else 0
            grown = event.bytes - known >= PROGRESS_BYTES
            if not event.complete and (not grown or now < told.at + PROGRESS_S):
                return False
        self._told[event.rank] = _Told(event.key, event.bytes, now)
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- lanes in ------------------------------------------------------------------------------------------------

    async def serve(self, rank: int, incarnation: int, channel: Channel) -> None:
        """Read the contributions of one incarnation until its lane ends."""
        self._channels[rank] = (incarnation, channel)
        self._announced.pop(rank, None)
        try:
            while True:
                while self._busy or (self._averager is not None and not self._averager.ready_for(rank)):
                    await self._changed.wait()
                await self._one_block(rank, incarnation, channel)
        finally:
            if self._channels.get(rank) == (incarnation, channel):
                del self._channels[rank]
                self._announced.pop(rank, None)

    async def _one_block(self, rank: int, incarnation: int, channel: Channel) -> None:
        memory = memoryview(b"")

        def place(block: BulkBlock) -> memoryview:
            nonlocal memory
            if (block.rank, block.incarnation) != (rank, incarnation):
                raise RemoteProtocolError(f"a block names rank {block.rank}, the lane is of rank {rank}", rank=rank)
            if block.key.is_transfer:
                memory = self._relay.place(block)
            elif block.key.kind == RoundKind.COUNTS or self._averager is None:
                if block.bytes > MAX_HEADER:
                    raise RemoteProtocolError(f"a header of {block.bytes} bytes, the limit is {MAX_HEADER}", rank=rank)
                memory = memoryview(bytearray(block.bytes))
            else:
                memory = self._averager.place(block)
            return memory

        block = await channel.receive_bulk(place)
        if block.key.is_transfer:
            self._relay.on_block(block)
            self._notify()
            return
        while self._busy:  # a reduce in its thread owns the averager
            await self._changed.wait()
        averager = self._averager
        if averager is None:
            return
        if block.key.kind == RoundKind.COUNTS:
            contribution = decode_record(Contribution, memory)
            self._announced[rank] = (contribution.cycle, contribution.attempt)
            self._post(averager.on_header(rank, incarnation, block.attempt, contribution))
        else:
            self._post(averager.on_block(block))

    # --- reduce and scatter --------------------------------------------------------------------------------------

    async def run(self, driver: CoordinatorDriver) -> None:
        """Reduce when everything is in, scatter, and write files beside it."""
        self._driver = driver
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_files, driver)
            while True:
                for passage in self._relay.take_complete():
                    if passage.joiner is None:
                        self._restore(passage, driver)
                    else:
                        nursery.start_soon(self._pass_on, passage, passage.joiner)
                if self._averager is not None and self._averager.collected:
                    await self._reduce(self._averager, driver, nursery)
                else:
                    await self._changed.wait()

    async def _reduce(self, averager: Averager, driver: CoordinatorDriver, nursery: trio.Nursery) -> None:
        self._busy = True
        event = await trio.to_thread.run_sync(averager.reduce)
        self._busy = False
        deferred, self._deferred = self._deferred, []
        for effect in deferred:
            self._round(effect)
        self._notify()
        await driver.settle(event)
        if isinstance(event, ev.RoundReduced):
            for rank in averager.receivers(event.key, event.attempt):
                nursery.start_soon(self._scatter, averager, rank, event)

    async def _scatter(self, averager: Averager, rank: int, event: ev.RoundReduced) -> None:
        """Send one receiver its result. A lane that ends is told by the control lane; here it is nothing new."""

        def wanted() -> bool:
            return rank in averager.receivers(event.key, event.attempt)

        # A member has shipped, an observer has not: what it is sent before it has prepared this attempt it would
        # have to drop. Its header says that it has.
        while self._announced.get(rank) != (event.key.cycle, event.attempt):
            if not wanted():
                return
            await self._changed.wait()
        if not wanted():
            return
        incarnation, channel = self._channels[rank]
        result, blocks = averager.scatter(rank)
        data = memoryview(encode_record(result))
        head = header_block(event.key, event.attempt, rank, incarnation, len(data))
        with ExitStack() as held:
            if blocks:
                held.enter_context(averager.reading())  # the last block may leave after the next consensus is made
            try:
                await channel.send_bulk(head, data)
                for block, body in blocks:
                    if not wanted():
                        return
                    await channel.send_bulk(block, body)
            except TransportError:
                return
        if wanted():
            averager.on_scattered(rank)

    def _restore(self, passage: Passage, driver: CoordinatorDriver) -> None:
        """M-44: the consensus is back; no round is open while it is missing, so nobody else uses the averager."""
        assembly = passage.assembly
        self._built().restore(assembly.memory)
        driver.post(ev.RoundProgress(assembly.key, passage.donor[0], len(assembly.memory), True))

    async def _pass_on(self, passage: Passage, joiner: tuple[int, int]) -> None:
        """The static part of the state to its joiner (M-24). One that has gone meanwhile is told by its control lane;
        what was begun for it ends between two blocks (N-4)."""
        rank, incarnation = joiner
        while self._relay.wanted(passage):
            known, channel = self._channels.get(rank, (None, None))
            if channel is None or known != incarnation:
                await self._changed.wait()
                continue
            try:
                for block, body in passage.blocks():
                    if not self._relay.wanted(passage):
                        return
                    await channel.send_bulk(block, body)
            except TransportError:
                pass
            return

    # --- files ---------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until every file that was ordered is written."""
        while self._bundles:
            await self._changed.wait()

    def _queue(self, bundle: _Bundle) -> None:
        replaced, gone = self._bundles.put(bundle.order.stem, bundle)
        for old in (*replaced, *gone):
            old.held.close()
        for order in (old.order for old in gone):
            if self._driver is not None:
                self._driver.post(ev.ConsensusSaved(order.decision_id, order.version, left_out(order.stem)))

    def _bundle(self, order: fx.SaveConsensus) -> _Bundle:
        """What lies in the averager now is what the order means; the next average may be under way."""
        held, flat = ExitStack(), None
        if self._averager is not None and self._averager.consensus is not None:
            flat = held.enter_context(self._averager.reading())
        record, self._record = self._record, None
        return _Bundle(order, record, flat, held)

    async def _write_files(self, driver: CoordinatorDriver) -> None:
        while True:
            while not self._bundles:
                await self._changed.wait()
            bundle = self._bundles.first
            order = bundle.order
            path = Path(f"{order.stem}.safetensors")
            with bundle.held, trio.CancelScope(shield=True):
                error = await _attempt(self._write_consensus, path, bundle)
                self.failure = error
                driver.post(ev.ConsensusSaved(order.decision_id, order.version, error))
                if bundle.record is not None and error is None:
                    error = await _attempt(_write_record, path, bundle)
                    self.failure = error
                    driver.post(ev.MetaWritten(order.decision_id, order.version, error))
            self._bundles.done()
            self._notify()

    def _write_consensus(self, path: Path, bundle: _Bundle) -> None:
        schema = self._schema()
        if schema is None or bundle.flat is None:
            raise CheckpointError("there is no consensus to write yet")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_weights(path):
            save_flat(path, schema, bundle.flat, {"version": str(bundle.order.version), "averager": "star"})


async def _attempt(write: Callable[[Path, _Bundle], None], path: Path, bundle: _Bundle) -> str | None:
    """Write in a thread; gives the error in words, or None."""
    try:
        await trio.to_thread.run_sync(write, path, bundle)
    except (CheckpointError, OSError) as failure:
        return str(failure)
    return None


def _write_record(path: Path, bundle: _Bundle) -> None:
    write_record(path, bundle.record or {})
