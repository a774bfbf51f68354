// The MoE kernels as checkable, measurable cases (kernels/common/case.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/buffer.h"
#include "kernels/common/case.h"
#include "kernels/moe/activation.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/nvfp4.h"
#include "kernels/moe/reference.h"
#include "kernels/moe/router.h"
#include "kernels/moe/routing.h"
#include "kernels/moe/workload.h"

namespace cglint::kernels {
namespace moe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kBf16Tolerance = 4e-2;  // half a bf16 step, 2^-8, of a value ten times the rms

size_t count(int a, int b, int c = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
}

const char* type_name(WeightType type) {
  return type == WeightType::kBf16 ? "bf16" : "fp8";
}

std::string shape_of(const MoePreset& preset, int tokens) {
  return std::string(preset.name) + " batch=" + std::to_string(tokens);
}

// First failure of several calls.
class Steps {
 public:
  Steps& then(cudaError_t status) {
    if (status_ == cudaSuccess) status_ = status;
    return *this;
  }
  cudaError_t status() const { return status_; }
  bool failed() const { return status_ != cudaSuccess; }

 private:
  cudaError_t status_ = cudaSuccess;
};

// Fresh seed for every check.
uint64_t next_seed() {
  static uint64_t seed = 1000;
  return seed += 10;
}

std::vector<float> random_floats(size_t size, uint64_t seed, float scale, float offset = 0) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(size);
  for (float& value : values) value = uniform(random) + offset;
  return values;
}

std::vector<bf16> to_bf16(const std::vector<float>& values) {
  std::vector<bf16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) rounded.push_back(__float2bfloat16_rn(value));
  return rounded;
}

template <typename T>
cudaError_t create(DeviceBuffer<T>& buffer, const std::vector<T>& values) {
  const cudaError_t status = buffer.allocate(values.size());
  return status != cudaSuccess ? status : buffer.upload(values);
}

void mark(KernelCase& c, bool pdl) {
  c.pdl = pdl;
  if (pdl) c.shape += " pdl";
}

// ---- expert GEMMs ----

enum class GemmCase { kTuned, kTunedPdl, kEngineDefault };

void add_gemm(std::vector<KernelCase>& cases, const MoePreset& preset, WeightType type, ExpertGemm gemm,
              int tokens, GemmCase kind) {
  const bool engine_default = kind == GemmCase::kEngineDefault;
  const bool pdl = kind == GemmCase::kTunedPdl;
  auto work = std::make_shared<GemmWorkload>(preset, type, gemm, tokens);
  const int n = gemm_n(preset, gemm);
  const int k = gemm_k(preset, gemm);
  TileConfig config = tuned_config(type, preset.local_experts, n, k, tokens, preset.top_k);
  if (engine_default) {
    config = nearest_supported(type, engine_default_config(type, tokens, preset.local_experts), 227 * 1024);
    config.split_k = split_for(config, k);
  }
  KernelCase c;
  c.name = std::string("moe_") + (gemm == ExpertGemm::kW13 ? "w13_" : "w2_") + type_name(type) +
           (engine_default ? "_default" : "");
  c.shape = shape_of(preset, tokens);
  mark(c, pdl);
  c.bytes = work->bytes();
  c.bandwidth_bound = !engine_default && tokens <= 8;
  c.l2_defeated = true;
  c.tolerance = config.split_k > 1 ? 1e-3 : kBf16Tolerance;
  c.prepare = [work, config] {
    const cudaError_t status = work->prepare(nullptr);
    return status != cudaSuccess ? status : work->select(config);
  };
  c.run = [work, pdl](cudaStream_t stream) { return work->run({stream, pdl}); };
  c.check = [work, pdl] { return work->check(next_seed(), pdl); };
  cases.push_back(std::move(c));
}

// ---- router ----

struct Router {
  const MoePreset* preset;
  int tokens;
  int copies;
  int next = 0;
  DeviceBuffer<bf16> x, w;
  DeviceBuffer<float> logits;

  int splits() const { return router_splits(tokens, preset->experts, preset->hidden); }
  RouterArgs arguments(int copy) {
    const int e = preset->experts;
    const int h = preset->hidden;
    return {x.get(), w.get() + count(e, h, copy), logits.get(), tokens, e, h};
  }
};

// Whether each token by itself, in a plain launch, gives the bits that all of them have given.
bool gives_same_bits(Router& state, const RouterArgs& together) {
  if (router_splits(1, together.experts, together.hidden) != state.splits()) return false;
  const size_t values = count(state.splits(), together.tokens, together.experts);
  std::vector<float> want, got;
  DeviceBuffer<float> alone;
  Steps steps;
  steps.then(state.logits.download(want)).then(alone.allocate(count(state.splits(), together.experts)));
  for (int token = 0; !steps.failed() && token < together.tokens; ++token) {
    RouterArgs one = together;
    one.x += count(token, one.hidden);
    one.logits = alone.get();
    one.tokens = 1;
    steps.then(alone.poison())
        .then(launch_moe_router({}, one))
        .then(cudaDeviceSynchronize())
        .then(alone.download(got));
    for (int split = 0; !steps.failed() && split < state.splits(); ++split) {
      if (std::memcmp(got.data() + count(split, one.experts),
                      want.data() + count(split * together.tokens + token, one.experts),
                      static_cast<size_t>(one.experts) * sizeof(float)) != 0)
        return false;
    }
  }
  return !steps.failed() && want.size() == values;
}

void add_router(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens) {
  auto state = std::make_shared<Router>();
  state->preset = &preset;
  state->tokens = tokens;
  const double w_bytes = 2.0 * preset.experts * preset.hidden;
  state->copies = rotation_copies(w_bytes);
  KernelCase c;
  c.name = "moe_router";
  c.shape = shape_of(preset, tokens);
  c.bytes = w_bytes + 2.0 * tokens * preset.hidden + 4.0 * tokens * preset.experts;
  c.floor.kind = Floor::Kind::kRead;
  c.l2_defeated = defeats_l2(w_bytes);
  c.tolerance = 1e-3;
  mark(c, pdl);
  c.prepare = [state] {
    const int e = state->preset->experts;
    const int h = state->preset->hidden;
    Steps steps;
    steps.then(state->x.allocate(count(state->tokens, h)))
        .then(state->w.allocate(count(e, h, state->copies)))
        .then(state->logits.allocate(count(state->splits(), state->tokens, e)));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->x.get(), state->x.size(), 1, 1.0f))
        .then(fill_random(state->w.get(), state->w.size(), 2, 1.0f))
        .status();
  };
  c.run = [state, pdl](cudaStream_t stream) {
    return launch_moe_router({stream, pdl}, state->arguments(state->next++ % state->copies));
  };
  c.check = [state, pdl] {
    const uint64_t seed = next_seed();
    DeviceBuffer<float> want;
    Steps steps;
    steps.then(fill_random(state->x.get(), state->x.size(), seed, 1.0f))
        .then(fill_random(state->w.get(), state->w.size(), seed + 1, 1.0f))
        .then(state->logits.poison())
        .then(want.allocate(count(state->tokens, state->preset->experts)));
    if (steps.failed()) return kInfinity;
    const RouterArgs args = state->arguments(1);
    ReferenceGemmArgs plain;
    plain.x = args.x;
    plain.w = args.w;
    plain.pairs = args.tokens;
    plain.n = args.experts;
    plain.k = args.hidden;
    plain.out = want.get();
    steps.then(reference_moe_gemm(WeightType::kBf16, plain))
        .then(launch_moe_router({nullptr, pdl}, args))
        .then(cudaDeviceSynchronize());
    if (steps.failed()) return kInfinity;
    if (args.tokens <= 8 && !gives_same_bits(*state, args)) return kInfinity;
    return device_error(state->logits.get(), state->splits(), want.get(), nullptr, args.tokens, args.experts);
  };
  cases.push_back(std::move(c));
}

// ---- top-k ----

struct Topk {
  TopkArgs args;
  bool has_bias;
  DeviceBuffer<float> logits, bias, weights;
  DeviceBuffer<int32_t> ids;
};

void add_topk(std::vector<KernelCase>& cases, bool pdl, const std::string& name, const std::string& shape,
              TopkArgs args, bool has_bias) {
  auto state = std::make_shared<Topk>();
  state->args = args;
  state->has_bias = has_bias;
  KernelCase c;
  c.name = name;
  c.shape = shape;
  c.bytes = 4.0 * args.splits * args.tokens * args.experts + 8.0 * args.tokens * args.top_k;
  c.floor = {Floor::Kind::kRows, args.tokens, false};
  c.tolerance = 1e-4;
  mark(c, pdl);
  c.prepare = [state] {
    TopkArgs& a = state->args;
    Steps steps;
    steps.then(state->logits.allocate(count(a.splits, a.tokens, a.experts)))
        .then(state->bias.allocate(static_cast<size_t>(a.experts)))
        .then(state->weights.allocate(count(a.tokens, a.top_k)))
        .then(state->ids.allocate(count(a.tokens, a.top_k)));
    if (steps.failed()) return steps.status();
    a.logits = state->logits.get();
    a.bias = state->has_bias ? state->bias.get() : nullptr;
    a.weights = state->weights.get();
    a.ids = state->ids.get();
    return steps.then(fill_random(state->logits.get(), state->logits.size(), 1, 1.0f))
        .then(fill_random(state->bias.get(), state->bias.size(), 2, 0.2f))
        .status();
  };
  c.run = [state, pdl](cudaStream_t stream) { return launch_moe_topk({stream, pdl}, state->args); };
  c.check = [state] {
    const TopkArgs& a = state->args;
    const uint64_t seed = next_seed();
    const std::vector<float> partial = random_floats(count(a.splits, a.tokens, a.experts), seed, 1.5f);
    const std::vector<float> bias = random_floats(static_cast<size_t>(a.experts), seed + 1, 0.2f);
    std::vector<float> logits(count(a.tokens, a.experts), 0.0f);
    for (size_t i = 0; i < partial.size(); ++i) logits[i % logits.size()] += partial[i];
    Steps steps;
    steps.then(state->logits.upload(partial))
        .then(state->bias.upload(bias))
        .then(state->weights.poison())
        .then(state->ids.poison())
        .then(launch_moe_topk({}, a))
        .then(cudaDeviceSynchronize());
    std::vector<float> weights;
    std::vector<int32_t> ids;
    steps.then(state->weights.download(weights)).then(state->ids.download(ids));
    if (steps.failed()) return kInfinity;
    return topk_error(a, reference_topk(a, logits, state->has_bias ? bias : std::vector<float>{}), ids,
                      weights);
  };
  cases.push_back(std::move(c));
}

// ---- block lists ----

struct Align {
  const MoePreset* preset;
  int tokens;
  int block_m;
  DeviceBuffer<int32_t> ids, map, sorted_ids, expert_ids, num_padded, positions, workspace;

  AlignArgs arguments() {
    AlignArgs a;
    a.ids = ids.get();
    a.num_pairs = tokens * preset->top_k;
    a.experts = preset->experts;
    a.expert_map = map.get();
    a.local_experts = preset->local_experts;
    a.block_m = block_m;
    a.sorted_ids = sorted_ids.get();
    a.expert_ids = expert_ids.get();
    a.num_padded = num_padded.get();
    a.positions = positions.get();
    a.workspace = workspace.get();
    return a;
  }
};

void add_align(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens, int block_m) {
  auto state = std::make_shared<Align>();
  state->preset = &preset;
  state->tokens = tokens;
  state->block_m = block_m;
  const int pairs = tokens * preset.top_k;
  KernelCase c;
  c.name = "moe_align";
  c.shape = shape_of(preset, tokens) + " block_m=" + std::to_string(block_m);
  c.bytes = 4.0 * pairs * 3;
  c.floor = {Floor::Kind::kRows, 1, false};
  c.launches = align_workspace_elements(pairs, preset.local_experts) > 0 ? 3 : 1;
  c.tolerance = 0;  // exact
  mark(c, pdl);
  c.prepare = [state, pairs] {
    const MoePreset& p = *state->preset;
    const int blocks = max_blocks(pairs, p.local_experts, state->block_m);
    Steps steps;
    steps.then(create(state->ids, make_choices(p, state->tokens, 1, 4)[0]))
        .then(state->sorted_ids.allocate(count(blocks, state->block_m)))
        .then(state->expert_ids.allocate(static_cast<size_t>(blocks)))
        .then(state->num_padded.allocate(1))
        .then(state->positions.allocate(static_cast<size_t>(pairs)))
        .then(state->workspace.allocate(align_workspace_elements(pairs, p.local_experts) + 1));
    const std::vector<int32_t> map = make_expert_map(p);
    if (!map.empty()) steps.then(create(state->map, map));
    return steps.status();
  };
  c.run = [state, pdl](cudaStream_t stream) { return launch_moe_align({stream, pdl}, state->arguments()); };
  c.check = [state] {
    const MoePreset& p = *state->preset;
    const std::vector<int32_t> ids = make_choices(p, state->tokens, 1, next_seed())[0];
    Steps steps;
    steps.then(state->ids.upload(ids))
        .then(state->sorted_ids.poison())
        .then(state->expert_ids.poison())
        .then(state->num_padded.poison())
        .then(state->positions.poison())
        .then(launch_moe_align({}, state->arguments()))
        .then(cudaDeviceSynchronize());
    std::vector<int32_t> sorted_ids, expert_ids, num_padded, positions;
    steps.then(state->sorted_ids.download(sorted_ids))
        .then(state->expert_ids.download(expert_ids))
        .then(state->num_padded.download(num_padded))
        .then(state->positions.download(positions));
    if (steps.failed()) return kInfinity;
    const BlockLists want = reference_align(ids, make_expert_map(p), p.local_experts, state->block_m);
    const auto rows = static_cast<std::ptrdiff_t>(want.num_padded);
    const bool same =
        num_padded[0] == want.num_padded && positions == want.positions &&
        std::equal(want.sorted_ids.begin(), want.sorted_ids.begin() + rows, sorted_ids.begin()) &&
        std::equal(want.expert_ids.begin(), want.expert_ids.begin() + rows / state->block_m,
                   expert_ids.begin());
    return same ? 0.0 : kInfinity;
  };
  cases.push_back(std::move(c));
}

// ---- permute, then finalize from permuted rows: the round trip ----

struct Permute {
  const MoePreset* preset;
  int tokens;
  int block_m;
  int max_rows;
  DeviceBuffer<int32_t> sorted_ids, num_padded, positions;
  DeviceBuffer<bf16> x, out, back;
  DeviceBuffer<float> weights;

  PermuteArgs arguments() {
    PermuteArgs a;
    a.x = x.get();
    a.sorted_ids = sorted_ids.get();
    a.num_padded = num_padded.get();
    a.num_pairs = tokens * preset->top_k;
    a.top_k = preset->top_k;
    a.max_rows = max_rows;
    a.hidden = preset->hidden;
    a.out = out.get();
    return a;
  }
};

void add_permute(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens, int block_m) {
  auto state = std::make_shared<Permute>();
  state->preset = &preset;
  state->tokens = tokens;
  state->block_m = block_m;
  const int pairs = tokens * preset.top_k;
  KernelCase c;
  c.name = "moe_permute";
  c.shape = shape_of(preset, tokens) + " block_m=" + std::to_string(block_m);
  c.floor.looks_up = true;
  // Rows of padding are written too, as zeros.
  const BlockLists written = reference_align(make_choices(preset, tokens, 1, 4)[0], make_expert_map(preset),
                                             preset.local_experts, block_m);
  c.bytes = 2.0 * preset.hidden * (tokens + written.num_padded);
  c.tolerance = kBf16Tolerance;
  mark(c, pdl);
  c.prepare = [state, pairs] {
    const MoePreset& p = *state->preset;
    const BlockLists lists = reference_align(make_choices(p, state->tokens, 1, 4)[0], make_expert_map(p),
                                             p.local_experts, state->block_m);
    state->max_rows = static_cast<int>(lists.sorted_ids.size());
    Steps steps;
    steps.then(create(state->sorted_ids, lists.sorted_ids))
        .then(create(state->num_padded, {lists.num_padded}))
        .then(create(state->positions, lists.positions))
        .then(state->x.allocate(count(state->tokens, p.hidden)))
        .then(state->back.allocate(count(state->tokens, p.hidden)))
        .then(state->out.allocate(count(state->max_rows, p.hidden)))
        .then(create(state->weights, random_floats(static_cast<size_t>(pairs), 6, 0.4f, 0.5f)));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->x.get(), state->x.size(), 3, 1.0f)).status();
  };
  c.run = [state, pdl](cudaStream_t stream) { return launch_moe_permute({stream, pdl}, state->arguments()); };
  c.check = [state, pairs] {
    const MoePreset& p = *state->preset;
    const uint64_t seed = next_seed();
    const std::vector<float> weights = random_floats(static_cast<size_t>(pairs), seed, 0.4f, 0.5f);
    FinalizeArgs back;
    back.y.rows = state->out.get();
    back.weights = state->weights.get();
    back.positions = state->positions.get();
    back.permuted = true;
    back.tokens = state->tokens;
    back.top_k = p.top_k;
    back.hidden = p.hidden;
    back.out = state->back.get();
    Steps steps;
    steps.then(fill_random(state->x.get(), state->x.size(), seed + 1, 1.0f))
        .then(state->weights.upload(weights))
        .then(state->out.poison())
        .then(state->back.poison())
        .then(launch_moe_permute({}, state->arguments()))
        .then(launch_finalize({}, back))
        .then(cudaDeviceSynchronize());
    std::vector<int32_t> sorted_ids, num_padded, positions;
    steps.then(state->sorted_ids.download(sorted_ids))
        .then(state->num_padded.download(num_padded))
        .then(state->positions.download(positions));
    if (steps.failed()) return kInfinity;
    const std::vector<float> x = download_float(state->x);
    const std::vector<float> out = download_float(state->out);
    const std::vector<float> got = download_float(state->back);
    if (x.empty() || out.empty()) return kInfinity;
    const auto hidden = static_cast<size_t>(p.hidden);
    for (int row = 0; row < num_padded[0]; ++row) {
      const int pair = sorted_ids[static_cast<size_t>(row)];
      for (size_t h = 0; h < hidden; ++h) {
        const float want = pair < pairs ? x[static_cast<size_t>(pair / p.top_k) * hidden + h] : 0.0f;
        if (!(out[static_cast<size_t>(row) * hidden + h] == want)) return kInfinity;
      }
    }
    std::vector<float> want;
    for (int token = 0; token < state->tokens; ++token) {
      for (size_t h = 0; h < hidden; ++h) {
        float sum = 0;
        for (int k = 0; k < p.top_k; ++k) {
          const auto pair = static_cast<size_t>(token * p.top_k + k);
          if (positions[pair] >= 0) sum += weights[pair] * x[static_cast<size_t>(token) * hidden + h];
        }
        want.push_back(sum);
      }
    }
    return max_scaled_error(got, want);
  };
  cases.push_back(std::move(c));
}

// ---- SiLU-mul ----

struct Silu {
  int pairs, intermediate, splits;
  bool fp8;
  DeviceBuffer<bf16> in, out;
  DeviceBuffer<float> partials, scale;
  DeviceBuffer<fp8_e4m3> out_fp8;

  SiluMulArgs arguments() {
    SiluMulArgs a;
    a.gate_up.rows = splits > 1 ? nullptr : in.get();
    a.gate_up.partials = partials.get();
    a.gate_up.splits = splits;
    a.pairs = pairs;
    a.intermediate = intermediate;
    a.out = fp8 ? nullptr : out.get();
    a.out_fp8 = fp8 ? out_fp8.get() : nullptr;
    a.out_scale = fp8 ? scale.get() : nullptr;
    return a;
  }
};

void add_silu(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens, int splits,
              bool fp8) {
  auto state = std::make_shared<Silu>();
  state->pairs = tokens * preset.top_k;
  state->intermediate = preset.intermediate;
  state->splits = splits;
  state->fp8 = fp8;
  const double elements = static_cast<double>(state->pairs) * preset.intermediate;
  KernelCase c;
  c.name = fp8 ? "silu_mul_fp8" : "silu_mul";
  c.shape = shape_of(preset, tokens) + (splits > 1 ? " splits=" + std::to_string(splits) : "");
  c.bytes = elements * (splits > 1 ? 8.0 * splits : 4.0) + elements * (fp8 ? 1 + 4.0 / 128 : 2);
  c.tolerance = fp8 ? 0.5 : kBf16Tolerance;  // half an e4m3 step (2^-4) of the largest value, over the rms
  mark(c, pdl);
  c.prepare = [state] {
    const size_t size = count(state->pairs, state->intermediate);
    Steps steps;
    steps.then(state->in.allocate(2 * size))
        .then(state->partials.allocate(2 * size * static_cast<size_t>(state->splits)))
        .then(state->out.allocate(size))
        .then(state->out_fp8.allocate(size))
        .then(state->scale.allocate(size / 128));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->in.get(), state->in.size(), 1, 3.0f))
        .then(fill_random(state->partials.get(), state->partials.size(), 1, 3.0f))
        .status();
  };
  c.run = [state, pdl](cudaStream_t stream) { return launch_silu_mul({stream, pdl}, state->arguments()); };
  c.check = [state] {
    const uint64_t seed = next_seed();
    Steps steps;
    steps.then(fill_random(state->in.get(), state->in.size(), seed, 3.0f))
        .then(fill_random(state->partials.get(), state->partials.size(), seed + 1, 2.0f))
        .then(state->out.poison())
        .then(state->out_fp8.poison())
        .then(state->scale.poison())
        .then(launch_silu_mul({}, state->arguments()))
        .then(cudaDeviceSynchronize());
    if (steps.failed()) return kInfinity;
    const size_t size = count(state->pairs, state->intermediate);
    std::vector<float> gate_up = download_float(state->in);
    if (state->splits > 1) {
      const std::vector<float> partials = download_float(state->partials);
      std::fill(gate_up.begin(), gate_up.end(), 0.0f);
      for (size_t i = 0; i < partials.size(); ++i) gate_up[i % gate_up.size()] += partials[i];
    }
    std::vector<float> got = download_float(state->out);
    if (state->fp8) {
      got = download_float(state->out_fp8);
      const std::vector<float> scale = download_float(state->scale);
      if (scale.empty()) return kInfinity;
      for (size_t i = 0; i < got.size(); ++i) got[i] *= scale[i / 128];
    }
    std::vector<float> want;
    const auto intermediate = static_cast<size_t>(state->intermediate);
    for (size_t i = 0; i < size; ++i) {
      const size_t at = i / intermediate * 2 * intermediate + i % intermediate;
      const float gate = gate_up[at];
      want.push_back(gate / (1 + std::exp(-gate)) * gate_up[at + intermediate]);
    }
    return max_scaled_error(got, want);
  };
  cases.push_back(std::move(c));
}

// ---- activation quantisation ----

struct Quantize {
  int rows, columns;
  DeviceBuffer<bf16> x;
  DeviceBuffer<fp8_e4m3> q;
  DeviceBuffer<float> scale;
};

void add_quantize_fp8(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens) {
  auto state = std::make_shared<Quantize>();
  state->rows = tokens;
  state->columns = preset.hidden;
  const auto arguments = [](Quantize& s) {
    return QuantizeFp8Args{s.x.get(), s.rows, s.columns, s.q.get(), s.scale.get()};
  };
  KernelCase c;
  c.name = "quantize_fp8";
  c.shape = shape_of(preset, tokens);
  c.bytes = static_cast<double>(tokens) * preset.hidden * (3 + 4.0 / 128);
  c.tolerance =
      0.08;  // uniform values: half an e4m3 step of the largest, 448/16/2, over an rms of 448/sqrt(3)
  mark(c, pdl);
  c.prepare = [state] {
    const size_t size = count(state->rows, state->columns);
    Steps steps;
    steps.then(state->x.allocate(size)).then(state->q.allocate(size)).then(state->scale.allocate(size / 128));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->x.get(), size, 1, 3.0f)).status();
  };
  c.run = [state, arguments, pdl](cudaStream_t stream) {
    return launch_quantize_fp8({stream, pdl}, arguments(*state));
  };
  c.check = [state, arguments] {
    Steps steps;
    steps.then(fill_random(state->x.get(), state->x.size(), next_seed(), 3.0f))
        .then(state->q.poison())
        .then(state->scale.poison())
        .then(launch_quantize_fp8({}, arguments(*state)))
        .then(cudaDeviceSynchronize());
    if (steps.failed()) return kInfinity;
    std::vector<float> got = download_float(state->q);
    const std::vector<float> scale = download_float(state->scale);
    if (scale.empty()) return kInfinity;
    for (size_t i = 0; i < got.size(); ++i) got[i] *= scale[i / 128];
    return max_scaled_error(got, download_float(state->x));
  };
  cases.push_back(std::move(c));
}

// ---- finalize ----

struct Finalize {
  const MoePreset* preset;
  int tokens, splits;
  DeviceBuffer<bf16> y, shared, residual, out;
  DeviceBuffer<float> partials, weights;
  DeviceBuffer<int32_t> positions;

  FinalizeArgs arguments() {
    FinalizeArgs a;
    a.y.rows = splits > 1 ? nullptr : y.get();
    a.y.partials = partials.get();
    a.y.splits = splits;
    a.weights = weights.get();
    a.positions = positions.get();
    a.shared = shared.get();
    a.residual = residual.get();
    a.tokens = tokens;
    a.top_k = preset->top_k;
    a.hidden = preset->hidden;
    a.out = out.get();
    return a;
  }
};

void add_finalize(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens, int splits) {
  auto state = std::make_shared<Finalize>();
  state->preset = &preset;
  state->tokens = tokens;
  state->splits = splits;
  const int pairs = tokens * preset.top_k;
  const double local = preset.local_experts / static_cast<double>(preset.experts);
  KernelCase c;
  c.name = "moe_finalize";
  c.shape = shape_of(preset, tokens) + (splits > 1 ? " splits=" + std::to_string(splits) : "");
  c.floor.looks_up = true;
  c.bytes = preset.hidden * (pairs * local * (splits > 1 ? 4.0 * splits : 2.0) + 6.0 * tokens);
  c.tolerance = kBf16Tolerance;
  mark(c, pdl);
  c.prepare = [state, pairs] {
    const MoePreset& p = *state->preset;
    const size_t size = count(pairs, p.hidden);
    const size_t token_size = count(state->tokens, p.hidden);
    const BlockLists lists =
        reference_align(make_choices(p, state->tokens, 1, 4)[0], make_expert_map(p), p.local_experts, 8);
    Steps steps;
    steps.then(state->y.allocate(size))
        .then(state->partials.allocate(size * static_cast<size_t>(state->splits)))
        .then(state->shared.allocate(token_size))
        .then(state->residual.allocate(token_size))
        .then(state->out.allocate(token_size))
        .then(state->weights.allocate(static_cast<size_t>(pairs)))
        .then(create(state->positions, lists.positions));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->y.get(), size, 1, 1.0f))
        .then(fill_random(state->partials.get(), state->partials.size(), 2, 1.0f))
        .then(fill_random(state->shared.get(), token_size, 3, 1.0f))
        .then(fill_random(state->residual.get(), token_size, 4, 1.0f))
        .then(fill_random(state->weights.get(), state->weights.size(), 5, 0.4f, 0.5f))
        .status();
  };
  c.run = [state, pdl](cudaStream_t stream) { return launch_finalize({stream, pdl}, state->arguments()); };
  c.check = [state] {
    const uint64_t seed = next_seed();
    Steps steps;
    steps.then(fill_random(state->y.get(), state->y.size(), seed, 1.0f))
        .then(fill_random(state->partials.get(), state->partials.size(), seed + 1, 1.0f))
        .then(fill_random(state->weights.get(), state->weights.size(), seed + 2, 0.4f, 0.5f))
        .then(state->out.poison())
        .then(launch_finalize({}, state->arguments()))
        .then(cudaDeviceSynchronize());
    std::vector<int32_t> positions;
    steps.then(state->positions.download(positions));
    if (steps.failed()) return kInfinity;
    std::vector<float> y = download_float(state->y);
    if (state->splits > 1) {
      const std::vector<float> partials = download_float(state->partials);
      std::fill(y.begin(), y.end(), 0.0f);
      for (size_t i = 0; i < partials.size(); ++i) y[i % y.size()] += partials[i];
    }
    const std::vector<float> weights = download_float(state->weights);
    std::vector<float> want = download_float(state->residual);
    const std::vector<float> shared = download_float(state->shared);
    if (y.empty() || weights.empty() || want.empty() || shared.empty()) return kInfinity;
    const auto hidden = static_cast<size_t>(state->preset->hidden);
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += shared[i];
      for (int k = 0; k < state->preset->top_k; ++k) {
        const size_t pair = i / hidden * static_cast<size_t>(state->preset->top_k) + static_cast<size_t>(k);
        if (positions[pair] >= 0) want[i] += weights[pair] * y[pair * hidden + i % hidden];
      }
    }
    return max_scaled_error(download_float(state->out), want);
  };
  cases.push_back(std::move(c));
}

// ---- fill and cast ----

void add_zero_fill(std::vector<KernelCase>& cases, bool pdl, size_t size_bytes) {
  auto data = std::make_shared<DeviceBuffer<uint8_t>>();
  KernelCase c;
  c.name = "zero_fill";
  c.shape = std::to_string(size_bytes) + " bytes";
  c.bytes = static_cast<double>(size_bytes);
  c.tolerance = 0;
  mark(c, pdl);
  c.prepare = [data, size_bytes] { return data->allocate(size_bytes + 16); };
  c.run = [data, size_bytes, pdl](cudaStream_t stream) {
    return launch_zero_fill({stream, pdl}, data->get(), size_bytes);
  };
  c.check = [data, size_bytes] {
    std::vector<uint8_t> host;
    Steps steps;
    steps.then(data->poison())
        .then(launch_zero_fill({}, data->get(), size_bytes))
        .then(cudaDeviceSynchronize())
        .then(data->download(host));
    if (steps.failed()) return kInfinity;
    for (size_t i = 0; i < host.size(); ++i) {
      if (host[i] != (i < size_bytes ? 0 : 0xFF)) return kInfinity;  // all of it, and nothing past it
    }
    return 0.0;
  };
  cases.push_back(std::move(c));
}

void add_cast(std::vector<KernelCase>& cases, bool pdl, size_t elements) {
  struct State {
    DeviceBuffer<float> in;
    DeviceBuffer<bf16> out;
  };
  auto state = std::make_shared<State>();
  KernelCase c;
  c.name = "cast_bf16";
  c.shape = std::to_string(elements) + " elements";
  c.bytes = 6.0 * static_cast<double>(elements);
  c.tolerance = 0;
  mark(c, pdl);
  c.prepare = [state, elements] {
    Steps steps;
    steps.then(state->in.allocate(elements)).then(state->out.allocate(elements));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->in.get(), elements, 1, 1.0f)).status();
  };
  c.run = [state, elements, pdl](cudaStream_t stream) {
    return launch_cast_bf16({stream, pdl}, state->in.get(), state->out.get(), elements);
  };
  c.check = [state, elements] {
    const std::vector<float> values = random_floats(elements, next_seed(), 3.0f);
    std::vector<bf16> got;
    Steps steps;
    steps.then(state->in.upload(values))
        .then(state->out.poison())
        .then(launch_cast_bf16({}, state->in.get(), state->out.get(), elements))
        .then(cudaDeviceSynchronize())
        .then(state->out.download(got));
    if (steps.failed()) return kInfinity;
    for (size_t i = 0; i < elements; ++i) {
      // Nearest bf16, by its distance: no other bf16 is closer than half a step.
      const float difference = std::abs(__bfloat162float(got[i]) - values[i]);
      if (!(difference <= std::ldexp(std::abs(values[i]), -8))) return kInfinity;
    }
    return 0.0;
  };
  cases.push_back(std::move(c));
}

// ---- NVFP4 ----

struct Nvfp4 {
  int rows, columns;
  ScaleLayout layout;
  bool zero_padding;
  DeviceBuffer<bf16> x;
  DeviceBuffer<float> global_scale;
  DeviceBuffer<uint8_t> q, scales;

  QuantizeNvfp4Args arguments() {
    return {x.get(), rows, columns, global_scale.get(), layout, zero_padding, q.get(), scales.get()};
  }
};

cudaError_t prepare_nvfp4(Nvfp4& s) {
  Steps steps;
  steps.then(s.x.allocate(count(s.rows, s.columns)))
      .then(create(s.global_scale, {448.0f * 6.0f / 3.0f}))
      .then(s.q.allocate(count(s.rows, s.columns) / 2))
      .then(s.scales.allocate(scale_bytes(s.layout, s.rows, s.columns)));
  if (steps.failed()) return steps.status();
  return steps.then(fill_random(s.x.get(), s.x.size(), 1, 3.0f)).status();
}

double check_nvfp4(Nvfp4& s) {
  Steps steps;
  steps.then(fill_random(s.x.get(), s.x.size(), next_seed(), 3.0f))
      .then(s.q.poison())
      .then(s.scales.poison())
      .then(launch_quantize_nvfp4({}, s.arguments()))
      .then(cudaDeviceSynchronize());
  std::vector<uint8_t> q, scales;
  std::vector<float> global_scale;
  steps.then(s.q.download(q)).then(s.scales.download(scales)).then(s.global_scale.download(global_scale));
  const std::vector<float> x = download_float(s.x);
  if (steps.failed() || x.empty()) return kInfinity;
  const std::vector<float> got = reference_dequantize_nvfp4(q, scales, s.layout, s.rows, s.columns);
  const int groups = s.columns / 16;
  std::vector<bool> used(scales.size(), false);
  for (int row = 0; row < s.rows; ++row) {
    for (int group = 0; group < groups; ++group) {
      const size_t first =
          static_cast<size_t>(row) * static_cast<size_t>(s.columns) + static_cast<size_t>(group) * 16;
      const auto at = static_cast<size_t>(scale_offset(s.layout, row, group, groups));
      used[at] = true;
      float largest = 0;
      for (size_t i = 0; i < 16; ++i) largest = std::max(largest, std::abs(x[first + i]));
      const fp8_e4m3 scale(global_scale[0] * (largest / 6.0f));
      if (scales[at] != scale.__x) return kInfinity;
      const float wide = static_cast<float>(scale);
      const float inverse = wide > 0 ? global_scale[0] / wide : 0;
      for (size_t i = 0; i < 16; ++i) {
        if (!(got[first + i] == reference_e2m1(x[first + i] * inverse) * wide)) return kInfinity;
      }
    }
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!used[i] && scales[i] != (s.zero_padding ? 0 : 0xFF)) return kInfinity;
  }
  // Exact so far; what is left is the format's own error.
  std::vector<float> restored = got;
  for (float& value : restored) value /= global_scale[0];
  return max_scaled_error(restored, x);
}

void add_quantize_nvfp4(std::vector<KernelCase>& cases, bool pdl, const std::string& variant, int rows,
                        int columns, ScaleLayout layout, bool zero_padding) {
  auto state = std::make_shared<Nvfp4>();
  state->rows = rows;
  state->columns = columns;
  state->layout = layout;
  state->zero_padding = zero_padding;
  KernelCase c;
  c.name = "quantize_nvfp4";
  c.shape = "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns) + " " + variant;
  c.bytes =
      static_cast<double>(rows) * columns * (2 + 0.5 + 1.0 / 16) +
      (zero_padding ? static_cast<double>(scale_bytes(layout, rows, columns)) - rows * columns / 16.0 : 0);
  c.tolerance = 0.4;  // half the gap between 4 and 6, of values uniform in +-6 whose rms is 3.5
  mark(c, pdl);
  c.prepare = [state] { return prepare_nvfp4(*state); };
  c.run = [state, pdl](cudaStream_t stream) {
    return launch_quantize_nvfp4({stream, pdl}, state->arguments());
  };
  c.check = [state] { return check_nvfp4(*state); };
  cases.push_back(std::move(c));
}

struct Nvfp4Gemm {
  Nvfp4 x, w;
  bool reads_padding;
  bool has_bias;
  int copies;
  int next = 0;
  DeviceBuffer<uint8_t> x_values, w_values, w_scales;
  DeviceBuffer<float> alpha;
  DeviceBuffer<bf16> bias, out;

  int out_rows() const { return reads_padding ? (x.rows + 127) / 128 * 128 : x.rows; }
  Nvfp4GemmArgs arguments(int copy) {
    Nvfp4GemmArgs a;
    a.x = x_values.get();
    a.x_scales = x.scales.get();
    a.x_layout = x.layout;
    a.w = w_values.get() + w.q.size() * static_cast<size_t>(copy);
    a.w_scales = w_scales.get() + w.scales.size() * static_cast<size_t>(copy);
    a.alpha = alpha.get();
    a.bias = has_bias ? bias.get() : nullptr;
    a.rows = x.rows;
    a.n = w.rows;
    a.k = x.columns;
    a.reads_padding = reads_padding;
    a.out = out.get();
    return a;
  }
  // Quantises x and w and lays out the weight copies. The scale padding of x is zeroed first if `zero_fill`.
  cudaError_t quantize(bool zero_fill) {
    Steps steps;
    steps.then(x.scales.poison());
    if (zero_fill) steps.then(launch_zero_fill({}, x.scales.get(), x.scales.size()));
    steps.then(launch_quantize_nvfp4({}, x.arguments()))
        .then(launch_quantize_nvfp4({}, w.arguments()))
        .then(x_values.poison())
        .then(cudaMemcpy(x_values.get(), x.q.get(), x.q.size(), cudaMemcpyDeviceToDevice));
    for (int copy = 0; copy < copies; ++copy) {
      const auto at = static_cast<size_t>(copy);
      steps
          .then(cudaMemcpy(w_values.get() + w.q.size() * at, w.q.get(), w.q.size(), cudaMemcpyDeviceToDevice))
          .then(cudaMemcpy(w_scales.get() + w.scales.size() * at, w.scales.get(), w.scales.size(),
                           cudaMemcpyDeviceToDevice));
    }
    return steps.status();
  }
};

void add_nvfp4_gemm(std::vector<KernelCase>& cases, bool pdl, const std::string& shape, int rows, int n,
                    int k, ScaleLayout layout, bool reads_padding, bool has_bias) {
  auto state = std::make_shared<Nvfp4Gemm>();
  state->x.rows = rows;
  state->x.columns = k;
  state->x.layout = layout;
  state->x.zero_padding = false;
  state->w.rows = n;
  state->w.columns = k;
  state->w.layout = ScaleLayout::kTiled;
  state->w.zero_padding = true;
  state->reads_padding = reads_padding;
  state->has_bias = has_bias;
  const double w_bytes = static_cast<double>(n) * k * (0.5 + 1.0 / 16);
  state->copies = rotation_copies(w_bytes);
  KernelCase c;
  c.name = reads_padding ? "nvfp4_gemm_padded" : "nvfp4_gemm";
  c.shape = shape + (layout == ScaleLayout::kTiled ? " tiled" : " row-major");
  c.bytes = w_bytes + state->out_rows() * (k * (0.5 + 1.0 / 16) + 2.0 * n);
  c.bandwidth_bound = !reads_padding && rows <= 8 && w_bytes > 8e6;
  if (!reads_padding) c.floor.kind = Floor::Kind::kRead;
  c.l2_defeated = defeats_l2(w_bytes);
  // Padding rows with a bias hold it alone, which lowers the rms that errors are scaled by.
  c.tolerance = reads_padding && has_bias ? 0.15 : kBf16Tolerance;
  mark(c, pdl);
  c.prepare = [state] {
    Nvfp4Gemm& s = *state;
    Steps steps;
    steps.then(prepare_nvfp4(s.x)).then(prepare_nvfp4(s.w));
    if (steps.failed()) return steps.status();
    steps.then(s.x_values.allocate(count(s.out_rows(), s.x.columns) / 2))
        .then(s.w_values.allocate(s.w.q.size() * static_cast<size_t>(s.copies)))
        .then(s.w_scales.allocate(s.w.scales.size() * static_cast<size_t>(s.copies)))
        .then(create(s.alpha, {3.0f / (448 * 6) * 3.0f / (448 * 6)}))
        .then(create(s.bias, to_bf16(random_floats(static_cast<size_t>(s.w.rows), 8, 20.0f))))
        .then(s.out.allocate(count(s.out_rows(), s.w.rows)));
    if (steps.failed()) return steps.status();
    return steps.then(s.quantize(true)).status();
  };
  c.run = [state, pdl](cudaStream_t stream) {
    return launch_nvfp4_gemm({stream, pdl}, state->arguments(state->next++ % state->copies));
  };
  c.check = [state] {
    Nvfp4Gemm& s = *state;
    const uint64_t seed = next_seed();
    Steps steps;
    steps.then(fill_random(s.x.x.get(), s.x.x.size(), seed, 3.0f))
        .then(fill_random(s.w.x.get(), s.w.x.size(), seed + 1, 3.0f));
    // The consumer that ignores the padding must be right without the zero fill too; the other needs it.
    steps.then(s.quantize(s.reads_padding))
        .then(s.out.poison())
        .then(launch_nvfp4_gemm({}, s.arguments(1)))
        .then(cudaDeviceSynchronize());
    std::vector<uint8_t> xq, xs, wq, ws;
    steps.then(s.x.q.download(xq))
        .then(s.x.scales.download(xs))
        .then(s.w.q.download(wq))
        .then(s.w.scales.download(ws));
    const std::vector<float> bias = download_float(s.bias);
    const std::vector<float> alpha = download_float(s.alpha);
    if (steps.failed() || bias.empty() || alpha.empty()) return kInfinity;
    // The product of the dequantised operands by the plain GEMM: both are exact in bf16.
    const std::vector<float> x = reference_dequantize_nvfp4(xq, xs, s.x.layout, s.x.rows, s.x.columns);
    const std::vector<float> w =
        reference_dequantize_nvfp4(wq, ws, ScaleLayout::kTiled, s.w.rows, s.w.columns);
    DeviceBuffer<bf16> x_wide, w_wide;
    DeviceBuffer<float> product;
    steps.then(create(x_wide, to_bf16(x)))
        .then(create(w_wide, to_bf16(w)))
        .then(product.allocate(count(s.x.rows, s.w.rows)));
    if (steps.failed()) return kInfinity;
    ReferenceGemmArgs plain;
    plain.x = x_wide.get();
    plain.w = w_wide.get();
    plain.pairs = s.x.rows;
    plain.n = s.w.rows;
    plain.k = s.x.columns;
    plain.out = product.get();
    if (reference_moe_gemm(WeightType::kBf16, plain) != cudaSuccess) return kInfinity;
    std::vector<float> want = download_float(product);
    want.resize(count(s.out_rows(), s.w.rows), 0.0f);  // padding rows: zero scales, so zero
    for (size_t i = 0; i < want.size(); ++i)
      want[i] = want[i] * alpha[0] + (s.has_bias ? bias[i % bias.size()] : 0.0f);
    const std::vector<float> got = download_float(s.out);
    if (got.size() != want.size()) return kInfinity;
    const size_t valid = count(s.x.rows, s.w.rows);
    if (!s.has_bias) {
      for (size_t i = valid; i < got.size(); ++i) {
        if (!(got[i] == 0.0f)) return kInfinity;
      }
      want.resize(valid);
    }
    const double error =
        max_scaled_error({got.begin(), got.begin() + static_cast<std::ptrdiff_t>(want.size())}, want);
    if (!s.reads_padding) return error;
    // Without the fill the padding rows must change, or this variant would not be what it says.
    steps.then(s.quantize(false)).then(launch_nvfp4_gemm({}, s.arguments(1))).then(cudaDeviceSynchronize());
    const std::vector<float> unfilled = download_float(s.out);
    if (steps.failed() || unfilled.size() != got.size()) return kInfinity;
    if (valid < got.size() &&
        std::memcmp(got.data() + valid, unfilled.data() + valid, (got.size() - valid) * sizeof(float)) == 0) {
      return kInfinity;
    }
    return std::memcmp(got.data(), unfilled.data(), valid * sizeof(float)) == 0 ? error : kInfinity;
  };
  cases.push_back(std::move(c));
}

// What the stack nvfp4_preamble launches for a shared expert as wide as the preset's routed ones, beside the
// quantisation of the hidden state: scales of gate_up's input in either layout, of down's row-major.
void add_nvfp4_expert(std::vector<KernelCase>& cases, bool pdl, const MoePreset& preset, int tokens) {
  const int hidden = preset.hidden;
  const int width = preset.intermediate;
  const auto shape = [&](const char* product, int k, int n) {
    return std::string(preset.name) + " shared " + product + " " + std::to_string(k) + "->" +
           std::to_string(n) + " batch=" + std::to_string(tokens);
  };
  const std::string gate_up = shape("gate_up", hidden, 2 * width);
  const std::string down = shape("down", width, hidden);
  add_nvfp4_gemm(cases, pdl, gate_up, tokens, 2 * width, hidden, ScaleLayout::kRowMajor, false, false);
  add_nvfp4_gemm(cases, pdl, gate_up, tokens, 2 * width, hidden, ScaleLayout::kTiled, true, false);
  add_quantize_nvfp4(cases, pdl, "row-major", tokens, width, ScaleLayout::kRowMajor, false);
  add_nvfp4_gemm(cases, pdl, down, tokens, hidden, width, ScaleLayout::kRowMajor, false, false);
}

void add_nvfp4_global_scale(std::vector<KernelCase>& cases, bool pdl, int rows, int columns) {
  struct State {
    DeviceBuffer<bf16> x;
    DeviceBuffer<float> other_scale, result;  // the tensor's scale, alpha
  };
  auto state = std::make_shared<State>();
  const auto arguments = [state] {
    Nvfp4ScaleArgs a;
    a.x = state->x.get();
    a.count = static_cast<int64_t>(state->x.size());
    a.other_scale = state->other_scale.get();
    a.global_scale = state->result.get();
    a.alpha = state->result.get() + 1;
    return a;
  };
  constexpr float kOtherScale = 448.0f * 6.0f / 0.11f;
  KernelCase c;
  c.name = "nvfp4_global_scale";
  c.shape = "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns);
  c.bytes = 2.0 * rows * columns + 3 * 4.0;
  c.floor.kind = Floor::Kind::kRead;
  c.tolerance = 1e-6;
  mark(c, pdl);
  c.prepare = [state, rows, columns] {
    Steps steps;
    steps.then(state->x.allocate(count(rows, columns)))
        .then(create(state->other_scale, {kOtherScale}))
        .then(state->result.allocate(2));
    if (steps.failed()) return steps.status();
    return steps.then(fill_random(state->x.get(), state->x.size(), 1, 3.0f)).status();
  };
  c.run = [arguments, pdl](cudaStream_t stream) {
    return launch_nvfp4_global_scale({stream, pdl}, arguments());
  };
  c.check = [state, arguments] {
    // The largest may lie anywhere: for every check there is one that stands out.
    const uint64_t seed = next_seed();
    std::vector<bf16> x = to_bf16(random_floats(state->x.size(), seed, 3.0f));
    x[static_cast<size_t>(seed * 7919 % x.size())] = __float2bfloat16_rn(-7.0f);
    std::vector<float> got;
    Steps steps;
    steps.then(state->x.upload(x))
        .then(state->result.poison())
        .then(launch_nvfp4_global_scale({}, arguments()))
        .then(cudaDeviceSynchronize())
        .then(state->result.download(got));
    if (steps.failed()) return kInfinity;
    const float scale = std::exp2(std::floor(std::log2(448.0f * 6.0f / 7.0f)));
    if (got[0] != scale) return kInfinity;
    return max_scaled_error({got[1]}, {1.0f / (scale * kOtherScale)});
  };
  cases.push_back(std::move(c));
}

void register_small_cases(std::vector<KernelCase>& cases, bool pdl) {
  const MoePreset& k2 = *find_preset("k2-tp8");
  const MoePreset& ep = *find_preset("k2-ep4");
  const MoePreset& v3 = *find_preset("v3-tp8");
  const MoePreset& kimi = *find_preset("kimi-linear-tp2");
  for (const MoePreset* preset : {&k2, &v3, &kimi}) {
    for (const int tokens : {1, 8, 64}) add_router(cases, pdl, *preset, tokens);
  }
  for (const int tokens : {1, 8, 1024}) {
    for (const MoePreset* preset : {&k2, &v3}) {
      for (const int splits : {1, 14}) {
        if (tokens > 8 && splits > 1) continue;
        TopkArgs a;
        a.splits = splits;
        a.tokens = tokens;
        a.experts = preset->experts;
        a.top_k = preset->top_k;
        a.num_groups = preset->num_groups;
        a.top_groups = preset->top_groups;
        a.scaling = preset->scaling;
        add_topk(cases, pdl, "moe_topk_sigmoid",
                 shape_of(*preset, tokens) + (splits > 1 ? " splits=" + std::to_string(splits) : ""), a,
                 true);
      }
    }
    TopkArgs softmax;
    softmax.tokens = tokens;
    softmax.experts = 128;
    softmax.top_k = 8;
    softmax.score = ScoreFunction::kSoftmax;
    add_topk(cases, pdl, "moe_topk_softmax", "128 experts top-8 batch=" + std::to_string(tokens), softmax,
             false);
  }
  for (const int block_m : {8, 64}) {
    for (const int tokens : {1, 8, 256, 1024}) {
      add_align(cases, pdl, k2, tokens, block_m);
      add_align(cases, pdl, ep, tokens, block_m);
    }
  }
  for (const int tokens : {1, 8}) {
    add_permute(cases, pdl, k2, tokens, 8);
    add_permute(cases, pdl, ep, tokens, 16);
    for (const int splits : {1, 4}) {
      add_silu(cases, pdl, k2, tokens, splits, false);
      add_silu(cases, pdl, k2, tokens, splits, true);
      add_finalize(cases, pdl, k2, tokens, splits);
    }
    add_silu(cases, pdl, kimi, tokens, 1, false);
    add_finalize(cases, pdl, ep, tokens, 1);
    add_finalize(cases, pdl, kimi, tokens, 1);
    add_quantize_fp8(cases, pdl, k2, tokens);
    add_quantize_nvfp4(cases, pdl, "tiled, padding left", tokens, 7168, ScaleLayout::kTiled, false);
    add_quantize_nvfp4(cases, pdl, "tiled, padding zeroed", tokens, 7168, ScaleLayout::kTiled, true);
    add_quantize_nvfp4(cases, pdl, "row-major", tokens, 7168, ScaleLayout::kRowMajor, false);
    const std::string shape = "rows=" + std::to_string(tokens) + " n=7168 k=2048";
    add_nvfp4_gemm(cases, pdl, shape, tokens, 7168, 2048, ScaleLayout::kTiled, false, true);
    add_nvfp4_gemm(cases, pdl, shape, tokens, 7168, 2048, ScaleLayout::kRowMajor, false, true);
    add_nvfp4_gemm(cases, pdl, shape, tokens, 7168, 2048, ScaleLayout::kTiled, true, true);
    add_nvfp4_expert(cases, pdl, k2, tokens);
    add_nvfp4_expert(cases, pdl, *find_preset("k2-tp4"), tokens);
  }
  // Of the activations of up to 128 tokens, whose padding rows count too.
  add_nvfp4_global_scale(cases, pdl, 128, k2.intermediate);
  add_nvfp4_global_scale(cases, pdl, 128, find_preset("k2-tp4")->intermediate);
  add_zero_fill(cases, pdl, scale_bytes(ScaleLayout::kTiled, 8, 7168));
  add_zero_fill(cases, pdl, 1003);
  add_cast(cases, pdl, 384);
  add_cast(cases, pdl, 7168);
}

}  // namespace

void add_layer_cases(std::vector<KernelCase>& cases);

}  // namespace moe

void register_moe_cases(std::vector<KernelCase>& cases) {
  using namespace moe;
  for (const MoePreset& preset : moe_presets()) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kFp8Block128}) {
      for (const int tokens : {1, 2, 4, 8}) {
        add_gemm(cases, preset, type, ExpertGemm::kW13, tokens, GemmCase::kTuned);
        add_gemm(cases, preset, type, ExpertGemm::kW2, tokens, GemmCase::kTuned);
        // W2's lists are settled when it starts (after align, W13, SiLU), so engines can start its weights
        // early; W13's where quantisation lies between.
        if (type == WeightType::kFp8Block128)
          add_gemm(cases, preset, type, ExpertGemm::kW13, tokens, GemmCase::kTunedPdl);
        add_gemm(cases, preset, type, ExpertGemm::kW2, tokens, GemmCase::kTunedPdl);
      }
    }
  }
  // Default against tuned tiles at a few and at many tokens; cglint-moe-tune has the whole sweep.
  for (const int tokens : {1, 8, 64, 1024}) {
    for (const ExpertGemm gemm : {ExpertGemm::kW13, ExpertGemm::kW2}) {
      const MoePreset& preset = *find_preset("k2-tp4");
      add_gemm(cases, preset, WeightType::kFp8Block128, gemm, tokens, GemmCase::kEngineDefault);
      if (tokens > 8) add_gemm(cases, preset, WeightType::kFp8Block128, gemm, tokens, GemmCase::kTuned);
    }
  }
  add_layer_cases(cases);

  for (const bool pdl : {false, true}) register_small_cases(cases, pdl);
}

}  // namespace cglint::kernels
