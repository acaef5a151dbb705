// Binds messages.inl; ops/message_kernel.py describes the operator.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "aggregate/message_compiler.h"
#include "arguments/edge_rows.h"
#include "base/prefetch.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/messages.inl"
#include "variants/for_each_variant.h"

namespace gb {

using Floats = Array<const float, 2>;
using OptionalFloats = std::optional<Floats>;
using WrittenFloats = std::optional<Array2<float>>;

void run_messages(const MessageArgs& a) { GB_PICK(reduce_messages)(a); }

static void check_steps(const MessageCompiler& of, const int64_t* steps, int num_steps) {
  for (int i = 0; i < num_steps; ++i) {
    const int64_t* step = steps + 4 * i;
    need(step[0] >= 0 && step[0] < kNumMessageOps, "steps must name operations");
    need(step[1] >= 0 && step[2] >= 0 && (step[2] < i || step[2] == 0), "steps must read earlier ones");
    need(step[3] == 0 || step[3] == 1, "steps must be narrow or wide");
    if (is_leaf(of.op(i))) continue;
    need(step[1] < i, "steps must read earlier ones");
    const bool to_narrow = of.op(i) == MessageOp::kSumColumns, to_wide = of.op(i) == MessageOp::kSpread;
    need(!to_narrow || of.narrow(i), "steps must be narrow where they sum columns");
    need(!to_wide || !of.narrow(i), "steps must be wide where they spread");
    const bool of_narrow = changes_width(of.op(i)) ? to_wide : of.narrow(i);
    need(of.fits(of.first(i), of_narrow), "steps must read rows as wide as theirs");
    if (reads_two(of.op(i))) need(of.fits(of.second(i), of_narrow), "steps must read rows as wide as theirs");
  }
}

void compile_program(const int64_t* results, int64_t num_results, MessageArgs& a) {
  const MessageCompiler compiler(a.steps, a.num_steps);
  check_steps(compiler, a.steps, a.num_steps);
  std::vector<std::pair<MessageResult, int>> wanted;
  for (const int64_t* row = results; row != results + 3 * num_results; row += 3) {
    need(row[0] >= 0 && row[0] < kNumMessageResults, "results must be of a kind");
    need(row[1] >= 0 && row[1] < a.num_steps && row[2] >= 0, "results must be of steps");
    const auto kind = static_cast<MessageResult>(row[0]);
    const int step = static_cast<int>(row[1]);
    wanted.emplace_back(kind, step);
    a.results.push_back({kind, compiler.narrow(step), nullptr, 0});
  }
  compiler.compile(a.numbers, wanted, a);
}

static void reduce_messages(const Indptr& indptr, const Ids& indices, const OptionalIds& perm, bool by_source,
                            int64_t heads, const Array2<const int64_t>& steps,
                            const Array1<const float>& numbers, const OptionalFloats& x,
                            const OptionalFloats& x2, const OptionalFloats& x3, const OptionalFloats& x4,
                            const OptionalFloats& y, const OptionalFloats& y2, const OptionalFloats& y3,
                            const OptionalFloats& y4, const OptionalFloats& y5, const OptionalFloats& y6,
                            const OptionalFloats& y7, const OptionalFloats& y8, const OptionalFloats& y9,
                            const OptionalFloats& y10, const OptionalFloats& edges,
                            const std::optional<Array1<const float>>& weight, const Floats& parameters,
                            const Array2<const int64_t>& results, bool adds, const WrittenFloats& out,
                            const WrittenFloats& out2, const WrittenFloats& out3, const WrittenFloats& out4,
                            const std::optional<Array2<int32_t>>& count, const WrittenFloats& to_parameters) {
  const Topology topology = topology_of(indptr, indices);
  MessageArgs a;
  a.walk.wide_indices = topology.wide;
  a.walk.indptr = topology.indptr;
  a.walk.indices = topology.indices;
  a.walk.num_dst = topology.num_dst;
  a.walk.num_edges = topology.num_edges;
  const int64_t width = a.walk.width = parameters.num_columns();
  need(width > 0, "messages must have columns");
  need(heads > 0 && width % heads == 0, "heads must divide the columns");
  a.heads = heads;
  a.adds = adds;
  if (perm) {
    need_length(*perm, topology.num_edges);
    a.perm = perm->data();
  }
  need_columns(steps, 4);
  need_count(steps.num_rows(), 1, kMostSteps, "the number of steps");
  need_length(numbers, steps.num_rows());
  a.steps = steps.data();
  a.numbers = numbers.data();
  a.num_steps = static_cast<int>(steps.num_rows());
  a.parameters = parameters.data();
  need_columns(results, 3);
  compile_program(results.data(), results.num_rows(), a);
  const MessageCompiler compiler(a.steps, a.num_steps);

  const OptionalFloats* of_sources[] = {&x, &x2, &x3, &x4};
  const OptionalFloats* of_destinations[] = {&y, &y2, &y3, &y4, &y5, &y6, &y7, &y8, &y9, &y10};
  static_assert(std::size(of_sources) == kMostSources && std::size(of_destinations) == kMostDestinations);
  const OptionalFloats* const* walked = by_source ? of_sources : of_destinations;
  for (int i = 0; i < (by_source ? kMostSources : kMostDestinations); ++i)
    if (*walked[i]) need((*walked[i])->num_rows() >= topology.num_dst, "rows that are walked must be there");
  const auto need_width = [&](const Floats& rows) {
    if (rows.num_columns() != heads) need_columns(rows, width);
  };
  for (const auto* one : of_sources)
    if (*one) need_width(**one);
  for (const auto* one : of_destinations)
    if (*one) need_width(**one);
  if (edges) need_shape(*edges, topology.num_edges, edges->num_columns());
  need_length(weight, topology.num_edges);
  const auto read = [&](int step, const OptionalFloats& rows, std::vector<MessageLeaf>& to) {
    need(rows.has_value(), "steps must read what is given");
    const int64_t columns = compiler.narrow(step) ? heads : width;
    need_columns(*rows, columns);
    to.push_back({step, {rows->data(), columns}, columns});
  };
  for (int i = 0; i < a.num_steps; ++i) {
    const int64_t of = a.steps[4 * i + 1];
    bool has = true;
    switch (compiler.op(i)) {
      case MessageOp::kSource:
        has = of < kMostSources;
        if (has) read(i, *of_sources[of], by_source ? a.walked : a.reached);
        break;
      case MessageOp::kDestination:
        has = of < kMostDestinations;
        if (has) read(i, *of_destinations[of], by_source ? a.reached : a.walked);
        break;
      case MessageOp::kEdge:
        has = of == 0;
        if (has) read(i, edges, a.of_edges);
        break;
      case MessageOp::kWeight:
        has = of == 0 && weight.has_value();
        if (has) a.weight = weight->data();
        break;
      case MessageOp::kParameter:
        has = of < parameters.num_rows();
        break;
      case MessageOp::kNumber:
        has = of == 0;
        break;
      case MessageOp::kEdgeNumber:
        has = edges.has_value() && of < edges->num_columns();
        if (has) a.edges = {edges->data(), edges->num_columns()};
        break;
      default:
        break;
    }
    need(has, "steps must read what is given");
  }

  const WrittenFloats* targets[] = {&out, &out2, &out3, &out4};
  static_assert(std::size(targets) == kMostResults);
  bool is_given[kMostResults] = {};
  const auto target = [&](int64_t place, int64_t columns) {
    need(place < kMostResults && *targets[place], "results must have a place");
    need_shape(**targets[place], topology.num_dst, columns);
    is_given[place] = true;
    return (*targets[place])->data();
  };
  int64_t counted = 0;  // columns of the counts of the extrema so far
  for (int64_t r = 0; r < results.num_rows(); ++r) {
    const int64_t place = results.data()[3 * r + 2];
    MessageArgs::Result& result = a.results[static_cast<size_t>(r)];
    const int64_t columns = result.columns = result.narrow ? heads : width;
    if (result.kind == MessageResult::kOverAll) {
      need(to_parameters && place < parameters.num_rows(), "results must have a place");
      result.to = to_parameters->data() + place * width;
    } else {
      result.to = target(place, columns);
      if (result.kind == MessageResult::kLogSumExp) result.logs = target(place + 1, columns);
      if (result.kind == MessageResult::kMax || result.kind == MessageResult::kMin) {
        result.count = count ? count->data() + counted : nullptr;
        counted += columns;
      }
    }
  }
  for (int i = 0; i < kMostResults; ++i)
    need(is_given[i] == targets[i]->has_value(), "results must have a place");
  need(counted > 0 || !count, "count goes with maxima and minima");
  if (count) need_shape(*count, topology.num_dst, counted);
  for (MessageArgs::Result& result : a.results) result.counted = counted;
  if (to_parameters) need_shape(*to_parameters, parameters.num_rows(), width);
  nb::gil_scoped_release release;
  run_messages(a);
}

void bind_messages(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "reduce_messages", &reduce_messages, "indptr"_a, "indices"_a, "perm"_a, "by_source"_a,
             "heads"_a, "steps"_a, "numbers"_a, "x"_a, "x2"_a, "x3"_a, "x4"_a, "y"_a, "y2"_a, "y3"_a, "y4"_a,
             "y5"_a, "y6"_a, "y7"_a, "y8"_a, "y9"_a, "y10"_a, "edges"_a, "weight"_a, "parameters"_a,
             "results"_a, "adds"_a, "out"_a, "out2"_a, "out3"_a, "out4"_a, "count"_a, "to_parameters"_a);
}

}  // namespace gb
