"""Puts tables into pages: between ``<!-- table: NAME -->`` and ``<!-- end of table -->``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common.contenders import ROOT
from benchmarks.common.rows import read_rows
from benchmarks.tables import (
    accuracy,
    distributed,
    front,
    fullgraph,
    gpu,
    links,
    planning,
    sampled,
    serving,
    synth,
    tiers,
    tiers_reads,
    typed,
)

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "decisions" / "0015-ranks-of-a-machine-share-memory.md",
    *(
        ROOT / "docs" / f"{page}.md"
        for page in ("results", "fullgraph", "distributed", "synthesis", "gpu", "serving")
    ),
)
TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "speed": ("epoch", front.speed),
    "batches": ("sampling", sampled.batches),
    "scaling": ("sampling", sampled.scaling),
    "models on batches": ("sampled_models", sampled.models),
    "models on tiny batches": ("sampled_models", sampled.tiny_models),
    "batches with types": ("typed_sampling", typed.batches),
    "temporal batches": ("temporal_sampling", typed.temporal_batches),
    "epoch": ("epoch", sampled.epoch),
    "defaults": ("defaults", sampled.defaults),
    "memory": ("memory", sampled.memory),
    **{
        f"full-graph epochs, {model}": ("fullgraph", partial(fullgraph.epochs, model))
        for model in fullgraph.MODELS
    },
    "full-graph memory": ("full_memory", fullgraph.memory),
    "full-graph models": ("fullgraph_ready", fullgraph.ready),
    "full-graph coverage": ("fullgraph_coverage", fullgraph.coverage),
    "full-graph ablation": ("fullgraph_ablation", fullgraph.ablation),
    "full-graph floor": ("fullgraph_floor", fullgraph.floor),
    "full-graph growth": ("fullgraph_growth", fullgraph.growth),
    "accuracy beside the literature": ("accuracy", accuracy.published),
    "accuracy sampled and full": ("accuracy", accuracy.sampled_beside_full),
    "full-graph accuracy": ("full_accuracy", accuracy.beside_pyg),
    "accuracy with types": ("relational_accuracy", typed.accuracy),
    "links of a knowledge graph": ("knowledge_accuracy", links.knowledge),
    "knowledge graph beside PyKEEN": ("knowledge_epoch", links.beside_pykeen),
    "links in time": ("temporal_links", links.in_time),
    "estimate": ("estimate", planning.estimate),
    "checks": ("checks", planning.checks),
    "partitions": ("partitioning", distributed.partitions),
    "partition costs": ("partitioning", distributed.partition_costs),
    "whole graphs on ranks": ("distributed_fullgraph", distributed.whole_graphs),
    "ranks behind links": ("distributed_shaped", distributed.shaped),
    "simulated scaling": ("distributed_scaling", distributed.scaling),
    "ways between ranks": ("distributed_machine", distributed.ways),
    "rounding on ranks": ("distributed_rounding", distributed.rounding),
    "mini-batches on ranks": ("distributed_mini_batches", distributed.mini_batches),
    "ranks within limits": ("distributed_sharded", distributed.sharded),
    "exact outputs of parts": ("distributed_exact", distributed.exact),
    "rows of other ranks": ("distributed_kept_rows", distributed.kept_rows),
    "full-graph epochs, rgcn": ("fullgraph_relational", fullgraph.relational),
    "full-graph epochs, hgt": ("fullgraph_transformer", fullgraph.transformer),
    "synthesised programs": ("synth", synth.programs),
    "costs of synthesised programs": ("synth", synth.costs),
    "ranks of synthesised programs": ("synth", synth.ranks),
    "input paths of synthesised programs": ("synth", synth.input_paths),
    "prediction, three hops": ("tiers_prediction", partial(tiers.prediction, "15,10,5x1024")),
    "prediction, two hops": ("tiers_prediction", partial(tiers.prediction, "10,5x256")),
    "traffic to a device": ("tiers_traffic", tiers.traffic),
    "rows from memory": ("tiers_gather", tiers_reads.gather),
    "rows from disk": ("tiers_disk", tiers_reads.disk),
    "larger than memory": ("tiers_scale", tiers_reads.scale),
    "whole graphs from disk": ("tiers_whole", tiers_reads.whole),
    "on a GPU": ("gpu_suite", gpu.proven),
    "requests to a service": ("serving", serving.requests),
    "renumbering": ("tiers_reordering", tiers_reads.renumbering),
}
"""Each table's results and what makes it."""
PICTURES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "prediction.svg": tiers.curves,
    ROOT / "docs" / "speed.svg": front.picture,
}
"""Each picture and what draws it of the results."""
NOTHING = "Not measured yet."
_PLACE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def made(text: str) -> str:
    """A page with its tables as the results have them.

    Raises:
        ValueError: the page asks for a table that nobody makes.
    """

    def filled(place: re.Match[str]) -> str:
        if place[2] not in TABLES:
            raise ValueError(f"there is no table {place[2]!r}; known: {', '.join(TABLES)}")
        results, make = TABLES[place[2]]
        return f"{place[1]}\n{make() if read_rows(results) else NOTHING}\n\n{place[3]}"

    return _PLACE.sub(filled, text)


def write_pages() -> None:
    """Put the tables into every page, and draw the pictures."""
    for picture, draw in PICTURES.items():
        picture.write_text(draw(), encoding="utf-8")
    for page in PAGES:
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
