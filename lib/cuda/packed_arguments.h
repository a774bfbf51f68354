// A kernel's arguments in their packed form.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>

namespace cglint::cuda {

// `extra` of a launch or of a kernel node: CU_LAUNCH_PARAM_BUFFER_POINTER, pointer, ..._SIZE, &size, ..._END. The bytes are the caller's. Empty
// if one of the two is missing or something else is asked for: what it means for the buffer is not known.
inline std::span<const unsigned char> packed_arguments(void** extra) {
  const void *bytes = nullptr, *size = nullptr;
  constexpr int kMostEntries = 8;
  for (int i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    const bool is_pointer = extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER;
    if (i == kMostEntries || (!is_pointer && extra[i] != CU_LAUNCH_PARAM_BUFFER_SIZE)) return {};
    (is_pointer ? bytes : size) = extra[i + 1];
  }
  if (bytes == nullptr || size == nullptr) return {};
  return {static_cast<const unsigned char*>(bytes), *static_cast<const std::size_t*>(size)};
}

}  // namespace cglint::cuda
