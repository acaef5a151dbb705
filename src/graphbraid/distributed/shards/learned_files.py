"""Checkpoints of learned rows that ranks divide: each rank writes its own.

A checkpoint is a folder in the format of torch.distributed.checkpoint, which reads it. Rows are in the order
of the ranks that wrote them, and ``node_ids`` says which nodes they belong to (``node_ids.1`` of a second
node type). So ranks of any number, with any division of the nodes, find their own. Rows are written in
pieces, and read piece by piece, so that no rank ever holds those of others. The record of the pieces goes
into the run's checkpoint. The library's own index holds Python objects, which could run code; it is not read
here.
"""

import io
import pickle
import secrets
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo  # what its index is made of
from xxhash import xxh3_128_hexdigest

from graphbraid.distributed.shards.learned_rows import LearnedRows
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.opening import open_file
from graphbraid.files.schema import Count, FileModel, checked
from graphbraid.files.writing import resource_error, sync, sync_folder

NODE_IDS = "node_ids"
PREFIX = "rows-"
"""Beginning of the names of the folders; a dot comes before it until a folder is whole."""
_PIECE_BYTES = 4 << 20
"""Bytes of the widest tensor's rows in a piece. Pieces of all tensors of a node type have the same nodes."""


class Piece(FileModel):
    """Rows of one tensor in one file."""

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
    """XXH3 of these ``num_bytes`` bytes of the file, 128 bits in hexadecimal."""


class Record(FileModel):
    """The entry of a run's checkpoint about rows divided among ranks."""

    folder: Annotated[str, Field(pattern=rf"^{PREFIX}\d+-[0-9a-f]+$")]
    """Name of the folder beside the checkpoint."""
    optimizer: list[str]
    """Names of the tensors of the optimizer's state."""
    shapes: dict[str, Annotated[list[Count], Field(min_length=2, max_length=2)]]
    """Shape of the rows of all nodes by the modules' names."""
    steps: dict[str, Count]
    """Number of updates by the modules' names."""
    node_types: dict[str, str] = Field(default_factory=dict)
    """Node type of the rows by the modules' names, in a graph with types."""
    pieces: list[Piece]


def write(learned: LearnedRows, beside: Path | None, step: int) -> dict[str, Any]:
    """Write all ranks' rows and states into a new folder; return the record for :func:`read`.

    All ranks call it together. The folder gets its name, with ``step``, once every rank has flushed its
    files, so that a kill leaves none with this name. Rank 0's ``beside`` counts. ConfigError: a rank does not
    see the folder. ResourceError: the disk is full or the folder cannot be written.
    """
    comm = learned.comm
    beside_text, name = comm.share([str(beside), f"{PREFIX}{step}-{secrets.token_hex(4)}"])
    aside = Path(beside_text, f".{name}")
    try:
        pieces = _written(learned, aside)
    except (OSError, RuntimeError) as error:
        raise (resource_error(error, aside) or error) from error
    record = Record(folder=name, steps=learned.steps, pieces=pieces, **_kinds(learned))
    if comm.rank == 0:
        aside.rename(Path(beside_text, name))
        sync_folder(Path(beside_text))
    return record.model_dump()


def _kinds(learned: LearnedRows) -> dict[str, Any]:
    """Return the fields of a record that must be equal where it is read."""
    modules = learned.modules.items()
    return {
        "shapes": {name: [one.num_nodes, one.channels] for name, one in modules},
        "node_types": {name: one.node_type for name, one in modules if one.node_type is not None},
        "optimizer": list(learned.state_names),
    }


def _tables(learned: LearnedRows, *, states: bool = True) -> list[dict[str, Tensor]]:
    """Return the tensors of this rank by their names, by node type: first the ids, then rows and states."""
    tables = list[dict[str, Tensor]]()
    for at, group in enumerate(learned.groups):
        tables.append({f"{NODE_IDS}.{at}" if at else NODE_IDS: group.nodes.owned})
        for name, module in group.modules.items():
            tensors = {"rows": module.held.rows.detach()} | (learned.states[name] if states else {})
            tables[at] |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
    return tables


def _written(learned: LearnedRows, aside: Path) -> list[Piece]:
    """Write this rank's pieces, and on rank 0 the library's index; return the pieces of all ranks."""
    comm = learned.comm
    if comm.rank == 0:
        aside.mkdir()
    counts = comm.gather([len(group.nodes.owned) for group in learned.groups])
    seen = comm.gather(aside.is_dir())
    if not all(seen):
        raise ConfigError(
            f"out_dir must be a folder that all ranks see, since each writes its own learned rows into it; "
            f"rank {seen.index(False)} does not see {aside.parent}. Put it on a shared file system"
        )
    file, own, tables = f"__{comm.rank}_0.distcp", list[dict[str, Any]](), _tables(learned)
    with (aside / file).open("wb") as stream:
        for at, tensors in enumerate(tables):
            first = sum(of_rank[at] for of_rank in counts[: comm.rank])
            widest = max(rows.itemsize * rows.shape[1:].numel() for rows in tensors.values())
            most = max(1, _PIECE_BYTES // widest)
            for start in range(0, counts[comm.rank][at], most):
                for name, rows in tensors.items():
                    part, buffer = rows[start : start + most].clone(), io.BytesIO()
                    torch.save(part, buffer)  # of a view it would write all rows
                    piece = {
                        "tensor": name,
                        "first": first + start,
                        "count": len(part),
                        "file": file,
                        "begin": stream.tell(),
                        "num_bytes": stream.write(buffer.getbuffer()),
                        "checksum": xxh3_128_hexdigest(buffer.getbuffer()),
                    }
                    own.append(piece)
    sync(aside / file)
    pieces = [Piece(**piece) for of_rank in comm.gather(own) for piece in of_rank]
    if comm.rank == 0:
        (aside / ".metadata").write_bytes(pickle.dumps(_index(pieces, tables)))
        sync(aside / ".metadata")
        sync_folder(aside)
    return pieces


def _index(pieces: list[Piece], tables: list[dict[str, Tensor]]) -> metadata.Metadata:
    """Return the library's index of all ranks' pieces. Width and dtype of tensors are as on this rank."""
    described, storage = dict[str, Any](), dict[metadata.MetadataIndex, StorageInfo]()
    for name, rows in (item for one in tables for item in one.items()):
        width, chunks = rows.shape[1:], list[metadata.ChunkStorageMetadata]()
        for one in (piece for piece in pieces if piece.tensor == name):
            offsets = torch.Size([one.first, *[0] * len(width)])
            chunks.append(metadata.ChunkStorageMetadata(offsets, torch.Size([one.count, *width])))
            storage[metadata.MetadataIndex(name, offsets)] = StorageInfo(one.file, one.begin, one.num_bytes)
        size = torch.Size([sum(one.sizes[0] for one in chunks), *width])
        kind = metadata.TensorProperties(dtype=rows.dtype)
        described[name] = metadata.TensorStorageMetadata(kind, size, chunks)
    paths = {name: (name,) for name in described}  # the library looks here for tensors asked for by name
    return metadata.Metadata(described, planner_data=paths, storage_data=storage)


def read(learned: LearnedRows, values: Any, beside: Path, *, states: bool) -> None:
    """Read this rank's rows from a folder ``beside`` that ranks of any number wrote.

    ``states`` is whether the optimizer's state is read, too. ConfigError: the rows are of other modules, or
    of another number of nodes or width. DataError: the record or a file is damaged or missing.
    """
    damaged = f"a checkpoint in {beside} is damaged: learned_rows."
    record = checked(TypeAdapter(Record), values, lambda text: DataError(damaged + text))
    told = {"shapes": "learned rows of (nodes, channels)", "node_types": "learned rows of the node types"}
    for name, own in _kinds(learned).items():
        if (states or name != "optimizer") and (saved := getattr(record, name)) != own:
            what = told.get(name, "the optimizer's state")
            raise ConfigError(
                f"the checkpoint has {what} {saved or 'none'}, and this run {own or 'none'}; make the model "
                "and the optimizer as they were"
            )
    folder = beside / record.folder
    pieces = {(piece.tensor, piece.first): piece for piece in record.pieces}
    for tensors in _tables(learned, states=states):
        (ids_name, owned), *others = tensors.items()
        found = torch.zeros(owned.numel(), dtype=torch.bool)
        for piece in (one for one in record.pieces if one.tensor == ids_name and owned.numel()):
            ids = _rows_of(folder, piece, owned)
            at = torch.searchsorted(owned, ids).clamp(max=owned.numel() - 1)
            is_own = owned[at] == ids
            found[at[is_own]] = True
            for name, rows in others if is_own.any() else ():
                if (of_rows := pieces.get((name, piece.first))) is None or of_rows.count != piece.count:
                    raise DataError(f"{folder} is damaged: it lacks rows of {name}. Take another checkpoint.")
                rows[at[is_own]] = _rows_of(folder, of_rows, rows)[is_own]
        if not found.all():
            raise DataError(
                f"{folder} is damaged: it does not have a row for each node. Take another checkpoint."
            )
    if states:
        learned.steps |= record.steps


def _rows_of(folder: Path, piece: Piece, like: Tensor) -> Tensor:
    """Return the rows of a piece of a tensor like ``like`` that ``torch.save`` wrote, or raise DataError."""
    file = folder / piece.file
    try:
        with open_file(file) as stream:
            stream.seek(piece.begin)
            data = stream.read(piece.num_bytes)
    except OSError as error:
        raise DataError(
            f"{file}, with learned rows of the checkpoint, is missing or unreadable ({error.strerror}); the "
            "folder must be where all ranks see it. Take another checkpoint."
        ) from error
    is_as_written = xxh3_128_hexdigest(data) == piece.checksum
    rows: Any = torch.load(io.BytesIO(data), weights_only=True) if is_as_written else None
    expected = piece.count, *like.shape[1:], like.dtype
    if not isinstance(rows, Tensor) or (*rows.shape, rows.dtype) != expected:
        raise DataError(
            f"{file} is damaged: its rows are not those that were written. Take another checkpoint."
        )
    return rows
