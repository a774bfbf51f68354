#include "import/nsys/nsys_importer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "import/common/timeline.h"
#include "import/nsys/database.h"
#include "import/nsys/table_scan.h"
#include "ir/graph_builder.h"

namespace cglint::import {
namespace {

using base::ErrorCode;
using base::make_error;
using ir::Fact;
using ir::NodeKind;
using nsys::Columns;
using nsys::Database;
using nsys::IntegerRow;
using nsys::Rows;
using nsys::ScanOptions;
using nsys::TableScan;

constexpr int kNewestKnownMajor = 3;
constexpr std::size_t kMaxRangesPerNode = 64;
constexpr std::int64_t kSmallStringIds = 1 << 20;
constexpr int kFirstOwn = 8;  // columns that all tables of operations share come before
constexpr std::string_view kRecapture = "recorded with --cuda-graph-trace=graph: re-capture with --cuda-graph-trace=node";

struct GraphTraceRow {
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t stream = 0;
  std::int32_t device = 0;
  std::uint64_t correlation = 0;
};

class NsysReader {
 public:
  NsysReader(Database& database, ir::Recording& recording, unsigned threads)
      : database_(database), recording_(recording), timeline_(recording) {
    scan_options_.threads = threads;
  }

  base::Result<void> read(const ReadOptions& options);

 private:
  base::Result<void> read_versions();
  base::Result<void> read_gpus();
  base::Result<void> read_processes();
  base::Result<void> prepare_strings();
  base::Result<void> read_launches();
  base::Result<std::string> condition_of_launches(std::span<const std::int64_t> launch_names);
  template <typename ShapeOf>
  base::Result<void> read_operations(std::string_view table, std::initializer_list<std::string_view> own, ShapeOf&& shape_of);
  base::Result<void> read_kernels();
  base::Result<void> read_copies(std::string_view table, NodeKind kind);
  base::Result<void> read_graph_trace();
  base::Result<void> read_node_context();
  base::Result<void> build_graph_mode(const ReadOptions& options);

  base::Result<Columns> columns(std::string_view table, std::vector<std::string_view> wanted) {
    auto present = database_.columns(table);
    if (!present) return std::move(present).error();
    if (!present->empty()) any_table_ = true;
    return Columns(table, *std::move(present), std::move(wanted));
  }
  // Empty, and noted as missing, if the id stands for no text.
  base::Result<ir::StringId> string(std::int64_t id);
  [[nodiscard]] bool is_missing(std::int64_t id) const { return !missing_strings_.empty() && missing_strings_.contains(id); }
  // The number of the process with this globalPid or globalTid (its upper 40 bits name it).
  std::uint32_t process_of(std::int64_t global);
  // Of an operation: exports without globalPid have one process, that of the launches.
  template <typename Row>
  std::uint32_t process_of_op(const Row& rows, int column) {
    if (rows.integer(column) == 0 && !recording_.processes.empty()) return 0;
    return process_of(rows.integer(column));
  }
  // The row's device and stream; one that is missing or unusable is counted.
  template <typename Row>
  std::uint32_t lane_of(const Row& rows, int device_column, int stream_column, std::uint32_t process);
  // CUPTI counts in 32 bits; anything else is counted and taken for none. NULL is none.
  template <typename Row>
  std::uint32_t correlation_of(const Row& rows, int column) {
    if (rows.is_null(column)) return 0;
    const std::int64_t id = rows.integer(column);
    if (rows.is_integer(column) && id >= 0 && id <= 0xffffffff) return static_cast<std::uint32_t>(id);
    ++bad_correlations_;
    return 0;
  }
  // Adds a row to the timeline; false if its times make no sense.
  bool add_op(std::int64_t start, std::int64_t end, bool has_times, TimelineOp op);

  Database& database_;
  ScanOptions scan_options_;
  ir::Recording& recording_;
  Timeline timeline_;
  bool any_table_ = false;
  std::optional<Rows> string_query_;
  std::unordered_map<std::int64_t, ir::StringId> strings_;
  std::unordered_set<std::int64_t> missing_strings_;
  std::vector<ir::StringId> small_strings_;  // of ids below kSmallStringIds, invalid: not looked up yet
  std::unordered_map<std::int64_t, std::uint32_t> processes_;
  std::pair<std::int64_t, std::uint32_t> last_process_{-1, 0};  // no key has its lower bits set
  std::uint64_t bad_rows_ = 0, unnamed_ = 0, without_device_ = 0, without_stream_ = 0, bad_correlations_ = 0, two_texts_ = 0;
  std::uint64_t without_correlation_ = 0, lost_launches_ = 0, unknown_calls_ = 0, timeless_launches_ = 0;
  std::uint64_t dangling_names_ = 0, bad_config_ = 0, bad_bytes_ = 0, bad_nodes_ = 0;
  bool any_correlation_ = false;  // some operation has one
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<GraphTraceRow>> graph_rows_;  // (process, exec) -> launches
  bool has_node_ops_ = false;
};

base::Result<void> NsysReader::read_versions() {
  for (const std::string_view table : {"META_DATA_EXPORT", "EXPORT_META_DATA"}) {
    auto present = columns(table, {"name", "value"});
    if (!present) return std::move(present).error();
    if (!present->has("name") || !present->has("value")) continue;
    CGLINT_TRY(database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
      if (row.text(0) != "EXPORT_SCHEMA_VERSION") return {};
      const std::string version(row.text(1).substr(0, 40));
      int major = 0;
      std::from_chars(version.data(), version.data() + version.size(), major);
      if (major > kNewestKnownMajor)
        recording_.add_loss(ir::Loss::Severity::info,
                            fmt::format("the export has schema {}, newer than any that is known here: read as far as its "
                                        "tables look familiar",
                                        version));
      return {};
    }));
  }
  return {};
}

base::Result<void> NsysReader::prepare_strings() {
  auto present = columns("StringIds", {"id", "value"});
  if (!present) return std::move(present).error();
  if (!present->has("id") || !present->has("value")) return {};
  // StringIds.id is the row id in every schema seen; without that, one pass fills the map.
  auto key = database_.query("SELECT pk, type FROM pragma_table_info('StringIds') WHERE name='id'");
  bool is_key = false;
  if (key) {
    auto more = key->next();
    is_key = more && *more && key->integer(0) == 1 && key->text(1) == "INTEGER";
  }
  if (is_key) {
    auto query = database_.query("SELECT \"value\" FROM \"StringIds\" WHERE \"id\" = ?1");
    if (!query) return std::move(query).error();
    string_query_.emplace(*std::move(query));
    return {};
  }
  return database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
    const auto [it, inserted] = strings_.emplace(row.integer(0), recording_.intern(row.text(1)));
    if (!inserted && recording_.text(it->second) != row.text(1)) ++two_texts_;
    return {};
  });
}

base::Result<ir::StringId> NsysReader::string(std::int64_t id) {
  const bool small = id >= 0 && id < kSmallStringIds;
  if (small && static_cast<std::size_t>(id) < small_strings_.size() && small_strings_[static_cast<std::size_t>(id)].is_valid())
    return small_strings_[static_cast<std::size_t>(id)];
  const auto it = strings_.find(id);
  ir::StringId text = ir::kEmptyString;
  bool found = it != strings_.end();
  if (found) {
    text = it->second;
  } else if (string_query_) {
    string_query_->bind(1, id);
    auto more = string_query_->next();
    if (!more) return std::move(more).error();
    found = *more;
    if (found) text = recording_.intern(string_query_->text(0));
    string_query_->reset();
  }
  if (!found) missing_strings_.insert(id);
  if (!small) {
    strings_.emplace(id, text);
  } else {
    if (static_cast<std::size_t>(id) >= small_strings_.size()) small_strings_.resize(static_cast<std::size_t>(id) + 1);
    small_strings_[static_cast<std::size_t>(id)] = text;
  }
  return text;
}

std::uint32_t NsysReader::process_of(std::int64_t global) {
  const std::int64_t key = global & ~std::int64_t{0xffffff};
  if (key == last_process_.first) return last_process_.second;
  const auto [it, inserted] = processes_.try_emplace(key, 0);
  if (inserted) {
    it->second = static_cast<std::uint32_t>(recording_.processes.size());
    ir::Process process;
    process.pid = (global >> 24) & 0xffffff;
    recording_.processes.push_back(std::move(process));
  }
  last_process_ = {key, it->second};
  return it->second;
}

bool NsysReader::add_op(std::int64_t start, std::int64_t end, bool has_times, TimelineOp op) {
  if (!has_times || end < start || start < std::numeric_limits<std::int64_t>::min() / 4 ||
      end > std::numeric_limits<std::int64_t>::max() / 4) {
    ++bad_rows_;
    return false;
  }
  op.start_ns = start;
  op.dur_ns = end - start;
  has_node_ops_ = has_node_ops_ || op.node != 0;
  timeline_.ops.push_back(op);
  return true;
}

std::uint32_t to_u32(std::int64_t value) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, 0, 0xffffffff));
}

template <typename Row>
std::uint32_t NsysReader::lane_of(const Row& rows, int device_column, int stream_column, std::uint32_t process) {
  Lane lane;
  lane.pid = process;
  lane.process = process;
  const std::int64_t device = rows.integer(device_column);
  if (!rows.is_integer(device_column) || device < 0 || device > std::numeric_limits<std::int32_t>::max()) {
    ++without_device_;
    lane.device = -1;
  } else {
    lane.device = static_cast<std::int32_t>(device);
  }
  const std::int64_t stream = rows.integer(stream_column);
  if (rows.is_integer(stream_column) && stream >= 0 && stream <= 0xffffffff) {
    lane.stream = static_cast<std::uint64_t>(stream);
  } else {
    ++without_stream_;
  }
  return timeline_.intern_lane(lane);
}

// SQL for the calls that are or may be graph launches: all but those with a name that is none's. Ids of names have few gaps, if any:
// comparing is quicker than looking up each call's.
base::Result<std::string> NsysReader::condition_of_launches(std::span<const std::int64_t> launch_names) {
  constexpr std::size_t kMostRanges = 12;
  struct Range {
    std::int64_t first, last;
  };
  std::vector<Range> others;  // ids of other names
  auto ids = database_.query("SELECT \"id\" FROM \"StringIds\" ORDER BY \"id\"");
  if (!ids) return std::move(ids).error();
  while (others.size() <= kMostRanges) {
    auto more = ids->next();
    if (!more) return std::move(more).error();
    if (!*more) break;
    const std::int64_t id = ids->integer(0);
    if (!ids->is_integer(0) || std::find(launch_names.begin(), launch_names.end(), id) != launch_names.end()) continue;
    if (!others.empty() && id <= others.back().last + 1) {
      others.back().last = id;
    } else {
      others.push_back({id, id});
    }
  }
  if (others.empty() || others.size() > kMostRanges)
    return fmt::format("\"nameId\" IN ({}) OR \"nameId\" IS NULL OR \"nameId\" NOT IN (SELECT \"id\" FROM \"StringIds\")", fmt::join(launch_names, ", "));
  std::sort(others.begin(), others.end(), [](const Range& a, const Range& b) { return a.last - a.first > b.last - b.first; });
  std::string condition;
  for (const Range& range : others)
    condition += fmt::format("{}\"nameId\" BETWEEN {} AND {}", condition.empty() ? "(" : " OR ", range.first, range.last);
  return condition + ") IS NOT TRUE";
}

base::Result<void> NsysReader::read_launches() {
  auto present = columns("CUPTI_ACTIVITY_KIND_RUNTIME", {"start", "end", "globalTid", "correlationId", "nameId"});
  if (!present) return std::move(present).error();
  if (!present->has_table() || !present->has("nameId") || !present->has("correlationId")) return {};
  timeline_.has_api_rows = true;
  // The names carry a version: cudaGraphLaunch_v10000.
  auto names = database_.query(
      "SELECT \"id\" FROM \"StringIds\" WHERE \"value\" GLOB 'cudaGraphLaunch*' OR \"value\" GLOB 'cuGraphLaunch*' LIMIT 64");
  if (!names) return {};  // no usable StringIds: no launch can be told from other calls
  std::vector<std::int64_t> ids;
  while (true) {
    auto more = names->next();
    if (!more) return std::move(more).error();
    if (!*more) break;
    ids.push_back(names->integer(0));
  }
  auto wanted = condition_of_launches(ids);
  if (!wanted) return std::move(wanted).error();
  TableScan calls(database_, *present, *wanted, scan_options_);
  return calls.each_row([&](const IntegerRow& row) -> base::Result<void> {
    if (std::find(ids.begin(), ids.end(), row.integer(4)) == ids.end()) {
      ++unknown_calls_;
      return {};
    }
    if (row.is_null(3)) {  // its operations cannot be found
      ++lost_launches_;
      return {};
    }
    TimelineLaunch launch;
    const std::uint32_t process = process_of(row.integer(2));
    if (!row.is_integer(0) || !row.is_integer(1) || row.integer(1) < row.integer(0)) ++timeless_launches_;
    launch.start_ns = row.integer(0);
    launch.dur_ns = std::max<std::int64_t>(0, row.integer(1) - launch.start_ns);
    launch.correlation = correlation_key(process, correlation_of(row, 3));
    launch.pid = (row.integer(2) >> 24) & 0xffffff;
    if (launch.correlation != 0) timeline_.launches.push_back(launch);
    return {};
  });
}

// Given, but as something that is no number of a size or an id.
bool is_none(const IntegerRow& row, int column) { return !row.is_null(column) && (!row.is_integer(column) || row.integer(column) < 0); }

// graphNodeId is graph << 32 | node; graphId has a column of its own since schema 3.24.
template <typename Row>
NodeKey node_of(const Row& rows, int node_column, int graph_column) {
  NodeKey node;
  node.node_id = static_cast<std::uint64_t>(std::max<std::int64_t>(rows.integer(node_column), 0));
  if (node.node_id == 0) return node;
  node.graph_id = to_u32(rows.integer(graph_column));
  if (node.graph_id == 0) node.graph_id = static_cast<std::uint32_t>(node.node_id >> 32);
  return node;
}

std::string_view copy_name(std::int64_t kind) {
  switch (kind) {
    case 1: return "Memcpy HtoD";
    case 2: return "Memcpy DtoH";
    case 3: return "Memcpy HtoA";
    case 4: return "Memcpy AtoH";
    case 5: return "Memcpy AtoA";
    case 6: return "Memcpy AtoD";
    case 7: return "Memcpy DtoA";
    case 8: return "Memcpy DtoD";
    case 9: return "Memcpy HtoH";
    case 10: return "Memcpy PtoP";
    default: return "Memcpy";
  }
}

// `own` are the table's columns that shape_of(row) reads, from kFirstOwn on.
template <typename ShapeOf>
base::Result<void> NsysReader::read_operations(std::string_view table, std::initializer_list<std::string_view> own, ShapeOf&& shape_of) {
  std::vector<std::string_view> wanted = {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "graphId"};
  CGLINT_CHECK(wanted.size() == std::size_t{kFirstOwn});
  wanted.insert(wanted.end(), own);
  auto present = columns(table, std::move(wanted));
  if (!present) return std::move(present).error();
  if (!present->has_table()) return {};
  TableScan scan(database_, *present, "", scan_options_);
  return scan.each_row([&](const IntegerRow& row) -> base::Result<void> {
    base::Result<OpShape> shape = shape_of(row);
    if (!shape) return std::move(shape).error();
    TimelineOp op;
    const std::uint32_t process = process_of_op(row, 5);
    op.correlation = correlation_of(row, 4);
    if (row.is_null(4)) ++without_correlation_;
    any_correlation_ = any_correlation_ || op.correlation != 0;
    if (is_none(row, 6) || is_none(row, 7)) ++bad_nodes_;
    op.node = timeline_.intern_node(node_of(row, 6, 7));
    op.shape = timeline_.intern_shape(*shape);
    op.lane = lane_of(row, 2, 3, process);
    add_op(row.integer(0), row.integer(1), row.is_integer(0) && row.is_integer(1), op);
    return {};
  });
}

base::Result<void> NsysReader::read_kernels() {
  return read_operations(
      "CUPTI_ACTIVITY_KIND_KERNEL",
      {"mangledName", "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory",
       "dynamicSharedMemory", "registersPerThread"},
      [&](const IntegerRow& row) -> base::Result<OpShape> {
        OpShape shape;
        bool dangles = false;
        for (const int column : {kFirstOwn, kFirstOwn + 1, kFirstOwn + 2}) {
          if (row.is_null(column)) continue;
          const bool is_id = row.is_integer(column);
          auto name = is_id ? string(row.integer(column)) : base::Result<ir::StringId>(ir::kEmptyString);
          if (!name) return std::move(name).error();
          shape.name = *name;
          dangles = dangles || !is_id || is_missing(row.integer(column));
          if (shape.name != ir::kEmptyString) break;
        }
        if (!shape.name.is_valid() || shape.name == ir::kEmptyString) {
          shape.name = ir::kEmptyString;
          ++unnamed_;
        } else if (dangles) {
          ++dangling_names_;
        }
        if (!row.are_u32(kFirstOwn + 3, kFirstOwn + 11)) ++bad_config_;
        const auto number = [&](int own) { return to_u32(row.integer(kFirstOwn + own)); };
        shape.grid = {number(3), number(4), number(5)};
        shape.block = {number(6), number(7), number(8)};
        shape.shared_bytes = number(9) + number(10);
        shape.registers = number(11);
        return shape;
      });
}

base::Result<void> NsysReader::read_copies(std::string_view table, NodeKind kind) {
  return read_operations(table, {"bytes", "copyKind"}, [&](const IntegerRow& row) -> base::Result<OpShape> {
    OpShape shape;
    shape.kind = kind;
    if (is_none(row, kFirstOwn) || is_none(row, kFirstOwn + 1)) ++bad_bytes_;
    shape.name = recording_.intern(kind == NodeKind::memset ? std::string_view("Memset") : copy_name(row.integer(kFirstOwn + 1)));
    shape.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(row.integer(kFirstOwn), 0));
    return shape;
  });
}

base::Result<void> NsysReader::read_graph_trace() {
  constexpr std::string_view kTable = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
  auto present = columns(kTable, {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId", "graphExecId"});
  if (!present) return std::move(present).error();
  if (!present->has_table()) return {};
  return database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
    GraphTraceRow launch;
    launch.start_ns = row.integer(0);
    launch.end_ns = row.integer(1);
    if (row.is_null(0) || row.is_null(1) || launch.end_ns < launch.start_ns) {
      ++bad_rows_;
      return {};
    }
    const std::uint32_t process = process_of_op(row, 5);
    launch.device = static_cast<std::int32_t>(std::min<std::uint32_t>(to_u32(row.integer(2)), 0x7fffffff));
    launch.stream = static_cast<std::uint64_t>(row.integer(3));
    launch.correlation = correlation_key(process, correlation_of(row, 4));
    const std::uint64_t graph = row.integer(7) != 0 ? to_u32(row.integer(7)) : to_u32(row.integer(6));
    graph_rows_[{process, graph}].push_back(launch);
    timeline_.whole_launches.push_back(launch.correlation);
    return {};
  });
}

// What was on the NVTX stack of the capturing thread when a node was created: the layer's name, often. The nodes of an
// executable graph are clones; originalGraphNodeId leads back to the node that the capture made.
base::Result<void> NsysReader::read_node_context() {
  struct Creation {
    std::uint64_t original = 0;
    std::int64_t thread = 0, time_ns = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Creation> creations;
  for (const std::string_view table : {"CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"}) {
    auto present = columns(table, {"start", "globalTid", "graphNodeId", "originalGraphNodeId"});
    if (!present) return std::move(present).error();
    if (!present->has("graphNodeId") || !present->has("globalTid")) continue;
    CGLINT_TRY(database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
      const auto node = static_cast<std::uint64_t>(row.integer(2));
      if (node != 0)
        creations.try_emplace({process_of(row.integer(1)), node},
                              Creation{static_cast<std::uint64_t>(row.integer(3)), row.integer(1), row.integer(0)});
      return {};
    }));
  }
  if (creations.empty()) return {};
  // The moments to look at, per thread, by time.
  struct Moment {
    std::int64_t time_ns = 0;
    std::vector<std::tuple<std::int64_t, std::int64_t, ir::StringId>> ranges;  // start, -end, text: outermost first
  };
  std::unordered_map<std::int64_t, std::vector<Moment>> moments;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::int64_t, std::int64_t>> root_of;  // node -> thread, time
  for (const auto& [key, creation] : creations) {
    const Creation* root = &creation;
    for (int level = 0; level < 32 && root->original != 0; ++level) {
      const auto up = creations.find({key.first, root->original});
      if (up == creations.end() || &up->second == root) break;
      root = &up->second;
    }
    root_of[key] = {root->thread, root->time_ns};
    moments[root->thread].push_back({root->time_ns, {}});
  }
  for (auto& [thread, list] : moments) {
    std::sort(list.begin(), list.end(), [](const Moment& a, const Moment& b) { return a.time_ns < b.time_ns; });
    list.erase(std::unique(list.begin(), list.end(),
                           [](const Moment& a, const Moment& b) { return a.time_ns == b.time_ns; }),
               list.end());
  }
  auto present = columns("NVTX_EVENTS", {"start", "end", "eventType", "text", "textId", "globalTid"});
  if (!present) return std::move(present).error();
  if (!present->has("start") || !present->has("end") || !present->has("globalTid")) return {};
  CGLINT_TRY(database_.each_row(present->select("\"eventType\" IN (59, 60)"), [&](const Rows& row) -> base::Result<void> {
    if (row.is_null(1)) return {};
    const auto it = moments.find(row.integer(5));
    if (it == moments.end()) return {};
    const std::int64_t start = row.integer(0), end = row.integer(1);
    auto moment = std::lower_bound(it->second.begin(), it->second.end(), start,
                                   [](const Moment& m, std::int64_t time) { return m.time_ns < time; });
    if (moment == it->second.end() || moment->time_ns > end) return {};
    ir::StringId text = ir::kEmptyString;
    if (!row.is_null(3)) {
      text = recording_.intern(row.text(3));
    } else if (!row.is_null(4)) {
      auto interned = string(row.integer(4));
      if (!interned) return std::move(interned).error();
      text = *interned;
    }
    if (text == ir::kEmptyString) return {};
    for (; moment != it->second.end() && moment->time_ns <= end; ++moment)
      if (moment->ranges.size() < kMaxRangesPerNode) moment->ranges.emplace_back(start, -end, text);
    return {};
  }));
  std::vector<ir::StringId> names;
  for (const auto& [key, root] : root_of) {
    auto& list = moments[root.first];
    const auto moment = std::lower_bound(list.begin(), list.end(), root.second,
                                         [](const Moment& m, std::int64_t time) { return m.time_ns < time; });
    if (moment == list.end() || moment->ranges.empty()) continue;
    std::sort(moment->ranges.begin(), moment->ranges.end());
    names.clear();
    for (const auto& [start, end, text] : moment->ranges) names.push_back(text);
    timeline_.node_nvtx[key] = recording_.intern_nvtx(names);
  }
  return {};
}

base::Result<void> NsysReader::read_gpus() {
  auto present = columns("TARGET_INFO_GPU", {"id", "name", "smCount", "computeMajor", "computeMinor", "totalMemory", "uuid"});
  if (!present) return std::move(present).error();
  if (!present->has_table()) return {};
  constexpr std::size_t kMaxGpus = 1024;
  std::vector<ir::Gpu> gpus;
  CGLINT_TRY(database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
    if (gpus.size() == kMaxGpus) return {};
    ir::Gpu gpu;
    gpu.device = static_cast<std::int32_t>(std::min<std::uint32_t>(to_u32(row.integer(0)), 0x7fffffff));
    gpu.name = recording_.intern(row.text(1));
    gpu.sm_count = to_u32(row.integer(2));
    gpu.compute_major = to_u32(row.integer(3));
    gpu.compute_minor = to_u32(row.integer(4));
    gpu.memory_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(row.integer(5), 0));
    gpu.uuid = recording_.intern(row.text(6));
    gpus.push_back(gpu);
    return {};
  }));
  for (ir::Process& process : recording_.processes) process.gpus = gpus;
  return {};
}

base::Result<void> NsysReader::read_processes() {
  auto present = columns("PROCESSES", {"globalPid", "name"});
  if (!present) return std::move(present).error();
  if (!present->has("globalPid") || !present->has("name")) return {};
  return database_.each_row(present->select(), [&](const Rows& row) -> base::Result<void> {
    const auto it = processes_.find(row.integer(0) & ~std::int64_t{0xffffff});
    if (it != processes_.end()) recording_.processes[ir::ProcessId(it->second)].command = recording_.intern(row.text(1));
    return {};
  });
}

// Graph mode has one row per launch and no nodes: the graphs are listed, and say what they cannot tell.
base::Result<void> NsysReader::build_graph_mode(const ReadOptions& options) {
  if (graph_rows_.empty()) return {};
  std::unordered_map<std::uint64_t, const TimelineLaunch*> launches;
  for (const TimelineLaunch& launch : timeline_.launches) launches.emplace(launch.correlation, &launch);
  for (auto& [key, rows] : graph_rows_) {
    std::sort(rows.begin(), rows.end(),
              [](const GraphTraceRow& a, const GraphTraceRow& b) { return a.start_ns < b.start_ns; });
    ir::GraphBuilder builder;
    ir::Graph& graph = builder.graph();
    for (const GraphTraceRow& row : rows) {
      ir::Replay replay;
      replay.correlation = row.correlation & ((std::uint64_t{1} << kCorrelationBits) - 1);
      if (const auto it = launches.find(row.correlation); it != launches.end()) {
        replay.host_start_ns = it->second->start_ns;
        replay.host_end_ns = it->second->start_ns + it->second->dur_ns;
      }
      replay.complete = false;
      replay.ops = {static_cast<std::uint32_t>(graph.replay_ops.size()), 1};
      ir::ReplayOp whole;  // the launch as a whole
      whole.start_ns = row.start_ns;
      whole.end_ns = row.end_ns;
      whole.stream = row.stream;
      whole.device = row.device;
      whole.kind = NodeKind::unknown;
      graph.replay_ops.push_back(whole);
      graph.replays.push_back(replay);
    }
    graph.info.process = ir::ProcessId(key.first);
    graph.info.source_id = key.second;
    graph.info.name = recording_.intern(fmt::format("graph {}", key.second));
    graph.info.instantiated = true;
    const ir::StringId reason = recording_.intern(kRecapture);
    for (const Fact fact : {Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::replay_streams, Fact::replay_times})
      graph.spoiled.push_back({fact, reason});
    auto built = builder.finish();
    if (!built) return std::move(built).error();
    const ir::GraphId id = recording_.graphs.push_back(*std::move(built));
    if (options.on_graph) options.on_graph(recording_, id);
  }
  recording_.has_timeline = true;
  recording_.add_loss(ir::Loss::Severity::data_loss,
                      fmt::format("graph launches without their nodes, {}", kRecapture), graph_rows_.size(),
                      ~std::uint64_t{0}, {Fact::nodes, Fact::replay_streams, Fact::replay_times});
  return {};
}

base::Result<void> NsysReader::read(const ReadOptions& options) {
  CGLINT_TRY(read_versions());
  CGLINT_TRY(prepare_strings());
  CGLINT_TRY(read_launches());
  CGLINT_TRY(read_kernels());
  CGLINT_TRY(read_copies("CUPTI_ACTIVITY_KIND_MEMCPY", NodeKind::memcpy));
  CGLINT_TRY(read_copies("CUPTI_ACTIVITY_KIND_MEMSET", NodeKind::memset));
  CGLINT_TRY(read_graph_trace());
  if (has_node_ops_) CGLINT_TRY(read_node_context());
  if (recording_.processes.empty()) recording_.processes.push_back(ir::Process());
  CGLINT_TRY(read_gpus());
  CGLINT_TRY(read_processes());
  if (!any_table_)
    return make_error(ErrorCode::foreign_format, "a SQLite database without any table of an Nsight Systems export");
  if (bad_rows_ != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "rows without usable times were left out", bad_rows_,
                        ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
  if (bad_rows_ != 0) timeline_.lost_anywhere = true;
  if (without_device_ != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "GPU operations without a device", without_device_,
                        ~std::uint64_t{0}, {Fact::replay_streams});
  if (without_stream_ != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "GPU operations without a stream", without_stream_,
                        ~std::uint64_t{0}, {Fact::replay_streams});
  if (bad_correlations_ != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "rows whose correlation id is no 32-bit number", bad_correlations_,
                        ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
    timeline_.lost_anywhere = true;
  }
  if (any_correlation_ && without_correlation_ != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "GPU operations without a correlation id, while others have one",
                        without_correlation_, ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
    timeline_.lost_anywhere = true;
  }
  if (lost_launches_ != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "graph launch calls without a correlation id were left out", lost_launches_,
                        ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
    timeline_.lost_anywhere = true;
  }
  if (two_texts_ != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "string ids that stand for two texts; the first was taken", two_texts_,
                        ~std::uint64_t{0}, {Fact::kernel_names});
  if (unknown_calls_ != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "calls whose name id stands for no text were left out: they may be graph launches",
                        unknown_calls_, ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
    timeline_.lost_anywhere = true;
  }
  if (timeless_launches_ != 0)
    recording_.add_loss(ir::Loss::Severity::info, "graph launch calls without usable times", timeless_launches_);
  // Operations of several launches are matched by what they are, so that these facts go as well.
  const auto doubt = [&](std::string_view what, std::uint64_t count, ir::FactSet facts) {
    if (count == 0) return;
    recording_.add_loss(ir::Loss::Severity::data_loss, what, count, ~std::uint64_t{0}, facts);
    for (int i = 0; i < ir::kFactCount; ++i)
      if (const auto fact = static_cast<Fact>(i); facts.contains(fact)) timeline_.spoiled.push_back({fact, recording_.intern(what)});
  };
  doubt("kernels without a usable name", unnamed_, {Fact::kernel_names});
  doubt("kernels one of whose name ids stands for no text; another one was taken", dangling_names_, {Fact::kernel_names});
  doubt("GPU operations whose launch configuration is none (grid, block, registers or shared memory)", bad_config_,
        {Fact::launch_config, Fact::node_identity});
  doubt("copies and fills whose kind or size is no number", bad_bytes_, {Fact::node_identity, Fact::replay_times});
  doubt("GPU operations whose graph or node id is none", bad_nodes_, {Fact::node_identity, Fact::replay_streams, Fact::replay_times});
  recording_.has_timeline = !timeline_.ops.empty();
  CGLINT_TRY(timeline_.build_graphs(options));
  return build_graph_mode(options);
}

class NsysImporter final : public Importer {
 public:
  [[nodiscard]] std::string_view name() const override { return "nsys-sqlite"; }
  [[nodiscard]] std::string_view description() const override {
    return "Nsight Systems reports exported to SQLite (nsys export --type sqlite), --cuda-graph-trace=node";
  }
  [[nodiscard]] ir::FactSet can_supply() const override {
    return {Fact::nodes,         Fact::kernel_names,   Fact::launch_config, Fact::nvtx,
            Fact::node_identity, Fact::replay_streams, Fact::replay_times};
  }
  [[nodiscard]] SniffResult sniff(std::string_view prefix) const override {
    if (!prefix.starts_with(std::string_view("SQLite format 3\0", 16))) return {};
    for (const std::string_view word : {"CUPTI_", "StringIds", "TARGET_INFO", "META_DATA", "NVTX_EVENTS", "ENUM_"})
      if (prefix.find(word) != std::string_view::npos) return {SniffResult::Match::yes, {}};
    return {SniffResult::Match::foreign, "a SQLite database that is no Nsight Systems export"};
  }
  [[nodiscard]] base::Result<ir::Recording> read(Source& source, const ReadOptions& options) const override {
    auto database = Database::open(source, options.limits);
    if (!database) return std::move(database).error();
    ir::Recording recording;
    NsysReader reader(**database, recording, options.threads);
    CGLINT_TRY(reader.read(options));
    return recording;
  }
};

}  // namespace

base::Result<void> check_database_is_whole(const std::string& path) { return nsys::check_files_beside(path); }

std::unique_ptr<Importer> make_nsys_importer() { return std::make_unique<NsysImporter>(); }

}  // namespace cglint::import
