"""Deaths of processes, over tcp://: not noticed, hidden, or felt by those whom they do not concern."""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock
from paceline.transports.api import Place

from .base import OverTcp, SoundChannel
from .ends import ForgetsToNoticeDeath, NamesNobody


class WaitsForTheDead(OverTcp):
    """Relies on somebody else's heartbeats."""

    layer = ForgetsToNoticeDeath.layer


class BuriesNobodyByName(OverTcp):
    """Says that somebody is gone, and not who."""

    layer = NamesNobody.layer


class GivesTheLastBlockTwice(OverTcp):
    """At the end of the stream its buffer still holds a block."""

    class layer(SoundChannel):
        last: BulkBlock | None = None

        async def receive_bulk(self, place: Place) -> BulkBlock:
            try:
                self.last = await self.inner.receive_bulk(place)
            except TransportError:
                if self.last is None:
                    raise
            assert self.last is not None
            return self.last


class AsksEachInTurn(OverTcp):
    """One loop for all channels of a process, which waits for each of them in turn."""

    class layer(SoundChannel):
        turns: ClassVar[list[SoundChannel]] = []

        async def receive(self) -> Any:
            for other in self.turns:
                if other is not self:
                    await other.inner.receive()
            self.turns.append(self)
            return await self.inner.receive()

        async def aclose(self) -> None:
            self.turns.clear()
            await self.inner.aclose()
