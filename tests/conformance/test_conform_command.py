"""The ways into the kit: the command, the pytest plug-in, and the promise that it asks for nothing private."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.backends.cli import cli
from paceline.core.conformance import Level
from paceline.core.errors import ConfigError
from paceline.transports import conformance
from paceline.transports.conformance import KIT

ROOT = Path(__file__).parents[2]
KIT_FILES = sorted(Path(conformance.__file__).parent.glob("*.py"))
PLUGIN = "paceline.transports.pytest_plugin"
BROKEN = "conformance.broken_transports.order:DropsTheLastFrame@memory://command"


def conform(*words: str) -> tuple[int, str]:
    """Exit code and output of the command, in this process."""
    result = CliRunner().invoke(cli, ["conform", "transport", *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


# --- the command


def test_the_command_names_every_check() -> None:
    code, text = conform("--list")

    assert code == 0
    assert re.findall(r"^(T\d{3}) (L\d)", text, flags=re.MULTILINE) == [(c.id, c.level.name) for c in KIT.checks]


def test_what_passes_ends_with_0_and_writes_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, text = conform("memory://command", "--level", "L0", "--json", str(report))

    assert code == 0 and text.endswith("3 passed\n")
    assert [each["id"] for each in json.loads(report.read_text())["outcomes"]] == ["T001", "T002", "T003"]


def test_what_fails_ends_with_1_and_says_why_where_and_how_to_see_it_again() -> None:
    code, text = conform(BROKEN, "--check", "T231", "--fast")

    assert code == 1
    assert "T231 L2 FAILED" in text and "the last messages before an orderly close were lost" in text
    assert "explained: docs/guides/write-a-transport.md#the-end-of-a-channel" in text
    assert f"again: paceline conform transport {BROKEN} --check T231" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "which transport"),
        (("nowhere",), "write scheme://address or module:factory@scheme://address"),
        (("memory://command", "--check", "T999"), "no check 'T999'"),
    ],
)
def test_a_mistake_of_the_caller_is_one_of_configuration(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        conform(*words)


def test_a_transport_that_cannot_be_made_fails_at_the_door_and_is_judged_no_further() -> None:
    code, text = conform("no_such_module:Transport@memory://x", "--level", "L1")

    assert code == 1
    assert "No module named 'no_such_module'" in text
    assert len(re.findall(r"L1 not checked", text)) == sum(check.level is Level.L1 for check in KIT.checks)


# --- the pytest plug-in


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of somebody else, with the plug-in as an installation loads it."""
    loaded = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = () if loaded else ("-p", PLUGIN)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-q", *words],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_each_check_is_a_test_and_what_is_left_out_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ("--pyargs", "paceline.transports.conformance", "--fast", "-rs")
    done = run_pytest(tmp_path, *options, "--transport", "memory://pytest", "-k", "T101 or T322 or T342")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "not claimed: across_processes is not claimed" in done.stdout
    assert "not checked: nothing is known that could knock at memory://pytest" in done.stdout


def test_the_plug_in_leaves_the_sessions_of_others_alone(tmp_path: Path) -> None:
    """They may have options of the same names, and load neither trio nor torch for it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--transport', default='mine')\n"
        "    parser.addoption('--level', type=int)\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n\n"
        "def test_theirs(pytestconfig):\n"
        "    assert pytestconfig.getoption('--transport') == 'bus' and pytestconfig.getoption('--level') == 3\n"
        "    assert not {'trio', 'torch', 'msgspec', 'attrs'} & set(sys.modules)\n"
    )
    done = run_pytest(tmp_path, "--transport", "bus", "--level", "3", "-p", "no:hypothesispytest", "-p", "no:anyio")

    assert done.returncode == 0, done.stdout + done.stderr


# --- the kit


def test_the_id_of_a_check_has_its_level() -> None:
    assert [check.id for check in KIT.checks if int(check.id[1]) != check.level] == []


def test_the_kit_asks_for_nothing_private() -> None:
    """What it can reach, a plug-in author can: no name with an underscore is imported or used."""
    private = []
    for file in KIT_FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names] + (node.module or "").split(".")
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            else:
                continue
            private += [f"{file.name}: {name}" for name in names if re.match(r"_(?!_)", name)]

    assert [name for name in private if name != "processes.py: _exit" and name != "peer.py: _exit"] == []
