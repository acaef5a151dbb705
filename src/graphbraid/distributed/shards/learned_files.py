"""Checkpoints of learned rows that ranks divide: each rank writes its own by torch.distributed.checkpoint.

A checkpoint is a folder in the format of that library, which reads it, too. Rows are in the order of the
ranks that wrote them, and ``node_ids`` says which nodes they belong to (``node_ids.1`` of a second node
type). So ranks of any number, with any division of the nodes, find their own. Rows are written in pieces, and
read piece by piece, so that no rank ever holds those of others. The record of the pieces goes into the run's
checkpoint. The library's own index holds Python objects, which could run code; it is not read here.
"""

from __future__ import annotations

import io
import pickle
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo  # what its index is made of
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from graphbraid.distributed.shards.learned_rows import LearnedRows
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.checksums import Checksum
from graphbraid.files.opening import open_file
from graphbraid.files.schema import Count, checked
from graphbraid.files.writing import resource_error, sync_folder

NODE_IDS = "node_ids"
PREFIX = "rows-"
"""Beginning of the names of the folders; a dot comes before it until a folder is whole."""
_PIECE_BYTES = 4 << 20


class Piece(BaseModel):
    """Rows of one tensor in one file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tensor: str
    """``node_ids`` (``node_ids.1`` of a second node type), or names of module and tensor with a dot
    between."""
    first: Count
    """First of the rows, in the order of the checkpoint."""
    count: Count
    file: Annotated[str, Field(pattern=r"^__\d+_\d+\.distcp$")]
    begin: Count
    num_bytes: Count
    checksum: str
    """Of the rows' bytes."""


class Record(BaseModel):
    """The entry of a run's checkpoint about rows divided among ranks."""

    model_config = ConfigDict(extra="forbid", strict=True)

    folder: Annotated[str, Field(pattern=rf"^{PREFIX}\d+-[0-9a-f]+$")]
    """Name of the folder beside the checkpoint."""
    optimizer: list[str]
    """Names of the tensors of the optimizer's state."""
    shapes: dict[str, Annotated[list[Count], Field(min_length=2, max_length=2)]]
    """Shape of the rows of all nodes by the modules' names."""
    steps: dict[str, Count]
    """Number of updates by the modules' names."""
    node_types: dict[str, str] = {}
    """Node type of the rows by the modules' names, in a graph with types."""
    pieces: list[Piece]


_ADAPTER = TypeAdapter(Record)


def write(learned: LearnedRows, beside: Path | None, step: int) -> dict[str, Any]:
    """Write all ranks' rows and states into a new folder; all ranks call it together.

    The folder gets its name once every rank has flushed its files, so that a kill leaves none with this name.

    Args:
        learned: the rows.
        beside: folder in which to make it, on rank 0; the others are told.
        step: number of the run's steps so far, for the name.

    Returns:
        The record that :func:`read` needs, in plain values.

    Raises:
        ConfigError: a rank does not see the folder.
        ResourceError: the disk is full or the folder cannot be written.
    """
    comm = learned.comm
    name = f"{PREFIX}{step}-{secrets.token_hex(4)}"
    beside_text, name = comm.share([str(beside), name])
    aside = Path(beside_text, f".{name}")
    try:
        pieces = _written(learned, aside)
    except (OSError, RuntimeError) as error:
        raise (resource_error(error, aside) or error) from error
    held = learned.held()
    record = Record(
        folder=name,
        optimizer=list(learned.state_names),
        shapes={name: [one.num_nodes, one.channels] for name, one in learned.modules.items()},
        steps={name: one.step for name, one in held.items()},
        node_types=_types_of(learned),
        pieces=pieces,
    )
    if comm.rank == 0:
        aside.rename(Path(beside_text, name))
        sync_folder(Path(beside_text))
    return record.model_dump()


def _types_of(learned: LearnedRows) -> dict[str, str]:
    return {name: one.node_type for name, one in learned.modules.items() if one.node_type is not None}


def _ids_name(place: int) -> str:
    """Return the name of the ids of a node type, by its place among those that have rows."""
    return NODE_IDS if place == 0 else f"{NODE_IDS}.{place}"


def _written(learned: LearnedRows, aside: Path) -> list[Piece]:
    """Write this rank's pieces, and on rank 0 the library's index; return the pieces of all ranks."""
    comm = learned.comm
    if comm.rank == 0:
        aside.mkdir()
    writer, items, found = FileSystemWriter(aside), list[WriteItem](), dict[MetadataIndex, Tensor]()
    counts = comm.gather([ids.numel() for ids in learned.owned])
    seen = comm.gather(aside.is_dir())
    if not all(seen):
        raise ConfigError(
            f"out_dir must be a folder that all ranks see, since each writes its own learned rows into it; "
            f"rank {seen.index(False)} does not see {aside.parent}. Put it on a shared file system"
        )
    firsts = [sum(of_type[: comm.rank]) for of_type in zip(*counts, strict=True)]
    num_rows = [sum(of_type) for of_type in zip(*counts, strict=True)]
    tensors = {name: rows for name, rows, _ in _tensors(learned)}
    totals = {name: num_rows[at] for name, _, at in _tensors(learned)}
    for name, rows, at in _tensors(learned):
        first = firsts[at]
        for part in torch.split(rows, max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))):
            if part.shape[0]:
                items.append(_item(name, part, first, part.shape[0], totals[name]))
                found[items[-1].index] = part
                first += part.shape[0]
    writer.set_up_storage_writer(comm.rank == 0)
    plans = writer.prepare_global_plan([SavePlan([])] * comm.rank + [SavePlan(items)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)  # PyTorch 2.9's writer
        results = writer.write_data(plans[-1], _Pieces(found)).wait() if items else []
    own = [_piece(result, found[result.index]) for result in results]
    said = [piece for of_rank in comm.gather([piece.model_dump() for piece in own]) for piece in of_rank]
    pieces = [Piece(**piece) for piece in said]
    if comm.rank == 0:
        # The library's index describes what all ranks have written.
        items = [
            _item(one.tensor, tensors[one.tensor], one.first, one.count, totals[one.tensor]) for one in pieces
        ]
        _, metadata = create_default_global_save_plan([SavePlan(items)], rewrite_index_hints=False)
        storage = [StorageInfo(one.file, one.begin, one.num_bytes) for one in pieces]
        written = [WriteResult(one.index, at.length, at) for one, at in zip(items, storage, strict=True)]
        writer.finish(metadata, [written])
        sync_folder(aside)
    return pieces


def _tensors(learned: LearnedRows) -> Iterator[tuple[str, Tensor, int]]:
    """Yield name and rows of the tensors that this rank writes, and the place of their node type."""
    for at, ids in enumerate(learned.owned):
        yield _ids_name(at), ids, at
    for name, one in learned.held().items():
        at = learned.place_of(name)
        yield f"{name}.rows", one.rows.detach(), at
        yield from ((f"{name}.{state}", tensor, at) for state, tensor in one.states.items())


def _piece(result: WriteResult, rows: Tensor) -> Piece:
    at = result.storage_data
    assert result.index.offset is not None
    return Piece(
        tensor=result.index.fqn,
        first=result.index.offset[0],
        count=rows.shape[0],
        file=at.relative_path,
        begin=at.offset,
        num_bytes=at.length,
        checksum=_checksum(rows),
    )


def _checksum(rows: Tensor) -> str:
    checksum = Checksum()
    checksum.add(rows.contiguous().view(torch.uint8).numpy().data)
    return checksum.text


def _item(name: str, rows: Tensor, first: int, count: int, num_rows: int) -> WriteItem:
    """Return what the library calls a piece of a tensor.

    Args:
        name: name of the tensor.
        rows: rows of it, for width and dtype.
        first: place of the first row of the piece among those of all ranks.
        count: number of rows of the piece.
        num_rows: number of rows of all ranks.
    """
    width = rows.shape[1:]
    offsets = torch.Size([first, *[0] * len(width)])
    return WriteItem(
        index=MetadataIndex(name, offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=offsets, sizes=torch.Size([count, *width])),
            properties=TensorProperties(dtype=rows.dtype),
            size=torch.Size([num_rows, *width]),
        ),
    )


def read(learned: LearnedRows, values: Any, beside: Path, *, states: bool) -> None:
    """Read this rank's rows from a folder that ranks of any number wrote.

    Args:
        learned: the rows, which are replaced.
        values: the record that :func:`write` returned.
        beside: folder with the one that was written.
        states: whether the optimizer's state is read, too.

    Raises:
        ConfigError: the rows are of other modules, or of another number of nodes or width.
        DataError: the record or a file is damaged or missing.
    """
    record = checked(
        _ADAPTER, values, lambda text: DataError(f"a checkpoint in {beside} is damaged: learned_rows.{text}")
    )
    own = {name: [one.num_nodes, one.channels] for name, one in learned.modules.items()}
    if record.shapes != own:
        raise ConfigError(
            f"the checkpoint has learned rows of {record.shapes or 'no module'} (nodes, channels), and the "
            f"model of {own}; make the model as it was"
        )
    if record.node_types != (types := _types_of(learned)):
        raise ConfigError(
            f"the checkpoint has learned rows of the node types {record.node_types or 'none'}, and the model "
            f"of {types or 'none'}; make the model as it was"
        )
    if states and record.optimizer != list(learned.state_names):
        raise ConfigError(
            f"the checkpoint has the optimizer's state {record.optimizer}, and this run needs "
            f"{list(learned.state_names)}; give the optimizer as it was"
        )
    folder = beside / record.folder
    own_rows = [_own_rows(ids, folder, record, _ids_name(at)) for at, ids in enumerate(learned.owned)]
    for name, one in learned.held().items():
        if states:
            one.step = record.steps.get(name, 0)
        tensors = {"rows": one.rows.detach()} | (one.states if states else {})
        for part, tensor in tensors.items():
            _fill(tensor, own_rows[learned.place_of(name)], folder, record, f"{name}.{part}")


class _OwnRows(NamedTuple):
    positions: Tensor
    """Where own nodes' rows stand in the checkpoint, ascending."""
    places: Tensor
    """Their places among own rows."""


def _own_rows(owned: Tensor, folder: Path, record: Record, name: str) -> _OwnRows:
    """Find the rows of own nodes of a type in the checkpoint, by the name of its ids."""
    positions, places = [], []
    for piece in record.pieces:
        if piece.tensor == name:
            ids = _rows_of(folder, piece, torch.Size([piece.count]), torch.int64)
            at = torch.searchsorted(owned, ids).clamp(max=max(owned.numel() - 1, 0))
            is_own = owned[at] == ids if owned.numel() else torch.zeros_like(ids, dtype=torch.bool)
            positions.append(piece.first + is_own.nonzero().squeeze(1))
            places.append(at[is_own])
    found, order = torch.cat([*positions, owned[:0]]).sort()
    where = torch.cat([*places, owned[:0]])[order]
    if not torch.equal(where.sort().values, torch.arange(owned.numel())):
        raise DataError(
            f"{folder} is damaged: it does not have a row for each node. Take another checkpoint."
        )
    return _OwnRows(found, where)


def _fill(tensor: Tensor, own: _OwnRows, folder: Path, record: Record, name: str) -> None:
    """Write own rows of a tensor, whose pieces are read one after another; others are passed over."""
    missing = own.positions.numel()
    for piece in record.pieces:
        if piece.tensor != name:
            continue
        bounds = torch.tensor([piece.first, piece.first + piece.count])
        begin, end = torch.searchsorted(own.positions, bounds).tolist()
        if begin < end:
            rows = _rows_of(folder, piece, torch.Size([piece.count, *tensor.shape[1:]]), tensor.dtype)
            tensor[own.places[begin:end]] = rows[own.positions[begin:end] - piece.first]
            missing -= end - begin
    if missing:
        raise DataError(f"{folder} is damaged: it lacks rows of {name}. Take another checkpoint.")


def _rows_of(folder: Path, piece: Piece, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the rows of a piece, which was written by ``torch.save``.

    Raises:
        DataError: they are not those that were written.
    """
    file = folder / piece.file
    try:
        with open_file(file) as stream:
            stream.seek(piece.begin)
            rows: Any = torch.load(io.BytesIO(stream.read(piece.num_bytes)), weights_only=True)
    except FileNotFoundError as error:
        raise DataError(
            f"{file} is missing, which holds learned rows of the checkpoint; the folder must be where all "
            "ranks see it. Take another checkpoint."
        ) from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError) as error:
        raise DataError(f"{file} is damaged: {error}. Take another checkpoint.") from error
    is_alike = isinstance(rows, Tensor) and (rows.shape, rows.dtype) == (shape, dtype)
    if not is_alike or _checksum(rows) != piece.checksum:
        raise DataError(
            f"{file} is damaged: its rows are not those that were written. Take another checkpoint."
        )
    found: Tensor = rows
    return found


class _Pieces(DefaultSavePlanner):
    """Gives the writer the rows of each piece.

    Args:
        found: the rows by the pieces' index.
    """

    def __init__(self, found: dict[MetadataIndex, Tensor]) -> None:
        super().__init__()
        self._found = found

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Return the rows of a piece."""
        return self._found[write_item.index]
