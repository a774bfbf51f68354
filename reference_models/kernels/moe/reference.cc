#include "kernels/moe/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cglint::kernels::moe {

ReferenceChoice reference_topk(const TopkArgs& args, const std::vector<float>& logits,
                               const std::vector<float>& bias) {
  ReferenceChoice choice;
  const int experts = args.experts;
  const int group_size = experts / args.num_groups;
  for (int token = 0; token < args.tokens; ++token) {
    const float* row = logits.data() + static_cast<size_t>(token) * static_cast<size_t>(experts);
    std::vector<double> score(static_cast<size_t>(experts));
    double largest = -std::numeric_limits<double>::infinity();
    for (int e = 0; e < experts; ++e) largest = std::max(largest, static_cast<double>(row[e]));
    double sum = 0;
    for (int e = 0; e < experts; ++e) {
      const double x = row[e];
      score[static_cast<size_t>(e)] =
          args.score == ScoreFunction::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - largest);
      sum += score[static_cast<size_t>(e)];
    }
    if (args.score == ScoreFunction::kSoftmax) {
      for (double& s : score) s /= sum;
    }
    std::vector<double> biased = score;
    if (!bias.empty()) {
      for (size_t e = 0; e < biased.size(); ++e) biased[e] += bias[e];
    }
    if (args.num_groups > 1) {
      std::vector<double> worth;
      for (int g = 0; g < args.num_groups; ++g) {
        std::vector<double> members(biased.begin() + g * group_size, biased.begin() + (g + 1) * group_size);
        std::sort(members.rbegin(), members.rend());
        worth.push_back(members[0] + (!bias.empty() && members.size() > 1 ? members[1] : 0));
      }
      std::vector<int> order(worth.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return worth[static_cast<size_t>(a)] > worth[static_cast<size_t>(b)];
      });
      for (size_t i = static_cast<size_t>(args.top_groups); i < order.size(); ++i) {
        for (int m = 0; m < group_size; ++m)
          biased[static_cast<size_t>(order[i] * group_size + m)] = -std::numeric_limits<double>::infinity();
      }
    }
    std::vector<int> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
    });
    double chosen_sum = 0;
    for (int k = 0; k < args.top_k; ++k)
      chosen_sum += score[static_cast<size_t>(order[static_cast<size_t>(k)])];
    for (int k = 0; k < args.top_k; ++k) {
      const int e = order[static_cast<size_t>(k)];
      choice.ids.push_back(e);
      choice.weights.push_back(static_cast<float>(score[static_cast<size_t>(e)] * args.scaling /
                                                  (args.renormalize ? chosen_sum : 1.0)));
    }
    choice.biased.insert(choice.biased.end(), biased.begin(), biased.end());
  }
  return choice;
}

double topk_error(const TopkArgs& args, const ReferenceChoice& want, const std::vector<int32_t>& ids,
                  const std::vector<float>& weights) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (ids.size() != want.ids.size() || weights.size() != want.weights.size() || ids.empty()) return kInfinity;
  const float largest = *std::max_element(want.weights.begin(), want.weights.end());
  double error = 0;
  const size_t top_k = static_cast<size_t>(args.top_k);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= args.experts || !std::isfinite(weights[i])) return kInfinity;
    const size_t first = i / top_k * top_k;
    for (size_t j = first; j < i; ++j) {
      if (ids[j] == ids[i]) return kInfinity;
    }
    const double* biased = want.biased.data() + i / top_k * static_cast<size_t>(args.experts);
    // -inf - -inf is NaN and must not pass.
    if (!(std::abs(biased[ids[i]] - biased[want.ids[i]]) <= 1e-5)) return kInfinity;
    error = std::max(error, static_cast<double>(std::abs(weights[i] - want.weights[i])) / largest);
  }
  return error;
}

BlockLists reference_align(const std::vector<int32_t>& ids, const std::vector<int32_t>& expert_map,
                           int local_experts, int block_m) {
  constexpr int32_t kUnused = -7;
  const int pairs = static_cast<int>(ids.size());
  const int blocks = max_blocks(pairs, local_experts, block_m);
  BlockLists lists;
  lists.positions.assign(ids.size(), -1);
  for (int expert = 0; expert < local_experts; ++expert) {
    for (int pair = 0; pair < pairs; ++pair) {
      const int32_t id = ids[static_cast<size_t>(pair)];
      if ((expert_map.empty() ? id : expert_map[static_cast<size_t>(id)]) != expert) continue;
      if (static_cast<int>(lists.sorted_ids.size()) % block_m == 0) lists.expert_ids.push_back(expert);
      lists.positions[static_cast<size_t>(pair)] = static_cast<int32_t>(lists.sorted_ids.size());
      lists.sorted_ids.push_back(pair);
    }
    while (static_cast<int>(lists.sorted_ids.size()) % block_m != 0) lists.sorted_ids.push_back(pairs);
  }
  lists.num_padded = static_cast<int32_t>(lists.sorted_ids.size());
  lists.sorted_ids.resize(static_cast<size_t>(blocks) * static_cast<size_t>(block_m), kUnused);
  lists.expert_ids.resize(static_cast<size_t>(blocks), kUnused);
  return lists;
}

std::vector<float> reference_dequantize_nvfp4(const std::vector<uint8_t>& q,
                                              const std::vector<uint8_t>& scales, ScaleLayout layout,
                                              int rows, int columns) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  std::vector<float> values;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const size_t at = static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
      const unsigned code = column % 2 == 0 ? q[at / 2] & 15u : q[at / 2] >> 4;
      __nv_fp8_e4m3 scale;
      scale.__x = scales[static_cast<size_t>(scale_offset(layout, row, column / 16, columns / 16))];
      const float magnitude = kValues[code & 7u] * static_cast<float>(scale);
      values.push_back((code & 8u) != 0 ? -magnitude : magnitude);
    }
  }
  return values;
}

float reference_e2m1(float value) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = std::abs(value);
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const float nearer = std::abs(kValues[code] - magnitude) - std::abs(kValues[best] - magnitude);
    if (nearer < 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return value < 0 ? -kValues[best] : kValues[best];
}

}  // namespace cglint::kernels::moe
