#include "import/capture/graph_record.h"

#include <algorithm>

namespace cglint::import::capture {
namespace {

using base::ErrorCode;
using base::make_error;
using ir::Fact;
using ir::FactSet;
using ir::GraphId;
using ir::NodeId;
using ir::NodeKind;

constexpr std::array<std::string_view, 4> kParamTypes = {"unknown", "pointer", "const_pointer", "scalar"};
constexpr std::array<std::string_view, 6> kMemoryKinds = {"unknown", "host_pageable", "host_pinned",
                                                          "device",  "array",         "managed"};

// Which properties of a node were stated.
enum NodeBit : std::uint32_t {
  kHasKind = 1u << 0,
  kHasName = 1u << 1,
  kHasId = 1u << 2,
  kHasSequence = 1u << 3,
  kHasStream = 1u << 4,
  kHasThread = 1u << 5,
  kHasNvtx = 1u << 6,
  kHasStack = 1u << 7,
  kHasDevice = 1u << 8,
  kHasContext = 1u << 9,
  kHasEnabled = 1u << 10,
  kHasHash = 1u << 11,
  kHasLaunch = 1u << 12,
  kHasParams = 1u << 13,
  kHasArgs = 1u << 14,
  kHasFunctionIndex = 1u << 15,
  kHasCopy = 1u << 16,    // a memcpy or memset property
  kHasKernel = 1u << 17,  // a kernel property of its own, and which:
  kHasGrid = 1u << 18,
  kHasBlock = 1u << 19,
  kHasCluster = 1u << 20,
  kHasDynamic = 1u << 21,
  kHasStatic = 1u << 22,
  kHasRegisters = 1u << 23,
  kHasPriority = 1u << 24,
  kHasCooperative = 1u << 25,
  kHasPdl = 1u << 26,
};

// "[12,13]"; false for any other form.
bool read_plain_edge(const char* p, std::uint32_t& from, std::uint32_t& to) {
  const auto number = [&p](std::uint32_t& out) {
    std::uint64_t value = 0;
    int digits = 0;
    for (; digits < 10; ++digits, ++p) {
      const auto digit = static_cast<unsigned>(static_cast<unsigned char>(*p)) - '0';
      if (digit > 9) break;
      value = value * 10 + digit;
    }
    out = static_cast<std::uint32_t>(value);
    return digits != 0 && value < RecordFields::kNone;
  };
  return *p++ == '[' && number(from) && *p++ == ',' && number(to) && *p == ']';
}

}  // namespace

void IdMap::set(std::uint32_t key, std::uint32_t value) {
  if (key < dense_.size()) {
    dense_[key] = value;
  } else if (key <= 2 * size_ + 4096) {
    dense_.resize(std::size_t{key} + key / 2 + 64, kNone);
    for (auto it = sparse_.begin(); it != sparse_.end();) {
      if (it->first < dense_.size()) {
        dense_[it->first] = it->second;
        it = sparse_.erase(it);
      } else {
        ++it;
      }
    }
    dense_[key] = value;
  } else {
    sparse_[key] = value;
  }
  ++size_;
}

// --- the record -----------------------------------------------------------------------------------------------------

GraphRecord GraphRecordParser::parse(std::string_view line, std::size_t capacity, std::uint64_t line_offset) {
  record_ = GraphRecord();
  problem_.clear();
  line_offset_ = line_offset;
  unknown_ = UnknownCounts();
  if (!read_record(line, capacity)) record_.graph.reset();
  record_.problem = std::move(problem_);
  record_.was_repaired = was_repaired_;
  record_.unknown = std::move(unknown_);
  for (; known_strings_ < scratch_.strings.size(); ++known_strings_)
    record_.new_strings.push_back(scratch_.text(ir::StringId::from_size(known_strings_)));
  for (; known_stacks_ < scratch_.stack_count(); ++known_stacks_) {
    const auto frames = scratch_.frames(ir::StackId::from_size(known_stacks_));
    record_.new_stacks.emplace_back(frames.begin(), frames.end());
  }
  for (; known_nvtx_ < scratch_.nvtx_count(); ++known_nvtx_) {
    const auto ranges = scratch_.nvtx(ir::NvtxId::from_size(known_nvtx_));
    record_.new_nvtx.emplace_back(ranges.begin(), ranges.end());
  }
  return std::move(record_);
}

void GraphRecordParser::clear() {
  problem_.clear();
  builder_.emplace();
  refs_ = {};
  record_.functions.clear();
  record_.streams.clear();
  record_.number = record_.process = kNone;
  launches_.clear();
  frames_.clear();
  stacks_.clear();
  nvtx_.clear();
  defaults_ = {};
  has_nodes_ = has_facts_ = false;
  record_.may_lack_allocations = false;
}

bool GraphRecordParser::read_record(std::string_view line, std::size_t capacity) {
  od::object object;
  if (!open_record(line, capacity, object)) return false;
  clear();
  bool out_of_order = false;
  const bool good = read_fields(object, false, out_of_order);
  if (record_.fatal) return false;
  if (!good || out_of_order) {
    // A second, slower reading that accepts any order, and decides.
    unknown_ = UnknownCounts();
    clear();
    bool rewound = false;
    if (!reopen_record(object) || !read_tables(object)) return false;
    if (object.reset().get(rewound) != simdjson::SUCCESS) return wrong("the record cannot be read twice");
    if (!read_fields(object, true, out_of_order)) return false;
  }
  if (!nothing_follows()) return false;
  if (record_.number == kNone) return wrong("the record has no graph");
  if (!has_nodes_) return wrong("the record has no nodes");
  if (!has_facts_) return wrong("the record has no facts");
  if (!resolve_info()) return false;
  const auto& sync_ops = builder_->graph().sync_ops;
  for (const ir::SyncOp& op : sync_ops)
    if (op.record.is_valid() && op.record.index() >= sync_ops.size())
      return wrong(fmt::format("a sync operation names record {} of {}", op.record.index(), sync_ops.size()));
  record_.parent = refs_.parent;
  record_.parent_node = refs_.parent_node;
  auto finished = builder_->finish();
  if (!finished) return wrong(finished.error().message);
  record_.duplicate_edges = builder_->duplicate_edges();
  record_.graph = *std::move(finished);
  return true;
}

bool GraphRecordParser::function_at(const char* what, std::uint32_t index, ir::FunctionId& out) {
  if (index == kNone) return true;
  if (index >= record_.functions.size()) return wrong(fmt::format("{} {} of {}", what, index, record_.functions.size()));
  out = ir::FunctionId(index);
  return true;
}

bool GraphRecordParser::stream_at(const char* what, std::uint32_t index, ir::StreamId& out) {
  if (index == kNone) return true;
  if (index >= record_.streams.size()) return wrong(fmt::format("{} {} of {}", what, index, record_.streams.size()));
  out = ir::StreamId(index);
  return true;
}

bool GraphRecordParser::read_functions(value& v) {
  record_.functions.clear();
  return for_each(v, "functions", [&](value& item) {
    ir::Function function;
    const auto read_param = [&](value& entry) {
      ir::Function::Param param;
      param.type_name = ir::kEmptyString;
      if (!read_tuple<2>(entry, "a parameter", number("a parameter's offset", param.offset_bytes),
                         number("a parameter's size", param.size_bytes),
                         text("a parameter's type name", param.type_name),
                         word("a parameter's type", kParamTypes, param.type)))
        return false;
      function.params.push_back(param);
      return true;
    };
    if (!read_object(item, "a function", required(text("name", function.name)), list("params", read_param),
                     hex("image_hash", function.image_hash),
                     tri("grid_dependency_wait", function.has_grid_dependency_wait),
                     tri("launch_dependents", function.has_launch_dependents)))
      return false;
    record_.functions.push_back(std::move(function));
    return true;
  });
}

bool GraphRecordParser::read_launches(value& v) {
  launches_.clear();
  layout_.clear();
  const auto read_word = [&](value& entry) {
    ir::ParamWord word;
    if (!read_tuple<3>(entry, "a layout entry", number("a word's slot", word.slot),
                       number("a word's offset", word.offset_bytes), number("a word's size", word.size_bytes),
                       this->word("a word's type", kParamTypes, word.type)) ||
        !check_word_size(word))
      return false;
    layout_.push_back(word);
    return true;
  };
  return for_each(v, "launches", [&](value& item) {
    Launch launch;
    launch.first_word = static_cast<std::uint32_t>(layout_.size());
    ir::KernelNode& kernel = launch.kernel;
    std::uint32_t function = kNone;
    if (!read_object(item, "a launch", index("function", function), list("layout", read_word), dim3("grid", kernel.grid),
                     dim3("block", kernel.block), dim3("cluster", kernel.cluster),
                     number("dynamic_shared_bytes", kernel.dynamic_shared_bytes),
                     number("static_shared_bytes", kernel.static_shared_bytes),
                     number("registers_per_thread", kernel.registers_per_thread), number("priority", kernel.priority),
                     tri("cooperative", kernel.cooperative),
                     tri("programmatic_serialization", kernel.programmatic_serialization)) ||
        !function_at("a launch names function", function, kernel.function))
      return false;
    launch.word_count = static_cast<std::uint32_t>(layout_.size()) - launch.first_word;
    launches_.push_back(launch);
    return true;
  });
}

bool GraphRecordParser::check_word_size(const ir::ParamWord& word) {
  return word.size_bytes == 1 || word.size_bytes == 2 || word.size_bytes == 4 || word.size_bytes == 8 ||
         wrong("a word's size is not 1, 2, 4 or 8");
}

bool GraphRecordParser::read_streams(value& v) {
  record_.streams.clear();
  return for_each(v, "streams", [&](value& item) {
    ir::Stream stream;
    stream.name = ir::kEmptyString;
    if (!read_object(item, "a stream", required(hex("handle", stream.handle)), number("priority", stream.priority),
                     text("name", stream.name)))
      return false;
    record_.streams.push_back(stream);
    return true;
  });
}

bool GraphRecordParser::read_nvtx(value& v) {
  nvtx_.clear();
  return for_each(v, "nvtx", [&](value& item) {
    nvtx_ranges_.clear();
    if (!for_each(item, "an NVTX stack", [&](value& entry) {
          ir::StringId text;
          if (!get_text(entry, "an NVTX range", text)) return false;
          nvtx_ranges_.push_back(text);
          return true;
        }))
      return false;
    nvtx_.push_back(recording_.intern_nvtx(nvtx_ranges_));
    return true;
  });
}

bool GraphRecordParser::read_defaults(value& v) {
  const auto noted = [](auto item, bool& has) {
    return Item{item.what, [item, &has](value& field) { return has = true, item.read(field); }};
  };
  return read_object(v, "defaults", noted(number("thread", defaults_.thread), defaults_.has_thread),
                     noted(number("device", defaults_.device), defaults_.has_device),
                     noted(hex("context", defaults_.context), defaults_.has_context),
                     noted(index("stream", defaults_.stream), defaults_.has_stream));
}

bool GraphRecordParser::resolve_info() {
  ir::GraphInfo& info = builder_->graph().info;
  return look_up("failed_stack", "stack", stacks_, refs_.failed_stack, info.failed_stack) &&
         stream_at("failed_stream names stream", refs_.failed_stream, info.failed_stream) &&
         stream_at("origin_stream names stream", refs_.origin_stream, info.origin_stream);
}

bool GraphRecordParser::read_params(value& v) {
  words_.clear();
  return for_each(v, "params", [&](value& entry) {
    ir::ParamWord word;
    std::uint32_t allocation = kNone;
    if (!read_tuple<4>(entry, "a parameter word", number("a word's slot", word.slot),
                       number("a word's offset", word.offset_bytes), number("a word's size", word.size_bytes),
                       hex("a word's value", word.value), this->word("a word's type", kParamTypes, word.type),
                       index_or_none("a word's allocation", allocation)) ||
        !check_word_size(word))
      return false;
    if (allocation != kNone) word.allocation = ir::AllocationId(allocation);
    words_.push_back(word);
    return true;
  });
}

bool GraphRecordParser::read_nodes(value& v) {
  has_nodes_ = true;
  return for_each(v, "nodes", [&](value& item) {
    if (builder_->graph().node_count() >= options_.limits.max_nodes_per_graph) {
      record_.fatal = make_error(ErrorCode::limit,
                          fmt::format("a graph has more than {} nodes (max_nodes_per_graph)",
                                      options_.limits.max_nodes_per_graph),
                          line_offset_);
      return false;
    }
    const std::size_t index = builder_->graph().node_count();
    if (read_node(item)) return true;
    if (!problem_.starts_with("node ")) problem_ = fmt::format("node {}: {}", index, problem_);
    return false;
  });
}

bool GraphRecordParser::set_columns(NodeId added, const NodeColumns& node) {
  const std::uint32_t present = node.present;
  if ((present & kHasSequence) != 0) builder_->set_sequence(added, node.sequence);
  const std::uint32_t stream = (present & kHasStream) != 0 ? node.stream : defaults_.stream;
  if (((present & kHasStream) != 0 || defaults_.has_stream) && stream != kNone) {
    ir::StreamId id;
    if (!stream_at("stream", stream, id)) return false;
    builder_->set_capture_stream(added, id);
  }
  if ((present & kHasThread) != 0 || defaults_.has_thread)
    builder_->set_thread(added, (present & kHasThread) != 0 ? node.thread : defaults_.thread);
  if ((present & kHasNvtx) != 0) {
    if (node.nvtx >= nvtx_.size()) return wrong(fmt::format("nvtx {} of {}", node.nvtx, nvtx_.size()));
    builder_->set_nvtx(added, nvtx_[node.nvtx]);
  }
  if ((present & kHasStack) != 0) {
    if (node.stack >= stacks_.size())
      return wrong(fmt::format("stack {} of {}", node.stack, stacks_.size()));
    builder_->set_stack(added, stacks_[node.stack]);
  }
  if ((present & kHasDevice) != 0 || defaults_.has_device)
    builder_->set_device(added, (present & kHasDevice) != 0 ? node.device : defaults_.device);
  if ((present & kHasContext) != 0 || defaults_.has_context)
    builder_->set_context(added, (present & kHasContext) != 0 ? node.context : defaults_.context);
  if ((present & kHasEnabled) != 0) builder_->set_enabled(added, node.enabled);
  if ((present & kHasId) != 0) builder_->set_source_id(added, node.id);
  if ((present & kHasHash) != 0) builder_->set_content_hash(added, node.hash);
  return true;
}

// Nearly all nodes are kernels, written without blanks in the properties below. Reading these straight from the text
// takes a third of the time that the general way takes. False, with nothing done, for anything else: read_node() then
// reads and judges it. The text is followed by bytes that match nothing here, so this cannot run away.
bool GraphRecordParser::read_kernel_fast(const char* p, NodeColumns& node) {
  const auto take = [&p](const auto& word) {
    constexpr std::size_t kSize = sizeof(word) - 1;
    if (std::memcmp(p, word, kSize) != 0) return false;
    p += kSize;
    return true;
  };
  const auto take_uint = [&p](std::uint64_t& out) {
    std::uint64_t sum = 0;
    int digits = 0;
    for (; digits < 19; ++digits) {
      const auto digit = static_cast<unsigned>(static_cast<unsigned char>(*p)) - '0';
      if (digit > 9) break;
      sum = sum * 10 + digit;
      ++p;
    }
    out = sum;
    return digits != 0 && static_cast<unsigned>(static_cast<unsigned char>(*p)) - '0' > 9;
  };
  const auto take_index = [&](std::uint32_t& out) {
    std::uint64_t wide = 0;
    if (!take_uint(wide) || wide >= kNone) return false;
    out = static_cast<std::uint32_t>(wide);
    return true;
  };
  // A property that comes twice is left to read_node(), which says so.
  const auto first = [&node](std::uint32_t bit) {
    if ((node.present & bit) != 0) return false;
    node.present |= bit;
    return true;
  };
  const auto take_hex = [&p](std::uint64_t& out) {
    const int size = *p == '"' ? hex_length(p + 1, out) : 0;
    p += size + 2;
    return size != 0;
  };
  node.present = kHasKind;
  args_.clear();
  arg_allocations_.clear();
  if (!take("{\"kind\":\"kernel\"")) return false;
  while (*p == ',') {
    ++p;
    if (*p++ != '"') return false;
    std::uint64_t number = 0;
    switch (*p) {
      case 'a':
        if (take("args\":[")) {
          if (!args_.empty()) return false;
          node.present |= kHasArgs;
          do {
            std::uint64_t word = 0;
            if (!take_hex(word)) return false;
            args_.push_back(word);
          } while (*p++ == ',');
          if (p[-1] != ']') return false;
        } else if (take("arg_allocations\":[")) {
          if (!arg_allocations_.empty()) return false;
          node.present |= kHasArgs;
          do {
            std::uint32_t index = kNone;
            if (!take("-1") && !take_index(index)) return false;
            arg_allocations_.push_back(index);
          } while (*p++ == ',');
          if (p[-1] != ']') return false;
        } else {
          return false;
        }
        break;
      case 'c':
        if (take("context\":")) {
          if (!first(kHasContext) || !take_hex(node.context)) return false;
        } else if (take("content_hash\":")) {
          if (!first(kHasHash) || !take_hex(node.hash)) return false;
        } else {
          return false;
        }
        break;
      case 'i':
        if (!take("id\":") || !first(kHasId) || !take_hex(node.id)) return false;
        break;
      case 'l':
        if (!take("launch\":") || !first(kHasLaunch) || !take_index(node.launch)) return false;
        break;
      case 'n':
        if (!take("nvtx\":") || !first(kHasNvtx) || !take_index(node.nvtx)) return false;
        break;
      case 's':
        if (take("sequence\":")) {
          if (!first(kHasSequence) || !take_uint(node.sequence)) return false;
        } else if (take("stack\":")) {
          if (!first(kHasStack) || !take_index(node.stack)) return false;
        } else if (take("stream\":")) {
          if (!first(kHasStream) || !take_index(node.stream)) return false;
        } else {
          return false;
        }
        break;
      case 't':
        if (!take("thread\":") || !first(kHasThread) || !take_uint(number) || number > ~std::uint32_t{0}) return false;
        node.thread = static_cast<std::uint32_t>(number);
        break;
      default: return false;
    }
  }
  return *p == '}' && (node.present & kHasLaunch) != 0 && node.launch < launches_.size() &&
         args_.size() == launches_[node.launch].word_count &&
         (arg_allocations_.empty() || arg_allocations_.size() == args_.size());
}

bool GraphRecordParser::add_kernel_fast(const NodeColumns& node) {
  const Launch& launch = launches_[node.launch];
  const ir::StringId name =
      launch.kernel.function.is_valid() ? record_.functions[launch.kernel.function.index()].name : ir::kEmptyString;
  const NodeId added = builder_->add_kernel(name, launch.kernel);
  if (!args_.empty()) {
    words_.assign(layout_.begin() + launch.first_word, layout_.begin() + launch.first_word + launch.word_count);
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i].value = args_[i];
    for (std::size_t i = 0; i < arg_allocations_.size(); ++i) {
      words_[i].allocation = ir::AllocationId(arg_allocations_[i]);  // kNone is the invalid id
    }
    builder_->add_params(added, words_);
  }
  return set_columns(added, node);
}

bool GraphRecordParser::read_node(value& node) {
  NodeColumns columns;
  if (read_kernel_fast(node.raw_json_token().data(), columns)) return add_kernel_fast(columns);
  static constexpr std::array<std::string_view, 4> kConditionalTypes = {"unknown", "if", "while", "switch"};
  columns = NodeColumns();
  std::uint32_t& present = columns.present;
  NodeKind kind = NodeKind::unknown;
  ir::StringId name = ir::kEmptyString, function_text = ir::kEmptyString;
  ir::KernelNode own;  // properties stated at the node itself
  std::uint32_t function_index = kNone;
  ir::MemcpyNode copy;
  ir::MemsetNode fill;
  ir::ConditionalNode conditional;
  std::uint64_t user_data = 0, event = 0, address = 0, bytes = 0;
  std::uint32_t allocation = kNone, count = 0, body = kNone, src_allocation = kNone, dst_allocation = kNone;
  std::uint32_t launches = 1;  // of an eager launch
  args_.clear();
  arg_allocations_.clear();
  bodies_.clear();

  const auto noted = [&present](std::uint32_t bits, auto item) {
    return Item{item.what, [&present, bits, item](value& v) { return present |= bits, item.read(v); }};
  };
  const auto kernel = [&](std::uint32_t bit, auto item) { return noted(kHasKernel | bit, item); };
  const auto copied = [&](auto item) { return noted(kHasCopy, item); };
  const auto read_arg = [&](value& element) {
    std::uint64_t word = 0;
    if (!get_hex(element, "an argument", word)) return false;
    args_.push_back(word);
    return true;
  };
  const auto read_arg_allocation = [&](value& element) {
    std::uint32_t index = kNone;
    if (!get_index_or_none(element, "an argument's allocation", index)) return false;
    arg_allocations_.push_back(index);
    return true;
  };
  const auto read_body = [&](value& element) {
    std::uint32_t number = kNone;
    if (!get_index_or_none(element, "a body", number)) return false;
    bodies_.push_back(GraphId(number));  // a graph number for now
    return true;
  };
  const auto read_function = [&](value& v) {  // of kernels an index, of host nodes a name
    od::json_type type;
    if (v.type().get(type) != simdjson::SUCCESS) return wrong("function is broken");
    if (type != od::json_type::number) return get_text(v, "function", function_text);
    present |= kHasFunctionIndex;
    return get_index(v, "function", function_index);
  };
  const std::uint64_t unknown_before = unknown_.properties.count;
  if (!read_object(
          node, "a node",
          // Of any node.
          noted(kHasKind, this->kind("kind", kind)), noted(kHasName, text("name", name)),
          noted(kHasId, hex("id", columns.id)), noted(kHasSequence, number("sequence", columns.sequence)),
          noted(kHasStream, index_or_none("stream", columns.stream)), noted(kHasThread, number("thread", columns.thread)),
          noted(kHasNvtx, index("nvtx", columns.nvtx)), noted(kHasStack, index("stack", columns.stack)),
          noted(kHasDevice, number("device", columns.device)), noted(kHasContext, hex("context", columns.context)),
          number("launches", launches), noted(kHasEnabled, flag("enabled", columns.enabled)), noted(kHasHash, hex("content_hash", columns.hash)),
          // Kernels.
          noted(kHasLaunch, index("launch", columns.launch)), noted(kHasArgs, list("args", read_arg)),
          noted(kHasArgs, list("arg_allocations", read_arg_allocation)),
          noted(kHasParams, Item{"params", [&](value& v) { return read_params(v); }}),
          Item{"function", read_function}, kernel(kHasGrid, dim3("grid", own.grid)),
          kernel(kHasBlock, dim3("block", own.block)), kernel(kHasCluster, dim3("cluster", own.cluster)),
          kernel(kHasDynamic, number("dynamic_shared_bytes", own.dynamic_shared_bytes)),
          kernel(kHasStatic, number("static_shared_bytes", own.static_shared_bytes)),
          kernel(kHasRegisters, number("registers_per_thread", own.registers_per_thread)),
          kernel(kHasPriority, number("priority", own.priority)),
          kernel(kHasCooperative, tri("cooperative", own.cooperative)),
          kernel(kHasPdl, tri("programmatic_serialization", own.programmatic_serialization)),
          // Copies and fills.
          copied(hex("src", copy.src)), copied(hex("dst", copy.dst)),
          copied(number("src_pitch_bytes", copy.src_pitch_bytes)), copied(number("dst_pitch_bytes", copy.dst_pitch_bytes)),
          copied(number("width_bytes", copy.width_bytes)), copied(number("height", copy.height)),
          copied(number("depth", copy.depth)), copied(word("src_kind", kMemoryKinds, copy.src_kind)),
          copied(word("dst_kind", kMemoryKinds, copy.dst_kind)), copied(number("src_device", copy.src_device)),
          copied(number("dst_device", copy.dst_device)), copied(index("src_allocation", src_allocation)),
          copied(index("dst_allocation", dst_allocation)), copied(number("pitch_bytes", fill.pitch_bytes)),
          copied(number("width", fill.width)), copied(number("value", fill.value)),
          copied(number("element_bytes", fill.element_bytes)),
          // The others.
          hex("user_data", user_data), hex("event", event), hex("address", address), number("bytes", bytes),
          index("allocation", allocation), number("count", count), index("body", body), list("bodies", read_body),
          word("conditional_type", kConditionalTypes, conditional.type)))
    return false;
  if ((present & kHasKind) == 0) return wrong("a node has no kind");
  if (unknown_.properties.count != unknown_before && !args_.empty() && arg_allocations_.empty()) record_.may_lack_allocations = true;
  if (fill.element_bytes != 1 && fill.element_bytes != 2 && fill.element_bytes != 4)
    return wrong("element_bytes is not 1, 2 or 4");
  fill.dst = copy.dst;
  fill.height = copy.height;

  NodeId added;
  switch (kind) {
    case NodeKind::kernel: {
      if ((present & (kHasLaunch | kHasKernel | kHasParams | kHasArgs | kHasFunctionIndex)) == 0) {
        added = builder_->add_node(kind, name);
        break;
      }
      ir::KernelNode node_kernel;
      std::uint32_t first_word = 0, word_count = 0;
      if ((present & kHasLaunch) != 0) {
        if (columns.launch >= launches_.size())
          return wrong(fmt::format("launch {} of {}", columns.launch, launches_.size()));
        const Launch& launch = launches_[columns.launch];
        node_kernel = launch.kernel;
        first_word = launch.first_word;
        word_count = launch.word_count;
        if ((present & kHasGrid) != 0) node_kernel.grid = own.grid;
        if ((present & kHasBlock) != 0) node_kernel.block = own.block;
        if ((present & kHasCluster) != 0) node_kernel.cluster = own.cluster;
        if ((present & kHasDynamic) != 0) node_kernel.dynamic_shared_bytes = own.dynamic_shared_bytes;
        if ((present & kHasStatic) != 0) node_kernel.static_shared_bytes = own.static_shared_bytes;
        if ((present & kHasRegisters) != 0) node_kernel.registers_per_thread = own.registers_per_thread;
        if ((present & kHasPriority) != 0) node_kernel.priority = own.priority;
        if ((present & kHasCooperative) != 0) node_kernel.cooperative = own.cooperative;
        if ((present & kHasPdl) != 0) node_kernel.programmatic_serialization = own.programmatic_serialization;
      } else {
        node_kernel = own;
      }
      if ((present & kHasFunctionIndex) != 0) {
        if (!function_at("function", function_index, node_kernel.function)) return false;
      }
      if ((present & kHasArgs) != 0) {
        if ((present & kHasParams) != 0) return wrong("both args and params");
        if (args_.size() != word_count && (word_count != 0 || !args_.empty()))
          return wrong(fmt::format("{} args for a layout of {}", args_.size(), word_count));
        if (!arg_allocations_.empty() && arg_allocations_.size() != word_count)
          return wrong(
              fmt::format("{} arg_allocations for a layout of {}", arg_allocations_.size(), word_count));
        words_.assign(layout_.begin() + first_word, layout_.begin() + first_word + word_count);
        for (std::size_t i = 0; i < words_.size(); ++i) {
          words_[i].value = args_[i];
          if (!arg_allocations_.empty()) words_[i].allocation = ir::AllocationId(arg_allocations_[i]);
        }
      }
      if ((present & kHasName) == 0 && node_kernel.function.is_valid())
        name = record_.functions[node_kernel.function.index()].name;
      added = builder_->add_kernel(name, node_kernel);
      if ((present & (kHasArgs | kHasParams)) != 0) builder_->add_params(added, words_);
      break;
    }
    case NodeKind::memcpy:
      if ((present & kHasCopy) == 0) {
        added = builder_->add_node(kind, name);
        break;
      }
      copy.src_allocation = ir::AllocationId(src_allocation);
      copy.dst_allocation = ir::AllocationId(dst_allocation);
      added = builder_->add_memcpy(name, copy);
      break;
    case NodeKind::memset:
      if ((present & kHasCopy) == 0) {
        added = builder_->add_node(kind, name);
        break;
      }
      fill.dst_allocation = ir::AllocationId(dst_allocation);
      added = builder_->add_memset(name, fill);
      break;
    case NodeKind::host:
      added = builder_->add_host(name, {function_text, user_data});
      break;
    case NodeKind::event_record:
    case NodeKind::event_wait:
      added = builder_->add_event(kind, name, {event});
      break;
    case NodeKind::child_graph: added = builder_->add_child_graph(name, {GraphId(body)}); break;
    case NodeKind::conditional: added = builder_->add_conditional(name, conditional, bodies_); break;
    case NodeKind::mem_alloc:
    case NodeKind::mem_free: {
      added = builder_->add_alloc(kind, name, {address, bytes, ir::AllocationId(allocation)});
      break;
    }
    case NodeKind::ext_semaphore_signal:
    case NodeKind::ext_semaphore_wait:
      added = builder_->add_semaphore(kind, name, {count});
      break;
    case NodeKind::batch_mem_op:
      added = builder_->add_batch_mem_op(name, {count, address});
      break;
    case NodeKind::empty:
    case NodeKind::unknown:
      added = builder_->add_node(kind, name);
      break;
  }

  if (launches != 1) builder_->set_launches(added, launches);
  return set_columns(added, columns);
}

bool GraphRecordParser::read_edges(value& v) {
  return for_each(v, "edges", [&](value& item) {
    std::uint32_t from = 0, to = 0, sync = kNone;
    ir::EdgeData data;
    std::uint32_t type = 0;
    if (read_plain_edge(item.raw_json_token().data(), from, to)) {
      builder_->add_edge(NodeId(from), NodeId(to));
      return true;
    }
    if (!read_tuple<2>(item, "an edge", index("an edge's start", from), index("an edge's end", to),
                       number("an edge's from_port", data.from_port), number("an edge's to_port", data.to_port),
                       number("an edge's type", type), index_or_none("an edge's sync operation", sync)))
      return false;
    if (type > 1) return wrong("an edge's type is not 0 or 1");
    data.type = static_cast<ir::EdgeType>(type);
    builder_->add_edge(NodeId(from), NodeId(to), data, sync == kNone ? ir::SyncOpId() : ir::SyncOpId(sync));
    return true;
  });
}

bool GraphRecordParser::read_sync_ops(value& v) {
  static constexpr std::array<std::string_view, 5> kKinds = {"event_record", "event_wait", "begin_capture",
                                                             "end_capture", "update_dependencies"};
  return for_each(v, "sync_ops", [&](value& item) {
    ir::SyncOp op;
    std::uint32_t stream = kNone, record = kNone, stack = kNone;
    if (!read_object(item, "a sync operation", required(word("kind", kKinds, op.kind)), index("stream", stream),
                     hex("event", op.event), number("sequence", op.sequence), index("record", record),
                     index("stack", stack), number("thread", op.thread), flag("unjoined", op.unjoined)) ||
        !stream_at("a sync operation names stream", stream, op.stream) ||
        !look_up("a sync operation", "stack", stacks_, stack, op.stack))
      return false;
    if (record != kNone) op.record = ir::SyncOpId(record);
    builder_->graph().sync_ops.push_back(op);
    return true;
  });
}

bool GraphRecordParser::read_fields(od::object& object, bool tables_known, bool& out_of_order) {
  bool body_seen = false, launches_seen = false;
  const auto table = [&] {
    out_of_order |= body_seen;
    return !tables_known;
  };
  const auto spoiled_fact = [&](value& item) {
    FactSet facts;
    ir::StringId reason = ir::kEmptyString;
    if (!read_object(item, "a spoiled fact",
                     Item{"fact", [&](value& field) { return get_fact(field, facts); }}, text("reason", reason)))
      return false;
    for (int i = 0; i < ir::kFactCount; ++i)
      if (facts.contains(static_cast<Fact>(i)))
        builder_->graph().spoiled.push_back({static_cast<Fact>(i), reason});
    return true;
  };
  return for_each_field(object, "the record", [&](const char* key, value& v) {
    switch (key[0]) {
      case 'd':
        if (is(key, "defaults")) return table() ? read_defaults(v) : true;
        break;
      case 'e':
        if (is(key, "edges")) return body_seen = true, read_edges(v);
        break;
      case 'f':
        if (is(key, "facts")) {
          has_facts_ = true;
          return for_each(v, "facts", [&](value& item) { return get_fact(item, builder_->graph().facts); });
        }
        if (is(key, "functions")) {
          out_of_order |= launches_seen;
          return table() ? read_functions(v) : true;
        }
        if (is(key, "frames")) return table() ? read_frames(v) : true;
        break;
      case 'g':
        if (is(key, "graph")) return get_index(v, "graph", record_.number);
        break;
      case 'i':
        if (is(key, "info")) return read_info(v, builder_->graph().info, refs_);
        break;
      case 'l':
        if (is(key, "launches")) return launches_seen = true, table() ? read_launches(v) : true;
        break;
      case 'n':
        if (is(key, "nodes")) return body_seen = true, read_nodes(v);
        if (is(key, "nvtx")) return table() ? read_nvtx(v) : true;
        break;
      case 'p':
        if (is(key, "process")) return get_index(v, "process", record_.process);
        break;
      case 's':
        if (is(key, "streams")) return table() ? read_streams(v) : true;
        if (is(key, "stacks")) return table() ? read_stacks(v) : true;
        if (is(key, "sync_ops")) return body_seen = true, read_sync_ops(v);
        if (is(key, "spoiled")) return for_each(v, "spoiled", spoiled_fact);
        break;
      case 't':
        if (is(key, "type")) return true;
        break;
      default:
        break;
    }
    return unknown_property(key);
  });
}

bool GraphRecordParser::read_tables(od::object& object) {
  const auto field = [&](const char* name, const auto& read) {
    value v;
    const simdjson::error_code error = object.find_field_unordered(name).get(v);
    if (error == simdjson::NO_SUCH_FIELD) return true;
    return error == simdjson::SUCCESS ? read(v) : broken_json(error);
  };
  return field("functions", [&](value& v) { return read_functions(v); }) &&
         field("launches", [&](value& v) { return read_launches(v); }) &&
         field("streams", [&](value& v) { return read_streams(v); }) &&
         field("frames", [&](value& v) { return read_frames(v); }) &&
         field("stacks", [&](value& v) { return read_stacks(v); }) &&
         field("nvtx", [&](value& v) { return read_nvtx(v); }) &&
         field("defaults", [&](value& v) { return read_defaults(v); });
}

// --- what it means in its file --------------------------------------------------------------------------------------

void GraphTranslation::learn(const GraphRecord& record) {
  for (const std::string_view text : record.new_strings) strings_.push_back(recording_.intern(text));
  std::vector<ir::Frame> frames;
  for (const std::vector<ir::Frame>& stack : record.new_stacks) {
    frames = stack;
    for (ir::Frame& frame : frames) {
      frame.file = string(frame.file);
      frame.function = string(frame.function);
    }
    stacks_.push_back(recording_.intern_stack(frames));
  }
  std::vector<ir::StringId> ranges;
  for (const std::vector<ir::StringId>& nvtx : record.new_nvtx) {
    ranges.clear();
    for (const ir::StringId range : nvtx) ranges.push_back(string(range));
    nvtx_.push_back(recording_.intern_nvtx(ranges));
  }
}

void GraphTranslation::apply(GraphRecord& record, std::span<const ir::FunctionId> functions,
                             std::span<const ir::StreamId> streams) const {
  ir::Graph& graph = *record.graph;
  const auto to_string = [&](ir::StringId& id) { id = string(id); };
  const auto to_stack = [&](ir::StackId& id) { id = id.is_valid() ? stacks_[id.index()] : id; };
  const auto to_stream = [&](ir::StreamId& id) { id = id.is_valid() ? streams[id.index()] : id; };
  for (ir::StringId& name : graph.name) to_string(name);
  for (ir::StackId& stack : graph.stack) to_stack(stack);
  for (ir::NvtxId& nvtx : graph.nvtx) nvtx = nvtx.is_valid() ? nvtx_[nvtx.index()] : nvtx;
  for (ir::StreamId& stream : graph.capture_stream) to_stream(stream);
  for (ir::KernelNode& kernel : graph.kernels)
    if (kernel.function.is_valid()) kernel.function = functions[kernel.function.index()];
  for (ir::HostNode& host : graph.hosts) to_string(host.function);
  for (ir::SyncOp& op : graph.sync_ops) {
    to_stream(op.stream);
    to_stack(op.stack);
  }
  for (ir::SpoiledFact& fact : graph.spoiled) to_string(fact.reason);
  to_string(graph.info.name);
  to_string(graph.info.key);
  to_string(graph.info.failed_call);
  to_string(graph.info.failed_error);
  to_stack(graph.info.failed_stack);
  to_stream(graph.info.failed_stream);
  to_stream(graph.info.origin_stream);
}

}  // namespace cglint::import::capture
