"""How much of the package a reader meets on the main ways through it: files entered, and modules imported."""

import inspect
import json
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.extras import ran

import graphbraid
from graphbraid import Graph, Trainer, nn
from graphbraid.loader import NeighborLoader

PACKAGE = str(Path(graphbraid.__file__).parent)
MOST = {"loader": 12, "compile": 34, "fit": 30, "train": 245}
"""The goals are 12, 35, 30 and 300: the first three only fall, and the last stays below its goal."""


def small_graph():
    ends = torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(0))
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    return Graph.from_edge_index(ends, num_nodes=60, x=x, y=y, splits={"train": torch.arange(40)})


def files_entered(work):
    """Files of the package with a function that runs during ``work()``, on any thread."""
    entered = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(PACKAGE):
            entered.add(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return entered


def loader_maker():
    data = small_graph().to_pyg()
    return lambda: NeighborLoader(data, num_neighbors=[5, 5], batch_size=16)


def compiler():
    model, graph = nn.GCN(5, 8, 3), small_graph()
    return lambda: graphbraid.compile(model, graph)


def epoch():
    trainer = Trainer(nn.GraphSAGE(5, 8, 3), small_graph(), epochs=1, fanouts=[5, 5])
    return trainer.fit


@pytest.mark.parametrize(("name", "make"), [("loader", loader_maker), ("compile", compiler), ("fit", epoch)])
def test_no_more_files_are_entered(name, make):
    make()()  # imports what it needs
    entered = files_entered(make())
    assert 3 < len(entered) <= MOST[name], f"{len(entered)}:\n" + "\n".join(sorted(entered))


@pytest.mark.slow
def test_training_imports_no_more_modules_and_only_what_it_uses(tmp_path):
    code = (
        "import json, runpy, sys\n"
        "try:\n    runpy.run_module('graphbraid', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(json.dumps([*sys.modules]))"
    )
    options = ["train", "--epochs", "1", "--hidden", "4", "--out", str(tmp_path / "run")]
    done = ran([sys.executable, "-W", "error", "-c", code, *options])
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    imported = [name for name in modules if name.startswith("graphbraid")]
    assert 3 < len(imported) <= MOST["train"], f"{len(imported)}:\n" + "\n".join(imported)
    assert not {"torch._dynamo", "torchmetrics", "torch_geometric", "scipy", "pyarrow"} & set(modules)
