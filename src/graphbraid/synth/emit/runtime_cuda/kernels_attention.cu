// The attention of GAT and GATv2: see attention.cuh and gatv2.cuh.
#include "attention.cuh"
#include "column_sums.cuh"
#include "elements.cuh"
#include "gatv2.cuh"
#include "gpu_memory.h"
#include "sums.cuh"

namespace program {
namespace {

// The arguments that both passes have.
template <typename Call>
AttentionTask task_of(const Call& c) {
  AttentionTask task{};
  task.edges = c.edges;
  task.x = c.x;
  task.slope = static_cast<float>(c.how.slope);
  task.num_loops = c.how.num_loops;
  task.threshold = static_cast<uint32_t>(c.how.p * 0x1p32);
  task.keep_scale = static_cast<float>(1.0 / (1.0 - c.how.p));
  task.seed = c.how.seed;
  task.first_keys = c.how.first_keys;
  task.out = c.out;
  task.lse = c.lse;
  if constexpr (requires { c.src_logit; }) {  // GAT; GATv2 has no logits of rows
    task.src_logit = c.src_logit;
    task.dst_logit = c.dst_logit;
    task.above = c.above;
    task.share = c.share;
  } else {
    task.own = c.own;
    task.vectors = c.vectors;
  }
  return task;
}

// The same for the backward pass, with its own arguments that GAT and GATv2 have in common.
template <typename Call>
AttentionTask backward_task_of(const Call& c) {
  AttentionTask task = task_of(c);
  task.by_source = c.by_source;
  task.perm = c.perm;
  task.grad = c.grad;
  task.grad_x = c.grad_x;
  return task;
}

}  // namespace

void gat_forward(const GatForward& a) {
  launch("gat_forward", attend, a.edges.num_rows * a.lse.columns * kWarp, task_of(a));
}

void gat_backward(const GatBackward& a) {
  const int64_t heads = a.lse.columns;
  AttentionTask task = backward_task_of(a);
  task.narrow = heads > 1 && a.grad.columns == a.x.columns / heads;
  task.grad_src_logit = a.grad_src_logit;
  task.grad_dst_logit = a.grad_dst_logit;
  const int64_t bytes = a.edges.num_rows * heads * static_cast<int64_t>(sizeof(float));
  task.d = static_cast<float*>(Workspace::begin(bytes));
  launch("gat_backward", attend_back_to_destinations, a.edges.num_rows * heads * kWarp, task);
  launch("gat_backward", attend_back_to_sources, a.by_source.num_rows * heads * kWarp, task);
}

void gatv2_forward(const Gatv2Forward& a) {
  const AttentionTask task = task_of(a);
  with_lanes(a.x.columns / a.lse.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("gatv2_forward", attend_both<kLanes>, a.edges.num_rows * a.lse.columns * kLanes, task);
  });
}

void gatv2_backward(const Gatv2Backward& a) {
  const int64_t heads = a.lse.columns, width = a.x.columns, sums = kMostParts * width;
  AttentionTask task = backward_task_of(a);
  task.grad_own = a.grad_own;
  // grad_x's memory first holds each row's part of the vectors' gradient. These are summed before the
  // sources' gradients are written there.
  task.of_vectors = contiguous(a.grad_x.data, a.edges.num_rows, width);
  const int64_t bytes = (sums + a.edges.num_rows * heads) * static_cast<int64_t>(sizeof(float));
  task.d = static_cast<float*>(Workspace::begin(bytes)) + sums;
  with_lanes(width / heads, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("gatv2_backward", attend_both_back_to_destinations<kLanes>, a.edges.num_rows * heads * kLanes,
           task);
    sum_columns("gatv2_backward", Same{task.of_vectors}, a.edges.num_rows, width, a.grad_vectors.data);
    launch("gatv2_backward", attend_both_back_to_sources<kLanes>, a.by_source.num_rows * heads * kLanes,
           task);
  });
}

}  // namespace program
