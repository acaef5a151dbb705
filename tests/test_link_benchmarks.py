"""The benchmarks of links at tiny sizes: what they train, what they write, that leakage is seen as such."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.accuracy import knowledge, temporal
from benchmarks.common.contenders import Contender
from benchmarks.common.rows import read_lines
from tests import warm
from tests.extras import NO_PYG
from tests.train.linked_communities import relations

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
