"""one_vs_all: the cross entropy of links among all nodes, without all of their scores in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.nn import LinkModel, RelationPredictor
from graphbraid.ops.library import once_differentiable
from graphbraid.sampling.links.link_seeds import ANSWERS, COUNTS, GIVEN, KIND, WEIGHT, LinkEnds

BlockScorer = Callable[[Tensor, Tensor, slice], Tensor]
"""Function of some given rows, all rows and the place of those that returns ``(num_given, num_rows)``."""
_SCORES = 1 << 22
"""Scores held at a time, if a question has not more: 16 MiB, so that the gradients of rows cost little."""


def one_vs_all(model: LinkModel, rows: Tensor, batch: Any, ends: LinkEnds, *, n3: float) -> Tensor:
    """Return the mean loss of a batch's questions, a scalar: cross entropy of each answer among all nodes.

    The losses of a question's answers add up, and are divided by the mean number of answers: over an epoch,
    the loss is the mean over all links and both of their ends. With the weight ``n3`` each answer adds the
    cubed absolute values of the node given, the relation's row and its own ("Canonical Tensor Decomposition
    for Knowledge Base Completion", whose code has no factor of 1/3 either).

    Args:
        model: model of links; with ``n3`` its predictor has relations.
        rows: ``(num_nodes, channels)`` the encoder's rows of ``ends.nodes``.
        batch: a batch of :class:`graphbraid.sampling.links.link_seeds.QuestionSeeds`.
        ends: the types that links join.
        n3: weight of the cubes.
    """
    predictor, total = model.predictor, rows.new_zeros((), dtype=torch.float32)
    given, kind, counts = (getattr(batch, name) for name in (GIVEN, KIND, COUNTS))
    question = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)
    for sources, part in enumerate(reversed(ends.rows)):
        is_asked = kind % 2 == sources
        at = is_asked[question]
        answers = torch.stack([(is_asked.cumsum(0) - 1)[question[at]], getattr(batch, ANSWERS)[at]])
        relation = None if predictor.num_relations is None else kind[is_asked] // 2
        of_given, candidates = rows[given[is_asked]], rows[part]
        ask = predictor.all_with if sources else predictor.with_all
        score = functools.partial(_score, ask, relation)
        total = total + softmax_over_all(score, of_given, candidates, answers, [*predictor.parameters()])
        if n3:
            assert isinstance(predictor, RelationPredictor), "it was checked"
            assert relation is not None
            of_relation = predictor.cubes(predictor.relation_rows(relation, sources=bool(sources)))
            asked = (predictor.cubes(of_given) + of_relation) * counts[is_asked]
            times = torch.bincount(answers[1], minlength=candidates.shape[0])
            total = total + n3 * (asked.sum() + (predictor.cubes(candidates) * times).sum())
    mean: Tensor = total * (float(getattr(batch, WEIGHT)) / max(1, counts.numel()))
    return mean


def _score(ask: Any, relation: Tensor | None, given: Tensor, rows: Tensor, part: slice) -> Any:
    return ask(given, rows, None if relation is None else relation[part])


def softmax_over_all(
    score: BlockScorer, given: Tensor, rows: Tensor, answers: Tensor, parameters: Sequence[nn.Parameter]
) -> Tensor:
    """Return the sum of the cross entropies of answers among all rows, a float32 or float64 scalar.

    Scores are made for some given rows at a time, and their gradient at once: neither is held for all.

    Args:
        score: scores of given rows with all rows.
        given: ``(num_given, channels)`` rows.
        rows: ``(num_rows, channels)`` candidates.
        answers: ``(2, num_answers)`` int64: given row, rising, and candidate. One that stands twice counts
            twice.
        parameters: parameters that ``score`` reads.
    """
    found: Tensor = _SoftmaxOverAll.apply(  # type: ignore[no-untyped-call]
        score, answers, given, rows, *parameters
    )
    return found


class _SoftmaxOverAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, score: BlockScorer, answers: Tensor, given: Tensor, rows: Tensor, *parameters: Tensor
    ) -> Tensor:
        wide, needed = torch.promote_types(given.dtype, torch.float32), ctx.needs_input_grad[2:]
        wanted = [number for number, need in enumerate(needed) if need]
        ctx.wanted, ctx.dtypes = wanted, [one.dtype for one in (given, rows, *parameters)]
        ctx.slopes = [torch.zeros_like((given, rows, *parameters)[number], dtype=wide) for number in wanted]
        total = torch.zeros((), dtype=torch.float64, device=given.device)
        every, per_call = rows.detach().requires_grad_(needed[1]), max(1, _SCORES // max(1, rows.shape[0]))
        for begin in range(0, given.shape[0], per_call):
            part = slice(begin, begin + per_call)
            some = given[part].detach().requires_grad_(needed[0])
            with torch.enable_grad():
                scores = score(some, every, part)
            ends = torch.tensor([begin, begin + some.shape[0]], device=answers.device)
            row, column = answers[:, slice(*torch.searchsorted(answers[0].contiguous(), ends).tolist())]
            at, counts = (row - begin, column), torch.bincount(row - begin, minlength=some.shape[0])
            values = scores.detach().to(wide)
            slope = values.softmax(1)
            # The log of the sum, by the largest score and its share, which is never too small.
            log_sum = values.amax(1) - slope.amax(1).log()
            total += (log_sum.double() * counts).sum() - values[at].double().sum()
            if wanted:
                slope *= counts[:, None]
                slope.index_put_(at, slope.new_tensor(-1.0), accumulate=True)
                inputs = (some, every, *parameters)
                found = torch.autograd.grad(
                    scores, [inputs[number] for number in wanted], slope.to(scores.dtype), allow_unused=True
                )
                for number, held, one in zip(wanted, ctx.slopes, found, strict=True):
                    if one is not None:
                        (held[part] if number == 0 else held).add_(one)
        return total.to(wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found: list[Tensor | None] = [None] * len(ctx.dtypes)
        for number, slope in zip(ctx.wanted, ctx.slopes, strict=True):
            found[number] = (slope * grad).to(ctx.dtypes[number])
        return None, None, *found
