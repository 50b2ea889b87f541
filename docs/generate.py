"""Pages that are made from the code, so that they cannot say anything else.

    python docs/generate.py --write      # write them
    python docs/generate.py --check      # name those that differ from the code and end with 1

The code is the *installed* package (`make dev` installs the checkout in place): what is compared is what users run. No
page holds a date, a path or an order that could differ from one machine to the next.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click

from paceline.backends import conformance as averagers
from paceline.backends.cli import cli
from paceline.core import config, messages, tables, timeline
from paceline.core.config import LATER, Config
from paceline.core.conformance import OUTCOME_FIELDS, REPORT_FIELDS, Status, policies
from paceline.core.diagram import markdown
from paceline.core.joint_page import joint_markdown
from paceline.core.knob_types import type_words
from paceline.core.messages import BULK_KIND, CONTROLS, KINDS, REPORTS, Message
from paceline.core.reasons import CODES
from paceline.core.schema import EntryClass, Schema, SchemaEntry
from paceline.core.simulation.action import FAULTS, MOVES, WISHES
from paceline.core.simulation.faults import PROFILES, SITES
from paceline.core.simulation.marks import MARKS
from paceline.transports import conformance as transports

HERE = Path(__file__).parent
DOCS = HERE
REFRESH = "make dev && .venv/bin/python docs/generate.py --write"


def pages() -> dict[str, str]:
    """Every generated page: its path below docs/, its text."""
    made = {f"machines/{name}.md": machine_page(name) for name in (*tables.TABLES, tables.JOINT.name)}
    made["reference/messages.md"] = head("core/messages.py and what it imports") + messages_page()
    made["reference/config.md"] = head("core/config.py and docs/knobs.toml") + config_page()
    made["reference/command-line.md"] = head("backends/cli.py") + command_page()
    made["reference/timeline.md"] = head("core/timeline.py") + timeline_page()
    made["reference/conformance.md"] = head("the checks of each kit") + conformance_page()
    made["reference/simulation.md"] = head("core/simulation") + simulation_page()
    made["reference/reasons.md"] = head("core/reasons.py") + reasons_page()
    made["reference/rules.md"] = head("docs/rules.toml, the tables, the code and the tests") + beside("rules").page()
    cases = beside("field_cases")
    cases_page = cases.page(beside("rules").test_citations(cases.cited), table, prose)
    made["reference/field-cases.md"] = head("docs/field_cases.toml and the tests") + cases_page
    return made


@functools.cache
def beside(name: str) -> ModuleType:
    """A file beside this one, found by its path, as this file is by the tests: the folder is no package."""
    spec = importlib.util.spec_from_file_location(f"paceline_docs_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def head(source: str) -> str:
    """The comment that keeps people from editing the page itself."""
    return f"<!-- Made by docs/generate.py from {source}; edit that, then: {REFRESH} -->\n\n"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; the cells' bars are escaped."""
    lines = [list(header), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


# --- machines ------------------------------------------------------------------------------------------------------


def machine_page(name: str) -> str:
    """What the machine is, or the joint table; why its table is as it is, its diagram, its rows."""
    if name == tables.JOINT.name:
        page = joint_markdown(tables.JOINT, linked)
        names = (
            "A name without a dot is of `Coordinator`, any other of a part of it or of a module beside it. "
            "`core/joint.py` says how the rows have their turn, `paceline explain-table joint` prints them."
        )
    else:
        owner = tables.machine_class(name)
        where = owner.__module__.removeprefix("paceline.").replace(".", "/")
        page = markdown(tables.TABLES[name], linked)
        names = (
            f"Guards and effects are methods of `{owner.__name__}` in `{where}.py` or of its bases. `paceline "
            f"explain-table {name}` prints the table cell by cell, where `-> =` is a phase that stays. What the kinds "
            "mean: [concepts](../concepts.md#how-a-table-answers)."
        )
    title, rest = page.split("\n", 1)
    parts = (head(f"core/table_{name}.py") + title, summary(name), *reasons(name), prose(names))
    return "\n\n".join(parts) + f"\n{rest}"


def linked(ids: str) -> str:
    """The ids of a row as links to their rules."""
    return beside("rules").RULE.sub(lambda found: rule_link(found[0]), ids)


def summary(name: str) -> str:
    """What the module says about one table: its item in the list of machines."""
    text = inspect.getdoc(tables) or ""
    found = re.search(rf"^- ({name.upper()}, .*?)(?=^- |\n\n)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"the docstring of core/tables.py has no item that begins with '- {name.upper()}, '")
    return prose(found[1])


def reasons(name: str) -> list[str]:
    """The paragraphs of the docstring of a table's module, but for its first line; and of the module with the rows
    of a flavour, if there is one."""
    paragraphs: list[str] = []
    for module in (f"table_{name}", f"table_{name}_collective"):
        if importlib.util.find_spec(f"paceline.core.{module}") is None:
            continue
        given = (inspect.getdoc(importlib.import_module(f"paceline.core.{module}")) or "").split("\n\n")[1:]
        if not given:
            raise SystemExit(f"core/{module}.py does not give its reasons in its docstring")
        paragraphs += given
    return [prose(paragraph) for paragraph in paragraphs]


def prose(text: str) -> str:
    """A paragraph, or the items of a list, in lines of even length."""
    return "\n".join(
        textwrap.fill(" ".join(item.split()), 120, subsequent_indent="  " if item.startswith("- ") else "",
                      break_on_hyphens=False, break_long_words=False)
        for item in re.split(r"\n(?=- )", text)
    )  # fmt: skip


# --- messages ------------------------------------------------------------------------------------------------------


def messages_page() -> str:
    """Every kind of frame with its fields, then the records and enumerations the fields are made of."""
    stamp = {field.name for field in attrs.fields(Message)} | {"control_seq", "report_seq"}
    direction = {kind: "rank to coordinator" for kind in REPORTS} | {kind: "coordinator to rank" for kind in CONTROLS}
    out = ["# Messages\n", paragraphs(messages), ""]
    out.append(f"Kind `0x{BULK_KIND:02x}` is a block of the bulk lane, see [BulkBlock](#bulkblock).\n")
    groups = (
        ("Session", [kind for kind in KINDS.values() if kind not in direction]),
        ("Coordinator to rank", list(CONTROLS)),
        ("Rank to coordinator", list(REPORTS)),
    )
    for title, kinds in groups:
        out.append(f"## {title}\n")
        for kind in kinds:
            hidden = stamp if kind in direction else set()
            out.append(record(kind, f"`0x{messages.KIND_OF[kind]:02x}` ", hidden))
    out.append("## Records\n\nParts of messages, and what travels on the bulk lane.\n")
    parts = (messages.Plan, messages.RoundKey, messages.ResumeClaim, Schema, SchemaEntry)
    out += [record(kind, "", set()) for kind in (*parts, messages.BulkBlock, messages.RoundResult)]
    out.append(record(messages.Contribution, "", stamp))
    out.append("## Enumerations\n")
    out += [enumeration(kind) for kind in enumerations()]
    return "\n".join(out)


def enumerations() -> Iterator[type[IntEnum]]:
    for name, kind in vars(messages).items():
        if isinstance(kind, type) and issubclass(kind, IntEnum) and kind is not IntEnum and name == kind.__name__:
            yield kind
    yield EntryClass


def record(kind: Any, number: str, hidden: set[str]) -> str:
    rows = [
        (f"`{field.name}`", f"`{annotation(field)}`", "" if field.default is attrs.NOTHING else default_of(field))
        for field in attrs.fields(kind)
        if field.name not in hidden
    ]
    body = table(("field", "type", "if absent"), rows) if rows else "No fields of its own.\n"
    return f"### {kind.__name__}\n\n{prose(number + paragraphs(kind))}\n\n{body}"


def enumeration(kind: type[IntEnum]) -> str:
    members = ", ".join(f"`{member.value}` {member.name.lower()}" for member in kind)
    return f"### {kind.__name__}\n\n{paragraphs(kind)}\n\n{members}\n"


def annotation(field: Any) -> str:
    return field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def default_of(field: Any) -> str:
    default = field.default
    if isinstance(default, type(attrs.Factory(dict))):
        return "empty"
    return {None: "none", b"": "empty", (): "empty"}.get(default, f"`{default!r}`")


def paragraphs(thing: Any) -> str:
    """The docstring, paragraph by paragraph."""
    text = inspect.getdoc(thing) or ""
    return "\n\n".join(prose(paragraph) for paragraph in text.split("\n\n"))


# --- configuration -------------------------------------------------------------------------------------------------


def config_page() -> str:
    """Every knob: default and limits from the code, meaning from knobs.toml, which has to name them all."""
    groups = tomllib.loads((DOCS / "knobs.toml").read_text(encoding="utf-8"))["group"]
    fields = {field.name: field for field in attrs.fields(Config)}
    told = [knob for group in groups for knob in group["knobs"]]
    if sorted(told) != sorted(fields):
        odd = ", ".join(sorted(set(told) ^ set(fields))) or "a knob twice"
        raise SystemExit(f"docs/knobs.toml and core/config.py do not name the same knobs: {odd}")
    limits, types = beside("knob_limits").knob_limits(), type_words(Config)
    out = ["# Configuration\n", paragraphs(config) + "\n"]
    out.append(prose(
        "From Python: `Config(policy=\"cadence\", anchor=20)`. From the command line: an option of its own where there "
        "is one, else `--set anchor=20` ([command line](command-line.md)). A rank's script may state batch size, "
        "epochs and seed; every other value is the coordinator's."
    ) + "\n")  # fmt: skip
    for group in groups:
        knobs = group["knobs"].items()
        rows = [(f"`{knob}`", knob_default(fields[knob]), "; ".join(filter(None, (types.get(knob), limits.get(knob)))),
                 text) for knob, text in knobs]  # fmt: skip
        out += [f"## {group['title']}\n", table(("knob", "default", "allowed", "meaning"), rows)]
    out += ["## Not in this version\n", "These are refused by name, with the feature they wait for.\n"]
    out.append(table(("knob", "belongs to"), ((f"`{knob}`", feature) for knob, feature in LATER.items())))
    return "\n".join(out)


def knob_default(field: Any) -> str:
    if isinstance(field.default, bytes):
        return f"{len(field.default)} zero bytes"
    if isinstance(field.default, type(attrs.Factory(dict))):
        star, collective = (getattr(Config(averager=name), field.name) for name in ("star", "collective"))
        return f"`{star!r}`, under `collective` `{collective!r}`"
    return "unset" if field.default is None else f"`{field.default!r}`"


# --- simulated runs ------------------------------------------------------------------------------------------------


def simulation_page() -> str:
    """The vocabulary of simulated runs: actions, faults, profiles, sites, marks, invariants."""
    out = ["# Simulated runs\n", prose(
        "What a [schedule](../guides/simulate.md) can say, what `paceline simulate` does to a cohort, and what it "
        "looks for. Names are stable: they stand in files that are kept."
    ) + "\n"]  # fmt: skip
    for title, kinds in (("Moves: what happens by itself", MOVES), ("Faults", FAULTS), ("Wishes", WISHES)):
        out += [f"## {title}\n", table(("action", "what happens"), ((f"`{k}`", told) for k, told in kinds.items()))]
    out.append("## Profiles\n")
    out.append(prose(
        "Weights of the kinds of faults in each profile. A run leaves out each kind with a probability of 40 % and "
        "multiplies the weights of the others by 1, 4, 16 or 64."
    ) + "\n")  # fmt: skip
    known = sorted({kind for wild in PROFILES.values() for kind in wild.weights})
    rows = [(f"`{kind}`", *(f"{wild.weights.get(kind, 0):g}" for wild in PROFILES.values())) for kind in known]
    out.append(table(("kind", *PROFILES), rows))
    out += ["## Sites of storms\n", table(("site", "what happens there"), SITES.items())]
    out += ["## Marks\n", table(("mark", "rule"), MARKS.items())]
    out += ["## Invariants\n", table(("rule", "what it says"), checked())]
    return "\n".join(out)


def checked() -> Iterator[tuple[str, str]]:
    """The rules that simulated runs are checked against, as the sources of the checks name them."""
    texts = "".join(path.read_text(encoding="utf-8") for path in sorted((HERE.parent / "core/simulation").glob("*.py")))
    found = set(re.findall(r'"([A-Z]-\d+|I\d+)",\s*(?:f?"|text)', texts))
    for section in tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8")).values():
        for rule, said in section.items():
            if rule in found:
                yield rule, said if isinstance(said, str) else said["title"]


# --- command line --------------------------------------------------------------------------------------------------


def command_page() -> str:
    """Every command with its options. Written from click's own description, not from its `--help`, whose layout changes
    with click and with the width of the terminal."""
    out = ["# Command line\n", f"{prose_of(cli.help)}\n"]
    out.append(prose(
        "Every command has `--help`, and ends with one of the [exit codes](exit-codes.md). An error is one line; "
        "`--debug` adds the traceback."
    ) + "\n")  # fmt: skip
    for name, command in sorted(cli.commands.items()):
        out += one_command(f"paceline {name}", command, "##")
    return "\n".join(out)


def one_command(name: str, command: click.Command, heading: str) -> list[str]:
    """A command, and those below it if it is a group."""
    arguments = [argument(each) for each in command.params if isinstance(each, click.Argument)]
    group = isinstance(command, click.Group)
    usage = " ".join([name, *(["COMMAND"] if group else ["[OPTIONS]", *arguments])])
    out = [f"{heading} {name}\n", f"    {usage}\n", f"{prose_of(command.help)}\n"]
    rows = [option(each) for each in command.params if isinstance(each, click.Option)]
    if rows:
        out.append(table(("option", "default", "meaning"), rows))
    if isinstance(command, click.Group):
        for below, each in sorted(command.commands.items()):
            out += one_command(f"{name} {below}", each, f"{heading}#")
    return out


def prose_of(text: str | None) -> str:
    return "\n\n".join(prose(paragraph) for paragraph in inspect.cleandoc(text or "").split("\n\n"))


def argument(parameter: click.Argument) -> str:
    name = parameter.metavar or (parameter.name or "").upper()
    if parameter.nargs == -1:
        return f"[{name}]..."
    return name if parameter.required else f"[{name}]"


def option(parameter: click.Option) -> tuple[str, str, str]:
    words = ", ".join((*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif isinstance(default, (list, tuple)) and default:
        shown = f"`{' '.join(map(str, default))}`"
    elif isinstance(default, (str, int, float)) and not isinstance(default, bool):
        shown = f"`{default}`"
    elif parameter.secondary_opts:
        shown = f"`{(parameter.opts if default else parameter.secondary_opts)[0]}`"
    else:
        shown = ""
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.type.name.upper()}"
    return f"`{words}{value}`", shown, parameter.help or ""


# --- conformance kits ----------------------------------------------------------------------------------------------

KITS = {
    "transport": transports.KIT, "averager": averagers.KIT,
    **{f"policy --kind {kind}": kit for kind, kit in policies.KITS.items()},
}  # fmt: skip
"""Every kit, by the words of its command below `paceline conform`."""


def conformance_page() -> str:
    """What each kit can claim and what it checks."""
    out = ["# Conformance kits\n", prose(
        "A kit tells whether a plug-in keeps its contract: `paceline conform` ([command line](command-line.md)). The "
        "id of a check never changes. A check that needs a capability is run when the plug-in claims it; else it is "
        "reported as not claimed, after a look whether the capability is really lacking where that can be told. What "
        "fails at L0, or at T101 or T320, or has a call that never comes back, cannot be judged further: the checks "
        "after it are reported as not checked (with pytest each check stands alone). A check is taken to hang after "
        "`--patience` seconds, and has then failed in the name of that call; so a kit ends, whatever the plug-in does, "
        "within twice that and the time that its other checks need. A call that raises what ends a program, such as "
        "`SystemExit`, has failed likewise, and the checks after it are run. The command runs a kit in a process of "
        "its own, so that it has an outcome, and a report, whatever becomes of that: a call that holds the interpreter "
        "itself (a loop in C), which nothing else can end, is ended with the process, after twice the patience and 15 "
        "seconds; its check has failed, in the name of the call and of the line where it stood, and where every thread "
        "was is on standard error. A crash, and an end of the process by other ways than an exception, are told "
        "likewise. With pytest a kit runs in the process of pytest: there such a call is for the command."
    ) + "\n"]  # fmt: skip
    out += ["## The report\n", prose(
        "`--json FILE` writes one JSON object, UTF-8, with a line end; `--json -` prints it, with nothing else, on "
        "standard output, and what people read goes to standard error. It holds no time and no date, and of a file of "
        "the plug-in its name and a line alone, so that two reports can be compared. The command ends with 0 when `ok` "
        "is true and with 1 when it is false; any other [exit code](exit-codes.md) means that there is no report."
    ) + "\n"]  # fmt: skip
    out.append(table(("field", "meaning"), ((f"`{name}`", said) for name, said in REPORT_FIELDS.items())))
    out += ["Each outcome:\n", table(("field", "meaning"), ((f"`{name}`", s) for name, s in OUTCOME_FIELDS.items()))]
    out.append(table(("status", "meaning"), ((f"`{status.value}`", status.meaning) for status in Status)))
    for name, kit in KITS.items():
        out += [f"## {name}\n", f"Version {kit.version}.\n"]
        out.append(table(("capability", "meaning"), ((f"`{each}`", text) for each, text in kit.capabilities.items())))
        rows = ((check.id, check.level.name, f"[{check.name.replace('_', ' ')}](../{check.doc})", check.asserts,
                 ", ".join(f"`{each}`" for each in (check.within, check.needs) if each)) for check in kit.checks
                )  # fmt: skip
        out.append(table(("id", "level", "check", "what holds when it passes", "needs"), rows))
    return "\n".join(out)


# --- reasons -------------------------------------------------------------------------------------------------------


def reasons_page() -> str:
    """Every code of `explain()`: what it means, by which rule, for whom, since when and until when."""
    out = ["# Reasons\n", prose(
        "Whatever does not move is explained: `coordinator.explain()` gives all reasons, `explain(rank)` those of "
        "one rank and of the whole run (O-4). [Embedding](../guides/embed.md#who-waits-for-whom) shows it; "
        "`paceline replay --explain` prints it, a dump at a stall holds it. Each reason has a code that never "
        "changes its meaning, the rank (none: the whole run), what it does in words, the rule, the ranks it waits "
        "for, and the numbers that the rule went by."
    ) + "\n", prose(
        "`since` and `until` are seconds of the clock that the machine is driven by. `since` is when that wait "
        "began; a coordinator that was itself away counts signs of life, duties and lost links from its return "
        "(M-9), one that was started anew counts everything from there (M-40). `until` is when the wait ends by "
        "itself; where it is none, no time ends it, but what stands here does. `then` is what is done at that time, "
        "unless the reason itself says something else, as the ladder of M-12 to M-14 does."
    ) + "\n"]  # fmt: skip
    for name, code in CODES.items():
        ruled = ", ".join(rule_link(rule, "") for rule in code.rules)
        rows = [("rule", ruled), ("waits for", code.waits), ("since", code.since), ("until", code.until),
                *([("then", code.then)] if code.then else []), ("what to do", code.remedy)]  # fmt: skip
        out.append(f"## {name}\n\n{prose(code.meaning)}\n\n{table((name, ''), rows)}")
    return "\n".join(out)


def rule_link(rule: str, folder: str = "../reference/") -> str:
    """A rule's id as a link to its heading."""
    return f"[{rule}]({folder}rules.md#{rule.lower()})"


# --- timeline --------------------------------------------------------------------------------------------------------


def timeline_page() -> str:
    """Every event with its fields, in the order of the declarations."""
    out = ["# Timeline\n", paragraphs(timeline) + "\n"]
    out.append(prose(
        "In `timeline.jsonl` of a run directory each event is one line of JSON: its name is `event`, its fields stand "
        "beside it, with the stamp of every record (O-3)."
    ) + "\n")  # fmt: skip
    for event in timeline.TIMELINE.values():
        rows = [(f"`{field}`", meaning) for field, meaning in event.fields.items()]
        body = table(("field", "meaning"), rows) if rows else "Fields as the occasion has them.\n"
        out.append(f"## {event.name}\n\n{prose(event.meaning)}\n\n{body}")
    return "\n".join(out)


# --- write and check -----------------------------------------------------------------------------------------------


def stale(docs: Path) -> list[str]:
    """The pages below `docs` that differ from what the code says, and pages of machines that no longer exist."""
    made = pages()
    missing = [name for name, text in made.items() if not (docs / name).is_file() or read(docs / name) != text]
    orphans = [f"machines/{page.name}" for page in sorted((docs / "machines").glob("*.md"))]
    return missing + [name for name in orphans if name not in made]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Do what the one option says; gives the exit code."""
    parser = argparse.ArgumentParser(description="Make the pages that come from the code.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the pages")
    what.add_argument("--check", action="store_true", help="name the pages that are not as --write would leave them")
    if parser.parse_args(arguments).write:
        for name, text in pages().items():
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / name).write_text(text, encoding="utf-8")
        return 0
    found = stale(DOCS)
    for name in found:
        print(f"docs/{name} is stale", file=sys.stderr)
    if found:
        print(f"refresh with: {REFRESH}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
