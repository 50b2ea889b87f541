"""What every test sees: the two hypothesis profiles, the seed that repeats a run, and the count of taken rows.

`dev` draws new examples each time from a seed printed at the top. `ci`, chosen by the environment variable CI, draws
the same examples for the same sources and the same Python, so that a red run can be had again. Other sources may draw
others: a change can turn a property red that has nothing to do with it, and has then found something. Neither has a
deadline: a test measures behaviour, and the time it takes on a loaded machine is not one.

`make test` spreads the tests over processes, one for each core up to four (pytest-xdist). What is said here holds in
each of them, with one seed for all.

`--table-coverage FILE` writes which test takes which row of the tables of transitions, for `paceline coverage-tables`.
`--mutants IN,OUT` puts mutants of the tables to the tests, for `paceline mutants`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Before pytest comes to the __init__.py at the root of the checkout: in a checkout that is itself called paceline it
# would import that one, and the suite would test the tree in place of what is installed.
import paceline

hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table-coverage", type=Path, metavar="FILE", help="write the tests that take each row")
    parser.addoption("--mutants", metavar="IN,OUT", help="descriptors on which `paceline mutants` gives orders")


# First, because hypothesis reads the option in its own pytest_configure.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] = getattr(config, "workerinput", {})
    config.option.hypothesis_seed = given.get("hypothesis_seed", config.option.hypothesis_seed)
    if config.option.hypothesis_seed is None and not hypothesis.settings.default.derandomize:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))
    if config.option.table_coverage is not None:
        from support.taken import Recorder

        config.pluginmanager.register(Recorder(config.option.table_coverage))
    if config.option.mutants is not None:
        from support.mutation import Worker

        config.pluginmanager.register(Worker(config.option.mutants))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the import of all tests makes stays to the end, half a million objects. The garbage collector need not look
    for an end of them meanwhile, nor each time that a test has made a few thousand more."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Before a process that takes tests is started: it gets the command line, which says no seed that was drawn."""
    node.workerinput["hypothesis_seed"] = node.config.option.hypothesis_seed


def pytest_report_header(config: pytest.Config) -> list[str]:
    name = hypothesis.settings.get_current_profile_name()
    if hypothesis.settings.default.derandomize:
        examples = "the same examples in every run"
    else:
        examples = f"repeat with --hypothesis-seed={config.option.hypothesis_seed}"
    return [f"hypothesis: profile {name}, {examples}", f"paceline: {paceline.__version__} in {paceline.__path__[0]}"]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Whoever started the tests may have the interrupt ignored, as a shell does for what it runs in the background, and
    this is inherited: tests would wait for ever for what an interrupt does to this process, or to one they started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
