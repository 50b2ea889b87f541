"""The door: who is admitted, and what a refused rank is told (protocol M-5, M-7, N-29).

Checked before any state changes: a refused Hello leaves every table as it was. A refusal names both values, what the
run has and what the rank brought, so that the line on the rank's terminal is enough to mend it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from .config import config_digest
from .errors import ConfigError
from .handshake import PROTOCOL_MAX
from .ledger import refused_hello
from .messages import Hello, Reject, RejectCode, Report, ResumeClaim
from .phases import RunPhase
from .recovery import forgot_life
from .sayable import sayable
from .schema import dataset_length

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .peer import Peer

__all__ = [
    "LARGEST_COUNT", "PROTOCOL", "closing", "may_follow", "misstamped", "other_versions", "refusal", "refused_claim",
]  # fmt: skip

PROTOCOL = PROTOCOL_MAX
"""What a Hello is written in: of the protocols that a prelude offers, the one that this version chooses (N-20)."""
LITTLE_ENDIAN = 0
LIBRARY = re.compile(r"torch \d+\.\d+")
WHOLE_LIBRARY = re.compile(r"torch \S+")
DEFAULT_MAX_RANKS = 4096
"""Seats of a run whose `max_ranks` is not set: a bound for a coordinator that somebody dials by mistake."""
LARGEST_COUNT = 2**63 - 1
"""Picks of a run, and whatever a claim counts: half of what such a field holds on the wire, so that what is counted on
from there has room. No run comes near."""
LARGEST_LIFE = 2**31 - 1
"""Likewise of the numbers that have 32 bits there."""
LIVES = ("generation", "incarnation", "attempt", "session_id")
"""The fields of a claim that have 32 bits."""


def _no(code: RejectCode, text: str, *, retry: bool = False) -> Reject:
    return Reject(code=int(code), text=sayable(text), retry=retry, after_s=1.0 if retry else 0.0)


def closing() -> Reject:
    """What everybody is told who comes to a run that ends, or is over (M-22, M-53)."""
    return _no(RejectCode.CLOSING, "the run is ending; wait for the next one", retry=True)


def refusal(co: Coordinator, hello: Hello) -> Reject | None:
    """Why this Hello is refused, or None. Changes nothing."""
    return _stage(co, hello) or _identity(co, hello) or _data(co, hello) or _seat(co, hello)


def refused_claim(co: Coordinator, hello: Hello) -> Reject | None:
    """Why a rank that wants to go on with its life is refused whatever it claims: it is another one than it was. The
    stage of the run is no reason, since it is part of the run already (M-42)."""
    return _identity(co, hello) or _data(co, hello)


def misstamped(co: Coordinator, report: Report, whom: tuple[int, int]) -> Reject | None:
    """What ends the session of a rank and incarnation (`whom`) that sends a report under a stamp of somebody else
    (N-6, N-7), or None. A driver asks before it hands the report over: the machine does not know over which link one
    came, so it would take it for the word of another rank, and end that one's session for it."""
    run_id = co.config.run_id
    if report.run_id != run_id:
        return _no(RejectCode.OTHER_RUN, f"a report is stamped with run {report.run_id.hex()}; this link is of run "
                   f"{run_id.hex()}")  # fmt: skip
    if (report.rank, report.incarnation) != whom:
        return _no(RejectCode.SEAT, f"a report is stamped {report.rank}.{report.incarnation}; this link is of "
                   f"{whom[0]}.{whom[1]} (rank.incarnation)")  # fmt: skip
    return None


def may_follow(co: Coordinator, hello: Hello, rank: int) -> bool:
    """Whether this Hello may take the seat: nobody has it, or it is the rank itself that comes anew, also one that has
    not read yet which life it was given. A life ends with a new Hello, but never at the wish of a stranger while its
    own link is up. While it is not, a process without a claim was started in its place; one that claims an earlier life
    was given up in favour of who has the seat now, and waits for none (M-42)."""
    peer, claim = co.peers.get(rank), hello.resume
    if peer is None or not peer.alive:
        return True
    if claim is None:
        return peer.detached
    itself = claim.incarnation in (peer.incarnation, peer.former)
    return itself or (peer.detached and claim.incarnation > peer.incarnation)  # the journal has lost that life (M-45)


def _stage(co: Coordinator, hello: Hello) -> Reject | None:
    """M-22: while forming, and from Training on if the run is elastic, until it ends. A frozen cohort takes back
    who was in it (M-45)."""
    if co.run.phase not in (RunPhase.FORMING, RunPhase.TRAINING) or co.stopping or co.save_issued:
        return closing()
    if co.run.phase == RunPhase.FORMING and not co.run.window_closed:
        return None
    if not co.config.elastic and not _is_of_cohort(co, hello):
        return _no(RejectCode.FROZEN, "the cohort is complete and elastic = False admits nobody later; start this "
                   "rank before the window closes")  # fmt: skip
    if co.run.phase == RunPhase.FORMING:
        return _no(RejectCode.BUSY, "the cohort is forming; a rank may join as soon as it trains", retry=True)
    return None


def _is_of_cohort(co: Coordinator, hello: Hello) -> bool:
    """M-45: it was in the cohort, and its life is over because the journal lost its end."""
    return forgot_life(co, hello) or (hello.resume is not None and co.lost_tail.excuses(hello.wanted_rank))


def _identity(co: Coordinator, hello: Hello) -> Reject | None:
    if hello.protocol != PROTOCOL:
        return _no(RejectCode.PROTOCOL, f"the run speaks protocol {PROTOCOL}, this rank {hello.protocol}; install the "
                   "same version of paceline everywhere")  # fmt: skip
    if hello.byte_order != LITTLE_ENDIAN:
        return _no(RejectCode.BYTE_ORDER, "tensors travel little-endian and this host is not; run this rank "
                   "on one that is")  # fmt: skip
    if co.config.averager not in hello.averagers:
        return _no(RejectCode.AVERAGER, f"the run averages by {co.config.averager!r}, this rank has "
                   f"{', '.join(hello.averagers) or 'none'}; install there the package that brings it")  # fmt: skip
    beyond = _beyond(hello.resume)
    if beyond is not None:
        return _no(RejectCode.SEAT, f"it claims {beyond}, and no life comes that far; start this rank anew")
    if hello.schema.hash() != hello.schema_hash:
        return _no(RejectCode.SCHEMA, "the schema does not match its own hash; install the same version everywhere")
    fault = hello.schema.fault()
    if fault is not None:
        return _no(RejectCode.SCHEMA, f"no run can average this model: {fault}; install the same version everywhere")
    size = sum(entry.nbytes for entry in hello.schema.entries)
    if size > co.config.max_model_bytes:
        return _no(RejectCode.SIZE, f"the model has {size} bytes, max_model_bytes is {co.config.max_model_bytes}; "
                   "set it higher at the coordinator if so large a model is meant")  # fmt: skip
    if co.schema is not None and hello.schema_hash != co.schema_hash:
        return _no(RejectCode.SCHEMA, f"another model: {co.schema.first_difference(hello.schema)}; build the same one "
                   "on every rank")  # fmt: skip
    refused = refused_hello(co, hello)
    return _collective(co, hello) if refused is None else _no(*refused)


def _beyond(claim: ResumeClaim | None) -> str | None:
    """The number of a claim that no rank can have, with its name, or None. What follows from one, such as the number of
    the next life, is sent to ranks: it must stay what can be sent."""
    for field in () if claim is None else attrs.fields(ResumeClaim):
        most, claimed = LARGEST_LIFE if field.name in LIVES else LARGEST_COUNT, getattr(claim, field.name)
        if claimed > most:
            return f"{field.name} {claimed}"
    return None


def _collective(co: Coordinator, hello: Hello) -> Reject | None:
    """M-5: one communicator spans devices of one vendor only, and both its ends have to speak the same library."""
    if not co.config.is_collective or not co.alive:
        return None
    first = co.peers[co.alive[0]]
    if vendors(first) != vendors(hello):
        return _no(RejectCode.VENDOR, f"rank {first.rank} has devices of {vendors(first)}, this rank of "
                   f"{vendors(hello)}; no collective spans both: average by 'star'")  # fmt: skip
    if library(first) != library(hello):
        return _no(RejectCode.VENDOR, f"rank {first.rank} runs {library(first)}, this rank {library(hello)}; a "
                   "collective needs the same on every rank: install the same version everywhere")  # fmt: skip
    return None


def vendors(rank: Hello | Peer) -> str:
    """The makers of a rank's devices, by the first word of their names."""
    return ", ".join(sorted({device.split(" ")[0] for device in rank.devices})) or "nobody"


def library(rank: Hello | Peer) -> str:
    """Major and minor version of the library that collectives run on, as the rank tells its runtime."""
    found = LIBRARY.search(rank.runtime)
    return rank.runtime if found is None else found.group()


def other_versions(co: Coordinator, hello: Hello) -> str | None:
    """N-29: another version of the package or of the library than the lowest rank has is no reason to refuse, since
    formats and protocol have numbers of their own, but worth a word: ranks may compute differently."""
    if not co.alive:
        return None
    first = co.peers[co.alive[0]]
    ours, theirs = ((rank.package, *WHOLE_LIBRARY.findall(rank.runtime)) for rank in (first, hello))
    if ours == theirs:
        return None
    return f"it runs {', '.join(theirs)}; rank {first.rank} runs {', '.join(ours)}: install the same everywhere"


def _data(co: Coordinator, hello: Hello) -> Reject | None:
    length = dataset_length(hello.dataset_signature)
    if length == 0:
        return _no(RejectCode.DATASET, "the data set is empty; give this rank the one of the others")
    if length * co.config.repeats > LARGEST_COUNT:
        return _no(RejectCode.DATASET, f"the data set has {length} samples, {co.config.repeats} times each; a run has "
                   f"at most {LARGEST_COUNT}; give this rank a data set that tells its length")  # fmt: skip
    if co.dataset is not None and hello.dataset_signature != co.dataset:
        ours = dataset_length(co.dataset)
        what = f"the run has {ours} samples, this rank {length}" if ours != length else "same length, other content"
        return _no(RejectCode.DATASET, f"another data set: {what}; give every rank the same one, in the same order")
    try:
        config = co.config.resolved(hello.wishes)
    except (ConfigError, TypeError) as error:
        return _no(RejectCode.CONFIG, str(error))
    differs = config.disagreement(hello.wishes)
    if differs is not None:
        return _no(RejectCode.CONFIG, f"another configuration: {differs}; say the same on every rank, or leave it open")
    if hello.config_digest != config_digest(hello.wishes):
        said, stated = hello.config_digest.hex()[:16], config_digest(hello.wishes).hex()[:16]
        return _no(RejectCode.CONFIG, f"the digest {said} is not that of what this rank states, {stated}; install the "
                   "same version everywhere")  # fmt: skip
    shortest, batch_size = length * config.repeats // config.epoch_splits, config.batch_size or 1
    if shortest < batch_size and (config.num_epochs or 0) > 0:
        return _no(RejectCode.CONFIG, f"an epoch of {shortest} samples is shorter than one batch of {batch_size}; take "
                   "a smaller batch_size, fewer epoch_splits, or more data (D-2)")  # fmt: skip
    return None


def _seat(co: Coordinator, hello: Hello) -> Reject | None:
    limit = co.config.max_ranks or co.config.target_ranks or DEFAULT_MAX_RANKS
    wanted = hello.wanted_rank
    follows = wanted is not None and may_follow(co, hello, wanted)
    replaces = wanted is not None and follows and wanted in co.alive
    if co.alive_count - replaces >= limit:
        return _no(RejectCode.FULL, f"all {limit} seats are taken; max_ranks sets their number", retry=True)
    if wanted is not None and wanted >= limit:
        return _no(RejectCode.SEAT, f"there is no rank {wanted} in a run of {limit} ranks; give a lower rank, or none")
    if wanted is not None and not follows and hello.resume is None:
        return _no(RejectCode.SEAT, f"rank {wanted} is taken already; start each rank once, or give no rank")
    return None
