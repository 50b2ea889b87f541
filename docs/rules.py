"""Where each rule of the protocol lives: which rows of the tables obey it, which code cites it, which tests check it.

The list of rules is `rules.toml`, one line a rule, so that two branches that add rules do not meet. Everything else is
found: rows by their `rule`, code by the comments, docstrings and error texts that name an id, tests by their docstring,
comments and assertions. What is said of a place is its file and symbol, never a line, so that the page changes only
when a citation does.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from paceline.core.tables import JOINT, TABLES, rows_in_words

HERE = Path(__file__).parent
ROOT = HERE.parent
FLOORS = ("core", "transports", "backends")
TESTS = "tests"

RULE = re.compile(r"(?<![\w-])(?:[CWGBDMRKNOV]-\d+|I\d+)(?![\w-]*\w)")
"""An id as a citation: `C-15`, also in `C-15.7`, and `I44`."""
OLD_WAYS = re.compile(r"\b17\.([12]) (#\d+(?:(?:,| and|, and) #\d+)*)")
"""Faults of older systems, as in `17.1 #3 and #4`."""
MAY_CITE = re.compile(r"\b(?:[A-Z]-?\d|17\.\d)")
"""What every id has, those of field cases (field_cases.py) too."""


class Rule(NamedTuple):
    """A line of rules.toml. `later` names the feature that a rule waits for, empty for a rule that is in force; `lacks`
    are parts of a rule in force that wait, each with its feature."""

    id: str
    title: str
    later: str
    lacks: tuple[tuple[str, str], ...]
    group: str


class Place(NamedTuple):
    """Where an id is cited: a file below the root and a symbol in it, empty for the module itself."""

    file: str
    symbol: str


Citations = dict[str, set[Place]]


@functools.cache
def rules() -> dict[str, Rule]:
    """Every rule by its id, in the order of the file."""
    found: dict[str, Rule] = {}
    groups = tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8"))
    for group, lines in groups.items():
        for name, told in lines.items():
            if name in found:
                raise SystemExit(f"docs/rules.toml has {name} twice")
            known = told if isinstance(told, dict) else {"title": told}
            lacks = tuple(known.get("lacks", {}).items())
            found[name] = Rule(name, known["title"], known.get("later", ""), lacks, group)
    return found


def cited(text: str) -> set[str]:
    """The ids that a text names."""
    found = {match[0] for match in RULE.finditer(text)}
    for match in OLD_WAYS.finditer(text):
        found |= {f"17.{match[1]} {number}" for number in re.findall(r"#\d+", match[2])}
    return found


# --- code and tests ------------------------------------------------------------------------------------------------


@functools.cache
def code_citations() -> Citations:
    """Per id the symbols of the package that cite it. The rule of a row is no citation: the row is listed itself."""
    found: Citations = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            for symbol, text in _pieces(path.read_text(encoding="utf-8")):
                for name in cited(text):
                    found.setdefault(name, set()).add(Place(path.relative_to(ROOT).as_posix(), symbol))
    return found


@functools.cache
def test_citations(ids: Callable[[str], set[str]] = cited) -> Citations:
    """Per id the tests that cite it; `ids` finds those of a text. Ids in the data of a test are no citations, nor are
    those of its module, which would go on citing when the test is gone."""
    found: Citations = {}
    for place, text in _tests():
        for name in ids(text):
            found.setdefault(name, set()).add(place)
    return found


@functools.cache
def _tests() -> list[tuple[Place, str]]:
    """Every test with what is said in it."""
    found: list[tuple[Place, str]] = []
    for path in sorted((ROOT / TESTS).rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        comments = _comments(source)
        for node, name in _symbols(ast.parse(source)):
            if not name.rpartition(".")[2].startswith("test_"):
                continue
            texts = [text for line, text in comments if node.lineno <= line <= (node.end_lineno or line)]
            found.append((Place(path.relative_to(ROOT).as_posix(), name), "\n".join([*texts, *_said(node)])))
    return found


@functools.cache
def property_citations() -> Citations:
    """Per id the tests that cite it and whose inputs hypothesis draws: functions with `@given`, and the machines of
    rules, with what they do."""
    found: Citations = {}
    for path in sorted((ROOT / TESTS).rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for node, name in _symbols(ast.parse(source)) if "hypothesis" in source else ():
            if isinstance(node, ast.FunctionDef) and any("given(" in ast.unparse(each) for each in node.decorator_list):
                texts = list(_said(node))
            elif isinstance(node, ast.ClassDef) and "RuleBasedStateMachine" in map(ast.unparse, node.bases):
                texts = [text for _, text in _pieces(ast.unparse(node))]
            else:
                continue
            for rule in cited("\n".join([node.name, *texts])):
                found.setdefault(rule, set()).add(Place(path.relative_to(ROOT).as_posix(), name))
    return found


def _said(function: ast.stmt) -> Iterator[str]:
    """Docstring and messages of assertions."""
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(function) or ""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and node.msg is not None:
            yield from (part.value for part in ast.walk(node.msg)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str))  # fmt: skip


def _comments(source: str) -> list[tuple[int, str]]:
    """Comments by their lines, of a file in which one may cite: to tell comments from text takes longest of all."""
    if not any(MAY_CITE.search(line.partition("#")[2]) for line in source.splitlines() if "#" in line):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def _pieces(source: str) -> Iterator[tuple[str, str]]:
    """Comments and string constants of a module, each with the symbol it stands in."""
    tree = ast.parse(source)
    owners = {}
    for node, name in _symbols(tree):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        for line in range(first, (node.end_lineno or first) + 1):
            owners[line] = name
    row_rules: set[int] = set()
    for node in ast.walk(tree):  # a call comes before its parts
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Row":
            rule = [keyword for keyword in node.keywords if keyword.arg == "rule"]
            row_rules |= {id(part) for keyword in rule for part in ast.walk(keyword)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in row_rules:
            yield owners.get(node.lineno, ""), node.value
    for line, comment in _comments(source):
        yield owners.get(line, ""), comment


def _symbols(node: ast.AST, prefix: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Classes, functions and module-level names with their dotted names, outer ones first."""
    previous: tuple[ast.stmt, str] | None = None
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, prefix + child.name
            yield from _symbols(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if isinstance(target, ast.Name) and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                previous = (child, prefix + target.id)
                yield previous
                continue
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and previous is not None:
            yield child, previous[1]  # the docstring of the name above it
        previous = None


# --- rows ----------------------------------------------------------------------------------------------------------


@functools.cache
def rows() -> dict[str, list[tuple[str, str]]]:
    """Per id the rows that come from it: the table's name, and the row in words."""
    found: dict[str, list[tuple[str, str]]] = {}
    words = rows_in_words()
    for table in (*TABLES.values(), JOINT):
        for row, (line, _) in zip(table.rows, words[table.name], strict=True):
            for rule in cited(row.rule):
                told = (table.name, line)
                if told not in found.setdefault(rule, []):
                    found[rule].append(told)
    return found


# --- the page ------------------------------------------------------------------------------------------------------


def page() -> str:
    """docs/reference/rules.md, but for its first comment."""
    known = rules()
    waiting = [rule for rule in known.values() if rule.later]
    out = [
        "# Rules\n",
        "Every rule of the protocol by its id, with the rows of the tables that obey it, the code that cites it and the"
        "\ntests that check it. Ids never change their meaning and are never used twice. A row is written as phases,"
        "\nevent, guards, target and effects; [the tables themselves](../concepts.md#how-a-table-answers) have a page "
        "each.\n",
        f"{len(known)} rules; {len(known) - len(waiting)} are in force. The others wait for a feature that this "
        "version does not have. None of\nthese features has an issue yet, so each stands here by its own name:\n",
        *_waiting(list(known.values())),
    ]
    group = ""
    for rule in known.values():
        if rule.group != group:
            group = rule.group
            out.append(f"## {group}\n")
        out.append(_entry(rule))
    return "\n".join(out)


def features() -> list[str]:
    """What rules, or parts of them, wait for."""
    waited_for = [[rule.later, *dict(rule.lacks).values()] for rule in rules().values()]
    return list(dict.fromkeys(feature for each in waited_for for feature in each if feature))


def _waiting(known: list[Rule]) -> Iterator[str]:
    """A line per feature that rules wait for, with these rules and with those that lack a part until then."""
    for feature in features():
        whole = _links(rule for rule in known if rule.later == feature)
        part = _links(rule for rule in known if feature in dict(rule.lacks).values())
        yield f"- {feature}: {whole}" + (f"; a part of {part}" if part else "")
    yield ""


def _links(some: Iterable[Rule]) -> str:
    return ", ".join(f"[{rule.id}](#{rule.id.lower()})" for rule in some)


def _entry(rule: Rule) -> str:
    lines = [f"### {rule.id}\n", f"{rule.title}\n"]
    facts = [f"waits for: {rule.later}, a feature of no issue yet"] if rule.later else []
    facts += [f"without {part}: that waits for {feature}, a feature of no issue yet" for part, feature in rule.lacks]
    facts += [f"row of [{name}](../machines/{name}.md): `{row}`" for name, row in rows().get(rule.id, [])]
    facts += _by_file("code", code_citations().get(rule.id, set()))
    facts += _by_file("tests", test_citations().get(rule.id, set()))
    return "\n".join([*lines, *(f"- {fact}" for fact in facts), ""]) if facts else "\n".join(lines)


def _by_file(what: str, places: set[Place]) -> list[str]:
    files: dict[str, list[str]] = {}
    for place in sorted(places):
        files.setdefault(place.file, []).extend([f"`{place.symbol}`"] if place.symbol else [])
    return [f"{what}: `{file}`{': ' if symbols else ''}{', '.join(symbols)}" for file, symbols in files.items()]
