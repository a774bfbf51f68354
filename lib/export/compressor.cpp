#include "export/compressor.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace cglint::exporter {
namespace {

using base::ErrorCode;
using base::make_error;

class GzipCompressor final : public RecordCompressor {
 public:
  explicit GzipCompressor(int level) {
    std::memset(&stream_, 0, sizeof(stream_));
    ready_ = deflateInit2(&stream_, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK;
  }
  GzipCompressor(const GzipCompressor&) = delete;
  GzipCompressor& operator=(const GzipCompressor&) = delete;
  ~GzipCompressor() override {
    if (ready_) deflateEnd(&stream_);
  }
  base::Result<void> compress(std::string_view record, std::string& out) override {
    if (!ready_ || deflateReset(&stream_) != Z_OK)
      return make_error(ErrorCode::internal, "zlib could not be set up");
    out.clear();
    const char* next = record.data();
    std::size_t left = record.size();
    int status = Z_OK;
    do {
      const std::size_t piece = std::min<std::size_t>(left, std::numeric_limits<uInt>::max() / 2);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next));
      stream_.avail_in = static_cast<uInt>(piece);
      next += piece;
      left -= piece;
      do {
        const std::size_t used = out.size();
        out.resize(used + std::max<std::size_t>(4096, piece / 4));
        stream_.next_out = reinterpret_cast<Bytef*>(out.data() + used);
        stream_.avail_out = static_cast<uInt>(out.size() - used);
        status = deflate(&stream_, left == 0 ? Z_FINISH : Z_NO_FLUSH);
        out.resize(out.size() - stream_.avail_out);
        if (status == Z_STREAM_ERROR) return make_error(ErrorCode::internal, "zlib refused to compress");
      } while (stream_.avail_in != 0 || (left == 0 && status != Z_STREAM_END));
    } while (left != 0);
    return {};
  }

 private:
  z_stream stream_;
  bool ready_ = false;
};

class ZstdCompressor final : public RecordCompressor {
 public:
  explicit ZstdCompressor(int level) : level_(level), context_(ZSTD_createCCtx()) {}
  ZstdCompressor(const ZstdCompressor&) = delete;
  ZstdCompressor& operator=(const ZstdCompressor&) = delete;
  ~ZstdCompressor() override { ZSTD_freeCCtx(context_); }
  base::Result<void> compress(std::string_view record, std::string& out) override {
    if (context_ == nullptr) return make_error(ErrorCode::internal, "zstd could not be set up");
    out.resize(ZSTD_compressBound(record.size()));
    const std::size_t size =
        ZSTD_compressCCtx(context_, out.data(), out.size(), record.data(), record.size(), level_);
    if (ZSTD_isError(size))
      return make_error(ErrorCode::internal, std::string("zstd: ") + ZSTD_getErrorName(size));
    out.resize(size);
    return {};
  }

 private:
  int level_;
  ZSTD_CCtx* context_;
};

}  // namespace

std::unique_ptr<RecordCompressor> make_gzip_compressor(int level) {
  return std::make_unique<GzipCompressor>(level);
}
std::unique_ptr<RecordCompressor> make_zstd_compressor(int level) {
  return std::make_unique<ZstdCompressor>(level);
}

}  // namespace cglint::exporter
