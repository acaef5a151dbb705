"""LearnedRows: learned rows of nodes. Each rank holds, sends and updates those of its own nodes.

The owners send the rows of a batch's nodes before the model is called, and get their gradients back after the
step's backward pass. They add up the gradients of a row in the order of the ranks and update these rows
alone, as ``torch.optim`` does with sparse gradients. Rows are never sent before the step that reads them, so
that no rank ever reads an old one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.distributed.shards.exchange import NO_IDS, Routed, swap
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.features.budgets import require_free
from graphbraid.files.writing import format_bytes, reserve, resource_error
from graphbraid.graph.csc import Csc, index_dtype, indptr_of
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.nn import ShardedEmbedding
from graphbraid.ops import rng
from graphbraid.ops.gather import gather_rows
from graphbraid.ops.spmm import spmm
from graphbraid.sampling.config import part_of

if TYPE_CHECKING:
    from graphbraid.distributed.shards.sharded_graph import ShardedGraph, TypeShards
    from graphbraid.graph import Graph

OPTIMIZERS: Mapping[str, tuple[Callable[..., Optimizer], tuple[str, ...]]] = {
    "adam": (SparseAdam, ("exp_avg", "exp_avg_sq")),
    "adamw": (SparseAdam, ("exp_avg", "exp_avg_sq")),
    "sgd": (SGD, ()),
    "adagrad": (Adagrad, ("sum",)),
}
"""By the run's optimizer, the one of the rows, and the names of its state's tensors, one row for each row."""
_DRAWN_AT_ONCE = 1 << 18
"""Initial numbers that are drawn together."""


def initial_rows(seed: int, number: int, ids: Tensor, channels: int) -> Tensor:
    """Return the initial rows of nodes, ``(num_ids, channels)`` float32: a function of seed, node and column.

    Uniform numbers of mean 0 and variance ``1 / channels``, the same bits on every machine; ``number`` is the
    module's within the model.
    """
    key = rng.mix(seed ^ rng.mix(number + 1))
    bits = rng.draws(rng.row_keys(key, 0, ids.numpy()), channels).astype("float64")
    most = (3.0 / channels) ** 0.5
    return torch.from_numpy((bits + 0.5) * (2.0**-31 * most) - most).float()


class Ranges:
    """Nodes in one contiguous range for each rank; it says of them what :class:`.TypeShards` does."""

    def __init__(self, num_nodes: int, comm: Communicator) -> None:
        self._begins = torch.tensor([part_of(num_nodes, rank, comm.size)[0] for rank in range(1, comm.size)])
        self.num_nodes, self.owned = num_nodes, torch.arange(*part_of(num_nodes, comm.rank, comm.size))

    def owners(self, ids: Tensor) -> Tensor:
        """Return the rank that owns each of ``(num_ids,)`` ids."""
        return torch.bucketize(ids, self._begins, right=True)


@dataclass(eq=False, slots=True)
class Held:  # ranks compare the tuples that a model holds
    """The rows of one module that this rank holds."""

    owned: Tensor
    """``(num_owned,)`` int64 ids of their nodes, ascending."""
    rows: nn.Parameter
    """``(num_owned, channels)`` float32."""


class Group(NamedTuple):
    """The modules with rows of one node type."""

    node_type: str
    nodes: TypeShards | Ranges
    modules: Mapping[str, ShardedEmbedding]


class _AskedRows(NamedTuple):
    """A module's rows in a batch, as asked of their owners; gradients of the rows go the same way."""

    routed: Routed
    given: Tensor
    """``(sum(routed.asked),)`` places of these rows among the own ones."""
    rows: Tensor
    """Rows that came, ``(num_ids, channels)``: a leaf that gradients are added up in."""
    read: Tensor
    """Which of them the model reads, ``(num_ids,)`` bool, filled in by its call."""


class LearnedRows:
    """The rows of a model's :class:`graphbraid.nn.ShardedEmbedding` modules, divided among ranks.

    All ranks call its methods together. :meth:`take_batch` is called with as many batches on all ranks while
    they train, possibly without nodes. In an evaluation ranks may have different numbers of batches, and call
    :meth:`finish` after their last one. Only the thread that calls the model uses ``comm``. Mapped files in
    ``folder`` hold rows and state, if it is given. ConfigError: a module has rows of other nodes from an
    earlier Trainer. ResourceError: memory or disk has no room.
    """

    def __init__(
        self,
        modules: Mapping[str, ShardedEmbedding],
        comm: Communicator,
        nodes: Mapping[str, TypeShards | Ranges],
        *,
        seed: int,
        optimizer: str,
        folder: Path | None = None,
    ) -> None:
        self.modules, self.comm, self._folder = dict(modules), comm, folder
        kinds = {name: one.node_type or ONLY_NODE_TYPE for name, one in modules.items()}
        self.groups = [
            Group(kind, nodes[kind], {name: one for name, one in modules.items() if kinds[name] == kind})
            for kind in dict.fromkeys(kinds.values())
        ]
        """The modules by node type, in the order of the types' first modules."""
        self._make, self.state_names = OPTIMIZERS[optimizer.lower()]
        self.states: dict[str, dict[str, Tensor]] = {}
        """Of a run, tensors like a module's own rows, by the names that the optimizer gives them."""
        self.steps: dict[str, int] = {}
        """Of a run, the number of each module's updates so far, in which any row was read on any rank."""
        self._asked: list[dict[str, _AskedRows]] = []
        self._grads: dict[str, tuple[Tensor, Tensor]] = {}
        for number, (name, module) in enumerate(self.modules.items()):
            owned = nodes[kinds[name]].owned
            if module.held is None:
                module.held = self._new(module, owned, number, seed)
            elif not torch.equal(module.held.owned, owned):
                raise ConfigError(
                    "the model's rows are divided in another way, by an earlier Trainer; make another model, "
                    "and load a checkpoint of that run with Trainer.load_weights"
                )

    @classmethod
    def of(
        cls, modules: Mapping[str, ShardedEmbedding], graph: Graph, comm: Communicator, **how: Any
    ) -> LearnedRows:
        """Return the rows of a graph's nodes; the ranks that divide it own them, or those of ``comm``.

        ``how`` are the further arguments of :class:`LearnedRows`, whose errors it raises, too.

        Raises:
            ConfigError: a module has rows of other nodes than the graph.
        """
        for name, module in modules.items():
            _check_rows_of(graph, name, module)
        counts = {one: graph.nodes_of(one).num_nodes for one in graph.node_types}
        nodes: dict[str, Any] = {one: Ranges(count, comm) for one, count in counts.items()}
        if not graph.is_whole:
            shards = cast("ShardedGraph", graph).shards
            comm, nodes = shards.ranks, dict(zip(nodes, shards.by_type, strict=True))
        return cls(modules, comm, nodes, **how)

    def _new(self, module: ShardedEmbedding, owned: Tensor, number: int, seed: int) -> Held:
        """Draw the initial rows of own nodes."""
        channels = module.channels
        if self._folder is None:
            copies = 1 + len(self.state_names)
            require_free(
                4 * owned.numel() * channels * copies,
                f"this rank's share of {module.num_nodes:,} learned rows, with the optimizer's state,",
            )
        rows = self._room(owned.numel(), channels)
        most = max(1, _DRAWN_AT_ONCE // channels)
        for ids, part in zip(torch.split(owned, most), torch.split(rows, most), strict=True):
            part.copy_(initial_rows(seed, number, ids, channels))
        return Held(owned, nn.Parameter(rows))

    def _room(self, num_rows: int, channels: int) -> Tensor:
        """Return zeros, in memory or in a file that has no name and ends with the process."""
        if self._folder is None or num_rows == 0:
            return torch.zeros(num_rows, channels)
        num_bytes = 4 * num_rows * channels
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".rows-") as file:
                # Without room of its own, a mapped row that is first written on a full disk ends the process.
                reserve(file.fileno(), num_bytes)
                rows = torch.from_file(file.name, True, num_rows * channels, dtype=torch.float32)
        except OSError as error:
            raise ResourceError(
                f"embedding_files needs {format_bytes(num_bytes)} in {self._folder} for learned rows or "
                f"the optimizer's state of them: {resource_error(error, self._folder) or error}. Name a "
                "folder on a larger disk, or leave embedding_files out, which keeps them in memory."
            ) from error
        return rows.view(-1, channels)

    def copied(self) -> dict[str, Tensor]:
        """Return copies of this rank's rows by the modules' names, where the rows are, too."""
        held = ((name, one.held.rows) for name, one in self.modules.items())
        return {name: self._room(*rows.shape).copy_(rows) for name, rows in held}

    def put_back(self, copies: Mapping[str, Tensor]) -> None:
        """Replace the rows by copies of :meth:`copied`."""
        for name, module in self.modules.items():
            module.held.rows.detach().copy_(copies[name])

    def begin(self) -> None:
        """Begin a run with new optimizer state; rows stay; ResourceError if the disk has no room."""
        self.states, self.steps = {}, dict.fromkeys(self.modules, 0)
        for name, one in self.modules.items():
            self.states[name] = {state: self._room(*one.held.rows.shape) for state in self.state_names}

    # ---- rows to the batches

    def take_batch(self, n_id: Mapping[str, Tensor] | None, *, learns: bool) -> bool:
        """Give the modules a batch's rows, and others those that they ask for; return whether any had one.

        ``n_id`` has distinct ids by node type, or is None after this rank's last batch. ``learns`` is whether
        gradients are wanted, for :meth:`collect`.
        """
        of_types = [(n_id or {}).get(group.node_type, NO_IDS) for group in self.groups]
        known = [ids.cpu().long() for ids in of_types]
        asking = zip(self.groups, known, strict=True)
        routes = [Routed(self.comm, group.nodes.owners(ids)) for group, ids in asking]
        counts = torch.tensor([[*route.counts] for route in routes] + [[int(n_id is None)] * self.comm.size])
        said = swap(self.comm, counts.t())  # what each rank asks for, and whether it is done
        if bool(said[:, -1].all()):
            return False
        found = dict[str, _AskedRows]()
        for at, (group, route) in enumerate(zip(self.groups, routes, strict=True)):
            route.asked = said[:, at].tolist()
            given = route.send(known[at].to(index_dtype(group.nodes.num_nodes))).long()
            places = torch.searchsorted(group.nodes.owned, given)
            for name, module in group.modules.items():
                own = gather_rows(module.held.rows.detach(), places, trusted=True)
                rows = route.answers(own).to(of_types[at].device).requires_grad_(learns)
                read = module.take_batch(of_types[at].long(), rows)
                found[name] = _AskedRows(route, places, rows, read)
        if learns:
            self._asked.append(found)
        return True

    def finish(self) -> None:
        """Answer other ranks, after the last batch of an evaluation, until all have had their last one."""
        while self.take_batch(None, learns=False):
            pass

    # ---- gradients to the owners

    def forget(self) -> None:
        """Forget the batches of a step that was not made."""
        self._asked.clear()

    def collect(self) -> float:
        """Send the gradients of the step's batches to the owners; return the square of their norm, of all.

        The sum over batches and ranks of each row's gradient is kept for :meth:`update`.
        """
        found, said = dict[str, tuple[Tensor, Tensor]](), list[float]()
        for name in self.modules:
            asked = [of_batch[name] for of_batch in self._asked]
            grads = torch.cat([self._gradients(one) for one in asked])
            is_read = grads[:, -1] > 0
            places = torch.cat([one.given for one in asked])[is_read]
            places, grads = found[name] = _summed(places, grads[is_read, :-1].contiguous())
            said += [float(grads.double().square().sum()), float(places.numel())]
        self._asked.clear()
        sums = self.comm.all_reduce(torch.tensor(said, dtype=torch.float64)).wait().view(-1, 2)
        # Where no rank has read a row, torch.optim makes no step either.
        self._grads = {name: found[name] for name, (_, num_read) in zip(found, sums, strict=True) if num_read}
        return float(sums[:, 0].sum())

    def _gradients(self, asked: _AskedRows) -> Tensor:
        """Return the gradients of own rows of a batch of each rank; the last column says which it read."""
        is_read, grad = asked.read, asked.rows.grad
        if grad is None:  # the loss does not depend on them: torch makes no step either
            grad, is_read = torch.zeros_like(asked.rows), torch.zeros_like(is_read)
        grads = torch.cat((grad, is_read.to(grad.dtype).unsqueeze(1)), 1).cpu()
        return asked.routed.send(grads)

    def scale(self, factor: float) -> None:
        """Multiply the collected gradients, to clip them."""
        for _, grads in self._grads.values():
            grads.mul_(factor)

    def update(self, options: Mapping[str, Any]) -> None:
        """Update rows that have a gradient on any rank, as ``torch.optim`` does with sparse gradients."""
        checks: Any = torch.sparse.check_sparse_tensor_invariants
        with checks(enable=False):  # ids are distinct and ascending; torch warns where nothing is said
            for name, (places, grads) in self._grads.items():
                rows, step = self.modules[name].held.rows, self.steps[name]
                rows.grad = torch.sparse_coo_tensor(places[None], grads, rows.shape, is_coalesced=True)
                optimizer = self._make([nn.Parameter(torch.empty(0))])  # whose state would be new memory
                group = optimizer.param_groups[0]
                group |= {one: options[one] for one in ("lr", "betas") if one in group} | {"params": [rows]}
                optimizer.state.clear()
                if self.state_names:
                    done = torch.tensor(float(step)) if self._make is Adagrad else step
                    optimizer.state[rows] = {"step": done, **self.states[name]}
                optimizer.step()
                rows.grad, self.steps[name] = None, step + 1
        self._grads = {}


def _summed(places: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct places, ascending, and the sum of each place's gradients in their order."""
    order = places.argsort(stable=True)
    distinct, counts = torch.unique_consecutive(places[order], return_counts=True)
    csc = Csc(indptr_of(counts), order, places.numel(), trusted=True)
    return distinct, spmm(csc, grads)


def _check_rows_of(graph: Graph, name: str, module: ShardedEmbedding) -> None:
    """Refuse rows that are not of the nodes of the graph."""
    if (module.node_type is None) == graph.is_typed or module.node_type not in (None, *graph.node_types):
        kinds = f"the node types {', '.join(graph.node_types)}" if graph.is_typed else "no node types"
        raise ConfigError(
            f"{name} has node_type={module.node_type!r}, and the graph has {kinds}; make it with "
            + ("one of these" if graph.is_typed else "node_type=None")
        )
    count = graph.num_nodes if module.node_type is None else graph.nodes_of(module.node_type).num_nodes
    if module.num_nodes != count:
        of_type = "" if module.node_type is None else f" of type {module.node_type!r}"
        right = "graph.num_nodes" if module.node_type is None else f"num_nodes={count}"
        raise ConfigError(
            f"{name} has num_nodes={module.num_nodes}, and the graph has {count} nodes{of_type}; "
            f"make it with {right}"
        )
