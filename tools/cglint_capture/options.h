// The command line of `cglint capture`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cglint::capture_tool {

inline constexpr int kExitGood = 0;
inline constexpr int kExitWrong = 1;     // an output is wrong, or --verify or --verify-recordings found a difference
inline constexpr int kExitUsage = 2;     // also: no such model, a program that is not there, output that cannot be written
inline constexpr int kExitInternal = 3;  // a CUDA call failed, a program crashed
inline constexpr int kExitMissing = 4;   // something could not be recorded or measured here: GPU, memory, CUPTI
inline constexpr int kExitInterrupted = 130;

struct Options {
  std::string model;
  std::vector<std::string> variants;
  std::string preset;
  std::vector<int> layers, batches{1}, connections;
  int context = 4096;
  std::uint64_t seed = 1;
  int replays = 3, samples = 200;
  int serve = 0, draft_tokens = 3, draft_layers = 1;
  int timeout_s = 600;
  std::string output = ".";
  std::string results;
  std::string format = "text";
  std::string moe_config;
  std::string lint_moe_config;  // for the linter alone: the tables that the model was built with, where moe_config names no others
  std::string beside;  // a variant whose graph is in each recording too
  std::vector<std::string> recordings;
  bool resume = false, list = false, verify = false, force = false;
  bool no_trace = false, check_only = false, no_check = false, no_pdl = false, measure_access = false, quiet = false;
};

}  // namespace cglint::capture_tool
