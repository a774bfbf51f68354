// Compresses records, each as a gzip member or zstd frame of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cglint::exporter {

class RecordCompressor {
 public:
  virtual ~RecordCompressor() = default;
  // Replaces `out` by the compressed form of `record`.
  virtual base::Result<void> compress(std::string_view record, std::string& out) = 0;
};

std::unique_ptr<RecordCompressor> make_gzip_compressor(int level);
std::unique_ptr<RecordCompressor> make_zstd_compressor(int level);

}  // namespace cglint::exporter
