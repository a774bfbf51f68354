// Kernel launches shared by all reference kernels: one stream, optionally with a programmatic edge.
//
// A launch function of these kernels takes a LaunchContext, allocates nothing, never synchronises and uses
// no stream but the one given, so it may be called while that stream is being captured. Every workspace is
// the caller's. The returned status is that of the launch, not of the kernel's execution.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace cglint::kernels {

// Where and how to launch. Cheap to copy; owns nothing.
struct LaunchContext {
  cudaStream_t stream = nullptr;
  // Launch with programmatic stream serialization: the kernel may start before its predecessor in the stream
  // has finished, and orders itself with pdl_wait(). Needs compute capability 9.0 (device_supports_pdl).
  bool pdl = false;
};

// True if `device` accepts programmatic dependent launches. False also where the device cannot be queried.
inline bool device_supports_pdl(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

// Asks for as much shared memory as a multiprocessor can have. Kernels of which blocks are to run side by side all ask for it:
// a multiprocessor that changes the division between shared memory and L1 must be idle first.
template <typename... Params>
[[nodiscard]] cudaError_t prefer_shared_memory(void (*kernel)(Params...)) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// Launches `kernel` in clusters of `cluster_y` blocks along y, of which gridDim.y must be a multiple; above 1 that needs compute
// capability 9.0, up to 8 run everywhere there. `smem_bytes` is dynamic shared memory. Beyond 48 KiB, the kernel's static shared memory
// included, the limit must be raised first; 40 KiB leave room for the static part of any kernel here.
// Arguments are converted to the kernel's parameter types.
template <typename... Params, typename... Args>
[[nodiscard]] cudaError_t launch_in_clusters(const LaunchContext& ctx, void (*kernel)(Params...), dim3 grid,
                                             unsigned cluster_y, dim3 block, size_t smem_bytes, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each kernel parameter");
  if (smem_bytes > 40u * 1024u) {
    const cudaError_t status =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem_bytes));
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (ctx.pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster_y > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {1, cluster_y, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = ctx.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}
template <typename... Params, typename... Args>
[[nodiscard]] cudaError_t launch(const LaunchContext& ctx, void (*kernel)(Params...), dim3 grid, dim3 block,
                                 size_t smem_bytes, Args&&... args) {
  return launch_in_clusters(ctx, kernel, grid, 1, block, smem_bytes, std::forward<Args>(args)...);
}

}  // namespace cglint::kernels
