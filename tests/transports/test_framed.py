"""`FramedChannel` over lanes that play a fixed script: the end of the stream at every byte, and bytes that lie."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio

from paceline.core.errors import LocalProtocolError, RemoteProtocolError, TransportError
from paceline.core.wire import BulkFramer, Link, LinkKeys, Role
from paceline.transports import framed
from paceline.transports.codec import MsgpackCodec
from paceline.transports.framed import FramedChannel

from support.transports import Landing, beacon, block, heartbeat, pattern, run

KEYS = LinkKeys(up=bytes([1]) * 32, down=bytes([2]) * 32)


@attrs.define(eq=False)
class ScriptedLane:
    """Gives these bytes, `step` at a time, then the end of the stream; takes at most `room`, then fails as told."""

    given: bytes = b""
    step: int = 7
    room: int = 1 << 30
    failure: OSError | None = None
    written: bytearray = attrs.field(factory=bytearray)
    writes: list[int] = attrs.field(factory=list)
    closed: int = 0

    async def send(self, views: Sequence[memoryview]) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(len(views))
        for view in views:
            self.written += view[: self.room - len(self.written)]
        if self.failure is not None and len(self.written) >= self.room:
            raise self.failure

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError
        taken = min(self.step, len(buffer), len(self.given))
        if taken == 0 and self.failure is not None:
            raise self.failure
        buffer[:taken] = self.given[:taken]
        self.given = self.given[taken:]
        return taken

    def close(self) -> None:
        self.closed += 1


def coordinator(control: ScriptedLane, bulk: ScriptedLane) -> FramedChannel:
    return FramedChannel(
        peer="script", role=Role.COORDINATOR, control=control, bulk=bulk, control_keys=KEYS, bulk_keys=KEYS
    )


def report_frames(count: int) -> bytes:
    link = Link(codec=MsgpackCodec(), keys=KEYS, role=Role.RANK)
    return b"".join(link.send(heartbeat(number)) for number in range(1, count + 1))


def bulk_frames(count: int, size: int = 40) -> bytes:
    framer = BulkFramer(codec=MsgpackCodec(), keys=KEYS, role=Role.RANK)
    frames = []
    for number in range(count):
        head, tag = framer.seal(block(size, offset=number), pattern(size))
        frames.append(head + pattern(size) + tag)
    return b"".join(frames)


@pytest.fixture(autouse=True)
def nobody_reads_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed, "LANE_SKEW_S", 0.0)


def test_the_control_stream_may_end_at_any_byte() -> None:
    """Field case F13: whole messages come first, then exactly one cause, which says whether a frame was torn."""
    frames = report_frames(2)
    first = len(report_frames(1))

    async def main() -> None:
        for cut in range(len(frames) + 1):
            lanes = ScriptedLane(frames[:cut]), ScriptedLane()
            channel = coordinator(*lanes)
            for number in range(1, (cut >= first) + (cut >= len(frames)) + 1):
                assert await channel.receive() == heartbeat(number)
            cause = "closed by the peer" + ("" if cut in (0, first, len(frames)) else " in the middle of a frame")
            for _ in range(2):
                with pytest.raises(TransportError) as loss:
                    await channel.receive()
                assert str(loss.value) == f"link to script: {cause}"
            assert [lane.closed for lane in lanes] == [1, 1]

    run(main)


def test_the_bulk_stream_may_end_at_any_byte() -> None:
    """Field case F13, N-4: a torn block is never handed out."""
    frame = bulk_frames(1)

    async def main() -> None:
        for cut in range(len(frame)):
            lanes = ScriptedLane(), ScriptedLane(frame[:cut])
            channel = coordinator(*lanes)
            cause = "closed by the peer" + (" in the middle of a frame" if cut else "")
            for _ in range(2):
                with pytest.raises(TransportError) as loss:
                    await channel.receive_bulk(Landing())
                assert str(loss.value) == f"link to script: {cause}"
            assert [lane.closed for lane in lanes] == [1, 1]

    run(main)


def test_a_changed_byte_anywhere_ends_the_link() -> None:
    """N-23, N-26: nothing of a changed frame is handed out, whichever byte it was."""
    message, bulk = report_frames(1), bulk_frames(1)

    async def main() -> None:
        for at in range(len(message)):
            channel = coordinator(ScriptedLane(flipped(message, at)), ScriptedLane())
            with pytest.raises((RemoteProtocolError, TransportError)):
                await channel.receive()
            with pytest.raises(TransportError):
                await channel.send(beacon(1))
        for at in range(len(bulk)):
            channel = coordinator(ScriptedLane(), ScriptedLane(flipped(bulk, at)))
            with pytest.raises((RemoteProtocolError, TransportError)):
                await channel.receive_bulk(Landing())
            with pytest.raises(TransportError):
                await channel.receive()

    run(main)


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :]


def test_a_block_that_was_lost_on_the_way_ends_the_link() -> None:
    """N-23: numbers have no holes."""

    async def main() -> None:
        frames = bulk_frames(2)
        channel = coordinator(ScriptedLane(), ScriptedLane(frames[len(frames) // 2 :]))
        with pytest.raises(RemoteProtocolError, match="number 1 where 0 is due"):
            await channel.receive_bulk(Landing())

    run(main)


def test_a_map_longer_than_its_frame_is_not_read() -> None:
    """N-25: caps are checked before memory is set aside."""

    async def main() -> None:
        frame = bytearray(bulk_frames(1))
        frame[20:22] = b"\xff\xff"
        channel = coordinator(ScriptedLane(), ScriptedLane(bytes(frame)))
        with pytest.raises(RemoteProtocolError, match="map claims 65535"):
            await channel.receive_bulk(Landing())

    run(main)


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (BrokenPipeError(32, "Broken pipe"), "closed by the peer"),
        (ConnectionResetError(104, "Connection reset"), "connection reset by the peer"),
        (ConnectionAbortedError(103, "Software caused"), "connection reset by the peer"),
        (TimeoutError("the peer took no byte for 30 s"), "the peer took no byte for 30 s"),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, OSError) else "",
)
def test_the_cause_says_how_the_link_was_lost(failure: OSError, cause: str) -> None:
    """api: the text names the peer and the cause, on whichever call it came out."""

    async def main() -> None:
        for call in ("receive", "send", "receive_bulk", "send_bulk"):
            lanes = ScriptedLane(failure=failure, room=10), ScriptedLane(failure=failure, room=10)
            channel = coordinator(*lanes)
            calls = {
                "receive": lambda c=channel: c.receive(),
                "send": lambda c=channel: c.send(beacon(1)),
                "receive_bulk": lambda c=channel: c.receive_bulk(Landing()),
                "send_bulk": lambda c=channel: c.send_bulk(block(40), pattern(40)),
            }
            with pytest.raises(TransportError) as loss:
                await calls[call]()
            assert str(loss.value) == f"link to script: {cause}"
            assert loss.value.__cause__ is failure
            assert [lane.closed for lane in lanes] == [1, 1]

    run(main)


def test_after_a_failed_write_nothing_more_is_written() -> None:
    """N-4, N-10: not by senders that were waiting for their turn either."""

    async def main() -> None:
        lane = ScriptedLane(room=10, failure=ConnectionResetError())
        channel = coordinator(lane, ScriptedLane())
        failed: list[str] = []

        async def attempt() -> None:
            with pytest.raises(TransportError) as loss:
                await channel.send(beacon(1))
            failed.append(str(loss.value))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(attempt)
        assert failed == ["link to script: connection reset by the peer"] * 3
        assert len(lane.written) == 10

    run(main)


def test_a_small_frame_is_one_write_of_one_piece() -> None:
    """N-28: so no timer of the system waits to join its parts, and no other frame comes between them."""

    async def main() -> None:
        control, bulk = ScriptedLane(), ScriptedLane()
        channel = coordinator(control, bulk)
        await channel.send(beacon(1))
        await channel.send(beacon(2))
        await channel.send_bulk(block(4), memoryview(bytes(4)))
        assert control.writes == [1, 1] and bulk.writes == [3], "head, data where they lie, and tag"

    run(main)


@attrs.define(eq=False)
class SlowLane(ScriptedLane):
    """Takes a byte at a time, and lets everybody else run in between."""

    async def send(self, views: Sequence[memoryview]) -> None:
        for byte in b"".join(views):
            await trio.lowlevel.checkpoint()
            self.written.append(byte)


@pytest.mark.parametrize("lane", ["control", "bulk"])
def test_frames_of_many_senders_leave_one_after_the_other(lane: str) -> None:
    """N-4: one writer each way; the other end reads them whole, whoever sent them."""

    async def main() -> None:
        slow = SlowLane()
        channel = coordinator(slow, ScriptedLane()) if lane == "control" else coordinator(ScriptedLane(), slow)

        async def send(number: int) -> None:
            if lane == "control":
                await channel.send(beacon(number))
            else:
                await channel.send_bulk(block(8, offset=number), pattern(8))

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(send, number)
        given = ScriptedLane(given=bytes(slow.written))
        lanes = (given, ScriptedLane()) if lane == "control" else (ScriptedLane(), given)
        rank = FramedChannel(
            peer="script", role=Role.RANK, control=lanes[0], bulk=lanes[1], control_keys=KEYS, bulk_keys=KEYS
        )
        if lane == "control":
            assert {(await rank.receive()).control_seq for _ in range(3)} == {1, 2, 3}
        else:
            assert {(await rank.receive_bulk(Landing())).offset for _ in range(3)} == {1, 2, 3}

    run(main)


@attrs.define(eq=False)
class HeldLane(ScriptedLane):
    """Gives nothing before it may, and says when somebody waits for that."""

    waited_for: trio.Event = attrs.field(factory=trio.Event)
    may_give: trio.Event = attrs.field(factory=trio.Event)

    async def receive_into(self, buffer: memoryview) -> int:
        self.waited_for.set()
        await self.may_give.wait()
        return await ScriptedLane.receive_into(self, buffer)


@pytest.mark.parametrize("lane", ["control", "bulk"])
def test_a_second_reader_of_a_lane_is_a_mistake_of_the_caller(lane: str) -> None:
    """N-4: two would share the bytes of one frame; the first one goes on."""

    async def main() -> None:
        held = HeldLane(report_frames(1) if lane == "control" else bulk_frames(1))
        channel = coordinator(held, ScriptedLane()) if lane == "control" else coordinator(ScriptedLane(), held)
        found: list[object] = []

        async def read() -> None:
            found.append(await (channel.receive() if lane == "control" else channel.receive_bulk(Landing())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await held.waited_for.wait()
            with pytest.raises(LocalProtocolError, match=f"already receives on the {lane} lane"):
                with trio.move_on_after(1.0):  # what waits is no mistake to it
                    await read()
            held.may_give.set()
        assert len(found) == 1

    run(main)


def test_a_block_that_has_no_place_ends_the_channel() -> None:
    """N-4: a reader that has taken the first byte of a frame stays with it or the link is closed; what follows in the
    stream is no head of a frame."""

    async def main() -> None:
        lanes = ScriptedLane(), ScriptedLane(bulk_frames(2))
        channel = coordinator(*lanes)

        def nowhere(block: object) -> memoryview:
            raise KeyError("no such round")

        with pytest.raises(KeyError):
            await channel.receive_bulk(nowhere)
        assert [lane.closed for lane in lanes] == [1, 1]
        with pytest.raises(TransportError, match="could not be placed"):
            await channel.receive_bulk(Landing())

    run(main)
