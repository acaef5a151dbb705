"""Encoders of nodes for links: learned rows of nodes, also divided among ranks, and relational layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_number, check_choice, check_tensor, check_type
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc, coo_to_csc, index_dtype
from graphbraid.graph.scans import check_ids, tracing
from graphbraid.nn import module_traits
from graphbraid.nn.adjacency import check_edge_list
from graphbraid.nn.conv import MOST_LAYERS
from graphbraid.nn.linear import MOST_WEIGHTS
from graphbraid.nn.pyg_layers import Embedded, activation, as_pyg, checked_copy, pyg_nn
from graphbraid.nn.rgcn import MOST_RELATIONS, RGCNConv, check_edge_type, check_relations
from graphbraid.ops import bias_act_dropout
from graphbraid.ops.epilogue import ACTIVATIONS
from graphbraid.ops.library import opaque
from graphbraid.ops.relations import weighted_columns
from graphbraid.signatures import typed


class ShardedEmbedding(nn.Module):
    """A learned row for each node of a graph, as ``torch.nn.Embedding`` has, divided among ranks.

    The module itself holds no row, and no parameter. :class:`graphbraid.Trainer` gives each rank the rows of
    the nodes that it owns. Before a mini-batch is computed, the owners send the rows of its nodes; after the
    step's backward pass their gradients go to the owners, which update these rows alone.

    Call it with ids of nodes of the mini-batch, such as ``n_id``::

        class Model(nn.Module):
            def __init__(self, num_nodes: int) -> None:
                super().__init__()
                self.rows = ShardedEmbedding(num_nodes, 64)
                self.layer = SAGEConv(64, 7)

            def forward(self, x, edge_index, n_id):
                return self.layer(self.rows(n_id), edge_index)

    Initial values are a function of the run's seed, the node and the column: uniform numbers with the
    variance ``1 / channels``, so that a row's length is about 1.

    In a graph with types the rows are those of one type, called with its entry of ``n_id_dict``.

    Args:
        num_nodes: number of nodes of the graph, or of the type.
        channels: width of the rows.
        node_type: type of the nodes; None in a graph without types.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(self, num_nodes: int, channels: int, node_type: str | None = None) -> None:
        super().__init__()
        if node_type is not None:
            check_type(node_type, "node_type", str, "the name of a node type, or None", error=ConfigError)
        self.node_type = node_type
        self.num_nodes = as_count(num_nodes, "num_nodes", least=1)
        self.channels = as_count(channels, "channels", least=1, most=MOST_WIDTH)
        self.held: Any = None
        """Rows of the nodes that this rank owns; None before a Trainer has made them."""
        self.take_batch(torch.empty(0, dtype=torch.int64), torch.empty(0, self.channels))

    def extra_repr(self) -> str:
        """Return the sizes and the type."""
        of_type = "" if self.node_type is None else f", node_type={self.node_type!r}"
        return f"{self.num_nodes}, {self.channels}{of_type}"

    def __getstate__(self) -> NoReturn:
        """Refuse copies, which would learn rows of their own, and pickling, which would lose the rows."""
        raise ConfigError(
            "a model with a ShardedEmbedding is neither copied nor pickled: ranks divide its rows. A "
            "Trainer with out_dir saves them (checkpoints/last.pt and the folder beside it). Make another "
            "model, and load a run's checkpoint with Trainer.load_weights"
        )

    def requires_grad_(self, requires_grad: bool = True) -> ShardedEmbedding:
        """Refuse to freeze the rows, which are no parameter of the module."""
        if not requires_grad:
            raise ConfigError(
                "the rows of a ShardedEmbedding are no parameter that could be frozen; call .detach() on the "
                "rows that it returns"
            )
        return self

    def take_batch(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Take the rows of a batch's nodes, before the model is called.

        Args:
            ids: ``(num_ids,)`` int64 distinct ids on the model's device.
            rows: ``(num_ids, channels)`` float32 on that device; gradients are added up there.

        Returns:
            Which rows the model reads, ``(num_ids,)`` bool; its calls fill it in.
        """
        self._ids, self._rows = ids, rows
        self._is_read = torch.zeros(ids.numel(), dtype=torch.bool, device=ids.device)
        return self._is_read

    def forward(self, n_id: Tensor) -> Tensor:
        """Return the rows of nodes of the mini-batch, ``(*n_id.shape, channels)`` float32.

        Args:
            n_id: integer ids in the whole graph, or within the type, of any shape, possibly repeated.

        Raises:
            ConfigError: no Trainer has brought a mini-batch.
            DataError: a node is not in the mini-batch.
        """
        check_tensor(n_id, "n_id")
        if self.held is None:
            raise ConfigError(
                "a ShardedEmbedding has rows only while a graphbraid.Trainer runs the model on mini-batches; "
                "in a loop of your own use torch.nn.Embedding"
            )
        ids = n_id.long()
        if ids.shape == self._ids.shape and torch.equal(ids, self._ids):
            self._is_read.fill_(True)
            return self._rows
        order = self._ids.argsort()
        places = torch.searchsorted(self._ids, ids, sorter=order).clamp(max=max(self._ids.numel() - 1, 0))
        if ids.numel() and not (self._ids.numel() and torch.equal(self._ids[order[places]], ids)):
            raise DataError(
                "a ShardedEmbedding has the rows of a mini-batch's nodes alone, and was asked for another "
                "node; call it with n_id, or with ids taken from n_id"
            )
        places = order[places]
        self._is_read[places.flatten()] = True
        return F.embedding(places, self._rows)


TypedEdges = Tensor | Csc | Sequence[Csc]
"""Edges of several relations: of the whole graph, or one block per layer."""


class NodeEmbedding(nn.Module):
    """A learned row for each node, in front of a model or alone; features of the graph are not used.

    Args:
        num_nodes: number of nodes of the graph.
        channels: width of the rows.
        model: model that takes the rows as features, called as ``model(rows, edges)``, with ``edge_type`` if
            its ``forward`` has an argument of that name. If None, the rows are the output.
        dropout: probability of dropping an element of the rows while training.
        sharded: whether ranks divide the rows, which are then a :class:`ShardedEmbedding`.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        num_nodes: int,
        channels: int,
        model: nn.Module | None = None,
        *,
        dropout: float = 0.0,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        as_count(num_nodes, "num_nodes", least=1)
        self.channels = as_count(channels, "channels", least=1, most=MOST_WIDTH)
        if num_nodes * channels > MOST_WEIGHTS and not sharded:
            raise ConfigError(
                f"num_nodes={num_nodes} rows of channels={channels} are {num_nodes * channels:,} numbers; at "
                f"most {MOST_WEIGHTS:,} are taken. With sharded=True ranks divide them"
            )
        if model is not None:
            check_type(model, "model", nn.Module, "a torch.nn.Module or None", error=ConfigError)
        self.dropout = as_number(dropout, "dropout", least=0, below=1)
        self.rows: nn.Parameter | ShardedEmbedding
        if sharded:
            self.rows = ShardedEmbedding(num_nodes, channels)
        else:
            self.rows = nn.Parameter(torch.empty(num_nodes, channels))
        self.model = model
        self.reset_rows()

    def reset_rows(self) -> None:
        """Draw the rows anew, of a length about 1; those that ranks divide are drawn by the Trainer."""
        if isinstance(self.rows, nn.Parameter):
            nn.init.normal_(self.rows, std=self.channels**-0.5)

    @property
    def takes_blocks(self) -> bool:
        """Whether the model is called with one block per layer."""
        return module_traits.takes_blocks(self.model)

    @property
    def takes_typed_blocks(self) -> bool:
        """Whether the model is called with one block per layer, and with the relations of its edges."""
        return module_traits.takes_typed_blocks(self.model)

    @property
    def num_layers(self) -> int | None:
        """Number of the model's layers; 0 without a model, None if it does not say."""
        return 0 if self.model is None else module_traits.num_layers(self.model)

    @property
    def widest(self) -> int | None:
        """Largest number of columns that a layer holds for a node; None if the model does not say."""
        widest = 0 if self.model is None else module_traits.widest(self.model)
        return None if widest is None else max(widest, self.channels)

    @property
    def edge_bytes(self) -> int | None:
        """Bytes that a layer of the model holds for an edge; None if it does not say."""
        return module_traits.edge_bytes(self.model)

    def to_pyg(self) -> nn.Module:
        """Return a module of PyTorch's layers, and of the model's :meth:`to_pyg`, with a copy of the weights.

        Raises:
            ConfigError: the class is a user's, there are hooks, the model has no such form, or ranks divide
                the rows.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        pyg_nn(self)
        if isinstance(self.rows, ShardedEmbedding):
            raise ConfigError(
                "rows that ranks divide (sharded=True) have no form in PyTorch Geometric; save them by a "
                "run, and read them by torch.distributed.checkpoint"
            )
        model = None if self.model is None else as_pyg(self.model)
        made = Embedded(self.rows, model, self.dropout)
        made.dropout.train(self.training)
        return checked_copy(made, self)

    def forward(self, x: Any, edges: Any, n_id: Tensor | None = None, edge_type: Any = None) -> Tensor:
        """Return the rows of nodes, or the model's result on them.

        Args:
            x: not used.
            edges: edges, as the model takes them.
            n_id: ``(num_rows,)`` integers: ids of the nodes. If None, all nodes in order, which ``sharded``
                rows do not have.
            edge_type: relation of each edge, for a model of relations.

        Raises:
            DataError: an id is no node.
        """
        if isinstance(self.rows, ShardedEmbedding):
            if n_id is None:
                raise DataError("rows that ranks divide come for the nodes of a mini-batch; give n_id")
            rows: Tensor = self.rows(n_id)
        elif n_id is not None:
            check_ids(check_tensor(n_id, "n_id", ndim=1), self.rows.shape[0], "n_id")
            rows = F.embedding(n_id, self.rows)
        else:
            rows = self.rows
        rows = bias_act_dropout(rows, None, "none", self.dropout if self.training else 0.0)
        if self.model is None:
            return rows
        made: Tensor = self.model(rows, edges) if edge_type is None else self.model(rows, edges, edge_type)
        return made


@typed
class BasisRGCNConv(RGCNConv):
    r"""Relational layer of "Modeling Relational Data with Graph Convolutional Networks", for many relations.

    .. math::
        x'_v = W_0 x_v + b
        + \sum_b \Bigl( \sum_r \frac{c_{rb}}{|N_r(v)|} \sum_{u \in N_r(v)} x_u \Bigr) V_b

    :class:`RGCNConv` with ``num_bases``. Its :meth:`forward` sums rows for each basis and not for each
    relation: memory grows with the bases, so that there may be hundreds of relations.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        num_relations: number of relations.
        num_bases: number of matrices that the weights of all relations are mixed from.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(self, in_channels: int, out_channels: int, num_relations: int, num_bases: int) -> None:
        as_count(num_bases, "num_bases", least=1, most=MOST_RELATIONS)
        super().__init__(in_channels, out_channels, num_relations, num_bases=num_bases)

    def forward(self, x: Tensor, edge_index: Tensor | Csc, edge_type: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: ``(num_nodes, in_channels)`` rows; of a :class:`~graphbraid.graph.csc.Csc`, of its sources.
            edge_index: ``(2, num_edges)`` integers: sources and destinations; or a ``Csc``, as of a block.
            edge_type: ``(num_edges,)`` integers: the relation of each edge, in ``[0, num_relations)``.

        Returns:
            ``(num_nodes, out_channels)``, or of a ``Csc`` ``(num_dst, out_channels)``.

        Raises:
            DataError: ``x``, an id or a relation does not fit.
        """
        check_tensor(x, "x", ndim=2, floating=True)
        if x.shape[1] != self.in_channels:
            raise DataError(f"x must have {self.in_channels} columns (in_channels); got {tuple(x.shape)}")
        assert self.comp is not None
        assert self.root is not None
        assert self.bias is not None
        csc, relation = _by_destination(edge_index, edge_type, x.shape[0], self.num_relations)
        weight = F.embedding(relation, self.comp) / _divisors(csc, relation, self.num_relations).unsqueeze(1)
        columns = weighted_columns(csc, x, weight, own=True)
        return torch.addmm(self.bias, columns, torch.cat([self.weight.flatten(0, 1), self.root]))


def _by_destination(
    edges: Tensor | Csc, edge_type: Tensor, num_nodes: int, num_relations: int
) -> tuple[Csc, Tensor]:
    """Return edges by destination and their relations as int64, after checking them."""
    if not isinstance(edges, Csc):
        check_edge_list(edges)
    check_edge_type(edge_type, edges.num_edges if isinstance(edges, Csc) else edges.shape[1])
    check_relations(edge_type, num_relations)
    relation = edge_type.long()
    if isinstance(edges, Csc):
        return edges, relation
    if tracing():
        indptr, indices, relation = _arrays_of(edges, relation, num_nodes)
        return Csc(indptr, indices, num_nodes, trusted=True), relation
    for ends, name in zip(edges, ("sources", "destinations"), strict=True):
        check_ids(ends, num_nodes, f"{name} of edge_index")
    src, dst = edges.detach().long()
    csc, perm = coo_to_csc(src, dst, num_nodes, num_nodes)
    return csc, relation if perm is None else relation[perm]


@opaque(
    "csc_of_typed_edges",
    lambda a: [
        a.edges.new_empty(a.num_nodes + 1, dtype=torch.int64),
        a.edges.new_empty(a.edges.shape[1], dtype=index_dtype(a.num_nodes)),
        a.relation.new_empty(a.edges.shape[1]),
    ],
)
def _arrays_of(edges: Tensor, relation: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    csc, relation = _by_destination(edges, relation, num_nodes, torch.iinfo(torch.int64).max)
    return csc.indptr, csc.indices, relation


@opaque("edges_alike", lambda a: a.relation.new_empty(a.relation.shape))
def _traced_divisors(csc: Csc, relation: Tensor, num_relations: int) -> Tensor:
    return _divisors(csc, relation, num_relations)


def _divisors(csc: Csc, relation: Tensor, num_relations: int) -> Tensor:
    """Return for each edge how many edges of its relation lead to its destination: a mean's divisors."""
    if tracing():
        return _traced_divisors(csc, relation, num_relations)
    keys = csc.destinations().long() * num_relations + relation
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    found: Tensor = counts[group]
    return found


class RGCNEncoder(nn.Module):
    """A stack of :class:`BasisRGCNConv` over the relations of one node type, called with ``edge_type``.

    On blocks, as :class:`graphbraid.Trainer` calls it, each layer computes just the rows that the next needs.

    Args:
        in_channels: width of the input.
        hidden_channels: width between the layers.
        out_channels: width of the output.
        num_relations: number of relations.
        num_layers: number of layers, one for each hop.
        num_bases: number of matrices that the weights of all relations are mixed from.
        dropout: probability of dropping an element between layers.
        act: activation between layers: ``relu``, ``elu``, ``leaky_relu``, ``gelu`` or ``none``.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_relations: int,
        num_layers: int = 1,
        *,
        num_bases: int = 4,
        dropout: float = 0.0,
        act: str = "relu",
    ) -> None:
        super().__init__()
        self.num_layers = as_count(num_layers, "num_layers", least=1, most=MOST_LAYERS)
        self.dropout = as_number(dropout, "dropout", least=0, below=1)
        check_choice(act, "act", ACTIVATIONS)
        self.act = act
        for name, value in (("hidden_channels", hidden_channels), ("out_channels", out_channels)):
            as_count(value, name, least=1, most=MOST_WIDTH)
        as_count(in_channels, "in_channels", least=1, most=MOST_WIDTH)
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.widest = (as_count(num_bases, "num_bases", least=1, most=MOST_RELATIONS) + 1) * max(widths)
        """Largest number of columns that a layer holds for a node."""
        self.edge_bytes = 64 + 16 * num_bases
        """Bytes that a layer holds for an edge: int64 keys, and a weight per basis in several orders."""
        self.convs = nn.ModuleList(
            BasisRGCNConv(widths[i], widths[i + 1], num_relations, num_bases) for i in range(num_layers)
        )

    takes_typed_blocks = True
    """Tells :class:`graphbraid.Trainer` that it may call ``model(x, blocks, edge_types)``."""

    def to_pyg(self) -> nn.Module:
        """Return PyG's ``Sequential`` of its ``RGCNConv``, called as ``model(x, edge_index, edge_type)``.

        Raises:
            ConfigError: the class is a user's, or there are hooks.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        takes, parts = "x, edge_index, edge_type", list[Any]()
        for number, conv in enumerate(self.convs):
            assert isinstance(conv, RGCNConv)
            parts.append((conv.to_pyg(), f"{takes} -> x"))
            if number < self.num_layers - 1:
                drop = nn.Dropout(self.dropout).train(self.training)
                parts += [(one, "x -> x") for one in (*activation(self.act), drop)]
        return checked_copy(pyg_nn(self).Sequential(takes, parts), self)

    def forward(self, x: Tensor, edge_index: TypedEdges, edge_type: Tensor | Sequence[Tensor]) -> Tensor:
        """Run all layers.

        Args:
            x: ``(num_nodes, in_channels)`` rows, of the first block's sources or of all nodes.
            edge_index: edges as :meth:`BasisRGCNConv.forward` takes them, for all layers; or ``num_layers``
                blocks, outermost first.
            edge_type: relation of each edge, as that method takes it; of blocks, for each of them.

        Returns:
            ``(num_nodes, out_channels)``, or a row per destination of the last block.

        Raises:
            DataError: ``x``, an id, a relation or the number of blocks does not fit.
        """
        if not isinstance(edge_index, list | tuple):
            layers = [(edge_index, edge_type)] * self.num_layers
        elif len(edge_index) == self.num_layers and len(edge_type) == self.num_layers:
            layers = list(zip(edge_index, edge_type, strict=True))
        else:
            raise DataError(
                f"an encoder of {self.num_layers} layers needs as many blocks, outermost first, and as many "
                f"edge_type; got {len(edge_index)} and {len(edge_type)}. Sample as many hops."
            )
        for number, (conv, edges) in enumerate(zip(self.convs, layers, strict=True)):
            x = conv(x, *edges)
            if number < self.num_layers - 1:
                x = bias_act_dropout(x, None, self.act, self.dropout if self.training else 0.0)
        return x
