// How many threads the system lets OpenMP start.
#pragma once

namespace gb {

// How many of `wanted` threads OpenMP can have. If the system refuses it one, its runtime ends the process.
// So as many plain threads are started first, once per calling thread; if some are refused, fewer are used.
int startable_threads(int wanted);

}  // namespace gb
