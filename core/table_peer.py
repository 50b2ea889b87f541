"""The table of a peer (protocol 11.1): is what an incarnation says evidence at all?

One incarnation at the coordinator. An incarnation ends once: an exited one is never declared dead, a late Exiting
of a dead one is fenced (M-1, I19). What a joining rank can send is only what a cycle asks of it. A rank that has
left or died is heard no more: whatever it still says is fenced.

A link is not a life. `LinkLost` and `SendFailed` are about a connection: of one that was replaced since they say
nothing, of a rank that is detached already nothing new. Only where the run gives no grace is a lost link a death, and a
failed send undone (M-17, N-10). A `Claim` is a Hello that wants to go on with a life: it is taken up if both lanes are
whole, else a new life begins and the door decides (M-42).

A lagging rank was excluded after a stall (M-14). It holds no plan, so each of its steps is void, but shows that its
training thread is back. What it does in a cycle it does as an observer.
"""

from __future__ import annotations

from .engine import SAME, Kind, Row, Table
from .phases import PeerPhase

__all__ = ["PEER"]

_JO, _VO, _LA = PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING
_EX, _DE = PeerPhase.EXITED, PeerPhase.DEAD
_ALIVE, _GONE = (_JO, _VO, _LA), (_EX, _DE)

_PEER_REPORTS = (
    "Batch", "SyncAck", "SnapshotReady", "Metrics", "LrUpdate", "Heartbeat", "Exiting", "Intent", "CheckpointResult",
    "EvalResult", "EpochFnElapsed", "SessionIdGenerated", "ResourceSample", "RoundFailed",
)  # fmt: skip

_PEER_ROWS = (
    Row(_GONE, "Batch", SAME, kind=Kind.FENCED, rule="N-6 M-1"),
    Row(_JO, "Batch", SAME, kind=Kind.VIOLATION, rule="C-8", note="a step before the first consensus"),
    Row((_VO, _LA), "Batch", SAME, ("!step_rises",), kind=Kind.REFUSED, rule="C-8"),
    Row(_LA, "Batch", SAME, (), ("drop_batch",), rule="C-8 M-14", note="void: it holds no plan"),
    Row(_VO, "Batch", SAME, ("void", "!plan_at_head"), ("drop_batch",), rule="C-8",
        note="void, its plan returned before"),
    Row(_VO, "Batch", SAME, ("!plan_at_head",), kind=Kind.VIOLATION, rule="D-12", note="not the plan at the head"),
    Row(_VO, "Batch", SAME, ("!samples_fit",), kind=Kind.REFUSED, rule="D-11"),
    Row(_VO, "Batch", SAME, ("void",), ("void_batch",), rule="C-8"),
    Row(_VO, "Batch", SAME, (), ("count_batch",), rule="C-8 C-20 C-36"),
    Row(_VO, "Metrics", SAME, ("!holds_plans",), kind=Kind.FENCED, rule="D-9", note="plans this rank does not hold"),
    Row(_VO, "Metrics", SAME, (), ("complete_plans",), rule="D-9"),
    Row((_JO, _LA), "Metrics", SAME, kind=Kind.FENCED, rule="D-9"),
    Row(_ALIVE, "SyncAck", SAME, (), (), rule="C-6", note="goes on to the cycle"),
    Row(_ALIVE, "SnapshotReady", SAME, (), (), rule="C-7", note="goes on to the cycle"),
    Row(_ALIVE, "RoundFailed", SAME, (), (), rule="R-18", note="goes on to the cycle"),
    Row(_ALIVE, "LrUpdate", SAME, (), ("note_rate",), rule="B-43"),
    Row(_ALIVE, "Heartbeat", SAME, (), (), rule="M-2", note="liveness was stamped before the table is asked"),
    Row(_ALIVE, "Exiting", _EX, (), ("depart",), rule="M-8"),
    Row(_ALIVE, "Intent", SAME, ("intent_repeated",), kind=Kind.IGNORE, rule="K-1", note="once per id"),
    Row(_ALIVE, "Intent", SAME, (), ("note_intent",), rule="K-1 M-54"),
    Row(_ALIVE, "CheckpointResult", SAME, ("owes_checkpoint",), ("note_checkpoint",), rule="K-9"),
    Row(_ALIVE, "CheckpointResult", SAME, ("saves",), ("note_saved",), rule="M-52"),
    Row(_ALIVE, "CheckpointResult", SAME, kind=Kind.REFUSED, rule="K-9 K-17", note="not asked for, or too late"),
    Row(_ALIVE, "EvalResult", SAME, ("owes_evaluation",), ("note_evaluation",), rule="K-16"),
    Row(_ALIVE, "EvalResult", SAME, kind=Kind.REFUSED, rule="K-16 K-17", note="without the role, or too late"),
    Row(_ALIVE, "EpochFnElapsed", SAME, (), ("exclude_callback",), rule="K-18"),
    Row(_ALIVE, "SessionIdGenerated", SAME, ("makes_session",), ("note_session",), rule="M-31"),
    Row(_ALIVE, "SessionIdGenerated", SAME, kind=Kind.REFUSED, rule="M-31", note="it was not asked, or is too late"),
    Row(_ALIVE, "ResourceSample", SAME, (), ("forward_sample",), rule="O-5"),
    Row(_ALIVE, "LinkLost", SAME, ("other_link",), kind=Kind.FENCED, rule="M-42 N-6", note="it has a newer link"),
    Row(_ALIVE, "LinkLost", SAME, ("is_detached",), kind=Kind.IGNORE, rule="M-42"),
    Row(_ALIVE, "LinkLost", SAME, ("keeps_seat",), ("detach",), rule="M-17 M-42"),
    Row(_ALIVE, "LinkLost", SAME, (), ("lose_link",), rule="M-17"),
    Row(_ALIVE, "SendFailed", SAME, ("other_link",), kind=Kind.FENCED, rule="M-42 N-6", note="it has a newer link"),
    Row(_ALIVE, "SendFailed", SAME, ("is_detached",), kind=Kind.IGNORE, rule="N-10", note="it is kept, not lost"),
    Row(_ALIVE, "SendFailed", SAME, ("keeps_seat",), ("detach",), rule="N-10 M-42"),
    Row(_ALIVE, "SendFailed", SAME, (), ("undo_send",), rule="N-10 C-14"),
    Row(_ALIVE, "Claim", SAME, ("claim_fits",), ("reattach",), rule="M-42"),
    Row((*_ALIVE, *_GONE), "Claim", SAME, kind=Kind.REFUSED, rule="M-42", note="a new life, if the door lets it in"),
    *(Row(_GONE, name, SAME, kind=Kind.IGNORE, rule="M-1 M-17") for name in ("LinkLost", "SendFailed")),
    Row(_ALIVE, "Lost", _DE, (), ("die",), rule="M-17 M-18"),
    Row((_JO, _LA), "Promoted", _VO, (), ("promote",), rule="M-25 M-14"),
    Row(_VO, "Promoted", SAME, kind=Kind.IGNORE, rule="M-25"),
    Row(_VO, "Excluded", _LA, (), ("fall_behind",), rule="M-14"),
    Row((_JO, _LA), "Excluded", SAME, kind=Kind.IGNORE, rule="M-14", note="no gate waits for its steps"),
    *(Row(_GONE, name, SAME, kind=Kind.FENCED, rule="N-6 M-1") for name in _PEER_REPORTS if name != "Batch"),
    Row(_GONE, "Lost", SAME, kind=Kind.IGNORE, rule="M-1 M-17"),
    Row(_GONE, "Promoted", SAME, kind=Kind.IGNORE, rule="M-25"),
    Row(_GONE, "Excluded", SAME, kind=Kind.IGNORE, rule="M-14 M-1"),
)

PEER = Table(
    name="peer", phases=PeerPhase, initial=_JO,
    events=(*_PEER_REPORTS, "LinkLost", "SendFailed", "Claim", "Lost", "Promoted", "Excluded"),
    rows=_PEER_ROWS, final=(_EX, _DE),
)  # fmt: skip
