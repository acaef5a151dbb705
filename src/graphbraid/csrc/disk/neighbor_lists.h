// In-neighbours of nodes, the lists of hot nodes in memory and those of all nodes in a file:
//
//   file      [ first_byte | indices (num_edges,) ]           indptr (num_nodes + 1,), in memory
//   nodes     (rows,)    of which edges were drawn
//   positions (edges,)   of those edges in indices   --->     ids (edges,)
//
// Hot lists lie in one array, in the order of their nodes; a word of bits and a count per 64 nodes say whose
// they are, a quarter byte a node. Of other lists only the blocks that hold a drawn edge are read, all rows'
// of one call together, in the order of the file (disk_reader.h): so the caller draws a whole hop before it
// reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "disk/disk_reader.h"

namespace gb {

struct ListCounts {
  int64_t hot_lists = 0, hot_edges = 0;    // that memory served
  int64_t cold_lists = 0, cold_edges = 0;  // that were read from the file
};

// Rows of a hop that have drawn: row r drew the edges [ends[r], ends[r + 1]) of the batch.
struct DrawnRows {
  const int64_t* nodes;  // (num_rows,)
  const int64_t* ends;   // (num_rows + 1,)
  int64_t num_rows;
  const int64_t* positions;  // (edges,): the first is that of edge ends[0]
  int64_t num_edges() const { return ends[num_rows] - ends[0]; }
};

class NeighborLists {
 public:
  // disk: indices as rows of one id each, int32 or int64. hot (num_hot,): nodes, rising; their lists are
  // read into memory. Throws what reading throws.
  NeighborLists(DiskReader& disk, const int64_t* indptr, int64_t num_nodes, const int64_t* hot,
                int64_t num_hot);

  // ids (edges,): the sources of the drawn edges. Threads may share it.
  void read(const int64_t* indptr, const DrawnRows& rows, int64_t* ids);

  bool wide() const { return disk_.table().row_bytes == static_cast<int64_t>(sizeof(int64_t)); }
  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_edges() const { return disk_.table().num_rows; }
  int64_t hot_edges() const { return starts_[num_hot_]; }
  int64_t overhead_bytes() const;
  ListCounts counts() const;

 private:
  struct Word {
    uint64_t is_hot;  // bit i: node 64 * word + i
    int64_t before;   // hot nodes in the words before
  };

  void mark(const int64_t* hot);
  void fill(const int64_t* indptr, const int64_t* hot);
  int64_t slot_of(int64_t node) const;
  template <typename Id>
  void copy_hot(const int64_t* indptr, const DrawnRows& rows, const std::vector<int64_t>& slots,
                int64_t* ids) const;
  template <typename Id>
  void read_cold(const DrawnRows& rows, const std::vector<int64_t>& slots, int64_t* ids);
  void check(int64_t id, int64_t position) const;

  DiskReader& disk_;
  const int64_t num_nodes_, num_hot_;
  std::vector<Word> words_;
  Buffer<int64_t> starts_;  // (num_hot + 1,) of the hot lists
  Buffer<char> hot_;        // their ids
  std::atomic<int64_t> hot_lists_{0}, hot_edges_{0}, cold_lists_{0}, cold_edges_{0};
};

}  // namespace gb
