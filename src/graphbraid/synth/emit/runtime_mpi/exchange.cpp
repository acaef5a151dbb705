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

// Rows as MPI counts them, so that a count does not overflow at 2 GiB.
class RowType {
 public:
  explicit RowType(int64_t columns) {
    MPI_Type_contiguous(count_of(columns), MPI_FLOAT, &type);
    MPI_Type_commit(&type);
  }
  ~RowType() { MPI_Type_free(&type); }  // what is under way keeps it
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;

  MPI_Datatype type;
};

}  // namespace

struct Exchange::Requests {
  std::vector<MPI_Request> all;
};

Exchange::Exchange(Ranks& ranks, int tag, const int64_t* rows, const int64_t* send_rows,
                   const int64_t* receive_rows, int64_t num_sent)
    : ranks_(ranks),
      tag_(2 * tag),
      rows_(rows),
      send_rows_(send_rows),
      receive_rows_(receive_rows),
      num_sent_(num_sent),
      requests_(std::make_unique<Requests>()) {}

Exchange::Exchange(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

void Exchange::begin(ConstMatrix own, Matrix packed, Matrix halo) {
  gb::parallel_static(num_sent_, kRowsAtATime, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      std::copy_n(own.data + rows_[i] * own.row_stride, own.columns, packed.data + i * packed.row_stride);
  });
  post(tag_, packed, send_rows_, halo, receive_rows_);
}

void Exchange::begin_back(ConstMatrix halo, Matrix returned) {
  post(tag_ + 1, halo, receive_rows_, returned, send_rows_);
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
  float* to = received.data;  // receive first: what arrives then needs no place in between
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (received_rows[rank] == 0) continue;
    requests.emplace_back();
    MPI_Irecv(to, count_of(received_rows[rank]), row.type, rank, tag, MPI_COMM_WORLD, &requests.back());
    to += received_rows[rank] * received.columns;
  }
  const float* from = sent.data;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (sent_rows[rank] == 0) continue;
    requests.emplace_back();
    MPI_Isend(from, count_of(sent_rows[rank]), row.type, rank, tag, MPI_COMM_WORLD, &requests.back());
    from += sent_rows[rank] * sent.columns;
  }
  ranks_.count_sent(static_cast<size_t>(from - sent.data) * sizeof(float));
}

}  // namespace program
