"""What a plug-in that is not installed is called: `module:name`; and what is made of it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .errors import ConfigError

__all__ = ["NEAR", "is_target", "lacking", "made", "named"]

NEAR = 0.75
"""How alike two names are, from 0 to 1, of which one may be a slip of the other."""
LEAST_PART = 3
"""Letters of a name that is looked for inside of others: fewer are in many."""
MOST_HINTS = 3
MOST_LISTED = 6
"""Names that are still read when all are told."""
THEIRS = (Exception, SystemExit, GeneratorExit)
"""What may come of code of somebody else that runs when a module is imported, or when a name of it is asked for."""
MISSING = object()


def is_target(text: str) -> bool:
    """Whether a text is written as `module:name`."""
    module, _, name = text.partition(":")
    return bool(module and name)


def lacking(thing: object, shape: type) -> list[str]:
    """What a protocol names and an object does not have."""
    return [name for name in vars(shape) if not name.startswith("_") and not hasattr(thing, name)]


def made(make: Callable[[], Any], what: str, shape: type) -> Any:
    """What a factory makes, when it has everything that the protocol `shape` names. `what` is what it is for.

    Raises:
        ConfigError: it raises, or something is missing.
    """
    try:
        thing = make()
    except Exception as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ConfigError(
            f"{what} cannot be made: {why}; docs/guides/write-a-policy.md says how it is called"
        ) from failure
    missing = lacking(thing, shape)
    if missing:
        raise ConfigError(f"{what} cannot be used: a {type(thing).__name__} has no {', '.join(missing)}; what a "
                          f"{shape.__name__.lower()} needs is in docs/guides/write-a-policy.md")  # fmt: skip
    return thing


def named(target: str, what: str) -> Callable[..., Any]:
    """The factory that `module:name` names: a class, a function; `name` may have dots. `what` is what was looked for.

    Raises:
        ConfigError: it cannot be had. The text says which part of the target is at fault and what to write instead.
    """
    module, _, name = target.partition(":")
    if not is_target(target):
        raise ConfigError(f"{what} {target!r} is not written as module:name; name a class, or a function that makes it")
    found: Any = _imported(module, f"{what} {target!r} cannot be loaded")
    for part in name.split("."):
        inside = getattr(found, "__name__", module)
        try:
            there = getattr(found, part, MISSING)
        except THEIRS as failure:
            raise ConfigError(f"{what} {target!r} cannot be loaded: {part!r} of {inside} raised "
                              f"{type(failure).__name__}: {failure}") from failure  # fmt: skip
        if there is MISSING:
            raise ConfigError(f"{what} {target!r} cannot be loaded: there is no {part!r} in {inside}; "
                              f"{_remedy(part, _factories(found))}")  # fmt: skip
        found = there
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(f"{what} {target!r} is an object of type {kind}; name a class, or a function that makes it")
    factory: Callable[..., Any] = found
    return factory


def _factories(place: Any) -> list[str]:
    """What of a module or class can be meant as a factory: what is called and is its own. What it imported for its own
    use is not, a protocol makes nothing, and what cannot be had, as a name that needs a package, helps nobody."""

    def is_own(name: str, thing: Any) -> bool:
        if not isinstance(place, ModuleType):
            return True
        home = place.__name__
        return name in place.__all__ if hasattr(place, "__all__") else getattr(thing, "__module__", home) == home

    def meant(name: str) -> bool:
        try:
            thing = getattr(place, name, None)
        except THEIRS:
            return False
        makes = callable(thing) and not getattr(thing, "_is_protocol", False)
        return makes and not name.startswith("_") and is_own(name, thing)

    return [name for name in dir(place) if meant(name)]


def _remedy(wanted: str, there: Sequence[str]) -> str:
    """What to write instead of a name that there is not: one that is written almost so, or has it in it; all of them,
    where they are few; else nothing that would only be a guess."""
    plain = {name: _plain(name) for name in there}
    close = difflib.get_close_matches(_plain(wanted), plain.values(), n=MOST_HINTS, cutoff=NEAR)
    near = sorted((name for name in there if plain[name] in close), key=lambda name: close.index(plain[name]))
    if len(wanted) >= LEAST_PART:
        near += [name for name in there if name not in near and _plain(wanted) in plain[name]]
    if near:
        return f"near to it are {', '.join(near[:MOST_HINTS])}"
    if there and len(there) <= MOST_LISTED:
        return f"what it has is {', '.join(there)}"
    return "name a class or function that is there"


def _plain(name: str) -> str:
    """A name as it is heard: however it is written, in one word or several."""
    return name.replace("_", "").lower()


def _imported(module: str, fault: str) -> ModuleType:
    """The module. Importing runs what its author wrote: whatever comes of that, an end of the program too, is told as
    a fault of the target, because a script that ends with 0 must not look like a kit that was passed."""
    try:
        return importlib.import_module(module)
    except THEIRS as failure:
        missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            why = f"there is no module {missing!r} here; run from the directory that holds it, or install it"
        else:
            why = f"importing {module} raised {type(failure).__name__}: {failure}"
        raise ConfigError(f"{fault}: {why}") from failure
