"""`paceline demo`: the same training four times, and what the pace of each was.

Every run trains the same samples with the same seed, one run after the other because a small machine has two cores:
one fast rank alone, to know what is lost or won by a companion three times slower; both in lock-step, as synchronous
data parallelism does it; at a cadence, which is what this library is for; and asynchronously. What is told in the end
is measured from the timelines (`report.py`), so it holds for this machine and this day, not for a brochure.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from torch.utils.data import TensorDataset

from ..core.errors import CheckpointError, InvariantError, PacelineError
from .chart import draw_report
from .checkpoint import load_model
from .console import Display, comparison
from .demo_data import SPLIT_SEED, TEST_SAMPLES, load_split
from .demo_train import BATCH_SIZE, build_model, evaluate, write_samples
from .endings import INTERRUPTED
from .launch import Kill, LocalRun
from .report import Accounting, Figures, Recording, account, figures, mean_figures, read_timeline
from .screen import Screen

__all__ = ["CONTESTS", "Contest", "Demo", "summary"]

EPOCHS = 30
KILL_EPOCHS_PER_S = 15
"""Epochs of a run with `--kill`, for each second to the last kill. A fast machine trains some ten of them a second, and
the run has to be on its way then."""
TARGET_LOSS = 0.1
"""Training loss, mean over an epoch's worth of batches, to which the time is measured."""


@attrs.frozen(kw_only=True)
class Contest:
    """One of the runs that are compared; `options` is what its coordinator is told."""

    name: str
    label: str
    ranks: int
    options: tuple[str, ...]


CONTESTS = (
    Contest(name="alone", label="fast rank alone", ranks=1, options=("--policy", "cadence")),
    Contest(name="lock-step", label="lock-step", ranks=2, options=("--policy", "sync", "--max-batch-diff", "0")),
    Contest(name="cadence", label="cadence", ranks=2, options=("--policy", "cadence")),
    Contest(name="async", label="async", ranks=2, options=("--policy", "async")),
)


@attrs.define
class Demo:
    """All runs of a demo. `slow` and `kills` are those of `LocalRun`; with `kills` cadence runs alone."""

    out: Path
    seeds: int = 1
    epochs: int | None = None
    slow: Mapping[int, float] = attrs.field(factory=dict)
    kills: Sequence[Kill] = ()
    debug: bool = False
    console: Console = attrs.field(factory=lambda: Screen(highlight=False))

    _split: tuple[TensorDataset, TensorDataset] = attrs.field(init=False, factory=load_split)
    _recordings: list[Recording] = attrs.field(init=False, factory=list)
    _figures: dict[str, list[Figures]] = attrs.field(init=False, factory=dict)
    _accounts: list[Accounting] = attrs.field(init=False, factory=list)

    def run(self) -> int:
        """Run everything, write the files, print the table; gives the exit code."""
        train, _ = self._split
        epochs = self._epochs()
        batches = len(train) // BATCH_SIZE
        contests = [c for c in CONTESTS if c.name == "cadence"] if self.kills else list(CONTESTS)
        self._prepare()
        slow = ", ".join(f"rank {rank} slowed to 1/{factor:g}" for rank, factor in sorted(self.slow.items()))
        self._say(
            f"handwritten digits: {len(train)} to train, {TEST_SAMPLES} to test (split seed {SPLIT_SEED}); {epochs} "
            f"epochs of {batches} batches of {BATCH_SIZE}; {slow or 'no rank slowed'}; "
            f"training seeds {', '.join(map(str, range(self.seeds)))}"
        )
        if self.kills:
            self._say("with --kill only cadence runs")
        for seed in range(self.seeds):
            for contest in contests:
                code = self._contest(contest, seed, epochs, batches)
                if code:
                    return code
        self._write()
        return self._conclude(contests, epochs * batches * BATCH_SIZE)

    def _epochs(self) -> int:
        if self.epochs is not None:
            return self.epochs
        last = max((kill.after_s for kill in self.kills), default=0.0)
        return max(EPOCHS, math.ceil(KILL_EPOCHS_PER_S * last))

    def _prepare(self) -> None:
        try:
            shutil.rmtree(self._runs, ignore_errors=True)
            self._runs.mkdir(parents=True, exist_ok=True)
            write_samples(self._samples, self._split[0])
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.out}: {error}; name another directory with --out") from error

    @property
    def _runs(self) -> Path:
        return self.out / "runs"

    @property
    def _samples(self) -> Path:
        return self._runs / "samples.safetensors"

    # --- one run -------------------------------------------------------------------------------------------------

    def _contest(self, contest: Contest, seed: int, epochs: int, batches: int) -> int:
        directory = self._runs / f"{contest.name}-{seed}"
        title = contest.label + (f" (seed {seed})" if self.seeds > 1 else "")
        with Display(title, quiet=True, console=self.console) as display:
            job = LocalRun(
                ranks=contest.ranks, run_dir=directory, watcher=display, coordinator=contest.options, traces=True,
                script=["-P", "-m", "paceline.backends.demo_train", "--samples", str(self._samples),
                        "--epochs", str(epochs), "--seed", str(seed)],
                slow={rank: factor for rank, factor in self.slow.items() if rank < contest.ranks},
                kills=self.kills, debug=self.debug,
            )  # fmt: skip
            outcome = job.run()
        if outcome.exit_code:
            return self._failed(job, title, outcome.exit_code, outcome.text)
        missed = [kill.rank for kill in self.kills if kill.rank not in job.killed]
        if missed:
            raise PacelineError(f"the run was over before rank {missed[0]} could be killed; give more --epochs")
        recording = self._record(contest, seed, directory)
        self._recordings.append(recording)
        one = figures(recording, batch_size=BATCH_SIZE, target_loss=TARGET_LOSS, window=batches)
        self._figures.setdefault(contest.name, []).append(one)
        self._accounts.append(account(recording.records, epochs))
        self._say(f"{title}: {one.seconds:.1f} s, {one.samples_per_second:,.0f} samples/s, "
                  f"{100 * (one.accuracy or 0.0):.1f} % of the test digits right")  # fmt: skip
        return 0

    def _failed(self, job: LocalRun, title: str, code: int, text: str) -> int:
        """Show what the ranks said last: their output was not shown while they ran."""
        if code != INTERRUPTED:
            for rank in range(job.ranks):
                for line in job.last_lines(rank):
                    self.console.print(f"[rank {rank}] {line}", markup=False, soft_wrap=True)
        raise _Ended(f"{title}: {text}", code)

    def _record(self, contest: Contest, seed: int, directory: Path) -> Recording:
        """The timeline of a run with the traces of its ranks and the score of its model, in the order of time."""
        records = read_timeline(directory / "timeline.jsonl")
        for rank in range(contest.ranks):
            traced = read_timeline(directory / f"rank-{rank}.jsonl")
            records += [{"event": "Trace", **line} for line in traced if "state" in line]
        records.sort(key=lambda record: record["t"])
        tensors, _ = load_model(directory / "consensus.safetensors")
        model = build_model(seed)
        model.load_state_dict(tensors)
        accuracy = evaluate(model, self._split[1])
        records.append({"event": "Evaluated", "t": records[-1]["t"], "accuracy": accuracy})
        return Recording(contest.name, [{"run": contest.name, "seed": seed, **record} for record in records])

    # --- all of them ---------------------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            with open(self.out / "timeline.jsonl", "w", encoding="utf-8") as file:
                for recording in self._recordings:
                    file.writelines(json.dumps(record) + "\n" for record in recording.records)
            shutil.copyfile(self._runs / "cadence-0" / "consensus.safetensors", self.out / "averaged.safetensors")
            labels = {contest.name: contest.label for contest in CONTESTS}
            first = [recording for recording in self._recordings if recording.records[0]["seed"] == 0]
            window = len(self._split[0]) // BATCH_SIZE
            svg = draw_report(first, labels, target_loss=TARGET_LOSS, window=window)
            (self.out / "report.svg").write_text(svg, encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.out}: {error}; name another directory with --out") from error

    def _conclude(self, contests: Sequence[Contest], samples: int) -> int:
        means = {name: mean_figures(several) for name, several in self._figures.items()}
        rows = [(contest.label, means[contest.name]) for contest in contests]
        self.console.print()
        if self.seeds > 1:
            self._say(f"means over {self.seeds} seeds:")
        self.console.print(comparison(rows, samples=samples, target_loss=TARGET_LOSS))
        for sentence in summary(means, samples):
            self._say(sentence)
        total = sum(self._accounts[1:], self._accounts[0])
        self._say(total.sentence(BATCH_SIZE))
        self._say(f"written to {self.out}: report.svg, timeline.jsonl, averaged.safetensors")
        if total.lost or total.twice:
            raise InvariantError(f"{total.sentence(BATCH_SIZE)}; every sample counts once (I42), please report this")
        return 0

    def _say(self, text: str) -> None:
        # A terminal gets whole words, a file whole sentences.
        self.console.print(text, markup=False, soft_wrap=not self.console.is_terminal)


class _Ended(PacelineError):
    """A run of the demo did not end well; the demo ends with its exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def summary(means: Mapping[str, Figures], samples: int) -> list[str]:
    """What happened, in two sentences; one if the runs to compare with are not there."""
    cadence = means["cadence"]
    if "lock-step" not in means:
        return [
            f"At a cadence the ranks trained {samples:,} samples in {cadence.seconds:.1f} s, "
            f"{cadence.samples_per_second:,.0f} a second."
        ]
    lock, alone = means["lock-step"], means["alone"]
    ratio = cadence.samples_per_second / lock.samples_per_second
    scored = [means[name].accuracy or 0.0 for name in ("cadence", "lock-step", "async") if name in means]
    difference = 100 * (min(scored) - (alone.accuracy or 0.0))
    waited, waited_lock = (100 * one.waited.get(0, 0.0) for one in (cadence, lock))
    first = (
        f"At a cadence the two ranks trained the {samples:,} samples in {cadence.seconds:.1f} s, {ratio:.2f} times as "
        f"many a second as in lock-step ({lock.seconds:.1f} s): the fast rank waited {waited:.0f} % of the time in "
        f"place of {waited_lock:.0f} %."
    )
    second = (
        f"That is {alone.seconds / cadence.seconds:.2f} times the pace of the fast rank alone, and the averaged model "
        f"gets {100 * (cadence.accuracy or 0.0):.1f} % of the test digits right, the fast rank alone "
        f"{100 * (alone.accuracy or 0.0):.1f} %, the policy that does worst {difference:+.1f} points from that."
    )
    return [first, second]
