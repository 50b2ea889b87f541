"""The table of a run (protocol C-25): forming, training, the final evaluation, shutting down, stopped.

A run forms once, trains, shuts down once and is over. `Judge` is the last step of the pass: it asks whether the work
is done, so it never sees a cycle half finished. Saving and shutting down are decisions taken once per run: whatever
asks for one a second time is ignored in writing (M-50, I9). From ShuttingDown nothing leads back; who does not go in
time is cut off, because a run must end even if a rank never will (I38).

The table of the protocol leads from Forming straight to Stopped when a formation fails. Here that is so only if nobody
is there. Whoever is there is told by `Shutdown`, and waited for as at every other end (M-53), in ShuttingDown: until
all have gone, or `exit_grace_s`. `Finish` ends the coordinator's process and its links. A rank that had not read its
`Shutdown` by then would take that for a coordinator that died: it would look for it for `reconnect_window_s`, and save
as its last state a model that was never trained (W-21). Meanwhile who knocks is told `closing`, as the row says.
"""

from __future__ import annotations

from .engine import SAME, Kind, Row, Table
from .phases import RunPhase

__all__ = ["RUN"]

_FO, _TR, _FE = RunPhase.FORMING, RunPhase.TRAINING, RunPhase.FINAL_EVAL
_SD, _ST = RunPhase.SHUTTING_DOWN, RunPhase.STOPPED

_RUN_ROWS = (
    Row(_FO, "Formed", _TR, (), ("start_training",), rule="C-25 M-6"),
    Row(_FO, "FormationFailed", _SD, ("anyone_alive",), ("dismiss",), rule="C-25 M-4 M-6 M-53",
        note="exits are awaited before Finish"),
    Row(_FO, "FormationFailed", _ST, (), ("finish_run",), rule="C-25 M-4"),
    Row(_FO, "Saving", SAME, kind=Kind.IGNORE, rule="M-21", note="before training formation decides"),
    Row(_FO, "Judge", SAME, kind=Kind.IGNORE, rule="M-4"),
    Row(_TR, "Judge", _FE, ("work_done", "can_evaluate"), ("begin_final",), rule="C-25 K-17"),
    Row(_TR, "Judge", _SD, ("work_done",), ("shut_down",), rule="C-25 D-21 M-53"),
    Row(_TR, "Judge", SAME, (), ("advance",), rule="D-21"),
    Row(_FE, "Judge", SAME, ("final_open",), kind=Kind.IGNORE, rule="C-25 K-17", note="its result is awaited"),
    Row(_FE, "Judge", _SD, (), ("shut_down",), rule="C-25 K-17 M-53"),
    Row((_TR, _FE), "Saving", _SD, (), ("shut_down_saving",), rule="C-25 M-51"),
    Row((_TR, _FE, _SD, _ST), "Formed", SAME, kind=Kind.IGNORE, rule="C-25"),
    Row((_TR, _FE, _SD, _ST), "FormationFailed", SAME, kind=Kind.IGNORE, rule="C-25"),
    Row(_SD, "Judge", _ST, ("everyone_gone",), ("finish_run",), rule="M-53"),
    Row(_SD, "Judge", _ST, ("grace_over",), ("cut_off", "finish_run"), rule="M-53"),
    Row(_SD, "Judge", SAME, ("save_settled",), ("send_shutdown",), rule="M-52"),
    Row(_SD, "Judge", SAME, kind=Kind.IGNORE, rule="M-53"),
    Row((_SD, _ST), "Saving", SAME, kind=Kind.IGNORE, rule="M-50", note="one decision per run"),
    Row(_ST, "Judge", SAME, kind=Kind.IGNORE, rule="M-53"),
)

RUN = Table(
    name="run", phases=RunPhase, initial=_FO, events=("Formed", "FormationFailed", "Judge", "Saving"),
    rows=_RUN_ROWS, final=(_ST,),
)  # fmt: skip
