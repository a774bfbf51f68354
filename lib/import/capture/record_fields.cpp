#include "import/capture/record_fields.h"

namespace cglint::import::capture {
namespace {

// Replaces what is not UTF-8 by U+FFFD.
std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t length = 1;
    if (lead >= 0x80) {
      length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
      if (i + length > text.size() || !simdjson::validate_utf8(text.data() + i, length)) {
        out += "\xef\xbf\xbd";
        ++i;
        continue;
      }
    }
    out.append(text, i, length);
    i += length;
  }
  return out;
}

}  // namespace

bool RecordFields::open_record(std::string_view text, std::size_t capacity, od::object& out) {
  text_ = text;
  capacity_ = capacity;
  was_repaired_ = false;
  simdjson::error_code code = parser_.iterate(text.data(), text.size(), capacity).get(document_);
  if (code == simdjson::UTF8_ERROR) {
    repaired_ = repair_utf8(text);
    was_repaired_ = true;
    repaired_.reserve(repaired_.size() + simdjson::SIMDJSON_PADDING);
    text_ = repaired_;
    capacity_ = repaired_.capacity();
    code = parser_.iterate(text_.data(), text_.size(), capacity_).get(document_);
  }
  if (code != simdjson::SUCCESS) return broken_json(code);
  return document_.get_object().get(out) == simdjson::SUCCESS || wrong("the line is not a JSON object");
}

bool RecordFields::reopen_record(od::object& out) {
  return (parser_.iterate(text_.data(), text_.size(), capacity_).get(document_) == simdjson::SUCCESS &&
          document_.get_object().get(out) == simdjson::SUCCESS) ||
         wrong("the record cannot be read twice");
}

bool RecordFields::read_frame(value& v, ir::Frame& out) {
  static constexpr std::array<std::string_view, 2> kKinds = {"python", "native"};
  out = {.kind = ir::Frame::Kind::python, .file = ir::kEmptyString, .function = ir::kEmptyString};
  return read_object(v, "a frame", required(text("file", out.file)), text("function", out.function),
                     number("line", out.line), word("kind", kKinds, out.kind), flag("generated", out.generated));
}

bool RecordFields::read_frames(value& v) {
  frames_.clear();
  return for_each(v, "frames", [&](value& item) {
    ir::Frame frame;
    if (!read_frame(item, frame)) return false;
    frames_.push_back(frame);
    return true;
  });
}

bool RecordFields::read_stacks(value& v) {
  stacks_.clear();
  return for_each(v, "stacks", [&](value& item) {
    one_stack_.clear();
    if (!for_each(item, "a stack", [&](value& entry) {
          od::json_type type;
          if (entry.type().get(type) != simdjson::SUCCESS) return wrong("a stack entry is broken");
          ir::Frame frame;
          if (type == od::json_type::number) {
            std::uint32_t index = 0;
            if (!get_index(entry, "a stack entry", index) || !look_up("a stack", "frame", frames_, index, frame))
              return false;
          } else if (!read_frame(entry, frame)) {
            return false;
          }
          one_stack_.push_back(frame);
          return true;
        }))
      return false;
    stacks_.push_back(recording_.intern_stack(one_stack_));
    return true;
  });
}

bool RecordFields::read_info(value& v, ir::GraphInfo& info, InfoRefs& refs) {
  static constexpr std::array<std::string_view, 4> kRoles = {"captured", "built", "body", "eager"};
  static constexpr std::array<std::string_view, 4> kModes = {"unknown", "global", "thread_local", "relaxed"};
  static constexpr std::array<std::string_view, 4> kStatuses = {"unknown", "ok", "invalidated", "failed"};
  return read_object(
             v, "info", text("name", info.name), word("role", kRoles, info.role), hex("source_id", info.source_id),
             index("parent", refs.parent), index("parent_node", refs.parent_node),
             number("batch_size", info.batch_size), text("key", info.key),
             word("capture_mode", kModes, info.capture_mode), word("capture_status", kStatuses, info.capture_status),
             text("failed_call", info.failed_call), text("failed_error", info.failed_error),
             number("failed_thread", info.failed_thread), index("failed_stack", refs.failed_stack),
             index("failed_stream", refs.failed_stream), index("origin_stream", refs.origin_stream),
             number("begin_sequence", info.begin_sequence), number("end_sequence", info.end_sequence),
             flag("instantiated", info.instantiated), number("instantiate_flags", info.instantiate_flags),
             number("instantiate_ns", info.instantiate_ns), number("upload_ns", info.upload_ns),
             number("memory_bytes", info.memory_bytes), number("exec_updates", info.exec_updates),
             hex("content_hash", info.content_hash), number("instances", info.instances)) &&
         (info.instances != 0 || wrong("instances is 0"));
}

}  // namespace cglint::import::capture
