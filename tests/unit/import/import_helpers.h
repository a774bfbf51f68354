// Helpers for importer tests: compression, reading bytes through the real importers, temporary folders.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "import/common/importer.h"

namespace cglint::testing {

inline std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  EXPECT_FALSE(ZSTD_isError(size));
  out.resize(size);
  return out;
}

inline std::string data_path(std::string_view name) { return std::string(CGLINT_TEST_DATA) + "/" + std::string(name); }

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The decompressed text of a file.
inline std::string read_text(const std::string& path) {
  import::Limits limits;
  auto source = import::Source::open(path, limits);
  EXPECT_TRUE(source) << path;
  auto text = (*source)->read_all();
  EXPECT_TRUE(text) << path;
  return *std::move(text);
}

inline const import::Importer& importer(std::string_view name) {
  for (const auto& one : import::all_importers())
    if (one->name() == name) return *one;
  ADD_FAILURE() << "no importer " << name;
  std::abort();
}

inline base::Result<ir::Recording> read_with(std::string_view importer_name, std::string_view bytes,
                                             const import::ReadOptions& options = {}) {
  auto source = import::Source::from_memory(bytes, "test", options.limits);
  return importer(importer_name).read(*source, options);
}

// A temporary folder, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "cglint_test_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file.string();
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline std::uint64_t loss_count(const ir::Recording& recording, std::string_view part) {
  std::uint64_t count = 0;
  for (const ir::Loss& loss : recording.losses)
    if (recording.text(loss.what).find(part) != std::string_view::npos) count += loss.count;
  return count;
}

}  // namespace cglint::testing
