#include <cstdlib>
#include <cstring>

#include "fake_driver.h"

#define CGLINT_FAKE extern "C" __attribute__((visibility("default")))

namespace fake {
namespace {

CUpti_CallbackFunc subscriber = nullptr;
void* argument = nullptr;
std::map<std::pair<int, CUpti_CallbackId>, bool> enabled;
int finalize_calls = 0;
bool is_second_interface = false;
CUpti_BuffersCallbackRequestFunc requested = nullptr;
CUpti_BuffersCallbackCompleteFunc completed = nullptr;
int traced = 0;
std::vector<std::size_t> ends;  // of the records in the buffer that is handed over

// $CGLINT_FAKE_CUPTI: the version, if not 13.0's.
std::uint32_t version() {
  const char* const given = std::getenv("CGLINT_FAKE_CUPTI");
  return given == nullptr ? 130001 : static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10));
}
// $CGLINT_FAKE_HOLDER: the name of a tool that has CUPTI already.
const char* holder() {
  return std::getenv("CGLINT_FAKE_HOLDER");
}
// As CUPTI 13.2 and later.
CUptiResult first_interface() {
  return version() >= 130200 && is_second_interface ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

}  // namespace

__attribute__((visibility("default"))) void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (subscriber != nullptr && enabled[{domain, id}]) subscriber(argument, domain, id, data);
}
__attribute__((visibility("default"))) int finalized() {
  return finalize_calls;
}
__attribute__((visibility("default"))) bool hand_over(const std::vector<std::vector<unsigned char>>& records) {
  if (requested == nullptr || traced == 0) return false;
  std::uint8_t* buffer = nullptr;
  std::size_t size = 0, most = 0, used = 0;
  requested(&buffer, &size, &most);
  ends.clear();
  for (const auto& record : records) {
    std::memcpy(buffer + used, record.data(), record.size());
    used += record.size();
    ends.push_back(used);
  }
  completed(nullptr, 0, buffer, size, used);
  return true;
}

}  // namespace fake

CGLINT_FAKE CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc callback, void* data) {
  if (fake::holder() != nullptr) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  fake::subscriber = callback;
  fake::argument = data;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data,
                                                   CUpti_SubscriberParams* params) {
  fake::is_second_interface = true;
  if (fake::holder() != nullptr) std::strncpy(params->oldSubscriberName, fake::holder(), params->oldSubscriberSize - 1);
  return cuptiSubscribe(handle, callback, data);
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle) {
  fake::subscriber = nullptr;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiFinalize() {
  ++fake::finalize_calls;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiEnableCallback(std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                                                     CUpti_CallbackId id) {
  fake::enabled[{domain, id}] = on != 0;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiGetVersion(std::uint32_t* version) {
  *version = fake::version();
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult, const char** text) {
  *text = "an error";
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiGetGraphNodeId(CUgraphNode node, std::uint64_t* id) {
  *id = reinterpret_cast<std::uint64_t>(node);
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiGetGraphId(CUgraph, std::uint32_t* id) {
  *id = 1;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiGetDeviceId(CUcontext, std::uint32_t* id) {
  *id = 0;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind) {
  ++fake::traced;
  return fake::first_interface();
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) {
  --fake::traced;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                                CUpti_BuffersCallbackCompleteFunc complete) {
  fake::requested = request;
  fake::completed = complete;
  return fake::first_interface();
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  std::size_t at = 0;
  if (*record != nullptr) {
    const auto begin = static_cast<std::size_t>(reinterpret_cast<std::uint8_t*>(*record) - buffer);
    for (const std::size_t end : fake::ends)
      if (end > begin) {
        at = end;
        break;
      }
  }
  if (at >= valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(buffer + at);
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = 0;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
  return CUPTI_SUCCESS;
}
