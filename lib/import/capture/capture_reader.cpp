#include "import/capture/capture_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "import/capture/line_reader.h"
#include "ir/graph_builder.h"

namespace cglint::import {
namespace {

using base::Error;
using base::ErrorCode;
using base::make_error;
using ir::Fact;
using ir::FactSet;
using ir::GraphId;
using ir::NodeId;
using ir::NodeKind;

namespace od = simdjson::ondemand;

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr unsigned kMajorVersion = 1;
constexpr std::size_t kMaxDetailedLosses = 16;  // further broken records are counted in one line
constexpr std::size_t kMaxLossRecords = 4096;   // further losses of the recorder are counted in one line
static_assert(LineReader::kPaddingBytes >= simdjson::SIMDJSON_PADDING);

// --- small tools
// ----------------------------------------------------------------------------------------------------------

// Compares the raw text of a key or string (behind its opening quote) with a word. Reads at most the word's
// length and one byte, which the padding allows. A word written with escapes does not match; nobody writes
// those.
template <std::size_t N>
bool is(const char* raw, const char (&word)[N]) {
  return std::memcmp(raw, word, N - 1) == 0 && raw[N - 1] == '"';
}
bool is(const char* raw, std::string_view word) {
  return std::memcmp(raw, word.data(), word.size()) == 0 && raw[word.size()] == '"';
}

// Up to 16 hexadecimal digits behind "0x", ended by a quote: their length with the "0x", or 0.
int hex_length(const char* raw, std::uint64_t& out) {
  static constexpr auto kDigit = [] {
    std::array<std::uint8_t, 256> table{};
    for (auto& entry : table) entry = 0xff;
    for (int i = 0; i < 10; ++i) table[static_cast<std::size_t>('0' + i)] = static_cast<std::uint8_t>(i);
    for (int i = 0; i < 6; ++i) {
      table[static_cast<std::size_t>('a' + i)] = static_cast<std::uint8_t>(10 + i);
      table[static_cast<std::size_t>('A' + i)] = static_cast<std::uint8_t>(10 + i);
    }
    return table;
  }();
  if (raw[0] != '0' || raw[1] != 'x') return 0;
  std::uint64_t value = 0;
  int i = 2;
  for (; i < 18; ++i) {
    const std::uint8_t digit = kDigit[static_cast<unsigned char>(raw[i])];
    if (digit == 0xff) break;
    value = value << 4 | digit;
  }
  out = value;
  return i > 2 && raw[i] == '"' ? i : 0;
}

bool parse_hex(const char* raw, std::uint64_t& out) { return hex_length(raw, out) != 0; }

// The text of a raw JSON string up to its closing quote, for messages.
std::string_view raw_text(const char* raw) {
  std::size_t size = 0;
  while (size < 40 && raw[size] != '"' && static_cast<unsigned char>(raw[size]) >= 0x20) ++size;
  return {raw, size};
}

// Replaces what is not UTF-8 by U+FFFD.
std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t length = 1;
    if (lead >= 0x80) {
      length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
      if (i + length > text.size() || !simdjson::validate_utf8(text.data() + i, length)) {
        out += "\xef\xbf\xbd";
        ++i;
        continue;
      }
    }
    out.append(text, i, length);
    i += length;
  }
  return out;
}

// Numbers that are usually dense and small, but need not be.
class IdMap {
 public:
  [[nodiscard]] std::uint32_t find(std::uint32_t key) const {
    if (key < dense_.size()) return dense_[key];
    const auto it = sparse_.find(key);
    return it == sparse_.end() ? kNone : it->second;
  }
  void set(std::uint32_t key, std::uint32_t value) {
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

 private:
  std::vector<std::uint32_t> dense_;
  std::unordered_map<std::uint32_t, std::uint32_t> sparse_;
  std::uint32_t size_ = 0;
};

struct StreamKey {
  std::uint32_t process;
  std::int32_t priority;
  std::uint64_t handle;
  std::uint32_t name;
  bool operator==(const StreamKey&) const = default;
};
struct StreamKeyHash {
  std::size_t operator()(const StreamKey& key) const {
    const std::uint64_t a = key.handle * 0x9e3779b97f4a7c15U;
    const std::uint64_t b = (std::uint64_t{key.process} << 32 ^ key.name) * 0xc2b2ae3d27d4eb4fU;
    return static_cast<std::size_t>(a ^ b ^ static_cast<std::uint32_t>(key.priority));
  }
};

// --- the reader
// -----------------------------------------------------------------------------------------------------------

enum class RecordType : std::uint8_t {
  header,
  process,
  allocations,
  allocator_blocks,
  graph,
  instance,
  replays,
  timing,
  access,
  exec,
  graph_end,
  loose_ops,
  loss,
  end,
  unknown,
};
constexpr std::array<std::string_view, 14> kRecordNames = {
    "header", "process", "allocations", "allocator_blocks", "graph", "instance", "replays",
    "timing", "access",  "exec",        "graph_end",        "loose_ops", "loss", "end"};

RecordType record_type(const char* raw) {
  for (std::size_t i = 0; i < kRecordNames.size(); ++i)
    if (is(raw, kRecordNames[i])) return static_cast<RecordType>(i);
  return RecordType::unknown;
}

// What a lost record of this type could have told about the graphs of its segment.
FactSet facts_of(RecordType type) {
  switch (type) {
    case RecordType::allocations:
      return {Fact::allocations};
    case RecordType::allocator_blocks:
      return {Fact::allocator_state};
    case RecordType::graph:
      return {Fact::eager_launches};
    case RecordType::replays:
      return {Fact::replay_streams, Fact::replay_times};
    case RecordType::timing:
      return {Fact::untraced_times};
    case RecordType::access:
      return {Fact::measured_access};
    case RecordType::unknown:
      return {Fact::allocations,  Fact::allocator_state, Fact::eager_launches, Fact::replay_streams,
              Fact::replay_times, Fact::untraced_times,  Fact::measured_access};
    default:
      return {};
  }
}

class Reader {
 public:
  Reader(Source& source, const ReadOptions& options) : lines_(source), source_(source), options_(options) {}
  base::Result<ir::Recording> run();

 private:
  using value = od::value;

  // What a graph number of this segment stands for.
  struct Slot {
    GraphId graph;
    std::uint32_t instance =
        0;  // 0: the graph itself; kNone: an equal graph that came too late to be kept with it
  };
  // Beside each graph of the recording.
  struct GraphState {
    std::size_t nodes = 0;
    bool ended = false;  // graph_end was seen
    bool handed_over = false;
    bool replays_unsorted = false;
    ir::StreamId origin_stream, failed_stream;
    ir::StackId failed_stack;
    FactSet lost;  // by broken records that named this graph
  };
  struct PendingParent {
    GraphId body;
    std::uint32_t parent_node;
  };
  struct Launch {
    ir::KernelNode kernel;
    std::uint32_t first_word = 0, word_count = 0;  // into layout_
  };
  // Stacks and frames of one line.
  struct Tables {
    std::vector<ir::FunctionId> functions;
    std::vector<Launch> launches;
    std::vector<ir::StreamId> streams;
    std::vector<ir::Frame> frames;
    std::vector<ir::StackId> stacks;
    std::vector<ir::NvtxId> nvtx;
    void clear() {
      functions.clear();
      launches.clear();
      streams.clear();
      frames.clear();
      stacks.clear();
      nvtx.clear();
    }
  };

  // --- outcomes: a parsing function returns false after `wrong` said what ---
  bool wrong(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
    return false;
  }
  bool wrong_type(const char* what, std::string_view expected) {
    return wrong(fmt::format("{} is not {}", what, expected));
  }
  bool broken_json(simdjson::error_code code) { return wrong(simdjson::error_message(code)); }

  // --- values ---
  template <typename V>
  bool get_u64(V&& v, const char* what, std::uint64_t& out) {
    return v.get_uint64().get(out) == simdjson::SUCCESS || wrong_type(what, "an unsigned 64-bit integer");
  }
  template <typename V>
  bool get_i64(V&& v, const char* what, std::int64_t& out) {
    return v.get_int64().get(out) == simdjson::SUCCESS || wrong_type(what, "a 64-bit integer");
  }
  template <typename T, typename V>
  bool get_uint(V&& v, const char* what, T& out) {
    std::uint64_t wide = 0;
    if (v.get_uint64().get(wide) != simdjson::SUCCESS || wide > std::numeric_limits<T>::max())
      return wrong_type(what, "an unsigned integer in its range");
    out = static_cast<T>(wide);
    return true;
  }
  template <typename T, typename V>
  bool get_int(V&& v, const char* what, T& out) {
    std::int64_t wide = 0;
    if (v.get_int64().get(wide) != simdjson::SUCCESS || wide < std::numeric_limits<T>::min() ||
        wide > std::numeric_limits<T>::max())
      return wrong_type(what, "an integer in its range");
    out = static_cast<T>(wide);
    return true;
  }
  // 0 ... 2^32 - 2
  template <typename V>
  bool get_index(V&& v, const char* what, std::uint32_t& out) {
    std::uint64_t wide = 0;
    if (v.get_uint64().get(wide) != simdjson::SUCCESS || wide >= kNone) return wrong_type(what, "an index");
    out = static_cast<std::uint32_t>(wide);
    return true;
  }
  // -1 becomes kNone.
  template <typename V>
  bool get_index_or_none(V&& v, const char* what, std::uint32_t& out) {
    std::int64_t wide = 0;
    if (v.get_int64().get(wide) != simdjson::SUCCESS || wide < -1 || wide >= std::int64_t{kNone})
      return wrong_type(what, "an index or -1");
    out = wide < 0 ? kNone : static_cast<std::uint32_t>(wide);
    return true;
  }
  template <typename V>
  bool get_bool(V&& v, const char* what, bool& out) {
    return v.get_bool().get(out) == simdjson::SUCCESS || wrong_type(what, "true or false");
  }
  template <typename V>
  bool get_tri(V&& v, const char* what, ir::Tri& out) {
    bool flag = false;
    if (!get_bool(v, what, flag)) return false;
    out = flag ? ir::Tri::yes : ir::Tri::no;
    return true;
  }
  template <typename V>
  bool get_double(V&& v, const char* what, double& out) {
    return v.get_double().get(out) == simdjson::SUCCESS || wrong_type(what, "a number");
  }
  template <typename V>
  bool get_raw(V&& v, const char* what, const char*& out) {
    od::raw_json_string raw;
    if (v.get_raw_json_string().get(raw) != simdjson::SUCCESS) return wrong_type(what, "a string");
    out = raw.raw();
    return true;
  }
  template <typename V>
  bool get_view(V&& v, const char* what, std::string_view& out) {
    if (v.get_string().get(out) != simdjson::SUCCESS) return wrong_type(what, "a string");
    return out.size() <= options_.limits.max_string_bytes ||
           wrong(fmt::format("{} is longer than {} bytes", what, options_.limits.max_string_bytes));
  }
  template <typename V>
  bool get_text(V&& v, const char* what, ir::StringId& out) {
    std::string_view view;
    if (!get_view(v, what, view)) return false;
    out = recording_.strings.intern(view);
    return true;
  }
  template <typename V>
  bool get_hex(V&& v, const char* what, std::uint64_t& out) {
    const char* raw = nullptr;
    if (!get_raw(v, what, raw)) return false;
    return parse_hex(raw, out) || wrong_type(what, "a hexadecimal number");
  }
  template <typename V>
  bool get_ns_text(V&& v, const char* what, std::int64_t& out) {
    std::string_view text;
    if (!get_view(v, what, text)) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return (error == std::errc() && end == text.data() + text.size() && !text.empty()) ||
           wrong_type(what, "nanoseconds in a string");
  }
  // One of `names`; an unknown one leaves `out` alone and is counted.
  template <typename E, typename V, std::size_t N>
  bool get_enum(V&& v, const char* what, const std::array<std::string_view, N>& names, E& out) {
    const char* raw = nullptr;
    if (!get_raw(v, what, raw)) return false;
    for (std::size_t i = 0; i < N; ++i) {
      if (is(raw, names[i])) {
        out = static_cast<E>(i);
        return true;
      }
    }
    note_unknown_value(what, raw);
    return true;
  }
  template <typename V>
  bool get_kind(V&& v, NodeKind& out) {
    const char* raw = nullptr;
    if (!get_raw(v, "kind", raw)) return false;
    out = NodeKind::unknown;
    for (int i = 0; i < ir::kNodeKindCount; ++i) {
      if (is(raw, ir::node_kind_name(static_cast<NodeKind>(i)))) {
        out = static_cast<NodeKind>(i);
        return true;
      }
    }
    note_unknown_value("kind", raw);
    return true;
  }
  template <typename V>
  bool get_fact(V&& v, FactSet& out) {
    const char* raw = nullptr;
    if (!get_raw(v, "a fact", raw)) return false;
    for (int i = 0; i < ir::kFactCount; ++i) {
      if (is(raw, ir::fact_name(static_cast<Fact>(i)))) {
        out.insert(static_cast<Fact>(i));
        return true;
      }
    }
    note_unknown_value("fact", raw);
    return true;
  }
  template <typename V>
  bool get_dim3(V&& v, const char* what, ir::Dim3& out) {
    std::uint32_t numbers[3] = {};
    if (!fixed_array(v, what, 3, 3,
                     [&](std::size_t i, auto&& element) { return get_uint(element, what, numbers[i]); }))
      return false;
    out = {numbers[0], numbers[1], numbers[2]};
    return true;
  }

  // Calls `each(element)` for every element of an array.
  template <typename V, typename Each>
  bool for_each(V&& v, const char* what, const Each& each) {
    od::array array;
    if (v.get_array().get(array) != simdjson::SUCCESS) return wrong_type(what, "an array");
    for (auto element : array) {
      value item;
      if (const auto error = element.get(item)) return broken_json(error);
      if (!each(item)) return false;
    }
    return true;
  }
  // Calls `each(index, element)`; an array with too few elements is wrong, further elements are unknown and
  // counted.
  template <typename V, typename Each>
  bool fixed_array(V&& v, const char* what, std::size_t least, std::size_t most, const Each& each) {
    std::size_t count = 0;
    if (!for_each(v, what, [&](auto&& element) {
          if (count >= most) {
            if (count++ == most) note_unknown_property(what);
            return true;
          }
          return each(count++, element);
        }))
      return false;
    return count >= least || wrong(fmt::format("{} has {} elements, not {}", what, count, least));
  }
  // Calls `each(raw key, value)` for every property of an object. `each` returns false if the record is
  // wrong.
  template <typename Each>
  bool for_each_field(value& v, const char* what, const Each& each) {
    od::object object;
    if (v.get_object().get(object) != simdjson::SUCCESS) return wrong_type(what, "an object");
    return for_each_field(object, what, each);
  }
  template <typename Each>
  bool for_each_field(od::object& object, const char*, const Each& each) {
    for (auto result : object) {
      od::field field;
      if (const auto error = std::move(result).get(field)) return broken_json(error);
      if (!each(field.key().raw(), field.value())) return false;
    }
    return true;
  }

  void note_unknown_property(std::string_view what) {
    if (unknown_properties_++ == 0) first_unknown_property_ = what;
    if (unknown_properties_ == 1) first_unknown_property_offset_ = line_offset_;
  }
  bool unknown_property(const char* raw) {
    note_unknown_property(raw_text(raw));
    return true;
  }
  void note_unknown_value(const char* what, const char* raw) {
    if (unknown_values_++ == 0) {
      first_unknown_value_ = fmt::format("{} \"{}\"", what, raw_text(raw));
      first_unknown_value_offset_ = line_offset_;
    }
  }

  // --- records ---
  base::Result<void> read_line(const LineReader::Line& line);
  bool read_record(std::string_view text, std::size_t capacity);
  bool read_header(od::object& object);
  bool read_process(od::object& object);
  bool read_allocations(od::object& object);
  bool read_allocator_blocks(od::object& object);
  bool read_graph(od::object& object);
  bool read_instance(od::object& object);
  bool read_replays(od::object& object);
  bool read_timing(od::object& object);
  bool read_access(od::object& object);
  bool read_exec(od::object& object);
  bool read_graph_end(od::object& object);
  bool read_loose_ops(od::object& object);
  bool read_loss(od::object& object);
  bool read_end(od::object& object);
  void skip_broken(const LineReader::Line& line);

  // --- parts of records ---
  bool read_frame(value v, ir::Frame& out);
  bool read_frames(value v);
  bool read_stacks(value v);
  bool read_functions(value v);
  bool read_launches(value v);
  bool read_streams(value v, std::uint32_t process_number);
  bool read_nvtx(value v);
  bool read_kernel_field(const char* raw, value& v, ir::KernelNode& kernel, bool& known);
  // What an info names by number; resolved when the whole record has been read.
  struct InfoRefs {
    std::uint32_t parent = kNone, parent_node = kNone;
    std::uint32_t failed_stack = kNone, failed_stream = kNone, origin_stream = kNone;
  };
  bool read_info(value v, ir::GraphInfo& info, InfoRefs& refs);
  bool resolve_info(ir::GraphInfo& info, const InfoRefs& refs);
  // Writers put tables before the nodes that use them, and then one pass is enough. Else `out_of_order` is
  // set and the caller reads the tables one by one, then the body.
  bool read_graph_fields(od::object& object, bool tables_known, ir::GraphBuilder& builder, InfoRefs& refs,
                         bool& out_of_order);
  bool read_graph_tables(od::object& object);
  bool read_defaults(value v);
  bool read_nodes(value v, ir::GraphBuilder& builder);
  bool read_node(value v, ir::GraphBuilder& builder);
  // What any node may state, whatever its kind; valid where `present` says so.
  struct NodeColumns {
    std::uint32_t present = 0;
    std::uint32_t stream = kNone, thread = 0, nvtx = kNone, stack = kNone, launch = kNone;
    std::uint64_t id = 0, sequence = 0, context = 0, hash = 0;
    std::int16_t device = -1;
    bool enabled = true;
  };
  bool read_kernel_fast(const char* p, NodeColumns& node);
  bool add_kernel_fast(ir::GraphBuilder& builder, const NodeColumns& node);
  bool set_columns(ir::GraphBuilder& builder, NodeId added, const NodeColumns& node);
  bool read_edges(value v, ir::GraphBuilder& builder);
  bool read_sync_ops(value v, ir::Graph& graph);
  bool read_params(value v);
  bool resolve_allocation(std::uint32_t id, ir::AllocationId& out);

  ir::FunctionId intern(ir::Function function);
  ir::StreamId intern(ir::ProcessId process, const ir::Stream& stream);
  ir::ProcessId process_of(std::uint32_t number);

  // --- graphs and segments ---
  [[nodiscard]] ir::Graph* alive(GraphId id) {
    return states_[id.index()].handed_over ? nullptr : recording_.graphs[id].get();
  }
  const Slot* find_slot(std::uint32_t number) {
    const auto it = slots_.find(number);
    if (it != slots_.end()) return &it->second;
    wrong(fmt::format("graph {} is not in the file before this line", number));
    return nullptr;
  }
  // A record of data for a graph that may be gone: counts it and returns null then.
  ir::Graph* open_graph(std::uint32_t number, Slot& slot, bool& ok);
  void spoil(ir::Graph& graph, FactSet facts, std::string_view reason);
  void finalize(GraphId id);
  // Replays of equal graphs may come in turns.
  void sort_replays(GraphId id);
  static std::int64_t replay_time(const ir::Graph& graph, const ir::Replay& replay) {
    return replay.ops.count != 0 ? graph.replay_ops[replay.ops.first].start_ns : replay.host_start_ns;
  }
  void hand_over(GraphId id);
  void close_segment();
  void report_counts();

  LineReader lines_;
  Source& source_;
  const ReadOptions& options_;
  ir::Recording recording_;
  od::parser parser_;
  std::optional<Error> fatal_;

  // Of the line being read.
  std::uint64_t line_offset_ = 0;
  std::uint64_t line_number_ = 0;
  RecordType type_ = RecordType::unknown;
  std::uint32_t record_graph_ = kNone;
  std::string problem_;
  std::string repaired_;

  // Of the segment.
  bool in_segment_ = false;
  bool segment_ended_ = false;
  std::uint64_t segment_records_ = 0;
  std::unordered_map<std::uint32_t, ir::ProcessId> processes_;
  std::unordered_map<std::uint32_t, IdMap> allocations_;  // by process number, kNone included
  std::unordered_map<std::uint32_t, Slot> slots_;
  std::unordered_map<std::uint32_t, std::size_t> use_of_;  // graph number -> index into executable_uses
  std::unordered_map<std::uint32_t, std::vector<PendingParent>> pending_parents_;  // by parent's number
  std::size_t segment_first_graph_ = 0;
  FactSet segment_lost_;

  // Of the file.
  std::vector<GraphState> states_;  // by GraphId
  std::unordered_map<std::uint32_t, std::vector<ir::FunctionId>> functions_by_name_;
  std::unordered_map<StreamKey, ir::StreamId, StreamKeyHash> streams_;
  bool timeline_ = false;
  bool torn_ = false;
  std::uint64_t unknown_properties_ = 0, unknown_values_ = 0, broken_records_ = 0;
  std::string first_unknown_property_, first_unknown_value_;
  std::uint64_t first_unknown_property_offset_ = 0, first_unknown_value_offset_ = 0;
  std::size_t loss_records_ = 0;
  std::uint64_t next_progress_ = 0;

  // Scratch of graph records.
  Tables tables_;
  std::vector<ir::ParamWord> layout_;
  std::vector<ir::ParamWord> words_;
  std::vector<std::uint64_t> args_;
  std::vector<std::uint32_t> arg_allocations_;
  std::vector<GraphId> bodies_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> body_uses_;  // node, graph number
  std::vector<ir::Frame> stack_frames_;
  std::vector<ir::StringId> nvtx_ranges_;
  IdMap* graph_allocations_ = nullptr;
  std::uint64_t missing_allocations_ = 0, missing_bodies_ = 0;
  std::uint32_t graph_number_ = kNone, graph_process_ = kNone;
  bool has_nodes_ = false, has_facts_ = false;
  std::string_view record_text_;
  std::size_t record_capacity_ = 0;
  struct Defaults {
    bool has_thread = false, has_device = false, has_context = false, has_stream = false;
    std::uint32_t thread = 0, stream = 0;
    std::int16_t device = -1;
    std::uint64_t context = 0;
  } defaults_;
};

// --- lines
// ----------------------------------------------------------------------------------------------------------------

base::Result<ir::Recording> Reader::run() {
  while (true) {
    auto next = lines_.next();
    if (!next) return std::move(next).error();
    if (!next->has_value()) break;
    CGLINT_TRY(read_line(**next));
    if (options_.on_progress && source_.consumed_bytes() >= next_progress_) {
      options_.on_progress(source_.consumed_bytes(), source_.total_bytes());
      next_progress_ = source_.consumed_bytes() + (std::uint64_t{4} << 20);
    }
  }
  if (const std::optional<Error>& stop = lines_.stopped_by()) {
    if (!in_segment_) return *stop;
    if (source_.torn()) {
      torn_ = true;
      recording_.add_loss(
          ir::Loss::Severity::data_loss,
          "the file is cut short inside its compressed data: what follows the last whole record is lost", 1,
          stop->offset_bytes);
    } else {
      // Disk damage rather than a stopped recorder: what was read is sound, but this is not an orderly end.
      recording_.add_loss(ir::Loss::Severity::error,
                          fmt::format("reading stopped before the end of the file: {}", stop->message), 1,
                          stop->offset_bytes);
    }
  }
  if (!in_segment_) return make_error(ErrorCode::malformed, "the file holds no capture header", 0);
  close_segment();
  report_counts();
  std::stable_sort(recording_.loose_ops.begin(), recording_.loose_ops.end(),
                   [](const ir::LooseOp& a, const ir::LooseOp& b) { return a.start_ns < b.start_ns; });
  recording_.has_timeline = timeline_ || !recording_.loose_ops.empty();
  recording_.file = source_.name();
  recording_.format = "capture";
  if (options_.on_progress) options_.on_progress(source_.consumed_bytes(), source_.total_bytes());
  return std::move(recording_);
}

base::Result<void> Reader::read_line(const LineReader::Line& line) {
  line_offset_ = line.offset_bytes;
  ++line_number_;
  if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) return {};
  problem_.clear();
  type_ = RecordType::unknown;
  record_graph_ = kNone;
  const bool good = read_record(line.text, line.text.size() + LineReader::kPaddingBytes);
  if (fatal_) return *fatal_;
  if (good || line.terminated) ++segment_records_;
  if (good) return {};
  if (!line.terminated) {
    // A whole record without its newline would have been read; this one was being written when the recorder
    // stopped.
    if (!in_segment_)
      return make_error(ErrorCode::malformed, "the file is cut short inside its header", line.offset_bytes);
    torn_ = true;
    recording_.add_loss(ir::Loss::Severity::data_loss, "the last record is cut short and was left out", 1,
                        line.offset_bytes);
    return {};
  }
  if (!in_segment_)
    return make_error(ErrorCode::malformed,
                      fmt::format("the first line is not a capture header: {}", problem_), line.offset_bytes);
  skip_broken(line);
  if (fatal_) return *fatal_;
  return {};
}

bool Reader::read_record(std::string_view text, std::size_t capacity) {
  od::document document;
  record_text_ = text;
  record_capacity_ = capacity;
  simdjson::error_code code = parser_.iterate(text.data(), text.size(), capacity).get(document);
  if (code == simdjson::UTF8_ERROR) {
    repaired_ = repair_utf8(text);
    recording_.add_loss(ir::Loss::Severity::info, "text that is not UTF-8 was repaired", 1, line_offset_);
    repaired_.reserve(repaired_.size() + LineReader::kPaddingBytes);
    record_text_ = repaired_;
    record_capacity_ = repaired_.capacity();
    code = parser_.iterate(repaired_.data(), repaired_.size(), repaired_.capacity()).get(document);
  }
  if (code != simdjson::SUCCESS) return broken_json(code);
  od::object object;
  if (document.get_object().get(object) != simdjson::SUCCESS) return wrong("the line is not a JSON object");
  const char* raw = nullptr;
  {
    value v;
    if (object.find_field_unordered("type").get(v) != simdjson::SUCCESS)
      return wrong("the record has no type");
    if (!get_raw(v, "type", raw)) return false;
    type_ = record_type(raw);
    if (type_ == RecordType::unknown) {
      if (!in_segment_) return wrong("the record type is unknown");
      recording_.add_loss(
          ir::Loss::Severity::data_loss,
          fmt::format("records of a type that this version does not know were skipped (\"{}\")",
                      loss_records_++ < kMaxDetailedLosses ? raw_text(raw) : "..."),
          1, line_offset_);
      return true;
    }
    if (!in_segment_ && type_ != RecordType::header)
      return wrong(fmt::format("its type is \"{}\"", kRecordNames[static_cast<std::size_t>(type_)]));
  }
  bool rewound = false;
  if (object.reset().get(rewound) != simdjson::SUCCESS) return wrong("the record cannot be read twice");
  if (segment_ended_ && type_ != RecordType::header) return wrong("it comes after the end record");
  bool good = false;
  switch (type_) {
    case RecordType::header:
      good = read_header(object);
      break;
    case RecordType::process:
      good = read_process(object);
      break;
    case RecordType::allocations:
      good = read_allocations(object);
      break;
    case RecordType::allocator_blocks:
      good = read_allocator_blocks(object);
      break;
    case RecordType::graph:
      good = read_graph(object);
      break;
    case RecordType::instance:
      good = read_instance(object);
      break;
    case RecordType::replays:
      good = read_replays(object);
      break;
    case RecordType::timing:
      good = read_timing(object);
      break;
    case RecordType::access:
      good = read_access(object);
      break;
    case RecordType::exec:
      good = read_exec(object);
      break;
    case RecordType::graph_end:
      good = read_graph_end(object);
      break;
    case RecordType::loose_ops:
      good = read_loose_ops(object);
      break;
    case RecordType::loss:
      good = read_loss(object);
      break;
    case RecordType::end:
      good = read_end(object);
      break;
    case RecordType::unknown:
      break;
  }
  return good;
}

void Reader::skip_broken(const LineReader::Line& line) {
  // Where the JSON itself is broken the type may still stand at its usual place.
  constexpr std::string_view kStart = "{\"type\":\"";
  if (type_ == RecordType::unknown && line.text.starts_with(kStart))
    type_ = record_type(line.text.data() + kStart.size());
  ++broken_records_;
  if (type_ == RecordType::header) {
    fatal_ =
        make_error(ErrorCode::malformed, fmt::format("a broken header: {}", problem_), line.offset_bytes);
    return;
  }
  const FactSet facts = facts_of(type_);
  const std::string_view name =
      type_ == RecordType::unknown ? "unreadable" : kRecordNames[static_cast<std::size_t>(type_)];
  std::string what =
      broken_records_ <= kMaxDetailedLosses
          ? fmt::format("a broken {} record in line {} was skipped: {}", name, line_number_, problem_)
          : fmt::format("further broken {} records were skipped", name);
  recording_.add_loss(ir::Loss::Severity::error, what, 1, line.offset_bytes, facts);
  const bool names_graph =
      type_ == RecordType::replays || type_ == RecordType::timing || type_ == RecordType::access;
  const auto slot = slots_.find(record_graph_);
  if (names_graph && slot != slots_.end()) {
    states_[slot->second.graph.index()].lost = states_[slot->second.graph.index()].lost.unite(facts);
  } else {
    segment_lost_ = segment_lost_.unite(facts);
  }
}

// --- segments and graphs
// ----------------------------------------------------------------------------------------------------

void Reader::spoil(ir::Graph& graph, FactSet facts, std::string_view reason) {
  for (int i = 0; i < ir::kFactCount; ++i) {
    const auto fact = static_cast<Fact>(i);
    if (!facts.contains(fact) || !graph.facts.contains(fact)) continue;
    graph.facts.erase(fact);
    graph.spoiled.push_back({fact, recording_.intern(reason)});
  }
}

void Reader::finalize(GraphId id) {
  const GraphState& state = states_[id.index()];
  ir::Graph& graph = *recording_.graphs[id];
  spoil(graph, state.lost.unite(segment_lost_), "records of this kind were broken and had to be skipped");
  sort_replays(id);
}

void Reader::sort_replays(GraphId id) {
  if (!states_[id.index()].replays_unsorted) return;
  ir::Graph& graph = *recording_.graphs[id];
  std::stable_sort(graph.replays.begin(), graph.replays.end(), [&](const ir::Replay& a, const ir::Replay& b) {
    return replay_time(graph, a) < replay_time(graph, b);
  });
  states_[id.index()].replays_unsorted = false;
}

void Reader::hand_over(GraphId id) {
  GraphState& state = states_[id.index()];
  if (state.handed_over) return;
  finalize(id);
  if (options_.on_graph) {
    state.handed_over = true;
    options_.on_graph(recording_, id);
  }
}

void Reader::close_segment() {
  if (!in_segment_) return;
  if (!segment_ended_) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "the recording has no end record: the recorder was stopped, or the file is cut short",
                        1, line_offset_);
    constexpr std::string_view kReason = "the recording stopped before this graph's records were complete";
    for (std::size_t i = segment_first_graph_; i < states_.size(); ++i) {
      const GraphId id = GraphId::from_size(i);
      if (states_[i].ended || states_[i].handed_over) continue;
      ir::Graph& graph = *recording_.graphs[id];
      for (ir::Replay& replay : graph.replays) replay.complete = false;
      if (graph.replays.empty())
        spoil(graph, {Fact::replay_streams, Fact::replay_times, Fact::node_identity}, kReason);
      if (graph.info.untraced.samples == 0) spoil(graph, {Fact::untraced_times}, kReason);
      if (graph.measured_accesses.empty()) spoil(graph, {Fact::measured_access}, kReason);
    }
  }
  for (std::size_t i = segment_first_graph_; i < states_.size(); ++i) {
    const GraphId id = GraphId::from_size(i);
    if (!states_[i].ended) hand_over(id);
    if (alive(id) != nullptr) sort_replays(id);
  }
  for (const auto& [number, bodies] : pending_parents_)
    recording_.add_loss(ir::Loss::Severity::data_loss, "a graph that runs a recorded body is missing",
                        bodies.size());
  in_segment_ = false;
  segment_ended_ = false;
  segment_records_ = 0;
  processes_.clear();
  allocations_.clear();
  slots_.clear();
  use_of_.clear();
  pending_parents_.clear();
  segment_first_graph_ = states_.size();
  segment_lost_ = {};
}

void Reader::report_counts() {
  if (unknown_properties_ != 0)
    recording_.add_loss(
        ir::Loss::Severity::info,
        fmt::format("properties that this version does not know were ignored (the first: \"{}\")",
                    first_unknown_property_),
        unknown_properties_, first_unknown_property_offset_);
  if (unknown_values_ != 0)
    recording_.add_loss(
        ir::Loss::Severity::info,
        fmt::format("values that this version does not know were taken as unknown (the first: {})",
                    first_unknown_value_),
        unknown_values_, first_unknown_value_offset_);
}

ir::ProcessId Reader::process_of(std::uint32_t number) {
  if (number == kNone) return ir::ProcessId();
  const auto [it, inserted] = processes_.try_emplace(number);
  if (inserted) {
    it->second = recording_.processes.push_back(ir::Process());
    recording_.add_loss(ir::Loss::Severity::info,
                        "records name a process that the file does not describe before them", 1,
                        line_offset_);
  }
  return it->second;
}

ir::Graph* Reader::open_graph(std::uint32_t number, Slot& slot, bool& ok) {
  const Slot* const found = find_slot(number);
  ok = found != nullptr;
  if (!ok) return nullptr;
  slot = *found;
  ir::Graph* const graph = alive(slot.graph);
  if (graph == nullptr || slot.instance == kNone) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "records of a graph that had been checked already were skipped", 1, line_offset_,
                        facts_of(type_));
    return nullptr;
  }
  if (states_[slot.graph.index()].ended && slot.instance == 0) {
    ok = wrong(fmt::format("graph {} has ended before this line", number));
    return nullptr;
  }
  return graph;
}

ir::FunctionId Reader::intern(ir::Function function) {
  // Kernels of one name are one function unless something that is known of both differs (Triton's images do).
  std::vector<ir::FunctionId>& known = functions_by_name_[function.name.index()];
  const auto same_params = [](const ir::Function& a, const ir::Function& b) {
    return std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(),
                      [](const ir::Function::Param& x, const ir::Function::Param& y) {
                        return x.offset_bytes == y.offset_bytes && x.size_bytes == y.size_bytes &&
                               x.type == y.type && x.type_name == y.type_name;
                      });
  };
  const auto compatible_tri = [](ir::Tri a, ir::Tri b) {
    return a == b || a == ir::Tri::unknown || b == ir::Tri::unknown;
  };
  for (const ir::FunctionId id : known) {
    ir::Function& other = recording_.functions[id];
    if (other.image_hash != 0 && function.image_hash != 0 && other.image_hash != function.image_hash)
      continue;
    if (!compatible_tri(other.has_grid_dependency_wait, function.has_grid_dependency_wait) ||
        !compatible_tri(other.has_launch_dependents, function.has_launch_dependents))
      continue;
    if (!other.params.empty() && !function.params.empty() && !same_params(other, function)) continue;
    if (other.image_hash == 0) other.image_hash = function.image_hash;
    if (other.has_grid_dependency_wait == ir::Tri::unknown)
      other.has_grid_dependency_wait = function.has_grid_dependency_wait;
    if (other.has_launch_dependents == ir::Tri::unknown)
      other.has_launch_dependents = function.has_launch_dependents;
    if (other.params.empty()) other.params = std::move(function.params);
    return id;
  }
  ir::FunctionId id;
  if (known.empty()) {
    id = recording_.intern_function(recording_.text(function.name));
    recording_.functions[id] = std::move(function);
  } else {
    id = recording_.functions.push_back(std::move(function));
  }
  known.push_back(id);
  return id;
}

ir::StreamId Reader::intern(ir::ProcessId process, const ir::Stream& stream) {
  const StreamKey key{process.index(), stream.priority, stream.handle, stream.name.index()};
  const auto [it, inserted] = streams_.try_emplace(key);
  if (!inserted) return it->second;
  const std::size_t before = recording_.streams.size();
  it->second = recording_.intern_stream(process, stream.handle);
  if (recording_.streams.size() == before)
    it->second = recording_.streams.push_back(stream);  // the handle was used again
  recording_.streams[it->second] = stream;
  recording_.streams[it->second].process = process;
  return it->second;
}

// --- records
// ----------------------------------------------------------------------------------------------------------------

bool Reader::read_header(od::object& object) {
  std::string format, version;
  bool timeline = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        std::string_view text;
        if (is(key, "type") || is(key, "producer") || is(key, "created_unix_s")) return true;
        if (is(key, "format")) return get_view(v, "format", text) && (format = text, true);
        if (is(key, "version")) return get_view(v, "version", text) && (version = text, true);
        if (is(key, "timeline")) return get_bool(v, "timeline", timeline);
        return unknown_property(key);
      }))
    return false;
  if (format != "cglint-capture")
    return wrong(fmt::format("its format is \"{}\", not \"cglint-capture\"", format));
  unsigned major = 0, minor = 0;
  const char* const last = version.data() + version.size();
  const auto dot = std::from_chars(version.data(), last, major);
  if (dot.ec != std::errc() || dot.ptr == last || *dot.ptr != '.')
    return wrong(fmt::format("its version is \"{}\"", version));
  const auto end = std::from_chars(dot.ptr + 1, last, minor);
  if (end.ec != std::errc() || end.ptr != last) return wrong(fmt::format("its version is \"{}\"", version));
  if (major != kMajorVersion) {
    fatal_ = make_error(ErrorCode::unsupported,
                        fmt::format("the capture file has format version {}; this cglint reads version {}",
                                    version, kMajorVersion),
                        line_offset_);
    return false;
  }
  close_segment();
  in_segment_ = true;
  timeline_ |= timeline;
  return true;
}

bool Reader::read_process(od::object& object) {
  std::uint32_t number = kNone;
  ir::Process process;
  // A later line adds to an earlier one, so the number has to be known before the rest.
  {
    value v;
    if (object.find_field_unordered("process").get(v) != simdjson::SUCCESS)
      return wrong("the record has no process");
    if (!get_index(v, "process", number)) return false;
    bool rewound = false;
    if (object.reset().get(rewound) != simdjson::SUCCESS) return wrong("the record cannot be read twice");
  }
  const auto known = processes_.find(number);
  if (known != processes_.end()) process = recording_.processes[known->second];
  const auto read_gpu = [&](value& item) {
    ir::Gpu gpu;
    bool has_device = false;
    if (!for_each_field(item, "a GPU", [&](const char* key, value& v) {
          if (is(key, "device")) return has_device = true, get_int(v, "device", gpu.device);
          if (is(key, "name")) return get_text(v, "name", gpu.name);
          if (is(key, "uuid")) return get_text(v, "uuid", gpu.uuid);
          if (is(key, "compute_capability"))
            return fixed_array(v, "compute_capability", 2, 2, [&](std::size_t i, auto&& element) {
              return get_uint(element, "compute_capability", i == 0 ? gpu.compute_major : gpu.compute_minor);
            });
          if (is(key, "sm_count")) return get_uint(v, "sm_count", gpu.sm_count);
          if (is(key, "memory_bytes")) return get_u64(v, "memory_bytes", gpu.memory_bytes);
          if (is(key, "amd")) return get_bool(v, "amd", gpu.is_amd);
          return unknown_property(key);
        }))
      return false;
    if (!has_device) return wrong("a GPU has no device");
    process.gpus.push_back(gpu);
    return true;
  };
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type") || is(key, "process")) return true;
        if (is(key, "pid")) return get_i64(v, "pid", process.pid);
        if (is(key, "rank")) return get_int(v, "rank", process.rank);
        if (is(key, "world_size")) return get_int(v, "world_size", process.world_size);
        if (is(key, "host")) return get_text(v, "host", process.host);
        if (is(key, "command")) return get_text(v, "command", process.command);
        if (is(key, "driver_version")) return get_uint(v, "driver_version", process.driver_version);
        if (is(key, "driver_release")) return get_text(v, "driver_release", process.driver_release);
        if (is(key, "runtime_version")) return get_uint(v, "runtime_version", process.runtime_version);
        if (is(key, "cupti_version")) return get_uint(v, "cupti_version", process.cupti_version);
        if (is(key, "framework")) return get_text(v, "framework", process.framework);
        if (is(key, "framework_version")) return get_text(v, "framework_version", process.framework_version);
        if (is(key, "gpus")) {
          process.gpus.clear();
          return for_each(v, "gpus", read_gpu);
        }
        if (is(key, "environment")) {
          process.environment.clear();
          od::object variables;
          if (v.get_object().get(variables) != simdjson::SUCCESS)
            return wrong_type("environment", "an object");
          for (auto field : variables) {
            std::string_view name;
            if (field.unescaped_key().get(name) != simdjson::SUCCESS) return wrong("environment is broken");
            const ir::StringId name_id = recording_.strings.intern(name);
            ir::StringId text;
            if (!get_text(field.value(), "an environment variable", text)) return false;
            process.environment.emplace_back(name_id, text);
          }
          return true;
        }
        return unknown_property(key);
      }))
    return false;
  if (known != processes_.end()) {
    recording_.processes[known->second] = std::move(process);
  } else {
    processes_.emplace(number, recording_.processes.push_back(std::move(process)));
  }
  return true;
}

bool Reader::read_frame(value v, ir::Frame& out) {
  static constexpr std::array<std::string_view, 2> kKinds = {"python", "native"};
  bool has_file = false;
  return for_each_field(v, "a frame",
                        [&](const char* key, value& field) {
                          if (is(key, "file")) return has_file = true, get_text(field, "file", out.file);
                          if (is(key, "function")) return get_text(field, "function", out.function);
                          if (is(key, "line")) return get_uint(field, "line", out.line);
                          if (is(key, "kind")) return get_enum(field, "kind", kKinds, out.kind);
                          if (is(key, "generated")) return get_bool(field, "generated", out.generated);
                          return unknown_property(key);
                        }) &&
         (has_file || wrong("a frame has no file"));
}

bool Reader::read_frames(value v) {
  tables_.frames.clear();
  return for_each(v, "frames", [&](value& item) {
    ir::Frame frame{.kind = ir::Frame::Kind::python, .file = ir::kEmptyString, .function = ir::kEmptyString};
    if (!read_frame(item, frame)) return false;
    tables_.frames.push_back(frame);
    return true;
  });
}

bool Reader::read_stacks(value v) {
  tables_.stacks.clear();
  return for_each(v, "stacks", [&](value& item) {
    stack_frames_.clear();
    if (!for_each(item, "a stack", [&](value& entry) {
          od::json_type type;
          if (entry.type().get(type) != simdjson::SUCCESS) return wrong("a stack entry is broken");
          ir::Frame frame{
              .kind = ir::Frame::Kind::python, .file = ir::kEmptyString, .function = ir::kEmptyString};
          if (type == od::json_type::number) {
            std::uint32_t index = 0;
            if (!get_index(entry, "a stack entry", index)) return false;
            if (index >= tables_.frames.size())
              return wrong(fmt::format("a stack names frame {} of {}", index, tables_.frames.size()));
            frame = tables_.frames[index];
          } else if (!read_frame(entry, frame)) {
            return false;
          }
          stack_frames_.push_back(frame);
          return true;
        }))
      return false;
    tables_.stacks.push_back(recording_.intern_stack(stack_frames_));
    return true;
  });
}

bool Reader::read_allocations(od::object& object) {
  static constexpr std::array<std::string_view, 8> kKinds = {
      "unknown", "device", "async", "pool", "vmm", "host_registered", "managed", "graph_node"};
  struct Entry {
    std::uint32_t id = kNone;
    std::uint32_t alloc_stack = kNone, free_stack = kNone;
    ir::Allocation allocation;
  };
  std::uint32_t process = kNone;
  std::vector<Entry> entries;
  tables_.frames.clear();
  tables_.stacks.clear();
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "process")) return get_index(v, "process", process);
        if (is(key, "frames")) return read_frames(v);
        if (is(key, "stacks")) return read_stacks(v);
        if (is(key, "allocations"))
          return for_each(v, "allocations", [&](value& item) {
            Entry entry;
            bool has_base = false, has_size = false;
            ir::Allocation& a = entry.allocation;
            a.pool = ir::kEmptyString;
            if (!for_each_field(item, "an allocation", [&](const char* name, value& field) {
                  if (is(name, "id")) return get_index(field, "id", entry.id);
                  if (is(name, "base")) return has_base = true, get_hex(field, "base", a.base);
                  if (is(name, "size_bytes"))
                    return has_size = true, get_u64(field, "size_bytes", a.size_bytes);
                  if (is(name, "kind")) return get_enum(field, "kind", kKinds, a.kind);
                  if (is(name, "device")) return get_int(field, "device", a.device);
                  if (is(name, "alloc_sequence")) return get_u64(field, "alloc_sequence", a.alloc_sequence);
                  if (is(name, "free_sequence")) return get_u64(field, "free_sequence", a.free_sequence);
                  if (is(name, "alloc_stack")) return get_index(field, "alloc_stack", entry.alloc_stack);
                  if (is(name, "free_stack")) return get_index(field, "free_stack", entry.free_stack);
                  if (is(name, "pool")) return get_text(field, "pool", a.pool);
                  return unknown_property(name);
                }))
              return false;
            if (entry.id == kNone || !has_base || !has_size)
              return wrong("an allocation has no id, base or size");
            entries.push_back(entry);
            return true;
          });
        return unknown_property(key);
      }))
    return false;
  const auto stack = [&](std::uint32_t index, ir::StackId& out) {
    if (index == kNone) return true;
    if (index >= tables_.stacks.size())
      return wrong(fmt::format("an allocation names stack {} of {}", index, tables_.stacks.size()));
    out = tables_.stacks[index];
    return true;
  };
  for (Entry& entry : entries)
    if (!stack(entry.alloc_stack, entry.allocation.alloc_stack) ||
        !stack(entry.free_stack, entry.allocation.free_stack))
      return false;
  const ir::ProcessId process_id = process_of(process);
  IdMap& ids = allocations_[process];
  for (Entry& entry : entries) {
    entry.allocation.process = process_id;
    const std::uint32_t known = ids.find(entry.id);
    if (known != kNone) {
      recording_.allocations[ir::AllocationId(known)] = entry.allocation;
    } else {
      ids.set(entry.id, recording_.allocations.push_back(entry.allocation).index());
    }
  }
  return true;
}

bool Reader::read_allocator_blocks(od::object& object) {
  static constexpr std::array<std::string_view, 3> kStates = {"active", "pending_free", "free"};
  std::uint32_t process = kNone;
  std::uint64_t sequence = 0;
  std::vector<ir::AllocatorBlock> blocks;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "process")) return get_index(v, "process", process);
        if (is(key, "sequence")) return get_u64(v, "sequence", sequence);
        if (is(key, "blocks"))
          return for_each(v, "blocks", [&](value& item) {
            ir::AllocatorBlock block;
            block.pool = ir::kEmptyString;
            int required = 0;
            if (!for_each_field(item, "a block", [&](const char* name, value& field) {
                  if (is(name, "base")) return ++required, get_hex(field, "base", block.base);
                  if (is(name, "size_bytes"))
                    return ++required, get_u64(field, "size_bytes", block.size_bytes);
                  if (is(name, "state")) {
                    const char* raw = nullptr;
                    if (!get_raw(field, "state", raw)) return false;
                    for (std::size_t i = 0; i < kStates.size(); ++i) {
                      if (!is(raw, kStates[i])) continue;
                      block.state = static_cast<ir::AllocatorBlock::State>(i);
                      ++required;
                      return true;
                    }
                    return wrong("a block's state is unknown");
                  }
                  if (is(name, "pool")) return get_text(field, "pool", block.pool);
                  if (is(name, "stream")) return get_hex(field, "stream", block.stream);
                  return unknown_property(name);
                }))
              return false;
            if (required != 3) return wrong("a block has no base, size or state");
            blocks.push_back(block);
            return true;
          });
        return unknown_property(key);
      }))
    return false;
  const ir::ProcessId process_id = process_of(process);
  for (ir::AllocatorBlock& block : blocks) {
    block.process = process_id;
    block.sequence = sequence;
    recording_.allocator_blocks.push_back(block);
  }
  return true;
}

// --- graph records
// ----------------------------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 4> kParamTypes = {"unknown", "pointer", "const_pointer", "scalar"};
constexpr std::array<std::string_view, 6> kMemoryKinds = {"unknown", "host_pageable", "host_pinned",
                                                          "device",  "array",         "managed"};

bool Reader::read_functions(value v) {
  tables_.functions.clear();
  return for_each(v, "functions", [&](value& item) {
    ir::Function function;
    bool has_name = false;
    if (!for_each_field(item, "a function", [&](const char* key, value& field) {
          if (is(key, "name")) return has_name = true, get_text(field, "name", function.name);
          if (is(key, "params"))
            return for_each(field, "params", [&](value& entry) {
              ir::Function::Param param;
              param.type_name = ir::kEmptyString;
              if (!fixed_array(entry, "a parameter", 2, 4, [&](std::size_t i, auto&& element) {
                    switch (i) {
                      case 0:
                        return get_uint(element, "a parameter's offset", param.offset_bytes);
                      case 1:
                        return get_uint(element, "a parameter's size", param.size_bytes);
                      case 2:
                        return get_text(element, "a parameter's type name", param.type_name);
                      default:
                        return get_enum(element, "a parameter's type", kParamTypes, param.type);
                    }
                  }))
                return false;
              function.params.push_back(param);
              return true;
            });
          if (is(key, "image_hash")) return get_hex(field, "image_hash", function.image_hash);
          if (is(key, "grid_dependency_wait"))
            return get_tri(field, "grid_dependency_wait", function.has_grid_dependency_wait);
          if (is(key, "launch_dependents"))
            return get_tri(field, "launch_dependents", function.has_launch_dependents);
          return unknown_property(key);
        }))
      return false;
    if (!has_name) return wrong("a function has no name");
    tables_.functions.push_back(intern(std::move(function)));
    return true;
  });
}

// The properties that launches and kernel nodes have in common.
bool Reader::read_kernel_field(const char* key, value& v, ir::KernelNode& kernel, bool& known) {
  known = true;
  switch (key[0]) {
    case 'g':
      if (is(key, "grid")) return get_dim3(v, "grid", kernel.grid);
      break;
    case 'b':
      if (is(key, "block")) return get_dim3(v, "block", kernel.block);
      break;
    case 'c':
      if (is(key, "cluster")) return get_dim3(v, "cluster", kernel.cluster);
      if (is(key, "cooperative")) return get_tri(v, "cooperative", kernel.cooperative);
      break;
    case 'd':
      if (is(key, "dynamic_shared_bytes"))
        return get_uint(v, "dynamic_shared_bytes", kernel.dynamic_shared_bytes);
      break;
    case 's':
      if (is(key, "static_shared_bytes"))
        return get_uint(v, "static_shared_bytes", kernel.static_shared_bytes);
      break;
    case 'r':
      if (is(key, "registers_per_thread"))
        return get_uint(v, "registers_per_thread", kernel.registers_per_thread);
      break;
    case 'p':
      if (is(key, "priority")) return get_int(v, "priority", kernel.priority);
      if (is(key, "programmatic_serialization"))
        return get_tri(v, "programmatic_serialization", kernel.programmatic_serialization);
      break;
    default:
      break;
  }
  known = false;
  return true;
}

bool Reader::read_launches(value v) {
  tables_.launches.clear();
  layout_.clear();
  return for_each(v, "launches", [&](value& item) {
    Launch launch;
    launch.first_word = static_cast<std::uint32_t>(layout_.size());
    if (!for_each_field(item, "a launch", [&](const char* key, value& field) {
          if (is(key, "function")) {
            std::uint32_t index = 0;
            if (!get_index(field, "function", index)) return false;
            if (index >= tables_.functions.size())
              return wrong(fmt::format("a launch names function {} of {}", index, tables_.functions.size()));
            launch.kernel.function = tables_.functions[index];
            return true;
          }
          if (is(key, "layout"))
            return for_each(field, "layout", [&](value& entry) {
              ir::ParamWord word;
              if (!fixed_array(entry, "a layout entry", 3, 4, [&](std::size_t i, auto&& element) {
                    switch (i) {
                      case 0:
                        return get_uint(element, "a word's slot", word.slot);
                      case 1:
                        return get_uint(element, "a word's offset", word.offset_bytes);
                      case 2:
                        return get_uint(element, "a word's size", word.size_bytes);
                      default:
                        return get_enum(element, "a word's type", kParamTypes, word.type);
                    }
                  }))
                return false;
              if (word.size_bytes != 1 && word.size_bytes != 2 && word.size_bytes != 4 &&
                  word.size_bytes != 8)
                return wrong("a word's size is not 1, 2, 4 or 8");
              layout_.push_back(word);
              return true;
            });
          bool known = false;
          return read_kernel_field(key, field, launch.kernel, known) && (known || unknown_property(key));
        }))
      return false;
    launch.word_count = static_cast<std::uint32_t>(layout_.size()) - launch.first_word;
    tables_.launches.push_back(launch);
    return true;
  });
}

bool Reader::read_streams(value v, std::uint32_t process_number) {
  tables_.streams.clear();
  const ir::ProcessId process = process_of(process_number);
  return for_each(v, "streams", [&](value& item) {
    ir::Stream stream;
    stream.name = ir::kEmptyString;
    bool has_handle = false;
    if (!for_each_field(item, "a stream", [&](const char* key, value& field) {
          if (is(key, "handle")) return has_handle = true, get_hex(field, "handle", stream.handle);
          if (is(key, "priority")) return get_int(field, "priority", stream.priority);
          if (is(key, "name")) return get_text(field, "name", stream.name);
          return unknown_property(key);
        }))
      return false;
    if (!has_handle) return wrong("a stream has no handle");
    tables_.streams.push_back(intern(process, stream));
    return true;
  });
}

bool Reader::read_nvtx(value v) {
  tables_.nvtx.clear();
  return for_each(v, "nvtx", [&](value& item) {
    nvtx_ranges_.clear();
    if (!for_each(item, "an NVTX stack", [&](value& entry) {
          ir::StringId text;
          if (!get_text(entry, "an NVTX range", text)) return false;
          nvtx_ranges_.push_back(text);
          return true;
        }))
      return false;
    tables_.nvtx.push_back(recording_.intern_nvtx(nvtx_ranges_));
    return true;
  });
}

bool Reader::read_defaults(value v) {
  return for_each_field(v, "defaults", [&](const char* key, value& field) {
    if (is(key, "thread")) return defaults_.has_thread = true, get_uint(field, "thread", defaults_.thread);
    if (is(key, "device")) return defaults_.has_device = true, get_int(field, "device", defaults_.device);
    if (is(key, "context")) return defaults_.has_context = true, get_hex(field, "context", defaults_.context);
    if (is(key, "stream")) {
      defaults_.has_stream = true;
      return get_index(field, "stream", defaults_.stream);
    }
    return unknown_property(key);
  });
}

bool Reader::read_info(value v, ir::GraphInfo& info, InfoRefs& refs) {
  static constexpr std::array<std::string_view, 4> kRoles = {"captured", "built", "body", "eager"};
  static constexpr std::array<std::string_view, 4> kModes = {"unknown", "global", "thread_local", "relaxed"};
  static constexpr std::array<std::string_view, 4> kStatuses = {"unknown", "ok", "invalidated", "failed"};
  return for_each_field(v, "info", [&](const char* key, value& field) {
    if (is(key, "name")) return get_text(field, "name", info.name);
    if (is(key, "role")) return get_enum(field, "role", kRoles, info.role);
    if (is(key, "source_id")) return get_hex(field, "source_id", info.source_id);
    if (is(key, "parent")) return get_index(field, "parent", refs.parent);
    if (is(key, "parent_node")) return get_index(field, "parent_node", refs.parent_node);
    if (is(key, "batch_size")) return get_i64(field, "batch_size", info.batch_size);
    if (is(key, "key")) return get_text(field, "key", info.key);
    if (is(key, "capture_mode")) return get_enum(field, "capture_mode", kModes, info.capture_mode);
    if (is(key, "capture_status")) return get_enum(field, "capture_status", kStatuses, info.capture_status);
    if (is(key, "failed_call")) return get_text(field, "failed_call", info.failed_call);
    if (is(key, "failed_error")) return get_text(field, "failed_error", info.failed_error);
    if (is(key, "failed_thread")) return get_uint(field, "failed_thread", info.failed_thread);
    if (is(key, "failed_stack")) return get_index(field, "failed_stack", refs.failed_stack);
    if (is(key, "failed_stream")) return get_index(field, "failed_stream", refs.failed_stream);
    if (is(key, "origin_stream")) return get_index(field, "origin_stream", refs.origin_stream);
    if (is(key, "begin_sequence")) return get_u64(field, "begin_sequence", info.begin_sequence);
    if (is(key, "end_sequence")) return get_u64(field, "end_sequence", info.end_sequence);
    if (is(key, "instantiated")) return get_bool(field, "instantiated", info.instantiated);
    if (is(key, "instantiate_flags")) return get_u64(field, "instantiate_flags", info.instantiate_flags);
    if (is(key, "instantiate_ns")) return get_i64(field, "instantiate_ns", info.instantiate_ns);
    if (is(key, "upload_ns")) return get_i64(field, "upload_ns", info.upload_ns);
    if (is(key, "memory_bytes")) return get_u64(field, "memory_bytes", info.memory_bytes);
    if (is(key, "exec_updates")) return get_uint(field, "exec_updates", info.exec_updates);
    if (is(key, "content_hash")) return get_hex(field, "content_hash", info.content_hash);
    if (is(key, "instances"))
      return get_uint(field, "instances", info.instances) && (info.instances != 0 || wrong("instances is 0"));
    return unknown_property(key);
  });
}

bool Reader::resolve_info(ir::GraphInfo& info, const InfoRefs& refs) {
  const auto stream = [&](std::uint32_t index, const char* what, ir::StreamId& out) {
    if (index == kNone) return true;
    if (index >= tables_.streams.size())
      return wrong(fmt::format("{} names stream {} of {}", what, index, tables_.streams.size()));
    out = tables_.streams[index];
    return true;
  };
  if (refs.failed_stack != kNone) {
    if (refs.failed_stack >= tables_.stacks.size())
      return wrong(
          fmt::format("failed_stack names stack {} of {}", refs.failed_stack, tables_.stacks.size()));
    info.failed_stack = tables_.stacks[refs.failed_stack];
  }
  return stream(refs.failed_stream, "failed_stream", info.failed_stream) &&
         stream(refs.origin_stream, "origin_stream", info.origin_stream);
}

bool Reader::resolve_allocation(std::uint32_t id, ir::AllocationId& out) {
  if (id == kNone) return true;
  const std::uint32_t known = graph_allocations_ == nullptr ? kNone : graph_allocations_->find(id);
  if (known == kNone) {
    ++missing_allocations_;
  } else {
    out = ir::AllocationId(known);
  }
  return true;
}

bool Reader::read_params(value v) {
  words_.clear();
  return for_each(v, "params", [&](value& entry) {
    ir::ParamWord word;
    std::uint32_t allocation = kNone;
    if (!fixed_array(entry, "a parameter word", 4, 6, [&](std::size_t i, auto&& element) {
          switch (i) {
            case 0:
              return get_uint(element, "a word's slot", word.slot);
            case 1:
              return get_uint(element, "a word's offset", word.offset_bytes);
            case 2:
              return get_uint(element, "a word's size", word.size_bytes);
            case 3:
              return get_hex(element, "a word's value", word.value);
            case 4:
              return get_enum(element, "a word's type", kParamTypes, word.type);
            default:
              return get_index_or_none(element, "a word's allocation", allocation);
          }
        }))
      return false;
    if (word.size_bytes != 1 && word.size_bytes != 2 && word.size_bytes != 4 && word.size_bytes != 8)
      return wrong("a word's size is not 1, 2, 4 or 8");
    if (!resolve_allocation(allocation, word.allocation)) return false;
    words_.push_back(word);
    return true;
  });
}

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
  kHasKernel = 1u << 13,  // a kernel property of its own
  kHasParams = 1u << 14,
  kHasArgs = 1u << 15,
  kHasCopy = 1u << 16,  // a memcpy or memset property
  kHasFunctionText = 1u << 17,
  kHasFunctionIndex = 1u << 18,
};

bool Reader::read_nodes(value v, ir::GraphBuilder& builder) {
  has_nodes_ = true;
  const auto allocations = allocations_.find(graph_process_);
  graph_allocations_ = allocations == allocations_.end() ? nullptr : &allocations->second;
  return for_each(v, "nodes", [&](value& item) {
    if (builder.graph().node_count() >= options_.limits.max_nodes_per_graph) {
      fatal_ = make_error(ErrorCode::limit,
                          fmt::format("a graph has more than {} nodes (max_nodes_per_graph)",
                                      options_.limits.max_nodes_per_graph),
                          line_offset_);
      return false;
    }
    const std::size_t index = builder.graph().node_count();
    if (read_node(item, builder)) return true;
    if (!problem_.starts_with("node ")) problem_ = fmt::format("node {}: {}", index, problem_);
    return false;
  });
}

bool Reader::set_columns(ir::GraphBuilder& builder, NodeId added, const NodeColumns& node) {
  const std::uint32_t present = node.present;
  if ((present & kHasSequence) != 0) builder.set_sequence(added, node.sequence);
  const std::uint32_t stream = (present & kHasStream) != 0 ? node.stream : defaults_.stream;
  if (((present & kHasStream) != 0 || defaults_.has_stream) && stream != kNone) {
    if (stream >= tables_.streams.size())
      return wrong(fmt::format("stream {} of {}", stream, tables_.streams.size()));
    builder.set_capture_stream(added, tables_.streams[stream]);
  }
  if ((present & kHasThread) != 0 || defaults_.has_thread)
    builder.set_thread(added, (present & kHasThread) != 0 ? node.thread : defaults_.thread);
  if ((present & kHasNvtx) != 0) {
    if (node.nvtx >= tables_.nvtx.size()) return wrong(fmt::format("nvtx {} of {}", node.nvtx, tables_.nvtx.size()));
    builder.set_nvtx(added, tables_.nvtx[node.nvtx]);
  }
  if ((present & kHasStack) != 0) {
    if (node.stack >= tables_.stacks.size())
      return wrong(fmt::format("stack {} of {}", node.stack, tables_.stacks.size()));
    builder.set_stack(added, tables_.stacks[node.stack]);
  }
  if ((present & kHasDevice) != 0 || defaults_.has_device)
    builder.set_device(added, (present & kHasDevice) != 0 ? node.device : defaults_.device);
  if ((present & kHasContext) != 0 || defaults_.has_context)
    builder.set_context(added, (present & kHasContext) != 0 ? node.context : defaults_.context);
  if ((present & kHasEnabled) != 0) builder.set_enabled(added, node.enabled);
  if ((present & kHasId) != 0) builder.set_source_id(added, node.id);
  if ((present & kHasHash) != 0) builder.set_content_hash(added, node.hash);
  return true;
}

// Nearly all nodes are kernels, written without blanks in the properties below. Reading these straight from the text
// takes a third of the time that the general way takes. False, with nothing done, for anything else: read_node() then
// reads and judges it. The text is followed by bytes that match nothing here, so this cannot run away.
bool Reader::read_kernel_fast(const char* p, NodeColumns& node) {
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
          node.present |= kHasArgs;
          do {
            std::uint64_t word = 0;
            if (!take_hex(word)) return false;
            args_.push_back(word);
          } while (*p++ == ',');
          if (p[-1] != ']') return false;
        } else if (take("arg_allocations\":[")) {
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
          node.present |= kHasContext;
          if (!take_hex(node.context)) return false;
        } else if (take("content_hash\":")) {
          node.present |= kHasHash;
          if (!take_hex(node.hash)) return false;
        } else {
          return false;
        }
        break;
      case 'i':
        if (!take("id\":") || !take_hex(node.id)) return false;
        node.present |= kHasId;
        break;
      case 'l':
        if (!take("launch\":") || !take_index(node.launch)) return false;
        node.present |= kHasLaunch;
        break;
      case 'n':
        if (!take("nvtx\":") || !take_index(node.nvtx)) return false;
        node.present |= kHasNvtx;
        break;
      case 's':
        if (take("sequence\":")) {
          node.present |= kHasSequence;
          if (!take_uint(node.sequence)) return false;
        } else if (take("stack\":")) {
          node.present |= kHasStack;
          if (!take_index(node.stack)) return false;
        } else if (take("stream\":")) {
          node.present |= kHasStream;
          if (!take_index(node.stream)) return false;
        } else {
          return false;
        }
        break;
      case 't':
        if (!take("thread\":") || !take_uint(number) || number > ~std::uint32_t{0}) return false;
        node.thread = static_cast<std::uint32_t>(number);
        node.present |= kHasThread;
        break;
      default: return false;
    }
  }
  return *p == '}' && (node.present & kHasLaunch) != 0 && node.launch < tables_.launches.size() &&
         args_.size() == tables_.launches[node.launch].word_count &&
         (arg_allocations_.empty() || arg_allocations_.size() == args_.size());
}

bool Reader::add_kernel_fast(ir::GraphBuilder& builder, const NodeColumns& node) {
  const Launch& launch = tables_.launches[node.launch];
  const ir::StringId name =
      launch.kernel.function.is_valid() ? recording_.functions[launch.kernel.function].name : ir::kEmptyString;
  const NodeId added = builder.add_kernel(name, launch.kernel);
  if (!args_.empty()) {
    words_.assign(layout_.begin() + launch.first_word, layout_.begin() + launch.first_word + launch.word_count);
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i].value = args_[i];
    for (std::size_t i = 0; i < arg_allocations_.size(); ++i) {
      ir::ParamWord& word = words_[i];
      resolve_allocation(arg_allocations_[i], word.allocation);
      if (word.allocation.is_valid())
        word.allocation_offset = word.value - recording_.allocations[word.allocation].base;
    }
    builder.add_params(added, words_);
  }
  return set_columns(builder, added, node);
}

bool Reader::read_node(value node, ir::GraphBuilder& builder) {
  if (NodeColumns columns; read_kernel_fast(node.raw_json_token().data(), columns))
    return add_kernel_fast(builder, columns);
  std::uint32_t present = 0;
  NodeKind kind = NodeKind::unknown;
  ir::StringId name = ir::kEmptyString;
  std::uint64_t id = 0, sequence = 0, context = 0, hash = 0;
  std::uint32_t stream = kNone, thread = 0, nvtx = kNone, stack = kNone, launch_index = kNone, launches = 1;
  std::int16_t device = -1;
  bool enabled = true;
  ir::KernelNode own;  // properties stated at the node itself
  std::uint32_t function_index = kNone;
  ir::StringId function_text = ir::kEmptyString;
  ir::MemcpyNode copy;
  ir::MemsetNode fill;
  std::uint64_t user_data = 0, event = 0, address = 0, bytes = 0;
  std::uint32_t allocation = kNone, count = 0, body = kNone, src_allocation = kNone, dst_allocation = kNone;
  ir::ConditionalNode conditional;
  std::uint32_t kernel_bits = 0;  // which of `own` are stated, beside a launch
  enum : std::uint32_t {
    kGrid = 1,
    kBlock = 2,
    kCluster = 4,
    kDynamic = 8,
    kStatic = 16,
    kRegisters = 32,
    kPriority = 64,
    kCooperative = 128,
    kPdl = 256
  };
  bodies_.clear();

  const auto read_field = [&](const char* key, value& v) {
    switch (key[0]) {
      case 'a':
        if (is(key, "args")) {
          present |= kHasArgs;
          args_.clear();
          return for_each(v, "args", [&](value& element) {
            std::uint64_t word = 0;
            if (!get_hex(element, "an argument", word)) return false;
            args_.push_back(word);
            return true;
          });
        }
        if (is(key, "arg_allocations")) {
          arg_allocations_.clear();
          present |= kHasArgs;
          return for_each(v, "arg_allocations", [&](value& element) {
            std::uint32_t index = kNone;
            if (!get_index_or_none(element, "an argument's allocation", index)) return false;
            arg_allocations_.push_back(index);
            return true;
          });
        }
        if (is(key, "address")) return get_hex(v, "address", address);
        if (is(key, "allocation")) return get_index(v, "allocation", allocation);
        break;
      case 'b':
        if (is(key, "block")) {
          present |= kHasKernel;
          kernel_bits |= kBlock;
          return get_dim3(v, "block", own.block);
        }
        if (is(key, "body")) return get_index(v, "body", body);
        if (is(key, "bytes")) return get_u64(v, "bytes", bytes);
        if (is(key, "bodies"))
          return for_each(v, "bodies", [&](value& element) {
            std::uint32_t number = kNone;
            if (!get_index_or_none(element, "a body", number)) return false;
            bodies_.push_back(GraphId(number));  // a graph number for now
            return true;
          });
        break;
      case 'c':
        if (is(key, "context")) return present |= kHasContext, get_hex(v, "context", context);
        if (is(key, "content_hash")) return present |= kHasHash, get_hex(v, "content_hash", hash);
        if (is(key, "cluster")) {
          present |= kHasKernel;
          kernel_bits |= kCluster;
          return get_dim3(v, "cluster", own.cluster);
        }
        if (is(key, "cooperative")) {
          present |= kHasKernel;
          kernel_bits |= kCooperative;
          return get_tri(v, "cooperative", own.cooperative);
        }
        if (is(key, "count")) return get_uint(v, "count", count);
        if (is(key, "conditional_type")) {
          static constexpr std::array<std::string_view, 4> kTypes = {"unknown", "if", "while", "switch"};
          return get_enum(v, "conditional_type", kTypes, conditional.type);
        }
        break;
      case 'd':
        if (is(key, "device")) return present |= kHasDevice, get_int(v, "device", device);
        if (is(key, "dst")) {
          present |= kHasCopy;
          if (!get_hex(v, "dst", copy.dst)) return false;
          fill.dst = copy.dst;
          return true;
        }
        if (is(key, "depth")) return present |= kHasCopy, get_u64(v, "depth", copy.depth);
        if (is(key, "dst_pitch_bytes"))
          return present |= kHasCopy, get_u64(v, "dst_pitch_bytes", copy.dst_pitch_bytes);
        if (is(key, "dst_kind"))
          return present |= kHasCopy, get_enum(v, "dst_kind", kMemoryKinds, copy.dst_kind);
        if (is(key, "dst_device")) return present |= kHasCopy, get_int(v, "dst_device", copy.dst_device);
        if (is(key, "dst_allocation"))
          return present |= kHasCopy, get_index(v, "dst_allocation", dst_allocation);
        if (is(key, "dynamic_shared_bytes")) {
          present |= kHasKernel;
          kernel_bits |= kDynamic;
          return get_uint(v, "dynamic_shared_bytes", own.dynamic_shared_bytes);
        }
        break;
      case 'e':
        if (is(key, "event")) return get_hex(v, "event", event);
        if (is(key, "enabled")) return present |= kHasEnabled, get_bool(v, "enabled", enabled);
        if (is(key, "element_bytes")) {
          present |= kHasCopy;
          return get_uint(v, "element_bytes", fill.element_bytes) &&
                 (fill.element_bytes == 1 || fill.element_bytes == 2 || fill.element_bytes == 4 ||
                  wrong("element_bytes is not 1, 2 or 4"));
        }
        break;
      case 'f':
        if (is(key, "function")) {
          od::json_type type;
          if (v.type().get(type) != simdjson::SUCCESS) return wrong("function is broken");
          if (type == od::json_type::number) {
            present |= kHasFunctionIndex;
            return get_index(v, "function", function_index);
          }
          present |= kHasFunctionText;
          return get_text(v, "function", function_text);
        }
        break;
      case 'g':
        if (is(key, "grid")) {
          present |= kHasKernel;
          kernel_bits |= kGrid;
          return get_dim3(v, "grid", own.grid);
        }
        break;
      case 'h':
        if (is(key, "height")) {
          present |= kHasCopy;
          if (!get_u64(v, "height", copy.height)) return false;
          fill.height = copy.height;
          return true;
        }
        break;
      case 'i':
        if (is(key, "id")) return present |= kHasId, get_hex(v, "id", id);
        break;
      case 'k':
        if (is(key, "kind")) {
          present |= kHasKind;
          return get_kind(v, kind);
        }
        break;
      case 'l':
        if (is(key, "launch")) return present |= kHasLaunch, get_index(v, "launch", launch_index);
        if (is(key, "launches")) return get_uint(v, "launches", launches);
        break;
      case 'n':
        if (is(key, "nvtx")) return present |= kHasNvtx, get_index(v, "nvtx", nvtx);
        if (is(key, "name")) return present |= kHasName, get_text(v, "name", name);
        break;
      case 'p':
        if (is(key, "params")) return present |= kHasParams, read_params(v);
        if (is(key, "pitch_bytes")) return present |= kHasCopy, get_u64(v, "pitch_bytes", fill.pitch_bytes);
        if (is(key, "priority")) {
          present |= kHasKernel;
          kernel_bits |= kPriority;
          return get_int(v, "priority", own.priority);
        }
        if (is(key, "programmatic_serialization")) {
          present |= kHasKernel;
          kernel_bits |= kPdl;
          return get_tri(v, "programmatic_serialization", own.programmatic_serialization);
        }
        break;
      case 'r':
        if (is(key, "registers_per_thread")) {
          present |= kHasKernel;
          kernel_bits |= kRegisters;
          return get_uint(v, "registers_per_thread", own.registers_per_thread);
        }
        break;
      case 's':
        if (is(key, "sequence")) return present |= kHasSequence, get_u64(v, "sequence", sequence);
        if (is(key, "stream")) return present |= kHasStream, get_index_or_none(v, "stream", stream);
        if (is(key, "stack")) return present |= kHasStack, get_index(v, "stack", stack);
        if (is(key, "src")) return present |= kHasCopy, get_hex(v, "src", copy.src);
        if (is(key, "src_pitch_bytes"))
          return present |= kHasCopy, get_u64(v, "src_pitch_bytes", copy.src_pitch_bytes);
        if (is(key, "src_kind"))
          return present |= kHasCopy, get_enum(v, "src_kind", kMemoryKinds, copy.src_kind);
        if (is(key, "src_device")) return present |= kHasCopy, get_int(v, "src_device", copy.src_device);
        if (is(key, "src_allocation"))
          return present |= kHasCopy, get_index(v, "src_allocation", src_allocation);
        if (is(key, "static_shared_bytes")) {
          present |= kHasKernel;
          kernel_bits |= kStatic;
          return get_uint(v, "static_shared_bytes", own.static_shared_bytes);
        }
        break;
      case 't':
        if (is(key, "thread")) return present |= kHasThread, get_uint(v, "thread", thread);
        break;
      case 'u':
        if (is(key, "user_data")) return get_hex(v, "user_data", user_data);
        break;
      case 'v':
        if (is(key, "value")) return present |= kHasCopy, get_uint(v, "value", fill.value);
        break;
      case 'w':
        if (is(key, "width_bytes")) return present |= kHasCopy, get_u64(v, "width_bytes", copy.width_bytes);
        if (is(key, "width")) return present |= kHasCopy, get_u64(v, "width", fill.width);
        break;
      default:
        break;
    }
    return unknown_property(key);
  };
  arg_allocations_.clear();
  if (!for_each_field(node, "a node", read_field)) return false;
  if ((present & kHasKind) == 0) return wrong("a node has no kind");

  NodeId added;
  switch (kind) {
    case NodeKind::kernel: {
      if ((present & (kHasLaunch | kHasKernel | kHasParams | kHasArgs | kHasFunctionIndex)) == 0) {
        added = builder.add_node(kind, name);
        break;
      }
      ir::KernelNode kernel;
      std::uint32_t first_word = 0, word_count = 0;
      if ((present & kHasLaunch) != 0) {
        if (launch_index >= tables_.launches.size())
          return wrong(fmt::format("launch {} of {}", launch_index, tables_.launches.size()));
        const Launch& launch = tables_.launches[launch_index];
        kernel = launch.kernel;
        first_word = launch.first_word;
        word_count = launch.word_count;
        if (kernel_bits != 0) {
          if ((kernel_bits & kGrid) != 0) kernel.grid = own.grid;
          if ((kernel_bits & kBlock) != 0) kernel.block = own.block;
          if ((kernel_bits & kCluster) != 0) kernel.cluster = own.cluster;
          if ((kernel_bits & kDynamic) != 0) kernel.dynamic_shared_bytes = own.dynamic_shared_bytes;
          if ((kernel_bits & kStatic) != 0) kernel.static_shared_bytes = own.static_shared_bytes;
          if ((kernel_bits & kRegisters) != 0) kernel.registers_per_thread = own.registers_per_thread;
          if ((kernel_bits & kPriority) != 0) kernel.priority = own.priority;
          if ((kernel_bits & kCooperative) != 0) kernel.cooperative = own.cooperative;
          if ((kernel_bits & kPdl) != 0) kernel.programmatic_serialization = own.programmatic_serialization;
        }
      } else {
        kernel = own;
      }
      if ((present & kHasFunctionIndex) != 0) {
        if (function_index >= tables_.functions.size())
          return wrong(fmt::format("function {} of {}", function_index, tables_.functions.size()));
        kernel.function = tables_.functions[function_index];
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
          if (!arg_allocations_.empty()) resolve_allocation(arg_allocations_[i], words_[i].allocation);
        }
      }
      if ((present & kHasName) == 0 && kernel.function.is_valid())
        name = recording_.functions[kernel.function].name;
      added = builder.add_kernel(name, kernel);
      if ((present & (kHasArgs | kHasParams)) != 0) {
        for (ir::ParamWord& word : words_)
          if (word.allocation.is_valid())
            word.allocation_offset = word.value - recording_.allocations[word.allocation].base;
        builder.add_params(added, words_);
      }
      break;
    }
    case NodeKind::memcpy:
      if ((present & kHasCopy) == 0) {
        added = builder.add_node(kind, name);
        break;
      }
      resolve_allocation(src_allocation, copy.src_allocation);
      resolve_allocation(dst_allocation, copy.dst_allocation);
      added = builder.add_memcpy(name, copy);
      break;
    case NodeKind::memset:
      if ((present & kHasCopy) == 0) {
        added = builder.add_node(kind, name);
        break;
      }
      resolve_allocation(dst_allocation, fill.dst_allocation);
      added = builder.add_memset(name, fill);
      break;
    case NodeKind::host:
      added = builder.add_host(name, {function_text, user_data});
      break;
    case NodeKind::event_record:
    case NodeKind::event_wait:
      added = builder.add_event(kind, name, {event});
      break;
    case NodeKind::child_graph: {
      ir::ChildGraphNode child;
      if (body != kNone) {
        const auto slot = slots_.find(body);
        if (slot == slots_.end()) {
          ++missing_bodies_;
        } else {
          child.body = slot->second.graph;
          body_uses_.emplace_back(static_cast<std::uint32_t>(builder.graph().node_count()), body);
        }
      }
      added = builder.add_child_graph(name, child);
      break;
    }
    case NodeKind::conditional: {
      for (GraphId& entry : bodies_) {
        if (!entry.is_valid()) continue;
        const std::uint32_t number = entry.index();
        const auto slot = slots_.find(number);
        entry = GraphId();
        if (slot == slots_.end()) {
          ++missing_bodies_;
        } else {
          entry = slot->second.graph;
          body_uses_.emplace_back(static_cast<std::uint32_t>(builder.graph().node_count()), number);
        }
      }
      added = builder.add_conditional(name, conditional, bodies_);
      break;
    }
    case NodeKind::mem_alloc:
    case NodeKind::mem_free: {
      ir::AllocNode alloc{address, bytes, {}};
      resolve_allocation(allocation, alloc.allocation);
      added = builder.add_alloc(kind, name, alloc);
      break;
    }
    case NodeKind::ext_semaphore_signal:
    case NodeKind::ext_semaphore_wait:
      added = builder.add_semaphore(kind, name, {count});
      break;
    case NodeKind::batch_mem_op:
      added = builder.add_batch_mem_op(name, {count, address});
      break;
    case NodeKind::empty:
    case NodeKind::unknown:
      added = builder.add_node(kind, name);
      break;
  }

  if (launches != 1) builder.set_launches(added, launches);
  return set_columns(builder, added,
                     {present, stream, thread, nvtx, stack, launch_index, id, sequence, context, hash, device, enabled});
}

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
    return digits != 0 && value < kNone;
  };
  return *p++ == '[' && number(from) && *p++ == ',' && number(to) && *p == ']';
}

bool Reader::read_edges(value v, ir::GraphBuilder& builder) {
  return for_each(v, "edges", [&](value& item) {
    std::uint32_t from = 0, to = 0, sync = kNone;
    ir::EdgeData data;
    std::uint32_t type = 0;
    if (read_plain_edge(item.raw_json_token().data(), from, to)) {
      builder.add_edge(NodeId(from), NodeId(to));
      return true;
    }
    if (!fixed_array(item, "an edge", 2, 6, [&](std::size_t i, auto&& element) {
          switch (i) {
            case 0:
              return get_index(element, "an edge's start", from);
            case 1:
              return get_index(element, "an edge's end", to);
            case 2:
              return get_uint(element, "an edge's from_port", data.from_port);
            case 3:
              return get_uint(element, "an edge's to_port", data.to_port);
            case 4:
              return get_uint(element, "an edge's type", type) &&
                     (type <= 1 || wrong("an edge's type is not 0 or 1"));
            default:
              return get_index_or_none(element, "an edge's sync operation", sync);
          }
        }))
      return false;
    data.type = static_cast<ir::EdgeType>(type);
    builder.add_edge(NodeId(from), NodeId(to), data, sync == kNone ? ir::SyncOpId() : ir::SyncOpId(sync));
    return true;
  });
}

bool Reader::read_sync_ops(value v, ir::Graph& graph) {
  static constexpr std::array<std::string_view, 5> kKinds = {"event_record", "event_wait", "begin_capture",
                                                             "end_capture", "update_dependencies"};
  return for_each(v, "sync_ops", [&](value& item) {
    ir::SyncOp op;
    bool has_kind = false;
    std::uint32_t stream = kNone, record = kNone, stack = kNone;
    if (!for_each_field(item, "a sync operation", [&](const char* key, value& field) {
          if (is(key, "kind")) return has_kind = true, get_enum(field, "kind", kKinds, op.kind);
          if (is(key, "stream")) return get_index(field, "stream", stream);
          if (is(key, "event")) return get_hex(field, "event", op.event);
          if (is(key, "sequence")) return get_u64(field, "sequence", op.sequence);
          if (is(key, "record")) return get_index(field, "record", record);
          if (is(key, "stack")) return get_index(field, "stack", stack);
          if (is(key, "thread")) return get_uint(field, "thread", op.thread);
          if (is(key, "unjoined")) return get_bool(field, "unjoined", op.unjoined);
          return unknown_property(key);
        }))
      return false;
    if (!has_kind) return wrong("a sync operation has no kind");
    if (stream != kNone) {
      if (stream >= tables_.streams.size())
        return wrong(fmt::format("a sync operation names stream {} of {}", stream, tables_.streams.size()));
      op.stream = tables_.streams[stream];
    }
    if (stack != kNone) {
      if (stack >= tables_.stacks.size())
        return wrong(fmt::format("a sync operation names stack {} of {}", stack, tables_.stacks.size()));
      op.stack = tables_.stacks[stack];
    }
    if (record != kNone) op.record = ir::SyncOpId(record);
    graph.sync_ops.push_back(op);
    return true;
  });
}

bool Reader::read_graph_fields(od::object& object, bool tables_known, ir::GraphBuilder& builder,
                               InfoRefs& refs, bool& out_of_order) {
  bool body_seen = false, streams_seen = false, launches_seen = false;
  const auto table = [&] {
    out_of_order |= body_seen;
    return !tables_known;
  };
  const auto spoiled_fact = [&](value& item) {
    FactSet facts;
    ir::StringId reason = ir::kEmptyString;
    if (!for_each_field(item, "a spoiled fact", [&](const char* name, value& field) {
          if (is(name, "fact")) return get_fact(field, facts);
          if (is(name, "reason")) return get_text(field, "reason", reason);
          return unknown_property(name);
        }))
      return false;
    for (int i = 0; i < ir::kFactCount; ++i)
      if (facts.contains(static_cast<Fact>(i)))
        builder.graph().spoiled.push_back({static_cast<Fact>(i), reason});
    return true;
  };
  return for_each_field(object, "the record", [&](const char* key, value& v) {
    switch (key[0]) {
      case 'd':
        if (is(key, "defaults")) return table() ? read_defaults(v) : true;
        break;
      case 'e':
        if (is(key, "edges")) return body_seen = true, read_edges(v, builder);
        break;
      case 'f':
        if (is(key, "facts")) {
          has_facts_ = true;
          return for_each(v, "facts", [&](value& item) { return get_fact(item, builder.graph().facts); });
        }
        if (is(key, "functions")) {
          out_of_order |= launches_seen;
          return table() ? read_functions(v) : true;
        }
        if (is(key, "frames")) return table() ? read_frames(v) : true;
        break;
      case 'g':
        if (is(key, "graph")) {
          if (!get_index(v, "graph", graph_number_)) return false;
          record_graph_ = graph_number_;
          return true;
        }
        break;
      case 'i':
        if (is(key, "info")) return read_info(v, builder.graph().info, refs);
        break;
      case 'l':
        if (is(key, "launches")) return launches_seen = true, table() ? read_launches(v) : true;
        break;
      case 'n':
        if (is(key, "nodes")) return body_seen = true, read_nodes(v, builder);
        if (is(key, "nvtx")) return table() ? read_nvtx(v) : true;
        break;
      case 'p':
        if (is(key, "process")) {
          out_of_order |= streams_seen || body_seen;
          return get_index(v, "process", graph_process_);
        }
        break;
      case 's':
        if (is(key, "streams")) return streams_seen = true, table() ? read_streams(v, graph_process_) : true;
        if (is(key, "stacks")) return table() ? read_stacks(v) : true;
        if (is(key, "sync_ops")) return body_seen = true, read_sync_ops(v, builder.graph());
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

bool Reader::read_graph_tables(od::object& object) {
  const auto field = [&](const char* name, const auto& read) {
    value v;
    const simdjson::error_code error = object.find_field_unordered(name).get(v);
    if (error == simdjson::NO_SUCH_FIELD) return true;
    return error == simdjson::SUCCESS ? read(v) : broken_json(error);
  };
  return field("process", [&](value& v) { return get_index(v, "process", graph_process_); }) &&
         field("functions", [&](value& v) { return read_functions(v); }) &&
         field("launches", [&](value& v) { return read_launches(v); }) &&
         field("streams", [&](value& v) { return read_streams(v, graph_process_); }) &&
         field("frames", [&](value& v) { return read_frames(v); }) &&
         field("stacks", [&](value& v) { return read_stacks(v); }) &&
         field("nvtx", [&](value& v) { return read_nvtx(v); }) &&
         field("defaults", [&](value& v) { return read_defaults(v); });
}

bool Reader::read_graph(od::object& object) {
  const auto clear = [&] {
    tables_.clear();
    defaults_ = {};
    body_uses_.clear();
    missing_allocations_ = missing_bodies_ = 0;
    graph_number_ = kNone;
    has_nodes_ = has_facts_ = false;
    problem_.clear();
  };
  clear();
  graph_process_ = kNone;
  auto builder = std::make_unique<ir::GraphBuilder>();
  InfoRefs refs;
  bool out_of_order = false;
  const std::uint64_t properties = unknown_properties_, values = unknown_values_;
  bool good = read_graph_fields(object, false, *builder, refs, out_of_order);
  if (fatal_) return false;
  if (!good || out_of_order) {
    // A second, slower reading that accepts any order, and decides.
    unknown_properties_ = properties;
    unknown_values_ = values;
    clear();
    od::document document;
    od::object again;
    if (parser_.iterate(record_text_.data(), record_text_.size(), record_capacity_).get(document) !=
            simdjson::SUCCESS ||
        document.get_object().get(again) != simdjson::SUCCESS)
      return wrong("the record cannot be read twice");
    if (!read_graph_tables(again)) return false;
    bool rewound = false;
    if (again.reset().get(rewound) != simdjson::SUCCESS) return wrong("the record cannot be read twice");
    builder = std::make_unique<ir::GraphBuilder>();
    refs = {};
    good = read_graph_fields(again, true, *builder, refs, out_of_order);
    if (!good) return false;
  }
  if (graph_number_ == kNone) return wrong("the record has no graph");
  if (!has_nodes_) return wrong("the record has no nodes");
  if (!has_facts_) return wrong("the record has no facts");
  if (slots_.contains(graph_number_))
    return wrong(fmt::format("graph {} was already recorded", graph_number_));
  ir::GraphInfo& info = builder->graph().info;
  if (!resolve_info(info, refs)) return false;
  info.process = process_of(graph_process_);
  for (const ir::SyncOp& op : builder->graph().sync_ops)
    if (op.record.is_valid() && op.record.index() >= builder->graph().sync_ops.size())
      return wrong(fmt::format("a sync operation names record {} of {}", op.record.index(),
                               builder->graph().sync_ops.size()));
  auto finished = builder->finish();
  if (!finished) return wrong(finished.error().message);
  if (builder->duplicate_edges() != 0)
    recording_.add_loss(ir::Loss::Severity::info, "repeated edges were merged", builder->duplicate_edges(),
                        line_offset_);

  const GraphId id = recording_.graphs.push_back(std::move(*finished));
  ir::Graph& graph = *recording_.graphs[id];
  GraphState state;
  state.nodes = graph.node_count();
  state.origin_stream = graph.info.origin_stream;
  state.failed_stream = graph.info.failed_stream;
  state.failed_stack = graph.info.failed_stack;
  states_.push_back(state);
  slots_.emplace(graph_number_, Slot{id, 0});
  if (missing_allocations_ != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "parameters name allocations that the file does not contain", missing_allocations_,
                        line_offset_, {Fact::allocations});
    spoil(graph, {Fact::allocations},
          "some of the allocations that the graph uses are missing from the file");
  }
  if (missing_bodies_ != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "nodes run graphs that the file does not contain before them", missing_bodies_,
                        line_offset_);
  const auto adopt = [&](GraphId body, std::uint32_t node) {
    ir::Graph* const child = alive(body);
    if (child == nullptr || child->info.parent.is_valid() || body == id) return;
    child->info.parent = id;
    if (node < graph.node_count()) child->info.parent_node = NodeId(node);
  };
  if (const auto pending = pending_parents_.find(graph_number_); pending != pending_parents_.end()) {
    for (const PendingParent& entry : pending->second) adopt(entry.body, entry.parent_node);
    pending_parents_.erase(pending);
  }
  for (const auto& [node, number] : body_uses_) adopt(slots_.at(number).graph, node);
  if (refs.parent != kNone) {
    const auto parent = slots_.find(refs.parent);
    if (parent == slots_.end() || parent->second.graph == id) {
      pending_parents_[refs.parent].push_back({id, refs.parent_node});
    } else {
      graph.info.parent = parent->second.graph;
      if (refs.parent_node < states_[parent->second.graph.index()].nodes)
        graph.info.parent_node = NodeId(refs.parent_node);
    }
  }
  return true;
}

bool Reader::read_instance(od::object& object) {
  std::uint32_t number = kNone, of = kNone, process = kNone;
  ir::GraphInfo info;
  InfoRefs refs;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number);
        if (is(key, "of")) return get_index(v, "of", of);
        if (is(key, "process")) return get_index(v, "process", process);
        if (is(key, "info")) return read_info(v, info, refs);
        return unknown_property(key);
      }))
    return false;
  if (number == kNone || of == kNone) return wrong("the record has no graph or no of");
  record_graph_ = number;
  const Slot* const original = find_slot(of);
  if (original == nullptr) return false;
  if (slots_.contains(number)) return wrong(fmt::format("graph {} was already recorded", number));
  const GraphState& state = states_[original->graph.index()];
  info.process = process_of(process);
  info.origin_stream = state.origin_stream;
  info.failed_stream = state.failed_stream;
  info.failed_stack = state.failed_stack;
  Slot slot{original->graph, kNone};
  if (ir::Graph* const graph = alive(slot.graph)) {
    if (graph->info.instances > kNone - info.instances) return wrong("there are more than 2^32 equal graphs");
    info.role = graph->info.role;
    graph->info.instances += info.instances;
    graph->instance_infos.push_back(info);
    slot.instance = static_cast<std::uint32_t>(graph->instance_infos.size());
  } else {
    recording_.late_instances.push_back({slot.graph, info});
  }
  slots_.emplace(number, slot);
  return true;
}

// --- data of graphs
// -----------------------------------------------------------------------------------------------------------

bool Reader::read_replays(od::object& object) {
  std::uint32_t number = kNone;
  std::int64_t base = 0;
  std::vector<ir::Replay> replays;
  std::vector<ir::ReplayOp> ops;
  std::vector<std::uint8_t> has_kind;
  const auto read_replay = [&](value& item) {
    ir::Replay replay;
    replay.ops.first = static_cast<std::uint32_t>(ops.size());
    bool has_ops = false;
    if (!for_each_field(item, "a replay", [&](const char* key, value& v) {
          if (is(key, "correlation")) return get_u64(v, "correlation", replay.correlation);
          if (is(key, "host_ns"))
            return fixed_array(v, "host_ns", 2, 2, [&](std::size_t i, auto&& element) {
              return get_i64(element, "host_ns", i == 0 ? replay.host_start_ns : replay.host_end_ns);
            });
          if (is(key, "launch_stream")) {
            replay.has_launch_stream = true;
            return get_u64(v, "launch_stream", replay.launch_stream);
          }
          if (is(key, "complete")) return get_bool(v, "complete", replay.complete);
          if (is(key, "ops")) {
            has_ops = true;
            return for_each(v, "ops", [&](value& entry) {
              ir::ReplayOp op;
              std::uint32_t node = kNone;
              std::uint8_t kind_known = 0;
              if (!fixed_array(entry, "an operation", 5, 6, [&](std::size_t i, auto&& element) {
                    switch (i) {
                      case 0:
                        return get_index_or_none(element, "an operation's node", node);
                      case 1:
                        return get_int(element, "an operation's device", op.device);
                      case 2:
                        return get_u64(element, "an operation's stream", op.stream);
                      case 3:
                        return get_i64(element, "an operation's start", op.start_ns);
                      case 4:
                        return get_i64(element, "an operation's end", op.end_ns);
                      default:
                        kind_known = 1;
                        return get_kind(element, op.kind);
                    }
                  }))
                return false;
              if (node != kNone) op.node = NodeId(node);
              ops.push_back(op);
              has_kind.push_back(kind_known);
              return true;
            });
          }
          return unknown_property(key);
        }))
      return false;
    if (!has_ops) return wrong("a replay has no ops");
    replay.ops.count = static_cast<std::uint32_t>(ops.size()) - replay.ops.first;
    replays.push_back(replay);
    return true;
  };
  bool has_replays = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number) && (record_graph_ = number, true);
        if (is(key, "base_ns")) return get_ns_text(v, "base_ns", base);
        if (is(key, "replays")) return has_replays = true, for_each(v, "replays", read_replay);
        return unknown_property(key);
      }))
    return false;
  if (number == kNone || !has_replays) return wrong("the record has no graph or no replays");
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(number, slot, ok);
  if (graph == nullptr) return ok;
  if (graph->replay_ops.size() + ops.size() > kNone)
    return wrong("a graph has more than 2^32 replay operations");
  const auto shift = [&](std::int64_t& ns) {
    return !__builtin_add_overflow(ns, base, &ns) || wrong("a time does not fit 64 bits");
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ir::ReplayOp& op = ops[i];
    if (!shift(op.start_ns) || !shift(op.end_ns)) return false;
    if (!op.node.is_valid()) continue;
    if (op.node.index() >= graph->node_count())
      return wrong(fmt::format("an operation names node {} of {}", op.node.index(), graph->node_count()));
    if (has_kind[i] == 0) op.kind = graph->kind[op.node];
  }
  const auto first = static_cast<std::uint32_t>(graph->replay_ops.size());
  const auto by_start = [](const ir::ReplayOp& a, const ir::ReplayOp& b) { return a.start_ns < b.start_ns; };
  for (ir::Replay& replay : replays) {
    if (replay.host_start_ns != 0 || replay.host_end_ns != 0)
      if (!shift(replay.host_start_ns) || !shift(replay.host_end_ns)) return false;
    const auto begin = ops.begin() + replay.ops.first;
    const auto end = begin + replay.ops.count;
    if (!std::is_sorted(begin, end, by_start)) std::stable_sort(begin, end, by_start);
    replay.ops.first += first;
    replay.instance = slot.instance;
  }
  graph->replay_ops.insert(graph->replay_ops.end(), ops.begin(), ops.end());
  timeline_ = true;
  for (const ir::Replay& replay : replays) {
    if (!graph->replays.empty() &&
        replay_time(*graph, replay) < replay_time(*graph, graph->replays.raw().back()))
      states_[slot.graph.index()].replays_unsorted = true;
    graph->replays.push_back(replay);
  }
  return true;
}

bool Reader::read_timing(od::object& object) {
  std::uint32_t number = kNone;
  ir::UntracedTiming timing;
  int required = 0;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number) && (record_graph_ = number, true);
        if (is(key, "samples")) return ++required, get_uint(v, "samples", timing.samples);
        if (is(key, "median_us")) return ++required, get_double(v, "median_us", timing.median_us);
        if (is(key, "p10_us")) return get_double(v, "p10_us", timing.p10_us);
        if (is(key, "p90_us")) return get_double(v, "p90_us", timing.p90_us);
        if (is(key, "launch_cpu_us")) return get_double(v, "launch_cpu_us", timing.launch_cpu_us);
        return unknown_property(key);
      }))
    return false;
  if (number == kNone || required != 2) return wrong("the record has no graph, samples or median_us");
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(number, slot, ok);
  if (graph == nullptr) return ok;
  (slot.instance == 0 ? graph->info : graph->instance_infos[slot.instance - 1]).untraced = timing;
  return true;
}

bool Reader::read_exec(od::object& object) {
  std::uint32_t number = kNone;
  ir::GraphInfo facts;
  ir::ExecutableUse use;
  bool used = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number) && (record_graph_ = number, true);
        if (is(key, "exec_updates")) return get_uint(v, "exec_updates", facts.exec_updates);
        if (is(key, "instantiate_ns")) return get_i64(v, "instantiate_ns", facts.instantiate_ns);
        if (is(key, "upload_ns")) return get_i64(v, "upload_ns", facts.upload_ns);
        if (is(key, "memory_bytes")) return get_u64(v, "memory_bytes", facts.memory_bytes);
        if (is(key, "last_launch_sequence"))
          return used = true, get_u64(v, "last_launch_sequence", use.last_launch_sequence);
        if (is(key, "destroyed_sequence"))
          return used = true, get_u64(v, "destroyed_sequence", use.destroyed_sequence);
        if (is(key, "failed_updates")) return used = true, get_uint(v, "failed_updates", use.failed_updates);
        return unknown_property(key);
      }))
    return false;
  if (number == kNone) return wrong("the record has no graph");
  if (used) {
    const Slot* const found = find_slot(number);
    if (found == nullptr) return false;
    use.graph = found->graph;
    use.instance = found->instance;
    const auto [row, inserted] = use_of_.try_emplace(number, recording_.executable_uses.size());
    if (inserted) recording_.executable_uses.push_back({use.graph, use.instance});
    ir::ExecutableUse& known = recording_.executable_uses[row->second];
    if (use.last_launch_sequence != 0) known.last_launch_sequence = use.last_launch_sequence;
    if (use.destroyed_sequence != 0) known.destroyed_sequence = use.destroyed_sequence;
    if (use.failed_updates != 0) known.failed_updates = use.failed_updates;
    if (facts.exec_updates == 0 && facts.instantiate_ns == 0 && facts.upload_ns == 0 && facts.memory_bytes == 0)
      return true;
  }
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(number, slot, ok);
  if (graph == nullptr) return ok;
  ir::GraphInfo& info = slot.instance == 0 ? graph->info : graph->instance_infos[slot.instance - 1];
  if (facts.exec_updates != 0) info.exec_updates = facts.exec_updates;
  if (facts.instantiate_ns != 0) info.instantiate_ns = facts.instantiate_ns;
  if (facts.upload_ns != 0) info.upload_ns = facts.upload_ns;
  if (facts.memory_bytes != 0) info.memory_bytes = facts.memory_bytes;
  return true;
}

bool Reader::read_access(od::object& object) {
  std::uint32_t number = kNone;
  std::vector<ir::MeasuredAccess> accesses;
  bool has_accesses = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number) && (record_graph_ = number, true);
        if (is(key, "accesses")) {
          has_accesses = true;
          return for_each(v, "accesses", [&](value& item) {
            ir::MeasuredAccess access;
            std::uint32_t node = 0;
            if (!fixed_array(item, "an access", 4, 4, [&](std::size_t i, auto&& element) {
                  switch (i) {
                    case 0:
                      return get_index(element, "an access's node", node);
                    case 1:
                      return get_hex(element, "an access's begin", access.begin);
                    case 2:
                      return get_hex(element, "an access's end", access.end);
                    default: {
                      const char* raw = nullptr;
                      if (!get_raw(element, "an access's direction", raw)) return false;
                      access.reads = is(raw, "r") || is(raw, "rw");
                      access.writes = is(raw, "w") || is(raw, "rw");
                      if (!access.reads && !access.writes && !is(raw, "?"))
                        note_unknown_value("direction", raw);
                      return true;
                    }
                  }
                }))
              return false;
            if (access.begin > access.end) return wrong("an access ends before it begins");
            access.node = NodeId(node);
            accesses.push_back(access);
            return true;
          });
        }
        return unknown_property(key);
      }))
    return false;
  if (number == kNone || !has_accesses) return wrong("the record has no graph or no accesses");
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(number, slot, ok);
  if (graph == nullptr) return ok;
  for (const ir::MeasuredAccess& access : accesses)
    if (access.node.index() >= graph->node_count())
      return wrong(fmt::format("an access names node {} of {}", access.node.index(), graph->node_count()));
  graph->measured_accesses.insert(graph->measured_accesses.end(), accesses.begin(), accesses.end());
  return true;
}

bool Reader::read_graph_end(od::object& object) {
  std::uint32_t number = kNone;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "graph")) return get_index(v, "graph", number);
        return unknown_property(key);
      }))
    return false;
  if (number == kNone) return wrong("the record has no graph");
  const Slot* const slot = find_slot(number);
  if (slot == nullptr) return false;
  if (slot->instance != 0) return true;  // an equal graph ends with the one that is stored
  GraphState& state = states_[slot->graph.index()];
  if (state.ended) return wrong(fmt::format("graph {} has ended before this line", number));
  state.ended = true;
  hand_over(slot->graph);
  return true;
}

bool Reader::read_loose_ops(od::object& object) {
  std::int64_t base = 0;
  std::vector<ir::StringId> names;
  std::vector<std::pair<std::uint32_t, ir::LooseOp>> ops;
  bool has_names = false, has_ops = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "base_ns")) return get_ns_text(v, "base_ns", base);
        if (is(key, "names")) {
          has_names = true;
          return for_each(v, "names", [&](value& item) {
            ir::StringId name;
            if (!get_text(item, "a name", name)) return false;
            names.push_back(name);
            return true;
          });
        }
        if (is(key, "ops")) {
          has_ops = true;
          return for_each(v, "ops", [&](value& item) {
            std::pair<std::uint32_t, ir::LooseOp> entry;
            ir::LooseOp& op = entry.second;
            if (!fixed_array(item, "an operation", 6, 7, [&](std::size_t i, auto&& element) {
                  switch (i) {
                    case 0:
                      return get_index(element, "an operation's name", entry.first);
                    case 1:
                      return get_kind(element, op.kind);
                    case 2:
                      return get_int(element, "an operation's device", op.device);
                    case 3:
                      return get_u64(element, "an operation's stream", op.stream);
                    case 4:
                      return get_i64(element, "an operation's start", op.start_ns);
                    case 5:
                      return get_i64(element, "an operation's end", op.end_ns);
                    default:
                      return get_u64(element, "an operation's correlation", op.correlation);
                  }
                }))
              return false;
            ops.push_back(entry);
            return true;
          });
        }
        return unknown_property(key);
      }))
    return false;
  if (!has_names || !has_ops) return wrong("the record has no names or no ops");
  for (auto& [name, op] : ops) {
    if (name >= names.size()) return wrong(fmt::format("an operation has name {} of {}", name, names.size()));
    op.name = names[name];
    if (__builtin_add_overflow(op.start_ns, base, &op.start_ns) ||
        __builtin_add_overflow(op.end_ns, base, &op.end_ns))
      return wrong("a time does not fit 64 bits");
  }
  for (const auto& [name, op] : ops) recording_.loose_ops.push_back(op);
  return true;
}

bool Reader::read_loss(od::object& object) {
  static constexpr std::array<std::string_view, 3> kSeverities = {"info", "data_loss", "error"};
  ir::Loss::Severity severity = ir::Loss::Severity::error;
  std::string_view what;
  bool has_severity = false, has_what = false;
  std::uint64_t count = 1, offset = ~std::uint64_t{0};
  FactSet facts;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "severity")) return has_severity = true, get_enum(v, "severity", kSeverities, severity);
        if (is(key, "what")) return has_what = true, get_view(v, "what", what);
        if (is(key, "count")) return get_u64(v, "count", count);
        if (is(key, "offset_bytes")) return get_u64(v, "offset_bytes", offset);
        if (is(key, "facts")) return for_each(v, "facts", [&](value& item) { return get_fact(item, facts); });
        return unknown_property(key);
      }))
    return false;
  if (!has_severity || !has_what) return wrong("the record has no severity or no what");
  if (++loss_records_ > kMaxLossRecords) {
    what = "further losses of the recorder";
    offset = ~std::uint64_t{0};
  }
  recording_.add_loss(severity, what, count, offset, facts);
  return true;
}

bool Reader::read_end(od::object& object) {
  std::uint64_t records = 0;
  bool has_records = false;
  if (!for_each_field(object, "the record", [&](const char* key, value& v) {
        if (is(key, "type")) return true;
        if (is(key, "records")) return has_records = true, get_u64(v, "records", records);
        return unknown_property(key);
      }))
    return false;
  if (!has_records) return wrong("the record has no records");
  segment_ended_ = true;
  if (records > segment_records_)
    recording_.add_loss(ir::Loss::Severity::data_loss, "records that the recorder wrote are not in the file",
                        records - segment_records_, line_offset_, facts_of(RecordType::unknown));
  if (records > segment_records_) segment_lost_ = segment_lost_.unite(facts_of(RecordType::unknown));
  return true;
}

}  // namespace

bool looks_like_capture(std::string_view prefix) {
  constexpr std::string_view kFormat = "\"cglint-capture\"";
  constexpr std::string_view kType = "{\"type\":\"header\"";
  const std::size_t start = prefix.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (start == std::string_view::npos || prefix[start] != '{') return false;
  prefix.remove_prefix(start);
  const std::string_view line = prefix.substr(0, prefix.find('\n'));
  if (line.find(kFormat) != std::string_view::npos) return true;
  // A file that is cut short inside its header is ours too, if that much is left.
  return line.size() == prefix.size() && line.size() >= kType.size() && line.starts_with(kType);
}

base::Result<ir::Recording> read_capture(Source& source, const ReadOptions& options) {
  return Reader(source, options).run();
}

}  // namespace cglint::import
