"""Models of tests that need no class of their own."""

from collections.abc import Callable
from typing import Any

from torch import nn


def module_of(forward: Callable[..., Any], **parts: Any) -> nn.Module:
    """A module with these parts, whose ``forward`` has the names of the function's arguments."""
    made = type("Module", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(made, name, part)
    return made
