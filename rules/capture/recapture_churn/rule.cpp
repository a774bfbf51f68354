// The same graph is captured and instantiated again and again, or updates of its executable fail.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "rules/common/allocation_set.h"
#include "rules/common/describe.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::kernel_params, Fact::capture_status}};
constexpr std::array<engine::RuleOption, 2> kOptions = {{
    {engine::RuleOption::Type::integer, "min_captures", "3", "captures of one graph that are reported", 2, 1e6},
    {engine::RuleOption::Type::integer, "min_failed_updates", "2", "refused updates of one executable that are reported", 1, 1e6},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG804",
    .slug = "recapture-churn",
    .family = "capture",
    .summary = "The same graph is captured and instantiated again and again, or updates of its executable fail.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::graph_key, Fact::instantiate_info, Fact::source_frames},
    .options = kOptions,
};

// One capture.
struct Capture {
  std::uint64_t begin = 0;
  std::uint64_t gone = 0;            // destroyed, or memory that it uses was freed; 0: not known
  std::uint64_t launched = 0;        // last; 0: not known
  std::uint32_t count = 1;           // captures of which nothing else is known count together
  std::int64_t instantiate_ns = 0;
};

// Captures of one key and one content, or of one key and one structure.
struct Group {
  engine::Finding finding;           // names the first
  std::string basis;
  ir::StackId begin_stack;
  bool has_key = false;
  std::vector<Capture> captures;
  std::vector<ir::GraphId> members;
};

std::string key_of(const ir::Recording& recording, const ir::GraphInfo& info) {
  const std::string_view text = recording.text(info.key);
  if (text.empty() && info.batch_size < 0) return {};
  return fmt::format("{}|{}", text, info.batch_size);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ hash >> 29;
}

// Kernels, launch configurations and edges, without arguments.
std::uint64_t structure_of(const ir::Graph& graph) {
  std::uint64_t hash = graph.node_count();
  for (const NodeId node : graph.nodes()) {
    const ir::KernelNode* const kernel = graph.kernel(node);
    hash = mix(hash, static_cast<std::uint64_t>(graph.kind[node]));
    if (kernel != nullptr) hash = mix(mix(mix(hash, kernel->function.index()), kernel->grid.count()), kernel->block.count());
  }
  for (const ir::EdgeId edge : graph.edges()) hash = mix(hash, std::uint64_t{graph.edge_from[edge].index()} << 32 | graph.edge_to[edge].index());
  return hash;
}

// What else tells captures of one structure apart.
struct Content {
  // The structure with arguments, copies, streams and stacks; the moments and ids that differ from capture to capture left out.
  std::uint64_t all = 0;
  // The structure and the memory that it works on: no numbers, no memory that was allocated while it was captured. 0: it knows none.
  std::uint64_t work = 0;
  AllocationSet memory;  // that kernels are given
};

// All in one pass: most of a graph is its arguments.
class ContentReader {
 public:
  Content read(const ir::Recording& recording, const ir::Graph& graph, std::uint64_t structure) {
    Content content{structure, structure, {}};
    bool has_memory = false;
    memory_.clear();
    if (last_seen_.size() < recording.allocations.size()) last_seen_.resize(recording.allocations.size(), 0);
    ++now_;
    const auto add_work = [&](ir::AllocationId id, std::uint64_t address, std::uint64_t place) {
      if (!recording.allocations.contains(id)) return;
      if (graph.info.begin_sequence != 0 && recording.allocations[id].alloc_sequence >= graph.info.begin_sequence) return;
      content.work = mix(mix(content.work, address), place);
      has_memory = true;
    };
    for (const NodeId node : graph.nodes()) {
      if (!graph.capture_stream.empty()) content.all = mix(content.all, graph.capture_stream[node].index());
      if (!graph.stack.empty()) content.all = mix(content.all, graph.stack[node].index());
      if (const ir::KernelNode* const kernel = graph.kernel(node)) {
        std::uint32_t place = 0;
        for (const ir::ParamWord& word : graph.params_of(*kernel)) {
          content.all = mix(mix(content.all, word.value), word.allocation.index());
          ++place;
          if (!word.allocation.is_valid()) continue;
          add_work(word.allocation, word.value, std::uint64_t{node.index()} << 16 | place);
          if (last_seen_.size() <= word.allocation.index()) last_seen_.resize(std::size_t{word.allocation.index()} + 1, 0);
          if (std::exchange(last_seen_[word.allocation.index()], now_) != now_) memory_.push_back(word.allocation);
        }
      } else if (const ir::MemcpyNode* const copy = graph.memcpy(node)) {
        content.all = mix(mix(mix(content.all, copy->src), copy->dst), copy->bytes());
        add_work(copy->src_allocation, copy->src, std::uint64_t{node.index()} << 16);
        add_work(copy->dst_allocation, copy->dst, std::uint64_t{node.index()} << 16 | 1);
      } else if (const ir::MemsetNode* const fill = graph.memset(node)) {
        content.all = mix(mix(mix(content.all, fill->dst), fill->bytes()), fill->value);
        add_work(fill->dst_allocation, fill->dst, std::uint64_t{node.index()} << 16);
      } else if (graph.kind[node] == ir::NodeKind::child_graph || graph.kind[node] == ir::NodeKind::conditional) {
        content.all = mix(content.all, node.index());
      }
    }
    if (!has_memory) content.work = 0;
    content.memory = AllocationSet(memory_);
    return content;
  }

 private:
  std::vector<std::uint32_t> last_seen_;  // by allocation: the number of the graph that was last to use it
  std::uint32_t now_ = 0;
  std::vector<ir::AllocationId> memory_;
};

// Each kernel once, in the order of its first node: a file holds thousands of graphs of thousands of nodes.
std::string kernels_of(const engine::GraphContext& context) {
  std::vector<bool> seen;
  std::vector<NodeId> firsts;
  for (const NodeId node : context.graph.nodes()) {
    const ir::KernelNode* const kernel = context.graph.kernel(node);
    if (kernel == nullptr || !kernel->function.is_valid()) continue;
    if (seen.size() <= kernel->function.index()) seen.resize(std::size_t{kernel->function.index()} + 1);
    if (!seen[kernel->function.index()]) firsts.push_back(node);
    seen[kernel->function.index()] = true;
  }
  return stable_sequence(context, firsts);
}

class Check final : public engine::RecordingCheck {
 public:
  void see(const engine::GraphContext& context) override {
    const ir::Graph& graph = context.graph;
    if (graph.info.role == ir::GraphRole::body || graph.info.role == ir::GraphRole::eager || graph.node_count() == 0) return;
    const std::uint64_t structure = structure_of(graph);
    Content read = reader_.read(context.recording, graph, structure);
    const std::uint64_t content = read.all, work = read.work;
    content_.emplace(context.graph_id, content);
    memory_[context.graph_id] = std::move(read.memory);
    add(context, graph.info, structure, content, work, 0, own_count(graph));
    for (std::size_t i = 0; i < graph.instance_infos.size(); ++i)
      add(context, graph.instance_infos[i], structure, content, work, static_cast<std::uint32_t>(i + 1), std::max(1U, graph.instance_infos[i].instances));
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    // Equal graphs that came after the graph itself was dropped.
    for (const ir::LateInstance& late : context.recording.late_instances) {
      const auto content = content_.find(late.of);
      if (content == content_.end()) continue;
      const auto group = equal_.find({content->second, late.info.process, key_of(context.recording, late.info)});
      if (group != equal_.end()) group->second.captures.push_back({late.info.begin_sequence, 0, 0, std::max(1U, late.info.instances), late.info.instantiate_ns});
    }
    std::map<std::pair<ir::GraphId, std::uint32_t>, const ir::ExecutableUse*> uses;
    for (const ir::ExecutableUse& use : context.recording.executable_uses) uses[{use.graph, use.instance}] = &use;
    for (const auto& [place, where] : captures_) {
      Capture& capture = where.first->captures[where.second];
      if (const auto use = uses.find(place); use != uses.end()) {
        capture.gone = use->second->destroyed_sequence;
        capture.launched = use->second->last_launch_sequence;
      }
      if (capture.gone != 0 || place.second != 0) continue;
      // A graph whose memory was freed is not launched any more, one hopes (CG302 looks at that).
      memory_[place.first].for_each([&](ir::AllocationId id) {
        if (!context.recording.allocations.contains(id)) return;
        const std::uint64_t freed = context.recording.allocations[id].free_sequence;
        if (freed > capture.begin && (capture.gone == 0 || freed < capture.gone)) capture.gone = freed;
      });
    }

    const auto least = static_cast<std::uint64_t>(context.config.integer(kInfo, "min_captures"));
    std::set<ir::GraphId> reported;
    for (auto& [key, group] : equal_) {
      const std::uint64_t captures = total(group);
      if (captures < least) continue;
      reported.insert(group.members.begin(), group.members.end());
      report(context, sink, group, captures, group.has_key ? engine::Confidence::certain : engine::Confidence::likely,
             fmt::format("captured {} times with equal nodes, edges, arguments and streams{}", captures, group.has_key ? " under one key" : ""),
             "keep the instantiated graph and launch it again: the cache misses although nothing changed (look at what its key is made of, and at code that drops "
             "the cache)", "equal");
    }
    for (auto& [key, group] : similar_) {
      // Pieces of one model that live side by side are not churn: it counts how often each that lived was replaced.
      const std::uint64_t captures = total(group), together = most_alive(group);
      if (captures / together < least || std::all_of(group.members.begin(), group.members.end(), [&](ir::GraphId id) { return reported.contains(id); })) continue;
      reported.insert(group.members.begin(), group.members.end());
      report(context, sink, group, captures, engine::Confidence::likely,
             fmt::format("captured {} times{}, of which {} lived at the same time: same kernels and edges, other arguments", captures,
                         group.has_key ? " under one key" : "", together == 1 ? std::string("no two") : fmt::format("at most {}", together)),
             "find the argument that changes (an input that moves, a count passed by value): copy into a fixed buffer, or update the executable "
             "(cudaGraphExecUpdate, cudaGraphExecKernelNodeSetParams) instead of capturing again", "similar");
    }
    // The same work on the same memory, each graph launched after its capture and not once after the next one: kept, and of no use.
    for (auto& [key, group] : worked_) {
      const std::uint64_t captures = total(group);
      if (captures < 2 * least || !each_replaces_the_last(group)) continue;
      if (std::any_of(group.members.begin(), group.members.end(), [&](ir::GraphId id) { return reported.contains(id); })) continue;
      report(context, sink, group, captures, engine::Confidence::likely,
             fmt::format("captured {} times, same kernels and edges on the same memory; none was launched again after the next capture", captures),
             "key the cache by what changes the graph (shapes, not objects), and pass counts through a fixed buffer instead of by value", "unused");
    }
    const auto least_failed = static_cast<std::uint64_t>(context.config.integer(kInfo, "min_failed_updates"));
    // After a refused update the executable is often made anew: those captured at one place count together.
    struct Refused {
      const Group* group = nullptr;
      std::uint64_t updates = 0, executables = 0;
    };
    std::map<std::pair<ir::StackId, const Group*>, Refused> refused;  // by place, or by group where it is not known
    for (const ir::ExecutableUse& use : context.recording.executable_uses) {
      const auto group = named_.find(use.graph);
      if (use.failed_updates == 0 || group == named_.end()) continue;
      const ir::StackId place = group->second->begin_stack;
      Refused& entry = refused[{place, place.is_valid() ? nullptr : group->second}];
      if (entry.group == nullptr) entry.group = group->second;
      entry.updates += use.failed_updates;
      ++entry.executables;
    }
    for (const auto& [place, entry] : refused) {
      if (entry.updates < least_failed) continue;
      report(context, sink, *entry.group, entry.updates, engine::Confidence::certain,
             fmt::format("{} updates of {} were refused by the driver; after each the graph has to be instantiated again", entry.updates,
                         entry.executables == 1 ? std::string("the executable") : fmt::format("{} executables captured at this place", entry.executables)),
             "an update needs the same nodes and edges in the same order: pad to fixed shapes, keep one executable per shape, and do not change a kernel's function or "
             "context between captures", "updates");
    }
  }

 private:
  using EqualKey = std::tuple<std::uint64_t, ir::ProcessId, std::string>;
  using SimilarKey = std::tuple<std::uint64_t, ir::ProcessId, std::string>;

  static std::uint32_t own_count(const ir::Graph& graph) {
    std::uint64_t others = 0;
    for (const ir::GraphInfo& info : graph.instance_infos) others += std::max(1U, info.instances);
    return graph.info.instances > others ? static_cast<std::uint32_t>(graph.info.instances - others) : 1;
  }

  static bool each_replaces_the_last(const Group& group) {
    std::vector<const Capture*> captures;
    for (const Capture& capture : group.captures) captures.push_back(&capture);
    std::sort(captures.begin(), captures.end(), [](const Capture* a, const Capture* b) { return a->begin < b->begin; });
    for (std::size_t i = 0; i < captures.size(); ++i) {
      if (captures[i]->begin == 0 || captures[i]->launched == 0) return false;
      if (i + 1 < captures.size() && captures[i]->launched >= captures[i + 1]->begin) return false;
    }
    return true;
  }

  static std::uint64_t most_alive(const Group& group) {
    std::map<std::uint64_t, std::int64_t> changes;  // at a moment; ends before begins
    for (const Capture& capture : group.captures) {
      changes[2 * capture.begin + 1] += capture.count;
      if (capture.gone != 0) changes[2 * capture.gone] -= capture.count;
    }
    std::int64_t alive = 0, most = 1;
    for (const auto& [moment, change] : changes) most = std::max(most, alive += change);
    return static_cast<std::uint64_t>(most);
  }

  void add(const engine::GraphContext& context, const ir::GraphInfo& info, std::uint64_t structure, std::uint64_t content, std::uint64_t work, std::uint32_t instance, std::uint32_t count) {
    const std::string key = key_of(context.recording, info);
    std::string basis;
    const auto make = [&](Group& group) {
      if (group.members.empty() || group.members.back() != context.graph_id) group.members.push_back(context.graph_id);
      if (!group.captures.empty()) {
        if (instance == 0) ++group.finding.graph_instances;
        return;
      }
      engine::name_graph(group.finding, context);
      group.has_key = !key.empty();
      if (basis.empty()) basis = kernels_of(context);
      group.basis = basis;
      for (const ir::SyncOp& op : context.graph.sync_ops)
        if (op.kind == ir::SyncOp::Kind::begin_capture && !group.begin_stack.is_valid()) group.begin_stack = op.stack;
      if (!group.begin_stack.is_valid() && !context.graph.stack.empty()) group.begin_stack = context.graph.stack[NodeId(0)];
    };
    Group& equal = equal_[{content, info.process, key}];
    make(equal);
    equal.captures.push_back({info.begin_sequence, 0, 0, count, info.instantiate_ns});
    captures_.insert({{context.graph_id, instance}, {&equal, equal.captures.size() - 1}});
    if (instance == 0) named_[context.graph_id] = &equal;
    Group& similar = similar_[{structure, info.process, key}];
    make(similar);
    similar.captures.push_back({info.begin_sequence, 0, 0, count, info.instantiate_ns});
    captures_.insert({{context.graph_id, instance}, {&similar, similar.captures.size() - 1}});
    if (work == 0) return;
    Group& worked = worked_[{work, info.process, key}];
    make(worked);
    worked.captures.push_back({info.begin_sequence, 0, 0, count, info.instantiate_ns});
    captures_.insert({{context.graph_id, instance}, {&worked, worked.captures.size() - 1}});
  }

  static std::uint64_t total(const Group& group) {
    std::uint64_t sum = 0;
    for (const Capture& capture : group.captures) sum += capture.count;
    return sum;
  }

  static void report(const engine::RecordingContext& context, engine::FindingSink& sink, const Group& group, std::uint64_t times, engine::Confidence confidence,
                     std::string message, std::string_view fix, std::string_view kind) {
    engine::Finding finding = group.finding;
    finding.severity = kInfo.severity;
    finding.confidence = confidence;
    finding.rests_on = {Fact::nodes, Fact::kernel_params};
    finding.message = std::move(message);
    finding.evidence = {{kind == "updates" ? "failed_updates" : "captures", static_cast<std::int64_t>(times)}};
    std::int64_t spent = 0;
    for (const Capture& capture : group.captures) spent += capture.instantiate_ns;
    if (spent > 0) finding.evidence.emplace_back("instantiate_ms", static_cast<double>(spent) / 1e6);
    finding.sources = sources_of(context.recording, group.begin_stack, "capture");
    finding.fix.text = fix;
    finding.threads = {"ggml-org/llama.cpp#28652", "ggml-org/llama.cpp#19345", "ggml-org/llama.cpp#19754"};
    sink.report(std::move(finding), fmt::format("{}|{}", kind, group.basis));
  }

  // Maps, whose elements stay where they are.
  std::map<EqualKey, Group> equal_;
  std::map<SimilarKey, Group> similar_;
  std::map<SimilarKey, Group> worked_;
  std::multimap<std::pair<ir::GraphId, std::uint32_t>, std::pair<Group*, std::size_t>> captures_;  // by graph and instance
  std::map<ir::GraphId, const Group*> named_;
  std::map<ir::GraphId, std::uint64_t> content_;
  std::map<ir::GraphId, AllocationSet> memory_;
  ContentReader reader_;
};

class RecaptureChurn final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_recapture_churn() { return std::make_unique<RecaptureChurn>(); }

}  // namespace cglint::rules
