// Copies of narrow rows.
#pragma once

#include <cstddef>
#include <cstring>

namespace gb {

// Calls f(copy), where copy(to, from) copies one row. A narrow row is copied by two moves of a constant size:
// its first and its last bytes, which may overlap. A call of memcpy takes several times as long.
template <size_t kMove = 4, typename F>
void with_row_copy(size_t bytes, const F& f) {
  if constexpr (kMove > 32) {
    f([bytes](char* to, const char* from) { std::memcpy(to, from, bytes); });
  } else if (bytes < kMove || bytes > 2 * kMove) {
    with_row_copy<2 * kMove>(bytes, f);
  } else {
    f([rest = bytes - kMove](char* to, const char* from) {
      std::memcpy(to, from, kMove);
      std::memcpy(to + rest, from + rest, kMove);
    });
  }
}

}  // namespace gb
