#include "kernels/attention/dense_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <utility>

namespace cglint::kernels {

struct CublasLt::Library {
  void* file = nullptr;
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;

  ~Library() {
    // The file stays mapped: unloading a library that has registered kernels with the runtime is not safe.
    if (handle != nullptr) (void)destroy(handle);
  }

  template <typename Function>
  bool find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(file, name));
    return function != nullptr;
  }
  bool find_all() {
    return find(create, "cublasLtCreate") && find(destroy, "cublasLtDestroy") &&
           find(get_version, "cublasLtGetVersion") && find(matmul, "cublasLtMatmul") &&
           find(desc_create, "cublasLtMatmulDescCreate") && find(desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(desc_set, "cublasLtMatmulDescSetAttribute") &&
           find(layout_create, "cublasLtMatrixLayoutCreate") &&
           find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  }
};

CublasLt::CublasLt(std::unique_ptr<Library> library) : library_(std::move(library)) {}
CublasLt::~CublasLt() = default;

std::shared_ptr<CublasLt> CublasLt::load(std::string& error) {
  auto library = std::make_unique<Library>();
  const char* const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (const char* name : names) {
    if (library->file == nullptr) library->file = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  }
  const char* chosen = std::getenv("CGLINT_CUBLASLT");
  if (library->file == nullptr && chosen != nullptr) library->file = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
  if (library->file == nullptr && chosen == nullptr) {
    for (const std::string folder : {"", "/usr/local/cuda/lib64/"}) {
      for (const char* name : names) {
        if (library->file == nullptr) library->file = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      }
    }
  }
  if (library->file == nullptr) {
    const char* reason = dlerror();
    error = std::string("cuBLASLt could not be loaded: ") + (reason != nullptr ? reason : "not found");
    return nullptr;
  }
  if (!library->find_all()) {
    error = "the cuBLASLt found lacks a needed function";
    return nullptr;
  }
  const cublasStatus_t status = library->create(&library->handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    library->handle = nullptr;
    error = "cublasLtCreate failed with status " + std::to_string(static_cast<int>(status));
    return nullptr;
  }
  return std::shared_ptr<CublasLt>(new CublasLt(std::move(library)));
}

size_t CublasLt::version() const {
  return library_->get_version();
}

// cuBLASLt is column-major: the row-major product is computed as out^T (n x tokens) = weight (n x k, stored
// k x n and transposed) * x^T (k x tokens).
struct DenseGemm::State {
  std::shared_ptr<CublasLt> lt;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight_layout = nullptr;
  cublasLtMatrixLayout_t x_layout = nullptr;
  cublasLtMatrixLayout_t out_layout = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms;
  size_t selected = 0;
  float beta = 0;

  ~State() {
    if (lt == nullptr) return;
    const CublasLt::Library& api = *lt->library_;
    if (desc != nullptr) (void)api.desc_destroy(desc);
    if (weight_layout != nullptr) (void)api.layout_destroy(weight_layout);
    if (x_layout != nullptr) (void)api.layout_destroy(x_layout);
    if (out_layout != nullptr) (void)api.layout_destroy(out_layout);
  }
};

DenseGemm::DenseGemm() = default;
DenseGemm::DenseGemm(DenseGemm&&) noexcept = default;
DenseGemm& DenseGemm::operator=(DenseGemm&&) noexcept = default;
DenseGemm::~DenseGemm() = default;

cudaError_t DenseGemm::create(std::shared_ptr<CublasLt> lt, const Shape& shape, int max_candidates,
                              DenseGemm& plan) {
  if (lt == nullptr || shape.tokens <= 0 || shape.n <= 0 || shape.k <= 0 || max_candidates <= 0) {
    return cudaErrorInvalidValue;
  }
  auto state = std::make_unique<State>();
  const CublasLt::Library& api = *lt->library_;
  state->lt = std::move(lt);
  state->beta = shape.add_residual ? 1.0f : 0.0f;
  const auto n = static_cast<uint64_t>(shape.n);
  const auto k = static_cast<uint64_t>(shape.k);
  const auto tokens = static_cast<uint64_t>(shape.tokens);
  const int64_t x_stride = shape.x_stride != 0 ? shape.x_stride : shape.k;
  const int64_t out_stride = shape.out_stride != 0 ? shape.out_stride : shape.n;
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const auto good = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };

  cublasLtMatmulPreference_t preference = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(max_candidates));
  int found = 0;
  cublasStatus_t heuristic_status = CUBLAS_STATUS_NOT_INITIALIZED;
  const bool prepared =
      good(api.desc_create(&state->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
      good(api.desc_set(state->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose)) &&
      good(api.layout_create(&state->weight_layout, CUDA_R_16BF, k, n, shape.k)) &&
      good(api.layout_create(&state->x_layout, CUDA_R_16BF, k, tokens, x_stride)) &&
      good(api.layout_create(&state->out_layout, CUDA_R_16BF, n, tokens, out_stride)) &&
      good(api.preference_create(&preference)) &&
      good(api.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &shape.workspace_bytes,
                              sizeof shape.workspace_bytes));
  if (prepared) {
    heuristic_status = api.heuristic(state->lt->library_->handle, state->desc, state->weight_layout,
                                     state->x_layout, state->out_layout, state->out_layout, preference,
                                     max_candidates, results.data(), &found);
  }
  if (preference != nullptr) (void)api.preference_destroy(preference);
  if (!prepared) return cudaErrorUnknown;
  if (heuristic_status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
  if (!good(heuristic_status)) return cudaErrorUnknown;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (good(result.state)) state->algorithms.push_back(result);
  }
  if (state->algorithms.empty()) return cudaErrorNotSupported;
  plan.state_ = std::move(state);
  return cudaSuccess;
}

int DenseGemm::candidates() const {
  return state_ == nullptr ? 0 : static_cast<int>(state_->algorithms.size());
}
void DenseGemm::select(int candidate) {
  state_->selected = static_cast<size_t>(candidate);
}
size_t DenseGemm::workspace_bytes() const {
  return state_->algorithms[state_->selected].workspaceSize;
}

cudaError_t DenseGemm::run(cudaStream_t stream, const bf16* x, const bf16* weight, const bf16* residual,
                           bf16* out, void* workspace) const {
  if (state_ == nullptr) return cudaErrorInvalidValue;
  const CublasLt::Library& api = *state_->lt->library_;
  const cublasLtMatmulHeuristicResult_t& algorithm = state_->algorithms[state_->selected];
  const float alpha = 1.0f;
  const bf16* addend = state_->beta != 0.0f ? residual : out;
  const cublasStatus_t status =
      api.matmul(api.handle, state_->desc, &alpha, weight, state_->weight_layout, x, state_->x_layout,
                 &state_->beta, addend, state_->out_layout, out, state_->out_layout, &algorithm.algo,
                 workspace, algorithm.workspaceSize, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return cudaSuccess;
  const cudaError_t launch_status = cudaPeekAtLastError();
  return launch_status != cudaSuccess ? launch_status : cudaErrorUnknown;
}

cudaError_t DenseGemm::select_fastest(cudaStream_t stream, const bf16* x,
                                      const std::vector<const bf16*>& weights, const bf16* residual,
                                      bf16* out, void* workspace, int rounds) {
  if (state_ == nullptr) return cudaErrorInvalidValue;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaError_t status = cudaEventCreate(&begin);
  if (status == cudaSuccess) status = cudaEventCreate(&end);
  int best = 0;
  float best_ms = 0;
  for (int candidate = 0; candidate < candidates() && status == cudaSuccess; ++candidate) {
    select(candidate);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) break;
    for (const bf16* weight : weights) {
      if (status == cudaSuccess) status = run(stream, x, weight, residual, out, workspace);
    }
    const cudaError_t end_status = cudaStreamEndCapture(stream, &graph);
    if (status == cudaSuccess) status = end_status;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
    float shortest_ms = 0;
    for (int round = 0; round <= rounds && status == cudaSuccess; ++round) {  // the first warms up
      status = cudaEventRecord(begin, stream);
      if (status == cudaSuccess) status = cudaGraphLaunch(exec, stream);
      if (status == cudaSuccess) status = cudaEventRecord(end, stream);
      if (status == cudaSuccess) status = cudaEventSynchronize(end);
      float elapsed_ms = 0;
      if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, begin, end);
      if (round == 1 || (round > 1 && elapsed_ms < shortest_ms)) shortest_ms = elapsed_ms;
    }
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (status == cudaSuccess && (candidate == 0 || shortest_ms < best_ms)) {
      best = candidate;
      best_ms = shortest_ms;
    }
  }
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (end != nullptr) (void)cudaEventDestroy(end);
  select(best);
  return status;
}

}  // namespace cglint::kernels
