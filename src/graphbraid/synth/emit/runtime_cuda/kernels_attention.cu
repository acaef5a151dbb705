// GAT's attention and what surrounds it: see attention.cuh.
#include "attention.cuh"
#include "elements.cuh"
#include "gpu_memory.h"

namespace program {
namespace {

// Those of the forward pass; the rest is the backward pass's.
AttentionTask task_of(const Edges& edges, ConstMatrix x, ConstMatrix src_logit, ConstMatrix dst_logit,
                      const Attention& how, Matrix out, Matrix lse, Matrix above, Matrix share) {
  AttentionTask task{};
  task.edges = edges;
  task.x = x;
  task.src_logit = src_logit;
  task.dst_logit = dst_logit;
  task.slope = static_cast<float>(how.slope);
  task.num_loops = how.num_loops;
  task.threshold = static_cast<uint32_t>(how.p * 0x1p32);
  task.keep_scale = static_cast<float>(1.0 / (1.0 - how.p));
  task.seed = how.seed;
  task.first_keys = how.first_keys;
  task.out = out;
  task.lse = lse;
  task.above = above;
  task.share = share;
  return task;
}

// out[i, j] = x[i] in the rows and the column of its own head.
struct Spread {
  const float* x;
  int64_t channels;
  __device__ float operator()(int64_t row, int64_t column) const {
    return row / channels == column ? x[row] : 0.0f;
  }
};

struct OwnHead {
  ConstMatrix x;
  int64_t channels;
  __device__ float operator()(int64_t, int64_t column) const { return at(x, column / channels, column); }
};

struct MeanOfHeads {
  ConstMatrix x;
  int64_t columns;
  __device__ float operator()(int64_t row, int64_t column) const {
    float sum = 0;
    for (int64_t j = column; j < x.columns; j += columns) sum += at(x, row, j);
    return sum / static_cast<float>(x.columns / columns);
  }
};

struct Repeated {
  ConstMatrix x;
  float factor;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(x, row, column % x.columns) * factor;
  }
};

template <typename Values>
void write(const char* name, const Values& values, Matrix out) {
  launch(name, fill<Values>, out.rows * out.columns, values, out);
}

}  // namespace

void gat_forward(const Edges& edges, ConstMatrix x, ConstMatrix src_logit, ConstMatrix dst_logit,
                 const Attention& how, Matrix out, Matrix lse, Matrix above, Matrix share) {
  launch("gat_forward", attend, edges.num_rows * lse.columns * kWarp,
         task_of(edges, x, src_logit, dst_logit, how, out, lse, above, share));
}

void gat_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                  ConstMatrix src_logit, ConstMatrix dst_logit, const Attention& how, Matrix out, Matrix lse,
                  ConstMatrix grad, Matrix grad_x, Matrix grad_src_logit, Matrix grad_dst_logit, Matrix above,
                  Matrix share) {
  const int64_t heads = lse.columns;
  AttentionTask task = task_of(edges, x, src_logit, dst_logit, how, out, lse, above, share);
  task.by_source = by_source;
  task.perm = perm;
  task.grad = grad;
  task.narrow = heads > 1 && grad.columns == x.columns / heads;
  task.grad_x = grad_x;
  task.grad_src_logit = grad_src_logit;
  task.grad_dst_logit = grad_dst_logit;
  const int64_t bytes = edges.num_rows * heads * static_cast<int64_t>(sizeof(float));
  task.d = static_cast<float*>(Workspace::begin(bytes));
  launch("gat_backward", attend_back_to_destinations, edges.num_rows * heads * kWarp, task);
  launch("gat_backward", attend_back_to_sources, by_source.num_rows * heads * kWarp, task);
}

void spread_heads(const float* x, int64_t, int64_t channels, Matrix out) {
  write("spread_heads", Spread{x, channels}, out);
}

void own_heads(ConstMatrix x, float* out) {
  write("own_heads", OwnHead{x, x.columns / x.rows}, Matrix{out, 1, x.columns, x.columns});
}

void mean_of_heads(ConstMatrix x, Matrix out) { write("mean_of_heads", MeanOfHeads{x, out.columns}, out); }

void repeat_heads(ConstMatrix x, float factor, Matrix out) {
  write("repeat_heads", Repeated{x, factor}, out);
}

}  // namespace program
