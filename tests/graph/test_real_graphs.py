"""Edits of real graphs give the published numbers of edges."""

import pytest

from graphbraid import datasets


@pytest.mark.parametrize(
    (
        "name",
        "undirected",
    ),  # unique undirected edges without self-loops, from the table in shared/data/README.md
    [
        ("cora", 5_278),
        ("citeseer", 4_552),
        ("amazon_computers", 245_861),
        ("nell", 125_775),
        ("polblogs", 16_715),
        pytest.param("web_cnr2000", 2_738_969, marks=pytest.mark.slow),
    ],
)
def test_symmetrizing_gives_the_published_number_of_edges(shared_graph, name, undirected):
    graph = datasets.load(str(shared_graph(name))).validate()
    assert graph.symmetrized().without_self_loops().num_edges == 2 * undirected
