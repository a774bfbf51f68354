// A graph holds an address whose memory was given back: a replay reads or writes what others own by then.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/saturate.h"
#include "base/text.h"
#include "rules/common/allocation_set.h"
#include "rules/common/arguments.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::AllocationId;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 2> kNeeds = {ir::FactSet{Fact::nodes, Fact::kernel_params, Fact::allocations},
                                               ir::FactSet{Fact::nodes, Fact::copy_params, Fact::allocations}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG302",
    .slug = "stale-address",
    .family = "addresses",
    .summary = "A graph holds an address whose memory was given back: a replay reads or writes what others own by then.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::allocator_state, Fact::source_frames},
};

using analysis::kHighestAddress;
using analysis::kLowestAddress;
constexpr std::size_t kMaxGraphsPerUse = 64;
constexpr std::size_t kMaxUsesOfAllocation = 16;       // arguments that are told apart
constexpr std::uint32_t kGraphsInFull = 4;             // in which they are; of further graphs that hold the memory only this is kept
constexpr std::size_t kMaxAddressesPerArgument = 256;  // outside known memory
constexpr std::uint16_t kCopySource = 0xfffe, kCopyTarget = 0xffff;  // in place of a kernel's argument

struct Node {
  NodeId id;
  std::uint64_t source_id = 0;
  std::int32_t layer = -1;
  ir::NodeKind kind = ir::NodeKind::kernel;
};

struct SeenGraph {
  engine::Finding finding;           // names it
  ir::ProcessId process;
  std::uint64_t end_sequence = 0;    // last moment of its capture
  std::uint32_t instances = 1;
  AllocationSet memory;              // that it uses
  ir::GraphId parent;                // of a body
};

// An address that graphs hold.
struct UseKey {
  ir::ProcessId process;
  AllocationId allocation;           // that held it at capture; invalid: none
  std::uint64_t value = 0;           // the allocation's base where no blocks of it are known
  ir::FunctionId function;           // invalid for copies
  std::uint32_t word = 0;
  friend bool operator==(const UseKey&, const UseKey&) = default;
};
struct UseHash {
  std::size_t operator()(const UseKey& key) const {
    std::uint64_t h = key.value ^ (std::uint64_t{key.allocation.index()} << 17) ^ (std::uint64_t{key.function.index()} << 40) ^ (std::uint64_t{key.word} << 57);
    h = (h ^ key.process.index()) * 0x9e3779b97f4a7c15U;
    return static_cast<std::size_t>(h ^ h >> 32);
  }
};
struct Use {
  UseKey key;
  std::uint16_t slot = 0, offset_bytes = 0;
  WordType type = WordType::unknown;
  ir::StackId stack;
  std::uint64_t sequence = 0;        // of the node; 0: unknown
  std::vector<std::uint32_t> graphs; // indices, ascending, at most kMaxGraphsPerUse
  std::vector<Node> nodes;           // of the first graph
  std::size_t node_count = 0;        // in the first graph
};

// Why an address is stale, and how sure that is.
struct Stale {
  engine::Confidence confidence = engine::Confidence::likely;
  std::string why;                   // no addresses, no numbers that change from run to run
  std::string kind;                  // for grouping and the fingerprint
  ir::StackId freed_at;
  Fact fact = Fact::allocations;
  bool reused = false;
  std::uint32_t graph = 0;           // the first that holds it
  std::uint32_t graphs = 0;          // how many do
  std::uint64_t cause = 0;           // equal for addresses that went stale together
};

// Ranges sorted by base, of one process, with the largest end so far: finds everything around an address.
template <typename T>
class Ranges {
 public:
  void add(std::uint64_t base, std::uint64_t size, T what) {
    if (size != 0) rows_.push_back({base, base::saturating_add(base, size), what});
  }
  void sort() {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return std::tuple(a.base, a.end) < std::tuple(b.base, b.end); });
    std::uint64_t reach = 0;
    for (Row& row : rows_) row.reach = reach = std::max(reach, row.end);
  }
  // Calls visit(what) for every range that contains `address`, nearest base first; visit returns false to stop.
  template <typename Visit>
  void around(std::uint64_t address, const Visit& visit) const {
    auto it = std::upper_bound(rows_.begin(), rows_.end(), address, [](std::uint64_t value, const Row& row) { return value < row.base; });
    while (it != rows_.begin()) {
      --it;
      if (it->reach <= address) return;
      if (address < it->end && !visit(it->what)) return;
    }
  }

 private:
  struct Row {
    std::uint64_t base, end;
    T what;
    std::uint64_t reach = 0;
  };
  std::vector<Row> rows_;
};

class Check final : public engine::RecordingCheck {
 public:
  void see(const engine::GraphContext& context) override {
    const ir::Graph& graph = context.graph;
    const bool eager = graph.info.role == ir::GraphRole::eager;
    if (!graph.facts.contains(Fact::allocations)) return;
    history_.see(graph, context.analyses.argument_words());
    if (!eager && graph.facts.contains(Fact::allocator_state)) state_expected_ = true;
    if (!graph.stack.empty() && graph.node_count() > 0) {
      const auto frames = context.recording.frames(graph.stack[NodeId(0)]);
      from_python_ = from_python_ || (!frames.empty() && frames.front().kind == ir::Frame::Kind::python);
    }
    std::uint32_t index = ~std::uint32_t{0};
    if (!eager) {
      SeenGraph seen;
      engine::name_graph(seen.finding, context);
      seen.process = graph.info.process;
      seen.instances = graph.info.instances;
      seen.parent = graph.info.parent;
      seen.end_sequence = graph.info.end_sequence;
      if (!graph.sequence.empty())
        for (const NodeId node : graph.nodes()) seen.end_sequence = std::max(seen.end_sequence, graph.sequence[node]);
      last_sequence_ = std::max(last_sequence_, seen.end_sequence);
      index = static_cast<std::uint32_t>(graphs_.size());
      graphs_.push_back(std::move(seen));
      index_of_graph_.emplace(context.graph_id, index);
    } else if (!graph.sequence.empty()) {
      for (const NodeId node : graph.nodes()) last_sequence_ = std::max(last_sequence_, graph.sequence[node]);
    }
    if (memory_.size() < context.recording.allocations.size()) memory_.resize(context.recording.allocations.size());
    used_.clear();
    const bool has_params = graph.facts.contains(Fact::kernel_params), has_copies = graph.facts.contains(Fact::copy_params);
    // Where in its allocation an address lies matters only if blocks of it are known.
    const bool allocation_is_enough = !graph.facts.contains(Fact::allocator_state);
    for (const NodeId node : graph.nodes()) {
      if (!graph.enabled.empty() && graph.enabled[node] == 0) continue;
      if (const ir::KernelNode* const kernel = graph.kernel(node); kernel != nullptr && has_params) {
        const auto words = graph.params_of(*kernel);
        std::vector<std::pair<std::uint64_t, std::uint64_t>>* const counts = kernel->function.is_valid() ? &counts_of(kernel->function, words.size()) : nullptr;
        for (std::uint32_t i = 0; i < words.size(); ++i) {
          const ir::ParamWord& word = words[i];
          const bool is_inside = word.allocation.is_valid();
          if (word.size_bytes != 8 || (!is_inside && (word.value < kLowestAddress || word.value >= kHighestAddress))) continue;
          if (counts != nullptr) ++(is_inside ? (*counts)[i].first : (*counts)[i].second);
          if (eager) continue;
          if (is_inside) {
            Memory& memory = memory_of(word.allocation);
            use(memory, index, word.allocation, word.value);
            if (allocation_is_enough) {
              note_allocation(memory, context, index, node, {graph.info.process, word.allocation, word.value, kernel->function, i}, word.slot, word.offset_bytes, &word);
              continue;
            }
          }
          note_address(context, index, node, {graph.info.process, word.allocation, word.value, kernel->function, i}, word.slot, word.offset_bytes, &word);
        }
      } else if (eager || !has_copies) {
        continue;
      } else if (const ir::MemcpyNode* const copy = graph.memcpy(node)) {
        use_all(context.recording, index, copy->src_allocation);
        use_all(context.recording, index, copy->dst_allocation);
        if (copy->src >= kLowestAddress && copy->src_kind != ir::MemoryKind::array)
          note(context, index, node, {graph.info.process, copy->src_allocation, copy->src, {}, kCopySource}, kCopySource);
        if (copy->dst >= kLowestAddress && copy->dst_kind != ir::MemoryKind::array)
          note(context, index, node, {graph.info.process, copy->dst_allocation, copy->dst, {}, kCopyTarget}, kCopyTarget);
      } else if (const ir::MemsetNode* const fill = graph.memset(node)) {
        use_all(context.recording, index, fill->dst_allocation);
        if (fill->dst >= kLowestAddress) note(context, index, node, {graph.info.process, fill->dst_allocation, fill->dst, {}, kCopyTarget}, kCopyTarget);
      }
    }
    if (!eager) graphs_[index].memory = AllocationSet(used_);
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    prepare(context.recording);
    // One finding for each piece of memory that went; all that hold it repeat it.
    std::map<std::tuple<std::uint32_t, std::string, std::uint64_t>, std::pair<std::vector<const Use*>, Stale>> found;
    for (const Use& use : uses_) {
      const std::optional<Stale> stale = judge(context, use);
      if (!stale) continue;
      // What is not shown unless asked for is told once.
      const std::uint64_t cause = stale->confidence == engine::Confidence::possible ? ~std::uint64_t{0} : stale->cause;
      const auto [it, inserted] = found.try_emplace({stale->graph, stale->kind, cause}, std::vector<const Use*>{&use}, *stale);
      if (inserted) continue;
      it->second.first.push_back(&use);
      Stale& known = it->second.second;
      known.confidence = std::max(known.confidence, stale->confidence);
      known.reused |= stale->reused;
      known.graphs = std::max(known.graphs, stale->graphs);
    }
    for (const auto& [key, entry] : found) report(context, sink, entry.first, entry.second);
    const bool too_many = std::any_of(outside_.begin(), outside_.end(), [&](const auto& entry) {
      return entry.second > kMaxAddressesPerArgument &&
             (!entry.first.first.is_valid() ||
              history_.is_pointer(context.recording, context.identities.of(entry.first.first), entry.first.first, entry.first.second));
    });
    if (too_many)
      sink.not_checked({Fact::allocations}, fmt::format("more than {} addresses of one argument lie in no known memory: the others were not looked at", kMaxAddressesPerArgument));
    if (state_unknown(context.recording))
      sink.not_checked({Fact::allocator_state},
                       "allocator state unknown: memory that was given back but is still held by a caching allocator cannot be seen; what was really "
                       "freed was checked");
  }

 private:
  struct Holder {
    ir::FunctionId function;
    std::uint32_t word, use;
  };
  // What is known of one allocation.
  struct Memory {
    std::uint64_t address = kNoAddress;                             // in it; kSeveral: more than one was seen
    std::uint32_t used_in = ~std::uint32_t{0};                      // the last graph that uses it
    std::uint32_t noted_in = ~std::uint32_t{0}, graphs_noted = 0;   // graphs whose uses were noted: the last, and how many
    bool is_full = false;                                           // its use names as many graphs as are kept
    std::vector<Holder> holders;                                    // at most kMaxUsesOfAllocation
  };
  static constexpr std::uint64_t kSeveral = ~std::uint64_t{0}, kNoAddress = kSeveral - 1;

  Memory& memory_of(AllocationId id) {
    if (memory_.size() <= id.index()) memory_.resize(std::size_t{id.index()} + 1);
    return memory_[id.index()];
  }
  void use(Memory& memory, std::uint32_t index, AllocationId id, std::uint64_t address) {
    if (std::exchange(memory.used_in, index) != index) used_.push_back(id);
    if (memory.address == kNoAddress) memory.address = address;
    if (memory.address != address) memory.address = kSeveral;
  }
  // A copy counts as a use of the allocation's begin.
  void use_all(const ir::Recording& recording, std::uint32_t index, AllocationId id) {
    if (id.is_valid()) use(memory_of(id), index, id, recording.allocations.contains(id) ? recording.allocations[id].base : 0);
  }

  // How often each word of a function's arguments pointed into known memory, and how often outside.
  std::vector<std::pair<std::uint64_t, std::uint64_t>>& counts_of(ir::FunctionId function, std::size_t words) {
    if (anywhere_.size() <= function.index()) anywhere_.resize(std::size_t{function.index()} + 1);
    auto& counts = anywhere_[function.index()];
    if (counts.size() < words) counts.resize(words);
    return counts;
  }

  // Of a copy.
  void note(const engine::GraphContext& context, std::uint32_t index, NodeId node, const UseKey& key, std::uint16_t side) {
    if (key.allocation.is_valid() && !context.graph.facts.contains(Fact::allocator_state))
      note_allocation(memory_of(key.allocation), context, index, node, key, side, 0, nullptr);
    else
      note_address(context, index, node, key, side, 0, nullptr);
  }

  void note_address(const engine::GraphContext& context, std::uint32_t index, NodeId node, const UseKey& key, std::uint16_t slot, std::uint16_t offset_bytes,
                    const ir::ParamWord* word) {
    auto it = use_index_.find(key);
    if (it == use_index_.end()) {
      const std::optional<std::uint32_t> made = make_use(context, node, key, slot, offset_bytes, word);
      if (!made) return;
      it = use_index_.emplace(key, *made).first;
    }
    note_place(context, index, node, uses_[it->second]);
  }

  // The common case, for millions of words: nothing but the allocation matters, and which arguments hold it.
  void note_allocation(Memory& memory, const engine::GraphContext& context, std::uint32_t index, NodeId node, const UseKey& key, std::uint16_t slot,
                       std::uint16_t offset_bytes, const ir::ParamWord* word) {
    const bool again = std::exchange(memory.noted_in, index) == index;
    if (!again) ++memory.graphs_noted;
    if (memory.graphs_noted > kGraphsInFull) {
      if (again || memory.is_full || memory.holders.empty()) return;
      Use& use = uses_[memory.holders.front().use];
      note_graph(index, use);
      memory.is_full = use.graphs.size() >= kMaxGraphsPerUse;
      return;
    }
    note_holder(memory.holders, context, index, node, key, slot, offset_bytes, word);
  }

  void note_holder(std::vector<Holder>& holders, const engine::GraphContext& context, std::uint32_t index, NodeId node, UseKey key, std::uint16_t slot,
                   std::uint16_t offset_bytes, const ir::ParamWord* word) {
    auto it = std::find_if(holders.begin(), holders.end(), [&](const Holder& holder) { return holder.function == key.function && holder.word == key.word; });
    if (it == holders.end()) {
      if (holders.size() == kMaxUsesOfAllocation) {
        // One argument more of the same memory: its graphs count, its nodes are not told.
        note_graph(index, uses_[holders.back().use]);
        return;
      }
      key.value = context.recording.allocations[key.allocation].base;
      const std::optional<std::uint32_t> made = make_use(context, node, key, slot, offset_bytes, word);
      if (!made) return;
      holders.push_back({key.function, key.word, *made});
      it = holders.end() - 1;
    }
    note_place(context, index, node, uses_[it->use]);
  }

  // Nothing where the word is known to be no address.
  std::optional<std::uint32_t> make_use(const engine::GraphContext& context, NodeId node, const UseKey& key, std::uint16_t slot, std::uint16_t offset_bytes,
                                        const ir::ParamWord* word) {
    const ir::Graph& graph = context.graph;
    Use use;
    use.key = key;
    use.slot = slot;
    use.offset_bytes = offset_bytes;
    use.type = word == nullptr ? WordType::pointer
                               : word_type(context.recording, context.analyses.identities().of(key.function), key.function, *word);
    if (!key.allocation.is_valid() && use.type == WordType::scalar) return std::nullopt;
    if (!key.allocation.is_valid() && ++outside_[{key.function, key.word}] > kMaxAddressesPerArgument) return std::nullopt;
    use.stack = graph.stack.empty() ? ir::StackId() : graph.stack[node];
    use.sequence = graph.sequence.empty() ? 0 : graph.sequence[node];
    uses_.push_back(std::move(use));
    return static_cast<std::uint32_t>(uses_.size() - 1);
  }

  static void note_graph(std::uint32_t index, Use& use) {
    if (use.graphs.empty() || (use.graphs.back() != index && use.graphs.size() < kMaxGraphsPerUse)) use.graphs.push_back(index);
  }

  void note_place(const engine::GraphContext& context, std::uint32_t index, NodeId node, Use& use) {
    const ir::Graph& graph = context.graph;
    note_graph(index, use);
    if (use.graphs.front() != index) return;
    if (use.node_count++ < 16)
      use.nodes.push_back({node, graph.source_id.empty() ? node.index() : graph.source_id[node], layer_of(context, node), graph.kind[node]});
  }

  void prepare(const ir::Recording& recording) {
    for (const AllocationId id : recording.allocations.ids()) {
      const ir::Allocation& row = recording.allocations[id];
      allocations_[row.process].add(row.base, row.size_bytes, id);
      last_sequence_ = std::max(last_sequence_, row.alloc_sequence);
    }
    for (auto& [process, ranges] : allocations_) ranges.sort();
    for (const ir::AllocatorBlock& block : recording.allocator_blocks) blocks_[{block.process, block.sequence}].add(block.base, block.size_bytes, &block);
    for (auto& [key, ranges] : blocks_) {
      ranges.sort();
      snapshots_[key.first].push_back(key.second);
    }
    for (const ir::ExecutableUse& use : recording.executable_uses) {
      const auto graph = index_of_graph_.find(use.graph);
      if (graph == index_of_graph_.end()) continue;
      Life& life = lives_[graph->second];
      ++life.known;
      life.last_launch = std::max(life.last_launch, use.last_launch_sequence);
      if (use.destroyed_sequence != 0) ++life.destroyed_count, life.destroyed = std::max(life.destroyed, use.destroyed_sequence);
      last_sequence_ = std::max(last_sequence_, use.last_launch_sequence);
    }
  }

  struct Life {
    std::uint32_t known = 0, destroyed_count = 0;
    std::uint64_t last_launch = 0, destroyed = 0;
  };
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  // The moment from which the graph cannot be launched any more; kNever if it can.
  [[nodiscard]] std::uint64_t end_of_life(std::uint32_t graph) const {
    graph = holder(graph);
    const auto life = lives_.find(graph);
    const bool gone = life != lives_.end() && life->second.destroyed_count >= graphs_[graph].instances;
    return gone ? life->second.destroyed : kNever;
  }
  [[nodiscard]] std::uint64_t last_launch(std::uint32_t graph) const {
    const auto life = lives_.find(holder(graph));
    return life == lives_.end() ? 0 : life->second.last_launch;
  }
  // The graph that is instantiated: of a body, the one that holds it.
  [[nodiscard]] std::uint32_t holder(std::uint32_t graph) const {
    for (int depth = 0; depth < 8 && graphs_[graph].parent.is_valid(); ++depth) {
      const auto parent = index_of_graph_.find(graphs_[graph].parent);
      if (parent == index_of_graph_.end() || parent->second == graph) break;
      graph = parent->second;
    }
    return graph;
  }

  [[nodiscard]] std::optional<Stale> judge(const engine::RecordingContext& context, const Use& use) const {
    std::optional<Stale> stale = judge_as_address(context, use);
    // What may be padding of a struct needs a look; where no memory ever was it says nothing at all.
    if (!stale || is_pointer(context, use)) return stale;
    if (stale->kind == "unmapped") return std::nullopt;
    stale->confidence = engine::Confidence::possible;
    return stale;
  }

  [[nodiscard]] bool is_pointer(const engine::RecordingContext& context, const Use& use) const {
    return !use.key.function.is_valid() || use.type == WordType::pointer ||
           history_.is_pointer(context.recording, context.identities.of(use.key.function), use.key.function, use.key.word);
  }

  [[nodiscard]] std::optional<Stale> judge_as_address(const engine::RecordingContext& context, const Use& use) const {
    const ir::Recording& recording = context.recording;
    if (recording.allocations.contains(use.key.allocation)) {
      const ir::Allocation& allocation = recording.allocations[use.key.allocation];
      if (allocation.free_sequence != 0)
        if (auto stale = freed_after_capture(recording, use, allocation)) return stale;
      return given_back_to_allocator(use);
    }
    return outside_memory(recording, use);
  }

  [[nodiscard]] std::optional<Stale> freed_after_capture(const ir::Recording& recording, const Use& use, const ir::Allocation& allocation) const {
    if (allocation.kind == ir::Allocation::Kind::graph_node) return std::nullopt;  // the graph's own allocation nodes
    const std::uint64_t freed = allocation.free_sequence;
    Stale stale;
    stale.freed_at = allocation.free_stack;
    bool launched = false, watched = false, partly = false;
    for (const std::uint32_t graph : use.graphs) {
      const std::uint64_t end = end_of_life(graph);
      if (end <= freed) continue;
      // Freed during its capture, after the node: as stale as later.
      if (stale.graphs++ == 0) stale.graph = graph;
      launched = launched || last_launch(graph) > freed;
      watched = watched || lives_.contains(holder(graph));
      // A program that ends frees all that a graph uses, or leaves it all to the driver.
      std::size_t gone = 0;
      graphs_[graph].memory.for_each([&](AllocationId id) {
        if (recording.allocations.contains(id) && recording.allocations[id].free_sequence != 0) ++gone;
      });
      partly = partly || 2 * gone <= graphs_[graph].memory.size();
    }
    if (stale.graphs == 0) return std::nullopt;
    stale.reused = handed_out_again(recording, use, freed);
    stale.kind = launched ? "freed-and-launched" : "freed";
    stale.cause = stale.freed_at.is_valid() ? std::uint64_t{1} << 32 | stale.freed_at.index() : use.key.allocation.index();
    stale.why = launched ? "freed after the capture, and the graph was launched after that" : "freed after the capture, while the graph can still be launched";
    // At the end of a program memory is freed and graphs are not launched again: nothing happens after. And where the end of graphs
    // is not recorded this one may have been destroyed before.
    const bool goes_on = stale.reused || last_sequence_ > freed || partly;
    stale.confidence = launched ? engine::Confidence::certain : goes_on && watched ? engine::Confidence::likely : engine::Confidence::possible;
    return stale;
  }

  [[nodiscard]] bool handed_out_again(const ir::Recording& recording, const Use& use, std::uint64_t freed) const {
    bool again = false;
    if (const auto ranges = allocations_.find(use.key.process); ranges != allocations_.end())
      ranges->second.around(use.key.value, [&](AllocationId id) {
        again = again || recording.allocations[id].alloc_sequence > freed;
        return !again;
      });
    return again;
  }

  // A block that is free in the allocator's general pool can be handed out to anybody. In a graph's own pool free blocks are normal.
  [[nodiscard]] std::optional<Stale> given_back_to_allocator(const Use& use) const {
    const auto snapshots = snapshots_.find(use.key.process);
    if (snapshots == snapshots_.end()) return std::nullopt;
    Stale stale;
    bool launched = false;
    for (const std::uint32_t graph : use.graphs) {
      const std::vector<std::uint64_t>& moments = snapshots->second;
      const auto first = std::upper_bound(moments.begin(), moments.end(), graphs_[graph].end_sequence);
      if (first == moments.end()) continue;
      // What is free is seen at the first look after its capture and at the last one in its life; what was handed out in its life also later.
      const std::uint64_t end = end_of_life(graph), last_launched = last_launch(graph);
      const auto death = std::lower_bound(first, moments.end(), end);
      std::set<std::uint64_t> looks = {*first, moments.back()};
      if (death != first) looks.insert(*std::prev(death));
      if (death != moments.end()) looks.insert(*death);
      bool free = false, is_reused = false;
      for (const std::uint64_t moment : looks) {
        // A graph that is replaced may outlive its memory for a while, if it is not launched any more.
        const bool is_replaced = end != kNever && moment != moments.back(), is_dead = moment >= end;
        blocks_.at({use.key.process, moment}).around(use.key.value, [&](const ir::AllocatorBlock* block) {
          if (block->pool != ir::kEmptyString) return false;
          const bool is_free = block->state == ir::AllocatorBlock::State::free && !is_dead && (!is_replaced || last_launched > moment);
          const std::uint64_t since = block->alloc_sequence;
          const bool is_others = since > graphs_[graph].end_sequence && since < end && (last_launched > since || (!is_replaced && !is_dead));
          if (is_free || is_others) stale.cause = block->base;
          free = free || is_free;
          is_reused = is_reused || is_others;
          launched = launched || (is_others && last_launched > since);
          return false;  // the innermost block
        });
      }
      if (!free && !is_reused) continue;
      if (stale.graphs++ == 0) stale.graph = graph;
      stale.reused = stale.reused || is_reused;
    }
    if (stale.graphs == 0) return std::nullopt;
    stale.kind = "given-back";
    stale.why = stale.reused ? launched ? "given back to the caching allocator after the capture, and the graph was launched after that"
                                        : "given back to the caching allocator after the capture"
                             : "given back to the caching allocator, which can hand it out to anybody";
    stale.confidence = use.type == WordType::pointer && (launched || !stale.reused) ? engine::Confidence::certain : engine::Confidence::likely;
    stale.fact = Fact::allocator_state;
    return stale;
  }

  // No live allocation held the address when the graph was instantiated.
  [[nodiscard]] std::optional<Stale> outside_memory(const ir::Recording& recording, const Use& use) const {
    Stale stale;
    stale.graph = use.graphs.front();
    stale.graphs = static_cast<std::uint32_t>(use.graphs.size());
    const std::uint64_t end = graphs_[stale.graph].end_sequence;
    const ir::Allocation* freed = nullptr;
    bool later = false;
    if (const auto ranges = allocations_.find(use.key.process); ranges != allocations_.end())
      ranges->second.around(use.key.value, [&](AllocationId id) {
        const ir::Allocation& row = recording.allocations[id];
        if (row.free_sequence != 0 && (freed == nullptr || row.free_sequence > freed->free_sequence) && (end == 0 || row.alloc_sequence <= end)) freed = &row;
        later = later || (end != 0 && row.alloc_sequence > end);
        return true;
      });
    std::uint64_t inside = 0, outside = 0;
    if (use.key.function.is_valid() && use.key.function.index() < anywhere_.size() && use.key.word < anywhere_[use.key.function.index()].size())
      std::tie(inside, outside) = anywhere_[use.key.function.index()][use.key.word];
    if (freed != nullptr) {
      // A number that happens to lie where memory once was: only if the word is no address elsewhere either.
      if (use.type != WordType::pointer && inside == 0) return std::nullopt;
      stale.kind = "freed-before";
      stale.cause = stale.freed_at.is_valid() ? std::uint64_t{1} << 32 | stale.freed_at.index() : freed->base;
      stale.why = "freed before the graph was instantiated";
      stale.freed_at = freed->free_stack;
      stale.confidence = use.type == WordType::pointer ? engine::Confidence::certain : engine::Confidence::likely;
      stale.reused = later;
      return stale;
    }
    if (use.type != WordType::pointer && (inside == 0 || outside > inside)) return std::nullopt;  // a number
    stale.kind = "unmapped";
    stale.cause = std::uint64_t{use.key.function.index()} << 32 | use.key.word;
    stale.why = "in no memory that the process has allocated";
    // Module globals and memory of other processes are not on the timeline: an argument that is always outside is such a case.
    stale.confidence = inside > 0 && outside <= inside ? engine::Confidence::likely : engine::Confidence::possible;
    return stale;
  }

  // Whether a caching allocator may hold freed memory: a framework that has one, Python (whose frameworks all have one), or several
  // addresses within large allocations.
  // Of a graph that was captured after the last look at the allocator nothing is known, although the recording promised it: whoever
  // recorded was stopped.
  [[nodiscard]] bool state_unknown(const ir::Recording& recording) const {
    if (!state_expected_ && recording.allocator_blocks.empty()) return could_hide(recording);
    const bool torn = std::any_of(recording.losses.begin(), recording.losses.end(), [](const ir::Loss& loss) { return loss.severity != ir::Loss::Severity::info; });
    return torn && std::any_of(graphs_.begin(), graphs_.end(), [&](const SeenGraph& graph) {
             const auto moments = snapshots_.find(graph.process);
             return moments == snapshots_.end() || moments->second.back() <= graph.end_sequence;
           });
  }

  [[nodiscard]] bool could_hide(const ir::Recording& recording) const {
    if (from_python_) return true;
    for (const ir::Process& process : recording.processes)
      if (!recording.text(process.framework).empty()) return true;
    const auto ids = recording.allocations.ids();
    return std::any_of(ids.begin(), ids.end(), [&](AllocationId id) {
      if (id.index() >= memory_.size() || memory_[id.index()].address != kSeveral) return false;
      const ir::Allocation& row = recording.allocations[id];
      return row.size_bytes >= std::uint64_t{2} << 20 && row.kind != ir::Allocation::Kind::host_registered;
    });
  }

  static std::string what(const engine::RecordingContext& context, const Use& use) {
    if (use.key.function.is_valid()) {
      const analysis::KernelIdentity& identity = context.identities.of(use.key.function);
      return fmt::format("{} of {}", argument_name(identity, use.slot, use.offset_bytes), identity.short_name);
    }
    return fmt::format("the {} of a {}", use.slot == kCopySource ? "source" : "target", use.nodes.empty() ? "copy" : ir::node_kind_name(use.nodes.front().kind));
  }

  void report(const engine::RecordingContext& context, engine::FindingSink& sink, const std::vector<const Use*>& uses, const Stale& stale) const {
    const Use& first = *uses.front();
    const SeenGraph& graph = graphs_[stale.graph];
    engine::Finding finding = graph.finding;
    finding.severity = kInfo.severity;
    finding.confidence = stale.confidence;
    finding.rests_on = {Fact::nodes, first.key.function.is_valid() ? Fact::kernel_params : Fact::copy_params, stale.fact};
    finding.graph_instances += stale.graphs - 1;
    for (std::size_t i = 1; i < first.graphs.size() && finding.also_in.size() < 5; ++i) finding.also_in.push_back(graphs_[first.graphs[i]].finding.graph_name);
    std::set<std::pair<ir::FunctionId, std::uint32_t>> holders;
    for (const Use* use : uses) holders.emplace(use->key.function, use->key.word);
    const std::string subject = holders.size() == 1 ? what(context, first) + " points" : fmt::format("{} and {} point", what(context, first), base::count_of(holders.size() - 1, "other argument"));
    if (stale.kind == "unmapped") finding.message = fmt::format("{} to an address {}", subject, stale.why);
    else finding.message = fmt::format("{} into memory that was {}{}", subject, stale.why, stale.reused ? "; it has been handed out again" : "");
    std::vector<std::pair<const Use*, const Node*>> places;
    for (const Use* use : uses)
      for (const Node& node : use->nodes) places.emplace_back(use, &node);
    std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.second->id < b.second->id; });
    finding.evidence = {{"addresses", static_cast<std::int64_t>(uses.size())}, {"nodes", static_cast<std::int64_t>(places.size())}, {"handed_out_again", stale.reused}};
    if (context.recording.allocations.contains(first.key.allocation))
      finding.evidence.emplace_back("allocation_bytes", static_cast<std::int64_t>(std::min<std::uint64_t>(context.recording.allocations[first.key.allocation].size_bytes, std::numeric_limits<std::int64_t>::max())));
    const auto entity = [&](const Use& use, const Node& node) {
      engine::Entity result;
      result.id = node.id.index();
      result.source_id = node.source_id;
      result.label = use.key.function.is_valid() ? context.identities.of(use.key.function).short_name : std::string(ir::node_kind_name(node.kind));
      result.role = "holds the address";
      result.layer = node.layer;
      return result;
    };
    set_occurrences(finding, places, [&](const auto& place) { return engine::Occurrence{place.second->layer, {entity(*place.first, *place.second)}}; });
    if (!first.nodes.empty()) finding.primary = {entity(first, first.nodes.front())};
    finding.sources = sources_of(context.recording, first.stack, "launch");
    for (engine::SourceLocation& place : sources_of(context.recording, stale.freed_at, "freed here")) finding.sources.push_back(std::move(place));
    if (context.recording.allocations.contains(first.key.allocation))
      for (engine::SourceLocation& place : sources_of(context.recording, context.recording.allocations[first.key.allocation].alloc_stack, "allocated here"))
        finding.sources.push_back(std::move(place));
    finding.fix.text =
        "allocate the buffer before the capture and keep a reference as long as the graph lives; size buffers that grow for the largest graph before the first "
        "capture; copy new weights into the old storage; if the address must change, capture again";
    finding.threads = {"vllm-project/vllm#46067", "vllm-project/vllm#45487", "flashinfer-ai/flashinfer#4553"};
    const std::string name = first.key.function.is_valid() ? context.identities.of(first.key.function).normalised : "copy";
    sink.report(std::move(finding), fmt::format("{}:{}+{}:{}", name, first.slot, first.offset_bytes, stale.kind));
  }

  WordHistory history_;
  std::vector<SeenGraph> graphs_;
  std::unordered_map<ir::GraphId, std::uint32_t> index_of_graph_;
  std::vector<Use> uses_;
  std::unordered_map<UseKey, std::uint32_t, UseHash> use_index_;
  std::vector<Memory> memory_;                      // by allocation
  std::vector<AllocationId> used_;                  // by the graph that is looked at, each once
  std::map<std::pair<ir::FunctionId, std::uint32_t>, std::size_t> outside_;  // addresses outside known memory
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> anywhere_;  // by function and word: inside, outside known memory
  bool state_expected_ = false, from_python_ = false;
  std::uint64_t last_sequence_ = 0;  // something happened in the process as late as this

  std::map<ir::ProcessId, Ranges<AllocationId>> allocations_;
  std::map<std::pair<ir::ProcessId, std::uint64_t>, Ranges<const ir::AllocatorBlock*>> blocks_;
  std::map<ir::ProcessId, std::vector<std::uint64_t>> snapshots_;  // ascending
  std::map<std::uint32_t, Life> lives_;  // of graphs whose launches and end were watched
};

class StaleAddress final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_stale_address() { return std::make_unique<StaleAddress>(); }

}  // namespace cglint::rules
