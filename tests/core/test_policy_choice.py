"""Which policies a coordinator works with: by a knob, by its program, by default (B-30, B-40, M-11, section 15)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from paceline.core.cadence import Balancer
from paceline.core.cadence_inputs import NudgeDown
from paceline.core.config import Config
from paceline.core.coordinator import Coordinator
from paceline.core.detector import FixedDetector, LearnedDetector
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.guard import GrowthGuard, LevelGuard
from paceline.core.journal import first_difference, head, head_of, replay
from paceline.core.meta import MetaController
from paceline.core.policies import Policies
from paceline.core.policy_choice import choose, names_of
from paceline.core.simulation import Setup, World
from paceline.core.simulation.action import COORDINATOR
from paceline.core.simulation.checker import Bounds
from paceline.core.snapshots import unkept

from conformance.examples import example
from support.cohort import Cohort
from support.hand import Hand, alerts, named, pending

OWN = {
    "guard": "own_policies:PatientGuard", "cadence": "own_policies:EqualSteps",
    "detector": "own_policies:TwiceTheSlowest", "meta": "own_policies:HalfAtACliff",
}  # fmt: skip
KNOBS = {"meta_controller" if kind == "meta" else kind: target for kind, target in OWN.items()}


@pytest.fixture(autouse=True)
def _examples() -> None:
    """docs/examples/own_policies.py can be imported by its name."""
    example("own_policies")


# --- what a name gives -----------------------------------------------------------------------------------------------


def test_what_ships_is_chosen_by_its_name() -> None:
    """B-33, B-40, M-11: `fixed` waits for every stage as `learned` does for one that it knows too little of (M-3)."""
    guard, meta, chosen = choose(Config())
    assert (type(guard), type(meta), chosen.cadence) == (LevelGuard, MetaController, Balancer)
    assert isinstance(chosen.detector, LearnedDetector)
    guard, meta, chosen = choose(Config(guard="growth", meta_controller=False, detector="fixed", suspect_initial_s=7.0,
                                        time_scale=2.0))  # fmt: skip
    assert (type(guard), meta, chosen.detector) == (GrowthGuard, None, FixedDetector(14.0))


def test_a_knob_names_one_of_ones_own_of_every_kind() -> None:
    """Issue 3: guard, balancer, failure detector and meta-controller are replaceable by configuration."""
    co = Coordinator(Config.from_knobs(KNOBS))
    assert names_of(co) == OWN


def test_what_the_program_gives_goes_before_what_the_config_names() -> None:
    """Section 15: and each kind by itself."""
    mine = FixedDetector(1.0)
    given = Policies(detector=mine, meta=MetaController, cadence=functools.partial(Balancer, hardware=None))
    guard, meta, chosen = choose(Config.from_knobs(KNOBS), given)
    assert type(guard).__name__ == "PatientGuard" and type(meta) is MetaController
    assert chosen.detector is mine and chosen.cadence is given.cadence
    assert names_of(Coordinator(Config(), policies=given))["cadence"] == "paceline.core.cadence:Balancer"


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no table of rates here")


@pytest.mark.parametrize(("knob", "target", "said"), [
    ("guard", "own_policies:Nobody", "guard 'own_policies:Nobody' cannot be loaded: there is no 'Nobody'"),
    ("guard", "nowhere_at_all:X", "guard 'nowhere_at_all:X' cannot be loaded: there is no module 'nowhere_at_all'"),
    ("detector", "own_policies:PatientGuard", "detector .* cannot be used: a PatientGuard has no deadline"),
    ("meta_controller", "own_policies:PatientGuard.claims", "is an object of type tuple; name a class"),
    ("cadence", "own_policies:PatientGuard", "cadence .* cannot be made: TypeError: .*'ranks'"),
    ("guard", "own_policies:Broken", "guard .* cannot be made: OSError: no table of rates here"),
])  # fmt: skip
def test_what_cannot_be_had_is_said_before_a_run_begins(
    knob: str, target: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 15: the knob, the target, and what is wrong with it."""
    monkeypatch.setattr(example("own_policies"), "Broken", Broken, raising=False)
    config = Config.from_knobs({knob: target})
    with pytest.raises(ConfigError, match=said):
        Coordinator(config)


def test_a_check_of_every_order_takes_a_detector_and_refuses_what_remembers() -> None:
    """Section 17: its states are told apart by all that is in them, so none may be left out unseen."""
    assert Bounds(knobs=(("detector", OWN["detector"]),)).setup().config().detector == OWN["detector"]
    for knob in ("guard", "cadence", "meta_controller"):
        with pytest.raises(ConfigError, match=f"{knob} = .* is not allowed in a check"):
            Bounds(knobs=((knob, KNOBS[knob]),)).setup()


# --- in a run --------------------------------------------------------------------------------------------------------


def life(config: Config, events: int | None = None) -> tuple[Coordinator, list[Any], list[Any]]:
    """A coordinator that has heard so many events of a whole run: itself, its records and its effects."""
    co = Coordinator(config, now=100.0)
    records: list[Any] = []
    effects: list[Any] = []
    for second, event in told()[:events]:
        co.handle(event, second)
        ready = co.take_ready()
        records += ready.records
        effects += ready.effects
    return co, records, effects


@functools.cache
def told() -> list[Any]:
    """What two ranks say in a whole run."""
    cohort = Cohort(ranks=2)
    cohort.run()
    return cohort.records[COORDINATOR]


def config(**knobs: Any) -> Config:
    """The run that `told` is of."""
    return Config.from_knobs({"batch_size": 2, "num_epochs": 2, "target_ranks": 2, "anchor": 3, **knobs})


def test_a_run_names_what_does_not_ship() -> None:
    """O-1: one event of the timeline when training begins, and none where all of it ships."""
    assert named(life(config(), 40)[2], "Policies") == []
    assert named(life(config(**KNOBS), 40)[2], "Policies") == [OWN]
    assert named(life(config(guard=OWN["guard"]), 40)[2], "Policies") == [{"guard": OWN["guard"]}]


def test_a_run_with_all_four_trains_and_merges_every_batch() -> None:
    """I42, C-13: simulated, with the invariants of section 16 checked on every step."""
    world = World(Setup(ranks=2, samples=16, knobs=KNOBS))
    while world.enabled():
        world.do(world.enabled()[0])
    assert world.finished and world.co.run.status == "ok" and world.co.book.covered == world.co.book.total(0)


def test_a_record_names_the_policies_and_its_replay_has_them() -> None:
    """N-13, O-8, M-40: nothing but what a file holds is needed to go through the run again."""
    first = head_of(json.loads(json.dumps(head(Coordinator(config(**KNOBS), now=100.0)))))
    _, records, effects = life(config(**KNOBS))
    assert isinstance(first.settings, Config) and first.settings.guard == OWN["guard"]
    assert first_difference(effects, replay(first.settings, records, snapshot=first.snapshot)) is None


def test_a_snapshot_keeps_what_all_four_remember() -> None:
    """N-13, I25, B-16: in the middle of a run, through JSON; and a coordinator that is started anew goes on with it."""
    co, _, _ = life(config(**KNOBS), 60)
    kept = json.loads(json.dumps(co.snapshot()))
    twin = Coordinator.restore(config(**KNOBS), kept)
    again = Coordinator.restart(config(**KNOBS), kept, (), 5.0)

    assert co.cycle.version and twin.snapshot() == co.snapshot() and twin.meta is not co.meta
    assert names_of(again) == OWN and again.generation == 2 and co.meta is not None and again.meta is not None
    assert again.meta.saved() == co.meta.saved() and again.guard.saved() == co.guard.saved()


@pytest.mark.parametrize("kind", OWN)
def test_a_snapshot_of_other_policies_is_refused_by_name(kind: str) -> None:
    """M-40, N-13: each kind; what would decide otherwise from here on is no restart of this run."""
    knob = "meta_controller" if kind == "meta" else kind
    kept = Coordinator(config(**KNOBS)).snapshot()
    others = config(**{name: target for name, target in KNOBS.items() if name != knob})
    with pytest.raises(CheckpointError, match=f"{kind}: this run has {OWN[kind]}, not paceline.*by the knob {knob}, "):
        Coordinator.restore(others, kept)


# --- the meta-controller ---------------------------------------------------------------------------------------------


class Nudging(MetaController):
    """Says what it is told to, after each cycle."""

    said: Any = NudgeDown(0.5)

    def observe(self, *seen: Any) -> Any:
        super().observe(*seen)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Forgetful(Nudging):
    """Takes no history."""

    def restore(self, saved: Mapping[str, Any]) -> bool:
        return False


def nudging(said: Any) -> Hand:
    """Two ranks with a window of 20 steps in their first pending cycle, and this meta-controller."""

    def make() -> Nudging:
        made = Nudging()
        made.said = said
        return made

    return pending(2, 20, anchor=20, samples=4000, policies=Policies(meta=make))


def test_its_nudge_goes_through_the_seam() -> None:
    """B-40, B-12, C-15.4: as that of the one that ships."""
    hand = nudging(NudgeDown(0.5))
    assert named(hand.average(), "MetaNudge") == [{"factor": 0.5, "from": 20, "to": 10}]
    assert hand.co.balancer.anchor == 10


@pytest.mark.parametrize(("said", "text"), [
    (ZeroDivisionError("no rate"), "ZeroDivisionError: no rate; read as no nudge"),
    ("down", "'down' is no nudge; read as none"), (None, None),
])  # fmt: skip
def test_one_that_raises_or_says_no_nudge_has_not_nudged(said: Any, text: str | None) -> None:
    """C-13, I4: alerted, and every later step of the finish runs exactly once."""
    hand = nudging(said)
    effects = hand.average()
    told = [(alert.path, alert.text) for alert in alerts(effects, "callback_failed")]
    assert told == ([("meta", text)] if text else [])
    assert not named(effects, "MetaNudge") and hand.co.balancer.anchor == 20
    assert hand.co.cycle.version == 1 and len(named(effects, "Cycle")) == 1


def test_what_it_says_of_itself_may_be_missing_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-13, B-16: one that cannot say its history costs the snapshot nothing else; one that takes none is refused."""
    hand = pending(2, 20, anchor=20, samples=4000, policies=Policies(meta=Forgetful))
    hand.average()
    kept = hand.co.snapshot()
    with pytest.raises(CheckpointError, match="history of another meta-controller than Forgetful"):
        Coordinator.restore(hand.co.config, kept, policies=Policies(meta=Forgetful))
    monkeypatch.setattr(hand.co.meta, "saved", dict.popitem)
    assert list(unkept(hand.co.snapshot())) == ["meta.saved"]
