// The decoder stack in plain fp32: one thread or one warp an output, no tiles, no fusion, nothing shared with
// the kernels of the step but the layouts of weights and cache. It follows the step's choice of experts,
// after judging that choice by its own scores: with bf16 activations two experts of nearly equal score may
// trade places.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/buffer.h"
#include "layers/shape.h"
#include "stack/layer_trace.h"
#include "stack/model.h"

namespace cglint::models {

// Device pointers to one layer's weights, laid out as the step's kernels want them, and its cache.
struct ReferenceLayer {
  const kernels::bf16* input_norm = nullptr;  // [hidden]
  const kernels::bf16* qkv_a = nullptr;       // [query_rank + 512 + 64, hidden]
  const kernels::bf16* q_norm = nullptr;      // [query_rank]
  const kernels::bf16* kv_norm = nullptr;     // [512]
  const kernels::bf16* q_b = nullptr;         // [heads * 192, query_rank]
  const kernels::bf16* w_uk_t = nullptr;      // [heads, 128, 512]
  const kernels::bf16* w_uv = nullptr;        // [heads, 128, 512]
  const kernels::bf16* o = nullptr;           // [hidden, heads * 128]
  const kernels::bf16* post_norm = nullptr;   // [hidden]
  const kernels::bf16* cache = nullptr;       // [pages, page size, 576]
  // A dense layer, or null.
  const kernels::bf16* gate_up = nullptr;  // [2 * dense_intermediate, hidden]
  const kernels::bf16* down = nullptr;     // [hidden, dense_intermediate]
  // A mixture of experts otherwise.
  const kernels::bf16* router = nullptr;   // [experts, hidden]
  const float* bias = nullptr;             // [experts]
  const kernels::fp8_e4m3* w13 = nullptr;  // [experts, 2 * expert_intermediate, hidden]
  const float* w13_scale = nullptr;        // one per 128 x 128 block
  const kernels::fp8_e4m3* w2 = nullptr;   // [experts, hidden, expert_intermediate]
  const float* w2_scale = nullptr;
  const kernels::bf16* shared_gate_up = nullptr;  // [2 * shared_intermediate, hidden]
  const kernels::bf16* shared_down = nullptr;     // [hidden, shared_intermediate]
  // What the step's two halves of the layer gave, [batch, hidden] each.
  const kernels::bf16* attention_output = nullptr;
  const kernels::bf16* output = nullptr;
};

struct ReferenceStep {
  DecoderShape shape;
  int batch = 0;
  int context = 0;  // tokens in each cache before the step
  int page_size = 0;
  int max_pages = 0;  // row length of block_table
  float epsilon = 0;
  const std::int32_t* block_table = nullptr;  // device, [batch, max_pages]
  const kernels::bf16* embedding = nullptr;   // device, [vocabulary, hidden]
  const std::int32_t* token_ids = nullptr;    // device, [batch]
  const kernels::bf16* final_norm = nullptr;  // device, [hidden]
  const kernels::bf16* step_output = nullptr;  // device, [batch, hidden]
  std::vector<ReferenceLayer> layers;
  std::vector<std::int32_t>
      choices;  // the step's experts, [layers, batch, top_k]; rows of dense layers are ignored
};

struct ReferenceResult {
  cudaError_t status = cudaSuccess;  // of the first call that failed
  std::vector<float> output;         // [batch, hidden], empty on failure
  // How far the score of a chosen expert lay below that of the worst one that the reference would have
  // chosen, at most (0: the same choice everywhere). Infinity if a choice is no choice (out of range, twice,
  // too many groups).
  double choice_error = 0;
  WorstPart worst;  // with the step's inputs: the half of a layer that the step computed worst
};

// Whether each half of a layer starts from what the step's halves before it gave, rounded to bf16 as the step stores it, or from
// what the reference's own gave.
enum class ReferenceInput { of_the_step, its_own };

// Synchronises. Slow: meant for few layers or some patience.
[[nodiscard]] ReferenceResult reference_step(const ReferenceStep& step, ReferenceInput input);

}  // namespace cglint::models
