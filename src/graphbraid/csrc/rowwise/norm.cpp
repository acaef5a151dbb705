// Binds norm.inl; ops/norm.py describes the operators.
#include "rowwise/norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/edge_rows.h"
#include "threads/parallel.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/norm.inl"
#include "variants/for_each_variant.h"

namespace gb {

using OptionalWrittenMatrix = std::optional<WrittenMatrix>;
using OptionalWrittenVector = std::optional<WrittenVector>;

static NormArgs args_of(const Matrix& x) {
  NormArgs a;
  a.dtype = dtype_of(x);
  a.num_rows = x.num_rows();
  a.width = x.num_columns();
  a.x = x.data();
  return a;
}

template <typename Given>
static auto like_x(const NormArgs& a, const Given& matrix) {
  need_dtype(matrix, a.dtype, "x");
  need_shape(matrix, a.num_rows, a.width);
  return matrix.data();
}

static void layer_norm(const Matrix& x, const OptionalVector& weight, const OptionalVector& bias, double eps,
                       const WrittenMatrix& out, const OptionalWrittenVector& mean,
                       const OptionalWrittenVector& rstd) {
  NormArgs a = args_of(x);
  a.weight = in_sums(weight, a.dtype, a.width);
  a.bias = in_sums(bias, a.dtype, a.width);
  a.eps = eps;
  a.out = like_x(a, out);
  a.new_mean = in_sums(mean, a.dtype, a.num_rows);
  a.new_rstd = in_sums(rstd, a.dtype, a.num_rows);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(layer_norm)(a);
}

static void layer_norm_backward(const Matrix& grad, const Matrix& x, const OptionalVector& weight,
                                const Vector& mean, const Vector& rstd, const OptionalWrittenMatrix& grad_x,
                                const OptionalWrittenVector& grad_weight,
                                const OptionalWrittenVector& grad_bias) {
  NormArgs a = args_of(x);
  a.grad = like_x(a, grad);
  a.weight = in_sums(weight, a.dtype, a.width);
  a.mean = in_sums(mean, a.dtype, a.num_rows);
  a.rstd = in_sums(rstd, a.dtype, a.num_rows);
  if (grad_x) a.out = like_x(a, *grad_x);
  a.grad_weight = in_sums(grad_weight, a.dtype, a.width);
  a.grad_bias = in_sums(grad_bias, a.dtype, a.width);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(layer_norm_backward)(a);
}

static void column_moments(const Matrix& x, const WrittenVector& mean, const WrittenVector& var) {
  NormArgs a = args_of(x);
  a.new_mean = in_sums(mean, a.dtype, a.width);
  a.new_variance = in_sums(var, a.dtype, a.width);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(column_moments)(a);
}

static void batch_norm(const Matrix& x, const Vector& mean, const Vector& rstd, const OptionalVector& weight,
                       const OptionalVector& bias, const WrittenMatrix& out) {
  NormArgs a = args_of(x);
  a.mean = in_sums(mean, a.dtype, a.width);
  a.rstd = in_sums(rstd, a.dtype, a.width);
  a.weight = in_sums(weight, a.dtype, a.width);
  a.bias = in_sums(bias, a.dtype, a.width);
  a.out = like_x(a, out);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(batch_norm)(a);
}

static void batch_norm_backward(const Matrix& grad, const Matrix& x, const Vector& mean, const Vector& rstd,
                                const OptionalVector& weight, bool from_rows,
                                const OptionalWrittenMatrix& grad_x, const WrittenVector& grad_weight,
                                const WrittenVector& grad_bias) {
  NormArgs a = args_of(x);
  a.grad = like_x(a, grad);
  a.mean = in_sums(mean, a.dtype, a.width);
  a.rstd = in_sums(rstd, a.dtype, a.width);
  a.weight = in_sums(weight, a.dtype, a.width);
  a.from_rows = from_rows;
  if (grad_x) a.out = like_x(a, *grad_x);
  a.grad_weight = in_sums(grad_weight, a.dtype, a.width);
  a.grad_bias = in_sums(grad_bias, a.dtype, a.width);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(batch_norm_backward)(a);
}

void bind_norm(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "layer_norm", &layer_norm, "x"_a, "weight"_a, "bias"_a, "eps"_a, "out"_a, "mean"_a, "rstd"_a);
  def_native(m, "layer_norm_backward", &layer_norm_backward, "grad"_a, "x"_a, "weight"_a, "mean"_a, "rstd"_a,
             "grad_x"_a, "grad_weight"_a, "grad_bias"_a);
  def_native(m, "column_moments", &column_moments, "x"_a, "mean"_a, "var"_a);
  def_native(m, "batch_norm", &batch_norm, "x"_a, "mean"_a, "rstd"_a, "weight"_a, "bias"_a, "out"_a);
  def_native(m, "batch_norm_backward", &batch_norm_backward, "grad"_a, "x"_a, "mean"_a, "rstd"_a, "weight"_a,
             "from_rows"_a, "grad_x"_a, "grad_weight"_a, "grad_bias"_a);
}

}  // namespace gb
