"""Features that a store takes in parts: the same files as of a whole graph, and parts that do not fit."""

import dataclasses
import json

import pytest
import torch
from tests.datasets.helpers import assert_same_graph

from graphbraid.datasets import open_store, save_store
from graphbraid.datasets.synthetic import BlockModel, generate, generate_in_parts
from graphbraid.errors import ConfigError, DataError

SPEC = BlockModel(num_nodes=1_003, num_edges=8_000, num_classes=5, blocks_per_class=3, num_features=7)


@pytest.mark.parametrize("rows_in_part", [1, 64, 1_003, 5_000])
def test_a_graph_generated_in_parts_is_the_same_to_the_bit(rows_in_part):
    spec = dataclasses.replace(SPEC, num_nodes=203, num_edges=900) if rows_in_part == 1 else SPEC
    graph, parts = generate_in_parts(spec, "g", rows_in_part=rows_in_part)
    assert graph.x is None
    assert_same_graph(graph.replace(x=torch.cat(list(parts))), generate(spec, "g"))


def test_parts_are_stored_as_the_whole_would_be(tmp_path):
    graph, parts = generate_in_parts(SPEC, "g", rows_in_part=100)
    save_store(graph, tmp_path / "parts", feature_parts=parts)
    save_store(generate(SPEC, "g"), tmp_path / "whole")
    for whole in sorted((tmp_path / "whole").iterdir()):
        parts_of, whole_of = (
            (folder / whole.name).read_bytes() for folder in (tmp_path / "parts", tmp_path / "whole")
        )
        if whole.suffix == ".json":
            parts_of, whole_of = json.loads(parts_of), json.loads(whole_of)
        assert parts_of == whole_of, whole.name
    assert_same_graph(open_store(tmp_path / "parts"), generate(SPEC, "g"))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "the first is none"),
        ([torch.zeros(5)], r"the first is Tensor of torch.float32 and shape \(5,\)"),
        ([torch.zeros(1000, 2)], "must have 1003 rows together; they have 1000"),
        ([torch.zeros(1000, 2), torch.zeros(4, 2)], "part 1 goes up to 1004"),
        ([torch.zeros(1000, 2), torch.zeros(3, 3)], "float32 with 2 columns; part 1 is"),
        ([torch.zeros(1000, 2), torch.zeros(3, 2).half()], "part 1 is Tensor of torch.float16"),
        ([torch.zeros(1003, 2).long()], "must be float32, float16 or bfloat16; got torch.int64"),
    ],
)
def test_parts_that_do_not_fit_leave_no_store(tmp_path, parts, said):
    graph, _ = generate_in_parts(SPEC)
    with pytest.raises(DataError, match=said):
        save_store(graph, tmp_path / "s", feature_parts=parts)
    assert not (tmp_path / "s").exists()


def test_parts_beside_features_or_an_order_are_refused(tmp_path):
    graph, parts = generate_in_parts(SPEC)
    with pytest.raises(ConfigError, match="this graph has x"):
        save_store(generate(SPEC), tmp_path / "s", feature_parts=parts)
    with pytest.raises(ConfigError, match="give no order"):
        save_store(graph, tmp_path / "s", feature_parts=parts, order=torch.arange(1_003))
