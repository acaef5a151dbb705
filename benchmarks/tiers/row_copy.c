/* The limit of benchmarks.tiers.gather: copies rows by id, with a prefetch some rows ahead, and nothing else.

     table (num_rows, row_bytes), ids (num_ids,)  --->  out (num_ids, row_bytes)

   `ahead` rows are fetched before they are copied, 0: none. `past` writes past the caches where the machine
   can, which is right for rows that are not read at once; the caller takes the faster of both. */
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
static void copy_past(char* to, const char* from, int64_t num_bytes) {
  for (int64_t b = 0; b < num_bytes; b += 64)
    _mm512_stream_si512((__m512i*)(to + b), _mm512_loadu_si512(from + b));
}
#elif defined(__SSE2__)
#include <immintrin.h>
static void copy_past(char* to, const char* from, int64_t num_bytes) {
  for (int64_t b = 0; b < num_bytes; b += 16)
    _mm_stream_si128((__m128i*)(to + b), _mm_loadu_si128((const __m128i*)(from + b)));
}
#else
static void copy_past(char* to, const char* from, int64_t num_bytes) { memcpy(to, from, num_bytes); }
#endif

void copy_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out,
               int64_t ahead, int past) {
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ahead > 0 && i + ahead < num_ids) {
      const char* next = table + ids[i + ahead] * row_bytes;
      for (int64_t b = 0; b < row_bytes; b += 64) __builtin_prefetch(next + b, 0, 2);
    }
    if (past)
      copy_past(out + i * row_bytes, table + ids[i] * row_bytes, row_bytes);
    else
      memcpy(out + i * row_bytes, table + ids[i] * row_bytes, row_bytes);
  }
}
