"""A service of predictions: known ids and new nodes, requests in batches, models swapped while it answers.

    python examples/service.py                     # answers some requests in this process, and ends
    python examples/service.py --port 8000         # serves; POST /predict, POST /model

It needs FastAPI and httpx; to serve, uvicorn as well (the extra ``service``).
"""

import argparse
import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import torch
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict
from torch import Tensor

import graphbraid
from graphbraid import Graph, nn
from graphbraid.loader import NeighborLoader

LAYERS, MOST_REQUESTS = 2, 64


class NewNode(BaseModel):
    """A node that the graph does not have: its features, and the known nodes that have edges to it."""

    model_config = ConfigDict(extra="forbid")
    features: list[float]
    neighbors: list[str] = []


class Asked(BaseModel):
    """A request: ids of known nodes, and new nodes."""

    model_config = ConfigDict(extra="forbid")
    ids: list[str] = []
    new: list[NewNode] = []


class Answer(BaseModel):
    """The class and its probability of each known and each new node, and the number of the model."""

    known: list[tuple[int, float]]
    new: list[tuple[int, float]]
    model: int


@dataclass
class Waiting:
    """A request in the queue: its known nodes, the new nodes' features, and the neighbours of each."""

    known: list[int]
    x: Tensor
    neighbors: list[list[int]]
    answer: "asyncio.Future[Answer]"


class Service:
    """A graph, the model of the moment, and a thread that answers the waiting requests together."""

    def __init__(self, graph: Graph, names: list[str], make: "type[nn.GraphModel]", **options: int) -> None:
        self.names, self.options, self.make = {name: node for node, name in enumerate(names)}, options, make
        self.loader = NeighborLoader(
            graph, [-1] * LAYERS, batch_size=1, num_workers=0
        )  # all neighbours: exact
        self.width, self.queue = graph.num_features, asyncio.Queue[Waiting]()
        self.model: tuple[int, torch.nn.Module] = (0, make(**options).eval())
        self.thread = ThreadPoolExecutor(1)

    def load(self, weights: bytes) -> int:
        """Put a model of new weights in place; batches that have begun end with the one before."""
        made = self.make(**self.options).eval()
        made.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
        self.model = (self.model[0] + 1, made)  # one assignment: nobody sees half of it
        return self.model[0]

    async def ask(self, asked: Asked) -> Answer:
        """Check a request, and wait for its answer."""
        known = [self._node(name) for name in asked.ids]
        neighbors = [[self._node(name) for name in one.neighbors] for one in asked.new]
        for number, one in enumerate(asked.new):
            if len(one.features) != self.width:
                detail = f"new[{number}] must have {self.width} features; got {len(one.features)}"
                raise HTTPException(422, detail)
        x = torch.tensor([one.features for one in asked.new]).view(-1, self.width)
        waiting = Waiting(known, x, neighbors, asyncio.get_running_loop().create_future())
        self.queue.put_nowait(waiting)
        return await waiting.answer

    def _node(self, name: str) -> int:
        if name not in self.names:
            raise HTTPException(404, f"no node is called {name!r}")
        return self.names[name]

    async def run(self) -> None:
        """Answer requests for ever: those that came while a batch ran are the next batch."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            while len(batch) < MOST_REQUESTS and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            try:
                answers = await loop.run_in_executor(self.thread, self._answers, batch)
            except Exception as error:  # a fault of one batch must not end the service
                for waiting in batch:
                    waiting.answer.set_exception(HTTPException(500, str(error)))
                continue
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():  # whoever asked may have gone
                    waiting.answer.set_result(answer)

    @torch.inference_mode()
    def _answers(self, batch: list[Waiting]) -> list[Answer]:
        """Return the answers to requests, from one call of the model."""
        number, model = self.model
        known = [node for waiting in batch for node in waiting.known]
        linked = [node for waiting in batch for nodes in waiting.neighbors for node in nodes]
        seeds, places = torch.tensor(known + linked, dtype=torch.int64).unique(return_inverse=True)
        new = torch.cat([waiting.x for waiting in batch])
        x, edges = new[:0], torch.empty(2, 0, dtype=torch.int64)
        if seeds.numel():
            drawn = self.loader(seeds)
            x, edges = drawn.x, drawn.edge_index
        # New nodes come behind the others. Edges lead to them alone, so no row of a known node changes.
        counts = torch.tensor(
            [len(nodes) for waiting in batch for nodes in waiting.neighbors], dtype=torch.int64
        )
        ends = torch.arange(len(new)).repeat_interleave(counts) + len(x)
        edges = torch.cat([edges, torch.stack([places[len(known) :], ends])], 1)
        rows = model(torch.cat([x, new]), edges).softmax(-1)
        chances, classes = (rows[torch.cat([places[: len(known)], torch.arange(len(x), len(rows))])]).max(-1)
        found = list(zip(classes.tolist(), chances.tolist(), strict=True))
        of_known, of_new = iter(found[: len(known)]), iter(found[len(known) :])
        return [
            Answer(
                known=[next(of_known) for _ in waiting.known],
                new=[next(of_new) for _ in waiting.neighbors],
                model=number,
            )
            for waiting in batch
        ]


def application(service: Service) -> FastAPI:
    """The service's two addresses."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        yield
        task.cancel()
        service.thread.shutdown()

    app = FastAPI(lifespan=lifespan)

    @app.post("/predict")
    async def predict(asked: Asked) -> Answer:
        return await service.ask(asked)

    @app.post("/model")
    async def swap(request: Request) -> dict[str, int]:
        weights = await request.body()
        try:
            return {"model": await asyncio.to_thread(service.load, weights)}
        except Exception as error:  # whatever the bytes are, the model of before goes on
            raise HTTPException(422, f"these are no weights of the model: {error}") from None

    return app


def trained() -> tuple[graphbraid.Trainer, dict[str, int]]:
    """A model that is trained for a moment, and how it was made."""
    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-100k")
    options = {"in_channels": graph.num_features, "hidden_channels": 64, "out_channels": graph.num_classes}
    model = nn.GraphSAGE(**options, num_layers=LAYERS)
    trainer = graphbraid.Trainer(model, graph, epochs=2, fanouts=(10, 5), batch_size=128, lr=0.01, seed=0)
    trainer.fit()
    return trainer, options | {"num_layers": LAYERS}


def saved(model: torch.nn.Module) -> bytes:
    """A model's weights as they are sent."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def started() -> tuple[Service, graphbraid.Trainer]:
    """A service of the trained model; node 7 is called n7."""
    trainer, options = trained()
    names = [f"n{node}" for node in range(trainer.graph.num_nodes)]
    service = Service(trainer.graph, names, nn.GraphSAGE, **options)
    service.load(saved(trainer.model))
    return service, trainer


async def shown(service: Service, trainer: graphbraid.Trainer) -> None:
    """Ask for known and new nodes, by many clients at once, and swap the model meanwhile."""
    wanted = trainer.predict().argmax(1)
    graph, app = trainer.graph, application(service)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        ids = torch.arange(0, 2000, 10)

        async def ask(node: int) -> dict:
            # A copy of the node as a new one, with the same features and the same edges to it.
            sources = graph.csc.indices[graph.csc.indptr[node] : graph.csc.indptr[node + 1]].tolist()
            copy = {"features": graph.dense_x()[node].tolist(), "neighbors": [f"n{one}" for one in sources]}
            done = await http.post("/predict", json={"ids": [f"n{node}"], "new": [copy]})
            done.raise_for_status()
            return done.json()

        asked = [asyncio.create_task(ask(node)) for node in ids.tolist()]
        await asyncio.sleep(0.05)
        swap = await http.post("/model", content=saved(trainer.model))
        asked += [asyncio.create_task(ask(node)) for node in ids.tolist()]
        answers = await asyncio.gather(*asked)
        alike = [one["known"][0][0] == one["new"][0][0] for one in answers]
        right = [
            one["known"][0][0] == int(wanted[node])
            for one, node in zip(answers, ids.tolist() * 2, strict=True)
        ]
        models = sorted({one["model"] for one in answers})
        refused = await http.post("/predict", json={"ids": ["nobody"]})
        damaged = await http.post("/model", content=b"no weights")
    print(
        f"{len(answers)} requests answered by the models {models}, none dropped; last: {swap.json()['model']}"
    )
    share = [sum(one) / len(answers) for one in (right, alike)]
    print(f"as Trainer.predict says: {share[0]:.3f}; new nodes as their originals: {share[1]:.3f}")
    print(f"an unknown id: {refused.status_code}; damaged weights: {damaged.status_code}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = "serve on this port of localhost until Ctrl-C; 0 takes a free one"
    parser.add_argument("--port", type=int, help=text)
    port = parser.parse_args().port
    service, trainer = started()
    if port is None:
        asyncio.run(shown(service, trainer))
        return
    import uvicorn

    # Who opens the socket knows its port: one that was found free before may be taken by then.
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer waits for 40 ms
        print(f"serving on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(application(service), log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
