// The kernel of messages, compiled from csrc/aggregate/messages.inl.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "aggregate/message_compiler.h"
#include "base/prefetch.h"
#include "cpu_kernels.h"
#include "threads/balance.h"
#include "threads/parallel.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/messages.inl"
#include "variants/for_each_variant.h"

namespace program {
void reduce_messages(const Messages& m) {
  gb::MessageArgs a;
  take_edges(m.edges, a.walk);
  a.walk.width = m.width;
  a.heads = m.heads;
  a.perm = m.perm;
  a.steps = m.steps;
  a.numbers = m.numbers;
  a.num_steps = m.num_steps;
  a.weight = m.weight;
  a.adds = m.adds;
  const ConstMatrix sources[] = {m.x, m.x2, m.x3, m.x4};
  const ConstMatrix destinations[] = {m.y, m.y2, m.y3, m.y4, m.y5, m.y6, m.y7, m.y8, m.y9, m.y10};
  const gb::MessageCompiler compiler(a.steps, a.num_steps);
  for (int i = 0; i < a.num_steps; ++i) {
    const bool of_source = compiler.op(i) == gb::MessageOp::kSource;
    if (!of_source && compiler.op(i) != gb::MessageOp::kDestination) continue;
    const ConstMatrix& rows = (of_source ? sources : destinations)[compiler.first(i)];
    // A walk by source has the sources at the walked end; otherwise the destinations are there.
    auto& to = of_source == m.by_source ? a.walked : a.reached;
    to.push_back({i, {rows.data, rows.row_stride}, rows.columns});
  }
  const Matrix targets[] = {m.out, m.out2, m.out3, m.out4};
  std::vector<std::pair<gb::MessageResult, int>> wanted;
  int64_t counted = 0;
  for (int r = 0; r < m.num_results; ++r) {
    const int64_t* result = m.results + 3 * r;
    const auto kind = static_cast<gb::MessageResult>(result[0]);
    const int step = static_cast<int>(result[1]);
    const Matrix& to = targets[result[2]];
    wanted.emplace_back(kind, step);
    a.results.push_back({kind, compiler.narrow(step), to.data, to.columns});
    if (kind == gb::MessageResult::kLogSumExp) a.results.back().logs = targets[result[2] + 1].data;
    // The counts of all maxima and minima stand side by side in one matrix with `counted` columns.
    if (kind == gb::MessageResult::kMax || kind == gb::MessageResult::kMin) {
      a.results.back().count = m.count ? m.count + counted : nullptr;
      counted += to.columns;
    }
  }
  for (auto& result : a.results) result.counted = counted;
  compiler.compile(a.numbers, wanted, a);
  GB_PICK(reduce_messages)(a);
}

}  // namespace program
