#include "base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace cglint::base {
namespace {

// Length of the valid UTF-8 sequence at the start of `text`, 0 if invalid.
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) { return i < text.size() && (byte(i) & 0xC0U) == 0x80U; };
  if (text.empty()) return 0;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!continues(1) || !continues(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogates
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    if (lead == 0xF0 && byte(1) < 0x90) return 0;
    if (lead == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

// U+200E, U+200F, U+202A..U+202E, U+2066..U+2069.
bool is_bidi_control(std::string_view sequence) {
  const auto b1 = static_cast<unsigned char>(sequence[1]), b2 = static_cast<unsigned char>(sequence[2]);
  if (static_cast<unsigned char>(sequence[0]) != 0xE2) return false;
  return (b1 == 0x80 && (b2 == 0x8E || b2 == 0x8F || (b2 >= 0xAA && b2 <= 0xAE))) || (b1 == 0x81 && b2 >= 0xA6 && b2 <= 0xA9);
}

std::string escape(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_sequence(text.substr(i));
    // U+0080..U+009F are terminal controls too.
    const bool c1_control = length == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (length == 3 && is_bidi_control(text.substr(i, 3))) {  // would reorder what a reader sees
      for (std::size_t k = 0; k < 3; ++k) {
        out += "\\x";
        out += kHex[static_cast<unsigned char>(text[i + k]) >> 4U];
        out += kHex[static_cast<unsigned char>(text[i + k]) & 15U];
      }
      i += 3;
      continue;
    }
    if (length == 0 || c < 0x20 || c == 0x7F || c1_control) {
      out += "\\x";
      out += kHex[c >> 4U];
      out += kHex[c & 15U];
      ++i;
      continue;
    }
    out.append(text.substr(i, length));
    i += length;
  }
  return out;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours count one each.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes && max_bytes >= 8) {
    std::size_t head = (max_bytes - 3) * 2 / 3;
    std::size_t tail = text.size() - (max_bytes - 3 - head);
    while (head > 0 && (static_cast<unsigned char>(text[head]) & 0xC0U) == 0x80U) --head;
    while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xC0U) == 0x80U) ++tail;
    return escape(text.substr(0, head)) + "..." + escape(text.substr(tail));
  }
  return escape(text);
}

std::string_view closest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = word.size() / 3 + 1;
  if (word.size() > 200) return best;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string count_of(std::size_t count, std::string_view word, std::string_view plural) {
  std::string text = std::to_string(count) + ' ';
  if (count == 1) return text.append(word);
  if (!plural.empty()) return text.append(plural);
  return text.append(word) + 's';
}

bool is_valid_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t length = utf8_sequence(bytes.substr(i, 4));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

}  // namespace cglint::base
