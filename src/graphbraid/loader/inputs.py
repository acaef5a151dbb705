"""Conversion of a loader's arguments to what the sampler takes: fanouts, seeds, links, labels, ids."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import MOST_AMOUNT, as_number, shown
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.interop.convert import as_tensor, refuse_mask_of_integers
from graphbraid.graph.scans import first_out_of_range
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.sampling.links.negatives import NegativeSampling

_ENDS = ("source", "destination")
_NEEDED = (
    "edge_label_index must name a relation, or be a pair of a relation and (2, num_links) ids within its two "
    "types, such as (('user', 'rates', 'movie'), links)"
)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedNodes:
    """The nodes that a loader's batches start from."""

    node_type: str
    """Their type; that of all nodes in a graph of one type."""
    ids: Tensor
    """``(num_seeds,)`` int64 ids within the type."""
    is_mask: bool = False
    """Whether they were given as a mask: ``input_id`` of a batch is then node ids."""


def as_seeds(input_nodes: Any, graph: Graph) -> SeedNodes:
    """Return the seeds from ids, a bool mask, a split's name, or None for all nodes.

    Args:
        input_nodes: the seeds; of a graph with types a node type, or a pair of it and one of these.
        graph: the graph.

    Raises:
        ConfigError: the argument is none of these, the type does not exist, or an id is outside it; the
            message names the first.
        DataError: the split does not exist or is empty.
    """
    node_type, given, what = ONLY_NODE_TYPE, input_nodes, "input_nodes"
    if graph.is_typed:
        node_type, given = (input_nodes, None) if isinstance(input_nodes, str) else _pair(input_nodes, graph)
        what = f"input_nodes of type {node_type!r}"
        if node_type not in graph.node_types:
            raise ConfigError(
                f"input_nodes names the node type {shown(node_type)}, and there are "
                f"{', '.join(graph.node_types)}.{did_you_mean(node_type, graph.node_types)}"
            )
    nodes = graph.nodes_of(node_type)
    if given is None:
        return SeedNodes(node_type=node_type, ids=torch.arange(nodes.num_nodes))
    if isinstance(given, str):
        if not graph.is_typed:
            return SeedNodes(node_type=node_type, ids=graph.split(given))
        if given not in nodes.splits:
            known = ", ".join(nodes.splits) or "none"
            raise ConfigError(f"nodes of type {node_type!r} have no split {given!r}; they have {known}")
        return SeedNodes(node_type=node_type, ids=nodes.splits[given])
    ids = as_ids(given, what)
    if ids.dtype == torch.bool:
        if ids.shape != (nodes.num_nodes,):
            raise ConfigError(
                f"a mask of {what} must have shape ({nodes.num_nodes},); got {tuple(ids.shape)}"
            )
        return SeedNodes(node_type=node_type, ids=ids.nonzero().flatten(), is_mask=True)
    ids = check_ids(ids, nodes.num_nodes, what)
    refuse_mask_of_integers(ids, nodes.num_nodes, what, ConfigError)
    return SeedNodes(node_type=node_type, ids=ids)


def _pair(input_nodes: Any, graph: Graph) -> tuple[Any, Any]:
    is_pair = isinstance(input_nodes, tuple | list) and len(input_nodes) == 2
    if is_pair and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    raise ConfigError(
        "input_nodes must name a node type, or be a pair of a type and ids, such as ("
        f"{(*graph.node_types, 'paper')[0]!r}, ids); got {shown(input_nodes)}"
    )


def as_ids(values: Any, what: str) -> Tensor:
    """Return ids or a mask as a tensor on the CPU.

    Raises:
        ConfigError: ``values`` cannot be converted to a tensor.
    """
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{what} must be node ids, a mask or a split's name; got {type(values).__name__} "
            f"({error}). Pairs of a node type and ids are for heterogeneous graphs"
        ) from error


def check_ids(ids: Tensor, bound: int, what: str) -> Tensor:
    """Return ``ids`` as a 1-d int64 tensor after checking them; an empty list may have any dtype.

    Raises:
        ConfigError: they are not integers of one dimension, or one is outside ``[0, bound)``; the message
            names the first.
    """
    if ids.ndim != 1 or (ids.numel() and not _is_whole(ids)):
        raise ConfigError(
            f"{what} must be a 1-d tensor of ids or a mask of all nodes; "
            f"got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    ids = ids.to(torch.int64).contiguous()
    outside = first_out_of_range(ids, bound)
    if outside >= 0:
        raise ConfigError(f"{what} must be ids in [0, {bound}); {what}[{outside}] is {int(ids[outside])}")
    return ids


def _is_whole(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_order(value: Any, name: str) -> None:
    """Check that an order of positions in the inputs can be iterated; None stands for the loader's own.

    Raises:
        ConfigError: it cannot.
    """
    if value is not None and (not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0):
        raise ConfigError(f"{name} must be an iterable of positions of the inputs; got {shown(value)}")


def check_lists(topology: Any) -> None:
    """Check that ``topology`` is a source of adjacency lists or None.

    Raises:
        ConfigError: it is neither.
    """
    if topology is not None and inspect.getattr_static(topology, "native", None) is None:
        raise ConfigError(
            "topology must be a source of adjacency lists, such as TieredTopology, or None; got "
            f"{shown(topology)}"
        )


def as_input_id(values: Any, number: int, what: str) -> Tensor:
    """Return the values that batches have as ``input_id``, one for each of a ``number`` of ``what``.

    Raises:
        ConfigError: they are no tensor, or of another length.
    """
    try:
        ids = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"input_id must be a tensor with an entry per {what}; got {shown(values)}"
        ) from error
    if ids.shape != (number,):
        raise ConfigError(
            f"input_id must have an entry per {what}, shape ({number},); got {tuple(ids.shape)}"
        )
    return ids


def as_device(device: str | torch.device) -> torch.device:
    """Return a torch device that is present.

    Raises:
        ConfigError: there is no such device.
    """
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator; got {device!r}"
        ) from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r} needs a CUDA device that is not here ({torch.cuda.device_count()} found)"
        )
    return found


def as_links(edge_label_index: Any, data: Any, graph: Graph) -> tuple[EdgeType, Tensor]:
    """Return the relation of the links, and ``(2, num_links)`` int64 ids of their ends within its types.

    Args:
        edge_label_index: links, or None for the edges of the data, in their order. Of a graph with types, a
            relation of it, for all its edges in the order of its list, or a pair of a relation and links or
            None. A relation is three names, or two if one joins these types; with links, it may be one that
            the graph does not have, between two of its types.
        data: what the loader was given.
        graph: the graph.

    Raises:
        ConfigError: there is no such relation or type, links are not such a tensor, or an end is not a node;
            the message names the first.
    """
    if graph.is_typed:
        return _typed_links(edge_label_index, graph)
    if edge_label_index is None:
        edge_label_index = None if isinstance(data, Graph) else data.get("edge_index")
        if edge_label_index is None:
            return ONLY_EDGE_TYPE, graph.to_edge_index(original_order=True)
    is_pair = isinstance(edge_label_index, tuple) and bool(edge_label_index)
    if is_pair and not isinstance(edge_label_index[0], Tensor):
        raise ConfigError(
            "edge_label_index must be a (2, num_links) tensor; pairs of an edge type and links are for "
            "heterogeneous graphs"
        )
    return ONLY_EDGE_TYPE, _checked_links(edge_label_index, (graph.num_nodes, graph.num_nodes))


def _typed_links(edge_label_index: Any, graph: Graph) -> tuple[EdgeType, Tensor]:
    if not isinstance(edge_label_index, tuple | list) or not edge_label_index:
        raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
    named, links = edge_label_index, None
    if not isinstance(named[0], str):
        if len(named) != 2:
            raise ConfigError(f"{_NEEDED}; got {shown(edge_label_index)}")
        named, links = edge_label_index
    edge_type = _edge_type(named, graph, may_be_new=links is not None)
    if links is None:
        return edge_type, graph.to_edge_indices()[edge_type].contiguous()
    source, destination = graph.nodes_of(edge_type[0]), graph.nodes_of(edge_type[-1])
    return edge_type, _checked_links(links, (source.num_nodes, destination.num_nodes))


def _edge_type(named: Any, graph: Graph, *, may_be_new: bool) -> EdgeType:
    """Return the relation of this name; as in PyG, two names are one that joins these types, or ``to``."""
    is_name = isinstance(named, tuple | list) and all(isinstance(part, str) for part in named)
    if not is_name or len(named) not in (2, 3):
        raise ConfigError(f"{_NEEDED}; got a relation {shown(named)}")
    for end in (named[0], named[-1]):
        if end not in graph.node_types:
            raise ConfigError(
                f"edge_label_index names the node type {shown(end)}, and there are "
                f"{', '.join(graph.node_types)}.{did_you_mean(end, graph.node_types)}"
            )
    if len(named) == 2:
        joining = [one for one in graph.edge_types if (one[0], one[-1]) == tuple(named)]
        edge_type = joining[0] if len(joining) == 1 else (named[0], "to", named[1])
    else:
        edge_type = (named[0], named[1], named[2])
    if edge_type not in graph.edge_types and not may_be_new:
        texts = ["__".join(one) for one in graph.edge_types]
        raise ConfigError(
            f"edge_label_index names the relation {'__'.join(named)}, which the graph does not have; it has "
            f"{', '.join(texts)}.{did_you_mean('__'.join(edge_type), texts)}"
        )
    return edge_type


def _checked_links(edge_label_index: Any, counts: tuple[int, int]) -> Tensor:
    """Return ``(2, num_links)`` int64 links between as many sources and destinations as ``counts`` says."""
    try:
        links = as_tensor(edge_label_index, "edge_label_index").cpu()
    except (DataError, TypeError, ValueError) as error:
        raise ConfigError(f"edge_label_index must be a (2, num_links) tensor of node ids; {error}") from error
    if links.ndim != 2 or links.shape[0] != 2 or (links.numel() and not _is_whole(links)):
        raise ConfigError(
            f"edge_label_index must be a (2, num_links) tensor of node ids; got {shown(edge_label_index)}"
        )
    links = links.to(torch.int64).contiguous()
    for row, end, count in zip(links, _ENDS, counts, strict=True):
        wrong = first_out_of_range(row, count)
        if wrong >= 0:
            raise ConfigError(
                f"edge_label_index must hold node ids in [0, {count}); the {end} of link {wrong} "
                f"is {int(row[wrong])}"
            )
    return links


def as_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """Return how negatives are drawn; a ratio that is not 0 stands for pairs, and comes first, as in PyG.

    Raises:
        ConfigError: an option is invalid.
    """
    if ratio is not None:
        number = as_number(ratio, "neg_sampling_ratio", least=0, most=MOST_AMOUNT)
        if number:
            return NegativeSampling("binary", number)
    return NegativeSampling.of(neg_sampling)


def labels_of(edge_label: Any, num_links: int, how: NegativeSampling | None) -> Tensor | None:
    """Return the links' labels, raised by 1 if 0 is to stand for negatives.

    Raises:
        ConfigError: negatives are triplets, which labels do not go with.
        DataError: there is not one label for each link.
    """
    if edge_label is None:
        return None
    if how is not None and how.is_triplet:
        raise ConfigError(
            "edge_label does not go with negatives of mode 'triplet': src_index, dst_pos_index and "
            "dst_neg_index of a batch tell links and negatives apart"
        )
    label = as_tensor(edge_label, "edge_label").cpu()
    if not label.ndim or label.shape[0] != num_links:
        raise DataError(
            f"edge_label must have one label for each of the {num_links} links; got shape "
            f"{tuple(label.shape)}"
        )
    if how is None or not label.numel() or not bool(label.min() == 0):
        return label
    if bool((label <= 1).all()):
        warnings.warn(
            "edge_label has the label 0, so labels are raised by 1, as in PyG: 0 and 1 become 1 and 2, and "
            "0 is the label of negatives that the loader draws. If the links with label 0 are negatives "
            "already, as those of RandomLinkSplit are, leave out neg_sampling and neg_sampling_ratio",
            stacklevel=2,
        )
    return label + 1


def as_exclusion(value: Any) -> bool | str:
    """Return ``exclude_seed_edges`` after checking it.

    Raises:
        ConfigError: it is neither a bool nor ``"reverse"``.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str) and value == "reverse":
        return value
    raise ConfigError(f"exclude_seed_edges must be True, False or 'reverse'; got {shown(value)}")
