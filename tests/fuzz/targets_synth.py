"""Program synthesis: programs and models, run, trained and written."""

from pathlib import Path
from typing import Any

from tests.fuzz.targets import Call, add
from tests.fuzz.targets_distributed import partition_of
from tests.fuzz.world import CLASSES, WIDTH, World
from tests.synth.programs import LISTING

from graphbraid import synth

LAYERS = (WIDTH, 8, CLASSES)


def _written() -> Path:
    Path("program.txt").write_text(LISTING, encoding="utf-8")
    return Path("program.txt")


def _made(w: World) -> synth.Synthesis:
    return synth.from_model(w.model("gcn"), _recipe())


def _recipe() -> synth.Recipe:
    optimizer = synth.OptimizerRecipe(kind="adam", learning_rate=0.01)
    return synth.Recipe(name="fuzz", optimizer=optimizer, epochs=2, evaluated=("val",))


def _trained(made: synth.Synthesis) -> Any:
    found = synth.train(made, World().plain_graph)
    return [round(loss, 3) for loss in found.losses]


def _weights(w: World) -> Path:
    return synth.save_weights(w.model("gcn"), "weights")


_CALLS = {
    "synth.parse_program": lambda w: Call({"text": LISTING}, lambda f: f.name),
    "synth.read_program": lambda w: Call({"path": _written()}, lambda f: f.name),
    "synth.from_program": lambda w: Call(
        {"program": synth.parse_program(LISTING), "layers": LAYERS, "settings": {"totalEpoch": 2}},
        _trained,
        fixed=("program",),
    ),
    "synth.from_model": lambda w: Call({"model": w.model("gcn"), "recipe": _recipe()}, _trained),
    "synth.train": lambda w: Call({"synthesis": _made(w), "graph": w.plain_graph}, lambda t: t.losses),
    "synth.write_openmp": lambda w: Call(
        {"synthesis": _made(w), "graph": w.plain_graph, "folder": Path("written")},
        lambda path: sorted(file.name for file in path.iterdir()),
    ),
    "synth.write_cuda": lambda w: Call(
        {"synthesis": _made(w), "graph": w.plain_graph, "folder": Path("written")},
        lambda path: sorted(file.name for file in path.iterdir()),
    ),
    "synth.write_mpi": lambda w: Call(
        {
            "synthesis": _made(w),
            "graph": w.plain_graph,
            "folder": Path("written"),
            "partition": partition_of(w),
        },
        lambda path: sorted(file.name for file in (path / "plan").iterdir()),
    ),
    "synth.save_weights": lambda w: Call(
        {"model": w.model("gcn"), "folder": Path("w")}, lambda path: path.name
    ),
    "synth.load_weights": lambda w: Call({"model": w.model("gcn"), "folder": _weights(w)}),
    "synth.standard_program": lambda w: Call({"model": "gat"}, lambda f: f.text),
}
add(_CALLS)
