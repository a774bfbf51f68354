#include "analysis/access_table.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/allocator_index.h"
#include "analysis/launch_value.h"
#include "base/check.h"
#include "base/saturate.h"

namespace cglint::analysis {
namespace {

using base::saturating_add;
using base::saturating_multiply;

constexpr std::uint64_t kMaxRows2d =
    64;  // rows of a pitched copy kept one by one; beyond, one bounding range
constexpr int kMaxBodyDepth = 8;

AccessCoverage weaker(AccessCoverage a, AccessCoverage b) {
  return std::min(a, b);
}

AccessConflict::Strength strength_of(const Access& a, const Access& b) {
  using Strength = AccessConflict::Strength;
  const bool directed = a.known() && b.known();
  if (!directed || a.extent == AccessExtent::start_only || b.extent == AccessExtent::start_only)
    return Strength::possible;
  return a.exact() && b.exact() ? Strength::certain : Strength::likely;
}

class Builder {
 public:
  Builder(const ir::Recording& recording, const KernelIdentities& identities)
      : recording_(recording), identities_(identities), blocks_(identities.allocator_index()) {}

  // Appends the rows of `node` of `graph` with `as` as their node; returns the coverage.
  AccessCoverage add_node(const ir::Graph& graph, ir::NodeId node, ir::NodeId as, std::vector<Access>& rows,
                          int depth = 0) const {
    if (!graph.enabled.empty() && graph.enabled[node] == 0) return AccessCoverage::complete;
    switch (graph.kind[node]) {
      case ir::NodeKind::kernel:
        return add_kernel(graph, node, as, rows);
      case ir::NodeKind::memcpy:
        return add_memcpy(graph, node, as, rows);
      case ir::NodeKind::memset:
        return add_memset(graph, node, as, rows);
      case ir::NodeKind::empty:
      case ir::NodeKind::event_record:
      case ir::NodeKind::event_wait:
        return AccessCoverage::complete;
      case ir::NodeKind::mem_alloc:
      case ir::NodeKind::mem_free:
        return add_allocation(graph, node, as, rows);
      case ir::NodeKind::batch_mem_op: {
        if (graph.side[node] >= graph.batch_mem_ops.size()) return AccessCoverage::none;
        const ir::BatchMemOpNode& op = graph.batch_mem_ops[graph.side[node]];
        if (op.address == 0) return AccessCoverage::none;
        Access row;
        row.node = as;
        row.begin = op.address;
        row.end = saturating_add(op.address, 8);
        row.trust = AccessTrust::parameter;
        row.extent = AccessExtent::bounding;
        push(rows, row);
        return AccessCoverage::partial;
      }
      case ir::NodeKind::child_graph:
        if (graph.side[node] >= graph.child_graphs.size()) return AccessCoverage::none;
        return add_body(graph.child_graphs[graph.side[node]].body, as, rows, depth);
      case ir::NodeKind::conditional: {
        if (graph.side[node] >= graph.conditionals.size()) return AccessCoverage::none;
        const ir::Range bodies = graph.conditionals[graph.side[node]].bodies;
        AccessCoverage coverage = bodies.count == 0 ? AccessCoverage::none : AccessCoverage::complete;
        const std::size_t first = rows.size();
        for (std::uint32_t i = 0; i < bodies.count; ++i)
          coverage = weaker(coverage, add_body(graph.bodies[bodies.first + i], as, rows, depth));
        for (std::size_t i = first; i < rows.size(); ++i) rows[i].writes_all = false;  // the body may not run
        return coverage;
      }
      default:
        return AccessCoverage::none;
    }
  }

 private:
  static void push(std::vector<Access>& rows, const Access& row) {
    if (row.begin < row.end) rows.push_back(row);
  }

  AccessCoverage add_body(ir::GraphId body, ir::NodeId as, std::vector<Access>& rows, int depth) const {
    if (depth >= kMaxBodyDepth || !recording_.graphs.contains(body) || recording_.graphs[body] == nullptr)
      return AccessCoverage::none;
    const ir::Graph& graph = *recording_.graphs[body];
    AccessCoverage coverage = AccessCoverage::complete;
    for (const ir::NodeId node : graph.nodes())
      coverage = weaker(coverage, add_node(graph, node, as, rows, depth + 1));
    return coverage;
  }

  // A pitched range: `count` rows of `width` bytes.
  static void add_rows(std::vector<Access>& rows, Access row, std::uint64_t base, std::uint64_t width,
                       std::uint64_t count, std::uint64_t pitch, bool rows_are_exact) {
    if (width == 0 || count == 0) return;
    row.begin = base;
    if (count == 1 || pitch == width) {
      row.end = saturating_add(base, saturating_multiply(width, count));
      row.extent = rows_are_exact ? AccessExtent::exact : AccessExtent::bounding;
      push(rows, row);
    } else if (pitch < width) {  // unknown pitch
      row.end = saturating_add(base, 1);
      row.extent = AccessExtent::start_only;
      push(rows, row);
    } else if (count <= kMaxRows2d && rows_are_exact) {
      row.extent = AccessExtent::exact;
      for (std::uint64_t i = 0; i < count; ++i) {
        row.begin = saturating_add(base, saturating_multiply(i, pitch));
        row.end = saturating_add(row.begin, width);
        push(rows, row);
      }
    } else {
      row.end = saturating_add(saturating_add(base, saturating_multiply(count - 1, pitch)), width);
      row.extent = AccessExtent::bounding;
      push(rows, row);
    }
  }

  AccessCoverage add_memcpy(const ir::Graph& graph, ir::NodeId node, ir::NodeId as,
                            std::vector<Access>& rows) const {
    const ir::MemcpyNode* copy = graph.memcpy(node);
    if (copy == nullptr || !graph.facts.contains(ir::Fact::copy_params)) return AccessCoverage::none;
    Access row;
    row.node = as;
    row.trust = AccessTrust::parameter;
    // The pitch between slices of a 3D copy is not recorded: a bound that assumes none.
    const bool exact = copy->depth <= 1;
    const std::uint64_t count = saturating_multiply(copy->height, std::max<std::uint64_t>(copy->depth, 1));
    AccessCoverage coverage = AccessCoverage::complete;
    const auto side = [&](std::uint64_t base, std::uint64_t pitch, ir::MemoryKind kind,
                          ir::AllocationId allocation, AccessMode mode) {
      if (base == 0 || kind == ir::MemoryKind::array) {
        coverage = AccessCoverage::partial;  // an array, or unknown
        return;
      }
      row.mode = mode;
      row.writes_all = mode == AccessMode::write;
      row.allocation = allocation;
      add_rows(rows, row, base, copy->width_bytes, count, pitch, exact);
    };
    side(copy->src, copy->src_pitch_bytes, copy->src_kind, copy->src_allocation, AccessMode::read);
    side(copy->dst, copy->dst_pitch_bytes, copy->dst_kind, copy->dst_allocation, AccessMode::write);
    return coverage;
  }

  AccessCoverage add_memset(const ir::Graph& graph, ir::NodeId node, ir::NodeId as,
                            std::vector<Access>& rows) const {
    const ir::MemsetNode* set = graph.memset(node);
    if (set == nullptr || set->dst == 0 || !graph.facts.contains(ir::Fact::copy_params))
      return AccessCoverage::none;
    Access row;
    row.node = as;
    row.trust = AccessTrust::parameter;
    row.mode = AccessMode::write;
    row.writes_all = true;
    row.allocation = set->dst_allocation;
    add_rows(rows, row, set->dst, saturating_multiply(set->width, set->element_bytes), set->height,
             set->pitch_bytes, true);
    return AccessCoverage::complete;
  }

  // Allocation and release count as writes: what was there is gone.
  AccessCoverage add_allocation(const ir::Graph& graph, ir::NodeId node, ir::NodeId as,
                                std::vector<Access>& rows) const {
    if (graph.side[node] >= graph.allocs.size()) return AccessCoverage::none;
    const ir::AllocNode& alloc = graph.allocs[graph.side[node]];
    std::uint64_t bytes = alloc.bytes;
    if (bytes == 0 && recording_.allocations.contains(alloc.allocation))
      bytes = recording_.allocations[alloc.allocation].size_bytes;
    if (alloc.address == 0) return AccessCoverage::none;
    Access row;
    row.node = as;
    row.begin = alloc.address;
    row.end = saturating_add(alloc.address, bytes == 0 ? 1 : bytes);
    row.mode = AccessMode::write;
    row.trust = AccessTrust::parameter;
    row.extent = bytes == 0 ? AccessExtent::start_only : AccessExtent::exact;
    row.allocation = alloc.allocation;
    push(rows, row);
    return bytes == 0 ? AccessCoverage::partial : AccessCoverage::complete;
  }

  // What is the same in all launches of a function for one of its words: all but the address, and sizes that depend on the launch.
  struct WordPlan {
    std::uint64_t form = kNoForm;  // of the word that it was made for
    bool is_pointer_by_type = false, is_skipped = false;
    bool leaves_something_open = false;  // whatever its value
    bool points_to_pointer = false;
    Access row;
    const KnownAccess* known = nullptr;
    const SizeExpression *all_if = nullptr, *bytes = nullptr, *span = nullptr;  // of `known`
  };
  struct KernelPlan {
    const KernelIdentity* identity = nullptr;
    std::vector<WordPlan> words;
  };
  static constexpr std::uint64_t kNoForm = ~std::uint64_t{0};
  static std::uint64_t form_of(const ir::ParamWord& word) {
    return std::uint64_t{word.slot} << 32 | std::uint64_t{word.offset_bytes} << 16 | std::uint64_t{word.size_bytes} << 8 |
           static_cast<std::uint64_t>(word.type);
  }

  AccessCoverage add_kernel(const ir::Graph& graph, ir::NodeId node, ir::NodeId as,
                            std::vector<Access>& rows) const {
    const ir::KernelNode* kernel = graph.kernel(node);
    if (kernel == nullptr || !graph.facts.contains(ir::Fact::kernel_params)) return AccessCoverage::none;
    const std::span<const ir::ParamWord> words = graph.params_of(*kernel);
    KernelPlan& plan = plan_of(kernel->function);
    const KernelIdentity& identity = *plan.identity;
    if (words.empty()) {
      const bool takes_none = identity.params_known && identity.params.empty();
      return takes_none ? AccessCoverage::complete : AccessCoverage::none;
    }
    if (plan.words.size() < words.size()) plan.words.resize(words.size());
    // Where allocations are known, a word of no known type outside all of them is no pointer.
    const bool numbers_are_told = graph.facts.contains(ir::Fact::allocations);
    AccessCoverage coverage = AccessCoverage::complete;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const ir::ParamWord& word = words[i];
      WordPlan& of_word = plan.words[i];
      if (of_word.form != form_of(word)) of_word = plan_word(kernel->function, identity, word);
      if (of_word.leaves_something_open) coverage = AccessCoverage::partial;
      if (of_word.is_skipped) continue;
      const ir::Allocation* const allocation =
          recording_.allocations.contains(word.allocation) ? &recording_.allocations[word.allocation] : nullptr;
      if (!of_word.is_pointer_by_type && allocation == nullptr) {
        if (!numbers_are_told && word.value != 0) coverage = AccessCoverage::partial;
        continue;
      }
      if (word.value == 0) continue;  // null
      if (of_word.points_to_pointer) coverage = AccessCoverage::partial;
      coverage = weaker(coverage, add_pointer(graph, *kernel, identity, of_word, word, allocation, as, rows));
    }
    return coverage;
  }

  KernelPlan& plan_of(ir::FunctionId function) const {
    static const KernelIdentity kUnnamed;
    const std::size_t index = function.is_valid() ? std::size_t{function.index()} + 1 : 0;
    if (plans_.size() <= index) plans_.resize(std::max(index + 1, recording_.functions.size() + 1));
    KernelPlan& plan = plans_[index];
    if (plan.identity == nullptr) plan.identity = function.is_valid() ? &identities_.of(function) : &kUnnamed;
    return plan;
  }

  WordPlan plan_word(ir::FunctionId function, const KernelIdentity& identity, const ir::ParamWord& word) const {
    WordPlan plan;
    plan.form = form_of(word);
    plan.is_skipped = true;
    if (word.size_bytes != 8 || word.type == ir::ParamWord::Type::scalar) return plan;
    const KernelIdentity::Param* param = nullptr;
    if (identity.params_known) {
      if (word.slot < identity.params.size()) {
        param = &identity.params[word.slot];
      } else {
        plan.leaves_something_open = true;  // the signature is another one
      }
    }
    if (param != nullptr && param->is_scalar) return plan;
    ir::ParamWord::Type type = word.type;
    if (type == ir::ParamWord::Type::unknown && word.offset_bytes == 0 && recording_.functions.contains(function)) {
      const std::vector<ir::Function::Param>& recorded = recording_.functions[function].params;
      if (word.slot < recorded.size()) type = recorded[word.slot].type;
    }
    if (type == ir::ParamWord::Type::scalar) return plan;
    plan.is_skipped = false;
    plan.is_pointer_by_type = type == ir::ParamWord::Type::pointer || type == ir::ParamWord::Type::const_pointer ||
                              (param != nullptr && param->is_pointer);
    plan.points_to_pointer = param != nullptr && param->points_to_pointer;

    Access& row = plan.row;
    row.slot = word.slot;
    row.offset_bytes = word.offset_bytes;
    const bool is_const =
        (param != nullptr && param->points_to_const) || type == ir::ParamWord::Type::const_pointer;
    if (is_const) {
      row.mode = AccessMode::read;
      row.trust = AccessTrust::signature;
    }
    const KnownAccess* const known = find_known(identity, word, param != nullptr && param->is_pointer && !is_const);
    plan.known = known;
    if (known != nullptr && known->mode != AccessMode::none) {
      row.mode = known->mode;
      row.trust = AccessTrust::table;
      row.writes_all = known->writes_all;
      const auto parsed_if_any = [&](const std::string& text) { return text.empty() ? nullptr : &parsed(text); };
      plan.all_if = parsed_if_any(known->all_if);
      plan.bytes = parsed_if_any(known->bytes);
      plan.span = parsed_if_any(known->span);
    }
    // Who marks inputs as const means the others to be written.
    row.looks_written = row.mode == AccessMode::unknown && param != nullptr && param->is_pointer &&
                        std::any_of(identity.params.begin(), identity.params.end(),
                                    [](const KernelIdentity::Param& other) { return other.is_pointer && other.points_to_const; });
    return plan;
  }

  AccessCoverage add_pointer(const ir::Graph& graph, const ir::KernelNode& kernel, const KernelIdentity& identity, const WordPlan& plan,
                             const ir::ParamWord& word, const ir::Allocation* allocation, ir::NodeId as, std::vector<Access>& rows) const {
    if (plan.known != nullptr && plan.known->mode == AccessMode::none) return AccessCoverage::complete;
    Access row = plan.row;
    row.node = as;
    row.allocation = word.allocation;
    row.begin = word.value;
    if (plan.all_if != nullptr) row.writes_all = launch_value(*plan.all_if, graph, kernel, identity).value_or(0) != 0;
    row.extent = AccessExtent::start_only;
    row.end = saturating_add(word.value, 1);
    if (allocation != nullptr) {
      const std::uint64_t end = saturating_add(allocation->base, allocation->size_bytes);
      if (word.value >= allocation->base && word.value < end) {
        row.end = end;
        row.extent = AccessExtent::bounding;
      }
    }
    if (const std::uint64_t block_end = blocks_->end_around(word.value);
        block_end != 0 && (row.extent == AccessExtent::start_only || block_end < row.end)) {
      row.end = block_end;
      row.extent = AccessExtent::bounding;
    }
    if (plan.bytes != nullptr)
      if (const std::optional<std::uint64_t> bytes = launch_value(*plan.bytes, graph, kernel, identity)) {
        if (*bytes == 0) return AccessCoverage::complete;
        const std::uint64_t end = saturating_add(word.value, *bytes);
        // A size that leaves the allocation is not this launch's: the table is for another version of the
        // kernel.
        if (row.extent == AccessExtent::start_only || end <= row.end) {
          row.end = end;
          row.extent = AccessExtent::exact;
        }
      }
    if (plan.span != nullptr && row.extent != AccessExtent::exact)
      if (const std::optional<std::uint64_t> span = launch_value(*plan.span, graph, kernel, identity); span && *span > 0) {
        const std::uint64_t end = saturating_add(word.value, *span);
        if (row.extent == AccessExtent::start_only || end <= row.end) {
          row.end = end;
          row.extent = AccessExtent::bounding;
        }
      }
    rows.push_back(row);
    return row.known() ? AccessCoverage::complete : AccessCoverage::partial;
  }

  // Of a table's entry, which outlives this builder.
  const SizeExpression& parsed(const std::string& text) const {
    const auto [it, inserted] = expressions_.try_emplace(&text);
    if (inserted) {
      base::Result<SizeExpression> expression = SizeExpression::parse(text);
      CGLINT_CHECK(expression.has_value());  // checked when the table was read
      it->second = std::move(*expression);
    }
    return it->second;
  }

  static const KnownAccess* find_known(const KernelIdentity& identity, const ir::ParamWord& word,
                                       bool is_mutable_pointer) {
    if (identity.known == nullptr) return nullptr;
    const KnownAccess* whole = nullptr;
    const KnownAccess* any_mutable = nullptr;
    for (const KnownAccess& access : identity.known->accesses) {
      if (access.slot == KnownAccess::kEveryMutable) {
        if (is_mutable_pointer) any_mutable = &access;
      } else if (access.slot == word.slot) {
        if (access.offset_bytes == word.offset_bytes) return &access;
        if (access.offset_bytes == KnownAccess::kWholeSlot) whole = &access;
      }
    }
    return whole != nullptr ? whole : any_mutable;
  }

  const ir::Recording& recording_;
  const KernelIdentities& identities_;
  std::shared_ptr<const AllocatorIndex> blocks_;
  mutable std::unordered_map<const std::string*, SizeExpression> expressions_;
  mutable std::vector<KernelPlan> plans_;  // by function; the first: of kernels without one
};

// What an isolated run saw replaces what was only inferred. Recorders that look for changed bytes see writes
// alone, others find some reads: reads then stay as inferred beside those, and what was not written can at most be read.
void apply_measured(std::vector<Access>& rows, std::span<const ir::MeasuredAccess> measured, bool reads_are_some,
                    ir::NodeId node) {
  const bool saw_reads =
      !reads_are_some &&
      std::any_of(measured.begin(), measured.end(), [](const ir::MeasuredAccess& m) { return m.reads; });
  std::vector<Access> kept;
  for (Access& row : rows) {
    const bool strong =
        row.trust == AccessTrust::parameter || (row.trust == AccessTrust::table && row.exact());
    if (strong || (row.mode == AccessMode::read && !saw_reads)) {
      kept.push_back(row);
    } else if (!saw_reads && row.may_read()) {
      row.mode = AccessMode::read;
      row.trust = AccessTrust::measured;
      row.writes_all = false;
      kept.push_back(row);
    }
  }
  for (const ir::MeasuredAccess& m : measured) {
    if (m.begin >= m.end || (!m.reads && !m.writes)) continue;
    // What an exact row states already: it is confirmed, and says more (which argument, whether all of it is written).
    const auto stated = std::find_if(kept.begin(), kept.end(), [&](const Access& row) {
      return row.exact() && row.begin <= m.begin && m.end <= row.end && m.writes && row.may_write() && m.reads == row.may_read();
    });
    if (stated != kept.end()) {
      if (stated->begin == m.begin && stated->end == m.end && stated->trust == AccessTrust::table) stated->trust = AccessTrust::measured;
      continue;
    }
    Access row;
    row.node = node;
    row.begin = m.begin;
    row.end = m.end;
    row.mode = m.reads && m.writes ? AccessMode::read_write : m.writes ? AccessMode::write : AccessMode::read;
    row.trust = AccessTrust::measured;
    row.extent = AccessExtent::exact;
    kept.push_back(row);
  }
  rows = std::move(kept);
}

// Row numbers by (begin, row).
std::vector<std::uint32_t> order_by_begin(std::span<const Access> rows) {
  struct Item {
    std::uint64_t begin;
    std::uint32_t row;
  };
  constexpr std::size_t kFew = 64;     // for which comparing is quicker than counting
  constexpr std::size_t kMany = 4096;  // for which long digits are quicker than short ones
  std::vector<Item> items(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) items[i] = {rows[i].begin, static_cast<std::uint32_t>(i)};
  if (items.size() <= kFew) {
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return std::tie(a.begin, a.row) < std::tie(b.begin, b.row); });
  } else {
    // Digit by digit from the least on; each pass keeps the order of equal digits. Bits in which all addresses agree are passed over:
    // those of one process share their upper bits, and buffers are aligned.
    std::uint64_t differing = 0;
    for (const Item& item : items) differing |= item.begin ^ items[0].begin;
    const unsigned digit_bits = items.size() < kMany ? 8 : 11;
    const std::size_t digits = std::size_t{1} << digit_bits;
    std::vector<Item> sorted(items.size());
    std::vector<std::uint32_t> place(digits);
    while (differing != 0) {
      const auto shift = static_cast<unsigned>(std::countr_zero(differing));
      const auto digit = [shift, digits](const Item& item) { return static_cast<std::size_t>(item.begin >> shift & (digits - 1)); };
      differing &= ~(std::uint64_t{digits - 1} << shift);
      std::fill(place.begin(), place.end(), 0U);
      for (const Item& item : items) ++place[digit(item)];
      std::uint32_t first = 0;
      for (std::uint32_t& count : place) first += std::exchange(count, first);
      for (const Item& item : items) sorted[place[digit(item)]++] = item;
      items.swap(sorted);
    }
  }
  std::vector<std::uint32_t> order(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) order[i] = items[i].row;
  return order;
}

// The sorted rows as a balanced tree: the root of [low, high) is its middle. Returns the largest end in it. As deep as the tree: at most
// 33 calls.
std::uint64_t fill_max_end(std::span<const Access> rows, std::span<const std::uint32_t> by_begin, std::span<std::uint64_t> max_end,
                           std::size_t low, std::size_t high) {
  if (low >= high) return 0;
  const std::size_t middle = (low + high) / 2;
  const std::uint64_t left = fill_max_end(rows, by_begin, max_end, low, middle);
  const std::uint64_t right = fill_max_end(rows, by_begin, max_end, middle + 1, high);
  return max_end[middle] = std::max({left, rows[by_begin[middle]].end, right});
}

}  // namespace

std::string_view access_trust_name(AccessTrust trust) {
  switch (trust) {
    case AccessTrust::pointer:
      return "pointer";
    case AccessTrust::signature:
      return "signature";
    case AccessTrust::table:
      return "table";
    case AccessTrust::measured:
      return "measured";
    case AccessTrust::parameter:
      return "parameter";
  }
  return "pointer";
}

AccessTable build_access_table(const ir::Recording& recording, const ir::Graph& graph,
                               const KernelIdentities& identities) {
  AccessTable table;
  const Builder builder(recording, identities);
  std::vector<ir::MeasuredAccess> measured(graph.measured_accesses);
  std::erase_if(measured, [](const ir::MeasuredAccess& access) { return access.is_null(); });
  std::stable_sort(measured.begin(), measured.end(),
                   [](const ir::MeasuredAccess& a, const ir::MeasuredAccess& b) { return a.node < b.node; });
  table.coverage_.assign(graph.node_count(), AccessCoverage::none);
  table.first_.reserve(graph.node_count() + 1);
  auto next = measured.begin();
  const auto by_address = [](const Access& a, const Access& b) {
    return std::tie(a.begin, a.end, a.slot, a.offset_bytes, a.mode) < std::tie(b.begin, b.end, b.slot, b.offset_bytes, b.mode);
  };
  table.rows_.reserve(graph.params.size() + 2 * graph.memcpys.size() + graph.memsets.size() + measured.size());
  for (const ir::NodeId node : graph.nodes()) {
    const auto first_row = static_cast<std::ptrdiff_t>(table.rows_.size());
    table.coverage_[node] = builder.add_node(graph, node, node, table.rows_);
    const auto first = next;
    while (next != measured.end() && next->node == node) ++next;
    const bool enabled = graph.enabled.empty() || graph.enabled[node] != 0;
    if (next != first && enabled) {
      std::vector<Access> rows(table.rows_.begin() + first_row, table.rows_.end());
      apply_measured(rows, std::span(first, next), graph.measured_reads_are_some, node);
      table.rows_.resize(static_cast<std::size_t>(first_row));
      table.rows_.insert(table.rows_.end(), rows.begin(), rows.end());
      if (graph.kind[node] == ir::NodeKind::kernel) table.coverage_[node] = AccessCoverage::complete;
    }
    const auto begin = table.rows_.begin() + first_row;
    if (!std::is_sorted(begin, table.rows_.end(), by_address)) std::sort(begin, table.rows_.end(), by_address);
    table.first_.push_back(static_cast<std::uint32_t>(table.rows_.size()));
  }
  table.build_index();
  return table;
}

void AccessTable::build_index() {
  by_begin_ = order_by_begin(rows_);
  max_end_.assign(rows_.size(), 0);
  fill_max_end(rows_, by_begin_, max_end_, 0, rows_.size());
}

template <typename Visit>
void AccessTable::visit_touching(std::uint64_t begin, std::uint64_t end, Visit visit) const {
  if (begin >= end) return;
  std::vector<std::pair<std::size_t, std::size_t>> stack{{0, rows_.size()}};
  while (!stack.empty()) {
    const auto [low, high] = stack.back();
    stack.pop_back();
    if (low >= high) continue;
    const std::size_t middle = (low + high) / 2;
    if (max_end_[middle] <= begin) continue;  // nothing below reaches the range
    const Access& row = rows_[by_begin_[middle]];
    if (row.begin < end) {
      if (row.end > begin) visit(by_begin_[middle]);
      stack.push_back({middle + 1, high});
    }
    stack.push_back({low, middle});
  }
}

std::vector<const Access*> AccessTable::touching(std::uint64_t begin, std::uint64_t end) const {
  std::vector<std::uint32_t> found;
  visit_touching(begin, end, [&](std::uint32_t row) { found.push_back(row); });
  std::sort(found.begin(), found.end());
  std::vector<const Access*> result;
  result.reserve(found.size());
  for (const std::uint32_t row : found) result.push_back(&rows_[row]);
  return result;
}

std::vector<ir::NodeId> AccessTable::nodes_where(std::uint64_t begin, std::uint64_t end, bool writes,
                                                 bool known_only) const {
  std::vector<ir::NodeId> nodes;
  visit_touching(begin, end, [&](std::uint32_t index) {
    const Access& row = rows_[index];
    if ((writes ? row.may_write() : row.may_read()) && (row.known() || !known_only))
      nodes.push_back(row.node);
  });
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

std::vector<ir::NodeId> AccessTable::writers(std::uint64_t begin, std::uint64_t end, bool known_only) const {
  return nodes_where(begin, end, true, known_only);
}
std::vector<ir::NodeId> AccessTable::readers(std::uint64_t begin, std::uint64_t end, bool known_only) const {
  return nodes_where(begin, end, false, known_only);
}

std::vector<AccessConflict> AccessTable::conflicts(ir::NodeId a, ir::NodeId b) const {
  std::vector<AccessConflict> result;
  if (a == b) return result;
  const std::span<const Access> left = of(a), right = of(b);
  for (const Access& row : left)
    for (const Access& other : right) {
      if (other.begin >= row.end) break;  // rows are sorted by begin
      if (other.end <= row.begin || (!row.may_write() && !other.may_write())) continue;
      result.push_back({strength_of(row, other), &row, &other, std::max(row.begin, other.begin),
                        std::min(row.end, other.end)});
    }
  std::stable_sort(result.begin(), result.end(),
                   [](const AccessConflict& x, const AccessConflict& y) { return x.strength > y.strength; });
  return result;
}

bool AccessTable::conflict(ir::NodeId a, ir::NodeId b) const {
  if (a == b) return false;
  for (const Access& row : of(a))
    for (const Access& other : of(b)) {
      if (other.begin >= row.end) break;
      if (other.end > row.begin && (row.may_write() || other.may_write())) return true;
    }
  return false;
}

bool AccessTable::for_each_conflict(const std::function<bool(const AccessConflict&)>& visit) const {
  const std::size_t n = by_begin_.size();
  // next_writer[i]: the first position at or after i whose row may write.
  std::vector<std::uint32_t> next_writer(n + 1, static_cast<std::uint32_t>(n));
  for (std::size_t i = n; i-- > 0;)
    next_writer[i] = rows_[by_begin_[i]].may_write() ? static_cast<std::uint32_t>(i) : next_writer[i + 1];
  for (std::size_t i = 0; i < n; ++i) {
    const Access& row = rows_[by_begin_[i]];
    const bool writes = row.may_write();
    for (std::size_t j = writes ? i + 1 : next_writer[i + 1]; j < n;
         j = writes ? j + 1 : next_writer[j + 1]) {
      const Access& other = rows_[by_begin_[j]];
      if (other.begin >= row.end) break;
      if (other.node == row.node) continue;
      const bool in_order = row.node < other.node;
      const AccessConflict found{strength_of(row, other), in_order ? &row : &other, in_order ? &other : &row,
                                 other.begin, std::min(row.end, other.end)};
      if (!visit(found)) return false;
    }
  }
  return true;
}

}  // namespace cglint::analysis
