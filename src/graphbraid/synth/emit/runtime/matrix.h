// The rows, edges, coefficients, attention and labels that the kernels of every target take.
#pragma once

#include <cstdint>
#include <type_traits>

#include "arguments/epilogue.h"

#ifdef __CUDACC__
#define GB_EVERYWHERE __host__ __device__
#else
#define GB_EVERYWHERE
#endif

namespace program {

using gb::Act;

// A float32 matrix in memory: element (i, j) stands at data[i * row_stride + j * column_stride].
template <typename Float>
struct MatrixOf {
  Float* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 1;

  // Converts to a matrix that is only read.
  template <typename Read, typename = std::enable_if_t<std::is_same_v<Read, const Float>>>
  operator MatrixOf<Read>() const {
    return {data, rows, columns, row_stride, column_stride};
  }
};
using Matrix = MatrixOf<float>;
using ConstMatrix = MatrixOf<const float>;

// Rows one behind the other.
template <typename Float>
MatrixOf<Float> contiguous(Float* data, int64_t rows, int64_t columns) {
  return {data, rows, columns, columns, 1};
}

template <typename Float>
MatrixOf<Float> strided(Float* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int64_t column_stride) {
  return {data, rows, columns, row_stride, column_stride};
}

template <typename Float>
MatrixOf<Float> transposed(const MatrixOf<Float>& m) {
  return {m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

// A place in a step's arena. Each use gives the shape of the tensor there.
class Tensor {
 public:
  explicit Tensor(char* begin) : begin_(begin) {}
  Matrix operator()(int64_t rows, int64_t columns) const { return contiguous(floats(), rows, columns); }
  // The first columns of rows that are row_stride floats apart.
  Matrix operator()(int64_t rows, int64_t columns, int64_t row_stride) const {
    return strided(floats(), rows, columns, row_stride, 1);
  }
  float* floats() const { return reinterpret_cast<float*>(begin_); }
  int32_t* int32s() const { return reinterpret_cast<int32_t*>(begin_); }
  // The place that many bytes behind this one.
  Tensor behind(int64_t bytes) const { return Tensor(begin_ + bytes); }

 private:
  char* begin_;
};

// The rows with more than `edges` edges. A GPU sums such a row in parts of at most `edges` edges, and then
// adds up the parts in order.
//   rows (num_rows, 3): a row, its first part, and the part behind its last one
//   parts (num_parts, 3): a row, the part's first edge, and the edge behind its last one
struct LongRows {
  int64_t edges = 0;
  const int64_t* rows = nullptr;
  int64_t num_rows = 0;
  const int64_t* parts = nullptr;
  int64_t num_parts = 0;
};

// The edges into each of num_rows rows.
struct Edges {
  const int64_t* indptr = nullptr;
  const void* indices = nullptr;
  bool wide = false;  // whether ids have 64 bits instead of 32
  int64_t num_rows = 0, num_edges = 0;
  LongRows long_rows = {};
};

// The factors of an aggregation, each null for ones.
struct Factors {
  const float* weight = nullptr;     // of edges
  const float* src_scale = nullptr;  // of sources
  const float* dst_scale = nullptr;  // of destinations
  const float* loop = nullptr;       // of the implicit self-loops
};

// An epilogue of each row that a kernel has summed: dropout(act(row + bias), p). By default it does nothing.
struct RowEpilogue {
  const float* bias = nullptr;
  Act act = Act::kNone;
  double slope = 0.01;
  double p = 0;
  uint64_t seed = 0;
  const int64_t* ids = nullptr;  // (rows,): number by which each row's mask is drawn; null: the row's own
};

inline bool is_empty(const RowEpilogue& how) {
  return how.bias == nullptr && how.act == Act::kNone && how.p == 0;
}

// How attention is computed: see csrc/attention/attention.h.
struct Attention {
  double slope = 0;
  int64_t num_loops = 0;
  double p = 0;
  uint64_t seed = 0;
  const int64_t* first_keys = nullptr;
};

// Different rows of the outputs, (count,), with their labels, (count,). `total` is the number of such rows of
// all ranks.
struct LabelledRows {
  const int64_t* rows = nullptr;
  const int64_t* labels = nullptr;  // one class for each row
  const float* targets = nullptr;   // or a number for each output of each row
  int64_t count = 0, total = 0;
};

}  // namespace program
