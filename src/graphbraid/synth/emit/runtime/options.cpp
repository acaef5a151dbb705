#include "options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

namespace program {

namespace {

std::string* text_option(Options& options, const Command& command, const std::string& name) {
  if (name == "--data" && command.reads_store) return &options.data;
  if (name == "--home") return &options.home;
  if (name == "--load") return &options.load;
  if (name == "--save") return &options.save;
  if (name == "--input" && !command.inputs.empty()) return &options.input;
  return nullptr;
}

int64_t number_of(const std::string& name, const std::string& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0)
    throw UsageError(name + " takes a number of at least 0, not " + text);
  return number;
}

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

void require_input(const Options& options, const Command& command) {
  if (options.input.empty() || std::ranges::count(command.inputs, options.input) > 0) return;
  throw UsageError("--input takes " + joined(command.inputs, " or ") +
                   ", which this program was written with, not " + options.input);
}

void require_folder(const std::string& folder, const std::string& what) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw std::runtime_error("there is no folder " + folder + ": " + what);
}

}  // namespace

std::string Command::usage() const {
  return "usage: " + start + (reads_store ? " --data STORE" : "") +
         " [--home FOLDER] [--load WEIGHTS] [--save WEIGHTS] [--epochs N]" +
         (inputs.empty() ? "" : " [--input " + joined(inputs, "|") + "]") + "\n";
}

Options read_options(int count, char** words, const Command& command, int64_t usual_epochs) {
  Options options;
  options.epochs = usual_epochs;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return options;
    }
    std::string* text = text_option(options, command, name);
    if (text == nullptr && name != "--epochs") throw UsageError("there is no option " + name);
    if (i + 1 == count) throw UsageError(name + " needs a value");
    if (text == nullptr && usual_epochs < 0)
      throw UsageError("--epochs sets totalEpoch, which this program does not read");
    if (text != nullptr)
      *text = words[i + 1];
    else
      options.epochs = number_of(name, words[i + 1]);
  }
  if (command.reads_store && options.data.empty()) throw UsageError("--data is missing");
  require_input(options, command);
  return options;
}

void prepare_folders(const Options& options, const Command& command) {
  if (command.reads_store) require_folder(options.data, "--data names the store");
  require_folder(options.home + "/plan", "--home names the folder that graphbraid wrote");
  if (!options.save.empty()) std::filesystem::create_directories(options.save);
}

}  // namespace program
