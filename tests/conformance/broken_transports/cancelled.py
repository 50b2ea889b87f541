"""Calls that are cancelled, and what is left of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import trio

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock, Exiting
from paceline.transports.api import Channel, Place

from .base import SoundChannel, SoundTransport


class SendsIntoNothing(SoundTransport):
    """A message that cannot be sent is nobody's concern: the peer will find out."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            with suppress(TransportError):
                await self.inner.send(message)


class TearsAMessageOnCancellation(SoundTransport):
    """Sends a long message as two. When the sender is cancelled between them, the receiver makes do with the first."""

    class layer(SoundChannel):
        BEGUN = 1000

        async def send(self, message: Any) -> None:
            if isinstance(message, Exiting) and len(message.reason) > self.BEGUN:
                await self.inner.send(Exiting(reason=message.reason[: self.BEGUN], report_seq=2**40))
                message = attrs.evolve(message, reason=message.reason[self.BEGUN :])
            await self.inner.send(message)

        async def receive(self) -> Any:
            message = await self.inner.receive()
            if isinstance(message, Exiting) and message.report_seq == 2**40:
                rest = ""
                with suppress(TransportError):  # it does not come any more
                    rest = (await self.inner.receive()).reason
                return Exiting(reason=message.reason + rest)
            return message


class ReadsOnWhenCancelled(SoundTransport):
    """A reader of its own fills the memory of a block, whoever has it by then."""

    class layer(SoundChannel):
        def __init__(self, inner: Channel) -> None:
            super().__init__(inner)
            self.over: trio.Event | None = None

        async def receive_bulk(self, place: Place) -> BulkBlock:
            if self.over is not None:
                await self.over.wait()
                raise TransportError(f"link to {self.peer}: the reader is gone")
            self.over = over = trio.Event()
            found: list[Any] = []

            async def read() -> None:
                try:
                    found.append(await self.inner.receive_bulk(place))
                except Exception as error:
                    found.append(error)
                over.set()

            trio.lowlevel.spawn_system_task(read)
            await over.wait()
            self.over = None
            if isinstance(found[0], Exception):
                raise found[0]
            return found[0]  # type: ignore[no-any-return]


class ClosesWhenCancelled(SoundTransport):
    """A receive that is cancelled while nothing comes ends its channel."""

    class layer(SoundChannel):
        async def receive(self) -> Any:
            try:
                return await self.inner.receive()
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self.inner.aclose()
                raise
