"""RunRanks: agreement between the ranks of a run; a single rank needs none."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import xxhash
from torch import Tensor, nn

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks.joining import check_alike
from graphbraid.errors import ConfigError, RankError
from graphbraid.fullgraph.reading.watch import options_of
from graphbraid.train import runtime
from graphbraid.train.callbacks import Status
from graphbraid.train.inference.evaluate import EvalMode, score, score_by_ranks
from graphbraid.train.inference.metrics import Kinds
from graphbraid.train.option_values import names_with
from graphbraid.train.run.setup import RunState, SignalGuard
from graphbraid.train.run_folder.contract import model_identity
from graphbraid.train.step.runner import divided_graph
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.gradients import GradientSum

_log = logging.getLogger(__name__)
T = TypeVar("T")
_STOPS: tuple[Status, ...] = ("early-stopped", "stopped", "interrupted")
"""Reasons to stop, the weightier ones last."""
NUM_EXTRA = 1 + len(_STOPS)
"""Numbers that are added up with the gradients: the loss, and who wants to stop for which reason."""


class RunRanks:
    """The ranks that share a run: its batches, its evaluations, its decisions and its files.

    Args:
        comm: the ranks. If None, there is one.
        state: state of the run.
        guard: guard that records signals.
    """

    def __init__(self, comm: Communicator | None, state: RunState, guard: SignalGuard) -> None:
        self._comm, self._state, self._guard = comm, state, guard
        self._sum: GradientSum | None = None
        self._agreed: Status | None = None
        self._drawn: Tensor | None = None
        """State of PyTorch's generator before the first step; empty once it was compared."""
        self.rank = 0 if comm is None else comm.rank
        self.size = 1 if comm is None else comm.size

    def check_same_run(self) -> None:
        """Check that all ranks train the same model on the same graph with the same options.

        Raises:
            ConfigError: something differs; the message names it, and the rank.
        """
        if self._comm is None:
            return
        config = self._state.config
        if config.mode == "sampled" and config.batch_size < self.size:
            raise ConfigError(
                f"batch_size={config.batch_size} is the number of seeds of all ranks together, and there are "
                f"{self.size} ranks; give at least one seed to each."
            )
        # Devices may differ in their number, not in their kind.
        kind = {"a model on": self._state.runner.device.type}
        check_alike(
            self._comm, kind, "ranks add up their gradients on CUDA devices or on the CPU, not on both"
        )
        own = names_with("own", type(config))  # where and when a rank works, or what only the first one heeds
        options = {name: value for name, value in config.to_json().items() if name not in own}
        check_alike(self._comm, options, "start all ranks with the same options")
        graph = {f"graph's {name}": value for name, value in self._state.identity.items()}
        check_alike(self._comm, graph, "load the same graph on all ranks")
        built = model_identity(self._state.runner.model) | options_of(self._state.runner.model)
        model = {f"model's {name}": value for name, value in built.items()}
        check_alike(self._comm, model, "build the same model on all ranks")

    # ---- decisions of the first rank

    def of_first(self, make: Callable[[], T]) -> T:
        """Return the first rank's result of ``make``, a plain value, on every rank."""
        if self._comm is None:
            return make()
        made: T = self._comm.share(make() if self.rank == 0 else None)
        return made

    def read_file(self, path: Path | None, read: Callable[[Path], T]) -> T:
        """Return ``read(path)``, of a file that only the first rank can see; the others get a copy of it."""
        if self._comm is None:
            assert path is not None
            return read(path)
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
        if self._comm is None:
            return
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            self._comm.broadcast(whole).wait()
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)

    # ---- steps

    def prepare_steps(self, model: nn.Module) -> None:
        """Prepare to add up gradients; from now on all ranks have the first one's parameters."""
        self.spread_weights(model)
        if self._comm is None:
            return
        from graphbraid.distributed.ranks.gradients import (  # here: many runs have no ranks
            BUCKET_BYTES,
            GradientSum,
        )

        engine = self._state.runner.engine
        ranks = None if engine is None else engine.ranks
        bucket_bytes = BUCKET_BYTES if ranks is None else 0
        self._sum = GradientSum(
            self._comm, model.parameters(), num_extra=NUM_EXTRA, bucket_bytes=bucket_bytes
        )
        if ranks is not None:
            ranks.listen(self._sum.begin)

    def begin_step(self) -> None:
        """Make PyTorch's draws on a mini-batch a function of (seed, epoch, step, rank): ranks differ.

        Masks that graphbraid draws are functions of the node, and all ranks draw the same seeds for them.
        """
        if self._comm is not None and self._state.config.mode == "sampled":
            progress = self._state.progress
            device = self._state.runner.device
            runtime.seed_step(self._state.config.seed, progress.epoch, progress.step, self.rank, device)
            if self._drawn is None:
                self._drawn = _generator_state(device)

    def _warn_of_draws(self) -> None:
        """Warn if PyTorch drew random numbers in the first step, as dropout does that runs as written."""
        before, device = self._drawn, self._state.runner.device
        if before is not None and before.numel():
            if self.rank == 0 and self.size > 1 and not before.equal(_generator_state(device)):
                _log.warning(
                    "PyTorch draws random numbers for the model, as for dropout that runs as written: each "
                    "rank has its own, so that losses depend on the number of ranks"
                )
            self._drawn = torch.empty(0)

    def before_last_backward(self) -> None:
        """Send gradients as soon as they are complete: the next backward pass completes this rank's."""
        if self._sum is not None:
            self._sum.arm()

    def add_up(self, loss_sum: float, meanwhile: Callable[[], None]) -> float:
        """Replace the gradients by their sums over the ranks, and return the sum of ``loss_sum``.

        The ranks also agree on a stop that any of them wants. ``meanwhile`` is called while the sums travel.
        """
        assert self._sum is not None
        self._warn_of_draws()
        wish = self._wish()
        numbers = [loss_sum, *(float(wish == stop) for stop in _STOPS)]
        loss_sum, *wishes = self._sum.finish(numbers, meanwhile)
        self._agreed = next((s for s, n in reversed(list(zip(_STOPS, wishes, strict=True))) if n > 0), None)
        return loss_sum

    def must_stop(self) -> bool:
        """Return whether to stop after the step just made, as agreed in it; each rank says the same."""
        if self._comm is None:
            if self._guard.signal is not None:
                self._state.request_stop("interrupted")
            return self._state.stop_status is not None
        self._take(self._agreed)
        return self._agreed is not None

    def must_stop_between(self) -> bool:
        """Return whether to stop between epochs; all ranks must ask together."""
        if self._comm is not None:
            wish = self._wish()
            weight = torch.tensor([0 if wish is None else 1 + _STOPS.index(wish)])
            most = int(self._comm.all_reduce(weight, "max").wait())
            self._agreed = _STOPS[most - 1] if most else None
        return self.must_stop()

    def _wish(self) -> Status | None:
        return "interrupted" if self._guard.signal is not None else self._state.stop_status

    def _take(self, agreed: Status | None) -> None:
        if agreed is not None:
            self._state.stop_status = agreed

    def traffic(self) -> str:
        """Return a table of the rows that ranks have read and sent; empty if each rank has all rows."""
        divided = divided_graph(self._state.graph)
        if self._comm is None or divided is None:
            return ""
        from graphbraid.distributed.shards.feature_rows import (  # here: few runs have parts
            RowTraffic,
            table_of,
        )

        return table_of([RowTraffic(*counts) for counts in self._comm.gather(divided.shards.traffic)])

    # ---- evaluation

    def score(self, nodes: Tensor, mode: EvalMode, task: Task, metrics: Kinds) -> dict[str, float]:
        """Return loss and ``metrics`` of labelled ``nodes``, on every rank.

        Raises:
            StopRequested: a signal came meanwhile and there is one rank; several ranks stop after it.
        """
        state = self._state
        if self._comm is None:
            return score(
                state.runner,
                state.config,
                nodes,
                mode,
                task=task,
                metrics=metrics,
                check=self._guard.check,
            )
        self._spread(list(state.runner.model.buffers()))  # such as running means of a rank's own seeds
        return score_by_ranks(self._comm, state.runner, state.config, nodes, mode, task=task, metrics=metrics)

    def check_replicas(self) -> None:
        """Check that all ranks hold the same parameters, to the bit.

        Raises:
            RankError: they do not, as after a fault of memory or an optimizer that draws random numbers.
        """
        if self._comm is None:
            return
        digest = xxhash.xxh3_128()
        for parameter in self._state.runner.model.parameters():
            digest.update(_bytes_of(parameter))
        sums = self._comm.gather(digest.hexdigest())
        differ = [rank for rank, own in enumerate(sums) if own != sums[0]]
        if differ:
            raise RankError(
                f"rank {differ[0]} no longer holds the same parameters as rank 0 at the end of epoch "
                f"{self._state.progress.epoch}; does the model or the optimizer do something of its own on "
                "each rank? Go on from the last checkpoint."
            )

    def close(self) -> None:
        """Let go of the model."""
        self._state.runner.norms = None
        if self._sum is not None:
            self._sum.close()


def _bytes_of(parameter: Tensor) -> bytes:
    flat = parameter.detach().cpu().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def _generator_state(device: torch.device) -> Tensor:
    """Return the state of the generator that PyTorch draws from on a device."""
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
