// Kimi-Linear-48B-A3B: 20 layers of Kimi Delta Attention and 7 of multi-head latent attention without rotary
// embedding, each with a mixture of experts and one shared expert beside it (the first layer's feed-forward part is
// dense). One of two tensor-parallel shards; its all-reduces are left out.
//
// sgl-project/sglang#12660 put the shared and the routed experts on two streams while a graph is captured, up to 1,024
// tokens.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/attention/kda.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/norm.h"
#include "kernels/moe/activation.h"
#include "kimi_linear/concat_query.h"
#include "kimi_linear/reference.h"
#include "kimi_linear/weights.h"
#include "stack/embed.h"
#include "stack/fault.h"
#include "stack/host.h"
#include "stack/layer_trace.h"
#include "stack/model.h"
#include "stack/projection.h"
#include "stack/status.h"
#include "stack/streams.h"

namespace cglint::models {
const ModelInfo& kimi_linear_model();

namespace {

using namespace kimi;
using kernels::bf16;
using kernels::LaunchContext;

constexpr int kVocabulary = 4096;
constexpr int kMaxTokens = 4096;
constexpr int kMaxContext = 131'071;
constexpr int kOverlapTokens = 1024;  // the published threshold
// Of half a layer against the reference, both from the same input: some ten roundings to bf16.
constexpr PartError kLayerTolerance = {0.1, 0.015};
// A chosen expert's score may be this much below that of one left out: equal inputs, sums in another order.
constexpr double kScoreTolerance = 0.01;
// Of the stack, times the root of its layers; deeper ones than this drift too far from an unrounded reference.
constexpr double kStackTolerance = 0.05;
constexpr int kStackLayers = 8;
constexpr int kMainPool = 0;
constexpr int kSidePool = 1;

constexpr std::array kPresets = {
    PresetInfo{"48b-a3b-tp2", "hidden 2304, 20 KDA + 7 MLA layers, 256 experts of 512 (1024 over 2 GPUs), top-8", kLayers},
};
constexpr std::array kVariants = {
    VariantInfo{"sequential", "shared, then routed experts, on one stream"},
    VariantInfo{"dual_stream", "shared expert on a side stream, enqueued after the routed ones on the main stream", false,
                "sequential"},
    VariantInfo{"gated",
                "as published: routed experts on a side stream beside the shared one, up to 1024 tokens", false,
                "sequential"},
    VariantInfo{"ungated", "as published, but for any number of tokens: does not pay for many", false, "sequential"},
};

enum class Overlap { none, shared_on_side, routed_on_side };

Overlap overlap_of(const StackOptions& options) {
  if (options.variant == "dual_stream") return Overlap::shared_on_side;
  if (options.variant == "ungated") return Overlap::routed_on_side;
  if (options.variant == "gated" && options.batch <= kOverlapTokens) return Overlap::routed_on_side;
  return Overlap::none;
}

std::size_t elements(int a, int b, int c = 1) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
}
int layers_of(const StackOptions& options) { return options.layers > 0 ? options.layers : kLayers; }
int pages_per_sequence(const StackOptions& options) { return options.context / kPageSize + 1; }

// A layer's activations, each pool; attention and feed-forward do not overlap, so the larger counts.
std::size_t transient_bytes(const StackOptions& options, std::size_t attention_workspace) {
  const int tokens = options.batch;
  const std::size_t attention =
      elements(tokens, kFused + kQueriesAndRow + 2 * kChannels + 2 * kConvChannels + kHeads * (kCacheRow + kLatent)) *
          sizeof(bf16) +
      attention_workspace;
  const std::size_t experts = routed_transient_bytes(routed_shape(), tuned_tiles(routed_shape(), tokens), tokens) +
                              elements(tokens, 3 * kDenseIntermediate) * sizeof(bf16);
  return std::max(attention, experts) + elements(tokens, 6 * kHidden) * sizeof(bf16) + (std::size_t{1} << 20);
}

kernels::MlaDecode decode_call(const StackOptions& options, int sm_count) {
  kernels::MlaDecode call;
  call.batch = options.batch;
  call.heads = kHeads;
  call.page_size = kPageSize;
  call.max_pages = pages_per_sequence(options);
  call.cache_pages = std::int64_t{options.batch} * call.max_pages;
  call.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kQueryHead));
  call.splits = kernels::mla_decode_splits(options.batch, kHeads, options.context + 1, sm_count);
  return call;
}

std::size_t memory_bytes(const StackOptions& options) {
  if (!knows_names(options, kPresets, kVariants) || options.batch < 1 || options.batch > kMaxTokens || options.context < 1 || options.context > kMaxContext ||
      layers_of(options) > kLayers || !options.moe_config_dir.empty())
    return 0;
  const int pages = options.batch * pages_per_sequence(options);
  kernels::MlaDecode most = decode_call(options, 132);
  return Weights::bytes(layers_of(options), options.batch, pages) + elements(kVocabulary, kHidden) * sizeof(bf16) +
         2 * transient_bytes(options, kernels::mla_decode_workspace_bytes(most)) + (std::size_t{192} << 20);
}

class KimiLinear : public Model {
 public:
  explicit KimiLinear(const StackOptions& options)
      : options_(options), overlap_(overlap_of(options)), layers_(layers_of(options)) {}

  cudaError_t prepare(Arena& arena) override;
  std::string failure() const override { return failure_; }
  cudaError_t record(StepContext& context) override;
  cudaError_t output(std::vector<std::uint8_t>& bytes) override;
  CheckResult check(StepContext& context) override;
  cudaError_t use_input(int number) override;
  cudaError_t reset() override { return weights_.fill_states(); }

 private:
  cudaError_t plan_projections();
  cudaError_t fill();
  cudaError_t take(Tensor& tensor, std::size_t values, int pool = kMainPool) {
    return arena_->transient(values * sizeof(bf16), tensor, pool);
  }
  cudaError_t kda(const LaunchContext& ctx, const Layer& w, const bf16* x, bf16* out);
  cudaError_t mla(const LaunchContext& ctx, const Layer& w, const bf16* x, bf16* out);
  // Dense layer or shared expert.
  cudaError_t mlp(const LaunchContext& ctx, const Layer& w, bool dense, const bf16* x, bf16* out, int pool);
  cudaError_t experts(StepContext& context, int index, const bf16* x, Tensor& out);
  [[nodiscard]] std::int32_t* choices_of(int layer) const {
    return chosen_.as<std::int32_t>() + elements(layer, options_.batch, kTopK);
  }
  [[nodiscard]] void* workspace(int pool) const {
    return workspaces_[static_cast<std::size_t>(pool)].address();
  }

  StackOptions options_;
  Overlap overlap_;
  int layers_;
  int sm_count_ = 0;
  bool pdl_ = false;
  std::string failure_;
  Arena* arena_ = nullptr;
  LayerTrace* trace_ = nullptr;  // while check() repeats the step
  Weights weights_;
  RoutedTiles tiles_;
  Projection fused_, decay_gate_, q_kv_, o_, dense_gate_up_, dense_down_, shared_gate_up_, shared_down_;
  std::vector<std::int32_t> pages_;
  std::array<Tensor, 2> workspaces_;
  Tensor final_norm_, embedding_, token_ids_, chosen_, block_table_, seq_lens_, slots_, states_, output_;
};

cudaError_t KimiLinear::plan_projections() {
  std::shared_ptr<kernels::CublasLt> lt;
  if (options_.batch > Projection::kOwnTokens) {
    std::string error;
    lt = kernels::CublasLt::load(error);
    if (lt == nullptr && options_.batch > kernels::kSkinnyMaxTokens) {
      failure_ = "more than " + std::to_string(kernels::kSkinnyMaxTokens) + " tokens need cuBLASLt: " + error;
      return cudaErrorSharedObjectInitFailed;
    }
  }
  std::size_t bytes = 16;
  const auto plan = [&](Projection& projection, int n, int k, std::int64_t x_stride = 0) {
    const cudaError_t status = Projection::create(lt, {options_.batch, n, k, x_stride, 0}, sm_count_, projection);
    if (status == cudaSuccess) bytes = std::max(bytes, projection.workspace_bytes());
    return status;
  };
  CGLINT_RETURN_IF_ERROR(plan(fused_, kFused, kHidden));
  CGLINT_RETURN_IF_ERROR(plan(decay_gate_, kChannels, kHeadDim, kFused));
  CGLINT_RETURN_IF_ERROR(plan(q_kv_, kQueriesAndRow, kHidden));
  CGLINT_RETURN_IF_ERROR(plan(o_, kHidden, kChannels));
  CGLINT_RETURN_IF_ERROR(plan(dense_gate_up_, 2 * kDenseIntermediate, kHidden));
  CGLINT_RETURN_IF_ERROR(plan(dense_down_, kHidden, kDenseIntermediate));
  CGLINT_RETURN_IF_ERROR(plan(shared_gate_up_, 2 * kExpertIntermediate, kHidden));
  CGLINT_RETURN_IF_ERROR(plan(shared_down_, kHidden, kExpertIntermediate));
  // One a stream: branches may run at the same time.
  for (Tensor& tensor : workspaces_) {
    CGLINT_RETURN_IF_ERROR(arena_->persistent(bytes, tensor));
    CGLINT_RETURN_IF_ERROR(cudaMemset(tensor.address(), 0, bytes));
  }
  return cudaSuccess;
}

cudaError_t KimiLinear::prepare(Arena& arena) {
  arena_ = &arena;
  failure_.clear();
  if (memory_bytes(options_) == 0) {
    failure_ = "kimi_linear: batch 1 to " + std::to_string(kMaxTokens) + ", context 1 to " +
               std::to_string(kMaxContext) + ", at most " + std::to_string(kLayers) + " layers, no tile tables";
    return cudaErrorInvalidValue;
  }
  int device = 0;
  CGLINT_RETURN_IF_ERROR(cudaGetDevice(&device));
  CGLINT_RETURN_IF_ERROR(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  tiles_ = tuned_tiles(routed_shape(), options_.batch);

  const auto tokens = static_cast<std::size_t>(options_.batch);
  const int pages = options_.batch * pages_per_sequence(options_);
  CGLINT_RETURN_IF_ERROR(arena.persistent(kHidden * sizeof(bf16), final_norm_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(kVocabulary, kHidden) * sizeof(bf16), embedding_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int32_t), token_ids_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, options_.batch, kTopK) * sizeof(std::int32_t), chosen_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(static_cast<std::size_t>(pages) * sizeof(std::int32_t), block_table_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int32_t), seq_lens_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int64_t), slots_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int32_t), states_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * kHidden * sizeof(bf16), output_));
  CGLINT_RETURN_IF_ERROR(plan_projections());
  const std::size_t decode_workspace = kernels::mla_decode_workspace_bytes(decode_call(options_, sm_count_));
  for (const int pool : {kMainPool, kSidePool})
    CGLINT_RETURN_IF_ERROR(arena.reserve_transient(transient_bytes(options_, decode_workspace), pool));
  CGLINT_RETURN_IF_ERROR(weights_.prepare(arena, layers_, options_.batch, pages, options_.seed));
  CGLINT_RETURN_IF_ERROR(fill());
  return cudaDeviceSynchronize();
}

cudaError_t KimiLinear::fill() {
  const std::uint64_t seed = options_.seed * 100'000 + 99'000;
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(final_norm_.as<bf16>(), kHidden, seed, 0.1F, 1));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(embedding_.as<bf16>(), elements(kVocabulary, kHidden), seed + 1, 1.7F));
  CGLINT_RETURN_IF_ERROR(use_input(0));
  // Pages of a sequence lie apart, as a paged cache's do: those of all sequences are dealt out in turn.
  const int per_sequence = pages_per_sequence(options_);
  pages_.clear();
  std::vector<std::int32_t> lengths, states;
  std::vector<std::int64_t> slots;
  for (int b = 0; b < options_.batch; ++b) {
    for (int page = 0; page < per_sequence; ++page) pages_.push_back(page * options_.batch + b);
    lengths.push_back(options_.context + (options_.fault == fault::kNoLastToken ? 0 : 1));
    states.push_back(b);
    slots.push_back(std::int64_t{pages_.back()} * kPageSize + options_.context % kPageSize);
  }
  const auto upload = [](Tensor& to, const auto& values) {
    return cudaMemcpy(to.address(), values.data(), values.size() * sizeof(values[0]), cudaMemcpyHostToDevice);
  };
  CGLINT_RETURN_IF_ERROR(upload(block_table_, pages_));
  CGLINT_RETURN_IF_ERROR(upload(seq_lens_, lengths));
  CGLINT_RETURN_IF_ERROR(upload(states_, states));
  return upload(slots_, slots);
}

cudaError_t KimiLinear::use_input(int number) {
  const std::uint64_t seed = options_.seed * 100'000 + 99'002 + static_cast<std::uint64_t>(number);
  CGLINT_RETURN_IF_ERROR(kernels::fill_random_int(token_ids_.as<std::int32_t>(), static_cast<std::size_t>(options_.batch), seed, 0,
                                                  kVocabulary));
  return cudaDeviceSynchronize();
}

cudaError_t KimiLinear::kda(const LaunchContext& ctx, const Layer& w, const bf16* x, bf16* out) {
  const Range range("kda");
  const int tokens = options_.batch;
  Tensor fused, gates, qkv, attention;
  CGLINT_RETURN_IF_ERROR(take(fused, elements(tokens, kFused)));
  CGLINT_RETURN_IF_ERROR(fused_.run(ctx, x, w.fused, fused.as<bf16>(), workspace(kMainPool)));
  CGLINT_RETURN_IF_ERROR(take(gates, elements(2, tokens, kChannels)));
  const bf16* const gate_inputs = fused.as<bf16>() + kGateAt;
  if (decay_gate_.is_own()) {
    // Both gates in one launch.
    kernels::SkinnyGemm both;
    both.x = gate_inputs;
    both.x_token_stride = kFused;
    both.x_batch_stride = kHeadDim;
    both.weight = w.gates;
    both.weight_batch_stride = static_cast<std::int64_t>(kChannels) * kHeadDim;
    both.out = gates.as<bf16>();
    both.out_token_stride = kChannels;
    both.out_batch_stride = static_cast<std::int64_t>(tokens) * kChannels;
    both.tokens = tokens;
    both.n = kChannels;
    both.k = kHeadDim;
    both.batch = 2;
    CGLINT_RETURN_IF_ERROR(kernels::skinny_gemm(ctx, both, nullptr));
  } else {
    for (int gate = 0; gate < 2; ++gate)
      CGLINT_RETURN_IF_ERROR(decay_gate_.run(ctx, gate_inputs + gate * kHeadDim, w.gates + elements(gate, kChannels, kHeadDim),
                                             gates.as<bf16>() + elements(gate, tokens, kChannels), workspace(kMainPool)));
  }
  CGLINT_RETURN_IF_ERROR(take(qkv, elements(tokens, kConvChannels)));
  CGLINT_RETURN_IF_ERROR(kernels::kda_short_conv(ctx, fused.as<bf16>(), kFused, w.conv, w.conv_state,
                                                 states_.as<std::int32_t>(), qkv.as<bf16>(), tokens, kConvChannels));
  CGLINT_RETURN_IF_ERROR(take(attention, elements(tokens, kChannels)));
  CGLINT_RETURN_IF_ERROR(kernels::kda_delta_rule(ctx, qkv.as<bf16>(), gates.as<bf16>(), kChannels,
                                                 fused.as<bf16>() + kBetaAt, kFused, w.a_log, w.dt_bias, w.state,
                                                 states_.as<std::int32_t>(), attention.as<bf16>(), tokens, kHeads));
  const std::size_t output_gate = options_.fault == fault::kWrongGate ? 0 : elements(tokens, kChannels);
  CGLINT_RETURN_IF_ERROR(kernels::kda_gated_norm(ctx, attention.as<bf16>(), gates.as<bf16>() + output_gate, kChannels, w.head_norm,
                                                 attention.as<bf16>(), tokens, kHeads, kEpsilon));
  return o_.run(ctx, attention.as<bf16>(), w.o, out, workspace(kMainPool));
}

cudaError_t KimiLinear::mla(const LaunchContext& ctx, const Layer& w, const bf16* x, bf16* out) {
  const Range range("mla");
  const int tokens = options_.batch;
  Tensor both, latent, query, decode_workspace, attention, values;
  CGLINT_RETURN_IF_ERROR(take(both, elements(tokens, kQueriesAndRow)));
  CGLINT_RETURN_IF_ERROR(q_kv_.run(ctx, x, w.q_kv, both.as<bf16>(), workspace(kMainPool)));
  const bf16* const q = both.as<bf16>();
  const bf16* const kv = q + kQueries;
  CGLINT_RETURN_IF_ERROR(take(latent, elements(tokens, kLatent)));
  CGLINT_RETURN_IF_ERROR(kernels::rms_norm(ctx, kv, kQueriesAndRow, w.kv_norm, latent.as<bf16>(), kLatent, tokens,
                                           kLatent, kEpsilon));
  CGLINT_RETURN_IF_ERROR(take(query, elements(tokens, kHeads, kCacheRow)));
  constexpr std::int64_t kTokenStride = kQueriesAndRow;
  constexpr std::int64_t kLatentStride = kHeads * kCacheRow;
  for (int first = 0; first < tokens; first += kernels::kSkinnyMaxTokens) {
    CGLINT_RETURN_IF_ERROR(kernels::mla_absorb_query(
        ctx, q + first * kTokenStride, kTokenStride, kQueryHead, w.w_uk_t,
        query.as<bf16>() + first * kLatentStride, kLatentStride, kCacheRow,
        std::min(kernels::kSkinnyMaxTokens, tokens - first), kHeads));
  }
  CGLINT_RETURN_IF_ERROR(concat_query(ctx, q + kHeadDim, kTokenStride, kQueryHead, query.as<bf16>(), tokens, kHeads));
  CGLINT_RETURN_IF_ERROR(kernels::concat_and_cache_mla(ctx, latent.as<bf16>(), kLatent, kv + kLatent, kQueriesAndRow,
                                                       slots_.as<std::int64_t>(), w.cache, tokens));
  CGLINT_RETURN_IF_ERROR(take(attention, elements(tokens, kHeads, kLatent)));
  kernels::MlaDecode decode = decode_call(options_, sm_count_);
  if (const std::size_t bytes = kernels::mla_decode_workspace_bytes(decode); bytes > 0)
    CGLINT_RETURN_IF_ERROR(arena_->transient(bytes, decode_workspace));
  decode.q = query.as<bf16>();
  decode.cache = w.cache;
  decode.block_table = block_table_.as<std::int32_t>();
  decode.seq_lens = seq_lens_.as<std::int32_t>();
  decode.out = attention.as<bf16>();
  decode.cache_is_settled = true;  // the step writes each sequence's last row alone
  CGLINT_RETURN_IF_ERROR(kernels::mla_decode(ctx, decode, decode_workspace.address()));
  CGLINT_RETURN_IF_ERROR(take(values, elements(tokens, kChannels)));
  for (int first = 0; first < tokens; first += kernels::kSkinnyMaxTokens) {
    CGLINT_RETURN_IF_ERROR(kernels::mla_project_value(
        ctx, attention.as<bf16>() + elements(first, kHeads, kLatent), w.w_uv, static_cast<std::int64_t>(kHeadDim) * kLatent,
        values.as<bf16>() + elements(first, kChannels), std::min(kernels::kSkinnyMaxTokens, tokens - first), kHeads));
  }
  return o_.run(ctx, values.as<bf16>(), w.o, out, workspace(kMainPool));
}

cudaError_t KimiLinear::mlp(const LaunchContext& ctx, const Layer& w, bool dense, const bf16* x, bf16* out, int pool) {
  const int intermediate = dense ? kDenseIntermediate : kExpertIntermediate;
  Tensor both, gated;
  CGLINT_RETURN_IF_ERROR(take(both, elements(options_.batch, 2 * intermediate), pool));
  CGLINT_RETURN_IF_ERROR((dense ? dense_gate_up_ : shared_gate_up_).run(ctx, x, w.gate_up, both.as<bf16>(), workspace(pool)));
  CGLINT_RETURN_IF_ERROR(take(gated, elements(options_.batch, intermediate), pool));
  kernels::moe::SiluMulArgs silu;
  silu.gate_up.rows = both.as<bf16>();
  silu.pairs = options_.batch;
  silu.intermediate = intermediate;
  silu.out = gated.as<bf16>();
  CGLINT_RETURN_IF_ERROR(kernels::moe::launch_silu_mul(ctx, silu));
  return (dense ? dense_down_ : shared_down_).run(ctx, gated.as<bf16>(), w.down, out, workspace(pool));
}

// out = routed + shared.
cudaError_t KimiLinear::experts(StepContext& context, int index, const bf16* x, Tensor& out) {
  const Range range("moe");
  const Layer& w = weights_.layers()[static_cast<std::size_t>(index)];
  // As engines do, both branches share a stream outside capture.
  const Overlap overlap = context.capturing ? overlap_ : Overlap::none;
  const bool forks = overlap != Overlap::none;
  const LaunchContext on_main{context.main, pdl_};
  const LaunchContext on_side{forks ? context.side[0] : context.main, pdl_};
  const std::size_t values = elements(options_.batch, kHidden);
  Tensor shared, routed;

  const auto shared_expert = [&](bool on_side_stream) -> cudaError_t {
    const Range branch("shared_expert");
    const int pool = on_side_stream ? kSidePool : kMainPool;
    const LaunchContext& ctx = on_side_stream ? on_side : on_main;
    CGLINT_RETURN_IF_ERROR(take(shared, values, pool));
    return mlp(ctx, w, false, x, shared.as<bf16>(), pool);
  };
  const auto routed_experts = [&](bool on_side_stream) -> cudaError_t {
    const Range branch("routed_experts");
    RoutedCall call;
    call.pool = on_side_stream ? kSidePool : kMainPool;
    CGLINT_RETURN_IF_ERROR(take(routed, values, call.pool));
    call.x = x;
    call.tokens = options_.batch;
    call.ids = choices_of(index);
    call.out = routed.as<bf16>();
    RoutedShape shape = routed_shape();
    RoutedWeights weights = w.routed;
    const int next = std::min(index + 1, layers_ - 1);  // of another set
    spoil(options_.fault, index, layers_, weights_.layers()[static_cast<std::size_t>(next)].routed, shape, weights);
    return enqueue_routed_experts(on_side_stream ? on_side : on_main, *arena_, shape, tiles_, weights, call);
  };

  if (forks) CGLINT_RETURN_IF_ERROR(wait_stream(context, context.side[0], context.main));
  if (overlap == Overlap::shared_on_side) {
    CGLINT_RETURN_IF_ERROR(routed_experts(false));
    CGLINT_RETURN_IF_ERROR(shared_expert(true));
  } else {
    CGLINT_RETURN_IF_ERROR(shared_expert(false));
    CGLINT_RETURN_IF_ERROR(routed_experts(overlap == Overlap::routed_on_side));
  }
  if (forks) CGLINT_RETURN_IF_ERROR(wait_stream(context, context.main, context.side[0]));
  CGLINT_RETURN_IF_ERROR(take(out, values));
  return kernels::residual_add(on_main, routed.as<bf16>(), shared.as<bf16>(), out.as<bf16>(), static_cast<std::int64_t>(values));
}

cudaError_t KimiLinear::record(StepContext& context) {
  const LaunchContext ctx{context.main, pdl_};
  const int tokens = options_.batch;
  const std::size_t values = elements(tokens, kHidden);
  Tensor residual, previous;
  CGLINT_RETURN_IF_ERROR(take(residual, values));
  CGLINT_RETURN_IF_ERROR(
      embed_tokens(ctx, token_ids_.as<std::int32_t>(), embedding_.as<bf16>(), residual.as<bf16>(), tokens, kHidden));
  const auto add_norm = [&](const Tensor& input, const bf16* gamma, bf16* out) {
    return kernels::add_rms_norm(ctx, input.as<bf16>(), kHidden, residual.as<bf16>(), gamma, out, kHidden, tokens, kHidden,
                                 kEpsilon);
  };
  for (int i = 0; i < layers_; ++i) {
    const Range range("layer", i);
    const Layer& w = weights_.layers()[static_cast<std::size_t>(i)];
    Tensor x, attention, out;
    CGLINT_RETURN_IF_ERROR(take(x, values));
    CGLINT_RETURN_IF_ERROR(i == 0 ? kernels::rms_norm(ctx, residual.as<bf16>(), kHidden, w.input_norm, x.as<bf16>(),
                                                      kHidden, tokens, kHidden, kEpsilon)
                                  : add_norm(previous, w.input_norm, x.as<bf16>()));
    previous.release();
    CGLINT_RETURN_IF_ERROR(take(attention, values));
    CGLINT_RETURN_IF_ERROR(is_mla(i) ? mla(ctx, w, x.as<bf16>(), attention.as<bf16>())
                                     : kda(ctx, w, x.as<bf16>(), attention.as<bf16>()));
    if (trace_ != nullptr) CGLINT_RETURN_IF_ERROR(trace_->keep(context.main, attention.as<bf16>()));
    CGLINT_RETURN_IF_ERROR(take(x, values));
    CGLINT_RETURN_IF_ERROR(add_norm(attention, w.post_norm, x.as<bf16>()));
    attention.release();
    if (is_dense(i)) {
      const Range mlp_range("mlp");
      CGLINT_RETURN_IF_ERROR(take(out, values));
      CGLINT_RETURN_IF_ERROR(mlp(ctx, w, true, x.as<bf16>(), out.as<bf16>(), kMainPool));
    } else {
      CGLINT_RETURN_IF_ERROR(experts(context, i, x.as<bf16>(), out));
    }
    if (trace_ != nullptr) CGLINT_RETURN_IF_ERROR(trace_->keep(context.main, out.as<bf16>()));
    previous = std::move(out);
  }
  return add_norm(previous, final_norm_.as<bf16>(), output_.as<bf16>());
}

cudaError_t KimiLinear::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF_ERROR(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

CheckResult KimiLinear::check(StepContext& context) {
  CheckResult result;
  result.tolerance = kLayerTolerance.largest;
  result.rms_tolerance = kLayerTolerance.rms;
  const auto failed = [&](std::string why) {
    result.ok = false;
    result.detail = std::move(why);
    return result;
  };
  constexpr const char* kCallFailed = "a CUDA call failed";
  const std::size_t values = elements(options_.batch, kHidden);
  LayerTrace trace;
  if (trace.reserve(2 * layers_, values) != cudaSuccess) return failed("no memory to keep the layers' outputs");
  if (std::string why = trace_step(*this, context, trace_, trace); !why.empty()) return failed(std::move(why));
  ReferenceStep step;
  step.weights = &weights_;
  step.batch = options_.batch;
  step.context = options_.context;
  step.max_pages = pages_per_sequence(options_);
  step.block_table = pages_;
  std::vector<std::int32_t> token_ids(static_cast<std::size_t>(options_.batch));
  step.choices.resize(elements(layers_, options_.batch, kTopK));
  if (cudaMemcpy(token_ids.data(), token_ids_.address(), token_ids_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemcpy(step.choices.data(), chosen_.address(), chosen_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess)
    return failed(kCallFailed);
  for (const std::int32_t id : token_ids) {
    const std::vector<float> row = download_floats(embedding_.as<bf16>() + elements(id, kHidden), kHidden);
    step.hidden.insert(step.hidden.end(), row.begin(), row.end());
  }
  step.final_norm = download_floats(final_norm_.as<bf16>(), kHidden);
  step.step_output = download_floats(output_.as<bf16>(), values);
  if (step.hidden.size() != values || step.final_norm.empty() || step.step_output.empty()) return failed(kCallFailed);
  step.trace = &trace;
  const ReferenceResult by_layer = reference_step(step);
  if (!by_layer.failure.empty()) return failed(by_layer.failure);
  if (!(by_layer.shortfall <= kScoreTolerance)) {
    result.error = by_layer.shortfall;
    return failed("an expert was chosen whose reference score is lower by " + std::to_string(by_layer.shortfall) +
                  " than that of the best eight");
  }
  by_layer.worst.judge(result, "each half of " + std::to_string(layers_) + " layers");
  if (layers_ > kStackLayers) return result;
  step.trace = nullptr;
  const ReferenceResult alone = reference_step(step);
  if (!alone.failure.empty()) return failed(alone.failure);
  result.stack_tolerance = kStackTolerance * std::sqrt(static_cast<double>(layers_));
  result.stack_error = kernels::max_scaled_error(step.step_output, alone.output);
  result.ok = result.ok && result.stack_error <= result.stack_tolerance;
  return result;
}

constexpr std::array kFaults = {fault::kRoutedScale, fault::kNoBias, fault::kWrongW2, fault::kNoLastToken, fault::kWrongGate};

const ModelInfo kInfo = {
    "kimi_linear",
    "Kimi-Linear-48B-A3B: delta-rule and latent attention, shared beside routed experts",
    kPresets,
    kVariants,
    1,
    memory_bytes,
    [](const StackOptions& options) -> std::unique_ptr<Model> {
      if (!knows_names(options, kPresets, kVariants)) return nullptr;
      return std::make_unique<KimiLinear>(options);
    },
    kFaults,
};

}  // namespace

const ModelInfo& kimi_linear_model() { return kInfo; }

}  // namespace cglint::models
