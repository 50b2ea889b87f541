"""A coordinator that remembers: what an event leads to is worked out once for each state of the coordinator.

`Recalled` stands in a world where the coordinator stands. It is the number of a state (`Drawers.coordinators`), and the
production machine is asked only about events that it was never given in that state: `Coordinator.handle` is pure, so
the same event in the same state at the same second always leads to the same effects and the same state after it. Who
reads its fields reads those of a machine that is in this state, or in one that differs from it in nothing but notes
that nobody decides by (`forget.py`); to write them nobody may.

A state after an event is taken down when the effects have been performed, since only then it is known which messages
could not be sent, and their tokens are not forgotten (N-10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..coordinator import Coordinator
from ..events import SendFailed
from .fingerprint import Interned

if TYPE_CHECKING:
    from .drawers import Drawers

__all__ = ["Recalled"]

Token = tuple[int, int, int]
Tokens = frozenset[Token]
Turn = tuple[int, int, float]
"""A state, an event, a second."""


class Recalled:
    """See the module. `drawers` hold the states, and whose world this is the coordinator of. `asked` counts the events
    that a machine was given."""

    def __init__(self, drawers: Drawers) -> None:
        self.drawers = drawers
        self.state = -1
        self.asked = 0
        self._events = Interned()
        self._ready: dict[Turn, tuple[Any, int]] = {}
        self._after: dict[tuple[Turn, Tokens], int] = {}
        self._turn: Turn | None = None
        self._event: Any = None
        self._known: tuple[Any, int] | None = None
        self._own: Coordinator | None = None
        self._asked_for: Callable[[], object] = bool
        self._owed: Any = None

    def begin(self, state: int, asked_for: Callable[[], object]) -> None:
        """The coordinator is in this state. `asked_for` is called whenever something is asked of it."""
        self.state, self._turn, self._own, self._asked_for = state, None, None, asked_for

    def __getattr__(self, name: str) -> Any:
        self._asked_for()
        return getattr(self.drawers.machines.of(self.state) if self._own is None else self._own, name)

    def handle(self, event: Any, now: float) -> None:
        """See `Coordinator.handle`."""
        self._asked_for()
        self.settle()
        self._turn, self._event = (self.state, self._events.number(event), now), event
        self._known = self._ready.get(self._turn)
        if self._known is None:
            self._owed = self._work_out(self._turn, event)

    @property
    def knows(self) -> bool:
        """What the event that was handled last leads to was worked out, and judged, before."""
        return self._known is not None

    def take_ready(self) -> Any:
        """See `Coordinator.take_ready`. What is known was judged when it was worked out, so until here the fields are
        those before the event: what came after it is kept without notes, and would look as if these had been lost."""
        if self._known is not None:
            self._owed, self.state = self._known
            self._own = None
        return self._owed

    def settle(self) -> int:
        """The state after the last event, of which all effects have been performed; its number."""
        if self._turn is not None:
            turn, self._turn = self._turn, None
            unsent = self.drawers.unsent()
            key = turn, unsent
            found = self._after.get(key)
            if found is None:
                if self._own is None:
                    self._work_out(turn, self._event)
                assert self._own is not None
                unsent |= self._unsent_before(turn[0])
                found = self._after[key] = self.drawers.coordinator_as(self._own, unsent)
                self._ready.setdefault(turn, (self._owed, found))
            self.state = found
        return self.state

    def _unsent_before(self, state: int) -> set[Token]:
        """Of the messages that failed before this event it still holds all tokens, and no others."""
        held = {(p.rank, p.incarnation, n) for p in self.drawers.machines.of(state).peers.values() for n in p.tokens}
        return held - {self._event.token} if isinstance(self._event, SendFailed) else held

    def end(self) -> int:
        """The same, and the machine at hand is given up."""
        state = self.settle()
        self._own = None
        return state

    def _work_out(self, turn: Turn, event: Any) -> Any:
        """Give the event to a machine of our own; its effects."""
        self.asked += 1
        if self._own is None:
            self._own = self.drawers.restored(turn[0])
        self._own.handle(event, turn[2])
        return self._own.take_ready()
