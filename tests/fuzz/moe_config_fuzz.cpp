// libFuzzer entry for tables of tuned fused-MoE tiles (--moe-config). The first line is taken for the file's name, the rest for its
// text: any of both must be refused or read, and what was read must be the same when written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tables/moe_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cglint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t line = bytes.find('\n');
  if (const auto key = tables::parse_moe_config_file_name(bytes.substr(0, line)))
    CGLINT_CHECK(tables::parse_moe_config_file_name(tables::moe_config_file_name(*key)) == key);
  const std::string_view text = line == std::string_view::npos ? std::string_view() : bytes.substr(line + 1);
  const auto configs = tables::parse_moe_config(text);
  if (!configs) {
    CGLINT_CHECK(!configs.error().message.empty() && configs.error().offset_bytes <= text.size());
    return 0;
  }
  CGLINT_CHECK(!configs->empty());
  const auto again = tables::parse_moe_config(tables::format_moe_config(*configs));
  CGLINT_CHECK(again.has_value() && *again == *configs);
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{1}, std::int64_t{100}, configs->begin()->first, configs->rbegin()->first})
    CGLINT_CHECK(tables::nearest_moe_config(*configs, tokens) != nullptr);
  return 0;
}
