// Messages made of elementwise steps, reduced over in-neighbours, and their gradients:
//
//   sources, destinations (num_src or num_dst, width), edges (num_edges, width)
//     --- steps for each edge, then the reduction over v's edges --->  out (num_dst, width)
//
// An edge's steps run one after the other on some columns at a time, which stay in registers from step to
// step. Rows of matrices are read in place, and each row's sums stay in the first-level cache. So no row per
// edge is written to memory. A gradient is another list of steps, written by ops/message_steps.py: it walks
// v's edges for the destinations' gradients, and u's edges, those of the transpose, for the sources'. A sum's
// terms are added in the order of the walk. Sums over all edges are added piece by piece, and the pieces do
// not depend on the number of threads.
//
// Rows may be narrow, with one number for each head: sums over a head's columns, and rows computed from
// these.
//
// Bound by reading num_edges rows per matrix whose rows are not walked, or by arithmetic: an exponential
// takes about as long as reading ten numbers. Arguments: messages.h.

namespace gb::GB_VARIANT {

#include "variants/exp.inl"

// exp up to the largest float, as PyTorch's; exp_lanes may stop at exp(88). Above 80 it is exp(x - 1) * e.
GB_INLINE VecF32 exp_or_infinity(VecF32 x) {
  const VecF32 one = splat<VecF32>(1.0f), factor = x > 80.0f ? splat<VecF32>(2.718281828f) : one;
  const VecF32 found = exp_lanes(x > 80.0f ? x - 1.0f : x) * factor;
  return x > 88.722839f ? splat<VecF32>(INFINITY) : found;
}
GB_INLINE VecF32 magnitude(VecF32 x) { return x < 0 ? -x : x; }

// 1 / x for x in [1, 2^64], within 1 ulp: an estimate and a step of Newton's method, since a division takes
// as long as an exponential.
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

// Addresses of the rows that an edge's steps read and write.
struct MessageRows {
  std::vector<const float*> at;  // by step: its row for this edge
  std::vector<float*> to;        // by result: the walked row's
  std::vector<int32_t*> count;   // by result: of a maximum or minimum
  std::vector<float*> terms;     // by result: the sums of a LogSumExp
  std::vector<float> number;     // by step: the edge's number
};

// Runs an edge's elementwise steps on the n columns from `column` on. n fills NV vectors, or is less than
// one.
template <int NV, bool Whole>
__attribute__((noinline)) void run_steps(const std::vector<MessageInstruction>& code, const MessageRows& rows,
                                         int64_t column, int n) {
  constexpr int L = GB_LANES_F32;
  static_assert(Whole || NV == 1);
  const auto get = [&](const auto* from, int i) GB_LAMBDA {
    if constexpr (Whole) return load(from + i * L);
    return load_n(from, n);
  };
  const auto put = [&](auto* to, int i, auto value) GB_LAMBDA {
    if constexpr (Whole) return store(to + i * L, value);
    store_n(to, value, n);
  };
  VecF32 held[NV] = {};
  const MessageInstruction *it = code.data(), *end = it + code.size();
  for (; it != end; ++it) {
    const auto unary = [&](const auto& f)
                           GB_LAMBDA { unroll<NV>([&](auto i) GB_LAMBDA { held[i] = f(held[i]); }); };
    const auto binary = [&](const auto& f) GB_LAMBDA {
      const float* other = rows.at[static_cast<size_t>(it->step)] + column;
      unroll<NV>([&](auto i) GB_LAMBDA { held[i] = f(held[i], get(other, i)); });
    };
    const auto select = [&](const auto& is_better) GB_LAMBDA {
      float* best = rows.to[static_cast<size_t>(it->step)] + column;
      int32_t* count = rows.count[static_cast<size_t>(it->step)] + column;
      unroll<NV>([&](auto i) GB_LAMBDA {
        const VecF32 m = held[i], old = get(best, i);
        const VecI32 shared = get(count, i), equal = m == old, better = is_better(m, old), none = m != m;
        put(best, i, (better | none) != 0 ? m : old);
        // A lane of `equal` is -1 where it holds, so that subtracting it counts one more.
        put(count, i, none != 0 ? VecI32{} : better != 0 ? splat<VecI32>(1) : shared - equal);
      });
    };
    switch (it->code) {
      case static_cast<int>(MessageOp::kAdd):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p + q; });
        break;
      case static_cast<int>(MessageOp::kSubtract):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p - q; });
        break;
      case kReverseSubtract:
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return q - p; });
        break;
      case static_cast<int>(MessageOp::kMultiply):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p * q; });
        break;
      case static_cast<int>(MessageOp::kDivide):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p / q; });
        break;
      case kReverseDivide:
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return q / p; });
        break;
      case static_cast<int>(MessageOp::kReluGradient):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return q <= 0 ? VecF32{} : p; });
        break;
      case static_cast<int>(MessageOp::kLeakyReluGradient):
        binary([&, slope = it->number](VecF32 p, VecF32 q) GB_LAMBDA { return q > 0 ? p : p * slope; });
        break;
      case static_cast<int>(MessageOp::kSigmoidGradient):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p * (1.0f - q) * q; });
        break;
      case static_cast<int>(MessageOp::kTanhGradient):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p * (1.0f - q * q); });
        break;
      case static_cast<int>(MessageOp::kAbsGradient):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return q > 0 ? p : q < 0 ? -p : VecF32{}; });
        break;
      case static_cast<int>(MessageOp::kEqual):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return p == q ? splat<VecF32>(1.0f) : VecF32{}; });
        break;
      case static_cast<int>(MessageOp::kWhere):
        binary([&](VecF32 p, VecF32 q) GB_LAMBDA { return q == 0 ? VecF32{} : p; });
        break;
      case static_cast<int>(MessageOp::kRelu):
        unary([&](VecF32 p) GB_LAMBDA { return p < 0 ? VecF32{} : p; });
        break;
      case static_cast<int>(MessageOp::kLeakyRelu):
        unary([&, slope = it->number](VecF32 p) GB_LAMBDA { return p < 0 ? p * slope : p; });
        break;
      case static_cast<int>(MessageOp::kSigmoid):
        unary([&](VecF32 p) GB_LAMBDA { return sigmoid_lanes(p); });
        break;
      case static_cast<int>(MessageOp::kTanh):
        unary([&](VecF32 p) GB_LAMBDA { return tanh_lanes(p); });
        break;
      case static_cast<int>(MessageOp::kExp):
        unary([&](VecF32 p) GB_LAMBDA { return exp_or_infinity(p); });
        break;
      case static_cast<int>(MessageOp::kAbs):
        unary([&](VecF32 p) GB_LAMBDA { return magnitude(p); });
        break;
      case kLoad: {
        const float* from = rows.at[static_cast<size_t>(it->step)] + column;
        unroll<NV>([&](auto i) GB_LAMBDA { held[i] = get(from, i); });
        break;
      }
      case kStore: {  // to scratch, which is padded to whole vectors, so the tail is stored whole
        float* to = const_cast<float*>(rows.at[static_cast<size_t>(it->step)]) + column;
        unroll<NV>([&](auto i) GB_LAMBDA { store(to + i * L, held[i]); });
        break;
      }
      case kScale:
        unary([&, by = rows.number[static_cast<size_t>(it->scale)]](VecF32 p) GB_LAMBDA { return p * by; });
        break;
      case kAddScaled:
        binary([&, by = rows.number[static_cast<size_t>(it->scale)]](VecF32 p, VecF32 q)
                   GB_LAMBDA { return p + q * by; });
        break;
      case kScaledResult: {
        float* sum = rows.to[static_cast<size_t>(it->step)] + column;
        const float by = rows.number[static_cast<size_t>(it->scale)];
        unroll<NV>([&](auto i) GB_LAMBDA { put(sum, i, get(sum, i) + held[i] * by); });
        break;
      }
      case kResult + static_cast<int>(MessageResult::kSum):
      case kResult + static_cast<int>(MessageResult::kOverAll): {
        float* sum = rows.to[static_cast<size_t>(it->step)] + column;
        unroll<NV>([&](auto i) GB_LAMBDA { put(sum, i, get(sum, i) + held[i]); });
        break;
      }
      case kResult + static_cast<int>(MessageResult::kMax):
        select([&](VecF32 m, VecF32 old) GB_LAMBDA { return m > old; });
        break;
      case kResult + static_cast<int>(MessageResult::kMin):
        select([&](VecF32 m, VecF32 old) GB_LAMBDA { return m < old; });
        break;
      case kResult + static_cast<int>(MessageResult::kLogSumExp): {
        float* most = rows.to[static_cast<size_t>(it->step)] + column;
        float* sum = rows.terms[static_cast<size_t>(it->step)] + column;
        unroll<NV>([&](auto i) GB_LAMBDA {
          const VecF32 old = get(most, i), m = held[i], top = m > old || m != m ? m : old;
          const VecF32 shift = top == -INFINITY ? VecF32{} : top;  // -inf less -inf would be NaN
          put(sum, i, get(sum, i) * exp_lanes(old - shift) + exp_lanes(m - shift));
          put(most, i, top);
        });
        break;
      }
      default:
        break;
    }
  }
}

// All columns of an edge's elementwise steps.
GB_INLINE void run_columns(const std::vector<MessageInstruction>& code, const MessageRows& rows,
                           int64_t columns) {
  constexpr int L = GB_LANES_F32;
  if (code.empty()) return;
  int64_t c = 0;
  for (; c + 4 * L <= columns; c += 4 * L) run_steps<4, true>(code, rows, c, 4 * L);
  if (c + 2 * L <= columns) {
    run_steps<2, true>(code, rows, c, 2 * L);
    c += 2 * L;
  }
  if (c + L <= columns) {
    run_steps<1, true>(code, rows, c, L);
    c += L;
  }
  if (c < columns) run_steps<1, false>(code, rows, c, static_cast<int>(columns - c));
}

GB_INLINE float sum_of(const float* row, int64_t n) {
  VecF32 sum = {};
  int64_t c = 0;
  for (; c + GB_LANES_F32 <= n; c += GB_LANES_F32) sum += load(row + c);
  if (c < n) sum += load_n(row + c, static_cast<int>(n - c));
  return sum_lanes(sum);
}

// One thread's rows, and the walk over edges.
class MessageWalk {
 public:
  explicit MessageWalk(const MessageArgs& a)
      : a_(a), channels_(a.walk.width / a.heads), stride_((a.walk.width + kPad - 1) / kPad * kPad) {
    const auto steps = static_cast<size_t>(a.num_steps);
    scratch_.assign(static_cast<size_t>(stride_) * steps, 0.0f);
    rows_.at.assign(steps, scratch_.data());
    for (const int i : a.stored) rows_.at[static_cast<size_t>(i)] = own(i);
    for (int i = 0; i < a.num_steps; ++i) {
      const int64_t* step = a.steps + 4 * i;
      if (step[0] == static_cast<int64_t>(MessageOp::kNumber)) {
        std::fill_n(own(i), stride_, a.numbers[i]);
        rows_.at[static_cast<size_t>(i)] = own(i);
      } else if (step[0] == static_cast<int64_t>(MessageOp::kParameter)) {
        rows_.at[static_cast<size_t>(i)] = a.parameters + step[1] * a.walk.width;
      } else if (step[0] == static_cast<int64_t>(MessageOp::kWeight)) {
        rows_.at[static_cast<size_t>(i)] = own(i);
        numbers_.emplace_back(i, -1);
      } else if (step[0] == static_cast<int64_t>(MessageOp::kEdgeNumber)) {
        rows_.at[static_cast<size_t>(i)] = own(i);
        numbers_.emplace_back(i, step[1]);
      }
    }
    for (const MessageLeaf& leaf : a.reached) {
      bool is_new = true;
      for (const MessageLeaf& one : fetched_) is_new = is_new && one.rows.data != leaf.rows.data;
      if (is_new) fetched_.push_back(leaf);
    }
    int64_t lines = 0;
    for (const MessageLeaf& leaf : fetched_) lines += (leaf.columns + 15) / 16;
    if (a.perm)
      for (const MessageLeaf& leaf : a.of_edges) lines += (leaf.columns + 15) / 16;
    ahead_ = prefetch_distance(static_cast<int>(std::clamp<int64_t>(lines, 1, kLinesAhead)));
    rows_.number.resize(steps);
    rows_.to.resize(a.results.size());
    rows_.terms.resize(a.results.size());
    rows_.count.resize(a.results.size());
    not_asked_.resize(a.results.size() * static_cast<size_t>(stride_));
  }

  // Runs the rows [first, last). over_all: for each result over all edges, the sum that these edges add to.
  void run(int64_t first, int64_t last, const std::vector<float*>& over_all) {
    const int64_t* indptr = a_.walk.indptr;
    const int64_t end = indptr[last];
    for (int64_t v = first; v < last; ++v) {
      begin_row(v, over_all);
      for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
        if (e + ahead_ < end) fetch(e + ahead_);
        run_edge(e);
      }
      finish_row(indptr[v] == indptr[v + 1]);
    }
  }

 private:
  static constexpr int64_t kPad = 4 * GB_LANES_F32;

  float* own(int i) { return scratch_.data() + i * stride_; }

  static const float* row_of(const MessageLeaf& leaf, int64_t i) {
    return static_cast<const float*>(leaf.rows.data) + i * leaf.rows.stride;
  }

  void begin_row(int64_t v, const std::vector<float*>& over_all) {
    for (const MessageLeaf& leaf : a_.walked) rows_.at[static_cast<size_t>(leaf.step)] = row_of(leaf, v);
    for (size_t r = 0; r < a_.results.size(); ++r) {
      const MessageArgs::Result& result = a_.results[r];
      float*& to = rows_.to[r];
      to = result.kind == MessageResult::kOverAll ? over_all[r] : result.to + v * result.columns;
      if (result.kind == MessageResult::kSum && !a_.adds) std::fill_n(to, result.columns, 0.0f);
      if (result.kind == MessageResult::kMax || result.kind == MessageResult::kMin) {
        std::fill_n(to, result.columns, result.kind == MessageResult::kMax ? -INFINITY : INFINITY);
        int32_t* spare = not_asked_.data() + static_cast<int64_t>(r) * stride_;
        rows_.count[r] = result.count ? result.count + v * result.counted : spare;
        std::fill_n(rows_.count[r], result.columns, 0);
      }
      if (result.kind == MessageResult::kLogSumExp) {
        std::fill_n(to, result.columns, -INFINITY);
        rows_.terms[r] = result.logs + v * result.columns;
        std::fill_n(rows_.terms[r], result.columns, 0.0f);
      }
    }
  }

  void finish_row(bool is_empty) {
    for (size_t r = 0; r < a_.results.size(); ++r) {
      const MessageArgs::Result& result = a_.results[r];
      float* to = rows_.to[r];
      if (is_empty && result.kind != MessageResult::kSum && result.kind != MessageResult::kOverAll)
        std::fill_n(to, result.columns, 0.0f);
      else if (result.kind == MessageResult::kLogSumExp)
        for (int64_t c = 0; c < result.columns; c += GB_LANES_F32) {
          const int n = static_cast<int>(std::min<int64_t>(GB_LANES_F32, result.columns - c));
          store_n(rows_.terms[r] + c, log_lanes(load_n(rows_.terms[r] + c, n)), n);
        }
    }
  }

  // Inlined: GCC takes a function that only prefetches for one without effect, and drops its calls.
  GB_INLINE void fetch(int64_t e) const {
    const int64_t other = node_at(a_.walk, e);
    for (const MessageLeaf& leaf : fetched_) {
      const float* row = row_of(leaf, other);
      for (int64_t c = 0; c < leaf.columns; c += 16) __builtin_prefetch(row + c, 0, kSecondLevel);
    }
    if (a_.perm) {
      for (const MessageLeaf& leaf : a_.of_edges) {
        const float* row = row_of(leaf, a_.perm[e]);
        for (int64_t c = 0; c < leaf.columns; c += 16) __builtin_prefetch(row + c, 0, kSecondLevel);
      }
      if (a_.edges.data != nullptr)
        __builtin_prefetch(static_cast<const float*>(a_.edges.data) + a_.perm[e] * a_.edges.stride, 0,
                           kSecondLevel);
    }
  }

  void run_edge(int64_t e) {
    const int64_t other = node_at(a_.walk, e);
    for (const MessageLeaf& leaf : a_.reached) rows_.at[static_cast<size_t>(leaf.step)] = row_of(leaf, other);
    if (!a_.of_edges.empty() || !numbers_.empty()) {
      const int64_t edge = a_.perm ? a_.perm[e] : e;
      for (const MessageLeaf& leaf : a_.of_edges)
        rows_.at[static_cast<size_t>(leaf.step)] = row_of(leaf, edge);
      const float* of_edge = static_cast<const float*>(a_.edges.data) + edge * a_.edges.stride;
      for (const auto& [i, column] : numbers_)
        rows_.number[static_cast<size_t>(i)] = column < 0 ? a_.weight[edge] : of_edge[column];
      for (const int i : a_.filled) std::fill_n(own(i), a_.walk.width, rows_.number[static_cast<size_t>(i)]);
    }
    for (const MessagePhase& phase : a_.phases) {
      for (const int i : phase.reshaped) reshape(i);
      run_columns(phase.narrow, rows_, a_.heads);
      run_columns(phase.wide, rows_, a_.walk.width);
    }
  }

  // Sums each head's columns, or spreads its number over them.
  void reshape(int i) {
    const int64_t* step = a_.steps + 4 * i;
    const float* from = rows_.at[static_cast<size_t>(step[1])];
    float* to = own(i);
    if (step[0] == static_cast<int64_t>(MessageOp::kSumColumns))
      for (int64_t h = 0; h < a_.heads; ++h) to[h] = sum_of(from + h * channels_, channels_);
    else
      for (int64_t h = 0; h < a_.heads; ++h) std::fill_n(to + h * channels_, channels_, from[h]);
  }

  const MessageArgs& a_;
  int64_t channels_, stride_;  // of a head; floats from one scratch row to the next
  std::vector<float> scratch_;
  std::vector<int32_t> not_asked_;  // a row of counts for each result, where counts go that nobody asked for
  MessageRows rows_;
  std::vector<std::pair<int, int64_t>>
      numbers_;                       // leaves that are an edge's number, and its column; -1: weight
  std::vector<MessageLeaf> fetched_;  // matrices whose rows of the other end are prefetched, each once
  int64_t ahead_;                     // how many edges ahead rows are prefetched
};

void reduce_messages(const MessageArgs& a) {
  // Pieces of about equal work, whose number depends on the graph alone.
  constexpr int64_t kRowCost = 4, kEdgesOfAPiece = 4096, kMostPieces = 256;
  const int64_t rows = a.walk.num_dst, work = a.walk.num_edges + rows * kRowCost, width = a.walk.width;
  const int64_t pieces = std::clamp<int64_t>(work / kEdgesOfAPiece, 1, kMostPieces);
  int64_t num_sums = 0;
  for (const MessageArgs::Result& result : a.results) num_sums += result.kind == MessageResult::kOverAll;
  std::vector<float> sums(static_cast<size_t>(pieces * num_sums * width), 0.0f);
  parallel_dynamic(pieces, 1, [&](int64_t first, int64_t last) {
    MessageWalk walk(a);
    for (int64_t piece = first; piece < last; ++piece) {
      const auto row_of = [&](int64_t p) {
        return p == pieces ? rows : row_at_work(a.walk.indptr, rows, kRowCost, work * p / pieces);
      };
      std::vector<float*> over_all(a.results.size());
      float* next = sums.data() + piece * num_sums * width;
      for (size_t r = 0; r < a.results.size(); ++r)
        if (a.results[r].kind == MessageResult::kOverAll) {
          over_all[r] = next;
          next += width;
        }
      walk.run(row_of(piece), row_of(piece + 1), over_all);
    }
  });
  int64_t place = 0;
  for (const MessageArgs::Result& result : a.results) {
    if (result.kind != MessageResult::kOverAll) continue;
    std::fill_n(result.to, result.columns, 0.0f);
    for (int64_t piece = 0; piece < pieces; ++piece)
      for (int64_t c = 0; c < result.columns; ++c)
        result.to[c] += sums[static_cast<size_t>((piece * num_sums + place) * width + c)];
    ++place;
  }
}

}  // namespace gb::GB_VARIANT
