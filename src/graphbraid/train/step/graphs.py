"""Graphs as examples: mini-batches of whole graphs, and the runner of a model that returns a row for each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.fullgraph.batches.call_forms import call_of_batch
from graphbraid.fullgraph.batches.calls import BatchCall, BatchForm
from graphbraid.fullgraph.batches.runner import BatchRunner
from graphbraid.fullgraph.reading.calling import DATA, Calling, parameters_of
from graphbraid.graph.graph_set import GRAPHS, NODES, GraphBatch, GraphSet
from graphbraid.nn import PooledModel, module_traits
from graphbraid.ops.rng import given_rows
from graphbraid.sampling.config import as_epoch
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import ModelRunner

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import LoaderSettings
    from graphbraid.train.runtime import ModelPlace


class GraphLoader(AbstractContextManager["GraphLoader"]):
    """Mini-batches of whole graphs: each is a function of (seed, epoch, step), as those of nodes are.

    ``settings`` say which graphs (``input_nodes``), how many at a time, whether shuffled, and a rank's part.
    """

    plan = executor = None
    """No plan says who prepares these batches."""

    ahead = 0

    def __init__(self, graphs: GraphSet, settings: LoaderSettings) -> None:
        self._graphs = graphs
        self.schedule = settings.schedule(cast("Tensor", settings.input_nodes))
        self._seconds, self._num_batches = 0.0, 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.schedule.num_steps

    def batches(
        self, epoch: int, start: int = 0, stop: int | None = None, *, then: int = 0
    ) -> Iterator[GraphBatch]:
        """Yield the batches of steps ``[start, stop)`` of an epoch in order; nothing is prepared ahead."""
        assert not then, "every rank has all graphs, so none waits for the next epoch's first rows"
        for step in range(start, len(self) if stop is None else stop):
            began = time.perf_counter()
            batch = self._graphs.batch(self.schedule.seeds_of(as_epoch(epoch), step))
            self._seconds += time.perf_counter() - began
            self._num_batches += 1
            yield batch

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds in which batches were joined, and their number."""
        return {"sample": self._seconds, "gather": 0.0, "batches": self._num_batches}

    def explain(self) -> str:
        """Return nothing, as no device samples."""
        return ""

    def close(self) -> None:
        """Do nothing, as there are no threads."""

    def __exit__(self, *error: object) -> None:
        pass


class GraphsRunner(ModelRunner):
    """A runner of a model that returns one row per graph.

    It is called by the names of its parameters: ``x``, ``edge_index``, ``batch`` and other attributes of the
    graphs, or with PyG's ``Batch``. It runs as :func:`graphbraid.compile` runs it, where the lowered model is
    shown to be equal, else as written.
    """

    node_type = GRAPHS

    def __init__(self, model: nn.Module, graphs: GraphSet, place: ModelPlace) -> None:
        self.graphs = graphs
        self._forms: dict[Any, BatchForm] = {}
        self._prepare(model, graphs.graph, place)
        if isinstance(model, PooledModel) and module_traits.takes_blocks(model.encoder):
            self.batches = None  # its layers run by graphbraid's operators
        self._call_of(graphs.batch(torch.zeros(1, dtype=torch.int64)))

    def further_arrays(self) -> Iterator[tuple[str, Tensor]]:
        """Return names and values of the graphs' attributes."""
        return self.graphs.arrays()

    @property
    def feature_text(self) -> str:
        """The attributes that batches have, for messages."""
        return f"attributes {', '.join(self.graphs.batch(torch.zeros(1, dtype=torch.int64)).keys())}"

    def reach(self, config: TrainConfig) -> None:
        """Return None: a rank joins its own graphs alone."""

    def loader(self, settings: LoaderSettings) -> Any:
        """Return the loader of mini-batches of the graphs ``settings.input_nodes``."""
        return GraphLoader(self.graphs, settings)

    def rows_bytes(self, batch: Any) -> int:
        """Return the bytes of a batch's attributes."""
        return int(batch.nbytes)

    def features_of(self, batch: Any) -> None:
        """Return nothing: a batch has its features already."""

    def labels_of(self, batch: Any) -> Tensor:
        """Return the labels of a batch's graphs."""
        return cast("Tensor", batch.seed_y)

    def masks_of(self, batch: Any) -> AbstractContextManager[None]:
        """Return the context in which dropout's masks are drawn for nodes by their ids."""
        return given_rows({NODES: batch.nodes.to(self.device)}) if self.model.training else nullcontext()

    def on_batch(self, batch: Any) -> Tensor:
        """Return the outputs of a batch's graphs, ``(batch_size, width)``."""
        call = self._call_of(batch if self.device.type == "cpu" else batch.to(self.device))
        with self.masks_of(batch), self.autocast():
            if self.batches is None:
                outputs = call.calling.run(self.model, call.values)
            else:
                if self.batches.model is not self.model:  # a copy, for measurements
                    self.batches = BatchRunner(self.model, warns=False)
                outputs = self.batches.run(call)
        if isinstance(outputs, Tensor) and outputs.ndim == 1:
            outputs = outputs.unsqueeze(1)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[0] != batch.batch_size:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DataError(
                f"the model must return a row for each of the {batch.batch_size} graphs of a batch; got "
                f"{got}. Pool the rows of nodes by batch, as nn.PooledModel and PyG's global_mean_pool do."
            )
        return outputs

    def _call_of(self, batch: GraphBatch) -> BatchCall:
        first = next(iter(parameters_of(self.model)), None)
        if first is not None and first.name == "batch":  # not the vector, which comes behind the edges
            call = call_of_batch(nn.Identity(), batch.to_data(), {})
            return dataclasses.replace(call, calling=Calling((DATA,), {}))
        call = call_of_batch(self.model, batch, self._forms)
        if call.calling.takes(DATA):
            call = call_of_batch(self.model, batch.to_data(), self._forms)
        return call
