"""How several processes train one network: the one file that knows the cluster.

Every process runs the same trainer. The first one decides, writes and prints; the others read the recipe that it has
written. A pass of `batch` rows is divided among the processes in order, and the sum of their gradients is the gradient
of the whole pass, so that the losses are those of one process.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from pellucid.model import Transformer
from pellucid.runs.options import RecipeError
from pellucid.runs.processes import Processes
from pellucid.training.config import ParallelOptions
from pellucid.training.objectives import MicroBatch
from pellucid.training.recipe import Recipe
from pellucid.training.trainable import TransformerTrainable

#: how long the other processes wait while the first one reads and encodes the text, or writes the report
PATIENCE = timedelta(days=7)


class Cluster(Processes):
    """The processes that have joined `torch.distributed`'s default group."""

    def __init__(self):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.is_first = self.rank == 0
        self.layout = ParallelOptions(replicate=self.n, shard=1, tensor=1)
        self.has_announced = False
        self.patient_group: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        # for the thread that writes checkpoints while the other groups are in use
        self.saving_group: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.replica: DistributedDataParallel | None = None
        self.sharded: FSDPModule | None = None

    def arrange(self, recipe: Recipe) -> None:
        layout, t = recipe.parallel, recipe.train
        self.layout, self.n_shares = layout, layout.replicate * layout.shard
        self.n_parts = layout.shard * layout.tensor
        self.part_number = self.rank % self.n_parts + 1
        if t.batch % self.n_shares:
            raise RecipeError(
                f"train.batch = {t.batch} rows cannot be divided among parallel.replicate x parallel.shard = "
                f"{self.n_shares} processes: give a multiple of {self.n_shares}"
            )
        if layout.tensor > 1:
            raise RecipeError(
                f"parallel.tensor = {layout.tensor}: expected 1; give parallel.shard or replicate instead"
            )

    def lay_out(self, trainable: TransformerTrainable) -> None:
        trainable.data = OwnRows(trainable.data, self.rank, self.n_shares)
        if self.layout.shard > 1:
            self.sharded = shard(trainable.network, self.layout)
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
        number = torch.tensor(int(value))
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def summed(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    def gathered(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.n
        dist.all_gather_object(values, value, self.saving_group)
        return values

    def accumulating(self, is_last: bool) -> AbstractContextManager[object]:
        if self.sharded is not None:
            self.sharded.set_requires_gradient_sync(is_last)
        return nullcontext() if is_last or self.replica is None else self.replica.no_sync()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        norm = get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def divided(self, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        owners = {name: parameters.get(name.partition("/")[0]) for name in tensors}
        return {name: part_like(x, owners[name]) for name, x in tensors.items()}

    @contextmanager
    def plain(self, trainable: TransformerTrainable) -> Iterator[None]:
        laid_out = trainable.network
        if self.sharded is not None:
            state = trainable.state()
            weights = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in state.items()}
            if self.is_first:
                trainable.build()
                trainable.load_state(weights, "the network")
        try:
            yield
        finally:
            trainable.network = laid_out

    def own_part(self, x: Tensor) -> Tensor:
        return x.to_local() if isinstance(x, DTensor) else x

    def whole_matrices(self, parts: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        return torch.stack([whole_like(x, matrix) for x, matrix in zip(parts, matrices, strict=True)])

    def parts_of(self, whole: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        pairs = zip(whole, matrices, strict=True)
        return torch.stack([self.own_part(part_like(x, matrix)) for x, matrix in pairs])

    def leave(self, done: bool) -> None:
        """Wait for the others where all is done, and leave the group."""
        if self.is_first and not self.has_announced:
            dist.broadcast_object_list([None], 0, self.patient_group)
        elif done:
            dist.barrier(self.patient_group)
        dist.destroy_process_group()
        # what still refers to a group when the interpreter ends makes gloo abort the process
        self.replica = self.sharded = self.patient_group = self.saving_group = None
        gc.collect()


@contextmanager
def joined() -> Iterator[Processes]:
    """This process joined to the others that the launcher has started; it reads RANK, WORLD_SIZE and MASTER_ADDR."""
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_cuda else "gloo")
    cluster, done = Cluster(), False
    try:
        yield cluster
        done = True
    finally:
        cluster.leave(done)


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
    def held_out_tokens_per_byte(self) -> float | None:
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


def shard(network: Transformer, layout: ParallelOptions) -> FSDPModule:
    """Divide every weight, its gradient and its averages among the processes; each block gathers its own to compute."""
    kind = next(network.parameters()).device.type
    mesh = init_device_mesh(kind, (layout.replicate, layout.shard), mesh_dim_names=("replicate", "shard"))
    mesh = mesh if layout.replicate > 1 else mesh["shard"]
    parts = [network, network.encoder] if network.encoder else [network]
    # a table that all layers share belongs to the network, not to its first block
    shared = {p for part in parts if part.relative for p in part.relative.parameters()}
    for block in (block for part in parts for block in part.blocks):
        fully_shard(block, mesh=mesh, ignored_params=shared)
    sharded = fully_shard(network, mesh=mesh)
    for method in ("hidden", "encode"):
        register_fsdp_forward_method(network, method)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the sum, as in `sum_of_bucket`
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return sharded


def part_like(x: Tensor, owner: Tensor | None) -> Tensor:
    """What this process holds of x where `owner`, of the same shape, is divided; x itself elsewhere."""
    if not isinstance(owner, DTensor) or x.shape != owner.shape:
        return x
    return distribute_tensor(x.to(owner.device), owner.device_mesh, owner.placements, src_data_rank=None)


def whole_like(part: Tensor, owner: Tensor) -> Tensor:
    """The whole tensor of which this process holds `part`, divided as `owner` is."""
    if not isinstance(owner, DTensor):
        return part
    layout = {"shape": owner.shape, "stride": owner.stride()}
    return DTensor.from_local(part, owner.device_mesh, owner.placements, run_check=False, **layout).full_tensor()


def launch(n: int, words: Sequence[str]) -> int:
    """Run `pellucid` with these words in `n` processes of this machine, by torchrun; the exit code of the command."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // n)))
    # a signal is passed on to every process, which has this long to save
    options = ["--standalone", f"--nproc-per-node={n}", f"--shutdown-timeout={24 * 3600}"]
    try:
        run(parse_args([*options, "--module", "pellucid", *words]))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode
    except SignalException as stopped:
        return 128 + stopped.sigval
    return 0
