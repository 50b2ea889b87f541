"""A conformance kit in a process of its own, so that `paceline conform` has an outcome whatever a plug-in does to it.

A limit inside the process (`paceline.transports.limit`) ends what runs Python, or waits. Three things it cannot end: a
loop in C, such as `max(itertools.count())`, holds the interpreter itself, and no other thread ever sees the time; a
plug-in may crash; and it may end the process, with exit code 0 even. So the command that a person started runs nothing
of a plug-in. It starts this module, and listens:

1. Before each check the process sends its *will*: what there is to say if that check never ends.
2. It sends each outcome as it comes, and the report.
3. If it ends before that, the will is the report, with how it ended. What ends one that is held is `faulthandler`: it
   needs no turn of the interpreter, and tells where the threads stood, through a pipe. Should even that not work, the
   process is killed a little later.

A `Job` is what runs the kit there: a function of a module, or a `functools.partial` of one.
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import attrs

from ..core.conformance import Outcome, Report
from ..core.conformance.blame import stood
from ..core.errors import ConfigError
from .endings import debugging

__all__ = ["Job", "Watch", "judged_apart", "portable"]

Watch = Callable[[float], dict[str, Any]]
"""Takes the seconds that a check may take, and gives what a kit is to be called with: `on_begin` and `on_outcome`."""
Job = Callable[[Watch], Report]
"""Finds the plug-in and runs its kit."""

START_S = 60.0
"""The patience, at least, with the import of a plug-in and its kit: some need torch, on a machine that is busy."""
HELD_S = 15.0
"""How much longer than twice its patience a check may take, cleaning up included."""
LATE_S = 15.0
"""After so much more a process that should have ended by itself is killed."""
SLICE_S = 0.5
"""In what time one look whether it still lives is made: what it has started may hold its pipes open."""
LEAVE_S = 5.0
"""How long one that was interrupted may take to put things back."""


# --- who listens -----------------------------------------------------------------------------------------------------


def judged_apart(
    job: Job, name: str, patience_s: float, on_outcome: Callable[[Outcome], None], *, aside: bool = False
) -> Report:
    """The report of `job`, or what is known of it when its process has ended before.

    Args:
        name: of the plug-in, for what cannot even be loaded.
        patience_s: what its checks may take; the job says it, too, where it knows better.
        on_outcome: called with each outcome as it comes.
        aside: what the plug-in prints goes to standard error, for standard output is a report.

    Raises:
        ConfigError: the plug-in ended the process while its module was imported, or never came back from that.
        KeyboardInterrupt: the process was interrupted.
        PacelineError: whatever `job` raises.
    """
    start_s = max(patience_s, START_S)
    pipe, far = Pipe()
    dump, far_dump = Pipe(duplex=False)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with pipe, dump:
        with far, far_dump:
            ends = [far.fileno(), far_dump.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, ends)], pass_fds=ends,
                stdout=sys.__stderr__ if aside else None,
                start_new_session=True,  # Ctrl-C is for who started it, and told from there
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        try:
            with suppress(OSError):  # then it has ended already
                pipe.send((job, start_s, HELD_S))
            return _Listener(process, pipe, dump, on_outcome, 2 * start_s + HELD_S).report(name)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            process.kill()
            process.wait()


@attrs.define(eq=False)
class _Listener:
    """Hears a process to its end. `within_s`: in that time it ends by itself, unless it says something. `will` is the
    last one, `told` how many outcomes have come, `dump` where its threads stood."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    dumped: Connection
    on_outcome: Callable[[Outcome], None]
    within_s: float
    will: Report | None = None
    found: Report | None = None
    told: int = 0
    dump: bytes = b""

    def report(self, name: str) -> Report:
        """See `judged_apart`."""
        self._listen()
        if self.found is not None:
            return self.found
        how = self._how()
        sys.stderr.write(self.dump.decode(errors="replace"))
        if self.will is None:
            raise ConfigError(f"{name} cannot be loaded: {how}")
        found = self.will.closed(how)
        for outcome in found.outcomes[self.told :]:
            self.on_outcome(outcome)
        return found

    def _listen(self) -> None:
        """Until there is a report, or the process has ended, or should have."""
        takes: dict[Connection, Callable[[], bool]] = {self.pipe: self._take, self.dumped: self._take_dump}
        left = self._slices()
        while left and self.found is None:
            over = self.process.poll() is not None
            ready = wait(takes, 0 if over else SLICE_S)
            if over and not ready:
                return
            left = self._slices() if ready else left - 1
            for end in [end for end in takes if end in ready and not takes[end]()]:
                del takes[end]
            if not takes:  # as a rule it has ended; one that has closed them itself may live on
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(SLICE_S)

    def _slices(self) -> int:
        return math.ceil((self.within_s + LATE_S) / SLICE_S)

    def _take(self) -> bool:
        """What it says; False at the end."""
        try:
            kind, said, within_s = self.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return False
        self.within_s = within_s
        if kind == "raised":
            raise said
        if kind == "will":
            self.will = said
        elif kind == "report":
            self.found = said
        else:
            self.told += 1
            self.on_outcome(said)
        return True

    def _take_dump(self) -> bool:
        some = os.read(self.dumped.fileno(), 1 << 16)
        self.dump += some
        return bool(some)

    def _how(self) -> str:
        """How the process ended, in words."""
        text = self.dump.decode(errors="replace")
        place = stood(text)
        where = "" if place is None else f", in {place.place}"
        code = self.process.poll()
        if code is None:
            self.process.kill()
            return f"the check did not end within {self.within_s + LATE_S:g} s, and its process had to be killed"
        if text.startswith("Timeout"):
            call = "the check" if place is None else place.call
            return (
                f"the check did not end within {self.within_s:g} s: {call} did not come back{where}, and held the "
                "interpreter itself, so that its process had to be ended; do less in one call of C, or bound it"
            )
        if code < 0:
            return f"a plug-in must not crash, and this one ended its process by {signal.Signals(-code).name}{where}"
        return f"a plug-in must not end the program, and this one ended its process with exit code {code}"


# --- who runs it -----------------------------------------------------------------------------------------------------


def main(descriptor: str, dump: str) -> None:
    """Run the job that comes over the pipe with this descriptor, and say over it what comes of it; the other one takes
    where the threads stand when the process is ended."""
    pipe, dumped = Connection(int(descriptor)), int(dump)
    for end in (pipe.fileno(), dumped):
        os.set_inheritable(end, False)  # what a plug-in starts must not keep them open
    faulthandler.enable(file=dumped)
    sys.path.insert(0, os.getcwd())  # a plug-in that is not installed may lie here, as for `python -m`
    job, start_s, held_s = pipe.recv()

    def say(kind: str, said: Any, patience_s: float = start_s) -> None:
        within_s = 2 * patience_s + held_s
        faulthandler.dump_traceback_later(within_s, exit=True, file=dumped)
        pipe.send((kind, said, within_s))

    def watch(patience_s: float) -> dict[str, Any]:
        return {"on_begin": lambda report: say("will", report, patience_s),
                "on_outcome": lambda outcome: say("outcome", outcome, patience_s)}  # fmt: skip

    faulthandler.dump_traceback_later(2 * start_s + held_s, exit=True, file=dumped)
    try:
        found = "report", job(watch)
    except BaseException as error:
        if debugging():
            traceback.print_exc()
        found = "raised", portable(error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing left to put back
    say(*found)


def portable(failure: BaseException) -> BaseException:
    """The exception itself if it can travel to another process, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        return RuntimeError(f"{type(failure).__name__}: {failure}")
    return failure


if __name__ == "__main__":
    main(*sys.argv[1:])
