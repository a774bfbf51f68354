// Tuned launch configurations of fused mixture-of-experts kernels, in the files that vLLM keeps them in: one file
// per shape and GPU, named after both,
//   E=96,N=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json
// and holding one configuration per token count:
//   {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4,
//          "num_stages": 3}, "2": ...}
// The linter reads them, the tuner of the reference kernels writes them. No CUDA, no part of the linter.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cglint::tables {

// Names as in the files. split_k is optional there: 1 where it is missing.
struct MoeTileConfig {
  std::int32_t block_m = 0, block_n = 0, block_k = 0;  // tokens, weight rows, elements of K
  std::int32_t group_m = 1;
  std::int32_t split_k = 1;
  std::int32_t num_warps = 4;
  std::int32_t num_stages = 3;
  friend bool operator==(const MoeTileConfig&, const MoeTileConfig&) = default;
};

// What a file's name says.
struct MoeConfigKey {
  std::int64_t experts = 0;               // E: local experts
  std::int64_t n = 0;                     // N: columns of the second product's input (intermediate size of the shard)
  std::string device;                     // "NVIDIA_H200": spaces are underscores
  std::string dtype;                      // "fp8_w8a8", ...; "" for unquantised weights
  std::vector<std::int64_t> block_shape;  // of weight scales; empty where there is none
  friend bool operator==(const MoeConfigKey&, const MoeConfigKey&) = default;
  friend std::strong_ordering operator<=>(const MoeConfigKey&, const MoeConfigKey&) = default;
};

// "NVIDIA H200" -> "NVIDIA_H200". All members of the H200 family have one name there.
std::string moe_config_device(std::string_view device_name);
std::string moe_config_file_name(const MoeConfigKey& key);
// The key behind a file name (no folder); nullopt if it is not named that way.
std::optional<MoeConfigKey> parse_moe_config_file_name(std::string_view name);

using MoeConfigsByTokens = std::map<std::int64_t, MoeTileConfig>;

// The text of a file. Unknown members are skipped ("triton_version", options of other backends). Errors carry the byte
// offset: malformed JSON, a token count or number out of range, a missing BLOCK_SIZE_M, _N or _K.
base::Result<MoeConfigsByTokens> parse_moe_config(std::string_view text);
std::string format_moe_config(const MoeConfigsByTokens& configs);

// The entry that vLLM takes for `tokens`: the nearest token count, the smaller of two equally near. Null for an empty table.
const MoeConfigsByTokens::value_type* nearest_moe_config(const MoeConfigsByTokens& configs, std::int64_t tokens);

// A folder of such files.
class MoeConfigDirectory {
 public:
  struct File {
    std::string path;
    MoeConfigsByTokens configs;
  };
  // Reads every file that is named as above; others are left alone. An error names the file and offset. A folder with no
  // such file is an error too: it was named by mistake.
  static base::Result<MoeConfigDirectory> read(const std::string& path);
  [[nodiscard]] const std::map<MoeConfigKey, File>& files() const { return files_; }
  [[nodiscard]] const File* find(const MoeConfigKey& key) const;

 private:
  std::map<MoeConfigKey, File> files_;
};

}  // namespace cglint::tables
