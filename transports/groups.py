"""Out of a group of tasks comes a group of errors; a person wants the one that began it."""

from __future__ import annotations

from collections.abc import Iterator

import trio

__all__ = ["first_error"]


def first_error(error: BaseException) -> BaseException:
    """The first error inside (groups of) groups that is no cancellation; an error that is no group is its own."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
