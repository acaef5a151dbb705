// Persistent threads that prepare whole mini-batches (seeds, sample, relabel, gather), handed out in step
// order.
//
// A Pipeline owns the threads; a Run is one pass over some steps. Threads take steps in rising order; at most
// `depth` batches of a run are under way or waiting, so a slow consumer holds the threads back; `refill` lets
// them work and rest in turns, so that the consumer has all cores for a while. A batch's
// memory goes back to a pool when its last user lets go of it. When there are fewer steps left than threads,
// the idle ones join in the work of a single batch, if batches take long enough. A batch's bits depend on
// none of this.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "gather/gather.h"
#include "pipeline/schedule.h"
#include "sampling/sample.h"
#include "sampling/share.h"
#include "sampling/typed_sample.h"

namespace gb {

// A mini-batch and its reusable memory.
struct Batch {
  int64_t step = 0;
  SampledBatch sampled;
  Buffer<int64_t> input_id;             // (num_seeds,) positions of the seeds in the schedule's list
  Buffer<char> x;                       // (num_nodes, row_bytes) gathered rows
  std::vector<Buffer<char>> x_by_type;  // the same of each type, where nodes have types
};

// Memory of batches that nobody uses. It outlives the pipeline, since tensors in Python may come back late.
class BatchPool {
 public:
  explicit BatchPool(size_t most) : most_(most) {}
  // A batch to fill; it returns to `pool` when the last pointer to it goes.
  static std::shared_ptr<Batch> take(const std::shared_ptr<BatchPool>& pool);

 private:
  void give_back(std::unique_ptr<Batch> batch);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> free_;
  const size_t most_;  // batches whose memory is kept, at most
};

struct StageSeconds {
  double sample = 0, gather = 0;  // summed over threads
  int64_t batches = 0;
};

class Pipeline;

// A run whose batches are shares: the part of the whole step's sample within `reach` edges of its own seeds.
struct ShareOf {
  int64_t reach = 0;
  const int64_t* own =
      nullptr;  // (num_own,) positions among the step's seeds, rising; null: the schedule's part
  int64_t num_own = 0;
};

// The batches of steps [first, last) of a schedule, in order. `constraints` hold for each of them: a run
// whose constraints or share name seeds has one step.
class Run {
 public:
  Run(Pipeline& pipeline, Schedule schedule, int64_t first_step, int64_t last_step,
      std::optional<SampleConstraints> constraints = std::nullopt,
      std::optional<ShareOf> share = std::nullopt);
  ~Run();
  Run(const Run&) = delete;

  // Waits at most `seconds` for the next batch. Empty: it is not ready. A null pointer: there are no more.
  // Throws what the batch's thread threw.
  std::optional<std::shared_ptr<Batch>> next(double seconds);

 private:
  friend class Pipeline;
  struct State;
  Pipeline& pipeline_;
  std::shared_ptr<State> state_;
};

class Pipeline {
 public:
  // Threads that have worked `depth` batches ahead rest until only `refill` of them are left. Throws
  // ThreadsRefused.
  Pipeline(SampleGraph graph, SampleConfig config, FeatureRows features, int num_threads, int depth,
           int refill);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;

  StageSeconds stage_seconds() const;
  const SampleConfig& config() const { return config_; }
  int num_threads() const { return static_cast<int>(threads_.size()); }
  // Threads that work now or are about to, because there is a step for them.
  int busy_threads();

 private:
  friend class Run;
  struct Region;

  void work();
  void stop();
  void build(Run::State& run, Batch& batch, SampleScratch& scratch);
  void sample(Run::State& run, Batch& batch, SampleScratch& scratch, const Team* team);
  void gather(const FeatureRows& rows, const int64_t* ids, int64_t count, Buffer<char>& out, bool has_help);
  bool join_region(std::unique_lock<std::mutex>& lock);
  bool take_step(std::unique_lock<std::mutex>& lock, SampleScratch& scratch);
  bool has_idle_threads();
  void parallel_for(int64_t count, const std::function<void(int64_t)>& task);

  const SampleGraph graph_;
  const SampleConfig config_;
  const FeatureRows features_;
  const int depth_, refill_;
  std::shared_ptr<BatchPool> pool_;

  std::mutex mutex_;
  std::condition_variable work_;   // for the threads: a step, a region, or the end
  std::condition_variable ready_;  // for consumers and region owners
  std::deque<std::shared_ptr<Run::State>> runs_;
  std::deque<Region*> regions_;
  int idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::atomic<int64_t> sample_ns_{0}, gather_ns_{0}, batches_{0};
  std::atomic<int64_t> last_batch_ns_{std::numeric_limits<int64_t>::max()};
};

}  // namespace gb
