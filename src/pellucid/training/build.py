"""Builds the parts of a transformer's run: its tokens and its network."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.lora import first_adapters, start_adapters
from pellucid.model.weights import (
    check_same_shapes,
    initial_values,
    initialise,
    load_state,
    shapes_of,
    state_of,
    without_memory,
)
from pellucid.presets import with_vocabulary
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.runs.processes import SINGLE_PROCESS, Processes
from pellucid.runs.reporter import Detail, PlainReporter
from pellucid.runs.run_dir import cache_folder, check_cache
from pellucid.text.chat_template import CHATML, CHATML_MARKERS, ChatTemplate
from pellucid.text.read.chunks import counted
from pellucid.text.read.conversations import (
    Conversations,
    ConversationSplit,
    read_conversations,
    split_conversations,
)
from pellucid.text.read.documents import Corpus, read_corpus
from pellucid.text.read.pairs import Pairs, PairSplit, read_pairs, split_pairs
from pellucid.text.split import Split, split_corpus
from pellucid.text.tokenizers.base import MASK
from pellucid.text.tokenizers.tokenizer import (
    LEARNED,
    Tokenizer,
    TokenizerError,
    TokenizerKind,
    learn_tokenizer,
    load_tokenizer,
)
from pellucid.text.tokens.conversations import ConversationTokens, prepare_conversations
from pellucid.text.tokens.pairs import PairTokens, prepare_pairs
from pellucid.text.tokens.prepare import prepare_tokens
from pellucid.text.tokens.store import Tokens
from pellucid.training import resolve_recipe as resolve
from pellucid.training.chat import lines_on_packing
from pellucid.training.recipe import Recipe, TextRecipe, TextRecipeT
from pellucid.training.step_functions import choose_step_functions
from pellucid.training.text_parts import input_files, lines_on_skipped, lines_on_unknown
from pellucid.trust import Trust

#: documents from which on a network has seen often enough how one begins
FEW_DOCUMENTS = 32
#: the source of given weights, in an error
STARTING_MODEL = "the model to start from"

Weights = Mapping[str, Tensor]
#: chooses the sizes that a recipe leaves open from the training text, and returns lines that say why
ChooseSizes = Callable[[Recipe, Split, Phase], tuple[Recipe, list[str]]]


def default_vocabulary(n_bytes: int) -> int:
    """The vocabulary size of BPE for a text of `n_bytes`: about one token for each 500 bytes, from 512 to 32,768."""
    wanted = max(512, min(32768, n_bytes // 500))
    return 2 ** (wanted.bit_length() - 1)


def make_tokenizer(
    recipe: TextRecipe,
    split: Split | PairSplit | ConversationSplit,
    interruption: Interruption,
    trust: Trust = False,
) -> Tokenizer:
    """The tokenizer that the recipe asks for, trained on the training part only. Raises Interrupted at a signal.

    `trust` accepts patterns of a file that are not known to be safe.
    """
    asked = recipe.text.tokenizer
    n_vocab = (recipe.text.vocabulary or default_vocabulary(split.n_bytes)) if asked in LEARNED else None
    own = asked in get_args(TokenizerKind)
    if not own and not Path(asked).exists():
        raise RecipeError(
            f"{asked}: there is no such tokenizer; expected bpe, word, char, byte or the path of a tokenizer.json"
        )
    how = {"pattern": recipe.text.pattern, "sample": recipe.text.sample}
    if own:
        with interruption.phase("making the tokenizer", "characters") as phase:
            tokenizer = learn_run_tokenizer(asked, split, n_vocab, phase, **how)
    else:
        tokenizer = load_tokenizer(asked, trust=trust)
    hides = recipe.train.objective == "masked" and tokenizer.mask is None
    return tokenizer.with_special(MASK) if hides else tokenizer


def learn_run_tokenizer(
    kind: str, split: Split | PairSplit | ConversationSplit, n_vocab: int | None, phase: Phase, **how: Any
) -> Tokenizer:
    """A tokenizer trained on the training part. Raises Interrupted at a signal while the text is read."""
    try:
        return learn_tokenizer(kind, watched(split.texts("train"), phase), n_vocab, **how)
    except TokenizerError:
        phase()  # the tokenizers library wraps every error in one of its own
        raise


def watched(texts: Iterable[str], phase: Phase) -> Iterator[str]:
    """The same texts. The phase is told how many characters have been read; it may raise."""
    n = 0
    for text in texts:
        phase(n)
        yield text
        n += len(text)
    phase.stage("learning the vocabulary", 0, 0)


def read_input(
    recipe: Recipe,
    reporter: PlainReporter,
    tokenizer: Tokenizer | None,
    template: ChatTemplate,
    interruption: Interruption,
    size: ChooseSizes | None = None,
    trust: Trust = False,
) -> tuple[Recipe, Corpus | Pairs | Conversations, Tokens, Tokenizer]:
    """The recipe, with its sizes chosen where asked; and what was read, its tokens, and its tokenizer.

    A tokenizer is trained unless one is given; conversations are written by the template; `trust` is that of
    `make_tokenizer`.

    Raises Interrupted, with nothing left behind, when a signal comes.
    """
    if recipe.train.objective == "source-target":
        return recipe, *read_pairs_to_train(recipe, reporter, tokenizer, interruption, trust)
    if recipe.train.objective == "chat":
        return read_conversations_to_train(recipe, reporter, tokenizer, template, interruption, trust)
    return read_text(recipe, reporter, tokenizer, interruption, size, trust)


def read_pairs_to_train(
    recipe: Recipe,
    reporter: PlainReporter,
    tokenizer: Tokenizer | None,
    interruption: Interruption,
    trust: Trust = False,
) -> tuple[Pairs, PairTokens, Tokenizer]:
    """The pairs, their ids on disk, and one tokenizer for both sides."""
    check_cache()
    with interruption.phase("reading", "pairs") as phase:
        pairs = read_pairs(**input_files(recipe), progress=phase.stage)
    split = split_pairs(pairs, recipe.text.held_out, recipe.train.seed)
    tokenizer = tokenizer or make_tokenizer(recipe, split, interruption, trust)
    interruption.poll()
    with interruption.phase("encoding", "pairs") as phase:
        tokens = prepare_pairs(split, tokenizer, cache_folder(), phase.stage)
    train, held = tokens.part("train"), tokens.part("held_out")
    lines = [
        f"pairs: {len(pairs):,} in {counted(len(pairs.files), 'file')}, {pairs.n_bytes:,} bytes; {len(train):,} target "
        f"tokens to train on, {len(held):,} held out",
        line_on_split(split.note),
        Detail(f"tokenizer: {tokenizer.kind}, {tokenizer.n_vocab:,} ids for both sides"),
        *tokenizer.notes,
        *tokens.notes,
        *pairs.notes,
    ]
    lines += [*lines_on_unknown(tokens, tokenizer), *lines_on_skipped(pairs.skipped)]
    reporter.start(lines)
    return pairs, tokens, tokenizer


def read_conversations_to_train(
    recipe: Recipe,
    reporter: PlainReporter,
    tokenizer: Tokenizer | None,
    template: ChatTemplate,
    interruption: Interruption,
    trust: Trust = False,
) -> tuple[Recipe, Conversations, ConversationTokens, Tokenizer]:
    """Conversations, their ids on disk, and a tokenizer in which the template's markers are special tokens."""
    check_cache()
    with interruption.phase("reading", "conversations") as phase:
        conversations = read_conversations(**input_files(recipe), progress=phase.stage)
    split = split_conversations(conversations, recipe.text.held_out, recipe.train.seed)
    plain = tokenizer or make_tokenizer(recipe, split, interruption, trust)
    missing = [marker for marker in CHATML_MARKERS if marker in template.source and marker not in plain.special]
    tokenizer = plain.with_special(*missing) if missing else plain
    if missing and recipe.record.base is not None:
        # ids below n_vocab have rows of their own
        ids = (tokenizer.special[marker] for marker in missing)
        recipe = with_record(recipe, new_ids=tuple(i for i in ids if i >= plain.n_vocab))
    interruption.poll()
    with interruption.phase("encoding", "conversations") as phase:
        tokens = prepare_conversations(split, tokenizer, template, cache_folder(), phase.stage)
    train, held = tokens.targets("train"), tokens.targets("held_out")
    lines = [
        f"conversations: {len(conversations):,} in {counted(len(conversations.files), 'file')}, "
        f"{conversations.n_bytes:,} bytes; {len(train):,} tokens of the assistant to train on, of "
        f"{len(tokens.part('train')):,}; {len(held):,} held out",
        line_on_split(split.note),
        f"tokenizer: {tokenizer.kind}, {tokenizer.n_vocab:,} ids"
        + (f", {' and '.join(missing)} new" if missing else ""),
        *tokenizer.notes,
        *tokens.notes,
        *lines_on_packing(tokens, recipe.model.n_ctx),
    ]
    lines += [*lines_on_unknown(tokens, tokenizer), *lines_on_skipped(conversations.skipped)]
    reporter.start(lines)
    return recipe, conversations, tokens, tokenizer


def choose_template(asked: str, own: ChatTemplate | None) -> ChatTemplate:
    """The template that is asked for, else the model's own, else ChatML; the tokens that it may write are the model's.

    Raises ChatError for a file that is no template.
    """
    variables = {} if own is None else own.variables
    if asked == "chatml" or (not asked and own is None):
        return ChatTemplate(CHATML, variables)
    return own if not asked and own is not None else ChatTemplate(Path(asked).read_text(encoding="utf-8"), variables)


def fit_to_input(
    recipe: Recipe,
    tokens: Tokens,
    tokenizer: Tokenizer,
    device: torch.device,
    shares: int = 1,
) -> Recipe:
    """The recipe with the options that follow from the input: the vocabulary; for pairs and conversations, the mean
    number of targets of a row and the sample prompt; and its batch, which `shares` processes divide.

    A text of few documents shows too seldom how one begins, so that samples of a new network begin with a new line.
    """
    # a model that a run starts from may have rows that no id stands for
    n_vocab = tokenizer.n_vocab if recipe.record.base is None else max(tokenizer.n_vocab, recipe.model.n_vocab)
    recipe = replace(recipe, model=with_vocabulary(recipe.model, n_vocab))
    opening = ""
    if isinstance(tokens, ConversationTokens):
        part = tokens.packed("train", recipe.model.n_ctx)
        first = tokens.split.corpus.rows[int(tokens.split.numbers("held_out")[0])]
        opening = next((message["content"] for message in first if message["role"] == "user"), "")
        recipe = with_record(recipe, tokens_per_row=float(part.targets_per_row.mean()) if part.rows else 1.0)
    elif isinstance(tokens, PairTokens):
        opening, _ = tokens.split.corpus.rows[int(tokens.split.numbers("held_out")[0])]
        recipe = with_record(recipe, tokens_per_row=float(tokens.part("train").lengths.mean()))
        if recipe.train.sample_prompt is not None:
            check_sample_source(recipe, tokenizer)
    elif recipe.record.base is None and len(tokens.part("train").starts) < FEW_DOCUMENTS:
        opening = "\n" if tokenizer.decode(tokenizer.encode("\n")) == "\n" else ""
    if recipe.train.sample_prompt is None:
        recipe = with_train(recipe, sample_prompt=opening)
    return resolve.resolve_batch(recipe, device, shares)


def check_sample_source(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raise RecipeError for a sample prompt that is longer than the encoder's context: no sample could be written."""
    assert recipe.model.encoder is not None
    n, most = len(tokenizer.source_ids(tokenizer.encode(recipe.train.sample_prompt))), recipe.model.encoder.n_ctx
    if n > most:
        raise RecipeError(
            f"train.sample_prompt has {n:,} tokens as a source, and the encoder reads at most {most:,}: give a shorter "
            "one, or a larger model.encoder.n_ctx"
        )


def read_text(
    recipe: TextRecipeT,
    reporter: PlainReporter,
    tokenizer: Tokenizer | None,
    interruption: Interruption,
    size: Callable[[TextRecipeT, Split, Phase], tuple[TextRecipeT, list[str]]] | None = None,
    trust: Trust = False,
) -> tuple[TextRecipeT, Corpus, Tokens, Tokenizer]:
    """The recipe, with its sizes chosen where asked; the corpus, its tokens on disk, and the tokenizer."""
    check_cache()
    with interruption.phase("reading", "bytes") as phase:
        corpus = read_corpus(**input_files(recipe), progress=phase.stage, kept=cache_folder())
    with interruption.phase("choosing what is held out") as phase:
        split, why = split_corpus(corpus, recipe.text.held_out, recipe.train.seed, recipe.text.split), []
    if size is not None:
        with interruption.phase("choosing the size") as phase:
            recipe, why = size(recipe, split, phase)
    tokenizer = tokenizer or make_tokenizer(recipe, split, interruption, trust)
    interruption.poll()
    with interruption.phase("encoding", "bytes") as phase:
        tokens = prepare_tokens(split, tokenizer, cache_folder(), progress=phase.stage)
    interruption.poll()
    n_train, n_held = (len(tokens.part(p)) for p in ("train", "held_out"))
    lines = [
        f"text: {counted(len(corpus.documents), 'document')}, {corpus.n_bytes:,} bytes; {n_train:,} tokens to train "
        f"on, {n_held:,} held out",
        line_on_split(split.note),
        Detail(
            f"tokenizer: {tokenizer.kind}, {tokenizer.n_vocab:,} ids, "
            f"{corpus.n_bytes / (n_train + n_held):.2f} bytes per token"
        ),
        *tokenizer.notes,
        *tokens.notes,
        *corpus.notes,
    ]
    if dropped := sum(source.duplicates for source in corpus.sources):
        were = "was" if dropped == 1 else "were"
        lines.append(f"{counted(dropped, 'document')} with the text of an earlier one {were} left out")
    lines += [*lines_on_unknown(tokens, tokenizer), *lines_on_skipped(corpus.skipped)]
    reporter.start([*lines, *map(Detail, why)])
    return recipe, corpus, tokens, tokenizer


def line_on_split(note: str) -> str:
    """What is held out: a detail, unless it holds a warning."""
    return note if "warning:" in note else Detail(note)


def build_network(recipe: Recipe, device: torch.device, weights: Weights | None = None) -> Transformer:
    """The network with its first weights, drawn from the seed or given; on the meta device it has none yet.

    Raises WeightsError where the given weights are not those of the recipe's network.
    """
    is_made_in_parts = device.type == "meta"
    with without_memory() if is_made_in_parts else nullcontext():
        network = Transformer(recipe.model)
    if recipe.adapt.rank or (is_made_in_parts and weights is not None):
        check_same_shapes(shapes_of(state_of(network)), shapes_of(weights or {}), STARTING_MODEL)
    if recipe.adapt.rank:
        if not is_made_in_parts:
            load_state(network, weights or {}, STARTING_MODEL)
        resolve.add_adapters(network, recipe)
    choose_paths(network, recipe)
    if is_made_in_parts:
        return network
    first_weights(network, recipe, weights)
    return network.to(device)


def choose_paths(network: Transformer, recipe: Recipe) -> None:
    """Choose the kernel of attention, and whether activations are computed again in the backward pass."""
    choose_kernel(network, recipe)
    if recipe.train.recompute == "yes":
        recompute_blocks(network)


def choose_for_device(
    network: Transformer, recipe: Recipe, device: torch.device, processes: Processes = SINGLE_PROCESS
) -> None:
    """Let one process on a CPU compute what is between matrix products in its own way."""
    choose_step_functions(network, device.type == "cpu" and processes.n == 1 and recipe.train.compile != "yes")


def choose_kernel(network: Transformer, recipe: Recipe) -> None:
    """Compute attention by the recipe's kernel, the fused one while that is open."""
    choose_attention_kernel(network, "explicit" if recipe.train.attention == "explicit" else "fused")


def first_weights(network: Transformer, recipe: Recipe, weights: Weights | None) -> None:
    """Set all trained weights to their values before the first step."""
    if recipe.adapt.rank:
        start_adapters(network, recipe.train.seed)
        return
    initialise(network, recipe.train.seed, recipe.train.init_std)
    if weights is not None:
        load_state(network, weights, STARTING_MODEL)


def each_first_value(
    network: Transformer, recipe: Recipe, weights: Weights | None
) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Every parameter and its values before the first step, one whole tensor after another; the network's own may be
    divided among processes, and have no values yet.
    """
    if weights is None:
        yield from initial_values(network, recipe.train.seed, recipe.train.init_std)
        return
    parameters = dict(network.named_parameters())
    yield from ((parameters[name], weights[name]) for name in sorted(shapes_of(weights)))
    yield from first_adapters(network, recipe.train.seed)


def recompute_blocks(network: Transformer) -> None:
    """Keep only each block's input for the backward pass, which computes the rest again."""
    for block in (*network.blocks, *(network.encoder.blocks if network.encoder else ())):
        block.forward = partial(recompute, block.forward, use_reentrant=False)


def describe_step(recipe: Recipe) -> str:
    """A line about the sequences of a step, and its micro-batches where it has several."""
    t = recipe.train
    rows = counted(t.batch * t.accumulate, "pair" if t.objective == "source-target" else "sequence")
    if t.accumulate == 1:
        return Detail(f"a step: {rows}")
    return f"a step: {rows}, in {t.accumulate:,} micro-batches of {t.batch:,} whose gradients are added up"


def describe_adapters(recipe: Recipe) -> str:
    """A line about the adapters that are trained in place of the weights."""
    assert recipe.record.base is not None
    return (
        f"adapters: rank {recipe.adapt.rank}, alpha {recipe.adapt.scaled_by:g}, {recipe.adapt.modules}: "
        f"{resolve.n_trained(recipe):,} numbers are trained; the weights of {recipe.record.base.path} stay as they are"
    )


def undivided(a: Architecture) -> str:
    """What keeps `parallel.tensor` from dividing a network, "" where nothing does."""
    reasons = {
        "an encoder-decoder": a.encoder is not None,
        "a network without a readout": a.readout == "none",
        f"experts (mlp.experts = {a.mlp.experts})": a.mlp.experts > 0,
        f"the projections of d_embed = {a.d_embed}": a.d_embed > 0,
    }
    return next((what for what, is_there in reasons.items() if is_there), "")


def n_logits(recipe: Recipe) -> int:
    """The number of logits of an eager pass; 0 where the step is compiled, since chunks would break up its graph."""
    return 0 if recipe.train.compile == "yes" else recipe.train.batch * recipe.model.n_ctx * recipe.model.n_vocab


def describe_model(a: Architecture, n_parameters: int) -> str:
    """A line about the model that is trained."""
    heads = counted(a.n_heads, "head") + (f" ({a.n_kv_heads} of keys and values)" if a.n_kv_heads != a.n_heads else "")
    return (
        f"model: {n_parameters:,} parameters, {counted(a.n_layers, 'layer')}, width {a.d_model}, {heads}, "
        f"context {a.n_ctx}, vocabulary {a.n_vocab:,}, {a.positions.kind} positions, {a.norm.kind} norm, "
        f"{a.mlp.activation}"
    )
