#include "runner/isolate.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/common/buffer.h"
#include "runner/events.h"
#include "runner/kernel_node.h"
#include "runner/owners.h"

namespace cglint::models {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 20;

struct Fault {
  std::string what;
};
struct NoMemory {};

class Isolation {
 public:
  Isolation(cudaGraph_t graph, cudaStream_t stream) : handles_(nodes_of(graph)), stream_(stream) {}

  // One node of each kind, from `first` on; the kinds of earlier nodes are done.
  void run(std::size_t first) {
    using Places = std::vector<std::pair<std::size_t, std::size_t>>;
    std::set<std::pair<CUfunction, Places>> seen;
    std::size_t kernels = 0;
    std::int64_t launches = 0;
    for (std::size_t number = 0; number < handles_.size(); ++number) {
      if (!is_kernel(number)) continue;
      ++kernels;
      const KernelNode node = read_kernel_node(driver_, handles_[number], number);
      const std::vector<Word> nulls = nulls_of(node);
      if (nulls.empty()) continue;
      Places places;
      for (const Word& word : nulls) places.emplace_back(word.slot, word.offset);
      if (!seen.emplace(node.function, std::move(places)).second || number < first) continue;
      if (launch(number, node, nulls)) ++launches;
    }
    Event("isolation")
        .integer("nodes", static_cast<std::int64_t>(handles_.size()))
        .integer("kernels", static_cast<std::int64_t>(kernels))
        .integer("kinds", static_cast<std::int64_t>(seen.size()))
        .integer("launches", launches);
  }

  void run_patched(std::size_t number, const IsolateOptions::Patch& patch) {
    if (number >= handles_.size() || !is_kernel(number)) throw Problem{"node " + std::to_string(number) + " is no kernel"};
    KernelNode node = read_kernel_node(driver_, handles_[number], number);
    const std::vector<Word> nulls = nulls_of(node);
    const auto word = std::find_if(nulls.begin(), nulls.end(), [&](const Word& w) { return w.slot == patch.slot && w.offset == patch.offset; });
    if (word == nulls.end()) throw Problem{"these bytes of node " + std::to_string(number) + "'s arguments are not null"};
    // An offset from null stays an offset.
    const std::uint64_t value = (patch.unmapped ? unmapped() : scratch()) + word->value;
    std::memcpy(node.arguments[patch.slot].data() + patch.offset, &value, sizeof value);
    launch(number, node, nulls);
  }

 private:
  [[nodiscard]] bool is_kernel(std::size_t number) const {
    cudaGraphNodeType type{};
    need(cudaGraphNodeGetType(handles_[number], &type), "cudaGraphNodeGetType");
    return type == cudaGraphNodeTypeKernel;
  }

  static std::vector<Word> nulls_of(const KernelNode& node) {
    std::vector<Word> words = words_of(node);
    std::erase_if(words, [](const Word& word) { return word.value >= kNullEnd; });
    return words;
  }

  std::uint64_t scratch() {
    if (scratch_.allocate(kScratchBytes) != cudaSuccess) throw NoMemory{};
    need(cudaMemset(scratch_.get(), 0, kScratchBytes), "clearing memory");
    need(cudaDeviceSynchronize(), "clearing memory");
    return reinterpret_cast<std::uint64_t>(scratch_.get());
  }

  // Reserved, so that nothing else is put there; as much as scratch() gives. It ends with the process.
  std::uint64_t unmapped() const {
    CUdeviceptr address = 0;
    need(driver_.reserve(&address, kScratchBytes, 0, 0, 0), "cuMemAddressReserve");
    return address;
  }

  // False: it was refused.
  bool launch(std::size_t number, const KernelNode& node, const std::vector<Word>& nulls) const {
    std::string words;
    for (const Word& word : nulls)
      words += (words.empty() ? "[" : ",[") + std::to_string(word.slot) + ',' + std::to_string(word.offset) + ',' + std::to_string(word.value) + ']';
    const char* name = nullptr;
    if (driver_.function_name(&name, node.function) != CUDA_SUCCESS || name == nullptr) name = "";
    Event("isolating").integer("node", static_cast<std::int64_t>(number)).text("function", name).raw("words", '[' + words + ']');
    std::string refused;
    try {
      cudaGraph_t created = nullptr;
      need(cudaGraphCreate(&created, 0), "cudaGraphCreate");
      const GraphOwner graph(created);
      add_copy(driver_, node, created);
      cudaGraphExec_t instantiated = nullptr;
      need(cudaGraphInstantiate(&instantiated, created, 0), "cudaGraphInstantiate");
      const ExecOwner exec(instantiated);
      const cudaError_t launched = cudaGraphLaunch(instantiated, stream_);
      const cudaError_t status = launched == cudaSuccess ? cudaStreamSynchronize(stream_) : cudaDeviceSynchronize();
      if (status == cudaSuccess) need(launched, "cudaGraphLaunch");  // refused: the context is as it was
      if (status != cudaSuccess)
        throw Fault{"node " + std::to_string(number) + " alone: " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status)};
    } catch (const Problem& problem) {
      refused = problem.what;
      (void)cudaGetLastError();
    }
    Event event("isolated");
    event.integer("node", static_cast<std::int64_t>(number)).boolean("ran", refused.empty());
    if (!refused.empty()) event.text("refused", refused);
    return refused.empty();
  }

  Driver driver_;
  std::vector<cudaGraphNode_t> handles_;
  cudaStream_t stream_;
  kernels::DeviceBuffer<std::uint8_t> scratch_;
};

}  // namespace

IsolateResult isolate(cudaGraph_t graph, cudaStream_t stream, const IsolateOptions& options) {
  try {
    Isolation isolation(graph, stream);
    if (options.patch) {
      isolation.run_patched(options.first, *options.patch);
    } else {
      isolation.run(options.first);
    }
    return {};
  } catch (const Problem& problem) {
    return {problem.what, false, false};
  } catch (const Fault& fault) {
    return {fault.what, true, false};
  } catch (const NoMemory&) {
    return {"too little GPU memory for 64 MiB in the place of a null argument", false, true};
  }
}

}  // namespace cglint::models
