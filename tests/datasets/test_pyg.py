import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from graphbraid.datasets import from_pyg_dataset
from graphbraid.errors import DataError


class Made(InMemoryDataset):
    def __init__(self, *graphs, name="made"):
        super().__init__()
        self.name = name
        self.data, self.slices = self.collate(list(graphs))


def data():
    masks = torch.tensor([[True, False], [False, True], [False, False]])
    return Data(
        x=torch.arange(6.0).view(3, 2),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        y=torch.tensor([0, 1, 0]),
        train_mask=masks,
        test_mask=~masks,
    )


def test_the_graph_of_a_dataset_comes_with_its_splits():
    graph = from_pyg_dataset(Made(data()), split_index=1)
    assert graph.name == "made"
    assert graph.to_edge_index(original_order=True).tolist() == [[0, 1], [1, 2]]
    assert graph.split("train").tolist() == [1]
    assert graph.split("test").tolist() == [0, 2]
    assert torch.equal(graph.x, data().x)


def test_datasets_of_several_graphs_are_refused():
    with pytest.raises(DataError, match=r"Made\(made\) holds 2 graphs"):
        from_pyg_dataset(Made(data(), data()))


def test_heterogeneous_and_foreign_datasets_are_refused():
    hetero = HeteroData()
    hetero["paper"].x = torch.zeros(2, 2)
    with pytest.raises(DataError, match=r"is heterogeneous \(node types: paper\)"):
        from_pyg_dataset([hetero])
    with pytest.raises(DataError, match=r"is no PyG dataset; for one Data object use Graph\.from_pyg"):
        from_pyg_dataset(7)
