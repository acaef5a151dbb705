"""RunRanks: what the ranks that share a run agree on, and the check that they learn what one rank learns."""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks.gradients import BUCKET_BYTES, GradientSum
from graphbraid.distributed.ranks.joining import check_alike
from graphbraid.errors import ConfigError, RankError
from graphbraid.fullgraph.reading.modes import kept_buffers
from graphbraid.fullgraph.reading.watch import options_of
from graphbraid.nn.module_traits import in_mode
from graphbraid.ops.rng import given_seeds
from graphbraid.sampling.config import part_of
from graphbraid.train import runtime
from graphbraid.train.callbacks import Status
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.evaluate import EvalMode, score_by_ranks
from graphbraid.train.inference.metrics import Kinds
from graphbraid.train.option_values import names_with
from graphbraid.train.run.hot_sharing import HotSharing
from graphbraid.train.run_folder.contract import model_identity
from graphbraid.train.step.links.runner import EndsRunner
from graphbraid.train.step.reach import agree
from graphbraid.train.step.runner import ModelRunner, divided_graph
from graphbraid.train.step.step import ALONE, Share, make_loader
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.rank_norms import RankNorms
    from graphbraid.train.step.step import BatchShare
    from graphbraid.train.trainer import Trainer

_log = logging.getLogger(__name__)
T = TypeVar("T")
_STOPS: tuple[Status, ...] = ("early-stopped", "stopped", "interrupted")
"""Reasons to stop, the weightier ones last."""
NUM_EXTRA = 1 + len(_STOPS)
"""Numbers that are added up with the gradients: the loss, and who wants to stop for which reason."""
_SHARED_SEEDS = 8
"""Seeds of each rank in the mini-batch on which shares are compared with the whole."""


class RunRanks:
    """The ranks that share a run: its batches, its evaluations, its decisions and its files."""

    def __init__(self, trainer: Trainer, comm: Communicator, guard: runtime.SignalGuard) -> None:
        self._trainer, self._comm, self._guard = trainer, comm, guard
        self._sum: GradientSum | None = None
        self._batches: Iterator[BatchShare] = iter(())
        self._taken: list[BatchShare | Exception | None] = []
        self._agreed: Status | None = None
        self._drawn: Tensor | None = None
        """State of PyTorch's generator before the first step; empty once it was compared."""
        self.rank, self.size = comm.rank, comm.size

    def check_same_run(self) -> None:
        """Check that all ranks train the same model on the same graph with the same options.

        Raises:
            ConfigError: something differs; the message names it, and the rank.
        """
        config = self._trainer.config
        if config.mode == "sampled" and config.batch_size < self.size:
            raise ConfigError(
                f"batch_size={config.batch_size} is the number of seeds of all ranks together, and there are "
                f"{self.size} ranks; give at least one seed to each."
            )
        # Devices may differ in their number, not in their kind.
        kind = {"a model on": self._trainer.runner.device.type}
        check_alike(
            self._comm, kind, "ranks add up their gradients on CUDA devices or on the CPU, not on both"
        )
        own = names_with("own", type(config))  # where and when a rank works, or what only the first one heeds
        options = {name: value for name, value in config.to_json().items() if name not in own}
        check_alike(self._comm, options, "start all ranks with the same options")
        graph = {f"graph's {name}": value for name, value in self._trainer.identity.items()}
        check_alike(self._comm, graph, "load the same graph on all ranks")
        built = model_identity(self._trainer.runner.model) | options_of(self._trainer.runner.model)
        model = {f"model's {name}": value for name, value in built.items()}
        check_alike(self._comm, model, "build the same model on all ranks")

    # ---- before the first step

    def share_hot_rows(self, stack: contextlib.ExitStack) -> None:
        """Let devices read each other's hot rows on mini-batches, until ``stack`` ends.

        Raises:
            ResourceError: the device does not have the memory of the rows.
        """
        if self._trainer.config.mode == "sampled":
            stack.enter_context(HotSharing(self._trainer, self._comm)).open()

    def check_shares(self, nodes: Tensor) -> None:
        """Check that ranks learn the same from a batch as one rank, as far as the model's outputs show it.

        Raises:
            ConfigError: on some rank the outputs for its seeds are not those that they have in the whole
                batch.
        """
        runner = self._trainer.runner
        runner.norms = None
        if isinstance(runner, EndsRunner):
            nodes, runner = runner.data.ends.nodes, runner.encoder_runner()
        if not self._agree(runner, nodes):
            hops = "layout='subgraph'"
            if self._trainer.config.layout == "subgraph":
                hops = "hops, if it reads from further away"
            raise ConfigError(
                "several ranks cannot train this model on shares of a batch: outputs for some seeds depend "
                "on more of it than what these read. A layer may normalise by other nodes of the batch, or "
                f"read out-edges. Use one rank, or set {hops}."
            )
        if any(isinstance(one, _BatchNorm) for one in self._trainer.runner.model.modules()):
            self._normalise_together(runner, nodes)
        elif not self._agree(runner, nodes, trains=True) and self.rank == 0:
            _log.warning(
                "while it trains, the model's outputs for some seeds depend on more of a batch than what "
                "these read, as where it computes batch normalisation itself: losses depend on the number "
                "of ranks; torch.nn.BatchNorm1d is by the rows of all ranks"
            )

    def _normalise_together(self, runner: ModelRunner, nodes: Tensor) -> None:
        """Let batch normalisation use the rows of all ranks; warn if the result differs from one rank's."""
        from graphbraid.fullgraph.batches.rank_norms import RankNorms  # here: few models need it

        whole, why = self._trainer.runner, ""
        try:
            if self._trainer.config.task == "graph":
                raise ConfigError("each rank joins its own graphs")
            if isinstance(whole, EndsRunner) and whole.data.times is not None:
                raise ConfigError(
                    "links with times have a tree of nodes each, which ranks number by themselves"
                )
            norms = RankNorms(self._comm, runner.model, len(self._trainer.config.fanouts), whole=whole.model)
            if nodes.numel() < self.size:
                raise ConfigError("there are too few nodes to try whether ranks can normalise together")
            if not self._agree(runner, nodes, norms):
                raise ConfigError("what it normalises is not known to be the rows of a batch's nodes")
            if not self._agree(runner, nodes, norms, trains=True):
                raise ConfigError("in training mode the model normalises in other ways than by its modules")
            whole.norms = norms
        except ConfigError as error:
            why = str(error)
        if why and self.rank == 0:
            _log.warning(
                "batch normalisation is by each rank's own rows, so that losses depend on the number of "
                "ranks; norm='layer' does not: %s",
                why,
            )

    def _agree(
        self, runner: ModelRunner, nodes: Tensor, norms: RankNorms | None = None, *, trains: bool = False
    ) -> bool:
        """Return whether shares of a batch give the whole batch's outputs, on all ranks."""
        config, share = self._trainer.config, Share.of(self._comm)
        with runtime.random_state_kept() if trains else contextlib.nullcontext():
            own = shares_agree(runner, config, nodes, share, norms, trains=trains)
        return bool(self._comm.all_reduce(torch.tensor([int(own)]), "min").wait())

    # ---- decisions of the first rank

    def of_first(self, make: Callable[[], T]) -> T:
        """Return the first rank's result of ``make``, a plain value, on every rank."""
        made: T = self._comm.share(make() if self.rank == 0 else None)
        return made

    def read_file(self, path: Path | None, read: Callable[[Path], T]) -> T:
        """Return ``read(path)``, of a file that only the first rank can see; the others get a copy of it."""
        if self.rank == 0:
            assert path is not None
            found = read(path)  # before it is sent: a damaged file is told of by its name
            data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            self._comm.share(data.numel())
            self._comm.broadcast(data).wait()
            return found
        data = torch.empty(self._comm.share(None), dtype=torch.uint8)
        self._comm.broadcast(data).wait()
        with tempfile.TemporaryDirectory(prefix="graphbraid-") as folder:
            copy = Path(folder) / "copy"
            copy.write_bytes(data.numpy().tobytes())
            return read(copy)

    def spread_weights(self, model: nn.Module) -> None:
        """Give all ranks the first one's parameters and buffers."""
        self._spread([*model.parameters(), *model.buffers()])

    def _spread(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            self._comm.broadcast(whole).wait()
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)

    # ---- steps

    def prepare_steps(self, model: nn.Module) -> None:
        """Prepare to add up gradients; from now on all ranks have the first one's parameters."""
        self.spread_weights(model)
        engine = self._trainer.runner.engine
        ranks = None if engine is None else engine.ranks
        bucket_bytes = BUCKET_BYTES if ranks is None else 0
        self._sum = GradientSum(
            self._comm, model.parameters(), num_extra=NUM_EXTRA, bucket_bytes=bucket_bytes
        )
        if ranks is not None:
            ranks.listen(self._sum.begin)

    def ahead(self, batches: Iterator[BatchShare]) -> Iterator[BatchShare]:
        """Return the batches of an epoch. The next one is taken while gradients travel.

        The threads that prepare batches begin another one as soon as one is taken. Where they share the core
        of training, they would do so while the next step computes; taken early, they do while it waits.
        """
        self._batches, self._taken = batches, []
        return iter(self._next, None)

    def take(self) -> None:
        """Take the next batch if none is taken; its error is raised when it is used."""
        if not self._taken:
            try:
                self._taken.append(next(self._batches, None))
            except Exception as error:
                self._taken.append(error)

    def _next(self) -> BatchShare | None:
        self.take()
        taken = self._taken.pop()
        if isinstance(taken, Exception):
            raise taken
        return taken

    def begin_step(self) -> None:
        """Make PyTorch's draws on a mini-batch a function of (seed, epoch, step, rank): ranks differ.

        Masks that graphbraid draws are functions of the node, and all ranks draw the same seeds for them.
        """
        if self._trainer.config.mode == "sampled":
            progress = self._trainer.progress
            device = self._trainer.runner.device
            runtime.seed_step(self._trainer.config.seed, progress.epoch, progress.step, self.rank, device)
            if self._drawn is None:
                self._drawn = _generator_state(device)

    def _warn_of_draws(self) -> None:
        """Warn if PyTorch drew random numbers in the first step, as dropout does that runs as written."""
        before, device = self._drawn, self._trainer.runner.device
        if before is not None and before.numel():
            if self.rank == 0 and not before.equal(_generator_state(device)):
                _log.warning(
                    "PyTorch draws random numbers for the model, as for dropout that runs as written: each "
                    "rank has its own, so that losses depend on the number of ranks"
                )
            self._drawn = torch.empty(0)

    def before_last_backward(self) -> None:
        """Send gradients as soon as they are complete: the next backward pass completes this rank's."""
        if self._sum is not None:
            self._sum.arm()

    def add_up(self, loss_sum: float) -> float:
        """Replace the gradients by their sums over the ranks, and return the sum of ``loss_sum``.

        The ranks also agree on a stop that any of them wants. The next batch is taken while the sums travel.
        """
        assert self._sum is not None
        self._warn_of_draws()
        wish = self._wish()
        numbers = [loss_sum, *(float(wish == stop) for stop in _STOPS)]
        loss_sum, *wishes = self._sum.finish(numbers, self.take)
        self._agreed = next((s for s, n in reversed(list(zip(_STOPS, wishes, strict=True))) if n > 0), None)
        return loss_sum

    def must_stop(self) -> bool:
        """Return whether to stop after the step just made, as agreed in it; each rank says the same."""
        if self._agreed is not None:
            self._trainer.stop_status = self._agreed
        return self._agreed is not None

    def must_stop_between(self) -> bool:
        """Return whether to stop between epochs; all ranks must ask together."""
        wish = self._wish()
        weight = torch.tensor([0 if wish is None else 1 + _STOPS.index(wish)])
        most = int(self._comm.all_reduce(weight, "max").wait())
        self._agreed = _STOPS[most - 1] if most else None
        return self.must_stop()

    def _wish(self) -> Status | None:
        return "interrupted" if self._guard.signal is not None else self._trainer.stop_status

    def traffic(self) -> str:
        """Return a table of the rows that ranks have read and sent; empty if each rank has all rows."""
        divided = divided_graph(self._trainer.graph)
        if divided is None:
            return ""
        from graphbraid.distributed.shards.feature_rows import (  # here: few runs have parts
            RowTraffic,
            table_of,
        )

        return table_of([RowTraffic(*counts) for counts in self._comm.gather(divided.shards.traffic)])

    # ---- evaluation

    def score(self, nodes: Tensor, mode: EvalMode, task: Task, metrics: Kinds) -> dict[str, float]:
        """Return loss and ``metrics`` of labelled ``nodes``, on every rank."""
        runner, config = self._trainer.runner, self._trainer.config
        self._spread(list(runner.model.buffers()))  # such as running means of a rank's own seeds
        return score_by_ranks(self._comm, runner, config, nodes, mode, task=task, metrics=metrics)

    def check_replicas(self) -> None:
        """Raise RankError unless all ranks hold the same parameters, to the bit."""
        digest = xxhash.xxh3_128()
        for parameter in self._trainer.runner.model.parameters():
            digest.update(_bytes_of(parameter))
        sums = self._comm.gather(digest.hexdigest())
        differ = [rank for rank, own in enumerate(sums) if own != sums[0]]
        if differ:
            raise RankError(
                f"rank {differ[0]} no longer holds the same parameters as rank 0 at the end of epoch "
                f"{self._trainer.progress.epoch}; does the model or the optimizer do something of its own on "
                "each rank? Go on from the last checkpoint."
            )

    def close(self) -> None:
        """Let go of the model, and of a batch that was taken early and not used."""
        self._taken = []
        self._trainer.runner.norms = None
        if self._sum is not None:
            self._sum.close()


def _bytes_of(parameter: Tensor) -> bytes:
    flat = parameter.detach().cpu().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def _generator_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def shares_agree(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    share: Share,
    norms: RankNorms | None = None,
    *,
    trains: bool = False,
) -> bool:
    """Return whether a rank's share of a batch gives its seeds the outputs that they have in the whole batch.

    Some seeds are in-neighbours of others, so that shares meet. A model whose outputs differ from run to run
    passes: there is nothing to compare. ``norms`` are the batch normalisations that train in this comparison,
    by the rows of all ranks. With ``trains`` the whole model is in training mode, dropout modules apart.
    """
    seeds, divided = nodes[: _SHARED_SEEDS * share.num_ranks], divided_graph(runner.graph)
    if not runner.graph.is_typed:
        csc = runner.graph.csc
        beside = [csc.indices[int(csc.indptr[v]) : int(csc.indptr[v + 1])][:2].long() for v in seeds.tolist()]
        near = torch.cat(beside)
        if divided is not None:  # each rank has the lists of its own nodes
            of_ranks = divided.shards.ranks.gather(near.tolist())
            near = torch.tensor([*itertools.chain(*of_ranks)], dtype=torch.int64)
        seeds = torch.unique(torch.cat((seeds, near)))
    whole = config.updated(batch_size=seeds.numel(), plan=None, trace=None)
    if seeds.numel() < share.num_ranks:
        return True

    def outputs(share: Share) -> Tensor:
        runner.norms = norms if share.num_ranks > 1 else None
        with make_loader(runner, whole, seeds, share=share) as loader, given_seeds(itertools.count()):
            return runner.on_batch(next(loader.batches(0)))

    with in_mode(runner.model, training=trains), _kept_state(runner.model), torch.no_grad():
        for module in runner.model.modules() if trains else ():
            module.training = not isinstance(module, _DropoutNd)
        for norm in () if norms is None else norms.modules:
            norm.train()
        if norms is None:
            own = outputs(share)
        else:
            norms.begin()
            with torch.enable_grad():
                own = outputs(share).detach()
            norms.end()
        all_ = outputs(ALONE)
        begin, end = part_of(seeds.numel(), share.rank, share.num_ranks)
        agrees = agree(own, all_[begin:end])
        repeats = torch.tensor([int(not agrees)])
        if divided is not None:  # ranks that draw from their parts together must make the same calls
            repeats = divided.shards.ranks.all_reduce(repeats, "max").wait()
        if repeats:
            agrees |= not agree(all_, outputs(ALONE))
        return agrees and (norms is None or not norms.why_not)


@contextlib.contextmanager
def _kept_state(model: nn.Module) -> Iterator[None]:
    """Give all modules their attributes and the values of their buffers back afterwards."""
    held = [one for module in model.modules() for one in (module.__dict__, module.__dict__["_buffers"])]
    before = [dict(one) for one in held]
    with kept_buffers(model):
        yield
    for one, values in zip(held, before, strict=True):
        one.clear()
        one.update(values)
