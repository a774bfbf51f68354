// cglint-capture (`cglint capture`): runs reference models on this machine's GPU, each run in processes of its own, and
// puts recording, untraced times, output checks and findings together. Needs no CUDA itself.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/text.h"
#include "child.h"
#include "common/empty_value.h"
#include "export/part_file.h"
#include "manifest.h"
#include "options.h"
#include "output.h"
#include "results.h"
#include "runner.h"

namespace cglint::capture_tool {

std::string_view embedded_manifest(std::string_view model);
std::vector<std::string_view> embedded_manifest_names();
std::string_view embedded_table(std::string_view name);  // MODEL/FILE
std::vector<std::string_view> embedded_table_names();

namespace {

void on_signal(int) { Child::interrupt(); }

// The tile tables that a model was built with, in a folder that goes with the object.
class TableFolder {
 public:
  explicit TableFolder(const std::string& model) {
    for (const std::string_view name : embedded_table_names())
      if (name.starts_with(model + "/") && problem_.empty()) write(name.substr(model.size() + 1), embedded_table(name));
  }
  ~TableFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TableFolder(const TableFolder&) = delete;
  TableFolder& operator=(const TableFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }  // "": the model has none
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void write(std::string_view name, std::string_view text) {
    if (path_.empty()) {
      std::error_code error;
      std::string folder = (std::filesystem::temp_directory_path(error) / "cglint-tables-XXXXXX").string();
      if (error || mkdtemp(folder.data()) == nullptr) {
        problem_ = "cannot make a folder for the tile tables of the model: " + (error ? error.message() : std::string(std::strerror(errno)));
        return;
      }
      path_ = folder;
    }
    std::ofstream file(std::filesystem::path(path_) / name, std::ios::binary);
    file << text;
    file.close();
    if (!file) problem_ = fmt::format("cannot write {}/{}: {}", path_, name, std::strerror(errno));
  }
  std::string path_, problem_;
};

// The folder of the capture files. What had to be made of it goes with the object where nothing was written there.
class OutputFolder {
 public:
  explicit OutputFolder(const std::filesystem::path& folder) {
    std::filesystem::path path;
    for (const std::filesystem::path& part : folder) {
      path /= part;
      std::error_code ignored, error;
      if (std::filesystem::is_directory(path, ignored)) continue;
      if (std::filesystem::create_directory(path, error)) made_.push_back(path);
      if (!error) continue;
      problem_ = fmt::format("cannot make {}: {}", folder.string(), error.message());
      return;
    }
  }
  ~OutputFolder() {
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) rmdir(path->c_str());  // fails where something is in it
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::vector<std::filesystem::path> made_;  // outermost first
  std::string problem_;
};

const Json* find_named(const Json& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Json& item) { return item.value("name", "") == name; });
  return found == list.end() ? nullptr : &*found;
}

// "no preset 'k3' in deepseek_moe: it has k2, v3 (did you mean k2?)"
std::string unknown(std::string_view what, const std::string& name, const Json& list) {
  std::vector<std::string> names;
  for (const Json& item : list) names.push_back(item.value("name", ""));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view close = base::closest(name, views);
  return fmt::format("no {} is named '{}': there are {}{}", what, base::printable(name), fmt::join(names, ", "), close.empty() ? "" : fmt::format(" (did you mean {}?)", close));
}

// Of a list option: the items of its words, without one that is empty or there twice (it would write the same files again).
std::vector<std::string> items_of(const std::string& name, const std::vector<std::string>& words) {
  std::vector<std::string> items;
  for (const std::string& word : words)
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      items.push_back(word.substr(begin, end - begin));
      if (items.back().empty()) throw CLI::ValidationError(name, fmt::format("an item of '{}' is empty", word));
      begin = end + 1;
    }
  return items;
}

template <typename Item>
void refuse_repeated(const std::string& name, const std::vector<Item>& items) {
  std::set<Item> seen;
  for (const Item& item : items)
    if (!seen.insert(item).second) throw CLI::ValidationError(name, fmt::format("{} is there twice", item));
}

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& out, const std::string& description) {
  const auto take = [name, &out](const std::vector<std::string>& words) {
    out = items_of(name, words);
    refuse_repeated(name, out);
  };
  return app.add_option_function<std::vector<std::string>>(name, take, description);
}

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<int>& out, int least, int most, const std::string& description) {
  const auto take = [name, &out, least, most](const std::vector<std::string>& words) {
    out.clear();
    for (const std::string& item : items_of(name, words)) {
      int value = 0;
      const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
      if (error != std::errc() || end != item.data() + item.size() || value < least || value > most)
        throw CLI::ValidationError(name, fmt::format("'{}' is not a whole number from {} to {}", item, least, most));
      out.push_back(value);
    }
    refuse_repeated(name, out);
  };
  return app.add_option_function<std::vector<std::string>>(name, take, description)->type_name(fmt::format("INT in [{} - {}]", least, most));
}

void define(CLI::App& app, Options& o) {
  app.add_option("model", o.model, "The model (--list names them)");
  app.add_flag("--list", o.list, "List the models, their presets and variants, and what is expected of them");
  add_list(app, "--variant", o.variants, "Variants to run (default: all)");
  app.add_option("--preset", o.preset, "Published shapes to run with (default: the model's first)");
  add_list(app, "--layers", o.layers, 1, 1024, "Numbers of layers (default: the preset's); several make a sweep");
  add_list(app, "--batch", o.batches, 1, 65536, "Tokens of the decode step; several make a sweep")->default_str("1");
  app.add_option("--context", o.context, "Tokens already in the cache")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of weights, inputs and cache")
      ->check([](const std::string& word) {  // what is negative or larger would be taken as another number
        std::uint64_t seed = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seed);
        return error == std::errc() && end == word.data() + word.size() ? "" : fmt::format("'{}' is not a whole number from 0 to {}", word, ~std::uint64_t{0});
      })
      ->capture_default_str();
  add_list(app, "--connections", o.connections, 1, 32, "CUDA_DEVICE_MAX_CONNECTIONS of the runs; several make a sweep");
  app.add_option("--replays", o.replays, "Traced replays")->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_option("--samples", o.samples, "Untraced, timed replays; 0: no times")->check(CLI::Range(0, 100000))->capture_default_str();
  app.add_option("--serve", o.serve, "Instead of one graph: this many rounds of a draft graph and a target graph that verifies its tokens")->check(CLI::Range(1, 10000));
  app.add_option("--draft-tokens", o.draft_tokens, "With --serve: tokens that the draft graph proposes each round")->check(CLI::Range(1, 64))->capture_default_str()->needs("--serve");
  app.add_option("--draft-layers", o.draft_layers, "With --serve: layers of the draft graph")->check(CLI::Range(1, 1024))->capture_default_str()->needs("--serve");
  app.add_option("--beside", o.beside, "Record this variant's graph too, replayed in turn with the other: how long a launch takes without its company");
  app.add_option("-o,--output", o.output, "Folder for the capture files, or the name of the only one (NAME.cgl.jsonl[.gz|.zst])")->capture_default_str();
  app.add_option("--results", o.results, "Write the results to this file as JSON, after every run");
  app.add_flag("--resume", o.resume, "Leave out the runs that the --results file has already");
  app.add_option("--format", o.format, "What goes to standard output at the end")->check(CLI::IsMember({"text", "json"}))->capture_default_str();
  app.add_flag("--verify", o.verify, "Compare findings and streams with the model's manifest; exit 1 if they differ");
  app.add_option("--verify-recordings", o.recordings, "Compare these recordings of the model with its manifest instead of running it; needs no GPU");
  app.add_flag("--force", o.force, "Replay a graph that would read null or freed addresses, in a process of its own");
  app.add_flag("--no-trace", o.no_trace, "Without recorder and CUPTI: for compute-sanitizer, and for times alone");
  app.add_flag("--check-only", o.check_only, "Only compare outputs with the reference: no recording, no times");
  app.add_flag("--no-check", o.no_check, "Do not compare outputs with the reference");
  app.add_flag("--measure-access", o.measure_access, "Measure what each kernel reads and writes, in a further process that runs the graph's nodes one at a time, and add it to the recording. Of a graph that is not replayed: which kernels dereference a null argument, each launched alone");
  app.add_flag("--no-pdl", o.no_pdl, "Plain launches instead of programmatic ones");
  app.add_option("--moe-config", o.moe_config, "Folder of tile tables for fused MoE, named and formed as vLLM's, for the model and for the linter (default: those that the model was built with)");
  app.add_option("--timeout", o.timeout_s, "Seconds that a process of a run may take")->check(CLI::Range(1, 86400))->capture_default_str();
  app.add_flag("-q,--quiet", o.quiet, "No progress on stderr");
  app.footer(
      "Exit codes: 0 all runs went through; 1 an output is wrong, or --verify or --verify-recordings found a difference; 2 wrong usage, a program\n"
      "that is not beside this one, or output that cannot be written; 3 a CUDA call failed, or a program crashed or ended without its result;\n"
      "4 something could not be recorded here (no GPU, no CUPTI, CUPTI taken, too little memory); 130 interrupted. Where several\n"
      "apply, the first of 130, 3, 2, 1, 4. Findings alone do not change it.");
}

// The first option that was given and says how a model is run, or "".
std::string option_of_runs(const CLI::App& app) {
  static const std::set<std::string> others = {"model", "--verify-recordings", "--format", "--moe-config", "--quiet"};
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && !others.contains(option->get_name())) return option->get_name();
  return "";
}

base::Result<Manifest> manifest_of(const std::string& model) {
  const std::string_view text = embedded_manifest(model);
  if (text.empty()) {
    const auto names = embedded_manifest_names();
    const std::string_view close = base::closest(model, names);
    return base::make_error(base::ErrorCode::not_found,
                            model.empty() ? fmt::format("which model are the recordings of? ({})", fmt::join(names, ", "))
                                          : fmt::format("'{}' has no manifest: nothing to verify{}", base::printable(model), close.empty() ? "" : fmt::format(" (did you mean {}?)", close)));
  }
  return Manifest::parse(text, "manifest of " + model);
}

std::string list_text(const Json& models) {
  std::string text;
  for (const Json& model : models["models"]) {
    const std::string name = model["name"];
    text += fmt::format("{}: {}\n", name, model.value("summary", ""));
    for (const Json& preset : model["presets"]) text += fmt::format("  preset  {:<18} {}\n", preset.value("name", ""), preset.value("summary", ""));
    const std::string_view source = embedded_manifest(name);
    const auto manifest = Manifest::parse(source, "manifest of " + name);
    for (const Json& variant : model["variants"]) {
      text += fmt::format("  variant {:<18} {}\n", variant.value("name", ""), variant.value("summary", ""));
      if (source.empty() || !manifest) continue;
      const Json& preset = model["presets"].front();
      const RunKey key{variant.value("name", ""), preset.value("name", ""), preset.value("layers", 0), preset.value("layers", 0), 1};
      if (const auto expected = manifest->expected(key))
        text += fmt::format("  {:<26} expected ({}, batch 1): {}{}\n", "", key.preset, expected->codes.empty() ? "no finding" : fmt::to_string(fmt::join(expected->codes, " ")),
                            expected->streams ? fmt::format(", {} streams", *expected->streams) : "");
    }
    if (!source.empty() && !manifest) text += fmt::format("  {}\n", manifest.error().to_string());
    if (source.empty()) text += "  no manifest\n";
    if (manifest && !manifest->sources().empty()) text += fmt::format("  sources {}\n", fmt::join(manifest->sources(), ", "));
  }
  return text;
}

bool names_file(const std::string& output) {
  return output.ends_with(".cgl.jsonl") || output.ends_with(".cgl.jsonl.gz") || output.ends_with(".cgl.jsonl.zst");
}

std::vector<Planned> plan(const Options& options, const Json& model, const Json& preset) {
  std::vector<Planned> runs;
  const int published = preset.value("layers", 0);
  const std::vector<int> layers = options.layers.empty() ? std::vector<int>{published} : options.layers;
  const std::vector<int> connections = options.connections.empty() ? std::vector<int>{0} : options.connections;
  std::vector<std::string> variants = options.variants;
  if (variants.empty())
    for (const Json& variant : model["variants"]) variants.push_back(variant["name"]);
  for (const int layer_count : layers)
    for (const int batch : options.batches)
      for (const int connection : connections)
        for (const std::string& name : variants) {
          const Json& variant = *find_named(model["variants"], name);
          Planned planned;
          planned.run = {{"model", options.model}, {"variant", name}, {"preset", preset["name"]}, {"layers", layer_count}, {"batch", batch}, {"context", options.context}, {"seed", options.seed}};
          std::string file = fmt::format("{}.{}.{}.b{}", options.model, name, preset["name"].get<std::string>(), batch);
          if (layer_count != published) file += fmt::format(".l{}", layer_count);
          if (connection != 0) {
            planned.run["connections"] = connection;
            file += fmt::format(".c{}", connection);
          }
          if (options.no_pdl) {
            planned.run["pdl"] = false;
            file += ".nopdl";
          }
          if (options.serve > 0) {
            planned.run["serve"] = {{"rounds", options.serve}, {"draft_tokens", options.draft_tokens}, {"draft_layers", options.draft_layers}};
            file += ".serve";
          }
          if (!options.beside.empty()) {
            planned.run["beside"] = options.beside;
            file += ".beside-" + options.beside;
          }
          if (const std::string other = variant.value("same_bits_as", ""); !other.empty()) planned.run["same_bits_as"] = other;
          planned.recording = names_file(options.output) ? options.output : (std::filesystem::path(options.output) / (file + ".cgl.jsonl.gz")).string();
          planned.published_layers = published;
          planned.may_fault = variant.value("may_fault", false);
          planned.capture_fails = variant.value("capture_fails", false);
          runs.push_back(std::move(planned));
        }
  return runs;
}

std::string progress_of(const Json& run, int code) {
  std::string text;
  if (run.contains("error")) return run["error"].get<std::string>();
  if (run.contains("timing")) text += fmt::format("{:.1f} us", run["timing"].value("median_us", 0.0));
  if (run.contains("streams_measured")) text += fmt::format("{}{} streams", text.empty() ? "" : ", ", run["streams_measured"].dump());
  for (const Json& finding : run.value("findings", Json::array())) text += (text.empty() ? "" : " ") + finding.get<std::string>();
  return text.empty() ? fmt::format("exit code {}", code) : text;
}

// Whether a run of an earlier series went through and has what is asked for now.
bool has_all(const Json& run, const Options& options) {
  if (run.value("exit_code", kExitInternal) != kExitGood) return false;
  return !options.measure_access || run.contains("accesses") || run.contains("null_proof") || run.contains("capture_failed");
}

// The first of 130, 3, 2, 1, 4, 0.
int worse(int a, int b) {
  constexpr std::array kOrder = {kExitInterrupted, kExitInternal, kExitUsage, kExitWrong, kExitMissing};
  for (const int code : kOrder)
    if (a == code || b == code) return code;
  return kExitGood;
}

int run(Options options) {
  Programs programs;
  const std::string missing = find_programs(programs);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  if (!options.moe_config.empty()) {
    std::error_code why;
    (void)std::filesystem::directory_iterator(options.moe_config, why);
    if (why) return complain(fmt::format("{}: cannot read the folder: {}", options.moe_config, why.message()));
  }
  const TableFolder tables(options.moe_config.empty() ? options.model : std::string());
  if (!tables.problem().empty()) return complain(tables.problem());
  options.lint_moe_config = tables.path();
  if (!options.recordings.empty()) {
    auto manifest = manifest_of(options.model);
    return manifest ? verify_recordings(programs, options, *manifest) : complain(manifest.error().to_string());
  }
  if (!missing.empty()) return complain(missing);
  const auto models = list_models(programs);
  if (Child::is_interrupted()) return kExitInterrupted;
  if (!models) {
    complain(models.error().to_string());
    return kExitInternal;
  }
  if (options.list) {
    Json listed = *models;
    for (Json& model : listed["models"]) model["manifest"] = !embedded_manifest(model["name"].get<std::string>()).empty();
    return print_output(options.format == "json" ? listed.dump(1) + "\n" : list_text(*models)) ? kExitGood : kExitUsage;
  }
  if (options.model.empty()) return complain("which model? (--list names them)");
  const Json* const model = find_named((*models)["models"], options.model);
  if (model == nullptr) return complain(unknown("model", options.model, (*models)["models"]));
  for (const std::string& variant : options.variants)
    if (find_named((*model)["variants"], variant) == nullptr) return complain(unknown("variant of " + options.model, variant, (*model)["variants"]));
  const Json* const preset = options.preset.empty() ? &(*model)["presets"].front() : find_named((*model)["presets"], options.preset);
  if (preset == nullptr) return complain(unknown("preset of " + options.model, options.preset, (*model)["presets"]));
  if (!options.beside.empty() && find_named((*model)["variants"], options.beside) == nullptr) return complain(unknown("variant of " + options.model, options.beside, (*model)["variants"]));
  if (!options.beside.empty() && (options.no_trace || options.check_only || options.serve > 0)) return complain("--beside is for recordings of one step: not with --no-trace, --check-only or --serve");
  if (options.measure_access && (options.no_trace || options.check_only || options.serve > 0 || !options.beside.empty()))
    return complain("--measure-access is for recordings of one graph: not with --no-trace, --check-only, --serve or --beside");
  if (options.resume && options.results.empty()) return complain("--resume needs --results");
  if (options.verify && (options.check_only || options.no_trace)) return complain("--verify needs a recording: not with --no-trace or --check-only");
  if (options.serve > 0 && options.check_only) return complain("--serve has no check: not with --check-only");

  std::vector<Planned> runs = plan(options, *model, *preset);
  if (names_file(options.output) && runs.size() > 1) return complain(fmt::format("{} runs cannot go into one file: name a folder with -o", runs.size()));
  std::optional<Manifest> manifest;
  if (options.verify) {
    auto parsed = manifest_of(options.model);
    if (!parsed) return complain(parsed.error().to_string());
    manifest = std::move(*parsed);
  }
  Json document = make_document(options.model);
  if (options.resume && std::filesystem::exists(options.results)) {
    auto earlier = read_document(options.results);
    if (!earlier) return complain(earlier.error().to_string());
    document = std::move(*earlier);
  }
  const std::filesystem::path output(options.output);
  const OutputFolder folder(options.check_only ? std::filesystem::path() : names_file(options.output) ? output.parent_path() : output);
  if (!folder.problem().empty()) return complain(folder.problem());

  if (!options.results.empty())
    if (const auto writable = exporter::check_writable(options.results); !writable) return complain(writable.error().to_string());

  int code = kExitGood;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Planned& planned = runs[i];
    Json& all = document["runs"];
    const auto earlier = std::find_if(all.begin(), all.end(), [&](const Json& run) { return same_run(run, planned.run); });
    if (earlier != all.end() && has_all(*earlier, options)) continue;
    if (earlier != all.end()) all.erase(static_cast<std::size_t>(earlier - all.begin()));
    const std::string label = fmt::format("[{}/{}] {} {} {}, {} layers, batch {}{}", i + 1, runs.size(), options.model, planned.run["variant"].get<std::string>(),
                                          planned.run["preset"].get<std::string>(), planned.run["layers"].dump(), planned.run["batch"].dump(),
                                          planned.run.contains("connections") ? fmt::format(", {} connections", planned.run["connections"].dump()) : "");
    if (!options.quiet) fmt::print(stderr, "{} ...\n", label);
    const auto begin = std::chrono::steady_clock::now();
    const int one = execute(programs, options, manifest ? &*manifest : nullptr, planned, document["gpu"]);
    planned.run["exit_code"] = one;
    planned.run["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    code = worse(code, one);
    // Without a GPU, and where the options fit no run, the others end the same way.
    const bool none_can = one == kExitUsage || (one == kExitMissing && planned.run.value("error", "").starts_with("no usable GPU"));
    if (!options.quiet && !none_can) fmt::print(stderr, "{}: {}\n", label, base::printable(progress_of(planned.run, one), 300));
    all.push_back(planned.run);
    if (!compare_bits(all)) code = worse(code, kExitWrong);
    if (!options.results.empty()) {
      if (const auto written = write_document(document, options.results); !written) {
        complain(written.error().to_string());
        return kExitInternal;
      }
    }
    if (one == kExitInterrupted) {
      fmt::print(stderr, "cglint capture: interrupted{}\n", planned.run.contains("recording") ? fmt::format("; {} holds what was recorded until then", planned.recording) : "");
      break;
    }
    if (none_can) {
      complain(planned.run.value("error", "this run is not possible"));
      return code;
    }
  }
  const std::string text = options.format == "json" ? document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n" : render_table(document);
  return print_output(text) ? code : worse(code, kExitUsage);
}

}  // namespace
}  // namespace cglint::capture_tool

int main(int argc, char** argv) {
  using namespace cglint::capture_tool;
  CLI::App app("Runs reference models on this machine's GPU: captures each variant into a CUDA graph, records and lints it, replays it\nunder a tracer and without one, and compares the outputs with a plain reference.", "cglint capture");
  Options options;
  define(app, options);
  signal(SIGPIPE, SIG_IGN);  // writes fail instead, and say so; a child that is gone is seen by its exit code
  signal(SIGXFSZ, SIG_IGN);  // a file that grows past its limit is seen by the error
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return print_output(app.help()) ? kExitGood : kExitUsage;
  } catch (const CLI::ParseError& error) {
    return complain(std::string(error.what()) + " (--help lists the options)");
  }
  if (const std::string option = cglint::option_with_empty_value(app); !option.empty()) return complain(option + ": a value is empty (--help lists the options)");
  if (!options.recordings.empty())
    if (const std::string option = option_of_runs(app); !option.empty()) return complain(option + " is for runs: not with --verify-recordings");
  return run(options);
}
