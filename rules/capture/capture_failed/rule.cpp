// A stream capture failed or was invalidated, so there is no graph.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::capture_status}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG404",
    .slug = "capture-failed",
    .family = "capture",
    .summary = "A stream capture failed or was invalidated, so there is no graph.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::nodes, Fact::sync_ops, Fact::capture_streams, Fact::source_frames},
};

// Why a call breaks a capture, and what to do.
struct Cause {
  std::string_view name;             // for the fingerprint
  std::string_view why, fix;
};

constexpr Cause kUnjoined = {"unjoined", "work that was forked to another stream was never joined back",
                             "let the capturing stream wait on an event recorded after the side stream's last work (main.wait_stream(side)) "
                             "before the capture ends, on every path through the code"};
constexpr Cause kLegacyStream = {"legacy-stream", "it uses the legacy default stream, which would have to wait for the capturing stream",
                                 "launch on the current stream (pass it to the library that launches), or capture on a stream made with "
                                 "cudaStreamNonBlocking and check that nothing escapes (CG402)"};
constexpr Cause kOtherCapture = {"other-capture", "it waits for an event that was recorded outside this capture: before it began, or in another",
                                 "record the event inside this capture, or let the stream wait for it before the capture begins"};
constexpr Cause kMerge = {"merge", "it would join two captures into one", "capture both branches from one origin stream, or end the first capture before"};
constexpr Cause kCapturedEvent = {"captured-event", "it asks for an event that exists only inside a capture", "do not query or wait for captured events on the host"};
constexpr Cause kWrongThread = {"wrong-thread", "the capture was ended by another thread than the one that began it",
                                "begin and end a capture in one thread, or capture in mode relaxed"};
constexpr Cause kUnmatched = {"unmatched", "the capture was ended on another stream than the one it began on", "end the capture on its origin stream"};
constexpr Cause kSync = {"synchronisation", "it waits on the host for work that is only being recorded",
                         "take the synchronisation out of the captured region: item(), .cpu(), print of a tensor, cudaStreamSynchronize and timing "
                         "belong before or after it"};
constexpr Cause kAllocation = {"allocation", "it allocates or frees memory, which synchronises",
                               "allocate before the capture, or from a pool that the capture owns (torch.cuda.graph's private pool, cudaMallocAsync); if another "
                               "thread allocates, capture in mode thread_local"};
constexpr Cause kPageable = {"pageable-copy", "it copies synchronously, or from pageable host memory",
                             "use pinned host memory and a copy on the capturing stream (non_blocking=True), or copy before the capture"};
constexpr Cause kLazyInit = {"lazy-initialisation", "it loads code, which happens at the first use of a kernel or library",
                             "run the step once before the capture (warm-up on a side stream), so that every kernel is loaded and every library initialised"};
constexpr Cause kHandle = {"resource", "it makes or changes a resource, which a capture does not allow",
                           "make streams, events, handles and communicators before the capture"};
constexpr Cause kException = {"exception", "the program left the captured region by an error of its own",
                              "the error names what a capture does not allow (an unregistered generator, a pageable copy, a check of the framework): "
                              "move that out of the captured region, or do it before the capture"};
constexpr Cause kNeverEnded = {"never-ended", "the process ended while it was open", "end every capture that was begun, on every path through the code"};
constexpr Cause kBegunTwice = {"begun-twice", "the stream is capturing already", "end the first capture, or use another stream"};
constexpr Cause kUnknown = {"unknown", "it is not allowed while a stream captures", "move the call out of the captured region"};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

const Cause& cause_of(std::string_view call, std::string_view error, bool unjoined) {
  if (call == "exception") return kException;
  if (call == "exit") return kNeverEnded;
  if (has(error, "ILLEGAL_STATE")) return kBegunTwice;
  if (unjoined || has(error, "CAPTURE_UNJOINED")) return kUnjoined;
  if (has(error, "CAPTURE_ISOLATION")) return kOtherCapture;
  if (has(error, "CAPTURE_MERGE")) return kMerge;
  if (has(error, "CAPTURED_EVENT")) return kCapturedEvent;
  if (has(error, "CAPTURE_WRONG_THREAD")) return kWrongThread;
  if (has(error, "CAPTURE_UNMATCHED")) return kUnmatched;
  if (has(call, "Synchronize") || has(call, "Query") || has(call, "ElapsedTime")) return kSync;
  if (has(call, "MemAlloc") || has(call, "MemFree") || has(call, "Malloc") || has(call, "cudaFree") || has(call, "MemHost") || has(call, "HostAlloc") ||
      has(call, "MemCreate") || has(call, "MemMap") || has(call, "MemRelease"))
    return kAllocation;
  if (has(call, "Memcpy") && !has(call, "Async")) return kPageable;
  if (has(error, "CAPTURE_IMPLICIT")) return kLegacyStream;
  if (has(call, "Memcpy") || has(call, "Memset")) return kPageable;
  if (has(call, "Module") || has(call, "Library") || has(call, "Link") || has(call, "FuncGet") || has(call, "FuncLoad") || has(call, "KernelGet")) return kLazyInit;
  if (has(call, "Create") || has(call, "Destroy") || has(call, "Ctx") || has(call, "SetLimit")) return kHandle;
  return kUnknown;
}

class CaptureFailed final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::GraphInfo& info = context.graph.info;
    if (info.capture_status == ir::CaptureStatus::ok) return;
    if (info.capture_status == ir::CaptureStatus::unknown) {
      if (info.role == ir::GraphRole::built) return;  // never captured
      return sink.not_checked({Fact::capture_status}, "how the capture ended is not known");
    }
    const std::string call(context.recording.text(info.failed_call)), error(context.recording.text(info.failed_error));
    const std::vector<ir::SyncOpId> forks = unjoined_forks(context.graph);
    const Cause& cause = cause_of(call, error, !forks.empty());
    const bool known = !call.empty() || !forks.empty() || !error.empty();

    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = engine::Confidence::certain;
    finding.rests_on = {Fact::capture_status};
    const std::uint32_t own_thread = capture_thread(context.graph);
    const bool other_thread = info.failed_thread != 0 && own_thread != 0 && info.failed_thread != own_thread;
    const bool later_victim = has(error, "CAPTURE_INVALIDATED");

    finding.message = fmt::format("the capture {} after {}", info.capture_status == ir::CaptureStatus::invalidated ? "was invalidated" : "failed",
                                  base::count_of(context.graph.node_count(), "node"));
    if (!known) {
      finding.message += "; which call broke it was not recorded";
    } else if (&cause == &kUnjoined) {
      finding.message += fmt::format(": {} {} not joined back", forks.empty() ? std::string("a side stream") : base::count_of(streams_of(context.graph, forks), "side stream"),
                                     streams_of(context.graph, forks) > 1 ? "were" : "was");
    } else if (&cause == &kException) {
    finding.message += fmt::format(": the program left it by {}", error);
  } else if (&cause == &kNeverEnded) {
    finding.message += ": the process ended while it was open";
  } else if (later_victim) {
      finding.message += fmt::format("; {} found it invalidated by an earlier call", call);
    } else {
      finding.message += fmt::format(" by {}{}{}: {}", call.empty() ? "a call" : call, error.empty() ? std::string() : fmt::format(" ({})", error),
                                     other_thread ? " in another thread" : "", cause.why);
    }
    if (!call.empty()) finding.evidence.emplace_back("call", call);
    if (!error.empty()) finding.evidence.emplace_back("error", error);
    finding.evidence.emplace_back("mode", std::string(mode_name(info.capture_mode)));
    finding.evidence.emplace_back("nodes_captured", static_cast<std::int64_t>(context.graph.node_count()));
    if (info.failed_thread != 0) finding.evidence.emplace_back("thread", std::int64_t{info.failed_thread});
    if (other_thread) finding.evidence.emplace_back("capturing_thread", std::int64_t{own_thread});

    const auto add_sources = [&](ir::StackId stack, std::string_view role) {
      for (engine::SourceLocation& place : sources_of(context, stack, role)) finding.sources.push_back(std::move(place));
    };
    if (&cause != &kUnjoined && info.failed_stream.is_valid()) finding.primary.push_back(stream_entity(context, info.failed_stream, "stream of the call"));
    if (&cause == &kUnjoined) {
      // The wait that made the stream part of the capture is the place that lacks a counterpart.
      set_occurrences(finding, forks, [&](ir::SyncOpId fork) { return engine::Occurrence{-1, {stream_entity(context, context.graph.sync_ops[fork].stream, "not joined")}}; });
      for (const ir::SyncOpId id : forks) {
        const ir::SyncOp& fork = context.graph.sync_ops[id];
        if (finding.primary.empty()) finding.primary.push_back(stream_entity(context, fork.stream, "not joined"));
        add_sources(fork.stack, "fork: the stream became part of the capture here");
        if (const NodeId last = last_node_on(context.graph, fork.stream); last.is_valid() && finding.related.size() < 8) {
          finding.related.push_back(entity_of(context, last, "last work on it"));
          if (&fork == &context.graph.sync_ops[forks.front()])
            for (engine::SourceLocation& place : sources_of(context, last, "last work on the stream")) finding.sources.push_back(std::move(place));
        }
      }
      if (forks.empty() && info.failed_stream.is_valid()) finding.primary.push_back(stream_entity(context, info.failed_stream, "not joined"));
    }
    add_sources(info.failed_stack, &cause == &kUnjoined ? "end of the capture" : "the call");
    for (const ir::SyncOp& op : context.graph.sync_ops)
      if (op.kind == ir::SyncOp::Kind::begin_capture) {
        add_sources(op.stack, "begin of the capture");
        break;
      }
    if (!known || later_victim) {
      finding.fix.text = "capture once with the recorder from the beginning of the process, so that the call that broke the capture is seen";
    } else {
      finding.fix.text = cause.fix;
      if (other_thread && &cause != &kAllocation && &cause != &kWrongThread)
        finding.fix.text += "; the call came from another thread: capture in mode thread_local, or keep that thread from such calls meanwhile";
    }
    if (&cause == &kLegacyStream) finding.threads = {"spiriMirror/libuipc#472", "thu-ml/SageAttention#371"};
    else if (&cause == &kUnjoined) finding.threads = {"deepseek-ai/DeepEP#62", "NVIDIA/TransformerEngine#811"};
    else if (&cause == &kLazyInit) finding.threads = {"sgl-project/sglang#39078"};
    const std::string place = finding.sources.empty() ? std::string() : finding.sources.front().file + ":" + finding.sources.front().function;
    sink.report(std::move(finding), fmt::format("{}|{}|{}", known ? cause.name : "unseen", call, place));
  }

 private:
  static std::string_view mode_name(ir::CaptureMode mode) {
    switch (mode) {
      case ir::CaptureMode::unknown: return "unknown";
      case ir::CaptureMode::global: return "global";
      case ir::CaptureMode::thread_local_: return "thread_local";
      case ir::CaptureMode::relaxed: return "relaxed";
    }
    return "unknown";
  }

  static engine::Entity stream_entity(const engine::GraphContext& context, ir::StreamId stream, std::string_view role) {
    engine::Entity entity;
    entity.kind = engine::Entity::Kind::stream;
    entity.role = role;
    if (context.recording.streams.contains(stream)) {
      const ir::Stream& row = context.recording.streams[stream];
      const std::string_view name = context.recording.text(row.name);
      entity.source_id = row.handle;
      entity.label = !name.empty() ? std::string(name) : row.handle == 0 || row.handle == 1 ? "the legacy stream" : fmt::format("stream 0x{:x}", row.handle);
    }
    entity.id = stream.index();
    return entity;
  }

  // The waits that made the unjoined streams part of the capture.
  static std::vector<ir::SyncOpId> unjoined_forks(const ir::Graph& graph) {
    std::vector<ir::SyncOpId> forks;
    for (const ir::SyncOpId id : graph.sync_ops.ids())
      if (graph.sync_ops[id].unjoined) forks.push_back(id);
    return forks;
  }
  static std::size_t streams_of(const ir::Graph& graph, const std::vector<ir::SyncOpId>& forks) {
    std::set<ir::StreamId> streams;
    for (const ir::SyncOpId id : forks) streams.insert(graph.sync_ops[id].stream);
    return streams.size();
  }
  static NodeId last_node_on(const ir::Graph& graph, ir::StreamId stream) {
    NodeId last;
    if (!graph.capture_stream.empty())
      for (const NodeId node : graph.nodes())
        if (graph.capture_stream[node] == stream) last = node;
    return last;
  }
  static std::uint32_t capture_thread(const ir::Graph& graph) {
    for (const ir::SyncOp& op : graph.sync_ops)
      if (op.kind == ir::SyncOp::Kind::begin_capture && op.thread != 0) return op.thread;
    return graph.thread.empty() ? 0 : graph.thread[NodeId(0)];
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_capture_failed() { return std::make_unique<CaptureFailed>(); }

}  // namespace cglint::rules
