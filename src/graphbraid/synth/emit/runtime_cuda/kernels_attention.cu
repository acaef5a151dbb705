// GAT's attention and what surrounds it: see attention.cuh.
#include "attention.cuh"
#include "elements.cuh"
#include "gpu_memory.h"

namespace program {
namespace {

// Of either pass; the rest is the backward pass's.
template <typename Call>
AttentionTask task_of(const Call& c) {
  AttentionTask task{};
  task.edges = c.edges;
  task.x = c.x;
  task.src_logit = c.src_logit;
  task.dst_logit = c.dst_logit;
  task.slope = static_cast<float>(c.how.slope);
  task.num_loops = c.how.num_loops;
  task.threshold = static_cast<uint32_t>(c.how.p * 0x1p32);
  task.keep_scale = static_cast<float>(1.0 / (1.0 - c.how.p));
  task.seed = c.how.seed;
  task.first_keys = c.how.first_keys;
  task.out = c.out;
  task.lse = c.lse;
  task.above = c.above;
  task.share = c.share;
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

void gat_forward(const GatForward& a) {
  launch("gat_forward", attend, a.edges.num_rows * a.lse.columns * kWarp, task_of(a));
}

void gat_backward(const GatBackward& a) {
  const int64_t heads = a.lse.columns;
  AttentionTask task = task_of(a);
  task.by_source = a.by_source;
  task.perm = a.perm;
  task.grad = a.grad;
  task.narrow = heads > 1 && a.grad.columns == a.x.columns / heads;
  task.grad_x = a.grad_x;
  task.grad_src_logit = a.grad_src_logit;
  task.grad_dst_logit = a.grad_dst_logit;
  const int64_t bytes = a.edges.num_rows * heads * static_cast<int64_t>(sizeof(float));
  task.d = static_cast<float*>(Workspace::begin(bytes));
  launch("gat_backward", attend_back_to_destinations, a.edges.num_rows * heads * kWarp, task);
  launch("gat_backward", attend_back_to_sources, a.by_source.num_rows * heads * kWarp, task);
}

void spread_heads(const SpreadHeads& a) { write("spread_heads", Spread{a.x, a.channels}, a.out); }

void own_heads(const OwnHeads& a) {
  write("own_heads", OwnHead{a.x, a.x.columns / a.x.rows}, contiguous(a.out, 1, a.x.columns));
}

void mean_of_heads(const Elements& a) { write("mean_of_heads", MeanOfHeads{a.x, a.out.columns}, a.out); }

void repeat_heads(const RepeatHeads& a) {
  write("repeat_heads", Repeated{a.x, static_cast<float>(a.factor)}, a.out);
}

}  // namespace program
