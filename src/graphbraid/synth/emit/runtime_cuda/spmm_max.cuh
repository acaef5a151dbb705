// Largest message per destination and column, and the edges that its gradient goes to:
//
//   out[v, f] = max of x[u, f] over the edges u -> v; 0 in an empty row; a NaN wins
//   found[v, f]:
//     Ties::kFirst   the first edge with the maximum, counted in the row; -1 in an empty row
//     else           the number of edges with the maximum; 0 of a NaN and in an empty row
//     kSharedWithZero  one more if the maximum is 0
//
// The gradient goes by source over the transposed edges: a source gets its share of each maximum that its
// message equals, which it finds by comparing again. As in csrc/aggregate/spmm_max.inl.
#pragma once

#include "sums.cuh"

namespace program {

struct MaxTask {
  Edges edges;
  ConstMatrix x;
  Ties ties;
  Matrix out;
  int32_t* found;          // null: not asked for
  float* partial;          // (parts of long rows, columns)
  int32_t* partial_found;  // likewise
};

// The largest message so far, and where or how often it was found.
struct Best {
  float value = -INFINITY;
  int32_t found = 0;

  // A larger message, or the first NaN, replaces `found` by `taken`. An equal message adds `tie` to it.
  __device__ void keep_larger(float message, int32_t taken, int32_t tie) {
    const bool wins = !(message <= value) && value == value;
    found = wins ? taken : message == value ? found + tie : found;
    if (wins) value = message;
  }
};

// The best of the edges [begin, end) of the row that begins at edge `first`.
__device__ inline Best best_of(const MaxTask& task, int64_t first, int64_t begin, int64_t end,
                               int64_t column) {
  Best best;
  for (int64_t e = begin; e < end; ++e) {
    const float message = task.x.data[node_at(task.edges, e) * task.x.row_stride + column];
    const bool counts = task.ties != Ties::kFirst;
    if (e == begin && !counts) best.found = static_cast<int32_t>(e - first);
    best.keep_larger(message, counts ? 1 : static_cast<int32_t>(e - first), counts ? 1 : 0);
  }
  return best;
}

__device__ inline void finish_max(const MaxTask& task, int64_t row, int64_t column, Best best) {
  const bool is_empty = task.edges.indptr[row] == task.edges.indptr[row + 1];
  if (is_empty) best = {0.0f, task.ties == Ties::kFirst ? -1 : 0};
  if (task.ties != Ties::kFirst) {
    if (best.value == 0 && task.ties == Ties::kSharedWithZero && !is_empty) ++best.found;
    if (best.value != best.value) best.found = 0;
  }
  task.out.data[row * task.out.columns + column] = best.value;
  if (task.found) task.found[row * task.out.columns + column] = best.found;
}

template <int Lanes>
__global__ void max_rows(const MaxTask task) {
  const int64_t row = row_number<Lanes>();
  if (row >= task.edges.num_rows) return;
  const int64_t begin = task.edges.indptr[row], end = task.edges.indptr[row + 1];
  if (is_long(task.edges, end - begin)) return;
  for (int64_t column = threadIdx.x % Lanes; column < task.out.columns; column += Lanes)
    finish_max(task, row, column, best_of(task, begin, begin, end, column));
}

template <int Lanes>
__global__ void max_parts(const MaxTask task) {
  const int64_t part = row_number<Lanes>();
  if (part >= task.edges.long_rows.num_parts) return;
  const int64_t* about = task.edges.long_rows.parts + 3 * part;
  for (int64_t column = threadIdx.x % Lanes; column < task.out.columns; column += Lanes) {
    const Best best = best_of(task, task.edges.indptr[about[0]], about[1], about[2], column);
    task.partial[part * task.out.columns + column] = best.value;
    task.partial_found[part * task.out.columns + column] = best.found;
  }
}

template <int Lanes>
__global__ void join_max(const MaxTask task) {
  const int64_t number = row_number<Lanes>();
  if (number >= task.edges.long_rows.num_rows) return;
  const int64_t* about = task.edges.long_rows.rows + 3 * number;
  for (int64_t column = threadIdx.x % Lanes; column < task.out.columns; column += Lanes) {
    Best best;
    for (int64_t part = about[1]; part < about[2]; ++part) {
      const int64_t place = part * task.out.columns + column;
      const int32_t found = task.partial_found[place];
      best.keep_larger(task.partial[place], found, task.ties == Ties::kFirst ? 0 : found);
    }
    finish_max(task, about[0], column, best);
  }
}

// The edges are those of the transpose; share holds each maximum's gradient over its number of edges.
struct SharedTerms {
  Edges edges;
  ConstMatrix share, largest, x;
  Matrix out;
  float* partial;

  __device__ int64_t columns() const { return out.columns; }
  __device__ bool leaves_out(int64_t, int64_t) const { return false; }
  __device__ float coefficient(int64_t, int64_t) const { return 1.0f; }
  // No message is above the maximum, so a message that is not below it is equal. Comparisons with a NaN are
  // false: all messages of the row share a maximum that is a NaN.
  __device__ float number(int64_t row, int64_t node, int64_t column) const {
    const bool is_below = x.data[row * x.row_stride + column] < largest.data[node * largest.columns + column];
    return is_below ? 0.0f : share.data[node * share.row_stride + column];
  }
  __device__ void finish(int64_t row, int64_t column, float sum) const {
    out.data[row * out.columns + column] = sum;
  }
};

}  // namespace program
