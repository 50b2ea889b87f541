"""Averagers in place with one thing wrong each, made from the one of the guide."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from paceline.backends.averager import Capabilities
from paceline.backends.layout import Values, narrow, widen
from paceline.backends.star import StarAverager
from paceline.core.effects import AbortCollective, BuildSession, MakeSessionId, RunCollective, ShareState
from paceline.core.events import CollectiveDone, CollectiveFailed
from paceline.core.schema import EntryClass, Schema

Sound: Any = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "examples" / "plain_in_place.py"))["PlainInPlace"]
Ended = CollectiveDone | CollectiveFailed


def able(**claims: bool) -> Capabilities:
    """Its capabilities, with some of them changed."""
    return attrs.evolve(Sound.capabilities, **claims)


class CountsItsSessions(Sound):
    """The id of a session is its number."""

    def make_id(self, order: MakeSessionId) -> bytes:
        return str(order.session_id).encode()


class ForgetsTheAttempt(Sound):
    """Every call is the first attempt."""

    def run(self, order: RunCollective) -> Ended:
        return attrs.evolve(super().run(order), attempt=0)


class LetsObserversVote(Sound):
    """Who is inside has a step."""

    def run(self, order: RunCollective) -> Ended:
        return super().run(attrs.evolve(order, steps=max(1, order.steps)))


class WeighsBySteps(Sound):
    """Knows one exponent."""

    def __init__(self, schema: Schema, live: memoryview, *, gamma: float = 1.0) -> None:
        super().__init__(schema, live)


class WeighsBuffers(Sound):
    """The statistics of the fast rank dominate."""

    def average(self, movers: Any, into: memoryview) -> None:
        super().average(movers, into)
        steps = sum(count for count, _ in movers)
        for field in self.layout.fields:
            if field.entry.cls == EntryClass.BUFFER:
                where = slice(field.offset, field.offset + field.nbytes)
                parts = [widen(memoryview(flat)[where], field.entry.dtype) * (n / steps) for n, flat in movers]
                narrow(sum(parts).astype(parts[0].dtype), field.entry.dtype, into[where])  # type: ignore[union-attr]


class AveragesAllItFinds(Sound):
    """Counts the call in an entry that is the rank's own."""

    def run(self, order: RunCollective) -> Ended:
        self.live[-8] ^= 1
        return super().run(order)


class SumsFromItself(Sound):
    """Each rank begins its sum with its own part."""

    def average(self, movers: Any, into: memoryview) -> None:
        first = self.session.new_rank % len(movers)
        super().average([*movers[first:], *movers[:first]], into)


class DividesByNothing(Sound):
    """The mean of nobody is zero."""

    def run(self, order: RunCollective) -> Ended:
        ended = super().run(order)
        if isinstance(ended, CollectiveDone) and ended.total_steps == 0:
            self.live[: self.layout.nbytes] = bytes(self.layout.nbytes)
        return ended


class SharesWhatRides(Sound):
    """What no average carries no transfer carries either."""

    def share(self, order: ShareState) -> None:
        kept = bytes(self.live[self.layout.nbytes :])
        super().share(order)
        self.live[self.layout.nbytes :] = kept


class _LooksForItself(Sound):
    """Judges its values by `sound`, field by field."""

    def __init__(self, schema: Schema, live: memoryview, *, gamma: float = 1.0) -> None:
        super().__init__(schema, live, gamma=gamma)
        looks, layout = self, self.layout

        class judging:
            def __getattr__(self, name: str) -> Any:
                return getattr(layout, name)

            def finite(self, flat: memoryview) -> bool:
                return all(looks.sound(field, widen(flat[field.offset :][: field.nbytes], field.entry.dtype))
                           for field in layout.fields)  # fmt: skip

        self.layout = judging()

    def sound(self, field: Any, values: Values) -> bool:
        return bool(np.isfinite(values).all())


class TrustsItsValues(_LooksForItself):
    """Whatever is in memory will be a number."""

    def sound(self, field: Any, values: Values) -> bool:
        return True


class LooksForNaN(_LooksForItself):
    """An infinity is a number."""

    def sound(self, field: Any, values: Values) -> bool:
        return not bool(np.isnan(values).any())


class LooksAtParameters(_LooksForItself):
    """Buffers are nobody's business."""

    def sound(self, field: Any, values: Values) -> bool:
        return field.entry.cls != EntryClass.PARAM or super().sound(field, values)


class TrustsTheIdle(_LooksForItself):
    """Who took no step weighs nothing, so it does not matter what it holds: but nothing times NaN is NaN."""

    steps = 0

    def run(self, order: RunCollective) -> Ended:
        self.steps = order.steps
        return super().run(order)

    def sound(self, field: Any, values: Values) -> bool:
        return not self.steps or super().sound(field, values)

    def meet(self, what: Any, given: Any) -> Any:
        self.met = super().meet(what, given)
        return self.met

    def average(self, movers: Any, into: memoryview) -> None:
        super().average(movers, into)
        for field in self.layout.fields:
            where = slice(field.offset, field.offset + field.nbytes)
            sums = widen(memoryview(bytes(into[where])), field.entry.dtype)
            idle = [widen(memoryview(flat)[where], field.entry.dtype) for steps, _, flat in self.met if not steps]
            if idle and field.nbytes:
                with np.errstate(invalid="ignore"):
                    narrow(sums + 0 * np.add.reduce(idle), field.entry.dtype, into[where])


class CountsInFloat32(Sound):
    """Counts steps as it counts everything."""

    def run(self, order: RunCollective) -> Ended:
        ended = super().run(order)
        if isinstance(ended, CollectiveDone):
            ended = attrs.evolve(ended, total_steps=int(np.float32(ended.total_steps)))
        return ended


class SharesByPlace(Sound):
    """Rank 1 is the second of the session: true until rank 0 is gone."""

    def share(self, order: ShareState) -> None:
        gives = self.session.new_rank == order.source
        states = self.meet("share", bytes(self.live) if gives else None)
        if order.adopts:
            self.live[:] = next(state for state in states if state is not None)


class WaitsForNobody(Sound):
    """A session is whoever is there."""

    def build(self, order: BuildSession) -> None:
        alone = (order.members[order.new_rank],)
        super().build(BuildSession(order.session_id, order.uid + bytes([order.new_rank]), 0, 1, alone))


class TakesAnySession(Sound):
    """The session is the one that it is in."""

    def run(self, order: RunCollective) -> Ended:
        return super().run(attrs.evolve(order, session_id=self.session.session_id))


class MatchesByPosition(Sound):
    """The next call of all is the next call of each."""

    def meet(self, what: Any, given: Any) -> Any:
        return super().meet("next", given)


class TakesNothingBack(Sound):
    """What is averaged is averaged."""

    def run(self, order: RunCollective) -> Ended:
        return super().run(attrs.evolve(order, restore=False))


class LeavesHalfASum(Sound):
    """Scales its values before it knows whether anybody is there."""

    def run(self, order: RunCollective) -> Ended:
        ended = super().run(order)
        if isinstance(ended, CollectiveFailed):
            self.live[0] ^= 1
        return ended


class GivesUpForGood(Sound):
    """Claims that it can be aborted, and cannot go on afterwards."""

    def run(self, order: RunCollective) -> Ended:
        ended = super().run(order)
        return attrs.evolve(ended, retryable=False) if isinstance(ended, CollectiveFailed) else ended


class HearsOnlyInside(Sound):
    """Who is not in a call has nothing to be freed from. `asked` is how long the kit waits for who is then not free."""

    asked: ClassVar[dict[str, Any]] = {"patience_s": 0.5}
    inside = False

    def run(self, order: RunCollective) -> Ended:
        self.inside = True
        try:
            return super().run(order)
        finally:
            self.inside = False

    def abort(self, order: AbortCollective) -> None:
        if self.inside:
            super().abort(order)


class AddsWhoHasLeft(Sound):
    """Keeps the parts of the members that it has met."""

    def __init__(self, schema: Schema, live: memoryview, *, gamma: float = 1.0) -> None:
        super().__init__(schema, live, gamma=gamma)
        self.met: dict[int, Any] = {}

    def meet(self, what: Any, given: Any) -> Any:
        found = super().meet(what, given)
        if isinstance(what, str):
            return found
        self.met.update({rank: part for (rank, _), part in zip(self.session.members, found, strict=True)})
        return [self.met[rank] for rank in sorted(self.met)]


class HidesThatItIsInPlace(Sound):
    """Averages in place and does not claim it."""

    capabilities = able(in_place=False, needs_session=False)


class LiesThatItIsInPlace(StarAverager):
    """Claims to average in place, and wants everything shipped."""

    capabilities = able()

    def __init__(self, schema: Schema, live: memoryview, *, gamma: float = 1.0) -> None:
        super().__init__(schema, gamma=gamma)


class IsOfBothKinds(Sound):
    """Whoever wants may ship to it."""

    def on_header(self, *header: Any) -> tuple[()]:
        return ()


class HidesItsSession(Sound):
    """Needs a session and does not claim it."""

    capabilities = able(needs_session=False)


class NeedsASessionToReceive(StarAverager):
    """Ships, and claims that it needs a session."""

    capabilities = attrs.evolve(StarAverager.capabilities, needs_session=True)


class HidesItsAbort(Sound):
    """Can be aborted, and does not claim it."""

    capabilities = able(abortable=False)
