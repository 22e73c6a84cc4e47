"""The text of a run that can be asked where a text is from, or how it goes on."""

from pathlib import Path
from typing import Literal

from pellucid.predictors.on_text import recipe_of, run_of, text_of_run
from pellucid.runs.run_dir import cache_folder
from pellucid.sources.novelty import held_out_continuations
from pellucid.sources.places import PartText
from pellucid.sources.shared import SharedPassages, shared_passages
from pellucid.sources.suffix_array import SourcesError
from pellucid.sources.text_index import DUPLICATE, Continuation, Progress, TextIndex, open_index, opposite_part
from pellucid.sources.verbatim import FEWEST_CHARACTERS, FEWEST_TOKENS, SpanFinder, TextSources, copied_share
from pellucid.text.read.chunks import DocumentError
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.trust import Trust

TextPart = Literal["train", "held-out"]
#: places of each passage that are looked up
OCCURRENCES = 10


class RunSources:
    """One part of a run's text, indexed: `find`, `count`, `continuation`, `shared_passages`.

    part    train, or held-out: what is measured on and never trained on
    index   the suffix arrays, and what they are asked in ids
    """

    def __init__(self, run: Path, part: TextPart, index: TextIndex, text: PartText, other: PartText | None = None):
        self.run, self.part, self.index = run, part, index
        self._text, self._other, self._finder = text, other, SpanFinder(index, text)

    def find(
        self, text: str, *, fewest_tokens: int | None = None, occurrences: int = OCCURRENCES, after: int = 0
    ) -> TextSources:
        """The passages of a text that stand verbatim in this part, each as long as it can be made, with their places.

        fewest_tokens   the tokens that a passage has at least. None lists those that are longer than what the rest of
                        the run's text shares with this part by chance, of at least 12 tokens and 50 characters
        occurrences     how many places of each passage
        after           characters at the beginning that are context: passages that end in them are left out
        """
        by_chance = self.index.by_chance
        if fewest_tokens is None:
            fewest, characters = max(FEWEST_TOKENS, by_chance + 1), FEWEST_CHARACTERS
        else:
            fewest, characters = fewest_tokens, 1
        if fewest < 1 or occurrences < 1:
            raise SourcesError(
                f"fewest_tokens = {fewest_tokens}, occurrences = {occurrences}: expected numbers from 1 on"
            )
        spans, longest = self._finder.find(
            text, fewest_tokens=fewest, fewest_characters=characters, occurrences=occurrences, after=after
        )
        share, n = copied_share(spans, after, len(text)), len(text) - after
        return TextSources(str(self.run), self.part, tuple(spans), longest, share, n, fewest, characters, by_chance)

    def count(self, text: str) -> int:
        """How often the tokens of this text occur one after another."""
        return self.index.count(self._text.tokenizer.encode(text))

    def shared_passages(self, fewest_tokens: int = DUPLICATE) -> SharedPassages:
        """The passages of at least so many tokens that the other part of the run's text shares with this one.

        Raises SourcesError where there is no other part, as of one that was opened alone.
        """
        if self._other is None:
            raise SourcesError(f"{self.run} has no other part to compare with")
        return shared_passages(self.index, self._finder, self._other, str(self.run), fewest_tokens)

    def prompts(self, n: int, before: int, behind: int) -> list[tuple[str, list[int]]]:
        """`n` texts of `before` tokens of the other part of the run's text, each with the `behind` ids that follow."""
        if self._other is None:
            raise SourcesError(f"{self.run} has no other part to take texts from")
        tokenizer = self._text.tokenizer
        excluded = [*tokenizer.special.values(), *([] if tokenizer.unknown is None else [tokenizer.unknown])]
        texts = held_out_continuations(self.index, self._other.part, excluded, n, before, behind)
        return [(tokenizer.decode(first), rest) for first, rest in texts]

    def continuation(self, prefix: str) -> Continuation:
        """The longest end of the tokens of a prefix that occurs, how often, and what follows it how often."""
        return self.index.continuation(self._text.tokenizer.encode(prefix))


def load_sources(
    run: str | Path, part: TextPart = "train", *, progress: Progress = None, trust: Trust = False
) -> RunSources:
    """Open a part of a run's text for questions, after its index is built where there is none yet.

    The index lies in the cache of prepared tokens: 4 bytes a token. progress(stage, done, total) is called meanwhile;
    without it a warning says how long a build of more than ten seconds takes, and how much memory.

    Raises RecipeError where the folder is no run or its text has changed, DocumentError where the text is missing, and
    SourcesError where the part cannot be indexed.
    """
    if part not in ("train", "held-out"):
        raise SourcesError(f"there is no part {part!r}: choose train or held-out")
    run = run_of({"folder": str(run)})
    name, recipe = part.replace("-", "_"), recipe_of(run)
    try:
        tokens, split = text_of_run(run, recipe, progress, trust=trust)
    except DocumentError as error:
        raise DocumentError(f"sources are searched in the text of {run}, which cannot be read: {error}") from None
    tokenizer = load_tokenizer(run, trust=trust)
    index = open_index(tokens, name, tokenizer, cache_folder(), progress)
    text, other = (
        PartText(tokens.part(one), tokenizer, split, one) if one in tokens.parts else None
        for one in (name, opposite_part(name))
    )
    assert text is not None
    return RunSources(run, part, index, text, other)
