// Binds dense.inl; ops/linear.py describes the operators.
#include "dense/dense.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/bound.h"
#include "arguments/epilogue_arguments.h"
#include "base/buffer.h"
#include "base/dropout.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "dense/dense.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_tall_product(const TallProductArgs& p) {
  if (p.num_rows > 0 && p.width > 0) GB_PICK(tall_product)(p);
}

void run_tall_gram(const TallGramArgs& g) {
  if (g.height > 0 && g.width > 0) GB_PICK(tall_gram)(g);
}

void run_tall_gram_round(const GramRoundArgs& round) {
  if (round.gram.height > 0 && round.gram.width > 0) GB_PICK(tall_gram_round)(round);
}

// Returns the number of ids, or of rows without ids; refuses an id that is none of the rows'.
static int64_t rows_by_id(const OptionalIds& ids, int64_t rows) {
  if (!ids) return rows;
  const int64_t* values = ids->data();
  uint64_t most = 0;  // of ids as unsigned numbers: a negative one is beyond any bound
  for (int64_t i = 0; i < ids->length(); ++i) most = std::max(most, static_cast<uint64_t>(values[i]));
  if (ids->length() > 0 && most >= static_cast<uint64_t>(rows))
    refuse("ids must lie in [0, " + std::to_string(rows) + ")");
  return ids->length();
}

static void tall_product(const FloatRows& a, const StridedFloats& b, const WrittenFloatRows& out, bool add,
                         const OptionalIds& ids, const OptionalEpilogue& after) {
  TallProductArgs p;
  p.ids = data_or_null(ids);
  p.num_rows = rows_by_id(ids, a.num_rows());
  p.depth = a.num_columns();
  p.width = b.num_columns();
  need_length(b, p.depth);
  need_shape(out, p.num_rows, p.width);
  p.a = a.data();
  p.a_stride = a.stride(0);
  p.b = {b.data(), b.stride(0), b.stride(1)};
  p.out = out.data();
  p.out_stride = out.stride(0);
  p.add = add;
  const std::optional<Epilogue> follows = epilogue_of(after, DType::kFloat32, p.num_rows, p.width);
  p.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  run_tall_product(p);
}

// The matrices of `out = a^T b`. Checks the shape of out; those of a and b were checked.
static void set_matrices(TallGramArgs& g, const FloatRows& a, const FloatRows& b, const Array2<float>& out) {
  g.height = a.num_columns();
  g.width = b.num_columns();
  need_shape(out, g.height, g.width);
  g.a = a.data();
  g.a_stride = a.stride(0);
  g.b = b.data();
  g.b_stride = b.stride(0);
  g.out = out.data();
}

static void tall_gram(const FloatRows& a, const FloatRows& b, const Array2<float>& out,
                      const OptionalIds& ids) {
  TallGramArgs g;
  g.b_ids = data_or_null(ids);
  g.num_rows = rows_by_id(ids, b.num_rows());
  need_length(a, g.num_rows);
  set_matrices(g, a, b, out);
  nb::gil_scoped_release release;
  run_tall_gram(g);
}

static void tall_gram_round(const FloatRows& a, const FloatRows& b, const Array1<float>& sums,
                            const Array2<float>& out, int64_t first, int64_t last, bool ends) {
  GramRoundArgs round;
  TallGramArgs& g = round.gram;
  g.num_rows = a.num_rows();
  if (first < 0 || last < first) refuse("a round must be rows from first to last of each part");
  int64_t rows = 0;
  for (int64_t part = 0; part < gram_parts(g.num_rows); ++part)
    rows += gram_round_rows(g.num_rows, part, first, last);
  need_length(b, rows);
  set_matrices(g, a, b, out);
  need_length(sums, gram_sums_length(g.num_rows, g.height, g.width));
  round.first = first;
  round.last = last;
  round.sums = sums.data();
  round.ends = ends;
  nb::gil_scoped_release release;
  run_tall_gram_round(round);
}

constexpr int64_t kSide = 16;  // of the squares in which a matrix is transposed: a line of floats

typedef float Four __attribute__((vector_size(16)));
typedef Four LooseFour __attribute__((aligned(4), may_alias));

// Transposes a whole square, four by four in registers.
static void transpose_whole_square(const float* from, int64_t from_stride, float* out, int64_t out_stride) {
  for (int64_t j = 0; j < kSide; j += 4)
    for (int64_t i = 0; i < kSide; i += 4) {
      Four row[4], half[4], column[4];
      for (int k = 0; k < 4; ++k)
        row[k] = *reinterpret_cast<const LooseFour*>(from + (i + k) * from_stride + j);
      for (int k = 0; k < 4; k += 2) {
        half[k] = __builtin_shufflevector(row[k], row[k + 1], 0, 4, 1, 5);
        half[k + 1] = __builtin_shufflevector(row[k], row[k + 1], 2, 6, 3, 7);
      }
      for (int k = 0; k < 2; ++k) {
        column[2 * k] = __builtin_shufflevector(half[k], half[k + 2], 0, 1, 4, 5);
        column[2 * k + 1] = __builtin_shufflevector(half[k], half[k + 2], 2, 3, 6, 7);
      }
      for (int k = 0; k < 4; ++k) *reinterpret_cast<LooseFour*>(out + (j + k) * out_stride + i) = column[k];
    }
}

static void transpose_square(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                             float* out, int64_t out_stride) {
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) out[j * out_stride + i] = from[i * from_stride + j];
}

// a (num_rows, width)  --->  out = aᵀ (width, num_rows). Bound by reading and writing both: in squares, whose
// lines stay in the first-level cache.
static void transpose(const FloatRows& a, const Array2<float>& out) {
  const int64_t num_rows = a.num_rows(), width = a.num_columns(), stride = a.stride(0);
  need_shape(out, width, num_rows);
  const float* from = a.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  const int64_t across = (width + kSide - 1) / kSide, squares = across * ((num_rows + kSide - 1) / kSide);
  parallel_if_worth(num_rows * width, kFloatsWorth, squares, 128, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const int64_t row = s / across * kSide, column = s % across * kSide;
      const int64_t rows = std::min(kSide, num_rows - row), columns = std::min(kSide, width - column);
      const float* square = from + row * stride + column;
      float* turned = to + column * num_rows + row;
      if (rows == kSide && columns == kSide)
        transpose_whole_square(square, stride, turned, num_rows);
      else
        transpose_square(square, stride, rows, columns, turned, num_rows);
    }
  });
}

void bind_dense(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&tall_product>(m, "tall_product", "a"_a, "b"_a, "out"_a, "add"_a = false, "ids"_a = nb::none(),
                            "after"_a = nb::none());
  def_kernel<&tall_gram>(m, "tall_gram", "a"_a, "b"_a, "out"_a, "ids"_a = nb::none());
  def_kernel<&transpose>(m, "transpose", "a"_a, "out"_a);
  def_native(m, "tall_gram_round", &tall_gram_round, "a"_a, "b"_a, "sums"_a, "out"_a, "first"_a, "last"_a,
             "ends"_a);
}

}  // namespace gb
