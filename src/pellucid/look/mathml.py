"""Equations as MathML, which browsers draw by themselves: a small part of TeX, in which a symbol can name its tensor.

    mathml(r"\\t{blocks.0.attn.z}{z_i} = \\sum_j A_{ij} v_j")

A letter is a variable, so are two side by side, and a longer word is upright. `\\frac{a}{b}`, `\\sqrt{a}`, `\\sum`,
Greek letters and a few signs are as in TeX, and `\\t{name}{...}` marks the symbol of a tensor.
"""

import html
import re

GREEK = {
    "alpha": "\u03b1",
    "lambda": "\u03bb",
    "sigma": "\u03c3",
    "mu": "\u03bc",
    "rho": "\u03c1",
    "epsilon": "\u03b5",
    "gamma": "\u03b3",
    "beta": "\u03b2",
    "theta": "\u03b8",
}
SIGNS = {
    "cdot": "\u00b7",
    "odot": "\u2299",
    "le": "\u2264",
    "ge": "\u2265",
    "to": "\u2192",
    "infty": "\u221e",
    "dots": "\u2026",
    "in": "\u2208",
    "sum": "\u2211",
    "gets": "\u2190",
    "times": "\u00d7",
    "norm": "\u2016",
}
TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+(?:\.\d+)?|\S")


class MathError(ValueError):
    """An equation that this part of TeX does not have."""


def mathml(source: str) -> str:
    """A `<math>` element for one equation. Raises MathError for what it cannot draw."""
    tokens = parts_of(source)
    drawn, rest = expression(tokens, 0)
    if rest < len(tokens):
        raise MathError(f"{source!r}: a brace is closed that was not opened")
    return f'<math display="block">{drawn}</math>'


def parts_of(source: str) -> list[str]:
    """The parts of an equation; the name behind `\\t` is one part."""
    parts: list[str] = []
    at = 0
    while at < len(source):
        if source.startswith("\\t{", at):
            end = source.index("}", at)
            parts += ["\\t", source[at + 3 : end]]
            at = end + 1
        elif source[at].isspace():
            at += 1
        else:
            match = TOKEN.match(source, at)
            assert match is not None
            # two letters side by side are two indices
            parts += [*match[0]] if len(match[0]) == 2 and match[0].isalpha() else [match[0]]
            at = match.end()
    return parts


def expression(tokens: list[str], at: int) -> tuple[str, int]:
    """Everything up to a closing brace or the end, in one row; and where it ends."""
    drawn = []
    while at < len(tokens) and tokens[at] != "}":
        item, at = scripted(tokens, at)
        drawn.append(item)
    return f"<mrow>{''.join(drawn)}</mrow>", at


def scripted(tokens: list[str], at: int) -> tuple[str, int]:
    """One symbol with what stands below and above it."""
    is_sum = tokens[at] == "\\sum"
    base, at = atom(tokens, at)
    scripts: dict[str, str] = {}
    while at < len(tokens) and tokens[at] in "_^" and tokens[at] not in scripts:
        kind = tokens[at]
        scripts[kind], at = atom(tokens, at + 1)
    low, high = scripts.get("_"), scripts.get("^")
    if low and high:
        return f"<msubsup>{base}{low}{high}</msubsup>", at
    if low:
        return (f"<munder>{base}{low}</munder>" if is_sum else f"<msub>{base}{low}</msub>"), at
    return (f"<msup>{base}{high}</msup>" if high else base), at


def group(tokens: list[str], at: int) -> tuple[str, int]:
    """What stands between braces."""
    if at >= len(tokens) or tokens[at] != "{":
        raise MathError(f"{' '.join(tokens)}: expected a brace at part {at}")
    drawn, end = expression(tokens, at + 1)
    if end >= len(tokens):
        raise MathError(f"{' '.join(tokens)}: a brace is not closed")
    return drawn, end + 1


def atom(tokens: list[str], at: int) -> tuple[str, int]:
    """One symbol, or a group."""
    token = tokens[at]
    if token == "{":
        return group(tokens, at)
    if token == "\\t":
        name = html.escape(tokens[at + 1], quote=True)
        drawn, end = group(tokens, at + 2)
        return f'<mrow class="symbol" data-tensor="{name}">{drawn}</mrow>', end
    if token == "\\frac":
        above, at = group(tokens, at + 1)
        below, at = group(tokens, at)
        return f"<mfrac>{above}{below}</mfrac>", at
    if token == "\\sqrt":
        inside, at = group(tokens, at + 1)
        return f"<msqrt>{inside}</msqrt>", at
    if token == "\\hat":
        inside, at = group(tokens, at + 1)
        return f'<mover accent="true">{inside}<mo>^</mo></mover>', at
    if token.startswith("\\"):
        if token[1:] in GREEK:
            return f"<mi>{GREEK[token[1:]]}</mi>", at + 1
        if token[1:] in SIGNS:
            return f"<mo>{SIGNS[token[1:]]}</mo>", at + 1
        raise MathError(f"there is no {token} here")
    if token[0].isdigit():
        return f"<mn>{token}</mn>", at + 1
    if token[0].isalpha():
        return f"<mi>{token}</mi>", at + 1
    return f"<mo>{html.escape({'-': chr(0x2212)}.get(token, token))}</mo>", at + 1
