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
  double learning_rate = 0, momentum = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
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
  Tensor at(int64_t offset) const { return Tensor(begin_ + offset); }

 private:
  char* begin_;
};

}  // namespace program
