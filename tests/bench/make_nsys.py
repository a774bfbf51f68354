#!/usr/bin/env python3
"""Writes an Nsight Systems SQLite export of any size (schema 3.24, node mode) for the benchmarks.

    make_nsys.py OUT.sqlite SIZE_MB [mixed|kernels|eager]

mixed: per graph launch of 300 kernels there are 2400 runtime calls and 1200 NVTX ranges; host events fill most of such reports.
kernels: the launch calls and the kernels alone, the most operations that a file of a size can hold.
eager: kernels alone that no graph launched, each with a correlation of its own, on two streams that are written one after the other.
"""
import os
import sqlite3
import sys

BYTES_PER_LAUNCH = {"mixed": 176_000, "kernels": 24_100, "eager": 23_400}  # measured


def main():
    path, size = sys.argv[1], int(sys.argv[2]) << 20
    mix = sys.argv[3] if len(sys.argv) > 3 else "mixed"
    calls, ranges = {"mixed": (2400, 1200), "kernels": (1, 0), "eager": (0, 0)}[mix]
    if os.path.exists(path):
        os.remove(path)
    launches = max(1, size // BYTES_PER_LAUNCH[mix])
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript("""
PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA page_size=4096; PRAGMA cache_size=-65536;
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.24.0');
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 132, 9, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
 demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
 registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
 blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
 dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
 gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER,
 graphId INTEGER, clusterX INTEGER, clusterY INTEGER, clusterZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
 globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
 globalTid INTEGER, nameId INTEGER NOT NULL, graphNodeId INTEGER NOT NULL, originalGraphNodeId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
 color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
""")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {}) "
    pid, tid = 0x1234 << 24, (0x1234 << 24) | 0x77
    node = 9 << 32
    db.execute("BEGIN")
    db.execute(numbers.format(600) + "INSERT INTO StringIds SELECT i + 100, 'void bench::kernel_' || i || '<float, ' || (i % 7) || '>(float*)' FROM n")
    db.execute("INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000'), (2, 'cudaEventRecord_v3020'), (3, 'Graph Node Creation')")
    db.execute(numbers.format(300) + f"INSERT INTO CUDA_GRAPH_NODE_EVENTS SELECT 1000 + 10 * i, 1001 + 10 * i, 90, {tid}, 3, {node} + i + 1, NULL FROM n")
    correlation, graph_node, graph = ("1000 + i", "NULL", "NULL") if mix == "eager" else ("1000 + i / 300", f"{node} + i % 300 + 1", "9")
    # Eager: every other run of eight kernels is on stream 20 and starts when the run before it does.
    start = "10000000 + 3000 * (i - CASE WHEN i / 8 % 2 = 1 THEN 8 ELSE 0 END)" if mix == "eager" else "10000000 + 3000 * i"
    stream = "CASE WHEN i / 8 % 2 = 1 THEN 20 ELSE 7 END" if mix == "eager" else "CASE WHEN i % 19 = 3 THEN 20 ELSE 7 END"
    db.execute(numbers.format(300 * launches) +
               f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT {start}, {start} + 2400, 0, 1, NULL, {stream},"
               f" {correlation}, {pid}, 100 + i % 300, 100 + i % 300, 100 + i % 300, NULL, NULL, 64, 1 + i % 32, 8, 1, 128, 1, 1, 1024, 0, 0, 0, i, 0,"
               f" {graph_node}, NULL, {graph}, 0, 0, 0 FROM n")
    if calls:
        db.execute(numbers.format(calls * launches) +
                   f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 9900000 + {900000 // calls} * i, 9900300 + {900000 // calls} * i, 0, {tid},"
                   f" CASE WHEN i % {calls} = 0 THEN 1000 + i / {calls} ELSE 1000000000 + i END, CASE WHEN i % {calls} = 0 THEN 1 ELSE 2 END, 0, NULL FROM n")
    if ranges:
        db.execute(numbers.format(ranges * launches) +
                   f"INSERT INTO NVTX_EVENTS SELECT 750 * i, 750 * i + 700, 59, NULL, NULL, NULL, 'model.layers.' || (i % 61), {tid}, NULL, NULL, 0 FROM n")
    db.execute("COMMIT")
    db.close()
    print(f"{launches} launches, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
