#include "capture/native_frames.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unwind.h>

#include <charconv>
#include <cstdlib>
#include <string>

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
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_fname == nullptr) {
    frame.function = hexadecimal(address);
    return frame;
  }
  frame.file = info.dli_fname;
  if (info.dli_sname == nullptr) {
    frame.function = "+" + hexadecimal(address - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
    return frame;
  }
  int status = 0;
  char* const demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  frame.function = status == 0 && demangled != nullptr ? demangled : info.dli_sname;
  std::free(demangled);
  constexpr std::size_t kMaxBytes = 400;
  if (frame.function.size() > kMaxBytes) frame.function.resize(kMaxBytes);
  frame.function += "+" + hexadecimal(address - reinterpret_cast<std::uintptr_t>(info.dli_saddr));
  return frame;
}

bool is_cuda_module(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view prefix : {"libcuda.so", "libcudart.so", "libcupti.so", "libcglint_record.so"})
    if (name.starts_with(prefix)) return true;
  return false;
}

}  // namespace cglint::capture
