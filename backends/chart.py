"""The demo's picture, drawn by hand as SVG: no plotting library is worth its megabytes for one figure.

Three parts share the page. The loss of every run over wall time, on a logarithmic scale. Below it, on the same time
axis, a lane for each rank: what it did. A lane is far too narrow for the thousands of spans of a lock-step run, so
each column of it shows by height which share of its time the rank spent in which state; nothing is rounded away. And
a close look at a moment in the middle, span by span, where the pattern of each policy can be seen with the eye.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import attrs

from .report import Recording, Span

__all__ = ["draw_report"]

WIDTH = 1000.0
LEFT, RIGHT = 190.0, 970.0
LOSS_TOP, LOSS_HEIGHT = 104.0, 250.0
LANE, LANE_GAP, GROUP_GAP = 18.0, 4.0, 14.0
COLUMN = 2.0
"""Width of a lane's column: about what a screen can show."""
CLOSE_S = 0.6
"""Length of the close look."""
LETTER = 6.4
"""Width to allow for a letter of 12 pixels, since the viewer's font is not known."""
TICKS = 8
"""Most marks on an axis."""

INK, FAINT, GRID, PAPER = "#22303c", "#66727d", "#e3e6e8", "#fdfdfb"
RUN_COLOURS = {"alone": "#8a939b", "lock-step": "#c8453b", "cadence": "#0b7a75", "async": "#d48a0c"}
OTHER_RUN = "#5b5ea6"
STATE_COLOURS = {"training": "#3f9b7f", "waiting": "#f3c14b", "averaging": "#6a5acd", "stopped": "#dfe3e6"}
STATE_WORDS = {"training": "training", "waiting": "waiting", "averaging": "averaging", "stopped": "gone"}


@attrs.frozen
class _Scale:
    """From values to pixels, linear between two points."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def draw_report(recordings: Sequence[Recording], labels: Mapping[str, str], *, target_loss: float, window: int) -> str:
    """An SVG document of the runs, in their order. `labels` are their titles; `window` is that of `Recording.losses`;
    a dashed line marks `target_loss`."""
    longest = max((recording.seconds for recording in recordings), default=1.0) or 1.0
    time = _Scale(0.0, longest * 1.02, LEFT, RIGHT)
    parts = [_text(LEFT, 34, "The same samples, trained by unequal ranks", size=20, weight="600")]
    parts.append(_text(LEFT, 56, _subtitle(recordings), size=13, fill=FAINT))
    parts += _losses(recordings, labels, time, target_loss, window)
    top = LOSS_TOP + LOSS_HEIGHT + 74
    parts += _heading(top, "What each rank did", "by height, its share of each moment")
    parts += _legend(top, {STATE_WORDS[state]: colour for state, colour in STATE_COLOURS.items()})
    lanes, bottom = _lanes(recordings, labels, time, top + 18, close=False)
    parts += lanes + _time_axis(time, top + 12, bottom, "seconds since the training began")
    top = bottom + 74
    parts += _heading(top, f"A close look: {CLOSE_S:g} seconds from the middle of each run", "span by span")
    close = _Scale(0.0, CLOSE_S, LEFT, RIGHT)
    lanes, bottom = _lanes(recordings, labels, close, top + 18, close=True)
    parts += lanes + _time_axis(close, top + 12, bottom, "seconds")
    height = bottom + 56
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
        f'height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">\n'
        f"<title>Loss over wall time and activity of each rank</title>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _subtitle(recordings: Sequence[Recording]) -> str:
    by_name = {recording.name: recording for recording in recordings}
    if "cadence" in by_name and "lock-step" in by_name and by_name["cadence"].seconds:
        ratio = by_name["lock-step"].seconds / by_name["cadence"].seconds
        return f"cadence needs {by_name['cadence'].seconds:.1f} s, lock-step {ratio:.2f} times as long"
    return ", ".join(f"{recording.name}: {recording.seconds:.1f} s" for recording in recordings)


# --- loss ------------------------------------------------------------------------------------------------------


def _losses(recordings: Sequence[Recording], labels: Mapping[str, str], time: _Scale, target: float,
            window: int) -> list[str]:  # fmt: skip
    curves = {recording.name: recording.losses(window) for recording in recordings}
    values = [loss for curve in curves.values() for _, loss in curve if loss > 0] + [target]
    low, high = math.log10(min(values) * 0.8), math.log10(max(values) * 1.25)
    level = _Scale(low, high, LOSS_TOP + LOSS_HEIGHT, LOSS_TOP)
    parts = _heading(LOSS_TOP - 16, "Training loss", "mean over an epoch of merged batches")
    for value in _log_ticks(low, high):
        y = level(math.log10(value))
        parts += [_line(LEFT, y, RIGHT, y, GRID), _text(LEFT - 8, y + 4, f"{value:g}", anchor="end", fill=FAINT)]
    parts += _time_axis(time, LOSS_TOP, LOSS_TOP + LOSS_HEIGHT, "seconds since the training began")
    y = level(math.log10(target))
    parts.append(_line(LEFT, y, RIGHT, y, FAINT, dash="5 4"))
    parts.append(_text(RIGHT, y - 5, f"target {target:g}", anchor="end", fill=FAINT))
    colours = {recording.name: RUN_COLOURS.get(recording.name, OTHER_RUN) for recording in recordings}
    parts += _legend(LOSS_TOP - 16, {labels.get(name, name): colour for name, colour in colours.items()})
    for recording in recordings:
        colour = colours[recording.name]
        points = [(time(t), level(math.log10(loss))) for t, loss in curves[recording.name] if loss > 0]
        if points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            stroke = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
            parts.append(f'<polyline points="{path}" {stroke}/>')
            parts.append(f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3.5" fill="{colour}"/>')
    return parts


# --- lanes -----------------------------------------------------------------------------------------------------


def _lanes(recordings: Sequence[Recording], labels: Mapping[str, str], time: _Scale, top: float, *,
           close: bool) -> tuple[list[str], float]:  # fmt: skip
    """A lane per run and rank, and where the last one ends."""
    parts, y = [], top
    for recording in recordings:
        parts.append(_text(12, y + 13, labels.get(recording.name, recording.name), weight="600"))
        start = max(0.0, recording.seconds / 2 - CLOSE_S / 2) if close else 0.0
        end = start + CLOSE_S if close else recording.seconds
        deaths = {record["rank"]: record["t"] - recording.began for record in recording.events("Died")}
        for rank in recording.ranks:
            parts.append(_text(LEFT - 8, y + 13, f"rank {rank}", anchor="end", fill=FAINT))
            spans = [
                Span(max(span.start, start) - start, min(span.end, end) - start, span.state)
                for span in recording.spans(rank) if span.end > start and span.start < end
            ]  # fmt: skip
            parts += _close_lane(spans, time, y) if close else _lane(spans, time, y)
            if rank in deaths and start <= deaths[rank] < end:
                parts += _death(time(deaths[rank] - start), y)
            y += LANE + LANE_GAP
        y += GROUP_GAP
    return parts, y - GROUP_GAP


def _lane(spans: Sequence[Span], time: _Scale, y: float) -> list[str]:
    """Columns that show the share of each state by height, training at the bottom: one path per state."""
    if not spans:
        return []
    step = COLUMN * (time.high - time.low) / (time.end - time.start)
    columns = max(1, math.ceil(spans[-1].end / step))
    shares = {state: [0.0] * columns for state in STATE_COLOURS}
    for span in spans:
        for column in range(int(span.start / step), min(columns, int(span.end / step) + 1)):
            inside = min(span.end, (column + 1) * step) - max(span.start, column * step)
            shares[span.state][column] += max(0.0, inside) / step
    whole = [sum(shares[state][column] for state in shares) for column in range(columns)]
    base, parts = [0.0] * columns, []
    for state, colour in STATE_COLOURS.items():
        path = []
        for column, share in enumerate(shares[state]):
            if share > 0:
                # The first and the last column may be covered in part only.
                x, height = time.start + column * COLUMN, share / whole[column] * LANE
                path.append(f"M{x:.0f} {y + LANE - base[column]:.1f}v{-height:.1f}h{COLUMN:.0f}v{height:.1f}z")
                base[column] += height
        if path:
            parts.append(f'<path d="{"".join(path)}" fill="{colour}"/>')
    return parts


def _close_lane(spans: Sequence[Span], time: _Scale, y: float) -> list[str]:
    return [
        f'<rect x="{time(span.start):.2f}" y="{y:.1f}" width="{time(span.end) - time(span.start):.2f}" '
        f'height="{LANE:.0f}" fill="{STATE_COLOURS[span.state]}"/>'
        for span in spans
    ]


def _death(x: float, y: float) -> list[str]:
    return [_line(x, y - 3, x, y + LANE + 3, "#b00020", 2), _text(x + 5, y + 13, "died", fill="#b00020", weight="600")]


# --- axes and marks --------------------------------------------------------------------------------------------


def _heading(y: float, title: str, note: str) -> list[str]:
    # One text, so that the note follows the title in whatever font the viewer has.
    return [
        f'<text x="{LEFT:.1f}" y="{y:.1f}" font-size="14" font-weight="600" fill="{INK}">{escape(title)}'
        f'<tspan dx="10" font-size="12" font-weight="400" fill="{FAINT}">{escape(note)}</tspan></text>'
    ]


def _legend(y: float, colours: Mapping[str, str]) -> list[str]:
    """Words with their colours, ending at the right edge."""
    parts, x = [], RIGHT
    for word, colour in reversed(list(colours.items())):
        parts.append(_text(x, y, word, anchor="end"))
        x -= LETTER * len(word) + 18
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="2" fill="{colour}"/>')
        x -= 18
    return parts


def _time_axis(time: _Scale, top: float, bottom: float, label: str) -> list[str]:
    parts = [_line(LEFT, bottom + 4, RIGHT, bottom + 4, FAINT)]
    for value in _ticks(time.high):
        x = time(value)
        parts.append(_line(x, bottom + 4, x, bottom + 9, FAINT))
        parts.append(_text(x, bottom + 22, f"{value:g}", anchor="middle", fill=FAINT))
    parts.append(_text((LEFT + RIGHT) / 2, bottom + 40, label, anchor="middle", fill=FAINT))
    return parts


def _ticks(high: float) -> list[float]:
    """Round values from 0 to at most `high`: a step of 1, 2 or 5 times a power of ten."""
    least = high / TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return [round(index * step, 9) for index in range(int(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten whose logarithm lies between the two."""
    values = [f * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for f in (1, 2, 5)]
    return [float(f"{value:.1g}") for value in values if low <= math.log10(value) <= high]


def _text(x: float, y: float, text: str, *, size: int = 12, fill: str = INK, anchor: str = "start",
          weight: str = "400") -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1, dash: str = "none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width:g}" '
        f'stroke-dasharray="{dash}"/>'
    )
