"""Every knob is checked once, before any machine exists, and the error names knob, value and rule (section 15)."""

from __future__ import annotations

import ast
import inspect
import math
import typing
from pathlib import Path
from typing import Any

import attrs
import pytest

import paceline.core
from paceline.core import config as config_module
from paceline.core.config import LATER, WISHABLE, Config, config_digest
from paceline.core.errors import ConfigError
from paceline.core.knob_types import check_types

BAD: list[tuple[dict[str, Any], str]] = [
    ({"policy": "eager"}, "V-1"),
    ({"policy": "async", "averager": "collective"}, "G-11"),
    ({"averager": "collective", "progressive": False}, "G-11"),
    ({"averager": "collective", "digest": True}, "V-4"),
    ({"averager": "collective", "max_batch_diff": 2}, "V-4"),
    ({"averager": "collective", "laggards": "exclude"}, "V-4"),
    ({"session_wait_s": 0.0}, "M-3"),
    ({"averager": "shared"}, "not in this version"),
    ({"averager": ""}, "V-1"),
    ({"policy": "async", "progressive": False}, "V-2"),
    ({"policy": "sync", "progressive": True}, "V-2"),
    ({"initial_state": ""}, "M-6"),
    ({"start": "now"}, "M-4"),
    ({"on_lost": "cry"}, "W-21"),
    ({"bulk_auth": "none"}, "N-26"),
    ({"run_id": b"short"}, "16 bytes"),
    ({"min_ranks": 0}, "V-3"),
    ({"min_ranks": 3, "target_ranks": 2}, "V-3"),
    ({"target_ranks": 3, "max_ranks": 2}, "V-3"),
    ({"max_failure": 0}, "M-21"),
    ({"max_failure": 1.5}, "M-21"),
    ({"batch_size": 0}, "D-3"),
    ({"num_epochs": -1}, "D-3"),
    ({"repeats": 0}, "D-1"),
    ({"epoch_splits": 0}, "D-2"),
    ({"min_chunk": 0}, "D-6"),
    ({"gamma": 2.5}, "R-5"),
    ({"gamma": float("nan")}, "R-5"),
    ({"lr_scale_ratio": -1.0}, "W-8"),
    ({"lr_scale_ratio": 1.0}, "W-8"),
    ({"easgd_alpha": 0.5}, "R-17"),
    ({"policy": "async", "easgd_alpha": 0.0}, "R-17"),
    ({"anchor": 5, "min_anchor": 6}, "B-1"),
    ({"anchor": 2000}, "B-1"),
    ({"overhead_target": 0.9}, "B-1"),
    ({"max_batch_diff": -1}, "G-8"),
    ({"max_overshoot": 3}, "G-9"),
    ({"policy": "async", "max_overshoot": "much"}, "G-9"),
    ({"policy": "async", "max_overshoot": -1}, "G-9"),
    ({"relax_up": True}, "B-13"),
    ({"partition_ratios": (1.0, 2.0)}, "D-17"),
    ({"policy": "sync", "partition_ratios": (1.0, 0.0)}, "D-17"),
    ({"speed_ratios": ()}, "B-6"),
    ({"speed_ratios": (1.0,), "target_ranks": 2}, "B-6"),
    ({"anchor_hint": (1.0, 0.0)}, "B-6"),
    ({"checkpoint_every": 0}, "K-2"),
    ({"eval_every": -1}, "K-2"),
    ({"max_model_bytes": 0}, "N-25"),
    ({"role_policy": "slowest"}, "M-33"),
    ({"role_policy": -1}, "M-33"),
    ({"role_limit_s": 0.0}, "M-3"),
    ({"guard": "lyapunov"}, "B-33"),
    ({"guard": "mypackage:"}, "B-33"),
    ({"policy": "mypackage:MyBalancer"}, "the knob cadence"),
    ({"cadence": "fast"}, "B-1"),
    ({"detector": "lerned"}, "M-11"),
    ({"meta_controller": "on"}, "B-40"),
    ({"guard": object()}, "B-30"),
    ({"guard": "growth", "guard_threshold": 0.1}, "B-33"),
    ({"guard_threshold": 0.0}, "B-33"),
    ({"time_scale": 0.01}, "M-3"),
    ({"time_scale": float("inf")}, "M-3"),
    ({"time_scale": 1e20}, "0.1 to 10,000"),
    ({"heartbeat_timeout_s": math.inf}, "M-3"),
    ({"first_step_s": 1e10}, "at most 1e9"),
    ({"reconnect_window_s": 1e10}, "M-42"),
    ({"suspect_floor_s": 1e10}, "M-11"),
    ({"reduce_ceiling_s": math.inf}, "M-15"),
    ({"window_ceiling_s": 1e10}, "M-15"),
    ({"heartbeat_s": 0.0}, "M-3"),
    ({"exit_grace_s": float("nan")}, "M-3"),
    ({"join_timeout_s": 700.0}, "M-4"),
    ({"heartbeat_timeout_s": 2.0}, "M-3"),
    ({"reduce_ceiling_s": 10.0}, "M-15"),
    ({"window_ceiling_s": 10.0}, "M-15"),
]


@pytest.mark.parametrize(("knobs", "rule"), BAD, ids=[f"{next(iter(k))}-{i}" for i, (k, _) in enumerate(BAD)])
def test_a_bad_knob_is_named_with_its_rule(knobs: dict[str, Any], rule: str) -> None:
    """Section 15, V-1, V-2, V-3, V-4, G-11."""
    with pytest.raises(ConfigError) as caught:
        Config.from_knobs(knobs)
    assert rule in str(caught.value) and any(knob in str(caught.value) for knob in knobs)


OF_EVERY_KIND = ("x", "\udcff", b"x", -1, 3, 1.5, True, [1], ["x"], {"a": 1}, math.nan, math.inf, 10**400)


@pytest.mark.parametrize("knob", [field.name for field in attrs.fields(Config)])
def test_no_value_of_any_kind_is_more_than_a_config_error(knob: str) -> None:
    """Section 15: knobs come from command lines, files and ranks. A text where a number is wanted was a traceback once,
    and half an epoch was taken."""
    kinds = typing.get_type_hints(Config)[knob]
    for value in OF_EVERY_KIND:
        try:
            config = Config.from_knobs({knob: value})
        except ConfigError as error:
            assert knob in str(error), error
        else:
            ratios = isinstance(value, list) and knob in ("speed_ratios", "anchor_hint")
            assert ratios or kinds is Any or isinstance(getattr(config, knob), kinds | int)
            assert not isinstance(value, bool) or kinds in (Any, bool, bool | None, bool | str)


@pytest.mark.parametrize("knob", ["save_path", "initial_state", "policy"])
def test_text_that_no_rank_can_be_told_is_refused(knob: str) -> None:
    """V-6, N-24: the name of a directory need not be UTF-8. A run with one broke when the first rank came."""
    with pytest.raises(ConfigError, match=f"{knob} = .*text in UTF-8 is wanted") as caught:
        Config(**{knob: "/data/\udcff"})
    str(caught.value).encode()


def test_a_type_that_no_check_knows_is_an_error_of_whoever_declares_the_knob() -> None:
    """Section 15: a new knob cannot come without a check."""

    @attrs.frozen
    class Odd:
        knob: complex

    with pytest.raises(KeyError):
        check_types(Odd(1j), lambda knob, value, wanted: None)


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_a_collective_has_defaults_of_its_own(policy: str) -> None:
    """Section 15, G-11: one rank alone averages with nobody, and there are no bytes to hash before they are adopted."""
    config = Config(averager="collective", policy=policy)

    assert (config.min_ranks, config.digest, config.is_progressive) == (2, False, policy == "cadence")
    assert (Config().min_ranks, Config().digest) == (1, True)
    assert Config(averager="collective", min_ranks=1).min_ranks == 1


@pytest.mark.parametrize("knob", sorted(LATER))
def test_a_knob_of_a_later_feature_says_so(knob: str) -> None:
    """Section 15: refused, not ignored."""
    with pytest.raises(ConfigError, match="does not have yet"):
        Config.from_knobs({knob: 1})


def test_an_unknown_knob_is_an_error_that_lists_the_known_ones() -> None:
    """Section 15."""
    with pytest.raises(ConfigError, match="heartbeat_s"):
        Config.from_knobs({"hearbeat_s": 1.0})


def test_every_knob_is_read_by_something() -> None:
    """A knob that nothing reads is a promise that nobody keeps: it is removed, or refused as belonging to later."""
    root = Path(str(paceline.core.__file__)).parent.parent
    read: set[str] = set()
    for folder in ("core", "transports", "backends"):
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if path == Path(inspect.getfile(config_module)):
                # Its own checks are no use of a knob; what it derives from them is.
                body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
                public = [n for n in body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
                tree = ast.Module(list[ast.stmt](public), [])
            read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unread = [field.name for field in attrs.fields(Config) if field.name not in read]
    assert unread == []


# --- derived values ---------------------------------------------------------------------------------------------------


def test_the_defaults_of_each_policy() -> None:
    """Section 15: anchor, progressive, blending."""
    sync, cadence, free = (Config(policy=policy) for policy in ("sync", "cadence", "async"))
    assert [c.first_anchor for c in (sync, cadence, free)] == [1, 10, 10]
    assert [c.is_progressive for c in (sync, cadence, free)] == [False, True, True]
    assert [c.barrier_paced for c in (sync, cadence, free)] == [True, True, False]
    assert [c.alpha for c in (sync, cadence, free)] == [None, None, 0.5]


def test_time_scale_multiplies_all_but_heartbeat_and_beacon() -> None:
    """M-3."""
    config = Config(time_scale=2.0)
    assert (config.staleness_s, config.reduce_ceiling, config.window_ceiling) == (60.0, 600.0, 1200.0)
    welcome = Config(time_scale=2.0, batch_size=1, num_epochs=1).welcome(10, 1)
    assert (welcome["staleness_s"], welcome["heartbeat_s"], welcome["save_limit_s"]) == (60.0, 1.0, 60.0)


def test_every_time_that_is_read_is_scaled() -> None:
    """M-3: all of them on every process alike, so wherever a machine reads a knob that is a duration it does so through
    `Config.scaled`. Heartbeat and beacon are the exception, and what has been scaled already."""
    knobs = {field.name for field in attrs.fields(Config) if field.name.endswith("_s")} - {"heartbeat_s", "beacon_s"}
    assert len(knobs) == 19, "a new one is to be looked at"
    read: set[str] = set()
    for path in sorted(Path(paceline.core.__file__).parent.rglob("*.py")):
        if path.name == "config.py" or "simulation" in path.parts:
            continue
        for call in ast.walk(tree := ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "scaled":
                for inside in ast.walk(call):
                    inside.under_scale = True  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in knobs and "config" in ast.unparse(node.value):
                read.add(node.attr)
                assert hasattr(node, "under_scale") or node.attr in PRESENCE, f"{path.name}:{node.lineno} {node.attr}"
    assert {"join_timeout_s", "exit_grace_s", "role_limit_s", "suspect_floor_s", "reconnect_window_s"} <= read


PRESENCE = ("link_grace_s", "reconnect_window_s")
"""Asked for whether they are there at all, too."""


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_ranks_are_told_scaled_times(scale: float) -> None:
    """M-3: whatever of the welcome is a duration, but for the heartbeat; and the scale itself, for what has no knob."""
    plain, scaled = (Config(batch_size=1, num_epochs=1, time_scale=factor).welcome(10, 1) for factor in (1.0, scale))
    assert scaled["time_scale"] == scale
    for name, seconds in plain.items():
        if name.endswith("_s"):
            assert isinstance(seconds, float)
            assert scaled[name] == (seconds if name == "heartbeat_s" else seconds * scale), name


def test_a_scaled_silence_holds_three_heartbeats() -> None:
    """M-3: heartbeats are never scaled, so a small scale must not make healthy ranks look dead."""
    assert Config(time_scale=0.1).staleness_s == pytest.approx(3.0)
    with pytest.raises(ConfigError, match=r"heartbeat_timeout_s = 10.0 .*time_scale .*3 x heartbeat_s = 3.0"):
        Config(heartbeat_timeout_s=10.0, time_scale=0.1)


def test_ceilings_follow_the_heartbeat_timeout() -> None:
    """M-15: max(10 hb, 300)."""
    assert Config(heartbeat_timeout_s=60.0).reduce_ceiling == 600.0
    assert Config(reduce_ceiling_s=40.0).window_ceiling == 80.0


def test_the_first_rank_fills_what_the_coordinator_left_open() -> None:
    """V-6: and nothing else."""
    config = Config(num_epochs=2).resolved({"batch_size": 8, "num_epochs": 5, "seed": 7})
    assert (config.batch_size, config.num_epochs, config.seed) == (8, 2, 7)
    assert Config(batch_size=1, num_epochs=1).resolved({}).seed == 42
    with pytest.raises(ConfigError, match="batch_size and num_epochs"):
        Config().resolved({})


def test_a_wish_that_differs_is_told_with_both_values() -> None:
    """V-5, V-6."""
    config = Config(batch_size=8, num_epochs=2, seed=1)
    assert config.disagreement({"batch_size": 8, "drop_last": True, "seed": None}) is None
    text = config.disagreement({"num_epochs": 3})
    assert text is not None and "2" in text and "3" in text
    assert all(config.disagreement({knob: "other"}) for knob in WISHABLE)
    assert "policy" in str(config.disagreement({"policy": "sync"}))


def test_the_digest_of_wishes_depends_on_values_alone() -> None:
    """M-5: not on the order in which they are stated."""
    assert config_digest({"a": 1, "b": 2}) == config_digest({"b": 2, "a": 1}) != config_digest({"a": 1, "b": 3})
    assert len(config_digest({})) == 32
