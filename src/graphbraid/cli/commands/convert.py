"""``graphbraid convert``: converts tables, npz files and OGB folders to the on-disk store."""

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
    say,
    table,
)
from graphbraid.errors import ConfigError
from graphbraid.files.writing import require_absent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphbraid.datasets import StoreNames
    from graphbraid.datasets.tables.column_types import TypedColumn
    from graphbraid.graph import Graph

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
    from graphbraid.cli.steps.storing import make_order, store, tell
    from graphbraid.datasets.store.narrowing import DTYPES, Narrowing
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
    """Return a row for each column of the tables, with its inferred kind."""
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
            unused = ", ".join(made.unused_columns)
            say(err_console(), "columns left out, as they hold no numbers: {}", unused)
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
                text_of = "columns of {} left out, as they hold no numbers: {}"
                say(err_console(), text_of, node_type, ", ".join(left_out))
        graph = datasets.prepare(described.graph, **preparation)
        return graph, datasets.StoreNames(types=described.names)
    if datasets.is_store(source):
        return datasets.load(source, **preparation, verify=True), datasets.open_names(source)
    return datasets.load(source, **preparation), datasets.StoreNames()
