"""What an author can give a bench that the kit cannot guess, and what happens where nobody gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from paceline.core.conformance import Status
from paceline.core.errors import ConfigError
from paceline.transports.api import Channel
from paceline.transports.conformance import Bench, bench_for, conform, leaks
from paceline.transports.conformance.kit import claimed_by
from paceline.transports.conformance.stage import pair

from conformance.broken_transports.doors import ServesWhoeverKnocks
from support.patience import UNHURRIED

TCP = bench_for("tcp://127.0.0.1:0", thorough=False, **UNHURRIED)
MEMORY = bench_for("memory://bench", thorough=False, **UNHURRIED)


def outcome(bench: Bench, check: str) -> tuple[Status, str]:
    (found,) = conform(bench, only=[check]).outcomes
    return found.status, found.message


def test_without_an_address_no_process_is_started_and_the_report_says_so() -> None:
    bench = attrs.evolve(TCP, address=None)

    assert outcome(bench, "T322") == (
        Status.NOT_CHECKED,
        "no process can be told how to make this transport: give the bench an address",
    )


def test_a_killable_peer_may_be_given() -> None:
    used: list[str] = []

    @asynccontextmanager
    async def killable() -> AsyncIterator[tuple[Channel, Callable[[], None]]]:
        async with pair(TCP) as (rank, coordinator), trio.open_nursery() as nursery:
            used.append("killable")
            yield coordinator, lambda: nursery.start_soon(rank.aclose)

    bench = attrs.evolve(TCP, address=None, killable=killable)

    assert outcome(bench, "T322") == (Status.PASSED, "")
    assert used == ["killable"]


def test_a_clogged_channel_may_be_given() -> None:
    used: list[str] = []

    @asynccontextmanager
    async def clogged() -> AsyncIterator[tuple[Channel, Channel]]:
        async with pair(MEMORY) as both:
            used.append("clogged")
            yield both

    assert outcome(attrs.evolve(MEMORY, clogged=clogged), "T252") == (Status.PASSED, "")
    assert used == ["clogged"]


def test_how_strangers_knock_may_be_given() -> None:
    async def knock(url: str) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        await far.aclose()
        return near

    # A claim, so that there may be strangers; and an address at which nobody knows how to knock.
    bench = bench_for(f"{ServesWhoeverKnocks.__module__}:{ServesWhoeverKnocks.__name__}@memory://knock", thorough=False)
    assert outcome(bench, "T342")[0] is Status.NOT_CHECKED
    assert outcome(attrs.evolve(bench, stranger=knock), "T342") == (Status.PASSED, "")


def test_on_a_system_that_lists_nothing_leaks_are_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leaks, "DESCRIPTORS", tmp_path / "none")
    monkeypatch.setattr(leaks, "MAPPINGS", tmp_path / "none")

    for check, what in (("T351", "descriptors"), ("T353", "mappings")):
        status, message = outcome(MEMORY, check)
        assert status is Status.NOT_CHECKED and f"does not list its {what}" in message


@pytest.mark.parametrize("target", ["", "pigeon", "module:factory", "module:factory@", "@"])
def test_a_target_that_is_none_is_told_the_two_forms(target: str) -> None:
    with pytest.raises(ConfigError, match="write scheme://address or module:factory@scheme://address"):
        bench_for(target)


def test_a_factory_stands_before_the_first_at_sign() -> None:
    made = f"{ServesWhoeverKnocks.__module__}:{ServesWhoeverKnocks.__name__}"
    assert bench_for(f"{made}@pigeon://user@loft:7").address == made


def test_a_factory_that_is_not_there_is_told_before_any_check() -> None:
    with pytest.raises(ConfigError, match=r"transport 'nest.pigeons:Pigeon' .* there is no module 'nest'"):
        bench_for("nest.pigeons:Pigeon@pigeon://loft")


@pytest.mark.parametrize("target", ["pigeon://user@loft:7", "pigeon://loft"])
def test_a_url_is_taken_as_it_is(target: str) -> None:
    """An `@` in a URL divides no factory from it."""
    bench = bench_for(target)

    assert (bench.address, bench.registered) == (target, True)
    assert not any(claimed_by(bench).values())
