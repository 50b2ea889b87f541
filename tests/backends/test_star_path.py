"""StarServer and StarLink over channels in memory: the way of a model to the averager and back."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import trio
from trio.testing import MockClock

from paceline.backends import star_link
from paceline.backends.checkpoint import load_model
from paceline.backends.layout import header_block
from paceline.backends.star import StarAverager
from paceline.backends.star_server import MAX_HEADER, StarServer
from paceline.core import effects as fx
from paceline.core import events as ev
from paceline.core import messages as m
from paceline.core.errors import LocalProtocolError, RemoteProtocolError

from support.patience import PATIENCE_S
from support.star_path import PARAMS, STATE, adopt, one_cycle, parameters, path, staged
from support.transports import MEMORY, meeting, run

PIPE_FILLING = 300
"""A square layer of this size is more bytes than a pipe in memory takes."""


def test_all_ranks_hold_the_same_bits_afterwards_and_they_are_the_weighted_mean():
    """I59, R-6: digests of both sides agree, the average is weighted by steps, the triple is reported."""

    async def main() -> None:
        async with path(8, 8, 8) as p:
            expected = sum(parameters(t) * w for t, w in zip(p.ranks, (1, 2, 5), strict=True)) / 8
            p.open(0, 1, 2)
            for trainer, steps in zip(p.ranks, (1, 2, 5), strict=True):
                trainer.offer(steps)
                p.admit(trainer.rank, steps)
            events = await staged(p)
            reduced = await p.told.until(ev.RoundReduced)
            assert reduced.accepted == (0, 1, 2) and reduced.realized
            assert {event.digest for event in events} == {reduced.digest}
            assert [(e.outcome, e.total_steps) for e in events] == [(m.Outcome.MERGED, 8)] * 3
            assert all(event.divergence is not None and event.divergence > 0 for event in events)
            for trainer in p.ranks:
                adopt(trainer)
                assert torch.equal(parameters(trainer), parameters(p.ranks[0]))
            torch.testing.assert_close(parameters(p.ranks[0]), expected)

    run(main)


def test_an_observer_whose_training_thread_is_late_still_gets_the_state():
    """M-6, R-9: the scatter waits until the observer says that it is ready. Sent before, the state was dropped and
    the run never began."""

    async def main() -> None:
        async with path(8, 8) as p:
            p.open(0, observers=(1,), key=STATE)
            p.ranks[0].offer(0, cycle=0)
            p.admit(0, 0, STATE)
            await p.told.until(ev.RoundReduced)
            await p.ranks[0].until(ev.ConsensusStaged)  # everything that could be sent has been sent
            await trio.testing.wait_all_tasks_blocked()
            p.ranks[1].offer(0, cycle=0, observer=True)
            event = await p.ranks[1].until(ev.ConsensusStaged)
            assert event.outcome == m.Outcome.OBSERVER
            adopt(p.ranks[1], 0)
            assert torch.equal(parameters(p.ranks[1]), parameters(p.ranks[0]))

    run(main)


def test_a_joiner_of_a_run_that_forms_once_more_gets_all_of_its_state_with_cycle_0():
    """M-45, M-24: it had asked for the static part of the state, and the journal has lost that there was training. It
    waited for that part for ever (`paceline simulate --ranks 3 --seed 2031559`)."""

    async def main() -> None:
        async with path(8, 8, idle=(1,)) as p:
            late: Any = p.ranks[1]
            late.link = star_link.StarLink(late, late.flat, with_digest=True, joining=True)
            p.start(1)
            p.open(0, observers=(1,), key=STATE)
            p.ranks[0].offer(0, cycle=0)
            p.admit(0, 0, STATE)
            late.offer(0, cycle=0, observer=True)
            await staged(p)
            adopt(late, 0)
            assert torch.equal(parameters(late), parameters(p.ranks[0]))

    run(main)


def test_the_announcement_of_an_observer_is_not_counted_as_dropped():
    """R-9, R-1: `dropped` counts frames that belong to nothing open."""

    async def main() -> None:
        async with path(8, 8) as p:
            p.open(0, observers=(1,), key=STATE)
            p.ranks[1].offer(0, cycle=0, observer=True)
            p.ranks[0].offer(0, cycle=0)
            p.admit(0, 0, STATE)
            await staged(p)
            averager: Any = p.server._averager
            assert sum(averager.dropped.values()) == 0

    run(main)


def test_another_attempt_does_not_cost_a_slow_receiver_its_link():
    """N-4, C-39: the frame that is on its way is finished, the rest of the old attempt is not sent, and the rank takes
    part in the new one. Cancelled inside the frame, its link was closed and the healthy rank dead."""

    async def main() -> None:
        async with path(PIPE_FILLING, PIPE_FILLING, idle=(1,)) as p:
            slow = p.ranks[1]
            p.open(0, 1)
            p.ranks[0].offer(1)
            await slow.ship_by_hand(1)
            p.admit(0, 1)
            p.admit(1, 1)
            await p.ranks[0].until(ev.ConsensusStaged)
            await trio.testing.wait_all_tasks_blocked()  # the scatter to rank 1 is in the middle of a block
            p.open(0, 1, attempt=1)
            p.ranks[0].offer(1, attempt=1)
            slow.snapshot = slow.flat.snapshot()
            slow.offer(1, attempt=1)
            p.start(1)
            p.admit(0, 1, attempt=1)
            p.admit(1, 1, attempt=1)
            events = [await p.ranks[0].until(ev.ConsensusStaged, 2), await slow.until(ev.ConsensusStaged)]
            assert [event.attempt for event in events] == [1, 1]
            assert len({event.digest for event in events}) == 1
            assert p.told.of(ev.RoundAborted) == []

    run(main)


def test_an_aborted_round_stops_between_two_blocks():
    """R-2: what is left of the result is not sent, the lane stays in use."""

    async def main() -> None:
        async with path(PIPE_FILLING, PIPE_FILLING, idle=(1,)) as p:
            slow = p.ranks[1]
            p.open(0, 1)
            p.ranks[0].offer(1)
            await slow.ship_by_hand(1)
            p.admit(0, 1)
            p.admit(1, 1)
            await p.ranks[0].until(ev.ConsensusStaged)
            p.server.perform(fx.AbortRound(PARAMS))
            await slow.channel.receive_bulk(lambda block: memoryview(bytearray(block.bytes)))
            await slow.channel.receive_bulk(lambda block: memoryview(bytearray(block.bytes)))
            await slow.far.send(m.Beacon(run_phase=1, cycle_phase=0, cycle=1))
            assert isinstance(await slow.channel.receive(), m.Beacon)

    run(main)


def test_a_rank_lost_in_the_middle_of_its_upload_is_left_out():
    """R-2, R-11: nothing of it is in the sum before its report lane said so; the others get their consensus."""

    async def main() -> None:
        async with path(1100, 1100, idle=(1,)) as p:
            p.open(0, 1)
            p.ranks[0].offer(3)
            p.admit(0, 3)
            await p.ranks[1].ship_by_hand(4, blocks=1)
            await p.ranks[1].channel.aclose()
            p.server.perform(fx.RemoveFromRound(PARAMS, 1))
            reduced = await p.told.until(ev.RoundReduced)
            assert reduced.accepted == (0,)
            assert (await p.ranks[0].until(ev.ConsensusStaged)).total_steps == 3

    run(main)


def test_a_rank_lost_with_blocks_in_the_sum_aborts_the_attempt_and_the_next_one_goes_on_without_it():
    """R-4, R-18: a sum cannot be undone, so the attempt is repeated from the retained copies."""

    async def main() -> None:
        async with path(1100, 1100, idle=(1,)) as p:
            p.open(0, 1)
            p.ranks[0].offer(3)
            p.admit(0, 3)
            p.admit(1, 4)
            await p.ranks[1].ship_by_hand(4, blocks=1)
            await p.told.until(ev.RoundProgress, 2)
            await p.ranks[1].channel.aclose()
            p.server.perform(fx.RemoveFromRound(PARAMS, 1))
            assert (await p.told.until(ev.RoundAborted)).attempt == 0
            p.open(0, attempt=1)
            p.ranks[0].offer(3, attempt=1)
            p.admit(0, 3, attempt=1)
            event = await p.ranks[0].until(ev.ConsensusStaged)
            assert (event.attempt, event.total_steps, event.outcome) == (1, 3, m.Outcome.MERGED)

    run(main)


def test_a_contribution_with_nan_is_refused_and_its_rank_gets_the_consensus():
    """R-4, I57: out of sum and divisor; told so, and given the same bits as everyone."""

    async def main() -> None:
        async with path(8, 8) as p:
            before = parameters(p.ranks[0]).clone()
            with torch.no_grad():
                next(p.ranks[1].flat.model.parameters())[0, 0] = float("nan")
            p.open(0, 1)
            for trainer in p.ranks:
                trainer.offer(2)
                p.admit(trainer.rank, 2)
            healthy, sick = await staged(p)
            assert (sick.outcome, sick.refusal) == (m.Outcome.REFUSED, m.Refusal.NONFINITE)
            assert (healthy.outcome, healthy.total_steps) == (m.Outcome.MERGED, 2)
            assert healthy.digest == sick.digest
            adopt(p.ranks[1])
            torch.testing.assert_close(parameters(p.ranks[1]), before)

    run(main)


def test_a_model_whose_trainable_set_changed_is_refused():
    """R-3: the copy carries the schema of its instant."""

    async def main() -> None:
        async with path(8, 8) as p:
            next(p.ranks[1].flat.model.parameters()).requires_grad_(False)
            p.open(0, 1)
            for trainer in p.ranks:
                trainer.offer(2)
                p.admit(trainer.rank, 2)
            _, changed = await staged(p)
            assert (changed.outcome, changed.refusal) == (m.Outcome.REFUSED, m.Refusal.SCHEMA)

    run(main)


def test_a_result_that_is_judged_while_a_new_attempt_begins_does_not_hide_the_new_one(monkeypatch: pytest.MonkeyPatch):
    """W-10: the staged consensus of the old attempt is dropped. Kept, the rank never acknowledged the new one."""
    release, entered = threading.Event(), trio.Event()
    honest = star_link.digest
    calls: list[int] = []

    def slow(flat: memoryview) -> bytes:
        calls.append(1)
        if len(calls) == 1:
            trio.from_thread.run_sync(entered.set)
            assert release.wait(PATIENCE_S)
        return honest(flat)

    monkeypatch.setattr(star_link, "digest", slow)

    async def main() -> None:
        async with path(8) as p:
            p.open(0)
            p.ranks[0].offer(2)
            p.admit(0, 2)
            await entered.wait()
            p.open(0, attempt=1)
            p.ranks[0].offer(2, attempt=1)
            release.set()
            p.admit(0, 2, attempt=1)
            assert (await p.ranks[0].until(ev.ConsensusStaged, 2)).attempt == 1
            adopt(p.ranks[0])

    run(main)


def test_many_offers_in_a_row_ship_each_attempt_at_most_once():
    """R-1: a second header of one attempt would tear the contribution."""

    async def main() -> None:
        async with path(8) as p:
            for attempt in range(50):
                p.open(0, attempt=attempt)
                await trio.to_thread.run_sync(lambda a=attempt: p.ranks[0].offer(2, attempt=a))
                p.admit(0, 2, attempt=attempt)
            event = await p.ranks[0].until(ev.ConsensusStaged)
            while event.attempt != 49:
                event = await p.ranks[0].until(ev.ConsensusStaged, len(p.ranks[0].of(ev.ConsensusStaged)) + 1)
            averager: Any = p.server._averager
            assert not averager.refusals and p.told.of(ev.RoundAborted) == []

    run(main)


def test_progress_is_told_once_a_second_and_the_end_always():
    """R-11, M-10: the averager says every block; with a clock that stands still the coordinator hears of the first, and
    of the end, after which the rank owes no upload."""

    async def main() -> None:
        async with path(1700) as p:
            p.open(0)
            p.ranks[0].offer(2)
            p.admit(0, 2)
            await p.ranks[0].until(ev.ConsensusStaged)
            assert len(p.ranks[0].flat.riding.blocks) == 3
            assert [event.complete for event in p.told.of(ev.RoundProgress)] == [False, True]

    trio.run(main, clock=MockClock(rate=0.0))


@pytest.mark.parametrize(("changes", "size", "text"), [
    ({}, MAX_HEADER + 1, f"a header of {MAX_HEADER + 1} bytes, the limit is {MAX_HEADER}"),
    ({"rank": 1}, 10, "a block names rank 1, the lane is of rank 0"),
    ({"incarnation": 2}, 10, "a block names rank 0, the lane is of rank 0"),
], ids=["header", "rank", "incarnation"])  # fmt: skip
def test_a_block_that_no_rank_sends_ends_its_lane_before_memory_is_given(
    changes: dict[str, int], size: int, text: str
):
    """N-25, N-26: a header is a small map, and a lane speaks for one incarnation."""

    async def main() -> None:
        async with meeting(MEMORY) as met:
            rank, coordinator = await met.join()
            block = attrs.evolve(header_block(PARAMS, 0, 0, 1, size), **changes)
            await rank.send_bulk(block, memoryview(bytes(size)))
            with pytest.raises(RemoteProtocolError, match=text):
                await StarServer(lambda: None, StarAverager).serve(0, 1, coordinator)

    run(main)


def test_files_are_written_with_the_record_last(tmp_path: Path):
    """K-6, K-8: the record names the file and its hash, so it is there only if the file is."""

    async def main() -> None:
        async with path(8) as p:
            await one_cycle(p)
            p.server.perform(fx.WriteMeta({"version": 1}))
            p.server.perform(fx.SaveConsensus(7, 1, str(tmp_path / "deep" / "consensus")))
            await p.server.settle()
            assert [e for e in p.told.events if isinstance(e, (ev.ConsensusSaved, ev.MetaWritten))] == [
                ev.ConsensusSaved(7, 1, None), ev.MetaWritten(7, 1, None),
            ]  # fmt: skip
            file = tmp_path / "deep" / "consensus.safetensors"
            record = json.loads((tmp_path / "deep" / "consensus.meta.json").read_text())
            assert record["files"] == {file.name: hashlib.sha256(file.read_bytes()).hexdigest()}

    run(main)


def test_a_record_that_cannot_be_written_leaves_the_older_one_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """K-8: the disk is full when the weights are in place; path and size are told, and training goes on."""
    sync, synced = os.fsync, []

    def full(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        synced.append("directory" if os.path.isdir(name) else name.rpartition(".consensus.")[2].partition(".")[0])
        if synced[4:] and synced[-1] == "meta":
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)

    async def main() -> None:
        async with path(8) as p:
            await one_cycle(p)
            for version in (1, 2):
                p.server.perform(fx.WriteMeta({"version": version}))
                p.server.perform(fx.SaveConsensus(version, version, str(tmp_path / "consensus")))
                await p.server.settle()
            first, second = [event.error for event in p.told.of(ev.MetaWritten)]
            assert first is None and second is not None and p.server.failure == second
            assert re.search(r"consensus\.meta\.json \(\d+ bytes\) could not be .*No space", second)

    run(main)
    assert synced == ["safetensors", "directory", "meta", "directory", "directory", "safetensors", "directory", "meta"]
    record, weights = [(tmp_path / f"consensus.{end}").read_bytes() for end in ("meta.json", "safetensors")]
    assert json.loads(record) == {"version": 1, "files": {"consensus.safetensors": hashlib.sha256(weights).hexdigest()}}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["consensus.meta.json", "consensus.safetensors"]


def test_a_file_that_cannot_be_written_is_told_and_has_no_record(tmp_path: Path):
    """K-7: an error is an event; it ends nothing."""
    (tmp_path / "taken").write_text("a file where a directory should be")

    async def main() -> None:
        async with path(8) as p:
            await one_cycle(p)
            p.server.perform(fx.WriteMeta({"version": 1}))
            p.server.perform(fx.SaveConsensus(7, 1, str(tmp_path / "taken" / "consensus")))
            await p.server.settle()
            saved = p.told.of(ev.ConsensusSaved)
            assert [event.error is None for event in saved] == [False] and p.told.of(ev.MetaWritten) == []

    run(main)


def test_nothing_to_write_is_an_error_and_no_bug(tmp_path: Path):
    """M-52: a run that is saved before its first consensus has none."""

    async def main() -> None:
        async with path(8) as p:
            p.server.perform(fx.SaveConsensus(7, 0, str(tmp_path / "consensus")))
            await p.server.settle()
            assert p.told.of(ev.ConsensusSaved) == [ev.ConsensusSaved(7, 0, "there is no consensus to write yet")]

    run(main)


def test_a_consensus_is_written_as_it_was_when_it_was_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """K-7, F56: a slow disk neither delays the next average nor gets its values, each record is of its file."""
    release, honest = threading.Event(), StarServer._write_consensus

    def slow(self: StarServer, *arguments: Any) -> None:
        assert release.wait(PATIENCE_S)
        honest(self, *arguments)

    monkeypatch.setattr(StarServer, "_write_consensus", slow)

    async def main() -> None:
        async with path(8) as p:
            wanted = {}
            for cycle in (1, 2, 3):
                await one_cycle(p, cycle)
                wanted[cycle] = parameters(p.ranks[0]).clone()
                if cycle != 2:
                    p.server.perform(fx.WriteMeta({"version": cycle, "global_step": 2 * cycle}))
                    p.server.perform(fx.SaveConsensus(cycle, cycle, str(tmp_path / f"c{cycle}")))
                with torch.no_grad():
                    next(p.ranks[0].flat.model.parameters()).add_(1.0)
            release.set()
            await p.server.settle()
            for cycle in (1, 3):
                written, told = load_model(file := tmp_path / f"c{cycle}.safetensors")
                values = torch.cat([written[name].reshape(-1) for name, _ in p.ranks[0].flat.model.named_parameters()])
                assert torch.equal(values, wanted[cycle]) and told["version"] == str(cycle)
                assert json.loads((tmp_path / f"c{cycle}.meta.json").read_text()) == {
                    "version": cycle, "global_step": 2 * cycle,
                    "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest()},
                }  # fmt: skip

    run(main)


def test_a_disk_slower_than_the_bundles_makes_the_oldest_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """K-7, K-8: what waits is bounded, and each waits with a consensus in memory. A newer bundle of the same name takes
    the place of the older without a word; one that is left out is told."""
    release, honest = threading.Event(), StarServer._write_consensus

    def slow(self: StarServer, *arguments: Any) -> None:
        assert release.wait(PATIENCE_S)
        honest(self, *arguments)

    monkeypatch.setattr(StarServer, "_write_consensus", slow)

    async def main() -> None:
        async with path(8) as p:
            await one_cycle(p)
            for number in range(7):
                p.server.perform(fx.SaveConsensus(number, number, str(tmp_path / f"checkpoint.v{number}")))
                p.server.perform(fx.SaveConsensus(10 + number, number, str(tmp_path / "consensus")))
                await trio.testing.wait_all_tasks_blocked()
            release.set()
            await p.server.settle()
            ends = {event.decision_id: event.error for event in p.told.of(ev.ConsensusSaved)}
            assert [number for number, error in ends.items() if error is None] == [0, 4, 5, 6, 16]
            assert [number for number, error in ends.items() if error is not None] == [1, 2, 3]

    run(main)


def test_nothing_can_be_adopted_that_was_not_acknowledged():
    """W-12: misuse says so."""

    async def main() -> None:
        async with path(8) as p:
            with pytest.raises(LocalProtocolError, match="cycle 1"):
                p.ranks[0].link.take(1)

    run(main)


def test_an_offer_after_the_end_of_the_link_is_quiet():
    """W-21: the order to stop waits behind it; the training thread meets no error of the event loop."""
    kept: list[Callable[[], None]] = []

    async def main() -> None:
        async with path(8) as p:
            kept.append(lambda: p.ranks[0].offer(2))

    run(main)
    kept[0]()
