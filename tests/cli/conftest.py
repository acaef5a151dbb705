"""Runs the command line: in this process for speed, or as its own process where signals or exits matter."""

import dataclasses
import json
import os
import sys

import pytest
import torch
from tests import warm
from tests.extras import PATIENCE, ran
from typer.testing import CliRunner

from graphbraid.cli.main import app
from graphbraid.datasets import save_store
from graphbraid.graph import Graph


@dataclasses.dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self):
        return json.loads(self.stdout)

    def ended(self, code):
        """Check how the command ended: with the exit code ``code``, or if that is None with any."""
        assert code in (None, self.exit_code), self.stdout + self.stderr
        return self


@pytest.fixture(scope="session")
def graphbraid():
    """Call a command in this process: graphbraid("train", "--epochs", 1); ``code`` is how it must end."""

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr).ended(code)

    return call


def _calling(run):
    def call(*arguments, code=0, **variables):
        done = run(["-m", "graphbraid", *arguments], os.environ | variables)
        return Outcome(done.returncode, done.stdout, done.stderr).ended(code)

    return call


@pytest.fixture
def graphbraid_process():
    """Call a command in a process of its own."""
    return _calling(lambda command, env: ran([sys.executable, *command], env=env, timeout=2 * PATIENCE))


@pytest.fixture
def graphbraid_warm():
    """Call a command in a process that need not import torch again."""
    return _calling(lambda command, env: warm.run(command, environment=env))


def communities():
    """200 nodes in two communities with class-bearing features; three splits."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    source = torch.randint(0, 200, (4000,), generator=generator)
    destination = torch.randint(0, 200, (4000,), generator=generator)
    keep = (y[source] == y[destination]) | (torch.rand(4000, generator=generator) < 0.2)
    x = torch.randn(200, 8, generator=generator) + y[:, None]
    order = torch.randperm(200, generator=generator)
    splits = {"train": order[:100], "val": order[100:150], "test": order[150:]}
    edges = torch.stack([source[keep], destination[keep]])
    return Graph.from_edge_index(edges, 200, x=x, y=y, splits=splits, name="communities")


@pytest.fixture
def two_communities():
    """The graph of :func:`communities`."""
    return communities()


@pytest.fixture
def store(two_communities, tmp_path):
    """The same graph as an on-disk store."""
    return save_store(two_communities, tmp_path / "communities")


@pytest.fixture(scope="session")
def trained(graphbraid, tmp_path_factory):
    """The folder of a finished run, only to be read, and what the command said; its store lies beside it."""
    folder = tmp_path_factory.mktemp("trained")
    store = save_store(communities(), folder / "communities")
    options = ("--epochs", 5, "--lr", 0.05, "--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet")
    done = graphbraid("train", "--data", store, "--out", folder / "run", *options, "--json")
    return folder / "run", done
