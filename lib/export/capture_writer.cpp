#include "export/capture_writer.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // the state on the stack
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json_writer.h"
#include "export/compressor.h"
#include "export/content_hash.h"

namespace cglint::exporter {
namespace {

using base::JsonWriter;
using base::Result;
using ir::Graph;
using ir::GraphId;
using ir::NodeId;
using ir::NodeKind;
using ir::Recording;

constexpr std::size_t kAllocationsPerRecord = 2048;
constexpr std::size_t kOpsPerRecord = 16384;  // replay and loose operations: about 0.5 MB of text
constexpr std::uint32_t kNoIndex = ~std::uint32_t{0};

std::string_view memory_kind_name(ir::MemoryKind kind) {
  switch (kind) {
    case ir::MemoryKind::unknown:
      return "unknown";
    case ir::MemoryKind::host_pageable:
      return "host_pageable";
    case ir::MemoryKind::host_pinned:
      return "host_pinned";
    case ir::MemoryKind::device:
      return "device";
    case ir::MemoryKind::array:
      return "array";
    case ir::MemoryKind::managed:
      return "managed";
  }
  return "unknown";
}

std::string_view param_type_name(ir::ParamWord::Type type) {
  switch (type) {
    case ir::ParamWord::Type::unknown:
      return "unknown";
    case ir::ParamWord::Type::pointer:
      return "pointer";
    case ir::ParamWord::Type::const_pointer:
      return "const_pointer";
    case ir::ParamWord::Type::scalar:
      return "scalar";
  }
  return "unknown";
}

std::string_view allocation_kind_name(ir::Allocation::Kind kind) {
  switch (kind) {
    case ir::Allocation::Kind::unknown:
      return "unknown";
    case ir::Allocation::Kind::device:
      return "device";
    case ir::Allocation::Kind::async:
      return "async";
    case ir::Allocation::Kind::pool:
      return "pool";
    case ir::Allocation::Kind::vmm:
      return "vmm";
    case ir::Allocation::Kind::host_registered:
      return "host_registered";
    case ir::Allocation::Kind::managed:
      return "managed";
    case ir::Allocation::Kind::graph_node:
      return "graph_node";
  }
  return "unknown";
}

std::string_view block_state_name(ir::AllocatorBlock::State state) {
  switch (state) {
    case ir::AllocatorBlock::State::active:
      return "active";
    case ir::AllocatorBlock::State::pending_free:
      return "pending_free";
    case ir::AllocatorBlock::State::free:
      return "free";
  }
  return "active";
}

std::string_view capture_mode_name(ir::CaptureMode mode) {
  switch (mode) {
    case ir::CaptureMode::unknown:
      return "unknown";
    case ir::CaptureMode::global:
      return "global";
    case ir::CaptureMode::thread_local_:
      return "thread_local";
    case ir::CaptureMode::relaxed:
      return "relaxed";
  }
  return "unknown";
}

std::string_view capture_status_name(ir::CaptureStatus status) {
  switch (status) {
    case ir::CaptureStatus::unknown:
      return "unknown";
    case ir::CaptureStatus::ok:
      return "ok";
    case ir::CaptureStatus::invalidated:
      return "invalidated";
    case ir::CaptureStatus::failed:
      return "failed";
  }
  return "unknown";
}

std::string_view severity_name(ir::Loss::Severity severity) {
  switch (severity) {
    case ir::Loss::Severity::info:
      return "info";
    case ir::Loss::Severity::data_loss:
      return "data_loss";
    case ir::Loss::Severity::error:
      return "error";
  }
  return "error";
}

void write_dim3(JsonWriter& json, std::string_view name, const ir::Dim3& dim) {
  json.key(name);
  json.begin_array();
  json.number(dim.x);
  json.number(dim.y);
  json.number(dim.z);
  json.end_array();
}

// A number that is left out where it has its default.
template <typename T>
void optional_field(JsonWriter& json, std::string_view name, T value, std::type_identity_t<T> absent) {
  if (value != absent) json.field(name, value);
}
void optional_hex(JsonWriter& json, std::string_view name, std::uint64_t value) {
  if (value != 0) json.hex_field(name, value);
}
void optional_tri(JsonWriter& json, std::string_view name, ir::Tri value) {
  if (value != ir::Tri::unknown) json.field(name, value == ir::Tri::yes);
}

// Ids of the recording, numbered afresh for one record in order of first use.
template <typename IdType>
class LocalTable {
 public:
  void clear() {
    for (const IdType id : ids_) index_[id.index()] = kNoIndex;
    ids_.clear();
  }
  std::uint32_t add(IdType id) {
    if (!id.is_valid()) return kNoIndex;
    if (index_.size() <= id.index()) index_.resize(std::size_t{id.index()} + 1, kNoIndex);
    std::uint32_t& index = index_[id.index()];
    if (index == kNoIndex) {
      index = static_cast<std::uint32_t>(ids_.size());
      ids_.push_back(id);
    }
    return index;
  }
  // kNoIndex for an id that was not added.
  [[nodiscard]] std::uint32_t find(IdType id) const {
    return id.index() < index_.size() ? index_[id.index()] : kNoIndex;
  }
  [[nodiscard]] const std::vector<IdType>& ids() const { return ids_; }

 private:
  std::vector<std::uint32_t> index_;
  std::vector<IdType> ids_;
};

// The value that most entries of a column have, if any has a majority (Boyer-Moore; else some value, which is
// as good).
template <typename T>
std::optional<T> majority(const base::IdVector<NodeId, T>& column) {
  std::optional<T> candidate;
  std::size_t votes = 0;
  for (const T value : column) {
    if (votes == 0) candidate = value;
    votes = candidate == value ? votes + 1 : votes - 1;
  }
  return candidate;
}

template <typename T>
const T* side_row(const Graph& graph, const std::vector<T>& table, NodeId node) {
  const std::uint32_t index = graph.side[node];
  return index < table.size() ? &table[index] : nullptr;
}

// Nanoseconds relative to a line's base, or absolute ones where the span does not fit 64 bits.
class TimeBase {
 public:
  void include(std::int64_t ns) {
    min_ = std::min(min_, ns);
    max_ = std::max(max_, ns);
  }
  [[nodiscard]] std::int64_t base() const {
    if (min_ > max_) return 0;
    const bool fits = static_cast<std::uint64_t>(max_) - static_cast<std::uint64_t>(min_) <=
                      static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return fits ? min_ : 0;
  }

 private:
  std::int64_t min_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_ = std::numeric_limits<std::int64_t>::min();
};

void write_base(JsonWriter& json, std::int64_t base_ns) {
  if (base_ns != 0) json.field("base_ns", std::string_view(std::to_string(base_ns)));
}

std::uint64_t allocation_digest(const ir::Allocation& a) {
  const std::array<std::uint64_t, 8> words = {
      a.base,
      a.size_bytes,
      static_cast<std::uint64_t>(a.kind) << 32 | static_cast<std::uint32_t>(a.device),
      a.process.index(),
      a.alloc_sequence,
      a.free_sequence,
      std::uint64_t{a.alloc_stack.index()} << 32 | a.free_stack.index(),
      a.pool.index()};
  return XXH3_64bits(words.data(), sizeof(words));
}

}  // namespace

Compression compression_of_path(std::string_view path) {
  if (path.ends_with(".gz")) return Compression::gzip;
  if (path.ends_with(".zst")) return Compression::zstd;
  return Compression::none;
}

class CaptureWriter::Impl {
 public:
  Impl(std::unique_ptr<Sink> sink, CaptureWriterOptions options)
      : sink_(std::move(sink)), options_(std::move(options)) {
    if (options_.compression == Compression::gzip)
      compressor_ = make_gzip_compressor(options_.level < 0 ? 4 : options_.level);
    if (options_.compression == Compression::zstd)
      compressor_ = make_zstd_compressor(options_.level < 0 ? 3 : options_.level);
  }

  Result<void> begin(const Recording& recording);
  Result<void> plan(const Recording& recording);
  Result<void> write_graph(const Recording& recording, GraphId id);
  Result<void> write_all(const Recording& recording);
  Result<void> finish(const Recording& recording);
  [[nodiscard]] CaptureWriterStats stats() const { return stats_; }
  // Runs `step` unless an earlier one failed.
  template <typename Step>
  Result<void> guarded(const Step& step) {
    if (error_) return *error_;
    Result<void> result = step();
    if (!result) error_ = result.error();
    return result;
  }

 private:
  // A graph that was written in full.
  struct Written {
    std::uint32_t number = 0;
    ContentHash hash;
  };
  struct LaunchKey {
    ir::KernelNode kernel;  // params.first: any node's words that have the layout
    const Graph* graph = nullptr;
  };

  // --- records ---
  JsonWriter start(std::string_view type) {
    record_.clear();
    JsonWriter json(record_);
    json.begin_object();
    json.field("type", type);
    return json;
  }
  Result<void> flush(JsonWriter& json);

  Result<void> write_processes(const Recording& recording);
  Result<void> write_allocations(const Recording& recording, bool changed_too);
  Result<void> write_allocation_run(const Recording& recording, std::span<const ir::AllocationId> ids);
  Result<void> write_graph_record(const Recording& recording, const Graph& graph, std::uint32_t number,
                                  std::uint64_t content_hash);
  Result<void> write_instance(const Recording& recording, const ir::GraphInfo& info, std::uint32_t of,
                              std::uint32_t instances, std::uint64_t content_hash, std::uint32_t& number);
  Result<void> write_instances(const Recording& recording, const Graph& graph, std::uint32_t of,
                               std::uint64_t content_hash, std::vector<std::uint32_t>& numbers);
  Result<void> write_replays(const Graph& graph, std::span<const std::uint32_t> numbers);
  Result<void> write_timing(const ir::UntracedTiming& timing, std::uint32_t number);
  Result<void> write_accesses(const Graph& graph, std::uint32_t number);
  Result<void> write_graph_end(std::uint32_t number);
  // The merged graph `graph` as instance records of graph `of`.
  Result<void> write_merged(const Recording& recording, GraphId id, const Written& of);

  // --- parts of records ---
  void write_info(JsonWriter& json, const Recording& recording, const ir::GraphInfo& info, bool is_instance,
                  std::uint32_t instances, std::uint64_t content_hash);
  void write_frames_and_stacks(JsonWriter& json, const Recording& recording);
  void collect_tables(const Recording& recording, const Graph& graph);
  std::uint32_t find_launch(const Graph& graph, const ir::KernelNode& kernel);
  void write_tables(JsonWriter& json, const Recording& recording, const Graph& graph);
  void write_node(JsonWriter& json, const Recording& recording, const Graph& graph, NodeId node);

  [[nodiscard]] static std::uint32_t own_instances(const Graph& graph) {
    std::uint64_t known = 0;
    for (const ir::GraphInfo& info : graph.instance_infos) known += info.instances;
    return graph.info.instances > known ? static_cast<std::uint32_t>(graph.info.instances - known) : 1;
  }
  [[nodiscard]] static const Graph* find(const Recording& recording, GraphId id) {
    return recording.graphs.contains(id) ? recording.graphs[id].get() : nullptr;
  }
  [[nodiscard]] std::uint32_t body_number(GraphId id) const {
    const auto it = numbers_.find(id);
    return it == numbers_.end() ? kNoIndex : it->second;
  }
  static void append_bodies(const Graph& graph, std::vector<GraphId>& out) {
    for (const ir::ChildGraphNode& child : graph.child_graphs)
      if (child.body.is_valid()) out.push_back(child.body);
    for (const GraphId body : graph.bodies)
      if (body.is_valid()) out.push_back(body);
  }
  [[nodiscard]] bool can_merge(const Graph& graph) const {
    return options_.merge_equal && graph.info.role != ir::GraphRole::body &&
           graph.info.role != ir::GraphRole::eager;
  }
  // The bodies of a merged graph are equal to those of the stored one.
  void absorb_bodies(const Recording& recording, const Graph& graph) {
    std::vector<GraphId> pending;
    append_bodies(graph, pending);
    while (!pending.empty()) {
      const GraphId next = pending.back();
      pending.pop_back();
      if (!absorbed_.insert(next).second) continue;
      if (const Graph* const body = find(recording, next)) append_bodies(*body, pending);
    }
  }
  const Written* find_equal(const Recording& recording, const Graph& graph, GraphId id,
                            const ContentHash& hash) const;

  std::unique_ptr<Sink> sink_;
  CaptureWriterOptions options_;
  std::unique_ptr<RecordCompressor> compressor_;
  std::string record_, compressed_;
  CaptureWriterStats stats_;
  std::optional<base::Error> error_;

  std::uint32_t next_number_ = 0;
  std::size_t processes_written_ = 0;
  std::vector<std::uint64_t> allocation_digests_;  // of what was written, by id
  std::unordered_map<GraphId, std::uint32_t>
      numbers_;  // of graphs that were written, in full or as instances
  std::unordered_map<GraphId, std::vector<std::uint32_t>> instance_numbers_;  // of the graph and its instances
  std::unordered_map<GraphId, Written> written_;
  std::unordered_multimap<std::uint64_t, GraphId> by_hash_;  // ContentHash::low of the graphs in written_
  ContentHasher hasher_;
  // From plan(): equal graphs of a recording that is in memory as a whole.
  std::unordered_map<GraphId, ContentHash> planned_hash_;
  std::unordered_map<GraphId, std::vector<GraphId>> planned_members_;
  std::unordered_set<GraphId> absorbed_;  // merged graphs and their bodies

  // Of the record under construction.
  LocalTable<ir::FunctionId> functions_;
  LocalTable<ir::StreamId> streams_;
  LocalTable<ir::StackId> stacks_;
  LocalTable<ir::NvtxId> nvtx_;
  std::vector<LaunchKey> launches_;
  std::vector<std::uint32_t> launch_of_kernel_;  // by index into Graph::kernels
  std::unordered_map<std::uint64_t, std::uint32_t> launch_by_hash_;
  std::optional<std::uint32_t> default_thread_;
  std::optional<std::int16_t> default_device_;
  std::optional<std::uint64_t> default_context_;
  std::optional<ir::StreamId> default_stream_;
};

// --- records
// ------------------------------------------------------------------------------------------------------------

Result<void> CaptureWriter::Impl::flush(JsonWriter& json) {
  json.end_object();
  record_ += '\n';
  ++stats_.records;
  stats_.text_bytes += record_.size();
  stats_.invalid_utf8 += json.invalid_utf8();
  if (compressor_ == nullptr) return sink_->write(record_);
  CGLINT_TRY(compressor_->compress(record_, compressed_));
  return sink_->write(compressed_);
}

Result<void> CaptureWriter::Impl::begin(const Recording& recording) {
  JsonWriter json = start("header");
  json.field("format", "cglint-capture");
  json.field("version", "1.0");
  if (!options_.producer.empty()) json.field("producer", std::string_view(options_.producer));
  optional_field(json, "created_unix_s", options_.created_unix_s, 0);
  if (recording.has_timeline) json.field("timeline", true);
  CGLINT_TRY(flush(json));
  return write_processes(recording);
}

Result<void> CaptureWriter::Impl::write_processes(const Recording& recording) {
  for (; processes_written_ < recording.processes.size(); ++processes_written_) {
    const ir::ProcessId id = ir::ProcessId::from_size(processes_written_);
    const ir::Process& process = recording.processes[id];
    const auto text_field = [&](JsonWriter& json, std::string_view name, ir::StringId text) {
      if (text.is_valid() && text != ir::kEmptyString) json.field(name, recording.text(text));
    };
    JsonWriter json = start("process");
    json.field("process", id.index());
    optional_field(json, "pid", process.pid, -1);
    optional_field(json, "rank", process.rank, -1);
    optional_field(json, "world_size", process.world_size, -1);
    text_field(json, "host", process.host);
    text_field(json, "command", process.command);
    optional_field(json, "driver_version", process.driver_version, 0);
    text_field(json, "driver_release", process.driver_release);
    optional_field(json, "runtime_version", process.runtime_version, 0);
    optional_field(json, "cupti_version", process.cupti_version, 0);
    text_field(json, "framework", process.framework);
    text_field(json, "framework_version", process.framework_version);
    if (!process.gpus.empty()) {
      json.key("gpus");
      json.begin_array();
      for (const ir::Gpu& gpu : process.gpus) {
        json.begin_object();
        json.field("device", gpu.device);
        text_field(json, "name", gpu.name);
        text_field(json, "uuid", gpu.uuid);
        if (gpu.compute_major != 0 || gpu.compute_minor != 0) {
          json.key("compute_capability");
          json.begin_array();
          json.number(gpu.compute_major);
          json.number(gpu.compute_minor);
          json.end_array();
        }
        optional_field(json, "sm_count", gpu.sm_count, 0);
        optional_field(json, "memory_bytes", gpu.memory_bytes, 0);
        if (gpu.is_amd) json.field("amd", true);
        json.end_object();
      }
      json.end_array();
    }
    if (!process.environment.empty()) {
      json.key("environment");
      json.begin_object();
      for (const auto& [name, value] : process.environment)
        json.field(recording.text(name), recording.text(value));
      json.end_object();
    }
    CGLINT_TRY(flush(json));
  }
  return {};
}

Result<void> CaptureWriter::Impl::write_allocations(const Recording& recording, bool changed_too) {
  std::vector<ir::AllocationId> run;
  const auto flush_run = [&]() -> Result<void> {
    if (!run.empty()) CGLINT_TRY(write_allocation_run(recording, run));
    run.clear();
    return {};
  };
  const std::size_t first = changed_too ? 0 : allocation_digests_.size();
  for (std::size_t i = first; i < recording.allocations.size(); ++i) {
    const ir::AllocationId id = ir::AllocationId::from_size(i);
    const ir::Allocation& allocation = recording.allocations[id];
    const std::uint64_t digest = allocation_digest(allocation);
    if (i < allocation_digests_.size()) {
      if (allocation_digests_[i] == digest) continue;
      allocation_digests_[i] = digest;
    } else {
      allocation_digests_.push_back(digest);
    }
    if (!run.empty() &&
        (run.size() == kAllocationsPerRecord || recording.allocations[run[0]].process != allocation.process))
      CGLINT_TRY(flush_run());
    run.push_back(id);
  }
  return flush_run();
}

Result<void> CaptureWriter::Impl::write_allocation_run(const Recording& recording,
                                                       std::span<const ir::AllocationId> ids) {
  stacks_.clear();
  for (const ir::AllocationId id : ids) {
    stacks_.add(recording.allocations[id].alloc_stack);
    stacks_.add(recording.allocations[id].free_stack);
  }
  JsonWriter json = start("allocations");
  const ir::ProcessId process = recording.allocations[ids.front()].process;
  if (process.is_valid()) json.field("process", process.index());
  write_frames_and_stacks(json, recording);
  json.key("allocations");
  json.begin_array();
  for (const ir::AllocationId id : ids) {
    const ir::Allocation& a = recording.allocations[id];
    json.begin_object();
    json.field("id", id.index());
    json.hex_field("base", a.base);
    json.field("size_bytes", a.size_bytes);
    if (a.kind != ir::Allocation::Kind::unknown) json.field("kind", allocation_kind_name(a.kind));
    optional_field(json, "device", a.device, -1);
    optional_field(json, "alloc_sequence", a.alloc_sequence, 0);
    optional_field(json, "free_sequence", a.free_sequence, 0);
    optional_field(json, "alloc_stack", stacks_.find(a.alloc_stack), kNoIndex);
    optional_field(json, "free_stack", stacks_.find(a.free_stack), kNoIndex);
    if (a.pool.is_valid() && a.pool != ir::kEmptyString) json.field("pool", recording.text(a.pool));
    json.end_object();
  }
  json.end_array();
  return flush(json);
}

void CaptureWriter::Impl::write_frames_and_stacks(JsonWriter& json, const Recording& recording) {
  if (stacks_.ids().empty()) return;
  struct FrameKey {
    std::uint32_t file, function, line, flags;
    bool operator==(const FrameKey&) const = default;
  };
  struct FrameKeyHash {
    std::size_t operator()(const FrameKey& key) const { return XXH3_64bits(&key, sizeof(key)); }
  };
  std::unordered_map<FrameKey, std::uint32_t, FrameKeyHash> index;
  json.key("frames");
  json.begin_array();
  const auto key_of = [](const ir::Frame& frame) {
    return FrameKey{frame.file.index(), frame.function.index(), frame.line,
                    static_cast<std::uint32_t>(frame.kind) << 1 | (frame.generated ? 1U : 0U)};
  };
  for (const ir::StackId stack : stacks_.ids()) {
    for (const ir::Frame& frame : recording.frames(stack)) {
      if (!index.try_emplace(key_of(frame), static_cast<std::uint32_t>(index.size())).second) continue;
      json.begin_object();
      if (frame.kind == ir::Frame::Kind::native) json.field("kind", "native");
      json.field("file", recording.text(frame.file));
      if (frame.function.is_valid() && frame.function != ir::kEmptyString)
        json.field("function", recording.text(frame.function));
      optional_field(json, "line", frame.line, 0);
      if (frame.generated) json.field("generated", true);
      json.end_object();
    }
  }
  json.end_array();
  json.key("stacks");
  json.begin_array();
  for (const ir::StackId stack : stacks_.ids()) {
    json.begin_array();
    for (const ir::Frame& frame : recording.frames(stack)) json.number(index.find(key_of(frame))->second);
    json.end_array();
  }
  json.end_array();
}

// --- graphs
// -------------------------------------------------------------------------------------------------------------

void CaptureWriter::Impl::collect_tables(const Recording& recording, const Graph& graph) {
  functions_.clear();
  streams_.clear();
  stacks_.clear();
  nvtx_.clear();
  launches_.clear();
  launch_by_hash_.clear();
  launch_of_kernel_.assign(graph.kernels.size(), kNoIndex);
  streams_.add(graph.info.origin_stream);
  for (const NodeId node : graph.nodes()) {
    if (const ir::KernelNode* kernel = graph.kernel(node)) {
      if (recording.functions.contains(kernel->function)) functions_.add(kernel->function);
      launch_of_kernel_[graph.side[node]] = find_launch(graph, *kernel);
    }
  }
  for (const ir::StreamId stream : graph.capture_stream) streams_.add(stream);
  for (const ir::StackId stack : graph.stack) stacks_.add(stack);
  for (const ir::NvtxId nvtx : graph.nvtx) nvtx_.add(nvtx);
  for (const ir::SyncOp& op : graph.sync_ops) {
    streams_.add(op.stream);
    stacks_.add(op.stack);
  }
  streams_.add(graph.info.failed_stream);
  stacks_.add(graph.info.failed_stack);

  default_thread_ = majority(graph.thread);
  default_device_ = majority(graph.device);
  default_context_ = majority(graph.context);
  default_stream_ = majority(graph.capture_stream);
  if (default_thread_ == 0U) default_thread_.reset();
  if (default_device_ == std::int16_t{-1}) default_device_.reset();
  if (default_context_ == std::uint64_t{0}) default_context_.reset();
  if (default_stream_ == ir::StreamId()) default_stream_.reset();
}

std::uint32_t CaptureWriter::Impl::find_launch(const Graph& graph, const ir::KernelNode& kernel) {
  const std::span<const ir::ParamWord> words = graph.params_of(kernel);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const std::array<std::uint32_t, 16> fixed = {kernel.function.index(),
                                               kernel.grid.x,
                                               kernel.grid.y,
                                               kernel.grid.z,
                                               kernel.block.x,
                                               kernel.block.y,
                                               kernel.block.z,
                                               kernel.cluster.x,
                                               kernel.cluster.y,
                                               kernel.cluster.z,
                                               kernel.dynamic_shared_bytes,
                                               kernel.static_shared_bytes,
                                               kernel.registers_per_thread,
                                               static_cast<std::uint32_t>(kernel.priority),
                                               static_cast<std::uint32_t>(kernel.cooperative),
                                               static_cast<std::uint32_t>(kernel.programmatic_serialization)};
  XXH3_64bits_update(&state, fixed.data(), sizeof(fixed));
  for (const ir::ParamWord& word : words) {
    const std::array<std::uint16_t, 4> layout = {word.slot, word.offset_bytes, word.size_bytes,
                                                 static_cast<std::uint16_t>(word.type)};
    XXH3_64bits_update(&state, layout.data(), sizeof(layout));
  }
  const std::uint64_t hash = XXH3_64bits_digest(&state);
  const auto same = [&](const ir::KernelNode& other) {
    const std::span<const ir::ParamWord> theirs = graph.params_of(other);
    return other.function == kernel.function && other.grid == kernel.grid && other.block == kernel.block &&
           other.cluster == kernel.cluster && other.dynamic_shared_bytes == kernel.dynamic_shared_bytes &&
           other.static_shared_bytes == kernel.static_shared_bytes &&
           other.registers_per_thread == kernel.registers_per_thread && other.priority == kernel.priority &&
           other.cooperative == kernel.cooperative &&
           other.programmatic_serialization == kernel.programmatic_serialization &&
           std::equal(words.begin(), words.end(), theirs.begin(), theirs.end(),
                      [](const ir::ParamWord& a, const ir::ParamWord& b) {
                        return a.slot == b.slot && a.offset_bytes == b.offset_bytes &&
                               a.size_bytes == b.size_bytes && a.type == b.type;
                      });
  };
  const auto [it, inserted] = launch_by_hash_.try_emplace(hash, static_cast<std::uint32_t>(launches_.size()));
  if (!inserted && same(launches_[it->second].kernel)) return it->second;
  it->second = static_cast<std::uint32_t>(launches_.size());
  launches_.push_back({kernel, &graph});
  return it->second;
}

void CaptureWriter::Impl::write_tables(JsonWriter& json, const Recording& recording, const Graph& graph) {
  if (!functions_.ids().empty()) {
    json.key("functions");
    json.begin_array();
    for (const ir::FunctionId id : functions_.ids()) {
      const ir::Function& function = recording.functions[id];
      json.begin_object();
      json.field("name", recording.text(function.name));
      if (!function.params.empty()) {
        json.key("params");
        json.begin_array();
        for (const ir::Function::Param& param : function.params) {
          json.begin_array();
          json.number(param.offset_bytes);
          json.number(param.size_bytes);
          const bool typed = param.type != ir::ParamWord::Type::unknown;
          const std::string_view type_name = recording.text(param.type_name);
          if (typed || !type_name.empty()) json.string(type_name);
          if (typed) json.string(param_type_name(param.type));
          json.end_array();
        }
        json.end_array();
      }
      optional_hex(json, "image_hash", function.image_hash);
      optional_tri(json, "grid_dependency_wait", function.has_grid_dependency_wait);
      optional_tri(json, "launch_dependents", function.has_launch_dependents);
      json.end_object();
    }
    json.end_array();
  }
  if (!launches_.empty()) {
    json.key("launches");
    json.begin_array();
    for (const LaunchKey& launch : launches_) {
      const ir::KernelNode& kernel = launch.kernel;
      json.begin_object();
      optional_field(json, "function", functions_.find(kernel.function), kNoIndex);
      if (kernel.grid != ir::Dim3()) write_dim3(json, "grid", kernel.grid);
      if (kernel.block != ir::Dim3()) write_dim3(json, "block", kernel.block);
      if (kernel.cluster != ir::Dim3{0, 0, 0}) write_dim3(json, "cluster", kernel.cluster);
      optional_field(json, "dynamic_shared_bytes", kernel.dynamic_shared_bytes, 0);
      optional_field(json, "static_shared_bytes", kernel.static_shared_bytes, 0);
      optional_field(json, "registers_per_thread", kernel.registers_per_thread, 0);
      optional_field(json, "priority", kernel.priority, 0);
      optional_tri(json, "cooperative", kernel.cooperative);
      optional_tri(json, "programmatic_serialization", kernel.programmatic_serialization);
      if (kernel.params.count != 0) {
        json.key("layout");
        json.begin_array();
        for (const ir::ParamWord& word : graph.params_of(kernel)) {
          json.begin_array();
          json.number(word.slot);
          json.number(word.offset_bytes);
          json.number(word.size_bytes);
          if (word.type != ir::ParamWord::Type::unknown) json.string(param_type_name(word.type));
          json.end_array();
        }
        json.end_array();
      }
      json.end_object();
    }
    json.end_array();
  }
  if (!streams_.ids().empty()) {
    json.key("streams");
    json.begin_array();
    for (const ir::StreamId id : streams_.ids()) {
      json.begin_object();
      const ir::Stream stream = recording.streams.contains(id) ? recording.streams[id] : ir::Stream();
      json.hex_field("handle", stream.handle);
      optional_field(json, "priority", stream.priority, 0);
      if (stream.name.is_valid() && stream.name != ir::kEmptyString)
        json.field("name", recording.text(stream.name));
      json.end_object();
    }
    json.end_array();
  }
  write_frames_and_stacks(json, recording);
  if (!nvtx_.ids().empty()) {
    json.key("nvtx");
    json.begin_array();
    for (const ir::NvtxId id : nvtx_.ids()) {
      json.begin_array();
      for (const ir::StringId range : recording.nvtx(id)) json.string(recording.text(range));
      json.end_array();
    }
    json.end_array();
  }
  if (default_thread_ || default_device_ || default_context_ || default_stream_) {
    json.key("defaults");
    json.begin_object();
    if (default_thread_) json.field("thread", *default_thread_);
    if (default_device_) json.field("device", *default_device_);
    if (default_context_) json.hex_field("context", *default_context_);
    if (default_stream_) json.field("stream", streams_.find(*default_stream_));
    json.end_object();
  }
}

void CaptureWriter::Impl::write_info(JsonWriter& json, const Recording& recording, const ir::GraphInfo& info,
                                     bool is_instance, std::uint32_t instances, std::uint64_t content_hash) {
  const auto text_field = [&](std::string_view name, ir::StringId text) {
    if (text.is_valid() && text != ir::kEmptyString) json.field(name, recording.text(text));
  };
  json.key("info");
  json.begin_object();
  text_field("name", info.name);
  if (const auto parent = numbers_.find(info.parent); parent != numbers_.end()) {
    json.field("parent", parent->second);
    if (info.parent_node.is_valid()) json.field("parent_node", info.parent_node.index());
  }
  text_field("key", info.key);
  text_field("failed_call", info.failed_call);
  text_field("failed_error", info.failed_error);
  optional_field(json, "failed_thread", info.failed_thread, 0);
  if (!is_instance && info.role != ir::GraphRole::captured)
    json.field("role", ir::graph_role_name(info.role));
  optional_hex(json, "source_id", info.source_id);
  optional_field(json, "batch_size", info.batch_size, -1);
  if (info.capture_mode != ir::CaptureMode::unknown)
    json.field("capture_mode", capture_mode_name(info.capture_mode));
  if (info.capture_status != ir::CaptureStatus::unknown)
    json.field("capture_status", capture_status_name(info.capture_status));
  if (!is_instance) {
    optional_field(json, "failed_stack", stacks_.find(info.failed_stack), kNoIndex);
    optional_field(json, "failed_stream", streams_.find(info.failed_stream), kNoIndex);
    optional_field(json, "origin_stream", streams_.find(info.origin_stream), kNoIndex);
  }
  optional_field(json, "begin_sequence", info.begin_sequence, 0);
  optional_field(json, "end_sequence", info.end_sequence, 0);
  if (info.instantiated) json.field("instantiated", true);
  optional_field(json, "instantiate_flags", info.instantiate_flags, 0);
  optional_field(json, "instantiate_ns", info.instantiate_ns, 0);
  optional_field(json, "upload_ns", info.upload_ns, 0);
  optional_field(json, "memory_bytes", info.memory_bytes, 0);
  optional_field(json, "exec_updates", info.exec_updates, 0);
  optional_hex(json, "content_hash", info.content_hash != 0 ? info.content_hash : content_hash);
  optional_field(json, "instances", instances, 1);
  json.end_object();
}

void CaptureWriter::Impl::write_node(JsonWriter& json, const Recording& recording, const Graph& g,
                                     NodeId node) {
  const NodeKind kind = g.kind[node];
  json.begin_object();
  json.field("kind", ir::node_kind_name(kind));
  const ir::KernelNode* const kernel = g.kernel(node);
  const ir::StringId default_name = kernel != nullptr && recording.functions.contains(kernel->function)
                                        ? recording.functions[kernel->function].name
                                        : ir::kEmptyString;
  if (g.name[node] != default_name) json.field("name", recording.text(g.name[node]));
  if (!g.source_id.empty()) json.hex_field("id", g.source_id[node]);
  if (!g.sequence.empty()) optional_field(json, "sequence", g.sequence[node], 0);
  if (!g.capture_stream.empty() && g.capture_stream[node] != default_stream_.value_or(ir::StreamId())) {
    const std::uint32_t stream = streams_.find(g.capture_stream[node]);
    if (stream == kNoIndex) {
      json.field("stream", -1);
    } else {
      json.field("stream", stream);
    }
  }
  if (!g.thread.empty()) optional_field(json, "thread", g.thread[node], default_thread_.value_or(0));
  if (!g.nvtx.empty()) optional_field(json, "nvtx", nvtx_.find(g.nvtx[node]), kNoIndex);
  if (!g.stack.empty()) optional_field(json, "stack", stacks_.find(g.stack[node]), kNoIndex);
  if (!g.device.empty() && g.device[node] != default_device_.value_or(-1))
    json.field("device", g.device[node]);
  if (!g.context.empty() && g.context[node] != default_context_.value_or(0))
    json.hex_field("context", g.context[node]);
  if (!g.enabled.empty() && g.enabled[node] == 0) json.field("enabled", false);
  if (!g.launches.empty()) optional_field(json, "launches", g.launches[node], 1);
  if (!g.content_hash.empty()) optional_hex(json, "content_hash", g.content_hash[node]);

  const auto allocation_field = [&](std::string_view name, ir::AllocationId id) {
    if (id.is_valid()) json.field(name, id.index());
  };
  switch (kind) {
    case NodeKind::kernel:
      if (kernel != nullptr) {
        json.field("launch", launch_of_kernel_[g.side[node]]);
        const std::span<const ir::ParamWord> words = g.params_of(*kernel);
        if (!words.empty()) {
          json.key("args");
          json.begin_array();
          bool has_allocations = false;
          for (const ir::ParamWord& word : words) {
            json.hex(word.value);
            has_allocations |= word.allocation.is_valid();
          }
          json.end_array();
          if (has_allocations) {
            json.key("arg_allocations");
            json.begin_array();
            for (const ir::ParamWord& word : words) {
              if (word.allocation.is_valid()) {
                json.number(word.allocation.index());
              } else {
                json.number(-1);
              }
            }
            json.end_array();
          }
        }
      }
      break;
    case NodeKind::memcpy:
      if (const ir::MemcpyNode* m = g.memcpy(node)) {
        optional_hex(json, "src", m->src);
        optional_hex(json, "dst", m->dst);
        optional_field(json, "src_pitch_bytes", m->src_pitch_bytes, 0);
        optional_field(json, "dst_pitch_bytes", m->dst_pitch_bytes, 0);
        json.field("width_bytes", m->width_bytes);
        optional_field(json, "height", m->height, 1);
        optional_field(json, "depth", m->depth, 1);
        if (m->src_kind != ir::MemoryKind::unknown) json.field("src_kind", memory_kind_name(m->src_kind));
        if (m->dst_kind != ir::MemoryKind::unknown) json.field("dst_kind", memory_kind_name(m->dst_kind));
        optional_field(json, "src_device", m->src_device, -1);
        optional_field(json, "dst_device", m->dst_device, -1);
        allocation_field("src_allocation", m->src_allocation);
        allocation_field("dst_allocation", m->dst_allocation);
      }
      break;
    case NodeKind::memset:
      if (const ir::MemsetNode* m = g.memset(node)) {
        optional_hex(json, "dst", m->dst);
        optional_field(json, "pitch_bytes", m->pitch_bytes, 0);
        json.field("width", m->width);
        optional_field(json, "height", m->height, 1);
        optional_field(json, "value", m->value, 0);
        optional_field(json, "element_bytes", m->element_bytes, 1);
        allocation_field("dst_allocation", m->dst_allocation);
      }
      break;
    case NodeKind::host:
      if (const ir::HostNode* h = side_row(g, g.hosts, node)) {
        json.field("function", recording.text(h->function));
        optional_hex(json, "user_data", h->user_data);
      }
      break;
    case NodeKind::event_record:
    case NodeKind::event_wait:
      if (const ir::EventNode* e = side_row(g, g.events, node)) optional_hex(json, "event", e->event);
      break;
    case NodeKind::child_graph:
      if (const ir::ChildGraphNode* c = side_row(g, g.child_graphs, node))
        optional_field(json, "body", body_number(c->body), kNoIndex);
      break;
    case NodeKind::conditional:
      if (const ir::ConditionalNode* c = side_row(g, g.conditionals, node)) {
        switch (c->type) {
          case ir::ConditionalNode::Type::unknown:
            break;
          case ir::ConditionalNode::Type::if_:
            json.field("conditional_type", "if");
            break;
          case ir::ConditionalNode::Type::while_:
            json.field("conditional_type", "while");
            break;
          case ir::ConditionalNode::Type::switch_:
            json.field("conditional_type", "switch");
            break;
        }
        json.key("bodies");
        json.begin_array();
        for (std::uint32_t i = 0; i < c->bodies.count; ++i) {
          const std::uint32_t body = body_number(g.bodies[c->bodies.first + i]);
          if (body == kNoIndex) {
            json.number(-1);
          } else {
            json.number(body);
          }
        }
        json.end_array();
      }
      break;
    case NodeKind::mem_alloc:
    case NodeKind::mem_free:
      if (const ir::AllocNode* a = side_row(g, g.allocs, node)) {
        optional_hex(json, "address", a->address);
        optional_field(json, "bytes", a->bytes, 0);
        allocation_field("allocation", a->allocation);
      }
      break;
    case NodeKind::ext_semaphore_signal:
    case NodeKind::ext_semaphore_wait:
      if (const ir::SemaphoreNode* s = side_row(g, g.semaphores, node))
        optional_field(json, "count", s->count, 0);
      break;
    case NodeKind::batch_mem_op:
      if (const ir::BatchMemOpNode* b = side_row(g, g.batch_mem_ops, node)) {
        optional_field(json, "count", b->count, 0);
        optional_hex(json, "address", b->address);
      }
      break;
    case NodeKind::empty:
    case NodeKind::unknown:
      break;
  }
  json.end_object();
}

Result<void> CaptureWriter::Impl::write_graph_record(const Recording& recording, const Graph& graph,
                                                     std::uint32_t number, std::uint64_t content_hash) {
  collect_tables(recording, graph);
  JsonWriter json = start("graph");
  json.field("graph", number);
  if (graph.info.process.is_valid()) json.field("process", graph.info.process.index());
  write_info(json, recording, graph.info, false, own_instances(graph), content_hash);
  json.key("facts");
  json.begin_array();
  for (int i = 0; i < ir::kFactCount; ++i)
    if (graph.facts.contains(static_cast<ir::Fact>(i))) json.string(ir::fact_name(static_cast<ir::Fact>(i)));
  json.end_array();
  if (!graph.spoiled.empty()) {
    json.key("spoiled");
    json.begin_array();
    for (const ir::SpoiledFact& spoiled : graph.spoiled) {
      json.begin_object();
      json.field("fact", ir::fact_name(spoiled.fact));
      json.field("reason", recording.text(spoiled.reason));
      json.end_object();
    }
    json.end_array();
  }
  write_tables(json, recording, graph);
  json.key("nodes");
  json.begin_array();
  for (const NodeId node : graph.nodes()) write_node(json, recording, graph, node);
  json.end_array();
  if (graph.edge_count() != 0) {
    json.key("edges");
    json.begin_array();
    for (const ir::EdgeId edge : graph.edges()) {
      json.begin_array();
      json.number(graph.edge_from[edge].index());
      json.number(graph.edge_to[edge].index());
      const ir::EdgeData data = graph.data(edge);
      const ir::SyncOpId sync = graph.edge_sync.empty() ? ir::SyncOpId() : graph.edge_sync[edge];
      if (data != ir::EdgeData() || sync.is_valid()) {
        json.number(data.from_port);
        json.number(data.to_port);
        json.number(static_cast<int>(data.type));
        if (sync.is_valid()) json.number(sync.index());
      }
      json.end_array();
    }
    json.end_array();
  }
  if (!graph.sync_ops.empty()) {
    json.key("sync_ops");
    json.begin_array();
    for (const ir::SyncOp& op : graph.sync_ops) {
      json.begin_object();
      json.field("kind", ir::sync_op_kind_name(op.kind));
      optional_field(json, "stream", streams_.find(op.stream), kNoIndex);
      optional_hex(json, "event", op.event);
      optional_field(json, "sequence", op.sequence, 0);
      if (op.record.is_valid()) json.field("record", op.record.index());
      optional_field(json, "stack", stacks_.find(op.stack), kNoIndex);
      optional_field(json, "thread", op.thread, 0);
      if (op.unjoined) json.field("unjoined", true);
      json.end_object();
    }
    json.end_array();
  }
  return flush(json);
}

// An equal graph may be of another process than the one that is stored.
Result<void> CaptureWriter::Impl::write_instance(const Recording& recording, const ir::GraphInfo& info,
                                                 std::uint32_t of, std::uint32_t instances,
                                                 std::uint64_t content_hash, std::uint32_t& number) {
  number = next_number_++;
  JsonWriter json = start("instance");
  json.field("graph", number);
  json.field("of", of);
  if (info.process.is_valid()) json.field("process", info.process.index());
  write_info(json, recording, info, true, instances, content_hash);
  ++stats_.instances;
  return flush(json);
}

Result<void> CaptureWriter::Impl::write_instances(const Recording& recording, const Graph& graph,
                                                  std::uint32_t of, std::uint64_t content_hash,
                                                  std::vector<std::uint32_t>& numbers) {
  for (const ir::GraphInfo& info : graph.instance_infos) {
    std::uint32_t number = 0;
    CGLINT_TRY(write_instance(recording, info, of, info.instances, content_hash, number));
    numbers.push_back(number);
    CGLINT_TRY(write_timing(info.untraced, number));
  }
  return {};
}

Result<void> CaptureWriter::Impl::write_replays(const Graph& graph, std::span<const std::uint32_t> numbers) {
  const std::size_t count = graph.replays.size();
  std::size_t first = 0;
  while (first < count) {
    const auto at = [&](std::size_t i) -> const ir::Replay& {
      return graph.replays[ir::ReplayId::from_size(i)];
    };
    std::size_t last = first;
    std::size_t ops = 0;
    TimeBase base;
    while (last < count && at(last).instance == at(first).instance &&
           (last == first || ops + at(last).ops.count <= kOpsPerRecord)) {
      const ir::Replay& replay = at(last);
      ops += replay.ops.count;
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        base.include(op.start_ns);
        base.include(op.end_ns);
      }
      if (replay.host_start_ns != 0 || replay.host_end_ns != 0) {
        base.include(replay.host_start_ns);
        base.include(replay.host_end_ns);
      }
      ++last;
    }
    const std::int64_t base_ns = base.base();
    JsonWriter json = start("replays");
    json.field("graph", numbers[at(first).instance]);
    write_base(json, base_ns);
    json.key("replays");
    json.begin_array();
    for (; first < last; ++first) {
      const ir::Replay& replay = at(first);
      json.begin_object();
      optional_field(json, "correlation", replay.correlation, 0);
      if (replay.host_start_ns != 0 || replay.host_end_ns != 0) {
        json.key("host_ns");
        json.begin_array();
        json.number(replay.host_start_ns - base_ns);
        json.number(replay.host_end_ns - base_ns);
        json.end_array();
      }
      if (replay.has_launch_stream) json.field("launch_stream", replay.launch_stream);
      if (!replay.complete) json.field("complete", false);
      json.key("ops");
      json.begin_array();
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        json.begin_array();
        if (op.node.is_valid()) {
          json.number(op.node.index());
        } else {
          json.number(-1);
        }
        json.number(op.device);
        json.number(op.stream);
        json.number(op.start_ns - base_ns);
        json.number(op.end_ns - base_ns);
        const NodeKind expected = op.node.is_valid() ? graph.kind[op.node] : NodeKind::kernel;
        if (op.kind != expected) json.string(ir::node_kind_name(op.kind));
        json.end_array();
      }
      json.end_array();
      json.end_object();
    }
    json.end_array();
    CGLINT_TRY(flush(json));
  }
  return {};
}

Result<void> CaptureWriter::Impl::write_timing(const ir::UntracedTiming& timing, std::uint32_t number) {
  if (timing.samples == 0 && timing.median_us == 0 && timing.p10_us == 0 && timing.p90_us == 0 &&
      timing.launch_cpu_us == 0)
    return {};
  JsonWriter json = start("timing");
  json.field("graph", number);
  json.field("samples", timing.samples);
  json.field("median_us", timing.median_us);
  if (timing.p10_us != 0) json.field("p10_us", timing.p10_us);
  if (timing.p90_us != 0) json.field("p90_us", timing.p90_us);
  if (timing.launch_cpu_us != 0) json.field("launch_cpu_us", timing.launch_cpu_us);
  return flush(json);
}

Result<void> CaptureWriter::Impl::write_accesses(const Graph& graph, std::uint32_t number) {
  std::span<const ir::MeasuredAccess> left = graph.measured_accesses;
  while (!left.empty()) {
    const auto piece = left.first(std::min(left.size(), kOpsPerRecord));
    left = left.subspan(piece.size());
    JsonWriter json = start("access");
    json.field("graph", number);
    if (graph.measured_reads_are_some) json.field("reads_are_some", true);
    json.key("accesses");
    json.begin_array();
    for (const ir::MeasuredAccess& access : piece) {
      json.begin_array();
      json.number(access.node.index());
      json.hex(access.begin);
      json.hex(access.end);
      json.string(access.reads ? (access.writes ? "rw" : "r") : (access.writes ? "w" : "?"));
      if (access.slot != ir::MeasuredAccess::kNoSlot) {
        json.number(access.slot);
        json.number(access.offset_bytes);
      }
      json.end_array();
    }
    json.end_array();
    CGLINT_TRY(flush(json));
  }
  return {};
}

Result<void> CaptureWriter::Impl::write_graph_end(std::uint32_t number) {
  JsonWriter json = start("graph_end");
  json.field("graph", number);
  return flush(json);
}

const CaptureWriter::Impl::Written* CaptureWriter::Impl::find_equal(const Recording& recording,
                                                                    const Graph& graph, GraphId id,
                                                                    const ContentHash& hash) const {
  const auto [first, last] = by_hash_.equal_range(hash.low);
  for (auto it = first; it != last; ++it) {
    if (it->second == id) continue;
    const Written& other = written_.at(it->second);
    if (other.hash != hash) continue;
    const Graph* const stored = find(recording, it->second);
    if (stored == nullptr || is_same_work(recording, *stored, graph)) return &other;
  }
  return nullptr;
}

Result<void> CaptureWriter::Impl::write_merged(const Recording& recording, GraphId id, const Written& of) {
  const Graph& graph = *find(recording, id);
  std::vector<std::uint32_t> numbers(1);
  CGLINT_TRY(write_instance(recording, graph.info, of.number, own_instances(graph),
                            of.hash.low, numbers[0]));
  CGLINT_TRY(write_timing(graph.info.untraced, numbers[0]));
  CGLINT_TRY(write_instances(recording, graph, of.number, of.hash.low, numbers));
  instance_numbers_.emplace(id, numbers);
  return write_replays(graph, numbers);
}

Result<void> CaptureWriter::Impl::plan(const Recording& recording) {
  if (!options_.merge_equal) return {};
  std::unordered_multimap<std::uint64_t, GraphId> first_by_hash;
  for (const GraphId id : recording.graphs.ids()) {
    const Graph* const graph = find(recording, id);
    if (graph == nullptr || !can_merge(*graph)) continue;
    const ContentHash hash = hasher_.hash(recording, *graph);
    planned_hash_.emplace(id, hash);
    const auto [first, last] = first_by_hash.equal_range(hash.low);
    GraphId original;
    for (auto it = first; it != last && !original.is_valid(); ++it)
      if (planned_hash_.at(it->second) == hash &&
          is_same_work(recording, *find(recording, it->second), *graph))
        original = it->second;
    if (!original.is_valid()) {
      first_by_hash.emplace(hash.low, id);
      continue;
    }
    planned_members_[original].push_back(id);
    absorbed_.insert(id);
    absorb_bodies(recording, *graph);
  }
  // A body that an unmerged graph shares with a merged one is needed after all.
  std::vector<GraphId> needed;
  for (const GraphId id : recording.graphs.ids())
    if (const Graph* const graph = find(recording, id); graph != nullptr && !absorbed_.contains(id))
      append_bodies(*graph, needed);
  while (!needed.empty()) {
    const GraphId next = needed.back();
    needed.pop_back();
    if (absorbed_.erase(next) == 0) continue;
    if (const Graph* const body = find(recording, next)) append_bodies(*body, needed);
  }
  return {};
}

Result<void> CaptureWriter::Impl::write_graph(const Recording& recording, GraphId id) {
  if (numbers_.contains(id) || absorbed_.contains(id)) return {};
  const Graph* const top = find(recording, id);
  CGLINT_CHECK(top != nullptr);
  CGLINT_TRY(write_processes(recording));
  CGLINT_TRY(write_allocations(recording, false));

  if (can_merge(*top)) {
    const auto planned = planned_hash_.find(id);
    const ContentHash hash = planned != planned_hash_.end() ? planned->second : hasher_.hash(recording, *top);
    if (const Written* const equal = find_equal(recording, *top, id, hash)) {
      numbers_.emplace(id, equal->number);
      absorb_bodies(recording, *top);
      return write_merged(recording, id, *equal);
    }
    Written written;
    written.hash = hash;
    written_.emplace(id, written);
    by_hash_.emplace(hash.low, id);
  }

  // Bodies first, innermost first: no graph line refers to a later one.
  std::vector<GraphId> order;
  struct Visit {
    GraphId id;
    std::vector<GraphId> bodies;
    std::size_t next = 0;
  };
  std::unordered_set<GraphId> visited = {id};
  std::vector<Visit> path;
  const auto enter = [&](GraphId graph) {
    Visit visit{graph, {}, 0};
    append_bodies(*find(recording, graph), visit.bodies);
    path.push_back(std::move(visit));
  };
  enter(id);
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next == visit.bodies.size()) {
      order.push_back(visit.id);
      path.pop_back();
      continue;
    }
    const GraphId body = visit.bodies[visit.next++];
    if (numbers_.contains(body) || find(recording, body) == nullptr || !visited.insert(body).second) continue;
    enter(body);
  }

  for (const GraphId next : order) numbers_.emplace(next, next_number_++);
  for (const GraphId next : order) {
    const Graph& graph = *find(recording, next);
    const std::uint32_t number = numbers_.at(next);
    std::uint64_t hash = 0;
    if (const auto written = written_.find(next); written != written_.end()) {
      written->second.number = number;
      hash = written->second.hash.low;
    }
    CGLINT_TRY(write_graph_record(recording, graph, number, hash));
    ++stats_.graphs;
  }
  for (const GraphId next : order) {
    const Graph& graph = *find(recording, next);
    std::vector<std::uint32_t> numbers = {numbers_.at(next)};
    const auto written = written_.find(next);
    const std::uint64_t hash = written != written_.end() ? written->second.hash.low : 0;
    CGLINT_TRY(write_timing(graph.info.untraced, numbers[0]));
    CGLINT_TRY(write_instances(recording, graph, numbers[0], hash, numbers));
    CGLINT_TRY(write_replays(graph, numbers));
    CGLINT_TRY(write_accesses(graph, numbers[0]));
    instance_numbers_.emplace(next, numbers);
    if (const auto members = planned_members_.find(next); members != planned_members_.end()) {
      for (const GraphId member : members->second)
        CGLINT_TRY(write_merged(recording, member, written->second));
    }
  }
  // A graph is closed before the bodies that it runs, so that a reader that drops graphs still has them at
  // hand.
  for (auto it = order.rbegin(); it != order.rend(); ++it) CGLINT_TRY(write_graph_end(numbers_.at(*it)));
  return {};
}

Result<void> CaptureWriter::Impl::finish(const Recording& recording) {
  CGLINT_TRY(write_processes(recording));
  CGLINT_TRY(write_allocations(recording, true));
  for (std::size_t first = 0; first < recording.allocator_blocks.size();) {
    const ir::AllocatorBlock& head = recording.allocator_blocks[first];
    JsonWriter json = start("allocator_blocks");
    if (head.process.is_valid()) json.field("process", head.process.index());
    optional_field(json, "sequence", head.sequence, 0);
    json.key("blocks");
    json.begin_array();
    for (std::size_t n = 0; first < recording.allocator_blocks.size() && n < kOpsPerRecord; ++first, ++n) {
      const ir::AllocatorBlock& block = recording.allocator_blocks[first];
      if (block.process != head.process || block.sequence != head.sequence) break;
      json.begin_object();
      json.hex_field("base", block.base);
      json.field("size_bytes", block.size_bytes);
      json.field("state", block_state_name(block.state));
      if (block.pool.is_valid() && block.pool != ir::kEmptyString)
        json.field("pool", recording.text(block.pool));
      optional_hex(json, "stream", block.stream);
      optional_field(json, "alloc_sequence", block.alloc_sequence, 0);
      json.end_object();
    }
    json.end_array();
    CGLINT_TRY(flush(json));
  }
  for (std::size_t first = 0; first < recording.loose_ops.size();) {
    const std::size_t last = std::min(recording.loose_ops.size(), first + kOpsPerRecord);
    LocalTable<ir::StringId> names;
    TimeBase base;
    for (std::size_t i = first; i < last; ++i) {
      const ir::LooseOp op = recording.loose_ops[i];
      names.add(op.name);
      base.include(op.start_ns);
      base.include(op.end_ns);
    }
    JsonWriter json = start("loose_ops");
    const std::int64_t base_ns = base.base();
    write_base(json, base_ns);
    json.key("names");
    json.begin_array();
    for (const ir::StringId name : names.ids()) json.string(recording.text(name));
    json.end_array();
    json.key("ops");
    json.begin_array();
    for (; first < last; ++first) {
      const ir::LooseOp op = recording.loose_ops[first];
      json.begin_array();
      json.number(names.find(op.name));
      json.string(ir::node_kind_name(op.kind));
      json.number(op.device);
      json.number(op.stream);
      json.number(op.start_ns - base_ns);
      json.number(op.end_ns - base_ns);
      if (op.correlation != 0) json.number(op.correlation);
      json.end_array();
    }
    json.end_array();
    CGLINT_TRY(flush(json));
  }
  // Equal graphs that became known after their original had been dropped by this recording's own reader.
  for (const ir::LateInstance& late : recording.late_instances) {
    const auto number = numbers_.find(late.of);
    if (number == numbers_.end()) continue;
    std::uint32_t ignored = 0;
    CGLINT_TRY(write_instance(recording, late.info, number->second, late.info.instances, 0,
                              ignored));
    CGLINT_TRY(write_timing(late.info.untraced, ignored));
  }
  for (const ir::ExecutableUse& use : recording.executable_uses) {
    const auto numbers = instance_numbers_.find(use.graph);
    if (numbers == instance_numbers_.end() || use.instance >= numbers->second.size()) continue;
    JsonWriter json = start("exec");
    json.field("graph", numbers->second[use.instance]);
    json.field("last_launch_sequence", use.last_launch_sequence);  // a record that says nothing else would be taken for one of an open graph
    optional_field(json, "destroyed_sequence", use.destroyed_sequence, 0);
    optional_field(json, "failed_updates", use.failed_updates, 0);
    CGLINT_TRY(flush(json));
  }
  for (const ir::Loss& loss : recording.losses) {
    JsonWriter json = start("loss");
    json.field("severity", severity_name(loss.severity));
    json.field("what", recording.text(loss.what));
    optional_field(json, "count", loss.count, 1);
    optional_field(json, "offset_bytes", loss.offset_bytes, ~std::uint64_t{0});
    if (!loss.facts.empty()) {
      json.key("facts");
      json.begin_array();
      for (int i = 0; i < ir::kFactCount; ++i)
        if (loss.facts.contains(static_cast<ir::Fact>(i)))
          json.string(ir::fact_name(static_cast<ir::Fact>(i)));
      json.end_array();
    }
    CGLINT_TRY(flush(json));
  }
  JsonWriter json = start("end");
  json.field("records", stats_.records);
  CGLINT_TRY(flush(json));
  return sink_->close();
}

Result<void> CaptureWriter::Impl::write_all(const Recording& recording) {
  CGLINT_TRY(begin(recording));
  CGLINT_TRY(plan(recording));
  for (const bool bodies : {false, true})  // bodies that no graph runs come last
    for (const GraphId id : recording.graphs.ids())
      if (const Graph* const graph = find(recording, id);
          graph != nullptr && (graph->info.role == ir::GraphRole::body) == bodies)
        CGLINT_TRY(write_graph(recording, id));
  return finish(recording);
}

// --- the public face
// ------------------------------------------------------------------------------------------------------

CaptureWriter::CaptureWriter(std::unique_ptr<Sink> sink, CaptureWriterOptions options)
    : impl_(std::make_unique<Impl>(std::move(sink), std::move(options))) {}
CaptureWriter::~CaptureWriter() = default;

Result<void> CaptureWriter::begin(const Recording& recording) {
  return impl_->guarded([&] { return impl_->begin(recording); });
}
Result<void> CaptureWriter::write_graph(const Recording& recording, GraphId graph) {
  return impl_->guarded([&] { return impl_->write_graph(recording, graph); });
}
Result<void> CaptureWriter::finish(const Recording& recording) {
  return impl_->guarded([&] { return impl_->finish(recording); });
}
Result<void> CaptureWriter::write_all(const Recording& recording) {
  return impl_->guarded([&] { return impl_->write_all(recording); });
}
CaptureWriterStats CaptureWriter::stats() const {
  return impl_->stats();
}

Result<CaptureWriterStats> write_capture(const Recording& recording, std::unique_ptr<Sink> sink,
                                         const CaptureWriterOptions& options) {
  CaptureWriter writer(std::move(sink), options);
  CGLINT_TRY(writer.write_all(recording));
  return writer.stats();
}

}  // namespace cglint::exporter
