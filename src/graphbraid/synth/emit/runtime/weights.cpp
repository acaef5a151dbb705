#include "weights.h"

#include <algorithm>

#include "arrays.h"
#include "base/xxh64.h"

namespace program {

Parameter::Parameter(Described described)
    : name(std::move(described.name)), shape(std::move(described.shape)) {
  const size_t count = static_cast<size_t>(count_of(shape));
  value.assign(count, 0.0f);
  if (!described.learns) return;
  for (std::vector<float>* part : {&grad, &first, &second}) part->assign(count, 0.0f);
}

void Weights::load(const std::string& folder) {
  for (Parameter& parameter : parameters) {
    const Array array(folder + "/" + parameter.name + ".npy", "<f4", parameter.shape);
    std::copy_n(array.floats(), parameter.value.size(), parameter.value.begin());
  }
  for (Counter& counter : counters)
    counter.value = *Array(folder + "/" + counter.name + ".npy", "<i8", {}).int64s();
}

void Weights::save(const std::string& folder) const {
  for (const Parameter& parameter : parameters)
    write_array(folder + "/" + parameter.name + ".npy", "<f4", parameter.value.data(), parameter.shape);
  for (const Counter& counter : counters)
    write_array(folder + "/" + counter.name + ".npy", "<i8", &counter.value, {});
}

void Weights::update(Update step) {
  for (Parameter& p : parameters)
    for (size_t i = 0; i < p.grad.size(); ++i) step(p.grad[i], p.value[i], p.first[i], p.second[i]);
}

uint64_t Weights::digest() const {
  std::vector<uint64_t> digests;
  for (const Parameter& parameter : parameters)
    digests.push_back(gb::xxh64(reinterpret_cast<const char*>(parameter.value.data()),
                                static_cast<int64_t>(parameter.value.size() * sizeof(float))));
  for (const Counter& counter : counters) digests.push_back(static_cast<uint64_t>(counter.value));
  return gb::xxh64(reinterpret_cast<const char*>(digests.data()),
                   static_cast<int64_t>(digests.size() * sizeof(uint64_t)));
}

}  // namespace program
