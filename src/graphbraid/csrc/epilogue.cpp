// Binds epilogue.inl; ops/epilogue.py describes the operator.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "dropout.h"
#include "parallel.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

namespace gb {

enum class Act : int { kNone = 0, kRelu = 1, kLeakyRelu = 2, kElu = 3 };

struct EpilogueArgs {
  DType dtype = DType::kFloat32;
  Act act = Act::kNone;
  double slope = 0.01;
  int64_t num_rows = 0, width = 0;
  const void* x = nullptr;     // (num_rows, width); backward: the forward's output
  const void* bias = nullptr;  // (width,), dtype of the sums
  const void* grad = nullptr;  // backward only
  void* out = nullptr;         // backward: gradient of x
  void* grad_bias = nullptr;
  uint32_t threshold = 0;  // drop where the 32 random bits are below
  double keep_scale = 1;
  uint64_t seed = 0;
  const int64_t* ids =
      nullptr;  // (num_rows,): the row that each row's dropout mask is drawn for; null: itself
};

}  // namespace gb

#define GB_KERNEL_FILE "epilogue.inl"
#include "for_each_variant.h"

namespace gb {

using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OptionalIds = std::optional<Array1<const int64_t>>;

static EpilogueArgs common_args(const Matrix& x, int act, double slope, double p, uint64_t seed,
                                const OptionalIds& ids, const Matrix& out) {
  EpilogueArgs a;
  a.dtype = dtype_of(x, "x");
  need(act >= 0 && act <= 3, "unknown activation");
  a.act = static_cast<Act>(act);
  a.slope = slope;
  a.num_rows = static_cast<int64_t>(x.shape(0));
  a.width = static_cast<int64_t>(x.shape(1));
  need(dtype_of(out, "out") == a.dtype && out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1),
       "out must have the shape and dtype of x");
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  a.threshold = static_cast<uint32_t>(p * 4294967296.0);
  a.keep_scale = 1.0 / (1.0 - p);
  a.seed = seed;
  if (ids) {
    need(static_cast<int64_t>(ids->shape(0)) == a.num_rows, "ids must have one id per row");
    a.ids = ids->data();
  }
  a.x = x.data();
  a.out = out.data();
  return a;
}

static void epilogue(const Matrix& x, const OptionalVector& bias, int act, double slope, double p,
                     uint64_t seed, const Matrix& out, const OptionalIds& ids) {
  EpilogueArgs a = common_args(x, act, slope, p, seed, ids, out);
  a.bias = coefficients(bias, a.dtype, a.width, "bias");
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(epilogue)(a);
}

static void epilogue_backward(const Matrix& grad, const Matrix& out, int act, double slope, double p,
                              uint64_t seed, const Matrix& grad_x, const OptionalVector& grad_bias,
                              const OptionalIds& ids) {
  EpilogueArgs a = common_args(out, act, slope, p, seed, ids, grad_x);
  need(dtype_of(grad, "grad") == a.dtype && grad.shape(0) == out.shape(0) && grad.shape(1) == out.shape(1),
       "grad must have the shape and dtype of out");
  a.grad = grad.data();
  a.grad_bias = const_cast<void*>(coefficients(grad_bias, a.dtype, a.width, "grad_bias"));
  nb::gil_scoped_release release;
  if (a.width > 0) GB_PICK(epilogue_backward)(a);
}

void bind_epilogue(nb::module_& m) {
  using namespace nb::literals;
  m.def("epilogue", &epilogue, "x"_a.noconvert(), "bias"_a.noconvert().none(), "act"_a, "slope"_a, "p"_a,
        "seed"_a, "out"_a.noconvert(), "ids"_a.noconvert().none() = nb::none());
  m.def("epilogue_backward", &epilogue_backward, "grad"_a.noconvert(), "out"_a.noconvert(), "act"_a,
        "slope"_a, "p"_a, "seed"_a, "grad_x"_a.noconvert(), "grad_bias"_a.noconvert().none(),
        "ids"_a.noconvert().none() = nb::none());
}

}  // namespace gb
