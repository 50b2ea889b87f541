"""A complete averager in some 150 lines, which keeps every contribution whole and sums when all are there.

docs/guides/write-an-averager.md explains it. The conformance kit says that it is right:

    cd docs/examples && paceline conform averager plain_averager:PlainAverager
"""

from contextlib import contextmanager

import numpy as np

from paceline.backends.averager import Capabilities
from paceline.backends.divergence import digest
from paceline.backends.layout import BLOCK_BYTES, FlatLayout, narrow, widen
from paceline.core.errors import LocalProtocolError, RemoteProtocolError
from paceline.core.events import RoundAborted, RoundProgress, RoundReduced
from paceline.core.messages import Outcome, RoundKind, RoundResult
from paceline.core.round import Round, RoundPhase, Verdict, mass
from paceline.core.schema import EntryClass


class PlainAverager:
    """Keeps every contribution whole, and sums when all are there."""

    name = "plain"
    capabilities = Capabilities(in_place=False, abortable=True, needs_session=False, devices=("cpu",))

    def __init__(self, schema, *, gamma=1.0, digest=True):
        self.gamma, self.wants_digest, self.schema_hash = gamma, digest, schema.hash()
        self.riding, self.whole = FlatLayout.riding(schema), FlatLayout.whole(schema)
        self.round = self.last = self.new = None  # last: of a finished cycle; new: of the one in hand
        self.shipped = {}

    # --- orders of the coordinator

    def open(self, opened):
        self.layout = self.whole if opened.key.kind == RoundKind.STATE else self.riding
        self.round = Round.open(opened, self.schema_hash, len(self.layout.blocks), self.layout.nbytes)
        self.new, self.shipped = None, {}

    def admit(self, admitted):
        opened = self.round.opened if self.round else None
        if opened and (opened.key, opened.attempt) == (admitted.key, admitted.attempt):
            self.round.admit(admitted.rank, admitted.steps)
        return ()

    def remove(self, removed):
        if self.round and self.round.opened.key == removed.key:
            self.round.remove(removed.rank)
        return ()

    def abort(self, aborted):
        if self.round and self.round.opened.key == aborted.key:
            self.round.abort("the coordinator gave it up")
            self.new = None

    def close(self, closed):
        if self.round and self.round.opened.key == closed.key:
            self.last, self.new, self.round = self.consensus, None, None

    # --- what the bulk lanes bring

    def ready_for(self, rank):
        return True  # there is room for everything; an averager of large models says no here

    def on_header(self, rank, incarnation, attempt, contribution):
        said = (contribution.generation, contribution.cycle, contribution.attempt, contribution.incarnation)
        key = self.round.opened.key if self.round else None
        if key is None or said != (key.generation, key.cycle, attempt, incarnation):
            return ()
        verdict = self.round.header(rank, incarnation, attempt, contribution)
        if verdict != Verdict.ACCEPTED:
            return ()
        self.shipped[rank] = memoryview(bytearray(contribution.bytes))
        return () if contribution.bytes else (RoundProgress(key, rank, 0, True),)

    def _number(self, block):
        """The number of the block that is due now; None for a block of another round."""
        if not self.round or block.key != self.round.opened.key:
            return None
        verdict, number = self.round.expected_block(block.rank, block.incarnation, block.attempt)
        if verdict == Verdict.VIOLATION:
            raise RemoteProtocolError("a block that no header announced (N-26)", rank=block.rank)
        return number if verdict == Verdict.ACCEPTED else None

    def place(self, block):
        if block.bytes > BLOCK_BYTES:
            raise RemoteProtocolError(f"a block of {block.bytes} bytes (N-25)", rank=block.rank)
        number = self._number(block)
        if number is None:
            return memoryview(bytearray(block.bytes))  # its bytes must leave the lane all the same
        if fault := self.layout.fault(self.layout.blocks[number], block):
            raise RemoteProtocolError(fault, rank=block.rank)
        return self.shipped[block.rank][block.offset : block.offset + block.bytes]

    def on_block(self, block):
        number = self._number(block)
        if number is None:
            return ()
        complete = number + 1 == len(self.layout.blocks)
        if complete and not self.layout.finite(self.shipped[block.rank]):
            self.round.nonfinite(block.rank)  # before the sum, so that nobody else is troubled
            return ()
        self.round.block(block.rank, block.incarnation, block.attempt, number)
        return (RoundProgress(block.key, block.rank, block.offset + block.bytes, complete),)

    # --- the end of a round

    @property
    def collected(self):
        return self.round is not None and self.round.phase == RoundPhase.REDUCING

    def reduce(self):
        if not self.collected:
            raise LocalProtocolError("nothing is collected; wait for `collected`")
        current, opened = self.round, self.round.opened
        movers = [rank for rank in current.accepted() if len(self.shipped[rank])]  # ascending
        if opened.key.kind == RoundKind.STATE:
            if not movers:
                current.abort("the source of the state is gone")
                return RoundAborted(opened.key, opened.attempt, current.cause)
            self.new = self.shipped[movers[0]]
        elif movers:
            self.new = self._mean(movers)
            if not self.riding.finite(self.new):  # the sum overflowed
                current.overflowed()
                self.new = None
        current.reduced(realized=self.new is not None)
        name = digest(self.new) if self.new is not None and self.wants_digest else None
        return RoundReduced(opened.key, opened.attempt, current.accepted(), current.refused(), current.realized, name)

    def _mean(self, movers):
        """(Σ m_r T_r) / (Σ m_r), entry by entry, in float32 or float64, with one division and one cast (R-5 to R-7)."""
        made = memoryview(bytearray(self.riding.nbytes))
        for field in self.riding.fields:
            where, total, masses = slice(field.offset, field.offset + field.nbytes), 0.0, 0.0
            for rank in movers:
                weight = mass(self.round.steps(rank), self.gamma) if field.entry.cls == EntryClass.PARAM else 1.0
                values = widen(self.shipped[rank][where], field.entry.dtype)
                with np.errstate(over="ignore"):
                    total = total + values * values.dtype.type(weight)
                masses += weight
            if field.nbytes:
                with np.errstate(invalid="ignore"):
                    narrow(total / total.dtype.type(masses), field.entry.dtype, made[where])
        return made

    def receivers(self, key, attempt):
        scattering = self.round is not None and self.round.phase == RoundPhase.SCATTERING
        return self.round.receivers() if scattering and (key, attempt) == (
            self.round.opened.key, self.round.opened.attempt) else ()

    def scatter(self, rank):
        current = self.round
        if current is None or rank not in self.receivers(current.opened.key, current.opened.attempt):
            raise LocalProtocolError(f"rank {rank} has nothing to receive; reduce first (R-2)")
        outcome, member, key = current.outcome(rank), current.members.get(rank), current.opened.key
        stays = outcome == Outcome.UNREALIZED or (member is not None and key.kind == RoundKind.STATE)
        flat = None if stays else self.new if key.kind == RoundKind.STATE else self.consensus
        result = RoundResult(outcome=outcome, total_steps=current.total_steps(), bytes=len(flat) if flat else 0,
                             refusal=member.refusal if member else None)
        life = (member or current.observers[rank]).incarnation
        blocks = self.layout.cut(flat, key, current.opened.attempt, rank, life) if flat else ()
        return result, list(blocks)

    def on_scattered(self, rank):
        if self.round is not None:
            self.round.staged(rank)

    def restore(self, flat):
        self.last = memoryview(bytearray(flat))  # a rank brings it back after a restart (M-44)

    @property
    def consensus(self):
        newest = self.last if self.new is None else self.new
        return None if newest is None else newest[: self.riding.nbytes]

    @contextmanager
    def reading(self):
        if self.consensus is None:
            raise LocalProtocolError("there is no consensus yet")
        yield self.consensus  # each one has memory of its own, so it stays as long as somebody holds it
