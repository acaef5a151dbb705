"""Which films to show whom: embeddings of users and films, and an index of the films nearest to a user."""

import numpy as np
import torch
from usearch.index import Index

from graphbraid import Graph, Trainer
from graphbraid.nn import RGCN, DotProduct, LinkModel

USERS, FILMS, GROUPS, SHOWN = 600, 300, 6, 10


def ratings() -> Graph:
    """Users of a group rate films of that group; neither have features."""
    draw = torch.Generator().manual_seed(0)
    user = torch.randint(USERS, (12_000,), generator=draw)
    film = torch.randint(FILMS // GROUPS, (12_000,), generator=draw) * GROUPS + user % GROUPS
    pairs = torch.stack([user, film]).unique(dim=1)
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=draw)]
    rates, count = ("user", "rates", "film"), pairs.shape[1]
    parts = torch.arange(count).split([count - 2 * (count // 10), count // 10, count // 10])
    splits = {rates: dict(zip(("train", "val", "test"), parts, strict=True))}
    graph = Graph.from_relations({rates: pairs}, {"user": USERS, "film": FILMS}, edge_splits=splits)
    return graph.with_reverse_relations()


def main() -> None:
    torch.manual_seed(0)
    graph = ratings()
    counts = {"user": USERS, "film": FILMS}
    encoder = RGCN(dict.fromkeys(counts, 0), 32, 32, graph.edge_types, num_nodes=counts, dropout=0.0)
    model = LinkModel(encoder, DotProduct())
    trainer = Trainer(model, graph, task="link", epochs=5, fanouts=(10, 10), batch_size=512, lr=0.01, seed=0)
    trainer.fit()

    films = trainer.embed(node_type="film").numpy()
    index = Index(
        ndim=films.shape[1], metric="ip", dtype="f32"
    )  # the inner product, by which the model scores
    index.add(np.arange(FILMS), films)
    users = trainer.embed(node_type="user").numpy()
    found = index.search(users, SHOWN).keys

    exact = trainer.top_links(torch.arange(USERS), k=SHOWN, known=True).nodes.numpy()
    shared = np.mean([len(set(a) & set(b)) / SHOWN for a, b in zip(found, exact, strict=True)])
    print(f"recall of the {SHOWN} likeliest films: {shared:.3f}")
    alike = found % GROUPS == np.arange(USERS)[:, None] % GROUPS
    print(f"of the group that the user rates: {alike.mean():.3f}")


if __name__ == "__main__":
    main()
