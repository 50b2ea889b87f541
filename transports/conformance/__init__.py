"""Whether a transport keeps the contract of `transports.api`: the conformance kit, for plug-in authors and for us.

Three ways in, one kit. From a shell, for a transport that is installed, or for one that is still a file:

    paceline conform transport pigeon://loft --level L2
    paceline conform transport pigeon_transport:PigeonTransport@pigeon://loft --json report.json

With pytest, where each check is a test:

    pytest --pyargs paceline.transports.conformance --transport pigeon://loft

And from a program, which can give what the kit cannot guess (`Bench`):

    report = conform(bench_for("pigeon://loft"))

The address is one to listen at. It is used again and again, one listener at a time.

Every check has an id that stays (`T301`), a level from L0 to L3, and a heading in docs/guides/write-a-transport.md.
What a transport can't do it does not claim (`api.Capabilities`), and then it is reported as not claimed. What cannot be
looked at here, such as file descriptors on a system that does not list them, is reported as not checked. `peer` is the
program at the other end when a check needs a process that can be killed.
"""

from __future__ import annotations

from . import cancellation, contract, found, lanes, leaks, load, loss, processes, strangers
from .kit import KIT, PATIENCE_S, Bench, bench_for, conform

__all__ = ["KIT", "PATIENCE_S", "Bench", "bench_for", "conform"]

CHECKS = (found, contract, lanes, load, cancellation, loss, processes, strangers, leaks)
"""The modules that hold the checks; importing them puts the checks into the kit."""
