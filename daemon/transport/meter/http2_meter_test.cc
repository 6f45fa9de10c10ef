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

TEST(AnswerMeterTest, CountsTheEndsOfCalls) {
  AnswerMeter meter;
  const std::string bytes =
      absl::StrCat(Frame(/*SETTINGS*/ 4, 0, 6), Frame(/*HEADERS, END_HEADERS*/ 1, 4, 40),
                   Frame(/*DATA*/ 0, 0, 5000), Frame(/*HEADERS, END_STREAM too*/ 1, 5, 20),
                   Frame(/*RST_STREAM*/ 3, 0, 4), Frame(/*SETTINGS, ACK*/ 4, 1, 0));
  EXPECT_EQ(meter.Feed(bytes), 1u);
  for (const char& each : bytes) {
    EXPECT_EQ(meter.Feed({&each, 1}), &each == &bytes[9 + 6 + 9 + 40 + 9 + 5000 + 8] ? 1u : 0u);
  }
}

}  // namespace
}  // namespace gpumemd
