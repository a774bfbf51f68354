// Dense projections through cuBLASLt, which is loaded at run time: nothing here links it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/common/buffer.h"

namespace cglint::kernels {

// The library and one handle of the current device. Shared by all plans made from it; thread-safe as
// cuBLASLt's handle is.
class CublasLt {
 public:
  // Takes the copy already mapped into the process if there is one, else the file named by the environment
  // variable CGLINT_CUBLASLT, else the newest of major versions 13 and 12 that the loader or the toolkit's
  // usual folder has. Null with a one-line reason in `error` if none loads.
  static std::shared_ptr<CublasLt> load(std::string& error);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Library version as cublasLtGetVersion() gives it, e.g. 130002.
  size_t version() const;

 private:
  friend class DenseGemm;
  struct Library;
  explicit CublasLt(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// A plan for out(t, n) = sum_k x(t, k) * weight(n, k) [+ residual(t, n)], bf16 with fp32 accumulation.
// Move-only. Making it asks cuBLASLt's heuristic; running it allocates nothing and can be captured.
class DenseGemm {
 public:
  struct Shape {
    int tokens = 0;
    int n = 0;
    int k = 0;
    int64_t x_stride = 0;    // elements between rows of x; 0 means k
    int64_t out_stride = 0;  // elements between rows of out and residual; 0 means n
    bool add_residual = false;
    size_t workspace_bytes = 32u << 20;  // the most the caller will supply to run()
  };

  DenseGemm();
  DenseGemm(DenseGemm&&) noexcept;
  DenseGemm& operator=(DenseGemm&&) noexcept;
  ~DenseGemm();

  // Fills `plan` with up to `max_candidates` algorithms, the heuristic's favourite first and selected.
  // cudaErrorNotSupported: cuBLASLt offers none; cudaErrorUnknown: a call failed.
  [[nodiscard]] static cudaError_t create(std::shared_ptr<CublasLt> lt, const Shape& shape,
                                          int max_candidates, DenseGemm& plan);
  int candidates() const;
  void select(int candidate);  // 0 <= candidate < candidates()
  // Workspace of the selected algorithm, 256-byte aligned.
  size_t workspace_bytes() const;

  // x [tokens, k], weight [n, k] contiguous, residual [tokens, n] (null unless add_residual; may be out).
  [[nodiscard]] cudaError_t run(cudaStream_t stream, const bf16* x, const bf16* weight, const bf16* residual,
                                bf16* out, void* workspace) const;

  // Times every candidate over the given weight copies (enough of them to defeat L2) and selects the fastest.
  // Synchronises; not for use during capture. `rounds` passes over `weights` each.
  [[nodiscard]] cudaError_t select_fastest(cudaStream_t stream, const bf16* x,
                                           const std::vector<const bf16*>& weights, const bf16* residual,
                                           bf16* out, void* workspace, int rounds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cglint::kernels
