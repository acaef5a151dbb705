"""A run on the whole graph: its memory, counted from the compiled step's plan, and the time of its steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from graphbraid.estimates.memory import baseline_need, graph_needs, learned_needs
from graphbraid.estimates.records import EpochSeconds, Need, Needs, PartSeconds
from graphbraid.estimates.seconds import SECONDS, evaluations
from graphbraid.estimates.sizes import break_bytes, forward_bytes, training_bytes
from graphbraid.estimates.trial import Trial, parameter_bytes, timed
from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import Engine
from graphbraid.machine.measurements import OtherPrograms
from graphbraid.train.step.runner import WholeGraph
from graphbraid.train.step.whole import compile_for

_MOST_STEPS = 12
"""Most steps that are tried."""
_LONGEST_FLOOR, _LONGEST_READING = 8.0, 4.0
"""Longest step by its floor, and longest reading of its first steps, that are tried."""
_READING = 0.5
"""Seconds for which rows are read to find the disk's rate."""


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
    evaluates = trial.val_nodes is not None or trial.test_nodes is not None
    learned, checkpoint_bytes = learned_needs(trial)
    weights, outputs = parameter_bytes(runner.model), 4 * trial.task.width
    own: tuple[Need, ...] = (*learned, Need(name="gradients", nbytes=weights, why="of the parameters"))
    topology, features = graph_needs(graph)
    streams = None if engine is None else engine.runner.training_step.streams
    if engine is not None:
        # A run first tries the model in evaluation mode, and keeps the memory of that for its evaluations.
        kept = engine.evaluation_nbytes + outputs * graph.num_nodes
        loss = 3 * outputs * trial.nodes.numel()
        own += (
            Need(name="compiled step", nbytes=engine.nbytes, why="its arena and edges, as planned"),
            Need(name="evaluation", nbytes=kept, why="its arena, and all outputs; kept from the start"),
        )
        phases = [Need(name="loss", nbytes=loss, why="outputs of the training nodes and their gradients")]
        if engine.breaks:
            told = "of parts that run as written, beside the arena, tried on a small graph"
            phases.append(Need(name="graph breaks", nbytes=break_bytes(trial), why=told))
        if evaluates:
            phases.append(Need(name="scores", nbytes=outputs * graph.num_nodes, why="by all outputs"))
    else:
        phases = [Need(name="step", nbytes=training_bytes(trial), why="as written, tried on a small graph")]
        if evaluates:
            phases.append(Need(name="evaluation", nbytes=forward_bytes(trial), why="one pass, tried"))
    if streams is not None:  # the compiled step counts them
        features = Need(name="features", nbytes=0, why="read from the store's file in every step")
    base = (baseline_need("full", trial), topology, features)
    on_host = trial.device.type == "cpu"
    return FullNeeds(
        host=Needs(held=(*base, *own), phases=tuple(phases)) if on_host else Needs(held=base),
        device=None if on_host else Needs(held=own, phases=tuple(phases)),
        engine=engine,
        file_bytes=checkpoint_bytes + (0 if streams is None else streams.scratch_bytes),
        epoch_bytes=0 if streams is None else 2 * streams.pass_bytes,
        why=why,
    )


def full_seconds(
    trial: Trial, engine: Engine | None, *, fits: bool, bytes_per_second: float | None = None
) -> EpochSeconds | None:
    """Return the time of an epoch on the whole graph; None where nothing is known.

    Steps are tried unless they are long, or may not fit. An epoch that is not tried takes at least the floor
    of its compiled step, and as long as it reads features from a disk.

    Args:
        trial: the run.
        engine: its compiled step. If None, the model runs as it is written.
        fits: whether a step may be tried, since its memory is free.
        bytes_per_second: that the disk of features which are streamed gives. If None, it is measured.
    """
    floor = None if engine is None else engine.floor().floor_seconds
    streams = None if engine is None else engine.runner.training_step.streams
    reading = once = 0.0
    how = "the least that it can take; nothing was tried"
    if streams is not None:
        rate = bytes_per_second or _disk_rate(trial)
        reading, read = 2 * streams.pass_bytes / rate, format_bytes(2 * streams.pass_bytes)
        once = (streams.set_up_bytes + streams.whole_bytes - streams.pass_bytes) / rate
        how = f"the slower of its floor and of reading {read} at {format_bytes(rate)}/s; nothing was tried"
    if fits and (floor or 0.0) <= _LONGEST_FLOOR and once + 2 * reading <= _LONGEST_READING:
        return _tried(trial, engine, floor)
    if engine is None or floor is None:
        return None
    evaluation = None
    if streams is not None:
        evaluation = PartSeconds(engine.evaluation_pass_bytes / rate, "reading the features from the disk")
    validation = test = None
    if trial.val_nodes is not None:
        validation = (evaluation or PartSeconds(None, "not tried")).times(1 / trial.config.eval_every)
    if trial.test_nodes is not None:
        test = evaluation or PartSeconds(None, "not tried")
    train = PartSeconds(max(floor, reading), how)
    return EpochSeconds(train=train, validation=validation, test=test, first=once, floor=floor)


def _tried(trial: Trial, engine: Engine | None, floor: float | None) -> EpochSeconds:
    """Return the time of steps that are made."""
    assert trial.graph.y is not None
    labels = trial.graph.y.index_select(0, trial.nodes)
    batch = WholeGraph(nodes=trial.nodes.to(trial.device), seed_y=labels.to(trial.device))
    trial.runner.engine = engine
    with trial.evaluating():  # as a run does before it begins
        trial.runner.outputs_of(batch)
    others = OtherPrograms()
    try:
        cold = timed(lambda: trial.step(batch))
        tries = [timed(lambda: trial.step(batch))]
        if tries[0] <= SECONDS / 2:
            tries.append(timed(lambda: trial.step(batch)))  # kernels' arguments are bound in the first steps
            count = min(_MOST_STEPS, int(SECONDS / max(min(tries), 1e-9)))
            tries = [timed(lambda: trial.step(batch)) for _ in range(max(1, count))]
        train = PartSeconds(median(tries), f"the median of {len(tries)} step{'s' * (len(tries) > 1)} tried")
        validation, test = evaluations(trial, "exact")
    finally:
        trial.runner.engine = None
        trial.runner.forget_graph()
    return EpochSeconds(
        train=train,
        validation=validation,
        test=test,
        first=max(0.0, cold - train.known),
        floor=floor,
        others=others.share(),
    )


def _disk_rate(trial: Trial) -> float:
    """Return the bytes of float32 rows that the disk gives in a second, in blocks as a step reads them."""
    rows = trial.runner.rows
    assert rows is not None, "features that are streamed have a source of rows"
    num_rows, width = rows.shape
    count, read = max(1, LONGEST_ROUND // (4 * width)), 0
    started = time.perf_counter()
    for ids in torch.split(torch.arange(num_rows), count):
        rows.gather(ids)
        read += 4 * width * ids.numel()
        if time.perf_counter() - started >= _READING:
            break
    return read / max(time.perf_counter() - started, 1e-9)
