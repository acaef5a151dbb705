"""Orders of nodes: mistyped, of another length, no permutation; stores to reorder that are not there."""

from __future__ import annotations

import shutil

import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

from graphbraid import features
from graphbraid.datasets import save_store
from graphbraid.errors import DataError

ORDERS = "Reordering"


@command(
    ORDERS,
    "an order's name mistyped",
    2,
    "--by must be one of degree, rcm, communities, reverse_pagerank",
    "Did you mean 'communities'?",
)
def mistyped_by(w: Workplace):
    return "reorder", "--data", w.store(), "--by", "comunities", "--out", w.path("made")


@command(ORDERS, "the same while converting", 2, "--order must be one of degree, rcm", "mean 'degree'?")
def mistyped_order(w: Workplace):
    return w.convert(w.npz(), "--order", "degre")


@command(
    ORDERS,
    "converting in an order that needs a sampler",
    2,
    "--order must be one of degree",
    "`graphbraid reorder --by inclusion` takes",
)
def order_without_sampler(w: Workplace):
    return w.convert(w.npz(), "--order", "inclusion")


@command(ORDERS, "an order by reads that renumbering changes", 2, "--by=lookahead", "choose presampled")
def order_by_lookahead(w: Workplace):
    return "reorder", "--data", w.store(), "--by", "lookahead", "--out", w.path("made")


@command(ORDERS, "an order by training nodes where there are none", 3, "no split 'train'")
def order_without_training_nodes(w: Workplace):
    data = w.npz(train_idx=None, val_idx=None, test_idx=None)
    return "reorder", "--data", data, "--by", "inclusion", "--out", w.path("made")


@command(ORDERS, "a store that does not exist", 3, "there is no dataset, file or folder", "nowhere")
def nothing_to_reorder(w: Workplace):
    return "reorder", "--data", w.path("nowhere"), "--by", "degree", "--out", w.path("made")


@command(ORDERS, "a disk that is too small for the reordered store", 4, "storing the graph in", "are free")
def disk_too_small_to_reorder(w: Workplace):
    disk = w.small_disk(16 << 10)
    return "reorder", "--data", w.store(), "--by", "degree", "--out", disk / "store"


@command(
    ORDERS,
    "labels of before in a reordered store",
    3,
    "y.npy has changed since it was written",
    "from before its nodes were renumbered?",
)
def labels_of_before(w: Workplace):
    before = w.store()
    after = save_store(graph(), w.path("after"), order=torch.arange(90).flip(0))
    shutil.copy2(before / "y.npy", after / "y.npy")
    return w.train(after)


@command(
    ORDERS,
    "resume on a store that was reordered since",
    3,
    "was written while training on another graph",
    "was it renumbered (graphbraid reorder, convert --order) since?",
)
def resume_on_reordered(w: Workplace):
    run = w.run()
    save_store(graph(), w.path("store"), order=torch.arange(90).flip(0), if_exists="replace")
    return "train", "--resume", "--out", run, "--epochs", 3


@call(
    ORDERS,
    "an order that names a node twice",
    DataError,
    "order must name each of the 90 nodes once; order[5] is 0, as order[0] is, and node 5 is missing",
)
def repeated_node(w: Workplace):
    order = torch.arange(90)
    order[5] = 0
    features.reorder(graph(), order)


@call(ORDERS, "an order that names what is no node", DataError, "order[89] is 90, which is none of them")
def wild_node(w: Workplace):
    order = torch.arange(90)
    order[89] = 90
    features.reorder(graph(), order)


@call(ORDERS, "an order of another length", DataError, "each of the 90 nodes once; it has 89 entries")
def short_order(w: Workplace):
    save_store(graph(), w.path("made"), order=torch.arange(89))


@call(ORDERS, "values that have no order", DataError, "that of node 2 is nan")
def unordered_values(w: Workplace):
    features.order_by(torch.tensor([1.0, 2.0, torch.nan]))
