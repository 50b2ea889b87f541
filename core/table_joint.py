"""The joint table: what the run, the cycle and the peers of a coordinator mean for each other (protocol C-3).

The first half is the pass, whose order is normative. Steps 1 to 3 of C-3 take in the event and its evidence; the table
begins with step 4.

- The dead are buried first (4), because every gate of this pass has to see who is left.
- A session is renewed (5) before anybody is judged who may be waiting inside it.
- The lead limit parks (6) before a gate is asked.
- A complete cycle is finished (7) before its debtors are judged (8): a cycle whose last word has come is no stall.
- The next one is armed (9) before batches are handed out (11): a rank has drained its part of a final window only
  while the pool is empty.
- The run is judged last (12), so it sees no cycle half finished and no epoch that has ended and is still open.

Then the rows of `AGAIN` say whether there is another round. Whoever finds in the middle of an effect that a rank is
gone or the run cannot go on, only notes it (`lose`, `condemn`): that asks for a round by `urgent`, and the effect is
done before anybody acts on it.

The gates are counted and not computed each time they are asked (C-4), so a row that may change the counters counts
again. While a cycle is pending nothing reads them before step 7 but the lead limit, which counts itself. Step 11 may
change them after the gates were judged; the last row of step 12 sees to that.

The second half is what cannot wait for the pass, because the rest of the same effect depends on it.

- A rank is gone while a cycle is pending. It may hold the copy that everybody waits for, so its part in the round is
  settled first, and what it had shipped goes to limbo; then nobody waits for it; what it held besides is given back
  last. The other way round, steps that may be in the consensus would be trained twice (M-19).
- A run that does not form ends its round before anything is shut down (I10).
- For three reports the peer only knows that they are its own. If it accepts one, the cycle decides, and the answer of
  the cycle is the answer to the report.
"""

from __future__ import annotations

from .joint import AGAIN, Coupling, JointTable
from .phases import CyclePhase, RunPhase

__all__ = ["JOINT"]

_FO, _TR, _FE, _SD = RunPhase.FORMING, RunPhase.TRAINING, RunPhase.FINAL_EVAL, RunPhase.SHUTTING_DOWN
_ID, _PE = CyclePhase.IDLE, CyclePhase.PENDING
_GATED = (_FO, _TR)
"""Gates are judged: afterwards nothing is armed, and nothing is pending (I10)."""
_NOT_OVER = (*_GATED, _FE, _SD)
"""Nothing follows Finish."""

_ROUND = (
    Coupling(4, does=("membership.bury",), rule="M-17 M-18 M-42", note="reported deaths, then staleness and windows"),
    Coupling(4, run=(_TR, _FE), guards=("!condemned",), does=("membership.check_recoverable",), rule="M-21"),
    Coupling(4, run=(_TR,), cycle=(_PE,), guards=("!condemned", "lost_tail.bereft"), does=("lost_tail.take_over",),
             rule="M-45", note="who holds the version came back without a vote"),
    Coupling(4, guards=("condemned",), does=("membership.pronounce",), rule="M-21 C-18 R-18"),
    Coupling(4, run=(_FO,), does=("run.form",), rule="M-4 M-6 C-25"),
    Coupling(5, does=("sessions.judge",), rule="M-30 M-32"),
    Coupling(5, does=("joins.ask_donors",), rule="M-24 M-44"),
    Coupling(5, guards=("returned",), does=("gates.hand_back",), rule="D-7 D-16 D-22"),
    Coupling(5, does=("actions.expire",), rule="K-9 K-17"),
    Coupling(6, run=_GATED, cycle=(_ID,), does=("gates.count_gate",), rule="C-4"),
    Coupling(6, run=(_TR,), guards=("gates.limits_lead",), does=("gates.limit_lead",), rule="G-8"),
    Coupling(7, run=_GATED, cycle=(_PE,), fires="cycle.Judge", does=("gates.begin", "gates.count_gate"),
             rule="C-12 C-33 C-25", note="training begins with the finish of cycle 0"),
    Coupling(8, run=(_TR,), does=("ladder.judge",), rule="M-10 M-12 M-13 M-14"),
    Coupling(8, run=(_TR,), guards=("gates.overdue",), fires="cycle.Ceiling", rule="M-15 M-16"),
    Coupling(9, run=_GATED, cycle=(_ID,), fires="cycle.Judge", rule="G-1 C-30"),
    Coupling(10, does=("dump.dump_when_due",), rule="O-8"),
    Coupling(11, does=("desk.serve_completions", "desk.close_epochs"), rule="D-9 D-20"),
    Coupling(12, fires="run.Judge", rule="D-21 C-25 M-53"),
    Coupling(12, guards=("desk.advice_due",), does=("desk.advise",), rule="D-24"),
    Coupling(12, changed=(10, "gates.handed_out"), does=("gates.count_gate",), rule="C-4"),
)  # fmt: skip

_AGAIN = (
    Coupling(AGAIN, guards=("urgent",), rule="C-3", note="`lose`, `condemn`, or an effect that says so"),
    Coupling(AGAIN, guards=("returned",), rule="D-16", note="batches have come back"),
    Coupling(AGAIN, guards=("sessions.due",), rule="M-30"),
    Coupling(AGAIN, cycle=(_ID,), guards=("cycle.fires",), rule="G-1",
             note="step 11 or 12 satisfied the last one waited for"),
    Coupling(AGAIN, run=(_TR,), guards=("gates.limits_lead", "gates.lead_exceeded"), rule="G-8"),
)  # fmt: skip

_LAST = (Coupling(13, run=_NOT_OVER, does=("beacon", "set_deadline"), rule="N-8 C-3"),)

_AT_ONCE = (
    Coupling("SyncAck", "peer", fires="cycle.SyncAck", rule="C-6", note="the peer accepts, the cycle decides"),
    Coupling("SnapshotReady", "peer", fires="cycle.SnapshotReady", rule="C-7", note="as SyncAck"),
    Coupling("RoundFailed", "peer", fires="cycle.RoundFailed", rule="R-18", note="as SyncAck"),
    Coupling("RankAttached", "peer", fires="cycle.Back", rule="M-42"),
    Coupling("RankAhead", "peer", fires="cycle.Overtaken", rule="M-45", note="a rank knows more than the journal"),
    Coupling("CoordinatorRestarted", fires="cycle.Restarted", rule="M-43"),
    Coupling("IncarnationEnded", fires="peer.Lost", rule="M-17 M-18"),
    Coupling("RankGone", "peer", cycle=(_PE,), guards=("membership.takes_part",),
             does=("membership.leave_round", "membership.stop_waiting"), rule="M-18 M-19 C-21 M-14"),
    Coupling("RankGone", "peer", does=("membership.give_back",), rule="D-19 M-14", note="limbo before forfeit"),
    Coupling("LadderExhausted", fires="peer.Excluded", rule="M-14"),
    Coupling("ConsensusHeld", "cycle", fires="peer.Promoted", does=("membership.enrol",), rule="M-25"),
    Coupling("Formed", "cycle", fires="run.Formed", rule="M-6 C-25"),
    Coupling("SaveIssued", "cycle", fires="run.Saving", rule="C-25 M-51"),
    Coupling("Condemned", "run", run=(_FO,), does=("membership.fail_formation",), rule="M-6 M-21"),
    Coupling("Condemned", "run", run=(_TR, _FE), fires="cycle.Unrecoverable", rule="C-42 M-21"),
    Coupling("FormationOver", "run", fires="cycle.Abandoned", rule="C-25 M-6", note="before anything is shut down"),
    Coupling("FormationOver", "run", fires="run.FormationFailed", rule="C-25 M-4"),
)  # fmt: skip

JOINT = JointTable(name="joint", rows=(*_ROUND, *_AGAIN, *_LAST, *_AT_ONCE))
