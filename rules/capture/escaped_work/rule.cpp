// Work of the step was launched outside the graph, so that a replay leaves it out.
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
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::kernel_names, Fact::eager_launches}};
constexpr std::array<engine::RuleOption, 1> kOptions = {{
    {engine::RuleOption::Type::number, "min_match", "0.8",
     "share of the graph's kernels that the launches before the capture must have in whole steps for a comparison (0.5..1)", 0.5, 1},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG402",
    .slug = "escaped-work",
    .family = "capture",
    .summary = "Work of the step was launched outside the graph, so that a replay leaves it out.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::source_frames, Fact::capture_streams, Fact::sync_ops},
    .options = kOptions,
};

// file, function, line
using Place = std::tuple<ir::StringId, ir::StringId, std::uint32_t>;
// Kernels of one name are one kernel: other tile sizes and types count as the same work.
using Name = std::string;

struct Launch {
  ir::FunctionId function;
  ir::StackId stack;
  ir::StreamId stream;
  std::uint64_t sequence = 0;        // of the first of `launches`
  std::uint64_t launches = 1;
  std::uint32_t thread = 0;
  std::int32_t node = 0;
  ir::FunctionId reads_result_of;    // a kernel launched before it that may have written what it reads; the last one
};

// The launches outside capture between two captures (or of the whole process, as recorded).
struct Period {
  ir::ProcessId process;
  std::uint64_t first = 0, last = 0;
  bool has_sequence = false;
  std::vector<Launch> launches;
  std::vector<std::pair<ir::NodeKind, Launch>> copies;  // and fills
};

struct SeenGraph {
  engine::Finding finding;
  ir::ProcessId process;
  std::uint64_t begin = 0, end = 0;
  std::uint32_t thread = 0;
  bool has_stacks = false;
  std::map<ir::FunctionId, std::uint64_t> kernels;
  std::set<ir::StreamId> streams;
  std::map<std::pair<ir::FunctionId, ir::StackId>, std::uint64_t> sites;  // launches of a kernel from a place
  ir::StackId begin_stack;           // of the call that began the capture
};

class Check final : public engine::RecordingCheck {
 public:
  void see(const engine::GraphContext& context) override {
    const ir::Graph& graph = context.graph;
    if (graph.info.role == ir::GraphRole::eager) return see_period(context);
    if (graph.info.role == ir::GraphRole::body) {
      // A body's kernels are part of the graph that holds it.
      for (const NodeId node : graph.nodes())
        if (const ir::KernelNode* kernel = graph.kernel(node); kernel != nullptr && kernel->function.is_valid()) bodies_[graph.info.process].insert(kernel->function);
      return;
    }
    if (graph.info.role != ir::GraphRole::captured) return;
    SeenGraph seen;
    engine::name_graph(seen.finding, context);
    seen.process = graph.info.process;
    seen.begin = graph.info.begin_sequence;
    seen.end = graph.info.end_sequence;
    seen.has_stacks = graph.facts.contains(Fact::source_frames) && !graph.stack.empty();
    for (const ir::SyncOp& op : graph.sync_ops) {
      if (op.kind != ir::SyncOp::Kind::begin_capture) continue;
      if (seen.thread == 0) seen.thread = op.thread;
      if (!seen.begin_stack.is_valid()) seen.begin_stack = op.stack;
    }
    if (seen.thread == 0 && !graph.thread.empty() && graph.node_count() > 0) seen.thread = graph.thread[NodeId(0)];
    for (const NodeId node : graph.nodes()) {
      if (!graph.capture_stream.empty() && graph.capture_stream[node].is_valid()) seen.streams.insert(graph.capture_stream[node]);
      const ir::KernelNode* const kernel = graph.kernel(node);
      if (kernel == nullptr || !kernel->function.is_valid()) continue;
      ++seen.kernels[kernel->function];
      if (seen.has_stacks && graph.stack[node].is_valid()) ++seen.sites[{kernel->function, graph.stack[node]}];
    }
    graphs_.push_back(std::move(seen));
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    std::size_t incomparable = 0, nameless = 0;
    for (const SeenGraph& graph : graphs_) {
      during_capture(context, sink, graph);
      copies_during_capture(context, sink, graph);
      if (names_tell_nothing(context, graph)) ++nameless;
      else if (!missing_from_graph(context, sink, graph)) ++incomparable;
    }
    if (nameless > 0)
      sink.not_checked({}, fmt::format("no kernel's name tells its part or its arguments in {}, so that fills and copies of the framework cannot be told from the step's own "
                                       "work: only launches during a capture were looked at",
                                       base::count_of(nameless, "graph")));
    if (incomparable > 0)
      sink.not_checked({}, fmt::format("the launches before the capture are no whole number of the steps in {}: only launches during a capture were looked at",
                                       base::count_of(incomparable, "graph")));
  }

 private:
  void see_period(const engine::GraphContext& context) {
    const ir::Graph& graph = context.graph;
    Period period;
    std::unordered_map<std::uint64_t, ir::FunctionId> written;  // by address
    period.process = graph.info.process;
    period.has_sequence = !graph.sequence.empty();
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* const kernel = graph.kernel(node);
      const bool is_copy = graph.kind[node] == ir::NodeKind::memcpy || graph.kind[node] == ir::NodeKind::memset;
      if (!is_copy && (kernel == nullptr || !kernel->function.is_valid())) continue;
      Launch launch;
      if (!is_copy) launch.function = kernel->function;
      launch.stack = graph.stack.empty() ? ir::StackId() : graph.stack[node];
      launch.stream = graph.capture_stream.empty() ? ir::StreamId() : graph.capture_stream[node];
      launch.sequence = graph.sequence.empty() ? 0 : graph.sequence[node];
      launch.launches = graph.launches.empty() ? 1 : graph.launches[node];
      launch.thread = graph.thread.empty() ? 0 : graph.thread[node];
      launch.node = static_cast<std::int32_t>(node.index());
      if (is_copy) {
        period.copies.emplace_back(graph.kind[node], launch);
        continue;
      }
      period.first = period.launches.empty() ? launch.sequence : std::min(period.first, launch.sequence);
      period.last = std::max(period.last, launch.sequence);
      launch.reads_result_of = reads_result_of(graph, *kernel, context.analyses.identities().of(kernel->function), written);
      period.launches.push_back(launch);
    }
    if (!period.launches.empty() || !period.copies.empty()) periods_.push_back(std::move(period));
  }

  // By its signature: of the kernels before it the one that may have written what it reads. Notes what it may write.
  static ir::FunctionId reads_result_of(const ir::Graph& graph, const ir::KernelNode& kernel, const analysis::KernelIdentity& identity,
                                        std::unordered_map<std::uint64_t, ir::FunctionId>& written) {
    ir::FunctionId result;
    if (!identity.params_known) return result;
    const auto pointers = [&](bool is_const, const auto& visit) {
      for (const ir::ParamWord& word : graph.params_of(kernel))
        if (word.allocation.is_valid() && word.offset_bytes == 0 && word.slot < identity.params.size() && identity.params[word.slot].is_pointer &&
            identity.params[word.slot].points_to_const == is_const)
          visit(word.value);
    };
    pointers(true, [&](std::uint64_t address) {
      if (const auto found = written.find(address); found != written.end()) result = found->second;
    });
    pointers(false, [&](std::uint64_t address) { written[address] = kernel.function; });
    return result;
  }

  // What runs beside the step by design: it may differ without being lost.
  static bool is_helper(analysis::KernelRole role) {
    using Role = analysis::KernelRole;
    return role == Role::fill || role == Role::rng || role == Role::metadata || role == Role::copy;
  }

  // Launched while the graph was captured, by the capturing thread, on a stream that the capture did not have.
  void during_capture(const engine::RecordingContext& context, engine::FindingSink& sink, const SeenGraph& graph) const {
    if (graph.begin == 0 || graph.end <= graph.begin) return;
    std::map<Name, std::vector<const Launch*>> escaped;
    for (const Period& period : periods_) {
      if (period.process != graph.process || period.last <= graph.begin || period.first >= graph.end) continue;
      for (const Launch& launch : period.launches) {
        if (launch.sequence <= graph.begin || launch.sequence >= graph.end) continue;
        if (launch.thread != 0 && graph.thread != 0 && launch.thread != graph.thread) continue;  // other work of the process
        if (launch.stream.is_valid() && graph.streams.contains(launch.stream)) continue;
        escaped[context.identities.of(launch.function).normalised].push_back(&launch);
      }
    }
    for (const auto& [name, launches] : escaped) {
      const analysis::KernelIdentity& identity = context.identities.of(launches.front()->function);
      const bool sure = launches.front()->thread != 0 && graph.thread != 0 && launches.front()->stream.is_valid() && !graph.streams.empty() &&
                        !is_helper(identity.role);
      engine::Finding finding = start(graph, sure ? engine::Confidence::certain : engine::Confidence::possible);
      finding.rests_on.insert(Fact::capture_streams);
      finding.message = fmt::format("{} was launched while the graph was captured, on a stream that is not part of the capture: a replay leaves it out", identity.short_name);
      fill(context, finding, identity.short_name, launches);
      finding.fix.text =
          "launch on the current stream (hand the capturing stream to the library), or fork its stream from the capturing one and join it back; to find "
          "such launches, capture on a stream made with cudaStreamDefault: launches on the legacy stream then fail instead of escaping";
      sink.report(std::move(finding), "during|" + name);
    }
  }

  // The same of copies and fills, which have no kernel that tells what they are for. What a library does for itself is not the step's.
  static void copies_of(const engine::RecordingContext& context, engine::FindingSink& sink, const SeenGraph& graph, ir::NodeKind kind,
                        const std::vector<const Launch*>& launches) {
    const Launch& first = *launches.front();
    const bool is_library = is_in_library(context.recording, first.stack);
    const bool sure = first.thread != 0 && graph.thread != 0 && first.stream.is_valid() && !graph.streams.empty() && !is_library;
    const std::string what(ir::node_kind_name(kind));
    engine::Finding finding = start(graph, sure ? engine::Confidence::likely : engine::Confidence::possible);
    finding.rests_on = {Fact::nodes, Fact::eager_launches, Fact::capture_streams};
    finding.message = fmt::format("a {} was put on a stream that is not part of the capture while the graph was captured: a replay leaves it out", what);
    fill(context, finding, what, launches);
    finding.fix.text = "put it on the capturing stream, or fork its stream from the capturing one and join it back; if it is to happen once, do it before the capture";
    sink.report(std::move(finding), "during|" + what);
  }

  static bool is_in_library(const ir::Recording& recording, ir::StackId stack) {
    for (const ir::Frame& frame : recording.frames(stack)) {
      if (frame.kind != ir::Frame::Kind::native) continue;
      std::string_view file = recording.text(frame.file);
      file.remove_prefix(std::min(file.size(), file.rfind('/') + 1));
      return file.starts_with("libcu") || file.starts_with("libnv") || file.starts_with("libnccl");
    }
    return false;
  }

  void copies_during_capture(const engine::RecordingContext& context, engine::FindingSink& sink, const SeenGraph& graph) const {
    if (graph.begin == 0 || graph.end <= graph.begin) return;
    std::map<ir::NodeKind, std::vector<const Launch*>> escaped;
    for (const Period& period : periods_) {
      if (period.process != graph.process) continue;
      for (const auto& [kind, copy] : period.copies)
        if (copy.sequence > graph.begin && copy.sequence < graph.end && (copy.thread == 0 || graph.thread == 0 || copy.thread == graph.thread) &&
            !(copy.stream.is_valid() && graph.streams.contains(copy.stream)))
          escaped[kind].push_back(&copy);
    }
    for (const auto& [kind, copies] : escaped) copies_of(context, sink, graph, kind, copies);
  }

  // Names were left out or replaced: is_helper() would be false for all.
  static bool names_tell_nothing(const engine::RecordingContext& context, const SeenGraph& graph) {
    return !graph.kernels.empty() && std::none_of(graph.kernels.begin(), graph.kernels.end(), [&](const auto& each) {
      const analysis::KernelIdentity& identity = context.identities.of(each.first);
      return identity.params_known || identity.role != analysis::KernelRole::unknown;
    });
  }

  // Launched in every step before the capture, and in the graph not at all. False if the launches cannot be compared with the graph.
  bool missing_from_graph(const engine::RecordingContext& context, engine::FindingSink& sink, const SeenGraph& graph) const {
    if (graph.kernels.empty()) return true;
    // The launches right before this capture.
    const Period* period = nullptr;
    for (const Period& each : periods_) {
      if (each.process != graph.process || each.launches.empty()) continue;
      if (each.has_sequence && graph.begin != 0 && each.first >= graph.begin) continue;
      if (period == nullptr || each.first >= period->first) period = &each;
    }
    if (period == nullptr) return false;
    std::map<Name, std::uint64_t> in_graph, outside;
    for (const auto& [function, count] : graph.kernels) in_graph[context.identities.of(function).normalised] += count;
    std::uint64_t most_in_graph = 0;
    for (const auto& [name, count] : in_graph) most_in_graph = std::max(most_in_graph, count);
    for (const Launch& launch : period->launches) outside[context.identities.of(launch.function).normalised] += launch.launches;
    if (const auto bodies = bodies_.find(graph.process); bodies != bodies_.end())
      for (const ir::FunctionId function : bodies->second) in_graph.try_emplace(context.identities.of(function).normalised, 0);

    // How many steps were run: the number of times that most of the graph's kernels agree on.
    std::map<std::uint64_t, std::size_t> votes;
    std::size_t names = 0;
    for (const auto& [name, count] : in_graph) {
      if (count == 0) continue;
      ++names;
      const auto found = outside.find(name);
      if (found != outside.end() && found->second % count == 0) ++votes[found->second / count];
    }
    if (votes.empty()) return false;
    const auto best = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::uint64_t steps = best->first;
    const double match = static_cast<double>(best->second) / static_cast<double>(names);
    // Of two kernels or one an agreement says little: then the steps must be several, and the lines known.
    if (match < context.config.number(kInfo, "min_match") || (names < 3 && (steps < 2 || !graph.has_stacks))) return false;

    std::map<Place, std::uint64_t> places;  // with the graph's launches from there
    std::set<Place> replaced;               // the graph launches a kernel from there more often than the steps did
    std::set<std::pair<ir::StringId, ir::StringId>> functions;
    for (const auto& [site, count] : graph.sites) {
      const Place place = place_of(context.recording, site.second);
      places[place] += count;
      functions.emplace(std::get<0>(place), std::get<1>(place));
      const Name& name = context.identities.of(site.first).normalised;
      if (const auto found = outside.find(name); found == outside.end() || found->second < in_graph[name] * steps) replaced.insert(place);
    }
    std::map<Name, std::vector<const Launch*>> missing;
    std::uint64_t step_first = ~std::uint64_t{0}, step_last = 0;  // first launches of the graph's kernels
    for (const Launch& launch : period->launches) {
      const Name& name = context.identities.of(launch.function).normalised;
      if (!in_graph.contains(name)) {
        missing[name].push_back(&launch);
        continue;
      }
      step_first = std::min(step_first, launch.sequence);
      step_last = std::max(step_last, launch.sequence);
    }
    for (const auto& [name, launches] : missing) {
      const std::uint64_t count = outside[name];
      // Set-up and tuning are not run in each step. What escapes a capture is also launched once more while it lasts.
      const std::uint64_t passes = count % steps == 0 ? steps : count % (steps + 1) == 0 ? steps + 1 : 0;
      if (passes == 0 || count < steps) continue;
      const analysis::KernelIdentity& identity = context.identities.of(launches.front()->function);
      if (is_helper(identity.role)) continue;
      const auto placed = std::find_if(launches.begin(), launches.end(), [](const Launch* launch) { return launch->stack.is_valid(); });
      engine::Confidence confidence = engine::Confidence::possible;
      if (placed != launches.end() && graph.has_stacks) {
        const Place place = place_of(context.recording, (*placed)->stack);
        // Another function of the program: not part of the step.
        if (!functions.contains({std::get<0>(place), std::get<1>(place)})) continue;
        // The graph has another kernel from this line: chosen otherwise, not lost. Of a line with many launches (all of a program without
        // lines, a call of a whole model) that cannot be told.
        const auto there = places.find(place);
        const bool is_shared = there != places.end();
        if (is_shared && (there->second < 2 || replaced.contains(place))) continue;
        // One step looks like set-up: its work must lie within, or come last in a function that is the step's (another one captures), or
        // read what kernels of the step gave, and run no more often than they do.
        const std::uint64_t at = launches.front()->sequence;
        const Place begun = place_of(context.recording, graph.begin_stack);
        const bool is_step = graph.begin_stack.is_valid() && std::tie(std::get<0>(begun), std::get<1>(begun)) != std::tie(std::get<0>(place), std::get<1>(place));
        const bool reads_step = count <= most_in_graph && std::all_of(launches.begin(), launches.end(), [&](const Launch* launch) {
                                  return launch->reads_result_of.is_valid() && in_graph.contains(context.identities.of(launch->reads_result_of).normalised);
                                });
        if (!is_shared && (steps >= 2 || (at > step_first && (at < step_last || is_step || reads_step)))) confidence = engine::Confidence::likely;
      } else if (steps >= 2 && names >= 3 && match >= 0.95) {
        confidence = engine::Confidence::likely;
      }
      engine::Finding finding = start(graph, confidence);
      finding.message = fmt::format("{} ran {} in {} before the capture{} and is not in the graph: a replay leaves it out", identity.short_name,
                                    base::count_of(count / passes, "time"), steps == 1 ? std::string("the step") : fmt::format("each of the {} steps", steps), passes > steps ? ", and during it," : "");
      finding.evidence = {{"launches_outside", static_cast<std::int64_t>(count)}, {"steps", static_cast<std::int64_t>(steps)}, {"match", match}};
      fill(context, finding, identity.short_name, launches);
      finding.fix.text =
          "launch on the current stream instead of the legacy or a private one; if the code skips the kernel while a stream captures, remove that condition";
      sink.report(std::move(finding), "missing|" + name);
    }
    return true;
  }

  static Place place_of(const ir::Recording& recording, ir::StackId stack) {
    const auto frames = recording.frames(stack);
    if (frames.empty()) return {};
    const ir::Frame& frame = frames[user_frame(recording, stack)];
    return {frame.file, frame.function, frame.line};
  }

  static engine::Finding start(const SeenGraph& graph, engine::Confidence confidence) {
    engine::Finding finding = graph.finding;
    finding.severity = kInfo.severity;
    finding.confidence = confidence;
    finding.rests_on = {Fact::nodes, Fact::kernel_names, Fact::eager_launches};
    finding.threads = {"thu-ml/SageAttention#371", "spiriMirror/libuipc#472", "mirage-project/mirage#207"};
    return finding;
  }

  static void fill(const engine::RecordingContext& context, engine::Finding& finding, const std::string& label, const std::vector<const Launch*>& launches) {
    const auto entity = [&](const Launch* launch) {
      engine::Entity result;
      result.id = static_cast<std::uint32_t>(launch->node);
      result.source_id = result.id;
      result.label = label;
      result.role = "launched outside the graph";
      return result;
    };
    set_occurrences(finding, launches, [&](const Launch* launch) { return engine::Occurrence{-1, {entity(launch)}}; });
    finding.primary = {entity(launches.front())};
    for (const Launch* launch : launches) {
      finding.sources = sources_of(context.recording, launch->stack, "launch outside the graph");
      if (!finding.sources.empty()) break;
    }
  }

  std::vector<Period> periods_;
  std::vector<SeenGraph> graphs_;
  std::map<ir::ProcessId, std::set<ir::FunctionId>> bodies_;
};

class EscapedWork final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_escaped_work() { return std::make_unique<EscapedWork>(); }

}  // namespace cglint::rules
