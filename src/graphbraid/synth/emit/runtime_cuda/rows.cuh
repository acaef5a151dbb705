// What kernels do with single elements and edges: the node of an edge, masks of dropout, the epilogue.
#pragma once

#include "gpu.cuh"
#include "kernels.h"

namespace program {

__device__ inline int64_t node_at(const Edges& edges, int64_t edge) {
  return edges.wide ? static_cast<const int64_t*>(edges.indices)[edge]
                    : static_cast<const int32_t*>(edges.indices)[edge];
}

// Whether a row of so many edges is summed in parts.
__device__ inline bool is_long(const Edges& edges, int64_t count) {
  return edges.long_rows.num_rows > 0 && count > edges.long_rows.edges;
}

// ---- Dropout by counter, the same bits as csrc/base/rng.h and csrc/base/dropout.h: element (row, column) is
// kept or not by a function of the seed and the two, so the backward pass draws the same mask again.

__device__ inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ inline uint32_t row_key(uint64_t seed, uint64_t row) {
  return static_cast<uint32_t>(mixed(seed + row * 0x9E3779B97F4A7C15ull) >> 32);
}

// Whether dropout keeps a column of the row with this key: it drops a number of 32 random bits below the
// threshold.
__device__ inline bool is_kept(uint32_t key, int64_t column, uint32_t threshold) {
  uint32_t h = key + static_cast<uint32_t>(column) * 0x9E3779B9u;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return (h ^ (h >> 16)) >= threshold;
}

// The factor of element (row, column) under an epilogue's dropout: 0 or 1 / (1 - p).
__device__ inline float mask_at(const gb::Epilogue& e, int64_t row, int64_t column) {
  const uint64_t drawn_for = static_cast<uint64_t>(e.ids ? e.ids[row] : row);
  return is_kept(row_key(e.seed, drawn_for), column, e.threshold) ? static_cast<float>(e.keep_scale) : 0.0f;
}

// ---- The epilogue of element (row, column), and the slope of the activation whose result is y

__device__ inline float followed(const gb::Epilogue& e, int64_t row, int64_t column, float x) {
  if (e.bias) x += static_cast<const float*>(e.bias)[column];
  if (e.act == gb::Act::kRelu) x = x <= 0 ? 0.0f : x;  // lets a NaN through
  if (e.act == gb::Act::kLeakyRelu) x = x > 0 ? x : x * static_cast<float>(e.slope);
  if (e.act == gb::Act::kElu) x = x > 0 ? x : expf(x) - 1.0f;
  return e.threshold ? x * mask_at(e, row, column) : x;
}

__device__ inline float slope_at(const gb::Epilogue& e, float y) {
  if (e.act == gb::Act::kNone || y > 0) return 1.0f;
  if (e.act == gb::Act::kRelu) return 0.0f;
  return e.act == gb::Act::kLeakyRelu ? static_cast<float>(e.slope) : y + 1.0f;
}

}  // namespace program
