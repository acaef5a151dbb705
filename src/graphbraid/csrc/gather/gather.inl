// Gathers rows, as bytes, or widened to float32 on the way:
//
//   table (num_rows, row_bytes), ids (num_ids,)  --->  out (num_ids, row_bytes)
//
//   gather_rows       out[i, :] = table[ids[i], :]
//   copy_slots        out[i, :] = table[slots[i], :], where the slot is not negative
//   gather_as_float   out[i, :] = float(table[ids[i], :])
//   gather_scaled     out[i, :] = scale[ids[i]] * float(table[ids[i], :]), of int8
//
// Bound by reading num_ids scattered rows and writing them in sequence.
//
// Rows are prefetched a fixed number of bytes ahead, so that enough lines are on their way whatever the row's
// size, and into the second-level cache: it can wait for more lines at a time than the first. Long rows are
// written past the caches (they are read next by another core, and much later): a plain store would first
// read the line it overwrites, a third more traffic. What only prefetches must be inlined: GCC takes a call
// of it for one without effect, and leaves it out.

namespace gb::GB_VARIANT {
namespace {

#include "variants/simd.inl"

constexpr int64_t kLine = 64;
constexpr int64_t kBytesAhead = 8192;
constexpr int kSecondLevel = 2;

GB_INLINE void prefetch_ahead(const char* row, int64_t row_bytes) {
  for (int64_t b = 0; b < row_bytes; b += kLine) __builtin_prefetch(row + b, 0, kSecondLevel);
  __builtin_prefetch(row + row_bytes - 1, 0, kSecondLevel);
}

inline void stream_row(const char* from, char* to, int64_t row_bytes) {
#if GB_LANES_F32 == 16
  for (int64_t b = 0; b < row_bytes; b += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + b), _mm512_loadu_si512(from + b));
#elif GB_LANES_F32 == 8
  for (int64_t b = 0; b < row_bytes; b += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + b),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + b)));
#else
  std::memcpy(to, from, static_cast<size_t>(row_bytes));
#endif
}

inline void widen_row(const float* from, float* to, int64_t width, float /*scale*/) {
  std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
}
template <typename T>
inline void widen_row(const T* from, float* to, int64_t width, float /*scale*/) {
  constexpr int L = kLanes<T>;
  int64_t i = 0;
  for (; i + L <= width; i += L) store(to + i, load(from + i));
  if (i < width) store_n(to + i, load_n(from + i, static_cast<int>(width - i)), static_cast<int>(width - i));
}
inline void widen_row(const int8_t* from, float* to, int64_t width, float scale) {
  for (int64_t i = 0; i < width; ++i) to[i] = scale * static_cast<float>(from[i]);
}

inline int64_t rows_ahead(int64_t row_bytes) {
  return std::clamp<int64_t>(kBytesAhead / std::max<int64_t>(row_bytes, 1), 2, 64);
}

template <typename T>
void widen_rows(const T* table, const float* scale, int64_t width, const int64_t* ids, int64_t num_ids,
                float* out) {
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(T)), ahead = rows_ahead(row_bytes);
  const auto prefetch = [&](int64_t i) GB_LAMBDA {
    prefetch_ahead(reinterpret_cast<const char*>(table + ids[i] * width), row_bytes);
  };
  for (int64_t i = 0; i < std::min(ahead, num_ids); ++i) prefetch(i);
  for (int64_t i = 0; i < num_ids; ++i) {
    if (i + ahead < num_ids) prefetch(i + ahead);
    widen_row(table + ids[i] * width, out + i * width, width, scale ? scale[ids[i]] : 1.0f);
  }
}

// out[i, :] = table[row(i), :] for i in [0, count) where row(i) is not negative, by copy(to, from).
template <typename Row, typename Copy>
void copy_ahead(const char* table, int64_t row_bytes, int64_t count, char* out, const Row& row,
                const Copy& copy) {
  const int64_t ahead = rows_ahead(row_bytes);
  const bool stream =
      row_bytes % kLine == 0 && reinterpret_cast<uintptr_t>(out) % kLine == 0 && row_bytes >= 2 * kLine;
  const auto prefetch = [&](int64_t i) GB_LAMBDA {
    if (i < count && row(i) >= 0) prefetch_ahead(table + row(i) * row_bytes, row_bytes);
  };
  for (int64_t i = 0; i < ahead; ++i) prefetch(i);
  for (int64_t i = 0; i < count; ++i) {
    prefetch(i + ahead);
    if (row(i) < 0) continue;
    const char* from = table + row(i) * row_bytes;
    char* to = out + i * row_bytes;
    if (stream)
      stream_row(from, to, row_bytes);
    else
      copy(to, from);
  }
#ifdef __x86_64__
  // Streaming stores are not ordered with later ones: without the fence, the thread that is told that the
  // rows are ready could read old bytes.
  if (stream) _mm_sfence();
#endif
}

}  // namespace

void gather_as_float(const void* table, DType dtype, int64_t width, const int64_t* ids, int64_t num_ids,
                     float* out) {
  if (dtype == DType::kBfloat16)
    widen_rows(static_cast<const Bf16*>(table), nullptr, width, ids, num_ids, out);
  else if (dtype == DType::kFloat16)
    widen_rows(static_cast<const F16*>(table), nullptr, width, ids, num_ids, out);
  else
    widen_rows(static_cast<const float*>(table), nullptr, width, ids, num_ids, out);
}

void gather_scaled(const int8_t* table, const float* scale, int64_t width, const int64_t* ids,
                   int64_t num_ids, float* out) {
  widen_rows(table, scale, width, ids, num_ids, out);
}

void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out) {
  with_row_copy(static_cast<size_t>(row_bytes), [&](const auto& copy) {
    copy_ahead(table, row_bytes, num_ids, out, [&](int64_t i) { return ids[i]; }, copy);
  });
}

void copy_slots(const char* table, int64_t row_bytes, const int32_t* slots, int64_t count, char* out) {
  with_row_copy(static_cast<size_t>(row_bytes), [&](const auto& copy) {
    copy_ahead(table, row_bytes, count, out, [&](int64_t i) { return int64_t{slots[i]}; }, copy);
  });
}

}  // namespace gb::GB_VARIANT
