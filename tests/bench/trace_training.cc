// SPDX-License-Identifier: Apache-2.0
// The allocations of PyTorch-like code while it trains a transformer of 1.3 billion parameters
// (GPT-3 XL's shapes: 24 layers, width 2048, 16 heads of 128, vocabulary 50304) in bfloat16,
// data-parallel, without activation checkpointing. It has a fused attention kernel (no sequence x
// sequence matrix) and a fused AdamW whose master weights and moments are float32.
//
// - Parameters are allocated one tensor at a time and live to the end; so do the optimizer's three
//   tensors of each, which the first step makes.
// - A batch has 8 sequences, padded to the longest: 1024 to 2048 tokens in steps of 64, another
//   length each time. So the same activations have other sizes in each step, as in fine-tuning.
// - Forward: the data that backward needs is kept, the rest is freed when its reader has run. Kept
//   are LayerNorm's input, output and statistics; queries, keys and values; attention's output,
//   log-sum-exp and random state; both sides of the activation function.
// - Loss: the logits in bfloat16 and float32, and their log-softmax.
// - Backward: gradients in reverse order, each freed with its inputs; kernels' workspaces come and
//   go; parameters' gradients stay until the optimizer has used them.
// - Stream 0 computes. Stream 1 copies the next batch in: allocated there, freed on 0. Stream 2
//   reduces a layer's gradients: their flat bucket is allocated on 0 and freed there.
// - After each fifth step an evaluation: forward only, 16 sequences, nothing kept.

#include <iterator>

#include "tests/bench/trace.h"

namespace gpumem::bench {
namespace {

constexpr int kSteps = 20;
constexpr int kStepsPerEvaluation = 5;
constexpr int kLayers = 24;
constexpr uint64_t kWidth = 2048, kHeads = 16, kVocabulary = 50304, kPositions = 2048;
constexpr uint64_t kHalf = 2, kFloat = 4, kLong = 8;  // bytes of a number
constexpr uint32_t kCompute = 0, kCopy = 1, kReduce = 2;

using Id = uint32_t;

struct Batch {
  uint64_t sequences = 0, length = 0;
  uint64_t tokens() const { return sequences * length; }
};

struct Norm {
  Id output, mean, deviation;
};

// The tensors of a layer that backward needs.
struct Saved {
  Id input;  // of the layer and of its first norm
  Norm norm1;
  Id qkv, attention, logsumexp, random_state;
  Id middle;  // input of the second norm
  Norm norm2;
  Id up, activated;
};

// The element counts of a layer's parameters, in the order of its tensors.
constexpr uint64_t kLayerParameters[] = {
    kWidth,
    kWidth,  // first norm
    3 * kWidth* kWidth,
    3 * kWidth,  // queries, keys, values
    kWidth* kWidth,
    kWidth,  // projection
    kWidth,
    kWidth,  // second norm
    4 * kWidth* kWidth,
    4 * kWidth,  // up
    4 * kWidth* kWidth,
    kWidth,  // down
};

class Training {
 public:
  Training() : trace_("training"), random_(7) {}

  Trace Make() && {
    MakeParameters();
    Inputs next = LoadBatch(DrawBatch(8));
    for (int step = 1; step <= kSteps; ++step) {
      const Inputs inputs = next;
      next = LoadBatch(DrawBatch(8));  // while this step computes
      Step(inputs);
      if (step % kStepsPerEvaluation == 0) Evaluate(LoadBatch(DrawBatch(16)));
    }
    FreeInputs(next);
    return std::move(trace_).Build();
  }

 private:
  struct Inputs {
    Batch batch;
    Id tokens, labels;
  };

  Id New(uint64_t numbers, uint64_t size = kHalf) { return trace_.Allocate(numbers * size); }
  void Free(Id id) { trace_.Free(id, kCompute); }
  // The batch's hidden state, so many times as wide.
  Id Hidden(const Batch& batch, uint64_t times = 1) { return New(batch.tokens() * kWidth * times); }

  Batch DrawBatch(uint64_t sequences) {
    return {.sequences = sequences, .length = 64 * random_.Uniform(16, 32)};
  }
  Inputs LoadBatch(const Batch& batch) {
    return {.batch = batch,
            .tokens = trace_.Allocate(batch.tokens() * kLong, kCopy),
            .labels = trace_.Allocate(batch.tokens() * kLong, kCopy)};
  }
  void FreeInputs(const Inputs& inputs) {
    Free(inputs.tokens);
    Free(inputs.labels);
  }

  void MakeParameters() {
    numbers_ = {kVocabulary * kWidth, kPositions * kWidth};
    for (int layer = 0; layer < kLayers; ++layer) {
      numbers_.insert(numbers_.end(), std::begin(kLayerParameters), std::end(kLayerParameters));
    }
    numbers_.insert(numbers_.end(), {kWidth, kWidth});  // the last norm
    for (const uint64_t numbers : numbers_) New(numbers);
  }

  void Step(const Inputs& inputs) {
    const Batch& batch = inputs.batch;
    std::vector<Saved> saved;
    Id hidden = Embed(batch);
    for (int layer = 0; layer < kLayers; ++layer) {
      Id output;
      saved.push_back(Forward(batch, hidden, output));
      hidden = output;
    }
    const Norm last = ForwardNorm(batch);
    const Id log_softmax = Loss(batch);

    Id gradient = BackwardHead(batch, log_softmax, last, hidden);
    for (; !saved.empty(); saved.pop_back()) gradient = Backward(batch, saved.back(), gradient);
    BackwardEmbed(gradient);
    FreeInputs(inputs);
    Optimize();
  }

  void Evaluate(const Inputs& inputs) {
    Id hidden = Embed(inputs.batch);
    for (int layer = 0; layer < kLayers; ++layer) {
      Id output;
      const Saved saved = Forward(inputs.batch, hidden, output);
      for (const Id id :
           {saved.input, saved.norm1.output, saved.norm1.mean, saved.norm1.deviation, saved.qkv,
            saved.attention, saved.logsumexp, saved.random_state, saved.middle, saved.norm2.output,
            saved.norm2.mean, saved.norm2.deviation, saved.up, saved.activated}) {
        Free(id);
      }
      hidden = output;
    }
    const Norm last = ForwardNorm(inputs.batch);
    Free(hidden);
    const Id log_softmax = Loss(inputs.batch);
    FreeNorm(last);
    Free(log_softmax);
    FreeInputs(inputs);
  }

  Id Embed(const Batch& batch) {
    const Id words = Hidden(batch), positions = New(batch.length * kWidth);
    const Id sum = Hidden(batch);
    Free(words);
    Free(positions);
    return sum;
  }

  Norm ForwardNorm(const Batch& batch) {
    return {.output = Hidden(batch),
            .mean = New(batch.tokens(), kFloat),
            .deviation = New(batch.tokens(), kFloat)};
  }
  void FreeNorm(const Norm& norm) {
    Free(norm.output);
    Free(norm.mean);
    Free(norm.deviation);
  }

  Saved Forward(const Batch& batch, Id input, Id& output) {
    Saved saved = {.input = input, .norm1 = ForwardNorm(batch)};
    saved.qkv = Hidden(batch, 3);
    saved.attention = Hidden(batch);
    saved.logsumexp = New(batch.tokens() * kHeads, kFloat);
    saved.random_state = New(2, kLong);
    const Id projected = Hidden(batch);
    saved.middle = Hidden(batch);
    Free(projected);
    saved.norm2 = ForwardNorm(batch);
    saved.up = Hidden(batch, 4);
    saved.activated = Hidden(batch, 4);
    const Id down = Hidden(batch);
    output = Hidden(batch);
    Free(down);
    return saved;
  }

  Id Loss(const Batch& batch) {
    const uint64_t logits = batch.tokens() * kVocabulary;
    const Id half = New(logits), full = New(logits, kFloat);
    Free(half);
    const Id log_softmax = New(logits, kFloat);
    Free(full);
    const Id loss = New(1, kFloat), weight = New(1, kFloat);
    Free(weight);
    Free(loss);
    return log_softmax;
  }

  // Backward of LayerNorm: makes the input's gradient; frees the output's.
  Id BackwardNorm(const Batch& batch, const Norm& norm, Id gradient) {
    const Id input = Hidden(batch);
    const Id partial_weight = New(128 * kWidth, kFloat), partial_bias = New(128 * kWidth, kFloat);
    gradients_.push_back(New(kWidth));
    gradients_.push_back(New(kWidth));
    Free(partial_weight);
    Free(partial_bias);
    Free(gradient);
    Free(norm.mean);
    Free(norm.deviation);
    return input;
  }

  // Backward of a linear layer: makes the input's gradient and the parameters'; frees the input.
  Id BackwardLinear(const Batch& batch, uint64_t in, uint64_t out, Id input) {
    const Id input_gradient = Hidden(batch, in);
    gradients_.push_back(New(in * kWidth * out * kWidth));
    gradients_.push_back(New(out * kWidth));
    Free(input);
    return input_gradient;
  }

  Id AddResidual(const Batch& batch, Id one, Id other) {
    const Id sum = Hidden(batch);
    Free(one);
    Free(other);
    return sum;
  }

  Id BackwardHead(const Batch& batch, Id log_softmax, const Norm& last, Id input) {
    const uint64_t logits = batch.tokens() * kVocabulary;
    const Id full = New(logits, kFloat);
    Free(log_softmax);
    const Id half = New(logits);
    Free(full);
    const Id output = Hidden(batch);
    gradients_.push_back(New(kVocabulary * kWidth));
    Free(half);
    Free(last.output);
    const Id gradient = BackwardNorm(batch, last, output);
    Free(input);
    return gradient;
  }

  Id Backward(const Batch& batch, const Saved& saved, Id gradient) {
    const Id activated = BackwardLinear(batch, 4, 1, saved.activated);
    const Id up = Hidden(batch, 4);
    Free(activated);
    Free(saved.up);
    const Id norm2 = BackwardLinear(batch, 1, 4, saved.norm2.output);
    Free(up);
    const Id middle = AddResidual(batch, BackwardNorm(batch, saved.norm2, norm2), gradient);
    Free(saved.middle);

    const Id attention = BackwardLinear(batch, 1, 1, saved.attention);
    const Id accumulated = New(batch.tokens() * kWidth, kFloat);
    const Id sums = New(batch.tokens() * kHeads, kFloat);
    const Id qkv = Hidden(batch, 3);
    Free(accumulated);
    Free(sums);
    for (const Id id : {attention, saved.qkv, saved.logsumexp, saved.random_state}) Free(id);
    const Id norm1 = BackwardLinear(batch, 1, 3, saved.norm1.output);
    Free(qkv);
    const Id input = AddResidual(batch, BackwardNorm(batch, saved.norm1, norm1), middle);
    Free(saved.input);

    uint64_t numbers = 0;
    for (const uint64_t one : kLayerParameters) numbers += one;
    trace_.Free(New(numbers), kReduce);
    return input;
  }

  // The word embedding is the head, too: its gradients are added.
  void BackwardEmbed(Id gradient) {
    const Id words = New(kVocabulary * kWidth);
    gradients_.push_back(New(kPositions * kWidth));
    Free(gradient);
    Free(words);
  }

  // Clips by the norm of all gradients, which takes a number of each.
  void Optimize() {
    std::vector<Id> norms;
    for (size_t i = 0; i < numbers_.size(); ++i) norms.push_back(New(1, kFloat));
    const Id stacked = New(norms.size(), kFloat), total = New(1, kFloat);
    for (const Id id : norms) Free(id);
    Free(stacked);
    if (!std::exchange(has_state_, true)) {
      for (const uint64_t numbers : numbers_) {
        for (int i = 0; i < 3; ++i) New(numbers, kFloat);
        New(1, kFloat);  // the count of steps
      }
    }
    Free(total);
    for (const Id id : gradients_) Free(id);
    gradients_.clear();
  }

  TraceBuilder trace_;
  Random random_;
  std::vector<uint64_t> numbers_;  // of each parameter
  std::vector<Id> gradients_;      // of this step
  bool has_state_ = false;
};

}  // namespace

Trace MakeTrainingTrace() { return Training().Make(); }

}  // namespace gpumem::bench
