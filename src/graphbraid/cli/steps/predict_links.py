"""Predictions of a run on links: scores of pairs of nodes, or the likeliest links of nodes, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graphbraid.cli.steps.table_files import nodes_named, read_rows
from graphbraid.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from graphbraid.cli.run.saved_run import TrainedRun
    from graphbraid.cli.steps.table_files import Table
    from graphbraid.graph import EdgeType
    from graphbraid.train.inference.evaluate import EvalMode
    from graphbraid.train.step.links.runner import LinkRunner


class Wanted(NamedTuple):
    """Which links to predict, and how."""

    pairs: Path | None
    """File of pairs, or with ``top`` of sources. If None, the links of ``split``."""
    split: str | None
    """Split whose links, or with ``top`` whose sources, are predicted; by default test."""
    top: int | None
    """Number of likeliest destinations of each source. If None, pairs are scored."""
    known: bool
    """Whether the likeliest destinations include links that the graph has."""
    mode: EvalMode
    """Whether neighbourhoods are sampled or exact."""


def predicted_links(trained: TrainedRun, wanted: Wanted) -> tuple[Table, dict[str, Any]]:
    """Return the columns to write, and a summary.

    Raises:
        ConfigError: a split does not exist, or options do not go together.
        DataError: the file of pairs does not hold what is needed; says where.
    """
    if wanted.pairs is not None and wanted.split is not None:
        raise ConfigError("--pairs and --split both choose the links; give one of them")
    if wanted.known and wanted.top is None:
        raise ConfigError("--known lists links that the graph has among the likeliest; give --top as well")
    runner: Any = trained.trainer.runner
    names = _Names(trained, runner)
    ends, kind = _of_split(runner, wanted) if wanted.pairs is None else names.read(wanted)
    with_relation = kind if runner.num_relations is not None else None
    if wanted.top is None:
        scores = trained.trainer.predict_links(ends, with_relation, mode=wanted.mode)
        table = names.columns(ends, kind) | {"score": scores.numpy()}
        if trained.run.train.negatives == "binary":
            table["probability"] = scores.sigmoid().numpy()
    else:
        table = _likeliest(trained, wanted, names, ends[0], with_relation)
    return table, {"num_links": len(table["score"])}


def _of_split(runner: LinkRunner, wanted: Wanted) -> tuple[Tensor, Tensor | None]:
    """Return the links of a split, or with ``top`` their sources with their relations, each once."""
    import torch

    links = runner.labels
    at = links.split(wanted.split or "test")
    ends, kind = runner.data.ends.within(links.ends[:, at]), links.relations_at(at)
    if wanted.top is None:
        return ends, kind
    if kind is None or runner.num_relations is None:
        return torch.unique(ends[:1], dim=1), None
    both = torch.unique(torch.stack([ends[0], kind]), dim=1)
    return both[:1], both[1]


def _likeliest(
    trained: TrainedRun, wanted: Wanted, names: _Names, sources: Tensor, kind: Tensor | None
) -> Table:
    import torch

    assert wanted.top is not None
    found = trained.trainer.top_links(sources, kind, k=wanted.top, known=wanted.known, mode=wanted.mode)
    row, place = (found.nodes >= 0).nonzero().unbind(1)
    ends = torch.stack([sources[row], found.nodes[row, place]])
    table = names.columns(ends, None if kind is None else kind[row])
    return table | {"rank": (place + 1).numpy(), "score": found.scores[row, place].numpy()}


class _Names:
    """Nodes and relations by their names in the user's data."""

    def __init__(self, trained: TrainedRun, runner: LinkRunner) -> None:
        from graphbraid.cli.run.build import names_of

        graph, data = trained.trainer.graph, trained.run.settings.data
        types = runner.data.ends.types
        self._ids = [names_of(data, one if graph.is_typed else None).ids for one in types]
        self._knows_relations = runner.num_relations is not None
        self._relations = relation_names(graph.edge_types)

    def columns(self, ends: Tensor, kind: Tensor | None) -> Table:
        """Return source, relation if there are several, and destination of links."""
        import numpy as np

        shown = [
            nodes.numpy() if ids is None else np.asarray(ids.originals(nodes))
            for nodes, ids in zip(ends, self._ids, strict=True)
        ]
        middle = {} if kind is None else {"relation": np.asarray(self._relations)[kind.numpy()]}
        return {"source": shown[0], **middle, "destination": shown[1]}

    def read(self, wanted: Wanted) -> tuple[Tensor, Tensor | None]:
        """Read the pairs in a file, or with ``top`` the sources; with relations if there are several."""
        import torch

        path = wanted.pairs
        assert path is not None
        columns = ["source"] + ["relation"] * self._knows_relations + ["destination"] * (wanted.top is None)
        rows = read_rows(path, columns)
        kind = None
        if self._knows_relations:
            numbers = {name: number for number, name in enumerate(self._relations)}
            kind = torch.tensor([self._number(path, at, row[1], numbers) for at, row in enumerate(rows)])
        nodes = [nodes_named([row[0] for row in rows], path, self._ids[0])]
        if wanted.top is None:
            nodes.append(nodes_named([row[-1] for row in rows], path, self._ids[1]))
        return torch.stack(nodes), kind

    def _number(self, path: Path, at: int, given: Any, numbers: dict[str, int]) -> int:
        name = str(given)
        if name in numbers:
            return numbers[name]
        if name.isdecimal() and int(name) < len(numbers):
            return int(name)
        raise DataError(
            f"{path}: entry {at + 1} names the relation {name!r}, which the graph does not have."
            + did_you_mean(name, list(numbers))
        )


def relation_names(edge_types: Sequence[EdgeType]) -> list[str]:
    """Return how relations are called: by their name, or with their types where two have the same."""
    names = [one[1] for one in edge_types]
    return ["__".join(one) if names.count(one[1]) > 1 else one[1] for one in edge_types]
