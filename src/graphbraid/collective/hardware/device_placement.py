"""Where the parts of a graph lie that a device reads: which fit on it, and the source with them placed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from graphbraid.collective.run.stages import Context
from graphbraid.files.writing import format_bytes
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.interop.convert import is_plain
from graphbraid.sampling.source import BatchSource

PlacedPart = Literal["topology", "labels", "features"]
PARTS: tuple[PlacedPart, ...] = ("topology", "labels", "features")
"""Parts of a graph in the order in which they are made resident. Topology comes first: over the link a read
of it moves a whole cache line for one number, whereas a read of features moves whole rows."""
PartPlacement = Mapping[PlacedPart, str]
"""Placement of each part: ``device`` or ``host``."""


def choose_placement(part_bytes: Mapping[PlacedPart, int], room: int) -> PartPlacement:
    """Return the placement that makes parts resident in ``room`` bytes, taken in the order of ``PARTS``."""
    placement: dict[PlacedPart, str] = {}
    for part in PARTS:
        fits = part_bytes[part] <= room
        placement[part] = "device" if fits else "host"
        room -= part_bytes[part] if fits else 0
    return placement


def part_bytes_of(context: Context) -> dict[PlacedPart, int]:
    """Return the bytes of each part of the source that a loader's batches are read from."""
    csc, x = context.source.graph.csc, context.source.graph.x
    draws_by_running_sums = context.sampler.weighted and context.sampler.replace
    return {
        "topology": csc.indptr.nbytes + csc.indices.nbytes + 8 * csc.num_edges * draws_by_running_sums,
        "labels": sum(table.nbytes for table in _label_tables(context)),
        "features": 0 if isinstance(x, SparseFeatures | None) or not _can_read(context.source) else x.nbytes,
    }


def placed_source(
    context: Context, placement: PartPlacement, place: Callable[[Tensor, str], Tensor]
) -> BatchSource:
    """Return the source with everything that batches look up by id placed where the device reads it.

    The topology is left in place, since the sampler places its own copy. So are sparse features, whose rows
    are read on the CPU.
    """
    source, graph = context.source, context.source.graph
    by_edge = context.sampler.return_edge_id  # without edge ids nothing is looked up by edge

    def placed(table: Tensor) -> Tensor:  # rows of any other table are taken by torch where it is
        return place(table, placement["labels"]) if is_plain(table) else table

    def label(table: Tensor | None, needed: bool = True) -> Tensor | None:
        return table if table is None or not needed else placed(table)

    csc = Csc(graph.csc.indptr, graph.csc.indices, graph.csc.num_src, label(graph.csc.weight), trusted=True)
    x = graph.x
    is_read = _can_read(source)
    if isinstance(x, ScaledFeatures) and is_read:
        values, scale = (place(part, placement["features"]) for part in (x.values, x.scale))
        x = ScaledFeatures(values=values, scale=scale, trusted=True)
    elif isinstance(x, Tensor) and is_read:
        x = place(x, placement["features"])
    return dataclasses.replace(
        source,
        rows=None if is_read else source.rows,
        graph=graph.replace(
            csc=csc,
            x=x,
            y=label(graph.y),
            edge_id=label(graph.edge_id, by_edge),
            edge_attr=label(graph.edge_attr, by_edge),
        ),
        node_attrs={name: placed(t) for name, t in source.node_attrs.items()},
        edge_attrs={name: placed(t) if by_edge else t for name, t in source.edge_attrs.items()},
        src_degree=label(source.src_degree),
        src_loop=label(source.src_loop),
    )


def _can_read(source: BatchSource) -> bool:
    """Return whether the device can read all features: they are in memory, not in a file."""
    return source.rows is None or source.rows.in_memory is not None


def may_choose_rows(source: BatchSource) -> bool:
    """Return whether the device may choose hot rows itself: no tiers were made, which would say them."""
    rows = source.rows
    return rows is None or (rows.hot is None and isinstance(rows.in_memory, ScaledFeatures))


def _label_tables(context: Context) -> list[Tensor]:
    """Return the tables that :func:`placed_source` places besides features: labels, masks, weights, ids."""
    source, graph = context.source, context.source.graph
    tables = [graph.y, graph.csc.weight, source.src_degree, source.src_loop]
    if context.sampler.return_edge_id:
        tables += [graph.edge_id, graph.edge_attr, *source.edge_attrs.values()]
    return [t for t in (*tables, *source.node_attrs.values()) if t is not None and is_plain(t)]


def shown(placement: PartPlacement, part_bytes: Mapping[PlacedPart, int]) -> str:
    """Return the parts on the device with their sizes, in words."""
    resident = [part for part in PARTS if placement[part] == "device"]
    return ", ".join(f"{part} ({format_bytes(part_bytes[part])})" for part in resident)
