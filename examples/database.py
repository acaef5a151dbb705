"""A relational database becomes a typed graph with times; a task table gives seeds, each at its own time.

Needs ``pip install 'graphbraid[database,pyg]'``. The construction is that of RelBench: a node for each row,
an edge for each foreign key, and neighbours from before the time of the seed alone.
"""

import duckdb
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from graphbraid import datasets
from graphbraid.loader import NeighborLoader

DAY = 86_400
SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, plan TEXT, joined TIMESTAMP);
CREATE TABLE item (id INTEGER PRIMARY KEY, kind TEXT, price DOUBLE);
CREATE TABLE purchase (id INTEGER PRIMARY KEY, bought TIMESTAMP, amount DOUBLE,
    customer_id INTEGER REFERENCES customer (id), item_id INTEGER REFERENCES item (id));
SELECT setseed(0.5);
INSERT INTO customer SELECT i, ['basic', 'plus', 'gold'][1 + i % 3],
    TIMESTAMP '2025-01-01' + to_days((300 * random())::INTEGER) FROM range(600) t(i);
INSERT INTO item SELECT i, ['hat', 'shoe'][1 + i % 2], 5 + 50 * random() FROM range(80) t(i);
INSERT INTO purchase SELECT row_number() OVER () - 1,
    TIMESTAMP '2025-06-01' + to_days((210 * random())::INTEGER), 5 + 50 * random(), c.id,
    nullif((c.id * 7 + k * 13) % 81, 80)
    FROM customer c, range(30) r(k) WHERE k < CASE WHEN c.id % 7 < 3 THEN 25 ELSE 2 END;
"""
TASK = """
SELECT c.id AS customer_id, t.day, NOT EXISTS (FROM purchase p WHERE p.customer_id = c.id
    AND p.bought > t.day AND p.bought <= t.day + INTERVAL 30 DAY) AS leaves
FROM customer c, (SELECT TIMESTAMP '2025-08-01' + to_days(30 * k::INTEGER) AS day FROM range(4) r(k)) t
WHERE c.joined <= t.day ORDER BY t.day, c.id
"""
"""Who buys nothing in the 30 days after a time: entity, time and label."""


def graph_of(connection: duckdb.DuckDBPyConnection) -> datasets.TypedTableGraph:
    """Make a graph of all tables, by their primary and foreign keys."""
    keys = connection.sql(
        "FROM duckdb_constraints() "
        "SELECT table_name, constraint_type, constraint_column_names, referenced_table"
    ).fetchall()
    tables = {
        name: connection.table(name).to_arrow_table() for (name,) in connection.sql("SHOW TABLES").fetchall()
    }
    roles: dict[str, dict[str, object]] = {name: {"keys": {}} for name in tables}
    for table, kind, columns, other in keys:
        if kind == "PRIMARY KEY":
            roles[table]["id"] = columns[0]
        elif kind == "FOREIGN KEY":
            roles[table]["keys"] |= {columns[0]: other}  # type: ignore[operator]
    roles["purchase"]["time"], roles["customer"]["time"] = "bought", "joined"  # items are always there
    return datasets.from_frames(tables, roles=roles, reverse=True, name="shop")


class Net(torch.nn.Module):
    """Two layers over the tables. A node also gets its age at the time of the seed whose tree it is in."""

    def __init__(self, data: HeteroData, hidden: int) -> None:
        super().__init__()
        self.inputs = torch.nn.ModuleDict({name: torch.nn.LazyLinear(hidden) for name in data.node_types})
        self.convs = torch.nn.ModuleList(
            HeteroConv({one: SAGEConv((-1, -1), hidden, aggr="sum") for one in data.edge_types})
            for _ in range(2)
        )
        self.out = torch.nn.Linear(hidden, 1)

    def forward(self, batch: HeteroData, seed_time: Tensor) -> Tensor:
        x_dict = {}
        for name, layer in self.inputs.items():
            x = batch[name].x
            if "time" in batch[name]:
                age = (seed_time[batch[name].batch] - batch[name].time).clamp(min=0) / DAY
                x = torch.cat([x, age.log1p()[:, None].float()], 1)
            x_dict[name] = layer(x).relu()
        for conv in self.convs:
            x_dict = {name: x.relu() for name, x in conv(x_dict, batch.edge_index_dict).items()}
        return self.out(x_dict["customer"][: batch["customer"].batch_size]).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    connection = duckdb.connect()
    connection.execute(SHOP)
    made = graph_of(connection)
    print(made.graph)
    task = connection.sql(TASK).fetchnumpy()
    seeds = made.names["customer"].ids.nodes_of(task["customer_id"].tolist())
    times = torch.from_numpy(task["day"].astype("datetime64[s]").astype("int64"))
    labels = torch.from_numpy(task["leaves"].astype("float32"))
    is_test = times == times.max()  # the last window; the others are for training
    data = made.graph.to_pyg()

    def batches(rows: Tensor) -> NeighborLoader:
        return NeighborLoader(
            data,
            [20, 10],
            input_nodes=("customer", seeds[rows]),
            input_time=times[rows],
            time_attr="time",
            batch_size=128,
            shuffle=True,
            seed=0,
        )

    train, test = (~is_test).nonzero().flatten(), is_test.nonzero().flatten()
    model = Net(data, 32)
    optimizer = None
    for epoch in range(5):
        total = 0.0
        for batch in batches(train):
            rows = train[batch["customer"].input_id]
            loss = F.binary_cross_entropy_with_logits(model(batch, times[rows]), labels[rows])
            optimizer = optimizer or torch.optim.Adam(
                model.parameters(), lr=0.01
            )  # after lazy layers are made
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: loss {total / len(train):.3f}")
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in batches(test):
            rows = test[batch["customer"].input_id]
            right += int(((model(batch, times[rows]) > 0) == labels[rows].bool()).sum())
    print(f"test accuracy {right / len(test):.3f}")


if __name__ == "__main__":
    main()
