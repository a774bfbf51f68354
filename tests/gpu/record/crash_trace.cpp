// Preloaded (LD_PRELOAD) into a program that is tried: where it crashes, stderr tells the signal, the address, the call
// stack and where each library was mapped. The signal then takes its course. Where it is injected (CUDA_INJECTION64_PATH)
// it does nothing but be there.
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

void say_number(std::uint64_t value, unsigned base) {
  char digits[24];
  std::size_t at = sizeof digits;
  digits[--at] = '\0';
  do {
    digits[--at] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  say(digits + at);
}

// Mappings of code only: enough to find a frame's library and offset.
void say_maps() {
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char line[1024];
  std::size_t length = 0;
  char block[4096];
  for (ssize_t count = read(file, block, sizeof block); count > 0; count = read(file, block, sizeof block)) {
    for (ssize_t i = 0; i < count; ++i) {
      if (length + 2 < sizeof line) line[length++] = block[i];
      if (block[i] != '\n') continue;
      line[length] = '\0';
      if (std::strstr(line, " r-xp ") != nullptr) say("crash map: "), say(line);
      length = 0;
    }
  }
  close(file);
}

void on_crash(int number, siginfo_t* info, void*) {
  say("crash: signal ");
  say_number(static_cast<std::uint64_t>(number), 10);
  say(" address 0x");
  say_number(reinterpret_cast<std::uintptr_t>(info->si_addr), 16);
  say(" thread ");
  say_number(static_cast<std::uint64_t>(gettid()), 10);
  say(getpid() == gettid() ? " (the first)\n" : "\n");
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  say_maps();
  raise(number);  // SA_RESETHAND: as it would have been
}

__attribute__((constructor)) void watch() {
  void* frames[2];
  backtrace(frames, 2);  // loads the unwinder now
  struct sigaction action = {};
  action.sa_sigaction = on_crash;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_NODEFER);
  for (const int number : kSignals) sigaction(number, &action, nullptr);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  return 1;
}
