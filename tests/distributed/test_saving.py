"""A partition's folder: the same parts again, damage found, other graphs and other folders refused."""

import dataclasses
import json
import shutil

import pytest
import torch
from tests.distributed.threads import run_threads

from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.store.arrays import ArrayParts, write_array
from graphbraid.distributed import SavedPartition, is_partition, partition, save_partition, split
from graphbraid.distributed.parts.saving import PART, PARTITION
from graphbraid.errors import DataError, ResourceError
from graphbraid.features import reorder
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.fullgraph import Ranks


@pytest.fixture
def graph():
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 400), generator=draw)
    return Graph.from_edge_index(edges, 64, edge_weight=torch.rand(400, generator=draw))


@pytest.fixture
def saved(graph, tmp_path):
    save_partition(graph, partition(graph, 3, strategy="streaming"), tmp_path / "p", options={"seed": 3})
    return tmp_path / "p"


def assert_same_part(found, expected):
    for field in dataclasses.fields(expected):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs), field.name
            assert ours.dtype == theirs.dtype
        elif field.name in ("local", "remote"):
            assert torch.equal(ours.indptr, theirs.indptr)
            assert torch.equal(ours.indices, theirs.indices)
            assert torch.equal(ours.weight, theirs.weight)
            assert ours.num_src == theirs.num_src
        else:
            assert ours == theirs


@pytest.mark.parametrize("keep_edges", [False, True])
def test_parts_are_read_as_they_were_cut(graph, tmp_path, keep_edges):
    chosen = partition(graph, 5)
    report = save_partition(graph, chosen, tmp_path / "p", keep_edges=keep_edges)
    opened = SavedPartition(tmp_path / "p", graph)
    assert opened.report == report
    assert opened.num_parts == 5
    again = opened.partition()
    assert torch.equal(again.part_of, chosen.part_of)
    assert (again.strategy, again.balance, again.attempts) == (
        chosen.strategy,
        chosen.balance,
        chosen.attempts,
    )
    for expected in split(graph, chosen, keep_edges=keep_edges):
        assert_same_part(opened.part(expected.part), expected)


def test_options_are_noted_and_a_rank_needs_no_graph(saved):
    assert SavedPartition(saved).options == {"seed": 3}
    assert is_partition(saved)


def test_ids_of_the_other_width_are_the_same_graph(graph, saved):
    from graphbraid.graph.csc import Csc

    csc = graph.csc
    SavedPartition(saved, Csc(csc.indptr, csc.indices.long(), csc.num_src, csc.weight))


def changed(graph, **edits):
    csc = graph.csc
    arrays = {"indptr": csc.indptr, "indices": csc.indices.clone(), "weight": csc.weight.clone()} | edits
    if "swap" in edits:
        arrays["indices"][-1] = (arrays["indices"][-1] + 1) % 64
    from graphbraid.graph.csc import Csc

    return Csc(arrays["indptr"], arrays["indices"], 64, arrays["weight"])


def test_another_graph_is_refused(graph, saved):
    with pytest.raises(DataError, match="its num_edges was 400, this graph's is 401"):
        edges = torch.cat([graph.to_edge_index(), torch.tensor([[1], [2]])], 1)
        SavedPartition(saved, Graph.from_edge_index(edges, 64))
    for other in (
        changed(graph, swap=True),
        changed(graph, weight=None),
        changed(graph, weight=torch.ones(400)),
    ):
        with pytest.raises(DataError, match="of the same size, but its edges or their weights differ"):
            SavedPartition(saved, other)


@pytest.mark.parametrize("name", ["part_of.npy", "part-00001/send.npy", "part-00001/local_indices.npy"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_named(saved, name, damage):
    path = saved / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[-1] ^= 1
        path.write_bytes(data if damage == "flip" else data[:-4])
    says = {
        "flip": "has changed since it was written.*partition again",
        "cut": "is truncated.*partition again",
        "remove": "of the partition cannot be read.*partition the graph again",
    }[damage]
    opened = SavedPartition(saved)
    with pytest.raises(DataError, match=f"{path.name} {says}"):
        opened.partition() if name == "part_of.npy" else opened.part(1)
    if name != "part_of.npy":  # by which all parts are checked
        opened.part(0)


def test_a_changed_manifest_is_refused(saved):
    path = saved / PARTITION.manifest
    text = path.read_text()
    path.write_text(text.replace('"num_parts": 3', '"num_parts": 4'))
    with pytest.raises(DataError, match=r"partition\.json has changed since it was written"):
        SavedPartition(saved)
    values = unsealed(json.loads(text), path)
    for edit, says in (
        ({"version": 9}, "has partition version 9; this graphbraid reads version 2"),
        ({"format": "x"}, 'does not say "format": "graphbraid-partition"'),
        ({"report": {}}, "partition.json: report: num_nodes: Field required; partition again"),
        ({"graph": 3}, "partition.json cannot be understood: graph"),
    ):
        path.write_text(json.dumps(sealed(values | edit)))
        with pytest.raises(DataError, match=says):
            SavedPartition(saved)


def test_parts_of_two_partitions_do_not_mix(graph, saved, tmp_path):
    save_partition(graph, partition(graph, 3, strategy="random"), tmp_path / "other")
    shutil.rmtree(saved / "part-00002")
    shutil.copytree(tmp_path / "other" / "part-00002", saved / "part-00002")
    with pytest.raises(DataError, match="part-00002 is part 2 of another partition"):
        SavedPartition(saved).part(2)
    shutil.rmtree(saved / "part-00000")
    shutil.copytree(saved / "part-00001", saved / "part-00000")
    with pytest.raises(DataError, match="part-00000 is part 1 of another partition"):
        SavedPartition(saved).part(0)


def test_folders_are_kept_unless_told_otherwise(graph, saved, tmp_path):
    chosen = partition(graph, 2)
    save_partition(graph, chosen, saved, if_exists="replace")
    assert SavedPartition(saved).num_parts == 2
    assert not (saved / "part-00002").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ResourceError, match="is not a graphbraid partition, so it is not replaced"):
        save_partition(graph, chosen, tmp_path / "mine", if_exists="replace")
    with pytest.raises(DataError, match="is not a graphbraid partition: no such folder"):
        SavedPartition(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"is not a graphbraid partition: it has no partition\.json"):
        SavedPartition(tmp_path / "mine")


# ---- lists that were changed together with their checksums


def rewritten(folder, part, **arrays):
    """Write other arrays into a part, with the checksums that belong to them."""
    place = folder / f"part-{part:05}"
    manifest = unsealed(json.loads((place / "part.json").read_text()), place)
    for name, values in arrays.items():
        manifest["arrays"][name] = write_array(place / f"{name}.npy", ArrayParts.whole(values))
    PART.write(place, manifest)


def exchanged(values, first, second):
    values = values.clone()
    values[[first, second]] = values[[second, first]]
    return values


LISTS = {
    "owned, out of range": (lambda p: {"owned": p.owned + 64}, "owned must be the nodes of part 1"),
    "owned, of another": (lambda p: {"owned": p.owned - 1}, "owned must be the nodes of part 1"),
    "owned, reversed": (lambda p: {"owned": p.owned.flip(0)}, "owned must be the nodes of part 1"),
    "halo, out of range": (lambda p: {"halo": p.halo + 64}, r"halo must be node ids in \[0, 64\)"),
    "halo, negative": (lambda p: {"halo": p.halo - 64}, r"halo must be node ids in \[0, 64\)"),
    "halo, reversed": (lambda p: {"halo": p.halo.flip(0)}, "halo must have an ascending list for each"),
    "halo, of others": (lambda p: {"halo_indptr": p.halo_indptr.flip(0)}, "indptr"),
    "halo, of the wrong owner": (
        lambda p: {
            "halo": p.halo.roll(-int(p.halo_indptr[1])),
            "halo_indptr": p.halo_indptr[-1] - p.halo_indptr.flip(0),
        },
        "halo must list nodes with their owners",
    ),
    "send, reversed": (lambda p: {"send": p.send.flip(0)}, "send must have an ascending list for each"),
    "send, twice": (lambda p: {"send": exchanged(p.send, 0, 1).clamp(max=0)}, "send must have an ascending"),
    "send, out of range": (lambda p: {"send": p.send + 64}, "send must be node ids in"),
    "send, one list less": (
        lambda p: {"send_indptr": p.send_indptr[[0, 2, 3]]},
        "send must have an ascending",
    ),
    "edges": (lambda p: {"local_edge": p.owned}, "the local graph must have a row for each of"),
}


@pytest.mark.parametrize("what", LISTS)
def test_lists_that_do_not_fit_the_owners_are_refused(graph, saved, what):
    change, says = LISTS[what]
    SavedPartition(saved).check()
    rewritten(saved, 1, **change(SavedPartition(saved).part(1)))
    with pytest.raises(DataError, match=f"part-00001 does not hold a valid part: .*{says}"):
        SavedPartition(saved).part(1)


def test_a_list_to_send_that_is_not_the_receivers_halo_is_refused(graph, saved):
    """It is ascending and of existing rows, so that only both parts together show it."""
    part = SavedPartition(saved).part(1)
    send, begin, end = part.send.clone(), *part.send_indptr[2:4].tolist()
    unsent = sorted(set(range(part.num_owned)) - set(send[begin:end].tolist()))
    send[begin:end] = torch.cat((send[begin : end - 1], torch.tensor(unsent[:1]))).sort().values
    rewritten(saved, 1, send=send)
    opened = SavedPartition(saved, graph)
    opened.part(1)
    says = "part 1 sends other nodes than part 2 has from it in its halo; partition again"
    with pytest.raises(DataError, match=says):
        opened.check()
    whole = graph.replace(x=torch.zeros(64, 2))
    with pytest.raises(DataError, match=says):
        run_threads(3, lambda comm: Ranks.of_saved(comm, SavedPartition(saved), whole))


def test_a_partition_of_another_graph_cuts_no_other(graph, saved, tmp_path):
    """Its parts would be of the right size, and the cut that of chance."""
    chosen = partition(graph, 3)
    moved = reorder(graph, torch.arange(64).flip(0)).graph
    for found in (chosen, SavedPartition(saved).partition()):
        with pytest.raises(DataError, match="the partition was made for another graph: its edges or weights"):
            split(moved, found)
        again = open_store(save_store(graph, tmp_path / found.strategy.replace(" ", "-")))
        assert len(split(again, found)) == 3
    with pytest.raises(DataError, match="the partition was made for another graph"):
        save_partition(moved, chosen, tmp_path / "other")
    split(moved, dataclasses.replace(chosen, mark=""))  # as one's own partition, which is of any graph
    with pytest.raises(DataError, match=r"a mark that is a Tensor; it must be text"):
        split(moved, dataclasses.replace(chosen, mark=torch.zeros(3)))
