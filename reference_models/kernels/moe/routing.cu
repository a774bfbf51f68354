#include "kernels/moe/ptx.cuh"
#include "kernels/moe/routing.h"

namespace cglint::kernels::moe {
namespace {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kMaxExperts = 1024;
constexpr int kMaxGroups = 32;

// Unsigned integers in the order of the floats; 0 is below every number.
__device__ __forceinline__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Score of expert number threadIdx.x, and the bias that is added for the choice alone. Every thread of the
// block calls. kLoads parts are under way at once: with 14 the kernel of few tokens takes 4.5 us instead of 2.7,
// probably because every launch has to fetch the code.
constexpr int kLoads = 7;

__device__ __forceinline__ float score_of(const TopkArgs& a, int token, float* scratch, float* choice_bias) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const bool has_expert = tid < a.experts;
  float logit = 0.0f;
  float bias = 0.0f;
  if (has_expert) {
    if (a.bias != nullptr) {
      bias = __ldg(a.bias + tid);
    } else if (a.bias_bf16 != nullptr) {
      bias = __bfloat162float(a.bias_bf16[tid]);
    }
    const float* partial = a.logits + static_cast<int64_t>(token) * a.experts + tid;
    const int64_t stride = static_cast<int64_t>(a.tokens) * a.experts;
    for (int first = 0; first < a.splits; first += kLoads) {
      float part[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) part[i] = first + i < a.splits ? partial[(first + i) * stride] : 0.0f;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) logit += part[i];
    }
  }
  float score = 0.0f;
  if (a.score == ScoreFunction::kSigmoid) {
    score = __fdividef(1.0f, 1.0f + __expf(-logit));
  } else {
    // Softmax over all experts: block-wide maximum, then sum.
    float largest = warp_max(has_expert ? logit : -INFINITY);
    if (lane == 0) scratch[warp] = largest;
    __syncthreads();
    largest = warp_max(lane < warps ? scratch[lane] : -INFINITY);
    const float exponential = has_expert ? __expf(logit - largest) : 0.0f;
    score = exponential / block_sum(exponential, scratch);
  }
  *choice_bias = bias;
  return score;
}

// One block a token, one thread an expert for the scores; the first warp then chooses. kPerLane: neighbouring
// experts a lane of that warp holds.
template <int kPerLane>
__global__ void moe_topk_kernel(const __grid_constant__ TopkArgs a) {
  __shared__ float scores[kMaxExperts];
  __shared__ __align__(16) uint32_t keys[kMaxExperts];
  __shared__ float group_scores[kMaxGroups];
  __shared__ float scratch[32];

  pdl_wait();
  pdl_trigger();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int token = static_cast<int>(blockIdx.x);
  const bool has_expert = tid < a.experts;

  float bias = 0.0f;
  const float score = score_of(a, token, scratch, &bias);
  if (has_expert) {
    scores[tid] = score;
    keys[tid] = ordered(score + bias);
  }
  for (int i = a.experts + tid; i < kPerLane * 32; i += static_cast<int>(blockDim.x)) keys[i] = 0;
  __syncthreads();

  const int group_size = a.experts / a.num_groups;
  const bool grouped = a.num_groups > 1 && a.top_groups < a.num_groups;
  if (grouped) {
    for (int group = warp; group < a.num_groups; group += warps) {
      uint32_t first = 0;
      uint32_t second = 0;
      for (int i = lane; i < group_size; i += 32) {
        const uint32_t key = keys[group * group_size + i];
        second = max(second, min(first, key));
        first = max(first, key);
      }
      const uint32_t best = __reduce_max_sync(kFullWarp, first);
      float worth = from_ordered(best);
      if ((a.bias != nullptr || a.bias_bf16 != nullptr) && group_size > 1) {
        const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, first == best))) - 1;
        worth += from_ordered(__reduce_max_sync(kFullWarp, lane == owner ? second : first));
      }
      if (lane == 0) group_scores[group] = worth;
    }
    __syncthreads();
  }
  if (warp != 0) return;

  uint32_t chosen_groups = kFullWarp;
  if (grouped) {
    const float worth = lane < a.num_groups ? group_scores[lane] : -INFINITY;
    int better = 0;
    for (int other = 0; other < a.num_groups; ++other) {
      const float theirs = __shfl_sync(kFullWarp, worth, other);
      better += theirs > worth || (theirs == worth && other < lane) ? 1 : 0;
    }
    chosen_groups = __ballot_sync(kFullWarp, lane < a.num_groups && better < a.top_groups);
  }
  uint32_t mine[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + lane * kPerLane + i);
    mine[i] = four.x;
    mine[i + 1] = four.y;
    mine[i + 2] = four.z;
    mine[i + 3] = four.w;
  }
  if (grouped) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int group = (lane * kPerLane + i) / group_size;
      if (group >= a.num_groups || ((chosen_groups >> group) & 1u) == 0) mine[i] = 0;
    }
  }
  int kept = -1;
  for (int k = 0; k < a.top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, mine[i]);
    uint32_t equal = 0;  // the lane's own best, found while the warp's is on its way
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) equal |= mine[i] == best ? 1u << i : 0u;
    const int first = __ffs(static_cast<int>(equal)) - 1;
    const uint32_t overall = __reduce_max_sync(kFullWarp, best);
    const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, best == overall))) - 1;
    const int winner = __shfl_sync(kFullWarp, lane * kPerLane + first, owner);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane == owner && i == first) mine[i] = 0;
    }
    if (lane == k && overall != 0) kept = winner;
  }
  // With fewer candidates than top_k (too small groups) `kept` may be -1.
  const bool writes = lane < a.top_k;
  const bool valid = writes && kept >= 0;
  float weight = valid ? scores[kept] : 0.0f;
  const float sum = warp_sum(weight);
  weight *= a.renormalize ? a.scaling / fmaxf(sum, 1e-20f) : a.scaling;
  if (writes) {
    const int64_t at = static_cast<int64_t>(token) * a.top_k + lane;
    a.weights[at] = weight;
    a.ids[at] = valid ? kept : 0;
  }
}

// The same where experts fill whole warps, groups are warps and at most kFewChoices are asked for: each warp ranks its 32
// experts by comparing all with all, then the best of every warp are ranked so.
constexpr int kFewChoices = 8;
constexpr int kFewExperts = 256;
constexpr int kFewTokens = 16;  // with 1024 the kernel above is faster, and where there are no groups
constexpr int kCandidates = kFewExperts / 32 * kFewChoices;

__global__ void __launch_bounds__(kFewExperts) moe_topk_few_kernel(const __grid_constant__ TopkArgs a) {
  __shared__ __align__(16) uint32_t keys[kCandidates];
  __shared__ float scores[kCandidates];
  __shared__ int experts[kCandidates];
  __shared__ uint32_t group_keys[kFewExperts / 32][2];  // best and second
  __shared__ float chosen_scores[kFewChoices];
  __shared__ int chosen_experts[kFewChoices];
  __shared__ float scratch[32];
  pdl_wait();
  pdl_trigger();
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int token = static_cast<int>(blockIdx.x);
  float bias = 0.0f;
  const float score = score_of(a, token, scratch, &bias);
  const uint32_t key = ordered(score + bias);
  int rank = 0;
#pragma unroll
  for (int other = 0; other < 32; ++other) {
    const uint32_t theirs = __shfl_sync(kFullWarp, key, other);
    rank += theirs > key || (theirs == key && other < lane) ? 1 : 0;
  }
  if (rank < 2) group_keys[warp][rank] = key;
  if (rank < kFewChoices) {
    keys[warp * kFewChoices + rank] = key;
    scores[warp * kFewChoices + rank] = score;
    experts[warp * kFewChoices + rank] = tid;
  }
  if (tid < kFewChoices) {
    chosen_scores[tid] = 0.0f;
    chosen_experts[tid] = 0;
  }
  __syncthreads();

  if (tid < (warps * kFewChoices + 31) / 32 * 32) {
    uint32_t groups = kFullWarp;
    if (a.num_groups > 1 && a.top_groups < a.num_groups) {
      const bool adds_second = a.bias != nullptr || a.bias_bf16 != nullptr;
      const auto worth_of = [&](int group) {
        const float best = from_ordered(group_keys[group][0]);
        return adds_second ? best + from_ordered(group_keys[group][1]) : best;
      };
      const float worth = lane < warps ? worth_of(lane) : -INFINITY;
      int better = 0;
      for (int other = 0; other < warps; ++other) {
        const float theirs = worth_of(other);
        better += theirs > worth || (theirs == worth && other < lane) ? 1 : 0;
      }
      groups = __ballot_sync(kFullWarp, lane < warps && better < a.top_groups);
    }
    const bool exists = tid < warps * kFewChoices && ((groups >> (tid / kFewChoices)) & 1u) != 0;
    const uint32_t mine = exists ? keys[tid] : 0;
    int place = 0;
    for (int group = 0; group < warps; ++group) {
      if (((groups >> group) & 1u) == 0) continue;
      const auto* theirs = reinterpret_cast<const uint4*>(keys + group * kFewChoices);
      const uint4 low = theirs[0];
      const uint4 high = theirs[1];
      const uint32_t all[kFewChoices] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < kFewChoices; ++i)
        place += all[i] > mine || (all[i] == mine && group * kFewChoices + i < tid) ? 1 : 0;
    }
    if (exists && place < a.top_k) {
      chosen_scores[place] = scores[tid];
      chosen_experts[place] = experts[tid];
    }
  }
  __syncthreads();
  if (warp != 0) return;
  const bool writes = lane < a.top_k;
  float weight = writes ? chosen_scores[lane] : 0.0f;
  const float sum = warp_sum(weight);
  weight *= a.renormalize ? a.scaling / fmaxf(sum, 1e-20f) : a.scaling;
  if (writes) {
    const int64_t at = static_cast<int64_t>(token) * a.top_k + lane;
    a.weights[at] = weight;
    a.ids[at] = chosen_experts[lane];
  }
}

// ---- block lists ----

constexpr int kSegment = 1024;  // pairs one block ranks; up to here one block does all

__device__ __forceinline__ int local_expert(const AlignArgs& a, int pair) {
  if (pair >= a.num_pairs) return -1;
  const int expert = a.ids[pair];
  return a.expert_map == nullptr ? expert : __ldg(a.expert_map + expert);
}

// Rank of this thread's pair among those of its expert in the block's segment, in thread order: by match
// within a warp, then over the warps. `warp_counts` is [warps in use][experts] and must be zero; it is left
// holding each warp's rank offset. All threads call; `expert` < 0 has no pair. `*count`: pairs in the segment
// of expert number threadIdx.x.
__device__ __forceinline__ int rank_in_segment(int expert, uint16_t* warp_counts, int warps, int experts,
                                               int* count) {
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;
  int rank = 0;
  if (warp < warps) {
    const unsigned same = __match_any_sync(kFullWarp, expert);
    rank = __popc(same & ((1u << lane) - 1u));
    if (expert >= 0 && rank == 0) warp_counts[warp * experts + expert] = static_cast<uint16_t>(__popc(same));
  }
  __syncthreads();
  *count = 0;
  if (tid < experts) {
    int before = 0;
#pragma unroll 4
    for (int w = 0; w < warps; ++w) {
      const int here = warp_counts[w * experts + tid];
      warp_counts[w * experts + tid] = static_cast<uint16_t>(before);
      before += here;
    }
    *count = before;
  }
  __syncthreads();
  if (expert >= 0 && warp < warps) rank += warp_counts[warp * experts + expert];
  return rank;
}

// Exclusive prefix sum over the first `count` <= 1024 threads' values; `*total` for every thread.
__device__ __forceinline__ int block_exclusive_sum(int value, int* scratch, int* total) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before = all;
    all += scratch[w];
  }
  *total = all;
  return before + sum - value;
}

// From each local expert's pair count: where its rows start, its blocks' expert ids, rows in use. One thread
// an expert (blockDim.x >= local_experts). Returns the expert's first row.
__device__ __forceinline__ int lay_out_blocks(const AlignArgs& a, int count, int* scratch, int* used_rows) {
  const int tid = static_cast<int>(threadIdx.x);
  const int blocks = tid < a.local_experts ? (count + a.block_m - 1) / a.block_m : 0;
  int all_blocks = 0;
  const int first_block = block_exclusive_sum(blocks, scratch, &all_blocks);
  for (int b = 0; b < blocks; ++b) a.expert_ids[first_block + b] = tid;
  *used_rows = all_blocks * a.block_m;
  if (tid == 0) *a.num_padded = *used_rows;
  return first_block * a.block_m;
}

// A few pairs: kFewParts neighbouring threads compare a pair with all of them, so that two barriers do.
constexpr int kFewPairs = 64;
constexpr int kFewParts = 4;

__device__ __forceinline__ int sum_of_parts(int value) {
#pragma unroll
  for (int offset = 1; offset < kFewParts; offset *= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

template <int kPairs>
__global__ void __launch_bounds__(kPairs* kFewParts)
    moe_align_few_kernel(const __grid_constant__ AlignArgs a) {
  __shared__ __align__(16) int experts[kPairs];
  __shared__ __align__(16) int blocks_of[kPairs];  // of a pair that is its expert's first; else 0
  constexpr int kShare = kPairs / kFewParts;
  const int pair = static_cast<int>(threadIdx.x) / kFewParts;
  const int part = static_cast<int>(threadIdx.x) % kFewParts;
  pdl_wait();
  pdl_trigger();
  const int expert = local_expert(a, pair);
  if (part == 0) experts[pair] = expert;
  __syncthreads();
  int theirs[kShare];
  int count = 0;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kShare; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(experts + part * kShare + i);
    theirs[i] = four.x;
    theirs[i + 1] = four.y;
    theirs[i + 2] = four.z;
    theirs[i + 3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const bool same = theirs[i] == expert;
    count += same ? 1 : 0;
    rank += same && part * kShare + i < pair ? 1 : 0;
  }
  const int count_and_rank = sum_of_parts(count | rank << 16);
  count = count_and_rank & 0xffff;
  rank = count_and_rank >> 16;
  const int blocks = expert >= 0 && rank == 0 ? (count + a.block_m - 1) / a.block_m : 0;
  if (part == 0) blocks_of[pair] = blocks;
  __syncthreads();
  int first_block = 0;
  int all_blocks = 0;
#pragma unroll
  for (int i = 0; i < kShare; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(blocks_of + part * kShare + i);
    all_blocks += four.x + four.y + four.z + four.w;
    first_block += theirs[i] < expert ? four.x : 0;
    first_block += theirs[i + 1] < expert ? four.y : 0;
    first_block += theirs[i + 2] < expert ? four.z : 0;
    first_block += theirs[i + 3] < expert ? four.w : 0;
  }
  const int first_and_all = sum_of_parts(first_block | all_blocks << 16);
  first_block = first_and_all & 0xffff;
  all_blocks = first_and_all >> 16;
  for (int b = part; b < blocks; b += kFewParts) a.expert_ids[first_block + b] = expert;
  if (threadIdx.x == 0) *a.num_padded = all_blocks * a.block_m;
  // An expert's first pair pads its blocks, from a multiple of 4 rows on 4 at a time.
  int* const rows = a.sorted_ids + first_block * a.block_m;
  const int end = blocks * a.block_m;
  const bool fours = a.block_m % 4 == 0 && reinterpret_cast<uintptr_t>(a.sorted_ids) % sizeof(int4) == 0;
  const int fours_from = fours ? min((count + 3) / 4 * 4, end) : end;
  for (int i = count + part; i < fours_from; i += kFewParts) rows[i] = a.num_pairs;
  const int4 padding = make_int4(a.num_pairs, a.num_pairs, a.num_pairs, a.num_pairs);
  for (int i = fours_from + 4 * part; i < end; i += 4 * kFewParts) *reinterpret_cast<int4*>(rows + i) = padding;
  if (part != 0 || pair >= a.num_pairs) return;
  const int row = expert >= 0 ? first_block * a.block_m + rank : -1;
  if (row >= 0) a.sorted_ids[row] = pair;
  if (a.positions != nullptr) a.positions[pair] = row;
}

// Up to a block's threads of pairs: ranks first, counts fall out of them. Dynamic shared memory: int
// starts[experts], uint16 warp_counts[warps][experts].
__global__ void moe_align_kernel(const __grid_constant__ AlignArgs a) {
  CGLINT_DYNAMIC_SMEM(smem);
  __shared__ int scratch[32];
  const int experts = a.local_experts;
  auto* starts = reinterpret_cast<int*>(smem);
  auto* warp_counts = reinterpret_cast<uint16_t*>(starts + experts);
  const int pair = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warps = (a.num_pairs + 31) / 32;

  for (int i = pair; i < warps * experts; i += threads) warp_counts[i] = 0;
  pdl_wait();
  pdl_trigger();
  const int expert = local_expert(a, pair);
  __syncthreads();
  int count = 0;
  const int rank = rank_in_segment(expert, warp_counts, warps, experts, &count);
  int used_rows = 0;
  const int start = lay_out_blocks(a, count, scratch, &used_rows);
  if (pair < experts) starts[pair] = start;
  for (int row = pair; row < used_rows; row += threads) a.sorted_ids[row] = a.num_pairs;
  __syncthreads();  // the padding above lies under the pairs below
  const int row = expert >= 0 ? starts[expert] + rank : -1;
  if (row >= 0) a.sorted_ids[row] = pair;
  if (a.positions != nullptr && pair < a.num_pairs) a.positions[pair] = row;
}

// Many pairs: count per segment, lay out, scatter. Workspace: int32 [segments][local_experts], then
// [local_experts] first rows.
__global__ void moe_align_count_kernel(const __grid_constant__ AlignArgs a, int max_rows) {
  __shared__ int counts[kMaxExperts];
  const int tid = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int e = tid; e < a.local_experts; e += threads) counts[e] = 0;
  pdl_wait();
  pdl_trigger();
  __syncthreads();
  const int segment = static_cast<int>(blockIdx.x);
  const int expert = local_expert(a, segment * kSegment + tid);
  if (expert >= 0) atomicAdd(counts + expert, 1);
  for (int row = segment * threads + tid; row < max_rows; row += static_cast<int>(gridDim.x) * threads)
    a.sorted_ids[row] = a.num_pairs;
  __syncthreads();
  for (int e = tid; e < a.local_experts; e += threads) a.workspace[segment * a.local_experts + e] = counts[e];
}

__global__ void moe_align_layout_kernel(const __grid_constant__ AlignArgs a, int segments) {
  __shared__ int scratch[32];
  pdl_wait();
  pdl_trigger();
  const int expert = static_cast<int>(threadIdx.x);
  int count = 0;
  if (expert < a.local_experts) {
    for (int s = 0; s < segments; ++s) {
      int* at = a.workspace + s * a.local_experts + expert;
      const int here = *at;
      *at = count;
      count += here;
    }
  }
  int used_rows = 0;
  const int start = lay_out_blocks(a, count, scratch, &used_rows);
  if (expert < a.local_experts) a.workspace[segments * a.local_experts + expert] = start;
}

// Dynamic shared memory: uint16 warp_counts[kSegment / 32][local_experts].
__global__ void moe_align_scatter_kernel(const __grid_constant__ AlignArgs a, int segments) {
  CGLINT_DYNAMIC_SMEM(smem);
  auto* warp_counts = reinterpret_cast<uint16_t*>(smem);
  constexpr int kWarps = kSegment / 32;
  const int tid = static_cast<int>(threadIdx.x);
  for (int i = tid; i < kWarps * a.local_experts; i += kSegment) warp_counts[i] = 0;
  pdl_wait();
  pdl_trigger();
  __syncthreads();
  const int segment = static_cast<int>(blockIdx.x);
  const int pair = segment * kSegment + tid;
  const int expert = local_expert(a, pair);
  int count = 0;
  const int rank = rank_in_segment(expert, warp_counts, kWarps, a.local_experts, &count);
  int row = -1;
  if (expert >= 0) {
    row = a.workspace[segments * a.local_experts + expert] + a.workspace[segment * a.local_experts + expert] +
          rank;
    a.sorted_ids[row] = pair;
  }
  if (a.positions != nullptr && pair < a.num_pairs) a.positions[pair] = row;
}

// One block a row of the sorted order. All of a thread's loads before its stores: the compiler cannot know that the two
// do not overlap.
constexpr int kPermuteThreads = 256;
constexpr int kPermuteVectors = 4;

__global__ void __launch_bounds__(kPermuteThreads) moe_permute_kernel(const __grid_constant__ PermuteArgs a) {
  pdl_wait();
  pdl_trigger();
  const int row = static_cast<int>(blockIdx.x);
  const int pair = a.sorted_ids[row];
  if (row >= *a.num_padded) return;
  const bool valid = pair < a.num_pairs;
  const __nv_bfloat16* from = a.x + static_cast<int64_t>(valid ? pair / a.top_k : 0) * a.hidden;
  __nv_bfloat16* to = a.out + static_cast<int64_t>(row) * a.hidden;
  constexpr int kStep = kPermuteThreads * 8;
  for (int first = static_cast<int>(threadIdx.x) * 8; first < a.hidden; first += kStep * kPermuteVectors) {
    Bf16x8 values[kPermuteVectors] = {};
#pragma unroll
    for (int i = 0; i < kPermuteVectors; ++i) {
      if (valid && first + i * kStep < a.hidden) values[i] = load8(from + first + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kPermuteVectors; ++i) {
      if (first + i * kStep < a.hidden) store8(to + first + i * kStep, values[i]);
    }
  }
}

template <int kPerLane>
__device__ __forceinline__ uint32_t largest_of(const uint32_t (&keys)[kPerLane]) {
  uint32_t level[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) level[i] = keys[i];
#pragma unroll
  for (int width = kPerLane; width > 1; width = (width + 1) / 2) {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) level[i] = max(level[i], level[(width + 1) / 2 + i]);
  }
  return level[0];
}

// The same with one warp a token and kPerLane neighbouring experts a lane, all in registers, for logits without partial sums: with
// many parts the block above, which has more loads under way, is faster. Groups are whole lanes.
constexpr int kWarpTokens = 4;  // a block

template <int kPerLane>
__global__ void __launch_bounds__(kWarpTokens * 32) moe_topk_warp_kernel(const __grid_constant__ TopkArgs a) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int token = static_cast<int>(blockIdx.x) * kWarpTokens + (static_cast<int>(threadIdx.x) >> 5);
  float bias[kPerLane] = {};
  if (a.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(a.bias + lane * kPerLane + i));
      bias[i] = v.x;
      bias[i + 1] = v.y;
      bias[i + 2] = v.z;
      bias[i + 3] = v.w;
    }
  } else if (a.bias_bf16 != nullptr) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) bias[i] = __bfloat162float(a.bias_bf16[lane * kPerLane + i]);
  }
  pdl_wait();
  pdl_trigger();
  if (token >= a.tokens) return;
  float score[kPerLane];
  const float* logits = a.logits + static_cast<int64_t>(token) * a.experts + lane * kPerLane;
#pragma unroll
  for (int i = 0; i < kPerLane; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(logits + i);
    score[i] = v.x;
    score[i + 1] = v.y;
    score[i + 2] = v.z;
    score[i + 3] = v.w;
  }
  if (a.score == ScoreFunction::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = __fdividef(1.0f, 1.0f + __expf(-score[i]));
  } else {
    float top = score[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) top = fmaxf(top, score[i]);
    top = warp_max(top);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = __expf(score[i] - top);
      sum += score[i];
    }
    const float inverse = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] *= inverse;
  }
  uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[i] = ordered(score[i] + bias[i]);
  if (a.num_groups > 1 && a.top_groups < a.num_groups) {  // a group is whole lanes
    const int lanes = 32 / a.num_groups;
    uint32_t best = 0;
    uint32_t second = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      second = max(second, min(best, keys[i]));
      best = max(best, keys[i]);
    }
    for (int offset = 1; offset < lanes; offset *= 2) {
      const uint32_t other_best = __shfl_xor_sync(kFullWarp, best, offset);
      const uint32_t other_second = __shfl_xor_sync(kFullWarp, second, offset);
      second = max(min(best, other_best), max(second, other_second));
      best = max(best, other_best);
    }
    const bool adds = a.bias != nullptr || a.bias_bf16 != nullptr;
    const float worth = from_ordered(best) + (adds ? from_ordered(second) : 0.0f);
    const int own = lane / lanes;
    int better = 0;
    for (int group = 0; group < a.num_groups; ++group) {
      const float theirs = __shfl_sync(kFullWarp, worth, group * lanes);
      better += theirs > worth || (theirs == worth && group < own) ? 1 : 0;
    }
    if (better >= a.top_groups) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) keys[i] = 0;
    }
  }
  int kept = 0;
  float weight = 0;
  for (int k = 0; k < a.top_k; ++k) {
    const uint32_t best = largest_of<kPerLane>(keys);
    const uint32_t overall = __reduce_max_sync(kFullWarp, best);
    const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, best == overall))) - 1;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) equal |= keys[i] == overall ? 1u << i : 0u;
    const uint32_t first = lane == owner ? equal & (0u - equal) : 0u;
    float chosen = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if ((first >> i) & 1u) {
        keys[i] = 0;
        chosen = score[i];
      }
    }
    const int index = __shfl_sync(kFullWarp, lane * kPerLane + __ffs(static_cast<int>(first)) - 1, owner);
    chosen = __shfl_sync(kFullWarp, chosen, owner);
    if (lane == k && overall != 0) {
      kept = index;
      weight = chosen;
    }
  }
  const float sum = warp_sum(weight);
  weight *= a.renormalize ? a.scaling / fmaxf(sum, 1e-20f) : a.scaling;
  if (lane < a.top_k) {
    const int64_t at = static_cast<int64_t>(token) * a.top_k + lane;
    a.weights[at] = weight;
    a.ids[at] = kept;
  }
}

unsigned round_up_to_warp(int threads) {
  return static_cast<unsigned>((threads + 31) / 32 * 32);
}

}  // namespace

cudaError_t launch_moe_topk(const LaunchContext& ctx, const TopkArgs& args) {
  if (args.logits == nullptr || args.weights == nullptr || args.ids == nullptr || args.tokens < 0 ||
      args.splits < 1 || args.experts < 1 || args.experts > kMaxExperts || args.top_k < 1 ||
      args.top_k > 32 || args.top_k > args.experts || args.num_groups < 1 || args.num_groups > kMaxGroups ||
      args.experts % args.num_groups != 0 || args.top_groups < 1 || args.top_groups > args.num_groups ||
      args.top_k > args.experts / args.num_groups * args.top_groups) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const bool groups_are_lanes = args.num_groups == 1 || args.top_groups == args.num_groups || 32 % args.num_groups == 0;
  const bool is_aligned = reinterpret_cast<uintptr_t>(args.logits) % 16 == 0 && reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
  if (args.splits == 1 && groups_are_lanes && is_aligned) {
    const dim3 warp_grid(static_cast<unsigned>((args.tokens + kWarpTokens - 1) / kWarpTokens));
    const dim3 warp_block(kWarpTokens * 32);
    if (args.experts == 128) return launch(ctx, moe_topk_warp_kernel<4>, warp_grid, warp_block, 0, args);
    if (args.experts == 256) return launch(ctx, moe_topk_warp_kernel<8>, warp_grid, warp_block, 0, args);
    if (args.experts == 384) return launch(ctx, moe_topk_warp_kernel<12>, warp_grid, warp_block, 0, args);
  }
  const dim3 grid(static_cast<unsigned>(args.tokens));
  const dim3 block(round_up_to_warp(args.experts));
  const bool groups_are_warps =
      args.num_groups > 1 && args.top_groups < args.num_groups && args.experts == args.num_groups * 32;
  if (args.tokens <= kFewTokens && args.experts <= kFewExperts && args.top_k <= kFewChoices &&
      groups_are_warps)
    return launch(ctx, moe_topk_few_kernel, grid, block, 0, args);
  if (args.experts <= 256) return launch(ctx, moe_topk_kernel<8>, grid, block, 0, args);
  if (args.experts <= 384) return launch(ctx, moe_topk_kernel<12>, grid, block, 0, args);
  if (args.experts <= 512) return launch(ctx, moe_topk_kernel<16>, grid, block, 0, args);
  return launch(ctx, moe_topk_kernel<32>, grid, block, 0, args);
}

size_t align_workspace_elements(int num_pairs, int local_experts) {
  if (num_pairs <= kSegment) return 0;
  const int segments = (num_pairs + kSegment - 1) / kSegment;
  return static_cast<size_t>(segments + 1) * static_cast<size_t>(local_experts);
}

cudaError_t launch_moe_align(const LaunchContext& ctx, const AlignArgs& args) {
  const bool needs_workspace = align_workspace_elements(args.num_pairs, args.local_experts) > 0;
  if (args.ids == nullptr || args.sorted_ids == nullptr || args.expert_ids == nullptr ||
      args.num_padded == nullptr || args.num_pairs < 0 || args.block_m < 1 || args.experts < 1 ||
      args.experts > kMaxExperts || args.local_experts < 1 || args.local_experts > args.experts ||
      (args.expert_map == nullptr && args.local_experts != args.experts) ||
      (needs_workspace && args.workspace == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (args.num_pairs <= kFewPairs / 2)
    return launch(ctx, moe_align_few_kernel<kFewPairs / 2>, dim3(1), dim3(kFewPairs / 2 * kFewParts), 0,
                  args);
  if (args.num_pairs <= kFewPairs)
    return launch(ctx, moe_align_few_kernel<kFewPairs>, dim3(1), dim3(kFewPairs * kFewParts), 0, args);
  const size_t experts = static_cast<size_t>(args.local_experts);
  if (!needs_workspace) {
    const unsigned threads =
        round_up_to_warp(args.num_pairs > args.local_experts ? args.num_pairs : args.local_experts);
    const size_t warps = (static_cast<size_t>(args.num_pairs) + 31) / 32;
    const size_t smem = experts * sizeof(int) + warps * experts * sizeof(uint16_t);
    return launch(ctx, moe_align_kernel, dim3(1), dim3(threads), smem, args);
  }
  const int segments = (args.num_pairs + kSegment - 1) / kSegment;
  const int max_rows = max_blocks(args.num_pairs, args.local_experts, args.block_m) * args.block_m;
  const dim3 grid(static_cast<unsigned>(segments));
  cudaError_t status = launch(ctx, moe_align_count_kernel, grid, dim3(kSegment), 0, args, max_rows);
  if (status != cudaSuccess) return status;
  status = launch(ctx, moe_align_layout_kernel, dim3(1), dim3(round_up_to_warp(args.local_experts)), 0, args,
                  segments);
  if (status != cudaSuccess) return status;
  const size_t smem = static_cast<size_t>(kSegment / 32) * experts * sizeof(uint16_t);
  return launch(ctx, moe_align_scatter_kernel, grid, dim3(kSegment), smem, args, segments);
}

cudaError_t launch_moe_permute(const LaunchContext& ctx, const PermuteArgs& args) {
  if (args.x == nullptr || args.sorted_ids == nullptr || args.num_padded == nullptr || args.out == nullptr ||
      args.top_k < 1 || args.hidden < 8 || args.hidden % 8 != 0 || args.max_rows < 0) {
    return cudaErrorInvalidValue;
  }
  if (args.max_rows == 0) return cudaSuccess;
  return launch(ctx, moe_permute_kernel, dim3(static_cast<unsigned>(args.max_rows)), dim3(kPermuteThreads), 0, args);
}

}  // namespace cglint::kernels::moe
