"""No order of a set is read in core (N-13): texts hash otherwise in every process, and so do tuples that hold one.

A set may be asked what is in it, counted, compared, sorted, or made into another set. Whatever depends on the order in
which it gives its members is found in the source here: a loop, a list of it, its first one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "core"
MAKES_A_SET = {"set", "frozenset"}
LIKE_THE_FIRST = {"union", "difference", "intersection", "symmetric_difference", "copy"}
FREE_OF_ORDER = {"sorted", "set", "frozenset", "min", "max", "any", "all", "len"}
"""What takes the members in any order; `sum` is not here, because rounding has an order."""
READS_ORDER = {"dict", "enumerate", "filter", "iter", "list", "map", "next", "reversed", "sum", "tuple", "zip"}


class _Function(ast.NodeVisitor):
    """Finds where the order of a set is read, in one function; `sets` are the names that hold one there."""

    def __init__(self, function: ast.AST) -> None:
        self.sets: set[str] = set()
        self.found: list[tuple[int, str]] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and self.is_set(node.value):
                self.sets |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.arg) and node.annotation is not None and _says_set(node.annotation):
                self.sets.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _says_set(node.annotation):
                self.sets.add(node.target.id)
        self.generic_visit(function)

    def is_set(self, node: ast.AST) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(name):
                return name in self.sets
            case ast.Call(ast.Name(name)):
                return name in MAKES_A_SET
            case ast.Call(ast.Attribute(first, method)):
                return method in LIKE_THE_FIRST and self.is_set(first)
            case ast.BinOp(left, ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right):
                return self.is_set(left) or self.is_set(right)
            case ast.IfExp(_, first, second):
                return self.is_set(first) or self.is_set(second)
        return False

    def visit_For(self, node: ast.For) -> None:
        self._reads(node.iter)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in READS_ORDER:
            for argument in node.args:
                self._reads(argument)
        if called in FREE_OF_ORDER:  # a comprehension right inside gives it the members in any order
            for argument in node.args:
                if isinstance(argument, ast.ListComp | ast.GeneratorExp):
                    for part in ast.iter_child_nodes(argument):
                        self.generic_visit(part)
                else:
                    self.visit(argument)
            return
        self.generic_visit(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        for part in ast.iter_child_nodes(node):
            self.generic_visit(part)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._reads(node.iter)
        self.generic_visit(node)

    def visit_List(self, node: ast.List | ast.Tuple) -> None:
        for element in node.elts:
            if isinstance(element, ast.Starred):
                self._reads(element.value)
        self.generic_visit(node)

    visit_Tuple = visit_List

    def _reads(self, node: ast.AST) -> None:
        if self.is_set(node):
            self.found.append((getattr(node, "lineno", 0), ast.unparse(node)))


def _says_set(annotation: ast.AST) -> bool:
    return ast.unparse(annotation).partition("[")[0] in ("set", "frozenset")


def reads(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every set whose order is read."""
    for function in _with_sets(ast.parse(source)):
        yield from _Function(function).found


def _with_sets(tree: ast.Module) -> list[ast.AST]:
    """The functions in which a set is made or declared: few, so that the rest is looked at only once."""
    found: dict[ast.AST, None] = {}
    waiting: list[tuple[ast.AST, ast.AST | None]] = [(tree, None)]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            function = node
        elif function is not None and (
            isinstance(node, ast.Set | ast.SetComp) or (isinstance(node, ast.Name) and node.id in MAKES_A_SET)
        ):
            found[function] = None
        waiting += [(child, function) for child in ast.iter_child_nodes(node)]
    return list(found)


@pytest.mark.parametrize("line", [
    "for r in {a, b}: pass", "for r in held - {a}: pass", "x = [r for r in set(a)]", "x = next(iter(held))",
    "x = list(held)", "x = tuple(held.difference(a))", "x = (*held, 1)", "x = [*{a, b}]", "x = {r: 1 for r in held}",
    "x = sum(held)", "other = held | {a}\n for r in other: pass", "x = dict.fromkeys(a)\n for r in frozenset(a): pass",
    "x = list(map(str, held))", "x = sorted(list(held), key=len)", "x = [r for r in (held if a else b)]",
])  # fmt: skip
def test_a_read_of_its_order_is_found(line: str) -> None:
    """N-13: one of each kind."""
    assert list(reads(f"def f(a, b, held: set[str]):\n {line}"))


@pytest.mark.parametrize("line", [
    "x = sorted(held)", "x = a in held", "x = len(held - {a})", "x = min(r for r in held)", "x = {r + 1 for r in held}",
    "x = sorted([r for r in held])", "x = {*held, a}", "x = any(r == a for r in held)", "for r in sorted({a, b}): pass",
    "for r in a: pass", "held.add(a)", "x = held == {a}",
])  # fmt: skip
def test_what_needs_no_order_is_not(line: str) -> None:
    """N-13."""
    assert not list(reads(f"def f(a, b, held: set[str]):\n {line}"))


def test_core_reads_the_order_of_no_set() -> None:
    """N-13: the same events give the same effects in every process."""
    wrong = [
        f"{path.relative_to(CORE.parent)}:{line} {text}"
        for path in sorted(CORE.rglob("*.py"))
        for line, text in reads(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
