// Arguments of the kernel of messages (messages.inl), checked by messages.cpp, and the program that it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "arguments/rows.h"

namespace gb {

// The operation of a step. It computes a row for each edge u -> v: `width` floats, or one float for each
// head. Python has the same numbers (ops/message_steps.py).
enum class MessageOp : int64_t {
  kSource,       // row u of matrix a of the sources
  kDestination,  // row v of matrix a of the destinations
  kEdge,         // the edge's own row
  kWeight,       // the edge's weight in each column
  kParameter,    // row a of the parameters
  kNumber,       // the number in each column
  kEdgeNumber,   // number a of the edge's own row in each column
  kAdd,          // of steps a and b, as all up to kWhere
  kSubtract,
  kMultiply,
  kDivide,
  kReluGradient,       // a, or 0 where b <= 0
  kLeakyReluGradient,  // a, or a times the number where b is not above 0
  kSigmoidGradient,    // a (1 - b) b
  kTanhGradient,       // a (1 - b b)
  kAbsGradient,        // a times the sign of b
  kEqual,              // 1 where a equals b, else 0
  kWhere,              // a, or 0 where b is 0
  kRelu,               // of step a, as all below
  kLeakyRelu,          // times the number below zero
  kSigmoid,
  kTanh,
  kExp,
  kAbs,
  kSumColumns,  // a wide row's sum over each head's columns: a narrow row
  kSpread,      // a narrow row's numbers in all columns of their heads: a wide row
};
inline constexpr int64_t kNumMessageOps = static_cast<int64_t>(MessageOp::kSpread) + 1;
inline constexpr bool is_leaf(MessageOp op) { return op < MessageOp::kAdd; }
inline constexpr bool reads_two(MessageOp op) { return op >= MessageOp::kAdd && op <= MessageOp::kWhere; }
inline constexpr bool changes_width(MessageOp op) { return op >= MessageOp::kSumColumns; }

// How a step's rows are reduced.
enum class MessageResult : int64_t {
  kSum,  // over the edges of each walked row, as the next three
  kMax,
  kMin,
  kLogSumExp,  // the maximum m, and at the next place log(sum of exp(row - m))
  kOverAll,    // the sum over all edges: a parameter's gradient
};
inline constexpr int64_t kNumMessageResults = static_cast<int64_t>(MessageResult::kOverAll) + 1;

inline constexpr int kMostSources = 4, kMostDestinations = 10, kMostResults = 4;
inline constexpr int kMostSteps = 2048;  // of a message and its gradient, which has up to six for each step

// A step that reads rows of a matrix.
struct MessageLeaf {
  int step;
  Rows rows;
  int64_t columns;
};

// The interpreter's instructions: elementwise steps on an accumulator, by MessageOp, and these.
enum MessageCode : int {
  kReverseSubtract = static_cast<int>(kNumMessageOps),  // operand - accumulator
  kReverseDivide,
  kLoad,       // accumulator = operand
  kStore,      // the accumulator, as the row of a step
  kScale,      // accumulator *= the edge's number
  kAddScaled,  // accumulator += the edge's number * operand
  kResult,     // adds the accumulator to a result; by MessageResult, kResult + kind
  kScaledResult = kResult + static_cast<int>(kNumMessageResults),  // adds the edge's number * accumulator
};
struct MessageInstruction {
  int code;
  int step;  // the step whose row is the operand, or is stored; or the number of the result
  float number;
  int scale;  // the leaf that is the edge's number; -1: none
};

// Steps in the order in which they run: those of a phase read one another and earlier phases.
struct MessagePhase {
  std::vector<int> reshaped;  // steps that change the width, before all others
  std::vector<MessageInstruction> narrow, wide;
};

// The walked rows are the destinations, with the graph's in-edges; or the sources, with those of its
// transpose. All floats.
struct MessageArgs {
  EdgeRows walk;  // its `x` and `weight` are not used; `width` columns
  int64_t heads = 1;
  const int64_t* perm = nullptr;   // edge of the walk -> edge; null: the same
  const int64_t* steps = nullptr;  // (num_steps, 4): what, a, b, whether its row is narrow
  const float* numbers = nullptr;  // (num_steps,)
  int num_steps = 0;
  const float* weight = nullptr;      // (num_edges,); null if no step reads it
  const float* parameters = nullptr;  // (num_parameters, width); a narrow one fills the first columns
  std::vector<MessageLeaf> walked, reached, of_edges;  // read by the walked row, the other end, the edge
  Rows edges;                                          // (num_edges, any), where steps read numbers of edges
  std::vector<MessagePhase> phases;
  std::vector<int> stored;  // steps that have a row of their own
  std::vector<int> filled;  // leaves of an edge's number that are read as rows

  struct Result {
    MessageResult kind;
    bool narrow;
    float* to;  // (num_dst, columns); of kOverAll one row
    int64_t columns;
    float* logs = nullptr;     // of kLogSumExp
    int32_t* count = nullptr;  // of kMax and kMin: messages that share the extremum; null: not asked for
    int64_t counted = 0;       // columns of the counts of all extrema
  };
  std::vector<Result> results;
  bool adds = false;  // whether sums are added to what their results hold
};

// By the variant in use.
void run_messages(const MessageArgs& a);

}  // namespace gb
