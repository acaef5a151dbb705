// One run of a segment on a mini-batch: its forward pass (forward.cpp), its backward pass (backward.cpp), and
// in both the values that are made by rows (by_rows.cpp).
//
// fullgraph/batches/joined_ops.py has the same passes operation by operation, which run all other dtypes.
// Here matrices are float32. Rows are freed after their last use. What backward reads is freed once backward
// has passed it. The kernels and the order of sums are those of ops/linear.py, ops/spmm.py and
// ops/attention.py, so the bits are the same.
#pragma once

#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments/epilogue_arguments.h"
#include "segments/plan.h"
#include "threads/awake.h"
#include "threads/worth.h"

namespace gb {

using Draw = std::tuple<uint64_t, OptionalIds>;
using OfEdges = std::tuple<std::optional<FloatRows>, OptionalFloats>;  // their features and weights

// One run on a batch. It holds all that it was given until it is freed.
class Pass {
 public:
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  // Takes what the segment reads: values, operands, maps, the counts of first rows, and for each of its
  // messages the features and weights of edges. Refuses what does not fit before anything runs.
  Pass(std::shared_ptr<const Plan> plan, const std::vector<nb::object>& values,
       std::vector<std::shared_ptr<const Operand>> operands, const std::vector<SizedMap>& maps,
       const std::vector<int64_t>& counts, std::vector<OfEdges> of_edges);

  // Computes the values. draws: seed and ids of each operation with dropout, in order. wanted: which of the
  // values and operands want gradients. Returns the outs; the numbers of what backward reads, where values,
  // operands, outs, maps, features and weights are counted in this order; and the numbers of the outs that
  // have no gradients.
  std::tuple<std::vector<nb::object>, std::vector<int>, std::vector<int>> forward(
      std::vector<Draw> draws, const std::vector<bool>& wanted);

  // The maps, by number, that backward transposes.
  std::vector<int> transposed_maps() const;

  // Returns the gradients of the values and operands, None where one is not wanted or nothing reaches it.
  // grads: of the outs, or None. reversed: transposes of some maps by number, with the places of their edges
  // if dropout or rows of edges need them. gives_up: whether this is the last call.
  std::vector<nb::object> backward(std::vector<std::optional<StridedFloats>> grads,
                                   std::vector<std::tuple<int, SizedMap, OptionalIds>> reversed,
                                   bool gives_up);

 private:
  // The gradients of values and operands; those that nothing reaches have no memory.
  using Gradients = std::vector<FloatMatrix>;

  // The number behind those of values and tensors of operands.
  size_t first_out() const { return values_.size() + plan_->num_tensors; }
  bool is_in_place(int number) const;
  static bool transposes(const Operation& op, const Step& step);
  const Operand* operand(int number) const { return number < 0 ? nullptr : operands_[number].get(); }
  bool is_last_read(int value, size_t place) const;
  static bool reads_result(const Operation& op, const Step& step);
  AttentionInputs attention_inputs(const Operation& op, const Step& step) const;
  MessageInputs message_inputs(const Operation& op) const;
  static EpilogueArgs epilogue_arguments(const FloatMatrix& x, const FloatMatrix& out, const Epilogue& how);

  // Forward.
  FloatMatrix checked_messages(const Operation& op) const;
  FloatMatrix checked(const Operation& op, const std::vector<int64_t>& counts, size_t& next) const;
  void begin_step(const Operation& op, size_t& next);
  bool may_sum_again(const Operation& op) const;
  bool joins_attention(const Operation& op, const Step& step) const;
  bool narrows(const Map& map, int64_t in, int64_t out, const Step& step) const;
  void note_reads(const Operation& op, const Step& step);
  void fill_rows(int value, int64_t first, const FloatMatrix& to) const;
  void multiply_value(int value, const Strided& b, const FloatMatrix& out, bool add,
                      const Epilogue* after) const;
  // Calls body(value, its first column, its columns) for each value that stands beside others.
  template <typename Body>
  void for_each_beside(const Operation& op, const Body& body) const {
    int64_t first = 0;
    for (const int value : op.reads()) {
      body(value, first, rows_[value].width);
      first += rows_[value].width;
    }
  }
  bool opens_long_loops() const;
  void free_rows(int value, size_t place);
  FloatMatrix result(const Operation& op, size_t place);
  void run(const Operation& op, Step& step, size_t place);

  // Backward.
  float* gradient(int number, Gradients& to) const;
  bool is_read_by_maker(int value) const;
  bool gives_place(int value, size_t reader) const;
  FloatMatrix place_of(int value);
  FloatMatrix gradient_of(int value, size_t reader);
  int gate_of(int value, size_t reader, const FloatMatrix& held) const;
  void sum_back(const Operation& op, size_t place, std::vector<std::optional<Map>>& given,
                const FloatMatrix& grad, FloatMatrix& held, const FloatMatrix& own = {});
  void begin_gradient(int value, std::vector<FloatMatrix>& held) const;
  void give_rows(int value, int64_t first, const FloatMatrix& grad, std::vector<FloatMatrix>& held) const;
  void product_back_by_rows(const FloatMatrix& grad, const Operand& weight, int value, float* of_weight,
                            std::vector<FloatMatrix>& held) const;
  void multiply_back(const FloatMatrix& grad, const Strided& b, int value, size_t place, FloatMatrix& held);
  std::pair<SpmmArgs, const int64_t*> transposed(int number, const std::vector<std::optional<Map>>& given,
                                                 bool with_places);
  void give_parameters(const Operation& op, const FloatMatrix& rows, Gradients& to) const;
  void attend_back(const Operation& op, size_t place, FloatMatrix grad,
                   const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                   Gradients& to);
  void message_back(const Operation& op, const Step& step, FloatMatrix grad,
                    const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                    Gradients& to);
  void map_back(const Operation& op, const Step& step, size_t place, const FloatMatrix& grad,
                const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held, Gradients& to);
  void back(size_t place, FloatMatrix grad, std::vector<std::optional<Map>>& given,
            std::vector<FloatMatrix>& held, Gradients& to);

  std::shared_ptr<const Plan> plan_;
  std::vector<nb::object> written_;  // of the outs, until forward returns them
  std::vector<FloatRows> values_;
  std::vector<WrittenFloatRows> outs_;
  std::vector<std::shared_ptr<const Operand>> operands_;  // null where None was given
  std::vector<Map> maps_;
  std::vector<std::optional<FloatRows>> features_;  // of edges, for each operation that is messages
  std::vector<OptionalFloats> weights_;             // of edges, likewise
  std::vector<FloatMatrix> rows_;                   // by value
  std::vector<int> outside_;  // by value: its number among values, operands and outs; -1: within
  std::vector<bool> kept_;    // by value: whether backward reads it
  std::vector<bool> wants_, operand_wants_;
  std::vector<Draw> draws_;
  std::vector<Step> steps_;
  std::vector<int> reads_;  // the numbers that forward returns
  int num_running_ = 0;     // backward passes; the GIL guards both
  bool has_given_up_ = false;
  std::mutex reversing_;
  std::vector<std::unique_ptr<Reversed>> reversed_;  // by map; those that were needed
};

}  // namespace gb
