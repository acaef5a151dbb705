"""The memory of a run on the whole graph: the compiled step's plan, counted without allocating it."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.trial import Trial, parameter_bytes
from graphbraid.fullgraph import Engine
from graphbraid.train.estimating.memory.sampled import baseline_need, graph_needs
from graphbraid.train.estimating.trials.whole_passes import forward_bytes, training_bytes
from graphbraid.train.step.whole import compile_for


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class FullNeeds:
    """What a run on the whole graph needs."""

    host: Needs
    device: Needs | None
    """None where the model runs on the host."""
    engine: Engine | None
    """The compiled step, whose memory is not taken yet; None if the model runs as it is written."""
    file_bytes: int
    epoch_bytes: int = 0
    """Read from files by an epoch's training, where the features are on disk."""
    why: str = ""
    """Why there is no compiled step."""


def full_needs(trial: Trial) -> FullNeeds:
    """Count what a run on the whole graph holds; the model is lowered, and nothing of its size allocated."""
    config, graph, runner = trial.config.updated(mode="full"), trial.graph, trial.runner
    engine, why = compile_for(runner, config, trial.nodes)
    weights = parameter_bytes(runner.model)
    state = trial.state_bytes()
    evaluates = trial.val_nodes is not None or trial.test_nodes is not None
    best = weights if config.restore_best and config.out_dir is None and trial.val_nodes is not None else 0
    outputs = 4 * trial.task.width
    loss = 3 * outputs * trial.nodes.numel()
    learned = (
        Need(name="model", nbytes=weights + best, why="parameters" + ", and the best epoch's" * bool(best)),
        Need(name="optimizer", nbytes=state, why="its state, after one step"),
        Need(name="gradients", nbytes=weights, why="of the parameters"),
    )
    steps: tuple[Need, ...] = ()
    if engine is not None:
        # A run first tries the model in evaluation mode, and keeps the memory of that for its evaluations.
        kept = engine.evaluation_nbytes + outputs * graph.num_nodes
        step = Need(name="compiled step", nbytes=engine.nbytes, why="its arena and edges, as planned")
        evaluation = Need(
            name="evaluation", nbytes=kept, why="its arena, and all outputs; kept from the start"
        )
        steps = (step, evaluation)
        phases = [Need(name="loss", nbytes=loss, why="outputs of the training nodes and their gradients")]
        if evaluates:
            phases.append(Need(name="scores", nbytes=outputs * graph.num_nodes, why="by all outputs"))
    else:
        phases = [Need(name="step", nbytes=training_bytes(trial), why="as written, tried on a small graph")]
        if evaluates:
            phases.append(Need(name="evaluation", nbytes=forward_bytes(trial), why="one pass, tried"))
    topology, features = graph_needs(graph)
    streams = None if engine is None else engine.runner.streams
    if streams is not None:  # which are counted with the compiled step
        features = Need(name="features", nbytes=0, why="read from the store's file in every step")
    own, base = (*learned, *steps), (baseline_need("full", trial), topology, features)
    on_host = trial.device.type == "cpu"
    checkpoints = 0 if config.out_dir is None else 2 * (weights + state)
    scratch = 0 if streams is None else streams.scratch_bytes
    return FullNeeds(
        host=Needs(held=(*base, *own), phases=tuple(phases)) if on_host else Needs(held=base),
        device=None if on_host else Needs(held=own, phases=tuple(phases)),
        engine=engine,
        file_bytes=checkpoints + scratch,
        epoch_bytes=0 if streams is None else 2 * streams.pass_bytes,
        why=why,
    )
