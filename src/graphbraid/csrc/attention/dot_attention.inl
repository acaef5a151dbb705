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
// With features x (num_edges, edge_channels) of edges and their map (edge_channels, heads * channels), keys
// are key[u] + x[e] * map and values src[u] + x[e] * map. No mapped row is made for an edge: of these rows a
// destination needs only its products with the map, and sums of features weighted by the coefficients:
//
//   logit[e, h]   += scale * sum over f of x[e, f] * <dst[v, h, :], map[f, h, :]>
//   mixed[v, f, h] = sum over v's edges of alpha * x[e, f]
//   out[v, h, :]  += sum over f of mixed[v, f, h] * map[f, h, :]
//
// Backward has the same with grad in the place of dst, and with g in the place of alpha. The map's gradient
// is the sum over destinations of grad times `mixed`, and of dst times the sums with g. It is made in shares.
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
  const T* map = static_cast<const T*>(a.edge_weight);
  const int64_t size = a.edge_channels * a.heads;  // numbers of a row by feature and head; 0: no features

  // Writes the features of the collected edges side by side, (edges, edge_channels).
  void collect_features(const EdgeRows<T>& rows, Buffer<T>& to) const {
    to.reserve(rows.count * a.edge_channels);
    const int64_t read = a.edge_channels - static_cast<int64_t>(a.edge_bias);
    for (int64_t i = 0; i < rows.count; ++i) {
      const T* from = static_cast<const T*>(a.edge_features.data) + rows.places[i] * a.edge_features.stride;
      T* own = to.data() + i * a.edge_channels;
      for (int64_t f = 0; f < read; ++f) own[f] = from[f];
      if (a.edge_bias) own[read] = T{1};
    }
  }

  // Writes <x[v, h, :], map[f, h, :]> for the rows [first, last) of x to `to`, (rows, edge_channels, heads).
  void multiply_by_map(const SummedRows<T>& x, int64_t first, int64_t last, T* to) const {
    const auto each = static_cast<uint32_t>(a.edge_channels);
    sum_heads<T>((last - first) * a.edge_channels, a.heads, a.channels,
                 [&](int64_t i) GB_LAMBDA {
                   const auto row = static_cast<uint32_t>(i) / each, f = static_cast<uint32_t>(i) % each;
                   const T *own = x[first + row], *of_map = map + f * width;
                   return [own, of_map](int64_t c, auto n)
                              GB_LAMBDA { return get(own + c, n) * get(of_map + c, n); };
                 },
                 to);
  }

  // to[i, h] += the sum over f of features[i, f] * own(i)[f, h]
  template <typename Own>
  GB_INLINE void add_products(const EdgeRows<T>& rows, const T* features, const Own& own, T* to) const {
    fixed_heads<T>(a.heads, [&](auto heads) GB_LAMBDA {
      for (int64_t i = 0; i < rows.count; ++i) {
        const T *of_row = own(i), *of_edge = features + i * a.edge_channels;
        each_head<T>(heads, [&](int64_t h, auto n) GB_LAMBDA {
          auto sum = get(to + i * heads + h, n);
          for (int64_t f = 0; f < a.edge_channels; ++f) sum += of_edge[f] * get(of_row + f * heads + h, n);
          put(to + i * heads + h, sum, n);
        });
      }
    });
  }

  // to[r, f, h] = the sum over row r's edges of features[i, f] * factor[i, h]
  GB_INLINE void mix(const EdgeRows<T>& rows, const T* features, const T* factor, T* to) const {
    fixed_heads<T>(a.heads, [&](auto heads) GB_LAMBDA {
      int64_t begin = 0;
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t end = rows.ends[r];
        for (int64_t f = 0; f < a.edge_channels; ++f)
          each_head<T>(heads, [&](int64_t h, auto n) GB_LAMBDA {
            decltype(get(factor, n)) sum{};
            for (int64_t i = begin; i < end; ++i)
              sum += features[i * a.edge_channels + f] * get(factor + i * heads + h, n);
            put(to + r * size + f * heads + h, sum, n);
          });
        begin = end;
      }
    });
  }

  // The sum over f of mixed[f, h] * map[f, h, :] in some columns.
  template <typename At>
  GB_INLINE Vec<T> mapped(const At& at, const T* mixed) const {
    Vec<T> sum{};
    for (int64_t f = 0; f < a.edge_channels; ++f)
      sum += at.read(map + f * width) * at.numbers(mixed + f * a.heads);
    return sum;
  }
};

template <typename T>
void dot_forward_typed(const AttentionArgs& a) {
  constexpr int L = kLanes<T>;
  const DotAttention<T> k{{a}};
  const RowGroups groups(a.indptr, k.values.bytes());
  const int64_t distance = k.keys.distance(), most = groups.most_rows * a.heads;
  parallel_rows(a.indptr, a.num_dst, 4 * (k.values.bytes() / 64 + 1), [&](int64_t first, int64_t last) {
    EdgeRows<T> rows;
    Buffer<T> tops(most + L), totals(most + L), features, mixed(groups.most_rows * k.size + L);
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
      T* value = rows.value.data();
      const int64_t size = (next - first) * a.heads;
      edge_dots<T>(
          a.heads, a.channels, k.keys, distance, rows, [&](int64_t v) GB_LAMBDA { return k.queries[v]; },
          value);
      if (k.map) {
        k.collect_features(rows, features);
        k.multiply_by_map(k.queries, first, next, mixed.data());
        k.add_products(
            rows, features.data(),
            [&](int64_t i) GB_LAMBDA { return mixed.data() + (rows.of[i] - first) * k.size; }, value);
      }
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
      if (k.map) {
        k.mix(rows, features.data(), value, mixed.data());
        for (int64_t r = 0; r < rows.rows; ++r)
          for (int64_t f = 0; f < k.size; ++f) mixed[r * k.size + f] *= totals[r * a.heads + f % a.heads];
        if (a.mixed) std::copy_n(mixed.data(), rows.rows * k.size, static_cast<T*>(a.mixed) + first * k.size);
      }
      add_rows<false>(k.slots, k.values, distance, rows, value, value,
                      [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>&) GB_LAMBDA {
                        Vec<T> whole = sum * at.numbers(totals.data() + r * a.heads);
                        if (k.map) whole += k.mapped(at, mixed.data() + r * k.size);
                        at.write(out + r * k.width, whole);
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

// Of each destination its products with the map, (edge_channels, heads), and behind them those of its grad.
template <typename T>
struct MapProducts {
  int64_t size;
  Buffer<T> numbers;

  MapProducts(const DotAttention<T>& k, const SummedRows<T>& grads)
      : size(k.size), numbers(2 * k.a.num_dst * k.size + kLanes<T>) {
    if (!k.map) return;
    parallel_static(k.a.num_dst, 1024, [&](int64_t first, int64_t last) {
      Buffer<T> some(2 * size + kLanes<T>);
      for (int64_t v = first; v < last; ++v) {
        k.multiply_by_map(k.queries, v, v + 1, some.data());
        k.multiply_by_map(grads, v, v + 1, some.data() + size);
        std::copy_n(some.data(), 2 * size, numbers.data() + 2 * v * size);
      }
    });
  }
  GB_INLINE const T* operator[](int64_t v) const { return numbers.data() + 2 * v * size; }
  GB_INLINE void prefetch(int64_t v) const {
    if (size > 0) prefetch_far((*this)[v], 2 * size * static_cast<int64_t>(sizeof(T)));
  }
};

// The map's gradient. reached: the sums of features times g, (num_dst, edge_channels, heads).
template <typename T>
void dot_map_gradient(const AttentionBackwardArgs& b, const DotAttention<T>& k, const SummedRows<T>& grads,
                      const T* reached) {
  constexpr int64_t together = 32;  // rows that stay in the first-level cache
  const AttentionArgs& a = b.forward;
  const int64_t map_size = a.edge_channels * k.width;
  std::vector<T> parts(static_cast<size_t>(num_shares(a.indptr, a.num_dst) * map_size));
  const auto make = [&] { return Buffer<T>(together * k.size + kLanes<T>); };
  const auto walk = [&](int64_t share, int64_t first, int64_t last, Buffer<T>& mixed) {
    for (int64_t next; first < last; first = next) {
      next = std::min(first + together, last);
      // A copy, since whole vectors are read of it.
      std::copy_n(static_cast<const T*>(a.mixed) + first * k.size, (next - first) * k.size, mixed.data());
      k.slots.template tiles<4>([&](auto mixes, auto full, auto nv, const HeadSlot<T>* tile, bool) GB_LAMBDA {
        constexpr int NV = decltype(nv)::value;
        using At = Columns<T, mixes, full>;
        for (int64_t f = 0; f < a.edge_channels; ++f) {
          Vec<T> sum[NV] = {};
          for (int64_t v = first; v < next; ++v) {
            const T *of_grad = mixed.data() + (v - first) * k.size + f * a.heads,
                    *of_query = reached + v * k.size + f * a.heads;
            unroll<NV>([&](auto s) GB_LAMBDA {
              const At at{tile, s};
              sum[s] +=
                  at.read(grads[v]) * at.numbers(of_grad) + at.read(k.queries[v]) * at.numbers(of_query);
            });
          }
          T* to = parts.data() + share * map_size + f * k.width;
          unroll<NV>([&](auto s) GB_LAMBDA { At{tile, s}.add(to, sum[s]); });
        }
      });
    }
  };
  parallel_shares(a.indptr, a.num_dst, k.values.bytes() / 32 + 1, make, walk);
  sum_shares<T>(parts, nullptr, a.edge_channels, k.width, static_cast<T*>(b.grad_edge_weight));
}

template <typename T>
void dot_backward_typed(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const DotAttention<T> k{{a}};
  const SummedRows<T> grads{static_cast<const T*>(b.grad), k.width};
  const DestinationRecords<T> records = dot_records<T>(b);
  const MapProducts<T> of_map(k, grads);
  const int64_t distance = k.keys.distance(), work = 6 * (k.values.bytes() / 64 + 1);
  // to[row, :] = or += the sum over the row's edges of factor * x[node], fetched `ahead` edges ahead
  const auto add = [&](const EdgeRows<T>& rows, const SummedRows<T>& x, const T* factor, void* to,
                       int64_t ahead = 0, const T* mixed = nullptr) GB_LAMBDA {
    if (!to) return;
    T* target = static_cast<T*>(to) + rows.first * k.width;
    add_rows<false>(k.slots, x, ahead, rows, factor, factor,
                    [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>&) GB_LAMBDA {
                      const Vec<T> whole = mixed ? sum + k.mapped(at, mixed + r * k.size) : sum;
                      b.adds ? at.add(target + r * k.width, whole) : at.write(target + r * k.width, whole);
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
  // The part of edges' features in these products. to_row(i): the destination of edge i.
  const auto add_features = [&](EdgeRows<T>& rows, const Buffer<T>& features, const auto& to_row) GB_LAMBDA {
    k.add_products(
        rows, features.data(), [&](int64_t i) GB_LAMBDA { return of_map[to_row(i)]; }, rows.value.data());
    k.add_products(
        rows, features.data(), [&](int64_t i) GB_LAMBDA { return of_map[to_row(i)] + k.size; },
        rows.extra.data());
  };
  const RowGroups by_destination(a.indptr, k.values.bytes()), by_source(b.t_indptr, k.values.bytes());
  T* kept = static_cast<T*>(b.grad_logit);
  if (b.grad_src || b.grad_key || kept)
    parallel_rows(b.t_indptr, a.num_src, work, [&](int64_t first, int64_t last) {
      EdgeRows<T> rows;
      Buffer<T> features;
      for (int64_t next; first < last; first = next) {
        next = by_source.end(first, last);
        k.collect_all(first, next, b.t_indptr, b.t_indptr[last], b.t_indices, b.perm, rows);
        for (int64_t i = 0; i < rows.count; ++i) {
          records.prefetch(rows.nodes[i]);
          of_map.prefetch(rows.nodes[i]);
        }
        const int64_t* places = kept ? b.perm + b.t_indptr[first] : nullptr;
        if (kept)
          for (int64_t i = 0; i < rows.count; ++i) __builtin_prefetch(kept + places[i] * a.heads, 1);
        products(rows, k.keys, k.queries, k.values, grads);
        if (k.map) {
          k.collect_features(rows, features);
          add_features(rows, features, [&](int64_t i) GB_LAMBDA { return rows.nodes[i]; });
        }
        dot_gradients(k, rows, [&](int64_t i) GB_LAMBDA { return records[rows.nodes[i]]; });
        add(rows, grads, rows.value.data(), b.grad_src);
        add(rows, k.queries, rows.extra.data(), b.grad_key);
        if (kept) put_edges(a.heads, rows, rows.extra.data(), places, kept);
      }
    });
  Buffer<T> reached(b.grad_edge_weight ? a.num_dst * k.size + kLanes<T> : 0);
  if (b.grad_dst || b.grad_edge_weight)
    parallel_rows(a.indptr, a.num_dst, work, [&](int64_t first, int64_t last) {
      EdgeRows<T> rows;
      Buffer<T> features, mixed(by_destination.most_rows * k.size + kLanes<T>);
      for (int64_t next; first < last; first = next) {
        next = by_destination.end(first, last);
        k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
        if (k.map) k.collect_features(rows, features);
        if (kept) {
          std::copy_n(kept + a.indptr[first] * a.heads, rows.count * a.heads, rows.extra.data());
        } else {
          products(rows, k.queries, k.keys, grads, k.values);
          if (k.map) add_features(rows, features, [&](int64_t i) GB_LAMBDA { return rows.of[i]; });
          dot_gradients(k, rows, [&](int64_t i) GB_LAMBDA { return records[rows.of[i]]; });
        }
        if (k.map) k.mix(rows, features.data(), rows.extra.data(), mixed.data());
        if (b.grad_edge_weight)
          std::copy_n(mixed.data(), rows.rows * k.size, reached.data() + first * k.size);
        add(rows, k.keys, rows.extra.data(), b.grad_dst, kept ? distance : 0, k.map ? mixed.data() : nullptr);
      }
    });
  if (b.grad_edge_weight) dot_map_gradient(b, k, grads, reached.data());
}

void dot_forward(const AttentionArgs& a) {
  a.dtype == DType::kFloat32 ? dot_forward_typed<float>(a) : dot_forward_typed<double>(a);
}
void dot_backward(const AttentionBackwardArgs& b) {
  b.forward.dtype == DType::kFloat32 ? dot_backward_typed<float>(b) : dot_backward_typed<double>(b);
}

}  // namespace gb::GB_VARIANT
