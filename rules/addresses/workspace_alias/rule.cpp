// Two graphs use the same memory as scratch or hand-over, and nothing keeps one from destroying what the other needs.
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

#include "base/text.h"
#include "rules/common/arguments.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using analysis::AccessMode;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 2> kNeeds = {ir::FactSet{Fact::nodes, Fact::kernel_params, Fact::allocations, Fact::allocator_state},
                                               ir::FactSet{Fact::nodes, Fact::kernel_params, Fact::allocations, Fact::replay_times}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG303",
    .slug = "workspace-alias",
    .family = "addresses",
    .summary = "Two graphs use the same memory as scratch or hand-over, and nothing keeps one from destroying what the other needs.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edges, Fact::replay_streams, Fact::measured_access, Fact::source_frames},
};

constexpr std::size_t kMaxPairs = 4096;        // of graphs that ran at the same time
constexpr std::size_t kMaxRows = 20'000'000;   // memory accesses that are kept; beyond, graphs are not compared

// One access of a node, in order of the graph.
struct Row {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t start = 0;           // of the access as the kernel was given it: the argument's value
  std::uint32_t place = 0;           // topological position
  NodeId node;
  ir::FunctionId function;
  ir::NodeKind kind = ir::NodeKind::kernel;
  std::uint16_t slot = analysis::Access::kNoSlot, offset_bytes = 0;
  AccessMode mode = AccessMode::unknown;
  bool exact = false;
  bool looks_written = false;        // by its type, see analysis::Access
  std::uint32_t word = kNoWord;      // of the kernel's arguments
  static constexpr std::uint32_t kNoWord = ~std::uint32_t{0};
  [[nodiscard]] bool may_write() const { return mode != AccessMode::read && mode != AccessMode::none; }
  [[nodiscard]] bool writes() const { return mode == AccessMode::write || mode == AccessMode::read_write; }
  [[nodiscard]] bool reads() const { return mode == AccessMode::read || mode == AccessMode::read_write; }
};

struct Span {
  std::int64_t start = 0, end = 0;
  std::uint64_t stream = 0;
  bool has_stream = false;
};

struct SeenGraph {
  engine::Finding finding;
  ir::ProcessId process;
  std::uint64_t begin_sequence = 0, end_sequence = 0;  // of the capture
  std::uint32_t instances = 1;
  std::uint64_t gone = std::numeric_limits<std::uint64_t>::max();  // from this moment it cannot be launched
  std::vector<Row> rows;             // by begin
  std::vector<std::uint64_t> reach;  // per row: the largest end up to there
  std::vector<Span> launches;
  base::IdVector<NodeId, ir::StackId> stacks;  // of the graph
  ir::StringId home;                 // the private pool that most of its addresses lie in; empty: none
};

class Check final : public engine::RecordingCheck {
 public:
  void see(const engine::GraphContext& context) override {
    const ir::Graph& graph = context.graph;
    history_.see(graph, context.analyses.argument_words());
    if (graph.info.role == ir::GraphRole::eager || graph.info.role == ir::GraphRole::body || graph.node_count() == 0) return;
    if (!graph.facts.contains(Fact::allocator_state)) state_missing_ = true;
    // Nothing to compare it by: no pools, and it was not launched.
    if (!graph.facts.contains(Fact::allocator_state) && graph.replays.empty()) return;
    const analysis::AccessTable& table = context.analyses.access_table();
    if (row_count_ + table.rows().size() > kMaxRows) {
      ++left_out_;
      return;
    }
    SeenGraph seen;
    engine::name_graph(seen.finding, context);
    seen.process = graph.info.process;
    seen.begin_sequence = graph.info.begin_sequence;
    seen.end_sequence = graph.info.end_sequence;
    seen.instances = graph.info.instances;
    const bool ordered = graph.facts.contains(Fact::edges);
    for (const analysis::Access& access : table.rows()) {
      Row row;
      row.begin = row.start = access.begin;
      row.end = access.end;
      row.node = access.node;
      row.place = ordered ? context.analyses.topology().position[access.node] : access.node.index();
      if (const ir::KernelNode* const kernel = graph.kernel(access.node)) {
        row.function = kernel->function;
        const auto words = graph.params_of(*kernel);
        for (std::size_t i = 0; i < words.size() && access.slot != analysis::Access::kNoSlot; ++i)
          if (words[i].slot == access.slot && words[i].offset_bytes == access.offset_bytes) row.word = static_cast<std::uint32_t>(i);
      }
      row.kind = graph.kind[access.node];
      row.slot = access.slot;
      row.offset_bytes = access.offset_bytes;
      row.mode = access.mode;
      row.exact = access.exact();
      row.looks_written = access.looks_written;
      seen.rows.push_back(row);
    }
    seen.stacks = graph.stack;
    std::sort(seen.rows.begin(), seen.rows.end(), [](const Row& a, const Row& b) { return std::tuple(a.begin, a.end, a.place, a.slot) < std::tuple(b.begin, b.end, b.place, b.slot); });
    if (graph.facts.contains(Fact::replay_times))
      for (const ir::Replay& replay : graph.replays) {
        Span span{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), replay.launch_stream, replay.has_launch_stream};
        for (const ir::ReplayOp& op : graph.ops(replay)) {
          span.start = std::min(span.start, op.start_ns);
          span.end = std::max(span.end, op.end_ns);
        }
        if (span.start < span.end) seen.launches.push_back(span);
      }
    row_count_ += seen.rows.size();
    index_of_graph_.emplace(context.graph_id, graphs_.size());
    graphs_.push_back(std::move(seen));
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    drop_what_may_be_padding(context);
    end_lives(context.recording);
    concurrent(context, sink);
    if (!context.recording.allocator_blocks.empty()) {
      read_snapshots(context.recording);
      for (SeenGraph& graph : graphs_) graph.home = home_of(graph);
      foreign_scratch(context, sink);
      if (const std::size_t graphs = unheld_input(context, sink); graphs > 0)
        sink.not_checked({Fact::measured_access},
                         fmt::format("kernels without a signature do not tell what they read and what they write: whether {} read{} from the shared pool what nobody holds any more is not known",
                                     base::count_of(graphs, "graph"), graphs == 1 ? "s" : ""));
    }
    if (state_missing_ && context.recording.allocator_blocks.empty())
      sink.not_checked({Fact::allocator_state}, "allocator state unknown: which pool memory belongs to, and whether anybody holds it, is not known; graphs that ran at the same time were compared");
    if (left_out_ > 0) sink.not_checked({}, fmt::format("{} with more memory accesses than can be compared", base::count_of(left_out_, "graph")));
  }

 private:
  // Padding of structs that are passed by value often holds addresses, which the kernel never looks at.
  void drop_what_may_be_padding(const engine::RecordingContext& context) {
    for (SeenGraph& graph : graphs_) {
      std::erase_if(graph.rows, [&](const Row& row) {
        return row.word != Row::kNoWord && !history_.is_pointer(context.recording, context.identities.of(row.function), row.function, row.word);
      });
      std::uint64_t reach = 0;
      for (const Row& row : graph.rows) graph.reach.push_back(reach = std::max(reach, row.end));
    }
  }

  void end_lives(const ir::Recording& recording) {
    std::map<std::size_t, std::pair<std::uint32_t, std::uint64_t>> destroyed;  // graph -> executables, the last one's end
    for (const ir::ExecutableUse& use : recording.executable_uses) {
      const auto graph = index_of_graph_.find(use.graph);
      if (graph == index_of_graph_.end() || use.destroyed_sequence == 0) continue;
      auto& [count, last] = destroyed[graph->second];
      ++count;
      last = std::max(last, use.destroyed_sequence);
    }
    for (const auto& [graph, end] : destroyed)
      if (end.first >= graphs_[graph].instances) graphs_[graph].gone = end.second;
  }
  // Whether both could be launched at some moment.
  static bool live_together(const SeenGraph& a, const SeenGraph& b) { return a.begin_sequence < b.gone && b.begin_sequence < a.gone; }

  // --- graphs that ran at the same time ---
  void concurrent(const engine::RecordingContext& context, engine::FindingSink& sink) const {
    struct Event {
      Span span;
      std::size_t graph;
    };
    std::vector<Event> events;
    for (std::size_t i = 0; i < graphs_.size(); ++i)
      for (const Span& span : graphs_[i].launches) events.push_back({span, i});
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return std::tuple(a.span.start, a.span.end, a.graph) < std::tuple(b.span.start, b.span.end, b.graph); });
    std::map<std::pair<std::size_t, std::size_t>, std::uint32_t> pairs;  // -> launches that overlapped
    std::vector<Event> open;
    for (const Event& event : events) {
      std::erase_if(open, [&](const Event& other) { return other.span.end <= event.span.start; });
      for (const Event& other : open) {
        if (other.graph == event.graph || graphs_[other.graph].process != graphs_[event.graph].process || pairs.size() >= kMaxPairs) continue;
        // One stream orders its launches; times that touch are rounding.
        if (other.span.has_stream && event.span.has_stream && other.span.stream == event.span.stream) continue;
        ++pairs[std::minmax(other.graph, event.graph)];
      }
      open.push_back(event);
    }
    for (const auto& [pair, launches] : pairs) {
      const SeenGraph& a = graphs_[pair.first];
      const SeenGraph& b = graphs_[pair.second];
      const auto conflict = strongest_conflict(a, b);
      if (!conflict) continue;
      const auto& [x, y, confidence] = *conflict;
      engine::Finding finding = start(a, confidence);
      finding.rests_on.insert(Fact::replay_times);
      finding.also_in = {b.finding.graph_name};
      finding.message = fmt::format("runs at the same time as graph {} ({} overlapped), and {} {} memory that {} of the other graph {}", b.finding.graph_name,
                                    base::count_of(launches, "launch", "launches"), label(context, *x), x->may_write() ? (x->writes() || x->looks_written ? "writes" : "may write") : "reads",
                                    label(context, *y), y->may_write() ? (y->writes() || y->looks_written ? "writes" : "may write") : "reads");
      describe(context, finding, a, *x, "in this graph");
      describe(context, finding, b, *y, "in the other graph");
      finding.fix.text =
          "give each graph that can run beside others a workspace of its own (a workspace keyed by stream is shared by all graphs captured on that stream), or "
          "let one launch wait for the other";
      sink.report(std::move(finding), "concurrent|" + basis(context, *x) + "|" + basis(context, *y));
    }
  }

  using Conflict = std::tuple<const Row*, const Row*, engine::Confidence>;
  static std::optional<Conflict> strongest_conflict(const SeenGraph& a, const SeenGraph& b) {
    constexpr std::size_t kLookedAt = 256;  // rows for one row: many that share memory say no more than the first
    std::optional<Conflict> best;
    const auto consider = [&](const Row& x, const Row& y) {
      if (!x.may_write() && !y.may_write()) return;
      const bool known = (x.writes() && y.mode != AccessMode::unknown) || (y.writes() && x.mode != AccessMode::unknown);
      // Not where both only look written and begin at different bytes: those are two parts of one buffer.
      const auto uses = [](const Row& row) { return row.mode != AccessMode::unknown || row.looks_written; };
      const bool by_type = x.start == y.start && uses(x) && uses(y) && (x.writes() || x.looks_written || y.writes() || y.looks_written);
      const engine::Confidence confidence = known ? x.exact && y.exact ? engine::Confidence::certain : engine::Confidence::likely
                                            : by_type ? engine::Confidence::likely : engine::Confidence::possible;
      if (!best || confidence > std::get<2>(*best)) best = Conflict{&x, &y, confidence};
    };
    // Ranges that are only bounded must begin at the same byte: two tensors of one block lie behind each other.
    for (std::size_t i = 0, j = 0; i < a.rows.size() && j < b.rows.size();) {
      if (a.rows[i].begin != b.rows[j].begin) {
        a.rows[i].begin < b.rows[j].begin ? ++i : ++j;
        continue;
      }
      const std::uint64_t begin = a.rows[i].begin;
      std::size_t i_end = i, j_end = j;
      while (i_end < a.rows.size() && a.rows[i_end].begin == begin) ++i_end;
      while (j_end < b.rows.size() && b.rows[j_end].begin == begin) ++j_end;
      for (std::size_t x = i; x < std::min(i_end, i + kLookedAt); ++x)
        for (std::size_t y = j; y < std::min(j_end, j + kLookedAt); ++y) consider(a.rows[x], b.rows[y]);
      i = i_end;
      j = j_end;
      if (best && std::get<2>(*best) == engine::Confidence::certain) return best;
    }
    // Exact ranges may overlap anywhere.
    std::vector<const Row*> exact;
    std::uint64_t longest = 0;
    for (const Row& row : b.rows) {
      if (!row.exact) continue;
      exact.push_back(&row);
      longest = std::max(longest, row.end - row.begin);
    }
    for (const Row& x : a.rows) {
      if (!x.exact || exact.empty()) continue;
      const std::uint64_t from = x.begin > longest ? x.begin - longest : 0;
      auto y = std::lower_bound(exact.begin(), exact.end(), from, [](const Row* row, std::uint64_t value) { return row->begin < value; });
      for (std::size_t looked = 0; y != exact.end() && (*y)->begin < x.end && looked < kLookedAt; ++y, ++looked)
        if ((*y)->end > x.begin) consider(x, **y);
      if (best && std::get<2>(*best) == engine::Confidence::certain) return best;
    }
    return best;
  }

  // --- pools ---
  struct Block {
    std::uint64_t end = 0;
    const ir::AllocatorBlock* row = nullptr;
  };

  using Blocks = std::map<std::uint64_t, Block>;  // by base

  void read_snapshots(const ir::Recording& recording) {
    for (const ir::AllocatorBlock& block : recording.allocator_blocks)
      if (block.size_bytes > 0) snapshots_[block.process][block.sequence][block.base] = {block.base + block.size_bytes, &block};
  }
  // The state of memory that `sequence` was followed by: pools are handed out anew when graphs are destroyed. The end of the recording
  // where there is none.
  [[nodiscard]] const Blocks* blocks_after(ir::ProcessId process, std::uint64_t sequence) const {
    const auto moments = snapshots_.find(process);
    if (moments == snapshots_.end()) return nullptr;
    const auto next = moments->second.upper_bound(sequence);
    return next == moments->second.end() ? &moments->second.rbegin()->second : &next->second;
  }
  static const ir::AllocatorBlock* block_of(const Blocks* blocks, std::uint64_t address) {
    if (blocks == nullptr) return nullptr;
    auto it = blocks->upper_bound(address);
    if (it == blocks->begin()) return nullptr;
    --it;
    return address < it->second.end ? it->second.row : nullptr;
  }

  [[nodiscard]] ir::StringId home_of(const SeenGraph& graph) const {
    std::map<ir::StringId, std::size_t> votes;
    std::uint64_t previous = 0;
    const Blocks* const blocks = blocks_after(graph.process, graph.end_sequence);
    for (const Row& row : graph.rows) {
      if (row.start == previous) continue;
      previous = row.start;
      const ir::AllocatorBlock* const block = block_of(blocks, row.start);
      if (block != nullptr && block->pool != ir::kEmptyString) ++votes[block->pool];
    }
    ir::StringId best = ir::kEmptyString;
    std::size_t most = 0;
    bool tie = false;
    for (const auto& [pool, count] : votes) {
      tie = count == most || (count < most && tie);
      if (count > most) most = count, best = pool, tie = false;
    }
    return tie ? ir::kEmptyString : best;
  }

  // The same argument of the same kernel, with the same address, in graphs of different private pools: a workspace that belongs to one of them.
  void foreign_scratch(const engine::RecordingContext& context, engine::FindingSink& sink) const {
    using Key = std::tuple<ir::ProcessId, std::uint64_t, ir::FunctionId, std::uint16_t, std::uint16_t>;
    struct Place {
      std::size_t graph = 0;
      const Row* row = nullptr;
      const ir::AllocatorBlock* block = nullptr;  // after the graph's capture
    };
    // First what lies in another graph's pool, which is little.
    std::map<Key, std::vector<Place>> guests;
    struct Shared {
      std::vector<std::pair<Place, Place>> uses;  // guest and owner
    };
    std::map<std::tuple<ir::ProcessId, ir::StringId, std::uint64_t, std::uint64_t>, Shared> workspaces;  // by pool and block
    for (const bool of_guests : {true, false}) {
      if (!of_guests && guests.empty()) return;
      for (std::size_t i = 0; i < graphs_.size(); ++i) {
        if (graphs_[i].home == ir::kEmptyString) continue;
        const Blocks* const blocks = blocks_after(graphs_[i].process, graphs_[i].end_sequence);
        for (const Row& row : graphs_[i].rows) {
          if (row.slot == analysis::Access::kNoSlot || !row.may_write()) continue;
          const ir::AllocatorBlock* const block = block_of(blocks, row.start);
          if (block == nullptr || block->pool == ir::kEmptyString || (block->pool != graphs_[i].home) != of_guests) continue;
          const Key key{graphs_[i].process, row.start, row.function, row.slot, row.offset_bytes};
          if (of_guests) {
            std::vector<Place>& known = guests[key];
            if (known.empty() || known.back().graph != i) known.push_back({i, &row, block});
          } else if (const auto known = guests.find(key); known != guests.end()) {
            for (const Place& guest : known->second)
              if (guest.block->pool == block->pool && live_together(graphs_[guest.graph], graphs_[i]))
                workspaces[{graphs_[i].process, block->pool, block->base, block->size_bytes}].uses.push_back({guest, {i, &row, block}});
          }
        }
      }
    }
    // One workspace is one finding, whoever holds its address.
    for (const auto& [where, shared] : workspaces) {
      const auto& [guest, owner] = shared.uses.front();
      const SeenGraph& a = graphs_[guest.graph];
      const SeenGraph& b = graphs_[owner.graph];
      std::set<std::size_t> guest_graphs;
      std::set<std::tuple<ir::FunctionId, std::uint16_t, std::uint16_t>> arguments;
      for (const auto& [user, other] : shared.uses) {
        guest_graphs.insert(user.graph);
        arguments.emplace(user.row->function, user.row->slot, user.row->offset_bytes);
      }
      engine::Finding finding = start(a, engine::Confidence::likely);
      finding.rests_on.insert(Fact::allocator_state);
      finding.graph_instances += static_cast<std::uint32_t>(guest_graphs.size() - 1);
      finding.also_in = {b.finding.graph_name};
      for (const std::size_t other : guest_graphs)
        if (other != guest.graph && finding.also_in.size() < 5) finding.also_in.push_back(graphs_[other].finding.graph_name);
      finding.message = fmt::format("{} of {}{} is a workspace in the private pool of graph {}, while this graph has a pool of its own: it is gone when that graph is, and "
                                    "shared when both run",
                                    argument_name(context.identities.of(guest.row->function), guest.row->slot, guest.row->offset_bytes), label(context, *guest.row),
                                    arguments.size() == 1 ? std::string() : fmt::format(" (and {})", base::count_of(arguments.size() - 1, "other argument")),
                                    b.finding.graph_name);
      describe(context, finding, a, *guest.row, "uses it");
      describe(context, finding, b, *owner.row, "owner's use");
      finding.fix.text =
          "make the workspace before the first capture and outside any graph's pool (for cuBLAS: one per stream, set by the caller), or capture the graphs "
          "into one shared pool and retire them together";
      sink.report(std::move(finding), "pool|" + basis(context, *guest.row));
    }
  }

  // Memory of the graph's own pool that nobody holds, which it reads before it writes, and which another graph of the pool writes. Returns how many
  // graphs could be such readers if it were known what their kernels, or those of the other graph, read and write.
  [[nodiscard]] std::size_t unheld_input(const engine::RecordingContext& context, engine::FindingSink& sink) const {
    std::size_t undecided = 0;
    std::map<std::pair<ir::ProcessId, ir::StringId>, std::vector<std::size_t>> members;
    for (std::size_t i = 0; i < graphs_.size(); ++i)
      if (graphs_[i].home != ir::kEmptyString) members[{graphs_[i].process, graphs_[i].home}].push_back(i);
    for (const auto& [pool, graphs] : members) {
      if (graphs.size() < 2) continue;
      const Blocks* const last = blocks_after(pool.first, std::numeric_limits<std::uint64_t>::max());
      for (const std::size_t reader : graphs) {
        bool is_undecided = false;
        for (const Row& row : graphs_[reader].rows) {
          const bool is_read = row.mode == AccessMode::read;
          if (!is_read && (is_undecided || !lacks_signature(context, row))) continue;
          const ir::AllocatorBlock* const block = block_of(last, row.start);
          if (block == nullptr || block->pool != pool.second) continue;
          // In use again, but by somebody else.
          const bool is_others = block->state == ir::AllocatorBlock::State::active && block->alloc_sequence > graphs_[reader].end_sequence;
          if (block->state == ir::AllocatorBlock::State::active && !is_others) continue;
          if (any_writer(graphs_[reader], row.start, row.place, false)) continue;
          const bool is_timed = !graphs_[reader].launches.empty();
          for (const std::size_t writer : graphs) {
            if (writer == reader || !live_together(graphs_[reader], graphs_[writer])) continue;
            if (is_others && graphs_[writer].end_sequence <= block->alloc_sequence) continue;  // who handed it over
            const Row* const write = any_writer(graphs_[writer], row.start, std::numeric_limits<std::uint32_t>::max(), true);
            const bool is_known = is_read && write != nullptr;
            if (!is_known && (is_undecided || !may_write_there(context, graphs_[writer], row.start))) continue;
            // Where the order of the launches is known it tells: graphs of other shapes that are never launched in between do no harm.
            if (is_timed && !was_last_to_write(context, graphs, writer, reader, row.start, is_known)) continue;
            if (!is_known) {
              is_undecided = true;
              continue;
            }
            const SeenGraph& a = graphs_[reader];
            const SeenGraph& b = graphs_[writer];
            engine::Finding finding = start(a, engine::Confidence::likely);
            finding.rests_on.insert(Fact::allocator_state);
            finding.also_in = {b.finding.graph_name};
            finding.message = fmt::format("{} reads what another launch left in the shared pool, but nobody holds that memory any more and {} of graph {} writes there",
                                          label(context, row), label(context, *write), b.finding.graph_name);
            describe(context, finding, a, row, "reads");
            describe(context, finding, b, *write, "writes");
            finding.fix.text = "keep a strong reference to every tensor that one graph hands to another, as long as both are launched; or copy it into a buffer outside the pool";
            sink.report(std::move(finding), "unheld|" + basis(context, row) + "|" + basis(context, *write));
            break;
          }
        }
        undecided += is_undecided ? 1 : 0;
      }
    }
    return undecided;
  }

  // In some launch of the reader: the last graph before it that wrote there (with `known` false: may have written there) was captured after it, so that it is
  // not what the reader was given.
  [[nodiscard]] bool was_last_to_write(const engine::RecordingContext& context, const std::vector<std::size_t>& graphs, std::size_t writer, std::size_t reader,
                                       std::uint64_t address, bool known) const {
    if (graphs_[writer].begin_sequence <= graphs_[reader].end_sequence) return false;
    std::vector<std::pair<std::int64_t, std::size_t>> writes;  // start of a launch
    for (const std::size_t graph : graphs)
      if (graph != reader && (known ? any_writer(graphs_[graph], address, std::numeric_limits<std::uint32_t>::max(), true) != nullptr : may_write_there(context, graphs_[graph], address)))
        for (const Span& span : graphs_[graph].launches) writes.emplace_back(span.start, graph);
    std::sort(writes.begin(), writes.end());
    return std::any_of(graphs_[reader].launches.begin(), graphs_[reader].launches.end(), [&](const Span& span) {
      const auto next = std::lower_bound(writes.begin(), writes.end(), std::pair(span.start, std::size_t{0}));
      return next != writes.begin() && std::prev(next)->second == writer;
    });
  }

  // Nothing tells what the kernel does with the argument: neither a table nor a signature.
  static bool lacks_signature(const engine::RecordingContext& context, const Row& row) {
    return row.mode == AccessMode::unknown && row.function.is_valid() && !context.identities.of(row.function).params_known;
  }
  // Whether a row that begins at `address` writes, or might as far as one without a signature shows.
  static bool may_write_there(const engine::RecordingContext& context, const SeenGraph& graph, std::uint64_t address) {
    for (auto row = std::lower_bound(graph.rows.begin(), graph.rows.end(), address, [](const Row& r, std::uint64_t value) { return r.begin < value; });
         row != graph.rows.end() && row->begin == address; ++row)
      if (row->start == address && (row->writes() || lacks_signature(context, *row))) return true;
    return false;
  }

  // A row that covers `address` and may write (with `known`: writes for certain) before position `before`.
  static const Row* any_writer(const SeenGraph& graph, std::uint64_t address, std::uint32_t before, bool known) {
    // Nearly always the writer was given the same address.
    for (auto row = std::lower_bound(graph.rows.begin(), graph.rows.end(), address, [](const Row& r, std::uint64_t value) { return r.begin < value; });
         row != graph.rows.end() && row->begin == address; ++row)
      if (row->place < before && (known ? row->writes() && row->start == address : row->may_write())) return &*row;
    if (known) return nullptr;
    auto row = std::upper_bound(graph.rows.begin(), graph.rows.end(), address, [](std::uint64_t value, const Row& r) { return value < r.begin; });
    while (row != graph.rows.begin()) {
      --row;
      if (graph.reach[static_cast<std::size_t>(row - graph.rows.begin())] <= address) break;
      if (address < row->end && row->place < before && row->may_write()) return &*row;
    }
    return nullptr;
  }

  static engine::Finding start(const SeenGraph& graph, engine::Confidence confidence) {
    engine::Finding finding = graph.finding;
    finding.severity = kInfo.severity;
    finding.confidence = confidence;
    finding.rests_on = {Fact::nodes, Fact::kernel_params, Fact::allocations};
    finding.threads = {"pytorch/pytorch#193402", "pytorch/pytorch#166975", "ROCm/aiter#5393"};
    return finding;
  }
  static std::string label(const engine::RecordingContext& context, const Row& row) {
    return row.function.is_valid() ? context.identities.of(row.function).short_name : std::string(ir::node_kind_name(row.kind));
  }
  static std::string basis(const engine::RecordingContext& context, const Row& row) {
    return fmt::format("{}:{}+{}", row.function.is_valid() ? context.identities.of(row.function).normalised : "copy", row.slot, row.offset_bytes);
  }
  static void describe(const engine::RecordingContext& context, engine::Finding& finding, const SeenGraph& graph, const Row& row, std::string_view role) {
    engine::Entity entity;
    entity.id = row.node.index();
    entity.source_id = row.node.index();
    entity.label = label(context, row);
    entity.role = role;
    (finding.primary.empty() ? finding.primary : finding.related).push_back(entity);
    if (graph.stacks.contains(row.node))
      for (engine::SourceLocation& place : sources_of(context.recording, graph.stacks[row.node], role)) finding.sources.push_back(std::move(place));
  }

  std::vector<SeenGraph> graphs_;
  std::map<ir::ProcessId, std::map<std::uint64_t, Blocks>> snapshots_;  // by sequence
  std::unordered_map<ir::GraphId, std::size_t> index_of_graph_;
  WordHistory history_;
  std::size_t row_count_ = 0, left_out_ = 0;
  bool state_missing_ = false;
};

class WorkspaceAlias final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_workspace_alias() { return std::make_unique<WorkspaceAlias>(); }

}  // namespace cglint::rules
