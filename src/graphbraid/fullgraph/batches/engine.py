"""BatchEngine: a model compiled for mini-batches, as a module in its place."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from torch import Tensor, nn

from graphbraid.fullgraph.batches.calls import BatchCall, BatchForm, call_of_batch, call_with
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.runner import BatchRunner
from graphbraid.fullgraph.program import Break, NotLoweredError
from graphbraid.fullgraph.reading.modes import CompiledModule
from graphbraid.signatures import typed

_TO_CALLER = 4
"""Frames from a call of the engine, which is a module, to its user."""


class BatchEngine(CompiledModule):
    """Runs a model on mini-batches, or on any nodes and edges, with graphbraid's operators.

    ``engine(batch)`` returns the rows of the batch's seeds, and ``engine(x, edge_index, ...)`` those of all
    nodes, as the model would. Both run under autograd. Create engines with :func:`graphbraid.compile`.

    Parameters, buffers and submodules are the model's own, under the model's names, and so are the keys of
    ``state_dict``. A copy of an engine is an engine of a copy of its model. A pickle holds no programs.

    Args:
        model: any module.
        strict: whether to raise an error instead of running a model as it is written.
    """

    _runner: BatchRunner
    _callings: dict[Any, BatchForm]

    @typed
    def __init__(self, model: nn.Module, *, strict: bool = False) -> None:
        super().__init__(model)
        vars(self).update(_runner=BatchRunner(model, strict=strict), _callings={})

    @property
    def why(self) -> NotLoweredError | None:
        """The reason why the last call ran as it is written; None if it ran by a program."""
        return self._runner.why

    @property
    def breaks(self) -> tuple[Break, ...]:
        """The graph breaks of the program that ran last: the parts that PyTorch runs as they are written."""
        last = self._runner.last
        return last.breaks if isinstance(last, BatchProgram) else ()

    def explain(self, *args: Any, **named: Any) -> str:
        """Describe the program that ran last, or say why the model ran as it is written.

        Args:
            *args: a batch, or the model's own arguments, as for a call. If given, the program of that call is
                described, and steps on it are timed, with the share of the parts that run as written.
            **named: the model's own arguments by name.
        """
        try:
            return self._runner.explain(self._call(args, named) if args or named else None)
        except NotLoweredError as why:
            return why.explained()

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, preformatted

        return notebook(f"Engine of {type(self.model).__name__} for batches", preformatted(self.explain()))

    def forward(self, *args: Any, **named: Any) -> Any:
        """Call the model on a batch, or with the arguments of its own ``forward``.

        Args:
            *args: one mini-batch of any loader, whose attributes the model receives by the names of its
                parameters; or the model's own arguments.
            **named: the model's own arguments by name.

        Returns:
            The model's output. For a batch with seeds, only the seeds' rows. Of a dict by node type, the
            output of the seeds' type.

        Raises:
            ConfigError: ``strict`` is set and the model has no lowered form; or the batch lacks an
                argument of the model.
            DataError: the model returns outputs by node type, and none of the seeds' type.
        """
        runner = self._runner
        try:
            call = self._call(args, named)
        except NotLoweredError as why:
            runner.runs_as_written(why, stacklevel=_TO_CALLER)
            return runner.model(*args, **named)
        return runner.run(call, stacklevel=_TO_CALLER)

    def _call(self, args: tuple[Any, ...], named: dict[str, Any]) -> BatchCall:
        if len(args) == 1 and not named and _is_batch(args[0]):
            return call_of_batch(self.model, args[0], self._callings)
        return call_with(self.model, args, named)

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchEngine:
        return BatchEngine(copy.deepcopy(self.model, memo), strict=self._runner.strict)

    def __reduce__(self) -> Any:
        return partial(BatchEngine, strict=self._runner.strict), (self.model,)


def _is_batch(value: Any) -> bool:
    if isinstance(value, Tensor | dict) or not callable(getattr(value, "keys", None)):
        return False
    return hasattr(type(value), "num_nodes") or hasattr(value, "num_nodes")  # it may be costly to count
