"""What the suite spares itself: done for each test, it takes a tenth of their time and tells nothing."""

import functools
import logging
import os
import sys
from typing import Any

import torch
from _pytest.logging import catching_logs


def take() -> None:
    """Take them, in this process; call it when the tests are imported."""
    os.fsync = _is_open  # no test cuts the power
    # Of loggers that hand no record on, PyTorch has fifty; each is asked three times a test.
    catching_logs.__enter__ = _catch_at_root
    if "typer.testing" in sys.modules:  # the parser of a command line is made anew for each call
        typer = sys.modules["typer.testing"]
        typer._get_command = functools.cache(typer._get_command)
    if "torch_geometric.template" in sys.modules:  # PyG parses its templates anew for each class of layers
        pyg = sys.modules["torch_geometric.template"]
        pyg.FileSystemLoader = functools.cache(pyg.FileSystemLoader)
        pyg.Environment = functools.cache(pyg.Environment)
    for device in (torch.cuda, torch.xpu):
        if not device.is_available():  # the seed of a device that may come later is kept with a stack trace
            device.manual_seed_all = _no_seed


def _is_open(descriptor: int) -> None:
    """Raise as ``os.fsync`` does where there is no such file."""
    os.fstat(descriptor)


def _catch_at_root(self: catching_logs[Any]) -> Any:
    root = logging.getLogger()
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(root.level, self.level))
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    return self.handler


def _no_seed(seed: int) -> None:
    """Seed no device."""
