// Bias, activation and dropout, compiled from csrc/rowwise/epilogue.inl, and the kernels of single elements.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dropout.h"
#include "cpu_kernels.h"
#include "elements.h"
#include "rowwise/epilogue_args.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/epilogue.inl"
#include "variants/for_each_variant.h"

namespace program {
namespace {

// Calls body(i) for each row. Threads share the rows; a row's work is that of `columns` numbers.
template <typename Body>
void each_row(int64_t rows, int64_t columns, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, gb::kFloatsWorth / std::max<int64_t>(1, columns));
  gb::parallel_static(rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) body(i);
  });
}

// Sets out(i, j) = values(i, j).
template <typename Values>
void write(const char*, const Values& values, Matrix out) {
  each_row(out.rows, out.columns, [&](int64_t i) {
    for (int64_t j = 0; j < out.columns; ++j) at(out, i, j) = values(i, j);
  });
}

// Every step of attention runs the functions of heads, so these have loops of their own: over the numbers of
// a head, which stand side by side, so that the compiler makes vectors of them. The order of each number's
// operations is that of its element function, so the bits are the same.
void write(const char* name, const MeanOfHeads& mean, Matrix out) {
  if (mean.x.column_stride != 1 || out.column_stride != 1) return write<MeanOfHeads>(name, mean, out);
  const int64_t columns = out.columns, num_heads = mean.x.columns / columns;
  const float count = static_cast<float>(num_heads);
  each_row(out.rows, mean.x.columns, [&](int64_t i) {
    float* to = &at(out, i, 0);
    std::fill_n(to, columns, 0.0f);
    for (int64_t head = 0; head < num_heads; ++head) {
      const float* from = &at(mean.x, i, head * columns);
      for (int64_t j = 0; j < columns; ++j) to[j] += from[j];
    }
    for (int64_t j = 0; j < columns; ++j) to[j] /= count;
  });
}

void write(const char* name, const Repeated& repeated, Matrix out) {
  if (repeated.x.column_stride != 1 || out.column_stride != 1) return write<Repeated>(name, repeated, out);
  const int64_t columns = repeated.x.columns;
  each_row(out.rows, out.columns, [&](int64_t i) {
    const float* from = &at(repeated.x, i, 0);
    for (int64_t start = 0; start < out.columns; start += columns) {
      float* to = &at(out, i, start);
      for (int64_t j = 0; j < columns; ++j) to[j] = from[j] * repeated.factor;
    }
  });
}

}  // namespace

void choose_variant() {
  // The fastest one comes last, so the last one that fits stays active.
  for (const gb::Variant variant : {gb::Variant::kPortable, gb::Variant::kAvx2, gb::Variant::kAvx512})
    if (gb::is_supported(variant) && gb::is_compiled(variant)) gb::set_active_variant(variant);
}

gb::Epilogue epilogue_of(const RowEpilogue& how) {
  gb::Epilogue e;
  e.act = how.act;
  e.slope = how.slope;
  e.bias = how.bias;
  e.threshold = gb::drop_threshold(how.p);
  e.keep_scale = 1.0 / (1.0 - how.p);
  e.seed = how.seed;
  e.ids = how.ids;
  return e;
}

void epilogue(const RowwiseEpilogue& a) {
  gb::EpilogueArgs e;
  e.num_rows = a.x.rows;
  e.width = a.x.columns;
  e.x = {a.x.data, a.x.row_stride};
  e.out = a.out.data;
  e.out_stride = a.out.row_stride;
  e.how = epilogue_of(a.how);
  if (e.width > 0) GB_PICK(epilogue)(e);
}

void epilogue_backward(const EpilogueBackward& a) {
  gb::EpilogueArgs e;
  e.num_rows = a.result.rows;
  e.width = a.result.columns;
  e.x = {a.result.data, a.result.row_stride};
  e.grad = {a.grad.data, a.grad.row_stride};
  e.out = a.grad_x.data;
  e.out_stride = a.grad_x.row_stride;
  e.grad_bias = a.grad_bias;
  e.how = epilogue_of(a.how);
  if (e.width > 0) GB_PICK(epilogue_backward)(e);
}

void factor_gradient(const FactorGradient& a) {
  std::vector<double> of_rows(static_cast<size_t>(a.grad.rows));
  gb::parallel_static(a.grad.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < a.grad.columns; ++j)
        of_rows[static_cast<size_t>(i)] += static_cast<double>(at(a.grad, i, j) * at(a.x, i, j));
  });
  double sum = 0;  // in order, so that it does not depend on the number of threads
  for (const double of_row : of_rows) sum += of_row;
  *a.out = static_cast<float>(sum);
}

}  // namespace program

#include "elementwise.inl"
