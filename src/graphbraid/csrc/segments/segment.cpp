// Segments of a program on mini-batches, as Python has them: each pass is one call.
//
// fullgraph/batches/segments.py describes segments.

#include <algorithm>
#include <exception>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "segments/pass.h"

namespace gb {
namespace {

using OperationFields =
    std::tuple<int, int, int, int, int, int, int, int, int, int, double, double, int, bool, bool>;

class Segment {
 public:
  // operations: of dot products, has_loops says that their map of features of edges has a bias.
  // messages: the further fields of those operations that are messages or dot products. views: of each
  // operand; without any, each is a tensor of its own.
  Segment(const std::vector<OperationFields>& operations, size_t num_reads, size_t num_operands,
          std::vector<int> writes, std::tuple<double, double, double> rates, double leaky_slope,
          int look_microseconds, std::vector<Messages::Fields> messages,
          const std::vector<std::tuple<int, int64_t, bool>>& views) {
    const auto& [row_bytes, stream_bytes, multiply_flops] = rates;
    auto next = static_cast<int64_t>(num_reads);
    const auto last_operand = static_cast<int64_t>(num_operands) - 1;
    plan_ = std::make_shared<Plan>(Plan{{},
                                        num_reads,
                                        {},
                                        num_operands,
                                        std::move(writes),
                                        std::vector<int>(num_reads + operations.size(), -1),
                                        std::vector<int>(num_reads + operations.size(), -1),
                                        {},
                                        {row_bytes, stream_bytes, multiply_flops},
                                        leaky_slope,
                                        look_microseconds});
    for (size_t i = 0; i < (views.empty() ? num_operands : 0); ++i)
      plan_->views.push_back({static_cast<int>(i)});
    plan_->num_tensors = plan_->views.size();
    for (const auto& [tensor, at, turned] : views) {
      need_count(tensor, 0, last_operand, "tensors");
      plan_->views.push_back({tensor, at, turned});
      plan_->num_tensors = std::max(plan_->num_tensors, static_cast<size_t>(tensor) + 1);
    }
    need(plan_->views.size() == num_operands, "there is a view for each operand");
    size_t next_messages = 0;
    for (const auto& [number, x, other, key, out, weight, other_weight, bias, edges, act, p, factor, heads,
                      has_loops, averages] : operations) {
      need_count(number, 0, static_cast<int>(Kind::kGine), "kind");
      const auto kind = static_cast<Kind>(number);
      const bool reads_two = kind == Kind::kRowSum || kind == Kind::kSideBySide || kind == Kind::kGatv2 ||
                             kind == Kind::kDot || kind == Kind::kGine;
      need_count(x, 0, next - 1, "x");
      need_count(other, reads_two ? 0 : -1, next - 1, "other");
      need_count(key, kind == Kind::kDot ? 0 : -1, next - 1, "key");
      need_count(out, next, next, "out");
      const int last = kind == Kind::kGat && bias >= 0 ? bias + 1 : bias;  // see Operation
      for (const int operand : {weight, other_weight, last})
        need_count(operand, -1, last_operand, "operands");
      need_count(act, 0, static_cast<int>(Act::kElu), "act");
      need(p >= 0 && p < 1, "p must lie in [0, 1)");
      need_count(heads, 1, kMostItems, "heads");
      const bool moves = kind <= Kind::kAggregate || kind >= Kind::kGat;
      need(edges >= 0 || !moves, "sums over edges have edges");
      std::shared_ptr<const Messages> sent;
      if (kind == Kind::kMessages || kind == Kind::kDot) {
        sent = std::make_shared<const Messages>(std::move(messages.at(next_messages++)));
        for (const auto& one : sent->parameters) need_count(one.first, 0, last_operand, "operands");
      }
      const auto of = kind == Kind::kDot     ? AttentionKind::kDot
                      : kind == Kind::kGatv2 ? AttentionKind::kGatv2
                                             : AttentionKind::kGat;
      const bool is_dot = kind == Kind::kDot;
      const Attention attention{of, heads, factor, has_loops && !is_dot, averages, has_loops && is_dot};
      plan_->operations.push_back({kind, x, other, key, out, weight, other_weight, bias, edges, act, p,
                                   factor, attention, std::move(sent), static_cast<int>(next_messages) - 1});
      for (const int value : plan_->operations.back().reads()) {
        need_count(value, 0, next - 1, "values");
        plan_->last_read[value] = static_cast<int>(plan_->operations.size()) - 1;
        if (plan_->first_read[value] < 0) plan_->first_read[value] = plan_->last_read[value];
      }
      ++next;
    }
    for (const int value : plan_->writes)
      need_count(value, static_cast<int64_t>(num_reads), next - 1, "writes");
    plan_->find_by_rows();
  }

  // None where the segment cannot run on what is given; see Pass.
  Pass* begin(const std::vector<nb::object>& values, const std::vector<nb::object>& tensors,
              const std::vector<SizedMap>& maps, const std::vector<int64_t>& counts,
              std::vector<OfEdges> of_edges) {
    try {
      need(tensors.size() == plan_->num_tensors, "there is the tensor of each operand, or None");
      const std::vector<View>& views = plan_->views;
      std::vector<std::shared_ptr<const Operand>> read(views.size());
      operands_.resize(views.size());
      for (size_t i = 0; i < views.size(); ++i) {
        const nb::object& given = tensors[views[i].tensor];
        if (given.is_none()) continue;
        const std::shared_ptr<const Operand> last = operands_[i];  // another thread may replace it
        const bool is_known = last != nullptr && are_same_memory(given, last->tensor) && last->is_in_place();
        read[i] = is_known ? last : std::make_shared<const Operand>(given, views[i]);
      }
      operands_ = read;
      return new Pass(plan_, values, std::move(read), maps, counts, std::move(of_edges));
    } catch (const std::exception&) {
      return nullptr;
    }
  }

 private:
  std::shared_ptr<Plan> plan_;
  std::vector<std::shared_ptr<const Operand>> operands_;  // of the last call, and mostly of the next one
};

}  // namespace

void bind_segments(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Pass>(m, "SegmentPass")
      .def("forward", &Pass::forward, "draws"_a, "wanted"_a)
      .def("transposed_maps", &Pass::transposed_maps)
      .def("backward", &Pass::backward, "grads"_a.none(), "reversed"_a, "gives_up"_a);
  nb::class_<Segment>(m, "Segment")
      .def(nb::init<const std::vector<OperationFields>&, size_t, size_t, std::vector<int>,
                    std::tuple<double, double, double>, double, int, std::vector<Messages::Fields>,
                    const std::vector<std::tuple<int, int64_t, bool>>&>(),
           "operations"_a, "num_reads"_a, "num_operands"_a, "writes"_a, "rates"_a, "leaky_slope"_a,
           "look_microseconds"_a, "messages"_a = nb::make_tuple(), "views"_a = nb::make_tuple())
      .def("begin", &Segment::begin, nb::rv_policy::take_ownership, "values"_a, "operands"_a, "maps"_a,
           "counts"_a, "of_edges"_a = nb::make_tuple());
}

}  // namespace gb
