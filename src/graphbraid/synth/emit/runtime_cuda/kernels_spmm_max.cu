// The maximum over in-neighbours and its gradient: see spmm_max.cuh.
#include "gpu_memory.h"
#include "spmm_max.cuh"

namespace program {

void spmm_max(const SpmmMax& a) {
  const LongRows& parts = a.edges.long_rows;
  const int64_t count = parts.num_parts * a.out.columns;
  auto* partial = static_cast<float*>(Workspace::begin(2 * count * static_cast<int64_t>(sizeof(float))));
  const MaxTask task{
      a.edges, a.x, a.ties, a.out, a.found, partial, reinterpret_cast<int32_t*>(partial + count)};
  with_lanes(a.out.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("spmm_max", max_rows<kLanes>, a.edges.num_rows * kLanes, task);
    launch("spmm_max", max_parts<kLanes>, parts.num_parts * kLanes, task);
    launch("spmm_max", join_max<kLanes>, parts.num_rows * kLanes, task);
  });
}

void spmm_max_shared_backward(const SpmmMaxBackward& a) {
  const int64_t count = a.edges.long_rows.num_parts * a.out.columns;
  void* partial = Workspace::begin(count * static_cast<int64_t>(sizeof(float)));
  sum_over_edges("spmm_max_shared_backward",
                 SharedTerms{a.edges, a.share, a.largest, a.x, a.out, static_cast<float*>(partial)});
}

}  // namespace program
