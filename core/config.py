"""Every knob of a run, checked once, before any machine exists (protocol section 15).

A bad value is a `ConfigError` that names knob, value and rule; an unknown knob is an error too, and one that belongs
to a feature this version lacks says so. Durations end in `_s` and are seconds; sizes are batches, picks or bytes as
named. Ranks take every value from `Welcome.config` (V-6), which `welcome()` builds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

from .detector import Limits
from .errors import ConfigError
from .knob_types import check_types
from .named import is_target

__all__ = [
    "DETECTOR_NAMES", "GUARD_NAMES", "LATER", "LEAST_SCALE", "OWN_STATES", "POLICIES", "WISHABLE", "Config",
    "config_digest",
]  # fmt: skip

POLICIES = ("sync", "cadence", "async")
GUARD_NAMES = ("level", "growth", "none")
DETECTOR_NAMES = ("learned", "fixed")
DEFAULT_SEED = 42
LEAST_SCALE, MOST_SCALE = 0.1, 10_000.0
"""Bounds of `time_scale` (M-3)."""
MOST_SECONDS = 1e9
"""No duration is longer, some thirty years: a larger one is a mistake in the number, and what is made of several of
them has to stay a second of the clock that one can add to."""

WISHABLE = ("batch_size", "num_epochs", "seed", "repeats", "epoch_splits", "drop_last")
"""What a rank's script may state (V-6): it fills what the coordinator left open, and must agree with the rest."""

OWN_STATES = ("rank", "check")
"""Values of `initial_state` with which a run begins from what its ranks bring (M-6)."""

LATER = {
    "outer": "outer optimizers", "outer_lr": "outer optimizers", "outer_momentum": "outer optimizers",
    "wire_dtype": "the bf16 wire",
    "tls": "TLS",
}  # fmt: skip
"""Knobs of protocol section 15 whose feature is not in this version, by feature."""


def _need(ok: bool, knob: str, value: object, rule: str) -> None:
    if not ok:
        _refuse(knob, value, rule)


def _refuse(knob: str, value: object, rule: str) -> None:
    raise ConfigError(f"{knob} = {value!r} is not allowed: {rule}")


def _known(knobs: Iterable[str]) -> None:
    known = {field.name for field in attrs.fields(Config)}
    for knob in knobs:
        if knob in LATER:
            raise ConfigError(f"{knob} belongs to {LATER[knob]}, which this version of paceline does not have yet")
        if knob not in known:
            raise ConfigError(f"there is no knob {knob!r}; known knobs: {', '.join(sorted(known))}")


@attrs.frozen(kw_only=True)
class Config:
    """One run. Defaults are those of protocol section 15; None means unset, or left to the first rank to say."""

    averager: str = "star"
    policy: str = "cadence"
    progressive: bool | None = None
    min_ranks: int = attrs.Factory(lambda self: 2 if self.is_collective else 1, takes_self=True)
    target_ranks: int | None = None
    max_ranks: int | None = None
    elastic: bool = True
    join_patience: int = 3
    start: str = "auto"
    join_timeout_s: float = 300.0
    max_join_timeout_s: float = 600.0
    formation_s: float = 60.0
    initial_state: str = "rank"
    batch_size: int | None = None
    num_epochs: int | None = None
    repeats: int = 1
    epoch_splits: int = 1
    seed: int | None = None
    drop_last: bool = True
    anchor: int | None = None
    min_anchor: int | None = None
    max_anchor: int = 1000
    overhead_target: float = 0.05
    max_batch_diff: int | None = None
    max_overshoot: str | int = "auto"
    relax_up: bool = False
    min_chunk: int = 4
    partition_ratios: tuple[float, ...] | None = None
    speed_ratios: tuple[float, ...] | None = None
    anchor_hint: tuple[float, ...] | None = None
    gamma: float = 1.0
    easgd_alpha: float | None = None
    guard: Any = "level"
    guard_threshold: float | None = None
    cadence: str | None = None
    detector: str = "learned"
    meta_controller: bool | str = True
    digest: bool = attrs.Factory(lambda self: not self.is_collective, takes_self=True)
    max_failure: int | float | None = None
    heartbeat_timeout_s: float = 30.0
    heartbeat_s: float = 1.0
    beacon_s: float = 1.0
    reduce_ceiling_s: float | None = None
    window_ceiling_s: float | None = None
    first_step_s: float = 1800.0
    suspect_k: float = 6.0
    suspect_floor_s: float = 5.0
    suspect_initial_s: float = 60.0
    suspect_history: int = 20
    max_nudges: int = 3
    stall_dump_s: float = 120.0
    laggards: str = "wait"
    link_grace_s: float = 0.0
    reconnect_window_s: float = 120.0
    rejoin_window_s: float = 60.0
    exit_grace_s: float = 30.0
    leave_grace_s: float = 30.0
    save_limit_s: float = 30.0
    session_wait_s: float = 60.0
    handshake_s: float = 10.0
    time_scale: float = 1.0
    save_path: str | None = None
    checkpoint_every: int | None = None
    checkpoint_at_epoch: int | None = None
    eval_every: int | None = None
    role_policy: str | int = "fastest"
    role_limit_s: float = 300.0
    on_lost: str = "save"
    journal: str | None = None
    journal_sync: str = "process"
    lr_scale_ratio: float = 0.0
    reports_per_epoch: int = 0
    bulk_auth: str = "full"
    max_model_bytes: int = 1 << 40
    run_id: bytes = attrs.field(default=b"\0" * 16, repr=False)

    def __new__(cls, /, *values: object, **knobs: object) -> Self:
        """Knobs are looked for by name before a config is made of them: what Python says of one that it does not know
        is no `ConfigError`, and says nothing of the knobs of later features."""
        if values:
            raise ConfigError(f"{values[0]!r:.60} is not allowed: give knobs by name, such as Config(batch_size=32)")
        _known(knobs)
        return object.__new__(cls)

    @classmethod
    def from_knobs(cls, knobs: Mapping[str, Any]) -> Config:
        """A config from names and values; unknown names and those of later features are errors that say so."""
        _known(knobs)  # names that are no text cannot be given at all
        return cls(**knobs)

    def __attrs_post_init__(self) -> None:
        check_types(self, lambda knob, value, wanted: _refuse(knob, value, f"{wanted} (section 15)"))
        self._check_mode()
        self._check_world()
        self._check_data()
        self._check_cadence()
        self._check_actions()
        self._check_times()

    def _check_mode(self) -> None:
        hint = "; a balancer of your own is the knob cadence" if is_target(self.policy) else ""
        _need(self.policy in POLICIES, "policy", self.policy, f"choose one of {', '.join(POLICIES)}{hint} (V-1)")
        if self.averager == "collective" and self.policy == "async":
            raise ConfigError(
                "policy = 'async' does not go with averager = 'collective': the write-back in place races with the "
                "training step; take averager = 'star', or policy = 'cadence' (V-1, G-11)"
            )
        if self.averager == "shared":
            raise ConfigError("averager = 'shared' is not in this version of paceline yet; take 'star'")
        _need(bool(self.averager), "averager", self.averager, "name an averager, such as 'star' (V-1)")
        if self.progressive is not None:
            _need(self.progressive or self.policy != "async", "progressive", False, "async streams chunks (V-2)")
            _need(not self.progressive or self.policy != "sync", "progressive", True, "sync gives whole shares (V-2)")
            _need(self.progressive or self.policy == "sync" or not self.is_collective, "progressive", False,
                  "a collective paces nobody: under cadence it needs the budget of a window (G-11)")  # fmt: skip
        _need(self.initial_state != "", "initial_state", self.initial_state, "'rank' for the lowest rank's model, "
              "'check' for one that is the same on all, or the consensus file of a run to resume (M-6)")  # fmt: skip
        _need(not (self.digest and self.is_collective), "digest", True, "a collective has no bytes of a consensus to "
              "hash before it is adopted (V-4)")  # fmt: skip
        _need(self.start in ("auto", "manual", "hybrid"), "start", self.start, "auto, manual or hybrid (M-4)")
        _need(self.on_lost in ("save", "stop"), "on_lost", self.on_lost, "save or stop (W-21)")
        _need(self.journal_sync in ("process", "disk"), "journal_sync", self.journal_sync, "process or disk (M-40)")
        _need(self.bulk_auth in ("full", "header"), "bulk_auth", self.bulk_auth, "full or header (N-26)")
        _need(len(self.run_id) == 16, "run_id", self.run_id, "16 bytes (section 15)")

    def _check_world(self) -> None:
        _need(self.min_ranks >= 1, "min_ranks", self.min_ranks, "a run needs at least one rank (V-3)")
        if self.target_ranks is not None:
            _need(self.target_ranks >= self.min_ranks, "target_ranks", self.target_ranks, "at least min_ranks (V-3)")
        if self.max_ranks is not None:
            floor = self.target_ranks or self.min_ranks
            _need(self.max_ranks >= floor, "max_ranks", self.max_ranks, "at least target_ranks and min_ranks (V-3)")
        _need(self.join_patience >= 1, "join_patience", self.join_patience, "at least 1 cycle (M-26)")
        if self.max_failure is not None:
            whole = isinstance(self.max_failure, int) and self.max_failure >= 1
            part = isinstance(self.max_failure, float) and 0.0 < self.max_failure <= 1.0
            _need(whole or part, "max_failure", self.max_failure, "a count >= 1 or a share in (0, 1] (M-21)")

    def _check_data(self) -> None:
        if self.batch_size is not None:
            _need(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1 (D-3)")
        if self.num_epochs is not None:
            _need(self.num_epochs >= 0, "num_epochs", self.num_epochs, "at least 0 (D-3)")
        _need(self.repeats >= 1, "repeats", self.repeats, "at least 1 (D-1)")
        _need(self.epoch_splits >= 1, "epoch_splits", self.epoch_splits, "at least 1 (D-2)")
        _need(self.min_chunk >= 1, "min_chunk", self.min_chunk, "at least 1 (D-6)")
        _need(-2.0 <= self.gamma <= 2.0, "gamma", self.gamma, "-2 to 2 (R-5)")
        _need(self.lr_scale_ratio >= 0.0, "lr_scale_ratio", self.lr_scale_ratio, "at least 0 (W-8)")
        _need(self.lr_scale_ratio == 0.0 or self.target_ranks == self.min_ranks, "lr_scale_ratio", self.lr_scale_ratio,
              "the rate is scaled by the number of ranks, so set min_ranks = target_ranks (W-8)")  # fmt: skip
        if self.easgd_alpha is not None:
            _need(self.policy == "async", "easgd_alpha", self.easgd_alpha, "only with policy async (R-17)")
            _need(0.0 < self.easgd_alpha <= 1.0, "easgd_alpha", self.easgd_alpha, "in (0, 1] (R-17)")

    def _check_cadence(self) -> None:
        low, first = self.first_min_anchor, self.first_anchor
        _need(1 <= low <= first <= self.max_anchor, "anchor", first, "1 <= min_anchor <= anchor <= max_anchor (B-1)")
        _need(0.01 <= self.overhead_target <= 0.5, "overhead_target", self.overhead_target, "0.01 to 0.50 (B-1)")
        if self.max_batch_diff is not None:
            _need(self.max_batch_diff >= 0, "max_batch_diff", self.max_batch_diff, "at least 0 (G-8)")
            _need(not self.is_collective, "max_batch_diff", self.max_batch_diff, "not with collective (V-4)")
        if self.max_overshoot != "auto":
            _need(isinstance(self.max_overshoot, int) and self.max_overshoot >= 0, "max_overshoot",
                  self.max_overshoot, "'auto' or at least 0 (G-9)")  # fmt: skip
            _need(self.policy == "async", "max_overshoot", self.max_overshoot, "only with policy async (G-9)")
        _need(not self.relax_up or self.policy == "async", "relax_up", self.relax_up, "only with async (B-13)")
        for knob in ("partition_ratios", "speed_ratios", "anchor_hint"):
            ratios = getattr(self, knob)
            if ratios is not None:
                good = bool(ratios) and all(math.isfinite(x) and x > 0 for x in ratios)
                enough = self.target_ranks in (None, len(ratios))
                _need(good and enough, knob, ratios, "one positive number per rank (D-17, B-6)")
        _need(self.partition_ratios is None or self.policy == "sync", "partition_ratios", self.partition_ratios,
              "only with policy sync (D-17)")  # fmt: skip
        self._check_policies()
        if self.guard_threshold is not None:
            _need(self.guard == "level" and self.guard_threshold > 0, "guard_threshold", self.guard_threshold,
                  "above 0, and only with guard level (B-33)")  # fmt: skip

    def _check_policies(self) -> None:
        """What a knob may name; whether it is there is seen when a coordinator is made (`policy_choice.py`)."""
        if isinstance(self.guard, str):
            _need(self.guard in GUARD_NAMES or is_target(self.guard), "guard", self.guard,
                  "level, growth, none, or module:factory (B-33)")  # fmt: skip
        else:
            _need(callable(getattr(self.guard, "observe", None)), "guard", self.guard, "an object with observe (B-30)")
        _need(self.cadence is None or is_target(self.cadence), "cadence", self.cadence,
              "module:factory of a balancer; left open, the one that ships paces the run (B-1)")  # fmt: skip
        _need(self.detector in DETECTOR_NAMES or is_target(self.detector), "detector", self.detector,
              "learned, fixed, or module:factory (M-11)")  # fmt: skip
        _need(isinstance(self.meta_controller, bool) or is_target(self.meta_controller), "meta_controller",
              self.meta_controller, "true, false, or module:factory (B-40)")  # fmt: skip

    def _check_actions(self) -> None:
        for knob in ("checkpoint_every", "checkpoint_at_epoch", "eval_every"):
            epochs = getattr(self, knob)
            _need(epochs is None or epochs >= 1, knob, epochs, "a whole number of epochs, at least 1 (K-2)")
        parts = self.reports_per_epoch
        _need(parts >= 0, "reports_per_epoch", parts, "at least 0 (O-5)")
        rank = self.role_policy
        fit = rank == "fastest" or (isinstance(rank, int) and rank >= 0)
        _need(fit, "role_policy", rank, "'fastest' or the number of a rank (M-33)")

    def _check_times(self) -> None:
        _need(LEAST_SCALE <= self.time_scale <= MOST_SCALE, "time_scale", self.time_scale, "0.1 to 10,000 (M-3)")
        for knob in ("heartbeat_s", "heartbeat_timeout_s", "beacon_s", "exit_grace_s", "leave_grace_s", "save_limit_s",
                     "handshake_s", "session_wait_s", "role_limit_s", "first_step_s", "stall_dump_s", "formation_s",
                     "join_timeout_s", "max_join_timeout_s"):  # fmt: skip
            seconds = getattr(self, knob)
            _need(0 < seconds <= MOST_SECONDS, knob, seconds, "seconds above 0, at most 1e9 (M-3)")
        for knob, rule in (("rejoin_window_s", "M-21"), ("link_grace_s", "M-17"), ("reconnect_window_s", "M-42")):
            seconds = getattr(self, knob)
            _need(0 <= seconds <= MOST_SECONDS, knob, seconds, f"seconds from 0 to 1e9 ({rule})")
        for knob in ("suspect_k", "suspect_floor_s", "suspect_initial_s"):
            number = getattr(self, knob)
            _need(0 < number <= MOST_SECONDS, knob, number, "above 0, at most 1e9 (M-11)")
        _need(self.max_model_bytes >= 1, "max_model_bytes", self.max_model_bytes, "at least 1 byte (N-25)")
        _need(self.suspect_history >= 1, "suspect_history", self.suspect_history, "at least 1 duration (M-11)")
        _need(self.max_nudges >= 0, "max_nudges", self.max_nudges, "at least 0 (M-13)")
        _need(self.laggards in ("wait", "exclude"), "laggards", self.laggards, "wait or exclude (M-14)")
        _need(self.laggards == "wait" or not self.is_collective, "laggards", self.laggards, "nobody can be left "
              "out of a collective (V-4)")  # fmt: skip
        _need(self.join_timeout_s <= self.max_join_timeout_s, "join_timeout_s", self.join_timeout_s,
              f"at most max_join_timeout_s = {self.max_join_timeout_s} (M-4)")  # fmt: skip
        # Heartbeats are never scaled, so it is the scaled silence that has to hold three of them.
        _need(self.staleness_s >= 3 * self.heartbeat_s, "heartbeat_timeout_s", self.heartbeat_timeout_s,
              f"multiplied by time_scale it is at least 3 x heartbeat_s = {3 * self.heartbeat_s} (M-3)")  # fmt: skip
        for knob in ("reduce_ceiling_s", "window_ceiling_s"):
            ceiling = getattr(self, knob)
            if ceiling is not None:
                _need(self.heartbeat_timeout_s <= ceiling <= MOST_SECONDS, knob, ceiling,
                      "at least heartbeat_timeout_s, at most 1e9 (M-15)")  # fmt: skip

    # --- derived ---------------------------------------------------------------------------------------------

    @property
    def first_anchor(self) -> int:
        """The anchor a run starts with: 10 steps, 1 under sync (B-1)."""
        return self.anchor if self.anchor is not None else (1 if self.policy == "sync" else 10)

    @property
    def first_min_anchor(self) -> int:
        """The lower bound of growth: the initial anchor unless set (B-1)."""
        return self.min_anchor if self.min_anchor is not None else self.first_anchor

    @property
    def is_collective(self) -> bool:
        """Whether all ranks average in place, inside one call, instead of shipping copies (C-19)."""
        return self.averager == "collective"

    @property
    def is_resumed(self) -> bool:
        """Whether the state of cycle 0 comes from the file of a run before (M-6, K-12)."""
        return self.initial_state not in OWN_STATES

    @functools.cached_property  # asked for with every chunk
    def is_progressive(self) -> bool:
        """Whether dispatch streams one chunk per window (G-11)."""
        return self.policy != "sync" if self.progressive is None else self.progressive

    @functools.cached_property  # like those below that are kept, asked for with every event
    def barrier_paced(self) -> bool:
        """Whether no rank crosses an averaging or epoch barrier: every policy but async."""
        return self.policy != "async"

    @property
    def alpha(self) -> float | None:
        """The elastic blend of async (R-17), default 0.5; None where adoption overwrites."""
        return None if self.policy != "async" else (0.5 if self.easgd_alpha is None else self.easgd_alpha)

    @functools.cached_property
    def staleness_s(self) -> float:
        """Silence after which a peer is gone, exceeded strictly (M-3)."""
        return self.heartbeat_timeout_s * self.time_scale

    @functools.cached_property
    def reduce_ceiling(self) -> float:
        """Seconds without evidence after which a pending cycle is stalled, exceeded strictly (M-15)."""
        own = self.reduce_ceiling_s
        return (max(10 * self.heartbeat_timeout_s, 300.0) if own is None else own) * self.time_scale

    @functools.cached_property
    def window_ceiling(self) -> float:
        """Seconds without progress after which a window is stalled (M-16)."""
        own = self.window_ceiling_s
        return 2 * self.reduce_ceiling if own is None else own * self.time_scale

    @functools.cached_property
    def step_limits(self) -> Limits:
        """Between which a learned deadline of a step may lie (M-11)."""
        return self._limits(self.window_ceiling)

    @functools.cached_property
    def cycle_limits(self) -> Limits:
        """The same of what a rank owes in a cycle (M-11)."""
        return self._limits(self.reduce_ceiling)

    def _limits(self, ceiling: float) -> Limits:
        most = ceiling / 2
        return Limits(initial=self.scaled(self.suspect_initial_s), most=most, suspect_k=self.suspect_k,
                      floor=min(self.scaled(self.suspect_floor_s), most))  # fmt: skip

    def scaled(self, seconds: float) -> float:
        """A duration under `time_scale` (M-3); heartbeat and beacon are never scaled."""
        return seconds * self.time_scale

    def resolved(self, wishes: Mapping[str, Any]) -> Config:
        """This config with what it left open filled from a rank's wishes (V-6), else from the defaults."""
        changes: dict[str, Any] = {}
        for knob in ("batch_size", "num_epochs", "seed"):
            if getattr(self, knob) is None and wishes.get(knob) is not None:
                changes[knob] = wishes[knob]
        config = attrs.evolve(self, **changes)
        missing = [knob for knob in ("batch_size", "num_epochs") if getattr(config, knob) is None]
        if missing:
            raise ConfigError(f"nobody said {' and '.join(missing)}: give it to the Session or to the coordinator")
        return config if config.seed is not None else attrs.evolve(config, seed=DEFAULT_SEED)

    def disagreement(self, wishes: Mapping[str, Any]) -> str | None:
        """The first wish of a rank that this (resolved) config does not fulfil, with both values, or None (V-5)."""
        for knob, wish in sorted(wishes.items()):
            if knob not in WISHABLE:
                return f"a rank cannot set {knob}; it is the coordinator's"
            ours = getattr(self, knob)
            if wish is not None and ours is not None and wish != ours:
                return f"{knob}: the run has {ours!r}, this rank wants {wish!r}"
        return None

    def welcome(self, dataset_len: int, world: int) -> dict[str, str | int | float | bool | None]:
        """What every rank takes from the coordinator (V-6), as plain values."""
        return {
            "policy": self.policy, "averager": self.averager, "batch_size": self.batch_size,
            "num_epochs": self.num_epochs, "seed": self.seed, "repeats": self.repeats,
            "epoch_splits": self.epoch_splits, "drop_last": self.drop_last, "gamma": self.gamma,
            "alpha": self.alpha, "digest": self.digest,
            "heartbeat_s": self.heartbeat_s, "staleness_s": self.staleness_s, "time_scale": self.time_scale,
            "leave_grace_s": self.scaled(self.leave_grace_s), "save_limit_s": self.scaled(self.save_limit_s),
            "exit_grace_s": self.scaled(self.exit_grace_s),
            # No session is made while a member is away, so the time for its return comes on top (R-15, M-42).
            "session_wait_s": self.scaled(self.session_wait_s + max(self.link_grace_s, self.reconnect_window_s)),
            "reconnect_window_s": self.scaled(self.reconnect_window_s),
            "min_ranks": self.min_ranks, "lr_scale_ratio": self.lr_scale_ratio,
            "on_lost": self.on_lost, "save_path": self.save_path, "dataset_len": dataset_len, "world": world,
        }  # fmt: skip


def config_digest(wishes: Mapping[str, Any]) -> bytes:
    """32 bytes over the values a rank states (M-5): SHA-256 of their JSON with sorted keys."""
    return hashlib.sha256(json.dumps(dict(wishes), sort_keys=True, separators=(",", ":")).encode()).digest()
