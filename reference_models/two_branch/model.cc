// The smallest model: a gated MLP with a second, smaller branch beside it in every layer. It exists to try
// the harness and to have a recording whose every node fits on a page; its shapes are nobody's.
//
//   h = rms_norm(x);  main: y = down(silu_mul(gate_up(h)));  side: z = side_up(side_down(h));  x = x + y + z
#include "stack/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/attention/kv_cache.h"
#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/attention/skinny_gemm.h"
#include "kernels/moe/activation.h"
#include "stack/fault.h"
#include "stack/streams.h"

namespace cglint::models {
const ModelInfo& two_branch_model();

namespace {

using kernels::bf16;
using kernels::LaunchContext;
using kernels::SkinnyGemm;

struct Shape {
  int hidden, intermediate, side;
};
// Layers take turns with this many weight sets: of the preset "small" (33 MB a set) more than any L2 holds.
constexpr int kWeightSets = 8;
constexpr float kEpsilon = 1e-6F;

constexpr std::array kPresets = {
    PresetInfo{"small", "hidden 2048, intermediate 2048, side 1024, 16 layers", 16},
    PresetInfo{"tiny", "hidden 512, intermediate 512, side 256, 4 layers (weights stay in L2)", 4},
};
constexpr std::array kVariants = {
    VariantInfo{"one_stream", "both branches on one stream"},
    VariantInfo{"side_first", "the side branch is enqueued before the main one", false, "one_stream"},
    VariantInfo{"main_first", "the main branch is enqueued before the side one", false, "one_stream"},
    VariantInfo{"released_input",
                "main first; the main branch releases the input before the side branch asks for its address "
                "(null)",
                true},
    VariantInfo{"sync_in_capture", "synchronises the capturing stream: the capture fails", false, "", true},
};

Shape shape_of(const StackOptions& options) {
  return options.preset == "tiny" ? Shape{512, 512, 256} : Shape{2048, 2048, 1024};
}
int layers_of(const StackOptions& options) {
  return options.layers > 0 ? options.layers : options.preset == "tiny" ? 4 : 16;
}

std::size_t set_elements(const Shape& s) {
  return static_cast<std::size_t>(s.hidden) * (3 * s.intermediate + 2 * s.side + 1);
}
std::size_t transient_bytes_of(const Shape& s, int batch) {
  return static_cast<std::size_t>(batch) * (8 * s.hidden + 4 * s.intermediate + s.side) * sizeof(bf16) +
         (std::size_t{1} << 20);
}

std::size_t memory_bytes(const StackOptions& options) {
  const Shape s = shape_of(options);
  if (options.batch < 1 || options.batch > kernels::kSkinnyMaxTokens) return 0;
  return kWeightSets * set_elements(s) * sizeof(bf16) + 2 * transient_bytes_of(s, options.batch) +
         (std::size_t{64} << 20);
}

class TwoBranch : public Model {
 public:
  explicit TwoBranch(const StackOptions& options)
      : options_(options), shape_(shape_of(options)), layers_(layers_of(options)) {
    if (options_.variant.empty()) options_.variant = kVariants[0].name;
  }

  cudaError_t prepare(Arena& arena) override;
  cudaError_t record(StepContext& context) override;
  cudaError_t output(std::vector<std::uint8_t>& bytes) override;
  CheckResult check(StepContext& context) override;
  cudaError_t use_input(int number) override;
  cudaError_t reset() override { return cudaSuccess; }  // a step changes nothing but its output

 private:
  struct Weights {
    bf16 *gamma, *gate_up, *down, *side_down, *side_up;
  };
  [[nodiscard]] Weights weights_of(int layer) const;
  [[nodiscard]] SkinnyGemm product(const void* x, int k, const bf16* weight, void* out, int n) const;
  cudaError_t run_product(const LaunchContext& ctx, const SkinnyGemm& gemm, Tensor& workspace);
  cudaError_t main_branch(const LaunchContext& ctx, const Weights& w, Tensor& input, bool release, Tensor& y);
  cudaError_t side_branch(const LaunchContext& ctx, const Weights& w, const void* input, int pool, Tensor& z);
  cudaError_t layer(StepContext& context, int index, Tensor& x);

  StackOptions options_;
  Shape shape_;
  int layers_;
  int sm_count_ = 0;
  bool pdl_ = false;
  Arena* arena_ = nullptr;  // pool 0: main stream, 1: side stream
  Tensor weights_, input_, output_, main_workspace_, side_workspace_;
};

#define CGLINT_RETURN_IF(call) \
  if (const cudaError_t status_ = (call); status_ != cudaSuccess) return status_

TwoBranch::Weights TwoBranch::weights_of(int layer) const {
  bf16* next = weights_.as<bf16>() + set_elements(shape_) * static_cast<std::size_t>(layer % kWeightSets);
  const auto take = [&](std::size_t count) { return std::exchange(next, next + count); };
  const auto h = static_cast<std::size_t>(shape_.hidden);
  Weights w{};
  w.gamma = take(h);
  w.gate_up = take(h * 2 * shape_.intermediate);
  w.down = take(h * shape_.intermediate);
  w.side_down = take(h * shape_.side);
  w.side_up = take(h * shape_.side);
  return w;
}

SkinnyGemm TwoBranch::product(const void* x, int k, const bf16* weight, void* out, int n) const {
  SkinnyGemm gemm;
  gemm.x = static_cast<const bf16*>(x);
  gemm.x_token_stride = k;
  gemm.weight = weight;
  gemm.out = static_cast<bf16*>(out);
  gemm.out_token_stride = n;
  gemm.tokens = options_.batch;
  gemm.n = n;
  gemm.k = k;
  gemm.split_k = kernels::skinny_split_k(options_.batch, n, k, 1, sm_count_);
  return gemm;
}

cudaError_t TwoBranch::run_product(const LaunchContext& ctx, const SkinnyGemm& gemm, Tensor& workspace) {
  return kernels::skinny_gemm(ctx, gemm, workspace.address());
}

cudaError_t TwoBranch::prepare(Arena& arena) {
  arena_ = &arena;
  if (memory_bytes(options_) == 0) return cudaErrorInvalidValue;
  int device = 0;
  CGLINT_RETURN_IF(cudaGetDevice(&device));
  CGLINT_RETURN_IF(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  CGLINT_RETURN_IF(arena.persistent(kWeightSets * set_elements(shape_) * sizeof(bf16), weights_));
  const std::size_t row_bytes = static_cast<std::size_t>(options_.batch) * shape_.hidden * sizeof(bf16);
  CGLINT_RETURN_IF(arena.persistent(row_bytes, input_));
  CGLINT_RETURN_IF(arena.persistent(row_bytes, output_));
  std::size_t workspace = 16;
  for (const auto& [n, k] : {std::pair(2 * shape_.intermediate, shape_.hidden),
                             {shape_.hidden, shape_.intermediate},
                             {shape_.side, shape_.hidden},
                             {shape_.hidden, shape_.side}})
    workspace =
        std::max(workspace, kernels::skinny_gemm_workspace_bytes(product(nullptr, k, nullptr, nullptr, n)));
  for (Tensor* const tensor : {&main_workspace_, &side_workspace_}) {
    CGLINT_RETURN_IF(arena.persistent(workspace, *tensor));
    CGLINT_RETURN_IF(cudaMemset(tensor->address(), 0, workspace));
  }
  for (const int pool : {0, 1})
    CGLINT_RETURN_IF(arena.reserve_transient(transient_bytes_of(shape_, options_.batch), pool));
  // Scaled so that each branch adds about half of what it is given, whatever the widths.
  for (int set = 0; set < kWeightSets; ++set) {
    const Weights w = weights_of(set);
    const auto fill = [&](bf16* data, int n, int k, int salt) {
      return kernels::fill_random(data, static_cast<std::size_t>(n) * k,
                                  options_.seed * 1000 + set * 8 + salt,
                                  1.2F / std::sqrt(static_cast<float>(k)));
    };
    CGLINT_RETURN_IF(
        kernels::fill_random(w.gamma, shape_.hidden, options_.seed * 1000 + set * 8, 0.1F, 1.0F));
    CGLINT_RETURN_IF(fill(w.gate_up, 2 * shape_.intermediate, shape_.hidden, 1));
    CGLINT_RETURN_IF(fill(w.down, shape_.hidden, shape_.intermediate, 2));
    CGLINT_RETURN_IF(fill(w.side_down, shape_.side, shape_.hidden, 3));
    CGLINT_RETURN_IF(fill(w.side_up, shape_.hidden, shape_.side, 4));
  }
  return use_input(0);
}

cudaError_t TwoBranch::use_input(int number) {
  CGLINT_RETURN_IF(kernels::fill_random(input_.as<bf16>(), input_.size_bytes() / sizeof(bf16),
                                        options_.seed + static_cast<std::uint64_t>(number), 1.0F));
  return cudaDeviceSynchronize();
}

cudaError_t TwoBranch::main_branch(const LaunchContext& ctx, const Weights& w, Tensor& input, bool release,
                                   Tensor& y) {
  const Range range("main");
  const auto tokens = static_cast<std::size_t>(options_.batch);
  Tensor gate_up, gated;
  CGLINT_RETURN_IF(arena_->transient(tokens * 2 * shape_.intermediate * sizeof(bf16), gate_up));
  CGLINT_RETURN_IF(run_product(
      ctx, product(input.address(), shape_.hidden, w.gate_up, gate_up.address(), 2 * shape_.intermediate),
      main_workspace_));
  if (release) input.release();
  CGLINT_RETURN_IF(arena_->transient(tokens * shape_.intermediate * sizeof(bf16), gated));
  kernels::moe::SiluMulArgs silu;
  silu.gate_up.rows = gate_up.as<bf16>();
  silu.pairs = options_.batch;
  silu.intermediate = shape_.intermediate;
  silu.out = gated.as<bf16>();
  CGLINT_RETURN_IF(kernels::moe::launch_silu_mul(ctx, silu));
  CGLINT_RETURN_IF(arena_->transient(tokens * shape_.hidden * sizeof(bf16), y));
  return run_product(ctx, product(gated.address(), shape_.intermediate, w.down, y.address(), shape_.hidden),
                     main_workspace_);
}

cudaError_t TwoBranch::side_branch(const LaunchContext& ctx, const Weights& w, const void* input, int pool,
                                   Tensor& z) {
  const Range range("side");
  const auto tokens = static_cast<std::size_t>(options_.batch);
  Tensor narrow;
  CGLINT_RETURN_IF(arena_->transient(tokens * shape_.side * sizeof(bf16), narrow, pool));
  CGLINT_RETURN_IF(run_product(ctx, product(input, shape_.hidden, w.side_down, narrow.address(), shape_.side),
                               side_workspace_));
  CGLINT_RETURN_IF(arena_->transient(tokens * shape_.hidden * sizeof(bf16), z, pool));
  return run_product(ctx, product(narrow.address(), shape_.side, w.side_up, z.address(), shape_.hidden),
                     side_workspace_);
}

cudaError_t TwoBranch::layer(StepContext& context, int index, Tensor& x) {
  const Range range("layer", index);
  const std::string& variant = options_.variant;
  Weights w = weights_of(index);
  if (options_.fault == fault::kWrongW2 && is_spoilt_layer(index, layers_)) w.down = weights_of(index + 1).down;
  const LaunchContext on_main{context.main, pdl_};
  const LaunchContext on_side{context.side[0], pdl_};
  const std::size_t row_bytes = static_cast<std::size_t>(options_.batch) * shape_.hidden * sizeof(bf16);
  Tensor h, y, z;
  CGLINT_RETURN_IF(arena_->transient(row_bytes, h));
  CGLINT_RETURN_IF(kernels::rms_norm(on_main, x.as<bf16>(), shape_.hidden, w.gamma, h.as<bf16>(),
                                     shape_.hidden, options_.batch, shape_.hidden, kEpsilon));
  // As engines do, the branches share a stream outside capture.
  const bool two_streams = context.capturing && variant != "one_stream" && variant != "sync_in_capture";
  if (!two_streams) {
    CGLINT_RETURN_IF(main_branch(on_main, w, h, false, y));
    CGLINT_RETURN_IF(side_branch(on_main, w, h.address(), 0, z));
    if (context.capturing && variant == "sync_in_capture")
      CGLINT_RETURN_IF(cudaStreamSynchronize(context.main));
  } else {
    CGLINT_RETURN_IF(wait_stream(context, context.side[0], context.main));
    if (variant == "side_first") CGLINT_RETURN_IF(side_branch(on_side, w, h.address(), 1, z));
    CGLINT_RETURN_IF(main_branch(on_main, w, h, variant == "released_input", y));
    if (variant != "side_first") CGLINT_RETURN_IF(side_branch(on_side, w, h.address(), 1, z));
    CGLINT_RETURN_IF(wait_stream(context, context.main, context.side[0]));
  }
  Tensor sum, next;
  CGLINT_RETURN_IF(arena_->transient(row_bytes, sum));
  CGLINT_RETURN_IF(arena_->transient(row_bytes, next));
  const std::int64_t count = static_cast<std::int64_t>(options_.batch) * shape_.hidden;
  CGLINT_RETURN_IF(kernels::residual_add(on_main, y.as<bf16>(), z.as<bf16>(), sum.as<bf16>(), count));
  CGLINT_RETURN_IF(kernels::residual_add(on_main, x.as<bf16>(), sum.as<bf16>(), next.as<bf16>(), count));
  x = std::move(next);
  return cudaSuccess;
}

cudaError_t TwoBranch::record(StepContext& context) {
  Tensor x = input_.share();
  for (int i = 0; i < layers_; ++i) CGLINT_RETURN_IF(layer(context, i, x));
  return cudaMemcpyAsync(output_.address(), x.address(), output_.size_bytes(), cudaMemcpyDeviceToDevice,
                         context.main);
}

cudaError_t TwoBranch::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

// Products by the reference kernels and sums on the host, rounded to bf16 where the model stores a tensor.
CheckResult TwoBranch::check(StepContext& /*context*/) {
  CheckResult result;
  // Rounding differs where sums are taken in another order, and adds up over the layers.
  result.tolerance = 0.02 * std::sqrt(static_cast<double>(layers_));
  result.detail = "last layer's output";
  const auto rows = static_cast<std::size_t>(options_.batch);
  const auto download = [](const void* data, std::size_t count) {
    std::vector<bf16> host(count);
    if (cudaMemcpy(host.data(), data, count * sizeof(bf16), cudaMemcpyDeviceToHost) != cudaSuccess)
      host.clear();
    return kernels::to_float(host);
  };
  kernels::DeviceBuffer<bf16> operand;
  const auto multiply = [&](const std::vector<float>& x, int k, const bf16* weight, int n) {
    const std::vector<bf16> narrow(x.begin(), x.end());
    if (operand.allocate(narrow.size()) != cudaSuccess || operand.upload(narrow) != cudaSuccess)
      return std::vector<float>();
    std::vector<float> out =
        kernels::reference::gemm(operand.get(), k, 0, weight, k, 1, 0, nullptr, options_.batch, n, k, 1);
    for (float& value : out) value = static_cast<float>(bf16(value));
    return out;
  };
  std::vector<float> x = download(input_.address(), rows * shape_.hidden);
  for (int i = 0; i < layers_; ++i) {
    const Weights w = weights_of(i);
    const std::vector<float> h =
        kernels::reference::rms_norm(x, download(w.gamma, shape_.hidden), shape_.hidden, kEpsilon);
    const std::vector<float> gate_up = multiply(h, shape_.hidden, w.gate_up, 2 * shape_.intermediate);
    const std::vector<float> z =
        multiply(multiply(h, shape_.hidden, w.side_down, shape_.side), shape_.side, w.side_up, shape_.hidden);
    if (gate_up.empty() || z.empty()) {
      result.detail = "the reference could not be computed: a CUDA call failed";
      return result;
    }
    std::vector<float> gated(rows * shape_.intermediate);
    for (std::size_t t = 0; t < rows; ++t) {
      for (int j = 0; j < shape_.intermediate; ++j) {
        const float* const row = gate_up.data() + t * 2 * shape_.intermediate;
        gated[t * shape_.intermediate + j] =
            row[j] / (1.0F + std::exp(-row[j])) * row[j + shape_.intermediate];
      }
    }
    const std::vector<float> y = multiply(gated, shape_.intermediate, w.down, shape_.hidden);
    if (y.empty()) {
      result.detail = "the reference could not be computed: a CUDA call failed";
      return result;
    }
    for (std::size_t j = 0; j < x.size(); ++j)
      x[j] = static_cast<float>(bf16(x[j] + static_cast<float>(bf16(y[j] + z[j]))));
  }
  std::vector<std::uint8_t> bytes;
  if (output(bytes) != cudaSuccess) {
    result.detail = "the output could not be read";
    return result;
  }
  result.error = kernels::max_scaled_error(download(output_.address(), x.size()), x);
  result.ok = result.error <= result.tolerance;
  return result;
}

#undef CGLINT_RETURN_IF

constexpr std::array kFaults = {fault::kWrongW2};

const ModelInfo kInfo = {
    "two_branch",
    "a gated MLP with a second, smaller branch in every layer: tries the harness",
    kPresets,
    kVariants,
    1,
    memory_bytes,
    [](const StackOptions& options) -> std::unique_ptr<Model> {
      return std::make_unique<TwoBranch>(options);
    },
    kFaults,
};

}  // namespace

const ModelInfo& two_branch_model() {
  return kInfo;
}

}  // namespace cglint::models
