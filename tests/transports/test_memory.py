"""What is peculiar to `memory://`: names, bounds, and the same order in every run."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from paceline.core.errors import ConfigError, TransportError
from paceline.transports.api import Channel
from paceline.transports.memory import BACKLOG, PIPE_BYTES, MemoryTransport

from support.transports import CREDENTIALS, MEMORY, Landing, block, heartbeat, meeting, pattern, run


def test_a_lane_holds_no_more_than_its_bound() -> None:
    """Back-pressure: a sender waits while PIPE_BYTES are unread, and goes on when some are read."""

    async def main() -> None:
        async with meeting(MEMORY) as met:
            rank, coordinator = await met.join()
            sent: list[int] = []

            async def send_all() -> None:
                for number in range(64):
                    await rank.send_bulk(block(PIPE_BYTES // 4, offset=number), pattern(PIPE_BYTES // 4))
                    sent.append(number)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all)
                for taken in range(64):
                    await trio.testing.wait_all_tasks_blocked()
                    assert len(sent) * (PIPE_BYTES // 4) <= PIPE_BYTES + taken * (PIPE_BYTES // 4)
                    await coordinator.receive_bulk(Landing())
            assert len(sent) == 64

    run(main)


def test_a_block_larger_than_the_pipe_passes_through_it() -> None:
    """The bound delays and never refuses."""

    async def main() -> None:
        async with meeting(MEMORY) as met:
            rank, coordinator = await met.join()
            landing = Landing()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.send_bulk, block(5 * PIPE_BYTES + 3), pattern(5 * PIPE_BYTES + 3))
                await coordinator.receive_bulk(landing)
            assert landing.memory == [pattern(5 * PIPE_BYTES + 3)]

    run(main)


def test_a_name_nobody_has_taken_is_told_at_once() -> None:
    """There is nothing to wait for: the listener would have to be in this process."""

    async def main() -> None:
        with pytest.raises(TransportError, match="nobody answers at memory://nobody"):
            await MemoryTransport().dial("memory://nobody", CREDENTIALS)

    run(main)


@pytest.mark.parametrize("url", ["memory://", "tcp://name", "memory://name/more", "name"])
def test_an_address_that_is_no_name_is_a_mistake_of_configuration(url: str) -> None:
    """ConfigError says how it must read."""

    async def main() -> None:
        with pytest.raises(ConfigError, match="memory://name"):
            await MemoryTransport().listen(url, CREDENTIALS)
        with pytest.raises(ConfigError, match="memory://name"):
            await MemoryTransport().dial(url, CREDENTIALS)

    run(main)


def test_channels_wait_for_serve_up_to_a_bound_and_end_with_the_listener() -> None:
    """A listener that does not serve holds BACKLOG channels; closing it ends them."""

    async def main() -> None:
        transport = MemoryTransport()
        listener = await transport.listen("memory://slow", CREDENTIALS)
        dialled = [await transport.dial("memory://slow", CREDENTIALS) for _ in range(BACKLOG)]
        with pytest.raises(TransportError, match="wait for serve"):
            await transport.dial("memory://slow", CREDENTIALS)
        await listener.aclose()
        for rank in dialled:
            with pytest.raises(TransportError, match="closed by the peer"):
                await rank.receive()
            await rank.aclose()

        async def unused(channel: Channel) -> None:
            raise AssertionError("nobody is left to be served")

        await listener.serve(unused)

    run(main)


def test_the_same_calls_give_the_same_names() -> None:
    """Determinism: peers are numbered as they arrive, per listener."""

    async def main() -> None:
        for _ in range(2):
            async with meeting(MEMORY) as met:
                peers = []
                for _ in range(3):
                    rank, coordinator = await met.join()
                    peers.append(coordinator.peer)
                    await rank.send(heartbeat(1))
                assert peers == ["memory://test#1", "memory://test#2", "memory://test#3"]

    run(main)
