"""The state of a machine as one plain value: hashable, comparable, the same in every process.

    snapshot = coordinator.snapshot()
    twin = Coordinator.restore(config, snapshot)    # from here on both answer every event alike (I25, N-13)

A snapshot is complete: whatever a machine has decided, counted or promised is in it, also what it was not yet asked for
with `take_ready`. Outside stay what the caller gives again (config or settings, the engine) and policies of the
caller's own; of those only their names are kept, and their history, by their own `saved`. A machine with policies of
other names is not the one the snapshot was made of, and is refused. Two snapshots are equal if and only if the machines
are.

To make one is to read: nothing is told and nothing changes, or a machine that is looked at would not do what its twin
does. So what a policy raises when it is asked for its history is no alert. It stands in the snapshot in the place of
that history (`unkept`), and a run that goes on from there tells it, because only that run begins without it (C-13).

It consists of nested tuples of None, truth values, numbers and text. `thawed` knows how to read it after a way through
JSON too, which makes lists of the tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from .cadence import Balancer
from .config import WISHABLE
from .errors import CheckpointError
from .plain import DAMAGE, damaged, decoder, encoder
from .policy_choice import KNOBS, names_of

if TYPE_CHECKING:
    from .coordinator import Coordinator
    from .worker import Worker

__all__ = [
    "FORMAT", "freeze", "of_coordinator", "of_worker", "restore_coordinator", "restore_worker", "thawed", "unkept",
]  # fmt: skip

FORMAT = 3
"""Version of a snapshot. It is raised when the same fields begin to mean something else; other fields are noticed
without it, because every field stands in a snapshot by its name."""

COORDINATOR_PARTS = 6
"""Run, wishes, history of the guard, state, names of the policies, what they raised in place of a history."""
ARRAY, OBJECT = "[", "{"
GIVEN_TO_COORDINATOR = frozenset({
    "config", "cycle_engine", "guard", "handling", "joint", "peer_engine", "policies", "run_engine",
})  # fmt: skip
GIVEN_TO_WORKER = frozenset({"engine", "settings"})


def _opened(frozen: Any) -> Any:
    if type(frozen) is not tuple and type(frozen) is not list:
        return frozen
    if frozen and frozen[0] == ARRAY:
        return frozen[1:]
    if frozen and frozen[0] == OBJECT:
        return dict(frozen[1:])
    raise CheckpointError("this snapshot is damaged: a part of it is neither an array nor an object")


freeze = encoder(lambda items: (ARRAY, *items), lambda pairs: (OBJECT, *pairs))
"""Anything that `plain.encode` takes, as nested tuples."""
thawed = decoder(_opened)
"""What `freeze` was given. Raises `CheckpointError`."""


# --- coordinator -----------------------------------------------------------------------------------------------------


def of_coordinator(co: Coordinator) -> tuple[Any, ...]:
    """See `Coordinator.snapshot`."""
    wishes = tuple((knob, getattr(co.config, knob)) for knob in WISHABLE)
    raised: dict[str, str] = {}
    guard = freeze(_history("guard.saved", co.guard.saved, raised))
    meta = None if co.meta is None else _history("meta.saved", co.meta.saved, raised)
    kept = {"balancer": _balancer(co, raised), "meta": meta}
    names = [name for name in co.__slots__ if name not in GIVEN_TO_COORDINATOR]
    state = tuple((name, freeze(kept[name] if name in kept else getattr(co, name))) for name in names)
    policies = tuple(names_of(co).items())
    return ("coordinator", FORMAT, co.config.run_id.hex(), wishes, guard, state, policies, tuple(raised.items()))


def unkept(snapshot: Iterable[Any]) -> dict[str, str]:
    """The policies whose history is not in the snapshot of a coordinator, by the method that could not say it, and what
    that raised. Raises `CheckpointError`."""
    with _only_checkpoint_errors():
        *_, raised = _parts(snapshot, "coordinator", COORDINATOR_PARTS)
        return {str(method): str(text) for method, text in raised}


def _history(method: str, ask: Callable[[], Any], raised: dict[str, str]) -> Any:
    """What a policy says of itself; it may be the embedder's, and raise, or say what is no plain data."""
    try:
        said = ask()
        freeze(said)
    except Exception as error:
        raised[method] = f"{type(error).__name__}: {error}"
        return None
    return said


def restore_coordinator(co: Coordinator, snapshot: Iterable[Any]) -> None:
    """Put a snapshot into a coordinator that was just made from the same config. Raises `CheckpointError`."""
    with _only_checkpoint_errors():
        _restore_coordinator(co, snapshot)


def _restore_coordinator(co: Coordinator, snapshot: Iterable[Any]) -> None:
    run_id, wishes, guard, state, policies, _ = _parts(snapshot, "coordinator", COORDINATOR_PARTS)
    _same("run_id", run_id, co.config.run_id.hex())
    _same_policies(dict(policies), co)
    for knob, value in wishes:
        if getattr(co.config, knob) is not None:
            _same(knob, value, getattr(co.config, knob))
    co.config = attrs.evolve(co.config, **dict(wishes))
    meta: Any = co.meta
    _put(co, [name for name in co.__slots__ if name not in GIVEN_TO_COORDINATOR], state, co)
    history = thawed(guard)
    if history is not None and not co.guard.restore(history):
        raise CheckpointError(f"this snapshot holds the history of another guard than {type(co.guard).__name__}")
    if isinstance(co.balancer, dict):
        _rebuild_balancer(co, co.balancer)
    history, co.meta = co.meta, meta
    if history is not None and (meta is None or not meta.restore(history)):
        kind = type(meta).__name__
        raise CheckpointError(f"this snapshot holds the history of another meta-controller than {kind}")


def _same_policies(kept: Mapping[str, str], co: Coordinator) -> None:
    """Other policies would decide otherwise from here on, and nobody would be told (N-13)."""
    here = names_of(co)
    for kind, name in kept.items():
        if here[kind] != name:
            remedy = f"the knob {KNOBS[kind]}, or Policies({kind}=...) in a program"
            raise CheckpointError(f"{kind}: this run has {name}, not {here[kind]}; give it the one it had, by {remedy}")


def _balancer(co: Coordinator, raised: dict[str, str]) -> Any:
    """The balancer itself if it is the one that ships; of another one what it saves of itself, as of a guard."""
    balancer = co.balancer
    if type(balancer) is Balancer:
        return balancer
    return {"ranks": list(balancer.ranks), "saved": _history("cadence.saved", balancer.saved, raised)}


def _rebuild_balancer(co: Coordinator, kept: Mapping[str, Any]) -> None:
    from .gates import cadence_of

    co.balancer = cadence_of(co, kept["ranks"])
    if kept["saved"] is not None and not co.balancer.restore(kept["saved"]):
        raise CheckpointError(f"this snapshot holds the state of another balancer than {type(co.balancer).__name__}")


# --- worker ----------------------------------------------------------------------------------------------------------


def of_worker(worker: Worker) -> tuple[Any, ...]:
    """See `Worker.snapshot`."""
    state = tuple((name, freeze(getattr(worker, name))) for name in _worker_fields(worker))
    return ("worker", FORMAT, worker.settings.run_id.hex(), _life(worker), state)


def restore_worker(worker: Worker, snapshot: Iterable[Any]) -> None:
    """Put a snapshot into a worker that was just made from the same settings. Raises `CheckpointError`."""
    with _only_checkpoint_errors():
        run_id, life, state = _parts(snapshot, "worker", 3)
        _same("run_id", run_id, worker.settings.run_id.hex())
        _same("generation, rank and incarnation", tuple(life), _life(worker))
        _put(worker, _worker_fields(worker), state, worker)


def _life(worker: Worker) -> tuple[int, int, int]:
    return worker.settings.generation, worker.settings.rank, worker.settings.incarnation


def _worker_fields(worker: Worker) -> list[str]:
    return [field.name for field in attrs.fields(type(worker)) if field.name not in GIVEN_TO_WORKER]


# --- both ------------------------------------------------------------------------------------------------------------


@contextmanager
def _only_checkpoint_errors() -> Iterator[None]:
    """A file can hold anything: whatever its parts trip over is damage of the file, not a bug of the reader."""
    try:
        yield
    except DAMAGE as failure:
        raise damaged("snapshot", failure) from failure


def _parts(snapshot: Iterable[Any], machine: str, parts: int) -> list[Any]:
    if not isinstance(snapshot, Iterable):
        raise CheckpointError(f"this is no snapshot of a {machine}, but a {type(snapshot).__name__}")
    head, *rest = list(snapshot) or [None]
    if head != machine or len(rest) != parts + 1:
        raise CheckpointError(f"this is no snapshot of a {machine}")
    if rest[0] != FORMAT:
        raise CheckpointError(f"this snapshot has format {rest[0]}, this version of paceline reads {FORMAT}")
    return rest[1:]


def _same(what: str, kept: Any, given: Any) -> None:
    if kept != given:
        raise CheckpointError(f"{what}: the snapshot has {kept!r}, this machine {given!r}")


def _put(machine: Any, names: list[str], state: Iterable[Any], owner: Any) -> None:
    kept = {name: thawed(frozen, owner) for name, frozen in state}
    if sorted(kept) != sorted(names):
        differs = sorted(kept.keys() ^ set(names))
        raise CheckpointError(f"this snapshot is of another version of paceline: {', '.join(differs)} differ")
    for name in names:
        setattr(machine, name, kept[name])
