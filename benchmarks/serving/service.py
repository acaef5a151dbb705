"""Requests to ``examples/service.py`` over HTTP: their waiting times and their rate by the number of clients.

    python -m benchmarks.serving.service [--seconds 5] [--clients 1 2 4 8 16 32]

The service is a process of its own (uvicorn). Each client holds one connection and asks again as soon as it
has an answer: for one known node of braid-100k, or for a new node with ten edges from known ones. All
neighbours of two hops are read, so answers are exact. Clients and service share the machine. Weights are
swapped once a second meanwhile; any answer other than 200 ends the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT
from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows

KINDS = ("a known node", "a new node with 10 edges")
NODES = 5000


def body(kind: str, number: int, width: int) -> bytes:
    """A request, another one for each number."""
    if kind == KINDS[0]:
        asked: dict[str, Any] = {"ids": [f"n{number % NODES}"]}
    else:
        neighbors = [f"n{(number * 31 + at * 97) % NODES}" for at in range(10)]
        asked = {"new": [{"features": [0.1 * (number % 7)] * width, "neighbors": neighbors}]}
    return json.dumps(asked).encode()


class Connection:
    """A connection that sends a request and reads its answer; HTTP libraries take longer than the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def post(self, path: str, content: bytes) -> bytes:
        """Return the answer's body.

        Raises:
            RuntimeError: its status is not 200.
        """
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        answered = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answered.split("content-length:")[1].split("\r\n")[0])
        found = await self.reader.readexactly(length)
        if " 200 " not in answered.splitlines()[0]:
            raise RuntimeError(f"{answered.splitlines()[0]}: {found.decode()}")
        return found


async def measured(
    port: int, kind: str, clients: int, seconds: float, weights: bytes, width: int
) -> dict[str, Any]:
    """Waiting times and rate of some clients."""
    waits: list[float] = []

    async def client(number: int, until: float, counts: bool) -> None:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        while (begun := time.perf_counter()) < until:
            await connection.post("/predict", body(kind, number, width))
            number += clients
            if counts:
                waits.append(time.perf_counter() - begun)
        connection.writer.close()

    async def swap(until: float) -> int:
        connection, swaps = Connection(*await asyncio.open_connection("127.0.0.1", port)), 0
        while time.perf_counter() + 1 < until:
            await asyncio.sleep(1)
            await connection.post("/model", weights)
            swaps += 1
        connection.writer.close()
        return swaps

    warm = time.perf_counter() + 0.5
    await asyncio.gather(*(client(number, warm, False) for number in range(clients)))
    until = time.perf_counter() + seconds
    swaps, *_ = await asyncio.gather(swap(until), *(client(number, until, True) for number in range(clients)))
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "kind": kind,
        "clients": clients,
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "requests_per_second": len(waits) / seconds,
        "requests": len(waits),
        "swaps": swaps,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("request", "clients", "p50", "p99", "requests a second")
    for row in rows:
        times = [f"{row[name]:.1f} ms" for name in ("p50_ms", "p99_ms")]
        table.add_row(row["kind"], str(row["clients"]), *times, f"{row['requests_per_second']:,.0f}")
    Console(width=100).print(table)


def parse_options() -> argparse.Namespace:
    """The options."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    add_out_argument(parser)
    return parser.parse_args()


def main() -> None:
    """Start the service, measure, print, write."""
    options = parse_options()
    command = [sys.executable, str(ROOT / "examples" / "service.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = port_of(process)
            weights, width = weights_and_width()
            rows = [
                asyncio.run(measured(port, kind, clients, options.seconds, weights, width))
                for kind in KINDS
                for clients in options.clients
            ]
        finally:
            process.terminate()
    show(rows)
    named = {f"{row['kind']}, {row['clients']} clients": row for row in rows}
    write_rows("serving", named, repeats=1, out=options.out)


def port_of(process: subprocess.Popen[str]) -> int:
    """Wait until the service listens, and return its port."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving on "):
            return int(line.rsplit(":", 1)[1])
    raise RuntimeError("the service has ended")


def weights_and_width() -> tuple[bytes, int]:
    """Return weights that the service swaps to, and the number of features."""
    from examples import service  # here: it needs FastAPI

    trainer, _ = service.trained()
    return service.saved(trainer.model), trainer.graph.num_features


if __name__ == "__main__":
    main()
