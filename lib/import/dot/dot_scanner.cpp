#include "import/dot/dot_scanner.h"

#include <array>

namespace cglint::import::dot {
namespace {

constexpr std::array<bool, 256> make_word_table() {
  std::array<bool, 256> table{};
  for (int c = 'a'; c <= 'z'; ++c) table[static_cast<std::size_t>(c)] = true;
  for (int c = 'A'; c <= 'Z'; ++c) table[static_cast<std::size_t>(c)] = true;
  for (int c = '0'; c <= '9'; ++c) table[static_cast<std::size_t>(c)] = true;
  for (std::size_t c = 128; c < 256; ++c) table[c] = true;
  table['_'] = true;
  table['.'] = true;
  return table;
}
constexpr std::array<bool, 256> kWord = make_word_table();

bool is_word(char c) { return kWord[static_cast<unsigned char>(c)]; }
bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

}  // namespace

Token Scanner::next() {
  if (has_peeked_) {
    has_peeked_ = false;
    return peeked_;
  }
  return scan();
}

bool Scanner::skip_blanks() {
  while (position_ < bytes_.size()) {
    const char c = bytes_[position_];
    if (is_blank(c)) {
      ++position_;
    } else if (c == '#' || (c == '/' && position_ + 1 < bytes_.size() && bytes_[position_ + 1] == '/')) {
      const std::size_t newline = bytes_.find('\n', position_);
      position_ = newline == std::string_view::npos ? bytes_.size() : newline + 1;
    } else if (c == '/' && position_ + 1 < bytes_.size() && bytes_[position_ + 1] == '*') {
      const std::size_t close = bytes_.find("*/", position_ + 2);
      if (close == std::string_view::npos) return false;
      position_ = close + 2;
    } else {
      break;
    }
  }
  return true;
}

Token Scanner::scan() {
  Token token;
  if (!skip_blanks()) {
    token.kind = Token::Kind::bad;
    token.offset = position_;
    token.text = "an unterminated comment";
    position_ = bytes_.size();
    return token;
  }
  token.offset = position_;
  if (position_ >= bytes_.size()) return token;
  const char c = bytes_[position_];
  switch (c) {
    case '{': case '}': case '[': case ']': case '=': case ';': case ',': case ':':
      token.kind = Token::Kind::punctuation;
      token.text = bytes_.substr(position_, 1);
      ++position_;
      return token;
    case '"': {
      std::size_t at = position_ + 1;
      while (true) {
        at = bytes_.find_first_of("\"\\", at);
        if (at == std::string_view::npos) {
          token.kind = Token::Kind::bad;
          token.text = "an unterminated string";
          position_ = bytes_.size();
          return token;
        }
        if (bytes_[at] == '"') break;
        at += 2;  // an escaped character, whatever it is
      }
      token.kind = Token::Kind::quoted;
      token.text = bytes_.substr(position_ + 1, at - position_ - 1);
      position_ = at + 1;
      return limited(token);
    }
    case '<': {
      std::size_t depth = 0;
      std::size_t at = position_;
      for (; at < bytes_.size(); ++at) {
        if (bytes_[at] == '<') ++depth;
        if (bytes_[at] == '>' && --depth == 0) break;
      }
      if (at >= bytes_.size()) {
        token.kind = Token::Kind::bad;
        token.text = "an unterminated HTML string";
        position_ = bytes_.size();
        return token;
      }
      token.kind = Token::Kind::html;
      token.text = bytes_.substr(position_ + 1, at - position_ - 1);
      position_ = at + 1;
      return limited(token);
    }
    case '-':
      if (position_ + 1 < bytes_.size() && (bytes_[position_ + 1] == '>' || bytes_[position_ + 1] == '-')) {
        token.kind = bytes_[position_ + 1] == '>' ? Token::Kind::arrow : Token::Kind::line;
        token.text = bytes_.substr(position_, 2);
        position_ += 2;
        return token;
      }
      break;
    default: break;
  }
  std::size_t at = position_ + (c == '-' ? 1 : 0);
  while (at < bytes_.size() && is_word(bytes_[at])) ++at;
  if (at == position_ || (c == '-' && at == position_ + 1)) {
    token.kind = Token::Kind::bad;
    token.text = "an unexpected character";
    ++position_;
    return token;
  }
  token.kind = Token::Kind::id;
  token.text = bytes_.substr(position_, at - position_);
  position_ = at;
  return limited(token);
}

}  // namespace cglint::import::dot
