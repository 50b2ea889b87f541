"""Faults that earlier systems had in checkpoints and evaluations: a test of the rule, and the proof that it needs it.

As in `test_section17_work.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.core import messages as m
from paceline.core.phases import RunPhase
from paceline.core.roles import ROLES

from support.duties import evaluated, hand
from support.hand import Hand, messages
from support.old_ways_actions import OLD_WAYS


@OLD_WAYS.against("the_pool_first")
def test_a_closed_last_epoch_is_the_tail() -> None:
    """17.1 #20, K-4: its pool is gone, and a bundle is due all the same."""
    run = hand(1, num_epochs=1, samples=12)
    del run.co.book.pools[0]
    run.co.book.last_closed_epoch = 0

    assert run.co.actions._in_tail()


@OLD_WAYS.against("no_wait_for_the_last_result")
def test_no_shutdown_overtakes_the_last_evaluation() -> None:
    """17.2 #15, C-25, K-17: it waits for the result."""
    run = Hand(2, num_epochs=0, callbacks=ROLES).form()
    run.tick(5.0)
    (order,) = messages(run.effects, m.ExecuteEvalCallback)

    assert not messages(run.effects, m.Shutdown)
    assert messages(evaluated(run, order), m.Shutdown) and run.co.run.phase == RunPhase.SHUTTING_DOWN


@pytest.mark.parametrize(("name", "test"), OLD_WAYS.cases, ids=[name for name, _ in OLD_WAYS.cases])
def test_the_old_way_is_caught(name: str, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 17: with the old way put back the test of the rule fails."""
    OLD_WAYS.caught(name, test, monkeypatch)


def test_every_old_way_has_a_test_that_names_its_row() -> None:
    """Section 17: a mutant that nothing is run against proves nothing."""
    OLD_WAYS.complete()
