// The numbers of a program's own statements, and the lines that it prints.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace program {

// An integer of 64 bits, whose sums and products throw std::runtime_error where they would not fit.
class Int {
 public:
  constexpr Int(int64_t value) : value_(value) {}  // implicit: programs write plain numbers

  int64_t value() const { return value_; }
  friend bool operator==(Int, Int) = default;
  friend std::strong_ordering operator<=>(Int, Int) = default;

  friend Int operator+(Int a, Int b) {
    int64_t sum = 0;
    const bool overflows = __builtin_add_overflow(a.value_, b.value_, &sum);
    return fitting(overflows, sum);
  }
  friend Int operator-(Int a, Int b) {
    int64_t rest = 0;
    const bool overflows = __builtin_sub_overflow(a.value_, b.value_, &rest);
    return fitting(overflows, rest);
  }
  friend Int operator*(Int a, Int b) {
    int64_t product = 0;
    const bool overflows = __builtin_mul_overflow(a.value_, b.value_, &product);
    return fitting(overflows, product);
  }
  friend Int operator/(Int a, Int b) { return a.value_ / divisor(b); }
  friend Int operator%(Int a, Int b) { return a.value_ % divisor(b); }
  friend Int operator-(Int a) { return -a.value_; }
  friend Int operator+(Int a) { return a; }
  friend Int& operator++(Int& a) { return a = a + 1; }
  friend Int& operator--(Int& a) { return a = a - 1; }

 private:
  // The smallest integer has no opposite, so that it counts as one that does not fit.
  static Int fitting(bool overflows, int64_t value) {
    if (overflows || value == INT64_MIN) throw std::runtime_error("an integer of the program is too large");
    return value;
  }
  static int64_t divisor(Int b) {
    if (b.value_ == 0) throw std::runtime_error("the program divides by zero");
    return b.value_;
  }

  int64_t value_;
};

inline double real(Int number) { return static_cast<double>(number.value()); }

inline double quotient(double a, double b) {
  if (b == 0) throw std::runtime_error("the program divides by zero");
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
    throw std::runtime_error("the loop in line " + std::to_string(line) + " goes on after " +
                             std::to_string(kMostRounds) + " rounds without training; does it end?");
}

// Prints a line, with a space between its parts.
inline void say(std::initializer_list<std::string> parts) {
  std::string line;
  for (const std::string& part : parts) line += " " + part;
  std::printf("%s\n", line.c_str() + !line.empty());
}

}  // namespace program
