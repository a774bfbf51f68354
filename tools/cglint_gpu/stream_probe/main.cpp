// stream_probe: measures, for graphs given as text lines, the replay stream of each node. README.md documents
// both formats.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "stream_probe/generate.h"
#include "stream_probe/graph_spec.h"
#include "stream_probe/measure.h"
#include "stream_probe/overlap.h"

namespace {

using cglint::gpu::GraphSpec;
using cglint::gpu::Measured;

constexpr std::string_view kUsage =
    "usage:\n"
    "  stream_probe kinds                                     list the kinds that can be generated\n"
    "  stream_probe generate KIND SEED COUNT [MOST_NODES]     random graphs of one kind, as lines\n"
    "  stream_probe generate-all SEED COUNT                   of every kind, the kinds in turn\n"
    "  stream_probe small KIND                                every small graph of one kind\n"
    "  stream_probe designed                                  the named patterns\n"
    "  stream_probe measure IN OUT.jsonl [--batch N] [--keep] [--launches N] [--stream "
    "nonblocking|blocking|legacy]\n"
    "                                [--budget SECONDS] [--part I/N] [--append] [--careful N] "
    "[--extra-kinds]\n"
    "  stream_probe overlap IN OUT.jsonl [--spin-us N] [--replays N] [--budget SECONDS]\n"
    "exit codes: 0 done, 2 cannot run here or bad usage, 3 a CUDA error ended the run (start again with "
    "--append --careful BATCH), 4 budget spent\n";

struct Arguments {
  std::vector<std::string> plain;
  int batch = 64;
  bool keep = false;
  cglint::gpu::MeasureOptions options;
  bool append = false;
  bool extra_kinds = false;
  double budget_s = 1e9;
  int part = 0;
  int parts = 1;
  int spin_us = 30;
  int replays = 3;
  int careful = 0;  // that many graphs first go in batches of one
};

bool parse_arguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    const auto number = [&](int& into) {
      if (value == nullptr) return false;
      into = std::atoi(value);
      ++i;
      return into > 0;
    };
    if (argument == "--keep") {
      out.keep = true;
    } else if (argument == "--append") {
      out.append = true;
    } else if (argument == "--extra-kinds") {
      out.extra_kinds = true;
    } else if (argument == "--batch") {
      if (!number(out.batch)) return false;
    } else if (argument == "--launches") {
      if (!number(out.options.launches)) return false;
    } else if (argument == "--stream") {
      const std::string_view name = value != nullptr ? value : "";
      if (name != "nonblocking" && name != "blocking" && name != "legacy") return false;
      out.options.stream = name == "blocking" ? cglint::gpu::MeasureOptions::Stream::kBlocking
                           : name == "legacy" ? cglint::gpu::MeasureOptions::Stream::kLegacyDefault
                                              : cglint::gpu::MeasureOptions::Stream::kNonBlocking;
      ++i;
    } else if (argument == "--careful") {
      if (!number(out.careful)) return false;
    } else if (argument == "--spin-us") {
      if (!number(out.spin_us)) return false;
    } else if (argument == "--replays") {
      if (!number(out.replays)) return false;
    } else if (argument == "--budget") {
      if (value == nullptr) return false;
      out.budget_s = std::atof(value);
      ++i;
    } else if (argument == "--part") {
      if (value == nullptr || std::sscanf(value, "%d/%d", &out.part, &out.parts) != 2) return false;
      if (out.parts < 1 || out.part < 0 || out.part >= out.parts) return false;
      ++i;
    } else if (argument.starts_with("--")) {
      return false;
    } else {
      out.plain.emplace_back(argument);
    }
  }
  return !out.plain.empty();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Reads the lines of part `part` of `parts`, skipping the first `done` of them.
bool read_specs(const Arguments& arguments, const std::string& path, size_t done,
                std::vector<GraphSpec>& specs) {
  std::ifstream in(path);
  if (!in) {
    std::fprintf(stderr, "stream_probe: cannot read %s\n", path.c_str());
    return false;
  }
  std::string line;
  size_t number = 0;
  size_t graph = 0;
  while (std::getline(in, line)) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t index = graph++;
    if (index % static_cast<size_t>(arguments.parts) != static_cast<size_t>(arguments.part)) continue;
    if (done > 0) {
      --done;
      continue;
    }
    GraphSpec spec;
    std::string error;
    if (!cglint::gpu::parse_line(line, spec, error)) {
      std::fprintf(stderr, "stream_probe: %s:%zu: %s\n", path.c_str(), number, error.c_str());
      return false;
    }
    specs.push_back(std::move(spec));
  }
  return true;
}

size_t count_lines(const std::string& path) {
  std::ifstream in(path);
  size_t lines = 0;
  std::string line;
  while (std::getline(in, line)) ++lines;
  return lines;
}

int run_measure(const Arguments& arguments) {
  const std::string& out_path = arguments.plain[2];
  std::vector<GraphSpec> specs;
  const size_t done = arguments.append ? count_lines(out_path) : 0;
  if (!read_specs(arguments, arguments.plain[1], done, specs)) return 2;
  const auto start = std::chrono::steady_clock::now();
  cglint::gpu::StreamMeasurer measurer;
  std::string wrong = measurer.create(arguments.options);
  if (!wrong.empty()) {
    std::fprintf(stderr, "stream_probe: %s\n", wrong.c_str());
    return 2;
  }
  if (arguments.extra_kinds) {
    const std::string refused = measurer.enable_extra_kinds();
    if (!refused.empty())
      std::fprintf(stderr, "stream_probe: CUPTI refused the activity kinds %s\n", refused.c_str());
  }
  FILE* out = std::fopen(out_path.c_str(), arguments.append ? "a" : "w");
  if (out == nullptr) {
    std::fprintf(stderr, "stream_probe: cannot write %s\n", out_path.c_str());
    return 2;
  }
  const double setup_s = seconds_since(start);
  size_t measured_count = 0;
  size_t refused = 0;
  bool in_time = true;
  for (size_t i = 0; i < specs.size() && in_time;) {
    const size_t size = i < static_cast<size_t>(arguments.careful) ? 1 : static_cast<size_t>(arguments.batch);
    const size_t end = std::min(specs.size(), i + size);
    const std::vector<GraphSpec> batch(specs.begin() + static_cast<std::ptrdiff_t>(i),
                                       specs.begin() + static_cast<std::ptrdiff_t>(end));
    std::vector<Measured> results;
    wrong = measurer.measure(batch, arguments.keep, results);
    if (!wrong.empty()) {
      // Nothing of a larger batch is written: the next run, with --append --careful, finds the graph at
      // fault.
      if (batch.size() == 1) {
        Measured broken;
        broken.error = wrong;
        std::fprintf(out, "%s\n", cglint::gpu::to_json(batch[0], broken).c_str());
      }
      std::fclose(out);
      std::fprintf(stderr, "stream_probe: stopped by %s after %zu graphs\n", wrong.c_str(), measured_count);
      std::_Exit(3);  // the driver may hang in its own clean-up now
    }
    for (size_t k = 0; k < batch.size(); ++k) {
      std::fprintf(out, "%s\n", cglint::gpu::to_json(batch[k], results[k]).c_str());
      if (!results[k].error.empty()) ++refused;
    }
    std::fflush(out);
    measured_count += batch.size();
    i = end;
    in_time = seconds_since(start) < arguments.budget_s;
  }
  std::fclose(out);
  const auto& facts = measurer.facts();
  const double total_s = seconds_since(start);
  std::fprintf(stderr,
               "stream_probe: %zu graphs in %.1f s (set-up %.1f s, %.0f graphs/s), %zu refused, %zu records "
               "dropped; %s, driver %s, CUDA %d, CUPTI %u\n",
               measured_count, total_s, setup_s,
               static_cast<double>(measured_count) / std::max(total_s - setup_s, 1e-9), refused,
               measurer.take_dropped(), facts.gpu.c_str(), facts.driver.c_str(), facts.driver_version,
               facts.cupti_version);
  if (arguments.extra_kinds) {
    for (const auto& [kind, count] : measurer.record_counts())
      std::fprintf(stderr, "stream_probe: activity kind %d: %ld records\n", kind, count);
  }
  return measured_count < specs.size() ? 4 : 0;
}

int run_overlap(const Arguments& arguments) {
  std::vector<GraphSpec> specs;
  if (!read_specs(arguments, arguments.plain[1], 0, specs)) return 2;
  cglint::gpu::OverlapOptions options;
  options.spin_ns = static_cast<uint64_t>(arguments.spin_us) * 1000;
  options.replays = arguments.replays;
  options.budget_s = arguments.budget_s;
  std::string wrong;
  const size_t done = cglint::gpu::measure_overlap(specs, options, arguments.plain[2], wrong);
  std::fprintf(stderr, "stream_probe: stamps of %zu graphs\n", done);
  if (!wrong.empty()) {
    std::fprintf(stderr, "stream_probe: %s\n", wrong.c_str());
    return done == 0 ? 2 : 3;
  }
  return done < specs.size() ? 4 : 0;
}

int usage() {
  std::fputs(std::string(kUsage).c_str(), stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse_arguments(argc, argv, arguments)) return usage();
  const std::vector<std::string>& plain = arguments.plain;
  const auto print = [](const GraphSpec& spec) {
    std::printf("%s\n", cglint::gpu::print_line(spec).c_str());
  };
  if (plain[0] == "kinds" && plain.size() == 1) {
    for (const std::string& kind : cglint::gpu::study_kinds()) std::printf("%s\n", kind.c_str());
    return 0;
  }
  if (plain[0] == "generate" && (plain.size() == 4 || plain.size() == 5)) {
    const uint64_t seed = std::strtoull(plain[2].c_str(), nullptr, 10);
    const uint64_t count = std::strtoull(plain[3].c_str(), nullptr, 10);
    const int most = plain.size() == 5 ? std::atoi(plain[4].c_str()) : 120;
    for (uint64_t i = 0; i < count; ++i) print(cglint::gpu::random_graph(plain[1], seed, i, most));
    return 0;
  }
  if (plain[0] == "generate-all" && plain.size() == 3) {
    const uint64_t seed = std::strtoull(plain[1].c_str(), nullptr, 10);
    const uint64_t count = std::strtoull(plain[2].c_str(), nullptr, 10);
    for (uint64_t i = 0; i < count; ++i) {
      for (const std::string& kind : cglint::gpu::study_kinds())
        print(cglint::gpu::random_graph(kind, seed, i));
    }
    return 0;
  }
  if (plain[0] == "small" && plain.size() == 2) {
    for (const GraphSpec& spec : cglint::gpu::small_graphs(plain[1])) print(spec);
    return 0;
  }
  if (plain[0] == "designed" && plain.size() == 1) {
    for (const GraphSpec& spec : cglint::gpu::designed_graphs()) print(spec);
    return 0;
  }
  if (plain[0] == "measure" && plain.size() == 3) return run_measure(arguments);
  if (plain[0] == "overlap" && plain.size() == 3) return run_overlap(arguments);
  return usage();
}
