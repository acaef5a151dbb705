// Spreading rows, what gathering them is the other way round:
//
//   rows   (num_rows, width)  float
//   place  (num_out,)         int32, the row that each row of out is; -1: none, and it is zero
//   out    (num_out, width)   float, overwritten; must not overlap rows
//
// ops/gather.py describes the operator. Bound by writing out; its rows are taken in order, so that
// nothing is cleared first and threads share them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arguments/binding.h"
#include "threads/worth.h"

namespace gb {

static void spread_rows(const Array2<const float>& rows, const Array1<const int32_t>& place,
                        const Array2<float>& out) {
  const int64_t num_rows = rows.num_rows(), width = rows.num_columns(), num_out = place.length();
  need_shape(out, num_out, width);
  if (width == 0) return;  // nor is there a row to point at
  const int32_t* at = place.data();
  const float* from = rows.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width));
  const std::vector<float> zeros(static_cast<size_t>(width));
  std::atomic<bool> fits{true};
  parallel_if_worth(num_out * width, kFloatsWorth, num_out, grain, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      if (at[v] >= num_rows) {
        fits = false;
        return;
      }
      // Chosen without a branch, which nobody could predict.
      const float* row = at[v] < 0 ? zeros.data() : from + at[v] * width;
      std::memcpy(to + v * width, row, static_cast<size_t>(width) * sizeof(float));
    }
  });
  need(fits, "place must name rows");
}

void bind_spread(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "spread_rows", &spread_rows, "rows"_a, "place"_a, "out"_a);
}

}  // namespace gb
