"""BatchRunner: runs a model on mini-batches by programs that it was read into, and follows its changes.

Under ``torch.autocast("cpu", torch.bfloat16)`` a program multiplies in bfloat16 wherever there is a dense
product. So the model is first run once as it is written, under autocast: all its products must be in
bfloat16, and the program's outputs get the dtype that its outputs have.

At the end stand the times of a step on one batch, and the share of the parts that run as written.
"""

from __future__ import annotations

import inspect
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphbraid import native
from graphbraid.errors import ConfigError, GraphbraidError, RunsAsWrittenWarning
from graphbraid.fullgraph.batches.call_forms import with_edges
from graphbraid.fullgraph.batches.calls import BatchCall
from graphbraid.fullgraph.batches.edges import Levels
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.operations import RUN, BatchRun, check_device
from graphbraid.fullgraph.batches.recorded import RecordedBatches
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.program import (
    Break,
    FromKept,
    NotLoweredError,
    Operation,
    Program,
    reasons_of,
)
from graphbraid.fullgraph.reading.as_written import map_tensors, of_node_type
from graphbraid.fullgraph.reading.break_trial import Breaks
from graphbraid.fullgraph.reading.calling import ADJACENCY, DATA, EDGE_ATTR, EDGE_TYPE, EDGES, NUM_NODES, X
from graphbraid.fullgraph.reading.modes import (
    DispatchMode,
    kept_buffers,
    lock_of,
    plain_tensors,
    unseen_by_hooks,
    why_not_now,
)
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.reading.relational import fused_layers, relations_of_layers
from graphbraid.fullgraph.reading.watch import ModelWatch
from graphbraid.graph.types import ONLY_EDGE_TYPE, ONLY_NODE_TYPE
from graphbraid.ops.kernels import Calls, watched
from graphbraid.ops.linear import tall_product

_DTYPES = (torch.float32, torch.float64)
_MOST_FORMS = 4
"""Number of states of a model whose programs are kept, since a model alternates between modes."""
_MOST_CHANGES = 16
"""Number of calls in succession that may each find another state, before calls run as written."""


class _Form:
    """A model in one state, with the program of each signature of its calls."""

    def __init__(self, model: nn.Module) -> None:
        self.seen = ModelWatch(model)
        self.modes = self.seen.modes()
        self.programs: dict[Any, BatchProgram | NotLoweredError] = {}
        self.unaligned: set[str] = set()
        """See :meth:`.BatchCall.breaks`."""


class BatchRunner:
    """Runs calls of one model on mini-batches.

    Args:
        model: any module.
        strict: whether to raise an error instead of running a model as it is written.
        warns: whether to warn once if it runs as it is written.
        chooses: whether a batch so small that its program takes longer runs as the model is written.
    """

    def __init__(
        self, model: nn.Module, *, strict: bool = False, warns: bool = True, chooses: bool = False
    ) -> None:
        self.model, self.strict, self.warns, self.chooses = model, strict, warns, chooses
        self._lock, self._forms = lock_of(model), list[_Form]()
        self._num_changes = 0
        self._unread: ModelWatch | None = None
        self._state: _Form | None = None
        """The state of the model when it was last looked at."""
        self.recorded = RecordedBatches()
        self.last: BatchProgram | NotLoweredError | int | None = None
        """The program that ran last, or the reason why the last call ran as written; None before a call. Of a
        small batch, the number of its edges."""

    def run(self, call: BatchCall, *, stacklevel: int = 1) -> Any:
        """Run a call, by a program if there is one; of a batch with seeds, return only their rows.

        Args:
            call: the call.
            stacklevel: which caller a warning is shown at.

        Raises:
            ConfigError: ``strict`` is set and a part of the model has no lowered form; or the batch does not
                have edges for as many layers as the model.
        """
        if self._is_small_as_before(call):
            return self._small(call)
        found = self._program_for(call)
        form, noted = call.form, (self._state, found)
        if self.chooses and isinstance(found, BatchProgram) and (form is None or form.small != noted):
            if form is not None:
                form.small = noted
            if self._is_small(found, call):
                return self._small(call)
        if isinstance(found, BatchProgram):
            self.last = found
            if found.breaks and self.warns:
                parts = "".join(f"\n  {reason}" for reason in reasons_of(found.breaks))
                what = "parts of the model run as they are written, between lowered ones"
                self._warn(f"{self._name}: {what}:{parts}", stacklevel + 1)
            run, returned = _run_of(found, call, BatchRun), found.read.returned
            with call.around():
                out = self.recorded.outputs(run)
            if call.num_seeds is not None and call.num_seeds < out.shape[0]:
                out = out[: call.num_seeds]
            return out if returned is None else returned.of(out, partial(_kept, run, call.num_seeds))
        self.runs_as_written(found, stacklevel=stacklevel + 1)
        try:
            given = {what: call.values[what] for what in call.calling.roles}
        except ConfigError as error:  # a batch in layout 'blocks' has no edge_index
            raise ConfigError(f"{found}. As the model is written, it cannot run either: {error}") from error
        with fused_layers(self.model), call.around():
            out = call.calling.run(self.model, given)
        return out if call.num_seeds is None else _of_seeds(out, call, call.num_seeds)

    def _small(self, call: BatchCall) -> Any:
        """Run a batch that is small as the model is written."""
        self.last = call.num_edges
        out = call.calling.run(self.model, call.values)
        if (num_seeds := call.num_seeds) is None:
            return out
        if not call.given.typed and isinstance(out, Tensor):
            x = call.values[X]
            if isinstance(x, Tensor) and len(x) == len(out):  # as nearly always
                return out[:num_seeds]
        return _of_seeds(out, call, num_seeds)

    def runs_as_written(self, why: NotLoweredError, *, stacklevel: int = 1) -> None:
        """Note that a call runs as it is written, and warn of the first one.

        Raises:
            ConfigError: ``strict`` is set.
        """
        self.last = why.kept()
        if self.strict:
            raise ConfigError(f"strict=True, and {self._text_of(why)}")
        if self.warns:
            self._warn(self._text_of(why), stacklevel + 1)

    def _warn(self, text: str, stacklevel: int) -> None:
        self.warns = False
        warnings.warn(text, RunsAsWrittenWarning, stacklevel=stacklevel + 1)

    @property
    def why(self) -> NotLoweredError | None:
        """The reason why the last call ran as it is written; None if it ran by a program."""
        if isinstance(self.last, int):
            what = f"on {self.last:,} edges PyTorch takes less time for the model as it is written"
            needed = "strict=True to run the program on every batch"
            return NotLoweredError("batch", what, needed, code="small")
        return self.last if isinstance(self.last, NotLoweredError) else None

    @property
    def reason(self) -> str:
        """Why the last call, or parts of it, ran as written; empty if it all ran by a program."""
        if isinstance(self.last, BatchProgram):
            return "; ".join(reasons_of(self.last.breaks)) if self.last.breaks else ""
        return "" if (why := self.why) is None else f"{why.part}: {why.reason}"

    @property
    def _name(self) -> str:
        return f"{type(self.model).__name__} ({_place_of(self.model)})"

    def _text_of(self, why: NotLoweredError) -> str:
        return f"{self._name} runs as it is written. {why.explained()}"

    def explain(self, call: BatchCall | None = None) -> str:
        """Describe the program that ran last, or say why the model ran as it is written.

        Args:
            call: a call whose program is described and timed. If None, nothing is timed.
        """
        if call is not None:
            self.last = program = self._program_for(call)
            if isinstance(program, BatchProgram):
                lines = timed_lines(self.model, program, lambda: _run_of(program, call, NotedRun))
                if is_small := self.chooses and self._is_small(program, call):
                    self.last = call.num_edges
                return "\n".join((*([self.explain()] if is_small else []), str(program), *lines))
        if self.last is None:
            return "Nothing has run yet: a model is read at its first batch."
        if (why := self.why) is not None:
            return self._text_of(why)
        return "\n".join((str(self.last), *self.recorded.lines()))

    def _is_small_as_before(self, call: BatchCall) -> bool:
        """Return whether a batch is small for the program of the last batch of its form; False if unknown.

        A model that runs as written follows its own changes. So only its modes are compared, which decide
        most of what a program is: a look at all that the model holds takes as long as a layer.
        """
        noted, now = None if call.form is None else call.form.small, self._state
        if now is None or noted is None or noted[0] is not now:
            return False
        return self._is_small(noted[1], call) and now.seen.modes() == now.modes

    def _is_small(self, program: BatchProgram, call: BatchCall) -> bool:
        """Return whether a batch runs as the model is written although there is a program.

        Edges are counted and no clock is read, so that a batch runs in the same way each time.
        """
        of_matrix = call.given.takes_matrix(call.calling)
        if program.read.returned is not None or not (program.delay > 0 or of_matrix):
            return False
        if of_matrix and call.lacks_matrices():
            return False
        if call.drawn is not None and call.batch.layout == "blocks":
            return False
        by_hop = None
        if call.trims and not call.given.typed:
            by_hop = getattr(call.batch, "num_sampled_edges", None)
        by_hop = by_hop if isinstance(by_hop, list) else None
        takes_longer = program.takes_longer(call.num_edges, by_hop, of_matrix=of_matrix)
        return takes_longer and all(isinstance(x, Tensor) and x.is_cpu for x in call.x.values())

    # ---- programs

    def _program_for(self, call: BatchCall) -> BatchProgram | NotLoweredError:
        """Return the program of a call, read anew if the model has changed, or why there is none."""
        if call.form is not None and call.form.taken:
            form = call.form
            call.given = with_edges(form.given, call.values, form.taken, call.calling, self.model)
        first = _first_parameter(self.model)
        is_half = multiplies_in_half(first)
        why = why_not_now("cpu" if first is None else first.device.type, in_half=is_half)
        if (why := why or (None if call.fits(first) else call.why_not(first))) is not None:
            return why
        with self._lock, plain_tensors():
            state = self._form()
            if isinstance(state, NotLoweredError):
                return state
            self._state, key = state, (is_half, call.signature)
            if (found := state.programs.get(key)) is None:
                found = state.programs[key] = self._read(call, state, is_half=is_half)
            if isinstance(found, BatchProgram) and (unaligned := call.unaligned(found.by_row)):
                state.unaligned.update(unaligned)
                found = state.programs[key] = self._read(call, state, is_half=is_half)
        return (
            found
            if isinstance(found, NotLoweredError)
            else call.why_not_relations(found.num_relations) or found
        )

    def _form(self) -> _Form | NotLoweredError:
        """Return the model's current state."""
        for form in reversed(self._forms):
            if not form.seen.has_changed():
                self._num_changes = 0
                return form
        if self._num_changes >= _MOST_CHANGES and (self._unread is None or self._unread.has_changed()):
            self._unread = ModelWatch(self.model)
            what = f"a value that it reads changed in each of the last {_MOST_CHANGES} calls"
            return NotLoweredError("forward", what, "values that stay between calls")
        self._num_changes += 1
        self._forms = [*self._forms[1 - _MOST_FORMS :], _Form(self.model)]
        return self._forms[-1]

    def _read(self, call: BatchCall, form: _Form, *, is_half: bool) -> BatchProgram | NotLoweredError:
        try:
            what = "with cached=True it keeps what it computed from the first batch"
            named = self.model.named_modules()
            cached = [name for name, module in named if getattr(module, "cached", False) is True]
            whole = {f"model.{name}": NotLoweredError(name, what, "cached=False") for name in cached}
            if whole and (self.strict or "" in cached or call.given.typed):
                raise next(iter(whole.values()))
            if len({(p.dtype, p.device) for p in self.model.parameters()}) > 1:
                raise NotLoweredError("parameters", "they are of several dtypes or on several devices")
            breaks = None if self.strict else replace(call.breaks(self.model, form.unaligned), whole=whole)
            with unseen_by_hooks(), torch.autocast("cpu", enabled=False):
                made = BatchProgram(_program_of(self.model, call, breaks))
            if is_half and made.breaks:
                raise NotLoweredError(
                    "autocast", f"in part as it is written, {reasons_of(made.breaks)[0]}", "float32"
                )
            if is_half:
                made = BatchProgram(made.read, out_dtype_of(self.model, call))
            for written in made.breaks:
                written.given.clear()  # the trial's; each batch gives its own
            for op in made.ops:
                if type(op) not in RUN:
                    raise NotLoweredError(op.symbol, "no operator stands for it on mini-batches")
                check_device(op, next(iter(call.x.values())))
            return made
        except NotLoweredError as why:
            return why.kept()
        except GraphbraidError:
            raise
        except Exception as error:  # reading must never make a model fail that runs as written
            return NotLoweredError.of_failure(self.model, error)


def _program_of(model: nn.Module, call: BatchCall, breaks: Breaks | None) -> Program:
    """Read a model as a call calls it.

    Raises:
        NotLoweredError: part of the model has no lowered form.
    """
    given = call.described()
    how: dict[str, Any] = {"dtypes": _DTYPES, "breaks": breaks}
    if given.typed:
        return read_model(model, 0, given, call.calling, node_type=call.seed_type, **how)
    if EDGE_TYPE in given.held or call.calling.takes(EDGE_TYPE):
        given = replace(given, relations=relations_of_layers(model))
    return read_model(model, given.node_types[0].channels, given, call.calling, **how)


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return what ``next(module.parameters())`` does; that goes through names, and takes 10 us."""
    for one in module._parameters.values():
        if one is not None:
            return one
    for child in module._modules.values():
        if child is not None and (found := _first_parameter(child)) is not None:
            return found
    return None


_Run = TypeVar("_Run", bound=BatchRun)


def _kept(run: BatchRun, num_seeds: int | None, one: FromKept) -> Any:
    """Return a result that a break has kept for the model to return. Of node rows, return the seeds' rows."""
    kept, shape = run.kept[one.value][one.call], (run.rows_of(one.value),)
    if run.program.out_dtype is not None:  # nothing runs as written, so that all results are rows
        kept = kept.to(run.program.out_dtype)
    if num_seeds is None:
        return kept
    return map_tensors(kept, lambda t: t[:num_seeds] if t.shape[:1] == shape else t)


def _of_seeds(out: Any, call: BatchCall, num_seeds: int) -> Any:
    """Return the seeds' rows of the model's output. Of a dict by node type, take the seeds' type.

    Raises:
        DataError: the model returns no outputs of their type.
    """
    x: Any = call.values[X]
    count = 0 if call.given.typed else int(call.batch.num_nodes)
    if call.seed_type is not None:
        x, count = x.get(call.seed_type), call.num_nodes[call.seed_type]
        if isinstance(out, Mapping) and call.num_nodes.keys() >= out.keys():
            out = of_node_type(out, call.seed_type)
    num_nodes = count if x is None else x.shape[0]  # x may have been replaced
    return map_tensors(out, lambda t: t[:num_seeds] if t.shape[:1] == (num_nodes,) else t)


def _run_of(program: BatchProgram, call: BatchCall, kind: type[_Run]) -> _Run:
    edges = call.edges(0 if call.given.typed else program.num_relations)
    sizes = edges.sizes(program.num_levels, program.last_coupled)
    if call.given.typed:
        features = {one.input: call.x[one.name] for one in program.read.node_types if one.name in call.x}
    else:
        features = dict.fromkeys(program.inputs, call.x[ONLY_NODE_TYPE])
    attr = call.edge_attr if program.reads_edges else {}
    given = call.given_to(program.breaks)
    return kind(program, Levels(edges, sizes), features, given, attr)


def _place_of(model: nn.Module) -> str:
    """Return file and line of a model's ``forward``."""
    try:
        lines = inspect.getsourcelines(type(model).forward)
        return f"{inspect.getsourcefile(type(model).forward)}:{lines[1]}"
    except (OSError, TypeError, AttributeError):  # AttributeError: a ScriptModule's class
        return type(model).__module__


# ---- models under autocast

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul"})
_NUM_ROWS = 8
"""Number of nodes of each type that a model is tried on."""


def multiplies_in_half(parameter: Tensor | None) -> bool:
    """Return whether autocast now lowers the products of a model with such parameters to bfloat16."""
    return (
        parameter is not None
        and parameter.is_cpu
        and parameter.dtype == torch.float32
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
    )


def out_dtype_of(model: nn.Module, call: BatchCall) -> torch.dtype:
    """Return the dtype of a model's outputs under autocast, which must be on.

    The model runs once, without gradients, on a few nodes. Its buffers and torch's random state stay as they
    are. Of outputs by node type, the seeds' type counts.

    Raises:
        NotLoweredError: some products are not in bfloat16, or the outputs have several dtypes.
    """
    if call.calling.takes(DATA):
        raise NotLoweredError(
            "autocast", "the model is given the whole batch", "a forward(x, edge_index, ...)"
        )
    values = {what: _few(call, what) for what in call.calling.roles}
    plain = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)  # its cache would hold no gradients
    with torch.random.fork_rng([]), kept_buffers(model), torch.no_grad(), plain, _Products():  # type: ignore[no-untyped-call]
        out = call.calling.run(model, values)
    if call.seed_type is not None and isinstance(out, Mapping) and call.num_nodes.keys() >= out.keys():
        out = of_node_type(out, call.seed_type)
    found = {one.dtype for one in tree_leaves(out) if isinstance(one, Tensor) and one.is_floating_point()}
    if len(found) != 1:
        raise NotLoweredError("autocast", "the model's outputs have several dtypes", "outputs of one dtype")
    return found.pop()


def _few(call: BatchCall, what: str) -> Any:
    """Return an argument for the first nodes of a batch, where each node has an edge to itself."""
    counts = {one: min(count, _NUM_ROWS) for one, count in call.num_nodes.items()}
    if what == X:
        rows = {one: x[:_NUM_ROWS].clone() for one, x in call.x.items()}
        return rows if call.given.typed else rows[ONLY_NODE_TYPE]
    if what == EDGES:
        place = next(iter(call.x.values())).device
        lists = {
            one: torch.arange(min(counts[one[0]], counts[one[-1]]), device=place).expand(2, -1).contiguous()
            for one in call.edge_types or (ONLY_EDGE_TYPE,)
        }
        return lists if call.given.typed else lists[ONLY_EDGE_TYPE]
    if what == NUM_NODES:
        return sum(counts.values())
    if what == ADJACENCY and call.given.typed:
        raise NotLoweredError("autocast", "its edges are sparse matrices by relation", "edge_index_dict")
    if what == ADJACENCY and call.given.matrix is not None:
        [count], place = counts.values(), next(iter(call.x.values())).device
        ends = torch.arange(count, device=place).expand(2, -1)
        weight = torch.ones(count, device=place)
        return call.given.matrix.made(ends, weight, count, torch.float32)
    value = call.values[what]
    if not isinstance(value, Tensor) or call.given.typed:
        return value
    if what == call.given.weights or what in (EDGE_ATTR, EDGE_TYPE) or call.has_rows(what):
        [count] = counts.values()  # edges are padded to a count, too: the batch may have fewer
        first = value[:count]
        value = torch.cat((first, first.new_zeros(count - len(first), *first.shape[1:])))
    return value.clone()


class _Products(DispatchMode):
    """Refuses products of other dtypes than bfloat16, and operators that may multiply by themselves."""

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        multiplies = func.namespace != "aten" or name in _PRODUCTS
        dtypes = {one.dtype for one in tree_leaves(args) if isinstance(one, Tensor) and one.ndim > 1}
        if multiplies and torch.float32 in dtypes:
            what = f"{func.namespace}.{name} runs in float32 in the model, inside or in spite of autocast"
            raise NotLoweredError("autocast", what, "products in bfloat16")
        return func(*args, **(kwargs or {}))


_REPEATS = 5
"""Number of timed steps, after one that is not timed."""
_MULTIPLICATIONS: dict[str, Callable[..., int]] = {
    "tall_product": lambda a, _, out, *__: a.shape[1] * out.numel(),
    "tall_gram": lambda a, _, out, *__: a.shape[0] * out.numel(),
}
"""Multiplications of each kernel for dense products, by its arguments."""
_LARGE_ROWS, _LARGE_WIDTH = 4096, 256
"""Size of the product that says how fast this machine multiplies."""


class NotedRun(BatchRun):
    """A run that notes the rows that graph breaks read."""

    noted: dict[str, list[Tensor]]

    def read(self, op: Operation, place: int = 0) -> Tensor:
        """Return the rows of an operation's input."""
        rows = super().read(op, place)
        if isinstance(op, Break) and op.is_graph_break:
            vars(self).setdefault("noted", {}).setdefault(op.out, []).append(rows.detach())
        return rows


def timed_lines(model: nn.Module, program: BatchProgram, make: Callable[[], NotedRun]) -> list[str]:
    """Time steps, forward and backward without loss and optimizer; return the lines to print.

    Gradients, buffers and torch's random state stay as they are. ``make`` makes a run of the program on the
    batch.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = {one.device for one in parameters if one.is_cuda}
    with torch.random.fork_rng(devices), torch.enable_grad(), kept_buffers(model):
        step = _seconds(lambda: make().outputs(), parameters)
        with watched() as calls:
            _gradients(make().outputs(), parameters)
        products = _product_lines(calls, step)
        run = make()
        run.outputs()
        lines, written = [], 0.0
        for op in program.breaks:
            rows = [one.requires_grad_(one.is_floating_point()) for one in run.noted[op.out]]
            seconds = _seconds(lambda op=op, rows=rows: run.made_of(rows, op), [*rows, *op.parameters()])  # type: ignore[misc]
            lines.append(f"    {1e3 * seconds:.3f} ms in {op.out} = {op.details()}")
            written += seconds
    share = f"  {1e3 * written:.3f} ms of it, {written / step:.0%}, in parts that run as written"
    return [f"A step on this batch: {1e3 * step:.3f} ms", *run.lines(), *products, share, *lines]


def _product_lines(calls: Calls, step: float) -> list[str]:
    """Time the dense products of a step again by themselves, beside a large product on this machine."""
    products = [(name, arguments) for name, arguments in calls if name in _MULTIPLICATIONS]
    kernels: Any = native.kernels()
    if not products:
        return []

    flops = 2.0 * sum(_MULTIPLICATIONS[name](*arguments) for name, arguments in products)
    taken = HOST.seconds(
        lambda: [getattr(kernels, name)(*arguments) for name, arguments in products], _REPEATS
    )
    a, b = torch.ones(_LARGE_ROWS, _LARGE_WIDTH), torch.ones(_LARGE_WIDTH, _LARGE_WIDTH)
    rate = 2.0 * a.numel() * _LARGE_WIDTH / HOST.seconds(lambda: tall_product(a, b), _REPEATS)
    return [
        f"  {1e3 * taken:.3f} ms of it, {taken / step:.0%}, in {len(products)} dense products: "
        f"{flops / 1e9:.3g} GFLOP at {flops / taken / 1e9:.3g} GFLOP/s",
        f"    floor {1e3 * flops / rate:.3f} ms at the {rate / 1e9:.3g} GFLOP/s of a product of "
        f"{_LARGE_ROWS} x {_LARGE_WIDTH} by {_LARGE_WIDTH} x {_LARGE_WIDTH}",
    ]


def _seconds(run: Callable[[], Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the median time of a forward pass and the gradients of ``wanted``."""
    inputs, taken = [one for one in wanted if one.requires_grad], []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        out = run()
        _gradients(out, inputs)
        if out.is_cuda:
            torch.cuda.synchronize(out.device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def _gradients(out: Tensor, wanted: Sequence[Tensor]) -> None:
    if out.requires_grad and wanted:
        torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)
