// Order between the streams of a step.
#pragma once

#include "stack/model.h"

namespace cglint::models {

// What is enqueued on `later` from here on waits for what was enqueued on `earlier` so far: an event record
// and an event wait, as engines' wait_stream.
[[nodiscard]] inline cudaError_t wait_stream(StepContext& context, cudaStream_t later, cudaStream_t earlier) {
  const cudaEvent_t event = context.next_event(context);
  if (event == nullptr) return cudaErrorMemoryAllocation;
  const cudaError_t status = cudaEventRecord(event, earlier);
  return status != cudaSuccess ? status : cudaStreamWaitEvent(later, event, 0);
}

}  // namespace cglint::models
