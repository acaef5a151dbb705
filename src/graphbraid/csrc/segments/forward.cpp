// What a run of a segment takes, checked, and its forward pass.

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "segments/pass.h"

namespace gb {

Pass::Pass(std::shared_ptr<const Plan> plan, const std::vector<nb::object>& values,
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

std::tuple<std::vector<nb::object>, std::vector<int>, std::vector<int>> Pass::forward(
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
    const AwakeThreads awake(plan_->look_microseconds, opens_long_loops());
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Operation& op = plan_->operations[i];
      if (steps_[i].is_joined) continue;
      run(op, steps_[i], i);
      for (const int value : op.reads())
        if (is_last_read(value, i) && !kept_[value]) free_rows(value, i);
      if (const Operation* product = steps_[i].product)
        if (is_last_read(product->x, i - 1) && !kept_[product->x]) rows_[product->x].free();
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

// Whether loops over the rows are long enough for several threads.
bool Pass::opens_long_loops() const {
  int64_t floats = 0;
  for (const FloatMatrix& rows : rows_) floats += rows.rows * rows.width;
  return floats >= kFloatsWorth;
}

bool Pass::transposes(const Operation& op, const Step& step) {
  if (op.kind == Kind::kMessages) return step.wants_any() && step.sent.programs->back[kSources].has_value();
  const bool reads_all = attends(op.kind) && step.wants_any();
  return op.edges >= 0 && (reads_all || step.of_x || (step.transforms_first && step.of_weight));
}

bool Pass::is_last_read(int value, size_t place) const {
  return outside_[value] < 0 && plan_->last_read[value] == static_cast<int>(place);
}

FloatMatrix Pass::checked_messages(const Operation& op) const {
  const Messages& of = *op.messages;
  const Map& map = maps_.at(op.edges);
  for (const MessageSide side : {kSources, kDestinations})
    for (const int value : of.values[side]) {
      const FloatMatrix& rows = rows_[value];
      need(rows.width == of.width || rows.width == of.heads, "rows are of all columns, or a number by head");
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
FloatMatrix Pass::checked(const Operation& op, const std::vector<int64_t>& counts, size_t& next) const {
  if (op.kind == Kind::kDot) checked_messages(op);
  if (attends(op.kind)) return op.attention.checked(maps_.at(op.edges), attention_inputs(op, {}));
  if (op.kind == Kind::kMessages) return checked_messages(op);
  if (op.kind == Kind::kSideBySide) {
    FloatMatrix whole{nullptr, rows_[op.x].rows};
    for (const int value : op.reads()) {
      need(rows_[value].rows == whole.rows, "values side by side have as many rows");
      whole.stride = whole.width += rows_[value].width;
    }
    return whole;
  }
  const FloatMatrix& x = rows_[op.x];
  const bool multiplies = op.kind == Kind::kAggregateLinear || op.kind == Kind::kLinear;
  const bool maps = op.kind == Kind::kGine && operand(op.weight) != nullptr;
  need(maps || multiplies == (operand(op.weight) != nullptr), "products have a weight");
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
  need(op.kind != Kind::kGine || (other->rows == map->num_edges() && (maps || other->width == x.width)),
       "there is a row as wide for each edge");
  if (maps)
    need(weight->rows() == x.width && weight->columns() == other->width, "the map gives rows as wide as x's");
  if (op.kind == Kind::kFirstRows) need(out.rows <= x.rows, "x has as many rows");
  if (multiplies) need(weight->columns() == x.width, "the weight has a column for each of x");
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

void Pass::begin_step(const Operation& op, size_t& next) {
  Step step;
  const auto wanted = [&](int number) { return operand(number) != nullptr && operand_wants_[number]; };
  step.of_x = wants_[op.x];
  step.of_other = op.other >= 0 && wants_[op.other];
  step.of_key = op.key >= 0 && wants_[op.key];
  step.of_weight = wanted(op.weight);
  step.of_other_weight = wanted(op.other_weight);
  step.of_bias = wanted(op.bias) || wanted(op.edge_vector());
  const auto any = [](const std::vector<bool>& all) { return std::count(all.begin(), all.end(), true) > 0; };
  std::vector<bool> learned;
  if (op.messages != nullptr) {
    for (const auto& one : op.messages->parameters) learned.push_back(wanted(one.first));
    step.of_weight = any(learned);
  }
  if (op.kind == Kind::kMessages) {
    BySide<std::vector<bool>> of_values;
    for (const MessageSide side : {kSources, kDestinations})
      for (const int value : op.messages->values[side]) of_values[side].push_back(wants_[value]);
    step.of_x = any(of_values[kSources]) || any(of_values[kDestinations]);
    step.sent = op.messages->begin(maps_[op.edges], of_values, learned);
  }
  if (op.kind == Kind::kAggregateLinear) {
    step.transforms_first = narrows(maps_[op.edges], rows_[op.x].width, rows_[op.out].width, step);
    step.sums_again = step.of_weight && !step.transforms_first && may_sum_again(op);
  }
  if (op.kind == Kind::kLinear) step.is_joined = joins_attention(op, step);
  if (!steps_.empty() && steps_.back().is_joined) step.product = &op - 1;
  const Operand* bias = operand(op.bias);
  step.has_epilogue =
      !attends(op.kind) && op.kind != Kind::kGine && (op.act != 0 || op.p > 0 || bias != nullptr);
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
bool Pass::may_sum_again(const Operation& op) const {
  constexpr int64_t most_edges = 5;                  // ops/linear.py's _MOST_EDGES_AGAIN
  constexpr int64_t least_bytes = int64_t{1} << 20;  // smaller sums are kept, which saves their time
  const Map& map = maps_[op.edges];
  const int64_t bytes = 4 * map.num_dst * rows_[op.x].width;
  const bool is_read = static_cast<size_t>(op.x) < values_.size();
  return (kept_[op.x] || (is_read && !wants_[op.x])) && bytes >= least_bytes &&
         map.num_edges() <= most_edges * map.num_dst;
}

// ops/linear.py's narrows, with the same operations in the same order.
bool Pass::narrows(const Map& map, int64_t in, int64_t out, const Step& step) const {
  const Rates& rates = plan_->rates;
  const bool trains = step.of_x || step.of_weight;
  const int products = 1 + static_cast<int>(trains) + static_cast<int>(step.of_x);
  const auto seconds = [&](int64_t width, int64_t rows, int sums) {
    const double arithmetic = 2.0 * rows * in * out / rates.multiply_flops;
    const double multiplying = products * std::max(arithmetic, 4.0 * rows * (in + out) / rates.stream_bytes);
    return multiplying + sums * (4.0 * map.num_edges() * width / rates.row_bytes);
  };
  return seconds(out, map.num_src, 1 + static_cast<int>(trains)) <
         seconds(in, map.num_dst, 1 + static_cast<int>(step.of_x));
}

// Whether backward of an operation reads its result.
bool Pass::reads_result(const Operation& op, const Step& step) {
  if (op.kind == Kind::kMessages) return op.messages->reads_result(*step.sent.programs);
  return attends(op.kind) ? !op.attention.averages && step.product == nullptr : op.act != 0;
}

// Notes which tensors from outside backward reads: those that the autograd functions save.
void Pass::note_reads(const Operation& op, const Step& step) {
  const auto note_value = [&](int value) {
    kept_[value] = true;
    if (outside_[value] >= 0) reads_.push_back(outside_[value]);
    if (!plan_->by_rows[value] || plan_->maker(value).kind != Kind::kSideBySide) return;
    for (const int part : plan_->maker(value).reads()) {
      kept_[part] = true;
      if (outside_[part] >= 0) reads_.push_back(outside_[part]);
    }
  };
  const auto note_operand = [&](int number) {
    if (operand(number) != nullptr)
      reads_.push_back(static_cast<int>(values_.size()) + plan_->views[number].tensor);
  };
  if (transposes(op, step) || step.sums_again || op.kind >= Kind::kMessages)
    reads_.push_back(static_cast<int>(first_out() + outs_.size()) + op.edges);
  if (op.act != 0) note_value(op.out);
  if (op.messages != nullptr) {
    for (const auto& one : op.messages->parameters) note_operand(one.first);
    const size_t first = first_out() + outs_.size() + maps_.size();
    const size_t of_features = first + op.edge_rows, of_weight = of_features + features_.size();
    if (features_[op.edge_rows]) reads_.push_back(static_cast<int>(of_features));
    if (weights_[op.edge_rows]) reads_.push_back(static_cast<int>(of_weight));
  }
  if (attends(op.kind)) {
    for (const int value : {op.x, op.other, op.key})
      if (value >= 0) note_value(value);
    if (reads_result(op, step)) note_value(op.out);
    if (step.product != nullptr) {
      note_value(step.product->x);
      note_operand(step.product->weight);
    }
    if (op.edge_vector() >= 0) {
      note_operand(op.bias);
      note_operand(op.edge_vector());
    }
  } else if (op.kind == Kind::kMessages) {
    for (const int value : op.reads()) note_value(value);
    if (reads_result(op, step)) note_value(op.out);
  } else if (op.kind == Kind::kGine) {
    note_value(op.x);
    note_value(op.other);
    note_operand(op.weight);
    note_operand(op.bias);
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

FloatMatrix Pass::result(const Operation& op, size_t place) {
  FloatMatrix& out = rows_[op.out];
  if (out.data != nullptr || plan_->by_rows[op.out]) return out;
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

void Pass::run(const Operation& op, Step& step, size_t place) {
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
      if (other_weight != nullptr) multiply_value(op.other, other_weight->turned(), out, false, nullptr);
      return multiply_value(op.x, weight->turned(), out, other_weight != nullptr, after);
    case Kind::kEpilogue:
      return run_epilogue(epilogue_arguments(x, out, epilogue));
    case Kind::kFirstRows:
      if (out.data != x.data) copy_rows(x.first(out.rows), out);
      return;
    case Kind::kRowSum:
      return add_rows(x, rows_[op.other], out);
    case Kind::kSideBySide:
      if (out.data == nullptr) return;
      for_each_beside(op, [&](int value, int64_t first, int64_t width) {
        copy_rows(rows_[value], out.columns(first, width));
      });
      return;
    case Kind::kMeanOfHeads:
      return mean_of_heads(x, op.attention.heads, out);
    case Kind::kGat:
    case Kind::kGatv2:
    case Kind::kDot:
      return op.attention.forward(maps_[op.edges], attention_inputs(op, step), out, step.attended,
                                  step.wants_any());
    case Kind::kMessages:
      op.messages->forward(maps_[op.edges], message_inputs(op), out, step.sent, step.wants_any());
      if (!op.messages->is_several() || out.data == nullptr) return;
      op.messages->finish(maps_[op.edges], step.sent, 0, out);
      if (!step.wants_any()) step.sent = {};
      return;
    case Kind::kGine:
      return sum_rectified(maps_[op.edges], x, rows_[op.other], EdgeMap(weight, operand(op.bias)).how,
                           op.factor, out);
  }
}

AttentionInputs Pass::attention_inputs(const Operation& op, const Step& step) const {
  const auto rows = [&](int value) { return value < 0 ? nullptr : &rows_[value]; };
  AttentionInputs in{rows(op.x),
                     rows(op.other),
                     rows(op.key),
                     operand(op.weight),
                     operand(op.other_weight),
                     operand(op.bias),
                     operand(op.edge_vector()),
                     step.epilogue};
  if (const Operation* product = step.product) {
    in.x = &rows_[product->x];
    in.weight = operand(product->weight);
    in.of_x = wants_[product->x];
  }
  if (op.messages != nullptr && !op.messages->parameters.empty()) {
    MessageInputs of_edges = message_inputs(op);
    in.features = of_edges.features;
    in.map = of_edges.parameters;
  }
  return in;
}

MessageInputs Pass::message_inputs(const Operation& op) const {
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

EpilogueArgs Pass::epilogue_arguments(const FloatMatrix& x, const FloatMatrix& out, const Epilogue& how) {
  EpilogueArgs a;
  a.num_rows = out.rows;
  a.width = out.width;
  a.x = {x.data, x.stride};
  a.out = out.data;
  a.out_stride = out.stride;
  a.how = how;
  return a;
}

}  // namespace gb
