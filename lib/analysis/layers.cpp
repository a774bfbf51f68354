#include "analysis/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

namespace cglint::analysis {
namespace {

constexpr std::size_t kMaxNameBytes = 4096;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool speaks_of_layers(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const std::string_view word : {"layer", "block", "decoder", "h."})
    if (lower.find(word) != std::string::npos) return true;
  return false;
}

// --- NVTX ---

struct NvtxKey {
  std::size_t position = ~std::size_t{0};  // outermost place: range index x 64 + number index
  std::set<std::int64_t> values;
  std::size_t nodes = 0;
  bool speaks = false;
};

Layers layers_from_nvtx(const ir::Recording& recording, const ir::Graph& graph) {
  Layers result;
  if (graph.nvtx.empty()) return result;
  struct Found {
    std::uint32_t key;
    std::int64_t number;
  };
  std::map<std::string, std::uint32_t> ids;
  std::vector<NvtxKey> keys;
  std::unordered_map<std::uint32_t, std::vector<Found>> by_stack;  // per NvtxId
  ir::NvtxId last;  // neighbours mostly have the same
  const std::vector<Found>* of_last = nullptr;
  for (const ir::NodeId node : graph.nodes()) {
    const ir::NvtxId id = graph.nvtx[node];
    if (!id.is_valid()) continue;
    if (id == last) {
      for (const Found& found : *of_last) ++keys[found.key].nodes;
      continue;
    }
    const auto [it, inserted] = by_stack.try_emplace(id.index());
    if (inserted) {
      std::size_t range_index = 0;
      for (const ir::StringId range : recording.nvtx(id)) {
        std::size_t number_index = 0;
        for (const NumberedName& named : numbers_in_name(recording.text(range))) {
          const auto [key, fresh] = ids.try_emplace(named.prefix, static_cast<std::uint32_t>(keys.size()));
          if (fresh) {
            keys.emplace_back();
            keys.back().speaks = speaks_of_layers(named.prefix);
          }
          NvtxKey& entry = keys[key->second];
          entry.position =
              std::min(entry.position, range_index * 64 + std::min<std::size_t>(number_index, 63));
          entry.values.insert(named.number);
          // The outermost use of a prefix in a stack counts.
          if (std::none_of(it->second.begin(), it->second.end(),
                           [&](const Found& f) { return f.key == key->second; }))
            it->second.push_back({key->second, named.number});
          ++number_index;
        }
        ++range_index;
      }
    }
    for (const Found& found : it->second) ++keys[found.key].nodes;
    last = id;
    of_last = &it->second;
  }
  const NvtxKey* best = nullptr;
  for (const NvtxKey& key : keys) {
    if (key.values.size() < 2) continue;
    const std::int64_t span = *key.values.rbegin() - *key.values.begin() + 1;
    if (span > 2 * static_cast<std::int64_t>(key.values.size())) continue;  // batch sizes, ids
    const auto rank = [](const NvtxKey& k) { return std::tuple(!k.speaks, k.position, ~k.nodes); };
    if (best == nullptr || rank(key) < rank(*best)) best = &key;
  }
  if (best == nullptr) return result;
  const auto chosen = static_cast<std::uint32_t>(best - keys.data());
  result.source = Layers::Source::nvtx;
  result.count = static_cast<std::uint32_t>(best->values.size());
  result.confidence = 1;
  result.layer.assign(graph.node_count(), -1);
  std::map<std::int32_t, std::uint32_t> sizes;
  last = ir::NvtxId();
  std::int32_t layer = 0;
  std::uint32_t* size = nullptr;  // of the layer that `last` names; null: it names none
  for (const ir::NodeId node : graph.nodes()) {
    const ir::NvtxId id = graph.nvtx[node];
    if (!id.is_valid()) continue;
    if (id != last) {
      last = id;
      size = nullptr;
      const std::vector<Found>& found = by_stack[id.index()];
      const auto number = std::find_if(found.begin(), found.end(), [&](const Found& f) { return f.key == chosen; });
      if (number != found.end()) {
        layer = static_cast<std::int32_t>(number->number);
        size = &sizes[layer];
      }
    }
    if (size == nullptr) continue;
    result.layer[node] = layer;
    ++*size;
  }
  result.period_nodes = sizes.begin()->second;
  for (const auto& [number, nodes] : sizes)
    if (nodes != result.period_nodes) result.period_nodes = 0;
  return result;
}

// --- period ---

constexpr double kAlike = 0.7;       // pieces of one kind of layer
constexpr double kSameGroup = 0.45;  // unlike layers of one group
constexpr double kMinConfidence = 0.6;
constexpr double kMinCoverage = 0.3;  // share of the graph's nodes in layers
constexpr std::size_t kMaxAnchors = 48;

using Token = std::uint32_t;

struct Piece {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

struct Cut {
  std::vector<Piece> pieces;  // consecutive layers
  double confidence = 0;
  double coverage = 0;
  std::size_t group = 1;  // layers per group of unlike ones
};

class PeriodFinder {
 public:
  explicit PeriodFinder(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    Token last = 0;
    for (const Token token : tokens_) last = std::max(last, token + 1);
    places_.resize(last);
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      places_[tokens_[i]].push_back(static_cast<std::uint32_t>(i));
    count_a_.assign(last, 0);
  }

  [[nodiscard]] Cut find() {
    Cut best;
    double best_score = 0;
    for (const Token anchor : anchors()) {
      Cut cut = steady_run(anchor);
      if (cut.pieces.empty()) continue;
      const double score = cut.confidence * cut.coverage;
      // More and smaller layers win where they explain nearly as much: a group of two like layers is two
      // layers.
      const bool finer = cut.pieces.size() > best.pieces.size();
      if (finer ? score > 0.85 * best_score
                : score > best_score / 0.85 ||
                      (cut.pieces.size() == best.pieces.size() && score > best_score)) {
        best_score = score;
        best = std::move(cut);
      }
    }
    if (best.pieces.empty()) return best;
    divide_groups(best);
    add_unlike_ends(best);
    align(best);
    finish(best);
    return best;
  }

 private:
  // Share of nodes that two pieces have in common, in any order: |a and b| / |a or b| as multisets.
  double similarity(const Piece& a, const Piece& b) {
    for (std::size_t i = a.begin; i < a.end; ++i) ++count_a_[tokens_[i]];
    std::size_t common = 0;
    for (std::size_t i = b.begin; i < b.end; ++i)
      if (count_a_[tokens_[i]] > 0) {
        --count_a_[tokens_[i]];
        ++common;
      }
    for (std::size_t i = a.begin; i < a.end; ++i) count_a_[tokens_[i]] = 0;
    const std::size_t all = a.size() + b.size() - common;
    return all == 0 ? 0 : static_cast<double>(common) / static_cast<double>(all);
  }

  std::size_t distinct(const Piece& piece) const {
    std::set<Token> seen(tokens_.begin() + static_cast<std::ptrdiff_t>(piece.begin),
                         tokens_.begin() + static_cast<std::ptrdiff_t>(piece.end));
    return seen.size();
  }

  // Tokens to cut at: for each number of occurrences the two with the most even spacing.
  std::vector<Token> anchors() const {
    std::map<std::size_t, std::vector<std::pair<double, Token>>> by_count;
    for (Token token = 0; token < places_.size(); ++token) {
      const auto& places = places_[token];
      if (places.size() < 2) continue;
      double sum = 0, squares = 0;
      for (std::size_t i = 1; i < places.size(); ++i) {
        const double gap = places[i] - places[i - 1];
        sum += gap;
        squares += gap * gap;
      }
      const auto gaps = static_cast<double>(places.size() - 1);
      const double mean = sum / gaps;
      if (mean < 2) continue;
      by_count[places.size()].emplace_back(std::sqrt(std::max(0.0, squares / gaps - mean * mean)) / mean,
                                           token);
    }
    std::vector<Token> result;
    for (auto it = by_count.rbegin(); it != by_count.rend() && result.size() < kMaxAnchors; ++it) {
      std::sort(it->second.begin(), it->second.end());
      for (std::size_t i = 0; i < it->second.size() && i < 2; ++i) result.push_back(it->second[i].second);
    }
    return result;
  }

  // The longest run of pieces between occurrences of `anchor` that resemble their neighbours.
  Cut steady_run(Token anchor) {
    const auto& places = places_[anchor];
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i + 1 < places.size(); ++i) pieces.push_back({places[i], places[i + 1]});
    std::vector<std::size_t> sizes;
    for (const Piece& piece : pieces) sizes.push_back(piece.size());
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2),
                     sizes.end());
    const std::size_t median = sizes[sizes.size() / 2];
    pieces.push_back({places.back(), std::min(tokens_.size(), places.back() + median)});
    std::size_t best_first = 0, best_last = 0, first = 0;
    double best_sum = 0, sum = 0;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      const double alike = similarity(pieces[i], pieces[i + 1]);
      if (alike >= kAlike) {
        sum += alike;
        if (i + 1 - first > best_last - best_first) {
          best_first = first;
          best_last = i + 1;
          best_sum = sum;
        }
      } else {
        first = i + 1;
        sum = 0;
      }
    }
    Cut cut;
    const std::size_t pairs = best_last - best_first;
    if (pairs == 0) return cut;
    cut.confidence = best_sum / static_cast<double>(pairs);
    cut.pieces.assign(pieces.begin() + static_cast<std::ptrdiff_t>(best_first),
                      pieces.begin() + static_cast<std::ptrdiff_t>(best_last) + 1);
    cut.coverage = static_cast<double>(cut.pieces.back().end - cut.pieces.front().begin) /
                   static_cast<double>(tokens_.size());
    return cut;
  }

  // Tokens that occur exactly `times` in each of the pieces.
  std::vector<Token> tokens_per_piece(const std::vector<Piece>& pieces, std::size_t times) const {
    std::vector<Token> result;
    std::set<Token> candidates(tokens_.begin() + static_cast<std::ptrdiff_t>(pieces[0].begin),
                               tokens_.begin() + static_cast<std::ptrdiff_t>(pieces[0].end));
    for (const Token token : candidates) {
      const auto& places = places_[token];
      const bool all = std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
        const auto first = std::lower_bound(places.begin(), places.end(), piece.begin);
        const auto last = std::lower_bound(first, places.end(), piece.end);
        return static_cast<std::size_t>(last - first) == times;
      });
      if (all) result.push_back(token);
    }
    return result;
  }

  // A period of several unlike layers ("three of one attention, one of another"): cut at kernels that occur m
  // times in each group if the m pieces share much.
  void divide_groups(Cut& cut) {
    const std::vector<Piece> whole(cut.pieces.begin(), cut.pieces.end() - (cut.pieces.size() > 2 ? 1 : 0));
    for (std::size_t m = 12; m >= 2; --m) {
      for (const Token token : tokens_per_piece(whole, m)) {
        const auto& places = places_[token];
        std::vector<Piece> parts;
        const auto first = std::lower_bound(places.begin(), places.end(), cut.pieces.front().begin);
        const auto last = std::lower_bound(first, places.end(), cut.pieces.back().end);
        for (auto it = first; it != last; ++it) {
          const std::size_t end = it + 1 != last ? *(it + 1) : cut.pieces.back().end;
          parts.push_back({*it, end});
        }
        if (parts.size() < 2 * m || !group_is_alike(parts, m)) continue;
        cut.pieces = std::move(parts);
        cut.group = m;
        return;
      }
    }
  }

  bool group_is_alike(const std::vector<Piece>& parts, std::size_t m) {
    std::size_t smallest = ~std::size_t{0}, largest = 0;
    for (std::size_t i = 0; i < m; ++i) {
      smallest = std::min(smallest, parts[i].size());
      largest = std::max(largest, parts[i].size());
    }
    if (smallest < 4 || 2 * largest > 5 * smallest) return false;
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = i + 1; j < m; ++j)
        if (similarity(parts[i], parts[j]) < kSameGroup) return false;
    return true;
  }

  [[nodiscard]] static std::size_t median_size(const std::vector<Piece>& pieces) {
    std::vector<std::size_t> sizes;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) sizes.push_back(pieces[i].size());
    if (sizes.empty()) return pieces[0].size();
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2),
                     sizes.end());
    return sizes[sizes.size() / 2];
  }

  // Recuts at a kernel that occurs once in every piece and also in first or last layers of another kind
  // (dense first layers, a draft layer at the end). How many such layers there are is what most kernels agree
  // on.
  void add_unlike_ends(Cut& cut) {
    const std::vector<Piece> inner(cut.pieces.begin(), cut.pieces.end() - 1);
    const std::vector<Token> once = tokens_per_piece(inner, 1);
    if (once.empty()) return;
    const std::size_t period = median_size(cut.pieces);
    struct Extra {
      std::size_t before = 0, after = 0;
      auto operator<=>(const Extra&) const = default;
    };
    std::map<Extra, std::vector<Token>> votes;
    for (const Token token : once) {
      const auto& places = places_[token];
      const auto first = std::lower_bound(places.begin(), places.end(), cut.pieces.front().begin);
      const auto last = std::lower_bound(first, places.end(), cut.pieces.back().begin);
      if (last == first) continue;
      Extra extra;
      for (auto it = first; it != places.begin() && plausible(*it - *(it - 1), period); --it) ++extra.before;
      // The last piece's own occurrence is not extra, whether it lies in the piece or was cut off.
      auto it = last - 1;
      if (it + 1 != places.end() && plausible(*(it + 1) - *it, period)) ++it;
      for (; it + 1 != places.end() && plausible(*(it + 1) - *it, period); ++it) ++extra.after;
      votes[extra].push_back(token);
    }
    const std::size_t needed = std::max<std::size_t>(3, once.size() / 8);
    const std::vector<Token>* chosen = nullptr;
    Extra most;
    for (const auto& [extra, tokens] : votes) {
      const std::size_t sum = extra.before + extra.after;
      if (sum > 0 && tokens.size() < needed) continue;
      if (chosen == nullptr || sum > most.before + most.after) {
        chosen = &tokens;
        most = extra;
      }
    }
    if (chosen == nullptr) return;
    // The earliest of them in its layer.
    Token anchor = (*chosen)[0];
    for (const Token token : *chosen) {
      const auto from = [&](Token t) {
        return *std::lower_bound(places_[t].begin(), places_[t].end(), cut.pieces.front().begin);
      };
      const auto first_of = [&](Token t) {
        auto at = std::lower_bound(places_[t].begin(), places_[t].end(), from(t));
        return *(at - static_cast<std::ptrdiff_t>(most.before));
      };
      if (first_of(token) < first_of(anchor)) anchor = token;
    }
    const auto& places = places_[anchor];
    auto first = std::lower_bound(places.begin(), places.end(), cut.pieces.front().begin) -
                 static_cast<std::ptrdiff_t>(most.before);
    const std::size_t count = cut.pieces.size() + most.before + most.after;
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < count && first != places.end(); ++i, ++first) {
      if (!pieces.empty()) pieces.back().end = *first;
      pieces.push_back({*first, std::min(tokens_.size(), *first + period)});
    }
    if (pieces.size() < 2) return;
    cut.pieces = std::move(pieces);
  }

  static bool plausible(std::size_t gap, std::size_t period) {
    return 4 * gap >= period && gap <= 4 * period;
  }

  // Moves all cuts left together as long as what stands before them is the same in every layer.
  void align(Cut& cut) {
    while (cut.pieces.front().begin > 0) {
      const Token before = tokens_[cut.pieces.front().begin - 1];
      const bool same = std::all_of(cut.pieces.begin(), cut.pieces.end(), [&](const Piece& piece) {
        return piece.begin > 0 && tokens_[piece.begin - 1] == before;
      });
      if (!same) break;
      bool fits = true;
      for (std::size_t i = 0; i + 1 < cut.pieces.size(); ++i) fits = fits && cut.pieces[i].size() > 1;
      if (!fits) break;
      for (Piece& piece : cut.pieces) --piece.begin;
      for (std::size_t i = 0; i + 1 < cut.pieces.size(); ++i) cut.pieces[i].end = cut.pieces[i + 1].begin;
      if (cut.pieces.front().begin == 0) break;
      if (++aligned_ > tokens_.size()) break;
    }
    // The last layer ends where its kernels do: those of the layer of the same kind before it.
    const std::size_t last = cut.pieces.size() - 1;
    const Piece model = cut.pieces[last >= cut.group ? last - cut.group : 0];
    Piece& piece = cut.pieces[last];
    std::map<Token, std::size_t> left;
    for (std::size_t i = model.begin; i < model.end; ++i) ++left[tokens_[i]];
    std::size_t end = piece.begin, remaining = model.size();
    for (std::size_t i = piece.begin; i < tokens_.size() && remaining > 0 && i - end <= model.size() / 4;
         ++i) {
      const auto it = left.find(tokens_[i]);
      if (it == left.end() || it->second == 0) continue;
      --it->second;
      --remaining;
      end = i + 1;
    }
    piece.end = std::max(end, piece.begin + 1);
  }

  // Confidence: the share of nodes in layers that repeat in the layer of the same kind before or behind.
  void finish(Cut& cut) {
    double matched = 0, all = 0;
    const std::size_t n = cut.pieces.size();
    for (std::size_t i = 0; i < n; ++i) {
      double best = 0;
      for (const std::size_t step : {std::size_t{1}, cut.group}) {
        if (i >= step) best = std::max(best, similarity(cut.pieces[i], cut.pieces[i - step]));
        if (i + step < n) best = std::max(best, similarity(cut.pieces[i], cut.pieces[i + step]));
      }
      const auto size = static_cast<double>(cut.pieces[i].size());
      matched += best * size;
      all += size;
    }
    cut.confidence = all > 0 ? matched / all : 0;
    cut.coverage = all / static_cast<double>(tokens_.size());
    // Short patterns repeat by chance: ask for more kinds of kernels and more repetitions.
    const std::size_t size = median_size(cut.pieces);
    const std::size_t kinds = distinct(cut.pieces[n / 2]);
    const bool enough = (size >= 8 && kinds >= 4 && n >= 2) || (size >= 4 && kinds >= 3 && n >= 4) ||
                        (size >= 3 && kinds >= 3 && n >= 8);
    if (!enough || cut.confidence < kMinConfidence || cut.coverage < kMinCoverage) cut.pieces.clear();
  }

  std::vector<Token> tokens_;
  std::vector<std::vector<std::uint32_t>> places_;
  std::vector<std::size_t> count_a_;
  std::size_t aligned_ = 0;
};

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  seed ^= value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2);
  return seed;
}

// One token per node. `fine`: function and launch configuration; else the normalised name.
std::vector<Token> tokens_of(const ir::Recording& recording, const ir::Graph& graph,
                             const KernelIdentities& identities, bool fine) {
  std::unordered_map<std::uint64_t, Token> fine_ids;
  std::unordered_map<std::string_view, Token> name_ids;
  std::vector<Token> tokens;
  tokens.reserve(graph.node_count());
  std::unordered_map<std::uint32_t, Token> by_function;
  Token next = 0;
  const auto number = [&](auto& ids, const auto& key) {
    const auto [it, inserted] = ids.try_emplace(key, next);
    if (inserted) ++next;
    return it->second;
  };
  for (const ir::NodeId node : graph.nodes()) {
    const ir::NodeKind kind = graph.kind[node];
    const ir::KernelNode* kernel = graph.kernel(node);
    if (kernel != nullptr && !fine) {
      const auto [it, inserted] = by_function.try_emplace(kernel->function.index());
      if (inserted)
        it->second = number(name_ids, kernel->function.is_valid()
                                          ? std::string_view(identities.of(kernel->function).normalised)
                                          : recording.text(graph.name[node]));
      tokens.push_back(it->second);
      continue;
    }
    std::uint64_t key = mix(0x51ed270b, static_cast<std::uint64_t>(kind));
    if (kernel != nullptr) {
      key = mix(key, kernel->function.is_valid() ? kernel->function.index() : graph.name[node].index());
      key = mix(key, kernel->grid.x);
      key = mix(key, (std::uint64_t{kernel->grid.y} << 32) | kernel->grid.z);
      key = mix(key, kernel->block.count());
    } else if (const ir::MemcpyNode* copy = graph.memcpy(node)) {
      key = mix(key, fine ? copy->bytes() : 0);
    } else if (const ir::MemsetNode* set = graph.memset(node)) {
      key = mix(key, fine ? set->bytes() : 0);
    }
    tokens.push_back(number(fine_ids, key));
  }
  return tokens;
}

// Layers follow one another: where there are dependency edges, each piece must lead into a later one. Returns
// how many pieces make one layer: 1 where each leads into the next, 2 where two independent microbatches
// alternate layer by layer (piece i leads into piece i + 2), 0 where the pieces are equal branches that run
// side by side.
std::size_t pieces_per_layer(const ir::Graph& graph, const std::vector<Piece>& pieces) {
  if (!graph.facts.contains(ir::Fact::edges) || graph.edge_count() == 0) return 1;
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> piece_of(graph.node_count(), kNone);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    for (std::size_t at = pieces[i].begin; at < pieces[i].end; ++at)
      piece_of[at] = static_cast<std::uint32_t>(i);
  constexpr std::size_t kMaxStep = 8;
  std::vector<std::uint32_t> reaches(pieces.size(), 0);  // bit k: piece i leads into piece i + k
  for (const ir::EdgeId edge : graph.edges()) {
    const std::uint32_t from = piece_of[graph.edge_from[edge].index()],
                        to = piece_of[graph.edge_to[edge].index()];
    if (from != kNone && to != kNone && to > from && to - from <= kMaxStep)
      reaches[from] |= 1U << (to - from);
  }
  for (std::size_t step = 1; step <= kMaxStep && 2 * step <= pieces.size(); ++step) {
    std::size_t linked = 0;
    for (std::size_t i = 0; i + step < pieces.size(); ++i) linked += (reaches[i] >> step) & 1U;
    if (10 * linked >= 9 * (pieces.size() - step)) return step;
  }
  return 0;
}

Layers layers_from_period(const ir::Recording& recording, const ir::Graph& graph,
                          const KernelIdentities& identities) {
  Layers result;
  if (graph.info.role == ir::GraphRole::eager || graph.node_count() < 6) return result;
  Cut cut = PeriodFinder(tokens_of(recording, graph, identities, true)).find();
  if (cut.pieces.empty() || cut.confidence < 0.9) {
    Cut coarse = PeriodFinder(tokens_of(recording, graph, identities, false)).find();
    if (!coarse.pieces.empty() &&
        (cut.pieces.empty() || coarse.confidence * coarse.coverage > cut.confidence * cut.coverage))
      cut = std::move(coarse);
  }
  if (cut.pieces.empty()) return result;
  const std::size_t per_layer = pieces_per_layer(graph, cut.pieces);
  if (per_layer == 0) return result;
  if (per_layer > 1) {
    std::vector<Piece> layers;
    for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
      if (i % per_layer == 0) layers.push_back(cut.pieces[i]);
      layers.back().end = cut.pieces[i].end;
    }
    cut.pieces = std::move(layers);
  }
  result.source = Layers::Source::period;
  result.count = static_cast<std::uint32_t>(cut.pieces.size());
  result.confidence = cut.confidence;
  result.period_nodes = static_cast<std::uint32_t>(cut.pieces[0].size());
  result.layer.assign(graph.node_count(), -1);
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    if (cut.pieces[i].size() != result.period_nodes) result.period_nodes = 0;
    for (std::size_t at = cut.pieces[i].begin; at < cut.pieces[i].end; ++at)
      result.layer[ir::NodeId::from_size(at)] = static_cast<std::int32_t>(i);
  }
  return result;
}

}  // namespace

std::vector<NumberedName> numbers_in_name(std::string_view name) {
  std::vector<NumberedName> result;
  if (name.size() > kMaxNameBytes) return result;
  std::string prefix;
  for (std::size_t at = 0; at < name.size();) {
    if (!is_digit(name[at])) {
      prefix += name[at++];
      continue;
    }
    std::size_t end = at;
    while (end < name.size() && is_digit(name[end])) ++end;
    std::string_view word = prefix;
    while (!word.empty() && is_letter(word.back())) word.remove_suffix(1);
    const std::string_view letters = std::string_view(prefix).substr(word.size());
    // "layer12" but not "bf16" or "sm90"; "12" but not "2x4" or "3d" or "1.5".
    const bool starts =
        letters.empty() ? (prefix.empty() || prefix.back() != '#') : speaks_of_layers(letters);
    const bool ends = end == name.size() || (!is_letter(name[end]) && name[end] != '#');
    if (starts && ends && end - at <= 9) {
      std::int64_t value = 0;
      for (std::size_t i = at; i < end; ++i) value = value * 10 + (name[i] - '0');
      result.push_back({prefix, value});
      prefix += '#';
    } else {
      prefix += name.substr(at, end - at);
    }
    at = end;
  }
  return result;
}

Layers detect_layers(const ir::Recording& recording, const ir::Graph& graph,
                     const KernelIdentities& identities) {
  Layers layers = layers_from_nvtx(recording, graph);
  if (layers.source == Layers::Source::none) layers = layers_from_period(recording, graph, identities);
  if (layers.layer.empty()) layers.layer.assign(graph.node_count(), -1);
  return layers;
}

}  // namespace cglint::analysis
