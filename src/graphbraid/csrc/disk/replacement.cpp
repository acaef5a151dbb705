#include "disk/replacement.h"

#include <map>
#include <vector>

namespace gb {
namespace {

class Static : public Replacement {
 public:
  bool replaces() const override { return false; }
  void hit(int32_t, int64_t, int64_t) override {}
  int32_t choose(int64_t, int64_t) override { return -1; }
  void take(int32_t, int64_t, int64_t) override {}
};

// Slots in lists, each slot in one at most.
struct SlotList {
  int32_t oldest = -1, newest = -1;
};

class Links {
 public:
  explicit Links(int64_t capacity)
      : older_(static_cast<size_t>(capacity)), newer_(static_cast<size_t>(capacity)) {}
  int32_t newer(int32_t slot) const { return newer_[static_cast<size_t>(slot)]; }
  void append(SlotList& list, int32_t slot) {
    older_[static_cast<size_t>(slot)] = list.newest;
    newer_[static_cast<size_t>(slot)] = -1;
    (list.newest < 0 ? list.oldest : newer_[static_cast<size_t>(list.newest)]) = slot;
    list.newest = slot;
  }
  void remove(SlotList& list, int32_t slot) {
    const int32_t older = older_[static_cast<size_t>(slot)], newer = newer_[static_cast<size_t>(slot)];
    (older < 0 ? list.oldest : newer_[static_cast<size_t>(older)]) = newer;
    (newer < 0 ? list.newest : older_[static_cast<size_t>(newer)]) = older;
  }

 private:
  std::vector<int32_t> older_, newer_;
};

class Sieve : public Replacement {
 public:
  explicit Sieve(int64_t capacity) : links_(capacity), was_read_(static_cast<size_t>(capacity)) {}
  void hit(int32_t slot, int64_t, int64_t) override { was_read_[static_cast<size_t>(slot)] = 1; }
  int32_t choose(int64_t, int64_t) override {
    if (slots_.oldest < 0) return -1;
    int32_t slot = hand_ < 0 ? slots_.oldest : hand_;
    while (was_read_[static_cast<size_t>(slot)]) {
      was_read_[static_cast<size_t>(slot)] = 0;
      slot = links_.newer(slot) < 0 ? slots_.oldest : links_.newer(slot);
    }
    hand_ = links_.newer(slot);
    links_.remove(slots_, slot);
    return slot;
  }
  void take(int32_t slot, int64_t, int64_t) override {
    was_read_[static_cast<size_t>(slot)] = 0;
    links_.append(slots_, slot);
  }

 private:
  Links links_;
  SlotList slots_;
  std::vector<uint8_t> was_read_;
  int32_t hand_ = -1;  // the slot looked at next; -1: the oldest
};

class Belady : public Replacement {
 public:
  Belady(int64_t capacity, const uint8_t* rank)
      : links_(capacity), key_(static_cast<size_t>(capacity)), rank_(rank) {}
  void hit(int32_t slot, int64_t row, int64_t next) override { move(slot, key_of(row, next)); }
  void announced(int32_t slot, int64_t row, int64_t next) override { move(slot, key_of(row, next)); }
  int32_t choose(int64_t row, int64_t next) override {
    if (lists_.empty()) return -1;
    const auto& [last, list] = *lists_.rbegin();
    const int64_t key = key_of(row, next);
    // Equal keys: evict the older row if no announced batch reads either; keep it if one batch reads both.
    if (key > last || (key == last && next != kNever)) return -1;
    const int32_t slot = list.oldest;
    drop(slot);
    return slot;
  }
  void take(int32_t slot, int64_t row, int64_t next) override { put(slot, key_of(row, next)); }

 private:
  // Evicts the row with the largest key. The key is the batch that reads the row next. Rows that no batch
  // reads have larger keys than any batch, and the lower the rank, the larger the key.
  int64_t key_of(int64_t row, int64_t next) const {
    return next != kNever || rank_ == nullptr ? next : kNever - rank_[row];
  }
  void move(int32_t slot, int64_t key) {
    drop(slot);
    put(slot, key);
  }
  void put(int32_t slot, int64_t key) {
    key_[static_cast<size_t>(slot)] = key;
    links_.append(lists_[key], slot);
  }
  void drop(int32_t slot) {
    const auto found = lists_.find(key_[static_cast<size_t>(slot)]);
    links_.remove(found->second, slot);
    if (found->second.oldest < 0) lists_.erase(found);
  }

  Links links_;
  std::vector<int64_t> key_;
  std::map<int64_t, SlotList> lists_;  // by key: at most one for each announced batch and each rank
  const uint8_t* const rank_;
};

}  // namespace

std::unique_ptr<Replacement> make_replacement(const std::string& name, int64_t capacity,
                                              const uint8_t* rank) {
  if (name == "static") return std::make_unique<Static>();
  if (name == "sieve") return std::make_unique<Sieve>(capacity);
  if (name == "belady") return std::make_unique<Belady>(capacity, rank);
  return nullptr;
}

}  // namespace gb
