"""The kit for meta-controllers (B-40 to B-43, B-16, C-13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ...cadence import CadencePhase
from ...cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict
from ...meta import Meta
from .. import Kit, Level, accepting, ensure
from .subjects import (
    GUIDE,
    Observed,
    ensure_apart,
    ensure_claims,
    ensure_factor,
    ensure_refused,
    ensure_shape,
    ensure_small,
    ensure_withstands,
    handed_over,
    meta_inputs,
    plain,
)

__all__ = ["METAS"]

METAS: Kit[Callable[[], Meta]] = Kit(
    name="metas",
    version=2,
    capabilities={
        "cliffs": "shortens the window when the learning rate falls to a tenth from one cycle to the next",
        "sustained": "shortens the window when the guard complains cycle after cycle",
    },
)
SEEN = (0, 1, 2, 5, 9)
"""Cycles that a meta-controller has seen before it is stopped, or a record is brought to it."""
MATURE = CadencePhase.MATURE
AWAKE = tuple(phase for phase in CadencePhase if phase is not CadencePhase.PROBE)
"""The phases in which there is something to answer (B-40)."""
COMPLAINTS: tuple[tuple[Verdict, ...], ...] = (
    (SuppressGrowth(),), (NudgeDown(0.5),), (SuppressGrowth(), NudgeDown(0.5)),
)  # fmt: skip


def _observed(meta: Meta, cycle: Observed) -> NudgeDown | None:
    return meta.observe(*cycle)


def _answers(meta: Meta, cycles: Iterable[Observed]) -> list[NudgeDown | None]:
    return [meta.observe(*cycle) for cycle in cycles]


def _steps(
    length: int = 24, every: int = 4, *, first: float = 1.0, phase: CadencePhase = MATURE
) -> list[Observed]:
    """A guard that is content, an anchor that rests, and a rate that falls to a tenth again and again."""
    return [(first * 10.0 ** -(cycle // every), 20, Stable(), phase) for cycle in range(length)]


def _complaints(
    length: int = 24, *, verdicts: Sequence[Verdict] = (SuppressGrowth(),), phase: CadencePhase = MATURE
) -> list[Observed]:
    """A rate and an anchor that rest, and a guard that is never content: its verdicts in turn."""
    return [(0.1, 20, verdicts[cycle % len(verdicts)], phase) for cycle in range(length)]


def _streams() -> list[list[Observed]]:
    return [_steps(), _complaints(), *(list(meta_inputs(number, 40)) for number in range(5))]


@METAS.check("P401", Level.L0, doc=f"{GUIDE}#a-meta-controller")
def a_meta_controller_is_made(make: Callable[[], Meta]) -> None:
    """The factory makes one without arguments that has all that is asked of it, and claims only what can be claimed."""
    with accepting("making one"):
        made = make()
    ensure_shape(made, Meta)
    ensure_claims(METAS, make, made)


@METAS.check("P411", Level.L1, doc=f"{GUIDE}#total")
def a_meta_controller_answers_everything(make: Callable[[], Meta]) -> None:
    """Whatever the rate, the anchor, the verdict and the phase of a cycle are, the answer is None or a nudge, and a
    nudge is by a factor from 0 to 1; what it was told stays as it was (B-43)."""
    for number in range(30):
        meta = make()
        for cycle in meta_inputs(number, 40):
            told = repr(cycle)
            with accepting(f"observe{told}"):
                answer = meta.observe(*cycle)
            ensure(repr(cycle) == told, f"it changed the {told} that it was told to {cycle}")
            ensure(answer is None or isinstance(answer, NudgeDown), f"observe gave {answer!r}, no nudge and not None")
            if answer is not None:
                ensure_factor(answer, f"after observe{told}")


@METAS.check("P412", Level.L1, doc=f"{GUIDE}#the-same-again")
def a_meta_controller_is_a_function_of_its_history(make: Callable[[], Meta]) -> None:
    """Two of one process that were told the same, one after the other, give the same answers (N-13)."""
    for cycles in _streams():
        first, second = _answers(make(), cycles), _answers(make(), cycles)
        ensure(repr(first) == repr(second), f"the same cycles were answered with {second} the second time, {first} the "
               "first")  # fmt: skip


@METAS.check("P413", Level.L1, doc=f"{GUIDE}#the-same-again")
def two_meta_controllers_share_nothing(make: Callable[[], Meta]) -> None:
    """What one is told changes no answer of another, and nothing that it saves: each call of the factory makes a new
    one, and two runs in one process have nothing in common (N-13)."""
    for cycles in _streams():
        ensure_apart(make, cycles, meta_inputs(99, len(cycles)), _observed)


@METAS.check("P414", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_meta_controller_goes_on_after_a_restart(make: Callable[[], Meta]) -> None:
    """What it saved is JSON, and the one that restores it answers from there as the first one does; a record stays as
    it was when either goes on (B-16)."""
    for cycles in _streams():
        for cut in SEEN:
            first, second = make(), make()
            _answers(first, cycles[:cut])
            ensure_kept = handed_over(first, second, "a meta-controller")
            ensure(repr(_answers(first, cycles[cut:])) == repr(_answers(second, cycles[cut:])),
                   f"restored after {cut} cycles, it answers otherwise")  # fmt: skip
            ensure_kept()


@METAS.check("P415", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_meta_controller_knows_foreign_records(make: Callable[[], Meta]) -> None:
    """A record that is not its own is refused with False, and changes nothing: neither a new one, nor what one has seen
    of a run. One of its own that is damaged is refused likewise, or the meta-controller goes on with it (B-16)."""
    records: tuple[dict[str, object], ...] = (
        {}, {"meta": "another"}, {"meta": None, "rates": [1]}, {"rates": "x"}, {"": math.nan},
    )  # fmt: skip
    for record in records:
        for seen in SEEN:
            meta, twin = make(), make()
            for each in (meta, twin):
                _answers(each, [*_steps(seen), *_complaints(seen)])
            ensure_refused(meta, record)
            after = f"the {record} that it refused after {seen} cycles left a trace"
            saved = [plain(each.saved(), "a meta-controller") for each in (meta, twin)]
            ensure(saved[0] == saved[1], f"{after} in what it saves")
            ensure(_answers(meta, _steps()) == _answers(twin, _steps()), after)
    ensure_withstands(make, _steps(8), list(meta_inputs(1, 40)), _observed, "a meta-controller")


@METAS.check("P416", Level.L1, doc=f"{GUIDE}#saved-and-restored")
def a_meta_controller_does_not_grow(make: Callable[[], Meta]) -> None:
    """Its history stays small however long the run is: it is kept in the journal."""
    meta = make()
    _answers(meta, meta_inputs(1, 3000))
    ensure_small(meta, "a meta-controller", 3000)


@METAS.check("P421", Level.L2, doc=f"{GUIDE}#a-meta-controller")
def a_run_that_rests_is_not_nudged(make: Callable[[], Meta]) -> None:
    """While the rate rests or rises, or none is known, and the guard is content, there is no nudge, in no phase (B-40,
    B-41)."""
    for phase in CadencePhase:
        for rates in ([0.1] * 60, [0.001 * (cycle + 1) for cycle in range(60)], [None] * 60):
            cycles: list[Observed] = [(rate, 20, Stable(), phase) for rate in rates]
            nudges = [answer for answer in _answers(make(), cycles) if answer is not None]
            ensure(not nudges, f"in {phase.name}, with the rates {rates[:3]} and so on, it gave {nudges[:1]}")


def _never(make: Callable[[], Meta], cycles: list[Observed], claim: str) -> None:
    nudges = [answer for answer in _answers(make(), cycles) if answer is not None]
    ensure(not nudges, f"it gave {nudges[:1]}: claim {claim}")


def _knows_no_cliff(make: Callable[[], Meta]) -> None:
    for phase in AWAKE:
        _never(make, _steps(phase=phase), "cliffs")


@METAS.check("P422", Level.L2, doc=f"{GUIDE}#claims", needs="cliffs", unclaimed=_knows_no_cliff)
def a_cliff_is_nudged(make: Callable[[], Meta]) -> None:
    """A rate that falls to a tenth, large or small, is answered with a nudge before it falls again, in every phase but
    Probe. Who does not claim it never nudges for that (B-40, B-41)."""
    for phase in AWAKE:
        for first in (1.0, 1e-5):
            answers = _answers(make(), _steps(24, 4, first=first, phase=phase))
            for cliff in range(4, 24, 4):
                nudged = any(answer is not None for answer in answers[cliff : cliff + 4])
                ensure(nudged, f"in {phase.name} a rate that began with {first} fell to a tenth in cycle {cliff}, and "
                       f"cycles {cliff} to {cliff + 3} had no nudge")  # fmt: skip


def _knows_no_complaint(make: Callable[[], Meta]) -> None:
    for phase in AWAKE:
        for verdicts in COMPLAINTS:
            _never(make, _complaints(verdicts=verdicts, phase=phase), "sustained")


@METAS.check("P423", Level.L2, doc=f"{GUIDE}#claims", needs="sustained", unclaimed=_knows_no_complaint)
def a_guard_that_goes_on_complaining_is_heard(make: Callable[[], Meta]) -> None:
    """A guard that is not content for 24 cycles, whether it suppresses growth or nudges, is answered with a nudge, in
    every phase but Probe. Who does not claim it never nudges for it (B-40, B-42)."""
    for phase in AWAKE:
        for verdicts in COMPLAINTS:
            answers = _answers(make(), _complaints(verdicts=verdicts, phase=phase))
            heard = any(answer is not None for answer in answers)
            ensure(heard, f"in {phase.name} 24 complaints in a row, {verdicts}, were never answered with a nudge")
