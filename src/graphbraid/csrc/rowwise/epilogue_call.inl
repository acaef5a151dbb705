// What kernels call on rows they have just written. Compiled in epilogue.cpp alone (epilogue_rows.inl), so
// that every kernel that ends in an epilogue runs the same code, to the same bits.

// Rows [first, last) of `out` from those of `x`, which may be `out`; rows stand x_stride and out_stride
// apart.
template <typename T>
void epilogue_rows(const Epilogue& e, int64_t width, int64_t first, int64_t last, const T* x,
                   int64_t x_stride, T* out, int64_t out_stride);
