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
    std::vector<uint8_t> is_stored(static_cast<size_t>(num_steps_), 0);
    for (int p = 0; p <= last; ++p) {
      MessagePhase& to = a.phases[static_cast<size_t>(p)];
      for (int i = 0; i < num_steps_; ++i)
        if (changes_width(op(i)) && phase[static_cast<size_t>(i)] == p) {
          to.reshaped.push_back(i);
          is_stored[static_cast<size_t>(i)] = 1;
        }
      for (const bool of_narrow : {true, false}) {
        std::vector<int> members;
        for (int i = 0; i < num_steps_; ++i)
          if (phase[static_cast<size_t>(i)] == p && narrow(i) == of_narrow) members.push_back(i);
        emit(members, numbers, results, is_stored, of_narrow ? to.narrow : to.wide);
      }
    }
    for (int i = 0; i < num_steps_; ++i)
      if (is_stored[static_cast<size_t>(i)]) a.stored.push_back(i);
  }

 private:
  bool is_computed(int i) const { return !is_leaf(op(i)) && !changes_width(op(i)); }
  // How step i reads the step that the accumulator holds: 1 as its first operand, 2 as its second, 0 not at
  // all. Only operations with a counterpart for swapped operands can read it as the second one.
  int takes(int i, int held) const {
    if (held < 0) return 0;
    if (first(i) == held) return 1;
    const bool turns = op(i) == MessageOp::kAdd || op(i) == MessageOp::kMultiply ||
                       op(i) == MessageOp::kSubtract || op(i) == MessageOp::kDivide;
    return turns && second(i) == held ? 2 : 0;
  }

  void emit(const std::vector<int>& members, const float* numbers,
            const std::vector<std::pair<MessageResult, int>>& results, std::vector<uint8_t>& is_stored,
            std::vector<MessageInstruction>& code) const {
    // A step's row is stored if a step reads it that does not follow at once, or if a step reads it twice.
    std::vector<int> computed;
    for (const int i : members)
      if (is_computed(i)) computed.push_back(i);
    for (int j = 0; j < num_steps_; ++j) {
      if (is_leaf(op(j))) continue;
      for (size_t k = 0; k < computed.size(); ++k) {
        const int i = computed[k];
        const bool follows = k + 1 < computed.size() && computed[k + 1] == j;
        const int taken = follows ? takes(j, i) : 0;
        if ((first(j) == i && taken != 1) || (reads_two(op(j)) && second(j) == i && taken != 2))
          is_stored[static_cast<size_t>(i)] = 1;
      }
    }
    int held = -1;
    const auto put = [&](int what, int step, float number) { code.push_back({what, step, number}); };
    const auto give = [&](int i) {
      for (size_t r = 0; r < results.size(); ++r)
        if (results[r].second == i)
          put(kResult + static_cast<int>(results[r].first), static_cast<int>(r), 0.0f);
    };
    for (const int i : computed) {
      const int taken = takes(i, held);
      int what = static_cast<int>(op(i)), operand = reads_two(op(i)) ? second(i) : first(i);
      if (taken == 0) put(kLoad, first(i), 0.0f);
      if (taken == 2) {
        operand = first(i);
        if (op(i) == MessageOp::kSubtract) what = kReverseSubtract;
        if (op(i) == MessageOp::kDivide) what = kReverseDivide;
      }
      put(what, operand, numbers[i]);
      held = i;
      if (is_stored[static_cast<size_t>(i)]) put(kStore, i, 0.0f);
      give(i);
    }
    // Leaves, and steps that change the width, may be results, too.
    for (const int i : members) {
      if (is_computed(i)) continue;
      for (const auto& result : results)
        if (result.second == i) {
          put(kLoad, i, 0.0f);
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
