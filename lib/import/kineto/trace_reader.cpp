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
// An element that is passed over and longer than this is looked at again: damage could have hidden others in it.
constexpr std::size_t kLongElementBytes = 384;

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

// What is no whole number that fits leaves `value` alone.
template <typename T>
bool parse_integer(std::string_view token, T& value) {
  token = trim_token(token);
  T parsed = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), parsed);
  if (error != std::errc() || end != token.data() + token.size()) return false;
  value = parsed;
  return true;
}
bool parse_u64(std::string_view token, std::uint64_t& value) { return parse_integer(token, value); }
bool parse_i64(std::string_view token, std::int64_t& value) { return parse_integer(token, value); }

bool is_string(std::string_view token) { return !token.empty() && token.front() == '"'; }
bool has_escape(std::string_view token) { return token.find('\\') != std::string_view::npos; }

// Resolves the escapes of a JSON string. False if one of them stands for no character: '?' or U+FFFD stands there then.
bool unescape(std::string_view text, std::string& out) {
  bool good = true;
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (i + 1 >= text.size()) {
      out += '?';
      good = false;
      continue;
    }
    const char c = text[++i];
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'u': {
        std::uint32_t unit = 0;
        const auto hex = [&](std::size_t at, std::uint32_t& value) {
          if (at + 4 > text.size()) return false;
          const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
          return error == std::errc() && end == text.data() + at + 4;
        };
        if (!hex(i + 1, unit)) {
          out += '?';
          good = false;
          break;
        }
        i += 4;
        std::uint32_t low = 0;
        if (unit >= 0xd800 && unit < 0xdc00 && i + 6 < text.size() && text[i + 1] == '\\' && text[i + 2] == 'u' &&
            hex(i + 3, low) && low >= 0xdc00 && low < 0xe000) {
          unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
          i += 6;
        } else if (unit >= 0xd800 && unit < 0xe000) {
          unit = 0xfffd;
          good = false;
        }
        if (unit < 0x80) {
          out += static_cast<char>(unit);
        } else if (unit < 0x800) {
          out += static_cast<char>(0xc0 | (unit >> 6));
          out += static_cast<char>(0x80 | (unit & 0x3f));
        } else if (unit < 0x10000) {
          out += static_cast<char>(0xe0 | (unit >> 12));
          out += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
          out += static_cast<char>(0x80 | (unit & 0x3f));
        } else {
          out += static_cast<char>(0xf0 | (unit >> 18));
          out += static_cast<char>(0x80 | ((unit >> 12) & 0x3f));
          out += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
          out += static_cast<char>(0x80 | (unit & 0x3f));
        }
        break;
      }
      default:
        out += '?';
        good = false;
    }
  }
  return good;
}

// --- categories -----------------------------------------------------------------------------------------------------

enum class Category : std::uint8_t {
  unknown,     // not given (yet)
  unusable,    // given as something that is no string
  unfamiliar,  // none that this version knows
  kernel, memcpy, memset, graph_event, graph_host,
  api, flow, trace,
  other,       // known to be none of the above
};

Category classify(std::string_view text) {
  if (text.empty()) return Category::unfamiliar;
  const auto among = [text](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), text) != names.end() ? Category::other : Category::unfamiliar;
  };
  switch (text.front()) {
    case 'k': return text == "kernel" ? Category::kernel : Category::unfamiliar;
    case 'K': return text == "Kernel" ? Category::kernel : Category::unfamiliar;
    case 'g':
      if (text == "gpu_memcpy") return Category::memcpy;
      if (text == "gpu_memset") return Category::memset;
      if (text == "graph_event_node") return Category::graph_event;
      if (text == "graph_host_node") return Category::graph_host;
      return among({"gpu_user_annotation", "gpu_pm_counter", "glow_runtime", "graph_node", "graph_edge"});
    case 'M':
      if (text == "Memcpy") return Category::memcpy;
      if (text == "Memset") return Category::memset;
      return among({"Marker"});
    case 'c':
      if (text == "cpu_op") return Category::other;
      if (text == "cuda_runtime" || text == "cuda_driver") return Category::api;
      return among({"cpu_instant_event", "cuda_sync", "cuda_event", "cuda_profiler_range", "collective_comm"});
    case 'h': return text == "hip_runtime" || text == "hip_driver" ? Category::api : among({"hpu_op"});
    case 'p':
      if (text == "python_function") return Category::other;
      if (text == "privateuse1_runtime" || text == "privateuse1_driver") return Category::api;
      return among({"predicted"});
    case 'R': return text == "Runtime" ? Category::api : Category::unfamiliar;
    case 'a': return text == "ac2g" ? Category::flow : among({"async", "async_cpu_to_gpu"});
    case 'T': return text == "Trace" ? Category::trace : Category::unfamiliar;
    case 'f': return among({"fwdbwd"});
    case 'o': return among({"overhead"});
    case 'O': return among({"Operator"});
    case 'e': return among({"external_correlation"});
    case 'm': return among({"mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters", "mtia_workloadd"});
    case 'u': return among({"user_annotation"});
    case 'x': return among({"xpu_runtime", "xpu_driver"});
    default: return Category::unfamiliar;
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

  // Reads one event and hands it to the sink once all of it was read. An error means that its text is broken; what is sound JSON but
  // unusable is reported as lost from here.
  simdjson::error_code parse(ondemand::object object, std::uint64_t offset);
  // Whether the text that comes next may hold a backslash: else no key needs a look for one.
  void expect_escapes(bool any) { any_escapes_ = any; }
  // Whether the last event was passed over before its end, or arguments of it.
  [[nodiscard]] bool passed_over() const { return passed_over_; }

 private:
  // Whether a property was one that is read.
  enum class Taken : std::uint8_t { yes, no, enough };
  struct Step {
    Taken taken = Taken::no;
    simdjson::error_code error = simdjson::SUCCESS;
  };
  // In the loops over fields, where calls would cost; keys with escapes are rare and take a way of their own.
  [[gnu::always_inline]] Step take_property(const char* key, ondemand::value& value);
  [[gnu::always_inline]] Step take_argument(const char* key, ondemand::value& value);
  [[gnu::noinline]] Step take_escaped_property(const char* key, ondemand::value& value);
  [[gnu::noinline]] Step take_escaped_argument(const char* key, ondemand::value& value);
  simdjson::error_code parse_args(ondemand::object args);
  simdjson::error_code parse_dim(ondemand::value& value, ir::Dim3& dim);
  void finish();
  void finish_operation();
  void finish_call();
  void finish_arrow();
  void lose(LostEvent::What what, LostEvent::Why why = LostEvent::Why::damaged) {
    LostEvent lost;
    lost.what = what;
    lost.why = why;
    lost.offset = offset_;
    lost.correlation = gpu_.correlation;
    sink_.on_lost(lost);
  }
  // A string token's text. `token` must live as long as the text.
  std::string_view text_of(std::string_view token, std::string& storage, bool& good_escapes);
  [[nodiscard]] bool may_be_graph_launch();
  // A key with escapes as one without, with its closing quote and enough behind it to compare; null for a key without escapes.
  const char* plain_key(const char* key);
  // Numbers, in quotes or not.
  template <typename Parse>
  bool number(std::string_view token, const Parse& parse) {
    token = trim_token(token);
    if (parse(token)) return true;
    if (!has_escape(token)) return false;
    bool good = true;
    return parse(text_of(token, number_storage_, good));
  }
  bool u64(std::string_view token, std::uint64_t& value) {
    return number(token, [&](std::string_view text) { return parse_u64(text, value); });
  }
  bool u32(std::string_view token, std::uint32_t& value) {
    std::uint64_t wide = 0;
    if (!u64(token, wide) || wide > 0xffffffffu) return false;
    value = static_cast<std::uint32_t>(wide);
    return true;
  }
  bool i64(std::string_view token, std::int64_t& value) {
    return number(token, [&](std::string_view text) { return parse_i64(text, value); });
  }
  bool us(std::string_view token, std::int64_t& ns) {
    return number(token, [&](std::string_view text) { return parse_us(text, ns); });
  }
  // Stream ids have 32 bits.
  bool stream(std::string_view token, std::uint64_t& value) {
    std::uint32_t id = 0;
    if (!u32(token, id)) return false;
    value = id;
    return true;
  }
  // kUnusableCorrelation for what is no number of 64 bits: that an id was given must not be forgotten.
  std::uint64_t correlation(std::string_view token) {
    std::uint64_t value = 0;
    return u64(token, value) ? value : kUnusableCorrelation;
  }
  // Passes `matched` on, and notes a property that was given before.
  bool once(bool matched, Given property) {
    if (!matched) return false;
    repeated_ = repeated_ || (seen_ & property) != 0;
    seen_ |= property;
    return true;
  }
  [[nodiscard]] bool gives(std::uint32_t properties) const { return (seen_ & properties) != 0; }

  EventSink& sink_;
  std::size_t max_string_bytes_;
  GpuEvent gpu_;
  Category category_ = Category::unknown;
  char phase_ = '\0';  // '\0': not given, or no phase
  std::string_view name_, ts_, dur_, pid_, tid_, id_, late_args_;
  std::uint64_t offset_ = 0;
  bool args_read_ = false;
  bool bad_args_ = false;
  bool has_original_stream_ = false;
  bool has_annotated_stream_ = false;
  bool has_name_arg_ = false;
  std::uint32_t seen_ = 0;  // bits of Given
  bool repeated_ = false;
  bool written_by_kineto_ = false;
  bool passed_over_ = false;
  bool any_escapes_ = true;
  bool gpu_used_ = false;  // gpu_ holds what an event gave
  std::string name_storage_, number_storage_, key_storage_;
  ondemand::parser unescaper_;
};

std::string_view EventParser::text_of(std::string_view token, std::string& storage, bool& good_escapes) {
  token = trim_token(token);
  if (!has_escape(token)) return token;
  good_escapes = unescape(token, storage);
  return storage;
}

const char* EventParser::plain_key(const char* key) {
  const char* end = key;
  bool escaped = false;
  for (; *end != '"'; ++end) {
    if (*end != '\\') continue;
    escaped = true;
    ++end;
  }
  if (!escaped) return nullptr;
  unescape({key, static_cast<std::size_t>(end - key)}, key_storage_);
  key_storage_ += '"';
  key_storage_.append(64, '\0');
  return key_storage_.data();
}

bool EventParser::may_be_graph_launch() {
  if (!is_string(name_)) return true;
  bool is_hip = false, good = true;
  return is_graph_launch(text_of(name_, name_storage_, good), is_hip);
}

simdjson::error_code EventParser::parse_dim(ondemand::value& value, ir::Dim3& dim) {
  ondemand::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) {
    gpu_.bad_config = true;
    return simdjson::SUCCESS;
  }
  std::uint32_t* const parts[3] = {&dim.x, &dim.y, &dim.z};
  std::size_t i = 0;
  for (auto element : array) {
    ondemand::value part;
    if (const auto error = element.get(part)) return error;
    if (i >= 3 || !u32(part.raw_json_token(), *parts[i])) gpu_.bad_config = true;
    ++i;
  }
  if (i != 3) gpu_.bad_config = true;
  return simdjson::SUCCESS;
}

inline EventParser::Step EventParser::take_argument(const char* key, ondemand::value& value) {
  constexpr Step kTaken{Taken::yes, simdjson::SUCCESS};
  if (category_ == Category::api) {
    if (!once(key_is(key, "correlation\""), kGivesArgCorrelation)) return {};
    gpu_.correlation = correlation(value.raw_json_token());
    return kTaken;
  }
  switch (key[0]) {
    case 'a':
      if (once(key_is(key, "annotated_stream\""), kGivesArgAnnotatedStream)) {
        has_annotated_stream_ = true;
        return kTaken;
      }
      break;
    case 'b':
      if (once(key_is(key, "block\""), kGivesArgBlock)) return {Taken::yes, parse_dim(value, gpu_.block)};
      if (once(key_is(key, "bytes\""), kGivesArgBytes)) {
        gpu_.bad_bytes = !u64(value.raw_json_token(), gpu_.bytes);
        return kTaken;
      }
      break;
    case 'c':
      if (once(key_is(key, "correlation\""), kGivesArgCorrelation)) {
        gpu_.correlation = correlation(value.raw_json_token());
        return kTaken;
      }
      break;
    case 'd':
    case 'f':
    case 'i':
      // Peer copies name fromDevice, inDevice and toDevice instead of device.
      if (once(key_is(key, "device\""), kGivesArgDevice) || once(key_is(key, "inDevice\""), kGivesArgInDevice) ||
          (gpu_.device < 0 && once(key_is(key, "fromDevice\""), kGivesArgFromDevice))) {
        std::uint32_t device = 0;
        gpu_.gives_device = true;
        if (u32(value.raw_json_token(), device) && device <= 0x7fffffff) gpu_.device = static_cast<std::int32_t>(device);
        return kTaken;
      }
      break;
    case 'g':
      if (once(key_is(key, "grid\""), kGivesArgGrid)) return {Taken::yes, parse_dim(value, gpu_.grid)};
      if (once(key_is(key, "graph id\""), kGivesArgGraphId)) {
        std::uint32_t id = 0;
        if (!u32(value.raw_json_token(), id)) gpu_.bad_node = true;
        gpu_.graph_id = id;
        return kTaken;
      }
      if (once(key_is(key, "graph node id\""), kGivesArgGraphNodeId)) {
        if (!u64(value.raw_json_token(), gpu_.graph_node_id)) gpu_.bad_node = true;
        return kTaken;
      }
      break;
    case 'n':
      if (once(key_is(key, "name\""), kGivesArgName)) {
        has_name_arg_ = true;
        return kTaken;
      }
      break;
    case 'o':
      if (once(key_is(key, "original_stream\""), kGivesArgOriginalStream)) {
        has_original_stream_ = gpu_.gives_stream = true;
        gpu_.has_stream = stream(value.raw_json_token(), gpu_.stream);
        return kTaken;
      }
      break;
    case 'p':
      if (once(key_is(key, "priority\""), kGivesArgPriority)) {
        std::int64_t priority = 0;
        if (i64(value.raw_json_token(), priority) && priority > -1000 && priority < 1000) {
          gpu_.priority = static_cast<std::int32_t>(priority);
        } else {
          gpu_.bad_config = true;
        }
        return kTaken;
      }
      break;
    case 'r':
      if (once(key_is(key, "registers per thread\""), kGivesArgRegistersPerThread)) {
        if (!u32(value.raw_json_token(), gpu_.registers)) gpu_.bad_config = true;
        return kTaken;
      }
      break;
    case 's':
      if (once(key_is(key, "stream\""), kGivesArgStream)) {
        gpu_.gives_stream = true;
        if (!has_original_stream_) gpu_.has_stream = stream(value.raw_json_token(), gpu_.stream);
        return kTaken;
      }
      if (once(key_is(key, "shared memory\""), kGivesArgSharedMemory)) {
        std::uint32_t bytes = 0;
        if (!u32(value.raw_json_token(), bytes)) gpu_.bad_config = true;
        gpu_.shared_bytes = bytes;
        return kTaken;
      }
      break;
    default: break;
  }
  return {};
}

EventParser::Step EventParser::take_escaped_argument(const char* key, ondemand::value& value) {
  const char* const plain = plain_key(key);
  return plain == nullptr ? Step() : take_argument(plain, value);
}

simdjson::error_code EventParser::parse_args(ondemand::object args) {
  bool first = true;
  args_read_ = gpu_used_ = true;
  for (auto field_result : args) {
    ondemand::field field;
    if (const auto error = std::move(field_result).get(field)) return error;
    const char* const key = field.key().raw();
    ondemand::value value = field.value();
    if (first) {
      written_by_kineto_ = key_is(key, "queued\"") || key_is(key, "External id\"");
      first = false;
    }
    Step step = take_argument(key, value);
    if (step.taken == Taken::no && any_escapes_) step = take_escaped_argument(key, value);
    if (step.error != simdjson::SUCCESS) return step.error;
  }
  return simdjson::SUCCESS;
}

inline EventParser::Step EventParser::take_property(const char* key, ondemand::value& value) {
  constexpr Step kTaken{Taken::yes, simdjson::SUCCESS};
  switch (key[0]) {
    case 'p':
      if (once(key_is(key, "ph\""), kGivesPh)) {
        const std::string_view token = value.raw_json_token();
        bool good = true;
        const std::string_view text = text_of(token, name_storage_, good);
        phase_ = is_string(token) && text.size() == 1 ? text[0] : '\0';
        return kTaken;
      }
      if (once(key_is(key, "pid\""), kGivesPid)) {
        pid_ = value.raw_json_token();
        return kTaken;
      }
      break;
    case 'c':
      if (once(key_is(key, "cat\""), kGivesCat)) {
        const std::string_view token = value.raw_json_token();
        if (!is_string(token)) {
          category_ = Category::unusable;
          return kTaken;
        }
        category_ = classify(trim_token(token));
        if (category_ == Category::other) return {Taken::enough, simdjson::SUCCESS};
        if (category_ == Category::unfamiliar && has_escape(token)) {
          bool good = true;
          category_ = classify(text_of(token, name_storage_, good));
          if (category_ == Category::other) return {Taken::enough, simdjson::SUCCESS};
        }
        return kTaken;
      }
      break;
    case 'n':
      if (once(key_is(key, "name\""), kGivesName)) {
        name_ = value.raw_json_token();
        return kTaken;
      }
      break;
    case 't':
      if (once(key_is(key, "ts\""), kGivesTs)) {
        ts_ = value.raw_json_token();
        return kTaken;
      }
      if (once(key_is(key, "tid\""), kGivesTid)) {
        tid_ = value.raw_json_token();
        return kTaken;
      }
      break;
    case 'd':
      if (once(key_is(key, "dur\""), kGivesDur)) {
        dur_ = value.raw_json_token();
        return kTaken;
      }
      break;
    case 'i':
      if (once(key_is(key, "id\""), kGivesId)) {
        id_ = value.raw_json_token();
        return kTaken;
      }
      break;
    case 'a':
      if (!once(key_is(key, "args\""), kGivesArgs)) break;
      if (category_ == Category::flow || category_ == Category::trace || args_read_) return kTaken;
      if (category_ == Category::api && !name_.empty() && !may_be_graph_launch()) {
        passed_over_ = true;
        return kTaken;
      }
      {
        ondemand::object args;
        if (const auto error = value.get_object().get(args)) {
          if (error != simdjson::INCORRECT_TYPE) return {Taken::yes, error};
          bad_args_ = true;
        } else if (category_ == Category::unknown) {
          if (const auto raw_error = args.raw_json().get(late_args_)) return {Taken::yes, raw_error};
        } else {
          return {Taken::yes, parse_args(args)};
        }
        return kTaken;
      }
    default: break;
  }
  return {};
}

EventParser::Step EventParser::take_escaped_property(const char* key, ondemand::value& value) {
  const char* const plain = plain_key(key);
  return plain == nullptr ? Step() : take_property(plain, value);
}

simdjson::error_code EventParser::parse(ondemand::object object, std::uint64_t offset) {
  category_ = Category::unknown;
  phase_ = '\0';
  name_ = ts_ = dur_ = pid_ = tid_ = id_ = late_args_ = {};
  offset_ = offset;
  if (gpu_used_) gpu_ = GpuEvent();  // most events are passed over
  gpu_used_ = false;
  seen_ = 0;
  args_read_ = bad_args_ = repeated_ = passed_over_ = false;
  has_original_stream_ = has_annotated_stream_ = has_name_arg_ = written_by_kineto_ = false;
  bool is_empty = true;
  for (auto field_result : object) {
    ondemand::field field;
    if (const auto error = std::move(field_result).get(field)) return error;
    const char* const key = field.key().raw();
    ondemand::value value = field.value();
    is_empty = false;
    Step step = take_property(key, value);
    if (step.taken == Taken::no && any_escapes_) step = take_escaped_property(key, value);
    if (step.error != simdjson::SUCCESS) return step.error;
    if (step.taken == Taken::enough) {
      passed_over_ = true;
      return simdjson::SUCCESS;
    }
  }
  if (is_empty) {
    lose(LostEvent::What::host, LostEvent::Why::empty);
    return simdjson::SUCCESS;
  }
  if (!late_args_.empty() && !args_read_ && category_ != Category::unknown && category_ != Category::flow && category_ != Category::trace) {
    const simdjson::padded_string copy(late_args_);
    ondemand::document document;
    ondemand::object args;
    if (const auto error = unescaper_.iterate(copy).get(document)) return error;
    if (const auto error = document.get_object().get(args)) return error;
    if (const auto error = parse_args(args)) return error;
  }
  finish();
  return simdjson::SUCCESS;
}

void EventParser::finish() {
  using What = LostEvent::What;
  using Why = LostEvent::Why;
  // Other phases than X: metadata, moments, counters, arrows. A phase that is missing or none could have been an X.
  const bool may_be_slice = phase_ == 'X' || phase_ == '\0';
  switch (category_) {
    case Category::other: return;
    case Category::unknown:
      if (may_be_slice) lose(What::gpu);  // every slice has a category
      return;
    case Category::unusable:
      if (may_be_slice) lose(What::gpu);
      if (phase_ == 's' || phase_ == 'f') finish_arrow();
      return;
    case Category::unfamiliar:
      if (may_be_slice &&
          gives(kGivesArgStream | kGivesArgOriginalStream | kGivesArgGraphId | kGivesArgGraphNodeId | kGivesArgGrid))
        lose(What::gpu, Why::unknown_category);
      return;
    case Category::trace:
      if (phase_ == 'X') {
        bool good = true;
        sink_.on_profiler(text_of(name_, name_storage_, good));
      }
      return;
    case Category::flow: return finish_arrow();
    case Category::api: return finish_call();
    default: return finish_operation();
  }
}

void EventParser::finish_arrow() {
  FlowEvent flow;
  const bool has_id = u64(id_, flow.id);
  if (has_id && flow.id < kFirstDependencyFlow && !repeated_) return;
  flow.is_start = phase_ == 's';
  if (category_ == Category::flow && !repeated_ && has_id && (phase_ == 's' || phase_ == 'f') && us(ts_, flow.ts_ns) &&
      i64(pid_, flow.pid) && i64(tid_, flow.tid)) {
    sink_.on_flow(flow);
    return;
  }
  LostEvent lost;
  lost.what = LostEvent::What::arrow;
  lost.why = repeated_ ? LostEvent::Why::repeats_property : LostEvent::Why::damaged;
  lost.offset = offset_;
  lost.flow_id = has_id && !repeated_ ? flow.id : 0;
  sink_.on_lost(lost);
}

void EventParser::finish_call() {
  using What = LostEvent::What;
  ApiEvent api;
  api.offset = offset_;
  bool good = true;
  const std::string_view name = text_of(name_, name_storage_, good);
  api.is_graph_launch = is_graph_launch(name, api.is_hip);
  if (!is_string(name_)) return lose(What::launch);
  if (!api.is_graph_launch) {
    if (phase_ == 'X') sink_.on_api(api);
    return;
  }
  if (repeated_) return lose(What::launch, LostEvent::Why::repeats_property);
  if (phase_ != 'X' || bad_args_ || !us(ts_, api.start_ns)) return lose(What::launch);
  api.has_dur = us(dur_, api.dur_ns);
  if (!api.has_dur) api.dur_ns = 0;
  api.has_pid = i64(pid_, api.pid);
  if (!api.has_pid) api.pid = -1;
  api.gives_correlation = gives(kGivesArgCorrelation);
  api.correlation = gpu_.correlation;
  sink_.on_api(api);
}

void EventParser::finish_operation() {
  using What = LostEvent::What;
  using Why = LostEvent::Why;
  gpu_used_ = true;
  if (repeated_) return lose(What::gpu, Why::repeats_property);
  if (phase_ != 'X' || bad_args_ || !us(ts_, gpu_.start_ns)) return lose(What::gpu);
  gpu_.has_dur = !dur_.empty();
  if (gpu_.has_dur && !us(dur_, gpu_.dur_ns)) return lose(What::gpu);
  if (gpu_.dur_ns > 0 && gpu_.start_ns > std::numeric_limits<std::int64_t>::max() - gpu_.dur_ns) return lose(What::gpu);
  switch (category_) {
    case Category::memcpy: gpu_.kind = ir::NodeKind::memcpy; break;
    case Category::memset: gpu_.kind = ir::NodeKind::memset; break;
    case Category::graph_event: gpu_.kind = ir::NodeKind::event_record; break;
    case Category::graph_host: gpu_.kind = ir::NodeKind::host; break;
    default: gpu_.kind = ir::NodeKind::kernel; break;
  }
  if (is_string(name_)) {
    bool good = true;
    gpu_.name = text_of(name_, name_storage_, good);
    gpu_.bad_escape = !good;
  }
  gpu_.has_name = !gpu_.name.empty();
  if (gpu_.name.size() > max_string_bytes_) return lose(What::gpu, Why::long_name);
  if (!i64(pid_, gpu_.pid)) gpu_.pid = -1;
  if (!i64(tid_, gpu_.tid)) gpu_.tid = -1;
  if (!gpu_.gives_stream) {
    // Very old traces give the stream only as the row: 7 or "stream 7".
    std::string_view text = trim_token(tid_);
    if (text.starts_with("stream ")) text.remove_prefix(7);
    gpu_.has_row_stream = stream(text, gpu_.row_stream);
  }
  if (!gpu_.gives_device && gpu_.pid >= 0 && gpu_.pid < 1024) gpu_.row_device = static_cast<std::int32_t>(gpu_.pid);
  gpu_.gives_correlation = gives(kGivesArgCorrelation);
  // torch.cuda._annotate_cuda_graph_trace adds a name to the arguments of Kineto's events and replaces their stream;
  // the CUPTI monitor of torch.profiler adds names too, but keeps the stream or tells the original one.
  gpu_.annotated = has_name_arg_ && written_by_kineto_ && gpu_.graph_node_id != 0 && !has_original_stream_ &&
                   !has_annotated_stream_;
  gpu_.offset = offset_;
  sink_.on_gpu(gpu_);
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

// Where an event starts as Kineto writes them, with its phase and its category, or npos: `{"ph": "X", "cat": "`.
std::size_t find_event_start(std::string_view text, std::size_t from) {
  for (std::size_t i = text.find("\"ph\"", from); i != std::string_view::npos; i = text.find("\"ph\"", i + 4)) {
    std::size_t start = i;
    while (start > from && is_blank(text[start - 1])) --start;
    if (start <= from || text[start - 1] != '{') continue;
    std::size_t at = skip_blanks(text, i + 4);
    const auto skip = [&](std::string_view wanted) {
      if (!text.substr(at).starts_with(wanted)) return false;
      at = skip_blanks(text, at + wanted.size());
      return true;
    };
    if (!skip(":") || at + 3 > text.size() || text[at] != '"' || text[at + 2] != '"') continue;
    at = skip_blanks(text, at + 3);
    if (skip(",") && skip("\"cat\"") && skip(":")) return start - 1;
  }
  return std::string_view::npos;
}

// The end of an element that is sound but no object: a number, a word, a string, a list. npos if it is not followed by a comma or the end of
// the list: then it is a piece of something else. `end` is what skip_value() says.
std::size_t odd_element_end(std::string_view text, std::size_t end) {
  if (end == std::string_view::npos) return end;
  if (text[0] != '"' && text[0] != '[') end = text.find_first_of(" \t\r\n,]{}[\":");
  if (end == 0 || end == std::string_view::npos) return std::string_view::npos;
  const std::size_t next = skip_blanks(text, end);
  return next < text.size() && (text[next] == ',' || text[next] == ']') ? end : std::string_view::npos;
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t i = text.find(part); i != std::string_view::npos; i = text.find(part, i + part.size())) ++count;
  return count;
}

// What a lost event was, as far as its text shows. The text may hold more than one: then the worst of them.
LostEvent describe_lost(std::string_view text, std::uint64_t offset) {
  LostEvent lost;
  lost.offset = offset;
  std::string_view rest = text;  // what value_of() has not looked at
  const auto value_of = [&rest](std::string_view key, std::string_view& value) {
    while (true) {
      std::size_t at = rest.find(key);
      if (at == std::string_view::npos) return false;
      at = skip_blanks(rest, at + key.size());
      if (at < rest.size() && rest[at] == ':') {
        at = skip_blanks(rest, at + 1);
        std::size_t end = rest.find_first_of(",}]\n", at);
        if (end == std::string_view::npos) end = rest.size();
        value = trim_token(rest.substr(at, end - at));
        rest.remove_prefix(end);
        return true;
      }
      rest.remove_prefix(at);
    }
  };
  const auto only = [&](std::string_view key, std::string_view& value) {
    std::string_view second;
    rest = text;
    return value_of(key, value) && !value_of(key, second);
  };
  std::string_view value;
  std::uint64_t number = 0;
  if (only("\"correlation\"", value) && parse_u64(value, number)) lost.correlation = number;
  if (!text.starts_with('{')) return lost;
  std::size_t categories = 0;
  bool all_host = true, any_call = false, any_arrow = false;
  rest = text;
  while (value_of("\"cat\"", value)) {
    ++categories;
    const Category category = classify(value);
    any_call = any_call || category == Category::api;
    any_arrow = any_arrow || category == Category::flow;
    all_host = all_host && category >= Category::api;
  }
  if (categories == 0) {
    if (only("\"ph\"", value) && value == "M") lost.what = LostEvent::What::host;
    return lost;
  }
  if (!all_host) return lost;
  if (any_call) {
    // A name that cannot be a graph launch's, if it can be made out.
    const bool known = categories == 1 && only("\"name\"", value) && value.size() > 4;
    if (value.starts_with('"')) value.remove_prefix(1);
    const bool may_be_launch = value.starts_with("cudaG") || value.starts_with("cuG") || value.starts_with("hipG") || has_escape(value);
    if (!known || may_be_launch) {
      lost.what = LostEvent::What::launch;
      return lost;
    }
  }
  lost.what = any_arrow ? LostEvent::What::arrow : LostEvent::What::host;
  if (any_arrow && categories == 1 && only("\"id\"", value) && parse_u64(value, number)) lost.flow_id = number;
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
  // Whether the passed-over element in [from, to) may hide another one.
  [[nodiscard]] bool may_hide_events(const char* from, const char* to) const;
  void lose(std::size_t size) { sink_.on_lost(describe_lost(text().substr(0, size), offset())); }
  void cut_short(std::string reason);
  // Accounts for `size` bytes looked at because of damage.
  base::Result<void> spend(std::size_t size);

  Source& source_;
  const ReadOptions& options_;
  EventSink& sink_;
  EventParser parser_;
  ondemand::parser json_;
  ondemand::parser single_json_;
  simdjson::dom::parser whole_json_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t base_offset_ = 0;   // file offset of buffer_[0]
  std::uint64_t sanitized_end_ = 0;  // file offset: newlines before it were replaced
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
  parser_.expect_escapes(true);
  // Stray quotes can make several events look like one whose arguments hold the others: nothing of it may be passed over unchecked.
  if (count_of(event_text, "\"ph\"") > 1) {
    const auto error = whole_json_.parse(copy).error();
    if (error != simdjson::SUCCESS && error != simdjson::DEPTH_ERROR) return false;
  }
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
    if (here.starts_with('{')) {
      if (exact != std::string_view::npos && parse_alone(here.substr(0, exact), offset())) {
        consume(exact);
        return true;
      }
    } else if (const std::size_t end = odd_element_end(here, exact); end != std::string_view::npos) {
      lose(end);
      consume(end);
      return true;
    }
    // Growing in steps, whole elements cost little more than their own length; what follows is for damage.
    if (exact == std::string_view::npos && !is_all && wanted < kMaxExactScanBytes) {
      wanted *= 8;
      continue;
    }
    const std::size_t first_boundary = find_event_end(here, 0, is_all);
    if (first_boundary == std::string_view::npos && !is_all) {
      if (wanted >= kMaxEventBytes)
        return make_error(ErrorCode::limit, fmt::format("an event of the trace is larger than {} bytes, the most that is read of one", kMaxEventBytes),
                          offset());
      wanted = std::min(wanted * 4, kMaxEventBytes);
      continue;
    }
    CGLINT_TRY(spend(exact == std::string_view::npos ? here.size() : exact));
    std::size_t boundary = first_boundary;
    for (int attempt = 0; attempt < 8 && boundary != std::string_view::npos && here.starts_with('{'); ++attempt) {
      CGLINT_TRY(spend(boundary));
      if (parse_alone(escape_inner_quotes(here.substr(0, boundary)), offset())) {
        ++stats_.repaired;
        consume(boundary);
        return true;
      }
      boundary = find_event_end(here, boundary, is_all);
    }
    // Lost: up to the next event if one can be made out, else up to what reads like a boundary.
    const std::size_t end = std::min(first_boundary, here.size());
    const std::size_t next = find_event_start(here.substr(0, end), here.starts_with('{') ? 1 : 0);
    lose(std::min(next, end));
    if (next == std::string_view::npos && first_boundary == std::string_view::npos) cut_short("the file ends in the middle of an event");
    consume(std::min(next, end));
    return true;
  }
}

bool TraceReader::may_hide_events(const char* from, const char* to) const {
  const auto size = static_cast<std::size_t>(to - from);
  const std::uint64_t start = base_offset_ + static_cast<std::uint64_t>(from - buffer_.data());
  // Kineto ends lines between events, and a string that holds a line end is noticed: only then do short ones need a look.
  if (start >= sanitized_end_) {
    if (size <= kLongElementBytes) return false;
    for (const char* at = to; at != from && is_blank(at[-1]); --at)
      if (at[-1] == '\n') return false;
  }
  return count_of({from, size}, "\"ph\"") > 1;
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
    sanitized_end_ = std::max(sanitized_end_, offset() + size);
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
  parser_.expect_escapes(std::memchr(first, '\\', length) != nullptr);
  const char* last_good = nullptr;  // start of the last element that was read
  const char* passed = nullptr;     // the same, if some of it was passed over
  const char* odd = nullptr;        // the same, if it is no object; reported once what follows shows that it is not a piece of one
  bool failed = false;
  const auto fail_at = [&](const char* at) {
    consumed = static_cast<std::size_t>(at - (first + 1));
    failed = true;
  };
  const auto report_odd = [&]() {
    LostEvent lost;
    lost.offset = base_offset_ + static_cast<std::uint64_t>(odd - buffer_.data());
    sink_.on_lost(lost);
    odd = nullptr;
  };
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
    if (passed != nullptr && may_hide_events(passed, start)) {
      fail_at(passed);
      restore();
      return consumed != 0;
    }
    passed = nullptr;
    if (odd != nullptr) report_odd();
    if (*start == '{') {
      ondemand::object object;
      if (value.get_object().get(object) != simdjson::SUCCESS ||
          parser_.parse(object, base_offset_ + static_cast<std::uint64_t>(start - buffer_.data())) != simdjson::SUCCESS) {
        fail_at(start);
        break;
      }
      if (parser_.passed_over()) passed = start;
    } else {
      odd = start;
    }
    ++stats_.events;
    last_good = start;
  }
  restore();
  if (last_good == nullptr) return false;
  if (odd != nullptr) fail_at(odd);  // nothing has shown yet that it is a whole element
  if (failed && consumed != 0) return true;  // up to the start of the event that failed
  // The end of the last event; what follows it, a comma or the end of the array, is for the caller.
  const auto last_at = static_cast<std::size_t>(last_good - (first + 1));
  const std::size_t last_end = skip_value(text().substr(0, size), last_at);
  if (last_end == std::string_view::npos || (passed != nullptr && may_hide_events(passed, first + 1 + last_end))) {
    // Its brackets do not close in this window (it was not an event's end where the window was cut), or it needs a closer look.
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
    if (*c != '{') {
      ++stats_.events;
      auto single = parse_single();
      if (!single) return std::move(single).error();
      continue;
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
    std::string key(text().substr(1, key_end - 2));
    if (has_escape(key)) {
      std::string plain;
      unescape(key, plain);
      key = std::move(plain);
    }
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
