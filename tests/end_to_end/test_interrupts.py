"""Ctrl-C in a terminal: the signal goes to every process of the foreground group at once, perhaps again and again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from paceline.backends.checkpoint import load_model

from support.launcher import UNRULY, Command, fresh, left_over

RANKS = 2


def interrupt(command: Command) -> None:
    """What the terminal does: nobody of the group is spared."""
    os.killpg(command.process.pid, signal.SIGINT)


def started(command: Command, trainers: int) -> list[int]:
    """Every process of a run in which each rank has a loader, once so many of the ranks train."""
    processes: dict[str, int] = {}
    training = 0
    while training < trainers or len(processes) < 2 * RANKS + 1:
        match = command.until(r"(rank \d+|coordinator)(?: is process |\] loader )(\d+)$|trains$")
        if match[2] is None:
            training += 1
        else:
            processes[match[0]] = int(match[2])
    return [*processes.values()]


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_of_the_whole_group_leaves_no_process(tmp_path: Path, times: int) -> None:
    """F89, M-54: the first ends the run with its model, the second at once, also where a rank hangs; a third finds
    nobody or changes nothing. The loaders of the ranks, which do not listen to interrupts, are gone each time."""
    hanging = ["hang=0"] if times > 1 else []
    command_line = ("run", f"--ranks={RANKS}", "--debug", UNRULY, "epochs=100000", "loaders=1", *hanging)
    with fresh(*command_line, cwd=tmp_path) as command:  # process groups are those that users have
        processes = started(command, RANKS - len(hanging))
        interrupt(command)
        if times > 1:
            command.until("stopping: ")
        for _ in range(times - 1):
            interrupt(command)
        assert command.end() == 130
        assert left_over(processes) == []
    assert "Traceback" not in "\n".join(command.err)
    if times == 1:
        load_model(tmp_path / "paceline-run" / "consensus.safetensors")
    else:
        assert command.err[-1] == "paceline: interrupted, every process was ended at once"
