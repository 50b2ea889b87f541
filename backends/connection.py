"""From an environment to a welcomed rank: dial, Hello, Welcome, and the thread that keeps the link alive."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import attrs
import torch
import trio

from ..core.cadence_inputs import device_text
from ..core.config import LEAST_SCALE, config_digest
from ..core.door import PROTOCOL
from ..core.effects import Save
from ..core.errors import ConfigError, PacelineError, RefusedError, RemoteProtocolError, TransportError
from ..core.messages import Hello, Reject, RejectCode, ResumeClaim, Welcome, WelcomeStatus
from ..core.phases import WorkerPhase
from ..core.schema import Schema
from ..core.worker import Worker, WorkerSettings
from ..core.worker_link import pause_s
from ..transports.api import Channel, Credentials
from ..transports.groups import first_error
from ..transports.rank_driver import Answer, RankDriver
from ..transports.record_file import RunRecord
from ..transports.registry import find_transport
from ..transports.tcp import TcpTransport
from .averager import known_averagers
from .flat import FlatModel
from .star_link import StarLink

__all__ = ["Connection", "Environment", "connect", "devices_of"]

JOIN_S = 15.0
"""How long the end of a session may take to say its last words."""
POLL_S = 0.5
"""How often who waits for orders of a failed rank looks whether any can come."""
WELCOME_S = 30.0
"""How long the coordinator may take to answer a Hello, under `time_scale`."""
OF_A_GHOST = (RejectCode.SEAT, RejectCode.FULL)
"""Refusals that the seat of a rank whose link broke before its welcome is the reason of."""


def _hex(name: str, size: int) -> bytes:
    text = os.environ.get(name, "")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise ConfigError(f"{name} must be {2 * size} hexadecimal digits, as the coordinator printed them")
    return raw


def _number(name: str, default: float, least: float) -> float:
    text = os.environ.get(name)
    return default if text is None else _number_in(text, f"{name} = {text!r}", least)


def _number_in(text: str, what: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ConfigError(f"{what} is not allowed: a number of at least {least}")
    return number


@attrs.frozen(kw_only=True)
class Environment:
    """How to reach the run: the variables that `paceline run` and `paceline join` set (PACELINE_URL, _TOKEN, _RUN_ID,
    _RANK, _SLOW, _TRACE, _RECORD, _DIAL_S). `record` is the file to which the run is recorded, `dial_s` is how long
    nobody may answer, in seconds, multiplied like all times by the `time_scale` of the run (M-3)."""

    url: str
    token: bytes = attrs.field(repr=False)
    run_id: bytes
    rank: int | None = None
    slow: float = 1.0
    trace: str | None = None
    record: str | None = None
    dial_s: float = 30.0

    @property
    def address(self) -> str:
        """Where to dial: the URL without what it says about the run behind it."""
        return self.url.partition("?")[0]

    @property
    def bulk_auth(self) -> str:
        """What the tags of the bulk lane cover (N-26), which both ends must know before the first block: the listening
        address says it, as `?bulk_auth=header`."""
        return self._said("bulk_auth", "full")

    @property
    def time_scale(self) -> float:
        """By what the times of the run are multiplied (M-3), likewise: how long to dial must be known before the
        coordinator is there. `ConfigError` for what is no scale."""
        text = self._said("time_scale", "1")
        return _number_in(text, f"time_scale = {text!r} in PACELINE_URL", LEAST_SCALE)

    def _said(self, name: str, usual: str) -> str:
        return dict(parse_qsl(self.url.partition("?")[2])).get(name, usual)

    @classmethod
    def from_process(cls) -> Environment:
        """Read the process's environment; `ConfigError` names the variable that is missing or wrong."""
        url = os.environ.get("PACELINE_URL")
        if not url:
            raise ConfigError(
                "PACELINE_URL is not set: start this script with `paceline run --ranks 2 SCRIPT`, or with "
                "`paceline join URL SCRIPT` against a running coordinator"
            )
        rank = _number("PACELINE_RANK", -1, 0)
        return cls(
            url=url, token=_hex("PACELINE_TOKEN", 32), run_id=_hex("PACELINE_RUN_ID", 16),
            rank=None if rank < 0 else int(rank), slow=_number("PACELINE_SLOW", 1, 1),
            trace=os.environ.get("PACELINE_TRACE"), record=os.environ.get("PACELINE_RECORD"),
            dial_s=_number("PACELINE_DIAL_S", 30, 0),
        )  # fmt: skip


class Connection:
    """A welcomed rank: its welcome, its driver, its averager link, and the thread they live in."""

    def __init__(self) -> None:
        self.welcome: Welcome
        """The first one; what a rank is now, after a new life began, is in `driver.worker.settings`."""
        self.driver: RankDriver
        self.link: StarLink
        self._answered = threading.Event()
        self._error: BaseException | None = None
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread: threading.Thread | None = None

    def start(self, environment: Environment, hello: Hello, model: FlatModel) -> None:
        """Dial and knock; returns when the coordinator has welcomed this rank, raises what went wrong otherwise."""

        def body() -> None:
            try:
                trio.run(self._live, environment, hello, model)
            except BaseException as error:
                self._error = error
            finally:
                self._answered.set()

        self._thread = threading.Thread(target=body, name="paceline", daemon=True)
        self._thread.start()
        try:
            self._answered.wait()
        except BaseException:
            self._give_up()  # or a seat would go to a rank that nobody trains
            raise
        if self._error is not None:
            raise _plain(self._error)

    def _give_up(self) -> None:
        if self._token is None:
            self._scope.cancel()
            return
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    async def _live(self, environment: Environment, hello: Hello, model: FlatModel) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await self._talk(environment, hello, model)

    async def _talk(self, environment: Environment, hello: Hello, model: FlatModel) -> None:
        scale = environment.time_scale
        transport = find_transport(environment.address, scale)
        if isinstance(transport, TcpTransport):
            transport.dial_total_s = environment.dial_s
        credentials = Credentials(
            run_id=environment.run_id, token=environment.token, bulk_auth=environment.bulk_auth
        )

        async def dial(rank: int, claim: Callable[[], ResumeClaim | None]) -> Answer:
            once = attrs.evolve(transport, once=True) if isinstance(transport, TcpTransport) else transport
            again = await once.dial(environment.address, credentials)
            try:
                return again, await _ask(again, attrs.evolve(hello, wanted_rank=rank, resume=claim()), scale)
            except BaseException:
                await again.aclose()
                raise

        knock = partial(transport.dial, environment.address, credentials)
        channel, self.welcome = await _enter(knock, hello, environment.dial_s, scale)
        try:
            settings = WorkerSettings.from_welcome(self.welcome, environment.run_id, hello.callbacks)
            worker = Worker.create(settings, time.monotonic())
            record = None if environment.record is None else RunRecord(Path(environment.record), worker)
            self.driver = RankDriver(worker, channel, keep=None if record is None else record.append, dial=dial)
            digest = bool(dict(self.welcome.config)["digest"])
            joining = self.welcome.status == WelcomeStatus.JOINING
            self.link = StarLink(self.driver, model, with_digest=digest, joining=joining)
            self.driver.beside = self.link.run
            self._answered.set()
            await self.driver.run()
        finally:
            await channel.aclose()

    def next_order(self, patience_s: float) -> Any | None:
        """The next order, or None after `patience_s`. Raises if the thread died without a stop: a bug of ours."""
        try:
            return self.driver.orders.get(timeout=patience_s)
        except queue.Empty:
            if self._thread is not None and not self._thread.is_alive() and self.driver.orders.empty():
                raise _plain(self._error) if self._error else TransportError("the link ended without a word") from None
            return None

    def last_saves(self) -> Iterator[Save]:
        """W-24: what was ordered to be saved before the training failed; nothing else is obeyed any more."""
        with contextlib.suppress(PacelineError):  # the error that ended the training is the one to be told
            while self.driver.worker.phase == WorkerPhase.DRAINING:
                order = self.next_order(POLL_S)
                if isinstance(order, Save):
                    yield order

    def join(self) -> None:
        """Wait, bounded, until the last words are out."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)


async def _enter(
    dial: Callable[[], Awaitable[Channel]], hello: Hello, patience_s: float, scale: float
) -> tuple[Channel, Welcome]:
    """A channel whose Hello was welcomed. What is better soon is tried again, for as long as a dial would go on: a door
    that is busy, unlike a run that is full or at its end (N-29), and a link that ends between Hello and answer,
    whatever ends it (M-3). The coordinator may have let in what hung up then; until it knows that, the seat is this
    rank's own ghost's."""
    until = trio.current_time() + patience_s * scale
    broken = 0
    while True:
        channel = await dial()
        pause = pause_s(hello.host.encode(), hello.wanted_rank or 0, broken) * scale
        failure: PacelineError
        try:
            answer = await _ask(channel, hello, scale)
            if isinstance(answer, Welcome):
                return channel, answer
            soon = answer.code == RejectCode.BUSY or (broken > 0 and answer.code in OF_A_GHOST)
            pause = answer.after_s or pause
            text = f"the coordinator refused this rank: {answer.text}"
            failure = RefusedError(text, code=answer.code, retry=answer.retry)
        except TransportError as error:
            soon, failure = True, error
            broken += 1
        except BaseException:
            await channel.aclose()
            raise
        await channel.aclose()
        if not soon or trio.current_time() + pause > until:
            raise failure
        await trio.sleep(pause)


async def _ask(channel: Channel, hello: Hello, scale: float) -> Welcome | Reject:
    with trio.move_on_after(WELCOME_S * scale):
        await channel.send(hello)
        answer = await channel.receive()
        if not isinstance(answer, (Welcome, Reject)):
            raise RemoteProtocolError(f"the coordinator answered Hello with {type(answer).__name__}")
        return answer
    raise TransportError(f"the coordinator at {channel.peer} did not answer within {WELCOME_S * scale:g} s")


def connect(
    environment: Environment, schema: Schema, dataset: bytes, wishes: Mapping[str, Any], model: FlatModel,
    callbacks: tuple[str, ...] = (),
) -> Connection:
    """A connection whose rank is welcomed; raises as `Session` documents. `callbacks` names what the script brought."""
    hello = Hello(
        protocol=PROTOCOL, package=_version(), host=socket.gethostname(), devices=devices_of(model.model),
        runtime=f"python {platform.python_version()}, torch {torch.__version__}",
        byte_order=0 if sys.byteorder == "little" else 1, schema=schema, schema_hash=schema.hash(),
        dataset_signature=dataset, config_digest=config_digest(wishes), averagers=known_averagers(),
        wanted_rank=environment.rank, wishes=dict(wishes), callbacks=callbacks,
    )  # fmt: skip
    connection = Connection()
    connection.start(environment, hello, model)
    return connection


def devices_of(model: torch.nn.Module) -> tuple[str, ...]:
    """What the model lies on, in words (M-5, B-6): other devices of this host are not this rank's."""
    found = {parameter.device for parameter in model.parameters()} or {torch.device("cpu")}
    return tuple(_device(device) for device in sorted(found, key=lambda each: (each.type, each.index or 0)))


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    known = torch.cuda.get_device_properties(device)
    return device_text(known.name, f"{known.major}.{known.minor}", known.total_memory)


def _version() -> str:
    from .. import __version__

    return f"paceline {__version__}"


def _plain(error: BaseException) -> BaseException:
    """The error that ended the thread, in words if it is none of ours."""
    first = first_error(error)
    return first if isinstance(first, (PacelineError, KeyboardInterrupt)) else PacelineError(f"{first!r}")
