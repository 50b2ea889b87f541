"""The kit for transports catches what it is there for: each check a broken plug-in of the folder, named here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from paceline.core.conformance import Check, Outcome, Status
from paceline.transports.conformance import KIT, bench_for, conform, kit

from conformance.broken_transports import base, leaks
from conformance.broken_transports.table import FOLDER
from conformance.caught import ensure_caught
from support.patience import UNHURRIED

pytestmark = pytest.mark.usefixtures("nobody_waits_for_what_hangs")

SHORT = {"heartbeat_s": 0.2, "evidence_s": 0.4, "limit_s": 0.4}
"""What is broken stays broken however long one waits."""
OUTSIDE = {"T320", "T321", "T322", "T323", "T324", "T325", "T326", "T327", "T343"}
"""Checks in which something outside of trio moves, so that their time must be the real one."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    while leaks.LEFT:
        leaks.LEFT.pop()()


def verdict(made: type[base.SoundTransport], check: str, times: dict[str, float]) -> Outcome:
    """How this check ends over a transport. Time jumps where nothing moves, so that waits are free."""
    name = made.__name__
    url = "tcp://127.0.0.1:0" if made.scheme == "tcp" else f"memory://{name}"
    real = check in OUTSIDE or made.scheme == "tcp"
    bench = bench_for(
        f"{made.__module__}:{name}@{url}", thorough=False, stranger=getattr(made, "knock", None),
        clock=None if real else functools.partial(trio.testing.MockClock, rate=1.0, autojump_threshold=0.0), **times,
    )  # fmt: skip
    (outcome,) = conform(bench, only=[check]).outcomes
    return outcome


@pytest.mark.parametrize(**FOLDER.cases(without="T001"))
def test_a_broken_plug_in_is_caught_by_its_check(check: str, broken: type[base.SoundTransport]) -> None:
    """A net with holes is none."""
    ensure_caught(verdict(broken, check, SHORT))


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not clean up in this time never does."""
    monkeypatch.setattr(kit, "GRACE_S", 0.2)
    monkeypatch.setattr(kit, "TURN_S", 0.2)


def test_one_that_is_declared_for_another_scheme_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T001 is about what is installed, so something is: an entry point in a folder of the path."""
    (broken,) = FOLDER.caught["T001"]
    installed = tmp_path / "pigeon-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    declared = f"[paceline.transports]\npigeon = {broken.__module__}:{broken.__name__}\n"
    (installed / "entry_points.txt").write_text(declared)
    monkeypatch.syspath_prepend(str(tmp_path))

    (outcome,) = conform(bench_for("pigeon://loft"), only=["T001"]).outcomes
    ensure_caught(outcome)
    assert "is declared for 'pigeon' and says 'dove'" in outcome.message
    (outcome,) = conform(bench_for("crow://loft"), only=["T001"]).outcomes
    assert outcome.status is Status.FAILED and "no entry point 'crow'" in outcome.message


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: check.id)
def test_what_they_are_made_from_passes(check: Check[Any]) -> None:
    """So it is the fault that is caught, and not the layer it sits in."""
    outcome = verdict(base.SoundTransport, check.id, UNHURRIED)
    assert outcome.ok, outcome.message
    assert (outcome.status is Status.NOT_CHECKED) == (check.id == "T001"), outcome.message
