#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "layers/reference.h"

namespace cglint::models {
namespace {

using kernels::bf16;
using kernels::DeviceBuffer;
using kernels::fp8_e4m3;

constexpr int kBlock = 128;  // rows and columns of one fp8 scale

__device__ float widen(bf16 value) {
  return __bfloat162float(value);
}
__device__ float widen(fp8_e4m3 value) {
  return static_cast<float>(value);
}

template <typename T>
struct Product {
  const float* x = nullptr;  // row of output row r: r / row_divisor, head h
  std::int64_t x_row_stride = 0;
  std::int64_t x_head_stride = 0;
  int row_divisor = 1;
  const T* weight = nullptr;  // element (n, k) of head h
  std::int64_t n_stride = 0;
  std::int64_t k_stride = 1;
  std::int64_t head_stride = 0;
  const float* scale = nullptr;           // one per 128 x 128 block, or null
  const std::int32_t* experts = nullptr;  // [rows]: the row's weights start expert * n * k in. Null: at 0
  float* out = nullptr;
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  int rows = 0;
  int n = 0;
  int k = 0;
  int heads = 1;
};

// One warp an output.
template <typename T>
__global__ void product_kernel(Product<T> p) {
  const std::int64_t output = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (output >= static_cast<std::int64_t>(p.rows) * p.heads * p.n) return;
  const int n = static_cast<int>(output % p.n);
  const int head = static_cast<int>(output / p.n % p.heads);
  const int row = static_cast<int>(output / p.n / p.heads);
  const std::int64_t expert = p.experts == nullptr ? 0 : p.experts[row];
  const float* const x = p.x + row / p.row_divisor * p.x_row_stride + head * p.x_head_stride;
  const T* const w = p.weight + expert * p.n * p.k + head * p.head_stride + n * p.n_stride;
  const float* const scale =
      p.scale == nullptr
          ? nullptr
          : p.scale + (expert * ((p.n + kBlock - 1) / kBlock) + n / kBlock) * ((p.k + kBlock - 1) / kBlock);
  float sum = 0;
  for (int k = lane; k < p.k; k += 32)
    sum += x[k] * widen(w[k * p.k_stride]) * (scale == nullptr ? 1.0F : scale[k / kBlock]);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  if (lane == 0) p.out[row * p.out_row_stride + head * p.out_head_stride + n] = sum;
}

__global__ void embedding_kernel(const std::int32_t* ids, const bf16* table, float* out, int tokens,
                                 int hidden) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < static_cast<std::int64_t>(tokens) * hidden)
    out[i] = widen(table[static_cast<std::int64_t>(ids[i / hidden]) * hidden + i % hidden]);
}

__global__ void add_kernel(float* sum, const float* addend, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) sum[i] += addend[i];
}

__global__ void widen_kernel(const bf16* in, float* out, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = widen(in[i]);
}

__global__ void round_kernel(float* values, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) values[i] = widen(__float2bfloat16_rn(values[i]));
}

// One thread a row.
__global__ void norm_kernel(const float* in, std::int64_t in_stride, const bf16* weight, float* out, int rows,
                            int width, float epsilon) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  const float* const values = in + row * in_stride;
  double sum = 0;
  for (int i = 0; i < width; ++i) sum += static_cast<double>(values[i]) * values[i];
  const double scale = 1.0 / sqrt(sum / width + epsilon);
  for (int i = 0; i < width; ++i)
    out[static_cast<std::int64_t>(row) * width + i] =
        static_cast<float>(values[i] * scale * widen(weight[i]));
}

// One thread a pair of values; rows of 64 in place.
__global__ void rope_kernel(float* data, std::int64_t row_stride, std::int64_t head_stride, int rows,
                            int heads, int position, double base) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int pair = index % (kRope / 2);
  const int head = index / (kRope / 2) % heads;
  const int row = index / (kRope / 2) / heads;
  if (row >= rows) return;
  float* const at = data + row * row_stride + head * head_stride + 2 * pair;
  const double angle = position * pow(base, -2.0 * pair / kRope);
  const double x = at[0];
  const double y = at[1];
  at[0] = static_cast<float>(x * cos(angle) - y * sin(angle));
  at[1] = static_cast<float>(x * sin(angle) + y * cos(angle));
}

struct Attention {
  const float* query = nullptr;  // [batch, heads, 512 + 64]
  const bf16* cache = nullptr;
  const std::int32_t* block_table = nullptr;
  const float* new_latent = nullptr;  // [batch, 512]
  const float* new_rope = nullptr;    // row b at b * new_rope_stride
  std::int64_t new_rope_stride = 0;
  float* scores = nullptr;  // [batch, heads, context + 1]
  float* out = nullptr;     // [batch, heads, 512]
  int batch = 0;
  int heads = 0;
  int context = 0;
  int page_size = 0;
  int max_pages = 0;
};

// Value i of token t's row: from the cache, of the step's own token from what the reference computed.
__device__ float cached(const Attention& a, int sequence, int token, int i) {
  if (token == a.context)
    return i < kLatent ? a.new_latent[static_cast<std::int64_t>(sequence) * kLatent + i]
                       : a.new_rope[sequence * a.new_rope_stride + i - kLatent];
  const std::int64_t page =
      a.block_table[static_cast<std::int64_t>(sequence) * a.max_pages + token / a.page_size];
  return widen(a.cache[(page * a.page_size + token % a.page_size) * (kLatent + kRope) + i]);
}

__global__ void scores_kernel(Attention a) {
  const int token = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (token > a.context) return;
  const int sequence = static_cast<int>(blockIdx.z);
  const std::int64_t row = static_cast<std::int64_t>(sequence) * a.heads + blockIdx.y;
  float sum = 0;
  for (int i = 0; i < kLatent + kRope; ++i)
    sum += a.query[row * (kLatent + kRope) + i] * cached(a, sequence, token, i);
  a.scores[row * (a.context + 1) + token] = sum / sqrtf(static_cast<float>(kQueryHead));
}

__global__ void values_kernel(Attention a) {
  const int column = static_cast<int>(threadIdx.x);
  const int sequence = static_cast<int>(blockIdx.y);
  const std::int64_t row = static_cast<std::int64_t>(sequence) * a.heads + blockIdx.x;
  const float* const scores = a.scores + row * (a.context + 1);
  float largest = -INFINITY;
  for (int token = 0; token <= a.context; ++token) largest = fmaxf(largest, scores[token]);
  double total = 0;
  double sum = 0;
  for (int token = 0; token <= a.context; ++token) {
    const double probability = expf(scores[token] - largest);
    total += probability;
    sum += probability * cached(a, sequence, token, column);
  }
  a.out[row * kLatent + column] = static_cast<float>(sum / total);
}

__global__ void silu_mul_kernel(const float* gate_up, float* out, int rows, int width) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<std::int64_t>(rows) * width) return;
  const float* const row = gate_up + i / width * 2 * width;
  const float gate = row[i % width];
  out[i] = gate / (1.0F + expf(-gate)) * row[width + i % width];
}

// What an fp8 product sees of its activations: each group of 128 values scaled by its largest to 448 and
// rounded. One thread a group. This is what the operation means, not an approximation of the step's.
__global__ void quantised_kernel(const float* in, float* out, std::int64_t groups) {
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (group >= groups) return;
  float largest = 1e-10F;
  for (int i = 0; i < kBlock; ++i) largest = fmaxf(largest, fabsf(in[group * kBlock + i]));
  const float scale = largest / 448.0F;
  for (int i = 0; i < kBlock; ++i)
    out[group * kBlock + i] = static_cast<float>(fp8_e4m3(in[group * kBlock + i] / scale)) * scale;
}

__global__ void combine_kernel(const float* y, const float* weights, const float* shared, float* out,
                               int tokens, int top_k, int hidden) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= static_cast<std::int64_t>(tokens) * hidden) return;
  const std::int64_t token = i / hidden;
  float sum = shared[i];
  for (int k = 0; k < top_k; ++k)
    sum += weights[token * top_k + k] * y[(token * top_k + k) * hidden + i % hidden];
  out[i] = sum;
}

unsigned blocks_of(std::int64_t count, int threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}
std::size_t size_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

// Runs until the first failure, which it keeps.
class Reference {
 public:
  Reference(const ReferenceStep& step, ReferenceInput input)
      : step_(step), shape_(step.shape), follows_step_(input == ReferenceInput::of_the_step) {}
  ReferenceResult run();

 private:
  void note(cudaError_t status) {
    if (result_.status == cudaSuccess) result_.status = status;
  }
  [[nodiscard]] bool ok() const { return result_.status == cudaSuccess; }
  float* buffer(DeviceBuffer<float>& buffer, std::int64_t count) {
    if (ok() && buffer.size() < size_of(count)) note(buffer.allocate(size_of(count)));
    return buffer.get();
  }
  template <typename T>
  void product(const Product<T>& p) {
    if (!ok()) return;
    product_kernel<T><<<blocks_of(static_cast<std::int64_t>(p.rows) * p.heads * p.n, 4), 128>>>(p);
    note(cudaGetLastError());
  }
  // x [batch, k] and out [batch, n] contiguous.
  void dense(const float* x, const bf16* weight, float* out, int n, int k) {
    Product<bf16> p;
    p.x = x;
    p.x_row_stride = k;
    p.weight = weight;
    p.n_stride = k;
    p.out = out;
    p.out_row_stride = n;
    p.rows = step_.batch;
    p.n = n;
    p.k = k;
    product(p);
  }
  void norm(const float* in, std::int64_t stride, const bf16* weight, float* out, int width) {
    if (!ok()) return;
    norm_kernel<<<blocks_of(step_.batch, 32), 32>>>(in, stride, weight, out, step_.batch, width,
                                                    step_.epsilon);
    note(cudaGetLastError());
  }
  void silu_mul(const float* gate_up, float* out, int rows, int width) {
    if (!ok()) return;
    silu_mul_kernel<<<blocks_of(static_cast<std::int64_t>(rows) * width, 128), 128>>>(gate_up, out, rows,
                                                                                      width);
    note(cudaGetLastError());
  }
  void quantised(const float* in, float* out, std::int64_t count) {
    if (!ok()) return;
    quantised_kernel<<<blocks_of(count / kBlock, 128), 128>>>(in, out, count / kBlock);
    note(cudaGetLastError());
  }
  // What the step stores in bf16.
  void rounded(float* values, std::int64_t count) {
    if (!ok() || !follows_step_) return;
    round_kernel<<<blocks_of(count, 128), 128>>>(values, count);
    note(cudaGetLastError());
  }
  // `values` against what the step has for it, which takes its place.
  void compare(float* values, const bf16* steps, std::int64_t count, const std::string& name);
  void attention(const ReferenceLayer& layer);
  void experts(const ReferenceLayer& layer, int index);
  // The weights of the step's choices by the reference's own scores; judges the choices.
  std::vector<float> judge(const std::vector<float>& logits, const std::vector<float>& bias, int index);

  const ReferenceStep& step_;
  const DecoderShape& shape_;
  bool follows_step_;
  ReferenceResult result_;
  DeviceBuffer<float> residual_, x_, branch_, qkv_, q_a_, latent_, q_, query_, scores_, attended_, values_;
  DeviceBuffer<float> gate_up_, hidden_, quantised_, logits_, weights_, y_, shared_;
  DeviceBuffer<std::int32_t> chosen_;
};

void Reference::compare(float* values, const bf16* steps, std::int64_t count, const std::string& name) {
  if (!ok() || !follows_step_) return;
  std::vector<float> own(size_of(count));
  note(cudaMemcpy(own.data(), values, own.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (!ok()) return;
  widen_kernel<<<blocks_of(count, 128), 128>>>(steps, values, count);
  note(cudaGetLastError());
  std::vector<float> of_step(own.size());
  if (ok()) note(cudaMemcpy(of_step.data(), values, of_step.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (ok()) result_.worst.see(part_error(of_step, own), name);
}

// branch_ = attention of x_.
void Reference::attention(const ReferenceLayer& layer) {
  const int batch = step_.batch;
  const int heads = shape_.heads;
  const int width = shape_.query_rank + kLatent + kRope;
  float* const qkv = buffer(qkv_, static_cast<std::int64_t>(batch) * width);
  float* const q_a = buffer(q_a_, static_cast<std::int64_t>(batch) * shape_.query_rank);
  float* const latent = buffer(latent_, static_cast<std::int64_t>(batch) * kLatent);
  float* const q = buffer(q_, static_cast<std::int64_t>(batch) * heads * kQueryHead);
  float* const query = buffer(query_, static_cast<std::int64_t>(batch) * heads * (kLatent + kRope));
  float* const attended = buffer(attended_, static_cast<std::int64_t>(batch) * heads * kLatent);
  float* const values = buffer(values_, static_cast<std::int64_t>(batch) * heads * kHead);
  float* const scores = buffer(scores_, static_cast<std::int64_t>(batch) * heads * (step_.context + 1));
  if (!ok()) return;
  dense(x_.get(), layer.qkv_a, qkv, width, shape_.hidden);
  norm(qkv, width, layer.q_norm, q_a, shape_.query_rank);
  norm(qkv + shape_.query_rank, width, layer.kv_norm, latent, kLatent);
  dense(q_a, layer.q_b, q, heads * kQueryHead, shape_.query_rank);
  if (!ok()) return;
  rope_kernel<<<blocks_of(static_cast<std::int64_t>(batch) * heads * kRope / 2, 32), 32>>>(
      q + kHead, static_cast<std::int64_t>(heads) * kQueryHead, kQueryHead, batch, heads, step_.context,
      shape_.rope_base);
  rope_kernel<<<blocks_of(static_cast<std::int64_t>(batch) * kRope / 2, 32), 32>>>(
      qkv + shape_.query_rank + kLatent, width, 0, batch, 1, step_.context, shape_.rope_base);
  note(cudaGetLastError());
  // The rotated part behind the absorbed one.
  note(cudaMemcpy2D(query + kLatent, (kLatent + kRope) * sizeof(float), q + kHead, kQueryHead * sizeof(float),
                    kRope * sizeof(float), size_of(static_cast<std::int64_t>(batch) * heads),
                    cudaMemcpyDeviceToDevice));
  Product<bf16> absorb;
  absorb.x = q;
  absorb.x_row_stride = static_cast<std::int64_t>(heads) * kQueryHead;
  absorb.x_head_stride = kQueryHead;
  absorb.weight = layer.w_uk_t;
  absorb.n_stride = 1;
  absorb.k_stride = kLatent;
  absorb.head_stride = kHead * kLatent;
  absorb.out = query;
  absorb.out_row_stride = static_cast<std::int64_t>(heads) * (kLatent + kRope);
  absorb.out_head_stride = kLatent + kRope;
  absorb.rows = batch;
  absorb.n = kLatent;
  absorb.k = kHead;
  absorb.heads = heads;
  product(absorb);
  if (!ok()) return;
  Attention a;
  a.query = query;
  a.cache = layer.cache;
  a.block_table = step_.block_table;
  a.new_latent = latent;
  a.new_rope = qkv + shape_.query_rank + kLatent;
  a.new_rope_stride = width;
  a.scores = scores;
  a.out = attended;
  a.batch = batch;
  a.heads = heads;
  a.context = step_.context;
  a.page_size = step_.page_size;
  a.max_pages = step_.max_pages;
  scores_kernel<<<dim3(blocks_of(step_.context + 1, 64), static_cast<unsigned>(heads),
                       static_cast<unsigned>(batch)),
                  64>>>(a);
  values_kernel<<<dim3(static_cast<unsigned>(heads), static_cast<unsigned>(batch)), kLatent>>>(a);
  note(cudaGetLastError());
  Product<bf16> project;
  project.x = attended;
  project.x_row_stride = static_cast<std::int64_t>(heads) * kLatent;
  project.x_head_stride = kLatent;
  project.weight = layer.w_uv;
  project.n_stride = kLatent;
  project.head_stride = kHead * kLatent;
  project.out = values;
  project.out_row_stride = static_cast<std::int64_t>(heads) * kHead;
  project.out_head_stride = kHead;
  project.rows = batch;
  project.n = kHead;
  project.k = kLatent;
  project.heads = heads;
  product(project);
  dense(values, layer.o, branch_.get(), shape_.hidden, heads * kHead);
}

std::vector<float> Reference::judge(const std::vector<float>& logits, const std::vector<float>& bias,
                                    int index) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int group_size = shape_.experts / shape_.num_groups;
  std::vector<float> weights;
  for (int token = 0; token < step_.batch; ++token) {
    std::vector<double> score(size_of(shape_.experts));
    std::vector<double> biased(score.size());
    for (std::size_t e = 0; e < score.size(); ++e) {
      score[e] = 1.0 / (1.0 + std::exp(-double{logits[size_of(token) * score.size() + e]}));
      biased[e] = score[e] + double{bias[e]};
    }
    const auto first =
        step_.choices.begin() + (static_cast<std::ptrdiff_t>(index) * step_.batch + token) * shape_.top_k;
    const std::vector<std::int32_t> ids(first, first + shape_.top_k);
    std::set<int> groups;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= shape_.experts || std::count(ids.begin(), ids.end(), id) != 1) {
        result_.choice_error = kInfinity;
        return {};
      }
      groups.insert(id / group_size);
    }
    if (static_cast<int>(groups.size()) > shape_.top_groups) result_.choice_error = kInfinity;
    // A group is worth the sum of its two best; the best groups that the choice leaves room for join those in
    // use.
    std::vector<std::pair<double, int>> ranked;
    for (int group = 0; group < shape_.num_groups; ++group) {
      std::vector<double> members(biased.begin() + group * group_size,
                                  biased.begin() + (group + 1) * group_size);
      std::partial_sort(members.begin(), members.begin() + 2, members.end(), std::greater<>());
      ranked.emplace_back(members[0] + members[1], group);
    }
    std::sort(ranked.begin(), ranked.end(), std::greater<>());
    const double worst_group = ranked[size_of(shape_.top_groups - 1)].first;
    for (const auto& [worth, group] : ranked) {
      if (groups.contains(group)) result_.choice_error = std::max(result_.choice_error, worst_group - worth);
      if (static_cast<int>(groups.size()) < shape_.top_groups) groups.insert(group);
    }
    std::vector<double> eligible;
    for (int e = 0; e < shape_.experts; ++e)
      if (groups.contains(e / group_size)) eligible.push_back(biased[size_of(e)]);
    std::sort(eligible.begin(), eligible.end(), std::greater<>());
    double total = 0;
    for (const std::int32_t id : ids) {
      result_.choice_error =
          std::max(result_.choice_error, eligible[size_of(shape_.top_k - 1)] - biased[size_of(id)]);
      total += score[size_of(id)];
    }
    for (const std::int32_t id : ids)
      weights.push_back(static_cast<float>(score[size_of(id)] / total * double{shape_.routed_scaling}));
  }
  return weights;
}

// branch_ = mixture of experts of x_.
void Reference::experts(const ReferenceLayer& layer, int index) {
  const int batch = step_.batch;
  const int hidden = shape_.hidden;
  const int pairs = batch * shape_.top_k;
  float* const logits = buffer(logits_, static_cast<std::int64_t>(batch) * shape_.experts);
  if (!ok()) return;
  dense(x_.get(), layer.router, logits, shape_.experts, hidden);
  std::vector<float> host_logits(size_of(static_cast<std::int64_t>(batch) * shape_.experts));
  std::vector<float> bias(size_of(shape_.experts));
  if (ok())
    note(cudaMemcpy(host_logits.data(), logits, host_logits.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (ok()) note(cudaMemcpy(bias.data(), layer.bias, bias.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (!ok()) return;
  const std::vector<float> weights = judge(host_logits, bias, index);
  if (weights.empty()) return;
  const auto first = step_.choices.begin() + static_cast<std::ptrdiff_t>(index) * pairs;
  float* const device_weights = buffer(weights_, pairs);
  if (ok() && chosen_.size() == 0) note(chosen_.allocate(size_of(pairs)));
  if (ok()) note(chosen_.upload({first, first + pairs}));
  if (ok())
    note(cudaMemcpy(device_weights, weights.data(), weights.size() * sizeof(float), cudaMemcpyHostToDevice));

  const int width = shape_.expert_intermediate;
  const std::int64_t widest = std::max<std::int64_t>(static_cast<std::int64_t>(batch) * hidden,
                                                     static_cast<std::int64_t>(pairs) * width);
  float* const gate_up = buffer(gate_up_, static_cast<std::int64_t>(pairs) * 2 * width);
  float* const activated = buffer(hidden_, static_cast<std::int64_t>(pairs) * width);
  float* const rounded = buffer(quantised_, widest);
  float* const y = buffer(y_, static_cast<std::int64_t>(pairs) * hidden);
  if (!ok()) return;
  quantised(x_.get(), rounded, static_cast<std::int64_t>(batch) * hidden);
  Product<fp8_e4m3> p;
  p.x = rounded;
  p.x_row_stride = hidden;
  p.row_divisor = shape_.top_k;
  p.weight = layer.w13;
  p.n_stride = hidden;
  p.scale = layer.w13_scale;
  p.experts = chosen_.get();
  p.out = gate_up;
  p.out_row_stride = 2 * width;
  p.rows = pairs;
  p.n = 2 * width;
  p.k = hidden;
  product(p);
  silu_mul(gate_up, activated, pairs, width);
  quantised(activated, rounded, static_cast<std::int64_t>(pairs) * width);
  p.x_row_stride = width;
  p.row_divisor = 1;
  p.weight = layer.w2;
  p.n_stride = width;
  p.scale = layer.w2_scale;
  p.out = y;
  p.out_row_stride = hidden;
  p.n = hidden;
  p.k = width;
  product(p);

  const int shared_width = shape_.shared_intermediate;
  float* const shared_gate_up = buffer(gate_up_, static_cast<std::int64_t>(batch) * 2 * shared_width);
  float* const shared_activated = buffer(hidden_, static_cast<std::int64_t>(batch) * shared_width);
  float* const shared = buffer(shared_, static_cast<std::int64_t>(batch) * hidden);
  if (!ok()) return;
  dense(x_.get(), layer.shared_gate_up, shared_gate_up, 2 * shared_width, hidden);
  silu_mul(shared_gate_up, shared_activated, batch, shared_width);
  dense(shared_activated, layer.shared_down, shared, hidden, shared_width);
  if (!ok()) return;
  combine_kernel<<<blocks_of(static_cast<std::int64_t>(batch) * hidden, 128), 128>>>(
      y, device_weights, shared, branch_.get(), batch, shape_.top_k, hidden);
  note(cudaGetLastError());
}

ReferenceResult Reference::run() {
  const std::int64_t count = static_cast<std::int64_t>(step_.batch) * shape_.hidden;
  float* const residual = buffer(residual_, count);
  float* const x = buffer(x_, count);
  float* const branch = buffer(branch_, count);
  const auto add_branch = [&] {
    if (!ok()) return;
    add_kernel<<<blocks_of(count, 128), 128>>>(residual, branch, count);
    note(cudaGetLastError());
    rounded(residual, count);
  };
  const auto norm_of_residual = [&](const bf16* weight) {
    norm(residual, shape_.hidden, weight, x, shape_.hidden);
    rounded(x, count);
  };
  if (ok()) {
    embedding_kernel<<<blocks_of(count, 128), 128>>>(step_.token_ids, step_.embedding, residual, step_.batch,
                                                     shape_.hidden);
    note(cudaGetLastError());
  }
  for (std::size_t i = 0; ok() && i < step_.layers.size(); ++i) {
    const ReferenceLayer& layer = step_.layers[i];
    const std::string name = "layer " + std::to_string(i);
    norm_of_residual(layer.input_norm);
    attention(layer);
    compare(branch, layer.attention_output, count, "attention of " + name);
    add_branch();
    norm_of_residual(layer.post_norm);
    if (layer.gate_up != nullptr) {
      const int width = shape_.dense_intermediate;
      float* const gate_up = buffer(gate_up_, static_cast<std::int64_t>(step_.batch) * 2 * width);
      float* const activated = buffer(hidden_, static_cast<std::int64_t>(step_.batch) * width);
      if (!ok()) break;
      dense(x, layer.gate_up, gate_up, 2 * width, shape_.hidden);
      silu_mul(gate_up, activated, step_.batch, width);
      dense(activated, layer.down, branch, shape_.hidden, width);
    } else {
      experts(layer, static_cast<int>(i));
      if (std::isinf(result_.choice_error)) return result_;
    }
    compare(branch, layer.output, count, (layer.gate_up != nullptr ? "MLP of " : "experts of ") + name);
    add_branch();
  }
  norm_of_residual(step_.final_norm);
  compare(x, step_.step_output, count, "the final norm");
  if (ok()) note(cudaDeviceSynchronize());
  std::vector<float> output(size_of(count));
  if (ok()) note(cudaMemcpy(output.data(), x, output.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (ok()) result_.output = std::move(output);
  return result_;
}

}  // namespace

ReferenceResult reference_step(const ReferenceStep& step, ReferenceInput input) {
  return Reference(step, input).run();
}

}  // namespace cglint::models
