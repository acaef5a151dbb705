// MessageCompiler: from steps to the interpreter's instructions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "aggregate/messages.h"

namespace gb {

// Compiles steps, which check_steps has looked at one by one, to the interpreter's instructions.
class MessageCompiler {
 public:
  MessageCompiler(const int64_t* steps, int num_steps) : steps_(steps), num_steps_(num_steps) {}

  MessageOp op(int i) const { return static_cast<MessageOp>(steps_[4 * i]); }
  int first(int i) const { return static_cast<int>(steps_[4 * i + 1]); }
  int second(int i) const { return static_cast<int>(steps_[4 * i + 2]); }
  bool narrow(int i) const { return steps_[4 * i + 3] != 0; }

  // Whether a leaf is one number of each edge, the same in all columns.
  bool is_of_edge(int i) const { return op(i) == MessageOp::kWeight || op(i) == MessageOp::kEdgeNumber; }

  // Whether a step's row may be read with this width. Numbers, weights and parameters may be read with both.
  bool fits(int i, bool as_narrow) const {
    const MessageOp what = op(i);
    return what == MessageOp::kNumber || what == MessageOp::kWeight || what == MessageOp::kParameter ||
           what == MessageOp::kEdgeNumber || narrow(i) == as_narrow;
  }

  // Fills the phases, and the list of steps whose rows are stored. results: pairs of a kind and a step. A
  // phase runs its steps that change the width, then its narrow steps, then its wide ones.
  void compile(const float* numbers, const std::vector<std::pair<MessageResult, int>>& results,
               MessageArgs& a) const {
    std::vector<int> phase(static_cast<size_t>(num_steps_), 0);
    int last = 0;
    for (int i = 0; i < num_steps_; ++i) {
      if (is_leaf(op(i))) continue;
      int& own = phase[static_cast<size_t>(i)];
      own = phase[static_cast<size_t>(first(i))];
      if (reads_two(op(i))) own = std::max(own, phase[static_cast<size_t>(second(i))]);
      // It runs before all others of its phase, so the step that it reads must be in an earlier phase.
      if (changes_width(op(i)) && !is_leaf(op(first(i)))) ++own;
      last = std::max(last, own);
    }
    a.phases.resize(static_cast<size_t>(last) + 1);
    const auto count = static_cast<size_t>(num_steps_);
    Marks of{joined(results), std::vector<uint8_t>(count, 0), std::vector<uint8_t>(count, 0)};
    for (int p = 0; p <= last; ++p) {
      MessagePhase& to = a.phases[static_cast<size_t>(p)];
      for (int i = 0; i < num_steps_; ++i)
        if (changes_width(op(i)) && phase[static_cast<size_t>(i)] == p) {
          to.reshaped.push_back(i);
          of.is_stored[static_cast<size_t>(i)] = 1;
          if (is_of_edge(first(i))) of.is_filled[static_cast<size_t>(first(i))] = 1;
        }
      for (const bool of_narrow : {true, false}) {
        std::vector<int> members;
        for (int i = 0; i < num_steps_; ++i)
          if (phase[static_cast<size_t>(i)] == p && narrow(i) == of_narrow) members.push_back(i);
        emit(members, numbers, results, of, of_narrow ? to.narrow : to.wide);
      }
    }
    for (int i = 0; i < num_steps_; ++i) {
      if (of.is_stored[static_cast<size_t>(i)]) a.stored.push_back(i);
      if (of.is_filled[static_cast<size_t>(i)]) a.filled.push_back(i);
    }
  }

 private:
  using Results = std::vector<std::pair<MessageResult, int>>;
  // By step: whether it is a product that the sum of it computes, whether its row is stored, and whether the
  // edge's number is written to all columns of a row.
  struct Marks {
    std::vector<uint8_t> is_joined, is_stored, is_filled;
  };
  // What a step's instruction reads: the step that the accumulator holds, a row, and an edge's number that
  // multiplies the row, or without a row the accumulator. -1: none.
  struct Reads {
    int held, row, scale;
  };

  bool is_computed(int i) const { return !is_leaf(op(i)) && !changes_width(op(i)); }

  // A product with an edge's number: its other factor, and that number.
  Reads scaled(int i) const {
    if (op(i) != MessageOp::kMultiply) return {-1, -1, -1};
    if (is_of_edge(second(i))) return {first(i), -1, second(i)};
    return {second(i), -1, is_of_edge(first(i)) ? first(i) : -1};
  }

  // Marks the products of a row and an edge's number that only one sum reads: terms of a linear
  // map of an edge's numbers. The sum has one instruction for both.
  std::vector<uint8_t> joined(const Results& results) const {
    std::vector<int> times_read(static_cast<size_t>(num_steps_), 0);
    for (int j = 0; j < num_steps_; ++j) {
      if (is_leaf(op(j))) continue;
      ++times_read[static_cast<size_t>(first(j))];
      if (reads_two(op(j))) ++times_read[static_cast<size_t>(second(j))];
    }
    for (const auto& result : results) ++times_read[static_cast<size_t>(result.second)];
    std::vector<uint8_t> found(static_cast<size_t>(num_steps_), 0);
    for (int j = 0; j < num_steps_; ++j) {
      if (op(j) != MessageOp::kAdd) continue;
      for (const int i : {second(j), first(j)}) {
        const Reads of = scaled(i);
        if (of.scale < 0 || !is_leaf(op(of.held)) || times_read[static_cast<size_t>(i)] != 1) continue;
        found[static_cast<size_t>(i)] = 1;
        break;  // one of two
      }
    }
    return found;
  }

  Reads reads(int i, const Marks& of) const {
    if (op(i) == MessageOp::kAdd)
      for (const bool turned : {false, true}) {
        const int term = turned ? first(i) : second(i), other = turned ? second(i) : first(i);
        if (of.is_joined[static_cast<size_t>(term)]) return {other, scaled(term).held, scaled(term).scale};
      }
    if (const Reads found = scaled(i); found.scale >= 0) return found;
    return {first(i), reads_two(op(i)) ? second(i) : -1, -1};
  }

  // How step i reads the step that the accumulator holds: 1 as its first operand, 2 as its second, 0 not at
  // all. Only operations with a counterpart for swapped operands can read it as the second one.
  int takes(int i, int held, const Marks& of) const {
    if (held < 0) return 0;
    const Reads read = reads(i, of);
    if (read.held == held) return 1;
    const bool turns = op(i) == MessageOp::kAdd || op(i) == MessageOp::kMultiply ||
                       op(i) == MessageOp::kSubtract || op(i) == MessageOp::kDivide;
    return turns && read.scale < 0 && read.row == held ? 2 : 0;
  }

  void emit(const std::vector<int>& members, const float* numbers, const Results& results, Marks& of,
            std::vector<MessageInstruction>& code) const {
    // A step's row is stored if a step reads it that does not follow at once, or if a step reads it twice.
    std::vector<int> computed, place(static_cast<size_t>(num_steps_), -1);
    for (const int i : members)
      if (is_computed(i) && !of.is_joined[static_cast<size_t>(i)]) {
        place[static_cast<size_t>(i)] = static_cast<int>(computed.size());
        computed.push_back(i);
      }
    std::vector<uint8_t> is_read(static_cast<size_t>(num_steps_), 0);
    for (int j = 0; j < num_steps_; ++j) {
      if (is_leaf(op(j)) || of.is_joined[static_cast<size_t>(j)]) continue;
      const Reads read = reads(j, of);
      for (const int i : {read.held, read.row}) {
        if (i < 0) continue;
        is_read[static_cast<size_t>(i)] = 1;
        const auto next = static_cast<size_t>(place[static_cast<size_t>(i)] + 1);
        if (next == 0) continue;
        const int taken = next < computed.size() && computed[next] == j ? takes(j, i, of) : 0;
        if ((read.held == i && taken != 1) || (read.row == i && taken != 2))
          of.is_stored[static_cast<size_t>(i)] = 1;
      }
    }
    int held = -1;
    const auto put = [&](int what, int step, float number = 0.0f, int scale = -1) {
      if (what < kResult && step >= 0 && is_of_edge(step)) of.is_filled[static_cast<size_t>(step)] = 1;
      code.push_back({what, step, number, scale});
    };
    // Gives a step to all results that take it; with a scale, the accumulator times this.
    const auto give = [&](int i, int scale = -1) {
      for (size_t r = 0; r < results.size(); ++r)
        if (results[r].second == i)
          put(scale < 0 ? kResult + static_cast<int>(results[r].first) : kScaledResult, static_cast<int>(r),
              0.0f, scale);
    };
    const auto is_summed = [&](int i) {
      return !is_read[static_cast<size_t>(i)] && std::all_of(results.begin(), results.end(), [&](auto& one) {
        return one.second != i || one.first == MessageResult::kSum || one.first == MessageResult::kOverAll;
      });
    };
    for (const int i : computed) {
      const Reads read = reads(i, of);
      const int taken = takes(i, held, of);
      if (taken == 0) put(kLoad, read.held);
      if (read.scale >= 0 && read.row < 0 && is_summed(i)) {
        if (taken == 0) held = read.held;
        give(i, read.scale);
        continue;
      }
      int what = static_cast<int>(op(i)), operand = read.row >= 0 ? read.row : read.held;
      if (read.scale >= 0) what = read.row < 0 ? kScale : kAddScaled;
      if (taken == 2) {
        operand = read.held;
        if (op(i) == MessageOp::kSubtract) what = kReverseSubtract;
        if (op(i) == MessageOp::kDivide) what = kReverseDivide;
      }
      put(what, what == kScale ? -1 : operand, numbers[i], read.scale);
      held = i;
      if (of.is_stored[static_cast<size_t>(i)]) put(kStore, i);
      give(i);
    }
    // Leaves, and steps that change the width, may be results, too.
    for (const int i : members) {
      if (is_computed(i)) continue;
      for (const auto& result : results)
        if (result.second == i) {
          put(kLoad, i);
          give(i);
          break;
        }
    }
  }

  const int64_t* steps_;
  int num_steps_;
};

// Compiles the program whose steps are in `a`. Its results are results[i] = {kind, step, place}; their memory
// is left open. Refuses kinds that are none, steps that read others than earlier ones of their width, and
// results of steps that are not there.
void compile_program(const int64_t* results, int64_t num_results, MessageArgs& a);

}  // namespace gb
