#include "disk/disk_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/xxh64.h"
#include "threads/parallel.h"
#include "threads/threads.h"

namespace gb {
namespace {

constexpr int64_t kMostMemory = int64_t{16} << 20;  // bytes of all slots, unless single rows need more
constexpr int kFewestRequests = 4;
constexpr int kMostThreadsReading = 32;
constexpr int kMostStalls = 16;  // successive reads of a request that may bring nothing new

int64_t block_of(int64_t byte) { return byte / kDiskBlock; }
int64_t blocks_up_to(int64_t byte) { return (byte + kDiskBlock - 1) / kDiskBlock; }

bool may_be_repeated(int64_t error) { return error == EINTR || error == EAGAIN; }

}  // namespace

// Blocks [begin, end) of the file, read at once, and the wanted rows [first, last) in them.
struct DiskReader::Request {
  int64_t begin, end, first, last;
};

// A request under way.
struct DiskReader::Slot {
  Request request{};
  char* memory = nullptr;
  int64_t needed = 0, done = 0;  // bytes
  int stalls = 0;

  void start(const Request& next, int64_t end_byte) {
    request = next;
    needed = std::min(next.end * kDiskBlock, end_byte) - next.begin * kDiskBlock;
    done = 0;
    stalls = 0;
  }
  int64_t offset() const { return request.begin * kDiskBlock + done; }
  // Whole blocks, past the file's end if need be: O_DIRECT takes nothing else.
  int64_t left() const { return (request.end - request.begin) * kDiskBlock - done; }
};

void DiskReader::Free::operator()(char* at) const { std::free(at); }

DiskReader::DiskReader(DiskTable table, DiskOptions options) : table_(std::move(table)), options_(options) {
  const int64_t row_blocks = blocks_up_to(table_.row_bytes) + 1;  // a row may begin inside a block
  slot_bytes_ = std::max(options_.longest / kDiskBlock, row_blocks) * kDiskBlock;
  const int64_t fit = std::max<int64_t>(kMostMemory / slot_bytes_, kFewestRequests);
  options_.depth = static_cast<int>(std::min<int64_t>(options_.depth, fit));
  take_memory();
  open_file();
  if (!options_.uring) why_threads_ = "asked for";
}

void DiskReader::take_memory() {
  const int64_t num_bytes = options_.depth * slot_bytes_;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kDiskBlock, static_cast<size_t>(num_bytes))));
  if (memory_ == nullptr) throw std::bad_alloc();
}

DiskReader::~DiskReader() {
  if (file_ >= 0) close(file_);
}

void DiskReader::open_file() {
  const char* path = table_.path.c_str();
  if (options_.direct) {
    file_ = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    is_direct_ = file_ >= 0 && pread(file_, memory_of(0), kDiskBlock, 0) >= 0;
    if (file_ >= 0 && !is_direct_) {
      close(file_);
      file_ = -1;
    }
  }
  if (file_ < 0) file_ = open(path, O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw FileRefused(table_.path + " cannot be opened: " + std::strerror(errno));
  // Requests say what is read: pages that the system would read ahead of them push others out of its cache.
  if (!is_direct_) static_cast<void>(posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM));
  struct stat found{};
  if (fstat(file_, &found) != 0) {
    const int error = errno;
    close(file_);
    file_ = -1;
    throw FileRefused(table_.path + " cannot be read: " + std::strerror(error));
  }
  if (S_ISREG(found.st_mode) && found.st_size < table_.end_byte()) {
    close(file_);
    file_ = -1;
    throw FileDamaged(table_.path + " is truncated: it has " + std::to_string(found.st_size) +
                      " bytes; its " + std::to_string(table_.num_rows) + " rows end at " +
                      std::to_string(table_.end_byte()));
  }
}

// A ring of this process; none where the system refuses it or does not know its reads.
void DiskReader::open_ring() {
  if (ring_process_ == getpid() || !options_.uring) return;
  ring_process_ = getpid();
  ring_ = Ring::make(static_cast<unsigned>(options_.depth), why_threads_);
  if (ring_ == nullptr) return;
  int64_t result = 0;
  ring_->queue_read(file_, memory_of(0), kDiskBlock, 0, 0);
  for (int taken = 0; taken == 0;) {
    ring_->submit_and_wait();
    taken = ring_->take_completed([&](uint64_t, int64_t read) { result = read; });
  }
  if (result >= 0) return;
  why_threads_ = std::string("a read by io_uring: ") + std::strerror(static_cast<int>(-result));
  ring_.reset();
}

bool DiskReader::uses_uring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ring();
  return ring_ != nullptr;
}

DiskCounts DiskReader::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void DiskReader::read(std::vector<WantedRow>& wanted, char* out) {
  if (wanted.empty() || table_.row_bytes == 0) return;
  const auto in_file_order = [](const WantedRow& a, const WantedRow& b) {
    return a.id != b.id ? a.id < b.id : a.place < b.place;
  };
  if (!std::is_sorted(wanted.begin(), wanted.end(), in_file_order))
    std::sort(wanted.begin(), wanted.end(), in_file_order);
  const std::vector<Request> requests = requests_for(wanted);
  const std::lock_guard<std::mutex> lock(mutex_);
  open_ring();
  try {
    ring_ != nullptr ? read_by_ring(requests, wanted, out) : read_by_threads(requests, wanted, out);
  } catch (const std::system_error& error) {
    // Reads may be under way that nobody can wait for, and the kernel may still write to their memory: it is
    // never freed, nor is the ring. Threads read from now on.
    static_cast<void>(memory_.release());
    static_cast<void>(ring_.release());
    options_.uring = false;
    why_threads_ = error.what();
    take_memory();
    throw FileRefused(table_.path + " cannot be read: " + why_threads_);
  }
  for (size_t i = 0; i < wanted.size(); ++i) counts_.rows += i == 0 || wanted[i].id != wanted[i - 1].id;
  counts_.requests += static_cast<int64_t>(requests.size());
  for (const Request& request : requests) counts_.bytes += (request.end - request.begin) * kDiskBlock;
}

std::vector<DiskReader::Request> DiskReader::requests_for(const std::vector<WantedRow>& wanted) const {
  std::vector<Request> requests;
  for (int64_t i = 0; i < static_cast<int64_t>(wanted.size()); ++i) {
    const int64_t at = row_at(wanted[static_cast<size_t>(i)].id);
    const int64_t begin = block_of(at), end = blocks_up_to(at + table_.row_bytes);
    if (!requests.empty()) {
      Request& last = requests.back();
      const bool is_near = begin <= last.end + options_.gap;
      const bool is_short = (std::max(end, last.end) - last.begin) * kDiskBlock <= options_.longest;
      const bool is_same = end <= last.end;  // in what is read anyway
      if (is_same || (is_near && is_short)) {
        last.end = std::max(last.end, end);
        last.last = i + 1;
        continue;
      }
    }
    requests.push_back({begin, end, i, i + 1});
  }
  return requests;
}

// Takes in the result of a read of the slot: bytes, or -errno. Returns whether the request is complete.
bool DiskReader::take(Slot& slot, int64_t result, const std::vector<WantedRow>& wanted) const {
  const int64_t row = wanted[static_cast<size_t>(slot.request.first)].id;
  const auto where = [&] {
    return " at byte " + std::to_string(slot.offset()) + " (row " + std::to_string(row) + ")";
  };
  if (result < 0 && !may_be_repeated(-result))
    throw FileRefused(table_.path + " cannot be read" + where() + ": " +
                      std::strerror(static_cast<int>(-result)));
  const int64_t before = slot.done;
  if (result > 0) slot.done += result;
  if (slot.done >= slot.needed) return true;
  if (result == 0)
    throw FileDamaged(table_.path + " was truncated while it was open: it ends" + where() +
                      "; its rows end at " + std::to_string(table_.end_byte()));
  if (is_direct_) slot.done -= slot.done % kDiskBlock;  // O_DIRECT goes on at the start of a block only
  slot.stalls = slot.done > before ? 0 : slot.stalls + 1;
  if (slot.stalls > kMostStalls)
    throw FileRefused(table_.path + " cannot be read" + where() + ": reads end early again and again");
  return false;
}

// Checks the blocks of a request whose bytes have been read, and copies its rows.
void DiskReader::finish(const Slot& slot, const std::vector<WantedRow>& wanted, char* out) const {
  const Request& request = slot.request;
  if (table_.sums != nullptr)
    for (int64_t block = request.begin; block < request.end; ++block) check_block(slot, block, wanted);
  const char* const base = slot.memory - request.begin * kDiskBlock;  // base + b is byte b of the file
  for (int64_t i = request.first; i < request.last; ++i) {
    const WantedRow& row = wanted[static_cast<size_t>(i)];
    std::memcpy(out + row.place * table_.row_bytes, base + row_at(row.id),
                static_cast<size_t>(table_.row_bytes));
  }
}

void DiskReader::check_block(const Slot& slot, int64_t block, const std::vector<WantedRow>& wanted) const {
  const int64_t begin = block * kDiskBlock, end = std::min(begin + kDiskBlock, table_.end_byte());
  const char* at = slot.memory + (block - slot.request.begin) * kDiskBlock;
  if (xxh64(at, end - begin) == static_cast<uint64_t>(table_.sums[block])) return;
  const int64_t row = wanted[static_cast<size_t>(slot.request.first)].id;
  throw FileDamaged(table_.path + " has changed since it was written: block " + std::to_string(block) +
                    " (bytes " + std::to_string(begin) + " to " + std::to_string(end) + ", read for row " +
                    std::to_string(row) + ") does not have its checksum; store again");
}

void DiskReader::read_by_ring(const std::vector<Request>& requests, const std::vector<WantedRow>& wanted,
                              char* out) {
  std::vector<Slot> slots(static_cast<size_t>(options_.depth));
  std::vector<size_t> request_of(slots.size());
  std::vector<uint64_t> idle;
  for (int s = options_.depth - 1; s >= 0; --s) {
    slots[static_cast<size_t>(s)].memory = memory_of(s);
    idle.push_back(static_cast<uint64_t>(s));
  }
  LowestError error;
  size_t next = 0;
  int under_way = 0;
  const auto queue = [&](uint64_t s) {
    const Slot& slot = slots[s];
    ring_->queue_read(file_, slot.memory + slot.done, slot.left(), slot.offset(), s);
    ++under_way;
  };
  const auto take_one = [&](uint64_t s, int64_t result) {
    --under_way;
    if (error.is_before(request_of[s])) return;
    error.guard(request_of[s], [&] {
      if (take(slots[s], result, wanted)) {
        finish(slots[s], wanted, out);
        idle.push_back(s);
      } else {
        queue(s);
      }
    });
  };
  // After an error it waits for the reads under way: the kernel writes to the slots until they end.
  while (under_way > 0 || (!error.is_before(next) && next < requests.size())) {
    while (!error.is_before(next) && !idle.empty() && next < requests.size()) {
      const uint64_t s = idle.back();
      idle.pop_back();
      request_of[s] = next;
      slots[s].start(requests[next++], table_.end_byte());
      queue(s);
    }
    ring_->submit_and_wait();
    ring_->take_completed(take_one);
  }
  error.rethrow();
}

void DiskReader::read_by_threads(const std::vector<Request>& requests, const std::vector<WantedRow>& wanted,
                                 char* out) {
  std::atomic<size_t> next{0};
  std::atomic<int> next_slot{0};
  LowestError error;
  const auto work = [&] {
    Slot slot;
    slot.memory = memory_of(next_slot.fetch_add(1));
    for (size_t i; (i = next.fetch_add(1)) < requests.size() && !error.is_before(i);) {
      error.guard(i, [&] {
        slot.start(requests[i], table_.end_byte());
        for (bool whole = false; !whole;) {
          const int64_t got = pread(file_, slot.memory + slot.done, static_cast<size_t>(slot.left()),
                                    static_cast<off_t>(slot.offset()));
          whole = take(slot, got < 0 ? -errno : got, wanted);
        }
        finish(slot, wanted, out);
      });
    }
  };
  const int wished = std::min<int>({options_.depth, kMostThreadsReading, static_cast<int>(requests.size())});
  // Begun for this call: nothing is left to wake, or to miss after a fork. Fewer do where some are refused.
  std::vector<std::thread> threads;
  start_threads(threads, wished - 1, work);
  work();
  for (auto& thread : threads) thread.join();
  error.rethrow();
}

}  // namespace gb
