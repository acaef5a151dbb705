// The kernels that programs for every target call. On a CPU, each call is one kernel of csrc/ in the variant
// for this processor. On a GPU, it is a kernel of the same name and formula, with pointers into the GPU's
// memory. A call names its arguments. An argument that it leaves out is null, empty or false.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace program {

// An epilogue as the kernels of csrc/ take it.
gb::Epilogue epilogue_of(const RowEpilogue& how);

struct Spmm {
  Edges edges = {};
  ConstMatrix x = {};
  Factors factors = {};
  double loop_scale = 0;
  int64_t num_loops = 0;
  bool skip_loops = false, mean = false;
  ConstMatrix addend = {};
  Matrix out = {};
  RowEpilogue after = {};
};
void spmm(const Spmm& a);

// Which of equal maxima get the gradient: the first; all in equal shares; or all with a zero that counts as
// one more. csrc/aggregate/spmm_max.h has the same order.
enum class Ties { kFirst, kShared, kSharedWithZero };

struct SpmmMax {
  Edges edges = {};
  ConstMatrix x = {};
  Ties ties = Ties::kFirst;
  Matrix out = {};
  int32_t* found = nullptr;  // written for the gradient, if not null
};
void spmm_max(const SpmmMax& a);

struct SpmmMaxBackward {
  Edges edges = {};
  ConstMatrix share = {}, largest = {}, x = {};
  Matrix out = {};
};
void spmm_max_shared_backward(const SpmmMaxBackward& a);

// Messages made of steps, reduced by row. Only those sources x and destinations y are given that a step
// reads. On a CPU, steps and results are arrays: see csrc/aggregate/messages.h. On a GPU, they are a type.
struct Messages {
  Edges edges = {};  // the walked rows and their edges
  const int64_t* perm = nullptr;
  bool by_source = false;
  int64_t width = 0;
  ConstMatrix x = {}, x2 = {}, x3 = {}, x4 = {};
  ConstMatrix y = {}, y2 = {}, y3 = {}, y4 = {}, y5 = {}, y6 = {}, y7 = {}, y8 = {}, y9 = {}, y10 = {};
  const float* weight = nullptr;
  bool adds = false;
  Matrix out = {}, out2 = {}, out3 = {}, out4 = {};
  int32_t* count = nullptr;
  int64_t heads = 1;
  const int64_t* steps = nullptr;
  const float* numbers = nullptr;
  int num_steps = 0;
  const int64_t* results = nullptr;
  int num_results = 0;
};
void reduce_messages(const Messages& a);  // on a GPU a template of the message's type: messages.cuh

struct TallProduct {
  ConstMatrix a = {}, b = {};
  Matrix out = {};
  bool add = false;
  const int64_t* ids = nullptr;  // the rows of a; null: all
  RowEpilogue after = {};
};
void tall_product(const TallProduct& a);

struct TallGram {
  ConstMatrix a = {}, b = {};
  Matrix out = {};
  const int64_t* ids = nullptr;  // the rows of b; null: all
};
void tall_gram(const TallGram& a);

// Rows of zeros and ones as bits: see csrc/dense/bit_product.h.
struct BitProduct {
  const int32_t* bits = nullptr;
  const float* factors = nullptr;
  ConstMatrix b = {};
  Matrix out = {};
  bool add = false;
  RowEpilogue after = {};
};
void bit_product(const BitProduct& a);

struct BitGram {
  ConstMatrix a = {};
  const int32_t* bits = nullptr;
  const float* factors = nullptr;
  Matrix out = {};
};
void bit_gram(const BitGram& a);

struct RowwiseEpilogue {
  ConstMatrix x = {};
  RowEpilogue how = {};
  Matrix out = {};
};
void epilogue(const RowwiseEpilogue& a);

struct EpilogueBackward {
  ConstMatrix grad = {}, result = {};
  RowEpilogue how = {};
  Matrix grad_x = {};
  float* grad_bias = nullptr;
};
void epilogue_backward(const EpilogueBackward& a);

// Attention over the edges. above and share are written for the backward pass, if not null. The backward pass
// also takes the edges by source.
struct GatForward {
  Edges edges = {};
  ConstMatrix x = {}, src_logit = {}, dst_logit = {};
  Attention how = {};
  Matrix out = {}, lse = {}, above = {}, share = {};
};
void gat_forward(const GatForward& a);

struct GatBackward {
  Edges edges = {}, by_source = {};
  const int64_t* perm = nullptr;
  ConstMatrix x = {}, src_logit = {}, dst_logit = {};
  Attention how = {};
  Matrix out = {}, lse = {};
  ConstMatrix grad = {};
  Matrix grad_x = {}, grad_src_logit = {}, grad_dst_logit = {}, above = {}, share = {};
};
void gat_backward(const GatBackward& a);

// GATv2's attention, by the rows of both ends of each edge and the vectors of the heads, (heads, channels).
struct Gatv2Forward {
  Edges edges = {};
  ConstMatrix x = {}, own = {}, vectors = {};
  Attention how = {};
  Matrix out = {}, lse = {};
};
void gatv2_forward(const Gatv2Forward& a);

struct Gatv2Backward {
  Edges edges = {}, by_source = {};
  const int64_t* perm = nullptr;
  ConstMatrix x = {}, own = {}, vectors = {};
  Attention how = {};
  Matrix out = {}, lse = {};
  ConstMatrix grad = {};
  Matrix grad_x = {}, grad_own = {}, grad_vectors = {};
};
void gatv2_backward(const Gatv2Backward& a);

// (heads, channels) to (heads * channels, heads): each head's numbers go to its own rows and column.
struct SpreadHeads {
  const float* x = nullptr;
  int64_t heads = 0, channels = 0;
  Matrix out = {};
};
void spread_heads(const SpreadHeads& a);

// (heads, heads * channels) to (heads, channels): each row keeps the columns of its own head.
struct OwnHeads {
  ConstMatrix x = {};
  float* out = nullptr;
};
void own_heads(const OwnHeads& a);

struct Elements {
  ConstMatrix x = {};
  Matrix out = {};
};
// out = the mean of x's blocks of columns, each as wide as out.
void mean_of_heads(const Elements& a);

// Each block of out's columns, as wide as x, = x * factor.
struct RepeatHeads {
  ConstMatrix x = {};
  double factor = 1;
  Matrix out = {};
};
void repeat_heads(const RepeatHeads& a);

// The mean and 1 / sqrt(variance + eps) of x's columns. The running mean and variance move towards them by
// `share`.
struct BatchStatistics {
  ConstMatrix x = {};
  float *running_mean = nullptr, *running_variance = nullptr;
  double share = 0, eps = 0;
  float *mean = nullptr, *rstd = nullptr;
};
void batch_statistics(const BatchStatistics& a);

// The same two vectors for a running mean and variance, which do not change.
struct RunningStatistics {
  const float *running_mean = nullptr, *running_variance = nullptr;
  int64_t width = 0;
  double eps = 0;
  float *mean = nullptr, *rstd = nullptr;
};
void running_statistics(const RunningStatistics& a);

struct BatchNorm {
  ConstMatrix x = {};
  const float *mean = nullptr, *rstd = nullptr, *weight = nullptr, *bias = nullptr;
  Matrix out = {};
};
void batch_norm(const BatchNorm& a);

struct BatchNormBackward {
  ConstMatrix grad = {}, x = {};
  const float *mean = nullptr, *rstd = nullptr, *weight = nullptr;
  bool from_rows = false;  // whether the statistics are those of x's rows
  Matrix grad_x = {};
  float *grad_weight = nullptr, *grad_bias = nullptr;
};
void batch_norm_backward(const BatchNormBackward& a);

// Normalises each row by its own mean and variance. mean and rstd are written for the backward pass, if not
// null.
struct LayerNorm {
  ConstMatrix x = {};
  const float *weight = nullptr, *bias = nullptr;
  double eps = 0;
  Matrix out = {};
  float *mean = nullptr, *rstd = nullptr;
};
void layer_norm(const LayerNorm& a);

struct LayerNormBackward {
  ConstMatrix grad = {}, x = {};
  const float *weight = nullptr, *mean = nullptr, *rstd = nullptr;
  Matrix grad_x = {};
  float *grad_weight = nullptr, *grad_bias = nullptr;
};
void layer_norm_backward(const LayerNormBackward& a);

// The cross entropy of labelled rows: the sum over this rank's rows, divided by the number of all ranks'
// rows. Writes its gradient, which is 0 in all other rows.
struct LossInput {
  ConstMatrix outputs = {};
  LabelledRows nodes = {};
  Matrix grad = {};
};
double cross_entropy(const LossInput& a);
// The number of labelled rows whose largest column is their label.
int64_t num_right(ConstMatrix outputs, const LabelledRows& nodes);

// The same for targets, one for each output of a row. The sum is divided by `total` times the columns.
double binary_cross_entropy(const LossInput& a);
double mean_squared(const LossInput& a);
// The number of outputs whose sign is right: above 0 if the target is above 1/2, else not above 0.
int64_t num_right_signs(ConstMatrix outputs, const LabelledRows& nodes);
// The sum of squared differences of outputs and targets.
double squared_errors(ConstMatrix outputs, const LabelledRows& nodes);

// out = 0, out = x, out += x, out = x / divisor, element by element.
void set_zero(Matrix out);
void copy(const Elements& a);
struct Counts {
  const int32_t* x = nullptr;
  Matrix out = {};
};
void copy_counts(const Counts& a);
void add(const Elements& a);
struct Divide {
  ConstMatrix x = {}, divisor = {};
  Matrix out = {};
};
void divide(const Divide& a);

// out = x / max(number of the row's edges, 1).
struct DivideByDegrees {
  Edges edges = {};
  ConstMatrix x = {};
  Matrix out = {};
};
void divide_by_degrees(const DivideByDegrees& a);

// out = x / max(count, 1), element by element.
struct DivideByCounts {
  ConstMatrix x = {};
  const int32_t* count = nullptr;
  Matrix out = {};
};
void divide_by_counts(const DivideByCounts& a);

// out += x * y, element by element.
struct AddProduct {
  Matrix out = {};
  ConstMatrix x = {}, y = {};
};
void add_product(const AddProduct& a);

// out = (1 + factor) x, or out += (1 + factor) x. The factor's gradient is the sum of grad * x.
struct Scale {
  ConstMatrix x = {};
  const float* factor = nullptr;
  Matrix out = {};
  bool add = false;
};
void scale(const Scale& a);

struct FactorGradient {
  ConstMatrix grad = {}, x = {};
  float* out = nullptr;
};
void factor_gradient(const FactorGradient& a);

}  // namespace program
