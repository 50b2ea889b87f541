"""Roles: which rank calls the callbacks of the user (protocol section 11.6, M-33 to M-35).

Three things happen once for the whole cohort: the callback at the start of an epoch, evaluation, and the checkpoint
callback. Each has one holder. The fastest rank is the natural one, because time spent in a callback costs it least; but
who is fastest is known only after the first calibration, and a callback that keeps state must not wander afterwards.
So a role is given provisionally at the start, anew at the first calibration, and then stays until its holder ends or
has kept it waiting for too long (K-17).

Only a rank whose script brought a callback can hold its role. A knob that pins the roles to a rank is different: it
means that rank and no other. When it dies, epoch callback and evaluation stay with it and are reported as unserved,
and only the checkpoint, without which a run is lost, falls to the lowest voter (M-35).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from . import messages as m
from .effects import Alert, Emit
from .policies import readings
from .values import state

if TYPE_CHECKING:
    from .coordinator import Coordinator

__all__ = ["CHECKPOINT", "EPOCH", "EVALUATE", "ROLES", "Roles"]

EPOCH, EVALUATE, CHECKPOINT = "epoch", "evaluate", "checkpoint"
ROLES = (EPOCH, EVALUATE, CHECKPOINT)
"""The roles, under the names by which a Hello announces its callbacks."""

@state
class Roles:
    """Who holds what. `taken` are the ranks from which a role was taken by its limit (K-17), `proven` says that a
    checkpoint has succeeded, which pins its role (K-9)."""

    co: Coordinator
    holders: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(ROLES, m.NO_RANK))
    taken: dict[str, tuple[int, ...]] = attrs.field(factory=lambda: dict.fromkeys(ROLES, ()))
    assigned: bool = False
    calibrated: bool = False
    proven: bool = False

    # --- reading -------------------------------------------------------------------------------------------------

    def holder(self, role: str) -> int:
        """The rank that holds a role, NO_RANK if nobody does."""
        return self.holders[role]

    def exists(self, role: str) -> bool:
        """Whether some rank of the cohort brought this callback."""
        return any(role in self.co.peers[rank].callbacks for rank in self.co.alive)

    def served(self, role: str) -> bool:
        """Whether the holder can be asked. A pinned one need not be there, or may lack the callback (M-35); asked for a
        checkpoint, the latter says so itself (K-9)."""
        rank = self.holders[role]
        if rank not in self.co.voters or not self.co.peers[rank].reachable:
            return False
        return role == CHECKPOINT or role in self.co.peers[rank].callbacks

    # --- changes -------------------------------------------------------------------------------------------------

    def assign(self) -> None:
        """Training begins: everyone is a voter, nobody has been measured (M-33)."""
        self.assigned = True
        for role in ROLES:
            self._give(role, self._elect(role))

    def calibrate(self) -> None:
        """The first calibration: from here on "fastest" means something (M-34)."""
        if self.calibrated or not self.co.balancer.calibrated:
            return
        self.calibrated = True
        for role in ROLES:
            if not (role == CHECKPOINT and self.proven):
                self._give(role, self._elect(role))

    def gone(self, rank: int) -> None:
        """A rank has ended: its roles are given anew (M-34), or stay unserved (M-35)."""
        for role in ROLES:
            self.taken[role] = tuple(r for r in self.taken[role] if r != rank)
            if self.assigned and self.holders[role] == rank:
                self.proven = self.proven and role != CHECKPOINT
                self._give(role, self._elect(role))
                if self.holders[role] == rank and self.exists(role):
                    self.co.emit(Alert("unserved_role", role, f"rank {rank} held it and is gone; it is pinned there"))

    def promoted(self, rank: int) -> None:
        """A rank became a voter in the middle of a run: a pin on it holds again (M-35), and it learns who calls the
        epoch callback, itself too: a role that has stayed with it while it was dead has not changed, so nobody else is
        told, and its new life knows nothing of it."""
        if not self.assigned:
            return
        before = self.holders[EPOCH]
        if self._pin() == rank:
            for role in ROLES:
                self._give(role, self._elect(role))
        if self.holders[EPOCH] == before != m.NO_RANK:
            self.co.tell((rank,), m.SetEpochCallbackRole, holder=before)

    def take_away(self, role: str) -> None:
        """Its holder let the role limit pass (K-17): somebody else, or nobody."""
        self.taken[role] = (*self.taken[role], self.holders[role])
        self.pass_on(role, ())

    def pass_on(self, role: str, tried: tuple[int, ...]) -> int:
        """To the next voter that has not been tried (K-9); gives it, NO_RANK if there is none."""
        self._give(role, self._elect(role, tried))
        return self.holders[role]

    # --- election ------------------------------------------------------------------------------------------------

    def _pin(self) -> int | None:
        """The rank that the knob names, clamped to the world (M-33)."""
        policy = self.co.config.role_policy
        return None if isinstance(policy, str) else min(policy, max(self.co.seats, default=0))

    def _elect(self, role: str, tried: tuple[int, ...] = ()) -> int:
        """M-33: the pinned rank; else the fastest voter, before the first calibration the lowest; ties lowest."""
        if not self.exists(role):
            return m.NO_RANK
        out = (*tried, *self.taken[role])
        able = [r for r in self.co.voters if role in self.co.peers[r].callbacks and r not in out]
        pin = self._pin()
        if pin is not None and pin not in out and (role != CHECKPOINT or pin in self.co.voters):
            return pin
        if not able:
            return m.NO_RANK
        if pin is not None or not self.calibrated:
            return able[0]
        measured = [(ms, rank) for ms, rank in zip(readings(self.co, able), able, strict=True) if ms > 0]
        return min(measured)[1] if measured else able[0]

    def _give(self, role: str, rank: int) -> None:
        """Told only when it has changed (M-34)."""
        before, self.holders[role] = self.holders[role], rank
        if before == rank:
            return
        self.co.emit(Emit("RoleChanged", {"role": role, "from": _name(before), "to": _name(rank)}))
        if role == EPOCH:
            self.co.tell(self.co.alive, m.SetEpochCallbackRole, holder=rank)


def _name(rank: int) -> int | None:
    return None if rank == m.NO_RANK else rank
