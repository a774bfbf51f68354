#include "runner/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <iostream>
#include <memory>
#include <utility>

#include "runner/access.h"
#include "runner/events.h"
#include "runner/gpu_helpers.h"
#include "runner/owners.h"

namespace cglint::models {
namespace {

using Clock = std::chrono::steady_clock;
double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// A failed call ends the session: thrown as this, caught in run_session().
struct Failure {
  cudaError_t status;
  std::string what;
  int exit_code = kExitCuda;
  bool says_all = false;  // `what` needs no status beside it
};

void need(cudaError_t status, const char* what, int exit_code = kExitCuda) {
  if (status != cudaSuccess) throw Failure{status, what, exit_code};
}

std::string message_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
}

std::uint64_t hash_of(const std::vector<std::uint8_t>& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3U;
  return hash;
}

std::string hex(std::uint64_t value) {
  std::array<char, 24> text;
  std::snprintf(text.data(), text.size(), "0x%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

struct EventDeleter {
  using pointer = cudaEvent_t;
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
struct StreamDeleter {
  using pointer = cudaStream_t;
  void operator()(cudaStream_t stream) const { (void)cudaStreamDestroy(stream); }
};
using EventOwner = std::unique_ptr<cudaEvent_t, EventDeleter>;
using StreamOwner = std::unique_ptr<cudaStream_t, StreamDeleter>;

StreamOwner make_stream() {
  cudaStream_t stream = nullptr;
  need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return StreamOwner(stream);
}

EventOwner make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  need(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
  return EventOwner(event);
}

// Ends the capture on every path, so that a failing step leaves the streams usable.
class CaptureGuard {
 public:
  explicit CaptureGuard(cudaStream_t stream) : stream_(stream) {
    need(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;
  ~CaptureGuard() {
    GraphOwner graph;
    if (stream_ != nullptr) (void)end(graph);
  }
  cudaError_t end(GraphOwner& graph) {
    cudaGraph_t captured = nullptr;
    const cudaError_t status = cudaStreamEndCapture(std::exchange(stream_, nullptr), &captured);
    graph.reset(captured);
    if (status != cudaSuccess) (void)cudaGetLastError();
    return status;
  }

 private:
  cudaStream_t stream_;
};

// The streams and events that the harness lends to a step.
class Lanes {
 public:
  explicit Lanes(int side_streams) : main_(make_stream()) {
    for (int i = 0; i < side_streams; ++i) {
      owners_.push_back(make_stream());
      side_.push_back(owners_.back().get());
    }
  }
  [[nodiscard]] cudaStream_t main() const { return main_.get(); }
  StepContext context(bool capturing) {
    used_ = 0;
    StepContext context;
    context.main = main_.get();
    context.side = side_;
    context.harness = this;
    context.capturing = capturing;
    context.next_event = [](StepContext& step) { return static_cast<Lanes*>(step.harness)->next_event(); };
    return context;
  }

 private:
  cudaEvent_t next_event() {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return nullptr;
      events_.emplace_back(event);
    }
    return events_[used_++].get();
  }

  StreamOwner main_;
  std::vector<StreamOwner> owners_;
  std::vector<cudaStream_t> side_;
  std::deque<EventOwner> events_;
  std::size_t used_ = 0;
};

struct Captured {
  GraphOwner graph;
  std::size_t nodes = 0;
  double capture_us = 0;
};

class Loaded {
 public:
  Loaded(const ModelInfo& info, const StackOptions& options) : model_(info.make(options)) {
    if (model_ == nullptr)
      throw Failure{cudaErrorInvalidValue, "these options do not fit the model", kExitUsage, true};
    const Clock::time_point begin = Clock::now();
    need_step(model_->prepare(arena_), "preparing the model");
    need(cudaDeviceSynchronize(), "preparing the model");
    Event("prepared")
        .integer("batch", options.batch)
        .integer("persistent_bytes", static_cast<std::int64_t>(arena_.persistent_bytes()))
        .number("seconds", us_since(begin) / 1e6);
  }

  void eager_step(Lanes& lanes) {
    StepContext context = lanes.context(false);
    need_step(model_->record(context), "the step outside capture");
    need(cudaDeviceSynchronize(), "the step outside capture");
  }
  void reset() {
    need(model_->reset(), "resetting the model");
    need(cudaDeviceSynchronize(), "resetting the model");
  }
  std::uint64_t output_hash() {
    std::vector<std::uint8_t> bytes;
    need(model_->output(bytes), "reading the output");
    return hash_of(bytes);
  }
  // What the step, or the end of the capture, returned.
  cudaError_t capture(Lanes& lanes, Captured& captured) {
    const Clock::time_point begin = Clock::now();
    CaptureGuard guard(lanes.main());
    StepContext context = lanes.context(true);
    const cudaError_t step = model_->record(context);
    if (step != cudaSuccess) (void)cudaGetLastError();
    const cudaError_t end = guard.end(captured.graph);
    captured.capture_us = us_since(begin);
    if (step != cudaSuccess) return step;
    if (end != cudaSuccess) return end;
    return cudaGraphGetNodes(captured.graph.get(), nullptr, &captured.nodes);
  }
  std::string measure_accesses(const Captured& captured, Lanes& lanes) {
    return models::measure_accesses(captured.graph.get(), *model_, lanes.main());
  }
  CheckResult check(Lanes& lanes) {
    StepContext context = lanes.context(false);
    return model_->check(context);
  }
  [[nodiscard]] const Arena& arena() const { return arena_; }

 private:
  // The model's own reason goes before the status.
  void need_step(cudaError_t status, const char* what) const {
    if (status == cudaSuccess) return;
    const std::string reason = model_->failure();
    throw Failure{status, reason.empty() ? what : reason,
                  status == cudaErrorMemoryAllocation ? kExitCannotRun : kExitCuda, !reason.empty()};
  }

  Arena arena_;  // outlives the model's tensors
  std::unique_ptr<Model> model_;
};

ExecOwner instantiate(const Captured& captured, double& us) {
  const Clock::time_point begin = Clock::now();
  cudaGraphExec_t exec = nullptr;
  need(cudaGraphInstantiate(&exec, captured.graph.get(), 0), "cudaGraphInstantiate");
  us = us_since(begin);
  return ExecOwner(exec);
}

double upload(const ExecOwner& exec, cudaStream_t stream) {
  const Clock::time_point begin = Clock::now();
  need(cudaGraphUpload(exec.get(), stream), "cudaGraphUpload");
  need(cudaStreamSynchronize(stream), "cudaGraphUpload");
  return us_since(begin);
}

void replay(const ExecOwner& exec, cudaStream_t stream) {
  need(cudaGraphLaunch(exec.get(), stream), "cudaGraphLaunch", kExitFault);
  need(cudaStreamSynchronize(stream), "the replay", kExitFault);
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  need(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

struct Spread {
  double median = 0, p10 = 0, p90 = 0;
};
Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<std::size_t>(place);
    const std::size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
  };
  return {at(0.5), at(0.1), at(0.9)};
}

constexpr std::size_t kMinFlushBytes = std::size_t{256} << 20;

// Four times L2, read once: nothing of the model is left there.
std::size_t flush_bytes() {
  int device = 0, l2 = 0;
  need(cudaGetDevice(&device), "cudaGetDevice");
  need(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
  return std::max(kMinFlushBytes, std::size_t{4} * static_cast<std::size_t>(l2));
}

// GPU time of what `launch` enqueues, between two events, with L2 emptied of the model's data before. A
// kernel that spins keeps the stream busy until everything is enqueued, so that the CPU's cost of the launch
// stays out; that cost is measured at the same time.
template <typename Reset, typename Launch>
void time_replays(const char* name, Lanes& lanes, int samples, const Reset& reset, const Launch& launch) {
  constexpr int kWarmUp = 20;
  const cudaStream_t stream = lanes.main();
  const EventOwner begin = make_event(cudaEventDefault), end = make_event(cudaEventDefault);
  Arena arena;
  Tensor buffer;
  const std::size_t bytes = flush_bytes();
  need(arena.persistent(bytes + 256, buffer), "the buffer that empties L2", kExitCannotRun);
  need(cudaMemset(buffer.address(), 0, bytes + 256), "cudaMemset");
  need(cudaDeviceSynchronize(), "cudaMemset");
  auto* const sink = reinterpret_cast<std::uint32_t*>(buffer.as<char>() + bytes);
  std::vector<double> gpu_us, cpu_us;
  double spin_us = 500;
  for (int i = -kWarmUp; i < samples; ++i) {
    reset();
    need(enqueue_read(buffer.address(), bytes, sink, stream), "emptying L2");
    need(enqueue_spin(static_cast<std::uint64_t>(spin_us * 1e3), stream), "the spinning kernel");
    need(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    const Clock::time_point start = Clock::now();
    launch(stream);
    const double launch_us = us_since(start);
    need(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    need(cudaEventSynchronize(end.get()), "the replay", kExitFault);
    float ms = 0;
    need(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    if (i < 0) {
      // Enough for the slowest launch seen, but no more than needed: the first one uploads.
      if (i == -kWarmUp / 2) cpu_us.clear();
      cpu_us.push_back(launch_us);
      if (i == -1) {
        spin_us = *std::max_element(cpu_us.begin(), cpu_us.end()) * 1.5 + 30;
        cpu_us.clear();
      } else {
        spin_us = std::max(spin_us, launch_us * 1.5 + 30);
      }
      continue;
    }
    gpu_us.push_back(static_cast<double>(ms) * 1e3);
    cpu_us.push_back(launch_us);
  }
  const Spread gpu = spread_of(gpu_us), cpu = spread_of(cpu_us);
  Event(name)
      .integer("samples", samples)
      .number("median_us", gpu.median)
      .number("p10_us", gpu.p10)
      .number("p90_us", gpu.p90)
      .number("launch_cpu_us", cpu.median)
      .number("launch_cpu_p90_us", cpu.p90)
      .integer("l2_flush_bytes", static_cast<std::int64_t>(bytes));
}

// Device memory of an executable graph: the average over several more, because the driver allocates in
// chunks.
void measure_memory(const Captured& captured, cudaStream_t stream, double first_instantiate_us,
                    double upload_us) {
  constexpr int kMore = 8;
  std::vector<ExecOwner> more;
  std::vector<double> instantiate_us, uploads_us{upload_us};
  const std::size_t before = free_bytes();
  for (int i = 0; i < kMore; ++i) {
    double us = 0;
    more.push_back(instantiate(captured, us));
    instantiate_us.push_back(us);
    uploads_us.push_back(upload(more.back(), stream));
  }
  const std::size_t after = free_bytes();
  Event("executable")
      .integer("memory_bytes", before > after ? static_cast<std::int64_t>((before - after) / kMore) : 0)
      .integer("memory_averaged_over", kMore)
      .number("instantiate_us", spread_of(instantiate_us).median)
      .number("first_instantiate_us", first_instantiate_us)
      .number("upload_us", spread_of(uploads_us).median);
}

bool wait_for_go() {
  std::string order;
  return static_cast<bool>(std::getline(std::cin, order)) && order == "go";
}

void tell_gpu() {
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp properties{};
  need(cudaGetDevice(&device), "cudaGetDevice");
  need(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  Event("gpu")
      .text("name", properties.name)
      .integer("sm_count", properties.multiProcessorCount)
      .integer("l2_bytes", properties.l2CacheSize)
      .integer("memory_bytes", static_cast<std::int64_t>(properties.totalGlobalMem))
      .text("compute_capability", std::to_string(properties.major) + "." + std::to_string(properties.minor))
      .integer("driver_version", driver)
      .integer("runtime_version", runtime);
}

// One line before anything is allocated, where it would not fit.
void need_memory(const ModelInfo& info, const std::vector<StackOptions>& stacks, bool timed) {
  std::size_t wanted = timed ? flush_bytes() : 0;
  for (const StackOptions& stack : stacks) {
    const std::size_t bytes = info.memory_bytes(stack);
    if (bytes == 0)
      throw Failure{cudaErrorInvalidValue,
                    "the model does not take these options (batch " + std::to_string(stack.batch) +
                        ", context " + std::to_string(stack.context) + ", layers " +
                        std::to_string(stack.layers) + ")",
                    kExitUsage, true};
    wanted += bytes;
  }
  const std::size_t free = free_bytes();
  if (wanted <= free) return;
  std::array<char, 160> text;
  std::snprintf(text.data(), text.size(), "too little GPU memory: %.1f GB needed, %.1f GB free",
                static_cast<double>(wanted) / 1e9, static_cast<double>(free) / 1e9);
  throw Failure{cudaErrorMemoryAllocation, text.data(), kExitCannotRun, true};
}

// Captures; where that fails, proves that the streams still work. True: there is a graph.
bool capture_step(Loaded& loaded, Lanes& lanes, const VariantInfo& variant, Captured& captured,
                  int& exit_code) {
  const cudaError_t status = loaded.capture(lanes, captured);
  if (status == cudaSuccess && !variant.capture_fails) {
    Event("captured")
        .integer("nodes", static_cast<std::int64_t>(captured.nodes))
        .number("capture_us", captured.capture_us);
    return true;
  }
  if (status == cudaSuccess) {
    Event("error").text("kind", "capture").text("message", "the capture should have failed, but did not");
    exit_code = kExitWrong;
    return false;
  }
  loaded.reset();
  loaded.eager_step(lanes);
  const std::uint64_t before = loaded.output_hash();
  loaded.reset();
  loaded.eager_step(lanes);
  const bool usable = loaded.output_hash() == before;
  Event("capture_failed")
      .text("message", message_of(status))
      .boolean("expected", variant.capture_fails)
      .boolean("streams_usable", usable);
  exit_code = !variant.capture_fails ? kExitCuda : usable ? kExitOk : kExitWrong;
  return false;
}

int run_one(const ModelInfo& info, const VariantInfo& variant, const SessionOptions& options) {
  int exit_code = kExitOk;
  const bool timed = !options.wait && options.replay && options.samples > 0;
  need_memory(info, {options.stack}, timed);
  Lanes lanes(info.side_streams);
  Loaded loaded(info, options.stack);
  loaded.reset();
  loaded.eager_step(lanes);  // loads every kernel; as launches outside capture it is part of a recording
  const std::uint64_t eager_hash = options.wait ? 0 : loaded.output_hash();
  loaded.reset();
  Captured captured;
  if (!capture_step(loaded, lanes, variant, captured, exit_code)) return exit_code;
  if (!options.dot.empty())
    need(cudaGraphDebugDotPrint(captured.graph.get(), options.dot.c_str(), cudaGraphDebugDotFlagsVerbose),
         "cudaGraphDebugDotPrint");
  if (options.measure_access) {
    const std::string problem = loaded.measure_accesses(captured, lanes);
    if (!problem.empty()) throw Failure{cudaSuccess, "accesses could not be measured: " + problem};
    return kExitOk;
  }
  if (options.isolate) {
    const IsolateResult result = isolate(captured.graph.get(), lanes.main(), *options.isolate);
    if (!result.problem.empty())
      throw Failure{cudaSuccess, result.problem, result.is_fault ? kExitFault : result.no_memory ? kExitCannotRun : kExitCuda, true};
    return kExitOk;
  }
  double instantiate_us = 0;
  const ExecOwner exec = instantiate(captured, instantiate_us);
  if (options.wait) {
    Event("instantiated").integer("nodes", static_cast<std::int64_t>(captured.nodes));
    if (!wait_for_go()) return kExitOk;
    for (int i = 0; i < options.replays; ++i) replay(exec, lanes.main());
    Event("replayed").integer("replays", options.replays);
    return kExitOk;
  }
  const double upload_us = upload(exec, lanes.main());
  if (options.replay) {
    replay(exec, lanes.main());
    const std::uint64_t hash = loaded.output_hash();
    Event("output").text("hash", hex(hash)).boolean("equals_eager", hash == eager_hash);
    if (hash != eager_hash) exit_code = kExitWrong;
    if (options.check) {
      const Clock::time_point begin = Clock::now();
      const CheckResult result = loaded.check(lanes);
      need(cudaDeviceSynchronize(), "the reference");
      Event event("check");
      event.boolean("ok", result.ok).number("error", result.error).number("tolerance", result.tolerance);
      if (result.rms_tolerance > 0) event.number("rms_error", result.rms_error).number("rms_tolerance", result.rms_tolerance);
      if (result.stack_tolerance > 0)
        event.number("stack_error", result.stack_error).number("stack_tolerance", result.stack_tolerance);
      event.text("detail", result.detail).number("seconds", us_since(begin) / 1e6);
      if (!result.ok) exit_code = kExitWrong;
    }
  }
  if (timed)
    time_replays(
        "timing", lanes, options.samples, [&] { loaded.reset(); },
        [&](cudaStream_t stream) {
          need(cudaGraphLaunch(exec.get(), stream), "cudaGraphLaunch", kExitFault);
        });
  if (options.samples > 0) measure_memory(captured, lanes.main(), instantiate_us, upload_us);
  return exit_code;
}

// Two graphs in one recording, replayed in turn: a round is `first_launches` of the first and one of the second.
struct TwoGraphs {
  StackOptions first, second;
  int first_launches = 1;
  int rounds = 1;
};

// A draft graph of few layers is replayed once for each token that it proposes, then the target graph
// verifies them in one step of batch * (tokens + 1).
TwoGraphs serving(const SessionOptions& options) {
  TwoGraphs two{options.stack, options.stack, options.draft_tokens, options.serve_rounds};
  two.first.layers = options.draft_layers;
  two.second.batch = options.stack.batch * (options.draft_tokens + 1);
  return two;
}

// The same step in another variant, so that a recording of both tells how long a launch takes in either.
TwoGraphs beside(const SessionOptions& options) {
  TwoGraphs two{options.stack, options.stack, 1, options.replays};
  two.first.variant = options.beside;
  return two;
}

int run_two(const ModelInfo& info, const VariantInfo& variant, const SessionOptions& options, const TwoGraphs& two) {
  int exit_code = kExitOk;
  need_memory(info, {two.first, two.second}, !options.wait);
  Lanes lanes(info.side_streams);
  Loaded first(info, two.first), second(info, two.second);
  Captured first_graph, second_graph;
  for (Loaded* const loaded : {&first, &second}) {
    loaded->reset();
    loaded->eager_step(lanes);
    loaded->reset();
    if (!capture_step(*loaded, lanes, variant, loaded == &first ? first_graph : second_graph, exit_code))
      return exit_code;
  }
  double us = 0;
  const ExecOwner first_exec = instantiate(first_graph, us), second_exec = instantiate(second_graph, us);
  Event("instantiated")
      .integer("nodes", static_cast<std::int64_t>(first_graph.nodes + second_graph.nodes))
      .integer("first_nodes", static_cast<std::int64_t>(first_graph.nodes))
      .integer("second_nodes", static_cast<std::int64_t>(second_graph.nodes));
  const auto launch_round = [&](cudaStream_t stream) {
    for (int i = 0; i < two.first_launches; ++i)
      need(cudaGraphLaunch(first_exec.get(), stream), "cudaGraphLaunch", kExitFault);
    need(cudaGraphLaunch(second_exec.get(), stream), "cudaGraphLaunch", kExitFault);
  };
  if (options.wait) {
    if (!wait_for_go()) return kExitOk;
    for (int round = 0; round < two.rounds; ++round) {
      launch_round(lanes.main());
      need(cudaStreamSynchronize(lanes.main()), "the replay", kExitFault);
    }
    Event("replayed").integer("replays", two.rounds);
    return kExitOk;
  }
  if (options.samples > 0)
    time_replays(
        "timing", lanes, options.samples, [&] { first.reset(), second.reset(); }, launch_round);
  return exit_code;
}

// Why there is no GPU. Without a driver the runtime only says that its version is too old.
std::string no_gpu_reason(cudaError_t status) {
  int driver = 0;
  if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
    return "no NVIDIA driver";
  return status == cudaSuccess ? "none found" : cudaGetErrorString(status);
}

}  // namespace

int run_session(const ModelInfo& info, const VariantInfo& variant, const SessionOptions& options) {
  const auto tell = [](const Failure& failure, std::string_view kind) {
    const bool names_status = failure.status != cudaSuccess && !failure.says_all;
    Event("error")
        .text("kind", kind)
        .text("message", names_status ? failure.what + ": " + message_of(failure.status) : failure.what);
  };
  try {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      Event("error")
          .text("kind", "no_gpu")
          .text("message", "no usable GPU: " + no_gpu_reason(status));
      return kExitCannotRun;
    }
    need(cudaSetDevice(0), "cudaSetDevice");
    need(cudaFree(nullptr), "creating the CUDA context");
    tell_gpu();
    const cudaError_t found = find_kernels();
    if (found != cudaSuccess) {
      Event("error")
          .text("kind", "no_gpu")
          .text("message", std::string("no usable GPU: this program's kernels are compiled for other chips (") +
                               cudaGetErrorString(found) + "); build it with -DCGLINT_CUDA_TARGETS=RELEASE");
      return kExitCannotRun;
    }
    if (options.serve_rounds > 0) return run_two(info, variant, options, serving(options));
    if (!options.beside.empty()) return run_two(info, variant, options, beside(options));
    return run_one(info, variant, options);
  } catch (const Failure& failure) {
    tell(failure, failure.exit_code == kExitFault       ? "fault"
                  : failure.exit_code == kExitCannotRun ? "memory"
                  : failure.exit_code == kExitUsage     ? "usage"
                                                        : "cuda");
    return failure.exit_code;
  }
}

}  // namespace cglint::models
