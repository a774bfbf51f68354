#include <cmath>
#include <limits>

#include "kernels/common/buffer.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/moe/reference.h"

namespace cglint::kernels::moe {
namespace {

constexpr int kThreads = 256;

__device__ float element(WeightType type, const void* data, int64_t at) {
  return type == WeightType::kBf16 ? __bfloat162float(static_cast<const bf16*>(data)[at])
                                   : static_cast<float>(static_cast<const fp8_e4m3*>(data)[at]);
}

__global__ void reference_moe_gemm_kernel(WeightType type, ReferenceGemmArgs a) {
  const int64_t output = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (output >= static_cast<int64_t>(a.pairs) * a.n) return;
  const int pair = static_cast<int>(output / a.n);
  const int n = static_cast<int>(output % a.n);
  const int expert = a.experts == nullptr ? 0 : a.experts[pair];
  if (expert < 0) return;
  const int64_t x_row = pair / a.row_divisor;
  const int64_t w_row = static_cast<int64_t>(expert) * a.n + n;
  const int scale_columns = (a.k + 127) / 128;
  const int scale_rows = (a.n + 127) / 128;
  float sum = 0.0f;
  for (int k = lane; k < a.k; k += 32) {
    const bool wide = a.x_fp32 != nullptr;
    const float x = wide ? a.x_fp32[x_row * a.k + k] : element(type, a.x, x_row * a.k + k);
    float product = x * element(type, a.w, w_row * a.k + k);
    if (type == WeightType::kFp8Block128) {
      if (!wide) product *= a.x_scale[x_row * scale_columns + k / 128];
      product *= a.w_scale[(static_cast<int64_t>(expert) * scale_rows + n / 128) * scale_columns + k / 128];
    }
    sum += product;
  }
  sum = warp_sum(sum);
  if (lane == 0) a.out[output] = sum;
}

struct ErrorSums {
  double largest[kThreads];
  double squares[kThreads];
  int not_finite[kThreads];
};

// One block; thread i scores every kThreads-th element.
__global__ void device_error_kernel(const bf16* rounded, const float* partials, int splits, const float* want,
                                    const int32_t* experts, int rows, int columns, ErrorSums* sums) {
  const int64_t count = static_cast<int64_t>(rows) * columns;
  double largest = 0;
  double squares = 0;
  int not_finite = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    if (experts != nullptr && experts[i / columns] < 0) continue;
    float got = 0.0f;
    if (rounded != nullptr) {
      got = __bfloat162float(rounded[i]);
    } else {
      for (int s = 0; s < splits; ++s) got += partials[s * count + i];
    }
    const double difference = fabs(static_cast<double>(got) - static_cast<double>(want[i]));
    if (!isfinite(difference)) not_finite = 1;
    largest = difference > largest ? difference : largest;
    squares += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  ErrorSums& mine = sums[blockIdx.x];
  mine.largest[threadIdx.x] = largest;
  mine.squares[threadIdx.x] = squares;
  mine.not_finite[threadIdx.x] = not_finite;
}

double measure_error(const bf16* rounded, const float* partials, int splits, const float* want,
                     const int32_t* experts, int rows, int columns) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr int kBlocks = 128;
  DeviceBuffer<ErrorSums> sums;
  std::vector<ErrorSums> host;
  std::vector<int32_t> host_experts(static_cast<size_t>(rows), 0);
  if (rows < 1 || sums.allocate(kBlocks) != cudaSuccess) return kInfinity;
  if (experts != nullptr && cudaMemcpy(host_experts.data(), experts, host_experts.size() * sizeof(int32_t),
                                       cudaMemcpyDeviceToHost) != cudaSuccess) {
    return kInfinity;
  }
  if (launch({}, device_error_kernel, dim3(kBlocks), dim3(kThreads), 0, rounded, partials, splits, want,
             experts, rows, columns, sums.get()) != cudaSuccess ||
      sums.download(host) != cudaSuccess) {
    return kInfinity;
  }
  double largest = 0;
  double squares = 0;
  for (const ErrorSums& block : host) {
    for (int i = 0; i < kThreads; ++i) {
      if (block.not_finite[i] != 0) return kInfinity;
      largest = block.largest[i] > largest ? block.largest[i] : largest;
      squares += block.squares[i];
    }
  }
  double scored_rows = 0;
  for (const int32_t expert : host_experts) scored_rows += expert >= 0 ? 1 : 0;
  if (squares == 0) return kInfinity;
  return largest / std::sqrt(squares / (scored_rows * columns));
}

}  // namespace

cudaError_t reference_moe_gemm(WeightType type, const ReferenceGemmArgs& args) {
  const int64_t threads = static_cast<int64_t>(args.pairs) * args.n * 32;
  const cudaError_t status =
      launch({}, reference_moe_gemm_kernel, dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
             dim3(kThreads), 0, type, args);
  return status != cudaSuccess ? status : cudaDeviceSynchronize();
}

double device_error(const __nv_bfloat16* got, const float* want, const int32_t* experts, int rows,
                    int columns) {
  return measure_error(got, nullptr, 1, want, experts, rows, columns);
}

double device_error(const float* got, int splits, const float* want, const int32_t* experts, int rows,
                    int columns) {
  return measure_error(nullptr, got, splits, want, experts, rows, columns);
}

}  // namespace cglint::kernels::moe
