"""Training and plans."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.fuzz.targets import Call, add
from tests.fuzz.world import World

import graphbraid as gb
from graphbraid import collective, train

# ---- training


_QUICK = {"epochs": 1, "fanouts": (3, 3), "batch_size": 8, "threads": 1, "seed": 0}


_MOST_EPOCHS = 1000


def _fit(trainer: Any) -> Any:
    if trainer.config.epochs > _MOST_EPOCHS:
        return None  # it would do as it is told, and never end
    result = trainer.fit()
    return [round(float(row["train_loss"]), 4) for row in result.history[:2]]


def _trainer_args(w: World, **more: Any) -> dict[str, Any]:
    return {"model": w.model(), "graph": w.graph, **_QUICK, **more}


_LINKS = torch.tensor([[0, 3, 5], [4, 1, 2]])


def _ranks_args(w: World) -> dict[str, Any]:
    scores = torch.arange(float(w.graph.num_nodes) ** 2).reshape(w.graph.num_nodes, -1)
    return {
        "score": lambda src: scores[src],
        "links": _LINKS,
        "num_nodes": w.graph.num_nodes,
        "known": _LINKS,
    }


_TRAIN_OPTIONS = tuple(train.TrainConfig.__dataclass_fields__)


def _weights(w: World) -> Path:
    gb.Trainer(**_trainer_args(w, out_dir=Path("trained"))).fit()
    return Path("trained/checkpoints/best.pt")


# ---- plans


def _times(**changes: Any) -> Any:
    d = collective.Duration
    given = {
        "workers": 2,
        "cpu": d(seconds=0.01),
        "dma": d(seconds=0.001),
        "model": d(seconds=0.005),
        "uva": d(seconds=0.004),
        "gpu": d(seconds=0.003),
    }
    return collective.StageTimes(**(given | changes))


def _profile() -> Any:
    return collective.Profile(times=(_times(),), host_batch_bytes=1000, device_batch_bytes=1000)


def _plan_use(plan: Any) -> Any:
    plan.save("plan.json")
    return [collective.Plan.load("plan.json").num_cpu, str(plan), len(list(plan.routes()))]


def _plan_fields() -> Mapping[str, Any]:
    plan = collective.make_plan(_profile(), 20)
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}


_CALLS = {
    "rank_links": lambda w: Call(
        _ranks_args(w), lambda r: [r.mrr, r.hits(3)], fixed=("score",), function=train.rank_links
    ),
    "Ranking": lambda w: Call(
        {"ranks": torch.tensor([1.0, 3.0])}, lambda r: [r.mrr, r.hits(3)], function=train.Ranking
    ),
    "link_auc": lambda w: Call(
        {"positive": torch.tensor([2.0, 1.0]), "negative": torch.tensor([1.0, 0.0])}, function=train.link_auc
    ),
    "TrainConfig": lambda w: Call(dict(_QUICK), lambda c: c.to_json() and None),
    "TrainConfig.from_dict": lambda w: Call({"values": dict(_QUICK)}, lambda c: c.to_json()),
    "TrainConfig.updated": lambda w: Call(
        dict(_QUICK), lambda c: c.to_json() and None, _TRAIN_OPTIONS, function=gb.TrainConfig().updated
    ),
    "Trainer": lambda w: Call(_trainer_args(w), _fit, _TRAIN_OPTIONS),
    "Trainer in full": lambda w: Call(_trainer_args(w, mode="full"), _fit, _TRAIN_OPTIONS),
    "Trainer with a folder": lambda w: Call(_trainer_args(w, out_dir=Path("run")), _fit, _TRAIN_OPTIONS),
    "Trainer.evaluate": lambda w: Call(
        {"split": "test", "mode": "exact"}, function=gb.Trainer(**_trainer_args(w)).evaluate
    ),
    "Trainer.predict": lambda w: Call(
        {"nodes": torch.tensor([3, 1, 3])}, function=gb.Trainer(**_trainer_args(w)).predict
    ),
    "Trainer.predict in full": lambda w: Call(
        {"nodes": torch.tensor([3, 1, 3])}, function=gb.Trainer(**_trainer_args(w, mode="full")).predict
    ),
    "Trainer.load_weights": lambda w: Call(
        {"path": _weights(w)}, function=gb.Trainer(**_trainer_args(w)).load_weights
    ),
    "train.EarlyStopping": lambda w: Call(
        {"patience": 3}, lambda c: _fit(gb.Trainer(**_trainer_args(w), callbacks=[c]))
    ),
    "estimate": lambda w: Call(_trainer_args(w, times=False), lambda e: str(e) and None, _TRAIN_OPTIONS),
    "train.HardwareFile": lambda w: Call(
        {"cores": 2, "memory_bytes": 1 << 34, "disk_bytes_per_second": 1e9},
        lambda h: str(gb.estimate(**_trainer_args(w, times=False), hardware=h)) and None,
    ),
    "collective.Duration": lambda w: Call({"seconds": 0.5, "cv": 0.1}, str),
    "collective.StageTimes": lambda w: Call(
        {"workers": 2, "cpu": collective.Duration(seconds=0.1)},
        lambda t: str(collective.make_plan(collective.Profile(times=(t,)), 20)),
        ("dma", "model", "uva", "gpu", "lookahead"),
        function=_times,
    ),
    "collective.Limits": lambda w: Call(
        {"host_bytes": 10**6, "device_bytes": 10**6},
        lambda x: str(collective.make_plan(_profile(), 20, x)),
        fixed=("most_tries",),
    ),
    "collective.Profile": lambda w: Call(
        {"times": (_times(),), "host_batch_bytes": 9}, lambda p: str(collective.make_plan(p, 20))
    ),
    "collective.Plan": lambda w: Call(dict(_plan_fields()), _plan_use),
    "collective.make_plan": lambda w: Call({"profile": _profile(), "num_batches": 20}, _plan_use),
    "collective.fixed_plan": lambda w: Call(
        {"profile": _profile(), "num_batches": 20, "share": 0.5}, _plan_use
    ),
    "collective.simulated": lambda w: Call(
        {"plan": collective.make_plan(_profile(), 20), "num_batches": 10}, lambda s: str(s)[:0]
    ),
    "collective.register": lambda w: Call(
        {"stage": "transfer", "hardware": "npu"}, lambda f: f(lambda c: None) and None
    ),
}
add(_CALLS)
