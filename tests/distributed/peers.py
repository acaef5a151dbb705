"""Sums over peers' rows, computed by ranks that are threads or processes, beside the whole graph's."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.whole import as_processes, owners, trained
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import make_graph
from tests.fullgraph.test_engine import MODELS
from tests.interpreter import hasten
from tests.ops.graphs import square, values
from tests.ops.peers import owned_by, share_of, with_coefficients
from torch import Tensor

from graphbraid.distributed import Communicator
from graphbraid.distributed.peers import PeerMap, Peers, PeerSum, SharedRows
from graphbraid.distributed.ranks.transport import TorchTransport
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import Ranks
from graphbraid.fullgraph.device import device_at
from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation, aggregate
from graphbraid.ops.peers import PipelineConfig

NUM_NODES, WIDTH = 24, 5
HOST = torch.device("cpu")


def share_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads open what others of them keep: a handle is a name in a table."""
    kept: dict[str, Tensor] = {}

    def handle_of(tensor: Tensor) -> bytes:
        name = f"{len(kept)} {id(tensor)}"
        kept[name] = tensor
        return name.encode()

    monkeypatch.setattr("graphbraid.distributed.peers.handle_of", handle_of)
    monkeypatch.setattr("graphbraid.distributed.peers.opened", lambda handle: kept[handle.decode()])


def map_of(wanted: str) -> Aggregation:
    """A map over a graph with a hub, isolated nodes and self-loops."""
    csc = square(NUM_NODES)
    return with_coefficients(Csc(csc.indptr, csc.indices, NUM_NODES, trusted=True), wanted)


def expected(how: Aggregation, x: Tensor, weighing: Tensor) -> tuple[Tensor, Tensor]:
    """The whole graph's sums, and the gradient of ``(sums * weighing).sum()``."""
    x = x.clone().requires_grad_()
    out = aggregate(how, x)
    (out * weighing).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def computed(
    comm: Communicator,
    how: Aggregation,
    part_of: Tensor,
    x: Tensor,
    weighing: Tensor,
    settings: list[PipelineConfig],
    device: torch.device = HOST,
) -> list[tuple[Tensor, Tensor]]:
    """What a rank computes of both with each of some configurations, in the same memory, on the host."""
    own = owned_by(part_of, comm.size)[comm.rank]
    edges, _ = share_of(how, part_of, comm.rank, comm.size)
    mapped = PeerMap(Peers(comm, device), edges)
    summed, found = PeerSum(mapped, x.shape[1], x.dtype), []
    for config in settings:
        mapped.config = config
        rows = x[own].to(device, copy=True).requires_grad_()
        out = summed(rows)
        (out * weighing[own].to(device)).sum().backward()
        assert rows.grad is not None
        found.append((out.detach().cpu(), rows.grad.cpu()))
    summed.close()
    return found


def interpret() -> None:
    """Let the kernel run in Triton's interpreter from now on."""
    kernels = importlib.import_module("graphbraid.ops.triton")
    hasten()
    pipelined_sum_module()._kernels = lambda table: kernels


def pipelined_sum_module() -> Any:
    return importlib.import_module("graphbraid.ops.peers")


def check_in_processes(comm: Communicator, kernel: str, wanted: str) -> dict[str, Any]:
    """What each process runs: all of it by the kernel on a card or in the interpreter, or by its twin."""
    if kernel == "interpreted":
        interpret()
    how, x, weighing = map_of(wanted), values(NUM_NODES, WIDTH), values(NUM_NODES, WIDTH, seed=9)
    part_of = torch.arange(NUM_NODES) % max(1, comm.size - 1)  # the last of several owns nothing
    settings = [PipelineConfig(ps=4, dist=2, wpb=2), PipelineConfig(ps=2, dist=1, wpb=4)]
    found = computed(comm, how, part_of, x, weighing, settings, place_of(kernel))
    out, grad = expected(how, x, weighing)
    own = owned_by(part_of, comm.size)[comm.rank]
    for sums, gradient in found:
        torch.testing.assert_close(sums, out[own], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, grad[own], rtol=1e-5, atol=1e-5)
    return {"rows": len(own), "checked": len(found)}


def trained_in_processes(comm: Communicator, kernel: str) -> dict[str, Any]:
    """What is learned on stand-ins of devices, whose sums read peers' rows; on one rank, on the host."""
    graph = make_graph()
    torch.manual_seed(3)
    model = MODELS["gcn"](dropout=0.3)
    as_processes(pytest.MonkeyPatch())  # one way to draw the seeds of masks, on one rank as on several
    if comm.size == 1:
        return {"losses": trained(model, graph, None, epochs=2)["losses"], "reads": 0}
    if kernel == "interpreted":
        interpret()
    part_of = torch.arange(graph.num_nodes) * 7 % 11 % comm.size
    ranks = Ranks(comm=comm, partition=owners(part_of, comm.size))
    device = FakeDevice() if kernel != "compiled" else device_at(place_of(kernel))
    found = trained(model.to(device.place), graph, ranks, epochs=2, device=device)
    return {"losses": found["losses"], "reads": len(found["engine"].runner.training_step.peer_reads)}


def failing(comm: Communicator) -> None:
    """One rank fails while the other waits for its rows."""
    rows = SharedRows(Peers(comm, HOST), 1, 1)
    rows.writable()
    if comm.rank == 1:
        raise ConfigError("no rows today")
    rows.publish()


def place_of(kernel: str) -> torch.device:
    return torch.device("cuda:0") if kernel == "compiled" else HOST


def on_one_card(rank: int, size: int, folder: Path, function: Callable[..., Any], *arguments: str) -> None:
    """What each of some processes that share a card runs, in a group that torch made before."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size
    )
    with Communicator(TorchTransport(owns=True)) as comm:
        said = function(comm, *arguments)
    (folder / f"{rank}.json").write_text(json.dumps(said))


def run_on_one_card(
    size: int, folder: Path, function: Callable[..., Any], *arguments: str, method: str = "spawn"
) -> list[Any]:
    """What a function gives on ranks that share a card; processes are spawned, as CUDA asks for."""
    called = (size, folder, function, *arguments)
    torch.multiprocessing.start_processes(on_one_card, called, nprocs=size, start_method=method)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def train_on_one_card(folder: str, kernel: str, method: str) -> None:
    """Start two processes that train and leave in the folder what they give."""
    torch.set_num_threads(1)
    run_on_one_card(2, Path(folder), trained_in_processes, kernel, method=method)


def probed(comm: Communicator, what: str) -> str:
    """Why ranks cannot read each other's memory where one of them is not as the others."""
    module = importlib.import_module("graphbraid.distributed.peers")
    if comm.rank == 1 and what == "machine":
        importlib.import_module("graphbraid.distributed.peers").machine_name = lambda: "another"
    elif comm.rank == 1 and what == "sharing":
        module.handle_of = _fails
    elif comm.rank == 1 and what == "opening":
        module.opened = _fails
    elif comm.rank == 1 and what == "memory":
        module.opened = lambda handle: torch.tensor([7])
    return Peers(comm, HOST).why_not


def _fails(_: object) -> bytes:
    raise RuntimeError("no such memory\nand a trace")
