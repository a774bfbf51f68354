#include "ir/recording.h"

#include <array>
#include <cstring>

namespace cglint::ir {
namespace {

constexpr std::array<std::string_view, kNodeKindCount> kNodeKindNames = {
    "kernel",       "memcpy",     "memset",    "host",     "empty",
    "event_record", "event_wait", "child_graph", "mem_alloc", "mem_free",
    "ext_semaphore_signal", "ext_semaphore_wait", "batch_mem_op", "conditional", "unknown"};

template <typename T>
void append_bytes(std::string& key, const T& value) {
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  key.append(bytes.data(), bytes.size());
}

}  // namespace

std::string_view node_kind_name(NodeKind kind) { return kNodeKindNames[static_cast<std::size_t>(kind)]; }

std::optional<NodeKind> node_kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNodeKindNames.size(); ++i)
    if (kNodeKindNames[i] == name) return static_cast<NodeKind>(i);
  return std::nullopt;
}

std::string_view sync_op_kind_name(SyncOp::Kind kind) {
  switch (kind) {
    case SyncOp::Kind::event_record: return "event_record";
    case SyncOp::Kind::event_wait: return "event_wait";
    case SyncOp::Kind::begin_capture: return "begin_capture";
    case SyncOp::Kind::end_capture: return "end_capture";
    case SyncOp::Kind::update_dependencies: return "update_dependencies";
  }
  return "event_wait";
}

std::string_view graph_role_name(GraphRole role) {
  switch (role) {
    case GraphRole::captured: return "captured";
    case GraphRole::built: return "built";
    case GraphRole::body: return "body";
    case GraphRole::eager: return "eager";
  }
  return "captured";
}

FunctionId Recording::intern_function(std::string_view name) {
  const StringId id = strings.intern(name);
  const auto [it, inserted] = function_by_name_.try_emplace(id.index());
  if (inserted) {
    Function function;
    function.name = id;
    it->second = functions.push_back(std::move(function));
  }
  return it->second;
}

StreamId Recording::intern_stream(ProcessId process, std::uint64_t handle) {
  const auto [it, inserted] = stream_by_handle_.try_emplace({process.index(), handle});
  if (inserted) {
    Stream stream;
    stream.handle = handle;
    stream.process = process;
    it->second = streams.push_back(stream);
  }
  return it->second;
}

StackId Recording::intern_stack(std::span<const Frame> frames) {
  if (frames.empty()) return StackId();
  std::string key;
  for (const Frame& frame : frames) {
    key += static_cast<char>(frame.kind);
    key += frame.generated ? '\1' : '\0';
    append_bytes(key, frame.file.index());
    append_bytes(key, frame.function.index());
    append_bytes(key, frame.line);
  }
  const auto [it, inserted] = stack_by_key_.try_emplace(std::move(key));
  if (inserted) {
    it->second = StackId::from_size(stack_ranges_.size());
    stack_ranges_.push_back(
        {static_cast<std::uint32_t>(frames_.size()), static_cast<std::uint32_t>(frames.size())});
    frames_.insert(frames_.end(), frames.begin(), frames.end());
  }
  return it->second;
}

NvtxId Recording::intern_nvtx(std::span<const StringId> ranges) {
  if (ranges.empty()) return NvtxId();
  std::string key;
  for (const StringId range : ranges) append_bytes(key, range.index());
  const auto [it, inserted] = nvtx_by_key_.try_emplace(std::move(key));
  if (inserted) {
    it->second = NvtxId::from_size(nvtx_ranges_.size());
    nvtx_ranges_.push_back(
        {static_cast<std::uint32_t>(nvtx_names_.size()), static_cast<std::uint32_t>(ranges.size())});
    nvtx_names_.insert(nvtx_names_.end(), ranges.begin(), ranges.end());
  }
  return it->second;
}

std::span<const Frame> Recording::frames(StackId id) const {
  if (id.index() >= stack_ranges_.size()) return {};
  const Range range = stack_ranges_[id.index()];
  return std::span(frames_).subspan(range.first, range.count);
}

std::span<const StringId> Recording::nvtx(NvtxId id) const {
  if (id.index() >= nvtx_ranges_.size()) return {};
  const Range range = nvtx_ranges_[id.index()];
  return std::span(nvtx_names_).subspan(range.first, range.count);
}

void Recording::add_loss(Loss::Severity severity, std::string_view what, std::uint64_t count,
                         std::uint64_t offset_bytes, FactSet facts) {
  Loss loss;
  loss.severity = severity;
  loss.what = strings.intern(what);
  loss.count = count;
  loss.offset_bytes = offset_bytes;
  loss.facts = facts;
  for (Loss& known : losses) {
    if (known.what == loss.what && known.severity == severity) {
      known.count += count;
      known.facts = known.facts.unite(facts);
      return;
    }
  }
  losses.push_back(loss);
}

}  // namespace cglint::ir
