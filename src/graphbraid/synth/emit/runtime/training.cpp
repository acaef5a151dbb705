#include "training.h"

#include <cstdlib>
#include <new>

#include "base/hugepages.h"

namespace program {

Arena::Arena(int64_t bytes) {
  constexpr size_t kPage = size_t{1} << 21;
  // aligned_alloc needs a multiple of the alignment. An arena of 0 bytes gets a page, too.
  const size_t size = (static_cast<size_t>(bytes) + kPage) / kPage * kPage;
  begin_ = static_cast<char*>(std::aligned_alloc(kPage, size));
  if (begin_ == nullptr) throw std::bad_alloc();
  gb::use_huge_pages(begin_, static_cast<int64_t>(size));
}

Arena::~Arena() { std::free(begin_); }

}  // namespace program
