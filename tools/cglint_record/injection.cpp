// Entry points of the injected library: the driver calls InitializeInjection() at cuInit of every process that
// has CUDA_INJECTION64_PATH set. Subscribes to CUPTI and hands what it tells to the recorder. Nothing here
// may harm the host: no exception leaves a callback, Python frames are taken only in calls that a capturing
// stream makes, and a failure switches the recorder off.
#include <cxxabi.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "capture/allocator_blocks.h"
#include "capture/capture_book.h"
#include "cuda/packed_arguments.h"
#include "driver_calls.h"
#include "list_lines.h"
#include "recorder.h"

namespace cglint::record {
namespace {

using capture::Handle;
using capture::kNone;
using capture::NodeOrigin;
using capture::SyncCall;

template <typename T>
Handle handle_of(T* pointer) {
  return reinterpret_cast<Handle>(pointer);
}

// All live to the end of the process: callbacks may come during its exit.
Recorder* recorder = nullptr;
cuda::DriverApi* driver = nullptr;
cuda::CuptiApi* cupti = nullptr;
pid_t owner = 0;
CUpti_SubscriberHandle subscriber{};
std::atomic<bool> is_detaching{false};
// Activity tracing: on from the start with --replays, off when every graph has had its launches, on again
// when another graph is instantiated.
std::atomic<bool> is_tracing{false}, is_stopping{false};
std::atomic<int> tries_to_stop{0};

constexpr std::size_t kMaxDependencies = 256;

// The driver call that this thread is in; trivially destructible: calls may come while the thread ends.
struct Call {
  int depth = 0;  // only the outermost call counts
  CallFacts facts;
  bool is_capturing = false;  // its stream was, when the call began
  CUgraph graph = nullptr;
  NodeOrigin origin;
  std::array<CUgraphNode, kMaxDependencies> before;
  std::size_t before_count = 0;
  bool before_is_whole = false;
  bool has_flags = false;
  std::uint64_t flags = 0;
  std::uint64_t enter_ns = 0;           // instantiate, upload
  std::size_t free_bytes = 0;           // device memory when an instantiation began; 0: unknown
  Instantiation* pending = nullptr;     // walked, not yet written; owned
  CUgraphExec exec = nullptr;           // of an instantiation
  std::uint32_t eager_stack = kNone, eager_nvtx = kNone;
  const char* eager_copy = nullptr;     // its kind, if it is one that a capture misses
  capture::AllocationRow freed;         // what the call is about to free; size 0: nothing known
  std::vector<std::pair<Handle, std::uint64_t>>* clones = nullptr;  // original node, id of its clone
  bool is_inside = false;  // we are in a callback: calls that it makes are ours
};
static_assert(std::is_trivially_destructible_v<Call>);
thread_local Call call;

std::uint32_t thread_id() {
  thread_local const auto id = static_cast<std::uint32_t>(gettid());
  return id;
}

struct CaptureState {
  bool is_active = false, is_broken = false;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  std::size_t count = 0;
};

CaptureState capture_state(CUstream stream) {
  CaptureState state;
  // The legacy stream cannot capture, and must not be asked while others do.
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return state;
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  const CUgraphEdgeData* edges = nullptr;
  if (driver->stream_get_capture_info(stream, &status, &id, &state.graph, &state.dependencies, &edges,
                                      &state.count) != CUDA_SUCCESS)
    return {};
  state.is_active = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  state.is_broken = status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return state;
}

void note_priority(CUstream stream) {
  int priority = 0;
  if (driver->stream_get_priority(stream, &priority) == CUDA_SUCCESS)
    recorder->stream_priority(handle_of(stream), priority);
}

bool makes_nodes(CallKind kind) {
  return kind == CallKind::node || kind == CallKind::alloc || kind == CallKind::free || kind == CallKind::graph_launch;
}

SyncCall sync_call(SyncCall::Kind kind, std::uint32_t stack) {
  SyncCall sync;
  sync.kind = kind;
  sync.stream = handle_of(call.facts.stream);
  sync.event = handle_of(call.facts.event);
  sync.sequence = call.origin.sequence;
  sync.thread = thread_id();
  sync.stack = stack;
  return sync;
}

// Frames are never taken in allocation and free calls: an allocator may hold its own lock there while another
// thread holds the interpreter's and waits for the allocator's.
bool may_take_stack(CallKind kind) {
  return kind != CallKind::alloc && kind != CallKind::free;
}

bool adds_memory_node(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  const CUgraphNodeParams* const params = added_node(id, data.functionParams);
  return params != nullptr && (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
}

// Of an instantiation that failed, or that is done with.
void drop_instantiation() {
  delete call.clones;
  call.clones = nullptr;
  delete call.pending;
  call.pending = nullptr;
  call.exec = nullptr;
}

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

constexpr CUpti_ActivityKind kTraced[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                          CUPTI_ACTIVITY_KIND_MEMSET};

bool start_tracing() {
  bool good = true;
  for (const CUpti_ActivityKind kind : kTraced) good = good && cupti->activity_enable(kind) == CUPTI_SUCCESS;
  tries_to_stop.store(0);
  is_tracing.store(good);
  return good;
}

// In the exit of a driver call. Not on a thread of our own: it could outlive CUPTI when the process exits.
void stop_tracing_if_done() {
  if (!is_tracing.load(std::memory_order_relaxed) || !recorder->is_traced() || is_stopping.exchange(true)) return;
  // Not at every launch while the last ones are still under way.
  static std::atomic<std::uint64_t> next_try_ns{0};
  if (const std::uint64_t now = now_ns(); now >= next_try_ns.load()) {
    next_try_ns.store(now + 200'000'000);
    // A forced flush hands over the records of work that is still under way, without times. Without force no buffer comes in
    // which one record is unfinished, which may be always: forced after a second.
    // After two seconds what has not come will not come: records were dropped, or are of nodes that nobody knows.
    constexpr int kPatientTries = 5, kTries = 10;
    const int tries = tries_to_stop.fetch_add(1);
    cupti->activity_flush_all(tries < kPatientTries ? 0 : CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (recorder->has_all_replays() || tries >= kTries) {
      is_tracing.store(false);
      for (const CUpti_ActivityKind kind : kTraced) cupti->activity_disable(kind);
    }
  }
  is_stopping.store(false);
}

// In the exit of a driver call, as CUPTI wants it.
void detach(const std::string& why) {
  if (is_detaching.exchange(true)) return;
  if (is_tracing.exchange(false)) {
    cupti->activity_flush_all(1);
    for (const CUpti_ActivityKind kind : kTraced) cupti->activity_disable(kind);
  }
  recorder->finish("recording ended " + why + " (--detach-after): graphs captured later are not in this file");
  cupti->unsubscribe(subscriber);
  constexpr std::uint32_t kCuda12_6 = 24;
  if (cupti->finalize != nullptr && cupti->version >= kCuda12_6) {
    cupti->finalize();
  } else {
    log_line("CUPTI of CUDA 12.6 or later can leave a process; this one stays, without callbacks");
  }
}

const char* blocking_copy_kind(const CUpti_CallbackData& data) {
  return data.functionName != nullptr && std::strncmp(data.functionName, "cuMemset", 8) == 0 ? "memset" : "memcpy";
}

void on_enter(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  const CallFacts facts = read_call(id, data.functionParams);
  if (facts.kind == CallKind::none) return;
  if (call.depth++ != 0) return;
  call.facts = facts;
  call.is_capturing = false;
  call.graph = nullptr;
  call.before_count = 0;
  call.before_is_whole = true;
  call.has_flags = false;
  call.origin = {};
  call.eager_stack = call.eager_nvtx = kNone;
  call.eager_copy = nullptr;
  call.freed = {};
  if (facts.kind == CallKind::instantiate) {
    drop_instantiation();
    if (recorder->records_replays() && !is_tracing.load(std::memory_order_relaxed)) start_tracing();
    std::size_t total = 0;
    call.free_bytes = 0;
    if (recorder->is_capturing() || driver->mem_get_info == nullptr ||
        driver->mem_get_info(&call.free_bytes, &total) != CUDA_SUCCESS)
      call.free_bytes = 0;
    call.enter_ns = now_ns();
    if (const auto flags = instantiate_flags(id, data.functionParams))
      call.flags = *flags, call.has_flags = true;
  }
  if (facts.has_stream && recorder->is_capturing()) {
    const CaptureState state = capture_state(facts.stream);
    call.is_capturing = state.is_active;
    call.graph = state.graph;
    if (state.is_active) {
      call.before_is_whole = state.count <= kMaxDependencies;
      call.before_count = std::min(state.count, kMaxDependencies);
      std::copy_n(state.dependencies, call.before_count, call.before.begin());
      call.origin.sequence = recorder->next_sequence();
      call.origin.stream = handle_of(facts.stream);
      call.origin.has_stream = true;
      call.origin.thread = thread_id();
      call.origin.nvtx = recorder->take_ranges();
      if (makes_nodes(facts.kind)) {
        call.origin.kind = node_kind(id);
        if (data.symbolName != nullptr && std::strcmp(call.origin.kind, "kernel") == 0)
          call.origin.name = recorder->with_book(
              [&](capture::CaptureBook& book) { return book.intern_name(data.symbolName); });
      }
      if (may_take_stack(facts.kind)) call.origin.stack = recorder->take_stack();
    }
  }
  if (facts.kind == CallKind::add_node && !adds_memory_node(id, data)) {
    call.origin.thread = thread_id();
    call.origin.nvtx = recorder->take_ranges();
    call.origin.stack = recorder->take_stack();
  }
  if (facts.kind == CallKind::upload) call.enter_ns = now_ns();
  if (facts.kind == CallKind::node && !call.is_capturing && recorder->records_eager()) {
    const LaunchFacts launch = read_launch(id, data.functionParams);
    if (launch.function != nullptr && recorder->eager_wants_stack(handle_of(launch.function))) {
      call.eager_stack = recorder->take_stack();
      call.eager_nvtx = recorder->take_ranges();
    }
  }
  if ((facts.kind == CallKind::node || facts.kind == CallKind::blocking_copy) && !call.is_capturing && recorder->records_eager() &&
      recorder->is_capturing()) {
    const std::string_view kind = facts.kind == CallKind::node ? node_kind(id) : blocking_copy_kind(data);
    if ((kind == "memcpy" || kind == "memset") && recorder->has_open_capture(thread_id())) {
      call.eager_copy = kind == "memcpy" ? "memcpy" : "memset";
      call.eager_stack = recorder->take_stack();
      call.eager_nvtx = recorder->take_ranges();
    }
  }
  // Before the call: once it is done the address may be somebody else's. A captured free frees nothing yet.
  if (facts.kind == CallKind::free && !call.is_capturing) {
    const MemoryRange range = freed_range(id, data.functionParams);
    if (range.base != 0) {
      const std::uint64_t sequence = recorder->next_sequence();
      recorder->with_timeline([&](capture::AllocationTimeline& timeline) {
        const capture::AllocationRow* const row = timeline.find(range.base);
        if (row != nullptr && row->base == range.base) call.freed = *row;
        range.size_bytes > 1 ? timeline.remove_range(range.base, range.size_bytes, sequence)
                             : static_cast<void>(timeline.remove(range.base, sequence));
      });
    }
  }
}

void note_allocation(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  MemoryRange range = allocated_range(id, data.functionParams);
  if (is_ipc_open(id)) {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    if (driver->mem_get_address_range(&base, &size, range.base) == CUDA_SUCCESS) range.size_bytes = size;
  }
  if (range.base == 0 || range.size_bytes == 0) return;
  const bool is_host = std::strcmp(range.kind, "host_registered") == 0;
  CUdevice device = -1;
  if (is_host || driver->ctx_get_device(&device) != CUDA_SUCCESS) device = -1;
  if (call.is_capturing) range.kind = "graph_node";
  const std::uint64_t sequence = recorder->next_sequence();
  recorder->with_timeline([&](capture::AllocationTimeline& timeline) {
    timeline.add(range.base, range.size_bytes, range.kind, device, sequence);
  });
}

// A launch outside capture, when it has been made.
void note_eager(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  const LaunchFacts facts = read_launch(id, data.functionParams);
  if (facts.function == nullptr && call.eager_copy == nullptr) return;
  capture::EagerLaunch launch;
  launch.grid = facts.grid;
  launch.block = facts.block;
  launch.dynamic_shared_bytes = facts.dynamic_shared_bytes;
  launch.params = facts.params;
  launch.packed = cuda::packed_arguments(facts.extra);
  launch.origin.sequence = recorder->next_sequence();
  launch.origin.stream = handle_of(call.facts.stream);
  launch.origin.has_stream = true;
  launch.origin.thread = thread_id();
  launch.origin.stack = call.eager_stack;
  launch.origin.nvtx = call.eager_nvtx;
  if (call.eager_copy != nullptr) recorder->add_eager_copy(call.eager_copy, launch.origin);
  if (facts.function != nullptr) recorder->add_eager(facts.function, data.symbolName, launch);
}

// A call that the driver refused because of a capture. Which captures it broke, their own state tells.
void note_failure(CUpti_CallbackId id, const CUpti_CallbackData& data, CUresult result) {
  const char* const error = capture_error(result);
  if (error == nullptr) return;
  const CallFacts facts = read_call(id, data.functionParams);
  const bool begins = facts.kind == CallKind::begin_capture, ends = facts.kind == CallKind::end_capture;
  if (!begins && !recorder->is_capturing()) return;
  std::vector<capture::CaptureBook::ActiveCapture> broken;
  for (const auto& active : recorder->with_book([](capture::CaptureBook& book) { return book.active(); })) {
    const auto stream = reinterpret_cast<CUstream>(active.origin_stream);
    const bool is_own = ends && facts.stream == stream;
    if (!active.has_failed && (is_own || capture_state(stream).is_broken)) broken.push_back(active);
  }
  if (broken.empty() && !begins) return;
  capture::Failure failure;
  failure.call = data.functionName == nullptr ? "unknown" : data.functionName;
  failure.error = error;
  failure.is_broken_before = !ends || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  failure.has_stream = facts.has_stream;
  failure.stream = handle_of(facts.stream);
  failure.sequence = recorder->next_sequence();
  failure.thread = thread_id();
  failure.stack = call.is_capturing ? call.origin.stack : kNone;
  if (failure.stack == kNone) failure.stack = recorder->take_stack();
  if (begins) {
    capture::GraphEntry entry;
    entry.captured = true;
    entry.mode = capture_mode(id, data.functionParams);
    entry.origin_stream = failure.stream;
    entry.begin_sequence = entry.end_sequence = failure.sequence;
    entry.failure = failure;
    entry.failure->is_broken_before = false;
    recorder->write_failed(std::move(entry));
  }
  recorder->with_book([&](capture::CaptureBook& book) {
    for (const auto& active : broken) book.capture_failed(active.origin_stream, failure);
  });
  // At once: a program may abort on the error, and never end its capture.
  if (ends) return;
  for (const auto& active : broken) {
    const std::optional<capture::GraphEntry> entry =
        recorder->with_book([&](capture::CaptureBook& book) { return book.copy_failed(active.origin_stream); });
    if (entry) recorder->write_failed(*entry);
  }
}

// A capture ended without a graph.
void note_failed_end(const SyncCall& sync) {
  std::optional<capture::GraphEntry> entry = recorder->with_book(
      [&](capture::CaptureBook& book) { return book.take_failed(sync.stream); });
  if (!entry || entry->is_written) return;
  entry->end_sequence = sync.sequence;
  entry->syncs.push_back(sync);
  recorder->write_failed(std::move(*entry));
}

void note_instantiated(bool ok) {
  const std::uint64_t end_ns = now_ns();
  if (call.pending != nullptr && ok) {
    const auto ns = static_cast<std::int64_t>(end_ns - call.enter_ns) - call.pending->walk_ns;
    std::size_t free_bytes = 0, total = 0;
    std::uint64_t used = 0;
    if (call.free_bytes != 0 && driver->mem_get_info(&free_bytes, &total) == CUDA_SUCCESS &&
        free_bytes < call.free_bytes)
      used = call.free_bytes - free_bytes;
    recorder->write_instantiated(*call.pending, handle_of(call.exec), std::max<std::int64_t>(ns, 0), used);
    if (call.clones != nullptr)
      for (const auto& [original, clone] : *call.clones) recorder->add_clone(*call.pending, original, clone);
  }
  drop_instantiation();
}

void note_waited(const CaptureState& state) {
  if (!state.is_active) return;
  const bool joins = !call.is_capturing;  // the wait made the stream part of the capture
  if (joins) {
    call.origin.sequence = recorder->next_sequence();
    note_priority(call.facts.stream);
  }
  std::vector<Handle> before, after;
  if (call.before_is_whole) {
    for (std::size_t i = 0; i < call.before_count; ++i) before.push_back(handle_of(call.before[i]));
    for (std::size_t i = 0; i < state.count; ++i) after.push_back(handle_of(state.dependencies[i]));
  }
  const auto kind = call.facts.kind == CallKind::event_wait ? SyncCall::Kind::event_wait
                                                            : SyncCall::Kind::update_dependencies;
  const SyncCall sync = sync_call(kind, joins ? recorder->take_stack() : call.origin.stack);
  recorder->with_book(
      [&](capture::CaptureBook& book) { book.event_waited(handle_of(state.graph), sync, before, after); });
}

void note_conditional(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  const CUgraphNodeParams* const params = added_node(id, data.functionParams);
  // Both versions begin with the new node and its graph.
  const auto* const first = static_cast<const cuGraphAddNode_params*>(data.functionParams);
  if (params == nullptr || params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || first->phGraphNode == nullptr)
    return;
  const CUDA_CONDITIONAL_NODE_PARAMS& made = params->conditional;
  capture::Conditional conditional;
  conditional.type = made.type == CU_GRAPH_COND_TYPE_WHILE ? "while"
                     : made.type == CU_GRAPH_COND_TYPE_IF  ? "if"
                                                           : "switch";
  for (unsigned i = 0; i < made.size && made.phGraph_out != nullptr; ++i)
    conditional.bodies.push_back(handle_of(made.phGraph_out[i]));
  recorder->with_book([&](capture::CaptureBook& book) {
    book.conditional(handle_of(first->hGraph), handle_of(*first->phGraphNode), std::move(conditional));
  });
}

void on_exit(CUpti_CallbackId id, const CUpti_CallbackData& data) {
  const CUresult result = data.functionReturnValue == nullptr
                              ? CUDA_ERROR_UNKNOWN
                              : *static_cast<const CUresult*>(data.functionReturnValue);
  const bool ok = result == CUDA_SUCCESS;
  if (!ok) note_failure(id, data, result);
  if (call.depth == 0) return;  // entered before we subscribed
  if (read_call(id, data.functionParams).kind == CallKind::none || --call.depth != 0) return;
  const CallKind kind = call.facts.kind;
  if (kind == CallKind::alloc && ok) note_allocation(id, data);
  if (kind == CallKind::free && !ok && call.freed.size_bytes != 0)
    recorder->with_timeline([&](capture::AllocationTimeline& timeline) { timeline.restore(call.freed); });
  if (kind == CallKind::add_node && ok) note_conditional(id, data);
  if (kind == CallKind::instantiate) note_instantiated(ok);
  if (kind == CallKind::exec_update) recorder->exec_updated(handle_of(call.facts.exec), ok);
  if (kind == CallKind::upload && ok)
    recorder->exec_uploaded(handle_of(call.facts.exec), static_cast<std::int64_t>(now_ns() - call.enter_ns));
  if ((kind == CallKind::node || kind == CallKind::blocking_copy) && ok && !call.is_capturing && recorder->records_eager())
    note_eager(id, data);
  if (kind == CallKind::begin_capture && ok) {
    const CaptureState state = capture_state(call.facts.stream);
    if (!state.is_active) return;
    note_priority(call.facts.stream);
    call.origin.sequence = recorder->next_sequence();
    const SyncCall sync = sync_call(SyncCall::Kind::begin_capture, recorder->take_stack());
    const char* const mode = capture_mode(id, data.functionParams);
    recorder->with_book(
        [&](capture::CaptureBook& book) { book.begin_capture(handle_of(state.graph), mode, sync); });
    recorder->count_captures();
  } else if (kind == CallKind::end_capture) {
    if (!recorder->is_capturing()) return;
    if (call.origin.sequence == 0) call.origin.sequence = recorder->next_sequence();
    const SyncCall sync = sync_call(SyncCall::Kind::end_capture, call.origin.stack);
    if (ok && call.is_capturing) {
      recorder->with_book([&](capture::CaptureBook& book) { book.end_capture(handle_of(call.graph), sync); });
      recorder->mark_moment();
    } else {
      // A call on the wrong stream or thread ends nothing.
      const CaptureState state = capture_state(call.facts.stream);
      if (!state.is_active && !state.is_broken) note_failed_end(sync);
    }
    recorder->count_captures();
  } else if (kind == CallKind::event_record && ok && call.is_capturing) {
    const SyncCall sync = sync_call(SyncCall::Kind::event_record, call.origin.stack);
    recorder->with_book(
        [&](capture::CaptureBook& book) { book.event_recorded(handle_of(call.graph), sync); });
  } else if ((kind == CallKind::event_wait || kind == CallKind::update_dependencies) && ok &&
             recorder->is_capturing()) {
    note_waited(capture_state(call.facts.stream));
  } else if (makes_nodes(kind) && ok && call.is_capturing) {
    const CaptureState state = capture_state(call.facts.stream);
    if (!state.is_active || state.count != 1) return;
    const CUgraphNode node = state.dependencies[0];
    recorder->with_book([&](capture::CaptureBook& book) {
      book.node_captured(handle_of(state.graph), handle_of(node), call.origin);
    });
  }
}

// Driver locks may be held here: the books only, no calls back but those that CUPTI allows (ids), and the
// walk of a graph that is being instantiated.
void on_resource(CUpti_CallbackId id, const CUpti_ResourceData& data) {
  const auto* const graph = static_cast<const CUpti_GraphData*>(data.resourceDescriptor);
  if (graph == nullptr) return;
  switch (id) {
    case CUPTI_CBID_RESOURCE_GRAPH_CREATED:
      recorder->with_book([&](capture::CaptureBook& book) { book.graph_created(handle_of(graph->graph)); });
      break;
    case CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING:
      recorder->with_book([&](capture::CaptureBook& book) { book.graph_destroyed(handle_of(graph->graph)); });
      break;
    case CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED: {
      NodeOrigin origin = call.origin;
      if (call.depth == 0 || !call.is_capturing) {
        if (call.depth == 0 || call.facts.kind != CallKind::add_node) origin = {};
        origin.sequence = recorder->next_sequence();
        origin.thread = thread_id();
      }
      recorder->with_book([&](capture::CaptureBook& book) {
        book.node_created(handle_of(graph->graph), handle_of(graph->node), origin);
      });
      break;
    }
    case CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING:
      recorder->with_book([&](capture::CaptureBook& book) {
        book.node_destroyed(handle_of(graph->graph), handle_of(graph->node));
      });
      break;
    case CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING: {
      const bool has_flags = call.depth != 0 && call.has_flags;
      auto made = recorder->walk(graph->graph, has_flags ? std::optional(call.flags) : std::nullopt);
      if (call.depth != 0 && call.facts.kind == CallKind::instantiate) {
        // Written when the call returns: then its time is known.
        delete call.pending;
        call.pending = made.release();
      } else {
        recorder->write_instantiated(*made, 0, 0, 0);
      }
      break;
    }
    case CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED:
      call.exec = graph->graphExec;
      break;
    case CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING:
      recorder->exec_destroyed(handle_of(graph->graphExec));
      break;
    // The driver clones the nodes first, then announces the executable graph (seen with driver 580).
    case CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED: {
      std::uint64_t clone = 0;
      if (call.depth == 0 || call.facts.kind != CallKind::instantiate) {
        // A graph that was copied, or added as a child: its nodes come from where the first ones came from.
        recorder->with_book([&](capture::CaptureBook& book) {
          book.node_cloned(handle_of(graph->originalGraph), handle_of(graph->originalNode), handle_of(graph->graph),
                           handle_of(graph->node));
        });
        break;
      }
      if (!recorder->records_replays()) break;
      if (cupti->get_graph_node_id(graph->node, &clone) != CUPTI_SUCCESS) break;
      if (call.clones == nullptr) call.clones = new std::vector<std::pair<Handle, std::uint64_t>>;
      call.clones->emplace_back(handle_of(graph->originalNode), clone);
      break;
    }
    default:
      break;
  }
}

// After a call, with no lock of the driver held.
void between_calls() {
  if (recorder->flush_is_due()) recorder->flush();
  if (call.facts.kind == CallKind::free) recorder->flush_held_frees();
  const bool launched = call.facts.kind == CallKind::graph_launch && !call.is_capturing && call.facts.exec != nullptr;
  const bool enough = launched && recorder->exec_launched(handle_of(call.facts.exec));
  if (launched && recorder->records_replays()) stop_tracing_if_done();
  if (enough) detach("after " + std::to_string(recorder->settings().detach_launches) + " graph launches");
  if (!is_detaching.load(std::memory_order_relaxed) && recorder->detach_is_due())
    detach("after " + std::to_string(recorder->settings().detach_after_ns / 1'000'000'000) + " s");
  call.facts = {};
}

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (!recorder->is_on() || call.is_inside) return;
  call.is_inside = true;
  try {
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
      const auto& info = *static_cast<const CUpti_CallbackData*>(data);
      if (info.callbackSite == CUPTI_API_ENTER) {
        on_enter(id, info);
      } else {
        on_exit(id, info);
        if (call.depth == 0) between_calls();
      }
    } else if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
      on_resource(id, *static_cast<const CUpti_ResourceData*>(data));
    }
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is being cancelled
  } catch (...) {
    recorder->switch_off("out of memory");
  }
  call.is_inside = false;
}

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

void CUPTIAPI on_buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI on_buffer_completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                                  std::size_t valid_size) {
  try {
    using Kind = capture::ActivityKind;
    const auto kernel = capture::activity_layout(Kind::kernel, cupti->version), memcpy = capture::activity_layout(Kind::memcpy, cupti->version),
               memset = capture::activity_layout(Kind::memset, cupti->version);
    std::vector<capture::ActivityOp> operations;
    CUpti_Activity* record = nullptr;
    while (valid_size != 0 && cupti->activity_get_next_record(buffer, valid_size, &record) == CUPTI_SUCCESS) {
      const auto read = [&](Kind kind, const capture::ActivityLayout& layout) {
        operations.push_back(capture::read_activity(kind, layout, reinterpret_cast<const unsigned char*>(record)));
      };
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) read(Kind::kernel, *kernel);
      if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) read(Kind::memcpy, *memcpy);
      if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) read(Kind::memset, *memset);
    }
    std::size_t dropped = 0;
    cupti->activity_get_num_dropped_records(context, stream, &dropped);
    recorder->add_operations(operations, dropped);
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (...) {
    recorder->switch_off("out of memory");
  }
  std::free(buffer);
}

void on_flush_signal(int) {
  recorder->request_flush();
}

void at_exit() {
  if (getpid() != owner || is_detaching.load()) return;
  try {
    if (is_tracing.load()) cupti->activity_flush_all(1);
    recorder->finish();
  } catch (...) {
    recorder->switch_off("out of memory");
  }
}

std::string subscribe() {
  std::array<char, 128> holder{};
  CUptiResult result;
  // From CUDA 13.2 on CUPTI refuses to trace with the first interface of the activity API for who subscribed with the second.
  constexpr std::uint32_t kCuda13_2 = 130200;
  if (cupti->subscribe_v2 != nullptr && cupti->version < kCuda13_2) {
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "cglint";
    params.oldSubscriberName = holder.data();
    params.oldSubscriberSize = holder.size();
    result = cupti->subscribe_v2(&subscriber, on_callback, nullptr, &params);
  } else {
    result = cupti->subscribe(&subscriber, on_callback, nullptr);
  }
  if (result == CUPTI_SUCCESS) return "";
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    std::string_view name = holder.data();
    constexpr std::string_view kPrefix = "CUPTI for ";  // CUPTI 13.0 puts it before the name
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    return "CUPTI is in use by " + std::string(name.empty() ? "another tool" : name);
  }
  const char* text = nullptr;
  cupti->get_result_string(result, &text);
  return std::string("CUPTI refused: ") + (text == nullptr ? "unknown error" : text);
}

std::string start() {
  driver = new cuda::DriverApi;
  if (std::string problem = cuda::load_driver(*driver); !problem.empty()) return problem;
  int driver_version = 0;
  if (driver->driver_get_version(&driver_version) != CUDA_SUCCESS)
    return "the driver does not tell its version";
  cupti = new cuda::CuptiApi;
  if (std::string problem = cuda::load_cupti(*cupti, driver_version); !problem.empty()) return problem;
  recorder = new Recorder(settings_from_environment(), *driver, *cupti);
  if (!capture::activity_layout(capture::ActivityKind::kernel, cupti->version))
    recorder->refuse_replays("the record layouts of this CUPTI version are not known");
  if (std::string problem = subscribe(); !problem.empty()) return problem;
  owner = getpid();
  bool enabled = true;
  for (const CUpti_CallbackId id :
       {CUPTI_CBID_RESOURCE_GRAPH_CREATED, CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING,
        CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING,
        CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING, CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED,
        CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
    enabled = cupti->enable_callback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, id) == CUPTI_SUCCESS && enabled;
  if (!enabled) {
    cupti->unsubscribe(subscriber);
    return "this CUPTI has no graph callbacks";
  }
  // Calls that an older CUPTI does not know do not happen there.
  for_each_call(
      [](CUpti_CallbackId id, void* argument) {
        cupti->enable_callback(1, static_cast<CUpti_SubscriberHandle>(argument), CUPTI_CB_DOMAIN_DRIVER_API,
                               id);
      },
      subscriber);
  if (recorder->records_replays()) {
    if (cupti->activity_register_callbacks(on_buffer_requested, on_buffer_completed) != CUPTI_SUCCESS ||
        !start_tracing()) {
      recorder->refuse_replays("CUPTI refused to trace it");
      log_line("CUPTI refused to trace GPU activity: graphs are recorded without replays");
    }
  }
  if (const int number = recorder->settings().flush_signal; number > 0) {
    struct sigaction action = {}, before = {};
    action.sa_handler = on_flush_signal;
    action.sa_flags = SA_RESTART;
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) {
      sigaction(number, &action, nullptr);
    } else {
      log_line("the program handles signal " + std::to_string(number) + " itself: it does not flush the recording");
    }
  }
  std::atexit(at_exit);
  return "";
}

}  // namespace
}  // namespace cglint::record

// For programs that know when a look is due (after a weight reload, say): what changed since the last write is
// in the file when this returns. 0; 1 where nothing is recorded.
extern "C" __attribute__((visibility("default"))) int cglint_record_flush() {
  try {
    if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 1;
    cglint::record::recorder->flush();
    return 0;
  } catch (...) {
    return 1;
  }
}

// The state of a framework's caching allocator, told by whoever can ask it (tools/cglint_record/python). Called
// on threads of the program, in no callback and with no lock of the driver held.
//
// From here on graphs promise that lines with the allocator's blocks follow. 0; 1 where nothing is recorded.
extern "C" __attribute__((visibility("default"))) int cglint_record_expect_blocks() {
  if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 1;
  cglint::record::recorder->expect_blocks();
  return 0;
}

// A sequence number, to be taken before the allocator is asked; 0 where nothing is recorded.
extern "C" __attribute__((visibility("default"))) std::uint64_t cglint_record_moment() {
  if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 0;
  return cglint::record::recorder->next_sequence();
}

// All blocks of the allocator at that moment: `blocks` times six words (capture/allocator_blocks.h, with times) and
// the names of the pools, "" for the general one; copied. 0; 1 where nothing is recorded; 2 for impossible
// values; 3 where no graph was recorded yet, so that there is no file.
extern "C" __attribute__((visibility("default"))) int cglint_record_blocks(std::uint64_t moment, const std::uint64_t* words,
                                                                          std::size_t blocks, const char* const* pools,
                                                                          std::size_t pool_count) {
  try {
    if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 1;
    constexpr std::size_t kMost = std::size_t{1} << 24;
    if (blocks > kMost || pool_count > kMost || (words == nullptr && blocks != 0) || (pools == nullptr && pool_count != 0)) return 2;
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < pool_count; ++i) names.emplace_back(pools[i] == nullptr ? "" : pools[i]);
    const std::span all(words, blocks * cglint::capture::kBlockWords);
    if (!cglint::capture::check_blocks(all, pool_count).empty()) return 2;
    return cglint::record::recorder->add_blocks(all, names, moment) ? 0 : 3;
  } catch (...) {
    return 1;
  }
}

// The allocator could not be asked: graphs that were recorded since cglint_record_expect_blocks() do not have its
// state after all. `why` is copied.
extern "C" __attribute__((visibility("default"))) int cglint_record_blocks_failed(const char* why) {
  try {
    if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 1;
    cglint::record::recorder->blocks_failed(why == nullptr ? "unknown reason" : why);
    return 0;
  } catch (...) {
    return 1;
  }
}

// Not all of the allocator's calls since the last look are known: blocks may have changed hands without a later
// time. Said once, at the end of the file.
extern "C" __attribute__((visibility("default"))) int cglint_record_blocks_missed() {
  if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on()) return 1;
  cglint::record::recorder->blocks_missed();
  return 0;
}

// The program leaves the calling thread's open capture because of an error of its own (a framework's check, an exception):
// the driver may then end it well, with a part of the step. Frames innermost first; everything is copied. 0; 1 where
// nothing is recorded or the capture is known to have failed.
extern "C" __attribute__((visibility("default"))) int cglint_record_capture_left(const char* error, const char* const* files,
                                                                                const char* const* functions,
                                                                                const std::uint32_t* lines, std::size_t count) {
  try {
    if (cglint::record::recorder == nullptr || !cglint::record::recorder->is_on() || error == nullptr) return 1;
    std::vector<cglint::capture::FrameText> frames;
    for (std::size_t i = 0; i < count && files != nullptr && functions != nullptr && lines != nullptr; ++i)
      frames.push_back({files[i] == nullptr ? "" : files[i], functions[i] == nullptr ? "" : functions[i], lines[i]});
    return cglint::record::recorder->capture_left(error, std::move(frames)) ? 0 : 1;
  } catch (...) {
    return 1;
  }
}

// How often what had changed was written (on demand, or after a burst of captures): each is a reason to look again.
extern "C" __attribute__((visibility("default"))) std::uint64_t cglint_record_flushes() {
  return cglint::record::recorder == nullptr ? 0 : cglint::record::recorder->flushes();
}

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  std::string problem;
  try {
    cglint::record::add_to_list(cglint::record::kListLoaded);
    problem = cglint::record::start();
  } catch (...) {
    problem = "out of memory";
  }
  if (!problem.empty()) {
    cglint::record::recorder = nullptr;  // no callbacks come; the calls below say that nothing is recorded
    cglint::record::log_line(problem + "; this process is not recorded");
    cglint::record::add_to_list(cglint::record::kListOff);
  }
  return 1;
}
