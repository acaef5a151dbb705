// The largest memory that a program has taken.
#pragma once

#include <cstdint>

namespace program {

// Most bytes that this process has had in memory, with pages of mapped files; 0 if the system does not tell.
int64_t peak_memory();

}  // namespace program
