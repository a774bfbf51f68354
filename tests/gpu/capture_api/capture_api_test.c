/* The C interface, from C, with a played driver. usage: capture_api_test FOLDER (empty; what it writes there is linted afterwards) */
#include <cglint/capture.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUgraph_st* played_graph(int layers, int side_first);

static void check(int good, const char* what, const char* problem) {
  if (good) return;
  fprintf(stderr, "FAILED: %s: %s\n", what, problem);
  exit(1);
}

int main(int argc, char** argv) {
  char problem[128], path[4096], small[8];
  struct CUgraph_st* const graph = played_graph(6, 1);
  if (argc != 2) return 2;
  snprintf(path, sizeof path, "%s/deeper/side_first.cgl.jsonl", argv[1]);
  check(cglint_capture(NULL, path, NULL, problem, sizeof problem) == CGLINT_BAD_ARGUMENT && strstr(problem, "graph") != NULL, "no graph", problem);
  check(cglint_capture(graph, NULL, NULL, problem, sizeof problem) == CGLINT_BAD_ARGUMENT && strstr(problem, "path") != NULL, "no path", problem);
  check(cglint_capture(graph, "", NULL, NULL, 0) == CGLINT_BAD_ARGUMENT, "an empty path, and nobody to tell", "");
  check(cglint_capture((struct CUgraph_st*)&problem, path, NULL, problem, sizeof problem) == CGLINT_UNREADABLE && strstr(problem, "cuGraphGetNodes") != NULL,
        "not a graph", problem);
  check(access(path, F_OK) != 0, "no file is left", path);
  check(cglint_capture(graph, path, "decode \"8\"", problem, sizeof problem) == CGLINT_OK && problem[0] == '\0', "a good graph", problem);
  check(access(path, R_OK) == 0, "the file", path);
  memset(small, 'x', sizeof small);
  check(cglint_capture(graph, path, NULL, small, sizeof small - 1) == CGLINT_CANNOT_WRITE && strlen(small) == sizeof small - 2 && small[sizeof small - 1] == 'x',
        "a file that exists is not replaced", small);
  check(cglint_capture(graph, "/proc/none/a.cgl.jsonl", NULL, problem, sizeof problem) == CGLINT_CANNOT_WRITE && strstr(problem, "/proc/none") != NULL,
        "a folder that cannot be", problem);
  check(cglint_capture(graph, "/dev/full/a", NULL, problem, sizeof problem) == CGLINT_CANNOT_WRITE, "not a folder", problem);
  snprintf(path, sizeof path, "%s/main_first.cgl.jsonl", argv[1]);
  check(cglint_capture(played_graph(6, 0), path, NULL, problem, sizeof problem) == CGLINT_OK, "another graph", problem);
  check(strcmp(cglint_capture_version(), CGLINT_VERSION) == 0, "the version", cglint_capture_version());
  return 0;
}
