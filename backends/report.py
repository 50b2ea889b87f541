"""What a run did, read from its timeline alone: how long, how fast, who waited, and what became of every batch.

The timeline is a list of records (dicts): those of the coordinator, and the changes of state that each rank traced,
with `"event": "Trace"`. Nothing is asked of the machines that wrote it. That matters most for `account`: it counts
the batches which the consensus of each cycle covers, one by one, and so finds what a fault in the coordinator's own
counters would hide.

Times are the records' `t`, seconds on the monotonic clock that all processes of one host share. A run *begins* when
its ranks are formed and given their first work, and *ends* with the last average that merged anything. Starting and
stopping processes is not part of it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from ..core.errors import CheckpointError, InvariantError

__all__ = ["Accounting", "Figures", "Recording", "Span", "account", "figures", "mean_figures", "read_timeline"]

Record = Mapping[str, Any]
STAMP = ("t", "wall", "generation", "phase", "run_phase", "again")
"""What differs between two records of one event."""


# --- what became of every batch --------------------------------------------------------------------------------


@attrs.frozen
class Accounting:
    """Batches by what became of them. A run that kept its promise has `lost` 0 and `twice` 0 (I42).

    `merged` batches are in the consensus, `lost` ones of the expected epochs are not, `twice` counts every merge of a
    batch after its first, and `replayed` the steps whose result went down with a rank or was refused, so that the same
    batch was trained again.
    """

    merged: int
    lost: int
    twice: int
    replayed: int

    def __add__(self, other: Accounting) -> Accounting:
        """Both runs together."""
        return Accounting(
            self.merged + other.merged, self.lost + other.lost, self.twice + other.twice, self.replayed + other.replayed
        )

    def sentence(self, batch_size: int) -> str:
        """The three numbers a user cares about, in samples."""
        lost, twice, replayed = (count * batch_size for count in (self.lost, self.twice, self.replayed))
        return f"samples lost {lost}, merged twice {twice}, replayed {replayed}"


def account(records: Iterable[Record], epochs: int) -> Accounting:
    """Count the merges of each batch of `epochs` epochs from the EpochStart and Covered records.

    Whether a batch is lost or merged twice follows from the slices that each consensus covers. How many steps were
    replayed only the coordinator can know, since what died with a rank is in nobody's consensus; its last word is
    taken. An epoch that never started is lost as a whole, and taken to be as long as the first one. Raises
    `InvariantError` for a slice outside its epoch.
    """
    merges: dict[int, list[int]] = {}
    replayed = 0
    for record in records:
        replayed = max(replayed, record.get("replayed", 0))
        if record.get("event") == "EpochStart":
            merges.setdefault(record["epoch"], [0] * record["batches"])
        elif record.get("event") == "Covered":
            for rank, epoch, first, count in record["slices"]:
                counts = merges.get(epoch, [])
                if first < 0 or first + count > len(counts):
                    raise InvariantError(
                        f"cycle {record['cycle']} covers batches {first} to {first + count - 1} of epoch {epoch} for "
                        f"rank {rank}, which has {len(counts)} (I42)"
                    )
                for batch in range(first, first + count):
                    counts[batch] += 1
    length = len(merges[0]) if 0 in merges else 0
    never_started = sum(length for epoch in range(epochs) if epoch not in merges)
    every = [count for epoch in sorted(merges) for count in merges[epoch]]
    return Accounting(
        merged=sum(every),
        lost=every.count(0) + never_started,
        twice=sum(count - 1 for count in every if count > 1),
        replayed=replayed,
    )


# --- one run ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Span:
    """A stretch of time, in seconds since the run began, in which a rank did one thing: `state` is training, waiting,
    averaging or stopped."""

    start: float
    end: float
    state: str


@attrs.frozen
class Recording:
    """The records of one run, in the order of their times."""

    name: str
    records: Sequence[Record]

    def events(self, name: str) -> list[Record]:
        """Its records of one event."""
        return [record for record in self.records if record.get("event") == name]

    @property
    def began(self) -> float:
        """When the ranks were given their first work."""
        starts = [r["t"] for r in self.events("PhaseChanged") if r.get("phase") == "training"]
        if not starts:
            raise CheckpointError(f"the timeline of {self.name!r} holds no start of training; the run did not form")
        return float(starts[0])

    @property
    def ended(self) -> float:
        """When the last average that merged anything was finished."""
        return float(max((r["t"] for r in self.events("Covered") if r["slices"]), default=self.began))

    @property
    def seconds(self) -> float:
        """How long the training took."""
        return self.ended - self.began

    @property
    def ranks(self) -> list[int]:
        """Who traced what it did."""
        return sorted({record["rank"] for record in self.events("Trace")})

    def spans(self, rank: int) -> list[Span]:
        """What a rank did between the beginning and the end of the run, without gaps from its first trace on."""
        began, ended = self.began, self.ended
        changes = [(r["t"], r["state"]) for r in self.events("Trace") if r["rank"] == rank]
        deaths = [r["t"] for r in self.events("Died") if r["rank"] == rank]
        changes += [(t, "stopped") for t in deaths]
        changes.sort(key=lambda change: change[0])
        changes.append((ended, "stopped"))
        found = []
        for (start, state), (end, _) in pairwise(changes):
            start, end = max(start, began) - began, min(end, ended) - began
            if end > start:
                found.append(Span(start, end, state))
        return found

    def waited(self, rank: int) -> float:
        """The part of the run, 0 to 1, in which a rank did not train although it was there.

        Waiting for an average counts, not only waiting for orders: most of an average is waiting for the slower ranks'
        contributions.
        """
        if not self.seconds:
            return 0.0
        return sum(s.end - s.start for s in self.spans(rank) if s.state in ("waiting", "averaging")) / self.seconds

    def losses(self, window: int) -> list[tuple[float, float]]:
        """Training loss over time: at the end of each cycle, the mean over at least the last `window` merged batches.

        A cycle is as long as the policy makes it, two batches or a hundred; over a fixed number of batches the curves
        of all policies are equally smooth, so that crossing a target means the same in each. Empty before the first
        `window` batches.
        """
        recent: deque[tuple[int, float]] = deque()
        batches, points = 0, []
        for cycle in self.events("Cycle"):
            losses = [(n, cycle["loss"].get(rank)) for rank, n in cycle["merged"].items()]
            known = [(n, loss) for n, loss in losses if n and loss is not None]
            if not known:
                continue
            recent.append((sum(n for n, _ in known), sum(n * loss for n, loss in known)))
            batches += recent[-1][0]
            while batches - recent[0][0] >= window:
                batches -= recent.popleft()[0]
            if batches >= window:
                points.append((cycle["t"] - self.began, sum(loss for _, loss in recent) / batches))
        return points

    def accuracy(self) -> float | None:
        """What the averaged model scored on the held-out samples, if somebody evaluated it."""
        evaluated = self.events("Evaluated")
        return float(evaluated[-1]["accuracy"]) if evaluated else None


# --- figures ---------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Figures:
    """A line of the demo's table. Times in seconds, shares and accuracy from 0 to 1; None where there is none.

    `seconds_to_target` is None when the loss never came down to the target.
    """

    name: str
    seconds: float
    seconds_to_target: float | None
    samples_per_second: float
    cycles: float
    waited: Mapping[int, float]
    accuracy: float | None


def figures(recording: Recording, *, batch_size: int, target_loss: float, window: int) -> Figures:
    """Measure one run; `window` is that of `Recording.losses`."""
    merged = sum(part[3] for record in recording.events("Covered") for part in record["slices"])
    crossed = [t for t, loss in recording.losses(window) if loss <= target_loss]
    return Figures(
        name=recording.name,
        seconds=recording.seconds,
        seconds_to_target=crossed[0] if crossed else None,
        samples_per_second=merged * batch_size / recording.seconds if recording.seconds else 0.0,
        cycles=len([r for r in recording.events("Covered") if r["slices"]]),
        waited={rank: recording.waited(rank) for rank in recording.ranks},
        accuracy=recording.accuracy(),
    )


def mean_figures(several: Sequence[Figures]) -> Figures:
    """The mean over the same run with several seeds. A time to target that one of them lacks is lacking."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    def sure(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    ranks = sorted({rank for one in several for rank in one.waited})
    return Figures(
        name=several[0].name,
        seconds=sure([one.seconds for one in several]),
        seconds_to_target=mean([one.seconds_to_target for one in several]),
        samples_per_second=sure([one.samples_per_second for one in several]),
        cycles=sure([one.cycles for one in several]),
        waited={rank: sure([one.waited.get(rank, 0.0) for one in several]) for rank in ranks},
        accuracy=mean([one.accuracy for one in several]),
    )


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines.

    A last line that was cut short, as by the death of its writer, is left out. Raises `CheckpointError` for any other
    line that is no record, and for a file that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the timeline {path}: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a record")
        except ValueError as error:
            if number == len(lines):
                break
            raise CheckpointError(f"line {number} of {path} is no record: {error}") from error
        records.append(record)
    return _once(records)


def _once(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a coordinator that was started anew has said `again`, where its former life did say it (M-44)."""
    if not any(record.get("again") for record in records):
        return records
    said: set[str] = set()
    kept = []
    for record in records:
        facts = json.dumps({name: fact for name, fact in record.items() if name not in STAMP}, sort_keys=True)
        if not (record.get("again") and facts in said):
            kept.append(record)
        said.add(facts)
    return kept
