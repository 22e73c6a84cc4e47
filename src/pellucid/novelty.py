"""The novelty of what a run's checkpoints write, measured once and stored beside them."""

import json
from collections.abc import Callable
from pathlib import Path

from pellucid.destination import replace_file
from pellucid.generate.errors import GenerationError
from pellucid.language_model import load
from pellucid.runs.checkpoint import steps_of
from pellucid.sources.novelty import FILE, LONGEST_NGRAM, Novelty, NoveltyCurve
from pellucid.sources.of_run import load_sources
from pellucid.trust import Trust

#: the most tokens of held-out text that are continued
PROMPT_TOKENS = 32


def novelty_of_run(
    run: str | Path,
    *,
    samples: int = 32,
    max_tokens: int = 64,
    seed: int = 0,
    trust: Trust = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Novelty:
    """The share of n-grams that do not occur in the training text, n = 1 ... 32: of samples of every checkpoint of a
    run, drawn at temperature 1, and of the held-out text that they continue. It is stored in the run's novelty.json.

    samples      how many held-out texts are continued
    max_tokens   by how many tokens, at least 32

    Raises RecipeError where the run's text has changed, and GenerationError for an encoder-decoder or a masked model.
    """
    run = Path(run)
    if max_tokens < LONGEST_NGRAM:
        raise GenerationError(
            f"max_tokens = {max_tokens}: n-grams of up to {LONGEST_NGRAM} tokens are counted, give as many"
        )
    sources = load_sources(run, progress=progress, trust=trust)
    curves: dict[int, NoveltyCurve] = {}
    prompts: list[str] = []
    following: list[list[int]] = []
    steps = steps_of(run)
    for number, step in enumerate(steps):
        if progress:
            progress("sampling", number, len(steps))
        model = load(run, checkpoint=str(step), device="cpu", trust=trust)
        if not prompts:
            texts = sources.prompts(samples, min(PROMPT_TOKENS, model.architecture.n_ctx // 2), max_tokens)
            prompts, following = [text for text, _ in texts], [ids for _, ids in texts]
        written = model.generate_many(prompts, max_tokens=max_tokens, temperature=1.0, seed=seed)
        curves[step] = NoveltyCurve.of(sources.index, [result.ids for result in written])
    novelty = Novelty(NoveltyCurve.of(sources.index, following), curves)
    replace_file(run / FILE, (json.dumps(novelty.to_dict()) + "\n").encode())
    return novelty
