// Values that are never there as a whole: the product that reads them makes some rows at a time, in both
// passes. Plan::by_rows says which.

#include <algorithm>
#include <vector>

#include "segments/pass.h"

namespace gb {

// ---- Forward ----

// Makes rows of a value, or copies them, as many as `to` has.
void Pass::fill_rows(int value, int64_t first, const FloatMatrix& to) const {
  if (!plan_->by_rows[value]) return copy_rows(rows_[value].part(first, to.rows), to);
  const Operation& op = plan_->maker(value);
  if (op.kind == Kind::kMessages)
    return op.messages->finish(maps_[op.edges], steps_[value - plan_->num_reads].sent, first, to);
  for_each_beside(op, [&](int part, int64_t column, int64_t width) {
    fill_rows(part, first, to.columns(column, width));
  });
}

void Pass::multiply_value(int value, const Strided& b, const FloatMatrix& out, bool add,
                          const Epilogue* after) const {
  const FloatMatrix& x = rows_[value];
  if (!plan_->by_rows[value]) return multiply(x, b, out, add, after);
  const FloatMatrix made = FloatMatrix::make(std::min(x.rows, rows_made_at_once(x.width)), x.width);
  for (int64_t first = 0; first < x.rows; first += made.rows) {
    const FloatMatrix some = made.first(std::min(made.rows, x.rows - first));
    fill_rows(value, first, some);
    multiply(some, b, out.part(first, some.rows), add);
  }
  if (after != nullptr) run_epilogue(epilogue_arguments(out, out, *after));
}

// Frees what nothing reads after this place.
void Pass::free_rows(int value, size_t place) {
  if (!plan_->by_rows[value]) return rows_[value].free();
  const Operation& op = plan_->maker(value);
  if (op.kind != Kind::kMessages) {
    for (const int part : op.reads())
      if (is_last_read(part, place) && !kept_[part]) free_rows(part, place);
  } else if (Step& step = steps_[value - plan_->num_reads]; !step.wants_any()) {
    step.sent = {};
  }
}

// ---- Backward ----

// Memory for the gradients that give_rows adds to.
void Pass::begin_gradient(int value, std::vector<FloatMatrix>& held) const {
  if (!wants_[value]) return;
  FloatMatrix& of = held[value];
  if (!plan_->by_rows[value]) {
    const FloatMatrix before = of, &rows = rows_[value];
    if (before.data == nullptr) of = FloatMatrix::zeros(rows.rows, rows.width);
    if (before.data == nullptr || before.own.use_count() == 2) return;
    of = FloatMatrix::make(rows.rows, rows.width);
    return copy_rows(before, of);
  }
  const Operation& op = plan_->maker(value);
  if (op.kind == Kind::kMessages)
    of = op.messages->for_gradients_of_sums(maps_[op.edges]);
  else
    for (const int part : op.reads()) begin_gradient(part, held);
}

// Gives the gradient of rows of a value, from `first` on, to what these are made of. May overwrite it.
void Pass::give_rows(int value, int64_t first, const FloatMatrix& grad,
                     std::vector<FloatMatrix>& held) const {
  if (!wants_[value]) return;
  if (!plan_->by_rows[value]) {
    const FloatMatrix to = held[value].part(first, grad.rows);
    return add_rows(to, grad, to);
  }
  const Operation& op = plan_->maker(value);
  if (op.kind == Kind::kMessages) {
    const Sent& sent = steps_[value - plan_->num_reads].sent;
    return op.messages->finish_back(maps_[op.edges], sent, first, grad, held[value]);
  }
  for_each_beside(op, [&](int part, int64_t column, int64_t width) {
    give_rows(part, first, grad.columns(column, width), held);
  });
}

// Backward of a product of a value that is made by rows: the gradient of the weight, if it has memory, with
// the bits of gram, and those of what the rows are made of.
void Pass::product_back_by_rows(const FloatMatrix& grad, const Operand& weight, int value, float* of_weight,
                                std::vector<FloatMatrix>& held) const {
  const int64_t rows = grad.rows, width = rows_[value].width, parts = gram_parts(rows);
  const int64_t at_once = std::max<int64_t>(1, std::min(rows, rows_made_at_once(width)) / parts);
  const FloatMatrix made = FloatMatrix::make(at_once * parts, width);
  GramRoundArgs round{{.num_rows = rows,
                       .height = grad.width,
                       .width = width,
                       .a = grad.data,
                       .a_stride = grad.stride,
                       .b = made.data,
                       .b_stride = width,
                       .out = of_weight}};
  FloatMatrix of_gram;
  if (of_weight != nullptr) of_gram = FloatMatrix::make(1, gram_sums_length(rows, grad.width, width));
  round.sums = of_gram.data;
  begin_gradient(value, held);
  const auto each_part = [&](const auto& body) {
    int64_t at = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t count = gram_round_rows(rows, part, round.first, round.last);
      body(gram_part_begin(rows, part) + round.first, made.part(at, count));
      at += count;
    }
  };
  while (!round.ends) {
    round.last = round.first + at_once;
    round.ends = round.last * parts >= rows;
    if (of_weight != nullptr) {
      each_part([&](int64_t first, const FloatMatrix& some) { fill_rows(value, first, some); });
      run_tall_gram_round(round);
    }
    if (wants_[value])
      each_part([&](int64_t first, const FloatMatrix& some) {
        multiply(grad.part(first, some.rows), weight.whole(), some);
        give_rows(value, first, some, held);
      });
    round.first = round.last;
  }
}

}  // namespace gb
