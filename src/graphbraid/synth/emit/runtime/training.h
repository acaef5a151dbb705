// The memory of a step, and the headers of kernels, epochs, optimizer and weights.
#pragma once

#include <cstdint>

#include "cpu_kernels.h"
#include "epochs.h"
#include "optimizer.h"
#include "weights.h"

namespace program {

// A step's memory. It begins at a page; its pages are large ones if the system has them.
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
