// A kernel's arguments as the driver gives them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cglint::models {

// The bytes of the argument in `slot`, from one pointer each (`params`) or packed, where it lies at an offset
// (`extra`: CU_LAUNCH_PARAM_BUFFER_POINTER, pointer, ..._SIZE, &size, ..._END). Null: it is not in there, or what `extra` says is not understood.
const std::uint8_t* argument_of(void** params, void** extra, std::size_t slot, std::size_t offset, std::size_t bytes);

}  // namespace cglint::models
