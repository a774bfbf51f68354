// What the parts of a step's layers give, kept while a step is enqueued once more outside capture. A check takes each
// part's input from it, so that an error is seen where it was made and does not grow from layer to layer: the reference
// never runs on with values of its own ("teacher forcing").
#pragma once

#include <string>
#include <vector>

#include "kernels/common/buffer.h"
#include "stack/model.h"

namespace cglint::models {

// Owns device memory for one tensor of `values` bf16 values a part.
class LayerTrace {
 public:
  [[nodiscard]] cudaError_t reserve(int parts, std::size_t values);
  // Enqueues a copy of the next part's output. cudaErrorInvalidValue where that is one too many.
  [[nodiscard]] cudaError_t keep(cudaStream_t stream, const kernels::bf16* part);
  [[nodiscard]] const kernels::bf16* part(int index) const { return values_.get() + static_cast<std::size_t>(index) * per_part_; }
  // As floats; empty if the copy failed. Synchronous.
  [[nodiscard]] std::vector<float> download(int index) const;
  [[nodiscard]] bool is_full() const { return kept_ == parts_; }

 private:
  kernels::DeviceBuffer<kernels::bf16> values_;
  std::size_t per_part_ = 0;
  int parts_ = 0, kept_ = 0;
};

// Resets the model and enqueues its step again; `slot`, which the model's record() looks at, is `trace` meanwhile. Empty if
// the output has the bits of the step before, else why the trace is not of that step.
std::string trace_step(Model& model, StepContext& context, LayerTrace*& slot, LayerTrace& trace);

// The largest deviation of a part's values (kernels::max_scaled_error), and the root of the mean square of all; both over the root
// mean square of `want`. A part that the reference leaves at zero must be zero.
struct PartError {
  double largest = 0;
  double rms = 0;
};
PartError part_error(const std::vector<float>& got, const std::vector<float>& want);

// The largest errors of any parts, and which parts.
struct WorstPart {
  PartError error;
  std::string largest_in = "no part", rms_in = "no part";
  void see(const PartError& part, const std::string& name);
  // Fills error, rms_error, ok and detail, which names `what` was compared.
  void judge(CheckResult& result, const std::string& what) const;
};

}  // namespace cglint::models
