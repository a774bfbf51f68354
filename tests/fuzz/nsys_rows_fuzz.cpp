// libFuzzer entry for the contents of Nsight Systems exports: damage of the SQLite container hides them from the fuzzer (fuzz_nsys-sqlite).
// Lines of text make the tables, in the tab-separated form
//   =TABLE column column...      a table (one that exists is replaced)
//   value value...               a row of the last table: an integer, a number with a point, nothing for NULL, else text
// and the database goes through the importer: an error, or a recording whose graphs verify.
#include <sqlite3.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "import/common/importer.h"
#include "ir/graph_builder.h"

namespace {

using namespace cglint;

constexpr std::size_t kMaxColumns = 32;
constexpr std::size_t kMaxRows = 512;

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> parts;
  while (parts.size() < kMaxColumns) {
    const std::size_t end = line.find('\t');
    parts.push_back(line.substr(0, end));
    if (end == std::string_view::npos) break;
    line.remove_prefix(end + 1);
  }
  return parts;
}

std::string quoted(std::string_view name) {
  std::string out = "\"";
  for (const char c : name) {
    if (c == '\0') break;
    out += c;
    if (c == '"') out += c;
  }
  return out + "\"";
}

// A statement, run for each row; null where SQLite refuses it.
struct Insert {
  sqlite3_stmt* statement = nullptr;
  ~Insert() { sqlite3_finalize(statement); }
  Insert() = default;
  Insert(const Insert&) = delete;
  Insert& operator=(const Insert&) = delete;

  void prepare(sqlite3* database, std::string_view table, std::size_t columns) {
    sqlite3_finalize(statement);
    statement = nullptr;
    std::string sql = "INSERT INTO " + quoted(table) + " VALUES(?";
    for (std::size_t i = 1; i < columns; ++i) sql += ",?";
    sqlite3_prepare_v2(database, (sql + ")").c_str(), -1, &statement, nullptr);
  }
  void run(const std::vector<std::string_view>& values) const {
    if (statement == nullptr) return;
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    for (int i = 0; i < static_cast<int>(values.size()); ++i) {
      const std::string_view value = values[static_cast<std::size_t>(i)];
      const char* const end = value.data() + value.size();
      std::int64_t integer = 0;
      double number = 0;
      if (value.empty()) continue;
      if (const auto [at, error] = std::from_chars(value.data(), end, integer); error == std::errc() && at == end)
        sqlite3_bind_int64(statement, i + 1, integer);
      else if (const auto [at2, error2] = std::from_chars(value.data(), end, number); error2 == std::errc() && at2 == end)
        sqlite3_bind_double(statement, i + 1, number);
      else
        sqlite3_bind_text(statement, i + 1, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
    }
    sqlite3_step(statement);
  }
};

// The database file that the text describes.
std::string build(std::string_view text) {
  sqlite3* database = nullptr;
  CGLINT_CHECK(sqlite3_open(":memory:", &database) == SQLITE_OK);
  sqlite3_exec(database, "PRAGMA page_size=1024; BEGIN", nullptr, nullptr, nullptr);
  {
    Insert insert;
    for (std::size_t row = 0; row < kMaxRows && !text.empty(); ++row) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (!line.starts_with('=')) {
        insert.run(split(line));
        continue;
      }
      const std::vector<std::string_view> parts = split(line.substr(1));
      insert.prepare(database, "", 0);  // a prepared statement would keep the table
      std::string sql = "DROP TABLE IF EXISTS " + quoted(parts[0]) + "; CREATE TABLE " + quoted(parts[0]) + "(";
      for (std::size_t i = 1; i < parts.size(); ++i) sql.append(i == 1 ? "" : ",").append(quoted(parts[i]));
      sqlite3_exec(database, (sql + ")").c_str(), nullptr, nullptr, nullptr);
      insert.prepare(database, parts[0], parts.size() - 1);
    }
  }
  sqlite3_exec(database, "COMMIT", nullptr, nullptr, nullptr);
  sqlite3_int64 size = 0;
  unsigned char* const bytes = sqlite3_serialize(database, "main", &size, 0);
  std::string file;
  if (bytes != nullptr) file.assign(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  sqlite3_free(bytes);
  sqlite3_close(database);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const import::Importer* const importer = [] {
    for (const auto& one : import::all_importers())
      if (one->name() == "nsys-sqlite") return one.get();
    return static_cast<import::Importer*>(nullptr);
  }();
  CGLINT_CHECK(importer != nullptr);
  const std::string file = build({reinterpret_cast<const char*>(data), size});
  const import::ReadOptions options;
  auto source = import::Source::from_memory(file, "fuzz", options.limits);
  const auto recording = importer->read(*source, options);
  if (!recording) {
    CGLINT_CHECK(!recording.error().message.empty());
    return 0;
  }
  for (const auto& graph : recording->graphs)
    if (graph != nullptr) CGLINT_CHECK(ir::verify(*graph).has_value());
  return 0;
}
