"""How a listener and those who dial meet, over every transport of this package: see `transports.api`."""

from __future__ import annotations

import logging

import attrs
import pytest
import trio
import trio.testing

from paceline.core.errors import LocalProtocolError, RefusedError, TransportError
from paceline.core.messages import RejectCode
from paceline.transports.api import Channel, Credentials

from support.transports import (
    CREDENTIALS,
    Kind,
    beacon,
    every_transport,
    heartbeat,
    meeting,
    run,
)


@every_transport
def test_a_failing_handler_ends_its_own_channel_only(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """api: the handler's exception is in the log, the other channels and the listener go on."""

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
            good, bad = (
                await transport.dial(listener.url, CREDENTIALS),
                await transport.dial(listener.url, CREDENTIALS),
            )
            await bad.send(heartbeat(1))
            with pytest.raises(TransportError):
                await bad.receive()
            await good.send(heartbeat(2))
            assert await good.receive() == beacon(2)
            await good.aclose()
            await listener.aclose()

    with caplog.at_level(logging.INFO):
        run(main)
    assert "a fault of the embedder" in caplog.text
    assert [record.levelname for record in caplog.records if "framed" in record.name] == ["ERROR", "INFO"]


@every_transport
@pytest.mark.parametrize(
    ("stranger", "text"),
    [
        (attrs.evolve(CREDENTIALS, run_id=bytes(16)), "another run"),
        (attrs.evolve(CREDENTIALS, token=bytes(32)), "wrong token"),
    ],
    ids=["run", "token"],
)
def test_a_stranger_is_refused_at_once_and_disturbs_nobody(kind: Kind, stranger: Credentials, text: str) -> None:
    """N-22, M-5: one clear line at the rank that dials, nothing at the coordinator."""

    async def main() -> None:
        async with meeting(kind) as met:
            with pytest.raises(RefusedError, match=text) as refusal:
                await met.transport.dial(met.listener.url, stranger)
            assert refusal.value.code == RejectCode.OTHER_RUN
            assert not refusal.value.retry
            rank, coordinator = await met.join()
            await rank.send(heartbeat(1))
            assert await coordinator.receive() == heartbeat(1)

    run(main)


@every_transport
def test_a_taken_address_is_named(kind: Kind) -> None:
    """Field case F61: no second choice is made silently, and the error says which address."""

    async def main() -> None:
        transport = kind.make()
        first = await transport.listen(kind.url, CREDENTIALS)
        with pytest.raises(TransportError, match=first.url.removeprefix(f"{kind.name}://")):
            await transport.listen(first.url, CREDENTIALS)
        await first.aclose()
        await first.aclose()
        second = await transport.listen(first.url, CREDENTIALS)
        assert second.url == first.url
        await second.aclose()

    run(main)


@every_transport
def test_a_closed_listener_takes_nobody_and_lets_channels_go_on(kind: Kind) -> None:
    """M-53, field case F87: the coordinator closes the door and still hears those who are inside."""

    async def main() -> None:
        transport = kind.make()
        listener = await transport.listen(kind.url, CREDENTIALS)
        heard: list[object] = []

        async def handler(channel: Channel) -> None:
            heard.append(await channel.receive())
            heard.append(await channel.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, handler)
            rank = await transport.dial(listener.url, CREDENTIALS)
            await rank.send(heartbeat(1))
            await listener.aclose()
            with pytest.raises(TransportError, match="nobody answers at"):
                await transport.dial(listener.url, CREDENTIALS)
            await rank.send(heartbeat(2))
        assert heard == [heartbeat(1), heartbeat(2)]
        await rank.aclose()

    run(main)


@every_transport
@pytest.mark.parametrize(
    "wrong",
    [
        attrs.evolve(CREDENTIALS, run_id=b"short"),
        attrs.evolve(CREDENTIALS, token=b"short"),
        attrs.evolve(CREDENTIALS, bulk_auth="none"),
    ],
    ids=["run", "token", "bulk_auth"],
)
def test_credentials_of_the_wrong_shape_are_refused_before_anything_is_bound(kind: Kind, wrong: Credentials) -> None:
    """N-22, N-26: and not at each connection, where they would look like the fault of the peer."""

    async def main() -> None:
        with pytest.raises(LocalProtocolError):
            await kind.make().listen(kind.url, wrong)
        async with meeting(kind) as met:
            with pytest.raises(LocalProtocolError):
                await met.transport.dial(met.listener.url, wrong)

    run(main)


@every_transport
def test_capabilities_are_what_the_transport_says(kind: Kind) -> None:
    """Both transports keep their lanes apart and let nobody in without the token; see the tests above for each."""
    capabilities = kind.make().capabilities
    assert capabilities.separate_bulk
    assert capabilities.authenticated
    assert capabilities.across_hosts == (kind.name == "tcp")
