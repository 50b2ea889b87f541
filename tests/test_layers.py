"""The three floors, checked in the source: arrows point down only, and core touches nothing outside itself.

backends may import transports and core, transports may import core, core may import the standard library without its
doors to the world, attrs and transitions (architecture section 2). That is what lets the same machine run in a
simulator, under a model checker and in production, and give the same effects for the same events everywhere.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
FLOORS = ("core", "transports", "backends")

THIRD_PARTY = {
    "core": {"attr", "attrs", "transitions"},
    "transports": {"attr", "attrs", "transitions", "msgspec", "trio"},
    "backends": {
        *("attr", "attrs", "transitions", "msgspec", "trio"),
        *("click", "rich", "numpy", "safetensors", "sklearn", "torch"),
    },
}
EXCEPTIONS = {
    "core/simulation/strategies.py": {"hypothesis"},
    "transports/pytest_plugin.py": {"pytest"},
    "transports/pytest_kit.py": {"pytest"},
    "transports/pytest_policies.py": {"pytest"},
    "transports/conformance/test_transport.py": {"pytest"},
    "backends/conformance/test_averager.py": {"pytest"},
}
"""Modules that may import more than their floor: what is for users of hypothesis or pytest needs those."""

WORLD = {
    "clock": {"calendar", "datetime", "sched", "time"},
    "randomness": {"random", "secrets", "uuid"},
    "files": {"fcntl", "fileinput", "glob", "io", "mmap", "os", "pathlib", "shelve", "shutil", "sqlite3", "tempfile"},
    "network": {"ftplib", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl", "urllib"},
    "processes": {"atexit", "multiprocessing", "resource", "signal", "subprocess", "sys"},
    "threads": {"_thread", "asyncio", "concurrent", "contextvars", "queue", "threading"},
    "output": {"getpass", "logging", "pdb", "pprint", "syslog", "warnings"},
    "code from data": {"ctypes", "marshal", "pickle"},
}
"""Modules of the standard library that core must not import, by what they would let in."""

IMPURE_CALLS = {"breakpoint", "hash", "id", "input", "open", "print"}
"""Builtins that reach the world; `id` and `hash` because what they give differs from process to process."""

LINES_MAX = 500
FUNCTION_LINES_MAX = 60
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "XX" + "X")


def modules(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = ("paceline", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """The absolute name of every module that a file imports anywhere, imports for type checkers included."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = ("paceline", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield node.module
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1]
            yield ".".join((*above, *((node.module,) if node.module else ())))
            # `from .. import transports` names the floor only here.
            yield from (".".join((*above, alias.name)) for alias in node.names if node.module is None)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("floor", FLOORS)
def test_no_floor_imports_one_above_it(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(floor)
        for name in imports(path)
        if name.startswith("paceline.") and name.split(".")[1] in above
    ]

    assert wrong == []


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_the_packages_allowed_there(floor: str) -> None:
    allowed = {"paceline", *sys.stdlib_module_names, *THIRD_PARTY[floor]}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(floor)
        for name in imports(path)
        if name.partition(".")[0] not in allowed | EXCEPTIONS.get(path.relative_to(ROOT).as_posix(), set())
    ]

    assert wrong == []


def test_core_imports_no_clock_no_randomness_and_no_door_to_the_world() -> None:
    """N-13, 17.1 #25: time comes in events, so no read has a timeout that somebody else could clear."""
    shut = {module: what for what, names in WORLD.items() for module in names}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name} ({shut[name.partition('.')[0]]})"
        for path in modules("core")
        for name in imports(path)
        if name.partition(".")[0] in shut
    ]

    assert wrong == []


def test_the_machines_know_no_kit() -> None:
    """Nothing that decides depends on what judges it."""
    kits = ROOT / "core" / "conformance"
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("core")
        for name in imports(path)
        if kits not in path.parents and name.startswith("paceline.core.conformance")
    ]

    assert wrong == []


def test_core_calls_no_builtin_that_reaches_the_world() -> None:
    """N-13: neither the order of a set, see `test_set_order.py`."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
        for path in modules("core")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]

    assert wrong == []


def test_inside_the_package_imports_are_relative() -> None:
    """Editors and type checkers then resolve them in a plain checkout, where no directory is called paceline."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {node.module} absolutely"
        for floor in FLOORS
        for path in modules(floor)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("paceline")
    ]

    assert wrong == []


@pytest.mark.parametrize("name", ["paceline", "paceline.core"])
def test_importing_loads_neither_torch_nor_trio(name: str) -> None:
    loaded = run_python(f"import sys, {name}; print(*{{'torch', 'trio', 'numpy', 'msgspec'}} & set(sys.modules))")

    assert loaded.split() == []


def test_all_of_core_imports_where_torch_and_trio_are_absent() -> None:
    names = [name_of(path) for path in modules("core") if path.relative_to(ROOT).as_posix() not in EXCEPTIONS]
    absent = ["torch", "trio", "numpy", "msgspec", "safetensors", "click", "rich"]
    run_python(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        f"for name in {['paceline', *names]}:\n"
        "    importlib.import_module(name)\n"
    )


def test_a_coordinator_needs_no_torch() -> None:
    """It adds up flat memory and writes it down; torch would be two thirds of the time it takes to start."""
    run_python(
        "import sys\n"
        "sys.modules['torch'] = sys.modules['safetensors'] = None\n"
        "from paceline.backends import coordinate, serve\n"
        "from paceline.backends.averager import find_averager\n"
        "find_averager('star')\n"
    )


def test_what_a_rank_imports_brings_in_no_compiler_and_no_data_sets() -> None:
    """Each would take as long as torch itself, at the start of every rank. That torch imports its compiler when a
    script makes its first optimizer is not ours to change."""
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "sklearn", "scipy", "pandas"}
    loaded = run_python(
        "import sys\n"
        "import paceline.backends.demo_train, paceline.transports.tcp\n"
        f"print(*{heavy} & set(sys.modules))\n"
    )

    assert loaded.split() == []


def test_without_torch_the_session_says_what_to_install() -> None:
    said = run_python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    from paceline import Session\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )

    assert said == "paceline.Session needs torch, which is not installed: pip install 'paceline[torch]'\n"


def python_files() -> list[Path]:
    files = [ROOT / "__init__.py"]
    for directory in (*FLOORS, "tests", "docs"):
        files += sorted((ROOT / directory).rglob("*.py"))
    return files


def test_no_file_is_too_long_to_be_read_in_one_sitting() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in python_files()}

    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_function_is_too_long_to_be_seen_at_once() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_nothing_is_left_for_later_in_a_comment() -> None:
    """What is missing is an issue, or a refusal that says so; a remark in the source is neither."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(word in line for word in UNFINISHED)
    ]

    assert wrong == []
