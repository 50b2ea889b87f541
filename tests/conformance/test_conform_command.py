"""The ways into the kit: the command, the pytest plug-in, and the promise that it asks for nothing private."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from paceline.backends.cli import cli
from paceline.backends.conformance import KIT as AVERAGERS
from paceline.backends.conformance import check_averager
from paceline.backends.endings import end
from paceline.backends.star import StarAverager
from paceline.core.conformance import Level, Outcome, Report, Status
from paceline.core.conformance.policies import KITS
from paceline.core.errors import ConfigError
from paceline.core.guard import GuardInput, LevelGuard, Verdict
from paceline.core.messages import BulkBlock
from paceline.transports import conformance
from paceline.transports.api import Credentials
from paceline.transports.conformance import KIT
from paceline.transports.memory import MemoryTransport
from paceline.transports.pytest_kit import kit_tests

from conformance.broken_transports.base import SoundChannel, SoundTransport
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


def cannot_be_made() -> None:
    raise OSError("the device is not there")


def test_a_transport_that_cannot_be_made_fails_at_the_door_and_is_judged_no_further() -> None:
    code, text = conform(f"{__name__}:cannot_be_made@memory://x", "--level", "L1")

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


class Deaf(MemoryTransport):
    """Lets everybody in, and serves nobody."""

    async def listen(self, url: str, credentials: Credentials) -> Any:
        listener: Any = await super().listen(url, credentials)
        serve = listener.serve
        listener.serve = lambda handler: serve(lambda channel: trio.sleep_forever())
        return listener


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of time is over when nothing moves, and no time passes before."""
    bench_for = conformance.bench_for
    clock = functools.partial(MockClock, autojump_threshold=0.0)
    monkeypatch.setattr(conformance, "bench_for", lambda target, **given: bench_for(target, clock=clock, **given))


@pytest.mark.usefixtures("virtual_time")
def test_one_that_carries_no_message_is_told_where_it_waits_and_is_judged_no_further() -> None:
    """Each of the others would wait for its whole time, to say the same."""
    code, text = conform(f"{__name__}:Deaf@memory://deaf", "--limit", "30", "--level", "L1")

    assert code == 1
    assert "the arrival of its channel at the handler, did not end within 30 s" in text
    assert text.count("T101 failed: repair that first") == 1
    assert f" {sum(check.level is Level.L1 for check in KIT.checks)} not checked" in text, "T001 is the other one"


class Slow(MemoryTransport):
    """A dial that takes for ever."""

    async def dial(self, url: str, credentials: Credentials) -> Any:
        await trio.sleep_forever()


@pytest.mark.usefixtures("virtual_time")
def test_a_wait_is_told_with_its_line() -> None:
    code, text = conform(f"{__name__}:Slow@memory://slow", "--limit", "10", "--check", "T101")

    assert code == 1
    assert re.search(r"did not end within 10 s; what waited was dial \(test_conform_command.py:\d+\)", text)


@pytest.mark.usefixtures("nobody_waits_for_what_hangs")
def test_a_call_that_hangs_ends_with_1_and_its_name(tmp_path: Path) -> None:
    """In the time that the command was given, and the report says so, too."""
    report = tmp_path / "report.json"
    words = ["conform", "policy", "conformance.broken_policies.guards:LoopsInObserve", "--kind", "guard", "--patience",
             "30", "--json", str(report)]  # fmt: skip
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == 1, done.output
    assert "P111 L1 FAILED" in done.output
    assert "did not end within 30 s: LoopsInObserve.observe did not come back, and was in _with_norms" in done.output
    assert [each["id"] for each in json.loads(report.read_text())["outcomes"] if each["status"] == "failed"] == ["P111"]


class LeavesInABlock(SoundTransport):
    """Ends as an interrupt by the user would, for a block."""

    class layer(SoundChannel):
        async def send_bulk(self, block: BulkBlock, data: memoryview) -> None:
            raise KeyboardInterrupt


class LeavesInScatter(StarAverager):
    """Ends as a generator that is closed."""

    def scatter(self, rank: int) -> Any:
        raise GeneratorExit("no more")


@pytest.mark.parametrize(
    ("words", "caught", "said"),
    [
        (("transport", f"{__name__}:LeavesInABlock@memory://leaves", "--fast"), "T113",
         r"KeyboardInterrupt: , in send_bulk \(test_conform_command.py:\d+\)"),
        (("averager", f"{__name__}:LeavesInScatter"), "A105",
         r"GeneratorExit: no more, in scatter \(test_conform_command.py:\d+\)"),
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


class IsInterrupted(LevelGuard):
    """While this is asked, the user has had enough."""

    def observe(self, cycle: GuardInput) -> Verdict:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()
        return super().observe(cycle)


@pytest.mark.usefixtures("interruptible")
def test_the_users_own_interrupt_ends_the_command() -> None:
    """It comes to the command, not to the plug-in, and is no check that failed."""
    words = ["conform", "policy", f"{__name__}:IsInterrupted", "--kind", "guard"]
    with pytest.raises(BaseExceptionGroup) as interrupted:
        CliRunner().invoke(cli, words, standalone_mode=False)
    assert end(interrupted.value) == 130


HOLDS = """
import faulthandler, itertools, sys
from paceline.backends import cli, command_conform
from paceline.core.guard import LevelGuard

def watch(seconds, **how):
    watches.append((seconds, how))

class Holds(LevelGuard):
    def observe(self, cycle):
        seconds, how = watches[-1]
        assert seconds == 2 * 1000 + command_conform.HELD_S
        end(0.05, **how)
        return max(itertools.count())

watches, end = [], faulthandler.dump_traceback_later
faulthandler.dump_traceback_later = watch
sys.argv = ["paceline", *"conform policy __main__:Holds --kind guard --check P111 --patience 1000".split()]
cli.main()
"""
"""All the time that the command gives it is over in a moment, which begins where it is held."""


def test_a_call_that_holds_the_interpreter_itself_ends_the_command() -> None:
    """No thread sees the time any more; whoever started the command still gets it back, with the line."""
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "in observe" in done.stderr and "in a_guard_answers_everything" in done.stderr


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
