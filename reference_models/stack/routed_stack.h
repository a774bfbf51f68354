// A stack of mixture-of-experts layers on one stream: embedding, then for each layer RMSNorm with residual, what the model puts
// beside the routed experts, and these; a final norm. fused_moe and nvfp4_preamble are this stack.
//
// Layers take turns with kExpertSets sets of routed experts; each has a router, a bias and norms of its own. A layer reads 88 MB
// of weights or more for its first token, so L2 (60 MB on an H200) holds nothing of a set when its turn comes again.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "stack/layer_trace.h"
#include "stack/model.h"
#include "stack/routed_experts.h"

namespace cglint::models {

class RoutedStack : public Model {
 public:
  static constexpr int kExpertSets = 2;
  static constexpr int kLayers = 60;  // Kimi K2 has 61, the first of them dense

  // Device memory of the stack without what a model adds and without transient tensors, bytes.
  static std::size_t persistent_bytes(const RoutedShape& shape, int layers, int tokens);
  // Transient tensors: those of the routed experts and the rows between layers.
  static std::size_t transient_bytes(const RoutedShape& shape, const RoutedTiles& tiles, int tokens);

  cudaError_t prepare(Arena& arena) final;
  [[nodiscard]] std::string failure() const final { return failure_; }
  cudaError_t record(StepContext& context) final;
  cudaError_t output(std::vector<std::uint8_t>& bytes) final;
  CheckResult check(StepContext& context) final;
  cudaError_t use_input(int number) final;
  cudaError_t reset() final { return cudaSuccess; }  // a step changes nothing but its output

 protected:
  // What a layer's routed experts are given beside their input. Tensors live until the layer's end.
  struct Beside {
    Tensor shared, bias;
  };

  // `tolerance`: of a layer's output, see check().
  RoutedStack(const StackOptions& options, const RoutedShape& shape, const PartError& tolerance);

  // The tiles of the experts' products; before anything is allocated. May refuse with set_failure().
  [[nodiscard]] virtual cudaError_t choose_tiles(int device, RoutedTiles& tiles) = 0;
  // Room that the model needs in the transient segment besides transient_bytes().
  [[nodiscard]] virtual std::size_t more_transient_bytes() const { return 0; }
  // The model's own weights; routers, biases and norms are filled already.
  [[nodiscard]] virtual cudaError_t prepare_more() { return cudaSuccess; }
  // Enqueues what stands before a layer's routed experts and puts what they need of it into `weights` and `beside`.
  [[nodiscard]] virtual cudaError_t enqueue_beside(const kernels::LaunchContext&, int /*layer*/, const kernels::bf16* /*x*/,
                                                   RoutedWeights& /*weights*/, Beside& /*beside*/) {
    return cudaSuccess;
  }
  // What enqueue_beside() puts into Beside::shared, in fp32; false if a CUDA call failed. `out` stays empty without one.
  [[nodiscard]] virtual bool reference_beside(int /*layer*/, const std::vector<float>& /*x*/, std::vector<float>& /*out*/) const {
    return true;
  }
  // The router's bias as the step uses it, from what is stored.
  [[nodiscard]] virtual std::vector<float> reference_bias(std::vector<float> bias) const { return bias; }

  void set_failure(std::string why) { failure_ = std::move(why); }
  [[nodiscard]] const StackOptions& options() const { return options_; }
  [[nodiscard]] const RoutedShape& shape() const { return shape_; }
  [[nodiscard]] int layers() const { return layers_; }
  [[nodiscard]] Arena& arena() const { return *arena_; }
  [[nodiscard]] std::uint64_t seed() const { return options_.seed * 10'000; }
  [[nodiscard]] const float* bias_of(int layer) const;

 private:
  cudaError_t fill();
  [[nodiscard]] RoutedWeights weights_of(int layer) const;
  // That of the final norm comes after the last layer's.
  [[nodiscard]] const kernels::bf16* gamma_of(int layer) const;
  [[nodiscard]] std::size_t pairs() const;

  StackOptions options_;
  RoutedShape shape_;
  int layers_;
  PartError tolerance_;
  RoutedTiles tiles_;
  bool pdl_ = false;
  std::string failure_;
  Arena* arena_ = nullptr;
  LayerTrace* trace_ = nullptr;  // while check() repeats the step
  std::array<Tensor, kExpertSets> w13_, w13_scale_, w2_, w2_scale_;
  Tensor routers_, biases_, gammas_, expert_map_, embedding_, token_ids_, chosen_, output_;
};

// The layers of a run.
inline int routed_layers(const StackOptions& options) { return options.layers > 0 ? options.layers : RoutedStack::kLayers; }

}  // namespace cglint::models
