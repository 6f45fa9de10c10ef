// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/http2_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(uint8_t type, uint8_t flags, size_t payload) {
  std::string frame;
  for (const size_t shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  frame.append(4, '\x01');
  frame.append(payload, '\x01');  // HEADERS, if taken for a frame header
  return frame;
}

TEST(Http2MeterTest, CountsByKind) {
  Http2Meter meter;
  const std::string bytes = absl::StrCat(
      kPreface, Frame(/*SETTINGS*/ 4, 0, 0), Frame(/*HEADERS*/ 1, 4, 100),
      Frame(/*DATA, END_STREAM*/ 0, 1, 5), Frame(/*DATA*/ 0, 0, 5), Frame(/*DATA*/ 0, 0, 16384),
      Frame(/*RST_STREAM*/ 3, 0, 4), Frame(/*PING*/ 6, 0, 8), Frame(/*unknown*/ 200, 0, 70000));
  const FrameCounts counts = meter.Feed(bytes);
  EXPECT_EQ(counts.calls, 1u);
  EXPECT_EQ(counts.resets, 1u);
  EXPECT_EQ(counts.control, 5u);
  EXPECT_EQ(counts.requests, 1u);
  EXPECT_EQ(counts.begun_bytes, Http2Meter::kCallBytes + 5u + 16384u);
  EXPECT_EQ(counts.ended_bytes, counts.begun_bytes);  // by DATA, and by RST_STREAM
}

TEST(Http2MeterTest, TellsRequestsApart) {
  Http2Meter meter;
  const auto data = [](bool end, size_t bytes, uint8_t stream) {
    std::string frame = Frame(/*DATA*/ 0, end ? 1 : 0, bytes);
    frame[8] = static_cast<char>(stream);
    return frame;
  };
  FrameCounts counts = meter.Feed(absl::StrCat(kPreface, data(false, 1000, 1), data(false, 50, 3),
                                               data(false, 200, 1), data(true, 7, 5)));
  EXPECT_EQ(counts.begun_bytes, 1250u);
  EXPECT_EQ(counts.ended_bytes, 0u);
  counts = meter.Feed(absl::StrCat(data(true, 1, 1), data(true, 1, 1)));
  EXPECT_EQ(counts.ended_bytes, 1200u);
  EXPECT_EQ(counts.requests, 2u);
  counts = meter.Feed(data(true, 0, 3));
  EXPECT_EQ(counts.ended_bytes, 50u);
  EXPECT_EQ(meter.begun_bytes(), 0u);
  meter.Feed(data(false, 8, 7));
  EXPECT_EQ(meter.begun_bytes(), 8u);
}

TEST(Http2MeterTest, CountsTheSameHoweverItIsCut) {
  std::mt19937 random(7);
  std::string bytes = kPreface;
  FrameCounts sent;
  for (int i = 0; i < 2000; ++i) {
    const uint8_t type = static_cast<uint8_t>(random() % 10);
    const uint8_t flags = static_cast<uint8_t>(random() % 2);
    const size_t payload = random() % 3000;
    bytes += Frame(type, flags, payload);
    if (type == 1) {
      ++sent.calls;
    } else if (type == 3) {
      ++sent.resets;
    } else if (type != 0 || payload < Http2Meter::kSmallData) {
      ++sent.control;
    }
    if (type > 1) continue;
    if (flags == 1) {
      ++sent.requests;
    } else {
      sent.begun_bytes += type == 1 ? Http2Meter::kCallBytes : payload;
    }
  }
  Http2Meter meter;
  FrameCounts counted;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at, size_t{random() % 50});
    counted += meter.Feed({bytes.data() + at, size});
    at += size;
  }
  EXPECT_EQ(counted.calls, sent.calls);
  EXPECT_EQ(counted.requests, sent.requests);
  EXPECT_EQ(counted.resets, sent.resets);
  EXPECT_EQ(counted.control, sent.control);
  EXPECT_EQ(counted.begun_bytes, sent.begun_bytes);
}

// A frame of a stream, with this payload.
std::string FrameOf(uint8_t stream, uint8_t type, uint8_t flags, const std::string& payload) {
  std::string frame = Frame(type, flags, payload.size());
  for (const size_t at : {5, 6, 7}) frame[at] = 0;
  frame[8] = static_cast<char>(stream);
  return frame.replace(9, payload.size(), payload);
}

// A message with gRPC's prefix.
std::string Message(size_t bytes) {
  std::string message(5 + bytes, '\x01');
  message[0] = message[1] = message[2] = 0;
  message[3] = static_cast<char>(bytes >> 8);
  message[4] = static_cast<char>(bytes);
  return message;
}

TEST(MessageScannerTest, FindsTheSameHoweverTheyAreCut) {
  std::mt19937 random(3);
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += Message(random() % 700);
  MessageScanner scanner;
  uint64_t found = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at, size_t{random() % 1000});
    found += scanner.Feed({bytes.data() + at, size});
    at += size;
  }
  EXPECT_EQ(found, 1000u);
  EXPECT_EQ(scanner.begun(), 0u);
  EXPECT_EQ(scanner.Feed(Message(300).substr(0, 100)), 0u);
  EXPECT_EQ(scanner.begun(), 100u);
}

TEST(Http2MeterTest, MessagesOfAStreamThatGoesOnAreCalls) {
  Http2Meter meter;
  FrameCounts counts = meter.Feed(absl::StrCat(kPreface, FrameOf(1, /*HEADERS*/ 1, 4, "headers"),
                                               FrameOf(1, /*DATA*/ 0, 0, Message(50))));
  EXPECT_EQ(counts.streams, 1u);
  EXPECT_EQ(counts.calls, 2u);
  EXPECT_EQ(counts.requests, 1u);
  EXPECT_EQ(meter.begun_bytes(), Http2Meter::kCallBytes + 55u);
  for (int i = 0; i < 10000; ++i) {
    EXPECT_TRUE(meter.Answered(1));
    EXPECT_FALSE(meter.Answered(1));  // the answer's second frame
    EXPECT_EQ(meter.begun_bytes(), 0u);
    counts = meter.Feed(FrameOf(1, 0, 0, Message(20)));
    EXPECT_EQ(counts.calls, 1u);
    EXPECT_EQ(counts.requests, 1u);
    EXPECT_EQ(counts.control, 1u);
    EXPECT_EQ(counts.begun_bytes, 25u);
    EXPECT_EQ(counts.ended_bytes, i == 0 ? Http2Meter::kCallBytes + 55u : 25u);
    EXPECT_EQ(counts.violations, 0u);
  }
  counts = meter.Feed(FrameOf(1, 0, /*END_STREAM*/ 1, ""));
  EXPECT_EQ(counts.requests, 0u);
  EXPECT_FALSE(meter.Answered(1));
}

TEST(Http2MeterTest, PartOfAMessageStaysBegun) {
  Http2Meter meter;
  const std::string message = Message(1000);
  meter.Feed(absl::StrCat(kPreface, FrameOf(1, 0, 0, Message(1) + message.substr(0, 400)),
                          FrameOf(1, 0, 0, message.substr(400, 300)).substr(0, 50)));
  EXPECT_TRUE(meter.Answered(1));
  EXPECT_EQ(meter.begun_bytes(), 700u);
  meter.Feed(FrameOf(1, 0, 0, message.substr(400, 300)).substr(50));
  EXPECT_EQ(meter.begun_bytes(), 700u);
  EXPECT_EQ(meter.Feed(FrameOf(1, 0, 0, message.substr(700))).requests, 1u);
  EXPECT_TRUE(meter.Answered(1));
  EXPECT_EQ(meter.begun_bytes(), 0u);
}

TEST(Http2MeterTest, AUnaryCallIsOneRequest) {
  Http2Meter meter;
  // The end of the stream with the message, after it, and without one.
  FrameCounts counts =
      meter.Feed(absl::StrCat(kPreface, FrameOf(1, 1, 4, "headers"), FrameOf(1, 0, 1, Message(5)),
                              FrameOf(3, 1, 4, "headers"), FrameOf(3, 0, 0, Message(5)),
                              FrameOf(3, 0, 1, ""), FrameOf(5, 1, 5, "headers")));
  EXPECT_EQ(counts.streams, 3u);
  EXPECT_EQ(counts.requests, 3u);
  EXPECT_EQ(counts.violations, 0u);
  EXPECT_EQ(meter.begun_bytes(), 0u);
}

TEST(Http2MeterTest, MessagesAheadOfTheirAnswersAreAViolation) {
  const auto messages = [](size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += Message(0);
    return bytes;
  };
  // In one frame, in many, and in the last one of the stream.
  for (const uint8_t flags : {0, 1}) {
    Http2Meter meter;
    const FrameCounts counts = meter.Feed(
        absl::StrCat(kPreface, FrameOf(1, 1, 4, "headers"), FrameOf(1, 0, flags, messages(3000))));
    EXPECT_GT(counts.violations, 0u);
    EXPECT_EQ(counts.requests, 3000u);
  }
  Http2Meter meter;
  meter.Feed(absl::StrCat(kPreface, FrameOf(1, 1, 4, "headers")));
  for (uint32_t i = 0; i < Http2Meter::kMostUnanswered; ++i) {
    EXPECT_EQ(meter.Feed(FrameOf(1, 0, 0, messages(1))).violations, 0u);
  }
  EXPECT_TRUE(meter.Answered(1));
  EXPECT_EQ(meter.Feed(FrameOf(1, 0, 0, messages(1))).violations, 0u);
  EXPECT_EQ(meter.Feed(FrameOf(1, 0, 0, messages(1))).violations, 1u);
}

TEST(Http2MeterTest, TooManyOpenRequestsAreAViolation) {
  Http2Meter meter;
  const auto headers = [](uint32_t stream) {
    std::string frame = FrameOf(0, 1, 4, "h");
    frame[7] = static_cast<char>(stream >> 8);
    frame[8] = static_cast<char>(stream);
    return frame;
  };
  meter.Feed(absl::MakeConstSpan(kPreface, sizeof(kPreface) - 1));
  uint32_t stream = 1;
  // Those that the server has ended are not open.
  for (int i = 0; i < 2000; ++i, stream += 2) {
    EXPECT_EQ(meter.Feed(headers(stream)).violations, 0u);
    meter.Closed(stream);
  }
  EXPECT_EQ(meter.begun_bytes(), 0u);
  for (int i = 0; i < 1024; ++i, stream += 2) EXPECT_EQ(meter.Feed(headers(stream)).violations, 0u);
  EXPECT_EQ(meter.Feed(headers(stream)).violations, 1u);
}

TEST(Http2MeterTest, HeadersThatDoNotEndAreAViolation) {
  constexpr uint8_t kHeaders = 1, kContinuation = 9, kEndHeaders = 4;
  constexpr size_t kMost = Http2Meter::kMostHeaderBytes;
  Http2Meter meter;
  // Each block counts by itself, whatever comes between.
  FrameCounts counts = meter.Feed(absl::StrCat(kPreface, Frame(kHeaders, kEndHeaders, kMost)));
  for (int i = 0; i < 10; ++i) {
    counts += meter.Feed(absl::StrCat(Frame(kHeaders, 0, kMost / 2), Frame(kContinuation, 0, 100),
                                      Frame(kContinuation, kEndHeaders, kMost / 2 - 100)));
  }
  EXPECT_EQ(counts.violations, 0u);
  EXPECT_EQ(counts.calls, 11u);
  EXPECT_EQ(counts.control, 20u);
  EXPECT_GT(meter.Feed(Frame(kContinuation, 0, 1)).violations, 0u);

  Http2Meter small_frames;
  counts = small_frames.Feed(absl::StrCat(kPreface, Frame(kHeaders, 0, 0)));
  for (size_t i = 0; i < kMost; ++i) counts += small_frames.Feed(Frame(kContinuation, 0, 1));
  EXPECT_EQ(counts.violations, 0u);
  EXPECT_GT(small_frames.Feed(Frame(kContinuation, 0, 1)).violations, 0u);

  Http2Meter one_frame;
  EXPECT_GT(one_frame.Feed(absl::StrCat(kPreface, Frame(kHeaders, 0, kMost + 1))).violations, 0u);
}

TEST(AnswerMeterTest, CountsTheEndsOfCalls) {
  AnswerMeter meter;
  Http2Meter client;
  const std::string bytes =
      absl::StrCat(Frame(/*SETTINGS*/ 4, 0, 6), Frame(/*HEADERS, END_HEADERS*/ 1, 4, 40),
                   Frame(/*DATA*/ 0, 0, 5000), Frame(/*HEADERS, END_STREAM too*/ 1, 5, 20),
                   Frame(/*RST_STREAM*/ 3, 0, 4), Frame(/*SETTINGS, ACK*/ 4, 1, 0));
  EXPECT_EQ(meter.Feed(bytes, client).calls, 1u);
  for (const char& each : bytes) {
    EXPECT_EQ(meter.Feed({&each, 1}, client).calls,
              &each == &bytes[9 + 6 + 9 + 40 + 9 + 5000 + 8] ? 1u : 0u);
  }
}

TEST(AnswerMeterTest, TellsTheClientsMeter) {
  AnswerMeter meter;
  Http2Meter client;
  client.Feed(absl::StrCat(kPreface, FrameOf(1, 1, 4, "headers"), FrameOf(1, 0, 0, Message(50)),
                           FrameOf(3, 1, 4, "headers"), FrameOf(3, 0, 1, Message(50)),
                           FrameOf(5, 1, 4, "headers")));
  AnswerMeter::Answers answers =
      meter.Feed(absl::StrCat(FrameOf(1, 1, 4, "headers"), FrameOf(1, 0, 0, Message(70)),
                              FrameOf(3, 0, 0, Message(70)), FrameOf(3, 1, 5, "trailers")),
                 client);
  EXPECT_EQ(answers.messages, 1u);
  EXPECT_EQ(answers.calls, 1u);
  EXPECT_EQ(client.begun_bytes(), Http2Meter::kCallBytes);  // of 5
  meter.Feed(FrameOf(5, /*RST_STREAM*/ 3, 0, "code"), client);
  EXPECT_EQ(client.begun_bytes(), 0u);
}

}  // namespace
}  // namespace gpumemd
