"""How commands end that are cut short: an interrupt, a reader who has gone, an output that takes nothing more.

Real processes and real signals: what the system does with them is what is tested.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from paceline.backends.endings import NO_PLACE, end

from support.forked import start
from support.launcher import UNRULY, Command, fresh, left_over, paceline
from support.patience import PATIENCE_S

HERE = Path(__file__).parents[1]
COMMAND = [sys.executable, "-P", "-m", "paceline.backends.cli"]


def interrupted(command: Command, begun: str) -> list[str]:
    """What it says on standard error after Ctrl-C in its terminal, pressed when it has begun; it ends with 130."""
    command.until(begun)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.end() == 130
    return command.err


STANDS_STILL = """
import itertools
import trio
from paceline.transports.{module} import {transport}

dials = itertools.count()

class Still({transport}):
    async def dial(self, url, credentials):
        if next(dials) >= 40:
            await trio.sleep_forever()
        return await super().dial(url, credentials)
"""
"""It comes to T231 and no further, so no kit is over before it is interrupted."""


@pytest.mark.parametrize(("transport", "url"), [("TcpTransport", "tcp://127.0.0.1:0"),
                                                ("MemoryTransport", "memory://here")])  # fmt: skip
def test_an_interrupted_kit_says_so_in_one_line(transport: str, url: str, tmp_path: Path) -> None:
    """trio raises the interrupt in a group where tasks run together. Whom the kit has started does not hear of it."""
    module = url.partition(":")[0]
    (tmp_path / "still.py").write_text(STANDS_STILL.format(module=module, transport=transport))
    with fresh("conform", "transport", f"still:Still@{url}", cwd=tmp_path) as command:
        assert interrupted(command, r"^T20\d L2") == ["paceline: interrupted"]


def test_an_interrupted_simulation_says_so_in_one_line(tmp_path: Path) -> None:
    """The processes of its pool get the signal of the terminal too, and are silent."""
    words = ("simulate", "--ranks=1", "--faults=calm", "--seeds=100000")
    with fresh(*words, cwd=tmp_path) as command:
        told = interrupted(command, r"^simulating: 10 of 100,000")
    assert [line for line in told if not line.startswith("simulating: ")] == ["paceline: interrupted"]


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_of_a_pool_never_hear_of_an_interrupt(workers: int, tmp_path: Path) -> None:
    """From their first moment on, and also where nothing in them has been imported yet."""
    script = HERE / "support" / "pool_process.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(workers)], cwd=tmp_path, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None and process.stderr is not None
            there = [int(process.stdout.readline()) for _ in range(workers)]
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
            assert process.stderr.read() == "paceline: interrupted\n"
            assert left_over(there) == []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_an_interrupted_coordinator_says_why_it_ends(tmp_path: Path) -> None:
    """Before anybody came there is nothing to save."""
    with paceline("coordinate", "--ranks=2", "--bind=tcp://127.0.0.1:0", cwd=tmp_path) as command:
        (line,) = interrupted(command, "listening on")
    assert line.startswith("paceline: the run did not form: ")


@pytest.mark.parametrize("words", [
    ("explain-table", "worker"),
    ("replay", str(HERE / "schedules" / "a-rank-began-a-new-life.schedule")),
    ("conform", "transport", "memory://here", "--list"),
    ("mutants", "--list", "--table", "gates"),
    ("--help",),
], ids=lambda words: words[0])  # fmt: skip
def test_a_reader_who_has_gone_ends_a_command_with_141(words: tuple[str, ...]) -> None:
    """As SIGPIPE ends other commands: no word is said, and nobody takes it for a finding (1). Mutants need a
    checkout."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *words], cwd=HERE.parent, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_run_whose_reader_has_gone_ends_with_all_its_processes(tmp_path: Path) -> None:
    """`paceline run | head`: rich would end it with 1, trio would make a group of that."""
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("PACELINE_")}, "NO_COLOR": "1"}
    process = start([*COMMAND[1:], "run", "--ranks=1", UNRULY, "epochs=100000", "loaders=1"], environment, tmp_path)
    try:
        assert process.stdout is not None and process.stderr is not None and process.stdin is not None
        loader = re.search(r"loader (\d+)$", process.stdout.readline().rstrip())
        assert loader is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == ""
        assert left_over([int(loader[1])]) == []
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        process.stderr.close()
        process.stdin.close()


@pytest.mark.parametrize("words", [("explain-table", "worker"), ("lint-tables",), ("--version",)], ids=str)
def test_an_output_that_takes_nothing_is_an_error_with_its_own_code(words: tuple[str, ...], tmp_path: Path) -> None:
    """However much there was to say: it is neither a bug nor a success. No file may grow here, as on a full disk."""
    with (tmp_path / "full").open("w") as full:
        limited = ["sh", "-c", 'ulimit -f 0; exec "$0" "$@"', *COMMAND, *words]
        done = subprocess.run(limited, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7
    assert done.stderr.startswith(f"paceline: the output cannot be written: {os.strerror(errno.EFBIG)}; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", sorted(NO_PLACE), ids=errno.errorcode.get)
def test_whatever_lacks_place_is_an_error_with_its_own_code(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk, a quota, a limit, a broken or a read-only file system."""
    assert end(OSError(number, os.strerror(number))) == 7
    assert capsys.readouterr().err.startswith(f"paceline: the output cannot be written: {os.strerror(number)}; ")


def test_without_outputs_a_command_ends_as_ever() -> None:
    """A service may start it with both closed."""
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&- 2>&-', *COMMAND, "lint-tables"])
    assert done.returncode == 0


def test_a_shell_that_completes_a_word_is_told_nothing_else() -> None:
    """click answers it by an exit, which is no error."""
    asked = {"_PACELINE_COMPLETE": "bash_complete", "COMP_WORDS": "paceline simu", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env={**os.environ, **asked}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,simulate\n", "")


def test_an_interrupt_that_click_has_renamed_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """It may come while the context of a command is closed."""
    assert end(click.Abort()) == 130
    assert capsys.readouterr().err == "paceline: interrupted\n"


def test_the_package_is_a_command(tmp_path: Path) -> None:
    """`python -m paceline`, where the script of the installation is not on the path."""
    words = [sys.executable, "-P", "-m", "paceline"]
    done = subprocess.run([*words, "explain-table", "chair"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("paceline: there is no table 'chair'")


INTERRUPTED_AS_IT_LOADS = """
import os, signal, sys
from paceline.__main__ import main

class Presses:
    def find_spec(name, path=None, target=None):
        if name == "paceline.backends.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses)
main()
"""


def test_an_interrupt_while_the_command_loads_shows_no_traceback() -> None:
    """Its modules take a moment, and nobody is there yet who could say it in one line: the signal ends the process."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AS_IT_LOADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
