// What one runner process does with a model: prepares it, runs a step eagerly, captures and instantiates it,
// and then either replays it for the recorder that was injected into the process, or measures it undisturbed.
#pragma once

#include <optional>
#include <string>

#include "runner/isolate.h"
#include "stack/model.h"

namespace cglint::models {

// Exit codes of the runner; errors are also told as an event.
inline constexpr int kExitOk = 0;
inline constexpr int kExitWrong = 1;  // an output is wrong
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCuda = 3;       // a CUDA call failed
inline constexpr int kExitCannotRun = 4;  // no GPU, or not enough memory
inline constexpr int kExitFault = 5;      // a replay faulted, or a kernel that was launched alone

struct SessionOptions {
  StackOptions stack;
  // Stop when the graph is instantiated and wait for a line on standard input: "go" replays it, "stop" or the
  // end of input does not. For recordings, where the graph is linted first.
  bool wait = false;
  int replays = 3;     // with `wait`
  bool replay = true;  // without `wait`: false measures only what needs no replay
  bool check = true;   // compare with the fp32 reference
  int samples = 200;   // timed replays; 0: none
  std::string dot;     // write the graph's DOT dump here
  // A serving loop: rounds of `draft_tokens` replays of a draft graph and one of a target graph that verifies
  // them. 0: no.
  int serve_rounds = 0;
  int draft_tokens = 3;
  int draft_layers = 1;
  bool measure_access = false;  // instead of replays: what each kernel reads and writes
  std::optional<IsolateOptions> isolate;  // instead of replays: kernels with null arguments, each launched alone
  // A second graph in the recording: the same step in this variant, replayed in turn with the other. Empty: no.
  std::string beside;
};

// Returns the process's exit code.
int run_session(const ModelInfo& info, const VariantInfo& variant, const SessionOptions& options);

}  // namespace cglint::models
