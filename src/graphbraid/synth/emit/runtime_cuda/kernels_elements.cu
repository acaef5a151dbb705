// Bias, activation and dropout with their gradients, and the small functions of elements: see elements.cuh.
#include "column_sums.cuh"
#include "elements.cuh"

namespace program {
namespace {

template <typename Values>
void write(const char* name, const Values& values, Matrix out) {
  launch(name, fill<Values>, out.rows * out.columns, values, out);
}

}  // namespace

gb::Epilogue row_epilogue(const float* bias, int act, double slope, double p, uint64_t seed,
                          const int64_t* ids) {
  gb::Epilogue e;
  e.act = static_cast<gb::Act>(act);
  e.slope = slope;
  e.bias = bias;
  e.threshold = static_cast<uint32_t>(p * 0x1p32);
  e.keep_scale = 1.0 / (1.0 - p);
  e.seed = seed;
  e.ids = ids;
  return e;
}

void epilogue(ConstMatrix x, const gb::Epilogue& how, Matrix out) {
  write("epilogue", Followed{x, how}, out);
}

void epilogue_backward(ConstMatrix grad, ConstMatrix result, const gb::Epilogue& how, Matrix grad_x,
                       float* grad_bias) {
  // A bias alone, in place: only its sums are asked for.
  const bool unchanged = how.act == gb::Act::kNone && how.threshold == 0 && grad_x.data == grad.data;
  if (!unchanged) write("epilogue_backward", GradientThrough{grad, result, how}, grad_x);
  if (grad_bias) sum_columns("epilogue_backward", Same{grad_x}, grad_x.rows, grad_x.columns, grad_bias);
}

void set_zero(Matrix out) { write("set_zero", Zeros{}, out); }
void copy(ConstMatrix x, Matrix out) { write("copy", Same{x}, out); }
void copy(const int32_t* x, Matrix out) { write("copy", SameCounts{x, out.columns}, out); }
void add(ConstMatrix x, Matrix out) { write("add", Sum{out, x}, out); }
void divide(ConstMatrix x, ConstMatrix divisor, Matrix out) { write("divide", Quotient{x, divisor}, out); }

}  // namespace program
