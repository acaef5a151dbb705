// Rows that travel between ranks: to those that read them and, as gradients, back.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu_kernels.h"
#include "ranks.h"

namespace program {

// One exchange of a program. What was begun is waited for before it is begun again.
class Exchange {
 public:
  // tag: another for each exchange. rows: own rows to send, num_sent of them, by receiver; send_rows[r] of
  // them go to rank r, and receive_rows[r] rows come from it. The arrays must outlive this.
  Exchange(Ranks& ranks, int tag, const int64_t* rows, const int64_t* send_rows, const int64_t* receive_rows,
           int64_t num_sent);
  Exchange(Exchange&&) noexcept;
  ~Exchange();

  // Begins to send own rows, which are copied to packed, and to receive the halo's.
  void begin(ConstMatrix own, Matrix packed, Matrix halo);
  // Begins to send the gradients of the halo's rows, and to receive those of the rows that were sent.
  void begin_back(ConstMatrix halo, Matrix returned);
  // Waits for what was begun.
  void wait();

 private:
  struct Requests;
  void post(int tag, ConstMatrix sent, const int64_t* sent_rows, Matrix received,
            const int64_t* received_rows);

  Ranks& ranks_;
  int tag_;
  const int64_t *rows_, *send_rows_, *receive_rows_;
  int64_t num_sent_;
  std::unique_ptr<Requests> requests_;
};

}  // namespace program
