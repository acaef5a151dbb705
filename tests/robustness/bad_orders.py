"""Orders of nodes: mistyped, of another length, no permutation; stores to reorder that are not there."""

import shutil

import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

from graphbraid import features
from graphbraid.datasets import save_store
from graphbraid.errors import DataError

ORDERS = "Reordering"


command(
    ORDERS, 2, "--by must be one of degree, rcm, communities, reverse_pagerank", "Did you mean 'communities'?"
)(
    "An order's name mistyped",
    lambda w: ("reorder", "--data", w.store(), "--by", "comunities", "--out", w.path("made")),
)
command(ORDERS, 2, "--order must be one of degree, rcm", "mean 'degree'?")(
    "The same while converting", lambda w: w.convert(w.npz(), "--order", "degre")
)
command(ORDERS, 2, "--order must be one of degree", "`graphbraid reorder --by inclusion` takes")(
    "Converting in an order that needs a sampler", lambda w: w.convert(w.npz(), "--order", "inclusion")
)
command(ORDERS, 2, "--by=lookahead", "choose presampled")(
    "An order by reads that renumbering changes",
    lambda w: ("reorder", "--data", w.store(), "--by", "lookahead", "--out", w.path("made")),
)


@command(ORDERS, 3, "no split 'train'")
def order_without_training_nodes(w: Workplace):
    """An order by training nodes where there are none."""
    data = w.npz(train_idx=None, val_idx=None, test_idx=None)
    return "reorder", "--data", data, "--by", "inclusion", "--out", w.path("made")


command(ORDERS, 3, "there is no dataset, file or folder", "nowhere")(
    "A store that does not exist",
    lambda w: ("reorder", "--data", w.path("nowhere"), "--by", "degree", "--out", w.path("made")),
)


@command(ORDERS, 4, "storing the graph in", "are free")
def disk_too_small_to_reorder(w: Workplace):
    """A disk that is too small for the reordered store."""
    disk = w.small_disk(16 << 10)
    return "reorder", "--data", w.store(), "--by", "degree", "--out", disk / "store"


@command(ORDERS, 3, "y.npy has changed since it was written", "from before its nodes were renumbered?")
def labels_of_before(w: Workplace):
    """Labels of before in a reordered store."""
    before = w.store()
    after = save_store(graph(), w.path("after"), order=torch.arange(90).flip(0))
    shutil.copy2(before / "y.npy", after / "y.npy")
    return w.train(after)


@command(
    ORDERS,
    3,
    "was written while training on another graph",
    "was it renumbered (graphbraid reorder, convert --order) since?",
)
def resume_on_reordered(w: Workplace):
    """Resume on a store that was reordered since."""
    run = w.run()
    save_store(graph(), w.path("store"), order=torch.arange(90).flip(0), if_exists="replace")
    return "train", "--resume", "--out", run, "--epochs", 3


@call(
    ORDERS,
    DataError,
    "order must name each of the 90 nodes once; order[5] is 0, as order[0] is, and node 5 is missing",
)
def repeated_node(w: Workplace):
    """An order that names a node twice."""
    order = torch.arange(90)
    order[5] = 0
    features.reorder(graph(), order)


@call(ORDERS, DataError, "order[89] is 90, which is none of them")
def wild_node(w: Workplace):
    """An order with the id of a node that does not exist."""
    order = torch.arange(90)
    order[89] = 90
    features.reorder(graph(), order)


call(ORDERS, DataError, "each of the 90 nodes once; it has 89 entries")(
    "An order of another length", lambda w: save_store(graph(), w.path("made"), order=torch.arange(89))
)
call(ORDERS, DataError, "that of node 2 is nan")(
    "Values that have no order", lambda w: features.order_by(torch.tensor([1.0, 2.0, torch.nan]))
)
