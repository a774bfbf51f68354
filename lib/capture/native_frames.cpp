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

std::string hexadecimal(std::uintptr_t value) {
  std::string text(18, '\0');
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, 16);
  text.resize(static_cast<std::size_t>(end - text.data()));
  return "0x" + text;
}

std::string program_path() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  return length <= 0 ? "" : std::string(path.data(), static_cast<std::size_t>(length));
}

// From the module's own symbol table, which is read once and kept.
std::string own_symbol(const std::string& module, std::uint64_t address, std::uint64_t& offset) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static auto* const modules = new std::map<std::string, ElfSymbols>;
  pthread_mutex_lock(&mutex);
  std::string name;
  try {
    name = modules->try_emplace(module, module).first->second.find(address, offset);
  } catch (...) {  // no memory: no name
    name.clear();
  }
  pthread_mutex_unlock(&mutex);
  return name;
}

}  // namespace

std::size_t native_addresses(std::span<std::uintptr_t> addresses, int skip) {
  Walk walk{addresses, 0, skip};
  _Unwind_Backtrace(visit, &walk);
  return walk.count;
}

FrameText describe_address(std::uintptr_t address) {
  FrameText frame;
  frame.is_native = true;
  Dl_info info{};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(address), &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      info.dli_fname == nullptr || map == nullptr) {
    frame.function = hexadecimal(address);
    return frame;
  }
  // The program itself has no name in the loader's list, and perhaps a relative one in its arguments.
  frame.file = map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : program_path();
  if (frame.file.empty()) frame.file = info.dli_fname;
  const std::uint64_t in_module = address - map->l_addr;
  std::uint64_t offset = 0;
  std::string name;
  if (info.dli_sname != nullptr) {
    name = info.dli_sname;
    offset = address - reinterpret_cast<std::uintptr_t>(info.dli_saddr);
  } else {
    name = own_symbol(frame.file, in_module, offset);
  }
  if (name.empty()) {
    frame.function = "+" + hexadecimal(in_module);
    return frame;
  }
  int status = 0;
  char* const demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  frame.function = status == 0 && demangled != nullptr ? demangled : name;
  std::free(demangled);
  constexpr std::size_t kMaxBytes = 400;
  if (frame.function.size() > kMaxBytes) frame.function.resize(kMaxBytes);
  frame.function += "+" + hexadecimal(offset);
  return frame;
}

bool is_cuda_frame(const FrameText& frame) {
  // The runtime is often linked into the program.
  return is_cuda_module(frame.file) || frame.function.starts_with("__cudart") ||
         frame.function.starts_with("cudaLaunchKernel") || frame.function.starts_with("libcudart_static_");
}

bool is_cuda_module(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view prefix : {"libcuda.so", "libcudart.so", "libcupti.so", "libcglint_record.so"})
    if (name.starts_with(prefix)) return true;
  return false;
}

}  // namespace cglint::capture
