// cglint-record: starts a command with the recorder in it, and lints what was recorded if asked to. Needs no
// CUDA itself: the driver of the command loads the recorder.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int kExitUsage = 2;

constexpr std::string_view kHelp =
    R"(Usage: cglint record [OPTIONS] [--lint [LINT OPTIONS]] -- COMMAND [ARGUMENTS]

Runs a command and records the CUDA graphs that it and the processes it starts instantiate: nodes, edges, kernel
arguments, capture streams, event records and waits, Python source lines, memory. Each process writes its own capture
file, with its process id (and rank) in the name; a graph is in the file when the call that instantiated it returns.

Options:
  -o FILE|DIR          Where to write: a name, before whose suffix the process id goes, or a folder (existing, or
                       with a slash at its end). Default: <program>.<pid>.cgl.jsonl in the current folder
  --replays N          Trace the GPU's work too, and keep the first N launches of each graph (default 0: none).
                       Tracing slows the program down while it runs
  --no-python-stacks   Do not look for Python source lines
  --no-python-helper   Do not put a start-up hook on PYTHONPATH: it tells the state of PyTorch's caching allocator,
                       and notes source lines in code that torch.compile writes
  --no-allocator-history
                       Do not let PyTorch's allocator keep a list of its calls (the newest 50,000, without stacks):
                       memory that changes hands between two looks at the allocator is then not seen
  --no-native-stacks   Do not look for native frames (module, symbol)
  --no-eager           Do not keep kernel launches outside capture
  --detach-after N|Ns  Leave the process after N graph launches, or N seconds after the first capture: CUPTI is shut
                       down (CUDA 12.6 or later), graphs captured later are not recorded
  --flush-signal NAME  On this signal (USR1, USR2 or a number) each process writes what changed since its last
                       graph (frees, launches outside capture), at its next driver call; programs can call
                       cglint_record_flush() instead
  --redact[=names]     Leave out folders, host name and command line; with names, kernel and NVTX names become hashes
  --lint [OPTIONS]     Afterwards run cglint lint, with the options up to --, on the files
  -h, --help           This text

CUPTI allows one tool in a process: torch.profiler, nsys and others in the command do not work beside the recorder.
CGLINT_CUPTI names the CUPTI library to use where none is found.

Exit codes: the command's (128 + n if signal n ended it); with --lint that of cglint lint, if the command did not fail;
2 for wrong usage.
)";

// One line on stderr; returns the exit code for wrong usage.
int complain(const std::string& text) {
  const std::string line = "cglint record: " + text + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  return kExitUsage;
}

std::string own_folder() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return "";
  const std::string_view whole(path.data(), static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/')));
}

std::string absolute(const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  std::array<char, PATH_MAX> folder;
  return getcwd(folder.data(), folder.size()) == nullptr ? path : std::string(folder.data()) + '/' + path;
}

struct Options {
  std::string out;
  bool out_is_folder = false;
  std::uint32_t replays = 0;
  bool python_stacks = true, python_helper = true, native_stacks = true, eager = true, allocator_history = true, lint = false, help = false;
  std::string detach, redact;
  int flush_signal = 0;
  std::vector<char*> lint_options, command;
};

bool parse_number(std::string_view text, std::uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// 0: unknown.
int signal_number(std::string_view name) {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  if (name == "USR1") return SIGUSR1;
  if (name == "USR2") return SIGUSR2;
  std::uint32_t number = 0;
  return parse_number(name, number) && number > 0 && number < 65 ? static_cast<int>(number) : 0;
}

// Returns what is wrong, or "".
std::string parse(int argc, char** argv, Options& options) {
  int i = 1;
  for (; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") break;
    if (options.lint) {
      options.lint_options.push_back(argv[i]);
    } else if (argument == "-h" || argument == "--help") {
      options.help = true;
      return "";
    } else if (argument == "-o" || argument == "--replays" || argument == "--detach-after" ||
               argument == "--flush-signal") {
      if (i + 1 == argc) return std::string(argument) + " needs a value";
      const std::string_view value = argv[++i];
      if (argument == "-o") {
        if (value.empty()) return "-o needs a name";
        options.out = value;
        continue;
      }
      if (argument == "--detach-after") {
        std::uint32_t number = 0;
        const bool is_time = value.ends_with('s');
        if (!parse_number(value.substr(0, value.size() - (is_time ? 1 : 0)), number) || number == 0)
          return "--detach-after needs a number of graph launches, or of seconds (30s), not '" + std::string(value) +
                 "'";
        options.detach = value;
        continue;
      }
      if (argument == "--flush-signal") {
        options.flush_signal = signal_number(value);
        if (options.flush_signal == 0) return "--flush-signal knows no signal '" + std::string(value) + "'";
        continue;
      }
      if (!parse_number(value, options.replays))
        return "--replays needs a number, not '" + std::string(value) + "'";
    } else if (argument == "--no-python-stacks") {
      options.python_stacks = false;
    } else if (argument == "--no-python-helper") {
      options.python_helper = false;
    } else if (argument == "--no-allocator-history") {
      options.allocator_history = false;
    } else if (argument == "--no-native-stacks") {
      options.native_stacks = false;
    } else if (argument == "--no-eager") {
      options.eager = false;
    } else if (argument == "--redact" || argument == "--redact=names") {
      options.redact = argument == "--redact" ? "1" : "names";
    } else if (argument == "--lint") {
      options.lint = true;
    } else if (argument.starts_with('-')) {
      return "unknown option " + std::string(argument);
    } else {
      break;  // the command, without --
    }
  }
  if (i < argc && std::string_view(argv[i]) == "--") ++i;
  for (; i < argc; ++i) options.command.push_back(argv[i]);
  return options.command.empty() ? "no command to run: give it after --" : "";
}

pid_t child = 0;
void pass_on(int signal) {
  if (child > 0) kill(child, signal);
}

// Runs the command, passing signals on. Returns its exit code.
int run(std::vector<char*>& command) {
  child = fork();
  if (child < 0) return complain(std::string("cannot start a process: ") + std::strerror(errno));
  if (child == 0) {
    execvp(command[0], command.data());
    complain(std::string("cannot run ") + command[0] + ": " + std::strerror(errno));
    _exit(127);
  }
  struct sigaction action = {};
  action.sa_handler = pass_on;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    sigaction(signal, &action, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; descriptor >= 0 && (got = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  if (descriptor >= 0) close(descriptor);
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

// Runs cglint lint on the files; returns its exit code.
int lint(const std::string& folder, Options& options, const std::vector<std::string>& files) {
  std::string program = folder + "/cglint", verb = "lint";
  std::vector<char*> arguments{program.data(), verb.data()};
  for (char* option : options.lint_options) arguments.push_back(option);
  for (const std::string& file : files) arguments.push_back(const_cast<char*>(file.c_str()));
  arguments.push_back(nullptr);
  return run(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const std::string problem = parse(argc, argv, options); !problem.empty())
    return complain(problem + " (--help lists the options)");
  if (options.help) {
    [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, kHelp.data(), kHelp.size());
    return 0;
  }
  const std::string folder = own_folder();
  const std::string library = folder + "/libcglint_record.so";
  if (access(library.c_str(), R_OK) != 0)
    return complain("libcglint_record.so is not in " + folder +
                    ", beside this program: a build without the CUDA toolkit has none; with the toolkit it is built by "
                    "'cmake --build BUILD --target cglint_record'");
  if (const char* other = std::getenv("CUDA_INJECTION64_PATH");
      other != nullptr && *other != '\0' && library != other && std::strcmp(other, "none") != 0)
    return complain(std::string("CUDA_INJECTION64_PATH is set already, to ") + other +
                    ": one library can be injected");
  struct stat facts = {};
  options.out_is_folder =
      !options.out.empty() &&
      (options.out.back() == '/' || (stat(options.out.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)));
  setenv("CUDA_INJECTION64_PATH", library.c_str(), 1);
  if (!options.out.empty()) {
    setenv("CGLINT_RECORD_OUT", absolute(options.out).c_str(), 1);
  } else {
    setenv("CGLINT_RECORD_OUT", absolute("./").c_str(), 1);  // the program may change its folder
    options.out_is_folder = true;
  }
  setenv("CGLINT_RECORD_OUT_FOLDER", options.out_is_folder ? "1" : "0", 1);
  setenv("CGLINT_RECORD_PYTHON_STACKS", options.python_stacks ? "1" : "0", 1);
  setenv("CGLINT_RECORD_NATIVE_STACKS", options.native_stacks ? "1" : "0", 1);
  setenv("CGLINT_RECORD_EAGER", options.eager ? "1" : "0", 1);
  setenv("CGLINT_RECORD_ALLOCATOR_HISTORY", options.allocator_history ? "1" : "0", 1);
  // Nothing that was left over from elsewhere may count.
  const auto set_or_clear = [](const char* name, const std::string& value) {
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  };
  set_or_clear("CGLINT_RECORD_DETACH", options.detach);
  set_or_clear("CGLINT_RECORD_REDACT", options.redact);
  set_or_clear("CGLINT_RECORD_FLUSH_SIGNAL", options.flush_signal == 0 ? "" : std::to_string(options.flush_signal));
  // Where nothing else was on PYTHONPATH, nothing else may come onto it: an empty entry is the current folder.
  if (const std::string hook = folder + "/cglint_python_helper"; options.python_helper && access(hook.c_str(), R_OK) == 0) {
    const char* const before = std::getenv("PYTHONPATH");
    setenv("PYTHONPATH", before == nullptr || *before == '\0' ? hook.c_str() : (hook + ':' + before).c_str(), 1);
  }
  // The library is an NVTX injection too.
  if (const char* other = std::getenv("NVTX_INJECTION64_PATH");
      other != nullptr && *other != '\0' && library != other) {
    complain(std::string("NVTX_INJECTION64_PATH is set already, to ") + other + ": NVTX ranges are not recorded");
  } else {
    setenv("NVTX_INJECTION64_PATH", library.c_str(), 1);
  }
  setenv("CGLINT_RECORD_REPLAYS", std::to_string(options.replays).c_str(), 1);
  unsetenv("CGLINT_RECORD_LIST");
  options.command.push_back(nullptr);
  if (!options.lint) {
    execvp(options.command[0], options.command.data());
    complain(std::string("cannot run ") + options.command[0] + ": " + std::strerror(errno));
    return 127;
  }
  const char* const temporary = std::getenv("TMPDIR");
  std::string list =
      std::string(temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary) + "/cglint-record-XXXXXX";
  const int descriptor = mkstemp(list.data());
  if (descriptor < 0) return complain("cannot create " + list + ": " + std::strerror(errno));
  close(descriptor);
  setenv("CGLINT_RECORD_LIST", list.c_str(), 1);
  const int code = run(options.command);
  const std::vector<std::string> files = read_lines(list);
  unlink(list.c_str());
  unsetenv("CUDA_INJECTION64_PATH");
  unsetenv("NVTX_INJECTION64_PATH");
  if (files.empty()) {
    complain("no process captured a CUDA graph: nothing to lint");
    return code != 0 ? code : kExitUsage;
  }
  // Also where the command failed: a capture that broke may be why.
  const int found = lint(folder, options, files);
  return code != 0 ? code : found;
}
