"""The command `paceline`. Thin: it reads options, and what it does stands in the modules it calls.

An error is one line on standard error and an exit code of docs/reference/exit-codes.md. That holds for wrong options
too, so `endings` speaks in place of click. Modules that load torch or trio are imported by the command that needs them:
`paceline --help` answers at once, and without the extras.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .. import __version__
from ..core.config import POLICIES, Config
from ..core.errors import ConfigError
from .command_check import check
from .command_conform import conform
from .command_conform_plugins import averager, policy
from .command_mutants import mutants
from .command_replay import replay
from .command_simulate import simulate
from .endings import Commands, debugging, end, leave
from .extras import needing
from .knobs import load_policies, parse_knobs, was_given
from .places import Place, file_for, folder_for
from .words import counted

if TYPE_CHECKING:
    from .launch import Kill

__all__ = ["cli", "main", "parse_kill", "parse_slow"]

DEFAULT_RUN_DIR = Path("paceline-run")
MOST_RANKS = 4096
"""Ranks of a run: each is a process with links of its own, so more are a mistake in the number."""
MOST_SECONDS = 100 * 365 * 86_400
MOST_REPEATS = 1_000_000
"""Epochs and seeds of a demo, likewise."""
Command = TypeVar("Command", bound=Callable[..., Any])


def main() -> None:
    """Entry point of the command: run it, and turn whatever is raised into one line and an exit code."""
    try:
        code = cli.main(prog_name="paceline", standalone_mode=False) or 0
    except SystemExit:  # so click ends when a shell has asked which words may follow
        raise
    except BaseException as error:
        code = end(error)
    leave(code)


# --- options that several commands share -----------------------------------------------------------------------


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


RUN_OPTIONS: Callable[[Any], Any] = _together(
    click.option("--policy", default="cadence", show_default=True, metavar="|".join(POLICIES),
                 help="When to average: after every step (sync), when the slowest rank has done its part (cadence), "
                      "or cadence without ever holding a rank up (async)."),
    click.option("--averager", default="star", show_default=True, help="What computes the average."),
    click.option("--max-batch-diff", type=int, metavar="N",
                 help="Most steps a rank may be ahead of the slowest one; 0 is lock-step."),
    click.option("--epochs", type=int, metavar="N", help="Epochs; left open, the script says it."),
    click.option("--batch-size", type=int, metavar="N", help="Samples a batch; left open, the script says it."),
    click.option("--seed", type=int, metavar="N", help="Seed of the shuffling; left open, the script says it."),
    click.option("--checkpoint-every", type=int, metavar="N",
                 help="Write the consensus, and call the script's checkpoint callback, every N epochs."),
    click.option("--eval-every", type=int, metavar="N",
                 help="Call the script's evaluation every N epochs, on the consensus."),
    click.option("--resume", type=click.Path(path_type=Path), metavar="DIR",
                 help="Go on with the run that ended in DIR: its model, and what it had not trained."),
    click.option("--set", "knobs", multiple=True, metavar="KNOB=VALUE", help="Any other knob of the run, repeatable."),
)  # fmt: skip
DEBUG_DUMP_S = 15.0
"""How long nothing may move before the state is told, where somebody debugs (O-8)."""
RECORD = click.option("--record", type=Place("file"), metavar="FILE",
                      help="Record all that goes in and out of every machine, for `paceline replay`.")  # fmt: skip
DEBUG = click.option("--debug", is_flag=True, help="Show tracebacks.")


def _config(ranks: int, *, policy: str, averager: str, max_batch_diff: int | None, epochs: int | None,
            batch_size: int | None, seed: int | None, checkpoint_every: int | None, eval_every: int | None,
            resume: Path | None, knobs: Sequence[str], journal: Path | None = None) -> Config:  # fmt: skip
    """The run's config from the options; ConfigError for what is not allowed."""
    if ranks < 1:
        raise ConfigError(f"--ranks {ranks} is not allowed: a run needs at least one rank; give 1 or more (V-3)")
    if ranks > MOST_RANKS:
        raise ConfigError(f"--ranks {ranks} is not allowed: give {MOST_RANKS:,} or less")
    values: dict[str, Any] = {
        "policy": policy, "averager": averager, "max_batch_diff": max_batch_diff, "num_epochs": epochs,
        "batch_size": batch_size, "seed": seed, "target_ranks": ranks,
        "checkpoint_every": checkpoint_every, "eval_every": eval_every,
    }  # fmt: skip
    if resume is not None:
        values["initial_state"] = str(resume)
    if journal is not None:
        values["journal"] = str(journal)
    values.update(parse_knobs(knobs, (*values, "ranks", "epochs", "resume", "journal")))
    if debugging():
        values.setdefault("stall_dump_s", DEBUG_DUMP_S)
    config = Config.from_knobs(values)
    load_policies(config)
    return config


def _as_arguments(options: Mapping[str, Any]) -> list[str]:
    """What was given of these options, as the coordinator process is told it; the defaults it has itself."""
    arguments = []
    for name, value in options.items():
        if name == "knobs":
            arguments += [word for knob in value for word in ("--set", knob)]
        elif value is not None and was_given(name):
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def parse_slow(words: Sequence[str], ranks: int) -> dict[int, float]:
    """`1:3` leaves rank 1 a third of its speed. Raises ConfigError."""
    slow = {}
    for word in words:
        match = re.fullmatch(r"(\d{1,9}):(\d{1,18}(?:\.\d{1,18})?)", word)
        if match is None:
            raise ConfigError(f"--slow {word!r} is not allowed: write RANK:FACTOR, such as 1:3")
        rank, factor = int(match[1]), float(match[2])
        _check_rank("--slow", word, rank, ranks)
        if not 1.0 <= factor < math.inf:
            raise ConfigError(f"--slow {word!r} is not allowed: a factor below 1 would be a speed-up; give 1 or more")
        slow[rank] = factor
    return slow


def parse_kill(words: Sequence[str], ranks: int) -> list[Kill]:
    """`1@4s` kills rank 1 four seconds into the training. Raises ConfigError."""
    from .launch import Kill

    kills = []
    for word in words:
        match = re.fullmatch(r"(\d{1,9})@(\d{1,18}(?:\.\d{1,18})?)s?", word)
        if match is None:
            raise ConfigError(f"--kill {word!r} is not allowed: write RANK@SECONDSs, such as 1@4s")
        _check_rank("--kill", word, int(match[1]), ranks)
        if float(match[2]) > MOST_SECONDS:
            raise ConfigError(f"--kill {word!r} is not allowed: no run lasts so long; give {MOST_SECONDS:,} s or less")
        kills.append(Kill(int(match[1]), float(match[2])))
    return kills


def _check_rank(option: str, word: str, rank: int, ranks: int) -> None:
    if rank >= ranks:
        raise ConfigError(f"{option} {word!r} is not allowed: there is no rank {rank}, the ranks are 0 to {ranks - 1}")


def _check_resume(config: Config) -> None:
    """What cannot be resumed is said before any process is started (K-12)."""
    if config.is_resumed:
        from .bundle import read_bundle

        read_bundle(Path(config.initial_state)).resume.settle(config)


def _check_script(script: str) -> None:
    if not Path(script).is_file():
        raise ConfigError(f"there is no script {script!r}; give the path of a Python file")


# --- commands --------------------------------------------------------------------------------------------------


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="paceline", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Train one PyTorch model on unequal machines: the fast ones do more steps instead of waiting.

    `paceline demo` shows it in a minute. `paceline run --ranks 2 train.py` does it with your own script.
    """
    _debug(debug)


@cli.command()
@click.option("--kill", "kill", multiple=True, metavar="RANK@SECONDSs",
              help="Run cadence alone and kill a rank in the middle, such as 1@4s.")
@click.option("--slow", multiple=True, default=("1:3",), show_default=True, metavar="RANK:FACTOR",
              help="Throttle a rank's compute: 1:3 leaves rank 1 a third of its speed.")
@click.option("--seeds", default=1, show_default=True, metavar="N", help="Repeat with N seeds and show the means.")
@click.option("--epochs", type=int, metavar="N", help="Epochs of each run.  [default: 30, with --kill more]")
@click.option("--out", default="paceline-demo", show_default=True, type=Place("folder"), metavar="DIR",
              help="Where timeline, report and model go.")
@DEBUG
def demo(kill: Sequence[str], slow: Sequence[str], seeds: int, epochs: int | None, out: Path, debug: bool) -> int:
    """Show on this machine what unequal ranks gain.

    Trains a small network on handwritten digits with two ranks over TCP, one of them three times slower: the fast
    rank alone, then both in lock-step, at a cadence, and asynchronously, over the same number of samples.
    """  # fmt: skip
    _debug(debug)
    folder_for("--out", out)
    with needing("demo"):
        from .demo import Demo
    for name, value in (("--seeds", seeds), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value} is not allowed: give 1 or more")
        if value is not None and value > MOST_REPEATS:
            raise ConfigError(f"{name} {value} is not allowed: give {MOST_REPEATS:,} or less")
    return Demo(
        out=out, seeds=seeds, epochs=epochs, slow=parse_slow(slow, 2), kills=parse_kill(kill, 2), debug=debugging()
    ).run()


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--ranks", type=int, required=True, metavar="N", help="Rank processes to start on this host.")
@click.option("--slow", multiple=True, metavar="RANK:FACTOR", help="Throttle a rank's compute, repeatable.")
@click.option("--kill", multiple=True, metavar="RANK@SECONDSs", help="Kill a rank in the middle, repeatable.")
@click.option("--run-dir", type=Place("folder"), metavar="DIR",
              help="Where the timeline and the model go.  [default: paceline-run, or the DIR of --resume]")
@RECORD
@RUN_OPTIONS
@DEBUG
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(ranks: int, slow: Sequence[str], kill: Sequence[str], run_dir: Path | None, record: Path | None, debug: bool,
        script: str, arguments: Sequence[str], **options: Any) -> int:  # fmt: skip
    """Train SCRIPT with several ranks on this host.

    SCRIPT uses paceline.Session; ARGUMENTS go to it. Ctrl-C ends the run after one last average and saves the model,
    a second Ctrl-C ends everything at once.
    """
    _debug(debug)
    config = _config(ranks, **options)
    run_dir = run_dir or options["resume"] or DEFAULT_RUN_DIR
    throttles, kills = parse_slow(slow, ranks), parse_kill(kill, ranks)
    _check_script(script)
    _check_resume(config)
    from .console import Display
    from .launch import LocalRun

    with Display() as display:
        job = LocalRun(
            ranks=ranks, script=[script, *arguments], coordinator=_as_arguments(options), run_dir=run_dir,
            watcher=display, slow=throttles, kills=kills, traces=True, record=record, debug=debugging(),
        )  # fmt: skip
        outcome = job.run()
    if outcome.exit_code:
        print(f"paceline: {outcome.text}", file=sys.stderr, flush=True)
    if outcome.saved and display.board.merged:
        click.echo(display.board.result(run_dir))
    return outcome.exit_code


@cli.command()
@click.option("--bind", default="tcp://127.0.0.1:1337", show_default=True, metavar="URL",
              help="Where to listen: only for this host unless it says so, as tcp://0.0.0.0:1337 does for ranks of any "
                   "host; port 0 picks a free one.")
@click.option("--ranks", type=int, required=True, metavar="N", help="Ranks to wait for before the training begins.")
@click.option("--run-dir", type=Place("folder"), metavar="DIR",
              help="Where the timeline and the model go.  [default: paceline-run, or the DIR of --resume]")
@click.option("--records", is_flag=True, help="Print every record as a line of JSON, for programs.")
@click.option("--journal", type=Place("file"), metavar="FILE",
              help="Keep a journal there. Started again with the same FILE, the coordinator goes on with the run.")
@RECORD
@RUN_OPTIONS
@DEBUG
def coordinate(bind: str, ranks: int, run_dir: Path | None, records: bool, journal: Path | None,
               record: Path | None, debug: bool, **options: Any) -> int:  # fmt: skip
    """Coordinate a run whose ranks come by `paceline join`.

    They come from other terminals or hosts. What they need is printed: the command, the token and the run id.
    """
    _debug(debug)
    config = _config(ranks, journal=journal, **options)
    _check_resume(config)
    run_dir = run_dir or options["resume"] or DEFAULT_RUN_DIR
    folder_for("--run-dir", run_dir)
    for option, file in (("--journal", journal), ("--record", record)):
        file_for(option, file, folders=True)
    from .coordinate import coordinate as body

    return body(config, bind, run_dir, records=records, record=record)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.option("--rank", type=int, metavar="N", help="Ask for this rank; left open, the coordinator picks.")
@click.option("--slow", type=float, default=1.0, metavar="FACTOR", help="Throttle compute: 3 leaves a third.")
@DEBUG
@click.argument("url")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def join(rank: int | None, slow: float, debug: bool, url: str, script: str, arguments: Sequence[str]) -> None:
    """Train SCRIPT as one rank of the run at URL.

    URL is where the coordinator listens, such as tcp://10.0.0.1:1337. PACELINE_TOKEN and PACELINE_RUN_ID must be in the
    environment, as `paceline coordinate` printed them.
    """
    _debug(debug)
    _check_script(script)
    if rank is not None and not 0 <= rank < MOST_RANKS:
        raise ConfigError(f"--rank {rank} is not allowed: ranks count from 0, to {MOST_RANKS - 1:,} at most")
    if not 1.0 <= slow < math.inf:
        raise ConfigError(f"--slow {slow} is not allowed: a factor below 1 would be a speed-up; give 1 or more")
    for name in ("PACELINE_TOKEN", "PACELINE_RUN_ID"):
        if not os.environ.get(name):
            raise ConfigError(f"{name} is not set: export it as `paceline coordinate` printed it")
    environment = {**os.environ, "PACELINE_URL": url, "PACELINE_SLOW": repr(slow)}
    if rank is not None:
        environment["PACELINE_RANK"] = str(rank)
    # The script takes over this very process: signals, exit code and output are its own.
    os.execve(sys.executable, [sys.executable, script, *arguments], environment)


@cli.command("explain-table")
@click.argument("name")
def explain_table(name: str) -> None:
    """Print the table of transitions NAME, cell by cell.

    A cell says what the machine does in one state on one event: a line for each row, in the order in which they are
    tried. A line has the number of the row in the table; its guards, or `otherwise`; what is done; behind `->` the
    state that follows, `=` being the same; in brackets the kind of row and the rule of the protocol.

    The table `joint`, of what these machines mean for each other, is printed row by row, under the step of the pass or
    what has happened.
    """
    from ..core.diagram import text
    from ..core.joint_page import joint_text
    from ..core.tables import JOINT, TABLES

    if name not in (*TABLES, JOINT.name):
        raise ConfigError(f"there is no table {name!r}; the tables are {', '.join((*TABLES, JOINT.name))}")
    click.echo(joint_text(JOINT) if name == JOINT.name else text(TABLES[name]), nl=False)


@cli.command("coverage-tables")
@click.option("--report", default="build/table-coverage.json", show_default=True, type=click.Path(path_type=Path),
              metavar="FILE", help="What `pytest tests/core --table-coverage FILE` has written.")
@click.option("--all", "everything", is_flag=True, help="Name every test of a row, not three.")
def coverage_tables(report: Path, everything: bool) -> int:
    """Print which tests take each row of each table.

    Ends with 1 when a row has none.
    """
    from ..core.tables import EVERY_TABLE
    from .table_coverage import TESTS_SHOWN, read
    from .table_coverage import report as told

    lines, untaken = told(read(report), EVERY_TABLE, None if everything else TESTS_SHOWN)
    click.echo("\n".join(lines))
    return 1 if untaken else 0


@cli.command("lint-tables")
def lint_tables() -> int:
    """Check every table: total, reachable, no dead row.

    Of the joint table: in order, and every name, phase and event known.

    Ends with 1 when there is something to mend, one line for each.
    """
    from ..core.lint import lint
    from ..core.tables import JOINT, TABLES, lint_of_joint, machine_class

    findings = [line for name, table in TABLES.items() for line in lint(table, machine_class(name))]
    findings += lint_of_joint(JOINT)
    for line in findings:
        click.echo(line)
    if not findings:
        rows = sum(len(table.rows) for table in TABLES.values())
        click.echo(f"{counted(len(TABLES), 'table')} with {counted(rows, 'row')}: total, reachable, no dead row")
        click.echo(f"the joint table with {counted(len(JOINT.rows), 'row')}: in order, every name known")
    return 1 if findings else 0


cli.add_command(check)
cli.add_command(conform)
cli.add_command(replay)
cli.add_command(simulate)
cli.add_command(mutants)
conform.add_command(averager)
conform.add_command(policy)


def _debug(wanted: bool) -> None:
    if wanted:
        os.environ["PACELINE_DEBUG"] = "1"


if __name__ == "__main__":
    main()
