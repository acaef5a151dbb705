// What surrounds the kernels in training: the arena, and what its passes and updates read.
#pragma once

#include <cstdint>

#include "cpu_kernels.h"
#include "epochs.h"
#include "optimizer.h"
#include "weights.h"

namespace program {

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
