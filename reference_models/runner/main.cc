// cglint-model-runner: prepares, captures, replays and measures one variant of one reference model; `cglint
// capture` starts one process a run. It links no CUPTI and can also be run alone, under compute-sanitizer for
// example.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "runner/events.h"
#include "runner/session.h"
#include "stack/model.h"

namespace cglint::models {
namespace {

constexpr const char* kHelp =
    R"(Usage: cglint-model-runner list
       cglint-model-runner run MODEL [OPTIONS]

Runs one variant of a reference model; `cglint capture` starts it. Writes JSON objects, one a line.

  --variant V --preset P --layers N --batch B --context C --seed S   what to run (default: the model's first)
  --no-pdl             plain launches instead of programmatic ones
  --moe-config DIR     tile tables for fused MoE
  --wait               when instantiated, wait for "go" or "stop" on standard input
  --replays N          after "go" (default 3)
  --no-replay          capture and instantiate only
  --no-check           do not compare with the fp32 reference
  --samples N          timed replays (default 200; 0: none)
  --dot FILE           write the graph as DOT
  --fault NAME         spoil the step, which its check must notice (for tests of the check; "list" names them)
  --measure-access     instead of replays: run the nodes one at a time and tell what each reads and writes
  --isolate NODE       instead of replays: launch kernels with null arguments alone, one of each kind, from this node on (0: all)
  --patch SLOT:OFFSET  with --isolate: that node alone, with zeroed memory in the place of these eight argument bytes
  --unmapped           with --patch: an address without memory in their place
  --beside VARIANT     a second graph in the recording: the same step in another variant, replayed in turn
  --serve N --draft-tokens K --draft-layers L   a serving loop with a draft and a target graph

Exit codes: 0 good, 1 an output is wrong, 2 usage, 3 a CUDA call failed, 4 no GPU or too little memory, 5 a replay, or a kernel alone, faulted
)";

std::string models_json() {
  std::string text = "{\"models\":[";
  bool first_model = true;
  for (const ModelInfo* const model : all_models()) {
    text += first_model ? "" : ",";
    first_model = false;
    text += "{\"name\":" + json_quoted(model->name) + ",\"summary\":" + json_quoted(model->summary) +
            ",\"presets\":[";
    for (const PresetInfo& preset : model->presets)
      text += std::string(&preset == model->presets.data() ? "" : ",") +
              "{\"name\":" + json_quoted(preset.name) + ",\"summary\":" + json_quoted(preset.summary) +
              ",\"layers\":" + std::to_string(preset.layers) + "}";
    text += "],\"variants\":[";
    for (const VariantInfo& variant : model->variants)
      text += std::string(&variant == model->variants.data() ? "" : ",") +
              "{\"name\":" + json_quoted(variant.name) + ",\"summary\":" + json_quoted(variant.summary) +
              ",\"may_fault\":" + (variant.may_fault ? "true" : "false") +
              ",\"capture_fails\":" + (variant.capture_fails ? "true" : "false") +
              ",\"same_bits_as\":" + json_quoted(variant.same_bits_as) + "}";
    text += "],\"faults\":[";
    for (const std::string_view& fault : model->faults)
      text += (&fault == model->faults.data() ? "" : ",") + json_quoted(fault);
    text += "]}";
  }
  return text + "]}\n";
}

constexpr std::size_t kMaxNode = 0xffffffff;

int complain(const std::string& message) {
  Event("error").text("kind", "usage").text("message", message);
  std::fprintf(stderr, "cglint-model-runner: %s (--help lists the options)\n", message.c_str());
  return kExitUsage;
}

template <typename T>
bool read_number(std::string_view text, T low, T high, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= low && out <= high;
}

int run(int argc, char** argv) {
  if (argc < 3 || argv[2][0] == '-') return complain("which model?");
  const ModelInfo* const model = find_model(argv[2]);
  if (model == nullptr) return complain(std::string("no model is named '") + argv[2] + "'");
  SessionOptions options;
  struct Number {
    std::string_view name;
    int* value;
    int low, high;
  };
  const Number numbers[] = {
      {"--layers", &options.stack.layers, 1, 1024},      {"--batch", &options.stack.batch, 1, 65536},
      {"--context", &options.stack.context, 1, 1 << 24}, {"--replays", &options.replays, 0, 100000},
      {"--samples", &options.samples, 0, 1000000},       {"--serve", &options.serve_rounds, 1, 100000},
      {"--draft-tokens", &options.draft_tokens, 1, 64},  {"--draft-layers", &options.draft_layers, 1, 1024},
  };
  bool unmapped = false;
  std::optional<IsolateOptions::Patch> patch;
  for (int i = 3; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--no-pdl") {
      options.stack.pdl = false;
    } else if (name == "--wait") {
      options.wait = true;
    } else if (name == "--no-replay") {
      options.replay = false;
    } else if (name == "--measure-access") {
      options.measure_access = true;
    } else if (name == "--unmapped") {
      unmapped = true;
    } else if (name == "--no-check") {
      options.check = false;
    } else {
      const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
      if (value.empty()) return complain(std::string(name) + " is unknown or needs a value");
      ++i;
      const auto number = std::find_if(std::begin(numbers), std::end(numbers),
                                       [&](const Number& n) { return n.name == name; });
      bool good = true;
      if (number != std::end(numbers)) {
        good = read_number(value, number->low, number->high, *number->value);
      } else if (name == "--seed") {
        good = read_number<std::uint64_t>(value, 0, ~std::uint64_t{0}, options.stack.seed);
      } else if (name == "--variant") {
        options.stack.variant = value;
      } else if (name == "--preset") {
        options.stack.preset = value;
      } else if (name == "--moe-config") {
        options.stack.moe_config_dir = value;
      } else if (name == "--dot") {
        options.dot = value;
      } else if (name == "--isolate") {
        good = read_number<std::size_t>(value, 0, kMaxNode, options.isolate.emplace().first);
      } else if (name == "--patch") {
        const std::size_t colon = std::min(value.find(':'), value.size() - 1);
        patch.emplace();
        good = read_number<std::size_t>(value.substr(0, colon), 0, 0xffff, patch->slot) &&
               read_number<std::size_t>(value.substr(colon + 1), 0, 0xffff, patch->offset);
      } else if (name == "--beside") {
        options.beside = value;
      } else if (name == "--fault") {
        options.stack.fault = value;
        good = std::find(model->faults.begin(), model->faults.end(), value) != model->faults.end();
      } else {
        return complain("unknown option " + std::string(name));
      }
      if (!good) return complain(std::string(name) + " cannot be " + std::string(value));
    }
  }
  if ((patch && !options.isolate) || (unmapped && !patch)) return complain("--patch needs --isolate, --unmapped needs --patch");
  if (patch) {
    patch->unmapped = unmapped;
    options.isolate->patch = patch;
  }
  const auto named = [](const auto& list, std::string& name) -> decltype(list.data()) {
    if (name.empty()) name = list.front().name;
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.name == name; });
    return found == list.end() ? nullptr : &*found;
  };
  const VariantInfo* const variant = named(model->variants, options.stack.variant);
  if (variant == nullptr)
    return complain("no variant of this model is named '" + options.stack.variant + "'");
  if (!options.beside.empty() && named(model->variants, options.beside) == nullptr)
    return complain("no variant of this model is named '" + options.beside + "'");
  const PresetInfo* const preset = named(model->presets, options.stack.preset);
  if (preset == nullptr) return complain("no preset of this model is named '" + options.stack.preset + "'");
  if (options.stack.layers == 0) options.stack.layers = preset->layers;
  return run_session(*model, *variant, options);
}

}  // namespace
}  // namespace cglint::models

int main(int argc, char** argv) {
  using namespace cglint::models;
  const std::string_view verb = argc > 1 ? argv[1] : "";
  try {
    if (verb == "--help" || verb == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (verb == "list") {
      std::fputs(models_json().c_str(), stdout);
      return 0;
    }
    if (verb == "run") return run(argc, argv);
    return complain("expected 'list' or 'run'");
  } catch (const std::bad_alloc&) {
    Event("error").text("kind", "memory").text("message", "out of host memory");
    return kExitCannotRun;
  }
}
