// Exchanges between ranks: rows go to the ranks that read them, and their gradients come back.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu_kernels.h"
#include "ranks.h"

namespace program {

// One exchange of a program. After begin() or begin_back(), wait() comes before the next of them.
class Exchange {
 public:
  // The rows that travel. The arrays must outlive the exchange.
  struct Route {
    Ranks* ranks = nullptr;
    int tag = 0;                            // different for each exchange
    const int64_t* rows = nullptr;          // (num_sent,): own rows to send, by receiver
    const int64_t* send_rows = nullptr;     // (ranks,): how many of them go to each rank
    const int64_t* receive_rows = nullptr;  // (ranks,): how many rows come from it
    int64_t num_sent = 0;
  };
  explicit Exchange(const Route& route);
  Exchange(Exchange&&) noexcept;
  ~Exchange();

  // Copies own rows to packed, begins to send these, and begins to receive the rows of the halo.
  struct Begin {
    ConstMatrix own = {};
    Matrix packed = {}, halo = {};
  };
  void begin(const Begin& a);
  // Begins to send the gradients of the halo's rows, and to receive those of the rows that were sent.
  struct BeginBack {
    ConstMatrix halo = {};
    Matrix returned = {};
  };
  void begin_back(const BeginBack& a);
  // Waits until the transfer that was begun is complete.
  void wait();

 private:
  struct Requests;
  void post(int tag, ConstMatrix sent, const int64_t* sent_rows, Matrix received,
            const int64_t* received_rows);

  Route route_;
  std::unique_ptr<Requests> requests_;
};

}  // namespace program
