"""Datasets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.fuzz.targets import Call, add, graph_use
from tests.fuzz.world import NODES, WIDTH, World

from graphbraid import datasets


def _tables(w: World) -> tuple[Any, Any]:
    import pandas as pd

    edges = pd.DataFrame(
        {
            "source": w.edge_index[0].numpy(),
            "destination": w.edge_index[1].numpy(),
            "w": w.edge_weight.numpy(),
        }
    )
    nodes = pd.DataFrame(
        {"id": np.arange(NODES), "a": w.x[:, 0].numpy(), "b": w.x[:, 1].numpy(), "label": w.y.numpy()}
    )
    return edges, nodes.assign(split=["train", "val", "test"] * (NODES // 3))


def _table_args(w: World) -> dict[str, Any]:
    edges, nodes = _tables(w)
    return {
        "edges": edges,
        "nodes": nodes,
        "weight": "w",
        "features": ["a", "b"],
        "label": "label",
        "split": "split",
    }


def _csv_args(w: World) -> dict[str, Any]:
    given = _table_args(w)
    for name in ("edges", "nodes"):
        given[name].to_csv(f"{name}.csv", index=False)
        given[name] = Path(f"{name}.csv")
    return given


def _parquet_args(w: World) -> dict[str, Any]:
    given = _table_args(w)
    for name in ("edges", "nodes"):
        given[name].to_parquet(f"{name}.parquet")
        given[name] = Path(f"{name}.parquet")
    return given


def _table_use(table: Any) -> Any:
    return [graph_use(table.graph), table.ids.values, table.class_names]


def _described(w: World) -> Path:
    """Tables of two node types and two relations in the folder of the case."""
    heads, tails = w.edge_index.tolist()
    rows = "".join(f"{u},{v}\n" for u, v in zip(heads, tails, strict=True))
    Path("one.csv").write_text(f"source,destination\n{rows}")
    Path("other.csv").write_text("source,destination,w,t\n0,x,0.5,3\n1,y,1,4\n")
    Path("a.csv").write_text("id,f\n" + "".join(f"{i},{i / 8}\n" for i in range(NODES)))
    Path("typed.yaml").write_text(
        "nodes: {a: {file: a.csv}, b: }\n"
        "edges:\n"
        "  - {relation: [a, to, a], file: one.csv}\n"
        "  - {relation: [a, in, b], file: other.csv, weight: w, time: t}\n"
    )
    return Path("typed.yaml")


def _frames(w: World) -> dict[str, Any]:
    """One node type and a relation of it, as data frames."""
    edges, nodes = _tables(w)
    return {
        "nodes": {"a": nodes},
        "edges": {("a", "to", "a"): edges},
        "roles": {"a": {"label": "label", "features": ["a", "b"]}, ("a", "to", "a"): {"weight": "w"}},
        "reverse": True,
        "now": 0.0,
    }


def _typed_use(made: Any) -> Any:
    graph = made.graph.validate()
    return [*graph.to_edge_indices().values(), graph.nodes_of("a").x, made.names["a"].ids.values]


def _saved(w: World) -> Path:
    return datasets.save_store(w.graph, "store")


def _npz(w: World) -> dict[str, Any]:
    return {
        "edge_index": w.edge_index.numpy(),
        "num_nodes": np.int64(NODES),
        "x": w.x.numpy(),
        "y": w.y.numpy(),
        **{f"{name}_idx": ids.numpy() for name, ids in w.splits.items()},
    }


def _write_npz(**arrays: Any) -> Path:
    np.savez("graph.npz", **arrays)
    return Path("graph.npz")


def _plain(array: Any) -> Any:
    found = np.asarray(array.detach().to_dense() if isinstance(array, torch.Tensor) else array)
    if found.dtype == object:
        try:
            pickle.dumps(found)
        except (TypeError, AttributeError, pickle.PicklingError):  # NumPy could not write it either
            return np.asarray(type(array).__name__)
    return found


def _load_npz(**arrays: Any) -> Any:
    return datasets.load_npz(
        _write_npz(**{name: _plain(array) for name, array in arrays.items() if array is not None})
    )


def _ogb_folder(w: World) -> Path:
    from tests.fuzz.file_kinds_brought import write_ogb

    write_ogb(Path(), w, binary=False)
    return Path("ogbn_mine")


class _Ogb:
    """A stand-in for NodePropPredDataset of the package ogb."""

    def __init__(self, w: World) -> None:
        graph = {"edge_index": w.edge_index.numpy(), "node_feat": w.x.numpy(), "num_nodes": NODES}
        self.items = [(graph, w.y.numpy()[:, None])]
        self.splits = {
            "train": w.splits["train"].numpy(),
            "valid": w.splits["val"].numpy(),
            "test": w.splits["test"].numpy(),
        }

    def __getitem__(self, place: int) -> Any:
        return self.items[place]

    def __len__(self) -> int:
        return 1

    def get_idx_split(self) -> Any:
        return self.splits


_NPZ_KEYS = (
    "edge_weight",
    "edge_attr",
    "train_mask",
    "val_mask",
    "train_masks",
    "node_type",
    "x_data",
    "x_shape",
    "num_classes",
)


_CALLS = {
    "datasets.from_typed_tables": lambda w: Call({"path": _described(w)}, _typed_use),
    "datasets.from_frames": lambda w: Call(_frames(w), _typed_use),
    "datasets.from_tables": lambda w: Call(_table_args(w), _table_use),
    "datasets.from_tables of CSV": lambda w: Call(
        _csv_args(w),
        _table_use,
        ("id_column", "id_type", "csv", "name", "source", "destination", "fill_missing"),
    ),
    "datasets.from_tables of Parquet": lambda w: Call(
        _parquet_args(w), _table_use, ("id_column", "id_type", "name")
    ),
    "datasets.CsvOptions": lambda w: Call(
        {"delimiter": ",", "header": True, "skip_rows": 0},
        lambda c: datasets.from_tables(**_csv_args(w), csv=c),
    ),
    "datasets.NodeIds": lambda w: Call(
        {"values": np.arange(9) * 3}, lambda i: [i.nodes_of([3, 6]), i.originals(torch.tensor([1])), repr(i)]
    ),
    "NodeIds.nodes_of": lambda w: Call(
        {"originals": [3, 6]}, function=datasets.NodeIds(np.arange(9) * 3).nodes_of
    ),
    "NodeIds.originals": lambda w: Call(
        {"nodes": torch.tensor([3, 6])}, function=datasets.NodeIds(np.arange(9) * 3).originals
    ),
    "datasets.prepare": lambda w: Call({"graph": w.graph, "symmetrize": True, "dedupe": True}, graph_use),
    "datasets.random_split": lambda w: Call(
        {"graph": w.graph, "train_per_class": 3, "val_per_class": 3, "seed": 0}
    ),
    "datasets.split_nodes": lambda w: Call(
        {"graph": w.graph, "how": "group:0.5,0.2", "seed": 0, "values": torch.arange(NODES) % 5}, graph_use
    ),
    "datasets.random_share_split": lambda w: Call({"graph": w.graph, "train": 0.5, "val": 0.2, "seed": 0}),
    "datasets.save_store": lambda w: Call(
        {
            "graph": w.graph,
            "path": Path("store"),
            "ids": datasets.NodeIds(np.arange(NODES) * 2),
            "class_names": list("abcd"),
        },
        lambda p: [datasets.open_store(p), str(datasets.open_names(p).class_names)],
    ),
    "datasets.Narrowing": lambda w: Call(
        {"dtype": "int8"},
        lambda n: [
            datasets.open_store(datasets.save_store(w.plain_graph, "narrow", features_dtype=n)).dense_x(),
            str(n.rounding),
        ],
    ),
    "datasets.open_store": lambda w: Call({"path": _saved(w), "mmap": True, "verify": True}, graph_use),
    "datasets.open_names": lambda w: Call({"path": _saved(w)}, str),
    "datasets.is_store": lambda w: Call({"path": _saved(w)}),
    "datasets.load_npz": lambda w: Call({"path": _write_npz(**_npz(w))}, graph_use),
    "datasets.load_npz of arrays": lambda w: Call(_npz(w), graph_use, _NPZ_KEYS, function=_load_npz),
    "datasets.load_npz of masks": lambda w: Call(
        {name: array for name, array in _npz(w).items() if "_idx" not in name}
        | {"train_mask": np.arange(NODES) < 20, "val_mask": np.arange(NODES) >= 40},
        graph_use,
        _NPZ_KEYS,
        function=_load_npz,
    ),
    "datasets.load_npz of sparse x": lambda w: Call(
        {name: array for name, array in _npz(w).items() if name != "x"}
        | {
            "x_data": w.sparse_x.values.numpy(),
            "x_indices": w.sparse_x.indices.numpy(),
            "x_indptr": w.sparse_x.indptr.numpy(),
            "x_shape": np.array([NODES, WIDTH]),
        },
        graph_use,
        function=_load_npz,
    ),
    "datasets.load": lambda w: Call(
        {"name_or_path": _saved(w)}, graph_use, ("mmap", "verify", "seed", "nope")
    ),
    "datasets.load_embedded": lambda w: Call(
        {"name": "braid-10k", "seed": 0, "cache": False}, lambda g: g.num_edges, fixed=("cache",)
    ),
    "datasets.load_ogb": lambda w: Call({"path": _ogb_folder(w)}, graph_use),
    "datasets.from_ogb": lambda w: Call({"dataset": _Ogb(w)}, graph_use),
    "datasets.from_pyg_dataset": lambda w: Call({"dataset": [w.data]}, graph_use),
}
add(_CALLS)
