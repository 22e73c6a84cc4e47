"""Training a transformer on text or pairs: what the pipeline of runs asks of it."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pellucid.model import Transformer
from pellucid.model.float64 import in_float64
from pellucid.model.weights import StoredWeights, WithNewRows
from pellucid.parameter_counts import count_parameters
from pellucid.runs.device import check_precision, resolve_device
from pellucid.runs.interrupt import Interruption, Phase
from pellucid.runs.length import plan_in_time
from pellucid.runs.measure import measure_step
from pellucid.runs.pace import Pace
from pellucid.runs.processes import SINGLE_PROCESS, Processes
from pellucid.runs.reporter import Detail, PlainReporter
from pellucid.runs.run_dir import DATA
from pellucid.runs.trainable import BatchLoss, HeldOutSums, Trainable
from pellucid.text.chat_template import ChatTemplate, read_chat_template, write_chat_template
from pellucid.text.read.conversations import Conversations
from pellucid.text.read.documents import Corpus
from pellucid.text.read.pairs import Pairs
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from pellucid.text.tokens.conversations import ConversationTokens
from pellucid.text.tokens.store import Tokens, describe_difference
from pellucid.text_model import Model
from pellucid.training import resolve_recipe as resolve
from pellucid.training.build import (
    ChooseSizes,
    Weights,
    build_network,
    choose_for_device,
    choose_kernel,
    choose_template,
    describe_adapters,
    describe_model,
    describe_step,
    each_first_value,
    fit_to_input,
    n_logits,
    read_input,
)
from pellucid.training.chat import epoch_targets
from pellucid.training.data import make_data
from pellucid.training.expert_use import ExpertUse
from pellucid.training.load import as_trained, keep_base, save_initial_checkpoint
from pellucid.training.memory import check_memory
from pellucid.training.objectives import MicroBatch, autocast, losses_and_hits, with_dropout_by_sample
from pellucid.training.recipe import Recipe, TextRecipeT
from pellucid.training.step_choice import resolve_step
from pellucid.trust import Trust

#: writes a sample after a prompt by a seed, or gives None where the network's logits are not finite; its last argument
#: is called with the number of tokens written, and how many there will be; of conversations it gets the template too
Sampler = Callable[[Model, str, int, Callable[[int, int], object]], str | None]
#: what is measured before the first step of a run: lines to print, and JSON files for its folder
PreRunChecks = Callable[[Recipe, Tokens, Callable[[], None]], tuple[list[str], dict[str, Any]]]


class TextTrainable(Trainable[TextRecipeT]):
    """A model of text, and the text that it is trained on; `read` sets these fields."""

    network: Any
    data_shape = DATA
    corpus: Corpus | Pairs | Conversations
    tokens: Tokens
    tokenizer: Tokenizer

    def files(self) -> dict[str, Any]:
        return {"data.json": self.tokens.manifest | self.corpus.about()}

    def fill(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def difference(self, data: Mapping[str, Any]) -> str:
        return "; ".join(describe_difference(dict(data), self.tokens.manifest).splitlines())

    @property
    def n_train(self) -> int:
        return len(self.tokens.part("train"))

    @property
    def evaluated_network(self) -> Any:
        """The network whose held-out loss is measured."""
        return self.network

    def held_out_sums(self, batch: MicroBatch) -> HeldOutSums:
        with self.processes.evaluating():
            losses, is_likeliest = losses_and_hits(self.evaluated_network, batch)
        counts = batch.counts
        assert counts is not None  # held-out batches say what is scored
        # the host of a GPU would wait to know how many are selected
        scored = losses[counts] if losses.device.type == "cpu" else losses.masked_fill(~counts, 0.0)
        sums = in_float64(scored).sum(), in_float64((is_likeliest & counts).sum()), in_float64(counts.sum())
        n_read = batch.inputs.numel()
        if self.processes.n > 1:  # each reads other rows, and some may have none of the last batch
            n_read = int(self.processes.summed(torch.tensor(float(n_read), dtype=torch.float64)).item())
        return HeldOutSums(torch.stack(sums), n_read)


class TransformerTrainable(TextTrainable[Recipe]):
    """A transformer and the text that it is trained on.

    recipe        what is decided so far; a new run decides the rest
    sampler       writes the samples; without one there are none
    tokenizer     of the model that a new run starts from, and its chat template
    weights       of the model that a run starts from, by parameter; a run of adapters needs them when it is resumed too
    checks        what is measured before the first step
    choose_sizes  decides sizes that the recipe leaves open
    processes     that train together
    trust         accept patterns of the tokenizer that are not known to be safe
    """

    network: Transformer
    can_start_from = True
    remedies = "more text, dropout or a smaller model"

    def __init__(
        self,
        recipe: Recipe,
        sampler: Sampler | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        chat_template: ChatTemplate | None = None,
        weights: Weights | None = None,
        checks: PreRunChecks | None = None,
        choose_sizes: ChooseSizes | None = None,
        processes: Processes = SINGLE_PROCESS,
        trust: Trust = False,
    ):
        self.recipe, self.sampler, self.weights, self.processes = recipe, sampler, weights, processes
        self.checks, self.choose_sizes = checks, choose_sizes
        self.known_tokenizer, self.chat_template = tokenizer, chat_template
        self.trust: Trust = trust
        self.check_files: dict[str, Any] = {}
        self.expert_use: ExpertUse | None = None

    def read(self, reporter: PlainReporter, interruption: Interruption, run_dir: Path | None = None) -> None:
        # refused before the text is read
        check_precision(self.recipe.train.precision, resolve_device(self.recipe.train.device))
        layout = self.recipe.parallel.divided(self.processes.n)
        self.recipe = replace(self.recipe, parallel=layout)
        if run_dir and self.processes.n > 1:
            self.recipe = resolve.divided_anew(self.recipe, layout.replicate * layout.shard)
        self.processes.arrange(self.recipe)
        if self.processes.n > 1:
            named = ", ".join(f"parallel.{name} = {n}" for name, n in layout.sizes.items())
            reporter.start([f"processes: {self.processes.n} ({named})"])
        if run_dir or self.choose_sizes is None:
            self.processes.check_sizes(self.recipe.model, run_dir is not None, self.recipe.record.new_ids)
        known = load_tokenizer(run_dir, trust=self.trust) if run_dir else self.known_tokenizer
        # a resumed run has a copy of its template: the file that it was read from may have changed
        own = read_chat_template(run_dir) if run_dir else None
        template = own or choose_template(self.recipe.text.chat_template, self.chat_template)
        sizes = None if run_dir else self.choose_sizes
        self.recipe, self.corpus, self.tokens, self.tokenizer = read_input(
            self.recipe, reporter, known, template, interruption, sizes, self.trust
        )

    def prepare(self, interruption: Interruption, pace: Pace | None) -> list[str]:
        device = resolve_device(self.recipe.train.device)
        shares = self.processes.n_shares
        opened = self.recipe = fit_to_input(self.recipe, self.tokens, self.tokenizer, device, shares)
        self.processes.check_sizes(opened.model, has_vocabulary=True, new_ids=opened.record.new_ids)
        if self.weights is not None and self.recipe.record.new_ids:
            self.weights = WithNewRows(self.weights, self.recipe.model.n_vocab, self.recipe.record.new_ids)
        with interruption.phase("planning memory"):
            check_memory(self.recipe, device, self.processes)
        interruption.poll()
        data = make_data(self.tokens, self.recipe, device)  # refuses text too small for a window
        with interruption.phase("making the network"):
            self.build(device)
        interruption.poll()

        def measure(recipe: Recipe, budget: float) -> float:
            self.recipe = recipe
            choose_kernel(self.network, recipe)
            with interruption.phase("timing a step") as phase:
                return measure_step(self, phase, budget)

        n_train, generators = self.n_train, [device] if device.type == "cuda" else []
        with torch.random.fork_rng(generators):
            self.recipe, lines = resolve_step(self.recipe, n_train, device, measure, pace)
        self.network.zero_grad(set_to_none=True)
        recipe = self.recipe
        choose_kernel(self.network, recipe)
        choose_for_device(self.network, recipe, device, self.processes)
        if recipe.adapt.rank:
            lines.append(describe_adapters(recipe))
        with interruption.phase("counting n-grams to compare with") as phase:
            checked, self.check_files = self.checks(recipe, self.tokens, phase) if self.checks else ([], {})
        interruption.poll()
        if pace:
            most = math.inf if recipe.train.minutes else recipe.n_steps
            pace.know(data.n_held_out, resolve.n_trained(recipe), most, self.finish_cost, self.can_sample)
            recipe, sentence = plan_in_time(recipe, opened, pace)
            lines.append(sentence)
        self.recipe, decay = resolve.resolve_weight_decay(recipe, n_train)
        recipe, lines = self.recipe, [*lines, Detail(decay)]
        n_parameters = count_parameters(recipe.model)["total"]
        model = [describe_model(recipe.model, n_parameters), describe_step(recipe)]
        return [*model, *filter(None, lines), *self.lines_on_whole_weights(), *checked]

    def lines_on_whole_weights(self) -> list[str]:
        """A line where each process could not read its parts of the given weights alone."""
        why = self.weights.why_whole if isinstance(self.weights, StoredWeights) else ""
        if not why or not self.is_made_in_parts:
            return []
        return [f"every process reads all given weights before it keeps its parts: {why}"]

    def files(self) -> dict[str, Any]:
        return {"architecture.json": self.recipe.model.to_dict(), **self.check_files, **super().files()}

    def fill(self, folder: Path) -> None:
        super().fill(folder)
        if isinstance(self.tokens, ConversationTokens):
            write_chat_template(folder, self.tokens.template, self.tokenizer.named_end)
        if self.weights is not None and not self.recipe.adapt.rank:
            save_initial_checkpoint(folder, self.weights)
        if self.recipe.adapt.rank:
            keep_base(self.recipe.record.base)

    def check_memory(self) -> None:
        check_memory(self.recipe, self.device, self.processes)

    @property
    def is_made_in_parts(self) -> bool:
        """Whether no process has the whole network: each draws or reads its parts of the first weights (`lay_out`)."""
        return self.processes.divides_weights

    def build(self, device: torch.device | None = None) -> None:
        device = torch.device("meta") if self.is_made_in_parts else device or self.device
        self.network = build_network(self.recipe, device, self.weights)
        choose_for_device(self.network, self.recipe, device, self.processes)

    def each_first_value(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Every parameter and its values before the first step, one whole tensor after another."""
        yield from each_first_value(self.network, self.recipe, self.weights)
        if not (self.recipe.adapt.rank and self.processes.is_first):  # which adds them to samples
            self.weights = None

    def estimated_step_seconds(self) -> float | None:
        # a first guess: a run of minutes follows the speed of its own steps
        return resolve.estimated_seconds(self.recipe, self.device, self.processes.n) if self.is_made_in_parts else None

    def build_whole(self) -> None:
        self.network = build_network(self.recipe, self.device, self.weights)

    def make_data(self):
        return make_data(self.tokens, self.recipe, self.device)

    def make_loss(self) -> BatchLoss:
        t = self.recipe.train
        self.expert_use = ExpertUse(self.network, t.balance) if self.recipe.model.mlp.experts else None
        return autocast(self.network, self.device, t.precision, n_logits(self.recipe), self.expert_use)

    def step_figures(self) -> dict[str, torch.Tensor]:
        return {} if self.expert_use is None else self.expert_use.take_figures()

    @property
    def n_train(self) -> int:
        return epoch_targets(self.tokens, self.recipe.model.n_ctx)

    @property
    def n_trained(self) -> int:
        return resolve.n_trained(self.recipe)

    @property
    def can_sample(self) -> bool:
        return self.sampler is not None

    @property
    def starts_from_model(self) -> bool:
        return self.recipe.record.base is not None

    def begin(self) -> None:
        super().begin()
        # outside of what is compiled: each pass has other numbers
        self.loss = with_dropout_by_sample(self.network, self.loss)

    def sample(self, seed: int, phase: Phase) -> str | None:
        assert self.sampler is not None
        template = self.tokens.template if isinstance(self.tokens, ConversationTokens) else None
        model = Model(self.network, as_trained(self.tokenizer, self.recipe), chat_template=template)
        return self.sampler(model, self.recipe.train.sample_prompt, seed, phase)
