// What a recorder says about the process that it runs in, and the first lines of its file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cglint::capture {

struct GpuFacts {
  std::int32_t device = 0;
  std::string name;
  std::uint32_t compute_major = 0, compute_minor = 0, sm_count = 0;
  std::uint64_t memory_bytes = 0;
};

struct ProcessFacts {
  long pid = 0;
  std::int64_t rank = -1, world_size = -1;
  std::string host, command;
  std::string program;  // last part of the executable's name
  std::uint32_t driver_version = 0, cupti_version = 0;
  std::string driver_release;  // "580.159.04"
  std::vector<GpuFacts> gpus;
  std::vector<std::pair<std::string, std::string>> environment;  // variables that change how CUDA graphs run
};

// The release in the name of a driver library's file ("libcuda.so.580.159.04"), or "".
std::string driver_release_of(std::string_view library_path);

// Of this process; versions and GPUs are left out.
ProcessFacts this_process();

// Each appends one line.
void write_header(std::string_view producer, bool timeline, std::uint64_t created_unix_s, std::string& out);
void write_process(const ProcessFacts& process, std::string& out);

}  // namespace cglint::capture
