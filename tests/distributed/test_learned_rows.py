"""Learned rows that ranks divide: any number of ranks learns what one process does with torch's own."""

import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.distributed import learned_rows
from tests.distributed.learned_rows import CASES, RUN, BesideFeatures, make
from tests.distributed.ranks import Said, run
from tests.distributed.training import fitted, graph_of
from tests.extras import PATIENCE
from tests.modules import module_of
from tests.train.typed_communities import bibliography
from torch import nn

from graphbraid.distributed import ShardedGraph, partition, save_partition
from graphbraid.distributed.shards.learned_rows import LearnedRows, Ranges, initial_rows
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.nn import GraphSAGE, NodeEmbedding, ShardedEmbedding
from graphbraid.train import Callback, Trainer
from graphbraid.train.step.step import make_loader
from graphbraid.train.task import split_nodes

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of four parts of the training graph."""
    at, graph = tmp_path_factory.mktemp("learned") / "parts", graph_of()
    save_partition(graph, partition(graph, 4, strategy="random"), at, rows="parts")
    return at


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """Return what one process learns on the whole graph."""
    graph = graph_of()
    return {
        name: fitted(Trainer(make(kind, graph), graph, **RUN | options))
        for name, (kind, options) in CASES.items()
    }


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a run of three epochs on two ranks, which tests only read, and what it gave."""
    at = tmp_path_factory.mktemp("uninterrupted") / "run"
    return at, run(2, learned_rows.with_checkpoints, folder, at, 3, "new")[0].result


@pytest.fixture(scope="module")
def results(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Said]]:
    files = tmp_path_factory.mktemp("files")
    return functools.cache(lambda size: run(size, learned_rows.every_case, folder, files))


SIZES = (2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.slow), 1)


@pytest.mark.parametrize("case", [*CASES, "files"])
@pytest.mark.parametrize("size", SIZES)
def test_ranks_learn_what_one_process_learns(case, size, alone, results):
    expected = alone["plain" if case == "files" else case]
    for said in results(size):
        for one in said.result[case]:
            assert one["losses"] == pytest.approx(expected["losses"], rel=1e-4)
            assert one["weights"] == pytest.approx(expected["weights"], rel=1e-3)
            assert one["test"] == pytest.approx(expected["test"], rel=1e-4)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_links_are_learned_with_rows_that_ranks_divide(size, folder):
    [alone] = run(1, learned_rows.links, folder)
    expected = alone.result | {"parts": alone.result["whole"]}
    for said in run(size, learned_rows.links, folder):
        for name, found in said.result.items():
            for what in ("losses", "weights", "test"):
                assert found[what] == pytest.approx(expected[name][what], rel=1e-3, abs=1e-3), (name, what)
            assert found.get("scores") == pytest.approx(expected[name].get("scores"), abs=1e-3), name


def test_each_rank_holds_the_rows_of_its_own_nodes(results):
    owned = [said.result["owned"] for said in results(2)]
    assert sum(owned) == 600
    assert max(owned) < 360


class Both(torch.optim.Optimizer):
    """Torch's own optimizers: one for embeddings, another for the other parameters."""

    def __init__(self, model: nn.Module, sparse: Any, dense: Any) -> None:
        tables = [one.weight for one in model.modules() if isinstance(one, nn.Embedding)]
        others = [p for p in model.parameters() if not any(p is table for table in tables)]
        super().__init__([*tables, *others], {"lr": RUN["lr"]})
        self.both = sparse(tables, lr=RUN["lr"]), dense(others, lr=RUN["lr"])

    def step(self, closure: Any = None) -> None:
        for one in self.both:
            one.step()


OPTIMIZERS = {
    "adam": (torch.optim.SparseAdam, torch.optim.Adam),
    "adamw": (torch.optim.SparseAdam, functools.partial(torch.optim.AdamW, weight_decay=0.0)),
    "sgd": (torch.optim.SGD, torch.optim.SGD),
    "adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_updated_as_torch_updates_an_embedding_with_sparse_gradients(name):
    """A row that a batch holds and the model does not read keeps its value, as it does with torch."""
    graph = graph_of()
    options = RUN | {
        "layout": "subgraph",
        "optimizer": name,
        "epochs": 2,
        "eval_every": 0,
        "test_at_end": False,
    }
    torch.manual_seed(0)
    trainer = Trainer(BesideFeatures(graph), graph, **options)
    torch.manual_seed(0)
    model = BesideFeatures(graph, functools.partial(nn.Embedding, sparse=True))
    model.load_state_dict(trainer.model.state_dict(), strict=False)
    ids = torch.arange(graph.num_nodes)
    with torch.no_grad():
        for number, one in enumerate((model.rows, model.few)):
            one.weight.copy_(initial_rows(0, number, ids, one.embedding_dim))
    trainer.fit()
    optimizer = Both(model, *OPTIMIZERS[name])
    loader = make_loader(trainer.runner, trainer.config, split_nodes(graph, "train"))
    for epoch in range(2):
        for batch in loader.batches(epoch):
            model.zero_grad()
            out = model(batch.x, batch.edge_index, batch.n_id)[: batch.batch_size]
            nn.functional.cross_entropy(out, batch.seed_y).backward()
            optimizer.step()
    loader.close()
    for mine, theirs in ((trainer.model.rows, model.rows), (trainer.model.few, model.few)):
        torch.testing.assert_close(mine.held.rows.detach(), theirs.weight.detach(), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(trainer.model.layers.parameters(), model.layers.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizers", [("adam", "adam"), ("adam", "adagrad"), ("adagrad", "sgd")])
def test_another_run_begins_with_new_state_of_the_optimizer(optimizers):
    """As torch's optimizers do: it goes on from the rows, and not from the moments of the run before."""
    graph = graph_of()
    former = Trainer(make("own", graph), graph, **RUN | {"epochs": 1, "optimizer": optimizers[0]})
    former.fit()
    rows = former.model.rows.held.rows.detach().clone()
    fresh = make("own", graph)
    options = RUN | {"epochs": 1, "optimizer": optimizers[1]}
    other = Trainer(fresh, graph, **options)
    fresh.load_state_dict(former.model.state_dict())
    fresh.rows.held.rows.detach().copy_(rows)
    again = Trainer(former.model, graph, **options)
    assert fitted(again) == fitted(other)
    assert torch.equal(former.model.rows.held.rows, fresh.rows.held.rows)
    assert again.runner.learned.steps == {"rows": 7}


class Detaching(BesideFeatures):
    """Learns its rows in the first of two epochs alone."""

    def forward(self, x: Any, edge_index: Any, n_id: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + self.training
        first, few = self.rows(n_id), self.few(n_id)
        if self.calls > 7:
            first, few = first.detach(), few.detach()
        hidden = self.layers[0](torch.cat((x, first), 1), edge_index).relu()
        return self.layers[1](torch.cat((hidden, few), 1), edge_index)


def test_rows_that_the_loss_does_not_depend_on_keep_their_values():
    """With torch they have no gradient, and their moments move them no further."""
    graph = graph_of()
    options = RUN | {"layout": "subgraph", "eval_every": 0, "test_at_end": False, "epochs": 2}
    seen: list[torch.Tensor] = []

    class Noting(Callback):
        def on_epoch_end(self, trainer: Trainer, record: Any) -> None:
            seen.append(trainer.model.rows.held.rows.detach().clone())

    Trainer(Detaching(graph), graph, callbacks=[Noting()], **options).fit()
    assert torch.equal(*seen)


def test_freezing_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"call .detach\(\) on the rows"):
        ShardedEmbedding(5, 3).requires_grad_(False)
    assert ShardedEmbedding(5, 3).requires_grad_() is not None


def test_initial_rows_depend_on_seed_module_node_and_column_alone():
    ids = torch.tensor([5, 0, 10**12, 5])
    rows = initial_rows(3, 0, ids, 4)
    assert torch.equal(rows[0], rows[3])
    assert torch.equal(rows[1:2], initial_rows(3, 0, ids[1:2], 4))
    others = (initial_rows(4, 0, ids, 4), initial_rows(3, 1, ids, 4), rows.roll(1, 1))
    assert all(not bool((rows == other).any()) for other in others)
    assert not bool((rows[0] == rows[1:3]).any())
    many = initial_rows(0, 0, torch.arange(20_000), 16)
    assert float(many.mean().abs()) < 0.002
    assert float(many.square().sum(1).mean()) == pytest.approx(1.0, rel=0.01)
    assert float(many.abs().max()) <= (3 / 16) ** 0.5


def test_embeddings_of_torch_train_on_ranks_or_are_refused_with_the_remedy(folder):
    for said in run(2, learned_rows.by_torch, folder):
        parts, whole, sparse = said.result
        assert parts == pytest.approx(whole, rel=1e-5)
        assert "graphbraid.nn.ShardedEmbedding(num_nodes, channels)" in sparse


def test_each_rank_predicts_nodes_of_its_own_choice(folder):
    one = run(1, learned_rows.outputs, folder)[0].result
    graph = ShardedGraph.open(folder)
    trainer = Trainer(make("own", graph), graph, **RUN)
    for mode, found in zip(("exact", "sampled"), one, strict=True):
        assert found == pytest.approx(
            trainer.predict([7], mode=mode).double().abs().sum(1).tolist(), rel=1e-5
        )
    every = trainer.predict().double().abs().sum(1)
    first, second, last = run(3, learned_rows.outputs, folder)
    assert first.result[0] == pytest.approx(every.tolist(), rel=1e-5)
    assert second.result[0] == pytest.approx(every[90:550].tolist(), rel=1e-5)
    assert last.result == [pytest.approx([float(every[7])], rel=1e-5), pytest.approx(one[1], rel=1e-5)]


@pytest.mark.parametrize("kind", ["own", "pyg"])
def test_embeddings_are_those_of_a_model_that_holds_all_rows(kind):
    graph = graph_of()
    divided, nodes = (
        Trainer(make(kind, graph), graph, **RUN | {"layout": "subgraph"}),
        torch.arange(90, 40, -1),
    )
    if kind == "own":
        plain: nn.Module = NodeEmbedding(600, 8, divided.model.model)
        plain.rows.data.copy_(divided.model.rows.held.rows)
    else:
        plain = BesideFeatures(graph, nn.Embedding)
        plain.load_state_dict(divided.model.state_dict(), strict=False)
        for one, other in ((plain.rows, divided.model.rows), (plain.few, divided.model.few)):
            one.weight.data.copy_(other.held.rows)
    whole = Trainer(plain, graph, **RUN | {"layout": "subgraph"})
    torch.testing.assert_close(divided.predict(nodes), whole.predict(nodes))
    torch.testing.assert_close(divided.embed(nodes), whole.embed(nodes))


def checkpoints(at: Path) -> list[str]:
    """Return the names of a run's checkpoints, without the step and the random part of folders."""
    return sorted(name.name.rpartition("-")[0] or name.name for name in (at / "checkpoints").iterdir())


def test_runs_are_resumed_to_the_bit_and_by_other_ranks_to_rounding(folder, uninterrupted, tmp_path):
    train, whole = learned_rows.with_checkpoints, uninterrupted[1]
    run(2, train, folder, tmp_path / "same", 1, "new")
    shutil.copytree(tmp_path / "same", tmp_path / "other")
    kept = checkpoints(tmp_path / "same")
    assert [name for name in kept if name.startswith("rows")] == ["rows-7"]
    same = run(2, train, folder, tmp_path / "same", 3, "resume")[0].result
    assert same["losses"] == whole["losses"][7:]
    assert same["test"] == whole["test"]
    assert same["predicted"] == whole["predicted"]
    other = run(3, train, folder, tmp_path / "other", 3, "resume")[0].result
    assert other["losses"] == pytest.approx(whole["losses"][7:], rel=1e-4)
    assert other["predicted"] == pytest.approx(whole["predicted"], rel=1e-3, abs=1e-4)


def test_a_process_with_the_whole_graph_loads_what_ranks_with_parts_have_learned(uninterrupted):
    at, found = uninterrupted
    trainer = Trainer(make("own", graph_of()), graph_of(), **RUN)
    trainer.load_weights(at / "checkpoints" / "best.pt")
    predicted = trainer.predict(torch.arange(20)).flatten().tolist()
    assert predicted == pytest.approx(found["predicted"], rel=1e-4, abs=1e-5)


@pytest.mark.filterwarnings("ignore:torch.distributed is unavailable or uninitialized:UserWarning")
def test_the_library_that_wrote_the_rows_reads_them(uninterrupted, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    last = uninterrupted[0] / "checkpoints" / "last.pt"
    trainer = Trainer(make("own", graph_of()), graph_of(), **RUN)
    trainer.load_weights(last)
    (at,) = last.parent.glob("rows-21*")
    dcp_to_torch_save(at, tmp_path / "all.pt")
    every = torch.load(tmp_path / "all.pt", weights_only=True)
    rows = torch.empty(600, 8)
    rows[every["node_ids"]] = every["rows.rows"]
    assert torch.equal(rows, trainer.model.rows.held.rows)
    assert set(every) == {"node_ids", "rows.rows", "rows.exp_avg", "rows.exp_avg_sq"}
    some = _load_state_dict_from_keys({"node_ids", "rows.rows"}, checkpoint_id=at)
    assert some.keys() == {"node_ids", "rows.rows"}
    assert torch.equal(some["rows.rows"], every["rows.rows"])


def test_a_folder_that_a_rank_does_not_see_is_refused_on_all_ranks(tmp_path):
    for said in run(2, learned_rows.not_seen, tmp_path / "run"):
        assert said.result.startswith("ConfigError: out_dir must be a folder that all ranks see")
        assert "rank 1 does not see" in said.result


@pytest.mark.parametrize("what", ["step", "checkpoint"])
def test_a_lost_rank_ends_the_job_and_the_last_checkpoint_is_whole(what, folder, uninterrupted, tmp_path):
    *others, _ = run(3, learned_rows.faulty, folder, tmp_path / "run", what)
    for said in others:
        assert said.code == 8
        assert "rank 2 is lost" in said.stderr
        assert said.seconds < PATIENCE
    whole = uninterrupted[1]
    more = run(2, learned_rows.with_checkpoints, folder, tmp_path / "run", 3, "resume")[0].result
    done = 21 - len(more["losses"])
    assert done == {"step": 8, "checkpoint": 0}[what]
    assert more["losses"] == pytest.approx(whole["losses"][done:], rel=1e-4)
    assert len(checkpoints(tmp_path / "run")) <= 4  # nothing is left of what the killed rank had begun


def saved(at: Path, **options: Any) -> Trainer:
    trainer = Trainer(make("own", graph_of()), graph_of(), **RUN | {"epochs": 1, "out_dir": at} | options)
    trainer.fit()
    return trainer


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damaged_rows_are_found(damage, tmp_path):
    trainer = saved(tmp_path / "run")
    file = next((tmp_path / "run" / "checkpoints").glob("rows-*/*.distcp"))
    content = bytearray(file.read_bytes())
    content[content.find(trainer.model.rows.held.rows[300].detach().numpy().tobytes())] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content if damage == "flipped" else content[: len(content) // 3])
    with pytest.raises(DataError, match="is missing" if damage == "missing" else "is damaged"):
        trainer.load_weights(tmp_path / "run" / "checkpoints" / "last.pt")


def test_checkpoints_of_other_rows_are_refused(tmp_path):
    saved(tmp_path / "run")
    graph, last = graph_of(), tmp_path / "run" / "checkpoints" / "last.pt"
    wider = NodeEmbedding(600, 9, make("own", graph).model, sharded=True)
    plain = NodeEmbedding(600, 8, make("own", graph).model)
    with pytest.raises(ConfigError, match="the checkpoint has learned rows of"):
        Trainer(wider, graph, **RUN).load_weights(last)
    with pytest.raises(ConfigError, match="its rows is absent"):
        Trainer(plain, graph, **RUN).load_weights(last)
    with pytest.raises(ConfigError, match="optimizer"):
        saved(tmp_path / "run", epochs=2, resume=True, optimizer="sgd")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "full"}, "reads the rows of all nodes"),
        ({"optimizer": "rmsprop"}, "one of adam, adamw, sgd, adagrad; got 'rmsprop'"),
        ({"optimizer": torch.optim.Adam}, "got one of your own"),
        ({"weight_decay": 0.1}, "would not decay"),
        ({"plan": "cpu"}, "measured on copies"),
        ({"tiers": "auto"}, "measured on copies"),
    ],
)
def test_options_that_do_not_go_with_divided_rows_are_refused(options, why):
    graph = graph_of()
    given = {name: value for name, value in RUN.items() if name != "lr" or "optimizer" not in options}
    with pytest.raises(ConfigError, match=why):
        Trainer(make("own", graph), graph, **given | options)


def test_other_misuse_of_divided_rows_is_refused_with_the_remedy(tmp_path):
    graph, model = graph_of(), make("own", graph_of())
    with pytest.raises(ConfigError, match=r"use torch\.nn\.Embedding"):
        model(None, graph.csc, torch.arange(3))
    with pytest.raises(ConfigError, match=r"make it with graph\.num_nodes"):
        Trainer(NodeEmbedding(599, 8, model.model, sharded=True), graph, **RUN)
    misused = module_of(
        lambda self, x, n_id: self.layer(self.rows(n_id * 0 + 599)),  # nodes that no batch has
        rows=ShardedEmbedding(graph.num_nodes, 4),
        layer=nn.Linear(4, graph.num_classes),
    )
    with pytest.raises(DataError, match="call it with n_id"):
        Trainer(misused, graph, **RUN).fit()
    with pytest.raises(ConfigError, match="embedding_files"):
        Trainer(NodeEmbedding(600, 8, model.model), graph, **RUN | {"embedding_files": tmp_path})
    with pytest.raises(ConfigError, match="neither copied nor pickled"):
        __import__("copy").deepcopy(model)
    with pytest.raises(ConfigError, match="neither copied nor pickled"):
        torch.save(model, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match="have no form in PyTorch Geometric"):
        model.to_pyg()
    Trainer(model, graph, **RUN)
    save_partition(graph, partition(graph, 2), tmp_path / "parts", rows="parts")
    Trainer(model, ShardedGraph.open(tmp_path / "parts"), **RUN)  # the same nodes are on this rank


@pytest.mark.slow
def test_the_memory_of_a_rank_is_that_of_its_own_rows(tmp_path):
    whole = learned_rows.LARGE_NODES * learned_rows.LARGE_WIDTH * 4 * 3 / 2**20  # with Adam's moments
    found = {}
    for size, files in ((1, ""), (4, ""), (2, tmp_path / "files")):
        said = run(size, learned_rows.peak_of, tmp_path / f"{size}{bool(files)}", files)
        results = found[size, bool(files)] = [one.result for one in said]
        peak = max(one["peak"] for one in results)
        anonymous = max(one["anonymous"] for one in results)
        print(
            f"{size} ranks, {'files' if files else 'memory'}: {peak:.0f} MiB, {anonymous:.0f} MiB anonymous"
        )
        assert peak < whole / size + 70  # pieces of checkpoints, and batches
        if files:
            assert anonymous < 60
        assert results[0]["losses"] == pytest.approx(found[1, False][0]["losses"], rel=1e-4)


def test_a_model_with_divided_rows_starts_where_memory_is_short(monkeypatch):
    """It has no copy on which its memory could be counted."""
    monkeypatch.setattr("graphbraid.train.run.setup.most_bytes", lambda *_: 1 << 60)
    graph = graph_of()
    model = NodeEmbedding(graph.num_nodes, 4, GraphSAGE(4, 8, graph.num_classes, num_layers=1), sharded=True)
    trainer = Trainer(model, graph, epochs=1, fanouts=(3,), batch_size=32)
    assert len(trainer.fit().history) == 1


@pytest.mark.parametrize("made", ["rows", "the optimizer's state"])
def test_files_of_rows_on_a_full_disk_are_refused_before_a_row_is_written(tmp_path, monkeypatch, made):
    """A mapped file without blocks ended the process by a signal as soon as the disk was full."""

    def rows() -> LearnedRows:
        only: Any = SimpleNamespace(rank=0, size=1)
        nodes = {"node": Ranges(50, only)}
        modules = {"rows": ShardedEmbedding(50, 4)}
        return LearnedRows(modules, only, nodes, seed=0, optimizer="adam", folder=tmp_path / "files")

    def full(descriptor: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    learned = rows()
    assert learned.modules["rows"].held.rows.shape == (50, 4)
    monkeypatch.setattr(os, "posix_fallocate", full)
    if made == "rows":
        with pytest.raises(ResourceError, match=r"embedding_files needs 800 B in .*files .*disk is full"):
            rows()
    else:
        with pytest.raises(ResourceError, match="the optimizer's state"):
            learned.begin()


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_rows_of_node_types_are_learned_and_kept_as_by_one_process(size, tmp_path):
    graph, out = bibliography(), tmp_path / "run"
    save_partition(graph, partition(graph, 3, strategy="random"), tmp_path / "parts", rows="parts")
    told = run(size, learned_rows.typed_cases, tmp_path / "parts", out)
    for case, (kind, options) in learned_rows.TYPED.items():
        expected = fitted(Trainer(learned_rows.of_types(kind, graph), graph, **RUN | options))
        for said in told:
            for one in said.result[case]:
                assert one["losses"] == pytest.approx(expected["losses"], rel=1e-4)
                assert one["weights"] == pytest.approx(expected["weights"], rel=1e-3)
                assert one["test"] == pytest.approx(expected["test"], rel=1e-4)
    alone = learned_rows.typed_alone(str(out))
    for rank, said in enumerate(told):
        assert said.result["predicted"] == pytest.approx(alone[rank:], rel=1e-5)
        assert said.result["read"] == pytest.approx(alone[rank:], rel=1e-5)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ((120, 4, None), r"rows has node_type=None, and the graph has the node types author, paper, venue"),
        ((120, 4, "autor"), r"rows has node_type='autor', and the graph has the node types"),
        (
            (9, 4, "author"),
            r"num_nodes=9, and the graph has 120 nodes of type 'author'; make it with num_nod",
        ),
    ],
)
def test_rows_of_other_nodes_than_a_types_are_refused(made, why):
    model = learned_rows.of_types("own", graph := bibliography())
    model.rows = ShardedEmbedding(*made)
    with pytest.raises(ConfigError, match=why):
        Trainer(model, graph, **RUN | {"layout": "subgraph"})


def test_rows_of_a_type_are_refused_where_there_are_no_types():
    model = make("pyg", graph := graph_of())
    model.rows = ShardedEmbedding(600, 6, "author")
    with pytest.raises(
        ConfigError, match="node_type='author', and the graph has no node types; make it with"
    ):
        Trainer(model, graph, **RUN | {"layout": "subgraph"})
    with pytest.raises(ConfigError, match="have no form in PyTorch Geometric"):
        learned_rows.of_types("rgcn", bibliography()).to_pyg()  # type: ignore[operator]
