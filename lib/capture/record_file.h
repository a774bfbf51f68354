// The capture file of one process: lines handed to the operating system when the call returns, so that a
// killed process leaves a file that reads up to its last line. Not thread safe. A fork's child has no file
// until it opens its own: what it inherited is the parent's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cglint::capture {

// `wanted`: a folder (existing, or with a slash at its end), a file name, or empty for ./cglint. The process
// id, and the rank if there is one, go before the first suffix: run.cgl.jsonl becomes
// run.rank2.4711.cgl.jsonl.
std::string record_path(std::string_view wanted, bool is_folder, std::string_view program, std::int64_t rank,
                        long pid);

class RecordFile {
 public:
  RecordFile() = default;
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Creates the file, its folders included; never replaces one. Returns what went wrong, or "".
  std::string open(const std::string& path);
  // Whole lines, each with its line feed. False once something went wrong (disk full, past the limit of a file's size, ...): nothing
  // more is written, and no signal reaches the program.
  bool write(std::string_view lines);
  // With the number of lines so far; closes the file.
  bool write_end();
  [[nodiscard]] bool is_open() const;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  int descriptor_ = -1;
  pid_t owner_ = 0;
  std::uint64_t lines_ = 0, bytes_ = 0;
  std::string path_;
};

}  // namespace cglint::capture
