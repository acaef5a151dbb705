"""Batching in worker processes, for samplers that must not share the trainer's process.

A worker process samples and sends a few arrays of ids through a pipe; feature rows are gathered by the thread
that asked. If a process ends before it has answered, :class:`WorkerDiedError` is raised, after which the
executor continues with the other route if there is one.
"""

import dataclasses
import multiprocessing
import os
import pickle
import queue
import signal
import traceback
import weakref
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple

import torch

from graphbraid.collective.hardware.cpu import CpuBatching
from graphbraid.collective.run.stages import Context, Factory, WorkerDiedError
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import PreparedBatch, Sampled, SampledEdges
from graphbraid.sampling.source import BatchSource

LOOK_SECONDS = 1.0
"""Seconds between an idle worker process's checks that its parent process still exists."""


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection


class ProcessBatching:
    """Batching by ``context.workers`` processes; register this class or one derived from it.

    Args:
        context: context of the loader. The processes receive its graph without features, and not its device.
        prepare: factory of the operator that runs in each process, where it must be importable.
        start_method: start method of :mod:`multiprocessing`. ``fork`` is fast but safe only before any thread
            has been started.
    """

    def __init__(
        self,
        context: Context,
        *,
        prepare: Factory = CpuBatching,
        start_method: Literal["spawn", "forkserver", "fork"] = "spawn",
    ) -> None:
        self._context = context
        inside = dataclasses.replace(
            context,
            source=BatchSource(graph=context.source.graph.replace(x=None, edge_attr=None)),
            device=torch.device("cpu"),
            workers=1,
            lookahead=False,
            row_buffer=None,
        )
        how = multiprocessing.get_context(start_method)
        self._workers = [_start(how, inside, prepare) for _ in range(context.workers)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, including those that have ended."""
        return [worker.process.pid or 0 for worker in self._workers]

    def __call__(self, epoch: int, step: int) -> MiniBatch:
        """Prepare the mini-batch of a step on the CPU; WorkerDiedError if the worker has died."""
        worker = self._free.get()
        try:
            answer = self._ask(worker, epoch, step)
        finally:
            self._free.put(worker)  # also if it has died: whoever asks it next must get the error
        if isinstance(answer, BaseException):
            raise answer
        batch = self._as_batch(answer, epoch, step)
        if self._context.gather:
            _ = batch.x  # in this thread, not in the one that trains
        return batch

    def close(self) -> None:
        """Terminate the processes."""
        self._finalizer()

    def _ask(self, worker: _Worker, epoch: int, step: int) -> Any:
        process, connection = worker
        try:
            connection.send((epoch, step))
            wait([connection, process.sentinel])
            if connection.poll():
                return connection.recv()
        except (EOFError, OSError):
            pass  # the process ended while the pipe was in use
        process.join(1.0)
        raise WorkerDiedError(
            f"the process that prepares mini-batches (stage 'batching' on {self._context.hardware!r}, pid "
            f"{process.pid}) {_how_it_ended(process.exitcode)} at epoch {epoch}, step {step}. Nothing is "
            f"wrong with the step: iterate again from it (batches({epoch}, {step}), or resume the run). If "
            "the system ended it for want of memory, as its log says, use fewer workers or smaller batches"
        )

    def _as_batch(self, arrays: tuple[Any, ...], epoch: int, step: int) -> MiniBatch:
        n_id, input_id, edges, nodes_per_hop, edges_per_hop = arrays
        sampled = Sampled(
            n_id_by_type=[torch.from_numpy(n_id)],
            edges_by_relation=[
                [
                    SampledEdges(
                        indptr=torch.from_numpy(p),
                        indices=torch.from_numpy(i),
                        positions=None if e is None else torch.from_numpy(e),
                    )
                    for p, i, e in edges
                ]
            ],
            nodes_by_type=[nodes_per_hop],
            counts_by_relation=[edges_per_hop],
        )
        prepared = PreparedBatch(step, torch.from_numpy(input_id), sampled, [None])
        return MiniBatch(self._context.source, prepared, layout=self._context.sampler.layout, epoch=epoch)


def _start(how: Any, context: Context, prepare: Factory) -> _Worker:
    ours, its = how.Pipe()
    process = how.Process(
        target=_work, args=(its, ours, context, prepare, os.getpid()), name="graphbraid-batching", daemon=True
    )
    process.start()
    its.close()
    return _Worker(process, ours)


def _stop(workers: list[_Worker]) -> None:
    for process, connection in workers:
        connection.close()
        process.terminate()
        process.join(5.0)


def _work(its: Connection, ours: Connection, context: Context, prepare: Factory, parent: int) -> None:
    """Run a worker process: answer requests until the other end of the pipe is gone."""
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    torch.set_num_threads(1)
    operator = prepare(context)
    while os.getppid() == parent:
        try:
            if not its.poll(LOOK_SECONDS):
                continue
            epoch, step = its.recv()
        except (EOFError, OSError):
            return
        its.send(_answer(operator, epoch, step))


def _answer(operator: Any, epoch: int, step: int) -> Any:
    try:
        batch: MiniBatch = operator(epoch, step)
    except Exception as error:
        error.add_note(f"in the process that prepares mini-batches:\n{traceback.format_exc()}")
        return _that_travels(error)
    sampled = batch.sampled
    return (
        sampled.n_id.numpy(),
        batch.input_id.numpy(),
        [
            (e.indptr.numpy(), e.indices.numpy(), None if e.positions is None else e.positions.numpy())
            for e in sampled.edges
        ],
        sampled.nodes_per_hop,
        sampled.edges_per_hop,
    )


def _that_travels(error: Exception) -> Exception:
    """Return the error, or a ``RuntimeError`` with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a class's own pickling may raise anything
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "does not answer any more"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
