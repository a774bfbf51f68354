#include "kernels/bench/floors.h"

#include <algorithm>
#include <vector>

#include "kernels/bench/timing.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"

namespace cglint::kernels {
namespace {

constexpr size_t kMemoryBytes = size_t{1} << 30;
constexpr int kMaxBlocks = 8192;

__device__ __forceinline__ uint4 load_once(const uint4* pointer) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(pointer));
  return words;
}

template <int kLoads, bool kPdl>
__global__ void __launch_bounds__(512) floor_read_kernel(const uint4* data, int64_t vectors, unsigned* words) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  unsigned mixed = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; first < vectors;
       first += stride * kLoads) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = first + i * stride;
      loaded[i] = make_uint4(0, 0, 0, 0);
      if (at < vectors) loaded[i] = load_once(data + at);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) mixed ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
  }
  pdl_begin<kPdl>();
  // Every thread's value counts, one thread's is written.
  if (threadIdx.x == 0 || mixed == 0x9e3779b9u) words[blockIdx.x] = mixed;
}

template <bool kPdl>
__global__ void __launch_bounds__(512) floor_combine_kernel(const unsigned* words, int count, unsigned* result) {
  pdl_begin<kPdl>();
  unsigned mixed = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) mixed ^= words[i];
  if (threadIdx.x == 0 || mixed == 0x9e3779b9u) *result = mixed;
}

// A block's share: `vectors` of 16 bytes.
template <int kLoads, bool kReduces, bool kLooksUp, bool kPdl>
__global__ void __launch_bounds__(1024)
    floor_small_kernel(const uint4* in, const int32_t* places, uint4* out, int vectors, int64_t all_vectors) {
  __shared__ float scratch[32];
  pdl_begin<kPdl>();
  int64_t place = blockIdx.x;
  if constexpr (kLooksUp) place += places[blockIdx.x];
  uint4 loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x);
    loaded[i] = make_uint4(0, 0, 0, 0);
    if (at < vectors && place * vectors + at < all_vectors) loaded[i] = in[place * vectors + at];
  }
  if constexpr (kReduces) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += __uint_as_float(loaded[i].x);
    sum = block_sum_once(sum, scratch);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i].x ^= __float_as_uint(sum);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x);
    if (at < vectors && place * vectors + at < all_vectors) out[blockIdx.x * static_cast<int64_t>(vectors) + at] = loaded[i];
  }
}

template <bool kPdl>
auto read_kernel(int loads) {
  return loads == 2 ? floor_read_kernel<2, kPdl> : loads == 4 ? floor_read_kernel<4, kPdl> : floor_read_kernel<8, kPdl>;
}

template <bool kReduces, bool kLooksUp>
auto small_kernel(int loads, bool pdl) {
  if (loads == 1) return pdl ? floor_small_kernel<1, kReduces, kLooksUp, true> : floor_small_kernel<1, kReduces, kLooksUp, false>;
  if (loads == 2) return pdl ? floor_small_kernel<2, kReduces, kLooksUp, true> : floor_small_kernel<2, kReduces, kLooksUp, false>;
  return pdl ? floor_small_kernel<4, kReduces, kLooksUp, true> : floor_small_kernel<4, kReduces, kLooksUp, false>;
}

std::string describe(int blocks, int threads, int loads) {
  return std::to_string(blocks) + " x " + std::to_string(threads) + " x " + std::to_string(loads);
}

}  // namespace

cudaError_t Floors::prepare() {
  cudaError_t status = memory_.allocate(kMemoryBytes);
  if (status == cudaSuccess) status = words_.allocate(kMaxBlocks + 1);
  if (status == cudaSuccess) status = zeros_.allocate(kMaxBlocks);
  if (status == cudaSuccess) status = cudaMemset(zeros_.get(), 0, zeros_.size_bytes());
  if (status == cudaSuccess) {
    status = fill_random(reinterpret_cast<float*>(memory_.get()), kMemoryBytes / 4, 1, 1.0f);
  }
  return status;
}

cudaError_t Floors::read(double bytes, bool pdl, FloorTime& time) {
  return best_read(bytes, pdl, false, time);
}

cudaError_t Floors::read_and_combine(double bytes, bool pdl, FloorTime& time) {
  return best_read(bytes, pdl, true, time);
}

cudaError_t Floors::best_read(double bytes, bool pdl, bool combine, FloorTime& time) {
  const auto vectors = static_cast<int64_t>(bytes / 16);
  const int64_t copies = rotation_copies(bytes);
  if (vectors < 1 || static_cast<double>(copies) * (bytes + 256) > static_cast<double>(kMemoryBytes)) return cudaSuccess;
  FloorTime& known = known_[{combine ? 1 : 0, vectors, 0, false, pdl}];
  if (known.us > 0) {
    time = known;
    return cudaSuccess;
  }
  const int64_t stride = (vectors * 16 + 255) / 256 * 256;
  int64_t turn = 0;
  const auto measure = [&](int blocks, int threads, int loads, int replays, Timing& timing) {
    const auto run = [&](cudaStream_t stream) {
      turn = (turn + 1) % copies;
      const auto* data = reinterpret_cast<const uint4*>(memory_.get() + turn * stride);
      const LaunchContext ctx{stream, pdl};
      const cudaError_t status =
          launch(ctx, pdl ? read_kernel<true>(loads) : read_kernel<false>(loads), dim3(static_cast<unsigned>(blocks)),
                 dim3(static_cast<unsigned>(threads)), 0, data, vectors, words_.get());
      if (status != cudaSuccess || !combine) return status;
      return launch(ctx, pdl ? floor_combine_kernel<true> : floor_combine_kernel<false>, dim3(1), dim3(256), 0,
                    words_.get(), blocks, words_.get() + kMaxBlocks);
    };
    return time_in_graph(stream_, replays, run, timing);
  };
  std::tuple<int, int, int> best{};
  double best_us = 0;
  std::vector<std::tuple<int, int, int>> tried;
  for (const int loads : {2, 4, 8}) {
    if (loads == 2 && bytes > 64e6) continue;  // never the best there
    for (const int threads : {256, 512}) {
      const int64_t share = static_cast<int64_t>(threads) * loads;
      for (const int64_t per_sm : {2, 4, 8}) {
        if (per_sm * threads > 2048) continue;
        const int64_t blocks = std::min({(vectors + share - 1) / share, per_sm * sm_count_, int64_t{kMaxBlocks}});
        const std::tuple<int, int, int> launch_shape{static_cast<int>(blocks), threads, loads};
        if (std::find(tried.begin(), tried.end(), launch_shape) != tried.end()) continue;
        tried.push_back(launch_shape);
        Timing timing;
        const cudaError_t status = measure(static_cast<int>(blocks), threads, loads, 1, timing);
        if (status != cudaSuccess) return status;
        if (best_us == 0 || timing.min_us < best_us) {
          best_us = timing.min_us;
          best = launch_shape;
        }
      }
    }
  }
  const auto [blocks, threads, loads] = best;
  Timing timing;
  const cudaError_t status = measure(blocks, threads, loads, replays_, timing);
  if (status != cudaSuccess) return status;
  known = time = {timing.median_us, describe(blocks, threads, loads)};
  return cudaSuccess;
}

cudaError_t Floors::small(const Floor& floor, double bytes, bool pdl, FloorTime& time) {
  const auto all_vectors = static_cast<int64_t>(bytes / 32 + 0.5);
  const bool rows = floor.kind == Floor::Kind::kRows;
  if (all_vectors < 1 || (rows && floor.rows < 1)) return cudaSuccess;
  const int kind = rows ? 1 + floor.rows : 0;
  FloorTime& known = known_[{2, all_vectors, kind, floor.looks_up, pdl}];
  if (known.us > 0) {
    time = known;
    return cudaSuccess;
  }
  const auto* in = reinterpret_cast<const uint4*>(memory_.get());
  auto* out = reinterpret_cast<uint4*>(memory_.get() + kMemoryBytes / 2);
  const auto measure = [&](int blocks, int threads, int loads, int vectors, int replays, Timing& timing) {
    const auto kernel = rows ? (floor.looks_up ? small_kernel<true, true>(loads, pdl) : small_kernel<true, false>(loads, pdl))
                             : (floor.looks_up ? small_kernel<false, true>(loads, pdl) : small_kernel<false, false>(loads, pdl));
    const auto run = [&](cudaStream_t stream) {
      return launch({stream, pdl}, kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0,
                    in, zeros_.get(), out, vectors, all_vectors);
    };
    return time_in_graph(stream_, replays, run, timing);
  };
  std::tuple<int, int, int, int> best{};
  double best_us = 0;
  const auto consider = [&](int blocks, int threads, int loads, int vectors) {
    Timing timing;
    const cudaError_t status = measure(blocks, threads, loads, vectors, 1, timing);
    if (status == cudaSuccess && (best_us == 0 || timing.min_us < best_us)) {
      best_us = timing.min_us;
      best = {blocks, threads, loads, vectors};
    }
    return status;
  };
  for (const int loads : {1, 2, 4}) {
    if (rows) {
      const auto vectors = static_cast<int>((all_vectors + floor.rows - 1) / floor.rows);
      const int threads = ((vectors + loads - 1) / loads + 31) / 32 * 32;
      if (threads > 1024 || (loads > 1 && vectors <= 32)) continue;
      const cudaError_t status = consider(floor.rows, threads, loads, vectors);
      if (status != cudaSuccess) return status;
      continue;
    }
    for (const int threads : {32, 64, 128, 256, 512}) {
      const int vectors = threads * loads;
      const int64_t blocks = (all_vectors + vectors - 1) / vectors;
      if (blocks > kMaxBlocks) continue;
      const cudaError_t status = consider(static_cast<int>(blocks), threads, loads, vectors);
      if (status != cudaSuccess) return status;
    }
  }
  if (best_us == 0) return cudaSuccess;
  const auto [blocks, threads, loads, vectors] = best;
  Timing timing;
  const cudaError_t status = measure(blocks, threads, loads, vectors, replays_, timing);
  if (status != cudaSuccess) return status;
  known = time = {timing.median_us, describe(blocks, threads, loads)};
  return cudaSuccess;
}

}  // namespace cglint::kernels
