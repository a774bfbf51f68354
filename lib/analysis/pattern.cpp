#include "analysis/pattern.h"

#include <re2/re2.h>

namespace cglint::analysis {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::int64_t kMaxMemoryBytes = 1 << 20;

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

base::Result<Pattern> Pattern::compile(std::string_view source) {
  if (source.size() > kMaxPatternBytes)
    return base::make_error(base::ErrorCode::limit, "the pattern is longer than 4096 bytes");
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // names may hold any bytes
  options.set_max_mem(kMaxMemoryBytes);
  auto expression = std::make_shared<const re2::RE2>(piece(source), options);
  if (!expression->ok()) {
    const bool too_large = expression->error_code() == re2::RE2::ErrorPatternTooLarge;
    return base::make_error(too_large ? base::ErrorCode::limit : base::ErrorCode::malformed, expression->error());
  }
  Pattern pattern;
  pattern.expression_ = std::move(expression);
  return pattern;
}

bool Pattern::matches(std::string_view text) const { return re2::RE2::PartialMatch(piece(text), *expression_); }

const std::string& Pattern::source() const { return expression_->pattern(); }

}  // namespace cglint::analysis
