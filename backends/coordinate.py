"""The body of `paceline coordinate`: credentials in, records or a display out.

Token and run id prove that both ends belong to one run. They come from the environment, never from the command line,
where every user of the host could read them; where there are none, they are made and printed for the person who
starts the ranks.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from ..core.config import Config
from ..core.errors import ConfigError
from ..transports.api import Credentials
from .console import Display, plain_error
from .launch import EXIT_CODES
from .reopen import run_id_of
from .serve import serve
from .words import counted

__all__ = ["coordinate"]


def coordinate(config: Config, bind: str, run_dir: Path, *, records: bool, record: Path | None = None) -> int:
    """Coordinate one run to its end, recorded to `record` if that is given; gives the exit code. Raises `ConfigError`
    for a token or run id that is none, and `TransportError` if `bind` cannot be listened on. With a journal that is
    there, that run goes on."""
    made = {"PACELINE_TOKEN": 32, "PACELINE_RUN_ID": 16}
    words = {name: os.environ.get(name) or secrets.token_hex(size) for name, size in made.items()}
    journal = None if config.journal is None else Path(config.journal)
    goes_on = journal is not None and journal.exists() and journal.stat().st_size > 0
    if journal is not None and goes_on:
        if not os.environ.get("PACELINE_TOKEN"):
            raise ConfigError(f"PACELINE_TOKEN is not set: the ranks of the run in {journal} know it, and no other; "
                              "export it as it was printed when the run began")  # fmt: skip
        words["PACELINE_RUN_ID"] = os.environ.get("PACELINE_RUN_ID") or run_id_of(journal).hex()
    credentials = Credentials(
        token=_bytes("PACELINE_TOKEN", words, 32), run_id=_bytes("PACELINE_RUN_ID", words, 16)
    )
    invite = " ".join(f"{name}={word}" for name, word in words.items() if not os.environ.get(name))
    if records:
        if invite:
            print(f"export {invite}", file=sys.stderr, flush=True)
        return _records(config, bind, run_dir, record, credentials)
    return _display(config, bind, run_dir, record, credentials, invite, goes_on=goes_on)


def _bytes(name: str, words: Mapping[str, str], size: int) -> bytes:
    try:
        raw = bytes.fromhex(words[name])
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise ConfigError(f"{name} must be {2 * size} hexadecimal digits; unset it to have one made")
    return raw


def _records(config: Config, bind: str, run_dir: Path, record: Path | None, credentials: Credentials) -> int:
    def write(fact: Mapping[str, Any]) -> None:
        print(json.dumps(fact), flush=True)

    def ready(url: str) -> None:
        write({"event": "Listening", "url": url})

    async def body() -> str:
        end = await serve(config, bind, credentials, run_dir=run_dir, record=record, on_record=write, ready=ready)
        return end.status

    return EXIT_CODES[trio.run(body)]


def _display(
    config: Config, bind: str, run_dir: Path, record: Path | None, credentials: Credentials, invite: str,
    *, goes_on: bool,
) -> int:
    with Display() as display:

        def ready(url: str) -> None:
            if goes_on:
                display.notice(f"listening on {url}; the run goes on, and its ranks come back by themselves")
                return
            ranks = counted(config.target_ranks or config.min_ranks, "rank")
            display.notice(f"listening on {url} for {ranks}; start each of them with")
            where = shlex.quote(url.replace("0.0.0.0", "HOST"))
            display.notice(f"  {invite + ' ' if invite else ''}paceline join {where} train.py")

        async def body() -> tuple[str, str]:
            end = await serve(
                config, bind, credentials, run_dir=run_dir, record=record, on_record=display.record, ready=ready
            )
            return end.status, end.text

        status, text = trio.run(body)
    code = EXIT_CODES[status]
    if code:
        plain_error(text)
    if display.board.merged:
        print(display.board.result(run_dir))
    return code
