"""What a Trainer says of where its run's data lies and of how it travels: tiers, rows, lists, exchanges."""

from __future__ import annotations

from collections.abc import Iterable

from graphbraid.train.config import TrainConfig


def explained(sources: Iterable[object], *, reasons: Iterable[str], placement: str) -> str:
    """Return the reasons, each source's own words, and those of a device, in paragraphs.

    Args:
        sources: of rows and of lists; those without ``explain()``, and None, say nothing.
        reasons: why they are as they are; empty ones are left out.
        placement: where a device reads what it makes batches of; empty without one.
    """
    parts = list(reasons)
    for source in sources:
        explain = getattr(source, "explain", None)
        if callable(explain):
            parts.append(str(explain()))
    said = [part for part in (*parts, placement) if part]
    return "\n\n".join(said) or "rows and lists are read where the graph has them"


def idle_on_one_rank(config: TrainConfig) -> str:
    """Return which options of exchanges between ranks are given to a run of one rank; empty if none is.

    They are no mistake: the same command trains on one rank and on several.
    """
    plain = TrainConfig()
    given = [(name, getattr(config, name)) for name in ("wire", "exchange")]
    idle = [f"{name}={value!r}" for name, value in given if value != getattr(plain, name)]
    return f"nothing travels, as there is one rank: {' and '.join(idle)} not used" if idle else ""
