"""Five lessons, each one page of HTML that opens anywhere: `make lessons` writes them to build/lessons.

    python docs/build_lessons.py FOLDER [NAME ...]

Each trains a small network of `examples/` (one takes a minute, the others some seconds), looks into it with what
`pellucid inspect` draws, and adds what a teacher would: what to look at, in which order, and questions with answers.
The numbers in the texts are computed, and the claims are asserted: a lesson whose network learned something else fails.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import character_model  # noqa: E402
import fact_traced  # noqa: E402
import induction_circuit  # noqa: E402
import steering_direction  # noqa: E402

from pellucid import edits  # noqa: E402
from pellucid.architecture import MLP, Architecture, Attention, Positions  # noqa: E402
from pellucid.language_model import LanguageModel  # noqa: E402
from pellucid.lens.analysis.heads import detect_heads, repeated_tokens  # noqa: E402
from pellucid.lens.show.figure import Figure  # noqa: E402
from pellucid.lens.show.pages import inspect_page, show  # noqa: E402
from pellucid.lens.show.panels import Panel, bars_panel, matrix_panel  # noqa: E402
from pellucid.lens.trace import Trace  # noqa: E402
from pellucid.model import Transformer  # noqa: E402
from pellucid.model.weights import initialise  # noqa: E402
from pellucid.predictors.ngram import NGram  # noqa: E402
from pellucid.text.read.documents import bundled  # noqa: E402
from pellucid.text.tokenizers.words import WordTokenizer  # noqa: E402
from pellucid.text_model import of_ids  # noqa: E402

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def lesson(
    number: int,
    title: str,
    t: Trace,
    begin: Panel,
    panels: Sequence[Panel],
    end: Panel,
    head: tuple[int, int] | None = None,
) -> Figure:
    """The page about one trace, between what to look at and the questions; `head` is the one that is shown first."""
    figure = inspect_page(t, name="")
    figure.title = f"Lesson {number}. {title}"
    figure.panels = [begin, *panels, *figure.panels, end]
    figure.head = figure.head if head is None else head
    return figure


def words(*paragraphs: str, title: str = "What to look at") -> Panel:
    """Paragraphs of text."""
    return {"kind": "lesson", "title": title, "paragraphs": list(paragraphs), "questions": []}


def questions(*pairs: tuple[str, str]) -> Panel:
    """Questions, each with an answer that is hidden until it is asked for."""
    return {"kind": "lesson", "title": "Questions", "paragraphs": [], "questions": list(pairs)}


def induction() -> Figure:
    """The two heads that continue a repetition."""
    network = induction_circuit.train()
    heads = detect_heads(of_ids(network), rows=32, period=induction_circuit.PERIOD)
    (l1, h1), (l2, h2) = heads.best("previous"), heads.best("induction")
    assert (l1, l2) == (0, 1)
    model = LanguageModel(network, WordTokenizer(LETTERS[: network.architecture.n_vocab]), {})
    once = repeated_tokens(network.architecture.n_vocab, 1, 10, seed=3)[0].tolist()
    t = model.trace(once)
    everyone = [(layer, head) for layer in range(2) for head in range(network.architecture.n_heads)]
    lost = [induction_circuit.accuracy(network, which) for which in everyone]
    right = induction_circuit.accuracy(network)
    without_first, without_second = (lost[everyone.index(which)] for which in ((l1, h1), (l2, h2)))
    assert right > 0.95
    assert max(without_first, without_second) < 0.5
    composition = model.circuits(fold_norms=True).compose("K")
    score = float(composition.scores[l1, h1, l2, h2])
    begin = words(
        "Ten letters come in a random order, and then the same ten again. The first time nobody can guess the next "
        "letter. The second time it can be copied, and this network of two layers of attention does so: it is right "
        f"{right:.0%} of the time. How?",
        f"1. Below, pick head {l1}.{h1}. From each position it looks one position back. It writes into each position "
        "which letter came before.",
        f"2. Pick head {l2}.{h2}, and step through the second half. It looks at the position AFTER the earlier "
        "occurrence of the present letter: the one where head "
        f"{l1}.{h1} has written the present letter. Then it copies what stands there.",
        "3. In the row of tokens, the surprisal falls to almost nothing where the repetition begins.",
    )
    panels = [
        bars_panel(
            "Without one head",
            [f"without {layer}.{head}" for layer, head in everyone],
            torch.tensor(lost),
            f"The share of repeated letters that are guessed, {right:.2f} with every head.",
            most=1,
        ),
        *show(composition).panels,
    ]
    end = questions(
        (
            "Could one layer do this?",
            "No. The head that copies must find the position after the earlier occurrence, so its keys must say "
            "which letter came before them, and only an earlier layer can have written that "
            "(examples/induction.py trains both: one layer reaches 0.26, two layers 0.995).",
        ),
        (
            f"Why does head {l2}.{h2} look at the first token in the first half?",
            "It has nothing to copy there. Attention always adds up to one, so a head without anything to do must "
            "still look somewhere.",
        ),
        (
            "How do the weights alone show the pair?",
            f"The keys of head {l2}.{h2} read what head {l1}.{h1} writes: their K-composition is {score:.2f}, where "
            f"random heads have {composition.baseline:.2f}.",
        ),
    )
    return lesson(1, "How a network continues a repetition", t, begin, panels, end, (l2, h2))


#: forty facts, and words between them
CAPITALS_OF = """
France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, China Beijing, India Delhi,
Egypt Cairo, Kenya Nairobi, Peru Lima, Chile Santiago, Cuba Havana, Norway Oslo, Sweden Stockholm,
Poland Warsaw, Greece Athens, Turkey Ankara, Iran Tehran, Iraq Baghdad, Nepal Kathmandu, Laos Vientiane,
Vietnam Hanoi, Fiji Suva, Samoa Apia, Mali Bamako, Chad NDjamena, Ghana Accra, Togo Lome,
Gabon Libreville, Angola Luanda, Malta Valletta, Cyprus Nicosia, Latvia Riga, Austria Vienna,
Hungary Budapest, Ireland Dublin, Iceland Reykjavik, Finland Helsinki, Denmark Copenhagen,
Portugal Lisbon"""
PAIRS = [pair.split() for pair in CAPITALS_OF.split(",")]
COUNTRIES, CAPITALS = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
FILLERS = ["the", "and", "then", "there", "was", "once", "some", "of", "it", "so", "far", "away"]


def fact() -> Figure:
    """A learned fact on its way from the subject to the answer."""
    network, accuracy = fact_traced.train()
    objects = fact_traced.objects().tolist()
    names = [*COUNTRIES, *[""] * fact_traced.N_FACTS, *FILLERS, "capital?"]
    for country, token in enumerate(objects):
        names[token] = CAPITALS[country]
    model = LanguageModel(network, WordTokenizer([f" {name}" for name in names]), {})
    position, (subject, other) = 3, (7, 21)
    stream, by_head = fact_traced.trace_fact(network, subject, other, position)
    # the patched tokens as words
    shown = [
        f"{COUNTRIES[subject]} or {COUNTRIES[other]}" if k == position else "..." for k in range(len(stream.tokens))
    ]
    shown[-1] = "capital?"
    tokens = [int(token) for token in stream.tokens]
    tokens[position] = subject
    t = model.trace(tokens)
    shares = stream.recovered
    read_in = int((shares[:, position] >= 0.5).sum()) - 1
    layer, _, head = by_head.best()
    carried = float(by_head.recovered.max())
    assert accuracy > 0.99
    assert t.top(k=1)[0][0] == f" {CAPITALS[subject]}"
    begin = words(
        f"This network has learned forty facts: which capital belongs to which country. It answers {accuracy:.0%} of "
        f"new texts rightly. The text names {COUNTRIES[subject]} at position {position} and asks at its end. Somewhere "
        "on the way the network must fetch the fact. Where?",
        f"The first picture shows an experiment. The same text is read with {COUNTRIES[other]} in place of "
        f"{COUNTRIES[subject]}. Then, one place at a time, the stream is replaced by what it was in the text with "
        f"{COUNTRIES[subject]}. 1 means that the answer is {CAPITALS[subject]} again; 0 means that nothing changed.",
        f"Before block {read_in} the whole answer sits at {COUNTRIES[subject]}. Behind it, it sits at the last token: "
        f"block {read_in} moved it. The second picture shows that head {layer}.{head} alone carries {carried:.0%} of "
        "it. Pick that head below, and look from the last token.",
    )
    rows = [f"before block {l}" for l in stream.layers]
    columns = [*shown[:-1], shown[-1]]
    note = "The share of the answer that comes back as one place of the stream is replaced."
    panels = [
        matrix_panel("Where the fact is", note, shares, rows, columns, " at "),
        matrix_panel(
            "Which head carries it",
            "The same for the output of each head at the last token.",
            by_head.recovered[:, 0],
            [f"block {l}" for l in by_head.layers],
            [f"head {h}" for h in range(by_head.recovered.size(2))],
            ", ",
        ),
    ]
    end = questions(
        (
            "Why is nothing recovered at the other positions?",
            "They do not know the country: nobody wrote it there. A place that holds none of the difference between "
            "the two texts cannot bring it back.",
        ),
        (
            "Does the pattern of the head show this, without any experiment?",
            "It shows where the head looks, not what follows from it: a head may look somewhere and write nothing. "
            "The experiment shows what the answer depends on.",
        ),
        (
            "What does the logit lens add?",
            "It shows when the answer can be read off the stream at the last token: from block "
            f"{read_in} on, {CAPITALS[subject]} is the likeliest word.",
        ),
    )
    return lesson(2, "Where a network keeps a fact", t, begin, panels, end, (layer, head))


def steering() -> Figure:
    """A direction that decides what is written."""
    model = steering_direction.train()
    generator = torch.Generator().manual_seed(4)
    calm, loud = ([steering_direction.text(generator, mood)[:12] for _ in range(60)] for mood in (0, 1))
    vector = model.direction(loud, calm, at=steering_direction.AT)
    factors = steering_direction.FACTORS
    shares = [steering_direction.loudness(model, vector, factor) for factor in factors]
    assert shares[0] < 0.2
    assert shares[-1] > 0.8
    samples = {
        factor: model.generate(
            " ,", edits=[edits.add(steering_direction.AT, vector, factor)], max_tokens=24, temperature=1.0, seed=3
        ).text
        for factor in (-2.0, 0.0, 2.0)
    }
    t = model.trace(" ,;a b. Cd E", edits=[edits.add(steering_direction.AT, vector, 1.0)])
    begin = words(
        "This network has read texts that are calm (small letters) or loud (capitals). After marks alone, either may "
        "follow. Somewhere inside, the network must keep in mind which mood the text is in.",
        "Take the stream after loud beginnings, average it, and subtract the average after calm ones: one vector. Add "
        "a multiple of it to the stream at every position while the network writes, and it writes calmly or loudly:",
        *(f"factor {factor:+g}: {text!r}" for factor, text in samples.items()),
        "The pictures below show one text that was read with the vector added once. In the direct logit attribution, "
        "compare a capital with a small letter.",
    )
    panels = [
        bars_panel(
            "Share of capitals by factor",
            [f"{factor:+g}" for factor in factors],
            torch.tensor(shares),
            "Sixty texts for each factor; the factor multiplies the vector.",
            most=1,
        )
    ]
    end = questions(
        (
            "How would you show that it is this direction, and not any push, that does it?",
            "Add a random vector of the same length. examples/steering_direction.py does: the share of capitals "
            "hardly moves.",
        ),
        (
            "What happens with a very large factor?",
            "The norm divides by the length of the stream, so that a huge vector drowns everything else that the "
            "stream holds: the network then writes capitals, but no longer in the right places.",
        ),
    )
    return lesson(3, "A direction that decides what is written", t, begin, panels, end)


def ngrams() -> Figure:
    """What a table of counts knows, and what a GPT knows, on the same text."""
    model = character_model.character_model()
    text = bundled("shakespeare").read_text(encoding="utf-8")
    cut = len(text) - len(text) // 10
    training, held_out = (np.array(model.tokenizer.encode(part)) for part in (text[:cut], text[cut:]))
    begin_at = held_out.tolist().index(model.tokenizer.encode("\n")[0], 2000) + 1
    ids = held_out[begin_at : begin_at + 48]
    t = model.trace(ids.tolist())
    # the second half of windows, where the GPT has read something, and the same characters for the n-grams
    n_ctx = model.architecture.n_ctx
    starts = np.linspace(0, len(held_out) - n_ctx - 1, 200).astype(int)
    windows = torch.from_numpy(held_out[starts[:, None] + np.arange(n_ctx + 1)])
    with torch.no_grad():
        loss = F.cross_entropy(model.network(windows[:, :-1]).transpose(1, 2), windows[:, 1:], reduction="none")
    scored = starts[:, None] + np.arange(n_ctx // 2, n_ctx)
    log_probs = {"GPT": -loss[:, n_ctx // 2 :].double().numpy()}
    rows, n_counts = {}, 0
    for order in (1, 2, 3, 5):
        counted = NGram.train(training, model.architecture.n_vocab, order)
        rows[f"{order}-gram"] = -counted.log_probs(ids) / np.log(2)
        log_probs[f"{order}-gram"] = counted.log_probs(held_out)[scored]
        n_counts = counted.n_parameters
    rows["GPT"] = t.surprisal()[0].numpy().astype(np.float64)
    log_probs["both"] = np.logaddexp(log_probs["GPT"] + np.log(0.25), log_probs["5-gram"] + np.log(0.75))
    order = [*(name for name in log_probs if name.endswith("gram")), "GPT", "both"]
    means = {name: float(-log_probs[name].mean() / np.log(2)) for name in order}
    assert means["GPT"] < means["3-gram"]
    assert means["both"] < min(means["GPT"], means["5-gram"])
    columns = [model.tokenizer.token_str(int(i)) for i in ids[1:]]
    values = torch.tensor(np.stack(list(rows.values()))).clamp(max=12)
    surprise = matrix_panel(
        "Bits of surprise, character by character",
        "Held-out text. A row is a predictor; dark is a surprise, up to 12 bits.",
        values,
        list(rows),
        columns,
        " at ",
    ) | {"ramp": "amount", "high": float(values.max())}
    n_parameters = sum(p.numel() for p in model.network.parameters())
    begin = words(
        "An n-gram counts: it predicts the next character from how often each one followed the last n - 1 characters "
        "in the training text. A GPT learns numbers that it uses at every position. Which one predicts better, on text "
        "that neither has seen?",
        f"The 5-gram stores {n_counts:,} numbers and needs {means['5-gram']:.2f} bits for a character. This small GPT "
        f"has {n_parameters:,} numbers and needs {means['GPT']:.2f}, fewer than the 3-gram. They know different "
        f"things: a quarter of the GPT's probability and three quarters of the 5-gram's together need only "
        f"{means['both']:.2f} bits. A GPT that is larger and is trained for longer beats every n-gram.",
        "In the second picture, find the characters where the GPT is less surprised than the 5-gram, and ask what it "
        "may have used. The first letter of a word surprises all of them; the last letters surprise none. Below is the "
        "inside of the GPT on the same text.",
    )
    panels = [
        bars_panel(
            "Bits per character",
            [name if name != "both" else "GPT and 5-gram" for name in order],
            torch.tensor(list(means.values())),
            "On held-out text; fewer is better.",
        ),
        surprise,
    ]
    end = questions(
        (
            "Why does the 1-gram not know where a word ends?",
            "It reads nothing: it predicts the same for every position, mostly a blank or an e.",
        ),
        (
            "Where does the 5-gram beat the GPT?",
            "After four characters that it has counted often. It is a table that knows by heart what it has seen.",
        ),
        (
            "Where does the GPT beat the 5-gram?",
            "Where the last four characters are rare, or where what stands further back matters: the n-gram then falls "
            "back on shorter and shorter contexts, while the GPT still reads all of them.",
        ),
        (
            "What would happen with ten times the training text?",
            "Both would get better. The longer the n-gram, the more it gains, since fewer of its contexts are "
            "new to it.",
        ),
    )
    return lesson(4, "Counting and learning", t, begin, panels, end)


ORDER_LENGTH, ORDER_LETTERS = 8, 6


def order_network(kind: str) -> tuple[Transformer, float]:
    """One layer that reads all letters of a text at once, trained to say the first one; and how often it is right.

    The last token asks; its logits are the answer.
    """
    a = Architecture(
        n_vocab=ORDER_LETTERS + 1,
        n_ctx=ORDER_LENGTH + 1,
        d_model=32,
        n_layers=1,
        attention=Attention(n_heads=2, mask="bidirectional"),
        mlp=MLP(d_ff=64),
        positions=Positions(kind="learned" if kind == "learned" else "none"),
    )
    network, generator = initialise(Transformer(a), seed=1), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

    def texts(n: int) -> torch.Tensor:
        letters = torch.randint(0, ORDER_LETTERS, (n, ORDER_LENGTH), generator=generator)
        return torch.cat([letters, torch.full((n, 1), ORDER_LETTERS)], 1)

    for _ in range(300):
        tokens = texts(64)
        loss = F.cross_entropy(network(tokens)[:, -1], tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tokens = texts(1000)
        return network.eval(), float((network(tokens)[:, -1].argmax(-1) == tokens[:, 0]).float().mean())


def positions() -> Figure:
    """Without positions, attention reads a bag of words."""
    (without, right_without), (with_positions, right_with) = order_network("none"), order_network("learned")
    assert right_with > 0.95
    assert right_without < 0.6
    tokenizer = WordTokenizer([*LETTERS[:ORDER_LETTERS], "?"])
    tokens = torch.tensor([3, 0, 5, 1, 1, 4, 2, 0, ORDER_LETTERS])
    changed = {"none": [], "learned": []}
    orders = {
        "as it is": list(range(8)),
        "first two swapped": [1, 0, 2, 3, 4, 5, 6, 7],
        "last two swapped": [0, 1, 2, 3, 4, 5, 7, 6],
        "reversed": list(range(7, -1, -1)),
    }
    for kind, network in (("none", without), ("learned", with_positions)):
        model = LanguageModel(network, tokenizer, {})
        usual = model.trace(tokens.tolist()).logits[0, -1]
        for order in orders.values():
            logits = model.trace(tokens[[*order, 8]].tolist()).logits[0, -1]
            changed[kind].append(float((logits - usual).abs().max()))
    assert max(changed["none"]) < 1e-4
    assert max(changed["learned"][1:]) > 0.1
    t = LanguageModel(with_positions, tokenizer, {}).trace(tokens.tolist())
    begin = words(
        "Which letter comes first? Two networks were trained to say it at the ?. Both have one layer of attention that "
        "reads the whole text at once. One adds a vector for each position to the letters; the other does not.",
        f"With positions the answer is right {right_with:.0%} of the time. Without, {right_without:.0%}: it can only "
        "guess among the letters that are there. Attention is a weighted sum, and a sum does not know the order of "
        "its terms: if the letters change places, the outputs change places with them and nothing else happens. The "
        "table shows it: however the letters are permuted, the logits at the ? of the network without positions do "
        "not change (but for rounding).",
        "Below is the network with positions. Look from the ? and see which position its heads read, whatever letter "
        "stands there.",
    )
    table = {
        "kind": "table",
        "title": "How far the logits at ? change",
        "note": "The largest change of a logit as the eight letters are put into another order.",
        "columns": ["order", "without positions", "with positions"],
        "rows": [
            [name, float(f"{bare:.3g}"), float(f"{told:.3g}")]
            for name, bare, told in zip(orders, changed["none"], changed["learned"], strict=True)
        ],
    }
    end = questions(
        (
            "Why does the network without positions do better than one in six?",
            "It can count: letters that are not in the text cannot be the first, and one that occurs twice is the "
            "first twice as often.",
        ),
        (
            "A GPT has a causal mask. Does it need positions?",
            "Less: the mask alone breaks the symmetry, since an early position reads fewer tokens than a late one. "
            "Networks without positions learn order from it, but more slowly.",
        ),
        (
            "Swap the last two letters: why does the network with positions hardly move?",
            "Its heads read position 0, so that what stands at the end matters little.",
        ),
    )
    return lesson(5, "Attention without positions is a bag of words", t, begin, [table], end)


LESSONS: dict[str, Callable[[], Figure]] = {
    "induction": induction,
    "fact": fact,
    "steering": steering,
    "ngrams": ngrams,
    "positions": positions,
}
#: what a page may weigh: it is sent by mail
MOST_BYTES = 1_000_000


def build(folder: Path, names: Sequence[str] = tuple(LESSONS)) -> list[Path]:
    """Write the pages of these lessons into the folder."""
    paths = []
    for name in names:
        torch.manual_seed(0)
        path = LESSONS[name]().save(folder / f"{name}.html")
        size = path.stat().st_size
        assert size < MOST_BYTES, f"{path} has {size:,} bytes"
        print(f"{path}: {size / 1e3:,.0f} kB")
        paths.append(path)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(LESSONS)}; all unless given")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in LESSONS]:
        parser.error(f"{unknown[0]} is no lesson: choose among {', '.join(LESSONS)}")
    build(given.folder, given.names or tuple(LESSONS))
