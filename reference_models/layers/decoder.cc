#include "layers/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/dense_gemm.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/norm.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/skinny_gemm.h"
#include "kernels/moe/activation.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/router.h"
#include "kernels/moe/routing.h"
#include "layers/reference.h"
#include "stack/embed.h"
#include "stack/fault.h"
#include "stack/host.h"
#include "stack/layer_trace.h"
#include "stack/routed_experts.h"
#include "stack/status.h"
#include "stack/streams.h"

namespace cglint::models {
namespace {

using kernels::bf16;
using kernels::DenseGemm;
using kernels::fp8_e4m3;
using kernels::LaunchContext;
using kernels::SkinnyGemm;
namespace moe = kernels::moe;

// Layers take turns with this many weight sets. Between two uses of a set lie two other layers, which read at
// least 112 MB each (k2-tp8, one token: 52 attention, 5 router, 11 shared expert, 44 chosen experts).
constexpr int kWeightSets = 3;
constexpr int kPageSize = 64;
constexpr int kVocabulary = 1024;  // rows of the embedding table that are kept
constexpr int kMaxContext = 131071;
constexpr int kMaxLayers = 1024;  // for what a graph costs by its size, more than any published model has
constexpr float kEpsilon = 1e-6F;
constexpr int kAssumedMultiprocessors = 132;  // where there is no device to ask
// Of half a layer against the reference, both from the same input: some ten roundings to bf16, and what rounding to fp8 makes of
// them where a value lies near the middle of two of its steps.
constexpr PartError kLayerTolerance = {0.2, 0.03};
// A chosen expert's score may be this much below that of one left out: equal inputs, sums in another order.
constexpr double kChoiceTolerance = 0.01;
// Of the stack, times the root of its layers. Deeper ones than this drift so far from an unrounded reference that a fault would
// not stand out.
constexpr double kStackTolerance = 0.1;
constexpr int kStackLayers = 8;
constexpr auto kExpertType = moe::WeightType::kFp8Block128;
constexpr std::size_t kBf16 = sizeof(bf16);

template <typename... Counts>
std::size_t product_of(Counts... counts) {
  return (std::size_t{1} * ... * static_cast<std::size_t>(counts));
}

// Takes memory from an arena, or only adds up what it would take.
class Memory {
 public:
  explicit Memory(Arena* arena) : arena_(arena) {}
  void persistent(std::size_t bytes, Tensor& out) {
    total_ += (bytes + kGrain - 1) / kGrain * kGrain;
    if (arena_ != nullptr && status_ == cudaSuccess)
      status_ = arena_->persistent(std::max<std::size_t>(bytes, 16), out);
  }
  void pool(std::size_t bytes, int number) {
    total_ += (bytes + kGrain - 1) / kGrain * kGrain;
    if (arena_ != nullptr && status_ == cudaSuccess) status_ = arena_->reserve_transient(bytes, number);
  }
  [[nodiscard]] cudaError_t status() const { return status_; }
  [[nodiscard]] std::size_t total() const { return total_; }

 private:
  static constexpr std::size_t kGrain = 512;
  Arena* arena_;
  cudaError_t status_ = cudaSuccess;
  std::size_t total_ = 0;
};

struct AttentionWeights {
  Tensor input_norm, qkv_a, q_norm, kv_norm, q_b, w_uk_t, w_uv, o, post_norm;
};
struct DenseWeights {
  Tensor gate_up, down;
};
struct ExpertWeights {
  Tensor router, bias, w13, w13_scale, w2, w2_scale, shared_gate_up, shared_down;
};

// How a weight is filled. Widths are evened out: a product of normalised inputs has values of about `gain`.
struct Fill {
  enum class Kind { norm, matrix, bias, fp8, fp8_scale } kind = Kind::norm;
  int k = 0;  // of the product
  float gain = 1;
};

// Each weight once: visit(tensor, where the reference wants it, elements, fill).
template <typename Visit>
void each_weight(const DecoderShape& s, AttentionWeights& w, const Visit& visit) {
  using R = ReferenceLayer;
  const Fill norm;
  const auto matrix = [](int k, float gain = 1) { return Fill{Fill::Kind::matrix, k, gain}; };
  visit(w.input_norm, &R::input_norm, product_of(s.hidden), norm);
  visit(w.qkv_a, &R::qkv_a, product_of(s.query_rank + kLatent + kRope, s.hidden), matrix(s.hidden));
  visit(w.q_norm, &R::q_norm, product_of(s.query_rank), norm);
  visit(w.kv_norm, &R::kv_norm, product_of(kLatent), norm);
  visit(w.q_b, &R::q_b, product_of(s.heads, kQueryHead, s.query_rank), matrix(s.query_rank));
  visit(w.w_uk_t, &R::w_uk_t, product_of(s.heads, kHead, kLatent), matrix(kHead));
  visit(w.w_uv, &R::w_uv, product_of(s.heads, kHead, kLatent), matrix(kLatent));
  // An average over many cached rows is small; its branch should count beside the others.
  visit(w.o, &R::o, product_of(s.hidden, s.heads, kHead), matrix(s.heads * kHead, 4));
  visit(w.post_norm, &R::post_norm, product_of(s.hidden), norm);
}
template <typename Visit>
void each_weight(const DecoderShape& s, DenseWeights& w, const Visit& visit) {
  using R = ReferenceLayer;
  visit(w.gate_up, &R::gate_up, product_of(2, s.dense_intermediate, s.hidden), Fill{Fill::Kind::matrix, s.hidden});
  visit(w.down, &R::down, product_of(s.hidden, s.dense_intermediate), Fill{Fill::Kind::matrix, s.dense_intermediate});
}
template <typename Visit>
void each_weight(const DecoderShape& s, ExpertWeights& w, const Visit& visit) {
  using R = ReferenceLayer;
  const auto blocks = [](int width) { return (width + moe::kScaleBlock - 1) / moe::kScaleBlock; };
  const int width = s.expert_intermediate;
  visit(w.router, &R::router, product_of(s.experts, s.hidden), Fill{Fill::Kind::matrix, s.hidden, 1.5F});
  visit(w.bias, &R::bias, product_of(s.experts), Fill{Fill::Kind::bias});
  visit(w.w13, &R::w13, product_of(s.experts, 2 * width, s.hidden), Fill{Fill::Kind::fp8});
  visit(w.w13_scale, &R::w13_scale, product_of(s.experts, blocks(2 * width), blocks(s.hidden)), Fill{Fill::Kind::fp8_scale, s.hidden});
  visit(w.w2, &R::w2, product_of(s.experts, s.hidden, width), Fill{Fill::Kind::fp8});
  visit(w.w2_scale, &R::w2_scale, product_of(s.experts, blocks(s.hidden), blocks(width)), Fill{Fill::Kind::fp8_scale, width});
  visit(w.shared_gate_up, &R::shared_gate_up, product_of(2, s.shared_intermediate, s.hidden), Fill{Fill::Kind::matrix, s.hidden});
  visit(w.shared_down, &R::shared_down, product_of(s.hidden, s.shared_intermediate), Fill{Fill::Kind::matrix, s.shared_intermediate});
}

// What a member of ReferenceLayer points at.
template <typename T>
T pointee_of(const T* ReferenceLayer::*);

// A dense product of the step, x [batch, k] by weight [n, k]. Each has its own workspace, which its launches
// leave ready for the next.
struct Projection {
  int n = 0;
  int k = 0;
  int split_k = 1;
  Tensor workspace;
};

bool is_known(const StackOptions& options) {
  const DecoderShape* const shape = find_decoder_shape(options.preset);
  return shape != nullptr && options.layers >= 0 && options.layers <= kMaxLayers && options.batch >= 1 &&
         options.batch <= kernels::kSkinnyMaxTokens && options.context >= 1 &&
         options.context <= kMaxContext && options.moe_config_dir.empty();
}

class Decoder final : public Model {
 public:
  Decoder(const StackOptions& options, const DecoderShape& shape, const Schedule& schedule)
      : options_(options),
        shape_(shape),
        schedule_(schedule),
        batch_(options.batch),
        layers_(options.layers > 0 ? options.layers : shape.layers) {}

  cudaError_t prepare(Arena& arena) override;
  std::string failure() const override { return failure_; }
  cudaError_t record(StepContext& context) override;
  cudaError_t output(std::vector<std::uint8_t>& bytes) override;
  CheckResult check(StepContext& context) override;
  cudaError_t use_input(int number) override;
  cudaError_t reset() override;

  void lay_out(Memory& memory);

 private:
  // What the two branches of a mixture of experts hold until they are joined.
  struct Shared {
    Tensor input;  // another owner of the block's input, where the schedule takes one
    Tensor gate_up, hidden, out;
  };
  struct Routed {
    Tensor logits, weights, sorted_ids, expert_ids, num_padded, positions, x, x_scale, gate_up, hidden,
        hidden_scale, y;
  };

  [[nodiscard]] int pages() const { return (options_.context + 1 + kPageSize - 1) / kPageSize; }
  [[nodiscard]] int pairs() const { return batch_ * shape_.top_k; }
  [[nodiscard]] int qkv_width() const { return shape_.query_rank + kLatent + kRope; }
  [[nodiscard]] bool is_dense(int layer) const { return layer < shape_.dense_layers; }
  [[nodiscard]] int set_of(int layer) const { return layer % kWeightSets; }
  [[nodiscard]] int dense_layers() const { return std::min(layers_, shape_.dense_layers); }
  [[nodiscard]] int expert_layers() const { return layers_ - dense_layers(); }
  [[nodiscard]] int max_blocks() const {
    return moe::max_blocks(pairs(), shape_.experts, w13_tiles_.block_m);
  }
  [[nodiscard]] kernels::MlaDecode attention_call() const;

  void choose_tiles();
  [[nodiscard]] SkinnyGemm gemm_of(const Projection& projection, const void* x, const Tensor& weight,
                                   void* out) const;
  cudaError_t fill();
  cudaError_t make_dense_plans();

  [[nodiscard]] LaunchContext on_main(const StepContext& context) const { return {context.main, pdl_}; }
  // Plain for the first launch after a fork: library products and cache writes, which begin side branches in
  // engines, know no programmatic launch. (Where both branches of a fork start programmatically the driver
  // hands its streams on in another order.)
  LaunchContext on_side(const StepContext& context, int side) {
    const auto at = static_cast<std::size_t>(side);
    const bool chained = side_chained_[at];
    side_chained_[at] = true;
    return {context.side[at], chained && pdl_};
  }
  cudaError_t side_waits(StepContext& context, int side);
  cudaError_t main_waits(StepContext& context, int side);
  cudaError_t transient(std::size_t bytes, Tensor& out, int pool = 0) {
    return arena_->transient(bytes, out, pool);
  }
  cudaError_t project(const LaunchContext& ctx, Projection& projection, const void* x, const Tensor& weight,
                      void* out);

  cudaError_t norm(StepContext& context, const Tensor* addend, const Tensor& weight, Tensor& out);
  cudaError_t attention(StepContext& context, int layer, const Tensor& x, Tensor& out);
  cudaError_t write_cache(const LaunchContext& ctx, int layer, const Tensor& latent, const Tensor& rope);
  cudaError_t dense_mlp(StepContext& context, int layer, const Tensor& x, Tensor& out);
  cudaError_t experts(StepContext& context, int layer, Tensor& x, Tensor& out);
  template <typename Next>
  cudaError_t shared_start(const Next& next, int layer, const void* input, int pool, Shared& shared);
  cudaError_t shared_finish(const LaunchContext& ctx, int layer, int pool, Shared& shared);
  cudaError_t routed(StepContext& context, int layer, Tensor& x, bool release, Routed& r);
  cudaError_t finalize(const LaunchContext& ctx, const Routed& r, const Tensor* shared, Tensor& out);

  StackOptions options_;
  std::string failure_;
  const DecoderShape& shape_;
  Schedule schedule_;
  int batch_;
  int layers_;
  int sm_count_ = kAssumedMultiprocessors;
  bool pdl_ = false;
  Arena* arena_ = nullptr;
  LayerTrace* trace_ = nullptr;  // while check() repeats the step

  std::vector<AttentionWeights> attention_weights_;
  std::vector<DenseWeights> dense_weights_;
  std::vector<ExpertWeights> expert_weights_;
  Tensor final_norm_;
  std::vector<Tensor> caches_;  // one a layer
  Tensor block_table_, seq_lens_, positions_, slots_, rope_table_;
  Tensor embedding_, token_ids_, residual_, output_;
  Tensor choices_;  // [layers, batch, top_k]: what each layer's router chose, kept for check()
  Tensor attention_workspace_, dense_workspace_;
  Projection qkv_a_, q_b_, o_, dense_gate_up_, dense_down_, shared_gate_up_, shared_down_;
  moe::TileConfig w13_tiles_, w2_tiles_;
  int router_splits_ = 1;
  // cuBLASLt plans of the dense layers' products; empty where the library cannot be loaded, then our own
  // kernel.
  std::unique_ptr<DenseGemm> dense_gate_up_plan_, dense_down_plan_;

  std::vector<bool> side_chained_;  // the side stream's next launch follows its last one, not a fork
  std::vector<Tensor> held_;        // until the step's end: what a branch that is never joined still reads
};

// ---- memory

void Decoder::choose_tiles() {
  RoutedShape routed;
  routed.type = kExpertType;
  routed.hidden = shape_.hidden;
  routed.intermediate = shape_.expert_intermediate;
  routed.experts = routed.local_experts = shape_.experts;
  routed.top_k = shape_.top_k;
  const RoutedTiles tiles = tuned_tiles(routed, batch_);
  w13_tiles_ = tiles.w13;
  w2_tiles_ = tiles.w2;
  router_splits_ = moe::router_splits(batch_, shape_.experts, shape_.hidden);
}

kernels::MlaDecode Decoder::attention_call() const {
  kernels::MlaDecode call;
  call.block_table = block_table_.as<std::int32_t>();
  call.seq_lens = seq_lens_.as<std::int32_t>();
  call.batch = batch_;
  call.heads = shape_.heads;
  call.page_size = kPageSize;
  call.max_pages = pages();
  call.cache_pages = std::int64_t{batch_} * pages();
  call.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kQueryHead));
  call.splits = kernels::mla_decode_splits(batch_, shape_.heads, options_.context + 1, sm_count_);
  return call;
}

void Decoder::lay_out(Memory& memory) {
  choose_tiles();
  const DecoderShape& s = shape_;
  const std::size_t hidden_row = product_of(batch_, s.hidden) * kBf16;
  const auto take = [&](Tensor& tensor, auto place, std::size_t elements, const Fill& /*fill*/) {
    memory.persistent(elements * sizeof(decltype(pointee_of(place))), tensor);
  };
  const auto take_sets = [&](auto& sets, int layers) {
    sets.resize(product_of(std::min(layers, kWeightSets)));
    for (auto& set : sets) each_weight(s, set, take);
  };
  take_sets(attention_weights_, layers_);
  take_sets(dense_weights_, dense_layers());
  take_sets(expert_weights_, expert_layers());
  memory.persistent(product_of(s.hidden) * kBf16, final_norm_);
  caches_.resize(product_of(layers_));
  for (Tensor& cache : caches_)
    memory.persistent(product_of(batch_, pages(), kPageSize, kernels::kCacheRow) * kBf16, cache);
  memory.persistent(product_of(batch_, pages()) * sizeof(std::int32_t), block_table_);
  memory.persistent(product_of(batch_) * sizeof(std::int32_t), seq_lens_);
  memory.persistent(product_of(batch_) * sizeof(std::int64_t), positions_);
  memory.persistent(product_of(batch_) * sizeof(std::int64_t), slots_);
  memory.persistent(product_of(options_.context + 1, kRope) * sizeof(float), rope_table_);
  memory.persistent(product_of(kVocabulary, s.hidden) * kBf16, embedding_);
  memory.persistent(product_of(batch_) * sizeof(std::int32_t), token_ids_);
  for (Tensor* const tensor : {&residual_, &output_}) memory.persistent(hidden_row, *tensor);
  memory.persistent(product_of(layers_, pairs()) * sizeof(std::int32_t), choices_);

  const auto projection = [&](Projection& p, int n, int k, bool used = true) {
    p.n = n;
    p.k = k;
    p.split_k = kernels::skinny_split_k(batch_, n, k, 1, sm_count_);
    if (used)
      memory.persistent(kernels::skinny_gemm_workspace_bytes(gemm_of(p, nullptr, {}, nullptr)), p.workspace);
  };
  projection(qkv_a_, qkv_width(), s.hidden);
  projection(q_b_, s.heads * kQueryHead, s.query_rank);
  projection(o_, s.hidden, s.heads * kHead);
  projection(dense_gate_up_, 2 * s.dense_intermediate, s.hidden, dense_layers() > 0);
  projection(dense_down_, s.hidden, s.dense_intermediate, dense_layers() > 0);
  projection(shared_gate_up_, 2 * s.shared_intermediate, s.hidden, expert_layers() > 0);
  projection(shared_down_, s.hidden, s.shared_intermediate, expert_layers() > 0);
  memory.persistent(kernels::mla_decode_workspace_bytes(attention_call()), attention_workspace_);
  if (dense_layers() > 0) memory.persistent(DenseGemm::Shape{}.workspace_bytes, dense_workspace_);

  // Transient tensors: no more at once than one layer's, each of attention and of the feed-forward part
  // counted, with as much again for gaps.
  const std::size_t attention_bytes =
      product_of(batch_, qkv_width() + s.query_rank + kLatent + kRope +
                             s.heads * (kQueryHead + kernels::kCacheRow + kLatent + kHead) + 3 * s.hidden) *
      kBf16;
  const std::size_t dense_bytes = product_of(batch_, 3 * s.dense_intermediate + 2 * s.hidden) * kBf16;
  const std::size_t routed_bytes =
      product_of(router_splits_, batch_, s.experts) * sizeof(float) +
      product_of(max_blocks(), w13_tiles_.block_m + 1) * sizeof(std::int32_t) + product_of(pairs(), 16) +
      product_of(batch_, s.hidden, 8) +
      product_of(w13_tiles_.split_k, pairs(), 2 * s.expert_intermediate) * sizeof(float) +
      product_of(pairs(), s.expert_intermediate, 2) +
      product_of(w2_tiles_.split_k, pairs(), s.hidden) * sizeof(float);
  const std::size_t shared_bytes = product_of(batch_, 3 * s.shared_intermediate + s.hidden) * kBf16;
  const std::size_t held_bytes =
      schedule_.attention == AttentionOrder::join_missing
          ? product_of(layers_) * (product_of(batch_, kernels::kCacheRow) * kBf16 + 1024)
          : 0;
  constexpr std::size_t kSlack = std::size_t{1} << 20;
  memory.pool(
      2 * (attention_bytes + std::max(dense_bytes, routed_bytes + shared_bytes)) + held_bytes + kSlack, 0);
  memory.pool(2 * shared_bytes + kSlack, 1);
}

SkinnyGemm Decoder::gemm_of(const Projection& projection, const void* x, const Tensor& weight,
                            void* out) const {
  SkinnyGemm gemm;
  gemm.x = static_cast<const bf16*>(x);
  gemm.x_token_stride = projection.k;
  gemm.weight = weight.as<bf16>();
  gemm.out = static_cast<bf16*>(out);
  gemm.out_token_stride = projection.n;
  gemm.tokens = batch_;
  gemm.n = projection.n;
  gemm.k = projection.k;
  gemm.split_k = projection.split_k;
  return gemm;
}

cudaError_t Decoder::prepare(Arena& arena) {
  if (!is_known(options_)) {
    failure_ = "batch must be 1 to " + std::to_string(kernels::kSkinnyMaxTokens) + ", context 1 to " +
               std::to_string(kMaxContext) + ", layers at most " + std::to_string(kMaxLayers) +
               "; a table of tiles (--moe-config) is not read by this model";
    return cudaErrorInvalidValue;
  }
  arena_ = &arena;
  int device = 0;
  CGLINT_RETURN_IF_ERROR(cudaGetDevice(&device));
  CGLINT_RETURN_IF_ERROR(cudaDeviceGetAttribute(&sm_count_, cudaDevAttrMultiProcessorCount, device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  Memory memory(&arena);
  lay_out(memory);
  CGLINT_RETURN_IF_ERROR(memory.status());
  CGLINT_RETURN_IF_ERROR(make_dense_plans());
  return fill();
}

cudaError_t Decoder::make_dense_plans() {
  if (dense_layers() == 0) return cudaSuccess;
  std::string why;
  const std::shared_ptr<kernels::CublasLt> library = kernels::CublasLt::load(why);
  if (library == nullptr) return cudaSuccess;
  const auto plan = [&](int n, int k, std::unique_ptr<DenseGemm>& out) {
    DenseGemm::Shape shape;
    shape.tokens = batch_;
    shape.n = n;
    shape.k = k;
    out = std::make_unique<DenseGemm>();
    return DenseGemm::create(library, shape, 1, *out);
  };
  CGLINT_RETURN_IF_ERROR(plan(dense_gate_up_.n, dense_gate_up_.k, dense_gate_up_plan_));
  return plan(dense_down_.n, dense_down_.k, dense_down_plan_);
}

cudaError_t Decoder::fill() {
  std::uint64_t seed = options_.seed * 100000;
  cudaError_t status = cudaSuccess;
  const auto then = [&](cudaError_t next) {
    if (status == cudaSuccess) status = next;
  };
  const auto fill = [&](const Tensor& tensor, auto place, std::size_t elements, const Fill& how) {
    using T = decltype(pointee_of(place));
    constexpr float kFp8Range = 4;
    const float range = how.k > 0 ? how.gain * std::sqrt(3.0F / static_cast<float>(how.k)) : 0;
    float scale = 0;
    float offset = 0;
    switch (how.kind) {
      case Fill::Kind::norm: scale = 0.1F, offset = 1; break;
      case Fill::Kind::matrix: scale = range; break;
      case Fill::Kind::bias: scale = 0.1F; break;
      case Fill::Kind::fp8: scale = kFp8Range; break;
      case Fill::Kind::fp8_scale: scale = range / kFp8Range / 2, offset = range / kFp8Range; break;
    }
    then(kernels::fill_random(tensor.as<T>(), elements, seed++, scale, offset));
  };
  for (AttentionWeights& w : attention_weights_) each_weight(shape_, w, fill);
  for (DenseWeights& w : dense_weights_) each_weight(shape_, w, fill);
  for (ExpertWeights& w : expert_weights_) each_weight(shape_, w, fill);
  then(kernels::fill_random(final_norm_.as<bf16>(), product_of(shape_.hidden), seed++, 0.1F, 1.0F));
  for (const Tensor& cache : caches_)
    then(kernels::fill_random(cache.as<bf16>(), cache.size_bytes() / kBf16, seed++, std::sqrt(3.0F)));
  then(kernels::fill_random(embedding_.as<bf16>(), product_of(kVocabulary, shape_.hidden), seed++,
                            std::sqrt(3.0F)));
  then(use_input(0));

  // Each sequence's pages are spread over the pool, as a paged cache's are after a while.
  std::vector<std::int32_t> table(product_of(batch_, pages()));
  std::iota(table.begin(), table.end(), 0);
  std::mt19937_64 random(options_.seed);
  for (std::size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[random() % i]);
  std::vector<std::int64_t> slots;
  for (int b = 0; b < batch_; ++b)
    slots.push_back(
        std::int64_t{table[product_of(b, pages()) + static_cast<std::size_t>(options_.context / kPageSize)]} *
            kPageSize +
        options_.context % kPageSize);
  const auto upload = [&](const Tensor& tensor, const auto& values) {
    then(cudaMemcpy(tensor.address(), values.data(), values.size() * sizeof(values[0]),
                    cudaMemcpyHostToDevice));
  };
  upload(block_table_, table);
  upload(slots_, slots);
  upload(seq_lens_, std::vector<std::int32_t>(product_of(batch_), options_.context + (options_.fault == fault::kNoLastToken ? 0 : 1)));
  upload(positions_, std::vector<std::int64_t>(product_of(batch_), options_.context - (options_.fault == fault::kRopePosition ? 1 : 0)));
  upload(rope_table_, kernels::make_rope_table(options_.context + 1, shape_.rope_base));
  for (const Projection* const p :
       {&qkv_a_, &q_b_, &o_, &dense_gate_up_, &dense_down_, &shared_gate_up_, &shared_down_})
    if (p->workspace.address() != nullptr)
      then(cudaMemset(p->workspace.address(), 0, p->workspace.size_bytes()));
  then(cudaMemset(choices_.address(), 0xFF, choices_.size_bytes()));
  then(cudaMemset(output_.address(), 0xFF, output_.size_bytes()));
  CGLINT_RETURN_IF_ERROR(status);
  return reset();
}

cudaError_t Decoder::use_input(int number) {
  const std::uint64_t seed = options_.seed * 100000 + 99000 + static_cast<std::uint64_t>(number);
  CGLINT_RETURN_IF_ERROR(
      kernels::fill_random_int(token_ids_.as<std::int32_t>(), product_of(batch_), seed, 0, kVocabulary));
  return cudaDeviceSynchronize();
}

// The row that the step writes becomes NaN in every cache, so that an attention that reads it too early
// shows.
cudaError_t Decoder::reset() {
  std::vector<std::int64_t> slots(product_of(batch_));
  CGLINT_RETURN_IF_ERROR(
      cudaMemcpy(slots.data(), slots_.address(), slots.size() * sizeof(slots[0]), cudaMemcpyDeviceToHost));
  for (const Tensor& cache : caches_) {
    for (const std::int64_t slot : slots)
      CGLINT_RETURN_IF_ERROR(
          cudaMemsetAsync(cache.as<bf16>() + slot * kernels::kCacheRow, 0xFF, kernels::kCacheRow * kBf16));
  }
  return cudaDeviceSynchronize();
}

// ---- the step

cudaError_t Decoder::side_waits(StepContext& context, int side) {
  side_chained_[static_cast<std::size_t>(side)] = false;
  return wait_stream(context, context.side[static_cast<std::size_t>(side)], context.main);
}

cudaError_t Decoder::main_waits(StepContext& context, int side) {
  return wait_stream(context, context.main, context.side[static_cast<std::size_t>(side)]);
}

cudaError_t Decoder::project(const LaunchContext& ctx, Projection& projection, const void* x,
                             const Tensor& weight, void* out) {
  return kernels::skinny_gemm(ctx, gemm_of(projection, x, weight, out),
                              projection.split_k > 1 ? projection.workspace.address() : nullptr);
}

// out = norm(residual), or of residual + addend, which becomes the residual.
cudaError_t Decoder::norm(StepContext& context, const Tensor* addend, const Tensor& weight, Tensor& out) {
  if (out.address() == nullptr)
    CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.hidden) * kBf16, out));
  const LaunchContext ctx = on_main(context);
  if (addend == nullptr)
    return kernels::rms_norm(ctx, residual_.as<bf16>(), shape_.hidden, weight.as<bf16>(), out.as<bf16>(),
                             shape_.hidden, batch_, shape_.hidden, kEpsilon);
  return kernels::add_rms_norm(ctx, addend->as<bf16>(), shape_.hidden, residual_.as<bf16>(),
                               weight.as<bf16>(), out.as<bf16>(), shape_.hidden, batch_, shape_.hidden,
                               kEpsilon);
}

cudaError_t Decoder::write_cache(const LaunchContext& ctx, int layer, const Tensor& latent,
                                 const Tensor& rope) {
  const Range range("kv_tail");
  return kernels::concat_and_cache_mla(ctx, latent.as<bf16>(), kLatent, rope.as<bf16>(), kRope,
                                       slots_.as<std::int64_t>(),
                                       caches_[static_cast<std::size_t>(layer)].as<bf16>(), batch_);
}

cudaError_t Decoder::attention(StepContext& context, int layer, const Tensor& x, Tensor& out) {
  const Range range("attention");
  const AttentionWeights& w = attention_weights_[static_cast<std::size_t>(set_of(layer))];
  const int heads = shape_.heads;
  const int side = schedule_.attention_side;
  // Outside capture a race would show more often than not, and the outputs to compare with would be wrong.
  const bool racy =
      schedule_.attention == AttentionOrder::join_late || schedule_.attention == AttentionOrder::join_missing;
  const bool two_streams = schedule_.attention != AttentionOrder::one_stream && (context.capturing || !racy);
  Tensor qkv, q_a, latent, rope, q, query, attended, values;
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, qkv_width()) * kBf16, qkv));
  CGLINT_RETURN_IF_ERROR(project(on_main(context), qkv_a_, x.address(), w.qkv_a, qkv.address()));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.query_rank) * kBf16, q_a));
  CGLINT_RETURN_IF_ERROR(kernels::rms_norm(on_main(context), qkv.as<bf16>(), qkv_width(), w.q_norm.as<bf16>(),
                                           q_a.as<bf16>(), shape_.query_rank, batch_, shape_.query_rank,
                                           kEpsilon));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, kLatent) * kBf16, latent));
  CGLINT_RETURN_IF_ERROR(kernels::rms_norm(on_main(context), qkv.as<bf16>() + shape_.query_rank, qkv_width(),
                                           w.kv_norm.as<bf16>(), latent.as<bf16>(), kLatent, batch_, kLatent,
                                           kEpsilon));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, heads, kQueryHead) * kBf16, q));
  CGLINT_RETURN_IF_ERROR(project(on_main(context), q_b_, q_a.address(), w.q_b, q.address()));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, heads, kernels::kCacheRow) * kBf16, query));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, kRope) * kBf16, rope));
  CGLINT_RETURN_IF_ERROR(kernels::rope_interleaved(
      on_main(context), positions_.as<std::int64_t>(), rope_table_.as<float>(), q.as<bf16>() + kHead,
      heads * kQueryHead, kQueryHead, query.as<bf16>() + kLatent, heads * kernels::kCacheRow,
      kernels::kCacheRow, qkv.as<bf16>() + shape_.query_rank + kLatent, qkv_width(), rope.as<bf16>(), kRope,
      batch_, heads));

  const auto absorb = [&] {
    const Range path("q_path");
    return kernels::mla_absorb_query(on_main(context), q.as<bf16>(), heads * kQueryHead, kQueryHead,
                                     w.w_uk_t.as<bf16>(), query.as<bf16>(), heads * kernels::kCacheRow,
                                     kernels::kCacheRow, batch_, heads);
  };
  switch (two_streams ? schedule_.attention : AttentionOrder::one_stream) {
    case AttentionOrder::one_stream:
      CGLINT_RETURN_IF_ERROR(write_cache(on_main(context), layer, latent, rope));
      CGLINT_RETURN_IF_ERROR(absorb());
      break;
    case AttentionOrder::side_first:
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      CGLINT_RETURN_IF_ERROR(write_cache(on_side(context, side), layer, latent, rope));
      CGLINT_RETURN_IF_ERROR(absorb());
      CGLINT_RETURN_IF_ERROR(main_waits(context, side));
      break;
    case AttentionOrder::main_first:
    case AttentionOrder::join_late:
    case AttentionOrder::join_missing:
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      CGLINT_RETURN_IF_ERROR(absorb());
      CGLINT_RETURN_IF_ERROR(write_cache(on_side(context, side), layer, latent, rope));
      if (schedule_.attention == AttentionOrder::main_first)
        CGLINT_RETURN_IF_ERROR(main_waits(context, side));
      break;
  }

  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, heads, kLatent) * kBf16, attended));
  kernels::MlaDecode call = attention_call();
  call.cache_is_settled = true;  // the step writes each sequence's last row alone
  call.q = query.as<bf16>();
  call.cache = caches_[static_cast<std::size_t>(layer)].as<bf16>();
  call.out = attended.as<bf16>();
  CGLINT_RETURN_IF_ERROR(kernels::mla_decode(on_main(context), call, attention_workspace_.address()));
  if (two_streams && schedule_.attention == AttentionOrder::join_late)
    CGLINT_RETURN_IF_ERROR(main_waits(context, side));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, heads, kHead) * kBf16, values));
  CGLINT_RETURN_IF_ERROR(kernels::mla_project_value(on_main(context), attended.as<bf16>(), w.w_uv.as<bf16>(),
                                                    kHead * kLatent, values.as<bf16>(), batch_, heads));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.hidden) * kBf16, out));
  CGLINT_RETURN_IF_ERROR(project(on_main(context), o_, values.address(), w.o, out.address()));
  if (two_streams && schedule_.attention == AttentionOrder::join_missing) {
    held_.push_back(std::move(latent));
    held_.push_back(std::move(rope));
  }
  return cudaSuccess;
}

cudaError_t Decoder::dense_mlp(StepContext& context, int layer, const Tensor& x, Tensor& out) {
  const Range range("dense_mlp");
  const DenseWeights& w = dense_weights_[static_cast<std::size_t>(layer) % dense_weights_.size()];
  const auto product = [&](const std::unique_ptr<DenseGemm>& plan, Projection& projection, const Tensor& in,
                           const Tensor& weight, const Tensor& result) {
    const LaunchContext ctx = on_main(context);
    if (plan == nullptr) return project(ctx, projection, in.address(), weight, result.address());
    return plan->run(ctx.stream, in.as<bf16>(), weight.as<bf16>(), nullptr, result.as<bf16>(),
                     dense_workspace_.address());
  };
  Tensor gate_up, hidden;
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, 2 * shape_.dense_intermediate) * kBf16, gate_up));
  CGLINT_RETURN_IF_ERROR(product(dense_gate_up_plan_, dense_gate_up_, x, w.gate_up, gate_up));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.dense_intermediate) * kBf16, hidden));
  moe::SiluMulArgs silu;
  silu.gate_up.rows = gate_up.as<bf16>();
  silu.pairs = batch_;
  silu.intermediate = shape_.dense_intermediate;
  silu.out = hidden.as<bf16>();
  CGLINT_RETURN_IF_ERROR(moe::launch_silu_mul(on_main(context), silu));
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.hidden) * kBf16, out));
  return product(dense_down_plan_, dense_down_, hidden, w.down, out);
}

// `next` gives the context of each launch.
template <typename Next>
cudaError_t Decoder::shared_start(const Next& next, int layer, const void* input, int pool, Shared& shared) {
  const Range range("shared_expert");
  const ExpertWeights& w = expert_weights_[static_cast<std::size_t>(layer) % expert_weights_.size()];
  CGLINT_RETURN_IF_ERROR(
      transient(product_of(batch_, 2 * shape_.shared_intermediate) * kBf16, shared.gate_up, pool));
  CGLINT_RETURN_IF_ERROR(project(next(), shared_gate_up_, input, w.shared_gate_up, shared.gate_up.address()));
  CGLINT_RETURN_IF_ERROR(
      transient(product_of(batch_, shape_.shared_intermediate) * kBf16, shared.hidden, pool));
  moe::SiluMulArgs silu;
  silu.gate_up.rows = shared.gate_up.as<bf16>();
  silu.pairs = batch_;
  silu.intermediate = shape_.shared_intermediate;
  silu.out = shared.hidden.as<bf16>();
  return moe::launch_silu_mul(next(), silu);
}

cudaError_t Decoder::shared_finish(const LaunchContext& ctx, int layer, int pool, Shared& shared) {
  const Range range("shared_expert");
  const ExpertWeights& w = expert_weights_[static_cast<std::size_t>(layer) % expert_weights_.size()];
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.hidden) * kBf16, shared.out, pool));
  return project(ctx, shared_down_, shared.hidden.address(), w.shared_down, shared.out.address());
}

// Router to W2. Its tensors stay the caller's until the branches are joined: only then may others have their
// memory. The input may go earlier, as soon as the quantised copy is made.
cudaError_t Decoder::routed(StepContext& context, int layer, Tensor& x, bool release, Routed& r) {
  const Range range("routed_experts");
  const DecoderShape& s = shape_;
  const ExpertWeights& w = expert_weights_[static_cast<std::size_t>(layer) % expert_weights_.size()];
  std::int32_t* const ids = choices_.as<std::int32_t>() + product_of(layer, pairs());
  CGLINT_RETURN_IF_ERROR(transient(product_of(router_splits_, batch_, s.experts) * sizeof(float), r.logits));
  moe::RouterArgs router;
  router.x = x.as<bf16>();
  router.w = w.router.as<bf16>();
  router.logits = r.logits.as<float>();
  router.tokens = batch_;
  router.experts = s.experts;
  router.hidden = s.hidden;
  CGLINT_RETURN_IF_ERROR(moe::launch_moe_router(on_main(context), router));

  CGLINT_RETURN_IF_ERROR(transient(product_of(pairs()) * sizeof(float), r.weights));
  moe::TopkArgs topk;
  topk.logits = r.logits.as<float>();
  topk.splits = router_splits_;
  topk.bias = options_.fault == fault::kNoBias ? nullptr : w.bias.as<float>();
  topk.tokens = batch_;
  topk.experts = s.experts;
  topk.top_k = s.top_k;
  topk.num_groups = s.num_groups;
  topk.top_groups = s.top_groups;
  topk.scaling = s.routed_scaling * (options_.fault == fault::kRoutedScale ? fault::kSmallScale : 1.0F);
  topk.weights = r.weights.as<float>();
  topk.ids = ids;
  CGLINT_RETURN_IF_ERROR(moe::launch_moe_topk(on_main(context), topk));

  CGLINT_RETURN_IF_ERROR(
      transient(product_of(max_blocks(), w13_tiles_.block_m) * sizeof(std::int32_t), r.sorted_ids));
  CGLINT_RETURN_IF_ERROR(transient(product_of(max_blocks()) * sizeof(std::int32_t), r.expert_ids));
  CGLINT_RETURN_IF_ERROR(transient(sizeof(std::int32_t), r.num_padded));
  CGLINT_RETURN_IF_ERROR(transient(product_of(pairs()) * sizeof(std::int32_t), r.positions));
  moe::AlignArgs align;
  align.ids = ids;
  align.num_pairs = pairs();
  align.experts = s.experts;
  align.local_experts = s.experts;
  align.block_m = w13_tiles_.block_m;
  align.sorted_ids = r.sorted_ids.as<std::int32_t>();
  align.expert_ids = r.expert_ids.as<std::int32_t>();
  align.num_padded = r.num_padded.as<std::int32_t>();
  align.positions = r.positions.as<std::int32_t>();
  CGLINT_RETURN_IF_ERROR(moe::launch_moe_align(on_main(context), align));

  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, s.hidden), r.x));
  CGLINT_RETURN_IF_ERROR(
      transient(product_of(batch_, s.hidden / moe::kScaleBlock) * sizeof(float), r.x_scale));
  moe::QuantizeFp8Args quantize{x.as<bf16>(), batch_, s.hidden, r.x.as<fp8_e4m3>(), r.x_scale.as<float>()};
  CGLINT_RETURN_IF_ERROR(moe::launch_quantize_fp8(on_main(context), quantize));
  if (release) x.release();

  const auto output_bytes = [&](const moe::TileConfig& tiles, int n) {
    return tiles.split_k > 1 ? moe::partial_elements(tiles, pairs(), n) * sizeof(float)
                             : product_of(pairs(), n) * kBf16;
  };
  const auto rows_of = [](const Tensor& tensor, const moe::TileConfig& tiles) {
    moe::GemmRows rows;
    if (tiles.split_k > 1) {
      rows.partials = tensor.as<float>();
    } else {
      rows.rows = tensor.as<bf16>();
    }
    rows.splits = tiles.split_k;
    return rows;
  };
  CGLINT_RETURN_IF_ERROR(transient(output_bytes(w13_tiles_, 2 * s.expert_intermediate), r.gate_up));
  moe::MoeGemmArgs gemm;
  gemm.x = r.x.address();
  gemm.x_scale = r.x_scale.as<float>();
  gemm.w = w.w13.address();
  gemm.w_scale = w.w13_scale.as<float>();
  gemm.out = r.gate_up.address();
  gemm.out_fp32 = w13_tiles_.split_k > 1;
  gemm.sorted_ids = r.sorted_ids.as<std::int32_t>();
  gemm.expert_ids = r.expert_ids.as<std::int32_t>();
  gemm.num_padded = r.num_padded.as<std::int32_t>();
  gemm.max_blocks = max_blocks();
  gemm.num_pairs = pairs();
  gemm.row_divisor = s.top_k;
  gemm.n = 2 * s.expert_intermediate;
  gemm.k = s.hidden;
  const LaunchContext ctx = on_main(context);
  gemm.routing_is_settled = ctx.pdl;  // the quantisation between has waited for the lists
  CGLINT_RETURN_IF_ERROR(moe::launch_moe_gemm(ctx, kExpertType, w13_tiles_, gemm));

  CGLINT_RETURN_IF_ERROR(transient(product_of(pairs(), s.expert_intermediate), r.hidden));
  CGLINT_RETURN_IF_ERROR(transient(
      product_of(pairs(), s.expert_intermediate / moe::kScaleBlock) * sizeof(float), r.hidden_scale));
  moe::SiluMulArgs silu;
  silu.gate_up = rows_of(r.gate_up, w13_tiles_);
  silu.pairs = pairs();
  silu.intermediate = s.expert_intermediate;
  silu.positions = r.positions.as<std::int32_t>();
  silu.out_fp8 = r.hidden.as<fp8_e4m3>();
  silu.out_scale = r.hidden_scale.as<float>();
  CGLINT_RETURN_IF_ERROR(moe::launch_silu_mul(on_main(context), silu));

  CGLINT_RETURN_IF_ERROR(transient(output_bytes(w2_tiles_, s.hidden), r.y));
  gemm.x = r.hidden.address();
  gemm.x_scale = r.hidden_scale.as<float>();
  const ExpertWeights& second = options_.fault == fault::kWrongW2 && is_spoilt_layer(layer, layers_)
                                    ? expert_weights_[static_cast<std::size_t>(layer + 1) % expert_weights_.size()]
                                    : w;
  gemm.w = second.w2.address();
  gemm.w_scale = second.w2_scale.as<float>();
  gemm.out = r.y.address();
  gemm.out_fp32 = w2_tiles_.split_k > 1;
  gemm.row_divisor = 1;
  gemm.n = s.hidden;
  gemm.k = s.expert_intermediate;
  return moe::launch_moe_gemm(ctx, kExpertType, w2_tiles_, gemm);
}

cudaError_t Decoder::finalize(const LaunchContext& ctx, const Routed& r, const Tensor* shared, Tensor& out) {
  CGLINT_RETURN_IF_ERROR(transient(product_of(batch_, shape_.hidden) * kBf16, out));
  moe::FinalizeArgs finalize;
  if (w2_tiles_.split_k > 1) {
    finalize.y.partials = r.y.as<float>();
  } else {
    finalize.y.rows = r.y.as<bf16>();
  }
  finalize.y.splits = w2_tiles_.split_k;
  finalize.weights = r.weights.as<float>();
  finalize.positions = r.positions.as<std::int32_t>();
  finalize.shared = shared == nullptr ? nullptr : shared->as<bf16>();
  finalize.tokens = batch_;
  finalize.top_k = shape_.top_k;
  finalize.hidden = shape_.hidden;
  finalize.out = out.as<bf16>();
  return moe::launch_finalize(ctx, finalize);
}

cudaError_t Decoder::experts(StepContext& context, int layer, Tensor& x, Tensor& out) {
  const Range range("moe");
  const bool two_streams = schedule_.experts != ExpertOrder::sequential &&
                           (context.capturing || !schedule_.expert_overlap_in_capture_only);
  const bool release = schedule_.releases_input && (schedule_.releases_while_capturing || !context.capturing);
  const int side = schedule_.expert_side;
  Shared shared;
  Routed r;
  const auto main = [&] { return on_main(context); };
  const auto beside = [&] { return on_side(context, side); };
  const auto side_branch = [&](const void* input) {
    const cudaError_t status = shared_start(beside, layer, input, 1, shared);
    return status != cudaSuccess ? status : shared_finish(beside(), layer, 1, shared);
  };
  if (!two_streams) {
    // A warm-up launches the kernels that the capture will. Beside the routed branch the first has no programmatic edge,
    // and kernels for plain launches are compiled apart.
    bool plain = schedule_.experts != ExpertOrder::sequential;
    const auto as_beside = [&] { return std::exchange(plain, false) ? LaunchContext{context.main, false} : main(); };
    CGLINT_RETURN_IF_ERROR(shared_start(as_beside, layer, x.address(), 0, shared));
    CGLINT_RETURN_IF_ERROR(shared_finish(main(), layer, 0, shared));
    CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
    return finalize(main(), r, &shared.out, out);
  }
  switch (schedule_.experts) {
    case ExpertOrder::sequential:
      return cudaErrorInvalidValue;  // not here
    case ExpertOrder::side_first:
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      CGLINT_RETURN_IF_ERROR(side_branch(x.address()));
      CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
      break;
    case ExpertOrder::main_first:
    case ExpertOrder::copy_before_residual:
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      if (schedule_.keeps_reference) shared.input = x.share();
      CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
      // Where the routed branch has released it and nobody kept a reference, the input has no address any
      // more.
      CGLINT_RETURN_IF_ERROR(side_branch(schedule_.keeps_reference ? shared.input.address() : x.address()));
      break;
    case ExpertOrder::join_before_residual: {
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
      Tensor sum;
      CGLINT_RETURN_IF_ERROR(finalize(main(), r, nullptr, sum));
      CGLINT_RETURN_IF_ERROR(side_branch(x.address()));
      CGLINT_RETURN_IF_ERROR(main_waits(context, side));
      CGLINT_RETURN_IF_ERROR(transient(sum.size_bytes(), out));
      return kernels::residual_add(main(), sum.as<bf16>(), shared.out.as<bf16>(), out.as<bf16>(),
                                   static_cast<std::int64_t>(batch_) * shape_.hidden);
    }
    case ExpertOrder::late_wait:
      CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
      CGLINT_RETURN_IF_ERROR(side_waits(context, side));
      CGLINT_RETURN_IF_ERROR(side_branch(x.address()));
      break;
    case ExpertOrder::event_side_first:
    case ExpertOrder::event_side_last_after_main: {
      const cudaEvent_t ready = context.next_event(context);
      if (ready == nullptr) return cudaErrorMemoryAllocation;
      const cudaStream_t stream = context.side[static_cast<std::size_t>(side)];
      CGLINT_RETURN_IF_ERROR(cudaEventRecord(ready, context.main));
      side_chained_[static_cast<std::size_t>(side)] = false;
      CGLINT_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, ready, 0));
      CGLINT_RETURN_IF_ERROR(shared_start(beside, layer, x.address(), 1, shared));
      if (schedule_.experts == ExpertOrder::event_side_first)
        CGLINT_RETURN_IF_ERROR(shared_finish(beside(), layer, 1, shared));
      CGLINT_RETURN_IF_ERROR(routed(context, layer, x, release, r));
      if (schedule_.experts != ExpertOrder::event_side_first)
        CGLINT_RETURN_IF_ERROR(shared_finish(beside(), layer, 1, shared));
      break;
    }
  }
  CGLINT_RETURN_IF_ERROR(main_waits(context, side));
  if (schedule_.experts != ExpertOrder::copy_before_residual) return finalize(main(), r, &shared.out, out);
  Tensor sum;
  CGLINT_RETURN_IF_ERROR(finalize(main(), r, &shared.out, sum));
  CGLINT_RETURN_IF_ERROR(transient(sum.size_bytes(), out));
  return cudaMemcpyAsync(out.address(), sum.address(), sum.size_bytes(), cudaMemcpyDeviceToDevice,
                         context.main);
}

cudaError_t Decoder::record(StepContext& context) {
  const int needed =
      1 + std::max(schedule_.attention == AttentionOrder::one_stream ? -1 : schedule_.attention_side,
                   schedule_.experts == ExpertOrder::sequential ? -1 : schedule_.expert_side);
  if (arena_ == nullptr || static_cast<int>(context.side.size()) < needed) return cudaErrorInvalidValue;
  side_chained_.assign(context.side.size(), false);
  held_.clear();
  CGLINT_RETURN_IF_ERROR(embed_tokens({context.main, false}, token_ids_.as<std::int32_t>(),
                                      embedding_.as<bf16>(), residual_.as<bf16>(), batch_, shape_.hidden));
  Tensor branch;
  for (int layer = 0; layer < layers_; ++layer) {
    const Range range("layer", layer);
    const AttentionWeights& w = attention_weights_[static_cast<std::size_t>(set_of(layer))];
    Tensor x, attended, h;
    CGLINT_RETURN_IF_ERROR(norm(context, layer == 0 ? nullptr : &branch, w.input_norm, x));
    branch.release();
    CGLINT_RETURN_IF_ERROR(attention(context, layer, x, attended));
    x.release();
    if (trace_ != nullptr) CGLINT_RETURN_IF_ERROR(trace_->keep(context.main, attended.as<bf16>()));
    CGLINT_RETURN_IF_ERROR(norm(context, &attended, w.post_norm, h));
    attended.release();
    CGLINT_RETURN_IF_ERROR(is_dense(layer) ? dense_mlp(context, layer, h, branch)
                                           : experts(context, layer, h, branch));
    if (trace_ != nullptr) CGLINT_RETURN_IF_ERROR(trace_->keep(context.main, branch.as<bf16>()));
  }
  CGLINT_RETURN_IF_ERROR(norm(context, &branch, final_norm_, output_));
  if (context.capturing && schedule_.attention == AttentionOrder::join_missing)
    CGLINT_RETURN_IF_ERROR(main_waits(context, schedule_.attention_side));
  held_.clear();
  return cudaSuccess;
}

cudaError_t Decoder::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF_ERROR(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

// ---- check

CheckResult Decoder::check(StepContext& context) {
  CheckResult result;
  result.tolerance = kLayerTolerance.largest;
  result.rms_tolerance = kLayerTolerance.rms;
  const auto failed = [&](std::string why) {
    result.ok = false;
    result.detail = std::move(why);
    return result;
  };
  LayerTrace trace;
  if (trace.reserve(2 * layers_, product_of(batch_, shape_.hidden)) != cudaSuccess)
    return failed("no memory to keep the layers' outputs");
  if (std::string why = trace_step(*this, context, trace_, trace); !why.empty()) return failed(std::move(why));
  ReferenceStep step;
  step.shape = shape_;
  step.batch = batch_;
  step.context = options_.context;
  step.page_size = kPageSize;
  step.max_pages = pages();
  step.epsilon = kEpsilon;
  step.block_table = block_table_.as<std::int32_t>();
  step.embedding = embedding_.as<bf16>();
  step.token_ids = token_ids_.as<std::int32_t>();
  step.final_norm = final_norm_.as<bf16>();
  step.step_output = output_.as<bf16>();
  step.choices.resize(product_of(layers_, pairs()));
  if (cudaMemcpy(step.choices.data(), choices_.address(), choices_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess)
    return failed("the experts chosen could not be read");
  for (int i = 0; i < layers_; ++i) {
    ReferenceLayer layer;
    const auto place_weight = [&](const Tensor& tensor, auto place, std::size_t /*elements*/, const Fill& /*fill*/) {
      layer.*place = tensor.as<decltype(pointee_of(place))>();
    };
    const auto at = static_cast<std::size_t>(i);
    each_weight(shape_, attention_weights_[at % kWeightSets], place_weight);
    if (is_dense(i)) {
      each_weight(shape_, dense_weights_[at % dense_weights_.size()], place_weight);
    } else {
      each_weight(shape_, expert_weights_[at % expert_weights_.size()], place_weight);
    }
    layer.cache = caches_[at].as<bf16>();
    layer.attention_output = trace.part(2 * i);
    layer.output = trace.part(2 * i + 1);
    step.layers.push_back(layer);
  }
  const auto unusable = [&](const ReferenceResult& reference) -> std::string {
    if (std::isinf(reference.choice_error)) return "the experts chosen are no valid choice";
    if (reference.output.empty()) return std::string("the reference could not be computed: ") + cudaGetErrorString(reference.status);
    return "";
  };
  const ReferenceResult by_layer = reference_step(step, ReferenceInput::of_the_step);
  if (std::string why = unusable(by_layer); !why.empty()) return failed(std::move(why));
  by_layer.worst.judge(result, "each half of " + std::to_string(layers_) + " layers");
  result.detail += "; worst expert chosen " + std::to_string(by_layer.choice_error) + " below the best score left out";
  result.ok = result.ok && by_layer.choice_error <= kChoiceTolerance;
  if (layers_ > kStackLayers) return result;
  const ReferenceResult alone = reference_step(step, ReferenceInput::its_own);
  if (std::string why = unusable(alone); !why.empty()) return failed(std::move(why));
  result.stack_tolerance = kStackTolerance * std::sqrt(static_cast<double>(layers_));
  result.stack_error = kernels::max_scaled_error(download_floats(output_.as<bf16>(), product_of(batch_, shape_.hidden)), alone.output);
  result.ok = result.ok && result.stack_error <= result.stack_tolerance;
  return result;
}

}  // namespace

namespace {

// The schedule of options.variant (empty: the first), or null.
const Schedule* find_schedule(const DecoderVariants& model, const StackOptions& options) {
  if (!knows_names(options, model.presets, model.variants)) return nullptr;
  for (std::size_t i = 0; i < model.variants.size(); ++i)
    if (options.variant.empty() || model.variants[i].name == options.variant) return &model.schedules[i];
  return nullptr;
}

}  // namespace

std::size_t decoder_memory_bytes(const DecoderVariants& model, const StackOptions& options) {
  const Schedule* const schedule = find_schedule(model, options);
  if (schedule == nullptr || !is_known(options)) return 0;
  Decoder decoder(options, *find_decoder_shape(options.preset), *schedule);
  Memory memory(nullptr);
  decoder.lay_out(memory);
  // Allocations are rounded up by the driver, kernels and library have their own.
  constexpr std::size_t kElse = std::size_t{512} << 20;
  return memory.total() + kElse;
}

std::unique_ptr<Model> make_decoder(const DecoderVariants& model, const StackOptions& options) {
  const Schedule* const schedule = find_schedule(model, options);
  return schedule == nullptr ? nullptr : std::make_unique<Decoder>(options, *find_decoder_shape(options.preset), *schedule);
}

std::span<const std::string_view> decoder_faults() {
  static constexpr std::array kFaults = {fault::kRoutedScale, fault::kNoBias, fault::kWrongW2, fault::kRopePosition, fault::kNoLastToken};
  return kFaults;
}

}  // namespace cglint::models
