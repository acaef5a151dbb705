"""Streams: the matrices of features that a step reads block by block, and what is made of them beforehand."""

from __future__ import annotations

from torch import Tensor

from graphbraid.features.rows.row_stream import RowsById, RowStream
from graphbraid.features.rows.scratch import ScratchRows
from graphbraid.fullgraph.lowering.levels import Blocks, nodes_of, num_rows_of
from graphbraid.fullgraph.lowering.streamed import StreamedFeatures, held_rows
from graphbraid.fullgraph.program import INPUT, Hoisted, LevelPart, Linear, Program
from graphbraid.fullgraph.step.calls.streamed_input import StreamedInput
from graphbraid.fullgraph.step.features.scratch_tables import ScratchTables
from graphbraid.graph import Graph

_SHARES = {True: 5 / 8, False: 2 / 8}
"""Shares of the memory for features, in training and in evaluation; the rest is for requests under way."""


class Streams:
    """The streamed values of one program: the features, their first rows, and what is hoisted of them.

    The features are read where they are, if a level has its nodes in ascending order; else their rows are put
    in the level's order first, in a temporary file. A hoisted value is computed once, some columns at a time,
    and lies in such a file, too.

    Args:
        program: a lowered program, whose products alone read these values.
        graph: the graph, for its edges.
        blocks: the edges from each level to the next.
        features: where rows are read, and the memory for it.
        training: whether passes come again and again, so that rows had better stay in memory.
    """

    def __init__(
        self, program: Program, graph: Graph, blocks: Blocks, features: StreamedFeatures, *, training: bool
    ) -> None:
        self._training = training
        self._program, self._graph, self._blocks, self._features = program, graph, blocks, features
        self._held, self._width = held_rows(program), program.in_channels
        self._tables: dict[str, RowsById] = {}
        read = {op.inputs[0] for op in program.ops if isinstance(op, Linear)}
        self._inputs = {value: StreamedInput(self._stream(value)) for value in self._held if value in read}

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
    def whole_bytes(self) -> int:
        """Bytes of all rows, as float32, that a forward pass needs; the first pass reads them of files."""
        return sum(4 * self._width * stream.count for stream in self.streams.values())

    @property
    def pass_bytes(self) -> int:
        """Bytes of rows, as float32, that a forward pass reads of files; a backward pass reads as many."""
        return sum(4 * self._width * stream.rows_per_pass for stream in self.streams.values())

    def explain(self) -> list[str]:
        """Return lines that say what is read in which blocks, and what stays in memory."""
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
            f"  {_mega(self.nbytes)} of memory; each of two passes an epoch reads {_mega(self.pass_bytes)}; "
            f"temporary files of {_mega(self.scratch_bytes)}"
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
        return num_rows_of(self._blocks, self._program.place(value), self._graph.num_nodes)

    def _nodes(self, level: int) -> Tensor | None:
        return nodes_of(self._blocks, LevelPart(level, 0))

    def _making_bytes(self, name: str) -> int:
        op, rows = self._program.producer(name), 4 * self._rows_of(name) * self._width
        if not isinstance(op, Hoisted):
            return 2 * rows  # read and written
        num_slabs = ScratchTables(self._features, self._graph.csc).num_slabs(len(op.of))
        features = 4 * self._graph.num_nodes * self._width
        return num_slabs * features + rows + (2 * rows if num_slabs > 1 else 0)

    def _made(self, name: str) -> ScratchRows:
        tables = ScratchTables(self._features, self._graph.csc)
        op = self._program.producer(name)
        if isinstance(op, Hoisted):
            return tables.computed(op.of, nodes_of(self._blocks, self._program.place(name)))
        nodes = self._nodes(0)
        assert nodes is not None
        return tables.in_order(nodes)


def _mega(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


__all__ = ["Streams"]
