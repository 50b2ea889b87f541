"""The kit that plug-in authors run, over the transports of this package: what every transport promises is tested there.

Beside it, `test_channels.py` and the files of each transport have what is peculiar to us.
"""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
from trio.testing import MockClock

from paceline.core.conformance import Check, Status
from paceline.transports.conformance import KIT, bench_for, conform
from paceline.transports.conformance.kit import claimed_by

from support.patience import UNHURRIED
from support.transports import pass_the_time

TIMES = {**UNHURRIED, "thorough": False}
BENCHES = {"memory": bench_for("memory://kit", **TIMES), "tcp": bench_for("tcp://127.0.0.1:0", **TIMES)}
ONCE = bench_for("support.transports:tcp_once@tcp://127.0.0.1:0", **TIMES)



@attrs.define(eq=False)
class Stranger(trio.abc.Stream):
    """A connection for which time passes when it waits for what comes, and not before."""

    inner: trio.SocketStream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        pass_the_time()
        return await self.inner.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.inner.aclose()


async def knock(url: str) -> Stranger:
    parts = urlsplit(url)
    return Stranger(await trio.open_tcp_stream(parts.hostname or "", parts.port or 0))


SPECIAL = {
    ("tcp", "T325"): ONCE, ("tcp", "T331"): ONCE,
    ("tcp", "T343"): attrs.evolve(BENCHES["tcp"], clock=MockClock, stranger=knock),
    ("memory", "T312"): attrs.evolve(BENCHES["memory"], clock=functools.partial(MockClock, autojump_threshold=0.0)),
}  # fmt: skip
"""Checks in which something gives up, which a test need not wait for: a dial that nobody answers, which is tried once,
a handshake that stands still, and who waits for an end of the control lane that nobody looks at, for which time passes
at once."""

NOT_OVER_MEMORY = {"T320", "T321", "T322", "T323", "T324", "T325", "T326", "T327", "T342", "T343", "T344"}
"""A transport inside one process has no other process, no host, and no door at which a stranger could knock; that it
has none is looked at."""


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
@pytest.mark.parametrize("name", BENCHES)
def test_the_kit(name: str, check: Check[Any]) -> None:
    """N-2, N-3, N-4, N-5, N-22, N-25, N-26, N-29, M-5, M-8, M-17, M-53, W-21, W-24, 17.1 #24: each check says which.
    Field cases F13 (T322 to T324), F61 (T320), F64 (T326), F76 (T342, T343), F87 (T105, T231). Nothing is left out
    without a reason that stands here."""
    bench = SPECIAL.get((name, check.id), BENCHES[name])
    (outcome,) = conform(bench, only=[check.id]).outcomes

    due = Status.NOT_CLAIMED if name == "memory" and check.id in NOT_OVER_MEMORY else Status.PASSED
    assert (outcome.status, outcome.message if due is Status.PASSED else "") == (due, "")


def test_what_our_transports_claim() -> None:
    """Both keep their lanes apart and let nobody in without the token; the kit tests it, and this says that it does."""
    assert claimed_by(BENCHES["tcp"]) == dict.fromkeys(KIT.capabilities, True)
    assert {name for name, claim in claimed_by(BENCHES["memory"]).items() if claim} == {
        "authenticated",
        "separate_bulk",
    }
