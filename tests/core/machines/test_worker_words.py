"""What a rank says in words that are not ours: of errors that a script, a disk or a library raises (N-24, N-25)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.phases import WorkerPhase
from paceline.core.wire import Link, Role
from paceline.transports.codec import MsgpackCodec

from support.rank import Rank, reports

ROLES = ("evaluate", "checkpoint")


def evaluated(error: str) -> list[m.Report]:
    """An evaluation that raised (K-16)."""
    rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
    rank.control(m.ExecuteEvalCallback, schedule_id=1, epoch=4, target_rank=1, version=0, on_consensus=True)
    return reports(rank.feed(ev.ActionDone("evaluate", 1, 0, 2.0, error=error)), m.EvalResult)


def checkpointed(error: str) -> list[m.Report]:
    """A checkpoint callback that raised (K-9)."""
    rank = Rank(WorkerPhase.WAITING, callbacks=ROLES)
    rank.control(m.Checkpoint, decision_id=5, version=0, target_rank=1)
    return reports(rank.feed(ev.ActionDone("checkpoint", 5, 0, 2.0, error=error)), m.CheckpointResult)


def saved(error: str) -> list[m.Report]:
    """A save that failed (W-19)."""
    rank = Rank(WorkerPhase.WAITING)
    rank.control(m.ShutdownWithSave, decision_id=3, reason=m.SaveReason.GRACEFUL, saver=1, stem="x")
    return reports(rank.feed(ev.ActionDone("save", 3, 0, 1.0, error=error)), m.CheckpointResult)


def torn(error: str) -> list[m.Report]:
    """A data plane that failed (R-18)."""
    rank = Rank(WorkerPhase.WAITING)
    return reports(rank.feed(ev.RoundBroken(1, 0, error, True)), m.RoundFailed)


@pytest.mark.parametrize("error", [
    "[Errno 2] No such file: '/data/\udcff\udcfe'", "x" * (17 << 20), "\U0001f6b4" * (5 << 20), "no space left",
], ids=["a name that is no text", "long", "wide", "plain"])  # fmt: skip
@pytest.mark.parametrize("case", [evaluated, checkpointed, saved, torn])
def test_an_error_can_be_told_whatever_its_words_are(case: Callable[[str], list[m.Report]], error: str) -> None:
    """K-9, K-16, W-19, R-18: it is logged and never fatal. It was: a file name that is no UTF-8 raised out of the
    machine (I22), and a text of 17 MB overflowed what is kept for a reattachment (N-9)."""
    (told,) = case(error)
    frame = Link(codec=MsgpackCodec(), keys=None, role=Role.RANK).send(told)
    words = told.cause if isinstance(told, m.RoundFailed) else told.error
    assert len(frame) < 8192 and words.startswith(error[:10].encode("utf-8", "replace").decode())
    assert (words == error) == (error == "no space left")
