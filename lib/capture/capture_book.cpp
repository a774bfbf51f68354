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
  active_[call.stream] = {graph, std::nullopt};
}

void CaptureBook::graph_destroyed(Handle graph) {
  const auto place = graphs_.find(graph);
  if (place == graphs_.end()) return;
  for (auto& [stream, active] : active_)
    if (active.graph == graph && !active.orphan) active.orphan = std::move(place->second);
  graphs_.erase(place);
}

void CaptureBook::end_capture(Handle graph, const SyncCall& call) {
  std::erase_if(active_, [&](const auto& active) { return active.second.graph == graph; });
  GraphEntry& entry = graphs_[graph];
  entry.captured = true;
  entry.status = "ok";
  entry.failure.reset();  // the program left it early, which is written; what it had captured by then is a graph
  entry.is_written = false;
  entry.end_sequence = call.sequence;
  entry.syncs.push_back(call);
  entry.pending_edges.clear();
  entry.last_record.clear();
}

void CaptureBook::node_created(Handle graph, Handle node, const NodeOrigin& origin) {
  graphs_[graph].nodes.try_emplace(node, origin);
}

void CaptureBook::node_cloned(Handle original_graph, Handle original, Handle graph, Handle node) {
  const auto place = graphs_.find(original_graph);
  if (place == graphs_.end() || graph == 0 || graph == original_graph) return;
  const auto known = place->second.nodes.find(original);
  if (known == place->second.nodes.end()) return;
  const NodeOrigin origin = known->second;
  graphs_[graph].nodes[node] = origin;
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

GraphEntry* CaptureBook::entry_of(Active& active) {
  if (active.orphan) return &*active.orphan;
  const auto place = graphs_.find(active.graph);
  return place == graphs_.end() ? nullptr : &place->second;
}

std::vector<CaptureBook::ActiveCapture> CaptureBook::active() const {
  std::vector<ActiveCapture> captures;
  for (const auto& [stream, active] : active_) {
    const GraphEntry* const entry = active.orphan ? &*active.orphan : find(active.graph);
    captures.push_back({stream, active.graph, entry != nullptr && entry->failure.has_value()});
    if (entry == nullptr) continue;
    captures.back().begin_sequence = entry->begin_sequence;
    for (const SyncCall& call : entry->syncs)
      if (call.kind == SyncCall::Kind::begin_capture) captures.back().thread = call.thread;
  }
  return captures;
}

void CaptureBook::capture_failed(Handle origin_stream, const Failure& failure) {
  const auto place = active_.find(origin_stream);
  if (place == active_.end()) return;
  GraphEntry* const entry = entry_of(place->second);
  if (entry != nullptr && !entry->failure) entry->failure = failure;
}

std::optional<GraphEntry> CaptureBook::copy_failed(Handle origin_stream) {
  const auto place = active_.find(origin_stream);
  GraphEntry* const entry = place == active_.end() ? nullptr : entry_of(place->second);
  if (entry == nullptr || !entry->failure || entry->is_written) return std::nullopt;
  GraphEntry copy = *entry;
  entry->is_written = true;
  return copy;
}

std::optional<GraphEntry> CaptureBook::take_failed(Handle origin_stream) {
  const auto place = active_.find(origin_stream);
  if (place == active_.end()) return std::nullopt;
  std::optional<GraphEntry> taken;
  if (GraphEntry* const entry = entry_of(place->second)) taken = std::move(*entry);
  if (!place->second.orphan) graphs_.erase(place->second.graph);
  active_.erase(place);
  return taken;
}

std::uint32_t CaptureBook::intern_name(std::string_view name) {
  auto place = name_ids_.find(name);
  if (place == name_ids_.end()) {
    place = name_ids_.emplace(std::string(name), static_cast<std::uint32_t>(names_.size())).first;
    names_.push_back(&place->first);
  }
  return place->second;
}

void mark_unjoined(GraphEntry& entry) {
  // What each stream has seen of each other one: the sequence up to which it waits for it.
  using Seen = std::map<Handle, std::uint64_t>;
  std::map<Handle, Seen> streams;
  std::vector<Seen> at_record(entry.syncs.size());
  std::map<Handle, std::size_t> fork;  // the wait by which a stream became part of the capture
  for (std::size_t i = 0; i < entry.syncs.size(); ++i) {
    const SyncCall& call = entry.syncs[i];
    Seen& seen = streams[call.stream];
    if (call.kind == SyncCall::Kind::event_record) {
      at_record[i] = seen;
      at_record[i][call.stream] = call.sequence;
    } else if (call.kind == SyncCall::Kind::event_wait && call.record != kNone) {
      if (call.stream != entry.origin_stream) fork.try_emplace(call.stream, i);
      for (const auto& [stream, sequence] : at_record[call.record]) {
        std::uint64_t& known = seen[stream];
        known = std::max(known, sequence);
      }
    }
  }
  std::map<Handle, std::uint64_t> last_work;
  for (const auto& [node, origin] : entry.nodes)
    if (origin.has_stream) last_work[origin.stream] = std::max(last_work[origin.stream], origin.sequence);
  const Seen& origin = streams[entry.origin_stream];
  for (const auto& [stream, wait] : fork) {
    const auto joined = origin.find(stream);
    const auto work = last_work.find(stream);
    if (work != last_work.end() && (joined == origin.end() || joined->second < work->second))
      entry.syncs[wait].unjoined = true;
  }
}

const GraphEntry* CaptureBook::find(Handle graph) const {
  const auto place = graphs_.find(graph);
  return place == graphs_.end() ? nullptr : &place->second;
}

}  // namespace cglint::capture
