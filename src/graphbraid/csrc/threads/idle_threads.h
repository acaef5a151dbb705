// Makes OpenMP's threads sleep while they wait for work.
#pragma once

namespace gb {

// Makes every OpenMP thread of the process, also torch's, sleep soon after it ran out of work instead of
// spinning for milliseconds. It costs one sleeping thread per processor. Returns false if the system refuses
// these.
bool let_idle_threads_sleep();

}  // namespace gb
