"""A coordinator and two ranks in one process, driven by hand: no trio, no socket, no thread, no clock.

    python docs/examples/embed_sync.py             # both ranks stay
    python docs/examples/embed_sync.py --kill      # rank 1 dies after two seconds
    python docs/examples/embed_sync.py --explain   # at second 1, what waits for what

Real are the state machines, the messages, every byte between them, and the consensus: a mean weighted by steps.
Stand-ins are the rest: the model is one number that each step pulls towards the mean of its batch, the bulk lane is a
function call, and time is a variable, so that every run of this file is the same. docs/guides/embed.md explains it.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import Any

from paceline import Config, Coordinator, Link, Worker
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.config import config_digest
from paceline.core.dispatch.permutation import partition
from paceline.core.schema import EntryClass, Schema, SchemaEntry, dataset_signature
from paceline.core.wire import Role
from paceline.core.worker import WorkerSettings
from paceline.transports.codec import MsgpackCodec

DATA = [float(index % 100) for index in range(1200)]  # the best model of these is their mean, 49.5
STEP_S = (0.010, 0.030)  # rank 1 needs three times as long for a step
BATCH, EPOCHS, SEED = 4, 3, 1
CONFIG = Config(batch_size=BATCH, num_epochs=EPOCHS, seed=SEED, target_ranks=len(STEP_S))
KILL_AT, EXPLAIN_AT = 2.0, 1.0


# --- the driver: all that a machine needs from its surroundings ---------------------------------------------------


class Driver:
    """Feeds one machine and performs what it orders; `perform` is whoever can do that."""

    def __init__(self, role: Role, perform: Any) -> None:
        self.machine: Any = None
        self.perform = perform
        self.inbox: deque[Any] = deque()
        self.role = role

    def turn(self, now: float) -> bool:
        """Everything that has arrived, then the time, then one batch of effects in its order."""
        due = None if self.machine is None else self.machine.poll_timeout()
        if not self.inbox and (due is None or now < due):
            return False
        while self.inbox:
            self.machine.handle(self.inbox.popleft(), now)
        self.machine.handle(ev.Tick(), now)
        for effect in self.machine.take_ready().effects:
            self.perform(effect, now)
        return True

    def connect(self, receive: Any) -> tuple[Link, Any]:
        """An end of a connection: its `Link`, and the function that takes the other end's bytes."""
        link = Link(codec=MsgpackCodec(), keys=None, role=self.role)

        def hear(data: bytes) -> None:
            link.receive_data(data)
            while (message := link.next_message()) is not None:
                receive(message)

        return link, hear


# --- a rank: the orders of its worker, obeyed by a stand-in for a training process --------------------------------


class Rank:
    """One rank: dials, is welcomed, trains what it is given."""

    def __init__(self, number: int, hub: Hub) -> None:
        self.number, self.hub = number, hub
        self.weight = 10.0 * number  # the ranks start apart; cycle 0 gives all of them that of the lowest rank
        self.plan: list[m.Plan] = []
        self.part = self.batch = self.steps = self.shipped = self.incarnation = 0
        self.parked, self.stopped = False, False
        self.step_ends: float = 0.0
        self.consensus = 0.0
        self.driver = Driver(Role.RANK, self.perform)
        self.link, hear = self.driver.connect(self.receive)
        self.send = hub.accept(hear, self)
        schema = Schema(entries=(SchemaEntry(name="weight", cls=EntryClass.PARAM, shape=(), dtype="float64"),))
        self.send(self.link.send(m.Hello(
            protocol=1, package="paceline", host="here", devices=("cpu",), runtime="example", byte_order=0,
            schema=schema, schema_hash=schema.hash(), dataset_signature=dataset_signature(len(DATA), b""),
            config_digest=config_digest({}), averagers=("star",),
        )))  # fmt: skip

    def receive(self, message: Any) -> None:
        if isinstance(message, m.Welcome):
            self.incarnation = message.incarnation
            self.driver.machine = Worker.create(WorkerSettings.from_welcome(message, CONFIG.run_id), now=0.0)
        else:
            self.driver.inbox.append(ev.Received(message))

    @property
    def training(self) -> bool:
        return bool(self.plan) and not self.parked and not self.stopped

    def perform(self, effect: Any, now: float) -> None:
        match effect:
            case fx.Reporting(report=report):
                self.send(self.link.send(report))
            case fx.Train(plan=plan):
                self.plan, self.part, self.batch, self.steps = [plan], 0, 0, 0
                self.step_ends = now + STEP_S[self.number]
            case fx.Extend(plan=plan):
                self.plan.append(plan)
            case fx.AbandonPlan():
                self.plan = []
            case fx.Park() | fx.Unpark():
                self.parked = isinstance(effect, fx.Park)
                self.step_ends = now + STEP_S[self.number]
            case fx.TakeSnapshot(cycle=cycle, attempt=attempt):
                self.driver.inbox.append(ev.SnapshotTaken(cycle, attempt, copy_ms=0.0))
                self.hub.averager.upload(self, self.weight)
            case fx.Adopt(how="overwrite"):
                self.weight = self.consensus
            case fx.Stop():
                self.stopped = True
                self.hub.driver.inbox.append(ev.LinkLost(self.number, self.incarnation, "hung up"))
            case fx.Stage() | fx.Publish() | fx.Adopt(how="keep"):
                pass  # hints, news, and a cycle without a consensus
            case _:
                raise NotImplementedError(f"this example has no {type(effect).__name__}")

    def step(self, now: float) -> None:
        """One optimizer step, and its report to the worker; the last one of the plan ends it."""
        plan = self.plan[self.part]
        count = min(BATCH, plan.size - self.batch * BATCH)
        picks = partition(len(DATA), 1, SEED, plan.epoch, plan.offset + self.batch * BATCH, count)
        target = sum(DATA[pick] for pick in picks) / count
        self.weight += (target - self.weight) / (4.0 + self.driver.machine.position / 2)
        part = self.part
        self.batch, self.steps, self.step_ends = self.batch + 1, self.steps + 1, now + STEP_S[self.number]
        if self.batch * BATCH >= plan.size:
            self.part, self.batch = part + 1, 0
        last = self.part == len(self.plan)
        milliseconds = 1000 * STEP_S[self.number]
        self.driver.inbox.append(ev.StepDone(
            samples=count, part=part, batch_ms=milliseconds, data_ms=0.0, loss=(target - self.weight) ** 2, last=last,
        ))  # fmt: skip
        if last:
            self.driver.inbox.append(ev.ChunkDone(
                plan_ids=tuple(plan.plan_id for plan in self.plan), epoch=plan.epoch, batches=self.steps,
                samples=sum(plan.size for plan in self.plan), epoch_ms=self.steps * milliseconds,
                share_complete_ms=self.steps * milliseconds, compute_only_ms=self.steps * milliseconds,
                data_starve_ms=0.0,
            ))  # fmt: skip
            self.plan = []

    def die(self) -> None:
        """As after SIGKILL: it says nothing more, and whoever watches its connection sees that end."""
        self.stopped = True
        self.hub.driver.inbox.append(ev.LinkLost(self.number, self.incarnation, "end of stream"))


# --- the coordinator's side ---------------------------------------------------------------------------------------


class Averager:
    """The data plane: waits for who is expected, divides the weighted sum by the weights (R-5 with gamma 1)."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.round: fx.OpenRound | None = None
        self.uploads: dict[int, tuple[Rank, float]] = {}
        self.admitted: dict[int, int] = {}
        self.gone: list[int] = []
        self.consensus = 0.0

    def upload(self, rank: Rank, weight: float) -> None:
        self.uploads[rank.number] = (rank, weight)

    def perform(self, effect: Any) -> None:
        match effect:
            case fx.OpenRound():
                self.round, self.uploads, self.admitted, self.gone = effect, {}, {}, []
            case fx.AdmitContribution(rank=rank, steps=steps):
                self.admitted[rank] = steps
            case fx.RemoveFromRound(rank=rank):
                self.gone.append(rank)
            case fx.AbortRound() | fx.CloseRound():
                self.round = None

    def reduce(self, now: float) -> bool:
        """Average once everybody's number is here. The coordinator hears of it before any rank does (R-2)."""
        if self.round is None:
            return False
        members = [rank for rank, _, _ in self.round.members if rank not in self.gone]
        receivers = [rank for rank in (*members, *(r for r, _ in self.round.observers)) if rank not in self.gone]
        if any(rank not in self.admitted for rank in members) or any(rank not in self.uploads for rank in receivers):
            return False
        opened, self.round = self.round, None
        formation = opened.key.kind == m.RoundKind.STATE
        mass = {rank: 1 if formation else self.admitted[rank] for rank in members}
        total = sum(mass.values())
        self.hub.driver.inbox.append(ev.RoundReduced(opened.key, opened.attempt, tuple(members), (), total > 0))
        self.hub.driver.turn(now)
        if total:
            self.consensus = sum(self.uploads[rank][1] * mass[rank] for rank in members) / total
        for number in receivers:
            rank, mine = self.uploads[number]
            rank.consensus = self.consensus
            drift = abs(mine - self.consensus) / (abs(self.consensus) or 1.0)
            outcome = m.Outcome.OBSERVER if formation or number not in members else m.Outcome.MERGED
            rank.driver.inbox.append(ev.ConsensusStaged(
                cycle=opened.key.cycle, attempt=opened.attempt, outcome=outcome if total else m.Outcome.UNREALIZED,
                total_steps=sum(self.admitted[r] for r in members), divergence=drift,
            ))  # fmt: skip
        return True


class Hub:
    """The coordinator with its connections."""

    def __init__(self) -> None:
        self.driver = Driver(Role.COORDINATOR, self.perform)
        self.driver.machine = Coordinator(CONFIG, now=0.0)
        self.averager = Averager(self)
        self.knocking: list[tuple[Link, Any, Rank]] = []
        self.ranks: dict[int, tuple[Link, Any, Rank]] = {}
        self.merged: Counter[tuple[int, int]] = Counter()  # how often each batch of each epoch came into a consensus
        self.finish: fx.Finish | None = None

    def accept(self, hear_back: Any, rank: Rank) -> Any:
        """A new connection; its number is all the machine knows of it until it is admitted."""
        number = len(self.knocking)

        def receive(message: Any) -> None:
            knock = isinstance(message, m.Hello)
            self.driver.inbox.append(ev.HelloReceived(number, message) if knock else ev.Received(message))

        link, hear = self.driver.connect(receive)
        self.knocking.append((link, hear_back, rank))
        return hear

    def perform(self, effect: Any, now: float) -> None:
        match effect:
            case fx.Admit(link=number, rank=rank, welcome=welcome):
                self.ranks[rank] = link, hear, _ = self.knocking[number]
                hear(link.send(welcome))
            case fx.Send(rank=rank, message=message, token=token):
                link, hear, receiver = self.ranks[rank]
                if receiver.stopped:
                    self.driver.inbox.append(ev.SendFailed(token))
                else:
                    hear(link.send(message))
            case fx.CloseLink(rank=rank):
                self.ranks[rank][2].driver.inbox.append(ev.LinkLost())
            case fx.Emit(name="Cycle", facts=facts):
                print(f"{now:5.2f} s  cycle {facts['cycle']:>2}  steps merged {facts['merged']}", end="  ")
                print(f"consensus {self.averager.consensus:.3f}")
            case fx.Emit(name="Covered", facts=facts):
                for _, epoch, first, count in facts["slices"]:
                    self.merged.update((epoch, batch) for batch in range(first, first + count))
            case fx.Alert(text=text):
                print(f"{now:5.2f} s  {effect.kind}: {text}")
            case fx.Finish():
                self.finish = effect
            case fx.Refuse(reject=reject):
                raise SystemExit(reject.text)
            case _:
                self.averager.perform(effect)


def tell(coordinator: Coordinator) -> None:
    """Why what does not move does not, and until when."""
    for reason in coordinator.explain():
        print(reason)


def main(kill: bool, explains: bool) -> None:
    """Turn everything until nothing moves, then let time pass to the next moment that matters."""
    now, hub = 0.0, Hub()
    ranks = [Rank(number, hub) for number in range(len(STEP_S))]
    while hub.finish is None:
        if kill and now >= KILL_AT and len(ranks) == len(STEP_S):
            ranks.pop().die()
        drivers = [hub.driver, *(rank.driver for rank in ranks)]
        moved = [driver.turn(now) for driver in drivers]
        if any(moved) or hub.averager.reduce(now):
            continue
        due = [at for driver in drivers if (at := driver.machine.poll_timeout()) is not None]
        before, now = now, min(due + [rank.step_ends for rank in ranks if rank.training])
        if explains and before < EXPLAIN_AT <= now:
            tell(hub.driver.machine)
        for rank in ranks:
            if rank.training and rank.step_ends <= now:
                rank.step(now)
    total, mean = EPOCHS * len(DATA) // BATCH, sum(DATA) / len(DATA)
    print(f"{now:5.2f} s  {hub.finish}")
    print(f"batches merged {len(hub.merged)} of {total}, twice {sum(n > 1 for n in hub.merged.values())}")
    print(f"consensus {hub.averager.consensus:.3f}, mean of the data {mean:.3f}")


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--kill", "--explain"}:
        raise SystemExit(f"there is no option {min(unknown)}; the options are --kill and --explain")
    main(kill="--kill" in sys.argv[1:], explains="--explain" in sys.argv[1:])
