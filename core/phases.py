"""The phases of the four flat machines (protocol sections 4.3, 5 and 11.1).

Their numbers travel in `Beacon` and stand in snapshots, so they never change.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ALIVE", "IDLE", "PENDING", "UNDER_WAY", "CyclePhase", "PeerPhase", "RunPhase", "WorkerPhase"]


class RunPhase(IntEnum):
    """Where the run stands (C-25)."""

    FORMING = 0
    TRAINING = 1
    FINAL_EVAL = 2
    SHUTTING_DOWN = 3
    STOPPED = 4


class CyclePhase(IntEnum):
    """Where the averaging cycle stands (C-2)."""

    IDLE = 0
    PENDING = 1
    STALLED = 2


class PeerPhase(IntEnum):
    """Where one incarnation of a rank stands (M-1)."""

    JOINING = 1
    VOTER = 2
    LAGGING = 3
    EXITED = 4
    DEAD = 5


class WorkerPhase(IntEnum):
    """Where the worker machine of a rank stands (section 5)."""

    JOINING = 0
    WAITING = 1
    TRAINING = 2
    THROTTLED = 3
    IN_COLLECTIVE = 4
    DRAINING = 5
    STOPPED = 6


ALIVE = (PeerPhase.VOTER, PeerPhase.JOINING, PeerPhase.LAGGING)
"""Phases of who has neither left nor died (M-1), the most common one first: every report asks."""
JOINING, VOTER, LAGGING = PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING
IDLE, PENDING = CyclePhase.IDLE, CyclePhase.PENDING
UNDER_WAY = RunPhase.TRAINING
"""What every event asks for has a name of its own, here and at the top of the machines: in Python 3.11 to find a member
in its enumeration takes as long as four calls of a method."""
