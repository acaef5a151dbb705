// What a program for a GPU has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// The rows with more than `edges` edges, which are summed in parts of so many edges, and the parts then in
// order: rows (num_rows, 3) hold a row, its first part and the one behind its last; parts (num_parts, 3) a
// row, its first edge and the one behind its last.
struct LongRows {
  int64_t edges = 0;
  const int64_t* rows = nullptr;
  int64_t num_rows = 0;
  const int64_t* parts = nullptr;
  int64_t num_parts = 0;
};

// The edges into each of num_rows rows.
struct Edges {
  const int64_t* indptr;
  const void* indices;
  bool wide;  // whether ids have 64 bits instead of 32
  int64_t num_rows, num_edges;
  LongRows long_rows = {};
};

// The sums of spmm over the transpose of the edges, which is not stored: each row is added to those of its
// edges' sources, with atomics, in no fixed order.
void spmm_transposed(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale,
                     int64_t num_loops, bool skip_loops, ConstMatrix addend, Matrix out);

}  // namespace program
