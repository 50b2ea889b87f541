"""The timeline: every event is declared, every declared one happens, and the derived ones say what they claim (O-1)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.cadence_inputs import NudgeDown, Stable
from paceline.core.guard import GuardInput, NoGuard
from paceline.core.timeline import TIMELINE, undeclared

from support.hand import Hand, alerts, named, pending

CORE = Path(__file__).parents[2] / "core"


def emitted() -> dict[str, list[set[str]]]:
    """Every `Emit` that the core has: its name, and the fields that stand in the code beside it."""
    found: dict[str, list[set[str]]] = {}
    for path in sorted(CORE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Emit":
                name, *facts = call.args
                assert isinstance(name, ast.Constant), f"{path.name}: the name of an event is written out"
                keys = facts[0].keys if facts and isinstance(facts[0], ast.Dict) else []
                fields = {key.value for key in keys if isinstance(key, ast.Constant)}
                found.setdefault(str(name.value), []).append(fields)  # type: ignore[arg-type]
    return found


def test_every_event_in_the_code_is_declared_and_every_declared_one_is_in_the_code() -> None:
    """O-1: names are stable; nothing is declared that nobody emits."""
    assert sorted(emitted()) == sorted(TIMELINE)


def test_no_field_in_the_code_is_undeclared() -> None:
    """O-1: what a test never runs is checked too."""
    odd = {
        name: sorted(fields - {field.removesuffix("?") for field in TIMELINE[name].fields})
        for name, places in emitted().items() for fields in places if TIMELINE[name].fields
    }  # fmt: skip
    assert {name: fields for name, fields in odd.items() if fields} == {}


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        ("Promoted", {"rank": 1}, None),
        ("Promoted", {}, "Promoted is declared with other fields; it differs in rank"),
        ("Promoted", {"rank": 1, "mood": "good"}, "Promoted is declared with other fields; it differs in mood"),
        ("Throttle", {"rank": 1, "reason": "barrier"}, None),
        ("Throttle", {"rank": 1, "reason": "lead", "lead": 3}, None),
        ("Custom", {"whatever": 1}, None),
        ("Sneezed", {}, "Sneezed is not declared in core/timeline.py"),
    ],
)
def test_what_counts_as_declared(name: str, facts: dict[str, Any], told: str | None) -> None:
    assert undeclared(name, facts) == told


def test_every_field_says_what_it_is() -> None:
    for event in TIMELINE.values():
        assert event.meaning.endswith(".") and all(event.fields.values()), event.name


# --- what the derived ones say ---------------------------------------------------------------------------------------


def test_the_divergence_of_an_average_and_of_its_epoch() -> None:
    """O-1, C-15.4, B-30: largest delta, merged steps, norms before adoption; per epoch least, most, mean and last."""
    hand = Hand(2, samples=24, num_epochs=1).form()
    for deltas in ((0.1, 0.4), (0.2, 0.1)):
        for rank in (0, 1):
            hand.step(rank, 3)
            hand.complete(rank)
        for rank in (0, 1):
            hand.ready(rank)
        hand.reduce()
        for rank in (0, 1):
            hand.ack(rank, divergence=deltas[rank], pre_norm=2.0 + rank, post_norm=2.5)

    first, second = named(hand.effects, "Divergence")
    assert first == {"d": 0.4, "k_used": 6, "k_max": 3, "version": 1, "deltas": {"0": 0.1, "1": 0.4},
                     "norms": {"0": 2.0, "1": 3.0}, "epoch": 0}  # fmt: skip
    assert second["version"] == 2
    assert named(hand.effects, "DivergenceEpoch") == [
        {"epoch": 0, "cycles": 2, "min": 0.2, "max": 0.4, "mean": pytest.approx(0.3), "last": 0.2}
    ]


def test_a_missing_norm_takes_all_of_them_and_a_missing_delta_reads_as_zero() -> None:
    """B-30, C-15.3."""
    hand = pending()
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce()
    hand.ack(0, divergence=None, pre_norm=None)
    effects = hand.ack(1)

    (told,) = named(effects, "Divergence")
    assert told["norms"] is None and told["deltas"] == {"0": 0.0, "1": 0.01}
    (seen,) = named(effects, "GuardTelemetry")
    assert seen["cosines"] == {} and seen["shifts"] == {}


def test_telemetry_gives_cosines_and_shifts_unless_the_guard_wants_none() -> None:
    """B-31, B-33: norms 1, 1 and distance 0.01 make a cosine of 1 - 0.00005."""
    (told,) = named(pending().average(), "GuardTelemetry")
    assert told["cycle"] == 1 and told["divergence"] == 0.01
    assert told["cosines"] == {"0": pytest.approx(0.99995), "1": pytest.approx(0.99995)}
    assert told["shifts"] == {"0": 0.0, "1": 0.0}

    effects = pending(guard=NoGuard()).average()
    assert not named(effects, "GuardTelemetry") and not alerts(effects, "callback_failed")


class Harsh(NoGuard):
    """Always halves the window."""

    def observe(self, cycle: GuardInput) -> Any:
        return NudgeDown(0.5)


class Silent:
    """A guard of an embedder that says nothing about telemetry."""

    def observe(self, cycle: GuardInput) -> Any:
        return Stable(relax_up=False)

    def saved(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Any) -> bool:
        return True


def test_each_verdict_is_told_with_its_factor() -> None:
    """O-1, B-12."""
    assert named(pending().average(), "Verdict") == [{"cycle": 1, "verdict": "Stable", "relax_up": False}]
    harsh = named(pending(guard=Harsh()).average(), "Verdict")
    assert harsh == [{"cycle": 1, "verdict": "NudgeDown", "factor": 0.5}]
    silent = pending(guard=Silent()).average()
    assert named(silent, "Verdict") and not named(silent, "GuardTelemetry")


@pytest.mark.parametrize(("reporting", "nudged"), [((1,), True), ((0, 1), True), ((0,), False)])
def test_a_cliff_of_the_rate_shortens_the_window_first(reporting: tuple[int, ...], nudged: bool) -> None:
    """B-40, B-41, B-43, C-15.4: the rate is that of the lowest rank that has reported one. The factor is told as it was
    before the seam, and what the guard takes on top is not the meta-controller's."""
    hand = pending(2, 20, anchor=20, samples=4000, guard=Harsh())
    for rank in reporting:
        hand.say(rank, m.LrUpdate, lr=0.1, position=1)
    assert named(hand.average(), "AnchorChanged") == [{"from": 20, "to": 10}]
    hand.say(reporting[0] if nudged else 1, m.LrUpdate, lr=0.01, position=20)
    effects = hand.window()

    told = [{"factor": pytest.approx(2 / 3), "from": 10, "to": 7}]  # base 0.5, and the anchor a third below its mean
    assert named(effects, "MetaNudge") == (told if nudged else [])
    assert named(effects, "AnchorChanged") == [{"from": 10, "to": 4 if nudged else 5}]
    assert len(alerts(effects, "drift")) == 1, "of the guard alone"


def test_without_the_meta_controller_a_cliff_changes_nothing() -> None:
    """B-40: the knob switches it off."""
    hand = pending(2, 20, anchor=20, samples=4000, meta_controller=False)
    hand.say(0, m.LrUpdate, lr=0.1, position=1)
    hand.average()
    hand.say(0, m.LrUpdate, lr=0.01, position=20)
    effects = hand.window()

    assert not named(effects, "MetaNudge") and not named(effects, "AnchorChanged")


def test_an_unrealized_cycle_has_no_divergence_and_no_verdict() -> None:
    """B-30, C-17: there is nothing to judge."""
    effects = pending().average(refused=(0, 1))

    assert named(effects, "Cycle")[0]["realized"] is False
    assert not [name for name in ("Divergence", "GuardTelemetry", "Verdict") if named(effects, name)]


def test_what_was_fenced_is_told_once_per_rank_and_reason() -> None:
    """O-1, N-6: with the count since it was told last, not one event for every stale message."""
    hand = pending()
    for _ in range(3):
        hand.ready(0, cycle=7)
    hand.feed(ev.RoundAborted(m.RoundKey(generation=1, cycle=9, kind=m.RoundKind.PARAMS), 0, "late"))
    effects = hand.average()

    assert named(effects, "Fenced") == [{"rank": 0, "why": "SnapshotReady", "count": 3},
                                        {"rank": None, "why": "RoundAborted", "count": 1}]  # fmt: skip
    assert not named(hand.window(), "Fenced")


def test_the_wait_for_the_slowest_is_told_at_the_arm() -> None:
    """O-1, O-5: rank 0 was done two seconds before rank 1, and waited; what came before the window counts for none."""
    hand = Hand(2, samples=400).form()
    hand.tick(5.0)
    hand.step(0, 3)
    hand.complete(0)
    hand.tick(2.0)
    effects = hand.step(1, 3)

    assert named(effects, "Idle") == [
        {"cycle": 1, "ms": {"0": pytest.approx(2000.0), "1": 0.0}, "held": {"0": "E03"}},
    ]
