"""A process at one end of a channel, for checks that kill or stop it.

    python -m paceline.transports.conformance.peer ROLE ADDRESS URL

ADDRESS is `Bench.address`: how the transport is made here.

idle        a rank that says heartbeat(1) and then nothing
flood       a rank that says heartbeat(1) and sends blocks for ever
leave       a rank that says heartbeat(1) and ends with exit code 0, closing nothing
parent      a rank that starts a program of its own, says heartbeat(1) and then nothing; the program gets whatever may
            be inherited, lives on when the rank is killed, and ends with the standard input of both
coordinate  a coordinator that prints its URL and says beacon(1) to each rank

A rank that cannot dial prints why, as `TypeOfError: text`, and ends with exit code 3.
"""

from __future__ import annotations

import os
import subprocess
import sys

import trio

from ...core.errors import PacelineError, RefusedError, TransportError
from ..api import Channel
from .kit import CREDENTIALS, NO_DIAL, make_transport
from .stage import beacon, block, heartbeat, pattern

__all__ = ["main"]

FLOOD_BYTES = 512 * 1024
UNTIL_THE_END_OF_INPUT = "import sys; sys.stdin.read()"
"""The program that a parent starts."""


async def join(role: str, address: str, url: str) -> None:
    try:
        rank = await make_transport(address).dial(url, CREDENTIALS)
    except (PacelineError, RefusedError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(NO_DIAL)
    try:
        if role == "parent":
            # As a loader of data, or a compiler, is started in the middle of training. What it must not get is what the
            # transport has marked so: a program that is started without care closes nothing.
            subprocess.Popen([sys.executable, "-c", UNTIL_THE_END_OF_INPUT], close_fds=False)
        await rank.send(heartbeat(1))
        if role == "leave":
            os._exit(0)
        number = 0
        while role == "flood":
            await rank.send_bulk(block(FLOOD_BYTES, offset=number), pattern(FLOOD_BYTES, number))
            number += 1
        while True:
            await rank.receive()
    except TransportError:
        # The check is over.
        await rank.aclose()


async def coordinate(address: str, url: str) -> None:
    async def handler(channel: Channel) -> None:
        await channel.send(beacon(1))
        while True:
            await channel.receive()

    listener = await make_transport(address).listen(url, CREDENTIALS)
    print(listener.url, flush=True)
    await listener.serve(handler)


def main(role: str, address: str, url: str) -> None:
    """Play a role until killed, or until the other end is gone."""
    if role == "coordinate":
        trio.run(coordinate, address, url)
    else:
        trio.run(join, role, address, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
