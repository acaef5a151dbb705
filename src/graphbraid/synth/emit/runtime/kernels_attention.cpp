// The attention of GAT and GATv2, compiled from csrc/attention/attention.inl.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention_common.h"
#include "base/buffer.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "attention/attention.inl"
#include "variants/for_each_variant.h"

namespace program {

void gat_forward(const Edges& edges, ConstMatrix x, ConstMatrix src_logit, ConstMatrix dst_logit,
                 const Attention& how, Matrix out, Matrix lse, Matrix above, Matrix share) {
  const gb::AttentionArgs a = attention_args(edges, x, src_logit, dst_logit, how, out, lse, above, share);
  GB_PICK(attention_forward)(a);
}

void gatv2_forward(const Edges& edges, ConstMatrix x, ConstMatrix own, ConstMatrix vectors,
                   const Attention& how, Matrix out, Matrix lse) {
  gb::AttentionArgs a = attention_args(edges, x, {}, {}, how, out, lse, {}, {});
  a.dst = own.data;
  a.att = vectors.data;
  GB_PICK(attention_forward)(a);
}

void spread_heads(const float* x, int64_t heads, int64_t channels, Matrix out) {
  set_zero(out);
  for (int64_t i = 0; i < heads * channels; ++i)
    out.data[i * out.row_stride + i / channels * out.column_stride] = x[i];
}

void own_heads(ConstMatrix x, float* out) {
  const int64_t channels = x.columns / x.rows;
  for (int64_t i = 0; i < x.columns; ++i) out[i] = x.data[i / channels * x.row_stride + i * x.column_stride];
}

void mean_of_heads(ConstMatrix x, Matrix out) {
  const int64_t heads = x.columns / out.columns;
  gb::parallel_static(out.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < out.columns; ++j) {
        float sum = 0;
        for (int64_t h = 0; h < heads; ++h) sum += x.data[i * x.row_stride + h * out.columns + j];
        out.data[i * out.row_stride + j] = sum / static_cast<float>(heads);
      }
  });
}

void repeat_heads(ConstMatrix x, float factor, Matrix out) {
  gb::parallel_static(out.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < out.columns; ++j)
        out.data[i * out.row_stride + j] = x.data[i * x.row_stride + j % x.columns] * factor;
  });
}

}  // namespace program
