// One measurable, checkable kernel (or short kernel sequence) at one shape. The bench program runs them all.
//
// Life of a case: prepare() once, then run() and check() any number of times, then destruction frees its
// device memory. Registering a case must be cheap: it allocates nothing before prepare().
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

namespace cglint::kernels {

// Which least work a case is measured against (the bench's floors).
struct Floor {
  enum class Kind {
    kRead,    // read the case's bytes; of all cases that are bandwidth_bound
    kSpread,  // load half the bytes, store as many, in blocks of any size
    kRows,    // the same, a block a row, whose stores wait for a sum over the block
  };
  Kind kind = Kind::kSpread;
  int rows = 0;               // kRows
  bool looks_up = false;      // an index must be loaded before the data's place is known
};

struct KernelCase {
  std::string name;   // kernel, e.g. "mla_decode"
  std::string shape;  // e.g. "k2 tp8 batch=4 context=8192"
  // Bytes the operation must move through device memory per run(), each input read once plus each output
  // written once (read + write). Intermediates of a fused sequence do not count.
  double bytes = 0;
  // Enqueues the operation on the stream. Capturable: no allocation, no synchronisation. Each call uses the
  // next of the case's weight (or cache) copies (see rotation_copies).
  std::function<cudaError_t(cudaStream_t)> run;
  // Runs on fresh random inputs with poisoned outputs and returns the largest error against the plain fp32
  // reference (see max_scaled_error). NaN, infinity or a failed call returns infinity.
  std::function<double()> check;
  double tolerance = 0;          // check() must return at most this
  bool bandwidth_bound = false;  // judged by share of copy bandwidth; otherwise against an empty launch
  // Allocates and fills everything run() and check() need.
  std::function<cudaError_t()> prepare;
  Floor floor;
  int launches = 1;          // kernel launches per run()
  bool pdl = false;          // launched with programmatic edges: compared with an empty launch of that kind
  bool l2_defeated = false;  // run() rotates over copies that L2 cannot hold (see defeats_l2)
};

void register_attention_cases(std::vector<KernelCase>& cases);
void register_moe_cases(std::vector<KernelCase>& cases);

// How many bytes of distinct weights must lie between two uses of the same copy so that none of it is still
// in L2: four times the L2 of an H200 (60 MB).
inline constexpr double kRotationBytes = 240e6;

// run() calls the bench captures into one graph. Copies beyond that would never be used.
inline constexpr int kRunsPerGraph = 256;

// Number of copies of a `copy_bytes` large weight set that run() must rotate over, at least 2 and at most
// kRunsPerGraph. A set too small for that many copies to exceed kRotationBytes (under about 1 MB) stays in
// L2, as it would between two decode steps of a small layer: say so with l2_defeated = false.
inline int rotation_copies(double copy_bytes) {
  const double copies = copy_bytes > 0 ? kRotationBytes / copy_bytes + 1 : 2;
  return copies < 2 ? 2 : copies > kRunsPerGraph ? kRunsPerGraph : static_cast<int>(copies);
}
inline bool defeats_l2(double copy_bytes) {
  return rotation_copies(copy_bytes) * copy_bytes >= kRotationBytes;
}

}  // namespace cglint::kernels
