#include "runner/events.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>

namespace cglint::models {

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape.data();
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

Event::Event(std::string_view name) : line_("{\"event\":" + json_quoted(name)) {}

Event::~Event() {
  line_ += "}\n";
  // Whole lines: the parent may be gone, which the next read of its orders shows.
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, line_.data(), line_.size());
}

Event& Event::text(std::string_view key, std::string_view value) {
  return raw(key, json_quoted(value));
}
Event& Event::number(std::string_view key, double value) {
  return raw(key, json_number(value));
}
Event& Event::integer(std::string_view key, std::int64_t value) {
  return raw(key, std::to_string(value));
}
Event& Event::boolean(std::string_view key, bool value) {
  return raw(key, value ? "true" : "false");
}
Event& Event::raw(std::string_view key, std::string_view value) {
  line_ += ',';
  line_ += json_quoted(key);
  line_ += ':';
  line_ += value;
  return *this;
}

}  // namespace cglint::models
