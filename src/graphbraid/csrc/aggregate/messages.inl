// Messages made of elementwise steps, reduced over in-neighbours, and their gradients:
//
//   sources, destinations (num_src or num_dst, width), edges (num_edges, width)
//     --- steps for each edge, then the reduction over v's edges --->  out (num_dst, width)
//
// Some edges at a time are gathered, and each step is one loop over all numbers of these edges, which stay in
// the first cache; so no row per edge is written to memory, and reading the steps costs little. Backward runs
// the steps again and then their adjoints: over v's edges for the destinations' gradients, over u's edges,
// those of the transpose, for the sources'. A sum's terms are added in the order of the walk, and parameters'
// gradients piece by piece, where pieces do not depend on the number of threads.
//
// Bound by reading num_edges rows per matrix whose rows are not walked, or by arithmetic: an exponential
// takes about as long as reading ten numbers. Arguments: messages.h.

namespace gb::GB_VARIANT {

#include "variants/exp.inl"

constexpr int64_t kNumbersAtATime = 1024;  // of each step: a dozen steps fit in the first cache

// exp as PyTorch has it up to the largest float, too, where exp_lanes may stop at exp(88).
GB_INLINE VecF32 exp_or_infinity(VecF32 x) {
  const VecF32 one = splat<VecF32>(1.0f), factor = x > 80.0f ? splat<VecF32>(2.718281828f) : one;
  const VecF32 found = exp_lanes(x > 80.0f ? x - 1.0f : x) * factor;
  return x > 88.722839f ? splat<VecF32>(INFINITY) : found;
}
GB_INLINE VecF32 magnitude(VecF32 x) { return x < 0 ? -x : x; }

// 1 / x of x in [1, 2^64], within 1 ulp: a division takes as long as an exponential.
GB_INLINE VecF32 reciprocal(VecF32 x) {
#if GB_LANES_F32 == 16
  const VecF32 about = reinterpret_cast<VecF32>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return about + about * (1.0f - x * about);
#else
  return 1.0f / x;
#endif
}

// Odd polynomial near 0, where 1 - 2 / (exp(2 x) + 1) would cancel (Cephes); within 2 ulp.
GB_INLINE VecF32 tanh_lanes(VecF32 x) {
  const VecF32 z = x * x, far = magnitude(x), twice = far > 20.0f ? splat<VecF32>(40.0f) : far + far;
  VecF32 p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const VecF32 near_zero = p * z * x + x;
  const VecF32 positive = 1.0f - 2.0f * reciprocal(exp_lanes(twice) + 1.0f);
  return far < 0.625f ? near_zero : x < 0 ? -positive : positive;
}

// Below -44 the result is that of -44, 8e-20.
GB_INLINE VecF32 sigmoid_lanes(VecF32 x) {
  return reciprocal(1.0f + exp_lanes(x < -44.0f ? splat<VecF32>(44.0f) : -x));
}

// Buffers of one piece of the work: values and adjoints of the steps for some edges.
struct MessageScratch {
  int64_t width, at_a_time, stride;  // edges at a time; floats from one step to the next
  std::vector<float> memory;
  std::vector<int64_t> own, other, edge;  // of each edge: its walked row, the other end, its number
  std::vector<int64_t> none;              // row 0 for each
  std::vector<uint8_t> needed;            // whether a step's adjoint is wanted
  std::vector<uint8_t> begun;             // whether it holds a part already

  MessageScratch(const MessageArgs& a, bool has_adjoints) : width(a.walk.width) {
    at_a_time = std::max<int64_t>(1, kNumbersAtATime / width);
    stride = (at_a_time * width + GB_LANES_F32 - 1) / GB_LANES_F32 * GB_LANES_F32;
    memory.resize(static_cast<size_t>(stride * a.num_steps * (has_adjoints ? 2 : 1)));
    own.resize(static_cast<size_t>(at_a_time));
    other.resize(static_cast<size_t>(at_a_time));
    edge.resize(static_cast<size_t>(at_a_time));
    none.resize(static_cast<size_t>(at_a_time));
    needed.resize(static_cast<size_t>(a.num_steps));
    begun.resize(static_cast<size_t>(a.num_steps));
    for (int i = 0; i < a.num_steps; ++i) {  // the same for all edges
      float* value = this->value(i);
      const int64_t* step = a.steps + 3 * i;
      if (step[0] == static_cast<int64_t>(MessageOp::kNumber)) std::fill(value, value + stride, a.numbers[i]);
      if (step[0] == static_cast<int64_t>(MessageOp::kParameter))
        for (int64_t k = 0; k < at_a_time; ++k)
          std::copy_n(a.parameters + step[1] * width, width, value + k * width);
    }
  }
  float* value(int64_t step) { return memory.data() + step * stride; }
  float* adjoint(int64_t step, int num_steps) { return memory.data() + (num_steps + step) * stride; }
};

template <typename F>
GB_INLINE void each_vector(int64_t count, const F& f) {
  for (int64_t i = 0; i < count; i += GB_LANES_F32) f(i);
}

// out[k, :] = row ids[k] of a matrix.
static void gather_message_rows(const Rows& rows, const int64_t* ids, int64_t n, int64_t width, float* out) {
  const float* from = static_cast<const float*>(rows.data);
  for (int64_t k = 0; k < n; ++k) {
    const float* row = from + ids[k] * rows.stride;
    float* to = out + k * width;
    int64_t c = 0;
    for (; c + GB_LANES_F32 <= width; c += GB_LANES_F32) store(to + c, load(row + c));
    if (c < width) store_n(to + c, load_n(row + c, static_cast<int>(width - c)), static_cast<int>(width - c));
  }
}

// to[own[k], :] += rows[k, :], in the order of k: those of one row in succession are added in registers.
static void add_message_rows(const float* rows, const int64_t* own, int64_t n, int64_t width, float* to) {
  for (int64_t k = 0; k < n;) {
    int64_t end = k + 1;
    while (end < n && own[end] == own[k]) ++end;
    float* out = to + own[k] * width;
    for (int64_t c = 0; c < width; c += GB_LANES_F32) {
      const int lanes = static_cast<int>(std::min<int64_t>(GB_LANES_F32, width - c));
      VecF32 sum = load_n(out + c, lanes);
      for (int64_t e = k; e < end; ++e) sum += load_n(rows + e * width + c, lanes);
      store_n(out + c, sum, lanes);
    }
    k = end;
  }
}

GB_INLINE float sum_of(const float* row, int64_t width) {
  VecF32 sum = {};
  int64_t c = 0;
  for (; c + GB_LANES_F32 <= width; c += GB_LANES_F32) sum += load(row + c);
  if (c < width) sum += load_n(row + c, static_cast<int>(width - c));
  float total = 0;
  for (int l = 0; l < GB_LANES_F32; ++l) total += sum[l];
  return total;
}

// Computes the values of all steps for the n edges whose ends stand in the scratch.
static void message_values(const MessageArgs& a, MessageScratch& s, int64_t n) {
  const int64_t width = s.width, count = n * width;
  const int64_t* sources = a.by_source ? s.own.data() : s.other.data();
  const int64_t* destinations = a.by_source ? s.other.data() : s.own.data();
  for (int i = 0; i < a.num_steps; ++i) {
    const int64_t* step = a.steps + 3 * i;
    float* out = s.value(i);
    const float *x = s.value(step[1]), *y = s.value(step[2]);
    const auto unary = [&](const auto& f) GB_LAMBDA {
      each_vector(count, [&](int64_t c) GB_LAMBDA { store(out + c, f(load(x + c))); });
    };
    const auto binary = [&](const auto& f) GB_LAMBDA {
      each_vector(count, [&](int64_t c) GB_LAMBDA { store(out + c, f(load(x + c), load(y + c))); });
    };
    switch (static_cast<MessageOp>(step[0])) {
      case MessageOp::kSource:
        gather_message_rows(a.sources[step[1]], sources, n, width, out);
        break;
      case MessageOp::kDestination:
        gather_message_rows(a.destinations[step[1]], destinations, n, width, out);
        break;
      case MessageOp::kEdge:
        gather_message_rows(a.edges, s.edge.data(), n, width, out);
        break;
      case MessageOp::kWeight:
        for (int64_t k = 0; k < n; ++k) std::fill_n(out + k * width, width, a.weight[s.edge[k]]);
        break;
      case MessageOp::kParameter:
      case MessageOp::kNumber:
        break;
      case MessageOp::kAdd:
        binary([](VecF32 p, VecF32 q) GB_LAMBDA { return p + q; });
        break;
      case MessageOp::kSubtract:
        binary([](VecF32 p, VecF32 q) GB_LAMBDA { return p - q; });
        break;
      case MessageOp::kMultiply:
        binary([](VecF32 p, VecF32 q) GB_LAMBDA { return p * q; });
        break;
      case MessageOp::kDivide:
        binary([](VecF32 p, VecF32 q) GB_LAMBDA { return p / q; });
        break;
      case MessageOp::kRelu:
        unary([](VecF32 p) GB_LAMBDA { return p < 0 ? VecF32{} : p; });
        break;
      case MessageOp::kLeakyRelu: {
        const float slope = a.numbers[i];
        unary([slope](VecF32 p) GB_LAMBDA { return p < 0 ? p * slope : p; });
        break;
      }
      case MessageOp::kSigmoid:
        unary([](VecF32 p) GB_LAMBDA { return sigmoid_lanes(p); });
        break;
      case MessageOp::kTanh:
        unary([](VecF32 p) GB_LAMBDA { return tanh_lanes(p); });
        break;
      case MessageOp::kExp:
        unary([](VecF32 p) GB_LAMBDA { return exp_or_infinity(p); });
        break;
      case MessageOp::kAbs:
        unary([](VecF32 p) GB_LAMBDA { return magnitude(p); });
        break;
      case MessageOp::kSumColumns:
        for (int64_t k = 0; k < n; ++k) std::fill_n(out + k * width, width, sum_of(x + k * width, width));
        break;
    }
  }
}

// Adds each step's adjoint to those of what it reads, from the last step back.
static void message_adjoints(const MessageArgs& a, MessageScratch& s, int64_t n) {
  const int64_t width = s.width, count = n * width;
  for (int i = a.num_steps - 1; i >= 0; --i) {
    if (!s.needed[i] || !s.begun[i]) continue;  // nothing reads it on the way to the message
    const int64_t* step = a.steps + 3 * i;
    const float *out = s.value(i), *x = s.value(step[1]), *y = s.value(step[2]);
    const float* grad = s.adjoint(i, a.num_steps);
    const int64_t to_x = step[1], to_y = step[2];
    const auto give = [&](int64_t to_step, const auto& f) GB_LAMBDA {
      float* to = s.adjoint(to_step, a.num_steps);
      if (s.begun[to_step])
        each_vector(count, [&](int64_t c) GB_LAMBDA { store(to + c, load(to + c) + f(c, load(grad + c))); });
      else
        each_vector(count, [&](int64_t c) GB_LAMBDA { store(to + c, f(c, load(grad + c))); });
      s.begun[to_step] = 1;
    };
    const MessageOp op = static_cast<MessageOp>(step[0]);
    const bool is_binary = op >= MessageOp::kAdd && op <= MessageOp::kDivide;
    const bool gives_x = op >= MessageOp::kAdd && s.needed[step[1]], gives_y = is_binary && s.needed[step[2]];
    switch (op) {
      case MessageOp::kAdd:
        if (gives_x) give(to_x, [](int64_t, VecF32 g) GB_LAMBDA { return g; });
        if (gives_y) give(to_y, [](int64_t, VecF32 g) GB_LAMBDA { return g; });
        break;
      case MessageOp::kSubtract:
        if (gives_x) give(to_x, [](int64_t, VecF32 g) GB_LAMBDA { return g; });
        if (gives_y) give(to_y, [](int64_t, VecF32 g) GB_LAMBDA { return -g; });
        break;
      case MessageOp::kMultiply:
        if (gives_x) give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA { return g * load(y + c); });
        if (gives_y) give(to_y, [&](int64_t c, VecF32 g) GB_LAMBDA { return g * load(x + c); });
        break;
      case MessageOp::kDivide:
        if (gives_x) give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA { return g / load(y + c); });
        if (gives_y)
          give(to_y, [&](int64_t c, VecF32 g) GB_LAMBDA { return -g * load(out + c) / load(y + c); });
        break;
      case MessageOp::kRelu:
        if (gives_x)
          give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA { return load(out + c) <= 0 ? VecF32{} : g; });
        break;
      case MessageOp::kLeakyRelu: {
        const float slope = a.numbers[i];
        if (gives_x)
          give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA { return load(x + c) > 0 ? g : g * slope; });
        break;
      }
      case MessageOp::kSigmoid:
        if (gives_x)
          give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA {
            const VecF32 p = load(out + c);
            return g * (1.0f - p) * p;
          });
        break;
      case MessageOp::kTanh:
        if (gives_x)
          give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA {
            const VecF32 p = load(out + c);
            return g * (1.0f - p * p);
          });
        break;
      case MessageOp::kExp:
        if (gives_x) give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA { return g * load(out + c); });
        break;
      case MessageOp::kAbs:
        if (gives_x)
          give(to_x, [&](int64_t c, VecF32 g) GB_LAMBDA {
            const VecF32 p = load(x + c);
            return p > 0 ? g : p < 0 ? -g : VecF32{};
          });
        break;
      case MessageOp::kSumColumns:
        if (gives_x) {
          // Behind what it was computed from, its value serves to spread the sums.
          float* spread = s.value(i);
          for (int64_t k = 0; k < n; ++k)
            std::fill_n(spread + k * width, width, sum_of(grad + k * width, width));
          give(to_x, [&](int64_t c, VecF32) GB_LAMBDA { return load(spread + c); });
        }
        break;
      default:
        break;
    }
  }
}

// Asks for the rows at the other ends of some edges.
static void prefetch_messages(const MessageArgs& a, int64_t first, int64_t last) {
  for (int64_t e = first; e < last; ++e) {
    const int64_t other = node_at(a.walk, e);
    for (const Rows& rows : a.by_source ? a.destinations : a.sources) {
      if (!rows.data) continue;
      const float* row = static_cast<const float*>(rows.data) + other * rows.stride;
      for (int64_t c = 0; c < a.walk.width; c += 16) __builtin_prefetch(row + c);
    }
  }
}

// visit(number of edges, first edge of the walk) for the edges of some rows, whose ends stand in the scratch.
template <typename Visit>
GB_INLINE void over_messages(const MessageArgs& a, MessageScratch& s, int64_t first_row, int64_t last_row,
                             const Visit& visit) {
  const int64_t* indptr = a.walk.indptr;
  int64_t row = first_row;
  const int64_t end = indptr[last_row];
  for (int64_t e = indptr[first_row]; e < end; e += s.at_a_time) {
    const int64_t n = std::min(s.at_a_time, end - e);
    for (int64_t k = 0; k < n; ++k) {
      while (indptr[row + 1] <= e + k) ++row;
      s.own[k] = row;
      s.other[k] = node_at(a.walk, e + k);
      s.edge[k] = a.perm ? a.perm[e + k] : e + k;
    }
    prefetch_messages(a, e + n, std::min(e + 2 * n, end));
    message_values(a, s, n);
    visit(n, e);
  }
}

// body(piece, first row, last row) for pieces of about equal work, whose number depends on the graph alone.
template <typename Body>
void over_pieces(const MessageArgs& a, const Body& body) {
  constexpr int64_t kRowCost = 4, kEdgesOfAPiece = 4096, kMostPieces = 256;
  const int64_t rows = a.walk.num_dst, work = a.walk.num_edges + rows * kRowCost;
  const int64_t pieces = std::clamp<int64_t>(work / kEdgesOfAPiece, 1, kMostPieces);
  parallel_dynamic(pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const auto row_of = [&](int64_t p) {
        return p == pieces ? rows : row_at_work(a.walk.indptr, rows, kRowCost, work * p / pieces);
      };
      const int64_t begin = row_of(piece), end = row_of(piece + 1);
      if (begin < end) body(piece, begin, end);
    }
  });
}

// out[c], count[c] after one more message.
GB_INLINE void select_message(const float* message, int64_t width, bool least, float* out, int32_t* count) {
  for (int64_t c = 0; c < width; ++c) {
    const float m = message[c], o = out[c];
    const bool better = least ? m < o : m > o;
    count[c] = m != m ? 0 : better ? 1 : count[c] + (m == o);
    out[c] = better || m != m ? m : o;
  }
}

void message_forward(const MessageForwardArgs& a) {
  const int64_t width = a.walk.width;
  over_pieces(a, [&](int64_t, int64_t begin, int64_t end) {
    MessageScratch s(a, false);
    const bool selects = a.reduction != MessageReduction::kSum, least = a.reduction == MessageReduction::kMin;
    std::fill(a.out + begin * width, a.out + end * width, 0.0f);
    if (selects) std::fill(a.count + begin * width, a.count + end * width, 0);
    const float* message = s.value(a.num_steps - 1);
    over_messages(a, s, begin, end, [&](int64_t n, int64_t e) {
      if (!selects) return add_message_rows(message, s.own.data(), n, width, a.out);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t v = s.own[k];
        const float* from = message + k * width;
        float* out = a.out + v * width;
        if (e + k == a.walk.indptr[v]) {
          std::copy_n(from, width, out);
          for (int64_t c = 0; c < width; ++c) a.count[v * width + c] = from[c] == from[c];
        } else
          select_message(from, width, least, out, a.count + v * width);
      }
    });
  });
}

void message_backward(const MessageBackwardArgs& a) {
  const int64_t width = a.walk.width, of_parameters = a.num_parameters * width;
  std::vector<std::vector<float>> sums(a.grad_parameters ? 256 : 0);
  const auto is = [&](int i, MessageOp op) { return a.steps[3 * i] == static_cast<int64_t>(op); };
  over_pieces(a, [&](int64_t piece, int64_t begin, int64_t end) {
    MessageScratch s(a, true);
    if (a.grad_parameters) sums[static_cast<size_t>(piece)].assign(static_cast<size_t>(of_parameters), 0.0f);
    const MessageOp walked = a.by_source ? MessageOp::kSource : MessageOp::kDestination;
    for (int i = 0; i < a.num_steps; ++i) {
      const int64_t* step = a.steps + 3 * i;
      if (step[0] < static_cast<int64_t>(MessageOp::kAdd))
        s.needed[i] =
            (is(i, walked) && a.grads[step[1]]) || (is(i, MessageOp::kParameter) && a.grad_parameters);
      else
        s.needed[i] =
            s.needed[step[1]] || (step[0] <= static_cast<int64_t>(MessageOp::kDivide) && s.needed[step[2]]);
    }
    const int last = a.num_steps - 1;
    if (!s.needed[last]) return;
    over_messages(a, s, begin, end, [&](int64_t n, int64_t) {
      std::fill(s.begun.begin(), s.begun.end(), 0);
      s.begun[last] = 1;
      const int64_t* destinations = a.by_source ? s.other.data() : s.own.data();
      float* seed = s.adjoint(last, a.num_steps);
      gather_message_rows({a.grad, width}, destinations, n, width, seed);
      if (a.largest) {
        const float* message = s.value(last);
        for (int64_t k = 0; k < n; ++k) {
          const float* largest = a.largest + destinations[k] * width;
          for (int64_t c = 0; c < width; ++c)
            if (message[k * width + c] != largest[c]) seed[k * width + c] = 0;
        }
      }
      message_adjoints(a, s, n);
      for (int i = 0; i <= last; ++i) {
        if (!s.needed[i] || !s.begun[i]) continue;
        const int64_t at = a.steps[3 * i + 1];
        const float* grad = s.adjoint(i, a.num_steps);
        if (is(i, walked)) add_message_rows(grad, s.own.data(), n, width, a.grads[at]);
        if (is(i, MessageOp::kParameter)) {
          float* sum = sums[static_cast<size_t>(piece)].data() + at * width;
          add_message_rows(grad, s.none.data(), n, width, sum);
        }
      }
    });
  });
  if (a.grad_parameters) {
    std::fill_n(a.grad_parameters, of_parameters, 0.0f);
    for (const std::vector<float>& piece : sums)
      for (size_t c = 0; c < piece.size(); ++c) a.grad_parameters[c] += piece[c];
  }
}

}  // namespace gb::GB_VARIANT
