"""Recording: a planned step runs, and each call of a kernel is kept with the memory that it was given.

The tasks are the engine's own, in its order and its arena. A step is recorded twice. If both runs give a
kernel the same memory, and it is neither the arena's nor a weight's, then no step changes it: it becomes an
array of the program. A task that does more than call kernels and copy rows is refused by its name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphbraid import native
from graphbraid.errors import KernelError
from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.program import INPUT, Exchange
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.fullgraph.step.tasks import BoundCall, StepTask, place
from graphbraid.nn.module_traits import in_mode
from graphbraid.ops.kernels import Calls, watched, watching
from graphbraid.synth.weights import weights_of

_VIEWS = frozenset(
    {"alias", "as_strided", "detach", "expand", "permute", "select", "slice", "t", "transpose", "unsqueeze"}
    | {"unbind", "view", "_unsafe_view"}
)
"""PyTorch's functions that return views."""
GAP = 64
"""Bytes after each buffer if there are several ranks."""
_ASIDE = ("randint", "random", "_local_scalar", "empty", "new_empty")
"""Functions of PyTorch that draw a mask's seed or allocate memory, by how their names begin: not recorded."""
ROW_FUNCTIONS = frozenset({"add_", "addcmul_", "copy_", "div", "zero_"})
"""PyTorch's functions that write rows. Programs have functions for these, too."""


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """One task of a step with the kernels that it called, in order."""

    at: int
    """Its position in the planned step."""
    name: str
    calls: Calls


@dataclass(frozen=True, slots=True)
class Recording:
    """A step's tasks, and the gradients of its backward pass by the ``id`` of their parameter."""

    forward: tuple[RecordedTask, ...]
    backward: tuple[RecordedTask, ...] = ()
    gradients: dict[int, Tensor] = field(default_factory=dict)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that kernels were given."""
        for task in (*self.forward, *self.backward):
            for _, arguments in task.calls:
                yield from (given for given in _flat(arguments) if isinstance(given, Tensor))


class RecordedStep(PlannedStep):
    """A planned step on the host that can be recorded; KernelError without compiled kernels.

    With ``request.comm`` it is the step of one of several ranks. No transfer begins early.
    """

    def __init__(self, request: StepRequest) -> None:
        if native.kernels() is None:
            raise KernelError(f"synthesis records the compiled kernels' calls; {native.active().reason}")
        super().__init__(replace(request, begins_early=False))
        self.gap = 0
        """Bytes that follow each buffer of the arena and belong to it."""
        if request.comm is not None:
            for op in self.program.ops:
                if isinstance(op, Exchange) and op.out in self.plan.constants:
                    what = f"ranks exchange {op.inputs[0]}, which no step changes, before the first epoch"
                    raise NotLoweredError("synthesis", what, "more memory for values that are computed once")
            # With gaps, each buffer has its own address, even one without rows.
            buffers, self.gap = self.arena.buffers, GAP
            apart = [replace(b, shape=(b.nbytes + GAP,), dtype=torch.uint8) for b in buffers]
            self.arena.nbytes = place(apart)
            for buffer, placed in zip(buffers, apart, strict=True):
                buffer.offset = placed.offset

    def allocate(self) -> None:
        """Allocate the memory. If there are several ranks, this one holds only the features that it reads."""
        super().allocate()
        if self.plan.comm is not None:
            self.plan.features[INPUT].gather()

    @property
    def output_grad(self) -> Tensor:
        """The gradient of the output, ``(num_rows, width)``, from which the backward pass starts."""
        return self._output_grad.tensor

    @torch.no_grad()
    def recorded(self) -> Recording:
        """Run the step once, with zeros as the gradient of its output, and return its recording."""
        plan, forward, backward = self.plan, self._forward_tasks, self._backward_tasks
        plan.seeds.draw()
        did = tuple(self._task(at, plan.tasks[at]) for at in range(forward))
        if not self.request.training:
            return Recording(did)
        self.output_grad.zero_()
        undid = tuple(self._task(at, plan.tasks[at]) for at in range(backward, len(plan.tasks)))
        return Recording(did, undid, plan.parameters.take())

    @staticmethod
    def _task(at: int, task: StepTask) -> RecordedTask:
        run = task.run.run_once if isinstance(task.run, BoundCall) else task.run
        with watched() as calls, _WriteRecorder(task.name, calls):
            run()
        return RecordedTask(at, task.name, calls)


class _WriteRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds PyTorch's functions that write to memory to the record of calls."""

    def __init__(self, task: str, calls: Calls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._task, self._calls = task, calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        given = kwargs or {}
        if watching() is not self._calls:  # inside a kernel, which is recorded as one call
            return func(*args, **given)
        if name in ROW_FUNCTIONS and (name != "div" or set(given) == {"out"}):  # div writes rows only to out=
            self._calls.append((name, (*args, *given.values())))
        elif name not in _VIEWS and not name.startswith(_ASIDE):
            what = f"the task {self._task!r} runs PyTorch's {name}"
            raise NotLoweredError("synthesis", what, "a model without it, or training in Python")
        return func(*args, **given)


@dataclass(frozen=True, slots=True)
class Standing:
    """A recorded step, and what its memory is."""

    step: RecordedStep
    recording: Recording
    weights: dict[int, str]
    """Name of each weight by its address."""
    gradients: dict[int, str]
    """Name of each parameter by the address of its gradient."""
    arrays: frozenset[int]
    """Addresses of memory that no step changes."""


def record(step: RecordedStep, model: nn.Module) -> Standing:
    """Record a step and find the memory that no step changes."""
    with in_mode(model, training=step.request.training), _statistics_kept(model):
        step.allocate()
        step.forward()
        if step.request.training:  # values that the first step caches, such as a transpose, then exist
            step.backward(torch.zeros_like(step.output_grad))
        first, second = step.recorded(), step.recorded()
    names = {id(p): name for name, p in model.named_parameters()}
    weights = {address_of(weight): name for name, weight in weights_of(model).items()}
    gradients = {address_of(grad): names[key] for key, grad in second.gradients.items()}
    arrays = ({address_of(tensor) for tensor in each.tensors()} for each in (first, second))
    return Standing(step, second, weights, gradients, frozenset.intersection(*map(frozenset, arrays)))


@contextmanager
def _statistics_kept(model: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def address_of(tensor: Tensor) -> int:
    """Return where a tensor begins. Unlike ``data_ptr()``, it is not 0 for a tensor without elements."""
    return tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.element_size()


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Return a call's arguments as one flat list, with those of its epilogue and those given by name."""
    out: list[Any] = []
    for given in arguments:
        if isinstance(given, dict):
            out.extend(given.values())
        else:
            out.extend(_flat(given) if isinstance(given, tuple) else [given])
    return out
