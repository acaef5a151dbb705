"""Every option of PyG's and torch's loaders is honoured, meaningless with a reason, or refused with one."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch
from tests.extras import NO_PYG
from tests.sampling.test_loader import digest, make_data

pytest.importorskip("torch_geometric", reason=NO_PYG)
import torch_geometric
from torch_geometric.loader.link_loader import LinkLoader
from torch_geometric.loader.node_loader import NodeLoader

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
