"""CompiledModule: a module in the place of a user's model."""

from __future__ import annotations

from typing import Any, Self

from torch import nn

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""The attributes in which a module keeps its parameters, buffers and submodules."""


class CompiledModule(nn.Module):
    """A module whose parameters, buffers and submodules are a model's own, under the model's names.

    The keys of ``state_dict`` are the model's, too. Classes derived from it set their own attributes
    through ``vars(self)``: ``nn.Module`` would look for the name among the model's submodules.

    Args:
        model: any module.
    """

    model: nn.Module
    """The user's model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        vars(self).update({name: getattr(model, name) for name in _SHARED}, model=model)

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self.model.training

    @training.setter
    def training(self, mode: bool) -> None:
        """Do nothing: the model's own mode counts, and ``nn.Module`` sets one before there is a model."""

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model and of its modules."""
        self.model.train(mode)
        return self

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Return the model's state, as its own ``state_dict`` gives it."""
        return self.model.state_dict(*args, **named)

    def load_state_dict(self, *args: Any, **named: Any) -> Any:
        """Load a state of the model, as its own ``load_state_dict`` does."""
        return self.model.load_state_dict(*args, **named)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load the model's own part of the state of a module that holds this one."""
        self.model._load_from_state_dict(*args)
