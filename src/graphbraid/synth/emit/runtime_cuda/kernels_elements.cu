// Bias, activation and dropout with their gradients, and the kernels of single elements: see elements.cuh.
#include "column_sums.cuh"
#include "elements.cuh"

namespace program {
namespace {

template <typename Values>
void write(const char* name, const Values& values, Matrix out) {
  launch(name, fill<Values>, out.rows * out.columns, values, out);
}

}  // namespace

gb::Epilogue epilogue_of(const RowEpilogue& how) {
  gb::Epilogue e;
  e.act = how.act;
  e.slope = how.slope;
  e.bias = how.bias;
  e.threshold = static_cast<uint32_t>(how.p * 0x1p32);
  e.keep_scale = 1.0 / (1.0 - how.p);
  e.seed = how.seed;
  e.ids = how.ids;
  return e;
}

void epilogue(const RowwiseEpilogue& a) { write("epilogue", Followed{a.x, epilogue_of(a.how)}, a.out); }

void epilogue_backward(const EpilogueBackward& a) {
  // A bias alone, in place: the gradient of x is grad, and only the bias's is computed.
  const bool unchanged = a.how.act == Act::kNone && a.how.p == 0 && a.grad_x.data == a.grad.data;
  if (!unchanged) write("epilogue_backward", GradientThrough{a.grad, a.result, epilogue_of(a.how)}, a.grad_x);
  if (a.grad_bias)
    sum_columns("epilogue_backward", Same{a.grad_x}, a.grad_x.rows, a.grad_x.columns, a.grad_bias);
}

void factor_gradient(const FactorGradient& a) {
  const int64_t columns = a.grad.columns, behind = kMostParts * columns;
  const int64_t bytes = (behind + columns) * static_cast<int64_t>(sizeof(float));
  float* of_columns = static_cast<float*>(Workspace::begin(bytes)) + behind;
  sum_columns("factor_gradient", Product{a.grad, a.x}, a.grad.rows, columns, of_columns);
  sum_columns("factor_gradient", Same{contiguous(of_columns, columns, 1)}, columns, 1, a.out);
}

}  // namespace program

#include "elementwise.inl"
