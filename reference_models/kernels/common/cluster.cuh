// Clusters of sm_90: blocks that run at the same time and reach each other's shared memory. Elsewhere kernels
// that name these are compiled and never launched in clusters.
#pragma once

#include "kernels/common/device.cuh"

namespace cglint::kernels {

// All threads of the cluster arrive, then wait for each other. What was written before a relaxed arrival need
// not be visible after the wait.
#ifdef CGLINT_SM90_CODE
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_arrive_relaxed() {}
__device__ __forceinline__ void cluster_wait() {}
#endif

}  // namespace cglint::kernels
