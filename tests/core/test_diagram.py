"""What people read of a table is stable and complete: the diagram, the page, the dump."""

from __future__ import annotations

import re

from paceline.core.diagram import LEGEND, MOST_LABELS, markdown, mermaid, text
from paceline.core.tables import WORKER

from support.turnstile import TABLE


def test_mermaid_shows_ways_and_accepted_events() -> None:
    """Refused and ignored events that move nothing stay out of the picture; the order is that of definition."""
    assert mermaid(TABLE) == (
        "stateDiagram-v2\n"
        "    LOCKED\n"
        "    OPEN\n"
        "    SCRAPPED\n"
        "    [*] --> LOCKED\n"
        "    LOCKED --> OPEN: Coin [enough]\n"
        "    LOCKED --> LOCKED: Coin<br/>Kick [!broken]\n"
        "    LOCKED --> SCRAPPED: Kick [broken] (violation)\n"
        "    OPEN --> OPEN: Coin<br/>Kick [!broken]\n"
        "    OPEN --> LOCKED: Push\n"
        "    OPEN --> SCRAPPED: Kick [broken] (violation)\n"
        "    SCRAPPED --> SCRAPPED: Kick [!broken]\n"
        "    SCRAPPED --> [*]\n"
    )


def test_markdown_has_the_diagram_and_every_row_with_its_rule() -> None:
    page = markdown(TABLE).splitlines()
    assert page[:4] == ["# turnstile", "", "```mermaid", "stateDiagram-v2"]
    assert page[-7:-4] == [
        "| 0 | LOCKED | Coin | enough | take | OPEN | accept | C-1 |  |",
        "| 1 | LOCKED, OPEN | Coin |  | take | same | accept | C-1 C-2 |  |",
        "| 2 | OPEN | Push |  | turn, ring | LOCKED | accept | C-13 | one \\| person |",
    ]
    assert page[-1] == "| 6 | any | Kick | broken |  | SCRAPPED | violation | N-7 |  |"


def test_an_arrow_with_many_rows_has_a_number_and_its_rows_below_the_diagram() -> None:
    """Nobody reads 48 events on one arrow; what is written there is short, and nothing is left out."""
    page = markdown(WORKER)
    diagram, below = page.split("```\n\n", 1)
    labels = re.findall(r"--> \w+: (.+)", diagram)
    assert max(label.count("<br/>") for label in labels) < MOST_LABELS
    numbered = re.findall(r"(\w+) --> (\w+): \((\d+)\) (\d+) rows", diagram)
    assert numbered and [number for _, _, number, _ in numbered] == [str(n + 1) for n in range(len(numbered))]
    for source, target, number, rows in numbered:
        (line,) = re.findall(rf"^\| \({number}\) \| {source} \| {target} \| (.+) \|$", below, flags=re.MULTILINE)
        assert len(line.split("; ")) == int(rows) > MOST_LABELS


def test_text_dumps_the_expanded_cells() -> None:
    dump = text(TABLE).splitlines()
    assert dump[:8] == [
        "turnstile: starts in LOCKED",
        *LEGEND,
        "",
        "LOCKED",
        "  Coin",
        "    0 if enough: take -> OPEN (accept, C-1)",
        "    1 otherwise: take -> = (accept, C-1 C-2)",
    ]
    assert dump[-4:] == [
        "    3 otherwise: nothing -> = (refused, N-7)",
        "  Kick",
        "    5 if !broken: ring -> = (accept, M-1)",
        "    6 if broken: nothing -> SCRAPPED (violation, N-7)",
    ]
