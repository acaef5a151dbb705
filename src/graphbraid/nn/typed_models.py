"""Models of several node types and relations, which run on a whole graph or on the blocks of a mini-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import (
    MOST_WIDTH,
    as_count,
    as_number,
    check_choice,
    check_tensor,
    check_type,
    shown,
)
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import EdgeType, Graph, SparseFeatures
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.scans import check_ids, tracing
from graphbraid.graph.schema import learned_columns
from graphbraid.nn.adjacency import check_edge_list, ends_of, traced_csc
from graphbraid.nn.conv import MOST_LAYERS, LayerInput, as_rows, without_last_layer
from graphbraid.nn.encoders import ShardedEmbedding
from graphbraid.nn.linear import Linear
from graphbraid.nn.pyg_layers import TypedRGCN, checked_copy, plain, pyg_nn
from graphbraid.nn.rgcn import RGCNConv
from graphbraid.ops import bias_act_dropout, dense_linear, sparse_linear
from graphbraid.ops.epilogue import ACTIVATIONS
from graphbraid.ops.rng import mask_type
from graphbraid.signatures import typed

Adjacencies = Mapping[EdgeType, Csc | Tensor]
"""The edges by relation: an adjacency between the ids of its types, or PyG's ``edge_index``."""


@typed
class RGCN(nn.Module):
    """Stack of :class:`RGCNConv` over node types; each type has an input layer of its own.

    Features of a type pass through a linear layer and the activation; a type without features has a learned
    row per node. All layers then share one width, so that relations of any types are aggregated alike.

    Args:
        in_channels: by node type, in the graph's order, the width of its features; 0 without any.
        hidden_channels: width of the input layers and between layers.
        out_channels: width of the output, such as the number of classes.
        edge_types: the relations, in the graph's order.
        num_layers: number of relational layers; a sampled mini-batch needs one block per layer.
        num_nodes: number of nodes of the types without features.
        learned: by node type, the columns that number categories, and how many rows are learned for each
            (:class:`ColumnsLinear`).
        node_type: type to return outputs of, for which alone the last layer is computed. If None, outputs of
            all types are returned, by type.
        num_bases: as in :class:`RGCNConv`.
        aggr: as in :class:`RGCNConv`.
        dropout: probability of dropping an element of the input layers and between layers.
        act: activation: ``relu``, ``elu``, ``leaky_relu``, ``gelu`` or ``none``.
        sharded: whether ranks divide the learned rows of types without features, which are then
            :class:`ShardedEmbedding`.

    Raises:
        ConfigError: an option is invalid, or a relation's type is not among the node types.
    """

    takes_blocks = True
    """Tells :class:`graphbraid.Trainer` to call ``model(x_dict, blocks)`` instead of PyG's
    ``model(x_dict, edge_index_dict)``."""
    ends_hidden = False
    """Whether activation follows the last layer, too, as in :meth:`hidden`."""

    def __init__(
        self,
        in_channels: Mapping[str, int],
        hidden_channels: int,
        out_channels: int,
        edge_types: Sequence[EdgeType],
        num_layers: int = 2,
        *,
        num_nodes: Mapping[str, int] | None = None,
        learned: Mapping[str, Mapping[int, int]] | None = None,
        node_type: str | None = None,
        num_bases: int | None = None,
        aggr: str = "mean",
        dropout: float = 0.5,
        act: str = "relu",
        sharded: bool = False,
    ):
        super().__init__()
        for name, value in (("hidden_channels", hidden_channels), ("out_channels", out_channels)):
            as_count(value, name, least=1, most=MOST_WIDTH)
        self.num_layers = as_count(num_layers, "num_layers", least=1, most=MOST_LAYERS)
        self.dropout, self.act = as_number(dropout, "dropout", least=0, below=1), act
        check_choice(act, "act", ACTIVATIONS)
        self.node_types, self.edge_types = tuple(in_channels), _checked_relations(edge_types, in_channels)
        if node_type is not None and node_type not in in_channels:
            raise ConfigError(
                f"node_type={node_type!r} is not among the node types {', '.join(in_channels)}."
                + did_you_mean(node_type, in_channels)
            )
        self.node_type, self.hidden_channels, self.out_channels = node_type, hidden_channels, out_channels
        self.inputs = nn.ModuleList(
            input_layer(
                name, width, hidden_channels, num_nodes or {}, (learned or {}).get(name, {}), sharded=sharded
            )
            for name, width in in_channels.items()
        )
        widths = [hidden_channels] * num_layers + [out_channels]
        self.convs = nn.ModuleList(
            RGCNConv(widths[i], widths[i + 1], len(self.edge_types), num_bases=num_bases, aggr=aggr)
            for i in range(num_layers)
        )

    @classmethod
    def of(
        cls,
        graph: Graph,
        hidden_channels: int = 64,
        out_channels: int | None = None,
        num_layers: int = 2,
        *,
        node_type: str | None = None,
        **options: Any,
    ) -> Self:
        """Make a model for a graph with types.

        Args:
            graph: the graph, whose types and features the model takes.
            hidden_channels: as in the class.
            out_channels: width of the output. If None, the number of classes of ``node_type``.
            num_layers: as in the class.
            node_type: as in the class. If None, the only type with labels, if there is one.
            **options: further options of the class.

        Raises:
            ConfigError: the graph has no types, or an option is invalid.
            DataError: ``out_channels`` is None and there are no labels.
        """
        check_type(graph, "graph", Graph, "a graphbraid.Graph", error=ConfigError)
        if not graph.is_typed:
            raise ConfigError(f"{cls.__name__} takes a graph with types; this one has one node type")
        nodes = {name: graph.nodes_of(name) for name in graph.node_types}
        labelled = [name for name, one in nodes.items() if one.y is not None]
        if node_type is None and len(labelled) == 1:
            node_type = labelled[0]
        if out_channels is None:
            if node_type is None:
                raise ConfigError("out_channels or node_type must be given: not one type alone has labels")
            out_channels = graph.nodes_of(node_type).num_classes
        return cls(
            {name: 0 if one.x is None else int(one.x.shape[1]) for name, one in nodes.items()},
            hidden_channels,
            out_channels,
            graph.edge_types,
            num_layers,
            num_nodes={name: one.num_nodes for name, one in nodes.items() if one.x is None},
            learned=learned_by_type(graph),
            node_type=node_type,
            **options,
        )

    @property
    def widest(self) -> int:
        """Largest number of columns that a layer holds for a node."""
        into = [edge_type[2] for edge_type in self.edge_types]
        most = max((into.count(name) for name in self.node_types), default=0)
        return (most + 1) * max(self.hidden_channels, self.out_channels)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in (*self.inputs, *self.convs):
            if not isinstance(module, ShardedEmbedding):  # whose rows the Trainer draws
                module.reset_parameters()

    def hidden(self, node_type: str | None) -> Self:
        """Return the model of the rows of a type that the last layer reads, with the same parameters.

        Raises:
            ConfigError: there is one layer.
        """
        made = without_last_layer(self)
        made.node_type, made.out_channels, made.ends_hidden = node_type, self.hidden_channels, True
        return made

    def to_pyg(self) -> nn.Module:
        """Return a module of PyG's ``RGCNConv`` and PyTorch's layers with a copy of the weights.

        It is called as ``model(x_dict, edge_index_dict)``, on mini-batches with ``n_id_dict``.

        Raises:
            ConfigError: the class is a user's, there are hooks, or ranks divide learned rows.
            MissingPackageError: PyTorch Geometric is not installed.
        """
        pyg_nn(self)
        if any(isinstance(one, ShardedEmbedding) for one in self.inputs):
            raise ConfigError(
                "rows that ranks divide (sharded=True) have no form in PyTorch Geometric; save them by a "
                "run, and read them by torch.distributed.checkpoint"
            )
        made = TypedRGCN(
            dict(zip(self.node_types, map(plain, self.inputs), strict=True)),
            [cast("RGCNConv", conv).to_pyg() for conv in self.convs],
            edge_types=self.edge_types,
            node_type=self.node_type,
            act=self.act,
            dropout=self.dropout,
        )
        made.act.train(self.training)
        made.dropout.train(self.training)
        return checked_copy(made, self)

    def forward(
        self,
        x_dict: Mapping[str, LayerInput],
        edges: Adjacencies | Sequence[Adjacencies],
        n_id_dict: Mapping[str, Tensor] | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """Run all layers.

        Args:
            x_dict: by node type ``(num_rows, in_channels)`` features, dense or sparse.
            edges: the whole graph, or ``num_layers`` blocks, outermost first.
            n_id_dict: by node type ``(num_rows,)`` ids of its rows, for types without features. If None, all
                nodes in order.

        Returns:
            ``(num_dst, out_channels)`` for ``node_type``, or such rows by type.

        Raises:
            DataError: features, ids, relations or the number of blocks do not fit.
        """
        layers: list[Any] = list(edges) if isinstance(edges, list | tuple) else [edges] * self.num_layers
        if len(layers) != self.num_layers:
            raise DataError(
                f"a model of {self.num_layers} layers needs {self.num_layers} blocks, outermost first; got "
                f"{len(layers)}. Sample as many hops as the model has layers."
            )
        check_type(x_dict, "x_dict", Mapping, "a mapping of features by node type")
        ids = {} if n_id_dict is None else n_id_dict
        check_type(ids, "n_id_dict", Mapping, "a mapping of ids by node type")
        p = self.dropout if self.training else 0.0
        xs = [
            input_rows(name, layer, x_dict.get(name), ids.get(name), act=self.act, p=p)
            for name, layer in zip(self.node_types, self.inputs, strict=True)
        ]
        whole: dict[int, dict[EdgeType, Csc]] = {}
        for i, adjacencies in enumerate(layers):
            if id(adjacencies) not in whole:
                whole[id(adjacencies)] = self._checked(adjacencies, xs)
            xs = self._layer(i, xs, whole[id(adjacencies)])
        if self.node_type is not None:
            return xs[self.node_types.index(self.node_type)]
        return dict(zip(self.node_types, xs, strict=True))

    def _checked(self, adjacencies: Adjacencies, xs: Sequence[Tensor]) -> dict[EdgeType, Csc]:
        """Return the adjacencies of all relations, made from edge lists where these were given."""
        check_type(adjacencies, "edges", Mapping, "a mapping of adjacencies by relation, or blocks")
        found = {}
        for edge_type in self.edge_types:
            one = adjacencies.get(edge_type)
            if one is None:
                raise DataError(f"edges must have all relations of the model; {edge_type} is missing")
            if not isinstance(one, Csc):
                check_edge_list(one)
                num_src, num_dst = (
                    xs[self.node_types.index(end)].shape[0] for end in (edge_type[0], edge_type[2])
                )
                if tracing():
                    one = traced_csc(one, num_src, num_dst)
                else:
                    ends = ends_of(one, max(num_src, num_dst))
                    one = coo_to_csc(*ends, num_src, num_dst, keep_perm=False)[0]
            found[edge_type] = one
        return found

    def _layer(self, i: int, xs: Sequence[Tensor], adjacencies: Mapping[EdgeType, Csc]) -> list[Tensor]:
        """Run layer ``i`` and the steps after it; the last layer for ``node_type`` alone, if there is one."""
        conv = self.convs[i]
        assert isinstance(conv, RGCNConv)
        is_last = i == self.num_layers - 1
        wanted = [name for name in self.node_types if not is_last or self.node_type in (None, name)]
        used = [number for number, one in enumerate(self.edge_types) if one[2] in wanted]
        cscs = [adjacencies[self.edge_types[number]] for number in used]
        ends = [(self.edge_types[number][0], self.edge_types[number][2]) for number in used]
        num_src, num_dst = self._sizes(adjacencies, xs, wanted)
        place = self.node_types.index
        relations = conv.relations(
            cscs, [place(source) for source, _ in ends], [place(end) for _, end in ends], num_dst
        )
        outs = conv.combine([x[:count] for x, count in zip(xs, num_src, strict=True)], relations, used)
        if is_last and not self.ends_hidden:
            return [bias_act_dropout(out, conv.bias, "none", inplace=True) for out in outs]
        p = self.dropout if self.training else 0.0
        found = []
        for name, out in zip(self.node_types, outs, strict=True):
            mask_type(name)
            found.append(bias_act_dropout(out, conv.bias, self.act, p, inplace=True))
        return found

    def _sizes(
        self, adjacencies: Mapping[EdgeType, Csc], xs: Sequence[Tensor], wanted: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Return how many rows of each type a layer reads and computes; it computes 0 of types not wanted.

        A type that no relation leads to or from keeps all its rows.
        """
        num_src, num_dst = [], []
        for name, x in zip(self.node_types, xs, strict=True):
            read = {csc.num_src for one, csc in adjacencies.items() if one[0] == name}
            made = {csc.num_dst for one, csc in adjacencies.items() if one[2] == name}
            if len(read) > 1 or len(made) > 1 or max(read | made, default=0) > x.shape[0]:
                raise DataError(
                    f"relations have {sorted(read)} sources and {sorted(made)} destinations of type "
                    f"{name!r}, but there are {x.shape[0]} rows of it"
                )
            num_src.append(next(iter(read), x.shape[0]))
            num_dst.append(next(iter(made), num_src[-1]) if name in wanted else 0)
        return num_src, num_dst


def _checked_relations(edge_types: Sequence[EdgeType], node_types: Mapping[str, int]) -> tuple[EdgeType, ...]:
    found = []
    for one in edge_types:
        if not (isinstance(one, tuple | list) and len(one) == 3):
            raise ConfigError(f"a relation is named by three strings; got {shown(one)}")
        for end in (one[0], one[2]):
            if end not in node_types:
                raise ConfigError(
                    f"the relation {tuple(one)} has the type {end!r}, which in_channels does not name."
                    + did_you_mean(str(end), node_types)
                )
        found.append((one[0], one[1], one[2]))
    if not found:
        raise ConfigError("edge_types must name at least one relation")
    return tuple(found)


def learned_by_type(graph: Graph) -> dict[str, dict[int, int]]:
    """Return, by node type, the columns that number categories, and how many rows each needs."""
    columns = graph.schema.columns
    found = {name: learned_columns(columns[name]) for name in graph.node_types if name in columns}
    return {name: codes for name, codes in found.items() if codes}


class ColumnsLinear(nn.Module):
    """A linear layer over columns of numbers, to which each column of codes adds the learned row of its code.

    This is a linear layer over the one-hot codes, whose zeros are never held. Row 0, for categories that are
    not known, begins at zero. Rows are divided by the fourth root of their number: Adam moves every
    weight equally fast, and the row of a category that few nodes have would fit their noise before the others
    have learned (decision 0019). ``learned`` has the columns of codes, and their numbers of rows.
    """

    numbers: Tensor
    scales: Tensor

    def __init__(self, width: int, hidden: int, learned: Mapping[int, int]) -> None:
        super().__init__()
        for column, count in learned.items():
            as_count(column, "a column of codes", most=width - 1)
            as_count(count, "rows of a column of codes", least=1)
        self.in_features, self.codes = width, tuple(learned)
        numbers = [column for column in range(width) if column not in learned]
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.int64), persistent=False)
        # Kept with the weights, so that those of a layer without it are not taken for this one's.
        self.register_buffer("scales", torch.tensor([*learned.values()], dtype=torch.float32) ** -0.25)
        self.linear = Linear(max(1, len(numbers)), hidden)
        self.rows = nn.ModuleList(nn.Embedding(count, hidden) for count in learned.values())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.linear.reset_parameters()
        for table in self.rows:
            assert isinstance(table, nn.Embedding)
            nn.init.normal_(table.weight, std=table.embedding_dim**-0.5)
            with torch.no_grad():
                table.weight[0] = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(num_rows, hidden)`` of dense ``(num_rows, width)``; DataError if a code has no row."""
        weight = self.linear.weight
        numbers = x.index_select(1, self.numbers) if self.numbers.numel() else x.new_zeros(len(x), 1)
        product = dense_linear if type(self.linear) is Linear else F.linear  # that of a copy for PyG
        out = product(numbers.to(weight.dtype), weight) + self.linear.bias
        for column, scale, table in zip(self.codes, self.scales, self.rows, strict=True):
            codes = x[:, column].long()
            assert isinstance(table, nn.Embedding)
            check_ids(codes, table.num_embeddings, f"codes of column {column}")
            out = out + scale * table(codes)
        return out


def input_layer(
    name: str,
    width: int,
    hidden: int,
    num_nodes: Mapping[str, int],
    learned: Mapping[int, int] | None = None,
    *,
    sharded: bool = False,
) -> nn.Module:
    """Make the input layer of a node type of features ``width``, or of ``num_nodes`` learned rows without.

    ``learned`` are columns of codes, as :class:`ColumnsLinear` takes them, and ``sharded`` whether ranks
    divide learned rows. ConfigError: a number is out of range, or that of the nodes is missing.
    """
    if as_count(width, f"in_channels[{name!r}]", most=MOST_WIDTH):
        return ColumnsLinear(width, hidden, learned) if learned else Linear(width, hidden)
    if name not in num_nodes:
        raise ConfigError(
            f"nodes of type {name!r} have no features (in_channels 0); give num_nodes[{name!r}], so that "
            "each of them gets a learned row"
        )
    count = as_count(num_nodes[name], f"num_nodes[{name!r}]")
    return ShardedEmbedding(count, hidden, name) if sharded else nn.Embedding(count, hidden)


def _as_products(rows: Tensor) -> Tensor:
    """Return learned rows in autocast's dtype, if it is on, as the products of other types are."""
    device = rows.device.type
    return rows.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else rows


def input_rows(
    name: str, layer: nn.Module, x: LayerInput | None, ids: Tensor | None, *, act: str, p: float
) -> Tensor:
    """Return the ``(num_rows, hidden)`` rows of a node type that the first relational layer takes.

    Features ``x`` are not read where rows are learned, whose ``ids`` are by default all in order, and which
    do not pass through ``act``; ``p`` is the probability of dropping an element.
    """
    mask_type(name)
    if isinstance(layer, ShardedEmbedding):
        if ids is None:
            raise DataError("rows that ranks divide come for the nodes of a mini-batch; give n_id_dict")
        return bias_act_dropout(_as_products(layer(ids)), None, "none", p)
    if isinstance(layer, nn.Embedding):
        if ids is not None:
            check_ids(check_tensor(ids, f"n_id_dict[{name!r}]", ndim=1), layer.num_embeddings, "ids")
        found = layer.weight if ids is None else F.embedding(ids, layer.weight)
        return bias_act_dropout(_as_products(found), None, "none", p)
    assert isinstance(layer, Linear | ColumnsLinear)
    is_matrix = isinstance(x, SparseFeatures) or (isinstance(x, Tensor) and x.ndim == 2)
    if x is None or not is_matrix or x.shape[1] != layer.in_features:
        got = "none" if x is None else shown(x)
        raise DataError(
            f"nodes of type {name!r} need features of shape (num_rows, {layer.in_features}); got {got}"
        )
    x = as_rows(x)
    if isinstance(layer, ColumnsLinear):
        dense = x.to_dense() if isinstance(x, SparseFeatures) else x
        return bias_act_dropout(layer(dense), None, act, p, inplace=True)
    if isinstance(x, SparseFeatures):
        out = sparse_linear(x, layer.weight)
    else:
        out = dense_linear(x.to(layer.weight.dtype), layer.weight)
    return bias_act_dropout(out, layer.bias, act, p, inplace=True)
