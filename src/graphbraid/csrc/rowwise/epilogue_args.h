// Arguments of the epilogue kernels, checked by epilogue.cpp and filled alike for every variant.
#pragma once

#include "arguments/rows.h"

namespace gb {

struct EpilogueArgs {
  DType dtype = DType::kFloat32;
  int64_t num_rows = 0, width = 0;
  Rows x;               // (num_rows, width); backward: the forward's output
  Rows grad;            // backward only
  void* out = nullptr;  // backward: gradient of x
  int64_t out_stride = 0;
  void* grad_bias = nullptr;
  Epilogue how;
};

// By the variant in use.
void run_epilogue(const EpilogueArgs& a);
void run_epilogue_backward(const EpilogueArgs& a);

}  // namespace gb
