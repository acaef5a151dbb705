"""Matrices of zeros and ones, and the words that hold them, made the slow and plain way."""

import torch

from graphbraid.ops.binary import WORD_BITS


def zeros_and_ones(num_rows, num_columns, *, density=0.4, seed=0):
    draw = torch.Generator().manual_seed(seed + 1000 * num_rows + num_columns)
    return (torch.rand(num_rows, num_columns, generator=draw) < density).float()


def packed(x):
    """``(ceil(num_columns / 32), num_rows)`` int32: bit j of word w of row i is ``x[i, 32 w + j]``."""
    num_rows, num_columns = x.shape
    words = torch.zeros(-(-num_columns // WORD_BITS), num_rows, dtype=torch.int64)
    for column in range(num_columns):
        words[column // WORD_BITS] |= x[:, column].long() << (column % WORD_BITS)
    return torch.where(words >= 2**31, words - 2**32, words).int()
