// cglint-selftest-streams: measures designed graphs on this machine's GPU and says whether the stream model
// holds for its driver. Started by `cglint selftest-streams`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "selftest_streams/selftest.h"
#include "stream_probe/measure.h"

namespace cglint::gpu {
std::string_view embedded_reference(std::string_view name);  // generated at build time from reference.txt
}

namespace {

using cglint::gpu::KindResult;
using cglint::gpu::MachineFacts;
using cglint::gpu::Measured;
using cglint::gpu::Mismatch;
using cglint::gpu::ReferenceGraph;
using cglint::gpu::SelftestResult;

constexpr std::string_view kUsage =
    "usage: cglint selftest-streams [--format text|json] [--output FILE] [--show N]\n"
    "\n"
    "Builds a few hundred designed CUDA graphs (all node and edge kinds), replays each once on GPU 0 under "
    "CUPTI, and compares\n"
    "the streams that the driver gave its nodes with those that cglint's model predicts.\n"
    "\n"
    "  --format text|json   what to print (text)\n"
    "  --output FILE        write it to FILE instead\n"
    "  --show N             list at most N mismatching graphs (5)\n"
    "\n"
    "exit codes: 0 the model holds for this driver, 1 it does not, 2 it could not be tested (no GPU, no "
    "CUPTI, bad usage)\n";
constexpr size_t kBatch = 64;

struct Arguments {
  bool json = false;
  std::string output;
  size_t show = 5;
  bool help = false;
};

bool parse_arguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (argument == "--help" || argument == "-h") {
      out.help = true;
      return true;
    }
    if (value == nullptr) return false;
    ++i;
    if (argument == "--format" && (std::string_view(value) == "json" || std::string_view(value) == "text")) {
      out.json = std::string_view(value) == "json";
    } else if (argument == "--output") {
      out.output = value;
    } else if (argument == "--show" && value[0] >= '0' && value[0] <= '9') {
      out.show = std::strtoull(value, nullptr, 10);
    } else {
      return false;
    }
  }
  return true;
}

std::string list(const std::vector<int>& values) {
  std::string out;
  for (const int value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

std::string text_report(const SelftestResult& result, const MachineFacts& facts, size_t show) {
  char buffer[512];
  const auto print = [&buffer](const char* format, auto... values) {
    std::snprintf(buffer, sizeof(buffer), format, values...);
    return std::string(buffer);
  };
  std::string out = print("%s, driver %s, CUDA %d.%d, CUPTI %u\n", facts.gpu.c_str(),
                          facts.driver.empty() ? "unknown" : facts.driver.c_str(),
                          facts.driver_version / 1000, facts.driver_version % 1000 / 10, facts.cupti_version);
  out += print("%d of %d designed graphs measured\n\n", result.measured, result.graphs);
  out += print("%-22s %8s %8s %8s %10s %12s\n", "kind", "graphs", "covered", "agree", "known gaps",
               "new misses");
  for (const KindResult& kind : result.kinds) {
    out += print("%-22s %8d %8d %8d %10d %12d\n", kind.kind.c_str(), kind.measured, kind.covered, kind.agree,
                 kind.known_gaps, kind.new_mismatches);
  }
  size_t shown = 0;
  for (const Mismatch& mismatch : result.mismatches) {
    if (mismatch.known_gap || shown == show) break;
    if (shown++ == 0) out += "\nfirst mismatching graphs (stream per node; 0 is the launch stream):\n";
    out += "  " + mismatch.line + "\n    measured  " + list(mismatch.measured) + "\n    predicted " +
           list(mismatch.predicted) + '\n';
  }
  if (!result.refused.empty()) {
    out += print("\n%zu graphs could not be measured here, the first: ", result.refused.size());
    out += result.refused.front() + '\n';
  }
  out +=
      result.holds() ? "\nthe stream model holds for this driver\n"
      : result.new_mismatches() > 0
          ? print(
                "\nthe stream model does not hold for this driver: %d graphs differ from what it predicts\n",
                result.new_mismatches())
          : "\ntoo few graphs could be measured to say that the stream model holds\n";
  return out;
}

std::string json_report(const SelftestResult& result, const MachineFacts& facts, size_t show) {
  std::string out = "{\"schema\":\"cglint-selftest-streams/1\",\"holds\":";
  out += result.holds() ? "true" : "false";
  out += ",\"gpu\":" + quoted(facts.gpu) + ",\"driver\":" + quoted(facts.driver) +
         ",\"driver_cuda\":" + std::to_string(facts.driver_version) +
         ",\"runtime_cuda\":" + std::to_string(facts.runtime_version) +
         ",\"cupti\":" + std::to_string(facts.cupti_version) +
         ",\"graphs\":" + std::to_string(result.graphs) + ",\"measured\":" + std::to_string(result.measured) +
         ",\"kinds\":[";
  for (size_t i = 0; i < result.kinds.size(); ++i) {
    const KindResult& kind = result.kinds[i];
    if (i > 0) out += ',';
    out += "{\"kind\":" + quoted(kind.kind) + ",\"graphs\":" + std::to_string(kind.graphs) +
           ",\"measured\":" + std::to_string(kind.measured) + ",\"covered\":" + std::to_string(kind.covered) +
           ",\"agree\":" + std::to_string(kind.agree) + ",\"known_gaps\":" + std::to_string(kind.known_gaps) +
           ",\"new_mismatches\":" + std::to_string(kind.new_mismatches) +
           ",\"with_reference\":" + std::to_string(kind.with_reference) +
           ",\"as_reference\":" + std::to_string(kind.as_reference) + '}';
  }
  out += "],\"mismatches\":[";
  for (size_t i = 0; i < std::min(show, result.mismatches.size()); ++i) {
    const Mismatch& mismatch = result.mismatches[i];
    if (i > 0) out += ',';
    out += "{\"graph\":" + quoted(mismatch.line) + ",\"measured\":[" + list(mismatch.measured) +
           "],\"predicted\":[" + list(mismatch.predicted) + "],\"reference\":[" + list(mismatch.reference) +
           "],\"known_gap\":" + (mismatch.known_gap ? "true" : "false") + '}';
  }
  out += "],\"refused\":[";
  for (size_t i = 0; i < std::min(show, result.refused.size()); ++i)
    out += (i > 0 ? "," : "") + quoted(result.refused[i]);
  out += "],\"refused_count\":" + std::to_string(result.refused.size()) + "}\n";
  return out;
}

int cannot(const std::string& why) {
  std::fprintf(stderr, "cglint: error: selftest-streams: %s\n", why.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse_arguments(argc, argv, arguments)) {
    std::fputs(std::string(kUsage).c_str(), stderr);
    return 2;
  }
  if (arguments.help) {
    std::fputs(std::string(kUsage).c_str(), stdout);
    return 0;
  }
  std::vector<ReferenceGraph> graphs;
  std::string wrong = cglint::gpu::parse_reference(cglint::gpu::embedded_reference("reference.txt"), graphs);
  if (!wrong.empty()) return cannot("built with a damaged list of graphs: " + wrong);
  cglint::gpu::StreamMeasurer measurer;
  wrong = measurer.create();
  if (!wrong.empty()) return cannot(wrong);
  std::vector<Measured> measured;
  for (size_t i = 0; i < graphs.size(); i += kBatch) {
    std::vector<cglint::gpu::GraphSpec> batch;
    for (size_t k = i; k < std::min(graphs.size(), i + kBatch); ++k) batch.push_back(graphs[k].spec);
    wrong = measurer.measure(batch, false, measured);
    if (!wrong.empty()) {
      cannot("the GPU failed while graphs ran: " + wrong);
      std::_Exit(2);  // the driver may hang in its own clean-up now
    }
  }
  if (measurer.take_dropped() > 0) return cannot("CUPTI dropped activity records");
  const MachineFacts& facts = measurer.facts();
  const unsigned driver_major = static_cast<unsigned>(std::strtoul(facts.driver.c_str(), nullptr, 10));
  const SelftestResult result = cglint::gpu::judge(graphs, measured, driver_major);
  const std::string report = arguments.json ? json_report(result, facts, arguments.show)
                                            : text_report(result, facts, arguments.show);
  FILE* const out = arguments.output.empty() ? stdout : std::fopen(arguments.output.c_str(), "w");
  if (out == nullptr) return cannot("cannot write " + arguments.output);
  std::fwrite(report.data(), 1, report.size(), out);
  if (out != stdout && std::fclose(out) != 0) return cannot("cannot write " + arguments.output);
  if (result.measured * 2 <= result.graphs) return cannot("this driver refused most of the graphs");
  return result.holds() ? 0 : 1;
}
