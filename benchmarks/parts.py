"""What ``python -m benchmarks.all`` runs: a command, the graphs it reads and the minutes it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.contenders import ours
from benchmarks.graphs.named import CUT, OF_MODEL, PREDICTED, REAL


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run finds what it needs."""

    graphs: Path
    data: Path | None
    """Archives; without them, what needs one is left out."""
    peer_python: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command, and what it needs."""

    name: str
    module: str
    """Name of the module under :mod:`benchmarks`."""
    results: str
    """The rows' file, without ``.jsonl``; several parts may share one."""
    minutes: float
    """An estimate for two cores, which counts until a run has measured it."""
    options: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    """Read from ``--graphs``; made where they are not there."""
    takes_names: bool = True
    """Whether the graphs are handed over as ``--names``."""
    archives: tuple[str, ...] = ()
    """Read from the folder of archives themselves."""
    peers: bool = False
    """Whether DGL's environment is needed."""
    pyg: bool = False
    """Whether PyG must be installed."""
    pykeen: bool = False
    """Whether PyKEEN's environment is needed."""

    def command(self, places: Places, out: Path) -> list[str]:
        """What to run; its rows go to ``out``."""
        arguments = [*self.options, "--out", str(out)]
        if self.graphs:
            arguments += ["--graphs", str(places.graphs)]
        if self.graphs and self.takes_names:
            arguments += ["--names", *self.graphs]
        if self.peers:
            arguments += ["--peer-python", places.peer_python]
        filled = (argument.format(data=places.data, graphs=places.graphs) for argument in arguments)
        return ours(self.module, *filled)


def _fullgraph(name: str, model: str, graphs: tuple[str, ...], minutes: float, *options: str) -> Part:
    return Part(
        name=name,
        module="fullgraph.beside_peers",
        results="fullgraph",
        minutes=minutes,
        options=("--model", model, *options),
        graphs=graphs,
        peers=True,
        pyg=True,
    )


def _defaults(mode: str, busy: int) -> Part:
    return Part(
        name=f"defaults-{mode}-{'busy' if busy else 'quiet'}",
        module="training.defaults",
        results="defaults",
        minutes=4,
        options=("--mode", mode, "--busy", str(busy), "--seconds", "160"),
        peers=True,
        pyg=True,
    )


_PATHS_OF = ("nell", "coauthor_physics", "amazon_computers")
_FEW = ("--repeats", "3", "--large-repeats", "1")

PARTS = (
    Part(
        name="sampling",
        module="sampling.beside_peers",
        results="sampling",
        minutes=21,
        options=("--repeats", "3"),
        graphs=("rmat-1m", "products-lite", "web_cnr2000"),
        peers=True,
    ),
    Part(
        name="sampling-models",
        module="sampling.models",
        results="sampled_models",
        minutes=60,
        graphs=("products-lite", "rmat-1m", "web_cnr2000"),
        peers=True,
        pyg=True,
    ),
    Part(
        name="sampling-typed",
        module="sampling.typed",
        results="typed_sampling",
        minutes=10,
        options=("--graphs", "{graphs}", "--data", "{data}", "--repeats", "3"),
        archives=("het_dblp", "het_movielens_small"),
        peers=True,
    ),
    Part(
        name="sampling-temporal",
        module="sampling.temporal",
        results="temporal_sampling",
        minutes=15,
        options=("--graphs", "{graphs}", "--data", "{data}", "--repeats", "3"),
        archives=("tmp_mathoverflow",),
        peers=True,
    ),
    Part(
        name="epoch",
        module="training.epoch",
        results="epoch",
        minutes=8,
        options=("--repeats", "3", "--name", "products-lite"),
        graphs=("products-lite",),
        takes_names=False,
        peers=True,
    ),
    *(_defaults(mode, busy) for mode in ("sampled", "full") for busy in (0, 1)),
    Part(
        name="cores",
        module="training.cores",
        results="cores",
        minutes=6,
        options=("--minutes", "5"),
        graphs=("arxiv-like", "products-lite", "reddit-lite"),
        takes_names=False,
    ),
    Part(
        name="checks",
        module="training.checks",
        results="checks",
        minutes=4,
        graphs=("arxiv-like", "amazon_computers"),
        pyg=True,
    ),
    _fullgraph("fullgraph-gcn", "gcn", OF_MODEL["gcn"], 18, "--repeats", "3", "--large-repeats", "1"),
    _fullgraph("fullgraph-real", "gcn", REAL, 11, "--repeats", "3"),
    _fullgraph("fullgraph-shuffled", "gcn", ("web_cnr2000", "web_cnr2000_shuffled"), 8, "--repeats", "3"),
    _fullgraph("fullgraph-sage", "sage", OF_MODEL["sage"], 13, *_FEW),
    _fullgraph("fullgraph-gin", "gin", OF_MODEL["gin"], 11, *_FEW),
    _fullgraph("fullgraph-gat", "gat", OF_MODEL["gat"], 18, "--repeats", "2"),
    Part(
        name="passes",
        module="fullgraph.without_passes",
        results="fullgraph_ablation",
        minutes=7,
        graphs=OF_MODEL["gcn"],
        pyg=True,
    ),
    Part(
        name="floor",
        module="fullgraph.floor",
        results="fullgraph_floor",
        minutes=5,
        graphs=("amazon_computers", "photo-like", "flickr-like", "arxiv-like", "corafull-like"),
        pyg=True,
    ),
    Part(
        name="floor-wide",
        module="fullgraph.floor",
        results="fullgraph_floor",
        minutes=3,
        options=("--hidden", "64"),
        graphs=("web_cnr2000_shuffled", "web-like"),
        pyg=True,
    ),
    Part(
        name="growth",
        module="fullgraph.growth",
        results="fullgraph_growth",
        minutes=8,
        options=("--graphs", "{graphs}"),
        pyg=True,
    ),
    Part(
        name="models",
        module="fullgraph.ready",
        results="fullgraph_ready",
        minutes=4,
        options=("braid-100k", "{data}/cora.npz"),
        archives=("cora",),
        pyg=True,
    ),
    Part(name="coverage", module="fullgraph.models", results="fullgraph_coverage", minutes=3, pyg=True),
    Part(
        name="relational",
        module="fullgraph.relational",
        results="fullgraph_relational",
        minutes=15,
        options=("--graphs", "{graphs}"),
        peers=True,
        pyg=True,
    ),
    Part(
        name="transformer",
        module="fullgraph.transformer",
        results="fullgraph_transformer",
        minutes=6,
        options=("--graphs", "{graphs}"),
        pyg=True,
    ),
    Part(
        name="synth",
        module="synth.beside_engine",
        results="synth",
        minutes=25,
        options=("--repeats", "3"),
        graphs=("amazon_computers", "arxiv-like", "products-lite"),
        pyg=True,
    ),
    Part(
        name="synth-input-paths",
        module="synth.input_paths",
        results="synth",
        minutes=10,
        options=("--data", "{data}", "--names", *_PATHS_OF),
        archives=_PATHS_OF,
    ),
    Part(name="memory", module="memory.sampled", results="memory", minutes=4),
    Part(
        name="memory-fullgraph",
        module="memory.fullgraph",
        results="full_memory",
        minutes=9,
        peers=True,
        pyg=True,
    ),
    Part(
        name="kernels",
        module="kernels.bandwidth",
        results="kernels",
        minutes=5,
        graphs=("arxiv-like", "reddit-lite"),
    ),
    Part(name="density", module="kernels.density", results="density", minutes=2),
    Part(name="dispatch", module="kernels.dispatch", results="dispatch", minutes=1),
    Part(name="schedule", module="planning.schedule", results="schedule", minutes=5),
    Part(name="executor", module="planning.executor", results="collective", minutes=7),
    Part(
        name="estimate",
        module="planning.estimate",
        results="estimate",
        minutes=25,
        graphs=("arxiv-like", "products-lite", "web_cnr2000"),
    ),
    Part(
        name="lookahead",
        module="planning.lookahead",
        results="lookahead",
        minutes=4,
        graphs=("products-lite", "reddit-lite", "rmat-1m"),
    ),
    Part(name="tiers-gather", module="tiers.gather", results="tiers_gather", minutes=3),
    Part(name="tiers-disk", module="tiers.disk", results="tiers_disk", minutes=11, options=("--remove",)),
    Part(
        name="tiers-scale",
        module="tiers.scale",
        results="tiers_scale",
        minutes=45,
        options=("--limit", "8GiB", "--remove"),
    ),
    Part(name="tiers-whole", module="tiers.whole", results="tiers_whole", minutes=5, options=("--remove",)),
    Part(
        name="tiers-reordering",
        module="tiers.reordering",
        results="tiers_reordering",
        minutes=8,
        options=("--graphs", "{graphs}"),
        peers=True,
    ),
    Part(
        name="tiers-prediction",
        module="tiers.prediction",
        results="tiers_prediction",
        minutes=3,
        graphs=PREDICTED,
    ),
    Part(name="tiers-traffic", module="tiers.traffic", results="tiers_traffic", minutes=3, graphs=PREDICTED),
    Part(
        name="partitioning",
        module="distributed.partitioning",
        results="partitioning",
        minutes=6,
        graphs=CUT,
    ),
    Part(
        name="ranks",
        module="distributed.whole_graph",
        results="distributed_fullgraph",
        minutes=9,
        graphs=("arxiv-like", "reddit-lite"),
        peers=True,
        pyg=True,
    ),
    Part(name="ranks-shaped", module="distributed.shaped", results="distributed_shaped", minutes=7),
    Part(
        name="ranks-mini-batches",
        module="distributed.mini_batches",
        results="distributed_mini_batches",
        minutes=6,
    ),
    Part(name="ranks-rounding", module="distributed.rounding", results="distributed_rounding", minutes=2),
    Part(
        name="ranks-kept-rows",
        module="distributed.kept_rows",
        results="distributed_kept_rows",
        minutes=6,
    ),
    Part(name="datasets", module="graphs.embedded", results="datasets", minutes=5),
    Part(
        name="accuracy",
        module="accuracy.literature",
        results="accuracy",
        minutes=30,
        options=("--data", "{data}", "--jobs", "2"),
        archives=("cora", "citeseer", "amazon_computers", "coauthor_physics", "dblp_citation"),
    ),
    Part(
        name="accuracy-beside-pyg",
        module="accuracy.beside_pyg",
        results="full_accuracy",
        minutes=61,
        options=("--data", "{data}"),
        archives=("cora", "citeseer", "amazon_computers", "coauthor_physics"),
        pyg=True,
    ),
    Part(
        name="accuracy-relational",
        module="accuracy.relational",
        results="relational_accuracy",
        minutes=30,
        options=("--data", "{data}"),
        archives=("het_acm", "het_dblp"),
        pyg=True,
    ),
    Part(
        name="accuracy-knowledge",
        module="accuracy.knowledge",
        results="knowledge_accuracy",
        minutes=150,
        options=("--data", "{data}"),
        archives=("kg_fb15k237",),
    ),
    Part(
        name="training-knowledge",
        module="training.knowledge",
        results="knowledge_epoch",
        minutes=6,
        options=("--data", "{data}", "--repeats", "3"),
        archives=("kg_fb15k237",),
        pykeen=True,
    ),
    Part(
        name="accuracy-temporal",
        module="accuracy.temporal",
        results="temporal_links",
        minutes=20,
        options=("--data", "{data}"),
        archives=("tmp_mathoverflow",),
    ),
)
"""All parts, in the order they run. What needs a CUDA device is ``benchmarks/gpu_suite.sh``'s."""
