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

from conformance.broken_averagers import rounds, sums

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plain_averager.py"
TINY_BLOCK = 32
"""Bytes of a block in these tests: every model then has several, in no time."""

CAUGHT_BY = {
    sums.IgnoresGamma: "A201",
    sums.DividesByTheWorld: "A202",
    sums.WeighsBuffers: "A203",
    sums.SumsInTheWireType: "A205",
    sums.NarrowsDoubles: "A205",
    sums.ScalesEachContribution: "A201",
    sums.SumsAsTheyCome: "A206",
    sums.RealizesOverflow: "A209",
    sums.KeepsTheOldSum: "A213",
    sums.DigestsAndMore: "A106",
    sums.DigestsTheSum: "A106",
    rounds.TakesAnySchema: "A301",
    rounds.BelievesEverySteps: "A301",
    rounds.TrustsFinite: "A303",
    rounds.TakesAnyAttempt: "A305",
    rounds.OverwritesDeposits: "A304",
    rounds.ShoutsAtLateFrames: "A305",
    rounds.NeedsNoAdmission: "A307",
    rounds.WaitsForTheDead: "A306",
    rounds.CountsTheDead: "A306",
    rounds.HearsOtherRounds: "A102",
    rounds.NeverTired: "A108",
    rounds.AbortsInSilence: "A108",
    rounds.CapableInWords: "A002",
    rounds.RealizesNothing: "A208",
    rounds.WritesOverReaders: "A309",
    rounds.KeepsTheUnfinished: "A310",
    rounds.ReusesPlacedMemory: "A311",
    rounds.PlacesShort: "A201",
    rounds.TakesBlocksInAnyOrder: "A103",
    rounds.ForgetsTheLastBlock: "A105",
    rounds.StampsOneForAll: "A105",
    rounds.TellsAllTheSame: "A104",
    rounds.SendsBeforeTheEnd: "A101",
    rounds.ForgetsObservers: "A104",
    rounds.NeverComplete: "A107",
    rounds.StateIsAContribution: "A210",
}
"""Which check catches which averager."""


@pytest.fixture(autouse=True, scope="module")
def tiny_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK_BYTES", TINY_BLOCK)
        yield


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: f"{check.id}-{check.name}")
def test_star_keeps_the_contract(check: Any) -> None:
    """R-1 to R-11, R-18, R-20 to R-22, C-18, I55 to I60, I66."""
    (outcome,) = check_averager(StarAverager, only=[check.id]).outcomes
    assert outcome.status is Status.PASSED, outcome.message


@pytest.mark.parametrize("broken", CAUGHT_BY, ids=lambda broken: broken.__name__)
def test_a_broken_averager_is_caught_by_its_check(broken: type[StarAverager]) -> None:
    """A net with holes is none."""
    (outcome,) = check_averager(broken, only=[CAUGHT_BY[broken]]).outcomes
    assert outcome.status is Status.FAILED, f"{outcome.status}: {outcome.message}"


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: check.id)
def test_the_averager_of_the_guide_keeps_the_contract(check: Any, plain_averager: Any) -> None:
    """docs/examples/plain_averager.py, which docs/guides/write-an-averager.md explains."""
    (outcome,) = check_averager(plain_averager, only=[check.id]).outcomes
    assert outcome.status is Status.PASSED, outcome.message


@pytest.fixture(scope="module")
def plain_averager(tiny_blocks: None) -> Any:
    return runpy.run_path(str(EXAMPLE))["PlainAverager"]


def test_the_guide_explains_every_check() -> None:
    """A check that fails names a heading of the guide."""
    guide = (EXAMPLE.parents[1] / "guides" / "write-an-averager.md").read_text(encoding="utf-8")
    headings = {line[3:].lower().replace(" ", "-") for line in guide.splitlines() if line.startswith("## ")}
    assert {check.doc.partition("#")[2] for check in KIT.checks} <= headings


def test_every_broken_averager_of_the_folder_is_here() -> None:
    """One that nobody looks for proves nothing."""
    defined = {
        each for module in (sums, rounds) for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__ and not name.startswith("_")
    }  # fmt: skip
    assert defined == set(CAUGHT_BY)


def test_what_is_not_claimed_is_reported_as_such() -> None:
    """Both ways: a claimed capability is tested, one that is not must be lacked as documented."""

    class Dogged(StarAverager):
        """Not abortable, and honest about it."""

        capabilities = rounds.AbortsInSilence.capabilities
        abort = rounds.NeverTired.abort

    report = check_averager(Dogged, level=Level.L1)
    assert [o.id for o in report.outcomes if o.status is Status.NOT_CLAIMED] == ["A108"] and report.ok


def test_the_command_writes_a_report(tmp_path: Path) -> None:
    """`paceline conform averager NAME --json FILE`: installed ones by name, others as module:class."""
    path = tmp_path / "out.json"
    done = CliRunner().invoke(cli, ["conform", "averager", "star", "--level", "L1", "--json", str(path)],
                              standalone_mode=False)  # fmt: skip
    assert done.return_value == 0, done.output
    report = json.loads(path.read_text())
    assert report["kit"] == "averagers" and report["ok"] and report["claims"] == {"abortable": True, "ships": True}
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
