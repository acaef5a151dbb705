"""Links: hosts on one machine, as network namespaces on a bridge, whose links are shaped to a given rate."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

NETWORK = "10.77.0"
INTERFACE = "gbeth"
QUEUE_MILLISECONDS = 50
"""How long a packet may wait for its turn before it is dropped."""
BURST_SECONDS = 2e-3
"""Time at the link's rate of the bytes that may leave at once."""
LEAST_BURST_BYTES = 72 << 10
"""The largest packet that the system hands to a link, 64 KiB with a header for each packet of the wire, and
some room. A network card cuts it up by itself. Into a smaller burst it does not fit, so that the cores of the
ranks cut it up instead, and are interrupted for every 1,448 bytes."""


class Links:
    """Hosts that reach each other over a bridge, each by a link of its own, shaped in both directions.

    A namespace lives as long as a process that was started in it waits for its input to end, which it does
    when this process ends, however that comes. Needs the rights of root, or those of it that
    ``unshare --map-root-user --net`` gives.

    Args:
        num_hosts: number of hosts.
        bits_per_second: rate of each link, in each direction.
    """

    def __init__(self, num_hosts: int, bits_per_second: float) -> None:
        self._num_hosts, self._rate = num_hosts, bits_per_second
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def address(self, host: int) -> str:
        """The address of a host, by its number from 0."""
        return f"{NETWORK}.{host + 1}"

    def command(self, host: int, command: list[str]) -> list[str]:
        """The command that runs another one on a host."""
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", *command]

    def _make(self) -> None:
        for _ in range(self._num_hosts + 1):  # the last one holds the bridge
            holder = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._holders.append(holder)
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise OSError("no network namespace could be made")
        hub = self._num_hosts
        self._run(hub, "ip link add name gbhub type bridge")
        self._run(hub, "ip link set gbhub up")
        for host in range(self._num_hosts):
            end, pid = f"gbveth{host}", self._holders[host].pid
            self._run(hub, f"ip link add name {end} type veth peer name {INTERFACE} netns {pid}")
            self._run(hub, f"ip link set {end} master gbhub up")
            self._run(host, "ip link set lo up")
            self._run(host, f"ip address add {self.address(host)}/24 dev {INTERFACE}")
            self._run(host, f"ip link set {INTERFACE} up")
            self._shape(hub, end)
            self._shape(host, INTERFACE)

    def _shape(self, host: int, interface: str) -> None:
        burst = max(LEAST_BURST_BYTES, int(self._rate / 8 * BURST_SECONDS))
        shape = f"tbf rate {int(self._rate)}bit burst {burst}b latency {QUEUE_MILLISECONDS}ms"
        self._run(host, f"tc qdisc add dev {interface} root {shape}")

    def _run(self, host: int, command: str) -> None:
        done = subprocess.run(
            self.command(host, command.split()), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise OSError(f"{command}: {done.stderr.strip() or done.stdout.strip()}")

    def _end(self) -> None:
        for holder in self._holders:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.close()
            holder.wait()
            holder.stdout.close()
        self._holders = []


def why_not() -> str:
    """Why links cannot be shaped here; empty if they can."""
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    if os.geteuid() != 0:
        return "network namespaces need root; start under unshare --map-root-user --net"
    try:
        with Links(2, 1e9):
            return ""
    except OSError as error:
        return str(error)
