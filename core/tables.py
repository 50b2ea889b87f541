"""The transition tables: what each machine does on each event, in each phase (protocol sections 4.3, 5, 11.1).

Four flat machines, coupled by the pass of the coordinator (C-3) instead of by nesting. Each table has a module of its
own, with the reasons above its rows: `table_worker.py`, `table_peer.py`, `table_cycle.py`, `table_run.py`.

- PEER, one per incarnation at the coordinator: is a report of this rank evidence at all? Its answer for `SyncAck` and
  `SnapshotReady` is only half of the answer: an accepted one goes on to CYCLE, which knows the cycle.
- CYCLE, one per coordinator: Idle, Pending, Stalled. `Judge` is the step of the pass in which a gate is judged; the
  guards `gate_complete` (C-12) and `fires` (G-1) read counts only, never time (G-2).
- RUN, one per coordinator: Forming, Training, ShuttingDown, Stopped.
- WORKER, one per rank: the message x state matrix of section 5, plus the events of the training process.

Rules of the house. Everything stale is FENCED before anything else is asked. REFUSED and VIOLATION differ in what
they cost: the first is counted, the second ends that one session. An event that cannot matter is IGNOREd in writing:
no cell is empty, and the lint proves it. Guards and effects are names of methods of `worker_orders.py`,
`peer.py`, `cycle.py` and `run.py`. Effects run before the phase flips (C-13).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .engine import Engine, Table, build_reference, compile_table
from .errors import ConfigError
from .table_cycle import CYCLE
from .table_peer import PEER
from .table_run import RUN
from .table_worker import WORKER

__all__ = ["CYCLE", "PEER", "RUN", "TABLES", "WORKER", "engine_for", "in_force", "machine_class"]

TABLES: dict[str, Table] = {table.name: table for table in (WORKER, PEER, CYCLE, RUN)}
_in_force: dict[str, Table] = dict(TABLES)
_engines: dict[tuple[str, str], Engine] = {}


def machine_class(name: str) -> type:
    """The class whose methods the rows of a table name. Imported late: the machines import this module."""
    if name == "worker":
        from .worker import Worker

        return Worker
    if name == "peer":
        from .peer import Peer

        return Peer
    if name == "cycle":
        from .cycle import Cycle

        return Cycle
    from .run import Run

    return Run


def engine_for(name: str, engine: str = "compiled") -> Engine:
    """The engine that runs a table: "compiled" (one function per cell) or "transitions" (the reference semantics).
    There is one of each for all machines, so what it counts in `taken` is of all of them."""
    if engine not in ("compiled", "transitions"):
        raise ConfigError(f"engine = {engine!r} is not allowed: 'compiled' or 'transitions'")
    found = _engines.get((name, engine))
    if found is None:
        build = compile_table if engine == "compiled" else build_reference
        found = _engines[name, engine] = build(_in_force[name], machine_class(name), "phase")
    return found


@contextmanager
def in_force(table: Table) -> Iterator[None]:
    """Inside, machines that are made run this table in place of the one of its name, on either engine.

    Machines that were made before keep the engine they have. This is how a damaged table is put to the tests
    (mutation.py); `TABLES` goes on holding what is written. Raises InvariantError, with nothing changed, for a name
    in the table that means nothing.
    """
    before = _in_force[table.name]
    engines = {key: engine for key, engine in _engines.items() if key[0] == table.name}
    compiled = compile_table(table, machine_class(table.name), "phase")
    for key in engines:
        del _engines[key]
    _in_force[table.name] = table
    _engines[table.name, "compiled"] = compiled
    try:
        yield
    finally:
        for kind in ("compiled", "transitions"):
            _engines.pop((table.name, kind), None)
        _in_force[table.name] = before
        _engines.update(engines)
