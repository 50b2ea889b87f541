"""A process at one end of `tcp://`, for tests that kill it: `python tcp_process.py ROLE URL`.

idle        a rank that says one heartbeat and then nothing
flood       a rank that sends blocks for ever
beating     a rank that answers each beacon with a heartbeat
stuck       both of them at once
leave       a rank that says one heartbeat and ends with exit code 0, closing nothing
coordinate  a coordinator that prints its URL and says one beacon to each rank
"""

from __future__ import annotations

import os
import sys

import trio

from paceline.core.messages import Beacon, BulkBlock, Heartbeat, RoundKey, RoundKind
from paceline.transports.api import Channel, Credentials
from paceline.transports.tcp import TcpTransport

CREDENTIALS = Credentials(run_id=bytes(range(16)), token=bytes(range(32)))
BLOCK_BYTES = 2 * 1024 * 1024


def heartbeat(number: int) -> Heartbeat:
    return Heartbeat(step_count=number, state="training", report_seq=number)


async def flood(rank: Channel) -> None:
    data = memoryview(bytes(BLOCK_BYTES))
    number = 0
    while True:
        number += 1
        header = BulkBlock(
            key=RoundKey(generation=1, cycle=1, kind=RoundKind.PARAMS),
            attempt=0,
            rank=0,
            incarnation=1,
            entry=0,
            offset=number,
            bytes=BLOCK_BYTES,
        )
        await rank.send_bulk(header, data)


async def beat(rank: Channel) -> None:
    while True:
        await rank.send(heartbeat((await rank.receive()).cycle))


async def join(role: str, url: str) -> None:
    rank = await TcpTransport().dial(url, CREDENTIALS)
    await rank.send(heartbeat(1))
    if role == "leave":
        os._exit(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        if role in ("flood", "stuck"):
            nursery.start_soon(flood, rank)
        if role in ("beating", "stuck"):
            nursery.start_soon(beat, rank)


async def coordinate(url: str) -> None:
    async def handler(channel: Channel) -> None:
        await channel.send(Beacon(run_phase=1, cycle_phase=2, cycle=1))
        await channel.receive()

    listener = await TcpTransport().listen(url, CREDENTIALS)
    print(listener.url, flush=True)
    await listener.serve(handler)


if __name__ == "__main__":
    if sys.argv[1] == "coordinate":
        trio.run(coordinate, sys.argv[2])
    else:
        trio.run(join, sys.argv[1], sys.argv[2])
