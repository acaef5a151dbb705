// How many threads the system lets OpenMP start.
#pragma once

namespace gb {

// How many of `wanted` threads OpenMP can have: where it is refused one, its runtime ends the process. So as
// many plain threads are started first, once per thread that asks, and fewer are used where they cannot be.
int startable_threads(int wanted);

}  // namespace gb
