// The backward pass of a run of a segment.

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "segments/pass.h"

namespace gb {
namespace {

struct Counted {
  explicit Counted(int& count) : of(count) { ++of; }
  ~Counted() { --of; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int& of;
};

// Adds a gradient to those of a value. One that is moved here may be written over by the next one.
void add(FloatMatrix& held, FloatMatrix grad) {
  if (held.data == nullptr) {
    held = std::move(grad);
    return;
  }
  const FloatMatrix sum = held.is_alone() ? held : FloatMatrix::make(grad.rows, grad.width);
  add_rows(held, grad, sum);
  held = sum;
}

// Rows that a product takes at a time on the way to its factor's own memory: fewer take little memory, and
// each call takes some microseconds.
int64_t rows_at_once(int64_t rows) { return std::min(rows, std::max<int64_t>(256, (rows + 7) / 8)); }

// grad * b, in the memory of grad if that is possible.
FloatMatrix multiply_over(FloatMatrix grad, const Strided& b, int64_t width, bool overwrites) {
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

}  // namespace

std::vector<int> Pass::transposed_maps() const {
  std::vector<int> found;
  for (size_t i = 0; i < steps_.size(); ++i)
    if (transposes(plan_->operations[i], steps_[i])) found.push_back(plan_->operations[i].edges);
  return found;
}

std::vector<nb::object> Pass::backward(std::vector<std::optional<StridedFloats>> grads,
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
    const AwakeThreads awake(plan_->look_microseconds, opens_long_loops());
    for (size_t i = steps_.size(); i-- > 0;) {
      const Operation& op = plan_->operations[i];
      FloatMatrix grad = std::move(held[op.out]);
      held[op.out] = {};
      if (grad.data != nullptr && steps_[i].wants_any()) back(i, std::move(grad), given, held, to);
      if (!gives_up) continue;
      if (outside_[op.out] < 0) rows_[op.out].free();
      for (const int value : op.reads())  // nothing reads these any more
        if (outside_[value] < 0 && plan_->first_read[value] == static_cast<int>(i) &&
            !is_read_by_maker(value))
          rows_[value].free();
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

// Whether what forward gave a number is still where it was.
bool Pass::is_in_place(int number) const {
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

// Memory for the gradient of an operand. Those of a stack's other matrices are zeros until they are known.
float* Pass::gradient(int number, Gradients& to) const {
  const Operand& of = *operand(number);
  FloatMatrix& whole = to[values_.size() + of.view.tensor];
  if (whole.data == nullptr)
    whole = of.is_of_stack() ? FloatMatrix::zeros(1, of.size()) : FloatMatrix::make(1, of.size());
  return whole.data + of.first();
}

// Whether the gradient of a value may take its place. The operation is the only one that reads the value,
// or the first: backward has passed all others. It reads the value once, and has done so.
bool Pass::gives_place(int value, size_t reader) const {
  if (!has_given_up_ || outside_[value] >= 0 || !rows_[value].is_alone()) return false;
  const std::vector<int> read = plan_->operations[reader].reads();
  return plan_->first_read[value] == static_cast<int>(reader) &&
         std::count(read.begin(), read.end(), value) == 1;
}

FloatMatrix Pass::place_of(int value) {
  const FloatMatrix place = rows_[value];
  rows_[value].free();
  return place;
}

// Whether backward of the operation that makes a value reads it. One that gives no gradients has none.
bool Pass::is_read_by_maker(int value) const {
  const int maker = value - static_cast<int>(plan_->num_reads);
  return maker >= 0 && steps_[maker].wants_any() && reads_result(plan_->operations[maker], steps_[maker]);
}

// Memory for the gradient of a value: its own, if nothing reads that any more.
FloatMatrix Pass::gradient_of(int value, size_t reader) {
  if (!is_read_by_maker(value) && gives_place(value, reader)) return place_of(value);
  return FloatMatrix::make(rows_[value].rows, rows_[value].width);
}

// The operation that makes a value by a ReLU, if the value's gradient can pass that as it is computed, in
// the value's own memory; else -1.
int Pass::gate_of(int value, size_t reader, const FloatMatrix& held) const {
  const int maker = value - static_cast<int>(plan_->num_reads);
  if (maker < 0 || plan_->operations[maker].act != static_cast<int>(Act::kRelu)) return -1;
  return held.data == nullptr && gives_place(value, reader) ? maker : -1;
}

// The gradient of a value from that of its map, in the transpose of the map. Adds it to that of others.
void Pass::sum_back(const Operation& op, size_t place, std::vector<std::optional<Map>>& given,
                    const FloatMatrix& grad, FloatMatrix& held, const FloatMatrix& own) {
  const SpmmArgs turned = transposed(op.edges, given, false).first;
  const FloatMatrix* addend = own.data != nullptr ? &own : nullptr;
  const int gate = gate_of(op.x, place, held);
  const FloatMatrix of_x = gate >= 0 ? place_of(op.x) : gradient_of(op.x, place);
  sum_over(turned, grad, of_x, addend, nullptr, gate >= 0 ? &steps_[gate].epilogue.keep_scale : nullptr);
  if (gate >= 0) steps_[gate].is_gated = true;
  add(held, of_x);
}

// The gradient of a value from that of its product. Through a ReLU it goes by some rows at a time.
void Pass::multiply_back(const FloatMatrix& grad, const Strided& b, int value, size_t place,
                         FloatMatrix& held) {
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

// The transpose of a map, and the places of its edges in the map, where they are given or asked for.
std::pair<SpmmArgs, const int64_t*> Pass::transposed(int number, const std::vector<std::optional<Map>>& given,
                                                     bool with_places) {
  if (const std::optional<Map>& map = given[number]) return {arguments_of(*map), data_or_null(map->places)};
  // Several threads may pass back through one graph at a time, and none holds the GIL here.
  const std::lock_guard lock(reversing_);
  if (!reversed_[number]) reversed_[number] = std::make_unique<Reversed>(maps_[number], with_places);
  return {reversed_[number]->arguments, reversed_[number]->places};
}

// Adds the gradients of what messages read of parameters, a row each, to those of the operands.
void Pass::give_parameters(const Operation& op, const FloatMatrix& rows, Gradients& to) const {
  const Messages& of = *op.messages;
  const float* row = rows.data;
  for (size_t i = 0; i < of.parameters.size(); ++i, row += of.width) {
    const auto [number, column] = of.parameters[i];
    if (!operand_wants_[number]) continue;
    FloatMatrix& target = to[values_.size() + plan_->views[number].tensor];
    if (target.data == nullptr) target = FloatMatrix::zeros(1, operand(number)->size());
    operand(number)->join(row, of.width, column, target.data);
  }
}

void Pass::attend_back(const Operation& op, size_t place, FloatMatrix grad,
                       const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                       Gradients& to) {
  const Step& step = steps_[place];
  const Map& map = maps_[op.edges];
  const bool keeps = op.attention.keeps_logits(map, step.of_other && (step.of_x || step.of_key));
  const bool reads_edges = op.kind == Kind::kDot ? !op.messages->parameters.empty() : op.key >= 0;
  const auto [reversed, places] =
      transposed(op.edges, given, keeps || reads_edges || op.p > 0 || step.product != nullptr);
  const bool is_dot = op.kind == Kind::kDot, over_result = is_dot && has_given_up_ && outside_[op.out] < 0;
  const bool over_values =
      is_dot && keeps && places != nullptr && !is_read_by_maker(op.x) && gives_place(op.x, place);
  if (over_result) rows_[op.out].free();  // what attention keeps still has it
  const AttentionGradients of =
      op.attention.backward(map, reversed, places, attention_inputs(op, step), step.attended, std::move(grad),
                            keeps, {over_values, over_result});
  const auto give = [&](int number, const float* from) {
    if (operand(number) != nullptr && operand_wants_[number])
      std::copy_n(from, operand(number)->size(), gradient(number, to));
  };
  give(op.weight, of.vectors.data);
  give(op.other_weight, of.vectors.data + of.vectors.width);
  give(op.edge_vector(), of.vectors.data + 2 * of.vectors.width);
  give(op.bias, of.edge_weight.data);
  if (op.messages != nullptr) give_parameters(op, of.edge_weight, to);
  if (const Operation* product = step.product) {
    give(product->weight, of.weight.data);
    if (wants_[product->x]) add(held[product->x], of.src);
  } else if (step.of_x) {
    add(held[op.x], of.src);
  }
  if (step.of_key) add(held[op.key], of.key);
  if (step.of_other) add(held[op.other], of.dst);
}

void Pass::message_back(const Operation& op, const Step& step, FloatMatrix grad,
                        const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                        Gradients& to) {
  const Messages& of = *op.messages;
  MessageGradients gradients;
  // Where forward has kept slopes, destinations add theirs number by number, behind all sources: then a value
  // that is read at both ends needs one matrix.
  const MessagePrograms& programs = *step.sent.programs;
  const bool shares =
      programs.slopes && !programs.back[kDestinations] && !programs.back_at_nodes[kDestinations];
  const std::vector<int>& sources = of.values[kSources];
  const auto shared = [&](MessageSide side, int value) {
    const auto found = std::find(sources.begin(), sources.end(), value);
    return side == kSources || !shares ? sources.end() : found;
  };
  for (const MessageSide side : {kSources, kDestinations})
    for (const int value : of.values[side]) {
      const FloatMatrix& rows = rows_[value];
      FloatMatrix made;
      if (const auto at = shared(side, value); at != sources.end())
        made = gradients.rows[kSources][at - sources.begin()];
      else if (wants_[value])
        made = FloatMatrix::zeros(rows.rows, rows.width);
      gradients.rows[side].push_back(made);
    }
  gradients.parameters = FloatMatrix::zeros(static_cast<int64_t>(of.parameters.size()), of.width);
  SpmmArgs turned;
  const int64_t* places = nullptr;
  const bool reads_edges = features_[op.edge_rows] || weights_[op.edge_rows];
  if (transposes(op, step)) std::tie(turned, places) = transposed(op.edges, given, reads_edges);
  need(!reads_edges || places != nullptr || turned.num_edges == 0, "rows of edges need the places of edges");
  if (of.is_several() && !plan_->by_rows[op.out]) {
    const FloatMatrix of_rows = FloatMatrix::make(grad.rows, grad.width),
                      of_sums = of.for_gradients_of_sums(maps_[op.edges]);
    copy_rows(grad, of_rows);
    of.finish_back(maps_[op.edges], step.sent, 0, of_rows, of_sums);
    grad = of_sums;
  }
  of.backward(maps_[op.edges], turned, places, message_inputs(op), step.sent, rows_[op.out], std::move(grad),
              gradients);
  for (const MessageSide side : {kSources, kDestinations})
    for (size_t i = 0; i < of.values[side].size(); ++i) {
      const int value = of.values[side][i];
      if (gradients.rows[side][i].data != nullptr && shared(side, value) == sources.end())
        add(held[value], std::move(gradients.rows[side][i]));
    }
  give_parameters(op, gradients.parameters, to);
}

// The gradients of GINE's sum of mapped edges, in one walk: by source if x wants its own.
void Pass::map_back(const Operation& op, const Step& step, size_t place, const FloatMatrix& grad,
                    const std::vector<std::optional<Map>>& given, std::vector<FloatMatrix>& held,
                    Gradients& to) {
  const Operand *weight = operand(op.weight), *bias = operand(op.bias);
  const FloatMatrix features = rows_[op.other];
  const EdgeMap mapped(weight, bias);
  FloatMatrix of_x, of_map;
  SpmmArgs walk = arguments_of(maps_[op.edges]);
  const int64_t* places = nullptr;
  if (step.of_x) {
    std::tie(walk, places) = transposed(op.edges, given, true);
    need(places != nullptr || walk.num_edges == 0, "rows of edges need the places of edges");
    of_x = gradient_of(op.x, place);
  }
  const bool in_place = step.of_x && rows_[op.x].data == nullptr;
  const FloatMatrix x = in_place ? of_x : rows_[op.x];
  if (step.of_weight || step.of_bias) of_map = FloatMatrix::make(features.width + 1, x.width);
  mapped_back(walk, places, step.of_x, grad, x, features, mapped.how, op.factor, of_x, of_map);
  if (step.of_x) add(held[op.x], of_x);
  if (step.of_weight) {
    const bool is_turned = weight->view.turned;
    float* of_weight = gradient(op.weight, to);
    for (int64_t k = 0; k < features.width; ++k)
      for (int64_t j = 0; j < x.width; ++j)
        of_weight[is_turned ? k * x.width + j : j * features.width + k] = of_map.data[k * x.width + j];
  }
  if (step.of_bias) std::copy_n(of_map.data + features.width * x.width, x.width, gradient(op.bias, to));
}

void Pass::back(size_t place, FloatMatrix grad, std::vector<std::optional<Map>>& given,
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
        if (value >= 0 && plan_->by_rows[value]) {
          const bool learns = is_other ? step.of_other_weight : step.of_weight;
          product_back_by_rows(grad, *operand(number), value, learns ? gradient(number, to) : nullptr, held);
          continue;
        }
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
    case Kind::kSideBySide:
      for_each_beside(op, [&](int value, int64_t first, int64_t width) {
        if (wants_[value]) add(held[value], grad.columns(first, width));
      });
      return;
    case Kind::kMeanOfHeads: {
      const FloatMatrix of_x = FloatMatrix::make(x.rows, x.width);
      mean_of_heads_backward(grad, op.attention.heads, of_x);
      return add(held[op.x], of_x);
    }
    case Kind::kGat:
    case Kind::kGatv2:
    case Kind::kDot:
      return attend_back(op, place, std::move(grad), given, held, to);
    case Kind::kMessages:
      return message_back(op, step, std::move(grad), given, held, to);
    case Kind::kGine: {
      if (weight != nullptr) return map_back(op, step, place, grad, given, held, to);
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

}  // namespace gb
