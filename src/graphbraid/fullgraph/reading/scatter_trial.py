"""The trial of messages of a plain ``forward``: on small graphs they must come to what is written.

The scatter is computed as written, and as a sum, mean, maximum or minimum of messages over the edges of each
node: with the messages of the model, and with any others, since those of the model may hide a difference. If
the results differ, the scatter runs as written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import SHARES, TIES_OF_MESSAGES, shares_of
from graphbraid.fullgraph.reading.calling import EDGE_ATTR, EDGES_TARGET, WEIGHTS_TARGET
from graphbraid.fullgraph.reading.edge_calls import MOST_COUNTED
from graphbraid.fullgraph.reading.plain_messages import FIRST, PlainPropagation
from graphbraid.fullgraph.reading.row_dependence import RowWatch
from graphbraid.fullgraph.reading.tracer import TracedCalls
from graphbraid.nn.module_traits import copy_of
from graphbraid.ops.spmm import Ties

_SIZES = ((9, 30), (14, 41))
"""Nodes and edges of the graphs of a trial."""


@dataclass(frozen=True, kw_only=True)
class ScatterTrial:
    """What messages of a plain forward are shown by.

    Attributes:
        node: the call of ``propagate``.
        shapes: by argument that gets rows of nodes, the shape of a row.
        value_of: returns what stands for a call that was read, on a number of nodes; None for other calls.
        trace: the trace.
        edge_channels: number of edge features.
    """

    node: fx.Node
    shapes: Mapping[str, tuple[int, ...]]
    value_of: Callable[[fx.Node, int], Any]
    trace: TracedCalls
    edge_channels: int

    def shown(self) -> PlainPropagation:
        """Return the messages with their ties, after showing that they come to what is written.

        Raises:
            NotLoweredError: they do not.
        """
        of = self._of
        for sizes in _SIZES:
            try:
                with torch.random.fork_rng([]), torch.no_grad(), RowWatch(0):
                    held = self._graph(*sizes)
                    leaves = dict(held)
                    messages, ours = self._messages(held, sizes[0])
                    theirs = self._run(of.written, held, sizes[0])
                    alike = self._takes_rows(held) and self._reduces(leaves, held, sizes[0])
            except ir.NotLoweredError:
                raise
            except Exception as error:  # whatever the user's code may raise
                raise of.refuse(f"it cannot be run on a small graph ({error})") from error
            if not isinstance(theirs, Tensor) or ours.shape != theirs.shape:
                what = f"it gives no {tuple(ours.shape)} of {sizes[0]} nodes, if the last have no edges"
                raise of.refuse(what, "the number of nodes, as dim_size=x.size(0)")
            if not (alike and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)):
                raise of.refuse(f"it is not the {of.aggr} over the edges of each node")
        of = replace(of, ties=self._ties(held)) if of.reduced()[0] in ("max", "min") else of
        if messages.ndim > 1:
            return of
        graph = fx.Graph()
        out = graph.graph_copy(of.graph, {})
        graph.output(graph.call_method("unsqueeze", (out, -1)))
        return replace(of, graph=graph, is_vector=True)

    @property
    def _of(self) -> PlainPropagation:
        return cast("PlainPropagation", self.node.target)

    def _rows(self) -> dict[str, fx.Node]:
        """Return the node rows that arguments get rows of."""
        return {key: cast("fx.Node", self.node.kwargs[key]).all_input_nodes[0] for key in self.shapes}

    def _takes_rows(self, held: dict[fx.Node, Any]) -> bool:
        """Return whether each gather gives a row for each edge, as the message's argument gets it."""
        edges, rows = held[cast("fx.Node", self.node.args[0])], self._rows()
        if bool((edges < 0).any()):  # which PyTorch's gathers count from the end
            return False
        return all(held[one].dtype == held[of].dtype for one, of in self._of.same.items()) and all(
            torch.equal(held[one], held[rows[key]][edges[1 if key.endswith("_i") else 0]])
            for one, key in self._of.gathers.items()
        )

    def _reduces(self, leaves: Mapping[fx.Node, Any], held: Mapping[fx.Node, Any], num_nodes: int) -> bool:
        """Return whether any messages are reduced as they should be.

        Those of the model may hide it: they may be positive, or zero as long as a parameter is.
        """
        of, edges = self._of, held[cast("fx.Node", self.node.args[0])]
        given = torch.rand_like(held[of.messages]) - 0.5
        ours = self._reduced(given, edges[1], num_nodes)
        theirs = self._run(of.written, {**leaves, of.messages: given}, num_nodes)
        alone = torch.bincount(edges[1], minlength=num_nodes) == 0
        return (
            ours.shape == theirs.shape
            and torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
            and bool((theirs[alone] == of.empty).all())
            and (of.written is of.scatter or self._divides_by_counts(num_nodes))
        )

    def _divides_by_counts(self, num_nodes: int) -> bool:
        """Return whether the quotient's divisor is each node's number of edges, also where that is large.

        It may have a bound, which is a number that one of its calls gets: a node gets more edges than that.
        """
        by, numbers = cast("fx.Node", self._of.written.args[1]), [0.0]

        def note(one: Any) -> Any:
            if type(one) in (int, float) and math.isfinite(one):
                numbers.append(abs(one))
            return one

        read = [by]
        for one in read:
            fx.node.map_aggregate((one.args, one.kwargs), note)
            read += [
                before
                for before in one.all_input_nodes
                if before.op in ("call_function", "call_method") and before not in read
            ]
        if (most := max(numbers)) > MOST_COUNTED:
            return False
        held = self._graph(num_nodes, 64, hub=2 * math.ceil(most))
        edges = self._run(cast("fx.Node", self.node.args[0]), held, num_nodes)
        found: Tensor = self._run(by, held, num_nodes)
        counts = torch.bincount(edges[1], minlength=num_nodes)
        if found.shape[:1] != counts.shape:
            return False
        counts = counts.view(-1, *[1] * (found.ndim - 1)).expand_as(found)
        return bool(torch.where(counts > 0, found == counts, found.abs() > 0).all())

    def _graph(self, num_nodes: int, num_edges: int, *, hub: int = 0) -> dict[fx.Node, Any]:
        """Return random edges and rows. The last nodes have no edges, and one node may have many."""
        draw = torch.Generator().manual_seed(num_nodes)

        def some(*shape: int) -> Tensor:
            return (torch.rand(shape, generator=draw) - 0.3).to(self._of.dtype or torch.float32)

        edges = torch.randint(num_nodes - 2, (2, num_edges + hub), generator=draw)
        edges[1, num_edges:] = 2
        num_edges += hub
        given = {EDGES_TARGET: edges, WEIGHTS_TARGET: some(num_edges).abs()}
        given |= {EDGE_ATTR: some(num_edges, self.edge_channels)}
        places = self.trace.graph.find_nodes(op="placeholder")
        held: dict[fx.Node, Any] = {one: given[str(one.target)] for one in places if str(one.target) in given}
        held |= {of: some(num_nodes, *self.shapes[key]) for key, of in self._rows().items()}
        return held if self._of.along is None else {**held, self._of.along: edges}

    def _messages(self, held: dict[fx.Node, Any], num_nodes: int) -> tuple[Tensor, Tensor]:
        """Return the messages, and what they come to."""
        of, rows = self._of, self._rows()
        edges = self._run(cast("fx.Node", self.node.args[0]), held, num_nodes)
        special = {"ids": edges[1], "counts": num_nodes}
        given = {key: special[what] for key, what in of.special.items()}
        given |= {key: held[one][edges[1 if key.endswith("_i") else 0]] for key, one in rows.items()}
        for key in of.takes[0]:
            if key not in given:
                given[key] = self._run(cast("fx.Node", self.node.kwargs[key]), held, num_nodes)
        messages: Tensor = replace(of, layer=copy_of(of.layer)).as_module()(**given)
        return messages, self._reduced(messages, edges[1], num_nodes)

    def _reduced(self, messages: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
        """Return what messages come to."""
        kind = {"add": "sum", "max": "amax", "min": "amin"}.get(str(self._of.aggr), str(self._of.aggr))
        index = dst.view(-1, *[1] * (messages.ndim - 1)).expand_as(messages)
        nothing = messages.new_full((num_nodes, *messages.shape[1:]), self._of.empty)
        return nothing.scatter_reduce(0, index, messages, kind, include_self=False)

    def _ties(self, held: Mapping[fx.Node, Any]) -> Ties:
        """Return how a maximum or minimum as written shares the gradient of two equal messages."""
        of, rows = self._of, {*self._rows().values()}
        leaves = {one: value for one, value in held.items() if one.op == "placeholder" or one in rows}
        two, edges = torch.tensor([[0, 1], [2, 2]]), cast("fx.Node", self.node.args[0])
        if edges.op == "placeholder":  # not edges that the model computes
            # Calls beside the messages then see two edges as well, as gathers for the shape of an index do.
            of_edges = [one for one in leaves if str(one.target) in (WEIGHTS_TARGET, EDGE_ATTR)]
            leaves |= {one: leaves[one][:2] for one in of_edges} | {edges: two}
        leaves |= {one: two[at] for one, at in of.ends.items()}

        def largest(given: Tensor) -> Tensor:
            out: Tensor = self._run(of.written, {**leaves, of.messages: given}, _SIZES[-1][0])[2]
            return out

        with torch.enable_grad():
            found = shares_of(largest, held[of.messages][:2])
        ties = SHARES.get(found)
        if ties not in TIES_OF_MESSAGES:
            what = f"it shares the gradient of two equal messages and two zeros as {found}"
            raise of.refuse(FIRST if ties == "first" else what)
        return ties

    def _run(self, node: fx.Node, held: dict[fx.Node, Any], num_nodes: int) -> Any:
        """Return what a call of the trace gives, and keep it."""
        if node in held:
            return held[node]
        if node.op == "get_attr":
            made: Any = self.trace.attribute(str(node.target))
        elif isinstance(made := self.value_of(node, num_nodes), Tensor):
            made = made.to(self._of.dtype or torch.float32)
        elif made is None:
            args, kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda one: self._run(one, held, num_nodes)
            )
            target: Any = node.target
            if node.op == "call_module":
                target = copy_of(self.trace.modules[target])
            elif node.op not in ("call_function", "call_method"):
                raise self._of.refuse(f"it needs {node}, which is neither of nodes nor of edges")
            made = ir.run_call(target, args, kwargs)
        held[node] = made
        return made
