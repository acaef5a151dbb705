// What operations of a segment read and write, and the kernels that they call: rows, operands, and linear
// maps of rows over edges, with their transposes.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregate/gine.h"
#include "aggregate/spmm.h"
#include "arguments/binding.h"
#include "arguments/pool.h"
#include "arguments/tensors.h"
#include "base/buffer.h"
#include "dense/dense.h"
#include "graph/topology.h"
#include "threads/worth.h"

namespace gb {

// Rows, in memory of their own or of a tensor that somebody holds.
struct FloatMatrix {
  float* data = nullptr;
  int64_t rows = 0, width = 0, stride = 0;
  std::shared_ptr<float> own = nullptr;

  static FloatMatrix make(int64_t rows, int64_t width) {
    auto own = row_memory(rows * width);
    float* data = own.get();
    return {data, rows, width, width, std::move(own)};
  }
  static FloatMatrix zeros(int64_t rows, int64_t width) {
    FloatMatrix made = make(rows, width);
    std::fill_n(made.data, rows * width, 0.0f);
    return made;
  }
  FloatMatrix first(int64_t count) const { return {data, count, width, stride, own}; }
  FloatMatrix part(int64_t begin, int64_t count) const {
    return {data + begin * stride, count, width, stride, own};
  }
  FloatMatrix columns(int64_t begin, int64_t count) const { return {data + begin, rows, count, stride, own}; }
  // Whether nothing else has this memory.
  bool is_alone() const {
    return data != nullptr && own.use_count() == 1 && own.get() == data && stride == width;
  }
  // Gives the memory back; the sizes stay.
  void free() {
    data = nullptr;
    own.reset();
  }
};

using FloatVector = Array<const float, 1>;
using OptionalFloats = std::optional<FloatVector>;

inline FloatMatrix matrix_of(const WrittenFloatRows& array) {
  return {array.data(), array.num_rows(), array.num_columns(), array.stride(0)};
}
inline FloatMatrix matrix_of(const FloatRows& array) {  // which is only read
  return {const_cast<float*>(array.data()), array.num_rows(), array.num_columns(), array.stride(0)};
}

// The rows themselves if each stands without gaps, else a copy. For example, the gradient of sum() is one
// number that is read for all elements, with strides of 0.
inline FloatMatrix by_row(const StridedFloats& array) {
  const int64_t rows = array.num_rows(), width = array.num_columns(), stride = array.stride(0);
  const bool is_laid_out = array.stride(1) == 1 && stride >= width;
  if (is_laid_out && rows > 0) return {const_cast<float*>(array.data()), rows, width, stride};
  const FloatMatrix copy = FloatMatrix::make(rows, width);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; ++j)
      copy.data[i * width + j] = array.data()[i * stride + j * array.stride(1)];
  return copy;
}

// The part of a tensor that an operation reads: all of it, or a matrix of a stack (count, rows, columns).
struct View {
  int tensor;           // its number
  int64_t at = -1;      // of a stack, the number of the matrix; -1: all
  bool turned = false;  // whether the matrix is stored as (inputs, outputs)
};

// An operand: a matrix, a bias or the attention vectors of all heads, (1, heads, channels). It is read from a
// tensor of its own, which keeps the memory: a parameter's data may be replaced before backward.
struct Operand {
  nb::object tensor;
  View view;
  int num_dimensions;  // of the tensor
  StridedFloats matrix;
  FloatVector vector;
  Array<const float, 3> by_head;  // or a stack of matrices
  bool is_matrix = false;

  Operand(const nb::object& given, const View& of)
      : tensor(given.attr("data")), view(of), num_dimensions(nb::cast<int>(tensor.attr("ndim"))) {
    if (num_dimensions == 1) {
      vector = FloatVector(tensor);
      vector.take("bias");
    } else if (num_dimensions == 3) {
      by_head = Array<const float, 3>(tensor);
      by_head.take("vectors");
      if (view.at < 0) return;
      need_count(view.at, 0, by_head.extent(0) - 1, "the number of a matrix");
      set_block({by_head.data() + first(), by_head.extent(2), 1}, by_head.extent(1), by_head.extent(2));
    } else {
      matrix = StridedFloats(tensor);
      matrix.take("weight");
      set_block({matrix.data(), matrix.stride(0), matrix.stride(1)}, matrix.num_rows(), matrix.num_columns());
    }
  }

  const AnyArray& array() const {
    if (num_dimensions == 1) return vector;
    if (num_dimensions == 3) return by_head;
    return matrix;
  }
  bool is_in_place() const { return array().is_in_place(); }
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> found;
    for (int d = 0; d < num_dimensions; ++d) found.push_back(array().extent(d));
    return found;
  }
  // How many numbers it has. Of a matrix a column may be named, counted from 1: then how many that has.
  int64_t size(int column = 0) const {
    if (column > 0) return rows();
    int64_t count = 1;
    for (int d = 0; d < num_dimensions; ++d) count *= array().extent(d);
    return count;
  }
  float number(int64_t i, int column) const {
    if (num_dimensions == 1) return vector.data()[i];
    if (num_dimensions == 3) return by_head.data()[i];
    const int64_t row = column > 0 ? i : i / columns(), at = column > 0 ? column - 1 : i % columns();
    return matrix.data()[row * matrix.stride(0) + at * matrix.stride(1)];
  }
  // Fills a row with the numbers, and with zeros behind them. A number alone fills all of it.
  void spread(float* row, int64_t width, int column) const {
    const int64_t count = size(column);
    for (int64_t i = 0; i < width; ++i)
      row[i] = count == 1 ? number(0, column) : i < count ? number(i, column) : 0.0f;
  }
  // The reverse, for gradients, which it adds to. That of a number alone is the sum of the row.
  void join(const float* row, int64_t width, int column, float* to) const {
    const int64_t count = size(column), step = column > 0 ? columns() : 1;
    to += std::max(column - 1, 0);
    if (count == 1)
      *to += std::accumulate(row, row + width, 0.0f);
    else
      for (int64_t i = 0; i < count; ++i) to[i * step] += row[i];
  }
  // Where the numbers that are read begin in the tensor, for its gradient.
  int64_t first() const { return view.at > 0 ? view.at * by_head.extent(1) * by_head.extent(2) : 0; }
  bool is_of_stack() const { return view.at >= 0 && num_dimensions == 3; }
  // Of a matrix: its outputs and inputs.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  Strided whole() const { return block_; }
  Strided turned() const { return {block_.data, block_.column_stride, block_.row_stride}; }

 private:
  void set_block(const Strided& block, int64_t rows, int64_t columns) {
    is_matrix = true;
    block_ = block;
    rows_ = rows;
    columns_ = columns;
    if (!view.turned) return;
    std::swap(block_.row_stride, block_.column_stride);
    std::swap(rows_, columns_);
  }

  Strided block_;
  int64_t rows_ = 0, columns_ = 0;
};

// A linear map of rows over edges: the fields of ops/aggregation.py. Arrays and coefficients may be longer
// than the edges of num_dst destinations and the nodes need.
struct Map {
  Indptr indptr;
  Ids indices;
  int64_t num_src = 0, num_dst = 0;
  bool mean = false, skip_loops = false;
  double loop_scale = 0;
  OptionalFloats weight, src_scale, dst_scale, loop;
  OptionalIds places = {};  // of a transpose: for each of its edges, the edge of the map

  // The map over the same edges between other numbers of rows, which are checked.
  Map between(int64_t sources, int64_t destinations) const {
    need_count(destinations, 0, indptr.length() - 1, "num_dst");
    Map map = *this;
    map.num_src = sources;
    map.num_dst = destinations;
    const auto reaches = [](const OptionalFloats& factors, int64_t count) {
      need(!factors || factors->length() >= count, "there is a coefficient for each edge or node");
    };
    need(map.num_edges() <= indices.length(), "there is an id for each edge");
    reaches(weight, map.num_edges());
    reaches(src_scale, map.num_src);
    reaches(dst_scale, map.num_dst);
    reaches(loop, map.num_loops());
    return map;
  }
  int64_t num_edges() const { return indptr.data()[num_dst]; }
  int64_t degree(int64_t v) const { return indptr.data()[v + 1] - indptr.data()[v]; }
  int64_t num_loops() const { return loop_scale != 0 ? std::min(num_src, num_dst) : 0; }
  bool is_in_place() const {
    const auto are = [](const auto&... arrays) { return ((!arrays || arrays->is_in_place()) && ...); };
    return indptr.is_in_place() && indices.is_in_place() && are(weight, src_scale, dst_scale, loop);
  }
};
using MapFields = std::tuple<Indptr, Ids, bool, bool, double, OptionalFloats, OptionalFloats, OptionalFloats,
                             OptionalFloats>;
using SizedMap = std::tuple<nb::tuple, int64_t, int64_t>;  // MapFields, sources and destinations

inline Map map_of(const SizedMap& given) {
  const auto& [given_fields, num_src, num_dst] = given;
  auto fields = nb::cast<MapFields>(given_fields);
  auto& [indptr, indices, mean, skip_loops, loop_scale, weight, src, dst, loop] = fields;
  indptr.take("indptr");
  indices.take("indices");
  take(weight, "weight");
  take(src, "src_scale");
  take(dst, "dst_scale");
  take(loop, "loop");
  const Map map{indptr, indices, 0, 0, mean, skip_loops, loop_scale, weight, src, dst, loop};
  return map.between(num_src, num_dst);
}

inline SpmmArgs arguments_of(const Map& map) {
  SpmmArgs a;
  a.wide_indices = is_wide(map.indices);
  a.indptr = map.indptr.data();
  a.indices = map.indices.data();
  a.num_dst = map.num_dst;
  a.num_edges = map.num_edges();
  a.weight = data_or_null(map.weight);
  a.src_scale = data_or_null(map.src_scale);
  a.dst_scale = data_or_null(map.dst_scale);
  a.loop = data_or_null(map.loop);
  a.loop_scale = map.loop_scale;
  a.num_loops = map.num_loops();
  a.skip_loops = map.skip_loops;
  a.mean = map.mean;
  return a;
}

// The transpose of a map, in memory of its own; Aggregation.transposed is its twin.
struct Reversed {
  SpmmArgs arguments;
  int64_t* places = nullptr;

  // with_places: writes `places`, for each of its edges the edge of the map.
  explicit Reversed(const Map& map, bool with_places = false) : arguments(arguments_of(map)) {
    const int64_t num_edges = map.num_edges();
    auto* indptr = take<int64_t>(map.num_src + 1);
    if (with_places) places = take<int64_t>(num_edges);
    float* weight = map.weight ? take<float>(num_edges) : nullptr;
    with_ids(map.indices, [&]<typename Id>(const Id* sources) {
      Id* destinations = take<Id>(num_edges);
      const auto rows = [&](int64_t first) { return RowCursor(map.indptr.data(), map.num_dst, first); };
      const auto emit = [&](int64_t edge, int64_t place, RowCursor& row) {
        destinations[place] = static_cast<Id>(row.row_of(edge));
        if (map.weight) weight[place] = map.weight->data()[edge];
        if (with_places) places[place] = edge;
      };
      counting_scatter<uint32_t>(
          num_edges, map.num_src, indptr, [=](int64_t e) { return sources[e]; }, rows, emit);
      arguments.indices = destinations;
    });
    arguments.indptr = indptr;
    arguments.num_dst = map.num_src;
    arguments.weight = weight;
    arguments.mean = false;
    arguments.src_scale = data_or_null(map.dst_scale);
    arguments.dst_scale = data_or_null(map.src_scale);
    if (!map.mean) return;
    auto* scale = take<float>(map.num_dst);
    for (int64_t v = 0; v < map.num_dst; ++v) {
      const int64_t degree = map.indptr.data()[v + 1] - map.indptr.data()[v];
      scale[v] = 1.0f / static_cast<float>(std::max<int64_t>(degree, 1));
      if (map.dst_scale) scale[v] = map.dst_scale->data()[v] * scale[v];
    }
    arguments.src_scale = scale;
  }

 private:
  // Memory for so many numbers, in floats.
  template <typename T>
  T* take(int64_t count) {
    memory_.push_back(row_memory(count * static_cast<int64_t>(sizeof(T) / sizeof(float))));
    return reinterpret_cast<T*>(memory_.back().get());
  }

  std::vector<std::shared_ptr<float>> memory_;
};

inline void sum_over(SpmmArgs a, const FloatMatrix& x, const FloatMatrix& out,
                     const FloatMatrix* addend = nullptr, const Epilogue* epilogue = nullptr,
                     const double* gate_scale = nullptr) {
  if (out.rows == 0 || out.width == 0) return;
  a.width = out.width;
  a.x = {x.data, x.stride};
  a.out = out.data;
  a.out_stride = out.stride;
  if (addend != nullptr) {
    a.addend = {addend->data, addend->stride};
    a.num_addend = addend->rows;
  }
  a.epilogue = epilogue;
  if (gate_scale != nullptr) {
    a.is_gated = true;
    a.gate_scale = *gate_scale;
  }
  run_spmm(a);
}

// A linear map of edges' features, which GINE's kernels compute where they read an edge. They want the weight
// transposed.
struct EdgeMap {
  FloatMatrix turned;
  GineMap how;

  EdgeMap(const Operand* weight, const Operand* bias) {
    if (weight == nullptr) return;
    turned = FloatMatrix::make(weight->columns(), weight->rows());
    for (int64_t k = 0; k < turned.rows; ++k)
      for (int64_t j = 0; j < turned.width; ++j)
        turned.data[k * turned.width + j] =
            weight->whole().data[j * weight->whole().row_stride + k * weight->whole().column_stride];
    how = {turned.rows, turned.data, bias == nullptr ? nullptr : bias->vector.data()};
  }
};

// GINE's sum of relu(row of a source + row of an edge), to which nodes add their own rows times a factor.
inline void sum_rectified(const Map& map, const FloatMatrix& x, const FloatMatrix& edges,
                          const GineMap& mapped, double factor, const FloatMatrix& out) {
  GineArgs a{arguments_of(map)};
  a.width = x.width;
  a.x = {x.data, x.stride};
  a.edges = {edges.data, edges.stride};
  a.map = mapped;
  a.loop_scale = factor;
  a.num_loops = factor != 0 ? std::min(map.num_src, map.num_dst) : 0;
  a.out = out.data;
  run_gine(a);
}
// The gradient of the rows of edges.
inline void rectified_back(const Map& map, const FloatMatrix& x, const FloatMatrix& edges,
                           const FloatMatrix& grad, const FloatMatrix& out) {
  GineEdgeBackwardArgs a{arguments_of(map)};
  a.width = x.width;
  a.x = {x.data, x.stride};
  a.edges = {edges.data, edges.stride};
  a.grad = {grad.data, grad.stride};
  a.out = out.data;
  a.out_stride = out.stride;
  run_gine_edge_backward(a);
}
// The gradient of x. edges: the gradient of their rows; or the rows, and x is given.
inline void sum_rectified_back(const SpmmArgs& reversed, const int64_t* places, const FloatMatrix& grad,
                               const FloatMatrix* x, const FloatMatrix& edges, double factor,
                               const FloatMatrix& out) {
  GineBackwardArgs a{reversed};
  a.width = grad.width;
  a.x = {grad.data, grad.stride};
  a.perm = places;
  if (x != nullptr) a.source = {x->data, x->stride};
  a.edges = {edges.data, edges.stride};
  a.loop_scale = factor;
  a.num_loops = factor != 0 ? std::min(grad.rows, out.rows) : 0;
  a.out = out.data;
  run_gine_backward(a);
}

// Of mapped edges: the gradients of the map, (channels + 1, width), and by the edges of the transpose that of
// x. Those without memory are not wanted. x may give its own place.
inline void mapped_back(const SpmmArgs& walk, const int64_t* places, bool by_source, const FloatMatrix& grad,
                        const FloatMatrix& x, const FloatMatrix& features, const GineMap& mapped,
                        double factor, const FloatMatrix& of_x, const FloatMatrix& of_map) {
  GineMapBackwardArgs a{walk};
  const FloatMatrix &own = by_source ? x : grad, &other = by_source ? grad : x;
  a.width = x.width;
  a.by_source = by_source;
  a.perm = places;
  a.x = {other.data, other.stride};
  a.own = {own.data, own.stride};
  a.edges = {features.data, features.stride};
  a.map = mapped;
  a.loop_scale = factor;
  a.num_loops = factor != 0 ? std::min(grad.rows, x.rows) : 0;
  a.out = of_x.data;
  a.of_map = of_map.data;
  run_gine_map_backward(a);
}

inline void multiply(const FloatMatrix& a, const Strided& b, const FloatMatrix& out, bool add = false,
                     const Epilogue* epilogue = nullptr) {
  run_tall_product({.num_rows = a.rows,
                    .depth = a.width,
                    .width = out.width,
                    .a = a.data,
                    .a_stride = a.stride,
                    .b = b,
                    .out = out.data,
                    .out_stride = out.stride,
                    .add = add,
                    .epilogue = epilogue});
}

inline void gram(const FloatMatrix& a, const FloatMatrix& b, float* out) {
  run_tall_gram({.num_rows = a.rows,
                 .height = a.width,
                 .width = b.width,
                 .a = a.data,
                 .a_stride = a.stride,
                 .b = b.data,
                 .b_stride = b.stride,
                 .out = out});
}

// Rows of a value that are made at a time for a product: two mebibytes, and some for each thread. Each call
// of the product packs its weight again.
inline int64_t rows_made_at_once(int64_t width) {
  return std::max<int64_t>((int64_t{1} << 19) / std::max<int64_t>(width, 1), 128 * max_threads());
}

// Calls body(row) for rows of `width` floats, in parallel if there are enough.
template <typename Body>
void each_row(int64_t rows, int64_t width, const Body& body) {
  parallel_static(rows, std::max<int64_t>(kFloatsWorth / std::max<int64_t>(width, 1), 1),
                  [&](int64_t first, int64_t last) {
                    for (; first < last; ++first) body(first);
                  });
}

inline void copy_rows(const FloatMatrix& from, const FloatMatrix& to) {
  each_row(from.rows, from.width,
           [&](int64_t i) { std::copy_n(from.data + i * from.stride, from.width, to.data + i * to.stride); });
}

inline void add_rows(const FloatMatrix& one, const FloatMatrix& other, const FloatMatrix& out) {
  each_row(out.rows, out.width, [&](int64_t i) {
    for (int64_t j = 0; j < out.width; ++j)
      out.data[i * out.stride + j] = one.data[i * one.stride + j] + other.data[i * other.stride + j];
  });
}

// The mean of a row's heads, and its gradient.
inline void mean_of_heads(const FloatMatrix& rows, int64_t heads, const FloatMatrix& out) {
  each_row(out.rows, rows.width, [&](int64_t i) {
    const float* from = rows.data + i * rows.stride;
    for (int64_t c = 0; c < out.width; ++c) {
      float sum = from[c];
      for (int64_t h = 1; h < heads; ++h) sum += from[h * out.width + c];
      out.data[i * out.stride + c] = sum / static_cast<float>(heads);
    }
  });
}
inline void mean_of_heads_backward(const FloatMatrix& grad, int64_t heads, const FloatMatrix& out) {
  each_row(grad.rows, out.width, [&](int64_t i) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < grad.width; ++c)
        out.data[i * out.stride + h * grad.width + c] =
            grad.data[i * grad.stride + c] / static_cast<float>(heads);
  });
}

// Memory for the gradient of rows, if only the first `count` are read: the gradient of the others is 0.
inline FloatMatrix for_first_rows(const FloatMatrix& rows, int64_t count) {
  const FloatMatrix made = FloatMatrix::make(rows.rows, rows.width);
  std::fill(made.data + count * made.width, made.data + made.rows * made.width, 0.0f);
  return made;
}

}  // namespace gb
