// Kernels of one thread for each element of a matrix: the epilogue and its gradient, copies, sums.
#pragma once

#include "rows.cuh"

namespace program {

template <typename Float>
__device__ inline Float& at(const MatrixOf<Float>& m, int64_t row, int64_t column) {
  return m.data[row * m.row_stride + column * m.column_stride];
}

// out[row, column] = values(row, column).
template <typename Values>
__global__ void fill(const Values values, const Matrix out) {
  const int64_t row = thread_number() / out.columns, column = thread_number() % out.columns;
  if (row < out.rows) at(out, row, column) = values(row, column);
}

struct Zeros {
  __device__ float operator()(int64_t, int64_t) const { return 0.0f; }
};

struct Same {
  ConstMatrix x;
  __device__ float operator()(int64_t row, int64_t column) const { return at(x, row, column); }
};

struct SameCounts {
  const int32_t* x;
  int64_t columns;
  __device__ float operator()(int64_t row, int64_t column) const {
    return static_cast<float>(x[row * columns + column]);
  }
};

struct Sum {
  ConstMatrix x, y;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) + at(y, row, column);
  }
};

struct Quotient {
  ConstMatrix x, divisor;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) / at(divisor, row, column);
  }
};

struct OverDegrees {
  ConstMatrix x;
  const int64_t* indptr;
  __device__ float operator()(int64_t row, int64_t column) const {
    const int64_t degree = indptr[row + 1] - indptr[row];
    return at(x, row, column) * (1.0f / static_cast<float>(degree > 1 ? degree : 1));
  }
};

struct OverCounts {
  ConstMatrix x;
  const int32_t* count;
  __device__ float operator()(int64_t row, int64_t column) const {
    const int32_t found = count[row * x.columns + column];
    return at(x, row, column) / static_cast<float>(found > 1 ? found : 1);
  }
};

struct SumWithProduct {
  ConstMatrix sum, x, y;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(sum, row, column) + at(x, row, column) * at(y, row, column);
  }
};

struct Product {
  ConstMatrix x, y;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) * at(y, row, column);
  }
};

// (1 + factor) x, behind what is in `sum`, if it has data.
struct Scaled {
  ConstMatrix x, sum;
  const float* factor;
  __device__ float operator()(int64_t row, int64_t column) const {
    const float scaled = (1.0f + *factor) * at(x, row, column);
    return sum.data ? at(sum, row, column) + scaled : scaled;
  }
};

// Rows by their ids.
struct Gathered {
  ConstMatrix x;
  const int64_t* ids;
  __device__ float operator()(int64_t row, int64_t column) const { return at(x, ids[row], column); }
};

struct Followed {
  ConstMatrix x;
  gb::Epilogue how;
  __device__ float operator()(int64_t row, int64_t column) const {
    return followed(how, row, column, at(x, row, column));
  }
};

// The gradient of an epilogue's input, from those of its result and from the result.
struct GradientThrough {
  ConstMatrix grad, result;
  gb::Epilogue how;
  __device__ float operator()(int64_t row, int64_t column) const {
    const float g = at(grad, row, column), y = at(result, row, column);
    const float scale = static_cast<float>(how.keep_scale);
    if (how.act == gb::Act::kRelu) return y > 0 ? g * scale : 0.0f;  // an output above 0 was kept
    const float mask = how.threshold ? mask_at(how, row, column) : 1.0f;
    return g * (mask * slope_at(how, y / scale));
  }
};

}  // namespace program
