// What surrounds the kernels in training: the update of parameters and the arena.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu_kernels.h"
#include "epochs.h"
#include "weights.h"

namespace program {

// The rules of PyTorch's SGD, Adam and AdamW.
struct Optimizer {
  enum Kind { kSgd, kAdam, kAdamW };
  Kind kind;
  double learning_rate, momentum, beta1, beta2, weight_decay, eps;
  int64_t num_steps = 0;

  void step(std::vector<Parameter>& parameters);
};

// Memory that begins at a page, in large pages where the system has them.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();
  Matrix matrix(int64_t offset, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride);
  int32_t* int32s(int64_t offset);

 private:
  char* begin_;
};

}  // namespace program
