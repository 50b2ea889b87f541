"""Links and coordinators that go and come back, with real processes over TCP (M-40 to M-44, W-20, W-21)."""

from __future__ import annotations

import signal
from pathlib import Path

from support.launcher import paceline
from support.patience import PATIENCE_S
from support.processes import FIRST_STEP, FIRST_WINDOW, accounting, stage
from support.proxy import Proxy

SECOND_WINDOW = 15
STEPS = 700
LONG = ("--samples", str(8 * STEPS), "--epochs", "1", "--step-ms", "0.5")
"""With a `max_anchor` of 10 every rank is given ten steps twice, however slow it was in the first ones: in the second
window one that is 64 times as fast, which is the most that counts, takes 640 and leaves enough."""


def test_a_coordinator_that_is_killed_and_started_again_goes_on(tmp_path: Path) -> None:
    """I37, M-40, M-42, M-43, M-44: samples lost 0, merged twice 0, and no step is trained again."""
    journal = str(tmp_path / "run.journal")
    with stage(tmp_path) as s:
        first = s.coordinator(target_ranks=2, max_anchor=10, journal=journal)
        ranks = [s.rank(*LONG, "--hold-at", str(SECOND_WINDOW), PACELINE_RANK="0"), s.rank(*LONG, PACELINE_RANK="1")]
        ranks[0].held()
        first.process.kill()
        first.end()
        ranks[0].go()
        second = s.coordinator(url=s.url, target_ranks=2, max_anchor=10, journal=journal)
        assert [second.end(), *(rank.end() for rank in ranks)] == [0, 0, 0], second.stderr + ranks[0].stderr
        said = [line.get("event") for line in second.lines]
        assert said.count("Reattached") == 2 and "Died" not in said and "Restarted" in said
        assert accounting([*first.lines, *second.lines]) == (0, 0)
        assert {line["generation"] for line in second.lines if "generation" in line} == {2}
        assert [line["replayed"] for line in second.lines if line.get("event") == "Covered"][-1] == 0
        assert {rank.lines[-1]["global_step"] for rank in ranks} == {STEPS}, "I44"
        assert ranks[0].lines[-1]["norm"] == ranks[1].lines[-1]["norm"], "I59"
        assert (tmp_path / "consensus.safetensors").exists()


def test_a_cut_connection_is_taken_up_again(tmp_path: Path) -> None:
    """M-17, M-42, I53: with a grace the rank is back over a new connection, and nothing is trained again."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2, max_anchor=10, link_grace_s=PATIENCE_S)
        steady = s.rank(*LONG, PACELINE_RANK="0")
        with Proxy(s.url) as proxy:
            hold = [f"--hold-at={step}" for step in (FIRST_WINDOW, SECOND_WINDOW)]
            shaky = s.rank(*LONG, *hold, PACELINE_RANK="1", PACELINE_URL=proxy.url)
            for _ in hold:
                shaky.held()
                assert proxy.cut() == 4, "two lanes, two ends each"
                coordinator.until(lambda line: line.get("event") == "Reattached")
                shaky.go()
            assert [coordinator.end(), steady.end(), shaky.end()] == [0, 0, 0], coordinator.stderr + shaky.stderr
        said = [line.get("event") for line in coordinator.lines]
        assert said.count("Detached") == 2 and "Died" not in said
        assert accounting(coordinator.lines) == (0, 0)
        assert [line["replayed"] for line in coordinator.lines if line.get("event") == "Covered"][-1] == 0
        assert steady.lines[-1]["norm"] == shaky.lines[-1]["norm"]


def test_a_rank_that_was_away_too_long_comes_back_by_itself(tmp_path: Path) -> None:
    """W-20, W-21, M-22: declared dead while it was stopped, it learns so and goes on as the next incarnation."""
    with stage(tmp_path) as s:
        coordinator = s.coordinator(target_ranks=2)
        other = s.rank("--epochs", "8", "--hold-at", str(FIRST_WINDOW + 1), PACELINE_RANK="0")
        with Proxy(s.url) as proxy:
            away = s.rank("--epochs", "8", "--hold-at", str(FIRST_STEP), PACELINE_RANK="1", PACELINE_URL=proxy.url)
            away.held().process.send_signal(signal.SIGSTOP)
            assert proxy.cut() == 4, "without a grace the loss of its link is its death"
            coordinator.until(lambda line: line.get("event") == "Died")
            other.held()
            away.process.send_signal(signal.SIGCONT)
            away.go()
            joined = coordinator.until(lambda line: line.get("event") == "Joined")
            assert (joined["rank"], joined["incarnation"]) == (1, 2)
            other.go()
            coordinator.until(lambda line: line.get("event") == "Promoted")
            assert [coordinator.end(), other.end(), away.end()] == [0, 0, 0], coordinator.stderr + away.stderr
        assert accounting(coordinator.lines) == (0, 0)
        assert other.lines[-1]["norm"] == away.lines[-1]["norm"], "I59"


def test_a_coordinator_that_goes_on_invites_nobody_anew(tmp_path: Path) -> None:
    """M-40: its ranks know where it is; whoever joined as for a new run would be refused."""
    words = ("coordinate", "--ranks=1", "--bind=tcp://127.0.0.1:0", "--journal=j")
    with paceline(*words, cwd=tmp_path, PACELINE_TOKEN="5" * 64) as command:
        command.until(r"listening on tcp://\S+ for 1 rank; start each of them with$")
        command.process.kill()
        command.end()
    with paceline(*words, cwd=tmp_path, PACELINE_TOKEN="5" * 64) as command:
        command.until(r"listening on tcp://\S+; the run goes on, and its ranks come back by themselves$")
