/* Writes a CUDA graph that a program holds to a cglint capture file, without a recorder in the process. C and C++.
 *
 *   char problem[256];
 *   if (cglint_capture(graph, "decode.cgl.jsonl", "decode_8", problem, sizeof problem) != CGLINT_OK) fprintf(stderr, "%s\n", problem);
 *
 * Link libcglint_capture.so, or load it at run time. It links neither the CUDA driver nor the runtime: the driver that the process
 * has loaded is used (libcuda.so.1 is opened where there is none). No CUDA header is needed.
 *
 * The file tells what the driver knows of a graph: nodes in creation order, edges, kernel names, launch configurations and arguments,
 * copies, memsets, child graphs. It does not tell what only a recorder sees while the graph is made (cglint record): capture
 * streams, events, source lines, memory; nor the bodies of conditional nodes. Rules that need them say "not checked". */
#ifndef CGLINT_CAPTURE_H
#define CGLINT_CAPTURE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUgraph_st; /* cudaGraph_t and CUgraph are both pointers to it */

enum {
  CGLINT_OK = 0,
  CGLINT_BAD_ARGUMENT = 1,  /* a null graph or path */
  CGLINT_NO_DRIVER = 2,     /* no CUDA driver, or one that is too old (before 12.3) */
  CGLINT_UNREADABLE = 3,    /* the driver refused to tell the graph's nodes; no file is left */
  CGLINT_CANNOT_WRITE = 4,  /* the file exists, or cannot be written; a file that was begun is removed */
  CGLINT_OUT_OF_MEMORY = 5
};

/* Reads `graph` and writes it to `path`, a new file (an existing one is never replaced) that ends in .cgl.jsonl by convention;
 * missing folders are made. `name`, UTF-8, names the graph in reports; null: "graph_0".
 *
 * The graph stays the caller's and is not changed. It must not be changed or destroyed, and must not be one that is still being
 * captured, during the call. The driver is asked only; a context should be current, as it is where the graph was made. Asking for the
 * parameters of a kernel may load it. Safe to call from several threads for different graphs.
 *
 * Returns CGLINT_OK or one of the codes above. `problem`, null or `problem_size` bytes: gets one line that says what went wrong, cut
 * to fit and ended by a zero byte; the empty string where nothing did. */
int cglint_capture(struct CUgraph_st* graph, const char* path, const char* name, char* problem, size_t problem_size);

/* The release of the library, "0.1.0"; static. */
const char* cglint_capture_version(void);

#ifdef __cplusplus
}
#endif

#endif
