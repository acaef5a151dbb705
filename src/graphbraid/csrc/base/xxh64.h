// XXH64 of a block of bytes with seed 0, as the xxHash library defines it. Python's xxhash computes it when a
// store is written, and a test compares both. The build must not need the library's header, so it is written
// out here.
#pragma once

#include <cstdint>
#include <cstring>

namespace gb {

namespace xxh {
inline constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                          kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                          kPrime5 = 0x27D4EB2F165667C5;

inline uint64_t rotated(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
inline uint64_t round(uint64_t lane, uint64_t word) { return rotated(lane + word * kPrime2, 31) * kPrime1; }
inline uint64_t merged(uint64_t sum, uint64_t lane) { return (sum ^ round(0, lane)) * kPrime1 + kPrime4; }
template <typename T>
T read(const char* at) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
}  // namespace xxh

inline uint64_t xxh64(const char* at, int64_t num_bytes) {
  using namespace xxh;
  const char* const end = at + num_bytes;
  uint64_t sum = kPrime5;
  if (num_bytes >= 32) {
    uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = uint64_t{0} - kPrime1;
    for (; end - at >= 32; at += 32) {
      a = round(a, read<uint64_t>(at));
      b = round(b, read<uint64_t>(at + 8));
      c = round(c, read<uint64_t>(at + 16));
      d = round(d, read<uint64_t>(at + 24));
    }
    sum = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18);
    sum = merged(merged(merged(merged(sum, a), b), c), d);
  }
  sum += static_cast<uint64_t>(num_bytes);
  for (; end - at >= 8; at += 8) sum = rotated(sum ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    sum = rotated(sum ^ (read<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) sum = rotated(sum ^ (static_cast<uint8_t>(*at) * kPrime5), 11) * kPrime1;
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

}  // namespace gb
