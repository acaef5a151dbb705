// Storage types of feature rows. Sums run in Acc<T>: float for the 16-bit types, else T itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace gb {

enum class DType : int { kFloat32, kFloat64, kBfloat16, kFloat16 };

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

template <typename T>
struct AccOf {
  using type = T;
};
template <>
struct AccOf<Bf16> {
  using type = float;
};
template <>
struct AccOf<F16> {
  using type = float;
};
template <typename T>
using Acc = typename AccOf<T>::type;

inline float to_acc(float x) { return x; }
inline double to_acc(double x) { return x; }
inline float to_acc(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline float to_acc(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7FFFu;
  uint32_t bits = sign | ((magnitude << 13) + (112u << 23));  // rebias the exponent from 15 to 127
  float out;
  if (magnitude >= 0x7C00u) {  // infinity and NaN
    bits = sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13);
    std::memcpy(&out, &bits, 4);
    return out;
  }
  if (magnitude < 0x0400u) {  // zero and subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  std::memcpy(&out, &bits, 4);
  return out;
}

// Rounds to nearest, ties to even, as torch's conversions do: adds just under half of the last kept bit, and
// one more if that bit is set, so that a tie rounds up only from an odd number.
inline void from_acc(float x, float& out) { out = x; }
inline void from_acc(double x, double& out) { out = x; }
inline void from_acc(float x, Bf16& out) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  out.bits = x != x ? 0x7FC0u : static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
inline void from_acc(float x, F16& out) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) {
    out.bits = sign | 0x7E00u;
  } else if (bits >= 0x477FF000u) {  // 65520 and more round to infinity
    out.bits = sign | 0x7C00u;
  } else if (bits <
             0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the mantissa
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    out.bits = static_cast<uint16_t>(sign | (bits - 0x3F000000u));
  } else {
    out.bits = static_cast<uint16_t>(sign | ((bits - (112u << 23) + 0x0FFFu + ((bits >> 13) & 1u)) >> 13));
  }
}

}  // namespace gb
