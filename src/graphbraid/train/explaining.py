"""What a Trainer says of where its run's data lies: chosen tiers, rows, lists, and what a device holds."""

from __future__ import annotations

from collections.abc import Iterable


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
