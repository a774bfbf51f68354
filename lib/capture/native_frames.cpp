#include "capture/native_frames.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>
#include <unwind.h>

#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "capture/elf_lines.h"
#include "capture/elf_symbols.h"

namespace cglint::capture {
namespace {

struct Walk {
  std::span<std::uintptr_t> out;
  std::size_t count = 0;
  int skip = 0;
};

_Unwind_Reason_Code visit(_Unwind_Context* context, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  int before_instruction = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &before_instruction);
  if (address == 0 || walk.count == walk.out.size()) return _URC_END_OF_STACK;
  if (walk.skip > 0) {
    --walk.skip;
    return _URC_NO_REASON;
  }
  // A return address is past its call, which may be the function's last instruction.
  walk.out[walk.count++] = before_instruction != 0 ? address : address - 1;
  return _URC_NO_REASON;
}

// "0x1f", with `before` in front of it.
std::string hexadecimal(std::uintptr_t value, std::string before = {}) {
  std::array<char, 16> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16);
  before.append("0x").append(digits.data(), end);
  return before;
}

std::string program_path() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  return length <= 0 ? "" : std::string(path.data(), static_cast<std::size_t>(length));
}

// The modules whose tables were needed, read once and kept. Under the mutex.
pthread_mutex_t modules_mutex = PTHREAD_MUTEX_INITIALIZER;
const ElfSymbols& module_at(const std::string& path) {
  static auto* const modules = new std::map<std::string, ElfSymbols>;
  return modules->try_emplace(path, path).first->second;
}

struct Place {
  std::string module;
  std::uint64_t address = 0;  // in the module's file
  std::uint64_t function = 0;  // begin of its function there; 0: unknown
};

// Module and function; returns where in the module it is.
Place name_frame(NativeFrame& frame) {
  Place place;
  Dl_info info{};
  link_map* map = nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that was read from the stack
  if (dladdr1(reinterpret_cast<void*>(frame.address), &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      info.dli_fname == nullptr || map == nullptr) {
    frame.text.function = hexadecimal(frame.address);
    return place;
  }
  // The program itself has no name in the loader's list, and perhaps a relative one in its arguments.
  place.module = map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : program_path();
  if (place.module.empty()) place.module = info.dli_fname;
  place.address = frame.address - map->l_addr;
  frame.text.file = place.module;
  frame.is_cuda = is_cuda_module(place.module);
  std::uint64_t offset = 0;
  std::string name;
  if (info.dli_sname != nullptr) {
    name = info.dli_sname;
    offset = frame.address - reinterpret_cast<std::uintptr_t>(info.dli_saddr);
  } else if (!frame.is_cuda) {
    name = module_at(place.module).find(place.address, offset);
  }
  if (name.empty()) {
    frame.text.function = hexadecimal(place.address, "+");
    return place;
  }
  frame.symbol = name;
  place.function = offset < place.address ? place.address - offset : 0;
  frame.is_launch_stub = name.find("__device_stub_") != std::string::npos;  // of a template there are two, one in the other
  frame.is_cuda = frame.is_cuda || frame.is_launch_stub || name.starts_with("__cudart") ||
                  name.starts_with("cudaLaunchKernel") || name.starts_with("libcudart_static_");
  frame.is_runtime = (name.starts_with("cuda") && name.size() > 4 && name[4] >= 'A' && name[4] <= 'Z') ||
                     name.find("__cudaLaunchKernel_helper") != std::string::npos;
  int status = 0;
  char* const demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  frame.text.function = status == 0 && demangled != nullptr ? demangled : name;
  std::free(demangled);
  constexpr std::size_t kMaxBytes = 400;
  if (frame.text.function.size() > kMaxBytes) frame.text.function.resize(kMaxBytes);
  frame.text.function = hexadecimal(offset, std::move(frame.text.function) + "+");
  return place;
}

void name_lines(std::span<NativeFrame> frames, std::span<const Place> places) {
  std::map<std::string, std::vector<std::size_t>> by_module;
  for (std::size_t i = 0; i < frames.size(); ++i)
    if (!frames[i].is_cuda && !places[i].module.empty()) by_module[places[i].module].push_back(i);
  for (const auto& [module, indices] : by_module) {
    std::vector<SourceLine> lines;
    for (const std::size_t i : indices) {
      lines.push_back({places[i].address});
      lines.back().function = places[i].function;
    }
    find_lines(module_at(module).file(), lines);
    for (std::size_t n = 0; n < lines.size(); ++n) {
      if (lines[n].file.empty() || lines[n].line == 0) continue;
      NativeFrame& frame = frames[indices[n]];
      FrameText& text = frame.text;
      frame.launch = text;
      text.file = std::move(lines[n].file);
      text.line = lines[n].line;
      text.function.resize(text.function.rfind('+'));
      if (lines[n].launch_line != 0) {
        frame.launch.function = text.function;
        frame.launch.file = std::move(lines[n].launch_file);
        frame.launch.line = lines[n].launch_line;
      }
      if (!is_stub_file(text.file)) continue;
      // A launch stub that was put into its wrapper, and perhaps with that into what launches.
      frame.is_cuda = frame.launch.line == 0;
      text = frame.launch;
    }
  }
}

}  // namespace

std::size_t native_addresses(std::span<std::uintptr_t> addresses, int skip) {
  Walk walk{addresses, 0, skip};
  _Unwind_Backtrace(visit, &walk);
  return walk.count;
}

void describe_frames(std::span<NativeFrame> frames) {
  pthread_mutex_lock(&modules_mutex);
  try {
    std::vector<Place> places;
    for (NativeFrame& frame : frames) {
      frame.text = {};
      frame.text.is_native = true;
      places.push_back(name_frame(frame));
    }
    name_lines(frames, places);
  } catch (...) {
    pthread_mutex_unlock(&modules_mutex);
    throw;
  }
  pthread_mutex_unlock(&modules_mutex);
}

bool is_launch_wrapper(std::string_view stub, std::string_view symbol) {
  constexpr std::string_view kStub = "__device_stub__";
  const std::size_t at = stub.find(kStub);
  if (symbol.starts_with("_Z")) symbol.remove_prefix(1);
  return at != std::string_view::npos && !symbol.empty() && stub.substr(at + kStub.size()).starts_with(symbol);
}

bool is_cuda_module(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view prefix : {"libcuda.so", "libcudart.so", "libcupti.so", "libcglint_record.so"})
    if (name.starts_with(prefix)) return true;
  return false;
}

}  // namespace cglint::capture
