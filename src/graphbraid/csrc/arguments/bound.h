// Bound calls: a kernel's arguments cross from Python once, and the call is run any number of times.
//
// An array takes a fraction of a microsecond to cross (microseconds before PyTorch 2.10), which small graphs
// feel in every step. A full-graph step's arrays stay where they are; what changes from step to step is the
// seed of a dropout mask.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

#include "arguments/epilogue_arguments.h"

namespace gb {

// Keeps the arguments, and with them the arrays' memory.
class BoundCall {
 public:
  virtual ~BoundCall() = default;
  // All that a call from Python does once its arguments are there: the kernel's checks too.
  virtual void run() const = 0;
  virtual void set_seed(uint64_t seed) = 0;
};

inline void take_seed(uint64_t& argument, uint64_t seed) { argument = seed; }
inline void take_seed(OptionalEpilogue& after, uint64_t seed) {
  if (after) std::get<4>(*after) = seed;
}
template <typename Other>
void take_seed(Other&, uint64_t) {}

template <auto kKernel>
class Bound;

template <typename... Arguments, void (*kKernel)(Arguments...)>
class Bound<kKernel> final : public BoundCall {
 public:
  static BoundCall* make(const std::decay_t<Arguments>&... arguments) { return new Bound(arguments...); }

  void run() const override { std::apply(kKernel, arguments_); }

  void set_seed(uint64_t seed) override {
    std::apply([&](auto&... argument) { (take_seed(argument, seed), ...); }, arguments_);
  }

 private:
  explicit Bound(const std::decay_t<Arguments>&... arguments) : arguments_(arguments...) {}

  std::tuple<std::decay_t<Arguments>...> arguments_;
};

// Defines a kernel in `m`, and under the same name in its submodule `bound` what binds it to arguments.
template <auto kKernel, typename... Named>
void def_kernel(nb::module_& m, const char* name, const Named&... named) {
  def_native(m, name, kKernel, named...);
  nb::module_ bound = nb::borrow<nb::module_>(m.attr("bound"));
  bound.def(name, with_names(&Bound<kKernel>::make, named...), nb::rv_policy::take_ownership, named...);
}

// The submodule and its class; before any kernel.
inline void bind_bound_calls(nb::module_& m) {
  nb::module_ bound = m.def_submodule("bound", "Binds kernels to arguments that stay");
  nb::class_<BoundCall>(bound, "BoundCall")
      .def("run", &BoundCall::run)
      .def("set_seed", &BoundCall::set_seed, nb::arg("seed"));
}

}  // namespace gb
