// Messages as an operation of a segment; see messages.h.
#include "segments/messages.h"

#include <algorithm>
#include <utility>

#include "aggregate/message_compiler.h"

namespace gb {
namespace {

// The places of what a softmax reads among the matrices of destinations, as in ops/message_steps.py.
constexpr size_t kDotPlace = 4, kMaxPlace = 5;

MessageEdges edges_of(const SpmmArgs& a, bool by_source) {
  MessageEdges found{{}, by_source};
  found.walk.wide_indices = a.wide_indices;
  found.walk.indptr = a.indptr;
  found.walk.indices = a.indices;
  found.walk.num_dst = a.num_dst;
  found.walk.num_edges = a.num_edges;
  return found;
}

// A walk over the nodes of a side: each has one edge, from itself.
struct EachNode {
  Buffer<int64_t> indptr;
  Buffer<int32_t> ids;
  MessageEdges edges;

  EachNode(int64_t count, bool by_source) : indptr(count + 1), ids(count) {
    for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(indptr[i] = i);
    indptr[count] = count;
    SpmmArgs a;
    a.indptr = indptr.data();
    a.indices = ids.data();
    a.num_dst = a.num_edges = count;
    edges = edges_of(a, by_source);
  }
};

// Calls body(out, in, row) for each two numbers at the same place of two matrices.
template <typename Body>
void each_number(const FloatMatrix& out, const FloatMatrix& in, const Body& body) {
  each_row(out.rows, out.width, [&](int64_t i) {
    for (int64_t c = 0; c < out.width; ++c) body(out.data[i * out.stride + c], in.data[i * in.stride + c], i);
  });
}

// Multiplies two matrices number by number, and sums a row's products over the columns of each head. If
// `out` is as wide, it gets each product.
void sum_products(const FloatMatrix& one, const FloatMatrix& other, const FloatMatrix& out) {
  const int64_t columns = one.width / out.width;
  each_row(out.rows, one.width, [&](int64_t i) {
    const float *a = one.data + i * one.stride, *b = other.data + i * other.stride;
    for (int64_t h = 0; h < out.width; ++h) {
      float sum = 0;
      for (int64_t c = h * columns; c < (h + 1) * columns; ++c) sum += a[c] * b[c];
      out.data[i * out.stride + h] = sum;
    }
  });
}

std::optional<MessageProgram> made_of(std::optional<MessageProgram::Fields>& fields) {
  if (!fields) return std::nullopt;
  return MessageProgram(std::move(*fields));
}

}  // namespace

MessageProgram::MessageProgram(Fields fields) {
  std::tie(steps_, numbers_, results_, places_) = std::move(fields);
  steps_.take("steps");
  numbers_.take("numbers");
  results_.take("results");
  need_columns(steps_, 4);
  need_count(steps_.num_rows(), 1, kMostSteps, "the number of steps");
  need_length(numbers_, steps_.num_rows());
  need_columns(results_, 3);
  compiled_.steps = steps_.data();
  compiled_.numbers = numbers_.data();
  compiled_.num_steps = static_cast<int>(steps_.num_rows());
  compile_program(results_.data(), results_.num_rows(), compiled_);
}

void MessageProgram::run(const MessageEdges& edges, const MessageInputs& in, int64_t heads,
                         const std::vector<FloatMatrix>& to, bool adds, const FloatMatrix& totals,
                         int32_t* count) const {
  const int64_t width = in.parameters.width;
  MessageArgs a = compiled_;
  a.walk = edges.walk;
  a.walk.width = width;
  a.heads = heads;
  a.parameters = in.parameters.data;
  a.weight = in.weight;
  a.perm = edges.places;
  a.adds = adds;
  const MessageCompiler compiler(a.steps, a.num_steps);
  for (int i = 0; i < a.num_steps; ++i) {
    const MessageOp op = compiler.op(i);
    const auto place = static_cast<size_t>(a.steps[4 * i + 1]);
    need(op != MessageOp::kParameter || static_cast<int64_t>(place) < in.parameters.rows,
         "steps must read what is given");
    // Weights of no edges may have no memory.
    need(op != MessageOp::kWeight || in.weight != nullptr || a.walk.num_edges == 0,
         "steps must read what is given");
    if (op == MessageOp::kEdgeNumber) {
      need(static_cast<int64_t>(place) < in.features.width, "steps must read what is given");
      a.edges = {in.features.data, in.features.stride};
    }
    const bool of_source = op == MessageOp::kSource, of_edge = op == MessageOp::kEdge;
    if (!of_source && !of_edge && op != MessageOp::kDestination) continue;
    const std::vector<FloatMatrix>& of_nodes = in.rows[of_source ? kSources : kDestinations];
    need(place < (of_edge ? 1 : of_nodes.size()), "steps must read what is given");
    const FloatMatrix& given = of_edge ? in.features : of_nodes[place];
    const int64_t columns = compiler.narrow(i) ? heads : width;
    need(given.width == columns, "steps must read what is given");
    std::vector<MessageLeaf>& leaves = of_edge                        ? a.of_edges
                                       : of_source == edges.by_source ? a.walked
                                                                      : a.reached;
    leaves.push_back({i, {given.data, given.stride}, columns});
  }
  const FloatMatrix sums = totals.rows > 0 ? FloatMatrix::zeros(totals.rows, width) : FloatMatrix{};
  const auto target = [&](size_t place, int64_t columns) {
    need(place < to.size() && to[place].data != nullptr && to[place].rows >= a.walk.num_dst &&
             to[place].width == columns && to[place].stride == columns,
         "results must have a place");
    return to[place].data;
  };
  int64_t counted = 0;  // columns of the counts of the extrema so far
  for (size_t r = 0; r < a.results.size(); ++r) {
    MessageArgs::Result& result = a.results[r];
    const auto place = static_cast<size_t>(results_.data()[3 * r + 2]);
    result.columns = result.narrow ? heads : width;
    if (result.kind == MessageResult::kOverAll) {
      need(static_cast<int64_t>(place) < sums.rows, "results must have a place");
      result.to = sums.data + place * width;
      continue;
    }
    result.to = target(place, result.columns);
    if (result.kind == MessageResult::kLogSumExp) result.logs = target(place + 1, result.columns);
    if (result.kind == MessageResult::kMax || result.kind == MessageResult::kMin) {
      result.count = count != nullptr ? count + counted : nullptr;
      counted += result.columns;
    }
  }
  for (MessageArgs::Result& result : a.results) result.counted = counted;
  run_messages(a);
  if (sums.rows > 0) add_rows(totals, sums, totals);
}

MessagePrograms::MessagePrograms(Given given) {
  auto& [narrow, programs] = given;
  need(programs.size() == 9, "a message has nine programs");
  hoisted = std::move(narrow);
  size_t next = 0;
  for (auto* one :
       {&softmax, &forward, &slopes, &at_nodes[kSources], &at_nodes[kDestinations], &back[kSources],
        &back[kDestinations], &back_at_nodes[kSources], &back_at_nodes[kDestinations]})
    *one = made_of(programs[next++]);
  need(forward.has_value(), "a message has a forward pass");
}

Messages::Messages(Fields fields) {
  auto& [sources, destinations, operands, num_heads, row_width, kinds, is_mean, shares_zeros, find, several] =
      fields;
  values = {std::move(sources), std::move(destinations)};
  parameters = std::move(operands);
  heads = num_heads;
  width = row_width;
  need(width > 0 && heads > 0 && width % heads == 0, "heads must divide the columns");
  for (const int kind : kinds) {
    need(kind >= 0 && (kind <= 2 || kind == static_cast<int>(MessageSum::kSquares)),
         "sums must be of a kind");
    kinds_.push_back(static_cast<MessageSum>(kind));
  }
  need(several || kinds_.size() == 1, "one reduction must have one sum");
  if (several) several_.emplace(std::move(*several));
  is_mean_ = is_mean;
  shares_zeros_ = shares_zeros;
  find_ = std::move(find);
}

std::shared_ptr<const MessagePrograms> Messages::programs(const Map& map,
                                                          const BySide<std::vector<bool>>& wanted,
                                                          const std::vector<bool>& learned) const {
  constexpr int64_t edges_to_hoist = 4;  // ops/message_kernel.py's _EDGES_TO_HOIST
  std::vector<bool> hoists{map.num_edges() >= edges_to_hoist * map.num_src,
                           map.num_edges() >= edges_to_hoist * map.num_dst};
  std::vector<bool> key = hoists;
  for (const std::vector<bool>* part : {&wanted[kSources], &wanted[kDestinations], &learned})
    key.insert(key.end(), part->begin(), part->end());
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const nb::object given = find_(std::move(hoists), wanted, learned);
  auto made = std::make_shared<const MessagePrograms>(nb::cast<MessagePrograms::Given>(given));
  return known_.emplace(std::move(key), std::move(made)).first->second;
}

// Appends the rows of steps that run once for each node.
void Messages::hoist(const MessagePrograms& programs, const BySide<int64_t>& num_nodes,
                     MessageInputs& in) const {
  for (const MessageSide side : {kSources, kDestinations}) {
    if (!programs.at_nodes[side]) continue;
    std::vector<FloatMatrix> made;
    for (const bool narrow : programs.hoisted[side])
      made.push_back(FloatMatrix::make(num_nodes[side], narrow ? heads : width));
    programs.at_nodes[side]->run(EachNode(num_nodes[side], side == kSources).edges, in, heads, made);
    in.rows[side].insert(in.rows[side].end(), made.begin(), made.end());
  }
}

void Messages::forward(const Map& map, MessageInputs in, const FloatMatrix& out, Sent& sent,
                       bool trains) const {
  const MessagePrograms& programs = *sent.programs;
  const MessageEdges edges = edges_of(arguments_of(map), false);
  hoist(programs, {map.num_src, map.num_dst}, in);
  const auto keep = [&](bool narrow) {
    sent.kept.push_back(FloatMatrix::make(map.num_dst, narrow ? heads : width));
  };
  if (programs.softmax) {
    for (int i = 0; i < 2; ++i) keep(programs.softmax->is_narrow(0));
    programs.softmax->run(edges, in, heads, sent.kept);
    in.rows[kDestinations].resize(kMaxPlace);
    for (const FloatMatrix& one : sent.kept) in.rows[kDestinations].push_back(one);
  }
  if (trains && programs.slopes) {
    for (size_t i = 1; i < programs.slopes->places().size(); ++i) keep(false);
    std::vector<FloatMatrix> to{out};
    to.insert(to.end(), sent.kept.begin(), sent.kept.end());
    programs.slopes->run(edges, in, heads, to);
  } else {
    if (trains && num_extrema() > 0) sent.count = FloatMatrix::make(map.num_dst, width * num_extrema());
    std::vector<FloatMatrix> sums;
    for (size_t i = 0; i < kinds_.size(); ++i)
      sums.push_back(several_ ? FloatMatrix::make(map.num_dst, width) : out);
    programs.forward->run(edges, in, heads, sums, false, {}, sent.counts());
    if (sent.count.data != nullptr && shares_zeros_) count_zeros(map, sums, sent);
    if (several_) sent.kept = std::move(sums);
  }
  if (is_mean_)
    each_number(out, out, [&](float& mean, float sum, int64_t v) {
      mean = sum * (1.0f / static_cast<float>(std::max<int64_t>(map.degree(v), 1)));
    });
  if (!trains && !several_) sent = {};
}

// Counts the zero of a maximum or minimum that is zero among its ties.
void Messages::count_zeros(const Map& map, const std::vector<FloatMatrix>& sums, const Sent& sent) const {
  int32_t* counts = sent.counts();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (!is_extremum(kinds_[i])) continue;
    each_row(map.num_dst, width, [&](int64_t v) {
      if (map.degree(v) == 0) return;
      for (int64_t c = 0; c < width; ++c)
        counts[v * sent.count.width + c] += sums[i].data[v * sums[i].stride + c] == 0;
    });
    counts += width;
  }
}

// The matrices of destinations from which backward has the gradient of each message: for each sum its
// gradient, and behind that of an extremum, the extremum.
std::vector<FloatMatrix> Messages::gradients_of_sums(const Map& map, const Sent& sent, const FloatMatrix& out,
                                                     FloatMatrix grad) const {
  std::vector<FloatMatrix> given, found;
  for (size_t i = 0; i < kinds_.size(); ++i)
    given.push_back(grad.part(static_cast<int64_t>(i) * map.num_dst, map.num_dst));
  grad = {};
  const int32_t* counts = sent.counts();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    FloatMatrix each = given[i];
    const bool is_counted = is_extremum(kinds_[i]);
    const bool changes = is_mean_ || is_counted || kinds_[i] == MessageSum::kSquares;
    if (changes && !several_) each = FloatMatrix::make(map.num_dst, width);  // else of this call alone
    if (is_mean_)
      each_number(each, given[i], [&](float& of_one, float of_mean, int64_t v) {
        of_one = of_mean * (1.0f / static_cast<float>(std::max<int64_t>(map.degree(v), 1)));
      });
    if (kinds_[i] == MessageSum::kSquares)
      each_number(each, given[i], [](float& of_one, float of_sum, int64_t) { of_one = 2 * of_sum; });
    if (is_counted)
      each_row(each.rows, width, [&](int64_t v) {
        for (int64_t c = 0; c < width; ++c) {
          const auto ties = static_cast<float>(std::max(counts[v * sent.count.width + c], 1));
          each.data[v * width + c] = given[i].data[v * given[i].stride + c] / ties;
        }
      });
    found.push_back(each);
    if (!is_counted) continue;
    found.push_back(several_ ? sent.kept[i] : out);
    counts += width;
  }
  return found;
}

void Messages::backward(const Map& map, const SpmmArgs& reversed, const int64_t* places, MessageInputs in,
                        const Sent& sent, const FloatMatrix& out, FloatMatrix grad,
                        const MessageGradients& to) const {
  const MessagePrograms& programs = *sent.programs;
  const BySide<int64_t> num_nodes{map.num_src, map.num_dst};
  BySide<MessageEdges> edges{edges_of(reversed, true), edges_of(arguments_of(map), false)};
  edges[kSources].places = places;
  const BySide<size_t> own{in.rows[kSources].size(), in.rows[kDestinations].size()};
  hoist(programs, num_nodes, in);
  std::vector<FloatMatrix>& destinations = in.rows[kDestinations];
  const std::vector<FloatMatrix> more = gradients_of_sums(map, sent, out, std::move(grad));
  const FloatMatrix& each = more[0];
  destinations.insert(destinations.end(), more.begin(), more.end());
  if (programs.softmax) {
    const FloatMatrix dot = FloatMatrix::make(map.num_dst, sent.kept[0].width);
    sum_products(each, out, dot);
    destinations.resize(kDotPlace);
    for (const FloatMatrix& one : {dot, sent.kept[0], sent.kept[1]}) destinations.push_back(one);
  }
  for (const MessageSide side : {kSources, kDestinations}) {
    std::vector<FloatMatrix> gets = to.rows[side], inner;
    for (const bool narrow : programs.hoisted[side])
      inner.push_back(FloatMatrix::zeros(num_nodes[side], narrow ? heads : width));
    gets.insert(gets.end(), inner.begin(), inner.end());
    if (side == kDestinations && programs.slopes)
      for (size_t i = 1; i < programs.slopes->places().size(); ++i) {
        const FloatMatrix &slope = sent.kept[i - 1], &target = gets.at(programs.slopes->places()[i]);
        if (target.data == nullptr) continue;
        each_row(each.rows, width, [&](int64_t v) {
          for (int64_t c = 0; c < width; ++c)
            target.data[v * width + c] += each.data[v * each.stride + c] * slope.data[v * width + c];
        });
      }
    const auto run = [&](const MessageProgram& program, const MessageEdges& over, const MessageInputs& read) {
      std::vector<FloatMatrix> targets;
      for (const int place : program.places()) targets.push_back(gets.at(place));
      program.run(over, read, heads, targets, true, to.parameters);
    };
    if (programs.back[side]) run(*programs.back[side], edges[side], in);
    if (programs.back_at_nodes[side]) {
      MessageInputs read = in;
      read.rows[side].resize(own[side]);
      read.rows[side].insert(read.rows[side].end(), inner.begin(), inner.end());
      run(*programs.back_at_nodes[side], EachNode(num_nodes[side], side == kSources).edges, read);
    }
  }
}

}  // namespace gb
