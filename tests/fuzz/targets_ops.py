"""Operators, layers, models, and models over the whole graph."""

from collections.abc import Callable
from typing import Any

import torch
from tests.fuzz.targets import Call, add
from tests.fuzz.world import CLASSES, EDGES, NODES, WIDTH, World

import graphbraid as gb
from graphbraid import fullgraph, nn, ops
from graphbraid.distributed import Partition

# ---- operators


def _with_grad(result: Any) -> Any:
    out = result[0] if isinstance(result, tuple) else result
    if out.requires_grad:
        out.float().sum().backward()
    return out


# ---- layers and models


def _run_layer(w: World) -> Callable[[Any], Any]:
    def run(layer: Any) -> Any:
        out = layer(w.x, w.csc)
        out.sum().backward()
        return tuple(out.shape)

    return run


for _name in ("GCNConv", "SAGEConv", "GATConv", "GATv2Conv"):
    add(
        {
            f"nn.{_name}": lambda w, name=_name: Call(
                {"in_channels": WIDTH, "out_channels": 4},
                _run_layer(w),
                exact=False,
                function=getattr(nn, name),
            ),
            f"nn.{_name} called": lambda w, name=_name: Call(
                {"0": w.x, "1": w.csc}, _with_grad, function=_seeded(getattr(nn, name), WIDTH, 4)
            ),
        }
    )
for _name in ("GCN", "GraphSAGE", "GIN", "GAT", "GATv2", "MLP"):
    add(
        {
            f"nn.{_name}": lambda w, name=_name: Call(
                {"in_channels": WIDTH, "hidden_channels": 8, "out_channels": CLASSES, "num_layers": 2},
                _run_layer(w),
                tuple(nn.model_options({"GraphSAGE": "sage"}.get(name, name.lower()))),
                exact=False,
                function=getattr(nn, name),
            ),
            f"nn.{_name} called": lambda w, name=_name: Call(
                {"0": w.x, "1": w.csc}, _with_grad, function=_seeded(getattr(nn, name), WIDTH, 8, CLASSES)
            ),
        }
    )


def _seeded(kind: Any, *sizes: int) -> Any:
    torch.manual_seed(0)
    return kind(*sizes).eval()


# ---- the whole graph


def _engine_use(engine: Any) -> Any:
    out = engine()
    out.float().sum().backward()
    return [out, engine.predict(), str(engine.explain())[:0]]


def _batch_use(engine: Any) -> Any:
    return [str(engine.explain())[:0], len(list(engine.parameters()))]


def _compile_args(w: World, model: str) -> dict[str, Any]:
    return {"model": w.model(model).eval(), "graph": w.plain_graph, "nodes": torch.arange(20)}


for _name in ("gcn", "sage", "gat", "gin"):
    add({f"compile of {_name}": lambda w, name=_name: Call(_compile_args(w, name), _engine_use)})


def _distributed(w: World) -> dict[str, Any]:
    lowered = fullgraph.lower(**_compile_args(w, "gcn"))
    part_of = torch.arange(lowered.graph.num_nodes, dtype=torch.int32) % 2
    parts = Partition(part_of=part_of, num_parts=2, strategy="by hand", balance="nodes")
    return {"lowered": lowered, "partition": parts, "rank": 1}


_CALLS = {
    "ops.spmm": lambda w: Call({"csc": w.csc, "x": w.x, "reduce": "sum", "weight": w.csc.weight}, _with_grad),
    "ops.spmm max": lambda w: Call(
        {"csc": w.csc, "x": w.x, "reduce": "max", "weight": w.csc.weight}, _with_grad
    ),
    "ops.spmm with grad": lambda w: Call({"csc": w.csc, "x": w.x.clone().requires_grad_()}, _with_grad),
    "ops.Aggregation": lambda w: Call(
        {
            "csc": w.csc,
            "mean": False,
            "weight": w.csc.weight,
            "src_scale": torch.ones(NODES),
            "dst_scale": torch.ones(NODES),
            "loop": torch.ones(NODES),
            "loop_scale": 1.0,
            "skip_loops": True,
        },
        lambda a: [a.forward(w.x), a.backward(w.x)],
    ),
    "Aggregation.forward": lambda w: Call(
        {"x": w.x, "addend": w.x[:9]}, function=ops.Aggregation(csc=w.csc).forward
    ),
    "Aggregation.forward into": lambda w: Call(
        {"x": w.x, "out": torch.empty_like(w.x)}, function=ops.Aggregation(csc=w.csc).forward
    ),
    "Aggregation.backward": lambda w: Call(
        {"grad": w.x}, function=ops.Aggregation(csc=w.csc, mean=True).backward
    ),
    "ops.aggregate": lambda w: Call(
        {"how": ops.Aggregation(csc=w.csc), "x": w.x, "weight": w.csc.weight, "addend": w.x[:7]}, _with_grad
    ),
    "ops.aggregate_linear": lambda w: Call(
        {
            "how": ops.Aggregation(csc=w.csc, mean=True),
            "x": w.x,
            "weight": torch.ones(5, WIDTH, requires_grad=True),
            "root_weight": torch.ones(5, WIDTH),
        },
        _with_grad,
    ),
    "ops.aggregate_linear of sparse": lambda w: Call(
        {"how": ops.Aggregation(csc=w.csc), "x": w.sparse_x, "weight": torch.ones(5, WIDTH)}
    ),
    "ops.batch_norm": lambda w: Call(
        {
            "x": w.x,
            "running_mean": torch.zeros(WIDTH),
            "running_var": torch.ones(WIDTH),
            "weight": torch.ones(WIDTH),
            "bias": torch.zeros(WIDTH),
            "training": True,
            "momentum": 0.1,
            "num_batches_tracked": torch.tensor(0),
        }
    ),
    "ops.batch_norm eval": lambda w: Call(
        {"x": w.x, "running_mean": torch.zeros(WIDTH), "running_var": torch.ones(WIDTH)}
    ),
    "ops.cross_entropy": lambda w: Call({"logits": w.x, "labels": torch.zeros(len(w.x), dtype=torch.int64)}),
    "ops.layer_norm": lambda w: Call({"x": w.x, "weight": torch.ones(WIDTH), "bias": torch.zeros(WIDTH)}),
    "ops.bias_act_dropout": lambda w: Call({"x": w.x, "bias": torch.ones(WIDTH), "act": "elu"}),
    "ops.bias_act_dropout drops": lambda w: Call(
        {"x": w.x, "bias": torch.ones(WIDTH), "p": 0.5, "inplace": False}, exact=False
    ),
    "ops.dense_linear": lambda w: Call({"x": w.x, "weight": torch.ones(5, WIDTH), "bias": torch.ones(5)}),
    "ops.sparse_linear": lambda w: Call({"x": w.sparse_x, "weight": torch.ones(5, WIDTH)}),
    "ops.sparse_dropout": lambda w: Call({"x": w.sparse_x, "p": 0.5, "training": True}, exact=False),
    "ops.edge_softmax": lambda w: Call({"csc": w.csc, "logits": torch.ones(EDGES, 2)}),
    "ops.edge_softmax of one": lambda w: Call({"csc": w.csc, "logits": w.csc.weight}),
    "ops.gat_attention": lambda w: Call(
        {"csc": w.csc, "x": w.x, "src_logit": w.x[:, :2], "dst_logit": w.x[:, 2:4]}, _with_grad
    ),
    "ops.gatv2_attention": lambda w: Call(
        {"csc": w.csc, "x_src": w.x, "x_dst": w.x, "att": torch.ones(2, 4)}, _with_grad
    ),
    "ops.gather_rows": lambda w: Call({"x": w.x, "ids": torch.tensor([3, 0, 7])}),
    "ops.gine": lambda w: Call(
        {
            "csc": w.csc,
            "x": w.x,
            "edges": torch.linspace(-1, 1, EDGES * WIDTH).view(EDGES, WIDTH),
            "loop_scale": 1.5,
        },
        _with_grad,
    ),
    "ops.aggregate_messages": lambda w: Call(
        {
            "csc": w.csc,
            "message": lambda x_j, x_i, weight: torch.sigmoid(x_i) * x_j * weight[:, None],
            "sources": [w.x.clone().requires_grad_()],
            "destinations": [w.x],
            "edges": [w.csc.weight],
            "reduction": "mean",
        },
        _with_grad,
        fixed=("message",),
    ),
    "ops.sddmm": lambda w: Call({"csc": w.csc, "dst_rows": w.x, "src_rows": w.x}, _with_grad),
    "nn.GINConv": lambda w: Call({"module": torch.nn.Linear(WIDTH, 4)}, _run_layer(w), exact=False),
    "nn.gcn_norm": lambda w: Call({"csc": w.csc}, lambda how: how.forward(w.x)),
    "nn.GraphSAGE on blocks": lambda w: Call(
        {"0": w.batch_blocks.x, "1": w.batch_blocks.blocks},
        _with_grad,
        function=_seeded(nn.GraphSAGE, WIDTH, 8, CLASSES),
    ),
    "nn.GCN on edge_index": lambda w: Call(
        {"0": w.x, "1": w.edge_index}, _with_grad, function=_seeded(nn.GCN, WIDTH, 8, CLASSES)
    ),
    "nn.make_model": lambda w: Call(
        {"name": "gcn", "in_channels": WIDTH, "out_channels": CLASSES, "hidden_channels": 8},
        _run_layer(w),
        ("heads", "dropout", "num_layers", "norm", "act", "aggr", "nope"),
        exact=False,
    ),
    "nn.model_options": lambda w: Call({"name": "gat"}),
    "compile": lambda w: Call(_compile_args(w, "gcn") | {"graph": w.graph}, _engine_use),
    "compile for batches": lambda w: Call({"model": w.model("gcn").eval()}, _batch_use),
    "BatchEngine": lambda w: Call(
        {"x": w.x, "edge_index": w.edge_index}, _with_grad, function=gb.compile(w.model("gcn").eval())
    ),
    "Engine": lambda w: Call(_compile_args(w, "gcn"), _engine_use, fixed=("rates",)),
    "fullgraph.lower": lambda w: Call(_compile_args(w, "gcn") | {"graph": w.graph}, str),
    "fullgraph.estimated_bytes": lambda w: Call({"model": w.model("gcn"), "graph": w.graph}),
    "fullgraph.distribute": lambda w: Call(_distributed(w), str),
    "fullgraph.PipelineConfig": lambda w: Call({"ps": 4, "dist": 2, "wpb": 1}, str),
}
add(_CALLS)
