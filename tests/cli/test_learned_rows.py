"""Learned rows in place of features, from the command line: trained, resumed, predicted and refused."""

import pytest
from tests.distributed.training import graph_of

from graphbraid.datasets import save_store

QUICK = ("--batch-size", 64, "--hidden", 8, "--fanouts", "4,4", "--set", "threads=1", "--quiet")


@pytest.fixture
def store(tmp_path):
    save_store(graph_of().replace(x=None), tmp_path / "store")
    return tmp_path / "store"


def test_a_graph_without_features_learns_a_row_for_each_node(graphbraid, store, tmp_path):
    out, rows = tmp_path / "run", ("--data", store, "--embedding-dim", 4)
    graphbraid("train", *rows, "--out", out, "--epochs", 1, *QUICK)
    graphbraid("train", "--resume", "--out", out, "--epochs", 2, "--quiet")
    folders = list((out / "checkpoints").glob("rows-*"))
    assert 1 <= len(folders) <= 2
    graphbraid("predict", "--run", out, "--out", tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 601
    done = graphbraid("train", "--data", store, "--out", tmp_path / "other", *QUICK, code=None)
    assert "--embedding-dim 64" in done.stderr


def test_learned_rows_are_refused_where_they_are_something_else(graphbraid, store, tmp_path):
    links = ("--task", "link", "--data", store, "--out", tmp_path / "links")
    done = graphbraid("train", *links, "--embedding-dim", 4, *QUICK, code=None)
    assert done.exit_code != 0
    assert "is for labels of nodes" in done.stderr
    full = ("--mode", "full", "--data", store, "--out", tmp_path / "full")
    done = graphbraid("train", *full, "--embedding-dim", 4, "--quiet", code=None)
    assert "reads the rows of all nodes" in done.stderr
