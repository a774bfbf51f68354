#include "kernels/moe/workload.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "kernels/common/case.h"
#include "kernels/moe/reference.h"

namespace cglint::kernels::moe {
namespace {

constexpr MoePreset kPresets[] = {
    // name, hidden, intermediate, experts, local, top_k, groups, top groups, scaling
    {"k2-tp8", 7168, 256, 384, 384, 8, 1, 1, 2.827f},
    {"k2-tp4", 7168, 512, 384, 384, 8, 1, 1, 2.827f},
    {"k2-ep4", 7168, 2048, 384, 96, 8, 1, 1, 2.827f},
    {"v3-tp8", 7168, 256, 256, 256, 8, 8, 4, 2.5f},
    {"kimi-linear-tp2", 2304, 512, 256, 256, 8, 1, 1, 2.446f},
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t count(int a, int b, int c = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
}

int scale_blocks(int columns) {
  return (columns + kScaleBlock - 1) / kScaleBlock;
}

}  // namespace

std::span<const MoePreset> moe_presets() {
  return kPresets;
}

const MoePreset* find_preset(const char* name) {
  for (const MoePreset& preset : kPresets) {
    if (std::strcmp(preset.name, name) == 0) return &preset;
  }
  return nullptr;
}

cudaError_t ExpertWeights::allocate(WeightType weight_type, const MoePreset& preset, ExpertGemm gemm) {
  type = weight_type;
  experts = preset.local_experts;
  n = gemm_n(preset, gemm);
  k = gemm_k(preset, gemm);
  if (type == WeightType::kBf16) return bf16_data.allocate(count(experts, n, k));
  const cudaError_t status = fp8_data.allocate(count(experts, n, k));
  return status != cudaSuccess ? status : scale.allocate(count(experts, scale_blocks(n), scale_blocks(k)));
}

cudaError_t ExpertWeights::fill(uint64_t seed) {
  if (type == WeightType::kBf16) return fill_random(bf16_data.get(), bf16_data.size(), seed, 1.0f);
  const cudaError_t status = fill_random(fp8_data.get(), fp8_data.size(), seed, 4.0f);
  return status != cudaSuccess ? status : fill_random(scale.get(), scale.size(), seed + 1, 0.5f, 1.0f);
}

std::vector<int32_t> make_expert_map(const MoePreset& preset) {
  std::vector<int32_t> map;
  if (preset.local_experts == preset.experts) return map;
  for (int e = 0; e < preset.experts; ++e) map.push_back(e < preset.local_experts ? e : -1);
  return map;
}

std::vector<std::vector<int32_t>> make_choices(const MoePreset& preset, int tokens, int sets, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int local_choices = preset.top_k * preset.local_experts / preset.experts;
  std::vector<std::vector<int32_t>> choices(static_cast<size_t>(sets));
  for (auto& set : choices) {
    for (int token = 0; token < tokens; ++token) {
      std::vector<int32_t> mine;
      const auto draw = [&](int low, int high, int wanted) {
        while (wanted > 0) {
          const auto e =
              static_cast<int32_t>(low + static_cast<int>(random() % static_cast<uint64_t>(high - low)));
          if (std::find(mine.begin(), mine.end(), e) != mine.end()) continue;
          mine.push_back(e);
          --wanted;
        }
      };
      draw(0, preset.local_experts, local_choices);
      draw(preset.local_experts, preset.experts, preset.top_k - local_choices);
      std::shuffle(mine.begin(), mine.end(), random);
      set.insert(set.end(), mine.begin(), mine.end());
    }
  }
  return choices;
}

GemmWorkload::GemmWorkload(const MoePreset& preset, WeightType type, ExpertGemm gemm, int tokens)
    : preset_(preset), type_(type), gemm_(gemm), tokens_(tokens), shares_lists_(tokens <= 2) {
  const int local_choices = preset.top_k * preset.local_experts / preset.experts;
  const int local_pairs = tokens * local_choices;
  const double set_bytes = std::min(local_pairs, preset.local_experts) *
                           static_cast<double>(gemm_n(preset, gemm)) * gemm_k(preset, gemm) *
                           (type == WeightType::kBf16 ? 2 : 1);
  const int sets = rotation_copies(set_bytes);
  if (!shares_lists_) {
    choices_ = make_choices(preset, tokens, sets, 17);
    return;
  }
  // Each token its own experts, in no order; the experts of other shards come last.
  window_ = local_pairs;
  std::mt19937_64 random(17);
  std::vector<int32_t> local(static_cast<size_t>(window_));
  std::iota(local.begin(), local.end(), 0);
  std::shuffle(local.begin(), local.end(), random);
  for (int set = 0; set < std::min(sets, preset.local_experts / window_); ++set) {
    std::vector<int32_t> choice;
    for (int pair = 0; pair < tokens * preset.top_k; ++pair) {
      const int token = pair / preset.top_k;
      const int nth = pair % preset.top_k;
      choice.push_back(nth < local_choices
                           ? local[count(token, local_choices) + static_cast<size_t>(nth)] + set * window_
                           : preset.local_experts + nth);
    }
    choices_.push_back(choice);
  }
}

double GemmWorkload::bytes() const {
  const double n = gemm_n(preset_, gemm_);
  const double k = gemm_k(preset_, gemm_);
  const bool fp8 = type_ == WeightType::kFp8Block128;
  const double element = fp8 ? 1 : 2;
  const double w_bytes =
      n * k * element +
      (fp8 ? 4.0 * scale_blocks(static_cast<int>(n)) * scale_blocks(static_cast<int>(k)) : 0);
  const double x_bytes = k * element + (fp8 ? 4.0 * scale_blocks(static_cast<int>(k)) : 0);
  double total = 0;
  for (const auto& set : choices_) {
    std::set<int32_t> experts;
    double pairs = 0;
    for (const int32_t e : set) {
      if (e >= preset_.local_experts) continue;
      experts.insert(e);
      ++pairs;
    }
    const double x_rows = gemm_ == ExpertGemm::kW13 ? tokens_ : pairs;
    total += static_cast<double>(experts.size()) * w_bytes + x_rows * x_bytes + pairs * n * 2;
  }
  return total / static_cast<double>(choices_.size());
}

cudaError_t GemmWorkload::fill_activations(uint64_t seed) {
  if (type_ == WeightType::kBf16) return fill_random(x_bf16_.get(), x_bf16_.size(), seed, 1.0f);
  const cudaError_t status = fill_random(x_fp8_.get(), x_fp8_.size(), seed, 4.0f);
  return status != cudaSuccess ? status : fill_random(x_scale_.get(), x_scale_.size(), seed + 1, 0.5f, 1.0f);
}

cudaError_t GemmWorkload::prepare(std::shared_ptr<ExpertWeights> weights) {
  cudaError_t status = cudaSuccess;
  weights_ = std::move(weights);
  if (weights_ == nullptr) {
    weights_ = std::make_shared<ExpertWeights>();
    status = weights_->allocate(type_, preset_, gemm_);
    if (status == cudaSuccess) status = weights_->fill(3);
  }
  const int rows = gemm_ == ExpertGemm::kW13 ? tokens_ : tokens_ * preset_.top_k;
  const int k = gemm_k(preset_, gemm_);
  if (status == cudaSuccess && type_ == WeightType::kBf16) status = x_bf16_.allocate(count(rows, k));
  if (status == cudaSuccess && type_ != WeightType::kBf16) status = x_fp8_.allocate(count(rows, k));
  if (status == cudaSuccess && type_ != WeightType::kBf16)
    status = x_scale_.allocate(count(rows, scale_blocks(k)));
  return status == cudaSuccess ? fill_activations(5) : status;
}

cudaError_t GemmWorkload::select(const TileConfig& config) {
  const std::vector<int32_t> map = make_expert_map(preset_);
  const int pairs = tokens_ * preset_.top_k;
  cudaError_t status = cudaSuccess;
  if (sorted_ids_.size() == 0 || config.block_m != config_.block_m) {
    max_blocks_ = max_blocks(pairs, preset_.local_experts, config.block_m);
    std::vector<int32_t> sorted_ids;
    std::vector<int32_t> expert_ids;
    std::vector<int32_t> num_padded;
    for (const auto& set : choices_) {
      if (shares_lists_ && !num_padded.empty()) break;
      const BlockLists lists = reference_align(set, map, preset_.local_experts, config.block_m);
      sorted_ids.insert(sorted_ids.end(), lists.sorted_ids.begin(), lists.sorted_ids.end());
      expert_ids.insert(expert_ids.end(), lists.expert_ids.begin(), lists.expert_ids.end());
      num_padded.push_back(lists.num_padded);
    }
    status = sorted_ids_.allocate(sorted_ids.size());
    if (status == cudaSuccess) status = expert_ids_.allocate(expert_ids.size());
    if (status == cudaSuccess) status = num_padded_.allocate(num_padded.size());
    if (status == cudaSuccess) status = sorted_ids_.upload(sorted_ids);
    if (status == cudaSuccess) status = expert_ids_.upload(expert_ids);
    if (status == cudaSuccess) status = num_padded_.upload(num_padded);
  }
  config_ = config;
  const int n = gemm_n(preset_, gemm_);
  const size_t out_bytes =
      config.split_k > 1 ? partial_elements(config, pairs, n) * sizeof(float) : count(pairs, n, 2);
  if (status == cudaSuccess && out_.size() < out_bytes) status = out_.allocate(out_bytes);
  return status;
}

MoeGemmArgs GemmWorkload::arguments(size_t set) {
  MoeGemmArgs args;
  args.x = type_ == WeightType::kBf16 ? static_cast<const void*>(x_bf16_.get())
                                      : static_cast<const void*>(x_fp8_.get());
  args.x_scale = x_scale_.get();
  const int n = gemm_n(preset_, gemm_);
  const int k = gemm_k(preset_, gemm_);
  const size_t moved = shares_lists_ ? set * static_cast<size_t>(window_) : 0;  // experts
  const size_t element_bytes = type_ == WeightType::kBf16 ? 2 : 1;
  args.w = static_cast<const char*>(weights_->data()) + moved * count(n, k) * element_bytes;
  if (type_ != WeightType::kBf16)
    args.w_scale = weights_->scale.get() + moved * count(scale_blocks(n), scale_blocks(k));
  args.out = out_.get();
  args.out_fp32 = config_.split_k > 1;
  const size_t rows = count(max_blocks_, config_.block_m);
  if (shares_lists_) set = 0;
  args.sorted_ids = sorted_ids_.get() + set * rows;
  args.expert_ids = expert_ids_.get() + set * static_cast<size_t>(max_blocks_);
  args.num_padded = num_padded_.get() + set;
  args.max_blocks = max_blocks_;
  args.num_pairs = tokens_ * preset_.top_k;
  args.row_divisor = gemm_ == ExpertGemm::kW13 ? preset_.top_k : 1;
  args.n = n;
  args.k = k;
  return args;
}

cudaError_t GemmWorkload::run(const LaunchContext& ctx) {
  const size_t set = next_set_++ % choices_.size();
  MoeGemmArgs args = arguments(set);
  args.routing_is_settled = ctx.pdl;
  return launch_moe_gemm(ctx, type_, config_, args);
}

double GemmWorkload::check(uint64_t seed, bool pdl) {
  const int pairs = tokens_ * preset_.top_k;
  const int n = gemm_n(preset_, gemm_);
  DeviceBuffer<float> want;
  DeviceBuffer<int32_t> experts;
  if (weights_->fill(seed) != cudaSuccess || fill_activations(seed + 2) != cudaSuccess ||
      want.allocate(count(pairs, n)) != cudaSuccess ||
      experts.allocate(static_cast<size_t>(pairs)) != cudaSuccess) {
    return kInfinity;
  }
  double worst = 0;
  for (size_t set = 0; set < std::min<size_t>(choices_.size(), 2); ++set) {
    std::vector<int32_t> local = choices_[set];
    for (int32_t& e : local) e = e < preset_.local_experts ? e : -1;
    MoeGemmArgs args = arguments(set);
    args.routing_is_settled = pdl;
    ReferenceGemmArgs plain;
    plain.x = args.x;
    plain.x_scale = args.x_scale;
    plain.w = weights_->data();  // true expert numbers: also checks how the sets are laid out
    plain.w_scale = weights_->scale.get();
    plain.experts = experts.get();
    plain.pairs = pairs;
    plain.row_divisor = args.row_divisor;
    plain.n = n;
    plain.k = args.k;
    plain.out = want.get();
    if (experts.upload(local) != cudaSuccess || out_.poison() != cudaSuccess ||
        reference_moe_gemm(type_, plain) != cudaSuccess ||
        launch_moe_gemm({}, type_, config_, args) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
      return kInfinity;
    }
    const double error = args.out_fp32 ? device_error(reinterpret_cast<const float*>(out_.get()),
                                                      config_.split_k, want.get(), experts.get(), pairs, n)
                                       : device_error(reinterpret_cast<const bf16*>(out_.get()), want.get(),
                                                      experts.get(), pairs, n);
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace cglint::kernels::moe
