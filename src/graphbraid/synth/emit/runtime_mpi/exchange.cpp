#include "exchange.h"

#include <mpi.h>

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <vector>

#include "threads/parallel.h"

namespace program {
namespace {

constexpr int64_t kRowsAtATime = 256;

int count_of(int64_t rows) {
  if (rows > INT_MAX) throw std::runtime_error("a rank sends more rows than MPI can count");
  return static_cast<int>(rows);
}

// A row as one element of MPI. MPI counts elements in an int, which would not hold the number of floats.
class RowType {
 public:
  explicit RowType(int64_t columns) {
    MPI_Type_contiguous(count_of(columns), MPI_FLOAT, &type);
    MPI_Type_commit(&type);
  }
  ~RowType() { MPI_Type_free(&type); }  // MPI keeps the type until pending transfers of it end
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;

  MPI_Datatype type;
};

}  // namespace

struct Exchange::Requests {
  std::vector<MPI_Request> all;
};

Exchange::Exchange(const Route& route) : route_(route), requests_(std::make_unique<Requests>()) {}

Exchange::Exchange(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

void Exchange::begin(const Begin& a) {
  gb::parallel_static(route_.num_sent, kRowsAtATime, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      std::copy_n(a.own.data + route_.rows[i] * a.own.row_stride, a.own.columns,
                  a.packed.data + i * a.packed.row_stride);
  });
  post(2 * route_.tag, a.packed, route_.send_rows, a.halo, route_.receive_rows);
}

void Exchange::begin_back(const BeginBack& a) {
  post(2 * route_.tag + 1, a.halo, route_.receive_rows, a.returned, route_.send_rows);
}

void Exchange::wait() {
  std::vector<MPI_Request>& requests = requests_->all;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

void Exchange::post(int tag, ConstMatrix sent, const int64_t* sent_rows, Matrix received,
                    const int64_t* received_rows) {
  const RowType row(sent.columns);
  std::vector<MPI_Request>& requests = requests_->all;
  float* to = received.data;  // receives come first: data that arrives then needs no buffer in between
  for (int rank = 0; rank < route_.ranks->size(); ++rank) {
    if (received_rows[rank] == 0) continue;
    requests.emplace_back();
    MPI_Irecv(to, count_of(received_rows[rank]), row.type, rank, tag, MPI_COMM_WORLD, &requests.back());
    to += received_rows[rank] * received.columns;
  }
  const float* from = sent.data;
  for (int rank = 0; rank < route_.ranks->size(); ++rank) {
    if (sent_rows[rank] == 0) continue;
    requests.emplace_back();
    MPI_Isend(from, count_of(sent_rows[rank]), row.type, rank, tag, MPI_COMM_WORLD, &requests.back());
    from += sent_rows[rank] * sent.columns;
  }
  route_.ranks->count_sent(static_cast<size_t>(from - sent.data) * sizeof(float));
}

}  // namespace program
