// libFuzzer entry for compressed files. The first four bytes say how the rest is packed and damaged: what is whole must give the same
// as the plain bytes, what is torn or damaged an error or a recording whose graphs verify.
//   byte 0: bits 0-1: 0 the rest is a file as it stands, 1 gzip, 2 zstd, 3 gzip with an empty member before each
//           bit 2 every second member by the other codec, bit 3 cut, bit 4 a bit changed, bits 5-7 which
//   byte 1: a member's content in units of 16 bytes (0: one member)   byte 2: bytes cut   byte 3: place of the change in 256ths, and
//           the size of reads
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "import/common/importer.h"
#include "ir/graph_builder.h"

namespace {

using namespace cglint;

void append_gzip(std::string_view text, std::string& out) {
  z_stream stream{};
  CGLINT_CHECK(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string member(deflateBound(&stream, static_cast<uLong>(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(member.data());
  stream.avail_out = static_cast<uInt>(member.size());
  CGLINT_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.append(member, 0, stream.total_out);
  deflateEnd(&stream);
}

void append_zstd(std::string_view text, std::string& out) {
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), 1);
  CGLINT_CHECK(ZSTD_isError(size) == 0);
  out.append(frame, 0, size);
}

struct Outcome {
  bool read = false;
  std::size_t graphs = 0;
  std::size_t losses = 0;
  bool operator==(const Outcome&) const = default;
};

// Reads with the importer that recognises the content.
Outcome read(std::string_view bytes) {
  import::ReadOptions options;
  options.limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  options.threads = 2;
  auto source = import::Source::from_memory(bytes, "fuzz", options.limits);
  const auto prefix = source->peek();
  if (!prefix) {
    CGLINT_CHECK(!prefix.error().message.empty());
    return {};
  }
  for (const auto& importer : import::all_importers()) {
    if (importer->sniff(*prefix).match != import::SniffResult::Match::yes) continue;
    const auto recording = importer->read(*source, options);
    if (!recording) {
      CGLINT_CHECK(!recording.error().message.empty());
      return {};
    }
    for (const auto& graph : recording->graphs)
      if (graph != nullptr) CGLINT_CHECK(ir::verify(*graph).has_value());
    return {true, recording->graphs.size(), recording->losses.size()};
  }
  return {};
}

// What the source hands out in pieces of `step` bytes, until its end or its error.
std::string drain(std::string_view bytes, std::size_t step, bool& failed) {
  import::Limits limits;
  limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  auto source = import::Source::from_memory(bytes, "fuzz", limits);
  std::string text, piece(step, '\0');
  while (true) {
    const auto n = source->read(piece.data(), piece.size());
    failed = !n;
    if (failed || *n == 0) break;
    CGLINT_CHECK(*n <= step);
    text.append(piece, 0, *n);
    CGLINT_CHECK(source->offset_bytes() == text.size());
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const unsigned how = data[0];
  const std::string_view content(reinterpret_cast<const char*>(data) + 4, size - 4);
  if ((how & 3U) == 0) {
    read(content);
    return 0;
  }
  const std::size_t member = data[1] == 0 ? content.size() : std::size_t{data[1]} * 16;
  bool gzip = (how & 3U) != 2;
  std::string file;
  for (std::size_t begin = 0; begin < content.size() || file.empty(); begin += member) {
    if ((how & 3U) == 3) append_gzip({}, file);
    const std::string_view part = content.substr(std::min(begin, content.size()), member);
    gzip ? append_gzip(part, file) : append_zstd(part, file);
    if ((how & 4U) != 0) gzip = !gzip;
    if (member == 0) break;
  }
  const std::size_t cut = (how & 8U) == 0 ? 0 : std::min<std::size_t>(data[2], file.size() - 1);
  file.resize(file.size() - cut);
  const bool changed = (how & 16U) != 0;
  if (changed) {
    char& byte = file[file.size() * data[3] / 256];
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << (how >> 5)));
  }
  const Outcome outcome = read(file);
  if (changed || (how & 4U) != 0) return 0;
  bool failed = false;
  const std::string text = drain(file, 1 + data[3] * std::size_t{7}, failed);
  if (cut != 0) {
    // Fewer bytes than a magic number are taken for a plain file.
    if (file.size() >= 4) CGLINT_CHECK(content.starts_with(text));
    return 0;
  }
  CGLINT_CHECK(!failed && text == content);
  // Content that looks compressed is unpacked once only; as a file of its own it would be unpacked as well.
  const bool packed = content.starts_with("\x1f\x8b") || (content.size() >= 4 && (content.substr(1, 3) == "\xb5\x2f\xfd" || content.substr(1, 3) == "\x2a\x4d\x18"));
  if (!packed) CGLINT_CHECK(outcome == read(content));
  return 0;
}
