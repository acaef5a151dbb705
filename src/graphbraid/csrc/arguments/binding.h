// Arguments as they cross from Python. A native function takes its arrays as
//
//   Array<element, dimensions, layout>
//
// and its arguments get their names once, where def_native defines it. It is called with arrays that have
// been looked at, in constant time: they stand in the caller's own memory on the CPU, have that dtype and
// layout, and may be written where the element is not const. Nothing is ever converted: a copy of an output
// would be lost, and ids of another type would be cut off. What depends on other arguments, such as lengths,
// the function asks for with need_*. Every message names the argument, what it must be and what came.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtypes.h"

namespace gb {

namespace nb = nanobind;

// Elements that stand for several dtypes; any other element is the dtype of that C++ type.
struct Floating {};  // what feature rows are stored in; dtype_of says which
struct Id {};        // int32 or int64; with_ids says which
struct Anything {};  // bytes that are only moved

enum class Layout {
  kDense,  // row-major, without gaps
  kRows,   // each row without gaps; rows may stand apart
  kAny,
};

template <typename Element>
struct DTypesOf {
  static constexpr auto kNames = nb::detail::dtype_traits<Element>::name;
  static constexpr nb::dlpack::dtype kAll[] = {nb::dtype<Element>()};
};
template <>
struct DTypesOf<Floating> {
  static constexpr auto kNames = nb::detail::const_name("float32|float64|bfloat16|float16");
  static constexpr nb::dlpack::dtype kAll[] = {
      nb::dtype<float>(),
      nb::dtype<double>(),
      {static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1},
      {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1},
  };
};
template <>
struct DTypesOf<Id> {
  static constexpr auto kNames = nb::detail::const_name("int32|int64");
  static constexpr nb::dlpack::dtype kAll[] = {nb::dtype<int32_t>(), nb::dtype<int64_t>()};
};
template <>
struct DTypesOf<Anything> {
  static constexpr auto kNames = nb::detail::const_name("any");
  static constexpr nb::dlpack::dtype kAll[] = {{}};  // zero bits: need_dtype accepts every dtype
};

// The conditions that an array must meet, whatever the other arguments are.
struct ArrayKind {
  const char* dtypes;  // their names, with | between them
  const nb::dlpack::dtype* accepted;
  int num_accepted;
  int num_dimensions;
  Layout layout;
  bool is_written;
};

// The base of all Arrays, so that checks are compiled once.
class AnyArray {
 public:
  AnyArray() = default;
  explicit AnyArray(nb::handle given) : given_(given) {}

  const char* name() const { return name_; }
  int64_t extent(int dimension) const { return extents_[dimension]; }
  int64_t length() const { return extent(0); }
  int64_t num_rows() const { return extent(0); }
  int64_t num_columns() const { return extent(1); }
  // Elements from one index to the next.
  int64_t stride(int dimension) const { return strides_[dimension]; }
  nb::dlpack::dtype element() const { return element_; }
  int64_t element_bytes() const { return element_.bits * element_.lanes / 8; }
  // Whether the memory is still where it was taken: Tensor.share_memory_ moves it, and so does a storage that
  // gets another size. With the GIL.
  bool is_in_place() const;

 protected:
  // Reads the given object, or refuses it.
  void take(const char* name, const ArrayKind& kind);
  void* address() const { return data_; }

 private:
  void read(const ArrayKind& kind);
  void describe(const nb::dlpack::dltensor& tensor);
  void need_dtype(const ArrayKind& kind) const;
  void need_layout(const ArrayKind& kind) const;

  static constexpr int kMostDimensions = 3;

  nb::handle given_;  // the caller's reference; once the array is taken, the owner's
  const char* name_ = "";
  void* data_ = nullptr;
  std::shared_ptr<void> owner_;  // of the memory; freed by any thread
  nb::dlpack::dtype element_{};
  int num_dimensions_ = 0;
  std::array<int64_t, kMostDimensions> extents_{}, strides_{};
};

template <typename Element, int kDimensions, Layout kLayout = Layout::kDense>
class Array : public AnyArray {
  using Plain = std::remove_const_t<Element>;
  static constexpr bool kIsWritten = !std::is_const_v<Element>;

 public:
  // An element that stands for several has no pointer of its own.
  using Pointed =
      std::conditional_t<std::is_empty_v<Plain>, std::conditional_t<kIsWritten, void, const void>, Element>;

  using AnyArray::AnyArray;
  void take(const char* name) { AnyArray::take(name, kKind); }
  Pointed* data() const { return static_cast<Pointed*>(address()); }

 private:
  static constexpr ArrayKind kKind{DTypesOf<Plain>::kNames.text,
                                   DTypesOf<Plain>::kAll,
                                   static_cast<int>(std::size(DTypesOf<Plain>::kAll)),
                                   kDimensions,
                                   kLayout,
                                   kIsWritten};
};

template <typename T>
using Array1 = Array<T, 1>;
template <typename T>
using Array2 = Array<T, 2>;
using Indptr = Array<const int64_t, 1>;
using Ids = Array<const Id, 1>;
// Feature rows, which may be a part of wider ones.
using RowArray = Array<const Floating, 2, Layout::kRows>;
using WrittenRows = Array<Floating, 2, Layout::kRows>;
using FloatRows = Array<const float, 2, Layout::kRows>;
using WrittenFloatRows = Array<float, 2, Layout::kRows>;
using StridedFloats = Array<const float, 2, Layout::kAny>;
using Vector = Array<const Floating, 1>;
using WrittenVector = Array<Floating, 1>;
using Matrix = Array<const Floating, 2>;
using WrittenMatrix = Array<Floating, 2>;
using OptionalVector = std::optional<Vector>;
using OptionalIds = std::optional<Indptr>;

// Whether two plain tensors have the same memory, sizes, strides and dtype.
bool are_same_memory(nb::handle one, nb::handle other);

// ---- What arguments must be to each other ----

[[noreturn]] void refuse(const std::string& message);  // a ValueError

inline void need(bool condition, const char* message) {
  if (!condition) refuse(message);
}

// The dtype of an array of Floating.
DType dtype_of(const AnyArray& array);
// The dtype in which rows of a dtype are summed.
inline DType sum_dtype(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// Refuses an array of Floating whose dtype is another than that of `what`, in the words of a message.
void need_dtype(const AnyArray& array, DType dtype, const char* what);
void need_dtype_of(const AnyArray& array, const AnyArray& other);
void need_length(const AnyArray& array, int64_t length);
void need_columns(const AnyArray& array, int64_t columns);
void need_shape(const AnyArray& array, int64_t rows, int64_t columns);
template <typename Given>
void need_length(const std::optional<Given>& array, int64_t length) {
  if (array) need_length(*array, length);
}

// A number of things, in [least, most].
void need_count(int64_t count, int64_t least, int64_t most, const char* name);

// More of anything than memory has bytes for; its products with a size of a few bytes stay below 2^63.
inline constexpr int64_t kMostItems = int64_t{1} << 56;

// The number of rows of an indptr, which must run from 0 to num_edges. That it never falls was checked when
// the graph was made.
int64_t rows_between(const Indptr& indptr, int64_t num_edges);
int64_t rows_between(const Array1<int64_t>& indptr, int64_t num_edges);

// The data of an optional array, or null.
template <typename Given>
auto data_or_null(const std::optional<Given>& array) {
  return array ? array->data() : nullptr;
}

inline bool is_wide(const AnyArray& ids) { return ids.element().bits == 64; }

// Ids of either width, by a branch that always goes the same way: there is no code for each width.
struct AnyIds {
  const void* data;
  bool wide;
  explicit operator bool() const { return data != nullptr; }
  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};
inline AnyIds any_ids(const Array<const Id, 1>& ids) { return {ids.data(), is_wide(ids)}; }

// Calls f(pointer to the ids), with the ids in their own type.
template <typename Element, typename F>
auto with_ids(const Array<Element, 1>& ids, const F& f) {
  static_assert(std::is_same_v<std::remove_const_t<Element>, Id>);
  using Narrow = std::conditional_t<std::is_const_v<Element>, const int32_t, int32_t>;
  using Wide = std::conditional_t<std::is_const_v<Element>, const int64_t, int64_t>;
  return is_wide(ids) ? f(static_cast<Wide*>(ids.data())) : f(static_cast<Narrow*>(ids.data()));
}

// ---- Definitions ----

// Checks an argument, now that its name is known. Numbers need no check here.
template <typename Argument>
void take(Argument&, const char*) {}
template <typename Element, int kDimensions, Layout kLayout>
void take(Array<Element, kDimensions, kLayout>& array, const char* name) {
  array.take(name);
}
template <typename Argument>
void take(std::optional<Argument>& argument, const char* name) {
  if (argument) take(*argument, name);
}

// What a native function is given before arrays are taken: they by value, all else as it says.
template <typename Argument>
using Given = std::conditional_t<std::is_lvalue_reference_v<Argument> &&
                                     !std::is_const_v<std::remove_reference_t<Argument>>,
                                 Argument, std::decay_t<Argument>>;

// Whether this is an nb::arg, with or without a default.
template <typename Extra>
concept Names = requires(const Extra& extra) { extra.name_; };

// `native` behind a function that takes its arrays by the names that the nb::args among `extra` give; `self`
// has none.
template <typename Result, typename... Arguments, typename... Extra>
auto with_names(Result (*native)(Arguments...), const Extra&... extra) {
  constexpr size_t num_named = (size_t{Names<Extra>} + ... + 0);
  static_assert(num_named + 1 >= sizeof...(Arguments), "every argument has a name");
  std::array<const char*, sizeof...(Arguments)> names{};
  size_t place = sizeof...(Arguments) - num_named;
  const auto keep = [&](const auto& one) {
    if constexpr (Names<decltype(one)>) names[place++] = one.name_;
  };
  (keep(extra), ...);
  return [native, names](Given<Arguments>... arguments) -> Result {
    size_t i = 0;
    (take(arguments, names[i++]), ...);
    return native(arguments...);
  };
}

// Defines a function in `m`; extra: an nb::arg for each argument, and what else nanobind takes.
template <typename Native, typename... Extra>
void def_native(nb::module_& m, const char* name, Native* native, const Extra&... extra) {
  m.def(name, with_names(native, extra...), extra...);
}

// Defines how an object is made; init's first argument is the memory for it.
template <typename Class, typename Init, typename... Extra>
void def_init(Class& of, Init* init, const Extra&... extra) {
  of.def("__init__", with_names(init, extra...), extra...);
}

// ---- The way back ----

// Hands a vector to Python as a tensor without copying it.
template <typename T>
nb::ndarray<nb::pytorch, T, nb::ndim<1>> as_tensor(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::pytorch, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

}  // namespace gb

// An array in a signature reads as nanobind's own: what it accepts, and whether it writes.
template <typename Element, int kDimensions, gb::Layout kLayout>
struct nanobind::detail::type_caster<gb::Array<Element, kDimensions, kLayout>> {
  using Given = gb::Array<Element, kDimensions, kLayout>;
  static constexpr auto kOrder = const_name<kLayout == gb::Layout::kDense>(
      const_name(", order='C'"),
      const_name<kLayout == gb::Layout::kRows>(const_name(", order='rows'"), const_name("")));
  NB_TYPE_CASTER(Given, const_name("ndarray[dtype=") + gb::DTypesOf<std::remove_const_t<Element>>::kNames +
                            const_name(", ") + ndim<kDimensions>::name + kOrder +
                            const_name(", device='cpu'") +
                            const_name<std::is_const_v<Element>>(", writable=False", "") + const_name("]"))

  // Takes anything: what is wrong with it is said once its name is known.
  bool from_python(handle given, uint32_t, cleanup_list*) noexcept {
    value = Given(given);
    return true;
  }
};
