"""What can happen in a simulated run, as small values that read and write themselves as text.

    report 1            the coordinator gets the oldest report of process 1
    step 1 10           process 1 takes ten steps, or as many as it can
    crash 2 3           process 2 is killed, and its last 3 reports are lost with it
    jump coordinator 9  the clock of the coordinator jumps 9 seconds ahead
    reduce              the averager divides

A *process* is one life of a rank: numbers count the Hellos of a run, so process 0 to n-1 are the ranks it began with,
and a rank that comes back is a new process. An action that names none concerns the averager, or everybody.

The table below is the whole vocabulary. Deliveries and work are what a run is made of (of steps and reports an
amount says how many); everything else is a fault or a wish, which never happens by itself.
"""

from __future__ import annotations

import functools

import attrs

from ..errors import ConfigError

__all__ = ["COORDINATOR", "FAULTS", "KINDS", "MOVES", "WISHES", "Action"]

COORDINATOR = -1
"""Stands for the coordinator among the processes."""
NOBODY = -2
WORD = "coordinator"

MOVES: dict[str, str] = {
    "failure": "the coordinator hears that its oldest message to the process could not be sent",
    "report": "the coordinator gets the oldest report of the process, or the end of its lane",
    "upload": "the averager gets the oldest part of a contribution, or of a state, from the process",
    "control": "the process gets the oldest message of the coordinator, or the end of its lane",
    "drain": "the training process comes to a drain point",
    "order": "the training process carries out its oldest order",
    "result": "the process gets the oldest part of a result of the averager",
    "dial": "the process, whose link is lost, knocks again, and has its answer",
    "session": "the process has made the id of a session",
    "unite": "all members of the session of the process are in one call: the average exists",
    "emerge": "the call ends at the process, and its average is in the parameters",
    "collapse": "the call fails at the process",
    "reduce": "the averager divides",
    "write": "the averager writes the next file of its oldest bundle",
    "step": "the training process takes one step",
    "tick": "time has passed: up to the next deadline, unless the schedule says when; without a subject for all",
    "resume": "the process that was stopped goes on",
    "recover": "the training process that hung goes on",
    "heal": "the link carries data again in the direction that was blocked",
}
"""What happens without any fault, or ends one, dullest first."""
FAULTS: dict[str, str] = {
    "cut": "the link is cut: what is under way in both directions is lost, and both ends are told",
    "drop": "the oldest report is lost, with nobody told",
    "lose": "the oldest message to the process is lost, with nobody told",
    "duplicate": "the oldest report arrives twice",
    "repeat": "the oldest message to the process arrives twice",
    "overtake": "the second report overtakes the oldest",
    "swap": "the second message to the process overtakes the oldest",
    "crash": "the process is killed; with a number, so many of its last reports are lost",
    "reap": "the process is killed, and the coordinator is told so before it has read what that had written; of one "
            "that is gone it is told so late",
    "pause": "the process is stopped (SIGSTOP): it neither works nor beats",
    "hang": "the training process hangs, and heartbeats flow",
    "mute": "the link carries nothing from the process to the coordinator until it is healed",
    "deafen": "the link carries nothing from the coordinator to the process until it is healed",
    "poison": "what the process ships next holds values that are not finite; with 1, it is finite again",
    "forge": "what the process ships next claims one step too many; with 1, it is honest again",
    "break": "callbacks of the process raise from here on, or no longer",
    "abort": "the data round is aborted",
    "full": "the disk is full, or has space again",
    "jump": "a clock jumps ahead by so many seconds",
    "split": "so many bytes of the oldest frame from the process arrive, the rest later (wire)",
    "crack": "so many bytes of the oldest frame to the process arrive, the rest later (wire)",
    "corrupt": "one bit of the oldest frame from the process, else of its bulk, is turned in that byte (wire)",
    "taint": "one bit of the oldest frame to the process, else of its bulk, is turned in that byte (wire)",
    "sever": "the process is killed with so many bytes of its oldest frame, else of its bulk, written (wire)",
    "die": "the coordinator is killed; with a number, before that effect of the batches to come",
    "fail": "the next collective call of the process fails; with 1, it does not",
    "withhold": "the process makes no id of the next session that it is asked for; with 1, it does again",
}
"""What only a fault brings about."""
WISHES: dict[str, str] = {
    "join": "a process knocks, at the seat of that number, or at any if it has none",
    "leave": "the process leaves politely",
    "checkpoint": "a checkpoint is asked for, by the process or the operator",
    "evaluate": "an evaluation is asked for, by the process or the operator",
    "stop": "a stop is asked for, by the process or the operator",
    "start": "the operator starts the run",
    "revive": "the coordinator that was killed is started again, and goes on with its journal",
}
"""What people and scripts do."""
KINDS: dict[str, str] = {**MOVES, **FAULTS, **WISHES}


MOST_DIGITS = 18
"""Digits of a number in an action: more are a mistake, not a process."""


@attrs.frozen(order=True)
class Action:
    """One thing that happens: its kind (`KINDS`), to which process, and how much of it. `str` gives its line, `parse`
    reads one."""

    kind: str
    who: int = NOBODY
    amount: int = 0

    def __str__(self) -> str:
        """The line of a schedule, without its time."""
        parts = [self.kind]
        if self.who != NOBODY:
            parts.append(WORD if self.who == COORDINATOR else str(self.who))
        if self.amount:
            parts.append(str(self.amount))
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Action:
        """What `str` gave. Raises `ConfigError` that says what is wrong with the text."""
        kind, *rest = text.split()
        if kind not in KINDS:
            raise ConfigError(f"there is no action {kind!r}; the actions are {', '.join(KINDS)}")
        if len(rest) > 2:
            raise ConfigError(f"{text!r} has too many parts; write an action as KIND [PROCESS [AMOUNT]]")
        who = NOBODY if not rest else COORDINATOR if rest[0] == WORD else _whole(text, rest[0])
        return cls(kind, who, _whole(text, rest[1]) if len(rest) == 2 else 0)


def _whole(text: str, word: str) -> int:
    """A number from 0 on."""
    digits = word.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal():
        why = "is no whole number"
    elif len(digits) > MOST_DIGITS:
        why = f"is too large; give a number of at most {MOST_DIGITS} digits"
    elif digits != word:
        why = "lies below 0; give a number from 0 on"
    else:
        return int(word)
    raise ConfigError(f"{word[:40]!r} in {text[:60]!r} {why}; write an action as KIND [PROCESS [AMOUNT]]")


@functools.cache
def act(kind: str, who: int = NOBODY, amount: int = 0) -> Action:
    """The action, made once: a run offers the same few again and again."""
    return Action(kind, who, amount)
