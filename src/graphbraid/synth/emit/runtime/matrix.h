// What the kernels of every target are told of rows, coefficients and attention.
#pragma once

#include <cstdint>
#include <type_traits>

namespace program {

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

// The factors of an aggregation, each null for ones.
struct Factors {
  const float* weight;     // of edges
  const float* src_scale;  // of sources
  const float* dst_scale;  // of destinations
  const float* loop;       // of the implicit self-loops
};

// How attention is computed: see csrc/attention/attention.h.
struct Attention {
  double slope;
  int64_t num_loops;
  double p;
  uint64_t seed;
  const int64_t* first_keys;
};

}  // namespace program
