"""The kit for transports catches what it is there for: each broken plug-in of the folder by a check named here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.core.conformance import Status
from paceline.transports.conformance import KIT, bench_for, conform

from conformance.broken_transports import base, claims, ends, leaks, load, order

CAUGHT_BY = {
    order.DropsTheLastFrame: "T231",
    order.Reorders: "T201",
    order.DeliversTwice: "T201",
    order.SwapsBlocks: "T202",
    order.SpillsOverThePlace: "T221",
    order.CutsLargeBlocks: "T211",
    order.TakesFramesAboveTheCap: "T212",
    order.TearsAFrameOnCancellation: "T301",
    order.LosesAMessageWhenCancelled: "T306",
    order.DeliversAfterClose: "T315",
    ends.ForgetsToNoticeDeath: "T311",
    ends.ForgetsTheBulkLane: "T312",
    ends.TwoLossNotices: "T313",
    ends.NamesNobody: "T311",
    ends.ClosesOnce: "T111",
    ends.HandlerEndsServe: "T106",
    ends.WrongException: "T331",
    ends.SecondChoice: "T102",
    ends.WaitsForEver: "T343",
    load.UnboundedBuffering: "T241",
    load.SendsFromReusedMemory: "T223",
    load.ControlBehindBulk: "T252",
    claims.LiesAboutAuthentication: "T341",
    claims.LiesAboutProcesses: "T321",
    claims.LiesAboutHosts: "T344",
    claims.HidesASeparateBulkLane: "T252",
    claims.HidesAuthentication: "T341",
    claims.ClaimsInWords: "T002",
    leaks.LeaksADescriptor: "T351",
    leaks.LeaksAThread: "T352",
    leaks.LeaksASegment: "T353",
}
"""Which check catches which plug-in."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    while leaks.LEFT:
        leaks.LEFT.pop()()


def verdict(broken: type, check: str, url: str) -> tuple[Status, str]:
    """How this check ends over a plug-in. Times are short: what is broken stays broken however long one waits."""
    bench = bench_for(
        f"{broken.__module__}:{broken.__name__}@{url}",
        thorough=False, heartbeat_s=0.5, evidence_s=1.5, limit_s=0.5, patience_s=20.0,
    )  # fmt: skip
    (outcome,) = conform(bench, only=[check]).outcomes
    return outcome.status, outcome.message


@pytest.mark.parametrize(("broken", "check"), CAUGHT_BY.items(), ids=lambda case: getattr(case, "__name__", case))
def test_a_broken_plug_in_is_caught_by_its_check(broken: type, check: str) -> None:
    """The failure is the check's own: an error or a hang that the limit ends would catch everything."""
    url = "tcp://127.0.0.1:0" if broken.scheme == "tcp" else f"memory://{broken.__name__}"
    status, message = verdict(broken, check, url)

    assert status is Status.FAILED, message
    assert "the whole check" not in message


@pytest.mark.parametrize(
    "check", sorted({check for check in CAUGHT_BY.values() if check not in ("T321", "T343", "T344")})
)
def test_what_they_are_made_from_passes(check: str) -> None:
    """So it is the fault that is caught, and not the layer it sits in."""
    assert verdict(base.SoundTransport, check, "memory://Sound") == (Status.PASSED, "")


def test_every_capability_has_a_check_and_a_plug_in_that_lies_about_it() -> None:
    needed = {check.id: check.needs for check in KIT.checks if check.needs}

    assert set(needed.values()) == set(KIT.capabilities)
    assert {needed[check] for check in CAUGHT_BY.values() if check in needed} == set(KIT.capabilities)
