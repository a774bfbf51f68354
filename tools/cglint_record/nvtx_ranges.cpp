#include "nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cwchar>
#include <memory>
#include <string>

namespace cglint::record {
namespace {

std::atomic<bool> attached{false};

// Calls may come while the thread ends: then a new stack is made, and lost.
struct ThreadRanges {
  capture::RangeStack* stack = nullptr;
  ~ThreadRanges() {
    delete stack;
    stack = nullptr;
  }
};
thread_local ThreadRanges ranges;

capture::RangeStack& own_ranges() {
  if (ranges.stack == nullptr) ranges.stack = new capture::RangeStack;
  return *ranges.stack;
}

// Domains and registered strings are handles to what we keep: they live as long as the process.
std::string utf8(const wchar_t* text) {
  std::string out;
  for (; text != nullptr && *text != 0 && out.size() < capture::kMaxRangeTextBytes; ++text) {
    const auto c = static_cast<std::uint32_t>(*text);
    const auto byte = [&](std::uint32_t value) { out += static_cast<char>(value); };
    if (c < 0x80) {
      byte(c);
    } else if (c < 0x800) {
      byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
    } else {
      byte(0xf0 | (c >> 18 & 7)), byte(0x80 | (c >> 12 & 0x3f)), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
    }
  }
  return out;
}

template <typename Domain>
std::uint64_t domain_of(Domain handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

// A failure in here (no memory) must not reach the program: the range is lost.
template <typename Function>
int guarded(Function&& function) noexcept {
  try {
    return function();
  } catch (...) {
    return -1;
  }
}

int push_text(std::uint64_t domain, const char* text) {
  return guarded([&] { return own_ranges().push(domain, text == nullptr ? "" : text); });
}
int push_wide(std::uint64_t domain, const wchar_t* text) {
  return guarded([&] { return own_ranges().push(domain, utf8(text)); });
}
int push_event(std::uint64_t domain, const nvtxEventAttributes_t* event) {
  if (event == nullptr) return push_text(domain, nullptr);
  switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return push_text(domain, event->message.ascii);
    case NVTX_MESSAGE_TYPE_UNICODE:
      return push_wide(domain, event->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED: {
      const auto* const text = reinterpret_cast<const std::string*>(event->message.registered);
      return push_text(domain, text == nullptr ? nullptr : text->c_str());
    }
    default:
      return push_text(domain, nullptr);
  }
}
int pop(std::uint64_t domain) {
  return guarded([&] { return own_ranges().pop(domain); });
}

template <typename Handle>
Handle keep(std::string text) {
  return reinterpret_cast<Handle>(new std::string(std::move(text)));
}
template <typename Handle, typename Function>
Handle guarded_handle(Function&& function) noexcept {
  try {
    return function();
  } catch (...) {
    return nullptr;
  }
}

int NVTX_API range_push_ex(const nvtxEventAttributes_t* event) {
  return push_event(0, event);
}
int NVTX_API range_push_a(const char* text) {
  return push_text(0, text);
}
int NVTX_API range_push_w(const wchar_t* text) {
  return push_wide(0, text);
}
int NVTX_API range_pop() {
  return pop(0);
}
int NVTX_API domain_range_push_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return push_event(domain_of(domain), event);
}
int NVTX_API domain_range_pop(nvtxDomainHandle_t domain) {
  return pop(domain_of(domain));
}
nvtxStringHandle_t NVTX_API register_string_a(nvtxDomainHandle_t, const char* text) {
  return guarded_handle<nvtxStringHandle_t>([&] { return keep<nvtxStringHandle_t>(text == nullptr ? "" : text); });
}
nvtxStringHandle_t NVTX_API register_string_w(nvtxDomainHandle_t, const wchar_t* text) {
  return guarded_handle<nvtxStringHandle_t>([&] { return keep<nvtxStringHandle_t>(utf8(text)); });
}
nvtxDomainHandle_t NVTX_API domain_create_a(const char* name) {
  return guarded_handle<nvtxDomainHandle_t>([&] { return keep<nvtxDomainHandle_t>(name == nullptr ? "" : name); });
}
nvtxDomainHandle_t NVTX_API domain_create_w(const wchar_t* name) {
  return guarded_handle<nvtxDomainHandle_t>([&] { return keep<nvtxDomainHandle_t>(utf8(name)); });
}

template <typename Function>
void set(NvtxFunctionTable table, unsigned size, unsigned index, Function function) {
  if (index < size && table[index] != nullptr)
    *table[index] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

const capture::RangeStack& thread_ranges() {
  return own_ranges();
}

bool has_nvtx() {
  return attached.load(std::memory_order_relaxed);
}

namespace {

// What is not set stays a call that does nothing.
bool attach(NvtxGetExportTableFunc_t get_export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr || callbacks->struct_size < sizeof(NvtxExportTableCallbacks)) return false;
  NvtxFunctionTable core = nullptr, core2 = nullptr;
  unsigned core_size = 0, core2_size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &core_size) == 0 ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &core2_size) == 0)
    return false;
  set(core, core_size, NVTX_CBID_CORE_RangePushEx, range_push_ex);
  set(core, core_size, NVTX_CBID_CORE_RangePushA, range_push_a);
  set(core, core_size, NVTX_CBID_CORE_RangePushW, range_push_w);
  set(core, core_size, NVTX_CBID_CORE_RangePop, range_pop);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainRangePushEx, domain_range_push_ex);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainRangePop, domain_range_pop);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainRegisterStringA, register_string_a);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainRegisterStringW, register_string_w);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainCreateA, domain_create_a);
  set(core2, core2_size, NVTX_CBID_CORE2_DomainCreateW, domain_create_w);
  attached.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace
}  // namespace cglint::record

// Called by each copy of NVTX in the process (each is part of the library that uses it) at its first call.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  return cglint::record::attach(get_export_table) ? 1 : 0;
}
