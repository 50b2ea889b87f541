"""One run on this host: a coordinator process and its ranks, started, watched and ended together.

Every child gets a session of its own, so Ctrl-C in a terminal reaches the launcher alone, and it decides:

- The first Ctrl-C (or SIGTERM) goes on to the coordinator, which ends the run after one last average and saves it. The
  ranks hear of that over their links. Before the training has begun there is nothing to save, and all is ended.
- The second one ends every process at once.

A rank that ends early is the run's own business, not the launcher's: the coordinator gives its work to the others.
Only before the training began there is no such remedy, since the run waits for every rank it was promised, and the
launcher ends it. A coordinator that dies takes the run with it: the ranks get `LOST_GRACE_S` to save what they have.

No process outlives the launcher, even when it is killed with SIGKILL (`reaper.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from ..core.errors import ConfigError, StallError, TransportError
from . import reaper
from .endings import INTERRUPTED

__all__ = ["EXIT_CODES", "Kill", "LocalRun", "Outcome", "Watcher"]

EXIT_CODES = {"ok": 0, "stopped": INTERRUPTED, "saved": 6, "failed": 6}
"""Exit code of a run by the status it finished with (docs/reference/exit-codes.md)."""
CONSEQUENCES = (StallError.exit_code, TransportError.exit_code)
"""Exit codes of a rank that only tell how the run ended."""
LOST_GRACE_S = 10.0
"""For ranks whose coordinator died: they notice at once and save; whoever hangs is ended."""
DRAIN_S = 1.0
"""For the last lines of a process that has ended, when a process it left behind holds its pipe open."""
LINE_BYTES = 1 << 20
"""A longer line of output is shown in parts."""
LAST_LINES = 20
"""How much of a rank's error output is kept, to be shown when it fails."""


@attrs.frozen
class Kill:
    """Kill a rank with SIGKILL, `after_s` seconds after the training began."""

    rank: int
    after_s: float


@attrs.frozen
class Outcome:
    """How a run ended: the exit code, one line that says why if it did not end well, and whether the run itself came to
    its end, with its average `saved`."""

    exit_code: int
    text: str
    saved: bool = False


class Watcher(Protocol):
    """Who follows a run. Called between two steps of the launcher; must return soon."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A record of the coordinator's timeline."""

    def line(self, rank: int | None, text: str, *, error: bool) -> None:
        """A line that a rank (None: the coordinator) wrote to its standard output, or error output."""

    def notice(self, text: str) -> None:
        """Something that the launcher did or saw."""


@attrs.define
class _Child:
    """A process of the run; `rank` is None for the coordinator."""

    rank: int | None
    process: trio.Process
    last_lines: deque[str] = attrs.field(factory=lambda: deque(maxlen=LAST_LINES))
    exit_code: int | None = None

    def kill(self) -> None:
        """End it and whatever it started, as far as that stayed in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


@attrs.define(kw_only=True)
class LocalRun:
    """Start a coordinator and `ranks` ranks, and see the run to its end.

    `script` is what each rank's Python gets as arguments, `coordinator` what is said to `paceline coordinate` about the
    run. `slow` throttles ranks: a factor of 3 leaves a third of the speed. Into `run_dir`, made where needed, come the
    coordinator's files, and with `traces` the ranks' changes of state as `rank-0.jsonl` and so on. `record` is the
    file to which coordinator and ranks record all that goes in and out of their machines. `environment` is added to
    that of the ranks.
    """

    ranks: int
    script: Sequence[str]
    coordinator: Sequence[str]
    run_dir: Path
    watcher: Watcher
    slow: Mapping[int, float] = attrs.field(factory=dict)
    kills: Sequence[Kill] = ()
    traces: bool = False
    debug: bool = False
    record: Path | None = None
    environment: Mapping[str, str] = attrs.field(factory=dict)
    bind: str = "tcp://127.0.0.1:0"

    _children: list[_Child] = attrs.field(init=False, factory=list)
    _finish: Mapping[str, Any] | None = attrs.field(init=False, default=None)
    _training: bool = attrs.field(init=False, default=False)
    _dismissed: bool = attrs.field(init=False, default=False)
    _interrupts: int = attrs.field(init=False, default=0)
    _failure: Outcome | None = attrs.field(init=False, default=None)
    _aborted: bool = attrs.field(init=False, default=False)
    _url: str | None = attrs.field(init=False, default=None)
    _killed: list[int] = attrs.field(init=False, factory=list)
    _dead: list[int] = attrs.field(init=False, factory=list)
    _secrets: dict[str, str] = attrs.field(init=False, factory=dict)
    _ranks: trio.Nursery = attrs.field(init=False)
    _helpers: trio.Nursery = attrs.field(init=False)
    _reaper: subprocess.Popen[bytes] = attrs.field(init=False)

    def run(self) -> Outcome:
        """Run to the end; call it from the main thread, since it answers signals. Raises `ConfigError` for a `run_dir`
        that cannot be made or a `record` that cannot be made or replaced."""
        with _usable("--run-dir", self.run_dir):
            self.run_dir.mkdir(parents=True, exist_ok=True)
            for rank in range(self.ranks):
                self.trace_path(rank).unlink(missing_ok=True)
        if self.record is not None:
            with _usable("--record", self.record):
                self.record.parent.mkdir(parents=True, exist_ok=True)
                self.record.unlink(missing_ok=True)
        self._secrets = {"PACELINE_TOKEN": secrets.token_hex(32), "PACELINE_RUN_ID": secrets.token_hex(16)}
        trio.run(self._run)
        return self._outcome()

    def trace_path(self, rank: int) -> Path:
        """Where a rank traces its changes of state."""
        return self.run_dir / f"rank-{rank}.jsonl"

    @property
    def killed(self) -> tuple[int, ...]:
        """The ranks that were killed as `kills` asked for."""
        return tuple(self._killed)

    # --- the course of a run -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper.__file__], stdin=subprocess.PIPE, start_new_session=True, bufsize=0
            )
            try:
                async with trio.open_nursery() as self._helpers:
                    self._helpers.start_soon(self._answer, signals)
                    await self._coordinate()
                    self._helpers.cancel_scope.cancel()
            finally:
                for child in self._children:
                    if child.exit_code is None:
                        child.kill()
                self._reaper.communicate()

    async def _coordinate(self) -> None:
        """The coordinator from its start to its end, then the end of the ranks."""
        argv = [sys.executable, "-P", "-m", "paceline.backends.cli", *(["--debug"] if self.debug else []), "coordinate"]
        argv += ["--bind", self.bind, "--records", "--ranks", str(self.ranks), "--run-dir", str(self.run_dir)]
        argv += [] if self.record is None else ["--record", str(self.record)]
        async with trio.open_nursery() as self._ranks:
            # Nobody would start this coordinator anew, so its ranks need not wait for that (W-21).
            child = await self._start(None, [*argv, "--set", "reconnect_window_s=0", *self.coordinator], {})
            await self._follow(child)
            if self._finish is None:
                self._lost(child)
                if self._training and not self._aborted:
                    self._ranks.cancel_scope.deadline = trio.current_time() + LOST_GRACE_S
                else:
                    self._kill_all()

    async def _answer(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            self._interrupts += 1
            coordinator = next((c for c in self._children if c.rank is None and c.exit_code is None), None)
            if self._interrupts == 1 and self._training and coordinator is not None:
                self.watcher.notice("stopping: one last average, then the model is saved (Ctrl-C again ends at once)")
                coordinator.process.send_signal(signal.SIGINT)
            elif self._interrupts == 1 and self._finish is not None:
                self.watcher.notice("the run is over, the scripts still work (Ctrl-C again ends them)")
            else:
                self._aborted = True
                self._kill_all()

    async def _rank(self, rank: int) -> None:
        """One rank from its start to its end."""
        assert self._url is not None
        environment = {"PACELINE_URL": self._url, "PACELINE_RANK": str(rank), **self.environment}
        if rank in self.slow:
            environment["PACELINE_SLOW"] = repr(self.slow[rank])
        if self.traces:
            environment["PACELINE_TRACE"] = str(self.trace_path(rank).resolve())
        if self.record is not None:
            environment["PACELINE_RECORD"] = str(self.record.resolve())
        child = await self._start(rank, [sys.executable, "-u", *self.script], environment)
        await self._follow(child)
        self._ended(child)

    async def _kill(self, kill: Kill) -> None:
        await trio.sleep(kill.after_s)
        for child in self._children:
            if child.rank == kill.rank and child.exit_code is None and self._finish is None:
                self._killed.append(kill.rank)
                self.watcher.notice(f"killing rank {kill.rank} with SIGKILL, {kill.after_s:g} s into the training")
                child.kill()

    def _record(self, record: Mapping[str, Any]) -> None:
        """What the coordinator's timeline means to the launcher."""
        event = record.get("event")
        if event == "Listening":
            self._url = record["url"]
            for rank in range(self.ranks):
                self._ranks.start_soon(self._rank, rank)
            return
        if event == "PhaseChanged" and record.get("phase") == "training":
            self._training = True
            for kill in self.kills:
                self._helpers.start_soon(self._kill, kill)
        elif event == "PhaseChanged" and record.get("phase") == "shutting_down":
            self._dismissed = True
        elif event == "Died":
            self._dead.append(record["rank"])
        elif event == "Finish":
            self._finish = record
        self.watcher.record(record)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _ended(self, child: _Child) -> None:
        """A rank has ended; is that a reason to end the run?"""
        over = self._dismissed or self._finish is not None
        if self._aborted or child.rank in self._killed or self._failure is not None or over:
            return
        if not self._training:
            failed = self._failed(child)
            hint = "" if child.exit_code else "; does the script train with a paceline.Session?"
            self._failure = attrs.evolve(failed, text=f"{failed.text}, before the training began{hint}")
            self._kill_all()
        elif child.exit_code and self._alive():
            self.watcher.notice(f"{self._failed(child).text}; the run goes on without it")

    def _failed(self, child: _Child) -> Outcome:
        """What is to be said of a process that failed; the last line of a traceback or error says what it was."""
        code, last = child.exit_code, child.last_lines[-1] if child.last_lines else ""
        why = f": {last.removeprefix('paceline: ')}" if code and last else ""
        who = "the coordinator" if child.rank is None else f"rank {child.rank}"
        return Outcome(code if code and code > 0 else 1, f"{who} {_describe(code)}{why}")

    def _lost(self, coordinator: _Child) -> None:
        """The coordinator ended without a word."""
        code = coordinator.exit_code or 0
        if self._failure is None:
            text = f"the coordinator {_describe(code)}, the run cannot go on without it and the ranks were ended"
            self._failure = Outcome(code if code > 0 else TransportError.exit_code, text)

    def _outcome(self) -> Outcome:
        """The exit code is the run's own, unless Ctrl-C or a script has the last word."""
        if self._aborted:
            return Outcome(INTERRUPTED, "interrupted, every process was ended at once")
        if self._failure is not None:
            return self._failure
        assert self._finish is not None, "without a Finish there is a failure"
        status = self._finish["status"]
        ranks = [child for child in self._children if child.rank is not None]
        # A signal is no error of the script, and these two codes only repeat what happened to the run.
        raised = [c for c in ranks if (c.exit_code or 0) > 0 and c.exit_code not in CONSEQUENCES]
        if status == "ok":
            raised = [child for child in raised if child.rank not in self._dead]  # it failed after the training
        elif status == "stopped" or not all(child.exit_code for child in ranks):
            raised = []
        coordinator = self._children[0]
        saved = status in ("ok", "stopped") and coordinator.exit_code == EXIT_CODES[status]
        if raised:
            return attrs.evolve(self._failed(raised[0]), saved=saved)
        if status in ("ok", "stopped") and not saved:
            return self._failed(coordinator)  # it could not write what the run came to (K-8)
        return Outcome(EXIT_CODES[status], self._finish["text"], saved)

    def last_lines(self, rank: int) -> list[str]:
        """The end of what a rank wrote to its error output."""
        return [line for child in self._children if child.rank == rank for line in child.last_lines]

    def _alive(self) -> list[_Child]:
        return [child for child in self._children if child.rank is not None and child.exit_code is None]

    def _kill_all(self) -> None:
        for child in self._children:
            if child.exit_code is None:
                child.kill()

    # --- processes -----------------------------------------------------------------------------------------------

    async def _start(self, rank: int | None, argv: Sequence[str], environment: Mapping[str, str]) -> _Child:
        debug = {"PACELINE_DEBUG": "1"} if self.debug else {}
        # Shielded: between the start of a process and its registration nothing may come.
        with trio.CancelScope(shield=True):
            process = await trio.lowlevel.open_process(
                list(argv), start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env={**os.environ, **debug, **self._secrets, **environment},
            )  # fmt: skip
            child = _Child(rank, process)
            self._children.append(child)
            self._tell_reaper(process.pid)
        if self.debug:
            self.watcher.notice(f"{'the coordinator' if rank is None else f'rank {rank}'} is process {process.pid}")
        return child

    def _tell_reaper(self, group: int) -> None:
        assert self._reaper.stdin is not None
        # A few bytes: the pipe takes them at once. A reaper that somebody killed is no reason to end the run.
        with contextlib.suppress(BrokenPipeError):
            self._reaper.stdin.write(b"%d\n" % group)

    async def _follow(self, child: _Child) -> None:
        """Read what a process writes until it has ended, then end whatever it has left behind in its group."""
        async with trio.open_nursery() as readers:
            readers.start_soon(self._read, child, False)
            readers.start_soon(self._read, child, True)
            await child.process.wait()
            child.kill()
            self._tell_reaper(-child.process.pid)
            readers.cancel_scope.deadline = trio.current_time() + DRAIN_S
        child.exit_code = child.process.returncode

    async def _read(self, child: _Child, error: bool) -> None:
        stream = child.process.stderr if error else child.process.stdout
        assert stream is not None
        async for line in _lines(stream):
            if error and line.strip():
                child.last_lines.append(line.strip())
            if child.rank is None and not error and line.startswith("{"):
                self._record(json.loads(line))
            else:
                self.watcher.line(child.rank, line, error=error)


@contextlib.contextmanager
def _usable(option: str, path: Path) -> Iterator[None]:
    """What the system refuses to do with a path is the fault of the option that named it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {str(path)!r} cannot be used: {error}; name another one") from error


def _describe(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """The lines of a stream, without their ends; a carriage return ends a line too, as progress bars use it."""
    rest = b""
    async for part in stream:
        *whole, rest = (rest + part).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
        if len(rest) > LINE_BYTES:
            yield rest.decode("utf-8", "replace")
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace")
