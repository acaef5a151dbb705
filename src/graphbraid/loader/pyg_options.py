"""Options of PyG's and torch's loaders that graphbraid's does not have: refused, or without effect here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graphbraid.errors import ConfigError, did_you_mean

_ALIKE: dict[str, tuple[tuple[Any, ...], str]] = {
    "directed": ((True, None), "all edges between the nodes that were drawn, now subgraph_type='induced'"),
    "neighbor_sampler": ((None,), "a sampler of the caller's"),
    "transform_sampler_output": ((None,), "a hook on PyG's SamplerOutput"),
    "custom_cls": ((None,), "a batch class of the caller's"),
}
"""Options that would change the batches: their harmless values, and what other values would request."""
REFUSED = _ALIKE | {"node_sampler": ((None,), "a sampler of the caller's")}
"""Such options of a NeighborLoader."""
LINK_REFUSED = _ALIKE | {"link_sampler": ((None,), "a sampler of the caller's")}
"""Such options of a LinkNeighborLoader."""

MEANINGLESS = {
    "filter_per_worker": (None, "rows are cut where they are read"),
    "in_order": (True, "batches come in their order whatever the number of threads"),
    "is_sorted": (False, "edges are sorted once, and not again where they are"),
    "multiprocessing_context": (None, "there are no processes"),
    "persistent_workers": (False, "threads live as long as the loader"),
    "pin_memory_device": ("", "there is one kind of accelerator"),
    "timeout": (0, "a thread that fails raises at once, so nothing has to be waited out"),
    "worker_init_fn": (None, "no Python runs in the threads"),
}
"""Options that cannot change a batch: their default, and why they have no effect."""

REPLACED = ("dataset", "collate_fn")
"""Arguments of torch's constructor that the loader makes itself; PyG's loader drops them likewise."""


def check_options(
    options: dict[str, Any],
    known: Iterable[str],
    refused: Mapping[str, tuple[tuple[Any, ...], str]],
    loader: str,
) -> dict[str, Any]:
    """Check the options that are not the loader's own.

    Args:
        options: the options by name.
        known: names of the loader's own options, for suggestions in the error.
        refused: options of PyG's loader that are refused.
        loader: name of the loader, for messages.

    Returns:
        All options of the tables, as given or by default, which the loader keeps as attributes.

    Raises:
        ConfigError: an option is unknown, or has a value that ``refused`` does not allow. The message names
            the option, what it would request, and the nearest known one.
    """
    for name, value in options.items():
        if name in refused:
            harmless, meaning = refused[name]
            plain = getattr(value, "value", value)  # PyG's enumerations
            if not any(plain is one or (isinstance(plain, str) and plain == one) for one in harmless):
                raise ConfigError(
                    f"{loader} does not support {name}={value!r} ({meaning}); use PyG's loader for that"
                )
        elif name not in MEANINGLESS and name not in REPLACED:
            names = (*known, *MEANINGLESS, *refused)
            raise ConfigError(f"{loader} takes no argument {name!r}.{did_you_mean(name, names)}")
    kept = {name: values[0] for name, (values, _) in refused.items()}
    kept |= {name: default for name, (default, _) in MEANINGLESS.items()}
    return kept | {name: value for name, value in options.items() if name not in REPLACED}
