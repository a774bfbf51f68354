// The command line of the programs with planted defects: CASE bad|good, or --list for one "CASE CODE" a line.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>

struct Case {
  const char* name;
  const char* code;  // of the rule that reports it
  void (*run)(bool bad);
};

template <std::size_t kCount>
int run_case(const char* program, const Case (&cases)[kCount], int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Case& each : cases) std::printf("%s %s\n", each.name, each.code);
    return 0;
  }
  for (const Case& each : cases) {
    if (argc != 3 || std::strcmp(argv[1], each.name) != 0) continue;
    each.run(std::strcmp(argv[2], "bad") == 0);
    return 0;
  }
  std::fprintf(stderr, "usage: %s CASE bad|good, or %s --list\n", program, program);
  return 2;
}
