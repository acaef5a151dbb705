"""The loaders as subclasses of PyG's own classes, for code that checks with ``isinstance``.

The module is imported only if PyG is installed.
"""

from __future__ import annotations

from typing import NoReturn

from torch_geometric import loader as pyg

from graphbraid.errors import ConfigError
from graphbraid.loader import link_neighbor, neighbor
from graphbraid.loader.typed import link_neighbor as typed_link_neighbor
from graphbraid.loader.typed import neighbor as typed_neighbor


class _WithoutProcesses:
    """PyG's methods about worker processes and about filtering, which have no meaning for threads."""

    def filter_fn(self, out: object) -> NoReturn:
        """Raise an error: :meth:`collate_fn` returns complete batches.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a loader's batches are whole when they are made: there is no SamplerOutput to filter"
        )

    def enable_cpu_affinity(self, loader_cores: object = None) -> NoReturn:
        """Raise an error, as there are no worker processes.

        Raises:
            ConfigError: always.
        """
        raise _about_processes("enable_cpu_affinity", "give the process its cores with taskset")

    def enable_multithreading(self, worker_threads: object = None) -> NoReturn:
        """Raise an error, as there are no worker processes.

        Raises:
            ConfigError: always.
        """
        raise _about_processes("enable_multithreading", "num_workers is the number of threads")

    def enable_memory_log(self) -> NoReturn:
        """Raise an error, as there are no worker processes.

        Raises:
            ConfigError: always.
        """
        raise _about_processes("enable_memory_log", "threads share the process's memory")


class NeighborLoader(_WithoutProcesses, neighbor.NeighborLoader, pyg.NeighborLoader):
    """The :class:`graphbraid.loader.NeighborLoader` used if PyG is installed; it runs none of PyG's code."""


class TypedNeighborLoader(typed_neighbor.TypedNeighborLoader, NeighborLoader):
    """The loader of graphs with types used if PyG is installed."""


class LinkNeighborLoader(_WithoutProcesses, link_neighbor.LinkNeighborLoader, pyg.LinkNeighborLoader):
    """The :class:`graphbraid.loader.LinkNeighborLoader` used if PyG is installed, without PyG's code."""


class TypedLinkNeighborLoader(typed_link_neighbor.TypedLinkNeighborLoader, LinkNeighborLoader):
    """The loader of links of graphs with types used if PyG is installed."""


def _about_processes(name: str, instead: str) -> ConfigError:
    return ConfigError(f"{name} is about worker processes, and this loader has none: {instead}")
