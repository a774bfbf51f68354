// Whose frames are read when, with a played interpreter: this program exports the functions of CPython's interface that
// python_frames.cpp looks for. Of each kind of interpreter (with a lock, free-threaded) nothing else need be installed. The
// interpreter is looked up once in a process, so each case runs in a process of its own.
#include "capture/python_frames.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace {

struct Code {
  std::string file, function;
};
struct Frame {
  Code code;
  int line;
  Frame* back;
};
struct ThreadState {
  Frame* frame = nullptr;
};

std::string version = "3.13.0 (main, Oct  7 2024)";
std::timed_mutex interpreter_lock;
std::atomic<int> taken{0};                   // by PyGILState_Ensure
thread_local ThreadState* own = nullptr;     // null: Python does not know the thread
thread_local bool is_attached = false;       // it holds the lock; free-threaded: it is attached

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED const char* Py_GetVersion() {
  return version.c_str();
}
EXPORTED int Py_IsInitialized() {
  return 1;
}
EXPORTED int Py_IsFinalizing() {
  return 0;
}
EXPORTED int PyGILState_Ensure() {
  ++taken;
  if (version.find("free-threading") == std::string::npos) interpreter_lock.lock();
  is_attached = true;
  return 0;
}
EXPORTED void PyGILState_Release(int) {
  is_attached = false;
  if (version.find("free-threading") == std::string::npos) interpreter_lock.unlock();
}
EXPORTED void* PyGILState_GetThisThreadState() {
  return own;
}
EXPORTED void* PyThreadState_GetUnchecked() {
  return is_attached ? own : nullptr;
}
EXPORTED void* PyThreadState_GetFrame(void* state) {
  return static_cast<ThreadState*>(state)->frame;
}
EXPORTED void* PyFrame_GetBack(void* frame) {
  return static_cast<Frame*>(frame)->back;
}
EXPORTED void* PyFrame_GetCode(void* frame) {
  return &static_cast<Frame*>(frame)->code;
}
EXPORTED int PyFrame_GetLineNumber(void* frame) {
  return static_cast<Frame*>(frame)->line;
}
EXPORTED void* PyObject_GetAttrString(void* object, const char* name) {
  Code* const code = static_cast<Code*>(object);
  return std::string(name) == "co_filename" ? &code->file : &code->function;
}
EXPORTED const char* PyUnicode_AsUTF8(void* object) {
  return static_cast<std::string*>(object)->c_str();
}
EXPORTED void Py_DecRef(void*) {}
EXPORTED void PyErr_Clear() {}

namespace cglint::capture {
namespace {

constexpr const char* kLocked = "3.13.0 (main, Oct  7 2024)";
constexpr const char* kFree = "3.13.0 experimental free-threading build (main, Oct  7 2024)";
constexpr const char* kLaterFree = "3.14.0 free-threading build (main, Oct  7 2025)";

// This thread is one of the interpreter's, in forward() at model.py:7, called at model.py:20.
void enter_python(bool attached) {
  static Frame outer{{"model.py", "<module>"}, 20, nullptr};
  static Frame inner{{"model.py", "forward"}, 7, &outer};
  static ThreadState state{&inner};
  own = &state;
  is_attached = attached;
}

// 0: as wanted; else which of the wishes failed. `ensured`: how often the lock was to be taken; below 0: any number.
int ask(FramesResult wanted, std::size_t depth, int ensured, int timeout_ms = 2000) {
  std::vector<FrameText> frames;
  if (python_frames(frames, timeout_ms) != wanted) return 1;
  if (frames.size() != depth) return 2;
  if (depth != 0 && (frames[0].file != "model.py" || frames[0].function != "forward" || frames[0].line != 7)) return 3;
  return ensured < 0 || taken == ensured ? 0 : 4;
}

class PythonFramesDeathTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Interpreters, PythonFramesDeathTest, testing::Values(kLocked, kFree, kLaterFree));

TEST_P(PythonFramesDeathTest, AnAttachedThreadWalksItsOwnFrames) {
  const auto run = [] {
    version = GetParam();
    enter_python(true);
    std::_Exit(ask(FramesResult::ok, 2, 0));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_P(PythonFramesDeathTest, ADetachedThreadIsWalkedByAHelperOnlyWhereALockKeepsItStill) {
  const auto run = [] {
    version = GetParam();
    enter_python(false);
    const bool is_free = version.find("free-threading") != std::string::npos;
    std::_Exit(is_free ? ask(FramesResult::no_python, 0, 0) : ask(FramesResult::ok, 2, 1));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_P(PythonFramesDeathTest, AThreadThatPythonDoesNotKnowHasNone) {
  const auto run = [] {
    version = GetParam();
    std::_Exit(ask(FramesResult::no_python, 0, 0));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(PythonFramesDeathTest, AThreadThatKeepsTheLockBlocksNobody) {
  const auto run = [] {
    version = kLocked;
    interpreter_lock.lock();
    enter_python(false);
    const int first = ask(FramesResult::timed_out, 0, -1, 20);
    if (first != 0) std::_Exit(10 + first);
    interpreter_lock.unlock();  // the helper gets it now, for a request that was given up, and gives it back
    std::_Exit(ask(FramesResult::ok, 2, -1));
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cglint::capture
