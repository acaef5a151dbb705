"""Evaluation: loss and metrics of nodes or links, on sampled neighbourhoods or exactly."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from graphbraid.distributed import Communicator
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.interop.convert import as_node_ids, as_tensor
from graphbraid.machine.hardware import return_freed_blocks
from graphbraid.nn.module_traits import in_mode
from graphbraid.ops import rng
from graphbraid.sampling.config import MOST_EPOCHS, part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.infer import Chunk, exact_chunks
from graphbraid.train.inference.metrics import AUC, LOSS, MRR, Kinds, Scores, hits_of
from graphbraid.train.inference.ranking import Ranking, link_auc, rank_links
from graphbraid.train.step.links.data import EdgeLabels
from graphbraid.train.step.links.runner import EdgeRunner, EndsRunner, LinkRunner
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import make_loader
from graphbraid.train.task import Task

EvalMode = Literal["sampled", "exact"]


def outputs_in_chunks(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    steps: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """Return the model's outputs for ``nodes`` in chunks, in order; mode ``full`` is always exact.

    Batches of whole graphs are exact, too. Of a model of edges, ``nodes`` are positions of edges.

    With ``steps``, a sampled evaluation makes only the mini-batches from the first up to before the second.
    """
    if isinstance(runner, EdgeRunner):
        yield from _edge_chunks(runner, config, nodes, mode)
    elif (mode == "exact" and config.task != "graph") or config.mode == "full":
        yield from exact_chunks(runner, config, nodes)
    else:
        yield from _sampled_chunks(runner, config, nodes, steps)
    if runner.learned is not None:
        runner.learned.finish()


def joined(chunks: Iterable[Chunk], num_rows: int) -> Tensor:
    """Return all rows of the chunks, at least one, in one matrix: ``(num_rows, width)`` on the CPU."""
    whole: Tensor | None = None
    for start, rows in chunks:
        if whole is None:
            whole = rows.new_empty(num_rows, rows.shape[1])
        whole[start : start + rows.shape[0]] = rows
    assert whole is not None, "callers ask for at least one row"
    return whole


def score(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    *,
    task: Task,
    metrics: Kinds,
) -> dict[str, float]:
    """Return the loss and metrics of labelled ``nodes``, accumulated chunk by chunk.

    Of a model of links, ``nodes`` are positions of links.
    """
    if isinstance(runner, LinkRunner):
        if runner.data.times is not None:
            runner.data.times.check_after(nodes)
        with in_mode(runner.model, training=False):
            rows = encoder_rows(runner, config, runner.data.ends.nodes, mode)
            return _scored_links(runner, config, nodes, rows, task=task, metrics=metrics)
    chunks = (rows for _, rows in outputs_in_chunks(runner, config, nodes, mode))
    return _scored(runner, nodes, chunks, task, metrics)


def _edge_chunks(
    runner: EdgeRunner, config: TrainConfig, positions: Tensor, mode: EvalMode
) -> Iterator[Chunk]:
    """Yield the outputs for the edges at ``positions``, from rows of their ends along all messages."""
    if runner.data.times is not None:
        runner.data.times.check_after(positions)
    attr = cast("EdgeLabels", runner.labels).edge_attr
    ids, places = torch.unique(runner.labels.ends[:, positions], return_inverse=True)
    with in_mode(runner.model, training=False):
        rows = encoder_rows(runner, config, ids, mode)
        for start in range(0, positions.numel(), PAIRS):
            runner.check()
            part = slice(start, start + PAIRS)
            src, dst = (rows[at].to(runner.device) for at in places[:, part])
            own = None if attr is None else attr[positions[part]]
            with torch.no_grad():
                outputs = runner.decoded(src, dst, own).float().cpu()
            yield start, outputs


def encoder_rows(runner: EndsRunner, config: TrainConfig, nodes: Tensor, mode: EvalMode) -> Tensor:
    """Return the encoder's rows of ``nodes``, ``(len(nodes), channels)`` float32 on the CPU.

    Raises:
        ResourceError: they do not fit the memory budget.
    """
    rows: Tensor | None = None
    return_freed_blocks()  # of a step: rows and scores are of other sizes, and fit there only in part
    for start, part in outputs_in_chunks(runner.encoder_runner(), config, nodes, mode):
        if rows is None:
            needed, budget = 4 * nodes.numel() * part.shape[1], config.memory_budget_bytes
            if needed > budget:
                raise ResourceError(
                    f"ranking links, or labels of edges, needs the rows of all {nodes.numel()} nodes at "
                    f"their ends, {format_bytes(needed)}; "
                    f"memory_budget_bytes allows {format_bytes(budget)}. Raise it, or set eval_every=0 and "
                    "test_at_end=False."
                )
            rows = torch.empty(nodes.numel(), part.shape[1])
        rows[start : start + part.shape[0]] = part
    assert rows is not None, "callers give at least one node"
    return rows


def _sampled_chunks(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, steps: tuple[int, int] | None
) -> Iterator[Chunk]:
    """Yield outputs on the batches of a fixed schedule's epoch 0, so that evaluations draw alike."""
    drawn: dict[str, Any] = {
        "num_neighbors": config.eval_fanouts or config.fanouts,
        "batch_size": config.eval_batch_size,
        "shuffle": False,
    }
    with in_mode(runner.model, training=False), make_loader(runner, config, nodes, **drawn) as loader:
        first, last = steps or (0, len(loader))
        start = first * config.eval_batch_size
        for batch in loader.batches(0, first, last):
            runner.check()
            with torch.no_grad():
                outputs = runner.on_batch(batch).float().cpu()
            yield start, outputs
            start += outputs.shape[0]


def node_ids(of: Graph | NodeSet, nodes: Tensor | Sequence[int] | None) -> Tensor:
    """Return node ids, or those that a bool mask marks, as ``(n,)`` int64 on the CPU; None is all nodes."""
    if nodes is None:
        return torch.arange(of.num_nodes)
    given = as_tensor(nodes, "nodes")
    is_list = given.ndim == 1 and not given.is_floating_point()
    ids = as_node_ids(given, of.num_nodes, "nodes").cpu() if is_list else given
    if not is_list or not ids.numel():
        raise ConfigError(
            f"nodes must be a list of node ids or a mask, and name at least one; got {given.dtype} of shape "
            f"{tuple(given.shape)}."
        )
    outside = (ids < 0) | (ids >= of.num_nodes)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise ConfigError(f"nodes must be ids in [0, {of.num_nodes}); nodes[{at}] is {int(ids[at])}.")
    return ids


def score_by_ranks(
    comm: Communicator,
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    mode: EvalMode,
    *,
    task: Task,
    metrics: Kinds,
) -> dict[str, float]:
    """Return, on every rank, the loss and metrics of labelled ``nodes``; all ranks must call it together.

    On the whole graph each rank computes the outputs of the nodes that it owns. Sampled evaluation divides
    whole mini-batches, so that each is the one that a single rank would draw. Rank 0 ranks links, and
    scores labels of edges; where ranks divide features or learned rows, the others compute the same.
    """
    if isinstance(runner, EndsRunner):
        takes_part = comm.rank == 0 or not runner.graph.is_whole or runner.learned is not None
        alone = score(runner, config, nodes, mode, task=task, metrics=metrics) if takes_part else {}
        found: dict[str, float] = comm.share(alone)
        return found
    chunk = nodes.numel()
    if config.mode == "full":
        engine = runner.engine
        assert engine is not None
        assert engine.ranks is not None
        outputs = engine.predict_owned(nodes).float()
        nodes = nodes[engine.ranks.partition.part_of[nodes].argsort(stable=True)]
    elif mode == "sampled":
        chunk = config.eval_batch_size
        steps = part_of(-(-nodes.numel() // chunk), comm.rank, comm.size)
        outputs = _own_outputs(runner, config, nodes, task, steps)
    else:
        first, last = part_of(chunk, comm.rank, comm.size)
        outputs = _own_outputs(runner, config, nodes[first:last], task, None)
    # All outputs go to rank 0, in the order of the ranks.
    send_rows = [outputs.shape[0], *[0] * (comm.size - 1)]
    gathered = comm.all_to_all(outputs.contiguous(), send_rows, comm.counts(send_rows)).wait()
    values: dict[str, float] = {}
    if comm.rank == 0:
        values = _scored(runner, nodes, torch.split(gathered, chunk), task, metrics)
    shared: dict[str, float] = comm.share(values)
    return shared


def _own_outputs(
    runner: ModelRunner, config: TrainConfig, nodes: Tensor, task: Task, steps: tuple[int, int] | None
) -> Tensor:
    """Return a rank's outputs on the CPU: of ``nodes``, or with ``steps`` of these mini-batches of them."""
    outputs = [torch.empty(0, task.width)]
    is_asked = nodes.numel() and (steps is None or steps[0] < steps[1])
    answers = runner.learned is not None or not runner.graph.is_whole
    if is_asked or answers:  # ranks that draw from parts, or divide learned rows, answer each other
        mode: EvalMode = "exact" if steps is None else "sampled"
        outputs += [rows.cpu() for _, rows in outputs_in_chunks(runner, config, nodes, mode, steps)]
    return torch.cat(outputs)


def _scored(
    runner: ModelRunner, nodes: Tensor, chunks: Iterable[Tensor], task: Task, metrics: Kinds
) -> dict[str, float]:
    """Return the loss and metrics of ``nodes``, whose outputs come in chunks, in order."""
    labels = runner.labels.y
    assert labels is not None
    scores, start = Scores(task.to(torch.device("cpu")), metrics, torch.device("cpu")), 0
    for outputs in chunks:
        scores.update(outputs, labels.index_select(0, nodes[start : start + outputs.shape[0]]))
        start += outputs.shape[0]
    return scores.compute()


PAIRS = 1 << 16
"""Number of pairs that are scored at a time."""
_DRAWN_IN = MOST_EPOCHS - 1  # epoch of the negatives of every evaluation; no run gets there


def _scored_links(
    runner: LinkRunner,
    config: TrainConfig,
    positions: Tensor,
    rows: Tensor,
    *,
    task: Task,
    metrics: Kinds,
) -> dict[str, float]:
    """Return loss and metrics of the links at ``positions``, whose ends have the encoder's ``rows``.

    Loss and AUC compare each link with a pair of nodes that is no edge, the same in every evaluation. Ranks
    are those of both ends among all nodes, without other known links of the other end and the relation.
    """
    own, others = beside_negatives(runner, config, positions, rows)
    values = {LOSS: float(_loss(task, own, others))}
    hits = {name: k for name in metrics if (k := hits_of(name)) is not None}
    if AUC in metrics:
        values[AUC] = link_auc(own, others)
    if hits or MRR in metrics:
        ranking = ranking_of(runner, positions, rows)
        values |= {MRR: ranking.mrr} | {name: ranking.hits(k) for name, k in hits.items()}
    return {name: values[name] for name in (LOSS, *metrics)}


def _loss(task: Task, own: Tensor, others: Tensor) -> Tensor:
    if task.width > 1:
        return task.loss(torch.stack([own, others], 1), torch.zeros(own.numel(), dtype=torch.int64))
    labels = torch.cat([torch.ones_like(own), torch.zeros_like(others)])
    return task.loss(torch.cat([own, others]).unsqueeze(1), labels)


def beside_negatives(
    runner: LinkRunner, config: TrainConfig, positions: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the scores of the links, and of as many pairs that are no edges, each of its link's relation."""
    ends, relation = runner.labels.at(positions), runner.labels.relations_at(positions)
    key = rng.batch_key(config.seed, _DRAWN_IN, 0)
    heads, tails = runner.negatives_of_evaluation().draw(key, ends[0].numpy(), None)
    drawn = torch.stack([torch.from_numpy(heads), torch.from_numpy(tails)])
    place = runner.data.ends.places
    own, others = (pair_scores(runner, rows, place(pairs), relation) for pairs in (ends, drawn))
    return own, others


def pair_scores(runner: LinkRunner, rows: Tensor, pairs: Tensor, relation: Tensor | None) -> Tensor:
    """Return the scores of pairs of rows, ``(2, num_pairs)``, as ``(num_pairs,)`` float32."""
    found = [torch.empty(0)]
    for begin in range(0, pairs.shape[1], PAIRS):
        runner.check()
        part = slice(begin, begin + PAIRS)
        src, dst = (rows[ends].to(runner.device) for ends in pairs[:, part])
        found.append(runner.score_pairs(src, dst, None if relation is None else relation[part]))
    return torch.cat(found)


def scores_with_all(runner: LinkRunner, rows: Tensor, *, sources: bool = False) -> Callable[..., Tensor]:
    """Return a function that scores nodes with all destinations, or with all ``sources``, of their links.

    It takes ``(b,)`` int64 ids within their type, and relations if there are, and returns ``(b, num)``.
    ``rows`` are the encoder's, ``(num_nodes, channels)``. With ``sources``, destinations are given.
    """
    of_sources, of_destinations = (rows[part].to(runner.device) for part in runner.data.ends.rows)
    of_given, of_all = (of_destinations, of_sources) if sources else (of_sources, of_destinations)

    def score(given: Tensor, relation: Tensor | None = None) -> Tensor:
        runner.check()
        return runner.score_all(of_given[given.to(runner.device)], of_all, relation, sources=sources)

    return score


def ranking_of(runner: LinkRunner, positions: Tensor, rows: Tensor) -> Ranking:
    """Return the ranks of both ends of the links at ``positions`` among all nodes of their types."""
    links, ends = runner.labels, runner.data.ends
    ranked = links.at(positions)
    return rank_links(
        scores_with_all(runner, rows),
        ends.within(ranked),
        ends.counts[1],
        num_sources=ends.counts[0],
        relation=links.relations_at(positions),
        score_sources=scores_with_all(runner, rows, sources=True),
        known=ends.within(links.beside(ranked)),
        known_relation=links.relation,
    )
