// Spreads rows to their places (the reverse of a gather), adds rows by id, and copies rows by slot.
//
// Spreading:
//
//   rows   (num_rows, width)  float
//   place  (num_out,)         int32, the row that goes to each row of out; -1: none, and zeros are written
//   out    (num_out, width)   float, overwritten; must not overlap rows
//
// Bound by writing out. Rows of out are written in order: nothing is cleared first, and threads share them.
//
// Adding, out[ids[i], :] += rows[i, :] in the order of i:
//
//   rows   (num_rows, width)  float
//   ids    (num_rows,)        int32 or int64, rows of out; repeats are allowed
//   out    (num_out, width)   float, added to; must not overlap rows
//
// A thread owns some rows of out and passes over all ids, so no two write one row, and each row's terms are
// added in the order of i by any number of threads. ops/gather.py describes the operators.
//
// Copying rows of any dtype by slots; slot -1 copies nothing:
//
//   take_rows   out[i, :] = table[slots[i], :]     several tables in turn fill the rows of one out
//   put_rows    table[slots[i], :] = rows[i, :]    in the order of i
//
// Dropout of the stored values of CSR rows, each written by row and to its place by column:
//
//   indptr  (num_rows + 1,)          columns, values, places, by_row, by_column  (num_values,)
//   ids     (num_rows,)  int64, the nodes that the rows' masks are drawn for; the rows' numbers without
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arguments/binding.h"
#include "base/dropout.h"
#include "gather/gather.h"
#include "gather/narrow_rows.h"
#include "threads/parallel.h"
#include "threads/worth.h"

namespace gb {

static void spread_rows(const Array2<const float>& rows, const Array1<const int32_t>& place,
                        const Array2<float>& out) {
  const int64_t num_rows = rows.num_rows(), width = rows.num_columns(), num_out = place.length();
  need_shape(out, num_out, width);
  if (width == 0) return;  // nothing to copy, and `zeros` would have no address
  const int32_t* at = place.data();
  const float* from = rows.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width));
  const std::vector<float> zeros(static_cast<size_t>(width));
  std::atomic<bool> fits{true};
  with_row_copy(static_cast<size_t>(width) * sizeof(float), [&](const auto& copy) {
    parallel_if_worth(num_out * width, kFloatsWorth, num_out, grain, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        if (at[v] >= num_rows) {
          fits = false;
          return;
        }
        // Chosen without a branch, which nobody could predict.
        const float* row = at[v] < 0 ? zeros.data() : from + at[v] * width;
        copy(reinterpret_cast<char*>(to + v * width), reinterpret_cast<const char*>(row));
      }
    });
  });
  need(fits, "place must name rows");
}

// A thread's rows of out come in groups, so that threads seldom share a cache line of narrow rows.
inline constexpr int64_t kGroup = 16;

template <typename T>
static void add_owned(const float* rows, const T* ids, int64_t num_rows, int64_t width, float* out,
                      int64_t owner, int64_t owners) {
  for (int64_t i = 0; i < num_rows; ++i) {
    if (owners > 1 && (ids[i] / kGroup) % owners != owner) continue;
    float* to = out + static_cast<int64_t>(ids[i]) * width;
    const float* from = rows + i * width;
    for (int64_t c = 0; c < width; ++c) to[c] += from[c];
  }
}

static void add_rows(const Array2<const float>& rows, const Ids& ids, const Array2<float>& out) {
  const int64_t num_rows = rows.num_rows(), width = rows.num_columns(), num_out = out.num_rows();
  need_length(ids, num_rows);
  need_shape(out, num_out, width);
  const float* from = rows.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  with_ids(ids, [&](const auto* at) {
    for (int64_t i = 0; i < num_rows; ++i) need(at[i] >= 0 && at[i] < num_out, "ids must name rows of out");
    const int64_t owners = num_rows * width >= 2 * kFloatsWorth ? max_threads() : 1;
    parallel_dynamic(owners, 1, [&](int64_t begin, int64_t end) {
      for (int64_t owner = begin; owner < end; ++owner)
        add_owned(from, at, num_rows, width, to, owner, owners);
    });
  });
}

static void need_slots(const Array1<const int32_t>& slots, int64_t num_rows) {
  for (int64_t i = 0; i < slots.length(); ++i) need(slots.data()[i] < num_rows, "slots must name rows");
}

constexpr int64_t kRowsWorthAThread = 256;

static void take_rows(const Array2<const uint8_t>& table, const Array1<const int32_t>& slots,
                      const Array2<uint8_t>& out) {
  const int64_t row_bytes = table.num_columns(), count = slots.length();
  need_shape(out, count, row_bytes);
  const int32_t* at = slots.data();
  const char* from = reinterpret_cast<const char*>(table.data());
  char* to = reinterpret_cast<char*>(out.data());
  nb::gil_scoped_release release;
  need_slots(slots, table.num_rows());
  parallel_static(count, kRowsWorthAThread, [&](int64_t begin, int64_t end) {
    copy_slots(from, row_bytes, at + begin, end - begin, to + begin * row_bytes);
  });
}

static void put_rows(const Array2<const uint8_t>& rows, const Array1<const int32_t>& slots,
                     const Array2<uint8_t>& table) {
  const int64_t row_bytes = rows.num_columns(), count = slots.length();
  need_shape(rows, count, row_bytes);
  need_shape(table, table.num_rows(), row_bytes);
  const int32_t* at = slots.data();
  const uint8_t* from = rows.data();
  uint8_t* to = table.data();
  nb::gil_scoped_release release;
  need_slots(slots, table.num_rows());
  for (int64_t i = 0; i < count; ++i)
    if (at[i] >= 0) std::memcpy(to + at[i] * row_bytes, from + i * row_bytes, static_cast<size_t>(row_bytes));
}

static void drop_values(const Indptr& indptr, const Ids& columns, const Array1<const float>& values,
                        const Array1<const int64_t>& places, double p, uint64_t seed,
                        const Array1<float>& by_row, const Array1<float>& by_column, const OptionalIds& ids) {
  const int64_t count = values.length(), num_rows = rows_between(indptr, count);
  for (const AnyArray* array :
       {static_cast<const AnyArray*>(&columns), static_cast<const AnyArray*>(&places),
        static_cast<const AnyArray*>(&by_row), static_cast<const AnyArray*>(&by_column)})
    need_length(*array, count);
  need_length(ids, num_rows);
  need(p >= 0 && p < 1, "p must be at least 0 and below 1");
  const int64_t *begins = indptr.data(), *to = places.data(), *nodes = data_or_null(ids);
  const float *from = values.data(), scale = static_cast<float>(1 / (1 - p));
  float *rows = by_row.data(), *turned = by_column.data();
  const uint32_t least = drop_threshold(p);
  nb::gil_scoped_release release;
  with_ids(columns, [&](const auto* column) {
    parallel_if_worth(4 * count, kFloatsWorth, num_rows, 256, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const uint32_t key = dropout_row_key(seed, static_cast<uint64_t>(nodes ? nodes[v] : v));
        for (int64_t e = begins[v]; e < begins[v + 1]; ++e) {
          need(to[e] >= 0 && to[e] < count, "places must name values");
          const bool is_kept = dropout_bits(key, static_cast<uint32_t>(column[e])) >= least;
          turned[to[e]] = rows[e] = is_kept ? from[e] * scale : 0.0f;
        }
      }
    });
  });
}

void bind_spread(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "take_rows", &take_rows, "table"_a, "slots"_a, "out"_a);
  def_native(m, "put_rows", &put_rows, "rows"_a, "slots"_a, "table"_a);
  def_native(m, "drop_values", &drop_values, "indptr"_a, "columns"_a, "values"_a, "places"_a, "p"_a, "seed"_a,
             "by_row"_a, "by_column"_a, "ids"_a = nb::none());
  def_native(m, "spread_rows", &spread_rows, "rows"_a, "place"_a, "out"_a);
  def_native(m, "add_rows", &add_rows, "rows"_a, "ids"_a, "out"_a);
}

}  // namespace gb
