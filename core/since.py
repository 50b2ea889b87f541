"""Since when what keeps a rank waiting does so (protocol O-4).

Nothing is decided from these instants: they are for people, who ask with `explain` why somebody waits, and for how long
already. What a limit or a clock counts from is kept elsewhere, because such a clock stands still or begins anew where a
wait does not (M-9, M-11).
"""

from __future__ import annotations

import attrs

from .values import state

__all__ = ["Since"]


@state
class Since:
    """Monotonic seconds at which a rank got the `seat` that it has now (admitted, excluded, or back from that), got
    `work` into empty hands, was left `idle` by the end of its last plan, was `parked` by the lead limit, had the first
    of its contributions `refused` that were refused in a row, lost its `link` to a send that failed, and was given the
    `donor` of its static state."""

    seat: float = 0.0
    work: float = 0.0
    idle: float = 0.0
    parked: float = 0.0
    refused: float = 0.0
    link: float = 0.0
    donor: float = 0.0

    def restarted(self, now: float) -> None:
        """M-40: these were instants of a clock that is gone."""
        for field in attrs.fields(Since):
            setattr(self, field.name, now)
