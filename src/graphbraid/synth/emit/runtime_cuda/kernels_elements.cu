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
  // A bias alone, in place: only its sums are asked for.
  const bool unchanged = a.how.act == Act::kNone && a.how.p == 0 && a.grad_x.data == a.grad.data;
  if (!unchanged) write("epilogue_backward", GradientThrough{a.grad, a.result, epilogue_of(a.how)}, a.grad_x);
  if (a.grad_bias)
    sum_columns("epilogue_backward", Same{a.grad_x}, a.grad_x.rows, a.grad_x.columns, a.grad_bias);
}

void set_zero(Matrix out) { write("set_zero", Zeros{}, out); }
void copy(const Elements& a) { write("copy", Same{a.x}, a.out); }
void copy_counts(const Counts& a) { write("copy", SameCounts{a.x, a.out.columns}, a.out); }
void add(const Elements& a) { write("add", Sum{a.out, a.x}, a.out); }
void divide(const Divide& a) { write("divide", Quotient{a.x, a.divisor}, a.out); }

}  // namespace program
