"""Line charts as SVG: steps to the right, names of lines at the top, names of reference levels on the right."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: size of the picture
WIDTH, HEIGHT = 360.0, 228.0
#: its margins
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46.0, 12.0, 14.0, 32.0
#: the most points of a line: more are averaged
POINTS = 240
#: pixels between two names
LINE = 11.5
#: the most pixels of a letter
LETTER = 6.8
#: from the plot's edge to the names of levels
LEADER = 12.0


#: how many runs have colours of their own in the style sheet
MOST_RUNS = 6


@dataclass(frozen=True)
class Line:
    """Points in order, a single one as a ring; `kind` is its class in the style sheet: model, training, or run0 to run5
    for one of several runs.
    """

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "model"


@dataclass(frozen=True)
class ReferenceLine:
    """A horizontal line, named on the right of the picture."""

    name: str
    value: float

    @property
    def label(self) -> str:
        """The name and the number."""
        return f"{self.name} {self.value:.2f}"


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS points, each the mean of its neighbours; values that are not numbers are left out."""
    sound = [(x, y) for x, y in points if math.isfinite(y)]
    each = max(1, math.ceil(len(sound) / POINTS))
    parts = [sound[i : i + each] for i in range(0, len(sound), each)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """About `n` round numbers from `low` to `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / n
    unit = 10.0 ** math.floor(math.log10(rough))
    step = min((unit * k for k in (1, 2, 5, 10)), key=lambda step: abs((high - low) / step - n))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(x: float) -> str:
    """The number of a tick: 2k, 0.005, 1.5."""
    if x and abs(x) < 1e-3:
        return f"{x:.0e}".replace("e-0", "e-")
    return f"{x / 1e6:g}M" if abs(x) >= 1e6 else f"{x / 1e3:g}k" if abs(x) >= 1e4 else f"{x:g}"


def format_number(x: float) -> str:
    """A number in a sentence: 12,345, 3.37, 0.00052."""
    return f"{x:,.0f}" if 1e3 <= abs(x) < 1e15 else f"{x:.3g}"


@dataclass(frozen=True)
class Frame:
    """The mapping from numbers to pixels; the plot ends at `edge`, and names of levels follow on its right."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    edge: float = WIDTH - MARGIN_RIGHT

    def x(self, value: float) -> float:
        return MARGIN_LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1.0) * (self.edge - MARGIN_LEFT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return HEIGHT - MARGIN_BOTTOM - min(max(share, -3.0), 4.0) * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)


def chart(
    title: str,
    lines: Sequence[Line],
    levels: Sequence[ReferenceLine] = (),
    unit: str = "",
    zero: bool = False,
    axis: str = "step",
) -> str:
    """An SVG of the lines that have points; empty if none has. `axis` names what lies along the bottom.

    Values in the first twentieth of the steps that lie above or below the rest are cut off, and levels far above the
    lines are not drawn; a sentence below the picture says so.
    """
    drawn = [Line(line.name, points, line.kind) for line in lines if (points := thinned(line.points))]
    if not drawn:
        return ""
    frame, beyond = _frame(drawn, levels, zero)
    inside = _ordered([level for level in levels if level not in beyond], frame)
    names = spaced([(frame.y(level.value) + 3.5, level.name) for level in inside])
    body = [_axes(frame, axis), *(_level(frame, level, y) for level, (y, _) in zip(inside, names, strict=True))]
    said = f"{title}: " + "; ".join(f"{line.name or title} ends at {line.points[-1][1]:.4g}" for line in drawn)
    below = _cut(frame, drawn, title, axis)
    below += [f"Above the picture: {', '.join(f'{v.name} {v.value:.2f}' for v in beyond)}."] if beyond else []
    return (
        f'<figure class="chart"><figcaption>{_caption(title, unit, drawn)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{_e(said)}">{"".join(body)}'
        f"{_lines(frame, drawn)}</svg>" + (f'<p class="quiet">{_e(" ".join(below))}</p>' if below else "") + "</figure>"
    )


def _cut(frame: Frame, lines: Sequence[Line], title: str, axis: str) -> list[str]:
    """Sentences about lines that leave the picture: on which side, how far, and until which step."""
    said = []
    for line in lines:
        for outside, side, end, most in (
            ([p for p in line.points if p[1] > frame.y_high], "above", frame.y_high, max),
            ([p for p in line.points if p[1] < frame.y_low], "below", frame.y_low, min),
        ):
            if outside:
                far, last = most(y for _, y in outside), max(x for x, _ in outside)
                name = line.name.partition(",")[0] or title.lower()
                until = f"step {last:,.0f}" if axis == "step" else f"{last:,.0f} {axis}"
                said.append(
                    f"The axis is cut at {format_number(end)}: {name} is {side} it until {until}, and reaches "
                    f"{format_number(far)}."
                )
    return said


def _caption(title: str, unit: str, lines: Sequence[Line]) -> str:
    """The title, the unit, and each line's name with its colour."""
    heading = f"<span>{_e(title)}" + (f' <span class="quiet">{_e(unit)}</span>' if unit else "") + "</span>"
    named = "".join(
        f'<span class="key {line.kind}{" ring" if len(line.points) == 1 else ""}">{_e(line.name)}</span>'
        for line in lines
        if line.name
    )
    return heading + named


def _frame(lines: Sequence[Line], levels: Sequence[ReferenceLine], zero: bool) -> tuple[Frame, list[ReferenceLine]]:
    xs = [x for line in lines for x, _ in line.points]
    late = min(xs) + (max(xs) - min(xs)) / 20
    ys = [y for line in lines for x, y in line.points if x >= late] or [y for line in lines for _, y in line.points]
    low, high = min(ys), max(ys)
    room = (high - low) or abs(high) or 1.0
    beyond = [level for level in levels if level.value > high + room]
    ys += [level.value for level in levels if level not in beyond]
    low, high = min(ys), max(ys)
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    longest = max((len(level.label) for level in levels if level not in beyond), default=0)
    edge = WIDTH - (min(LEADER + LETTER * longest, WIDTH / 2) if longest else MARGIN_RIGHT)
    return Frame(min(xs), max(xs), 0.0 if zero else low - pad, high + pad, edge), beyond


def _ordered(levels: Sequence[ReferenceLine], frame: Frame) -> list[ReferenceLine]:
    return sorted(levels, key=lambda level: frame.y(level.value))


def spaced(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The same names from top to bottom, moved so that no two overlap."""
    labels: list[tuple[float, str]] = []
    for y, name in sorted(places):
        labels.append((max(y, labels[-1][0] + LINE) if labels else y, name))
    # move up again what was pushed out below
    floor = HEIGHT - MARGIN_BOTTOM - 3
    for i in range(len(labels) - 1, -1, -1):
        labels[i] = (min(labels[i][0], floor), labels[i][1])
        floor = labels[i][0] - LINE
    return labels


def _axes(frame: Frame, axis: str) -> str:
    rows = "".join(
        f'<line class="grid" x1="{MARGIN_LEFT}" x2="{frame.edge:g}" y1="{frame.y(v):.1f}" y2="{frame.y(v):.1f}"/>'
        f'<text class="tick" x="{MARGIN_LEFT - 5}" y="{frame.y(v) + 3.5:.1f}" text-anchor="end">'
        f"{tick_label(round(v, 10))}</text>"
        for v in ticks(frame.y_low, frame.y_high)
    )
    columns = "".join(
        f'<text class="tick" x="{frame.x(v):.1f}" y="{HEIGHT - MARGIN_BOTTOM + 14}" text-anchor="middle">'
        f"{tick_label(round(v, 10))}</text>"
        for v in ticks(frame.x_low, frame.x_high, 5)
        if MARGIN_LEFT - 1 <= frame.x(v) <= frame.edge - 8
    )
    return rows + columns + f'<text class="tick" x="{frame.edge:g}" y="{HEIGHT - 3}" text-anchor="end">{axis}</text>'


def _level(frame: Frame, level: ReferenceLine, name_at: float) -> str:
    """A dashed line, and its name right of the edge, with a leader line if the name had to move."""
    y, edge = frame.y(level.value), frame.edge
    lead = f'x1="{edge:.1f}" y1="{y:.1f}" x2="{edge + LEADER - 3:.1f}" y2="{name_at - 3.5:.1f}"'
    return (
        f'<line class="level" x1="{MARGIN_LEFT}" x2="{edge:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<line class="lead" {lead}/>'
        f'<text class="name quiet" x="{edge + LEADER:.1f}" y="{name_at:.1f}">{_e(level.label)}</text>'
    )


def _lines(frame: Frame, lines: Sequence[Line]) -> str:
    """The lines, clipped at the plot's edge, and their end points."""
    paths = "".join(
        f'<polyline class="line {line.kind}" points="{_path(frame, line)}"/>' for line in lines if len(line.points) > 1
    )
    ends = "".join(
        f'<circle class="end {line.kind}{" ring" if len(line.points) == 1 else ""}" '
        f'cx="{frame.x(line.points[-1][0]):.1f}" cy="{frame.y(line.points[-1][1]):.1f}" r="3"/>'
        for line in lines
    )
    # an svg within an svg is clipped at its own edge; a point on the first step is whole
    x, y, wide, high = (
        MARGIN_LEFT - 5,
        MARGIN_TOP - 2,
        frame.edge - MARGIN_LEFT + 9,
        HEIGHT - MARGIN_BOTTOM - MARGIN_TOP + 6,
    )
    box = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" viewBox="{x:g} {y:g} {wide:g} {high:g}"'
    return f"<svg {box}>{paths}{ends}</svg>"


def _path(frame: Frame, line: Line) -> str:
    return " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)


def _e(text: str) -> str:
    return html.escape(text, quote=True)
