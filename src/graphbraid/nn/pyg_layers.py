"""PyTorch Geometric's layers with the weights of graphbraid's, which are the parts of ``to_pyg()``."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, needing
from graphbraid.nn.linear import Linear
from graphbraid.nn.module_traits import copy_of

ACTIVATIONS = {"none": None, "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "gelu": nn.GELU}


def pyg_nn(module: nn.Module) -> Any:
    """Return PyG's layers and models, for a module of :mod:`graphbraid.nn` that they can stand for.

    Raises:
        ConfigError: the module's class is a user's, whose ``forward`` may do other things, or it has hooks.
        MissingPackageError: PyTorch Geometric is not installed.
    """
    kind = type(module)
    if not kind.__module__.startswith("graphbraid.nn.") or "forward" in vars(module):
        raise ConfigError(
            f"to_pyg knows the classes of graphbraid.nn; {kind.__name__} has a forward of its own"
        )
    hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    if any(vars(module).get(name) for name in hooks) or any(p._backward_hooks for p in module.parameters()):
        raise ConfigError(f"to_pyg would lose the hooks of {kind.__name__}; remove them, and set them again")
    if getattr(module, "ends_hidden", False):
        raise ConfigError("to_pyg takes a whole model, and not its hidden()")
    with needing("to_pyg needs the package torch-geometric: pip install 'graphbraid[pyg]'"):
        import torch_geometric.nn
    return torch_geometric.nn


def pyg_layer(layer: nn.Module, *same: str, kind: str = "", **options: Any) -> nn.Module:
    """Make PyG's layer of the same name, or ``kind``, with a copy of a layer's weights, its mode and options.

    Options named ``same`` are attributes of the layer. ConfigError: it holds other weights than PyG's, as
    after weight normalisation.
    """
    make = getattr(pyg_nn(layer), kind or type(layer).__name__)
    options |= {name: getattr(layer, name) for name in same}
    with torch.random.fork_rng([]):  # training goes on with the same random numbers
        made: nn.Module = make(**options)
    first = next(layer.parameters(), None)
    if first is not None:
        made.to(first.device, first.dtype)
    try:
        made.load_state_dict(layer.state_dict())
    except RuntimeError as error:
        raise ConfigError(f"{type(layer).__name__} holds other weights than PyG's: {error}") from None
    own = dict(layer.named_parameters())
    for path, parameter in made.named_parameters():
        parameter.requires_grad_(own[path].requires_grad)
    made.training = layer.training
    return made


def checked_copy(made: nn.Module, of: nn.Module) -> nn.Module:
    """Return a model's copy; ConfigError if it has other parameters, as where layers share some."""
    if len(list(made.parameters())) != len(list(of.parameters())):
        raise ConfigError(
            f"layers of {type(of).__name__} share parameters, which those of PyG's model would not"
        )
    return made


def plain(module: nn.Module) -> nn.Module:
    """Return a copy of a module with PyTorch's linear layers in place of graphbraid's."""
    made = copy_of(module)
    for one in made.modules():
        if type(one) is Linear:
            one.__class__ = nn.Linear  # type: ignore[assignment]  # the same weights; its forward is torch's
            del one.init
    return made


def as_pyg(model: nn.Module) -> nn.Module:
    """Return a model's ``to_pyg()``, or a copy of one from elsewhere; ConfigError for our layers without."""
    if callable(convert := getattr(model, "to_pyg", None)):
        made: nn.Module = convert()
        return made
    made = plain(model)
    own = [type(one).__name__ for one in made.modules() if type(one).__module__.startswith("graphbraid.")]
    if own:
        raise ConfigError(f"{type(model).__name__} holds {own[0]} of graphbraid, and has no method to_pyg")
    return made


def activation(act: str) -> list[nn.Module]:
    """Return the module of an activation, in a list that is empty for ``none``."""
    kind = ACTIVATIONS[act]
    return [] if kind is None else [kind()]


class TypedRGCN(nn.Module):
    """:class:`graphbraid.nn.RGCN` of PyTorch's and PyG's layers, over the nodes of all types in one list.

    ``inputs`` are layers by node type; an ``nn.Embedding`` takes ids. Without ``node_type``, outputs are by
    type.
    """

    def __init__(
        self,
        inputs: Mapping[str, nn.Module],
        convs: list[nn.Module],
        *,
        edge_types: tuple[tuple[str, str, str], ...],
        node_type: str | None,
        act: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.node_types, self.edge_types, self.node_type = tuple(inputs), edge_types, node_type
        self.inputs, self.convs = nn.ModuleList(inputs.values()), nn.ModuleList(convs)
        self.act, self.dropout = nn.Sequential(*activation(act)), nn.Dropout(dropout)

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[tuple[str, str, str], Tensor],
        n_id_dict: Mapping[str, Tensor] | None = None,
    ) -> Tensor | dict[str, Tensor]:
        """Return ``(num_nodes, out_channels)`` of ``node_type``, or such rows by type."""
        rows = []
        for name, layer in zip(self.node_types, self.inputs, strict=True):
            if isinstance(layer, nn.Embedding):  # learned rows do not pass through the activation
                ids = None if n_id_dict is None else n_id_dict.get(name)
                rows.append(layer.weight if ids is None else layer(ids))
            else:
                rows.append(self.act(layer(x_dict[name])))
        counts = [one.shape[0] for one in rows]
        first = dict(zip(self.node_types, torch.tensor([0, *counts]).cumsum(0).tolist(), strict=False))
        edges, relations = [], []
        for number, edge_type in enumerate(self.edge_types):
            pairs = edge_index_dict[edge_type]
            edges.append(torch.stack([pairs[0] + first[edge_type[0]], pairs[1] + first[edge_type[2]]]))
            relations.append(torch.full_like(pairs[0], number))
        edge_index, edge_type_of = torch.cat(edges, 1), torch.cat(relations)
        x = self.dropout(torch.cat(rows))
        for number, conv in enumerate(self.convs):
            x = conv(x, edge_index, edge_type_of)
            if number < len(self.convs) - 1:
                x = self.dropout(self.act(x))
        found = dict(zip(self.node_types, torch.split(x, counts), strict=True))
        return found if self.node_type is None else found[self.node_type]


class Embedded(nn.Module):
    """:class:`graphbraid.nn.NodeEmbedding` of PyTorch's and PyG's layers."""

    def __init__(self, rows: nn.Parameter, model: nn.Module | None, dropout: float) -> None:
        super().__init__()
        self.rows, self.model, self.dropout = nn.Parameter(rows.detach().clone()), model, nn.Dropout(dropout)
        self.rows.requires_grad_(rows.requires_grad)

    def forward(
        self, x: Any, edge_index: Tensor, n_id: Tensor | None = None, edge_type: Tensor | None = None
    ) -> Tensor:
        """Return the rows of nodes, or the model's result on them."""
        rows: Tensor = self.dropout(self.rows if n_id is None else self.rows[n_id])
        if self.model is None:
            return rows
        made: Tensor = self.model(rows, edge_index, *([] if edge_type is None else [edge_type]))
        return made
