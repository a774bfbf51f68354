// What the capture harness and the reference models agree on: a model prepares its memory, then records one
// decode step on streams of the harness, eagerly (warm-up) or while they are captured; both go through the
// same call, as in an inference engine.
//
// A process may hold two models at a time, each with an arena of its own (a draft and a target model): keep
// no state in globals. Nothing here is thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stack/arena.h"

namespace cglint::models {

// What a user may choose. 0 means: what the preset says.
struct StackOptions {
  std::string preset;   // a name of ModelInfo::presets; empty: the first
  std::string variant;  // a name of ModelInfo::variants; empty: the first
  int layers = 0;
  int batch = 1;               // tokens of the step
  int context = 4096;          // tokens already in each sequence's cache
  std::uint64_t seed = 1;      // of weights, inputs and cache
  bool pdl = true;             // programmatic launch where the engine has it and the chip allows it
  std::string moe_config_dir;  // tile tables for fused MoE; empty: the model's default
  std::string fault;           // a name of ModelInfo::faults: what check() must notice; empty: none
};

// Streams and events that the step may use besides the capture stream; the harness owns them and gives the
// same ones in every call.
struct StepContext {
  cudaStream_t main = nullptr;
  std::span<const cudaStream_t> side;  // at least ModelInfo::side_streams
  // A fresh event for this call (no timing), owned by the harness.
  cudaEvent_t (*next_event)(StepContext&) = nullptr;
  void* harness = nullptr;
  bool capturing = false;
};

// Names what follows for recordings: an NVTX range "layer 7", "moe", "shared_expert", ... of the calling
// thread. A no-op without a tool. Nesting follows scopes.
class Range {
 public:
  explicit Range(const char* name);
  Range(std::string_view name, int index);  // "name index"
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

struct CheckResult {
  bool ok = false;
  // Largest scaled error of a part (see kernels::max_scaled_error) that the fp32 reference computes from the step's own input
  // of it.
  double error = 0;
  double tolerance = 0;
  // Root of the mean square of such a part's errors, in the same unit: what is a little wrong everywhere.
  double rms_error = 0;
  double rms_tolerance = 0;
  // Largest error of the output of a reference that ran on its own from the first layer to the last. No tolerance (0) where
  // that cannot tell a fault from rounding.
  double stack_error = 0;
  double stack_tolerance = 0;
  std::string detail;  // what was compared; why it failed
};

class Model {
 public:
  virtual ~Model() = default;
  // Allocates from the arena and fills weights, inputs and caches. Errors carry the call's status; too little
  // memory is cudaErrorMemoryAllocation, before anything is filled.
  [[nodiscard]] virtual cudaError_t prepare(Arena& arena) = 0;
  // Why the last prepare() or record() failed, for the user; empty where the status says it all.
  [[nodiscard]] virtual std::string failure() const { return {}; }
  // Enqueues one decode step on context.main, which has joined every side stream it used when this returns.
  // Capturable: no synchronisation, no allocation but from the arena. The same inputs give the same output
  // bits.
  [[nodiscard]] virtual cudaError_t record(StepContext& context) = 0;
  // The step's output as bytes, of the last finished step; synchronises the device.
  [[nodiscard]] virtual cudaError_t output(std::vector<std::uint8_t>& bytes) = 0;
  // Compares the last finished step, which began after a reset(), with a plain fp32 reference that shares no kernel with it. May
  // enqueue the step once more. May be slow.
  [[nodiscard]] virtual CheckResult check(StepContext& context) = 0;
  // Takes another input of the same shape, a valid one; 0 is that of prepare(). Synchronises.
  [[nodiscard]] virtual cudaError_t use_input(int number) = 0;
  // Puts back what a step changes (KV cache, states), so that steps can be compared bit by bit.
  [[nodiscard]] virtual cudaError_t reset() = 0;
};

struct VariantInfo {
  std::string_view name;
  std::string_view summary;
  // Replaying the graph would read a null or freed address: the harness lints it first and does not replay it
  // unless told to, and then in a child process.
  bool may_fault = false;
  // A variant whose output must have the same bits ("" = none).
  std::string_view same_bits_as = {};
  // Its capture must fail (it does what a capturing stream forbids); the streams are usable afterwards.
  bool capture_fails = false;
};

struct PresetInfo {
  std::string_view name;
  std::string_view summary;  // shapes, for --help and the results table
  int layers = 0;            // of the published model
};

struct ModelInfo {
  std::string_view name;  // folder under reference_models/
  std::string_view summary;
  std::span<const PresetInfo> presets;
  std::span<const VariantInfo> variants;
  int side_streams = 1;
  // Device memory that prepare() will need, bytes; 0 for options it does not know.
  std::size_t (*memory_bytes)(const StackOptions&) = nullptr;
  std::unique_ptr<Model> (*make)(const StackOptions&) = nullptr;
  std::span<const std::string_view> faults = {};  // what StackOptions::fault may be
};

// Whether preset and variant are among these or empty.
template <typename Presets, typename Variants>
bool knows_names(const StackOptions& options, const Presets& presets, const Variants& variants) {
  const auto known = [](const auto& list, const std::string& name) {
    for (const auto& item : list)
      if (name.empty() || item.name == name) return true;
    return false;
  };
  return known(presets, options.preset) && known(variants, options.variant);
}

// All models that this build has, in the order of CGLINT_MODELS (reference_models/CMakeLists.txt). A model is
// the folder of its name: a library made by cglint_model() that defines, in this namespace,
//   const ModelInfo& <name>_model();
std::span<const ModelInfo* const> all_models();
const ModelInfo* find_model(std::string_view name);

}  // namespace cglint::models
