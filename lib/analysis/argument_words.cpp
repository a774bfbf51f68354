#include "analysis/argument_words.h"

#include <algorithm>
#include <span>

namespace cglint::analysis {

void add_region(std::vector<std::uint32_t>& regions, std::uint32_t region) {
  constexpr std::size_t kMostRegions = 8;
  if (regions.size() < kMostRegions && std::find(regions.begin(), regions.end(), region) == regions.end()) regions.push_back(region);
}

std::vector<FunctionWords> argument_words(const ir::Graph& graph) {
  const bool allocations_known = graph.facts.contains(ir::Fact::allocations);
  std::vector<FunctionWords> functions;
  std::vector<std::uint32_t> place;  // by function: its place in `functions`, counted from 1
  for (const ir::NodeId node : graph.nodes()) {
    const ir::KernelNode* const kernel = graph.kernel(node);
    if (kernel == nullptr || !kernel->function.is_valid() || (!graph.enabled.empty() && graph.enabled[node] == 0)) continue;
    if (place.size() <= kernel->function.index()) place.resize(std::size_t{kernel->function.index()} + 1, 0);
    std::uint32_t& known = place[kernel->function.index()];
    if (known == 0) {
      functions.push_back({kernel->function, {}});
      known = static_cast<std::uint32_t>(functions.size());
    }
    std::vector<ArgumentWord>& words = functions[known - 1].words;
    const std::span<const ir::ParamWord> params = graph.params_of(*kernel);
    if (words.size() < params.size()) words.resize(params.size());
    for (std::size_t i = 0; i < params.size(); ++i) {
      const ir::ParamWord& param = params[i];
      ArgumentWord& word = words[i];
      word.word = param;
      word.in_struct = param.offset_bytes != 0 || (i + 1 < params.size() && params[i + 1].slot == param.slot);
      if (!param.allocation.is_valid()) {
        ++word.elsewhere;
        const std::uint64_t region = param.value >> kRegionBits;
        if (allocations_known && word.in_struct && param.size_bytes == 8 && region != 0 && param.value < kHighestAddress)
          add_region(word.regions, static_cast<std::uint32_t>(region));
        if (param.size_bytes != 8 || param.value < kLowestAddress || param.value >= kHighestAddress) ++word.numbers;
        continue;
      }
      if (word.inside++ == 0) word.first = param.value;
      word.several = word.several || word.first != param.value;
      if (!word.in_struct || word.many || std::find(word.values.begin(), word.values.end(), param.value) != word.values.end()) continue;
      if (word.values.size() < ArgumentWord::kMostValues) word.values.push_back(param.value);
      else word.many = true;
    }
  }
  return functions;
}

}  // namespace cglint::analysis
