// Graph records, which make up nearly all of a capture file. They are parsed without a look at the rest of the file, so that
// several threads can parse several records at once; what a record means in its file (processes, allocations, bodies, tables
// shared by all graphs) is settled by GraphTranslation, record by record in file order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "import/capture/record_fields.h"
#include "ir/graph_builder.h"

namespace cglint::import::capture {

// Numbers that are usually dense and small, but need not be.
class IdMap {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  [[nodiscard]] std::uint32_t find(std::uint32_t key) const {
    if (key < dense_.size()) return dense_[key];
    const auto it = sparse_.find(key);
    return it == sparse_.end() ? kNone : it->second;
  }
  void set(std::uint32_t key, std::uint32_t value);

 private:
  std::vector<std::uint32_t> dense_;
  std::unordered_map<std::uint32_t, std::uint32_t> sparse_;
  std::uint32_t size_ = 0;
};

// One parsed record. The ids in `graph` are not those of the recording yet:
// - strings, NVTX stacks and source stacks are numbered by the parser, over all records that it parsed,
// - functions and streams are indices into `functions` and `streams`, whose strings are the parser's,
// - allocations and bodies are the numbers that the file gives them.
struct GraphRecord {
  std::unique_ptr<ir::Graph> graph;         // null: the record is broken
  std::uint32_t number = RecordFields::kNone, process = RecordFields::kNone;
  std::uint32_t parent = RecordFields::kNone, parent_node = RecordFields::kNone;  // graph number, node
  std::vector<ir::Function> functions;
  std::vector<ir::Stream> streams;
  std::uint64_t duplicate_edges = 0;
  // A kernel's arguments come without their allocations and with a property that is not known: it may be theirs.
  bool may_lack_allocations = false;
  // What the parser numbered since the record that it parsed before. The views live as long as the parser.
  std::vector<std::string_view> new_strings;
  std::vector<std::vector<ir::Frame>> new_stacks;
  std::vector<std::vector<ir::StringId>> new_nvtx;
  // How it went.
  std::string problem;                      // what is wrong with a broken record
  std::optional<base::Error> fatal;         // what ends the reading of the file
  bool was_repaired = false;                // text that is not UTF-8
  UnknownCounts unknown;
};

class GraphRecordParser : private RecordFields {
 public:
  // `options` must outlive the parser.
  explicit GraphRecordParser(const ReadOptions& options) : RecordFields(scratch_, options) {}

  // Parses a line that holds a graph record, with `capacity` readable bytes from its start.
  GraphRecord parse(std::string_view line, std::size_t capacity, std::uint64_t line_offset);

 private:
  struct Launch {
    ir::KernelNode kernel;
    std::uint32_t first_word = 0, word_count = 0;  // into layout_
  };
  // What any node may state, whatever its kind; valid where `present` says so.
  struct NodeColumns {
    std::uint32_t present = 0;
    std::uint32_t stream = kNone, thread = 0, nvtx = kNone, stack = kNone, launch = kNone;
    std::uint64_t id = 0, sequence = 0, context = 0, hash = 0;
    std::int16_t device = -1;
    bool enabled = true;
  };

  bool read_record(std::string_view line, std::size_t capacity);
  // Writers put tables before the nodes that use them, and then one pass is enough. Else `out_of_order` is set and the tables are
  // read one by one, then the body.
  bool read_fields(od::object& object, bool tables_known, bool& out_of_order);
  bool read_tables(od::object& object);
  void clear();
  bool read_functions(value& v);
  bool read_launches(value& v);
  bool read_streams(value& v);
  bool read_nvtx(value& v);
  bool read_defaults(value& v);
  bool resolve_info();
  bool read_nodes(value& v);
  bool read_node(value& v);
  bool read_kernel_fast(const char* p, NodeColumns& node);
  bool add_kernel_fast(const NodeColumns& node);
  bool set_columns(ir::NodeId added, const NodeColumns& node);
  bool read_edges(value& v);
  bool read_sync_ops(value& v);
  bool read_params(value& v);
  bool check_word_size(const ir::ParamWord& word);
  bool function_at(const char* what, std::uint32_t index, ir::FunctionId& out);
  bool stream_at(const char* what, std::uint32_t index, ir::StreamId& out);

  ir::Recording scratch_;  // only its strings, stacks and NVTX stacks are used; they stay from record to record
  std::size_t known_strings_ = 1, known_stacks_ = 0, known_nvtx_ = 0;  // told with earlier records
  GraphRecord record_;
  std::optional<ir::GraphBuilder> builder_;
  InfoRefs refs_;
  std::vector<Launch> launches_;
  std::vector<ir::ParamWord> layout_, words_;
  std::vector<ir::NvtxId> nvtx_;
  std::vector<ir::StringId> nvtx_ranges_;
  std::vector<std::uint64_t> args_;
  std::vector<std::uint32_t> arg_allocations_;
  std::vector<ir::GraphId> bodies_;
  bool has_nodes_ = false, has_facts_ = false;
  struct Defaults {
    bool has_thread = false, has_device = false, has_context = false, has_stream = false;
    std::uint32_t thread = 0, stream = 0;
    std::int16_t device = -1;
    std::uint64_t context = 0;
  } defaults_;
};

// From the numbers of one parser to those of the recording. One per parser; records in file order.
class GraphTranslation {
 public:
  explicit GraphTranslation(ir::Recording& recording) : recording_(recording) {}

  // Adds what the record brings to the tables of the recording. For every record of the parser, broken ones included.
  void learn(const GraphRecord& record);
  [[nodiscard]] ir::StringId string(ir::StringId id) const {
    return id.is_valid() ? strings_[id.index()] : ir::StringId();
  }
  // Rewrites strings, stacks, NVTX, functions and streams of record.graph.
  void apply(GraphRecord& record, std::span<const ir::FunctionId> functions, std::span<const ir::StreamId> streams) const;

 private:
  ir::Recording& recording_;
  std::vector<ir::StringId> strings_{ir::kEmptyString};
  std::vector<ir::StackId> stacks_;
  std::vector<ir::NvtxId> nvtx_;
};

}  // namespace cglint::import::capture
