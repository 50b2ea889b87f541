"""`make prove`: everything that can be shown about the protocol by machine, and the ledger of what was shown.

    python tests/prove.py                    run every step, say what each found, end with 1 if one fails
    python tests/prove.py --only mutants     some of them
    python tests/prove.py --write            also keep the numbers in docs/evidence.json and docs/testing.md; with
                                             --only those of these steps, beside the others that were kept before
    python tests/prove.py --page             make the page anew from kept numbers, when a schedule has come

Each step is a command that anybody can run by itself; this file runs them with the bounds that a release is held to,
reads what they say as JSON, and adds it up. The ledger in docs/testing.md is made from the kept numbers alone, so it
cannot say anything that no run has shown.

There are two lanes of steps, side by side, and in each the steps come one after the other: the longest search of the
model checker keeps one core busy and no more, so it has the other steps beside it. What the commands say on the way
comes line by line, with the name of the step before it. A step that fails stops nothing; Ctrl-C ends all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
CHECK_BUDGET = "40m"
"""Of each search. The longest one takes about a quarter of it on a free core, and has half a busy one here."""
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


class Ended(Exception):
    """Somebody has ended the whole, and so this step."""


# --- commands --------------------------------------------------------------------------------------------------------

GRACE_S = 5.0
"""Between asking what still runs to end and killing it."""

_here = threading.local()
"""The name of the step that this thread carries out."""
_saying, _keeping = threading.Lock(), threading.Lock()


def say(text: str) -> None:
    """A whole line, whoever else has something to say."""
    with _saying:
        print(text, flush=True)


class Commands:
    """The commands that run. Each has a process group of its own: Ctrl-C reaches nobody but us, and who is ended is
    ended with all whom it has started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, words: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
        """Exit code and standard output; what comes on standard error is passed on. Raises `Ended`."""
        with self._lock:
            if self._ended:
                raise Ended
            process = subprocess.Popen(
                list(words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        assert process.stdout is not None and process.stderr is not None
        teller = threading.Thread(target=_pass_on, args=(getattr(_here, "step", words[0]), process.stderr))
        teller.start()
        with process.stdout:
            text = process.stdout.read()
        code = process.wait()
        teller.join()
        with self._lock:
            self._running.discard(process)
            if self._ended:
                raise Ended
        return code, text

    def end(self) -> None:
        """End all of them, and begin no other."""
        with self._lock:
            self._ended, running = True, list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            _signal(process, signal.SIGKILL)  # also for those whom it left behind


def _pass_on(step: str, lines: Any) -> None:
    with lines:
        for line in lines:
            say(f"   {step}: {line.rstrip()}")


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


commands = Commands()


def paceline(*words: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and standard output of one command of paceline."""
    return commands.run([sys.executable, "-m", "paceline.backends.cli", *words], environment)


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
    ("policy", "true", "--kind", "meta"),
    ("transport", "unix_transport:UnixTransport@unix://{scratch}/kit"),
    ("averager", "plain_averager:PlainAverager"),
    ("averager", "plain_in_place:PlainInPlace"),
    ("averager", "tcp_in_place:TcpInPlace", "--processes"),
    ("policy", "own_policies:PatientGuard", "--kind", "guard"),
    ("policy", "own_policies:EqualSteps", "--kind", "cadence"),
    ("policy", "own_policies:TwiceTheSlowest", "--kind", "detector"),
    ("policy", "own_policies:HalfAtACliff", "--kind", "meta"),
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
        told = {paceline("replay", str(schedule), environment={"PYTHONHASHSEED": word}) for word in ("0", "1", "77")}
        schedule.unlink()
        code, text = told.pop()
        if told or code:
            return False, {"differs": f"seed {seed}"}
        lines += len(text.splitlines())
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
    words = ["tests/fuzz/run.py", "all", "--seconds", str(FUZZ_SECONDS), "--seed", "1", "--engine", "own"]
    code, text = commands.run([sys.executable, *words])
    return code == 0, {"seconds": FUZZ_SECONDS, "targets": text.splitlines()[1:]}


STEPS: dict[str, Callable[[Path], Said]] = {
    "model checker": model_checker,
    "storms": storms,
    "mutants": mutants,
    "kits": kits,
    "determinism": determinism,
    "fuzzing": fuzzing,
}
LANES = (("model checker",), ("storms", "mutants", "kits", "determinism", "fuzzing"))
"""Steps that come one after the other; the lanes run side by side. Those in the second use two processes all the same:
when the other lane is done, nothing is idle."""


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
        lines = [f"could not be carried out | {facts['failed']}"] if "failed" in facts else TELLERS[name](facts)
        for line in lines:
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
           f"{len(facts['failures'])} violations{_excused(facts.get('excused', {}))}")  # fmt: skip
    for one in facts["failures"]:
        yield f"seed {one['seed']} | {one['invariant']}: {one['text']}"


def _excused(runs: dict[str, int]) -> str:
    """Of how many runs it was not asked that they average anew and finish after the last fault."""
    return f"; {sum(runs.values()):,} runs need not finish after the last fault" if runs else ""


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
    _here.step = name
    say(f"== {name}: {(STEPS[name].__doc__ or '').splitlines()[0]}")
    try:
        good, facts = STEPS[name](scratch)
    except Ended:
        raise
    except Failed as error:
        good, facts = False, {"failed": str(error)}
    except Exception as error:  # a fault of ours, which must not keep the other steps from being carried out
        say(traceback.format_exc())
        good, facts = False, {"failed": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - started
    if not good:
        say(json.dumps(facts, indent=1)[-4000:])
    if write:
        with _keeping:
            _keep(name, facts, seconds, good)
    say(f"== {name}: {'holds' if good else 'FAILS'} after {seconds:.0f} s")
    return good


def _lane(names: Sequence[str], scratch: Path, *, write: bool) -> list[str]:
    """Carry these steps out one after the other; those that fail."""
    return [name for name in names if not _step(name, scratch, write=write)]


def _lanes(chosen: Sequence[str], *, write: bool) -> list[str]:
    """Carry the steps out, the lanes side by side; those that fail, in their order."""
    lanes = [found for lane in LANES if (found := [name for name in lane if name in chosen])]
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(lanes)) as pool:
        try:
            for lane in [pool.submit(_lane, names, Path(scratch), write=write) for names in lanes]:
                bad += lane.result()
        except BaseException:
            commands.end()  # or the pool would wait for them
            raise
    return [name for name in STEPS if name in bad]


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
    begun = time.monotonic()
    try:
        bad = _lanes(options.only or list(STEPS), write=options.write)
    except KeyboardInterrupt:
        say("ended, and with it all that ran")
        return 130
    seconds = time.monotonic() - begun
    print(f"not proved: {', '.join(bad)}, after {seconds:.0f} s" if bad else f"proved in {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends what we started
    sys.exit(main())
