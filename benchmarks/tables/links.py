"""Tables of link prediction: on a knowledge graph, and in time."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.common.rows import read_rows
from benchmarks.tables.markdown import table, where

MODELS = {
    "distmult": "DistMult, few negatives",
    "rgcn": "R-GCN, DistMult",
    "complex": "ComplEx, among all entities",
    "distmult-all": "DistMult, among all entities",
    "transe": "TransE, self-adversarial negatives",
    "rotate": "RotatE, self-adversarial negatives",
}


def knowledge() -> str:
    """Filtered ranks of a knowledge graph's test triples, beside the literature's."""
    rows = read_rows("knowledge_accuracy")
    lines = []
    for row in rows:
        hits = [f"{statistics.fmean(run[f'test_hits@{k}'] for run in row['runs']):.3f}" for k in (1, 3, 10)]
        deviation = f" ± {row['deviation']:.3f}" if row["repeats"] > 1 else ""
        mrr = f"**{row['mean']:.3f}{deviation}**"
        lines.append([MODELS[row["model"]], str(row["repeats"]), mrr, f"{row['literature']:g}", *hits])
    heads = ("FB15k-237, test", "seeds", "filtered MRR", "literature", "Hits@1", "Hits@3", "Hits@10")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.accuracy.knowledge")])


def beside_pykeen() -> str:
    """An epoch of ComplEx and ranks by the same weights, ours and PyKEEN's, in seconds of the processor."""
    rows = read_rows("knowledge_epoch")
    lines = []
    for row in rows:
        for name in ("graphbraid", "pykeen"):
            of = row[name]
            seconds = [f"{of[f'{part}_processor_s']:.0f} s" for part in ("epoch", "ranks")]
            lines.append(
                [f"{row['dataset']}, {row['channels']} channels", name, *seconds, f"{of['mrr']:.4f}"]
            )
    heads = ("ComplEx among all entities", "", "epoch", "ranks of the test triples", "filtered MRR")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.training.knowledge")])


def in_time() -> str:
    """What a model of links seems to know, and knows, by the way it was trained."""
    rows = read_rows("temporal_links")
    lines = [
        [row["way"], str(row["repeats"]), _auc(row, "as_trained"), f"**{_auc(row, 'honest')}**"]
        for row in rows
    ]
    heads = (f"{rows[0]['dataset']}: training", "seeds", "AUC as trained", "AUC with the past alone")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.accuracy.temporal")])


def _auc(row: dict[str, Any], test: str) -> str:
    return f"{row[f'{test}_mean']:.3f} ± {row[f'{test}_deviation']:.3f}"
