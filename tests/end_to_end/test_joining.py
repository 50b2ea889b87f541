"""Ranks that come while a run trains, over TCP, with real processes (M-22 to M-28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import FIRST_STEP, FIRST_WINDOW, accounting, stage

HOLD = ("--hold-at", str(FIRST_WINDOW))


@pytest.mark.parametrize("policy", ["cadence", "sync", "async"])
def test_a_killed_rank_that_is_started_again_becomes_a_voter(tmp_path: Path, policy: str) -> None:
    """M-7, M-23 to M-25, I42: the same seat as another incarnation; it gets the consensus with all others, what no
    consensus holds from a donor, and everything is merged once."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2, policy=policy, max_batch_diff=20)
        options = ("--epochs", "8", "--step-ms", "4", "--say-steps")
        survivor = s.rank(*options, "--hold-at", str(FIRST_WINDOW + 1), PACELINE_RANK="0")
        victim = s.rank(*options, "--hold-at", str(FIRST_STEP), PACELINE_RANK="1")
        again = s.rank(*options, "--wait", PACELINE_RANK="1")
        again.until(lambda line: "ready" in line)
        victim.held().process.kill()
        coordinator.until(lambda line: line.get("event") == "Died")
        survivor.held()
        again.go()
        coordinator.until(lambda line: line.get("event") == "Joined")
        survivor.go()
        first = again.until(lambda line: line.get("step") == 1)
        assert (coordinator.end(), survivor.end(), again.end()) == (0, 0, 0), coordinator.stderr + again.stderr

        joined = [line for line in coordinator.lines if line.get("event") == "Joined"]
        assert [(line["rank"], line["incarnation"]) for line in joined[-1:]] == [(1, 2)]
        assert [line["rank"] for line in coordinator.lines if line.get("event") == "Promoted"][2:] == [1]
        assert first["tracked"] > 1, "M-24: it went on from the donor's count of batches, not from its own"
        assert accounting(coordinator.lines) == (0, 0)
        assert survivor.lines[-1]["global_step"] == 8 * 60, "I44"
        assert survivor.lines[-1]["norm"] == again.lines[-1]["norm"], "I59: the same bits everywhere"


def test_a_rank_more_than_there_were_joins_a_run_with_seats(tmp_path: Path) -> None:
    """M-7: up to max_ranks, the lowest vacant seat."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1, max_ranks=2)
        options = ("--epochs", "5", "--step-ms", "4", "--say-steps")
        first = s.rank(*options, *HOLD)
        late = s.rank(*options, "--wait")
        late.until(lambda line: "ready" in line)
        first.held()
        late.go()
        assert late.until(lambda line: "joined" in line)["joined"] == 1
        first.go()
        assert (coordinator.end(), first.end(), late.end()) == (0, 0, 0), coordinator.stderr + late.stderr
        assert late.lines[-1]["steps"] > 0 and accounting(coordinator.lines) == (0, 0)
        assert first.lines[-1]["norm"] == late.lines[-1]["norm"], "I59"


def test_a_frozen_world_refuses_a_late_rank_and_goes_on(tmp_path: Path) -> None:
    """M-22: elastic = False."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1, max_ranks=2, elastic=False)
        first = s.rank("--epochs", "4", "--step-ms", "5", *HOLD)
        late = s.rank("--wait")
        late.until(lambda line: "ready" in line)
        first.held()
        late.go()
        assert late.end() != 0 and "elastic = False" in late.stderr
        first.go()
        assert (coordinator.end(), first.end()) == (0, 0)
        assert accounting(coordinator.lines) == (0, 0)
