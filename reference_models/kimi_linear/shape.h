// Kimi-Linear-48B-A3B as one of two tensor-parallel shards sees it (TP2).
#pragma once

namespace cglint::models::kimi {

inline constexpr int kLayers = 27;
inline constexpr int kHidden = 2304;
inline constexpr float kEpsilon = 1e-5F;

// Kimi Delta Attention: 16 of 32 heads of 128.
inline constexpr int kHeads = 16;
inline constexpr int kHeadDim = 128;
inline constexpr int kChannels = kHeads * kHeadDim;  // of q, of k and of v
inline constexpr int kConvChannels = 3 * kChannels;
// One projection makes q, k, v, beta and the inputs of the two low-rank gates (decay, output).
inline constexpr int kBetaAt = kConvChannels;
inline constexpr int kGateAt = kBetaAt + kHeads;
inline constexpr int kFused = kGateAt + 2 * kHeadDim;

// Multi-head latent attention without rotary embedding, query not compressed.
inline constexpr int kLatent = 512;
inline constexpr int kPositional = 64;
inline constexpr int kCacheRow = kLatent + kPositional;
inline constexpr int kQueryHead = kHeadDim + kPositional;
// One projection makes the queries and the cache row.
inline constexpr int kQueries = kHeads * kQueryHead;
inline constexpr int kQueriesAndRow = kQueries + kCacheRow;
inline constexpr int kPageSize = 64;

// Feed-forward: the first layer is dense, the others have 256 experts of 1024 and one shared one.
inline constexpr int kDenseIntermediate = 9216 / 2;
inline constexpr int kExperts = 256;
inline constexpr int kTopK = 8;
inline constexpr int kExpertIntermediate = 1024 / 2;
inline constexpr float kRoutedScaling = 2.446F;

// full_attn_layers of the published configuration, counted from 0: every fourth and the last.
constexpr bool is_mla(int layer) { return layer % 4 == 3 || layer == kLayers - 1; }
constexpr bool is_dense(int layer) { return layer == 0; }

}  // namespace cglint::models::kimi
