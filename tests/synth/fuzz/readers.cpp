// Gives damaged .npy files to the readers of synthesised programs: an array, and a folder of weights.
//
//   readers FOLDER SEED SECONDS    exits with 0, or aborts with what was accepted that must not be
//
// Each round damages a valid file in one to four ways and reads it. A reader may refuse it by a
// std::runtime_error. If it accepts the file, the values must be all bytes behind the header,
// and the header must name the dtype and the shape that were asked for. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer by scripts/fuzz_readers.sh.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "base/xxh64.h"
#include "weights.h"

namespace {

using program::Array;
using Bytes = std::vector<char>;

std::mt19937_64 bits;

size_t below(size_t count) { return count == 0 ? 0 : bits() % count; }

void require(bool is_so, const char* what) {
  if (is_so) return;
  std::fprintf(stderr, "accepted wrongly: %s\n", what);
  std::abort();
}

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<long>(bytes.size()));
}

void damage(Bytes& bytes) {
  static const char* const kWords[] = {"'descr': '<f8'",
                                       "'descr': '|O'",
                                       "'fortran_order': True",
                                       "(,)",
                                       "'shape': (3, 4, )",
                                       "(-1,)",
                                       "9999999999999999999",
                                       "\n",
                                       "'descr': '<f4', "
                                       "'descr': '<i8'",
                                       "}"};
  const size_t at = below(bytes.size());
  switch (below(7)) {
    case 0:  // a bit
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
      break;
    case 1:  // the end is missing
      bytes.resize(at);
      break;
    case 2:  // more than there was
      bytes.resize(bytes.size() + below(200), static_cast<char>(bits()));
      break;
    case 3:  // the length of the header
      if (bytes.size() > 9) bytes[8 + below(2)] = static_cast<char>(bits());
      break;
    case 4:  // a byte anywhere in the header
      if (!bytes.empty()) bytes[below(std::min<size_t>(bytes.size(), 128))] = static_cast<char>(bits());
      break;
    case 5: {  // another text
      const char* word = kWords[below(std::size(kWords))];
      const size_t length = std::min(std::strlen(word), bytes.size() - at);
      if (length > 0) std::memcpy(bytes.data() + at, word, length);
      break;
    }
    default:  // bytes twice, which moves all that follows
      bytes.insert(bytes.begin() + static_cast<long>(at), bytes.begin(),
                   bytes.begin() + static_cast<long>(below(std::min<size_t>(bytes.size(), 64))));
  }
}

struct Case {
  std::string dtype;
  std::vector<int64_t> shape;
  size_t size = 0;  // bytes of all values
};

Case any_case() {
  static const std::vector<int64_t> kShapes[] = {{}, {0}, {1}, {7}, {3, 4}, {0, 5}, {2, 3, 4}, {100, 16}};
  static const char* const kDtypes[] = {"<f4", "<i4", "<i8"};
  Case c{kDtypes[below(3)], kShapes[below(std::size(kShapes))]};
  c.size = static_cast<size_t>(program::count_of(c.shape)) * (c.dtype == "<i8" ? 8 : 4);
  return c;
}

// Returns whether the file was accepted.
bool try_array(const std::string& path, const Case& c, const Bytes& bytes, uint64_t digest) {
  try {
    const bool asks = below(2) == 0;
    const Array array(path, c.dtype, c.shape, asks ? std::optional<uint64_t>(digest) : std::nullopt);
    const auto low = static_cast<unsigned char>(bytes[8]), high = static_cast<unsigned char>(bytes[9]);
    const size_t begin = 10u + low + 256u * high;
    require(begin + c.size == bytes.size(), "values that do not end where the file does");
    require(c.size == 0 || std::memcmp(array.values(), bytes.data() + begin, c.size) == 0,
            "values that are not the file's");
    const std::string header(bytes.data() + 10, begin - 10);
    require(header.find(c.dtype) != std::string::npos, "another dtype");
    if (asks)
      require(gb::xxh64(bytes.data() + begin, static_cast<int64_t>(c.size)) == digest, "another digest");
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

program::Weights any_weights() {
  program::Weights weights;
  weights.add({.name = "lin.weight", .shape = {5, 3}});
  weights.add({.name = "mean", .shape = {5}, .learns = false});
  weights.add_counter("steps");
  return weights;
}

bool try_weights(const std::string& folder) {
  program::Weights weights = any_weights();
  try {
    weights.load(folder);
    return weights.parameters[0].value.size() == 15 && weights.digest() != 0;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  const std::string folder = words[1], path = folder + "/array.npy";
  bits.seed(std::strtoull(words[2], nullptr, 10));
  any_weights().save(folder);
  const Bytes weight = read_file(folder + "/lin.weight.npy"), steps = read_file(folder + "/steps.npy");
  const std::clock_t end = std::clock() + std::atol(words[3]) * CLOCKS_PER_SEC;  // of this process alone
  int64_t rounds = 0, accepted = 0;
  while (std::clock() < end) {
    const Case c = any_case();
    Bytes values(c.size);
    for (char& value : values) value = static_cast<char>(bits());
    program::write_array(path, c.dtype, values.data(), c.shape);
    Bytes bytes = read_file(path);
    const uint64_t digest = gb::xxh64(values.data(), static_cast<int64_t>(c.size));
    require(try_array(path, c, bytes, digest), "nothing: a file as it was written is refused");
    for (size_t times = 1 + below(4); times > 0; --times) damage(bytes);
    write_file(path, bytes);
    accepted += try_array(path, c, bytes, digest);
    const bool of_steps = below(2) == 0;
    Bytes damaged = of_steps ? steps : weight;
    for (size_t times = 1 + below(4); times > 0; --times) damage(damaged);
    const std::string file = folder + (of_steps ? "/steps.npy" : "/lin.weight.npy");
    write_file(file, damaged);
    accepted += try_weights(folder);
    write_file(file, of_steps ? steps : weight);
    ++rounds;
  }
  std::printf("%lld rounds, %lld damaged files accepted\n", static_cast<long long>(rounds),
              static_cast<long long>(accepted));
  return rounds > 0 ? 0 : 1;
}
