#include "analysis/kernel_table.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#define TOML_EXCEPTIONS 0
#include <fmt/format.h>
#include <toml++/toml.h>

#include "analysis/size_expression.h"
#include "base/toml_check.h"

namespace cglint::analysis {

std::string_view embedded_table(std::string_view name);  // generated from data/

namespace {

constexpr std::size_t kMaxTableBytes = 4u << 20;
constexpr std::size_t kMaxSlots = 4096;

base::Error table_error(std::string_view file, const toml::source_region& where, std::string message) {
  return base::make_error(base::ErrorCode::malformed, fmt::format("line {}: {}", where.begin.line, message))
      .with_file(file);
}

bool parse_unsigned(std::string_view text, std::uint32_t& value) {
  if (text.empty() || text.size() > 6) return false;
  value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return true;
}

// "3", "3+16" for the word at byte 16 of a by-value struct, or "mutable".
bool parse_slot(std::string_view key, KnownAccess& access) {
  if (key == "mutable") {
    access.slot = KnownAccess::kEveryMutable;
    return true;
  }
  std::uint32_t slot = 0;
  const std::size_t plus = key.find('+');
  if (!parse_unsigned(key.substr(0, plus), slot) || slot >= kMaxSlots) return false;
  access.slot = static_cast<std::uint16_t>(slot);
  if (plus == std::string_view::npos) return true;
  return parse_unsigned(key.substr(plus + 1), access.offset_bytes) && access.offset_bytes < 65536;
}

bool parse_mode(std::string_view text, KnownAccess& access) {
  access.writes_all = text == "write_all";
  if (text == "none") {
    access.mode = AccessMode::none;
  } else if (text == "read") {
    access.mode = AccessMode::read;
  } else if (text == "write" || text == "write_all") {
    access.mode = AccessMode::write;
  } else if (text == "read_write") {
    access.mode = AccessMode::read_write;
  } else {
    return false;
  }
  return true;
}

base::Result<void> read_access(const toml::table& table, std::string_view file, KnownKernel& kernel) {
  for (const auto& [key, value] : table) {
    KnownAccess access;
    if (!parse_slot(key.str(), access))
      return table_error(
          file, value.source(),
          fmt::format("access key '{}' is not a parameter number, number+offset or 'mutable'", key.str()));
    std::string_view mode;
    if (const auto* text = value.as_string()) {
      mode = text->get();
    } else if (const auto* details = value.as_table()) {
      for (const auto& [name, item] : *details) {
        if (name.str() != "mode" && name.str() != "bytes" && name.str() != "span" && name.str() != "all_if")
          return table_error(file, item.source(),
                             fmt::format("unknown key '{}' (known: mode, bytes, span, all_if)", name.str()));
        if (!item.is_string())
          return table_error(file, item.source(), fmt::format("'{}' must be a string", name.str()));
      }
      mode = (*details)["mode"].value_or(std::string_view());
      access.bytes = (*details)["bytes"].value_or(std::string());
      access.span = (*details)["span"].value_or(std::string());
      access.all_if = (*details)["all_if"].value_or(std::string());
      for (const std::string& source : {access.bytes, access.span, access.all_if}) {
        if (source.empty()) continue;
        const base::Result<SizeExpression> expression = SizeExpression::parse(source);
        if (!expression) return table_error(file, value.source(), expression.error().message);
      }
      if (!access.all_if.empty() && mode != "write")
        return table_error(file, value.source(), "'all_if' goes with mode \"write\"");
    }
    if (!parse_mode(mode, access))
      return table_error(file, value.source(), "access must be none, read, write, write_all or read_write");
    kernel.accesses.push_back(std::move(access));
  }
  return {};
}

base::Result<void> read_moe(const toml::table& table, std::string_view file, KnownMoe& moe) {
  const std::array<std::pair<std::string_view, std::string*>, 14> members = {{{"grouped", &moe.grouped},
                                                                             {"experts", &moe.experts},
                                                                             {"n", &moe.n},
                                                                             {"k", &moe.k},
                                                                             {"pairs", &moe.pairs},
                                                                             {"pairs_per_token", &moe.pairs_per_token},
                                                                             {"dtype", &moe.dtype},
                                                                             {"block_m", &moe.block_m},
                                                                             {"block_n", &moe.block_n},
                                                                             {"block_k", &moe.block_k},
                                                                             {"group_m", &moe.group_m},
                                                                             {"split_k", &moe.split_k},
                                                                             {"num_warps", &moe.num_warps},
                                                                             {"num_stages", &moe.num_stages}}};
  for (const auto& [key, value] : table) {
    const std::string_view name = key.str();
    if (name == "dtypes") {
      const auto* list = value.as_array();
      if (list == nullptr || list->size() > kMaxSlots) return table_error(file, value.source(), "'dtypes' must be a list of texts");
      for (const toml::node& item : *list) {
        const auto* text = item.as_string();
        if (text == nullptr) return table_error(file, item.source(), "'dtypes' must be a list of texts");
        moe.dtypes.push_back(text->get());
      }
      continue;
    }
    const auto member = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == name; });
    if (member == members.end()) return table_error(file, value.source(), fmt::format("unknown key '{}' in 'moe'", name));
    const auto* text = value.as_string();
    if (text == nullptr) return table_error(file, value.source(), fmt::format("'{}' must be a string", name));
    const base::Result<SizeExpression> expression = SizeExpression::parse(text->get());
    if (!expression) return table_error(file, value.source(), expression.error().message);
    *member->second = text->get();
  }
  return {};
}

base::Result<void> read_kernel(const toml::table& table, std::string_view file, KnownKernel& kernel) {
  for (const auto& [key, value] : table) {
    const std::string_view name = key.str();
    if (name == "match" || name == "role" || name == "note") {
      const auto* text = value.as_string();
      if (text == nullptr)
        return table_error(file, value.source(), fmt::format("'{}' must be a string", name));
      if (name == "match") {
        kernel.pattern = text->get();
      } else if (name == "note") {
        kernel.note = text->get();
      } else {
        const std::optional<KernelRole> role = kernel_role_from_name(text->get());
        if (!role) return table_error(file, value.source(), fmt::format("unknown role '{}'", text->get()));
        kernel.role = *role;
      }
    } else if (name == "params") {
      const auto* list = value.as_array();
      if (list == nullptr || list->size() > kMaxSlots)
        return table_error(file, value.source(), "'params' must be a list of types");
      for (const toml::node& item : *list) {
        const auto* type = item.as_string();
        if (type == nullptr) return table_error(file, item.source(), "'params' must be a list of types");
        kernel.params.push_back(type->get());
      }
    } else if (name == "access") {
      const auto* access = value.as_table();
      if (access == nullptr) return table_error(file, value.source(), "'access' must be a table");
      CGLINT_TRY(read_access(*access, file, kernel));
    } else if (name == "moe") {
      const auto* moe = value.as_table();
      if (moe == nullptr) return table_error(file, value.source(), "'moe' must be a table");
      CGLINT_TRY(read_moe(*moe, file, kernel.moe.emplace()));
    } else {
      return table_error(file, value.source(),
                         fmt::format("unknown key '{}' (known: match, role, note, params, access, moe)", name));
    }
  }
  if (kernel.pattern.empty()) return table_error(file, table.source(), "a [[kernel]] needs 'match'");
  return {};
}

}  // namespace

base::Result<KernelTable> parse_kernel_table(std::string_view text, std::string_view file,
                                             const KernelTable* fallback) {
  if (auto checked = base::check_toml_text(text); !checked) return std::move(checked).error().with_file(file);
  const toml::parse_result parsed = toml::parse(text, std::string(file));
  if (!parsed) return table_error(file, parsed.error().source(), std::string(parsed.error().description()));
  const toml::table& root = parsed.table();
  for (const auto& [key, value] : root)
    if (key.str() != "format" && key.str() != "kernel")
      return table_error(file, value.source(),
                         fmt::format("unknown key '{}' (known: format, kernel)", key.str()));
  // Of an integer alone: toml++ 3.3.0 converts any float, also one that no integer can hold.
  const toml::node* const format = root.get("format");
  if (format == nullptr) return table_error(file, root.source(), "'format = 1' is missing");
  if (!format->is_integer()) return table_error(file, format->source(), "'format' must be the number 1");
  if (const std::int64_t number = format->as_integer()->get(); number != 1)
    return table_error(file, format->source(), fmt::format("kernel table format {} is not 1", number));
  auto compiled = std::make_shared<KernelTable::Compiled>();
  if (const toml::node* node = root.get("kernel")) {
    const auto* kernels = node->as_array();
    if (kernels == nullptr)
      return table_error(file, node->source(), "'kernel' must be written as [[kernel]]");
    for (const toml::node& item : *kernels) {
      const auto* table = item.as_table();
      if (table == nullptr) return table_error(file, item.source(), "'kernel' must be written as [[kernel]]");
      KnownKernel kernel;
      CGLINT_TRY(read_kernel(*table, file, kernel));
      base::Result<Pattern> pattern = Pattern::compile(kernel.pattern);
      if (!pattern)
        return table_error(file, table->source(),
                           fmt::format("pattern '{}': {}", kernel.pattern, pattern.error().message));
      compiled->entries.push_back({std::move(*pattern), std::move(kernel)});
    }
  }
  if (fallback != nullptr && fallback->compiled_)
    compiled->entries.insert(compiled->entries.end(), fallback->compiled_->entries.begin(),
                             fallback->compiled_->entries.end());
  KernelTable table;
  table.compiled_ = std::move(compiled);
  return table;
}

const KernelTable& KernelTable::builtin() {
  static const KernelTable table = [] {
    base::Result<KernelTable> parsed =
        parse_kernel_table(embedded_table("kernels.toml"), "kernels.toml", nullptr);
    CGLINT_CHECK(parsed.has_value());
    return std::move(parsed).value();
  }();
  return table;
}

base::Result<KernelTable> KernelTable::with_user_table(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return base::make_error(base::ErrorCode::not_found, "cannot open kernel table").with_file(path);
  std::ostringstream text;
  std::array<char, 65536> buffer;
  std::size_t total = 0;
  while (stream.read(buffer.data(), buffer.size()) || stream.gcount() > 0) {
    total += static_cast<std::size_t>(stream.gcount());
    if (total > kMaxTableBytes)
      return base::make_error(base::ErrorCode::limit, "kernel table is larger than 4 MiB").with_file(path);
    text.write(buffer.data(), stream.gcount());
  }
  if (stream.bad()) return base::make_error(base::ErrorCode::io, "cannot read kernel table").with_file(path);
  return parse_kernel_table(text.str(), path, &builtin());
}

}  // namespace cglint::analysis
