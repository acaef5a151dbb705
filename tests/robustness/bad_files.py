"""Files: missing, empty, cut off, of another format, not readable, newer than this version."""

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


command(FILES, 3, "no dataset", "did you mean 'small.npz'")(
    "A dataset or file that does not exist, its name mistyped",
    lambda w: w.train(w.npz().with_name("smal.npz")),
)
command(FILES, 3, "'braid-10kk'", "did you mean 'braid-10k'?")(
    "An embedded dataset's name mistyped", lambda w: w.train("braid-10kk")
)
command(FILES, 3, "empty.npz", "truncated or damaged")(
    "A file of no bytes", lambda w: w.train(w.file("empty.npz", b""))
)
command(FILES, 3, "small.npz is truncated or damaged", "copy or download it again")(
    "An `.npz` that was cut off", lambda w: w.train(cut(w.npz()))
)


@command(FILES, 3, "small.npz is truncated or damaged (x: Bad CRC", "download it again")
def flipped_npz(w: Workplace):
    """An `.npz` with a bit flipped inside."""
    path = w.npz()
    data = bytearray(path.read_bytes())
    at = data.index(arrays()["x"].tobytes()) + 8
    data[at] ^= 1
    path.write_bytes(data)
    return w.train(path)


command(FILES, 3, "text.npz is not a usable .npz", "numpy.savez")(
    "Text in a file called `.npz`", lambda w: w.train(w.file("text.npz", "0 1\n1 2\n"))
)
command(FILES, 3, "holds Python objects, which are never loaded", "plain arrays")(
    "Python objects in an `.npz`", lambda w: w.train(w.npz(y=np.array([{"a": 1}] * 90, dtype=object)))
)


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


command(FILES, 3, "small.npz: it has both train_idx and train_mask; keep one")(
    "A split as ids and as a mask", lambda w: w.train(w.npz(train_mask=np.ones(90, bool)))
)


@command(FILES, 3, "x_indices must be 1-d integers; got float64")
def float_columns(w: Workplace):
    """Sparse features whose columns are no integers."""
    parts = {"x_data": np.ones(2), "x_indptr": np.repeat([0, 2], [90, 1]), "x_shape": np.array([90, 6])}
    return w.train(w.npz(x=None, x_indices=np.array([0.0, 1.7]), **parts))


command(FILES, 2, "data must name a dataset, a file or a folder; got ''")(
    "A name that is empty", lambda w: w.train("")
)


@command(FILES, 3, "is a single .npy array", "an .npz with edge_index")
def single_array(w: Workplace):
    """A single array instead of an `.npz`."""
    np.save(w.path("one.npy"), arrays()["edge_index"])
    return w.train(w.path("one.npy").rename(w.path("one.npz")))


command(FILES, 3, "small.npz has no edge_index; its keys are", "num_nodes")(
    "An `.npz` without `edge_index`", lambda w: w.train(w.npz(edge_index=None))
)
command(FILES, 2, "several node types have labels (0, 1)", "node_type")(
    "A heterogeneous graph with labels of several types",
    lambda w: w.train(w.npz(node_type=np.arange(90) // 45, x=None)),
)
command(FILES, 3, "graph.pickle is no kind of file that can be loaded", "these are: .npz")(
    "A file of an unknown kind", lambda w: w.train(w.file("graph.pickle", b"\x80\x04."))
)
command(FILES, 3, "edges.csv is a table", "`graphbraid convert`")(
    "A table where a graph is needed", lambda w: w.train(w.edges())
)


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


command(STORES, 3, "has store version 99", "reads version 4", "Upgrade graphbraid")(
    "Written by a newer graphbraid", lambda w: w.train(_described(w, version=99))
)
command(STORES, 3, "is not a graphbraid store")(
    "A `graph.json` of something else", lambda w: w.train(_described(w, format="other"))
)


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


command(STORES, 3, "indices must be source nodes in [0, 90)", "indices[7]")(
    "Edges damaged in a way that keeps the files' sizes",
    lambda w: w.train(save_unsound(w, "indices", 7, 1_000_000)),
)
command(STORES, 3, "indptr must never fall; it goes from")(
    "An `indptr` that falls", lambda w: w.train(save_unsound(w, "indptr", 5, 500))
)
command(STORES, 2, "an .npz file takes no option 'verify'")(
    "Verifying a file that is not a store", lambda w: w.train(w.npz(), "--verify")
)


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


command(TABLES, 3, "there is no file", "nowhere.csv")(
    "A table that does not exist", lambda w: w.convert(w.path("nowhere.csv"))
)
command(TABLES, 3, "edges.csv is empty")("An empty file", lambda w: w.convert(w.file("edges.csv", "")))
command(TABLES, 3, "edges.csv", "line 4", "column 'destination'", "'two'")(
    "An id that is no number, in a later row",
    lambda w: w.convert(w.edges("0,1", "1,2", "2,two"), "--nodes", w.nodes()),
)
command(TABLES, 3, "edges.csv", "line 3", "Expected 2 columns, got 1")(
    "A row with too few fields", lambda w: w.convert(w.edges("0,1", "1", "2,0"))
)
command(TABLES, 3, "edges.csv, line 3: column 'destination' is empty")(
    "An empty id", lambda w: w.convert(w.edges("0,1", "1,", "2,0"))
)
command(TABLES, 3, "edges.csv, line 3: column 'destination' is empty")(
    "An id that is an empty text", lambda w: w.convert(w.edges("a,b", 'b,""', "b,a"))
)


@command(TABLES, 3, "edges.txt, line 1: column '1' is empty", "are the columns aligned with several spaces?")
def aligned_columns(w: Workplace):
    """Columns aligned with spaces."""
    file = w.file("edges.txt", "a  b\nb  c\n")
    return w.convert(file, "--delimiter", " ", "--no-header", "--source", "0", "--destination", "1")


command(TABLES, 3, "the ids ' b' and 'b' differ by spaces only")(
    "Ids that differ by spaces only", lambda w: w.convert(w.edges("a, b", "b,a"))
)
command(TABLES, 3, "nodes.csv, line 3: column 'id' is empty")(
    "A node table with an empty id",
    lambda w: w.convert(
        w.edges("a,b"), "--nodes", w.nodes("a,1,1,red,train", ",1,1,red,val", "b,1,1,red,test")
    ),
)
command(TABLES, 3, "has no column 'src' (source)", "its columns are source, destination")(
    "A column that is not there", lambda w: w.convert(w.edges(), "--source", "src")
)
command(TABLES, 3, "edges.csv, line 3: column 'destination' names node 7", "add it there")(
    "An edge to a node that the node table lacks",
    lambda w: w.convert(w.edges("0,1", "1,7"), "--nodes", w.nodes()),
)
command(TABLES, 3, "nodes.csv, line 4: column 'id' has the id 0 again, first at", "line 2")(
    "A node twice",
    lambda w: w.convert(
        w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,1,1,red,val", "0,1,1,red,test")
    ),
)
command(TABLES, 3, "nodes.csv, line 3: feature column 'a' holds no number", "--fill-missing")(
    "An empty feature",
    lambda w: w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,,1,red,val")),
)
command(TABLES, 3, "nodes.csv, line 3: feature column 'b' is inf, not finite")(
    "A feature that is not finite",
    lambda w: w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1,1,red,train", "1,1,inf,red,val")),
)


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


command(TABLES, 2, "label and split are columns of the node table", "--nodes")(
    "A label without a node table", lambda w: w.convert(w.edges(), "--label", "class")
)
command(TABLES, 3, "edge weights must not be negative")(
    "A weight that is negative",
    lambda w: w.convert(w.edges("0,1,0.5", "1,2,-1", header="source,destination,w"), "--weight", "w"),
)
command(TABLES, 2, "delimiter must be one ASCII character", "'::'")(
    "A delimiter of two characters",
    lambda w: w.convert(w.file("edges.csv", "0::1\n"), "--delimiter", "::", "--no-header"),
)
command(TABLES, 3, "edges.csv has no rows", "no node table names the nodes")(
    "A table of no rows", lambda w: w.convert(w.file("edges.csv", "source,destination\n"))
)
command(TABLES, 3, "nodes.csv, line 2: feature column 'a' is inf, not finite")(
    "A feature beyond float32",
    lambda w: w.convert(w.edges("0,1"), "--nodes", w.nodes("0,1e39,1,red,train", "1,1,1,red,val")),
)


@command(TABLES, 3, "edges.parquet cannot be read", "the file is corrupted or this is not a parquet file")
def truncated_parquet(w: Workplace):
    """A Parquet file that was cut off."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"source": [0, 1], "destination": [1, 0]}), w.path("edges.parquet"))
    return w.convert(cut(w.path("edges.parquet")))


command(TABLES, 3, "edges.csv", "UTF")(
    "A table that is not UTF-8",
    lambda w: w.convert(w.file("edges.csv", b"source,destination\na,\xff\xfe\nb,a\n")),
)
command(TABLES, 3, "graph.graphml is no kind of file that can be loaded", ".csv")(
    "A file of another kind", lambda w: w.convert(w.file("graph.graphml", "<graphml/>"))
)
command(TABLES, 2, "--label is for tables")(
    "A table's option for a source that is none", lambda w: w.convert(w.npz(), "--label", "class")
)


@command(TABLES, 3, "features must be finite; x[4, 2] is inf", "nan_to_num")
def infinite_feature(w: Workplace):
    """Features that are not finite."""
    x = arrays()["x"]
    x[4, 2] = torch.inf
    return w.convert(w.npz(x=x))
