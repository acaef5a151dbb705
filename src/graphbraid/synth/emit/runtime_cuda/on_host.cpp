// Fibers are resumed by longjmp: swapcontext would ask the system to set the signal mask each time. The jump
// goes to another stack. _FORTIFY_SOURCE takes such a jump for an error, so it is switched off.
#undef _FORTIFY_SOURCE

#include "on_host.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;  // of a block
constexpr size_t kStackBytes = size_t{1} << 16;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

// A stack on which threads run one after the other, until one of them waits.
struct Fiber {
  jmp_buf left;  // where it is resumed
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
};

struct Thread {
  State state;
  Fiber* fiber;  // the fiber on which it waits
  unsigned exchanges;
};

// The running block.
struct Block {
  const char* kernel_name = "";
  const std::function<void()>* kernel = nullptr;
  std::vector<Thread> threads;
  size_t num_started = 0;
  size_t now = 0;  // the running thread
  Fiber* fiber = nullptr;
  jmp_buf scheduler;
  // Of this exchange and the next: a thread may give its next value before another one has read this one.
  uint64_t given[2][kMostThreads];
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
};
Block block;

bool backwards() {
  static const bool asked = std::getenv("GB_HOST_BACKWARDS") != nullptr;
  return asked;
}

int64_t in_order(int64_t number, int64_t count) { return backwards() ? count - 1 - number : number; }

size_t thread_at(size_t place) {
  return static_cast<size_t>(
      in_order(static_cast<int64_t>(place), static_cast<int64_t>(block.threads.size())));
}

[[noreturn]] void stop(const char* why) {
  std::fprintf(stderr, "train: the kernel %s: %s\n", block.kernel_name, why);
  std::abort();
}

// Leaves this stack and resumes another one. Returns when this one is resumed.
void change(jmp_buf from, jmp_buf to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}

void wait_at(State where) {
  Thread& own = block.threads[block.now];
  own.state = where;
  own.fiber = block.fiber;
  change(own.fiber->left, block.scheduler);
}

// The body of a fiber: it runs threads that no fiber has begun. When all have begun, it waits to be resumed.
void run_threads() {
  Fiber* const own = block.fiber;
  for (;;) {
    while (block.num_started < block.threads.size()) {
      block.now = thread_at(block.num_started++);
      threadIdx.x = static_cast<unsigned>(block.now);
      (*block.kernel)();
      block.threads[block.now].state = State::kDone;
    }
    block.idle.push_back(own);
    change(own->left, block.scheduler);
  }
}

void go_on(Fiber* fiber) {
  block.fiber = fiber;
  change(block.scheduler, fiber->left);
}

// Makes a fiber, which runs threads at once.
void make_fiber() {
  block.fibers.push_back(std::make_unique<Fiber>());
  Fiber* fiber = block.fiber = block.fibers.back().get();
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber->stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;  // it does not end
  makecontext(&context, run_threads, 0);
  if (_setjmp(block.scheduler) == 0) setcontext(&context);
}

void begin_fiber() {
  if (block.idle.empty()) return make_fiber();
  Fiber* fiber = block.idle.back();
  block.idle.pop_back();
  go_on(fiber);
}

// Makes the threads [first, last) ready if all of them that have not ended wait at the same place.
bool release(size_t first, size_t last, State where) {
  bool any = false;
  for (size_t t = first; t < last; ++t) {
    const State state = block.threads[t].state;
    if (state != where && state != State::kDone) return false;
    any |= state == where;
  }
  for (size_t t = first; t < last; ++t)
    if (block.threads[t].state == where) block.threads[t].state = State::kReady;
  return any;
}

void run_block() {
  const size_t count = block.threads.size();
  for (Thread& thread : block.threads) thread = {State::kReady, nullptr, 0};
  block.num_started = 0;
  while (block.num_started < count) begin_fiber();
  bool moves = true;
  while (moves) {
    moves = release(0, count, State::kAtBlock);
    for (size_t t = 0; t < count; t += kWarp) moves |= release(t, std::min(t + kWarp, count), State::kAtWarp);
    for (size_t place = 0; place < count; ++place) {
      block.now = thread_at(place);
      if (block.threads[block.now].state != State::kReady) continue;
      threadIdx.x = static_cast<unsigned>(block.now);
      go_on(block.threads[block.now].fiber);
    }
  }
  for (const Thread& thread : block.threads)
    if (thread.state != State::kDone) stop("threads of a block wait for each other at different places");
}

}  // namespace

void run(const char* name, int64_t blocks, int threads, const std::function<void()>& kernel) {
  block.kernel_name = name;
  block.kernel = &kernel;
  block.threads.resize(static_cast<size_t>(threads));
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  for (int64_t i = 0; i < blocks; ++i) {
    blockIdx.x = static_cast<unsigned>(in_order(i, blocks));
    run_block();
  }
}

int lane() { return static_cast<int>(block.now) % kWarp; }

uint64_t exchange(uint64_t bits, int lane) {
  const unsigned side = block.threads[block.now].exchanges++ % 2;
  block.given[side][block.now] = bits;
  wait_at(State::kAtWarp);
  return block.given[side][block.now / kWarp * kWarp + static_cast<size_t>(lane)];
}

}  // namespace on_host

void __syncthreads() { on_host::wait_at(on_host::State::kAtBlock); }
void __syncwarp() { on_host::wait_at(on_host::State::kAtWarp); }
