#include "runner/arguments.h"

#include <span>

#include "cuda/packed_arguments.h"

namespace cglint::models {

const std::uint8_t* argument_of(void** params, void** extra, std::size_t slot, std::size_t offset, std::size_t bytes) {
  if (params != nullptr) return static_cast<const std::uint8_t*>(params[slot]);
  const std::span<const unsigned char> packed = cuda::packed_arguments(extra);
  return offset + bytes > packed.size() ? nullptr : packed.data() + offset;
}

}  // namespace cglint::models
