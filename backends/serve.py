"""The coordinator's process: a listener, the driver, the star averager, records of what happens, and signals.

The first SIGINT or SIGTERM asks for a clean end: one last average, the consensus written, every rank told. The second
ends at once with status 130.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlencode

import attrs
import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.alerts import Alerts
from ..core.config import Config
from ..core.coordinator import Coordinator
from ..core.errors import CheckpointError, ConfigError
from ..core.phases import RunPhase
from ..core.policies import Policies
from ..core.schema import Schema
from ..core.waiting import Teller
from ..transports.api import Credentials, Listener
from ..transports.driver import CoordinatorDriver
from ..transports.groups import first_error
from ..transports.record_file import RunRecord
from ..transports.registry import find_transport
from .averager import Averager, find_averager
from .bundle import newest_whole, read_bundle
from .endings import INTERRUPTED
from .reopen import begin
from .star_server import StarServer
from .words import alert_in_words

__all__ = ["Recorder", "serve"]

STATUS_S = 0.25
SPEED_WINDOW_S = 2.0
"""Steps per second in a status are counted over this long."""


class Recorder:
    """Turns effects into records (O-3) for a file and for whoever looks on. A sink that fails is dropped. With `append`
    the file goes on, so that the timeline of a resumed run tells of both. Equal alerts become one, with a count; where
    nobody looks on, they are printed (O-2). With each `status` it is told who is waited for, if that is due (O-3)."""

    def __init__(
        self, coordinator: Coordinator, path: Path | None, look: Callable[[dict[str, Any]], None] | None,
        *, append: bool = False,
    ) -> None:  # fmt: skip
        self._co = coordinator
        self._look = look
        self._file: TextIO | None = None
        self._speeds: dict[int, deque[tuple[float, int]]] = {}
        self._alerts = Alerts()
        self._teller = Teller()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if append:
                    _cut_torn_line(path)
                self._file = open(path, "a" if append else "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the run
            except OSError as error:
                raise ConfigError(f"the run directory cannot be written: {error}") from error

    def observe(self, effect: Any) -> None:
        """One effect that is for people."""
        if isinstance(effect, fx.Emit):
            self.record(effect.name, effect.facts)
        elif isinstance(effect, fx.Alert):
            self._alert(self._alerts.take(effect, self._co.now))
        elif isinstance(effect, fx.Finish):
            self._tell()
            self._alert(self._alerts.close())
            self.record("Finish", attrs.asdict(effect))

    def _tell(self) -> None:
        """What time makes worth telling: who is waited for, and how often an alert was repeated."""
        self._alert(self._alerts.due(self._co.now))
        for event in self._teller.look(self._co):
            self.record(event.name, event.facts)

    def _alert(self, told: Iterable[tuple[fx.Alert, int]]) -> None:
        for alert, count in told:
            self.record("Alert", {**attrs.asdict(alert), "count": count})
            if self._look is None:
                print(f"paceline: {alert_in_words(alert.path, alert.text, count)}", flush=True)

    def record(self, event: str, facts: dict[str, Any]) -> None:
        """One record, stamped."""
        co = self._co
        line = {
            "t": time.monotonic(), "wall": time.time(), "run_id": co.config.run_id.hex(),
            "generation": co.generation, "cycle": co.cycle.number, "phase": co.cycle.phase.name.lower(),
            "run_phase": co.run.phase.name.lower(), "event": event, **facts,
        }  # fmt: skip
        if self._look is not None:
            try:
                self._look(line)
            except Exception as error:  # whoever looks on must not end a run (N-12)
                self._look = None
                text = f"{type(error).__name__}: {error}; it gets no more records"
                self._alert([(fx.Alert("callback_failed", "on_record", text), 1)])
        if self._file is not None and event != "Status":
            try:
                self._file.write(json.dumps(line) + "\n")
            except OSError:
                self._file = None

    def status(self) -> None:
        """Where everyone stands, for a live display, after what time makes worth telling. To be called a few times a
        second."""
        self._tell()
        co, now = self._co, time.monotonic()
        ranks = []
        for rank in sorted(co.peers):
            peer = co.peers[rank]
            seen = self._speeds.setdefault(rank, deque())
            seen.append((now, peer.total_steps))
            while seen[0][0] < now - SPEED_WINDOW_S and len(seen) > 1:
                seen.popleft()
            span = now - seen[0][0]
            speed = (peer.total_steps - seen[0][1]) / span if span > 0 else 0.0
            ranks.append({
                "rank": rank, "steps": peer.total_steps, "per_s": speed, "state": self._state(rank), "loss": peer.loss,
            })  # fmt: skip
        epochs = co.book.num_epochs
        self.record("Status", {
            "ranks": ranks, "version": co.cycle.version, "epoch": min(co.book.first_live, max(0, epochs - 1)),
            "merged": co.book.covered, "total": sum(co.book.total(epoch) for epoch in range(epochs)),
            "waiting": self._teller.facts,
        })  # fmt: skip

    def _state(self, rank: int) -> str:
        co, peer = self._co, self._co.peers[rank]
        if not peer.alive:
            return peer.phase.name.lower()
        if co.run.phase == RunPhase.FORMING:
            return "joining"
        if co.cycle.pending and (co.config.barrier_paced or not peer.acked):
            return "averaging"
        return "training" if co.book.holdings(rank).in_flight_batches else "waiting"

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _cut_torn_line(path: Path) -> None:
    """A process that was killed may have left half a record, which the next one would be glued to."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)


async def serve(
    config: Config,
    url: str,
    credentials: Credentials,
    *,
    run_dir: Path | None = None,
    record: Path | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    ready: Callable[[str], None] | None = None,
    policies: Policies | None = None,
) -> fx.Finish:
    """Run one coordinator until its run is over; gives its `Finish`.

    `url` is where to listen (port 0 picks one), `ready` gets the URL for `PACELINE_URL`, `on_record` every record.
    With `run_dir` the timeline and the consensus are written there, with `record` all that goes in and out of the
    machine is appended to that file. `policies` take the place of those that the config names. In the main thread
    SIGINT and SIGTERM are handled as the module says. If the config names a journal that is there, the run it is of
    goes on (M-40). Raises `TransportError` if the address cannot be bound, `ConfigError` if `run_dir` cannot be
    written, the averager is not to be found or a policy that the config names cannot be loaded, `CheckpointError` if
    the run ended and its consensus could not be, if the journal cannot be begun or gone on with, or what is to be
    resumed cannot be, `InvariantError` if a bug breaks the run off.
    """
    find_averager(config.averager)  # before anybody is let in: without it no rank could ever average
    credentials = attrs.evolve(credentials, bulk_auth=config.bulk_auth)
    listener = await find_transport(url, config.time_scale).listen(url, credentials)
    try:
        return await _serve(config, listener, credentials, run_dir, record, on_record, ready, policies)
    finally:
        await listener.aclose()


async def _serve(
    config: Config,
    listener: Listener,
    credentials: Credentials,
    run_dir: Path | None,
    record: Path | None,
    on_record: Callable[[dict[str, Any]], None] | None,
    ready: Callable[[str], None] | None,
    policies: Policies | None,
) -> fx.Finish:
    if run_dir is not None:
        config = attrs.evolve(config, save_path=config.save_path or str(run_dir))
    config = attrs.evolve(config, run_id=credentials.run_id)
    bundle = read_bundle(Path(config.initial_state)) if config.is_resumed else None
    if bundle is not None:
        config = attrs.evolve(config, initial_state=str(bundle.file))
    resume = None if bundle is None else bundle.resume
    coordinator, journal, goes_on = begin(config, trio.current_time(), resume, policies)

    def make(schema: Schema) -> Averager:
        return find_averager(config.averager)(schema, gamma=config.gamma, digest=config.digest)

    plane = StarServer(lambda: coordinator.schema, make)
    with ExitStack() as files:
        if journal is not None:
            files.callback(journal.close)
        timeline = None if run_dir is None else run_dir / "timeline.jsonl"
        same = bundle is not None and run_dir is not None and bundle.file.parent == run_dir.resolve()
        recorder = Recorder(coordinator, timeline, on_record, append=same or goes_on)
        files.callback(recorder.close)
        keepers = [] if journal is None else [journal.append]
        if record is not None:
            kept = RunRecord(record, coordinator)
            files.callback(kept.close)
            keepers.append(kept.append)

        def keep(ready: fx.Ready) -> None:
            for keeper in keepers:
                keeper(ready)

        driver = CoordinatorDriver(coordinator, plane, recorder.observe, journal=keep if keepers else None)
        try:
            finish = await _drive(driver, listener, recorder, ready)
        except BaseExceptionGroup as group:
            error = first_error(group)
            raise error from error.__cause__
    if plane.failure is not None:
        raise CheckpointError(f"the run is over ({finish.text}), but its model is not saved: {plane.failure}; "
                              f"{_instead(config)}")  # fmt: skip
    return finish


def _instead(config: Config) -> str:
    """What there is in place of a model that could not be saved (K-8)."""
    whole = None if config.save_path is None else newest_whole(Path(config.save_path))
    if whole is None:
        return "there is no older bundle to go on from"
    return f"the newest bundle that is whole is {whole.file}, version {whole.resume.version}"


async def _drive(
    driver: CoordinatorDriver, listener: Listener, recorder: Recorder, ready: Callable[[str], None] | None
) -> fx.Finish:
    async with trio.open_nursery() as nursery:
        if threading.current_thread() is threading.main_thread():
            await nursery.start(_signals, driver)
        nursery.start_soon(_statuses, recorder)
        if ready is not None:
            ready(listener.url + _for_diallers(driver.coordinator.config))
        finish = await driver.run(listener)
        recorder.status()
        nursery.cancel_scope.cancel()
    return finish


def _for_diallers(config: Config) -> str:
    """What a rank must know before it is welcomed, if it is not as usual: how blocks are tagged (N-26), and how long to
    wait for an answer (M-3)."""
    unusual = {"bulk_auth": config.bulk_auth, "time_scale": f"{config.time_scale:g}"}
    usual = {"bulk_auth": "full", "time_scale": "1"}
    said = {name: value for name, value in unusual.items() if value != usual[name]}
    return f"?{urlencode(said)}" if said else ""


async def _signals(driver: CoordinatorDriver, task_status: trio.TaskStatus[None]) -> None:
    """The first one stops the run, the second one everything. Once it has started, none is taken otherwise."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        seen = 0
        async for _ in received:
            seen += 1
            if seen > 1:
                os._exit(INTERRUPTED)
            driver.post(ev.OperatorRequest(ev.Operator.STOP))


async def _statuses(recorder: Recorder) -> None:
    while True:
        recorder.status()
        await trio.sleep(STATUS_S)
