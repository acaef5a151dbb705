// Products with rows of zeros and ones kept as bits, the words of 32 as in csrc/dense/bit_product.h:
//
//   bit_product  out = diag(factors) * x * b (+ out)      bits (words of the depth, num_rows)
//   bit_gram     out = aᵀ * diag(factors) * x             bits (words of the rows, columns of x)
//
// Lanes share the columns of the rows that are summed. Bound by reading those rows.
#pragma once

#include "sums.cuh"

namespace program {

// Calls f(place) for each bit that is set, in order. The words stand `stride` apart. word & (word - 1) clears
// the lowest set bit.
template <typename F>
__device__ void for_set_bits(const int32_t* words, int64_t num_words, int64_t stride, const F& f) {
  for (int64_t w = 0; w < num_words; ++w)
    for (uint32_t word = static_cast<uint32_t>(words[w * stride]); word != 0; word &= word - 1)
      f(w * 32 + __ffs(static_cast<int>(word)) - 1);
}

// b (depth, columns), its rows contiguous.
template <int Lanes>
__global__ void multiply_bits(const BitProduct p) {
  const int64_t row = row_number<Lanes>();
  if (row >= p.out.rows) return;
  const float factor = p.factors ? p.factors[row] : 1.0f;
  for (int64_t column = threadIdx.x % Lanes; column < p.out.columns; column += Lanes) {
    float sum = 0;
    for_set_bits(p.bits + row, (p.b.rows + 31) / 32, p.out.rows,
                 [&](int64_t k) { sum += p.b.data[k * p.b.row_stride + column]; });
    float& to = p.out.data[row * p.out.row_stride + column];
    to = p.add ? to + factor * sum : factor * sum;
  }
}

template <int Lanes>
__global__ void gram_of_bits(const BitGram g) {
  const int64_t column = row_number<Lanes>();  // of x
  if (column >= g.out.columns) return;
  for (int64_t own = threadIdx.x % Lanes; own < g.out.rows; own += Lanes) {
    float sum = 0;
    for_set_bits(g.bits + column, (g.a.rows + 31) / 32, g.out.columns, [&](int64_t row) {
      const float number = g.a.data[row * g.a.row_stride + own];
      sum += g.factors ? g.factors[row] * number : number;
    });
    g.out.data[own * g.out.row_stride + column] = sum;
  }
}

}  // namespace program
