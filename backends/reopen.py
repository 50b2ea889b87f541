"""A run whose coordinator has died, from its journal (M-40): the machine in its next generation, and the open file.

    journal, coordinator = begin(config, run_id, now, resume)      goes on with the journal if there is one

A journal is never overwritten. One of another run, of a finished one, one that is damaged, or was kept under other
options, is refused with one line that says what to do: a coordinator that begins anew under an old journal would make
its ranks, who look for the run they know, train something else.
"""

from __future__ import annotations

import socket
from pathlib import Path

import attrs

from ..core.config import WISHABLE, Config
from ..core.coordinator import Coordinator
from ..core.errors import CheckpointError, ConfigError
from ..core.ledger import Resume
from ..core.policies import Policies
from ..transports.journal_file import JournalEnd, JournalFile, read_end

__all__ = ["begin", "run_id_of"]


def begin(
    config: Config, now: float, resume: Resume | None, policies: Policies | None = None
) -> tuple[Coordinator, JournalFile | None, bool]:
    """The coordinator of a run, its journal if it keeps one, and whether it goes on with a life that was cut off.
    `policies` are those of the program, if it has any of its own.

    Raises `CheckpointError` for a journal that cannot be gone on with, or was kept under other policies; `ConfigError`
    if the options are other ones than those it was kept under, or a policy that they name cannot be loaded.
    """
    path = None if config.journal is None else Path(config.journal)
    if path is None or not path.exists() or not path.stat().st_size:
        fresh = Coordinator(config, now=now, resume=resume, policies=policies, host=socket.gethostname())
        return fresh, None if path is None else JournalFile(path, fresh, sync=config.journal_sync), False
    end = read_end(path)
    kept = _kept_config(path, end)
    if kept.run_id != config.run_id:
        raise CheckpointError(
            f"the journal {path} is of run {kept.run_id.hex()}, this is run {config.run_id.hex()}: set PACELINE_RUN_ID "
            "and PACELINE_TOKEN as that run had them, or give another path"
        )
    _same_options(path, kept, config)
    again = Coordinator.restart(kept, end.head.snapshot, end.records, now, undone=end.undone, policies=policies)
    if again.finished:
        raise CheckpointError(f"the run of the journal {path} is over ({again.run.text}); give another path")
    return again, JournalFile(path, again, sync=config.journal_sync, behind=end.size), True


def run_id_of(path: Path) -> bytes:
    """The run that a journal is of. Raises `CheckpointError`."""
    return _kept_config(path, read_end(path)).run_id


def _kept_config(path: Path, end: JournalEnd) -> Config:
    if not isinstance(end.head.settings, Config):
        raise CheckpointError(f"{path} is the journal of a rank, not of a coordinator; give another path")
    return end.head.settings


def _same_options(path: Path, kept: Config, given: Config) -> None:
    """What a rank's script has settled since may be left open here; everything else is the run's, and stays."""
    for field in attrs.fields(Config):
        ours, theirs = getattr(given, field.name), getattr(kept, field.name)
        left_open = field.name in WISHABLE and ours is None
        if ours != theirs and not left_open and field.name not in ("journal", "journal_sync"):
            raise ConfigError(
                f"{field.name}: the run of the journal {path} has {theirs!r}, this command {ours!r}; start the "
                "coordinator with the options it had"
            )
