"""Checks, the kit that holds them, and the words in which a check says that a promise is broken."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import attrs

from ..errors import ConfigError, LocalProtocolError
from .blame import leaves, said

__all__ = ["Body", "Check", "CheckFailed", "Kit", "Level", "NotChecked", "Stuck", "Subject",
           "accepting", "ensure", "not_ended", "raising"]  # fmt: skip

Subject = TypeVar("Subject")
Body = Callable[[Subject], Any]
"""Takes the subject; returns nothing, or is a coroutine function that does."""

Function = TypeVar("Function", bound=Callable[..., Any])


class CheckFailed(AssertionError):
    """The plug-in does not keep the promise; the text says what was seen and what was due."""


class Stuck(CheckFailed):
    """A call of the plug-in did not come back. What it does may still go on, so nothing after it is judged."""


class NotChecked(Exception):
    """The promise could not be looked at here; the text says what is missing. Reported as such, never silent."""


class Level(enum.IntEnum):
    """How deep a check goes. Whoever asks for a level asks for those below it too."""

    L0 = 0
    """The plug-in can be found, imported and made."""
    L1 = 1
    """Its contract: types, errors, calls in every order."""
    L2 = 2
    """Order, framing, load and large data."""
    L3 = 3
    """Faults: cancellation, death, noise, leaks."""


@attrs.frozen(kw_only=True)
class Check(Generic[Subject]):
    """One promise and the function that looks whether it is kept.

    Fields:
        id: never changes and is never used again, such as `T201`: kit, level, number.
        name: the function's name; readable, may change.
        asserts: what holds when the check passes, in one sentence.
        doc: page and heading under docs/ that explain the promise, as `guides/page.md#heading`.
        needs: the capability without which the promise is not made; None when everybody makes it.
        unclaimed: what must hold when `needs` is not claimed; None when nothing in particular has to.
        within: the capability without which there is nothing to ask, whatever `needs` says; None when there always is.
        gate: whether nothing that comes after it can be judged when it fails. Every check of L0 is one.
    """

    id: str
    name: str
    level: Level
    asserts: str
    doc: str
    body: Body[Subject]
    needs: str | None = None
    unclaimed: Body[Subject] | None = None
    within: str | None = None
    gate: bool = False


@attrs.define(eq=False, kw_only=True)
class Kit(Generic[Subject]):
    """The checks for one kind of plug-in.

    `version` rises when a check is added or asks for more, so that two reports can be compared. `capabilities` has the
    meaning of every name that a plug-in of this kind may claim.
    """

    name: str
    version: int
    capabilities: Mapping[str, str] = attrs.field(factory=dict)
    _checks: dict[str, Check[Subject]] = attrs.field(factory=dict, init=False)

    def check(
        self,
        id: str,
        level: Level,
        *,
        doc: str,
        needs: str | None = None,
        unclaimed: Body[Subject] | None = None,
        within: str | None = None,
        gate: bool = False,
    ) -> Callable[[Function], Function]:
        """Add the decorated function, and return it as it was. Its first paragraph is what the check asserts.

        Raises:
            LocalProtocolError: the id is taken, the capability unknown, or the function has no docstring.
        """

        def add(body: Function) -> Function:
            asserts = " ".join((inspect.getdoc(body) or "").partition("\n\n")[0].split())
            if id in self._checks:
                raise LocalProtocolError(f"the kit {self.name} has two checks {id}: ids are never used again")
            for capability in (needs, within):
                if capability is not None and capability not in self.capabilities:
                    raise LocalProtocolError(
                        f"check {id} needs {capability!r}, which is no capability of the kit {self.name}"
                    )
            if not asserts:
                raise LocalProtocolError(f"check {id} does not say what it asserts: give {body.__name__} a docstring")
            self._checks[id] = Check(
                id=id,
                name=body.__name__,
                level=level,
                asserts=asserts,
                doc=doc,
                body=body,
                needs=needs,
                unclaimed=unclaimed,
                within=within,
                gate=gate,
            )
            return body

        return add

    @property
    def checks(self) -> tuple[Check[Subject], ...]:
        """All of them, by level and id, whatever order their modules were imported in."""
        return tuple(sorted(self._checks.values(), key=lambda check: (check.level, check.id)))

    def select(self, *, level: Level = Level.L3, only: Sequence[str] = ()) -> tuple[Check[Subject], ...]:
        """The checks up to `level`, or those that `only` names by id or name, whatever their level.

        Raises:
            ConfigError: nothing of that name; the text lists what there is.
        """
        known = {each for check in self.checks for each in (check.id, check.name)}
        for name in only:
            if name not in known:
                ids = ", ".join(check.id for check in self.checks)
                raise ConfigError(f"there is no check {name!r} in the kit {self.name}; its checks are {ids}")
        if only:
            return tuple(check for check in self.checks if check.id in only or check.name in only)
        return tuple(check for check in self.checks if check.level <= level)


def ensure(condition: bool, text: str) -> None:
    """`CheckFailed(text)` unless the condition holds. Not `assert`, which an optimised interpreter leaves out."""
    if not condition:
        raise CheckFailed(text)


@contextmanager
def raising(
    kind: type[Exception] | tuple[type[Exception], ...], what: str, *, naming: Sequence[str] = ()
) -> Iterator[list[Exception]]:
    """The block must raise an exception of this kind whose text has every one of the `naming` in it. What it raised is
    then in the list.

    `what` is the subject of the sentence when it does not, such as "a dial to nobody".
    """
    due = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    raised: list[Exception] = []
    try:
        yield raised
    except CheckFailed:
        raise
    except kind as error:
        raised.append(error)
        for word in naming:
            if word not in str(error):
                raise CheckFailed(
                    f"{what} raised {type(error).__name__} as it should, but its text does not name {word!r}: {error}"
                ) from error
    except Exception as error:
        raise CheckFailed(f"{what} raised {said(error)}, where {due} is due") from error
    else:
        raise CheckFailed(f"{what} raised nothing where {due} is due")


@contextmanager
def accepting(what: str) -> Iterator[None]:
    """The block must raise nothing: what it does is legal. `what` is the subject of the sentence when it does."""
    try:
        yield
    except (CheckFailed, NotChecked):
        raise
    except Exception as error:
        raise CheckFailed(f"{what} raised {said(error)}") from error


def not_ended(raised: BaseException) -> Exception:
    """What was raised in the thread of a check; a `CheckFailed` that tells of it where it would end the program."""
    if isinstance(raised, Exception):
        return raised
    ends = "; ".join(said(leaf) for leaf in leaves(raised) if not isinstance(leaf, Exception))
    failure = CheckFailed(f"a plug-in must not end the program, and this one raised {ends}")
    failure.__cause__ = raised
    return failure
