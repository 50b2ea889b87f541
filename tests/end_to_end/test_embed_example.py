"""docs/examples/embed_sync.py does what the guide says: a whole run of the machines, driven by a loop."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE_S

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "embed_sync.py"
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(("trio", "torch", "numpy", "asyncio", "socket", "selectors")))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*words: str, hash_seed: str = "0") -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--kill",)], ids=["both-stay", "one-dies"])
def test_the_run_ends_well_and_every_batch_came_into_a_consensus_once(options: tuple[str, ...]) -> None:
    """I42: covered exactly once, also where a rank died with steps that nobody had merged."""
    lines = run(str(SCRIPT), *options).splitlines()

    assert re.fullmatch(r" *\d+\.\d\d s  Finish\(status='ok', text='.+'\)", lines[-3])
    assert lines[-2] == "batches merged 900 of 900, twice 0"
    assert ("rank_lost" in "\n".join(lines)) is bool(options)


def test_the_fast_rank_takes_three_steps_for_each_of_the_slow_one_once_speeds_are_known() -> None:
    """The counts of a window follow the measured speeds; the slow rank, three times slower, sets the cadence."""
    windows = [tuple(map(int, found)) for found in re.findall(r"\{'0': (\d+), '1': (\d+)\}", run(str(SCRIPT)))]

    assert len(windows) > 10
    assert all(fast == 3 * slow for fast, slow in windows[1:])


def test_the_consensus_is_a_real_average_that_approaches_the_mean_of_the_data() -> None:
    """R-5: what is adopted is the weighted mean of what was contributed. The numbers do travel."""
    (found, mean) = map(float, re.findall(r"[\d.]+", run(str(SCRIPT)).splitlines()[-1]))

    assert mean == 49.5
    assert abs(found - mean) < 1.0


def test_what_the_guide_shows_of_explain_is_what_the_example_prints() -> None:
    """O-4: the reasons at second 1, one a line, with since and until."""
    told = [line for line in run(str(SCRIPT), "--explain").splitlines() if line.startswith("E")]
    guide = (SCRIPT.parents[1] / "guides" / "embed.md").read_text(encoding="utf-8")

    assert len(told) == 2 and "".join(f"    {line}\n" for line in told) in guide


def test_two_processes_with_different_hash_seeds_print_the_same() -> None:
    """I25 for the two machines together."""
    assert run(str(SCRIPT), "--kill", hash_seed="1") == run(str(SCRIPT), "--kill", hash_seed="2")


def test_it_needs_neither_trio_nor_torch_nor_a_socket() -> None:
    """Nothing of the protocol is hidden in an adapter."""
    assert "batches merged 900 of 900" in run("-c", WITHOUT, str(SCRIPT))
