#include "import/capture/capture_reader.h"

#include <fmt/format.h>
#include <simdjson.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "import/capture/graph_record.h"
#include "import/capture/line_reader.h"
#include "import/capture/parse_pool.h"
#include "import/capture/record_fields.h"
#include "import/common/node_runs.h"
#include "import/common/read_ahead.h"
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

using capture::is;
using capture::raw_text;
using capture::required;
namespace od = simdjson::ondemand;

constexpr unsigned kMajorVersion = 1;
constexpr std::size_t kMaxDetailedLosses = 16;  // further broken records are counted in one line
constexpr std::size_t kMaxLossRecords = 4096;   // further losses of the recorder are counted in one line
constexpr std::uint64_t kAloneBytes = std::uint64_t{1} << 20;  // read without further threads
constexpr std::size_t kQueuedBytes = std::size_t{16} << 20;    // of lines that wait; one line may be longer
constexpr std::size_t kQueuedLines = 1024;
constexpr std::size_t kSpareBuffers = 16;
constexpr unsigned kMaxThreads = 8;
constexpr std::size_t kMaxEqualTimes = 64;  // launches of one graph that begin at the same time and are compared
static_assert(LineReader::kPaddingBytes >= simdjson::SIMDJSON_PADDING);

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

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kHeaderStart = "{\"type\":\"header\"";

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

// Whether a recorder never writes the same line of this type twice in one recording. Graphs, instances and graph ends are told apart
// by their numbers; an exec line may say again what was known, and losses may happen again.
bool is_written_once(RecordType type) {
  switch (type) {
    case RecordType::process:
    case RecordType::allocations:
    case RecordType::allocator_blocks:
    case RecordType::replays:
    case RecordType::timing:
    case RecordType::access:
    case RecordType::loose_ops:
      return true;
    default:
      return false;
  }
}

class Reader : private capture::RecordFields {
 public:
  Reader(Source& source, const ReadOptions& options, unsigned threads)
      : RecordFields(recording_, options),
        lines_(source),
        source_(source),
        threads_(threads),
        graph_parser_(options),
        own_translation_(recording_) {}
  base::Result<ir::Recording> run();

 private:

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
    std::size_t checked_replays = 0;
    ir::StreamId origin_stream, failed_stream;
    ir::StackId failed_stack;
    FactSet lost;  // by broken records that named this graph
  };
  struct PendingParent {
    GraphId body;
    std::uint32_t parent_node;
  };
  // --- records ---
  base::Result<void> read_line(const LineReader::Line& line);
  base::Result<void> read_joined_line(const LineReader::Line& line, std::size_t header);
  bool read_record(const LineReader::Line& line);
  bool may_stand_here();
  bool is_for_pool(const LineReader::Line& line);
  void enqueue(const LineReader::Line& line);
  base::Result<void> read_queued();
  bool read_header(od::object& object);
  bool read_process(od::object& object);
  bool read_allocations(od::object& object);
  bool read_allocator_blocks(od::object& object);
  bool add_graph(capture::GraphRecord& record, capture::GraphTranslation& translation);
  std::uint64_t resolve_allocations(ir::Graph& graph, std::uint32_t process);
  std::uint64_t resolve_bodies(ir::Graph& graph);
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
  auto graph_number(std::uint32_t& number) {  // of a record of data: where it is broken, only that graph is in doubt
    return required(capture::Item{"graph", [this, &number](value& v) {
                                    return get_index(v, "graph", number) && (record_graph_ = number, true);
                                  }});
  }
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
  void look_for_repeated_replays(GraphId id);
  void check_nodes(ir::Graph& graph, std::vector<ir::ReplayOp>& ops, std::vector<ir::Replay>& replays);
  static std::int64_t replay_time(const ir::Graph& graph, const ir::Replay& replay) {
    return replay.ops.count != 0 ? graph.replay_ops[replay.ops.first].start_ns : replay.host_start_ns;
  }
  void hand_over(GraphId id);
  void close_segment(bool header_follows);
  void report_counts();
  void note_repair();

  LineReader lines_;
  Source& source_;
  ir::Recording recording_;
  std::optional<Error> fatal_;

  // Graph records are parsed ahead by threads; every line waits in this queue for its turn.
  struct Queued {
    capture::ParsePool::Job job;  // the line; parsed only if it is a graph record
    bool terminated = true;
    bool in_pool = false;
  };
  const unsigned threads_;
  capture::GraphRecordParser graph_parser_;        // for the short beginning and for odd lines
  capture::GraphTranslation own_translation_;
  std::deque<capture::GraphTranslation> translations_;  // one per thread
  std::deque<std::unique_ptr<Queued>> queue_;
  std::size_t queued_bytes_ = 0;
  std::vector<capture::PaddedLine> spare_;
  std::unique_ptr<capture::ParsePool> pool_;       // behind the jobs: it stops first
  capture::ParsePool::Job* parsed_ = nullptr;      // of the line being read, if a thread parsed it

  // Of the line being read.
  std::uint64_t line_number_ = 0;
  RecordType type_ = RecordType::unknown;
  std::uint32_t record_graph_ = kNone;
  bool is_repeated_ = false;

  // Of the segment.
  bool in_segment_ = false;
  bool segment_ended_ = false;
  std::uint64_t segment_records_ = 0;       // without repeated lines
  std::unordered_set<std::uint64_t> lines_seen_;  // hashes of lines that are written once
  std::unordered_map<std::uint32_t, ir::ProcessId> processes_;
  std::unordered_map<std::uint32_t, capture::IdMap> allocations_;  // by process number, kNone included
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
  std::uint64_t broken_records_ = 0;
  std::size_t loss_records_ = 0;
  std::uint64_t next_progress_ = 0;

  // Scratch of graph records.
  std::vector<ir::FunctionId> functions_;
  std::vector<ir::StreamId> capture_streams_;
  std::vector<std::pair<std::uint32_t, GraphId>> body_uses_;  // node, body
  std::vector<std::uint32_t> op_of_node_;  // of the replay being looked at: its last operation; kNone between replays
};

// --- lines
// ----------------------------------------------------------------------------------------------------------------

base::Result<ir::Recording> Reader::run() {
  std::optional<Error> read_error;  // of the lines behind those in `queue_`
  bool ended = false;
  while (true) {
    // Read ahead, so that the threads have something to parse; then deal with the oldest line.
    while (!ended && (queue_.empty() || (queued_bytes_ < kQueuedBytes && queue_.size() < kQueuedLines))) {
      auto next = lines_.next();
      if (!next) read_error = std::move(next).error();
      if (!next || !next->has_value()) {
        ended = true;
        break;
      }
      const LineReader::Line& line = **next;
      if (queue_.empty() && !is_for_pool(line)) {
        CGLINT_TRY(read_line(line));
      } else {
        enqueue(line);
      }
      if (options_.on_progress && source_.consumed_bytes() >= next_progress_) {
        options_.on_progress(source_.consumed_bytes(), source_.total_bytes());
        next_progress_ = source_.consumed_bytes() + (std::uint64_t{4} << 20);
      }
    }
    if (queue_.empty()) break;
    CGLINT_TRY(read_queued());
  }
  if (read_error) return *std::move(read_error);
  if (const std::optional<Error>& stop = lines_.stopped_by()) {
    if (!in_segment_) return *stop;
    if (source_.torn()) {
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
  close_segment(false);
  report_counts();
  recording_.loose_ops.sort_by_start();
  recording_.has_timeline = timeline_ || !recording_.loose_ops.empty();
  recording_.file = source_.name();
  recording_.format = "capture";
  if (options_.on_progress) options_.on_progress(source_.consumed_bytes(), source_.total_bytes());
  return std::move(recording_);
}

// Graph records behind the first MiB: threads are not worth their start for less.
bool Reader::is_for_pool(const LineReader::Line& line) {
  constexpr std::string_view kStart = "{\"type\":\"graph\",";
  if (threads_ == 0 || line.offset_bytes < kAloneBytes || !line.text.starts_with(kStart)) return false;
  if (pool_ == nullptr) {
    pool_ = std::make_unique<capture::ParsePool>(options_, threads_);
    for (unsigned i = 0; i < threads_; ++i) translations_.emplace_back(recording_);
  }
  return true;
}

void Reader::enqueue(const LineReader::Line& line) {
  auto item = std::make_unique<Queued>();
  item->terminated = line.terminated;
  if (!spare_.empty()) {
    item->job.text = std::move(spare_.back());
    spare_.pop_back();
  }
  item->job.text.assign(line.text, LineReader::kPaddingBytes);
  item->job.offset_bytes = line.offset_bytes;
  queued_bytes_ += line.text.size();
  item->in_pool = is_for_pool(line);
  queue_.push_back(std::move(item));
  if (queue_.back()->in_pool) pool_->submit(queue_.back()->job);
}

base::Result<void> Reader::read_queued() {
  Queued& item = *queue_.front();
  const LineReader::Line line{item.job.text.view(), item.job.offset_bytes, item.terminated};
  if (item.in_pool) {
    pool_->wait(item.job);
    parsed_ = &item.job;
  }
  auto outcome = read_line(line);
  parsed_ = nullptr;
  queued_bytes_ -= item.job.text.view().size();
  if (item.job.text.capacity() <= kQueuedBytes && spare_.size() < kSpareBuffers) spare_.push_back(std::move(item.job.text));
  queue_.pop_front();
  return outcome;
}

base::Result<void> Reader::read_line(const LineReader::Line& line) {
  line_offset_ = line.offset_bytes;
  ++line_number_;
  if (line.text.starts_with(kByteOrderMark) &&
      (line.offset_bytes == 0 || line.text.substr(kByteOrderMark.size()).starts_with(kHeaderStart))) {
    LineReader::Line behind = line;
    behind.text.remove_prefix(kByteOrderMark.size());
    behind.offset_bytes += kByteOrderMark.size();
    --line_number_;
    return read_line(behind);
  }
  if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) return {};
  problem_.clear();
  type_ = RecordType::unknown;
  record_graph_ = kNone;
  is_repeated_ = false;
  const bool good = read_record(line);
  if (fatal_) return *fatal_;
  if (!good)
    if (const std::size_t header = line.text.find(kHeaderStart, 1); header != std::string_view::npos) return read_joined_line(line, header);
  if ((good && !is_repeated_) || (!good && line.terminated)) ++segment_records_;
  if (good) return {};
  if (!line.terminated) {
    // A whole record without its newline would have been read; this one was being written when the recorder
    // stopped.
    if (!in_segment_)
      return make_error(ErrorCode::malformed, "the file is cut short inside its header", line.offset_bytes);
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

// Files that were joined although the first did not end with a newline: its last line and the header of the next are one line. Quotes
// inside a record's texts are escaped, so that a header that is found inside a broken line begins there.
base::Result<void> Reader::read_joined_line(const LineReader::Line& line, std::size_t header) {
  parsed_ = nullptr;
  std::size_t end = header;
  if (line.text.substr(0, end).ends_with(kByteOrderMark)) end -= kByteOrderMark.size();
  --line_number_;
  CGLINT_TRY(read_line({line.text.substr(0, end), line.offset_bytes, false}));
  --line_number_;
  return read_line({line.text.substr(header), line.offset_bytes + header, line.terminated});
}

bool Reader::read_record(const LineReader::Line& line) {
  if (parsed_ != nullptr) {
    type_ = RecordType::graph;
    return add_graph(parsed_->record, translations_[parsed_->parser]);
  }
  const std::size_t capacity = line.text.size() + LineReader::kPaddingBytes;
  od::object object;
  if (!open_record(line.text, capacity, object)) {
    if (was_repaired_) note_repair();
    return false;
  }
  value v;
  const char* raw = nullptr;
  if (object.find_field_unordered("type").get(v) != simdjson::SUCCESS) return wrong("the record has no type");
  if (!get_raw(v, "type", raw)) return false;
  type_ = record_type(raw);
  if (type_ == RecordType::graph) {  // whose parser opens it again
    capture::GraphRecord record = graph_parser_.parse(line.text, capacity, line_offset_);
    return add_graph(record, own_translation_);
  }
  if (was_repaired_) note_repair();
  if (type_ == RecordType::unknown) {
    if (!in_segment_) return wrong("the record type is unknown");
    recording_.add_loss(
        ir::Loss::Severity::data_loss,
        fmt::format("records of a type that this version does not know were skipped (\"{}\")",
                    loss_records_++ < kMaxDetailedLosses ? raw_text(raw) : "..."),
        1, line_offset_);
    return true;
  }
  if (!may_stand_here()) return false;
  if (is_written_once(type_) && !lines_seen_.insert(XXH3_64bits(line.text.data(), line.text.size())).second) {
    is_repeated_ = true;
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        fmt::format("{} records that are in the file twice were left out once",
                                    kRecordNames[static_cast<std::size_t>(type_)]),
                        1, line_offset_, facts_of(type_));
    segment_lost_ = segment_lost_.unite(facts_of(type_));
    return true;
  }
  bool rewound = false;
  if (object.reset().get(rewound) != simdjson::SUCCESS) return wrong("the record cannot be read twice");
  switch (type_) {
    case RecordType::header: return read_header(object);
    case RecordType::process: return read_process(object);
    case RecordType::allocations: return read_allocations(object);
    case RecordType::allocator_blocks: return read_allocator_blocks(object);
    case RecordType::instance: return read_instance(object);
    case RecordType::replays: return read_replays(object);
    case RecordType::timing: return read_timing(object);
    case RecordType::access: return read_access(object);
    case RecordType::exec: return read_exec(object);
    case RecordType::graph_end: return read_graph_end(object);
    case RecordType::loose_ops: return read_loose_ops(object);
    case RecordType::loss: return read_loss(object);
    case RecordType::end: return read_end(object);
    case RecordType::graph:
    case RecordType::unknown: break;
  }
  return false;
}

// A record of this type, at this place.
bool Reader::may_stand_here() {
  if (!in_segment_ && type_ != RecordType::header)
    return wrong(fmt::format("its type is \"{}\"", kRecordNames[static_cast<std::size_t>(type_)]));
  return !segment_ended_ || type_ == RecordType::header || wrong("it comes after the end record");
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
  spoil(graph, state.lost.unite(segment_lost_), "records of this kind were broken, lost or repeated");
  sort_replays(id);
  look_for_repeated_replays(id);
}

void Reader::sort_replays(GraphId id) {
  if (!states_[id.index()].replays_unsorted) return;
  ir::Graph& graph = *recording_.graphs[id];
  std::stable_sort(graph.replays.begin(), graph.replays.end(), [&](const ir::Replay& a, const ir::Replay& b) {
    return replay_time(graph, a) < replay_time(graph, b);
  });
  states_[id.index()].replays_unsorted = false;
}

bool has_same_ops(const ir::Graph& graph, const ir::Replay& a, const ir::Replay& b) {
  if (a.ops.count != b.ops.count) return false;
  for (std::uint32_t i = 0; i < a.ops.count; ++i) {
    const ir::ReplayOp x = graph.replay_ops[a.ops.first + i], y = graph.replay_ops[b.ops.first + i];
    if (x.node != y.node || x.start_ns != y.start_ns || x.end_ns != y.end_ns || x.stream != y.stream || x.device != y.device) return false;
  }
  return true;
}

// A launch that is given twice has the same call and the same time; where calls are not known, the same operations. The second is left out.
void Reader::look_for_repeated_replays(GraphId id) {
  GraphState& state = states_[id.index()];
  ir::Graph& graph = *recording_.graphs[id];
  const std::size_t count = graph.replays.size();
  if (std::exchange(state.checked_replays, count) == count) return;
  std::vector<ir::Replay>& replays = graph.replays.raw();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const ir::Replay replay = replays[i];
    bool is_repeated = false;
    for (std::size_t before = kept; before-- > 0 && !is_repeated;) {
      const ir::Replay& other = replays[before];
      if (kept - before > kMaxEqualTimes || replay_time(graph, other) != replay_time(graph, replay)) break;
      is_repeated = other.correlation == replay.correlation && other.instance == replay.instance && other.ops.count != 0 && replay.ops.count != 0 &&
                    (replay.correlation != 0 || has_same_ops(graph, other, replay));
    }
    if (!is_repeated) replays[kept++] = replay;
  }
  const std::uint64_t repeated = count - kept;
  replays.resize(kept);
  state.checked_replays = kept;
  if (repeated == 0) return;
  constexpr FactSet kFacts = {Fact::replay_streams, Fact::replay_times};
  constexpr std::string_view kWhat = "graph launches are in the file twice";
  recording_.add_loss(ir::Loss::Severity::data_loss, kWhat, repeated, line_offset_, kFacts);
  spoil(graph, kFacts, kWhat);
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

void Reader::close_segment(bool header_follows) {
  if (!in_segment_) return;
  if (!segment_ended_) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        header_follows ? "a header stands where the recording before it has no end record: its recorder was stopped, its end is "
                                         "lost, or the header is repeated"
                                       : "the recording has no end record: the recorder was stopped, or the file is cut short",
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
    if (alive(id) == nullptr) continue;
    sort_replays(id);
    look_for_repeated_replays(id);
  }
  for (const auto& [number, bodies] : pending_parents_)
    recording_.add_loss(ir::Loss::Severity::data_loss, "a graph that runs a recorded body is missing",
                        bodies.size());
  in_segment_ = false;
  segment_ended_ = false;
  segment_records_ = 0;
  lines_seen_.clear();
  processes_.clear();
  allocations_.clear();
  slots_.clear();
  use_of_.clear();
  pending_parents_.clear();
  segment_first_graph_ = states_.size();
  segment_lost_ = {};
}

void Reader::report_counts() {
  if (const auto& cases = unknown_.properties; cases.count != 0)
    recording_.add_loss(
        ir::Loss::Severity::info,
        fmt::format("properties that this version does not know were ignored (the first: \"{}\")", cases.first),
        cases.count, cases.first_offset);
  if (const auto& cases = unknown_.values; cases.count != 0)
    recording_.add_loss(
        ir::Loss::Severity::info,
        fmt::format("values that this version does not know were taken as unknown (the first: {})", cases.first),
        cases.count, cases.first_offset);
}

void Reader::note_repair() {
  recording_.add_loss(ir::Loss::Severity::info, "text that is not UTF-8 was repaired", 1, line_offset_);
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
  std::string_view format, version;
  bool timeline = false;
  if (!read_record_object(object, ignored("type"), ignored("producer"), ignored("created_unix_s"),
                          view("format", format), view("version", version), flag("timeline", timeline)))
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
  close_segment(true);
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
    if (!read_object(item, "a GPU", required(this->number("device", gpu.device)), text("name", gpu.name),
                     text("uuid", gpu.uuid),
                     tuple<2>("compute_capability", this->number("compute_capability", gpu.compute_major),
                              this->number("compute_capability", gpu.compute_minor)),
                     this->number("sm_count", gpu.sm_count), this->number("memory_bytes", gpu.memory_bytes),
                     flag("amd", gpu.is_amd)))
      return false;
    process.gpus.push_back(gpu);
    return true;
  };
  const auto read_environment = [&](value& v) {
    process.environment.clear();
    od::object variables;
    if (v.get_object().get(variables) != simdjson::SUCCESS) return wrong_type("environment", "an object");
    for (auto field : variables) {
      std::string_view name;
      if (field.unescaped_key().get(name) != simdjson::SUCCESS) return wrong("environment is broken");
      const ir::StringId name_id = recording_.strings.intern(name);
      ir::StringId content;
      value entry;
      if (field.value().get(entry) != simdjson::SUCCESS) return wrong("environment is broken");
      if (!get_text(entry, "an environment variable", content)) return false;
      process.environment.emplace_back(name_id, content);
    }
    return true;
  };
  if (!read_record_object(object, ignored("type"), ignored("process"), this->number("pid", process.pid),
                          this->number("rank", process.rank), this->number("world_size", process.world_size),
                          text("host", process.host), text("command", process.command),
                          this->number("driver_version", process.driver_version),
                          text("driver_release", process.driver_release),
                          this->number("runtime_version", process.runtime_version),
                          this->number("cupti_version", process.cupti_version), text("framework", process.framework),
                          text("framework_version", process.framework_version),
                          capture::Item{"gpus",
                                        [&](value& v) {
                                          process.gpus.clear();
                                          return for_each(v, "gpus", read_gpu);
                                        }},
                          capture::Item{"environment", read_environment}))
    return false;
  if (known != processes_.end()) {
    recording_.processes[known->second] = std::move(process);
  } else {
    processes_.emplace(number, recording_.processes.push_back(std::move(process)));
  }
  return true;
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
  frames_.clear();
  stacks_.clear();
  const auto read_entry = [&](value& item) {
    Entry entry;
    ir::Allocation& a = entry.allocation;
    a.pool = ir::kEmptyString;
    if (!read_object(item, "an allocation", required(index("id", entry.id)), required(hex("base", a.base)),
                     required(number("size_bytes", a.size_bytes)), word("kind", kKinds, a.kind),
                     number("device", a.device), number("alloc_sequence", a.alloc_sequence),
                     number("free_sequence", a.free_sequence), index("alloc_stack", entry.alloc_stack),
                     index("free_stack", entry.free_stack), text("pool", a.pool)))
      return false;
    entries.push_back(entry);
    return true;
  };
  if (!read_record_object(object, ignored("type"), index("process", process),
                          capture::Item{"frames", [&](value& v) { return read_frames(v); }},
                          capture::Item{"stacks", [&](value& v) { return read_stacks(v); }}, list("allocations", read_entry)))
    return false;
  for (Entry& entry : entries)
    if (!look_up("an allocation", "stack", stacks_, entry.alloc_stack, entry.allocation.alloc_stack) ||
        !look_up("an allocation", "stack", stacks_, entry.free_stack, entry.allocation.free_stack))
      return false;
  capture::IdMap& ids = allocations_[process];
  // Words of graphs that were read already hold their offsets from the base.
  std::unordered_map<std::uint32_t, std::uint64_t> bases;
  for (const Entry& entry : entries) {
    const std::uint32_t known = ids.find(entry.id);
    const std::uint64_t first = known != kNone ? recording_.allocations[ir::AllocationId(known)].base : entry.allocation.base;
    const std::uint64_t base = bases.try_emplace(entry.id, first).first->second;
    if (base != entry.allocation.base) return wrong(fmt::format("allocation {} has another base than before", entry.id));
  }
  const ir::ProcessId process_id = process_of(process);
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
  const auto read_block = [&](value& item) {
    ir::AllocatorBlock block;
    block.pool = ir::kEmptyString;
    int state = -1;
    if (!read_object(item, "a block", required(hex("base", block.base)),
                     required(number("size_bytes", block.size_bytes)), required(word("state", kStates, state)),
                     text("pool", block.pool), hex("stream", block.stream), number("alloc_sequence", block.alloc_sequence)))
      return false;
    if (state < 0) return wrong("a block's state is unknown");
    block.state = static_cast<ir::AllocatorBlock::State>(state);
    blocks.push_back(block);
    return true;
  };
  if (!read_record_object(object, ignored("type"), index("process", process), number("sequence", sequence),
                          list("blocks", read_block)))
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

// What a parsed graph record means in this file.
bool Reader::add_graph(capture::GraphRecord& record, capture::GraphTranslation& translation) {
  translation.learn(record);  // whatever becomes of the record: later ones build on it
  if (!may_stand_here()) return false;
  record_graph_ = record.number;
  unknown_.add(record.unknown);
  if (record.was_repaired) note_repair();
  if (record.fatal) return fatal_ = std::move(record.fatal), false;
  if (record.graph == nullptr) return wrong(std::move(record.problem));
  if (slots_.contains(record.number)) return wrong(fmt::format("graph {} was already recorded", record.number));
  const ir::ProcessId process = process_of(record.process);
  functions_.clear();
  for (ir::Function& function : record.functions) {
    function.name = translation.string(function.name);
    for (ir::Function::Param& param : function.params) param.type_name = translation.string(param.type_name);
    functions_.push_back(intern(std::move(function)));
  }
  capture_streams_.clear();
  for (ir::Stream& stream : record.streams) {
    stream.name = translation.string(stream.name);
    capture_streams_.push_back(intern(process, stream));
  }
  translation.apply(record, functions_, capture_streams_);
  record.graph->info.process = process;
  const std::uint64_t missing_allocations = resolve_allocations(*record.graph, record.process);
  const std::uint64_t missing_bodies = resolve_bodies(*record.graph);
  if (record.duplicate_edges != 0)
    recording_.add_loss(ir::Loss::Severity::info, "repeated edges were merged", record.duplicate_edges, line_offset_);

  const GraphId id = recording_.graphs.push_back(std::move(record.graph));
  ir::Graph& graph = *recording_.graphs[id];
  GraphState state;
  state.nodes = graph.node_count();
  state.origin_stream = graph.info.origin_stream;
  state.failed_stream = graph.info.failed_stream;
  state.failed_stack = graph.info.failed_stack;
  states_.push_back(state);
  slots_.emplace(record.number, Slot{id, 0});
  if (missing_allocations != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "parameters name allocations that the file does not contain", missing_allocations,
                        line_offset_, {Fact::allocations});
    spoil(graph, {Fact::allocations},
          "some of the allocations that the graph uses are missing from the file");
  }
  if (record.may_lack_allocations)
    spoil(graph, {Fact::allocations},
          "a kernel has a property that this version does not know and none that tells the allocations of its arguments");
  if (missing_bodies != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "nodes run graphs that the file does not contain before them", missing_bodies,
                        line_offset_);
  const auto adopt = [&](GraphId body, std::uint32_t node) {
    ir::Graph* const child = alive(body);
    if (child == nullptr || child->info.parent.is_valid() || body == id) return;
    child->info.parent = id;
    if (node < graph.node_count()) child->info.parent_node = NodeId(node);
  };
  if (const auto pending = pending_parents_.find(record.number); pending != pending_parents_.end()) {
    for (const PendingParent& entry : pending->second) adopt(entry.body, entry.parent_node);
    pending_parents_.erase(pending);
  }
  for (const auto& [node, body] : body_uses_) adopt(body, node);
  if (record.parent != kNone) {
    const auto parent = slots_.find(record.parent);
    if (parent == slots_.end() || parent->second.graph == id) {
      pending_parents_[record.parent].push_back({id, record.parent_node});
    } else {
      graph.info.parent = parent->second.graph;
      if (record.parent_node < states_[parent->second.graph.index()].nodes)
        graph.info.parent_node = NodeId(record.parent_node);
    }
  }
  return true;
}

// Turns the file's numbers of allocations into ids; returns how many the file does not have.
std::uint64_t Reader::resolve_allocations(ir::Graph& graph, std::uint32_t process) {
  const auto of_process = allocations_.find(process);
  const capture::IdMap* const known = of_process == allocations_.end() ? nullptr : &of_process->second;
  std::uint64_t missing = 0;
  const auto resolve = [&](ir::AllocationId& id) {
    if (!id.is_valid()) return;
    id = ir::AllocationId(known == nullptr ? kNone : known->find(id.index()));
    if (!id.is_valid()) ++missing;
  };
  for (ir::ParamWord& word : graph.params) {
    if (!word.allocation.is_valid()) continue;
    resolve(word.allocation);
    if (word.allocation.is_valid()) word.allocation_offset = word.value - recording_.allocations[word.allocation].base;
  }
  for (ir::MemcpyNode& copy : graph.memcpys) {
    resolve(copy.src_allocation);
    resolve(copy.dst_allocation);
  }
  for (ir::MemsetNode& fill : graph.memsets) resolve(fill.dst_allocation);
  for (ir::AllocNode& alloc : graph.allocs) resolve(alloc.allocation);
  return missing;
}

// The same for the graphs that child graph and conditional nodes run; notes who runs what in body_uses_.
std::uint64_t Reader::resolve_bodies(ir::Graph& graph) {
  body_uses_.clear();
  std::uint64_t missing = 0;
  const auto resolve = [&](GraphId& body, NodeId node) {
    if (!body.is_valid()) return;
    const auto slot = slots_.find(body.index());
    body = slot == slots_.end() ? GraphId() : slot->second.graph;
    if (body.is_valid())
      body_uses_.emplace_back(node.index(), body);
    else
      ++missing;
  };
  if (graph.child_graphs.empty() && graph.conditionals.empty()) return 0;
  for (const NodeId node : graph.nodes()) {
    if (graph.kind[node] == NodeKind::child_graph && graph.side[node] < graph.child_graphs.size())
      resolve(graph.child_graphs[graph.side[node]].body, node);
    if (graph.kind[node] == NodeKind::conditional && graph.side[node] < graph.conditionals.size()) {
      const ir::Range bodies = graph.conditionals[graph.side[node]].bodies;
      for (std::uint32_t i = 0; i < bodies.count; ++i) resolve(graph.bodies[bodies.first + i], node);
    }
  }
  return missing;
}

bool Reader::read_instance(od::object& object) {
  std::uint32_t number = kNone, of = kNone, process = kNone;
  ir::GraphInfo info;
  InfoRefs refs;
  if (!read_record_object(object, ignored("type"), required(index("graph", number)), required(index("of", of)),
                          index("process", process),
                          capture::Item{"info", [&](value& v) { return read_info(v, info, refs); }}))
    return false;
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
  const auto read_op = [&](value& item) {
    ir::ReplayOp op;
    std::uint32_t node = kNone;
    std::uint8_t kind_known = 0;
    if (!read_tuple<5>(item, "an operation", index_or_none("an operation's node", node),
                       this->number("an operation's device", op.device),
                       this->number("an operation's stream", op.stream),
                       this->number("an operation's start", op.start_ns), this->number("an operation's end", op.end_ns),
                       capture::Item{"kind", [&](value& v) { return kind_known = 1, get_kind(v, op.kind); }}))
      return false;
    if (op.end_ns < op.start_ns) return wrong("an operation ends before it begins");
    if (node != kNone) op.node = NodeId(node);
    ops.push_back(op);
    has_kind.push_back(kind_known);
    return true;
  };
  const auto read_replay = [&](value& item) {
    ir::Replay replay;
    replay.ops.first = static_cast<std::uint32_t>(ops.size());
    if (!read_object(item, "a replay", this->number("correlation", replay.correlation),
                     tuple<2>("host_ns", this->number("host_ns", replay.host_start_ns),
                              this->number("host_ns", replay.host_end_ns)),
                     capture::Item{"launch_stream",
                                   [&](value& v) {
                                     replay.has_launch_stream = true;
                                     return get_number(v, "launch_stream", replay.launch_stream);
                                   }},
                     flag("complete", replay.complete), required(list("ops", read_op))))
      return false;
    replay.ops.count = static_cast<std::uint32_t>(ops.size()) - replay.ops.first;
    replays.push_back(replay);
    return true;
  };
  if (!read_record_object(object, ignored("type"), graph_number(number), ns_text("base_ns", base),
                          required(list("replays", read_replay))))
    return false;
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
  const auto without_device = static_cast<std::uint64_t>(std::count_if(
      ops.begin(), ops.end(), [](const ir::ReplayOp& op) { return op.device < 0 && ir::is_activity(op.kind); }));
  if (without_device != 0 && graph->facts.contains(Fact::replay_streams)) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "GPU operations without a device", without_device, line_offset_,
                        {Fact::replay_streams});
    spoil(*graph, {Fact::replay_streams}, "some GPU operations have no device");
  }
  const auto first = static_cast<std::uint32_t>(graph->replay_ops.size());
  const auto by_start = [](const ir::ReplayOp& a, const ir::ReplayOp& b) { return a.start_ns < b.start_ns; };
  for (ir::Replay& replay : replays) {
    if (replay.host_start_ns != 0 || replay.host_end_ns != 0)
      if (!shift(replay.host_start_ns) || !shift(replay.host_end_ns)) return false;
    const auto begin = ops.begin() + replay.ops.first;
    const auto end = begin + replay.ops.count;
    if (!std::is_sorted(begin, end, by_start)) std::stable_sort(begin, end, by_start);
    replay.instance = slot.instance;
  }
  check_nodes(*graph, ops, replays);
  for (ir::Replay& replay : replays) replay.ops.first += first;
  for (const ir::ReplayOp& op : ops) graph->replay_ops.push_back(op);
  timeline_ = true;
  for (const ir::Replay& replay : replays) {
    if (!graph->replays.empty() &&
        replay_time(*graph, replay) < replay_time(*graph, graph->replays.raw().back()))
      states_[slot.graph.index()].replays_unsorted = true;
    graph->replays.push_back(replay);
  }
  return true;
}

// What a launch tells against itself: it calls itself complete but lacks operations, or has a node that runs once twice. Where edges
// or the order of creation are known, nodes are those of the graph, and each runs once: what may not run, or run again, is in bodies.
// Without them the nodes may be what a trace showed, loops unrolled: there, a node can run again after it has ended.
// What a node ran too often is left out behind the first time.
void Reader::check_nodes(ir::Graph& graph, std::vector<ir::ReplayOp>& ops, std::vector<ir::Replay>& replays) {
  const bool runs_once = (graph.facts.contains(Fact::edges) || graph.facts.contains(Fact::creation_order)) &&
                         graph.info.role != ir::GraphRole::body && graph.info.role != ir::GraphRole::eager;
  const auto is_expected = [&graph](NodeId node) {
    return ir::is_activity(graph.kind[node]) && (graph.enabled.empty() || graph.enabled[node] != 0);
  };
  std::uint64_t expected = 0;
  if (runs_once)
    for (const NodeId node : graph.nodes()) expected += is_expected(node) ? 1 : 0;
  if (op_of_node_.size() < graph.node_count()) op_of_node_.resize(graph.node_count(), kNone);
  std::uint64_t missing = 0, repeated = 0;
  std::uint32_t kept = 0;
  for (ir::Replay& replay : replays) {
    std::uint64_t present = 0;
    const std::uint32_t begin = replay.ops.first, end = begin + replay.ops.count;
    replay.ops.first = kept;
    for (std::uint32_t i = begin; i < end; ++i) {
      const ir::ReplayOp op = ops[i];
      if (op.node.is_valid()) {
        std::uint32_t& last = op_of_node_[op.node.index()];
        if (last == kNone) {
          present += is_expected(op.node) ? 1 : 0;
        } else {
          if (runs_once || runs_into(ops[last], op)) {
            ++repeated;
            continue;
          }
        }
        last = kept;
      }
      ops[kept++] = op;
    }
    replay.ops.count = kept - replay.ops.first;
    for (std::uint32_t i = replay.ops.first; i < kept; ++i)
      if (ops[i].node.is_valid()) op_of_node_[ops[i].node.index()] = kNone;
    if (!runs_once || !replay.complete || present == expected) continue;
    missing += expected - present;
    replay.complete = false;
  }
  ops.resize(kept);
  constexpr FactSet kFacts = {Fact::replay_streams, Fact::replay_times};
  const auto tell = [&](std::uint64_t count, std::string_view what, std::string_view reason) {
    if (count == 0) return;
    recording_.add_loss(ir::Loss::Severity::data_loss, what, count, line_offset_, kFacts);
    spoil(graph, kFacts, reason);
  };
  tell(missing, "operations of nodes are missing in launches that are given as complete", "launches that are given as complete lack operations");
  tell(repeated, "operations of nodes that had run in the same launch already", "launches have several operations of one node");
}

bool Reader::read_timing(od::object& object) {
  std::uint32_t graph_of = kNone;
  ir::UntracedTiming timing;
  if (!read_record_object(object, ignored("type"), graph_number(graph_of),
                          required(number("samples", timing.samples)), required(number("median_us", timing.median_us)),
                          number("p10_us", timing.p10_us), number("p90_us", timing.p90_us),
                          number("launch_cpu_us", timing.launch_cpu_us)))
    return false;
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(graph_of, slot, ok);
  if (graph == nullptr) return ok;
  (slot.instance == 0 ? graph->info : graph->instance_infos[slot.instance - 1]).untraced = timing;
  return true;
}

bool Reader::read_exec(od::object& object) {
  std::uint32_t graph_of = kNone;
  ir::GraphInfo facts;
  ir::ExecutableUse use;
  bool used = false;
  const auto of_use = [&used](auto item) {
    return capture::Item{item.what, [&used, item](value& v) { return used = true, item.read(v); }};
  };
  if (!read_record_object(object, ignored("type"), graph_number(graph_of), number("exec_updates", facts.exec_updates),
                          number("instantiate_ns", facts.instantiate_ns), number("upload_ns", facts.upload_ns),
                          number("memory_bytes", facts.memory_bytes),
                          of_use(number("last_launch_sequence", use.last_launch_sequence)),
                          of_use(number("destroyed_sequence", use.destroyed_sequence)),
                          of_use(number("failed_updates", use.failed_updates))))
    return false;
  if (used) {
    const Slot* const found = find_slot(graph_of);
    if (found == nullptr) return false;
    const auto [row, inserted] = use_of_.try_emplace(graph_of, recording_.executable_uses.size());
    if (inserted) recording_.executable_uses.push_back({found->graph, found->instance});
    ir::ExecutableUse& known = recording_.executable_uses[row->second];
    if (use.last_launch_sequence != 0) known.last_launch_sequence = use.last_launch_sequence;
    if (use.destroyed_sequence != 0) known.destroyed_sequence = use.destroyed_sequence;
    if (use.failed_updates != 0) known.failed_updates = use.failed_updates;
    if (facts.exec_updates == 0 && facts.instantiate_ns == 0 && facts.upload_ns == 0 && facts.memory_bytes == 0)
      return true;
  }
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(graph_of, slot, ok);
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
  const auto read_entry = [&](value& item) {
    ir::MeasuredAccess access;
    std::uint32_t node = 0;
    const auto read_direction = [&](value& v) {
      const char* raw = nullptr;
      if (!get_raw(v, "an access's direction", raw)) return false;
      access.reads = is(raw, "r") || is(raw, "rw");
      access.writes = is(raw, "w") || is(raw, "rw");
      if (!access.reads && !access.writes && !is(raw, "?")) note_unknown_value("direction", raw);
      return true;
    };
    if (!read_tuple<4>(item, "an access", index("an access's node", node), hex("an access's begin", access.begin),
                       hex("an access's end", access.end), capture::Item{"direction", read_direction},
                       this->number("an access's argument", access.slot), this->number("an access's byte in the argument", access.offset_bytes)))
      return false;
    if (access.begin > access.end) return wrong("an access ends before it begins");
    access.node = NodeId(node);
    accesses.push_back(access);
    return true;
  };
  bool reads_are_some = false;
  if (!read_record_object(object, ignored("type"), graph_number(number), flag("reads_are_some", reads_are_some),
                          required(list("accesses", read_entry))))
    return false;
  Slot slot;
  bool ok = false;
  ir::Graph* const graph = open_graph(number, slot, ok);
  if (graph == nullptr) return ok;
  for (const ir::MeasuredAccess& access : accesses)
    if (access.node.index() >= graph->node_count())
      return wrong(fmt::format("an access names node {} of {}", access.node.index(), graph->node_count()));
  graph->measured_accesses.insert(graph->measured_accesses.end(), accesses.begin(), accesses.end());
  graph->measured_reads_are_some = graph->measured_reads_are_some || reads_are_some;
  return true;
}

bool Reader::read_graph_end(od::object& object) {
  std::uint32_t number = kNone;
  if (!read_record_object(object, ignored("type"), required(index("graph", number)))) return false;
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
  const auto read_name = [&](value& item) {
    ir::StringId name;
    if (!get_text(item, "a name", name)) return false;
    names.push_back(name);
    return true;
  };
  const auto read_op = [&](value& item) {
    std::pair<std::uint32_t, ir::LooseOp> entry;
    ir::LooseOp& op = entry.second;
    if (!read_tuple<6>(item, "an operation", index("an operation's name", entry.first), kind("kind", op.kind),
                       number("an operation's device", op.device), number("an operation's stream", op.stream),
                       number("an operation's start", op.start_ns), number("an operation's end", op.end_ns),
                       number("an operation's correlation", op.correlation)))
      return false;
    if (op.end_ns < op.start_ns) return wrong("an operation ends before it begins");
    ops.push_back(entry);
    return true;
  };
  if (!read_record_object(object, ignored("type"), ns_text("base_ns", base), required(list("names", read_name)),
                          required(list("ops", read_op))))
    return false;
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
  std::uint64_t count = 1, offset = ~std::uint64_t{0};
  FactSet spoiled;
  if (!read_record_object(object, ignored("type"), required(word("severity", kSeverities, severity)),
                          required(view("what", what)), number("count", count), number("offset_bytes", offset),
                          facts("facts", spoiled)))
    return false;
  if (++loss_records_ > kMaxLossRecords) {
    what = "further losses of the recorder";
    offset = ~std::uint64_t{0};
  }
  recording_.add_loss(severity, what, count, offset, spoiled);
  return true;
}

bool Reader::read_end(od::object& object) {
  std::uint64_t records = 0;
  if (!read_record_object(object, ignored("type"), required(number("records", records)))) return false;
  segment_ended_ = true;
  if (records == segment_records_) return true;
  const bool lacks = records > segment_records_;
  recording_.add_loss(ir::Loss::Severity::data_loss,
                      lacks ? "records that the recorder wrote are not in the file"
                            : "records more than the recorder wrote are in the file: some are repeated or not its own",
                      lacks ? records - segment_records_ : segment_records_ - records, line_offset_,
                      facts_of(RecordType::unknown));
  segment_lost_ = segment_lost_.unite(facts_of(RecordType::unknown));
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
  const unsigned cores = options.threads != 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  const unsigned threads = cores < 2 ? 0 : std::min(cores, kMaxThreads);
  CGLINT_TRY(source.peek());
  std::unique_ptr<Source> ahead;
  if (threads != 0 && source.plain_path().empty() && source.total_bytes() > kAloneBytes) ahead = read_ahead(source);
  return Reader(ahead != nullptr ? *ahead : source, options, threads).run();
}

}  // namespace cglint::import
