// Attention as an operation of a segment; see attentions.h.
#include "segments/attentions.h"

#include <algorithm>

namespace gb {

FloatMatrix Attention::checked(const Map& map, const AttentionInputs& in) const {
  const FloatMatrix& src = *in.src;
  const bool is_gat = kind == AttentionKind::kGat;
  need(src.width > 0 && src.width % heads == 0, "each head has as many columns");
  need((in.vector != nullptr) == (kind != AttentionKind::kDot) && (in.dst_vector != nullptr) == is_gat,
       "an attention has its vectors");
  for (const Operand* vector : {in.vector, in.dst_vector})
    need(vector == nullptr ||
             (vector->num_dimensions == 3 && vector->by_head.extent(0) == 1 &&
              vector->by_head.extent(1) == heads && vector->by_head.extent(2) == src.width / heads),
         "a vector has a number for each column of the rows, by head");
  for (const FloatMatrix* rows : {in.src, in.key})
    need(rows == nullptr || rows->rows == map.num_src, "there is a row for each source");
  need(!is_gat || map.num_dst <= map.num_src, "destinations are the first sources");
  for (const FloatMatrix* rows : {in.src, in.dst, in.key})
    need(rows == nullptr || (rows->width == src.width && (rows->stride == src.width || rows->rows < 2)),
         "rows follow each other");
  need(in.dst == nullptr || in.dst->rows >= map.num_dst, "there are rows of all destinations");
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
  a.num_loops = has_loops ? std::min(a.num_src, a.num_dst) : 0;
  a.threshold = in.drops.threshold;
  a.keep_scale = in.drops.keep_scale;
  a.seed = in.drops.seed;
  a.first_keys = in.drops.ids;
  a.src = in.src->data;
  if (in.dst != nullptr) a.dst = in.dst->data;
  if (in.key != nullptr) a.key = in.key->data;
  a.src_logit = kept.src_logit.data;
  a.dst_logit = kept.dst_logit.data;
  a.att = kept.vectors.data;
  a.out = kept.out.data;
  a.lse = kept.lse.data;
  a.log = kept.log.data;
  a.above = kept.above.data;
  a.share = kept.share.data;
  return a;
}

void Attention::forward(const Map& map, const AttentionInputs& in, const FloatMatrix& out, Attended& kept,
                        bool trains) const {
  const FloatMatrix& src = *in.src;
  kept.vectors = FloatMatrix::make(2, src.width);
  float* row = kept.vectors.data;
  for (const Operand* vector : {in.vector, in.dst_vector}) {
    if (vector != nullptr) std::copy_n(vector->by_head.data(), src.width, row);
    row += src.width;
  }
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
                                       bool keeps) const {
  const FloatMatrix& src = *in.src;
  AttentionBackwardArgs b;
  b.forward = arguments(map, in, kept);
  const bool drops = b.forward.threshold != 0;
  need(!drops || places != nullptr || b.forward.num_edges == 0, "dropout needs the places of edges");
  if (averages || grad.stride != src.width) {
    const FloatMatrix wide = FloatMatrix::make(grad.rows, src.width);
    averages ? mean_of_heads_backward(grad, heads, wide) : copy_rows(grad, wide);
    grad = wide;
  }
  b.t_indptr = reversed.indptr;
  b.t_indices = reversed.indices;
  b.perm = places;
  AttentionGradients to{FloatMatrix::make(src.rows, src.width), {}, {}, FloatMatrix::make(2, src.width)};
  if (in.dst != nullptr) to.dst = for_first_rows(*in.dst, grad.rows);
  if (in.key != nullptr) to.key = FloatMatrix::make(src.rows, src.width);
  b.grad = grad.data;
  b.grad_src = to.src.data;
  b.grad_dst = to.dst.data;
  b.grad_key = to.key.data;
  b.grad_att = to.vectors.data;
  FloatMatrix of_src, of_dst, logits;
  switch (kind) {
    case AttentionKind::kGat:
      of_src = FloatMatrix::make(src.rows, heads);
      of_dst = FloatMatrix::make(grad.rows, heads);
      b.grad_src_logit = of_src.data;
      b.grad_dst_logit = of_dst.data;
      run_gat_backward(b);
      break;
    case AttentionKind::kGatv2:
      run_gatv2_backward(b);
      break;
    case AttentionKind::kDot:
      if (keeps && places != nullptr) logits = FloatMatrix::make(b.forward.num_edges * heads, 1);
      b.grad_logit = logits.data;
      b.adds = false;
      run_dot_backward(b);
  }
  return to;
}

}  // namespace gb
