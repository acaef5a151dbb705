// A segment of a program on one mini-batch: its forward and its backward pass are one call each from Python.
//
// fullgraph/batches/segments.py describes segments, and has the same passes operation by operation, which run
// all other dtypes. Here matrices are float32. Rows are freed after their last use. What backward reads is
// freed once backward has passed it. The kernels and the order of sums are those of ops/linear.py,
// ops/spmm.py and ops/attention.py, so the bits are the same.

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments/epilogue_arguments.h"
#include "rowwise/epilogue_args.h"
#include "segments/attentions.h"
#include "segments/messages.h"
#include "segments/rows.h"

namespace gb {
namespace {

enum class Kind : int {
  kAggregateLinear,
  kAggregate,
  kLinear,
  kEpilogue,
  kFirstRows,
  kRowSum,
  kMeanOfHeads,
  kGat,
  kGatv2,
  kDot,
  kMessages,
  kGine,
};
bool attends(Kind kind) { return kind >= Kind::kGat && kind <= Kind::kDot; }

// One operation. Values, operands and edges are named by number; -1: there is none.
struct Operation {
  Kind kind;
  // Values; `other` is a sum's second side, what a product adds, what an attention reads of its destinations,
  // or the rows of edges that GINE adds. Dot products have keys, and x has their values; other attentions
  // have rows of edges there.
  int x, other, key, out;
  // Operands; the other weight is of the destinations' own rows, or of `other`. GAT has the vectors of
  // sources and of destinations, GATv2 its only one. In the place of a bias, an attention has the map of
  // features; the operand behind it is GAT's vector of edges.
  int weight, other_weight, bias;
  int edges;
  int act;
  double p;             // of dropout: of an attention, of its coefficients
  double factor;        // of GINE, with which nodes add their own rows
  Attention attention;  // of a mean of heads, their number alone
  std::shared_ptr<const Messages> messages = nullptr;
  int edge_rows = -1;  // of messages: the number of what they read of edges

  int edge_vector() const { return kind == Kind::kGat && bias >= 0 ? bias + 1 : -1; }
  // The values that it reads. One that messages read at both ends is there twice.
  std::vector<int> reads() const {
    std::vector<int> found;
    if (messages != nullptr)
      for (const std::vector<int>& of_side : messages->values)
        found.insert(found.end(), of_side.begin(), of_side.end());
    else
      for (const int value : {x, other, key})
        if (value >= 0) found.push_back(value);
    return found;
  }
};
using OperationFields =
    std::tuple<int, int, int, int, int, int, int, int, int, int, double, double, int, bool, bool>;

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
  bool sums_again = false;  // backward sums again, so the sums are not kept
  bool is_gated = false;    // the gradient has passed the ReLU already
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
  Rates rates;
  double leaky_slope;
};

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
       const std::vector<int64_t>& counts, std::vector<OfEdges> of_edges)
      : plan_(std::move(plan)), operands_(std::move(operands)) {
    need(values.size() == plan_->num_reads, "there is a matrix for each value that is read");
    for (auto& [features, weight] : of_edges) {
      take(features, "features");
      take(weight, "weight");
      features_.push_back(std::move(features));
      weights_.push_back(std::move(weight));
    }
    const size_t num_values = plan_->num_reads + plan_->operations.size();
    rows_.resize(num_values);
    outside_.assign(num_values, -1);
    kept_.assign(num_values, false);
    for (size_t i = 0; i < values.size(); ++i) {
      const nb::object tensor = values[i].attr("data");  // of its own, as Operand has one
      values_.emplace_back(tensor).take("x");
      rows_[i] = matrix_of(values_[i]);
      outside_[i] = static_cast<int>(i);
    }
    maps_.reserve(maps.size());
    for (const auto& given : maps) {
      const auto& [fields, num_src, num_dst] = given;
      size_t same = 0;  // levels of one batch share the fields of a relation
      while (!std::get<0>(maps[same]).is(fields)) ++same;
      maps_.push_back(same < maps_.size() ? maps_[same].between(num_src, num_dst) : map_of(given));
    }
    size_t next = 0;
    for (const Operation& op : plan_->operations) rows_[op.out] = checked(op, counts, next);
    for (const int value : plan_->writes) {
      FloatMatrix& rows = rows_[value];
      written_.push_back(tensor_over(row_memory(rows.rows * rows.width), {rows.rows, rows.width}));
      outs_.emplace_back(written_.back()).take("out");
      rows = matrix_of(outs_.back());
      outside_[value] = static_cast<int>(first_out() + outs_.size() - 1);
    }
    for (const Operation& op : plan_->operations)  // a view of first rows changes with the whole
      if (op.kind == Kind::kFirstRows && outside_[op.out] < 0) outside_[op.out] = outside_[op.x];
  }

  // Computes the values. draws: seed and ids of each operation with dropout, in order. wanted: which of the
  // values and operands want gradients. Returns the outs; the numbers of what backward reads, where values,
  // operands, outs, maps, features and weights are counted in this order; and the numbers of the outs that
  // have no gradients.
  std::tuple<std::vector<nb::object>, std::vector<int>, std::vector<int>> forward(
      std::vector<Draw> draws, const std::vector<bool>& wanted) {
    need(wanted.size() == first_out(), "whether each value and operand wants a gradient");
    need(steps_.empty(), "forward runs once");
    for (Draw& draw : draws) take(std::get<1>(draw), "ids");
    draws_ = std::move(draws);
    wants_.assign(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(values_.size()));
    wants_.resize(rows_.size(), false);
    for (const View& view : plan_->views) operand_wants_.push_back(wanted[values_.size() + view.tensor]);
    size_t next = 0;
    steps_.reserve(plan_->operations.size());
    for (const Operation& op : plan_->operations) begin_step(op, next);
    {
      const nb::gil_scoped_release release;
      for (size_t i = 0; i < steps_.size(); ++i) {
        const Operation& op = plan_->operations[i];
        run(op, steps_[i], i);
        for (const int value : op.reads())
          if (is_last_read(value, i) && !kept_[value]) rows_[value].free();
      }
    }
    std::sort(reads_.begin(), reads_.end());
    reads_.erase(std::unique(reads_.begin(), reads_.end()), reads_.end());
    std::vector<int> constant;
    for (size_t i = 0; i < outs_.size(); ++i) {
      if (!wants_[plan_->writes[i]]) constant.push_back(static_cast<int>(i));
      // Backward does not read it, and leaves it to the caller alone.
      if (!std::binary_search(reads_.begin(), reads_.end(), static_cast<int>(first_out() + i))) outs_[i] = {};
    }
    return {std::move(written_), reads_, std::move(constant)};
  }

  // The maps, by number, that backward transposes.
  std::vector<int> transposed_maps() const {
    std::vector<int> found;
    for (size_t i = 0; i < steps_.size(); ++i)
      if (transposes(plan_->operations[i], steps_[i])) found.push_back(plan_->operations[i].edges);
    return found;
  }

  // Returns the gradients of the values and operands, None where one is not wanted or nothing reaches it.
  // grads: of the outs, or None. reversed: transposes of some maps by number, with the places of their edges
  // if dropout or rows of edges need them. gives_up: whether this is the last call.
  std::vector<nb::object> backward(std::vector<std::optional<StridedFloats>> grads,
                                   std::vector<std::tuple<int, SizedMap, OptionalIds>> reversed,
                                   bool gives_up) {
    need(steps_.size() == plan_->operations.size(), "forward comes before backward");
    need(!has_given_up_, "what backward reads has been freed");
    const bool stays = std::all_of(reads_.begin(), reads_.end(), [this](int i) { return is_in_place(i); });
    need(stays, "memory that backward reads was moved after the forward pass, as share_memory() does");
    need(grads.size() == outs_.size(), "there is a gradient for each value that is written");
    std::vector<FloatMatrix> held(rows_.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i]) continue;
      grads[i]->take("grad");
      const int value = plan_->writes[i];
      need_shape(*grads[i], rows_[value].rows, rows_[value].width);
      held[value] = by_row(*grads[i]);
    }
    std::vector<std::optional<Map>> given(maps_.size());
    for (auto& [number, fields, places] : reversed) {
      take(places, "places");
      given.at(number) = map_of(fields);
      need_length(places, given[number]->num_edges());
      given[number]->places = places;
    }
    Gradients to(first_out());
    reversed_.resize(maps_.size());
    // Several threads may pass back through one graph at a time: then nothing is freed.
    const Counted running(num_running_);
    gives_up = gives_up && num_running_ == 1;
    has_given_up_ = gives_up;
    {
      const nb::gil_scoped_release release;
      for (size_t i = steps_.size(); i-- > 0;) {
        const Operation& op = plan_->operations[i];
        FloatMatrix grad = std::move(held[op.out]);
        held[op.out] = {};
        if (grad.data != nullptr && steps_[i].wants_any()) back(i, std::move(grad), given, held, to);
        if (!gives_up) continue;
        if (outside_[op.out] < 0) rows_[op.out].free();
        steps_[i].sums.free();
        steps_[i].attended = {};
        steps_[i].sent = {};
        if (op.edges >= 0) reversed_[op.edges].reset();
      }
      for (size_t i = 0; i < values_.size(); ++i) {
        if (!wants_[i] || held[i].data == nullptr) continue;
        FloatMatrix& grad = held[i];
        if (grad.own.use_count() == 1 && grad.own.get() == grad.data && grad.stride == grad.width) {
          to[i] = std::move(grad);
          continue;
        }
        to[i] = FloatMatrix::make(grad.rows, grad.width);
        copy_rows(grad, to[i]);
      }
    }
    std::vector<nb::object> found(to.size(), nb::none());
    std::vector<std::vector<int64_t>> sizes(to.size());
    for (size_t i = 0; i < values_.size(); ++i) sizes[i] = {to[i].rows, to[i].width};
    for (const auto& one : operands_)
      if (one != nullptr) sizes[values_.size() + one->view.tensor] = one->sizes();
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i].data != nullptr) found[i] = tensor_over(std::move(to[i].own), sizes[i]);
    return found;
  }

 private:
  // The gradients of values and operands; those that nothing reaches have no memory.
  using Gradients = std::vector<FloatMatrix>;

  struct Counted {
    explicit Counted(int& count) : of(count) { ++of; }
    ~Counted() { --of; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    int& of;
  };

  // The number behind those of values and tensors of operands.
  size_t first_out() const { return values_.size() + plan_->num_tensors; }

  // Whether what forward gave a number is still where it was.
  bool is_in_place(int number) const {
    auto i = static_cast<size_t>(number);
    if (i < values_.size()) return values_[i].is_in_place();
    if ((i -= values_.size()) < plan_->num_tensors)
      return std::all_of(operands_.begin(), operands_.end(), [i](const auto& one) {
        return one == nullptr || one->view.tensor != static_cast<int>(i) || one->is_in_place();
      });
    if ((i -= plan_->num_tensors) < outs_.size()) return outs_[i].is_in_place();
    if ((i -= outs_.size()) < maps_.size()) return maps_[i].is_in_place();
    if ((i -= maps_.size()) < features_.size()) return features_[i]->is_in_place();
    return weights_[i - features_.size()]->is_in_place();
  }

  static bool transposes(const Operation& op, const Step& step) {
    if (op.kind == Kind::kMessages) return step.wants_any() && step.sent.programs->back[kSources].has_value();
    const bool reads_all = attends(op.kind) && step.wants_any();
    return op.edges >= 0 && (reads_all || step.of_x || (step.transforms_first && step.of_weight));
  }

  const Operand* operand(int number) const { return number < 0 ? nullptr : operands_[number].get(); }

  bool is_last_read(int value, size_t place) const {
    return outside_[value] < 0 && plan_->last_read[value] == static_cast<int>(place);
  }

  FloatMatrix checked_messages(const Operation& op) const {
    const Messages& of = *op.messages;
    const Map& map = maps_.at(op.edges);
    for (const MessageSide side : {kSources, kDestinations})
      for (const int value : of.values[side]) {
        const FloatMatrix& rows = rows_[value];
        need(rows.width == of.width || rows.width == of.heads,
             "rows are of all columns, or a number by head");
        need(side == kSources ? rows.rows == map.num_src : rows.rows >= map.num_dst,
             "there is a row for each end");
      }
    for (const auto& [number, column] : of.parameters) {
      const Operand* one = operand(number);
      need(one != nullptr, "parameters are there");
      need_count(column, 0, one->num_dimensions == 2 ? one->columns() : 0, "the column of a parameter");
      need_count(one->size(column), 1, of.width, "the numbers of a parameter");
    }
    const std::optional<FloatRows>& features = features_.at(op.edge_rows);
    const OptionalFloats& weight = weights_.at(op.edge_rows);
    need(!features || features->num_rows() >= map.num_edges(), "there are features of each edge");
    need(!weight || weight->length() >= map.num_edges(), "there is a weight of each edge");
    return {nullptr, map.num_dst, of.width_out(), of.width_out()};
  }

  // The shape of an operation's result, after checks that what it reads fits.
  FloatMatrix checked(const Operation& op, const std::vector<int64_t>& counts, size_t& next) const {
    if (attends(op.kind)) return op.attention.checked(maps_.at(op.edges), attention_inputs(op, {}));
    if (op.kind == Kind::kMessages) return checked_messages(op);
    const FloatMatrix& x = rows_[op.x];
    const bool multiplies = op.kind == Kind::kAggregateLinear || op.kind == Kind::kLinear;
    need(multiplies == (operand(op.weight) != nullptr), "products have a weight");
    for (const int number : {op.weight, op.other_weight})
      need(operand(number) == nullptr || operand(number)->is_matrix, "a weight is a matrix");
    need(operand(op.bias) == nullptr || operand(op.bias)->num_dimensions == 1, "a bias is a vector");
    const Map* map = op.edges < 0 ? nullptr : &maps_.at(op.edges);
    const FloatMatrix* other = op.other < 0 ? nullptr : &rows_[op.other];
    const Operand *weight = operand(op.weight), *other_weight = operand(op.other_weight);
    FloatMatrix out;
    out.rows = map != nullptr ? map->num_dst : x.rows;
    out.width = out.stride = weight != nullptr ? weight->rows() : x.width;
    if (op.kind == Kind::kFirstRows) {
      out.rows = counts.at(next++);
      out.stride = x.stride;
    }
    if (op.kind == Kind::kMeanOfHeads) {
      need(x.width % op.attention.heads == 0, "each head has as many columns");
      out.width = out.stride = x.width / op.attention.heads;
    }
    if (map != nullptr) need(x.rows == map->num_src, "x has a row for each source");
    need(op.kind != Kind::kGine || (other->rows == map->num_edges() && other->width == x.width),
         "there is a row as wide for each edge");
    if (op.kind == Kind::kFirstRows) need(out.rows <= x.rows, "x has as many rows");
    if (weight != nullptr) need(weight->columns() == x.width, "the weight has a column for each of x");
    if (other_weight != nullptr) {
      const FloatMatrix& own = other != nullptr ? *other : x;
      need(other_weight->rows() == out.width && other_weight->columns() == own.width, "the weights fit");
      need(other != nullptr ? own.rows == out.rows : own.rows >= out.rows, "there are rows enough");
    }
    if (other != nullptr && other_weight == nullptr && op.kind != Kind::kGine) {
      const bool fits = op.kind == Kind::kRowSum ? other->rows == out.rows : other->rows <= out.rows;
      need(fits && other->width == out.width, "both sides of a sum have one shape");
    }
    if (const Operand* bias = operand(op.bias)) need_length(bias->vector, out.width);
    return out;
  }

  void begin_step(const Operation& op, size_t& next) {
    Step step;
    const auto wanted = [&](int number) { return operand(number) != nullptr && operand_wants_[number]; };
    step.of_x = wants_[op.x];
    step.of_other = op.other >= 0 && wants_[op.other];
    step.of_key = op.key >= 0 && wants_[op.key];
    step.of_weight = wanted(op.weight);
    step.of_other_weight = wanted(op.other_weight);
    step.of_bias = wanted(op.bias) || wanted(op.edge_vector());
    if (op.kind == Kind::kMessages) {
      BySide<std::vector<bool>> of_values;
      std::vector<bool> learned;
      for (const MessageSide side : {kSources, kDestinations})
        for (const int value : op.messages->values[side]) of_values[side].push_back(wants_[value]);
      for (const auto& one : op.messages->parameters) learned.push_back(wanted(one.first));
      const auto any = [](const std::vector<bool>& all) {
        return std::count(all.begin(), all.end(), true) > 0;
      };
      step.of_x = any(of_values[kSources]) || any(of_values[kDestinations]);
      step.of_weight = any(learned);
      step.sent = op.messages->begin(maps_[op.edges], of_values, learned);
    }
    if (op.kind == Kind::kAggregateLinear) {
      step.transforms_first = narrows(maps_[op.edges], rows_[op.x].width, rows_[op.out].width, step);
      step.sums_again = step.of_weight && !step.transforms_first && may_sum_again(op);
    }
    const Operand* bias = operand(op.bias);
    step.has_epilogue = !attends(op.kind) && (op.act != 0 || op.p > 0 || bias != nullptr);
    step.epilogue.act = static_cast<Act>(op.act);
    step.epilogue.slope = plan_->leaky_slope;
    if (op.p > 0) {
      const auto& [seed, ids] = draws_.at(next++);
      need_length(ids, rows_[op.out].rows);
      step.epilogue.threshold = drop_threshold(op.p);
      step.epilogue.keep_scale = 1.0 / (1.0 - op.p);
      step.epilogue.seed = seed;
      step.epilogue.ids = data_or_null(ids);
    }
    if (step.wants_any()) {
      wants_[op.out] = true;
      note_reads(op, step);
    }
    steps_.push_back(step);
  }

  // ops/linear.py's _may_sum_again. Only if x is held in any case: backward of an earlier operation reads it,
  // or it was made before the segment and wants no gradient, as features do.
  bool may_sum_again(const Operation& op) const {
    constexpr int64_t most_edges = 5;                  // ops/linear.py's _MOST_EDGES_AGAIN
    constexpr int64_t least_bytes = int64_t{1} << 20;  // smaller sums are kept, which saves their time
    const Map& map = maps_[op.edges];
    const int64_t bytes = 4 * map.num_dst * rows_[op.x].width;
    const bool is_read = static_cast<size_t>(op.x) < values_.size();
    return (kept_[op.x] || (is_read && !wants_[op.x])) && bytes >= least_bytes &&
           map.num_edges() <= most_edges * map.num_dst;
  }

  // ops/linear.py's narrows, with the same operations in the same order.
  bool narrows(const Map& map, int64_t in, int64_t out, const Step& step) const {
    const Rates& rates = plan_->rates;
    const bool trains = step.of_x || step.of_weight;
    const int products = 1 + static_cast<int>(trains) + static_cast<int>(step.of_x);
    const auto seconds = [&](int64_t width, int64_t rows, int sums) {
      const double arithmetic = 2.0 * rows * in * out / rates.multiply_flops;
      const double multiplying =
          products * std::max(arithmetic, 4.0 * rows * (in + out) / rates.stream_bytes);
      return multiplying + sums * (4.0 * map.num_edges() * width / rates.row_bytes);
    };
    return seconds(out, map.num_src, 1 + static_cast<int>(trains)) <
           seconds(in, map.num_dst, 1 + static_cast<int>(step.of_x));
  }

  // Whether backward of an operation reads its result.
  static bool reads_result(const Operation& op, const Step& step) {
    if (op.kind == Kind::kMessages) return op.messages->reads_result(*step.sent.programs);
    return attends(op.kind) ? !op.attention.averages : op.act != 0;
  }

  // Notes which tensors from outside backward reads: those that the autograd functions save.
  void note_reads(const Operation& op, const Step& step) {
    const auto note_value = [&](int value) {
      kept_[value] = true;
      if (outside_[value] >= 0) reads_.push_back(outside_[value]);
    };
    const auto note_operand = [&](int number) {
      if (operand(number) != nullptr)
        reads_.push_back(static_cast<int>(values_.size()) + plan_->views[number].tensor);
    };
    if (transposes(op, step) || step.sums_again || op.kind >= Kind::kMessages)
      reads_.push_back(static_cast<int>(first_out() + outs_.size()) + op.edges);
    if (op.act != 0) note_value(op.out);
    if (attends(op.kind)) {
      for (const int value : {op.x, op.other, op.key})
        if (value >= 0) note_value(value);
      if (reads_result(op, step)) note_value(op.out);
      if (op.edge_vector() >= 0) {
        note_operand(op.bias);
        note_operand(op.edge_vector());
      }
    } else if (op.kind == Kind::kMessages) {
      for (const int value : op.reads()) note_value(value);
      for (const auto& one : op.messages->parameters) note_operand(one.first);
      const size_t first = first_out() + outs_.size() + maps_.size();
      const size_t of_features = first + op.edge_rows, of_weight = of_features + features_.size();
      if (features_[op.edge_rows]) reads_.push_back(static_cast<int>(of_features));
      if (weights_[op.edge_rows]) reads_.push_back(static_cast<int>(of_weight));
      if (reads_result(op, step)) note_value(op.out);
    } else if (op.kind == Kind::kGine) {
      note_value(op.x);
      note_value(op.other);
    } else if (op.kind == Kind::kLinear) {
      if (step.of_weight) note_value(op.x);
      if (step.of_x) note_operand(op.weight);
      if (step.of_other_weight) note_value(op.other);
      if (step.of_other) note_operand(op.other_weight);
    } else if (op.kind == Kind::kAggregateLinear) {
      const bool reads_x = step.transforms_first || step.sums_again;
      if ((step.of_weight && reads_x) || step.of_other_weight) note_value(op.x);
      if (!step.of_x) return;
      note_operand(op.weight);
      note_operand(op.other_weight);
    }
  }

  FloatMatrix result(const Operation& op, size_t place) {
    FloatMatrix& out = rows_[op.out];
    if (out.data != nullptr) return out;
    const FloatMatrix& x = rows_[op.x];
    // In place if nobody else reads these rows: no later operation, not backward, and no view of them.
    const bool overwrites =
        op.kind == Kind::kEpilogue && is_last_read(op.x, place) && !kept_[op.x] && x.own.use_count() == 1;
    if (overwrites || op.kind == Kind::kFirstRows)
      out = x.first(out.rows);
    else
      out = FloatMatrix::make(out.rows, out.width);
    return out;
  }

  void run(const Operation& op, Step& step, size_t place) {
    const FloatMatrix out = result(op, place), x = rows_[op.x];
    const Operand *weight = operand(op.weight), *other_weight = operand(op.other_weight);
    Epilogue epilogue = step.epilogue;
    if (const Operand* bias = operand(op.bias)) epilogue.bias = bias->vector.data();
    const Epilogue* after = step.has_epilogue ? &epilogue : nullptr;
    switch (op.kind) {
      case Kind::kAggregateLinear: {
        const FloatMatrix own = x.first(out.rows);
        if (other_weight != nullptr) multiply(own, other_weight->turned(), out);
        if (step.transforms_first) {
          const FloatMatrix products = FloatMatrix::make(x.rows, out.width);
          multiply(x, weight->turned(), products);
          const FloatMatrix* addend = other_weight != nullptr ? &out : nullptr;
          return sum_over(arguments_of(maps_[op.edges]), products, out, addend, after);
        }
        const FloatMatrix sums = FloatMatrix::make(out.rows, x.width);
        sum_over(arguments_of(maps_[op.edges]), x, sums);
        if (step.of_weight && !step.sums_again) step.sums = sums;
        return multiply(sums, weight->turned(), out, other_weight != nullptr, after);
      }
      case Kind::kAggregate:
        return sum_over(arguments_of(maps_[op.edges]), x, out, op.other < 0 ? nullptr : &rows_[op.other]);
      case Kind::kLinear:
        if (other_weight != nullptr) multiply(rows_[op.other], other_weight->turned(), out);
        return multiply(x, weight->turned(), out, other_weight != nullptr, after);
      case Kind::kEpilogue:
        return run_epilogue(epilogue_arguments(x, out, epilogue));
      case Kind::kFirstRows:
        if (out.data != x.data) copy_rows(x.first(out.rows), out);
        return;
      case Kind::kRowSum:
        return add_rows(x, rows_[op.other], out);
      case Kind::kMeanOfHeads:
        return mean_of_heads(x, op.attention.heads, out);
      case Kind::kGat:
      case Kind::kGatv2:
      case Kind::kDot:
        return op.attention.forward(maps_[op.edges], attention_inputs(op, step), out, step.attended,
                                    step.wants_any());
      case Kind::kMessages:
        return op.messages->forward(maps_[op.edges], message_inputs(op), out, step.sent, step.wants_any());
      case Kind::kGine:
        return sum_rectified(maps_[op.edges], x, rows_[op.other], op.factor, out);
    }
  }

  AttentionInputs attention_inputs(const Operation& op, const Step& step) const {
    const auto rows = [&](int value) { return value < 0 ? nullptr : &rows_[value]; };
    return {rows(op.x),
            rows(op.other),
            rows(op.key),
            operand(op.weight),
            operand(op.other_weight),
            operand(op.bias),
            operand(op.edge_vector()),
            step.epilogue};
  }

  MessageInputs message_inputs(const Operation& op) const {
    MessageInputs in;
    const auto& parameters = op.messages->parameters;
    for (const MessageSide side : {kSources, kDestinations})
      for (const int value : op.messages->values[side]) in.rows[side].push_back(rows_[value]);
    if (const auto& features = features_[op.edge_rows]) in.features = matrix_of(*features);
    in.weight = data_or_null(weights_[op.edge_rows]);
    in.parameters = FloatMatrix::make(static_cast<int64_t>(parameters.size()), op.messages->width);
    float* row = in.parameters.data;
    for (const auto& [number, column] : parameters) {
      operand(number)->spread(row, op.messages->width, column);
      row += op.messages->width;
    }
    return in;
  }

  static EpilogueArgs epilogue_arguments(const FloatMatrix& x, const FloatMatrix& out, const Epilogue& how) {
    EpilogueArgs a;
    a.num_rows = out.rows;
    a.width = out.width;
    a.x = {x.data, x.stride};
    a.out = out.data;
    a.out_stride = out.stride;
    a.how = how;
    return a;
  }

  // Memory for the gradient of an operand. Those of a stack's other matrices are zeros until they are known.
  float* gradient(int number, Gradients& to) const {
    const Operand& of = *operand(number);
    FloatMatrix& whole = to[values_.size() + of.view.tensor];
    if (whole.data == nullptr)
      whole = of.is_of_stack() ? FloatMatrix::zeros(1, of.size()) : FloatMatrix::make(1, of.size());
    return whole.data + of.first();
  }

  // Adds a gradient to those of a value.
  static void add(FloatMatrix& held, const FloatMatrix& grad) {
    if (held.data == nullptr) {
      held = grad;
      return;
    }
    const FloatMatrix sum = held.is_alone() ? held : FloatMatrix::make(grad.rows, grad.width);
    add_rows(held, grad, sum);
    held = sum;
  }

  // Whether the gradient of a value may take its place. The operation is the only one that reads the value,
  // or the first: backward has passed all others. It reads the value once, and has done so.
  bool gives_place(int value, size_t reader) const {
    if (!has_given_up_ || outside_[value] >= 0 || !rows_[value].is_alone()) return false;
    const std::vector<int> read = plan_->operations[reader].reads();
    return plan_->first_read[value] == static_cast<int>(reader) &&
           std::count(read.begin(), read.end(), value) == 1;
  }

  FloatMatrix place_of(int value) {
    const FloatMatrix place = rows_[value];
    rows_[value].free();
    return place;
  }

  // Memory for the gradient of a value: its own, if nothing reads that any more.
  FloatMatrix gradient_of(int value, size_t reader) {
    const int maker = value - static_cast<int>(plan_->num_reads);
    const bool is_read = maker >= 0 && reads_result(plan_->operations[maker], steps_[maker]);
    if (!is_read && gives_place(value, reader)) return place_of(value);
    return FloatMatrix::make(rows_[value].rows, rows_[value].width);
  }

  // The operation that makes a value by a ReLU, if the value's gradient can pass that as it is computed, in
  // the value's own memory; else -1.
  int gate_of(int value, size_t reader, const FloatMatrix& held) const {
    const int maker = value - static_cast<int>(plan_->num_reads);
    if (maker < 0 || plan_->operations[maker].act != static_cast<int>(Act::kRelu)) return -1;
    return held.data == nullptr && gives_place(value, reader) ? maker : -1;
  }

  // The gradient of a value from that of its map, in the transpose of the map. Adds it to that of others.
  void sum_back(const Operation& op, size_t place, std::vector<std::optional<Map>>& given,
                const FloatMatrix& grad, FloatMatrix& held, const FloatMatrix& own = {}) {
    const SpmmArgs turned = transposed(op.edges, given, false).first;
    const FloatMatrix* addend = own.data != nullptr ? &own : nullptr;
    const int gate = gate_of(op.x, place, held);
    const FloatMatrix of_x = gate >= 0 ? place_of(op.x) : gradient_of(op.x, place);
    sum_over(turned, grad, of_x, addend, nullptr, gate >= 0 ? &steps_[gate].epilogue.keep_scale : nullptr);
    if (gate >= 0) steps_[gate].is_gated = true;
    add(held, of_x);
  }

  // The gradient of a value from that of its product. Through a ReLU it goes by some rows at a time.
  void multiply_back(const FloatMatrix& grad, const Strided& b, int value, size_t place, FloatMatrix& held) {
    const int gate = gate_of(value, place, held);
    const FloatMatrix of_rows = gate >= 0 ? place_of(value) : gradient_of(value, place);
    if (gate < 0) {
      multiply(grad, b, of_rows);
      return add(held, of_rows);
    }
    const FloatMatrix beside = FloatMatrix::make(rows_at_once(grad.rows), of_rows.width);
    for (int64_t first = 0; first < grad.rows; first += beside.rows) {
      const FloatMatrix some = beside.first(std::min(beside.rows, grad.rows - first)),
                        to = of_rows.part(first, some.rows);
      multiply(grad.part(first, some.rows), b, some);
      EpilogueArgs a = epilogue_arguments(to, to, steps_[gate].epilogue);
      a.grad = {some.data, some.stride};
      run_epilogue_backward(a);
    }
    steps_[gate].is_gated = true;
    add(held, of_rows);
  }

  // Rows that a product takes at a time on the way to its factor's own memory: fewer take little memory, and
  // each call takes some microseconds.
  static int64_t rows_at_once(int64_t rows) { return std::min(rows, std::max<int64_t>(256, (rows + 7) / 8)); }

  // grad * b, in the memory of grad if that is possible.
  static FloatMatrix multiply_over(FloatMatrix grad, const Strided& b, int64_t width, bool overwrites) {
    if (!overwrites || width != grad.width || grad.rows == rows_at_once(grad.rows)) {
      const FloatMatrix out = FloatMatrix::make(grad.rows, width);
      multiply(grad, b, out);
      return out;
    }
    const FloatMatrix beside = FloatMatrix::make(rows_at_once(grad.rows), width);
    for (int64_t first = 0; first < grad.rows; first += beside.rows) {
      const FloatMatrix some = beside.first(std::min(beside.rows, grad.rows - first)),
                        to = grad.part(first, some.rows);
      multiply(to, b, some);
      copy_rows(some, to);
    }
    return grad;
  }

  // The transpose of a map, and the places of its edges in the map, where they are given or asked for.
  std::pair<SpmmArgs, const int64_t*> transposed(int number, const std::vector<std::optional<Map>>& given,
                                                 bool with_places) {
    if (const std::optional<Map>& map = given[number]) return {arguments_of(*map), data_or_null(map->places)};
    // Several threads may pass back through one graph at a time, and none holds the GIL here.
    const std::lock_guard lock(reversing_);
    if (!reversed_[number]) reversed_[number] = std::make_unique<Reversed>(maps_[number], with_places);
    return {reversed_[number]->arguments, reversed_[number]->places};
  }

  void attend_back(const Operation& op, const Step& step, FloatMatrix grad,
                   const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                   Gradients& to) {
    const Map& map = maps_[op.edges];
    const bool keeps = op.attention.keeps_logits(map, step.of_other && (step.of_x || step.of_key));
    const bool reads_edges = op.key >= 0 && op.kind != Kind::kDot;
    const auto [reversed, places] = transposed(op.edges, given, keeps || reads_edges || op.p > 0);
    const AttentionGradients of = op.attention.backward(map, reversed, places, attention_inputs(op, step),
                                                        step.attended, std::move(grad), keeps);
    const auto give = [&](int number, const float* from) {
      if (operand(number) != nullptr && operand_wants_[number])
        std::copy_n(from, operand(number)->size(), gradient(number, to));
    };
    give(op.weight, of.vectors.data);
    give(op.other_weight, of.vectors.data + of.vectors.width);
    give(op.edge_vector(), of.vectors.data + 2 * of.vectors.width);
    give(op.bias, of.edge_weight.data);
    if (step.of_x) add(held[op.x], of.src);
    if (step.of_key) add(held[op.key], of.key);
    if (step.of_other) add(held[op.other], of.dst);
  }

  void message_back(const Operation& op, const Step& step, FloatMatrix grad,
                    const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                    Gradients& to) {
    const Messages& of = *op.messages;
    MessageGradients gradients;
    for (const MessageSide side : {kSources, kDestinations})
      for (const int value : of.values[side]) {
        const FloatMatrix& rows = rows_[value];
        gradients.rows[side].push_back(wants_[value] ? FloatMatrix::zeros(rows.rows, rows.width)
                                                     : FloatMatrix{});
      }
    gradients.parameters = FloatMatrix::zeros(static_cast<int64_t>(of.parameters.size()), of.width);
    SpmmArgs turned;
    const int64_t* places = nullptr;
    const bool reads_edges = features_[op.edge_rows] || weights_[op.edge_rows];
    if (transposes(op, step)) std::tie(turned, places) = transposed(op.edges, given, reads_edges);
    need(!reads_edges || places != nullptr || turned.num_edges == 0,
         "rows of edges need the places of edges");
    of.backward(maps_[op.edges], turned, places, message_inputs(op), step.sent, rows_[op.out],
                std::move(grad), gradients);
    for (const MessageSide side : {kSources, kDestinations})
      for (size_t i = 0; i < of.values[side].size(); ++i)
        if (gradients.rows[side][i].data != nullptr) add(held[of.values[side][i]], gradients.rows[side][i]);
    const float* row = gradients.parameters.data;
    for (size_t i = 0; i < of.parameters.size(); ++i, row += of.width) {
      const auto [number, column] = of.parameters[i];
      if (!operand_wants_[number]) continue;
      FloatMatrix& target = to[values_.size() + plan_->views[number].tensor];
      if (target.data == nullptr) target = FloatMatrix::zeros(1, operand(number)->size());
      operand(number)->join(row, of.width, column, target.data);
    }
  }

  void back(size_t place, FloatMatrix grad, std::vector<std::optional<Map>>& given,
            std::vector<FloatMatrix>& held, Gradients& to) {
    const Operation& op = plan_->operations[place];
    Step& step = steps_[place];
    const Operand *weight = operand(op.weight), *other_weight = operand(op.other_weight);
    const FloatMatrix &x = rows_[op.x], &out = rows_[op.out];
    const auto gram_to = [&](const FloatMatrix& rows, const FloatMatrix& of, int number) {
      const bool turned = operand(number)->view.turned;
      gram(turned ? of : rows, turned ? rows : of, gradient(number, to));
    };
    if (step.has_epilogue) {
      const bool overwrites = grad.own.use_count() == 1 && grad.stride == grad.width;
      const FloatMatrix rows = overwrites || step.is_gated ? grad : FloatMatrix::make(grad.rows, grad.width);
      EpilogueArgs a = epilogue_arguments(op.act != 0 && !step.is_gated ? out : grad, rows,
                                          step.is_gated ? Epilogue{} : step.epilogue);
      a.grad = {grad.data, grad.stride};
      if (step.of_bias) a.grad_bias = gradient(op.bias, to);
      run_epilogue_backward(a);
      grad = rows;
      if (has_given_up_ && outside_[op.out] < 0) rows_[op.out].free();
    }
    switch (op.kind) {
      case Kind::kAggregateLinear: {
        if (step.of_other_weight) gram_to(grad, x.first(out.rows), op.other_weight);
        if (!step.transforms_first) {
          FloatMatrix sums = step.sums;
          if (has_given_up_) step.sums.free();
          if (step.of_weight) {
            if (step.sums_again) {
              sums = FloatMatrix::make(out.rows, x.width);
              sum_over(arguments_of(maps_[op.edges]), x, sums);
            }
            gram_to(grad, sums, op.weight);
          }
          if (!step.of_x) return;
          // The gradient of the sums takes their place, and that of own rows the place of grad.
          const FloatMatrix of_sums = sums.is_alone() ? sums : FloatMatrix::make(grad.rows, x.width);
          multiply(grad, weight->whole(), of_sums);
          sums.free();
          FloatMatrix own;
          const bool overwrites = grad.is_alone();
          if (other_weight != nullptr)
            own = multiply_over(std::move(grad), other_weight->whole(), x.width, overwrites);
          grad.free();
          return sum_back(op, place, given, of_sums, held[op.x], own);
        }
        if (!step.of_x && !step.of_weight) return;
        const FloatMatrix products = FloatMatrix::make(x.rows, grad.width);
        sum_over(transposed(op.edges, given, false).first, grad, products);
        if (step.of_weight) gram_to(products, x, op.weight);
        if (!step.of_x) return;
        if (other_weight == nullptr) return multiply_back(products, weight->whole(), op.x, place, held[op.x]);
        const FloatMatrix of_x = gradient_of(op.x, place);
        multiply(products, weight->whole(), of_x);
        multiply(grad, other_weight->whole(), of_x.first(grad.rows), true);
        return add(held[op.x], of_x);
      }
      case Kind::kAggregate: {
        if (step.of_x) sum_back(op, place, given, grad, held[op.x]);
        if (step.of_other) add(held[op.other], grad.first(rows_[op.other].rows));
        return;
      }
      case Kind::kLinear:
        for (const bool is_other : {false, true}) {
          const int value = is_other ? op.other : op.x, number = is_other ? op.other_weight : op.weight;
          if (is_other ? step.of_other_weight : step.of_weight) gram_to(grad, rows_[value], number);
          if (is_other ? step.of_other : step.of_x)
            multiply_back(grad, (is_other ? other_weight : weight)->whole(), value, place, held[value]);
        }
        return;
      case Kind::kEpilogue:
        return add(held[op.x], grad);
      case Kind::kFirstRows: {
        const FloatMatrix whole = for_first_rows(x, grad.rows);
        copy_rows(grad, whole);
        return add(held[op.x], whole);
      }
      case Kind::kRowSum:
        if (step.of_x) add(held[op.x], grad);
        if (step.of_other) add(held[op.other], grad);
        return;
      case Kind::kMeanOfHeads: {
        const FloatMatrix of_x = FloatMatrix::make(x.rows, x.width);
        mean_of_heads_backward(grad, op.attention.heads, of_x);
        return add(held[op.x], of_x);
      }
      case Kind::kGat:
      case Kind::kGatv2:
      case Kind::kDot:
        return attend_back(op, step, std::move(grad), given, held, to);
      case Kind::kMessages:
        return message_back(op, step, std::move(grad), given, held, to);
      case Kind::kGine: {
        FloatMatrix of_edges;
        if (step.of_other) {
          of_edges = FloatMatrix::make(rows_[op.other].rows, x.width);
          rectified_back(maps_[op.edges], x, rows_[op.other], grad, of_edges);
        }
        if (step.of_x) {
          const auto [turned, places] = transposed(op.edges, given, true);
          const FloatMatrix of_x = FloatMatrix::make(x.rows, x.width);
          need(places != nullptr || turned.num_edges == 0, "rows of edges need the places of edges");
          if (step.of_other)
            sum_rectified_back(turned, places, grad, nullptr, of_edges, op.factor, of_x);
          else
            sum_rectified_back(turned, places, grad, &x, rows_[op.other], op.factor, of_x);
          add(held[op.x], of_x);
        }
        if (step.of_other) add(held[op.other], of_edges);
        return;
      }
    }
  }

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

class Segment {
 public:
  // messages: the further fields of those operations that are messages. views: of each operand; without any,
  // each is a tensor of its own.
  Segment(const std::vector<OperationFields>& operations, size_t num_reads, size_t num_operands,
          std::vector<int> writes, std::tuple<double, double, double> rates, double leaky_slope,
          std::vector<Messages::Fields> messages, const std::vector<std::tuple<int, int64_t, bool>>& views) {
    const auto& [row_bytes, stream_bytes, multiply_flops] = rates;
    auto next = static_cast<int64_t>(num_reads);
    const auto last_operand = static_cast<int64_t>(num_operands) - 1;
    plan_ = std::make_shared<Plan>(Plan{{},
                                        num_reads,
                                        {},
                                        num_operands,
                                        std::move(writes),
                                        std::vector<int>(num_reads + operations.size(), -1),
                                        std::vector<int>(num_reads + operations.size(), -1),
                                        {row_bytes, stream_bytes, multiply_flops},
                                        leaky_slope});
    for (size_t i = 0; i < (views.empty() ? num_operands : 0); ++i)
      plan_->views.push_back({static_cast<int>(i)});
    plan_->num_tensors = plan_->views.size();
    for (const auto& [tensor, at, turned] : views) {
      need_count(tensor, 0, last_operand, "tensors");
      plan_->views.push_back({tensor, at, turned});
      plan_->num_tensors = std::max(plan_->num_tensors, static_cast<size_t>(tensor) + 1);
    }
    need(plan_->views.size() == num_operands, "there is a view for each operand");
    size_t next_messages = 0;
    for (const auto& [number, x, other, key, out, weight, other_weight, bias, edges, act, p, factor, heads,
                      has_loops, averages] : operations) {
      need_count(number, 0, static_cast<int>(Kind::kGine), "kind");
      const auto kind = static_cast<Kind>(number);
      const bool reads_two =
          kind == Kind::kRowSum || kind == Kind::kGatv2 || kind == Kind::kDot || kind == Kind::kGine;
      need_count(x, 0, next - 1, "x");
      need_count(other, reads_two ? 0 : -1, next - 1, "other");
      need_count(key, kind == Kind::kDot ? 0 : -1, next - 1, "key");
      need_count(out, next, next, "out");
      const int last = kind == Kind::kGat && bias >= 0 ? bias + 1 : bias;  // see Operation
      for (const int operand : {weight, other_weight, last})
        need_count(operand, -1, last_operand, "operands");
      need_count(act, 0, static_cast<int>(Act::kElu), "act");
      need(p >= 0 && p < 1, "p must lie in [0, 1)");
      need_count(heads, 1, kMostItems, "heads");
      const bool moves = kind <= Kind::kAggregate || kind >= Kind::kGat;
      need(edges >= 0 || !moves, "sums over edges have edges");
      std::shared_ptr<const Messages> sent;
      if (kind == Kind::kMessages) {
        sent = std::make_shared<const Messages>(std::move(messages.at(next_messages++)));
        for (const auto& one : sent->parameters) need_count(one.first, 0, last_operand, "operands");
      }
      const auto of = kind == Kind::kDot     ? AttentionKind::kDot
                      : kind == Kind::kGatv2 ? AttentionKind::kGatv2
                                             : AttentionKind::kGat;
      const Attention attention{of, heads, factor, has_loops, averages};
      plan_->operations.push_back({kind, x, other, key, out, weight, other_weight, bias, edges, act, p,
                                   factor, attention, std::move(sent), static_cast<int>(next_messages) - 1});
      for (const int value : plan_->operations.back().reads()) {
        need_count(value, 0, next - 1, "values");
        plan_->last_read[value] = static_cast<int>(plan_->operations.size()) - 1;
        if (plan_->first_read[value] < 0) plan_->first_read[value] = plan_->last_read[value];
      }
      ++next;
    }
    for (const int value : plan_->writes)
      need_count(value, static_cast<int64_t>(num_reads), next - 1, "writes");
  }

  // None where the segment cannot run on what is given; see Pass.
  Pass* begin(const std::vector<nb::object>& values, const std::vector<nb::object>& tensors,
              const std::vector<SizedMap>& maps, const std::vector<int64_t>& counts,
              std::vector<OfEdges> of_edges) {
    try {
      need(tensors.size() == plan_->num_tensors, "there is the tensor of each operand, or None");
      const std::vector<View>& views = plan_->views;
      std::vector<std::shared_ptr<const Operand>> read(views.size());
      operands_.resize(views.size());
      for (size_t i = 0; i < views.size(); ++i) {
        const nb::object& given = tensors[views[i].tensor];
        if (given.is_none()) continue;
        const std::shared_ptr<const Operand> last = operands_[i];  // another thread may replace it
        const bool is_known = last != nullptr && are_same_memory(given, last->tensor) && last->is_in_place();
        read[i] = is_known ? last : std::make_shared<const Operand>(given, views[i]);
      }
      operands_ = read;
      return new Pass(plan_, values, std::move(read), maps, counts, std::move(of_edges));
    } catch (const std::exception&) {
      return nullptr;
    }
  }

 private:
  std::shared_ptr<Plan> plan_;
  std::vector<std::shared_ptr<const Operand>> operands_;  // of the last call, and mostly of the next one
};

}  // namespace

void bind_segments(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Pass>(m, "SegmentPass")
      .def("forward", &Pass::forward, "draws"_a, "wanted"_a)
      .def("transposed_maps", &Pass::transposed_maps)
      .def("backward", &Pass::backward, "grads"_a.none(), "reversed"_a, "gives_up"_a);
  nb::class_<Segment>(m, "Segment")
      .def(nb::init<const std::vector<OperationFields>&, size_t, size_t, std::vector<int>,
                    std::tuple<double, double, double>, double, std::vector<Messages::Fields>,
                    const std::vector<std::tuple<int, int64_t, bool>>&>(),
           "operations"_a, "num_reads"_a, "num_operands"_a, "writes"_a, "rates"_a, "leaky_slope"_a,
           "messages"_a = nb::make_tuple(), "views"_a = nb::make_tuple())
      .def("begin", &Segment::begin, nb::rv_policy::take_ownership, "values"_a, "operands"_a, "maps"_a,
           "counts"_a, "of_edges"_a = nb::make_tuple());
}

}  // namespace gb
