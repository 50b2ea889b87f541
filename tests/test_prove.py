"""The ledger of evidence says what its kept numbers say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def prove() -> ModuleType:
    """tests/prove.py, found by its path: the folder is no package."""
    spec = importlib.util.spec_from_file_location("paceline_prove", ROOT / "tests" / "prove.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
