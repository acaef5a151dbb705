"""Files: missing, empty, cut off, of another format, not readable, newer than this version."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from tests.robustness.cases import command
from tests.robustness.workplace import Workplace, arrays, cut, graph

from graphbraid.datasets import save_store
from graphbraid.graph.csc import Csc

FILES = "Files"
STORES = "On-disk stores"
TABLES = "Tables (`graphbraid convert`)"


@command(FILES, 3, "no dataset", "did you mean 'small.npz'")
def missing_file(w: Workplace):
    """A dataset or file that does not exist, its name mistyped."""
    return w.train(w.npz().with_name("smal.npz"))


@command(FILES, 3, "'braid-10kk'", "did you mean 'braid-10k'?")
def mistyped_dataset(w: Workplace):
    """An embedded dataset's name mistyped."""
    return w.train("braid-10kk")


@command(FILES, 3, "empty.npz", "truncated or damaged")
def empty_npz(w: Workplace):
    """A file of no bytes."""
    return w.train(w.file("empty.npz", b""))


@command(FILES, 3, "small.npz is truncated or damaged", "copy or download it again")
def truncated_npz(w: Workplace):
    """An `.npz` that was cut off."""
    return w.train(cut(w.npz()))


@command(FILES, 3, "small.npz is truncated or damaged (x: Bad CRC", "download it again")
def flipped_npz(w: Workplace):
    """An `.npz` with a bit flipped inside."""
    path = w.npz()
    data = bytearray(path.read_bytes())
    at = data.index(arrays()["x"].tobytes()) + 8
    data[at] ^= 1
    path.write_bytes(data)
    return w.train(path)


@command(FILES, 3, "text.npz is not a usable .npz", "numpy.savez")
def text_as_npz(w: Workplace):
    """Text in a file called `.npz`."""
    return w.train(w.file("text.npz", "0 1\n1 2\n"))


@command(FILES, 3, "holds Python objects, which are never loaded", "plain arrays")
def pickled_npz(w: Workplace):
    """Python objects in an `.npz`."""
    return w.train(w.npz(y=np.array([{"a": 1}] * 90, dtype=object)))


@command(FILES, 3, "small.npz is not a usable .npz (x: its header says float32 of shape (1000000000, 6)")
def lying_header(w: Workplace):
    """A header that says more than the file holds."""
    path = w.npz()
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["x.npy"] = members["x.npy"].replace(b"(90, 6), }" + b" " * 8, b"(1000000000, 6), }")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return w.train(path)


@command(FILES, 3, "small.npz has both train_idx and train_mask; keep one")
def split_twice(w: Workplace):
    """A split as ids and as a mask."""
    return w.train(w.npz(train_mask=np.ones(90, bool)))


@command(FILES, 3, "x_indices must be 1-d integers; got float64")
def float_columns(w: Workplace):
    """Sparse features whose columns are no integers."""
    parts = {"x_data": np.ones(2), "x_indptr": np.repeat([0, 2], [90, 1]), "x_shape": np.array([90, 6])}
    return w.train(w.npz(x=None, x_indices=np.array([0.0, 1.7]), **parts))


@command(FILES, 2, "data must name a dataset, a file or a folder; got ''")
def nameless_data(w: Workplace):
    """A name that is empty."""
    return w.train("")


@command(FILES, 3, "is a single .npy array", "an .npz with edge_index")
def single_array(w: Workplace):
    """A single array instead of an `.npz`."""
    np.save(w.path("one.npy"), arrays()["edge_index"])
    return w.train(w.path("one.npy").rename(w.path("one.npz")))


@command(FILES, 3, "small.npz has no edge_index; its keys are", "num_nodes")
def npz_without_edges(w: Workplace):
    """An `.npz` without `edge_index`."""
    return w.train(w.npz(edge_index=None))


@command(FILES, 2, "several node types have labels (0, 1)", "node_type")
def heterogeneous(w: Workplace):
    """A heterogeneous graph with labels of several types."""
    return w.train(w.npz(node_type=np.arange(90) // 45, x=None))


@command(FILES, 3, "graph.pickle is no kind of file that can be loaded", "these are: .npz")
def unknown_kind(w: Workplace):
    """A file of an unknown kind."""
    return w.train(w.file("graph.pickle", b"\x80\x04."))


@command(FILES, 3, "edges.csv is a table", "`graphbraid convert`")
def table_as_graph(w: Workplace):
    """A table where a graph is needed."""
    return w.train(w.edges())


@command(FILES, 3, "neither a store (no graph.json) nor an OGB", "In it there is: small.npz")
def folder_without_graph(w: Workplace):
    """A folder that holds no graph."""
    w.npz()
    return w.train(w.folder)


@command(FILES, 3, "graph.npz is neither a store")
def folder_called_npz(w: Workplace):
    """A folder called `.npz`."""
    w.path("graph.npz").mkdir()
    return w.train(w.path("graph.npz"))


@command(FILES, 4, "small.npz cannot be read: Permission denied")
def unreadable_file(w: Workplace):
    """A file that may not be read."""
    arguments = w.train(w.npz())
    w.lock(w.path("small.npz"))
    return arguments


@command(FILES, 3, "raw")
def broken_ogb(w: Workplace):
    """An OGB folder with a part missing."""
    (w.path("ogbn_mine") / "raw").mkdir(parents=True)
    return w.train(w.path("ogbn_mine"))


# ---- on-disk stores


@command(STORES, 3, "indices.npy is truncated", "store again")
def truncated_store(w: Workplace):
    """An array that was cut off."""
    folder = w.store()
    cut(folder / "indices.npy")
    return w.train(folder)


@command(STORES, 3, "x.npy of the store cannot be read (No such file", "store the graph again")
def store_without_array(w: Workplace):
    """An array that is missing."""
    folder = w.store()
    (folder / "x.npy").unlink()
    return w.train(folder)


@command(STORES, 3, "graph.json is not valid JSON", "store the graph again")
def truncated_manifest(w: Workplace):
    """`graph.json` cut off."""
    folder = w.store()
    cut(folder / "graph.json")
    return w.train(folder)


@command(STORES, 3, "has store version 99", "reads version 4", "Upgrade graphbraid")
def newer_store(w: Workplace):
    """Written by a newer graphbraid."""
    return w.train(_described(w, version=99))


@command(STORES, 3, "is not a graphbraid store")
def foreign_manifest(w: Workplace):
    """A `graph.json` of something else."""
    return w.train(_described(w, format="other"))


@command(STORES, 3, "x.npy has changed since it was written", "its checksum is")
def changed_store(w: Workplace):
    """Changed since it was written, found by `--verify`."""
    folder = w.store()
    path = folder / "x.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return w.train(folder, "--verify")


def save_unsound(w: Workplace, array: str, place: int, value: int) -> Path:
    """Save a graph whose edges nobody has checked, with one value of an array replaced."""
    sound = graph()
    arrays = {"indptr": sound.csc.indptr.clone(), "indices": sound.csc.indices.clone()}
    arrays[array][place] = value
    csc = Csc(**arrays, num_src=sound.num_nodes, trusted=True)
    return save_store(sound.replace(csc=csc, trusted=True), w.path("store"))


@command(STORES, 3, "indices must be source nodes in [0, 90)", "indices[7]")
def store_with_wild_edges(w: Workplace):
    """Edges damaged in a way that keeps the files' sizes."""
    return w.train(save_unsound(w, "indices", 7, 1_000_000))


@command(STORES, 3, "indptr must never fall; it goes from")
def store_with_falling_indptr(w: Workplace):
    """An `indptr` that falls."""
    return w.train(save_unsound(w, "indptr", 5, 500))


@command(STORES, 2, "an .npz file takes no option 'verify'")
def verify_npz(w: Workplace):
    """Verifying a file that is not a store."""
    return w.train(w.npz(), "--verify")


@command(STORES, 4, "it exists already", "--overwrite")
def store_exists(w: Workplace):
    """A name that is taken."""
    w.path("made").mkdir()
    return w.convert(w.npz())


@command(STORES, 4, "made exists and is not a graphbraid store, so it is not replaced")
def store_over_other_folder(w: Workplace):
    """Replacing a folder that is no store."""
    w.path("made").mkdir()
    w.file("made/thesis.txt", "years of work")
    return w.convert(w.npz(), "--overwrite")


def _described(w: Workplace, **changes: object):
    folder = w.store()
    manifest = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(
        json.dumps({k: v for k, v in manifest.items() if k != "checksum"} | changes)
    )
    return folder


# ---- tables


@command(TABLES, 3, "there is no file", "nowhere.csv")
def missing_table(w: Workplace):
    """A table that does not exist."""
    return w.convert(w.path("nowhere.csv"))


@command(TABLES, 3, "edges.csv is empty")
def empty_table(w: Workplace):
    """An empty file."""
    return w.convert(w.file("edges.csv", ""))


@command(TABLES, 3, "edges.csv", "line 4", "column 'destination'", "'two'")
def bad_id(w: Workplace):
    """An id that is no number, in a later row."""
    return w.convert(w.edges("0,1", "1,2", "2,two"), "--nodes", w.nodes())


@command(TABLES, 3, "edges.csv", "line 3", "Expected 2 columns, got 1")
def short_row(w: Workplace):
    """A row with too few fields."""
    return w.convert(w.edges("0,1", "1", "2,0"))


@command(TABLES, 3, "edges.csv, line 3: column 'destination' is empty")
def empty_id(w: Workplace):
    """An empty id."""
    return w.convert(w.edges("0,1", "1,", "2,0"))


@command(TABLES, 3, "edges.csv, line 3: column 'destination' is empty")
def blank_id(w: Workplace):
    """An id that is an empty text."""
    return w.convert(w.edges("a,b", 'b,""', "b,a"))


@command(TABLES, 3, "edges.txt, line 1: column '1' is empty", "are the columns aligned with several spaces?")
def aligned_columns(w: Workplace):
    """Columns aligned with spaces."""
    file = w.file("edges.txt", "a  b\nb  c\n")
    return w.convert(file, "--delimiter", " ", "--no-header", "--source", "0", "--destination", "1")


@command(TABLES, 3, "the ids ' b' and 'b' differ by spaces only")
def spaced_id(w: Workplace):
    """Ids that differ by spaces only."""
    return w.convert(w.edges("a, b", "b,a"))


@command(TABLES, 3, "nodes.csv, line 3: column 'id' is empty")
def blank_node(w: Workplace):
    """A node table with an empty id."""
    return w.convert(w.edges("a,b"), "--nodes", w.nodes("a,1,1,red,train", ",1,1,red,val", "b,1,1,red,test"))


@command(TABLES, 3, "has no column 'src' (source)", "its columns are source, destination")
def missing_column(w: Workplace):
    """A column that is not there."""
    return w.convert(w.edges(), "--source", "src")


@command(TABLES, 3, "edges.csv, line 3: column 'destination' names node 7", "add it there")
def unknown_node(w: Workplace):
    """An edge to a node that the node table lacks."""
    return w.convert(w.edges("0,1", "1,7"), "--nodes", w.nodes())


@command(TABLES, 3, "nodes.csv, line 4: column 'id' has the id 0 again, first at", "line 2")
def node_twice(w: Workplace):
    """A node twice."""
    return w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,1,1,red,val", "0,1,1,red,test"))


@command(TABLES, 3, "nodes.csv, line 3: feature column 'a' holds no number", "--fill-missing")
def empty_feature(w: Workplace):
    """An empty feature."""
    return w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,,1,red,val"))


@command(TABLES, 3, "nodes.csv, line 3: feature column 'b' is inf, not finite")
def inf_in_table(w: Workplace):
    """A feature that is not finite."""
    return w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,1,inf,red,val"))


@command(TABLES, 3, "nodes.csv", "line 4", "column 'a'", "'high'")
def text_feature(w: Workplace):
    """Text where a feature should be."""
    rows = ("0,1,1,red,train", "1,2,1,red,val", "2,high,1,red,test")
    return w.convert(w.edges("0,1"), "--nodes", w.nodes(*rows), "--features", "a,b")


@command(TABLES, 3, "nodes.csv, line 3: column 'split' is 'trian'", "train, val, test or nothing")
def mistyped_split(w: Workplace):
    """An unknown split."""
    nodes = w.nodes("0,1,1,red,train", "1,1,1,red,trian")
    return w.convert(w.edges("0,1"), "--nodes", nodes, "--label", "class", "--split", "split")


@command(TABLES, 2, "label and split are columns of the node table", "--nodes")
def label_without_nodes(w: Workplace):
    """A label without a node table."""
    return w.convert(w.edges(), "--label", "class")


@command(TABLES, 3, "edge weights must not be negative")
def negative_weight(w: Workplace):
    """A weight that is negative."""
    return w.convert(w.edges("0,1,0.5", "1,2,-1", header="source,destination,w"), "--weight", "w")


@command(TABLES, 2, "delimiter must be one ASCII character", "'::'")
def long_delimiter(w: Workplace):
    """A delimiter of two characters."""
    return w.convert(w.file("edges.csv", "0::1\n"), "--delimiter", "::", "--no-header")


@command(TABLES, 3, "edges.csv has no rows", "no node table names the nodes")
def table_without_rows(w: Workplace):
    """A table of no rows."""
    return w.convert(w.file("edges.csv", "source,destination\n"))


@command(TABLES, 3, "nodes.csv, line 2: feature column 'a' is inf, not finite")
def huge_feature(w: Workplace):
    """A feature beyond float32."""
    return w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1e39,1,red,train", "1,1,1,red,val"))


@command(TABLES, 3, "edges.parquet cannot be read", "the file is corrupted or this is not a parquet file")
def truncated_parquet(w: Workplace):
    """A Parquet file that was cut off."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"source": [0, 1], "destination": [1, 0]}), w.path("edges.parquet"))
    return w.convert(cut(w.path("edges.parquet")))


@command(TABLES, 3, "edges.csv", "UTF")
def not_utf8(w: Workplace):
    """A table that is not UTF-8."""
    return w.convert(w.file("edges.csv", b"source,destination\na,\xff\xfe\nb,a\n"))


@command(TABLES, 3, "graph.graphml is no kind of file that can be loaded", ".csv")
def unknown_table(w: Workplace):
    """A file of another kind."""
    return w.convert(w.file("graph.graphml", "<graphml/>"))


@command(TABLES, 2, "--label is for tables")
def label_for_npz(w: Workplace):
    """A table's option for a source that is none."""
    return w.convert(w.npz(), "--label", "class")


@command(TABLES, 3, "features must be finite; x[4, 2] is inf", "nan_to_num")
def infinite_feature(w: Workplace):
    """Features that are not finite."""
    x = arrays()["x"]
    x[4, 2] = torch.inf
    return w.convert(w.npz(x=x))
