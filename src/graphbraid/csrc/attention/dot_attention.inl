// Dot-product attention over in-neighbours, and its gradients, without a row per edge:
//
//   src  (num_src, heads * channels): values          out       (num_dst, heads * channels)
//   key  (num_src, heads * channels)          --->    top, log  (num_dst, heads)
//   dst  (num_dst, heads * channels): queries
//
// With e = u -> v, per head h:
//
//   logit[e, h]  = scale * <dst[v, h, :], key[u, h, :]>,  alpha: softmax over v's edges
//   out[v, h, :] = sum of alpha[e, h] * src[u, h, :]
//
// Kept are each row's largest logit, and the logarithm of its sum of exp(logit - largest). Their sum would
// not do: a logit of 1e5 has no digits in common with the logarithm. Backward computes the coefficients again
// in two walks, by destination and by source. With D[v, h] = <grad[v, h, :], out[v, h, :]>
//
//   g[e, h]        = scale * alpha * (<grad[v, h, :], src[u, h, :]> - D[v, h])
//   grad_dst[v, h] = sum over v's edges of g * key[u, h]
//   grad_src[u, h] = sum over u's out-edges of alpha * grad[v, h]
//   grad_key[u, h] = sum over u's out-edges of g * dst[v, h]
//
// Under dropout, alpha has its factor, 0 or 1 / (1 - p), in the sums of src, of <grad, src> and of grad; not
// so its own alpha in g. With `adds`, these are added to the gradients that are there.
//
// Given room for a number per edge and head, grad_logit (num_edges, heads), and perm, which leads from the
// edges by source to those by destination, the walk by source comes first and leaves g there. The walk by
// destination then reads no row but key[u], and computes no product. Both ways give the same bits.
//
// Bound by reading two rows for each edge and walk.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"

template <typename T>
struct DotAttention : Coefficients<T> {
  using Coefficients<T>::a;
  const int64_t width = a.heads * a.channels;
  const SummedRows<T> values{static_cast<const T*>(a.src), width};
  const SummedRows<T> keys{static_cast<const T*>(a.key), width};
  const SummedRows<T> queries{static_cast<const T*>(a.dst), width};
  const HeadSlots<T> slots{a.heads, a.channels};
  const T scale = static_cast<T>(a.scale);
};

template <typename T>
void dot_forward_typed(const AttentionArgs& a) {
  constexpr int L = kLanes<T>;
  const DotAttention<T> k{{a}};
  const RowGroups groups(a.indptr, k.values.bytes());
  const int64_t distance = k.keys.distance(), most = groups.most_rows * a.heads;
  parallel_rows(a.indptr, a.num_dst, 4 * (k.values.bytes() / 64 + 1), [&](int64_t first, int64_t last) {
    EdgeRows<T> rows;
    Buffer<T> tops(most + L), totals(most + L);
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
      T* value = rows.value.data();
      const int64_t size = (next - first) * a.heads;
      edge_dots<T>(
          a.heads, a.channels, k.keys, distance, rows, [&](int64_t v) GB_LAMBDA { return k.queries[v]; },
          value);
      each_vector<T>(rows.count * a.heads,
                     [&](int64_t at) GB_LAMBDA { store(value + at, load(value + at) * k.scale); });
      softmax_powers(a.heads, rows, value, tops.data());
      add_edges<1>(a.heads, rows, {value}, {totals.data()});
      for (int64_t at = 0; at < size; at += L) {
        const int n = static_cast<int>(std::min<int64_t>(L, size - at));
        const Vec<T> total = load_n(totals.data() + at, n), top = load(tops.data() + at);
        store_n(static_cast<T*>(a.lse) + first * a.heads + at, total == 0 ? Vec<T>{} : top, n);
        store_n(static_cast<T*>(a.log) + first * a.heads + at, total == 0 ? Vec<T>{} : log_lanes(total), n);
        store(totals.data() + at, total == 0 ? Vec<T>{} : T{1} / total);
      }
      k.drop(rows, false);
      T* out = static_cast<T*>(a.out) + first * k.width;
      add_rows<false>(k.slots, k.values, distance, rows, value, value,
                      [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>&) GB_LAMBDA {
                        at.write(out + r * k.width, sum * at.numbers(totals.data() + r * a.heads));
                      });
    }
  });
}

// Turns `value`, logits without their scale, into coefficients, and `extra`, <grad, src>, into the logits'
// gradients times the scale. record(i): the largest logit, logarithm and D of edge i's destination.
template <typename T, typename Record>
GB_INLINE void dot_gradients(const DotAttention<T>& k, EdgeRows<T>& rows, const Record& record) {
  T *value = rows.value.data(), *extra = rows.extra.data();
  const T* mask = k.a.threshold != 0 ? rows.mask.data() : nullptr;
  if (mask) {
    k.draw_masks(rows);
    each_vector<T>(rows.count * k.a.heads,
                   [&](int64_t at) GB_LAMBDA { store(extra + at, load(extra + at) * load(mask + at)); });
  }
  fixed_heads<T>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < rows.count; ++i) {
      const T* of_row = record(i);
      each_head<T>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        T *logit = value + i * heads + h, *reached = extra + i * heads + h;
        put(logit, get(logit, n) * k.scale - get(of_row + h, n) - get(of_row + heads + h, n), n);
        put(reached, get(reached, n) - get(of_row + 2 * heads + h, n), n);
      });
    }
  });
  each_vector<T>(rows.count * k.a.heads, [&](int64_t at) GB_LAMBDA {
    const Vec<T> alpha = exp_lanes(load(value + at));
    store(value + at, mask ? alpha * load(mask + at) : alpha);
    store(extra + at, alpha * load(extra + at) * k.scale);
  });
}

// to[places[i], :] = the numbers of edge i
template <typename T>
void put_edges(int64_t number, const EdgeRows<T>& rows, const T* from, const int64_t* places, T* to) {
  fixed_heads<T>(number, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < rows.count; ++i)
      each_head<T>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        put(to + places[i] * heads + h, get(from + i * heads + h, n), n);
      });
  });
}

// Returns the largest logit, the logarithm and D of each destination.
template <typename T>
DestinationRecords<T> dot_records(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  DestinationRecords<T> records(a.num_dst, a.heads);
  const T *top = static_cast<const T*>(a.lse), *log = static_cast<const T*>(a.log);
  parallel_static(a.num_dst, 1024, [&](int64_t first, int64_t last) {
    Buffer<T> d((last - first) * a.heads);
    grad_dot<T>(b, static_cast<const T*>(a.out), first, last, d.data());
    for (int64_t v = first; v < last; ++v)
      for (int64_t h = 0; h < a.heads; ++h) {
        records[v][h] = top[v * a.heads + h];
        records[v][a.heads + h] = log[v * a.heads + h];
        records[v][2 * a.heads + h] = d[(v - first) * a.heads + h];
      }
  });
  return records;
}

template <typename T>
void dot_backward_typed(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const DotAttention<T> k{{a}};
  const SummedRows<T> grads{static_cast<const T*>(b.grad), k.width};
  const DestinationRecords<T> records = dot_records<T>(b);
  const int64_t distance = k.keys.distance(), work = 6 * (k.values.bytes() / 64 + 1);
  // to[row, :] = or += the sum over the row's edges of factor * x[node], fetched `ahead` edges ahead
  const auto add = [&](const EdgeRows<T>& rows, const SummedRows<T>& x, const T* factor, void* to,
                       int64_t ahead = 0) GB_LAMBDA {
    if (!to) return;
    T* target = static_cast<T*>(to) + rows.first * k.width;
    add_rows<false>(k.slots, x, ahead, rows, factor, factor,
                    [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>&) GB_LAMBDA {
                      b.adds ? at.add(target + r * k.width, sum) : at.write(target + r * k.width, sum);
                    });
  };
  // Both rows of an edge's other end, and their products with those of the row.
  const auto products = [&](EdgeRows<T>& rows, const SummedRows<T>& own, const SummedRows<T>& x,
                            const SummedRows<T>& own_reached, const SummedRows<T>& reached) GB_LAMBDA {
    edge_dots<T>(
        a.heads, a.channels, x, distance, rows, [&](int64_t v) GB_LAMBDA { return own[v]; },
        rows.value.data());
    edge_dots<T>(
        a.heads, a.channels, reached, distance, rows, [&](int64_t v) GB_LAMBDA { return own_reached[v]; },
        rows.extra.data());
  };
  const RowGroups by_destination(a.indptr, k.values.bytes()), by_source(b.t_indptr, k.values.bytes());
  T* kept = static_cast<T*>(b.grad_logit);
  if (b.grad_src || b.grad_key || kept)
    parallel_rows(b.t_indptr, a.num_src, work, [&](int64_t first, int64_t last) {
      EdgeRows<T> rows;
      for (int64_t next; first < last; first = next) {
        next = by_source.end(first, last);
        k.collect_all(first, next, b.t_indptr, b.t_indptr[last], b.t_indices, b.perm, rows);
        for (int64_t i = 0; i < rows.count; ++i) records.prefetch(rows.nodes[i]);
        const int64_t* places = kept ? b.perm + b.t_indptr[first] : nullptr;
        if (kept)
          for (int64_t i = 0; i < rows.count; ++i) __builtin_prefetch(kept + places[i] * a.heads, 1);
        products(rows, k.keys, k.queries, k.values, grads);
        dot_gradients(k, rows, [&](int64_t i) GB_LAMBDA { return records[rows.nodes[i]]; });
        add(rows, grads, rows.value.data(), b.grad_src);
        add(rows, k.queries, rows.extra.data(), b.grad_key);
        if (kept) put_edges(a.heads, rows, rows.extra.data(), places, kept);
      }
    });
  if (b.grad_dst)
    parallel_rows(a.indptr, a.num_dst, work, [&](int64_t first, int64_t last) {
      EdgeRows<T> rows;
      for (int64_t next; first < last; first = next) {
        next = by_destination.end(first, last);
        k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
        if (kept) {
          std::copy_n(kept + a.indptr[first] * a.heads, rows.count * a.heads, rows.extra.data());
        } else {
          products(rows, k.queries, k.keys, grads, k.values);
          dot_gradients(k, rows, [&](int64_t i) GB_LAMBDA { return records[rows.of[i]]; });
        }
        add(rows, k.keys, rows.extra.data(), b.grad_dst, kept ? distance : 0);
      }
    });
}

void dot_forward(const AttentionArgs& a) {
  a.dtype == DType::kFloat32 ? dot_forward_typed<float>(a) : dot_forward_typed<double>(a);
}
void dot_backward(const AttentionBackwardArgs& b) {
  b.forward.dtype == DType::kFloat32 ? dot_backward_typed<float>(b) : dot_backward_typed<double>(b);
}

}  // namespace gb::GB_VARIANT
