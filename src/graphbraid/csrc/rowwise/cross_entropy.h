// Arguments of the cross-entropy kernel, checked by cross_entropy.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

namespace gb {

struct CrossEntropyArgs {
  int64_t num_rows = 0, num_classes = 0;
  const float* logits = nullptr;    // (num_rows, num_classes)
  const int64_t* labels = nullptr;  // (num_rows,), each a class or `ignored`
  const int64_t* rows = nullptr;    // (num_rows,) places in logits and grad, each once; null: 0, 1, ...
  int64_t logits_stride = 0, grad_stride = 0;  // floats from one row to the next
  int64_t ignored = 0;
  const float* weights = nullptr;  // (num_classes,); null: ones
  double mass = 0;                 // sum of the weights of the rows' classes
  float* grad = nullptr;           // (num_rows, num_classes), written in these rows; may be null
};

}  // namespace gb
