// The kernels that compute each element by itself, for all targets. The file that includes this defines
// write(name, values, out), which sets out[row, column] = values(row, column).
#include "elements.h"
#include "kernels.h"

namespace program {

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

void spread_heads(const SpreadHeads& a) { write("spread_heads", Spread{a.x, a.channels}, a.out); }

void own_heads(const OwnHeads& a) {
  write("own_heads", OwnHead{a.x, a.x.columns / a.x.rows}, contiguous(a.out, 1, a.x.columns));
}

void mean_of_heads(const Elements& a) { write("mean_of_heads", MeanOfHeads{a.x, a.out.columns}, a.out); }

void repeat_heads(const RepeatHeads& a) {
  write("repeat_heads", Repeated{a.x, static_cast<float>(a.factor)}, a.out);
}

}  // namespace program
