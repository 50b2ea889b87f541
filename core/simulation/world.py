"""`World`: a whole run in one process, moved by actions.

    world = World(Setup(ranks=3, samples=24))
    while world.enabled():
        world.do(world.enabled()[0])        # the dullest run there is
    assert world.finished

`enabled` lists what can happen without a fault, in a stable order, dullest first; `faults` what could strike. Who
chooses among them (a schedule file, a seeded simulator, a breadth-first search, hypothesis) is somebody else's matter,
and how many faults are allowed too. Every event of the coordinator goes through the ghost and the checks of the books.

Time stands still unless an action says so: `tick` moves it to the next deadline, and `do(action, at)` to `at`. So a
caller without clocks explores orders, and one with clocks says when.

The lanes are those of a link: in order, and what is lost is lost from the end of the link on. A process that is killed
leaves behind what it had written. What the coordinator sends into a link that is down fails, and it hears of that later
(N-10). How a process finds the coordinator again is in `links.py`, how a coordinator that was killed, if it must be in
the middle of a batch of effects (`lasts`), comes back from its journal is in `comeback.py`.

`snapshot` is a tuple of parts, each the same object as before while nothing in it has changed, so that a caller can
intern them; `load` puts back only the parts that differ from what is there. In wire mode there is no snapshot: bytes
that are half read belong to the production `Link`, which has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..coordinator import Coordinator
from ..errors import LocalProtocolError
from ..ledger import Resume
from ..policies import Policies
from ..wire import Role
from ..worker import Worker, WorkerSettings
from . import together
from .action import COORDINATOR, NOBODY, Action, act
from .averager import Averager
from .comeback import Journal, die
from .frames import Frames, RecordCodec
from .ghost import Ghost
from .invariants import applied_in_order, blamed, booked, books, ending, explained, report_seq_of, steps_meet
from .links import let_in, life, turned_away
from .moves import OF_AVERAGER, at_process, tick, tick_all
from .process import Process, value_of
from .recall import Recalled
from .setup import Setup, greeting
from .step import Run, Step, Turn, new_step, new_turn
from .strikes import FAULTS, possible_faults
from .telling import end, settle, tell
from .violation import raised
from .watch import Watch

__all__ = ["Step", "Turn", "World"]

TO_AVERAGER = frozenset({
    fx.OpenRound, fx.AdmitContribution, fx.RemoveFromRound, fx.AbortRound, fx.CloseRound, fx.SaveConsensus,
    fx.WriteMeta,
})  # fmt: skip
ALIKE = 1.0
"""What each process brings that comes to a run whose ranks must bring the same (M-6); else no two bring the same."""
RESTART = ev.OperatorRequest(ev.Operator.START)
"""Stands for what began it, among the turns of a step that brings a coordinator back."""
LATE = frozenset({"step", "resume", "recover", "heal"})
"""What the dullest run does when there is nothing to deliver."""


def _unheard(mark: str) -> None:
    """Nobody asked for marks."""


class World:
    """See the module. `codec` is the payload codec of the frames and belongs to a setup with `wire`. `resume` is the
    record of a run before (K-12), `policies` replaces what decides. `begun` are the turns of the ranks that are there
    from the start, watched as all others; `reached` is told of every mark (`marks.py`)."""

    def __init__(self, setup: Setup, *, codec: RecordCodec | None = None, resume: Resume | None = None,
                 now: float = 0.0, policies: Policies | None = None) -> None:  # fmt: skip
        if setup.wire and codec is None:
            raise LocalProtocolError("a world in wire mode needs a codec; give one, such as MsgpackCodec()")
        self.setup = setup
        self.config = setup.config()
        self.in_place = self.config.is_collective
        self.now = now
        self.skew = 0.0
        self.policies = policies
        self.co = Coordinator(self.config, now=now, engine=setup.engine, resume=resume, policies=policies)
        self.processes: list[Process] = []
        self.seats: dict[int, Process] = {}
        self.failed: dict[int, deque[tuple[Any, int]]] = {}
        self.averager = Averager(setup, gamma=self.config.gamma)
        self.ghost, self.watch = Ghost.going_on(resume), Watch(self.config)
        self.finish: fx.Finish | None = None
        self.alive = True
        self.lasts: int | None = None
        self.touched: dict[int, None] = {}
        self.reached: Callable[[str], None] = _unheard
        self._codec = codec
        self._inbox: deque[Any] = deque()
        self.knocking: dict[int, int] = {}
        self.journal = Journal(self.co.snapshot(), ())
        self.turns: list[Turn | Run] = []
        self.moved = ""
        self._moves = True
        self._co_seen: tuple[Any, ...] | None = None
        self.knocks = 0
        for _ in range(setup.ranks):
            self.knock()
        self.begun = tuple(self.turns)
        self.watch.see(self.begun, now, self.co.poll_timeout())

    # --- answers -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """The run ended well: Stopped, with everything covered."""
        return self.finish is not None and self.finish.status == "ok"

    @property
    def over(self) -> bool:
        """The run has ended, well or not, or its coordinator has."""
        return not self.alive or self.finish is not None

    def enabled(self) -> tuple[Action, ...]:
        """All that can happen without a fault, dullest first: deliveries, then work, then time."""
        found: list[Action] = []
        late: list[Action] = []
        for process in self.processes:
            for kind in self.possible(process):
                (late if kind in LATE else found).append(act(kind, process.number))
        found += [act(kind) for kind in self.of_averager()]
        if self.due() is not None:
            late.append(act("tick"))
        return (*found, *late)

    def possible(self, process: Process) -> list[str]:
        """The kinds of what can happen with one process."""
        over, failed = not self.alive or self.finish is not None, self.failed  # as `over`: this is asked most of all
        found = process.possible(over, bool(failed) and bool(failed.get(process.number)))
        if process.uids or process.inside is not None:
            found += together.possible(self, process)
        if process.dials_at is not None and process.may_dial(self.now):
            found.append("dial")
        return found

    def of_averager(self) -> list[str]:
        """The kinds of what can happen at the averager."""
        averager, found = self.averager, []
        if averager.round is not None and averager.collected and not self.over:
            found.append("reduce")
        if averager.bundles and self.alive:
            found.append("write")
        return found

    def faults(self) -> tuple[Action, ...]:
        """Every fault that could strike now; how many may is for the caller to say."""
        return () if self.finish is not None else tuple(possible_faults(self))

    def due(self) -> float | None:
        """The next deadline of any machine that runs, in virtual seconds."""
        found = [] if self.over else [self.due_of(COORDINATOR)]
        found += [self.due_of(process.number) for process in self.processes if process.runs]
        found += [p.dials_at for p in self.processes if p.runs and p.dials_at is not None and p.dials_at > self.now]
        return min((due for due in found if due is not None), default=None)

    def due_of(self, who: int) -> float | None:
        """The next deadline of one machine, in virtual seconds."""
        if who == COORDINATOR:
            due = self.co.poll_timeout() if self.alive else None
            return None if due is None else due - self.skew
        return self.processes[who].due()

    # --- making it happen ------------------------------------------------------------------------------------------

    def do(self, action: Action, at: float | None = None, *, sure: bool = False) -> Step:
        """Make it happen, at second `at` or now. `Violation`: an invariant breaks; `LocalProtocolError`: it cannot
        happen now, or the time lies back. `sure`: the caller has seen that it can happen."""
        if at is not None:
            if at < self.now:
                raise LocalProtocolError(f"{action} at {at} lies before {self.now}; actions come in the order of time")
            self.now = at
        self._moves, self.turns, self.touched, self.moved = at is None, [], {}, ""
        self.ghost.seen = process = None
        processes, who = self.processes, action.who
        if who >= 0:
            if who >= len(processes):
                raise LocalProtocolError(f"{action}: there is no process {who} yet")
            process = processes[who]
            self.touch(process)
        self._happen(action, process, sure)
        co, failed = self.co, self.failed
        self.watch.see(self.turns, self.now + self.skew, co.poll_timeout())
        if self.in_place:
            together.touch_members(self)
        for number in self.touched:
            process = processes[number]
            under_way = bool(failed and failed.get(number)) or (process.frames is not None and process.awaits_rest)
            steps_meet(co, self.ghost, process, under_way)
        return new_step(action, self.now, tuple(self.turns), self.moved)

    def _happen(self, action: Action, process: Process | None, sure: bool) -> None:
        kind = action.kind
        if kind in FAULTS:
            FAULTS[kind](self, action)
        elif kind == "tick" and action.who == NOBODY:
            tick_all(self, moves=self._moves)
        elif kind == "tick":
            tick(self, action.who)
        elif process is not None and (sure or kind in self.possible(process)):
            at_process(self, process, action)
        elif process is None and (sure or kind in self.of_averager()):
            OF_AVERAGER[kind](self)
        else:
            raise LocalProtocolError(f"{action} cannot happen now")

    def touch(self, process: Process) -> None:
        """Something in the process changes."""
        process.seen = None
        self.touched[process.number] = None

    def touch_coordinator(self) -> None:
        """Something in the coordinator changes."""
        self._co_seen = None

    # --- the coordinator -------------------------------------------------------------------------------------------

    def come_back(self, co: Coordinator) -> None:
        """A coordinator that was started again takes over; its first snapshot is kept before it does anything."""
        self.co, self.alive, self._co_seen = co, True, None
        ready = co.take_ready()
        self.journal.begin(co)
        self.journal.undone = ready.effects
        self.ghost.restarted()
        self.turns.append(Turn(COORDINATOR, RESTART, ready.effects))
        self.perform(ready.effects)
        self._go_on()

    def feed(self, event: Any) -> None:
        """One event into the coordinator, and whatever its effects lead to at once. After the end nobody listens."""
        if not self.over:
            self._turn(event)
            self._go_on()

    def _go_on(self) -> None:
        """Whatever else the coordinator is to hear at this moment."""
        inbox = self._inbox
        while inbox and not self.over:
            self._turn(inbox.popleft())
        inbox.clear()

    def _turn(self, event: Any) -> None:
        co = self.co
        before = None
        if event.__class__ is ev.Received:
            before = report_seq_of(co, event.message)
            if event.message.__class__ is m.SyncAck:
                self._acknowledged(event.message)
        elif event.__class__ is ev.SendFailed and event.token[2] in co.peers[event.token[0]].tokens:
            self.reached("a plan was taken back")
        now = self.now + self.skew
        if now > co.late_after:
            self.reached("the coordinator was away")
        self.into_coordinator(event, now)
        if before is not None and not (isinstance(co, Recalled) and co.knows):  # what is known was judged before
            applied_in_order(co, event.message, before)
        self.follow(event, before is not None, co.take_ready())

    def into_coordinator(self, event: Any, now: float) -> None:
        """One event into the coordinator, which must take it (I22)."""
        self.touch_coordinator()
        try:
            self.co.handle(event, now)
        except Exception as error:
            raise raised(event, COORDINATOR, error) from error

    def follow(self, event: Any, reported: bool, ready: fx.Ready) -> None:
        """What an event of the coordinator has led to; `reported`: it is a report of a life that goes on."""
        co, effects = self.co, ready.effects
        self.turns.append(new_turn(COORDINATOR, event, effects))
        self.journal.keep(co, ready)
        if effects:
            self.perform(effects)
        if self.alive and (effects or self.setup.thorough):
            books(co)
        elif reported:
            booked(co, co.peers[event.message.rank])
        if event.__class__ is ev.Tick and not self.over:
            explained(co)

    def _acknowledged(self, ack: m.SyncAck) -> None:
        if ack.generation == self.co.generation:  # M-43
            self.ghost.acks.add((ack.cycle, ack.attempt, ack.rank, ack.incarnation))
            if ack.digest is not None and self.co.cycle.checking:
                self.ghost.brought[ack.rank, ack.incarnation] = value_of(ack.digest)
        if ack.cycle <= self.co.cycle.finished:
            self.reached("late acknowledgement after finalize")

    def perform(self, effects: tuple[Any, ...]) -> None:
        """What the coordinator wants done, in order. If it dies on the way the rest is kept and not done; it was
        decided all the same, and a coordinator that comes back stands behind it (M-40)."""
        self.ghost.begin(effects)
        for place, effect in enumerate(effects):
            if self.lasts == 0:
                die(self)
                for decided in effects[place:]:
                    self.ghost.see(self.co, decided)
                return
            if self.lasts is not None:
                self.lasts -= 1
            self.ghost.see(self.co, effect)
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        kind = effect.__class__
        if kind is fx.Send:
            message = effect.message
            process = self.process_of(message.rank, message.incarnation)
            if not process.linked:
                self.failed.setdefault(process.number, deque()).append((effect.token, process.link))
                self.touched[process.number] = None
            else:
                self._to_process(process, message)
        elif kind in TO_AVERAGER:
            self._inbox.extend(self.averager.perform(effect))
            self.offer()
        elif kind is fx.Admit:
            self._admit(effect)
        elif kind is fx.Refuse:
            turned_away(self, effect)
        elif kind is fx.CloseLink:
            if (closed := life(self, effect.rank, effect.incarnation)) is not None:
                blamed(closed, effect.why)
                self.close(closed, "closed by the coordinator", keeps=True)
        elif kind is fx.SendFenced:
            if (stale := life(self, effect.rank, effect.incarnation)) is not None and stale.linked:
                self._to_process(stale, effect.fenced)
        elif kind is fx.Finish:
            self.finish = effect
            ending(self.co, self.ghost, effect.status)
            for process in self.processes:
                self.close(process)

    def process_of(self, rank: int, incarnation: int) -> Process:
        """The process that is, or was, this life of a rank."""
        found = life(self, rank, incarnation)
        assert found is not None, f"rank {rank} was let in to its life {incarnation}"
        return found

    def _admit(self, effect: fx.Admit) -> None:
        if effect.link in self.knocking:
            let_in(self, effect, self.processes[self.knocking[effect.link]])
            return
        settings = WorkerSettings.from_welcome(effect.welcome, self.config.run_id, self.setup.callbacks)
        number = len(self.processes)
        worker = Worker.create(settings, self.now, self.setup.engine)
        brought = ALIKE if settings.checks and effect.welcome.status == m.WelcomeStatus.FORMING else float(number + 1)
        process = Process(number, effect.rank, effect.incarnation, worker, brought)
        process.link, process.generation = effect.link, settings.generation
        process.lacks_static = self.setup.stateful and effect.welcome.status == m.WelcomeStatus.JOINING
        self.begin_life(process)

    def begin_life(self, process: Process) -> None:
        """A process with a seat of its own."""
        self.rewire(process)
        self.processes.append(process)
        self.seats[process.rank] = process
        self.ghost.begin_life(process)
        self.touch(process)

    def rewire(self, process: Process) -> None:
        """A new connection has a wire of its own."""
        if self._codec is not None and self.setup.wire:
            process.frames = Frames(self._codec, lambda mark: self.reached(mark))

    def settings_of(self, rank: int, incarnation: int, generation: int) -> WorkerSettings:
        """Of the worker that was let in to this seat, and knows this generation."""
        welcome = m.Welcome(rank=rank, incarnation=incarnation, generation=generation, control_seq=0, report_seq=0,
                            status=m.WelcomeStatus.FORMING,
                            config=self.co.config.welcome(self.setup.samples, self.setup.ranks))  # fmt: skip
        return WorkerSettings.from_welcome(welcome, self.config.run_id, self.setup.callbacks)

    def knock(self, seat: int | None = None) -> None:
        """A process says hello; `seat` is the rank it wants."""
        self.knocks += 1
        self.feed(ev.HelloReceived(self.knocks, greeting(self.setup, seat)))

    def close(self, process: Process, cause: str | None = None, *, keeps: bool = False) -> None:
        """The coordinator's end of a link goes: at the end of the run, or for a cause, and then what is under way is
        lost, unless it `keeps` that."""
        if process.linked:
            process.linked = False
            self.touch(process)
            if cause is not None and not keeps:
                process.down.clear()
                process.bulk_down.clear()
            if process.alive:
                process.down.append(cause)

    def _to_process(self, process: Process, message: Any) -> None:
        self.touch(process)
        process.down.append(message if process.frames is None else process.frames.say(Role.COORDINATOR, message))

    # --- the processes ---------------------------------------------------------------------------------------------

    tell, settle, end = tell, settle, end
    """See `telling.py`."""

    def offer(self) -> None:
        """Results for everyone who is ready for one (R-9)."""
        for process in self.seats.values():
            result = self.averager.result(process.rank, process.incarnation) if process.linked else None
            if result is not None:
                process.bulk_down.append(result)
                self.touch(process)

    # --- as a value -----------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """(rest, coordinator, averager, ghost, processes): plain and hashable, parts unchanged are the same objects."""
        if self.setup.wire:
            raise LocalProtocolError("a world in wire mode has no snapshot: its links hold bytes that are half read")
        if self._co_seen is None:
            self._co_seen = self.co.snapshot()
        failed = tuple((number, tuple(tokens)) for number, tokens in sorted(self.failed.items()) if tokens)
        seats = tuple((rank, process.number) for rank, process in sorted(self.seats.items()))
        rest = (self.now, self.skew, self.alive, self.lasts, self.finish, self.knocks, failed, seats,
                self.journal.undone_if(dead=not self.alive))  # fmt: skip
        lives = tuple((p.rank, p.incarnation, p.snapshot()) for p in self.processes)
        return rest, self._co_seen, self.averager.snapshot(), self.ghost.snapshot(), lives

    def load(self, snapshot: Iterable[Any]) -> None:
        """Become the world that the snapshot was made of. Parts that are there already are left as they are, so to go
        from one snapshot to a near one costs only what differs."""
        rest, coordinator, averager, ghost, lives = snapshot
        self.watch.asleep = True  # it has not seen what led here
        self.now, self.skew, self.alive, self.lasts, self.finish, self.knocks, failed, seats, undone = rest
        self.failed = {number: deque(tokens) for number, tokens in failed}
        if self._co_seen is not coordinator:
            self.co = Coordinator.restore(self.config, coordinator, engine=self.setup.engine, policies=self.policies)
            self._co_seen = coordinator
        self.journal = Journal(coordinator, undone)
        self.averager.load(averager)
        self.ghost.load(ghost)
        del self.processes[len(lives) :]
        for number, (rank, incarnation, inside) in enumerate(lives):
            settings = self.settings_of(rank, incarnation, 1)
            if number == len(self.processes):
                self.processes.append(Process(number, rank, incarnation, Worker.create(settings, 0.0), 0.0))
            process = self.processes[number]
            process.rank, process.incarnation = rank, incarnation
            process.load(inside, settings, self.setup.engine)
        self.seats = {rank: self.processes[number] for rank, number in seats}

    @classmethod
    def restore(cls, setup: Setup, snapshot: Iterable[Any]) -> Self:
        """A world that is what the snapshot was made of: the same actions have the same effects from here on."""
        made = cls(setup)
        made.load(snapshot)
        return made
