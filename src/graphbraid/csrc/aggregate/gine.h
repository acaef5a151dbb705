// Arguments of the GINE kernels (gine.inl), checked by gine.cpp.
#pragma once

#include <cstdint>

#include "arguments/rows.h"

namespace gb {

// A linear map of edges' features to their rows. All float32.
struct GineMap {
  int64_t channels = 0;
  const float* weight = nullptr;  // (channels, width), contiguous; null: there is no map
  const float* bias = nullptr;    // (width,); may be null
};

// The graph's in-edges; rows of x are read by their ids.
struct GineArgs : EdgeRows {
  Rows edges = {};  // (num_edges, width), dtype of x; with a map, the features
  GineMap map = {};
  double loop_scale = 0;  // 0: a node's own row has no part
  int64_t num_loops = 0;  // the first rows have one
  void* out = nullptr;    // (num_dst, width), contiguous, dtype of x
};

// The edges are those of the transpose, x is the gradient of the sums.
struct GineBackwardArgs : EdgeRows {
  const int64_t* perm = nullptr;  // edge of the transpose -> edge
  Rows source = {};  // (num_src, width): the rows that were summed; null where edges are gradients
  Rows edges = {};   // (num_edges, width), in the graph's order
  double loop_scale = 0;
  int64_t num_loops = 0;
  void* out = nullptr;  // (num_src, width), contiguous: the transpose's rows
};

// The graph's in-edges.
struct GineEdgeBackwardArgs : EdgeRows {
  Rows edges = {};
  Rows grad = {};       // (num_dst, width)
  void* out = nullptr;  // (num_edges, width): may be the edges' own rows
  int64_t out_stride = 0;
};

// Of mapped edges. The walked rows are the destinations, with the graph's in-edges, and x has the rows that
// were summed; or the sources, with the edges of the transpose, and x is the gradient of the sums.
struct GineMapBackwardArgs : EdgeRows {
  bool by_source = false;
  const int64_t* perm = nullptr;  // edge of the walk -> edge; null: the same
  Rows own = {};                  // of the walked rows: what x has not
  Rows edges = {};                // (num_edges, channels): the features
  GineMap map = {};
  double loop_scale = 0;
  int64_t num_loops = 0;
  float* out = nullptr;     // by source: (num_src, width), contiguous; may be own's rows
  float* of_map = nullptr;  // (channels + 1, width): gradients of weight and bias; null: not wanted
};

// By the variant in use.
void run_gine(const GineArgs& a);
void run_gine_backward(const GineBackwardArgs& a);
void run_gine_edge_backward(const GineEdgeBackwardArgs& a);
void run_gine_map_backward(const GineMapBackwardArgs& a);

}  // namespace gb
