// Result<T>: a value or an Error. Spelled like std::expected so that it can be swapped for it later.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace cglint::base {

enum class ErrorCode : std::uint8_t {
  usage,          // the caller asked for something that does not exist or does not fit
  not_found,      // no such file
  io,             // the operating system refused a read or write
  unknown_format, // no importer recognises the bytes
  foreign_format, // recognised, but another product's format; the message names it
  malformed,      // the container is broken at `offset`
  unsupported,    // right format, newer major version or a feature that this build lacks
  limit,          // a stated limit (size, depth, ratio) was exceeded
  internal,       // our own failure
};

// One clear error: what, in which file, at which byte. Context is added on the way up with with_file().
struct Error {
  static constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

  ErrorCode code = ErrorCode::internal;
  std::string message;
  std::string file;                       // "" when no file is involved
  std::uint64_t offset_bytes = kNoOffset; // byte offset in the (decompressed) file

  // "file: message (at byte N)".
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] Error with_file(std::string_view name) && {
    if (file.empty()) file = name;
    return std::move(*this);
  }
};

inline Error make_error(ErrorCode code, std::string message, std::uint64_t offset_bytes = Error::kNoOffset) {
  return Error{code, std::move(message), {}, offset_bytes};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  [[nodiscard]] T& value() & {
    CGLINT_CHECK(has_value());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] const T& value() const& {
    CGLINT_CHECK(has_value());
    return *std::get_if<0>(&state_);
  }
  [[nodiscard]] T&& value() && {
    CGLINT_CHECK(has_value());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const& {
    CGLINT_CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }
  [[nodiscard]] Error&& error() && {
    CGLINT_CHECK(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}

  [[nodiscard]] bool has_value() const { return !failed_; }
  explicit operator bool() const { return !failed_; }
  [[nodiscard]] const Error& error() const& {
    CGLINT_CHECK(failed_);
    return error_;
  }
  [[nodiscard]] Error&& error() && {
    CGLINT_CHECK(failed_);
    return std::move(error_);
  }

 private:
  Error error_;
  bool failed_ = false;
};

}  // namespace cglint::base

// Evaluates `expression` (a Result) and returns its error from the enclosing function.
#define CGLINT_TRY(expression)                                   \
  do {                                                           \
    auto cglint_try_result = (expression);                       \
    if (!cglint_try_result) return std::move(cglint_try_result).error(); \
  } while (false)
