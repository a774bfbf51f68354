// For functions that return the first CUDA status that is not cudaSuccess.
#pragma once

#define CGLINT_RETURN_IF_ERROR(call)                                                \
  do {                                                                              \
    if (const cudaError_t status_ = (call); status_ != cudaSuccess) return status_; \
  } while (false)
