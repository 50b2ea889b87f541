"""The star averager in the coordinator's process: bulk lanes in, one streamed sum, bulk lanes out (R-11).

`StarAverager` is the passive half and knows what may be added when. This module moves the bytes: it reads a rank's
lane only while there is memory for its next block, reduces in a thread, lets `RoundReduced` reach the machine before
a byte of the scatter leaves (R-2), and scatters to all receivers at once. Files are written in threads, after the
scatter, so a slow disk delays no average (K-7).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.errors import CheckpointError, RemoteProtocolError, TransportError
from ..core.messages import BulkBlock, Contribution, RoundKind
from ..core.schema import Schema
from ..transports.api import Channel
from ..transports.codec import decode_record, encode_record
from ..transports.driver import CoordinatorDriver
from .averager import Averager
from .checkpoint import save_flat
from .layout import header_block

__all__ = ["StarServer"]

MAX_HEADER = 64 * 1024
"""Most bytes of a contribution header: it is a small map, and memory is given before it is read (N-25)."""


class StarServer:
    """The data plane of a coordinator; `make` builds the averager once the schema of the run is known."""

    def __init__(self, schema: Callable[[], Schema | None], make: Callable[[Schema], Averager]) -> None:
        self._schema = schema
        self._make = make
        self._averager: Averager | None = None
        self._channels: dict[int, tuple[int, Channel]] = {}
        self._changed = trio.Event()
        self._scopes: dict[int, trio.CancelScope] = {}
        self._announced: dict[int, tuple[int, int]] = {}
        self._saves: list[fx.SaveConsensus | fx.WriteMeta] = []
        self._driver: CoordinatorDriver | None = None
        self._busy = False
        self._deferred: list[Any] = []
        self._meta: dict[str, Any] | None = None

    # --- orders --------------------------------------------------------------------------------------------------

    def perform(self, effect: Any) -> None:
        """See `DataPlane.perform`."""
        if isinstance(effect, (fx.SaveConsensus, fx.WriteMeta)):
            self._saves.append(effect)
        elif self._busy:
            self._deferred.append(effect)  # a reduce in its thread owns the averager
        else:
            self._round(effect)
        self._notify()

    def _round(self, effect: Any) -> None:
        averager = self._built()
        if isinstance(effect, fx.OpenRound):
            self._stop_scatter()
            averager.open(effect)
        elif isinstance(effect, fx.AdmitContribution):
            self._post(averager.admit(effect))
        elif isinstance(effect, fx.RemoveFromRound):
            scope = self._scopes.pop(effect.rank, None)
            if scope is not None:
                scope.cancel()
            self._post(averager.remove(effect))
        elif isinstance(effect, fx.AbortRound):
            self._stop_scatter()
            averager.abort(effect)
        elif isinstance(effect, fx.CloseRound):
            averager.close(effect)

    def _built(self) -> Averager:
        if self._averager is None:
            schema = self._schema()
            assert schema is not None, "a round opens only after a rank was admitted"
            self._averager = self._make(schema)
        return self._averager

    def _post(self, events: tuple[Any, ...]) -> None:
        if self._driver is not None:
            for event in events:
                self._driver.post(event)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _stop_scatter(self) -> None:
        for scope in self._scopes.values():
            scope.cancel()
        self._scopes.clear()

    # --- lanes in ------------------------------------------------------------------------------------------------

    async def serve(self, rank: int, incarnation: int, channel: Channel) -> None:
        """Read the contributions of one incarnation until its lane ends."""
        self._channels[rank] = (incarnation, channel)
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
            if block.key.kind == RoundKind.COUNTS or self._averager is None:
                if block.bytes > MAX_HEADER:
                    raise RemoteProtocolError(f"a header of {block.bytes} bytes, the limit is {MAX_HEADER}", rank=rank)
                memory = memoryview(bytearray(block.bytes))
            else:
                memory = self._averager.place(block)
            return memory

        block = await channel.receive_bulk(place)
        averager = self._averager
        if averager is None:
            return
        if block.key.kind == RoundKind.COUNTS:
            contribution = decode_record(Contribution, memory)
            self._announced[rank] = (contribution.cycle, contribution.attempt)
            self._post(averager.on_header(rank, incarnation, block.attempt, contribution))
        else:
            while self._busy:  # a reduce in its thread owns the averager
                await self._changed.wait()
            self._post(averager.on_block(block))

    # --- reduce and scatter --------------------------------------------------------------------------------------

    async def run(self, driver: CoordinatorDriver) -> None:
        """Reduce when everything is in, scatter, write files when nothing else is to be done."""
        self._driver = driver
        async with trio.open_nursery() as nursery:
            while True:
                if self._averager is not None and self._averager.collected:
                    await self._reduce(self._averager, driver, nursery)
                elif self._saves:
                    await self._save(self._saves.pop(0))
                else:
                    await self._changed.wait()

    async def _reduce(self, averager: Averager, driver: CoordinatorDriver, nursery: trio.Nursery) -> None:
        self._busy = True
        try:
            event = await trio.to_thread.run_sync(averager.reduce)
        finally:
            self._busy = False
            deferred, self._deferred = self._deferred, []
            for effect in deferred:
                self._round(effect)
            self._notify()
        await driver.settle(event)
        if isinstance(event, ev.RoundReduced):
            for rank in averager.receivers(event.key, event.attempt):
                self._scopes[rank] = trio.CancelScope()
                nursery.start_soon(self._scatter, averager, rank, event, self._scopes[rank])

    async def _scatter(self, averager: Averager, rank: int, event: ev.RoundReduced, scope: trio.CancelScope) -> None:
        """Send one receiver its result. A lane that ends is told by the control lane; here it is nothing new."""
        incarnation, channel = self._channels.get(rank, (0, None))
        with scope:
            # A member has shipped, an observer has not: what it is sent before it has prepared this attempt it would
            # have to drop. Its header says that it has.
            while self._announced.get(rank) != (event.key.cycle, event.attempt):
                await self._changed.wait()
            if channel is None or scope.cancel_called or rank not in averager.receivers(event.key, event.attempt):
                return
            result, blocks = averager.scatter(rank)
            data = memoryview(encode_record(result))
            head = header_block(event.key, event.attempt, rank, incarnation, len(data))
            try:
                await channel.send_bulk(head, data)
                for block, body in blocks:
                    await channel.send_bulk(block, body)
            except TransportError:
                return
        averager.on_scattered(rank)

    # --- files ---------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Write what is still to be written."""
        while self._saves:
            await self._save(self._saves.pop(0))

    async def _save(self, order: fx.SaveConsensus | fx.WriteMeta) -> None:
        if isinstance(order, fx.WriteMeta):
            self._meta = order.record  # the record goes into place last, once the file it names is there (K-8)
            return
        error: str | None = None
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self._write, order)
            except (CheckpointError, OSError) as failure:
                error = str(failure)
        if self._driver is not None:
            self._driver.post(ev.ConsensusSaved(order.decision_id, order.version, error))

    def _write(self, order: fx.SaveConsensus) -> None:
        averager, schema = self._averager, self._schema()
        if averager is None or schema is None or averager.consensus is None:
            raise CheckpointError("there is no consensus to write yet")
        path = Path(f"{order.stem}.safetensors")
        path.parent.mkdir(parents=True, exist_ok=True)
        with averager.reading() as flat:
            save_flat(path, schema, flat, {"version": str(order.version), "averager": "star"})
        if self._meta is not None:
            record = {**self._meta, "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}}
            _replace(Path(f"{order.stem}.meta.json"), json.dumps(record, indent=1, sort_keys=True))


def _replace(path: Path, text: str) -> None:
    """Write a small file whole or not at all (K-8)."""
    temporary = path.with_name(f".{path.name}.part")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
