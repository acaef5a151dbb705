"""load(): loads a graph from any source, by name or path, with the changes that every source offers.

These are: directions, self-loops, repeated edges, feature scaling and random splits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphbraid.datasets.npy import CHANGED_EDGE_BYTES, require_memory
from graphbraid.datasets.npz import load_npz
from graphbraid.datasets.splits import split_nodes, with_drawn_splits
from graphbraid.datasets.store.on_disk import is_store, open_store
from graphbraid.datasets.synthetic import EMBEDDED, load_embedded
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.files.opening import expanded
from graphbraid.files.writing import restore
from graphbraid.graph import Columns, Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.scaled_features import Features
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.signatures import typed


@typed
def prepare(
    graph: Graph,
    *,
    symmetrize: bool | None = None,
    add_self_loops: bool | None = None,
    dedupe: bool | None = None,
    normalize_features: bool | None = None,
    split_seed: int | None = None,
    split: str | None = None,
    target: str | None = None,
) -> Graph:
    """Apply the requested changes to a loaded graph; None and False leave it as the source has it.

    Args:
        graph: The graph.
        symmetrize: Store both directions of every edge, each once; in a graph with types, add the reverse of
            every relation.
        add_self_loops: Add a self-loop to every node without one.
        dedupe: Keep one of several equal edges.
        normalize_features: Divide every feature row by the sum of its absolute values; zero rows stay zero.
        split_seed: Draw a new split with this seed: 20 training and 30 validation nodes per class for
            single-label graphs (:func:`random_split`), else 60 and 20 % of the nodes
            (:func:`random_share_split`); in a graph with types, of each type that has labels.
        split: Make this split instead, such as ``"stratified:0.6,0.2"`` or ``"time:2026-01-01,2026-02-01"``
            (:func:`split_nodes`); ``split_seed`` is the seed of its draws. Encoders of columns are then
            fitted anew, on the new training nodes alone.
        target: Node type and column that is learned, such as ``"customer.churn"``, in a graph of tables.

    Raises:
        ResourceError: Changing the edges needs more than the free memory, as it holds both graphs.
        DataError: The graph has no features to normalise, or no labels to split by.
    """
    if dedupe or symmetrize or add_self_loops:
        what = "changing the graph's edges as asked"
        require_memory(graph.num_edges * CHANGED_EDGE_BYTES, what)
    if dedupe:
        graph = graph.without_duplicates()
    if symmetrize:
        graph = graph.with_reverse_relations() if graph.is_typed else graph.symmetrized()
    if add_self_loops:
        graph = graph.with_self_loops()
    if normalize_features:
        graph.check_one_type("normalize_features")
        columns = dict(graph.schema.columns)
        columns[ONLY_NODE_TYPE] = replace(columns.get(ONLY_NODE_TYPE, Columns()), normalized=True)
        schema = replace(graph.schema, columns=columns)
        graph = graph.replace(x=normalized_rows(graph.x), schema=schema)
    if target is not None:
        from graphbraid.datasets.tables.encoded import with_target  # here: few graphs are of tables

        graph = with_target(graph, target)
    if split is not None:
        graph = split_nodes(graph, split, seed=split_seed or 0)
    elif split_seed is not None:
        graph = with_drawn_splits(graph, split_seed)
    drawn = split is not None or split_seed is not None
    if (drawn or target is not None) and graph.schema.has_tables:
        from graphbraid.datasets.tables.encoded import with_fitted_features  # here: few graphs are of tables

        graph = with_fitted_features(graph)
    return graph


def normalized_rows(x: Features | None) -> Tensor | SparseFeatures:
    """Divide each row by its absolute sum (float32, into a copy of its dtype); DataError for none or int8."""
    if x is None:
        raise DataError("normalize_features needs features; the graph has none")
    if isinstance(x, ScaledFeatures):
        raise DataError("normalize_features needs float features; normalise them before they are made int8")
    if isinstance(x, SparseFeatures):
        rows = torch.repeat_interleave(torch.arange(x.shape[0]), x.indptr.diff())
        sums = torch.zeros(x.shape[0]).index_add_(0, rows, x.values.float().abs())
        values = (x.values.float() / sums[rows].clamp_(min=torch.finfo(torch.float32).tiny)).to(
            x.values.dtype
        )
        return SparseFeatures(
            indptr=x.indptr, indices=x.indices, values=values, num_cols=x.num_cols, trusted=True
        )
    sums = x.abs().sum(dim=1, keepdim=True, dtype=torch.float32)
    return torch.where(sums > 0, x / sums, 0).to(x.dtype)


_DESCRIPTIONS = (".yaml", ".yml")
_TABLES = (".csv", ".tsv", ".parquet", ".pq", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of source: its name in messages, its reader and the options that it takes."""

    title: str
    load: Callable[..., Graph]
    options: tuple[str, ...]


def _load_described(path: str) -> Graph:
    from graphbraid.datasets.tables.typed_tables import from_typed_tables  # here: few sources are tables

    return from_typed_tables(path).graph


def _load_ogb(path: str, **options: Any) -> Graph:
    from graphbraid.datasets.ogb import load_ogb  # here: few sources are OGB's

    return load_ogb(path, **options)


def _is_ogb_folder(path: Path) -> bool:
    from graphbraid.datasets.ogb import is_ogb_folder  # here: few sources are folders

    return is_ogb_folder(path)


_NPZ = _Kind("an .npz file", load_npz, ("split_index", "with_types"))
_STORE = _Kind("an on-disk store", open_store, ("mmap", "verify"))
_OGB = _Kind("an OGB folder", _load_ogb, ("add_inverse_edge", "split_name"))
_DESCRIBED = _Kind("a description of tables", _load_described, ())
_EMBEDDED = _Kind("an embedded dataset", load_embedded, ("seed", "mmap", "cache"))


@typed
def load(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    symmetrize: bool | None = None,
    add_self_loops: bool | None = None,
    dedupe: bool | None = None,
    normalize_features: bool | None = None,
    split_seed: int | None = None,
    split: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Graph:
    """Load a graph by name or path.

    Args:
        name_or_path: An embedded dataset (``"braid-2m"``), an ``.npz`` file, the folder of an on-disk
            store, the folder of an OGB node dataset, or a ``.yaml`` file that describes the tables of a graph
            with types. With ``root`` also a bare name: ``"cora"`` finds
            ``cora.npz`` and ``"ogbn-arxiv"`` the folder ``ogbn_arxiv``.
        root: Folder that relative paths and names are looked up in. If None, the working directory.
        symmetrize: Store both directions of every edge. If None, edges stay as the source has them.
        add_self_loops: Add a self-loop to every node without one.
        dedupe: Keep one of several equal edges.
        normalize_features: Divide every feature row by the sum of its absolute values.
        split_seed: Replace the splits by random ones drawn with this seed.
        split: Replace the splits by this one, as in :func:`prepare`.
        target: Column to learn, as in :func:`prepare`.
        **options: Options for the kind of source: ``seed``, ``mmap``, ``cache`` (embedded); ``mmap``,
            ``verify`` (store); ``split_index``, ``with_types`` (npz); ``add_inverse_edge``,
            ``split_name`` (OGB).

    Raises:
        DataError: Nothing has that name (the message lists what there is), or what was found is broken.
        ConfigError: The kind of source does not take an option.
    """
    name = os.fspath(name_or_path)
    if not name.strip() or "\0" in name:
        raise ConfigError(f"data must name a dataset, a file or a folder; got {name!r}")
    if name in EMBEDDED:
        kind, source = _EMBEDDED, name
    else:
        path = _find(name, None if root is None else Path(root))
        kind, source = _kind_of(path), str(path)
    _check_options(kind, options)
    return prepare(
        kind.load(source, **options),
        symmetrize=symmetrize,
        add_self_loops=add_self_loops,
        dedupe=dedupe,
        normalize_features=normalize_features,
        split_seed=split_seed,
        split=split,
        target=target,
    )


def _find(name: str, root: Path | None) -> Path:
    place = root or Path()
    if root is not None and not root.is_dir():
        raise DataError(f"root {root} is not a folder")
    given = expanded(name)
    path = place / given
    candidates = [path]
    if path.name and not path.suffix:
        candidates += [path.with_name(f"{path.name}.npz"), path.with_name(path.name.replace("-", "_"))]
    for candidate in candidates:
        restore(candidate)
        if candidate.exists():
            return candidate
    raise DataError(_not_found(name, candidates[0]))


def _not_found(name: str, path: Path) -> str:
    folder = path.parent
    there = _loadable(folder)
    known = [*EMBEDDED, *there, *(Path(file).stem for file in there)]
    hint = did_you_mean(Path(name).name, known, joined=True)
    parts = [f"there is no dataset, file or folder {name!r}{hint}"]
    if not folder.is_dir():
        parts.append(f"the folder {folder} does not exist")
    else:
        shown = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
        parts.append(f"in {folder.absolute()} there is: {shown or 'nothing that can be loaded'}")
    parts.append(f"embedded datasets: {', '.join(EMBEDDED)}")
    return "; ".join(parts)


def _loadable(folder: Path) -> list[str]:
    """Return the names in ``folder`` that load() accepts."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [
        e.name for e in entries if e.suffix == ".npz" or (e.is_dir() and (is_store(e) or _is_ogb_folder(e)))
    ]


def _kind_of(path: Path) -> _Kind:
    if path.is_dir():
        if is_store(path):
            return _STORE
        if _is_ogb_folder(path):
            return _OGB
        there = ", ".join(_loadable(path)[:20])
        hint = f" In it there is: {there}." if there else ""
        raise DataError(
            f"the folder {path} is neither a store (no graph.json) nor an OGB dataset (no raw or "
            f"processed).{hint}"
        )
    if path.suffix == ".npz":
        return _NPZ
    if path.suffix in _DESCRIPTIONS:
        return _DESCRIBED
    if path.name.endswith(_TABLES):
        raise DataError(
            f"{path} is a table: graphbraid.datasets.from_tables(edges={str(path)!r}, nodes=...) "
            "reads it, or "
            "`graphbraid convert` turns it into a store"
        )
    raise DataError(
        f"{path} is no kind of file that can be loaded; these are: .npz files, on-disk stores, OGB folders, "
        f".yaml descriptions of tables by type, and tables ({', '.join(_TABLES)}) through `graphbraid "
        "convert`"
    )


def _check_options(kind: _Kind, options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in kind.options:
            hint = did_you_mean(option, kind.options, joined=True) or f"; it takes {', '.join(kind.options)}"
            raise ConfigError(f"{kind.title} takes no option {option!r}{hint}")
