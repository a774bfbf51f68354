// The literal offsets of the record tests are those of the structures in this toolkit's CUPTI headers, the deprecated ones too.
#include <cupti.h>
#include <gtest/gtest.h>

#include "unit/capture/activity_records.h"

namespace cglint::capture {
namespace {

template <typename Record>
RecordOffsets offsets_of(std::string_view name) {
  return {name,
          offsetof(Record, start),
          offsetof(Record, end),
          offsetof(Record, deviceId),
          offsetof(Record, streamId),
          offsetof(Record, correlationId),
          offsetof(Record, graphNodeId),
          sizeof(Record)};
}
#define CGLINT_RECORD(name) offsets_of<name>(#name)

// What this header has.
const RecordOffsets kOfHeader[] = {
    CGLINT_RECORD(CUpti_ActivityKernel9), CGLINT_RECORD(CUpti_ActivityMemcpy5), CGLINT_RECORD(CUpti_ActivityMemset4),
#if CUPTI_API_VERSION >= 26
    CGLINT_RECORD(CUpti_ActivityMemcpy6),
#endif
#if CUPTI_API_VERSION >= 130000
    CGLINT_RECORD(CUpti_ActivityKernel10),
#endif
#if CUPTI_API_VERSION >= 130100
    CGLINT_RECORD(CUpti_ActivityKernel11),
#endif
#if CUPTI_API_VERSION >= 130300
    CGLINT_RECORD(CUpti_ActivityKernel12),
#endif
#if CUPTI_API_VERSION >= 130400
    CGLINT_RECORD(CUpti_ActivityKernel13), CGLINT_RECORD(CUpti_ActivityMemcpy7), CGLINT_RECORD(CUpti_ActivityMemset5),
#endif
};

const RecordOffsets* of_header(std::string_view name) {
  for (const RecordOffsets& record : kOfHeader)
    if (record.name == name) return &record;
  return nullptr;
}

TEST(CuptiRecords, LiteralOffsetsAreTheHeaders) {
  std::size_t compared = 0;
  for (const RecordOffsets& literal : kRecords) {
    const RecordOffsets* const real = of_header(literal.name);
    if (real == nullptr) continue;
    ++compared;
    EXPECT_EQ(literal.start, real->start) << literal.name;
    EXPECT_EQ(literal.end, real->end) << literal.name;
    EXPECT_EQ(literal.device, real->device) << literal.name;
    EXPECT_EQ(literal.stream, real->stream) << literal.name;
    EXPECT_EQ(literal.correlation, real->correlation) << literal.name;
    EXPECT_EQ(literal.graph_node, real->graph_node) << literal.name;
    if (literal.size != 0) {
      EXPECT_EQ(literal.size, real->size) << literal.name;
    }
  }
  EXPECT_EQ(compared, std::size(kOfHeader));
}

TEST(CuptiRecords, ThisVersionsRecordsAreInItsHeader) {
  for (const ActivityKind kind : {ActivityKind::kernel, ActivityKind::memcpy, ActivityKind::memset}) {
    const auto layout = activity_layout(kind, CUPTI_API_VERSION);
    ASSERT_TRUE(layout.has_value()) << CUPTI_API_VERSION;
    EXPECT_NE(of_header(layout->record), nullptr) << layout->record;
  }
}

}  // namespace
}  // namespace cglint::capture
