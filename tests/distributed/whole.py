"""Trains whole graphs on ranks that are threads, and on one rank, for tests that compare the two."""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.threads import run_threads
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES
from torch import Tensor, nn

from graphbraid.distributed import Communicator, Partition
from graphbraid.fullgraph import ALL, Engine, Evidence, Ranks
from graphbraid.fullgraph.device import HOST, Device
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.reading.read import Source
from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc
from graphbraid.machine.hardware import Rates

RATES = Rates()
"""Fixed, so that every machine lowers alike."""
_random = threading.local()


def as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads draw the seeds of dropout masks each for itself, and read models one after the other."""
    read, lock = Source.read, threading.Lock()

    def draw() -> int:
        return int(torch.randint(0, 2**62, (), generator=_random.generator))

    def read_alone(self: Source, model: nn.Module, breaks_at: torch.device | None = None) -> Program:
        with lock:  # torch.fx changes PyTorch itself while it traces
            return read(self, model, breaks_at)

    monkeypatch.setattr("graphbraid.fullgraph.step.tasks.draw_seed", draw)
    monkeypatch.setattr(Source, "read", read_alone)


def owners(part_of: Sequence[int] | Tensor, num_parts: int) -> Partition:
    """A partition in which node i belongs to ``part_of[i]``."""
    ids = torch.as_tensor(part_of, dtype=torch.int32)
    return Partition(part_of=ids, num_parts=num_parts, strategy="by hand", balance="nodes")


def mixed(num_parts: int, num_nodes: int = NUM_NODES) -> Partition:
    """Neighbouring ids on different ranks."""
    return owners(torch.arange(num_nodes) * 7 % 11 % num_parts, num_parts)


def blocks(num_blocks: int, *, loops: bool = False) -> tuple[Graph, Partition]:
    """A graph whose blocks are joined by few edges, with a node without any, and the owner of each node."""
    draw = torch.Generator().manual_seed(1)
    part_of = torch.arange(60) % num_blocks  # ids do not follow the blocks
    src, dst = torch.randint(60, (2, 900), generator=draw)
    kept = (part_of[src] == part_of[dst]) & (dst != 7) & (loops | (src != dst))
    cross = torch.tensor([[0, 1, 2, 5], [1, 2, 3, 4]])
    src, dst = torch.cat((src[kept], cross[0])), torch.cat((dst[kept], cross[1]))
    csc, _ = coo_to_csc(src, dst, 60, 60)
    graph = Graph(
        csc=csc,
        x=torch.randn(60, CHANNELS, generator=draw),
        y=torch.randint(CLASSES, (60,), generator=draw),
        splits={"train": torch.randperm(60, generator=draw)[:40]},
    )
    return graph, owners(part_of, num_blocks)


def trained(
    model: nn.Module,
    graph: Graph,
    ranks: Ranks | None,
    *,
    epochs: int = 8,
    passes: Any = ALL,
    before: Callable[[Engine], object] = lambda _: None,
    device: Device = HOST,
) -> dict[str, Any]:
    """Losses of some epochs, then the parameters, statistics and outputs for all nodes.

    ``before`` is called with the engine before each.
    """
    _random.generator = torch.Generator().manual_seed(5)
    model, nodes = copy.deepcopy(model), graph.splits["train"]
    options = CompileOptions(passes=passes, evidence=Evidence(rates=RATES), device=device)
    engine = Engine(model, graph, nodes, options, ranks=ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    own = nodes if ranks is None else ranks.owned(nodes)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        before(engine)
        loss = F.cross_entropy(engine(), graph.y[own], reduction="sum") / nodes.numel()
        loss.backward()
        total = loss.detach().double()
        if ranks is not None:
            ranks.comm.all_reduce(total).wait()
            _add_up(model, ranks.comm)
        losses.append(float(total))
        optimizer.step()
    return {
        "losses": losses,
        "outputs": engine.predict().clone(),
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "engine": engine,
    }


def _outputs(model: nn.Module, state: dict[str, Tensor], graph: Graph, passes: Any) -> Tensor:
    """One rank's outputs by what ranks have learned: a statistic near 0 magnifies how they differ by then."""
    model = copy.deepcopy(model)
    model.load_state_dict(state)
    options = CompileOptions(passes=passes, evidence=Evidence(rates=RATES))
    return Engine(model, graph, "train", options).predict()


def _add_up(model: nn.Module, comm: Communicator) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            total = comm.all_reduce(parameter.grad.clone().cpu()).wait()  # also of ranks that share a card
            parameter.grad = total.to(parameter.device)


def assert_as_one_rank(
    model: nn.Module,
    graph: Graph,
    partition: Partition,
    *,
    passes: Any = ALL,
    epochs: int = 8,
    part_of: Callable[[Communicator], tuple[Ranks, Graph]] | None = None,
    device: Callable[[], Device] = lambda: HOST,
) -> list[dict[str, Any]]:
    """Check that ranks learn what one does, and return what they have learned.

    ``part_of`` gives a rank what it is to know of the graph; else each knows all of it. ``device`` gives each
    a device; one rank runs on the host.
    """
    alone = trained(model, graph, None, passes=passes, epochs=epochs)

    def run(comm: Communicator) -> dict[str, Any]:
        whole = Ranks(comm=comm, partition=partition), graph
        ranks, known = whole if part_of is None else part_of(comm)
        return trained(model, known, ranks, passes=passes, epochs=epochs, device=device())

    found = run_threads(partition.num_parts, run)
    outputs = _outputs(model, found[0]["state"], graph, passes)
    for rank in found:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        torch.testing.assert_close(rank["outputs"], outputs, rtol=1e-4, atol=1e-4)
        for name, value in rank["state"].items():
            torch.testing.assert_close(value, alone["state"][name], rtol=1e-3, atol=1e-4)
            assert torch.equal(value, found[0]["state"][name]), f"ranks differ in {name}"
    return found
