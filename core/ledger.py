"""The ledger across runs: what a consensus contains, and how another run goes on from there (K-10, K-12, D-23).

A batch is covered when a consensus contains it, never when it was merely trained. The meta record beside a consensus
says which batches of the open epochs it does *not* contain; all others it does. A run that resumes lays exactly those
out as holes, for whatever ranks there are now. So over both runs each batch is in the consensus once (I52), however
the first one ended and whoever trains in the second.

    stop -> meta record -> Resume.read -> Coordinator(config, resume=...) -> door -> cycle 0 -> pools from holes

What decides which samples a batch has must not change in between: seed, batch size, repeats, splits, the data set and
whether a short last batch counts. A value that the new run leaves open is taken from the record, one that differs is
refused with both. The model must be the same, and its weights are whoever-loads-them's business: the core only says
that version and schedule position go on where the weights are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from .dispatch.book import Book
from .dispatch.pool import Pool, Range, merge_ranges
from .effects import Alert, Emit
from .errors import CheckpointError, InvariantError
from .messages import Hello, RejectCode
from .policies import consulted
from .schema import dataset_length
from .values import value

if TYPE_CHECKING:
    from .config import Config
    from .coordinator import Coordinator

__all__ = ["META_FORMAT", "Resume", "initial_file", "refused_hello", "reopen", "take_over"]

META_FORMAT = 1
"""Version of the meta record (K-6); a newer one is refused."""
SAME = ("batch_size", "seed", "repeats", "epoch_splits", "drop_last")
"""Knobs that decide which samples a batch has, and which batches an epoch has."""
OPEN = ("batch_size", "seed")
"""Those of them that a run may leave open; then the record fills them."""
COUNTS = (
    "version", "sync_rounds", "global_step", "reached", "replayed", "batch_size", "seed", "repeats", "epoch_splits",
)  # fmt: skip
HASH_BYTES = 32


@value(kw_only=True)
class Resume:
    """A meta record, checked. `uncovered` are the open epochs with the batches that the consensus lacks, ascending;
    `reached` and `evaluated` say which epochs' checkpoints and evaluations are served (K-2), `files` is the SHA-256 of
    the files beside the record, by name; None of one that a rank wrote, which says it itself (K-6)."""

    run_id: bytes
    version: int
    sync_rounds: int
    global_step: int
    last_closed_epoch: int
    reached: int
    evaluated: int
    replayed: int
    batch_size: int
    seed: int
    repeats: int
    epoch_splits: int
    drop_last: bool
    schema_hash: bytes
    dataset: bytes
    uncovered: tuple[tuple[int, tuple[Range, ...]], ...]
    balancer: Mapping[str, Any] = attrs.field(hash=False)
    guard: Mapping[str, Any] = attrs.field(hash=False)
    files: Mapping[str, str | None] = attrs.field(factory=dict, hash=False)

    @classmethod
    def read(cls, record: Any) -> Resume:
        """The record as it came out of its file. Raises `CheckpointError` for a newer format and for what is damaged;
        a record without coverage starts at the epoch after its last closed one (K-12)."""
        if not isinstance(record, Mapping) or not _is_count(record.get("format")):
            raise CheckpointError("this is no meta record: it has no format")
        if record["format"] > META_FORMAT:
            raise CheckpointError(f"format: the record has {record['format']}, this version of paceline reads "
                                  f"{META_FORMAT}; resume with the version that wrote it (K-12)")  # fmt: skip
        try:
            counts: dict[str, Any] = {name: _count(record, name) for name in COUNTS}
            made = cls(
                **counts, run_id=bytes.fromhex(record["run_id"]),
                last_closed_epoch=_count(record, "last_closed_epoch", least=-1),
                evaluated=_count(record, "evaluated", least=-1),
                drop_last=bool(record["drop_last"]), schema_hash=_hash(record, "schema_hash"),
                dataset=_hash(record, "dataset"), uncovered=_coverage(record.get("uncovered", {})),
                balancer=dict(record["balancer"]), guard=dict(record["guard"]), files=dict(record.get("files", {})),
            )  # fmt: skip
            made._check_coverage()
        except (KeyError, TypeError, ValueError, AttributeError, InvariantError) as failure:
            raise CheckpointError(f"the meta record is damaged: {failure!r}; resume from another one (K-12)") from None
        return made

    def check_told(self, file: str, told: Mapping[str, str]) -> None:
        """Of a file that a rank wrote, what it says of itself: raises `CheckpointError`, with both values, unless this
        is the record of that run and version (K-6)."""
        for what, ours in (("run_id", self.run_id.hex()), ("version", str(self.version))):
            theirs = told.get(what)
            if theirs != ours:
                raise CheckpointError(f"{what}: the record is of {ours}, {file} of {theirs}; the rank that was to "
                                      "write it did not come to it (K-6, K-12)")  # fmt: skip

    def settle(self, config: Config) -> Config:
        """The config of the new run, with what it left open taken from the record. Raises `CheckpointError` that
        names both values of a knob that must be the same (K-12)."""
        config = attrs.evolve(config, **{knob: getattr(self, knob) for knob in OPEN if getattr(config, knob) is None})
        for knob in SAME:
            ours, theirs = getattr(config, knob), getattr(self, knob)
            if ours != theirs:
                raise CheckpointError(
                    f"{knob}: the run that is resumed had {theirs!r}, this one has {ours!r}; with another value other "
                    "samples would be left out or trained twice (K-12)"
                )
        return config

    def book(self, epochs: int = 1) -> Book:
        """An empty book of the same data, to count with."""
        return Book(dataset_length(self.dataset) * self.repeats, self.batch_size, self.epoch_splits, epochs,
                    self.drop_last)  # fmt: skip

    def pools(self, book: Book) -> dict[int, Pool]:
        """The pools of the open epochs: no spans, the holes to be trained, the rest covered (D-23)."""
        pools = {}
        for epoch, holes in self.uncovered:
            if epoch < book.num_epochs:
                pool = Pool(epoch, book.total(epoch), {})
                pool.reclaim(holes)
                pool.cover(pool.outstanding)
                pools[epoch] = pool
        return pools

    def _check_coverage(self) -> None:
        if min(self.batch_size, self.repeats, self.epoch_splits) < 1:
            raise ValueError("batch_size, repeats and epoch_splits are at least 1")
        if [epoch for epoch, _ in self.uncovered][:1] not in ([], [self.last_closed_epoch + 1]):
            raise ValueError(f"epoch {self.last_closed_epoch} is closed, the first open one is {self.uncovered[0][0]}")
        self.pools(self.book(epochs=self.uncovered[-1][0] + 1 if self.uncovered else 0))


# --- into a new run --------------------------------------------------------------------------------------------------


def take_over(co: Coordinator) -> None:
    """Before anybody knocks: version, counters and schedule position go on, no trigger is served twice; the data set is
    settled (K-12)."""
    resume = co.resume
    if resume is not None:
        co.config = resume.settle(co.config)
        co.dataset = resume.dataset
        co.cycle.version, co.cycle.sync_rounds = resume.version, resume.sync_rounds
        co.cycle.global_step = resume.global_step
        co.actions.reached, co.actions.evaluated = resume.reached, resume.evaluated


def refused_hello(co: Coordinator, hello: Hello) -> tuple[RejectCode, str] | None:
    """Why a rank with another model may not resume this run. Data set and knobs are the door's business already."""
    resume = co.resume
    if resume is None or hello.schema_hash == resume.schema_hash:
        return None
    return RejectCode.SCHEMA, (
        f"another model: the run that is resumed had schema {resume.schema_hash.hex()[:16]}, this rank has "
        f"{hello.schema_hash.hex()[:16]}; build the same model (K-12)"
    )


def initial_file(co: Coordinator) -> dict[str, str | None]:
    """For the welcome: where the source of cycle 0 finds the weights, and the SHA-256 it must find; or that there is no
    source and each rank keeps its own (M-6). A run that forms once more has a source whatever the config says: one that
    holds the version which the journal has lost (M-45)."""
    path = co.config.initial_state
    if path == "check" and co.lost_tail.version is not None:
        path = "rank"
    known = {} if co.resume is None else co.resume.files
    return {"initial_state": path, "initial_sha256": known.get(path.replace("\\", "/").rpartition("/")[2])}


def reopen(co: Coordinator) -> None:
    """When training begins: pools from holes, epochs that stay closed, balancer and guard where they stood (D-23)."""
    resume, book = co.resume, co.book
    if resume is None:
        return
    book.last_closed_epoch, book.replayed = resume.last_closed_epoch, resume.replayed
    book.pools.update(resume.pools(book))
    closed = sum(book.total(epoch) for epoch in range(min(book.first_live, book.num_epochs)))
    book.covered = closed + sum(pool.covered for pool in book.pools.values())
    co.emit(Emit("Resumed", {"version": resume.version, "global_step": resume.global_step, "covered": book.covered,
                             "first_epoch": book.first_live}))  # fmt: skip
    co.desk.advice_due = True
    for epoch, pool in book.pools.items():
        co.emit(Emit("EpochStart", {"epoch": epoch, "batches": pool.total}))
    afresh = "what it held of the run before is not read"
    if not consulted(co, "cadence.restore", lambda: co.balancer.restore(resume.balancer), False, afresh):
        co.emit(Alert("refused", "balancer", "the run that is resumed had other ranks; the balancer starts afresh"))
    if not consulted(co, "guard.restore", lambda: co.guard.restore(resume.guard), False, afresh):
        co.emit(Alert("refused", "guard", "the run that is resumed had another guard; this one starts afresh"))


# --- reading ---------------------------------------------------------------------------------------------------------


def _is_count(number: Any, least: int = 0) -> bool:
    return type(number) is int and number >= least


def _count(record: Mapping[str, Any], name: str, least: int = 0) -> int:
    number = record[name]
    if not _is_count(number, least):
        raise ValueError(f"{name} = {number!r}")
    return int(number)


def _hash(record: Mapping[str, Any], name: str) -> bytes:
    raw = bytes.fromhex(record[name])
    if len(raw) != HASH_BYTES:
        raise ValueError(f"{name} has {len(raw)} bytes")
    return raw


def _coverage(uncovered: Mapping[str, Any]) -> tuple[tuple[int, tuple[Range, ...]], ...]:
    """Epochs ascending and without a gap, each with its holes, ascending and apart."""
    epochs = sorted((int(epoch), tuple(merge_ranges((int(f), int(c)) for f, c in holes)))
                    for epoch, holes in uncovered.items())  # fmt: skip
    if any(after != before + 1 for (before, _), (after, _) in pairwise(epochs)):
        raise ValueError(f"epochs {[epoch for epoch, _ in epochs]} have a gap")
    return tuple(epochs)
