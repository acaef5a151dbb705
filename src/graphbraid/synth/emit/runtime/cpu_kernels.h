// Functions that only programs for CPUs have, beside the kernels of every target.
#pragma once

#include "kernels.h"

namespace program {

// Chooses the fastest kernels that this processor can run. Call it first.
void choose_variant();

// Fills the rows that a kernel walks, and their edges, into arguments of csrc/.
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
// Updates the running statistics by the mean and the biased variance of num_rows rows. a.rstd holds that
// variance before, and 1 / sqrt(variance + eps) after.
void track_statistics(const BatchStatistics& a, int64_t num_rows);

}  // namespace program
