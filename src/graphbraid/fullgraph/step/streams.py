"""Features that do not lie in memory: a step reads them, or matrices made of them before, block by block.

The features are read where they are, if a level has its nodes in ascending order; else their rows are first
put in the level's order, in a temporary file. A hoisted value is computed once, some columns at a time, and
also lies in such a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.features.rows.row_stream import LONGEST_ROUND, RowsById, RowStream, ScratchRows
from graphbraid.fullgraph.lowering.costs import in_bytes
from graphbraid.fullgraph.lowering.levels import aggregation, nodes_of
from graphbraid.fullgraph.lowering.options import StreamedFeatures, held_rows
from graphbraid.fullgraph.program import INPUT, Hoisted, LevelNodes, Linear, Operation
from graphbraid.fullgraph.step.features import After, Input, computed_once
from graphbraid.ops.aggregation import follow_up
from graphbraid.ops.gram_rounds import GramRounds
from graphbraid.ops.linear import tall_product

if TYPE_CHECKING:
    from graphbraid.fullgraph.step.plan import StepRequest

_LEAST_ROOM = 4 * LONGEST_ROUND
_LANES = 16
"""Columns of a slab are a multiple of these where the room allows as many."""


class StreamedInput(Input):
    """Features whose rows are read block by block in every pass, with the bits of a product of all rows."""

    def __init__(self, rows: RowStream) -> None:
        self.rows = rows

    def multiply(
        self, weight: Tensor, out: Tensor, *, add: bool, turned: Tensor | None = None, after: After = None
    ) -> None:
        """Compute the product."""
        for part, rows in self.rows:
            for place, piece in part.of(rows):
                tall_product(piece, weight.t(), out=out[place], add=add)
        follow_up(out, after)

    def weight_grad(self, grad: Tensor, out: Tensor | None = None, *, turned: Tensor | None = None) -> Tensor:
        """Compute the product's gradient."""
        gram = GramRounds(grad, self.rows.width, out)
        for part, rows in self.rows:
            gram.add(part, rows)
        return gram.out


_SHARES = {True: 5 / 8, False: 2 / 8}
"""Shares of the memory for features, in training and in evaluation; the rest is for requests under way."""


class Streams:
    """The streamed values of one program: the features, their first rows, and values hoisted from them.

    Products alone read these values. Training passes come again and again, so rows should stay in memory.
    """

    def __init__(self, request: StepRequest, features: StreamedFeatures) -> None:
        self._request, self._training, self._features = request, request.training, features
        self._program = program = request.program
        self._held, self._width = held_rows(program), program.width(INPUT)
        self._num_nodes, self._room = request.graph.num_nodes, max(features.host_bytes, _LEAST_ROOM)
        self._tables: dict[str, RowsById] = {}
        self._products = Counter(op.inputs[0] for op in program.ops if isinstance(op, Linear))
        self._inputs = {
            value: StreamedInput(self._stream(value)) for value in self._held if self._products[value]
        }

    def __contains__(self, value: object) -> bool:
        """Return whether a value is streamed."""
        return value in self._held

    def input_of(self, value: str) -> StreamedInput:
        """Return the products of a value."""
        return self._inputs[value]

    @property
    def streams(self) -> dict[str, RowStream]:
        """The streams of the values that products read, by their names."""
        return {value: product.rows for value, product in self._inputs.items()}

    @property
    def nbytes(self) -> int:
        """Memory that all streams take at most."""
        return sum(stream.nbytes for stream in self.streams.values())

    @property
    def scratch_bytes(self) -> int:
        """Bytes of temporary files."""
        made = {self._held[value] for value in self._inputs}
        return sum(4 * self._rows_of(name) * self._width for name in made if not self._is_in_place(name))

    @property
    def set_up_bytes(self) -> int:
        """Bytes that are read and written to make the temporary files."""
        made = dict.fromkeys(self._held[value] for value in self._inputs)
        return sum(self._making_bytes(name) for name in made if not self._is_in_place(name))

    @property
    def kept_bytes(self) -> int:
        """Bytes of rows, as float32, that the first pass alone reads of files, as they stay in memory."""
        return sum(
            4 * self._width * (stream.count - stream.rows_per_pass) for stream in self.streams.values()
        )

    @property
    def pass_bytes(self) -> int:
        """Bytes of rows, as float32, that a forward pass reads of files; a backward pass reads as many.

        Each product reads its rows anew.
        """
        rows = (self._products[value] * stream.rows_per_pass for value, stream in self.streams.items())
        return 4 * self._width * sum(rows)

    def explain(self) -> list[str]:
        """Return lines with the blocks that are read of each value, and the rows that stay in memory."""
        lines = ["Streamed features"]
        for value, stream in self.streams.items():
            name, rounds = self._held[value], stream.rounds
            where = "their file" if self._is_in_place(name) else "a temporary file"
            stays = 1 - stream.rows_per_pass / max(stream.count, 1)
            lines.append(
                f"  {value}: {stream.count:,} rows from {where} in {len(rounds):,} blocks of "
                f"{rounds[0].num_rows:,}, {stays:.1%} of them in memory from the second pass on"
            )
        lines.append(
            f"  {in_bytes(self.nbytes)} of memory; each of two passes an epoch reads "
            f"{in_bytes(self.pass_bytes)}; temporary files of {in_bytes(self.scratch_bytes)}"
        )
        return lines

    def share(self) -> None:
        """Divide the memory among the streams by their rows; before the first pass."""
        total, share = sum(stream.count for stream in self.streams.values()), _SHARES[self._training]
        for stream in self.streams.values():
            room = int(self._features.host_bytes * share * stream.count / max(total, 1))
            stream.set_room(room, keeps=self._training)

    def open(self) -> None:
        """Make the temporary files.

        Raises:
            ResourceError: the disk has no room, or fails.
            DataError: a block of the features is damaged.
        """
        for name in dict.fromkeys(self._held[value] for value in self._inputs):
            if name not in self._tables and not self._is_in_place(name):
                self._tables[name] = self._made(name)

    # ---- tables

    def _stream(self, value: str) -> RowStream:
        name, count = self._held[value], self._rows_of(value)
        ids = self._nodes(0) if name == INPUT and self._is_in_place(name) else None
        ids = None if ids is None else ids[:count]
        return RowStream(lambda: self._table(name), count, self._width, ids=ids)

    def _table(self, name: str) -> RowsById:
        return self._features.rows if self._is_in_place(name) else self._tables[name]

    def _is_in_place(self, name: str) -> bool:
        if name != INPUT:
            return False
        nodes = self._nodes(0)
        return nodes is None or bool((nodes.diff() > 0).all())

    def _rows_of(self, value: str) -> int:
        return self._request.num_rows(self._program.place(value))

    def _nodes(self, level: int) -> Tensor | None:
        return nodes_of(self._request.blocks, LevelNodes(level, 0))

    def _making_bytes(self, name: str) -> int:
        op, rows = self._program.producer(name), 4 * self._rows_of(name) * self._width
        if not isinstance(op, Hoisted):
            return 2 * rows  # read and written
        num_slabs = len(self._slabs(len(op.of)))
        features = 4 * self._num_nodes * self._width
        return num_slabs * features + rows + (2 * rows if num_slabs > 1 else 0)

    def _made(self, name: str) -> ScratchRows:
        """Make a temporary file: rows in the order of level 0's nodes, or a hoisted value."""
        op = self._program.producer(name)
        if isinstance(op, Hoisted):
            return self._computed(op.of, nodes_of(self._request.blocks, self._program.place(name)))
        nodes = self._nodes(0)
        assert nodes is not None
        made, start = self._new(nodes.numel(), self._width), 0
        for ids in torch.split(nodes, self._rows_at_a_time):
            made.write(start, self._read(ids))
            start += ids.numel()
        return made

    def _computed(self, ops: Sequence[Operation], nodes: Tensor | None) -> ScratchRows:
        """Return the ``(num_rows, F)`` value of operations that are computed once, as :func:`computed_once`.

        Operations treat each column alike, so that some columns of all rows are there at a time: the features
        are read once for each such slab.
        """
        num_rows = self._num_nodes if nodes is None else nodes.numel()
        map_of = partial(aggregation, csc=self._request.graph.csc)
        slabs = []
        for columns in self._slabs(len(ops)):
            rows = computed_once(ops, map_of, self._columns(columns), nodes)
            slab = self._new(num_rows, rows.shape[1])
            slab.write(0, rows)
            del rows
            slabs.append(slab)
        if len(slabs) == 1:
            return slabs[0]
        made, start = self._new(num_rows, self._width), 0
        for ids in torch.split(torch.arange(num_rows), self._rows_at_a_time):
            made.write(start, torch.cat([slab.gather(ids) for slab in slabs], 1))
            start += ids.numel()
        return made

    def _slabs(self, num_ops: int) -> list[slice]:
        """Return the columns that fit into the room, with every operation's value and the temporary ones."""
        most = self._room // (4 * self._num_nodes * (num_ops + 2))
        count = max(1, min(most - most % _LANES if most > _LANES else most, self._width))
        return [slice(at, min(at + count, self._width)) for at in range(0, self._width, count)]

    def _columns(self, columns: slice) -> Tensor:
        """Return some columns of the features, ``(num_nodes, count)`` float32."""
        slab = torch.empty(self._num_nodes, columns.stop - columns.start)
        for ids in torch.split(torch.arange(self._num_nodes), self._rows_at_a_time):
            slab[int(ids[0]) : int(ids[-1]) + 1] = self._read(ids)[:, columns]
        return slab

    @property
    def _rows_at_a_time(self) -> int:
        return max(1, min(LONGEST_ROUND, self._room // 8) // (4 * self._width))

    def _read(self, ids: Tensor) -> Tensor:
        return self._features.rows.gather(ids).to(torch.float32)

    @staticmethod
    def _new(num_rows: int, width: int) -> ScratchRows:
        need = "full-graph training on features from disk"
        instead = "give the features memory, by leaving host and tiers out"
        return ScratchRows(num_rows, width, in_memory=False, folder=None, need=need, instead=instead)
