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

void gat_forward(const GatForward& a) { GB_PICK(attention_forward)(attention_args(a)); }

void gatv2_forward(const Gatv2Forward& a) { GB_PICK(attention_forward)(attention_args(a)); }

void spread_heads(const SpreadHeads& a) {
  set_zero(a.out);
  for (int64_t i = 0; i < a.heads * a.channels; ++i)
    a.out.data[i * a.out.row_stride + i / a.channels * a.out.column_stride] = a.x[i];
}

void own_heads(const OwnHeads& a) {
  const int64_t channels = a.x.columns / a.x.rows;
  for (int64_t i = 0; i < a.x.columns; ++i)
    a.out[i] = a.x.data[i / channels * a.x.row_stride + i * a.x.column_stride];
}

void mean_of_heads(const Elements& a) {
  const ConstMatrix x = a.x;
  const Matrix out = a.out;
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

void repeat_heads(const RepeatHeads& a) {
  const ConstMatrix x = a.x;
  const Matrix out = a.out;
  const float factor = static_cast<float>(a.factor);
  gb::parallel_static(out.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < out.columns; ++j)
        out.data[i * out.row_stride + j] = x.data[i * x.row_stride + j % x.columns] * factor;
  });
}

}  // namespace program
