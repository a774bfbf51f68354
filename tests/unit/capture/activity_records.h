// CUPTI's activity records in literal numbers: where their fields lie, in bytes. Those with a size are compared with the structures of the
// toolkit's headers (tests/gpu/record/cupti_records_test.cpp); the others are of CUPTI versions after 13.0 and follow its published reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "capture/replay_book.h"

namespace cglint::capture {

struct RecordOffsets {
  std::string_view name;
  std::size_t start, end, device, stream, correlation, graph_node, size;
};
inline constexpr RecordOffsets kRecords[] = {
    {"CUpti_ActivityKernel9", 16, 24, 40, 48, 92, 144, 208},
    {"CUpti_ActivityKernel10", 16, 24, 40, 48, 92, 144, 216},
    {"CUpti_ActivityKernel11", 16, 24, 40, 48, 92, 144, 0},
    {"CUpti_ActivityKernel12", 16, 24, 40, 48, 92, 144, 0},
    {"CUpti_ActivityKernel13", 16, 24, 40, 48, 92, 144, 0},
    {"CUpti_ActivityMemcpy5", 16, 24, 32, 40, 44, 64, 88},
    {"CUpti_ActivityMemcpy6", 16, 24, 32, 40, 44, 64, 96},
    {"CUpti_ActivityMemcpy7", 16, 24, 32, 40, 44, 64, 0},
    {"CUpti_ActivityMemset4", 16, 24, 32, 40, 44, 64, 88},
    {"CUpti_ActivityMemset5", 16, 24, 32, 40, 44, 64, 0},
};

// Which of them each CUPTI version hands out.
struct VersionRecords {
  std::uint32_t version;
  std::string_view kernel, memcpy, memset;
};
inline constexpr VersionRecords kVersionRecords[] = {
    {19, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},  // CUDA 12.0
    {20, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},  // 12.2
    {21, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},
    {22, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},  // 12.4
    {23, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},
    {24, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},  // 12.6
    {26, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},  // 12.8
    {27, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {28, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},  // 12.9, update 1
    {130000, "CUpti_ActivityKernel10", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130001, "CUpti_ActivityKernel10", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130100, "CUpti_ActivityKernel11", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130201, "CUpti_ActivityKernel11", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130300, "CUpti_ActivityKernel12", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130402, "CUpti_ActivityKernel13", "CUpti_ActivityMemcpy7", "CUpti_ActivityMemset5"},
    {130500, "CUpti_ActivityKernel13", "CUpti_ActivityMemcpy7", "CUpti_ActivityMemset5"},
};

// A record made by hand. Every four bytes that are none of these fields hold a number that is nowhere else.
inline std::vector<unsigned char> made_record(std::string_view name, std::uint32_t kind, const ActivityOp& op) {
  for (const RecordOffsets& record : kRecords) {
    if (record.name != name) continue;
    std::vector<unsigned char> bytes(record.size == 0 ? 240 : record.size);
    const auto put = [&](std::size_t offset, auto value) { std::memcpy(bytes.data() + offset, &value, sizeof value); };
    for (std::size_t at = 0; at < bytes.size(); at += 4) put(at, static_cast<std::uint32_t>(0xa5a50000 + at));
    put(0, kind);
    put(record.start, op.start_ns), put(record.end, op.end_ns);
    put(record.device, op.device), put(record.stream, op.stream), put(record.correlation, op.correlation);
    put(record.graph_node, op.node_id);
    return bytes;
  }
  return {};
}

}  // namespace cglint::capture
