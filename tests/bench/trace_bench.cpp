// Whole-process measurements over one trace; each prints one JSON line with seconds, bytes and the peak resident set
// (VmHWM: mapped pages included).
//
//   trace_bench import FILE      the importer, through read_file: bytes to IR
//   trace_bench baseline FILE    simdjson on-demand over the bytes in memory: every event, reading ph, cat, name, ts, dur
//   trace_bench load FILE        reading the bytes into memory only
#include <fmt/format.h>
#include <simdjson.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "import/common/importer.h"

namespace {

std::uint64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6));
  return 0;
}

// CPU time of all threads: what a busy machine leaves comparable.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int import_file(const char* path) {
  using namespace cglint;
  const double cpu_start = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  auto recording = import::read_file(path, {});
  const double seconds = seconds_since(start);
  const double cpu = cpu_seconds() - cpu_start;
  if (!recording) {
    fmt::print(stderr, "{}\n", recording.error().to_string());
    return 1;
  }
  std::size_t replays = 0, ops = recording->loose_ops.size(), nodes = 0;
  for (const auto& graph : recording->graphs) {
    replays += graph->replays.size();
    ops += graph->replay_ops.size();
    nodes += graph->node_count();
  }
  fmt::print("{{\"mode\": \"import\", \"seconds\": {:.3f}, \"cpu_seconds\": {:.3f}, \"peak_mib\": {:.0f}, \"graphs\": {}, \"nodes\": {}, \"replays\": {}, "
             "\"operations\": {}}}\n",
             seconds, cpu, static_cast<double>(peak_kib()) / 1024, recording->graphs.size(), nodes, replays, ops);
  return 0;
}

int baseline(const char* path) {
  using namespace simdjson;
  padded_string json;
  if (padded_string::load(path).get(json) != SUCCESS) return 1;
  ondemand::parser parser;
  std::uint64_t events = 0, sum = 0;
  // The parser's buffers are made in a first, untimed call, as for any long-lived parser.
  if (parser.allocate(json.size()) != SUCCESS) return 1;
  const double cpu_start = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  ondemand::document document;
  if (parser.iterate(json).get(document) != SUCCESS) return 1;
  ondemand::array array;
  if (document["traceEvents"].get_array().get(array) != SUCCESS) return 1;
  for (auto element : array) {
    ondemand::object object;
    if (element.get_object().get(object) != SUCCESS) return 1;
    ++events;
    for (auto field_result : object) {
      ondemand::field field;
      if (std::move(field_result).get(field) != SUCCESS) return 1;
      const ondemand::raw_json_string key = field.key();
      std::string_view text;
      double number = 0;
      if (key == "ph" || key == "cat" || key == "name") {
        if (field.value().get_string().get(text) == SUCCESS) sum += text.size();
      } else if (key == "ts" || key == "dur") {
        if (field.value().get_double().get(number) == SUCCESS) sum += static_cast<std::uint64_t>(number);
      }
    }
  }
  fmt::print("{{\"mode\": \"baseline\", \"seconds\": {:.3f}, \"cpu_seconds\": {:.3f}, \"peak_mib\": {:.0f}, \"events\": {}, \"bytes\": {}, \"sum\": {}}}\n",
             seconds_since(start), cpu_seconds() - cpu_start, static_cast<double>(peak_kib()) / 1024, events, json.size(), sum);
  return 0;
}

int load(const char* path) {
  const auto start = std::chrono::steady_clock::now();
  simdjson::padded_string json;
  if (simdjson::padded_string::load(path).get(json) != simdjson::SUCCESS) return 1;
  fmt::print("{{\"mode\": \"load\", \"seconds\": {:.3f}, \"bytes\": {}}}\n", seconds_since(start), json.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "import") return import_file(argv[2]);
  if (argc == 3 && std::string_view(argv[1]) == "baseline") return baseline(argv[2]);
  if (argc == 3 && std::string_view(argv[1]) == "load") return load(argv[2]);
  fmt::print(stderr, "usage: trace_bench import|baseline|load FILE\n");
  return 2;
}
