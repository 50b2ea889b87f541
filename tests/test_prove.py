"""The ledger of evidence says what its kept numbers say, and nothing else; the steps are carried out in two lanes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.by_path import loaded
from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]


def prove() -> ModuleType:
    """tests/prove.py, found by its path: the folder is no package."""
    return loaded(ROOT / "tests" / "prove.py")


def test_the_ledger_is_made_from_the_numbers_that_were_kept() -> None:
    """A number that no run has shown cannot stand there."""
    module = prove()
    evidence = json.loads(module.EVIDENCE.read_text(encoding="utf-8"))
    page = module.LEDGER.read_text(encoding="utf-8")
    assert module.written(page, evidence) == page, "python tests/prove.py --page makes it anew"


def test_a_step_is_said_to_hold_where_its_numbers_say_so() -> None:
    """The checker's bounds exhausted, every mark reached, the mutants noticed, nothing failed, nothing found."""
    module = prove()
    kept = json.loads(module.EVIDENCE.read_text(encoding="utf-8"))
    assert kept and list(kept) == [name for name in module.STEPS if name in kept]
    holds = {
        "model checker": lambda facts: all(one["complete"] and one["ok"] for one in facts["configurations"]),
        "storms": lambda facts: not facts["failures"] and not facts["unreached"],
        "mutants": lambda facts: facts["killed"] >= module.LEAST_KILLED,
        "kits": lambda facts: not any(count.get("failed") or count.get("error") for count in facts["kits"].values()),
        "determinism": lambda facts: all(line.endswith("the replay is the same") for line in facts["recorded_run"]),
        "fuzzing": lambda facts: all(line.endswith(", 0 findings") for line in facts["targets"]),
    }
    assert {name: step["holds"] for name, step in kept.items()} == {
        name: holds[name](step["facts"]) for name, step in kept.items()
    }


# --- lanes -----------------------------------------------------------------------------------------------------------

Step = Callable[[Path], tuple[bool, dict[str, Any]]]


def holds(scratch: Path) -> tuple[bool, dict[str, Any]]:
    """Nothing to do."""
    return True, {}


def with_steps(tmp_path: Path, **steps: Step) -> ModuleType:
    """Another copy of the module, with these in place of its steps and a page of its own."""
    module = prove()
    module.STEPS = {name: steps.get(name.replace(" ", "_"), holds) for name in module.STEPS}
    module.TELLERS = {name: lambda facts: iter(()) for name in module.STEPS}
    module.EVIDENCE, module.LEDGER = tmp_path / "evidence.json", tmp_path / "page.md"
    module.LEDGER.write_text(f"before\n{module.BEGIN}\n{module.END}\nafter\n", encoding="utf-8")
    module._commit = lambda: "this one"
    return module


def test_every_step_is_in_one_lane() -> None:
    module = prove()
    assert sorted(name for lane in module.LANES for name in lane) == sorted(module.STEPS)
    assert set(module.TELLERS) == set(module.STEPS)


def test_the_model_checker_has_the_other_steps_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither could end alone here; each says when it begins and ends, and a failure in one keeps nothing from the
    other, or from being told."""
    together = threading.Barrier(2, timeout=PATIENCE_S)

    def checks(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """It breaks."""
        together.wait()
        raise ZeroDivisionError("by no step")

    def storms(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """It holds."""
        together.wait()
        return True, {"seeds": 1}

    module = with_steps(tmp_path, model_checker=checks, storms=storms)
    assert module.main(["--write"]) == 1
    said = capsys.readouterr().out
    assert "== model checker: It breaks." in said and "== storms: holds after " in said
    assert "== model checker: FAILS after " in said and "not proved: model checker, after " in said
    kept = json.loads(module.EVIDENCE.read_text(encoding="utf-8"))
    assert list(kept) == list(module.STEPS) and [name for name in kept if not kept[name]["holds"]] == ["model checker"]
    page = module.LEDGER.read_text(encoding="utf-8")
    assert "| could not be carried out | ZeroDivisionError: by no step |" in page
    assert page.startswith("before\n") and page.endswith("after\n")


def test_only_some_of_the_steps_and_their_numbers_beside_the_others(tmp_path: Path) -> None:
    calls: list[str] = []

    def kits(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """They are counted."""
        calls.append("kits")
        return True, {}

    module = with_steps(tmp_path, kits=kits)
    assert module.main(["--only", "fuzzing", "--write"]) == 0 and not calls
    assert module.main(["--only", "kits", "--write"]) == 0 and calls == ["kits"]
    assert list(json.loads(module.EVIDENCE.read_text(encoding="utf-8"))) == ["kits", "fuzzing"]
    assert module.main(["--only", "kits", "--only", "storms"]) == 0 and calls == ["kits", "kits"]
    assert list(json.loads(module.EVIDENCE.read_text(encoding="utf-8"))) == ["kits", "fuzzing"]


def test_what_a_command_says_comes_in_whole_lines_with_the_name_of_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints is its result."""
    module, found = prove(), []
    code = "import sys; print('to us'); print('to all\\nof them', file=sys.stderr); sys.exit(3)"

    def speaks(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """It speaks."""
        found.append(module.commands.run([sys.executable, "-c", code]))
        return True, {}

    module.STEPS["kits"] = speaks
    assert module.main(["--only", "kits"]) == 0 and found == [(3, "to us\n")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["== kits: It speaks.", "   kits: to all", "   kits: of them"]


def test_who_ends_it_ends_all_that_it_has_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the processes of the commands, which hold the pipe that is read to its end; none is begun after it, and
    nothing is kept of the steps that were cut."""
    code = (
        "import os, signal, sys; child = os.fork();"
        "child and print(os.getpid(), file=sys.stderr, flush=True); signal.pause()"
    )
    lines: list[str] = []
    heard = threading.Event()

    def blocks(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """It never ends."""
        module.commands.run([sys.executable, "-c", code])
        raise AssertionError("it ended")

    def interrupts(scratch: Path) -> tuple[bool, dict[str, Any]]:
        """Somebody presses Ctrl-C."""
        assert heard.wait(PATIENCE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        module.commands.run([sys.executable, "-c", code])
        raise AssertionError("it ended")

    def say(text: str) -> None:
        lines.append(text)
        if text.startswith("   model checker: "):
            heard.set()

    module = with_steps(tmp_path, model_checker=blocks, storms=interrupts)
    module.say = say
    assert module.main(["--write"]) == 130 and lines[-1] == "ended, and with it all that ran"
    pids = [int(line.split(": ")[1]) for line in lines if line.startswith("   ")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert pids and not module.EVIDENCE.exists()
