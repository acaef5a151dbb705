// Class-bearing noisy features of the embedded datasets:
//
//   class_of  (num_nodes,)                 int32, in [0, num_classes)
//   centre    (num_classes, num_features)  int32, |noise + centre| < 2²⁴: exact in float32
//     --->  out  (num_nodes, num_features)  float32, overwritten
//
//   out[v, f] = (noise(v·num_features + f) + centre[class_of[v], f]) · 2⁻¹⁵
//
// noise(i) adds the four 16-bit parts of mix(key + i·φ), less their mean: close to normal, deviation 37837.
// Integers until the last step, so that every variant, and the NumPy twin, gives the same bits.

namespace gb::GB_VARIANT {

inline void block_model_features(const int32_t* class_of, const int32_t* centre, uint64_t key, float* out,
                                 int64_t first, int64_t last, int64_t num_features) {
  for (int64_t v = first; v < last; ++v) {
    const int32_t* __restrict row_centre = centre + static_cast<int64_t>(class_of[v]) * num_features;
    float* __restrict row = out + v * num_features;
    const uint64_t start = static_cast<uint64_t>(v * num_features);
    for (int64_t f = 0; f < num_features; ++f) {
      const uint64_t bits = mix(key + (start + static_cast<uint64_t>(f)) * kPhi);
      // Adds two pairs of 16-bit parts at once: each sum has 17 bits of its half's 32.
      const uint64_t pairs = (bits & 0x0000FFFF0000FFFFull) + ((bits >> 16) & 0x0000FFFF0000FFFFull);
      const int32_t sum =
          static_cast<int32_t>(static_cast<uint32_t>(pairs) + static_cast<uint32_t>(pairs >> 32));
      row[f] = static_cast<float>(sum - 2 * 65535 + row_centre[f]) * (1.0f / 32768.0f);
    }
  }
}

}  // namespace gb::GB_VARIANT
