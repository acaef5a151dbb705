// What a segment is: its operations, with the values and operands that they read, by number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "rowwise/epilogue_args.h"
#include "segments/attentions.h"
#include "segments/messages.h"
#include "segments/rows.h"

namespace gb {

enum class Kind : int {
  kAggregateLinear,
  kAggregate,
  kLinear,
  kEpilogue,
  kFirstRows,
  kRowSum,
  kMeanOfHeads,
  kSideBySide,
  kGat,
  kGatv2,
  kDot,
  kMessages,
  kGine,
};
inline bool attends(Kind kind) { return kind >= Kind::kGat && kind <= Kind::kDot; }

// One operation. Values, operands and edges are named by number; -1: there is none.
struct Operation {
  Kind kind;
  // Values; `other` is a sum's second side, what a product adds, what an attention reads of its destinations,
  // or the rows of edges that GINE adds. Dot products have keys, and x has their values; other attentions
  // have rows of edges there. Two or three stand side by side.
  int x, other, key, out;
  // Operands; the other weight is of the destinations' own rows, or of `other`. GAT has the vectors of
  // sources and of destinations, GATv2 its only one. In the place of a bias, an attention has the map of
  // features; the operand behind it is GAT's vector of edges. GINE may have weight and bias of such a map.
  int weight, other_weight, bias;
  int edges;
  int act;
  double p;             // of dropout: of an attention, of its coefficients
  double factor;        // of GINE, with which nodes add their own rows
  Attention attention;  // of a mean of heads, their number alone
  // Of messages; and of dot products, for what these read of edges.
  std::shared_ptr<const Messages> messages = nullptr;
  int edge_rows = -1;  // of messages: the number of what they read of edges

  int edge_vector() const { return kind == Kind::kGat && bias >= 0 ? bias + 1 : -1; }
  // The values that it reads. One that messages read at both ends is there twice.
  std::vector<int> reads() const {
    std::vector<int> found;
    if (kind == Kind::kMessages)
      for (const std::vector<int>& of_side : messages->values)
        found.insert(found.end(), of_side.begin(), of_side.end());
    else
      for (const int value : {x, other, key})
        if (value >= 0) found.push_back(value);
    return found;
  }
};

// Rates of the machine as machine/hardware.py has them, a second: bytes of rows that are summed, bytes that
// are streamed, and operations of a product.
struct Rates {
  double row_bytes, stream_bytes, multiply_flops;
};

// One operation in one run: which gradients it computes, and what it keeps for them.
struct Step {
  bool of_x = false, of_other = false, of_key = false;
  bool of_weight = false, of_other_weight = false, of_bias = false;
  bool transforms_first = false, has_epilogue = false;
  bool sums_again = false;             // backward sums again, so the sums are not kept
  bool is_gated = false;               // the gradient has passed the ReLU already
  bool is_joined = false;              // a product that the attention behind it makes of its sums
  const Operation* product = nullptr;  // of an attention that sums first
  Epilogue epilogue = {};
  FloatMatrix sums = {};
  Attended attended = {};
  Sent sent = {};

  bool wants_any() const { return of_x || of_other || of_key || of_weight || of_other_weight || of_bias; }
};

struct Plan {
  std::vector<Operation> operations;
  size_t num_reads;         // the first values are made before the segment
  std::vector<View> views;  // of each operand, in the tensors that hold them
  size_t num_tensors;
  std::vector<int> writes;                 // the values that are read after it
  std::vector<int> first_read, last_read;  // by value: the operations that read it; -1: none
  // By value: whether only a product reads it, which makes some rows at a time where it needs them. Several
  // reductions side by side are several times as wide as what they are made of.
  std::vector<bool> by_rows;
  Rates rates;
  double leaky_slope;
  int look_microseconds;  // see begin_pass

  // The operation that makes a value.
  const Operation& maker(int value) const { return operations[value - num_reads]; }
  // Finds the values that are made by rows. What they are made of is then read by the product.
  void find_by_rows() {
    by_rows.assign(first_read.size(), false);
    const auto only_reader = [&](int value) -> const Operation* {
      const int place = first_read[value];
      if (place < 0 || place != last_read[value] || std::count(writes.begin(), writes.end(), value) > 0)
        return nullptr;
      const std::vector<int> read = operations[place].reads();
      return std::count(read.begin(), read.end(), value) == 1 ? &operations[place] : nullptr;
    };
    for (const Operation& op : operations) {
      if (op.kind != Kind::kMessages || !op.messages->is_several()) continue;
      const Operation* reader = only_reader(op.out);
      const bool is_beside = reader != nullptr && reader->kind == Kind::kSideBySide;
      const Operation* product = is_beside ? only_reader(reader->out) : reader;
      if (product == nullptr || product->kind != Kind::kLinear) continue;
      const bool is_x = product->x == (is_beside ? reader->out : op.out);
      const int weight = is_x ? product->weight : product->other_weight;
      if (weight < 0 || views[weight].turned) continue;
      by_rows[op.out] = true;
      if (!is_beside) continue;
      by_rows[reader->out] = true;
      for (const int value : reader->reads())
        last_read[value] = std::max(last_read[value], first_read[reader->out]);
    }
  }
};

}  // namespace gb
