// Arguments of the normalisation kernels, checked by norm.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

#include "base/dtypes.h"

namespace gb {

struct NormArgs {
  DType dtype = DType::kFloat32;  // dtype of x, grad and out
  int64_t num_rows = 0, width = 0;
  const void* x = nullptr;     // (num_rows, width), contiguous, as are grad and out
  const void* grad = nullptr;  // backward only
  void* out = nullptr;         // may be x; backward: gradient of x, may be grad or null
  // In the dtype of the sums. Per row in layer normalisation, per column in batch normalisation:
  const void* mean = nullptr;
  const void* rstd = nullptr;    // 1 / sqrt(variance + eps)
  void* new_mean = nullptr;      // written by layer_norm and column_moments; may be null
  void* new_rstd = nullptr;      // written by layer_norm; may be null
  void* new_variance = nullptr;  // written by column_moments
  const void* weight = nullptr;  // (width,); null: ones
  const void* bias = nullptr;    // (width,); null: zeros
  double eps = 0;
  bool from_rows = false;       // batch backward: mean and rstd were computed from x, not running ones
  void* grad_weight = nullptr;  // (width,)
  void* grad_bias = nullptr;    // (width,)
};

}  // namespace gb
