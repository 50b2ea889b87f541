"""A storm: the faults of one run, struck at the moments that its dice say, and healed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import effects as fx
from .. import messages as m
from ..phases import RunPhase
from .action import COORDINATOR, NOBODY, Action, act
from .blocks import frame_bytes
from .clockwork import Clockwork
from .dice import Dice
from .faults import FIRES, MOST_PER_SITE, SELDOM, Plan
from .process import Process
from .strikes import TAMPERING, tampers
from .world import Step

__all__ = ["Storm"]

LASTING = {"pause": "resume", "hang": "recover", "mute": "heal", "deafen": "heal"}
BEARS = {"poison": "poisoned", "forge": "forges", "fail": "failing", "withhold": "withholds"}
"""What a process is until the next time that it matters, or until all faults stop."""
DAMAGES = frozenset({*TAMPERING, "corrupt", "taint"})
"""What changes a link with nobody told: one of its ends notices sooner or later, and ends it."""
AT_DOOR = frozenset({"abort", "join", "duplicate", "split", "reap"})
WISHES = frozenset({"checkpoint", "evaluate", "stop"})
"""What the coordinator hears of at once: while it is away it does not, and no operator is heard either."""
FRAMES_EVERY = 6.0
"""Mean time between two faults of frames, in steps of the fastest rank; storms are short."""
CUTS = frozenset({"split", "crack"})
"""What cuts a frame in two; neither part is empty."""
FRAMES_OF = {
    "split": ("up",), "crack": ("down",), "corrupt": ("up", "bulk_up"), "taint": ("down", "bulk_down"),
    "sever": ("up", "bulk_up"),
}  # fmt: skip
"""The lanes whose frames a fault strikes; that of bulk where there is none of control."""
LINGERS = {
    "message": ("a message lingers", 50.0), "step": ("a step lingers", 20.0), "copy": ("a copy lingers", 20.0),
    "reduce": ("the averager lingers", 100.0),
}  # fmt: skip
AT_REPORT: dict[type, tuple[str, str]] = {m.SnapshotReady: ("dies after its snapshot", "crash")}
AT_SEND: dict[type, tuple[str, str]] = {
    m.Update: ("dies with its update under way", "crash"),
    m.StartEpoch: ("is cut off with a plan under way", "cut"),
}
OUTLIVES = {
    "step": "its steps outlive its seat",
    **dict.fromkeys(("order", "result", "emerge"), "its evidence outlives its seat"),
}
"""Sites at which a process has just written something that another one in its seat might be held to have said."""
ZOMBIE = (1.2, 1.4)
"""Stalenesses after which another process takes the seat of one that is silent, and after which that one is heard."""
EARLY = 0.25
LATER = 12.0
"""One storm in four begins with the run, the others after so many steps: a rank that dies while the cohort forms ends
the run (M-6), and then there is nothing else to see."""
AWAY = 1.5
"""Stalenesses for which the coordinator does nothing at its site."""
RETURNS = 0.85
"""Share of the runs in which somebody starts a coordinator again that was killed."""
MOST_LOST = 120
"""Batches that a journal loses at most, with the power of its host (M-45)."""
DOWN = 5.0
"""Longest time until then, in stalenesses."""
LONGEST = 8.0
"""Longest fault, in stalenesses."""
TRAINING = RunPhase.TRAINING
"""Asked for with every step; see `phases.py`."""


class Storm:
    """Strikes `plan` at a world that a clockwork moves. `second` is what the run takes for one step of its fastest
    rank, `staleness_s` the silence after which a peer is gone. `withheld` are the sessions of which somebody was asked
    for the id and makes none; `damaged` are links, as the numbers of their process and of themselves (`DAMAGES`)."""

    def __init__(self, clockwork: Clockwork, plan: Plan, dice: Dice, second: float, staleness_s: float) -> None:
        self.clockwork = clockwork
        self.world = clockwork.world
        self.plan = plan
        self.over = False
        self.struck = 0
        self.withheld: set[int] = set()
        self.damaged: set[tuple[int, int]] = set()
        self._due: list[str] = []
        self._dice = dice
        self._second = second
        self._staleness_s = staleness_s
        self._fired: dict[str, int] = {}
        self._noticed = False
        self._returns = dice.chance(RETURNS)
        clockwork.linger = self._linger
        begins = clockwork.now + (0.0 if dice.chance(EARLY) else LATER * second)
        if plan.kinds:
            clockwork.at(begins, self._next)
        if FRAMES_OF.keys() & plan.kinds:
            clockwork.at(begins, self._next_frame)

    # --- in time -----------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        pause = self._second * self.plan.every * self._dice.between(0.2, 1.8)
        self.clockwork.at(self.clockwork.now + pause, self._strike)

    def _strike(self) -> None:
        if self.over or self.world.over:
            return
        kind = self.plan.kinds[self._dice.weighted(self.plan.weights)]
        STRIKES.get(kind, Storm._at_someone)(self, kind)
        self._next()

    def _next_frame(self) -> None:
        """Frames are many and each of them may be struck, so they have a pace of their own."""
        if not self.over and not self.world.over:
            weights = [weight if kind in FRAMES_OF else 0.0
                       for kind, weight in zip(self.plan.kinds, self.plan.weights, strict=True)]  # fmt: skip
            self._on_wire(self.plan.kinds[self._dice.weighted(weights)])
            self._later(self._second * FRAMES_EVERY * self._dice.between(0.2, 1.8), self._next_frame)

    def heal(self) -> None:
        """All faults stop; who hangs or was stopped goes on, and every link carries data again. A coordinator that was
        to come back does so now, and one that was to die among effects to come dies and comes back now. Whatever
        changes is an action, or the schedule of the run would be another run."""
        self.over = True
        if self.world.lasts is not None:
            self._do("die", COORDINATOR)
            self._returns = True
        self._revive()
        for process in self.world.processes:
            for kind in ("resume", "recover", "heal"):
                if kind in self.world.possible(process):
                    self.clockwork.do(act(kind, process.number))
            for kind, field in BEARS.items():
                if getattr(process, field) and process.alive:
                    self._do(kind, process.number, 1)
            if process.broken and process.alive:
                self._do("break", process.number)
        if self.world.averager.full:
            self._do("full")
        self.clockwork.settle()

    def _do(self, kind: str, who: int = NOBODY, amount: int = 0) -> None:
        away_until = self.clockwork.away_until
        if self.clockwork.now < away_until and (kind in AT_DOOR or (kind in WISHES and who == NOBODY)):
            lasts = kind == "join"  # who was to come does, also when all faults have stopped
            self.clockwork.at(away_until, lambda: self._do(kind, who, amount) if lasts or not self.over else None)
            return
        self.struck += 1
        if kind in DAMAGES:
            self.damaged.add((who, self.world.processes[who].link))
        self.clockwork.do(Action(kind, who, amount))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.clockwork.at(self.clockwork.now + seconds, call)

    def _next_thing(self, call: Callable[[], None]) -> None:
        """A site strikes right after what is happening, unless all faults have stopped by then."""
        self._later(0.0, lambda: None if self.over else call())

    def _duration(self) -> float:
        return self._dice.long_tail(self._staleness_s / 4, self._staleness_s * LONGEST)

    def _alive(self) -> list[Process]:
        return [process for process in self.world.processes if process.alive]

    # --- kinds -------------------------------------------------------------------------------------------------------

    def _at_someone(self, kind: str) -> None:
        """A fault of one process, or of one link."""
        alive = self._alive()
        if not alive:
            return
        process = self._dice.pick(alive)
        if kind in LASTING:
            self._lasting(kind, process)
        else:
            self._do(kind, process.number)

    def _on_wire(self, kind: str) -> None:
        """A fault of a frame, at any of its bytes. Where no frame is on its way, one of the next has it."""
        if self.over or self.world.over:
            return
        lanes = FRAMES_OF[kind]
        found = [(process, frame_bytes(self.world.setup, process, lane)) for process in self._alive() for lane in lanes
                 if lane == lanes[0] or not getattr(process, lanes[0])]  # fmt: skip
        found = [(process, size) for process, size in found if size]
        if found:
            process, size = self._dice.pick(found)
            least = 1 if kind in CUTS else 0
            self._do(kind, process.number, least + self._dice.below(size - least))
        else:
            self._due.append(kind)

    def _on_lane(self, kind: str) -> None:
        """A fault of messages that are on their way. Where there are none, or nobody who takes them, some of the next
        have it."""
        if self.over or self.world.over:
            return
        away = kind in AT_DOOR and self.clockwork.now < self.clockwork.away_until
        found = [] if away else [process for process in self._alive() if tampers(process, kind)]
        if found:
            self._do(kind, self._dice.pick(found).number)
        else:
            self._due.append(kind)

    def _try_again(self, kind: str) -> None:
        """A fault that has found nothing to strike, after a step that may have brought it."""
        processes, touched = self.world.processes, self.world.touched
        if kind in TAMPERING and not any(tampers(processes[number], kind) for number in touched):
            self._due.append(kind)
        else:
            self._next_thing(lambda: STRIKES[kind](self, kind))

    def _lasting(self, kind: str, process: Process, seconds: float | None = None) -> None:
        self._do(kind, process.number)

        def undo() -> None:
            if LASTING[kind] in self.world.possible(process):
                self.clockwork.do(act(LASTING[kind], process.number))

        self._later(self._duration() if seconds is None else seconds, undo)

    def _partition(self, kind: str) -> None:
        """Some of the ranks are cut off in one direction or in both, all for the same time."""
        seconds, how = self._duration(), self._dice.pick((("mute",), ("deafen",), ("mute", "deafen")))
        for process in self._alive():
            if self._dice.chance(0.5):
                for direction in how:
                    self._lasting(direction, process, seconds)

    def _zombie(self, kind: str) -> None:
        """A rank falls silent until it is given up, another process takes its seat, and then the first is heard."""
        alive = self._alive()
        if alive:
            process = self._dice.pick(alive)
            self._lasting("mute", process, ZOMBIE[1] * self._staleness_s)
            self._later(ZOMBIE[0] * self._staleness_s, lambda: None if self.over else self._knock(process.rank))

    def _plague(self, kind: str) -> None:
        """Nobody ships anything finite."""
        for process in self._alive():
            self._do("poison", process.number)

    def _crash(self, kind: str) -> None:
        alive = self._alive()
        if alive and (len(alive) > 1 or self._dice.chance(0.2)):
            self.kill(self._dice.pick(alive))

    def kill(self, process: Process) -> None:
        """A process is killed; it may take another with it, and may come back."""
        self._do("crash", process.number, self._dice.below(4))
        rest = self._alive()
        if rest and self.site("two die at once"):
            self._do("crash", self._dice.pick(rest).number)
        if "return" in self.plan.kinds and self._dice.chance(0.7):
            seat = process.rank
            self._later(self._dice.long_tail(self._staleness_s / 8, self._staleness_s * 4), lambda: self._comes(seat))

    def _comes(self, seat: int) -> None:
        """A process comes back to its seat, also when all faults have stopped; then it takes that of nobody."""
        if not self.over or not self.world.seats[seat].alive:
            self._knock(seat)

    def _knock(self, seat: int) -> None:
        if not self.world.over:
            self._do("join", seat)

    def _return(self, kind: str) -> None:
        dead = sorted(rank for rank, process in self.world.seats.items() if not process.alive)
        if dead:
            self._do("join", self._dice.pick(dead))

    def _anybody(self, kind: str) -> None:
        self._do(kind)

    def _full(self, kind: str) -> None:
        self._do("full")
        if self.world.averager.full:
            self._later(self._duration(), lambda: self._do("full") if self.world.averager.full else None)

    def _away(self, kind: str) -> None:
        self.clockwork.away_until = self.clockwork.now + self._duration()

    def _jump(self, kind: str) -> None:
        alive = self._alive()
        who = COORDINATOR if not alive or self._dice.chance(0.5) else self._dice.pick(alive).number
        self._do("jump", who, 1 + self._dice.below(int(2 * self._staleness_s)))

    def _die(self, kind: str) -> None:
        self._do("die", COORDINATOR, self._dice.below(6))

    @property
    def comes_back(self) -> bool:
        """The coordinator is dead, and somebody is about to start it again."""
        return self._returns and not self.world.alive and self.world.finish is None

    def _await_return(self) -> None:
        """Somebody notices that the coordinator is gone, sooner or later."""
        self._noticed = True
        seconds = self._dice.long_tail(self._staleness_s / 20, self._staleness_s * DOWN)
        self._later(seconds, self._revive)

    def _revive(self) -> None:
        if self.comes_back:
            self._noticed = False
            self.clockwork.away_until = 0.0
            lost = 1 + self._dice.below(MOST_LOST) if self.site("the end of the journal is lost") else 0
            self._do("revive", COORDINATOR, lost)

    def _wish(self, kind: str) -> None:
        alive = self._alive()
        self._do(kind, NOBODY if not alive or self._dice.chance(0.5) else self._dice.pick(alive).number)

    # --- sites -------------------------------------------------------------------------------------------------------

    def site(self, name: str) -> bool:
        """Whether the site strikes now."""
        if self.over or name not in self.plan.sites or not (name in SELDOM or self._dice.chance(FIRES)):
            return False
        self._fired[name] = self._fired.get(name, 0) + 1
        return self._fired[name] <= MOST_PER_SITE

    def _linger(self, kind: str) -> float:
        name, factor = LINGERS.get(kind, ("", 1.0))
        return factor if name and self.site(name) else 1.0

    def heard(self, step: Step) -> None:
        """A step has happened: is it a moment at which a fault is worst?"""
        if self.world.in_place and step.action.kind == "control":
            self._note_withheld(step)
        if self.comes_back and not self._noticed:
            self._await_return()
        if self.over or self.world.over:
            return
        if self._due:
            self._try_again(self._due.pop(0))
        if self.plan.loss and step.action.kind in ("report", "control") and self._dice.chance(self.plan.loss):
            self._do("cut", step.action.who)
            return
        kind = step.action.kind
        if kind == "report" and step.turns:
            self._after(step.action.who, AT_REPORT.get(type(getattr(step.turns[0].event, "message", None))))
        elif kind == "upload" and self.world.processes[step.action.who].bulk_up:
            self._after(step.action.who, ("dies while it uploads", "crash"))
        elif kind == "step" and not self.world.processes[step.action.who].plans:
            self._after(step.action.who, ("dies when its chunk is done", "cleanly"))
        elif kind == "result":
            self._after(step.action.who, ("dies before it acknowledges", "crash"))
        elif kind == "unite":
            self._after(step.action.who, ("dies inside a call", "crash"))
        elif kind == "emerge":
            self._after(step.action.who, ("dies out of a call", "crash"))
        if kind in OUTLIVES:
            self._outlived(self.world.processes[step.action.who], OUTLIVES[kind])
        elif kind == "reduce" and self.site("the coordinator is away"):
            self.clockwork.away_until = self.clockwork.now + AWAY * self._staleness_s
        if self.world.averager.bundles and not self.world.averager.full and self.site("the disk is full for a bundle"):
            self._full(kind)
        for turn in step.turns:
            if turn.who == COORDINATOR:
                for effect in turn.effects:
                    self._sent(getattr(effect, "message", None))
        cycle = self.world.co.cycle
        if kind == "report" and cycle.pending and cycle.number > 0:
            if cycle.owing == 1 and self.site("the coordinator dies in a finish"):
                self._next_thing(lambda: self._die_within(1 + self._dice.below(20)))
            elif self.site("the coordinator dies in a cycle"):
                self._next_thing(lambda: self._die_within(0))

    def _outlived(self, process: Process, site: str) -> None:
        """The next one in a seat comes before all is heard that the one before it had written (N-6)."""
        trains = process.up and process.alive and self.world.co.run.phase is TRAINING
        if trains and self.site(site):
            self._next_thing(lambda: self._replace(process))

    def _replace(self, process: Process) -> None:
        """Whoever sees to it that a process runs says once more that the old one has ended, when the new one is in."""
        if process.alive:
            self._do("reap", process.number)
            self._knock(process.rank)
            self._later(self._second, lambda: None if self.over else self._do("reap", process.number))

    def _die_within(self, effects: int) -> None:
        if not self.world.over:
            self._do("die", COORDINATOR, effects)

    def _sent(self, message: Any) -> None:
        if message is None:
            return
        if message.__class__ is m.RequestParams:
            if message.observer and message.cycle > 0:
                self._after_send(message, ("dies as it joins", "crash"))
        elif message.__class__ in AT_SEND:
            self._after_send(message, AT_SEND[message.__class__])

    def _after_send(self, message: Any, what: tuple[str, str]) -> None:
        process = self.world.seats[message.rank]
        if process.incarnation == message.incarnation:
            self._after(process.number, what)

    def _note_withheld(self, step: Step) -> None:
        """What a process was asked for and has not among those it is to make (`uids`), it withholds."""
        for turn in step.turns:
            asked = [effect.session_id for effect in turn.effects if effect.__class__ is fx.MakeSessionId]
            self.withheld.update(number for number in asked if number not in self.world.processes[turn.who].uids)

    def _after(self, number: int, what: tuple[str, str] | None) -> None:
        if what is not None and self.site(what[0]):
            process = self.world.processes[number]
            if process.alive and what[1] == "crash":
                self._next_thing(lambda: self.kill(process) if process.alive else None)
            elif process.alive and what[1] == "cleanly":
                self._next_thing(lambda: self._do("crash", number))
            elif process.alive:
                self._next_thing(lambda: self._do(what[1], number))


STRIKES: dict[str, Callable[[Storm, str], None]] = {
    "partition": Storm._partition, "crash": Storm._crash, "zombie": Storm._zombie, "plague": Storm._plague,
    "return": Storm._return,
    "full": Storm._full, "away": Storm._away, "jump": Storm._jump, "die": Storm._die, "join": Storm._anybody,
    "abort": Storm._anybody,
    **dict.fromkeys(FRAMES_OF, Storm._on_wire), **dict.fromkeys(TAMPERING, Storm._on_lane),
    "stop": Storm._wish, "checkpoint": Storm._wish, "evaluate": Storm._wish,
}  # fmt: skip
