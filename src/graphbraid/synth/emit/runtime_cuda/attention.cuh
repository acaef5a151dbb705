// GAT's attention over in-neighbours, per head h:
//
//   z[e, h] = src_logit[u, h] + dst_logit[v, h],  e = u -> v;  alpha: softmax of leaky(z) over v's edges
//   out[v, h, :] = sum of mask[e, h] * alpha[e, h] * x[u, h, :]
//
// An implicit self-loop is the last edge of its row; stored self-loops are then left out. Kept for the
// backward pass: the log-sum-exp of each row and head; and what the edges with z > 0 add to out (above) and
// to the sum of the softmax, which is 1 (share). With D = <grad, out>, as in csrc/attention/gat_backward.inl,
//
//   grad_dst_logit[v, h] = (1 - slope) * (<grad[v, h, :], above[v, h, :]> - D[v, h] * share[v, h])
//   grad_x[u, h, :] = S,  grad_src_logit[u, h] = <S * slope + S_above * (1 - slope), x[u, h, :]>
//                                                - sum of alpha * D[v, h] * leaky'(z)
//
// with S, S_above the sums of mask * alpha * grad[v] over u's out-edges, and over those with z > 0. A warp
// handles a row and a head. It takes 32 edges at a time: first each lane computes the coefficient of one
// edge, then each lane sums some columns over these edges. Bound by reading num_edges rows.
#pragma once

#include "rows.cuh"
#include "warp.cuh"

namespace program {

constexpr int kWarps = kThreads / kWarp;  // of a block
constexpr int kWarpTile = 4;              // columns that a lane sums at a time

struct AttentionTask {
  Edges edges;      // by destination
  Edges by_source;  // backward
  const int64_t* perm;
  ConstMatrix x, src_logit, dst_logit;
  float slope;
  int64_t num_loops;
  uint32_t threshold;
  float keep_scale;
  uint64_t seed;
  const int64_t* first_keys;
  Matrix out, lse, above, share;
  // Backward:
  ConstMatrix grad;
  bool narrow;  // all heads have the same gradient, which is given once
  Matrix grad_x, grad_src_logit, grad_dst_logit;
  float* d;  // (rows, heads)
  // GATv2 has rows of destinations and vectors of heads instead of logits: see gatv2.cuh.
  ConstMatrix own, vectors;
  Matrix grad_own, of_vectors;

  __device__ int64_t heads() const { return lse.columns; }
  __device__ int64_t channels() const { return x.columns / lse.columns; }
  __device__ float leaky(float z) const { return z > 0 ? z : z * slope; }
  // The factor of an edge's coefficient under dropout: 0 or 1 / (1 - p). The keys of a row's masks count up
  // from first_keys[row]; the implicit self-loop has the last one. Without first_keys, a row's keys begin at
  // indptr[row] + row, since each row before has one more key than edges.
  __device__ float mask(int64_t row, int64_t edge, int64_t head) const {
    if (threshold == 0) return 1.0f;
    const int64_t key = edge + (first_keys ? first_keys[row] - edges.indptr[row] : row);
    return is_kept(row_key(seed, static_cast<uint64_t>(key)), head, threshold) ? keep_scale : 0.0f;
  }
};

// 32 edges, which the lanes of a warp share.
struct WarpEdges {
  int64_t nodes[kWarp];
  float coefficients[kWarp], above[kWarp];  // above: of edges with z > 0, else 0
};

// An edge of a row: its other node, its number, and whether there is one at this place.
struct Edge {
  int64_t node, id;
  bool is_there;
};

// The edge at a place of a row. An implicit self-loop stands behind the row's edges.
__device__ inline Edge edge_of(const AttentionTask& task, const Edges& edges, int64_t row, int64_t place) {
  const int64_t begin = edges.indptr[row], end = edges.indptr[row + 1];
  if (begin + place < end) {
    const int64_t node = node_at(edges, begin + place);
    return {node, begin + place, task.num_loops == 0 || node != row};
  }
  const bool is_loop = begin + place == end && row < task.num_loops;
  return {row, is_loop ? task.edges.indptr[row + 1] : 0, is_loop};
}

// The factor of the edge at a place among a source's out-edges, under dropout.
__device__ inline float source_mask(const AttentionTask& task, int64_t source, const Edge& edge,
                                    int64_t place, int64_t head) {
  if (task.threshold == 0) return 1.0f;
  const bool is_loop = task.by_source.indptr[source] + place >= task.by_source.indptr[source + 1];
  return task.mask(edge.node, is_loop ? edge.id : task.perm[edge.id], head);
}

// sum and sum_above += the rows' columns times the coefficients of a warp's edges.
__device__ inline void add_warp_rows(const WarpEdges& warp, int count, ConstMatrix rows, int64_t offset,
                                     int64_t channel, int64_t channels, float (&sum)[kWarpTile],
                                     float (&above)[kWarpTile]) {
  for (int i = 0; i < count; ++i) {
    const float* row = rows.data + warp.nodes[i] * rows.row_stride + offset;
    const float c = warp.coefficients[i], c_above = warp.above[i];
    for (int t = 0; t < kWarpTile; ++t) {
      const int64_t at = channel + t * kWarp;
      if (at >= channels) continue;
      sum[t] += c * row[at];
      above[t] += c_above * row[at];
    }
  }
}

static __global__ void attend(const AttentionTask task) {
  __shared__ WarpEdges of_warps[kWarps];
  WarpEdges& warp = of_warps[threadIdx.x / kWarp];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t item = thread_number() / kWarp, heads = task.heads(), channels = task.channels();
  const int64_t v = item / heads, h = item % heads;
  if (v >= task.edges.num_rows) return;
  const int64_t places = task.edges.indptr[v + 1] - task.edges.indptr[v] + 1;
  const float right = task.dst_logit.data[item];
  float top = -INFINITY, total = 0, share = 0;
  for (int64_t place = lane; place < places; place += kWarp) {
    const Edge edge = edge_of(task, task.edges, v, place);
    if (edge.is_there) top = fmaxf(top, task.leaky(task.src_logit.data[edge.node * heads + h] + right));
  }
  top = largest_of_warp(top);
  for (int64_t place = lane; place < places; place += kWarp) {
    const Edge edge = edge_of(task, task.edges, v, place);
    if (!edge.is_there) continue;
    const float z = task.src_logit.data[edge.node * heads + h] + right, power = expf(task.leaky(z) - top);
    total += power;
    share += z > 0 ? power : 0.0f;
  }
  total = sum_of_warp(total);
  share = sum_of_warp(share);
  const float lse = total == 0 ? 0.0f : top + logf(total);
  if (lane == 0) {
    task.lse.data[item] = lse;
    if (task.share.data) task.share.data[item] = total == 0 ? 0.0f : share / total;
  }
  for (int64_t first = 0; first < channels; first += kWarpTile * kWarp) {
    float sum[kWarpTile] = {}, above[kWarpTile] = {};
    for (int64_t place = 0; place < places; place += kWarp) {
      const Edge edge = edge_of(task, task.edges, v, place + lane);
      const float z = edge.is_there ? task.src_logit.data[edge.node * heads + h] + right : 0.0f;
      const float alpha = edge.is_there ? expf(task.leaky(z) - top) / total * task.mask(v, edge.id, h) : 0.0f;
      warp.nodes[lane] = edge.is_there ? edge.node : v;
      warp.coefficients[lane] = alpha;
      warp.above[lane] = z > 0 ? alpha : 0.0f;
      __syncwarp();
      const int64_t left = places - place;
      add_warp_rows(warp, static_cast<int>(left < kWarp ? left : kWarp), task.x, h * channels, first + lane,
                    channels, sum, above);
      __syncwarp();
    }
    for (int t = 0; t < kWarpTile; ++t) {
      const int64_t at = first + lane + t * kWarp;
      if (at >= channels) continue;
      task.out.data[item * channels + at] = sum[t];
      if (task.above.data) task.above.data[item * channels + at] = above[t];
    }
  }
}

// D of each destination and head, and the gradient of its logit.
static __global__ void attend_back_to_destinations(const AttentionTask task) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t item = thread_number() / kWarp, heads = task.heads(), channels = task.channels();
  const int64_t v = item / heads, h = item % heads;
  if (v >= task.edges.num_rows) return;
  const float* grad = task.grad.data + v * task.grad.row_stride + (task.narrow ? 0 : h * channels);
  float d = 0, d_above = 0;
  for (int64_t at = lane; at < channels; at += kWarp) {
    d += grad[at] * task.out.data[item * channels + at];
    d_above += grad[at] * task.above.data[item * channels + at];
  }
  d = sum_of_warp(d);
  d_above = sum_of_warp(d_above);
  if (lane != 0) return;
  task.d[item] = d;
  task.grad_dst_logit.data[item] = (1.0f - task.slope) * (d_above - d * task.share.data[item]);
}

// By source: the gradients of its row and of its logit. A warp sums a row and a head, as above.
static __global__ void attend_back_to_sources(const AttentionTask task) {
  __shared__ WarpEdges of_warps[kWarps];
  WarpEdges& warp = of_warps[threadIdx.x / kWarp];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t item = thread_number() / kWarp, heads = task.heads(), channels = task.channels();
  const int64_t u = item / heads, h = item % heads;
  if (u >= task.by_source.num_rows) return;
  const int64_t begin = task.by_source.indptr[u], places = task.by_source.indptr[u + 1] - begin + 1;
  const float left_logit = task.src_logit.data[item];
  float through = 0;  // the gradient of the logit
  for (int64_t first = 0; first < channels; first += kWarpTile * kWarp) {
    float sum[kWarpTile] = {}, above[kWarpTile] = {};
    for (int64_t place = 0; place < places; place += kWarp) {
      const Edge edge = edge_of(task, task.by_source, u, place + lane);
      float z = 0, alpha = 0;
      if (edge.is_there) {
        const int64_t to = edge.node * heads + h;
        z = left_logit + task.dst_logit.data[to];
        alpha = expf(task.leaky(z) - task.lse.data[to]);
        const float part = alpha * task.d[to];
        if (first == 0) through -= z > 0 ? part : part * task.slope;
        alpha *= source_mask(task, u, edge, place + lane, h);
      }
      warp.nodes[lane] = edge.is_there ? edge.node : 0;
      warp.coefficients[lane] = alpha;
      warp.above[lane] = z > 0 ? alpha : 0.0f;
      __syncwarp();
      const int64_t left = places - place;
      add_warp_rows(warp, static_cast<int>(left < kWarp ? left : kWarp), task.grad,
                    task.narrow ? 0 : h * channels, first + lane, channels, sum, above);
      __syncwarp();
    }
    for (int t = 0; t < kWarpTile; ++t) {
      const int64_t at = first + lane + t * kWarp;
      if (at >= channels) continue;
      task.grad_x.data[item * channels + at] = sum[t];
      through += (sum[t] * task.slope + above[t] * (1.0f - task.slope)) * task.x.data[item * channels + at];
    }
  }
  through = sum_of_warp(through);
  if (lane == 0) task.grad_src_logit.data[item] = through;
}

}  // namespace program
