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

void divide_by_degrees(const DivideByDegrees& a) {
  write("divide_by_degrees", OverDegrees{a.x, a.edges.indptr}, a.out);
}

void divide_by_counts(const DivideByCounts& a) { write("divide_by_counts", OverCounts{a.x, a.count}, a.out); }

void add_product(const AddProduct& a) { write("add_product", SumWithProduct{a.out, a.x, a.y}, a.out); }

void scale(const Scale& a) {
  write("scale", Scaled{a.x, a.add ? ConstMatrix(a.out) : ConstMatrix{}, a.factor}, a.out);
}

void factor_gradient(const FactorGradient& a) {
  const int64_t columns = a.grad.columns, behind = kMostParts * columns;
  const int64_t bytes = (behind + columns) * static_cast<int64_t>(sizeof(float));
  float* of_columns = static_cast<float*>(Workspace::begin(bytes)) + behind;
  sum_columns("factor_gradient", Product{a.grad, a.x}, a.grad.rows, columns, of_columns);
  sum_columns("factor_gradient", Same{contiguous(of_columns, columns, 1)}, columns, 1, a.out);
}

}  // namespace program
