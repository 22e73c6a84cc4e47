"""A tokenizer as tables and trees in a terminal."""

import math
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from pellucid.text.sanitize import sanitize as seen
from pellucid.text.tokenizers.base import Tokenizer
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.survey import Measure, Merged, Survey, merge_trees

#: shown for a ratio with denominator 0
NO_RATIO = "\u2013"


def print_survey(survey: Survey, words: Iterable[str], rows: int) -> None:
    """Print the kind, the measurements by file and by script, the longest and rarest tokens, and words as trees."""
    console, tokenizer = Console(), survey.tokenizer
    merges = f", {len(tokenizer.merges):,} merges" if isinstance(tokenizer, BPETokenizer) else ""
    console.print(f"[bold]{tokenizer.kind}[/bold], {tokenizer.n_vocab:,} ids{merges}; special: {special_of(tokenizer)}")
    if survey.total.documents:
        console.print(measures("by file", {**largest_files(survey.by_file, rows), "all": survey.total}))
        if len(survey.by_script) > 1:
            console.print(measures("by script of the text", survey.by_script))
        console.print(
            f"{survey.unused:,} of {tokenizer.n_vocab - len(tokenizer.special):,} ids do not occur in these texts"
        )
        console.print(tokens_table("rarest tokens in these texts", survey, survey.rarest(rows)))
    console.print(tokens_table("longest tokens", survey, survey.longest(rows)))
    for word in words:
        console.print(word_tree(tokenizer, word))


def special_of(tokenizer: Tokenizer) -> str:
    """Every special token with its id."""
    return ", ".join(f"{escape(name)} = {i}" for name, i in tokenizer.special.items())


def largest_files(files: dict[str, Measure], rows: int) -> dict[str, Measure]:
    """The largest files, and the others combined."""
    ranked = sorted(files, key=lambda name: -files[name].n_bytes)
    shown = {name: files[name] for name in ranked[:rows]}
    if rest := ranked[rows:]:
        fields = vars(Measure())
        shown[f"{len(rest):,} other files"] = Measure(**{f: sum(getattr(files[n], f) for n in rest) for f in fields})
    return shown


def measures(title: str, rows: dict[str, Measure]) -> Table:
    """A row for each measure: sizes and compression."""
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    unknown = any(m.n_unknown for m in rows.values())
    for column in ("bytes", "tokens", "bytes / token", "characters / token", "tokens / word"):
        table.add_column(column, justify="right")
    if unknown:
        table.add_column("unknown", justify="right")
    for name, m in rows.items():
        cells = [f"{m.n_bytes:,}", f"{m.n_tokens:,}"]
        ratios = m.bytes_per_token, m.characters_per_token, m.tokens_per_word
        cells += [NO_RATIO if math.isnan(x) else f"{x:.2f}" for x in ratios]
        table.add_row(escape(name), *cells, *([f"{m.n_unknown / max(m.n_tokens, 1):.2%}"] if unknown else []))
    if not all(m.n_words for m in rows.values()):
        table.caption = f"{NO_RATIO}: nothing to divide by; a word is a run of letters and digits"
        table.caption_justify = "left"
    return table


def tokens_table(title: str, survey: Survey, ids: list[int]) -> Table:
    """Tokens with their bytes and number of occurrences."""
    table = Table(title=title, title_justify="left")
    table.add_column("id", justify="right")
    table.add_column("token", overflow="fold")
    table.add_column("bytes", justify="right")
    counted = bool(survey.total.documents)
    if counted:
        table.add_column("count", justify="right")
    for i in ids:
        cells = [str(i), printable_token(survey.tokenizer.token_str(i)), str(len(survey.tokenizer.token_bytes(i)))]
        table.add_row(*cells, *([f"{survey.counts[i]:,}"] if counted else []))
    return table


def word_tree(tokenizer: Tokenizer, word: str) -> Tree:
    """The tokens of a word, each with its merges, numbered in the order in which they were learned."""
    trees = merge_trees(tokenizer, word)
    root = Tree(f"{printable_token(word)}  [dim]{len(trees)} token{'s' * (len(trees) != 1)}[/dim]")

    def grow(branch: Tree, node: Merged) -> None:
        label = printable_token(node.token.decode("utf-8", "backslashreplace"))
        here = branch.add(label if node.rank is None else f"{label}  [dim]merge {node.rank + 1:,}[/dim]")
        for part in node.parts:
            grow(here, part)

    for node in trees:
        grow(root, node)
    return root


def printable_token(text: str) -> str:
    """A token in one line: blanks as middle dots, line ends as arrows, markup and control characters escaped."""
    text = text.replace(" ", "\u00b7").replace("\n", "\u21b5").replace("\t", "\u21e5").replace("\r", "\u240d")
    return escape(seen(text))
