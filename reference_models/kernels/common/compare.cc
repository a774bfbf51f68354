#include <cmath>
#include <limits>

#include "kernels/common/buffer.h"

namespace cglint::kernels {
namespace {

template <typename T>
std::vector<float> widen(const std::vector<T>& values) {
  std::vector<float> wide;
  wide.reserve(values.size());
  for (const T& value : values) wide.push_back(static_cast<float>(value));
  return wide;
}

template <typename T>
std::vector<float> download_wide(const DeviceBuffer<T>& buffer) {
  std::vector<T> host;
  if (buffer.download(host) != cudaSuccess) return {};
  return widen(host);
}

}  // namespace

std::vector<float> to_float(const std::vector<bf16>& values) {
  return widen(values);
}
std::vector<float> to_float(const std::vector<fp8_e4m3>& values) {
  return widen(values);
}

std::vector<float> download_float(const DeviceBuffer<bf16>& buffer) {
  return download_wide(buffer);
}
std::vector<float> download_float(const DeviceBuffer<fp8_e4m3>& buffer) {
  return download_wide(buffer);
}
std::vector<float> download_float(const DeviceBuffer<float>& buffer) {
  return download_wide(buffer);
}

double max_scaled_error(const std::vector<float>& got, const std::vector<float>& want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.size() || want.empty()) return kInfinity;
  double sum_of_squares = 0;
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) return kInfinity;
    const double difference = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    largest = difference > largest ? difference : largest;
    sum_of_squares += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  if (sum_of_squares == 0) return kInfinity;
  return largest / std::sqrt(sum_of_squares / static_cast<double>(want.size()));
}

}  // namespace cglint::kernels
