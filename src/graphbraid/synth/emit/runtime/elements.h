// Functions that compute single elements, for the kernels of CPUs and of GPUs.
#pragma once

#include "matrix.h"

namespace program {

template <typename Float>
GB_EVERYWHERE inline Float& at(const MatrixOf<Float>& m, int64_t row, int64_t column) {
  return m.data[row * m.row_stride + column * m.column_stride];
}

struct Zeros {
  GB_EVERYWHERE float operator()(int64_t, int64_t) const { return 0.0f; }
};

struct Same {
  ConstMatrix x;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const { return at(x, row, column); }
};

struct SameCounts {
  const int32_t* x;
  int64_t columns;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return static_cast<float>(x[row * columns + column]);
  }
};

struct Sum {
  ConstMatrix x, y;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) + at(y, row, column);
  }
};

struct Quotient {
  ConstMatrix x, divisor;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) / at(divisor, row, column);
  }
};

struct OverDegrees {
  ConstMatrix x;
  const int64_t* indptr;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    const int64_t degree = indptr[row + 1] - indptr[row];
    return at(x, row, column) * (1.0f / static_cast<float>(degree > 1 ? degree : 1));
  }
};

struct OverCounts {
  ConstMatrix x;
  const int32_t* count;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    const int32_t found = count[row * x.columns + column];
    return at(x, row, column) / static_cast<float>(found > 1 ? found : 1);
  }
};

struct SumWithProduct {
  ConstMatrix sum, x, y;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return at(sum, row, column) + at(x, row, column) * at(y, row, column);
  }
};

struct Product {
  ConstMatrix x, y;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return at(x, row, column) * at(y, row, column);
  }
};

// (1 + factor) x, added to `sum` if that has data.
struct Scaled {
  ConstMatrix x, sum;
  const float* factor;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    const float scaled = (1.0f + *factor) * at(x, row, column);
    return sum.data ? at(sum, row, column) + scaled : scaled;
  }
};

// out[i, j] = x[i] if row i belongs to head j, else 0.
struct Spread {
  const float* x;
  int64_t channels;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return row / channels == column ? x[row] : 0.0f;
  }
};

struct OwnHead {
  ConstMatrix x;
  int64_t channels;
  GB_EVERYWHERE float operator()(int64_t, int64_t column) const { return at(x, column / channels, column); }
};

struct MeanOfHeads {
  ConstMatrix x;
  int64_t columns;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    float sum = 0;
    for (int64_t j = column; j < x.columns; j += columns) sum += at(x, row, j);
    return sum / static_cast<float>(x.columns / columns);
  }
};

struct Repeated {
  ConstMatrix x;
  float factor;
  GB_EVERYWHERE float operator()(int64_t row, int64_t column) const {
    return at(x, row, column % x.columns) * factor;
  }
};

}  // namespace program
