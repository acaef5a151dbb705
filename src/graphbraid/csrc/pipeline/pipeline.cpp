#include "pipeline/pipeline.h"

#include <chrono>
#include <numeric>

#include "gather/gather.h"
#include "threads/threads.h"

namespace gb {
namespace {

// A batch of less work is built by one thread. Parts would wake other threads some ten times a hop and cost
// half as much work again: shared by two threads, a batch of 0.2 ms took 0.3.
constexpr int64_t kWorthHelpNs = 4'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::shared_ptr<Batch> BatchPool::take(const std::shared_ptr<BatchPool>& pool) {
  std::unique_ptr<Batch> batch;
  {
    std::lock_guard<std::mutex> lock(pool->mutex_);
    if (!pool->free_.empty()) {
      batch = std::move(pool->free_.back());
      pool->free_.pop_back();
    }
  }
  if (batch == nullptr) batch = std::make_unique<Batch>();
  return {batch.release(), [pool](Batch* used) { pool->give_back(std::unique_ptr<Batch>(used)); }};
}

void BatchPool::give_back(std::unique_ptr<Batch> batch) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.size() < most_) free_.push_back(std::move(batch));
}

// The state that a run's consumer shares with the threads; guarded by the pipeline's mutex.
struct Run::State {
  Schedule schedule;
  std::optional<SampleConstraints> constraints;
  std::optional<ShareOf> share;
  int64_t next_to_build;
  int64_t next_to_give;
  int64_t last;
  bool cancelled = false;
  bool resting = false;
  int under_way = 0;  // batches a thread is building
  struct Outcome {
    std::shared_ptr<Batch> batch;
    std::exception_ptr error;
  };
  std::map<int64_t, Outcome> done;

  // Steps that threads may begin: up to `depth` ahead, and, once so many were, none until `refill` are left.
  int64_t open_steps(int depth, int refill) {
    const int64_t ahead = next_to_build - next_to_give;
    resting = ahead >= depth || (resting && ahead > refill);
    return resting ? 0 : std::min(last, next_to_give + depth) - next_to_build;
  }
};

Run::Run(Pipeline& pipeline, Schedule schedule, int64_t first_step, int64_t last_step,
         std::optional<SampleConstraints> constraints, std::optional<ShareOf> share)
    : pipeline_(pipeline),
      state_(std::make_shared<State>(
          State{schedule, constraints, share, first_step, first_step, last_step, false, false, 0, {}})) {
  {
    std::lock_guard<std::mutex> lock(pipeline_.mutex_);
    pipeline_.runs_.push_back(state_);
  }
  pipeline_.work_.notify_all();
}

Run::~Run() {
  std::map<int64_t, State::Outcome> dropped;  // freed without the lock
  {
    std::unique_lock<std::mutex> lock(pipeline_.mutex_);
    state_->cancelled = true;
    std::erase(pipeline_.runs_, state_);
    // The caller may free the seeds next.
    pipeline_.ready_.wait(lock, [&] { return state_->under_way == 0; });
    dropped.swap(state_->done);
  }
}

std::optional<std::shared_ptr<Batch>> Run::next(double seconds) {
  State::Outcome outcome;
  int64_t open;
  {
    std::unique_lock<std::mutex> lock(pipeline_.mutex_);
    if (state_->next_to_give >= state_->last) return std::shared_ptr<Batch>();
    const auto ready = [&] { return state_->done.contains(state_->next_to_give); };
    if (!pipeline_.ready_.wait_for(lock, std::chrono::duration<double>(seconds), ready)) return std::nullopt;
    auto entry = state_->done.extract(state_->next_to_give++);
    outcome = std::move(entry.mapped());
    if (outcome.error) state_->last = state_->next_to_give;  // nothing follows an error
    open = state_->open_steps(pipeline_.depth_, pipeline_.refill_);
  }
  open > 1 ? pipeline_.work_.notify_all() : pipeline_.work_.notify_one();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return outcome.batch;
}

// A loop inside one batch that idle threads may join.
struct Pipeline::Region {
  Region(int64_t count, const std::function<void(int64_t)>& task) : count(count), task(task) {}

  const int64_t count;
  const std::function<void(int64_t)>& task;
  std::atomic<int64_t> next{0};
  int helpers = 0;           // guarded by the pipeline's mutex
  std::exception_ptr error;  // likewise

  // Runs tasks until none is left; returns what one of them threw.
  std::exception_ptr run() {
    try {
      for (int64_t i; (i = next.fetch_add(1)) < count;) task(i);
    } catch (...) {
      next = count;
      return std::current_exception();
    }
    return nullptr;
  }
};

Pipeline::Pipeline(SampleGraph graph, SampleConfig config, FeatureRows features, int num_threads, int depth,
                   int refill)
    : graph_(graph),
      config_(std::move(config)),
      features_(features),
      depth_(depth),
      refill_(refill),
      pool_(std::make_shared<BatchPool>(static_cast<size_t>(depth) + 2)) {
  const std::string refused = start_threads(threads_, num_threads, [this] { work(); });
  if (refused.empty()) return;
  stop();
  throw ThreadsRefused("the system started " + std::to_string(threads_.size()) + " of " +
                       std::to_string(num_threads) + " sampling threads (" + refused +
                       "); ask for fewer workers or raise the limit (ulimit -u)");
}

Pipeline::~Pipeline() { stop(); }

void Pipeline::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
}

StageSeconds Pipeline::stage_seconds() const {
  return {static_cast<double>(sample_ns_.load()) * 1e-9, static_cast<double>(gather_ns_.load()) * 1e-9,
          batches_.load()};
}

int Pipeline::busy_threads() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t busy = num_threads() - idle_;
  for (const auto& run : runs_) busy += std::max<int64_t>(run->open_steps(depth_, refill_), 0);
  return static_cast<int>(std::min<int64_t>(busy, num_threads()));
}

void Pipeline::work() {
  SampleScratch scratch;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    // To build a whole batch is cheaper than to help with another thread's.
    if (take_step(lock, scratch) || join_region(lock)) continue;
    ++idle_;
    work_.wait(lock);
    --idle_;
  }
}

bool Pipeline::take_step(std::unique_lock<std::mutex>& lock, SampleScratch& scratch) {
  std::shared_ptr<Run::State> run;
  for (const auto& candidate : runs_)
    if (candidate->open_steps(depth_, refill_) > 0) {
      run = candidate;
      break;
    }
  if (run == nullptr) return false;
  const int64_t step = run->next_to_build++;
  ++run->under_way;
  lock.unlock();
  Run::State::Outcome outcome;
  try {
    outcome.batch = BatchPool::take(pool_);
    outcome.batch->step = step;
    build(*run, *outcome.batch, scratch);
  } catch (...) {
    outcome = {nullptr, std::current_exception()};
  }
  lock.lock();
  --run->under_way;
  run->done.emplace(step, std::move(outcome));
  ready_.notify_all();
  return true;
}

bool Pipeline::join_region(std::unique_lock<std::mutex>& lock) {
  for (Region* region : regions_) {
    if (region->next.load() >= region->count) continue;
    ++region->helpers;
    lock.unlock();
    std::exception_ptr error = region->run();
    lock.lock();
    if (error) region->error = error;
    if (--region->helpers == 0) ready_.notify_all();
    return true;
  }
  return false;
}

bool Pipeline::has_idle_threads() {
  std::lock_guard<std::mutex> lock(mutex_);
  return idle_ > 0;
}

void Pipeline::parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
  Region region(count, task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    regions_.push_back(&region);
  }
  work_.notify_all();
  std::exception_ptr error = region.run();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    // The region and its task are on this stack: no thread may join any more, and those inside must leave.
    std::erase(regions_, &region);
    ready_.wait(lock, [&] { return region.helpers == 0; });
    if (region.error) error = region.error;
  }
  if (error) std::rethrow_exception(error);
}

void Pipeline::gather(const FeatureRows& rows, const int64_t* ids, int64_t count, Buffer<char>& out,
                      bool has_help) {
  if (rows.data == nullptr) return;
  out.reserve(std::max<int64_t>(count * rows.row_bytes, 1));
  const int64_t share = has_help ? (count + 31) / 32 : count;
  const auto gather_part = [&](int64_t part) {
    const int64_t begin = std::min(count, part * share), end = std::min(count, begin + share);
    gather_rows(rows.data, rows.row_bytes, ids + begin, end - begin, out.data() + begin * rows.row_bytes);
  };
  has_help ? parallel_for(32, gather_part) : gather_part(0);
}

// Samples for the step's seeds. For a share it samples for all seeds of the step, and keeps the part that its
// own seeds read.
void Pipeline::sample(Run::State& run, Batch& batch, SampleScratch& scratch, const Team* team) {
  const uint64_t key = batch_key(run.schedule.seed, run.schedule.epoch, static_cast<uint64_t>(batch.step));
  Schedule schedule = run.schedule;
  if (run.share) schedule.part = 0, schedule.num_parts = 1;
  const int64_t num_seeds = schedule.batch_count(batch.step);
  Buffer<int64_t> seeds(num_seeds);
  batch.input_id.reserve(num_seeds);
  schedule.seeds_of(batch.step, batch.input_id.data(), seeds.data());
  SampledBatch& sampled = run.share ? scratch.whole : batch.sampled;
  sample_batch(graph_, config_, key, seeds.data(), num_seeds, scratch, sampled, team,
               run.constraints ? &*run.constraints : nullptr);
  if (!run.share) return;
  const ShareOf& share = *run.share;
  std::vector<int64_t> own(share.own, share.own + share.num_own);
  if (share.own == nullptr) {
    own.resize(static_cast<size_t>(run.schedule.batch_count(batch.step)));
    std::iota(own.begin(), own.end(),
              run.schedule.batch_begin(batch.step) - schedule.batch_begin(batch.step));
  }
  const int64_t num_own = static_cast<int64_t>(own.size());
  keep_share(scratch.whole, own.data(), num_own, share.reach, config_.keep_edges, graph_.types, seeds.data(),
             scratch, batch.sampled);
  // In place: `own` rises, so own[i] >= i.
  for (int64_t i = 0; i < num_own; ++i) batch.input_id[i] = batch.input_id[own[static_cast<size_t>(i)]];
}

void Pipeline::build(Run::State& run, Batch& batch, SampleScratch& scratch) {
  const int64_t started = now_ns();
  const Team team{num_threads(), [this](int64_t count, const auto& task) { parallel_for(count, task); }};
  // If there is one batch at a time, the other threads have no other work.
  const bool has_help = (depth_ == 1 || last_batch_ns_ >= kWorthHelpNs) && has_idle_threads();
  sample(run, batch, scratch, has_help ? &team : nullptr);
  const int64_t sampled = now_ns();
  if (graph_.types == nullptr) {
    gather(features_, batch.sampled.n_id.data(), batch.sampled.num_nodes, batch.x, has_help);
  } else {
    const std::vector<FeatureRows>& features = graph_.types->features;
    batch.x_by_type.resize(features.size());
    for (size_t type = 0; type < features.size(); ++type) {
      const NodeIds& nodes = batch.sampled.by_type[type];
      gather(features[type], nodes.ids.data(), nodes.count, batch.x_by_type[type], has_help);
    }
  }
  const int64_t ended = now_ns();
  sample_ns_ += sampled - started;
  gather_ns_ += ended - sampled;
  last_batch_ns_ = ended - started;
  ++batches_;
}

}  // namespace gb
