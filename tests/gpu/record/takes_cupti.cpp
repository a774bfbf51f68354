// Preloaded (LD_PRELOAD): another tool, which has CUPTI before the recorder comes. $CGLINT_CUPTI names the library.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace {

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

__attribute__((constructor)) void take() {
  const char* const path = std::getenv("CGLINT_CUPTI");
  void* const library = dlopen(path == nullptr ? "libcupti.so.13" : path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return static_cast<void>(std::fprintf(stderr, "takes_cupti: %s\n", dlerror()));
  static CUpti_SubscriberHandle subscriber;
  static char old[64];
  CUpti_SubscriberParams params{};
  params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
  params.subscriberName = "the other tool";
  params.oldSubscriberName = old;
  params.oldSubscriberSize = sizeof old;
  const auto subscribe = reinterpret_cast<decltype(&cuptiSubscribe_v2)>(dlsym(library, "cuptiSubscribe_v2"));
  const CUptiResult result = subscribe == nullptr ? CUPTI_ERROR_NOT_SUPPORTED : subscribe(&subscriber, on_callback, nullptr, &params);
  if (result != CUPTI_SUCCESS) std::fprintf(stderr, "takes_cupti: CUPTI error %d\n", static_cast<int>(result));
}

}  // namespace
