// The numbers of a program's own statements, and the lines that it prints.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace program {

// Ends the program with an error in one of its lines. Line 0 means no line.
[[noreturn]] inline void fail(int line, const std::string& why) {
  throw std::runtime_error((line > 0 ? "line " + std::to_string(line) + ": " : "") + why);
}

// An integer of 64 bits. A sum or product that does not fit throws std::runtime_error.
class Int {
 public:
  constexpr Int(int64_t value) : value_(value) {}  // implicit: programs write plain numbers

  int64_t value() const { return value_; }
  friend bool operator==(Int, Int) = default;
  friend std::strong_ordering operator<=>(Int, Int) = default;

  // Here and below, `line` is that of the program's statement, or 0.
  friend Int plus(Int a, Int b, int line = 0) {
    int64_t sum = 0;
    const bool overflows = __builtin_add_overflow(a.value_, b.value_, &sum);
    return fitting(overflows, sum, line);
  }
  friend Int minus(Int a, Int b, int line = 0) {
    int64_t rest = 0;
    const bool overflows = __builtin_sub_overflow(a.value_, b.value_, &rest);
    return fitting(overflows, rest, line);
  }
  friend Int times(Int a, Int b, int line = 0) {
    int64_t product = 0;
    const bool overflows = __builtin_mul_overflow(a.value_, b.value_, &product);
    return fitting(overflows, product, line);
  }
  friend Int operator+(Int a, Int b) { return plus(a, b); }
  friend Int operator-(Int a, Int b) { return minus(a, b); }
  friend Int operator*(Int a, Int b) { return times(a, b); }
  friend Int operator/(Int a, Int b) { return quotient(a, b); }
  friend Int operator%(Int a, Int b) { return remainder(a, b); }
  friend Int operator-(Int a) { return -a.value_; }
  friend Int operator+(Int a) { return a; }
  friend Int& operator++(Int& a) { return a = a + 1; }
  friend Int& operator--(Int& a) { return a = a - 1; }
  friend Int quotient(Int a, Int b, int line = 0) {
    if (b == 0) fail(line, "division by zero");
    return a.value_ / b.value_;
  }
  friend Int remainder(Int a, Int b, int line = 0) {
    if (b == 0) fail(line, "division by zero");
    return a.value_ % b.value_;
  }

 private:
  // The smallest integer counts as too large, since its negative does not fit.
  static Int fitting(bool overflows, int64_t value, int line) {
    if (overflows || value == INT64_MIN) fail(line, "the integer is too large: at most 9223372036854775807");
    return value;
  }

  int64_t value_;
};

inline double real(Int number) { return static_cast<double>(number.value()); }

inline double quotient(double a, double b, int line = 0) {
  if (b == 0) fail(line, "division by zero");
  return a / b;
}

inline std::string shown(const char* text) { return text; }
inline std::string shown(bool truth) { return truth ? "true" : "false"; }
inline std::string shown(Int number) { return std::to_string(number.value()); }
inline std::string shown(double number) {
  if (std::isnan(number)) return "nan";  // C prints its sign, too
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", number);
  return text;
}

// Rounds of loops without training since the latest forward pass.
constexpr int64_t kMostRounds = 1'000'000;
inline int64_t num_rounds = 0;

// Counts a round of a loop that trains nothing, and ends the program if the loop does not end.
inline void count_round(int line) {
  if (++num_rounds > kMostRounds)
    fail(line, "the loop goes on after 1,000,000 rounds without training: does it end?");
}

// Prints a line, with a space between its parts.
template <typename... Parts>
void say(const Parts&... parts) {
  std::string line;
  ((line += " " + shown(parts)), ...);
  std::printf("%s\n", line.c_str() + !line.empty());  // without the space before the first part
}

}  // namespace program
