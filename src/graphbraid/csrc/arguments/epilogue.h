// What may follow a kernel's sums, row by row:  out = mask * act(x + bias). Checked by
// epilogue_arguments.h, applied by epilogue_rows.inl.
#pragma once

#include <cstdint>

namespace gb {

enum class Act : int { kNone = 0, kRelu = 1, kLeakyRelu = 2, kElu = 3 };

struct Epilogue {
  Act act = Act::kNone;
  double slope = 0.01;
  const void* bias = nullptr;  // (width,), dtype of the sums
  uint32_t threshold = 0;      // drop where the 32 random bits are below
  double keep_scale = 1;
  uint64_t seed = 0;
  const int64_t* ids = nullptr;  // (num_rows,): the row that each row's mask is drawn for; null: itself
};

}  // namespace gb
