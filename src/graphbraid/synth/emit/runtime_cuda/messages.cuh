// Messages made of elementwise steps, reduced over the edges of each walked row, and their gradients:
//
//   out[v, :] = the sum, maximum or minimum of message(rows of u, rows of v, weight) over the edges u -> v
//
// csrc/aggregate/messages.inl computes the same on a processor, where it interprets the steps. Here main.cu
// has each message as a type, with which the kernels are compiled; its steps are local variables:
//
//   Kinds                    how each result is reduced: MessageResults<MessageResult::kSum, ...>
//   compute(edge, result)    the results of one edge in one column
//
// A gradient is another message. It walks v's edges for the destinations' gradients, and u's edges, those of
// the transpose, for the sources'. A row is shared by as many lanes as it has columns, edge by edge in order,
// long rows in parts: see sums.cuh. Nothing is stored per edge. Bound by reading num_edges rows of each
// matrix whose rows are not walked.
#pragma once

#include "elements.cuh"
#include "gpu_memory.h"
#include "sums.cuh"

namespace program {

enum class MessageResult { kSum, kMax, kMin };

template <MessageResult... Kinds>
struct MessageResults {
  static constexpr int kCount = sizeof...(Kinds);
  __device__ static constexpr MessageResult of(int result) {
    const MessageResult kinds[] = {Kinds...};
    return kinds[result];
  }
};

// An edge of the graph, or of its transpose, and a column.
struct MessageEdge {
  const Messages& given;
  int64_t from, to, number, column;

  __device__ float source(ConstMatrix Messages::* rows) const { return at(given.*rows, from, column); }
  __device__ float destination(ConstMatrix Messages::* rows) const { return at(given.*rows, to, column); }
  __device__ float weight() const { return given.weight[number]; }
};

// ---- The steps' functions, named as in ops/message_steps.py. x and y are the values of the steps that are
// read. No function may become part of a fused multiply-add: the gradient of a maximum computes messages
// again and compares them, so these must have the same bits.

namespace steps {

__device__ inline float add(float x, float y) { return __fadd_rn(x, y); }
__device__ inline float subtract(float x, float y) { return __fsub_rn(x, y); }
__device__ inline float multiply(float x, float y) { return __fmul_rn(x, y); }
__device__ inline float divide(float x, float y) { return x / y; }
__device__ inline float equal(float x, float y) { return x == y ? 1.0f : 0.0f; }
__device__ inline float where(float x, float y) { return y == 0 ? 0.0f : x; }
__device__ inline float relu(float x) { return x < 0 ? 0.0f : x; }  // lets a NaN through
__device__ inline float leaky_relu(float x, float slope) { return x < 0 ? multiply(x, slope) : x; }
__device__ inline float sigmoid(float x) { return 1.0f / add(1.0f, expf(-x)); }
__device__ inline float tanh(float x) { return tanhf(x); }
__device__ inline float exp(float x) { return expf(x); }
__device__ inline float abs(float x) { return fabsf(x); }

// x times the slope of a function at y, or of a function whose result is y.
__device__ inline float relu_gradient(float x, float y) { return y <= 0 ? 0.0f : x; }
__device__ inline float leaky_relu_gradient(float x, float y, float slope) {
  return y > 0 ? x : multiply(x, slope);
}
__device__ inline float sigmoid_gradient(float x, float y) {
  return multiply(multiply(x, subtract(1.0f, y)), y);
}
__device__ inline float tanh_gradient(float x, float y) {
  return multiply(x, subtract(1.0f, multiply(y, y)));
}
__device__ inline float abs_gradient(float x, float y) { return y > 0 ? x : y < 0 ? -x : 0.0f; }

}  // namespace steps

// ---- The reduction

template <typename Message>
struct MessageTask {
  using Kinds = typename Message::Kinds;
  Messages given;
  float* partial;          // (parts of long rows, results, columns)
  int32_t* partial_count;  // likewise

  __device__ int64_t place(int64_t part, int result, int64_t column) const {
    return (part * Kinds::kCount + result) * given.width + column;
  }
};

// The messages of a row in a column, reduced so far, and how many messages share each extremum. None shares a
// NaN.
template <typename Kinds>
struct Reduced {
  float value[Kinds::kCount];
  int32_t count[Kinds::kCount];

  __device__ Reduced() {
    for (int r = 0; r < Kinds::kCount; ++r) {
      const MessageResult kind = Kinds::of(r);
      value[r] = kind == MessageResult::kSum ? 0.0f : kind == MessageResult::kMax ? -INFINITY : INFINITY;
      count[r] = 0;
    }
  }
  // Takes a message, or the reduced messages of a part of the row.
  __device__ void join(int r, float other, int32_t sharing) {
    if (Kinds::of(r) == MessageResult::kSum) {
      value[r] += other;
      return;
    }
    const bool is_better = Kinds::of(r) == MessageResult::kMax ? other > value[r] : other < value[r];
    const bool is_nan = other != other;
    count[r] = is_nan ? 0 : is_better ? sharing : other == value[r] ? count[r] + sharing : count[r];
    if (is_better || is_nan) value[r] = other;
  }
};

// The reduced messages of the edges [begin, end) of a row.
template <typename Message>
__device__ Reduced<typename Message::Kinds> reduced(const Messages& given, int64_t row, int64_t begin,
                                                    int64_t end, int64_t column) {
  using Kinds = typename Message::Kinds;
  Reduced<Kinds> found;
  for (int64_t e = begin; e < end; ++e) {
    const int64_t other = node_at(given.edges, e), number = given.perm ? given.perm[e] : e;
    const MessageEdge edge{given, given.by_source ? row : other, given.by_source ? other : row, number,
                           column};
    float result[Kinds::kCount];
    Message::compute(edge, result);
    for (int r = 0; r < Kinds::kCount; ++r) found.join(r, result[r], 1);
  }
  return found;
}

// Writes a row's column; an extremum of no message is 0.
template <typename Kinds>
__device__ void finish_messages(const Messages& given, int64_t row, int64_t column,
                                const Reduced<Kinds>& found) {
  const bool is_empty = given.edges.indptr[row] == given.edges.indptr[row + 1];
  const Matrix targets[] = {given.out, given.out2, given.out3, given.out4};
  int64_t num_counts = 0, counts_before = 0;
  for (int r = 0; r < Kinds::kCount; ++r) num_counts += Kinds::of(r) != MessageResult::kSum;
  for (int r = 0; r < Kinds::kCount; ++r) {
    float& to = at(targets[r], row, column);
    if (Kinds::of(r) == MessageResult::kSum) {
      to = given.adds ? to + found.value[r] : found.value[r];
      continue;
    }
    to = is_empty ? 0.0f : found.value[r];
    if (given.count)
      given.count[(row * num_counts + counts_before++) * given.width + column] = found.count[r];
  }
}

template <int Lanes, typename Message>
__global__ void reduce_rows(const MessageTask<Message> task) {
  const Messages& given = task.given;
  const int64_t row = row_number<Lanes>();
  if (row >= given.edges.num_rows) return;
  const int64_t begin = given.edges.indptr[row], end = given.edges.indptr[row + 1];
  if (is_long(given.edges, end - begin)) return;
  for (int64_t column = threadIdx.x % Lanes; column < given.width; column += Lanes)
    finish_messages(given, row, column, reduced<Message>(given, row, begin, end, column));
}

template <int Lanes, typename Message>
__global__ void reduce_parts(const MessageTask<Message> task) {
  const int64_t part = row_number<Lanes>();
  if (part >= task.given.edges.long_rows.num_parts) return;
  const int64_t* about = task.given.edges.long_rows.parts + 3 * part;
  for (int64_t column = threadIdx.x % Lanes; column < task.given.width; column += Lanes) {
    const auto found = reduced<Message>(task.given, about[0], about[1], about[2], column);
    for (int r = 0; r < Message::Kinds::kCount; ++r) {
      task.partial[task.place(part, r, column)] = found.value[r];
      task.partial_count[task.place(part, r, column)] = found.count[r];
    }
  }
}

template <int Lanes, typename Message>
__global__ void join_messages(const MessageTask<Message> task) {
  const int64_t number = row_number<Lanes>();
  if (number >= task.given.edges.long_rows.num_rows) return;
  const int64_t* about = task.given.edges.long_rows.rows + 3 * number;
  for (int64_t column = threadIdx.x % Lanes; column < task.given.width; column += Lanes) {
    Reduced<typename Message::Kinds> found;
    for (int64_t part = about[1]; part < about[2]; ++part)
      for (int r = 0; r < Message::Kinds::kCount; ++r)
        found.join(r, task.partial[task.place(part, r, column)],
                   task.partial_count[task.place(part, r, column)]);
    finish_messages(task.given, about[0], column, found);
  }
}

template <typename Message>
void reduce_messages(const Messages& given) {
  const LongRows& parts = given.edges.long_rows;
  const int64_t count = parts.num_parts * Message::Kinds::kCount * given.width;
  auto* partial = static_cast<float*>(Workspace::begin(2 * count * static_cast<int64_t>(sizeof(float))));
  const MessageTask<Message> task{given, partial, reinterpret_cast<int32_t*>(partial + count)};
  with_lanes(given.width, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("reduce_messages", reduce_rows<kLanes, Message>, given.edges.num_rows * kLanes, task);
    launch("reduce_messages", reduce_parts<kLanes, Message>, parts.num_parts * kLanes, task);
    launch("reduce_messages", join_messages<kLanes, Message>, parts.num_rows * kLanes, task);
  });
}

}  // namespace program
