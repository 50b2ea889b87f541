"""`make prove`: everything that can be shown about the protocol by machine, and the ledger of what was shown.

    python tests/prove.py                    run every step, say what each found, end with 1 if one fails
    python tests/prove.py --only mutants     some of them
    python tests/prove.py --write            also keep the numbers in docs/evidence.json and docs/testing.md; with
                                             --only those of these steps, beside the others that were kept before
    python tests/prove.py --page             make the page anew from kept numbers, when a schedule has come

Each step is a command that anybody can run by itself; this file runs them one after the other with the bounds that a
release is held to, reads what they say as JSON, and adds it up. The ledger in docs/testing.md is made from the kept
numbers alone, so it cannot say anything that no run has shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence.json"
LEDGER = ROOT / "docs" / "testing.md"
SCHEDULES = ROOT / "tests" / "schedules"
FAULT = "Found by"
"""What the comment of a schedule says when it showed a fault, and by what it was found."""
BEGIN, END = "<!-- ledger: made by tests/prove.py --write -->", "<!-- end of the ledger -->"

STORM_SEEDS = 1000
STORM_RANKS = 8
CHECK_BUDGET = "20m"
FUZZ_SECONDS = 40
LEAST_KILLED = 0.95
"""Share of the mutants that could be noticed and must be. The command itself ends with 1 for any that is not."""
REPEATED_SEEDS = 12
"""Runs whose transcripts are compared between processes with different hash seeds."""

Facts = dict[str, Any]
Said = tuple[bool, Facts]
"""Whether the step holds, and its numbers."""


class Failed(Exception):
    """A step cannot be carried out at all."""


def paceline(*words: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and standard output of one command; what it says to people goes to where this goes."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline.backends.cli", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **(environment or {})}, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def parsed(text: str, what: str) -> Any:
    """The JSON that a command printed."""
    try:
        return json.loads(text)
    except ValueError:
        raise Failed(f"{what} printed no JSON: {text[-400:]!r}") from None


# --- the steps -------------------------------------------------------------------------------------------------------


def model_checker(scratch: Path) -> Said:
    """Every order, within the bounds of a release, to the end."""
    code, text = paceline("check", "--prove", "--budget", CHECK_BUDGET, "--json", "--out", str(scratch / "check"))
    reports = parsed(text, "paceline check")
    wanted = ("bounds", "states", "transitions", "complete", "ok", "seconds", "bytes_per_state", "unreached")
    found = [{name: report[name] for name in wanted} for report in reports]
    wrong = [report["counterexample"]["text"] for report in reports if report["counterexample"] is not None]
    return code == 0, {"configurations": found, "counterexamples": wrong}


def storms(scratch: Path) -> Said:
    """Seeds 0 to 999 of eight ranks, every fault on, every mark reached."""
    code, text = paceline("simulate", "--ranks", str(STORM_RANKS), "--seeds", str(STORM_SEEDS), "--faults", "storm",
                          "--json", "--out", str(scratch / "storms"))  # fmt: skip
    facts = parsed(text, "paceline simulate")
    return code == 0, facts


def mutants(scratch: Path) -> Said:
    """Nearly every mutant is noticed, of those that can be."""
    report = scratch / "mutants.json"
    paceline("mutants", "--json", str(report))
    if not report.exists():
        raise Failed("paceline mutants wrote no report")
    whole = json.loads(report.read_text(encoding="utf-8"))
    outcomes = Counter(mutant["outcome"] for mutant in whole["mutants"])
    layers = Counter(mutant["layer"] for mutant in whole["mutants"] if mutant["outcome"] == "killed")
    return whole["killed"] >= LEAST_KILLED, {
        "mutants": len(whole["mutants"]), "layers": dict(sorted(layers.items())), "equivalent": outcomes["equivalent"],
        "survivors": whole["survivors"], "killed": whole["killed"], "seconds": whole["seconds"],
    }  # fmt: skip


EXAMPLES = ROOT / "docs" / "examples"
KITS = (
    ("transport", "memory://prove"),
    ("transport", "tcp://127.0.0.1:0"),
    ("averager", "star"),
    ("averager", "star", "--over", "tcp://127.0.0.1:0"),
    *(("policy", name, "--kind", "guard") for name in ("level", "growth", "none")),
    *(("policy", name, "--kind", "cadence") for name in ("sync", "cadence", "async")),
    *(("policy", name, "--kind", "detector") for name in ("learned", "fixed")),
    ("transport", "unix_transport:UnixTransport@unix://{scratch}/kit"),
    ("averager", "plain_averager:PlainAverager"),
    ("averager", "plain_in_place:PlainInPlace"),
    ("averager", "tcp_in_place:TcpInPlace", "--processes"),
    ("policy", "own_policies:PatientGuard", "--kind", "guard"),
    ("policy", "own_policies:EqualSteps", "--kind", "cadence"),
    ("policy", "own_policies:TwiceTheSlowest", "--kind", "detector"),
)
"""All that ships, by the name that a user gives it, and the examples of the guides."""


def kits(scratch: Path) -> Said:
    """What ships passes the kits that plug-ins are held to, and so do the examples."""
    good, found = True, {}
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    for words in KITS:
        report = scratch / "kit.json"
        asked = [word.format(scratch=scratch) for word in words]
        code, _ = paceline("conform", *asked, "--json", str(report), environment={"PYTHONPATH": path})
        if not report.exists():
            raise Failed(f"paceline conform {' '.join(words)} wrote no report")
        counts = _counts(json.loads(report.read_text(encoding="utf-8")))
        report.unlink()
        good = good and code == 0
        found[" ".join(words)] = counts
    return good, {"kits": found}


def _counts(report: Facts) -> dict[str, int]:
    counts: dict[str, int] = {}
    for outcome in report["outcomes"]:
        counts[outcome["status"]] = counts.get(outcome["status"], 0) + 1
    return dict(sorted(counts.items()))


def determinism(scratch: Path) -> Said:
    """The same schedules say the same, line for line, in processes with different hash seeds; and a recorded run of
    real processes decides the same again."""
    lines = 0
    for seed in range(REPEATED_SEEDS):
        out = scratch / "repeat"
        paceline("simulate", "--seed", str(seed), "--keep", "--faults", "storm", "--out", str(out))
        schedule = next(out.glob("*.schedule"))
        told = {paceline("replay", str(schedule), environment={"PYTHONHASHSEED": word})[1] for word in ("0", "1", "77")}
        schedule.unlink()
        if len(told) != 1:
            return False, {"differs": f"seed {seed}"}
        lines += len(told.pop().splitlines())
    record = scratch / "run.jsonl"
    script = ROOT / "docs" / "examples" / "digits.py"
    code, _ = paceline("run", "--ranks", "2", "--slow", "1:3", "--record", str(record), "--run-dir",
                       str(scratch / "run"), str(script))  # fmt: skip
    again, text = paceline("replay", str(record))
    return code == again == 0, {
        "schedules": REPEATED_SEEDS, "hash_seeds": 3, "lines_compared": lines, "recorded_run": text.splitlines(),
    }  # fmt: skip


def fuzzing(scratch: Path) -> Said:
    """Arbitrary bytes into every decoder, for a while, from a fixed seed."""
    done = subprocess.run(
        [sys.executable, "tests/fuzz/run.py", "all", "--seconds", str(FUZZ_SECONDS), "--seed", "1", "--engine", "own"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0, {"seconds": FUZZ_SECONDS, "targets": done.stdout.splitlines()[1:]}


STEPS: dict[str, Callable[[Path], Said]] = {
    "model checker": model_checker,
    "storms": storms,
    "mutants": mutants,
    "kits": kits,
    "determinism": determinism,
    "fuzzing": fuzzing,
}


# --- the ledger ------------------------------------------------------------------------------------------------------


def ledger(evidence: Facts) -> Iterator[str]:
    """The ledger as lines of Markdown, from kept numbers alone."""
    steps = {name: kept["facts"] for name, kept in evidence.items()}
    yield "| step | holds | at commit | on | took |"
    yield "|---|---|---|---|---|"
    for name, kept in evidence.items():
        holds = "yes" if kept["holds"] else "**no**"
        yield f"| {name} | {holds} | {kept['commit']} | {kept['machine']} | {kept['seconds']:.0f} s |"
    for name in STEPS:
        if name not in steps:
            yield f"| {name} | not run yet | | | |"
    yield ""
    yield "| layer | what was run | what was found |"
    yield "|---|---|---|"
    for name, facts in steps.items():
        for line in TELLERS[name](facts):
            yield f"| {name} | {line} |"
    yield ""
    kept = {path: _comment(path) for path in sorted(SCHEDULES.glob("*.schedule"))}
    yield f"{len(kept)} schedules are replayed by the suite. Those that showed a fault, which has been mended since:"
    yield ""
    yield "| schedule | what it showed |"
    yield "|---|---|"
    for path, comment in kept.items():
        if FAULT in comment:
            yield f"| [{path.stem}](../tests/schedules/{path.name}) | {comment} |"


def _checked(facts: Facts) -> Iterator[str]:
    for one in facts["configurations"]:
        whole = "complete" if one["complete"] else "cut"
        size = f"{one['states']:,} states, {one['transitions']:,} transitions"
        yield f"{_bounds(one['bounds'])} | {size}, {whole}, {one['seconds']:.0f} s"


def _stormed(facts: Facts) -> Iterator[str]:
    reached = sum(1 for mark in facts["marks"].values() if mark["times"])
    yield (f"{facts['seeds']:,} {facts['faults']} seeds of {facts['ranks']} ranks | {facts['events']:,} events, "
           f"{facts['cycles']:,} cycles, {facts['faults_struck']:,} faults, {facts['rank_hours']:,.0f} simulated "
           f"rank-hours, {reached} of {len(facts['marks'])} marks reached, "
           f"{len(facts['failures'])} violations")  # fmt: skip
    for one in facts["failures"]:
        yield f"seed {one['seed']} | {one['invariant']}: {one['text']}"


def _conformed(facts: Facts) -> Iterator[str]:
    for target, counts in facts["kits"].items():
        yield f"{target} | {', '.join(f'{count} {status}' for status, count in counts.items())}"


def _repeated(facts: Facts) -> Iterator[str]:
    yield (f"{facts['schedules']} schedules under {facts['hash_seeds']} hash seeds, each in a process of its own | "
           f"{facts['lines_compared']:,} lines, the same")  # fmt: skip
    for line in facts["recorded_run"]:
        machine, _, rest = line.partition(": ")
        yield f"recorded run of real processes, {machine} | {rest}"


def _fuzzed(facts: Facts) -> Iterator[str]:
    for line in facts["targets"]:
        target, _, rest = line.partition(": ")
        yield f"{target} | {rest}"


def _bounds(bounds: Facts) -> str:
    counted = [f"{count} {axis if count != 1 else axis[:-1]}" for axis, count in bounds.items()
               if isinstance(count, int) and count]  # fmt: skip
    knobs = [f"{name} = {value}" for name, value in bounds["knobs"]]
    return ", ".join([*counted, *knobs])


def _mutated(report: Facts) -> Iterator[str]:
    killed = ", ".join(f"{count:,} by {layer}" for layer, count in report["layers"].items())
    rest = f"{report['equivalent']:,} cannot be, each with its reason; {len(report['survivors'])} survive"
    yield f"{report['mutants']:,} mutants of tables, guards and comparisons | noticed: {killed}; {rest}"
    for name in report["survivors"]:
        yield f"survives | `{name}`"


def _comment(path: Path) -> str:
    """What the comments at the head of a schedule say."""
    lines = path.read_text(encoding="utf-8").splitlines()
    words = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    return " ".join(words).replace("|", "\\|")


TELLERS: dict[str, Callable[[Facts], Iterator[str]]] = {
    "model checker": _checked, "storms": _stormed, "mutants": _mutated, "kits": _conformed, "determinism": _repeated,
    "fuzzing": _fuzzed,
}  # fmt: skip
"""The lines of the ledger about each step: what was run, and what was found."""


def written(text: str, evidence: Facts) -> str:
    """The page with its ledger made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return "\n".join([head + BEGIN, "", *ledger(evidence), "", END]) + tail


def _write_page(evidence: Facts) -> None:
    LEDGER.write_text(written(LEDGER.read_text(encoding="utf-8"), evidence), encoding="utf-8")


def _step(name: str, scratch: Path, *, write: bool) -> bool:
    """Carry one step out, say what came of it, and keep its numbers if they are wanted."""
    started = time.monotonic()
    print(f"== {name}: {(STEPS[name].__doc__ or '').splitlines()[0]}", flush=True)
    try:
        good, facts = STEPS[name](scratch)
    except Failed as error:
        good, facts = False, {"failed": str(error)}
    seconds = time.monotonic() - started
    if not good:
        print(json.dumps(facts, indent=1)[-4000:])
    if write:
        _keep(name, facts, seconds, good)
    print(f"== {name}: {'holds' if good else 'FAILS'} after {seconds:.0f} s", flush=True)
    return good


def _keep(name: str, facts: Facts, seconds: float, holds: bool) -> None:
    """The numbers of one step, beside those of the others; also where it does not hold, which the page then says."""
    kept = json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else {}
    kept[name] = {
        "commit": _commit(), "seconds": round(seconds, 1), "holds": holds, "facts": facts,
        "machine": f"{os.cpu_count()} cores, Python {sys.version.split()[0]}",
    }  # fmt: skip
    evidence = {step: kept[step] for step in STEPS if step in kept}
    EVIDENCE.write_text(json.dumps(evidence, indent=1) + "\n", encoding="utf-8")
    _write_page(evidence)


def _commit() -> str:
    """What was proved: the commit, and whether more than the ledger differs from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{EVIDENCE.relative_to(ROOT)}",
                   f":!{LEDGER.relative_to(ROOT)}")  # fmt: skip
    return (head or "unknown") + (" with changes" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False)  # fmt: skip
    return done.stdout.strip()


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(STEPS), action="append", help="only this step, repeatable")
    parser.add_argument("--write", action="store_true", help="keep the numbers, and make the ledger of them")
    parser.add_argument("--page", action="store_true", help="only make the ledger anew, from the numbers kept before")
    options = parser.parse_args(arguments)
    if options.page:
        _write_page(json.loads(EVIDENCE.read_text(encoding="utf-8")))
        return 0
    begun, bad = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.only or STEPS:
            if not _step(name, Path(scratch), write=options.write):
                bad.append(name)
    seconds = time.monotonic() - begun
    print(f"not proved: {', '.join(bad)}" if bad else f"proved in {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
