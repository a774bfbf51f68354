#include "recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "capture/allocator_blocks.h"
#include "capture/python_frames.h"
#include "list_lines.h"
#include "nvtx_ranges.h"

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
  settings.native_stacks = text("CGLINT_RECORD_NATIVE_STACKS") != "0";
  settings.eager = text("CGLINT_RECORD_EAGER") != "0";
  const std::string redact = text("CGLINT_RECORD_REDACT");
  settings.redact = redact == "1" || redact == "names";
  settings.redact_names = redact == "names";
  settings.flush_signal = static_cast<int>(std::strtol(text("CGLINT_RECORD_FLUSH_SIGNAL").c_str(), nullptr, 10));
  const std::string detach = text("CGLINT_RECORD_DETACH");
  const std::uint64_t after = std::strtoull(detach.c_str(), nullptr, 10);
  if (!detach.empty() && detach.back() == 's') {
    settings.detach_after_ns = after * 1'000'000'000;
  } else {
    settings.detach_launches = after;
  }
  return settings;
}

namespace {

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// The last part of a path; what it was in is nobody's business (--redact).
std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

// The same name gives the same text in every recording.
std::string hashed_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : name) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  std::string text = "k_0000000000000000";
  for (std::size_t i = text.size(); hash != 0; hash >>= 4) text[--i] = "0123456789abcdef"[hash & 15];
  return text;
}

constexpr std::uint64_t kBurstNs = 2'000'000'000;  // without a new graph for that long, a burst of captures is over
constexpr std::size_t kMaxOpenExecs = 256;         // whose updates are waited for

}  // namespace

void log_line(const std::string& text) {
  const std::string line = "cglint: " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void add_to_list(std::string_view line) {
  // Asked for once, when the library is loaded: the program may change its environment. Never freed: it is used up to the exit.
  static const std::string* const path = [] {
    const char* const value = std::getenv("CGLINT_RECORD_LIST");
    return new std::string(value == nullptr ? "" : value);
  }();
  const int list = path->empty() ? -1 : open(path->c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (list < 0) return;
  const std::string text = std::string(line) + '\n';
  [[maybe_unused]] const ssize_t written = write(list, text.data(), text.size());
  close(list);
}

Recorder::Recorder(Settings settings, const cuda::DriverApi& driver, const cuda::CuptiApi& cupti)
    : settings_(std::move(settings)),
      driver_(driver),
      cupti_(cupti),
      stacks_on_(settings_.python_stacks),
      replays_(settings_.replays) {
  replays_.set_before_end([this](std::uint32_t number, std::string& out) {
    for (auto& [handle, exec] : execs_) {
      if (exec.number != number) continue;
      write_exec(exec, out);
      exec.is_ended = true;
    }
  });
}

void Recorder::switch_off(const std::string& reason) {
  on_.store(false, std::memory_order_relaxed);
  if (logged_.exchange(true)) return;
  log_line(reason + "; recording is switched off, the program runs on");
  add_to_list(kListOff);
}

void Recorder::count_captures() {
  const std::lock_guard lock(state_);
  captures_.store(static_cast<int>(book_.active().size()), std::memory_order_relaxed);
  if (first_capture_ns_.load(std::memory_order_relaxed) == 0) first_capture_ns_.store(now_ns());
}

void Recorder::polish(std::vector<capture::FrameText>& frames) {
  const auto needs_map = [](const capture::FrameText& frame) {
    return capture::is_generated_file(frame.file) || capture::is_helper_file(frame.file);
  };
  if (std::any_of(frames.begin(), frames.end(), needs_map)) {
    const std::lock_guard lock(generated_mutex_);
    generated_.follow(frames);
  }
  if (settings_.redact)
    for (capture::FrameText& frame : frames) frame.file = base_name(frame.file);
}

std::uint32_t Recorder::intern_stack(std::vector<capture::FrameText> frames) {
  polish(frames);
  const std::lock_guard lock(state_);
  return stacks_.intern(frames);
}

std::uint32_t Recorder::take_stack() {
  std::vector<capture::FrameText> frames;
  if (stacks_on_.load(std::memory_order_relaxed)) {
    const capture::FramesResult result = capture::python_frames(frames);
    if (result == capture::FramesResult::timed_out) {
      stacks_missed_.fetch_add(1, std::memory_order_relaxed);
      // Somebody keeps the interpreter lock, perhaps waiting for this very call: do not slow the program down.
      constexpr int kMaxMisses = 10;
      if (misses_in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 == kMaxMisses) stacks_on_.store(false);
    } else {
      misses_in_a_row_.store(0, std::memory_order_relaxed);
    }
    polish(frames);
  }
  std::array<std::uintptr_t, capture::kMaxNativeFrames> addresses;
  const std::size_t most = frames.empty() ? addresses.size() : capture::kMaxNativeFramesBesidePython;
  std::size_t count = 0;
  if (settings_.native_stacks) count = capture::native_addresses(std::span(addresses).first(most), 1);
  const std::span native = std::span(addresses).first(count);
  // Symbols are looked up without our locks: the loader's lock may be held by a thread that waits for us.
  std::vector<capture::NativeFrame> fresh;
  {
    const std::lock_guard lock(state_);
    for (const std::uintptr_t address : native)
      if (!native_frames_.contains(address)) fresh.emplace_back().address = address;
  }
  if (!fresh.empty()) capture::describe_frames(fresh);
  const std::lock_guard lock(state_);
  for (capture::NativeFrame& frame : fresh) {
    if (settings_.redact) frame.text.file = base_name(frame.text.file);
    if (settings_.redact) frame.launch.file = base_name(frame.launch.file);
    const std::uint32_t index = frame.is_cuda ? kNone : stacks_.add_frame(frame.text);
    const std::uint32_t launch = frame.is_cuda || frame.launch.function.empty() ? index : stacks_.add_frame(frame.launch);
    native_frames_.emplace(frame.address, KnownFrame{index, launch, frame.is_launch_stub, frame.is_runtime, std::move(frame.symbol)});
  }
  std::vector<std::uint32_t> indices;
  for (const capture::FrameText& frame : frames) indices.push_back(stacks_.add_frame(frame));
  bool is_behind_stub = false, has_caller = false;
  std::string_view stub;
  for (const std::uintptr_t address : native) {
    const KnownFrame& known = native_frames_.at(address);
    if (known.is_launch_stub) {
      // Of a template's two the inner one names the kernel as its wrapper is named.
      if (!is_behind_stub) stub = known.symbol;
      is_behind_stub = true;
      continue;
    }
    // Where the wrapper was put into what launches, that is the frame.
    const bool is_wrapper = is_behind_stub && capture::is_launch_wrapper(stub, known.symbol);
    const std::uint32_t index = is_behind_stub ? known.launch_index : known.index;
    if (index != kNone && !is_wrapper && (has_caller || !known.is_runtime)) {
      indices.push_back(index);
      has_caller = true;
    }
    is_behind_stub = false;
  }
  return stacks_.intern_indices(std::move(indices));
}

std::uint32_t Recorder::take_ranges() {
  if (!has_nvtx()) return kNone;
  struct Known {
    std::uint64_t version = ~std::uint64_t{0};
    std::uint32_t id = kNone;
  };
  thread_local Known known;
  const capture::RangeStack& ranges = thread_ranges();
  if (ranges.empty()) return kNone;
  if (known.version == ranges.version()) return known.id;
  const std::vector<std::string_view> texts = ranges.texts();
  std::vector<std::string> hashed;
  std::vector<std::string_view> shown = texts;
  if (settings_.redact_names) {
    for (const std::string_view text : texts) hashed.push_back(hashed_name(text));
    shown.assign(hashed.begin(), hashed.end());
  }
  const std::lock_guard lock(state_);
  known = {ranges.version(), ranges_.intern(shown)};
  return known.id;
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
  if (settings_.redact) process.host = process.command = "";
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
  if (settings_.replays != 0 && no_replays_ != nullptr)
    capture::write_loss("data_loss", std::string("GPU activity was not recorded: ") + no_replays_, 1, lines);
  if (!problem.empty() || !file_.write(lines)) {
    open_failed_ = true;
    switch_off(problem.empty() ? "cannot write " + file_.path() : problem);
    return false;
  }
  add_to_list(file_.path());
  return true;
}

std::unique_ptr<Instantiation> Recorder::walk(CUgraph graph, std::optional<std::uint64_t> flags) {
  const std::uint64_t begin = now_ns();
  capture::WalkContext context;
  context.driver = &driver_;
  context.cupti = &cupti_;
  context.entry_of = [this](Handle handle) {
    const std::lock_guard lock(state_);
    const capture::GraphEntry* const entry = book_.find(handle);
    return entry == nullptr ? capture::GraphEntry() : *entry;
  };
  context.next_number = [this] { return numbers_.fetch_add(1, std::memory_order_relaxed); };
  auto made = std::make_unique<Instantiation>();
  made->records = capture::walk_graph(context, graph);
  made->number = made->records.back().number;
  bool is_countable = true;
  for (capture::GraphRecord& record : made->records) {
    const bool is_top = &record == &made->records.back();
    for (std::size_t i = 0; i < record.nodes.size(); ++i) {
      const std::string_view kind = record.nodes[i].kind;
      made->expected_ops += kind == "kernel" || kind == "memcpy" || kind == "memset";
      if (kind == "conditional") is_countable = false;
      if (records_replays())
        made->nodes[record.nodes[i].handle] = {is_top ? static_cast<std::int64_t>(i) : -1, kind};
    }
    record.allocations_known = true;
    record.instantiated = is_top;
    if (is_top) record.instantiate_flags = flags;
    record.replays_expected = is_top && records_replays();
    record.eager_known = settings_.eager;
  }
  if (!is_countable) made->expected_ops = 0;
  {
    // Memory nodes that were added node by node; the calls of capturing streams were seen.
    const std::lock_guard lock(state_);
    for (const capture::GraphRecord& record : made->records)
      for (const capture::NodeRecord& node : record.nodes)
        if (node.kind == "mem_alloc" && node.address != 0 && timeline_.find(node.address) == nullptr)
          timeline_.add(node.address, node.bytes, "graph_node", node.device, next_sequence());
  }
  made->walk_ns = static_cast<std::int64_t>(now_ns() - begin);
  return made;
}

void Recorder::redact(capture::GraphRecord& record) const {
  if (!settings_.redact_names) return;
  for (capture::FunctionRecord& function : record.functions) function.name = hashed_name(function.name);
  for (capture::NodeRecord& node : record.nodes)
    if (!node.host_symbol.empty()) node.host_symbol = hashed_name(node.host_symbol);
}

void Recorder::write_record(capture::GraphRecord& record, std::string& lines) {
  redact(record);
  record.nvtx_known = has_nvtx();
  record.blocks_expected = record.allocations_known && blocks_expected_.load(std::memory_order_relaxed);
  capture::resolve_addresses(timeline_, record);
  if (record.instantiated || record.parent >= 0) {
    for (const capture::NodeRecord& node : record.nodes) {
      for (const capture::WordRecord& word : node.words)
        if (word.allocation != kNone) timeline_.hold(word.value);
      if (node.src_allocation != kNone) timeline_.hold(node.src);
      if (node.dst_allocation != kNone) timeline_.hold(node.dst);
    }
  }
  capture::write_graph(record, {stacks_, ranges_, streams_}, lines);
  if (!record.failure.empty())
    capture::write_loss("error", "graph " + std::to_string(record.number) + ": " + record.failure, 1, lines);
}

void Recorder::write_changes(std::string& lines) {
  capture::write_allocations(timeline_.take_changes(), lines);
  lines += pending_;
  pending_.clear();
  for (const Handle handle : changed_execs_)
    if (const auto place = execs_.find(handle); place != execs_.end() && place->second.is_changed)
      write_exec(place->second, lines);
  changed_execs_.clear();
  if (!settings_.eager) return;
  capture::GraphRecord eager;
  {
    const std::lock_guard lock(eager_mutex_);
    eager = eager_.take();
  }
  if (eager.nodes.empty()) return;
  eager.number = numbers_.fetch_add(1, std::memory_order_relaxed);
  eager.allocations_known = eager.eager_known = true;
  write_record(eager, lines);
}

void Recorder::write_exec(Exec& exec, std::string& lines) {
  capture::write_exec(exec.number, exec.facts, exec.is_ended, lines);
  exec.is_changed = false;
}

void Recorder::exec_changed(Handle handle, Exec& exec) {
  if (!exec.is_changed) changed_execs_.push_back(handle);
  exec.is_changed = true;
}

void Recorder::end_graph(Exec& exec, std::string& lines) {
  if (exec.is_ended) return;
  if (records_replays()) {
    // Its replays, which may still be on their way, come before its end.
    replays_.end_graph(exec.number, exec.launches, lines);
    return;
  }
  capture::write_graph_end(exec.number, lines);
  exec.is_ended = true;
}

void Recorder::write_instantiated(Instantiation& made, Handle exec, std::int64_t instantiate_ns, std::uint64_t memory_bytes) {
  const std::lock_guard output_lock(output_);
  if (!open_file()) return;
  std::string lines;
  {
    const std::lock_guard lock(state_);
    write_changes(lines);
    for (capture::GraphRecord& record : made.records) {
      if (record.instantiated) {
        record.instantiate_ns = instantiate_ns;
        record.memory_bytes = memory_bytes;
      }
      write_record(record, lines);
    }
    for (const capture::GraphRecord& record : made.records)
      if (!record.instantiated) capture::write_graph_end(record.number, lines);
    if (records_replays()) {
      replays_.add_graph(made.number, made.expected_ops);
    } else if (exec == 0) {
      capture::write_graph_end(made.number, lines);
    }
    if (exec != 0) {
      if (const auto old = execs_.find(exec); old != execs_.end()) end_graph(old->second, lines);
      std::erase(open_execs_, exec);
      execs_[exec] = Exec();
      execs_[exec].number = made.number;
      open_execs_.push_back(exec);
      if (open_execs_.size() > kMaxOpenExecs) {
        Exec& oldest = execs_.at(open_execs_.front());
        write_exec(oldest, lines);
        records_replays() ? replays_.close_graph(oldest.number) : end_graph(oldest, lines);
        open_execs_.pop_front();
        ++execs_given_up_;
      }
    }
  }
  flush_due_ns_.store(now_ns() + kBurstNs, std::memory_order_relaxed);
  if (!file_.write(lines)) switch_off("cannot write " + file_.path());
}

void Recorder::write_failed(capture::GraphEntry entry) {
  capture::mark_unjoined(entry);
  entry.status = entry.failure && entry.failure->is_broken_before ? "invalidated" : "failed";
  capture::GraphRecord record;
  record.role = "captured";
  record.edges_known = false;
  record.eager_known = settings_.eager;
  std::vector<std::pair<Handle, capture::NodeOrigin>> nodes(entry.nodes.begin(), entry.nodes.end());
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a.second.sequence < b.second.sequence; });
  record.entry = std::move(entry);
  const std::lock_guard output_lock(output_);
  if (!open_file()) return;
  std::string lines;
  {
    const std::lock_guard lock(state_);
    write_changes(lines);
    record.number = numbers_.fetch_add(1, std::memory_order_relaxed);
    std::unordered_map<std::uint32_t, std::uint32_t> functions;
    for (const auto& [handle, origin] : nodes) {
      capture::NodeRecord node;
      node.kind = origin.kind == nullptr ? "unknown" : origin.kind;
      node.origin = origin;
      node.has_origin = true;
      if (origin.name != kNone) {
        const auto [number, is_new] =
            functions.try_emplace(origin.name, static_cast<std::uint32_t>(record.functions.size()));
        if (is_new) {
          record.functions.emplace_back();
          record.functions.back().name = book_.name(origin.name);
        }
        node.function = number->second;
      }
      record.nodes.push_back(std::move(node));
    }
    write_record(record, lines);
    capture::write_graph_end(record.number, lines);
  }
  if (!file_.write(lines)) switch_off("cannot write " + file_.path());
}

bool Recorder::capture_left(const std::string& error, std::vector<capture::FrameText> frames) {
  capture::Failure failure;
  failure.call = "exception";
  // What the program says may hold its data.
  failure.error = settings_.redact ? error.substr(0, error.find(':')) : error;
  failure.thread = static_cast<std::uint32_t>(gettid());
  failure.sequence = next_sequence();
  failure.stack = intern_stack(std::move(frames));
  std::optional<capture::GraphEntry> entry = with_book([&](capture::CaptureBook& book) -> std::optional<capture::GraphEntry> {
    std::optional<capture::CaptureBook::ActiveCapture> own;
    for (const capture::CaptureBook::ActiveCapture& active : book.active())
      if (active.thread == failure.thread && (!own || own->begin_sequence < active.begin_sequence)) own = active;
    if (!own || own->has_failed) return std::nullopt;
    book.capture_failed(own->origin_stream, failure);
    return book.copy_failed(own->origin_stream);
  });
  if (!entry) return false;
  write_failed(std::move(*entry));
  return true;
}

void Recorder::exec_updated(Handle exec, bool ok) {
  const std::lock_guard lock(state_);
  const auto place = execs_.find(exec);
  if (place == execs_.end()) return;
  ++(ok ? place->second.facts.updates : place->second.facts.refused_updates);
  exec_changed(exec, place->second);
}

void Recorder::exec_uploaded(Handle exec, std::int64_t ns) {
  const std::lock_guard lock(state_);
  const auto place = execs_.find(exec);
  if (place == execs_.end() || place->second.facts.upload_ns != 0) return;
  place->second.facts.upload_ns = ns;
  exec_changed(exec, place->second);
}

void Recorder::exec_destroyed(Handle exec) {
  const std::lock_guard lock(state_);
  const auto place = execs_.find(exec);
  if (place == execs_.end()) return;
  Exec& gone = place->second;
  gone.facts.destroyed_sequence = next_sequence();
  moments_.add({capture::wall_clock_us(), gone.facts.destroyed_sequence});
  const bool was_ended = gone.is_ended;
  if (!records_replays()) write_exec(gone, pending_);
  end_graph(gone, pending_);
  // Where all its replays are there its line was written with them.
  if (records_replays() && (was_ended || !gone.is_ended)) write_exec(gone, pending_);
  execs_.erase(place);
  std::erase(open_execs_, exec);
}

bool Recorder::exec_launched(Handle exec) {
  const std::uint64_t launches = graph_launches_.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint64_t sequence = next_sequence();
  const std::int64_t us = capture::wall_clock_us();
  {
    const std::lock_guard lock(state_);
    if (const auto place = execs_.find(exec); place != execs_.end()) {
      ++place->second.launches;
      place->second.facts.last_launch_sequence = sequence;
      place->second.last_launch_us = us;
      exec_changed(exec, place->second);
    }
  }
  return settings_.detach_launches != 0 && launches >= settings_.detach_launches;
}

bool Recorder::detach_is_due() const {
  if (settings_.detach_after_ns == 0) return false;
  const std::uint64_t first = first_capture_ns_.load(std::memory_order_relaxed);
  return first != 0 && now_ns() - first >= settings_.detach_after_ns;
}

bool Recorder::is_traced() {
  const std::lock_guard lock(state_);
  // Each live graph has been launched once more than was asked for: its launches are over, or nearly.
  for (const auto& [handle, exec] : execs_)
    if (exec.launches <= settings_.replays) return false;
  return true;
}

bool Recorder::has_all_replays() {
  const std::lock_guard lock(state_);
  return !replays_.is_waiting();
}

bool Recorder::eager_wants_stack(Handle function) {
  const std::lock_guard lock(eager_mutex_);
  return eager_.wants_stack(function);
}

void Recorder::add_eager(CUfunction function, const char* name, const capture::EagerLaunch& launch) {
  const auto handle = reinterpret_cast<Handle>(function);
  std::unique_lock lock(eager_mutex_);
  if (!eager_.knows(handle)) {
    lock.unlock();
    capture::FunctionRecord record = capture::read_function(driver_, function);
    if (record.name.empty() && name != nullptr) record.name = name;
    lock.lock();
    eager_.describe(handle, std::move(record));
  }
  eager_.add(handle, launch);
}

bool Recorder::has_open_capture(std::uint32_t thread) {
  const std::lock_guard lock(state_);
  const std::vector<capture::CaptureBook::ActiveCapture> active = book_.active();
  return std::any_of(active.begin(), active.end(), [&](const auto& each) { return each.thread == thread && !each.has_failed; });
}

void Recorder::add_eager_copy(const char* kind, const capture::NodeOrigin& origin) {
  const std::lock_guard lock(eager_mutex_);
  eager_.add_copy(kind, origin);
}

void Recorder::flush_held_frees() {
  // What a stale launch does may end the process; but programs that free much are not to write at each free.
  constexpr std::uint64_t kLeastNs = 20'000'000;
  {
    const std::lock_guard lock(state_);
    const std::uint64_t now = now_ns();
    if (now < held_flush_ns_ + kLeastNs || !timeline_.take_held_freed()) return;
    held_flush_ns_ = now;
  }
  write_now();
}

bool Recorder::flush_is_due() const {
  if (flush_requested_.load(std::memory_order_relaxed)) return true;
  const std::uint64_t due = flush_due_ns_.load(std::memory_order_relaxed);
  return due != 0 && now_ns() >= due;
}

void Recorder::flush() {
  flush_requested_.store(false, std::memory_order_relaxed);
  flush_due_ns_.store(0, std::memory_order_relaxed);
  flushes_.fetch_add(1, std::memory_order_relaxed);
  write_now();
}

void Recorder::write_now() {
  const std::lock_guard output_lock(output_);
  if (!file_.is_open()) return;
  std::string lines;
  {
    const std::lock_guard lock(state_);
    write_changes(lines);
  }
  if (!lines.empty() && !file_.write(lines)) switch_off("cannot write " + file_.path());
}

void Recorder::mark_moment() {
  const std::lock_guard lock(state_);
  moments_.add({capture::wall_clock_us(), next_sequence()});
}

bool Recorder::add_blocks(std::span<const std::uint64_t> words, std::span<const std::string_view> pools, std::uint64_t moment) {
  std::vector<std::uint64_t> dated(words.begin(), words.end());
  {
    const std::lock_guard lock(state_);
    std::vector<capture::Moment> launches;
    for (const auto& [handle, exec] : execs_)
      if (exec.last_launch_us != 0) launches.push_back({exec.last_launch_us, exec.facts.last_launch_sequence});
    // Equal times are frequent: allocations come in bursts.
    std::int64_t known_us = 0;
    std::uint64_t known = 0;
    for (std::size_t i = capture::kBlockSince; i < dated.size(); i += capture::kBlockWords) {
      const auto us = static_cast<std::int64_t>(dated[i]);
      if (us != known_us) known_us = us, known = us == 0 ? 0 : moments_.before(us, launches);
      dated[i] = known;
    }
  }
  std::string lines;
  capture::write_blocks(dated, pools, moment, lines);
  const std::lock_guard output_lock(output_);
  if (!file_.is_open()) return false;
  if (!file_.write(lines)) switch_off("cannot write " + file_.path());
  return true;
}

void Recorder::blocks_failed(std::string_view why) {
  if (!blocks_expected_.exchange(false)) return;
  std::string lines;
  capture::write_no_blocks(why, lines);
  const std::lock_guard output_lock(output_);
  if (file_.is_open() && !file_.write(lines)) switch_off("cannot write " + file_.path());
}

void Recorder::add_clone(const Instantiation& instantiation, Handle original, std::uint64_t clone_id) {
  const auto place = instantiation.nodes.find(original);
  const std::lock_guard lock(state_);
  // A node that was not walked is one of a body: the driver may clone bodies from copies of its own.
  if (place == instantiation.nodes.end()) return replays_.add_clone(clone_id, instantiation.number, -1, {});
  replays_.add_clone(clone_id, instantiation.number, place->second.node, place->second.kind);
}

void Recorder::add_operations(std::span<const capture::ActivityOp> operations, std::size_t dropped) {
  const std::lock_guard output_lock(output_);
  std::string lines;
  {
    const std::lock_guard lock(state_);
    dropped_ += dropped;
    // A destroyed executable's line comes before its graph's end.
    lines += pending_;
    pending_.clear();
    for (const capture::ActivityOp& operation : operations) replays_.add_op(operation);
    replays_.write_finished(lines);
  }
  if (!lines.empty() && file_.is_open() && !file_.write(lines)) switch_off("cannot write " + file_.path());
}

void Recorder::finish(const std::string& why) {
  // Captures that broke or that nobody ended.
  std::vector<Handle> broken;
  with_book([&](capture::CaptureBook& book) {
    for (const capture::CaptureBook::ActiveCapture& active : book.active()) {
      if (!active.has_failed && !why.empty()) continue;  // it may yet end well
      capture::Failure failure;
      failure.call = "exit";
      failure.thread = active.thread;
      book.capture_failed(active.origin_stream, failure);
      broken.push_back(active.origin_stream);
    }
  });
  for (const Handle stream : broken) {
    std::optional<capture::GraphEntry> entry =
        with_book([&](capture::CaptureBook& book) { return book.take_failed(stream); });
    if (entry && !entry->is_written) write_failed(std::move(*entry));
  }
  const std::lock_guard output_lock(output_);
  on_.store(false, std::memory_order_relaxed);
  if (!file_.is_open()) return;
  std::string lines;
  {
    const std::lock_guard lock(state_);
    write_changes(lines);
    if (records_replays()) {
      replays_.write_all(lines);
    } else {
      for (const Handle handle : open_execs_) {
        Exec& exec = execs_.at(handle);
        write_exec(exec, lines);
        end_graph(exec, lines);
      }
    }
    if (!why.empty()) capture::write_loss("info", why, 1, lines);
    const auto loss = [&](const char* what, std::uint64_t count) {
      if (count != 0) capture::write_loss("data_loss", what, count, lines);
    };
    loss("activity records dropped by CUPTI", dropped_);
    loss("activity records without times, or that end before they start", replays_.odd());
    loss("activity records of graph nodes that were not recorded", replays_.unknown());
    if (blocks_missed_.load() != 0)
      capture::write_loss("info",
                          "looks at the caching allocator that were too late for some of its calls: memory may have changed hands "
                          "unseen",
                          blocks_missed_.load(), lines);
    loss("source stacks missed: the interpreter lock was not free in time", stacks_missed_.load());
    if (settings_.python_stacks && !stacks_on_.load())
      loss("source stacks were switched off: the interpreter lock was not free ten times in a row", 1);
    if (execs_given_up_ != 0)
      capture::write_loss("info", "graphs whose later updates were not watched", execs_given_up_, lines);
    {
      const std::lock_guard eager_lock(eager_mutex_);
      if (eager_.folded() != 0)
        capture::write_loss("info", "launches outside capture that were counted with others of their function",
                            eager_.folded(), lines);
    }
    if (timeline_.forgotten() != 0)
      capture::write_loss("info", "allocations that were made and freed between two graphs and are left out",
                          timeline_.forgotten(), lines);
    if (ranges_.refused() != 0)
      capture::write_loss("data_loss", "NVTX range stacks beyond the first 65536", ranges_.refused(), lines);
    loss("allocations that overlap an earlier one: its free was not seen", timeline_.overlaps());
  }
  file_.write(lines);
  file_.write_end();
}

}  // namespace cglint::record
