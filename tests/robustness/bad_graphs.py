"""Graphs whose arrays do not fit: shapes, dtypes, ids, values, splits, labels."""

from __future__ import annotations

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


@command(SHAPES, 3, "small.npz: x has 89 rows, but the graph has 90 nodes")
def short_features(w: Workplace):
    """Features with too few rows."""
    return w.train(w.npz(x=arrays()["x"][:-1]))


@command(SHAPES, 3, "small.npz: y has 80 rows, but the graph has 90 nodes")
def short_labels(w: Workplace):
    """Labels with too few rows."""
    return w.train(w.npz(y=arrays()["y"][:80]))


@call(SHAPES, DataError, "shape (2, num_edges); got (3, 2)", "pass edge_index.T")
def transposed_edges(w: Workplace):
    """An edge list with a row per edge."""
    Graph.from_edge_index(EDGES.T)


@call(SHAPES, DataError, "edge_index must hold integer node ids", "torch.float32")
def fractional_edges(w: Workplace):
    """An edge list of fractions."""
    Graph.from_edge_index(EDGES.float())


@call(SHAPES, DataError, "edge_index must hold numbers; got dtype <U1")
def text_edges(w: Workplace):
    """An edge list of text."""
    Graph.from_edge_index(np.array([["a", "b"], ["b", "a"]]))


@call(SHAPES, DataError, "two 1-d arrays of one length", "(3,) and (2,)")
def uneven_edges(w: Workplace):
    """Sources and destinations of different length."""
    Graph.from_edge_index((EDGES[0], EDGES[1, :2]))


@call(SHAPES, DataError, "x must have shape (num_nodes, num_features); got (3, 2, 2)")
def cubic_features(w: Workplace):
    """Features of three dimensions."""
    Graph.from_edge_index(EDGES, x=torch.zeros(3, 2, 2))


@call(SHAPES, DataError, "edge_weight", "(3,)", "(2,)")
def short_weights(w: Workplace):
    """A weight too few."""
    Graph.from_edge_index(EDGES, edge_weight=torch.ones(2))


@call(SHAPES, DataError, "y must have one or two dimensions")
def cubic_labels(w: Workplace):
    """Labels of three dimensions."""
    Graph.from_edge_index(EDGES, y=torch.zeros(3, 2, 2))


@call(SHAPES, DataError, "x", "complex")
def complex_features(w: Workplace):
    """Complex features."""
    Graph.from_edge_index(EDGES, x=torch.zeros(3, 2, dtype=torch.complex64))


@call(SHAPES, ConfigError, "a mask of input_nodes must have shape (90,); got (50,)")
def short_mask(w: Workplace):
    """A mask of another length."""
    NeighborLoader(graph(), [5, 5], torch.ones(50, dtype=torch.bool))


@call(SHAPES, ConfigError, "must be a graphbraid.Graph or a PyG Data or HeteroData; got dict")
def no_graph(w: Workplace):
    """Something that is no graph."""
    NeighborLoader({"edge_index": EDGES}, [5, 5])


# ---- ids


@command(IDS, 3, "small.npz", "[0, 90)", "position 5 holds 90")
def edge_out_of_range(w: Workplace):
    """An edge to a node past the last."""
    edges = arrays()["edge_index"]
    edges[1, 5] = 90
    return w.train(w.npz(edge_index=edges))


@call(IDS, DataError, "sources must be node ids in [0, 3)", "position 1 holds -1")
def negative_edge(w: Workplace):
    """An edge from node -1."""
    Graph.from_edge_index(torch.tensor([[0, -1, 2], [1, 2, 0]]), 3)


@command(IDS, 3, "split 'val' must be node ids in [0, 90)", "holds 90")
def split_out_of_range(w: Workplace):
    """A split that names a node past the last."""
    return w.train(w.npz(val_idx=np.array([40, 90])))


@call(IDS, ConfigError, "input_nodes must be ids in [0, 90); input_nodes[1] is 90")
def seeds_out_of_range(w: Workplace):
    """Seeds past the last node."""
    NeighborLoader(graph(), [5, 5], torch.tensor([3, 90]))


@call(IDS, ConfigError, "input_nodes must be a 1-d tensor of ids", "torch.float32")
def fractional_seeds(w: Workplace):
    """Seeds that are fractions."""
    NeighborLoader(graph(), [5, 5], torch.tensor([0.5]))


@command(IDS, 2, "nodes must be ids in [0, 90); nodes[1] is 90")
def predict_out_of_range(w: Workplace):
    """A prediction for a node past the last."""
    return w.predict("--nodes", w.file("ids.txt", "3\n90\n"))


@command(IDS, 3, "ids.txt: entry 2 is 'three', not a node id")
def predict_text_id(w: Workplace):
    """A prediction for something that is no id."""
    return w.predict("--nodes", w.file("ids.txt", "3\nthree\n"))


@command(IDS, 3, "ids.txt", "holds no node id")
def predict_nothing(w: Workplace):
    """Predictions for an empty list."""
    return w.predict("--nodes", w.file("ids.txt", "\n"))


@command(IDS, 3, "ids.npy: entry 1 is '1.5', not a node id")
def predict_fractions(w: Workplace):
    """Predictions for ids with fractions."""
    np.save(w.path("ids.npy"), np.array([1.5, 2.0]))
    return w.predict("--nodes", w.path("ids.npy"))


# ---- values


@command(VALUES, 3, "features must be finite; x[4, 2] is nan", "nan_to_num")
def nan_feature(w: Workplace):
    """A feature that is NaN."""
    return w.train(w.npz(x=features_with(np.nan)))


@command(VALUES, 3, "features must be finite; x[4, 2] is -inf")
def inf_feature(w: Workplace):
    """An infinite feature."""
    return w.train(w.npz(x=features_with(-np.inf)))


@command(VALUES, 3, "edge_weight must be finite; edge_weight[9] is nan")
def nan_weight(w: Workplace):
    """An edge weight that is NaN."""
    weight = np.ones(600, np.float32)
    weight[9] = np.nan
    return w.train(w.npz(edge_weight=weight))


@call(VALUES, DataError, "indptr must never fall; it goes from 3 at position 1 to 1 at 2")
def falling_indptr(w: Workplace):
    """An `indptr` that falls."""
    Graph(csc=Csc(torch.tensor([0, 3, 1, 3]), torch.tensor([0, 1, 2]), 3)).validate()


@call(VALUES, DataError, "indptr must run from 0 to the number of edges (3)", "to 5")
def long_indptr(w: Workplace):
    """An `indptr` that ends elsewhere."""
    Graph(csc=Csc(torch.tensor([0, 1, 2, 5]), torch.tensor([0, 1, 2]), 3))


@call(VALUES, DataError, "indices[2], an in-edge of node 2, is 9")
def wild_source(w: Workplace):
    """A source past the last node."""
    Graph(csc=Csc(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 9]), 3)).validate()


@call(VALUES, DataError, "every node of a split needs a label", "whose label is")
def nan_target(w: Workplace):
    """A regression's target that is NaN."""
    y = np.zeros(90, np.float32)
    y[3] = np.nan
    graph(y=y).validate()


# ---- splits and labels


@command(SPLITS, 3, "comes without a split into train, val and test", "--split-seed 0")
def no_splits(w: Workplace):
    """No splits."""
    return w.train(w.npz(train_idx=None, val_idx=None, test_idx=None))


@command(SPLITS, 3, "comes without a split into train", "--split-seed 0")
def no_train_split(w: Workplace):
    """No training split."""
    return w.train(w.npz(train_idx=None))


@command(SPLITS, 3, "split 'train' is empty; ", "at least one node id")
def empty_train_split(w: Workplace):
    """An empty training split."""
    return w.train(w.npz(train_idx=np.array([], np.int64)))


@command(SPLITS, 3, "splits must not overlap: node 29 is val[0] and in 'train'")
def overlapping_splits(w: Workplace):
    """Splits that share a node."""
    return w.train(w.npz(val_idx=np.arange(29, 60)))


@command(SPLITS, 3, "split 'train' must not hold a node twice; train[2] is node 5 again")
def node_twice_in_split(w: Workplace):
    """A node twice in a split."""
    return w.train(w.npz(train_idx=np.array([5, 6, 5])))


@command(SPLITS, 2, "patience=3", "split 'val'")
def patience_without_val(w: Workplace):
    """Early stopping without a validation split."""
    return w.train(w.npz(val_idx=None), "--patience", 3)


@command(SPLITS, 3, "class 0 has 30 labelled nodes; 20 for training")
def classes_too_small(w: Workplace):
    """A random split of classes that are too small."""
    return w.train(w.npz(), "--split-seed", 0)


@command(SPLITS, 3, "no split 'tset' (present:")
def mistyped_split_name(w: Workplace):
    """A split that the graph does not have."""
    return w.predict("--split", "tset")


@command(SPLITS, 3, "small.npz has no labels, and training needs some")
def no_labels(w: Workplace):
    """No labels."""
    return w.train(w.npz(y=None))


@command(SPLITS, 3, "small.npz has no features, and training needs some")
def no_features(w: Workplace):
    """No features."""
    return w.train(w.npz(x=None))


@command(SPLITS, 3, "no node has a label (all are -1 or -100)")
def unlabelled(w: Workplace):
    """Training nodes that all lack a label."""
    return w.train(w.npz(y=np.full(90, -1)))


@command(SPLITS, 3, "labels must be classes from 0, or -1 or -100 for none; y[7] is -5")
def class_below_range(w: Workplace):
    """A class below 0 that is no mark."""
    y = arrays()["y"]
    y[7] = -5
    return w.train(w.npz(y=y))


@call(SPLITS, DataError, "labels must be classes in [0, 2)", "y[2] is 2")
def class_above_range(w: Workplace):
    """A class past the last."""
    graph().validate(num_classes=2)


@command(SPLITS, 3, "all labels are class 0", "at least two classes")
def single_class(w: Workplace):
    """Labels that are all the same."""
    return w.train(w.npz(y=np.zeros(90, np.int64)))


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


@command(SPLITS, 3, "too few")
def share_split_too_small(w: Workplace):
    """A random split by class of multi-label data that is too small."""
    return w.convert(
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
    )
