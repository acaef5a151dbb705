// Arguments of the kernels of messages (messages.inl), checked by messages.cpp.
#pragma once

#include <cstdint>

#include "arguments/rows.h"

namespace gb {

// What a step computes for each edge u -> v, a row of `width` floats. Python has the same numbers
// (ops/message_steps.py).
enum class MessageOp : int64_t {
  kSource,       // row u of matrix a of the sources
  kDestination,  // row v of matrix a of the destinations
  kEdge,         // the edge's own row
  kWeight,       // the edge's weight in each column
  kParameter,    // row a of the parameters
  kNumber,       // the number in each column
  kAdd,          // of steps a and b, as the next three
  kSubtract,
  kMultiply,
  kDivide,
  kRelu,       // of step a, as all below
  kLeakyRelu,  // times the number below zero
  kSigmoid,
  kTanh,
  kExp,
  kAbs,
  kSumColumns,  // the sum of the row in each column
};
inline constexpr int64_t kNumMessageOps = static_cast<int64_t>(MessageOp::kSumColumns) + 1;

enum class MessageReduction : int64_t { kSum, kMax, kMin };

inline constexpr int kMostMatrices = 2;  // of sources, and of destinations
inline constexpr int kMostSteps = 48;

// The rows that are walked are the destinations, with the graph's in-edges; or by source, with those of its
// transpose. All floats.
struct MessageArgs {
  EdgeRows walk;  // its `x` and `weight` are not used
  bool by_source = false;
  const int64_t* perm = nullptr;   // edge of the walk -> edge; null: the same
  const int64_t* steps = nullptr;  // (num_steps, 3): what, a, b
  const float* numbers = nullptr;  // (num_steps,)
  int num_steps = 0;
  Rows sources[kMostMatrices] = {}, destinations[kMostMatrices] = {}, edges = {};
  const float* weight = nullptr;      // (num_edges,)
  const float* parameters = nullptr;  // (num_parameters, width)
  int64_t num_parameters = 0;
  MessageReduction reduction = MessageReduction::kSum;
};

struct MessageForwardArgs : MessageArgs {
  float* out = nullptr;      // (num_dst, width)
  int32_t* count = nullptr;  // (num_dst, width): messages that share a maximum; null for sums
};

struct MessageBackwardArgs : MessageArgs {
  const float* grad = nullptr;  // (num_dst, width), of each message alike
  // (num_dst, width): only messages equal to it have the gradient; or null.
  const float* largest = nullptr;
  // Added to: of the matrices that are walked, (num_rows, width); or null.
  float* grads[kMostMatrices] = {};
  float* grad_parameters = nullptr;  // (num_parameters, width); may be null
};

}  // namespace gb
