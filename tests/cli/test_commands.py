"""train, predict and convert from end to end, on small graphs."""

import csv

import numpy as np
import pytest
import torch
from tests.extras import in_threads
from tests.suites import few_of

from graphbraid import datasets
from graphbraid.cli.run.saved_run import in_own_folder
from graphbraid.cli.run.settings import resolve

QUICK = ("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet")


def arrays_of(path):
    with np.load(path) as file:
        return dict(file)


def numbers(outcome):
    """What a run's result says of its training; not its times and places."""
    history = outcome.json["result"]["history"]
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in history]


def test_train_leaves_a_run_and_says_where(trained):
    run_dir, done = trained
    report = done.json
    assert report["run_dir"] == str(run_dir)
    assert {"checkpoints/best.pt", "checkpoints/last.pt", "config.json", "metrics.csv", "steps.jsonl"} <= set(
        report["files"]
    )
    assert all((run_dir / name).is_file() for name in report["files"])
    assert report["result"]["test"]["accuracy"] > 0.8  # two well-separated communities
    assert done.stderr == ""


def test_train_shows_plan_epochs_and_test_accuracy(graphbraid, store, tmp_path):
    arguments = [value for value in QUICK if value != "--quiet"]
    done = graphbraid("train", "--data", store, "--out", tmp_path / "run", "--epochs", 2, *arguments)
    assert done.stdout == ""
    for text in (
        "command line",
        "default",
        "200 nodes",
        "GraphSAGE",
        "kernels",
        "val accuracy",
    ):
        assert text in done.stderr, text
    assert "test loss" in done.stderr
    assert str(tmp_path / "run") in done.stderr


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_train_says_once_why_a_model_is_not_compiled(graphbraid, store, tmp_path, precision):
    arguments = ("--hidden", 8, "--mode", "full", "--epochs", 2, "--precision", precision)
    done = graphbraid("train", "--data", store, "--out", tmp_path / "run", *arguments)
    said = done.stderr.count("uncompiled  precision bfloat16 runs under autocast")
    assert said == done.stderr.count("uncompiled") == (precision == "bfloat16")
    if said:
        assert done.stderr.index("uncompiled") < done.stderr.index("val accuracy")


@pytest.mark.parametrize("model", few_of(("gcn", "sage", "gin", "gat", "gatv2", "mlp"), {"sage", "gat"}))
@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_every_model_trains_and_predicts(graphbraid, store, tmp_path, model, mode):
    run_dir = tmp_path / "run"
    arguments = ("--model", model, "--mode", mode, "--epochs", 1, *QUICK)
    graphbraid("train", "--data", store, "--out", run_dir, *arguments)
    out = tmp_path / "p.npz"
    graphbraid("predict", "--run", run_dir, "--out", out)
    assert arrays_of(out)["prediction"].shape == (200,)


def test_options_come_from_file_and_command_line(graphbraid, store, tmp_path):
    config = tmp_path / "run.yaml"
    options = "model: gcn\nepochs: 3\nlr: 1e-2\nfanouts: [4, 4, 4]\nmodel_options: {norm: layer}\n"
    config.write_text(f"data: {store}\n{options}")
    done = graphbraid(
        "train", "--config", config, "--epochs", 1, "--out", tmp_path / "run", "--quiet", "--json"
    )
    options = done.json["options"]
    assert (options["epochs"], options["lr"], options["num_layers"], options["model"]) == (1, 0.01, 3, "gcn")


def test_a_resumed_run_equals_one_that_was_never_stopped(graphbraid, store, tmp_path):
    common = ("--data", store, "--lr", 0.05, *QUICK, "--json")
    whole = graphbraid("train", *common, "--out", tmp_path / "whole", "--epochs", 4)
    graphbraid("train", *common, "--out", tmp_path / "parts", "--epochs", 2)
    resumed = graphbraid("train", "--resume", "--out", tmp_path / "parts", "--epochs", 4, "--quiet", "--json")
    assert numbers(resumed) == numbers(whole)
    assert resumed.json["result"]["test"] == whole.json["result"]["test"]


def test_runs_without_a_folder_get_a_new_one_each(graphbraid, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        done = graphbraid("train", "--data", store, "--epochs", 1, *QUICK, "--json")
        assert done.json["run_dir"] == f"runs/communities-sage-{number}"


def test_runs_begun_at_once_get_a_folder_each(tmp_path):
    def begin():
        with in_own_folder(resolve({"data": "g.npz"}), tmp_path / "runs") as (run, folder):
            assert run.train.out_dir == folder
            (folder / ".lock").touch()
            return folder.name

    told = in_threads(*[begin] * 16)
    assert sorted(told) == sorted(f"g-sage-{number}" for number in range(1, 17))


def test_a_folder_made_for_a_run_that_never_began_goes_again(graphbraid, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graphbraid("train", "--data", "missing.npz", *QUICK, code=3)
    assert not (tmp_path / "runs").exists(), "no litter"
    (tmp_path / "runs").write_text("a file")
    refused = graphbraid("train", "--data", store, *QUICK, code=4)
    assert "cannot make a folder for the run in runs" in refused.stderr


def test_a_run_can_be_used_from_another_folder(graphbraid, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graphbraid("train", "--data", store.name, "--out", "run", "--epochs", 1, *QUICK)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    graphbraid("predict", "--run", "../run", "--out", "p.csv")


def test_predictions_are_those_of_the_trainer_in_every_format(graphbraid, trained, tmp_path):
    import pyarrow.parquet

    run_dir, _ = trained
    for suffix in ("csv", "npz", "parquet"):
        done = graphbraid(
            "predict", "--run", run_dir, "--out", tmp_path / f"p.{suffix}", "--scores", "--json"
        )
        assert done.json["num_nodes"] == 200
    saved = arrays_of(tmp_path / "p.npz")
    assert saved["node"].tolist() == list(range(200))
    np.testing.assert_allclose(saved["score_0"] + saved["score_1"], 1, rtol=1e-5)
    np.testing.assert_array_equal(saved["prediction"], saved["score_1"] > saved["score_0"])
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in saved:
        np.testing.assert_array_equal(np.asarray(table[name]), saved[name])
        np.testing.assert_array_equal(
            np.asarray([row[name] for row in rows]).astype(saved[name].dtype), saved[name]
        )
    accuracy = (saved["prediction"] == np.arange(200) % 2)[
        datasets.open_store(run_dir.parent / "communities").split("test")
    ]
    assert accuracy.mean() > 0.8


def test_predictions_do_not_replace_what_is_read_or_find_too_late_that_they_cannot_be_written(
    graphbraid, trained, tmp_path
):
    run_dir, _ = trained
    ids, data = tmp_path / "ids.csv", tmp_path / "data.npz"
    ids.write_text("7\n3\n")
    graph = datasets.open_store(run_dir.parent / "communities")
    np.savez(
        data, edge_index=np.stack([ids.numpy() for ids in graph.to_edge_index()]), x=graph.dense_x().numpy()
    )
    (tmp_path / "folder.csv").mkdir()
    before = {path: path.read_bytes() for path in (ids, data)}
    (tmp_path / "linked.csv").symlink_to(ids)
    for out, words, code, why in [
        (ids, ("--nodes", ids), 2, f"--out {ids} would replace a file of --nodes"),
        (tmp_path / "linked.csv", ("--nodes", ids), 2, "would replace a file of --nodes"),
        (tmp_path / "linked.csv", (), 4, "it is a symbolic link"),
        (data, ("--data", data), 2, f"--out {data} would replace a file of --data"),
        (run_dir / "metrics.csv", (), 2, "would replace a file of --run"),
        (tmp_path / "folder.csv", (), 4, "it is a folder"),
        (ids / "p.csv", (), 4, "Not a directory"),
    ]:
        done = graphbraid("predict", "--run", run_dir, "--out", out, *words, code=code)
        assert why in done.stderr
    assert {path: path.read_bytes() for path in before} == before
    done = graphbraid("predict", "--run", run_dir, "--nodes", ids, "--out", tmp_path / "p.csv")


def test_predictions_for_chosen_nodes_come_in_their_order(graphbraid, trained, tmp_path):
    run_dir, _ = trained
    graphbraid("predict", "--run", run_dir, "--out", tmp_path / "all.npz")
    everything = arrays_of(tmp_path / "all.npz")
    (tmp_path / "ids.txt").write_text("7\n3\n\n7\n199\n")
    np.save(tmp_path / "ids.npy", np.array([7, 3, 7, 199]))
    for ids in ("ids.txt", "ids.npy"):
        graphbraid("predict", "--run", run_dir, "--nodes", tmp_path / ids, "--out", tmp_path / "some.npz")
        some = arrays_of(tmp_path / "some.npz")
        assert some["node"].tolist() == [7, 3, 7, 199]
        np.testing.assert_array_equal(some["prediction"], everything["prediction"][[7, 3, 7, 199]])
    graphbraid("predict", "--run", run_dir, "--split", "test", "--out", tmp_path / "test.npz")
    assert len(arrays_of(tmp_path / "test.npz")["node"]) == 50


def test_embeddings_and_the_likeliest_nodes_have_the_users_ids(graphbraid, tables, tmp_path):
    import pyarrow.parquet

    edges, nodes = tables
    store, run, out = tmp_path / "store", tmp_path / "run", tmp_path / "p.csv"
    columns = ("--source", "from", "--destination", "to", "--nodes", nodes)
    graphbraid("convert", edges, store, *columns, "--label", "colour", "--split", "role")
    graphbraid("train", "--data", store, "--out", run, "--epochs", 3, *QUICK)
    (tmp_path / "ids.txt").write_text("n7\nn3\n")
    rows = tmp_path / "rows.parquet"
    some = ("predict", "--run", run, "--out", out, "--nodes", tmp_path / "ids.txt")
    graphbraid(*some, "--embeddings", rows)
    table = pyarrow.parquet.read_table(rows).to_pydict()
    assert table["node"] == ["n7", "n3"]
    graphbraid("predict", "--run", run, "--out", out, "--embeddings", tmp_path / "rows.npy", "--top", 5)
    every = np.load(tmp_path / "rows.npy")
    np.testing.assert_array_equal(np.array(table["embedding"], np.float32), every[[7, 3]])
    with out.open() as file:
        likeliest = list(csv.DictReader(file))
    assert [row["class"] for row in likeliest] == ["blue"] * 5 + ["red"] * 5
    graphbraid("predict", "--run", run, "--out", tmp_path / "all.npz", "--scores")
    scores = arrays_of(tmp_path / "all.npz")["score_1"]
    best = [f"n{node}" for node in (-scores).argsort(kind="stable")[:5]]
    assert [row["node"] for row in likeliest[5:]] == best
    assert [row["rank"] for row in likeliest[5:]] == list("12345")
    for words, why in [
        (("--embeddings", tmp_path / "rows.csv"), "written to .npy or .parquet"),
        (("--embeddings", tmp_path / "ids.txt"), "written to .npy or .parquet"),
        (("--embeddings-of", "user"), "--embeddings-of says whose rows --embeddings writes"),
        (("--embeddings", rows, "--embeddings-of", "user"), "the graph has no types"),
        (("--top", 0), "--top must be a whole number in"),
        (("--top", 2, "--scores"), "--scores"),
    ]:
        assert why in graphbraid(*some, *words, code=2).stderr.replace("\n", " "), words
    refused = graphbraid("predict", "--run", run, "--out", rows, "--embeddings", rows, code=2)
    assert "--embeddings and --out are both" in refused.stderr


@pytest.fixture
def tables(two_communities, tmp_path):
    """The communities as CSV tables, their nodes named n0, n1, ... and their classes red and blue."""
    source, destination = two_communities.to_edge_index()
    role = dict.fromkeys(range(200), "")
    for name, ids in two_communities.splits.items():
        role |= dict.fromkeys(ids.tolist(), name)
    with (tmp_path / "edges.csv").open("w") as file:
        file.write("from,to\n")
        file.writelines(f"n{u},n{v}\n" for u, v in zip(source.tolist(), destination.tolist(), strict=True))
    with (tmp_path / "nodes.csv").open("w") as file:
        file.write("id," + ",".join(f"f{i}" for i in range(8)) + ",colour,role\n")
        for node, row in enumerate(two_communities.x.tolist()):
            file.write(f"n{node}," + ",".join(map(str, row)) + f",{('red', 'blue')[node % 2]},{role[node]}\n")
    return tmp_path / "edges.csv", tmp_path / "nodes.csv"


def test_tables_become_a_store_that_trains_and_predicts_with_their_names(
    graphbraid, tables, two_communities, tmp_path
):
    edges, nodes = tables
    columns = (
        "--source",
        "from",
        "--destination",
        "to",
        "--nodes",
        nodes,
        "--label",
        "colour",
        "--split",
        "role",
    )
    done = graphbraid("convert", edges, tmp_path / "store", *columns, "--json")
    assert (done.json["num_nodes"], done.json["num_features"], done.json["num_classes"]) == (200, 8, 2)
    graph = datasets.open_store(tmp_path / "store")
    torch.testing.assert_close(graph.x, two_communities.x)
    assert torch.equal(
        graph.to_edge_index().sort(dim=1).values, two_communities.to_edge_index().sort(dim=1).values
    )
    run_dir = tmp_path / "run"
    graphbraid("train", "--data", tmp_path / "store", "--out", run_dir, "--epochs", 5, "--lr", 0.05, *QUICK)
    (tmp_path / "ids.txt").write_text("n4\nn11\n", encoding="utf-8-sig")
    out = tmp_path / "p.csv"
    done = graphbraid("predict", "--run", run_dir, "--nodes", tmp_path / "ids.txt", "--out", out)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["node"] for row in rows] == ["n4", "n11"]
    names = ("blue", "red")  # classes in alphabetical order
    assert all(row["class"] == names[int(row["prediction"])] for row in rows)


def test_columns_without_numbers_are_named_when_left_out(graphbraid, tables, tmp_path):
    edges, nodes = tables
    columns = ("--source", "from", "--destination", "to", "--nodes", nodes)
    done = graphbraid("convert", edges, tmp_path / "store", *columns, "--json")
    assert done.json["num_features"] == 8
    assert done.stderr == "columns left out, as they hold no numbers or an index: colour, role\n"


def test_other_data_is_predicted_without_labels_and_named_as_in_training(graphbraid, tables, tmp_path):
    edges, nodes = tables
    columns = ("--source", "from", "--destination", "to", "--features", ",".join(f"f{i}" for i in range(8)))
    labels = ("--label", "colour", "--split", "role")
    graphbraid("convert", edges, tmp_path / "store", *columns, "--nodes", nodes, *labels)
    run_dir = tmp_path / "run"
    graphbraid("train", "--data", tmp_path / "store", "--out", run_dir, "--epochs", 2, *QUICK)
    graphbraid("convert", edges, tmp_path / "bare", *columns, "--nodes", nodes)
    tables_of = {}
    for name in ("store", "bare"):
        out = tmp_path / f"{name}.csv"
        graphbraid("predict", "--run", run_dir, "--data", tmp_path / name, "--out", out)
        tables_of[name] = out.read_text()
    assert "blue" in tables_of["store"]
    assert tables_of["bare"] == tables_of["store"]


def test_an_npz_becomes_the_same_graph_as_a_store(graphbraid, tmp_path):
    x = np.eye(4, dtype=np.float32)
    edge_index = np.array([[0, 1, 1, 3], [1, 2, 2, 3]], np.int32)
    arrays = {"edge_index": edge_index, "num_nodes": 4, "x": x, "y": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "tiny.npz", **arrays, train_idx=[0], val_idx=[1], test_idx=[2, 3])
    done = graphbraid("convert", tmp_path / "tiny.npz", tmp_path / "plain", "--json")
    assert done.json["num_edges"] == 4
    done = graphbraid(
        "convert", tmp_path / "tiny.npz", tmp_path / "edited", "--dedupe", "--symmetrize", "--json"
    )
    assert done.json["num_edges"] == 5  # 0-1 and 1-2 both ways, the loop once
    assert done.json["splits"] == {"train": 1, "val": 1, "test": 2}
    done = graphbraid("convert", tmp_path / "plain", tmp_path / "again", "--json")
    assert torch.equal(
        datasets.open_store(tmp_path / "again").to_edge_index(),
        datasets.open_store(tmp_path / "plain").to_edge_index(),
    )


def test_an_existing_store_is_replaced_only_when_told(graphbraid, store, tmp_path):
    graphbraid("convert", store, tmp_path / "copy")
    done = graphbraid("convert", store, tmp_path / "copy", code=4)
    assert "exists already" in done.stderr
    graphbraid("convert", store, tmp_path / "copy", "--overwrite")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = graphbraid("convert", store, tmp_path / "mine", "--overwrite", code=4)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_predict_uses_the_threshold_that_the_run_chose(graphbraid, store, tmp_path):
    run_dir, out = tmp_path / "run", tmp_path / "p.npz"
    options = ("--epochs", 1, "--lr", 0.001, *QUICK, "--threshold", "f1")
    done = graphbraid("train", "--data", store, "--out", run_dir, *options, "--json")
    chosen = done.json["result"]["threshold"]

    def predicted(*given):
        told = graphbraid("predict", "--run", run_dir, "--out", out, "--scores", "--json", *given).json
        table = arrays_of(out)
        own = np.where(table["prediction"] == 1, table["score_1"], table["score_0"])
        np.testing.assert_array_equal(table["probability"], own)
        return told["threshold"], table["prediction"], table["score_1"]

    for given, least in (((), chosen), (("--threshold", 0.2), 0.2)):
        threshold, classes, scores = predicted(*given)
        assert threshold == least
        np.testing.assert_array_equal(classes, scores >= np.float32(least))
    threshold, classes, scores = predicted("--checkpoint", "last")  # the threshold is of the best epoch
    assert threshold is None
    np.testing.assert_array_equal(classes, scores > 0.5)
    refused = graphbraid("predict", "--run", run_dir, "--out", out, "--threshold", 1, code=2)
    assert "--threshold must be above 0 and below 1" in refused.stderr
