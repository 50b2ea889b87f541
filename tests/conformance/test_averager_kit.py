"""The kit for averagers: star keeps it, and each broken averager of the folder is caught by the check named here."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.backends import layout
from paceline.backends.cli import cli
from paceline.backends.conformance import KIT, check_averager
from paceline.backends.star import StarAverager
from paceline.core.conformance import Level, Status
from paceline.core.errors import ConfigError

from conformance.broken_averagers import in_place, rounds, sums
from conformance.caught import Caught, cases, ensure_complete

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plain_averager.py"
TINY_BLOCK = 32
"""Bytes of a block in these tests: every model then has several, in no time."""

CAUGHT: Caught = {
    "A001": [rounds.KnowsNoGamma],
    "A002": [rounds.CapableInWords, in_place.NeedsASessionToReceive],
    "A003": [in_place.HidesThatItIsInPlace, in_place.LiesThatItIsInPlace, in_place.IsOfBothKinds],
    "A101": [rounds.SendsBeforeTheEnd],
    "A102": [rounds.HearsOtherRounds],
    "A103": [rounds.TakesBlocksInAnyOrder],
    "A104": [rounds.TellsAllTheSame, rounds.ForgetsObservers],
    "A105": [rounds.ForgetsTheLastBlock, rounds.StampsOneForAll],
    "A106": [sums.DigestsAndMore, sums.DigestsTheSum],
    "A107": [rounds.NeverComplete],
    "A108": [rounds.NeverTired, rounds.AbortsInSilence],
    "A121": [in_place.CountsItsSessions],
    "A122": [in_place.ForgetsTheAttempt],
    "A123": [in_place.LetsObserversVote],
    "A201": [sums.IgnoresGamma, sums.ScalesEachContribution, rounds.PlacesShort],
    "A202": [sums.DividesByTheWorld],
    "A203": [sums.WeighsBuffers],
    "A204": [sums.AveragesEverything],
    "A205": [sums.SumsInTheWireType, sums.NarrowsDoubles],
    "A206": [sums.SumsAsTheyCome],
    "A207": [sums.GoesTooFar],
    "A208": [rounds.RealizesNothing],
    "A209": [sums.RealizesOverflow],
    "A210": [rounds.StateIsAContribution],
    "A211": [rounds.HasRoomForOne],
    "A212": [sums.WeighsTiedTwice],
    "A213": [sums.KeepsTheOldSum],
    "A221": [in_place.WeighsBySteps],
    "A222": [in_place.WeighsBuffers],
    "A223": [in_place.AveragesAllItFinds],
    "A224": [in_place.SumsFromItself],
    "A225": [in_place.DividesByNothing],
    "A226": [in_place.SharesWhatRides],
    "A214": [rounds.KeepsWhatItWasLent],
    "A301": [rounds.TakesAnySchema, rounds.BelievesEverySteps],
    "A302": [rounds.ReadsWhatItRefused],
    "A303": [rounds.TrustsFinite],
    "A304": [rounds.OverwritesDeposits],
    "A305": [rounds.TakesAnyAttempt, rounds.ShoutsAtLateFrames],
    "A306": [rounds.WaitsForTheDead, rounds.CountsTheDead],
    "A307": [rounds.NeedsNoAdmission],
    "A308": [sums.KeepsThePartialSum],
    "A309": [rounds.WritesOverReaders],
    "A310": [rounds.KeepsTheUnfinished],
    "A311": [rounds.ReusesPlacedMemory],
    "A321": [in_place.TrustsItsValues],
    "A322": [in_place.WaitsForNobody, in_place.HidesItsSession],
    "A323": [in_place.TakesAnySession],
    "A324": [in_place.MatchesByPosition],
    "A325": [in_place.TakesNothingBack],
    "A326": [in_place.LeavesHalfASum, in_place.GivesUpForGood, in_place.HidesItsAbort],
    "A327": [in_place.HearsOnlyInside],
    "A328": [in_place.AddsWhoHasLeft],
}
"""For each check the averagers that it catches."""


@pytest.fixture(autouse=True, scope="module")
def tiny_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK_BYTES", TINY_BLOCK)
        yield


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
def test_star_keeps_the_contract(check: Any) -> None:
    """R-1 to R-11, R-18, R-20 to R-22, C-18, M-44, I55 to I60, I66."""
    (outcome,) = check_averager(StarAverager, only=[check.id]).outcomes
    due = Status.NOT_CLAIMED if check.within == "in_place" else Status.PASSED
    assert outcome.status is due, outcome.message


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
def test_the_one_in_place_keeps_the_contract(check: Any) -> None:
    """R-1, R-13, R-15, R-16, R-20, M-31, W-14, W-20, I59: docs/examples/plain_in_place.py, what the broken ones are
    made from."""
    (outcome,) = check_averager(in_place.Sound, only=[check.id]).outcomes
    due = Status.NOT_CLAIMED if check.within == "ships" else Status.PASSED
    assert outcome.status is due, outcome.message


@pytest.mark.parametrize(("check", "broken"), cases(CAUGHT), ids=lambda case: getattr(case, "__name__", case))
def test_a_broken_averager_is_caught_by_its_check(check: str, broken: type[StarAverager]) -> None:
    """A net with holes is none."""
    (outcome,) = check_averager(broken, only=[check], patience_s=0.5).outcomes
    assert outcome.status is Status.FAILED, f"{outcome.status}: {outcome.message}"


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: check.id)
def test_the_averager_of_the_guide_keeps_the_contract(check: Any, plain_averager: Any) -> None:
    """docs/examples/plain_averager.py, which docs/guides/write-an-averager.md explains."""
    (outcome,) = check_averager(plain_averager, only=[check.id]).outcomes
    due = Status.NOT_CLAIMED if check.within == "in_place" else Status.PASSED
    assert outcome.status is due, outcome.message


@pytest.fixture(scope="module")
def plain_averager(tiny_blocks: None) -> Any:
    return runpy.run_path(str(EXAMPLE))["PlainAverager"]


def test_the_guide_explains_every_check() -> None:
    """A check that fails names a heading of the guide."""
    guide = (EXAMPLE.parents[1] / "guides" / "write-an-averager.md").read_text(encoding="utf-8")
    headings = {line[3:].lower().replace(" ", "-") for line in guide.splitlines() if line.startswith("## ")}
    assert {check.doc.partition("#")[2] for check in KIT.checks} <= headings


def test_each_check_catches_something() -> None:
    """A new check needs a new broken averager."""
    ensure_complete(KIT, CAUGHT, (in_place, rounds, sums))


class _Dogged(StarAverager):
    """Not abortable, and honest about it."""

    capabilities = rounds.AbortsInSilence.capabilities
    abort = rounds.NeverTired.abort


class _Mortal(in_place.GivesUpForGood):
    """Not abortable either: an abort spoils what it holds, and it says that it cannot go on."""

    capabilities = in_place.able(abortable=False)

    def run(self, order: Any) -> Any:
        ended = super().run(order)
        if order.session_id in self.aborted:
            self.live[:4] = b"\xff" * 4
        return ended


@pytest.mark.parametrize(("honest", "check", "level"), [(_Dogged, "A108", Level.L1), (_Mortal, "A326", Level.L3)])
def test_what_is_not_claimed_and_lacks_as_documented_is_no_failure(honest: Any, check: str, level: Level) -> None:
    """R-15, R-18: an abort leaves every bit as it was, or is followed by a renewal that brings the state of another
    rank."""
    report = check_averager(honest, level=level)
    assert [f"{each.id} {each.message}" for each in report.outcomes if not each.ok] == []
    (outcome,) = (each for each in report.outcomes if each.id == check)
    assert outcome.message == "abortable is not claimed, and lacks as documented"


BOTH_WAYS = {
    "ships": ("A003", in_place.HidesThatItIsInPlace, in_place.IsOfBothKinds),
    "in_place": ("A003", in_place.LiesThatItIsInPlace, in_place.HidesThatItIsInPlace),
    "abortable": ("A326", in_place.GivesUpForGood, in_place.HidesItsAbort),
    "needs_session": ("A322", in_place.WaitsForNobody, in_place.HidesItsSession),
}
"""For each capability its check, who claims it and lacks it, who has it and does not claim it."""


def test_each_capability_is_looked_at_both_ways() -> None:
    """A claim is tested, and what is there is to be claimed."""
    assert set(BOTH_WAYS) == set(KIT.capabilities)
    for capability, (check, *wrong) in BOTH_WAYS.items():
        reports = [check_averager(each, only=[check]) for each in wrong]
        assert [report.claims[capability] for report in reports] == [True, False], capability
        assert [report.outcomes[0].status for report in reports] == [Status.FAILED] * 2, capability


def test_the_command_writes_a_report(tmp_path: Path) -> None:
    """`paceline conform averager NAME --json FILE`: installed ones by name, others as module:class."""
    path = tmp_path / "out.json"
    done = CliRunner().invoke(cli, ["conform", "averager", "star", "--level", "L1", "--json", str(path)],
                              standalone_mode=False)  # fmt: skip
    assert done.return_value == 0, done.output
    report = json.loads(path.read_text())
    assert report["kit"] == "averagers" and report["ok"] and report["claims"] == {
        "abortable": True, "in_place": False, "needs_session": False, "ships": True,
    }
    done = CliRunner().invoke(cli, ["conform", "averager", "conformance.broken_averagers.rounds:NeverComplete",
                                    "--check", "A107"], standalone_mode=False)  # fmt: skip
    assert done.return_value == 1 and "A107 L1 FAILED" in done.output
    assert "again: paceline conform averager conformance.broken_averagers.rounds:NeverComplete" in done.output
    assert "A306" in CliRunner().invoke(cli, ["conform", "averager", "--list"]).output


@pytest.mark.parametrize(("arguments", "text"), [([], "which averager"), (["nobody"], "nobody"),
                                                 (["paceline.nowhere:X"], "paceline.nowhere"),
                                                 (["star", "--check", "A999"], "A999")])  # fmt: skip
def test_what_the_command_cannot_use_is_named(arguments: list[str], text: str) -> None:
    """Errors name the thing, the value and the remedy."""
    done = CliRunner().invoke(cli, ["conform", "averager", *arguments], standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and text in str(done.exception)
