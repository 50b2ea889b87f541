"""What opens a session, or tells a stale one what is current (protocol 3.3).
"""

from __future__ import annotations

import attrs

from .message_types import WelcomeStatus
from .schema import Schema
from .values import value

__all__ = [
    "Fenced",
    "Hello",
    "Reject",
    "ResumeClaim",
    "Welcome",
]


@value(kw_only=True)
class ResumeClaim:
    """What a rank that lost its link claims to hold (M-42): its life, the version it has adopted with the schedule base
    of that version, the newest request it has served and what came of it (`staged`: a whole consensus lies beside its
    model), the newest communicator session it was in, and the lane numbers: the last control message that arrived, the
    last report that it made. Of a life that is `over`, since it was told so (W-21), nothing is gone on with: the rank
    says by it who it was, and wants the next one of its seat (M-22)."""

    generation: int
    incarnation: int
    version: int
    cycle: int
    snapshot_cycle: int
    shipped: int
    step_count: int
    control_seq: int
    report_seq: int
    attempt: int = 0
    staged: bool = False
    global_step: int = 0
    session_id: int = 0
    over: bool = False


@value(kw_only=True)
class Hello:
    """A rank knocks. `wishes` are the configuration values this rank's script states (V-6): the first rank of a
    forming run may set what the coordinator left open, a later one that differs is refused with both values.
    `callbacks` names what its script brought: epoch, evaluate, checkpoint (M-33)."""

    protocol: int
    package: str
    host: str
    devices: tuple[str, ...]
    runtime: str
    byte_order: int
    schema: Schema
    schema_hash: bytes
    dataset_signature: bytes
    config_digest: bytes
    averagers: tuple[str, ...]
    wanted_rank: int | None = None
    resume: ResumeClaim | None = None
    wishes: dict[str, str | int | float | bool | None] = attrs.field(factory=dict, hash=False)
    callbacks: tuple[str, ...] = ()


@value(kw_only=True)
class Welcome:
    """The coordinator admits; `config` holds every value the rank must use (V-6)."""

    rank: int
    incarnation: int
    generation: int
    status: WelcomeStatus
    control_seq: int
    report_seq: int
    config: dict[str, str | int | float | bool | None] = attrs.field(hash=False)


@value(kw_only=True)
class Reject:
    """The coordinator does not admit; `text` names both values (M-5, N-29)."""

    code: int
    text: str
    retry: bool = False
    after_s: float = 0.0


@value(kw_only=True)
class Fenced:
    """What you sent is stale; this is what is current (N-6)."""

    generation: int
    incarnation: int
    cycle: int
    why: str
