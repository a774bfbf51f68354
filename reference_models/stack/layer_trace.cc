#include "stack/layer_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "stack/host.h"
#include "stack/status.h"

namespace cglint::models {

cudaError_t LayerTrace::reserve(int parts, std::size_t values) {
  parts_ = parts;
  kept_ = 0;
  per_part_ = values;
  return values_.allocate(static_cast<std::size_t>(parts) * values);
}

cudaError_t LayerTrace::keep(cudaStream_t stream, const kernels::bf16* part) {
  if (kept_ == parts_) return cudaErrorInvalidValue;
  kernels::bf16* const to = values_.get() + static_cast<std::size_t>(kept_++) * per_part_;
  return cudaMemcpyAsync(to, part, per_part_ * sizeof(kernels::bf16), cudaMemcpyDeviceToDevice, stream);
}

std::vector<float> LayerTrace::download(int index) const {
  return download_floats(part(index), per_part_);
}

std::string trace_step(Model& model, StepContext& context, LayerTrace*& slot, LayerTrace& trace) {
  std::vector<std::uint8_t> before, after;
  if (model.output(before) != cudaSuccess) return "the output could not be read";
  if (const cudaError_t status = model.reset(); status != cudaSuccess)
    return std::string("the model could not be reset: ") + cudaGetErrorString(status);
  slot = &trace;
  const cudaError_t recorded = model.record(context);
  slot = nullptr;
  if (recorded != cudaSuccess) return std::string("the step could not be repeated: ") + cudaGetErrorString(recorded);
  if (model.output(after) != cudaSuccess) return "the output of the repeated step could not be read";
  if (!trace.is_full()) return "the repeated step has fewer parts than the reference";
  return before == after ? "" : "the repeated step gave other bits";
}

PartError part_error(const std::vector<float>& got, const std::vector<float>& want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto is_zero = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
  };
  if (!want.empty() && got.size() == want.size() && is_zero(want) && is_zero(got)) return {};
  const double largest = kernels::max_scaled_error(got, want);
  if (!std::isfinite(largest)) return {kInfinity, kInfinity};
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double off = double{got[i]} - double{want[i]};
    difference += off * off;
    size += double{want[i]} * double{want[i]};
  }
  return {largest, std::sqrt(difference / size)};
}

void WorstPart::see(const PartError& part, const std::string& name) {
  if (part.largest > error.largest) {
    error.largest = part.largest;
    largest_in = name;
  }
  if (part.rms > error.rms) {
    error.rms = part.rms;
    rms_in = name;
  }
}

void WorstPart::judge(CheckResult& result, const std::string& what) const {
  result.error = error.largest;
  result.rms_error = error.rms;
  result.ok = error.largest <= result.tolerance && error.rms <= result.rms_tolerance;
  result.detail = what + " from the step's own input, and the final norm; worst are " + largest_in + " and " + rms_in;
}

}  // namespace cglint::models
