#include "rules/common/describe.h"

#include <algorithm>

namespace cglint::rules {

engine::Entity entity_of(const engine::GraphContext& context, ir::NodeId node, std::string_view role) {
  engine::Entity entity;
  entity.kind = engine::Entity::Kind::node;
  entity.id = node.index();
  entity.source_id = context.graph.source_id.empty() ? node.index() : context.graph.source_id[node];
  entity.label = context.analyses.identities().label(context.graph, node);
  entity.role = role;
  entity.layer = layer_of(context, node);
  return entity;
}

namespace {

// PyTorch's Python wrappers (torch/nn/functional.py, torch/cuda/streams.py) and the CUDA and PyTorch libraries are on top of the
// line that is meant.
bool is_wrapper(const ir::Recording& recording, const ir::Frame& frame) {
  const std::string_view file = recording.text(frame.file);
  // Recordings without folders have "torch/..." and "cuda/include/...".
  if (frame.kind == ir::Frame::Kind::python) return file.find("-packages/torch/") != std::string_view::npos || file.starts_with("torch/");
  const std::string_view name = file.substr(file.find_last_of('/') + 1);
  // A runtime that is linked statically has its functions in the program's own module.
  const std::string_view function = recording.text(frame.function);
  if (function.starts_with("cuda") && function.size() > 4 && function[4] >= 'A' && function[4] <= 'Z') return true;
  if (function.find("cudaLaunchKernel") != std::string_view::npos || function.starts_with("__cuda")) return true;
  if (name.starts_with("libcu") || name.starts_with("libtorch") || name.starts_with("libc10")) return true;
  return file.find("/include/crt/") != std::string_view::npos || name == "cuda_runtime.h" || name == "cuda_runtime_api.h" || name == "device_launch_parameters.h";
}

engine::SourceLocation location(const ir::Recording& recording, const ir::Frame& frame, std::string_view role) {
  engine::SourceLocation source;
  source.file = recording.text(frame.file);
  source.function = recording.text(frame.function);
  source.line = frame.line;
  source.generated = frame.generated;
  source.role = role;
  return source;
}

}  // namespace

std::size_t user_frame(const ir::Recording& recording, ir::StackId stack) {
  const std::span<const ir::Frame> frames = recording.frames(stack);
  const auto pick = [&](auto&& accepts) { return std::find_if(frames.begin(), frames.end(), accepts); };
  const auto is_python = [](const ir::Frame& f) { return f.kind == ir::Frame::Kind::python; };
  auto frame = pick([&](const ir::Frame& f) { return is_python(f) && !f.generated && !is_wrapper(recording, f); });
  if (frame == frames.end()) frame = pick([&](const ir::Frame& f) { return is_python(f) && !f.generated; });
  if (frame == frames.end()) frame = pick(is_python);
  if (frame == frames.end()) frame = pick([&](const ir::Frame& f) { return f.line != 0 && !is_wrapper(recording, f); });
  if (frame == frames.end()) frame = pick([](const ir::Frame& f) { return f.line != 0; });
  if (frame == frames.end()) frame = pick([&](const ir::Frame& f) { return !is_wrapper(recording, f); });
  if (frame == frames.end()) frame = frames.begin();
  return static_cast<std::size_t>(frame - frames.begin());
}

std::vector<engine::SourceLocation> sources_of(const ir::Recording& recording, ir::StackId stack, std::string_view role) {
  const std::span<const ir::Frame> frames = recording.frames(stack);
  if (frames.empty()) return {};
  const std::size_t chosen = user_frame(recording, stack);
  std::vector<engine::SourceLocation> sources{location(recording, frames[chosen], role)};
  // The line in compiler output that the user's line led to.
  const auto generated = std::find_if(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(chosen),
                                      [](const ir::Frame& f) { return f.generated; });
  if (generated == frames.begin() + static_cast<std::ptrdiff_t>(chosen)) return sources;
  sources.push_back(location(recording, *generated, role));
  // A recorder that followed it put the line right behind it; otherwise torch's own frames, which call the compiled code, are between.
  if (std::next(generated) != frames.begin() + static_cast<std::ptrdiff_t>(chosen))
    sources.back().role += sources.back().role.empty() ? "the line that it was made from is not known: the caller is named"
                                                       : "; the line that it was made from is not known: the caller is named";
  return sources;
}

std::vector<engine::SourceLocation> sources_of(const engine::GraphContext& context, ir::StackId stack, std::string_view role) {
  return sources_of(context.recording, stack, role);
}

std::vector<engine::SourceLocation> sources_of(const engine::GraphContext& context, ir::NodeId node, std::string_view role) {
  return context.graph.stack.empty() ? std::vector<engine::SourceLocation>() : sources_of(context, context.graph.stack[node], role);
}

std::vector<engine::SourceLocation> capture_sources(const engine::GraphContext& context) {
  for (const ir::SyncOp& op : context.graph.sync_ops)
    if (op.kind == ir::SyncOp::Kind::begin_capture)
      if (auto sources = sources_of(context, op.stack, "begin of the capture"); !sources.empty()) return sources;
  return context.graph.node_count() > 0 ? sources_of(context, ir::NodeId(0), "first launch") : std::vector<engine::SourceLocation>();
}

std::string stable_name(const engine::GraphContext& context, ir::NodeId node) {
  if (const ir::KernelNode* kernel = context.graph.kernel(node); kernel != nullptr && kernel->function.is_valid())
    return context.analyses.identities().of(kernel->function).normalised;
  return std::string(ir::node_kind_name(context.graph.kind[node]));
}

std::string stable_sequence(const engine::GraphContext& context, std::span<const ir::NodeId> nodes) {
  std::string sequence, previous;
  for (const ir::NodeId node : nodes) {
    std::string name = stable_name(context, node);
    if (name == previous) continue;
    if (!sequence.empty()) sequence += ';';
    sequence += name;
    previous = std::move(name);
  }
  return sequence;
}

std::string label_list(const engine::GraphContext& context, std::span<const ir::NodeId> nodes, std::size_t max) {
  std::string list;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i == max) return list + ", ...";
    if (i > 0) list += ", ";
    list += context.analyses.identities().label(context.graph, nodes[i]);
  }
  return list;
}

std::int32_t layer_of(const engine::GraphContext& context, ir::NodeId node) {
  const analysis::Layers& layers = context.analyses.layers();
  return layers.count > 0 && layers.layer.contains(node) ? layers.layer[node] : -1;
}

}  // namespace cglint::rules
