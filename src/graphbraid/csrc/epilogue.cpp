// Binds epilogue.inl; ops/epilogue.py describes the operator.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "bound.h"
#include "dropout.h"
#include "epilogue_arguments.h"
#include "parallel.h"
#include "variants.h"
#include "worth.h"
#include "x86.h"

namespace gb {

struct EpilogueArgs {
  DType dtype = DType::kFloat32;
  int64_t num_rows = 0, width = 0;
  Rows x;               // (num_rows, width); backward: the forward's output
  Rows grad;            // backward only
  void* out = nullptr;  // backward: gradient of x
  int64_t out_stride = 0;
  void* grad_bias = nullptr;
  Epilogue how;
};

}  // namespace gb

#define GB_KERNEL_FILE "epilogue.inl"
#include "for_each_variant.h"

namespace gb {

static EpilogueArgs common_args(const RowArray& x, const RowArray& out) {
  EpilogueArgs a;
  a.dtype = dtype_of(x, "x");
  a.num_rows = static_cast<int64_t>(x.shape(0));
  a.width = static_cast<int64_t>(x.shape(1));
  need(dtype_of(out, "out") == a.dtype && out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1),
       "out must have the shape and dtype of x");
  a.x = rows_of(x);
  const Rows out_rows = written_rows(out, "out");
  a.out = const_cast<void*>(out_rows.data);
  a.out_stride = out_rows.stride;
  return a;
}

static void epilogue(const RowArray& x, const OptionalVector& bias, int act, double slope, double p,
                     uint64_t seed, const RowArray& out, const OptionalIds& ids) {
  EpilogueArgs a = common_args(x, out);
  a.how = epilogue_of(bias, act, slope, p, seed, ids, a.dtype, a.num_rows, a.width);
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(epilogue)(a);
}

static void epilogue_backward(const RowArray& grad, const RowArray& out, int act, double slope, double p,
                              uint64_t seed, const RowArray& grad_x, const OptionalVector& grad_bias,
                              const OptionalIds& ids) {
  EpilogueArgs a = common_args(out, grad_x);
  a.how = epilogue_of(std::nullopt, act, slope, p, seed, ids, a.dtype, a.num_rows, a.width);
  need(dtype_of(grad, "grad") == a.dtype && grad.shape(0) == out.shape(0) && grad.shape(1) == out.shape(1),
       "grad must have the shape and dtype of out");
  a.grad = rows_of(grad);
  a.grad_bias = const_cast<void*>(coefficients(grad_bias, a.dtype, a.width, "grad_bias"));
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(epilogue_backward)(a);
}

void bind_epilogue(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&epilogue>(m, "epilogue", "x"_a.noconvert(), "bias"_a.noconvert().none(), "act"_a, "slope"_a,
                        "p"_a, "seed"_a, "out"_a.noconvert(), "ids"_a.noconvert().none() = nb::none());
  def_kernel<&epilogue_backward>(m, "epilogue_backward", "grad"_a.noconvert(), "out"_a.noconvert(), "act"_a,
                                 "slope"_a, "p"_a, "seed"_a, "grad_x"_a.noconvert(),
                                 "grad_bias"_a.noconvert().none(), "ids"_a.noconvert().none() = nb::none());
}

}  // namespace gb
