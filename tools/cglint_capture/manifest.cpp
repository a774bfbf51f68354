#include "manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <toml++/toml.h>

namespace cglint::capture_tool {
namespace {

// Sorted; the error says what is wrong.
base::Result<std::vector<std::string>> codes_of(const toml::key& key, const toml::node& content) {
  static const std::regex kCode("CG[0-9]{3}");
  const toml::array* const list = content.as_array();
  if (list == nullptr) return base::make_error(base::ErrorCode::malformed, fmt::format("{} is a list", key.str()));
  std::vector<std::string> codes;
  for (const auto& code : *list) {
    const auto word = code.value<std::string>();
    if (!word || !std::regex_match(*word, kCode)) return base::make_error(base::ErrorCode::malformed, fmt::format("{} are texts like \"CG101\"", key.str()));
    codes.push_back(*word);
  }
  std::sort(codes.begin(), codes.end());
  return codes;
}

}  // namespace

base::Result<Manifest> Manifest::parse(std::string_view text, std::string_view name) {
  const auto wrong = [&](std::uint32_t line, std::string_view what) {
    return base::make_error(base::ErrorCode::malformed, fmt::format("line {}: {}", line, what)).with_file(name);
  };
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return wrong(error.source().begin.line, error.description());
  }
  Manifest manifest;
  for (const auto& [key, value] : table) {
    const std::uint32_t line = key.source().begin.line;
    if (key == "summary") continue;  // for readers
    if (key == "sources") {
      const toml::array* const list = value.as_array();
      if (list == nullptr || !list->is_homogeneous<std::string>()) return wrong(line, "sources is a list of texts");
      for (const auto& item : *list) manifest.sources_.push_back(*item.value<std::string>());
      continue;
    }
    if (key == "layers") {
      const toml::table* const presets = value.as_table();
      if (presets == nullptr) return wrong(line, "layers is a table: {preset = number}");
      for (const auto& [preset, number] : *presets) {
        const auto* const count = number.as_integer();
        if (count == nullptr || count->get() < 1 || count->get() > 1024) return wrong(line, "a preset has 1 to 1024 layers");
        manifest.layers_.emplace(preset.str(), static_cast<int>(count->get()));
      }
      continue;
    }
    if (key == "checked") {
      auto codes = codes_of(key, value);
      if (!codes) return wrong(line, codes.error().message);
      manifest.checked_ = std::move(*codes);
      continue;
    }
    if (key == "recordings") {
      static const std::regex kName(R"((\*|[^.*]+)\.[^.*]+\.b\d{1,5}(\.l\d{1,4})?(\.beside-[^.*]+)?)");
      const toml::array* const list = value.as_array();
      if (list == nullptr) return wrong(line, "recordings is a list");
      for (const auto& item : *list) {
        const auto word = item.value<std::string>();
        if (!word || !std::regex_match(*word, kName)) return wrong(line, "recordings are texts like \"VARIANT.PRESET.b1.l8\" or \"*.PRESET.b1.l8\"");
        manifest.recordings_.push_back(*word);
      }
      continue;
    }
    if (key != "expect") return wrong(line, fmt::format("unknown key '{}'", key.str()));
    const toml::array* const list = value.as_array();
    if (list == nullptr || !list->is_array_of_tables()) return wrong(line, "expect is an array of tables: [[expect]]");
    for (const auto& item : *list) {
      const toml::table& fields = *item.as_table();
      Entry entry;
      std::vector<std::string> variants;
      for (const auto& [field, content] : fields) {
        const std::uint32_t at = field.source().begin.line;
        const auto* const number = content.as_integer();
        const bool is_count = number != nullptr && number->get() >= 0 && number->get() < (std::int64_t{1} << 30);
        if (field == "variant") {
          if (const auto one = content.value<std::string>()) {
            variants.push_back(*one);
          } else if (const toml::array* const several = content.as_array(); several != nullptr && several->is_homogeneous<std::string>()) {
            for (const auto& one_of : *several) variants.push_back(*one_of.value<std::string>());
          } else {
            return wrong(at, "variant is a text or a list of texts");
          }
        } else if (field == "preset" || field == "beside") {
          const auto word = content.value<std::string>();
          if (!word) return wrong(at, fmt::format("{} is a text", field.str()));
          (field == "preset" ? entry.preset : entry.beside) = *word;
        } else if (field == "codes" || field == "checked") {
          auto codes = codes_of(field, content);
          if (!codes) return wrong(at, codes.error().message);
          (field == "codes" ? entry.codes : entry.checked) = std::move(*codes);
        } else if (field == "batch_min" || field == "batch_max" || field == "layers_min" || field == "streams" || field == "streams_per_layer") {
          if (!is_count) return wrong(at, fmt::format("{} is a number, 0 or more", field.str()));
          if (field == "batch_min") entry.batch_min = static_cast<int>(number->get());
          if (field == "batch_max") entry.batch_max = static_cast<int>(number->get());
          if (field == "layers_min") entry.layers_min = static_cast<int>(number->get());
          if (field == "streams") entry.streams = static_cast<std::uint32_t>(number->get());
          if (field == "streams_per_layer") entry.streams_per_layer = static_cast<std::uint32_t>(number->get());
        } else if (field != "note") {
          return wrong(at, fmt::format("unknown key '{}'", field.str()));
        }
      }
      if (variants.empty()) return wrong(item.source().begin.line, "an entry needs a variant");
      for (const std::string& variant : variants) manifest.variants_[variant].push_back(entry);
    }
  }
  return manifest;
}

std::optional<Expectation> Manifest::expected(const RunKey& run) const {
  const auto found = variants_.find(run.variant);
  if (found == variants_.end()) return std::nullopt;
  std::optional<Expectation> result;
  for (const Entry& entry : found->second) {
    if ((!entry.preset.empty() && entry.preset != run.preset) || entry.beside != run.beside || run.batch < entry.batch_min || run.batch > entry.batch_max ||
        run.layers < entry.layers_min)
      continue;
    if (!result) result.emplace().checked = checked_;
    if (entry.codes) result->codes = *entry.codes;
    if (entry.checked) result->checked = *entry.checked;
    if (entry.streams) result->streams = entry.streams;
    if (entry.streams_per_layer) result->streams_per_layer = *entry.streams_per_layer;
  }
  return result;
}

std::optional<std::uint32_t> Manifest::expected_streams(const Expectation& expectation, const RunKey& run) {
  if (!expectation.streams) return std::nullopt;
  const std::int64_t streams = std::int64_t{*expectation.streams} -
                               std::int64_t{expectation.streams_per_layer} * (run.published_layers - run.layers);
  return static_cast<std::uint32_t>(std::max<std::int64_t>(streams, 1));
}

int Manifest::layers_of(std::string_view preset) const {
  const auto found = layers_.find(preset);
  return found == layers_.end() ? 0 : found->second;
}

std::vector<std::string> Manifest::variants() const {
  std::vector<std::string> names;
  for (const auto& [name, entries] : variants_) names.push_back(name);
  return names;
}

std::vector<std::string> Manifest::recordings() const {
  std::vector<std::string> names;
  for (const std::string& name : recordings_) {
    if (!name.starts_with('*')) names.push_back(name);
    else for (const auto& [variant, entries] : variants_) names.push_back(variant + name.substr(1));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cglint::capture_tool
