"""Calls of the compiled module, recorded while the operators run, and what can be made wrong of them."""

from collections.abc import Iterator
from typing import Any

import torch
from tests.ops.native_signatures import arguments_of
from torch import Tensor

from graphbraid import Csc, Graph, SparseFeatures, distributed, native, ops
from graphbraid.datasets.synthetic import BlockModel, generate
from graphbraid.distributed.partitioning.streaming import place
from graphbraid.features import reorder
from graphbraid.features.scores import walks
from graphbraid.fullgraph.lowering import locality
from graphbraid.graph.orders import community_order
from graphbraid.nn import gcn_norm
from graphbraid.ops import binary, gram_rounds, linear
from graphbraid.ops.attention import both_ways, dot_attention
from graphbraid.ops.distances import distances
from graphbraid.ops.gather import add_rows, put_rows, spread_rows, take_rows
from graphbraid.ops.kernels import backend
from graphbraid.ops.message_steps import MessageOp
from graphbraid.ops.spmm import TIES

Arguments = tuple[Any, ...]


class Recorder:
    """Stands in for the compiled module and keeps the first call of each function, before it is made."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: dict[str, Arguments] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            every = (*arguments, *_in_place(found, len(arguments), named))
            whole = all(not isinstance(a, Tensor) or a.numel() for a in every)
            if whole and name not in self.calls:
                self.calls[name] = tuple(a.clone() if isinstance(a, Tensor) else a for a in every)
            return found(*arguments, **named)

        return call


def _in_place(entry: Any, num_given: int, named: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments given by name in their places, up to the last one; those left out are None."""
    if not named:
        return ()
    names = [name for name, _ in arguments_of(entry)][num_given:]
    last = max(map(names.index, named))
    return tuple(map(named.get, names[: last + 1]))


def recorded(monkeypatch: Any) -> dict[str, Arguments]:
    """One sound call of each function, by its name."""
    recorder = Recorder(native.kernels())
    monkeypatch.setattr(native, "kernels", lambda: recorder)
    _run_operators()
    _run_edits()
    _run_walks()
    _run_partitions()
    return recorder.calls


def _run_operators() -> None:
    graph = Graph.from_edge_index([[3, 1, 2, 0, 4, 4], [0, 0, 1, 2, 3, 4]], 5, edge_weight=torch.rand(6))
    csc = graph.csc
    gcn_norm(Csc(csc.indptr, csc.indices, 5))
    x = torch.rand(5, 4, requires_grad=True)
    weight = torch.rand(6, requires_grad=True)
    ops.spmm(csc, x, weight=weight).sum().backward()
    ops.spmm(csc, x, "max").sum().backward()
    _first_of_the_largest(csc)
    ops.edge_softmax(csc, weight).sum().backward()
    ops.sddmm(csc, x, x).sum().backward()
    logits = torch.rand(5, 2, requires_grad=True)
    ops.gat_attention(csc, x, logits, logits, dropout=0.5).sum().backward()
    ops.gatv2_attention(csc, x, x, torch.rand(2, 2, requires_grad=True), dropout=0.5).sum().backward()
    dot_attention(csc, x, x, x, 2).sum().backward()
    ops.gine(csc, x, torch.rand(6, 4, requires_grad=True), loop_scale=1.0).sum().backward()
    ops.gine(csc, x, torch.rand(6, 4)).sum().backward()
    ones = torch.ones(4, requires_grad=True)
    ops.layer_norm(x, ones, ones).sum().backward()
    ops.batch_norm(x, weight=ones, bias=ones, training=True).sum().backward()
    ops.bias_act_dropout(x, ones, p=0.5).sum().backward()
    ops.gather_rows(x, torch.tensor([0, 2, 4]))
    ops.gather_rows(x.detach().half(), torch.tensor([0, 2, 4]), dtype=torch.float32)
    ops.gather_rows(x.detach().to(torch.int8), torch.tensor([0, 2, 4]), scale=torch.ones(5))
    ids = torch.tensor([0, 2, 4])
    linear.tall_product(x.detach(), torch.rand(4, 3), ids=ids)
    linear.tall_gram(torch.rand(3, 2), x.detach(), ids=ids)
    linear.transpose(x.detach(), out=torch.empty(4, 5))
    rounds = gram_rounds.GramRounds(torch.rand(5, 2), 4)
    for part in gram_rounds.rounds_of(5, most=5):
        rounds.add(part, x.detach())
    distances(x, torch.rand(3, 4), "moduli").sum().backward()
    ops.cross_entropy(torch.rand(3, 4, requires_grad=True), torch.tensor([0, 3, 1]), torch.ones(4))
    _every_argument_of_messages(csc)
    add_rows(torch.rand(3, 2), torch.tensor([1, 0, 1]), torch.rand(4, 2))
    spread_rows(torch.rand(3, 2), torch.tensor([2, -1, 0, 1], dtype=torch.int32), torch.empty(4, 2))
    indptr, columns, given = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 2]), torch.rand(3)
    places, by_row, by_column = torch.tensor([1, 0, 2]), torch.empty(3), torch.empty(3)
    where = places, 0.5, 7, by_row, by_column, torch.tensor([4, 9])
    backend(given).drop_values(indptr, columns, given, *where)
    take_rows(torch.rand(3, 2), torch.tensor([2, -1], dtype=torch.int32), torch.empty(2, 2))
    put_rows(torch.rand(2, 2), torch.tensor([2, -1], dtype=torch.int32), torch.empty(3, 2))
    bits = torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.int32)
    binary.bit_product(bits, torch.rand(7, 3), out=torch.empty(5, 3), factors=torch.ones(5))
    binary.bit_gram(torch.rand(7, 3), bits, out=torch.empty(3, 5), factors=torch.ones(7))
    both_ways(csc)


def _every_argument_of_messages(csc: Csc) -> None:
    """Steps of all that can be read, as a maximum, a sum by heads, and sums over all edges."""
    op = MessageOp
    steps = [(op.SOURCE, i) for i in range(4)] + [(op.DESTINATION, i) for i in range(10)]
    steps += [(op.EDGE, 0), (op.WEIGHT, 0), (op.PARAMETER, 0), (op.NUMBER, 0), (op.EDGE_NUMBER, 3)]
    rows = [[*step, 0, 0] for step in steps]
    for i in range(1, len(steps)):
        rows.append([op.ADD, len(rows) - 1 if i > 1 else 0, i, 0])
    last = len(rows) - 1
    rows += [[op.SUM_COLUMNS, last, 0, 1]]
    results = torch.tensor([[1, last, 0], [0, last + 1, 1], [0, last, 2], [0, last + 1, 3], [4, last, 0]])
    matrices = [torch.rand(csc.num_src, 4) for _ in range(4)] + [
        torch.rand(csc.num_dst, 4) for _ in range(10)
    ]
    native.kernels().reduce_messages(
        csc.indptr,
        csc.indices,
        torch.arange(csc.num_edges),
        False,
        2,
        torch.tensor(rows),
        torch.rand(len(rows)),
        *matrices,
        torch.rand(csc.num_edges, 4),
        torch.rand(csc.num_edges),
        torch.rand(3, 4),
        results,
        False,
        *(torch.rand(csc.num_dst, columns) for columns in (4, 2, 4, 2)),
        torch.zeros(csc.num_dst, 4, dtype=torch.int32),
        torch.rand(3, 4),
    )


def _first_of_the_largest(csc: Csc) -> None:
    """The maximum of sparse matrices, which only full-graph training runs."""
    x, grad, out = torch.rand(5, 4), torch.rand(5, 4), torch.empty(5, 4)
    winner = torch.empty(5, 4, dtype=torch.int32)
    kernels = native.kernels()
    kernels.spmm_max(csc.indptr, csc.indices, x, csc.weight, TIES.index("first"), out, winner)
    reverse, perm = csc.transpose()
    weight = csc.weight[perm]
    kernels.spmm_max_backward(
        reverse.indptr, reverse.indices, perm, csc.indptr, grad, weight, winner, torch.empty(5, 4)
    )


def _run_edits() -> None:
    graph = Graph.from_edge_index(
        [[3, 1, 2, 0, 4, 4], [0, 0, 1, 2, 3, 4]], 5, edge_weight=torch.rand(6), splits={"train": [0, 1]}
    )
    graph.symmetrized().with_self_loops().without_self_loops().csc.sort_rows()
    csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1], dtype=torch.int32), 2, torch.ones(3))
    Graph(csc=csc, edge_id=torch.arange(3)).without_duplicates()
    Graph.from_edge_index([[0, 0, 1], [0, 1, 1]], 2)  # in order already
    SparseFeatures.from_dense(torch.eye(3)).to_dense()
    community_order(csc)
    reorder(graph, torch.tensor([2, 0, 1, 4, 3]), sort_neighbors=True)
    locality.cached_share(csc, torch.tensor([0, 1]), 16)
    generate(BlockModel(num_nodes=64, num_edges=200, num_classes=2, blocks_per_class=2, num_features=4))


def _run_walks() -> None:
    """What scores rows by how often they are read."""
    csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1], dtype=torch.int32), 2, torch.rand(3))
    walks.out_degree(csc)
    chance, sums = torch.rand(2, dtype=torch.float64), torch.empty(2, dtype=torch.int64)
    kernels = native.kernels()
    kernels.push_draws(csc.indptr, csc.indices, csc.weight, chance, 1, False, sums, torch.ones_like(chance))
    kernels.count_ids(torch.tensor([1, 0, 1]), sums)
    ids, trees = torch.tensor([1, 0]), torch.tensor([0, 1])
    kernels.induced_edges(csc.indptr, csc.indices, ids, trees, ids, trees)
    kernels.relabel(ids, trees)
    kernels.own_places(torch.tensor([5]), torch.tensor([0]), ids, torch.empty_like(ids))


def _run_partitions() -> None:
    """What divides a graph among ranks."""
    csc = Csc(torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1], dtype=torch.int32), 2, torch.rand(3))
    chosen = distributed.partition(csc, 2, strategy="greedy")
    distributed.split(csc, chosen)
    rows, loads = (csc.indptr, csc.indices, csc.weight), csc.degrees()
    place(torch.arange(2), rows, loads, chosen.part_of.clone(), loads.clone(), most=3, price=0.1)


def resized(call: Arguments) -> Iterator[tuple[int, str, Tensor]]:
    """Each tensor of a call in other sizes: its position, the way, and the tensor."""
    for position, value in enumerate(call):
        if isinstance(value, Tensor):
            yield position, "shorter", value[:-1].clone()
            yield position, "longer", torch.cat([value, value[-1:]])
            if value.ndim > 1:
                yield position, "narrower", value[:, :-1].clone()
                yield position, "wider", torch.cat([value, value[:, -1:]], 1)
