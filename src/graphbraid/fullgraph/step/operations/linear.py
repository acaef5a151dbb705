"""Linear maps: products with weights, sums over in-neighbours and constants of these; and epilogues.

An epilogue is bias, activation and dropout, alone or fused with another kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.program import WHOLE, Epilogue, Following, Linear
from graphbraid.fullgraph.step.features import SparseInput, computed_once
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import Constant, FirstRows, Mask, MaskSeed, Rows
from graphbraid.graph.csc import Csc
from graphbraid.ops import reference
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import backend
from graphbraid.ops.library import RowEpilogue
from graphbraid.ops.linear import tall_gram, tall_product, transpose

EpilogueOfRows = Callable[[FirstRows], RowEpilogue | None]
"""Makes an operation's fused epilogue for its rows while its task runs; None if it has none."""


def epilogue(x: Tensor, bias: Tensor | None, act: str, mask: Mask, out: Tensor) -> None:
    """Compute ``out = dropout(act(x + bias))``; ``out`` may be ``x``."""
    factors, *how, ids = row_epilogue(bias, act, mask, x)
    backend(x).epilogue(x, factors, *how, out, ids)


def row_epilogue(bias: Tensor | None, act: str, mask: Mask, like: Tensor) -> RowEpilogue:
    """Return the same epilogue for a kernel to fuse; ``like`` says the device of its rows."""
    return RowEpilogue(
        bias=bias,
        act=ACTIVATION_CODES[act],
        slope=LEAKY_SLOPE,
        p=mask.p,
        seed=seed_for(like, mask.seed),
        ids=mask.nodes,
    )


def epilogue_backward(  # noqa: PLR0917 - in the order of the kernel's
    grad: Tensor, out: Tensor, act: str, mask: Mask, grad_x: Tensor, grad_bias: Tensor | None
) -> None:
    """Compute the gradients of :func:`epilogue`; ``grad_x`` may be ``grad``."""
    how = (ACTIVATION_CODES[act], LEAKY_SLOPE, mask.p, seed_for(grad, mask.seed))
    backend(grad).epilogue_backward(grad, out, *how, grad_x, grad_bias, mask.nodes)


def seed_for(rows: Tensor, seed: int | Tensor) -> int | Tensor:
    """Return a mask's seed as ``rows``' kernels take it: compiled CPU kernels take only numbers."""
    by_value = rows.device.type == "cpu" and backend(rows) is not reference
    return int(seed) if by_value else seed


class PlannedLinear(PlannedOperation[Linear]):
    """A linear map. The form of the features decides how they are multiplied."""

    def forward(self) -> None:
        """Plan the product, added to the second input if there is one."""
        plan, op = self.plan, self.op
        out, adds = plan.rows_to_add_into(op), len(op.inputs) == 2
        after, seed = after_of(plan, op)
        form = plan.input_of(self.source)
        if form is None:
            x = plan.rows(self.source)

            def run() -> None:
                tall_product(x.tensor, op.matrix().t(), out=out.tensor, add=adds, after=after(out))

            plan.repeat(op.out, run, out, x, seed=seed)
            return
        turned = plan.turned_weight(op)
        if turned is not None:
            plan.repeat(turned.buffer.name, lambda: transpose(op.matrix(), out=turned.tensor), turned)

        def multiply() -> None:
            by_column = None if turned is None else turned.tensor
            form().multiply(op.matrix(), out.tensor, add=adds, turned=by_column, after=after(out))

        if plan.is_one_call(self.source):
            plan.repeat(op.out, multiply, out, turned, seed=seed)
        else:
            plan.do(op.out, multiply, out)

    def backward(self) -> None:
        """Plan the gradients of the epilogue, the addend, the weight and the input."""
        plan, op, source = self.plan, self.op, self.source
        exchanges, grad = plan.exchanges, self.grad
        if op.out in exchanges.gone_back | exchanges.first_back:  # planned while the halo's gradients travel
            return
        if op.after is not None:
            plan_epilogue_backward(plan, op.after, grad, grad)
        if len(op.inputs) == 2:
            plan.pass_on(op, op.inputs[1])
        if op.weight.requires_grad or (op.mixed is not None and op.mixed.requires_grad):
            self._weight(grad)
        plan.tell_of_whole(op)

        def run(out: Tensor, add: bool) -> None:
            tall_product(grad.tensor, op.matrix(), out=out, add=add)

        plan.accumulate(source, run, grad, binds=True)

    def _weight(self, grad: FirstRows) -> None:
        """Plan the weight's gradient: one kernel call if the weight is used as it is."""
        plan, op, name = self.plan, self.op, f"gradient of {self.op.out}'s weight"
        form = plan.input_of(self.source)
        x = plan.rows(self.source) if form is None else None
        turned = None if form is None else plan.turned_weight(op)
        if form is not None and turned is not None:
            plan.repeat(
                f"{name}, by column",
                lambda: form().weight_grad(grad.tensor, turned=turned.tensor),
                grad,
                turned,
            )

        def gram(out: Tensor) -> Tensor:
            if turned is not None:
                return transpose(turned.tensor, out=out)
            if form is not None:
                return form().weight_grad(grad.tensor, out)
            assert x is not None
            return tall_gram(grad.tensor, x.tensor, out=out)

        if op.view == WHOLE and (form is None or plan.is_one_call(self.source)):
            plan.repeat(name, gram, turned, grad, x, gradient_of=op.weight)
            return

        def run() -> None:
            whole = op.view == WHOLE
            out = plan.parameters.lend(op.weight) if whole else op.weight.new_empty(op.shape)
            self._give(gram(out))

        plan.do(name, run, grad, turned, x)

    def _give(self, grad: Tensor) -> None:
        """Give the parameters' gradients from that of the matrix."""
        op, parameters = self.op, self.plan.parameters
        if op.mixed is not None:
            for parameter, found in zip((op.weight, op.mixed), op.mixed_gradients(grad), strict=True):
                if parameter.requires_grad:
                    parameters.give(parameter, found)
        elif op.view == WHOLE:
            parameters.give(op.weight, grad)
        else:
            parameters.give_part(op.weight, op.view, grad)


class PlannedAggregate(PlannedOperation[ir.Aggregate]):
    """A sum over in-neighbours, added to the second input if there is one."""

    def forward(self) -> None:
        """Plan the sum. It is added in place to the second input if nothing else reads that."""
        plan, op = self.plan, self.op
        addend = op.inputs[1] if len(op.inputs) == 2 else None
        out = plan.result(op, overwrites=addend if addend and plan.may_overwrite(addend) else None)
        after, seed = after_of(plan, op)
        added = None if addend is None else plan.rows(addend)
        if self.source in plan.exchanges.overlapped:
            plan.exchanges.overlapped[self.source].plan_forward(out, added, after, seed)
            return
        how, x = plan.aggregation(op), self._rounded(plan.rows(self.source))

        def run() -> None:
            how.forward(x.tensor, out.tensor, None if added is None else added.tensor, after(out))

        plan.repeat(op.out, run, out, x, added, seed=seed)

    def backward(self) -> None:
        """Plan the gradients of the epilogue, the addend and the rows."""
        plan, op, grad, source = self.plan, self.op, self.grad, self.source
        if op.after is not None:
            plan_epilogue_backward(plan, op.after, grad, grad)
        plan.tell_of_whole(op)
        if len(op.inputs) == 2:
            plan.pass_on(op, op.inputs[1])
        if not plan.program.learns(source):
            return
        if source in plan.exchanges.overlapped:
            plan.exchanges.overlapped[source].plan_backward(grad)
            return
        how, given = plan.aggregation(op), self._rounded(grad)

        def run(out: Tensor, add: bool) -> None:
            how.backward(given.tensor, out, out if add else None)

        plan.accumulate(source, run, given, binds=True)

    def _rounded(self, rows: Rows) -> Rows:
        """Return rows in the dtype in which the aggregation reads them; plan to round them if needed."""
        plan, op = self.plan, self.op
        if op.rows == torch.float32 or isinstance(rows, Constant):
            return rows
        small = plan.scratch(f"{op.out}: rounded rows", rows.count, rows.width, dtype=op.rows)
        plan.do(f"{op.out}: round", lambda: small.tensor.copy_(rows.tensor), rows, small)
        return small


class PlannedHoisted(PlannedOperation[ir.Hoisted]):
    """A value that is computed once from the features, when the memory is allocated."""

    def forward(self) -> None:
        """Plan a constant, unless streamed features make the value."""
        plan, op = self.plan, self.op
        if plan.streams is not None:
            return
        if plan.request.part is None:
            plan.constants[op.out] = plan.features[self.source].hoisted(op)
            return
        shape = plan.count_of(op.out), plan.program.width(op.inputs[0])
        plan.constants[op.out] = Constant(shape, self._of_part, is_copy=True)

    def _of_part(self) -> Tensor:
        """Return a rank's own rows. Computed rows of the halo come from their owners; all ranks call this."""
        plan, part, comm = self.plan, self.plan.request.part, self.plan.comm
        assert part is not None
        assert comm is not None
        csc, num_own, route = plan.request.graph.csc, part.num_own, part.route
        own = Csc(csc.indptr[: num_own + 1], csc.indices, csc.num_src, csc.weight, trusted=True)

        def read_by(op: ir.Operation, inputs: list[Tensor]) -> list[Tensor]:
            rows = [one[:num_own] for one in inputs]
            if isinstance(op, ir.Aggregate) and op.inputs[0] == ir.INPUT:
                rows[0] = inputs[0]
            elif isinstance(op, ir.Aggregate):
                sent = rows[0].index_select(0, route.send)
                rows[0] = torch.cat(
                    (rows[0], comm.all_to_all(sent, route.send_rows, route.receive_rows).wait())
                )
            return rows

        def map_of(adjacency: ir.AdjacencyMatrix) -> Aggregation:
            whole = plan.whole_map(adjacency)  # its first rows are the rank's own
            scale = None if whole.dst_scale is None else whole.dst_scale[:num_own]
            loop = None if whole.loop is None else whole.loop[:num_own]
            return replace(whole, csc=own, dst_scale=scale, loop=loop)

        return computed_once(self.op.of, map_of, plan.features[ir.INPUT].all_rows(), None, read_by)


class PlannedEpilogue(PlannedOperation[Epilogue]):
    """An epilogue by itself."""

    def forward(self) -> None:
        """Plan the value, in place of the input if nothing else reads that."""
        plan, op, mask = self.plan, self.op, self.plan.mask_of(self.op)
        if plan.program.is_compact(op.out):
            features = plan.features[self.source]

            def drop() -> None:
                assert isinstance(features.factor, SparseInput)
                features.factor.drop(mask.of_forward())

            plan.do(op.out, drop)
            return
        x = plan.rows(self.source)
        out = plan.result(op, overwrites=self.source if plan.may_overwrite(self.source) else None)

        def run() -> None:
            epilogue(x.tensor, op.bias_row(), op.act, mask.of_forward(), out.tensor)

        plan.repeat(op.out, run, out, x, seed=mask.seed(mask.of_forward))

    def backward(self) -> None:
        """Plan the gradients of the input and the bias."""
        plan, op, grad, source = self.plan, self.op, self.grad, self.source
        if plan.takes_over(source):
            plan.grads[source] = grad
            plan_epilogue_backward(plan, op, grad, grad)
            return
        target = plan.scratch(f"gradient through {op.out}", grad.count, grad.width)
        plan_epilogue_backward(plan, op, grad, target)
        if plan.program.learns(source):
            plan.add_to_grad(source, target)


def after_of(plan: StepPlan, op: Following) -> tuple[EpilogueOfRows, MaskSeed | None]:
    """Return a maker of ``op``'s fused epilogue, and the seed of its mask."""
    after = op.after
    if after is None:
        return lambda _: None, None
    mask = plan.mask_of(after)

    def epilogue(out: FirstRows) -> RowEpilogue:
        return row_epilogue(after.bias_row(), after.act, mask.of_forward(), out.tensor)

    return epilogue, mask.seed(mask.of_forward)


def plan_epilogue_backward(
    plan: StepPlan, op: Epilogue, grad: FirstRows, target: FirstRows, ids: Tensor | None = None
) -> None:
    """Plan the gradients of an epilogue's input and bias from that of its result.

    ``grad`` belongs to all its rows, or to those with the ``(grad.count,)`` int64 ``ids``. The input's goes
    to ``target``, which may be ``grad``.
    """
    bias, mask = op.bias, plan.mask_of(op)
    out = plan.values[op.out] if ids is None else _gathered(plan, op, ids)
    all_nodes = plan.nodes_of(op.out)
    nodes = ids if ids is None or all_nodes is None else all_nodes[ids]
    name, touches = f"gradient of {op.inputs[0]}", (grad, out, target)

    def of_backward() -> Mask:
        return mask.of_backward(nodes)

    def run(whole: Tensor | None = None) -> None:
        grad_bias = None if whole is None else op.bias_of(whole)
        epilogue_backward(grad.tensor, out.tensor, op.act, of_backward(), target.tensor, grad_bias)

    seed = mask.seed(of_backward)
    if bias is None or not bias.requires_grad:
        plan.repeat(name, run, *touches, seed=seed)
    elif not op.bias_at:
        plan.repeat(name, run, *touches, seed=seed, gradient_of=bias)
    else:

        def run_for_part() -> None:
            whole = plan.parameters.lend(bias).zero_()
            run(whole)
            plan.parameters.give(bias, whole)

        plan.do(name, run_for_part, *touches)


def _gathered(plan: StepPlan, op: Epilogue, ids: Tensor) -> FirstRows:
    """Plan to gather some rows of an epilogue's result, and return them."""
    whole, name = plan.values[op.out], f"{op.out}: some rows"
    some = plan.scratch(name, ids.numel(), plan.program.width(op.out))
    plan.do(name, lambda: torch.index_select(whole.tensor, 0, ids, out=some.tensor), whole, some)
    return some
