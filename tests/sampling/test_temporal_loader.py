"""Temporal sampling: no seed sees its future, and `last` sees exactly the most recent."""

import pytest
import torch
from tests.beside_pyg import Data
from tests.sampling.test_pyg_cases import random_edges

from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import LinkNeighborLoader, NeighborLoader

NUM_NODES, NUM_EDGES = 60, 700


def make_data(dtype=torch.int64):
    generator = torch.Generator().manual_seed(0)
    return Data(
        edge_index=torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator),
        x=torch.arange(NUM_NODES).float().unsqueeze(1),
        time=torch.randint(20, (NUM_NODES,), generator=generator).to(dtype),
        edge_time=torch.randint(20, (NUM_EDGES,), generator=generator).to(dtype),
        edge_attr=torch.arange(NUM_EDGES),
        edge_weight=torch.rand(NUM_EDGES, generator=generator),
    )


def make(data=None, fanouts=(4, 3), **options):
    options = {"batch_size": 16, "seed": 0, **options}
    return NeighborLoader(make_data() if data is None else data, list(fanouts), **options)


def bits(batches):
    return [
        [batch[name].tolist() for name in ("n_id", "input_id", "edge_index", "e_id", "batch")]
        for batch in batches
    ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("fanouts", [(4, 3), (-1,)])
def test_edges_from_the_future_are_never_drawn(fanouts, strategy, dtype):
    data = make_data(dtype)
    times = torch.randint(20, (NUM_NODES,), generator=torch.Generator().manual_seed(1)).to(dtype)
    loader = make(data, fanouts, time_attr="edge_time", input_time=times, temporal_strategy=strategy)
    drawn = 0
    for batch in loader:
        assert torch.equal(batch.seed_time, times[batch.input_id])
        assert torch.equal(batch.edge_time, data.edge_time[batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        tree = batch.batch[batch.edge_index[1]]
        assert torch.equal(tree, batch.batch[batch.edge_index[0]])
        assert (batch.edge_time <= batch.seed_time[tree]).all()
        drawn += batch.num_edges
    assert drawn


def test_a_seed_later_than_all_edges_sees_all_of_them():
    """Links of a test period are such seeds: all come after the graph that they are predicted from."""
    data = make_data()
    batch = next(
        iter(
            make(
                data,
                (-1,),
                time_attr="edge_time",
                input_time=torch.full((NUM_NODES,), 10**9),
                batch_size=NUM_NODES,
            )
        )
    )
    assert batch.num_edges == NUM_EDGES


def test_times_of_two_kinds_compare():
    data = make_data()
    whole = bits(make(data, time_attr="edge_time", input_time=torch.full((NUM_NODES,), 7)))
    assert bits(make(data, time_attr="edge_time", input_time=torch.full((NUM_NODES,), 7.0))) == whole
    data.edge_time = data.edge_time.double() - 10.5  # negative ones, too
    assert bits(make(data, time_attr="edge_time", input_time=torch.full((NUM_NODES,), -3.5))) == whole


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"time_attr": "when"}, ConfigError, "time_attr='when' is neither an attribute of the nodes nor"),
        (
            {"time_attr": "edge_time"},
            ConfigError,
            "input_time must be given: time_attr names no times of nodes",
        ),
        ({"input_time": torch.zeros(NUM_NODES)}, ConfigError, "input_time needs time_attr"),
        (
            {"time_attr": "time", "input_time": torch.zeros(3)},
            DataError,
            "input_time must have a time for each of the 60 inputs; got 3",
        ),
        (
            {"time_attr": "time", "input_time": torch.full((NUM_NODES,), torch.nan)},
            DataError,
            r"input_time must be finite times; input_time\[0\] is nan",
        ),
        (
            {"time_attr": "edge_time", "input_time": torch.full((NUM_NODES,), -1)},
            ConfigError,
            "every time of input_time is earlier than every edge",
        ),
        (
            {"time_attr": "edge_time", "input_time": torch.full((NUM_NODES,), 1.5)},
            ConfigError,
            "input_time must be whole numbers",
        ),
        ({"time_attr": "x"}, ConfigError, "time_attr='x' is neither"),
        ({"temporal_strategy": "first"}, ConfigError, "temporal_strategy must be one of 'uniform', 'last'"),
        ({"temporal_strategy": torch.zeros(2)}, ConfigError, "temporal_strategy must be one of"),
        ({"time_attr": "time", "plan": "cpu"}, ConfigError, "leave out plan="),
        ({"disjoint": True, "plan": "cpu"}, ConfigError, "leave out plan="),
    ],
)
def test_what_makes_no_sense_is_refused_before_work(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


@pytest.mark.parametrize("name", ["time", "edge_time"])
def test_times_of_the_data_must_be_finite_and_one_each(name):
    data = make_data(torch.float32)
    data[name][4] = torch.nan
    with pytest.raises(DataError, match=rf"{name}\[4\] is nan"):
        make(data, time_attr=name, input_time=torch.zeros(NUM_NODES))
    data[name] = data[name].nan_to_num().unsqueeze(1)
    with pytest.raises(DataError, match=f"{name} must be one number each"):
        make(data, time_attr=name, input_time=torch.zeros(NUM_NODES))


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (torch.zeros(3), "edge_label_time must have a time for each of the 2 inputs; got 3"),
        (
            torch.tensor([1.0, torch.nan]),
            r"edge_label_time must be finite times; edge_label_time\[1\] is nan",
        ),
    ],
)
def test_times_of_links_must_be_finite_and_one_each(time, message):
    with pytest.raises(DataError, match=message):
        LinkNeighborLoader(
            make_data(), [2], torch.tensor([[0, 1], [1, 0]]), time_attr="time", edge_label_time=time
        )


@pytest.mark.parametrize("directed", [True])
@pytest.mark.parametrize("level", ["node", "edge"])
def test_pygs_case_of_temporal_sampling_of_one_seed(level, directed):
    """PyG's test_temporal_neighbor_loader_single_link and its edge-level twin: only the past is there."""
    data = Data(x=torch.arange(10), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    data.time, data.edge_time = torch.arange(10), torch.arange(4)
    options = {"time_attr": "time" if level == "node" else "edge_time", "directed": directed}
    loader = NeighborLoader(
        data, [-1, -1], torch.tensor([4, 3]), input_time=torch.tensor([2, 3]), batch_size=1, **options
    )
    alone, seen = list(loader)
    # Node 4 at time 2: its neighbour is node 3 by an edge of time 3, both from its future.
    assert alone.n_id.tolist() == [4]
    assert alone.num_edges == 0
    assert seen.n_id.tolist() == [3, 2, 1]


def test_pygs_case_of_random_times():
    """PyG's test_temporal_homo_neighbor_loader and test_edge_level_temporal_homo_neighbor_loader."""
    data = Data(x=torch.arange(100), edge_index=random_edges(100, 1000), time=torch.randint(50, (100,)))
    data.edge_time = torch.randint(50, (1000,))
    for name in ("time", "edge_time"):
        loader = NeighborLoader(
            data, [5, 5], input_time=data.time, time_attr=name, batch_size=1, disjoint=True
        )
        for batch in loader:
            assert batch.batch.tolist() == [0] * batch.num_nodes
            assert (batch[name][0 if name == "edge_time" else 1 :] <= batch.seed_time).all()
