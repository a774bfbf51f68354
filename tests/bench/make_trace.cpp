// Writes a Kineto trace of any size for the benchmarks: host events (operators, Python frames, runtime calls, flows) and
// GPU operations inside and outside graph launches, in the shapes and with the property order that the profiler writes.
//
//   make_trace OUT.json SIZE_MB GPU_PERCENT [pretty|line]
//
// GPU_PERCENT is the share of events that are kernels, copies or fills. The same arguments give the same bytes.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

// A small generator with a fixed sequence on every platform.
class Random {
 public:
  std::uint32_t below(std::uint32_t limit) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::uint32_t>((state_ >> 33) % limit);
  }

 private:
  std::uint64_t state_ = 42;
};

class Writer {
 public:
  Writer(std::FILE* file, bool pretty) : file_(file), pretty_(pretty) {}
  void raw(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), file_);
    bytes_ += text.size();
  }
  void event(const std::string& text) {
    if (!first_) raw(pretty_ ? ",\n  " : ",");
    first_ = false;
    if (!pretty_) {
      raw(text);
      return;
    }
    line_.clear();
    bool in_string = false;
    for (const char c : text) {
      line_ += c;
      if (c == '"') in_string = !in_string;  // no escapes in these texts
      if (!in_string && (c == '{' || c == ',')) line_ += "\n    ";
    }
    raw(line_);
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::FILE* file_;
  bool pretty_;
  bool first_ = true;
  std::uint64_t bytes_ = 0;
  std::string line_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: make_trace OUT.json SIZE_MB GPU_PERCENT [pretty|line]\n");
    return 2;
  }
  const std::uint64_t size = std::strtoull(argv[2], nullptr, 10) << 20;
  const auto percent = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
  std::FILE* const file = std::fopen(argv[1], "wb");
  if (file == nullptr || percent > 95 || percent < 1) return 2;
  std::vector<char> buffer(std::size_t{1} << 20);
  std::setvbuf(file, buffer.data(), _IOFBF, buffer.size());
  Writer out(file, argc > 4 && std::string_view(argv[4]) == "pretty");
  Random random;

  std::vector<std::string> kernels;
  for (int i = 0; i < 300; ++i)
    kernels.push_back(fmt::format(
        "void at::native::vectorized_elementwise_kernel<{}, at::native::bench_{}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#1}}"
        "::operator()() const::{{lambda(c10::BFloat16)#{}}}, std::array<char*, 2ul> >(int, at::native::functor_{}, std::array<char*, 2ul>)",
        4 << (i % 2), i, i % 7, i));
  std::vector<std::string> operators;
  for (int i = 0; i < 120; ++i) operators.push_back(fmt::format("aten::bench_operator_{}", i));

  out.raw(R"({"schemaVersion": 1,"deviceProperties": [{"id": 0,"name": "NVIDIA H200","numSms": 132,"computeMajor": 9,"computeMinor": 0}],)"
          R"("cuda_runtime_version": 13000,"cuda_driver_version": 13000,"baseTimeNanoseconds": 1790857026000000000,"traceEvents": [)");
  std::uint64_t now = 5101596482938681;  // ns
  std::uint64_t correlation = 1000;
  std::uint64_t external = 1;
  constexpr int kGraphNodes = 304;
  const auto us = [](std::uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); };
  const auto host_event = [&]() {
    now += 700 + random.below(900);
    ++external;
    switch (random.below(10)) {
      case 0:
      case 1:
      case 2:
        out.event(fmt::format(
            R"({{"ph": "X","cat": "cpu_op","name": "{}","pid": 448,"tid": 448,"ts": {},"dur": {},"args": {{"External id": {},"Record function id": 0,"Concrete Inputs": ["","","1"],"Input type": ["c10::BFloat16","c10::BFloat16","Scalar"],"Input Strides": [[4096,1],[4096,1],[]],"Input Dims": [[64,4096],[64,4096],[]],"Ev Idx": {}}}}})",
            operators[random.below(120)], us(now), us(3000 + random.below(20000)), external, external));
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        out.event(fmt::format(
            R"({{"ph": "X","cat": "python_function","name": "model/layers/decoder_{}.py({}): forward","pid": 448,"tid": 448,"ts": {},"dur": {},"args": {{"Python parent id": {},"Python id": {},"Ev Idx": {}}}}})",
            random.below(61), random.below(900), us(now), us(9000 + random.below(90000)), external, external + 1, external));
        break;
      case 7:
        out.event(fmt::format(
            R"({{"ph": "X","cat": "cuda_runtime","name": "cudaStreamIsCapturing","pid": 448,"tid": 448,"ts": {},"dur": 1.024,"args": {{"External id": {},"cbid": 317,"correlation": {}}}}})",
            us(now), external, ++correlation));
        break;
      case 8:
        out.event(fmt::format(R"({{"ph": "s","id": {},"pid": 448,"tid": 448,"ts": {},"cat": "ac2g","name": "ac2g"}})",
                              correlation, us(now)));
        break;
      default:
        out.event(fmt::format(R"({{"ph": "f","id": {},"pid": 0,"tid": 7,"ts": {},"cat": "ac2g","name": "ac2g","bp": "e"}})",
                              correlation, us(now)));
    }
  };
  const auto kernel = [&](std::size_t name, std::uint64_t start, std::uint64_t dur, int stream) {
    out.event(fmt::format(
        R"({{"ph": "X","cat": "kernel","name": "{}","pid": 0,"tid": {},"ts": {},"dur": {},"args": {{"queued": 0,"device": 0,"context": 1,"stream": {},"correlation": {},"registers per thread": {},"shared memory": {},"blocks per SM": 0.242424,"warps per SM": 2.909091,"grid": [{},8,1],"block": [384,1,1],"est. achieved occupancy %": 0}}}})",
        kernels[name], stream, us(start), us(dur), stream, correlation, 32 + name % 100, (name % 5) * 1024, 1 + name % 64));
  };
  // Groups of one graph launch (304 operations) or single kernels, with host events between in the asked proportion.
  std::uint64_t host = 0, gpu = 0;
  while (out.bytes() < size) {
    while (host * percent < gpu * (100 - percent) || host == 0) {
      host_event();
      ++host;
    }
    ++correlation;
    now += 5000;
    const bool is_graph = random.below(8) != 0;
    out.event(fmt::format(
        R"({{"ph": "X","cat": "cuda_runtime","name": "{}","pid": 448,"tid": 448,"ts": {},"dur": 64.125,"args": {{"External id": {},"cbid": 311,"correlation": {}}}}})",
        is_graph ? "cudaGraphLaunch" : "cudaLaunchKernel", us(now), external, correlation));
    ++host;
    const int count = is_graph ? kGraphNodes : 1;
    const std::uint32_t model = is_graph ? random.below(3) : 0;
    std::uint64_t start = now + 20000;
    for (int i = 0; i < count; ++i) {
      const std::uint64_t dur = 1500 + random.below(6000);
      kernel((static_cast<std::size_t>(i) * 7 + model * 31) % kernels.size(), start, dur, i % 16 == 3 ? 20 : 7);
      start += dur + 600;
      ++gpu;
    }
    now = start;
  }
  out.raw("],\"traceName\": \"bench.json\"}\n");
  const bool ok = std::fclose(file) == 0;
  fmt::print("{} host events, {} GPU operations, {} bytes\n", host, gpu, out.bytes());
  return ok ? 0 : 1;
}
