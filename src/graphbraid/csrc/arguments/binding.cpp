#include "arguments/binding.h"

#include <algorithm>
#include <utility>

#include "arguments/tensors.h"

namespace gb {
namespace {

std::string name_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(type.bits);
  switch (static_cast<Code>(type.code)) {
    case Code::Int:
      return "int" + bits;
    case Code::UInt:
      return "uint" + bits;
    case Code::Float:
      return "float" + bits;
    case Code::Bfloat:
      return "bfloat" + bits;
    case Code::Complex:
      return "complex" + bits;
    case Code::Bool:
      return "bool";
    default:
      return "another dtype of " + bits + " bits";
  }
}

std::string name_of(DType dtype) {
  constexpr const char* kNames[] = {"float32", "float64", "bfloat16", "float16"};
  return kNames[static_cast<int>(dtype)];
}

// "a|b|c" as "a, b or c".
std::string in_words(std::string names) {
  const size_t last = names.rfind('|');
  if (last == std::string::npos) return names;
  names.replace(last, 1, " or ");
  for (size_t at; (at = names.find('|')) != std::string::npos;) names.replace(at, 1, ", ");
  return names;
}

std::string shape_of(int64_t rows, int64_t columns) {
  std::string text = std::to_string(rows);  // GCC 12 warns of its own strings where a literal comes first
  text.insert(0, 1, '(').append(", ").append(std::to_string(columns)).append(1, ')');
  return text;
}

std::string as_text(const nb::object& object) { return nb::str(nb::handle(object)).c_str(); }

// Describes an argument that could not be read as an array.
std::string told(nb::handle given) {
  const std::string type = as_text(given.type().attr("__name__"));
  if (!nb::hasattr(given, "device")) return "got " + type;
  return "got " + type + " on " + as_text(given.attr("device"));
}

[[noreturn]] void refuse_type(const std::string& message) { throw nb::type_error(message.c_str()); }

// ---- Tensors by DLPack's table of C functions ----
//
// Tensor.__dlpack__ is Python, and costs more than a kernel on a small batch. Newer PyTorch has a table of C
// functions. The one that lends memory and sizes makes no Python object.

struct ExchangeTable {  // the first members of DLPackExchangeAPI
  uint32_t major, minor;
  ExchangeTable* older;
  void *allocate, *export_owned;
  int (*import_owned)(void* managed, void** tensor);
  int (*lend)(void* tensor, nb::dlpack::dltensor* out);
};

struct Managed {  // DLManagedTensorVersioned, and what it manages
  uint32_t major = 1, minor = 0;
  void* context = nullptr;
  void (*end)(Managed*) = [](Managed* one) { delete one; };
  uint64_t flags = 0;
  nb::dlpack::dltensor tensor{};
  std::vector<int64_t> extents, strides;
  std::shared_ptr<float> memory;
};

struct TensorClass {
  PyTypeObject *type = nullptr, *parameter = nullptr;
  const ExchangeTable* table = nullptr;

  TensorClass() {
    const nb::object tensor = nb::module_::import_("torch").attr("Tensor");
    type = reinterpret_cast<PyTypeObject*>(tensor.ptr());
    parameter = reinterpret_cast<PyTypeObject*>(nb::module_::import_("torch.nn").attr("Parameter").ptr());
    const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return;  // PyTorch before 2.10
    table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (table->major != 1 || table->lend == nullptr || table->import_owned == nullptr) table = nullptr;
  }
};

const TensorClass& tensor_class() {
  // Guarded by the GIL. The lock of a C++ static could deadlock: its holder may wait for the GIL in an
  // import.
  static const TensorClass* tensors = nullptr;
  if (tensors == nullptr) tensors = new TensorClass();
  return *tensors;
}

// Borrows a plain tensor's memory and sizes, which the tensor still owns. False if it must go the slower way,
// which says what is wrong with it.
bool borrow(nb::handle given, nb::dlpack::dltensor& tensor) {
  const TensorClass& tensors = tensor_class();
  const PyTypeObject* type = Py_TYPE(given.ptr());
  if (tensors.table == nullptr || (type != tensors.type && type != tensors.parameter)) return false;
  if (tensors.table->lend(given.ptr(), &tensor) == 0) return true;
  PyErr_Clear();
  return false;
}

// Keeps an object until the last copy ends, on whatever thread.
std::shared_ptr<void> kept(nb::handle object) {
  return {object.inc_ref().ptr(), [](PyObject* last) {
            if (Py_IsInitialized() == 0) return;  // Python has ended, and with it the object
            const nb::gil_scoped_acquire gil;
            Py_DECREF(last);
          }};
}

// Whether a tensor has sizes alone, as zeros that autograd makes, wrappers, and a storage that was freed.
bool lacks_memory(nb::handle given, const void* data, int64_t element_bytes) {
  // Such a tensor has its offset for an address. Memory lies far above, so that few tensors are asked.
  constexpr uintptr_t kLeastAddress = uintptr_t{1} << 40;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address >= kLeastAddress) return false;
  const nb::object offset = nb::getattr(given, "storage_offset", nb::none());
  return address == (offset.is_none() ? 0 : nb::cast<uintptr_t>(offset()) * element_bytes);
}

template <typename Values>
int64_t rows_of_indptr(const Values& indptr, int64_t num_edges) {
  const std::string name = indptr.name();
  const int64_t num_rows = indptr.length() - 1;
  if (num_rows < 0) refuse(name + " must not be empty");
  const int64_t first = indptr.data()[0], last = indptr.data()[num_rows];
  if (first != 0 || last != num_edges)
    refuse(name + " must run from 0 to " + std::to_string(num_edges) + "; it runs from " +
           std::to_string(first) + " to " + std::to_string(last));
  return num_rows;
}

}  // namespace

bool are_same_memory(nb::handle one, nb::handle other) {
  nb::dlpack::dltensor a, b;
  const auto are_equal = [&](const int64_t* p, const int64_t* q) { return std::equal(p, p + a.ndim, q); };
  return borrow(one, a) && borrow(other, b) && a.data == b.data &&
         a.device.device_type == b.device.device_type && a.dtype == b.dtype && a.ndim == b.ndim &&
         are_equal(a.shape, b.shape) && are_equal(a.strides, b.strides);
}

std::optional<nb::bytes> forms_of(const nb::list& tensors) {
  static PyObject* const learns = PyUnicode_InternFromString("requires_grad");
  std::vector<int64_t> found;
  for (const nb::handle one : tensors) {
    nb::dlpack::dltensor tensor;
    if (!borrow(one, tensor)) return std::nullopt;
    int64_t dense = 1;
    bool is_dense = true;
    for (int d = tensor.ndim - 1; d >= 0; dense *= tensor.shape[d--])
      is_dense = is_dense && (tensor.shape[d] == 1 || tensor.strides[d] == dense);
    const nb::object wants = nb::steal(PyObject_GetAttr(one.ptr(), learns));
    if (!wants.is_valid()) nb::raise_python_error();
    found.insert(found.end(), {tensor.dtype.code, tensor.dtype.bits, tensor.ndim, is_dense || dense == 0,
                               wants.ptr() == Py_True});
    found.insert(found.end(), tensor.shape, tensor.shape + tensor.ndim);
  }
  return nb::bytes(found.data(), found.size() * sizeof(int64_t));
}

nb::object tensor_over(std::shared_ptr<float> memory, const std::vector<int64_t>& sizes) {
  const auto num_dimensions = sizes.size();
  const ExchangeTable* table = tensor_class().table;
  if (table == nullptr) {
    const std::vector<size_t> extents(sizes.begin(), sizes.end());
    auto* kept = new std::shared_ptr<float>(std::move(memory));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
    return nb::cast(nb::ndarray<nb::pytorch, float>(kept->get(), num_dimensions, extents.data(), owner));
  }
  auto* made = new Managed();  // PyTorch ends it
  made->extents = sizes;
  made->strides.resize(num_dimensions);
  int64_t dense = 1;
  for (size_t d = num_dimensions; d-- > 0; dense *= std::max<int64_t>(sizes[d], 1)) made->strides[d] = dense;
  made->tensor.data = memory.get();
  made->tensor.device = {nb::device::cpu::value, 0};
  made->tensor.ndim = static_cast<int32_t>(num_dimensions);
  made->tensor.dtype = nb::dtype<float>();
  made->tensor.shape = made->extents.data();
  made->tensor.strides = made->strides.data();
  made->memory = std::move(memory);
  void* tensor = nullptr;
  if (table->import_owned(made, &tensor) != 0) nb::raise_python_error();
  return nb::steal(static_cast<PyObject*>(tensor));
}

void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// ---- One array ----

void AnyArray::take(const char* name, const ArrayKind& kind) {
  name_ = name;
  read(kind);
  auto* end = extents_.begin() + std::min(num_dimensions_, kMostDimensions);
  const bool is_empty = std::find(extents_.begin(), end, 0) != end;
  if (!is_empty && lacks_memory(given_, data_, element_bytes()))
    refuse_type(std::string(name) + " must be an array in the memory of the CPU; " + told(given_) +
                " without memory");
  need_dtype(kind);
  if (num_dimensions_ != kind.num_dimensions)
    refuse(std::string(name) + " must be " + std::to_string(kind.num_dimensions) + "-dimensional; got " +
           std::to_string(num_dimensions_) + " dimensions");
  need_layout(kind);
}

void AnyArray::read(const ArrayKind& kind) {
  nb::dlpack::dltensor tensor;
  if (borrow(given_, tensor) && tensor.device.device_type == nb::device::cpu::value) {
    describe(tensor);
    owner_ = kept(given_);
    return;
  }
  const std::string name = name_;
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> array;
  if (kind.is_written && nb::try_cast(given_, writable, false))
    array = nb::ndarray<nb::ro>(writable);
  else if (!nb::try_cast(given_, array, false))
    refuse_type(name + " must be an array in the memory of the CPU; " + told(given_));
  else if (kind.is_written)
    refuse(name + " must be writable; it is read-only");
  if (array.device_type() != nb::device::cpu::value)
    refuse_type(name + " must be on the CPU; " + told(given_));
  tensor = {};
  tensor.data = const_cast<void*>(array.data());
  tensor.ndim = static_cast<int32_t>(array.ndim());
  tensor.dtype = array.dtype();
  tensor.shape = const_cast<int64_t*>(array.shape_ptr());
  tensor.strides = const_cast<int64_t*>(array.stride_ptr());
  describe(tensor);
  using Kept = std::pair<nb::ndarray<nb::ro>, std::shared_ptr<void>>;
  owner_ = std::make_shared<Kept>(std::move(array), kept(given_));
}

bool AnyArray::is_in_place() const {
  nb::dlpack::dltensor now;
  if (borrow(given_, now)) return static_cast<char*>(now.data) + now.byte_offset == data_;
  const nb::object address = nb::getattr(given_, "data_ptr", nb::none());
  return address.is_none() || nb::cast<uintptr_t>(address()) == reinterpret_cast<uintptr_t>(data_);
}

void AnyArray::describe(const nb::dlpack::dltensor& tensor) {
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
  element_ = tensor.dtype;
  num_dimensions_ = tensor.ndim;
  int64_t dense = 1;
  for (int d = std::min(num_dimensions_, kMostDimensions) - 1; d >= 0; --d) {
    extents_[d] = tensor.shape[d];
    strides_[d] = tensor.strides != nullptr ? tensor.strides[d] : dense;
    dense *= extents_[d];
  }
}

void AnyArray::need_dtype(const ArrayKind& kind) const {
  const auto* end = kind.accepted + kind.num_accepted;
  const bool is_right = std::any_of(kind.accepted, end, [this](const nb::dlpack::dtype& accepted) {
    return accepted.bits == 0 || accepted == element_;
  });
  if (!is_right)
    refuse_type(std::string(name_) + " must be " + in_words(kind.dtypes) + "; got " + name_of(element_));
}

void AnyArray::need_layout(const ArrayKind& kind) const {
  if (kind.layout == Layout::kAny) return;
  int64_t dense = 1;
  bool is_laid_out = true;
  for (int d = kind.num_dimensions - 1; d >= 0; dense *= extent(d--)) {
    const bool is_free = kind.layout == Layout::kRows && d == 0;
    is_laid_out = is_laid_out && (extent(d) == 1 || is_free || stride(d) == dense);
  }
  if (dense == 0) return;  // no elements: any strides will do
  if (!is_laid_out)
    refuse(kind.layout == Layout::kRows ? "each row of " + std::string(name_) + " must be contiguous"
                                        : std::string(name_) + " must be contiguous");
  if (kind.is_written && kind.layout == Layout::kRows && num_rows() > 1 && stride(0) < num_columns())
    refuse(std::string(name_) + " must have rows that do not overlap, since they are written");
}

DType dtype_of(const AnyArray& array) {
  const nb::dlpack::dtype type = array.element();
  if (type.bits == 32) return DType::kFloat32;
  if (type.bits == 64) return DType::kFloat64;
  return type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) ? DType::kBfloat16
                                                                           : DType::kFloat16;
}

// ---- Arrays and numbers to each other ----

void need_dtype(const AnyArray& array, DType dtype, const char* what) {
  if (dtype_of(array) != dtype)
    refuse(std::string(array.name()) + " must have the dtype of " + what + ", " + name_of(dtype) + "; got " +
           name_of(dtype_of(array)));
}

void need_dtype_of(const AnyArray& array, const AnyArray& other) {
  if (array.element() != other.element())
    refuse(std::string(array.name()) + " must have the dtype of " + other.name() + ", " +
           name_of(other.element()) + "; got " + name_of(array.element()));
}

void need_length(const AnyArray& array, int64_t length) {
  if (array.length() != length)
    refuse(std::string(array.name()) + " must have length " + std::to_string(length) + "; got " +
           std::to_string(array.length()));
}

void need_columns(const AnyArray& array, int64_t columns) {
  if (array.num_columns() != columns)
    refuse(std::string(array.name()) + " must have " + std::to_string(columns) + " columns; got " +
           std::to_string(array.num_columns()));
}

void need_shape(const AnyArray& array, int64_t rows, int64_t columns) {
  if (array.num_rows() != rows || array.num_columns() != columns)
    refuse(std::string(array.name()) + " must have shape " + shape_of(rows, columns) + "; got " +
           shape_of(array.num_rows(), array.num_columns()));
}

void need_count(int64_t count, int64_t least, int64_t most, const char* name) {
  if (count < least || count > most)
    refuse(std::string(name) + " must lie in [" + std::to_string(least) + ", " + std::to_string(most) +
           "]; got " + std::to_string(count));
}

int64_t rows_between(const Indptr& indptr, int64_t num_edges) { return rows_of_indptr(indptr, num_edges); }
int64_t rows_between(const Array1<int64_t>& indptr, int64_t num_edges) {
  return rows_of_indptr(indptr, num_edges);
}

}  // namespace gb
