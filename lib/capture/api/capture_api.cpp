// The C interface to the graph walker.
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>

#include "capture/graph_walker.h"
#include "capture/process_facts.h"
#include "capture/record_file.h"
#include "cglint/capture.h"

namespace cglint::capture {
namespace {

// The driver, found once; a process gets no other one later.
const cuda::DriverApi* driver(std::string& problem) {
  struct Loaded {
    cuda::DriverApi api;
    std::string problem = cuda::load_driver(api);
  };
  static const Loaded* const loaded = new Loaded;
  problem = loaded->problem;
  return problem.empty() ? &loaded->api : nullptr;
}

std::string header(const cuda::DriverApi& api) {
  ProcessFacts process = this_process();
  int version = 0;
  if (api.driver_get_version(&version) == CUDA_SUCCESS) process.driver_version = static_cast<std::uint32_t>(version);
  Dl_info library{};
  std::array<char, PATH_MAX> path;
  if (dladdr(reinterpret_cast<void*>(api.driver_get_version), &library) != 0 && realpath(library.dli_fname, path.data()) != nullptr)
    process.driver_release = driver_release_of(path.data());
  std::string lines;
  write_header("cglint_capture", false, static_cast<std::uint64_t>(time(nullptr)), lines);
  write_process(process, lines);
  return lines;
}

int capture(CUgraph graph, const std::string& path, const char* name, std::string& problem) {
  const cuda::DriverApi* const api = driver(problem);
  if (api == nullptr) return CGLINT_NO_DRIVER;
  std::uint32_t numbers = 0;
  WalkContext context;
  context.driver = api;
  context.entry_of = [](Handle) { return GraphEntry(); };
  context.next_number = [&numbers] { return numbers++; };
  std::vector<GraphRecord> records = walk_graph(context, graph);
  if (records.empty() || !records.back().failure.empty()) {
    problem = "the graph cannot be read: " + (records.empty() ? "nothing is known of it" : records.back().failure);
    return CGLINT_UNREADABLE;
  }
  if (name != nullptr) records.back().name = name;
  std::string lines = header(*api);
  const StackTable stacks;
  const RangeTable ranges;
  for (const GraphRecord& record : records) {
    write_graph(record, {stacks, ranges, {}}, lines);
    if (!record.failure.empty()) write_loss("error", "graph " + std::to_string(record.number) + ": " + record.failure, 1, lines);
  }
  for (const GraphRecord& record : records) write_graph_end(record.number, lines);
  RecordFile file;
  problem = file.open(path);
  if (!problem.empty()) return CGLINT_CANNOT_WRITE;
  if (file.write(lines) && file.write_end()) return CGLINT_OK;
  problem = "cannot write " + path;
  unlink(path.c_str());
  return CGLINT_CANNOT_WRITE;
}

}  // namespace
}  // namespace cglint::capture

extern "C" __attribute__((visibility("default"))) int cglint_capture(struct CUgraph_st* graph, const char* path, const char* name, char* problem,
                                                                    std::size_t problem_size) {
  int status = CGLINT_OUT_OF_MEMORY;
  const char* text = "out of memory";
  std::string what;
  try {
    if (graph == nullptr || path == nullptr || *path == '\0') {
      status = CGLINT_BAD_ARGUMENT;
      what = graph == nullptr ? "no graph was given" : "no path was given";
    } else {
      status = cglint::capture::capture(graph, path, name, what);
    }
    text = what.c_str();
  } catch (...) {
    status = CGLINT_OUT_OF_MEMORY;
  }
  if (problem != nullptr && problem_size != 0) {
    const std::size_t length = std::min(std::strlen(text), problem_size - 1);
    std::memcpy(problem, text, length);
    problem[length] = '\0';
  }
  return status;
}

extern "C" __attribute__((visibility("default"))) const char* cglint_capture_version(void) {
  return CGLINT_VERSION;
}
