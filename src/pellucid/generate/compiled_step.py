"""The decoding step of a single text as machine code: compiled once, kept on disk, and loaded by later processes.

At one token a step, most of a small network's time is spent between its operations: in Python and in calls of
kernels. Here the forward pass for one more token is exported as a graph and compiled ahead of time (torch.export,
AOTInductor). A product with one row is written as a multiplication and a sum, which the compiler makes a loop over the
matrix. The lengths of the text and of the cache are symbols: one file serves every text, only what is filled is read,
and nothing is compiled again at another length. The file holds no weights: it reads those of the network.
"""

import copy
import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import pellucid.model
from pellucid.generate import packed_linear
from pellucid.generate.packed_linear import Float32, Int8
from pellucid.generate.readers import CachedReader, NextLogits, SequenceState, last_logits, window_start
from pellucid.generate.row_products import processor_features
from pellucid.model import Cache, Transformer
from pellucid.model.attention import choose_attention_kernel
from pellucid.model.cache import NoCache
from pellucid.model.shapes import History, Keys, NewKeys, Tokens
from pellucid.runs.run_dir import cache_folder

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: lengths with which a step is exported; they stand for all from 2 on
EXAMPLE_LENGTH, EXAMPLE_CAPACITY = 7, 24
COMPILER_OPTIONS = {
    # a normalised vector or an activation is computed once and stored, not once for each output that reads it
    "realize_reads_threshold": 0,
    "aot_inductor.package_constants_in_so": False,
    # else the numbers of vectors of up to eight are written into the code
    "always_keep_tensor_constants": True,
    # headers are read twice; precompiling them takes longer
    "cpp_cache_precompile_headers": False,
}


@dataclass
class TextCacheLayer(NoCache):
    """Keys and values of one layer of one text, [1, kv_head, capacity, d_head] each, the newest in column `length`.

    Inside a graph `length` is a symbol.
    """

    keys: Tensor
    values: Tensor
    length: int

    def extend(self, k: NewKeys, v: NewKeys) -> tuple[Keys, Keys]:
        column = torch.arange(self.length, self.length + 1)
        # writing by an index is what the compiler does in place
        keys, values = self.keys.index_copy_(2, column, k), self.values.index_copy_(2, column, v)
        return keys[:, :, : self.length + 1], values[:, :, : self.length + 1]


@dataclass
class TextCache(NoCache):
    """The cache of one text in a graph: the tokens so far, the last of them new, and all layers."""

    history: Tensor
    layers: Sequence[TextCacheLayer]

    def __getitem__(self, layer: int) -> TextCacheLayer:
        return self.layers[layer]

    def remember(self, tokens: Tokens) -> History:
        return self.history[None]


class OneRow(nn.Module):
    """A packed product as operations that the compiler can read."""

    def __init__(self, product: Float32 | Int8):
        super().__init__()
        self.bias = None if product.bias is None else nn.Buffer(product.bias)
        self.scale = nn.Buffer(product.scale) if isinstance(product, Int8) else None
        matrix = product.integers if isinstance(product, Int8) else product.weight
        assert matrix is not None, "without a C++ compiler nothing is compiled"
        self.matrix = nn.Buffer(matrix)

    def forward(self, x: Tensor) -> Tensor:
        y = one_row_linear(x, self.matrix)
        y = y if self.scale is None else y * self.scale
        return y if self.bias is None else y + self.bias


class NextTokenStep(nn.Module):
    """Tokens so far int64 [pos], the last of them new, to the logits [1, n_vocab] of the next one.

    Keys and values of the new one are written into column pos - 1 of each layer's [1, kv_head, capacity, d_head].
    """

    def __init__(self, network: Transformer):
        super().__init__()
        shared = {id(t): t for t in stored_tensors(network)}
        self.network = copy.deepcopy(network, shared).eval()
        choose_attention_kernel(self.network, "explicit")
        for parent in list(self.network.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, Float32 | Int8):
                    setattr(parent, name, OneRow(child))

    def forward(self, history: Tensor, keys: list[Tensor], values: list[Tensor]) -> NextLogits:
        n = history.size(0)
        layers = [TextCacheLayer(k, v, n - 1) for k, v in zip(keys, values, strict=True)]
        position, cache = torch.arange(n - 1, n), TextCache(history, layers)
        return last_logits(self.network, history[None, -1:], positions=position, cache=cache)


def stored_tensors(network: nn.Module) -> list[Tensor]:
    """Parameters, buffers, and the tensors that packed products hold."""
    packed = [t for module in network.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    return [*network.parameters(), *network.buffers(), *packed]


def one_row_linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, with a sum that the compiler makes a loop over W."""
    y = (x.unsqueeze(-2) * w).sum(-1)
    return y if bias is None else y + bias


def one_row_bmm(x: Tensor, y: Tensor) -> Tensor:
    """A product of matrices, the first of each pair of one row."""
    return (x.transpose(1, 2) * y).sum(1, keepdim=True)


def export_step(network: Transformer) -> "ExportedProgram":
    """The step of this network as a graph, for every length of the text and every capacity of the cache."""
    from torch.export import Dim, default_decompositions, export  # a second to import

    a, dtype = network.architecture, network.embed.token.weight.dtype
    n, capacity = Dim("n", min=2), Dim("capacity", min=2)
    shape = (1, a.n_kv_heads, EXAMPLE_CAPACITY, a.d_head)
    keys, values = ([torch.zeros(shape, dtype=dtype) for _ in network.blocks] for _ in range(2))
    history = torch.zeros(EXAMPLE_LENGTH, dtype=torch.int64)
    shapes = ({0: n}, [{2: capacity}] * a.n_layers, [{2: capacity}] * a.n_layers)
    with torch.no_grad():
        program = export(NextTokenStep(network), (history, keys, values), dynamic_shapes=shapes, strict=False)
        table = default_decompositions()
        table.update({torch.ops.aten.linear.default: one_row_linear, torch.ops.aten.bmm.default: one_row_bmm})
        return program.run_decompositions(table)


def file_of_step(network: Transformer) -> Path:
    """Where the compiled step is kept: named after everything that it depends on except the weights."""
    model_files = sorted(Path(pellucid.model.__file__ or "").parent.glob("*.py"))
    sources = [path.read_bytes() for path in (*model_files, Path(packed_linear.__file__), Path(__file__))]
    kinds = [type(module).__name__ for module in network.modules()]
    weight, settings = network.embed.token.weight, sorted(COMPILER_OPTIONS.items())
    about = [network.architecture.to_dict(), kinds, str(weight.dtype), torch.get_num_threads(), torch.__version__]
    key = hashlib.sha256(json.dumps([*about, settings, processor_features()]).encode() + b"".join(sources))
    return cache_folder() / "compiled" / f"step-{key.hexdigest()[:16]}.pt2"


def compile_step(network: Transformer, target: Path) -> None:
    """Compile the step of this network into `target`, which appears whole or not at all."""
    from torch._inductor import aoti_compile_and_package

    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, of its way of copying graphs
        unfinished, options = Path(folder) / target.name, dict(COMPILER_OPTIONS)
        aoti_compile_and_package(export_step(network), package_path=str(unfinished), inductor_configs=options)
        unfinished.replace(target)


class CompiledStep:
    """Reads one more token of a text with a cache.

    run   [tokens so far, keys of each layer, values of each layer] to [logits], as `NextTokenStep` says
    """

    def __init__(self, run: Callable[[list[Tensor]], list[Tensor]]):
        self.run = run
        self.cache: Cache | None = None
        self.layers: list[Tensor] = []

    def __call__(self, token: int, cache: Cache) -> NextLogits:
        """The logits [1, n_vocab] after this token, which is now in the cache."""
        if cache is not self.cache:
            self.cache, self.layers = cache, list(cache.store.flatten(0, 1).unbind())
        cache.tokens[0, cache.length] = token
        cache.advance(1)
        return self.run([cache.tokens[0, : cache.length], *self.layers])[0]


def load_step(network: Transformer, path: Path) -> CompiledStep:
    """The compiled step in this file; it reads the present weights of the network, which it keeps in memory."""
    from torch._inductor import aoti_load_package

    step = NextTokenStep(network)
    tensors = dict(step.named_parameters(remove_duplicate=False)) | dict(step.named_buffers(remove_duplicate=False))
    model = aoti_load_package(str(path))
    weights = {name: tensors[name].detach() for name in model.get_constant_fqns()}
    # user_managed: the tensors themselves, not copies of them
    model.load_constants(weights, check_full_update=True, user_managed=True)

    def run(inputs: list[Tensor]) -> list[Tensor]:
        assert weights, "the tensors live as long as this function"
        return model.loader.run(inputs)

    return CompiledStep(run)


class CompiledReader(CachedReader):
    """A cached reader of one text: prompts and moved windows are read as ever, further tokens by a compiled step."""

    def __init__(self, network: Transformer, longest: int, step: CompiledStep):
        super().__init__(network, longest)
        self.compiled = step

    def read(self, rows: Sequence[SequenceState]) -> NextLogits:
        """The logits of the row's next token."""
        n_prompt, n_tokens = len(rows[0].given), len(rows[0].given) + len(rows[0].generated)
        start = window_start(n_prompt, n_tokens, self.n_ctx)
        if self.cache is None or start != self.starts[0]:
            return super().read(rows)
        self.lengths = [n_tokens - start]
        return self.compiled(rows[0].generated[-1], self.cache)
