"""An independent record of a run, kept from what passes between coordinator and ranks alone, and the checks on it.

The machines keep books; a fault in them would be in both halves of a comparison made from those books. So the ghost
counts what was trained (told by the training processes) and what was merged (told by the effects), computes the
parameters of every rank and every consensus anew, and judges each effect of the coordinator against what the protocol
allows after the ones before it. Each check has the id of the invariant of section 16, or of the rule, that it stands
for.

The parameters of a rank have a closed form. After steps with targets t1 to tk from x0, at rate r, they are

    x = (1 - r)^k x0 + r * sum of (1 - r)^(k - i) ti

and a consensus is the mean of those, weighted by the steps that each contribution holds (R-5, R-6). That is computed
from the record of steps and adoptions, never taken from a rank or from the averager.
"""

from __future__ import annotations

from typing import Any, Self

import attrs

from .. import effects as fx
from .. import events as ev
from .. import messages as m
from ..coordinator import Coordinator
from ..ledger import Resume
from ..phases import CyclePhase, PeerPhase, RunPhase
from ..values import state
from .finish_order import in_order
from .frozen import frozen, thaw
from .lost_tail import LOST
from .process import Process, closed_form
from .together import mean
from .violation import Violation, close, require

__all__ = ["Ghost", "Pick"]

Pick = tuple[int, int]
"""An epoch and the number of a batch in it."""
NOT_AFTER_A_SAVE = frozenset({m.RequestParams, m.SyncNow, m.RequestSessionId, m.NewSession})
"""Beside all that brings a plan (I9)."""
MOVES = ("Died", "Left", "SendFailed", "Excluded", "Promoted")
"""Who comes or goes pins windows anew after plans were handed out: I14 is about the plans of a quiet event."""


@state
class Ghost:
    """What was trained and merged, what has been said to whom, and what every parameter must be.

    By process: `base` its parameter after the last adoption, `since` the batches trained on top of it, `unmerged` those
    that no consensus holds, `copies` the last contribution as (cycle, attempt, value, its batches). `means` is the
    consensus of each version, `pending` the one of a round that may still be taken back, `given` its batches. In an
    `ambiguous` run a consensus holds steps of which nobody could say whose they were, so they are trained again (M-19).
    `admitted`: the coordinator has just said so. In a run that `forgot` the end of its journal was lost: `former` are
    the averages of cycles that were in it, `uncounted` the steps of which nothing else is known (`lost_tail.py`).
    `brought`: with what each life says that it came to a run which begins from what all bring (M-6).
    """

    base: dict[int, float] = attrs.field(factory=dict)
    since: dict[int, tuple[Pick, ...]] = attrs.field(factory=dict)
    unmerged: dict[int, tuple[Pick, ...]] = attrs.field(factory=dict)
    copies: dict[int, tuple[int, int, float, tuple[Pick, ...]]] = attrs.field(factory=dict)
    means: dict[int, float] = attrs.field(factory=dict)
    pending: tuple[int, int, bool, float] = (-1, 0, False, 0.0)
    given: tuple[Pick, ...] = ()
    trained: dict[Pick, int] = attrs.field(factory=dict)
    merged: dict[Pick, int] = attrs.field(factory=dict)
    version: int = 0
    armed: int = -1
    arms_open: int = 0
    acks: set[tuple[int, int, int, int]] = attrs.field(factory=set)
    requested: set[tuple[int, int, int]] = attrs.field(factory=set)
    updated: dict[tuple[int, int], int] = attrs.field(factory=dict)
    closed: int = 0
    save: int = -1
    shutdowns: set[tuple[int, int]] = attrs.field(factory=set)
    ended: set[tuple[int, int]] = attrs.field(factory=set)
    held: dict[int, int] = attrs.field(factory=dict)
    realized: dict[int, int] = attrs.field(factory=lambda: {0: 0})
    acted: set[tuple[int, str, int]] = attrs.field(factory=set)
    scratch: dict[int, tuple[Any, ...]] = attrs.field(factory=dict)
    voting: set[int] = attrs.field(factory=set)
    over: bool = False
    calm: bool = True
    admitted: bool = False
    ambiguous: bool = False
    forgot: bool = False
    former: dict[int, tuple[tuple[int, float], ...]] = attrs.field(factory=dict)
    brought: dict[tuple[int, int], float] = attrs.field(factory=dict)
    uncounted: int = 0
    seen: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None

    @classmethod
    def going_on(cls, resume: Resume | None) -> Self:
        """K-12: what the record of a run before says is merged, and is not to be trained again (I52)."""
        made = cls()
        if resume is not None:
            book = resume.book(resume.last_closed_epoch + 1 + len(resume.uncovered))
            left = {(epoch, b) for epoch, holes in resume.uncovered for low, n in holes for b in range(low, low + n)}
            known = ((epoch, batch) for epoch in range(book.num_epochs) for batch in range(book.total(epoch)))
            made.merged = {pick: 1 for pick in known if pick not in left}
            made.trained = dict(made.merged)
            made.uncounted = resume.global_step - len(made.merged)  # of a record without its coverage
            made.closed, made.version = resume.last_closed_epoch + 1, resume.version
            made.realized = {0: resume.version}
        return made

    # --- the training processes ----------------------------------------------------------------------------------

    def begin_life(self, process: Process) -> None:
        """A process with a model of its own was let in."""
        self.base[process.number] = process.theta
        self.since[process.number] = self.unmerged[process.number] = ()

    def goes_on_as(self, number: int, newer: int) -> None:
        """A process has a new number: the model is what it was, and so are the steps that no consensus holds, until it
        learns that they are dropped (W-21)."""
        self.base[newer], self.since[newer], self.unmerged[newer] = (
            self.base[number], self.since[number], self.unmerged[number]
        )  # fmt: skip
        known: tuple[dict[int, Any], ...] = (self.held, self.copies, self.scratch)
        for noted in known:
            if number in noted:
                noted[newer] = noted[number]
        self.acted |= {(newer, *act[1:]) for act in self.acted if act[0] == number}
        self.unmerged[number] = ()

    def drop(self, number: int) -> None:
        """A life is over, and with it the steps that no consensus holds (I46), also if what a call made of the model is
        put back only now."""
        self.unmerged[number] = ()
        if number in self.scratch:
            base, since, _, held, acted = self.scratch[number]
            self.scratch[number] = (base, since, (), held, acted)

    def restarted(self) -> None:
        """M-43: a round ended with the life of the coordinator, and its evidence with it. What the dead one said last
        may be said again (M-44)."""
        self.over = False
        self.acks.clear()
        self.pending, self.given = (-1, 0, False, 0.0), ()

    def value(self, number: int) -> float:
        """The closed form of a process's parameter."""
        return closed_form(self.base[number], self.since[number])

    def steps(self, number: int, picks: tuple[Pick, ...]) -> None:
        """A process has trained these batches."""
        trained = self.trained
        for pick in picks:
            trained[pick] = trained.get(pick, 0) + 1
        self.since[number] += picks
        self.unmerged[number] += picks

    def copied(self, process: Process, order: fx.TakeSnapshot) -> None:
        """A process ships what it has (W-10); I34, I47: the same again for a later attempt."""
        number, value = process.number, self.value(process.number)
        known = self.copies.get(number)
        again = known is not None and known[0] == order.cycle
        picks = () if not order.shipped else known[3] if again and known is not None else self.unmerged[number]
        if again and known is not None and not order.fresh:
            value = known[2]
        elif order.state and number in self.held:  # M-45: what it has stepped since its consensus counts nowhere
            made = self._made(self.held[number])
            value = next((each for each in made if close(each, process.theta)), made[-1])
            self.base[number], self.since[number] = value, ()
        if len(picks) != order.shipped:
            raise Violation("I47", f"process {number} ships {order.shipped} steps and has {len(picks)} unmerged ones")
        if not close(value, process.copy or 0.0):
            raise Violation("R-16", f"process {number} ships {process.copy}, its steps lead to {value}")
        self.copies[number] = (order.cycle, order.attempt, value, picks)

    def adopt(self, process: Process, effect: fx.Adopt, alpha: float | None) -> None:
        """I59, R-17: the parameter after an adoption is that of the consensus of that cycle, or blended with it."""
        number, cycle = process.number, effect.cycle
        copy = self.copies.get(number)
        if effect.outcome == m.Outcome.MERGED and copy is not None:
            self.unmerged[number] = self.unmerged[number][len(copy[3]) :]
        elif effect.outcome in (m.Outcome.REFUSED, m.Outcome.OBSERVER):
            self.unmerged[number] = ()
        if effect.how == "keep":
            return
        known = self.realized[max(c for c in self.realized if c <= cycle)]
        value = self.value(number)
        for version, made in (*self.former.get(cycle, ()), (known, self.means[known])):
            self.held[number] = version
            self.base[number] = value + alpha * (made - value) if effect.how == "blend" and alpha is not None else made
            if close(self.base[number], process.theta):
                break
        self.since[number] = ()
        if not close(self.base[number], process.theta):
            text = f"process {number} holds {process.theta} after cycle {cycle}, version {version} is {made}"
            raise Violation("I59", text)
        self.base[number] = process.theta  # so that roundings don't add up

    def order(self, process: Process, order: Any) -> None:
        """I16, I17, I24: what acts sees the consensus of its version, and each decision acts once at its target."""
        if isinstance(order, fx.Evaluate):
            decision = ("evaluate", order.schedule_id)
        elif isinstance(order, fx.FireCallback):
            decision = (order.name, order.decision_id)
        else:
            return
        number = process.number
        if order.version != self.held.get(number, 0):
            raise Violation("I17", f"{order} at process {number}, which holds version {self.held.get(number, 0)}")
        if order.version and decision[0] == "checkpoint" and not process.fresh:
            raise Violation("I16", f"process {number} stepped between the adoption and {order}")
        if (number, *decision) in self.acted:
            raise Violation("I24", f"{decision} acts a second time at process {number}")
        self.acted.add((number, *decision))

    # --- a collective --------------------------------------------------------------------------------------------

    def united(self, cycle: int, attempt: int, all_of_it: list[Process], value: float | None, gamma: float) -> int:
        """R-13: the average is the weighted mean of the members whose values are finite, each of which gives exactly
        the steps that no consensus holds (W-14). Gives the version that it would be."""
        given: list[tuple[int, float]] = []
        picks: tuple[Pick, ...] = ()
        for process in all_of_it:
            own, call = self.unmerged[process.number], process.inside
            steps = 0 if call is None else call.steps
            require(len(own) == steps, "W-14", f"process {process.number} gives {steps} steps and has {len(own)}")
            if own and not process.poisoned:
                given.append((steps, self.value(process.number)))
                picks += own
        wanted = mean(given, gamma) if given else None
        if (wanted is None) != (value is None) or not close(wanted or 0.0, value or 0.0):
            raise Violation("R-13", f"the average of cycle {cycle} is {value}, the steps in it lead to {wanted}")
        self.given = picks
        held = value if value is not None else self.value(all_of_it[0].number)
        self.pending = (cycle, attempt, value is not None, held)
        return max([self.version, *(self.held.get(each.number, 0) for each in all_of_it if self.forgot)]) + 1

    def shared(self, source: int, process: Process) -> None:
        """A process holds all that another one does (R-20)."""
        self.base[process.number], self.since[process.number] = process.theta, ()
        self.held[process.number] = self.held.get(source, 0)

    def stands_on_consensus(self, process: Process) -> None:
        """M-45: a rank that gives its state to all has put back the consensus that it adopted last."""
        self.base[process.number], self.since[process.number] = process.theta, ()
        self.means[self.version] = process.theta  # it may have come to count by this alone

    def emerged(self, process: Process, value: float | None, version: int, *, gave: bool) -> None:
        """The call succeeded at a process; all of it may have to be put back."""
        number = process.number
        acted = tuple(sorted(act for act in self.acted if act[0] == number))
        self.scratch[number] = (self.base[number], self.since[number], self.unmerged[number],
                                self.held.get(number, 0), acted)  # fmt: skip
        if value is not None:
            self.base[number], self.since[number], self.held[number] = value, (), version
        if gave:
            self.unmerged[number] = ()

    def put_back(self, number: int) -> None:
        """W-14, R-15: the same as before the call, and callbacks that saw its average act again (I24)."""
        base, since, unmerged, held, acted = self.scratch.pop(number)
        self.base[number], self.since[number], self.unmerged[number], self.held[number] = base, since, unmerged, held
        self.acted = {act for act in self.acted if act[0] != number} | set(acted)

    def committed(self, process: Process, version: int) -> None:
        """I59: the average that counts now is the consensus of its version."""
        number = process.number
        self.scratch.pop(number, None)
        known = self._made(version)
        if self.held.get(number, 0) == version and not any(close(self.base[number], made) for made in known):
            text = f"process {number} stands on {self.base[number]}, version {version} is {self.means[version]}"
            raise Violation("I59", text)

    def _made(self, version: int) -> list[float]:
        """What was the consensus of this version, in the books of now last."""
        former = [made for each in self.former.values() for was, made in each if was == version]
        return [*former, self.means[version]]

    # --- the averager ----------------------------------------------------------------------------------------------

    def reduced(self, event: ev.RoundReduced, consensus: float | None, senders: dict[int, int], gamma: float) -> None:
        """R-5, R-6, I57: the consensus is the weighted mean of exactly the accepted contributions. `senders` are the
        processes of the ranks in the round."""
        if event.key.kind == m.RoundKind.STATE:
            source = self.copies[senders[event.accepted[0]]]
            mean, self.given = source[2], ()
        else:
            total = weight = 0.0
            picks: tuple[Pick, ...] = ()
            for rank in event.accepted:
                cycle, _, value, own = self.copies[senders[rank]]
                require(cycle == event.key.cycle, "R-1", f"rank {rank} gave a copy of cycle {cycle} to {event.key}")
                if own:
                    total, weight = total + len(own) ** gamma * value, weight + len(own) ** gamma
                    picks += own
            self.given = picks
            if event.realized != bool(picks):
                raise Violation("R-8", f"{event.key} is realized: {event.realized}, with {len(picks)} steps in it")
            mean = total / weight if picks else 0.0
        if event.realized and (consensus is None or not close(mean, consensus)):
            raise Violation("R-6", f"the consensus of {event.key} is {consensus}, the accepted steps lead to {mean}")
        self.pending = (event.key.cycle, event.attempt, event.realized, consensus or 0.0)

    # --- effects of the coordinator, one by one --------------------------------------------------------------------

    def begin(self, effects: tuple[Any, ...]) -> None:
        """The effects of one event follow."""
        names = [effect.name for effect in effects if effect.__class__ is fx.Emit]
        self.calm = not any(name in MOVES for name in names)
        self.admitted = any(e.__class__ is fx.Alert and e.kind == "accounting" and e.path not in LOST for e in effects)
        if "Cycle" in names:
            in_order(effects)

    def see(self, co: Coordinator, effect: Any) -> None:
        """Judge one effect. What is said once more after a restart was judged when it was said first (M-44)."""
        kind = effect.__class__
        if (kind is fx.Emit and effect.facts.get("again")) or (kind is fx.Alert and effect.again):
            require(co.generation > 1, "M-44", f"{effect} is said again, and nothing was said before")
            return
        if self.over:
            raise Violation("C-25", f"nothing follows Finish, but {effect} did")
        if kind is fx.Send:
            self._see_send(co, effect)
        elif kind is fx.Emit:
            self._see_event(co, effect)
        elif kind is fx.OpenRound:
            self._i18_observers_give_nothing(effect)
        elif kind is fx.Finish:
            self.over = True
        elif kind is fx.Alert and effect.kind == "accounting" and effect.path in LOST:
            LOST[effect.path](self, co)

    def _see_event(self, co: Coordinator, effect: fx.Emit) -> None:
        name, facts = effect.name, effect.facts
        if name == "SyncStart":
            self._i1_i8_one_cycle_at_a_time(facts["cycle"])
        elif name == "Covered":
            self._covered(facts["slices"], in_place=co.config.is_collective)
        elif name == "Cycle":
            self._cycle(co, facts)
        elif name == "SyncEnd":
            self.arms_open -= 1
            if facts["cycle"] == 0:
                if self.forgot and self.version in self.means:  # who adopted what it was before may still hold that
                    self.former[0] = (*self.former.get(0, ()), (self.version, self.means[self.version]))
                self.realized[0], self.means[self.version] = self.version, self._initial(co)
                require(co.cycle.known <= 0 or self.forgot, "I8", f"cycle {co.cycle.known} is known from nowhere")
                self.armed = max(self.armed, co.cycle.known)
        elif name == "EpochEnd":
            require(facts["epoch"] == self.closed, "I13", f"epoch {facts['epoch']} closes after {self.closed} others")
            self.closed += 1
            missing = [b for b in range(co.book.total(facts["epoch"])) if (facts["epoch"], b) not in self.merged]
            if missing:
                raise Violation("I42", f"epoch {facts['epoch']} closed, batches {missing} were not covered")
        elif name == "Joined":
            may = co.config.elastic or co.run.phase == RunPhase.FORMING or (self.forgot and facts["incarnation"] > 1)
            require(may, "I20", f"{facts} joined a frozen cohort")
        elif name == "Promoted":
            self.voting.add(facts["rank"])
        elif name == "Excluded":
            self.voting.discard(facts["rank"])
        elif name in ("Died", "Left"):
            self.voting.discard(facts["rank"])
            life = (facts["rank"], facts["incarnation"])
            require(life not in self.ended, "I19", f"life {life} ended twice")
            self.ended.add(life)

    def _see_send(self, co: Coordinator, effect: fx.Send) -> None:
        message: Any = effect.message
        life = (message.rank, message.incarnation)
        if life in self.ended:
            raise Violation("N-11", f"{type(message).__name__} to life {life}, which is gone")
        kind = message.__class__
        if kind is m.Beacon:
            return
        plan = getattr(message, "plan", None) or getattr(message, "next_plan", None)
        if plan is not None or kind in NOT_AFTER_A_SAVE:
            require(self.save < 0, "I9", f"{kind.__name__} after ShutdownWithSave")
        if kind is m.RequestParams:
            self.requested.add((message.cycle, message.attempt, effect.rank))
        elif kind is m.Throttle and message.reason == m.ThrottleReason.BARRIER:
            require((message.cycle, 0, effect.rank) in self.requested, "I6", "Throttle precedes RequestParams")
            require(not co.config.is_progressive, "I6", "a progressive run has no barrier throttle")
        elif kind is m.Update:
            last = self.updated.get(life, -1)
            if message.cycle <= last:
                raise Violation("I5", f"life {life} gets an Update of cycle {message.cycle} after that of {last}")
            self.updated[life] = message.cycle
            if message.outcome == m.Outcome.OBSERVER and message.cycle > 0:
                require(message.version == self.version, "I21", f"promoted on {message.version}, not {self.version}")
        elif kind is m.ShutdownWithSave:
            require(self.save in (-1, message.decision_id), "I9", "two ShutdownWithSave decisions")
            self.save = message.decision_id
        elif kind is m.Shutdown:
            self._i9_i10_shutdown(co, life)
        if plan is not None:
            self._plan(co, effect.rank, plan)

    def _initial(self, co: Coordinator) -> float:
        """M-6: what all begin from is what one of them gave, or, where no round was, what each has brought."""
        if self.pending[0] == 0:
            return self.pending[3]
        brought = {self.brought[rank, co.peers[rank].incarnation] for rank in co.voters}
        require(len(brought) == 1, "M-6", f"the run begins from {sorted(brought)}")
        return brought.pop()

    # --- named checks ----------------------------------------------------------------------------------------------

    def _i1_i8_one_cycle_at_a_time(self, cycle: int) -> None:
        require(cycle == self.armed + 1 or self.armed < 0, "I8", f"cycle {cycle} is armed after {self.armed}")
        require(self.arms_open == 0, "I1", f"cycle {cycle} is armed while another is open")
        self.armed, self.arms_open = cycle, 1

    def _cycle(self, co: Coordinator, facts: dict[str, Any]) -> None:
        """I2: finished on acknowledgements only. I7: one version per consensus. I44: the base is what was merged."""
        cycle, attempt = facts["cycle"], facts["attempt"]
        for rank in co.cycle.members:
            if co.peers[rank].phase == PeerPhase.VOTER and rank in co.voters:
                life = co.peers[rank].incarnation
                if (cycle, attempt, rank, life) not in self.acks:
                    raise Violation("I2", f"cycle {cycle} finished without the acknowledgement of rank {rank}")
        wanted = self.version + (1 if facts["realized"] else 0)
        require(facts["version"] == wanted, "I7", f"version {facts['version']} where {wanted} is due")
        self.version = wanted
        if facts["realized"]:
            known = self.pending[:3] == (cycle, attempt, True)
            require(known, "R-1", f"cycle {cycle} finished on the round {self.pending[:3]}")
            self.realized[cycle], self.means[wanted] = wanted, self.pending[3]
        total = self.uncounted + len(self.merged) + sum(facts["merged"].values())
        require(facts["global_step"] == total, "I44", f"global_step is {facts['global_step']}, {total} were merged")
        self.acks.clear()
        self.requested.clear()

    def _covered(self, slices: list[list[int]], *, in_place: bool) -> None:
        """I42: once each. I52: exactly the steps that the consensus holds, and never more."""
        covered = [(epoch, batch) for _, epoch, first, count in slices for batch in range(first, first + count)]
        for pick in covered:
            if pick in self.merged:
                raise Violation("I42", f"batch {pick[1]} of epoch {pick[0]} was covered twice")
            if pick not in self.trained:
                raise Violation("I42", f"batch {pick[1]} of epoch {pick[0]} was covered and never trained")
            self.merged[pick] = 1
        # M-19: nobody may know whose steps are in it; then it is said that nobody does.
        if len(covered) != len(self.given) or set(covered) != set(self.given):  # nothing is in there twice
            if not (in_place and self.admitted and set(covered) <= set(self.given)):
                raise Violation("I52", f"covered are {sorted(covered)}, the consensus holds {sorted(self.given)}")
            self.ambiguous = True
        self.given = ()

    def _i9_i10_shutdown(self, co: Coordinator, life: tuple[int, int]) -> None:
        require(life not in self.shutdowns, "I9", f"a second Shutdown to life {life}")
        self.shutdowns.add(life)
        require(co.cycle.phase != CyclePhase.PENDING, "I10", "Shutdown while a cycle is pending")
        if not (co.stopping or co.save_issued):
            held = [rank for rank in co.voters if co.peers[rank].steps]
            require(not held, "I10", f"Shutdown while ranks {held} hold unmerged steps")

    def _i18_observers_give_nothing(self, opened: fx.OpenRound) -> None:
        members, observers = {r for r, _, _ in opened.members}, {r for r, _ in opened.observers}
        require(not members & observers, "I18", f"{members & observers} observe and give")
        # Who alone stands on a version that the journal had lost has no vote (M-45).
        seeded = opened.key.is_transfer and self.forgot and not self.voting and len(members) == 1
        if opened.key.cycle > 0 and not seeded:
            require(members <= self.voting, "I18", f"{members - self.voting} are no voters")
            require(observers.isdisjoint(self.voting), "I18", f"{observers & self.voting} are voters")

    def _plan(self, co: Coordinator, rank: int, plan: m.Plan) -> None:
        """I18: plans are for voters. I13: they name epochs that may be entered. I14: they stay within the limit."""
        require(rank in self.voting, "I18", f"a plan for rank {rank}, which has no vote")
        ahead = 0 if co.config.barrier_paced else 1
        if not self.closed <= plan.epoch <= self.closed + ahead:
            raise Violation("I13", f"{plan} when {self.closed} epochs are closed")
        if co.config.is_progressive and self.calm:
            limit = co.desk.quota(rank)
            if not co.config.barrier_paced:
                limit = co.balancer.counts[rank] + co.balancer.overshoots[rank]
            used = co.peers[rank].steps + co.book.holdings(rank).in_flight_batches
            require(used <= limit, "I14", f"rank {rank} has {used} batches of {limit}")

    # --- as a value -----------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Plain and hashable; the same object again while nothing has changed."""
        if self.seen is None:
            plain = frozen(self, SEEN)
            self.seen = self.last = self.last if self.last == plain else plain
        return self.seen

    def load(self, snapshot: tuple[Any, ...]) -> None:
        """Become what the snapshot was made of."""
        if self.seen is not snapshot:
            thaw(self, snapshot, SEEN)
            self.seen = self.last = snapshot


SEEN = frozenset({"last", "seen"})
