"""`tcp://` dials: how often it is tried, what ends it at once, what the errors say. Real sockets, on loopback."""

from __future__ import annotations

import socket
import struct

import pytest
import trio
import trio.testing

from paceline.core.errors import RefusedError, RemoteProtocolError, TransportError
from paceline.core.messages import RejectCode
from paceline.core.wire import refusal_prelude
from paceline.transports import tcp
from paceline.transports.api import Channel, Credentials
from paceline.transports.tcp import TcpTransport

from support.transports import (
    CREDENTIALS,
    heartbeat,
    let_no_time_pass,
    pass_the_time,
    read_exactly,
    run,
    run_as_if_at_once,
    tcp_once,
)


def unused_port() -> tuple[socket.socket, int]:
    """A port at which nobody listens, and the socket that keeps it so."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


def test_nobody_answers() -> None:
    """The message names host and port and asks the question that helps."""
    holder, port = unused_port()

    async def main() -> None:
        text = rf"nobody answers at 127\.0\.0\.1:{port}.*connection refused.*is the coordinator running"
        with pytest.raises(TransportError, match=text):
            await tcp_once().dial(f"tcp://127.0.0.1:{port}", CREDENTIALS)

    with holder:
        run(main)


def test_whoever_counts_tries_itself_gets_one() -> None:
    """M-40: the pauses are the machine's then."""
    holder, port = unused_port()

    async def main() -> None:
        with pytest.raises(TransportError, match="tried once"):
            await tcp_once().dial(f"tcp://127.0.0.1:{port}", CREDENTIALS)

    with holder:
        run(main)


@pytest.mark.parametrize("scale", [1.0, 0.5, 4.0])
def test_attempts_are_spaced_by_the_table(scale: float) -> None:
    """M-3: back-off 0.5 s doubling to 10 s, 30 s in total, 10 s a handshake; all of them under time_scale."""

    class Refused(TcpTransport):
        async def _attempt(self, host: str, port: int, credentials: Credentials, limit_s: float) -> Channel:
            await trio.lowlevel.checkpoint()
            attempts.append((trio.current_time() - started[0], limit_s))
            raise ConnectionRefusedError

    attempts: list[tuple[float, float]] = []
    started: list[float] = []

    async def main() -> None:
        started.append(trio.current_time())
        with pytest.raises(TransportError, match=f"tried for {30 * scale:g} s"):
            await Refused(time_scale=scale).dial("tcp://127.0.0.1:1", CREDENTIALS)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [at / scale for at, _ in attempts] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5, 30.0]
    assert [limit / scale for _, limit in attempts][:-1] == [10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 4.5]
    assert attempts[-1][1] == 1.0, "the last one gets that much, whatever is left"


def test_a_dial_survives_refusal_reset_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case F19, M-3: refused, reset after the prelude, no answer, a closed connection, then in. No time passes
    but that of the silence."""
    monkeypatch.setattr(tcp, "FIRST_PAUSE_S", 0.0)
    holder, port = unused_port()

    async def misbehave(bound: socket.socket) -> None:
        bound.listen()
        answering = trio.socket.from_stdlib_socket(bound)
        reset, _ = await answering.accept()
        await read_exactly(reset, 64)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        silent, _ = await answering.accept()
        pass_the_time()
        assert await read_exactly(silent, 65) != b""
        let_no_time_pass()
        silent.close()
        closed, _ = await answering.accept()
        closed.close()
        answering.close()

    async def main() -> None:
        url = f"tcp://127.0.0.1:{port}"

        async def dial() -> None:
            rank = await TcpTransport().dial(url, CREDENTIALS)
            await rank.send(heartbeat(1))
            await rank.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            await misbehave(holder)
            listener = await TcpTransport().listen(url, CREDENTIALS)

            async def handler(channel: Channel) -> None:
                assert await channel.receive() == heartbeat(1)
                await listener.aclose()

            await listener.serve(handler)

    run_as_if_at_once(main)


def test_a_door_that_stays_busy_is_no_missing_coordinator() -> None:
    """N-29 code 14: tried again for all that time, and then the line says that somebody is there."""
    server = socket.create_server(("127.0.0.1", 0))
    url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    knocks: list[float] = []

    async def main() -> None:
        pass_the_time()
        server.setblocking(False)
        listening = trio.socket.from_stdlib_socket(server)

        async def turn_away() -> None:
            while True:
                knocking, _ = await listening.accept()
                knocks.append(trio.current_time())
                await knocking.send(refusal_prelude(RejectCode.BUSY))
                await read_exactly(knocking, 64)
                knocking.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_away)
            with pytest.raises(RefusedError, match=r"the coordinator is there .*fewer ranks.*tried for") as caught:
                await TcpTransport(time_scale=0.5).dial(url, CREDENTIALS)
            assert (caught.value.code, caught.value.retry) == (RejectCode.BUSY, True)
            nursery.cancel_scope.cancel()

    with server:
        run_as_if_at_once(main)
    assert knocks == pytest.approx([0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 12.75, 15.0], abs=0.01)


def test_another_program_at_the_address_is_told_apart() -> None:
    """api: what answers with something else is no coordinator, and trying again would not make it one."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    async def main() -> None:
        listening = trio.socket.from_stdlib_socket(server)
        server.setblocking(False)

        async def answer() -> None:
            answered, _ = await listening.accept()
            await answered.send(b"SSH-2.0-OpenSSH_9.6 and sixty-four bytes of other text, or more .....")
            await answered.recv(1)
            answered.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(RemoteProtocolError, match=r"no paceline process.*SSH-"):
                await TcpTransport().dial(f"tcp://127.0.0.1:{port}", CREDENTIALS)
        listening.close()

    run(main)
