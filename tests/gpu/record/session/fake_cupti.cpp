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

}  // namespace

__attribute__((visibility("default"))) void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (subscriber != nullptr && enabled[{domain, id}]) subscriber(argument, domain, id, data);
}
__attribute__((visibility("default"))) int finalized() {
  return finalize_calls;
}

}  // namespace fake

CGLINT_FAKE CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc callback, void* data) {
  fake::subscriber = callback;
  fake::argument = data;
  return CUPTI_SUCCESS;
}
// $CGLINT_FAKE_HOLDER: the name of a tool that has CUPTI already.
CGLINT_FAKE CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data,
                                                   CUpti_SubscriberParams* params) {
  const char* const holder = std::getenv("CGLINT_FAKE_HOLDER");
  if (holder == nullptr) return cuptiSubscribe(handle, callback, data);
  std::strncpy(params->oldSubscriberName, holder, params->oldSubscriberSize - 1);
  return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
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
  *version = 130001;
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
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) {
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc,
                                                                CUpti_BuffersCallbackCompleteFunc) {
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, CUpti_Activity**) {
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = 0;
  return CUPTI_SUCCESS;
}
CGLINT_FAKE CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
  return CUPTI_SUCCESS;
}
