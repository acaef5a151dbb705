// Reads by Linux's io_uring, through its system calls: one queue of requests to the kernel, one of what they
// gave. No library is needed, and none is linked.
//
// For one thread at a time. Whoever queues a read keeps its memory until the read has completed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace gb {

class Ring {
 public:
  // Makes a ring for up to `entries` reads at a time. Null where the system has no io_uring or refuses it, as
  // containers often do; `refused` then says why.
  static std::unique_ptr<Ring> make(unsigned entries, std::string& refused);
  ~Ring();
  Ring(const Ring&) = delete;

  // Queues a read; at most `entries` are queued or under way at a time.
  void queue_read(int file, char* to, int64_t num_bytes, int64_t offset, uint64_t tag);
  // Hands over what was queued and waits until a read has completed. Throws std::system_error.
  void submit_and_wait();
  // done(tag, bytes read or -errno) for each completed read; returns how many.
  int take_completed(const std::function<void(uint64_t, int64_t)>& done);

 private:
  Ring() = default;
  std::string map(unsigned entries);

  struct Mapping {
    void* at = nullptr;
    uint64_t num_bytes = 0;
  };
  int ring_ = -1;
  Mapping rings_, requests_;
  unsigned num_queued_ = 0;
  // Places in the mappings that the kernel reads or writes, too.
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
  void* completions_ = nullptr;
};

}  // namespace gb
