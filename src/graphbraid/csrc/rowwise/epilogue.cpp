// Binds epilogue.inl; ops/epilogue.py describes the operator.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/bound.h"
#include "arguments/epilogue_arguments.h"
#include "base/dropout.h"
#include "rowwise/epilogue_args.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/epilogue.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_epilogue(const EpilogueArgs& a) {
  if (a.width > 0) GB_PICK(epilogue)(a);
}

void run_epilogue_backward(const EpilogueArgs& a) {
  if (a.width > 0) GB_PICK(epilogue_backward)(a);
}

static EpilogueArgs common_args(const RowArray& x, const WrittenRows& out) {
  EpilogueArgs a;
  a.dtype = dtype_of(x);
  a.num_rows = x.num_rows();
  a.width = x.num_columns();
  need_dtype_of(out, x);
  need_shape(out, a.num_rows, a.width);
  a.x = rows_of(x);
  a.out = out.data();
  a.out_stride = out.stride(0);
  return a;
}

static void epilogue(const RowArray& x, const OptionalVector& bias, int act, double slope, double p,
                     uint64_t seed, const WrittenRows& out, const OptionalIds& ids) {
  EpilogueArgs a = common_args(x, out);
  a.how = epilogue_of(bias, act, slope, p, seed, ids, a.dtype, a.num_rows, a.width);
  nb::gil_scoped_release release;
  run_epilogue(a);
}

static void epilogue_backward(const RowArray& grad, const RowArray& out, int act, double slope, double p,
                              uint64_t seed, const WrittenRows& grad_x,
                              const std::optional<WrittenVector>& grad_bias, const OptionalIds& ids) {
  EpilogueArgs a = common_args(out, grad_x);
  a.how = epilogue_of(std::nullopt, act, slope, p, seed, ids, a.dtype, a.num_rows, a.width);
  need_dtype_of(grad, out);
  need_shape(grad, a.num_rows, a.width);
  a.grad = rows_of(grad);
  a.grad_bias = in_sums(grad_bias, a.dtype, a.width);
  nb::gil_scoped_release release;
  run_epilogue_backward(a);
}

void bind_epilogue(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&epilogue>(m, "epilogue", "x"_a, "bias"_a, "act"_a, "slope"_a, "p"_a, "seed"_a, "out"_a,
                        "ids"_a = nb::none());
  def_kernel<&epilogue_backward>(m, "epilogue_backward", "grad"_a, "out"_a, "act"_a, "slope"_a, "p"_a,
                                 "seed"_a, "grad_x"_a, "grad_bias"_a, "ids"_a = nb::none());
}

}  // namespace gb
