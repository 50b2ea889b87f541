"""Frames of a simulated run are cut, torn and damaged at any of their bytes, those of bulk too."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from paceline.core.messages import BulkBlock, Contribution, Outcome, Refusal, RoundKey, RoundKind, RoundResult
from paceline.core.simulation import Setup, World
from paceline.core.simulation.action import Action
from paceline.core.simulation.blocks import frame_bytes
from paceline.core.simulation.frames import Frames
from paceline.core.simulation.simulator import Case, Run
from paceline.core.simulation.storms import CUTS, FRAMES_OF
from paceline.core.simulation.violation import Violation
from paceline.core.wire import Role
from paceline.transports.codec import MsgpackCodec

CODEC = MsgpackCodec()
BLOCK = BulkBlock(key=RoundKey(generation=1, cycle=3, kind=RoundKind.PARAMS), attempt=0, rank=1, incarnation=1, entry=0,
                  offset=0, bytes=8)  # fmt: skip
DATA = bytes(range(8))


def test_a_bit_of_a_block_is_noticed_wherever_it_is() -> None:
    """N-23, N-26: nothing acts on a block whose head, map, data or tag is not what was written, and the other
    direction goes on."""
    size = Frames(CODEC, lambda mark: None).size(BLOCK, DATA)
    for place in range(size):
        frames = Frames(CODEC, lambda mark: None)
        assert frames.carry(Role.RANK, BLOCK, DATA) == ""
        frames.harm[Role.RANK] = place
        assert frames.carry(Role.RANK, BLOCK, DATA) != "", f"byte {place} of {size}"
        assert frames.carry(Role.COORDINATOR, BLOCK, DATA) == ""


RECORDS = (
    Contribution(generation=1, rank=1, incarnation=1, cycle=3, attempt=0, schema_hash=bytes(32), steps=5, finite=True,
                 bytes=8),
    RoundResult(outcome=Outcome.MERGED, total_steps=9, bytes=8),
)  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_bit_of_a_record_is_noticed_wherever_it_is(record: Any) -> None:
    """R-4, N-23: what announces a contribution or a result is a frame like any other."""
    data = Frames(CODEC, lambda mark: None).data_of(record)
    block = attrs.evolve(BLOCK, key=attrs.evolve(BLOCK.key, kind=RoundKind.COUNTS), bytes=len(data))
    for place in range(Frames(CODEC, lambda mark: None).size(block, data)):
        frames = Frames(CODEC, lambda mark: None)
        frames.harm[Role.RANK] = place
        assert frames.carry(Role.RANK, block, data, record) != "", f"byte {place}"
        assert frames.carry(Role.COORDINATOR, block, data, record) == ""


class Forgetful(MsgpackCodec):
    """Reads one field of one record otherwise than it was written. `read` counts the records by their class."""

    def __init__(self, record: type | None = None, field: str = "") -> None:
        self.record, self.field = record, field
        self.read: list[type] = []

    def decode_record(self, cls: type[Any], data: bytes | memoryview) -> Any:
        self.read.append(cls)
        found = super().decode_record(cls, data)
        changed = {self.field: other(getattr(found, self.field))} if cls is self.record else {}
        return attrs.evolve(found, **changed)


def other(value: Any) -> Any:
    """A value of the same field that is another one."""
    if isinstance(value, bytes):
        return value + b"."
    if value is None or isinstance(value, Outcome):
        return Refusal.NONFINITE if value is None else Outcome.OBSERVER
    return not value if isinstance(value, bool) else value + 1


@pytest.mark.parametrize(
    ("record", "field"), [(type(each), field.name) for each in RECORDS for field in attrs.fields(type(each))]
)
def test_a_field_that_the_codec_loses_breaks_the_run(record: type, field: str) -> None:
    """N-26, R-4: a contribution and a result go through the codec, so what is lost there is seen, by its name."""
    world = World(Setup(ranks=2, blocks=2, wire=True), codec=Forgetful(record, field))
    with pytest.raises(Violation, match=rf"N-23: {record.__name__}\(.* was written, {record.__name__}\("):
        to_the_end(world)


@pytest.mark.parametrize("blocks", [1, 3])
def test_each_contribution_and_each_result_is_announced(blocks: int) -> None:
    """R-4: as many records as there are headers and results, whatever the model's size."""
    codec = Forgetful()
    world, sent = World(Setup(ranks=2, blocks=blocks, wire=True), codec=codec), []
    while world.enabled() and not world.over:
        action = world.enabled()[0]
        lanes = {"upload": "bulk_up", "result": "bulk_down"}
        if action.kind in lanes:
            sent.append(getattr(world.processes[action.who], lanes[action.kind])[0][0])
        world.do(action)
    assert codec.read.count(Contribution) == sent.count("header") > 0
    assert codec.read.count(RoundResult) == sent.count("result") > 0


def under_way(lane: str) -> tuple[World, int]:
    """A run of two ranks with frames in which a block of a process is the next thing in that direction."""
    world = World(Setup(ranks=2, samples=24, blocks=3, wire=True, knobs={"policy": "cadence", "link_grace_s": 5.0,
                        "reconnect_window_s": 30.0}), codec=CODEC)  # fmt: skip
    control = "up" if lane == "bulk_up" else "down"
    while world.co.cycle.number < 1 or not any(
        getattr(process, lane) and not getattr(process, control) for process in world.processes
    ):
        world.do(world.enabled()[0])
    return world, next(p.number for p in world.processes if getattr(p, lane) and not getattr(p, control))


def to_the_end(world: World) -> None:
    while world.enabled() and not world.over:
        world.do(world.enabled()[0])


def test_a_damaged_block_ends_the_link_and_the_rank_comes_back() -> None:
    """N-4, N-23, N-26: the end that read it closes; its rank dials again, and the run goes on."""
    for kind, lane in (("corrupt", "bulk_up"), ("taint", "bulk_down")):
        world, number = under_way(lane)
        reached: list[str] = []
        world.reached = reached.append
        world.do(Action(kind, number, 90))
        world.do(Action("upload" if kind == "corrupt" else "result", number))

        assert reached == ["a damaged block ended a link"]
        assert not world.processes[number].linked and not world.processes[number].bulk_up
        to_the_end(world)
        assert world.finished


def test_a_rank_that_dies_inside_a_block_leaves_none() -> None:
    """N-23: of a block that was not written to its end nothing arrives."""
    world, number = under_way("bulk_up")
    assert frame_bytes(world.setup, world.processes[number], "bulk_up") > 100
    world.do(Action("sever", number, 90))

    assert not world.processes[number].alive and not world.processes[number].bulk_up
    to_the_end(world)
    assert world.finished


def test_storms_strike_every_part_of_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-23, N-25: head, middle and end of control frames and of blocks, each kind of fault."""
    struck: dict[str, list[float]] = {kind: [] for kind in FRAMES_OF}
    lanes: set[str] = set()
    run = Run(Case(seed=0, ranks=4, faults="calm"), codec=CODEC)
    world, _ = under_way("bulk_up")

    def noted(kind: str, who: int = 0, amount: int = 0) -> None:
        process = world.processes[who]
        lane = next(lane for lane in FRAMES_OF[kind] if frame_bytes(world.setup, process, lane))
        lanes.add(lane)
        struck[kind].append(amount / frame_bytes(world.setup, process, lane))

    monkeypatch.setattr(run.storm, "world", world)
    monkeypatch.setattr(run.storm, "_do", noted)
    for _ in range(60):
        run.storm._on_wire("corrupt")
        run.storm._on_wire("sever")
        world.do(world.enabled()[0])
        for kind in ("split", "crack", "taint"):
            run.storm._on_wire(kind)

    assert "bulk_up" in lanes and "up" in lanes
    for kind, places in struck.items():
        assert len(places) > 10, kind
        assert min(places) < 0.3 and 0.7 < max(places) < 1.0, (kind, places)
        assert kind not in CUTS or min(places) > 0.0
