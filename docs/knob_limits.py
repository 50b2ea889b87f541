"""What each knob may be, in the words of the check that refuses the rest (`paceline.core.config`)."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping

from paceline.core import config
from paceline.core.config import Config


def knob_limits() -> dict[str, str]:
    """The limits of each knob in words: the last argument of each `_need` of the checks, in their order. A check inside
    a loop counts once for each turn, that is for each knob which the loop goes through."""
    found: dict[str, dict[str, None]] = {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(Config)))
    loops = {id(call): loop for loop in ast.walk(tree) if isinstance(loop, ast.For) for call in ast.walk(loop)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "_need":
            knob, rule = call.args[1], call.args[3]
            turns = [{"knob": str(knob.value)}] if isinstance(knob, ast.Constant) else looped(loops[id(call)])
            for turn in turns:
                found.setdefault(turn["knob"], {})[wording(rule, turn)] = None
    return {name: "; ".join(texts) for name, texts in found.items()}


def wording(node: ast.expr, known: Mapping[str, str]) -> str:
    """A text as the code has it. What is filled in stands for itself where it is known or a list of names, else it is
    left out, with the equals sign before it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr), "a rule is a text"
    parts = [part.value if isinstance(part, ast.Constant) else filled_in(part, known) for part in node.values]
    return re.sub(r" =(?= \()", "", " ".join("".join(map(str, parts)).split()))


def filled_in(part: ast.expr, known: Mapping[str, str]) -> str:
    """A field of a text in words: the list that it joins, or the text that its first variable is known to have."""
    names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
    for name in names:
        if name.isupper():
            return ", ".join(getattr(config, name))
    return known.get(names[0], "") if names else ""


def looped(loop: ast.For) -> list[dict[str, str]]:
    """The turns of a loop over a written-out tuple: the texts that its variables have in each, `knob` among them."""
    assert isinstance(loop.iter, ast.Tuple), "knobs are listed where they are checked"
    variables = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
    turns = [item.elts if isinstance(item, ast.Tuple) else [item] for item in loop.iter.elts]
    return [{name: node.value for name, node in zip(variables, turn, strict=True)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)} for turn in turns]  # fmt: skip
