"""Models under ``torch.autocast("cpu", torch.bfloat16)``: which may be lowered, and their outputs' dtype.

A program multiplies in bfloat16 wherever there is a dense product. So the model is run once as it is written,
under autocast: all its products must be in bfloat16, and its outputs have the dtype that the program's get.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphbraid.fullgraph.batches.calls import BatchCall
from graphbraid.fullgraph.program import NotLoweredError
from graphbraid.fullgraph.reading.as_written import of_node_type
from graphbraid.fullgraph.reading.calling import DATA, EDGE_ATTR, EDGE_TYPE, EDGES, NUM_NODES, X
from graphbraid.fullgraph.reading.modes import DispatchMode, kept_buffers
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul"})
_NUM_ROWS = 8
"""Number of nodes of each type that a model is tried on."""


def multiplies_in_half(parameter: Tensor | None) -> bool:
    """Return whether autocast now lowers the products of a model with such parameters to bfloat16."""
    return (
        parameter is not None
        and parameter.is_cpu
        and parameter.dtype == torch.float32
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )


def out_dtype_of(model: nn.Module, call: BatchCall) -> torch.dtype:
    """Return the dtype of a model's outputs under autocast, which must be on.

    The model runs once, without gradients, on a few nodes. Its buffers and torch's random state stay as they
    are. Of outputs by node type, those of the seeds count.

    Raises:
        NotLoweredError: some products are not in bfloat16, or the outputs have several dtypes.
    """
    if call.calling.takes(DATA):
        raise NotLoweredError(
            "autocast", "the model is given the whole batch", "a forward(x, edge_index, ...)"
        )
    values = {what: _few(call, what) for what in (*call.calling.positional, *call.calling.named.values())}
    plain = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)  # its cache would hold no gradients
    with torch.random.fork_rng([]), kept_buffers(model), torch.no_grad(), plain, _Products():  # type: ignore[no-untyped-call]
        out = call.calling.run(model, values)
    if call.seed_type is not None and isinstance(out, Mapping) and call.num_nodes.keys() >= out.keys():
        out = of_node_type(out, call.seed_type)
    found = {one.dtype for one in tree_leaves(out) if isinstance(one, Tensor) and one.is_floating_point()}
    if len(found) != 1:
        raise NotLoweredError("autocast", "the model's outputs have several dtypes", "outputs of one dtype")
    return found.pop()


def _few(call: BatchCall, what: str) -> Any:
    """Return what an argument is for the first nodes of a batch, each with an edge to its own number."""
    counts = {one: min(count, _NUM_ROWS) for one, count in call.num_nodes.items()}
    if what == X:
        rows = {one: x[:_NUM_ROWS].clone() for one, x in call.x.items()}
        return rows if call.given.typed else rows[ONLY_NODE_TYPE]
    if what == EDGES:
        place = next(iter(call.x.values())).device
        lists = {
            one: torch.arange(min(counts[one[0]], counts[one[-1]]), device=place).expand(2, -1).contiguous()
            for one in call.edge_types or (ONLY_EDGE_TYPE,)
        }
        return lists if call.given.typed else lists[ONLY_EDGE_TYPE]
    if what == NUM_NODES:
        return sum(counts.values())
    value = call.values[what]
    if not isinstance(value, Tensor) or call.given.typed:
        return value
    if what == call.given.weights or what in (EDGE_ATTR, EDGE_TYPE) or call.has_rows(what):
        value = value[:_NUM_ROWS]
    return value.clone()


class _Products(DispatchMode):
    """Refuses products of other dtypes than bfloat16, and operators that may multiply by themselves."""

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        multiplies = func.namespace != "aten" or name in _PRODUCTS
        dtypes = {one.dtype for one in tree_leaves(args) if isinstance(one, Tensor) and one.ndim > 1}
        if multiplies and torch.float32 in dtypes:
            what = f"{func.namespace}.{name} runs in float32 in the model, inside or in spite of autocast"
            raise NotLoweredError("autocast", what, "products in bfloat16")
        return func(*args, **(kwargs or {}))
