// Arguments of the cross-entropy kernel, checked by cross_entropy.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

namespace gb {

struct CrossEntropyArgs {
  int64_t num_rows = 0, num_classes = 0;
  const float* logits = nullptr;    // (num_rows, num_classes), contiguous
  const int64_t* labels = nullptr;  // (num_rows,), each a class or `ignored`
  int64_t ignored = 0;
  const float* weights = nullptr;  // (num_classes,); null: ones
  double mass = 0;                 // sum of the weights of the rows' classes
  float* grad = nullptr;           // (num_rows, num_classes), written; may be null
};

}  // namespace gb
