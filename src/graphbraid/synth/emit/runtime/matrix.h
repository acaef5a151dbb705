// What the kernels of every target are told of rows, edges, coefficients, attention and labels.
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

  // To one that is only read.
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

// A place in a step's arena. Which shape stands there, each call says.
class Tensor {
 public:
  explicit Tensor(char* begin) : begin_(begin) {}
  Matrix operator()(int64_t rows, int64_t columns) const { return contiguous(floats(), rows, columns); }
  // The first columns of rows that are so many floats apart.
  Matrix operator()(int64_t rows, int64_t columns, int64_t row_stride) const {
    return strided(floats(), rows, columns, row_stride, 1);
  }
  float* floats() const { return reinterpret_cast<float*>(begin_); }
  int32_t* int32s() const { return reinterpret_cast<int32_t*>(begin_); }
  // What stands so many bytes behind its beginning.
  Tensor behind(int64_t bytes) const { return Tensor(begin_ + bytes); }

 private:
  char* begin_;
};

// The rows with more than `edges` edges, which a GPU sums in parts of so many edges, and the parts then in
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

// What follows a kernel's sums, row by row: dropout(act(row + bias), p). Nothing, if all is left out.
struct RowEpilogue {
  const float* bias = nullptr;
  Act act = Act::kNone;
  double slope = 0.01;
  double p = 0;
  uint64_t seed = 0;
  const int64_t* ids = nullptr;  // (rows,): the row that each row's mask is drawn for; null: itself
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

// Rows of the outputs, (count,), each another one, with their labels, (count,); `total` is the number of all
// ranks' rows.
struct LabelledRows {
  const int64_t* rows = nullptr;
  const int64_t* labels = nullptr;  // one class for each row
  const float* targets = nullptr;   // or a number for each output of each row
  int64_t count = 0, total = 0;
};

}  // namespace program
