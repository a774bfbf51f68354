#include "base/toml_check.h"

#include <string>

#include "base/text.h"

namespace cglint::base {
namespace {

bool is_key_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '"' || c == '\'';
}

}  // namespace

Result<void> check_toml_text(std::string_view text) {
  std::size_t line = 1;
  std::string open;  // brackets, the innermost last
  bool line_start = true;
  const auto wrong = [&](std::string_view what) {
    return make_error(ErrorCode::malformed, "line " + std::to_string(line) + ": " + std::string(what));
  };
  if (!is_valid_utf8(text)) {
    // The first line that is not valid by itself.
    while (!text.empty()) {
      const std::string_view one = text.substr(0, text.find('\n'));
      if (!is_valid_utf8(one)) break;
      text.remove_prefix(one.size() + 1);
      ++line;
    }
    return wrong("the text is not UTF-8");
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      line_start = true;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r') continue;
    if (static_cast<unsigned char>(c) >= 0x80 && !(i == 0 && text.starts_with("\xef\xbb\xbf")))
      return wrong("a character beyond ASCII outside strings and comments");
    if (static_cast<unsigned char>(c) >= 0x80) {  // the byte order mark
      i += 2;
      continue;
    }
    if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      continue;
    }
    if (c == '"' || c == '\'') {
      const bool multi = text.substr(i).starts_with(c == '"' ? "\"\"\"" : "'''");
      i += multi ? 3 : 1;
      for (; i < text.size(); ++i) {
        if (text[i] == '\n') {
          if (!multi) break;  // the parser says that it is not closed
          ++line;
        } else if (c == '"' && text[i] == '\\') {
          if (i + 1 < text.size() && text[i + 1] == '\n') ++line;
          ++i;
        } else if (text[i] == c && (!multi || text.substr(i).starts_with(c == '"' ? "\"\"\"" : "'''"))) {
          if (multi) {
            i += 2;
            while (i + 1 < text.size() && text[i + 1] == c) ++i;  // up to two quotes may stand before the closing ones
          }
          break;
        }
      }
      if (i < text.size() && text[i] == '\n') --i;  // counted by the loop
      line_start = false;
      continue;
    }
    if (c == '[' && line_start && open.empty()) {
      std::size_t key = i + 1;
      const auto skip_blanks = [&] {
        while (key < text.size() && (text[key] == ' ' || text[key] == '\t')) ++key;
      };
      skip_blanks();
      if (key < text.size() && text[key] == '[') {
        ++key;
        skip_blanks();
      }
      if (key < text.size() && text[key] != ']' && !is_key_start(text[key])) return wrong("a table's name was expected behind '['");
    }
    if (c == '}' && !open.empty() && open.back() == '[') return wrong("'}' in an array that was not closed");
    if (c == '[' || c == '{') open += c;
    if ((c == ']' || c == '}') && !open.empty()) open.pop_back();
    line_start = false;
  }
  return {};
}

}  // namespace cglint::base
