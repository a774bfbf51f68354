// What the callbacks of a process tell about its graphs while they are made: on which stream, thread and
// source stack each node came into being, the captures' synchronisation calls, and which of these calls each
// edge came from. Handles are opaque numbers. Not thread safe; a graph's entry goes when the graph is
// destroyed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
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
};
std::string_view sync_kind_name(SyncCall::Kind kind);

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
  std::unordered_map<Handle, NodeOrigin> nodes;
  std::vector<SyncCall> syncs;
  std::map<std::pair<Handle, Handle>, std::uint32_t> edge_sync;
  std::unordered_map<Handle, Conditional> conditionals;

  std::unordered_map<Handle, std::uint32_t> last_record;                                    // by event
  std::unordered_map<Handle, std::vector<std::pair<Handle, std::uint32_t>>> pending_edges;  // by stream
};

class CaptureBook {
 public:
  // A graph handle came into being (again): what was known of it is forgotten.
  void graph_created(Handle graph) { graphs_.erase(graph); }
  void graph_destroyed(Handle graph) { graphs_.erase(graph); }
  void begin_capture(Handle graph, const char* mode, const SyncCall& call);
  void end_capture(Handle graph, bool ok, const SyncCall& call);
  // First statement wins: the callback that saw the node being made knows more than a later one.
  void node_created(Handle graph, Handle node, const NodeOrigin& origin);
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

 private:
  std::unordered_map<Handle, GraphEntry> graphs_;
};

}  // namespace cglint::capture
