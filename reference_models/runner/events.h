// What the runner tells its parent: JSON objects, one a line, on standard output.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cglint::models {

// One line; written and flushed when it is destroyed.
class Event {
 public:
  explicit Event(std::string_view name);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Event& text(std::string_view key, std::string_view value);
  Event& number(std::string_view key, double value);
  Event& integer(std::string_view key, std::int64_t value);
  Event& boolean(std::string_view key, bool value);
  // `value` is JSON already.
  Event& raw(std::string_view key, std::string_view value);

 private:
  std::string line_;
};

std::string json_quoted(std::string_view text);
// Null where it is not finite.
std::string json_number(double value);

}  // namespace cglint::models
