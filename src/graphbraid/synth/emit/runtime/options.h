// The command line of a program.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace program {

struct Options {
  std::string data;        // the store's folder
  std::string home = ".";  // the program's folder, with plan/ and weights/
  std::string load;        // folder of the first weights; empty: the program's own
  std::string save;        // folder of the trained weights; empty: they are not saved
  std::string input;       // the input path; empty: the fastest
  int64_t epochs = 0;
  bool help = false;
};

// The words that start a program, and whether it reads a store or has all of its arrays in plan/.
struct Command {
  std::string start;
  bool reads_store;
  std::vector<std::string> inputs = {};  // the input paths that --input takes; empty: there is no --input

  std::string usage() const;
};

// A mistake in the command line.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the command line; throws UsageError. A program with usual_epochs < 0 counts its epochs itself.
Options read_options(int count, char** words, const Command& command, int64_t usual_epochs);

// Checks that the folders to read exist, and makes the folder to write. Throws std::runtime_error.
void prepare_folders(const Options& options, const Command& command);

}  // namespace program
