"""What predictions of epochs on many ranks say in the same words: the network, and times with their range."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphbraid.fullgraph.scale.cluster import Cluster


def network_sentences(cluster: Cluster, moving: str) -> tuple[str, str, str]:
    """Return what messages and their bytes take, the latter by ``moving``, the source of their cost."""
    return (
        f"A message takes {1e6 * cluster.latency_seconds:.3g} us and its bytes at "
        f"{cluster.bandwidth_bytes / 1e9:.3g} GB/s.",
        f"Each message that a rank sends and one that it receives keep its cores from computing for "
        f"{1e6 * (cluster.message_processor_seconds or 0.0):.3g} us.",
        f"Each byte that a rank sends and one that it receives keep its cores from computing for "
        f"{1e9 * (cluster.byte_processor_seconds or 0.0):.3g} ns, {moving}.",
    )


def with_range(seconds: float, limits: tuple[float, float]) -> str:
    """Return a time and, where they read otherwise, the limits between which it may lie."""
    from graphbraid.collective.plan.times import format_seconds

    said, *ends = map(format_seconds, (seconds, *limits))
    return said if ends == [said, said] else f"{said} ({ends[0]} to {ends[1]})"


__all__ = ["network_sentences", "with_range"]
