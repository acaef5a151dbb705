"""A graph from an edge list and a node table in CSV, with names of their own for nodes and classes."""

import random
import tempfile
from pathlib import Path

import torch

import graphbraid
from graphbraid import datasets


def write_tables(folder: Path, num_people: int = 400) -> None:
    """Friendships in a town where people of one club mostly know each other."""
    draw = random.Random(0)
    club = [draw.choice(["chess", "rowing", "theatre"]) for _ in range(num_people)]
    with (folder / "people.csv").open("w") as file:
        file.write("name,age,height,club,role\n")
        for person in range(num_people):
            role = draw.choices(["train", "val", "test"], [3, 1, 1])[0]
            age = {"chess": 50, "rowing": 30, "theatre": 40}[club[person]] + draw.gauss(0, 15)
            file.write(f"p{person},{age:.1f},{draw.gauss(1.7, 0.1):.2f},{club[person]},{role}\n")
    with (folder / "friends.csv").open("w") as file:
        file.write("who,whom\n")
        for _ in range(num_people * 10):
            one, other = draw.randrange(num_people), draw.randrange(num_people)
            if club[one] == club[other] or draw.random() < 0.08:
                file.write(f"p{one},p{other}\n")


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        table = datasets.from_tables(
            folder / "friends.csv",
            folder / "people.csv",
            source="who",
            destination="whom",
            id_column="name",
            features=["age", "height"],
            label="club",
            split="role",
        )
        assert table.class_names is not None
        features = table.graph.dense_x()
        graph = table.graph.symmetrized().replace(x=(features - features.mean(0)) / features.std(0))
        graph.validate()
        # A store opens at once and is mapped, not read; `graphbraid convert` makes the same from the shell.
        datasets.save_store(graph, folder / "town", ids=table.ids, class_names=table.class_names)
        graph = datasets.open_store(folder / "town")

        model = graphbraid.nn.GCN(graph.num_features, 16, graph.num_classes)
        trainer = graphbraid.Trainer(model, graph, mode="full", epochs=100, lr=0.02)
        result = trainer.fit()
        someone = table.ids.nodes_of(["p7"])
        club = table.class_names[int(trainer.predict(someone).argmax())]
        print(
            f"{graph.num_nodes} people, {graph.num_edges} friendships, clubs: {', '.join(table.class_names)}"
        )
        print(f"p7 is taken for one of {club}")
        print(f"test accuracy {result.test['accuracy']:.4f}")


if __name__ == "__main__":
    main()
