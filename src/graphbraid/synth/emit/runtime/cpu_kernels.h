// What a program for processors has beside the kernels of every target.
#pragma once

#include "kernels.h"

namespace program {

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// Gives arguments of csrc/ the rows that a kernel walks, and their edges.
template <typename Args>
void take_edges(const Edges& edges, Args& a) {
  a.wide_indices = edges.wide;
  a.indptr = edges.indptr;
  a.indices = edges.indices;
  a.num_dst = edges.num_rows;
  a.num_edges = edges.num_edges;
}

// The mean and the biased variance of x's columns.
void column_moments(ConstMatrix x, float* mean, float* variance);
// Gives the running ones their share of a mean and a biased variance of num_rows rows; rstd holds the
// variance and becomes 1 / sqrt(variance + eps).
void track_statistics(const BatchStatistics& a, int64_t num_rows);

}  // namespace program
