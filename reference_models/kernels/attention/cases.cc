// The attention kernels at the shapes of published models. K2 and V3 are tensor-parallel over 8 GPUs (8 and
// 16 heads a GPU, hidden 7168), Kimi Linear over 2 (16 heads, hidden 2304).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/dense_gemm.h"
#include "kernels/attention/kda.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/skinny_gemm.h"
#include "kernels/common/buffer.h"
#include "kernels/common/case.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {
namespace {

constexpr double kFailed = std::numeric_limits<double>::infinity();
constexpr double kBf16Bytes = 2;
// Rounding the result to bf16 costs at most 2^-8 of an element; elements reach about five times the root mean
// square that errors are scaled by.
constexpr double kBf16Tolerance = 0.02;
// The weights are bf16 too.
constexpr double kAttentionTolerance = 0.025;

// Collects the first failure of a sequence of calls.
class Steps {
 public:
  Steps& operator<<(cudaError_t status) {
    if (status_ == cudaSuccess) status_ = status;
    return *this;
  }
  cudaError_t status() const { return status_; }
  bool ok() const { return status_ == cudaSuccess; }

 private:
  cudaError_t status_ = cudaSuccess;
};

size_t count_of(int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
  return static_cast<size_t>(a * b * c * d);
}

int sm_count() {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;
  }
  return count;
}

// A new seed for every check, so that each runs on inputs no earlier one saw.
uint64_t next_seed() {
  static uint64_t seed = std::random_device{}();
  return ++seed;
}

std::string batch_text(int batch) {
  return " batch=" + std::to_string(batch);
}

// ---- norms
// -------------------------------------------------------------------------------------------------

struct NormState {
  DeviceBuffer<bf16> input, residual, weight, output;
};

void add_norm_case(std::vector<KernelCase>& cases, const std::string& label, int rows, int hidden, int stride,
                   bool residual, bool pdl) {
  auto state = std::make_shared<NormState>();
  constexpr float kEpsilon = 1e-6f;
  const auto run = [=](cudaStream_t stream) {
    const LaunchContext ctx{stream, pdl};
    return residual ? add_rms_norm(ctx, state->input.get(), stride, state->residual.get(),
                                   state->weight.get(), state->output.get(), hidden, rows, hidden, kEpsilon)
                    : rms_norm(ctx, state->input.get(), stride, state->weight.get(), state->output.get(),
                               hidden, rows, hidden, kEpsilon);
  };
  KernelCase item;
  item.name = std::string(residual ? "add_rms_norm" : "rms_norm") + (pdl ? " pdl" : "");
  item.shape = label + batch_text(rows);
  item.bytes = kBf16Bytes * rows * hidden * (residual ? 4.0 : 2.0) + kBf16Bytes * hidden;
  item.floor = {Floor::Kind::kRows, rows, false};
  item.tolerance = kBf16Tolerance;
  item.pdl = pdl;
  item.prepare = [=] {
    Steps steps;
    steps << state->input.allocate(count_of(rows, stride)) << state->residual.allocate(count_of(rows, hidden))
          << state->weight.allocate(count_of(hidden)) << state->output.allocate(count_of(rows, hidden))
          << fill_random(state->input.get(), state->input.size(), next_seed(), 1.0f)
          << fill_random(state->residual.get(), state->residual.size(), next_seed(), 0.0f)
          << fill_random(state->weight.get(), state->weight.size(), next_seed(), 0.5f, 1.0f);
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill_random(state->input.get(), state->input.size(), next_seed(), 1.0f)
          << fill_random(state->residual.get(), state->residual.size(), next_seed(), 1.0f)
          << fill_random(state->weight.get(), state->weight.size(), next_seed(), 0.5f, 1.0f)
          << state->output.poison() << cudaDeviceSynchronize();
    const std::vector<float> input = download_float(state->input);
    const std::vector<float> before = download_float(state->residual);
    steps << run(nullptr) << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    std::vector<float> sums(count_of(rows, hidden));
    for (size_t r = 0; r < count_of(rows); ++r) {
      for (size_t i = 0; i < count_of(hidden); ++i) {
        const size_t at = r * count_of(hidden) + i;
        sums[at] = input[r * count_of(stride) + i] + (residual ? before[at] : 0.0f);
      }
    }
    const double error =
        max_scaled_error(download_float(state->output),
                         reference::rms_norm(sums, download_float(state->weight), hidden, kEpsilon));
    // Timed runs add the input again and again: a zero input keeps the residual finite.
    const double residual_error = residual ? max_scaled_error(download_float(state->residual), sums) : 0.0;
    steps << fill_random(state->input.get(), state->input.size(), next_seed(), residual ? 0.0f : 1.0f)
          << cudaDeviceSynchronize();
    return steps.ok() ? std::max(error, residual_error) : kFailed;
  };
  item.run = run;
  cases.push_back(std::move(item));
}

// ---- rope, cache write, decode glue
// ------------------------------------------------------------------------

struct RopeState {
  DeviceBuffer<bf16> q, q_out, k, k_out;
  DeviceBuffer<int64_t> positions;
  DeviceBuffer<float> table;
};

void add_rope_case(std::vector<KernelCase>& cases, const std::string& label, int tokens, int heads,
                   bool pdl) {
  constexpr int kPositions = 40000;
  constexpr double kBase = 50000;
  // As in a decode step: the rope part sits behind 128 other values of each query head and moves behind the
  // 512 absorbed ones; the key's lies behind 1536 + 512 values of the fused projection and is turned in
  // place.
  constexpr int kQueryWidth = 192;
  constexpr int kFused = 2112;
  auto state = std::make_shared<RopeState>();
  const auto run = [=](cudaStream_t stream) {
    return rope_interleaved({stream, pdl}, state->positions.get(), state->table.get(), state->q.get() + 128,
                            heads * kQueryWidth, kQueryWidth, state->q_out.get() + kLatentDim,
                            heads * kCacheRow, kCacheRow, state->k.get() + 2048, kFused, state->k_out.get(),
                            kRopeDim, tokens, heads);
  };
  KernelCase item;
  item.name = std::string("rope") + (pdl ? " pdl" : "");
  item.shape = label + batch_text(tokens);
  item.floor.looks_up = true;
  item.bytes = tokens * ((heads + 1) * kRopeDim * kBf16Bytes * 2 + kRopeDim * 4 + 8);
  item.tolerance = kBf16Tolerance;
  item.pdl = pdl;
  const auto fill = [=] {
    std::vector<int64_t> positions(count_of(tokens));
    for (int64_t& position : positions) position = static_cast<int64_t>(next_seed() * 7919 % kPositions);
    Steps steps;
    steps << fill_random(state->q.get(), state->q.size(), next_seed(), 1.0f)
          << fill_random(state->k.get(), state->k.size(), next_seed(), 1.0f)
          << state->positions.upload(positions);
    return steps.status();
  };
  item.prepare = [=] {
    Steps steps;
    steps << state->q.allocate(count_of(tokens, heads, kQueryWidth))
          << state->q_out.allocate(count_of(tokens, heads, kCacheRow))
          << state->k.allocate(count_of(tokens, kFused)) << state->k_out.allocate(count_of(tokens, kRopeDim))
          << state->positions.allocate(count_of(tokens))
          << state->table.allocate(count_of(kPositions, kRopeDim))
          << state->table.upload(make_rope_table(kPositions, kBase)) << fill();
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill() << state->q_out.poison() << state->k_out.poison() << run(nullptr)
          << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    const std::vector<float> q = download_float(state->q);
    const std::vector<float> k = download_float(state->k);
    const std::vector<float> q_out = download_float(state->q_out);
    const std::vector<float> k_out = download_float(state->k_out);
    std::vector<int64_t> positions;
    if (state->positions.download(positions) != cudaSuccess) return kFailed;
    std::vector<float> want;
    std::vector<float> got;
    for (size_t token = 0; token < count_of(tokens); ++token) {
      for (size_t head = 0; head <= count_of(heads); ++head) {
        const bool is_key = head == count_of(heads);
        const float* source = is_key ? k.data() + token * kFused + 2048
                                     : q.data() + (token * count_of(heads) + head) * kQueryWidth + 128;
        const float* result = is_key
                                  ? k_out.data() + token * kRopeDim
                                  : q_out.data() + (token * count_of(heads) + head) * kCacheRow + kLatentDim;
        std::vector<float> row(source, source + kRopeDim);
        reference::rope_interleaved(row.data(), positions[token], kBase);
        want.insert(want.end(), row.begin(), row.end());
        got.insert(got.end(), result, result + kRopeDim);
      }
    }
    return max_scaled_error(got, want);
  };
  item.run = run;
  cases.push_back(std::move(item));
}

struct CacheState {
  DeviceBuffer<bf16> kv_c, k_pe, cache;
  DeviceBuffer<int64_t> slots;
  int turn = 0;
};

void add_cache_case(std::vector<KernelCase>& cases, int tokens, bool pdl) {
  constexpr int kSlots = 64 * 256;
  auto state = std::make_shared<CacheState>();
  const auto run = [=](cudaStream_t stream) {
    return concat_and_cache_mla({stream, pdl}, state->kv_c.get(), kLatentDim, state->k_pe.get(), kRopeDim,
                                state->slots.get(), state->cache.get(), tokens);
  };
  KernelCase item;
  item.name = std::string("concat_and_cache_mla") + (pdl ? " pdl" : "");
  item.shape = "512+64" + batch_text(tokens);
  item.bytes = tokens * (kCacheRow * kBf16Bytes * 2 + 8);
  item.floor.looks_up = true;
  item.tolerance = 1e-6;  // a copy is exact
  item.pdl = pdl;
  item.prepare = [=] {
    std::vector<int64_t> slots(count_of(tokens));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i * 193 % kSlots);
    if (tokens > 4) slots[3] = -1;  // a padding token
    Steps steps;
    steps << state->kv_c.allocate(count_of(tokens, kLatentDim))
          << state->k_pe.allocate(count_of(tokens, kRopeDim))
          << state->cache.allocate(count_of(kSlots, kCacheRow)) << state->slots.allocate(count_of(tokens))
          << state->slots.upload(slots)
          << fill_random(state->kv_c.get(), state->kv_c.size(), next_seed(), 1.0f)
          << fill_random(state->k_pe.get(), state->k_pe.size(), next_seed(), 1.0f);
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill_random(state->kv_c.get(), state->kv_c.size(), next_seed(), 1.0f)
          << fill_random(state->k_pe.get(), state->k_pe.size(), next_seed(), 1.0f)
          << fill_random(state->cache.get(), state->cache.size(), next_seed(), 1.0f)
          << cudaDeviceSynchronize();
    std::vector<float> want = download_float(state->cache);
    const std::vector<float> kv_c = download_float(state->kv_c);
    const std::vector<float> k_pe = download_float(state->k_pe);
    std::vector<int64_t> slots;
    steps << state->slots.download(slots) << run(nullptr) << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    for (size_t token = 0; token < count_of(tokens); ++token) {
      if (slots[token] < 0) continue;
      float* row = want.data() + static_cast<size_t>(slots[token]) * kCacheRow;
      std::copy_n(kv_c.data() + token * kLatentDim, kLatentDim, row);
      std::copy_n(k_pe.data() + token * kRopeDim, kRopeDim, row + kLatentDim);
    }
    return max_scaled_error(download_float(state->cache), want);
  };
  item.run = run;
  cases.push_back(std::move(item));
}

struct AdvanceState {
  DeviceBuffer<int32_t> block_table, seq_lens;
  DeviceBuffer<int64_t> positions, slots;
};

void add_advance_case(std::vector<KernelCase>& cases, int batch) {
  constexpr int kPageSize = 64;
  constexpr int kMaxPages = 512;
  auto state = std::make_shared<AdvanceState>();
  const auto run = [=](cudaStream_t stream) {
    return advance_decode({stream, false}, state->block_table.get(), kMaxPages, kPageSize,
                          state->seq_lens.get(), state->positions.get(), state->slots.get(), batch);
  };
  KernelCase item;
  item.name = "advance_decode";
  item.shape = "pages of 64" + batch_text(batch);
  item.bytes = batch * (4.0 * 3 + 8 * 2);
  item.tolerance = 1e-9;
  const auto fill = [=] {
    Steps steps;
    steps << fill_random_int(state->block_table.get(), state->block_table.size(), next_seed(), 0, 100000)
          << fill_random_int(state->seq_lens.get(), state->seq_lens.size(), next_seed(),
                             kPageSize * kMaxPages - 40, kPageSize * kMaxPages + 1)
          << state->positions.poison() << state->slots.poison() << cudaDeviceSynchronize();
    return steps.status();
  };
  item.prepare = [=] {
    Steps steps;
    steps << state->block_table.allocate(count_of(batch, kMaxPages))
          << state->seq_lens.allocate(count_of(batch)) << state->positions.allocate(count_of(batch))
          << state->slots.allocate(count_of(batch)) << fill();
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill();
    std::vector<int32_t> table, before, after;
    std::vector<int64_t> positions, slots;
    steps << state->block_table.download(table) << state->seq_lens.download(before) << run(nullptr)
          << state->seq_lens.download(after) << state->positions.download(positions)
          << state->slots.download(slots);
    if (!steps.ok()) return kFailed;
    for (size_t i = 0; i < count_of(batch); ++i) {
      const bool full = before[i] == kPageSize * kMaxPages;
      const int64_t page = full ? 0 : table[i * kMaxPages + static_cast<size_t>(before[i] / kPageSize)];
      const int64_t slot = full ? -1 : page * kPageSize + before[i] % kPageSize;
      if (positions[i] != before[i] || slots[i] != slot || after[i] != before[i] + (full ? 0 : 1)) return 1.0;
    }
    return 0.0;
  };
  item.run = run;
  cases.push_back(std::move(item));
}

struct AddState {
  DeviceBuffer<bf16> a, b, out;
};

void add_residual_case(std::vector<KernelCase>& cases, int tokens, int hidden, bool pdl) {
  auto state = std::make_shared<AddState>();
  const int64_t count = static_cast<int64_t>(tokens) * hidden;
  const auto run = [=](cudaStream_t stream) {
    return residual_add({stream, pdl}, state->a.get(), state->b.get(), state->out.get(), count);
  };
  KernelCase item;
  item.name = std::string("residual_add") + (pdl ? " pdl" : "");
  item.shape = std::to_string(hidden) + batch_text(tokens);
  item.bytes = static_cast<double>(count) * kBf16Bytes * 3;
  item.tolerance = kBf16Tolerance;
  item.pdl = pdl;
  item.prepare = [=] {
    Steps steps;
    steps << state->a.allocate(count_of(count)) << state->b.allocate(count_of(count))
          << state->out.allocate(count_of(count))
          << fill_random(state->a.get(), state->a.size(), next_seed(), 1.0f)
          << fill_random(state->b.get(), state->b.size(), next_seed(), 1.0f);
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill_random(state->a.get(), state->a.size(), next_seed(), 1.0f)
          << fill_random(state->b.get(), state->b.size(), next_seed(), 1.0f) << state->out.poison()
          << run(nullptr) << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    std::vector<float> want = download_float(state->a);
    const std::vector<float> b = download_float(state->b);
    for (size_t i = 0; i < want.size(); ++i) want[i] += b[i];
    return max_scaled_error(download_float(state->out), want);
  };
  item.run = run;
  cases.push_back(std::move(item));
}

// ---- products
// ----------------------------------------------------------------------------------------------

enum class GemmKind { kSkinny, kCublasLt, kCublasLtTuned, kAbsorbQuery, kProjectValue };

struct GemmState {
  DeviceBuffer<bf16> x, weights, residual, out;
  DeviceBuffer<unsigned char> workspace;
  DenseGemm plan;
  int copies = 2;
  int turn = 0;
};

struct GemmShape {
  int tokens = 1;
  int n = 0;
  int k = 0;
  int batch = 1;  // heads
  bool residual = false;
  int x_row = 0;       // values from a token's x to the next one's, the operands its last; 0: no others
  bool apart = false;  // results [batch, tokens, n], else [tokens, batch, n]
};

// Whether each token by itself, in a plain launch, gives the bits that all of them have given in `out`.
bool gives_same_bits(GemmState& state, const SkinnyGemm& gemm) {
  const std::vector<float> want = download_float(state.out);
  Steps steps;
  steps << state.out.poison();
  for (int token = 0; token < gemm.tokens; ++token) {
    SkinnyGemm one = gemm;
    one.tokens = 1;
    one.x += token * gemm.x_token_stride;
    one.out += token * gemm.out_token_stride;
    if (one.residual != nullptr) one.residual += token * gemm.out_token_stride;
    steps << skinny_gemm({}, one, state.workspace.get());
  }
  steps << cudaDeviceSynchronize();
  const std::vector<float> got = download_float(state.out);
  return steps.ok() && got.size() == want.size() && !got.empty() &&
         std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0;
}

void add_gemm_case(std::vector<KernelCase>& cases, GemmKind kind, const std::string& label,
                   const GemmShape& shape, bool pdl) {
  auto state = std::make_shared<GemmState>();
  const int64_t weight_values = static_cast<int64_t>(shape.n) * shape.k * shape.batch;
  const double weight_bytes = static_cast<double>(weight_values) * kBf16Bytes;
  constexpr size_t kLtWorkspace = 32u << 20;
  const bool is_lt = kind == GemmKind::kCublasLt || kind == GemmKind::kCublasLtTuned;
  const int x_width = kind == GemmKind::kAbsorbQuery ? 192 : shape.k;
  const int out_width = kind == GemmKind::kAbsorbQuery ? kCacheRow : shape.n;
  const int x_row = shape.x_row > 0 ? shape.x_row : x_width * shape.batch;
  const int x_at = x_row - x_width * shape.batch;
  state->copies = rotation_copies(weight_bytes);
  const auto describe = [=](const bf16* weight) {
    SkinnyGemm gemm;
    gemm.x = state->x.get() + x_at;
    gemm.x_token_stride = x_row;
    gemm.x_batch_stride = shape.k;
    gemm.weight = weight;
    gemm.weight_batch_stride = static_cast<int64_t>(shape.n) * shape.k;
    gemm.out = state->out.get();
    gemm.out_token_stride = static_cast<int64_t>(shape.n) * (shape.apart ? 1 : shape.batch);
    gemm.out_batch_stride = static_cast<int64_t>(shape.n) * (shape.apart ? shape.tokens : 1);
    gemm.residual = shape.residual ? state->residual.get() : nullptr;
    gemm.tokens = shape.tokens;
    gemm.n = shape.n;
    gemm.k = shape.k;
    gemm.batch = shape.batch;
    gemm.split_k = skinny_split_k(shape.tokens, shape.n, shape.k, shape.batch, sm_count());
    return gemm;
  };
  const auto run_copy = [=](cudaStream_t stream, int copy) {
    const bf16* weight = state->weights.get() + copy * weight_values;
    const LaunchContext ctx{stream, pdl};
    switch (kind) {
      case GemmKind::kSkinny:
        return skinny_gemm(ctx, describe(weight), state->workspace.get());
      case GemmKind::kCublasLt:
      case GemmKind::kCublasLtTuned:
        return state->plan.run(stream, state->x.get(), weight, state->residual.get(), state->out.get(),
                               state->workspace.get());
      case GemmKind::kAbsorbQuery:  // queries of 192 values a head, results of 576
        return mla_absorb_query(ctx, state->x.get(), 192 * shape.batch, 192, weight, state->out.get(),
                                kCacheRow * shape.batch, kCacheRow, shape.tokens, shape.batch);
      case GemmKind::kProjectValue:
        return mla_project_value(ctx, state->x.get(), weight, 128 * 512, state->out.get(), shape.tokens,
                                 shape.batch);
    }
    return cudaErrorInvalidValue;
  };

  KernelCase item;
  switch (kind) {
    case GemmKind::kSkinny:
      item.name = "gemm skinny";
      break;
    case GemmKind::kCublasLt:
      item.name = "gemm cublaslt";
      break;
    case GemmKind::kCublasLtTuned:
      item.name = "gemm cublaslt tuned";
      break;
    case GemmKind::kAbsorbQuery:
      item.name = "mla_absorb_query";
      break;
    case GemmKind::kProjectValue:
      item.name = "mla_project_value";
      break;
  }
  if (shape.residual) item.name += " +add";
  if (pdl) item.name += " pdl";
  item.shape = label + batch_text(shape.tokens);
  item.bytes = weight_bytes +
               kBf16Bytes * shape.tokens * shape.batch * (shape.k + shape.n * (shape.residual ? 2.0 : 1.0));
  item.tolerance = kBf16Tolerance;
  item.pdl = pdl;
  item.bandwidth_bound = weight_bytes > 4e6;
  item.floor.kind = Floor::Kind::kRead;
  item.l2_defeated = defeats_l2(weight_bytes);
  item.prepare = [=] {
    const size_t workspace_bytes =
        is_lt ? kLtWorkspace : std::max<size_t>(skinny_gemm_workspace_bytes(describe(nullptr)), 16);
    Steps steps;
    steps << state->x.allocate(count_of(shape.tokens, x_row))
          << state->weights.allocate(count_of(weight_values, state->copies))
          << state->residual.allocate(count_of(shape.tokens, shape.n, shape.batch))
          << state->out.allocate(count_of(shape.tokens, out_width, shape.batch))
          << state->workspace.allocate(workspace_bytes)
          << fill_random(state->weights.get(), state->weights.size(), next_seed(), 0.1f)
          << fill_random(state->x.get(), state->x.size(), next_seed(), 1.0f)
          << fill_random(state->residual.get(), state->residual.size(), next_seed(), 1.0f)
          << cudaMemset(state->workspace.get(), 0, workspace_bytes) << cudaDeviceSynchronize();
    if (!is_lt || !steps.ok()) return steps.status();
    static std::string error;
    static const std::shared_ptr<CublasLt> lt = CublasLt::load(error);
    if (lt == nullptr) {
      std::fprintf(stderr, "%s\n", error.c_str());
      return cudaErrorNotSupported;
    }
    DenseGemm::Shape dense;
    dense.tokens = shape.tokens;
    dense.n = shape.n;
    dense.k = shape.k;
    dense.add_residual = shape.residual;
    dense.workspace_bytes = kLtWorkspace;
    const bool tuned = kind == GemmKind::kCublasLtTuned;
    steps << DenseGemm::create(lt, dense, tuned ? 12 : 1, state->plan);
    if (!tuned || !steps.ok()) return steps.status();
    std::vector<const bf16*> weights;
    for (int copy = 0; copy < state->copies; ++copy)
      weights.push_back(state->weights.get() + copy * weight_values);
    cudaStream_t stream = nullptr;
    steps << cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)
          << state->plan.select_fastest(stream, state->x.get(), weights, state->residual.get(),
                                        state->out.get(), state->workspace.get(), 3);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    steps << fill_random(state->x.get(), state->x.size(), next_seed(), 1.0f)
          << fill_random(state->residual.get(), state->residual.size(), next_seed(), 1.0f)
          << state->out.poison();
    const int copy = state->copies - 1;
    // Twice: the second run must find the workspace as it needs it.
    steps << run_copy(nullptr, copy) << run_copy(nullptr, copy) << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    const bool kn = kind == GemmKind::kAbsorbQuery;
    const std::vector<float> want = reference::gemm(
        state->x.get() + x_at, x_row, x_width, state->weights.get() + copy * weight_values, kn ? 1 : shape.k,
        kn ? shape.n : 1, static_cast<int64_t>(shape.n) * shape.k,
        shape.residual ? state->residual.get() : nullptr, shape.tokens, shape.n, shape.k, shape.batch);
    const std::vector<float> out = download_float(state->out);
    if (want.empty() || out.empty()) return kFailed;
    std::vector<float> got;
    got.reserve(want.size());
    for (int batch = 0; batch < shape.batch; ++batch) {
      for (int token = 0; token < shape.tokens; ++token) {
        const int place = shape.apart ? batch * shape.tokens + token : token * shape.batch + batch;
        const auto row = out.begin() + static_cast<int64_t>(place) * out_width;
        got.insert(got.end(), row, row + shape.n);
      }
    }
    if (kind == GemmKind::kSkinny &&
        !gives_same_bits(*state, describe(state->weights.get() + copy * weight_values)))
      return kFailed;
    return max_scaled_error(got, want);
  };
  item.run = [=](cudaStream_t stream) {
    state->turn = (state->turn + 1) % state->copies;
    return run_copy(stream, state->turn);
  };
  cases.push_back(std::move(item));
}

// ---- MLA decode attention
// ----------------------------------------------------------------------------------

// Sequences differ in the size of their results (the longer, the closer to the mean), so each is judged
// against its own; an empty one must give zeros.
double worst_sequence_error(const std::vector<float>& got, const std::vector<float>& want,
                            const std::vector<int32_t>& lengths) {
  if (got.size() != want.size() || want.empty()) return kFailed;
  const auto width = static_cast<std::ptrdiff_t>(want.size() / lengths.size());
  double worst = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(i) * width;
    const std::vector<float> part(got.begin() + first, got.begin() + first + width);
    if (lengths[i] == 0) {
      if (std::any_of(part.begin(), part.end(), [](float value) { return !(value == 0.0f); })) return kFailed;
      continue;
    }
    worst = std::max(worst, max_scaled_error(part, {want.begin() + first, want.begin() + first + width}));
  }
  return worst;
}

struct AttentionState {
  DeviceBuffer<bf16> q, cache, out;
  DeviceBuffer<int32_t> block_tables;  // one per copy
  DeviceBuffer<int32_t> seq_lens;
  DeviceBuffer<unsigned char> workspace;
  MlaDecode call;
  int copies = 2;
  int turn = 0;
};

void add_attention_case(std::vector<KernelCase>& cases, const std::string& label, int heads, int batch,
                        int context, bool pdl, bool cache_is_settled = true) {
  auto state = std::make_shared<AttentionState>();
  constexpr int kPageSize = 64;
  const int pages = (context + kPageSize - 1) / kPageSize;
  const double cache_bytes = static_cast<double>(batch) * context * kCacheRow * kBf16Bytes;
  state->copies = rotation_copies(cache_bytes);
  const int64_t pages_per_copy = static_cast<int64_t>(batch) * pages;
  const auto run_copy = [=](cudaStream_t stream, int copy) {
    MlaDecode call = state->call;
    call.block_table = state->block_tables.get() + copy * pages_per_copy;
    return mla_decode({stream, pdl}, call, state->workspace.get());
  };
  KernelCase item;
  item.name = std::string("mla_decode") + (pdl ? " pdl" : "");
  item.shape = label + batch_text(batch) + " context=" + std::to_string(context) +
               (cache_is_settled ? "" : " cache not settled");
  item.bytes = cache_bytes + kBf16Bytes * batch * heads * (kCacheRow + kLatentDim);
  item.tolerance = kAttentionTolerance;
  item.bandwidth_bound = true;
  item.launches = 2;
  item.pdl = pdl;
  item.l2_defeated = defeats_l2(cache_bytes);
  item.prepare = [=] {
    MlaDecode& call = state->call;
    call.batch = batch;
    call.heads = heads;
    call.page_size = kPageSize;
    call.max_pages = pages;
    call.cache_pages = pages_per_copy * state->copies;
    call.softmax_scale = 0.0721688f;  // 1 / sqrt(192)
    call.cache_is_settled = cache_is_settled;
    call.splits = mla_decode_splits(batch, heads, context, sm_count());
    const size_t workspace_bytes = std::max<size_t>(mla_decode_workspace_bytes(call), 16);
    // Pages of all copies shuffled over one pool.
    std::vector<int32_t> tables(count_of(pages_per_copy, state->copies));
    for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i);
    std::shuffle(tables.begin(), tables.end(), std::mt19937_64(next_seed()));
    Steps steps;
    steps << state->q.allocate(count_of(batch, heads, kCacheRow))
          << state->cache.allocate(count_of(pages_per_copy, state->copies, kPageSize, kCacheRow))
          << state->out.allocate(count_of(batch, heads, kLatentDim))
          << state->block_tables.allocate(tables.size()) << state->block_tables.upload(tables)
          << state->seq_lens.allocate(count_of(batch))
          << state->seq_lens.upload(std::vector<int32_t>(count_of(batch), context))
          << state->workspace.allocate(workspace_bytes) << state->workspace.poison()
          << fill_random(state->cache.get(), state->cache.size(), next_seed(), 1.0f)
          << fill_random(state->q.get(), state->q.size(), next_seed(), 3.0f);
    call.q = state->q.get();
    call.cache = state->cache.get();
    call.seq_lens = state->seq_lens.get();
    call.out = state->out.get();
    return steps.status();
  };
  item.check = [=] {
    // Full length first, then ragged lengths with the same launch: an empty and a one-token sequence among
    // them.
    double worst = 0;
    for (const bool ragged : {false, true}) {
      std::vector<int32_t> lengths(count_of(batch), context);
      if (ragged) {
        for (size_t i = 0; i < lengths.size(); ++i) {
          lengths[i] = i == 1 ? 0 : i == 2 ? 1 : 1 + static_cast<int32_t>(next_seed() * 104729 % context);
        }
      }
      Steps steps;
      steps << state->seq_lens.upload(lengths)
            << fill_random(state->q.get(), state->q.size(), next_seed(), 3.0f) << state->out.poison()
            << run_copy(nullptr, 1) << cudaDeviceSynchronize();
      if (!steps.ok()) return kFailed;
      const std::vector<float> want = reference::mla_decode(
          state->q.get(), state->cache.get(), state->block_tables.get() + pages_per_copy,
          state->seq_lens.get(), batch, heads, kPageSize, pages, context, state->call.softmax_scale);
      worst = std::max(worst, worst_sequence_error(download_float(state->out), want, lengths));
    }
    if (state->seq_lens.upload(std::vector<int32_t>(count_of(batch), context)) != cudaSuccess) return kFailed;
    return worst;
  };
  item.run = [=](cudaStream_t stream) {
    state->turn = (state->turn + 1) % state->copies;
    return run_copy(stream, state->turn);
  };
  cases.push_back(std::move(item));
}

// ---- Kimi Delta Attention
// ----------------------------------------------------------------------------------

enum class KdaKind { kShortConv, kDeltaRule, kGatedNorm };

struct KdaBuffers {
  DeviceBuffer<bf16> x, weight, conv_state, qkv, gate, beta, out;
  DeviceBuffer<float> a_log, dt_bias, state;
  DeviceBuffer<int32_t> indices;  // one row of slots per copy
  int copies = 2;
  int turn = 0;
};

void add_kda_case(std::vector<KernelCase>& cases, KdaKind kind, int batch, int heads, bool pdl) {
  auto buffers = std::make_shared<KdaBuffers>();
  const int channels = 3 * heads * kKdaHeadDim;
  const int width = heads * kKdaHeadDim;
  constexpr float kEpsilon = 1e-5f;
  const int64_t state_values = static_cast<int64_t>(width) * kKdaHeadDim;
  const double state_bytes =
      kind == KdaKind::kDeltaRule ? static_cast<double>(batch * state_values) * 4.0 : 0.0;
  buffers->copies = rotation_copies(state_bytes);
  const auto run_copy = [=](cudaStream_t stream, int copy) {
    const LaunchContext ctx{stream, pdl};
    const int32_t* index = buffers->indices.get() + copy * batch;
    switch (kind) {
      case KdaKind::kShortConv:
        return kda_short_conv(ctx, buffers->x.get(), channels, buffers->weight.get(),
                              buffers->conv_state.get(), index, buffers->qkv.get(), batch, channels);
      case KdaKind::kDeltaRule:
        return kda_delta_rule(ctx, buffers->qkv.get(), buffers->gate.get(), width, buffers->beta.get(), heads,
                              buffers->a_log.get(), buffers->dt_bias.get(), buffers->state.get(), index,
                              buffers->out.get(), batch, heads);
      case KdaKind::kGatedNorm:
        return kda_gated_norm(ctx, buffers->qkv.get(), buffers->gate.get(), width, buffers->weight.get(),
                              buffers->out.get(), batch, heads, kEpsilon);
    }
    return cudaErrorInvalidValue;
  };
  KernelCase item;
  item.name = kind == KdaKind::kShortConv   ? "kda_short_conv"
              : kind == KdaKind::kDeltaRule ? "kda_delta_rule"
                                            : "kda_gated_norm";
  if (pdl) item.name += " pdl";
  item.shape = "kimi_linear tp2" + batch_text(batch);
  switch (kind) {
    case KdaKind::kShortConv:
      item.bytes = kBf16Bytes * channels * (4.0 + 8.0 * batch);
      break;
    case KdaKind::kDeltaRule:
      item.bytes = 2 * state_bytes + kBf16Bytes * batch * (width * 5.0 + heads) + 4.0 * (heads + width);
      break;
    case KdaKind::kGatedNorm:
      item.floor = {Floor::Kind::kRows, batch * heads, false};
      item.bytes = kBf16Bytes * (3.0 * batch * width + kKdaHeadDim);
      break;
  }
  // SiLU makes small values common and large ones rare: the largest are over ten times the root mean square.
  item.tolerance = kind == KdaKind::kShortConv ? 2 * kBf16Tolerance : kBf16Tolerance;
  item.pdl = pdl;
  item.bandwidth_bound = kind == KdaKind::kDeltaRule && state_bytes > 8e6;
  item.l2_defeated = kind == KdaKind::kDeltaRule && defeats_l2(state_bytes);
  const int slots = buffers->copies * batch;
  const auto fill = [=] {
    Steps steps;
    steps << fill_random(buffers->x.get(), buffers->x.size(), next_seed(), 1.0f)
          << fill_random(buffers->weight.get(), buffers->weight.size(), next_seed(), 1.0f)
          << fill_random(buffers->conv_state.get(), buffers->conv_state.size(), next_seed(), 1.0f)
          << fill_random(buffers->qkv.get(), buffers->qkv.size(), next_seed(), 1.0f)
          << fill_random(buffers->gate.get(), buffers->gate.size(), next_seed(), 2.0f)
          << fill_random(buffers->beta.get(), buffers->beta.size(), next_seed(), 2.0f)
          << fill_random(buffers->a_log.get(), buffers->a_log.size(), next_seed(), 1.0f)
          << fill_random(buffers->dt_bias.get(), buffers->dt_bias.size(), next_seed(), 1.0f, -2.0f)
          << fill_random(buffers->state.get(), buffers->state.size(), next_seed(), 1.0f)
          << cudaDeviceSynchronize();
    return steps.status();
  };
  item.prepare = [=] {
    std::vector<int32_t> indices(count_of(slots));
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int32_t>(i);
    std::shuffle(indices.begin(), indices.end(), std::mt19937_64(next_seed()));
    Steps steps;
    steps << buffers->x.allocate(count_of(batch, channels)) << buffers->weight.allocate(count_of(4, channels))
          << buffers->conv_state.allocate(count_of(slots, 3, channels))
          << buffers->qkv.allocate(count_of(batch, channels))
          << buffers->gate.allocate(count_of(batch, width)) << buffers->beta.allocate(count_of(batch, heads))
          << buffers->out.allocate(count_of(batch, width)) << buffers->a_log.allocate(count_of(heads))
          << buffers->dt_bias.allocate(count_of(width))
          << buffers->state.allocate(kind == KdaKind::kDeltaRule ? count_of(slots, state_values) : 1)
          << buffers->indices.allocate(count_of(slots)) << buffers->indices.upload(indices) << fill();
    return steps.status();
  };
  item.check = [=] {
    Steps steps;
    const int copy = 1;
    steps << fill() << buffers->out.poison();
    if (kind == KdaKind::kShortConv) steps << buffers->qkv.poison();
    std::vector<int32_t> indices;
    steps << buffers->indices.download(indices);
    if (!steps.ok()) return kFailed;
    const int32_t* slot = indices.data() + copy * batch;
    const std::vector<float> x = download_float(buffers->x);
    const std::vector<float> weight = download_float(buffers->weight);
    const std::vector<float> gate = download_float(buffers->gate);
    std::vector<float> conv_state = download_float(buffers->conv_state);
    const std::vector<float> qkv = download_float(buffers->qkv);
    const std::vector<float> all_state = download_float(buffers->state);
    steps << run_copy(nullptr, copy) << cudaDeviceSynchronize();
    if (!steps.ok()) return kFailed;
    if (kind == KdaKind::kShortConv) {
      std::vector<float> want(count_of(batch, channels));
      for (size_t b = 0; b < count_of(batch); ++b) {
        float* history = conv_state.data() + static_cast<size_t>(slot[b]) * count_of(3, channels);
        for (size_t c = 0; c < count_of(channels); ++c) {
          const float window[4] = {history[c], history[count_of(channels) + c],
                                   history[count_of(2, channels) + c], x[b * count_of(channels) + c]};
          float sum = 0;
          for (size_t i = 0; i < 4; ++i) sum += window[i] * weight[i * count_of(channels) + c];
          want[b * count_of(channels) + c] = sum / (1.0f + std::exp(-sum));
          for (size_t i = 0; i < 3; ++i) history[i * count_of(channels) + c] = window[i + 1];
        }
      }
      return std::max(max_scaled_error(download_float(buffers->qkv), want),
                      max_scaled_error(download_float(buffers->conv_state), conv_state));
    }
    if (kind == KdaKind::kGatedNorm) {
      const std::vector<float> rows(qkv.begin(), qkv.begin() + static_cast<int64_t>(batch) * width);
      std::vector<float> want = reference::rms_norm(
          rows, std::vector<float>(weight.begin(), weight.begin() + kKdaHeadDim), kKdaHeadDim, kEpsilon);
      for (size_t i = 0; i < want.size(); ++i) want[i] /= 1.0f + std::exp(-gate[i]);
      return max_scaled_error(download_float(buffers->out), want);
    }
    std::vector<float> state;
    for (int b = 0; b < batch; ++b) {
      const auto first = all_state.begin() + slot[b] * state_values;
      state.insert(state.end(), first, first + state_values);
    }
    const reference::KdaState want =
        reference::kda_delta_rule(qkv, gate, download_float(buffers->beta), download_float(buffers->a_log),
                                  download_float(buffers->dt_bias), state, batch, heads);
    std::vector<float> want_all = all_state;
    for (int b = 0; b < batch; ++b) {
      std::copy_n(want.state.begin() + b * state_values, state_values,
                  want_all.begin() + slot[b] * state_values);
    }
    return std::max(max_scaled_error(download_float(buffers->out), want.out),
                    max_scaled_error(download_float(buffers->state), want_all));
  };
  item.run = [=](cudaStream_t stream) {
    buffers->turn = (buffers->turn + 1) % buffers->copies;
    return run_copy(stream, buffers->turn);
  };
  cases.push_back(std::move(item));
}

}  // namespace

void register_attention_cases(std::vector<KernelCase>& cases) {
  for (const bool pdl : {false, true}) {
    for (const int batch : {1, 8, 64}) {
      add_norm_case(cases, "hidden 7168", batch, 7168, 7168, true, pdl);
      add_norm_case(cases, "hidden 7168", batch, 7168, 7168, false, pdl);
    }
    add_norm_case(cases, "q_a 1536 of 2112", 8, 1536, 2112, false, pdl);
    add_norm_case(cases, "kv_a 512 of 2112", 8, 512, 2112, false, pdl);
    for (const int batch : {1, 8, 64}) {
      add_rope_case(cases, "k2 tp8 8 heads", batch, 8, pdl);
      add_cache_case(cases, batch, pdl);
      add_residual_case(cases, batch, 7168, pdl);
    }
    for (const int batch : {1, 8, 64}) {
      add_gemm_case(cases, GemmKind::kAbsorbQuery, "k2 tp8 8x[128x512]", {batch, 512, 128, 8, false}, pdl);
      add_gemm_case(cases, GemmKind::kProjectValue, "k2 tp8 8x[512x128]", {batch, 128, 512, 8, false}, pdl);
    }
    add_gemm_case(cases, GemmKind::kAbsorbQuery, "v3 tp8 16x[128x512]", {8, 512, 128, 16, false}, pdl);
    add_gemm_case(cases, GemmKind::kProjectValue, "v3 tp8 16x[512x128]", {8, 128, 512, 16, false}, pdl);
    for (const int batch : {1, 8, 64}) {
      for (const KdaKind kind : {KdaKind::kShortConv, KdaKind::kDeltaRule, KdaKind::kGatedNorm}) {
        add_kda_case(cases, kind, batch, 16, pdl);
      }
    }
  }
  add_advance_case(cases, 8);
  add_advance_case(cases, 200);

  for (const int context : {4096, 16384, 32768}) {
    for (const int batch : {1, 4, 8}) {
      add_attention_case(cases, "k2 tp8 8 heads", 8, batch, context, false);
      add_attention_case(cases, "k2 tp8 8 heads", 8, batch, context, true);
    }
    for (const bool pdl : {false, true}) {
      for (const int batch : {1, 4, 8}) add_attention_case(cases, "v3 tp8 16 heads", 16, batch, context, pdl);
    }
  }
  add_attention_case(cases, "k2 tp8 8 heads", 8, 1, 1000, false);  // fewer pages than parts
  add_attention_case(cases, "k2 tp8 8 heads", 8, 5, 5000, false);
  add_attention_case(cases, "k2 tp8 8 heads", 8, 5, 5000, true);
  add_attention_case(cases, "v3 tp8 16 heads", 16, 5, 5000, true);
  add_attention_case(cases, "k2 tp8 8 heads", 8, 3, 5000, true);  // parts of one page and of two
  add_attention_case(cases, "v3 tp8 16 heads", 16, 2, 7777, true);
  add_attention_case(cases, "v3 tp8 16 heads", 16, 4, 4096, true, false);
  add_attention_case(cases, "k2 tp8 8 heads", 8, 64, 4096, true);
  add_attention_case(cases, "v3 whole 128 heads", 128, 4, 8192, true);

  struct Projection {
    const char* label;
    int n;
    int k;
    bool residual;
  };
  const Projection projections[] = {
      {"qkv_a 7168->2112", 2112, 7168, false},
      {"k2 q_b 1536->1536", 1536, 1536, false},
      {"v3 q_b 1536->3072", 3072, 1536, false},
      {"k2 o_proj 1024->7168", 7168, 1024, false},
      {"v3 o_proj 2048->7168", 7168, 2048, false},
      {"dense gate_up 7168->4608", 4608, 7168, false},
      {"dense down 2304->7168", 7168, 2304, false},
      {"dense down 2304->7168", 7168, 2304, true},
      {"router 7168->384", 384, 7168, false},
      {"kimi_linear qkv 2304->6144", 6144, 2304, false},
      {"kimi_linear o 2048->2304", 2304, 2048, false},
      {"shared gate_up 7168->512", 512, 7168, false},
      {"shared down 256->7168", 7168, 256, false},
      {"kimi_linear shared gate_up 2304->1024", 1024, 2304, false},
      {"router 7168->256", 256, 7168, false},
  };
  for (const Projection& p : projections) {
    for (const int batch : {1, 4, 8, 64}) {
      const GemmShape shape{batch, p.n, p.k, 1, p.residual};
      if (batch == 64 && (p.residual || p.n < 2000)) continue;
      if (batch <= 8) add_gemm_case(cases, GemmKind::kSkinny, p.label, shape, false);
      if (batch <= 8) add_gemm_case(cases, GemmKind::kSkinny, p.label, shape, true);
      add_gemm_case(cases, GemmKind::kCublasLt, p.label, shape, false);
      add_gemm_case(cases, GemmKind::kCublasLtTuned, p.label, shape, false);
    }
  }
  // What else the stack of Kimi Linear launches; it takes no library at so few tokens.
  constexpr int kKimiFused = 3 * 2048 + 16 + 2 * 128;  // q, k, v, beta, inputs of the two gates
  constexpr int kKimiQueriesAndRow = 16 * 192 + kCacheRow;
  const Projection kimi_projections[] = {
      {"kimi_linear kda qkv+beta+gates 2304->6416", kKimiFused, 2304, false},
      {"kimi_linear mla q+kv_a 2304->3648", kKimiQueriesAndRow, 2304, false},
      {"kimi_linear dense gate_up 2304->9216", 9216, 2304, false},
      {"kimi_linear dense down 4608->2304", 2304, 4608, false},
      {"kimi_linear shared down 512->2304", 2304, 512, false},
  };
  for (const int batch : {1, 4, 8}) {
    for (const bool pdl : {false, true}) {
      for (const Projection& p : kimi_projections)
        add_gemm_case(cases, GemmKind::kSkinny, p.label, {batch, p.n, p.k, 1, p.residual}, pdl);
      // The second halves of both gates in one launch, from where the fused projection leaves their inputs.
      const GemmShape gates{batch, 2048, 128, 2, false, kKimiFused, true};
      add_gemm_case(cases, GemmKind::kSkinny, "kimi_linear kda gates 2x[128->2048]", gates, pdl);
    }
  }
}

}  // namespace cglint::kernels
