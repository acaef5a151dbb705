// Dense products of tall matrices, by gemm.h; rows by id are gathered a chunk at a time.
#include <algorithm>

#include "elements.cuh"
#include "gemm.h"
#include "gpu_memory.h"

namespace program {
namespace {

constexpr int64_t kChunkFloats = int64_t{1} << 24;  // gathered at a time

ConstMatrix rows_of(ConstMatrix m, int64_t first, int64_t count) {
  return {m.data + first * m.row_stride, count, m.columns, m.row_stride, m.column_stride};
}

// Calls f(first, rows) for chunks of the rows x[ids[first]], x[ids[first + 1]], ...
template <typename F>
void for_chunks(ConstMatrix x, const int64_t* ids, int64_t num_rows, const F& f) {
  const int64_t most = std::min(num_rows, std::max<int64_t>(1, kChunkFloats / x.columns));
  const int64_t bytes = most * x.columns * static_cast<int64_t>(sizeof(float));
  float* chunk = static_cast<float*>(Workspace::begin(bytes));
  for (int64_t first = 0; first < num_rows; first += most) {
    const int64_t count = std::min(most, num_rows - first);
    const Matrix rows = contiguous(chunk, count, x.columns);
    launch("gather", fill<Gathered>, count * x.columns, Gathered{x, ids + first}, rows);
    f(first, rows);
  }
}

}  // namespace

void tall_product(const TallProduct& a) {
  const Matrix out = a.out;
  if (out.rows == 0 || out.columns == 0) return;
  if (a.ids == nullptr)
    gemm(a.a, a.b, out, a.add);
  else
    for_chunks(a.a, a.ids, out.rows, [&](int64_t first, ConstMatrix rows) {
      gemm(rows, a.b, {out.data + first * out.row_stride, rows.rows, out.columns, out.row_stride}, a.add);
    });
  if (!is_empty(a.after)) epilogue({.x = out, .how = a.after, .out = out});
}

void tall_gram(const TallGram& a) {
  if (a.out.rows == 0 || a.out.columns == 0) return;
  if (a.a.rows == 0) return set_zero(a.out);
  if (a.ids == nullptr) return gemm(transposed(a.a), a.b, a.out, false);
  for_chunks(a.b, a.ids, a.a.rows, [&](int64_t first, ConstMatrix rows) {
    gemm(transposed(rows_of(a.a, first, rows.rows)), rows, a.out, first > 0);
  });
}

}  // namespace program
