"""The transition tables: what each machine does on each event, in each phase (protocol sections 4.3, 5, 11.1).

Four flat machines, coupled by joint rows instead of by nesting. Each table has a module of its own, with the reasons
above its rows: `table_worker.py`, `table_peer.py`, `table_cycle.py`, `table_run.py`.

- PEER, one per incarnation at the coordinator: is a report of this rank evidence at all? Its answer for `SyncAck` and
  `SnapshotReady` is only half of the answer: an accepted one goes on to CYCLE, which knows the cycle.
- CYCLE, one per coordinator: Idle, Pending, Stalled. `Judge` is the step of the pass in which a gate is judged; the
  guards `gate_complete` (C-12) and `fires` (G-1) read counts only, never time (G-2).
- RUN, one per coordinator: Forming, Training, ShuttingDown, Stopped.
- WORKER, one per rank: the message x state matrix of section 5, plus the events of the training process.
- JOINT, one per coordinator: what run, cycle and peers mean for each other, in the order of C-3, to the fixed point.
  It asks for their phases and has none of its own, so it is no machine, and a table of another kind (joint.py).

Rules of the house. Everything stale is FENCED before anything else is asked. REFUSED and VIOLATION differ in what
they cost: the first is counted, the second ends that one session. An event that cannot matter is IGNOREd in writing:
no cell is empty, and the lint proves it. Guards and effects are names of methods of `worker_orders.py`,
`peer.py`, `cycle.py` and `run.py`. Effects run before the phase flips (C-13).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .engine import Engine, Table, build_reference, compile_table
from .errors import ConfigError
from .joint import JointEngine, JointTable, Parts, compile_joint, walk_joint
from .table_cycle import CYCLE
from .table_joint import JOINT
from .table_peer import PEER
from .table_run import RUN
from .table_worker import WORKER

__all__ = [
    "CYCLE", "EVERY_TABLE", "JOINT", "PEER", "RUN", "TABLES", "WORKER", "engine_for", "in_force", "joint_for",
    "joint_parts", "lint_of_joint", "machine_class", "rows_in_words",
]  # fmt: skip

TABLES: dict[str, Table] = {table.name: table for table in (WORKER, PEER, CYCLE, RUN)}
EVERY_TABLE: Mapping[str, Table | JointTable] = {**TABLES, JOINT.name: JOINT}
_in_force: dict[str, Table | JointTable] = dict(EVERY_TABLE)
_engines: dict[tuple[str, str], Any] = {}


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
    found: Engine = _engine(name, engine)
    return found


def joint_for(engine: str = "compiled") -> JointEngine:
    """The engine that runs the joint table, of the kinds of `engine_for`; "transitions" has no word for it, so there
    the rows are read one by one."""
    found: JointEngine = _engine(JOINT.name, engine)
    return found


def _engine(name: str, engine: str) -> Any:
    if engine not in ("compiled", "transitions"):
        raise ConfigError(f"engine = {engine!r} is not allowed: 'compiled' or 'transitions'")
    found = _engines.get((name, engine))
    if found is None:
        found = _engines[name, engine] = _built(_in_force[name], engine)
    return found


def _built(table: Table | JointTable, engine: str) -> Engine | JointEngine:
    if isinstance(table, JointTable):
        couple = compile_joint if engine == "compiled" else walk_joint
        return couple(table, joint_parts())
    build = compile_table if engine == "compiled" else build_reference
    return build(table, machine_class(table.name), "phase")


@contextmanager
def in_force(table: Table | JointTable) -> Iterator[None]:
    """Inside, machines that are made run this table in place of the one of its name, on either engine.

    Machines that were made before keep the engine they have. This is how a damaged table is put to the tests
    (mutation.py); `TABLES` goes on holding what is written. Raises InvariantError, with nothing changed, for a name
    in the table that means nothing.
    """
    before = _in_force[table.name]
    engines = {key: engine for key, engine in _engines.items() if key[0] == table.name}
    compiled = _built(table, "compiled")
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


# --- the joint table -------------------------------------------------------------------------------------------------


@functools.cache
def joint_parts() -> Parts:
    """What the names in the joint table are of. Imported late, as the machines are."""
    from . import dump, gates, ladder, membership
    from .actions import Actions
    from .coordinator import Coordinator
    from .cycle import Cycle
    from .dispatch.desk import Desk
    from .joining import Joins
    from .lost_tail import LostTail
    from .peer import Peer
    from .run import Run
    from .sessions import Sessions

    return {
        "": Coordinator, "run": Run, "cycle": Cycle, "peer": Peer, "desk": Desk, "actions": Actions,
        "sessions": Sessions, "joins": Joins, "lost_tail": LostTail, "dump": dump, "gates": gates, "ladder": ladder,
        "membership": membership,
    }  # fmt: skip


def lint_of_joint(table: JointTable) -> list[str]:
    """What is wrong with a joint table over the machines of a coordinator (`lint_joint`)."""
    from .joint_page import lint_joint

    return lint_joint(table, joint_parts(), TABLES)


def rows_in_words(tables: Mapping[str, Table | JointTable] = EVERY_TABLE) -> dict[str, list[tuple[str, str]]]:
    """Of each table each row in one line, with its kind and its rules."""
    from .diagram import in_words
    from .joint_page import joint_in_words

    return {
        name: [(joint_in_words(row), row.rule) for row in table.rows] if isinstance(table, JointTable)
        else [(in_words(row), f"{row.kind.name.lower()}, {row.rule}") for row in table.rows]
        for name, table in tables.items()
    }  # fmt: skip
