"""Fuzz one target for a while:  python tests/fuzz/run.py codec --seconds 60

With the optional engine (`pip install atheris`) its coverage guidance is used, else the loop of `engine.py`. A finding
is printed, shrunk, and kept as a file under tests/fuzz/corpus/TARGET/, which the suite replays from then on; the exit
code is then 1 (Ctrl-C: 130, and what was found until then is kept as well). What breaks a coordinator or a worker is
also kept as what it was told, a record under tests/fuzz/records/, and what breaks a run as a schedule under
tests/schedules/: both for `paceline replay`. `all` takes the targets one after the other and divides the time. `--keep
N` adds to the corpus the N inputs that together run most of what the campaign has seen and the seeds do not.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import math
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FunctionType

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.engine import CORPUS, Report, Target, campaign, fault_of, inputs, keep
from fuzz.machines import MACHINES, recorded
from fuzz.mutate import LONGEST
from fuzz.schedules import broken_schedule
from fuzz.targets import TARGETS

INTERRUPTED = 130
FOUND = "found-*"
RECORDS = Path(__file__).parent / "records"
"""What broke a machine, to be looked at; the suite replays the inputs of the corpus."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=_seconds, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats a campaign of the own loop")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="inputs to add to the corpus")
    parser.add_argument("--engine", choices=["auto", "own", "atheris"], default="auto",
                        help="atheris runs in this very process, and keeps what it finds as it is")  # fmt: skip
    options = parser.parse_args(arguments)
    names = list(TARGETS) if options.target == "all" else [options.target]
    if options.engine == "atheris":
        return _with_atheris(TARGETS[names[0]], options.seconds)
    if options.engine == "auto" and len(names) == 1 and importlib.util.find_spec("atheris") is not None:
        return _guided(TARGETS[names[0]], options.seconds)
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}")
    found = 0
    for name in names:
        report, begun = Report(name), time.monotonic()
        try:
            campaign(TARGETS[name], random.Random(seed), seconds=options.seconds / len(names), report=report,
                     first=[data for _, data in inputs(TARGETS[name])])  # fmt: skip
        except KeyboardInterrupt:  # what was found until then is found
            _tell(TARGETS[name], report, begun, 0)
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        found += _tell(TARGETS[name], report, begun, options.keep)
    return min(found, 1)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give a finite number of seconds above 0")


def _tell(target: Target, report: Report, begun: float, most: int) -> int:
    """Say what a campaign has come to, and keep it; the number of findings."""
    took = max(time.monotonic() - begun, 1e-9)
    print(f"{target.name}: {report.runs} inputs, {report.runs / took:.0f} a second, {len(report.steps)} steps between "
          f"lines, {len(report.kept)} kept, at most {report.heaviest:.0%} of the work allowed, "
          f"{len(report.findings)} findings")  # fmt: skip
    for finding in report.findings:
        print(f"  {finding}\n  kept as {keep(target, _name('found', finding.data), finding.data)}")
        record = RECORDS / f"{_name('found', finding.data)}.record"
        if target.name in MACHINES and recorded(target.name, finding.data, record):
            print(f"  and as {record}: paceline replay {record}")
        if target.name == "schedule" and (found := broken_schedule(finding.data)) is not None:
            path = Path(__file__).parents[1] / "schedules" / f"{_name('found', finding.data)}.schedule"
            path.write_text(str(found), encoding="utf-8")
            print(f"  and as {path}: paceline replay {path}")
    for data in _chosen(target, report, most):
        keep(target, _name("seen", data), data)
    return len(report.findings)


def _chosen(target: Target, report: Report, most: int) -> list[bytes]:
    """Greedily the inputs that add most steps per input, small ones first among equals."""
    seen = {data: fault_of(target, data)[1].steps for data in sorted(report.kept, key=len) if len(data) <= 1024}
    chosen: list[bytes] = []
    known = set().union(*(fault_of(target, data)[1].steps for data in target.seeds()))
    while seen and len(chosen) < most:
        best = max(seen, key=lambda data: len(seen[data] - known))
        if not seen[best] - known:
            break
        known |= seen.pop(best)
        chosen.append(best)
    return chosen


def _guided(target: Target, seconds: float) -> int:
    """The optional engine, in a process of its own, which it ends itself. What it has found is shrunk, told and kept as
    what the own loop finds."""
    folder, begun = CORPUS / target.name, time.monotonic()
    before, code = set(folder.glob(FOUND)), INTERRUPTED
    words = [sys.executable, __file__, target.name, "--seconds", str(seconds), "--engine", "atheris"]
    with suppress(KeyboardInterrupt):
        code = subprocess.run(words, check=False).returncode
    found = sorted(set(folder.glob(FOUND)) - before)
    if not found:
        return code if code in (0, INTERRUPTED) else 1
    report = Report(target.name)
    first = [path.read_bytes() for path in found]
    campaign(target, random.Random(0), runs=len(target.seeds()) + len(found), first=first, report=report)
    if report.findings:  # else it was the memory or the time that the engine allows
        for path in found:
            path.unlink()
    _tell(target, report, begun, 0)
    return 1


def _with_atheris(target: Target, seconds: float) -> int:
    """Hand the target to the optional engine, which ends the process itself."""
    import atheris

    for function in [found for found in gc.get_objects() if isinstance(found, FunctionType)]:
        if (function.__module__ or "").startswith(("paceline.core.", "paceline.transports.")):
            atheris.instrument_func(function)
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"paceline-fuzz-{target.name}-"))
    for number, data in enumerate(target.seeds()):
        (scratch / f"seed-{number}").write_bytes(data)
    flags = [f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", f"-artifact_prefix={folder}/found-"]
    # What a run returns is a status to the engine.
    atheris.Setup([sys.argv[0], *flags, str(scratch), str(folder)], lambda data: (target.run(data), None)[1])
    atheris.Fuzz()
    return 0


def _name(kind: str, data: bytes) -> str:
    return f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"


if __name__ == "__main__":
    sys.exit(main())
