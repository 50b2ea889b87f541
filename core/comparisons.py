"""Comparisons made strict, or no longer strict, in the functions that decide: one kind of mutant (mutation.py).

Limits are where protocols break: "exceeded strictly", "at most", "rises strictly". A test that only tries values far
from the limit passes with `<` and with `<=`. Here each comparison is turned into its neighbour, and the function is
compiled again with its code exchanged in place, so that whoever holds the function, by whatever name, calls the damaged
one.

The functions are those that a row names as a guard, and every one of the modules in `DECIDING`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import cast

from .engine import literal
from .errors import InvariantError
from .tables import TABLES, machine_class
from .values import value

__all__ = ["DECIDING", "Comparison", "called", "comparisons", "deciding"]

DECIDING = ("gates", "ladder", "membership", "joining")
"""Modules of core all of whose functions decide who is waited for, and how long."""

NEIGHBOUR: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
"""What a comparison is mistaken for."""
NOTE = "_paceline_called"
"""The name under which a function that is watched finds whom to tell."""


@value
class Comparison:
    """The comparison number `number` of a function, as read from top to bottom, replaced by its neighbour. `place` is
    the table that the function is a guard of, or its module."""

    name: str
    place: str
    function: str
    number: int

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the function compares as the mutant does."""
        function = deciding()[self.function][1]
        tree = _tree(function)
        node, place = _sites(tree)[self.number]
        node.ops[place] = NEIGHBOUR[type(node.ops[place])]()
        with _running(function, tree):
            yield


def comparisons() -> list[Comparison]:
    """Every comparison of every function that decides, in a stable order."""
    found: list[Comparison] = []
    for function, (place, code) in deciding().items():
        told: list[str] = []
        for number, (node, link) in enumerate(_sites(_tree(code))):
            old, new = (
                ast.unparse(ast.Compare(node.left, [operator], [node.comparators[link]]))
                for operator in (node.ops[link], NEIGHBOUR[type(node.ops[link])]())
            )
            told.append(f"{old} → {new}")
            again = told.count(told[-1])  # the same words twice in one function
            name = f"{function}/compare:{told[-1]}{f' #{again}' if again > 1 else ''}"
            found.append(Comparison(name, place, function, number))
    return found


@functools.cache
def deciding() -> dict[str, tuple[str, FunctionType]]:
    """The functions whose comparisons are damaged, by module and name, such as "cycle.Cycle.fires", each with the
    place it belongs to."""
    found: list[tuple[str, FunctionType]] = []
    for name, table in TABLES.items():
        owner = machine_class(name)
        for guard in dict.fromkeys(literal(guard)[0] for row in table.rows for guard in row.guards):
            found.append((name, cast(FunctionType, inspect.getattr_static(owner, guard))))
    for name in DECIDING:
        found += [(name, each) for each in _functions(importlib.import_module(f"{__package__}.{name}"))]
    return {f"{each.__module__.rpartition('.')[2]}.{each.__qualname__}": (place, each) for place, each in found}


@contextmanager
def called() -> Iterator[set[str]]:
    """Collects the names of the functions that decide and are called inside."""
    names: set[str] = set()
    with ExitStack() as stack:
        for name, (_, function) in deciding().items():
            tree = _tree(function)
            note = ast.parse(f"{NOTE}({name!r})").body[0]
            definition = cast(ast.FunctionDef, tree.body[0])
            definition.body.insert(0, note)
            function.__globals__[NOTE] = names.add
            stack.callback(function.__globals__.pop, NOTE, None)
            stack.enter_context(_running(function, tree))
        yield names


def _functions(module: ModuleType) -> list[FunctionType]:
    """Functions and methods that a module defines, in the order of its text."""
    found: list[FunctionType] = []
    for thing in vars(module).values():
        for each in vars(thing).values() if isinstance(thing, type) else (thing,):
            function = each.fget if isinstance(each, property) else each
            written = isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__
            if written and function not in found:
                found.append(cast(FunctionType, function))
    return sorted(found, key=lambda function: function.__code__.co_firstlineno)


# --- source in, code out -----------------------------------------------------------------------------------------


def _tree(function: FunctionType) -> ast.Module:
    """A tree of the function's own, with the lines of its file."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    return tree


def _sites(tree: ast.Module) -> list[tuple[ast.Compare, int]]:
    """The comparisons that have a neighbour, from top to bottom and left to right; of a chain each link."""
    found = [
        (node, place)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for place, operator in enumerate(node.ops)
        if type(operator) in NEIGHBOUR
    ]
    return sorted(found, key=lambda site: (site[0].lineno, site[0].col_offset, site[1]))


@contextmanager
def _running(function: FunctionType, tree: ast.Module) -> Iterator[None]:
    """Inside, the function runs the code of this tree of it."""
    before = function.__code__
    ast.fix_missing_locations(tree)
    made = compile(tree, before.co_filename, "exec", flags=annotations.compiler_flag, dont_inherit=True)
    code = next(const for const in made.co_consts if isinstance(const, CodeType))
    if code.co_freevars != before.co_freevars:
        raise InvariantError(f"{function.__qualname__} closes over {before.co_freevars}: it cannot be compiled alone")
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
