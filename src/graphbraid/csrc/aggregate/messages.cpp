// Binds messages.inl; ops/message_steps.py describes the operator.
#include "aggregate/messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/edge_rows.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/messages.inl"
#include "variants/for_each_variant.h"

namespace gb {

using Floats = Array<const float, 2>;
using OptionalFloats = std::optional<Floats>;

// The walk, the steps and what they read. Rows of x and y are read by the ids that the graph was checked for.
static MessageArgs message_args_of(const Indptr& indptr, const Ids& indices, const OptionalIds& perm,
                                   const Array2<const int64_t>& steps, const Array1<const float>& numbers,
                                   const OptionalFloats& x, const OptionalFloats& x2, const OptionalFloats& y,
                                   const OptionalFloats& y2, const OptionalFloats& edges,
                                   const std::optional<Array1<const float>>& weight, const Floats& parameters,
                                   int64_t width) {
  const Topology topology = topology_of(indptr, indices);
  MessageArgs a;
  a.walk.wide_indices = topology.wide;
  a.walk.indptr = topology.indptr;
  a.walk.indices = topology.indices;
  a.walk.num_dst = topology.num_dst;
  a.walk.num_edges = topology.num_edges;
  a.walk.width = width;
  if (perm) {
    need_length(*perm, topology.num_edges);
    a.perm = perm->data();
  }
  need(width > 0, "messages must have columns");
  need_columns(steps, 3);
  need_count(steps.num_rows(), 1, kMostSteps, "the number of steps");
  need_length(numbers, steps.num_rows());
  need_columns(parameters, width);
  a.steps = steps.data();
  a.numbers = numbers.data();
  a.num_steps = static_cast<int>(steps.num_rows());
  a.parameters = parameters.data();
  a.num_parameters = parameters.num_rows();
  const auto read = [&](const OptionalFloats& given, Rows& rows) {
    if (!given) return;
    need_columns(*given, width);
    rows = {given->data(), width};
  };
  read(x, a.sources[0]);
  read(x2, a.sources[1]);
  read(y, a.destinations[0]);
  read(y2, a.destinations[1]);
  read(edges, a.edges);
  if (edges) need_shape(*edges, topology.num_edges, width);
  if (weight) {
    need_length(*weight, topology.num_edges);
    a.weight = weight->data();
  }
  // Not by their pointers: those of matrices without rows are null.
  const bool of_sources[] = {x.has_value(), x2.has_value()},
             of_destinations[] = {y.has_value(), y2.has_value()};
  static_assert(std::size(of_sources) == kMostMatrices);
  for (int i = 0; i < a.num_steps; ++i) {
    const int64_t *step = a.steps + 3 * i, of = step[1];
    need(step[0] >= 0 && step[0] < kNumMessageOps, "steps must name operations");
    need(of >= 0 && step[2] >= 0 && (step[2] < i || step[2] == 0), "steps must read earlier ones");
    bool has = of < i;  // of a step that computes
    switch (static_cast<MessageOp>(step[0])) {
      case MessageOp::kSource:
        has = of < kMostMatrices && of_sources[of];
        break;
      case MessageOp::kDestination:
        has = of < kMostMatrices && of_destinations[of];
        break;
      case MessageOp::kEdge:
        has = of == 0 && edges.has_value();
        break;
      case MessageOp::kWeight:
        has = of == 0 && weight.has_value();
        break;
      case MessageOp::kParameter:
        has = of < a.num_parameters;
        break;
      case MessageOp::kNumber:
        has = of == 0;
        break;
      default:
        break;
    }
    need(has, "steps must read what is given");
  }
  return a;
}

static void message_forward(const Indptr& indptr, const Ids& indices, const Array2<const int64_t>& steps,
                            const Array1<const float>& numbers, const OptionalFloats& x,
                            const OptionalFloats& x2, const OptionalFloats& y, const OptionalFloats& y2,
                            const OptionalFloats& edges, const std::optional<Array1<const float>>& weight,
                            const Floats& parameters, int64_t reduction, const Array2<float>& out,
                            const std::optional<Array2<int32_t>>& count) {
  MessageForwardArgs a{message_args_of(indptr, indices, std::nullopt, steps, numbers, x, x2, y, y2, edges,
                                       weight, parameters, out.num_columns())};
  need_count(reduction, 0, static_cast<int64_t>(MessageReduction::kMin), "reduction");
  a.reduction = static_cast<MessageReduction>(reduction);
  need_shape(out, a.walk.num_dst, a.walk.width);
  need(count.has_value() == (a.reduction != MessageReduction::kSum), "count goes with a maximum or minimum");
  for (const OptionalFloats& own : {y, y2})
    if (own) need(own->num_rows() >= a.walk.num_dst, "destinations must have a row for each node");
  if (count) {
    need_shape(*count, a.walk.num_dst, a.walk.width);
    a.count = count->data();
  }
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(message_forward)(a);
}

static void message_backward(const Indptr& indptr, const Ids& indices, const OptionalIds& perm,
                             bool by_source, const Array2<const int64_t>& steps,
                             const Array1<const float>& numbers, const OptionalFloats& x,
                             const OptionalFloats& x2, const OptionalFloats& y, const OptionalFloats& y2,
                             const OptionalFloats& edges, const std::optional<Array1<const float>>& weight,
                             const Floats& parameters, const Floats& grad, const OptionalFloats& largest,
                             const std::optional<Array2<float>>& to_rows,
                             const std::optional<Array2<float>>& to_rows2,
                             const std::optional<Array2<float>>& to_parameters) {
  MessageBackwardArgs a{message_args_of(indptr, indices, perm, steps, numbers, x, x2, y, y2, edges, weight,
                                        parameters, grad.num_columns())};
  a.by_source = by_source;
  const int64_t width = a.walk.width;
  if (!by_source) need_shape(grad, a.walk.num_dst, width);
  if (largest) {
    need_shape(*largest, grad.num_rows(), width);
    a.largest = largest->data();
  }
  const OptionalFloats* walked[] = {by_source ? &x : &y, by_source ? &x2 : &y2};
  const std::optional<Array2<float>>* targets[] = {&to_rows, &to_rows2};
  for (int i = 0; i < kMostMatrices; ++i) {
    if (*walked[i]) need((*walked[i])->num_rows() >= a.walk.num_dst, "rows that are walked must be there");
    if (!*targets[i]) continue;
    need(walked[i]->has_value(), "gradients belong to rows that are given");
    need_shape(**targets[i], a.walk.num_dst, width);
    a.grads[i] = (*targets[i])->data();
  }
  if (to_parameters) {
    need_shape(*to_parameters, a.num_parameters, width);
    a.grad_parameters = to_parameters->data();
  }
  a.grad = grad.data();
  nb::gil_scoped_release release;
  GB_PICK(message_backward)(a);
}

void bind_messages(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "message_forward", &message_forward, "indptr"_a, "indices"_a, "steps"_a, "numbers"_a, "x"_a,
             "x2"_a, "y"_a, "y2"_a, "edges"_a, "weight"_a, "parameters"_a, "reduction"_a, "out"_a, "count"_a);
  def_native(m, "message_backward", &message_backward, "indptr"_a, "indices"_a, "perm"_a, "by_source"_a,
             "steps"_a, "numbers"_a, "x"_a, "x2"_a, "y"_a, "y2"_a, "edges"_a, "weight"_a, "parameters"_a,
             "grad"_a, "largest"_a, "to_rows"_a, "to_rows2"_a, "to_parameters"_a);
}

}  // namespace gb
