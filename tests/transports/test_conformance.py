"""The kit that plug-in authors run, over the transports of this package: what every transport promises is tested there.

Beside it, `test_channels.py` and the files of each transport have what is peculiar to us.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.conformance import Check, Status
from paceline.transports.conformance import KIT, bench_for, conform
from paceline.transports.conformance.kit import claimed_by

TIMES = {"heartbeat_s": 20.0, "evidence_s": 20.0, "limit_s": 60.0, "thorough": False}
"""Wide enough for a machine that is busy with other things: nothing here passes or fails by how fast it was."""

BENCHES = {"memory": bench_for("memory://kit", **TIMES), "tcp": bench_for("tcp://127.0.0.1:0", **TIMES)}

BRIEF = bench_for("support.transports:brief_tcp@tcp://127.0.0.1:0", **TIMES)
AT_A_LIMIT = {"T325", "T331", "T343"}
"""Checks that end when a transport gives up: after the 30 s of a dial or the 10 s of a handshake, which a test need not
wait for."""

NOT_OVER_MEMORY = {"T320", "T321", "T322", "T323", "T324", "T325", "T326", "T342", "T343", "T344"}
"""A transport inside one process has no other process, no host, and no door at which a stranger could knock; that it
has none is looked at."""


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
@pytest.mark.parametrize("name", BENCHES)
def test_the_kit(name: str, check: Check[Any]) -> None:
    """N-2, N-3, N-4, N-5, N-22, N-25, N-26, N-29, M-5, M-8, M-17, M-53, W-21, W-24, 17.1 #24; field cases F13, F61,
    F64, F76, F87: each check says which. Nothing is left out without a reason that stands here."""
    bench = BRIEF if name == "tcp" and check.id in AT_A_LIMIT else BENCHES[name]
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
