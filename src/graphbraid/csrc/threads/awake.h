// Keeps the threads of parallel loops awake for the length of a pass, which opens many short loops.
#pragma once

namespace gb {

// A pass of the calling thread begins: its parallel loops run on a team of threads that look for the next
// loop for `look_microseconds` before they sleep, also when the pass has ended. Returns false, and changes
// nothing, if another thread's pass has the team, if the process works on one thread, or if OpenMP binds
// threads to cores.
bool begin_pass(int look_microseconds);

// The pass ends. Only after a begin_pass that returned true, by the same thread.
void end_pass();

}  // namespace gb
