"""A coordinator of a real run, for end-to-end tests: `python coordinator_process.py URL DIR KNOBS-AS-JSON`.

Prints `{"listening": URL}`, then every record as a JSON line, and ends with status 0, or 6 when the run gave up.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

from paceline.backends.serve import serve
from paceline.core.config import Config
from paceline.core.errors import PacelineError
from paceline.transports.api import Credentials


def main() -> int:
    url, run_dir, knobs = sys.argv[1:4]
    credentials = Credentials(
        run_id=bytes.fromhex(os.environ["PACELINE_RUN_ID"]), token=bytes.fromhex(os.environ["PACELINE_TOKEN"])
    )

    def look(record: dict[str, Any]) -> None:
        if record["event"] != "Status":
            print(json.dumps(record), flush=True)

    def ready(address: str) -> None:
        print(json.dumps({"listening": address}), flush=True)

    async def run() -> str:
        config = Config.from_knobs(json.loads(knobs))
        finish = await serve(config, url, credentials, run_dir=Path(run_dir), on_record=look, ready=ready)
        return finish.status

    try:
        status = trio.run(run)
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return error.exit_code
    return 0 if status in ("ok", "stopped") else 6


if __name__ == "__main__":
    sys.exit(main())
