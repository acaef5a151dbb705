// Messages made of steps as an operation of a segment: the passes of FusedMessages (ops/message_kernel.py),
// by the programs that it makes. The bits are the same, but for sums of one row's columns, which PyTorch adds
// in another order, and for several reductions side by side.
#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregate/messages.h"
#include "segments/rows.h"
#include "segments/several.h"

namespace gb {

// The ends of an edge. They index what there is of both.
enum MessageSide : size_t { kSources, kDestinations };
template <typename T>
using BySide = std::array<T, 2>;

// What messages read: rows of nodes, a row of all columns for each parameter, and what edges have.
struct MessageInputs {
  BySide<std::vector<FloatMatrix>> rows;
  FloatMatrix parameters, features;
  const float* weight = nullptr;
};

// Edges in the order in which a program walks them.
struct MessageEdges {
  EdgeRows walk;
  bool by_source;
  const int64_t* places = nullptr;  // for each of them, the edge of the graph; null: the same
};

// Steps and their results, compiled once.
class MessageProgram {
 public:
  using Fields =
      std::tuple<Array2<const int64_t>, Array1<const float>, Array2<const int64_t>, std::vector<int>>;

  explicit MessageProgram(Fields fields);
  // Writes the results to the matrices `to`, in the order of the results, or adds to these. Sums over all
  // edges are added to `totals`.
  void run(const MessageEdges& edges, const MessageInputs& in, int64_t heads,
           const std::vector<FloatMatrix>& to, bool adds = false, const FloatMatrix& totals = {},
           int32_t* count = nullptr) const;
  // For each result of rows, the place of the matrix that it goes to.
  const std::vector<int>& places() const { return places_; }
  bool is_narrow(int result) const { return compiled_.results[result].narrow; }

 private:
  Array2<const int64_t> steps_, results_;
  Array1<const float> numbers_;
  std::vector<int> places_;
  MessageArgs compiled_;
};

// The programs of one message, for one choice of steps that run once for each node, and of gradients.
struct MessagePrograms {
  using Given = std::tuple<BySide<std::vector<bool>>, std::vector<std::optional<MessageProgram::Fields>>>;

  explicit MessagePrograms(Given given);

  BySide<std::vector<bool>> hoisted;  // by matrix that follows a side's own ones: whether it is narrow
  std::optional<MessageProgram> softmax, forward, slopes;
  BySide<std::optional<MessageProgram>> at_nodes;  // these make those matrices
  BySide<std::optional<MessageProgram>> back, back_at_nodes;
};

// What an operation keeps from its forward pass for its backward pass.
struct Sent {
  std::shared_ptr<const MessagePrograms> programs;
  std::tuple<float, float> averages;  // of several reductions
  // Slopes, or a softmax's largest scores and logarithms of sums, or the sums of several reductions.
  std::vector<FloatMatrix> kept;
  FloatMatrix count;  // of maxima and minima, int32 in the memory of floats: the ties
  int32_t* counts() const { return reinterpret_cast<int32_t*>(count.data); }
};

// The gradients of what messages read; those without memory are not wanted.
struct MessageGradients {
  BySide<std::vector<FloatMatrix>> rows;
  FloatMatrix parameters;
};

class Messages {
 public:
  // Values of sources and of destinations, parameters, heads, columns, kinds of sums, whether the result is a
  // mean, whether zero shares the gradient of a maximum that is zero, the function that makes programs, and
  // what several reductions make of the sums.
  using Fields =
      std::tuple<std::vector<int>, std::vector<int>, std::vector<std::pair<int, int>>, int64_t, int64_t,
                 std::vector<int>, bool, bool, nb::object, std::optional<SeveralReductions::Fields>>;

  explicit Messages(Fields fields);
  // Whether backward reads the result.
  bool reads_result(const MessagePrograms& programs) const {
    return !several_ && (num_extrema() > 0 || programs.softmax.has_value());
  }
  // Whether the result is several reductions side by side.
  bool is_several() const { return several_.has_value(); }
  // Columns of the result.
  int64_t width_out() const { return several_ ? width * several_->parts() : width; }
  // What an operation keeps, without what forward computes. With the GIL.
  Sent begin(const Map& map, const BySide<std::vector<bool>>& wanted,
             const std::vector<bool>& learned) const {
    return {programs(map, wanted, learned), several_ ? several_->averages() : std::tuple{1.0f, 1.0f}, {}, {}};
  }
  // Of several reductions, it leaves the sums in `sent`, and no result.
  void forward(const Map& map, MessageInputs in, const FloatMatrix& out, Sent& sent, bool trains) const;
  // Of several reductions, so many rows of the result as `out` has, from `first` on.
  void finish(const Map& map, const Sent& sent, int64_t first, const FloatMatrix& out) const {
    several_->finish(map, sent.averages, kinds_, sent.kept, first, out);
  }
  // And from the gradient of these rows that of the same rows of each sum. They stand one below the other.
  void finish_back(const Map& map, const Sent& sent, int64_t first, const FloatMatrix& grad,
                   const FloatMatrix& to) const {
    several_->gradients(map, sent.averages, kinds_, sent.kept, first, grad, to);
  }
  FloatMatrix for_gradients_of_sums(const Map& map) const {
    return FloatMatrix::make(map.num_dst * static_cast<int64_t>(kinds_.size()), width);
  }
  // grad: of several reductions, that of the sums. reversed: the edges of the transpose. places: for each of
  // them the edge of `map`, if messages read rows of edges.
  void backward(const Map& map, const SpmmArgs& reversed, const int64_t* places, MessageInputs in,
                const Sent& sent, const FloatMatrix& out, FloatMatrix grad, const MessageGradients& to) const;

  BySide<std::vector<int>> values;
  std::vector<std::pair<int, int>> parameters;  // operands, and the column that is read, from 1; 0: all of it
  int64_t heads, width;

 private:
  std::shared_ptr<const MessagePrograms> programs(const Map& map, const BySide<std::vector<bool>>& wanted,
                                                  const std::vector<bool>& learned) const;
  void hoist(const MessagePrograms& programs, const BySide<int64_t>& num_nodes, MessageInputs& in) const;
  void count_zeros(const Map& map, const std::vector<FloatMatrix>& sums, const Sent& sent) const;
  std::vector<FloatMatrix> gradients_of_sums(const Map& map, const Sent& sent, const FloatMatrix& out,
                                             FloatMatrix grad) const;
  int64_t num_extrema() const { return std::count_if(kinds_.begin(), kinds_.end(), is_extremum); }
  static bool is_extremum(MessageSum kind) { return kind == MessageSum::kMax || kind == MessageSum::kMin; }

  std::vector<MessageSum> kinds_;
  bool is_mean_, shares_zeros_;
  std::optional<SeveralReductions> several_;
  nb::object find_;
  mutable std::map<std::vector<bool>, std::shared_ptr<const MessagePrograms>> known_;  // the GIL guards it
};

}  // namespace gb
