"""How much longer than bare Python `import paceline` takes; the aim is under 0.15 s more.

Bare Python and each import are started in turn, many times, and the medians are compared, so that a machine that is
busy for a moment slows both alike.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
PROGRAMS = {
    "bare Python": "pass",
    "import paceline": "import paceline",
    "import paceline.core": "import paceline.core",
    "paceline.Coordinator": "import paceline; paceline.Coordinator",
}


def started(program: str) -> float:
    """Seconds from the start of an interpreter that runs the program to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            seconds[name].append(started(program))
    bare = statistics.median(seconds["bare Python"])
    print(f"{'':<22}{'seconds':>9}{'more':>9}{'ratio':>8}")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:<22}{median:>9.3f}{median - bare:>9.3f}{median / bare:>8.2f}")


if __name__ == "__main__":
    main()
