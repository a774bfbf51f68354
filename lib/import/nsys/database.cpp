#include "import/nsys/database.h"

#include <fmt/format.h>

#include <algorithm>

namespace cglint::import::nsys {
namespace {

using base::ErrorCode;
using base::make_error;

std::string uri_of(std::string_view path) {
  std::string uri = "file:";
  for (const char c : path) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' || c == '.' || c == '-' ||
        c == '_') {
      uri += c;
    } else {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return uri + "?mode=ro&immutable=1";
}

}  // namespace

base::Result<bool> Rows::next() {
  const int status = sqlite3_step(statement_);
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) return false;
  return database_->error("reading rows");
}

std::string_view Rows::text(int column) const {
  const unsigned char* const bytes = sqlite3_column_text(statement_, column);
  if (bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

base::Error Database::error(std::string_view doing) const {
  return make_error(sqlite3_errcode(handle_) == SQLITE_TOOBIG ? ErrorCode::limit : ErrorCode::malformed,
                    fmt::format("the database cannot be read ({}): {}", doing, sqlite3_errmsg(handle_)));
}

base::Result<std::unique_ptr<Database>> Database::open(Source& source, const Limits& limits) {
  std::unique_ptr<Database> database(new Database());
  CGLINT_TRY(source.peek());
  const std::string path = source.plain_path();
  const std::string uri = path.empty() ? ":memory:" : uri_of(path);
  const int flags = path.empty() ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY : SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
  if (sqlite3_open_v2(uri.c_str(), &database->handle_, flags | SQLITE_OPEN_NOMUTEX, nullptr) != SQLITE_OK)
    return database->error("opening");
  if (path.empty()) {
    auto bytes = source.read_all();
    if (!bytes) return std::move(bytes).error();
    database->bytes_ = *std::move(bytes);
    if (sqlite3_deserialize(database->handle_, "main", reinterpret_cast<unsigned char*>(database->bytes_.data()),
                            static_cast<sqlite3_int64>(database->bytes_.size()),
                            static_cast<sqlite3_int64>(database->bytes_.size()), SQLITE_DESERIALIZE_READONLY) != SQLITE_OK)
      return database->error("opening");
  }
  sqlite3* const handle = database->handle_;
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, static_cast<int>(std::min<std::uint64_t>(limits.max_string_bytes, 1u << 30)));
  for (const char* const pragma : {"PRAGMA cell_size_check=ON", "PRAGMA mmap_size=0", "PRAGMA query_only=ON"})
    sqlite3_exec(handle, pragma, nullptr, nullptr, nullptr);
  auto probe = database->query("SELECT count(*) FROM sqlite_master");
  if (!probe) return std::move(probe).error();
  CGLINT_TRY(probe->next());
  return database;
}

base::Result<Rows> Database::query(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(handle_, sql.c_str(), static_cast<int>(sql.size()), &statement, nullptr) != SQLITE_OK)
    return error("preparing a query");
  return Rows(*this, statement);
}

base::Result<std::vector<std::string>> Database::columns(std::string_view table) {
  std::vector<std::string> names;
  auto kind = query(fmt::format("SELECT 1 FROM sqlite_master WHERE type='table' AND name='{}' AND rootpage > 0", table));
  if (!kind) return std::move(kind).error();
  auto found = kind->next();
  if (!found) return std::move(found).error();
  if (!*found) return names;
  CGLINT_TRY(each_row(fmt::format("PRAGMA table_info(\"{}\")", table), [&](const Rows& row) -> base::Result<void> {
    names.emplace_back(row.text(1));
    return {};
  }));
  return names;
}

}  // namespace cglint::import::nsys
