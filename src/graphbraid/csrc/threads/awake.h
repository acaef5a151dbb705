// Keeps the threads of parallel loops awake for the length of a pass, which opens many short loops.
#pragma once

namespace gb {

// A pass of the calling thread begins: its parallel loops run on a team of threads that look for the next
// loop for `look_microseconds` before they sleep, also when the pass has ended. Returns false, and changes
// nothing, if the number is below 0, if another thread's pass has the team, if the process works on one
// thread, or if OpenMP binds threads to cores.
bool begin_pass(int look_microseconds);

// The pass ends. Only after a begin_pass that returned true, by the same thread.
void end_pass();

// A pass that lasts as long as the object, if `is_worth`.
class AwakeThreads {
 public:
  AwakeThreads(int look_microseconds, bool is_worth) : begun_(is_worth && begin_pass(look_microseconds)) {}
  ~AwakeThreads() {
    if (begun_) end_pass();
  }
  AwakeThreads(const AwakeThreads&) = delete;

 private:
  const bool begun_;
};

}  // namespace gb
