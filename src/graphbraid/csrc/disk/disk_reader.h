// Rows of a table in a file, by id:
//
//   file  [ first_byte | row 0 | row 1 | ... ]      ids (num_ids,)  --->  out[i, :] = row ids[i]
//
// Bound by the disk. Rows are taken in the order of the file; those whose blocks touch, or nearly do, come
// with one request; up to `depth` requests are under way at a time, by io_uring, or by threads that pread
// where the system refuses it. A row that is asked for twice is read once. Requests begin and end at blocks
// of 4096 bytes, past the page cache (O_DIRECT) where the file system can: what is read is kept by whoever
// asked, and not a second time by the system. Where the file has block sums, each block is compared with its
// own before a row is taken out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "disk/uring.h"

namespace gb {

inline constexpr int64_t kDiskBlock = 4096;

// The file is not what was written. Python's ValueError.
struct FileDamaged : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
// The system refuses to open or read the file. Python's RuntimeError.
struct FileRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct DiskTable {
  std::string path;
  int64_t first_byte = 0, num_rows = 0, row_bytes = 0;
  const int64_t* sums = nullptr;  // of the file's blocks, the first from its first byte; null: none
  int64_t end_byte() const { return first_byte + num_rows * row_bytes; }
};

struct DiskOptions {
  bool uring = true;                  // false: threads
  bool direct = true;                 // false: through the page cache
  int depth = 128;                    // requests under way at a time
  int64_t longest = 16 * kDiskBlock;  // most bytes of a request for several rows
  int64_t gap = 0;                    // most unwanted blocks read to make one request of two
};

// A row and where it goes: the place-th of the result.
struct WantedRow {
  int64_t id, place;
};

struct DiskCounts {
  int64_t rows = 0, requests = 0, bytes = 0;
};

// The reader of the rows that a cache does not keep.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // Writes each wanted row to out + place * row_bytes; sorts `wanted` by id.
  virtual void read(std::vector<WantedRow>& wanted, char* out) = 0;
  virtual int64_t num_rows() const = 0;
  virtual int64_t row_bytes() const = 0;
  // Bytes of reads under way.
  virtual int64_t buffer_bytes() const { return 0; }
};

class DiskReader : public RowReader {
 public:
  // Throws FileDamaged where the file is too short, FileRefused where it cannot be opened.
  DiskReader(DiskTable table, DiskOptions options);
  ~DiskReader() override;
  DiskReader(const DiskReader&) = delete;

  // One call at a time reads.
  void read(std::vector<WantedRow>& wanted, char* out) override;
  int64_t num_rows() const override { return table_.num_rows; }
  int64_t row_bytes() const override { return table_.row_bytes; }

  const DiskTable& table() const { return table_; }
  bool is_direct() const { return is_direct_; }
  bool uses_uring();
  const std::string& why_threads() const { return why_threads_; }
  int64_t buffer_bytes() const override { return options_.depth * slot_bytes_; }
  DiskCounts counts();

 private:
  struct Request;
  struct Slot;

  void take_memory();
  void open_file();
  void open_ring();
  std::vector<Request> requests_for(const std::vector<WantedRow>& wanted) const;
  void read_by_ring(const std::vector<Request>& requests, const std::vector<WantedRow>& wanted, char* out);
  void read_by_threads(const std::vector<Request>& requests, const std::vector<WantedRow>& wanted, char* out);
  bool take(Slot& slot, int64_t result, const std::vector<WantedRow>& wanted) const;
  void finish(const Slot& slot, const std::vector<WantedRow>& wanted, char* out) const;
  void check_block(const Slot& slot, int64_t block, const std::vector<WantedRow>& wanted) const;
  char* memory_of(int slot) { return memory_.get() + slot * slot_bytes_; }
  int64_t row_at(int64_t id) const { return table_.first_byte + id * table_.row_bytes; }

  struct Free {
    void operator()(char* at) const;
  };

  const DiskTable table_;
  DiskOptions options_;
  int file_ = -1;
  bool is_direct_ = false;
  int64_t slot_bytes_ = 0;
  std::unique_ptr<char, Free> memory_;  // (depth, slot_bytes)
  std::unique_ptr<Ring> ring_;
  int ring_process_ = -1;  // a forked process must not touch its parent's ring
  std::string why_threads_;
  std::mutex mutex_;
  DiskCounts counts_;
};

}  // namespace gb
