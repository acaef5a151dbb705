"""The display of a mini-batch in a notebook: draws hop by hop, and the tensors that it holds so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphbraid.figures.page import notebook, table
from graphbraid.graph.types import ONLY_NODE_TYPE

if TYPE_CHECKING:
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch


def batch_html(batch: MiniBatch, held: Mapping[Any, Any]) -> str:
    """Return the HTML of a batch for a notebook, without computing an attribute.

    Args:
        batch: the batch.
        held: its attributes by name, or by type and name; only tensors are shown.
    """
    drawn = batch.sampled
    types = batch.n_id_dict if batch.is_typed else (ONLY_NODE_TYPE,)
    counts = [
        *((name, sum(n), *n) for name, n in zip(types, drawn.nodes_by_type, strict=True)),
        *(
            (" ".join(name), sum(n), "", *n)
            for name, n in zip(batch.edge_types, drawn.counts_by_relation, strict=True)
        ),
    ]
    hops = range(1, max(len(row) for row in counts) - 2)
    heads = ("nodes, edges", "drawn", "seeds", *(f"hop {hop}" for hop in hops))
    if not drawn.by_hop:
        counts, heads = [row[:2] for row in counts], heads[:2]
    tensors = [
        (" ".join(key) if isinstance(key, tuple) else key, tuple(value.shape), value.dtype, value.device)
        for key, value in held.items()
        if isinstance(value, Tensor)
    ]
    return notebook(
        f"MiniBatch: epoch {batch.epoch}, step {batch.step}, batch size {batch.batch_size:,}",
        table(counts, heads),
        table(tensors, ("held so far", "shape", "dtype", "device")),
    )
