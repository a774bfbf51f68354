#include "capture/capture_book.h"

#include <algorithm>

namespace cglint::capture {

std::string_view sync_kind_name(SyncCall::Kind kind) {
  switch (kind) {
    case SyncCall::Kind::event_record:
      return "event_record";
    case SyncCall::Kind::event_wait:
      return "event_wait";
    case SyncCall::Kind::begin_capture:
      return "begin_capture";
    case SyncCall::Kind::end_capture:
      return "end_capture";
    case SyncCall::Kind::update_dependencies:
      break;
  }
  return "update_dependencies";
}

void CaptureBook::begin_capture(Handle graph, const char* mode, const SyncCall& call) {
  GraphEntry& entry = graphs_[graph];
  entry.captured = true;
  entry.mode = mode;
  entry.origin_stream = call.stream;
  if (entry.begin_sequence == 0) entry.begin_sequence = call.sequence;
  entry.syncs.push_back(call);
}

void CaptureBook::end_capture(Handle graph, bool ok, const SyncCall& call) {
  GraphEntry& entry = graphs_[graph];
  entry.captured = true;
  entry.status = ok ? "ok" : "failed";
  entry.end_sequence = call.sequence;
  entry.syncs.push_back(call);
  entry.pending_edges.clear();
  entry.last_record.clear();
}

void CaptureBook::node_created(Handle graph, Handle node, const NodeOrigin& origin) {
  graphs_[graph].nodes.try_emplace(node, origin);
}

void CaptureBook::node_destroyed(Handle graph, Handle node) {
  const auto place = graphs_.find(graph);
  if (place != graphs_.end()) place->second.nodes.erase(node);
}

void CaptureBook::node_captured(Handle graph, Handle node, const NodeOrigin& origin) {
  GraphEntry& entry = graphs_[graph];
  entry.nodes.try_emplace(node, origin);
  const auto pending = entry.pending_edges.find(origin.stream);
  if (pending == entry.pending_edges.end()) return;
  for (const auto& [from, sync] : pending->second) entry.edge_sync.try_emplace({from, node}, sync);
  entry.pending_edges.erase(pending);
}

void CaptureBook::event_recorded(Handle graph, const SyncCall& call) {
  GraphEntry& entry = graphs_[graph];
  entry.last_record[call.event] = static_cast<std::uint32_t>(entry.syncs.size());
  entry.syncs.push_back(call);
}

void CaptureBook::event_waited(Handle graph, const SyncCall& call, std::span<const Handle> before,
                               std::span<const Handle> after) {
  GraphEntry& entry = graphs_[graph];
  const auto index = static_cast<std::uint32_t>(entry.syncs.size());
  entry.syncs.push_back(call);
  const auto record = entry.last_record.find(call.event);
  if (record != entry.last_record.end()) entry.syncs.back().record = record->second;
  std::vector<std::pair<Handle, std::uint32_t>>& pending = entry.pending_edges[call.stream];
  for (const Handle node : after)
    if (std::find(before.begin(), before.end(), node) == before.end()) pending.emplace_back(node, index);
}

void CaptureBook::conditional(Handle graph, Handle node, Conditional details) {
  graphs_[graph].conditionals[node] = std::move(details);
}

const GraphEntry* CaptureBook::find(Handle graph) const {
  const auto place = graphs_.find(graph);
  return place == graphs_.end() ? nullptr : &place->second;
}

}  // namespace cglint::capture
