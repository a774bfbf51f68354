#include "capture/process_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/json_writer.h"

namespace cglint::capture {
namespace {

// Without streams: this runs inside other people's processes.
std::string read_file(const char* path) {
  std::string text;
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return text;
  std::array<char, 4096> buffer;
  constexpr std::size_t kMaxBytes = 65536;
  for (ssize_t got = 0;
       text.size() < kMaxBytes && (got = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  close(descriptor);
  return text;
}

// The first of the variables that holds a number, or -1.
std::int64_t number_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view view(text);
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
    if (error == std::errc() && end == view.data() + view.size() && value >= 0) return value;
  }
  return -1;
}

constexpr std::array kVariables = {
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",    "CUDA_VISIBLE_DEVICES",
    "NCCL_GRAPH_MIXING_SUPPORT",   "PYTORCH_ALLOC_CONF",   "PYTORCH_CUDA_ALLOC_CONF"};

}  // namespace

std::string driver_release_of(std::string_view library_path) {
  constexpr std::string_view kPrefix = "libcuda.so.";
  const std::string_view name = library_path.substr(library_path.rfind('/') + 1);
  if (!name.starts_with(kPrefix)) return "";
  const std::string_view release = name.substr(kPrefix.size());
  return release.find('.') == std::string_view::npos ? "" : std::string(release);  // libcuda.so.1 is a link
}

ProcessFacts this_process() {
  ProcessFacts process;
  process.pid = getpid();
  process.rank = number_of({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"});
  process.world_size = number_of({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
  if (process.world_size < 0) process.rank = -1;
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) process.host = host.data();
  process.command = read_file("/proc/self/cmdline");
  while (!process.command.empty() && process.command.back() == '\0') process.command.pop_back();
  process.program = process.command.substr(0, process.command.find('\0'));
  process.program = process.program.substr(process.program.rfind('/') + 1);
  for (char& character : process.command)
    if (character == '\0') character = ' ';
  for (const char* name : kVariables)
    if (const char* const value = std::getenv(name); value != nullptr)
      process.environment.emplace_back(name, value);
  return process;
}

void write_header(std::string_view producer, bool timeline, std::uint64_t created_unix_s, std::string& out) {
  base::JsonWriter json(out);
  json.begin_object();
  json.field("type", "header");
  json.field("format", "cglint-capture");
  json.field("version", "1.0");
  json.field("producer", producer);
  json.field("created_unix_s", created_unix_s);
  json.field("timeline", timeline);
  json.end_object();
  out += '\n';
}

void write_process(const ProcessFacts& process, std::string& out) {
  base::JsonWriter json(out);
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) json.field(name, std::string_view(value));
  };
  json.begin_object();
  json.field("type", "process");
  json.field("process", 0);
  json.field("pid", process.pid);
  if (process.rank >= 0) json.field("rank", process.rank);
  if (process.world_size >= 0) json.field("world_size", process.world_size);
  text("host", process.host);
  text("command", process.command);
  if (process.driver_version != 0) json.field("driver_version", process.driver_version);
  text("driver_release", process.driver_release);
  if (process.cupti_version != 0) json.field("cupti_version", process.cupti_version);
  if (!process.gpus.empty()) {
    json.key("gpus");
    json.begin_array();
    for (const GpuFacts& gpu : process.gpus) {
      json.begin_object();
      json.field("device", gpu.device);
      text("name", gpu.name);
      if (gpu.compute_major != 0) {
        json.key("compute_capability");
        json.begin_array();
        json.number(gpu.compute_major), json.number(gpu.compute_minor);
        json.end_array();
      }
      if (gpu.sm_count != 0) json.field("sm_count", gpu.sm_count);
      if (gpu.memory_bytes != 0) json.field("memory_bytes", gpu.memory_bytes);
      json.end_object();
    }
    json.end_array();
  }
  json.key("environment");
  json.begin_object();
  for (const auto& [name, value] : process.environment) json.field(name, std::string_view(value));
  json.end_object();
  json.end_object();
  out += '\n';
}

}  // namespace cglint::capture
