"""Every option of PyG's and torch's loaders is honoured, meaningless with a reason, or refused with one."""

import dataclasses
import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from tests.beside_pyg import HeteroData, torch_geometric
from tests.sampling.test_loader import digest, make_data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.loader.link_loader import LinkLoader
from torch_geometric.loader.node_loader import NodeLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NegativeSampling, SamplerOutput

from graphbraid.errors import ConfigError
from graphbraid.loader import (
    ClusterLoader,
    HGTLoader,
    LinkNeighborLoader,
    LoaderOptions,
    NeighborLoader,
    ShaDowKHopSampler,
)
from graphbraid.loader import keywords as keywords_module
from graphbraid.loader.keywords import WithoutEffect
from graphbraid.loader.options import LINK_REFUSED, MEANINGLESS, REFUSED, REPLACED

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
OURS = set(inspect.signature(NeighborLoader.__init__).parameters) - {"self", "others"}
LINK_OURS = set(inspect.signature(LinkNeighborLoader.__init__).parameters) - {"self", "others"}
OTHERS = {
    "directed": False,
    "neighbor_sampler": object(),
    "node_sampler": object(),
    "transform_sampler_output": print,
    "custom_cls": dict,
    "link_sampler": object(),
}
"""A value of each refused option that asks for something."""


def options_of(*constructors):
    parameters = [p for c in constructors for p in inspect.signature(c).parameters.values()]
    return {p.name: p.default for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}


PYGS = options_of(
    torch.utils.data.DataLoader.__init__, NodeLoader.__init__, torch_geometric.loader.NeighborLoader.__init__
)
LINK_PYGS = options_of(
    torch.utils.data.DataLoader.__init__,
    LinkLoader.__init__,
    torch_geometric.loader.LinkNeighborLoader.__init__,
)


def test_every_option_of_pyg_and_torch_is_known():
    """A newer PyG's or torch's option shows here: honour it, or say in `loader/options.py` why not."""
    assert set(PYGS) - OURS == {*REFUSED, *MEANINGLESS, *REPLACED}
    assert not OURS & {*REFUSED, *MEANINGLESS, *REPLACED}
    assert set(OTHERS) == {*REFUSED, *LINK_REFUSED}
    assert set(LINK_PYGS) - LINK_OURS == {*LINK_REFUSED, *MEANINGLESS, *REPLACED}
    assert not LINK_OURS & {*LINK_REFUSED, *MEANINGLESS, *REPLACED}


def test_type_checkers_see_every_option_with_its_type():
    fields = {field.name: field.type for field in dataclasses.fields(LoaderOptions)}
    seen = {"weighted", "part", "num_parts", "reach"}  # no options of users
    for loader in (NeighborLoader, LinkNeighborLoader, ClusterLoader, ShaDowKHopSampler, HGTLoader):
        parameters = inspect.get_annotations(loader.__init__)
        keywords = getattr(keywords_module, re.fullmatch(r"Unpack\[(\w+)\]", parameters["options"])[1])
        types = {name: hint.__forward_arg__ for name, hint in keywords.__annotations__.items()}
        assert {name: fields.get(name, hint) for name, hint in types.items()} == types
        assert WithoutEffect.__annotations__.keys() == MEANINGLESS.keys() == types.keys() - fields.keys()
        seen |= {*parameters, *types} & fields.keys()
    assert seen == fields.keys()


@pytest.mark.parametrize("name", sorted({*REFUSED, *MEANINGLESS}))
def test_pygs_own_default_changes_nothing(name):
    default = PYGS[name]
    value = None if default is inspect.Parameter.empty else default
    data = make_data()
    expected = digest(NeighborLoader(data, [4], batch_size=100, seed=0))
    assert digest(NeighborLoader(data, [4], batch_size=100, seed=0, **{name: value})) == expected


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_change_a_batch_is_refused(name):
    with pytest.raises(ConfigError, match=f"does not support {name}=.*use PyG's loader"):
        NeighborLoader(make_data(), [4], **{name: OTHERS[name]})
    if name in LINK_REFUSED:
        with pytest.raises(ConfigError, match=f"LinkNeighborLoader does not support {name}="):
            LinkNeighborLoader(make_data(), [4], **{name: OTHERS[name]})


def test_enumerations_of_pyg_are_read():
    from torch_geometric.sampler.base import SubgraphType

    for kind in SubgraphType:
        by_name = NeighborLoader(make_data(), [4], batch_size=100, seed=0, subgraph_type=kind.value)
        given = NeighborLoader(make_data(), [4], batch_size=100, seed=0, subgraph_type=kind)
        for one, other in zip(by_name, given, strict=True):
            assert torch.equal(one.edge_index, other.edge_index)


def test_the_page_has_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (honoured|without meaning|refused): .+ \|$", PAGE.read_text(), re.M)
    listed = dict(rows)
    assert len(listed) == len(rows)
    assert set(listed) == {*PYGS, *LINK_PYGS} - {*REPLACED}
    for name, how in listed.items():
        expected = (
            "refused"
            if name in (*REFUSED, *LINK_REFUSED)
            else "without meaning"
            if name in MEANINGLESS
            else "honoured"
        )
        assert how == expected, name


LINKS = torch.tensor([[0, 5, 9], [3, 1, 7]])
TIMES = torch.arange(800)
REST = (None, False, None, None, True)  # transform_sampler_output up to directed
CALLS = {
    "seeds": (NeighborLoader, [[4, 3], torch.arange(9)]),
    "replace": (NeighborLoader, [[4], None, None, True]),
    "induced": (NeighborLoader, [[4, 2], None, None, False, "induced"]),
    "disjoint": (NeighborLoader, [[4, 2], None, None, False, "directional", True]),
    "times": (NeighborLoader, [[2], TIMES[:9], TIMES[:9], False, "directional", True, "last", "time"]),
    "weights": (NeighborLoader, [[2], None, None, False, "directional", False, "uniform", None, "weight"]),
    "all": (
        NeighborLoader,
        [[2], None, None, False, "bidirectional", False, "uniform", None, None, print, *REST],
    ),
    "links": (LinkNeighborLoader, [[4, 3], LINKS, torch.ones(3)]),
    "links with negatives": (
        LinkNeighborLoader,
        [[4], LINKS, None, None, True, "directional", True, "uniform", NegativeSampling("triplet")],
    ),
    "links with all": (
        LinkNeighborLoader,
        [
            [4],
            LINKS,
            None,
            TIMES[:3] + 800,
            False,
            "directional",
            True,
            "last",
            None,
            2.0,
            "time",
            None,
            len,
            *REST,
        ],
    ),
}
PYGS_LOADERS = {NeighborLoader: PygNeighborLoader, LinkNeighborLoader: PygLinkNeighborLoader}


def data_with_all():
    data = make_data()
    return data.update({"time": TIMES, "weight": torch.ones(data.num_edges)})


@pytest.mark.parametrize("name", CALLS)
def test_positions_name_the_same_arguments(name, monkeypatch):
    # PyG asks for it when a loader is made, and these make none of its batches.
    monkeypatch.setattr(torch_geometric.typing, "WITH_WEIGHTED_NEIGHBOR_SAMPLE", True)
    ours, arguments = CALLS[name]
    data = data_with_all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's, about packages that only sampling needs
        theirs = PYGS_LOADERS[ours](data, *arguments, batch_size=4)
    mine = ours(data, *arguments, batch_size=4, seed=0)
    sampler = theirs.node_sampler if ours is NeighborLoader else theirs.link_sampler
    assert tuple(sampler.num_neighbors.get_values()) == mine.num_neighbors
    for option in ("replace", "disjoint", "temporal_strategy"):
        assert getattr(mine, option) == getattr(sampler, option), option
    assert mine.subgraph_type == sampler.subgraph_type.value
    assert mine.transform == theirs.transform
    assert (mine.time_attr is not None, mine.weight_attr is not None) == (
        sampler.node_time is not None,
        sampler.edge_weight is not None,
    )
    if ours is LinkNeighborLoader:
        ratio = mine.neg_sampling_ratio
        found = mine.neg_sampling if ratio is None else NegativeSampling("binary", ratio)
        assert theirs.neg_sampling == found


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_calls_that_python_refuses_are_refused_alike(kind):
    data = data_with_all()
    for loader in (kind, PYGS_LOADERS[kind]):
        with pytest.raises(TypeError, match="multiple values"):
            loader(data, [4], None, None, None, True, "induced", subgraph_type="induced")
        with pytest.raises(TypeError, match=r"by position|positional"):
            loader(data, [4], *[None] * 30)


class NoHops(BaseSampler):
    """What PyG's sampler returns without hops."""

    def __init__(self, edge_types=(), node_types=()):
        self.edge_types, self.node_types = edge_types, node_types

    def sample_from_nodes(self, index, **_):
        nodes, none = index.node, torch.empty(0, dtype=torch.int64)
        found = {"metadata": (index.input_id, index.time)}
        if not self.edge_types:
            return SamplerOutput(
                nodes, none, none, none, num_sampled_nodes=[len(nodes)], num_sampled_edges=[], **found
            )
        ids = {one: nodes if one == index.input_type else none for one in self.node_types}
        of_edges = dict.fromkeys(self.edge_types, none)
        return HeteroSamplerOutput(
            ids,
            *[of_edges] * 3,
            num_sampled_nodes={one: [len(held)] for one, held in ids.items()},
            num_sampled_edges={one: [] for one in self.edge_types},
            **found,
        )

    def sample_from_edges(self, index, **_):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return None


def same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"subgraph_type": "induced"}, {"disjoint": True}])
def test_without_hops_batches_are_pygs(options, workers):
    data = make_data()
    mine = NeighborLoader(data, [], batch_size=300, num_workers=workers, **options)
    for one, other in zip(mine, NodeLoader(data, NoHops(), batch_size=300), strict=True):
        is_induced = "subgraph_type" in options
        of_edges = {"edge_index", "edge_attr", "e_id", "num_sampled_nodes", "num_sampled_edges"}
        for name in {*other.keys()} - (of_edges if is_induced else set()):
            same(other[name], one[name])
        if is_induced:
            assert torch.equal(one.n_id[one.edge_index], data.edge_index[:, one.e_id])
            inside = torch.isin(data.edge_index, one.n_id).all(0)
            assert one.edge_index.shape[1] == int(inside.sum())


@pytest.mark.parametrize("neighbors", [[], {("b", "to", "a"): [], ("a", "rev", "b"): []}])
def test_without_hops_batches_with_types_are_pygs(neighbors):
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(7, 2), torch.rand(5, 3)
    data["b", "to", "a"].edge_index = torch.tensor([[0, 4, 2], [6, 0, 1]])
    data["a", "rev", "b"].edge_index = torch.tensor([[0, 4, 2], [4, 0, 1]])
    mine = NeighborLoader(data, neighbors, ("a", torch.arange(6)), batch_size=4)
    sampler = NoHops(data.edge_types, data.node_types)
    theirs = NodeLoader(data, sampler, ("a", torch.arange(6)), batch_size=4)
    for one, other in zip(mine, theirs, strict=True):
        for kind in (*data.node_types, *data.edge_types):
            for name in list(other[kind].keys()):
                same(other[kind][name], one[kind][name])
