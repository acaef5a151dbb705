// The trial of the features as bits.
#include <algorithm>
#include <vector>

#include "cpu_kernels.h"
#include "input_choice.h"

namespace program {
namespace {

constexpr int64_t kWordBits = 32;
constexpr int64_t kWidthAtOnce = 16;        // columns of the weight that the kernel computes at once
constexpr int64_t kTriedBits = 10'000'000;  // each once for so many columns: a few milliseconds
constexpr int64_t kLeastRows = 64;

int64_t words_of(int64_t bits) { return (bits + kWordBits - 1) / kWordBits; }

void set_bit(std::vector<int32_t>& words, int64_t word, int64_t bit) {
  words[static_cast<size_t>(word)] |= static_cast<int32_t>(uint32_t{1} << bit);
}

}  // namespace

double bits_seconds(const InputShape& shape, const InputSample& sample) {
  const int64_t steps = shape.channels * ((shape.width + kWidthAtOnce - 1) / kWidthAtOnce);
  const int64_t count = std::min(sample.rows, std::max(kLeastRows, kTriedBits / steps));
  std::vector<int32_t> by_row(static_cast<size_t>(words_of(shape.channels) * count));
  std::vector<int32_t> by_column(static_cast<size_t>(words_of(count) * shape.channels));
  // The layouts of csrc/dense/bit_product.h: by_row has 32 columns of one row in a word, by_column 32 rows of
  // one column.
  for (int64_t to = 0; to < count; ++to) {
    const int64_t row = to * sample.rows / count;  // evenly spaced
    for (int64_t i = sample.indptr[row]; i < sample.indptr[row + 1]; ++i) {
      const int64_t column = sample.indices[i];
      set_bit(by_row, column / kWordBits * count + to, column % kWordBits);
      set_bit(by_column, to / kWordBits * shape.channels + column, to % kWordBits);
    }
  }
  std::vector<float> weight(static_cast<size_t>(shape.width * shape.channels), 1.0f), gradient(weight.size());
  std::vector<float> out(static_cast<size_t>(count * shape.width)), factors(static_cast<size_t>(count), 1.0f);
  const Matrix rows = contiguous(out.data(), count, shape.width);
  const double taken = least_seconds([&] {
    bit_product({
        .bits = by_row.data(),
        .factors = factors.data(),
        .b = transposed(contiguous(weight.data(), shape.width, shape.channels)),
        .out = rows,
    });
    bit_gram({
        .a = rows,
        .bits = by_column.data(),
        .factors = factors.data(),
        .out = contiguous(gradient.data(), shape.width, shape.channels),
    });
  });
  return taken * static_cast<double>(shape.rows) / static_cast<double>(count);
}

}  // namespace program
