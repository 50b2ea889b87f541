"""Many steps as one action: what a rank trains between two things that happen to it (`Pace.stride`).

A rank that trains and hears nothing has nothing to decide, so its steps need no turn of the clock each. A stride is a
number of steps, each as long as the others, that ends when its last step does or when something happens to its rank.
Then its worker takes the steps that are over by that time, one event each, and all their reports leave together.

    step   |----|----|----|----|----|----|----|----|
    comes            x                                a message, a heartbeat that is due, a fault
    steps       2    ^    1    ^       5              told: two before it, then the one in which it came, then the rest

So a rank is where it would be step by step: it reads a message at the end of the step in which that came (W-3), counts
in a heartbeat what it has trained by then, and takes the steps before its death to nobody. Coarser is only what the
coordinator sees: it learns of the steps of a stride at the end of it.
"""

from __future__ import annotations

from ..values import state

__all__ = ["ELSEWHERE", "Stride", "Strides"]

ELSEWHERE = frozenset({"report", "upload", "failure", "join", "step"})
"""What does not happen at the process of that number, but at the other end of its lanes or at a seat; and the steps."""


@state
class Stride:
    """From second `begin` on, `left` steps of `each` seconds."""

    begin: float
    each: float
    left: int

    @property
    def end(self) -> float:
        """When its last step is over."""
        return self.begin + self.each * self.left

    def over_by(self, now: float) -> int:
        """The steps that are over; the rest is the stride from here on."""
        over = int((now - self.begin) / self.each) if self.each else self.left
        if over > self.left:
            over = self.left
        self.begin, self.left = self.begin + over * self.each, self.left - over
        return over


class Strides(dict[int, Stride]):
    """The strides that are under way, by the number of their process."""

    def begin(self, number: int, now: float, each: float, steps: int) -> float:
        """A stride begins; gives the second of its end."""
        self[number] = made = Stride(now, each, steps if steps > 1 else 1)
        return made.end

    def ends_at(self, number: int, second: float) -> bool:
        """Whether that is when the stride of the process ends: one that was shortened or called off ends elsewhere."""
        return number in self and self[number].end == second

    def finish(self, number: int) -> int:
        """It is over: the steps that nobody was told of yet."""
        return self.pop(number).left
