#include "capture/graph_record.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/json_writer.h"

namespace cglint::capture {
namespace {

using base::JsonWriter;

// Numbers things in the order in which they are first asked for.
template <typename Key>
class Numbering {
 public:
  std::uint32_t number(const Key& key) {
    const auto [place, is_new] = index_.try_emplace(key, static_cast<std::uint32_t>(keys_.size()));
    if (is_new) keys_.push_back(key);
    return place->second;
  }
  [[nodiscard]] const std::vector<Key>& keys() const { return keys_; }

 private:
  std::unordered_map<Key, std::uint32_t> index_;
  std::vector<Key> keys_;
};

struct Tables {
  Numbering<Handle> streams;
  Numbering<std::uint32_t> stacks;
  Numbering<std::uint32_t> ranges;
  Numbering<std::uint32_t> frames;
  Numbering<std::string> launches;
};

bool is_kernel(const NodeRecord& node) {
  return node.kind == "kernel";
}
bool is_activity(const NodeRecord& node) {
  return is_kernel(node) || node.kind == "memcpy" || node.kind == "memset";
}

void dim3(JsonWriter& json, const char* name, const std::array<std::uint32_t, 3>& value) {
  json.key(name);
  json.begin_array();
  for (const std::uint32_t part : value) json.number(part);
  json.end_array();
}

std::string launch_text(const GraphRecord& graph, const NodeRecord& node) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  if (node.function != kNone) json.field("function", node.function);
  if (node.details_known) {
    dim3(json, "grid", node.grid);
    dim3(json, "block", node.block);
    json.field("dynamic_shared_bytes", node.dynamic_shared_bytes);
    if (node.function != kNone) {
      const FunctionRecord& function = graph.functions[node.function];
      json.field("static_shared_bytes", function.static_shared_bytes);
      if (function.registers_per_thread != 0)
        json.field("registers_per_thread", function.registers_per_thread);
    }
  }
  if (node.cluster[0] != 0) dim3(json, "cluster", node.cluster);
  if (node.priority) json.field("priority", *node.priority);
  if (node.cooperative) json.field("cooperative", *node.cooperative);
  if (node.programmatic) json.field("programmatic_serialization", *node.programmatic);
  if (!node.words.empty()) {
    json.key("layout");
    json.begin_array();
    for (const WordRecord& word : node.words) {
      json.begin_array();
      json.number(word.slot), json.number(word.offset_bytes), json.number(word.size_bytes);
      json.end_array();
    }
    json.end_array();
  }
  json.end_object();
  return text;
}

void allocation_field(JsonWriter& json, const char* name, std::uint32_t allocation) {
  if (allocation != kNone) json.field(name, allocation);
}

void write_copy(JsonWriter& json, const NodeRecord& node) {
  if (!node.details_known) return;
  const bool is_copy = node.kind == "memcpy";
  if (is_copy && node.src != 0) json.hex_field("src", node.src);
  if (node.dst != 0) json.hex_field("dst", node.dst);
  if (is_copy) {
    if (node.src_pitch_bytes != 0) json.field("src_pitch_bytes", node.src_pitch_bytes);
    if (node.dst_pitch_bytes != 0) json.field("dst_pitch_bytes", node.dst_pitch_bytes);
    json.field("width_bytes", node.width);
    json.field("height", node.height);
    json.field("depth", node.depth);
    if (node.src_kind != nullptr) json.field("src_kind", node.src_kind);
    if (node.dst_kind != nullptr) json.field("dst_kind", node.dst_kind);
    allocation_field(json, "src_allocation", node.src_allocation);
  } else {
    if (node.dst_pitch_bytes != 0) json.field("pitch_bytes", node.dst_pitch_bytes);
    json.field("width", node.width);
    json.field("height", node.height);
    json.field("value", node.value);
    json.field("element_bytes", node.element_bytes);
  }
  allocation_field(json, "dst_allocation", node.dst_allocation);
}

void write_node(JsonWriter& json, const GraphRecord& graph, const NodeRecord& node, Tables& tables) {
  json.begin_object();
  json.field("kind", node.kind);
  if (node.id != 0) json.hex_field("id", node.id);
  if (node.has_origin) {
    if (node.origin.sequence != 0) json.field("sequence", node.origin.sequence);
    if (node.origin.has_stream) json.field("stream", tables.streams.number(node.origin.stream));
    if (node.origin.thread != 0) json.field("thread", node.origin.thread);
    if (node.origin.stack != kNone) json.field("stack", tables.stacks.number(node.origin.stack));
    if (node.origin.nvtx != kNone) json.field("nvtx", tables.ranges.number(node.origin.nvtx));
  }
  if (node.device >= 0) json.field("device", node.device);
  if (node.context != 0) json.hex_field("context", node.context);
  if (is_kernel(node)) {
    json.field("launch", tables.launches.number(launch_text(graph, node)));
    if (node.launches != 1) json.field("launches", node.launches);
    if (!node.words.empty()) {
      json.key("args");
      json.begin_array();
      for (const WordRecord& word : node.words) json.hex(word.value);
      json.end_array();
      if (std::any_of(node.words.begin(), node.words.end(),
                      [](const WordRecord& w) { return w.allocation != kNone; })) {
        json.key("arg_allocations");
        json.begin_array();
        for (const WordRecord& word : node.words)
          word.allocation == kNone ? json.number(-1) : json.number(word.allocation);
        json.end_array();
      }
    }
  }
  if (node.kind == "memcpy" || node.kind == "memset") write_copy(json, node);
  if (node.kind == "host" && node.details_known) {
    std::string text = node.host_symbol;
    if (text.empty()) {
      JsonWriter hex(text);
      hex.hex(node.host_function);
      text = text.substr(1, text.size() - 2);
    }
    json.field("function", std::string_view(text));
    json.hex_field("user_data", node.user_data);
  }
  if (node.event != 0) json.hex_field("event", node.event);
  if (node.kind == "child_graph" && node.bodies.size() == 1 && node.bodies[0] >= 0)
    json.field("body", node.bodies[0]);
  if (node.kind == "conditional" && node.conditional_type != nullptr) {
    json.field("conditional_type", node.conditional_type);
    json.key("bodies");
    json.begin_array();
    for (const std::int64_t body : node.bodies) json.number(body);
    json.end_array();
  }
  if (node.address != 0) json.hex_field("address", node.address);
  if (node.bytes != 0) json.field("bytes", node.bytes);
  allocation_field(json, "allocation", node.allocation);
  if (node.count != 0) json.field("count", node.count);
  json.end_object();
}

struct Spoiled {
  const char* fact;
  std::string reason;
};

// Which facts the graph carries; a fact that only some nodes lack is spoiled, with the reason. It is carried all the same where a node
// shows that it lacks it. Parameters do not: a kernel without words looks like one that takes none. Launches outside capture are samples.
void state_facts(const GraphRecord& graph, std::vector<const char*>& facts, std::vector<Spoiled>& spoiled) {
  std::size_t no_name = 0, no_details = 0, no_words = 0, no_copy = 0, no_stream = 0, no_stack = 0,
              kernels = 0, copies = 0, work = 0, no_attributes = 0;
  for (const NodeRecord& node : graph.nodes) {
    if (is_kernel(node)) {
      ++kernels;
      no_name += node.function == kNone || graph.functions[node.function].name.empty();
      no_details += !node.details_known;
      no_words += !node.words_known;
      no_attributes += !node.priority && !node.cooperative && !node.programmatic;
    } else if (node.kind == "memcpy" || node.kind == "memset") {
      ++copies;
      no_copy += !node.details_known;
    }
    if (!is_activity(node)) continue;
    ++work;
    no_stream += !node.has_origin || !node.origin.has_stream;
    no_stack += !node.has_origin || node.origin.stack == kNone;
  }
  const bool is_eager = std::strcmp(graph.role, "eager") == 0;
  const auto state = [&](const char* fact, std::size_t missing, std::size_t of, const char* what, bool is_carried = true) {
    if (missing == 0) {
      facts.push_back(fact);
    } else if (missing < of) {
      if (is_carried) facts.push_back(fact);
      spoiled.push_back({fact, what + (" of " + std::to_string(missing)) + " of " + std::to_string(of) +
                                   " nodes could not be recorded"});
    }
  };
  if (!graph.failure.empty()) return;
  facts.push_back("nodes");
  facts.push_back("creation_order");
  if (graph.nvtx_known) facts.push_back("nvtx");
  if (graph.eager_known) facts.push_back("eager_launches");
  if (graph.instantiated) facts.push_back("instantiate_info");
  if (graph.edges_known) facts.push_back("edges");
  if (graph.edges_known && graph.edge_data_known) facts.push_back("edge_data");
  state("kernel_names", no_name, kernels, "the name");
  state("launch_config", no_details, kernels, "the launch configuration");
  state("kernel_attributes", no_attributes, kernels, "the attributes");
  state("kernel_params", no_words, kernels, "the parameters", is_eager);
  state("copy_params", no_copy, copies, "the parameters", is_eager);
  if (graph.allocations_known) facts.push_back("allocations");
  if (graph.blocks_expected) facts.push_back("allocator_state");
  if (graph.entry.captured) facts.push_back("sync_ops");
  if ((graph.entry.captured || is_eager) && work != 0) state("capture_streams", no_stream, work, "the stream");
  if (no_stack < work) state("source_frames", no_stack, work, "the source stack");
  if (graph.entry.captured && std::strcmp(graph.entry.status, "unknown") != 0)
    facts.push_back("capture_status");
  if (graph.replays_expected) {
    for (const char* fact : {"replay_streams", "replay_times", "node_identity"}) facts.push_back(fact);
  }
}

void write_info(JsonWriter& json, const GraphRecord& graph, Tables& tables) {
  const GraphEntry& entry = graph.entry;
  json.key("info");
  json.begin_object();
  json.field("name", std::string_view(graph.name.empty() ? "graph_" + std::to_string(graph.number) : graph.name));
  json.field("role", graph.role);
  if (graph.source_id != 0) json.hex_field("source_id", graph.source_id);
  if (graph.parent >= 0) json.field("parent", graph.parent);
  if (graph.parent_node >= 0) json.field("parent_node", graph.parent_node);
  if (entry.captured) {
    json.field("capture_mode", entry.mode);
    json.field("capture_status", entry.status);
    json.field("origin_stream", tables.streams.number(entry.origin_stream));
    if (entry.begin_sequence != 0) json.field("begin_sequence", entry.begin_sequence);
    if (entry.end_sequence != 0) json.field("end_sequence", entry.end_sequence);
    if (entry.failure) {
      const Failure& failure = *entry.failure;
      json.field("failed_call", std::string_view(failure.call));
      json.field("failed_error", std::string_view(failure.error));
      if (failure.thread != 0) json.field("failed_thread", failure.thread);
      if (failure.stack != kNone) json.field("failed_stack", tables.stacks.number(failure.stack));
      if (failure.has_stream) json.field("failed_stream", tables.streams.number(failure.stream));
    }
  }
  if (graph.instantiated) json.field("instantiated", true);
  if (graph.instantiate_flags) json.field("instantiate_flags", *graph.instantiate_flags);
  if (graph.instantiate_ns != 0) json.field("instantiate_ns", graph.instantiate_ns);
  if (graph.memory_bytes != 0) json.field("memory_bytes", graph.memory_bytes);
  json.end_object();
}

void write_functions(JsonWriter& json, const GraphRecord& graph) {
  json.key("functions");
  json.begin_array();
  for (const FunctionRecord& function : graph.functions) {
    json.begin_object();
    json.field("name", std::string_view(function.name));
    if (function.has_params && !function.params.empty()) {
      json.key("params");
      json.begin_array();
      for (const auto& [offset, size] : function.params) {
        json.begin_array();
        json.number(offset), json.number(size);
        json.end_array();
      }
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
}

void write_syncs(JsonWriter& json, const GraphRecord& graph, Tables& tables) {
  json.key("sync_ops");
  json.begin_array();
  for (const SyncCall& call : graph.entry.syncs) {
    json.begin_object();
    json.field("kind", sync_kind_name(call.kind));
    json.field("stream", tables.streams.number(call.stream));
    if (call.event != 0) json.hex_field("event", call.event);
    json.field("sequence", call.sequence);
    if (call.record != kNone) json.field("record", call.record);
    if (call.stack != kNone) json.field("stack", tables.stacks.number(call.stack));
    if (call.thread != 0) json.field("thread", call.thread);
    if (call.unjoined) json.field("unjoined", true);
    json.end_object();
  }
  json.end_array();
}

// After everything that numbers streams, stacks and launches.
void write_tables(JsonWriter& json, const SharedTables& shared, Tables& tables) {
  json.key("launches");
  json.begin_array();
  for (const std::string& launch : tables.launches.keys()) json.raw(launch);
  json.end_array();
  json.key("streams");
  json.begin_array();
  for (const Handle handle : tables.streams.keys()) {
    json.begin_object();
    json.hex_field("handle", handle);
    const auto facts = std::find_if(shared.streams.begin(), shared.streams.end(),
                                    [&](const StreamFacts& s) { return s.handle == handle; });
    if (facts != shared.streams.end() && facts->priority) json.field("priority", *facts->priority);
    json.end_object();
  }
  json.end_array();
  json.key("stacks");
  json.begin_array();
  for (const std::uint32_t stack : tables.stacks.keys()) {
    json.begin_array();
    for (const std::uint32_t frame : shared.stacks.stack(stack)) json.number(tables.frames.number(frame));
    json.end_array();
  }
  json.end_array();
  json.key("frames");
  json.begin_array();
  for (const std::uint32_t index : tables.frames.keys()) {
    const FrameText& frame = shared.stacks.frame(index);
    json.begin_object();
    if (frame.is_native) json.field("kind", "native");
    if (frame.is_generated) json.field("generated", true);
    json.field("file", std::string_view(frame.file));
    json.field("function", std::string_view(frame.function));
    json.field("line", frame.line);
    json.end_object();
  }
  json.end_array();
  if (tables.ranges.keys().empty()) return;
  json.key("nvtx");
  json.begin_array();
  for (const std::uint32_t id : tables.ranges.keys()) {
    json.begin_array();
    for (const std::string& text : shared.ranges.ranges(id)) json.string(text);
    json.end_array();
  }
  json.end_array();
}

}  // namespace

void append_words(std::uint16_t slot, std::span<const unsigned char> bytes, std::vector<WordRecord>& words) {
  for (std::size_t offset = 0; offset < bytes.size() && offset <= 0xffff;) {
    std::size_t size = 8;
    while (size > bytes.size() - offset) size /= 2;
    WordRecord word;
    word.slot = slot;
    word.offset_bytes = static_cast<std::uint16_t>(offset);
    word.size_bytes = static_cast<std::uint8_t>(size);
    std::memcpy(&word.value, bytes.data() + offset, size);
    words.push_back(word);
    offset += size;
  }
}

void resolve_addresses(const AllocationTimeline& timeline, GraphRecord& graph) {
  const auto find = [&](std::uint64_t address) {
    const AllocationRow* const row = address == 0 ? nullptr : timeline.find(address);
    return row == nullptr ? kNone : row->id;
  };
  // What unified addressing left open in a copy, from the allocation's kind.
  const auto kind = [&](std::uint64_t address, const char* known) -> const char* {
    const AllocationRow* const row = address == 0 ? nullptr : timeline.find(address);
    if (row == nullptr || (known != nullptr && std::strcmp(known, "unknown") != 0)) return known;
    if (std::strcmp(row->kind, "host_registered") == 0) return "host_pinned";
    if (std::strcmp(row->kind, "managed") == 0) return "managed";
    return std::strcmp(row->kind, "unknown") == 0 ? known : "device";
  };
  for (NodeRecord& node : graph.nodes) {
    for (WordRecord& word : node.words)
      if (word.size_bytes == 8) word.allocation = find(word.value);
    node.src_allocation = find(node.src);
    node.dst_allocation = find(node.dst);
    node.src_kind = kind(node.src, node.src_kind);
    node.dst_kind = kind(node.dst, node.dst_kind);
    node.allocation = find(node.address);
  }
}

void write_graph(const GraphRecord& graph, const SharedTables& shared, std::string& out) {
  Tables tables;
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "graph");
  json.field("graph", graph.number);
  json.field("process", 0);
  write_info(json, graph, tables);
  std::vector<const char*> facts;
  std::vector<Spoiled> spoiled;
  state_facts(graph, facts, spoiled);
  json.key("facts");
  json.begin_array();
  for (const char* fact : facts) json.string(fact);
  json.end_array();
  if (!spoiled.empty()) {
    json.key("spoiled");
    json.begin_array();
    for (const Spoiled& each : spoiled) {
      json.begin_object();
      json.field("fact", each.fact);
      json.field("reason", std::string_view(each.reason));
      json.end_object();
    }
    json.end_array();
  }
  write_functions(json, graph);
  json.key("nodes");
  json.begin_array();
  for (const NodeRecord& node : graph.nodes) write_node(json, graph, node, tables);
  json.end_array();
  json.key("edges");
  json.begin_array();
  for (const EdgeRecord& edge : graph.edges) {
    json.begin_array();
    json.number(edge.from), json.number(edge.to);
    const bool plain = edge.from_port == 0 && edge.to_port == 0 && edge.type == 0;
    if (!plain || edge.sync != kNone)
      json.number(edge.from_port), json.number(edge.to_port), json.number(edge.type);
    if (edge.sync != kNone) json.number(edge.sync);
    json.end_array();
  }
  json.end_array();
  if (graph.entry.captured) write_syncs(json, graph, tables);
  write_tables(json, shared, tables);
  json.end_object();
  out += '\n';
}

void write_exec(std::uint32_t number, const ExecFacts& facts, bool is_after_end, std::string& out) {
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "exec");
  json.field("graph", number);
  if (!is_after_end && facts.updates != 0) json.field("exec_updates", facts.updates);
  if (!is_after_end && facts.upload_ns != 0) json.field("upload_ns", facts.upload_ns);
  json.field("last_launch_sequence", facts.last_launch_sequence);
  if (facts.destroyed_sequence != 0) json.field("destroyed_sequence", facts.destroyed_sequence);
  if (facts.refused_updates != 0) json.field("failed_updates", facts.refused_updates);
  json.end_object();
  out += '\n';
}

void write_graph_end(std::uint32_t number, std::string& out) {
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "graph_end");
  json.field("graph", number);
  json.end_object();
  out += '\n';
}

void write_allocations(std::span<const AllocationRow> rows, std::string& out) {
  if (rows.empty()) return;
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "allocations");
  json.field("process", 0);
  json.key("allocations");
  json.begin_array();
  for (const AllocationRow& row : rows) {
    json.begin_object();
    json.field("id", row.id);
    json.hex_field("base", row.base);
    json.field("size_bytes", row.size_bytes);
    json.field("kind", row.kind);
    if (row.device >= 0) json.field("device", row.device);
    if (row.alloc_sequence != 0) json.field("alloc_sequence", row.alloc_sequence);
    if (row.free_sequence != 0) json.field("free_sequence", row.free_sequence);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  out += '\n';
}

void write_loss(std::string_view severity, std::string_view what, std::uint64_t count, std::string& out) {
  JsonWriter json(out);
  json.begin_object();
  json.field("type", "loss");
  json.field("severity", severity);
  json.field("what", what);
  json.field("count", count);
  json.end_object();
  out += '\n';
}

}  // namespace cglint::capture
