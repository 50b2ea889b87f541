"""The table of the averaging cycle (protocol 4.3): when it is armed, what counts, when it ends.

A cycle is armed once and finished once (I1). Evidence counts when it is of this cycle and attempt and of a rank
that was asked; nothing else does, least of all steps or time (I2). Stalled is terminal (M-50).

Both flavours run on these rows. Where ranks average in place (C-19) an ack is the only evidence there is: it says what
was shipped too, so it has to agree with the book. A round that failed, or a member that died, cannot be repeated by
asking again: a communicator is done for when one of its members is, so the next attempt begins with the next session
(`renew`, C-38, sessions.py).

Cycle 0 brings all ranks to one state (M-6). One of them gives its own, as the only member of a round, and the others
observe. With `initial_state = "check"` there is no round and nothing is sent: all say the digest of what they have
brought, and if those are not all the same the run stops and shows who has which.

An ack says the digest of what the rank holds wherever there is one to compare with: that of the averager, or of what
the others have brought (C-18, M-6). One without it proves nothing, so it cannot count; and since who obeys the config
of its welcome says it (V-6), the session of who does not ends (N-7), rather than that all others wait for it.

A link that broke in the middle of an upload or a scatter has torn the attempt: the two ends of a lane that is gone
cannot agree on what of it arrived, and nobody needs them to, since every rank retains its copy (M-42, W-10). After a
restart the cycle that was pending goes on as attempt 0 of the new generation, once the averager can take it (M-43).

In a collective there is nothing to tear: the call is among the ranks, and an ack that found no link is said again over
the next one. After a restart the pending cycle begins anew all the same, in a new session: the ranks are between a call
that may yet end and one that has ended at some, and a repetition that is put back first is the same for all of them.
"""

from __future__ import annotations

from .engine import SAME, Kind, Row, Table
from .phases import CyclePhase

__all__ = ["CYCLE"]

_ID, _PE, _SL = CyclePhase.IDLE, CyclePhase.PENDING, CyclePhase.STALLED

_CYCLE_ROWS = (
    Row(_ID, "Judge", _PE, ("fires",), ("arm",), rule="C-30 C-31 G-1 G-10"),
    Row(_ID, "Judge", SAME, kind=Kind.IGNORE, rule="G-1"),
    Row(_PE, "Judge", SAME, ("awaits_session", "in_place"), kind=Kind.IGNORE, rule="M-43 M-31",
        note="NewSession opens it again"),
    Row(_PE, "Judge", SAME, ("can_open", "!in_place"), ("open_again",), rule="M-43 M-44"),
    Row(_PE, "Judge", _SL, ("gate_complete", "states_differ"), ("refuse_states",), rule="M-6",
        note="there is no round that could be aborted"),
    Row(_PE, "Judge", SAME, ("gate_complete", "digest_split"), ("settle_digests",), rule="C-18"),
    Row(_PE, "Judge", _ID, ("gate_complete",), ("finish",), rule="C-33 C-12"),
    Row(_PE, "Judge", SAME, kind=Kind.IGNORE, rule="C-12"),
    Row(_PE, "SyncAck", SAME, ("!round_current",), kind=Kind.FENCED, rule="C-35"),
    Row(_PE, "SyncAck", SAME, ("!owes_ack",), kind=Kind.FENCED, rule="C-6", note="counts once, of a participant"),
    Row(_PE, "SyncAck", SAME, ("in_place", "!came_out"), kind=Kind.REFUSED, rule="C-6", note="no call came before it"),
    Row(_PE, "SyncAck", SAME, ("in_place", "!books_agree"), ("books_differ",), kind=Kind.VIOLATION, rule="C-6 W-14",
        note="books differ"),
    Row(_PE, "SyncAck", SAME, ("!in_place", "!founded"), kind=Kind.VIOLATION, rule="N-3 R-2",
        note="before there is a consensus"),
    Row(_PE, "SyncAck", SAME, ("lacks_digest",), kind=Kind.VIOLATION, rule="C-18 M-6",
        note="without the digest of what it holds"),
    Row(_PE, "SyncAck", SAME, ("lacks_state",), kind=Kind.IGNORE, rule="M-25", note="the static part is on its way"),
    Row(_PE, "SyncAck", SAME, (), ("record_ack",), rule="C-32 C-6"),
    Row(_ID, "SyncAck", SAME, kind=Kind.FENCED, rule="C-43"),
    Row(_PE, "SnapshotReady", SAME, ("in_place",), kind=Kind.VIOLATION, rule="C-19", note="nobody asks for a copy"),
    Row(_PE, "SnapshotReady", SAME, ("!round_current",), kind=Kind.FENCED, rule="C-35"),
    Row(_PE, "SnapshotReady", SAME, ("!asked",), kind=Kind.FENCED, rule="C-7", note="it was not asked"),
    Row(_PE, "SnapshotReady", SAME, ("already_shipped",), kind=Kind.IGNORE, rule="C-7", note="a repeat is no evidence"),
    Row(_PE, "SnapshotReady", SAME, ("!shipped_plausible",), ("books_differ",), kind=Kind.VIOLATION, rule="C-7",
        note="books differ"),
    Row(_PE, "SnapshotReady", SAME, (), ("admit_contribution",), rule="C-34 C-7"),
    Row(_ID, "SnapshotReady", SAME, kind=Kind.FENCED, rule="C-43"),
    Row(_PE, "RoundReduced", SAME, ("round_current",), ("record_reduced",), rule="R-2"),
    Row((_ID, _PE), "RoundReduced", SAME, kind=Kind.FENCED, rule="R-1"),
    Row(_PE, "RoundProgress", SAME, ("key_current",), ("record_progress",), rule="R-11 M-15"),
    Row((_ID, _PE), "RoundProgress", SAME, kind=Kind.FENCED, rule="R-1"),
    Row(_PE, "RoundAborted", SAME, ("!round_current",), kind=Kind.FENCED, rule="R-1"),
    Row(_PE, "RoundAborted", _SL, ("attempts_used_up",), ("abort", "stall"), rule="R-18"),
    Row(_PE, "RoundAborted", SAME, ("in_place",), ("renew",), rule="C-38 R-18"),
    Row(_PE, "RoundAborted", SAME, (), ("try_again",), rule="C-39 R-18"),
    Row(_ID, "RoundAborted", SAME, kind=Kind.FENCED, rule="R-1"),
    Row((_ID, _PE), "RoundFailed", SAME, ("!retryable",), ("expel",), rule="R-18"),
    Row(_PE, "RoundFailed", SAME, ("!round_current",), kind=Kind.FENCED, rule="R-1"),
    Row(_PE, "RoundFailed", _SL, ("attempts_used_up",), ("abort", "stall"), rule="R-18"),
    Row(_PE, "RoundFailed", SAME, ("in_place",), ("renew",), rule="C-38 R-18"),
    Row(_PE, "RoundFailed", SAME, (), ("try_again",), rule="C-39 R-18"),
    Row(_ID, "RoundFailed", SAME, kind=Kind.FENCED, rule="R-1"),
    Row(_PE, "Back", SAME, ("in_place",), kind=Kind.IGNORE, rule="M-42 R-13",
        note="a call runs over no link of the coordinator"),
    Row(_PE, "Back", SAME, ("!torn",), kind=Kind.IGNORE, rule="M-42", note="its part is done, or not begun"),
    Row(_PE, "Back", _SL, ("attempts_used_up",), ("abort", "stall"), rule="R-18"),
    Row(_PE, "Back", SAME, (), ("try_again",), rule="M-42 R-18"),
    Row(_ID, "Back", SAME, kind=Kind.IGNORE, rule="M-42"),
    Row(_PE, "Restarted", SAME, ("in_place",), ("leave_call",), rule="M-43 C-38"),
    Row(_PE, "Restarted", SAME, (), ("put_off",), rule="M-43"),
    Row(_ID, "Restarted", SAME, kind=Kind.IGNORE, rule="M-43"),
    Row(_PE, "Overtaken", _ID, (), ("abort",), rule="M-45", note="its average has happened, and is not in the books"),
    Row(_ID, "Overtaken", SAME, kind=Kind.IGNORE, rule="M-45"),
    Row(_PE, "Ceiling", SAME, ("only_joiners_owe",), ("end_joiners",), rule="M-26",
        note="their life ends, not the run"),
    Row(_PE, "Ceiling", _SL, (), ("abort", "stall"), rule="C-41 M-15"),
    Row(_ID, "Ceiling", _SL, (), ("stall",), rule="C-45 M-16"),
    Row(_PE, "Abandoned", _SL, (), ("abort",), rule="C-25 M-6", note="the run did not form"),
    Row(_ID, "Abandoned", SAME, kind=Kind.IGNORE, rule="C-25 M-6"),
    Row(_PE, "Unrecoverable", _SL, (), ("abort", "give_up"), rule="C-42 M-21"),
    Row(_ID, "Unrecoverable", SAME, (), ("give_up",), rule="C-46 M-21"),
    *(
        Row(_SL, name, SAME, kind=Kind.IGNORE, rule="C-44", note="terminal")
        for name in ("Judge", "SyncAck", "SnapshotReady", "RoundReduced", "RoundProgress", "RoundAborted",
                     "RoundFailed", "Back", "Restarted", "Overtaken", "Ceiling", "Unrecoverable", "Abandoned")
    ),
)  # fmt: skip

CYCLE = Table(
    name="cycle", phases=CyclePhase, initial=_ID,
    events=("Judge", "SyncAck", "SnapshotReady", "RoundReduced", "RoundProgress", "RoundAborted", "RoundFailed",
            "Back", "Restarted", "Overtaken", "Ceiling", "Unrecoverable", "Abandoned"),
    rows=_CYCLE_ROWS, final=(_SL,),
)  # fmt: skip
