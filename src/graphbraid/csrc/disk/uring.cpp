#include "disk/uring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#if __has_include(<linux/io_uring.h>) && defined(__NR_io_uring_setup)
#include <linux/io_uring.h>
#define GB_HAS_URING 1
#endif

namespace gb {

#ifdef GB_HAS_URING

namespace {

template <typename T>
T* placed(void* base, uint32_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

void* map_part(int ring, uint64_t num_bytes, uint64_t part) {
  void* at = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                  static_cast<off_t>(part));
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

std::unique_ptr<Ring> Ring::make(unsigned entries, std::string& refused) {
  std::unique_ptr<Ring> ring(new Ring);
  refused = ring->map(entries);
  return refused.empty() ? std::move(ring) : nullptr;
}

// Returns the system's message if it refused; else an empty text.
std::string Ring::map(unsigned entries) {
  io_uring_params params{};
  ring_ = static_cast<int>(syscall(__NR_io_uring_setup, entries, &params));
  if (ring_ < 0) return std::string("io_uring_setup: ") + std::strerror(errno);
  if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) return "io_uring of a kernel before 5.4";
  rings_.num_bytes =
      std::max<uint64_t>(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                         params.cq_off.cqes + params.cq_entries * uint64_t{sizeof(io_uring_cqe)});
  requests_.num_bytes = params.sq_entries * uint64_t{sizeof(io_uring_sqe)};
  rings_.at = map_part(ring_, rings_.num_bytes, IORING_OFF_SQ_RING);
  requests_.at = map_part(ring_, requests_.num_bytes, IORING_OFF_SQES);
  if (rings_.at == nullptr || requests_.at == nullptr)
    return std::string("mapping io_uring's queues: ") + std::strerror(errno);
  sq_tail_ = placed<unsigned>(rings_.at, params.sq_off.tail);
  sq_array_ = placed<unsigned>(rings_.at, params.sq_off.array);
  sq_mask_ = *placed<unsigned>(rings_.at, params.sq_off.ring_mask);
  cq_head_ = placed<unsigned>(rings_.at, params.cq_off.head);
  cq_tail_ = placed<unsigned>(rings_.at, params.cq_off.tail);
  cq_mask_ = *placed<unsigned>(rings_.at, params.cq_off.ring_mask);
  completions_ = placed<void>(rings_.at, params.cq_off.cqes);
  return {};
}

Ring::~Ring() {
  if (rings_.at != nullptr) munmap(rings_.at, rings_.num_bytes);
  if (requests_.at != nullptr) munmap(requests_.at, requests_.num_bytes);
  if (ring_ >= 0) close(ring_);
}

void Ring::queue_read(int file, char* to, int64_t num_bytes, int64_t offset, uint64_t tag) {
  const unsigned tail = *sq_tail_, place = tail & sq_mask_;  // only this side writes the tail
  io_uring_sqe& request = static_cast<io_uring_sqe*>(requests_.at)[place];
  std::memset(&request, 0, sizeof(request));
  request.opcode = IORING_OP_READ;
  request.fd = file;
  request.off = static_cast<uint64_t>(offset);
  request.addr = reinterpret_cast<uint64_t>(to);
  request.len = static_cast<uint32_t>(num_bytes);
  request.user_data = tag;
  sq_array_[place] = place;
  __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);  // after the request: the kernel reads it from now
  ++num_queued_;
}

void Ring::submit_and_wait() {
  for (;;) {
    const long taken =
        syscall(__NR_io_uring_enter, ring_, num_queued_, 1u, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken >= 0) {
      num_queued_ -= static_cast<unsigned>(taken);
      if (num_queued_ == 0) return;
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
      throw std::system_error(errno, std::generic_category(), "io_uring_enter");
    } else if (errno != EINTR) {
      return;  // the kernel is short of something: what has completed must be taken first
    }
  }
}

int Ring::take_completed(const std::function<void(uint64_t, int64_t)>& done) {
  unsigned head = *cq_head_;  // only this side writes the head
  const unsigned tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
  int count = 0;
  for (; head != tail; ++count) {
    const io_uring_cqe completed = static_cast<io_uring_cqe*>(completions_)[head & cq_mask_];
    __atomic_store_n(cq_head_, ++head, __ATOMIC_RELEASE);  // after the copy: the kernel may reuse the place
    done(completed.user_data, completed.res);
  }
  return count;
}

#else

std::unique_ptr<Ring> Ring::make(unsigned, std::string& refused) {
  refused = "this build was made without io_uring's header";
  return nullptr;
}
Ring::~Ring() = default;
void Ring::queue_read(int, char*, int64_t, int64_t, uint64_t) {}
void Ring::submit_and_wait() {}
int Ring::take_completed(const std::function<void(uint64_t, int64_t)>&) { return 0; }

#endif

}  // namespace gb
