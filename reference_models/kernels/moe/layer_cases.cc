// The whole routed layer, router to weighted sum, as one case: the kernels in the order engines launch them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/common/buffer.h"
#include "kernels/common/case.h"
#include "kernels/moe/activation.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/reference.h"
#include "kernels/moe/router.h"
#include "kernels/moe/routing.h"
#include "kernels/moe/workload.h"

namespace cglint::kernels::moe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kInputSets = 16;  // different tokens, so different experts, in successive runs

size_t count(int a, int b, int c = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
}

class Layer {
 public:
  Layer(const MoePreset& preset, WeightType type, int tokens)
      : preset_(preset), type_(type), tokens_(tokens) {
    w13_config_ = config_of(ExpertGemm::kW13);
    w2_config_ = config_of(ExpertGemm::kW2);
    // One set of block lists serves both GEMMs.
    if (w2_config_.block_m != w13_config_.block_m) {
      w2_config_.block_m = w13_config_.block_m;
      w2_config_ = nearest_supported(type, w2_config_, 227 * 1024);
    }
  }

  int launches() const { return type_ == WeightType::kBf16 ? 7 : 8; }

  double bytes() const {
    const double chosen = preset_.local_experts *
                          (1 - std::pow(1 - static_cast<double>(preset_.top_k) / preset_.experts, tokens_));
    const double element = type_ == WeightType::kBf16 ? 2 : 1;
    return chosen * 3.0 * preset_.hidden * preset_.intermediate * element +
           2.0 * preset_.experts * preset_.hidden + 4.0 * tokens_ * preset_.hidden;
  }

  cudaError_t prepare() {
    const int pairs = tokens_ * preset_.top_k;
    const int h = preset_.hidden;
    const int i = preset_.intermediate;
    const int blocks = max_blocks(pairs, preset_.local_experts, w13_config_.block_m);
    const std::vector<int32_t> map = make_expert_map(preset_);
    cudaError_t status = cudaSuccess;
    const auto then = [&](cudaError_t next) {
      if (status == cudaSuccess) status = next;
    };
    then(w13_.allocate(type_, preset_, ExpertGemm::kW13));
    then(w2_.allocate(type_, preset_, ExpertGemm::kW2));
    then(x_.allocate(count(kInputSets * tokens_, h)));
    then(router_w_.allocate(count(preset_.experts, h)));
    then(bias_.allocate(static_cast<size_t>(preset_.experts)));
    then(logits_.allocate(
        count(router_splits(tokens_, preset_.experts, preset_.hidden), tokens_, preset_.experts)));
    then(weights_.allocate(static_cast<size_t>(pairs)));
    then(ids_.allocate(static_cast<size_t>(pairs)));
    then(sorted_ids_.allocate(count(blocks, w13_config_.block_m)));
    then(expert_ids_.allocate(static_cast<size_t>(blocks)));
    then(num_padded_.allocate(1));
    then(positions_.allocate(static_cast<size_t>(pairs)));
    then(x_fp8_.allocate(count(tokens_, h)));
    then(x_scale_.allocate(count(tokens_, h) / kScaleBlock));
    then(gate_up_.allocate(partial_elements(w13_config_, pairs, 2 * i)));
    then(hidden_.allocate(count(pairs, i)));
    then(hidden_fp8_.allocate(count(pairs, i)));
    then(hidden_scale_.allocate(count(pairs, i) / kScaleBlock));
    then(y_.allocate(partial_elements(w2_config_, pairs, h)));
    then(out_.allocate(count(tokens_, h)));
    if (!map.empty()) {
      then(map_.allocate(map.size()));
      then(status == cudaSuccess ? map_.upload(map) : status);
    }
    return status == cudaSuccess ? fill(7) : status;
  }

  cudaError_t run(const LaunchContext& ctx) { return enqueue(ctx, next_set_++ % kInputSets); }

  double check(const LaunchContext& ctx, uint64_t seed) {
    cudaError_t status = fill(seed);
    for (const cudaError_t poisoned :
         {logits_.poison(), weights_.poison(), ids_.poison(), sorted_ids_.poison(), expert_ids_.poison(),
          num_padded_.poison(), positions_.poison(), x_fp8_.poison(), x_scale_.poison(), gate_up_.poison(),
          hidden_.poison(), hidden_fp8_.poison(), hidden_scale_.poison(), y_.poison(), out_.poison()}) {
      if (status == cudaSuccess) status = poisoned;
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    // A set of inputs that this shard has work for: one token may well choose other shards' experts alone.
    std::vector<int32_t> ids;
    std::vector<float> weights;
    int set = 0;
    for (bool has_work = false; status == cudaSuccess && !has_work && set < kInputSets;
         set += has_work ? 0 : 1) {
      status = enqueue(ctx, set);
      if (status == cudaSuccess) status = cudaStreamSynchronize(ctx.stream);
      if (status == cudaSuccess) status = ids_.download(ids);
      has_work = std::any_of(ids.begin(), ids.end(), [&](int32_t e) { return e < preset_.local_experts; });
    }
    if (set == kInputSets) return kInfinity;
    if (status == cudaSuccess) status = weights_.download(weights);
    const std::vector<float> all_x = download_float(x_);
    const std::vector<float> bias = download_float(bias_);
    if (status != cudaSuccess || all_x.empty() || bias.empty()) return kInfinity;

    const int pairs = tokens_ * preset_.top_k;
    const int h = preset_.hidden;
    const int i = preset_.intermediate;
    const auto first = all_x.begin() + static_cast<std::ptrdiff_t>(count(set * tokens_, h));
    DeviceBuffer<float> x;
    DeviceBuffer<float> logits;
    DeviceBuffer<float> gate_up;
    DeviceBuffer<float> hidden;
    DeviceBuffer<float> y;
    DeviceBuffer<int32_t> experts;
    const auto then = [&](cudaError_t next) {
      if (status == cudaSuccess) status = next;
    };
    then(x.allocate(count(tokens_, h)));
    then(logits.allocate(count(tokens_, preset_.experts)));
    then(gate_up.allocate(count(pairs, 2 * i)));
    then(hidden.allocate(count(pairs, i)));
    then(y.allocate(count(pairs, h)));
    then(experts.allocate(static_cast<size_t>(pairs)));
    if (status != cudaSuccess) return kInfinity;
    then(x.upload(std::vector<float>(first, first + static_cast<std::ptrdiff_t>(count(tokens_, h)))));

    ReferenceGemmArgs plain;
    plain.x_fp32 = x.get();
    plain.w = router_w_.get();
    plain.pairs = tokens_;
    plain.n = preset_.experts;
    plain.k = h;
    plain.out = logits.get();
    then(status == cudaSuccess ? reference_moe_gemm(WeightType::kBf16, plain) : status);
    if (status != cudaSuccess) return kInfinity;
    const ReferenceChoice choice = reference_topk(topk_arguments(), download_float(logits), bias);
    if (!(topk_error(topk_arguments(), choice, ids, weights) <= 1e-3)) return kInfinity;

    // From here on with the kernels' own choice, which may differ from the reference's by a tie.
    std::vector<int32_t> local = ids;
    for (int32_t& e : local) e = e < preset_.local_experts ? e : -1;
    then(experts.upload(local));
    then(gate_up.poison());
    plain.w = w13_.data();
    plain.w_scale = w13_.scale.get();
    plain.experts = experts.get();
    plain.pairs = pairs;
    plain.row_divisor = preset_.top_k;
    plain.n = 2 * i;
    plain.out = gate_up.get();
    then(status == cudaSuccess ? reference_moe_gemm(type_, plain) : status);
    if (status != cudaSuccess) return kInfinity;
    const std::vector<float> both = download_float(gate_up);
    if (both.empty()) return kInfinity;
    std::vector<float> activated;
    for (int pair = 0; pair < pairs; ++pair) {
      for (int column = 0; column < i; ++column) {
        const float gate = both[count(pair, 2 * i) + static_cast<size_t>(column)];
        const float up = both[count(pair, 2 * i) + static_cast<size_t>(i + column)];
        activated.push_back(gate / (1 + std::exp(-gate)) * up);
      }
    }
    then(hidden.upload(activated));
    plain.x_fp32 = hidden.get();
    plain.w = w2_.data();
    plain.w_scale = w2_.scale.get();
    plain.row_divisor = 1;
    plain.n = h;
    plain.k = i;
    plain.out = y.get();
    then(status == cudaSuccess ? reference_moe_gemm(type_, plain) : status);
    if (status != cudaSuccess) return kInfinity;
    const std::vector<float> rows = download_float(y);
    if (rows.empty()) return kInfinity;
    std::vector<float> want(count(tokens_, h), 0.0f);
    for (int pair = 0; pair < pairs; ++pair) {
      if (local[static_cast<size_t>(pair)] < 0) continue;
      for (int column = 0; column < h; ++column) {
        want[count(pair / preset_.top_k, h) + static_cast<size_t>(column)] +=
            weights[static_cast<size_t>(pair)] * rows[count(pair, h) + static_cast<size_t>(column)];
      }
    }
    return max_scaled_error(download_float(out_), want);
  }

 private:
  TileConfig config_of(ExpertGemm gemm) const {
    return tuned_config(type_, preset_.local_experts, gemm_n(preset_, gemm), gemm_k(preset_, gemm), tokens_,
                        preset_.top_k);
  }

  cudaError_t fill(uint64_t seed) {
    cudaError_t status = w13_.fill(seed);
    if (status == cudaSuccess) status = w2_.fill(seed + 2);
    if (status == cudaSuccess) status = fill_random(x_.get(), x_.size(), seed + 4, 1.0f);
    // Small enough that scores spread over the sigmoid's slope.
    if (status == cudaSuccess) status = fill_random(router_w_.get(), router_w_.size(), seed + 5, 0.05f);
    return status == cudaSuccess ? fill_random(bias_.get(), bias_.size(), seed + 6, 0.1f) : status;
  }

  TopkArgs topk_arguments() {
    TopkArgs a;
    a.logits = logits_.get();
    a.splits = router_splits(tokens_, preset_.experts, preset_.hidden);
    a.bias = bias_.get();
    a.tokens = tokens_;
    a.experts = preset_.experts;
    a.top_k = preset_.top_k;
    a.num_groups = preset_.num_groups;
    a.top_groups = preset_.top_groups;
    a.scaling = preset_.scaling;
    a.weights = weights_.get();
    a.ids = ids_.get();
    return a;
  }

  cudaError_t enqueue(const LaunchContext& ctx, int set) {
    const bool fp8 = type_ == WeightType::kFp8Block128;
    const int pairs = tokens_ * preset_.top_k;
    const bf16* x = x_.get() + count(set, tokens_, preset_.hidden);
    cudaError_t status = cudaSuccess;
    const auto then = [&](const auto& enqueue_next) {
      if (status == cudaSuccess) status = enqueue_next();
    };
    if (fp8) {
      const QuantizeFp8Args quantize{x, tokens_, preset_.hidden, x_fp8_.get(), x_scale_.get()};
      then([&] { return launch_quantize_fp8(ctx, quantize); });
    }
    const RouterArgs router{x, router_w_.get(), logits_.get(), tokens_, preset_.experts, preset_.hidden};
    then([&] { return launch_moe_router(ctx, router); });
    then([&] { return launch_moe_topk(ctx, topk_arguments()); });

    AlignArgs align;
    align.ids = ids_.get();
    align.num_pairs = pairs;
    align.experts = preset_.experts;
    align.expert_map = map_.get();
    align.local_experts = preset_.local_experts;
    align.block_m = w13_config_.block_m;
    align.sorted_ids = sorted_ids_.get();
    align.expert_ids = expert_ids_.get();
    align.num_padded = num_padded_.get();
    align.positions = positions_.get();
    then([&] { return launch_moe_align(ctx, align); });

    MoeGemmArgs gemm;
    gemm.x = fp8 ? static_cast<const void*>(x_fp8_.get()) : static_cast<const void*>(x);
    gemm.x_scale = x_scale_.get();
    gemm.w = w13_.data();
    gemm.w_scale = w13_.scale.get();
    gemm.out = gate_up_.get();
    gemm.out_fp32 = w13_config_.split_k > 1;
    gemm.sorted_ids = sorted_ids_.get();
    gemm.expert_ids = expert_ids_.get();
    gemm.num_padded = num_padded_.get();
    gemm.max_blocks = max_blocks(pairs, preset_.local_experts, w13_config_.block_m);
    gemm.num_pairs = pairs;
    gemm.row_divisor = preset_.top_k;
    gemm.n = 2 * preset_.intermediate;
    gemm.k = preset_.hidden;
    then([&] { return launch_moe_gemm(ctx, type_, w13_config_, gemm); });

    const auto rows_of = [](DeviceBuffer<float>& buffer, const TileConfig& config) {
      GemmRows rows;
      if (config.split_k > 1) {
        rows.partials = buffer.get();
      } else {
        rows.rows = reinterpret_cast<const bf16*>(buffer.get());
      }
      rows.splits = config.split_k;
      return rows;
    };
    SiluMulArgs silu;
    silu.gate_up = rows_of(gate_up_, w13_config_);
    silu.pairs = pairs;
    silu.intermediate = preset_.intermediate;
    silu.positions = positions_.get();
    silu.out = fp8 ? nullptr : hidden_.get();
    silu.out_fp8 = fp8 ? hidden_fp8_.get() : nullptr;
    silu.out_scale = fp8 ? hidden_scale_.get() : nullptr;
    then([&] { return launch_silu_mul(ctx, silu); });

    gemm.x = fp8 ? static_cast<const void*>(hidden_fp8_.get()) : static_cast<const void*>(hidden_.get());
    gemm.x_scale = hidden_scale_.get();
    gemm.w = w2_.data();
    gemm.w_scale = w2_.scale.get();
    gemm.out = y_.get();
    gemm.out_fp32 = w2_config_.split_k > 1;
    gemm.row_divisor = 1;
    gemm.n = preset_.hidden;
    gemm.k = preset_.intermediate;
    gemm.routing_is_settled = ctx.pdl;
    then([&] { return launch_moe_gemm(ctx, type_, w2_config_, gemm); });

    FinalizeArgs finalize;
    finalize.y = rows_of(y_, w2_config_);
    finalize.weights = weights_.get();
    finalize.positions = positions_.get();
    finalize.tokens = tokens_;
    finalize.top_k = preset_.top_k;
    finalize.hidden = preset_.hidden;
    finalize.out = out_.get();
    then([&] { return launch_finalize(ctx, finalize); });
    return status;
  }

  MoePreset preset_;
  WeightType type_;
  int tokens_;
  int next_set_ = 0;
  TileConfig w13_config_;
  TileConfig w2_config_;
  ExpertWeights w13_;
  ExpertWeights w2_;
  DeviceBuffer<bf16> x_, router_w_, hidden_, out_;
  DeviceBuffer<fp8_e4m3> x_fp8_, hidden_fp8_;
  DeviceBuffer<float> bias_, logits_, weights_, x_scale_, hidden_scale_;
  // fp32 partial sums, or bf16 rows in the same memory without splits.
  DeviceBuffer<float> gate_up_, y_;
  DeviceBuffer<int32_t> ids_, map_, sorted_ids_, expert_ids_, num_padded_, positions_;
};

}  // namespace

void add_layer_cases(std::vector<KernelCase>& cases) {
  uint64_t seed = 5000;
  for (const MoePreset& preset : moe_presets()) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kFp8Block128}) {
      for (const int tokens : {1, 4, 8}) {
        for (const bool pdl : {false, true}) {
          if (pdl && tokens == 4) continue;
          auto layer = std::make_shared<Layer>(preset, type, tokens);
          KernelCase c;
          c.name = type == WeightType::kBf16 ? "moe_layer_bf16" : "moe_layer_fp8";
          c.shape = std::string(preset.name) + " batch=" + std::to_string(tokens) + (pdl ? " pdl" : "");
          c.bytes = layer->bytes();
          c.launches = layer->launches();
          c.pdl = pdl;
          c.l2_defeated = true;
          // fp8: the activations' own rounding, 2^-4 at worst, in two GEMMs.
          c.tolerance = type == WeightType::kBf16 ? 5e-2 : 0.4;
          seed += 20;
          c.prepare = [layer] { return layer->prepare(); };
          c.run = [layer, pdl](cudaStream_t stream) { return layer->run({stream, pdl}); };
          c.check = [layer, pdl, seed] {
            cudaStream_t stream = nullptr;
            if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return kInfinity;
            const double error = layer->check({stream, pdl}, seed);
            return cudaStreamDestroy(stream) == cudaSuccess ? error : kInfinity;
          };
          cases.push_back(std::move(c));
        }
      }
    }
  }
}

}  // namespace cglint::kernels::moe
