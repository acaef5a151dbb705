"""Packages whose names load their modules at first use, so that a run imports only what it needs."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names_of(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: name of the package.
        modules: the names that each module of the package defines, with blanks between them. A module whose
            name begins with a dot is beside the package, not in it. No module in the package may be called as
            one of the names: importing it elsewhere would put the module in the name's place.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{homes[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
