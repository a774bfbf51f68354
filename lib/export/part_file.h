// A file that appears whole or not at all.
#pragma once

#include <string>

#include "base/result.h"

namespace cglint::exporter {

// Names a file beside the one that is wanted; finish() renames it. What is not finished is removed with the object, or by
// remove_unfinished_file(). "-" (standard output), devices, pipes and sockets are written under their own name; a link is followed.
class PartFile {
 public:
  explicit PartFile(std::string path);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // The name to write.
  [[nodiscard]] const std::string& name() const { return name_; }
  // After the file was closed: gives it the wanted name, and the permissions of the file that had it.
  base::Result<void> finish();

 private:
  std::string path_;    // as it was given
  std::string target_;  // behind links
  std::string name_;
  bool is_pending_ = false;  // name_ is a file that has to go
};

// Whether a PartFile of that name could be written, found out by making its unfinished file, which goes again. For what is written
// after hours of work.
base::Result<void> check_writable(const std::string& path);

// For the handler of a signal that ends the program (it is async-signal-safe): removes the file of the last PartFile that was made,
// if it is not finished.
void remove_unfinished_file() noexcept;

}  // namespace cglint::exporter
