"""How several processes train one network: the one file that knows the cluster.

Every process runs the same trainer. The first one decides, writes and prints; the others read the recipe that it has
written. A pass of `batch` rows is divided among the processes in order, and the sum of their gradients is the gradient
of the whole pass, so that the losses are those of one process.
"""

import gc
import itertools
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.dropout import SampledDropout
from pellucid.model.mlp import PlainMLP
from pellucid.model.norm import ScaledNorm
from pellucid.model.positions import Alibi, Relative
from pellucid.model.tables import Table
from pellucid.runs.device import compile_block, resolve_device
from pellucid.runs.launcher import LAUNCHED, end_with_launcher
from pellucid.runs.options import RecipeError, TrainOptions
from pellucid.runs.processes import Processes, world_size
from pellucid.training.build import undivided
from pellucid.training.config import ParallelOptions
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.trainable import TransformerTrainable

#: how long the other processes wait while the first one reads and encodes the text, or writes the report
FIRST_PROCESS_TIMEOUT = timedelta(days=7)
#: how long a process waits for another one during the steps
HANGING = timedelta(minutes=25)
#: ... and for one whose GPU does not answer: NCCL then ends the process without an error that could be explained, so
#: this is longer. It is PyTorch's default too, which the groups of a mesh have
NCCL_HANGING = timedelta(minutes=30)
#: ... and then for an answer of those that still answer
ANSWERING = timedelta(seconds=20)


class HangError(RuntimeError):
    """A process has not answered for as long as the others wait."""


class Cluster(Processes):
    """The processes that have joined `torch.distributed`'s default group."""

    def __init__(self):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.n_here = int(os.environ.get("LOCAL_WORLD_SIZE", self.n))
        self.is_first = self.rank == 0
        self.layout = ParallelOptions(replicate=self.n, shard=1, tensor=1)
        self.has_announced = False
        self.device_type = "cpu"
        #: where the processes ask each other in every step, from the CPU
        self.steps_group: Any = dist.new_group(backend="gloo", timeout=HANGING)
        self.patient_group: Any = dist.new_group(backend="gloo", timeout=FIRST_PROCESS_TIMEOUT)
        # for the thread that writes checkpoints while the other groups are in use
        self.saving_group: Any = dist.new_group(backend="gloo", timeout=FIRST_PROCESS_TIMEOUT)
        self.replica: DistributedDataParallel | None = None
        self.sharded: FSDPModule | None = None
        #: the processes that read other rows
        self.rows_group: Any = None
        #: how often this process has waited for the others
        self.n_asked = 0

    def arrange(self, recipe: Recipe) -> None:
        layout, t = recipe.parallel, recipe.train
        # a launcher that does not set it shows each process its own GPU alone
        check_gpus(t.device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self.layout, self.n_shares = layout, layout.replicate * layout.shard
        self.n_parts = layout.shard * layout.tensor
        self.part_number = self.rank % self.n_parts + 1
        if layout.gather == "bfloat16" and (layout.shard == 1 or t.precision != "bfloat16"):
            raise RecipeError(
                "parallel.gather = bfloat16 sends rounded weights to processes that compute with them, and there are "
                f"parallel.shard = {layout.shard} and train.precision = {t.precision}: give parallel.shard above 1 and "
                "precision=bfloat16, or leave parallel.gather as it is"
            )
        if t.batch % self.n_shares:
            raise RecipeError(
                f"train.batch = {t.batch} rows cannot be divided among parallel.replicate x parallel.shard = "
                f"{self.n_shares} processes: give a multiple of {self.n_shares}"
            )
        if t.balance and self.n_shares > 1:
            raise RecipeError(
                f"train.balance = {t.balance} is computed of each micro-batch, whose rows {self.n_shares} processes "
                "divide, so that the losses would depend on their number: set it to 0, or train in one process"
            )

    def check_sizes(self, architecture: Architecture, has_vocabulary: bool, new_ids: Sequence[int] = ()) -> None:
        check_divides(architecture, self.layout.tensor, has_vocabulary)
        if new_ids and self.layout.tensor > 1:
            raise RecipeError("parallel.tensor does not divide tokens that adapters add: give parallel.shard instead")

    def lay_out(self, trainable: TransformerTrainable) -> None:
        dist.barrier(self.patient_group)  # one process may have had more to read
        self.device_type = trainable.device.type
        tensor = self.layout.tensor
        rows_of = [list(range(k, self.n, tensor)) for k in range(tensor)]
        self.rows_group, _ = dist.new_subgroups_by_enumeration(rows_of)
        trainable.data = OwnRows(trainable.data, self.rank // tensor, self.n_shares)
        if self.divides_weights:
            check_width(trainable.data, tensor)
            self.sharded = shard(trainable.network, self.layout, trainable.recipe.train)
            give_memory(trainable)
            return
        self.replica = DistributedDataParallel(LossModule(trainable.network, trainable.loss))
        self.replica.register_comm_hook(None, sum_of_bucket)
        trainable.loss = self.replica

    def announce(self, run_dir: Path, step: int | None) -> None:
        self.has_announced = True
        dist.broadcast_object_list([(run_dir, step)], 0, self.patient_group)

    def announced(self) -> tuple[Path, int | None]:
        words: list[Any] = [None]
        dist.broadcast_object_list(words, 0, self.patient_group)
        if words[0] is None:
            raise SystemExit(0)  # the first process has said why
        return words[0]

    def largest(self, value: int) -> int:
        self.n_asked += 1
        number = torch.tensor(int(value))
        dist.all_reduce(number, dist.ReduceOp.MAX, self.steps_group)
        return int(number)

    def summed(self, values: Tensor) -> Tensor:
        self.n_asked += 1
        total = values.clone()
        dist.all_reduce(total, group=self.rows_group)
        return total

    def gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.n
        dist.all_gather_object(values, value, self.saving_group)
        return values

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        if self.sharded is not None:
            self.sharded.set_requires_gradient_sync(is_last)
        if self.layout.tensor > 1:
            return loss_parallel()
        return nullcontext() if is_last or self.replica is None else self.replica.no_sync()

    def evaluating(self) -> AbstractContextManager[object]:
        rounds = self.layout.gather == "bfloat16"
        return torch.autocast(self.device_type, torch.bfloat16) if rounds else nullcontext()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        norm = get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def divided(self, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        owners = {name: parameters.get(name.partition("/")[0]) for name in tensors}
        return {name: local_shard(x, owners[name]) for name, x in tensors.items()}

    @contextmanager
    def plain(self, trainable: TransformerTrainable) -> Iterator[None]:
        laid_out = trainable.network
        if self.sharded is not None:
            state = trainable.state()
            weights = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in state.items()}
            if self.is_first:
                trainable.build_whole()
                trainable.load_state(weights, "the network")
        try:
            yield
        finally:
            trainable.network = laid_out

    def local_part(self, x: Tensor) -> Tensor:
        return x.to_local() if isinstance(x, DTensor) else x

    def whole_matrices(self, parts: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        return torch.stack([gather_full(x, matrix) for x, matrix in zip(parts, matrices, strict=True)])

    def parts_of(self, whole: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        pairs = zip(whole, matrices, strict=True)
        return torch.stack([self.local_part(local_shard(x, matrix)) for x, matrix in pairs])

    def hang_error(self, error: RuntimeError) -> HangError | None:
        """What to say of an error that a timeout raised: which processes do not answer. None for other errors."""
        if "imed out" not in str(error):
            return None
        store = dist.distributed_c10d._get_default_store()
        store.set(f"answers/{self.rank}", "here")
        time.sleep(ANSWERING.total_seconds())
        silent = [str(rank) for rank in range(self.n) if not store.check([f"answers/{rank}"])]
        who = f"process {' and '.join(silent)}" if silent else "another process"
        return HangError(
            f"{who} has not answered for {HANGING.total_seconds():.0f} seconds: look at what it waits for, stop it, "
            "and resume the run"
        )

    def leave(self, done: bool) -> None:
        """Wait for the others where all is done, and leave the group."""
        if self.is_first and not self.has_announced:
            dist.broadcast_object_list([None], 0, self.patient_group)
        elif done:
            with suppress(RuntimeError):  # another one was killed, when everything was written
                dist.barrier(self.patient_group)
        dist.destroy_process_group()
        # what still refers to a group when the interpreter ends makes gloo abort the process
        self.replica = self.sharded = self.rows_group = None
        self.steps_group = self.patient_group = self.saving_group = None
        gc.collect()


@contextmanager
def joined() -> Iterator[Processes]:
    """This process joined to the others that the launcher has started; it reads RANK, WORLD_SIZE and MASTER_ADDR."""
    if pipe := os.environ.pop(LAUNCHED, ""):
        threading.Thread(target=end_with_launcher, args=(int(pipe),), daemon=True).start()
    device = take_own_gpu() if torch.cuda.is_available() else None
    backend, timeout = ("cpu:gloo,cuda:nccl", NCCL_HANGING) if torch.cuda.is_available() else ("gloo", HANGING)
    n, rank, store = world_size(), rank_of_process(), own_store()
    dist.init_process_group(backend, timeout=timeout, rank=rank, world_size=n, store=store, device_id=device)
    cluster, done = Cluster(), False
    # advice to whoever lays out a mesh, which the user of a run cannot follow
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            with answering_launcher(cluster) if pipe else nullcontext():
                yield cluster
        done = True
    except RuntimeError as error:
        raise (cluster.hang_error(error) or error) from None
    finally:
        cluster.leave(done)


@contextmanager
def answering_launcher(cluster: Cluster) -> Iterator[None]:
    """Tell the launcher of this machine every second that this process lives."""
    over, store = threading.Event(), own_store()

    def answer() -> None:
        with suppress(RuntimeError):  # the launcher has died
            for second in itertools.count():
                store.set(f"alive/{cluster.rank}", f"{second} {cluster.n_asked}")
                if over.wait(1):
                    return

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    try:
        yield
    finally:
        over.set()
        answering.join(2)


def take_own_gpu() -> torch.device | None:
    """Make the GPU with the number of this process on its machine the current one, and return it.

    None, and nothing is done, where the processes of this machine do not have one each: the run may be one on the CPU,
    and `check_gpus` refuses it otherwise.
    """
    number, n_here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if max(number + 1, n_here) > torch.cuda.device_count():
        return None
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def check_gpus(word: str | None, n_here: int) -> None:
    """Raise RecipeError where processes that train on GPUs do not have one each.

    word    the recipe's device
    n_here  processes of this machine
    """
    device = resolve_device(word)
    if device.type != "cuda":
        return
    if device.index is not None:
        raise RecipeError(
            f"train.device = {word} is one GPU, and each of several processes takes its own: give --device cuda"
        )
    n_gpus = torch.cuda.device_count()
    if n_here > n_gpus:
        raise RecipeError(
            f"{n_here} processes need {n_here} GPUs, and this machine has {n_gpus}: give --processes {n_gpus} or "
            "--device cpu"
        )


def rank_of_process() -> int:
    """The number that the launcher has given to this process."""
    return int(os.environ["RANK"])


def own_store() -> Store:
    """Where processes that were started together find each other.

    torchrun keeps its store when it starts them again, and gloo would wait for the addresses of those that died.
    """
    is_of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_master = rank_of_process() == 0 and not is_of_launcher
    store = TCPStore(address, port, world_size(), is_master, HANGING)
    return PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


class OwnRows:
    """The rows of one process: part `share` of `n_shares` of every pass, and of every held-out batch."""

    def __init__(self, data: Any, share: int, n_shares: int):
        self.data, self.share, self.n_shares = data, share, n_shares

    def at(self, step: int, micro: int, of: int) -> MicroBatch:
        """Part `micro` of `of` of a step's batch, as far as it is of this process."""
        return self.data.at(step, micro * self.n_shares + self.share, of * self.n_shares)

    def held_out(self) -> Iterator[MicroBatch]:
        """All that is held out, divided among the processes batch by batch; some may have no row of the last one."""
        for batch in self.data.held_out():
            tensors = {f.name: x for f in fields(batch) if isinstance(x := getattr(batch, f.name), Tensor)}
            yield replace(batch, **{name: x.tensor_split(self.n_shares)[self.share] for name, x in tensors.items()})

    @property
    def n_held_out(self) -> int:
        """Held-out tokens of all processes."""
        return self.data.n_held_out

    @property
    def held_out_tokens_per_byte(self) -> float:
        """Held-out tokens per byte of their text."""
        return self.data.held_out_tokens_per_byte


class LossModule(nn.Module):
    """The loss of a pass as a module's forward, which is what DistributedDataParallel watches."""

    def __init__(self, network: nn.Module, loss: Callable[[Any], Tensor]):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, batch: MicroBatch) -> Tensor:
        return self.loss(batch)


def sum_of_bucket(_: object, bucket) -> torch.futures.Future[Tensor]:
    """The sum of the gradients over the processes: a pass's loss is a share of the step's, so that no mean is taken."""
    # `bucket` is a dist.GradBucket, a type that DistributedDataParallel checks and PyTorch does not export
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def shard(network: Transformer, layout: ParallelOptions, t: TrainOptions) -> FSDPModule:
    """Divide each layer among `tensor` processes, and every weight, its gradient and its averages among `shard`.

    Each block gathers its own weights to compute, in the precision of `layout.gather`, and is compiled by itself. The
    parts, the gradients and their sums are float32.
    """
    kind = torch.device(t.device).type
    sizes = (layout.replicate, layout.shard, layout.tensor)
    mesh = init_device_mesh(kind, sizes, mesh_dim_names=("replicate", "shard", "tensor"))
    if layout.tensor > 1:
        divide_layers(network, mesh["tensor"])
    mesh = mesh["replicate", "shard"] if layout.replicate > 1 else mesh["shard"]
    parts = [network, network.encoder] if network.encoder else [network]
    # a table that all layers share belongs to the network, not to its first block
    shared = {p for part in parts if part.relative for p in part.relative.parameters()}
    # the stream keeps its precision, as under autocast
    of_blocks = MixedPrecisionPolicy(cast_forward_inputs=False)
    if layout.gather == "bfloat16":
        of_blocks = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in (block for part in parts for block in part.blocks):
        if t.compile == "yes":
            compile_block(block)
        fully_shard(block, mesh=mesh, ignored_params=shared, mp_policy=of_blocks)
    sharded = fully_shard(network, mesh=mesh)
    for method in ("hidden", "encode"):
        register_fsdp_forward_method(network, method)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the sum, as in `sum_of_bucket`
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return sharded


def give_memory(trainable: TransformerTrainable) -> None:
    """Give this process's parts of a network made without memory some, and their first values."""
    trainable.network.to_empty(device=trainable.device)
    with torch.no_grad():
        for p, values in trainable.each_first_value():
            p.copy_(local_shard(values, p))
            del values  # before the next tensor is read


# Tensor and sequence parallelism -------------------------------------------------------------------


def check_divides(a: Architecture, tensor: int, has_vocabulary: bool = True) -> None:
    """Raise RecipeError with the first size that cannot be divided among `tensor` processes."""
    if tensor == 1:
        return
    if what := undivided(a):
        raise RecipeError(f"parallel.tensor = {tensor} does not divide {what}: give parallel.shard for this one")
    sizes = {"n_heads": a.n_heads, "n_kv_heads": a.n_kv_heads, "d_ff": a.d_ff, "n_ctx": a.n_ctx, "n_vocab": a.n_vocab}
    for name, size in sizes.items():
        if size % tensor and (has_vocabulary or name != "n_vocab"):
            more = size + tensor - size % tensor
            raise RecipeError(
                f"model.{name} = {size:,} cannot be divided among parallel.tensor = {tensor} processes: give {more:,}, "
                "or another parallel.tensor"
            )


def check_width(data: Any, tensor: int) -> None:
    """Raise RecipeError where the windows of a short held-out text cannot be divided among `tensor` processes."""
    width = next(data.held_out()).inputs.size(1)
    if width % tensor:
        raise RecipeError(
            f"the held-out text is one window of {width} tokens, which parallel.tensor = {tensor} does not divide: "
            "hold out more text, or give another parallel.tensor"
        )


def divide_layers(network: Transformer, mesh: DeviceMesh) -> None:
    """Heads, hidden neurons and the vocabulary divided among the processes of `mesh` (Shoeybi et al. 2019), and
    between them the positions of the stream (Korthikanti et al. 2022).
    """
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    parallelize_module(network, mesh, plan_of(network), src_data_rank=None)
    gathers = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    parallelize_module(network.final_norm, mesh, gathers)
    if network.architecture.unembed == "tied":
        network.unembed.weight = network.embed.token.weight
    parallelize_module(network.unembed, mesh, ReadoutInParts(), src_data_rank=None)
    for name in frozen:
        network.get_parameter(name).requires_grad_(False)  # the plan's new parameters are trained
    rank, n = mesh.get_local_rank(), mesh.size()
    for name, module in network.named_modules():
        if isinstance(module, SampledDropout) and name != "embed.dropout":
            module.register_forward_pre_hook(partial(number_dropout_from, rank))
        if isinstance(module, Table) and isinstance(module.values, DTensor):
            module.values = module.values.to_local()  # what surrounds it computes with plain tensors
        if isinstance(module, Alibi):
            module.exact = module.exact.chunk(n)[rank]
            module.values = module.values.chunk(n)[rank]


def number_dropout_from(rank: int, dropout: SampledDropout, inputs: tuple[Tensor]) -> None:
    """Number the heads, or the positions, of this process as those of the whole tensor, axis 1 of which is divided."""
    dropout.first = rank * inputs[0].size(1)


def plan_of(network: Transformer) -> dict[str, ParallelStyle]:
    """How each module of the network is divided, by name."""
    stream, all_of_it = Shard(1), Replicate()
    plan: dict[str, ParallelStyle] = {
        "embed": PrepareModuleOutput(output_layouts=all_of_it, desired_output_layouts=stream),
        "embed.token": RowwiseParallel(input_layouts=all_of_it, output_layouts=all_of_it),
    }
    for name, module in network.named_modules():
        if name == "embed.norm":
            plan[name] = Replicated()
        elif isinstance(module, ScaledNorm) and not name.startswith("unembed"):
            plan[name] = SequenceParallel(sequence_dim=1, use_local_output=True)  # axis 1: positions, or heads
        elif isinstance(module, Relative):
            plan[name] = ColwiseParallel()
        elif isinstance(module, nn.Embedding) and name != "embed.token":
            plan[name] = ColwiseParallel(output_layouts=all_of_it)
        elif isinstance(module, MultiHeadAttention):
            plan[name] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(all_of_it,))
        elif isinstance(module, PlainMLP):
            plan[name] = PrepareModuleInput(input_layouts=(stream, None), desired_input_layouts=(all_of_it, None))
        elif name.endswith((".out", ".down")):
            plan[name] = RowwiseParallel(output_layouts=stream)
        elif isinstance(module, nn.Linear) and ".mlp.up." in name and not name.endswith(".up.0"):
            plan[name] = ColwiseParallel(input_layouts=Shard(-1))
        elif isinstance(module, nn.Linear) and not name.startswith("unembed"):
            plan[name] = ColwiseParallel()
    return plan


class Replicated(ParallelStyle):
    """A module that every process computes as a whole."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute_module(module, device_mesh)
        module.register_forward_pre_hook(partial(as_replicated, device_mesh))
        module.register_forward_hook(as_local)
        return module


class ReadoutInParts(ParallelStyle):
    """A readout of which each process has some rows; its logits stay divided where a loss will be computed of them."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        distribute_module(module, device_mesh, divide_rows)
        module.register_forward_pre_hook(partial(as_replicated, device_mesh))
        module.register_forward_hook(whole_without_gradient)
        return module


def divide_rows(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the rows of the readout's own parameters; those of modules inside it stay whole."""
    for key, p in module.named_parameters(recurse=False):
        if not name and not isinstance(p, DTensor):
            rows = distribute_tensor(p.detach(), mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(key, nn.Parameter(rows))


def as_replicated(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The input, which every process has, as a distributed tensor; and whatever follows it."""
    return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False), *inputs[1:]


def as_local(module: nn.Module, inputs: tuple[Any, ...], output: DTensor) -> Tensor:
    """The output as a plain tensor."""
    return output.to_local()


def whole_without_gradient(module: nn.Module, inputs: tuple[Any, ...], output: DTensor) -> Tensor:
    """The logits, whole where no gradient is asked for: an evaluation also looks for the likeliest."""
    return output if torch.is_grad_enabled() else output.full_tensor()


def local_shard(x: Tensor, owner: Tensor | None) -> Tensor:
    """What this process holds of x where `owner`, of the same shape, is divided; x itself elsewhere."""
    if not isinstance(owner, DTensor) or x.shape != owner.shape:
        return x
    return distribute_tensor(x.to(owner.device), owner.device_mesh, owner.placements, src_data_rank=None)


def gather_full(part: Tensor, owner: Tensor) -> Tensor:
    """The whole tensor of which this process holds `part`, divided as `owner` is."""
    if not isinstance(owner, DTensor):
        return part
    layout = {"shape": owner.shape, "stride": owner.stride()}
    return DTensor.from_local(part, owner.device_mesh, owner.placements, run_check=False, **layout).full_tensor()
