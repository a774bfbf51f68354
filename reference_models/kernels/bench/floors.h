// What a case could take at best: kernels that do nothing but what cannot be avoided, timed as the case is.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <string>
#include <tuple>

#include "kernels/common/buffer.h"
#include "kernels/common/case.h"

namespace cglint::kernels {

struct FloorTime {
  double us = 0;       // best of the sweep; 0 where it was not measured
  std::string launch;  // of the best, "blocks x threads x 16-byte loads a thread has under way"
};

// Owns the memory that is read. Times are kept, so that cases of the same size share one. Not thread-safe.
class Floors {
 public:
  Floors(cudaStream_t stream, int replays, int sm_count) : stream_(stream), replays_(replays), sm_count_(sm_count) {}
  [[nodiscard]] cudaError_t prepare();

  // Reads the bytes once, in 16-byte loads, and writes a word a block. Under a programmatic edge the reads do not
  // wait for the kernel before. Nothing is measured of more than 500 MB.
  [[nodiscard]] cudaError_t read(double bytes, bool pdl, FloorTime& time);
  // The same, then a second kernel that depends on the first and reads a word a block of it.
  [[nodiscard]] cudaError_t read_and_combine(double bytes, bool pdl, FloorTime& time);
  // Loads half the bytes and stores as many: a row a block, its stores waiting for the sum over the block
  // (Floor::kRows), or spread over blocks (kSpread); the place of what is loaded is itself loaded if `looks_up`.
  [[nodiscard]] cudaError_t small(const Floor& floor, double bytes, bool pdl, FloorTime& time);

 private:
  cudaError_t best_read(double bytes, bool pdl, bool combine, FloorTime& time);

  cudaStream_t stream_;
  int replays_;
  int sm_count_;
  DeviceBuffer<unsigned char> memory_;
  DeviceBuffer<unsigned> words_;
  DeviceBuffer<int32_t> zeros_;
  std::map<std::tuple<int, long long, int, bool, bool>, FloorTime> known_;
};

}  // namespace cglint::kernels
