// Sums over the edges of rows, without atomics. As many lanes as a row has columns, at most a warp, sum a row
// edge by edge in order, so that the bits do not depend on how blocks are scheduled. Long rows are summed in
// parts of a fixed number of edges, and then the parts in order, so that a hub does not keep the GPU waiting.
//
// A type of terms says what is summed:
//   edges, columns()
//   leaves_out(row, node)         whether an edge is left out
//   coefficient(edge, node)       the factor of an edge's numbers
//   number(row, node, column)     the number that an edge adds, before its factor
//   finish(row, column, sum)      writes the result
//   partial                       (parts of long rows, columns), scratch memory
#pragma once

#include <type_traits>

#include "rows.cuh"

namespace program {

constexpr int kTile = 4;  // columns that a lane sums at a time

// The number of this thread's row, or part, where Lanes threads share one.
template <int Lanes>
__device__ inline int64_t row_number() {
  return thread_number() / Lanes;
}

// sum[i] += the terms of the edges [begin, end) of a row in column `column` + i * Lanes.
template <int Lanes, typename Terms>
__device__ void add_terms(const Terms& terms, int64_t row, int64_t begin, int64_t end, int64_t column,
                          float (&sum)[kTile]) {
  const int64_t columns = terms.columns();
  for (int64_t e = begin; e < end; ++e) {
    const int64_t node = node_at(terms.edges, e);
    if (terms.leaves_out(row, node)) continue;
    const float c = terms.coefficient(e, node);
    for (int i = 0; i < kTile; ++i)
      if (column + i * Lanes < columns) sum[i] += c * terms.number(row, node, column + i * Lanes);
  }
}

template <int Lanes, typename Terms>
__global__ void sum_rows(const Terms terms) {
  const int64_t row = row_number<Lanes>();
  if (row >= terms.edges.num_rows) return;
  const int64_t begin = terms.edges.indptr[row], end = terms.edges.indptr[row + 1];
  if (is_long(terms.edges, end - begin)) return;
  for (int64_t column = threadIdx.x % Lanes; column < terms.columns(); column += kTile * Lanes) {
    float sum[kTile] = {};
    add_terms<Lanes>(terms, row, begin, end, column, sum);
    for (int i = 0; i < kTile; ++i)
      if (column + i * Lanes < terms.columns()) terms.finish(row, column + i * Lanes, sum[i]);
  }
}

template <int Lanes, typename Terms>
__global__ void sum_parts(const Terms terms) {
  const int64_t part = row_number<Lanes>();
  if (part >= terms.edges.long_rows.num_parts) return;
  const int64_t* about = terms.edges.long_rows.parts + 3 * part;
  float* to = terms.partial + part * terms.columns();
  for (int64_t column = threadIdx.x % Lanes; column < terms.columns(); column += kTile * Lanes) {
    float sum[kTile] = {};
    add_terms<Lanes>(terms, about[0], about[1], about[2], column, sum);
    for (int i = 0; i < kTile; ++i)
      if (column + i * Lanes < terms.columns()) to[column + i * Lanes] = sum[i];
  }
}

template <int Lanes, typename Terms>
__global__ void join_parts(const Terms terms) {
  const int64_t number = row_number<Lanes>();
  if (number >= terms.edges.long_rows.num_rows) return;
  const int64_t* about = terms.edges.long_rows.rows + 3 * number;
  for (int64_t column = threadIdx.x % Lanes; column < terms.columns(); column += Lanes) {
    float sum = 0;
    for (int64_t part = about[1]; part < about[2]; ++part)
      sum += terms.partial[part * terms.columns() + column];
    terms.finish(about[0], column, sum);
  }
}

// Calls f with the number of lanes that share a row of so many columns, as a constant of the compiler.
template <typename F>
void with_lanes(int64_t columns, const F& f) {
  if (columns <= 4) return f(std::integral_constant<int, 4>{});
  if (columns <= 8) return f(std::integral_constant<int, 8>{});
  if (columns <= 16) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, kWarp>{});
}

template <typename Terms>
void sum_over_edges(const char* name, const Terms& terms) {
  const LongRows& parts = terms.edges.long_rows;
  with_lanes(terms.columns(), [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch(name, sum_rows<kLanes, Terms>, terms.edges.num_rows * kLanes, terms);
    launch(name, sum_parts<kLanes, Terms>, parts.num_parts * kLanes, terms);
    launch(name, join_parts<kLanes, Terms>, parts.num_rows * kLanes, terms);
  });
}

}  // namespace program
