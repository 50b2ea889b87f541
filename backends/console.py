"""What a person sees of a run: a live display on a terminal, a line every few seconds anywhere else.

Both draw the same board, which is fed with the coordinator's records. What a rank writes appears above the live
display, or as it comes, with the rank in front. What comes from scripts and hosts is printed as it is: `rich` would
take brackets in it for markup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .report import Figures
from .screen import Screen
from .words import alert_in_words, counted, waited_in_words, waiting_in_words

__all__ = ["Board", "Display", "comparison", "plain_error"]

PLAIN_EVERY_S = 5.0
"""Between two lines of progress where there is no terminal."""
BAR_WIDTH = 40
STATE_STYLES = {"training": "green", "waiting": "yellow", "averaging": "blue"}
RANK_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")


@attrs.define
class Board:
    """The last known state of a run, from its records. `title` names the run in front of its progress."""

    title: str = ""
    ranks: Sequence[Mapping[str, Any]] = ()
    cycle: int = 0
    epoch: int | None = None
    merged: int = 0
    total: int = 0
    phase: str = "starting"
    losses: Mapping[str, float | None] = attrs.field(factory=dict)
    began: float | None = None
    now: float = 0.0
    waiting: bool = False

    def feed(self, record: Mapping[str, Any]) -> str | None:
        """Take a record in; gives what a person should be told at once, if anything."""
        self.now = record.get("t", self.now)
        self.cycle = record.get("cycle", self.cycle)
        self.phase = record.get("run_phase", self.phase).replace("_", " ")
        event = record.get("event")
        if event == "Status":
            self.ranks, self.epoch = record["ranks"], record["epoch"]
            self.merged, self.total = record["merged"], record["total"]
        elif event == "Cycle":
            self.losses = record["loss"]
        elif event == "PhaseChanged" and self.phase == "training" and self.began is None:
            self.began = self.now
        elif event == "Died":
            return f"rank {record['rank']} died ({record['cause']}); the others train what it had not merged"
        elif event == "Evaluated" and record["metric"] is not None:
            what = "the end" if record["final"] else f"epoch {record['epoch'] + 1}"
            return f"evaluation after {what}: {record['metric']:.6g} (version {record['version']})"
        elif event == "Refused" and "who" in record:
            return f"refused {record['who']}: {record['why']}"
        elif event == "Waiting":
            self.waiting = True
            return waiting_in_words(record)
        elif event == "Waited":
            self.waiting = False
            return waited_in_words(record)
        elif event == "Alert" and record["kind"] != "rank_lost":  # a death is an event as well
            return alert_in_words(record["path"], record["text"], record.get("count", 1))
        return None

    @property
    def loss(self) -> float | None:
        """Training loss of the last window, the mean over the ranks."""
        known = [loss for loss in self.losses.values() if loss is not None]
        return sum(known) / len(known) if known else None

    @property
    def moved(self) -> tuple[object, ...]:
        """Differs from what it was before if the run has got on."""
        return self.phase, self.cycle, self.merged, sum([rank["steps"] for rank in self.ranks])

    @property
    def elapsed(self) -> float:
        """Seconds of training so far."""
        return 0.0 if self.began is None else self.now - self.began

    def line(self) -> str:
        """Everything in one line of text."""
        done = f"{100 * self.merged / self.total:3.0f} % merged" if self.total else self.phase
        parts = [f"{self.title + ': ' if self.title else ''}{self.elapsed:5.1f} s, {done}, cycle {self.cycle}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        parts += [f"rank {r['rank']} {r['state']}, {r['steps']} steps, {r['per_s']:.0f}/s" for r in self.ranks]
        return "; ".join(parts)

    def result(self, run_dir: Path) -> str:
        """What a run that ended has to show."""
        return (
            f"{self.merged} of {counted(self.total, 'batch', 'batches')} in {counted(self.cycle, 'cycle')} and "
            f"{self.elapsed:.1f} s; the model is "
            f"{run_dir / 'consensus.safetensors'}"
        )

    def draw(self) -> RenderableType:
        """The live display: the run's progress, then a line per rank."""
        head = Table.grid(padding=(0, 2))
        done = f"{100 * self.merged / self.total:.0f} %" if self.total else self.phase
        facts = [done, f"{self.elapsed:.1f} s", f"cycle {self.cycle}"]
        if self.epoch is not None and self.total:
            facts.append(f"epoch {self.epoch + 1}")
        if self.loss is not None:
            facts.append(f"loss {self.loss:.3f}")
        bar = ProgressBar(total=max(self.total, 1), completed=self.merged, width=BAR_WIDTH)
        head.add_row(Text(self.title, style="bold"), bar, *facts)
        ranks = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        for name, justify in (("rank", "right"), ("state", "left"), ("steps", "right"), ("steps/s", "right"),
                              ("loss", "right")):  # fmt: skip
            ranks.add_column(name, justify=justify, min_width=9 if name == "state" else 7)  # type: ignore[arg-type]
        for rank in self.ranks:
            loss = "" if rank.get("loss") is None else f"{rank['loss']:.3f}"
            state = Text(rank["state"], style=STATE_STYLES.get(rank["state"], "dim"))
            ranks.add_row(str(rank["rank"]), state, str(rank["steps"]), f"{rank['per_s']:.1f}", loss)
        return Group(head, ranks) if self.ranks else head


class Display:
    """Shows one run while it goes on; a context manager and a `launch.Watcher`.

    Progress and the ranks' standard output go to standard output, the ranks' error output to standard error. With
    `quiet` the ranks' output is not shown. Where there is no terminal, the lines that tell of a wait (O-3) take the
    place of those of progress, as long as there is none.
    """

    def __init__(self, title: str = "", *, quiet: bool = False, console: Console | None = None) -> None:
        self.board = Board(title)
        self._console = console or Screen(highlight=False)
        self._quiet = quiet
        self._next_plain = 0.0
        self._shown: tuple[object, ...] = ()
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stderr=False)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
            self._live.update(self.board.draw(), refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def record(self, record: Mapping[str, Any]) -> None:
        """See `Watcher.record`."""
        if self.board.began is None:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
        told = self.board.feed(record)
        if told is not None:
            self.notice(told)
        if record.get("event") != "Status":
            return
        if self._live is not None:
            self._live.update(self.board.draw(), refresh=True)
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            shown, self._shown = self._shown, self.board.moved
            if self._shown != shown or not self.board.waiting:
                self._print(self.board.line())

    def line(self, rank: int | None, text: str, *, error: bool) -> None:
        """See `Watcher.line`."""
        if self._quiet and rank is not None:
            return
        prefix = "" if rank is None else f"[rank {rank}] "
        if self._live is None and error:
            print(prefix + text, file=sys.stderr, flush=True)
        else:
            style = "" if rank is None else RANK_STYLES[rank % len(RANK_STYLES)]
            self._print(Text(prefix, style=style) + Text(text))

    def notice(self, text: str) -> None:
        """See `Watcher.notice`."""
        self._print(Text(text, style="yellow"))

    def _print(self, text: Text | str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)
        self._console.file.flush()


def plain_error(text: str) -> None:
    """The one line that an error is, on standard error."""
    print(f"paceline: {' '.join(text.split())}", file=sys.stderr, flush=True)


def comparison(rows: Sequence[tuple[str, Figures]], *, samples: int, target_loss: float) -> Table:
    """The demo's table; `samples` is how many each run trained."""
    # As narrow as a terminal of 80 columns needs it.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    ranks = sorted({rank for _, row in rows for rank in row.waited})
    for name in (f"time to\n{samples:,}\nsamples", f"time to\nloss\n{target_loss:g}", "samples\nper s", "cycles",
                 *(f"rank {rank}\nwaited" for rank in ranks), "test\naccuracy"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in rows:
        waited = [f"{100 * row.waited[rank]:.0f} %" if rank in row.waited else "" for rank in ranks]
        target = "never" if row.seconds_to_target is None else f"{row.seconds_to_target:.1f} s"
        accuracy = "" if row.accuracy is None else f"{100 * row.accuracy:.1f} %"
        table.add_row(label, f"{row.seconds:.1f} s", target, f"{row.samples_per_second:,.0f}", f"{row.cycles:,.0f}",
                      *waited, accuracy)  # fmt: skip
    return table
