"""What the policy kits share: how policies are made, and streams of inputs, wild and tame.

The streams are functions of a number and the same everywhere. Wild ones hold what no measurement can be: no number,
infinities, zeros, negative and huge values, ranks that are missing; a policy meets those when a rank is broken.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from ...cadence import CadencePhase
from ...cadence_inputs import NudgeDown, Stable, SuppressGrowth, Verdict, WindowReport
from ...guard import GuardInput
from ...named import lacking
from ...policies import Cadence, CadenceFactory
from ...policy_choice import tried
from ...simulation.dice import Dice
from .. import Kit, accepting, ensure

__all__ = ["GUIDE", "RANKS", "SMALL", "WILD", "Observed", "cadence", "ensure_apart", "ensure_claims",
           "ensure_factor", "ensure_refused", "ensure_shape", "ensure_small", "ensure_withstands", "guard_inputs",
           "handed_over", "is_number", "meta_inputs", "plain", "reports", "runaway", "stated_claims", "turned",
           "verdicts", "window"]  # fmt: skip

GUIDE = "guides/write-a-policy.md"
RANKS = (0, 1, 2, 5)
"""The seats of most checks: four, with a gap."""
SMALL = 20_000
"""Characters of JSON that a history may have: it is kept beside every checkpoint."""
Observed = tuple[float | None, int, Verdict, CadencePhase]
"""What a meta-controller gets of a cycle: rate, anchor, verdict, phase."""
WRONG: tuple[object, ...] = (None, "x", -1, math.nan, [None], {})
"""What no number and no list of numbers is, or no sensible one."""
WILD = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e-308, 1e308, 1.0, 40.0, 100.0)


def cadence(make: CadenceFactory, **knobs: Any) -> Cadence:
    """A balancer for `RANKS` with an anchor of 10, as a coordinator makes one; `knobs` replace what it is given."""
    return tried(make, **{"ranks": list(RANKS), **knobs})


def stated_claims(make: Callable[..., Any], made: object) -> tuple[str, ...]:
    """What a policy says that it can do: `claims` of its factory, or of what was made. `CheckFailed` if that is no
    tuple of names."""
    claims = getattr(made if isinstance(make, type) or not hasattr(make, "claims") else make, "claims", ())
    named = isinstance(claims, tuple | list) and all(isinstance(each, str) for each in claims)
    ensure(named, f"claims = {claims!r} is no tuple of names of capabilities, such as ('nudges',)")
    return tuple(claims)


def ensure_shape(made: object, kind: type) -> None:
    """What was made has everything that its protocol names."""
    missing, due = lacking(made, kind), lacking(object(), kind)
    ensure(not missing, f"{type(made).__name__} has no {', '.join(missing)}; a {kind.__name__} has {', '.join(due)}")


def ensure_claims(kit: Kit[Any], make: Callable[..., Any], made: object) -> None:
    """Every name that a policy claims is a capability of its kit: a claim that nobody knows would never be tested."""
    for claim in stated_claims(make, made):
        known = ", ".join(kit.capabilities)
        ensure(claim in kit.capabilities, f"it claims {claim!r}, which nobody knows; what can be claimed is {known}")


def ensure_small(made: Any, what: str, cycles: int) -> None:
    """What a policy saves after so many cycles is small enough to be kept beside every checkpoint."""
    size = len(json.dumps(plain(made.saved(), what)))
    ensure(size <= SMALL, f"after {cycles} cycles its history has {size} characters, {SMALL} are allowed")


def is_number(thing: object) -> bool:
    """Whether it is a whole number or a fraction that is finite; True is none."""
    return isinstance(thing, int | float) and not isinstance(thing, bool) and math.isfinite(thing)


def ensure_factor(nudge: NudgeDown, what: str) -> None:
    """A nudge is by a number above 0, and at most 1: a window never grows by one. `what` is what was answered so."""
    usable = is_number(nudge.factor) and 0 < nudge.factor <= 1
    ensure(usable, f"{what} it nudges by {nudge.factor!r}, a number above 0 and up to 1 is due")


def ensure_refused(made: Any, record: Mapping[str, Any]) -> None:
    """A record that is not its own is refused with False (B-16)."""
    with accepting(f"restore({record})"):
        taken = made.restore(record)
    ensure(taken is False, f"it took {record} for its own")


def _damaged(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A record of which something is missing, or is what it cannot be."""
    for name in record:
        yield {each: kept for each, kept in record.items() if each != name}
        for wrong in WRONG:
            yield {**record, name: wrong}


def ensure_withstands(
    make: Callable[[], Any], cycles: Sequence[Any], wild: Sequence[Any], told: Callable[[Any, Any], object], what: str
) -> None:
    """A record of its own that is damaged, made after `cycles`, is refused and changes nothing, or leaves it able to go
    on, be it new or have it seen them: `wild` ones follow; `told` tells it one (B-16)."""
    first = make()
    for cycle in cycles:
        told(first, cycle)
    damages = list(_damaged(plain(first.saved(), what)))
    for record, seen in itertools.product(damages, (cycles[:0], cycles)):
        made = make()
        for cycle in seen:
            told(made, cycle)
        before = repr(made.saved())
        with accepting(f"restore({record}), damaged,"):
            taken = made.restore(record)
        ensure(isinstance(taken, bool), f"restore({record}) gave {taken!r}, no truth value")
        ensure(taken or repr(made.saved()) == before, f"the damaged {record} that it refused left a trace")
        with accepting(f"going on after restore({record}) gave {taken}"):
            for cycle in wild:
                told(made, cycle)
        plain(made.saved(), what)


def handed_over(first: Any, second: Any, what: str) -> Callable[[], None]:
    """Bring what the first one saves to the second one, by way of JSON. The function that it gives is for later:
    neither record has changed since, whatever the two have seen (B-16)."""
    given = first.saved()
    brought = plain(given, what)
    ensure(second.restore(brought) is True, "it does not restore what it saved itself")
    texts = repr(given), repr(brought)

    def ensure_kept() -> None:
        ensure(repr(given) == texts[0], f"what it had saved was {texts[0]}, and is {given} some cycles later: give a "
               "copy")  # fmt: skip
        ensure(repr(brought) == texts[1], f"what it had restored was {texts[1]}, and is {brought} some cycles later: "
               "take a copy")  # fmt: skip

    return ensure_kept


def ensure_apart(
    make: Callable[[], Any], cycles: Sequence[Any], strange: Iterable[Any], told: Callable[[Any, Any], object]
) -> None:
    """What one policy is told, `strange` cycles, changes no answer of another, and nothing that it saves (N-13)."""
    alone = make()
    due = [told(alone, cycle) for cycle in cycles], repr(alone.saved())
    mine, other = make(), make()
    found = []
    for cycle, foreign in zip(cycles, strange, strict=True):
        told(other, foreign)
        found.append(told(mine, cycle))
    ensure(repr(found) == repr(due[0]), f"beside another one it answered {found}, alone {due[0]}")
    ensure(repr(mine.saved()) == due[1], f"beside another one it saves {mine.saved()}, alone {due[1]}")


def turned(told: Any) -> Any:
    """The same numbers, with the ranks of each mapping in the opposite order."""
    mappings = {each.name: dict(reversed(list(getattr(told, each.name).items()))) for each in attrs.fields(type(told))
                if isinstance(getattr(told, each.name), Mapping)}  # fmt: skip
    return attrs.evolve(told, **mappings)


def window(costs: Mapping[int, float], counts: Mapping[int, int], *, reduce_ms: float = 50.0) -> WindowReport:
    """What a window looked like in which each rank took its count of steps at its cost in milliseconds."""
    wall = {rank: costs[rank] * counts.get(rank, 1) for rank in costs}
    return WindowReport(
        wall_ms=wall, wall_batches={rank: counts.get(rank, 1) for rank in costs}, delivered_ms={},
        delivered_batches={}, fill_ms={}, reduce_ms=reduce_ms, capable=False,
    )  # fmt: skip


def reports(number: int, length: int) -> Iterator[tuple[WindowReport, tuple[int, ...]]]:
    """Wild window reports and their voters."""
    dice = Dice(number)
    for _ in range(length):
        voters = tuple(rank for rank in RANKS if dice.chance(0.8)) or RANKS[:1]
        known = [rank for rank in voters if dice.chance(0.8)]
        yield WindowReport(
            wall_ms={rank: dice.pick(WILD) for rank in known},
            wall_batches={rank: dice.pick((0, 1, 7, 1 << 40)) for rank in known},
            delivered_ms={rank: dice.pick(WILD) for rank in known if dice.chance(0.7)},
            delivered_batches={rank: dice.pick((0, 1, 7)) for rank in known if dice.chance(0.7)},
            fill_ms={rank: dice.pick(WILD) for rank in known if dice.chance(0.5)},
            reduce_ms=dice.pick(WILD), capable=dice.chance(0.5),
        ), voters  # fmt: skip


def verdicts(number: int, length: int) -> Iterator[Verdict]:
    """Verdicts of any kind, factors that are none among them."""
    dice = Dice(number)
    for _ in range(length):
        kind = dice.below(4)
        if kind == 0:
            yield NudgeDown(dice.pick((0.5, 0.1, 0.0, -1.0, 2.0, math.nan, math.inf)))
        elif kind == 1:
            yield SuppressGrowth()
        else:
            yield Stable(dice.chance(0.3))


def guard_inputs(number: int, length: int) -> Iterator[GuardInput]:
    """Wild cycles."""
    dice = Dice(number)
    for _ in range(length):
        ranks = [rank for rank in RANKS if dice.chance(0.8)]
        norms = {rank: dice.pick(WILD) for rank in ranks} if dice.chance(0.5) else None
        yield GuardInput(
            divergences={rank: dice.pick(WILD) if dice.chance(0.3) else dice.unit() for rank in ranks},
            k_used=dice.pick((0, 1, 40, 1 << 60)), k_max=dice.pick((0, 1, 10, 1 << 60)), pre_norms=norms,
            post_norm=dice.pick(WILD) if norms is not None else None,
        )  # fmt: skip


def meta_inputs(number: int, length: int) -> Iterator[Observed]:
    """Wild cycles, as a meta-controller sees them."""
    dice = Dice(number)
    for verdict in verdicts(number, length):
        rate = dice.pick(WILD) if dice.chance(0.5) else dice.unit()
        yield (None if dice.chance(0.1) else rate, dice.pick((1, 2, 20, 200, 1 << 60)), verdict,
               dice.pick(tuple(CadencePhase)))  # fmt: skip


def runaway(length: int, ranks: Sequence[int] = RANKS) -> Iterator[GuardInput]:
    """A cohort that flies apart: the divergence grows by a fifth per step, ten steps a cycle."""
    for cycle in range(length):
        divergence = min(1e-6 * 1.2 ** (10 * cycle), 1e6)
        yield GuardInput(divergences=dict.fromkeys(ranks, divergence), k_used=10 * len(ranks), k_max=10)


def plain(saved: Any, what: str) -> Any:
    """What is saved, after its way through JSON."""
    ensure(isinstance(saved, dict), f"{what}: saved() gave a {type(saved).__name__}, not a dict")
    with accepting(f"{what}: JSON of what saved() gave"):
        return json.loads(json.dumps(saved, allow_nan=False))

