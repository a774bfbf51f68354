// Tensor maps of sm_90: matrices whose boxes a single thread copies to shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/buffer.h"

namespace cglint::kernels {

// Whether the driver can make tensor maps. Looked up once; touches no stream and no memory of the device.
[[nodiscard]] bool can_encode_tensor_maps();

// Describes the contiguous matrix `data` of [rows, columns] in boxes of box_rows x 64 columns, which are copied with 128-byte
// swizzle: of a row's eight pieces of 16 bytes, piece i lies where piece i ^ (row % 8) would. `data` is 16-byte aligned and on
// the device, `columns` a multiple of 8, `rows` below 2^31, `box_rows` 1..256. False where the driver refuses or cannot.
[[nodiscard]] bool encode_tensor_map(CUtensorMap& map, const bf16* data, int64_t rows, int columns, int box_rows);

}  // namespace cglint::kernels
