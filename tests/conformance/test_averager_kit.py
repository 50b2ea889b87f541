"""The kit for averagers: star keeps it, and each broken averager of the folder is caught by the check named here."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.backends.conformance import KIT, check_averager, claims_of
from paceline.backends.star import StarAverager
from paceline.core.conformance import Level, Status
from paceline.core.errors import ConfigError, TransportError

from conformance.broken_averagers import in_place, rounds
from conformance.broken_averagers.table import FOLDER
from conformance.caught import ensure_caught
from conformance.examples import EXAMPLES, example
from support.averaging import TINY_BLOCK, blocks_of
from support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nobody_waits_for_what_hangs")

EXAMPLE = EXAMPLES / "plain_averager.py"
tiny_blocks = blocks_of(TINY_BLOCK)


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
    killed = check.id == "A329"
    due = Status.NOT_CLAIMED if check.within == "ships" else Status.NOT_CHECKED if killed else Status.PASSED
    assert outcome.status is due, outcome.message


SHIPPED_CHECKS = [check for check in KIT.checks if check.within != "in_place"]
IN_PLACE_CHECKS = [check for check in KIT.checks if check.within != "ships"]


def test_star_keeps_the_contract_over_tcp() -> None:
    """N-25, N-26, R-4, R-9: every block and every record crosses real sockets, into the memory that star names."""
    report = check_averager(StarAverager, target="star", over="tcp://127.0.0.1:0", only=[c.id for c in SHIPPED_CHECKS],
                            patience_s=PATIENCE_S)  # fmt: skip
    assert [f"{each.id} {each.message}" for each in report.outcomes if each.status is not Status.PASSED] == []
    assert report.target == "star --over tcp://127.0.0.1:0"


def test_one_in_place_keeps_the_contract_in_real_processes() -> None:
    """M-17, M-31, R-13, R-15, W-20: docs/examples/tcp_in_place.py, each rank a process, the sessions over TCP; some of
    the processes are killed."""
    report = check_averager(example("tcp_in_place").TcpInPlace, target="tcp_in_place:TcpInPlace", processes=True,
                            only=[check.id for check in IN_PLACE_CHECKS], patience_s=PATIENCE_S)  # fmt: skip
    assert [f"{each.id} {each.message}" for each in report.outcomes if each.status is not Status.PASSED] == []


def test_one_that_meets_in_memory_is_told_so_when_its_ranks_are_processes() -> None:
    """No session comes about, and a check says which rank waited for how long; nothing hangs."""
    (outcome,) = check_averager(example("plain_in_place").PlainInPlace, target="plain_in_place:PlainInPlace",
                                processes=True, only=["A122"], patience_s=1.0).outcomes  # fmt: skip
    assert outcome.status is Status.FAILED and "build of rank" in outcome.message


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [(StarAverager, {"processes": True}, "--processes: star ships"), (in_place.Sound, {"over": "tcp://127.0.0.1:0"},
     "--over tcp://127.0.0.1:0: plain_in_place averages in place"), (StarAverager, {"over": "tcp"}, "write scheme://"),
     (StarAverager, {"over": "pigeon://loft"}, "no transport for the scheme 'pigeon'")],
)  # fmt: skip
def test_how_the_kit_looks_must_suit_the_averager(make: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_averager(make, **options)


@pytest.mark.parametrize("make", [StarAverager, in_place.Sound])
def test_a_function_that_makes_one_has_the_claims_of_what_it_makes(make: Any) -> None:
    assert claims_of(lambda *given, **knobs: make(*given, **knobs)) == claims_of(make)


@pytest.mark.parametrize(**FOLDER.cases())
def test_a_broken_averager_is_caught_by_its_check(check: str, broken: type[StarAverager]) -> None:
    """A net with holes is none."""
    asked = getattr(broken, "asked", {})
    name = f"{broken.__module__}:{broken.__qualname__}"
    (outcome,) = check_averager(broken, target=name, only=[check], **{"patience_s": PATIENCE_S, **asked}).outcomes
    ensure_caught(outcome)


@pytest.mark.parametrize("check", KIT.checks, ids=lambda check: check.id)
def test_the_averager_of_the_guide_keeps_the_contract(check: Any, plain_averager: Any) -> None:
    """docs/examples/plain_averager.py, which docs/guides/write-an-averager.md explains."""
    (outcome,) = check_averager(plain_averager, only=[check.id]).outcomes
    due = Status.NOT_CLAIMED if check.within == "in_place" else Status.PASSED
    assert outcome.status is due, outcome.message


@pytest.fixture(scope="module")
def plain_averager(tiny_blocks: None) -> Any:
    return runpy.run_path(str(EXAMPLE))["PlainAverager"]


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


def test_a_transport_that_hangs_under_an_averager_is_told_by_its_call() -> None:
    """The loop of events of the wire is another thread's; it is ended as that of a check is, and the check with it."""
    over = "conformance.broken_transports.hangs:DialsOnTheSpot@memory://spot"
    report = check_averager(StarAverager, over=over, only=["A104", "A105"])
    failed, after = report.outcomes
    assert (failed.status, after.status) == (Status.FAILED, Status.NOT_CHECKED)
    assert "DialsOnTheSpot.dial did not come back, and was in dial (hangs.py" in failed.message
    with pytest.raises(TransportError, match=r"nobody can listen at .*IsNeverMade.__init__ did not come back"):
        check_averager(StarAverager, over=over.replace("DialsOnTheSpot", "IsNeverMade"))


def test_the_command_looks_over_a_transport_and_says_so_in_its_report(tmp_path: Path) -> None:
    """What it names as `rerun` is the same look again."""
    path = tmp_path / "out.json"
    words = ["conform", "averager", "star", "--over", "tcp://127.0.0.1:0", "--check", "A105", "--json", str(path)]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    report = json.loads(path.read_text())
    assert report["target"] == "star --over tcp://127.0.0.1:0"
    assert report["outcomes"][0]["rerun"] == "paceline conform averager star --over tcp://127.0.0.1:0 --check A105"


def test_without_its_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel brings no numpy by itself."""
    for module in ("numpy", "paceline.backends.conformance"):
        monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(cli, ["conform", "averager", "--list"], standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and "pip install 'paceline[torch]'" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [([], "which averager"), (["star", "--processes"], "take --over URL"), (["nobody"], "nobody"),
     (["star", "--over", "nothing"], "is no transport"), (["paceline.nowhere:X"], "paceline.nowhere"),
     (["star", "--check", "A999"], "A999")],
)  # fmt: skip
def test_what_the_command_cannot_use_is_named(arguments: list[str], text: str) -> None:
    """Errors name the thing, the value and the remedy."""
    done = CliRunner().invoke(cli, ["conform", "averager", *arguments], standalone_mode=False)
    assert isinstance(done.exception, ConfigError) and text in str(done.exception)
