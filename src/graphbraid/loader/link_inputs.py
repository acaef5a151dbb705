"""Conversion of a link loader's arguments to the forms that sampling takes: links, labels, negatives."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.arguments import MOST_AMOUNT, as_number, shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.graph.interop.convert import as_tensor
from graphbraid.graph.scans import first_out_of_range
from graphbraid.loader.inputs import is_whole
from graphbraid.sampling.links.negatives import NegativeSampling

_ENDS = ("source", "destination")


def as_links(edge_label_index: Any, data: Any, graph: Graph) -> Tensor:
    """Return ``(2, num_links)`` int64 links; None stands for the edges of the data, in their order.

    Raises:
        ConfigError: they are not such a tensor, or an end is not a node; the message names the first.
    """
    if edge_label_index is None:
        edge_label_index = None if isinstance(data, Graph) else data.get("edge_index")
        if edge_label_index is None:
            return graph.to_edge_index(original_order=True)
    if (
        isinstance(edge_label_index, tuple)
        and edge_label_index
        and not isinstance(edge_label_index[0], Tensor)
    ):
        raise ConfigError(
            "edge_label_index must be a (2, num_links) tensor; pairs of an edge type and links are for "
            "heterogeneous graphs"
        )
    return checked_links(edge_label_index, (graph.num_nodes, graph.num_nodes))


def checked_links(edge_label_index: Any, counts: tuple[int, int]) -> Tensor:
    """Return ``(2, num_links)`` int64 links between as many sources and destinations as ``counts`` says.

    Raises:
        ConfigError: they are not such a tensor, or an end is not a node; the message names the first.
    """
    try:
        links = as_tensor(edge_label_index, "edge_label_index").cpu()
    except (DataError, TypeError, ValueError) as error:
        raise ConfigError(f"edge_label_index must be a (2, num_links) tensor of node ids; {error}") from error
    if links.ndim != 2 or links.shape[0] != 2 or (links.numel() and not is_whole(links)):
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


def check_times_go_together(given: Mapping[str, Any]) -> None:
    """Check that links have times where nodes or edges have, and not otherwise.

    Raises:
        ConfigError: one of ``edge_label_time`` and ``time_attr`` is missing.
    """
    if (given["edge_label_time"] is None) != (given["time_attr"] is None):
        raise ConfigError(
            "edge_label_time and time_attr go together: 'edge_label_time' is "
            f"{'not set' if given['edge_label_time'] is None else 'set'}"
        )


def check_exclusion(value: Any) -> bool | str:
    """Return ``exclude_seed_edges`` after checking it.

    Raises:
        ConfigError: it is neither a bool nor ``"reverse"``.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str) and value == "reverse":
        return value
    raise ConfigError(f"exclude_seed_edges must be True, False or 'reverse'; got {shown(value)}")
