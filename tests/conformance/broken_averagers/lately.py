"""What goes well in the first round, with the first attempt, and against what is newer."""

from __future__ import annotations

import attrs

from paceline.backends.averager import RoundEvent
from paceline.backends.star import StarAverager
from paceline.core.effects import OpenRound
from paceline.core.events import RoundAborted, RoundReduced
from paceline.core.messages import Contribution


class DigestsOnce(StarAverager):
    """The digest of the first consensus is that of every one."""

    first: bytes | None = None

    def reduce(self) -> RoundReduced | RoundAborted:
        reduced = super().reduce()
        if isinstance(reduced, RoundReduced) and reduced.digest is not None:
            self.first = self.first or reduced.digest
            reduced = attrs.evolve(reduced, digest=self.first)
        return reduced


class TakesOlderGenerations(StarAverager):
    """Only what is newer is foreign: a frame of a generation before is taken for one of this."""

    opened: OpenRound | None = None

    def open(self, order: OpenRound) -> None:
        self.opened = order
        super().open(order)

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        if self.opened is not None and contribution.generation < self.opened.key.generation:
            contribution = attrs.evolve(contribution, generation=self.opened.key.generation)
        return super().on_header(rank, incarnation, attempt, contribution)


class TakesOlderAttempts(StarAverager):
    """The same with attempts."""

    opened: OpenRound | None = None

    def open(self, order: OpenRound) -> None:
        self.opened = order
        super().open(order)

    def on_header(self, rank: int, incarnation: int, attempt: int, contribution: Contribution
                  ) -> tuple[RoundEvent, ...]:  # fmt: skip
        now = attempt if self.opened is None else max(attempt, self.opened.attempt)
        if contribution.attempt == attempt < now:
            contribution, attempt = attrs.evolve(contribution, attempt=now), now
        return super().on_header(rank, incarnation, attempt, contribution)
