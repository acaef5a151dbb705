"""What training does: it learns, repeats to the bit, and tells its callbacks."""

import csv
import json
import time
from typing import Any

import pytest
import torch
from tests.extras import NO_TENSORBOARD
from tests.train.communities import Sage, community_graph, new_model
from tests.train.recorded import StopAt, losses
from torch import nn

from graphbraid.errors import ConfigError, DataError, TrainingError
from graphbraid.train import Callback, TrainConfig, Trainer, runtime
from graphbraid.train.run_folder import checkpoint

OPTIONS = {"epochs": 4, "batch_size": 64, "fanouts": (5, 5), "lr": 0.02, "threads": 1}


@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_single_label_training_learns(mode):
    graph = community_graph()
    options = OPTIONS | {"mode": mode, "epochs": 8 if mode == "sampled" else 40}
    result = Trainer(new_model(graph), graph, **options).fit()
    assert result.test["accuracy"] > 0.7  # a third by chance, about half from features alone
    assert result.status == "finished"
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_multi_label_training_learns():
    graph = community_graph()
    assert graph.y is not None
    hot = torch.stack([graph.y != 0, graph.y == 1], dim=1).float()
    graph = graph.replace(y=hot)
    trainer = Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 8}, class_weights="balanced")
    assert trainer.task.name == "multi-label"
    result = trainer.fit()
    assert result.monitor == "f1_micro"
    assert result.test["f1_macro"] > 0.8
    probabilities = trainer.predict([0, 5], probabilities=True)
    assert probabilities.shape == (2, 2)
    assert bool(((probabilities > 0) & (probabilities < 1)).all())


@pytest.mark.parametrize("width", [1, 2])
def test_regression_training_learns(width):
    graph = community_graph()
    assert isinstance(graph.x, torch.Tensor)
    targets = graph.x[:, 0] - graph.x[:, 1] if width == 1 else graph.x[:, :2] * 2 + 1
    graph = graph.replace(y=targets)
    model = Sage(graph.num_features, width)
    result = Trainer(model, graph, **OPTIONS | {"epochs": 25}).fit()
    assert result.monitor == "mae"
    assert result.test["r2"] > 0.6
    assert result.best_value == min(row["val_mae"] for row in result.history)


def test_same_seed_gives_the_same_bits_and_another_does_not():
    graph = community_graph()
    first = losses(Trainer(new_model(graph), graph, **OPTIONS))
    assert first == losses(Trainer(new_model(graph), graph, **OPTIONS, workers=3))
    assert first != losses(Trainer(new_model(graph), graph, **OPTIONS, seed=1))


def test_training_does_not_depend_on_evaluation():
    """A model that draws while it evaluates must not shift the dropout of later steps."""

    class Noisy(Sage):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            noise = 0.0 if self.training else torch.rand(1)
            return super().forward(x, edge_index) + noise

    graph = community_graph()

    def noisy() -> Noisy:
        torch.manual_seed(0)
        return Noisy(graph.num_features, 3)

    assert losses(Trainer(noisy(), graph, **OPTIONS)) == losses(
        Trainer(noisy(), graph, **OPTIONS, eval_every=0)
    )


def test_unlabelled_nodes_are_never_trained_on():
    graph = community_graph()
    assert graph.y is not None
    train = graph.split("train")
    y = graph.y.clone()
    y[train[::2]] = -1
    hidden = graph.replace(y=y)
    taken_out = graph.replace(splits={**graph.splits, "train": train[1::2]})
    assert losses(Trainer(new_model(graph), hidden, **OPTIONS)) == losses(
        Trainer(new_model(graph), taken_out, **OPTIONS)
    )


def test_accumulated_mini_batches_make_the_step_of_one_large_batch():
    """200 training nodes in batches of 30, 3 to a step: the last step has 20 seeds, in one batch."""
    graph = community_graph()
    options = OPTIONS | {"fanouts": (-1, -1), "eval_every": 0, "test_at_end": False, "optimizer": "sgd"}
    one, many = new_model(graph, dropout=0.0), new_model(graph, dropout=0.0)
    large = losses(Trainer(one, graph, **options | {"batch_size": 90}))
    small = losses(Trainer(many, graph, **options | {"batch_size": 30, "accumulate": 3}))
    assert small == pytest.approx(large, rel=1e-4)
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)


def test_bfloat16_trains_and_keeps_float32_parameters():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(12, 3)
            self.seen: set[torch.dtype] = set()

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            out = self.linear(x)
            self.seen.add(out.dtype)
            return out

    graph, model = community_graph(), Half()
    result = Trainer(model, graph, **OPTIONS, precision="bfloat16").fit()
    assert model.seen == {torch.bfloat16}
    assert model.linear.weight.dtype == torch.float32
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@pytest.mark.parametrize(
    ("precision", "is_slow"), [("bfloat16", True), ("bfloat16", False), ("float32", True)]
)
def test_a_processor_that_takes_long_for_bfloat16_is_told_of(precision, is_slow, monkeypatch, caplog):
    monkeypatch.setattr(runtime, "_computes_bfloat16", lambda: not is_slow)
    graph = community_graph()
    Trainer(new_model(graph), graph, config=TrainConfig.from_dict({"precision": precision}))
    said = [record.message for record in caplog.records if "many times as long" in record.message]
    assert len(said) == (precision == "bfloat16" and is_slow)


def test_whether_torch_multiplies_bfloat16_fast_is_asked_of_it():
    assert runtime._computes_bfloat16() == torch.ops.mkldnn._is_mkldnn_bf16_supported()


def test_features_stored_in_16_bits_are_trained_on():
    graph = community_graph()
    assert isinstance(graph.x, torch.Tensor)
    for mode in ("sampled", "full"):
        result = Trainer(new_model(graph), graph.replace(x=graph.x.half()), **OPTIONS, mode=mode).fit()
        assert result.num_epochs == 4


@pytest.mark.parametrize("part", ["x", "edge_attr"])
def test_a_graph_whose_rows_require_gradients_is_refused_since_no_optimizer_has_them(part):
    graph = community_graph()
    learned = torch.zeros(graph.num_edges if part == "edge_attr" else graph.num_nodes, 4, requires_grad=True)
    with pytest.raises(ConfigError, match="require gradients, but a Trainer updates only the model's"):
        Trainer(Sage(4, 4, 3), graph.replace(**{part: learned}))


def test_clipping_bounds_the_gradient_and_the_norm_is_logged(tmp_path):
    graph = community_graph()
    sgd = {"optimizer": "sgd", "lr": 1.0, "clip": 1e-4, "epochs": 1, "batch_size": 1000, "eval_every": 0}
    model = new_model(graph)
    before = [p.detach().clone() for p in model.parameters()]
    Trainer(model, graph, **OPTIONS | sgd, out_dir=tmp_path).fit()
    moved = torch.stack(
        [(a - b.detach()).norm() for a, b in zip(before, model.parameters(), strict=True)]
    ).norm()
    assert float(moved) == pytest.approx(1e-4, rel=1e-2)
    assert json.loads((tmp_path / "steps.jsonl").read_text())["grad_norm"] > 1e-3


def test_class_weights_move_predictions_to_the_heavy_class():
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS, class_weights=(1.0, 1.0, 100.0), restore_best=False)
    trainer.fit()
    assert float((trainer.predict().argmax(dim=1) == 2).float().mean()) > 0.6


def test_one_rank_names_the_options_of_exchanges_that_it_has_no_use_for():
    def said(**options: str) -> str:
        graph = community_graph()
        config = TrainConfig.from_dict({"mode": "full", **options})
        return Trainer(new_model(graph), graph, config=config).exchange

    assert said() == ""
    assert said(wire="bfloat16") == "nothing travels, as there is one rank: wire='bfloat16' not used"
    assert said(wire="bfloat16", exchange="fixed").endswith("wire='bfloat16' and exchange='fixed' not used")


def test_early_stopping_stops_and_the_best_weights_come_back(tmp_path):
    graph = community_graph()
    options = OPTIONS | {"epochs": 60, "patience": 2, "monitor": "loss", "lr": 0.05}
    trainer = Trainer(new_model(graph), graph, **options, eval_mode="exact", out_dir=tmp_path)
    result = trainer.fit()
    assert result.status == "early-stopped"
    assert result.best_epoch == result.num_epochs - 3
    assert result.best_value == min(row["val_loss"] for row in result.history)
    assert trainer.evaluate("val")["loss"] == pytest.approx(result.best_value, rel=1e-5)
    resumed = Trainer(
        new_model(graph), graph, **options, eval_mode="exact", out_dir=tmp_path, resume=True
    ).fit()
    assert (resumed.status, resumed.num_epochs) == ("early-stopped", result.num_epochs)


def test_best_weights_come_back_without_a_folder():
    graph = community_graph()
    trainer = Trainer(
        new_model(graph), graph, **OPTIONS | {"epochs": 30, "lr": 0.1, "monitor": "loss"}, eval_mode="exact"
    )
    result = trainer.fit()
    assert result.best_epoch is not None
    assert result.best_epoch < 29
    assert trainer.evaluate("val")["loss"] == pytest.approx(result.best_value, rel=1e-5)


def test_callbacks_are_told_in_order():
    said: list[str] = []

    class Tell(Callback):
        def on_fit_start(self, trainer: Trainer) -> None:
            said.append("fit start")

        def on_epoch_start(self, trainer: Trainer, epoch: int) -> None:
            said.append(f"epoch {epoch}")

        def on_step_end(self, trainer: Trainer, record: object) -> None:
            said.append(f"step {record.step}")  # type: ignore[attr-defined]

        def on_evaluate_start(self, trainer: Trainer, split: str) -> None:
            said.append(split)

        def on_epoch_end(self, trainer: Trainer, record: object) -> None:
            said.append("epoch end")

        def on_fit_end(self, trainer: Trainer, result: object) -> None:
            said.append("fit end")

    graph = community_graph()
    Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 2, "batch_size": 100}, callbacks=[Tell()]).fit()
    epoch = ["step 0", "step 1", "val", "epoch end"]
    assert said == ["fit start", "epoch 0", *epoch, "epoch 1", *epoch, "test", "fit end"]


def test_callback_can_stop_the_run_and_its_error_reaches_the_caller():
    class Fail(Callback):
        seen: BaseException | None = None

        def on_step_end(self, trainer: Trainer, record: object) -> None:
            raise KeyError("mine")

        def on_exception(self, trainer: Trainer, error: BaseException) -> None:
            self.seen = error

    graph, fail = community_graph(), Fail()
    result = Trainer(new_model(graph), graph, **OPTIONS, callbacks=[StopAt(0)]).fit()
    assert (result.status, result.global_step) == ("stopped", 1)
    with pytest.raises(KeyError, match="mine"):
        Trainer(new_model(graph), graph, **OPTIONS, callbacks=[fail]).fit()
    assert isinstance(fail.seen, KeyError)


def test_callback_state_survives_a_resume(tmp_path):
    class Count(Callback):
        steps = 0

        def on_step_end(self, trainer: Trainer, record: object) -> None:
            self.steps += 1

        def state_dict(self) -> dict[str, int]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    graph, options = community_graph(), OPTIONS | {"out_dir": tmp_path}
    Trainer(new_model(graph), graph, **options, callbacks=[Count()]).fit()
    again = Count()
    Trainer(new_model(graph), graph, **options | {"epochs": 6, "resume": True}, callbacks=[again]).fit()
    assert again.steps == 6 * 4


def test_loss_that_is_not_finite_stops_before_the_step():
    class Explode(Sage):
        calls = 0

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            return super().forward(x, edge_index) * (float("nan") if self.calls == 6 else 1.0)

    graph = community_graph()
    model = Explode(graph.num_features, 3)
    with pytest.raises(TrainingError, match=r"the loss is nan at epoch 1, step 1 \(global step 5\)"):
        Trainer(model, graph, **OPTIONS).fit()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_gradient_that_is_not_finite_stops_before_the_step():
    class Root(Sage):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            out = super().forward(x, edge_index)
            return out + (out * 0.0).abs().sqrt()  # finite, but its derivative is infinite times zero

    graph = community_graph()
    model = Root(graph.num_features, 3)
    with pytest.raises(TrainingError, match="gradients' norm is nan at epoch 0, step 0"):
        Trainer(model, graph, **OPTIONS).fit()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_run_folder_tells_the_whole_story(tmp_path):
    graph = community_graph()
    trainer = Trainer(
        new_model(graph), graph, **OPTIONS, out_dir=tmp_path / "a" / "b", info={"model": "sage"}
    )
    result = trainer.fit()
    folder = tmp_path / "a" / "b"
    config = json.loads((folder / "config.json").read_text())
    assert config["info"] == {"model": "sage"}
    assert TrainConfig.from_dict(config["train"]) == trainer.config
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["kernels"]["variant"]
    assert torch.__version__.startswith(environment["packages"]["torch"])  # which may leave its build out
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [step["global_step"] for step in steps] == list(range(16))
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3]
    epoch = [step for step in steps if step["epoch"] == 2]
    mean = sum(s["loss"] * s["num_seeds"] for s in epoch) / sum(s["num_seeds"] for s in epoch)
    assert float(rows[2]["train_loss"]) == pytest.approx(mean, rel=1e-9)
    assert json.loads((folder / "result.json").read_text())["test"] == result.test
    seconds = {name: float(rows[0][f"{name}_seconds"]) for name in ("sample", "forward", "backward", "epoch")}
    assert all(value > 0 for value in seconds.values())
    assert seconds["forward"] + seconds["backward"] < seconds["epoch"]


@pytest.mark.parametrize("every", [None, 3])
def test_the_seconds_of_every_checkpoint_are_counted_once(every, tmp_path, monkeypatch):
    """Checkpoints of the start and of each epoch's end, written between the epochs, count too."""
    graph, write = community_graph(), checkpoint.write
    written: list[float] = []

    def timed(*arguments: Any) -> None:
        started = time.perf_counter()
        write(*arguments)
        written.append(time.perf_counter() - started)

    monkeypatch.setattr(checkpoint, "write", timed)
    options = OPTIONS | {"epochs": 3, "checkpoint_every_steps": every, "restore_best": False}
    result = Trainer(new_model(graph), graph, **options, out_dir=tmp_path).fit()
    seconds = [row["checkpoint_seconds"] for row in result.history]
    assert len(written) >= 4 and all(seconds)
    assert sum(written) <= sum(seconds) + result.last_checkpoint_seconds < result.seconds
    assert result.last_checkpoint_seconds >= written[-1]
    with (tmp_path / "metrics.csv").open() as file:
        rows = [float(row["checkpoint_seconds"]) for row in csv.DictReader(file)]
    assert rows == seconds


def test_no_folder_means_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = community_graph()
    Trainer(new_model(graph), graph, **OPTIONS | {"epochs": 1}).fit()
    assert not list(tmp_path.iterdir())


def test_torch_settings_are_given_back():
    graph, before = community_graph(), torch.get_num_threads()
    threads: list[int] = []

    class Look(Callback):
        def on_step_end(self, trainer: Trainer, record: object) -> None:
            threads.append(torch.get_num_threads())
            assert torch.are_deterministic_algorithms_enabled()

    options = OPTIONS | {"epochs": 1, "deterministic": True, "callbacks": [Look()]}
    Trainer(new_model(graph), graph, **options).fit()
    assert set(threads) == {1}
    assert torch.get_num_threads() == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboard", reason=NO_TENSORBOARD)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    graph = community_graph()
    Trainer(new_model(graph), graph, **OPTIONS, tensorboard=True, out_dir=tmp_path).fit()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("train/loss")) == 16
    assert len(events.Scalars("val/accuracy")) == 4


# ---- mistakes are found before the first step


class Wide(nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x[:, :, None]


class WritesOver(nn.Module):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x.relu_()


FAILED = "the model failed on"
MISTAKES = [
    (lambda g: (Sage(5, 3), g), {}, ConfigError, f"{FAILED} a mini-batch of 2 seed nodes, with 12 features"),
    (lambda g: (Sage(5, 3), g), {"mode": "full"}, ConfigError, f"{FAILED} the whole graph"),
    (lambda g: (Wide(), g), {}, DataError, r"shape \(num_nodes, width\); got shape"),
    (lambda g: (WritesOver(), g), {}, DataError, "writes over x, in which"),
    (lambda g: (WritesOver(), g), {"mode": "full"}, DataError, "forward writes over x"),
    (lambda g: (new_model(g), g.replace(x=None)), {}, DataError, "features"),
    (lambda g: (new_model(g), g.replace(y=None)), {}, DataError, "labels"),
    (lambda g: (new_model(g), g.replace(y=torch.full((600,), -1))), {}, DataError, "none of the 200 nodes"),
    (lambda g: (new_model(g), g), {"class_weights": (1.0,)}, ConfigError, "one weight per class"),
    (lambda g: (new_model(g), g), {"epoch": 3}, ConfigError, "Did you mean 'epochs'"),
]


@pytest.mark.parametrize(("make", "options", "error", "message"), MISTAKES, ids=[m[3] for m in MISTAKES])
def test_mistake_is_found_before_the_first_step(make, options, error, message):
    class Never(Callback):
        def on_step_end(self, trainer: Trainer, record: object) -> None:
            raise AssertionError("a step was made")

    with pytest.raises(error, match=message):
        Trainer(*make(community_graph()), **OPTIONS | options, callbacks=[Never()]).fit()


def test_predict_checks_ids_and_keeps_their_order():
    graph = community_graph()
    trainer = Trainer(new_model(graph), graph, **OPTIONS)
    everyone = trainer.predict()
    assert everyone.shape == (600, 3)
    assert torch.equal(trainer.predict([7, 3, 7]), everyone[[7, 3, 7]])
    outside = (([600], r"nodes\[0\] is 600"), ([1, -1], r"nodes\[1\] is -1"))
    for nodes, message in (*outside, ([], "name at least one")):
        with pytest.raises(ConfigError, match=message):
            trainer.predict(nodes)
    mask = torch.arange(600) % 7 == 0
    for given in (mask, mask.numpy()):
        assert torch.equal(trainer.predict(given), everyone[mask])
    for dtype in (torch.uint8, torch.int64):
        with pytest.raises(DataError, match="nodes hold only 0 and 1, one for each of 600 nodes"):
            trainer.predict(mask.to(dtype))
    with pytest.raises(DataError, match="nodes is a mask of 599 nodes"):
        trainer.predict(mask[1:])
    with pytest.raises(DataError, match=r"nodes must be .*; got 0\.5"):
        trainer.predict([0.5])
    with pytest.raises(ConfigError, match="mode must be 'sampled' or 'exact'"):
        trainer.predict([1], mode="quick")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no split 'holdout'"):
        trainer.evaluate("holdout")


def test_predict_needs_no_labels():
    graph = community_graph()
    model = new_model(graph)
    expected = Trainer(model, graph).predict()
    assert torch.equal(Trainer(model, graph.replace(y=None, splits={})).predict(), expected)


def test_what_is_no_callback_is_refused_before_the_run():
    graph = community_graph()
    with pytest.raises(ConfigError, match=r"callbacks\[1\] must be a train.Callback; got 2147483648"):
        Trainer(new_model(graph), graph, callbacks=[Callback(), 1 << 31])
