// GATv2's attention over in-neighbours, per head h, by the rows of both ends:
//
//   z[e, h, :] = x[u, h, :] + own[v, h, :],  logit[e, h] = <vectors[h, :], leaky(z[e, h, :])>,  e = u -> v
//   out[v, h, :] = sum of mask[e, h] * alpha[e, h] * x[u, h, :];  alpha: softmax of the logits of v's edges
//
// Self-loops are those of attention.cuh. Kept for the backward pass: the log-sum-exp of each row and head.
// With D = <grad, out> and g = alpha * (mask * <grad[v, h, :], x[u, h, :]> - D), by csrc/attention/
// gatv2_backward.inl,
//
//   grad_own[v, h, :] = vectors[h, :] * sum over v's edges of g * leaky'(z)
//   grad_vectors[h, :] = sum over all edges of g * leaky(z)
//   grad_x[u, h, :] = sum over u's out-edges of mask * alpha * grad[v, h, :]
//                     + vectors[h, :] * sum of g * leaky'(z)
//
// A group of lanes handles a row and a head. It takes one edge after the other, and each lane some of the
// columns, so that nothing is stored per edge. Bound by reading num_edges rows of x, and in the backward pass
// also of own and grad.
#pragma once

#include "attention.cuh"

namespace program {

// A group's row and head, and what both passes compute for an edge.
template <int Lanes>
struct HeadOfRow {
  const AttentionTask& task;
  const int64_t row, head, begin;  // begin: the head's first column
  const int lane;

  __device__ explicit HeadOfRow(const AttentionTask& given)
      : task(given),
        row(thread_number() / Lanes / given.heads()),
        head(thread_number() / Lanes % given.heads()),
        begin(head * given.channels()),
        lane(static_cast<int>(threadIdx.x % Lanes)) {}

  __device__ float z(int64_t u, int64_t v, int64_t channel) const {
    return task.x.data[u * task.x.row_stride + begin + channel] +
           task.own.data[v * task.own.row_stride + begin + channel];
  }
  __device__ float logit(int64_t u, int64_t v) const {
    float sum = 0;
    for (int64_t c = lane; c < task.channels(); c += Lanes)
      sum += task.vectors.data[begin + c] * task.leaky(z(u, v, c));
    return sum_of_lanes<Lanes>(sum);
  }
  // <grad[v, h, :], row[h, :]>
  __device__ float along_grad(int64_t v, const float* row) const {
    const float* grad = task.grad.data + v * task.grad.row_stride;
    float sum = 0;
    for (int64_t c = lane; c < task.channels(); c += Lanes) sum += grad[begin + c] * row[begin + c];
    return sum_of_lanes<Lanes>(sum);
  }
  // Calls f(edge, place) for the edges of the row, which are given by destination or by source.
  template <typename F>
  __device__ void for_edges(const Edges& edges, const F& f) const {
    const int64_t places = edges.indptr[row + 1] - edges.indptr[row] + 1;  // and one for a self-loop
    for (int64_t place = 0; place < places; ++place) {
      const Edge edge = edge_of(task, edges, row, place);
      if (edge.is_there) f(edge, place);
    }
  }
  // Calls f(tile's number, channel) for this lane's channels from `first` on.
  template <typename F>
  __device__ void for_tile(int64_t first, const F& f) const {
    for (int t = 0; t < kWarpTile; ++t)
      if (first + t * Lanes < task.channels()) f(t, first + t * Lanes);
  }
};

template <int Lanes>
__global__ void attend_both(const AttentionTask task) {
  const HeadOfRow<Lanes> own(task);
  const int64_t v = own.row, h = own.head;
  if (v >= task.edges.num_rows) return;
  for (int64_t first = own.lane; first - own.lane < task.channels(); first += kWarpTile * Lanes) {
    float top = -INFINITY, total = 0, sum[kWarpTile] = {};
    own.for_edges(task.edges, [&](const Edge& edge, int64_t) {
      // A softmax in one walk: when a larger logit comes, the sums so far are scaled down to it.
      const float logit = own.logit(edge.node, v), larger = fmaxf(top, logit);
      const float before = expf(top - larger), power = expf(logit - larger);
      const float c = power * task.mask(v, edge.id, h);
      total = total * before + power;
      own.for_tile(first, [&](int t, int64_t channel) {
        sum[t] = sum[t] * before + c * task.x.data[edge.node * task.x.row_stride + own.begin + channel];
      });
      top = larger;
    });
    own.for_tile(first, [&](int t, int64_t channel) {
      task.out.data[v * task.out.row_stride + own.begin + channel] = total == 0 ? 0.0f : sum[t] / total;
    });
    if (first == 0) task.lse.data[v * task.heads() + h] = total == 0 ? 0.0f : top + logf(total);
  }
}

// By destination: D, the gradient of its own row, and its edges' part of the vectors' gradient.
template <int Lanes>
__global__ void attend_both_back_to_destinations(const AttentionTask task) {
  const HeadOfRow<Lanes> own(task);
  const int64_t v = own.row, h = own.head;
  if (v >= task.edges.num_rows) return;
  const int64_t item = v * task.heads() + h;
  const float d = own.along_grad(v, task.out.data + v * task.out.row_stride), lse = task.lse.data[item];
  if (own.lane == 0) task.d[item] = d;
  for (int64_t first = own.lane; first - own.lane < task.channels(); first += kWarpTile * Lanes) {
    float steep[kWarpTile] = {}, whole[kWarpTile] = {};
    own.for_edges(task.edges, [&](const Edge& edge, int64_t) {
      const float alpha = expf(own.logit(edge.node, v) - lse);
      const float g =
          alpha *
          (task.mask(v, edge.id, h) * own.along_grad(v, task.x.data + edge.node * task.x.row_stride) - d);
      own.for_tile(first, [&](int t, int64_t channel) {
        const float z = own.z(edge.node, v, channel), slope = z > 0 ? g : g * task.slope;
        steep[t] += slope;
        whole[t] += z * slope;
      });
    });
    own.for_tile(first, [&](int t, int64_t channel) {
      const int64_t column = own.begin + channel;
      task.grad_own.data[v * task.grad_own.row_stride + column] = task.vectors.data[column] * steep[t];
      task.of_vectors.data[v * task.of_vectors.row_stride + column] = whole[t];
    });
  }
}

// By source: the gradient of its row.
template <int Lanes>
__global__ void attend_both_back_to_sources(const AttentionTask task) {
  const HeadOfRow<Lanes> own(task);
  const int64_t u = own.row, h = own.head;
  if (u >= task.by_source.num_rows) return;
  for (int64_t first = own.lane; first - own.lane < task.channels(); first += kWarpTile * Lanes) {
    float sum[kWarpTile] = {}, steep[kWarpTile] = {};
    own.for_edges(task.by_source, [&](const Edge& edge, int64_t place) {
      const int64_t v = edge.node, to = v * task.heads() + h;
      const float alpha = expf(own.logit(u, v) - task.lse.data[to]);
      const float kept = alpha * source_mask(task, u, edge, place, h);
      const float g = kept * own.along_grad(v, task.x.data + u * task.x.row_stride) - alpha * task.d[to];
      own.for_tile(first, [&](int t, int64_t channel) {
        sum[t] += kept * task.grad.data[v * task.grad.row_stride + own.begin + channel];
        steep[t] += own.z(u, v, channel) > 0 ? g : g * task.slope;
      });
    });
    own.for_tile(first, [&](int t, int64_t channel) {
      const int64_t column = own.begin + channel;
      task.grad_x.data[u * task.grad_x.row_stride + column] = sum[t] + task.vectors.data[column] * steep[t];
    });
  }
}

}  // namespace program
