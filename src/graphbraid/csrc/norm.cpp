// Binds norm.inl; ops/norm.py describes the operators.
#include "norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "norm.inl"
#include "for_each_variant.h"

namespace gb {

using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OptionalMatrix = std::optional<Matrix>;

static NormArgs args_of(const Matrix& x) {
  NormArgs a;
  a.dtype = dtype_of(x, "x");
  a.num_rows = static_cast<int64_t>(x.shape(0));
  a.width = static_cast<int64_t>(x.shape(1));
  a.x = x.data();
  return a;
}

static void* like_x(const NormArgs& a, const Matrix& matrix, const char* name) {
  need(dtype_of(matrix, name) == a.dtype && static_cast<int64_t>(matrix.shape(0)) == a.num_rows &&
           static_cast<int64_t>(matrix.shape(1)) == a.width,
       (std::string(name) + " must have the shape and dtype of x").c_str());
  return matrix.data();
}

static void* written(const OptionalVector& vector, const NormArgs& a, int64_t size, const char* name) {
  return const_cast<void*>(coefficients(vector, a.dtype, size, name));
}

static void layer_norm(const Matrix& x, const OptionalVector& weight, const OptionalVector& bias, double eps,
                       const Matrix& out, const OptionalVector& mean, const OptionalVector& rstd) {
  NormArgs a = args_of(x);
  a.weight = coefficients(weight, a.dtype, a.width, "weight");
  a.bias = coefficients(bias, a.dtype, a.width, "bias");
  a.eps = eps;
  a.out = like_x(a, out, "out");
  a.mean = written(mean, a, a.num_rows, "mean");
  a.rstd = written(rstd, a, a.num_rows, "rstd");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(layer_norm)(a);
}

static void layer_norm_backward(const Matrix& grad, const Matrix& x, const OptionalVector& weight,
                                const VectorArray& mean, const VectorArray& rstd,
                                const OptionalMatrix& grad_x, const OptionalVector& grad_weight,
                                const OptionalVector& grad_bias) {
  NormArgs a = args_of(x);
  a.grad = like_x(a, grad, "grad");
  a.weight = coefficients(weight, a.dtype, a.width, "weight");
  a.mean = written(mean, a, a.num_rows, "mean");
  a.rstd = written(rstd, a, a.num_rows, "rstd");
  if (grad_x) a.out = like_x(a, *grad_x, "grad_x");
  a.grad_weight = written(grad_weight, a, a.width, "grad_weight");
  a.grad_bias = written(grad_bias, a, a.width, "grad_bias");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(layer_norm_backward)(a);
}

static void column_moments(const Matrix& x, const VectorArray& mean, const VectorArray& var) {
  NormArgs a = args_of(x);
  a.mean = written(mean, a, a.width, "mean");
  a.rstd = written(var, a, a.width, "var");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(column_moments)(a);
}

static void batch_norm(const Matrix& x, const VectorArray& mean, const VectorArray& rstd,
                       const OptionalVector& weight, const OptionalVector& bias, const Matrix& out) {
  NormArgs a = args_of(x);
  a.mean = written(mean, a, a.width, "mean");
  a.rstd = written(rstd, a, a.width, "rstd");
  a.weight = coefficients(weight, a.dtype, a.width, "weight");
  a.bias = coefficients(bias, a.dtype, a.width, "bias");
  a.out = like_x(a, out, "out");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(batch_norm)(a);
}

static void batch_norm_backward(const Matrix& grad, const Matrix& x, const VectorArray& mean,
                                const VectorArray& rstd, const OptionalVector& weight, bool from_rows,
                                const OptionalMatrix& grad_x, const VectorArray& grad_weight,
                                const VectorArray& grad_bias) {
  NormArgs a = args_of(x);
  a.grad = like_x(a, grad, "grad");
  a.mean = written(mean, a, a.width, "mean");
  a.rstd = written(rstd, a, a.width, "rstd");
  a.weight = coefficients(weight, a.dtype, a.width, "weight");
  a.from_rows = from_rows;
  if (grad_x) a.out = like_x(a, *grad_x, "grad_x");
  a.grad_weight = written(grad_weight, a, a.width, "grad_weight");
  a.grad_bias = written(grad_bias, a, a.width, "grad_bias");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(batch_norm_backward)(a);
}

void bind_norm(nb::module_& m) {
  using namespace nb::literals;
  m.def("layer_norm", &layer_norm, "x"_a.noconvert(), "weight"_a.noconvert().none(),
        "bias"_a.noconvert().none(), "eps"_a, "out"_a.noconvert(), "mean"_a.noconvert().none(),
        "rstd"_a.noconvert().none());
  m.def("layer_norm_backward", &layer_norm_backward, "grad"_a.noconvert(), "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "mean"_a.noconvert(), "rstd"_a.noconvert(),
        "grad_x"_a.noconvert().none(), "grad_weight"_a.noconvert().none(), "grad_bias"_a.noconvert().none());
  m.def("column_moments", &column_moments, "x"_a.noconvert(), "mean"_a.noconvert(), "var"_a.noconvert());
  m.def("batch_norm", &batch_norm, "x"_a.noconvert(), "mean"_a.noconvert(), "rstd"_a.noconvert(),
        "weight"_a.noconvert().none(), "bias"_a.noconvert().none(), "out"_a.noconvert());
  m.def("batch_norm_backward", &batch_norm_backward, "grad"_a.noconvert(), "x"_a.noconvert(),
        "mean"_a.noconvert(), "rstd"_a.noconvert(), "weight"_a.noconvert().none(), "from_rows"_a,
        "grad_x"_a.noconvert().none(), "grad_weight"_a.noconvert(), "grad_bias"_a.noconvert());
}

}  // namespace gb
