"""The reasons that `explain` gives, by their codes (protocol O-4). A code never changes its meaning.

What is said here of each code is said of it everywhere: docs/reference/reasons.md is made of it, and `explain.py` takes
the rule from here. `since` is the instant at which that wait began, `until` the one at which it ends by itself; where
no time ends it, somebody has to move, or an operator has to do something.
"""

from __future__ import annotations

from .values import value

__all__ = ["CODES", "Code"]


@value(kw_only=True)
class Code:
    """What one code says. `rules` are those by which the rank waits, the first one unless another one is given. `waits`
    says who is waited for, `since` and `until` from when and to when, `then` what is done at `until` unless another
    thing is given, `remedy` what an operator can do."""

    meaning: str
    rules: tuple[str, ...]
    waits: str
    since: str
    until: str
    remedy: str
    then: str = ""

    @property
    def rule(self) -> str:
        """The rule, unless a special case has another one."""
        return self.rules[0]


_ITSELF = "the rank itself"
_OTHERS = "those who hold the average up: voters below quota, in a pending cycle those who owe it something"
_NOTHING = "Nothing."
_SLOW = "Look at that rank if it takes longer than its own habit; E14 says so then."
_LEARNED = "that much later as the stage may take, as learned from the rank's last cycles (`deadline`); then it is E14"
_SUSPECTED = "it is suspected"
_SAVED = "the run is saved and ends"
_CEILING = "`reduce_ceiling` after the last evidence of anybody; then the run is saved and ends"
_IDLE = "its last plan ended, or it became a voter"

CODES: dict[str, Code] = {
    "E01": Code(
        meaning="It is below its quota and trains: `steps` of `quota`.", rules=("G-1",), waits="nobody",
        since="its last sign of progress, or the work in its empty hands if that came later",
        until="that much later as a step may take, as learned from its last ones; then it is E14",
        remedy=_SLOW, then=_SUSPECTED,
    ),
    "E02": Code(
        meaning="It is in the first step of this life: kernels are compiled, data is loaded.", rules=("M-11",),
        waits="nobody", since="as for E01", until="`first_step_s` after that",
        remedy="Raise `first_step_s` if a compilation takes longer.", then=_SUSPECTED,
    ),
    "E03": Code(
        meaning="It has used its budget of this window, and is given more after the average.", rules=("D-5",),
        waits=_OTHERS, since=_IDLE, until="the gate; no time ends it", remedy=_NOTHING,
    ),
    "E04": Code(
        meaning="All batches that it may be given are out, and the next epoch begins when this one is closed.",
        rules=("D-4",), since=_IDLE,
        waits="voters who still train; else ranks without a link, without whom no epoch is shared out in whole shares",
        until="the epoch closes; no time ends it", remedy=_NOTHING,
    ),
    "E05": Code(
        meaning="It has trained its plan, and is given the next one when it says so (Metrics).", rules=("D-15",),
        waits=_ITSELF, since="its last sign of progress, as a rule its last step", until="its Metrics",
        remedy="Look at that rank: its training loop has not come back from the plan.",
    ),
    "E06": Code(
        meaning="No work is left for it in this run, or its part of the last window of an epoch is done.",
        rules=("G-4",), waits=_OTHERS, since=_IDLE, until="the gate; no time ends it", remedy=_NOTHING,
    ),
    "E07": Code(
        meaning="Its part of the average is done, and it is parked until the others' is.", rules=("C-11",),
        waits="those who still owe a stage of the cycle", since="its own part was done", until=_CEILING,
        remedy="Look at who is waited for.", then=_SAVED,
    ),
    "E08": Code(
        meaning="It is `lead` steps ahead of the slowest rank, more than the `limit`, and is parked.", rules=("G-8",),
        waits=_OTHERS, since="it was parked", until="the end of the cycle; no time ends it",
        remedy="Raise `max_batch_diff` if ranks may be further apart.",
    ),
    "E09": Code(
        meaning="The average is pending, and it owes the copy of its parameters.", rules=("M-10",), waits=_ITSELF,
        since="the copy was asked for", until=_LEARNED, remedy=_SLOW, then=_SUSPECTED,
    ),
    "E10": Code(
        meaning="The average is pending, and `bytes` of its upload are here, `of` so many.", rules=("M-10",),
        waits=_ITSELF, since="its copy was taken", until=_LEARNED, remedy=_SLOW, then=_SUSPECTED,
    ),
    "E11": Code(
        meaning="The average is pending, and the averager computes; or the averager has lost the consensus and asks a "
                "rank for it.",
        rules=("M-10", "M-44"), waits="the averager, no rank; for a lost consensus the voters",
        since="its upload was complete; for a lost consensus, the coordinator began anew", until=_CEILING,
        remedy="Look at the averager's process: memory, load, log.", then=_SAVED,
    ),
    "E12": Code(
        meaning="The average is there, and it owes the acknowledgement.", rules=("M-10",), waits=_ITSELF,
        since="the average was there", until=_LEARNED, remedy=_SLOW, then=_SUSPECTED,
    ),
    "E13": Code(
        meaning="It is in the call in which ranks average in place, or on its way into it.", rules=("R-13",),
        waits="those who have not begun with the call, if that can be told, else all who have not acknowledged",
        since="the call was asked for", until=_CEILING, remedy="Look at who is waited for.", then=_SAVED,
    ),
    "E14": Code(
        meaning="It is late by its own habit: `median` and `deviation` of the last `count` give the `deadline`.",
        rules=("M-12",), waits=_ITSELF, since="the stage, or its step, began",
        until="the next thing that is done about it: the request again (M-13), exclusion (M-14), the ceiling (M-15, "
              "M-16)",
        remedy="Look at that rank: is its process alive, does its training loop hang, is its link saturated?",
        then=_SAVED,
    ),
    "E15": Code(
        meaning="It is late and was asked again, `nudges` times.", rules=("M-13",), waits=_ITSELF, since="as for E14",
        until="as for E14", remedy="As for E14; `laggards = \"exclude\"` goes on without such a rank.", then=_SAVED,
    ),
    "E16": Code(
        meaning="It was excluded and has shown no sign of life of its training since.", rules=("M-14",), waits=_ITSELF,
        since="it was excluded", until="its next evidence; no time ends it",
        remedy="Look at that rank; ending its process frees its seat.",
    ),
    "E17": Code(
        meaning="It joins, and the part of the state that no average holds is on its way to it.", rules=("M-24",),
        waits="the donor", since="this donor was asked", until="the state is there; no time ends it",
        remedy="Look at the donor.",
    ),
    "E18": Code(
        meaning="It joins, and becomes a voter at the end of a cycle; it has `missed` some, for `patience` of them "
                "nobody waits for it.",
        rules=("M-23",), waits="the voters", since="it was admitted; after an exclusion, it was back",
        until="a finish; no time ends it", remedy=_NOTHING,
    ),
    "E19": Code(
        meaning="The run forms: ranks are awaited, or the initial state is on its way.", rules=("M-4", "M-6"),
        waits="ranks that nobody knows yet; for the initial state, those who have not acknowledged it",
        since="the window was opened; for the initial state, closed, or another rank became its source",
        until="`join_timeout_s`, `max_join_timeout_s` or `rejoin_window_s`; for the initial state `formation_s`",
        remedy="Start the missing ranks; unless `start` is `auto`, start the run by hand.",
        then="the run begins with who is there",
    ),
    "E20": Code(
        meaning="Nobody averages in place before the new session is there.", rules=("M-30", "R-18"),
        waits="the generator, which makes its id; nobody where a call failed and the next attempt is put off",
        since="the session became necessary, or all were back who had lost their link; or the call failed",
        until="5 s for each generator; or the end of the pause", remedy="Look at the generator.",
        then="the next rank is asked",
    ),
    "E21": Code(
        meaning="It evaluates, or is in the checkpoint or epoch callback.", rules=("K-17", "M-11"), waits=_ITSELF,
        since="it could begin with it", until="`role_limit_s` later; then another rank is asked",
        remedy="Raise `role_limit_s` if a callback takes longer.", then="another rank is asked",
    ),
    "E22": Code(
        meaning="Its link is down.", rules=("M-42", "N-10"), waits="its return",
        since="the link was lost, or a message could not be sent",
        until="`link_grace_s`, after a restart of the coordinator `reconnect_window_s`; without a grace, "
              "`staleness_s` after its last frame",
        remedy="Look at the network and at that rank's process.", then="it is dead",
    ),
    "E23": Code(
        meaning="There are fewer ranks than `min_ranks`, and others may join.", rules=("M-21",),
        waits="ranks that nobody knows yet", since="there were too few", until="`rejoin_window_s` later",
        remedy="Start more ranks.", then=_SAVED,
    ),
    "E24": Code(
        meaning="The run stops: the last average, or the final evaluation, is awaited.", rules=("M-54",),
        waits=_OTHERS + "; the rank that evaluates",
        since="the stop was asked for, or later its last plan ended; for the evaluation, it could begin",
        until="the gate; for the evaluation `role_limit_s`", remedy=_NOTHING, then="another rank is asked",
    ),
    "E25": Code(
        meaning="The run is shut down, and exits are awaited.", rules=("M-53",),
        waits="everyone who is still there; until all have saved, those who have not said so",
        since="the save was told; of the exits, the shutdown", until="`save_limit_s` for a save, then `exit_grace_s`",
        remedy="Whoever does not go is cut off; end its process then.", then="its link is closed",
    ),
    "E26": Code(
        meaning="The run could not go on: it stalled, diverged or lost its ranks, and was saved.", rules=("C-16",),
        waits="nobody", since="the save was told", until="no time ends it",
        remedy="Resume from the newest bundle; without one, start anew.",
    ),
    "E27": Code(
        meaning="Its contributions are refused, `refused` in a row; at the `limit` it has to go.", rules=("D-12",),
        waits=_ITSELF, since="the first refusal of this row", until="its next contribution; no time ends it",
        remedy="Look at its losses and gradients: its parameters are not finite.",
    ),
}  # fmt: skip
"""Every code there is."""
