#include "results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "export/part_file.h"

namespace cglint::capture_tool {
namespace {

constexpr std::array kIdentity = {"model", "variant", "preset", "layers", "batch", "context", "seed", "connections", "pdl", "serve", "beside"};

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

// run[first][second] as text; "-" where it is not there.
std::string number(const Json& run, const char* first, const char* second, double scale, const char* form) {
  if (!run.contains(first) || !run[first].is_object()) return "-";
  const auto value = run[first].find(second);
  if (value == run[first].end() || !value->is_number()) return "-";
  return fmt::format(fmt::runtime(form), value->get<double>() * scale);
}

std::string count(const Json& run, const char* name) {
  const auto value = run.find(name);
  return value == run.end() || !value->is_number() ? "-" : std::to_string(value->get<std::int64_t>());
}

std::string check_text(const Json& run) {
  if (run.contains("fault")) return "FAULT";
  if (run.contains("capture_failed"))
    return run["capture_failed"].value("streams_usable", false) ? "capture fails" : "STREAMS BROKEN";
  if (run.contains("error")) return "ERROR";
  if (run.contains("not_replayed")) return "not replayed";
  if (!run.contains("output")) return "-";
  if (!run["output"].value("equals_eager", false)) return "NOT AS EAGER";
  if (run.contains("same_bits") && !run["same_bits"].value("equal", true)) return "BITS DIFFER";
  if (!run.contains("check")) return "as eager";
  return fmt::format("{} {:.3f}", run["check"].value("ok", false) ? "ok" : "WRONG", run["check"]["error"].is_number() ? run["check"]["error"].get<double>() : 0.0);
}

std::string findings_text(const Json& run) {
  std::string text;
  for (const Json& code : run.value("findings", Json::array())) text += (text.empty() ? "" : " ") + code.get<std::string>();
  if (text.empty()) text = run.contains("findings") ? "none" : "-";
  if (run.contains("verify")) text += run["verify"].value("ok", false) ? " (as expected)" : " (NOT AS EXPECTED)";
  return text;
}

}  // namespace

Json make_document(const std::string& model) {
  return {{"format", "cglint-models"}, {"version", "1.0"}, {"date", now_text()}, {"model", model}, {"gpu", Json::object()}, {"runs", Json::array()}};
}

base::Result<Json> read_document(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::make_error(base::ErrorCode::not_found, std::string("cannot be read: ") + std::strerror(errno)).with_file(path);
  std::ostringstream text;
  text << file.rdbuf();
  Json document = Json::parse(text.str(), nullptr, false);
  if (document.is_discarded() || !document.is_object() || document.value("format", "") != "cglint-models" ||
      !document.value("version", "").starts_with("1.") || !document.contains("runs") || !document["runs"].is_array())
    return base::make_error(base::ErrorCode::malformed, "is no results file of cglint capture").with_file(path);
  return document;
}

base::Result<void> write_document(const Json& document, const std::string& path) {
  exporter::PartFile part(path);
  const std::string text = document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::FILE* const file = std::fopen(part.name().c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int saved_errno = errno;
  if (file != nullptr && std::fclose(file) != 0 && good) {
    good = false;
    saved_errno = errno;
  }
  if (!good) return base::make_error(base::ErrorCode::io, fmt::format("cannot write: {}", std::strerror(saved_errno))).with_file(path);
  return part.finish();
}

bool same_run(const Json& a, const Json& b) {
  return std::all_of(kIdentity.begin(), kIdentity.end(), [&](const char* key) {
    const auto left = a.find(key), right = b.find(key);
    return left == a.end() ? right == b.end() : right != b.end() && *left == *right;
  });
}

bool compare_bits(Json& runs) {
  bool good = true;
  for (Json& run : runs) {
    const std::string other = run.value("same_bits_as", "");
    if (other.empty() || !run.contains("output")) continue;
    Json wanted = run;
    wanted["variant"] = other;
    const auto found = std::find_if(runs.begin(), runs.end(), [&](const Json& candidate) { return candidate.contains("output") && same_run(candidate, wanted); });
    if (found == runs.end()) continue;
    const bool equal = (*found)["output"]["hash"] == run["output"]["hash"];
    run["same_bits"] = {{"as", other}, {"equal", equal}};
    good = good && equal;
  }
  return good;
}

std::string render_table(const Json& document) {
  std::vector<std::vector<std::string>> rows = {{"variant", "layers", "batch", "nodes", "streams", "us median", "p10", "p90", "inst ms", "upload us", "launch us", "MB", "check", "findings"}};
  bool has_connections = false;
  for (const Json& run : document["runs"]) has_connections = has_connections || run.contains("connections");
  if (has_connections) rows[0].insert(rows[0].begin() + 3, "conn.");
  for (const Json& run : document["runs"]) {
    std::string streams = count(run, "streams_predicted") + "/" + count(run, "streams_measured");
    if (run.contains("serve")) streams += fmt::format(" (total {})", count(run, "streams_total"));
    std::vector<std::string> row = {run.value("variant", ""), count(run, "layers"), count(run, "batch"), count(run, "nodes"), streams,
                                    number(run, "timing", "median_us", 1, "{:.1f}"), number(run, "timing", "p10_us", 1, "{:.1f}"),
                                    number(run, "timing", "p90_us", 1, "{:.1f}"), number(run, "executable", "instantiate_us", 1e-3, "{:.2f}"),
                                    number(run, "executable", "upload_us", 1, "{:.0f}"), number(run, "timing", "launch_cpu_us", 1, "{:.1f}"),
                                    number(run, "executable", "memory_bytes", 1e-6, "{:.2f}"), check_text(run), findings_text(run)};
    if (has_connections) row.insert(row.begin() + 3, run.contains("connections") ? count(run, "connections") : "default");
    rows.push_back(std::move(row));
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  if (document["gpu"].contains("name")) text += fmt::format("{} on {}\n", document["model"].get<std::string>(), document["gpu"]["name"].get<std::string>());
  text += "streams: predicted/measured; us: GPU time of a replay without a tracer, L2 cold; MB: device memory of an executable graph\n\n";
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool left = i == 0 || i + 2 >= row.size();
      line += left ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  // What the table has no room for.
  std::string notes;
  for (const Json& run : document["runs"]) {
    const auto note = [&](const std::string& what) { notes += fmt::format("{} batch {}: {}\n", run.value("variant", ""), count(run, "batch"), what); };
    if (run.contains("error")) note(run["error"].get<std::string>());
    if (run.contains("fault")) note("the replay faulted: " + run["fault"].get<std::string>());
    if (run.contains("not_replayed")) note("not replayed: " + run["not_replayed"].get<std::string>());
    if (run.contains("null_proof")) {
      for (const Json& node : run["null_proof"].value("proven", Json::array()))
        note(fmt::format("argument {} byte {} of node {} is {} and dereferenced: alone, the node faults, and not with memory in its place", node["argument"].dump(), node["byte"].dump(), node["node"].dump(),
                         node["value"] == 0 ? "null" : "null plus " + node["value"].dump()));
      for (const Json& node : run["null_proof"].value("not_proven", Json::array())) note(fmt::format("node {} alone faults, which proves nothing: {}", node["node"].dump(), node.value("why", "")));
      for (const Json& node : run["null_proof"].value("refused", Json::array())) note(fmt::format("node {} could not be launched alone: {}", node["node"].dump(), node.value("message", "")));
    }
    if (run.contains("not_traced")) note("not traced: " + run["not_traced"].get<std::string>());
    if (run.contains("capture_failed")) note("the capture failed" + std::string(run["capture_failed"].value("expected", false) ? ", as it must: " : ": ") + run["capture_failed"].value("message", ""));
    if (run.contains("check") && !run["check"].value("ok", false)) note(fmt::format("error {} of {} allowed: {}", run["check"]["error"].dump(), run["check"]["tolerance"].dump(), run["check"].value("detail", "")));
    if (run.contains("verify"))
      for (const Json& difference : run["verify"].value("differences", Json::array())) note(difference.get<std::string>());
  }
  if (!notes.empty()) text += "\n" + notes;
  return text;
}

}  // namespace cglint::capture_tool
