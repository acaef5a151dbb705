"""``graphbraid convert``: converts tables, npz files and OGB folders to the on-disk store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphbraid.arguments import check_choice
from graphbraid.cli.common import DebugOption, JsonOption, err_console, guarded, path_given, say
from graphbraid.errors import ConfigError
from graphbraid.files.writing import require_absent

if TYPE_CHECKING:
    from graphbraid.datasets import StoreNames
    from graphbraid.graph import Graph

_TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq")
_DESCRIPTIONS = (".yaml", ".yml")
_GRAPH, _TABLE = "Graph", "Tables"
_TABLE_OPTIONS = (
    "nodes",
    "source",
    "destination",
    "weight",
    "id_column",
    "features",
    "label",
    "split",
    "fill_missing",
)


def _option(flags: str, panel: str, text: str) -> Any:
    return typer.Option(*flags.split(), help=text, rich_help_panel=panel, show_default=False)


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
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="Table with a row per node: features, label, split.",
            rich_help_panel=_TABLE,
            metavar="FILE",
            show_default=False,
            parser=path_given,
        ),
    ] = None,
    source: Annotated[
        str | None, _option("--source", _TABLE, "Column of the sources. (default: source)")
    ] = None,
    destination: Annotated[
        str | None, _option("--destination", _TABLE, "Column of the destinations. (default: destination)")
    ] = None,
    weight: Annotated[str | None, _option("--weight", _TABLE, "Column of the edge weights.")] = None,
    id_column: Annotated[str | None, _option("--id", _TABLE, "Column of the node ids. (default: id)")] = None,
    features: Annotated[
        str | None,
        _option("--features", _TABLE, "Feature columns, comma-separated. (default: all other numeric ones)"),
    ] = None,
    label: Annotated[
        str | None, _option("--label", _TABLE, "Label column; several, comma-separated, are a label matrix.")
    ] = None,
    split: Annotated[
        str | None, _option("--split", _TABLE, "Column with train, val, test or nothing.")
    ] = None,
    fill_missing: Annotated[
        float | None, _option("--fill-missing", _TABLE, "Value of empty feature fields.")
    ] = None,
    delimiter: Annotated[
        str | None, _option("--delimiter", _TABLE, "Character between fields. (default: comma; tab in .tsv)")
    ] = None,
    header: Annotated[
        bool,
        _option("--header/--no-header", _TABLE, "Whether the first line names the columns; else 0, 1, ..."),
    ] = True,
    skip_rows: Annotated[int, _option("--skip-rows", _TABLE, "Lines to skip at the start.")] = 0,
    without_types: Annotated[
        bool,
        _option("--without-types", _GRAPH, "Leave out an .npz file's types, and times and splits of edges."),
    ] = False,
    symmetrize: Annotated[
        bool, _option("--symmetrize", _GRAPH, "Store both directions of every edge.")
    ] = False,
    add_self_loops: Annotated[
        bool, _option("--self-loops", _GRAPH, "Add a self-loop to every node without one.")
    ] = False,
    dedupe: Annotated[bool, _option("--dedupe", _GRAPH, "Keep one of several equal edges.")] = False,
    normalize_features: Annotated[
        bool,
        _option("--normalize-features", _GRAPH, "Divide feature rows by the sum of their absolute values."),
    ] = False,
    split_seed: Annotated[
        int | None,
        _option("--split-seed", _GRAPH, "Draw a new split with this seed: 20 and 30 nodes per class."),
    ] = None,
    features_dtype: Annotated[
        str | None,
        _option("--features-dtype", _GRAPH, "Round features to float16, bfloat16 or int8 (a scale per row)."),
    ] = None,
    order: Annotated[
        str | None,
        _option(
            "--order", _GRAPH, "Renumber the nodes: degree, rcm, communities or a PageRank; see reorder."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False,
    json_output: JsonOption = False,
    debug: DebugOption = False,
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

    columns = {
        name: value for name, value in locals().items() if name in _TABLE_OPTIONS and value is not None
    }
    is_text = source_path.endswith(_TABLES) and not source_path.endswith((".parquet", ".pq"))
    for flag, is_given in {
        "--delimiter": delimiter is not None,
        "--no-header": not header,
        "--skip-rows": skip_rows != 0,
    }.items():
        if is_given and not is_text:
            raise ConfigError(f"{flag} is for tables of text (.csv, .tsv, .txt); got {source_path}")
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
        table = datasets.from_tables(source, columns.pop("nodes", None), **columns, csv=csv, name=name)
        if table.unused_columns:
            unused = ", ".join(table.unused_columns)
            say(err_console(), "columns left out, as they hold no numbers: {}", unused)
        names = datasets.StoreNames(ids=table.ids, class_names=table.class_names)
        return datasets.prepare(table.graph, **preparation), names
    if columns:
        flag = "--" + next(iter(columns)).removesuffix("_column").replace("_", "-")
        raise ConfigError(f"{flag} is for tables ({', '.join(_TABLES)}); {source} is none")
    if source.endswith(_DESCRIPTIONS):
        described = datasets.from_typed_tables(source)
        for node_type, left_out in described.unused_columns.items():
            text_of = "columns of {} left out, as they hold no numbers: {}"
            say(err_console(), text_of, node_type, ", ".join(left_out))
        graph = datasets.prepare(described.graph, **preparation)
        return graph, datasets.StoreNames(types=described.names)
    if datasets.is_store(source):
        return datasets.load(source, **preparation, verify=True), datasets.open_names(source)
    return datasets.load(source, **preparation), datasets.StoreNames()
