"""Several ranks learn what one does, from the same mini-batches."""

import functools
from types import SimpleNamespace

import pytest
import torch
from tests.distributed import same_learning, training
from tests.distributed.ranks import assert_learned_alike, run
from tests.distributed.threads import run_threads
from tests.suites import few_of
from tests.train import linked_communities, linked_times
from tests.train.communities import community_graph
from tests.train.typed_communities import bibliography

from graphbraid.errors import ConfigError
from graphbraid.estimates import choose as choosing
from graphbraid.estimates.choose import TrainerInputs, choose, with_plan_of_device
from graphbraid.features import TieredFeatures
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling.config import part_of
from graphbraid.train import TrainConfig
from graphbraid.train.option_checks import fitted
from graphbraid.train.run.ranks import RunRanks
from graphbraid.train.runtime import SignalGuard

pytestmark = pytest.mark.distributed
EQUAL = [*training.CASES, "missing cells", "graphs", "edges", "all neighbours, as a model of PyG", "dropout"]
SIZES = (2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.slow))
"""Of 4 ranks one may have no seed."""


@pytest.fixture(scope="module")
def results():
    """What so many ranks have learned, as results(2): one job for each number of them that is asked for."""
    return functools.cache(lambda size: run(size, training.every_case))


@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("size", SIZES)
def test_losses_and_scores_are_those_of_one_rank(size, case, results):
    alone = results(1)[0].result[case]
    for said in results(size):
        assert_learned_alike(said.result[case], alone)


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_hold_the_same_weights_to_the_bit(size, results):
    first, *others = (said.result for said in results(size))
    for other in others:
        assert other == first


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    whole = run(2, training.with_checkpoints, tmp_path / "whole", 3, "new")[0].result
    run(2, training.with_checkpoints, tmp_path / "parts", 1, "new")
    again = [said.result for said in run(2, training.with_checkpoints, tmp_path / "parts", 3, "resume")]
    assert again[0]["losses"] == whole["losses"][7:]  # to the bit, with dropout, as with the same ranks
    assert again[0]["weights"] == again[1]["weights"] == whole["weights"]
    assert again[0]["history"] == whole["history"]
    more = [said.result for said in run(3, training.with_checkpoints, tmp_path / "parts", 4, "resume")]
    assert len(more[2]["losses"]) == 7
    longer = run(2, training.with_checkpoints, tmp_path / "longer", 4, "new")[0].result
    assert more[0]["losses"] == pytest.approx(longer["losses"][21:], rel=1e-4)  # with dropout
    assert more[0] == more[1] == more[2]
    one = run(1, training.with_checkpoints, tmp_path / "parts", 5, "resume")[0].result
    assert len(one["losses"]) == 7
    assert len(one["history"]) == 5
    assert not (tmp_path / "parts-not-there").exists()


@pytest.mark.parametrize("size", [2, 3])
def test_the_ranks_samples_are_those_of_the_whole_batch(size):
    """Each destination's sources in a rank's blocks are those that it has in the whole batch's."""
    graph = community_graph()
    settings = {
        "num_neighbors": [4, 3],
        "batch_size": 32,
        "input_nodes": graph.splits["train"],
        "shuffle": True,
    }
    with BatchLoader(graph, LoaderSettings(layout="blocks", seed=3, **settings)) as loader:
        [whole] = loader.batches(1, 2, 3)
        drawn = [_sources(whole, layer) for layer in range(2)]
        covered: list[set[int]] = [set(), set()]
        for rank in range(size):
            begin, end = part_of(32, rank, size)
            [part] = loader.batches_of([loader.schedule.positions_of(1, 2)[begin:end]], 1, 2)
            for layer in range(2):
                own = _sources(part, layer)
                covered[layer] |= set(own)
                for node, sources in own.items():
                    assert sources == drawn[layer][node]
        assert covered == [set(layer) for layer in drawn]


def _sources(batch, layer):
    block = batch.blocks[layer]
    ends = block.indptr.tolist()
    names = batch.n_id[block.indices.long()].tolist()
    return {int(batch.n_id[v]): names[ends[v] : ends[v + 1]] for v in range(len(ends) - 1)}


def test_a_rank_on_a_cuda_device_beside_one_on_the_cpu_is_told_so():
    graph = training.graph_of()
    config = TrainConfig(**training.BASE)

    def check(comm):
        device = torch.device("cuda" if comm.rank == 1 else "cpu")
        runner = SimpleNamespace(device=device, model=training.make("sage", graph))
        trainer = SimpleNamespace(config=config, runner=runner)
        RunRanks(trainer, comm, SignalGuard()).check_same_run()

    with pytest.raises(ConfigError, match="rank 0 has a model on 'cpu', rank 1 has 'cuda'; ranks add up"):
        run_threads(2, check)


@pytest.mark.parametrize("given", ["option", "tiers"])
@pytest.mark.parametrize("mode", ["sampled", "auto"])
def test_several_ranks_keep_rows_on_a_device_by_a_plan(given, mode):
    graph = training.graph_of()
    hot = {"hot": 4096} if given == "option" else {}
    tiers = TieredFeatures.build(graph, hot=4096) if given == "tiers" else None
    config = TrainConfig(**training.BASE | hot | {"mode": mode})
    passed = TrainerInputs(tiers=tiers, topology=None, accelerator=None)
    comm = SimpleNamespace(rank=1, size=2)
    chosen = choose(training.make("sage", graph), graph, config, passed, comm)
    assert chosen.config.mode == "sampled"
    assert with_plan_of_device(chosen.config, passed, torch.device("cuda"), 2).plan == "auto"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_plan_without_a_device_is_refused_by_several_ranks(num_ranks):
    config = TrainConfig(**training.BASE, plan="cpu")
    passed = TrainerInputs(tiers=None, topology=None, accelerator=None)
    if num_ranks == 1:
        assert with_plan_of_device(config, passed, torch.device("cpu"), num_ranks) == config
        return
    with pytest.raises(ConfigError, match="without a device divides the cores of one rank, and the 2 ranks"):
        with_plan_of_device(config, passed, torch.device("cpu"), num_ranks)


@pytest.mark.parametrize(
    ("others", "part"), [((), 1), (("card 0",), 2), (("card 1",), 1), (("card 0",) * 3, 4)]
)
def test_tiers_auto_of_ranks_divide_the_memory_of_a_device_that_they_share(others, part, monkeypatch):
    graph, memory = training.graph_of(), DeviceMemory(free_bytes=1 << 30, link_bytes_per_second=1e9)
    asked = []

    def with_sizes(model, graph, config, memory, share):
        asked.append((memory, share))
        return config.updated(tiers=None, host=1 << 20), "said", None

    def gather(own):
        return [own, *([own[0], own[1], name, own[3]] for name in others)]

    size = 1 + len(others)
    comm = SimpleNamespace(rank=0, size=size, gather=gather) if others else None
    monkeypatch.setattr(choosing, "device_memory", lambda *_: memory)
    monkeypatch.setattr(choosing, "memory_name", lambda *_: "card 0")
    monkeypatch.setattr(choosing, "_with_sizes", with_sizes)
    config = TrainConfig(**training.BASE, tiers="auto")
    passed = TrainerInputs(tiers=None, topology=None, accelerator=None)
    choose(training.make("sage", graph), graph, config, passed, comm)
    [(given, share)] = asked
    assert given.device.free_bytes == (1 << 30) // part
    assert (share.rank, share.num_ranks) == (0, size)
    assert (f"{part} ranks use one device" in given.reason) == (part > 1)


@pytest.mark.parametrize(
    ("what", "says"),
    few_of(
        (
            ("seed", "rank 0 has seed 0, rank 1 has 1; start all ranks with the same options."),
            ("lr", "rank 0 has lr 0.01, rank 1 has 0.02"),
            ("mode", "rank 0 has mode 'sampled', rank 1 has 'full'"),
            ("graph", "rank 0 has graph's array"),
            ("model", "rank 0 has model's shapes"),
            ("dropout", "rank 0 has model's dropout '0.1', rank 1 has '0.5'; build the same model"),
            ("fanouts", "rank 0 has fanouts [3, 3], rank 1 has [3, 2]"),
            ("batch", "batch_size=1 is the number of seeds of all ranks together, and there are 2 ranks"),
            ("precision", "cannot train the whole graph together: precision bfloat16 runs under autocast"),
            ("plan", "plan='cpu' without a device divides the cores of one rank"),
            (
                "few nodes",
                "plan='auto' needs batches to prepare on each rank, and 1 training nodes are fewer",
            ),
        ),
        {"dropout", "graph"},
    ),
)
def test_ranks_that_differ_are_told_so_before_the_first_step(what, says):
    for said in run(2, training.misled, what):
        assert said.code == 2, said.stderr
        assert says in said.stderr


def test_a_dropout_that_runs_as_written_is_told_of():
    [first, *_] = run(2, same_learning.warnings_of, "as written")
    assert "PyTorch draws random numbers for the model" in first.result
    assert not run(2, same_learning.warnings_of, "compiled")[0].result


def test_what_shares_cannot_give_is_refused_and_the_rest_learns_the_same():
    alone = run(1, same_learning.coupling)[0].result  # which one rank takes
    for said in run(2, same_learning.coupling):
        for name, found in said.result.items():
            if name in ("layer", "repeated, hops=5"):
                assert found == pytest.approx(alone[name], rel=1e-6)
            else:
                assert found.startswith("several ranks cannot train this model on shares of a batch"), name


def test_what_ranks_cannot_share_of_links_and_types_is_refused():
    options = {"task": "link", "temporal_strategy": "last", "layout": "blocks"}
    graph = linked_times.meetings()
    with pytest.raises(ConfigError, match="several ranks share batches of layout='subgraph' alone"):
        fitted(TrainConfig(**options), linked_communities.sage(graph), graph, {}, 2)
    with pytest.raises(ConfigError, match="2 ranks do not divide a graph with types so far"):
        fitted(TrainConfig(mode="full"), torch.nn.Identity(), bibliography(), {}, 2)
