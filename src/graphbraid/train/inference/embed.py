"""Embeddings: the rows of nodes that a model's last layer reads, or that the encoder of links returns."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphbraid.arguments import check_choice
from graphbraid.errors import ConfigError, did_you_mean, needing
from graphbraid.files.writing import atomic_write
from graphbraid.nn import MODELS, RGCN, GraphModel, NodeEmbedding, module_traits
from graphbraid.nn.module_traits import in_mode
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.evaluate import EvalMode, node_ids, outputs_in_chunks
from graphbraid.train.inference.infer import Chunk
from graphbraid.train.step.links.runner import EndsRunner
from graphbraid.train.step.runner import ModelRunner

_TRIED_SEEDS = 4


def nodes_to_embed(
    runner: ModelRunner,
    config: TrainConfig,
    node_type: str | None = None,
    nodes: Tensor | Sequence[int] | None = None,
) -> tuple[str | None, Tensor]:
    """Return the type whose nodes get rows, None where there are no types, and the ids of ``nodes`` in it."""
    graph = runner.graph
    if config.task == "graph":
        raise ConfigError("embed is for models of nodes and of links; this one returns rows of graphs.")
    if not graph.is_typed:
        if node_type is not None:
            raise ConfigError(f"node_type={node_type!r}: the graph has no types; leave it out")
        return None, node_ids(graph, nodes)
    ends = list(dict.fromkeys(runner.data.ends.types)) if isinstance(runner, EndsRunner) else []
    if node_type is None and len(ends) > 1:
        raise ConfigError(
            f"links join {' and '.join(ends)}; say whose rows to return, with node_type (--embeddings-of)"
        )
    node_type = node_type or (ends[0] if ends else runner.node_type)
    check_choice(node_type, "node_type", ends or graph.node_types)
    return node_type, node_ids(graph.nodes_of(node_type), nodes)


def embeddings_in_chunks(
    runner: ModelRunner,
    config: TrainConfig,
    ids: Tensor,
    mode: EvalMode,
    *,
    node_type: str | None,
    layer: str | None,
) -> Iterator[Chunk]:
    """Return the rows of distinct nodes of a type in chunks, in order, as :meth:`.Trainer.embed` says.

    Raises:
        ConfigError: the model has no such layer, or is one of links and a layer is given.
    """
    if isinstance(runner, EndsRunner):
        if layer is not None:
            raise ConfigError(
                "layer= is for models of nodes; of a model of links the encoder's rows are taken"
            )
        types = runner.graph.types
        at = 0 if node_type is None else runner.graph.node_types.index(node_type)
        first = 0 if types is None else types.first_ids[at]
        return outputs_in_chunks(runner.encoder_runner(), config, ids + first, mode)
    return outputs_in_chunks(*hidden_runner(runner, config, node_type, layer), ids, mode)


def hidden_runner(
    runner: ModelRunner, config: TrainConfig, node_type: str | None, layer: str | None
) -> tuple[ModelRunner, TrainConfig]:
    """Return a runner whose outputs are the rows that the model's last layer reads, and its options.

    ``layer`` names the module whose input is wanted; None stands for the last layer. ``node_type`` is None in
    a graph without types.

    Raises:
        ConfigError: the model has no such layer, or its input is no matrix with a row for each node.
    """
    whole = runner.model
    model = whole.model if type(whole) is NodeEmbedding and layer is None else whole
    if isinstance(model, GraphModel | RGCN) and type(model) in (*MODELS.values(), RGCN):
        if layer is not None:
            raise ConfigError(
                f"layer={layer!r} is for other modules; of graphbraid.nn the last layer is known"
            )
        made: nn.Module = model.hidden(node_type) if isinstance(model, RGCN) else model.hidden()
        if model is not whole:  # learned rows are in front of it
            made = _replaced(whole, ["model"], made)
        fanouts = config.eval_fanouts or config.fanouts
        fanouts = fanouts[1:] or fanouts  # those of the nodes that the last layer reads
        return runner.of_model(made, node_type), config.updated(fanouts=fanouts, eval_fanouts=None)
    name, is_matrix = _found_layer(runner, layer)
    if is_matrix and node_type != runner.learned_type:
        raise ConfigError(
            f"the module {name!r} reads rows of nodes of type {runner.learned_type!r} alone; "
            f"those of {node_type!r} are not read by one layer"
        )
    return runner.of_model(_UpTo(whole, name), node_type), config


# ---- models that graphbraid did not make


class _Reached(BaseException):
    """Ends a call at the layer whose input is wanted; a forward that catches ``Exception`` lets it pass."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows


class _EndsHere(nn.Module):
    def forward(self, rows: Any, *_: Any, **__: Any) -> Any:
        raise _Reached(rows)


class _UpTo(nn.Module):
    """A model up to the input of one of its modules, which it returns; it shares all parameters.

    It is called as the model is: who asks for the names of its arguments gets those of its only child.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = _replaced(model, name.split("."), _EndsHere())

    def forward(self, *args: Any, **named: Any) -> Any:
        try:
            self.model(*args, **named)
        except _Reached as reached:
            return reached.rows
        raise ConfigError(
            "the model did not call the layer whose input is wanted this time; name another layer="
        )


def _replaced(module: nn.Module, path: list[str], new: nn.Module) -> nn.Module:
    """Return a copy of a module, of shared parts, with another module at ``path``."""
    if not path:
        return new
    child = module._modules[path[0]]
    assert child is not None, "it was called"
    made = copy.copy(module)
    made._modules = module._modules | {path[0]: _replaced(child, path[1:], new)}
    return made


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """A call of a module, inside another's or, of the model itself, in none."""

    name: str
    module: nn.Module
    rows: Any
    caller: _Call | None


def _found_layer(runner: ModelRunner, layer: str | None) -> tuple[str, bool]:
    """Return the name of the module whose input is wanted, and whether it reads a matrix and no dict by type.

    It is the last module with parameters that the model calls on a small batch. Where that reads the model's
    own input, as the only part of a wrapper does, it is the last one that this module calls, unless it passes
    messages: then the model has one layer.
    """
    calls, batch = _tried(runner)
    whole, names = calls[0], [one.name for one in calls if one.name]
    if layer is None:
        found: _Call | None = whole
        while found is not None and (found is whole or _same(found.rows, whole.rows)):
            inside = [one for one in calls if one.caller is found and [*one.module.parameters()]]
            found = inside[-1] if inside and not hasattr(found.module, "propagate") else None
    else:
        found = next((one for one in calls if one.name == layer), None)
    name = type(runner.model).__name__
    if found is None:
        known = [one for one in names if "." not in one or len(names) < 20]
        what = "no module with parameters behind another" if layer is None else f"no module {layer!r}"
        raise ConfigError(
            f"{name} calls {what}, so there are no rows to embed nodes by; layer= names a module that it "
            f"calls: {', '.join(known) or 'there is none'}.{did_you_mean(layer or '', names)}"
        )
    if names.count(found.name) > 1:
        raise ConfigError(
            f"{name} calls its module {found.name!r} {names.count(found.name)} times, with different inputs; "
            "name another one with layer="
        )
    of_type = found.rows.get(runner.node_type) if isinstance(found.rows, Mapping) else found.rows
    if not isinstance(of_type, Tensor) or of_type.ndim != 2 or of_type.shape[0] != _num_rows(runner, batch):
        shape = tuple(of_type.shape) if isinstance(of_type, Tensor) else type(found.rows).__name__
        raise ConfigError(
            f"the input of {name}'s module {found.name!r} is {shape}, and no matrix with a row for each of "
            f"{_num_rows(runner, batch)} nodes; name another module with layer="
        )
    return found.name, not isinstance(found.rows, Mapping)


def _same(rows: Any, others: Any) -> bool:
    if isinstance(rows, Mapping) and isinstance(others, Mapping):
        return set(rows) == set(others) and all(rows[one] is others[one] for one in rows)
    return rows is others or (rows is not None and rows is getattr(others, "x", None))


def _num_rows(runner: ModelRunner, batch: MiniBatch) -> int:
    if runner.by_blocks:
        return int(batch.blocks[-1].num_src)
    at = runner.graph.node_types.index(runner.node_type) if runner.graph.is_typed else 0
    return batch.sampled.n_id_by_type[at].numel()


def _tried(runner: ModelRunner) -> tuple[list[_Call], MiniBatch]:
    from graphbraid.loader import LoaderSettings

    model = runner.model
    hops = module_traits.layers_of(model) if runner.by_blocks else 1
    seeds = runner.few_nodes(_TRIED_SEEDS)
    settings = LoaderSettings(num_neighbors=[2] * hops, batch_size=_TRIED_SEEDS, input_nodes=seeds)
    calls: list[_Call] = []
    open_calls: list[_Call | None] = [None]

    def begin(name: str, module: nn.Module, args: Any, named: Any) -> None:
        rows = args[0] if args else next(iter(named.values()), None)
        calls.append(_Call(name, module, rows, open_calls[-1]))
        open_calls.append(calls[-1])

    def end(*_: Any) -> None:
        open_calls.pop()

    tried = copy.copy(runner)
    tried.batches = None
    with ExitStack() as stack:
        for name, module in model.named_modules():
            begins = functools.partial(begin, name)
            stack.enter_context(module.register_forward_pre_hook(begins, with_kwargs=True))
            stack.enter_context(module.register_forward_hook(end, always_call=True))
        stack.enter_context(in_mode(model, training=False))
        loader = stack.enter_context(runner.loader(settings))
        batch = next(loader.batches(0))
        with torch.no_grad():
            tried.on_batch(batch)
    return calls, batch


# ---- files


def write_rows(path: Path, num_rows: int, chunks: Iterable[Chunk], columns: Mapping[str, Any]) -> None:
    """Write rows chunk by chunk, so that memory holds one chunk: ``.npy``, or ``.parquet`` with columns.

    An earlier file is replaced once the new one is whole. ``chunks`` are float32 on the CPU, in order.
    Parquet has ``columns``, arrays of ``num_rows`` entries, before the column ``embedding``, a list of fixed
    size.
    """
    check_name(path)
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ConfigError(f"column {name!r} has {len(column)} entries for {num_rows} nodes")
    with atomic_write(path) as temporary:
        if path.suffix == ".npy":
            with temporary.open("wb") as file:  # a mapping would meet a full disk by a signal
                for start, rows in chunks:
                    if start == 0:
                        head = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, rows.shape[1])}
                        np.lib.format.write_array_header_1_0(file, head)
                    file.write(rows.contiguous().numpy().data)
            return
        import pyarrow as arrow
        import pyarrow.parquet

        writer: Any = None
        for start, rows in chunks:
            part = {name: column[start : start + len(rows)] for name, column in columns.items()}
            flat = arrow.array(rows.contiguous().view(-1).numpy())
            part["embedding"] = arrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])
            table = arrow.table(part)
            if writer is None:
                writer = arrow.parquet.ParquetWriter(temporary, table.schema, write_page_checksum=True)
            writer.write_table(table)
        writer.close()


def check_name(path: Path) -> None:
    """Raise unless embeddings are written to files of this name, as :func:`write_rows` says."""
    if path.suffix not in (".npy", ".parquet"):
        raise ConfigError(f"embeddings are written to .npy or .parquet; got {path}")
    if path.suffix == ".parquet":
        with needing(
            "writing Parquet needs the package pyarrow: pip install 'graphbraid[tabular]'; or choose .npy"
        ):
            import pyarrow  # noqa: F401
