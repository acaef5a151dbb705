// Arguments of the dense products, checked by dense.cpp and filled alike for every variant.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arguments/epilogue.h"

namespace gb {

// A float32 matrix in memory: element (i, j) stands at data[i * row_stride + j * column_stride].
struct Strided {
  const float* data = nullptr;
  int64_t row_stride = 0, column_stride = 1;
};

// out = a * b, or out += a * b:  a (num_rows, depth), rows contiguous;  b (depth, width);  out (num_rows,
// width). With ids, row i of a is row ids[i] of the memory at `a`.
struct TallProductArgs {
  int64_t num_rows = 0, depth = 0, width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const int64_t* ids = nullptr;
  Strided b;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
  const Epilogue* epilogue = nullptr;  // of each row of out once it is complete; may be null
};

// out = aᵀ * b:  a (num_rows, height), b (num_rows, width), rows contiguous;  out (height, width). Ids mean
// the same as above.
struct TallGramArgs {
  int64_t num_rows = 0, height = 0, width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const int64_t* a_ids = nullptr;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const int64_t* b_ids = nullptr;
  float* out = nullptr;  // contiguous
};

// These run the variant in use.
void run_tall_product(const TallProductArgs& p);
void run_tall_gram(const TallGramArgs& g);

// The number of parts of a gram's rows. Each part is summed in order, by itself.
inline int64_t gram_parts(int64_t num_rows) {
  constexpr int64_t most = 8, least_rows = 1024;
  return std::clamp<int64_t>(num_rows / least_rows, 1, most);
}
inline int64_t gram_part_begin(int64_t num_rows, int64_t part) {
  return num_rows * part / gram_parts(num_rows);
}

// A gram whose b is not in memory as a whole, but comes in rounds. A round has the rows [first, last) of
// every part, if the part has them, one part after the other. `gram` has all rows of a, the round's rows of
// b, and no ids. The sums go on from round to round as those of tall_gram go on from row to row, so that the
// bits are the same.
struct GramRoundArgs {
  TallGramArgs gram;
  int64_t first = 0, last = 0;
  float* sums = nullptr;
  bool ends = false;  // whether this is the last round: it adds up the sums to gram.out
};

// The number of a part's rows in a round.
inline int64_t gram_round_rows(int64_t num_rows, int64_t part, int64_t first, int64_t last) {
  const int64_t size = gram_part_begin(num_rows, part + 1) - gram_part_begin(num_rows, part);
  return std::max<int64_t>(std::min(last, size) - first, 0);
}

void run_tall_gram_round(const GramRoundArgs& round);

// The number of elements of `sums`, enough for any vector length and for the transposed product.
inline int64_t gram_sums_length(int64_t num_rows, int64_t height, int64_t width) {
  const auto whole = [](int64_t columns) { return (columns + 15) / 16 * 16; };
  return gram_parts(num_rows) * std::max(height * whole(width), width * whole(height));
}

}  // namespace gb
