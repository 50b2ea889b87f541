"""docs/examples/unix_transport.py is what the guide says: it passes the kit, and a model passes through it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch
import trio.testing

from paceline.core.conformance import Check, Status
from paceline.transports.api import Credentials, Listener, Transport
from paceline.transports.conformance import KIT, Bench, bench_for, conform

from support.patience import PATIENCE_S, UNHURRIED
from support.star_path import adopt, parameters, path, staged
from support.transports import Kind, run

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "unix_transport.py"
LARGE = 300
"""A square layer of this size is more bytes than a socket takes at once."""

NOT_CLAIMED = {"T341", "T344"}
TIMES = {**UNHURRIED, "thorough": False}


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The example under the name by which a plug-in's own process finds it."""
    spec = importlib.util.spec_from_file_location("unix_transport", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "unix_transport", module)
        patch.syspath_prepend(str(EXAMPLE.parent))
        spec.loader.exec_module(module)
        yield module


WAITED_OUT = {"T312", "T343"}
"""Checks that end when a transport gives up, and need no time for it: see `without_waits`."""


def without_waits(bench: Bench) -> Bench:
    """Both ends are in this process, and what one has sent the other has: where nothing moves nothing will, and the
    time of whoever waits then passes at once. No other time passes, so nobody is given up who is only slow, however
    busy the machine is. But while trio binds the path nothing moves either: it does that in a thread."""
    clock = trio.testing.MockClock()

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Transport, str]]:
        async with bench.open() as (transport, url):
            listen = transport.listen

            async def listening(url: str, credentials: Credentials) -> Listener:
                clock.autojump_threshold = math.inf
                listener = await listen(url, credentials)
                clock.autojump_threshold = 0.0
                return listener

            transport.listen = listening  # type: ignore[method-assign]
            yield transport, url

    return attrs.evolve(bench, open=opened, clock=lambda: clock)


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
def test_the_example_passes(example: ModuleType, tmp_path: Path, check: Check[Any]) -> None:
    bench = bench_for(f"unix_transport:UnixTransport@unix://{tmp_path}/kit", **TIMES)
    (outcome,) = conform(without_waits(bench) if check.id in WAITED_OUT else bench, only=[check.id]).outcomes

    due = Status.NOT_CLAIMED if check.id in NOT_CLAIMED else Status.NOT_CHECKED if check.id == "T001" else Status.PASSED
    assert (outcome.status, outcome.message if due is Status.PASSED else "") == (due, "")


def test_a_socket_left_behind_is_caught_by_its_check(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M-40: without the lines that clear it away one check fails, with what is to be done; the checks that cannot
    listen there any more are no errors."""

    async def takes_it_for_somebody(path: str) -> bool:
        return True

    monkeypatch.setattr(example, "answers", takes_it_for_somebody)
    bench = bench_for(f"unix_transport:UnixTransport@unix://{tmp_path}/kit", **TIMES)
    freed, *others = conform(bench, only=["T320", "T322", "T351"]).outcomes
    assert freed.status is Status.FAILED
    assert "where nobody answers, what a dead process left there must be cleared away" in freed.message
    assert {(each.status, each.message) for each in others} == {(Status.NOT_CHECKED, "T320 failed: repair that first")}


def test_two_ranks_average_a_model_through_it(example: ModuleType, tmp_path: Path) -> None:
    """R-6: a whole cycle of the star averager, over real sockets of the example."""
    kind = Kind("unix", example.UnixTransport, f"unix://{tmp_path}/pace")

    async def main() -> None:
        async with path(LARGE, LARGE, kind=kind) as p:
            expected = (parameters(p.ranks[0]) + 3 * parameters(p.ranks[1])) / 4
            p.open(0, 1)
            for trainer, steps in zip(p.ranks, (1, 3), strict=True):
                trainer.offer(steps)
                p.admit(trainer.rank, steps)
            events = await staged(p)
            for trainer in p.ranks:
                adopt(trainer)
            torch.testing.assert_close(parameters(p.ranks[0]), expected)
            assert torch.equal(parameters(p.ranks[0]), parameters(p.ranks[1]))
            assert len({event.digest for event in events}) == 1

    run(main)


def test_installed_it_is_found_by_its_scheme(tmp_path: Path) -> None:
    """The entry point of the guide, and the command of the guide, in a process that has nothing but those."""
    guide = (DOCS / "guides" / "write-a-transport.md").read_text(encoding="utf-8")
    (declared,) = (block for block in guide.split("```") if "entry-points" in block)
    installed = tmp_path / "unix_transport-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: unix-transport\nVersion: 1.0\n")
    points = declared.replace("project.entry-points.", "").replace('"', "")
    (installed / "entry_points.txt").write_text(points)
    report = tmp_path / "report.json"
    search = os.pathsep.join([str(tmp_path), str(EXAMPLE.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "paceline.backends.cli", "conform", "transport", f"unix://{tmp_path}/kit",
         "--level", "L1", "--patience", str(PATIENCE_S), "--json", str(report)],
        env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    plain = json.loads(report.read_text(encoding="utf-8"))
    assert plain["ok"] and plain["counts"]["passed"] == len(plain["outcomes"])
    assert plain["outcomes"][0]["id"] == "T001"
