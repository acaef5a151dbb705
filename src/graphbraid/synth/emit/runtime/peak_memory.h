// The most memory that a program has taken.
#pragma once

#include <cstdint>

namespace program {

// Bytes that this process has had in memory at most, with pages of mapped files; 0 where the system does not
// tell.
int64_t peak_memory();

}  // namespace program
