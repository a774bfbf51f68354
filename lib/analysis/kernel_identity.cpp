#include "analysis/kernel_identity.h"

#include <array>
#include <charconv>

#include "analysis/allocator_index.h"
#include "analysis/kernel_table.h"
#include "analysis/normalise.h"
#include "analysis/signature.h"

namespace cglint::analysis {
namespace {

constexpr std::array<std::string_view, kKernelRoleCount> kRoleNames = {
    "unknown",     "gemm",        "moe_gemm",       "attention", "norm",    "router",     "topk",
    "activation",  "elementwise", "cast",           "fill",      "copy",    "reduce",     "rope",
    "kv_write",    "quantise",    "permute",        "sampling",  "rng",     "collective", "embedding",
    "convolution", "scan",        "scatter_gather", "sort",      "metadata"};

// "16", "-3", "7u", "true", "(ns::Enum)1", "(int)16"; nothing for types and names.
std::optional<std::int64_t> number_of(std::string_view argument) {
  if (argument.starts_with('(')) {
    const std::size_t close = argument.rfind(')');
    if (close == std::string_view::npos) return std::nullopt;
    argument.remove_prefix(close + 1);
  }
  if (argument == "true") return 1;
  if (argument == "false") return 0;
  while (!argument.empty() && (argument.back() == 'u' || argument.back() == 'l' || argument.back() == 'U' || argument.back() == 'L'))
    argument.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), value);
  if (argument.empty() || error != std::errc() || end != argument.data() + argument.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view kernel_role_name(KernelRole role) {
  return kRoleNames[static_cast<std::size_t>(role)];
}

std::optional<KernelRole> kernel_role_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kRoleNames.size(); ++i)
    if (kRoleNames[i] == name) return static_cast<KernelRole>(i);
  return std::nullopt;
}

std::string_view access_mode_name(AccessMode mode) {
  switch (mode) {
    case AccessMode::none:
      return "none";
    case AccessMode::read:
      return "read";
    case AccessMode::write:
      return "write";
    case AccessMode::read_write:
      return "read_write";
    case AccessMode::unknown:
      return "unknown";
  }
  return "unknown";
}

const KnownKernel* KernelTable::find(std::string_view normalised) const {
  if (!compiled_) return nullptr;
  for (const Compiled::Entry& entry : compiled_->entries)
    if (entry.pattern.matches(normalised)) return &entry.kernel;
  return nullptr;
}

KernelRole KernelTable::role_of(std::string_view normalised) const {
  const KnownKernel* known = find(normalised);
  return known == nullptr ? KernelRole::unknown : known->role;
}

std::size_t KernelTable::size() const {
  return compiled_ ? compiled_->entries.size() : 0;
}

KernelIdentity identify_kernel(std::string_view recorded_name, const KernelTable& table) {
  KernelIdentity identity;
  identity.demangled = demangle(recorded_name);
  NormalisedName normalised = normalise_kernel_name(identity.demangled);
  identity.normalised = std::move(normalised.name);
  identity.short_name = std::move(normalised.short_name);
  identity.known = table.find(identity.normalised);
  if (identity.known != nullptr) identity.role = identity.known->role;
  const auto add_param = [&](std::string_view type) {
    const ParameterType parsed = parse_parameter_type(type);
    KernelIdentity::Param param;
    param.type = std::string(type);
    param.is_pointer = parsed.is_pointer;
    param.points_to_const = parsed.points_to_const;
    param.points_to_pointer = parsed.points_to_pointer;
    param.is_scalar = parsed.is_scalar;
    param.element_bytes = static_cast<std::uint8_t>(element_bytes(parsed.is_pointer ? parsed.pointee : type));
    identity.params.push_back(std::move(param));
  };
  const SplitName split = split_name(identity.demangled);
  if (!split.components.empty())
    for (const std::string_view argument : split.components.back().template_arguments)
      identity.template_numbers.push_back(number_of(argument));
  if (split.has_parameters) {
    identity.params_known = true;
    for (const std::string_view type : split.parameters) add_param(type);
  } else if (identity.known != nullptr && !identity.known->params.empty()) {
    identity.params_known = true;
    for (const std::string& type : identity.known->params) add_param(type);
  }
  return identity;
}

const KernelIdentity& KernelIdentities::identify(ir::FunctionId function) const {
  static const KernelIdentity kNothing;
  if (!recording_.functions.contains(function)) return kNothing;
  const std::lock_guard lock(mutex_);
  const std::size_t block = block_of(function.index());
  if (blocks_[block].load(std::memory_order_relaxed) == nullptr) {
    block_memory_.push_back(std::make_unique<Slot[]>(kFirstBlock << block));
    blocks_[block].store(block_memory_.back().get(), std::memory_order_release);
  }
  Slot& slot = *find_slot(function.index());
  if (const KernelIdentity* const known = slot.load(std::memory_order_relaxed)) return *known;  // another thread was first
  identities_.push_back(identify_kernel(recording_.text(recording_.functions[function].name), table_));
  slot.store(&identities_.back(), std::memory_order_release);
  return identities_.back();
}

std::shared_ptr<const AllocatorIndex> KernelIdentities::allocator_index() const {
  const std::lock_guard lock(index_mutex_);
  if (allocator_index_ == nullptr || allocator_index_->seen() != recording_.allocator_blocks.size())
    allocator_index_ = std::make_shared<const AllocatorIndex>(recording_, allocator_index_ == nullptr ? AllocatorIndex() : *allocator_index_);
  return allocator_index_;
}

std::string KernelIdentities::label(const ir::Graph& graph, ir::NodeId node) const {
  if (const ir::KernelNode* kernel = graph.kernel(node)) {
    const KernelIdentity& identity = of(kernel->function);
    if (!identity.short_name.empty()) return identity.short_name;
    const std::string_view name = recording_.text(graph.name[node]);
    return name.empty() ? "kernel" : normalise_kernel_name(demangle(name)).short_name;
  }
  return std::string(ir::node_kind_name(graph.kind[node]));
}

}  // namespace cglint::analysis
