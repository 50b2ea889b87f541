"""How long a test waits for what will come, before it is taken to hang.

No test passes or fails by how fast a machine is. What has to happen is waited for, and none of it takes a hundredth of
this where nothing else runs; what has to run out is a limit in virtual time, or one that runs out in whatever order
things happen.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PATIENCE_S", "UNHURRIED"]

PATIENCE_S = 300.0

UNHURRIED: dict[str, Any] = {
    "patience_s": PATIENCE_S, "heartbeat_s": PATIENCE_S / 3, "evidence_s": PATIENCE_S / 3, "limit_s": PATIENCE_S / 3,
}  # fmt: skip
"""The times of a bench for a transport that is sound: it is so on a machine that is busy with other things, too."""
