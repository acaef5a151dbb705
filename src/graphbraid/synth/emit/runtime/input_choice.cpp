#include "input_choice.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "cpu_kernels.h"

namespace program {
namespace {

constexpr int kRuns = 3;
constexpr int64_t kLeastRows = 64;
constexpr int64_t kDenseProducts = 25'000'000;  // multiplications in each direction
constexpr int64_t kDenseNumbers = 4'000'000;    // most numbers in dense rows, which bounds their memory
constexpr int64_t kGathered = 2'000'000;        // numbers that an aggregation reads
constexpr int64_t kEdgesPerRow = 16;

// The sample by column, made by a counting sort: the edges along which the weight's gradient is summed.
struct ByColumn {
  std::vector<int64_t> indptr;
  std::vector<int32_t> rows;
  std::vector<float> values;

  ByColumn(const InputSample& sample, int64_t channels) : indptr(static_cast<size_t>(channels) + 1) {
    const int64_t count = sample.indptr[sample.rows];
    rows.resize(static_cast<size_t>(count));
    values.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ++indptr[static_cast<size_t>(sample.indices[i]) + 1];
    for (size_t j = 1; j < indptr.size(); ++j) indptr[j] += indptr[j - 1];
    std::vector<int64_t> next(indptr.begin(), indptr.end() - 1);
    for (int64_t row = 0; row < sample.rows; ++row)
      for (int64_t i = sample.indptr[row]; i < sample.indptr[row + 1]; ++i) {
        const auto to = static_cast<size_t>(next[static_cast<size_t>(sample.indices[i])]++);
        rows[to] = static_cast<int32_t>(row);
        values[to] = sample.values[i];
      }
  }
};

void sum_edges(const Edges& edges, ConstMatrix x, const float* weight, Matrix out) {
  spmm({.edges = edges, .x = x, .factors = {.weight = weight}, .out = out});
}

// A matrix of ones with its memory.
struct Rows {
  std::vector<float> numbers;
  int64_t rows, columns;

  Rows(int64_t rows_, int64_t columns_)
      : numbers(static_cast<size_t>(rows_ * columns_), 1.0f), rows(rows_), columns(columns_) {}
  Matrix all() { return contiguous(numbers.data(), rows, columns); }
};

}  // namespace

double least_seconds(const std::function<void()>& run) {
  run();
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

double dense_seconds(const InputShape& shape, const InputSample& sample) {
  const int64_t wanted =
      std::min(kDenseProducts / (shape.channels * shape.width), kDenseNumbers / shape.channels);
  const int64_t count = std::min(sample.rows, std::max(kLeastRows, wanted));
  Rows x(count, shape.channels), weight(shape.width, shape.channels), out(count, shape.width);
  std::fill(x.numbers.begin(), x.numbers.end(), 0.0f);
  for (int64_t to = 0; to < count; ++to) {
    const int64_t row = to * sample.rows / count;
    for (int64_t i = sample.indptr[row]; i < sample.indptr[row + 1]; ++i)
      x.numbers[static_cast<size_t>(to * shape.channels + sample.indices[i])] = sample.values[i];
  }
  Rows gradient(shape.width, shape.channels);
  const double taken = least_seconds([&] {
    tall_product({.a = x.all(), .b = transposed(weight.all()), .out = out.all()});
    tall_gram({.a = out.all(), .b = x.all(), .out = gradient.all()});
  });
  return taken * static_cast<double>(shape.rows) / static_cast<double>(count);
}

double csr_seconds(const InputShape& shape, const InputSample& sample) {
  const int64_t count = sample.indptr[sample.rows];
  const ByColumn turned(sample, shape.channels);
  const Edges by_row = {
      .indptr = sample.indptr,
      .indices = sample.indices,
      .num_rows = sample.rows,
      .num_edges = count,
  };
  const Edges by_column = {
      .indptr = turned.indptr.data(),
      .indices = turned.rows.data(),
      .num_rows = shape.channels,
      .num_edges = count,
  };
  Rows weight(shape.channels, shape.width), gradient(shape.channels, shape.width);
  Rows out(sample.rows, shape.width);
  const double taken = least_seconds([&] {
    sum_edges(by_row, weight.all(), sample.values, out.all());
    sum_edges(by_column, out.all(), turned.values.data(), gradient.all());
  });
  return taken * static_cast<double>(shape.rows) / static_cast<double>(sample.rows);
}

// Seconds of aggregations, forward and backward, that read `floats` numbers each: rows of `width` numbers,
// taken at random from `sources`.
static double aggregation_seconds(int64_t sources, int64_t width, int64_t floats) {
  if (floats <= 0) return 0;
  const int64_t num_rows = std::max(kLeastRows, kGathered / (width * kEdgesPerRow));
  std::vector<int64_t> indptr(static_cast<size_t>(num_rows) + 1);
  for (size_t i = 0; i < indptr.size(); ++i) indptr[i] = static_cast<int64_t>(i) * kEdgesPerRow;
  std::vector<int32_t> from(static_cast<size_t>(num_rows * kEdgesPerRow));
  const int64_t num_sources = std::max<int64_t>(1, std::min(sources, kDenseNumbers / width));
  uint32_t random = 1;
  for (int32_t& id : from) {
    random = random * 1664525u + 1013904223u;  // a linear congruence; its high bits are random enough
    // random / 2**32 is below 1, so this is below num_sources.
    id = static_cast<int32_t>(static_cast<uint64_t>(random) * static_cast<uint64_t>(num_sources) >> 32);
  }
  const auto num_edges = static_cast<int64_t>(from.size());
  const Edges edges = {
      .indptr = indptr.data(),
      .indices = from.data(),
      .num_rows = num_rows,
      .num_edges = num_edges,
  };
  Rows x(num_sources, width), out(num_rows, width);
  const double taken = least_seconds([&] { sum_edges(edges, x.all(), nullptr, out.all()); });
  return 2 * taken * static_cast<double>(floats) / static_cast<double>(num_edges * width);
}

const InputPath& fastest_input(std::span<const InputPath> paths, const InputSample& sample, double density) {
  std::vector<std::pair<double, const InputPath*>> tried;
  for (const InputPath& path : paths) {
    const InputShape& shape = path.shape;
    tried.emplace_back(
        path.seconds(shape, sample) + aggregation_seconds(path.sources, shape.width, path.aggregated_floats),
        &path);
  }
  std::ranges::stable_sort(tried, {}, [](const auto& one) { return one.first; });
  std::printf("input path %s: %.4g%% of the features are not zero; tried, an epoch's products take",
              tried.front().second->name, 100 * density);
  for (const auto& [seconds, path] : tried) std::printf(" %.3g ms as %s", 1e3 * seconds, path->name);
  std::printf("\n");
  return *tried.front().second;
}

const InputPath& named_input(std::span<const InputPath> paths, const std::string& name) {
  std::printf("input path %s: as --input asks\n", name.c_str());
  return *std::ranges::find_if(paths, [&](const InputPath& path) { return path.name == name; });
}

}  // namespace program
