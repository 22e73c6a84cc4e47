"""Figures as plain SVG text: lines, bars and grids of shaded squares, enough for the examples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#7b5ea7", "#b08900", "#444444")
DARK = (16, 52, 96)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 300, 62, 40, 20, 52


def save(name: str, width: float, height: float, parts: Sequence[str]) -> Path:
    """Write figures/NAME.svg: the parts on a white ground."""
    FIGURES.mkdir(exist_ok=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="12">'
    )
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    path = FIGURES / f"{name}.svg"
    path.write_text("\n".join([head, ground, *parts, "</svg>"]) + "\n", encoding="utf-8")
    return path


def text(x: float, y: float, words: str, anchor: str = "middle", **style: str) -> str:
    """A text at a point; `style` are further attributes, such as fill."""
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    extra = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{words}</text>'


def _frame(title: str, x_label: str, y_label: str, ticks: Sequence[tuple[float, str]]) -> list[str]:
    """Title, axis labels, and a grey line for each tick of the vertical axis, given in pixels."""
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        text(LEFT, 22, title, "start", font_weight="bold"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label),
        text(16, middle, y_label, transform=f"rotate(-90 16 {middle:.0f})"),
    ]
    for y, label in ticks:
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y + 4, label, "end"))
    return parts


def _round_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between low and high, three to seven of them."""
    power = 10.0 ** math.floor(math.log10((high - low) or 1)) / 10
    step = next(m * power for m in (1, 2, 5, 10, 20) if (high - low) / (m * power) <= 6)
    return [round(k * step, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _scale(low: float, high: float, start: float, stop: float):
    return lambda value: start + (value - low) / ((high - low) or 1) * (stop - start)


def lines(
    name: str, title: str, x_label: str, y_label: str, x: Sequence, series: Mapping[str, Sequence[float]],
    low: float | None = None, high: float | None = None,
) -> Path:  # fmt: skip
    """One line with dots per series over evenly spaced x, whose entries are shown as they are."""
    every = [value for values in series.values() for value in values]
    low, high = min(every) if low is None else low, max(every) if high is None else high
    across = _scale(0, len(x) - 1, LEFT + 24, WIDTH - RIGHT - 24)
    up = _scale(low, high, HEIGHT - BOTTOM, TOP + 8)
    parts = _frame(title, x_label, y_label, [(up(t), f"{t:g}") for t in _round_numbers(low, high)])
    step = -(-len(x) // 10)
    parts += [text(across(k), HEIGHT - BOTTOM + 18, str(v)) for k, v in enumerate(x) if k % step == 0]
    for values, colour in zip(series.values(), COLOURS, strict=False):
        points = [(across(k), up(value)) for k, value in enumerate(values)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    return save(name, WIDTH, HEIGHT, parts + _legend(list(series)))


def bars(name: str, title: str, y_label: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> Path:
    """Groups of bars from zero, one colour per series, each with its number above it."""
    high = max(value for values in series.values() for value in values)
    up = _scale(0, high, HEIGHT - BOTTOM, TOP + 24)
    parts = _frame(title, "", y_label, [(up(t), f"{t:g}") for t in _round_numbers(0, high)])
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = room * 0.8 / len(series)
    for s, (values, colour) in enumerate(zip(series.values(), COLOURS, strict=False)):
        for g, value in enumerate(values):
            x = LEFT + g * room + room * 0.1 + s * width
            parts.append(
                f'<rect x="{x:.1f}" y="{up(value):.1f}" width="{width - 2:.1f}" '
                f'height="{HEIGHT - BOTTOM - up(value):.1f}" fill="{colour}"/>'
            )
            parts.append(text(x + width / 2 - 1, up(value) - 4, f"{value:.3g}", font_size="10"))
    parts += [text(LEFT + (g + 0.5) * room, HEIGHT - BOTTOM + 18, label) for g, label in enumerate(groups)]
    return save(name, WIDTH, HEIGHT, parts + _legend(list(series)))


def _legend(labels: Sequence[str]) -> list[str]:
    """The names of the series with their colours, to the right of the title; nothing for a single series."""
    if len(labels) < 2:
        return []
    parts, x = [], WIDTH - RIGHT
    for label, colour in reversed(list(zip(labels, COLOURS, strict=False))):
        parts.append(text(x, 38, label, "end", fill=colour))
        x -= 7.2 * len(label) + 14
    return parts


def grids(
    name: str, panels: Mapping[str, Sequence[Sequence[float]]], labels: Sequence[str] = (), cell: float = 0
) -> Path:
    """Matrices side by side, 0 white and 1 dark; rows read columns. `labels` stand beside rows and columns."""
    n = max(len(m) for m in panels.values())
    cell = cell or min(24.0, 260 / n)
    margin = 12 + 7 * max((len(label) for label in labels), default=0)
    side = n * cell + margin + 18
    parts = []
    for p, (title, matrix) in enumerate(panels.items()):
        x0, y0 = p * side + margin, 34 + (margin if labels else 0)
        parts.append(text(x0, 20, title, "start", font_weight="bold"))
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                share = min(max(float(value), 0.0), 1.0)
                if share > 0.004:
                    colour = "rgb({},{},{})".format(*(round(255 - share * (255 - end)) for end in DARK))
                    parts.append(
                        f'<rect x="{x0 + j * cell:.1f}" y="{y0 + i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" '
                        f'fill="{colour}"/>'
                    )
        parts.append(
            f'<rect x="{x0:.1f}" y="{y0:.1f}" width="{len(matrix[0]) * cell:.1f}" height="{len(matrix) * cell:.1f}" '
            'fill="none" stroke="#999"/>'
        )
        for k, label in enumerate(labels):
            parts.append(text(x0 - 5, y0 + (k + 0.7) * cell, label, "end"))
            x, y = x0 + (k + 0.7) * cell, y0 - 5
            parts.append(text(x, y, label, "start", transform=f"rotate(-60 {x:.0f} {y:.0f})"))
    height = 34 + (margin if labels else 0) + n * cell + 14
    return save(name, len(panels) * side + 8, height, parts)
