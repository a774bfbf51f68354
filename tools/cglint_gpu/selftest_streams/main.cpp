// cglint-selftest-streams: measures designed graphs on this machine's GPU and says whether the stream model
// holds for its driver. Started by `cglint selftest-streams`.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
    "exit codes: 0 the model holds for this driver, 1 it does not, 2 bad usage or unwritable output, 3 the GPU failed,\n"
    "4 it could not be tested here (no GPU, no CUPTI, records lost, most graphs refused)\n\n"
    "covered: graphs that the model predicts. agree: predicted exactly. known gaps: not predicted exactly, "
    "on the driver "
    "that the\n"
    "model was made on neither. new misses: predicted exactly there, but not here; the model holds if there "
    "are none.\n";
constexpr size_t kBatch = 64;

struct Arguments {
  bool json = false;
  std::string output;
  size_t show = 5;
  bool help = false;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

// Returns an empty string, or what is wrong with the arguments.
std::string parse_arguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      out.help = true;
      return "";
    }
    const size_t equals = argument.starts_with("--") ? argument.find('=') : std::string_view::npos;
    const std::string name(argument.substr(0, equals));
    if (name != "--format" && name != "--output" && name != "--show")
      return (argument.starts_with("-") ? "unknown option " : "unexpected argument ") + quoted(name);
    std::string value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (++i < argc) {
      value = argv[i];
    } else {
      return name + " needs a value";
    }
    if (name == "--format") {
      if (value != "json" && value != "text") return "--format is text or json, not " + quoted(value);
      out.json = value == "json";
    } else if (name == "--output") {
      if (value.empty()) return "--output needs a file name";
      out.output = value;
    } else {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.show);
      if (error != std::errc() || end != value.data() + value.size())
        return "--show is a number, 0 or more, not " + quoted(value);
    }
  }
  return "";
}

std::string list(const std::vector<int>& values) {
  std::string out;
  for (const int value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return out;
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

// As of the other commands of cglint.
constexpr int kExitUsage = 2, kExitInternal = 3, kExitNotTested = 4;

int cannot(int code, const std::string& why) {
  std::fprintf(stderr, "cglint: error: selftest-streams: %s\n", why.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::string wrong = parse_arguments(argc, argv, arguments);
  if (!wrong.empty()) return cannot(kExitUsage, wrong + "; see 'cglint selftest-streams --help'");
  if (arguments.help) {
    std::fputs(std::string(kUsage).c_str(), stdout);
    return 0;
  }
  std::vector<ReferenceGraph> graphs;
  wrong = cglint::gpu::parse_reference(cglint::gpu::embedded_reference("reference.txt"), graphs);
  if (!wrong.empty()) return cannot(kExitInternal, "built with a damaged list of graphs: " + wrong);
  cglint::gpu::StreamMeasurer measurer;
  wrong = measurer.create();
  if (!wrong.empty()) return cannot(kExitNotTested, wrong);
  // Opened before anything is measured: a report that nobody can get is not worth the wait.
  FILE* const out = arguments.output.empty() || arguments.output == "-"
                        ? stdout
                        : std::fopen(arguments.output.c_str(), "w");
  if (out == nullptr) return cannot(kExitUsage, "cannot write " + arguments.output + ": " + std::strerror(errno));
  std::vector<Measured> measured;
  for (size_t i = 0; i < graphs.size(); i += kBatch) {
    std::vector<cglint::gpu::GraphSpec> batch;
    for (size_t k = i; k < std::min(graphs.size(), i + kBatch); ++k) batch.push_back(graphs[k].spec);
    wrong = measurer.measure(batch, false, measured);
    if (!wrong.empty()) {
      cannot(kExitInternal, "the GPU failed while graphs ran: " + wrong);
      std::_Exit(kExitInternal);  // the driver may hang in its own clean-up now
    }
  }
  if (measurer.take_dropped() > 0) return cannot(kExitNotTested, "CUPTI dropped activity records");
  const MachineFacts& facts = measurer.facts();
  const unsigned driver_major = static_cast<unsigned>(std::strtoul(facts.driver.c_str(), nullptr, 10));
  const SelftestResult result = cglint::gpu::judge(graphs, measured, driver_major);
  const std::string report = arguments.json ? json_report(result, facts, arguments.show)
                                            : text_report(result, facts, arguments.show);
  const bool written = std::fwrite(report.data(), 1, report.size(), out) == report.size();
  const bool finished = out == stdout ? std::fflush(out) == 0 : std::fclose(out) == 0;
  if (!written || !finished)
    return cannot(kExitUsage, "cannot write " + (out == stdout ? std::string("standard output") : arguments.output));
  if (result.measured * 2 <= result.graphs) return cannot(kExitNotTested, "this driver refused most of the graphs");
  return result.holds() ? 0 : 1;
}
