"""The loader's face: what torch's DataLoader and PyG's NeighborLoader have, and who replaces its sampler."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.data import _update_dataloader
from tests.beside_pyg import torch_geometric
from tests.sampling.test_loader import NUM_NODES, digest, make_data, make_graph
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch_geometric.loader import CachedLoader, ImbalancedSampler
from torch_geometric.sampler.base import NumNeighbors

from graphbraid.errors import ConfigError
from graphbraid.loader import LinkNeighborLoader, NeighborLoader


def make(data=None, fanouts=(4, 3), **options):
    return NeighborLoader(make_data() if data is None else data, list(fanouts), **{"seed": 0, **options})


def seeds_of(batches):
    return torch.cat([batch.n_id[: batch.batch_size] for batch in batches])


def test_it_is_a_torch_and_a_pyg_loader():
    data = make_data()
    loader = make(data, batch_size=50, input_nodes=data.train_mask, drop_last=True, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert type(loader).__name__ == "NeighborLoader"
    assert str(loader) == "NeighborLoader()"
    assert loader.data is data
    assert len(loader.dataset) == int(data.train_mask.sum())
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.seed) == (50, True, 2, 0)
    assert loader.node_sampler.num_neighbors == [4, 3]
    assert loader.input_nodes is data.train_mask
    assert len(loader) == len(list(loader)) == len(loader.dataset) // 50
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(make(shuffle=True).sampler, RandomSampler)
    assert isinstance(loader.batch_sampler, BatchSampler)


def test_a_subclass_of_the_users_is_one_of_both():
    class Mine(NeighborLoader):
        pass

    loader = Mine(make_data(), [3], batch_size=300, seed=0)
    assert isinstance(loader, DataLoader)
    assert str(loader) == "Mine()"
    assert len(list(loader)) == 3


@pytest.mark.parametrize("index", [[0], [3, 1, 2], torch.tensor([5, 5]), np.array([7]), range(4), []])
def test_calling_it_with_positions_gives_their_batch(index):
    data = make_data()
    loader = make(data, input_nodes=torch.arange(100, 200))
    batch = loader(index)
    assert torch.equal(batch.input_id, torch.as_tensor(list(index), dtype=torch.int64))
    assert torch.equal(batch.n_id[: len(index)], batch.input_id + 100)
    assert batch.batch_size == len(index)
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert loader.collate_fn(index).batch_size == len(index)


def test_calls_draw_anew_and_repeat_with_the_seed():
    first, again = make(fanouts=(2, 2)), make(fanouts=(2, 2))
    drawn = [first(range(50)) for _ in range(2)]
    assert not torch.equal(drawn[0].n_id, drawn[1].n_id)
    assert all(torch.equal(batch.n_id, again(range(50)).n_id) for batch in drawn)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([800], r"\[0\] is 800"),
        ([-1], r"\[0\] is -1"),
        ([0.5], "1-d tensor of ids"),
        (3, "1-d tensor of ids"),
    ],
)
def test_positions_that_are_none_are_named(index, message):
    with pytest.raises(ConfigError, match=message):
        make()(index)


def test_torchs_own_loader_may_run_it():
    loader = make(batch_size=50)
    around = DataLoader(loader.dataset, batch_size=50, collate_fn=loader.collate_fn)
    assert torch.equal(seeds_of(around), seeds_of(loader))


class Batches:
    """Lists of positions of unequal length."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        ids = iter(range(sum(self.sizes)))
        return iter([list(itertools.islice(ids, size)) for size in self.sizes])

    def __len__(self):
        return len(self.sizes)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sampler_in_the_loaders_order_gives_its_bits(workers):
    expected = digest(make(batch_size=30).batches(0))
    positions = range(NUM_NODES)
    by_sampler = make(batch_size=30, sampler=SequentialSampler(positions), num_workers=workers)
    by_list = make(batch_size=30, sampler=list(positions), num_workers=workers)
    batches = BatchSampler(SequentialSampler(positions), 30, drop_last=False)
    by_batches = make(batch_sampler=batches, num_workers=workers)
    assert digest(by_sampler) == digest(by_list) == digest(by_batches) == expected
    assert len(by_sampler) == len(by_list) == len(by_batches) == 27
    shuffled = make(batch_size=30, shuffle=True)
    order = seeds_of(shuffled.batches(0)).tolist()
    assert digest(make(batch_size=30, sampler=order)) == digest(shuffled.batches(0))


def test_batches_of_any_lengths_also_without_end():
    loader = make(batch_sampler=Batches([3, 1, 0, 40, 7]))
    assert [batch.batch_size for batch in loader] == [3, 1, 0, 40, 7]
    assert torch.equal(seeds_of(loader), torch.arange(51))
    endless = make(batch_size=10, sampler=itertools.count())
    assert torch.equal(seeds_of(itertools.islice(endless, 5)), torch.arange(50))


def test_generators_govern_samplers_and_the_seed():
    def loader(number):
        generator = torch.Generator().manual_seed(number)
        order = RandomSampler(range(NUM_NODES), generator=generator)
        return make(batch_size=100, sampler=order, generator=generator, seed=None)

    first, same, other = loader(1), loader(1), loader(2)
    assert first.seed == same.seed != other.seed
    assert digest(first) == digest(same) != digest(other)


def test_an_imbalanced_sampler_balances_the_classes():
    data = make_data()
    data.y = (torch.arange(NUM_NODES) % 20 == 0).long()  # one in 20
    torch.manual_seed(0)
    nodes = torch.arange(0, NUM_NODES, 2)
    loader = make(data, input_nodes=nodes, batch_size=50, sampler=ImbalancedSampler(data, input_nodes=nodes))
    assert len(loader) == 8
    drawn = [torch.cat([batch.y[: batch.batch_size] for batch in loader]) for _ in range(2)]
    assert all(0.4 < y.float().mean() < 0.6 for y in drawn)
    assert not torch.equal(*drawn)  # each epoch is the sampler's next


def test_options_that_exclude_each_other_are_refused():
    sampler = SequentialSampler(range(NUM_NODES))
    for options, message in [
        ({"sampler": sampler, "shuffle": True}, "mutually exclusive"),
        ({"batch_sampler": Batches([1]), "batch_size": 3}, "mutually exclusive"),
        ({"sampler": sampler, "plan": "cpu"}, "leave out plan= or the sampler"),
        ({"batch_size": None}, "batch_size must be a whole number in .*got None"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make(**options)
    with pytest.raises(ConfigError, match="a sampler decides the order"):
        make(sampler=sampler).batches(3)
    with pytest.raises(ConfigError, match="leave out plan="):
        make(plan="cpu")([0])


def test_an_order_that_leaves_the_seeds_is_named():
    with pytest.raises(ConfigError, match=r"positions in input_nodes\[2\] is 900"):
        next(iter(make(batch_size=5, sampler=[0, 1, 900])))


@pytest.mark.parametrize(
    "fanouts",
    [NumNeighbors([4, 3]), np.array([4, 3]), torch.tensor([4, 3]), (np.int64(4), torch.tensor(3)), (4, 3)],
)
def test_fanouts_of_every_kind(fanouts):
    loader = NeighborLoader(make_data(), fanouts, batch_size=30, seed=0)
    assert digest(loader.batches(0)) == digest(make(batch_size=30).batches(0))
    assert all(type(fanout) is int for fanout in loader.node_sampler.fanouts)


@pytest.mark.parametrize("nodes", [[], torch.zeros(NUM_NODES, dtype=torch.bool), torch.empty(0)])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True, "batch_size": 5}])
def test_no_seeds_are_no_batches(nodes, options):
    loader = make(input_nodes=nodes, **options)
    assert (len(loader), list(loader), len(loader.dataset)) == (0, [], 0)


def test_ids_of_the_caller_stand_for_positions():
    ids = torch.arange(100) * 3
    loader = make(input_nodes=torch.arange(100), input_id=ids, batch_size=30, shuffle=True)
    for batch in loader:
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size] * 3)
    with pytest.raises(ConfigError, match=r"an entry per seed, shape \(100,\); got \(5,\)"):
        make(input_nodes=torch.arange(100), input_id=torch.arange(5))


def test_page_locked_memory_where_there_is_a_device():
    loader = make(batch_size=400, pin_memory=True)
    if not torch.accelerator.is_available():
        with pytest.warns(UserWarning, match="pin_memory=True has no effect without an accelerator"):
            batch = next(iter(loader))
        assert batch.x is not None
        return
    batch = next(iter(loader))
    assert all(value.is_pinned() for _, value in batch if isinstance(value, torch.Tensor))


@pytest.mark.parametrize(
    "change",
    [
        lambda loader: loader,
        lambda loader: pickle.loads(pickle.dumps(loader)),
        lambda loader: NeighborLoader(loader.data, [4, 3], batch_size=30, shuffle=True, seed=loader.seed),
    ],
)
def test_a_pickled_loader_goes_on_where_it_stood(change):
    loader = make(batch_size=30, shuffle=True, seed=None)
    list(loader)
    copied = change(loader)
    assert digest(copied.batches(1)) == digest(loader.batches(1))
    if copied is not loader and copied.epoch:
        assert copied.epoch == 1
        assert isinstance(copied, torch_geometric.loader.NeighborLoader)


def test_layer_wise_inference_of_pygs_models():
    data = make_data()
    model = torch_geometric.nn.GraphSAGE(9, 16, num_layers=2, out_channels=5).eval()
    for options in ({}, {"cache": True}):
        loader = make(data, fanouts=[-1], batch_size=100)
        out = model.inference(loader, **options)
        torch.testing.assert_close(out, model(data.x, data.edge_index), rtol=1e-4, atol=1e-5)
    assert len(list(CachedLoader(make(data, batch_size=400)))) == 2


@pytest.mark.parametrize("size", [30, 31])
def test_a_distributed_sampler_put_in_by_lightning_shares_the_seeds_out(size):
    data = make_data()
    loader = NeighborLoader(
        data,
        [4, 3],
        data.train_mask,
        batch_size=size,
        shuffle=True,
        num_workers=2,
        transform=with_mark,
        seed=3,
    )
    parts = []
    for rank in range(2):
        sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=rank, shuffle=True, seed=1)
        part = _update_dataloader(loader, sampler)
        assert type(part) is type(loader)
        assert part.sampler is sampler
        assert (part.batch_size, part.num_workers, part.seed, part.data) == (size, 2, 3, data)
        assert len(part) == len(sampler) // size + bool(len(sampler) % size)
        part.sampler.set_epoch(1)
        batches = list(part)
        assert all(batch.mark == "seen" for batch in batches)
        parts.append(seeds_of(batches))
    assert sorted(set(torch.cat(parts).tolist())) == data.train_mask.nonzero().flatten().tolist()
    assert len(parts[0]) == len(parts[1])


def with_mark(batch):
    batch.mark = "seen"
    return batch


def test_what_is_about_worker_processes_is_refused_with_what_to_do():
    loader = make()
    for call, message in [
        (lambda: loader.enable_cpu_affinity([0]), "taskset"),
        (lambda: loader.enable_multithreading(2), "num_workers is the number of threads"),
        (loader.enable_memory_log, "threads share the process's memory"),
        (lambda: loader.filter_fn(None), "makes complete batches"),
    ]:
        with pytest.raises(ConfigError, match=message):
            call()


def test_weighted_sampling_of_torch_works_as_a_sampler():
    weights = torch.zeros(NUM_NODES)
    weights[100:110] = 1
    drawn = seeds_of(make(batch_size=20, sampler=WeightedRandomSampler(weights, 60)))
    assert drawn.numel() == 60
    assert set(drawn.tolist()) <= set(range(100, 110))


def test_a_graphs_loader_has_the_same_face():
    graph = make_graph()
    loader = NeighborLoader(graph, [4], "train", batch_size=30, seed=0)
    assert loader.data is loader.graph is graph
    assert isinstance(loader, torch_geometric.loader.NeighborLoader)
    assert torch.equal(seeds_of(loader), graph.splits["train"])


def test_numbers_of_numpy_are_numbers():
    data, i, yes = make_data(), np.int64, np.bool_(True)
    options = {
        "batch_size": i(9),
        "drop_last": yes,
        "shuffle": i(1),
        "num_workers": i(1),
        "seed": np.uint32(2),
    }
    given = {"batch_size": 9, "drop_last": True, "shuffle": True, "num_workers": 1, "seed": 2}
    one = next(iter(NeighborLoader(data, [i(3), np.int32(2)], **options)))
    assert torch.equal(one.n_id, next(iter(NeighborLoader(data, [3, 2], **given))).n_id)
    links = LinkNeighborLoader(data, [3], exclude_seed_edges=yes, neg_sampling_ratio=np.float32(1), seed=i(0))
    assert next(iter(links)).edge_label.tolist() == [1, 0]


def test_each_public_name_of_pygs_loaders_is_here():
    torch_geometric = pytest.importorskip("torch_geometric")
    here: dict[str, object] = {}
    exec("from graphbraid.loader import *", here)
    ours = {"ClusterData", "ClusterLoader", "HGTLoader", "LinkNeighborLoader", "NeighborLoader"}
    ours.add("ShaDowKHopSampler")
    for name in torch_geometric.loader.__all__:
        kind = getattr(torch_geometric.loader, name)
        assert (here[name] is kind) is (name not in ours), name
    with pytest.raises(ImportError, match="cannot import name 'Unheard'"):
        from graphbraid.loader import Unheard  # noqa: F401
