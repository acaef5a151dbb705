"""Reference of ``community_order`` and ``invert_order`` in ``csrc/graph/`` (locality.cpp, reorder.cpp)."""

import torch
from torch import Tensor


def invert_order(order: Tensor, inverse: Tensor) -> int:
    """Write each node's position in an order; return the first wrong position, or -1.

    That is the first that does not hold a node, or else the first that repeats one.
    """
    wild = ((order < 0) | (order >= order.numel())).nonzero()
    if wild.numel():
        return int(wild[0])
    inverse[order.long()] = torch.arange(order.numel(), dtype=inverse.dtype, device=order.device)
    by_node = order.argsort(stable=True)  # of equal nodes the earlier position comes first
    again = by_node[1:][order[by_node[1:]] == order[by_node[:-1]]]
    return int(again.min()) if again.numel() else -1


def community_order(indptr: Tensor, indices: Tensor, out: Tensor) -> None:
    """Write the nodes, ``(num_nodes,)`` int64, by community; see :func:`.orders.community_order`."""
    ends, sources = indptr.tolist(), indices.tolist()
    num_nodes, total = len(ends) - 1, float(len(sources))
    strength = [float(ends[v + 1] - ends[v]) for v in range(num_nodes)]
    root = list(range(num_nodes))
    joined: list[list[int]] = [[] for _ in range(num_nodes)]
    kept: list[dict[int, int]] = [{} for _ in range(num_nodes)]

    def community(v: int) -> int:
        while root[v] != v:
            v = root[v]
        return v

    for v in sorted(range(num_nodes), key=lambda v: ends[v + 1] - ends[v]):
        edges = [(u, 1) for u in sources[ends[v] : ends[v + 1]]]
        for child in reversed(joined[v]):
            edges += kept[child].items()
        weights: dict[int, int] = {}
        for neighbour, weight in edges:
            if (found := community(neighbour)) != v:
                weights[found] = weights.get(found, 0) + weight
        best, most = v, 0.0
        for found, weight in weights.items():
            gain = float(weight) * total - strength[v] * strength[found]
            if gain > most:
                best, most = found, gain
        if best != v:
            root[v] = best
            strength[best] += strength[v]
            joined[best].append(v)
            kept[v] = weights
    place = 0
    for top in range(num_nodes):
        todo = [top] if root[top] == top else []
        while todo:
            v = todo.pop()
            out[place] = v
            place += 1
            todo += reversed(joined[v])
