#include "tables/moe_config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/text.h"

namespace cglint::tables {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxFiles = 10'000;
constexpr int kMaxDepth = 16;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::int32_t kMaxNumber = 1 << 20;

std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max) return std::nullopt;
  return value;
}

// Reads just what such a file needs of JSON and skips the rest.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  base::Result<MoeConfigsByTokens> run() {
    MoeConfigsByTokens configs;
    const bool ok = object([&](std::string_view name, std::size_t at) {
      const std::optional<std::int64_t> tokens = parse_integer(name, kMaxTokens);
      if (!tokens) {
        if (!name.empty() && name.find_first_not_of("-+.0123456789") == std::string_view::npos)
          return fail("token count '" + base::printable(name) + "' is out of range", at);
        return skip(1);
      }
      MoeTileConfig config;
      if (!entry(config, at)) return false;
      if (!configs.emplace(*tokens, config).second) return fail("token count " + std::to_string(*tokens) + " occurs twice", at);
      return true;
    });
    space();
    if (ok && at_ < text_.size()) fail("text after the end", at_);
    if (!message_.empty()) return base::make_error(base::ErrorCode::malformed, message_, error_at_);
    if (configs.empty()) return base::make_error(base::ErrorCode::malformed, "no token count in the table", 0);
    return configs;
  }

 private:
  bool fail(std::string message, std::size_t at) {
    if (message_.empty()) {
      message_ = std::move(message);
      error_at_ = at;
    }
    return false;
  }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Names and values that matter hold no escapes; those of others are stepped over.
  bool string(std::string_view& out) {
    if (!take('"')) return fail("expected '\"'", at_);
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return fail("control character in a string", at_);
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    if (at_ >= text_.size()) return fail("string without an end", begin - 1);
    out = text_.substr(begin, at_ - begin);
    ++at_;
    return true;
  }
  template <typename Member>
  bool object(const Member& member) {
    if (!take('{')) return fail("expected '{'", at_);
    if (take('}')) return true;
    do {
      space();
      const std::size_t at = at_;
      std::string_view name;
      if (!string(name)) return false;
      if (!take(':')) return fail("expected ':'", at_);
      if (!member(name, at)) return false;
    } while (take(','));
    return take('}') || fail("expected ',' or '}'", at_);
  }
  std::string_view scalar() {
    space();
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(" \n\r\t,:{}[]\"").find(text_[at_]) == std::string_view::npos) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool skip(int depth) {
    if (depth > kMaxDepth) return fail("nested too deeply", at_);
    space();
    if (at_ >= text_.size()) return fail("unexpected end", at_);
    if (text_[at_] == '"') {
      std::string_view ignored;
      return string(ignored);
    }
    if (text_[at_] == '{') return object([&](std::string_view, std::size_t) { return skip(depth + 1); });
    if (text_[at_] == '[') {
      ++at_;
      if (take(']')) return true;
      do {
        if (!skip(depth + 1)) return false;
      } while (take(','));
      return take(']') || fail("expected ',' or ']'", at_);
    }
    const std::size_t at = at_;
    const std::string_view word = scalar();
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number = !word.empty() && error == std::errc() && end == word.data() + word.size();
    return is_number || word == "true" || word == "false" || word == "null" || fail("expected a value", at);
  }
  bool entry(MoeTileConfig& config, std::size_t entry_at) {
    struct Member {
      std::string_view name;
      std::int32_t MoeTileConfig::* value;
      bool required;
      bool seen = false;
    };
    std::array<Member, 7> members = {{{"BLOCK_SIZE_M", &MoeTileConfig::block_m, true},
                                      {"BLOCK_SIZE_N", &MoeTileConfig::block_n, true},
                                      {"BLOCK_SIZE_K", &MoeTileConfig::block_k, true},
                                      {"GROUP_SIZE_M", &MoeTileConfig::group_m, false},
                                      {"SPLIT_K", &MoeTileConfig::split_k, false},
                                      {"num_warps", &MoeTileConfig::num_warps, false},
                                      {"num_stages", &MoeTileConfig::num_stages, false}}};
    const bool ok = object([&](std::string_view name, std::size_t at) {
      const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.name == name; });
      if (member == members.end()) return skip(2);
      const std::string_view word = scalar();
      const std::optional<std::int64_t> value = parse_integer(word, kMaxNumber);
      if (!value || *value < 1) return fail(std::string(name) + " is not a whole number from 1 to 1048576", at);
      if (member->seen) return fail(std::string(name) + " occurs twice", at);
      member->seen = true;
      config.*(member->value) = static_cast<std::int32_t>(*value);
      return true;
    });
    if (!ok) return false;
    for (const Member& member : members)
      if (member.required && !member.seen) return fail(std::string(member.name) + " is missing", entry_at);
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string message_;
  std::size_t error_at_ = 0;
};

// Only of a regular file: a pipe or a device could keep its reader for ever. Not to wait for a pipe's writer either, it is opened
// without blocking.
base::Result<std::string> read_small_file(const std::string& path) {
  const auto cannot = [&](base::ErrorCode code, const std::string& what) { return base::make_error(code, what).with_file(path); };
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return cannot(base::ErrorCode::not_found, std::string("cannot open: ") + std::strerror(errno));
  struct stat facts = {};
  int reason = fstat(file, &facts) != 0 ? errno : S_ISDIR(facts.st_mode) ? EISDIR : 0;
  const bool is_regular = S_ISREG(facts.st_mode);
  std::string text;
  std::array<char, 65536> buffer;
  while (reason == 0 && is_regular && text.size() <= kMaxFileBytes) {
    const ssize_t count = read(file, buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    else if (count == 0) break;
    else if (errno != EINTR) reason = errno;
  }
  close(file);
  if (reason != 0) return cannot(base::ErrorCode::io, std::string("cannot read: ") + std::strerror(reason));
  if (!is_regular) return cannot(base::ErrorCode::io, "cannot read: not a regular file");
  if (text.size() > kMaxFileBytes) return cannot(base::ErrorCode::limit, "a fused-MoE configuration is larger than 1 MiB");
  return text;
}

}  // namespace

std::string moe_config_device(std::string_view device_name) {
  std::string device(device_name);
  std::replace(device.begin(), device.end(), ' ', '_');
  for (std::size_t begin = 0; begin <= device.size();) {
    const std::size_t end = std::min(device.find('_', begin), device.size());
    if (std::string_view(device).substr(begin, end - begin) == "H200") return "NVIDIA_H200";
    begin = end + 1;
  }
  return device;
}

std::string moe_config_file_name(const MoeConfigKey& key) {
  std::string name = "E=" + std::to_string(key.experts) + ",N=" + std::to_string(key.n) + ",device_name=" + key.device;
  if (!key.dtype.empty()) name += ",dtype=" + key.dtype;
  if (!key.block_shape.empty()) {
    name += ",block_shape=[";
    for (std::size_t i = 0; i < key.block_shape.size(); ++i) name += (i == 0 ? "" : ",") + std::to_string(key.block_shape[i]);
    name += "]";
  }
  return name + ".json";
}

std::optional<MoeConfigKey> parse_moe_config_file_name(std::string_view name) {
  MoeConfigKey key;
  const auto take = [&](std::string_view prefix) {
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    return true;
  };
  const auto number = [&](std::int64_t& value) {
    const std::size_t end = std::min(name.find_first_not_of("0123456789"), name.size());
    const std::optional<std::int64_t> parsed = parse_integer(name.substr(0, end), kMaxTokens);
    if (!parsed) return false;
    value = *parsed;
    name.remove_prefix(end);
    return true;
  };
  if (!name.ends_with(".json")) return std::nullopt;
  name.remove_suffix(5);
  if (!take("E=") || !number(key.experts) || !take(",N=") || !number(key.n) || !take(",device_name=")) return std::nullopt;
  if (const std::size_t shape = name.find(",block_shape=["); shape != std::string_view::npos) {
    std::string_view list = name.substr(shape + 14);
    if (!list.ends_with("]")) return std::nullopt;
    list.remove_suffix(1);
    for (;;) {
      const std::size_t comma = list.find(',');
      const std::optional<std::int64_t> value = parse_integer(list.substr(0, comma), kMaxNumber);
      if (!value || key.block_shape.size() >= 8) return std::nullopt;
      key.block_shape.push_back(*value);
      if (comma == std::string_view::npos) break;
      list.remove_prefix(comma + 1);
    }
    name = name.substr(0, shape);
  }
  if (const std::size_t dtype = name.find(",dtype="); dtype != std::string_view::npos) {
    key.dtype = name.substr(dtype + 7);
    if (key.dtype.empty()) return std::nullopt;
    name = name.substr(0, dtype);
  }
  if (name.empty() || name.find(',') != std::string_view::npos || key.dtype.find(',') != std::string::npos) return std::nullopt;
  key.device = name;
  return key;
}

base::Result<MoeConfigsByTokens> parse_moe_config(std::string_view text) {
  return Reader(text).run();
}

std::string format_moe_config(const MoeConfigsByTokens& configs) {
  std::string text = "{\n";
  std::size_t written = 0;
  for (const auto& [tokens, c] : configs) {
    const auto line = [&](std::string_view name, std::int32_t value, std::string_view end) {
      text += "        \"" + std::string(name) + "\": " + std::to_string(value) + std::string(end);
    };
    text += "    \"" + std::to_string(tokens) + "\": {\n";
    line("BLOCK_SIZE_M", c.block_m, ",\n");
    line("BLOCK_SIZE_N", c.block_n, ",\n");
    line("BLOCK_SIZE_K", c.block_k, ",\n");
    line("GROUP_SIZE_M", c.group_m, ",\n");
    line("SPLIT_K", c.split_k, ",\n");
    line("num_warps", c.num_warps, ",\n");
    line("num_stages", c.num_stages, "\n");
    text += ++written < configs.size() ? "    },\n" : "    }\n";
  }
  return text + "}\n";
}

const MoeConfigsByTokens::value_type* nearest_moe_config(const MoeConfigsByTokens& configs, std::int64_t tokens) {
  const auto above = configs.lower_bound(tokens);
  if (above == configs.begin()) return above == configs.end() ? nullptr : &*above;
  const auto below = std::prev(above);
  if (above == configs.end()) return &*below;
  return tokens - below->first <= above->first - tokens ? &*below : &*above;
}

base::Result<MoeConfigDirectory> MoeConfigDirectory::read(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator entries(path, error);
  if (error) return base::make_error(base::ErrorCode::not_found, "cannot read the folder: " + error.message()).with_file(path);
  std::vector<std::string> names;
  for (const std::filesystem::directory_iterator end; entries != end;) {
    const std::string name = entries->path().filename().string();
    if (parse_moe_config_file_name(name)) names.push_back(name);
    if (names.size() > kMaxFiles)
      return base::make_error(base::ErrorCode::limit, "more than 10000 fused-MoE configurations").with_file(path);
    entries.increment(error);
    if (error) return base::make_error(base::ErrorCode::io, "cannot read the folder: " + error.message()).with_file(path);
  }
  if (names.empty())
    return base::make_error(base::ErrorCode::not_found,
                            "no fused-MoE configuration in the folder (E=...,N=...,device_name=....json)")
        .with_file(path);
  std::sort(names.begin(), names.end());
  MoeConfigDirectory directory;
  for (const std::string& name : names) {
    const std::string file = (std::filesystem::path(path) / name).string();
    base::Result<std::string> text = read_small_file(file);
    if (!text) return std::move(text).error();
    base::Result<MoeConfigsByTokens> configs = parse_moe_config(*text);
    if (!configs) return std::move(configs).error().with_file(file);
    directory.files_[*parse_moe_config_file_name(name)] = File{file, std::move(*configs)};
  }
  return directory;
}

const MoeConfigDirectory::File* MoeConfigDirectory::find(const MoeConfigKey& key) const {
  const auto it = files_.find(key);
  return it == files_.end() ? nullptr : &it->second;
}

}  // namespace cglint::tables
