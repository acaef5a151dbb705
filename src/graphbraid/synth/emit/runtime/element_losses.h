// The losses of an output and its label, for the kernels of CPUs and of GPUs.
#pragma once

#include <cmath>

#include "matrix.h"

namespace program {

struct ElementLoss {
  float loss, grad;
};

// Binary cross entropy of a logit x and a label y: max(x, 0) - x y + log(1 + exp(-|x|)); its gradient is
// sigmoid(x) - y.
struct BinaryLoss {
  GB_EVERYWHERE static ElementLoss of(float output, float target) {
    const float small = expf(-fabsf(output));  // at most 1, so that nothing overflows
    const float likely = output >= 0 ? 1.0f / (1.0f + small) : small / (1.0f + small);
    return {fmaxf(output, 0.0f) - output * target + log1pf(small), likely - target};
  }
};

struct SquaredLoss {
  GB_EVERYWHERE static ElementLoss of(float output, float target) {
    const float rest = output - target;
    return {rest * rest, 2.0f * rest};
  }
};

struct RightSign {
  GB_EVERYWHERE static ElementLoss of(float output, float target) {
    return {(output > 0.0f) == (target > 0.5f) ? 1.0f : 0.0f, 0.0f};
  }
};

}  // namespace program
