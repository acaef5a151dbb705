"""Graphs whose arrays do not fit: shapes, dtypes, ids, values, splits, labels."""

import numpy as np
import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, arrays, features_with, graph

from graphbraid import Graph
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.loader import NeighborLoader

SHAPES = "Shapes and dtypes"
IDS = "Ids out of range"
VALUES = "Values"
SPLITS = "Splits and labels"

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


# ---- shapes and dtypes


command(SHAPES, 3, "small.npz: x has 89 rows, but the graph has 90 nodes")(
    "Features with too few rows", lambda w: w.train(w.npz(x=arrays()["x"][:-1]))
)
command(SHAPES, 3, "small.npz: y has 80 rows, but the graph has 90 nodes")(
    "Labels with too few rows", lambda w: w.train(w.npz(y=arrays()["y"][:80]))
)
call(SHAPES, DataError, "shape (2, num_edges); got (3, 2)", "pass edge_index.T")(
    "An edge list with a row per edge", lambda w: Graph.from_edge_index(EDGES.T)
)
call(SHAPES, DataError, "edge_index must hold integer node ids", "torch.float32")(
    "An edge list of fractions", lambda w: Graph.from_edge_index(EDGES.float())
)
call(SHAPES, DataError, "edge_index must hold numbers; got dtype <U1")(
    "An edge list of text", lambda w: Graph.from_edge_index(np.array([["a", "b"], ["b", "a"]]))
)
call(SHAPES, DataError, "two 1-d arrays of one length", "(3,) and (2,)")(
    "Sources and destinations of different length", lambda w: Graph.from_edge_index((EDGES[0], EDGES[1, :2]))
)
call(SHAPES, DataError, "x must have shape (num_nodes, num_features); got (3, 2, 2)")(
    "Features of three dimensions", lambda w: Graph.from_edge_index(EDGES, x=torch.zeros(3, 2, 2))
)
call(SHAPES, DataError, "edge_weight", "(3,)", "(2,)")(
    "A weight too few", lambda w: Graph.from_edge_index(EDGES, edge_weight=torch.ones(2))
)
call(SHAPES, DataError, "y must have one or two dimensions")(
    "Labels of three dimensions", lambda w: Graph.from_edge_index(EDGES, y=torch.zeros(3, 2, 2))
)
call(SHAPES, DataError, "x", "complex")(
    "Complex features", lambda w: Graph.from_edge_index(EDGES, x=torch.zeros(3, 2, dtype=torch.complex64))
)
call(SHAPES, ConfigError, "a mask of input_nodes must have shape (90,); got (50,)")(
    "A mask of another length", lambda w: NeighborLoader(graph(), [5, 5], torch.ones(50, dtype=torch.bool))
)
call(SHAPES, ConfigError, "must be a graphbraid.Graph or a PyG Data or HeteroData; got dict")(
    "Something that is no graph", lambda w: NeighborLoader({"edge_index": EDGES}, [5, 5])
)


# ---- ids


@command(IDS, 3, "small.npz", "[0, 90)", "position 5 holds 90")
def edge_out_of_range(w: Workplace):
    """An edge to a node past the last."""
    edges = arrays()["edge_index"]
    edges[1, 5] = 90
    return w.train(w.npz(edge_index=edges))


call(IDS, DataError, "sources must be node ids in [0, 3)", "position 1 holds -1")(
    "An edge from node -1", lambda w: Graph.from_edge_index(torch.tensor([[0, -1, 2], [1, 2, 0]]), 3)
)
command(IDS, 3, "split 'val' must be node ids in [0, 90)", "holds 90")(
    "A split that names a node past the last", lambda w: w.train(w.npz(val_idx=np.array([40, 90])))
)
call(IDS, ConfigError, "input_nodes must be ids in [0, 90); input_nodes[1] is 90")(
    "Seeds past the last node", lambda w: NeighborLoader(graph(), [5, 5], torch.tensor([3, 90]))
)
call(IDS, ConfigError, "input_nodes must be a 1-d tensor of ids", "torch.float32")(
    "Seeds that are fractions", lambda w: NeighborLoader(graph(), [5, 5], torch.tensor([0.5]))
)
command(IDS, 2, "nodes must be ids in [0, 90); nodes[1] is 90")(
    "A prediction for a node past the last", lambda w: w.predict("--nodes", w.file("ids.txt", "3\n90\n"))
)
command(IDS, 3, "ids.txt: entry 2 is 'three', not a node id")(
    "A prediction for something that is no id",
    lambda w: w.predict("--nodes", w.file("ids.txt", "3\nthree\n")),
)
command(IDS, 3, "nowhere.txt cannot be read")(
    "A file of ids that does not exist", lambda w: w.predict("--nodes", w.path("nowhere.txt"))
)
command(IDS, 3, "ids.txt", "holds no node id")(
    "Predictions for an empty list", lambda w: w.predict("--nodes", w.file("ids.txt", "\n"))
)


@command(IDS, 3, "ids.npy: entry 1 is '1.5', not a node id")
def predict_fractions(w: Workplace):
    """Predictions for ids with fractions."""
    np.save(w.path("ids.npy"), np.array([1.5, 2.0]))
    return w.predict("--nodes", w.path("ids.npy"))


# ---- values


command(VALUES, 3, "features must be finite; x[4, 2] is nan", "nan_to_num")(
    "A feature that is NaN", lambda w: w.train(w.npz(x=features_with(np.nan)))
)
command(VALUES, 3, "features must be finite; x[4, 2] is -inf")(
    "An infinite feature", lambda w: w.train(w.npz(x=features_with(-np.inf)))
)


@command(VALUES, 3, "edge_weight must be finite; edge_weight[9] is nan")
def nan_weight(w: Workplace):
    """An edge weight that is NaN."""
    weight = np.ones(600, np.float32)
    weight[9] = np.nan
    return w.train(w.npz(edge_weight=weight))


call(VALUES, DataError, "indptr must never fall; it goes from 3 at position 1 to 1 at 2")(
    "An `indptr` that falls",
    lambda w: Graph(csc=Csc(torch.tensor([0, 3, 1, 3]), torch.tensor([0, 1, 2]), 3)).validate(),
)
call(VALUES, DataError, "indptr must run from 0 to the number of edges (3)", "to 5")(
    "An `indptr` that ends elsewhere",
    lambda w: Graph(csc=Csc(torch.tensor([0, 1, 2, 5]), torch.tensor([0, 1, 2]), 3)),
)
call(VALUES, DataError, "indices[2], an in-edge of node 2, is 9")(
    "A source past the last node",
    lambda w: Graph(csc=Csc(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 9]), 3)).validate(),
)


@call(VALUES, DataError, "every node of a split needs a label", "whose label is")
def nan_target(w: Workplace):
    """A regression's target that is NaN."""
    y = np.zeros(90, np.float32)
    y[3] = np.nan
    graph(y=y).validate()


# ---- splits and labels


command(SPLITS, 3, "comes without a split into train, val and test", "--split-seed 0")(
    "No splits", lambda w: w.train(w.npz(train_idx=None, val_idx=None, test_idx=None))
)
command(SPLITS, 3, "comes without a split into train", "--split-seed 0")(
    "No training split", lambda w: w.train(w.npz(train_idx=None))
)
command(SPLITS, 3, "split 'train' is empty; ", "at least one node id")(
    "An empty training split", lambda w: w.train(w.npz(train_idx=np.array([], np.int64)))
)
command(SPLITS, 3, "splits must not overlap: node 29 is val[0] and in 'train'")(
    "Splits that share a node", lambda w: w.train(w.npz(val_idx=np.arange(29, 60)))
)
command(SPLITS, 3, "split 'train' must not hold a node twice; train[2] is node 5 again")(
    "A node twice in a split", lambda w: w.train(w.npz(train_idx=np.array([5, 6, 5])))
)
command(SPLITS, 2, "patience=3", "split 'val'")(
    "Early stopping without a validation split", lambda w: w.train(w.npz(val_idx=None), "--patience", 3)
)
command(SPLITS, 3, "class 0 has 30 labelled nodes; 20 for training")(
    "A random split of classes that are too small", lambda w: w.train(w.npz(), "--split-seed", 0)
)
command(SPLITS, 3, "no split 'tset' (present:")(
    "A split that the graph does not have", lambda w: w.predict("--split", "tset")
)
command(SPLITS, 3, "small.npz has no labels, and training needs some")(
    "No labels", lambda w: w.train(w.npz(y=None))
)
command(SPLITS, 3, "small.npz has no features, and training needs some")(
    "No features", lambda w: w.train(w.npz(x=None))
)
command(SPLITS, 3, "no node has a label (all are -1 or -100)")(
    "Training nodes that all lack a label", lambda w: w.train(w.npz(y=np.full(90, -1)))
)


@command(SPLITS, 3, "labels must be classes from 0, or -1 or -100 for none; y[7] is -5")
def class_below_range(w: Workplace):
    """A class below 0 that is no mark."""
    y = arrays()["y"]
    y[7] = -5
    return w.train(w.npz(y=y))


call(SPLITS, DataError, "labels must be classes in [0, 2)", "y[2] is 2")(
    "A class past the last", lambda w: graph().validate(num_classes=2)
)
command(SPLITS, 3, "all labels are class 0", "at least two classes")(
    "Labels that are all the same", lambda w: w.train(w.npz(y=np.zeros(90, np.int64)))
)
command(SPLITS, 3, "all labels are class 1", "at least two classes")(
    "Labels that are all the same, such as true", lambda w: w.train(w.npz(y=np.ones(90, np.int64)))
)


@command(SPLITS, 3, "labels go up to 1000000000000, with 90 nodes", "numbered from 0 without gaps")
def enormous_class(w: Workplace):
    """Classes that are codes or years."""
    y = arrays()["y"]
    y[7] = 10**12
    return w.train(w.npz(y=y))


@command(SPLITS, 2, "metrics: a multi-label task has f1_micro", "got 'f1'")
def metric_of_other_task(w: Workplace):
    """A metric of another task."""
    y = np.eye(3, dtype=np.float32)[arrays()["y"]]
    return w.train(w.npz(y=y), "--set", "metrics=[f1]")


@command(SPLITS, 2, "class_weights='balanced' needs classes", "regression")
def weights_for_regression(w: Workplace):
    """Class weights for a regression."""
    y = np.linspace(0, 1, 90).astype(np.float32)
    return w.train(w.npz(y=y), "--set", "class_weights=balanced")


command(SPLITS, 3, "too few")(
    "A random split by class of multi-label data that is too small",
    lambda w: w.convert(
        w.npz(
            num_nodes=np.int64(2),
            edge_index=np.array([[0], [1]]),
            x=None,
            y=np.array([0.5, 1.0], np.float32),
            train_idx=None,
            val_idx=None,
            test_idx=None,
        ),
        "--split-seed",
        0,
    ),
)
