"""Stage operators for the CPU: batches come from the compiled sampler's threads and need no transfer."""

import threading
import time

from graphbraid.collective.run.stages import Context, register
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.minibatch.mini_batch import MiniBatch


@register("batching", "cpu")
class CpuBatching:
    """Batching by the compiled sampler's threads (or the reference sampler), one step at a time."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._late_gather_seconds, self._counting = 0.0, threading.Lock()
        self._pipeline = make_pipeline(
            context.source.graph,
            context.sampler,
            None if context.row_buffer is not None else [context.gathered_rows],
            num_threads=context.workers,
            depth=1,
            lists=context.source.lists,
        )

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the CPU."""
        batch, buffer = self._prepared(epoch, step), self.context.row_buffer
        if buffer is None:
            return batch
        found = buffer.look_up(epoch, step, batch.n_id)
        started = time.perf_counter()
        if found is None:
            _ = batch.x
        else:
            batch.send_part(buffer.part_of(found, batch.n_id))
        self._count_gather(time.perf_counter() - started)
        return batch

    def _count_gather(self, seconds: float) -> None:
        with self._counting:
            self._late_gather_seconds += seconds

    def _prepared(self, epoch: int, step: int) -> MiniBatch:
        context = self.context  # the pipeline's threads do the work while this one waits
        [prepared] = self._pipeline.run(context.schedule, epoch, step, step + 1)
        if context.source.rows is not None and context.gather and context.row_buffer is None:
            started = time.perf_counter()
            prepared = prepared._replace(x=[context.source.rows.gather(prepared.sampled.n_id)])
            self._count_gather(time.perf_counter() - started)
        return MiniBatch(context.source, prepared, layout=context.sampler.layout, epoch=epoch)

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds per stage, summed over threads, and the number of ``batches``."""
        seconds = self._pipeline.stage_seconds()
        return seconds | {"gather": seconds["gather"] + self._late_gather_seconds}


@register("transfer", "cpu")
class NoTransfer:
    """The transfer of a device that is the CPU: batches stay where they are."""

    def __init__(self, _: Context) -> None:
        pass

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """Return the batch itself."""
        return batch

    def free(self, batch: MiniBatch) -> None:
        """Do nothing: memory is freed with the last reference."""


@register("model", "cpu")
class NoMarks:
    """The model stage of the CPU, on which the caller's step has ended when it returns."""

    def __init__(self, _: Context) -> None:
        pass

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Return the batch itself."""
        return batch

    def end(self, batch: MiniBatch) -> None:
        """Do nothing."""
