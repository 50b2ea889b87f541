"""The kit itself, the transport it looks at, and how its coroutines are run."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import attrs
import trio

from ...core.conformance import CheckFailed, Kit, Level, Outcome, Report, Run, raising, run_kit, will
from ...core.conformance.blame import leaves, place_of, waiting
from ...core.errors import ConfigError
from ...core.named import named
from ..api import Capabilities, Channel, Credentials, Transport
from ..limit import ended
from ..registry import find_transport

__all__ = [
    "CREDENTIALS",
    "KIT",
    "NO_DIAL",
    "PAGE",
    "PATIENCE_S",
    "Bench",
    "Killable",
    "Pair",
    "bench_for",
    "claimed_by",
    "conform",
    "due",
    "make_transport",
    "run_within",
    "within",
]

PAGE = "guides/write-a-transport.md"
"""The page below docs/ that explains every check of this kit."""

KIT: Kit[Bench] = Kit(
    name="transport",
    version=7,
    capabilities={
        "across_processes": "another process of this host can dial the listener's URL",
        "across_hosts": "the listener's URL names a host, so that other hosts can dial it",
        "authenticated": "who does not know run id and token is refused",
        "separate_bulk": "control passes while nobody reads bulk at all",
    },
)

CREDENTIALS = Credentials(run_id=bytes(range(16)), token=bytes(range(32)))
"""What both ends of every check know, in processes of their own too."""

PATIENCE_S = 120.0
"""The seconds that a check may take, where nothing else is said."""

GRACE_S = 10.0
"""How long after its patience a check may take to clean up; after that a call of the transport is taken to block the
thread in which everything runs. In real time, whatever clock a bench has."""

IDLE_S = (12.0, 0.2)
"""How long a bulk lane is left silent, where nothing else is said: thoroughly, and to find out quickly."""

TURN_S = 0.5
"""In what time a loop that is not blocked turns once."""

NO_DIAL = 3
"""The exit code of `peer` when it could not dial."""

Open = Callable[[], AbstractAsyncContextManager[tuple[Transport, str]]]
"""A fresh transport and an address at which nobody listens yet; what it needs is there until it is left."""

Pair = tuple[Channel, Channel]
"""Both ends of one channel: the rank's, the coordinator's."""

Killable = tuple[Channel, Callable[[], None]]
"""The coordinator's end of a channel, and what ends the process at the other end as `kill -9` does."""


def _usual(seconds: float) -> Any:
    usual: Any = attrs.Factory(lambda bench: bench.patiently(seconds), takes_self=True)
    return attrs.field(default=usual)


@attrs.frozen(kw_only=True)
class Bench:
    """The transport under test, and what the checks may take for granted.

    Fields:
        target: what reports call it.
        open: gives a fresh transport and a free address.
        address: what a process of its own is told, so that it can make the transport too: `scheme://…` of a registered
            transport or `package.module:factory`. None when it can't be told; then no check starts a process.
        registered: whether the scheme is meant to be found by its entry point.
        clogged: gives both ends of a channel on which the rank cannot send a block, because nobody takes it. Left
            open, the kit floods a channel until it is.
        killable: gives a channel to a process that has sent `heartbeat(1)`, and what kills it. Left open, the kit
            starts one of its own, if `address` and the transport's capabilities allow.
        stranger: connects to a listener's URL as any other program would, and gives the open stream. Left open, the kit
            knows how to knock at `…://host:port` and at `…:///path`.
        heartbeat_s: one heartbeat period, in which a control message must arrive whatever bulk does (N-5).
        evidence_s: the time in which the death of a peer must be evidenced.
        limit_s: the time in which a dial to nobody, and a handshake that stands still, must end. These three, where
            they are not given, grow with the patience: who gives a slow machine more of it gives more of everything.
        patience_s: after this a check is taken to hang, and cancelled. A call that blocks its thread can't be: such a
            check has failed ten seconds later, and those after it are not made.
        clock: makes the clock of a check; left open, it is the real one. For a transport whose waits are all inside
            trio, as those of memory:// are, a `trio.testing.MockClock` that jumps when nothing moves makes every wait
            free. It needs a rate above 0, because in some checks something always moves; and a check that starts a
            process needs the real one.
        thorough: whether to repeat often and use many channels.
        idle_s: how long a bulk lane is left silent, as it is while ranks compute. What gives up a silent connection
            after a longer time (a proxy, a translator of addresses) is not found.
    """

    target: str
    open: Open
    address: str | None = None
    registered: bool = False
    clogged: Callable[[], AbstractAsyncContextManager[Pair]] | None = None
    killable: Callable[[], AbstractAsyncContextManager[Killable]] | None = None
    stranger: Callable[[str], Awaitable[trio.abc.Stream]] | None = None
    credentials: Credentials = CREDENTIALS
    patience_s: float = PATIENCE_S
    heartbeat_s: float = _usual(1.0)
    evidence_s: float = _usual(5.0)
    limit_s: float = _usual(60.0)
    clock: Callable[[], trio.abc.Clock] | None = None
    thorough: bool = True
    idle_s: float = attrs.field(default=attrs.Factory(lambda bench: IDLE_S[not bench.thorough], takes_self=True))

    def patiently(self, seconds: float) -> float:
        """A time that is long enough as a rule; longer where the kit was given more patience than it has as a rule."""
        return seconds * max(1.0, self.patience_s / PATIENCE_S)

    def times(self, thorough: int, fast: int) -> int:
        """How often: as the profile says."""
        return thorough if self.thorough else fast


def bench_for(target: str, **options: Any) -> Bench:
    """The bench for a URL `scheme://…`, or for `package.module:factory@scheme://…`.

    The second form is for a transport that is not installed: the factory takes no arguments and returns a `Transport`,
    and what follows the `@` is an address to listen at. The address is used again and again, one listener at a time.
    `options` are further fields of the bench.

    Raises:
        ConfigError: the target has neither form, or there is no such factory. A transport that cannot be found by its
            scheme, or that its factory fails to make, is a matter of the checks of L0.
    """
    factory, _, url = target.partition("@")
    if "://" in factory or ":" not in factory:
        factory, url = "", target
    if "://" not in url:
        raise ConfigError(f"{target!r} is no transport: write scheme://address or module:factory@scheme://address")
    if factory:
        named(factory, "transport")

    @asynccontextmanager
    async def fresh() -> AsyncIterator[tuple[Transport, str]]:
        yield make_transport(factory or url), url

    return Bench(target=target, open=fresh, address=factory or url, registered=not factory, **options)


def make_transport(address: str) -> Transport:
    """The transport that `Bench.address` stands for."""
    if "://" in address:
        return find_transport(address)
    transport: Transport = named(address, "transport")()
    return transport


def conform(
    bench: Bench,
    *,
    level: Level = Level.L3,
    only: Sequence[str] = (),
    on_begin: Callable[[Report], None] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Run the kit over a transport, up to `level` or the checks that `only` names by id or name.

    Whatever is wrong with the transport is in the report and not raised. `on_outcome` hears of each check as it ends,
    and `on_begin` what there is to say should it never end.

    Raises:
        ConfigError: `only` names no check.
    """
    asked: dict[str, Any] = dict(
        target=bench.target, level=level, only=only,
        rerun=f"paceline conform transport {bench.target} --check {{}}".format,
    )  # fmt: skip
    if on_begin is not None:  # what it claims is the first that it is asked
        on_begin(will(KIT, claims=dict.fromkeys(KIT.capabilities, False), **asked))
    return run_kit(
        KIT,
        bench,
        claims=claimed_by(bench),
        run=run_within(bench.patience_s, bench.clock),
        limit=ended,
        patience_s=bench.patience_s,
        on_begin=on_begin,
        on_outcome=on_outcome,
        **asked,
    )


def claimed_by(bench: Bench) -> dict[str, bool]:
    """What the transport of a bench claims, by the names of the kit; nothing at all if it cannot be made, which a check
    of L0 will tell."""

    claimed: list[Capabilities] = []

    async def look() -> None:
        async with bench.open() as (transport, _):
            claimed.append(transport.capabilities)

    try:
        run_within(bench.patience_s)(look)
    except Exception:
        return dict.fromkeys(KIT.capabilities, False)
    return {name: bool(getattr(claimed[0], name, False)) for name in KIT.capabilities}


def run_within(patience_s: float, clock: Callable[[], trio.abc.Clock] | None = None) -> Run:
    """Runs a check under trio, by a new clock each; one that does not end in this time has failed. It has a thread of
    its own, so that a call which blocks the loop of events holds nobody else."""

    def run(main: Callable[[], Awaitable[object]]) -> object:
        loop = _Loop()

        async def bounded() -> None:
            with within(patience_s, "the whole check"), trio.CancelScope() as loop.scope:
                loop.token = trio.lowlevel.current_trio_token()
                await main()

        return ended(lambda: trio.run(bounded, clock=None if clock is None else clock()), patience_s + GRACE_S,
                     stop=loop.stop)  # fmt: skip

    return run


@attrs.define(eq=False)
class _Loop:
    """A loop of events in another thread."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    token: trio.lowlevel.TrioToken | None = None
    turned: threading.Event = attrs.field(factory=threading.Event)
    places: list[str] = attrs.field(factory=list)

    def stop(self) -> str | None:
        """Cancel all of it, and tell where in the transport its tasks stood; None when the loop does not turn."""
        if self.token is None:
            return None
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self._cancel)
        if not self.turned.wait(TURN_S):
            return None
        return f"it was cancelled, and went on in {', '.join(dict.fromkeys(self.places)) or 'no call of the plug-in'}"

    def _cancel(self) -> None:
        tasks = [trio.lowlevel.current_root_task()]
        for task in tasks:
            if task is not None:
                tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
                self.places += filter(None, [waiting(task.iter_await_frames())])
        self.scope.cancel()
        self.turned.set()


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """The block must end in this time, and is cancelled if it does not: `CheckFailed`, which says what of the transport
    waited."""
    waited: list[str] = []
    with trio.move_on_after(seconds) as scope:
        try:
            yield
        except BaseException as end:
            waited += [place for leaf in leaves(end) if (place := place_of(leaf))]
            raise
    if scope.cancelled_caught:
        where = f"; what waited was {', '.join(dict.fromkeys(waited))}" if waited else ""
        raise CheckFailed(f"{what} did not end within {seconds:g} s{where}")


@contextmanager
def due(kind: type[Exception], what: str, seconds: float, *, naming: Sequence[str] = ()) -> Iterator[None]:
    """The block must raise this kind of exception in this time; see `raising`."""
    with within(seconds, what), raising(kind, what, naming=naming):
        yield
