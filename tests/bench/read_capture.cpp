// Reads a capture file graph by graph, dropping each, and prints what it cost.
//
//   read_capture FILE
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "import/common/importer.h"

int main(int argc, char** argv) {
  using namespace cglint;
  if (argc != 2) return std::fprintf(stderr, "usage: read_capture FILE\n"), 2;
  std::size_t graphs = 0, nodes = 0, edges = 0;
  import::ReadOptions options;
  options.on_graph = [&](ir::Recording& recording, ir::GraphId id) {
    ++graphs;
    nodes += recording.graphs[id]->node_count();
    edges += recording.graphs[id]->edge_count();
    recording.graphs[id].reset();
  };
  const auto start = std::chrono::steady_clock::now();
  const auto recording = import::read_file(argv[1], options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!recording) return std::fprintf(stderr, "%s\n", recording.error().to_string().c_str()), 2;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto time = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  std::printf("graphs %zu nodes %zu edges %zu losses %zu wall_s %.3f cpu_s %.3f ns_per_node %.0f max_rss_mb %.0f\n", graphs,
              nodes, edges, recording->losses.size(), seconds, time(usage.ru_utime) + time(usage.ru_stime),
              1e9 * (time(usage.ru_utime) + time(usage.ru_stime)) / static_cast<double>(nodes ? nodes : 1),
              static_cast<double>(usage.ru_maxrss) / 1024);
  return 0;
}
