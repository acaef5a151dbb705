"""The graphs that full-graph training and the prediction of reads are measured on, by name."""

from __future__ import annotations

GENERATED = ("corafull-like", "physics-like", "flickr-like", "arxiv-like", "products-lite", "reddit-lite")
"""Graphs of :mod:`benchmarks.graphs.rmat`."""
REAL = ("coauthor_physics", "nell", "blogcatalog", "amazon_computers", "facebook_pages")
"""Graphs from archives."""
LARGE = ("products-lite", "reddit-lite")
"""Graphs whose epochs take PyG ten seconds."""
OF_MODEL = {
    "gcn": GENERATED,
    # PyG's messages of four heads on the larger two do not fit in 24 GiB.
    "gat": GENERATED[:4],
    # PyG's messages of the features' width on physics-like and reddit-lite do not fit either.
    "sage": ("corafull-like", "flickr-like", "arxiv-like", "products-lite", *REAL[3:]),
    # After five steps GIN's loss on corafull-like is 10^4, and float32 decides it: PyG's 9,871, ours and one
    # in float64 9,893.
    "gin": ("flickr-like", "arxiv-like", "products-lite", *REAL[3:]),
}
"""What each model is measured on."""
PREDICTED = (
    "web_cnr2000",
    "collab_dblp2010",
    "email_enron",
    "github_social",
    "coauthor_physics",
    "products-lite",
    "web-like",
)
"""What the prediction of reads is measured on: five real graphs, two generated ones."""
CUT = ("mesh_4elt", "email_enron", "collab_dblp2010", "web_cnr2000")
"""What partitions are measured on: a mesh, a mail network, collaborations and a web graph."""
