"""Steps of models over node types and relations by DGL, as ``peers.steps`` for graphs of one type.

    python -m benchmarks.peers.typed_steps MODEL BATCHES [--hidden 64] [--repeats 3] [--threads 1]

``BATCHES`` is a file of :func:`torch.save`: a list of batches, each a dict with ``y``, the labels of the
seeds, ``seed_type``, and by node type or relation ``x``, local ``edges`` and the numbers of ``nodes`` and
``num_edges`` by hop. R-GCN has one node type, and its ``edge_type`` beside the edges. A step is forward, loss
and backward of two layers, on blocks that hold what the seeds need. What DGL can have ready is made before:
blocks, their formats, edges sorted by relation, and the factors of means.
"""

from __future__ import annotations

import dgl
import torch
from dgl import nn as dnn
from torch import nn

from benchmarks.peers.steps import options_of, print_steps

HEADS = 4


def counts_of(numbers: dict) -> dict:
    """Nodes or edges up to each hop."""
    return {one: torch.tensor(by_hop).cumsum(0).tolist() for one, by_hop in numbers.items()}


class Relational(nn.Module):
    """R-GCN."""

    def __init__(self, batch: dict, hidden: int, classes: int):
        super().__init__()
        [width] = {x.shape[1] for x in batch["x"].values()}
        widths, relations = [width, hidden, classes], batch["num_relations"]
        self.layers = nn.ModuleList(
            dnn.RelGraphConv(widths[at], widths[at + 1], relations) for at in range(2)
        )

    def prepare(self, batch: dict) -> list:
        """Return the rows, and for each layer a block, the relations of its edges and their factors."""
        [nodes], [ends] = counts_of(batch["nodes"]).values(), batch["edges"].values()
        [edges], [x] = counts_of(batch["num_edges"]).values(), batch["x"].values()
        made = []
        for hop in (1, 0):
            kinds, order = batch["edge_type"][: edges[hop]].sort(stable=True)
            source, target = ends[:, : edges[hop]][:, order]
            block = dgl.create_block((source, target), num_src_nodes=nodes[hop + 1], num_dst_nodes=nodes[hop])
            block.create_formats_()
            lists = target * batch["num_relations"] + kinds
            made.append((block, kinds, 1 / lists.bincount()[lists].float()[:, None]))
        return [x, made]

    def forward(self, prepared):
        """Return the rows of the seeds."""
        h, made = prepared
        for number, (layer, (block, kinds, factors)) in enumerate(zip(self.layers, made)):  # noqa: B905
            h = layer(block, h, kinds, factors, presorted=True)
            h = h.relu() if number == 0 else h
        return h


class Sage(nn.Module):
    """GraphSAGE for each relation, whose results are added."""

    def __init__(self, batch: dict, hidden: int, classes: int):
        super().__init__()
        [width] = {x.shape[1] for x in batch["x"].values()}
        widths, self.seed_type = [width, hidden, classes], batch["seed_type"]
        self.layers = nn.ModuleList(
            dnn.HeteroGraphConv(
                {"__".join(one): dnn.SAGEConv(widths[at], widths[at + 1], "mean") for one in batch["edges"]}
            )
            for at in range(2)
        )

    def prepare(self, batch: dict) -> list:
        """Return the rows by type and a block for each layer."""
        nodes, edges = counts_of(batch["nodes"]), counts_of(batch["num_edges"])
        blocks = []
        for hop in (1, 0):
            ends = {
                (source, "__".join((source, name, target)), target): tuple(
                    batch["edges"][source, name, target][:, : up_to[hop]]
                )
                for (source, name, target), up_to in edges.items()
            }
            sizes = ({one: up_to[place] for one, up_to in nodes.items()} for place in (hop + 1, hop))
            block = dgl.create_block(ends, *sizes)
            block.create_formats_()
            blocks.append(block)
        return [batch["x"], blocks]

    def forward(self, prepared):
        """Return the rows of the seeds."""
        h, blocks = prepared
        for number, (layer, block) in enumerate(zip(self.layers, blocks)):  # noqa: B905 - the peers' Python
            h = layer(block, h)
            h = {one: rows.relu() for one, rows in h.items()} if number == 0 else h
        return h[self.seed_type]


class Transformer(nn.Module):
    """HGT, which DGL has for a graph of one numbering: the nodes of a hop, of all types, stand together."""

    def __init__(self, batch: dict, hidden: int, classes: int):
        super().__init__()
        [width] = {x.shape[1] for x in batch["x"].values()}
        types = len(batch["x"]), len(batch["edges"])
        self.layers = nn.ModuleList(
            dnn.HGTConv(size, hidden // HEADS, HEADS, *types) for size in (width, hidden)
        )
        self.head = nn.Linear(hidden, classes)

    def prepare(self, batch: dict) -> list:
        """Return the rows, the types of nodes, and for each layer a block with the relations of its edges.

        The seeds' type comes first in its hop, so that the seeds have the first numbers.
        """
        nodes, edges = counts_of(batch["nodes"]), counts_of(batch["num_edges"])
        names = sorted(nodes, key=lambda one: one != batch["seed_type"])
        number_of = {one: torch.empty(up_to[-1], dtype=torch.long) for one, up_to in nodes.items()}
        sizes, rows, kinds, first = [], [], [], 0
        for hop in range(3):
            for kind, one in enumerate(names):
                begin, end = (0 if hop == 0 else nodes[one][hop - 1]), nodes[one][hop]
                number_of[one][begin:end] = torch.arange(first, first + end - begin)
                first += end - begin
                rows.append(batch["x"][one][begin:end])
                kinds.append(torch.full((end - begin,), kind))
            sizes.append(first)
        blocks = []
        for hop in (1, 0):
            lists = {one: batch["edges"][one][:, : up_to[hop]] for one, up_to in edges.items()}
            source = torch.cat([number_of[one[0]][ends[0]] for one, ends in lists.items()])
            target = torch.cat([number_of[one[2]][ends[1]] for one, ends in lists.items()])
            block = dgl.create_block((source, target), num_src_nodes=sizes[hop + 1], num_dst_nodes=sizes[hop])
            block.create_formats_()
            etypes = [torch.full((ends.shape[1],), kind) for kind, ends in enumerate(lists.values())]
            blocks.append((block, torch.cat(etypes)))
        return [torch.cat(rows), torch.cat(kinds), blocks]

    def forward(self, prepared):
        """Return the rows of the seeds."""
        h, kinds, blocks = prepared
        for number, (layer, (block, etypes)) in enumerate(zip(self.layers, blocks)):  # noqa: B905
            h = layer(block, h, kinds[: len(h)], etypes)
            h = h.relu() if number == 0 else h
        return self.head(h)


MODELS = {"R-GCN": Relational, "to_hetero SAGE": Sage, "HGT": Transformer}


def main() -> None:
    """Compute and time."""
    options = options_of(__doc__, list(MODELS))
    batches = torch.load(options.batches)
    model = MODELS[options.model](batches[0], options.hidden, options.classes)
    print_steps(options, batches, model.prepare, model)


if __name__ == "__main__":
    main()
