"""Every event of the timeline, with its fields (protocol O-1).

The timeline is what a run tells about itself: `Emit` effects, which an adapter stamps and writes (O-3). Nothing reads
it back, so nothing but this list keeps a name or a field from changing under whoever reads it. An event that the list
does not have, or that has other fields, is a fault that the tests find.

Alerts (O-2) stand between the events as `Alert`, with `kind`, `path`, `text`, `critical`, `again` and `count`; see
`alerts.py`.
`Waiting` and `Waited` are no effects of the coordinator: who drives it asks `waiting.py` for them.

A field whose name ends in `?` may be missing; one whose value may be None says so. Durations named `ms` are
milliseconds, all others seconds; a map by rank has the rank as text, because that is what JSON makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .values import value

__all__ = ["AGAIN", "REPLAYED", "TIMELINE", "TimelineEvent", "undeclared"]

REPLAYED = "replayed"
"""The mark with which a coordinator that was started anew calls a hook that may have been called before (M-44)."""
AGAIN = "again"
"""The same mark on an event. Events have another name for it, because `replayed` is a fact of some of them already: the
batches that were trained twice (I42)."""


@value(kw_only=False)
class TimelineEvent:
    """A declared event: what it means, and what its fields do. One without fields carries what its sender has."""

    name: str
    meaning: str
    fields: Mapping[str, str] = attrs.field(hash=False)


def _event(name: str, meaning: str, /, **fields: str) -> TimelineEvent:
    return TimelineEvent(name, meaning, {field.replace("_opt", "?"): text for field, text in fields.items()})


_LADDER = {
    "rank": "who is late", "cycle": "the cycle it is late in",
    "stage": "snapshot, upload, ack, step or collective (M-10)",
    "waited": "without evidence", "deadline": "what it may take (M-11)", "median": "of its last ones, or None",
    "deviation": "median absolute deviation, or None", "count": "how many durations are known",
}  # fmt: skip

_EVENTS = (
    _event("EpochStart", "The pool of an epoch has opened (D-3).", epoch="its number", batches="in all"),
    _event("EpochEnd", "An epoch is covered to its last batch, and closed (D-20, K-20).", epoch="its number",
           samples="picks, each counted where it was finally trained", batches="likewise",
           avg_loss="over the samples in the model, or None",
           epoch_ms="of the rank that took longest, or the age of the epoch",
           throughput="samples per second of all ranks' own work, or None",
           scalars="means by name, or None",
           ranks="by rank: samples, avg_loss, epoch_ms, compute_ms, starve_ms, throughput, share (B-15)"),
    _event("SyncStart", "A cycle is about to be armed (C-11).", cycle="its number"),
    _event("AverageStart", "Its requests are out (C-11.8).", cycle="its number", members="ranks that take part"),
    _event("Idle", "How long each member had shown no training when its cycle was armed: what the others, and the "
           "barrier, made it wait (O-5).", cycle="its number", ms="by rank, within this window",
           held="by rank: what an idle one is held by, as the code that `explain` has for it; each hold once (D-8)"),
    _event("AverageEnd", "The cycle is finished (C-15.11).", cycle="its number", ms="from the arm to the finish"),
    _event("SyncEnd", "All that follows a finish is done (C-15.13).", cycle="its number", version="of the consensus"),
    _event("Cycle", "Record of a finished cycle and its window (C-15.4).", cycle="its number",
           attempt="the one that held", version="after it", realized="whether there is a consensus",
           merged="steps by rank", global_step="after it", reduce_ms="from the arm to the last ack (C-10)",
           anchor="after it", verdict="of the guard, or None", counts="steps per window by rank",
           divergence="by rank, or None", loss="mean by rank, or None", step_ms="by rank; 0 is unmeasured"),
    _event("Covered", "Which batches the consensus now contains (D-12).", cycle="its number",
           replayed="batches trained more than once so far", slices="rank, epoch, first batch, batches"),
    _event("AnchorChanged", "The anchor after a cycle differs from the one before it, net of all causes (B-7, B-12).",
           **{"from": "steps", "to": "steps"}),
    _event("Policies", "What decides in this run and does not ship, as module:name; told when training begins (B-30, "
           "B-40).", guard_opt="judges whether ranks drift apart", cadence_opt="makes the balancer",
           detector_opt="says how long a rank may take", meta_opt="shortens the window besides the guard"),
    _event("MetaNudge", "The meta-controller shortened the window (B-43).", factor="as it was before the seam",
           **{"from": "anchor", "to": "anchor"}),
    _event("Throttle", "A rank is parked (C-11.6, G-8).", rank="who", reason="barrier or lead",
           lead_opt="steps ahead of the slowest"),
    _event("SendFailed", "A message did not leave; its link is done for (N-10).", rank="to whom",
           message="its number on the lane"),
    _event("Divergence", "How far the ranks were apart before a realized average (R-16, B-30).",
           d="the largest of the cohort", k_used="steps merged", k_max="the most of one rank", version="made",
           deltas="by rank; a missing one reads as 0", norms="before adoption by rank, or None",
           epoch="of running work (K-20)"),
    _event("DivergenceEpoch", "The largest divergences of the averages within an epoch (C-15.4).", epoch="its number",
           cycles="that count", min="smallest", max="largest", mean="their mean", last="of the last one"),
    _event("GuardTelemetry", "What the norms say about directions (B-31); no verdict depends on it.",
           cycle="its number", divergence="the largest", cosines="to the consensus by rank, or None",
           shifts="pre - post norm by rank"),
    _event("Verdict", "What the guard said of a realized cycle (B-12, B-30).", cycle="its number",
           verdict="Stable, SuppressGrowth or NudgeDown", factor_opt="of a NudgeDown",
           relax_up_opt="of a Stable: whether the anchor may grow by one"),
    _event("Suspect", "A rank is later than its own past allows (M-12).", **_LADDER),
    _event("Nudge", "It is asked again (M-13).", **_LADDER, nudge="which one"),
    _event("Excluded", "It is taken out of the gates, alive (M-14).", **_LADDER),
    _event("Returned", "Batches of a rank came back to the pool (D-19), or an excluded rank came back (M-14).",
           rank="who", batches_opt="that came back", replayed_opt="batches trained more than once so far",
           from_opt="exclusion"),
    _event("Waiting", "Somebody has been waited for at least 10 s; told every 10 s at most (O-3).", cycle="its number",
           during="joining, loading, training, collecting, applying, evaluating, saving or shutting down",
           waited_s="the longest of these waits", missing="ranks that are waited for; none: for the averager, say",
           why="who has waited longest and why, in words, unless that is a missing rank; then None",
           what="in words: what missing ranks do or owe, of three at most, those that showed nothing for longest",
           progress="by rank: `kind` of what it showed last and how long `ago_s`; None for one that is not there",
           next="what is done first about one of them, or None", next_s="in how many seconds, or None"),
    _event("Waited", "Nobody of whom that was told is waited for any more (O-3).", cycle="its number",
           during="as it was told last", waited_s="the longest of these waits",
           how="by rank: arrived, excluded, left or died"),
    _event("StateDump", "Nobody has shown progress for `stall_dump_s` (O-8).", elapsed_s="since the newest progress",
           dump="the state of everything"),
    _event("Stalled", "Nothing moved up to a ceiling (M-15, M-16); the run saves and stops.", cycle="its number",
           waited_s="without evidence", dump="the state of everything (O-8)"),
    _event("SessionNew", "A communicator is made, for who is alive then (M-31).", session="its number",
           ranks="its members", generator="who made its id", state_from="who gives the state to newcomers, or None",
           cycle="the one that goes on in it, or None", attempt="of that cycle; 0 without one"),
    _event("Joined", "A rank was let in (M-7).", rank="its seat", incarnation="which life of it", host="as it says"),
    _event("Promoted", "It votes and works from now on (M-25).", rank="who"),
    _event("Left", "A polite departure (M-8).", rank="who", incarnation="which life", reason="as it says",
           unmerged="steps that others train again"),
    _event("Died", "An incarnation has ended (M-18).", rank="who", incarnation="which life", cause="in words"),
    _event("Detached", "A rank has no link, and is awaited (M-42).", rank="who", incarnation="which life",
           cause="in words", until="monotonic second at which it is dead"),
    _event("Reattached", "It is back, and goes on with its life (M-42).", rank="who", incarnation="which life",
           waited_s="without a link", resent="messages that it lacked", reports_missing="that it sends again"),
    _event("Restarted", "The coordinator was started anew (M-40).", generation="its life", version="of the consensus",
           ranks="that are awaited"),
    _event("RoleChanged", "A callback has another holder (M-33).", role="epoch, evaluate or checkpoint",
           **{"from": "rank or None", "to": "rank or None"}),
    _event("CheckpointArmed", "A bundle will be written of this cycle's consensus (K-2).", cycle="its number",
           version="to come", stem="path without suffix"),
    _event("CheckpointWritten", "A rank's checkpoint callback or save is done, or a file of the averager's is in place "
           "(K-6, K-9, M-52).", rank_opt="whose callback", what_opt="ConsensusSaved or MetaWritten",
           version="of the consensus"),
    _event("Evaluated", "A rank has evaluated (K-16).", rank="who", final="whether it was the last one (K-17)",
           epoch="its label", version="of the consensus", metric="or None", count="samples, or None"),
    _event("Refused", "A Hello was turned down (M-5), or a contribution (R-4, D-12).", who_opt="host of the Hello",
           rank_opt="whose contribution", why="in words", steps_opt="that are trained again"),
    _event("Fenced", "Stale messages since the last average, by rank and reason (N-6).", rank="whose, or None",
           why="kind of the message, or stale", count="since the last time this was told"),
    _event("Resumed", "Training goes on from the record of another run (D-23, K-12).", version="it begins with",
           global_step="it begins with", covered="batches that count as trained", first_epoch="that is open"),
    _event("PhaseChanged", "The run is in another phase (C-25), or has been asked to stop (M-54).",
           phase="forming, training, stopping, final_eval, shutting_down (it did not form) or stopped",
           ranks_opt="who is there", rank_opt="who evaluates", status_opt="how the run ended", why_opt="in words"),
    _event("Custom", "Anything else, for people: samples of resources and parts of an epoch (O-5), transfers of state "
           "(M-24)."),
)  # fmt: skip

TIMELINE: Mapping[str, TimelineEvent] = {event.name: event for event in _EVENTS}
"""The declared events by name, in the order in which a run meets them."""


def undeclared(name: str, facts: Mapping[str, Any]) -> str | None:
    """What is wrong with an event, in words; None if it is as declared."""
    event = TIMELINE.get(name)
    if event is None:
        return f"{name} is not declared in core/timeline.py"
    if not event.fields:
        return None
    known = {field.removesuffix("?") for field in event.fields}
    needed = {field for field in event.fields if not field.endswith("?")}
    odd = sorted((facts.keys() - known - {AGAIN}) | (needed - facts.keys()))
    return f"{name} is declared with other fields; it differs in {', '.join(odd)}" if odd else None
