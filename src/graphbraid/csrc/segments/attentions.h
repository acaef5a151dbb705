// Attention as an operation of a segment: that of GAT, of GATv2 or of dot products. The kernels and their
// order are those of ops/attention.py and of FusedMessages (ops/message_kernel.py), so the bits are the same,
// but for GAT that sums before it multiplies (gat_sums.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention/attention.h"
#include "segments/rows.h"

namespace gb {

enum class AttentionKind { kGat, kGatv2, kDot };

// What an attention reads beside the edges; null: it reads none.
struct AttentionInputs {
  const FloatMatrix* src;  // rows that are summed
  const FloatMatrix* dst;  // of GATv2, and queries of dot products
  const FloatMatrix*
      key;  // of dot products, rows of sources; of the others, features of edges, then of loops
  const Operand *vector, *dst_vector;  // GAT's of sources and of destinations; GATv2's only one is the first
  const Operand *edge_weight, *edge_vector;  // the map of features, and GAT's vector of what it gives
  const Epilogue& drops;                     // the dropout of coefficients
  // Of GAT that sums first: the rows before the product that gives src, which has no memory then, its
  // weight, and whether the rows want a gradient.
  const FloatMatrix* x = nullptr;
  const Operand* weight = nullptr;
  bool of_x = false;
  FloatMatrix features = {}, map = {};  // of edges, of dot products; the map has a row for each, or one more
};

// What one attention keeps from its forward pass for its backward pass.
struct Attended {
  FloatMatrix vectors, lse, out;
  FloatMatrix edge_weight;  // GATv2's map, transposed; of GAT times the edges' vector, (heads, features)
  FloatMatrix edge_logit;   // of GAT
  FloatMatrix src_logit, dst_logit, above, share;  // of GAT
  FloatMatrix log, mixed;                          // of dot products
  // Of GAT that sums first; `out` has the sums. The vectors times the weight, (2, heads * columns of x), the
  // coefficients, and of a mean the heads' weights side by side.
  FloatMatrix mapped, alpha, stacked;
};

// Gradients of what an attention reads; without memory where it reads none. Features have none.
struct AttentionGradients {
  FloatMatrix src, dst, key;
  FloatMatrix vectors;      // a row for each, and last that of edges
  FloatMatrix edge_weight;  // as the map of the inputs, of dot products
  FloatMatrix weight;       // of GAT that sums first; src is the gradient of x there
};

struct Attention {
  AttentionKind kind;
  int64_t heads;
  double factor;   // the slope of the leaky ReLU, or the scale of dot products
  bool has_loops;  // whether nodes have self-loops
  bool averages;   // whether the result is the mean of the heads
  bool has_bias;   // of dot products: whether the map of features of edges has a bias, its last row

  int64_t num_loops(const Map& map) const { return has_loops ? std::min(map.num_src, map.num_dst) : 0; }
  // The shape of the result, after checks that what is read fits.
  FloatMatrix checked(const Map& map, const AttentionInputs& in) const;
  void forward(const Map& map, const AttentionInputs& in, const FloatMatrix& out, Attended& kept,
               bool trains) const;
  // Whether backward keeps a number for each edge and head between its two walks: keeps_logits of
  // ops/message_kernel.py. wants_both: whether destinations and sources both get gradients.
  bool keeps_logits(const Map& map, bool wants_both) const;
  // reversed: the edges of the transpose. places: for each of them the edge of `map`, if dropout, rows of
  // edges or kept numbers need it. overwrites: whether the gradients of dot products may take the place of
  // values, where numbers are kept, and of the result.
  AttentionGradients backward(const Map& map, const SpmmArgs& reversed, const int64_t* places,
                              const AttentionInputs& in, const Attended& kept, FloatMatrix grad, bool keeps,
                              std::pair<bool, bool> overwrites) const;

 private:
  AttentionArgs arguments(const Map& map, const AttentionInputs& in, const Attended& kept) const;
  void keep_vectors(const AttentionInputs& in, Attended& kept) const;
  void edges_back(const AttentionInputs& in, const FloatMatrix& of_weight, AttentionGradients& to) const;
  // GAT that sums first: gat_sums.cpp.
  void sum_forward(const Map& map, const AttentionInputs& in, const FloatMatrix& out, Attended& kept,
                   bool trains) const;
  AttentionGradients sum_backward(const Map& map, const SpmmArgs& reversed, const int64_t* places,
                                  const AttentionInputs& in, const Attended& kept,
                                  const FloatMatrix& grad) const;
};

}  // namespace gb
