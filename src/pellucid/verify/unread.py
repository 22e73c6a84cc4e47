"""What `verify` does not read: the report says it, so that nobody takes it for verified."""

from pellucid.verify.comparison import Subject
from pellucid.verify.reference_laws import POSITIONS, spread_positions
from pellucid.verify.windows import most_keys


def what_is_not_read(s: Subject) -> tuple[str, ...]:
    """One line for each part of the model that nothing was compared of."""
    return (
        *_positions(s),
        *_windows(s),
        "dropout, compiled graphs and steps, int8 and int4 products",
    )


def _positions(s: Subject) -> list[str]:
    """Rows that are longer than the longest, and the positions that only they and given ones reach."""
    if s.n_row >= s.a.n_ctx:
        return []
    n_given = int((spread_positions(s.a.n_ctx, min(POSITIONS, s.n_row)) >= s.n_row).sum())
    later = s.a.n_ctx - s.n_row
    return [f"more than {s.n_row:,} tokens in a row; {later - n_given:,} of the {later:,} positions behind them"]


def _windows(s: Subject) -> list[str]:
    """Windows that no row crosses, and keys that not even a mask was asked for."""
    wide = sorted({w for layer in range(s.a.n_layers) if s.n_row <= (w := s.a.window(layer)) < s.a.n_ctx})
    lines = (
        [f"attention across windows of {', '.join(f'{w:,}' for w in wide)} tokens, but for their masks"] if wide else []
    )
    if most_keys(s.a) < s.a.n_ctx:
        lines.append(f"masks of more than {most_keys(s.a):,} keys")
    return lines
