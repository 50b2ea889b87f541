"""The repository root is the package: what is installed is exactly what the tree holds, no more and no less.

The package list in pyproject.toml is written by hand (architecture section 2), because nothing can be discovered in a
directory that also holds tests and documents. So the list is compared with the tree, and both with a wheel that is
really built.
"""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = ("core", "transports", "backends")
LEFT_BEHIND = (".*", "__pycache__", "build", "dist", "*.egg-info", "paceline-*")
"""What tools and runs leave in a checkout: no part of the project, so not of the copy that is built either."""


def packages_of_the_tree() -> set[str]:
    found = {"paceline"}
    for floor in FLOORS:
        for init in (ROOT / floor).rglob("__init__.py"):
            found.add(".".join(("paceline", *init.parent.relative_to(ROOT).parts)))
    return found


def modules_of_the_tree() -> set[str]:
    """Path inside the wheel of every module in the tree."""
    files = [ROOT / "__init__.py", ROOT / "__main__.py"]
    for floor in FLOORS:
        files += (ROOT / floor).rglob("*.py")
    return {f"paceline/{file.relative_to(ROOT).as_posix()}" for file in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a clean copy of the tree by the declared backend, called as pip and build call it."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "tree", ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    call = f"import {PROJECT['build-system']['build-backend']} as backend; backend.build_wheel({str(place)!r})"
    words, tree = [sys.executable, "-c", call], place / "tree"
    subprocess.run(words, cwd=tree, check=True, capture_output=True, timeout=PATIENCE_S)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_every_package_of_the_tree_is_listed_and_every_listed_one_exists() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]

    assert set(listed) == packages_of_the_tree()
    assert len(listed) == len(set(listed))


def test_every_directory_with_modules_is_a_package() -> None:
    """A directory without __init__.py would be importable in a checkout and missing from the wheel."""
    without = {
        file.parent.relative_to(ROOT).as_posix()
        for floor in FLOORS
        for file in (ROOT / floor).rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    }

    assert without == set()


def test_the_root_holds_no_module_but_the_facade_and_the_command() -> None:
    """Any other module there would become a part of the package."""
    assert sorted(file.name for file in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_the_wheel_holds_the_modules_the_type_marker_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        content = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert content == modules_of_the_tree() | {"paceline/py.typed"}


def test_the_wheel_carries_the_licence(wheel: Path, metadata: Message) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        text = archive.read(name).decode()

    assert metadata["License-Expression"] == "Apache-2.0"
    assert text == (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_version_is_that_of_the_facade(metadata: Message) -> None:
    import paceline

    assert metadata["Version"] == paceline.__version__


def test_every_entry_point_names_something_that_exists() -> None:
    """A plug-in that cannot be imported would be found out by the first user who names its scheme."""
    groups = [PROJECT["project"]["scripts"], *PROJECT["project"]["entry-points"].values()]
    missing = []
    for target in (target for group in groups for target in group.values()):
        module, _, name = target.partition(":")
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            missing.append(target)

    assert missing == []


def requirements_in_all(requirements: list[str]) -> set[str]:
    """The distributions that these requirements bring in here, themselves included, by what is installed."""
    needed: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in needed or name == "paceline" or (requirement.marker and not requirement.marker.evaluate()):
            continue
        needed.add(name)
        # A requirement of an extra has a marker that is false here.
        waiting += (Requirement(text) for text in distribution(name).requires or ())
    return needed


def test_every_package_that_an_installation_brings_in_is_pinned_exactly() -> None:
    """Two machines that install through the constraints file train with the same code."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and line[0] != "#"]
    extras = PROJECT["project"]["optional-dependencies"]
    # Not the extra `dev`: where the tests run it need not be installed.
    direct = [PROJECT["project"]["dependencies"], *(extras[name] for name in ("torch", "demo", "test"))]
    needed = requirements_in_all([requirement for group in direct for requirement in group])

    assert needed - {canonicalize_name(pin.name) for pin in pins} == set()
    assert [str(pin) for pin in pins if [each.operator for each in pin.specifier] != ["=="]] == []


def test_type_checkers_and_the_interpreter_see_the_same_facade() -> None:
    """The lazy table, the imports that only a type checker follows, and __all__ name the same things."""
    import paceline

    tree = ast.parse((ROOT / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: f".{node.module}" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    assert imported == paceline._HOMES
    assert set(paceline.__all__) == {*imported, "__version__"}


def test_every_public_name_can_be_had() -> None:
    import paceline

    assert [name for name in paceline.__all__ if getattr(paceline, name, None) is None] == []
    assert set(paceline.__all__) <= set(dir(paceline))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import paceline

    with pytest.raises(AttributeError, match="'paceline' has no attribute 'Sesion'"):
        _ = paceline.Sesion


def test_the_exit_code_of_every_error_is_documented() -> None:
    """The numbers are a promise to job scripts (architecture section 7)."""
    from paceline.core import errors

    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in page.splitlines() if line.startswith("|")]
    documented = {(name.strip(" `"), code) for code, names in rows for name in names.split(",")}

    assert {(name, str(getattr(errors, name).exit_code)) for name in errors.__all__} <= documented
