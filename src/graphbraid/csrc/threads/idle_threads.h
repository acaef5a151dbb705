// What OpenMP's threads do while they wait for work.
#pragma once

namespace gb {

// Makes every OpenMP thread of the process, torch's too, sleep soon after it ran out of work instead of
// spinning for milliseconds. At the cost of one sleeping thread per processor. False where they could not be
// had.
bool let_idle_threads_sleep();

}  // namespace gb
