// The maximum over in-neighbours and its gradient: see spmm_max.cuh.
#include "gpu_memory.h"
#include "spmm_max.cuh"

namespace program {

void spmm_max(const Edges& edges, ConstMatrix x, int ties, Matrix out, int32_t* found) {
  const LongRows& parts = edges.long_rows;
  const int64_t count = parts.num_parts * out.columns;
  auto* partial = static_cast<float*>(Workspace::begin(2 * count * static_cast<int64_t>(sizeof(float))));
  const MaxTask task{edges, x, ties, out, found, partial, reinterpret_cast<int32_t*>(partial + count)};
  with_lanes(out.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("spmm_max", max_rows<kLanes>, edges.num_rows * kLanes, task);
    launch("spmm_max", max_parts<kLanes>, parts.num_parts * kLanes, task);
    launch("spmm_max", join_max<kLanes>, parts.num_rows * kLanes, task);
  });
}

void spmm_max_shared_backward(const Edges& edges, ConstMatrix share, ConstMatrix largest, ConstMatrix x,
                              Matrix out) {
  const int64_t count = edges.long_rows.num_parts * out.columns;
  void* partial = Workspace::begin(count * static_cast<int64_t>(sizeof(float)));
  sum_over_edges("spmm_max_shared_backward",
                 SharedTerms{edges, share, largest, x, out, static_cast<float*>(partial)});
}

}  // namespace program
