#include "import/kineto/kineto_importer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "import/common/read_ahead.h"
#include "import/common/timeline.h"
#include "import/kineto/trace_reader.h"

namespace cglint::import {
namespace {

using base::ErrorCode;
using base::make_error;
using ir::Fact;
namespace dom = simdjson::dom;

constexpr std::uint32_t kNoProcess = ~std::uint32_t{0};
constexpr std::uint64_t kReadAheadBytes = std::uint64_t{1} << 20;  // shorter files are not worth a thread

// Collects what the reader finds.
class Collector final : public kineto::EventSink {
 public:
  explicit Collector(ir::Recording& recording) : recording_(recording), timeline_(recording) {
    recording.processes.push_back(ir::Process());
  }

  void on_gpu(const kineto::GpuEvent& event) override;
  void on_api(const kineto::ApiEvent& event) override;
  void on_flow(const kineto::FlowEvent& event) override {
    timeline_.arrows.push_back({event.id, event.is_start, event.pid, event.tid, event.ts_ns});
  }
  void on_profiler(std::string_view name) override {
    if (name.starts_with("PyTorch Profiler")) process().framework = recording_.intern("pytorch");
  }
  void on_lost(const kineto::LostEvent& event) override;
  void on_property(std::string_view key, std::string_view json) override;

  base::Result<void> finish(const kineto::ReadStats& stats, const ReadOptions& options);

 private:
  // An operation of the launch with this correlation id, or of any launch if it is 0, is missing.
  void lose(std::uint64_t correlation);
  // CUPTI counts in 32 bits; another number is counted and taken for none.
  std::uint32_t correlation_of(std::uint64_t id, std::uint64_t offset);
  // Of a launch call; kNoProcess if there are too many.
  std::uint32_t process_of_call(std::int64_t pid);
  ir::Process& process() { return recording_.processes[ir::ProcessId(0)]; }
  std::uint32_t small_number(dom::element element);
  ir::StringId property_text(dom::element element);
  void read_devices(dom::element list);
  void read_distributed(dom::element info);
  void read_doubts(dom::element doubts);

  ir::Recording& recording_;
  Timeline timeline_;
  dom::parser parser_;
  ir::StringId last_name_;
  std::string_view last_name_text_;
  bool any_annotated_ = false;
  bool any_hip_ = false;
  std::uint32_t last_lane_ = ~std::uint32_t{0};
  std::map<std::int64_t, std::uint32_t> process_of_pid_;
  std::set<std::int32_t> devices_;  // that operations name
  // Cases of one kind: how many, and where the first one is.
  struct Cases {
    std::uint64_t count = 0, first = 0;
    void add(std::uint64_t offset) {
      if (count++ == 0) first = offset;
    }
    void add(const Cases& others) {
      if (others.count != 0 && (count == 0 || others.first < first)) first = others.first;
      count += others.count;
    }
  };
  Cases empty_, lost_host_, lost_gpu_, lost_launches_, lost_dependencies_, lost_arrows_, lost_names_, unknown_categories_;
  Cases without_stream_, without_device_, row_streams_, row_devices_, without_correlation_, without_name_, without_dur_;
  Cases backwards_ops_, backwards_launches_, timeless_launches_, launches_without_pid_, repeating_, bad_correlation_;
  Cases bad_config_, bad_bytes_, bad_nodes_, bad_escapes_;
  bool any_stream_ = false, any_device_ = false, any_correlation_ = false;  // some operation gives one, usable or not
  std::uint64_t bad_properties_ = 0;
  bool bad_doubts_ = false;
};

void Collector::on_gpu(const kineto::GpuEvent& event) {
  if (event.dur_ns < 0) {  // which of the two times is wrong cannot be known
    backwards_ops_.add(event.offset);
    lose(event.correlation);
    return;
  }
  OpShape shape;
  shape.kind = event.kind;
  if (event.name != last_name_text_ || !last_name_.is_valid()) {
    last_name_ = recording_.intern(event.name);
    last_name_text_ = recording_.text(last_name_);
  }
  shape.name = last_name_;
  shape.grid = event.grid;
  shape.block = event.block;
  shape.registers = event.registers;
  shape.shared_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(event.shared_bytes, 0xffffffffu));
  shape.bytes = event.bytes;
  shape.priority = event.priority;
  const bool is_activity = ir::is_activity(event.kind);
  any_stream_ = any_stream_ || event.gives_stream;
  any_device_ = any_device_ || event.gives_device;
  any_correlation_ = any_correlation_ || event.gives_correlation;
  Lane lane;
  lane.pid = event.pid;
  lane.tid = event.tid;
  lane.device = event.device;
  lane.stream = event.stream;
  // What the row says counts only if no operation of the whole file has the argument: see finish().
  if (!event.gives_stream && event.has_row_stream) {
    lane.stream = event.row_stream;
    lane.stream_of_row = true;
    if (is_activity) row_streams_.add(event.offset);
  } else if (!event.has_stream && is_activity) {
    without_stream_.add(event.offset);
  }
  if (!event.gives_device && event.row_device >= 0) {
    lane.device = event.row_device;
    lane.device_of_row = true;
    if (is_activity) row_devices_.add(event.offset);
  } else if (event.device < 0 && is_activity) {
    without_device_.add(event.offset);
  }
  TimelineOp op;
  op.start_ns = event.start_ns;
  op.dur_ns = event.dur_ns;
  op.correlation = correlation_of(event.correlation, event.offset);
  NodeKey node;
  node.graph_id = static_cast<std::uint32_t>(std::min<std::uint64_t>(event.graph_id, 0xffffffffu));
  node.node_id = node.graph_id != 0 ? event.graph_node_id : 0;
  op.node = timeline_.intern_node(node);
  op.shape = timeline_.intern_shape(shape);
  op.lane = timeline_.intern_lane(lane);
  if (op.lane != last_lane_ && lane.device >= 0) devices_.insert(lane.device);
  last_lane_ = op.lane;
  timeline_.ops.push_back(op);
  any_annotated_ = any_annotated_ || event.annotated;
  if (event.bad_node) bad_nodes_.add(event.offset);
  if (event.bad_escape) bad_escapes_.add(event.offset);
  if (!is_activity) return;
  if (!event.gives_correlation) without_correlation_.add(event.offset);
  if (!event.has_name) without_name_.add(event.offset);
  if (!event.has_dur) without_dur_.add(event.offset);
  if (event.bad_config) bad_config_.add(event.offset);
  if (event.bad_bytes) bad_bytes_.add(event.offset);
}

void Collector::lose(std::uint64_t correlation) {
  if (correlation != 0 && correlation <= 0xffffffffu) {
    timeline_.lost_correlations.push_back(correlation_key(0, correlation));
  } else {
    timeline_.lost_anywhere = true;
  }
}

std::uint32_t Collector::correlation_of(std::uint64_t id, std::uint64_t offset) {
  if (id <= 0xffffffffu) return static_cast<std::uint32_t>(id);
  bad_correlation_.add(offset);
  timeline_.lost_anywhere = true;
  return 0;
}

void Collector::on_api(const kineto::ApiEvent& event) {
  timeline_.has_api_rows = true;
  if (!event.is_graph_launch) return;
  any_hip_ = any_hip_ || event.is_hip;
  if (!event.gives_correlation) {  // its operations cannot be found
    lost_launches_.add(event.offset);
    timeline_.lost_anywhere = true;
    return;
  }
  const std::uint32_t process_number = process_of_call(event.pid);
  if (process_number == kNoProcess) {
    lost_launches_.add(event.offset);
    timeline_.lost_anywhere = true;
    return;
  }
  if (!event.has_dur) timeless_launches_.add(event.offset);
  if (event.dur_ns < 0) backwards_launches_.add(event.offset);
  if (!event.has_pid) launches_without_pid_.add(event.offset);
  timeline_.launches.push_back({correlation_key(process_number, correlation_of(event.correlation, event.offset)), event.start_ns,
                                std::max<std::int64_t>(event.dur_ns, 0), event.pid});
}

// Traces of several processes are merged by tools: each counts its correlation ids from 1.
std::uint32_t Collector::process_of_call(std::int64_t pid) {
  if (pid == process().pid || pid < 0) return 0;
  if (process().pid < 0) {
    process().pid = pid;
    return 0;
  }
  const auto [it, inserted] = process_of_pid_.try_emplace(pid, static_cast<std::uint32_t>(recording_.processes.size()));
  if (inserted && it->second >= kMaxProcesses) it->second = kNoProcess;
  if (inserted && it->second != kNoProcess) {
    ir::Process another;
    another.pid = pid;
    recording_.processes.push_back(std::move(another));
  }
  return it->second;
}

void Collector::on_lost(const kineto::LostEvent& event) {
  using What = kineto::LostEvent::What;
  using Why = kineto::LostEvent::Why;
  if (event.what == What::arrow && event.why == Why::damaged) {
    if (event.flow_id >= kineto::kFirstDependencyFlow) {
      lost_dependencies_.add(event.offset);
    } else if (event.flow_id == 0) {
      lost_arrows_.add(event.offset);
    } else {
      lost_host_.add(event.offset);
    }
    return;
  }
  if (event.what == What::gpu || event.what == What::launch) lose(event.correlation);
  switch (event.why) {
    case Why::repeats_property: repeating_.add(event.offset); return;
    case Why::long_name: lost_names_.add(event.offset); return;
    case Why::unknown_category: unknown_categories_.add(event.offset); return;
    case Why::empty: empty_.add(event.offset); return;
    case Why::damaged: break;
  }
  (event.what == What::gpu ? lost_gpu_ : event.what == What::launch ? lost_launches_ : lost_host_).add(event.offset);
}

// Properties say what the trace was made on; one of another type than its own is left out and counted.
std::uint32_t Collector::small_number(dom::element element) {
  std::uint64_t value = 0;
  if (element.get_uint64().get(value) == simdjson::SUCCESS && value <= 0xffffffffu) return static_cast<std::uint32_t>(value);
  ++bad_properties_;
  return 0;
}

ir::StringId Collector::property_text(dom::element element) {
  std::string_view text;
  if (element.get_string().get(text) == simdjson::SUCCESS) return recording_.intern(text);
  ++bad_properties_;
  return ir::kEmptyString;
}

void Collector::read_devices(dom::element list) {
  dom::array devices;
  if (list.get_array().get(devices) != simdjson::SUCCESS) {
    ++bad_properties_;
    return;
  }
  for (const dom::element device : devices) {
    dom::object object;
    if (device.get_object().get(object) != simdjson::SUCCESS) {
      ++bad_properties_;
      continue;
    }
    ir::Gpu gpu;
    for (const auto& [key, value] : object) {
      if (key == "id") {
        gpu.device = static_cast<std::int32_t>(std::min(small_number(value), 0x7fffffffu));
      } else if (key == "name") {
        gpu.name = property_text(value);
      } else if (key == "uuid") {
        gpu.uuid = property_text(value);
      } else if (key == "totalGlobalMem") {
        std::uint64_t bytes = 0;
        if (value.get_uint64().get(bytes) == simdjson::SUCCESS) {
          gpu.memory_bytes = bytes;
        } else {
          ++bad_properties_;
        }
      } else if (key == "computeMajor" || key == "major") {
        gpu.compute_major = small_number(value);
      } else if (key == "computeMinor" || key == "minor") {
        gpu.compute_minor = small_number(value);
      } else if (key == "numSms" || key == "multiProcessorCount") {
        gpu.sm_count = small_number(value);
      }
    }
    process().gpus.push_back(gpu);
  }
}

void Collector::read_distributed(dom::element info) {
  dom::object object;
  if (info.get_object().get(object) != simdjson::SUCCESS) {
    ++bad_properties_;
    return;
  }
  for (const auto& [key, value] : object) {
    if (key != "rank" && key != "world_size") continue;
    std::int64_t number = 0;
    if (value.get_int64().get(number) != simdjson::SUCCESS || number < 0 || number > 0x7fffffff) {
      ++bad_properties_;
    } else {
      (key == "rank" ? process().rank : process().world_size) = static_cast<std::int32_t>(number);
    }
  }
}

// What cglint convert wrote about the recording that this trace was made from. What is not understood of it could be any doubt.
void Collector::read_doubts(dom::element doubts) {
  dom::object object;
  if (doubts.get_object().get(object) != simdjson::SUCCESS) {
    bad_doubts_ = true;
    return;
  }
  const auto text_of = [this](dom::element entry, const char* key) {
    std::string_view text;
    if (entry[key].get_string().get(text) != simdjson::SUCCESS) bad_doubts_ = true;
    return text;
  };
  const auto number_of = [this](dom::element element) {
    std::uint64_t number = 0;
    if (element.get_uint64().get(number) != simdjson::SUCCESS) bad_doubts_ = true;
    return number;
  };
  const auto fact_of = [this](std::string_view name) {
    const auto fact = ir::fact_from_name(name);
    if (!fact) bad_doubts_ = true;
    return fact;
  };
  const auto list_of = [this](dom::element element) {
    std::vector<dom::element> entries;
    dom::array list;
    if (element.get_array().get(list) != simdjson::SUCCESS) {
      bad_doubts_ = true;
    } else {
      for (const dom::element entry : list) entries.push_back(entry);
    }
    return entries;
  };
  for (const auto& [key, value] : object) {
    if (key == "spoiled") {
      for (const dom::element entry : list_of(value))
        if (const auto fact = fact_of(text_of(entry, "fact"))) timeline_.spoiled.push_back({*fact, recording_.intern(text_of(entry, "reason"))});
    } else if (key == "losses") {
      for (const dom::element entry : list_of(value)) {
        ir::FactSet facts;
        dom::element names, count;
        if (entry["facts"].get(names) != simdjson::SUCCESS || entry["count"].get(count) != simdjson::SUCCESS) {
          bad_doubts_ = true;
          continue;
        }
        for (const dom::element name : list_of(names)) {
          std::string_view text;
          if (name.get_string().get(text) != simdjson::SUCCESS) bad_doubts_ = true;
          if (const auto fact = fact_of(text)) facts.insert(*fact);
        }
        const std::string_view severity = text_of(entry, "severity");
        recording_.add_loss(severity == "error" ? ir::Loss::Severity::error : ir::Loss::Severity::data_loss, text_of(entry, "what"),
                            number_of(count), ~std::uint64_t{0}, facts);
      }
    } else if (key == "incomplete_launches") {
      for (const dom::element entry : list_of(value)) lose(number_of(entry));
    } else if (key == "rocm") {
      bool rocm = false;
      if (value.get_bool().get(rocm) != simdjson::SUCCESS) bad_doubts_ = true;
      any_hip_ = any_hip_ || rocm;
    } else {
      bad_doubts_ = true;  // of a later version
    }
  }
}

void Collector::on_property(std::string_view key, std::string_view json) {
  const bool devices = key == "deviceProperties" || key == "computeProperties";
  const bool version = key == "cuda_driver_version" || key == "cuda_runtime_version" || key == "cupti_version";
  if (key == "roctracer_version" || key == "rocprofiler_version" || key.starts_with("hip_")) any_hip_ = true;
  if (!devices && !version && key != "distributedInfo" && key != "cglint") return;
  dom::element root;
  if (parser_.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS) {
    ++bad_properties_;
    bad_doubts_ = bad_doubts_ || key == "cglint";
    return;
  }
  if (devices) {
    read_devices(root);
  } else if (key == "cglint") {
    read_doubts(root);
  } else if (key == "distributedInfo") {
    read_distributed(root);
  } else if (key == "cuda_driver_version") {
    process().driver_version = small_number(root);
  } else if (key == "cuda_runtime_version") {
    process().runtime_version = small_number(root);
  } else {
    process().cupti_version = small_number(root);
  }
}

base::Result<void> Collector::finish(const kineto::ReadStats& stats, const ReadOptions& options) {
  using Severity = ir::Loss::Severity;
  const ir::FactSet timeline_facts = {Fact::replay_streams, Fact::replay_times};
  recording_.has_timeline = !timeline_.ops.empty();
  timeline_.is_amd = any_hip_;
  timeline_.streams_rewritten = any_annotated_ && !any_hip_;
  timeline_.truncated = stats.truncated;
  if (any_hip_) {
    if (process().gpus.empty())
      for (const std::int32_t device : devices_) {
        ir::Gpu gpu;
        gpu.device = device;
        process().gpus.push_back(gpu);
      }
    for (ir::Gpu& gpu : process().gpus) gpu.is_amd = true;
  }
  if (stats.truncated)
    recording_.add_loss(Severity::error, fmt::format("the trace is not whole: {}", stats.truncated_reason), 1, stats.bytes,
                        timeline_facts);
  const auto report = [&](Severity severity, std::string_view what, const Cases& cases, ir::FactSet facts) {
    if (cases.count != 0) recording_.add_loss(severity, what, cases.count, cases.first, facts);
  };
  report(Severity::info, "events without any property", empty_, {});
  report(Severity::info, "damaged host events were left out", lost_host_, {});
  report(Severity::data_loss, "damaged events that may be GPU operations were left out", lost_gpu_, timeline_facts);
  report(Severity::data_loss, "damaged events that may be graph launch calls were left out", lost_launches_, timeline_facts);
  report(Severity::data_loss, "GPU operations with a name that is too long were left out", lost_names_, timeline_facts);
  report(Severity::data_loss, "operations of a category that this version does not know were left out", unknown_categories_, timeline_facts);
  // Only dependency arrows are read. One that cannot be told apart could be one if the trace has any.
  report(Severity::data_loss, "damaged dependency arrows were left out", lost_dependencies_, {Fact::edges});
  const bool has_dependencies = !timeline_.arrows.empty() || lost_dependencies_.count != 0;
  if (has_dependencies) {
    report(Severity::data_loss, "damaged arrows that may be dependencies were left out", lost_arrows_, {Fact::edges});
  } else {
    report(Severity::info, "damaged launch arrows were left out (launches are joined to operations by correlation ids: nothing is missing)",
           lost_arrows_, {});
  }
  report(Severity::data_loss, "events that give a property twice were left out", repeating_,
         timeline_facts.unite({Fact::edges}));
  report(Severity::data_loss, "GPU operations that end before they begin were left out", backwards_ops_, timeline_facts);
  report(Severity::info, "graph launch calls that end before they begin: their duration was taken as 0",
         backwards_launches_, {});
  report(Severity::info, "graph launch calls without a usable duration: it was taken as 0", timeless_launches_, {});
  report(Severity::info, "graph launch calls without a usable process id", launches_without_pid_, {});
  if (stats.repaired != 0)
    recording_.add_loss(Severity::info, "events with unescaped quotes were repaired", stats.repaired);
  if (stats.replaced_bytes != 0)
    recording_.add_loss(Severity::info, "bytes that are not valid in JSON text were replaced", stats.replaced_bytes,
                        stats.first_replaced_offset);
  report(Severity::info, "names with escapes that stand for no character", bad_escapes_, {});
  if (bad_properties_ != 0) recording_.add_loss(Severity::info, "properties of the trace could not be read", bad_properties_);
  if (bad_doubts_)
    recording_.add_loss(Severity::data_loss, "the property \"cglint\", which tells what this trace cannot vouch for, could not be read", 1,
                        ~std::uint64_t{0}, timeline_facts.unite({Fact::edges}));
  report(Severity::data_loss, "events whose correlation id is no 32-bit number", bad_correlation_, timeline_facts);
  if (stats.repeated_lists != 0)
    recording_.add_loss(Severity::data_loss, "more lists of traceEvents than one", stats.repeated_lists, stats.first_repeated_list_offset,
                        timeline_facts.unite({Fact::edges}));
  if (any_correlation_ && without_correlation_.count != 0) {
    report(Severity::data_loss, "GPU operations without a correlation id, while others have one", without_correlation_, timeline_facts);
    timeline_.lost_anywhere = true;
  }
  // Rows stand in for streams and devices in traces of versions that did not write them. Beside operations that have them, one
  // without has lost it.
  if (any_stream_) {
    without_stream_.add(row_streams_);
    timeline_.forget_row_streams();
  } else {
    report(Severity::info, "no operation gives its stream: the rows of the trace were taken for streams", row_streams_, {});
  }
  if (any_device_) {
    without_device_.add(row_devices_);
    timeline_.forget_row_devices();
  }
  report(Severity::data_loss, "GPU operations without a stream", without_stream_, {Fact::replay_streams});
  report(Severity::data_loss, "GPU operations without a device", without_device_, {Fact::replay_streams});
  report(Severity::data_loss, "GPU operations without a usable name", without_name_, {Fact::kernel_names});
  report(Severity::data_loss, "GPU operations without a duration: it was taken as 0", without_dur_, {Fact::replay_times});
  // Operations of several launches are matched by what they are, so that these facts go as well.
  const auto doubt = [&](std::string_view what, const Cases& cases, ir::FactSet facts) {
    report(Severity::data_loss, what, cases, facts);
    if (cases.count == 0) return;
    for (int i = 0; i < ir::kFactCount; ++i)
      if (const auto fact = static_cast<Fact>(i); facts.contains(fact)) timeline_.spoiled.push_back({fact, recording_.intern(what)});
  };
  doubt("GPU operations whose launch configuration is none (grid, block, registers, shared memory or priority)", bad_config_,
        {Fact::launch_config, Fact::node_identity});
  doubt("copies and fills whose size is no number", bad_bytes_, {Fact::node_identity, Fact::replay_times});
  doubt("GPU operations whose graph or node id is none", bad_nodes_, {Fact::node_identity, Fact::replay_streams, Fact::replay_times});
  if (timeline_.streams_rewritten)
    recording_.add_loss(Severity::data_loss,
                        "torch.cuda._annotate_cuda_graph_trace rewrote this trace: stream ids of graph operations are not "
                        "those of the device; give the original trace",
                        1, ~std::uint64_t{0}, {Fact::replay_streams});
  if (recording_.processes.size() > 1) {
    // What the file says of the machine is taken for what it says of all; a rank is one process's.
    for (ir::Process& other : recording_.processes) {
      const std::int64_t pid = other.pid;
      if (&other != &process()) other = process();
      other.pid = pid;
      other.rank = -1;
    }
    recording_.add_loss(Severity::info, "graph launch calls of several processes: their ids are kept apart", recording_.processes.size());
    timeline_.separate_processes();
  }
  return timeline_.build_graphs(options);
}

class KinetoImporter final : public Importer {
 public:
  [[nodiscard]] std::string_view name() const override { return "kineto"; }
  [[nodiscard]] std::string_view description() const override {
    return "PyTorch profiler traces (Kineto, Chrome trace JSON)";
  }
  [[nodiscard]] ir::FactSet can_supply() const override {
    return {Fact::nodes,         Fact::edges,          Fact::kernel_names, Fact::launch_config,
            Fact::node_identity, Fact::replay_streams, Fact::replay_times};
  }
  [[nodiscard]] SniffResult sniff(std::string_view prefix) const override;
  [[nodiscard]] base::Result<ir::Recording> read(Source& source, const ReadOptions& options) const override;
};

SniffResult KinetoImporter::sniff(std::string_view prefix) const {
  if (prefix.starts_with("\xef\xbb\xbf")) prefix.remove_prefix(3);
  const std::size_t first = prefix.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  const auto has = [prefix](std::string_view text) { return prefix.find(text) != std::string_view::npos; };
  SniffResult yes{SniffResult::Match::yes, {}};
  if (prefix[first] == '[') return has("\"ph\"") ? yes : SniffResult{};
  if (prefix[first] != '{') return {};
  // Long property lists can push traceEvents out of the prefix.
  if (has("\"traceEvents\"") || (has("\"schemaVersion\"") && (has("\"deviceProperties\"") || has("\"distributedInfo\""))) ||
      (has("\"distributedInfo\"") && has("\"pg_config\"")))
    return yes;
  return {};
}

base::Result<ir::Recording> KinetoImporter::read(Source& source, const ReadOptions& options) const {
  ir::Recording recording;
  Collector collector(recording);
  // Decompression takes as long as parsing: it gets a thread of its own. Not so pipes, whose reads may block for ever.
  std::unique_ptr<Source> ahead;
  CGLINT_TRY(source.peek());
  if (source.plain_path().empty() && source.total_bytes() > kReadAheadBytes)
    ahead = read_ahead(source);
  auto stats = kineto::read_trace(ahead != nullptr ? *ahead : source, options, collector);
  if (!stats) return std::move(stats).error();
  if (!stats->has_events_array)
    return make_error(ErrorCode::malformed,
                      stats->truncated ? fmt::format("no traceEvents: {}", stats->truncated_reason)
                                       : std::string("no traceEvents array in the file"),
                      stats->bytes);
  CGLINT_TRY(collector.finish(*stats, options));
  return recording;
}

}  // namespace

std::unique_ptr<Importer> make_kineto_importer() { return std::make_unique<KinetoImporter>(); }

}  // namespace cglint::import
