#include "runner/arguments.h"

#include <cuda.h>

namespace cglint::models {

const std::uint8_t* argument_of(void** params, void** extra, std::size_t slot, std::size_t offset, std::size_t bytes) {
  if (params != nullptr) return static_cast<const std::uint8_t*>(params[slot]);
  const void *packed = nullptr, *size = nullptr;
  constexpr int kMostEntries = 8;
  for (int i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    const bool is_pointer = extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER;
    if (i == kMostEntries || (!is_pointer && extra[i] != CU_LAUNCH_PARAM_BUFFER_SIZE)) return nullptr;
    (is_pointer ? packed : size) = extra[i + 1];
  }
  if (packed == nullptr || size == nullptr || offset + bytes > *static_cast<const std::size_t*>(size)) return nullptr;
  return static_cast<const std::uint8_t*>(packed) + offset;
}

}  // namespace cglint::models
