"""The trio driver of a coordinator: bytes to events, effects to bytes, and nothing decided in between.

One task owns the machine. Everything that happens elsewhere (a message on a control lane, a lost link, an averager's
result, an operator's wish) is an event in one inbox; the task handles all that is there, then a tick, then performs
the batch of effects in order (architecture section 3). It never waits for a rank: what it sends goes into a queue of
that rank's own writer (N-8), and a writer that cannot write says so with `SendFailed` (N-10).

    accept -> Hello -> [inbox] -> handle ... take_ready -> Admit -> Welcome -> reader, writer, bulk lane

The data plane is somebody else's (`DataPlane`): the driver passes it the effects that concern rounds, and the bulk
lane of each channel.

What a peer does ends that peer's link and nothing else. What we do wrong ends the run, with one error that says so: a
coordinator that goes on after a bug would leave its ranks waiting for something that never comes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import trio

from ..core import effects as fx
from ..core import events as ev
from ..core.coordinator import Coordinator
from ..core.door import misstamped
from ..core.errors import InvariantError, PacelineError, RemoteProtocolError, TransportError
from ..core.messages import Hello, Report
from .api import Channel, Listener
from .groups import first_error

__all__ = ["CoordinatorDriver", "DataPlane"]

OUTGOING_LIMIT = 4096
"""Messages that may wait for a rank's writer; more end the incarnation as overflow (N-9)."""
INBOX_LIMIT = 4096
"""Events that may wait for the machine before readers pause: back-pressure reaches the ranks through their lanes."""
FLUSH_S = 5.0
"""How long the last messages (`Shutdown` among them) may take to leave, once the run or a link is to end."""

ROUND_EFFECTS = (
    fx.OpenRound, fx.AdmitContribution, fx.RemoveFromRound, fx.AbortRound, fx.CloseRound, fx.SaveConsensus,
    fx.WriteMeta,
)  # fmt: skip


class DataPlane(Protocol):
    """What turns contributions into a consensus, seen from the driver (star: `backends.star_server`)."""

    def perform(self, effect: Any) -> None:
        """Take one of the effects about rounds and files; returns at once, results come back as events."""
        ...

    async def serve(self, rank: int, incarnation: int, channel: Channel) -> None:
        """Serve the bulk lane of an incarnation until it ends."""
        ...

    async def run(self, driver: CoordinatorDriver) -> None:
        """Whatever tasks of its own the data plane needs, for as long as the run lasts."""
        ...

    async def settle(self) -> None:
        """Wait for what must survive the run, such as files being written; `run` goes on meanwhile."""
        ...


class _Link:
    """One connection: before its admission only a number, afterwards a rank's incarnation with a writer of its own.

    `overflow` says why the link is closed without a flush. A link is `replaced` when its rank has come back over
    another one: what becomes of it then is nobody's business any more (M-42).
    """

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.replaced = False
        self.decided = trio.Event()
        self.admitted: fx.Admit | None = None
        self.refused: fx.Refuse | None = None
        self.outgoing: deque[tuple[Any, tuple[int, int, int] | None]] = deque()
        self.wake = trio.Event()
        self.empty = trio.Event()
        self.empty.set()
        self.closing = trio.Event()
        self.overflow = ""

    def append(self, message: Any, token: tuple[int, int, int] | None) -> None:
        """Leave a message to the writer."""
        self.outgoing.append((message, token))
        if self.empty.is_set():
            self.empty = trio.Event()
        self.wake.set()


class CoordinatorDriver:
    """Runs one coordinator over a listener, a new one or one that was started anew (`Coordinator.restart`). `observe`
    sees every effect that is for people: Emit, Alert, Finish. `journal` gets each batch before any effect of it is
    performed (M-40), the batch of a failure too."""

    def __init__(
        self,
        coordinator: Coordinator,
        plane: DataPlane,
        observe: Callable[[Any], None],
        clock: Callable[[], float] = trio.current_time,
        journal: Callable[[fx.Ready], None] | None = None,
    ) -> None:
        self.coordinator = coordinator
        self._plane = plane
        self._observe = observe
        self._clock = clock
        self._journal = journal
        self._inbox: deque[tuple[Any, trio.Event | None]] = deque()
        self._wake = trio.Event()
        self._room = trio.Event()
        self._pending: dict[int, _Link] = {}
        self._links: dict[tuple[int, int], _Link] = {}
        self._numbers = 0
        self._finish: fx.Finish | None = None
        self._broken: BaseException | None = None
        self._observer_failed = False

    # --- for whoever has an event --------------------------------------------------------------------------------

    def post(self, event: Any) -> None:
        """Queue an event; it is handled in order of arrival (N-12). To be called from the trio thread."""
        self._inbox.append((event, None))
        self._wake.set()

    async def settle(self, event: Any) -> None:
        """Queue an event and wait until its effects are performed (R-2: before any byte of a scatter leaves). After
        the end of the run nothing is performed any more, and so nothing is waited for."""
        if self._finish is None:
            done = trio.Event()
            self._inbox.append((event, done))
            self._wake.set()
            await done.wait()

    async def run(self, listener: Listener) -> fx.Finish:
        """Until the run is over: gives its `Finish`. Every link is closed then, and files are written.

        Raises `InvariantError` if the machine, the data plane or the driver itself fails: the run is broken off.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.serve, self._serve_link)
                nursery.start_soon(self._plane.run, self)
                finish = await self._drive()
                await self._flush()
                await self._plane.settle()
                self._turn()  # what became of the last files is worth an alert
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, PacelineError) or not isinstance(error, Exception):
                raise error from error.__cause__
            raise InvariantError(f"the run was broken off by {type(error).__name__}: {error}") from error
        self._see(finish)
        return finish

    # --- the machine's task --------------------------------------------------------------------------------------

    async def _drive(self) -> fx.Finish:
        while self._finish is None:
            deadline = self.coordinator.poll_timeout()
            with trio.move_on_after(max(0.0, math.inf if deadline is None else deadline - self._clock())):
                await self._wake.wait()
            if self._broken is not None:
                raise self._broken
            self._turn()
            await trio.lowlevel.checkpoint()
        for _, done in self._inbox:
            if done is not None:
                done.set()
        return self._finish

    def _turn(self) -> None:
        """All events that are there, a tick, and what follows from them."""
        self._wake = trio.Event()
        handled, self._inbox = self._inbox, deque()
        now = self._clock()
        try:
            for event, _ in handled:
                self.coordinator.handle(event, now)
            self.coordinator.handle(ev.Tick(), now)
        finally:
            ready = self.coordinator.take_ready()
            self._note(ready)
        self._perform(ready.effects)
        for _, done in handled:
            if done is not None:
                done.set()
        self._room.set()
        self._room = trio.Event()

    def _note(self, ready: fx.Ready) -> None:
        """M-40: events are kept before any effect of them leaves. A full disk costs the journal, not the run (K-8)."""
        if self._journal is not None:
            try:
                self._journal(ready)
            except OSError as error:
                self._journal = None
                self.post(ev.CallbackFailed("journal", f"{error}; the journal ends here and the run goes on"))

    def _perform(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Send):
                self._queue((effect.rank, effect.incarnation), effect.message, effect.token)
            elif isinstance(effect, ROUND_EFFECTS):
                self._plane.perform(effect)
            elif isinstance(effect, (fx.Admit, fx.Refuse)):
                self._decide(effect)
            elif isinstance(effect, fx.SendFenced):
                self._queue((effect.rank, effect.incarnation), effect.fenced, None)
            elif isinstance(effect, fx.CloseLink):
                self._close((effect.rank, effect.incarnation))
            elif isinstance(effect, fx.Finish):
                self._finish = effect  # shown when nothing follows it any more, the files included
            else:
                self._see(effect)

    def _see(self, effect: Any) -> None:
        """Show an effect to the observer. What it raises is reported once and changes nothing else (N-12)."""
        try:
            self._observe(effect)
        except Exception as error:
            if not self._observer_failed:
                self._observer_failed = True
                self.post(ev.CallbackFailed("observe", f"{type(error).__name__}: {error}"))

    def _decide(self, effect: fx.Admit | fx.Refuse) -> None:
        link = self._pending.pop(effect.link, None)
        if link is None:
            if isinstance(effect, fx.Admit):  # it hung up between its Hello and the decision
                cause = "hung up before it was admitted"
                self.post(ev.LinkLost(effect.rank, effect.incarnation, cause, effect.link))
            return
        if isinstance(effect, fx.Admit):
            link.admitted = effect
            whom = (effect.rank, effect.incarnation)
            former, self._links[whom] = self._links.get(whom), link
            if former is not None:
                former.replaced = True
                former.overflow = "it is back over another link"
                former.closing.set()
            for message in effect.resend:
                link.append(message, (*whom, message.control_seq))
        else:
            link.refused = effect
        link.decided.set()

    def _queue(self, whom: tuple[int, int], message: Any, token: tuple[int, int, int] | None) -> None:
        """Each token is either in one queue or reported as failed, never both (N-10)."""
        link = self._links.get(whom)
        if link is not None and not link.closing.is_set():
            if len(link.outgoing) < OUTGOING_LIMIT:
                link.append(message, token)
                return
            link.overflow = "overflow: it does not take its messages (N-9)"
            link.closing.set()
        if token is not None:
            self.post(ev.SendFailed(token, None if link is None else link.number))

    def _close(self, whom: tuple[int, int]) -> None:
        link = self._links.get(whom)
        if link is not None:
            link.closing.set()

    async def _flush(self) -> None:
        """Give the last messages a bounded time to leave."""
        with trio.move_on_after(FLUSH_S):
            for link in list(self._links.values()):
                await link.empty.wait()

    # --- one connection ------------------------------------------------------------------------------------------

    async def _serve_link(self, channel: Channel) -> None:
        try:
            await self._meet(channel)
        except* (TransportError, RemoteProtocolError):
            raise  # the peer's doing: the listener notes it and closes the channel
        except* Exception as group:
            self._broken = self._broken or first_error(group)
            self._wake.set()

    async def _meet(self, channel: Channel) -> None:
        self._numbers += 1
        link = _Link(self._numbers, channel)
        config = self.coordinator.config
        with trio.move_on_after(config.scaled(config.handshake_s)):
            hello = await channel.receive()
            if not isinstance(hello, Hello):
                raise RemoteProtocolError(f"{channel.peer} began with {type(hello).__name__} instead of Hello")
            self._pending[link.number] = link
            self.post(ev.HelloReceived(link.number, hello))
            try:
                await link.decided.wait()
            finally:
                self._pending.pop(link.number, None)
        if link.refused is not None:
            with trio.move_on_after(FLUSH_S):
                await channel.send(link.refused.reject)
                await self._hear_out(channel)
        elif link.admitted is not None:
            await self._serve_rank(link, link.admitted)

    @staticmethod
    async def _hear_out(channel: Channel) -> None:
        """Let the refused rank hang up first, so that the refusal is not lost behind a reset."""
        try:
            while True:
                await channel.receive()
        except (TransportError, RemoteProtocolError):
            return

    async def _serve_rank(self, link: _Link, admitted: fx.Admit) -> None:
        whom = (admitted.rank, admitted.incarnation)
        cause = "its link was closed"
        try:
            await link.channel.send(admitted.welcome)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, link)
                nursery.start_soon(self._hang_up, link)
                nursery.start_soon(self._serve_bulk, whom, link)
                cause = await self._read(link, whom)
                nursery.cancel_scope.cancel()
        except* (TransportError, RemoteProtocolError) as group:
            cause = str(first_error(group))
        finally:
            if self._links.get(whom) is link:
                del self._links[whom]
            link.empty.set()
            if not link.replaced:
                for _, token in link.outgoing:
                    if token is not None:
                        self.post(ev.SendFailed(token, link.number))
                self.post(ev.LinkLost(*whom, link.overflow or cause, link.number))

    async def _read(self, link: _Link, whom: tuple[int, int]) -> str:
        """Reports until the lane ends; gives the cause."""
        try:
            while True:
                message = await link.channel.receive()
                forged = misstamped(self.coordinator, message, whom) if isinstance(message, Report) else None
                if forged is not None:
                    link.append(forged, None)
                    with trio.move_on_after(FLUSH_S):
                        await link.empty.wait()
                    return forged.text
                self.post(ev.Received(message))
                if len(self._inbox) > INBOX_LIMIT:
                    await self._room.wait()
        except (TransportError, RemoteProtocolError) as error:
            return str(error)

    async def _write(self, link: _Link) -> None:
        """The only writer of a control lane (N-4). A message stays in the queue until it has left; what is there when
        the link is taken down has not."""
        while True:
            while link.outgoing:
                try:
                    await link.channel.send(link.outgoing[0][0])
                except TransportError:
                    link.closing.set()
                    return
                link.outgoing.popleft()
            link.empty.set()
            await link.wake.wait()
            link.wake = trio.Event()

    @staticmethod
    async def _hang_up(link: _Link) -> None:
        """Close a link that is to end, after what was queued for it before; a peer that reads nothing is not waited
        for longer than that."""
        await link.closing.wait()
        if not link.overflow:
            with trio.move_on_after(FLUSH_S):
                await link.empty.wait()
        await link.channel.aclose()

    async def _serve_bulk(self, whom: tuple[int, int], link: _Link) -> None:
        """The bulk lane has the fate of its channel: what ends it is told by the control lane's reader."""
        try:
            await self._plane.serve(*whom, link.channel)
        except TransportError:
            return
        except RemoteProtocolError:
            await link.channel.aclose()
            raise
