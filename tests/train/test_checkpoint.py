"""Checkpoints are refused where they do not belong, and run folders where they are in use."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.communities import Sage, community_graph, new_model

from graphbraid.errors import ConfigError, DataError
from graphbraid.features import reorder
from graphbraid.files import checksums
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.train import Callback, Trainer, runtime
from graphbraid.train.run_folder import checkpoint
from graphbraid.train.run_folder.contract import graph_identity

OPTIONS = {"epochs": 2, "batch_size": 100, "fanouts": (5, 5), "threads": 1, "test_at_end": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, only to be read."""
    graph, folder = community_graph(), tmp_path_factory.mktemp("finished")
    Trainer(new_model(graph), graph, **OPTIONS, out_dir=folder).fit()
    return folder


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def resume(run_dir: Path, graph=None, model=None, **options) -> None:
    graph = graph or community_graph()
    options = OPTIONS | {"epochs": 3, "out_dir": run_dir, "resume": True} | options
    Trainer(model or new_model(graph), graph, **options).fit()


def test_checkpoint_holds_tensors_and_plain_values_only(run_dir):
    contents = torch.load(run_dir / "checkpoints" / "last.pt", weights_only=True)
    assert contents["progress"]["epoch"] == 2
    assert contents["config"]["batch_size"] == 100


def test_longer_run_continues(run_dir):
    resume(run_dir, epochs=4, patience=50, workers=2)
    assert torch.load(run_dir / "checkpoints" / "last.pt")["progress"]["epoch"] == 4


def test_a_run_goes_on_with_the_update_it_began_with(tmp_path, monkeypatch):
    """A checkpoint from before updates were one kernel, resumed, equals a run that never stopped."""
    graph = community_graph()

    def losses(folder: str, epochs: int, *, resume: bool = False) -> list[float]:
        options = OPTIONS | {"epochs": epochs, "out_dir": tmp_path / folder, "resume": resume}
        trainer = Trainer(new_model(graph), graph, **options)
        trainer.fit()
        return [row["train_loss"] for row in trainer.progress.history]

    with monkeypatch.context() as older:
        older.setattr(runtime, "_can_fuse", lambda *_: False)
        whole = losses("whole", 4)
        losses("parts", 2)
    saved = torch.load(tmp_path / "parts" / "checkpoints" / "last.pt")["optimizer"]
    assert not saved["param_groups"][0]["fused"]
    assert losses("parts", 4, resume=True) == whole


class Flat(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(12, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lr": 0.5}, ConfigError, "written with lr=0.003; this run has 0.5"),
        ({"seed": 3}, ConfigError, "written with seed=0; this run has 3"),
        (
            {"model": Sage(12, 3, hidden=8)},
            ConfigError,
            r"its own.0.weight is \(16, 12\).* given model's is \(8, 12\)",
        ),
        ({"model": Flat()}, ConfigError, "holds a .*Sage; the model given is a .*Flat"),
        ({"graph": community_graph(500)}, DataError, "its num_nodes was 600, this graph's is 500"),
        ({"graph": community_graph(seed=1)}, DataError, "another graph"),
        ({"graph": reorder(community_graph(), "degree").graph}, DataError, "was it renumbered .* since"),
    ],
)
def test_checkpoint_of_another_run_is_refused(run_dir, change, error, message):
    with pytest.raises(error, match=message):
        resume(run_dir, **change)


def test_another_optimizer_by_a_function_of_the_same_name_is_refused(tmp_path):
    graph, options = community_graph(), OPTIONS | {"out_dir": tmp_path}
    Trainer(new_model(graph), graph, **options, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).fit()
    options |= {"epochs": 3, "resume": True}
    with pytest.raises(ConfigError, match="holds the state of another optimizer than this Adam"):
        Trainer(new_model(graph), graph, **options, optimizer=lambda p: torch.optim.Adam(p, lr=0.1)).fit()


def test_changed_labels_features_or_splits_are_noticed(run_dir):
    graph = community_graph()
    assert graph.y is not None
    assert isinstance(graph.x, torch.Tensor)
    y = graph.y.clone()
    y[5] = (y[5] + 1) % 3
    x = graph.x.clone()
    x[9, 0] += 1
    splits = {**graph.splits, "val": graph.splits["val"].flip(0)}
    for change in ({"y": y}, {"x": x}, {"splits": splits}):
        with pytest.raises(DataError, match="its array"):
            resume(run_dir, graph=graph.replace(**change))


def test_length_of_a_scheduled_run_cannot_change(tmp_path):
    graph, options = community_graph(), OPTIONS | {"out_dir": tmp_path, "scheduler": "cosine"}
    Trainer(new_model(graph), graph, **options).fit()
    with pytest.raises(ConfigError, match="written with epochs=2; this run has 3"):
        Trainer(new_model(graph), graph, **options | {"epochs": 3, "resume": True}).fit()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no whole zip file"),
        (b"PK\x03\x04 broken", "no whole zip file"),
        (None, "it lacks .*optimizer"),
        (2, "it has no checksum"),
        (1, "not a checkpoint"),
    ],
)
def test_damaged_checkpoint_is_refused(run_dir, content, message):
    path = run_dir / "checkpoints" / "last.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        written = {None: {"format": checkpoint.FORMAT}, 1: {"other": 1}, 2: {"format": checkpoint.FORMAT}}
        torch.save(written[content], path)
        if content != 2:
            checksums.seal_zip(path)
    with pytest.raises(DataError, match=message):
        resume(run_dir)


def test_damage_in_the_middle_of_the_file_is_found(run_dir):
    path = run_dir / "checkpoints" / "last.pt"
    data = bytearray(path.read_bytes())
    at = data.index(b"data.pkl") + 200
    data[at : at + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"damaged|Python objects"):
        resume(run_dir)


def test_checkpoint_with_objects_is_loaded_only_if_trusted(tmp_path):
    class Keep(Callback):
        def state_dict(self) -> dict[str, object]:
            return {"path": Path("a")}

    graph = community_graph()
    options = OPTIONS | {"out_dir": tmp_path, "callbacks": [Keep()], "restore_best": False}
    Trainer(new_model(graph), graph, **options).fit()
    with pytest.raises(DataError, match="trust_checkpoint=True") as caught:
        Trainer(new_model(graph), graph, **options, resume=True).fit()
    assert "callback): pathlib." in str(caught.value)
    assert "weights_only" not in str(caught.value), "torch's advice is to switch the check off"
    Trainer(new_model(graph), graph, **options, resume=True, trust_checkpoint=True).fit()


def test_a_zip_file_of_arrays_is_no_checkpoint(tmp_path):
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS)
    np.savez(tmp_path / "weights.npz", weight=np.arange(3))
    with pytest.raises(DataError, match=r"is not a checkpoint of this version of graphbraid"):
        trainer.load_weights(tmp_path / "weights.npz")


def test_a_run_that_cannot_start_leaves_no_folder(tmp_path):
    graph = community_graph()
    (tmp_path / "there").mkdir()
    for name in ("new", "there"):
        options = OPTIONS | {"out_dir": tmp_path / name, "fanouts": (2,)}
        with pytest.raises(ConfigError):
            Trainer(new_model(graph), graph, **options).fit()
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


def test_resume_needs_a_run_and_a_fresh_run_an_empty_folder(run_dir, tmp_path):
    graph = community_graph()
    empty = tmp_path / "empty"
    with pytest.raises(ConfigError, match=r"last.pt does not exist; .*resume='auto'"):
        resume(empty)
    with pytest.raises(ConfigError, match=r"already holds a run; .*overwrite=True"):
        Trainer(new_model(graph), graph, **OPTIONS, out_dir=run_dir).fit()
    assert Trainer(new_model(graph), graph, **OPTIONS, out_dir=empty, resume="auto").fit().num_epochs == 2
    short = Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 1}, out_dir=run_dir, overwrite=True).fit()
    assert short.num_epochs == 1
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_log_that_was_changed_since_is_refused(run_dir, damage):
    steps = run_dir / "steps.jsonl"
    steps.write_bytes(b"{}\n") if damage == "cut" else steps.unlink()
    with pytest.raises(DataError, match=r"steps.jsonl (has 3 bytes|is missing)"):
        resume(run_dir)


def test_weights_are_taken_from_a_checkpoint(run_dir):
    graph = community_graph()
    trainer = Trainer(new_model(graph, seed=5), graph)
    trainer.load_weights(run_dir / "checkpoints" / "best.pt")
    best = torch.load(run_dir / "checkpoints" / "best.pt")["model"]
    assert all(torch.equal(value, best[name]) for name, value in trainer.model.state_dict().items())
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        trainer.load_weights(run_dir / "none.pt")
    with pytest.raises(ConfigError, match="another model"):
        Trainer(Sage(12, 3, hidden=4), graph).load_weights(run_dir / "checkpoints" / "best.pt")


@pytest.mark.parametrize("edges", [[], [(0, 1)]])
def test_a_graph_with_at_most_one_edge_is_known_by_its_values_whatever_their_strides(edges):
    """A stride of a dimension of one element may be any, also for what is called contiguous."""
    rows = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    indptr = torch.tensor([0, 0, len(edges)])
    graphs = [
        Graph(csc=Csc(indptr=indptr, indices=src, num_src=2), x=torch.ones(2, 3))
        for src in (rows[:, 0], rows[:, 0].clone(memory_format=torch.contiguous_format))
    ]
    first, second = map(graph_identity, graphs)
    assert first == second
