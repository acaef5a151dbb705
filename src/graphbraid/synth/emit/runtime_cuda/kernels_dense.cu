// Dense products of tall matrices, by gemm.h; rows by id are gathered a chunk at a time.
#include <algorithm>

#include "elements.cuh"
#include "gemm.h"
#include "gpu_memory.h"

namespace program {
namespace {

constexpr int64_t kChunkFloats = int64_t{1} << 24;  // gathered at a time

ConstMatrix transposed(ConstMatrix m) { return {m.data, m.columns, m.rows, m.column_stride, m.row_stride}; }

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
    const Matrix rows{chunk, count, x.columns, x.columns};
    launch("gather", fill<Gathered>, count * x.columns, Gathered{x, ids + first}, rows);
    f(first, rows);
  }
}

}  // namespace

void tall_product(ConstMatrix a, ConstMatrix b, Matrix out, bool add, const int64_t* ids,
                  const gb::Epilogue* after) {
  if (out.rows == 0 || out.columns == 0) return;
  if (ids == nullptr)
    gemm(a, b, out, add);
  else
    for_chunks(a, ids, out.rows, [&](int64_t first, ConstMatrix rows) {
      gemm(rows, b, {out.data + first * out.row_stride, rows.rows, out.columns, out.row_stride}, add);
    });
  if (after) epilogue(out, *after, out);
}

void tall_gram(ConstMatrix a, ConstMatrix b, Matrix out, const int64_t* ids) {
  if (out.rows == 0 || out.columns == 0) return;
  if (a.rows == 0) return set_zero(out);
  if (ids == nullptr) return gemm(transposed(a), b, out, false);
  for_chunks(b, ids, a.rows, [&](int64_t first, ConstMatrix rows) {
    gemm(transposed(rows_of(a, first, rows.rows)), rows, out, first > 0);
  });
}

}  // namespace program
