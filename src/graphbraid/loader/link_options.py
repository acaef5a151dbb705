"""The options that link loaders read alike, with types or without: labels, negatives, times, ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphbraid.arguments import as_flag
from graphbraid.loader.inputs import as_input_id
from graphbraid.loader.link_inputs import (
    as_negatives,
    check_exclusion,
    check_times_go_together,
    labels_of,
)
from graphbraid.loader.times import TimeScale, seed_times
from graphbraid.sampling.links.link_ends import LinkEnds
from graphbraid.sampling.links.link_seeds import LinkSeeds
from graphbraid.sampling.links.negative_draws import NegativeDraws
from graphbraid.sampling.links.negatives import NegativeSampling

Draws = Callable[[NegativeSampling, Tensor | None], NegativeDraws]
"""Makes what draws negatives, of how they are drawn and the links' times as integers."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkOptions:
    """Links and what a loader's options say of them, in the forms that sampling takes."""

    given: dict[str, Any]
    """The options, as the user gave them."""
    links: Tensor
    """``(2, num_links)`` int64 sources and destinations, ids within their types."""
    negatives: NegativeSampling | None
    label: Tensor | None
    """``(num_links, ...)`` labels, raised by 1 if 0 stands for negatives."""
    exclusion: bool | str
    """Whether a batch's links are kept out of the draws; ``"reverse"`` with their reverses."""

    @classmethod
    def of(cls, given: dict[str, Any], links: Tensor) -> LinkOptions:
        """Read a loader's options.

        Raises:
            ConfigError: an option is invalid, or does not go with another.
            DataError: there is not one label for each link.
        """
        negatives = as_negatives(given["neg_sampling"], given["neg_sampling_ratio"])
        label = labels_of(given["edge_label"], int(links.shape[1]), negatives)
        check_times_go_together(given)
        exclusion = check_exclusion(given["exclude_seed_edges"])
        return cls(given=given, links=links, negatives=negatives, label=label, exclusion=exclusion)

    @property
    def number(self) -> int:
        """Number of links."""
        return int(self.links.shape[1])

    def seeds(self, times: TimeScale | None, draws: Draws, ends: LinkEnds | None = None) -> LinkSeeds:
        """Return the links as seeds of batches.

        Args:
            times: the times of the data, which those of the links are compared with. If None, there are none.
            draws: makes what draws negatives.
            ends: the types that the links join. If None, there is one.

        Raises:
            ConfigError: the links' times do not compare with those of the data; or no negative is left.
            DataError: there is not one finite time for each link.
        """
        shown = seed_times(self.given["edge_label_time"], "edge_label_time", self.number)
        ordered = None if times is None or shown is None else times.ordered(shown, "edge_label_time")
        return LinkSeeds(
            self.links,
            seed=self.given["seed"],
            label=self.label,
            times=ordered,
            shown_times=shown,
            negatives=None if self.negatives is None else draws(self.negatives, ordered),
            disjoint=as_flag(self.given["disjoint"], "disjoint") or times is not None,
            edge_times=None if times is None else times.edge_times,
            ends=ends,
        )

    def input_id(self) -> Tensor | None:
        """Return the values that batches have as ``input_id``; None for the positions of their links.

        Raises:
            ConfigError: they are no numbers, or not one for each link.
        """
        given = self.given["input_id"]
        return None if given is None else as_input_id(given, self.number, "link")
