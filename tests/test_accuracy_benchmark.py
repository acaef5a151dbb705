"""The accuracy benchmarks, of nodes and of links: what they train, what they write, and that they learn."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.accuracy import knowledge, temporal
from benchmarks.accuracy import literature as accuracy
from benchmarks.accuracy.setups import SETUPS
from benchmarks.common.contenders import Contender
from benchmarks.common.rows import put_rows, read_lines
from benchmarks.synth import beside_engine, compile_once
from benchmarks.tables.accuracy import published_of, sampled_beside_full_of
from tests import warm
from tests.extras import NO_PYG
from tests.train.linked_communities import relations
from tests.train.typed_communities import bibliography

from graphbraid import nn


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes that features tell apart weakly and neighbours well, under the name cora.npz."""
    rng = np.random.default_rng(0)
    num_nodes = 300
    y = np.arange(num_nodes) % 2
    same = rng.integers(0, num_nodes // 2, (2, 1500)) * 2
    source, destination = same + rng.integers(0, 2, 1500)
    hint = np.arange(8) % 2 == y[:, None]
    x = (rng.random((num_nodes, 8)) < 0.2 + 0.2 * hint).astype(np.float32)
    ids = rng.permutation(num_nodes)
    path = tmp_path_factory.mktemp("data")
    np.savez(
        path / "cora.npz",
        edge_index=np.stack([np.r_[source, destination], np.r_[destination, source]]).astype(np.int32),
        num_nodes=np.int64(num_nodes),
        x=x,
        y=y,
        train_idx=ids[:40],
        val_idx=ids[40:120],
        test_idx=ids[120:],
    )
    return path


def short(model, mode):
    setup = next(s for s in SETUPS if s.model == model and s.train["mode"] == mode)
    prepare = {k: v for k, v in setup.prepare.items() if k != "split_seed"}
    train = setup.train | {"epochs": 40}
    return replace(setup, dataset="cora", prepare=prepare, train=train)


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ("gcn", "full"),
        pytest.param("gat", "full", marks=pytest.mark.long),
        pytest.param("sage", "sampled", marks=pytest.mark.slow),
    ],
)
def test_a_run_learns_and_repeats_by_seed(folder, model, mode):
    setup = short(model, mode)
    first, again = (accuracy.run(setup, 3, folder, 1) for _ in range(2))
    assert first["test"] > 80
    assert first | {"seconds": 0} == again | {"seconds": 0}


def test_only_the_first_layer_of_gcn_decays():
    setup = next(s for s in SETUPS if s.model == "gcn")
    model = nn.GCN(5, out_channels=2, **setup.options)
    optimizer = setup.optimizer(model)(list(model.parameters()))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decay[id(p)] for p in model.convs[0].parameters()} == {5e-4}
    assert {decay[id(p)] for p in model.convs[1].parameters()} == {0.0}
    assert len(decay) == len(list(model.parameters()))


def test_the_two_arms_of_a_dataset_differ_only_in_how_batches_are_made():
    arms = {}
    for setup in SETUPS:
        if setup.model == "sage":
            arms.setdefault(setup.dataset, {})[setup.train["mode"]] = setup
    assert set(arms) == {"amazon_computers", "coauthor_physics", "dblp_citation"}
    of_batches = {"mode", "epochs", "eval_every", "fanouts", "batch_size", "layout"}
    for pair in arms.values():
        assert pair["sampled"].options == pair["full"].options
        assert pair["sampled"].prepare == pair["full"].prepare
        kept = [{k: v for k, v in s.train.items() if k not in of_batches} for s in pair.values()]
        assert kept[0] == kept[1]


def test_results_hold_every_seed_and_fill_the_docs_tables(folder, tmp_path):
    setups = [short("gcn", "full"), short("sage", "sampled"), short("sage", "full")]
    setups = [replace(s, train=s.train | {"epochs": 3}) for s in setups]
    out = tmp_path / "accuracy.jsonl"
    accuracy.run_all(setups[:1], 2, folder, jobs=1, out=out)
    accuracy.run_all(setups[1:], 2, folder, jobs=1, out=out)
    rows = read_lines(out)
    assert [row["name"] for row in rows] == [s.name for s in setups]
    for row in rows:
        assert row["repeats"] == 2
        assert row["machine"]["torch"] == torch.__version__
        assert [one["seed"] for one in row["runs"]] == [0, 1]
        assert row["mean"] == pytest.approx(np.mean([one["test"] for one in row["runs"]]))
        assert row["deviation"] == pytest.approx(np.std([one["test"] for one in row["runs"]], ddof=1))
    assert f"| cora | GCN | {rows[0]['mean']:.2f} ± " in published_of(rows[:1])
    assert sampled_beside_full_of(rows[1:]).count("| cora |") == 1
    assert "| cora |" not in sampled_beside_full_of(rows[1:2])  # one arm alone


def test_options_that_match_nothing_are_refused(monkeypatch):
    monkeypatch.setattr(accuracy, "parse", lambda: argparse.Namespace(only=["nothing"], seeds=1, jobs=1))
    with pytest.raises(SystemExit, match="--only matches none of cora/gcn/full"):
        accuracy.main()


@pytest.mark.slow
def test_with_its_masks_pyg_has_the_engine_s_losses_and_rows_are_merged(folder, tmp_path, monkeypatch):
    full_accuracy = pytest.importorskip("benchmarks.accuracy.beside_pyg", reason=NO_PYG)
    monkeypatch.setattr(full_accuracy, "SETUPS", {"citeseer": {}, "cora": {}})
    out = tmp_path / "full.jsonl"
    put_rows(out, [{"row": d, "mark": d} for d in ("cora", "citeseer")])
    arguments = f"x --data {folder} --names cora --seeds 2 --epochs 20 --out {out}".split()
    monkeypatch.setattr("sys.argv", arguments)
    full_accuracy.main()
    row, kept = read_lines(out)
    assert kept == {"row": "citeseer", "mark": "citeseer"}
    assert "mark" not in row
    assert (row["dataset"], row["epochs"]) == ("cora", 20)
    assert row["pyg_same_masks"]["largest_relative_loss_difference"] <= 1e-5
    ours, theirs = (row["runs"][c][0]["first_losses"] for c in ("graphbraid", "pyg"))
    assert max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)) > 1e-3  # other masks


@pytest.mark.slow
def test_without_dropout_r_gcn_has_pyg_s_losses(tmp_path, monkeypatch, capsys):
    relational = pytest.importorskip("benchmarks.accuracy.relational", reason=NO_PYG)
    graph = bibliography()
    monkeypatch.setattr(relational.datasets, "load", lambda _path, **_options: graph)
    out = tmp_path / "relational.jsonl"
    arguments = f"x --names small --seeds 2 --epochs 12 --dropout 0 --out {out}".split()
    monkeypatch.setattr("sys.argv", arguments)
    relational.main()
    (row,) = read_lines(out)
    assert row["row"] == "small without dropout"
    assert row["largest_relative_loss_difference"] <= 1e-4
    for ours, theirs in zip(*row["runs"].values(), strict=True):
        assert ours["test"] > 70
        assert ours["losses"][0] > 2 * ours["losses"][-1]
        assert abs(ours["test"] - theirs["test"]) <= 3  # of a hundred nodes
    assert "ours less PyG's" in capsys.readouterr().out


COMPILER = """\
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("object")
print("compiled")
"""


def test_a_source_is_compiled_once_and_counts_in_each_program(tmp_path):
    (tmp_path / "objects").mkdir()
    said = []
    fake = tmp_path / "compiler.py"
    fake.write_text(COMPILER)
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        source, to = tmp_path / folder / "kernel.cpp", tmp_path / folder / "kernel.o"
        source.write_text(text)
        command = [
            sys.executable,
            compile_once.__file__,
            str(tmp_path / "objects"),
            sys.executable,
            str(fake),
        ]
        command += ["-O2", f"-I{tmp_path / folder}", "-o", str(to), "-c", str(source)]
        said.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert to.read_text() == "object"
    assert said == ["compiled\n", "", "compiled\n"]
    log = (tmp_path / "objects" / "log").read_text()
    lines = [tuple(map(float, line.split())) for line in log.splitlines()]
    assert len(lines) == 3
    assert lines[0][1] == lines[1][1] != lines[2][1]


def test_losses_that_differ_are_no_result():
    engine = Contender("engine", [], [{"losses": [4.0, 2.0, 1.0]}])
    program = Contender("program", [], [{"losses": [4.0, 2.0, 1.000005]}])
    pyg = Contender("pyg", [], [{"epochs_s": [0.1], "loss": 2.0001}])
    off = beside_engine.check_losses("a graph", [program, engine], pyg)
    assert off == pytest.approx({"program": 5e-6, "engine": 0, "pyg": 5e-5})
    program.runs.append({"losses": [4.0, 2.0001, 1.0]})
    with pytest.raises(SystemExit, match="a graph: the losses differ"):
        beside_engine.check_losses("a graph", [program, engine], pyg)


# ---- links


ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_models_of_a_knowledge_graph_are_trained_and_ranked(tmp_path, monkeypatch, capsys):
    graph = relations()
    monkeypatch.setattr(knowledge.datasets, "load", lambda _path, **_options: graph)
    monkeypatch.setattr(knowledge, "CHANNELS", dict.fromkeys(knowledge.TRAIN, 16))
    out = tmp_path / "knowledge.jsonl"
    monkeypatch.setattr("sys.argv", f"x --seeds 2 --epochs 3 --threads 1 --out {out}".split())
    knowledge.main()
    rows = read_lines(out)
    assert [row["row"] for row in rows] == list(knowledge.TRAIN)
    for row in rows:
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        assert row["mean"] == pytest.approx(sum(run["test_mrr"] for run in row["runs"]) / 2)
        assert 0 < row["mean"] < 1
    assert "filtered MRR" in capsys.readouterr().out

    monkeypatch.setattr("sys.argv", f"x --models rgcn --seeds 3 --epochs 3 --threads 1 --out {out}".split())
    knowledge.main()
    more = read_lines(out)
    assert [more[0], *more[2:]] == [rows[0], *rows[2:]]
    assert more[1]["runs"][:2] == rows[1]["runs"]  # to the second that they took: they are not trained again
    assert [run["seed"] for run in more[1]["runs"]] == [0, 1, 2]
    assert knowledge.done_before(out, "rgcn", knowledge.chosen("rgcn", 4)) == []


def realistic_mrr(triples, ends, rows, relations):
    """PyKEEN's filtered MRR of ComplEx with reciprocal relations: the mean of best and worst rank counts."""
    half = rows.shape[1] // 2
    entities, kinds = (one[:, :half] + 1j * one[:, half:] for one in (rows, relations))
    count, reciprocals = len(kinds) // 2, []
    for source, relation, destination in triples[ends[1] :]:
        for given, kind, wanted, columns in (
            (source, relation, destination, (0, 2)),
            (destination, relation + count, source, (2, 0)),
        ):
            scores = (entities[given] * kinds[kind] * entities.conj()).sum(1).real
            is_known = (triples[:, columns[0]] == given) & (triples[:, 1] == relation)
            hidden = set(triples[is_known, columns[1]]) - {wanted}
            left = np.array([scores[one] for one in range(len(rows)) if one not in hidden])
            best, worst = 1 + (left > scores[wanted]).sum(), (left >= scores[wanted]).sum()
            reciprocals.append(2 / (best + worst))
    return float(np.mean(reciprocals))


def test_weights_that_pykeen_ranks_have_the_mrr_that_is_printed(tmp_path):
    draw = np.random.default_rng(0)
    ends, kind = draw.integers(0, 40, (2, 300)), draw.integers(0, 3, 300)
    splits = np.array([0, 240, 270, 300])
    np.savez(tmp_path / "kg.npz", edge_index=ends, edge_type=kind, edge_split_ptr=splits, num_nodes=40)
    flags = ["--data", str(tmp_path), "--name", "kg", "--channels", "8", "--batch-size", "50"]
    done = warm.run(["-m", "benchmarks.training.knowledge", *flags, "--folder", str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    names = ("triples", "ends", "entities", "relations")
    found = [np.load(tmp_path / f"{name}.npy") for name in names]
    assert found[3].shape == (6, 8)
    assert line["mrr"] == pytest.approx(realistic_mrr(*found))


@pytest.fixture
def archive(tmp_path):
    """Each moment four nodes meet each other, in no pattern: only who sees the moment can tell who met."""
    draw, moments = np.random.default_rng(0), 300
    groups = np.stack([draw.choice(900, 4, replace=False) for _ in range(moments)])
    src, dst = np.nonzero(~np.eye(4, dtype=bool))
    ends = np.stack([groups[:, src].ravel(), groups[:, dst].ravel()])
    when = np.repeat(np.arange(moments), len(src))
    np.savez(tmp_path / "met.npz", edge_index=ends, edge_time=when, num_nodes=np.array(900))
    return tmp_path


@pytest.mark.slow
def test_neighbours_of_any_time_leak_and_those_before_the_link_do_not(archive, monkeypatch, capsys):
    out = archive / "temporal.jsonl"
    chosen = ["--data", str(archive), "--names", "met", "--seeds", "1", "--epochs", "4", "--share", "0.8"]
    monkeypatch.setattr(temporal, "FANOUTS", (16, 2))
    monkeypatch.setattr(temporal, "BATCH_SIZE", 128)
    monkeypatch.setattr("sys.argv", ["x", *chosen, "--out", str(out)])
    temporal.main()
    rows = {row["way"]: row for row in read_lines(out)}
    assert list(rows) == list(temporal.WAYS)
    leaking = rows[temporal.BY_CHANCE]
    assert leaking["as_trained_mean"] - leaking["honest_mean"] > 0.1
    for way in list(temporal.WAYS)[1:]:
        assert rows[way]["as_trained_mean"] == pytest.approx(rows[way]["honest_mean"], abs=1e-3)
        assert rows[way]["honest_mean"] < 0.65
    assert "leakage" in capsys.readouterr().out


def test_temporal_batches_of_ours_are_counted_and_compared_by_edge(tmp_path):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    from benchmarks.sampling import temporal as sampling

    folder = sampling.make(tmp_path, sampling.GENERATED, tmp_path, 1e-4)
    assert folder == sampling.make(tmp_path, sampling.GENERATED, tmp_path, 1e-4)  # made once
    flags = ["--batches", "3", "--batch-size", "32", "--fanouts", "4"]
    done = warm.run(["-m", "benchmarks.sampling.temporal_ours", str(folder), *flags], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["batches"] == 3
    assert 0 < found["edges_per_batch"] <= 4 * 32
    mine = Contender("graphbraid", [], [found])
    other = Contender("graphbolt", [], [found | {"ms_per_batch": 5 * found["ms_per_batch"]}])
    assert sampling.summary(mine, other, (4,))["ratio"] == pytest.approx(5)
    other.runs[0]["edges_per_batch"] *= 2
    assert sampling.summary(mine, other, (4, 2))["ratio"] == pytest.approx(2.5)
    with pytest.raises(SystemExit, match="do not do the same work"):
        sampling.summary(mine, other, (4,))
