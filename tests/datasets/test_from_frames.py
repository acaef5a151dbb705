"""Tables in memory become graphs with types; their columns are encoded, kept, and encoded again elsewhere."""

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from graphbraid import Graph, Trainer, datasets, nn
from graphbraid.datasets import from_frames
from graphbraid.datasets.tables.encoded import training_rows
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Columns
from graphbraid.nn.typed_models import ColumnsLinear
from graphbraid.train.run_folder.contract import Contract

BUYS, KEY = ("user", "buys", "item"), ("user", "city", "city")
ROLES = {"user": {"id": "name", "time": "seen", "keys": {"city": "city"}}, BUYS: {"time": "when"}}


def frames(num=60, seed=0):
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2026-01-01")
    users = pd.DataFrame(
        {
            "name": [f"u{i}" for i in range(num)],
            "age": rng.integers(20, 70, num).astype(float),
            "plan": rng.choice(["a", "b", "c"], num),
            "joined": start - pd.to_timedelta(rng.integers(1, 300, num), "D"),
            "city": [None if i % 10 == 3 else f"city {i % 4}" for i in range(num)],
            "seen": start + pd.to_timedelta(np.arange(num), "D"),
            "leaves": pd.Series(rng.random(num) < 0.4).astype("boolean").mask(rng.random(num) < 0.1),
        }
    )
    items = pd.DataFrame({"id": range(9), "price": rng.lognormal(size=9)})
    buys = pd.DataFrame(
        {
            "source": rng.choice(users["name"], 100),
            "destination": rng.integers(0, 9, 100),
            "when": start + pd.to_timedelta(rng.integers(0, num, 100), "D"),
        }
    )
    return {"user": users, "item": items, "city": None}, {BUYS: buys}


def graph_of(nodes, edges, **options):
    return from_frames(nodes, edges, roles=ROLES, reverse=True, **options).graph


def test_pandas_polars_and_pyarrow_give_the_same_graph():
    nodes, edges = frames()
    made = {}
    for kind, convert in {
        "pandas": lambda t: t,
        "polars": pl.from_pandas,
        "arrow": pa.Table.from_pandas,
    }.items():
        given = {name: None if one is None else convert(one) for name, one in nodes.items()}
        made[kind] = Graph.from_tables(given, {BUYS: convert(edges[BUYS])}, roles=ROLES, reverse=True)
        made[kind].validate()
    first = made["pandas"]
    assert first.edge_types[:2] == (BUYS, KEY)
    for other in made.values():
        assert other.edge_types == first.edge_types
        assert other.schema.columns["user"].names == first.schema.columns["user"].names
        for name in ("user", "item"):
            assert torch.equal(other.nodes_of(name).x, first.nodes_of(name).x)
        for relation in first.edge_types:
            assert torch.equal(other.to_edge_indices()[relation], first.to_edge_indices()[relation])


def test_a_key_is_a_relation_and_empty_ones_are_no_edge():
    nodes, edges = frames()
    made = from_frames(nodes, edges, roles=ROLES)
    users, cities = made.graph.to_edge_indices()[KEY]
    kept = [i for i in range(60) if i % 10 != 3]
    assert users.tolist() == kept
    assert made.names["city"].ids.originals(cities) == [f"city {i % 4}" for i in kept]
    assert made.graph.edges_of(KEY).time is None  # the rows have times
    assert "city" not in {one.column for one in made.graph.schema.columns["user"].encoders}
    nodes["city"] = pd.DataFrame({"id": ["city 0", "city 1", "city 2"]})
    with pytest.raises(DataError, match="row 7: column 'city' names node 'city 3'"):  # rows 3 is empty
        from_frames(nodes, edges, roles=ROLES)


def test_keys_of_files_are_read_and_located(tmp_path):
    (tmp_path / "a.csv").write_text("id,b\n1,x\n2,\n3,y\n4,z\n")
    (tmp_path / "b.csv").write_text("id,v\nx,1\ny,2\n")
    (tmp_path / "d.yaml").write_text("nodes:\n  a: {file: a.csv, keys: {b: b}}\n  b: {file: b.csv}\n")
    with pytest.raises(DataError, match=r"a.csv, line 5: column 'b' names node 'z'"):
        datasets.from_typed_tables(tmp_path / "d.yaml")
    (tmp_path / "b.csv").write_text("id,v\nx,1\ny,2\nz,3\n")
    graph = datasets.from_typed_tables(tmp_path / "d.yaml").graph
    assert graph.to_edge_indices()[("a", "b", "b")].tolist() == [[0, 2, 3], [0, 1, 2]]


def assert_ages(graph, days):
    at = graph.schema.columns["user"].names.index("joined age 1")
    bounds = np.quantile(days, np.linspace(0, 1, 21))
    come = np.clip((days[:, None] - bounds[:-1]) / np.diff(bounds), 0, 1)
    expected = (come - come.mean(0)) / come.std(0)
    np.testing.assert_allclose(graph.nodes_of("user").x[:, at : at + 20].numpy(), expected, atol=1e-4)


def test_the_age_of_a_time_counts_to_its_row():
    nodes, edges = frames()
    graph = graph_of(nodes, edges)
    users = nodes["user"]
    days = (users["seen"] - users["joined"]).dt.days.to_numpy()
    assert_ages(graph, days)
    del nodes["user"]["seen"], nodes["city"]
    roles = {"user": {"id": "name"}, BUYS: {"time": "when"}}
    for now in (None, float(pd.Timestamp("2027-01-01").timestamp())):
        graph = from_frames(nodes, edges, roles=roles, now=now).graph
        end = edges[BUYS]["when"].max() if now is None else pd.Timestamp(now, unit="s")
        days = (end - users["joined"]).dt.days.to_numpy()
        assert_ages(graph, days)


def test_a_target_is_no_feature_and_encoders_see_its_training_part_alone():
    nodes, edges = frames()
    graph = datasets.prepare(graph_of(nodes, edges), target="user.leaves", split="time:2026-01-21,2026-02-10")
    users = graph.nodes_of("user")
    labels = nodes["user"]["leaves"]
    assert users.y.tolist() == [-1 if pd.isna(one) else int(one) for one in labels]
    known = [i for i in range(20) if not pd.isna(labels[i])]
    assert users.splits["train"].tolist() == known
    names = graph.schema.columns["user"].names
    assert not any(name.startswith("leaves") for name in names)
    age = next(one for one in graph.schema.columns["user"].encoders if one.column == "age")
    assert age.numbers[0] == pytest.approx(nodes["user"]["age"][known].mean())
    assert training_rows(graph, "item") is None  # without times, all are there from the start
    graph.validate()


def test_other_tables_are_fitted_on_what_was_there_in_training():
    nodes, edges = frames()
    nodes["visit"] = pd.DataFrame(
        {
            "id": range(90),
            "pages": np.arange(90.0),
            "at": pd.Timestamp("2025-12-01") + pd.to_timedelta(range(90), "D"),
            "user": [f"u{i % 60}" for i in range(90)],
        }
    )
    roles = ROLES | {"visit": {"time": "at", "keys": {"user": "user"}}}
    graph = from_frames(nodes, edges, roles=roles).graph
    split = datasets.prepare(graph, target="user.leaves", split="time:2026-01-21,2026-02-10")
    last = split.nodes_of("user").time[split.nodes_of("user").splits["train"]].max()
    rows = training_rows(split, "visit")
    assert rows.tolist() == (split.nodes_of("visit").time <= last).nonzero().flatten().tolist()
    assert 0 < len(rows) < 90
    (pages,) = (one for one in split.schema.columns["visit"].encoders if one.column == "pages")
    assert pages.numbers[0] == pytest.approx(np.arange(90.0)[rows].mean())
    drawn = datasets.prepare(graph, target="user.leaves", split="0.6,0.2")
    assert training_rows(drawn, "visit") is None  # not split by time


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("user.leave", "no column 'user.leave'.*Did you mean 'user.leaves'"),
        ("city.size", "no column 'city.size'"),
    ],
)
def test_an_unknown_target_is_refused(target, text):
    with pytest.raises(DataError, match=text):
        datasets.prepare(graph_of(*frames()), target=target)


def test_whole_numbers_are_classes_with_a_warning_or_numbers_if_asked(caplog):
    nodes, edges = frames()
    nodes["user"]["visits"] = [(-1) ** i * (i % 7) for i in range(len(nodes["user"]))]
    graph = graph_of(nodes, edges)
    classes = datasets.prepare(graph, target="user.visits", split="0.6,0.2").nodes_of("user")
    assert classes.task == "single-label"
    below, said = caplog.records
    assert "26 labels in column 'visits' are below 0, which stands for no label" in below.getMessage()
    assert "user.visits holds whole numbers" in said.getMessage()
    assert "--target user.visits:number learns numbers" in said.getMessage()
    numbers = datasets.prepare(graph, target="user.visits:number", split="0.6,0.2").nodes_of("user")
    assert numbers.task == "regression"
    assert numbers.y.flatten().tolist() == nodes["user"]["visits"].tolist()
    assert len(caplog.records) == 2
    with pytest.raises(DataError, match=r"no column 'user\.visit'"):
        datasets.prepare(graph, target="user.visit:number")


def test_a_target_that_holds_no_numbers_is_refused_as_a_number():
    nodes, edges = frames()
    nodes["user"]["town"] = ["Bonn"] * len(nodes["user"])
    with pytest.raises(DataError, match=r"target user\.town.*cannot be learned as numbers"):
        datasets.prepare(graph_of(nodes, edges), target="user.town:number")


def test_a_graph_without_tables_has_no_targets():
    graph = Graph.from_relations({("a", "to", "a"): [[0], [1]]}, {"a": 3}, x={"a": torch.rand(3, 2)})
    with pytest.raises(DataError, match="the graph keeps none"):
        datasets.prepare(graph, target="a.b")


def test_a_store_keeps_tables_and_encoders(tmp_path):
    made = from_frames(*frames(), roles=ROLES, reverse=True)
    datasets.save_store(made.graph, tmp_path / "s", names=made.names)
    stored = datasets.open_store(tmp_path / "s")
    assert stored.schema == made.graph.schema
    assert stored.schema.columns["user"].table.equals(made.graph.schema.columns["user"].table)
    options = {"target": "user.leaves", "split": "stratified:0.6,0.2"}
    before, after = datasets.prepare(made.graph, **options), datasets.load(tmp_path / "s", **options)
    assert torch.equal(before.nodes_of("user").x, after.nodes_of("user").x)
    path = tmp_path / "s" / "node0_table.npy"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="node0_table"):
        datasets.open_store(tmp_path / "s", verify=True)


def test_a_model_of_one_graph_reads_another_whose_columns_are_elsewhere():
    nodes, edges = frames()
    options = {"target": "user.leaves", "split": "time:2026-01-21,2026-02-10"}
    graph = datasets.prepare(graph_of(nodes, edges), **options)
    contract = Contract.of(graph)
    assert contract.matched(graph) is graph
    later, bought = frames(seed=1)
    later["user"] = later["user"][list(later["user"].columns[::-1])].assign(plan="new", more=1.5)
    other = graph_of(later, bought)
    assert other.schema.columns["user"].names != graph.schema.columns["user"].names
    matched = contract.matched(other, labels=False)
    assert matched.schema.columns["user"].names == graph.schema.columns["user"].names
    x, plan = matched.nodes_of("user").x, [n.startswith("plan=") for n in graph.schema.columns["user"].names]
    assert not x[:, torch.tensor(plan)].any()
    age = graph.schema.columns["user"].names.index("age")
    mean, deviation = next(o for o in graph.schema.columns["user"].encoders if o.column == "age").numbers
    expected = (later["user"]["age"].to_numpy() - mean) / deviation
    np.testing.assert_allclose(x[:, age].numpy(), expected, rtol=1e-5)
    for change, text in {
        "missing": "'user'.*lacks columns that its encoders were fitted on: age",
        "text": "column 'age' .number. held numbers .* holds text now",
    }.items():
        wrong = later["user"].drop(columns="age") if change == "missing" else later["user"].assign(age="old")
        with pytest.raises(DataError, match=text):
            contract.matched(graph_of(later | {"user": wrong}, bought), labels=False)
    bare = other.replace(types=other.types)
    with pytest.raises(
        DataError, match="'user' are encoded columns of its table, which this graph does not keep"
    ):
        contract.matched(bare, labels=False)


def test_an_all_empty_table_is_encoded_as_the_model_knows_it():
    nodes, edges = frames()
    contract = Contract.of(graph_of(nodes, edges))
    empty = nodes["item"].assign(price=np.nan)
    other = graph_of(nodes | {"item": empty}, edges)
    assert other.nodes_of("item").x is None
    assert contract.matched(other).nodes_of("item").x.tolist() == [[0]] * 9


def test_a_table_without_rows_is_a_type_without_nodes(tmp_path):
    nodes, edges = frames()
    nodes["visit"] = pd.DataFrame({"id": [1, 2], "pages": [3.0, 5.0], "user": ["u1", "u2"]})
    roles = ROLES | {"visit": {"keys": {"user": "user"}, "time": "at"}}
    nodes["visit"]["at"] = pd.to_datetime(["2026-01-01", "2026-01-02"])
    contract = Contract.of(from_frames(nodes, edges, roles=roles).graph)
    none = nodes["visit"].iloc[:0]
    none.to_parquet(tmp_path / "visits.parquet")
    none.to_csv(tmp_path / "visits.csv", index=False)
    for table in (none, pd.read_csv(tmp_path / "visits.csv"), pd.read_parquet(tmp_path / "visits.parquet")):
        other = from_frames(nodes | {"visit": table}, edges, roles=roles).graph
        assert contract.matched(other).nodes_of("visit").x.shape == (0, 1)
        assert other.edges_of(("visit", "user", "user")).num_edges == 0
    for name in ("visits.csv", "visits.parquet"):
        text = f"nodes:\n  user:\n  visit: {{file: {name}, time: at, keys: {{user: user}}}}\n"
        (tmp_path / "d.yaml").write_text(text)
        assert datasets.from_typed_tables(tmp_path / "d.yaml").graph.nodes_of("visit").num_nodes == 0


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pd.date_range("2026-01-01", periods=60), "holds timestamp.*such as days up to a date"),
        ([f"name {at}" for at in range(60)], "a different text in each of 60 rows"),
    ],
)
def test_what_no_row_tells_of_another_is_no_target(column, text):
    nodes, edges = frames()
    nodes["user"]["what"] = column
    with pytest.raises(DataError, match=text):
        datasets.prepare(graph_of(nodes, edges), target="user.what", split="0.6,0.2")


def test_learned_rows_are_a_linear_layer_over_one_hot_codes():
    torch.manual_seed(0)
    layer = ColumnsLinear(5, 7, {1: 4, 3: 3}).double()
    x = torch.randn(20, 5, dtype=torch.float64)
    x[:, 1], x[:, 3] = torch.randint(4, (20,)), torch.randint(3, (20,))
    hot = torch.nn.functional.one_hot(x[:, 1].long(), 4), torch.nn.functional.one_hot(x[:, 3].long(), 3)
    of_codes = [scale * rows.weight.T for scale, rows in zip(layer.scales, layer.rows, strict=True)]
    assert layer.scales.tolist() == pytest.approx([4**-0.25, 3**-0.25])
    weight = torch.cat([layer.linear.weight, *of_codes], 1)
    wide = torch.cat([x[:, [0, 2, 4]], *hot], 1)
    torch.testing.assert_close(layer(x), wide @ weight.T + layer.linear.bias)
    assert not layer.rows[0].weight[0].any()
    with pytest.raises(DataError, match="codes of column 3"):
        layer(x.index_fill(1, torch.tensor(3), 3.0))
    assert torch.isfinite(ColumnsLinear(1, 3, {0: 2})(torch.tensor([[0.0], [1.0]]))).all()


@pytest.mark.parametrize("mode", ["sampled", "full"])
@pytest.mark.filterwarnings("ignore::graphbraid.errors.RunsAsWrittenWarning")
def test_categories_with_learned_rows_are_trained(mode):
    nodes, edges = frames()
    roles = ROLES | {"user": ROLES["user"] | {"columns": {"plan": "learned"}}}
    graph = from_frames(nodes, edges, roles=roles, reverse=True).graph
    graph = datasets.prepare(graph, target="user.leaves", split="0.6,0.2")
    model = nn.RGCN.of(graph, 8)
    before = model.inputs[0].rows[0].weight.detach().clone()
    batches = {"fanouts": (5, 5)} if mode == "sampled" else {}
    trainer = Trainer(model, graph, epochs=2, mode=mode, **batches)
    trainer.fit()
    moved = (model.inputs[0].rows[0].weight.detach().cpu() != before).any(1)
    assert moved[1:].all() and not moved[0]  # no training row is of a plan that is not known
    with pytest.raises(ConfigError, match=r"bfloat16 cannot hold the categories of 'user'.*plan#"):
        datasets.save_store(graph, "never", features_dtype="bfloat16")


def test_wrong_roles_are_refused():
    nodes, edges = frames()
    for roles, text in {
        "usr": "roles names 'usr', and there are user, item, city, user__buys__item",
        "user": "roles: .*'colour'",
    }.items():
        with pytest.raises(ConfigError, match=text if roles == "usr" else "roles: colour"):
            from_frames(nodes, edges, roles={roles: {"colour": "x"}})
    with pytest.raises(ConfigError, match="a table is a path"):
        from_frames({"user": 3}, {("user", "to", "user"): 4})
    for wrong, text in (
        ([1, "x"], "column 'a' cannot be read: "),
        ([2**70, 1], "column 'a' cannot be read: "),
    ):
        with pytest.raises(DataError, match=text):
            from_frames(
                {"user": pd.DataFrame({"id": [1, 2], "a": wrong})}, {("user", "to", "user"): edges[BUYS]}
            )
    with pytest.raises(DataError, match="cannot be read: Duplicate column names"):
        twice = pd.DataFrame([[1, 2]], columns=["id", "id"])
        from_frames({"user": twice}, {("user", "to", "user"): edges[BUYS]})
    with pytest.raises(ConfigError, match="unless nodes have keys"):
        from_frames({"user": nodes["user"]}, {}, roles={"user": {"id": "name"}})


def test_networkx_graphs_are_read():
    given = nx.karate_club_graph()
    graph = Graph.from_networkx(given)
    assert (graph.num_nodes, graph.num_edges) == (34, 2 * 78)
    weights = nx.to_numpy_array(given)
    assert torch.equal(torch.from_numpy(graph.to_scipy().toarray()).double(), torch.from_numpy(weights))
    directed = nx.DiGraph([("a", "b"), ("b", "c")])
    nx.set_node_attributes(directed, {"a": 1, "b": 2, "c": 3}, "size")
    nx.set_node_attributes(directed, {"a": 0, "b": 1, "c": 0}, "kind")
    graph = Graph.from_networkx(directed, features=["size", "kind"], label="kind")
    assert graph.x.tolist() == [[1, 0], [2, 1], [3, 0]]
    assert graph.to_edge_index().tolist() == [[0, 1], [1, 2]]
    directed.nodes["c"].pop("size")
    with pytest.raises(DataError, match="cannot be read"):
        Graph.from_networkx(directed, features=["size"])


def test_columns_without_features_keep_their_table():
    graph = Graph.from_relations({("a", "to", "a"): [[0], [1]]}, {"a": 2})
    schema = graph.schema.__class__(columns={"a": Columns(names=(), table=pa.table({"id": [1, 2]}))})
    assert graph.replace(schema=schema).schema.columns["a"].table.num_rows == 2


def test_roles_that_are_no_mapping_are_refused():
    nodes, _ = frames()
    with pytest.raises(ConfigError, match=r"roles\['user'\] must be a mapping of roles; got 1.5"):
        datasets.from_frames({"user": nodes}, roles={"user": 1.5})


@pytest.mark.parametrize("how", ["target", "label"])
def test_floats_of_0_and_1_with_empty_cells_are_classes_and_a_warning_says_so(how, caplog):
    nodes, edges = frames()
    nodes["user"]["stays"] = [np.nan if i % 7 == 2 else float(i % 3 == 0) for i in range(60)]
    expected = [-1 if i % 7 == 2 else int(i % 3 == 0) for i in range(60)]
    roles = ROLES if how == "target" else ROLES | {"user": ROLES["user"] | {"label": "stays"}}
    graph = Graph.from_tables(nodes, edges, roles=roles)
    graph = datasets.prepare(graph, target="user.stays") if how == "target" else graph
    users = graph.nodes_of("user")
    assert (users.task, users.y.tolist()) == ("single-label", expected)
    assert "'stays' are 0.0 and 1.0, which are taken for two classes" in caplog.text


def test_other_floats_stay_targets(caplog):
    nodes, edges = frames()
    for values in ([0.0, 1.0, 2.0], [0.5, np.nan, 1.0], [np.nan]):
        nodes["user"]["stays"] = [values[i % len(values)] for i in range(60)]
        graph = datasets.prepare(Graph.from_tables(nodes, edges, roles=ROLES), target="user.stays")
        assert graph.nodes_of("user").y.dtype == torch.float32
    assert "taken for two classes" not in caplog.text
