"""The graphs that benchmarks run on: generated ones, those of archives, and the library's embedded ones.

A graph is a folder of ``indptr.npy``, ``indices.npy`` (CSC, int64), ``x.npy``, ``y.npy`` and
``train_idx.npy``, which any library can read. ``python -m benchmarks.graphs`` makes them.
"""
