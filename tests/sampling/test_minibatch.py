"""A MiniBatch moves as a tensor does: everything it holds, and everything that is made of it later."""

import dataclasses
import pickle

import pytest
import torch
from tests.graph.typed_cases import bibliography
from tests.sampling.graphs import power_law_csc
from tests.sampling.test_loader import make_graph

from graphbraid import Graph
from graphbraid.errors import ConfigError
from graphbraid.graph import SparseFeatures
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.sampling import source as source_module
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.rows.by_id import RowPart, TierCounts, TransferCounter, bytes_of
from graphbraid.sampling.source import BatchSource

LAYOUTS = ["subgraph", "blocks"]
BATCH_SIZE = 20


def make_source(**fields):
    graph = make_graph(weighted=True)
    nodes, edges = torch.arange(graph.num_nodes), torch.arange(graph.num_edges)
    return BatchSource(
        graph=graph.replace(edge_attr=torch.rand(graph.num_edges, 3), edge_id=edges.flip(0), **fields),
        node_attrs={"node": {"train_mask": nodes % 7 == 0}},
        edge_attrs={("node", "to", "node"): {"stamp": edges}},
        constants={"scale": torch.ones(2), "nested": [torch.ones(1), {"name": "graph"}]},
    )


def make_batch(layout="subgraph", **options):
    settings = LoaderSettings(
        num_neighbors=[4, 3], batch_size=BATCH_SIZE, layout=layout, src_degree=True, **options
    )
    return next(BatchLoader(make_source(), settings).batches(0))


def small_batch(source):
    return next(BatchLoader(source, LoaderSettings(num_neighbors=[3], batch_size=5)).batches(0))


def arrays_of(batch):
    """Every array that can be read of a batch, by name."""
    names = [*batch.keys(), "seed_y", "features"]
    found = {name: value for name in names if isinstance(value := batch[name], torch.Tensor)}
    for i, block in enumerate(batch.blocks):
        for name in ("indptr", "indices", "weight", "src_degree", "src_loop"):
            found[f"{name} of block {i}"] = getattr(block, name)
    return found | {"a constant's part": batch.nested[0]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("made_before", [False, True])
def test_what_was_made_and_what_is_made_later_are_on_the_device(layout, made_before):
    batch = make_batch(layout)
    if made_before:
        arrays_of(batch)
    moved = batch.to("meta", non_blocking=True)
    assert moved is not batch
    shapes = {name: (value.shape, value.dtype) for name, value in arrays_of(batch).items()}
    there = arrays_of(moved)
    assert {value.device.type for value in there.values()} == {"meta"}
    assert {name: (value.shape, value.dtype) for name, value in there.items()} == shapes
    assert {value.device.type for value in arrays_of(batch).values()} == {"cpu"}  # the first one stayed
    assert moved.to("meta") is moved
    assert (moved.num_nodes, moved.num_edges, moved.batch_size, moved.step) == (
        batch.num_nodes,
        batch.num_edges,
        BATCH_SIZE,
        0,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_apply_changes_each_tensor_it_holds_and_leaves_the_first_batch(layout):
    batch = make_batch(layout)
    _ = batch.y, batch.blocks, batch.edge_attr
    batch.mine, batch.pair = torch.ones(3), (torch.ones(2), "text")
    before = {name: value.clone() for name, value in arrays_of(batch).items()}
    seen = []

    def doubled(tensor):
        seen.append(tensor)
        return tensor * 2

    out = batch.apply(doubled)
    assert torch.equal(out.x, 2 * batch.x)
    assert torch.equal(out.y, 2 * batch.y)
    assert torch.equal(out.edge_attr, 2 * batch.edge_attr)
    assert torch.equal(out.blocks[0].weight, 2 * batch.blocks[0].weight)
    assert torch.equal(out.n_id, 2 * batch.n_id)
    assert torch.equal(out.mine, torch.full((3,), 2.0))
    assert torch.equal(out.pair[0], torch.full((2,), 2.0))
    assert out.pair[1] == "text"
    assert [id(t) for t in batch.tensors()] == [id(t) for t in seen]
    assert batch.travelling_bytes == sum(t.nbytes for t in seen)
    for name, value in arrays_of(batch).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_what_is_made_later_is_cut_from_the_graph_whatever_was_applied():
    batch = make_batch()
    out = batch.apply(torch.zeros_like)
    assert not out.n_id.any()
    assert torch.equal(out.y, batch.y)
    assert torch.equal(out.e_id, batch.e_id)
    assert torch.equal(out.edge_attr, batch.edge_attr)


def test_the_part_of_the_rows_that_travels_is_held_too():
    batch = make_batch(gather=False)
    part = RowPart(rows=torch.ones(2, 9), slots=torch.arange(batch.num_nodes).int(), first=5, generation=1)
    without = batch.travelling_bytes
    batch.send_part(part)
    assert batch.travelling_bytes == without + part.nbytes
    moved = batch.to("meta").row_part
    assert (moved.rows.device.type, moved.slots.device.type) == ("meta", "meta")
    assert (moved.first, moved.generation) == (5, 1)
    batch.send_whole()
    assert batch.row_part is None
    batch.send_part(part)
    batch.x = torch.zeros(batch.num_nodes, 9)  # rows that came another way
    assert batch.row_part is None


class Rows:
    """Feature rows that count what travels."""

    hot, in_memory, lookahead = None, None, 0

    def __init__(self, x):
        self.x, self.link, self.shape, self.dtype = x, TransferCounter(), x.shape, x.dtype

    def gather(self, ids, out=None, *, batch=-1):
        return self.x[ids]


def counting_batch(**options):
    """A batch of a source that counts what travels."""
    batch = make_batch(**options)
    source = dataclasses.replace(batch._source, rows=Rows(batch._source.graph.x))
    batch._source = source
    return batch, source.link


@pytest.mark.parametrize("name", ["x", "y", "seed_y", "edge_attr", "e_id", "edge_index"])
def test_what_a_moved_batch_brings_later_is_counted_by_its_kind(name):
    batch, link = counting_batch(gather=False)
    moved = batch.to("meta")
    assert link.counts == TierCounts()
    value = getattr(moved, name)
    assert value.device.type == "meta"
    counts, size = link.counts, value.nbytes
    if name == "edge_index":  # made of edges that are there
        size = 0
    kind = {"x": "link_row_bytes", "y": "link_label_bytes", "seed_y": "link_label_bytes"}.get(
        name, "link_list_bytes"
    )
    expected = TierCounts(**{kind: size})._replace(link_rows=batch.num_nodes if name == "x" else 0)
    assert counts == expected
    assert getattr(moved, name) is value
    assert link.counts == counts, "it travels once"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_and_degrees_of_blocks_are_counted_where_they_are_brought_later(layout):
    batch, link = counting_batch(layout=layout)
    brought = [values for block in batch.to("meta").blocks for values in (block.weight, block.src_degree)]
    brought += [block.src_loop for block in batch.blocks if block.src_loop is not None]
    assert link.counts == TierCounts(link_list_bytes=sum(values.nbytes for values in brought))


def test_a_batch_that_is_copied_counts_as_a_whole():
    batch, link = counting_batch(gather=False)
    labels, rows = batch.seed_y, batch.x
    link.add(bytes_of(batch))
    counts = link.counts
    assert (counts.link_rows, counts.link_row_bytes, counts.link_label_bytes) == (
        len(rows),
        rows.nbytes,
        labels.nbytes,
    )
    assert counts.link_row_bytes + counts.link_label_bytes + counts.link_list_bytes == batch.travelling_bytes
    part = RowPart(
        rows=torch.ones(2, 9), slots=torch.zeros(batch.num_nodes).int(), first=0, generation=0, ring_rows=3
    )
    batch = make_batch(gather=False)
    batch.send_part(part)
    assert bytes_of(batch).link_row_bytes == part.rows.nbytes
    assert bytes_of(batch).link_list_bytes == batch.travelling_bytes - part.rows.nbytes
    assert part.apply(torch.clone).ring_rows == 3


def test_what_a_device_reads_of_tables_on_the_host_is_counted(monkeypatch):
    monkeypatch.setattr(source_module, "is_read_over_link", lambda *_: True)
    batch, link = counting_batch(gather=False)
    assert batch.y.nbytes == link.counts.link_label_bytes
    assert batch.edge_attr.nbytes == link.counts.link_list_bytes


def test_a_source_that_counts_goes_to_another_process():
    _, link = counting_batch()
    link.add(TierCounts(link_list_bytes=5))
    assert pickle.loads(pickle.dumps(link)).counts == TierCounts()


def test_a_device_that_counts_its_lists_is_asked_for_them():
    link, read = TransferCounter(), [0]
    link.watch(lambda: read[0])
    link.add(TierCounts(link_list_bytes=5))
    read[0] = 7
    assert link.counts == TierCounts(link_list_bytes=12)


def test_pin_memory_copies_dense_tensors_on_the_cpu_and_leaves_the_others(monkeypatch):
    batch = make_batch()
    batch.sparse = torch.eye(3).to_sparse()
    batch.elsewhere = torch.ones(2, device="meta")
    if not torch.accelerator.is_available():
        with pytest.raises(ConfigError, match=r"pin_memory\(\) needs an accelerator"):
            batch.pin_memory()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    pinned = batch.pin_memory()
    for ours, theirs in zip(pinned.tensors(), batch.tensors(), strict=True):
        is_left = theirs is batch.sparse or theirs is batch.elsewhere
        assert (ours is theirs) == is_left
        assert is_left or torch.equal(ours, theirs)


class Recorded(torch.Tensor):
    """A tensor on a device that notes which streams read it."""

    @property
    def is_cuda(self):
        return True

    def record_stream(self, stream):
        self.streams = [*getattr(self, "streams", []), stream]


def test_record_stream_reaches_every_tensor_on_a_device_and_no_other():
    batch = make_batch()
    _ = batch.blocks
    on_device = batch.apply(lambda t: t.as_subclass(Recorded))
    on_device.plain = torch.ones(1)
    on_device.record_stream("the compute stream")
    held = on_device.tensors()
    assert len(held) > 10
    assert {tuple(getattr(t, "streams", ())) for t in held if t is not on_device.plain} == {
        ("the compute stream",)
    }


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_goes_to_a_device_from_pinned_memory_on_a_stream_of_its_own():
    device = torch.device("cuda")
    batch = make_batch()
    _ = batch.seed_y
    pinned = batch.pin_memory()
    assert all(t.is_pinned() for t in pinned.tensors())
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        moved = pinned.to(device, non_blocking=True)
    stream.synchronize()
    moved.record_stream(torch.cuda.current_stream(device))
    here = arrays_of(batch)
    for name, value in arrays_of(moved).items():
        assert value.is_cuda, name
        assert torch.equal(value.cpu(), here[name]), name


def test_bad_devices_are_refused():
    batch = make_batch()
    with pytest.raises(ConfigError, match="device"):
        batch.to("gpu")
    with pytest.raises(ConfigError, match="non_blocking"):
        batch.to("meta", non_blocking="yes")


def test_x_y_and_edge_index_may_be_set_and_what_follows_from_them_follows():
    batch = make_batch()
    x, y = torch.rand(batch.num_nodes, 2), torch.arange(batch.num_nodes)
    batch.x, batch.y, batch.edge_index = x, y, batch.edge_index.flip(0)
    assert batch.features is batch.x is x
    assert torch.equal(batch.seed_y, y[:BATCH_SIZE])
    assert batch.num_features == 2
    plain = small_batch(Graph(csc=power_law_csc(50, 300)))
    assert "x" not in plain
    plain.x = torch.ones(plain.num_nodes, 4)
    assert "x" in plain
    assert "x" in plain.to("meta")


def test_sparse_features_stay_on_the_cpu_and_their_dense_rows_move():
    graph = make_graph(features="sparse")
    batch = small_batch(graph)
    rows = batch.features
    assert isinstance(rows, SparseFeatures)
    moved = batch.to("meta")
    assert moved.features is rows
    assert moved.x.device.type == "meta"


class MadeOnce:
    """A matrix that is no tensor, as torch_sparse's."""

    def __init__(self, row, **_):
        self.row = row


def test_an_adj_t_that_is_no_tensor_is_made_anew_where_the_batch_is():
    source = BatchSource(graph=make_graph(), names=("adj_t",), adj_t=MadeOnce(torch.ones(1)))
    batch: MiniBatch = small_batch(source)
    assert batch.adj_t.row.device.type == "cpu"
    assert batch.to("meta").adj_t.row.device.type == "meta"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_a_graph_with_types_moves_and_is_pickled_as_any_other(layout):
    options = {"num_neighbors": [3, 2], "input_nodes": "paper", "batch_size": 8, "layout": layout}
    batch = next(BatchLoader(bibliography(weighted=True), LoaderSettings(**options)).batches(0))

    def arrays(of):
        found = {
            (name, one): rows
            for name in (*of.lazy_keys(), "n_id_dict")
            if name.endswith("_dict")
            for one, rows in of[name].items()
            if isinstance(rows, torch.Tensor)
        }
        for hop, relations in enumerate(of.blocks):
            found |= {(hop, one, "indptr"): csc.indptr for one, csc in relations.items()}
            found |= {(hop, one, "weight"): c.weight for one, c in relations.items() if c.weight is not None}
        return found | {"seed_y": of.seed_y}

    moved = arrays(batch.to("meta"))
    here, again = arrays(batch), arrays(pickle.loads(pickle.dumps(batch)))
    assert moved.keys() == here.keys() == again.keys()
    assert {rows.device.type for rows in moved.values()} == {"meta"}
    assert all(torch.equal(rows, again[key]) for key, rows in here.items())
    for name in ("x", "y", "e_id", "n_id"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; it has .*x_dict"):
            getattr(batch, name)
