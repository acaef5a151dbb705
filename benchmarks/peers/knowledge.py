"""PyKEEN's side of ``benchmarks.training.knowledge``: needs PyTorch, NumPy and pykeen, nothing of ours.

    python -m benchmarks.peers.knowledge FOLDER [--threads 2]

Reads ``triples.npy`` (source, relation, destination), ``ends.npy`` of the splits, and weights, whose halves
are real and imaginary parts: ``entities.npy`` and ``relations.npy``, first the relations and then their
reciprocals. Ranks the test triples by them, and trains ComplEx for an epoch from them: cross entropy of each
question's answers among all entities (PyKEEN's LCWA), Adagrad.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def interleaved(rows: Tensor) -> Tensor:
    """Complex rows as PyKEEN stores them: a real part, its imaginary part, and so on."""
    return torch.stack(rows.chunk(2, 1), -1).flatten(1)


def main() -> None:
    """Print one JSON line: seconds and MRR of the ranks, seconds of the epoch and its mean loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx
    from pykeen.training import LCWATrainingLoop
    from pykeen.triples import CoreTriplesFactory

    triples, ends, entities, relations = (
        torch.from_numpy(np.load(options.folder / f"{name}.npy"))
        for name in ("triples", "ends", "entities", "relations")
    )
    parts = triples.tensor_split(ends[:-1])
    count = relations.shape[0] // 2
    train = CoreTriplesFactory.create(
        parts[0], num_entities=entities.shape[0], num_relations=count, create_inverse_triples=True
    )
    model = ComplEx(
        triples_factory=train,
        embedding_dim=entities.shape[1] // 2,
        regularizer=None,
        loss="CrossEntropy",
        random_seed=0,
    )
    with torch.no_grad():
        model.entity_representations[0]._embeddings.weight.copy_(interleaved(entities))
        # PyKEEN numbers a relation 2r and its reciprocal 2r + 1.
        both = interleaved(relations).view(2, count, -1).transpose(0, 1).flatten(0, 1)
        model.relation_representations[0]._embeddings.weight.copy_(both)
    start, before = time.perf_counter(), time.process_time()
    found = RankBasedEvaluator(filtered=True).evaluate(
        model,
        parts[2],
        additional_filter_triples=[parts[0], parts[1]],
        batch_size=256,
        use_tqdm=False,
    )
    line = {"ranks_s": time.perf_counter() - start, "ranks_processor_s": time.process_time() - before}
    loop = LCWATrainingLoop(
        model=model, triples_factory=train, optimizer=torch.optim.Adagrad(model.parameters(), lr=options.lr)
    )
    start, before = time.perf_counter(), time.process_time()
    losses = loop.train(
        train, num_epochs=1, batch_size=options.batch_size, use_tqdm=False, use_tqdm_batch=False
    )
    line |= {"epoch_s": time.perf_counter() - start, "epoch_processor_s": time.process_time() - before}
    line |= {
        "mrr": float(found.get_metric("both.realistic.inverse_harmonic_mean_rank")),
        "hits@10": float(found.get_metric("both.realistic.hits_at_10")),
        "loss": losses[-1],
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
