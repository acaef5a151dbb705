// How many threads the system lets OpenMP start.
#pragma once

namespace gb {

// The number of threads, at most `wanted`, that OpenMP can start. If the system refuses one, OpenMP ends the
// process. So plain threads are started first, once per calling thread; if some are refused, fewer are used.
int startable_threads(int wanted);

}  // namespace gb
