"""What our channels do beyond the contract of `transports.api`, over memory and tcp: causes in words, lines in the log.

The contract itself is tested by the conformance kit; see `test_conformance.py`.
"""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
import trio.testing

from paceline.core.errors import TransportError
from paceline.core.messages import BulkBlock
from paceline.transports import framed
from paceline.transports.api import Channel

from support.transports import (
    CREDENTIALS,
    Kind,
    Landing,
    beacon,
    block,
    every_transport,
    heartbeat,
    meeting,
    pattern,
    run,
)

LARGE = 16 * 1024 * 1024


@every_transport
def test_header_authentication_carries_blocks_too(kind: Kind) -> None:
    """N-26: under bulk_auth = "header" the same blocks pass."""

    async def main() -> None:
        async with meeting(kind, credentials=attrs.evolve(CREDENTIALS, bulk_auth="header")) as met:
            rank, coordinator = await met.join()
            landing = Landing()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.send_bulk, block(3_000_000), pattern(3_000_000))
                await coordinator.receive_bulk(landing)
            assert landing.memory == [pattern(3_000_000)]

    run(main)


@every_transport
def test_a_cancelled_send_is_the_cause_at_this_end_and_a_torn_frame_at_the_other(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N-4: both ends say in words what became of the frame."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rank.send_bulk, block(LARGE), pattern(LARGE))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            with pytest.raises(TransportError, match="a send was cancelled in the middle of a frame"):
                await rank.send(heartbeat(1))
            with pytest.raises(TransportError, match=r"closed by the peer|reset by the peer"):
                await coordinator.receive_bulk(Landing())

    run(main)


@every_transport
def test_a_cancelled_receive_is_the_cause_in_words(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-4: the memory goes back to the caller with the cancellation, so the rest of the block has no place."""
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            scope = trio.CancelScope()

            def place(header: BulkBlock) -> memoryview:
                scope.cancel()
                return memoryview(bytearray(header.bytes))

            async def send_and_lose() -> None:
                with pytest.raises(TransportError):
                    await rank.send_bulk(block(LARGE), pattern(LARGE))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_and_lose)
                with scope:
                    await coordinator.receive_bulk(place)
                assert scope.cancelled_caught
                with pytest.raises(TransportError, match="cancelled in the middle of a bulk block"):
                    await coordinator.receive_bulk(Landing())

    run(main)


@every_transport
def test_who_has_closed_is_told_at_both_ends(kind: Kind) -> None:
    """M-17: the text names the peer and the cause."""

    async def main() -> None:
        async with meeting(kind) as met:
            rank, coordinator = await met.join()
            await rank.aclose()
            for end, cause in ((rank, "closed here"), (coordinator, "closed by the peer")):
                with pytest.raises(TransportError) as loss:
                    await end.receive()
                assert str(loss.value) == f"link to {end.peer}: {cause}"

    run(main)


@every_transport
def test_what_a_handler_raises_is_in_the_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of the embedder with its traceback, a lost peer as news."""

    async def main() -> None:
        transport = kind.make()
        listener = await transport.listen(kind.url, CREDENTIALS)

        async def handler(channel: Channel) -> None:
            number = (await channel.receive()).step_count
            if number == 1:
                raise ValueError("a fault of the embedder")
            await channel.send(beacon(number))
            await channel.receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, handler)
            bad = await transport.dial(listener.url, CREDENTIALS)
            await bad.send(heartbeat(1))
            with pytest.raises(TransportError):
                await bad.receive()
            good = await transport.dial(listener.url, CREDENTIALS)
            await good.send(heartbeat(2))
            assert await good.receive() == beacon(2)
            await good.aclose()
            await listener.aclose()

    with caplog.at_level(logging.INFO):
        run(main)
    assert "a fault of the embedder" in caplog.text
    assert [record.levelname for record in caplog.records if "framed" in record.name] == ["ERROR", "INFO"]
