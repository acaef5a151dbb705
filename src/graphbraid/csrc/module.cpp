// The extension module: variant selection here, one bind_* function per kernel file.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>

#include "arguments/bound.h"
#include "arguments/tensors.h"
#include "disk/bus_error.h"
#include "threads/awake.h"
#include "threads/idle_threads.h"
#include "threads/parallel.h"
#include "threads/threads.h"
#include "variants/variants.h"

namespace nb = nanobind;

namespace gb {
void bind_attention(nb::module_& m);
void bind_bit_product(nb::module_& m);
void bind_blockmodel(nb::module_& m);
void bind_cross_entropy(nb::module_& m);
void bind_dense(nb::module_& m);
void bind_distances(nb::module_& m);
void bind_dot_attention(nb::module_& m);
void bind_epilogue(nb::module_& m);
void bind_edge_softmax(nb::module_& m);
void bind_edges(nb::module_& m);
void bind_features(nb::module_& m);
void bind_gat_backward(nb::module_& m);
void bind_gatv2_backward(nb::module_& m);
void bind_gine(nb::module_& m);
void bind_induced(nb::module_& m);
void bind_relabel(nb::module_& m);
void bind_locality(nb::module_& m);
void bind_messages(nb::module_& m);
void bind_norm(nb::module_& m);
void bind_partition(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_reorder(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_scores(nb::module_& m);
void bind_sddmm(nb::module_& m);
void bind_segments(nb::module_& m);
void bind_spmm(nb::module_& m);
void bind_spmm_max(nb::module_& m);
void bind_spread(nb::module_& m);
void bind_topology(nb::module_& m);
void bind_types(nb::module_& m);
}  // namespace gb

namespace {

gb::Variant by_name(const std::string& name) {
  if (name == "portable") return gb::Variant::kPortable;
  if (name == "avx2") return gb::Variant::kAvx2;
  if (name == "avx512") return gb::Variant::kAvx512;
  throw nb::value_error(("no kernel variant is called " + name).c_str());
}

// The size of each dict and the addresses of its keys and values, for comparisons. No code of Python runs.
nb::bytes items_of(const nb::list& dicts) {
  std::vector<uintptr_t> found;
  for (const nb::handle dict : dicts) {
    if (PyDict_Check(dict.ptr()) == 0) throw nb::type_error("dicts must be dicts");
    found.push_back(static_cast<uintptr_t>(PyDict_Size(dict.ptr())));
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t place = 0; PyDict_Next(dict.ptr(), &place, &key, &value) != 0;) {
      found.push_back(reinterpret_cast<uintptr_t>(key));
      found.push_back(reinterpret_cast<uintptr_t>(value));
    }
  }
  return nb::bytes(found.data(), found.size() * sizeof(uintptr_t));
}

// The class that ThreadsRefused becomes in Python; a RuntimeError until raise_resource_errors_as names one.
PyObject* resource_error = nullptr;

void tell_refused_threads(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const gb::ThreadsRefused& error) {
    PyErr_SetString(resource_error != nullptr ? resource_error : PyExc_RuntimeError, error.what());
  }
}

}  // namespace

NB_MODULE(_native, m) {
  // PyTorch never releases what a graph of autograd holds if that outlives the interpreter, as that of a
  // script's last loss does. Nanobind would report these objects as leaks of ours: it does so only when
  // asked.
  nb::set_leak_warnings(std::getenv("GRAPHBRAID_LEAKS") != nullptr);
  gb::in_forked_child();  // from now on forks are seen
  nb::register_exception_translator(tell_refused_threads);
  m.def("raise_resource_errors_as", [](nb::type_object type) {
    PyObject* before = resource_error;
    resource_error = type.release().ptr();
    Py_XDECREF(before);
  });
  m.doc() = "graphbraid's compiled kernels; graphbraid.native loads them and chooses the variant";
  m.def("is_supported", [](const std::string& name) { return gb::is_supported(by_name(name)); });
  m.def("is_compiled", [](const std::string& name) { return gb::is_compiled(by_name(name)); });
  m.def("explain_bus_errors", gb::explain_bus_errors);
  m.def("let_idle_threads_sleep", [] {
    nb::gil_scoped_release release;
    return gb::let_idle_threads_sleep();
  });
  m.def("items_of", &items_of, nb::arg("dicts"));
  m.def("forms_of", &gb::forms_of, nb::arg("tensors"));
  m.def("begin_pass", &gb::begin_pass, nb::arg("look_microseconds"));
  m.def("end_pass", &gb::end_pass);
  m.def("select", [](const std::string& name) { gb::set_active_variant(by_name(name)); });
  gb::bind_bound_calls(m);
  gb::bind_attention(m);
  gb::bind_bit_product(m);
  gb::bind_blockmodel(m);
  gb::bind_cross_entropy(m);
  gb::bind_dense(m);
  gb::bind_distances(m);
  gb::bind_dot_attention(m);
  gb::bind_epilogue(m);
  gb::bind_edge_softmax(m);
  gb::bind_edges(m);
  gb::bind_features(m);
  gb::bind_gat_backward(m);
  gb::bind_gatv2_backward(m);
  gb::bind_gine(m);
  gb::bind_induced(m);
  gb::bind_relabel(m);
  gb::bind_locality(m);
  gb::bind_messages(m);
  gb::bind_norm(m);
  gb::bind_partition(m);
  gb::bind_pool(m);
  gb::bind_reorder(m);
  gb::bind_types(m);  // before what takes them
  gb::bind_sampling(m);
  gb::bind_scores(m);
  gb::bind_sddmm(m);
  gb::bind_segments(m);
  gb::bind_spmm(m);
  gb::bind_spmm_max(m);
  gb::bind_spread(m);
  gb::bind_topology(m);
}
