"""From a hint of the coordinator to the `prefetch` of a data set (D-24, W-25)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from paceline.backends.data import READ_AHEAD, Collator, Upcoming

from support.small_run import BATCH, SAMPLES, SmallRun, dataset


class Ahead(Dataset[Any]):
    """A data set that reads ahead, at most eight samples, and then raises."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return dataset()[index]

    def prefetch(self, indices: Iterable[int]) -> None:
        self.told.append(list(itertools.islice(indices, 8)))
        raise OSError("the disk is slow today")


def test_numbers_are_made_only_as_they_are_read() -> None:
    """D-24: a hint may go on for millions of samples, and its reader may have room for a few."""
    made: list[tuple[int, int, int]] = []

    def samples(epoch: int, offset: int, size: int) -> list[int]:
        made.append((epoch, offset, size))
        return list(range(offset, offset + size))

    upcoming = Upcoming(((3, ((10, 2), (1000, READ_AHEAD * 1000))), (4, ((0, 5),))), samples)

    assert list(itertools.islice(upcoming, 4)) == [10, 11, 1000, 1001]
    assert made == [(3, 10, 2), (3, 1000, READ_AHEAD)]
    assert len(list(upcoming)) == 2 + READ_AHEAD * 1000 + 5, "and once more from its beginning"


def test_a_data_set_without_the_hook_is_told_nothing() -> None:
    """W-25: without a prefetcher the hint is dropped."""
    assert Collator(dataset(), None).prefetch(Upcoming((), lambda *_: [])) is None


def test_a_data_set_is_told_what_it_is_asked_for_later(tmp_path: Path) -> None:
    """D-24, W-25: in a real run; what the hook raises stands in the trace and ends nothing. The samples it was told
    first are the next ones of this rank, but for the chunk that was out already."""
    run, ahead, trace = SmallRun(target_ranks=1), Ahead(), tmp_path / "trace.jsonl"

    seen = run.train(0, data=ahead, environment={"trace": str(trace)})

    assert run.coordinator.result().status == "ok"
    trained = seen.samples[0] + seen.samples[1]
    assert sorted(trained[:SAMPLES]) == list(range(SAMPLES))
    chunk = trained.index(ahead.told[0][0])
    assert chunk % BATCH == 0
    assert trained[chunk : chunk + 8] == ahead.told[0]
    assert len(ahead.told) > 2
    notes = [json.loads(line).get("note") for line in trace.read_text().splitlines()]
    assert notes.count("prefetch_failed") == len(ahead.told)
