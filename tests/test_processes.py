"""`make test` spreads the tests over processes. What a failed run says must let anyone repeat it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
TWO_TESTS = """
import os
from pathlib import Path
import hypothesis.core

def tell():
    Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(str(hypothesis.core.global_force_seed))

def test_one():
    tell()

def test_two():
    tell()
"""


def test_every_process_draws_from_the_seed_that_is_printed(tmp_path: Path) -> None:
    """Otherwise what one of them found could not be had again."""
    (tmp_path / "test_seeds.py").write_text(TWO_TESTS)
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n", "2", "--dist", "worksteal"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    (seed,) = re.findall(r"repeat with --hypothesis-seed=(\d+)", done.stdout)
    assert [(tmp_path / name).read_text() for name in ("gw0", "gw1")] == [seed, seed]
