// How the properties of capture records are read: a typed reader per value, and objects and tuples as lists of those. Every reader
// returns false after saying what is wrong; the caller of the record reports it with the line's offset.
#pragma once

#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "import/common/importer.h"
#include "ir/facts.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::import::capture {

namespace od = simdjson::ondemand;

// --- raw text ---
// Keys and strings are compared behind their opening quote and with their closing one. Text written with escapes does not match a
// word; nobody writes those.

template <std::size_t N>
bool is(const char* raw, const char (&word)[N]) {
  return std::memcmp(raw, word, N - 1) == 0 && raw[N - 1] == '"';
}
inline bool is(const char* raw, std::string_view word) {
  return std::memcmp(raw, word.data(), word.size()) == 0 && raw[word.size()] == '"';
}

// Up to 16 hexadecimal digits behind "0x", ended by a quote: their length with the "0x", or 0.
inline int hex_length(const char* raw, std::uint64_t& out) {
  static constexpr auto kDigit = [] {
    std::array<std::uint8_t, 256> table{};
    for (auto& entry : table) entry = 0xff;
    for (std::size_t i = 0; i < 10; ++i) table['0' + i] = static_cast<std::uint8_t>(i);
    for (std::size_t i = 0; i < 6; ++i) {
      table['a' + i] = static_cast<std::uint8_t>(10 + i);
      table['A' + i] = static_cast<std::uint8_t>(10 + i);
    }
    return table;
  }();
  if (raw[0] != '0' || raw[1] != 'x') return 0;
  std::uint64_t value = 0;
  int i = 2;
  for (; i < 18; ++i) {
    const std::uint8_t digit = kDigit[static_cast<unsigned char>(raw[i])];
    if (digit == 0xff) break;
    value = value << 4 | digit;
  }
  out = value;
  return i > 2 && raw[i] == '"' ? i : 0;
}

// The text of a raw JSON string up to its closing quote, for messages.
inline std::string_view raw_text(const char* raw) {
  std::size_t size = 0;
  while (size < 40 && raw[size] != '"' && static_cast<unsigned char>(raw[size]) >= 0x20) ++size;
  return {raw, size};
}

// A property or a tuple element: what it is called, and a callable that reads it.
template <typename Read>
struct Item {
  const char* what;
  Read read;
  bool required = false;
};
template <typename Read>
Item(const char*, Read) -> Item<Read>;
template <typename Read>
Item<Read> required(Item<Read> item) {
  item.required = true;
  return item;
}

// What the file holds and this version does not know.
struct UnknownCounts {
  struct Cases {
    std::uint64_t count = 0;
    std::string first;
    std::uint64_t first_offset = 0;  // of the line
    void add(std::uint64_t more, const std::string& what, std::uint64_t offset) {
      if (count == 0 && more != 0) {
        first = what;
        first_offset = offset;
      }
      count += more;
    }
  };
  Cases properties, values;
  void add(const UnknownCounts& other) {
    properties.add(other.properties.count, other.properties.first, other.properties.first_offset);
    values.add(other.values.count, other.values.first, other.values.first_offset);
  }
};

// The base of the record reader: one record at a time, into one recording.
class RecordFields {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  using value = od::value;

  RecordFields(ir::Recording& recording, const ReadOptions& options) : recording_(recording), options_(options) {}

 protected:
  // Sets what is wrong with the record, if nothing was before. Always false.
  bool wrong(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
    return false;
  }
  bool wrong_type(const char* what, std::string_view expected) { return wrong(fmt::format("{} is not {}", what, expected)); }
  bool broken_json(simdjson::error_code code) { return wrong(simdjson::error_message(code)); }

  // --- one value ---
  template <typename T>
  bool get_number(value& v, const char* what, T& out) {
    if constexpr (std::is_same_v<T, double>) {
      return v.get_double().get(out) == simdjson::SUCCESS || wrong_type(what, "a number");
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return v.get_uint64().get(out) == simdjson::SUCCESS || wrong_type(what, "an unsigned 64-bit integer");
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return v.get_int64().get(out) == simdjson::SUCCESS || wrong_type(what, "a 64-bit integer");
    } else if constexpr (std::is_unsigned_v<T>) {
      std::uint64_t wide = 0;
      if (v.get_uint64().get(wide) != simdjson::SUCCESS || wide > std::numeric_limits<T>::max())
        return wrong_type(what, "an unsigned integer in its range");
      out = static_cast<T>(wide);
      return true;
    } else {
      std::int64_t wide = 0;
      if (v.get_int64().get(wide) != simdjson::SUCCESS || wide < std::numeric_limits<T>::min() ||
          wide > std::numeric_limits<T>::max())
        return wrong_type(what, "an integer in its range");
      out = static_cast<T>(wide);
      return true;
    }
  }
  bool get_index(value& v, const char* what, std::uint32_t& out) {
    std::uint64_t wide = 0;
    if (v.get_uint64().get(wide) != simdjson::SUCCESS || wide >= kNone) return wrong_type(what, "an index");
    out = static_cast<std::uint32_t>(wide);
    return true;
  }
  bool get_index_or_none(value& v, const char* what, std::uint32_t& out) {
    std::int64_t wide = 0;
    if (v.get_int64().get(wide) != simdjson::SUCCESS || wide < -1 || wide >= std::int64_t{kNone})
      return wrong_type(what, "an index or -1");
    out = wide < 0 ? kNone : static_cast<std::uint32_t>(wide);
    return true;
  }
  bool get_bool(value& v, const char* what, bool& out) {
    return v.get_bool().get(out) == simdjson::SUCCESS || wrong_type(what, "true or false");
  }
  bool get_raw(value& v, const char* what, const char*& out) {
    od::raw_json_string raw;
    if (v.get_raw_json_string().get(raw) != simdjson::SUCCESS) return wrong_type(what, "a string");
    out = raw.raw();
    return true;
  }
  // Valid until the record has been read.
  bool get_view(value& v, const char* what, std::string_view& out) {
    if (v.get_string().get(out) != simdjson::SUCCESS) return wrong_type(what, "a string");
    return out.size() <= options_.limits.max_string_bytes ||
           wrong(fmt::format("{} is longer than {} bytes", what, options_.limits.max_string_bytes));
  }
  bool get_text(value& v, const char* what, ir::StringId& out) {
    std::string_view view;
    if (!get_view(v, what, view)) return false;
    out = recording_.strings.intern(view);
    return true;
  }
  bool get_hex(value& v, const char* what, std::uint64_t& out) {
    const char* raw = nullptr;
    if (!get_raw(v, what, raw)) return false;
    return hex_length(raw, out) != 0 || wrong_type(what, "a hexadecimal number");
  }
  bool get_ns_text(value& v, const char* what, std::int64_t& out) {
    std::string_view text;
    if (!get_view(v, what, text)) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return (error == std::errc() && end == text.data() + text.size() && !text.empty()) ||
           wrong_type(what, "nanoseconds in a string");
  }
  // One of `names`; an unknown one leaves `out` alone and is counted.
  template <typename E, std::size_t N>
  bool get_enum(value& v, const char* what, const std::array<std::string_view, N>& names, E& out) {
    const char* raw = nullptr;
    if (!get_raw(v, what, raw)) return false;
    for (std::size_t i = 0; i < N; ++i) {
      if (is(raw, names[i])) {
        out = static_cast<E>(i);
        return true;
      }
    }
    note_unknown_value(what, raw);
    return true;
  }
  bool get_kind(value& v, ir::NodeKind& out) {
    static const auto kNames = [] {
      std::array<std::string_view, ir::kNodeKindCount> names;
      for (std::size_t i = 0; i < names.size(); ++i) names[i] = ir::node_kind_name(static_cast<ir::NodeKind>(i));
      return names;
    }();
    out = ir::NodeKind::unknown;
    return get_enum(v, "kind", kNames, out);
  }
  bool get_fact(value& v, ir::FactSet& out) {
    static const auto kNames = [] {
      std::array<std::string_view, ir::kFactCount> names;
      for (std::size_t i = 0; i < names.size(); ++i) names[i] = ir::fact_name(static_cast<ir::Fact>(i));
      return names;
    }();
    int fact = -1;
    if (!get_enum(v, "fact", kNames, fact)) return false;
    if (fact >= 0) out.insert(static_cast<ir::Fact>(fact));
    return true;
  }

  // --- the same as items of read_object() and read_tuple() ---
  template <typename T>
  auto number(const char* what, T& out) {
    return Item{what, [this, what, &out](value& v) { return get_number(v, what, out); }};
  }
  auto index(const char* what, std::uint32_t& out) {
    return Item{what, [this, what, &out](value& v) { return get_index(v, what, out); }};
  }
  auto index_or_none(const char* what, std::uint32_t& out) {
    return Item{what, [this, what, &out](value& v) { return get_index_or_none(v, what, out); }};
  }
  auto flag(const char* what, bool& out) {
    return Item{what, [this, what, &out](value& v) { return get_bool(v, what, out); }};
  }
  auto tri(const char* what, ir::Tri& out) {
    return Item{what, [this, what, &out](value& v) {
                  bool is_true = false;
                  if (!get_bool(v, what, is_true)) return false;
                  out = is_true ? ir::Tri::yes : ir::Tri::no;
                  return true;
                }};
  }
  auto text(const char* what, ir::StringId& out) {
    return Item{what, [this, what, &out](value& v) { return get_text(v, what, out); }};
  }
  auto view(const char* what, std::string_view& out) {
    return Item{what, [this, what, &out](value& v) { return get_view(v, what, out); }};
  }
  auto hex(const char* what, std::uint64_t& out) {
    return Item{what, [this, what, &out](value& v) { return get_hex(v, what, out); }};
  }
  auto ns_text(const char* what, std::int64_t& out) {
    return Item{what, [this, what, &out](value& v) { return get_ns_text(v, what, out); }};
  }
  auto kind(const char* what, ir::NodeKind& out) {
    return Item{what, [this, &out](value& v) { return get_kind(v, out); }};
  }
  bool get_dim3(value& v, const char* what, ir::Dim3& out) {
    return read_tuple<3>(v, what, number(what, out.x), number(what, out.y), number(what, out.z));
  }
  auto dim3(const char* what, ir::Dim3& out) {
    return Item{what, [this, what, &out](value& v) { return get_dim3(v, what, out); }};
  }
  template <typename E, std::size_t N>
  auto word(const char* what, const std::array<std::string_view, N>& names, E& out) {
    return Item{what, [this, what, &names, &out](value& v) { return get_enum(v, what, names, out); }};
  }
  // An array, `each(element)` for every element.
  template <typename Each>
  auto list(const char* what, Each each) {
    return Item{what, [this, what, each](value& v) { return for_each(v, what, each); }};
  }
  auto facts(const char* what, ir::FactSet& out) {
    return list(what, [this, &out](value& v) { return get_fact(v, out); });
  }
  // An array of the given items.
  template <std::size_t Least, typename... Items>
  auto tuple(const char* what, Items... items) {
    return Item{what, [this, what, items...](value& v) { return read_tuple<Least>(v, what, items...); }};
  }
  // Known, but of no use here.
  static auto ignored(const char* what) {
    return Item{what, [](value&) { return true; }};
  }

  // --- objects and arrays ---
  // Reads an object that has the given properties. Unknown ones are counted and ignored; one that is given twice, or a required one
  // that is missing, makes the record wrong.
  template <typename... Items>
  bool read_object(od::object& object, const char* what, const Items&... items) {
    std::uint64_t seen = 0;
    const bool good = for_each_field(object, what, [&](const char* key, value& v) {
      std::uint64_t bit = 1;
      bool read = true;
      const auto matches = [&](const auto& item) {
        if (!is(key, std::string_view(item.what))) {
          bit <<= 1;
          return false;
        }
        seen |= bit;
        read = item.read(v);
        return true;
      };
      if (!(matches(items) || ...)) return unknown_property(key);
      return read;
    });
    if (!good) return false;
    std::uint64_t bit = 1;
    const auto is_there = [&](const auto& item) {
      const bool there = !item.required || (seen & bit) != 0;
      bit <<= 1;
      return there || wrong(fmt::format("{} has no {}", what, item.what));
    };
    return (is_there(items) && ...);
  }
  template <typename... Items>
  bool read_object(value& v, const char* what, const Items&... items) {
    od::object object;
    if (v.get_object().get(object) != simdjson::SUCCESS) return wrong_type(what, "an object");
    return read_object(object, what, items...);
  }
  // The object of a line: nothing may follow it.
  template <typename... Items>
  bool read_record_object(od::object& object, const Items&... items) {
    return read_object(object, "the record", items...) && nothing_follows();
  }
  bool nothing_follows() { return document_.current_location().error() == simdjson::OUT_OF_BOUNDS || wrong("more text follows the record"); }
  // Reads an array with one element per item. Fewer than `Least` are wrong; further ones are unknown and counted.
  template <std::size_t Least, typename... Items>
  bool read_tuple(value& v, const char* what, const Items&... items) {
    std::size_t count = 0;
    if (!for_each(v, what, [&](value& element) {
          std::size_t at = 0;
          bool read = true;
          const auto matches = [&](const auto& item) {
            if (at++ != count) return false;
            read = item.read(element);
            return true;
          };
          if (!(matches(items) || ...) && count == sizeof...(items)) note_unknown_property(what);
          ++count;
          return read;
        }))
      return false;
    return count >= Least || wrong(fmt::format("{} has {} elements, not {}", what, count, Least));
  }
  // Calls `each(element)` for every element of an array.
  template <typename Each>
  bool for_each(value& v, const char* what, const Each& each) {
    od::array array;
    if (v.get_array().get(array) != simdjson::SUCCESS) return wrong_type(what, "an array");
    for (auto element : array) {
      value item;
      if (const auto error = element.get(item)) return broken_json(error);
      if (!each(item)) return false;
    }
    return true;
  }
  // Calls `each(raw key, value)` for every property of an object. A property that comes twice is wrong: readers of JSON disagree on
  // which one counts.
  template <typename Each>
  bool for_each_field(od::object& object, const char* what, const Each& each) {
    constexpr std::size_t kRemembered = 32;
    std::array<const char*, kRemembered> keys;
    std::size_t count = 0;
    for (auto result : object) {
      od::field field;
      if (const auto error = std::move(result).get(field)) return broken_json(error);
      const char* const key = field.key().raw();
      for (std::size_t i = 0; i < count; ++i)
        if (same_key(keys[i], key)) return wrong(fmt::format("{} gives \"{}\" twice", what, raw_text(key)));
      if (count < kRemembered) keys[count++] = key;
      if (!each(key, field.value())) return false;
    }
    return true;
  }

  // --- parts that several records have ---
  // Opens the line's JSON object. Text that is not UTF-8 is repaired first (was_repaired_). The text needs capacity - size readable
  // bytes behind it.
  bool open_record(std::string_view text, std::size_t capacity, od::object& out);
  // The same object from its start, after fields of it were read.
  bool reopen_record(od::object& out);
  bool read_frame(value& v, ir::Frame& out);
  bool read_frames(value& v);
  bool read_stacks(value& v);
  // What an info names by number.
  struct InfoRefs {
    std::uint32_t parent = kNone, parent_node = kNone;
    std::uint32_t failed_stack = kNone, failed_stream = kNone, origin_stream = kNone;
  };
  bool read_info(value& v, ir::GraphInfo& info, InfoRefs& refs);
  // One of the things that a table of the line holds, by its index; kNone leaves `out` alone.
  template <typename T>
  bool look_up(const char* what, const char* kind, const std::vector<T>& table, std::uint32_t index, T& out) {
    if (index == kNone) return true;
    if (index >= table.size()) return wrong(fmt::format("{} names {} {} of {}", what, kind, index, table.size()));
    out = table[index];
    return true;
  }

  void note_unknown_property(std::string_view what) {
    if (unknown_.properties.count++ != 0) return;
    unknown_.properties.first = what;
    unknown_.properties.first_offset = line_offset_;
  }
  bool unknown_property(const char* raw) {
    note_unknown_property(raw_text(raw));
    return true;
  }
  void note_unknown_value(const char* what, const char* raw) {
    if (unknown_.values.count++ != 0) return;
    unknown_.values.first = fmt::format("{} \"{}\"", what, raw_text(raw));
    unknown_.values.first_offset = line_offset_;
  }

  ir::Recording& recording_;
  const ReadOptions& options_;
  std::vector<ir::Frame> frames_;    // tables of the line
  std::vector<ir::StackId> stacks_;
  bool was_repaired_ = false;
  std::string problem_;              // of the record that is being read
  std::uint64_t line_offset_ = 0;    // of its first byte
  UnknownCounts unknown_;

 private:
  od::parser parser_;
  od::document document_;
  std::string repaired_;
  std::string_view text_;            // of the record, as it is parsed
  std::size_t capacity_ = 0;
  std::vector<ir::Frame> one_stack_;

  static bool same_key(const char* a, const char* b) {
    for (std::size_t i = 0; a[i] == b[i]; ++i) {
      if (a[i] == '"') return true;
      if (a[i] != '\\') continue;
      ++i;
      if (a[i] != b[i]) return false;
    }
    return false;
  }
};

}  // namespace cglint::import::capture
