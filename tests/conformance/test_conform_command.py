"""The ways into the kit: the command, the pytest plug-in, and the promise that it asks for nothing private."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.backends import kit_process
from paceline.backends.cli import cli
from paceline.backends.conformance import KIT as AVERAGERS
from paceline.backends.conformance import check_averager
from paceline.backends.endings import end
from paceline.core.conformance import Level, Outcome, Report, Status
from paceline.core.conformance.policies import KITS
from paceline.core.errors import ConfigError
from paceline.transports.conformance import KIT
from paceline.transports.pytest_kit import kit_tests

from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PUBLIC_ONLY = sorted([ROOT / "transports" / "limit.py"] + [
    file for folder in ("core/conformance", "transports/conformance", "backends/conformance", "docs/examples")
    for file in (ROOT / folder).rglob("*.py")
])  # fmt: skip
PLUGIN = "paceline.transports.pytest_plugin"
PYTEST = "import sys; sys.path.remove(''); import pytest; sys.exit(pytest.main())"
"""As the program `pytest` runs: unlike `python -m pytest` it finds no module of the working directory by itself."""
UNWANTED = ("cacheprovider", "hypothesispytest", "anyio")
"""Plug-ins that write files, or load much of what these tests look for."""
COMMANDED = "conformance.commanded"
AT_LEISURE = "conformance.at_leisure"
LOUD = "conformance.loud"
HOLDS = "conformance.broken_policies.holds"
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


@pytest.mark.parametrize(("words", "check", "code"), [
    (("transport", "memory://command"), "T101", 0), (("transport", BROKEN), "T231", 1),
    (("policy", f"{LOUD}:Guard", "--kind", "guard"), "P101", 0), (("averager", f"{LOUD}:Averager"), "A002", 0),
])  # fmt: skip
def test_a_dash_is_standard_output_and_the_report_is_alone_there(words: tuple[str, ...], check: str, code: int,
                                                                 tmp_path: Path) -> None:  # fmt: skip
    """`--json - | jq`: what people read is on standard error then, and so is what a plug-in prints. No file of that
    name comes about."""
    command = [sys.executable, "-m", "paceline", "conform", *words, "--check", check, "--json", "-"]
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert done.returncode == code, done.stderr
    (outcome,) = json.loads(done.stdout)["outcomes"]
    assert outcome["id"] == check and done.stdout.endswith("}\n")
    assert f"{check} L" in done.stderr and "up to L3" in done.stderr
    assert ("it speaks" in done.stderr) == (LOUD in words[1])
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_be_called_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`./-` is no dash."""
    monkeypatch.chdir(tmp_path)
    code, text = conform("memory://command", "--level", "L0", "--json", "./-")
    assert code == 0 and text.endswith("3 passed\n")
    assert json.loads((tmp_path / "-").read_text())["ok"]


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
        (("no_such_module:Transport@memory://x",), "transport 'no_such_module:Transport' cannot be loaded"),
        (("json:loadz@memory://x",), "near to it are load"),
        (("memory://command", "--patience", "nan"), "--patience nan is not allowed: give a finite number of seconds"),
        (("memory://command", "--evidence", "0"), "--evidence 0 is not allowed: give a finite number of seconds"),
        (("memory://command", "--json", "/nowhere/at/all.json"), "there is no directory /nowhere/at; make it first"),
        (("memory://command", "--json", "/"), "--json / is a directory; give the name of a file"),
    ],
)
def test_a_mistake_of_the_caller_is_one_of_configuration(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        conform(*words)


def test_a_transport_that_cannot_be_made_fails_at_the_door_and_is_judged_no_further() -> None:
    code, text = conform(f"{COMMANDED}:cannot_be_made@memory://x", "--level", "L1")

    assert code == 1
    assert "OSError: the device is not there" in text
    assert len(re.findall(r"L1 not checked", text)) == 1, "what shuts the rest is said once"
    assert f"\n{1 + sum(check.level is Level.L1 for check in KIT.checks)} not checked" in text


def test_a_report_that_could_not_be_written_is_told_before_any_check(tmp_path: Path) -> None:
    """Minutes of checks are not lost for a path that was wrong; with any kind of plug-in."""
    for words in (["averager", "star"], ["policy", "level", "--kind", "guard"]):
        where = tmp_path / "none" / "report.json"
        done = CliRunner().invoke(cli, ["conform", *words, "--json", str(where)], standalone_mode=False)
        assert isinstance(done.exception, ConfigError) and done.output == "", words


def test_one_that_carries_no_message_is_told_where_it_waits_and_is_judged_no_further() -> None:
    """Each of the others would wait for its whole time, to say the same."""
    code, text = conform(f"{AT_LEISURE}:Deaf@memory://deaf", "--limit", "30", "--level", "L1")

    assert code == 1
    assert "the arrival of its channel at the handler, did not end within 30 s" in text
    assert text.count("T101 failed: repair that first") == 1
    assert f" {sum(check.level is Level.L1 for check in KIT.checks)} not checked" in text, "T001 is the other one"


def test_a_wait_is_told_with_its_line() -> None:
    code, text = conform(f"{AT_LEISURE}:Slow@memory://slow", "--limit", "10", "--check", "T101")

    assert code == 1
    assert re.search(r"did not end within 10 s; what waited was dial \(commanded.py:\d+\)", text)


def test_a_call_that_hangs_ends_with_1_and_its_name(tmp_path: Path) -> None:
    """In the time that the command was given, and the report says so, too."""
    report = tmp_path / "report.json"
    words = ["conform", "policy", f"{AT_LEISURE}:LoopsInObserve", "--kind", "guard", "--patience", "30", "--json",
             str(report)]  # fmt: skip
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == 1, done.output
    assert "P111 L1 FAILED" in done.output
    assert "did not end within 30 s: LoopsInObserve.observe did not come back, and was in _with_norms" in done.output
    assert [each["id"] for each in json.loads(report.read_text())["outcomes"] if each["status"] == "failed"] == ["P111"]


@pytest.mark.parametrize(
    ("words", "caught", "said"),
    [
        (("transport", f"{COMMANDED}:LeavesInABlock@memory://leaves", "--fast"), "T113",
         r"KeyboardInterrupt: , in send_bulk \(commanded.py:\d+\)"),
        (("averager", "conformance.commanded_averager:LeavesInScatter"), "A105",
         r"GeneratorExit: no more, in scatter \(commanded_averager.py:\d+\)"),
        (("policy", "conformance.broken_policies.guards:EndsTheProgram", "--kind", "guard"), "P111",
         r"SystemExit: 3, in observe \(guards.py:\d+\)"),
    ],
    ids=["transport", "averager", "policy"],
)  # fmt: skip
def test_a_call_that_ends_the_program_is_a_check_that_failed(
    words: tuple[str, ...], caught: str, said: str, tmp_path: Path
) -> None:
    """Whatever it raises to end it, for every kind of plug-in; the other checks are run, and the report is written."""
    report = tmp_path / "report.json"
    done = CliRunner().invoke(cli, ["conform", *words, "--level", "L1", "--json", str(report)], standalone_mode=False)

    assert done.exception is None and done.return_value == 1, done.output
    assert re.search(rf"{caught} L1 FAILED .*\n +a plug-in must not end the program, and this one raised {said}",
                     done.output)  # fmt: skip
    by_status = Counter(each["status"] for each in json.loads(report.read_text())["outcomes"])
    assert by_status["failed"] and by_status["passed"] and not by_status["error"], by_status
    level_1 = {check.id for kit in (KIT, AVERAGERS, KITS["guard"]) for check in kit.select(level=Level.L1)}
    last = max(each for each in level_1 if each[0] == caught[0])
    assert re.search(rf"^{last} L1 (?!not checked)", done.output, flags=re.MULTILINE), "it went on to the end"


def test_an_averager_that_is_not_made_but_ends_the_program_fails_at_the_door() -> None:
    def make(*given: Any, **knobs: Any) -> Any:
        raise SystemExit(0)

    report = check_averager(make, level=Level.L0)
    assert not report.ok and "this one raised SystemExit: 0, in make" in report.outcomes[0].message


def test_the_users_own_interrupt_ends_the_command() -> None:
    """It comes to the command, which ends the process of the kit with it, and is no check that failed."""
    words = ["conform", "policy", f"{COMMANDED}:IsInterrupted", "--kind", "guard"]
    with pytest.raises(BaseExceptionGroup) as interrupted:
        CliRunner().invoke(cli, words, standalone_mode=False)
    assert end(interrupted.value) == 130


@pytest.fixture
def for_ever_until_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens to a process has all the time of the world, and none for one that stands still."""
    look, listened_to = kit_process.wait, []

    def slices(listener: Any) -> int:
        listened_to.append(listener.process.pid)
        return 1

    def wait(ends: Any, timeout: float) -> Any:
        ready = look(ends, timeout)
        while not ready and timeout and not stands_still(listened_to[-1]):
            ready = look(ends, 0.01)
        return ready

    monkeypatch.setattr(kit_process._Listener, "_slices", slices)
    monkeypatch.setattr(kit_process, "wait", wait)


def stands_still(pid: int) -> bool:
    """Whether a process was stopped, or has ended."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in "TZ"


ENDLESS = r"the check did not end within "
NOT_BACK = ENDLESS + r"2015 s: {0} did not come back, in {0} \({1}.py:\d+\), and held the interpreter itself, "


@pytest.mark.usefixtures("for_ever_until_it_stands")
@pytest.mark.parametrize(
    ("words", "caught", "said"),
    [
        (("policy", f"{AT_LEISURE}:HoldsTheInterpreter", "--level", "L1", "--kind", "guard", "--patience", "1000"),
         "P111", NOT_BACK.format("observe", "holds")),
        (("policy", f"{AT_LEISURE}:HoldsWhenMade", "--kind", "guard", "--check", "P101", "--patience", "1000"), "P101",
         NOT_BACK.format("__init__", "holds")),
        (("transport", f"{AT_LEISURE}:HoldsInDial@memory://holds", "--check", "T101", "--patience", "1000"), "T101",
         NOT_BACK.format("dial", "holds")),
        (("policy", f"{HOLDS}:StandsStill", "--kind", "guard", "--check", "P111", "--patience", "1000"), "P111",
         ENDLESS + "2030 s, and its process had to be killed"),
        (("policy", f"{HOLDS}:EndsTheProcess", "--level", "L1", "--kind", "guard"), "P111",
         "a plug-in must not end the program, and this one ended its process with exit code 0"),
        (("policy", f"{HOLDS}:Crashes", "--kind", "guard", "--check", "P111"), "P111",
         r"a plug-in must not crash, and this one ended its process by SIG\w+, in observe \(holds.py:\d+\)"),
    ],
    ids=["holds", "holds at once", "a transport", "stands still", "ends the process", "crashes"],
)  # fmt: skip
def test_whatever_becomes_of_the_process_the_check_that_was_under_way_has_failed(
    words: tuple[str, ...], caught: str, said: str, tmp_path: Path
) -> None:
    """No thread of it sees the time any more, or there is no process any more: the outcome names the check and the
    line, those before it are kept, those after it are not judged, and the report is written."""
    report = tmp_path / "report.json"
    done = CliRunner().invoke(cli, ["conform", *words, "--json", str(report)], standalone_mode=False)

    assert done.exception is None and done.return_value == 1, done.output
    kept = json.loads(report.read_text())
    (failed,) = (each for each in kept["outcomes"] if each["status"] == "failed")
    assert failed["id"] == caught and re.match(said, failed["message"]), failed
    assert re.search(rf"^{caught} L\d FAILED ", done.output, flags=re.MULTILINE) and failed["message"] in done.output
    all_of = [check.id for check in KITS["guard"].select(level=Level.L1)] if "--check" not in words else [caught]
    statuses = {each["id"]: each["status"] for each in kept["outcomes"]}
    due = ["passed" if each < caught else "not_checked" if each > caught else "failed" for each in all_of]
    assert statuses == dict(zip(all_of, due, strict=True)) and not kept["ok"]


def test_a_module_that_holds_the_interpreter_cannot_be_loaded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other that cannot be imported; where all threads stood is told, too. How far it came does not matter."""
    monkeypatch.setattr(kit_process, "START_S", 0.1)
    monkeypatch.setattr(kit_process, "HELD_S", 0.1)
    target = "conformance.broken_policies.holds_at_import:Guard"
    words = ["conform", "policy", target, "--kind", "guard", "--patience", "0.1"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, ConfigError), done.output
    assert re.match(rf"guard '{target}' cannot be loaded: .* did not come back", str(done.exception)), done.exception
    assert "most recent call first" in done.output + capfd.readouterr().err


# --- the pytest plug-in


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of somebody else, with the plug-in as an installation loads it."""
    loaded = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = () if loaded else ("-p", PLUGIN)
    return subprocess.run(
        [sys.executable, "-c", PYTEST, *plugin, *(f"-pno:{each}" for each in UNWANTED), "-q", *words],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_the_kits_run_as_the_guides_say(tmp_path: Path) -> None:
    """In a project that has the examples and nothing else, all kits in one session. Each check is a test; what is left
    out has its reason; what fails says what it asserts."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["--fast", "--patience", str(PATIENCE_S), "-rs"]
    words += ["-k", "T001 or T101 or T344 or A001 or A202 or P101 or P122"]
    for guide, example in (("transport", "unix_transport"), ("averager", "plain_averager"), ("policy", "own_policies")):
        shutil.copy(ROOT / "docs" / "examples" / f"{example}.py", tmp_path)
        (page,) = (ROOT / "docs" / "guides").glob(f"write-a*-{guide}.md")
        (said,) = re.findall(r"pytest (--pyargs paceline[.][^`\n]*)", page.read_text(encoding="utf-8"))
        words += said.replace("///tmp", f"//{tmp_path}").split()
    done = run_pytest(tmp_path, *words)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 2 skipped" in done.stdout
    assert "not checked: it was given as a factory, so no entry point was looked for" in done.stdout
    assert "not claimed: across_hosts is not claimed, and lacks as documented" in done.stdout


@pytest.mark.parametrize(
    ("status", "raised", "text"),
    [
        (Status.PASSED, None, ""),
        (Status.NOT_CLAIMED, pytest.skip.Exception, "not claimed: seen"),
        (Status.NOT_CHECKED, pytest.skip.Exception, "not checked: seen"),
        (Status.FAILED, pytest.fail.Exception, "seen\nasserts: It holds.\nexplained: docs/guides/page.md#heading"),
        (Status.ERROR, pytest.fail.Exception, "seen"),
    ],
)
def test_how_a_check_ends_as_a_test(status: Status, raised: type[BaseException] | None, text: str) -> None:
    outcome = Outcome(id="T101", name="each", level=Level.L1, status=status, message="seen", asserts="It holds.",
                      doc="guides/page.md#heading", rerun="")  # fmt: skip
    report = Report(kit="", kit_version=1, target="", level=Level.L3, claims={}, outcomes=(outcome,))
    _, test = kit_tests(lambda config: (KIT, lambda check: report))
    if raised is None:
        test(lambda check: report, "T101")
        return
    with pytest.raises(raised) as seen:
        test(lambda check: report, "T101")
    assert text in str(seen.value)


def test_a_call_that_hangs_is_one_failed_test(tmp_path: Path) -> None:
    """In the time that the session was given, and the others are run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "mine.py").write_text(
        "from conformance.hanging import endless\n"
        "from paceline.core.guard import LevelGuard\n\n"
        "class Loops(LevelGuard):\n"
        "    @endless\n"
        "    def saved(self):\n"
        "        while True:\n"
        "            pass\n"
    )
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(ROOT / 'tests')!r})\n"
        "import pytest\nfrom conformance.hanging import skip_the_wait\n\n"
        "skip_the_wait(pytest.MonkeyPatch())\n"
    )
    done = run_pytest(tmp_path, "--pyargs", "paceline.transports.pytest_policies", "--kind", "guard", "--policy",
                      "mine:Loops", "--patience", "30", "-k", "P113 or P121")  # fmt: skip

    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "did not end within 30 s: Loops.saved did not come back, and was in saved (mine.py:7)" in done.stdout


def test_what_cannot_be_checked_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run_pytest(tmp_path, "--pyargs", "paceline.transports.pytest_policies", "--kind", "guard", "--policy", "lvl")

    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "\nthere is no guard 'lvl'; those that ship are level, growth, none" in done.stdout
    assert "pytest_kit.py" not in done.stdout


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
    done = run_pytest(tmp_path, "--transport", "bus", "--level", "3")

    assert done.returncode == 0, done.stdout + done.stderr


# --- the kit


def test_the_id_of_a_check_has_its_level() -> None:
    assert [check.id for check in KIT.checks if int(check.id[1]) != check.level] == []


def resolved(file: Path, node: ast.ImportFrom) -> str:
    """The absolute name of the module from which something is imported."""
    if node.level == 0:
        return node.module or ""
    package = ["paceline", *file.relative_to(ROOT).parent.parts]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def private_in(file: Path) -> Iterator[str]:
    """What a file takes from elsewhere that is nobody's to take: names that begin with an underscore, and names of
    paceline that their module does not publish."""
    tree = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    own = {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {node.target.id for node in tree if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    for node in tree:
        if isinstance(node, ast.ImportFrom):
            module = resolved(file, node)
            names = [alias.name for alias in node.names]
            yield from (name for name in [*names, *module.split(".")] if re.match(r"_(?!_)", name))
            if module.startswith("paceline"):
                public = getattr(importlib.import_module(module), "__all__", names)
                inside = {info.name for info in pkgutil.iter_modules(getattr(sys.modules[module], "__path__", ()))}
                yield from (f"{module}.{name}" for name in names if name not in public and name not in inside)
        elif isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr) and node.attr not in own:
            yield from [] if isinstance(node.value, ast.Name) and node.value.id == "self" else [node.attr]


def test_kits_and_examples_ask_for_nothing_private() -> None:
    """What they can reach, a plug-in author can."""
    private = {f"{file.parent.name}/{file.name}: {name}" for file in PUBLIC_ONLY for name in private_in(file)}

    ends = {"conformance/peer.py: _exit", "conformance/host.py: _exit"}
    assert private - ends == {"transports/limit.py: _current_frames"}, "sys tells where another thread stands"
    assert ends <= private, "os._exit is how a process ends without a word"
