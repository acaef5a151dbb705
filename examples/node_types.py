"""A model of PyG's HeteroConv over papers and authors, trained on the whole graph by a lowered program."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import graphbraid

PAPERS, AUTHORS, FIELDS = 4000, 1500, 4


class Net(torch.nn.Module):
    def __init__(self, edge_types: list[tuple[str, str, str]], hidden: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({one: SAGEConv((-1, -1), width) for one in edge_types}) for width in (hidden, FIELDS)
        )

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]
    ) -> Tensor:
        x_dict = self.convs[0](x_dict, edge_index_dict)
        x_dict = {name: F.dropout(x.relu(), 0.3, self.training) for name, x in x_dict.items()}
        return self.convs[1](x_dict, edge_index_dict)["paper"]


def bibliography() -> HeteroData:
    """Papers of a field, which the fields of authors and citations tell better than their words do."""
    data = HeteroData()
    field = {"paper": torch.randint(FIELDS, (PAPERS,)), "author": torch.randint(FIELDS, (AUTHORS,))}
    for name, of_node in field.items():
        data[name].x = torch.randn(len(of_node), 16) + F.one_hot(of_node, 16)
    for name, relation in (("author", "writes"), ("paper", "cites")):
        pairs = torch.stack([torch.randint(len(field[one]), (40_000,)) for one in (name, "paper")])
        is_kept = (field[name][pairs[0]] == field["paper"][pairs[1]]) | (torch.rand(40_000) < 0.1)
        data[name, relation, "paper"].edge_index = pairs[:, is_kept]
    data["paper", "written_by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
    data["paper"].y = field["paper"]
    data["paper"].train_mask = torch.rand(PAPERS) < 0.1
    return data


def main() -> None:
    torch.manual_seed(0)
    data = bibliography()
    model = Net(data.edge_types, 32)
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)  # makes the parameters, whose sizes the data tell
    train = data["paper"].train_mask
    engine = graphbraid.compile(model, data, nodes=train, node_type="paper")
    print(engine.explain())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), data["paper"].y[train])
        loss.backward()
        optimizer.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    correct = engine.predict()[~train].argmax(dim=1) == data["paper"].y[~train]
    print(f"test accuracy {correct.float().mean():.4f}")


if __name__ == "__main__":
    main()
