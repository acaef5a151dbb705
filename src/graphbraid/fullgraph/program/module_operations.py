"""Operations by a module of the user's: normalisation by its parameters, or the module run by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from graphbraid.fullgraph.program.operations import Operation


@dataclass(frozen=True, kw_only=True)
class Normalise(Operation):
    """``out = (x - mean) / sqrt(var + eps) * weight + bias`` of each row (layer) or column (batch)."""

    kind: str
    """``layer`` or ``batch``."""
    module: nn.Module
    """Module with ``eps``, ``weight`` and ``bias`` (or None), and for batches the running statistics of
    :class:`torch.nn.BatchNorm1d`."""
    channels: int
    symbol = "normalise"

    @property
    def couples_rows(self) -> bool:
        """Whether a row's result depends on other rows, so that no row may be left out."""
        return self.kind == "batch"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return tuple(self.module.parameters(recurse=False))

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return f"{self.kind}, eps {self.module.eps:g}"


@dataclass(frozen=True, kw_only=True)
class Module(Operation):
    """A module that maps rows to rows, run by PyTorch because it has no kernel here."""

    module: nn.Module
    width_out: int | None
    """Columns of the result; None for as many as the input has."""
    couples_rows: bool
    """Whether a row's result depends on other rows, as in batch normalisation; then none may be omitted."""
    symbol = "module"

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters it learns."""
        return tuple(self.module.parameters())

    def details(self) -> str:
        """Return the text to print after the inputs."""
        return str(self.module).splitlines()[0]
