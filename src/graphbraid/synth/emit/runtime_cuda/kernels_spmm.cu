// The aggregation: see spmm.cuh.
#include "gpu_memory.h"
#include "spmm.cuh"

namespace program {
namespace {

SpmmTerms terms_of(const Spmm& a, float* partial) {
  return {a.edges,     a.x,
          a.factors,   static_cast<float>(a.loop_scale),
          a.num_loops, a.skip_loops,
          a.mean,      a.addend,
          a.out,       epilogue_of(a.after),
          partial};
}

}  // namespace

void spmm(const Spmm& a) {
  const int64_t count = a.edges.long_rows.num_parts * a.out.columns;
  void* partial = Workspace::begin(count * static_cast<int64_t>(sizeof(float)));
  sum_over_edges("spmm", terms_of(a, static_cast<float*>(partial)));
}

}  // namespace program
