"""What may still come when a run is over, or while it waits for its ranks to go (M-53, M-42, C-25)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator

from support.hand import Hand
from support.words import hello


def report(kind: type[m.Report], **fields: Any) -> ev.Received:
    """The next report of rank 0, which has sent a heartbeat every second until then."""
    return ev.Received(kind(run_id=bytes(16), generation=1, rank=0, incarnation=1, report_seq=33, **fields))


LATE: list[Any] = [
    ev.LinkLost(0, 1, "reset"), ev.SendFailed((0, 1, 1)), ev.ProcessExited(0, 1, 1), ev.LinkUp(0, 1), ev.Tick(),
    ev.OperatorRequest(ev.Operator.STOP), report(m.Exiting, reason="done"),
    report(m.Batch, cycle=9, plan_id=9, step_count=0, samples=1, batch_ms=1.0, data_ms=0.0),
    ev.RoundProgress(m.RoundKey(generation=1, cycle=0, kind=m.RoundKind.PARAMS), 0, 1, True),
]
"""What may come of a rank that was cut off, of its link, or of who did not hear of the end."""


@pytest.mark.parametrize("event", LATE, ids=lambda event: type(getattr(event, "message", event)).__name__)
def test_who_was_cut_off_changes_nothing_any_more(event: Any) -> None:
    """M-53, C-25: nothing follows Finish, whatever the grace of a link."""
    hand = Hand(2, num_epochs=0, link_grace_s=30.0).form()
    hand.tick(31)
    assert hand.co.finished and hand.co.alive == [0, 1] and hand.co.peers[0].report_seq == 32
    before = hand.co.snapshot()

    assert hand.feed(event) == [] and hand.co.snapshot() == before


def claims_its_life(hand: Hand, **fields: Any) -> list[Any]:
    """Rank 0 is back over another link and wants to go on (M-42)."""
    known = dict(generation=1, incarnation=1, version=0, cycle=0, snapshot_cycle=0, shipped=0, step_count=0,
                 control_seq=hand.co.peers[0].control_seq, report_seq=hand.co.peers[0].report_seq)  # fmt: skip
    claim = m.ResumeClaim(**{**known, **fields})
    return hand.feed(ev.HelloReceived(70, hello(60, wanted_rank=0, resume=claim)))


@pytest.mark.parametrize("left", ["detached", "attached", "restarted"])
@pytest.mark.parametrize("ahead", [0, 9])
def test_nobody_goes_on_with_a_life_in_a_run_that_is_over(left: str, ahead: int) -> None:
    """M-53, M-42, C-25: a Hello gets `closing`, with a claim of any version too, and nothing else happens."""
    hand = Hand(2, num_epochs=0, link_grace_s=90.0, reconnect_window_s=90.0).form()
    if left == "detached":
        hand.feed(ev.LinkLost(0, 1, "reset"))
    hand.tick(31, silent=(0,) if left == "detached" else ())
    assert hand.co.finished and 0 in hand.co.alive
    if left == "restarted":
        hand.co = Coordinator.restart(hand.co.config, hand.co.snapshot(), (), hand.now)
        hand.co.take_ready()
    before = hand.co.snapshot()
    effects = claims_its_life(hand, version=ahead)
    refuse, told = effects
    assert isinstance(refuse, fx.Refuse) and refuse.reject.code == m.RejectCode.CLOSING and refuse.reject.retry
    assert isinstance(told, fx.Emit) and told.name == "Refused"
    assert hand.co.snapshot() == before


def test_who_comes_back_while_exits_are_awaited_is_told_to_shut_down() -> None:
    """M-53, M-42: the run is not over yet, and this rank is one of those it waits for."""
    hand = Hand(2, num_epochs=0, link_grace_s=90.0).form()
    sent = hand.co.peers[0].control_seq
    hand.feed(ev.LinkLost(0, 1, "reset"))
    (admit,) = [effect for effect in claims_its_life(hand, control_seq=sent - 1) if isinstance(effect, fx.Admit)]
    assert [type(message) for message in admit.resend] == [m.Shutdown]
