#include "recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "capture/python_frames.h"

namespace cglint::record {

using capture::Handle;
using capture::kNone;

Settings settings_from_environment() {
  const auto text = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  Settings settings;
  settings.out = text("CGLINT_RECORD_OUT");
  settings.out_is_folder = text("CGLINT_RECORD_OUT_FOLDER") == "1";
  settings.python_stacks = text("CGLINT_RECORD_PYTHON_STACKS") != "0";
  settings.replays =
      static_cast<std::uint32_t>(std::strtoul(text("CGLINT_RECORD_REPLAYS").c_str(), nullptr, 10));
  settings.list = text("CGLINT_RECORD_LIST");
  return settings;
}

void log_line(const std::string& text) {
  const std::string line = "cglint: " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

Recorder::Recorder(Settings settings, const cuda::DriverApi& driver, const cuda::CuptiApi& cupti)
    : settings_(std::move(settings)),
      driver_(driver),
      cupti_(cupti),
      stacks_on_(settings_.python_stacks),
      replays_(settings_.replays) {}

void Recorder::switch_off(const std::string& reason) {
  on_.store(false, std::memory_order_relaxed);
  if (!logged_.exchange(true)) log_line(reason + "; recording is switched off, the program runs on");
}

void Recorder::capture_ended() {
  // A capture that began before recording did must not make the count negative.
  int count = captures_.load(std::memory_order_relaxed);
  while (count > 0 && !captures_.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
  }
}

std::uint32_t Recorder::take_stack() {
  if (!stacks_on_.load(std::memory_order_relaxed)) return kNone;
  std::vector<capture::FrameText> frames;
  const capture::FramesResult result = capture::python_frames(frames);
  if (result == capture::FramesResult::timed_out) {
    stacks_missed_.fetch_add(1, std::memory_order_relaxed);
    // Somebody keeps the interpreter lock, perhaps waiting for this very call: do not slow the program down.
    constexpr int kMaxMisses = 10;
    if (misses_in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 == kMaxMisses) stacks_on_.store(false);
    return kNone;
  }
  misses_in_a_row_.store(0, std::memory_order_relaxed);
  if (result != capture::FramesResult::ok) return kNone;
  const std::lock_guard lock(state_);
  return stacks_.intern(frames);
}

void Recorder::stream_priority(Handle stream, int priority) {
  const std::lock_guard lock(state_);
  const auto known =
      std::find_if(streams_.begin(), streams_.end(), [&](const auto& s) { return s.handle == stream; });
  if (known == streams_.end()) {
    streams_.push_back({stream, priority});
  } else {
    known->priority = priority;  // a handle may come back as another stream
  }
}

std::vector<capture::GpuFacts> Recorder::read_gpus() const {
  std::vector<capture::GpuFacts> gpus;
  int count = 0;
  if (driver_.device_get_count(&count) != CUDA_SUCCESS) return gpus;
  for (int device = 0; device < count; ++device) {
    capture::GpuFacts gpu;
    gpu.device = device;
    std::array<char, 256> name{};
    if (driver_.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device) == CUDA_SUCCESS)
      gpu.name = name.data();
    const auto attribute = [&](CUdevice_attribute id, std::uint32_t& value) {
      int read = 0;
      if (driver_.device_get_attribute(&read, id, device) == CUDA_SUCCESS)
        value = static_cast<std::uint32_t>(read);
    };
    attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu.compute_major);
    attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu.compute_minor);
    attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu.sm_count);
    std::size_t bytes = 0;
    if (driver_.device_total_mem(&bytes, device) == CUDA_SUCCESS) gpu.memory_bytes = bytes;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

bool Recorder::open_file() {
  if (file_.is_open()) return true;
  if (open_failed_) return false;
  capture::ProcessFacts process = capture::this_process();
  int driver_version = 0;
  if (driver_.driver_get_version(&driver_version) == CUDA_SUCCESS)
    process.driver_version = static_cast<std::uint32_t>(driver_version);
  process.cupti_version = cupti_.version;
  Dl_info library{};
  std::array<char, PATH_MAX> path;
  if (dladdr(reinterpret_cast<void*>(driver_.driver_get_version), &library) != 0 &&
      realpath(library.dli_fname, path.data()) != nullptr)
    process.driver_release = capture::driver_release_of(path.data());
  process.gpus = read_gpus();
  const std::string problem = file_.open(capture::record_path(settings_.out, settings_.out_is_folder,
                                                              process.program, process.rank, process.pid));
  std::string lines;
  capture::write_header("cglint record", records_replays(), static_cast<std::uint64_t>(time(nullptr)), lines);
  capture::write_process(process, lines);
  if (settings_.replays != 0 && !layouts_known_)
    capture::write_loss(
        "data_loss", "GPU activity was not recorded: the record layouts of this CUPTI version are not known",
        1, lines);
  if (!problem.empty() || !file_.write(lines)) {
    open_failed_ = true;
    switch_off(problem.empty() ? "cannot write " + file_.path() : problem);
    return false;
  }
  if (settings_.list.empty()) return true;
  if (const int list = open(settings_.list.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC); list >= 0) {
    const std::string line = file_.path() + "\n";
    [[maybe_unused]] const ssize_t written = write(list, line.data(), line.size());
    close(list);
  }
  return true;
}

std::optional<Instantiation> Recorder::instantiate(CUgraph graph, std::optional<std::uint64_t> flags) {
  capture::WalkContext context;
  context.driver = &driver_;
  context.cupti = &cupti_;
  context.entry_of = [this](Handle handle) {
    const std::lock_guard lock(state_);
    const capture::GraphEntry* const entry = book_.find(handle);
    return entry == nullptr ? capture::GraphEntry() : *entry;
  };
  context.next_number = [this] { return numbers_.fetch_add(1, std::memory_order_relaxed); };
  std::vector<capture::GraphRecord> records = capture::walk_graph(context, graph);
  Instantiation instantiation;
  instantiation.number = records.back().number;
  std::size_t expected = 0;
  bool is_countable = true;
  for (const capture::GraphRecord& record : records) {
    const bool is_top = &record == &records.back();
    for (std::size_t i = 0; i < record.nodes.size(); ++i) {
      const std::string_view kind = record.nodes[i].kind;
      expected += kind == "kernel" || kind == "memcpy" || kind == "memset";
      if (kind == "conditional") is_countable = false;
      if (records_replays())
        instantiation.nodes[record.nodes[i].handle] = {is_top ? static_cast<std::int64_t>(i) : -1, kind};
    }
  }

  const std::lock_guard output_lock(output_);
  if (!open_file()) return std::nullopt;
  std::string lines, bodies_and_graph;
  {
    const std::lock_guard lock(state_);
    capture::write_allocations(timeline_.take_changes(), lines);
    for (capture::GraphRecord& record : records) {
      const bool is_top = &record == &records.back();
      record.allocations_known = true;
      record.instantiated = is_top;
      if (is_top) record.instantiate_flags = flags;
      record.replays_expected = is_top && records_replays();
      capture::resolve_addresses(timeline_, record);
      capture::write_graph(record, stacks_, streams_, bodies_and_graph);
      if (!record.failure.empty())
        capture::write_loss("error", "graph " + std::to_string(record.number) + ": " + record.failure, 1,
                            bodies_and_graph);
    }
    if (records_replays()) replays_.add_graph(instantiation.number, is_countable ? expected : 0);
    for (const capture::GraphRecord& record : records)
      if (!record.replays_expected) capture::write_graph_end(record.number, bodies_and_graph);
  }
  lines += bodies_and_graph;
  if (!file_.write(lines)) switch_off("cannot write " + file_.path());
  return instantiation;
}

void Recorder::add_clone(const Instantiation& instantiation, Handle original, std::uint64_t clone_id) {
  const auto place = instantiation.nodes.find(original);
  if (place == instantiation.nodes.end()) return;
  const std::lock_guard lock(state_);
  replays_.add_clone(clone_id, instantiation.number, place->second.node, place->second.kind);
}

void Recorder::add_operations(std::span<const capture::ActivityOp> operations, std::size_t dropped) {
  const std::lock_guard output_lock(output_);
  std::string lines;
  {
    const std::lock_guard lock(state_);
    dropped_ += dropped;
    for (const capture::ActivityOp& operation : operations) replays_.add_op(operation);
    replays_.write_finished(lines);
  }
  if (!lines.empty() && file_.is_open() && !file_.write(lines)) switch_off("cannot write " + file_.path());
}

void Recorder::finish() {
  const std::lock_guard output_lock(output_);
  on_.store(false, std::memory_order_relaxed);
  if (!file_.is_open()) return;
  std::string lines;
  {
    const std::lock_guard lock(state_);
    capture::write_allocations(timeline_.take_changes(), lines);
    if (records_replays()) replays_.write_all(lines);
    const auto loss = [&](const char* what, std::uint64_t count) {
      if (count != 0) capture::write_loss("data_loss", what, count, lines);
    };
    loss("activity records dropped by CUPTI", dropped_);
    loss("activity records without times, or that end before they start", replays_.odd());
    loss("activity records of graph nodes that were not recorded", replays_.unknown());
    loss("source stacks missed: the interpreter lock was not free in time", stacks_missed_.load());
    if (settings_.python_stacks && !stacks_on_.load())
      loss("source stacks were switched off: the interpreter lock was not free ten times in a row", 1);
    loss("allocations that overlap an earlier one: its free was not seen", timeline_.overlaps());
  }
  file_.write(lines);
  file_.write_end();
}

}  // namespace cglint::record
