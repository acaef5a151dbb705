"""RankNorms: batch normalisation by the rows of a whole batch. Each rank has a share of them.

A node that several ranks have is one row of the whole batch. So it counts once: on the rank with the seed
nearest to it, or the lowest of several such ranks. A level has the rows within some number of hops of the
seeds. So that rank has the node's row at every level where any rank needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from graphbraid.distributed.shards.exchange import Routed
from graphbraid.errors import ConfigError
from graphbraid.fullgraph.batches.operations import normalised
from graphbraid.fullgraph.step.operations.norm import RankColumns
from graphbraid.ops.kernels import backend
from graphbraid.ops.library import once_differentiable
from graphbraid.ops.norm import as_factors, batch_statistics

if TYPE_CHECKING:
    from graphbraid.distributed.ranks.communicator import Communicator
    from graphbraid.sampling.sample import Sampled

_TWINS: WeakKeyDictionary[Communicator, Communicator] = WeakKeyDictionary()


class RankNorms(TorchFunctionMode):
    """The batch normalisations of a model in training, each by the rows of all ranks' shares of a batch.

    While the mode is on, it replaces the batch normalisation of PyTorch and of lowered programs. All ranks
    must make the same calls in the same order, forward and backward.

    Args:
        comm: the ranks.
        model: the model.
        num_hops: hops of the batches; a share may have more, whose nodes other ranks count.
        whole: the model of the run; of links, ``model`` is its encoder.

    Raises:
        ConfigError: a module normalises other rows than those of nodes, or not always by them; or ranks
            cannot talk beside the sums of gradients, as over some MPIs.
    """

    def __init__(self, comm: Communicator, model: nn.Module, num_hops: int, *, whole: nn.Module) -> None:
        super().__init__()
        self.modules = [one for one in model.modules() if isinstance(one, _BatchNorm)]
        if len(self.modules) < sum(isinstance(one, _BatchNorm) for one in whole.modules()):
            raise ConfigError("a part of the model that scores links has it")
        if any(one.running_mean is None for one in self.modules):
            raise ConfigError("without running statistics an evaluation depends on its batches")
        if not all(one.track_running_stats for one in self.modules):
            raise ConfigError("running statistics that training does not update are not those of its batches")
        if any(getattr(one, "allow_single_element", False) for one in model.modules()):
            raise ConfigError("allow_single_element lets a rank with one row go by the running statistics")
        if comm not in _TWINS:
            _TWINS[comm] = comm.twin()  # sums of gradients are under way during backward, in another order
        self._comm, self._num_hops = _TWINS[comm], num_hops
        self._most_numbers = 2 * max((one.num_features for one in self.modules), default=0) + 1
        self._rows: list[dict[int, Tensor]] = []
        """By node type and number of rows: which of them count here."""
        self._taken: Tensor | None = None
        """Of a rank without seeds: the moments of all ranks, which it has received already."""
        self.begin()

    def begin(self) -> None:
        """Begin a batch on all ranks together; some of these may have no seeds of it."""
        self.why_not = ""
        """Why a normalisation of this batch differs from one rank's; empty if none does."""
        self._chain = torch.zeros((), requires_grad=True)

    def over(self, sampled: Sampled, num_nodes: Sequence[int]) -> AbstractContextManager[Any]:
        """Return the context in which the model is called with this rank's share of a batch.

        ``num_nodes`` counts the graph's nodes by type.
        """
        if not any(norm.training for norm in self.modules):
            return nullcontext()
        assert sampled.trees_by_type is None, "a rank does not know the numbers of trees in the whole batch"
        firsts = accumulate(num_nodes[:-1], initial=0)
        keys = [ids.cpu() + first for ids, first in zip(sampled.n_id_by_type, firsts, strict=True)]
        of_types = [torch.tensor(counts) for counts in sampled.nodes_by_type]
        hops = [torch.arange(len(counts)).repeat_interleave(counts) for counts in of_types]
        counted = torch.split(self._counted(torch.cat(keys), torch.cat(hops)), [*map(len, keys)])
        self._rows = [
            {count: here[:count] for count in accumulate(counts)}
            for here, counts in zip(counted, sampled.nodes_by_type, strict=True)
        ]
        return self

    def take_part(self) -> None:
        """Give this rank's part, of no rows, where the batch has no seeds for it; forward and backward."""
        if not any(norm.training for norm in self.modules):
            return
        self._counted(*torch.empty(2, 0, dtype=torch.int64))
        self._rows = [{0: torch.empty(0, dtype=torch.bool)}]
        with self:
            while (exchanged := self._exchanged(None))[0]:
                number, self._taken = exchanged
                norm = self.modules[number - 1]
                norm(next(norm.buffers()).new_empty(0, norm.num_features))  # like its running mean
        self._chain.backward()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Tell the other ranks that the model has returned.

        Raises:
            ConfigError: on another rank it goes on to normalise.
        """
        if any(norm.training for norm in self.modules):
            self._exchanged(0)

    def joined(self, loss: Tensor) -> Tensor:
        """Return a loss, of the same value, whose backward pass goes through all normalisations, last first.

        Raises:
            ConfigError: a normalisation differs from one rank's.
        """
        self.end()
        if self.why_not:
            raise ConfigError(f"several ranks cannot normalise together: {self.why_not}")
        return loss + self._chain.to(loss)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` or its replacement."""
        if func is F.batch_norm and kwargs["training"]:  # with three tensors by position, as modules call it
            known = (norm for norm in self.modules if norm.running_mean is args[1] is not None)
            if (norm := next(known, None)) is not None:
                is_own = all(kwargs[name] is getattr(norm, name) for name in ("weight", "bias"))
                if not is_own and not is_parametrized(norm):  # which computes them anew at each call
                    self.why_not = "its weights are not those of the module with its running statistics"
                return self._normalised(norm, args[0], 0, kwargs["momentum"], None)
        if func is normalised and args[1] in self.modules and args[1].training:
            x, norm, node_type = args
            return self._normalised(norm, x, node_type + 1, norm.momentum, norm.num_batches_tracked)
        return func(*args, **(kwargs or {}))

    def _normalised(
        self, norm: _BatchNorm, x: Tensor, node_type: int, momentum: float | None, num_batches: Tensor | None
    ) -> Tensor:
        """Normalise the rows of a node type, counted from 1; of 0 if only their number tells."""

        def gathered(line: Tensor) -> Tensor:
            table, self._taken = self._taken, None
            if table is None:
                _, table = self._exchanged(1 + self.modules.index(norm), line)
            return table[:, : line.numel()]

        columns = RankColumns(self._comm, self._rows_counted(x, node_type), gathered)
        mean, rstd, _ = batch_statistics(
            x,
            norm.running_mean,
            norm.running_var,
            training=True,
            eps=norm.eps,
            moments=columns.moments,
            momentum=momentum,
            num_batches_tracked=num_batches,
        )
        out: Tensor
        out, self._chain = _BatchNormOfRanks.apply(  # type: ignore[no-untyped-call]
            x, norm.weight, norm.bias, self._chain, mean, rstd, columns
        )
        return out

    def _rows_counted(self, x: Tensor, node_type: int) -> Tensor:
        """Return which rows count here. If that is not known, all do, and :attr:`why_not` says why."""
        if not torch.is_grad_enabled() or _top_saved_tensors_default_hooks(True) is not None:
            self.why_not = "a checkpoint computes it once more in the backward pass"
        num_types = len(self._rows)
        found = self._rows[node_type - 1] if node_type else self._rows[0] if num_types == 1 else {}
        if x.ndim == 2 and (here := found.get(x.shape[0])) is not None:
            return here.to(x.device)
        what = "rows of some node type" if num_types > 1 else f"rows of shape {tuple(x.shape)}"
        self.why_not = f"the model normalises {what}, which may not be the first nodes of a batch"
        return torch.ones(x.shape[:1], dtype=torch.bool, device=x.device)

    def _counted(self, keys: Tensor, hops: Tensor) -> Tensor:
        """Return which of this rank's nodes count here, ``(num_nodes,)`` bool.

        Rank ``key % size`` decides for a node. All ranks that have the node send it their distances. ``keys``
        are int64, the same for the same node on all ranks. ``hops`` are int64 distances from this rank's
        seeds.
        """
        base = self._num_hops + 1
        near = torch.nonzero(hops < base).flatten()
        routed = Routed(self._comm, keys[near] % self._comm.size)
        heard = routed.ask(keys[near] * base + hops[near])
        heard, place = heard.sort(stable=True)  # by node, then by hop, then by rank
        is_first = torch.ones(heard.numel(), dtype=torch.bool)
        is_first[1:] = heard[1:] // base != heard[:-1] // base
        replies = torch.empty_like(is_first)
        replies[place] = is_first
        counted = torch.zeros(keys.numel(), dtype=torch.bool)
        counted[near] = routed.answers(replies)
        return counted

    def _exchanged(self, number: int | None, line: Tensor | None = None) -> tuple[int, Tensor]:
        """Tell all ranks which module normalises next, counted from 1, and its moments; 0 after the last one.

        A rank without seeds gives None and receives the others' values. All messages have one size.

        Returns:
            The number, and ``(num_ranks, numbers)`` float64 lines of all ranks, with zeros behind.

        Raises:
            ConfigError: ranks differ in it, as where each draws for itself which layers it skips.
        """
        table = torch.zeros(self._comm.size, 1 + self._most_numbers, dtype=torch.float64)
        own = table[self._comm.rank]
        own[0] = -1 if number is None else number
        if line is not None:
            own[1 : 1 + line.numel()] = line
        self._comm.all_reduce(table).wait()  # each rank fills its own line
        told = table[table[:, 0] >= 0, 0]
        if (told != told[0]).any():
            raise ConfigError(
                "several ranks cannot normalise together: they differ in which batch normalisations the "
                "model calls next; that must not depend on a rank's random draws or nodes"
            )
        return int(told[0]), table[:, 1:]


class _BatchNormOfRanks(torch.autograd.Function):
    """``(x - mean) * rstd * weight + bias``, where all ranks' rows that count make up mean and deviation.

    The last input, a scalar, is passed on to the next normalisation. So every rank computes the gradients of
    all of them, in the same order, even of those that its own rows do not reach.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        chain: Tensor,
        mean: Tensor,
        rstd: Tensor,
        columns: RankColumns,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        out = torch.empty_like(x)
        factors = as_factors(weight, x.dtype), as_factors(bias, x.dtype)
        if x.shape[0]:
            backend(x).batch_norm(x.detach(), mean, rstd, *factors, out)
        ctx.save_for_backward(x, None if weight is None else weight.detach(), mean, rstd)
        ctx.columns, ctx.bias_dtype = columns, None if bias is None else bias.dtype
        return out, chain.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_chain: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        factor, grad_x = as_factors(weight, x.dtype), torch.empty_like(x)
        sums = torch.zeros_like(mean), torch.zeros_like(mean)
        if x.shape[0]:
            rows = grad.to(x.dtype).contiguous(), x.detach()
            backend(x).batch_norm_backward(*rows, mean, rstd, factor, False, grad_x, *sums)
        scratch, moments = torch.empty_like(x), (mean, rstd)
        ctx.columns.couple(grad_x, x.detach(), statistics=moments, weight=factor, sums=sums, scratch=scratch)
        grad_weight = None if weight is None else sums[0].to(weight.dtype)
        grad_bias = None if ctx.bias_dtype is None else sums[1].to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias, grad_chain, None, None, None
