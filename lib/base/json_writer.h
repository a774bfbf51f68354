// A streaming JSON writer over a std::string: no tree, no exceptions of its own, no dependency but the
// standard library, so that a library injected into somebody's process can use it too. Integers are written
// exactly (64 bits), doubles as the shortest text that reads back to the same bits, and strings always come
// out as valid UTF-8: control characters (C0, DEL and C1) are escaped, bytes that are not UTF-8 become U+FFFD
// and are counted.
//
// The caller opens and closes objects and arrays in the right order; commas are the writer's business.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cglint::base {

class JsonWriter {
 public:
  // Appends to `out`, which must outlive the writer.
  explicit JsonWriter(std::string& out) : out_(&out) {}

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }

  void key(std::string_view name) {
    separate();
    append_string(name);
    *out_ += ':';
    need_comma_ = false;
  }

  void string(std::string_view text) {
    separate();
    append_string(text);
    need_comma_ = true;
  }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void number(T value) {
    separate();
    append_chars(value);
    need_comma_ = true;
  }
  // JSON has no infinities and no NaN: they become null.
  void number(double value) {
    separate();
    if (std::isfinite(value)) {
      append_chars(value);
    } else {
      *out_ += "null";
    }
    need_comma_ = true;
  }
  void boolean(bool value) {
    separate();
    *out_ += value ? "true" : "false";
    need_comma_ = true;
  }
  void null() {
    separate();
    *out_ += "null";
    need_comma_ = true;
  }
  // "0x1f": lower case, no leading zeros. For addresses, handles and hashes, which do not fit the 53 bits
  // that many JSON readers keep.
  void hex(std::uint64_t value) {
    separate();
    std::array<char, 20> buffer;
    buffer[0] = '"';
    buffer[1] = '0';
    buffer[2] = 'x';
    const auto end = std::to_chars(buffer.data() + 3, buffer.data() + buffer.size() - 1, value, 16).ptr;
    *end = '"';
    out_->append(buffer.data(), static_cast<std::size_t>(end + 1 - buffer.data()));
    need_comma_ = true;
  }
  // Text that is JSON already.
  void raw(std::string_view json) {
    separate();
    *out_ += json;
    need_comma_ = true;
  }

  void field(std::string_view name, std::string_view text) { key(name), string(text); }
  void field(std::string_view name, const char* text) { key(name), string(text); }
  void field(std::string_view name, bool value) { key(name), boolean(value); }
  void field(std::string_view name, double value) { key(name), number(value); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void field(std::string_view name, T value) {
    key(name), number(value);
  }
  void hex_field(std::string_view name, std::uint64_t value) { key(name), hex(value); }

  // Length of the well-formed UTF-8 sequence (Unicode 15, table 3-7) at the start of `text`, or 0; on 0,
  // `skip` is the number of bytes that one U+FFFD stands for (the maximal subpart).
  static std::size_t utf8_sequence_length(std::string_view text, std::size_t& skip) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    std::size_t length = 0;
    unsigned char low = 0x80, high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
      length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      length = 3;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;  // no surrogates
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      length = 4;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    skip = 1;
    if (length == 0) return 0;
    for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xbf) {
      if (i >= text.size() || byte(i) < low || byte(i) > high) return 0;
      skip = i + 1;
    }
    return length;
  }

  // Places in strings where bytes that were not UTF-8 were replaced, since the writer was made.
  [[nodiscard]] std::uint64_t invalid_utf8() const { return invalid_utf8_; }

 private:
  void separate() {
    if (need_comma_) *out_ += ',';
  }
  void open(char bracket) {
    separate();
    *out_ += bracket;
    need_comma_ = false;
  }
  void close(char bracket) {
    *out_ += bracket;
    need_comma_ = true;
  }
  template <typename T>
  void append_chars(T value) {
    std::array<char, 32> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
    out_->append(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  }

  static constexpr bool is_plain(unsigned char byte) {
    return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\';
  }
  void append_escape(unsigned code) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const std::array<char, 6> text = {'\\',
                                      'u',
                                      kDigits[(code >> 12) & 15],
                                      kDigits[(code >> 8) & 15],
                                      kDigits[(code >> 4) & 15],
                                      kDigits[code & 15]};
    out_->append(text.data(), text.size());
  }

  void append_string(std::string_view text) {
    *out_ += '"';
    std::size_t plain = 0;  // start of the bytes not yet copied
    std::size_t i = 0;
    while (i < text.size()) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (is_plain(byte)) {
        ++i;
        continue;
      }
      if (byte >= 0x80) {
        std::size_t skip = 0;
        const std::size_t length = utf8_sequence_length(text.substr(i), skip);
        if (length > 2 || (length == 2 && (byte != 0xc2 || static_cast<unsigned char>(text[i + 1]) > 0x9f))) {
          i += length;
          continue;
        }
        out_->append(text.data() + plain, i - plain);
        if (length == 2) {
          append_escape(static_cast<unsigned char>(text[i + 1]));
          i += 2;
        } else {
          *out_ += "\xef\xbf\xbd";
          ++invalid_utf8_;
          i += skip;
        }
        plain = i;
        continue;
      }
      out_->append(text.data() + plain, i - plain);
      switch (byte) {
        case '"':
          *out_ += "\\\"";
          break;
        case '\\':
          *out_ += "\\\\";
          break;
        case '\n':
          *out_ += "\\n";
          break;
        case '\r':
          *out_ += "\\r";
          break;
        case '\t':
          *out_ += "\\t";
          break;
        default:
          append_escape(byte);
          break;
      }
      plain = ++i;
    }
    out_->append(text.data() + plain, i - plain);
    *out_ += '"';
  }

  std::string* out_;
  bool need_comma_ = false;
  std::uint64_t invalid_utf8_ = 0;
};

}  // namespace cglint::base
