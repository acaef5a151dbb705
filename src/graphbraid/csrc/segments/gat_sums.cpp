// GAT that sums before it multiplies: attention/gat_sums.inl has the kernels.
//
// Each head's sum of mapped rows is the map of its sum: sum of alpha x W = (sum of alpha x) W. A batch has
// several times as many sources as destinations in its later layers, so fewer rows are multiplied. The logits
// are products of x, too, with the vectors that the weight maps.

#include <algorithm>

#include "segments/pass.h"

namespace gb {
namespace {

Strided rows_from(const Strided& matrix, int64_t row) {
  return {matrix.data + row * matrix.row_stride, matrix.row_stride, matrix.column_stride};
}
Strided turned(const Strided& matrix) { return {matrix.data, matrix.column_stride, matrix.row_stride}; }
float number(const Strided& matrix, int64_t row, int64_t column) {
  return matrix.data[row * matrix.row_stride + column * matrix.column_stride];
}

}  // namespace

// Whether the attention behind a product sums first. The order depends on sizes and rates alone.
bool Pass::joins_attention(const Operation& op, const Step& step) const {
  const size_t place = steps_.size();
  if (place + 1 == plan_->operations.size()) return false;
  const Operation& next = plan_->operations[place + 1];
  if (plan_->by_rows[op.x]) return false;  // such rows are never there as a whole
  const bool is_plain = op.other < 0 && operand(op.bias) == nullptr && op.act == 0 && op.p == 0;
  const bool is_alone = plan_->first_read[op.out] == plan_->last_read[op.out] && outside_[op.out] < 0;
  const FloatMatrix &x = rows_[op.x], &mapped = rows_[op.out];
  const bool follows = next.kind == Kind::kGat && next.x == op.out && next.other < 0 && is_plain && is_alone;
  if (!follows || plan_->views[op.weight].turned || (x.stride != x.width && x.rows > 1)) return false;
  const Map& map = maps_[next.edges];
  const Rates& rates = plan_->rates;
  const bool trains = step.wants_any() || operand_wants_[next.weight] || operand_wants_[next.other_weight];
  const int64_t in = x.width, out = mapped.width, heads = next.attention.heads;
  const auto edges = static_cast<double>(map.num_edges() + next.attention.num_loops(map));
  const auto multiplying = [&](int64_t rows, int64_t columns, int products) {
    return products * std::max(2.0 * rows * in * columns / rates.multiply_flops,
                               4.0 * rows * (in + columns) / rates.stream_bytes);
  };
  const auto walking = [&](double rows, int64_t width, double operations) {
    return std::max(4.0 * rows * width / rates.row_bytes, edges * operations / rates.multiply_flops);
  };
  const int more = static_cast<int>(step.of_weight) + static_cast<int>(step.of_x);
  const double product_first = multiplying(map.num_src, out, 1 + more) +
                               (1 + static_cast<int>(trains)) * walking(edges, out, 4.0 * out);
  // Sources are numbered as destinations meet them, so that the rows of most first meetings are in a cache.
  const double met_again = std::max(edges - static_cast<double>(map.num_src), 0.0);
  const double back = walking(met_again, heads * in, 4.0 * heads * in);
  const double sums_first = multiplying(map.num_dst, out, 1 + 2 * static_cast<int>(trains)) +
                            multiplying(map.num_src, heads, 1 + 2 * static_cast<int>(trains)) +
                            walking(edges, in, 2.0 * heads * in) + (trains ? back : 0.0);
  return sums_first < product_first;
}

void Attention::sum_forward(const Map& map, const AttentionInputs& in, const FloatMatrix& out, Attended& kept,
                            bool trains) const {
  const FloatMatrix& x = *in.x;
  const Strided weight = in.weight->whole();
  const int64_t width = in.src->width, channels = width / heads, wide = heads * x.width;
  kept.mapped = FloatMatrix::zeros(2, wide);
  for (int64_t i = 0; i < 2 * width; ++i) {
    float* to = kept.mapped.data + i / channels * x.width;
    for (int64_t f = 0; f < x.width; ++f) to[f] += kept.vectors.data[i] * number(weight, i % width, f);
  }
  kept.src_logit = FloatMatrix::make(x.rows, heads);
  kept.dst_logit = FloatMatrix::make(out.rows, heads);
  multiply(x, {kept.mapped.data, 1, x.width}, kept.src_logit);
  multiply(x.first(out.rows), {kept.mapped.data + wide, 1, x.width}, kept.dst_logit);
  kept.out = FloatMatrix::make(out.rows, wide);
  if (trains) kept.alpha = FloatMatrix::make(map.num_edges() + num_loops(map), heads);
  run_gat_sums(arguments(map, in, kept));
  for (FloatMatrix* read : {&kept.src_logit, &kept.dst_logit, &kept.edge_logit}) read->free();
  if (averages) {
    kept.stacked = FloatMatrix::make(channels, wide);
    for (int64_t i = 0; i < width; ++i)
      for (int64_t f = 0; f < x.width; ++f)
        kept.stacked.data[i % channels * wide + i / channels * x.width + f] =
            number(weight, i, f) / static_cast<float>(heads);
    multiply(kept.out, {kept.stacked.data, 1, wide}, out);
  } else {
    for (int64_t h = 0; h < heads; ++h)
      multiply(kept.out.columns(h * x.width, x.width), turned(rows_from(weight, h * channels)),
               out.columns(h * channels, channels));
  }
  if (!trains) kept = {};
}

AttentionGradients Attention::sum_backward(const Map& map, const SpmmArgs& reversed, const int64_t* places,
                                           const AttentionInputs& in, const Attended& kept,
                                           const FloatMatrix& grad) const {
  const FloatMatrix& x = *in.x;
  const Strided weight = in.weight->whole();
  const int64_t width = in.src->width, channels = width / heads, wide = heads * x.width;
  AttentionBackwardArgs b;
  b.forward = arguments(map, in, kept);
  need(places != nullptr || b.forward.num_edges == 0, "the places of edges are there");
  AttentionGradients to{{}, {}, {}, FloatMatrix::make(3, width), {}, FloatMatrix::make(width, x.width)};
  const FloatMatrix of_sums = FloatMatrix::make(grad.rows, wide);
  if (averages) {
    const FloatMatrix of_stacked = FloatMatrix::make(channels, wide);
    multiply(grad, {kept.stacked.data, wide, 1}, of_sums);
    gram(grad, kept.out, of_stacked.data);
    for (int64_t i = 0; i < width; ++i)
      for (int64_t f = 0; f < x.width; ++f)
        to.weight.data[i * x.width + f] =
            of_stacked.data[i % channels * wide + i / channels * x.width + f] / static_cast<float>(heads);
  }
  for (int64_t h = 0; h < (averages ? 0 : heads); ++h) {
    const FloatMatrix of_head = grad.columns(h * channels, channels);
    multiply(of_head, rows_from(weight, h * channels), of_sums.columns(h * x.width, x.width));
    gram(of_head, kept.out.columns(h * x.width, x.width), to.weight.data + h * channels * x.width);
  }
  const FloatMatrix of_src = FloatMatrix::make(x.rows, heads), of_dst = FloatMatrix::make(grad.rows, heads);
  const FloatMatrix of_edges = FloatMatrix::make(map.num_edges() + num_loops(map), heads);
  if (in.of_x) to.src = FloatMatrix::make(x.rows, x.width);
  b.t_indptr = reversed.indptr;
  b.t_indices = reversed.indices;
  b.perm = places;
  b.grad = of_sums.data;
  b.grad_src = to.src.data;
  b.grad_src_logit = of_src.data;
  b.grad_dst_logit = of_dst.data;
  b.grad_edge_logit = of_edges.data;
  run_gat_sums_backward(b);
  const FloatMatrix own = x.first(grad.rows), of_mapped = FloatMatrix::make(2, wide);
  if (in.of_x) multiply(of_dst, {kept.mapped.data + wide, x.width, 1}, to.src.first(grad.rows), true);
  gram(of_src, x, of_mapped.data);
  gram(of_dst, own, of_mapped.data + wide);
  for (int64_t i = 0; i < 2 * width; ++i) {  // through the product of vectors and weight
    const float* from = of_mapped.data + i / channels * x.width;
    float* of_row = to.weight.data + i % width * x.width;
    float of_vector = 0;
    for (int64_t f = 0; f < x.width; ++f) {
      of_row[f] += kept.vectors.data[i] * from[f];
      of_vector += number(weight, i % width, f) * from[f];
    }
    to.vectors.data[i] = of_vector;
  }
  if (in.edge_weight == nullptr) return to;
  const FloatMatrix of_map = FloatMatrix::make(heads, in.key->width);
  gram(of_edges, *in.key, of_map.data);
  edges_back(in, of_map, to);
  return to;
}

}  // namespace gb
