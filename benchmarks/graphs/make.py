"""Makes graph folders by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.graphs import generated, rmat
from benchmarks.graphs.archive import from_npz
from benchmarks.graphs.folder import save, save_parts

SHUFFLED = "_shuffled"
"""Ending of an archive's name: the nodes' ids are drawn anew."""


def needs_archive(name: str) -> bool:
    """Whether a graph is made of an archive and not generated."""
    return name not in rmat.SPECS and name not in generated.OTHERS


def make(name: str, graphs: Path, data: Path | None) -> Path:
    """The folder of a graph, made if it is not there.

    Args:
        name: of a generated graph, or of an archive in ``data``, ``_shuffled`` behind it or not.
        graphs: holds the graphs' folders.
        data: holds the archives; None where only generated ones are asked for.

    Raises:
        ValueError: there is no such graph.
    """
    folder = graphs / name
    if folder.exists():
        return folder
    if name in rmat.SPECS:
        save_parts(rmat.make(rmat.SPECS[name]), folder)
    elif name in generated.OTHERS:
        graph = generated.make(name, generated.OTHERS[name])
        save(graph.replace(x=graph.dense_x()), folder)
    else:
        source = archive_of(name, data)
        if source is None:
            known = ", ".join([*rmat.SPECS, *generated.OTHERS])
            raise ValueError(
                f"there is no graph {name!r}: generated are {known}; all others are archives "
                f"NAME.npz in the folder that --data names (now {data or 'none'})"
            )
        from_npz(source, folder, shuffle=name.endswith(SHUFFLED))
    return folder


def archive_of(name: str, data: Path | None) -> Path | None:
    """The archive that a graph is made of, if it is there."""
    path = data and data / f"{name.removesuffix(SHUFFLED)}.npz"
    return path if path and path.exists() else None


def missing_archives(names: Iterable[str], graphs: Path, data: Path | None) -> list[str]:
    """Graphs that are not there and cannot be made, for want of their archives."""
    absent = (name for name in names if not (graphs / name).exists() and needs_archive(name))
    return [name for name in absent if archive_of(name, data) is None]
