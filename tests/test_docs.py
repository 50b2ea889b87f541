"""What the documents say is so: links lead somewhere, generated pages are those of the code, examples compile."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from paceline.core.simulation import World
from paceline.core.simulation.schedule import Schedule, judge, play

from support.by_path import loaded
from support.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
README_EXAMPLE_LINES = 25

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w./:])/(?:home|root|Users|tmp|work|mnt|data|var)/\S+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def prose(page: Path) -> str:
    """The page without fenced blocks: what looks like a link in there is none."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """The fragments that a page's headings make, as GitHub forms them, and those that its tables set."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    set_in_tables = re.findall(r'<a id="([^"]+)"></a>', prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(set_in_tables)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language; without one, those that name none."""
    found = re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [text for named, text in found if named == language]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return loaded(DOCS / "generate.py")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_between_files_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_place_of_somebodys_machine(page: Path) -> None:
    assert MACHINE_PATH.findall(page.read_text(encoding="utf-8")) == []


def test_every_page_is_linked_from_another_one() -> None:
    """A page that nobody is led to is read by nobody."""
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(prose(page))}
    entrances = {*ROOT.glob("*.md"), DOCS / "index.md"}

    assert [name_of(page) for page in PAGES if page not in linked | entrances] == []


def test_python_blocks_of_every_page_compile() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block, name_of(page), "exec")


def test_the_readme_shows_one_complete_short_example() -> None:
    (example,) = blocks(ROOT / "README.md", "python")

    assert len(example.splitlines()) < README_EXAMPLE_LINES
    assert "paceline.Session(" in example and "session.step(" in example


def test_the_readme_begins_with_the_two_commands() -> None:
    """They stand in its first screen, before anything has to be scrolled."""
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:25]

    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in first_screen}


def test_every_command_that_the_readme_tells_to_make_is_a_target() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))

    assert set(re.findall(r"\bmake ([a-z]+)\b(?=$|`|\s+#| ARGS)", text, flags=re.MULTILINE)) <= targets


def test_the_pictures_are_well_formed_and_say_in_words_what_they_show() -> None:
    svg = "{http://www.w3.org/2000/svg}"
    for picture in sorted((DOCS / "images").glob("*.svg")):
        root = ElementTree.parse(picture).getroot()

        assert root.tag == f"{svg}svg" and root.find(f"{svg}title") is not None and root.find(f"{svg}desc") is not None


# --- generated pages -----------------------------------------------------------------------------------------------


def test_the_generated_pages_are_those_of_the_code(generate: ModuleType) -> None:
    assert generate.stale(DOCS) == [], f"refresh with: {generate.REFRESH}"


def test_generated_pages_do_not_depend_on_the_hash_seed() -> None:
    call = "import generate, hashlib; print(hashlib.sha256(repr(generate.pages()).encode()).hexdigest())"
    both = [
        subprocess.Popen([sys.executable, "-c", call], cwd=DOCS, env={"PYTHONHASHSEED": seed, "PATH": ""},
                         stdout=subprocess.PIPE, text=True)
        for seed in ("1", "2")
    ]  # fmt: skip
    digests = {process.communicate(timeout=PATIENCE_S)[0] for process in both}

    assert [process.returncode for process in both] == [0, 0] and len(digests) == 1


def test_a_list_in_a_docstring_is_one_on_its_page(generate: ModuleType) -> None:
    """Each item begins a line, and goes on below its own text."""
    items = ["- a - b c", "- " + " ".join(23 * ["word"]), "  " + " ".join(7 * ["word"])]
    assert generate.prose("One\nand two:\n- a - b\n  c\n- " + 30 * "word ") == "\n".join(["One and two:", *items])


def test_a_stale_a_missing_and_an_orphaned_page_are_named(generate: ModuleType, tmp_path: Path) -> None:
    for name, text in generate.pages().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert generate.stale(tmp_path) == []

    (tmp_path / "machines" / "run.md").write_text("something else", encoding="utf-8")
    (tmp_path / "reference" / "config.md").unlink()
    (tmp_path / "machines" / "gone.md").write_text("a machine that was removed", encoding="utf-8")

    assert generate.stale(tmp_path) == ["machines/run.md", "reference/config.md", "machines/gone.md"]


def test_check_ends_with_1_and_says_how_to_refresh(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("knobs.toml", "rules.toml"):
        (tmp_path / name).write_text((DOCS / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)

    assert generate.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "docs/machines/cycle.md is stale" in told and generate.REFRESH in told

    assert generate.main(["--write"]) == 0
    assert generate.main(["--check"]) == 0


def test_a_knob_without_an_explanation_stops_the_generator(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "knobs.toml").read_text(encoding="utf-8")
    (tmp_path / "knobs.toml").write_text(re.sub(r"^gamma = .*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)

    with pytest.raises(SystemExit, match="gamma"):
        generate.config_page()


def test_every_row_of_every_table_is_on_its_page_and_leads_to_its_rules(generate: ModuleType) -> None:
    """The pages are where a rule id leads a reader to the rows that obey it, and a row to what its rule says."""
    from paceline.core.tables import TABLES

    for name, table in TABLES.items():
        text = (DOCS / "machines" / f"{name}.md").read_text(encoding="utf-8")
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]

        assert len(rows) == len(table.rows)
        assert all(generate.linked(row.rule) in line for row, line in zip(table.rows, rows, strict=True))
        assert all(f"[{rule}](../reference/rules.md#{rule.lower()})" in text
                   for row in table.rows for rule in row.rule.split())  # fmt: skip
        assert "```mermaid" in text


def test_every_reason_is_on_the_page_of_reasons_and_leads_to_its_rules() -> None:
    """O-4: code by code, what it means, since when and until when it holds, what can be done."""
    from paceline.core.reasons import CODES

    text = (DOCS / "reference" / "reasons.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", text, flags=re.MULTILINE) == list(CODES)
    for code in CODES.values():
        assert all(f"[{rule}](rules.md#{rule.lower()})" in text for rule in code.rules)
        assert all(f"| {said} |" in text for said in (code.waits, code.since, code.until, code.remedy))


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    from paceline.backends.cli import cli

    text = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")

    assert re.findall(r"^## paceline (\S+)$", text, flags=re.MULTILINE) == sorted(cli.commands)


# --- written pages that follow the code ----------------------------------------------------------------------------


def test_the_page_of_the_session_names_its_parameters_its_methods_and_the_parts_of_a_batch() -> None:
    from paceline.backends.session import Batch, Session

    text = (DOCS / "reference" / "session.md").read_text(encoding="utf-8")
    parameters = [name for name in inspect.signature(Session).parameters if f"`{name}`" not in text]
    members = [name for name in vars(Session) if name[0] != "_" and f"session.{name}" not in text]
    parts = [field.name for field in attrs.fields(Batch) if f"batch.{field.name}" not in text]

    assert parameters + members + parts == []


def test_the_page_of_the_session_names_the_environment_variables_that_are_read() -> None:
    text = (DOCS / "reference" / "session.md").read_text(encoding="utf-8")
    sources = [(ROOT / "backends" / name).read_text(encoding="utf-8") for name in ("connection.py", "session.py")]
    read = {name for source in sources for name in re.findall(r"\"(PACELINE_[A-Z_]+)\"", source)}

    assert read and [name for name in sorted(read) if f"`{name}`" not in text] == []


def test_the_example_of_a_transport_is_as_short_as_its_guide_says() -> None:
    """docs/guides/write-a-transport.md, issue 4: 80 lines of code; docstrings, comments and blank lines are none."""
    source = (DOCS / "examples" / "unix_transport.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    said = {line for node in ast.walk(tree) if is_docstring(node)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)}  # fmt: skip
    lines = [line.strip() for number, line in enumerate(source.splitlines(), 1) if number not in said]
    code = [line for line in lines if line and not line.startswith("#")]

    guide = (DOCS / "guides" / "write-a-transport.md").read_text(encoding="utf-8")
    assert len(code) <= 80 and "complete in 80 lines of code, imports included" in " ".join(guide.split())


def test_the_schedules_of_the_guide_go_as_they_say() -> None:
    """docs/guides/simulate.md: by hand, with a delay, a restart of a rank and one of the coordinator."""
    found = [text for text in blocks(DOCS / "guides" / "simulate.md", "") if text.startswith("paceline schedule 1")]
    for text in found:
        schedule = Schedule.parse(text)
        world = World(schedule.setup)
        list(play(world, schedule.actions, dullest=schedule.dullest))
        assert judge(schedule, world, None)[0], text
    assert len(found) == 2


def test_what_the_guide_quotes_of_the_driver_is_what_the_example_does() -> None:
    """docs/guides/embed.md explains functions of the example: the lines must be those."""
    tree = ast.parse((DOCS / "examples" / "embed_sync.py").read_text(encoding="utf-8"))
    real = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    quoted = [block for block in blocks(DOCS / "guides" / "embed.md", "") if block.startswith("def ")]
    names = []
    for block in quoted:
        (function,) = ast.parse(block).body
        assert isinstance(function, ast.FunctionDef)
        body = [node for node in real[function.name].body if not is_docstring(node)]
        assert ast.unparse(function.args) == ast.unparse(real[function.name].args)
        assert [ast.unparse(node) for node in function.body] == [ast.unparse(node) for node in body]
        names.append(function.name)

    assert names == ["turn", "hear", "tell"]


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_the_guide_names_every_effect_that_its_machines_have() -> None:
    """Who embeds a machine has to know everything that can come out of it."""
    from paceline.core import effects

    text = (DOCS / "guides" / "embed.md").read_text(encoding="utf-8")
    kinds = [
        kind.__name__ for kind in vars(effects).values()
        if isinstance(kind, type) and kind.__module__ == effects.__name__ and kind is not effects.Ready
    ]  # fmt: skip

    assert [name for name in kinds if f"`{name}`" not in text] == []
