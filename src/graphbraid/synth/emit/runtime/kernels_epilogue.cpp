// Bias, activation and dropout, compiled from csrc/rowwise/epilogue.inl, and the small functions of elements.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dropout.h"
#include "cpu_kernels.h"
#include "rowwise/epilogue_args.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/epilogue.inl"
#include "variants/for_each_variant.h"

namespace program {
namespace {

// Calls f(i, j) for every element, rows shared among threads.
template <typename F>
void for_elements(Matrix out, const F& f) {
  const int64_t grain = std::max<int64_t>(1, gb::kFloatsWorth / std::max<int64_t>(1, out.columns));
  gb::parallel_static(out.rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < out.columns; ++j)
        out.data[i * out.row_stride + j * out.column_stride] = f(i, j);
  });
}

float at(ConstMatrix x, int64_t i, int64_t j) { return x.data[i * x.row_stride + j * x.column_stride]; }

}  // namespace

void choose_variant() {
  for (const gb::Variant variant : {gb::Variant::kPortable, gb::Variant::kAvx2, gb::Variant::kAvx512})
    if (gb::is_supported(variant) && gb::is_compiled(variant)) gb::set_active_variant(variant);
}

gb::Epilogue row_epilogue(const float* bias, int act, double slope, double p, uint64_t seed,
                          const int64_t* ids) {
  gb::Epilogue e;
  e.act = static_cast<gb::Act>(act);
  e.slope = slope;
  e.bias = bias;
  e.threshold = gb::drop_threshold(p);
  e.keep_scale = 1.0 / (1.0 - p);
  e.seed = seed;
  e.ids = ids;
  return e;
}

void epilogue(ConstMatrix x, const gb::Epilogue& how, Matrix out) {
  gb::EpilogueArgs a;
  a.num_rows = x.rows;
  a.width = x.columns;
  a.x = {x.data, x.row_stride};
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.how = how;
  if (a.width > 0) GB_PICK(epilogue)(a);
}

void epilogue_backward(ConstMatrix grad, ConstMatrix result, const gb::Epilogue& how, Matrix grad_x,
                       float* grad_bias) {
  gb::EpilogueArgs a;
  a.num_rows = result.rows;
  a.width = result.columns;
  a.x = {result.data, result.row_stride};
  a.grad = {grad.data, grad.row_stride};
  a.out = grad_x.data;
  a.out_stride = grad_x.row_stride;
  a.grad_bias = grad_bias;
  a.how = how;
  if (a.width > 0) GB_PICK(epilogue_backward)(a);
}

void set_zero(Matrix out) {
  for_elements(out, [](int64_t, int64_t) { return 0.0f; });
}
void copy(ConstMatrix x, Matrix out) {
  for_elements(out, [&](int64_t i, int64_t j) { return at(x, i, j); });
}
void copy(const int32_t* x, Matrix out) {
  for_elements(out, [&](int64_t i, int64_t j) { return static_cast<float>(x[i * out.columns + j]); });
}
void add(ConstMatrix x, Matrix out) {
  for_elements(out, [&](int64_t i, int64_t j) { return at(out, i, j) + at(x, i, j); });
}
void divide(ConstMatrix x, ConstMatrix divisor, Matrix out) {
  for_elements(out, [&](int64_t i, int64_t j) { return at(x, i, j) / at(divisor, i, j); });
}
void scale(ConstMatrix x, const float* factor, Matrix out, bool add) {
  const float times = 1.0f + *factor;
  for_elements(out, [&](int64_t i, int64_t j) { return (add ? at(out, i, j) : 0.0f) + times * at(x, i, j); });
}
void factor_gradient(ConstMatrix grad, ConstMatrix x, float* out) {
  std::vector<double> of_rows(static_cast<size_t>(grad.rows));
  gb::parallel_static(grad.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < grad.columns; ++j)
        of_rows[static_cast<size_t>(i)] += static_cast<double>(at(grad, i, j) * at(x, i, j));
  });
  double sum = 0;  // in order, so that it does not depend on the number of threads
  for (const double of_row : of_rows) sum += of_row;
  *out = static_cast<float>(sum);
}

}  // namespace program
