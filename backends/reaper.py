"""Ends the processes of a run whose launcher is gone; run as a file of its own, by the launcher.

A launcher that is killed with SIGKILL cannot clean up, and nobody but the kernel can tell that it is gone. Here the
kernel tells by closing the launcher's end of a pipe. The other ways were found wanting: PR_SET_PDEATHSIG exists on
Linux only and fires when the *thread* that forked is gone, which may be a worker thread of an event loop; a watching
thread in each child would need the children's help, and they run the user's own script.

On standard input come process groups, one number a line: `123` is to be ended when the input ends, `-123` no more.
Data loader workers of a script are in the group of their rank, so they end with it. Only the standard library is
imported, and no part of paceline, so that this starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Follow the lines to their end, then kill what is left."""
    # Whoever ends a whole run by signals may hit this process first; its end comes with the end of its input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, None] = {}
    for line in lines:
        group = int(line)
        if group > 0:
            groups[group] = None
        else:
            groups.pop(-group, None)
    for group in groups:
        # macOS says PermissionError of a group in which only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.stdin)
