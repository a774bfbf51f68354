// A scanner for the Graphviz language as far as graph dumps use it. Works over bytes in memory; tokens are views into
// them. One pass, no recursion, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cglint::import::dot {

struct Token {
  enum class Kind : std::uint8_t {
    end,
    id,         // bare word or number
    quoted,     // "..." : text without the quotes, escapes untouched; may hold real newlines
    html,       // <...> : text without the outer angle brackets
    arrow,      // ->
    line,       // --
    punctuation,  // one of { } [ ] = ; , :
    bad,        // unterminated string or comment, or a byte that starts no token
    too_long,   // a string or word beyond the limit
  };
  Kind kind = Kind::end;
  std::string_view text;
  std::size_t offset = 0;  // of the token's first byte

  [[nodiscard]] bool is(char c) const { return kind == Kind::punctuation && text.front() == c; }
  [[nodiscard]] bool is_name() const { return kind == Kind::id || kind == Kind::quoted || kind == Kind::html; }
};

class Scanner {
 public:
  explicit Scanner(std::string_view bytes, std::size_t begin = 0, std::uint64_t max_token_bytes = ~std::uint64_t{0})
      : bytes_(bytes), position_(begin), max_token_bytes_(max_token_bytes) {}
  Token next();
  // The token that next() will give.
  const Token& peek() {
    if (!has_peeked_) {
      peeked_ = scan();
      has_peeked_ = true;
    }
    return peeked_;
  }

 private:
  Token scan();
  Token limited(Token token) const {
    if (token.text.size() > max_token_bytes_) token.kind = Token::Kind::too_long;
    return token;
  }
  // Skips blanks and comments; false for a comment that does not end (its offset in `position_`).
  bool skip_blanks();

  std::string_view bytes_;
  std::size_t position_;
  std::uint64_t max_token_bytes_;
  Token peeked_;
  bool has_peeked_ = false;
};

}  // namespace cglint::import::dot
