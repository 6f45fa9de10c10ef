// SPDX-License-Identifier: Apache-2.0
// The allocations of an inference server with continuous batching, for a model of 8 billion
// parameters in bfloat16. Its shapes are those of Llama 3 8B: 32 layers, width 4096, 32 query and
// 8 key-value heads of 128, inner width 14336, vocabulary 128256.
//
// - The weights are allocated one tensor at a time and live to the end.
// - Requests arrive as a Poisson process, 0.45 a step. Prompts are log-normal with a median of 400
//   tokens (sigma 0.9; 16 to 4096), outputs with one of 180 (sigma 0.8; 1 to 1024).
// - Keys and values live in blocks of 16 tokens, all layers together: 2 MiB each. A block is
//   allocated when a request's next token needs it, and freed with the request in the order of its
//   tokens. At most 6144 blocks (12 GiB) and 256 running requests: if there is no block left, the
//   latest request gives all of its blocks back and starts again later.
// - A step takes a token of each running request that has read its prompt, and pieces of prompts:
//   at most 2048 tokens in all. So activations have another size in each step. Each is freed when
//   its last reader has run, and logits and samples at the step's end.
// - Stream 0 computes. Stream 1 copies: the inputs are allocated there and freed on 0, the sampled
//   tokens are allocated on 0 and freed there.
#include <algorithm>
#include <deque>

#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr int kSteps = 2000;
constexpr double kArrivalsPerStep = 0.45;
constexpr int kLayers = 32;
constexpr uint64_t kWidth = 4096, kHeads = 32, kKeyHeads = 8, kHeadWidth = 128;
constexpr uint64_t kInner = 14336, kVocabulary = 128256;
constexpr uint64_t kHalf = 2, kInt = 4, kFloat = 4, kLong = 8;  // bytes of a number
constexpr uint64_t kQkv = (kHeads + 2 * kKeyHeads) * kHeadWidth;
constexpr uint64_t kBlockTokens = 16, kMaxBlocks = 6144;
constexpr uint64_t kBlockBytes = kBlockTokens * kLayers * 2 * kKeyHeads * kHeadWidth * kHalf;
constexpr uint64_t kMaxRunning = 256, kMaxStepTokens = 2048;
constexpr uint32_t kCompute = 0, kCopy = 1;

using Id = uint32_t;

struct Request {
  uint64_t prompt = 0, output = 0;
  uint64_t done = 0;       // tokens whose keys and values are in blocks
  std::vector<Id> blocks;  // in the order of the tokens
  bool decodes() const { return done >= prompt; }
};

class Serving {
 public:
  Serving() : trace_("serving"), random_(11) {}

  Trace Make() && {
    MakeWeights();
    double next_arrival = 0;
    for (int step = 0; step < kSteps; ++step) {
      for (; next_arrival <= step; next_arrival += random_.Exponential(1 / kArrivalsPerStep)) {
        waiting_.push_back(
            {.prompt = Tokens(400, 0.9, 16, 4096), .output = Tokens(180, 0.8, 1, 1024)});
      }
      const uint64_t tokens = Schedule();
      if (tokens == 0) continue;
      Forward(tokens);
      EndRequests();
    }
    return std::move(trace_).Build();
  }

 private:
  Id New(uint64_t numbers, uint64_t size = kHalf) { return trace_.Allocate(numbers * size); }
  void Free(Id id) { trace_.Free(id, kCompute); }
  uint64_t Tokens(double median, double sigma, double least, double most) {
    return static_cast<uint64_t>(std::clamp(random_.LogNormal(median, sigma), least, most));
  }

  void MakeWeights() {
    New(kVocabulary * kWidth);
    for (int layer = 0; layer < kLayers; ++layer) {
      New(kWidth);  // norm
      New(kQkv * kWidth);
      New(kWidth * kWidth);
      New(kWidth);  // norm
      New(2 * kInner * kWidth);
      New(kInner * kWidth);
    }
    New(kWidth);  // norm
    New(kVocabulary * kWidth);
  }

  // Which requests go on in this step and by how many tokens, with blocks for those; answers how
  // many tokens that makes.
  uint64_t Schedule() {
    uint64_t budget = kMaxStepTokens;
    for (size_t i = 0; i < running_.size(); ++i) {  // it may shrink at its end
      Request& request = running_[i];
      budget -= Advance(request,
                        std::min(budget, request.decodes() ? 1 : request.prompt - request.done), i);
    }
    while (budget > 0 && running_.size() < kMaxRunning && !waiting_.empty()) {
      const uint64_t tokens = std::min(budget, waiting_.front().prompt);
      if (used_blocks_ + Blocks(tokens) > kMaxBlocks) break;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      budget -= Advance(running_.back(), tokens, running_.size() - 1);
    }
    return kMaxStepTokens - budget;
  }

  static uint64_t Blocks(uint64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  // Makes room by ending those that came after; none where that is not enough.
  uint64_t Advance(Request& request, uint64_t tokens, size_t index) {
    const uint64_t needed = Blocks(request.done + tokens);
    while (used_blocks_ + needed - request.blocks.size() > kMaxBlocks) {
      if (running_.size() == index + 1) return 0;
      Request last = std::move(running_.back());
      running_.pop_back();
      FreeBlocks(last);
      last.done = 0;
      waiting_.push_front(std::move(last));
    }
    while (request.blocks.size() < needed) {
      request.blocks.push_back(trace_.Allocate(kBlockBytes));
      ++used_blocks_;
    }
    request.done += tokens;
    return tokens;
  }

  void Forward(uint64_t tokens) {
    const uint64_t requests = running_.size();
    const auto input = [&](uint64_t bytes) { return trace_.Allocate(bytes, kCopy); };
    const Id inputs[] = {input(tokens * kLong), input(tokens * kLong),  // tokens, positions
                         input(tokens * kLong),                         // where keys go
                         input(requests * Blocks(4096 + 1024) * kInt), input(requests * kInt)};
    Id residual = New(tokens * kWidth);  // embedded
    for (int layer = 0; layer < kLayers; ++layer) residual = Layer(tokens, residual);
    const Id last = New(tokens * kWidth);  // the last norm
    Free(residual);

    const Id chosen = New(requests * kWidth);
    Free(last);
    const Id logits = New(requests * kVocabulary);
    Free(chosen);
    const Id full = New(requests * kVocabulary, kFloat);
    const Id probabilities = New(requests * kVocabulary, kFloat);
    Free(full);
    const Id sorted = New(requests * kVocabulary, kFloat);
    const Id order = New(requests * kVocabulary, kLong);
    const Id samples = New(requests, kLong);
    for (const Id id : {sorted, order, probabilities, logits}) Free(id);
    trace_.Free(samples, kCopy);
    for (const Id id : inputs) Free(id);
  }

  Id Layer(uint64_t tokens, Id residual) {
    const Id norm1 = New(tokens * kWidth);
    const Id qkv = New(tokens * kQkv);
    Free(norm1);
    const Id queries = New(tokens * kHeads * kHeadWidth),
             keys = New(tokens * kKeyHeads * kHeadWidth);
    const Id attention = New(tokens * kHeads * kHeadWidth);
    const Id workspace = New(tokens * kHeads * 2, kFloat);
    for (const Id id : {workspace, keys, queries, qkv}) Free(id);
    const Id projected = New(tokens * kWidth);
    Free(attention);
    const Id middle = New(tokens * kWidth);
    Free(projected);
    Free(residual);
    const Id norm2 = New(tokens * kWidth);
    const Id gate_up = New(tokens * 2 * kInner);
    Free(norm2);
    const Id activated = New(tokens * kInner);
    Free(gate_up);
    const Id down = New(tokens * kWidth);
    Free(activated);
    const Id output = New(tokens * kWidth);
    Free(down);
    Free(middle);
    return output;
  }

  void EndRequests() {
    std::deque<Request> still;
    for (Request& request : running_) {
      if (request.done >= request.prompt + request.output) {
        FreeBlocks(request);
      } else {
        still.push_back(std::move(request));
      }
    }
    running_ = std::move(still);
  }

  void FreeBlocks(Request& request) {
    for (const Id block : request.blocks) Free(block);
    used_blocks_ -= request.blocks.size();
    request.blocks.clear();
  }

  TraceBuilder trace_;
  Random random_;
  std::deque<Request> waiting_, running_;  // in the order of arrival
  uint64_t used_blocks_ = 0;
};

}  // namespace

Trace MakeServingTrace() { return Serving().Make(); }

}  // namespace gpumem::bench
