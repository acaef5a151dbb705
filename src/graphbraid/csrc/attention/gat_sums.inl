// GAT that sums before it multiplies: all heads read one row of a source, which no weight has mapped.
//
//   x          (num_src, channels)            sums   (num_dst, heads * channels)
//   src_logit  (num_src, heads)       --->    alpha  (num_edges + num_loops, heads), for backward, or null
//   dst_logit  (num_dst, heads)
//
//   sums[v, h, :] = sum of mask[e, h] * alpha[e, h] * x[u, :] over the edges e = u -> v
//
// alpha has the coefficients before dropout, the implicit self-loops' last. Those of edges with z <= 0 are
// negated, so that they tell the slope of the leaky ReLU, too. The formulas of z and alpha stand in
// attention.inl. Backward, in one walk over the rows of the transpose:
//
//   grad       (num_dst, heads * channels): of sums       grad_src         (num_src, channels), or null
//   att        (heads, channels)                   --->   grad_src_logit   (num_src, heads)
//   x, sums, alpha                                        grad_dst_logit   (num_dst, heads)
//                                                         grad_edge_logit  (num_edges + num_loops, heads)
//
//   g[e, h]        = leaky'(z) * alpha * (mask * <grad[v, h, :], x[u, :]> - <grad[v, h, :], sums[v, h, :]>)
//   grad_src[u, :] = sum of mask * alpha * grad[v, h, :] over u's out-edges and heads
//                    + sum over heads of grad_src_logit[u, h] * att[h, :]
//
// grad_edge_logit is g. The logits' gradients are its sums by source and by destination. att has the vectors
// whose products with x are src_logit. That the logits of destinations depend on x, too, is left to the
// caller.
//
// Float32 only. Bound by multiplications: forward reads num_edges rows of x, backward num_edges rows of grad.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"

// Calls tile(heads, nv, first head, first column, columns) for some heads and columns of a row at a time.
// heads and nv, the number of vectors, are constants; `columns` is a constant too if they are full.
template <int MostHeads, int MostVectors, typename Tile>
GB_INLINE void shared_tiles(int64_t heads, int64_t width, const Tile& tile) {
  constexpr int64_t L = kLanes<float>;
  const auto of_heads = [&](auto count, int64_t head) GB_LAMBDA {
    int64_t c = 0;
    for (; c + MostVectors * L <= width; c += MostVectors * L)
      tile(count, std::integral_constant<int, MostVectors>{}, head, c, std::integral_constant<int, L>{});
    for (; c + L <= width; c += L)
      tile(count, std::integral_constant<int, 1>{}, head, c, std::integral_constant<int, L>{});
    if (c < width) tile(count, std::integral_constant<int, 1>{}, head, c, static_cast<int>(width - c));
  };
  int64_t head = 0;
  for (; head + MostHeads <= heads; head += MostHeads)
    of_heads(std::integral_constant<int, MostHeads>{}, head);
  if constexpr (MostHeads > 1)
    for (; head < heads; ++head) of_heads(std::integral_constant<int, 1>{}, head);
}

// Coefficients of the edges into `value`, before dropout, and z into `above`.
inline void shared_coefficients(const Coefficients<float>& k, EdgeRows<float>& rows, Buffer<float>& tops,
                                Buffer<float>& totals) {
  const int64_t size = rows.rows * k.a.heads;
  tops.reserve(size + kLanes<float>);
  totals.reserve(size + kLanes<float>);
  float *value = rows.value.data(), *z = rows.above.data();
  fixed_heads<float>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < rows.count; ++i) {
      if (i + kEdgesAhead < rows.known) __builtin_prefetch(k.src_logit + rows.nodes[i + kEdgesAhead] * heads);
      const float *left = k.src_logit + rows.nodes[i] * heads, *right = k.dst_logit + rows.of[i] * heads;
      const float* own = k.edge_logit ? k.edge_logit + rows.places[i] * heads : nullptr;
      each_head<float>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        auto sum = get(left + h, n) + get(right + h, n);
        if (own) sum += get(own + h, n);
        put(z + i * heads + h, sum, n);
      });
    }
  });
  each_vector<float>(rows.count * k.a.heads,
                     [&](int64_t at) GB_LAMBDA { store(value + at, k.leaky(load(z + at))); });
  softmax_powers(k.a.heads, rows, value, tops.data());
  add_edges<1>(k.a.heads, rows, {value}, {totals.data()});
  for (int64_t i = 0; i < size; ++i) totals[i] = 1 / totals[i];
  fixed_heads<float>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < rows.count; ++i) {
      const float* scale = totals.data() + (rows.of[i] - rows.first) * heads;
      each_head<float>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        put(value + i * heads + h, get(value + i * heads + h, n) * get(scale + h, n), n);
      });
    }
  });
}

// Writes the sums of x's rows by `value`.
inline void shared_sums(const SummedRows<float>& x, int64_t heads, const EdgeRows<float>& rows, float* to) {
  constexpr int most_heads = 4, most_vectors = GB_LANES_F32 == 16 ? 4 : 2;  // sums that the registers hold
  shared_tiles<most_heads, most_vectors>(
      heads, x.width, [&](auto count, auto nv, int64_t head, int64_t column, auto n) GB_LAMBDA {
        constexpr int H = decltype(count)::value, NV = decltype(nv)::value;
        constexpr int64_t L = kLanes<float>;
        const int64_t distance = x.distance(), known = head + column == 0 ? rows.known : 0;
        int64_t i = 0;
        for (int64_t r = 0; r < rows.rows; ++r) {
          VecF32 sum[H][NV] = {};
          for (const int64_t end = rows.ends[r]; i < end; ++i) {
            if (i + distance < known) x.prefetch(rows.nodes[i + distance]);
            const float *from = x[rows.nodes[i]] + column, *by = rows.value.data() + i * heads + head;
            VecF32 part[NV];
            unroll<NV>([&](auto s) GB_LAMBDA { part[s] = get(from + s * L, n); });
            unroll<H>([&](auto h) GB_LAMBDA {
              const VecF32 factor = splat<VecF32>(by[h]);
              unroll<NV>([&](auto s) GB_LAMBDA { sum[h][s] += factor * part[s]; });
            });
          }
          float* out = to + (r * heads + head) * x.width + column;
          unroll<H>([&](auto h) GB_LAMBDA {
            unroll<NV>([&](auto s) GB_LAMBDA { put(out + h * x.width + s * L, sum[h][s], n); });
          });
        }
      });
}

void gat_sums(const AttentionArgs& a) {
  const Coefficients<float> k{a, static_cast<const float*>(a.src_logit),
                              static_cast<const float*>(a.dst_logit), static_cast<const float*>(a.edge_logit),
                              true};
  const SummedRows<float> x{static_cast<const float*>(a.src), a.channels};
  const RowGroups groups(a.indptr, x.bytes());
  parallel_rows(a.indptr, a.num_dst, a.heads * ((x.bytes() + 63) / 64), [&](int64_t first, int64_t last) {
    EdgeRows<float> rows;
    Buffer<float> tops, totals;
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
      shared_coefficients(k, rows, tops, totals);
      const float *value = rows.value.data(), *z = rows.above.data();
      if (auto* alpha = static_cast<float*>(a.alpha))
        for (int64_t i = 0; i < rows.count; ++i)
          for (int64_t h = 0, at = i * a.heads; h < a.heads; ++h, ++at)
            alpha[rows.places[i] * a.heads + h] = z[at] > 0 ? value[at] : -value[at];
      k.drop(rows, false);
      shared_sums(x, a.heads, rows, static_cast<float*>(a.out) + first * a.heads * x.width);
    }
  });
}

// Writes <grad[v, h, :], x[u, :]> of each edge into `dots`, and adds up the rows of grad by rows.value.
// `waiting` and `parts` are its own memory.
template <bool Adds>
GB_INLINE void shared_back(const AttentionArgs& a, const SummedRows<float>& x, const SummedRows<float>& grads,
                           const EdgeRows<float>& rows, Buffer<VecF32>& waiting, Buffer<float>& parts,
                           float* dots, float* grad_x) {
  constexpr int64_t L = kLanes<float>, together = 16;  // edges whose sums of lanes are made at a time
  const int64_t heads = a.heads, distance = grads.distance();
  waiting.reserve(together * heads + L);
  parts.reserve(rows.count * heads + L);
  shared_tiles<1, 4>(1, x.width, [&](auto, auto nv, int64_t, int64_t column, auto n) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    const int64_t known = column == 0 ? rows.known : 0;
    float* to = column == 0 ? dots : parts.data();
    int64_t i = 0, done = 0;
    const auto finish = [&]() GB_LAMBDA {
      sum_parts<float, L>(waiting.data(), (i - done) * heads, (i - done) * heads, to + done * heads);
      done = i;
    };
    for (int64_t r = 0; r < rows.rows; ++r) {
      const float* own = x[rows.first + r] + column;
      VecF32 row[NV], sum[NV] = {};
      unroll<NV>([&](auto s) GB_LAMBDA {
        row[s] = get(own + s * L, n);
        __builtin_prefetch(own + kInOrderAhead * x.width + s * L, 0, 2);
      });
      for (const int64_t end = rows.ends[r]; i < end;) {
        if (i + distance < known) grads.prefetch(rows.nodes[i + distance]);
        const float* from = grads[rows.nodes[i]] + column;
        const float* by = rows.value.data() + i * heads;
        VecF32* kept = waiting.data() + (i - done) * heads;
        for (int64_t h = 0; h < heads; ++h, from += x.width) {
          VecF32 part = get(from, n);
          VecF32 dots_of = part * row[0];
          const VecF32 factor = splat<VecF32>(by[h]);
          if constexpr (Adds) sum[0] += factor * part;
          unroll<NV - 1>([&](auto s) GB_LAMBDA {
            part = get(from + (s + 1) * L, n);
            dots_of += part * row[s + 1];
            if constexpr (Adds) sum[s + 1] += factor * part;
          });
          kept[h] = dots_of;
        }
        if (++i - done == together) finish();
      }
      if constexpr (Adds) {
        float* out = grad_x + r * x.width + column;
        unroll<NV>([&](auto s) GB_LAMBDA {
          put(out + s * L, sum[s], n);
          __builtin_prefetch(out + kInOrderAhead * x.width + s * L, 1, 2);
        });
      }
    }
    finish();
    if (column > 0)
      each_vector<float>(rows.count * heads,
                         [&](int64_t at) GB_LAMBDA { store(dots + at, load(dots + at) + load(to + at)); });
  });
}

// Adds the part through the logits of sources.
inline void add_through_shared_logits(const AttentionArgs& a, int64_t rows, const float* logit_grads,
                                      float* grad_x) {
  shared_tiles<1, 4>(1, a.channels, [&](auto, auto nv, int64_t, int64_t column, auto n) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    constexpr int64_t L = kLanes<float>;
    for (int64_t r = 0; r < rows; ++r) {
      float* out = grad_x + r * a.channels + column;
      VecF32 sum[NV];
      unroll<NV>([&](auto s) GB_LAMBDA { sum[s] = get(out + s * L, n); });
      const float* vector = static_cast<const float*>(a.att) + column;
      for (int64_t h = 0; h < a.heads; ++h, vector += a.channels) {
        const VecF32 factor = splat<VecF32>(logit_grads[r * a.heads + h]);
        unroll<NV>([&](auto s) GB_LAMBDA { sum[s] += factor * get(vector + s * L, n); });
      }
      unroll<NV>([&](auto s) GB_LAMBDA { put(out + s * L, sum[s], n); });
    }
  });
}

// The gradients of the destinations' logits: the sums of their edges' ones.
inline void sum_by_destination(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const auto* of_edges = static_cast<const float*>(b.grad_edge_logit);
  parallel_rows(a.indptr, a.num_dst, a.heads, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      float* to = static_cast<float*>(b.grad_dst_logit) + v * a.heads;
      for (int64_t h = 0; h < a.heads; ++h)
        to[h] = v < a.num_loops ? of_edges[(a.num_edges + v) * a.heads + h] : 0.0f;
      for (int64_t e = a.indptr[v]; e < a.indptr[v + 1]; ++e)
        for (int64_t h = 0; h < a.heads; ++h) to[h] += of_edges[e * a.heads + h];
    }
  });
}

void gat_sums_backward(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const Coefficients<float> k{a, nullptr, nullptr, nullptr, true};
  const int64_t heads = a.heads;
  const SummedRows<float> x{static_cast<const float*>(a.src), a.channels};
  const SummedRows<float> grads{static_cast<const float*>(b.grad), heads * a.channels};
  Buffer<float> d(a.num_dst * heads);  // <grad[v, h, :], sums[v, h, :]>
  parallel_static(a.num_dst, 1024, [&](int64_t first, int64_t last) {
    grad_dot<float>(b, static_cast<const float*>(a.out), first, last, d.data() + first * heads);
  });
  auto* of_edges = static_cast<float*>(b.grad_edge_logit);
  if (a.num_loops > 0)  // stored loops, which are not walked, have none
    std::fill_n(of_edges, (a.num_edges + a.num_loops) * heads, 0.0f);
  const auto* alphas = static_cast<const float*>(a.alpha);
  auto* grad_x = static_cast<float*>(b.grad_src);
  const RowGroups groups(b.t_indptr, grads.bytes());
  parallel_rows(b.t_indptr, a.num_src, 2 * ((grads.bytes() + 63) / 64), [&](int64_t first, int64_t last) {
    EdgeRows<float> rows;
    Buffer<VecF32> waiting;
    Buffer<float> parts;
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, b.t_indptr, b.t_indptr[last], b.t_indices, b.perm, rows);
      const int64_t end = b.t_indptr[next];
      for (int64_t e = end; e < std::min(end + kEdgesAhead, b.t_indptr[last]); ++e) {
        __builtin_prefetch(alphas + b.perm[e] * heads);
        __builtin_prefetch(of_edges + b.perm[e] * heads, 1);
      }
      float *value = rows.value.data(), *alpha = rows.above.data(), *d_of = rows.extra.data(),
            *dots = rows.other.data();
      fixed_heads<float>(heads, [&](auto number) GB_LAMBDA {
        for (int64_t i = 0; i < rows.count; ++i) {
          const float *from = alphas + rows.places[i] * number, *d_from = d.data() + rows.nodes[i] * number;
          each_head<float>(number, [&](int64_t h, auto n) GB_LAMBDA {
            put(alpha + i * number + h, get(from + h, n), n);
            put(d_of + i * number + h, get(d_from + h, n), n);
          });
        }
      });
      const auto each = [&](const auto& body) GB_LAMBDA { each_vector<float>(rows.count * heads, body); };
      each([&](int64_t at) GB_LAMBDA {
        const VecF32 one = load(alpha + at);
        store(value + at, one > 0 ? one : -one);
      });
      k.drop(rows, false);
      float* out = grad_x ? grad_x + first * x.width : nullptr;
      out ? shared_back<true>(a, x, grads, rows, waiting, parts, dots, out)
          : shared_back<false>(a, x, grads, rows, waiting, parts, dots, out);
      each([&](int64_t at) GB_LAMBDA {
        const VecF32 one = load(alpha + at), is_above = one > 0 ? one : -one;
        const VecF32 g = load(value + at) * load(dots + at) - is_above * load(d_of + at);
        store(dots + at, one > 0 ? g : g * k.slope);
      });
      float* logit_grads = static_cast<float*>(b.grad_src_logit) + first * heads;
      add_edges<1>(heads, rows, {dots}, {logit_grads});
      fixed_heads<float>(heads, [&](auto number) GB_LAMBDA {
        for (int64_t i = 0; i < rows.count; ++i)
          each_head<float>(number, [&](int64_t h, auto n) GB_LAMBDA {
            put(of_edges + rows.places[i] * number + h, get(dots + i * number + h, n), n);
          });
      });
      if (out) add_through_shared_logits(a, next - first, logit_grads, out);
    }
  });
  sum_by_destination(b);
}

}  // namespace gb::GB_VARIANT
