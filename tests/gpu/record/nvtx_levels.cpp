// The recorder as an NVTX injection, without a GPU: NVTX calls return what the recorder's range stacks answer.
// Without an injection every level is negative, so that this cannot pass by itself.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <thread>

namespace {

int failures = 0;

void expect(int got, int wanted, const char* what) {
  if (got == wanted) return;
  std::printf("FAILED: %s is level %d, not %d\n", what, got, wanted);
  ++failures;
}

nvtxEventAttributes_t event() {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return attributes;
}

}  // namespace

int main() {
  expect(nvtxRangePushA("layer.0"), 0, "the first range");
  expect(nvtxRangePushW(L"attention \x3b1"), 1, "a wide range");
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  nvtxEventAttributes_t attributes = event();
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = nvtxDomainRegisterStringA(domain, "moe");
  expect(nvtxDomainRangePushEx(domain, &attributes), 0, "the first range of a domain");
  expect(nvtxRangePop(), 1, "the end of the wide range, under a domain's");
  attributes = event();
  expect(nvtxRangePushEx(&attributes), 1, "a range without a name");
  expect(nvtxDomainRangePop(domain), 0, "the end of the domain's range");
  expect(nvtxDomainRangePop(domain), -1, "a range that is not there");
  std::thread([] { expect(nvtxRangePushA("other thread"), 0, "another thread's range"); }).join();
  nvtxRangeEnd(nvtxRangeStartA("start and end are no stack"));
  expect(nvtxRangePop(), 1, "the end of the range without a name");
  expect(nvtxRangePop(), 0, "the end of the first range");
  if (failures == 0) std::printf("all levels are right\n");
  return failures == 0 ? 0 : 1;
}
