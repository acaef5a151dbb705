"""The content of a store's ``graph.json``: made of a graph, written, read and checked."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from graphbraid.datasets.store.arrays import ArrayEntry
from graphbraid.datasets.store.names import ColumnsEntry, StoreNames, described_columns, schema_of
from graphbraid.datasets.store.types import TypesEntry, described_types
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.checksums import unsealed
from graphbraid.files.opening import read_text
from graphbraid.files.schema import Count, checked
from graphbraid.files.writing import restore
from graphbraid.graph import Graph, Schema
from graphbraid.graph.types import ONLY_NODE_TYPE

MANIFEST = "graph.json"
FORMAT = "graphbraid-store"
VERSION = 2
"""Version of the format; version 1, with CRC-32 sums of arrays and no sum of ``graph.json``, still opens."""
TYPED_VERSION = 3
"""Version of the format of a graph with types, which readers of version 2 must not take for one without."""
COLUMNS_VERSION = 4
"""Version of the format with names of columns, which older readers must not take by their position."""

_log = logging.getLogger(__name__)


class StoreManifest(BaseModel):
    """The content of ``graph.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    version: int
    name: str = ""
    num_nodes: Count
    num_edges: Count
    num_features: Count
    class_names: list[str] | None = None
    weight_name: str = "edge_weight"
    types: TypesEntry | None = None
    columns: list[ColumnsEntry] = []
    arrays: dict[str, ArrayEntry]

    @property
    def schema_of_graph(self) -> Schema:
        """What columns and classes mean."""
        if self.types is None:
            return schema_of(self.columns, {ONLY_NODE_TYPE: self.class_names})
        return schema_of(self.columns, {one.name: one.class_names for one in self.types.nodes})


def manifest_of(
    graph: Graph, named: StoreNames, num_features: int, described: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the content of ``graph.json`` for a graph, its names and its described arrays."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if graph.types is None else TYPED_VERSION,
        "name": graph.name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "num_features": num_features,
        "class_names": _listed(named.class_names),
    }
    if graph.weight_name != "edge_weight":
        manifest["weight_name"] = graph.weight_name
    if graph.types is not None:
        class_names = {node_type: _listed(one.class_names) for node_type, one in named.types.items()}
        manifest["types"] = described_types(graph.types, class_names).model_dump(exclude_defaults=True)
    if graph.schema.columns:
        manifest["version"] = COLUMNS_VERSION
        manifest["columns"] = [one.model_dump() for one in described_columns(graph.schema)]
    return manifest | {"arrays": described}


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def read_manifest(folder: Path) -> StoreManifest:
    """Read the content of a store's ``graph.json``.

    Raises:
        DataError: the folder is not a store, or its ``graph.json`` is damaged or of a newer graphbraid.
        ResourceError: the file cannot be read.
    """
    path = folder / MANIFEST
    restore(folder)
    try:
        manifest = json.loads(read_text(path))
    except FileNotFoundError as error:
        what = "no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise DataError(f"{folder} is not a graphbraid store: {what}") from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); store the graph again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f'{folder} is not a graphbraid store: {MANIFEST} does not say "format": "{FORMAT}"')
    version = manifest.get("version")
    if type(version) is not int or version > COLUMNS_VERSION or version < 1:
        raise DataError(
            f"{folder} has store version {version}; this graphbraid reads versions up to {COLUMNS_VERSION}. "
            "Upgrade graphbraid, or store the graph again with this one."
        )
    if version == 1:
        _log.warning("%s is of store version 1, whose graph.json has no checksum; convert it anew", folder)
    manifest = unsealed(manifest, path)
    refuse = f"{path} cannot be understood: {{}}; store again"
    return checked(TypeAdapter(StoreManifest), manifest, lambda text: DataError(refuse.format(text)))
