// What libFuzzer calls to change an input, for targets whose input is text: two of three times a change of
// text_mutator.h, else its own changes of bytes, which also use the dictionary. The first CGLINT_FUZZ_PREFIX
// bytes are no text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text_mutator.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::size_t kPrefix = CGLINT_FUZZ_PREFIX;

std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return size <= kPrefix ? std::string_view()
                         : std::string_view(reinterpret_cast<const char*>(data) + kPrefix, size - kPrefix);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  if (seed % 3 == 0 || size <= kPrefix || max_size <= kPrefix) return LLVMFuzzerMutate(data, size, max_size);
  const std::string text = cglint::fuzz::mutate_text(text_of(data, size), {}, max_size - kPrefix, seed);
  std::copy(text.begin(), text.end(), data + kPrefix);
  return kPrefix + text.size();
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data1, std::size_t size1,
                                                 const std::uint8_t* data2, std::size_t size2,
                                                 std::uint8_t* out, std::size_t max_size, unsigned seed) {
  if (size1 < kPrefix || max_size < kPrefix) return 0;
  const std::string text =
      cglint::fuzz::mutate_text(text_of(data1, size1), text_of(data2, size2), max_size - kPrefix, seed);
  std::copy_n(data1, kPrefix, out);
  std::copy(text.begin(), text.end(), out + kPrefix);
  return kPrefix + text.size();
}
