#include "capture/allocator_blocks.h"

#include <algorithm>
#include <array>

#include "base/json_writer.h"

namespace cglint::capture {

using base::JsonWriter;

namespace {
constexpr std::array<const char*, 3> kStates = {"active", "pending_free", "free"};
constexpr std::size_t kBlocksPerLine = 65536;
}  // namespace

std::string check_blocks(std::span<const std::uint64_t> words, std::size_t pool_count) {
  if (words.size() % kBlockWords != 0) return "a block is cut short";
  for (std::size_t i = 0; i < words.size(); i += kBlockWords) {
    std::uint64_t end = 0;
    if (words[i + 1] == 0 || __builtin_add_overflow(words[i], words[i + 1], &end)) return "a block's size is impossible";
    if (words[i + 2] >= kStates.size()) return "a block's state is unknown";
    if (words[i + 4] >= pool_count) return "a block's pool is unknown";
  }
  return "";
}

void write_blocks(std::span<const std::uint64_t> words, std::span<const std::string_view> pools, std::uint64_t sequence, std::string& out) {
  // An allocator without blocks is known to be empty: a line all the same.
  std::size_t begin = 0;
  do {
    const std::size_t end = std::min(words.size(), begin + kBlocksPerLine * kBlockWords);
    JsonWriter json(out);
    json.begin_object();
    json.field("type", "allocator_blocks");
    json.field("process", 0);
    json.field("sequence", sequence);
    json.key("blocks");
    json.begin_array();
    for (; begin < end; begin += kBlockWords) {
      json.begin_object();
      json.hex_field("base", words[begin]);
      json.field("size_bytes", words[begin + 1]);
      json.field("state", kStates[words[begin + 2]]);
      if (const std::string_view pool = pools[words[begin + 4]]; !pool.empty()) json.field("pool", pool);
      if (words[begin + 3] != 0) json.hex_field("stream", words[begin + 3]);
      if (words[begin + kBlockSince] != 0) json.field("alloc_sequence", words[begin + kBlockSince]);
      json.end_object();
    }
    json.end_array();
    json.end_object();
    out += '\n';
  } while (begin < words.size());
}

void write_no_blocks(std::string_view why, std::string& out) {
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "loss");
  json.field("severity", "data_loss");
  json.field("what", "the state of the caching allocator could not be recorded: " + std::string(why));
  json.field("count", 1);
  json.key("facts");
  json.begin_array();
  json.string("allocator_state");
  json.end_array();
  json.end_object();
  out += '\n';
}

}  // namespace cglint::capture
