// Attention as an operation of a segment; see attentions.h.
#include "segments/attentions.h"

#include <algorithm>

namespace gb {

FloatMatrix Attention::checked(const Map& map, const AttentionInputs& in) const {
  const FloatMatrix& src = *in.src;
  const bool is_gat = kind == AttentionKind::kGat, is_dot = kind == AttentionKind::kDot;
  need(src.width > 0 && src.width % heads == 0, "each head has as many columns");
  const bool reads_edges = !is_dot && in.key != nullptr;
  need((in.vector != nullptr) == !is_dot && (in.dst_vector != nullptr) == is_gat &&
           (in.edge_vector != nullptr) == (is_gat && reads_edges),
       "an attention has its vectors");
  for (const Operand* vector : {in.vector, in.dst_vector, in.edge_vector})
    need(vector == nullptr ||
             (vector->num_dimensions == 3 && vector->by_head.extent(0) == 1 &&
              vector->by_head.extent(1) == heads && vector->by_head.extent(2) == src.width / heads),
         "a vector has a number for each column of the rows, by head");
  need(!is_gat || map.num_dst <= map.num_src, "destinations are the first sources");
  need(src.rows == map.num_src, "there is a row for each source");
  need(in.dst == nullptr || (in.dst->rows >= map.num_dst && in.dst->width == src.width),
       "there are rows of all destinations, as wide as those that are summed");
  for (const FloatMatrix* rows : {in.src, in.dst, in.key})
    need(rows == nullptr || rows->stride == rows->width || rows->rows < 2, "rows follow each other");
  if (is_dot) need(in.key->rows == map.num_src && in.key->width == src.width, "keys are rows of sources");
  need(in.map.rows == 0 || in.map.rows == in.features.width + static_cast<int64_t>(has_bias),
       "the map has a row for each feature, and for the bias");
  if (reads_edges) {
    need(in.key->rows == map.num_edges() + num_loops(map), "there is a row for each edge and self-loop");
    need(in.key->width > 0, "edges have features");
  }
  const Operand* weight = in.edge_weight;
  need((weight != nullptr) == reads_edges, "features have a map");
  need(weight == nullptr ||
           (weight->num_dimensions == 2 && weight->rows() == src.width && weight->columns() == in.key->width),
       "the map has a column for each feature");
  const int64_t width = averages ? src.width / heads : src.width;
  return {nullptr, map.num_dst, width, width};
}

AttentionArgs Attention::arguments(const Map& map, const AttentionInputs& in, const Attended& kept) const {
  AttentionArgs a;
  a.wide_indices = is_wide(map.indices);
  a.indptr = map.indptr.data();
  a.indices = map.indices.data();
  a.num_dst = map.num_dst;
  a.num_src = map.num_src;
  a.num_edges = map.num_edges();
  a.heads = heads;
  a.channels = in.src->width / heads;
  a.slope = a.scale = factor;
  a.num_loops = num_loops(map);
  a.threshold = in.drops.threshold;
  a.keep_scale = in.drops.keep_scale;
  a.seed = in.drops.seed;
  a.first_keys = in.drops.ids;
  a.src = in.src->data;
  if (in.dst != nullptr) a.dst = in.dst->data;
  if (in.key != nullptr && kind == AttentionKind::kDot) a.key = in.key->data;
  a.edge_logit = kept.edge_logit.data;
  if (in.edge_weight != nullptr && kind == AttentionKind::kGatv2) {
    const int64_t width = a.edge_channels = in.key->width;
    a.edge_features = {in.key->data, width};
    a.loop_features = {in.key->data + a.num_edges * width, width};
    a.edge_weight = kept.edge_weight.data;
  }
  if (in.map.rows > 0) {
    a.edge_features = {in.features.data, in.features.stride};
    a.edge_weight = in.map.data;
    a.edge_channels = in.map.rows;
    a.edge_bias = has_bias;
    a.mixed = kept.mixed.data;
  }
  a.src_logit = kept.src_logit.data;
  a.dst_logit = kept.dst_logit.data;
  a.att = kept.vectors.data;
  a.out = kept.out.data;
  a.lse = kept.lse.data;
  a.log = kept.log.data;
  a.above = kept.above.data;
  a.share = kept.share.data;
  if (in.x == nullptr) return a;
  a.channels = in.x->width;
  a.src = in.x->data;
  a.att = kept.mapped.data;
  a.alpha = kept.alpha.data;
  return a;
}

// The vectors, and what the map of features gives.
void Attention::keep_vectors(const AttentionInputs& in, Attended& kept) const {
  const FloatMatrix& src = *in.src;
  kept.vectors = FloatMatrix::make(2, src.width);
  float* row = kept.vectors.data;
  for (const Operand* vector : {in.vector, in.dst_vector}) {
    if (vector != nullptr) std::copy_n(vector->by_head.data(), src.width, row);
    row += src.width;
  }
  if (const Operand* weight = in.edge_weight) {
    const bool is_gat = kind == AttentionKind::kGat;
    const int64_t features = weight->columns(), channels = src.width / heads;
    kept.edge_weight = is_gat ? FloatMatrix::zeros(heads, features) : FloatMatrix::make(features, src.width);
    for (int64_t i = 0; i < src.width; ++i)
      for (int64_t f = 0; f < features; ++f) {
        const float number = weight->number(i * features + f, 0);
        if (is_gat)
          kept.edge_weight.data[i / channels * features + f] += number * in.edge_vector->number(i, 0);
        else
          kept.edge_weight.data[f * src.width + i] = number;
      }
    if (is_gat) {
      kept.edge_logit = FloatMatrix::make(in.key->rows, heads);
      multiply(*in.key, {kept.edge_weight.data, 1, features}, kept.edge_logit);
    }
  }
}

void Attention::forward(const Map& map, const AttentionInputs& in, const FloatMatrix& out, Attended& kept,
                        bool trains) const {
  const FloatMatrix& src = *in.src;
  keep_vectors(in, kept);
  if (in.x != nullptr) return sum_forward(map, in, out, kept, trains);
  kept.lse = FloatMatrix::make(out.rows, heads);
  kept.out = averages ? FloatMatrix::make(out.rows, src.width) : out;
  if (kind == AttentionKind::kGat) {
    kept.src_logit = FloatMatrix::make(src.rows, heads);
    kept.dst_logit = FloatMatrix::make(out.rows, heads);
  }
  if (kind == AttentionKind::kGat && trains) {
    kept.above = FloatMatrix::make(out.rows, src.width);
    kept.share = FloatMatrix::make(out.rows, heads);
  }
  if (kind == AttentionKind::kDot) kept.log = FloatMatrix::make(out.rows, heads);
  if (in.map.rows > 0 && trains) kept.mixed = FloatMatrix::make(out.rows, in.map.rows * heads);
  const AttentionArgs a = arguments(map, in, kept);
  kind == AttentionKind::kDot ? run_dot_attention(a) : run_attention(a);
  if (averages) mean_of_heads(kept.out, heads, out);
  if (!trains) kept = {};
}

bool Attention::keeps_logits(const Map& map, bool wants_both) const {
  constexpr int64_t most_bytes = int64_t{1} << 25;
  return kind == AttentionKind::kDot && wants_both && 4 * map.num_edges() * heads <= most_bytes;
}

AttentionGradients Attention::backward(const Map& map, const SpmmArgs& reversed, const int64_t* places,
                                       const AttentionInputs& in, const Attended& kept, FloatMatrix grad,
                                       bool keeps, std::pair<bool, bool> overwrites) const {
  if (in.x != nullptr) return sum_backward(map, reversed, places, in, kept, grad);
  const FloatMatrix& src = *in.src;
  AttentionBackwardArgs b;
  b.forward = arguments(map, in, kept);
  const bool needs_places = b.forward.threshold != 0 || b.forward.edge_logit || b.forward.edge_weight;
  need(!needs_places || places != nullptr || b.forward.num_edges == 0,
       "dropout and rows of edges need the places of edges");
  if (averages || grad.stride != src.width) {
    const FloatMatrix wide = FloatMatrix::make(grad.rows, src.width);
    averages ? mean_of_heads_backward(grad, heads, wide) : copy_rows(grad, wide);
    grad = wide;
  }
  b.t_indptr = reversed.indptr;
  b.t_indices = reversed.indices;
  b.perm = places;
  // The walk by source comes first, and reads no value but those of the rows whose gradients it then writes.
  // The second one reads none where numbers are kept. The result is read before both walks.
  const auto [over_values, over_result] = overwrites;
  const bool fits = over_result && kept.out.is_alone() && in.dst->rows == grad.rows;
  AttentionGradients to{over_values ? src : FloatMatrix::make(src.rows, src.width),
                        {},
                        {},
                        FloatMatrix::make(3, src.width),
                        {},
                        {}};
  if (in.dst != nullptr) to.dst = fits ? kept.out : for_first_rows(*in.dst, grad.rows);
  FloatMatrix of_src, of_dst, logits, of_weight;
  if (in.edge_weight != nullptr) of_weight = FloatMatrix::make(kept.edge_weight.rows, kept.edge_weight.width);
  b.grad = grad.data;
  b.grad_src = to.src.data;
  b.grad_dst = to.dst.data;
  b.grad_edge_weight = of_weight.data;
  b.grad_att = to.vectors.data;
  switch (kind) {
    case AttentionKind::kGat:
      of_src = FloatMatrix::make(src.rows, heads);
      of_dst = FloatMatrix::make(grad.rows, heads);
      b.grad_src_logit = of_src.data;
      b.grad_dst_logit = of_dst.data;
      if (in.edge_weight != nullptr) logits = FloatMatrix::make(in.key->rows, heads);
      b.grad_edge_logit = logits.data;
      run_gat_backward(b);
      if (in.edge_weight != nullptr) gram(logits, *in.key, of_weight.data);
      break;
    case AttentionKind::kGatv2:
      run_gatv2_backward(b);
      break;
    case AttentionKind::kDot:
      if (keeps && places != nullptr) logits = FloatMatrix::make(b.forward.num_edges * heads, 1);
      to.key = FloatMatrix::make(src.rows, src.width);
      b.grad_key = to.key.data;
      b.grad_logit = logits.data;
      b.adds = false;
      if (in.map.rows > 0) to.edge_weight = FloatMatrix::make(in.map.rows, src.width);
      b.grad_edge_weight = to.edge_weight.data;
      run_dot_backward(b);
  }
  if (in.edge_weight != nullptr) edges_back(in, of_weight, to);
  return to;
}

// The gradients of the map of features and of GAT's vector of edges, from that of the kept map.
void Attention::edges_back(const AttentionInputs& in, const FloatMatrix& of_weight,
                           AttentionGradients& to) const {
  const FloatMatrix& src = *in.src;
  const bool is_gat = kind == AttentionKind::kGat;
  const int64_t features = in.key->width, channels = src.width / heads;
  to.edge_weight = FloatMatrix::make(src.width, features);
  float* of_vector = to.vectors.data + 2 * src.width;
  for (int64_t i = 0; i < src.width; ++i) {
    const float factor = is_gat ? in.edge_vector->number(i, 0) : 1.0f;
    of_vector[i] = 0;
    for (int64_t f = 0; f < features; ++f) {
      const float given =
          is_gat ? of_weight.data[i / channels * features + f] : of_weight.data[f * src.width + i];
      to.edge_weight.data[i * features + f] = given * factor;
      if (is_gat) of_vector[i] += given * in.edge_weight->number(i * features + f, 0);
    }
  }
}

}  // namespace gb
