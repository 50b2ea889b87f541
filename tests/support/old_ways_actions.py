"""Old ways of checkpoints and evaluations, put back (see `mutants.py`)."""

from __future__ import annotations

from typing import Any

from paceline.core.actions import Actions
from paceline.core.run import Run

from .mutants import OldWays, Patch, around

OLD_WAYS = OldWays()


@OLD_WAYS.old_way("17.1 #20")
def the_pool_first(patch: Patch) -> None:
    """Whether this is the tail is asked of the pool of the last epoch alone, which closing has removed."""

    def change(in_tail: Any, actions: Actions) -> bool:
        return actions.co.book.num_epochs - 1 in actions.co.book.pools and in_tail(actions)

    around(patch, Actions, "_in_tail", change)


@OLD_WAYS.old_way("17.2 #15")
def no_wait_for_the_last_result(patch: Patch) -> None:
    """The shutdown follows the order to evaluate."""
    patch.setattr(Run, "final_open", lambda run, event: False)
