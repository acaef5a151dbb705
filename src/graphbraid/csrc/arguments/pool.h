// Memory in the pool of results that pool.cpp describes.
#pragma once

#include <cstdint>
#include <memory>

namespace gb {

// Uninitialised memory for rows of `count` floats; large ones are in the pool.
std::shared_ptr<float> row_memory(int64_t count);

}  // namespace gb
