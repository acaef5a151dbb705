// Kernels of one thread for each element of a matrix: the epilogue and its gradient, copies, sums.
#pragma once

#include "elements.h"
#include "rows.cuh"

namespace program {

// out[row, column] = values(row, column).
template <typename Values>
__global__ void fill(const Values values, const Matrix out) {
  const int64_t row = thread_number() / out.columns, column = thread_number() % out.columns;
  if (row < out.rows) at(out, row, column) = values(row, column);
}

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
    if (how.act == gb::Act::kRelu) return y > 0 ? g * scale : 0.0f;  // a result above 0 was kept by dropout
    const float mask = how.threshold ? mask_at(how, row, column) : 1.0f;
    // y / scale is the activation's result: dropout has multiplied it by scale, or the mask is 0.
    return g * (mask * slope_at(how, y / scale));
  }
};

}  // namespace program
