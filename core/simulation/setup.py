"""What a simulated run is made of, as one frozen value, and the few constants of its little model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .. import messages as m
from ..config import OWN_STATES, Config, config_digest
from ..coordinator import Coordinator
from ..door import refusal
from ..errors import ConfigError
from ..schema import EntryClass, Schema, SchemaEntry, dataset_signature

__all__ = ["MODEL", "STATEFUL", "Setup", "greeting", "sorted_knobs"]

MODEL = Schema(entries=(SchemaEntry(name="w", cls=EntryClass.PARAM, shape=(1,), dtype="float64"),))
STATEFUL = Schema(entries=(*MODEL.entries, SchemaEntry(name="n", cls=EntryClass.LOCAL, shape=(), dtype="int64")))
"""The same with an entry that no consensus holds, so that a joiner needs a donor (M-24)."""
MOST_RANKS, MOST_SAMPLES, MOST_BLOCKS = 256, 10_000_000, 1_000
"""Bounds of a setup: more would be made without an end in sight, and is a mistake in the number."""
AVERAGERS = ("star", "collective")
"""Averagers that a simulated run has: one that holds the sum, and one in place."""
DEFAULTS: dict[str, Any] = {
    "batch_size": 1, "num_epochs": 1, "min_ranks": 1, "anchor": 2, "seed": 1, "reconnect_window_s": 0.0,
}  # fmt: skip
"""Knobs of a run whose setup says nothing else: small, so that all of it can be explored, and who has no link is
over."""


def sorted_knobs(given: Mapping[str, Any] | tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """Knobs by name as one hashable value, from any mapping or from such a value."""
    return tuple(sorted(dict(given).items()))


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@attrs.frozen(kw_only=True)
class Setup:
    """A run: `ranks` that are there from the start, a data set of `samples`, knobs of the config by name (any mapping;
    kept sorted), the callbacks that every script brings (epoch, evaluate, checkpoint).

    `stateful`: the model has an entry that joiners need a donor for. `blocks`: parts in which a contribution arrives.
    `wire`: every message is a frame of the production `Link`, so frames can be cut and damaged; the payload codec is
    then an argument of `World`. `engine`: "compiled" or "transitions". `thorough`: the books of the coordinator are
    compared after every event, not only after those that had an effect.
    """

    ranks: int = 2
    samples: int = 8
    knobs: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=sorted_knobs)
    callbacks: tuple[str, ...] = attrs.field(default=(), converter=_names)
    stateful: bool = False
    blocks: int = 1
    wire: bool = False
    engine: str = "compiled"
    thorough: bool = True

    def __attrs_post_init__(self) -> None:
        for name, most in (("ranks", MOST_RANKS), ("samples", MOST_SAMPLES), ("blocks", MOST_BLOCKS)):
            number = getattr(self, name)
            if type(number) is not int or not 1 <= number <= most:
                raise ConfigError(f"{name} = {number!r} is not allowed: a simulated run has 1 to {most:,} of them")
        config = self.config()
        if config.averager not in AVERAGERS:
            raise ConfigError(f"averager = {config.averager!r} cannot be simulated: choose one of "
                              f"{', '.join(AVERAGERS)}")  # fmt: skip
        if config.is_resumed:
            raise ConfigError(f"initial_state = {config.initial_state!r} cannot be simulated: a simulated run reads no "
                              f"file; choose one of {', '.join(OWN_STATES)}")  # fmt: skip
        if config.journal is not None:
            raise ConfigError(f"journal = {config.journal!r} cannot be simulated: a simulated run has a journal in "
                              "memory, and writes no file; leave it unset")  # fmt: skip

    def config(self) -> Config:
        """The config of the coordinator; `ConfigError` for knobs that do not go together."""
        knobs = {**DEFAULTS, "target_ranks": self.ranks, **dict(self.knobs)}
        if knobs.get("policy") == "sync":
            knobs["anchor"] = dict(self.knobs).get("anchor", 1)
        return Config.from_knobs(knobs)

    def check_door(self) -> None:
        """A run whose every rank would be refused at the door shows nothing of the protocol, and how it ends looks like
        a fault of it: too large a batch, too many epochs in too few data. Raises `ConfigError` with what a rank would
        be told. What a file holds may be meant, so it is asked of runs that are made up (M-5)."""
        refused = refusal(Coordinator(self.config()), greeting(self))
        if refused is not None:
            of = f"this run of {self.ranks} ranks and {self.samples} samples"
            raise ConfigError(f"every rank of {of} would be refused: {refused.text}")

    @property
    def schema(self) -> Schema:
        """What the model of this run looks like."""
        return STATEFUL if self.stateful else MODEL


def greeting(setup: Setup, wanted_rank: int | None = None) -> m.Hello:
    """What a healthy rank says at the door."""
    return m.Hello(
        protocol=1, package="paceline", host="simulated", devices=("cpu",), runtime="simulated", byte_order=0,
        schema=setup.schema, schema_hash=setup.schema.hash(), averagers=("star", "collective"),
        callbacks=setup.callbacks,
        dataset_signature=dataset_signature(setup.samples, b"simulated"), config_digest=config_digest({}),
        wanted_rank=wanted_rank,
    )  # fmt: skip
