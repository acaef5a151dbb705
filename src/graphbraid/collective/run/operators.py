"""Operators: the operators of one loader's stages, made for its device and called by whoever runs a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graphbraid.collective.run.lookahead import KEPT_BATCHES, RowBuffer
from graphbraid.collective.run.rows_ahead import RowsAhead
from graphbraid.collective.run.stages import (
    Batching,
    Context,
    Model,
    Transfer,
    completes_rows,
    find,
    made_by,
    make_operator,
)
from graphbraid.errors import ConfigError
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.sampling.cpu import COUNTED
from graphbraid.sampling.minibatch.mini_batch import MiniBatch


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Operators:
    """The operators of one loader."""

    cpu_batching: Batching
    device_batching: Batching | None
    """Operator by which the device prepares batches; None if it cannot."""
    transfer: Transfer
    model: Model
    row_buffer: RowBuffer | None = None
    """Rows that the device has; None without hot rows and look-ahead."""
    rows_ahead: RowsAhead | None = None
    """Gathers the rows of batches if features are not all in memory; None if they are."""

    @property
    def lookahead(self) -> int:
        """Number of coming steps that :meth:`claim` should be told."""
        return 0 if self.rows_ahead is None else self.rows_ahead.lookahead

    def claim(self, epoch: int, step: int, coming: Sequence[int] = ()) -> None:
        """Announce that the CPU is about to prepare a step; to be called in the order of the copies.

        Args:
            epoch: index of the epoch.
            step: the step.
            coming: up to :attr:`lookahead` steps that will be claimed after it.
        """
        if self.row_buffer is not None:
            self.row_buffer.claim(epoch, step)
        if self.rows_ahead is not None:
            self.rows_ahead.claim(epoch, step, coming)

    def forget(self) -> None:
        """Forget claimed steps that will not be prepared; to be called when no thread prepares one."""
        if self.rows_ahead is not None:
            self.rows_ahead.forget()

    def prepare(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a claimed step on the CPU."""
        if self.rows_ahead is not None:
            return self.rows_ahead.prepare(epoch, step)
        if self.row_buffer is None:
            return self.cpu_batching(epoch, step)
        with self.row_buffer.preparing(epoch, step):
            return self.cpu_batching(epoch, step)

    @property
    def batching_ahead(self) -> Any:
        """The device's batching if it can begin a batch before it is requested; else None."""
        return self.device_batching if hasattr(self.device_batching, "begin") else None

    @property
    def is_resident(self) -> bool:
        """Whether the device prepares batches without using the link, as all it reads is in its memory.

        Meaningful once the device has prepared a batch; False if its operator does not report placements.
        """
        placement = getattr(self.device_batching, "placement", {})
        return set(placement.values()) == {"device"}

    def explain(self) -> str:
        """Say what the sampling device holds and reads; empty if its operator does not."""
        explain: Callable[[], str] = getattr(self.device_batching, "explain", str)
        return explain()

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of sampling and gathering on the CPU; 0 if its operator does not count them.

        Raises:
            ConfigError: the operator's counts lack ``sample``, ``gather`` or ``batches``.
        """
        if not hasattr(self.cpu_batching, "stage_seconds"):
            return dict.fromkeys(COUNTED, 0.0)
        seconds: dict[str, float] = self.cpu_batching.stage_seconds()
        if not {*COUNTED} <= seconds.keys():
            raise ConfigError(
                f"stage_seconds() of {type(self.cpu_batching).__name__} must give 'sample', 'gather' and "
                f"'batches'; it gives {', '.join(map(repr, seconds)) or 'nothing'}"
            )
        if self.rows_ahead is not None:
            return seconds | {"gather": seconds["gather"] + self.rows_ahead.gather_seconds}
        return seconds

    @classmethod
    def of(cls, context: Context) -> Operators:
        """Make the operators registered for the context's device.

        Raises:
            ConfigError: a required operator is not registered or does not satisfy its protocol.
        """
        hardware = context.hardware
        context = dataclasses.replace(context, row_buffer=_row_buffer(context))
        own = None if hardware == "cpu" else find("batching", hardware)
        rows = context.source.rows if context.gather else None
        rows_ahead, on_host = None, context
        if rows is not None and rows.in_memory is None:
            on_host = dataclasses.replace(context, gather=False, row_buffer=None)
        cpu_batching = make_operator("batching", context.host, on_host)
        if rows is not None and rows.in_memory is None:
            rows_ahead = RowsAhead(rows, cpu_batching, None if context.row_buffer is None else rows.hot)
        return cls(
            cpu_batching=cpu_batching,
            rows_ahead=rows_ahead,
            device_batching=None if own is None else made_by(own, "batching", hardware, context),
            transfer=make_operator("transfer", hardware, context),
            model=make_operator("model", hardware, context),
            row_buffer=context.row_buffer,
        )


def can_look_ahead(context: Context) -> bool:
    """Return whether look-ahead is possible: dense features in memory are gathered, and the transfer fits."""
    rows = context.source.rows
    in_memory = context.gathered_rows is not None or (rows is not None and rows.in_memory is not None)
    return context.gather and in_memory and completes_rows(find("transfer", context.hardware))


def _row_buffer(context: Context) -> RowBuffer | None:
    """Make what knows the rows that the device has; None if there are none that the transfer can use."""
    looks_ahead = context.lookahead and can_look_ahead(context)
    has_hot = context.hot is not None and completes_rows(find("transfer", context.hardware))
    if not (looks_ahead or has_hot):
        return None
    x = context.source.graph.x if context.source.rows is None else context.source.rows
    assert x is not None
    assert not isinstance(x, SparseFeatures | ScaledFeatures), "rows of int8 have a source of their own"
    return RowBuffer(x, kept_batches=KEPT_BATCHES if looks_ahead else 0, hot=context.hot)
