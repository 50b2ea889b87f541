"""The kit for transports catches what it is there for: each check a broken plug-in of the folder, named here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from paceline.core.conformance import Check, Outcome, Status
from paceline.transports.conformance import KIT, bench_for, conform

from conformance.broken_transports import (
    base,
    cancelled,
    claims,
    deaths,
    doors,
    ends,
    leaks,
    load,
    misuse,
    order,
)
from conformance.caught import Caught, cases, ensure_complete

FOLDER = (cancelled, claims, deaths, doors, ends, leaks, load, misuse, order)
CAUGHT: Caught = {
    "T001": [doors.SaysAnotherScheme],
    "T002": [claims.ClaimsInWords],
    "T003": [doors.TakesAnyAddress],
    "T101": [doors.NamesNoPeer],
    "T102": [ends.SecondChoice],
    "T103": [doors.KeepsItsAddress],
    "T104": [doors.ServesOn],
    "T105": [doors.ClosesItsChannelsToo],
    "T106": [ends.HandlerEndsServe],
    "T107": [doors.TakesAnyCredentials],
    "T111": [ends.ClosesOnce, cancelled.SendsIntoNothing],
    "T112": [ends.ForgetsToNoticeDeath],
    "T113": [misuse.CutsWhatIsTooLong],
    "T114": [misuse.SaysLostForRefused, misuse.SkipsRefusedBlocks],
    "T115": [misuse.SpeaksAsciiOnly],
    "T201": [order.Reorders, order.DeliversTwice],
    "T202": [order.SwapsBlocks],
    "T203": [order.Interleaves],
    "T211": [order.CutsLargeBlocks],
    "T212": [order.TakesFramesAboveTheCap],
    "T221": [order.SpillsOverThePlace],
    "T222": [misuse.FillsShortMemory],
    "T223": [load.SendsFromReusedMemory],
    "T231": [order.DropsTheLastFrame],
    "T232": [order.OneHeaderForAll],
    "T241": [load.UnboundedBuffering],
    "T242": [load.UnboundedMessages],
    "T251": [load.BlocksFirst],
    "T252": [load.ControlBehindBulk, claims.HidesASeparateBulkLane],
    "T301": [order.TearsAFrameOnCancellation],
    "T302": [cancelled.SendsIntoNothing],
    "T303": [cancelled.TearsAMessageOnCancellation],
    "T304": [cancelled.ReadsOnWhenCancelled],
    "T305": [cancelled.ClosesWhenCancelled],
    "T306": [order.LosesAMessageWhenCancelled],
    "T311": [ends.ForgetsToNoticeDeath, ends.NamesNobody],
    "T312": [ends.ForgetsTheBulkLane],
    "T313": [ends.TwoLossNotices],
    "T314": [doors.RunsItsHandlerTwice],
    "T315": [order.DeliversAfterClose],
    "T316": [ends.OneLossEndsAll],
    "T321": [claims.LiesAboutProcesses, claims.HidesItsPort],
    "T322": [deaths.WaitsForTheDead],
    "T323": [deaths.GivesTheLastBlockTwice],
    "T324": [deaths.BuriesNobodyByName],
    "T325": [deaths.BuriesNobodyByName],
    "T326": [deaths.AsksEachInTurn],
    "T331": [ends.WrongException],
    "T332": [doors.IsHurtByCancelledDials],
    "T341": [claims.LiesAboutAuthentication, claims.HidesAuthentication],
    "T342": [doors.ServesWhoeverKnocks, doors.ListensToAllTheWorld],
    "T343": [ends.WaitsForEver],
    "T344": [claims.LiesAboutHosts, doors.ListensToAllTheWorld],
    "T351": [leaks.LeaksADescriptor],
    "T352": [leaks.LeaksAThread],
    "T353": [leaks.LeaksASegment],
}
"""For each check the plug-ins that it catches."""

SHORT = {"heartbeat_s": 0.2, "evidence_s": 0.4, "limit_s": 0.4}
"""What is broken stays broken however long one waits."""
LONG = {"heartbeat_s": 20.0, "evidence_s": 20.0, "limit_s": 60.0}
"""What is sound is so on a machine that is busy with other things, too."""
OUTSIDE = {"T321", "T322", "T323", "T324", "T325", "T326", "T343"}
"""Checks in which something outside of trio moves, so that their time must be the real one."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    while leaks.LEFT:
        leaks.LEFT.pop()()


def verdict(made: type[base.SoundTransport], check: str, **times: float) -> Outcome:
    """How this check ends over a transport. Time jumps where nothing moves, so that waits are free."""
    name = made.__name__
    url = "tcp://127.0.0.1:0" if made.scheme == "tcp" else f"memory://{name}"
    real = check in OUTSIDE or made.scheme == "tcp"
    bench = bench_for(
        f"{made.__module__}:{name}@{url}", thorough=False, patience_s=20.0, stranger=getattr(made, "knock", None),
        clock=None if real else functools.partial(trio.testing.MockClock, rate=1.0, autojump_threshold=0.0), **times,
    )  # fmt: skip
    (outcome,) = conform(bench, only=[check]).outcomes
    return outcome


def ensure_caught(outcome: Outcome) -> None:
    """The failure is the check's own: an error or a hang that the limit ends would catch everything."""
    assert outcome.status is Status.FAILED, f"{outcome.status}: {outcome.message}"
    assert "the whole check" not in outcome.message


@pytest.mark.parametrize(("check", "broken"), [case for case in cases(CAUGHT) if case[0] != "T001"],
                         ids=lambda case: getattr(case, "__name__", case))  # fmt: skip
def test_a_broken_plug_in_is_caught_by_its_check(check: str, broken: type[base.SoundTransport]) -> None:
    """A net with holes is none."""
    ensure_caught(verdict(broken, check, **SHORT))


def test_one_that_is_declared_for_another_scheme_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T001 is about what is installed, so something is: an entry point in a folder of the path."""
    (broken,) = CAUGHT["T001"]
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
    outcome = verdict(base.SoundTransport, check.id, **LONG)
    assert outcome.ok, outcome.message
    assert (outcome.status is Status.NOT_CHECKED) == (check.id == "T001"), outcome.message


BOTH_WAYS: dict[str, tuple[str, type[base.SoundTransport], type[base.SoundTransport]]] = {
    "across_processes": ("T321", claims.LiesAboutProcesses, claims.HidesItsPort),
    "across_hosts": ("T344", claims.LiesAboutHosts, doors.ListensToAllTheWorld),
    "authenticated": ("T341", claims.LiesAboutAuthentication, claims.HidesAuthentication),
    "separate_bulk": ("T252", load.ControlBehindBulk, claims.HidesASeparateBulkLane),
}
"""For each capability its check, who claims it and lacks it, who has it and does not claim it."""


def test_each_capability_is_looked_at_both_ways() -> None:
    """A claim is tested, and what is there is to be claimed. That they are caught is said above, by CAUGHT."""
    needs = {check.id: check.needs for check in KIT.checks}
    assert set(BOTH_WAYS) == set(KIT.capabilities) == {each for each in needs.values() if each}
    for capability, (check, liar, hider) in BOTH_WAYS.items():
        assert needs[check] == capability and {liar, hider} <= set(CAUGHT[check])
        claimed = [getattr(each.capabilities, capability) for each in (liar, hider)]
        assert claimed == [True, False], capability


def test_each_check_catches_something() -> None:
    """A new check needs a new broken plug-in."""
    ensure_complete(KIT, CAUGHT, FOLDER)
