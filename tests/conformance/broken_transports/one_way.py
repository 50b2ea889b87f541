"""What is right at one end only: faults that show in one of the two directions."""

from __future__ import annotations

from typing import Any

from paceline.core.messages import SaveConsensusModel
from paceline.transports.api import Channel, Credentials, Listener

from . import cancelled, ends, load, order
from .base import SoundChannel, SoundTransport


class _AtTheCoordinator(SoundTransport):
    """The ranks' ends are sound."""

    async def dial(self, url: str, credentials: Credentials) -> Channel:
        return SoundChannel(await type(self).below().dial(url, credentials))


class _AtTheRank(SoundTransport):
    """The coordinator's ends are sound."""

    async def listen(self, url: str, credentials: Credentials) -> Listener:
        return self.listener(await type(self).below().listen(url, credentials), SoundChannel)


class HeapsUpBlocksForRanks(_AtTheCoordinator):
    """A slow rank's share of the consensus waits in the coordinator, as often as it is sent."""

    layer = load.UnboundedBuffering.layer


class HeapsUpOrders(_AtTheCoordinator):
    """So do its orders."""

    layer = load.UnboundedMessages.layer


class BeaconsBehindBlocks(_AtTheCoordinator):
    """The coordinator has one writer for both lanes."""

    layer = load.ControlBehindBulk.layer


class OrdersWhenNothingMoves(_AtTheCoordinator):
    """An order is sent when no block is."""

    layer = load.BlocksFirst.layer


class SendsAConsensusThatChanges(_AtTheCoordinator):
    """Returns before the bytes are gone, and without a copy of them."""

    layer = load.SendsFromReusedMemory.layer


class LosesTheLastOrder(_AtTheCoordinator):
    """Closes before its last message has been written."""

    class layer(SoundChannel):
        async def send(self, message: Any) -> None:
            if not isinstance(message, SaveConsensusModel):
                await self.inner.send(message)


class SpillsAtTheRank(_AtTheRank):
    """Writes a whole page where less was asked for."""

    layer = order.SpillsOverThePlace.layer


class LeavesTheRankInTheDark(_AtTheRank):
    """The end of its coordinator is no news to a rank."""

    layer = ends.ForgetsToNoticeDeath.layer


class LeavesTheRanksBlocksInTheDark(_AtTheRank):
    """Nor to one that waits for blocks."""

    layer = ends.ForgetsTheBulkLane.layer


class TellsTheRankTwoCauses(_AtTheRank):
    """Each lane of a rank has an end of its own."""

    layer = ends.TwoLossNotices.layer


class HandsOrdersOutAfterClose(_AtTheRank):
    """A rank reads ahead, and empties its buffer whatever was closed."""

    layer = order.DeliversAfterClose.layer


class ReadsOnAtTheRank(_AtTheRank):
    """A reader of its own fills the memory of a block, whoever has it by then."""

    layer = cancelled.ReadsOnWhenCancelled.layer


class LosesOrdersWhenCancelled(_AtTheRank):
    """Waits once more between taking an order and handing it out."""

    layer = order.LosesAMessageWhenCancelled.layer


class ForgetsOrdersInVain(_AtTheCoordinator):
    """An order that cannot be sent is nobody's concern."""

    layer = cancelled.SendsIntoNothing.layer
