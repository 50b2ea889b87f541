"""The enumerations, records and the stamp that the messages of protocol section 3 are made of.

Numbers of enumerations travel and stand in files, so they never change.
"""

from __future__ import annotations

from enum import IntEnum

from .values import value

__all__ = [
    "FINAL_EVALUATION",
    "NO_RANK",
    "IntentKind",
    "Message",
    "Outcome",
    "Plan",
    "Refusal",
    "RejectCode",
    "RoundKey",
    "RoundKind",
    "SaveReason",
    "ThrottleReason",
    "WelcomeStatus",
    "transfer_key",
]


FINAL_EVALUATION = 2**64 - 1
"""The schedule id of the final evaluation (K-17)."""
NO_RANK = 2**32 - 1
"""The rank number that names nobody."""


class Outcome(IntEnum):
    """What became of a rank's contribution in a cycle."""

    MERGED = 0
    REFUSED = 1
    UNREALIZED = 2
    OBSERVER = 3


class Refusal(IntEnum):
    """Why a contribution was refused (R-4)."""

    SCHEMA = 0
    SHAPE = 1
    DTYPE = 2
    STEPS = 3
    NONFINITE = 4
    DUPLICATE = 5


class ThrottleReason(IntEnum):
    """Why a rank is parked: the averaging barrier (C-11) or the lead limit (G-8)."""

    BARRIER = 0
    LEAD = 1


class RoundKind(IntEnum):
    """What a data round carries (R-1). 8 to 15 are reserved for streaming fragments (R-20)."""

    COUNTS = 0
    PARAMS = 1
    BUFFERS = 2
    STATE = 3


class IntentKind(IntEnum):
    """What a rank may wish for (K-1)."""

    EVAL_NOW = 0
    CHECKPOINT_NOW = 1
    STOP_NOW = 2


class SaveReason(IntEnum):
    """Why a model is saved; an unknown number is read as GRACEFUL."""

    GRACEFUL = 0
    MAX_FAILURE = 1
    SINGLE_SURVIVOR = 2
    ALL_RANKS_LOST = 3
    REDUCE_STALL = 4
    CHECKPOINT = 5
    DIVERGED = 6
    CONSENSUS_MISMATCH = 7

    @classmethod
    def _missing_(cls, number: object) -> SaveReason | None:
        return cls.GRACEFUL if isinstance(number, int) else None


class WelcomeStatus(IntEnum):
    """Where a welcomed rank stands."""

    FORMING = 0
    JOINING = 1
    RESUMED = 2


class RejectCode(IntEnum):
    """Refusals at the door (N-29). Only CLOSING, FULL and BUSY may succeed when tried again."""

    PROTOCOL = 1
    OTHER_RUN = 2
    SCHEMA = 3
    DATASET = 4
    CONFIG = 5
    AVERAGER = 6
    VENDOR = 7
    SEAT = 8
    BYTE_ORDER = 9
    SIZE = 10
    FROZEN = 11
    CLOSING = 12
    FULL = 13
    BUSY = 14


@value  # not by keyword only: a finish makes one per rank, and sorting out keywords takes longer than all the rest
class Plan:
    """One contiguous slice of an epoch's order given to one rank; `plan_id` is unique in the run, sizes in picks."""

    plan_id: int
    epoch: int
    offset: int
    size: int


@value(kw_only=True)
class RoundKey:
    """Names a data round: never a position (R-1)."""

    generation: int
    cycle: int
    kind: RoundKind

    @property
    def is_transfer(self) -> bool:
        """Whether this is a transfer to one joiner, see `transfer_key`."""
        return self.kind == RoundKind.STATE and self.cycle > 0


def transfer_key(generation: int, number: int) -> RoundKey:
    """The round in which one rank gives another the static part of the state (M-24). Transfers are numbered from 1,
    so they never share a key with formation, the other round of this kind, which is cycle 0."""
    return RoundKey(generation=generation, cycle=number, kind=RoundKind.STATE)


@value(kw_only=True)
class Message:
    """The stamp every message carries (N-6)."""

    run_id: bytes = b""
    generation: int = 0
    rank: int = 0
    incarnation: int = 0
