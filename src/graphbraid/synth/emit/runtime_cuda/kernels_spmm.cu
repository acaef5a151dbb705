// The aggregation: see spmm.cuh.
#include "gpu_memory.h"
#include "spmm.cuh"

namespace program {
namespace {

float* partial_sums(const Edges& edges, int64_t columns) {
  const int64_t count = edges.long_rows.num_parts * columns;
  return static_cast<float*>(Workspace::begin(count * static_cast<int64_t>(sizeof(float))));
}

}  // namespace

void spmm(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale, int64_t num_loops,
          bool skip_loops, bool mean, ConstMatrix addend, Matrix out, const gb::Epilogue* after) {
  const SpmmTerms terms{edges,
                        x,
                        factors,
                        static_cast<float>(loop_scale),
                        num_loops,
                        skip_loops,
                        mean,
                        addend,
                        out,
                        after ? *after : gb::Epilogue{},
                        partial_sums(edges, out.columns)};
  sum_over_edges("spmm", terms);
}

void spmm_transposed(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale,
                     int64_t num_loops, bool skip_loops, ConstMatrix addend, Matrix out) {
  const SpmmTerms terms{edges,     x,          factors, static_cast<float>(loop_scale),
                        num_loops, skip_loops, false,   addend,
                        out,       {},         nullptr};
  launch("spmm_transposed", begin_rows, out.rows * out.columns, terms);
  with_lanes(out.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("spmm_transposed", scatter_rows<kLanes>, edges.num_rows * kLanes, terms);
  });
}

}  // namespace program
