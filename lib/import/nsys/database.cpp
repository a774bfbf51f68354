#include "import/nsys/database.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace cglint::import::nsys {
namespace {

using base::ErrorCode;
using base::make_error;

constexpr std::uint64_t kLeastRowBytes = 6;  // of a table's row in the file: a cell and the pointer to it
// A row of six bytes takes a few steps for itself and one or two for each of at most twenty columns.
constexpr std::uint64_t kMostStepsPerByte = 64, kMostOtherSteps = 50'000'000, kStepsPerCall = 1'000'000;
constexpr std::uint64_t kWalHeaderBytes = 32;

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

// SQLite reads pages that are not there as empty. The header tells how many there are, unless a program that does not keep that number
// changed the database last.
base::Result<void> check_length(std::string_view header, std::uint64_t bytes) {
  constexpr std::size_t kHeaderBytes = 100, kPageBytesAt = 16, kChangesAt = 24, kPagesAt = 28, kPagesValidForAt = 92;
  if (header.size() < kHeaderBytes || !header.starts_with(std::string_view("SQLite format 3\0", 16))) return {};  // SQLite's to refuse
  const auto number = [&](std::size_t at, std::size_t size) {
    std::uint64_t value = 0;
    for (const char byte : header.substr(at, size)) value = value << 8 | static_cast<unsigned char>(byte);
    return value;
  };
  std::uint64_t page_bytes = number(kPageBytesAt, 2);
  if (page_bytes == 1) page_bytes = 65536;
  if (page_bytes == 0) return {};
  const std::uint64_t pages = number(kChangesAt, 4) == number(kPagesValidForAt, 4) ? number(kPagesAt, 4) : 0;
  if (pages != 0 && bytes < pages * page_bytes)
    return make_error(ErrorCode::malformed, fmt::format("the database is cut short: {} bytes of {}", bytes, pages * page_bytes), bytes);
  if (pages == 0 && bytes % page_bytes != 0)
    return make_error(ErrorCode::malformed,
                      fmt::format("the database is cut short: {} bytes are no whole number of pages of {} bytes", bytes, page_bytes),
                      bytes);
  return {};
}

}  // namespace

base::Result<void> check_files_beside(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);  // as SQLite names them
  if (failed) return {};                               // opening it gives the error
  const std::string wal = real.string() + "-wal", journal = real.string() + "-journal";
  // A log without frames is a header alone, and a journal that was used up begins with a zero.
  if (const std::uint64_t bytes = fs::file_size(wal, failed); !failed && bytes > kWalHeaderBytes)
    return make_error(ErrorCode::malformed,
                      fmt::format("the database is not whole: {} holds {} that it lacks, since another program still writes it or was "
                                  "stopped. Wait for its end or export again; to take over what was written: sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'",
                                  wal, base::count_of(bytes, "byte")));
  std::ifstream file(journal, std::ios::binary);
  if (const int first = file.get(); file && first != 0)
    return make_error(ErrorCode::malformed,
                      fmt::format("the database is not whole: {} tells of a change that has not ended, since another program still writes "
                                  "it or was stopped. Wait for its end or export again; to take the change back: sqlite3 FILE 'PRAGMA user_version'",
                                  journal));
  return {};
}

std::string Columns::select(std::string_view where) const {
  std::string sql = "SELECT ";
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (i != 0) sql += ", ";
    if (has(wanted_[i])) {
      sql += fmt::format("\"{}\"", wanted_[i]);
    } else {
      sql += "NULL";
    }
  }
  sql += fmt::format(" FROM \"{}\" NOT INDEXED", table_);
  if (!where.empty()) sql += fmt::format(" WHERE {}", where);
  return sql;
}

base::Result<bool> Rows::next() {
  const int status = sqlite3_step(statement_);
  if (status == SQLITE_ROW) {
    if (++count_ <= database_->max_rows_) return true;
    return Database::circle_error();
  }
  if (status == SQLITE_INTERRUPT) return Database::circle_error();
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

base::Error Database::circle_error() {
  return make_error(ErrorCode::malformed,
                    "the database cannot be read (reading rows): a table has more rows than fit the file, so its pages lead back to themselves");
}

Database::Identity Database::identity_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino), static_cast<std::uint64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec), static_cast<std::int64_t>(status.st_mtim.tv_nsec)};
}

base::Result<std::unique_ptr<Database>> Database::open(Source& source, const Limits& limits) {
  std::unique_ptr<Database> database(new Database());
  auto peeked = source.peek();
  if (!peeked) return std::move(peeked).error();
  const std::string header(peeked->substr(0, 100));
  database->path_ = source.plain_path();
  database->max_string_bytes_ = limits.max_string_bytes;
  if (database->path_.empty()) {
    auto bytes = source.read_all();
    if (!bytes) return std::move(bytes).error();
    database->owned_ = *std::move(bytes);
    // In bytes 18 and 19 the file says whether it was used with a write-ahead log (2). SQLite opens no such image from memory; there
    // is no log to look at here.
    for (const std::size_t at : {std::size_t{18}, std::size_t{19}})
      if (at < database->owned_.size() && database->owned_[at] == 2) database->owned_[at] = 1;
    database->bytes_ = database->owned_;
    CGLINT_TRY(check_length(header, database->bytes_.size()));
  } else {
    CGLINT_TRY(check_files_beside(database->path_));
    database->identity_ = identity_of(database->path_);
    CGLINT_TRY(check_length(header, database->identity_.bytes));
  }
  CGLINT_TRY(database->connect());
  return database;
}

base::Result<std::unique_ptr<Database>> Database::connect_again() const {
  std::unique_ptr<Database> database(new Database());
  database->path_ = path_;
  database->bytes_ = bytes_;
  database->max_string_bytes_ = max_string_bytes_;
  CGLINT_TRY(database->connect());
  if (!path_.empty() && identity_of(path_) != identity_) return make_error(ErrorCode::malformed, "the file was changed while it was read");
  return database;
}

base::Result<void> Database::connect() {
  const std::string uri = path_.empty() ? ":memory:" : uri_of(path_);
  const int flags = path_.empty() ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY : SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
  if (sqlite3_open_v2(uri.c_str(), &handle_, flags | SQLITE_OPEN_NOMUTEX, nullptr) != SQLITE_OK) return error("opening");
  if (path_.empty()) {
    // Read only: SQLite does not write to the bytes.
    auto* const bytes = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes_.data()));
    const auto size = static_cast<sqlite3_int64>(bytes_.size());
    if (sqlite3_deserialize(handle_, "main", bytes, size, size, SQLITE_DESERIALIZE_READONLY) != SQLITE_OK) return error("opening");
  }
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, static_cast<int>(std::min<std::uint64_t>(max_string_bytes_, 1u << 30)));
  for (const char* const pragma : {"PRAGMA cache_size=-128", "PRAGMA cell_size_check=ON", "PRAGMA mmap_size=0", "PRAGMA query_only=ON"})
    sqlite3_exec(handle_, pragma, nullptr, nullptr, nullptr);
  auto probe = query("SELECT count(*) FROM sqlite_master");
  if (!probe) return std::move(probe).error();
  CGLINT_TRY(probe->next());
  auto pages = query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size");
  if (!pages) return std::move(pages).error();
  CGLINT_TRY(pages->next());
  const auto bytes = static_cast<std::uint64_t>(pages->integer(0));
  max_rows_ = bytes / kLeastRowBytes + kMostOtherRows;
  max_steps_ = bytes * kMostStepsPerByte + kMostOtherSteps;
  sqlite3_progress_handler(
      handle_, static_cast<int>(kStepsPerCall),
      [](void* self) { return (static_cast<Database*>(self)->steps_ += kStepsPerCall) > static_cast<Database*>(self)->max_steps_ ? 1 : 0; }, this);
  return {};
}

base::Result<void> Database::define(const char* name, int arguments, void* self, void (*function)(sqlite3_context*, int, sqlite3_value**)) {
  if (sqlite3_create_function_v2(handle_, name, arguments, SQLITE_UTF8 | SQLITE_DIRECTONLY, self, function, nullptr, nullptr, nullptr) != SQLITE_OK)
    return error("preparing a query");
  return {};
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
