#include "import/kineto/trace_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace cglint::import::kineto {
namespace {

using base::ErrorCode;
using base::make_error;
namespace ondemand = simdjson::ondemand;

constexpr std::size_t kWindowBytes = std::size_t{512} << 10;
constexpr std::size_t kMinWindowBytes = std::size_t{8} << 10;
constexpr std::size_t kExactScanBytes = std::size_t{64} << 10;     // an event is looked for in so many bytes at first
constexpr std::size_t kMaxExactScanBytes = std::size_t{4} << 20;   // before it is taken for damaged
constexpr std::size_t kMaxEventBytes = std::size_t{64} << 20;  // one event, or one top-level property that is kept
// Damaged events cost more than their own length. This bounds the total, so that no file can hang the reader.
constexpr std::uint64_t kRepairFloorBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kRepairFactor = 64;
constexpr std::uint64_t kFirstDependencyFlow = std::uint64_t{1} << 40;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// --- small parsers over token text ----------------------------------------------------------------------------------

// A token as simdjson hands it out: trailing blanks included. Quotes around a number are accepted.
std::string_view trim_token(std::string_view token) {
  while (!token.empty() && is_blank(token.back())) token.remove_suffix(1);
  if (token.size() >= 2 && token.front() == '"' && token.back() == '"') {
    token.remove_prefix(1);
    token.remove_suffix(1);
  }
  return token;
}

bool parse_u64(std::string_view token, std::uint64_t& value) {
  token = trim_token(token);
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  return error == std::errc() && end == token.data() + token.size();
}

bool parse_i64(std::string_view token, std::int64_t& value) {
  token = trim_token(token);
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  return error == std::errc() && end == token.data() + token.size();
}

// Stream ids have 32 bits. What is none leaves `stream` alone.
bool parse_stream(std::string_view token, std::uint64_t& stream) {
  std::uint64_t value = 0;
  if (!parse_u64(token, value) || value > 0xffffffffu) return false;
  stream = value;
  return true;
}

// kUnusableCorrelation for what is no number of 64 bits: that an id was given must not be forgotten.
std::uint64_t correlation_from(std::string_view token) {
  std::uint64_t value = 0;
  return parse_u64(token, value) ? value : kUnusableCorrelation;
}

template <typename T>
T clamp_to(std::uint64_t value) {
  return static_cast<T>(std::min<std::uint64_t>(value, std::numeric_limits<T>::max()));
}

// --- categories -----------------------------------------------------------------------------------------------------

enum class Category : std::uint8_t { unknown, kernel, memcpy, memset, graph_event, graph_host, api, flow, trace, other };

bool same(std::string_view text, std::string_view wanted) { return text == wanted; }

Category classify(std::string_view text) {
  if (text.empty()) return Category::other;
  switch (text.front()) {
    case 'k': return same(text, "kernel") ? Category::kernel : Category::other;
    case 'K': return same(text, "Kernel") ? Category::kernel : Category::other;
    case 'g':
      if (same(text, "gpu_memcpy")) return Category::memcpy;
      if (same(text, "gpu_memset")) return Category::memset;
      if (same(text, "graph_event_node")) return Category::graph_event;
      return same(text, "graph_host_node") ? Category::graph_host : Category::other;
    case 'M':
      if (same(text, "Memcpy")) return Category::memcpy;
      return same(text, "Memset") ? Category::memset : Category::other;
    case 'c': return same(text, "cuda_runtime") || same(text, "cuda_driver") ? Category::api : Category::other;
    case 'h': return same(text, "hip_runtime") || same(text, "hip_driver") ? Category::api : Category::other;
    case 'p': return same(text, "privateuse1_runtime") || same(text, "privateuse1_driver") ? Category::api : Category::other;
    case 'R': return same(text, "Runtime") ? Category::api : Category::other;
    case 'a': return same(text, "ac2g") ? Category::flow : Category::other;
    case 'T': return same(text, "Trace") ? Category::trace : Category::other;
    default: return Category::other;
  }
}

// cudaGraphLaunch, cudaGraphLaunch_ptsz, cuGraphLaunch, cudaGraphLaunch_v10000, hipGraphLaunch...
bool is_graph_launch(std::string_view name, bool& is_hip) {
  is_hip = name.starts_with("hip");
  for (const std::string_view prefix : {"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"}) {
    if (!name.starts_with(prefix)) continue;
    return name.size() == prefix.size() || name[prefix.size()] == '_';
  }
  return false;
}

// --- one event ------------------------------------------------------------------------------------------------------

// Field names are compared with their closing quote; simdjson's padding makes the look-ahead safe.
template <std::size_t N>
bool key_is(const char* key, const char (&wanted)[N]) {
  return std::memcmp(key, wanted, N - 1) == 0;
}

// What an event gave, to notice what it gives twice.
enum Given : std::uint32_t {
  kGivesPh = 1u << 0,
  kGivesPid = 1u << 1,
  kGivesCat = 1u << 2,
  kGivesName = 1u << 3,
  kGivesTs = 1u << 4,
  kGivesTid = 1u << 5,
  kGivesDur = 1u << 6,
  kGivesId = 1u << 7,
  kGivesArgs = 1u << 8,
  kGivesArgAnnotatedStream = 1u << 9,
  kGivesArgBlock = 1u << 10,
  kGivesArgBytes = 1u << 11,
  kGivesArgCorrelation = 1u << 12,
  kGivesArgDevice = 1u << 13,
  kGivesArgInDevice = 1u << 14,
  kGivesArgFromDevice = 1u << 15,
  kGivesArgGrid = 1u << 16,
  kGivesArgGraphId = 1u << 17,
  kGivesArgGraphNodeId = 1u << 18,
  kGivesArgName = 1u << 19,
  kGivesArgOriginalStream = 1u << 20,
  kGivesArgPriority = 1u << 21,
  kGivesArgRegistersPerThread = 1u << 22,
  kGivesArgStream = 1u << 23,
  kGivesArgSharedMemory = 1u << 24,
};

class EventParser {
 public:
  EventParser(EventSink& sink, std::uint32_t max_string_bytes) : sink_(sink), max_string_bytes_(max_string_bytes) {}

  // Reads one event and hands it to the sink once all of it was read.
  simdjson::error_code parse(ondemand::object object, std::uint64_t offset);

 private:
  simdjson::error_code parse_args(ondemand::object args, Category category);
  static simdjson::error_code parse_dim(ondemand::value value, ir::Dim3& dim);
  std::string_view text_of(std::string_view token, std::string& storage);
  // Passes `matched` on, and notes a property that was given before.
  bool once(bool matched, Given property) {
    if (!matched) return false;
    repeated_ = repeated_ || (seen_ & property) != 0;
    seen_ |= property;
    return true;
  }

  EventSink& sink_;
  std::size_t max_string_bytes_;
  GpuEvent gpu_;
  bool has_original_stream_ = false;
  bool has_annotated_stream_ = false;
  bool has_name_arg_ = false;
  bool has_bad_device_ = false;
  std::uint32_t seen_ = 0;  // bits of Given
  bool repeated_ = false;
  bool written_by_kineto_ = false;
  std::string name_storage_;
  ondemand::parser unescaper_;
};

// The text of a string token without its quotes; escapes resolved only if there are any.
std::string_view EventParser::text_of(std::string_view token, std::string& storage) {
  token = trim_token(token);
  if (token.size() > max_string_bytes_) token = token.substr(0, max_string_bytes_);
  if (token.find('\\') == std::string_view::npos) return token;
  storage.clear();
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] != '\\' || i + 1 >= token.size()) {
      storage += token[i];
      continue;
    }
    const char c = token[++i];
    switch (c) {
      case 'n': storage += '\n'; break;
      case 't': storage += '\t'; break;
      case 'r': storage += '\r'; break;
      case 'b': storage += '\b'; break;
      case 'f': storage += '\f'; break;
      case 'u': {
        std::uint32_t unit = 0;
        const auto hex = [&](std::size_t at, std::uint32_t& out) {
          if (at + 4 > token.size()) return false;
          const auto [end, error] = std::from_chars(token.data() + at, token.data() + at + 4, out, 16);
          return error == std::errc() && end == token.data() + at + 4;
        };
        if (!hex(i + 1, unit)) {
          storage += '?';
          break;
        }
        i += 4;
        std::uint32_t low = 0;
        if (unit >= 0xd800 && unit < 0xdc00 && i + 6 < token.size() && token[i + 1] == '\\' && token[i + 2] == 'u' &&
            hex(i + 3, low) && low >= 0xdc00 && low < 0xe000) {
          unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
          i += 6;
        } else if (unit >= 0xd800 && unit < 0xe000) {
          unit = 0xfffd;
        }
        if (unit < 0x80) {
          storage += static_cast<char>(unit);
        } else if (unit < 0x800) {
          storage += static_cast<char>(0xc0 | (unit >> 6));
          storage += static_cast<char>(0x80 | (unit & 0x3f));
        } else if (unit < 0x10000) {
          storage += static_cast<char>(0xe0 | (unit >> 12));
          storage += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
          storage += static_cast<char>(0x80 | (unit & 0x3f));
        } else {
          storage += static_cast<char>(0xf0 | (unit >> 18));
          storage += static_cast<char>(0x80 | ((unit >> 12) & 0x3f));
          storage += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
          storage += static_cast<char>(0x80 | (unit & 0x3f));
        }
        break;
      }
      default: storage += c;
    }
  }
  return storage;
}

simdjson::error_code EventParser::parse_dim(ondemand::value value, ir::Dim3& dim) {
  ondemand::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return simdjson::SUCCESS;  // another form: leave unknown
  std::uint32_t* const parts[3] = {&dim.x, &dim.y, &dim.z};
  std::size_t i = 0;
  for (auto element : array) {
    ondemand::value number;
    if (const auto error = element.get(number)) return error;
    std::uint64_t parsed = 0;
    if (i < 3 && parse_u64(number.raw_json_token(), parsed)) *parts[i] = clamp_to<std::uint32_t>(parsed);
    ++i;
  }
  return simdjson::SUCCESS;
}

simdjson::error_code EventParser::parse_args(ondemand::object args, Category category) {
  bool first = true;
  for (auto field_result : args) {
    ondemand::field field;
    if (const auto error = std::move(field_result).get(field)) return error;
    const char* const key = field.key().raw();
    ondemand::value value = field.value();
    std::uint64_t number = 0;
    if (first) {
      written_by_kineto_ = key_is(key, "queued\"") || key_is(key, "External id\"");
      first = false;
    }
    if (category == Category::api) {
      if (once(key_is(key, "correlation\""), kGivesArgCorrelation)) {
        gpu_.correlation = correlation_from(value.raw_json_token());
        return simdjson::SUCCESS;  // nothing else is of use
      }
      continue;
    }
    switch (key[0]) {
      case 'a':
        if (once(key_is(key, "annotated_stream\""), kGivesArgAnnotatedStream)) has_annotated_stream_ = true;
        break;
      case 'b':
        if (once(key_is(key, "block\""), kGivesArgBlock)) {
          if (const auto error = parse_dim(value, gpu_.block)) return error;
        } else if (once(key_is(key, "bytes\""), kGivesArgBytes)) {
          if (parse_u64(value.raw_json_token(), number)) gpu_.bytes = number;
        }
        break;
      case 'c':
        if (once(key_is(key, "correlation\""), kGivesArgCorrelation)) gpu_.correlation = correlation_from(value.raw_json_token());
        break;
      case 'd':
      case 'f':
      case 'i':
        // Peer copies name fromDevice, inDevice and toDevice instead of device.
        if (once(key_is(key, "device\""), kGivesArgDevice) || once(key_is(key, "inDevice\""), kGivesArgInDevice) ||
            (gpu_.device < 0 && once(key_is(key, "fromDevice\""), kGivesArgFromDevice))) {
          if (parse_u64(value.raw_json_token(), number) && number <= 0x7fffffff) {
            gpu_.device = static_cast<std::int32_t>(number);
          } else {
            has_bad_device_ = true;
          }
        }
        break;
      case 'g':
        if (once(key_is(key, "grid\""), kGivesArgGrid)) {
          if (const auto error = parse_dim(value, gpu_.grid)) return error;
        } else if (once(key_is(key, "graph id\""), kGivesArgGraphId)) {
          if (parse_u64(value.raw_json_token(), number)) gpu_.graph_id = number;
        } else if (once(key_is(key, "graph node id\""), kGivesArgGraphNodeId)) {
          if (parse_u64(value.raw_json_token(), number)) gpu_.graph_node_id = number;
        }
        break;
      case 'n':
        if (once(key_is(key, "name\""), kGivesArgName)) has_name_arg_ = true;
        break;
      case 'o':
        if (once(key_is(key, "original_stream\""), kGivesArgOriginalStream)) {
          has_original_stream_ = true;
          gpu_.has_stream = parse_stream(value.raw_json_token(), gpu_.stream);
        }
        break;
      case 'p':
        if (once(key_is(key, "priority\""), kGivesArgPriority)) {
          std::int64_t priority = 0;
          if (parse_i64(value.raw_json_token(), priority) && priority > -1000 && priority < 1000) {
            gpu_.priority = static_cast<std::int32_t>(priority);
            gpu_.has_priority = true;
          }
        }
        break;
      case 'r':
        if (once(key_is(key, "registers per thread\""), kGivesArgRegistersPerThread) &&
            parse_u64(value.raw_json_token(), number))
          gpu_.registers = clamp_to<std::uint32_t>(number);
        break;
      case 's':
        if (once(key_is(key, "stream\""), kGivesArgStream)) {
          if (!has_original_stream_) gpu_.has_stream = parse_stream(value.raw_json_token(), gpu_.stream);
        } else if (once(key_is(key, "shared memory\""), kGivesArgSharedMemory)) {
          if (parse_u64(value.raw_json_token(), number)) gpu_.shared_bytes = number;
        }
        break;
      default: break;
    }
  }
  return simdjson::SUCCESS;
}

simdjson::error_code EventParser::parse(ondemand::object object, std::uint64_t offset) {
  Category category = Category::unknown;
  char phase = '\0';
  std::string_view name, ts, dur, pid, tid, id, late_args;
  bool args_read = false;
  gpu_ = GpuEvent();
  seen_ = 0;
  repeated_ = false;
  has_original_stream_ = has_annotated_stream_ = has_name_arg_ = has_bad_device_ = written_by_kineto_ = false;
  for (auto field_result : object) {
    ondemand::field field;
    if (const auto error = std::move(field_result).get(field)) return error;
    const char* const key = field.key().raw();
    ondemand::value value = field.value();
    switch (key[0]) {
      case 'p':
        if (once(key_is(key, "ph\""), kGivesPh)) {
          const std::string_view token = trim_token(value.raw_json_token());
          phase = token.size() == 1 ? token[0] : '\0';
          if (phase == 'M') return simdjson::SUCCESS;
        } else if (once(key_is(key, "pid\""), kGivesPid)) {
          pid = value.raw_json_token();
        }
        break;
      case 'c':
        if (once(key_is(key, "cat\""), kGivesCat)) {
          category = classify(trim_token(value.raw_json_token()));
          if (category == Category::other) return simdjson::SUCCESS;
        }
        break;
      case 'n':
        if (once(key_is(key, "name\""), kGivesName)) name = value.raw_json_token();
        break;
      case 't':
        if (once(key_is(key, "ts\""), kGivesTs)) {
          ts = value.raw_json_token();
        } else if (once(key_is(key, "tid\""), kGivesTid)) {
          tid = value.raw_json_token();
        }
        break;
      case 'd':
        if (once(key_is(key, "dur\""), kGivesDur)) dur = value.raw_json_token();
        break;
      case 'i':
        if (once(key_is(key, "id\""), kGivesId)) id = value.raw_json_token();
        break;
      case 'a':
        if (once(key_is(key, "args\""), kGivesArgs)) {
          if (category == Category::unknown) {
            ondemand::object args;
            if (const auto error = value.get_object().get(args)) {
              if (error != simdjson::INCORRECT_TYPE) return error;
            } else if (const auto raw_error = args.raw_json().get(late_args)) {
              return raw_error;
            }
          } else if (category != Category::flow && category != Category::trace && !args_read) {
            bool hip = false;
            if (category == Category::api && !name.empty() && !is_graph_launch(trim_token(name), hip)) break;
            ondemand::object args;
            if (const auto error = value.get_object().get(args)) {
              if (error != simdjson::INCORRECT_TYPE) return error;
            } else if (const auto args_error = parse_args(args, category)) {
              return args_error;
            }
            args_read = true;
          }
        }
        break;
      default: break;
    }
  }
  if (category == Category::unknown || category == Category::other) return simdjson::SUCCESS;
  if (!late_args.empty() && !args_read && category != Category::flow && category != Category::trace) {
    simdjson::padded_string copy(late_args);
    ondemand::document document;
    ondemand::object args;
    if (const auto error = unescaper_.iterate(copy).get(document)) return error;
    if (document.get_object().get(args) == simdjson::SUCCESS) {
      if (const auto error = parse_args(args, category)) return error;
    }
  }

  bool hip_launch = false;
  if (repeated_ && category != Category::trace &&
      (category != Category::api || is_graph_launch(trim_token(name), hip_launch))) {
    LostEvent lost;
    lost.offset = offset;
    lost.repeats_property = true;
    lost.may_be_gpu = category != Category::flow && category != Category::api;
    lost.correlation = gpu_.correlation;
    sink_.on_lost(lost);
    return simdjson::SUCCESS;
  }
  if (category == Category::flow) {
    FlowEvent flow;
    if ((phase != 's' && phase != 'f') || !parse_u64(id, flow.id) || flow.id < kFirstDependencyFlow ||
        !parse_us(trim_token(ts), flow.ts_ns) || !parse_i64(pid, flow.pid) || !parse_i64(tid, flow.tid))
      return simdjson::SUCCESS;
    flow.is_start = phase == 's';
    sink_.on_flow(flow);
    return simdjson::SUCCESS;
  }
  if (phase != 'X') return simdjson::SUCCESS;
  const std::string_view name_text = text_of(name, name_storage_);
  if (category == Category::trace) {
    sink_.on_profiler(name_text);
    return simdjson::SUCCESS;
  }
  if (category == Category::api) {
    ApiEvent api;
    api.correlation = gpu_.correlation;
    api.is_graph_launch = is_graph_launch(name_text, api.is_hip);
    if (api.is_graph_launch) {
      if (!parse_us(trim_token(ts), api.start_ns)) return simdjson::NUMBER_ERROR;
      if (!dur.empty() && !parse_us(trim_token(dur), api.dur_ns)) api.dur_ns = 0;
      parse_i64(pid, api.pid);
    }
    api.offset = offset;
    sink_.on_api(api);
    return simdjson::SUCCESS;
  }
  switch (category) {
    case Category::memcpy: gpu_.kind = ir::NodeKind::memcpy; break;
    case Category::memset: gpu_.kind = ir::NodeKind::memset; break;
    case Category::graph_event: gpu_.kind = ir::NodeKind::event_record; break;
    case Category::graph_host: gpu_.kind = ir::NodeKind::host; break;
    default: gpu_.kind = ir::NodeKind::kernel; break;
  }
  gpu_.name = name_text;
  if (!parse_us(trim_token(ts), gpu_.start_ns)) return simdjson::NUMBER_ERROR;
  if (!dur.empty() && !parse_us(trim_token(dur), gpu_.dur_ns)) return simdjson::NUMBER_ERROR;
  if (gpu_.dur_ns > 0 && gpu_.start_ns > std::numeric_limits<std::int64_t>::max() - gpu_.dur_ns)
    return simdjson::NUMBER_OUT_OF_RANGE;
  parse_i64(pid, gpu_.pid);
  if (!parse_i64(tid, gpu_.tid)) gpu_.tid = -1;
  if ((seen_ & (kGivesArgStream | kGivesArgOriginalStream)) == 0) {
    // Very old traces give the stream only as the row: 7 or "stream 7".
    std::string_view text = trim_token(tid);
    if (text.starts_with("stream ")) text.remove_prefix(7);
    gpu_.has_stream = parse_stream(text, gpu_.stream);
  }
  if (gpu_.device < 0 && !has_bad_device_ && gpu_.pid >= 0 && gpu_.pid < 1024)
    gpu_.device = static_cast<std::int32_t>(gpu_.pid);
  // torch.cuda._annotate_cuda_graph_trace adds a name to the arguments of Kineto's events and replaces their stream;
  // the CUPTI monitor of torch.profiler adds names too, but keeps the stream or tells the original one.
  gpu_.annotated = has_name_arg_ && written_by_kineto_ && gpu_.graph_node_id != 0 && !has_original_stream_ &&
                   !has_annotated_stream_;
  gpu_.offset = offset;
  sink_.on_gpu(gpu_);
  return simdjson::SUCCESS;
}

// --- damaged text ---------------------------------------------------------------------------------------------------

// Replaces bytes that are no UTF-8 by '?' and control characters by blanks, in place. Returns how many; `first` gets the
// index of the first one.
std::uint64_t sanitize(char* data, std::size_t size, std::size_t& first) {
  std::uint64_t replaced = 0;
  const auto replace = [&](std::size_t at, char with) {
    if (replaced++ == 0) first = at;
    data[at] = with;
  };
  std::size_t i = 0;
  while (i < size) {
    const auto c = static_cast<unsigned char>(data[i]);
    if (c < 0x80) {
      if (c < 0x20 && c != '\n' && c != '\r' && c != '\t') {
        replace(i, ' ');
      } else if (c < 0x20) {
        data[i] = ' ';  // a blank between tokens; inside a string it was an error
      }
      ++i;
      continue;
    }
    std::size_t length = 0;
    std::uint32_t minimum = 0, value = 0;
    if ((c & 0xe0) == 0xc0) {
      length = 2, minimum = 0x80, value = c & 0x1f;
    } else if ((c & 0xf0) == 0xe0) {
      length = 3, minimum = 0x800, value = c & 0x0f;
    } else if ((c & 0xf8) == 0xf0) {
      length = 4, minimum = 0x10000, value = c & 0x07;
    }
    bool good = length != 0 && i + length <= size;
    for (std::size_t k = 1; good && k < length; ++k) {
      const auto next = static_cast<unsigned char>(data[i + k]);
      good = (next & 0xc0) == 0x80;
      value = (value << 6) | (next & 0x3f);
    }
    good = good && value >= minimum && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    if (good) {
      i += length;
    } else {
      replace(i, '?');
      ++i;
    }
  }
  return replaced;
}

// The end of the JSON value that starts at `at` (one behind its last byte), or npos if the text ends before. Counts
// brackets and skips strings; does not check more.
std::size_t skip_value(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    switch (text[i]) {
      case '"': {
        ++i;
        while (true) {
          i = text.find_first_of("\"\\", i);
          if (i == std::string_view::npos) return std::string_view::npos;
          if (text[i] == '"') break;
          i += 2;
        }
        if (depth == 0) return i + 1;
        break;
      }
      case '{':
      case '[': ++depth; break;
      case '}':
      case ']':
        if (depth == 0) return i;  // the value before was a number or word
        if (--depth == 0) return i + 1;
        break;
      case ',':
        if (depth == 0) return i;
        break;
      default: break;
    }
  }
  return std::string_view::npos;
}

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  while (at < text.size() && is_blank(text[at])) ++at;
  return at;
}

// The first place at or after `from` where the text reads like the end of one event and the start of the next, or like
// the end of the array: index one behind the '}'. npos if there is none.
std::size_t find_event_end(std::string_view text, std::size_t from, bool at_end_of_input) {
  for (std::size_t i = text.find('}', from); i != std::string_view::npos; i = text.find('}', i + 1)) {
    std::size_t next = skip_blanks(text, i + 1);
    if (next >= text.size()) return at_end_of_input ? i + 1 : std::string_view::npos;
    if (text[next] == ']') {
      // The array's end is followed by the end of the file or by another property.
      const std::size_t behind = skip_blanks(text, next + 1);
      if (behind >= text.size() || text[behind] == ',' || text[behind] == '}') return i + 1;
      continue;
    }
    if (text[next] != ',') continue;
    next = skip_blanks(text, next + 1);
    if (next < text.size() && text[next] == '{') {
      const std::size_t key = skip_blanks(text, next + 1);
      if (key < text.size() && text[key] == '"') return i + 1;
    }
  }
  return std::string_view::npos;
}

// Escapes quotes that cannot be the end of the string that they stand in: an end is followed by ',', ':', '}' or ']'.
std::string escape_inner_quotes(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\' && i + 1 < text.size()) {
      out += c;
      out += text[++i];
      continue;
    }
    if (c != '"') {
      out += c;
      continue;
    }
    if (!in_string) {
      in_string = true;
      out += c;
      continue;
    }
    const std::size_t next = skip_blanks(text, i + 1);
    bool ends = next >= text.size() || text[next] == ':' || text[next] == '}' || text[next] == ']';
    if (!ends && text[next] == ',') {
      // `"a, "b": 1`: behind the comma comes a key or a value, not more of the name.
      const std::size_t after = skip_blanks(text, next + 1);
      ends = after >= text.size() || text[after] == '"' || text[after] == '{' || text[after] == '[' ||
             text[after] == '-' || (text[after] >= '0' && text[after] <= '9') || text[after] == 't' ||
             text[after] == 'f' || text[after] == 'n';
    }
    if (ends) {
      in_string = false;
      out += c;
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

// What a lost event was, as far as its text shows.
LostEvent describe_lost(std::string_view text, std::uint64_t offset) {
  LostEvent lost;
  lost.offset = offset;
  const auto value_of = [text](std::string_view key) -> std::string_view {
    std::size_t at = text.find(key);
    if (at == std::string_view::npos) return {};
    at = skip_blanks(text, at + key.size());
    if (at >= text.size() || text[at] != ':') return {};
    at = skip_blanks(text, at + 1);
    std::size_t end = text.find_first_of(",}]\n", at);
    if (end == std::string_view::npos) end = text.size();
    return trim_token(text.substr(at, end - at));
  };
  const std::string_view category = value_of("\"cat\"");
  const Category known = classify(category);
  const bool host = !category.empty() && (known == Category::other || known == Category::flow ||
                                          known == Category::trace || known == Category::api);
  lost.may_be_gpu = !host && value_of("\"ph\"") != "M";
  std::uint64_t number = 0;
  if (parse_u64(value_of("\"correlation\""), number)) lost.correlation = number;
  return lost;
}

// --- the file -------------------------------------------------------------------------------------------------------

class TraceReader {
 public:
  TraceReader(Source& source, const ReadOptions& options, EventSink& sink)
      : source_(source),
        options_(options),
        sink_(sink),
        parser_(sink, static_cast<std::uint32_t>(std::min<std::uint64_t>(options.limits.max_string_bytes, 1u << 30))) {}

  base::Result<ReadStats> read();

 private:
  static constexpr std::size_t kPadding = simdjson::SIMDJSON_PADDING;

  [[nodiscard]] std::string_view text() const { return {buffer_.data() + begin_, end_ - begin_}; }
  [[nodiscard]] std::uint64_t offset() const { return base_offset_ + begin_; }
  // Reads until at least `wanted` bytes are there or the input ends.
  base::Result<void> fill(std::size_t wanted);
  void consume(std::size_t size) { begin_ += size; }
  // The next byte that is not blank, without consuming it; '\0' at the end of the input.
  base::Result<char> next_char();

  base::Result<void> read_events();
  base::Result<void> read_object();
  // Parses the window [0, size) of text(), which begins at an event. `consumed` gets how many bytes are done with.
  base::Result<bool> parse_window(std::size_t size, std::size_t& consumed);
  // One event at the start of text(), alone and with repairs. false if the array ended or more input is needed.
  base::Result<bool> parse_single();
  bool parse_alone(std::string_view event_text, std::uint64_t event_offset);
  void cut_short(std::string reason);
  // Accounts for `size` bytes looked at because of damage.
  base::Result<void> spend(std::size_t size);

  Source& source_;
  const ReadOptions& options_;
  EventSink& sink_;
  EventParser parser_;
  ondemand::parser json_;
  ondemand::parser single_json_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t base_offset_ = 0;   // file offset of buffer_[0]
  bool input_ended_ = false;
  std::uint64_t events_lists_ = 0;  // properties called traceEvents
  std::uint64_t repair_bytes_ = 0;
  ReadStats stats_;
};

base::Result<void> TraceReader::spend(std::size_t size) {
  repair_bytes_ += size;
  if (repair_bytes_ <= kRepairFloorBytes + kRepairFactor * offset()) return {};
  return make_error(ErrorCode::malformed, "too many damaged events to go on", offset());
}

base::Result<void> TraceReader::fill(std::size_t wanted) {
  if (end_ - begin_ >= wanted || input_ended_) return {};
  if (buffer_.size() < wanted + kPadding + 1 || buffer_.size() - begin_ < wanted + kPadding) {
    // Keep one byte before the text: the window puts its '[' there.
    const std::size_t keep = begin_ == 0 ? 0 : begin_ - 1;
    if (keep != 0) {
      std::memmove(buffer_.data(), buffer_.data() + keep, end_ - keep);
      base_offset_ += keep;
      begin_ -= keep;
      end_ -= keep;
    }
    if (buffer_.size() < wanted + kPadding + 1) buffer_.resize(wanted + kPadding + 1);
  }
  while (end_ - begin_ < wanted) {
    auto n = source_.read(buffer_.data() + end_, buffer_.size() - kPadding - end_);
    if (!n) {
      if (!source_.torn()) return std::move(n).error();
      cut_short(n.error().message);
      input_ended_ = true;
      break;
    }
    if (*n == 0) {
      input_ended_ = true;
      break;
    }
    end_ += *n;
  }
  if (options_.on_progress) options_.on_progress(source_.consumed_bytes(), source_.total_bytes());
  return {};
}

void TraceReader::cut_short(std::string reason) {
  if (stats_.truncated) return;
  stats_.truncated = true;
  stats_.truncated_reason = std::move(reason);
}

base::Result<char> TraceReader::next_char() {
  while (true) {
    while (begin_ < end_ && is_blank(buffer_[begin_])) ++begin_;
    if (begin_ < end_) return buffer_[begin_];
    if (input_ended_) return '\0';
    CGLINT_TRY(fill(1));
  }
}

bool TraceReader::parse_alone(std::string_view event_text, std::uint64_t event_offset) {
  const simdjson::padded_string copy(event_text);
  ondemand::document document;
  ondemand::object object;
  if (single_json_.iterate(copy).get(document) != simdjson::SUCCESS) return false;
  if (document.get_object().get(object) != simdjson::SUCCESS) return false;
  // Check the whole object first: an event is handed on only if all of it can be read.
  for (auto field : object)
    if (field.error() != simdjson::SUCCESS) return false;
  if (single_json_.iterate(copy).get(document) != simdjson::SUCCESS) return false;
  if (document.get_object().get(object) != simdjson::SUCCESS) return false;
  return parser_.parse(object, event_offset) == simdjson::SUCCESS;
}

base::Result<bool> TraceReader::parse_single() {
  // The text starts with an element of the array. Find its end by counting brackets; if that fails, by looking for what
  // reads like the boundary of two events.
  std::size_t wanted = kExactScanBytes;
  while (true) {
    CGLINT_TRY(fill(wanted));
    const std::string_view here = text().substr(0, std::max(wanted, std::size_t{1}));
    const bool is_all = input_ended_ && here.size() == text().size();
    const std::size_t exact = skip_value(here, 0);
    CGLINT_TRY(spend(exact == std::string_view::npos ? here.size() : exact));
    if (exact != std::string_view::npos && parse_alone(here.substr(0, exact), offset())) {
      consume(exact);
      return true;
    }
    std::size_t boundary = 0;
    for (int attempt = 0; attempt < 8; ++attempt) {
      boundary = find_event_end(here, boundary, is_all);
      if (boundary == std::string_view::npos) break;
      CGLINT_TRY(spend(boundary));
      if (parse_alone(escape_inner_quotes(here.substr(0, boundary)), offset())) {
        ++stats_.repaired;
        consume(boundary);
        return true;
      }
    }
    if (exact == std::string_view::npos && !is_all && wanted < kMaxExactScanBytes) {
      wanted *= 8;
      continue;
    }
    const std::size_t first_boundary = find_event_end(here, 0, is_all);
    if (first_boundary != std::string_view::npos) {
      sink_.on_lost(describe_lost(here.substr(0, first_boundary), offset()));
      consume(first_boundary);
      return true;
    }
    if (is_all) {
      // The last event of a file that is cut short.
      if (!here.empty()) sink_.on_lost(describe_lost(here, offset()));
      cut_short("the file ends in the middle of an event");
      consume(here.size());
      return true;
    }
    if (wanted >= kMaxEventBytes)
      return make_error(ErrorCode::limit, fmt::format("one event is larger than {} bytes", kMaxEventBytes), offset());
    wanted = std::min(wanted * 4, kMaxEventBytes);
  }
}

base::Result<bool> TraceReader::parse_window(std::size_t size, std::size_t& consumed) {
  consumed = 0;
  // "[" over the byte before the first event (a comma, blank or the array's own bracket, already consumed), "]" over the
  // byte behind the last one.
  char* const first = buffer_.data() + begin_ - 1;
  char* const close = buffer_.data() + begin_ + size;
  const char saved_first = *first;
  const char saved_close = *close;
  *first = '[';
  *close = ']';
  const auto restore = [&]() {
    *first = saved_first;
    *close = saved_close;
  };
  const std::size_t length = size + 2;
  const std::size_t capacity = static_cast<std::size_t>(buffer_.data() + buffer_.size() - first);
  ondemand::document document;
  auto error = json_.iterate(first, length, capacity).get(document);
  if (error == simdjson::UTF8_ERROR || error == simdjson::UNESCAPED_CHARS) {
    std::size_t where = 0;
    const std::uint64_t replaced = sanitize(first, length, where);
    if (replaced != 0) {
      if (stats_.replaced_bytes == 0) stats_.first_replaced_offset = offset() + where - 1;
      stats_.replaced_bytes += replaced;
    }
    error = json_.iterate(first, length, capacity).get(document);
  }
  if (error != simdjson::SUCCESS) {
    restore();
    return false;
  }
  ondemand::array array;
  if (document.get_array().get(array) != simdjson::SUCCESS) {
    restore();
    return false;
  }
  const char* last_good = nullptr;  // start of the last element that was read
  bool failed = false;
  for (auto element : array) {
    ondemand::value value;
    if (element.get(value) != simdjson::SUCCESS) {
      failed = true;
      break;
    }
    const std::string_view token = value.raw_json_token();
    const char* const start = token.data();
    if (start >= close) {  // an empty array: only our own bracket is left
      failed = true;
      break;
    }
    if (*start == '{') {
      ondemand::object object;
      if (value.get_object().get(object) != simdjson::SUCCESS ||
          parser_.parse(object, base_offset_ + static_cast<std::uint64_t>(start - buffer_.data())) !=
              simdjson::SUCCESS) {
        consumed = static_cast<std::size_t>(start - (first + 1));
        failed = true;
        break;
      }
    }
    ++stats_.events;
    last_good = start;
  }
  restore();
  if (last_good == nullptr) return false;
  if (failed && consumed != 0) return true;  // up to the start of the event that failed
  // The end of the last event; what follows it, a comma or the end of the array, is for the caller.
  const auto last_at = static_cast<std::size_t>(last_good - (first + 1));
  const std::size_t last_end = skip_value(text().substr(0, size), last_at);
  if (last_end == std::string_view::npos) {
    // Its brackets do not close in this window: it was not an event's end where the window was cut.
    consumed = last_at;
    return consumed != 0;
  }
  consumed = last_end;
  return true;
}

base::Result<void> TraceReader::read_events() {
  // Behind the '[' of the array.
  stats_.has_events_array = true;
  std::size_t window = kWindowBytes;
  while (true) {
    auto c = next_char();
    if (!c) return std::move(c).error();
    if (*c == '\0' && begin_ == end_) {
      cut_short("the file ends inside the list of events");
      return {};
    }
    if (*c == ',') {
      consume(1);
      continue;
    }
    if (*c == ']') {
      consume(1);
      return {};
    }
    CGLINT_TRY(fill(window));
    const std::string_view here = text();
    // Cut behind the last "}" that a comma and a "{" follow; at the end of the input, take everything.
    std::size_t cut = 0;
    if (input_ended_ && here.size() <= window) {
      cut = here.size();
      while (cut > 0 && here[cut - 1] != '}') --cut;
    } else {
      std::size_t brace = here.rfind('{', std::min(here.size(), window) - 1);
      while (brace != std::string_view::npos && brace > 0) {
        std::size_t at = brace;
        while (at > 0 && is_blank(here[at - 1])) --at;
        if (at > 0 && here[at - 1] == ',') {
          --at;
          while (at > 0 && is_blank(here[at - 1])) --at;
          if (at > 0 && here[at - 1] == '}') {
            cut = at;
            break;
          }
        }
        brace = here.rfind('{', brace - 1);
      }
    }
    if (cut != 0) {
      std::size_t consumed = 0;
      auto parsed = parse_window(cut, consumed);
      if (!parsed) return std::move(parsed).error();
      if (*parsed && consumed != 0) {
        // A window that was not used up holds a damaged event: be careful for a while.
        if (cut - consumed > cut / 2) {
          CGLINT_TRY(spend(cut - consumed));
          window = std::max(kMinWindowBytes, window / 4);
        } else {
          window = std::min(kWindowBytes, window * 2);
        }
        consume(consumed);
        continue;
      }
      CGLINT_TRY(spend(cut));
      window = std::max(kMinWindowBytes, window / 4);
    }
    ++stats_.events;
    auto single = parse_single();
    if (!single) return std::move(single).error();
  }
}

base::Result<void> TraceReader::read_object() {
  // Behind the '{' of the file.
  while (true) {
    auto c = next_char();
    if (!c) return std::move(c).error();
    if (*c == '}') {
      consume(1);
      return {};
    }
    if (*c == ',') {
      consume(1);
      continue;
    }
    if (*c == '\0' && begin_ == end_) {
      cut_short("the file ends before its closing brace");
      return {};
    }
    if (*c != '"') return make_error(ErrorCode::malformed, "a property name was expected", offset());
    // The key.
    std::size_t wanted = 4096;
    std::size_t key_end = std::string_view::npos;
    while (key_end == std::string_view::npos) {
      CGLINT_TRY(fill(wanted));
      key_end = skip_value(text(), 0);
      if (key_end != std::string_view::npos) break;
      if (input_ended_) {
        cut_short("the file ends in the middle of a property name");
        return {};
      }
      if (wanted >= kMaxEventBytes) return make_error(ErrorCode::limit, "a property name is too long", offset());
      wanted *= 4;
    }
    const std::string key(text().substr(1, key_end - 2));
    consume(key_end);
    c = next_char();
    if (!c) return std::move(c).error();
    if (*c != ':') {
      if (begin_ == end_) {
        cut_short("the file ends behind a property name");
        return {};
      }
      return make_error(ErrorCode::malformed, fmt::format("':' was expected behind \"{}\"", key.substr(0, 40)), offset());
    }
    consume(1);
    c = next_char();
    if (!c) return std::move(c).error();
    if (key == "traceEvents" && events_lists_++ != 0) {
      if (stats_.repeated_lists++ == 0) stats_.first_repeated_list_offset = offset();
    }
    if (key == "traceEvents" && *c == '[') {
      consume(1);
      CGLINT_TRY(read_events());
      if (stats_.truncated) return {};
      continue;
    }
    wanted = kWindowBytes;
    std::size_t value_end = std::string_view::npos;
    while (true) {
      CGLINT_TRY(fill(wanted));
      value_end = skip_value(text(), 0);
      if (value_end != std::string_view::npos) break;
      if (input_ended_) {
        cut_short(fmt::format("the file ends inside the property \"{}\"", key.substr(0, 40)));
        return {};
      }
      if (wanted >= kMaxEventBytes)
        return make_error(ErrorCode::limit,
                          fmt::format("the property \"{}\" is larger than {} bytes", key.substr(0, 40), kMaxEventBytes),
                          offset());
      wanted = std::min(wanted * 4, kMaxEventBytes);
    }
    sink_.on_property(key, text().substr(0, value_end));
    consume(value_end);
  }
}

base::Result<ReadStats> TraceReader::read() {
  CGLINT_TRY(fill(kWindowBytes));
  if (text().starts_with("\xef\xbb\xbf")) consume(3);
  auto c = next_char();
  if (!c) return std::move(c).error();
  if (*c != '{' && *c != '[')
    return make_error(ErrorCode::malformed, "a trace starts with '{' or '['", offset());
  consume(1);
  if (*c == '[') {
    CGLINT_TRY(read_events());
  } else {
    CGLINT_TRY(read_object());
  }
  if (!stats_.truncated) {
    c = next_char();
    if (!c) return std::move(c).error();
    if (begin_ != end_)
      return make_error(ErrorCode::malformed, "text behind the end of the trace", offset());
  }
  stats_.bytes = offset();
  return std::move(stats_);
}

}  // namespace

bool parse_us(std::string_view text, std::int64_t& ns) {
  std::size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++i;
  std::uint64_t value = 0;
  std::size_t digits = 0;
  constexpr std::uint64_t kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, ++digits) {
    value = value * 10 + static_cast<std::uint64_t>(text[i] - '0');
    if (value > kMax / 1000) return false;
  }
  if (digits == 0) return false;
  value *= 1000;
  if (i < text.size() && text[i] == '.') {
    ++i;
    std::uint64_t scale = 100;
    std::size_t fraction = 0;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, ++fraction) {
      const auto digit = static_cast<std::uint64_t>(text[i] - '0');
      if (fraction < 3) {
        value += digit * scale;
        scale /= 10;
      } else if (fraction == 3 && digit >= 5) {
        ++value;
      }
    }
    if (fraction == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    // Rare ("1.5e3"): long double holds 64 bits of it.
    const std::string copy(text);
    char* end = nullptr;
    const long double exact = std::strtold(copy.c_str(), &end) * 1000.0L;
    if (end != copy.c_str() + copy.size() || !(exact > -9.2e18L && exact < 9.2e18L)) return false;
    ns = static_cast<std::int64_t>(exact + (exact < 0 ? -0.5L : 0.5L));
    return true;
  }
  if (i != text.size() || value > kMax) return false;
  ns = negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
  return true;
}

base::Result<ReadStats> read_trace(Source& source, const ReadOptions& options, EventSink& sink) {
  return TraceReader(source, options, sink).read();
}

}  // namespace cglint::import::kineto
