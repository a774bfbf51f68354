// What the callbacks of a process tell about its graphs while they are made: on which stream, thread and
// source stack each node came into being, the captures' synchronisation calls, and which of these calls each
// edge came from. Handles are opaque numbers. Not thread safe; a graph's entry goes when the graph is
// destroyed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/stack_table.h"

namespace cglint::capture {

using Handle = std::uint64_t;

struct NodeOrigin {
  std::uint64_t sequence = 0;
  Handle stream = 0;
  bool has_stream = false;  // false: made by the explicit API, or the call is not known
  std::uint32_t thread = 0;
  std::uint32_t stack = kNone;
  std::uint32_t nvtx = kNone;   // in a RangeTable
  std::uint32_t name = kNone;   // of the kernel, in a NameTable
  const char* kind = nullptr;   // a name of the schema; null: unknown until the graph is walked
};

struct SyncCall {
  enum class Kind : std::uint8_t {
    event_record,
    event_wait,
    begin_capture,
    end_capture,
    update_dependencies
  };
  Kind kind = Kind::event_wait;
  Handle stream = 0, event = 0;
  std::uint64_t sequence = 0;
  std::uint32_t record = kNone;  // event_wait: index of its record
  std::uint32_t thread = 0;
  std::uint32_t stack = kNone;
  bool unjoined = false;  // event_wait that forked a stream which was never joined
};
std::string_view sync_kind_name(SyncCall::Kind kind);

// The call that broke a capture.
struct Failure {
  std::string call;                // as the driver names it
  std::string error;               // its result, as cuda.h names it
  bool is_broken_before = false;   // the capture was over before cuStreamEndCapture said so
  bool has_stream = false;
  Handle stream = 0;
  std::uint64_t sequence = 0;
  std::uint32_t thread = 0;
  std::uint32_t stack = kNone;
};

struct Conditional {
  const char* type = "if";  // a name of the schema
  std::vector<Handle> bodies;
};

struct GraphEntry {
  bool captured = false;
  const char* mode = "unknown";    // a name of the schema's capture_mode
  const char* status = "unknown";  // of its capture_status
  Handle origin_stream = 0;
  std::uint64_t begin_sequence = 0, end_sequence = 0;
  std::optional<Failure> failure;
  bool is_written = false;  // as a failed capture
  std::unordered_map<Handle, NodeOrigin> nodes;
  std::vector<SyncCall> syncs;
  std::map<std::pair<Handle, Handle>, std::uint32_t> edge_sync;
  std::unordered_map<Handle, Conditional> conditionals;

  std::unordered_map<Handle, std::uint32_t> last_record;                                    // by event
  std::unordered_map<Handle, std::vector<std::pair<Handle, std::uint32_t>>> pending_edges;  // by stream
};

class CaptureBook {
 public:
  // A graph handle came into being (again): what was known of it is forgotten. A graph that goes while it is
  // being captured is kept until its capture ends.
  void graph_created(Handle graph) { graph_destroyed(graph); }
  void graph_destroyed(Handle graph);
  void begin_capture(Handle graph, const char* mode, const SyncCall& call);
  void end_capture(Handle graph, const SyncCall& call);

  // Captures that have begun and not ended, by origin stream.
  struct ActiveCapture {
    Handle origin_stream = 0, graph = 0;
    bool has_failed = false;
    std::uint32_t thread = 0;          // that began it
    std::uint64_t begin_sequence = 0;
  };
  [[nodiscard]] std::vector<ActiveCapture> active() const;
  // The first failure of a capture is its cause; those that follow are its consequences.
  void capture_failed(Handle origin_stream, const Failure& failure);
  // What is known of a capture that has failed; from then on it counts as written.
  std::optional<GraphEntry> copy_failed(Handle origin_stream);
  // Ends a failed capture: what was known of it, or nothing where no capture is known there.
  std::optional<GraphEntry> take_failed(Handle origin_stream);

  // First statement wins: the callback that saw the node being made knows more than a later one.
  void node_created(Handle graph, Handle node, const NodeOrigin& origin);
  // `node` is a copy: it comes from where the other node came from, if that is known.
  void node_cloned(Handle original_graph, Handle original, Handle graph, Handle node);
  void node_destroyed(Handle graph, Handle node);
  // `node` is the new tail of `origin.stream`: the dependencies that waits had given to the stream are its
  // edges.
  void node_captured(Handle graph, Handle node, const NodeOrigin& origin);
  void event_recorded(Handle graph, const SyncCall& call);
  // The stream's dependencies before and after the wait; before is empty where the wait made it part of the
  // capture.
  void event_waited(Handle graph, const SyncCall& call, std::span<const Handle> before,
                    std::span<const Handle> after);
  void conditional(Handle graph, Handle node, Conditional details);
  [[nodiscard]] const GraphEntry* find(Handle graph) const;
  [[nodiscard]] std::size_t graph_count() const { return graphs_.size(); }

  // Kernel names of captured nodes; each is kept once.
  std::uint32_t intern_name(std::string_view name);
  [[nodiscard]] const std::string& name(std::uint32_t id) const { return *names_[id]; }

 private:
  struct Active {
    Handle graph = 0;
    std::optional<GraphEntry> orphan;  // of a graph that is gone
  };
  GraphEntry* entry_of(Active& active);

  std::unordered_map<Handle, GraphEntry> graphs_;
  std::map<Handle, Active> active_;  // by origin stream
  std::map<std::string, std::uint32_t, std::less<>> name_ids_;
  std::vector<const std::string*> names_;  // keys of name_ids_
};

// Marks the waits that forked a stream whose last work the origin stream never waited for. Exact where event
// records and waits made the capture's dependencies.
void mark_unjoined(GraphEntry& entry);

}  // namespace cglint::capture
