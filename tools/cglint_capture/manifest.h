// What a reference model's manifest says that the linter must find: reference_models/<model>/manifest.toml. Only this
// program and the tests read it; rules never see a model's or variant's name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cglint::capture_tool {

// What is expected of one run. Later entries of the manifest that apply replace what earlier ones state.
struct Expectation {
  std::vector<std::string> codes;          // sorted; exactly these
  std::vector<std::string> checked;        // sorted; rules that must have looked, whether they found something or not
  std::optional<std::uint32_t> streams;    // of the published number of layers
  std::uint32_t streams_per_layer = 0;     // fewer for each layer less
};

struct RunKey {
  std::string variant, preset;
  int layers = 0, published_layers = 0, batch = 0;
  std::string beside = {};  // the variant whose graph is in the recording too
};

class Manifest {
 public:
  // The error names the line.
  static base::Result<Manifest> parse(std::string_view text, std::string_view name);

  [[nodiscard]] const std::vector<std::string>& sources() const { return sources_; }
  // Published number of layers of a preset, for recordings that are verified without the model; 0: not stated.
  [[nodiscard]] int layers_of(std::string_view preset) const;
  // Nothing: the manifest does not know the variant.
  [[nodiscard]] std::optional<Expectation> expected(const RunKey& run) const;
  // Of a run with fewer or more layers than published.
  [[nodiscard]] static std::optional<std::uint32_t> expected_streams(const Expectation& expectation, const RunKey& run);
  [[nodiscard]] std::vector<std::string> variants() const;
  // What recordings/ holds, sorted: names without .cgl.jsonl.gz, "*" replaced by each variant.
  [[nodiscard]] std::vector<std::string> recordings() const;

 private:
  struct Entry {
    std::string preset;  // empty: all
    std::string beside;  // exactly this one; empty: none
    int batch_min = 0, batch_max = 1 << 30, layers_min = 0;
    std::optional<std::vector<std::string>> codes, checked;
    std::optional<std::uint32_t> streams, streams_per_layer;
  };
  std::vector<std::string> sources_;
  std::map<std::string, int, std::less<>> layers_;
  std::map<std::string, std::vector<Entry>, std::less<>> variants_;
  std::vector<std::string> checked_;     // where no entry states other ones
  std::vector<std::string> recordings_;  // as stated
};

}  // namespace cglint::capture_tool
