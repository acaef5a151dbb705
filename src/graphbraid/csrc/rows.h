// Checks and views for kernels over feature rows: dtypes by code, strided rows, optional coefficients.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "arrays.h"
#include "spmm.h"

namespace gb {

// Any dtype; rows may stand apart (stride(0) >= width) but each row is contiguous.
using RowArray = nb::ndarray<nb::ndim<2>, nb::device::cpu>;
using VectorArray = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OptionalVector = std::optional<VectorArray>;

template <typename Array>
DType dtype_of(const Array& array, const char* name) {
  const nb::dlpack::dtype type = array.dtype();
  if (type.lanes == 1) {
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) {
      if (type.bits == 32) return DType::kFloat32;
      if (type.bits == 64) return DType::kFloat64;
      if (type.bits == 16) return DType::kFloat16;
    }
    if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.bits == 16)
      return DType::kBfloat16;
  }
  throw nb::type_error((std::string(name) + " must be float32, float64, float16 or bfloat16").c_str());
}

inline DType sum_dtype(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// The data of an optional vector of the sums' dtype and the given length, or null.
inline const void* coefficients(const OptionalVector& vector, DType dtype, int64_t size, const char* name) {
  if (!vector) return nullptr;
  if (dtype_of(*vector, name) != sum_dtype(dtype))
    refuse(std::string(name) + " must have the dtype the kernel sums in");
  need_length(*vector, size, name);
  return vector->data();
}

inline Rows rows_of(const RowArray& array) {
  need(array.shape(1) <= 1 || array.stride(1) == 1, "each row must be contiguous");
  return {array.data(), array.stride(0)};
}

// Of rows that are written: they must not share memory.
inline Rows written_rows(const RowArray& array, const char* name) {
  if (array.shape(0) > 1 && array.stride(0) < static_cast<int64_t>(array.shape(1)))
    refuse(std::string(name) + " must have rows of its own");
  return rows_of(array);
}

struct Topology {
  const int64_t* indptr;
  const void* indices;
  bool wide;
  int64_t num_dst, num_edges;
};

inline Topology topology_of(const Array1<const int64_t>& indptr, const VectorArray& indices) {
  const nb::dlpack::dtype type = indices.dtype();
  need(type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && (type.bits == 32 || type.bits == 64),
       "indices must be int32 or int64");
  const int64_t num_edges = static_cast<int64_t>(indices.shape(0));
  return {indptr.data(), indices.data(), type.bits == 64, rows_between(indptr, num_edges), num_edges};
}

// The graph, the rows and the weights of an aggregation, checked; `name` is what the caller calls the rows.
inline EdgeRows edge_rows_of(const Array1<const int64_t>& indptr, const VectorArray& indices,
                             const RowArray& x, const OptionalVector& weight, const char* name) {
  const Topology topology = topology_of(indptr, indices);
  EdgeRows a;
  a.dtype = dtype_of(x, name);
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.width = static_cast<int64_t>(x.shape(1));
  a.x = rows_of(x);
  a.weight = coefficients(weight, a.dtype, topology.num_edges, "weight");
  return a;
}

}  // namespace gb
