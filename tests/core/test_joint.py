"""The joint table: that it is sound, that both its engines read it the same way, and that nothing goes past it."""

from __future__ import annotations

import ast
import functools
import itertools
from pathlib import Path
from typing import Any

import attrs
import pytest

from paceline.core import cycle, joint
from paceline.core import messages as m
from paceline.core.coordinator import CYCLE_REPORTS
from paceline.core.effects import RemoveFromRound, Send
from paceline.core.errors import InvariantError
from paceline.core.events import HelloReceived, LinkLost, Operator, OperatorRequest, SendFailed, Tick
from paceline.core.joint import AGAIN, Coupling, JointTable, compile_joint, walk_joint
from paceline.core.joint_page import joint_markdown, joint_mermaid, joint_text
from paceline.core.messages import REPORTS
from paceline.core.mutation import in_place, mutants, noticed_by_lint
from paceline.core.phases import CyclePhase, PeerPhase, RunPhase
from paceline.core.tables import JOINT, TABLES, joint_for, lint_of_joint

from support.cohort import Cohort
from support.hand import Hand, messages, pending
from support.hand_collective import Joint, asked
from support.taken import counted
from support.words import hello

CORE = Path(cycle.__file__).parent
FROM_OUTSIDE = {"RoundReduced", "RoundAborted", "RoundProgress", "LinkLost", "SendFailed", "Claim"}
"""Events of the machines that a driver or an averager brings, or a Hello."""
TAKING_IN = {"coordinator.py", "membership.py"}
"""Where those and reports come in."""


@functools.cache
def calls() -> list[tuple[str, Any]]:
    """Every call of a method in the modules of core and of its folders, with the path of its file in there."""
    files = {file.relative_to(CORE).as_posix(): file for file in CORE.rglob("*.py")}
    trees = {path: ast.parse(file.read_text(encoding="utf-8")) for path, file in files.items()}
    return [
        (file, node) for file, tree in trees.items() for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]  # fmt: skip


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_joint_table_is_sound() -> None:
    """C-3: in its order, and every name, phase and event is one."""
    assert lint_of_joint(JOINT) == []


def test_every_event_that_nobody_sends_is_fired_by_a_joint_row() -> None:
    """Architecture 3: what one machine means for another is written in the joint table, and nowhere else."""
    inside = {
        f"{name}.{event}" for name in ("run", "cycle", "peer") for event in TABLES[name].events
        if event not in FROM_OUTSIDE and event not in {report.__name__ for report in REPORTS}
    }  # fmt: skip
    assert inside == {row.fires for row in JOINT.rows if row.fires and row.when not in CYCLE_REPORTS}


def test_no_machine_fires_at_another_but_through_the_table() -> None:
    """Who calls an engine of the coordinator takes in what comes from outside; all else is a row."""
    assert {
        file for file, call in calls() if call.func.attr == "fire"
        and isinstance(call.func.value, ast.Attribute) and call.func.value.attr.endswith("_engine")
    } == TAKING_IN  # fmt: skip


def test_every_occurrence_of_the_table_is_told_of_and_no_other() -> None:
    """A name that the table does not have would be an error in the middle of a run."""
    told = [call.args[0] for _, call in calls() if call.func.attr == "couple"]
    assert {name.value for name in told if isinstance(name, ast.Constant)} | CYCLE_REPORTS == set(JOINT.occurrences)
    assert [name.id for name in told if isinstance(name, ast.Name)] == ["name"]  # of a report of those, as it came in
    with pytest.raises(InvariantError, match="no row for 'Nothing'"):
        Hand(1).co.couple("Nothing")


SOUND = Coupling(6, cycle=(CyclePhase.IDLE,), does=("gates.count_gate",), rule="C-4")
DAMAGE = {
    "stands too late": {"when": 3},
    "is of no step": {"when": 14},
    "does not name what has happened": {"when": "has gone"},
    "which is none of": {"source": "desk"},
    "holds in no phase": {"cycle": ()},
    "which is no phase of run": {"run": (CyclePhase.IDLE,)},
    "which no machine decides": {"fires": "cycle.Formed"},
    "has no function 'nothing'": {"does": ("gates.nothing",)},
    "has no 'nothing'": {"guards": ("!cycle.nothing",)},
    "names nothing": {"guards": ("clock.now",)},
    "is about a peer": {"peer": (PeerPhase.VOTER,)},
    "has to ask": {"when": AGAIN},
    "does nothing": {"does": ()},
    "looks back at a step": {"changed": (7, "gates.handed_out")},
    "not a list of rule ids": {"rule": "because"},
}


@pytest.mark.parametrize("complaint", DAMAGE)
def test_the_lint_sees_what_is_wrong_with_a_row(complaint: str) -> None:
    rows = (SOUND, attrs.evolve(SOUND, note="another", **DAMAGE[complaint]))
    found = lint_of_joint(JointTable(name="joint", rows=rows))
    assert any(complaint in line for line in found), found


def test_a_row_that_is_written_twice_is_found() -> None:
    assert lint_of_joint(JointTable(name="joint", rows=(SOUND, SOUND))) == ["joint: row 1 (step 6) is written twice"]


# --- the engines -----------------------------------------------------------------------------------------------------


class Machine:
    """One whose phase is set by hand, and which is its own engine."""

    def __init__(self, name: str, phase: Any, told: list[str]) -> None:
        self.name, self.phase, self.told = name, phase, told

    def fire(self, machine: Machine, event: str, value: object) -> str:
        self.told.append(f"{machine.name}.{event}({value})")
        return f"{self.name} took {event}"

    def holds(self, event: object) -> bool:
        self.told.append(f"{self.name}.holds({event})")
        return True


class Toy:
    """A coordinator of which only what the table below names is there."""

    __slots__ = (
        "cycle", "cycle_engine", "peer_engine", "ready", "rounds", "run", "run_engine", "seen", "told", "urgent",
    )  # fmt: skip

    def __init__(self, run: RunPhase, cycle: CyclePhase, ready: bool) -> None:
        self.told: list[str] = []
        self.run, self.cycle = Machine("run", run, self.told), Machine("cycle", cycle, self.told)
        self.run_engine = self.cycle_engine = self.peer_engine = Machine("engine", None, self.told)
        self.ready, self.urgent, self.rounds, self.seen = ready, False, 0, 0

    def work(self) -> None:
        self.told.append("work")
        self.rounds += 1
        if self.ready:
            self.seen += 1

    def count(self) -> int:
        return self.seen

    def rest(self) -> None:
        self.told.append("rest")

    def unfinished(self) -> bool:
        return self.rounds < 3


TOY = JointTable(name="toy", rows=(
    Coupling(4, run=(RunPhase.FORMING, RunPhase.TRAINING), fires="run.Judge", does=("work",)),
    Coupling(6, cycle=(CyclePhase.IDLE,), guards=("!ready", "cycle.holds"), fires="cycle.Judge"),
    Coupling(7, does=("work",)),
    Coupling(8, changed=(7, "count"), fires="run.Saving"),
    Coupling(AGAIN, guards=("unfinished",)),
    Coupling(13, guards=("ready",), does=("rest",)),
    Coupling("RankGone", peer=(PeerPhase.VOTER,), fires="peer.Lost", does=("rest",)),
    Coupling("RankGone", guards=("cycle.holds",), fires="cycle.Back"),
    Coupling("RankGone", run=(RunPhase.STOPPED,), fires="run.Judge"),
))  # fmt: skip
PARTS = {"": Toy, "run": Machine, "cycle": Machine, "peer": Machine}


def test_both_engines_read_a_table_alike() -> None:
    """Phases, guards with and without "!", plain attributes, what has changed, the order, the answer, the count."""
    engines = compile_joint(TOY, PARTS), walk_joint(TOY, PARTS)
    for run, phase, ready, peer in itertools.product(RunPhase, CyclePhase, (True, False), PeerPhase):
        seen = []
        for engine, counting in itertools.product(engines, (False, True)):
            engine.taken = {} if counting else None
            co = Toy(run, phase, ready)
            engine.settle(co)
            answer = engine.fire(co, "RankGone", Machine("peer", peer, co.told), 7)
            seen.append((co.told, answer, engine.taken))
        assert seen[0][:2] == seen[1][:2] == seen[2][:2] == seen[3][:2]
        assert seen[1][2] == seen[3][2] and sum((seen[1][2] or {}).values()) > 2


def test_a_round_in_which_everything_holds_is_in_the_order_of_the_table() -> None:
    """C-3: phases are asked when a row has its turn, an event is fired before the rest is done, then comes step 13."""
    co = Toy(RunPhase.TRAINING, CyclePhase.IDLE, ready=True)
    co.rounds = 1
    compile_joint(TOY, PARTS).settle(co)
    assert co.told == ["run.Judge(None)", "work", "work", "run.Saving(None)", "rest"]


@pytest.mark.parametrize("build", [compile_joint, walk_joint])
def test_a_table_that_never_rests_is_a_bug_that_is_told(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-3: the fixed point is reached within a bound."""
    monkeypatch.setattr(joint, "PASS_LIMIT", 9)
    endless = attrs.evolve(TOY, rows=(Coupling(AGAIN, guards=("!ready",)),))
    with pytest.raises(InvariantError, match="did not come to rest in 9 rounds"):
        build(endless, PARTS).settle(Toy(RunPhase.TRAINING, CyclePhase.IDLE, ready=False))


@pytest.mark.parametrize("build", [compile_joint, walk_joint])
@pytest.mark.parametrize("wrong", [{"does": ("fly",)}, {"guards": ("run.class",)}, {"fires": "desk.Judge"}])
def test_a_name_that_means_nothing_is_an_error_with_its_row(build: Any, wrong: Any) -> None:
    with pytest.raises(InvariantError, match=r"table toy, row 1 \(7\): "):
        build(attrs.evolve(TOY, rows=(TOY.rows[0], attrs.evolve(TOY.rows[2], **wrong))), PARTS)


def test_a_cohort_takes_the_same_rows_on_both_engines() -> None:
    """Architecture 3: the reference and the compiled table have one meaning, here of the whole of it."""
    rows = []
    for engine in ("compiled", "transitions"):
        with counted(("joint",)) as taken:
            Cohort(ranks=3, engine=engine).run()
        rows.append({index: times for (_, index), times in taken.items()})
    assert rows[0] == rows[1] and len(rows[0]) > 15


# --- the order of the steps ------------------------------------------------------------------------------------------


def test_a_run_that_fails_to_form_is_over_before_its_session_is_looked_at() -> None:
    """C-3 (4 before 5), M-54: the request to stop comes at the instant at which another rank would be asked (M-32)."""
    hand = Joint(2)
    assert asked(hand.effects) == [(0, 1)]
    due = hand.co.sessions.deadline
    assert due is not None
    hand.now = due
    assert asked(hand.feed(OperatorRequest(Operator.STOP))) == [] and hand.co.run.phase == RunPhase.SHUTTING_DOWN


def test_a_run_that_is_condemned_as_it_forms_says_why_and_not_who_is_left() -> None:
    """M-6, M-32: at one instant nobody is left to make the id, and the time to form is over; who waits for the session
    is not late, and is told the reason."""
    hand = Joint(2, formation_s=10.0)
    hand.confirms = True
    hand.uid()
    assert asked(hand.failed(1)) == [(0, 2)]
    hand.tick(9.0)
    hand.now = 60.5
    hand.feed(Tick())
    assert "no rank made the id of session 2" in hand.co.run.text and hand.co.alive == [0, 1]
    assert {message.rank for message in messages(hand.effects, m.Shutdown)} == {0, 1}


def test_the_lead_is_measured_from_who_is_left() -> None:
    """C-3 (4 before 6), G-8, M-18: the slowest rank is found dead in the pass that another one's step brings about,
    while a cycle is pending."""
    hand = pending(3, policy="async", max_batch_diff=1, samples=400, heartbeat_timeout_s=30.0)
    for rank in (0, 1):
        hand.step(rank)
    hand.tick(29.5, silent=(2,))
    hand.now += 1.0
    effects = hand.step(0)
    assert hand.co.voters == [0, 1] and hand.co.cycle.pending and not messages(effects, m.Throttle)


def test_nobody_is_parked_by_a_run_that_ends() -> None:
    """G-8, M-21: a step that was under way when too few were left is followed by nothing."""
    hand = Hand(3, max_failure=1, max_batch_diff=0, samples=400).form()
    hand.feed(LinkLost(2, 1, "its host is gone"))
    assert hand.co.run.phase == RunPhase.SHUTTING_DOWN
    assert not messages(hand.step(0, 2), m.Throttle)


# --- rows that ask for another round ---------------------------------------------------------------------------------


def test_what_a_new_attempt_gives_back_goes_out_in_the_same_pass() -> None:
    """D-16, D-22, C-18, M-19: the digests differ, so the steps of a rank that died after it had shipped are in no
    consensus; the others train them."""
    hand = pending(3, steps=1, policy="sync")
    for rank in (0, 1, 2):
        hand.ready(rank)
    hand.feed(LinkLost(2, 1, "its host is gone"))
    hand.reduce()
    hand.ack(0, digest=b"one")
    effects = hand.ack(1, digest=b"another")
    assert hand.co.cycle.attempt == 1 and messages(effects, m.ExtendPartition)


def test_the_last_batch_that_goes_out_in_a_pass_opens_the_gate_in_that_pass() -> None:
    """G-1, G-4, D-9: a rank without a link and without work is waited for as long as there is some that it could be
    given; when another one gets the last of it, nothing that is still to come would open the gate."""
    hand = Hand(2, policy="async", max_batch_diff=50, samples=12, anchor=3, min_chunk=1, num_epochs=1).form()
    sent = [effect for effect in hand.effects if isinstance(effect, Send) and effect.rank == 0]
    for effect in sent:
        if isinstance(effect.message, m.StartEpoch):
            hand.feed(SendFailed(effect.token))
    hand.step(1, 3)
    assert hand.co.short == 1 and hand.co.book.pools[0].free and not hand.co.cycle.pending
    hand.complete(1)
    assert not hand.co.book.pools[0].free and hand.co.cycle.pending


def test_who_carries_too_many_steps_over_a_finish_is_parked_in_its_pass() -> None:
    """G-8, C-4: steps that were taken while the cycle was pending count for the next window as soon as it begins."""
    hand = Hand(2, policy="async", max_batch_diff=1, samples=120, anchor=3).form()
    for rank in (0, 1) * 3:
        hand.step(rank)
    for rank in (0, 1):
        hand.ready(rank)
    hand.reduce()
    hand.step(0, 2)
    hand.ack(0)
    (parked,) = messages(hand.ack(1), m.Throttle, 0)
    assert parked.reason is m.ThrottleReason.LEAD and not hand.co.cycle.pending


# --- worker gone and cycle pending -----------------------------------------------------------------------------------


def test_a_member_that_dies_while_its_cycle_is_pending_leaves_in_the_order_of_its_rows() -> None:
    """C-21, M-18, M-19, D-19: out of the round, awaited no more, then what it held is given back."""
    hand = pending(3)
    with counted(("joint",)) as taken:
        hand.feed(LinkLost(2, 1, "its host is gone"))
    gone = [index for index, row in enumerate(JOINT.rows) if row.when == "RankGone"]
    assert [taken.get(("joint", index), 0) for index in gone] == [1, 1]
    assert hand.co.cycle.owing == 2 and 2 not in hand.co.voters


def test_a_newcomer_that_dies_while_a_cycle_is_pending_leaves_no_round() -> None:
    """M-18, C-21: it was not asked in this cycle."""
    hand = pending(2, max_ranks=3)
    hand.feed(HelloReceived(2, hello(hand.samples)))
    assert 2 in hand.co.alive
    effects = hand.feed(LinkLost(2, 1, "its host is gone"))
    assert 2 not in hand.co.alive and not [effect for effect in effects if isinstance(effect, RemoveFromRound)]
    assert hand.co.cycle.pending and hand.co.cycle.owing == 2


# --- pages and mutants -----------------------------------------------------------------------------------------------


def test_every_row_is_in_the_text_on_the_page_and_in_the_diagram() -> None:
    text, page, drawn = joint_text(JOINT), joint_markdown(JOINT), joint_mermaid(JOINT)
    for index, row in enumerate(JOINT.rows):
        assert f"\n{index:>5} " in text and f"\n| {index} | " in page
        assert row.rule in text and row.rule in page
        assert not row.fires or row.fires.partition(".")[2] in drawn
    assert page.count("\n| ") == len(JOINT.rows) + 2


def test_damage_is_done_to_coordinators_that_are_made_inside() -> None:
    """Both engines run the damaged table; afterwards the real one is in force."""
    sound = joint_for("compiled"), joint_for("transitions")
    mutant = mutants()["joint/8/run:TRAINING/ladder.judge/drop-row"]
    with in_place(mutant):
        assert Hand(1).co.joint.table is joint_for("transitions").table is mutant.change
    assert (joint_for("compiled"), joint_for("transitions")) == sound
    assert noticed_by_lint(mutant) is None
    assert all(f"/{operator}" in "".join(mutants()) for operator in ("drop-phases", "negate-phases", "event"))
