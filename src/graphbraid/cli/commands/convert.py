"""``graphbraid convert`` and ``graphbraid reorder``: make stores, of other files or in another order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.arguments import check_choice
from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    err_console,
    flag,
    guarded,
    path_flag,
    path_given,
    print_json,
    say,
    table,
)
from graphbraid.errors import ConfigError
from graphbraid.files.progress import stage
from graphbraid.files.writing import require_absent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from graphbraid.datasets import Narrowing, StoreNames
    from graphbraid.datasets.tables.column_types import TypedColumn
    from graphbraid.graph import Graph
    from graphbraid.sampling import SamplerConfig
    from graphbraid.sampling.config import SeedSchedule


_TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq")
_DESCRIPTIONS = (".yaml", ".yml")
_GRAPH, _TABLE = "Graph", "Tables"


@guarded
def convert(
    *,
    source_path: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="An edge table (CSV, Parquet), a .yaml file that describes tables by type, an .npz file, an "
            "OGB or store folder, or a name.",
        ),
    ],
    destination_path: Annotated[
        Path, typer.Argument(metavar="STORE", help="Folder of the store to make.", parser=path_given)
    ],
    nodes: Path | None = path_flag(
        None, "", "Table with a row per node: features, label, split.", metavar="FILE", panel=_TABLE
    ),
    source: str | None = flag(None, "--source", "Column of the sources. (default: source)", panel=_TABLE),
    destination: str | None = flag(
        None, "--destination", "Column of the destinations. (default: destination)", panel=_TABLE
    ),
    weight: str | None = flag(None, "--weight", "Column of the edge weights.", panel=_TABLE),
    id_column: str | None = flag(None, "--id", "Column of the node ids. (default: id)", panel=_TABLE),
    features: str | None = flag(
        None,
        "--features",
        "Feature columns, comma-separated. (default: all other numeric ones)",
        panel=_TABLE,
    ),
    label: str | None = flag(
        None, "--label", "Label column; several, comma-separated, are a label matrix.", panel=_TABLE
    ),
    split: str | None = flag(None, "--split", "Column with train, val, test or nothing.", panel=_TABLE),
    fill_missing: float | None = flag(None, "--fill-missing", "Value of empty feature fields.", panel=_TABLE),
    delimiter: str | None = flag(
        None, "--delimiter", "Character between fields. (default: comma; tab in .tsv)", panel=_TABLE
    ),
    header: bool = flag(
        True, "--header/--no-header", "Whether the first line names the columns; else 0, 1, ...", panel=_TABLE
    ),
    skip_rows: int = flag(0, "--skip-rows", "Lines to skip at the start.", panel=_TABLE),
    without_types: bool = flag(
        False,
        "--without-types",
        "Leave out an .npz file's types, and times and splits of edges.",
        panel=_GRAPH,
    ),
    symmetrize: bool = flag(False, "--symmetrize", "Store both directions of every edge.", panel=_GRAPH),
    add_self_loops: bool = flag(
        False, "--self-loops", "Add a self-loop to every node without one.", panel=_GRAPH
    ),
    dedupe: bool = flag(False, "--dedupe", "Keep one of several equal edges.", panel=_GRAPH),
    normalize_features: bool = flag(
        False,
        "--normalize-features",
        "Divide feature rows by the sum of their absolute values.",
        panel=_GRAPH,
    ),
    split_seed: int | None = flag(
        None, "--split-seed", "Draw a new split with this seed: 20 and 30 nodes per class.", panel=_GRAPH
    ),
    features_dtype: str | None = flag(
        None,
        "--features-dtype",
        "Round features to float16, bfloat16 or int8 (a scale per row).",
        panel=_GRAPH,
    ),
    order: str | None = flag(
        None,
        "--order",
        "Renumber the nodes: degree, rcm, communities or a PageRank; see reorder.",
        panel=_GRAPH,
    ),
    overwrite: bool = flag(False, "--overwrite", "Replace an existing store."),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Convert a graph to an on-disk store, which opens at once, mapped into memory instead of read.

    The graph is checked in full before it is written; the store is written atomically and then verified.

    Examples:

        graphbraid convert cora.npz stores/cora --symmetrize --dedupe

        graphbraid convert edges.csv stores/mine --nodes nodes.csv --label class --split split

        graphbraid convert edges.parquet stores/mine --source src --destination dst --weight w

        graphbraid convert snap.txt stores/snap --delimiter ' ' --no-header --source 0 --destination 1

        graphbraid convert downloads/ogbn_arxiv stores/arxiv --order degree --features-dtype int8

        graphbraid convert bibliography.yaml stores/bibliography
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.datasets.store.changed import DTYPES, Narrowing
    from graphbraid.features.reordering import check_order_name

    of_tables = {
        "nodes": nodes,
        "source": source,
        "destination": destination,
        "weight": weight,
        "id_column": id_column,
        "features": features,
        "label": label,
        "split": split,
        "fill_missing": fill_missing,
    }
    columns = {name: value for name, value in of_tables.items() if value is not None}
    is_text = source_path.endswith(_TABLES) and not source_path.endswith((".parquet", ".pq"))
    for name, is_given in {
        "--delimiter": delimiter is not None,
        "--no-header": not header,
        "--skip-rows": skip_rows != 0,
    }.items():
        if is_given and not is_text:
            raise ConfigError(f"{name} is for tables of text (.csv, .tsv, .txt); got {source_path}")
    text = {"delimiter": "\t" if delimiter == r"\t" else delimiter, "header": header, "skip_rows": skip_rows}
    preparation = {
        "symmetrize": symmetrize,
        "add_self_loops": add_self_loops,
        "dedupe": dedupe,
        "normalize_features": normalize_features,
        "split_seed": split_seed,
    }
    if features_dtype is not None:
        check_choice(features_dtype, "--features-dtype", DTYPES)
    if order is not None:
        check_order_name(order, "--order", sampled=False)
    if not overwrite:
        require_absent(destination_path)
    if without_types and not source_path.endswith(".npz"):
        raise ConfigError(f"--without-types is for .npz files; got {source_path}")
    if without_types:
        preparation["with_types"] = False
    graph, names = _read(source_path, columns, text, preparation)
    graph.validate()
    narrowing = None if features_dtype is None else Narrowing(features_dtype)
    summary = store(
        graph,
        destination_path,
        names=names,
        order=None if order is None else make_order(graph, order),
        overwrite=overwrite,
        narrowing=narrowing,
    )
    tell(graph, destination_path, summary | ({"order": order} if order else {}), as_json=json_output)
    if narrowing is not None:
        say(err_console(), "{}", narrowing.rounding)


_DECIDED = {
    "column": "cyan",
    "type": "left",
    "encoder": "left",
    "features": "right",
    "because": "dim",
}


def _decided_rows(columns: Mapping[str, Sequence[TypedColumn]]) -> list[tuple[str, ...]]:
    return [
        (f"{name}.{one.column}", one.kind, one.how or "left out", str(one.width), one.why)
        for name, of in columns.items()
        for one in of
    ]


def _read(
    source: str, columns: dict[str, Any], text: dict[str, Any], preparation: dict[str, Any]
) -> tuple[Graph, StoreNames]:
    from graphbraid import datasets

    if source.endswith(_TABLES):
        for name in ("features", "label"):
            if name in columns:
                listed = columns[name].split(",")
                columns[name] = listed if name == "features" or len(listed) > 1 else listed[0]
        csv = datasets.CsvOptions(**text)
        name = Path(source).name.split(".")[0]
        made = datasets.from_tables(source, columns.pop("nodes", None), **columns, csv=csv, name=name)
        if made.unused_columns:
            unused = ", ".join(name or "(no name)" for name in made.unused_columns)
            say(err_console(), "columns left out, as they hold no numbers or an index: {}", unused)
        names = datasets.StoreNames(ids=made.ids, class_names=made.class_names)
        return datasets.prepare(made.graph, **preparation), names
    if columns:
        flag = "--" + next(iter(columns)).removesuffix("_column").replace("_", "-")
        raise ConfigError(f"{flag} is for tables ({', '.join(_TABLES)}); {source} is none")
    if source.endswith(_DESCRIPTIONS):
        described = datasets.from_typed_tables(source)
        if described.columns:
            err_console().print(table(_DECIDED, _decided_rows(described.columns), "columns"))
        for node_type, left_out in described.unused_columns.items():
            if node_type not in described.columns:
                text_of = "columns of {} left out, as they hold no numbers or an index: {}"
                say(err_console(), text_of, node_type, ", ".join(left_out))
        graph = datasets.prepare(described.graph, **preparation)
        return graph, datasets.StoreNames(types=described.names)
    if datasets.is_store(source):
        return datasets.load(source, **preparation, verify=True), datasets.open_names(source)
    return datasets.load(source, **preparation), datasets.StoreNames()


# ---- another order


@guarded
def reorder(
    *,
    data: str = flag(..., "--data -d", "A store, which is read from disk in parts, or any other dataset."),
    by: str = flag(
        ...,
        "--by",
        "Order: degree, rcm (reverse Cuthill-McKee), communities, reverse_pagerank, "
        "weighted_reverse_pagerank, inclusion, presampled, or auto (the best score of a trial).",
    ),
    out: Path = path_flag(..., "--out -o", "Folder of the store to make.", metavar="STORE"),
    fanouts: str | None = flag(
        None, "", "Of inclusion, presampled and auto: neighbours per hop. (default: 15,10)"
    ),
    batch_size: int | None = flag(None, "", "Of the same: seed nodes per batch. (default: 1024)"),
    seed: int | None = flag(None, "", "Of the same: random seed. (default: 0)"),
    overwrite: bool = flag(False, "--overwrite", "Replace an existing store."),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Renumber the nodes of a store, from disk to disk.

    Topology, features, labels and splits are written in parts, so the graph may be larger than memory
    (communities and rcm need memory for the edges to compute the order). The new store keeps the original
    node ids, which predict writes to its output. It is written atomically and verified.

    Examples:

        graphbraid reorder --data stores/papers --by degree --out stores/papers-by-degree

        graphbraid reorder --data stores/web --by communities --out stores/web --overwrite

        graphbraid reorder --data stores/papers --by inclusion --fanouts 15,10,5 --out stores/papers-hot
    """  # noqa: D412  (typer shows the blank line between examples)
    from graphbraid.features.reordering import OF_SAMPLER, check_order_name

    check_order_name(by, "--by", sampled=True)
    if by not in OF_SAMPLER:
        _refuse_unread(by, {"--fanouts": fanouts, "--batch-size": batch_size, "--seed": seed})
    if not overwrite:
        require_absent(out)
    graph, names = _opened(data)
    followed = _sampling(graph, fanouts, batch_size, seed) if by in OF_SAMPLER else {}
    summary = store(graph, out, names=names, order=make_order(graph, by, **followed), overwrite=overwrite)
    tell(graph, out, summary | {"order": by}, as_json=json_output)


def _refuse_unread(by: str, options: Mapping[str, object]) -> None:
    """Refuse options of orders that follow a sampler, where the order does not."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(
                f"{name} is of orders that follow a sampler, and --by {by} does not; leave it out, or take "
                "inclusion, presampled or auto."
            )


def _sampling(graph: Graph, fanouts: str | None, batch_size: int | None, seed: int | None) -> dict[str, Any]:
    """Make the sampler and the seeds that a score follows: those of a training run."""
    from graphbraid.sampling import SamplerConfig
    from graphbraid.sampling.config import SeedSchedule

    train = graph.split("train")
    batch_size, seed = 1024 if batch_size is None else batch_size, 0 if seed is None else seed
    return {
        "sampler": SamplerConfig(fanouts=(15, 10) if fanouts is None else _parsed(fanouts)),
        "schedule": SeedSchedule(seeds=train, batch_size=batch_size, shuffle=True, seed=seed),
    }


def _parsed(fanouts: str) -> tuple[int, ...]:
    from graphbraid.train.config import TrainConfig
    from graphbraid.train.option_values import parsed

    try:
        found: tuple[int, ...] = parsed(TrainConfig, "fanouts", fanouts)
    except ConfigError as error:
        raise ConfigError(f"--fanouts: {error}") from None
    return found


def _opened(data: str) -> tuple[Graph, StoreNames]:
    from graphbraid import datasets

    if datasets.is_store(data):
        return datasets.open_store(data), datasets.open_names(data)
    return datasets.load(data), datasets.StoreNames()


# ---- what both do

ORDER_EDGE_BYTES = {"communities": 24, "rcm": 20}
"""Peak bytes per edge to compute an order with int32 ids, without the graph and maps of its nodes."""


def make_order(
    graph: Graph, name: str, *, sampler: SamplerConfig | None = None, schedule: SeedSchedule | None = None
) -> Tensor:
    """Compute the order of the nodes that a name stands for."""
    import torch

    from graphbraid.datasets.npy import require_memory
    from graphbraid.features.reordering import named_order

    num_bytes = graph.csc.indices.nbytes * ORDER_EDGE_BYTES.get(name, 0) // torch.int32.itemsize
    require_memory(num_bytes, f"ordering the nodes by {name}")
    with stage(f"ordering the nodes by {name}"):
        return named_order(graph, name, sampler=sampler, schedule=schedule)


def store(
    graph: Graph,
    folder: Path,
    *,
    names: StoreNames,
    order: Tensor | None,
    overwrite: bool,
    narrowing: Narrowing | None = None,
) -> dict[str, Any]:
    """Write a store, verify it, and return its summary for ``--json``. ``narrowing`` rounds its features."""
    from graphbraid import datasets
    from graphbraid.cli.commands.info import graph_values

    if_exists: Any = "replace" if overwrite else "error"
    datasets.save_store(
        graph,
        folder,
        ids=names.ids,
        class_names=names.class_names,
        names=names.types if graph.is_typed else None,
        order=order,
        features_dtype=narrowing,
        if_exists=if_exists,
    )
    stored = datasets.open_store(folder, verify=True)  # reads the files back; the next open need not
    summary: dict[str, Any] = {
        "store": str(folder),
        **graph_values(stored),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }
    return summary if narrowing is None else summary | {"rounding": narrowing.rounding.to_json()}


def tell(graph: Graph, folder: Path, summary: dict[str, Any], *, as_json: bool) -> None:
    """Report the new store."""
    if as_json:
        print_json(summary)
        return
    from graphbraid.cli.commands.info import graph_facts, type_facts

    say(err_console(), "{}", graph_facts(graph))
    for name, facts in type_facts(graph):
        say(err_console(), "  {}: {}", name, facts)
    say(err_console(), "stored in {}", folder)
