"""Predictors of links that have relations: DistMult, ComplEx, TransE and RotatE."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.arguments import MOST_WIDTH, as_count, as_flag, as_number
from graphbraid.errors import ConfigError, DataError
from graphbraid.nn.link_predictors import LinkPredictor
from graphbraid.ops.distances import distances
from graphbraid.signatures import typed


@typed
class RelationPredictor(LinkPredictor):
    """Base class of the predictors with a learned row for each relation.

    A node's row and a relation's row give a query; a candidate's score tells how near its row is to that.

    Args:
        num_relations: number of relations.
        channels: width of the rows.
        reciprocal: whether each relation has a second row, as if its links also led back by a relation of
            their own: a destination's source is then asked for by that row ("Canonical Tensor Decomposition
            for Knowledge Base Completion"). The score of a pair, by :meth:`forward`, is that of its
            destination. If False, both questions have the same score.

    Raises:
        ConfigError: a number is not positive, or does not fit the predictor.
    """

    is_complex = False
    """Whether a row is one of complex numbers: their real parts, then their imaginary parts."""
    columns_per_number = 1
    """Columns of a node's row for each number in a relation's."""
    num_relations: int

    def __init__(self, num_relations: int, channels: int, *, reciprocal: bool = False) -> None:
        super().__init__()
        self.num_relations = as_count(num_relations, "num_relations", least=1, most=1 << 32)
        self.channels = as_count(channels, "channels", least=1, most=MOST_WIDTH)
        self.reciprocal = as_flag(reciprocal, "reciprocal")
        if self.is_complex and channels % 2:
            raise ConfigError(
                f"channels must be even for {type(self).__name__}, whose rows are complex numbers; got "
                f"{channels}"
            )
        width = self.channels // self.columns_per_number
        self.relations = nn.Parameter(torch.empty(num_relations * (1 + self.reciprocal), width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the relations' rows anew."""
        nn.init.xavier_uniform_(self.relations)

    def all_with(self, dst: Tensor, rows: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the scores of every row as a source with each destination, ``(num_dst, num_nodes)``."""
        self._check_all(dst, rows, relation)
        return self._near_all(self._query(dst, relation, sources=True), rows)

    def as_sources(self, src: Tensor, dst: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return each pair's score where its source is asked for, ``(num_pairs,)``, as :meth:`all_with` does.

        Arguments are those of :meth:`forward`, which asks for the destination.
        """
        if not self.reciprocal:
            return self(src, dst, relation)  # type: ignore[no-any-return]
        self._check(src, relation)
        return self._near(self._query(dst, relation, sources=True), src)

    def cubes(self, rows: Tensor) -> Tensor:
        """Return each row's sum of cubed absolute values, ``(num_rows,)``, which the N3 penalty adds up.

        The absolute value of a complex number is its modulus. The relations' rows are taken, too.
        """
        squares = rows.square()
        if self.is_complex:
            real, imaginary = squares.chunk(2, -1)
            squares = real + imaginary
        cubes = squares * squares.clamp_min(torch.finfo(rows.dtype).tiny).sqrt()
        return cubes.sum(-1)

    def relation_rows(self, relation: Tensor, *, sources: bool) -> Tensor:
        """Return the rows of relations, ``(num, width)``, for questions of destinations or ``sources``."""
        return F.embedding(relation + self.num_relations * (sources and self.reciprocal), self.relations)

    def _check(self, src: Tensor, relation: Tensor | None) -> None:
        super()._check(src, relation)
        if src.shape[1] != self.channels:
            raise DataError(f"src must have {self.channels} columns (channels); got {tuple(src.shape)}")

    def _pairs(self, src: Tensor, dst: Tensor, relation: Tensor | None) -> Tensor:
        return self._near(self._query(src, relation, sources=False), dst)

    def _all(self, src: Tensor, rows: Tensor, relation: Tensor | None) -> Tensor:
        return self._near_all(self._query(src, relation, sources=False), rows)

    def _query(self, given: Tensor, relation: Tensor | None, *, sources: bool) -> Tensor:
        assert relation is not None, "it was checked"
        of_relation = self.relation_rows(relation, sources=sources).to(given.dtype)
        return self._moved(given, of_relation, back=sources and not self.reciprocal)

    @abstractmethod
    def _moved(self, given: Tensor, relation: Tensor, *, back: bool) -> Tensor:
        """Return the query of nodes' rows, each with its relation's row; ``back`` asks for sources."""

    def _near(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return the score of each query with the row beside it, ``(num,)``."""
        return (query * rows).sum(-1)

    def _near_all(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of each query with every row, ``(num_queries, num_rows)``."""
        return query @ rows.t()


@typed
class DistMult(RelationPredictor):
    """The product of both rows and a learned row of the relation, summed.

    After "Embedding Entities and Relations for Learning and Inference in Knowledge Bases"; equal to the score
    of PyTorch Geometric's model of the same name, with its ``rel_emb`` as ``relations``. Arguments are those
    of :class:`RelationPredictor`.
    """

    def _moved(self, given: Tensor, relation: Tensor, *, back: bool) -> Tensor:
        return given * relation


@typed
class ComplEx(RelationPredictor):
    """The real part of the product of source, relation and conjugate destination, as complex numbers, summed.

    After "Complex Embeddings for Simple Link Prediction"; equal to the score of PyTorch Geometric's model of
    the same name, with ``rel_emb`` and ``rel_emb_im`` side by side as ``relations``. ``channels`` is even:
    real parts, then imaginary parts. Arguments are those of :class:`RelationPredictor`.
    """

    is_complex = True

    def _moved(self, given: Tensor, relation: Tensor, *, back: bool) -> Tensor:
        real, imaginary = relation.chunk(2, -1)
        return _turned(given, real, -imaginary if back else imaginary)


class _Distance(RelationPredictor):
    """A predictor whose scores are ``margin`` less a distance; :class:`RotatE` has its arguments."""

    def __init__(
        self,
        num_relations: int,
        channels: int,
        *,
        norm: int = 1,
        margin: float = 9.0,
        reciprocal: bool = False,
    ) -> None:
        super().__init__(num_relations, channels, reciprocal=reciprocal)
        self.norm = as_count(norm, "norm", least=1, most=2)
        self.margin = as_number(margin, "margin", least=0)

    def _near(self, query: Tensor, rows: Tensor) -> Tensor:
        parts = query - rows
        if self.is_complex and self.norm == 1:
            moduli: Tensor = torch.linalg.vector_norm(torch.stack(parts.chunk(2, -1)), dim=0)
            return self.margin - moduli.sum(-1)
        distance: Tensor = torch.linalg.vector_norm(parts, self.norm, dim=-1)
        return self.margin - distance

    def _near_all(self, query: Tensor, rows: Tensor) -> Tensor:
        return self.margin - distances(
            query, rows, "euclidean" if self.norm == 2 else "moduli" if self.is_complex else "absolute"
        )


@typed
class TransE(_Distance):
    """``margin - ||source + relation - destination||``; arguments are those of :class:`RotatE`.

    After "Translating Embeddings for Modeling Multi-relational Data". Rows have any length, as in "RotatE:
    Knowledge Graph Embedding by Relational Rotation in Complex Space"; on rows of length 1 it is equal to
    ``margin`` added to the score of PyTorch Geometric's model of the same name.
    """

    def _moved(self, given: Tensor, relation: Tensor, *, back: bool) -> Tensor:
        return given - relation if back else given + relation


@typed
class RotatE(_Distance):
    """``margin - ||source, turned by the relation's angles, - destination||`` of complex numbers.

    After "RotatE: Knowledge Graph Embedding by Relational Rotation in Complex Space", which takes ``norm=1``,
    the sum of moduli. With ``norm=2`` it is equal to the score of PyTorch Geometric's model of the same name,
    with ``rel_emb`` as ``relations``. ``channels`` is even: real parts, then imaginary parts; a relation has
    half as many angles, in radians.

    Args:
        num_relations: number of relations.
        channels: width of the rows.
        norm: 1 sums up the absolute values of differences, 2 is the length of the row of differences.
        margin: score of a distance of 0. Ranks do not depend on it; losses other than a softmax do.
        reciprocal: as for :class:`RelationPredictor`.

    Raises:
        ConfigError: an argument is out of its bounds.
    """

    is_complex, columns_per_number = True, 2

    def reset_parameters(self) -> None:
        """Draw the relations' angles anew."""
        nn.init.uniform_(self.relations, -math.pi, math.pi)

    def cubes(self, rows: Tensor) -> Tensor:
        """Return each node's sum of cubed moduli; a relation's are all 1 and cannot shrink: 0."""
        return super().cubes(rows) if rows.shape[-1] == self.channels else torch.zeros_like(rows[:, 0])

    def _moved(self, given: Tensor, relation: Tensor, *, back: bool) -> Tensor:
        return _turned(given, relation.cos(), -relation.sin() if back else relation.sin())


def _turned(given: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """Return the complex products of rows, whose halves are real and imaginary parts, with numbers."""
    a, b = given.chunk(2, -1)
    return torch.cat([a * real - b * imaginary, a * imaginary + b * real], -1)
