"""Layers and models on graphbraid's fused operators, with PyTorch Geometric's parameters and semantics."""

from graphbraid.nn.conv import Conv, GINConv, GraphModel, SAGEConv
from graphbraid.nn.encoders import BasisRGCNConv, NodeEmbedding, RGCNEncoder, ShardedEmbedding
from graphbraid.nn.gat import GATConv, GATv2Conv
from graphbraid.nn.gcn import GCNConv, gcn_norm
from graphbraid.nn.link_predictors import (
    DotProduct,
    EdgeDecoder,
    EdgeModel,
    LinkModel,
    LinkPredictor,
    MLPPredictor,
)
from graphbraid.nn.models import (
    GAT,
    GCN,
    GIN,
    MLP,
    MODELS,
    TYPED_MODELS,
    GATv2,
    GraphSAGE,
    PooledModel,
    make_model,
    make_typed_model,
    model_options,
)
from graphbraid.nn.relation_predictors import ComplEx, DistMult, RelationPredictor, RotatE, TransE
from graphbraid.nn.rgcn import RGCNConv
from graphbraid.nn.typed_models import RGCN

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "MLP",
    "MODELS",
    "RGCN",
    "TYPED_MODELS",
    "BasisRGCNConv",
    "ComplEx",
    "Conv",
    "DistMult",
    "DotProduct",
    "EdgeDecoder",
    "EdgeModel",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GraphModel",
    "GraphSAGE",
    "LinkModel",
    "LinkPredictor",
    "MLPPredictor",
    "NodeEmbedding",
    "PooledModel",
    "RGCNConv",
    "RGCNEncoder",
    "RelationPredictor",
    "RotatE",
    "SAGEConv",
    "ShardedEmbedding",
    "TransE",
    "gcn_norm",
    "make_model",
    "make_typed_model",
    "model_options",
]
