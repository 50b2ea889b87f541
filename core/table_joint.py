"""The joint table: what the run, the cycle and the peers of a coordinator mean for each other (protocol C-3).

It has two halves. The first is the pass, in the order of C-3, which is normative. Events and their evidence come before
it (steps 1 to 3). Then the dead are buried, because every gate of this pass has to see who is left (4); a session is
renewed before anybody is judged who might wait inside it (5); the lead limit parks before gates are asked (6); a cycle
that is complete is finished before its debtors are judged (7, 8), or one that sent its last word in time would be
called a stall; what is armed comes next (9), before batches are handed out (11), because a rank that has drained its
part of a final window is done only as long as the pool is empty. The run is judged last (12): so it never sees a cycle
half finished, nor an epoch that has ended and is not closed. Then it begins again, until nothing asks for more.

What is written as `lose` or `condemn` in the machines is such a case: it says that somebody is gone or the run cannot
go on, in the middle of an effect, and is acted on in the next round, never there. Both ask for that round by `urgent`.

The gates are counted, not asked for each time (C-4). What may change the counters is followed by counting, in the row
that changes them. While a cycle is pending nothing reads them before it has been judged, but for the lead limit. What
is handed out or closed after the gates were judged may change them too, and the last row of the round sees to that.

The second half is what cannot wait for the pass, since what follows it in the same effect depends on it. A rank that is
gone while a cycle is pending is the chief of these: it may hold the copy that everybody waits for. Its part in the
round is decided first and what it had shipped goes to limbo, then nobody waits for it any longer, and at the end what
it held besides is given back. Were that done before, steps that may be in the consensus would be trained twice (M-19).
A run that does not form ends its round before it shuts anything down (I10). An accepted report of which the peer knows
only that it is its own goes on to the cycle, whose answer then is the answer to the report.
"""

from __future__ import annotations

from .joint import AGAIN, Coupling, JointTable
from .phases import CyclePhase, RunPhase

__all__ = ["JOINT"]

_FO, _TR, _FE, _SD = RunPhase.FORMING, RunPhase.TRAINING, RunPhase.FINAL_EVAL, RunPhase.SHUTTING_DOWN
_ID, _PE, _SL = CyclePhase.IDLE, CyclePhase.PENDING, CyclePhase.STALLED
_EARLY = (_FO, _TR)
"""In these gates are judged: afterwards nothing is armed, and nothing is pending (I10)."""

_ROUND = (
    Coupling(4, does=("membership.bury",), rule="M-17 M-18 M-42", note="reported ones, then staleness and windows"),
    Coupling(4, run=(_TR, _FE), guards=("!condemned", "!ending"), does=("membership.check_recoverable",), rule="M-21"),
    Coupling(4, guards=("condemned",), does=("membership.pronounce",), rule="M-21 C-18 R-18"),
    Coupling(4, run=(_FO,), does=("run.form",), rule="M-4 M-6 C-25"),
    Coupling(5, does=("sessions.judge",), rule="M-30 M-32"),
    Coupling(5, does=("joins.ask_donors",), rule="M-24 M-44"),
    Coupling(5, guards=("returned",), does=("gates.hand_back",), rule="D-7 D-16 D-22"),
    Coupling(5, does=("actions.expire",), rule="K-9 K-17"),
    Coupling(6, run=_EARLY, cycle=(_ID, _SL), does=("gates.count_gate",), rule="C-4"),
    Coupling(6, run=_EARLY, cycle=(_PE,), guards=("gates.limits_lead",), does=("gates.count_gate",), rule="C-4 G-8"),
    Coupling(6, run=(_TR,), guards=("gates.limits_lead",), does=("gates.limit_lead",), rule="G-8"),
    Coupling(7, run=_EARLY, cycle=(_PE,), fires="cycle.Judge", does=("gates.begin", "gates.count_gate"),
             rule="C-12 C-33 C-25", note="training begins with the finish of cycle 0"),
    Coupling(8, run=(_TR,), does=("ladder.judge",), rule="M-10 M-12 M-13 M-14"),
    Coupling(8, run=(_TR,), guards=("gates.overdue",), fires="cycle.Ceiling", rule="M-15 M-16"),
    Coupling(9, run=_EARLY, cycle=(_ID,), fires="cycle.Judge", rule="G-1 C-30"),
    Coupling(10, does=("dump.dump_when_due",), rule="O-8"),
    Coupling(11, does=("desk.serve_completions", "desk.close_epochs"), rule="D-9 D-20"),
    Coupling(12, fires="run.Judge", rule="D-21 C-25 M-53"),
    Coupling(12, guards=("desk.advice_due",), does=("desk.advise",), rule="D-24"),
    Coupling(12, changed=(10, "gates.handed_out"), does=("gates.count_gate",), rule="C-4"),
)  # fmt: skip

_AGAIN = (
    Coupling(AGAIN, guards=("urgent",), rule="C-3", note="somebody is gone, the run is condemned, or a row says so"),
    Coupling(AGAIN, guards=("returned",), rule="D-16", note="batches came back"),
    Coupling(AGAIN, guards=("sessions.due",), rule="M-30"),
    Coupling(AGAIN, cycle=(_ID,), guards=("cycle.fires",), rule="G-1",
             note="what was handed out or closed satisfied the last one"),
    Coupling(AGAIN, run=(_TR,), guards=("gates.limits_lead", "gates.lead_exceeded"), rule="G-8"),
)  # fmt: skip

_LAST = (
    Coupling(13, run=(*_EARLY, _FE, _SD), does=("beacon",), rule="N-8", note="nothing follows Finish"),
    Coupling(13, run=(*_EARLY, _FE, _SD), does=("set_deadline",), rule="C-3"),
)

_AT_ONCE = (
    Coupling("SyncAck", "peer", fires="cycle.SyncAck", rule="C-6", note="the peer accepts, the cycle decides"),
    Coupling("SnapshotReady", "peer", fires="cycle.SnapshotReady", rule="C-7", note="the same"),
    Coupling("RoundFailed", "peer", fires="cycle.RoundFailed", rule="R-18", note="the same"),
    Coupling("Attached", "peer", fires="cycle.Back", rule="M-42"),
    Coupling("Ahead", "peer", fires="cycle.Overtaken", rule="M-45", note="a rank knows more than the journal"),
    Coupling("Anew", fires="cycle.Restarted", rule="M-43", note="the coordinator was started anew"),
    Coupling("Ended", fires="peer.Lost", rule="M-17 M-18"),
    Coupling("Gone", "peer", cycle=(_PE,), guards=("membership.takes_part",), does=("membership.leave_round",),
             rule="M-18 M-19", note="a rank is gone and the cycle is pending"),
    Coupling("Gone", "peer", cycle=(_PE,), guards=("membership.takes_part",), does=("membership.awaited_no_more",),
             rule="C-21 M-14", note="the same"),
    Coupling("Gone", "peer", does=("membership.give_back",), rule="D-19 M-14", note="limbo comes before the forfeit"),
    Coupling("Exceeded", fires="peer.Excluded", rule="M-14", note="the ladder is at its end"),
    Coupling("Holds", "cycle", fires="peer.Promoted", does=("membership.enrol",), rule="M-25"),
    Coupling("Formed", "cycle", fires="run.Formed", rule="M-6 C-25"),
    Coupling("Saved", "cycle", fires="run.Saving", rule="C-25 M-51"),
    Coupling("Condemned", "run", run=(_FO,), does=("membership.unformed",), rule="M-6 M-21"),
    Coupling("Condemned", "run", run=(_TR, _FE), guards=("!ending",), fires="cycle.Unrecoverable", rule="C-42 M-21"),
    Coupling("Unformed", "run", fires="cycle.Abandoned", rule="C-25 M-6", note="nothing is shut down in a round (I10)"),
    Coupling("Unformed", "run", fires="run.FormationFailed", rule="C-25 M-4"),
)  # fmt: skip

JOINT = JointTable(name="joint", rows=(*_ROUND, *_AGAIN, *_LAST, *_AT_ONCE))
