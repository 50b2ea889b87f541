"""What every conformance kit is made of: checks, a runner over plain functions, and a report.

A kit tells the author of a plug-in whether it keeps its contract. It ships in the wheel, beside the contract it checks:
`paceline.transports.conformance` for transports. What the kits share is here and knows neither pytest nor an event
loop nor what a plug-in is.

- A **check** is a plain function over a *subject*, with an id that never changes, a level, and the page that explains
  it. It returns when the promise holds and raises `CheckFailed` when it does not (`ensure`, `raising`).
- **Levels** show an author the way: L0 it can be found and made, L1 its contract, L2 order and load, L3 faults.
- **Capabilities** are declared and checked both ways. A claimed one is tested. One that is not claimed must fail in the
  documented way, where its check says what that way is, and is reported as not claimed in any case: nothing is skipped
  in silence.
- A call that **never comes back** ends no kit where whoever runs it has a `limit` to give: a check that does not end in
  its time has failed then, in the name of the call. The one that ships needs threads: `paceline.transports.limit`.
- The **report** has one outcome for each check, and is the same on every machine.

    kit: Kit[Codec] = Kit(name="codecs", version=1, capabilities={"lossless": "every value survives a round trip"})

    @kit.check("K201", Level.L2, doc="guides/write-a-codec.md#order", needs="lossless")
    def values_survive(subject: Codec) -> None:
        '''What is decoded is what was encoded.'''
        ensure(subject.decode(subject.encode(5)) == 5, "5 came back as something else")

    report = run_kit(kit, Codec(), target="codec", claims={"lossless": True})
"""

from __future__ import annotations

from .kit import Check, CheckFailed, Kit, Level, NotChecked, Stuck, accepting, ensure, not_ended, raising
from .report import OUTCOME_FIELDS, REPORT_FIELDS, Outcome, Report, Status
from .runner import PATIENCE_S, Limit, Run, run_check, run_kit, unlimited, will

__all__ = [
    "OUTCOME_FIELDS",
    "PATIENCE_S",
    "REPORT_FIELDS",
    "Check",
    "CheckFailed",
    "Kit",
    "Level",
    "Limit",
    "NotChecked",
    "Outcome",
    "Report",
    "Run",
    "Status",
    "Stuck",
    "accepting",
    "ensure",
    "not_ended",
    "raising",
    "run_check",
    "run_kit",
    "unlimited",
    "will",
]
