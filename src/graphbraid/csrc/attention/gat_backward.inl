// GAT's gradient, in one walk over the rows of the transpose and without a number per edge:
//
//   grad        (num_dst, heads * channels),  or       grad_src         (num_src, heads * channels)
//               (num_dst, channels): `narrow`   --->   grad_src_logit   (num_src, heads)
//   src, src_logit, dst_logit and what the             grad_dst_logit   (num_dst, heads)
//   forward kept: out, lse, above, share               grad_edge_logit  (num_edges + num_loops, heads)
//
// grad_edge_logit is written only if edges have logits of their own. A logit's gradient passes the leaky
// ReLU, whose slope is 1 where z > 0. Because a softmax's gradients add up to 0 over a row,
//
//   grad_dst_logit[v, h] = (1 - slope) * sum over v's edges with z > 0 of g[e, h]
//                        = (1 - slope) * (<grad[v, h, :], above[v, h, :]> - D[v, h] * share[v, h])
//
// with `above`, the part of out that came along those edges, and `share`, their part of the softmax, both
// kept by the forward. By source, with S and S_above the sums of mask * alpha * grad[v] over all out-edges
// and over those with z > 0,
//
//   grad_src[u, h, :] = S,  grad_src_logit[u, h] = slope * (<S, src[u, h, :]> - sum of alpha * D[v, h])
//                                        + (1 - slope) * (<S_above, src[u, h, :]> - sum above of alpha * D)
//
// An edge's own logit has the gradient g * leaky'(z), for which every edge's <grad[v, h, :], src[u, h, :]> is
// computed.
//
// With att, the vectors that make the logits from src, the gradient of src has a part through the logits,
// which is added while the rows are in the cache. The vectors get a gradient, too. Let s = 0 for logits of
// sources, s = 1 for those of destinations, which are the first sources, and gl the logits' gradients:
//
//   grad_src[u, h, :] += gl[s][u, h] * att[s, h, :]
//   grad_att[s, h, :]  = sum over u of gl[s][u, h] * src[u, h, :]
//
// The formulas stand in attention.inl. Bound by reading num_edges rows of grad.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"

// Returns dst_logit, lse and D of each destination. Also writes the gradient of dst_logit.
template <typename T>
DestinationRecords<Acc<T>> destination_records(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  DestinationRecords<A> records(a.num_dst, a.heads);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* lse = static_cast<const A*>(a.lse);
  const A* share = static_cast<const A*>(a.share);
  A* grad_dst_logit = static_cast<A*>(b.grad_dst_logit);
  const A rest = A{1} - static_cast<A>(a.slope);
  constexpr int64_t together = 64;  // rows whose gradients stay in the cache for both products
  parallel_static(a.num_dst, 1024, [&](int64_t first, int64_t last) {
    Buffer<A> d(together * a.heads), d_above(together * a.heads);
    for (int64_t next; first < last; first = next) {
      next = std::min(first + together, last);
      grad_dot<T>(b, static_cast<const T*>(a.out), first, next, d.data());
      grad_dot<T>(b, static_cast<const A*>(a.above), first, next, d_above.data());
      for (int64_t v = first; v < next; ++v)
        for (int64_t h = 0; h < a.heads; ++h) {
          const int64_t i = v * a.heads + h, own = (v - first) * a.heads + h;
          A* record = records[v] + h;
          record[0] = dst_logit[i];
          record[a.heads] = lse[i];
          record[2 * a.heads] = d[own];
          grad_dst_logit[i] = rest * (d_above[own] - d[own] * share[i]);
        }
    }
  });
  return records;
}

// Computes the coefficients of the rows' out-edges. logit_grads (rows, heads) gets the sums of alpha * D *
// leaky'(z), the part of the logits' gradients that does not depend on rows of grad.
template <typename A>
void out_edge_coefficients(const Coefficients<A>& k, const DestinationRecords<A>& records, EdgeRows<A>& rows,
                           A* logit_grads) {
  A *value = rows.value.data(), *above = rows.above.data(), *d = rows.extra.data();
  // Copies, since any of these might change with a store.
  const A *numbers_of = records[0], *src_logit = k.src_logit, *edge_logit = k.edge_logit, slope = k.slope;
  const int64_t *nodes = rows.nodes.data(), *of = rows.of.data(), *places = rows.places.data();
  const int64_t count = rows.count, known = rows.known, stride = records.stride;
  const auto finish = [&](int64_t at, const Vec<A>& z, const Vec<A>& lse, const Vec<A>& of_row) GB_LAMBDA {
    const Vec<A> alpha = exp_lanes((z > 0 ? z : z * slope) - lse), through = alpha * of_row;
    store(d + at, z > 0 ? through : through * slope);  // alpha * D * leaky'(z)
    store(value + at, alpha);
    store(above + at, z > 0 ? alpha : Vec<A>{});
  };
  const auto prefetch = [&](int64_t i) GB_LAMBDA {
    if (i + kEdgesAhead < known) records.prefetch(nodes[i + kEdgesAhead]);
  };
  fixed_heads<A>(k.a.heads, [&](auto heads) GB_LAMBDA {
    if constexpr (!std::is_same_v<decltype(heads), int64_t>) {
      constexpr int N = decltype(heads)::value, together = kLanes<A> / N;
      for (int64_t i = 0; i < count; i += together) {
        unroll<together>([&](auto j) GB_LAMBDA { prefetch(i + j); });
        const auto numbers = [&](const auto& from) GB_LAMBDA { return side_by_side<A, N, together>(from); };
        const auto of_record = [&](int64_t part) GB_LAMBDA {
          return numbers([&](int64_t j) GB_LAMBDA { return numbers_of + nodes[i + j] * stride + part * N; });
        };
        Vec<A> z = of_record(0);
        z += numbers([&](int64_t j) GB_LAMBDA { return src_logit + of[i + j] * N; });
        if (edge_logit) z += numbers([&](int64_t j) GB_LAMBDA { return edge_logit + places[i + j] * N; });
        finish(i * N, z, of_record(1), of_record(2));
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        prefetch(i);
        const A *record = records[nodes[i]], *left = src_logit + of[i] * heads;
        each_head<A>(heads, [&](int64_t h, auto n) GB_LAMBDA {
          auto z = get(left + h, n) + get(record + h, n);
          if (edge_logit) z += get(edge_logit + places[i] * heads + h, n);
          put(above + i * heads + h, z, n);
          put(value + i * heads + h, get(record + heads + h, n), n);
          put(d + i * heads + h, get(record + 2 * heads + h, n), n);
        });
      }
      each_vector<A>(rows.count * heads, [&](int64_t at) GB_LAMBDA {
        finish(at, load(above + at), load(value + at), load(d + at));
      });
    }
  });
  add_edges<1>(k.a.heads, rows, {d}, {logit_grads});
  k.drop(rows, true);
}

// Columns of a head of a result.
template <typename T>
struct HeadColumns {
  int64_t to;
  int count;

  template <typename U>
  GB_INLINE void write(U* row, const Vec<T>& v) const {
    store_n(row + to, v, count);
  }
  template <typename U>
  GB_INLINE void prefetch(const U* row) const {
    __builtin_prefetch(row + to, 0, 2);
  }
};

// add_rows of `value` and `above` if all heads sum the same columns: vectors of x are read once for several.
template <typename T, typename Finish>
GB_INLINE void add_narrow_rows(int64_t heads, int64_t channels, const SummedRows<T>& x,
                               const EdgeRows<Acc<T>>& rows, const Finish& finish) {
  using std::integral_constant;
  constexpr int L = kLanes<T>;
  constexpr bool is_common = std::is_same_v<T, float> && GB_LANES_F32 > 4;  // not for all: code size
  const int64_t distance = x.distance();
  const auto tile = [&](auto num_heads, auto num_vectors, int64_t head, int64_t column) GB_LAMBDA {
    constexpr int H = decltype(num_heads)::value, V = decltype(num_vectors)::value;
    const int last = static_cast<int>(std::min<int64_t>(L, channels - column - (V - 1) * L));
    const int64_t known = head == 0 && column == 0 ? rows.known : 0;
    const int64_t* nodes = rows.nodes.data();
    const T* columns = x.data + column;
    const Acc<T>*value = rows.value.data() + head, *above = rows.above.data() + head;
    int64_t i = 0;
    for (int64_t r = 0; r < rows.rows; ++r) {
      Vec<T> sum[H * V] = {}, sum_above[H * V] = {};
      for (const int64_t end = rows.ends[r]; i < end; ++i, value += heads, above += heads) {
        if (i + distance < known) x.prefetch(nodes[i + distance]);
        const T* from = columns + nodes[i] * x.width;
        Vec<T> part[V];
        unroll<V>([&](auto v)
                      GB_LAMBDA { part[v] = v + 1 < V ? load(from + v * L) : load_n(from + v * L, last); });
        unroll<H>([&](auto h) GB_LAMBDA {
          const Vec<T> number = splat<Vec<T>>(value[h]), number_above = splat<Vec<T>>(above[h]);
          unroll<V>([&](auto v) GB_LAMBDA {
            sum[h * V + v] += part[v] * number;
            sum_above[h * V + v] += part[v] * number_above;
          });
        });
      }
      unroll<H * V>([&](auto s) GB_LAMBDA {
        constexpr int h = s / V, v = s % V;
        const HeadColumns<T> at{(head + h) * channels + column + v * L, v + 1 < V ? L : last};
        finish(r, at, sum[s], sum_above[s]);
      });
    }
  };
  const auto all_heads = [&](auto num_vectors, int64_t column) GB_LAMBDA {
    int64_t head = 0;
    if constexpr (is_common) {
      constexpr int most = GB_LANES_F32 == 16 ? 4 : 2;
      for (; head + most <= heads; head += most)
        tile(integral_constant<int, most>{}, num_vectors, head, column);
    }
    for (; head < heads; ++head) tile(integral_constant<int, 1>{}, num_vectors, head, column);
  };
  int64_t column = 0;
  if constexpr (is_common)
    for (; column + L < channels; column += 2 * L) all_heads(integral_constant<int, 2>{}, column);
  for (; column < channels; column += L) all_heads(integral_constant<int, 1>{}, column);
}

// Writes the gradients of the out-edges' own logits.
template <typename T>
void store_edge_logit_gradients(const AttentionBackwardArgs& b, const Attention<T>& k,
                                const SummedRows<T>& grads, const EdgeRows<Acc<T>>& rows) {
  using A = Acc<T>;
  const int64_t heads = k.a.heads, channels = k.a.channels;
  for (int64_t i = 0; i < rows.count; ++i) {
    A* to = static_cast<A*>(b.grad_edge_logit) + rows.places[i] * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const A above = rows.above[i * heads + h], below = rows.value[i * heads + h] - above;
      const T* grad = grads[rows.nodes[i]] + (b.narrow ? 0 : h * channels);
      const A reached = dot(grad, k.rows[rows.of[i]] + h * channels, channels);
      to[h] = reached * (above + k.slope * below) - rows.extra[i * heads + h];
    }
  }
}

// The gradient through the logits that att made of the rows [first, first + rows). Adds the rows' part to
// grad_src, and the vectors' part to `sums`, (2, width). of_source, of_own: the logits' gradients, (rows,
// heads), padded by a vector, since whole vectors are read.
template <typename T>
void add_through_logits(const Attention<T>& k, const HeadSlots<T>& slots, int64_t first, int64_t rows,
                        const Acc<T>* of_source, const Acc<T>* of_own, T* grad_src, Acc<T>* sums) {
  constexpr int most = 4;  // more do not fit the registers
  slots.template tiles<most>([&](auto mixed, auto full, auto nv, const HeadSlot<T>* tile, bool) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    using At = Columns<T, mixed, full>;
    HeadSlot<T> slot[NV];
    Vec<T> source[NV], own[NV], sum[NV], sum_own[NV];
    unroll<NV>([&](auto s) GB_LAMBDA {
      slot[s] = tile[s];
      const At at{slot, s};
      source[s] = at.read(k.att);
      own[s] = at.read(k.att + k.width);
      sum[s] = at.read(sums);
      sum_own[s] = at.read(sums + k.width);
    });
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = k.rows[first + r];
      unroll<NV>([&](auto s) GB_LAMBDA {
        const At at{slot, s};
        const Vec<T> x = at.read(row);
        const Vec<T> g = at.numbers(of_source + r * slots.heads),
                     g_own = at.numbers(of_own + r * slots.heads);
        sum[s] += g * x;
        sum_own[s] += g_own * x;
        at.add(grad_src + r * k.width, g * source[s] + g_own * own[s]);
      });
    }
    unroll<NV>([&](auto s) GB_LAMBDA {
      const At at{slot, s};
      at.write(sums, sum[s]);
      at.write(sums + k.width, sum_own[s]);
    });
  });
}

template <typename T>
void gat_backward_typed(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Attention<T> k{a};
  const DestinationRecords<A> records = destination_records<T>(b);
  const HeadSlots<T> slots(a.heads, a.channels);
  const SummedRows<T> grads{static_cast<const T*>(b.grad), b.narrow ? a.channels : k.width};
  const RowGroups groups(b.t_indptr, k.rows.bytes());
  const A rest = A{1} - k.slope;
  if (b.grad_edge_logit) {  // zeros for stored loops, which are not walked if there are implicit ones
    A* to = static_cast<A*>(b.grad_edge_logit);
    std::fill(to, to + (a.num_edges + a.num_loops) * a.heads, A{0});
  }
  struct Own {
    EdgeRows<A> rows;
    Buffer<A> through, by_head, of_own;
  };
  const auto make = [&] {
    const int64_t numbers = groups.most_rows * a.heads + kLanes<A>;
    return Own{{}, Buffer<A>(groups.most_rows * k.width), Buffer<A>(numbers), Buffer<A>(numbers)};
  };
  const auto walk = [&](int64_t first, int64_t last, Own& own, A* att_sums) {
    EdgeRows<A>& rows = own.rows;
    Buffer<A>& through = own.through;
    Buffer<A>& by_head = own.by_head;
    Buffer<A>& of_own = own.of_own;
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, b.t_indptr, b.t_indptr[last], b.t_indices, b.perm, rows);
      out_edge_coefficients<A>(k, records, rows, by_head.data());
      A* logit_grads = static_cast<A*>(b.grad_src_logit) + first * a.heads;
      const int64_t size = (next - first) * a.heads;
      for (int64_t i = 0; i < size; ++i) logit_grads[i] = -by_head[i];
      T* grad_src = static_cast<T*>(b.grad_src) + first * k.width;
      const auto finish = [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>& above) GB_LAMBDA {
        at.write(through.data() + r * k.width, sum * k.slope + above * rest);
        at.write(grad_src + r * k.width, sum);
        at.prefetch(grad_src + (r + kInOrderAhead) * k.width);
        at.prefetch(k.rows[first + r + kInOrderAhead]);
      };
      b.narrow ? add_narrow_rows(a.heads, a.channels, grads, rows, finish)
               : add_rows<true>(slots, grads, grads.distance(), rows, rows.value.data(), rows.above.data(),
                                finish);
      sum_heads<T>(
          next - first, a.heads, a.channels,
          [&](int64_t r) GB_LAMBDA {
            const A* left = through.data() + r * k.width;
            const T* right = k.rows[first + r];
            return [=](int64_t c, auto n) GB_LAMBDA { return get(left + c, n) * get(right + c, n); };
          },
          by_head.data());
      for (int64_t i = 0; i < size; ++i) by_head[i] = logit_grads[i] += by_head[i];
      if (b.grad_edge_logit) store_edge_logit_gradients(b, k, grads, rows);
      if (!att_sums) continue;
      const int64_t owned = std::clamp<int64_t>(a.num_dst - first, 0, next - first) * a.heads;
      std::copy_n(static_cast<const A*>(b.grad_dst_logit) + first * a.heads, owned, of_own.data());
      std::fill(of_own.data() + owned, of_own.data() + size, A{0});
      add_through_logits(k, slots, first, next - first, by_head.data(), of_own.data(), grad_src, att_sums);
    }
  };
  if (!b.grad_att)
    return parallel_rows(b.t_indptr, a.num_src, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
      Own own = make();
      walk(first, last, own, nullptr);
    });
  std::vector<A> parts(static_cast<size_t>(num_shares(b.t_indptr, a.num_src) * 2 * k.width));
  parallel_shares(b.t_indptr, a.num_src, 2 * k.lines + a.heads, make,
                  [&](int64_t share, int64_t first, int64_t last, Own& own) {
                    walk(first, last, own, parts.data() + share * 2 * k.width);
                  });
  sum_shares<A>(parts, nullptr, 2, k.width, static_cast<A*>(b.grad_att));
}

void gat_backward(const AttentionBackwardArgs& b) {
  switch (b.forward.dtype) {
    case DType::kFloat32:
      return gat_backward_typed<float>(b);
    case DType::kFloat64:
      return gat_backward_typed<double>(b);
    case DType::kBfloat16:
      return gat_backward_typed<Bf16>(b);
    case DType::kFloat16:
      return gat_backward_typed<F16>(b);
  }
}

}  // namespace gb::GB_VARIANT
