// The stack in plain fp32 on host and device, sharing no kernel with the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kimi_linear/weights.h"
#include "stack/layer_trace.h"

namespace cglint::models::kimi {

struct ReferenceStep {
  const Weights* weights = nullptr;
  int batch = 0;
  int context = 0;                          // tokens in each cache before the step
  int max_pages = 0;                        // of a sequence; page p of sequence b is pages[b * max_pages + p]
  std::vector<std::int32_t> block_table;    // [batch, max_pages]
  std::vector<float> hidden;                // [batch, hidden]: embedded tokens
  std::vector<float> final_norm;            // [hidden]
  std::vector<std::int32_t> choices;        // the step's experts, [layers, batch, top_k]
  // What the step's halves of each layer gave, attention and feed-forward in turn; null: the reference goes on with its own values.
  const LayerTrace* trace = nullptr;
  std::vector<float> step_output;           // [batch, hidden], with `trace`
};

struct ReferenceResult {
  std::vector<float> output;  // [batch, hidden] after the final norm; empty on failure
  double shortfall = 0;       // largest of RoutedReference::shortfall
  WorstPart worst;            // with ReferenceStep::trace: the half of a layer that the step computed worst
  std::string failure;        // why there is no output
};

// What the step gives from states as Weights::fill_states leaves them. Synchronous; slow with long contexts.
ReferenceResult reference_step(const ReferenceStep& step);

}  // namespace cglint::models::kimi
