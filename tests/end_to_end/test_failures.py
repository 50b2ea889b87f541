"""Things that break in the middle of a run: killed ranks, a killed coordinator, rubbish parameters, signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from paceline.backends.checkpoint import load_model

from support.processes import FIRST_WINDOW, Child, accounting, stage


def _names(lines: list[dict[str, object]]) -> list[object]:
    return [line.get("event") for line in lines]


def _averaged(coordinator: Child) -> None:
    """Wait until there is a consensus of something trained."""
    coordinator.until(lambda line: line.get("event") == "Cycle" and line["version"] > 0)


@pytest.mark.parametrize("policy", ["cadence", "sync", "async"])
def test_a_killed_rank_costs_no_sample(tmp_path: Path, policy: str) -> None:
    """M-17, M-18, I42: EOF is the evidence, its picks go to the others, every batch is merged exactly once."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2, policy=policy)
        survivor = s.rank("--epochs", "4", PACELINE_RANK="0")
        victim = s.rank("--epochs", "4", "--hold-at", str(FIRST_WINDOW), PACELINE_RANK="1")
        victim.held().process.kill()
        assert (coordinator.end(), survivor.end()) == (0, 0), coordinator.stderr + survivor.stderr
        died = [line for line in coordinator.lines if line.get("event") == "Died"]
        assert [line["rank"] for line in died] == [1]
        assert accounting(coordinator.lines) == (0, 0)
        assert survivor.lines[-1]["global_step"] == 4 * 60, "I44"
        assert (tmp_path / "consensus.safetensors").exists()


def test_on_one_host_the_tags_may_cover_the_headers_only(tmp_path: Path) -> None:
    """N-26: the address that ranks are given says so, since both ends must know before the first block."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2, bulk_auth="header")
        assert s.url.endswith("?bulk_auth=header")
        ranks = [s.rank("--epochs", "1"), s.rank("--epochs", "1")]
        assert [coordinator.end(), *(rank.end() for rank in ranks)] == [0, 0, 0], coordinator.stderr
        assert accounting(coordinator.lines) == (0, 0)


def test_sigterm_makes_a_rank_leave_politely(tmp_path: Path) -> None:
    """W-28, M-8: Exiting, no alert, its unmerged steps are trained by the others."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        other = s.rank("--epochs", "4", PACELINE_RANK="0")
        leaver = s.rank("--epochs", "4", "--hold-at", str(FIRST_WINDOW), PACELINE_RANK="1")
        leaver.held().process.send_signal(signal.SIGTERM)
        leaver.go()
        assert leaver.end() == 0, leaver.stderr
        assert (coordinator.end(), other.end()) == (0, 0)
        assert "Left" in _names(coordinator.lines) and "Died" not in _names(coordinator.lines)
        assert not [line for line in coordinator.lines if line.get("critical")], "C-22: no red alert at a clean end"
        assert accounting(coordinator.lines) == (0, 0)


def test_a_script_that_raises_ends_alone(tmp_path: Path) -> None:
    """W-24: its own traceback, no Exiting; the link that closes is its death report and the run goes on."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        other = s.rank(PACELINE_RANK="0")
        broken = s.rank("--raise-at", str(FIRST_WINDOW), PACELINE_RANK="1")
        assert broken.end() == 1
        assert "RuntimeError: the script's own mistake" in broken.stderr
        assert (coordinator.end(), other.end()) == (0, 0)
        assert "Died" in _names(coordinator.lines)
        assert accounting(coordinator.lines) == (0, 0)


def test_a_script_that_leaves_its_loop_early_is_a_departure(tmp_path: Path) -> None:
    """M-8 through Session.close: others finish, everything is merged once."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        other = s.rank(PACELINE_RANK="0")
        early = s.rank("--leave-at", str(FIRST_WINDOW), PACELINE_RANK="1")
        assert (early.end(), coordinator.end(), other.end()) == (0, 0, 0)
        assert "Left" in _names(coordinator.lines)
        assert accounting(coordinator.lines) == (0, 0)


def test_non_finite_parameters_are_refused_and_named_and_the_run_goes_on(tmp_path: Path) -> None:
    """R-4, D-12: out of sum and divisor, the rank gets the consensus, its steps are trained again."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        healthy = s.rank(PACELINE_RANK="0")
        sick = s.rank("--poison-at", str(FIRST_WINDOW), PACELINE_RANK="1")
        assert (coordinator.end(), healthy.end(), sick.end()) == (0, 0, 0), coordinator.stderr
        refused = [line for line in coordinator.lines if line.get("event") == "Refused"]
        assert [(line["rank"], line["why"]) for line in refused] == [(1, "nonfinite")]
        assert accounting(coordinator.lines) == (0, 0)
        assert healthy.lines[-1]["finite"] and sick.lines[-1]["finite"]
        assert healthy.lines[-1]["norm"] == sick.lines[-1]["norm"], "I59: the same bits everywhere"


def test_a_killed_coordinator_ends_the_ranks_with_what_they_have_saved(tmp_path: Path) -> None:
    """F88, W-21, W-22: EOF, no new coordinator in the window, a local file under the rank's own name, exit code 3."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2, reconnect_window_s=1.0)
        ranks = [s.rank("--epochs", "5000", PACELINE_RANK=str(rank)) for rank in range(2)]
        _averaged(coordinator)
        coordinator.process.kill()
        for number, rank in enumerate(ranks):
            assert rank.end() == 3, rank.stderr
            assert "the coordinator is gone" in rank.stderr and "Traceback" not in rank.stderr
            saved = list(tmp_path.glob(f"lost.rank{number}.v*.model.safetensors"))
            assert len(saved) == 1 and load_model(saved[0])[0]
        assert not (tmp_path / "consensus.safetensors").exists(), "never over the shared checkpoint"


def test_the_first_interrupt_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    """M-54, G-10: one last average, the consensus written, every rank told; all have the same version."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        ranks = [s.rank("--epochs", "5000", PACELINE_RANK=str(rank)) for rank in range(2)]
        _averaged(coordinator)
        coordinator.process.send_signal(signal.SIGINT)
        assert [coordinator.end(), *(rank.end() for rank in ranks)] == [0, 0, 0], coordinator.stderr
        assert coordinator.lines[-1]["event"] == "Finish" and coordinator.lines[-1]["status"] == "stopped"
        assert len({rank.lines[-1]["version"] for rank in ranks}) == 1
        meta = json.loads((tmp_path / "consensus.meta.json").read_text())
        assert meta["version"] == ranks[0].lines[-1]["version"] > 0
        assert (tmp_path / "consensus.safetensors").exists()


def test_the_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    """Exit status 130; the ranks see the end of their link."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1, reconnect_window_s=0)
        rank = s.rank("--hold-at", str(FIRST_WINDOW)).held()
        coordinator.process.send_signal(signal.SIGINT)
        coordinator.until(lambda line: line.get("event") == "PhaseChanged" and line.get("phase") == "stopping")
        coordinator.process.send_signal(signal.SIGINT)
        assert coordinator.end() == 130
        rank.go()
        assert rank.end() == 3


def test_ranks_that_all_die_are_a_run_that_gave_up(tmp_path: Path) -> None:
    """M-21: all_ranks_lost, the averager's consensus saved, a status that says so."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=1)
        rank = s.rank("--epochs", "5000")
        _averaged(coordinator)
        rank.process.kill()
        assert coordinator.end() == 6
        assert coordinator.lines[-1]["status"] == "saved"
        assert (tmp_path / "consensus.safetensors").exists()
