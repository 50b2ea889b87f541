"""How much more than bare Python an import of paceline costs; the aim for `import paceline` is under 0.15 s more.

The last two are what a coordinator and a rank load before they do anything. Bare Python and each import are started in
turn, many times, and the medians of their processor time are compared, which a machine that is busy does not lengthen
as it does the time on the clock.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

ROUNDS = 15
PROGRAMS = {
    "bare Python": "pass",
    "import paceline": "import paceline",
    "import paceline.core": "import paceline.core",
    "paceline.Coordinator": "import paceline; paceline.Coordinator",
    "paceline coordinate": "import paceline.backends.coordinate, paceline.backends.star",
    "paceline.Session": "import paceline; paceline.Session",
}


def started(program: str) -> float:
    """Seconds of processor time of an interpreter that runs the program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
