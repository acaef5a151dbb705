"""The embedded datasets: seconds to generate each, and what there is to learn on the default one.

    python -m benchmarks.graphs.embedded [--names braid-10k braid-100k braid-2m braid-20m]

Generation is timed without the cache. The accuracies are of the Trainer's models on ``braid-2m`` after the
epochs named, on the test split, one seed.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid import Graph, Trainer, datasets
from graphbraid.nn import MLP, GraphSAGE

NAMES = ["braid-10k", "braid-100k", "braid-2m", "braid-20m"]
DEFAULT = "braid-2m"


def generation(name: str) -> dict[str, Any]:
    """Size of a dataset and the seconds it takes to make."""
    started = time.perf_counter()
    graph = datasets.load(name, cache=False)
    seconds = time.perf_counter() - started
    return {
        "name": name,
        "nodes": graph.num_nodes,
        "edges": graph.csc.num_edges,
        "largest_degree": int(graph.csc.degrees().max()),
        "nbytes": graph.nbytes,
        "seconds": seconds,
    }


def accuracy(graph: Graph, model: str, epochs: int) -> dict[str, Any]:
    """Test accuracy after some epochs."""
    assert graph.x is not None
    widths = (graph.x.shape[1], 256, graph.num_classes)
    make = {"MLP": lambda: MLP(*widths, num_layers=3), "GraphSAGE": lambda: GraphSAGE(*widths, num_layers=3)}
    trainer = Trainer(make[model](), graph, epochs=epochs, fanouts=(10, 10, 5), eval_every=0, seed=0)
    trainer.fit()
    return {"model": model, "epochs": epochs, "accuracy": trainer.evaluate("test")["accuracy"]}


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--names", nargs="+", default=NAMES)
    add_out_argument(parser)
    options = parser.parse_args()
    made = [generation(name) for name in options.names]
    graph = datasets.load(DEFAULT)
    learned = [accuracy(graph, "MLP", 10), *[accuracy(graph, "GraphSAGE", n) for n in (1, 2, 4)]]
    table = Table("dataset", "nodes", "edges", "largest degree", "MB", "seconds")
    for row in made:
        table.add_row(
            row["name"],
            f"{row['nodes']:,}",
            f"{row['edges']:,}",
            f"{row['largest_degree']:,}",
            f"{row['nbytes'] / 1e6:.3g}",
            f"{row['seconds']:.2g}",
        )
    console = Console(width=110)
    console.print(table)
    for row in learned:
        console.print(f"{row['model']}, {row['epochs']} epochs: {row['accuracy']:.3f}")
    named = {f"generation of {row['name']}": row for row in made}
    named |= {f"accuracy of {row['model']}, {row['epochs']} epochs": row for row in learned}
    print("wrote", write_rows("datasets", named, repeats=1, out=options.out))


if __name__ == "__main__":
    main()
