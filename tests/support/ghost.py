"""An independent record of a run, kept from what passes between coordinator and ranks alone, and the checks on it.

The machines keep books; a fault in them would be in both halves of a comparison made from those books. So the ghost
counts what was trained (told by the training processes) and what was merged (told by the effects), and judges every
effect of the coordinator against what the protocol allows after the ones before it. Each check is named after the
invariant of section 16 that it stands for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs

from paceline.core import effects as fx
from paceline.core import messages as m
from paceline.core.coordinator import Coordinator
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase
from paceline.core.timeline import undeclared

NOT_AFTER_A_SAVE = (
    m.RequestParams, m.SyncNow, m.StartEpoch, m.ExtendPartition, m.RequestSessionId, m.NewSession
)  # fmt: skip
THERE = (PeerPhase.JOINING, PeerPhase.VOTER, PeerPhase.LAGGING)
Pick = tuple[int, int]
"""An epoch and the number of a batch in it."""


def check_declared(effect: Any) -> None:
    """O-1: a timeline event has the name and the fields it is declared with. The ghost and the hand see every one."""
    if isinstance(effect, fx.Emit):
        wrong = undeclared(effect.name, effect.facts)
        assert wrong is None, f"O-1: {wrong}"


@attrs.define
class Ghost:
    """What was trained and merged, and what has been said to whom."""

    trained: dict[Pick, int] = attrs.field(factory=dict)
    merged: dict[Pick, int] = attrs.field(factory=dict)
    version: int = 0
    armed: list[int] = attrs.field(factory=list)
    acks: set[tuple[int, int, int, int]] = attrs.field(factory=set)
    requested: set[tuple[int, int, int]] = attrs.field(factory=set)
    updates: set[tuple[int, int, int]] = attrs.field(factory=set)
    closed: list[int] = attrs.field(factory=list)
    saves: set[int] = attrs.field(factory=set)
    shutdowns: dict[tuple[int, int], int] = attrs.field(factory=dict)
    ended: dict[tuple[int, int], int] = attrs.field(factory=dict)
    held: dict[int, int] = attrs.field(factory=dict)
    realized: dict[int, int] = attrs.field(factory=lambda: {0: 0})
    acted: set[tuple[int, int, str, int]] = attrs.field(factory=set)
    voting: set[int] = attrs.field(factory=set)
    over: bool = False
    calm: bool = True

    # --- the training processes ----------------------------------------------------------------------------------

    def step(self, epoch: int, batch: int) -> None:
        """A rank has trained a batch."""
        self.trained[epoch, batch] = self.trained.get((epoch, batch), 0) + 1

    def adopt(self, rank: int, cycle: int) -> None:
        """A rank has taken over the consensus of a cycle, or of the last one that had any."""
        self.held[rank] = self.realized[max(c for c in self.realized if c <= cycle)]

    def order(self, rank: int, incarnation: int, order: Any, fresh: bool) -> None:
        """I16, I17, I24: what acts sees the consensus of its version, and each decision acts once at its target.
        `fresh`: the rank has not stepped since it adopted, so what it holds is that consensus."""
        if isinstance(order, fx.Evaluate):
            decision = ("evaluate", order.schedule_id)
        elif isinstance(order, fx.FireCallback):
            decision = (order.name, order.decision_id)
        else:
            return
        assert order.version == self.held[rank], f"I17: {order} at rank {rank}, which holds version {self.held[rank]}"
        if order.version and decision[0] == "checkpoint":
            assert fresh, f"I16: a step came between the adoption and {order}"
        key = (rank, incarnation, *decision)
        assert key not in self.acted, f"I24: {decision} acts a second time at rank {rank}"
        self.acted.add(key)

    def begin(self, effects: list[Any]) -> None:
        """The effects of one event follow. Who comes or goes in them pins windows anew after plans were handed out."""
        changes = ("Died", "Left", "SendFailed", "Excluded", "Promoted", "SessionNew")
        self.calm = not any(isinstance(e, fx.Emit) and e.name in changes for e in effects)

    # --- effects of the coordinator, one by one --------------------------------------------------------------------

    def see(self, co: Coordinator, effect: Any) -> None:
        """Judge one effect."""
        assert not self.over, f"C-25: nothing follows Finish, but {effect} did"
        if isinstance(effect, fx.Emit):
            self._see_event(co, effect)
        elif isinstance(effect, fx.Send):
            self._see_send(co, effect)
        elif isinstance(effect, fx.OpenRound):
            self.i18_observers_give_nothing(effect)
        elif isinstance(effect, fx.Finish):
            self.over = True

    def _see_event(self, co: Coordinator, effect: fx.Emit) -> None:
        facts = effect.facts
        check_declared(effect)
        if effect.name == "SyncStart":
            self.i8_cycle_numbers_rise_at_arms(facts["cycle"])
        elif effect.name == "Covered":
            for _, epoch, first, count in facts["slices"]:
                for batch in range(first, first + count):
                    self.i42_merged_once(epoch, batch)
        elif effect.name == "Cycle":
            self.i2_finishes_on_acks_only(co, facts["cycle"], facts["attempt"])
            self.i7_one_version_per_realized_cycle(facts["version"], facts["realized"])
            if facts["realized"]:
                self.realized[facts["cycle"]] = facts["version"]
            assert facts["global_step"] == len(self.merged) + sum(facts["merged"].values()), "I44: base = merged steps"
        elif effect.name == "EpochEnd":
            assert facts["epoch"] == len(self.closed), "I13: epochs close in ascending order"
            self.closed.append(facts["epoch"])
            wanted = {(facts["epoch"], batch) for batch in range(co.book.total(facts["epoch"]))}
            assert wanted <= set(self.merged), "I42: an epoch closed before all of it was covered"
        elif effect.name == "Joined":
            self.i20_a_frozen_world_only_shrinks(co)
        elif effect.name == "Promoted":
            self.voting.add(facts["rank"])
        elif effect.name == "Excluded":
            self.voting.discard(facts["rank"])
        elif effect.name in ("Died", "Left"):
            self.voting.discard(facts["rank"])
            life = (facts["rank"], facts["incarnation"])
            self.ended[life] = self.ended.get(life, 0) + 1
            assert self.ended[life] == 1, f"I19: rank {life} ended twice"

    def _see_send(self, co: Coordinator, effect: fx.Send) -> None:
        message, life = effect.message, (effect.rank, effect.incarnation)
        assert life not in self.ended, f"N-11: {type(message).__name__} to rank {life}, which is gone"
        plan = getattr(message, "plan", None) or getattr(message, "next_plan", None)
        if isinstance(message, NOT_AFTER_A_SAVE) or plan is not None:
            assert not self.saves, f"I9: {message} after ShutdownWithSave"
        if isinstance(message, m.RequestParams):
            self.requested.add((message.cycle, message.attempt, effect.rank))
        elif isinstance(message, m.Throttle) and message.reason == m.ThrottleReason.BARRIER:
            assert (message.cycle, 0, effect.rank) in self.requested, "I6: RequestParams precedes Throttle"
            assert not co.config.is_progressive, "I6: a progressive run has no barrier throttle"
        elif isinstance(message, m.Update):
            key = (message.cycle, effect.rank, effect.incarnation)
            assert key not in self.updates, f"I4, I5: a second Update {key}"
            self.updates.add(key)
            self.i21_promoted_on_the_version_of_its_finish(message)
        elif isinstance(message, m.ShutdownWithSave):
            self.saves.add(message.decision_id)
            assert len(self.saves) == 1, "I9: one ShutdownWithSave decision per run"
        elif isinstance(message, m.Shutdown):
            self.shutdowns[life] = self.shutdowns.get(life, 0) + 1
            assert self.shutdowns[life] == 1, "I9: one Shutdown"
            assert co.cycle.phase != CyclePhase.PENDING, "I10: no Shutdown while Pending"
            held = [rank for rank in co.voters if co.peers[rank].steps]
            assert not held or co.stopping or co.save_issued, f"I10: ranks {held} hold unmerged steps"
        if plan is not None:
            assert effect.rank in self.voting, f"I18: a plan for rank {effect.rank}, which has no vote"
            self.i13_enterable(co, plan)
            self.i14_within_the_budget(co, effect.rank)

    # --- named checks ----------------------------------------------------------------------------------------------

    def i2_finishes_on_acks_only(self, co: Coordinator, cycle: int, attempt: int) -> None:
        """I2: a cycle finishes only when every member that is still a voter has acknowledged this attempt."""
        for rank in co.cycle.members:
            if co.peers[rank].phase == PeerPhase.VOTER and rank in co.voters:
                life = co.peers[rank].incarnation
                assert (cycle, attempt, rank, life) in self.acks, f"I2: cycle {cycle} without the ack of rank {rank}"

    def i7_one_version_per_realized_cycle(self, version: int, realized: bool) -> None:
        """I7: exactly one more per realized cycle, none otherwise."""
        assert version == self.version + (1 if realized else 0), "I7"
        self.version = version

    def i8_cycle_numbers_rise_at_arms(self, cycle: int) -> None:
        """I8, and I1: what was armed before has ended."""
        assert not self.armed or cycle == self.armed[-1] + 1, f"I8: cycle {cycle} armed after {self.armed}"
        self.armed.append(cycle)

    def i18_observers_give_nothing(self, opened: fx.OpenRound) -> None:
        """I18: before its promotion a rank has no vote, no mass and no donor right."""
        members, observers = {r for r, _, _ in opened.members}, {r for r, _ in opened.observers}
        assert not members & observers, f"I18: {members & observers} observe and give"
        if opened.key.cycle > 0:
            assert members <= self.voting, f"I18: {members - self.voting} are no voters"
            assert observers.isdisjoint(self.voting), f"I18: {observers & self.voting} are voters"

    def i20_a_frozen_world_only_shrinks(self, co: Coordinator) -> None:
        """I20: without elastic nobody comes after Forming."""
        assert co.config.elastic or co.run.phase == RunPhase.FORMING, "I20"

    def i21_promoted_on_the_version_of_its_finish(self, update: m.Update) -> None:
        """I21: what an observer stands on is the consensus of the finish that promotes it. Formation makes none: its
        version is that of the state it began with (M-6)."""
        if update.outcome == m.Outcome.OBSERVER and update.cycle > 0:
            assert update.version == self.version, f"I21: {update.version}, the consensus is {self.version}"

    def i13_enterable(self, co: Coordinator, plan: m.Plan) -> None:
        """I13: plans name only epochs that the rank may enter."""
        ahead = 0 if co.config.barrier_paced else 1
        assert len(self.closed) <= plan.epoch <= len(self.closed) + ahead, f"I13: {plan}, closed {self.closed}"

    def i14_within_the_budget(self, co: Coordinator, rank: int) -> None:
        """I14: steps and batches in flight stay within the limit of the window (D-5)."""
        if co.config.is_progressive and self.calm:
            limit = co.desk.quota(rank)
            if not co.config.barrier_paced:
                limit = co.balancer.counts[rank] + co.balancer.overshoots[rank]
            used = co.peers[rank].steps + co.book.holdings(rank).in_flight_batches
            assert used <= limit, f"I14: rank {rank} has {used} batches of {limit}"

    def i42_merged_once(self, epoch: int, batch: int) -> None:
        """I42: no pick is covered twice, none that nobody trained."""
        assert (epoch, batch) not in self.merged, f"I42: batch {batch} of epoch {epoch} was merged twice"
        assert (epoch, batch) in self.trained, f"I42: batch {batch} of epoch {epoch} was merged and never trained"
        self.merged[epoch, batch] = 1


def check_books(co: Coordinator) -> None:
    """What holds in the coordinator's books after every event, by id."""
    alive = [r for r, p in co.peers.items() if p.phase in THERE]
    assert co.alive == sorted(alive), "I19: the number of the alive"
    assert co.voters == sorted(r for r, p in co.peers.items() if p.phase == PeerPhase.VOTER), "I19: the voters"
    _i41_every_batch_in_one_place(co)
    for rank, peer in co.peers.items():
        held = co.book.holdings(rank)
        assert peer.missed <= co.config.join_patience, f"I36: rank {rank} has missed {peer.missed} cycles"
        if co.config.is_progressive:
            assert len(held.plans) <= (1 if co.config.barrier_paced else 2), f"I11: rank {rank} has {len(held.plans)}"
        assert peer.steps == held.trained_batches, f"D-11: rank {rank} has {peer.steps} steps, {held.trained_batches}"
        assert held.trained_batches == sum(run.count for run in held.trained), "D-11: the trained queue"
        assert held.in_flight_batches == sum(e.slice.count - e.done for e in held.plans), "D-11: the in-flight queue"
    if co.cycle.phase == CyclePhase.IDLE and co.book.limbo:
        raise AssertionError("M-19: limbo outlived its cycle")


def _i41_every_batch_in_one_place(co: Coordinator) -> None:
    """I41: free + in flight + trained + limbo + covered = total, pairwise disjoint."""
    for epoch, pool in co.book.pools.items():
        assert epoch > co.book.last_closed_epoch, "I13: the pool of a closed epoch"
        places = [(first, count) for first, count in pool.free_ranges()]
        for held in co.book.ranks.values():
            places += [
                (e.slice.first + e.done, e.slice.count - e.done) for e in held.plans if e.slice.epoch == epoch
            ]  # fmt: skip
            places += [(run.first, run.count) for run in held.trained if run.epoch == epoch]
        places += [(run.first, run.count) for runs in co.book.limbo.values() for run in runs if run.epoch == epoch]
        places = sorted(place for place in places if place[1] > 0)
        twice = any(first + count > after for (first, count), (after, _) in pairwise(places))
        assert not twice, f"I41: a batch of epoch {epoch} is in two places: {places}"
        assert sum(count for _, count in places) + pool.covered == pool.total, (
            f"I41: epoch {epoch}: {places}, covered {pool.covered}"
        )
