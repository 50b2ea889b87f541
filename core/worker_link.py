"""A worker and its link: what it keeps, how it looks for the coordinator, and how it comes back (W-21, W-22, M-42).

    linked --LinkLost--> alone: trains what it has, dials --Welcome(resumed)--> linked, sends again what was lost
      |                    |--- Welcome(joining) --> Joining, a new life
      |                    '--- the window is over, or Reject --> saves, stops
      '--Fenced--> Joining: its life is over elsewhere; dials for a new one

Each try is one order, `Dial`: the machine says when, the driver dials, says Hello with the claim of that moment and
brings back the answer. A report made meanwhile is numbered and kept like any other. The pauses grow, and differ from
rank to rank, so that a thousand ranks do not knock at one instant; they are computed, not drawn (M-40, N-13).

A new life keeps nothing of the old one but the model, what was decided once for all (`served`), and the seat it asks
for. Training may be in the middle of a step when a life ends: the plan is abandoned behind it, and that step counts
nowhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import attrs

from . import messages as m
from .effects import Dial, Publish, Reporting, Stop
from .events import LinkLost
from .phases import WorkerPhase
from .retention import Retained, weigher
from .values import maker, state
from .worker_collective import NO_SESSION, WorkerCollective
from .worker_notices import NO_CYCLE

__all__ = ["WorkerLink", "checks_state", "pause_s"]

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 10.0
JITTER = 0.2
"""Pauses between two tries: the first, the longest, and how much of it is added at most (M-40)."""
LEAST_WINDOW_S = 30.0
"""How long a fenced rank looks for its new seat at least: the coordinator is there, so it is soon found (M-3)."""

OF_A_ROUND = (m.SnapshotReady, m.SyncAck)
OF_A_CALL = (m.SyncAck, m.RoundFailed)
"""Reports that answer one request, in either flavour."""


def pause_s(run_id: bytes, rank: int, attempt: int) -> float:
    """Seconds before try `attempt` (from 0): 0.5, 1, 2, ... at most 10, each longer by up to 20 % (M-40)."""
    base = min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), LAST_PAUSE_S)
    seed = hashlib.sha256(b"%b %d %d" % (run_id, rank, attempt)).digest()
    return base * (1.0 + JITTER * int.from_bytes(seed[:8], "big") / 2.0**64)


def checks_state(welcome: m.Welcome) -> bool:
    """Whether in the formation that this life is welcomed to each rank keeps the state it brings (M-6)."""
    return welcome.config.get("initial_state") == "check"


new_reporting: Callable[..., Reporting] = maker(Reporting)


@state
class WorkerLink(WorkerCollective):
    """Guards and effects of the rows about links, over everything a worker does besides. `born` is the generation that
    gave this life its seat; `reports` is what the coordinator has not confirmed (N-9); without `claims` the rank asks
    for a new life, and so does one whose life is `over`, which says whose it was; `tries` counts those of this search,
    which ends at `look_until`."""

    born: int = 1
    claims: bool = True
    over: bool = False
    tries: int = 0
    look_until: float = math.inf
    reports: Retained = attrs.field(factory=Retained)

    def claim(self) -> m.ResumeClaim | None:
        """What this rank holds at this moment, for its Hello; None when it wants to begin anew (M-42)."""
        if not self.claims:
            return None
        own = self.settings
        return m.ResumeClaim(
            generation=own.generation, incarnation=own.incarnation, version=self.version, cycle=self.cycle,
            snapshot_cycle=max(0, self.snapshot_cycle), shipped=self.shipped, step_count=self.local_step,
            control_seq=self.control_seen, report_seq=self.report_seq, attempt=self.snapshot_attempt,
            staged=self.staged is not None, global_step=self.global_step,
            session_id=max(self.built, NO_SESSION if self.session is None else self.session.session_id),
            over=self.over,
        )  # fmt: skip

    def report(self, kind: type[m.Report], /, **fields: Any) -> None:
        """Put one report on the lane, stamped and numbered (N-3), and keep it (N-9). What is said about a round is
        stamped with the generation of that round, which is over if the coordinator was started anew since (M-43)."""
        own, generation = self.settings, self.settings.generation
        if own.collective and kind in OF_A_CALL and self.call is not None:
            generation = self.call.generation
        elif not own.collective and kind in OF_A_ROUND:
            generation = self.snapshot_generation
        number = self.report_seq = self.report_seq + 1
        cls: Any = kind
        made = maker(cls)(own.run_id, generation, own.rank, own.incarnation, number, self.control_handled, **fields)
        self.put(number, made, weigher(cls))

    def put(self, number: int, report: m.Report, weigh: Callable[[Any], int]) -> None:
        """The report of this number goes on the lane, and is kept, with its weight, while its life may be gone on with
        (N-9)."""
        if self.claims:
            self.reports.append(number, report, weigh(report))
        if self.linked:
            self.outbox.append(new_reporting(report))

    # --- losing it -----------------------------------------------------------------------------------------------

    def looking(self, event: object) -> bool:
        """There is no link, and the coordinator is being looked for."""
        return not self.linked

    def may_return(self, event: object) -> bool:
        """The run gives ranks time to come back (M-42)."""
        return self.settings.reconnect_window_s > 0

    def lose_link(self, event: LinkLost | None) -> None:
        """W-21: nothing ends here; the plan in hand is trained to its end."""
        self.claims = True
        self._look_for(self.settings.reconnect_window_s, self._cause(event))

    def look_for_seat(self, event: m.Fenced) -> None:
        """W-21: a life is over, the process is not. What it claims is answered with a new one, also by a coordinator
        whose journal has lost the end of the old one (M-45): its steps are dropped here."""
        self.over = True
        self._look_for(self._seat_window_s, f"fenced: {event.why}")

    def break_lane(self, event: object) -> None:
        """N-9: the coordinator confirms nothing, and no more is kept for it. This life is over, and is not claimed; the
        rank asks for another one."""
        cause = f"overflow: {len(self.reports)} reports are not confirmed"
        self.claims = False
        self.reports.clear()
        if self.linked:
            self._look_for(self._seat_window_s, cause)

    @property
    def _seat_window_s(self) -> float:
        return max(self.settings.reconnect_window_s, LEAST_WINDOW_S * self.settings.time_scale)

    def _look_for(self, window_s: float, cause: str) -> None:
        self.linked, self.tries, self.look_until = False, 0, self.last_now + window_s
        self.outbox.append(Publish("link_lost", {"cause": cause, "until": self.look_until}))
        self._dial(0.0)

    def dial_again(self, event: Any) -> None:
        """A try has failed: the next one, not before the coordinator wants it (M-40)."""
        self._dial(event.after_s if isinstance(event, m.Reject) else 0.0)

    def _dial(self, at_least_s: float) -> None:
        pause = pause_s(self.settings.run_id, self.settings.rank, self.tries) * self.settings.time_scale
        self.outbox.append(Dial(max(at_least_s, pause)))
        self.tries += 1

    def _cause(self, event: Any) -> str:
        if isinstance(event, LinkLost):
            return event.cause
        return f"silent for more than {self.settings.staleness_s:g} s"

    # --- coming back ---------------------------------------------------------------------------------------------

    def resumes(self, event: m.Welcome) -> bool:
        """The coordinator goes on with this very life."""
        own = self.settings
        same = (event.rank, event.incarnation) == (own.rank, own.incarnation)
        return event.status == m.WelcomeStatus.RESUMED and same and self.claims

    def has_reports(self, event: m.Welcome) -> bool:
        """What the coordinator lacks is still here (N-9)."""
        return self.reports.covers(event.report_seq, self.report_seq)

    def take_up(self, event: m.Welcome) -> None:
        """M-42: send again, under their old stamps and numbers, the reports that the coordinator lacks."""
        self._linked_to(event)
        self.reports.release(event.report_seq)
        if self.session_until is not None:  # from now on a session can come
            self.session_until = self.last_now + self.settings.session_wait_s
        missing = self.reports.after(event.report_seq)
        self.outbox += [Reporting(report) for report in missing]
        self.outbox.append(Publish("reattached", {"generation": event.generation, "reports_again": len(missing)}))

    def give_up_life(self, event: m.Welcome) -> None:
        """The lane has a hole that nothing can fill: hang up, and ask for a new life."""
        self.claims = False
        self._dial(0.0)

    def settle_in(self, event: m.Welcome) -> None:
        """A new life: its own seat and incarnation, lanes from 1 (M-7)."""
        self._linked_to(event)
        self.born, self.claims, self.over, self.checks = event.generation, True, False, checks_state(event)
        self.report_seq = self.control_seen = self.control_handled = 0
        self.reports.clear()
        self.outbox.append(Publish("rejoined", {"rank": event.rank, "incarnation": event.incarnation}))

    def _linked_to(self, event: m.Welcome) -> None:
        self.settings = attrs.evolve(
            self.settings, rank=event.rank, incarnation=event.incarnation, generation=event.generation
        )
        self.linked, self.look_until, self.last_beat = True, math.inf, self.last_now

    def start_over(self, event: object) -> None:
        """W-21: staged consensus, shipped and local steps, plans and orders of the old life are gone; what the model
        holds stays, until a consensus overwrites it (W-12)."""
        self.in_mid_step = self.in_mid_step or self.started
        self._let_go()
        self.inbox.clear()
        self.staged, self.acked, self.copied, self.observing = None, False, False, False
        self.shipped = self.steps_since_avg = self.cycle = 0
        self.snapshot_cycle = self.committed = self.throttle = NO_CYCLE
        self.snapshot_attempt = self.snapshot_generation = 0
        self.armed.clear()
        self.asked = ()
        self.forget_session()

    def cut_short(self, event: object) -> bool:
        """A life ended while a plan was trained; the training process has not taken over anything since (W-21)."""
        return self.in_mid_step

    # --- not coming back -----------------------------------------------------------------------------------------

    def worth_retry(self, event: m.Reject) -> bool:
        """The coordinator says that it may be better next time (N-29)."""
        return event.retry

    def turned_away(self, event: m.Reject) -> None:
        """W-21: a refusal that no patience mends ends like a coordinator that is gone, and says why."""
        self._save_own()
        self.outbox.append(Stop("coordinator_lost", f"the coordinator does not take this rank back: {event.text}"))

    def stop_looking(self, event: object) -> None:
        """Nobody is looked for any more. A deadline that stays behind would make a Tick due for ever."""
        self.look_until = math.inf

    def lose_coordinator(self, event: LinkLost | None) -> None:
        """W-21: what this rank has is saved under its own name, never over the shared file."""
        told = self._cause(event) if self.linked else f"not found again in {self.tries} tries"
        self._save_own()
        self.outbox.append(Stop("coordinator_lost", f"the coordinator is gone ({told})"))

    def link_due(self) -> float:
        """When a Tick may have something to say about the link: exceeded strictly, like every silence (M-3)."""
        if not self.linked:
            return self.look_until
        own = self.settings
        beat, silent = self.last_beat + own.heartbeat_s, self.last_heard + own.staleness_s
        return beat if beat <= silent or self.saving is not None else math.nextafter(silent, math.inf)

    def judge_link(self, now: float) -> str | None:
        """The event that the link is due for at `now`, by its name in the table. Silence says nothing to a rank that
        saves: the end of the save stops it, or its time does (W-23)."""
        if not self.linked:
            return "WindowOver" if now >= self.look_until else None
        if self.saving is not None:
            return None
        return "LinkLost" if now > self.last_heard + self.settings.staleness_s else None

    def comes_from_before(self, event: Any) -> bool:
        """Sent by an earlier life of the coordinator about a round that ended with it (M-43)."""
        return bool(event.generation < self.settings.generation)

    def unsought(self, event: object) -> bool:
        """Nobody has knocked: what answers is out of order."""
        return self.linked or self.phase == WorkerPhase.STOPPED
