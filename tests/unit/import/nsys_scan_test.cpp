// Big tables are read in ranges of row ids, by threads: against the same rows by one query.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <random>

#include "support/nsys_table_text.h"
#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;

class Writer {
 public:
  explicit Writer(const std::string& path) { EXPECT_EQ(sqlite3_open(path.c_str(), &handle_), SQLITE_OK); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { sqlite3_close(handle_); }
  void run(const std::string& sql) {
    char* message = nullptr;
    EXPECT_EQ(sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << sql << ": " << (message != nullptr ? message : "");
    sqlite3_free(message);
  }

 private:
  sqlite3* handle_ = nullptr;
};

const std::vector<std::string_view> kWanted = {"a", "none", "c", "b"};

nsys::ScanOptions scan_of(unsigned threads, std::int64_t ids_per_range, std::size_t rows_per_batch) {
  nsys::ScanOptions options;
  options.threads = threads;
  options.ids_per_range = ids_per_range;
  options.rows_per_batch = rows_per_batch;
  return options;
}

// Columns a, b and c of table t (`none` is missing), read in many ways. Gives what one query gives.
std::string expect_all_ways_equal(const std::string& path, std::string_view where = {}) {
  const std::string bytes = read_bytes(path), expected = table_text(path, true, nullptr, "t", kWanted, where);
  for (const unsigned threads : {1U, 2U, 5U}) {
    for (const std::int64_t ids : {std::int64_t{1}, std::int64_t{90}, std::int64_t{100'000}}) {
      for (const std::size_t rows : {std::size_t{1}, std::size_t{64}, std::size_t{5000}}) {
        const nsys::ScanOptions options = scan_of(threads, ids, rows);
        EXPECT_EQ(table_text(path, true, &options, "t", kWanted, where), expected) << threads << " " << ids << " " << rows;
        EXPECT_EQ(table_text(bytes, false, &options, "t", kWanted, where), expected) << "in memory: " << threads << " " << ids << " " << rows;
      }
    }
  }
  return expected;
}

constexpr std::string_view kTable = "CREATE TABLE t (x INTEGER, a INTEGER, b INTEGER, y TEXT, c INTEGER)";

// Mostly integers; what else a damaged export may hold reads as SQLite converts it.
std::string random_row(std::mt19937& random) {
  const auto value = [&]() -> std::string {
    switch (random() % 12) {
      case 0: return "NULL";
      case 1: return "'12 apples'";
      case 2: return "x'3132'";
      case 3: return "-2.75e3";
      case 4: return "9223372036854775807";
      case 5: return "-9223372036854775808";
      default: return std::to_string(static_cast<int>(random() % 2000) - 1000);
    }
  };
  return fmt::format("({}, {}, {}, {}, {})", value(), value(), value(), random() % 50 == 0 ? "hex(zeroblob(3000))" : "'unread'", value());
}

std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(NsysScan, TheSameRowsForAnyThreadsRangesAndBatches) {
  std::mt19937 random(1);
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  {
    Writer writer(path);
    writer.run(fmt::format("PRAGMA page_size=1024; BEGIN; {}", kTable));
    for (int i = 0; i < 1500; ++i) writer.run("INSERT INTO t VALUES " + random_row(random));
    writer.run("DELETE FROM t WHERE rowid % 3 = 1 OR rowid BETWEEN 300 AND 700; COMMIT");
  }
  EXPECT_GT(lines(expect_all_ways_equal(path)), 500);
  EXPECT_GT(lines(expect_all_ways_equal(path, "\"a\" IN (12, -5, 100) OR \"b\" > 500")), 50);
  EXPECT_EQ(expect_all_ways_equal(path, "\"a\" = 5555"), "");
}

TEST(NsysScan, RowIdsFarApart) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  Writer(path).run(std::string(kTable) + "; INSERT INTO t (rowid, a) VALUES (-9223372036854775808, 1), (-1, 2), (0, 3), (1, 4), "
                                         "(9223372036854775807, 5), (4611686018427387904, 6)");
  EXPECT_EQ(expect_all_ways_equal(path), "1 - - - \n2 - - - \n3 - - - \n4 - - - \n6 - - - \n5 - - - \n");
}

TEST(NsysScan, TablesOfOtherKinds) {
  const std::vector<std::string> made = {
      "CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER, c INTEGER); INSERT INTO t VALUES (500, 6, 7), (1, 2, 3)",
      "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (b, a)) WITHOUT ROWID; INSERT INTO t VALUES (5, 6, 7), (1, 2, 3)",
      "CREATE TABLE t (a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1) VIRTUAL, c INTEGER GENERATED ALWAYS AS (a + 2) STORED); "
      "INSERT INTO t VALUES (5), (1)",
      "PRAGMA encoding='UTF-16le'; CREATE TABLE t (a INTEGER, b TEXT, c INTEGER); INSERT INTO t VALUES (5, '6', 7), (1, 2, 3)",
      "CREATE TABLE t (a INTEGER, b INTEGER); INSERT INTO t VALUES (5, 6), (1, 2); ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 9",
      "CREATE TABLE t (a INTEGER, _RowId_ INTEGER, b INTEGER, c INTEGER); INSERT INTO t VALUES (1, 9, 2, 3), (4, 8, 5, 6)",
      "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER); INSERT INTO t VALUES (5, 6, 7), (1, 2, 3); CREATE INDEX i ON t (a, b, c)"};
  for (const std::string& sql : made) {
    SCOPED_TRACE(sql);
    TemporaryFolder folder;
    const std::string path = folder.path() + "/a.sqlite";
    Writer(path).run(sql);
    EXPECT_EQ(lines(expect_all_ways_equal(path)), 2);
  }
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  Writer(path).run(std::string(kTable));
  EXPECT_EQ(expect_all_ways_equal(path), "");
}

// Whatever is damaged: every way of reading gives the same as every other. Where one query gives all rows, they give these, or say that they
// cannot be read in order; no row is left out in silence.
TEST(NsysScan, DamageIsNeverReadInSilence) {
  std::mt19937 random(3);
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  {
    Writer writer(path);
    writer.run(fmt::format("PRAGMA page_size=512; BEGIN; {}", kTable));
    for (int i = 0; i < 400; ++i) writer.run(fmt::format("INSERT INTO t VALUES ({0}, {0}, 5, NULL, 7)", i));
    writer.run("COMMIT");
  }
  const std::string bytes = read_bytes(path);
  const nsys::ScanOptions here = scan_of(1, 40, 16), threads = scan_of(3, 40, 16);
  int errors = 0, whole = 0, disordered = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string broken = bytes;
    const std::size_t changes = 1 + random() % 3;
    for (std::size_t i = 0; i < changes; ++i) {
      // Often where pages are described: their first bytes, and the cell pointers behind them.
      const std::size_t page = random() % (broken.size() / 512), at = page * 512 + (random() % 2 == 0 ? random() % 24 : random() % 512);
      broken[at] = static_cast<char>(random() % 3 == 0 ? random() : static_cast<unsigned char>(broken[at]) ^ (std::size_t{1} << random() % 8));
    }
    const std::string expected = table_text(broken, false, nullptr, "t", kWanted), ours = table_text(broken, false, &here, "t", kWanted);
    ASSERT_EQ(table_text(broken, false, &threads, "t", kWanted), ours) << "round " << round;
    errors += ours.find("error") != std::string::npos ? 1 : 0;
    whole += ours == expected ? 1 : 0;
    disordered += ours.find("not in the order of their ids") != std::string::npos ? 1 : 0;
    if (ours.find("error") == std::string::npos) {
      ASSERT_EQ(ours, expected) << "round " << round;
    }
  }
  EXPECT_GT(errors, 200);
  EXPECT_GT(whole, 200);
  EXPECT_GT(disordered, 20);
}

// One thread's rows are not waited for when the reading ends with an error.
TEST(NsysScan, EndsWhereTheReceiverEnds) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  {
    Writer writer(path);
    writer.run(fmt::format("BEGIN; {}", kTable));
    for (int i = 0; i < 3000; ++i) writer.run(fmt::format("INSERT INTO t (a) VALUES ({})", i));
    writer.run("COMMIT");
  }
  for (const unsigned threads : {1U, 3U}) {
    const Limits limits;
    auto source = Source::open(path, limits);
    ASSERT_TRUE(source);
    auto database = nsys::Database::open(**source, limits);
    ASSERT_TRUE(database);
    const nsys::Columns columns("t", *(*database)->columns("t"), {"a"});
    nsys::TableScan scan(**database, columns, "", scan_of(threads, 50, 8));
    std::int64_t rows = 0;
    const auto done = scan.each_row([&](const nsys::IntegerRow& row) -> base::Result<void> {
      EXPECT_EQ(row.integer(0), rows);
      if (++rows == 100) return base::make_error(base::ErrorCode::limit, "enough");
      return {};
    });
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().message, "enough");
    EXPECT_EQ(rows, 100);
  }
}

// Pages that lead back to themselves would give rows without end.
TEST(NsysScan, ATreeWithACircleIsAnError) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/a.sqlite";
  {
    Writer writer(path);
    writer.run(fmt::format("PRAGMA page_size=512; BEGIN; {}", kTable));
    for (int i = 0; i < 3000; ++i) writer.run(fmt::format("INSERT INTO t VALUES ({0}, {0}, {0}, NULL, {0})", i));
    writer.run("COMMIT");
  }
  std::string bytes = read_bytes(path);
  // Every child of every interior page becomes the same leaf, which is far more rows than the file has; SQLite alone would read them all.
  std::size_t leaf = 0;
  for (std::size_t page = 1; page < bytes.size() / 512; ++page)
    if (bytes[page * 512] == 13 && leaf == 0) leaf = page + 1;
  ASSERT_NE(leaf, 0U);
  const auto byte = [&](std::size_t at) { return std::size_t{static_cast<unsigned char>(bytes[at])}; };
  const auto be16 = [&](std::size_t at) { return (byte(at) << 8) | byte(at + 1); };
  const std::size_t root = 512;  // page 2, the first table's
  ASSERT_EQ(bytes[root], 5);
  const auto point = [&](std::size_t at, std::size_t target) {
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(target >> (24 - 8 * i));
  };
  // Many levels of interior pages that all lead to the next: each doubles the rows.
  std::vector<std::size_t> interior;
  for (std::size_t page = 2; page < bytes.size() / 512 && interior.size() < 17; ++page)
    if (page + 1 != leaf && bytes[page * 512] == 13) interior.push_back(page * 512);
  ASSERT_EQ(interior.size(), 17U);
  std::size_t above = root;
  for (const std::size_t at : interior) {
    bytes.replace(at, 512, bytes.substr(root, 512));
    for (std::size_t i = 0; i < be16(above + 3); ++i) point(above + be16(above + 12 + 2 * i), at / 512 + 1);
    point(above + 8, at / 512 + 1);
    above = at;
  }
  for (std::size_t i = 0; i < be16(above + 3); ++i) point(above + be16(above + 12 + 2 * i), leaf);
  point(above + 8, leaf);
  const nsys::ScanOptions here = scan_of(1, 100, 64), threads = scan_of(3, 100, 64);
  for (const nsys::ScanOptions* const scan : {static_cast<const nsys::ScanOptions*>(nullptr), &here, &threads}) {
    // Rows that go on, and a search for one that never comes.
    for (const std::string_view where : {"", "a + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 = -1"}) {
      const std::string text = table_text(bytes, false, scan, "t", {"a"}, where);
      EXPECT_TRUE(text.find("lead back to themselves") != std::string::npos ||
                  (scan != nullptr && text.find("order of their ids") != std::string::npos))
          << text.substr(text.size() - std::min<std::size_t>(text.size(), 200));
    }
  }
}

}  // namespace
}  // namespace cglint::import
