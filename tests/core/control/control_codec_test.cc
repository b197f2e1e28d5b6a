#include "core/control/control_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace byteps {
namespace {

control::Envelope Sample() {
  control::Envelope envelope;
  control::Hello& hello = *envelope.mutable_hello();
  hello.set_control_version(1);
  hello.set_job("job");
  hello.set_nonce(std::string(16, 'n'));
  hello.add_lanes()->set_address(std::string("\0\1\2", 3));
  return envelope;
}

std::string Bytes(const control::Envelope& envelope) { return envelope.SerializeAsString(); }

std::string Text(const absl::Status& status) { return std::string(status.message().data(), status.message().size()); }

TEST(ControlCodecTest, FramesComeBackWhateverTheirPieces) {
  const std::string frame = EncodeFrame(Sample()).value();
  const std::string stream = frame + frame + frame;
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameReader reader(kMaxHelloBytes);
    int frames = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      const std::string part = stream.substr(at, piece);
      reader.Append(part.data(), part.size());
      control::Envelope envelope;
      while (true) {
        const absl::StatusOr<bool> got = reader.Next(&envelope);
        ASSERT_TRUE(got.ok()) << got.status();
        if (!*got) break;
        EXPECT_EQ(Bytes(envelope), Bytes(Sample()));
        ++frames;
      }
    }
    EXPECT_EQ(frames, 3) << "pieces of " << piece;
    EXPECT_EQ(reader.buffered(), 0u);
  }
}

TEST(ControlCodecTest, OfAnotherVersionItReadsWhoItIs) {
  control::Envelope challenge, failure;
  challenge.mutable_challenge()->set_control_version(1);
  failure.mutable_failure()->set_error("no");
  for (const control::Envelope& said : {Sample(), challenge, failure}) {
    std::string frame = EncodeFrame(said).value();
    frame[4] = 7;
    frame[6] = 1;  // what is reserved may be in use there
    FrameReader reader(kMaxHelloBytes);
    reader.Append(frame.data(), frame.size());
    control::Envelope envelope;
    const absl::StatusOr<bool> read = reader.Next(&envelope);
    ASSERT_TRUE(read.ok() && *read) << read.status();
    EXPECT_EQ(envelope.message_case(), said.message_case());
    EXPECT_TRUE(!envelope.has_hello() || envelope.hello().control_version() == 7);
    EXPECT_TRUE(!envelope.has_challenge() || envelope.challenge().control_version() == 7);
  }
}

TEST(ControlCodecTest, AnotherVersionIsNamed) {
  control::Envelope said;
  said.mutable_heartbeat();
  std::string frame = EncodeFrame(said).value();
  frame[4] = 7;
  FrameReader reader(kMaxHelloBytes);
  reader.Append(frame.data(), frame.size());
  control::Envelope envelope;
  const absl::Status status = reader.Next(&envelope).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Text(status).find("a role of another version"), std::string::npos) << status;
  EXPECT_NE(Text(status).find("protocol 7"), std::string::npos) << status;
  EXPECT_NE(Text(status).find("speaks 1"), std::string::npos) << status;
}

TEST(ControlCodecTest, AnotherProgramIsRecognisedByItsFirstBytes) {
  for (const std::string stream : {"G", "GET / HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n", "\xff", "BPSX"}) {
    FrameReader reader(kMaxHelloBytes);
    reader.Append(stream.data(), stream.size());
    control::Envelope envelope;
    const absl::Status status = reader.Next(&envelope).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << stream;
    EXPECT_NE(Text(status).find("no BytePS control message"), std::string::npos) << status;
  }
}

TEST(ControlCodecTest, SizesAreBounded) {
  control::Envelope large;
  large.mutable_failure()->set_error(std::string(kMaxHelloBytes, 'x'));
  const std::string frame = EncodeFrame(large).value();
  control::Envelope envelope;

  // The header alone is enough to refuse.
  FrameReader strict(kMaxHelloBytes);
  strict.Append(frame.data(), kFrameHeaderBytes);
  EXPECT_EQ(strict.Next(&envelope).status().code(), absl::StatusCode::kInvalidArgument);

  FrameReader wide(kMaxHelloBytes);
  wide.set_max_frame(kMaxFrameBytes);
  wide.Append(frame.data(), frame.size());
  ASSERT_TRUE(wide.Next(&envelope).value());
  EXPECT_EQ(Bytes(envelope), Bytes(large));

  control::Envelope giant;
  giant.mutable_failure()->set_error(std::string(kMaxFrameBytes, 'x'));
  EXPECT_EQ(EncodeFrame(giant).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ControlCodecTest, EveryTruncationWaitsAndNothingIsInvented) {
  const std::string frame = EncodeFrame(Sample()).value();
  for (size_t size = 0; size < frame.size(); ++size) {
    FrameReader reader(kMaxHelloBytes);
    reader.Append(frame.data(), size);
    control::Envelope envelope;
    const absl::StatusOr<bool> got = reader.Next(&envelope);
    ASSERT_TRUE(got.ok()) << size << ": " << got.status();
    EXPECT_FALSE(*got) << size;
  }
}

TEST(ControlCodecTest, DamageIsAnErrorOrAMessageButNeverMore) {
  std::mt19937 random(17);
  for (int run = 0; run < 20000; ++run) {
    std::string stream;
    if (run % 2 == 0) {
      stream = EncodeFrame(Sample()).value() + EncodeFrame(Sample()).value();
      for (int damage = 0; damage <= run % 5; ++damage) stream[random() % stream.size()] = static_cast<char>(random());
    } else {
      stream.resize(random() % 200);
      for (char& byte : stream) byte = static_cast<char>(random());
      if (run % 4 == 1) stream.insert(0, EncodeFrame(Sample()).value().substr(0, 8));
    }
    FrameReader reader(kMaxHelloBytes);
    control::Envelope envelope;
    int frames = 0;
    for (size_t at = 0; at < stream.size();) {
      const size_t piece = std::min<size_t>(1 + random() % 40, stream.size() - at);
      reader.Append(stream.data() + at, piece);
      at += piece;
      absl::StatusOr<bool> got = false;
      while ((got = reader.Next(&envelope)).ok() && *got) ++frames;
      EXPECT_LE(reader.buffered(), stream.size());
      if (!got.ok()) break;
    }
    EXPECT_LE(static_cast<size_t>(frames), stream.size() / kFrameHeaderBytes);
  }
}

}  // namespace
}  // namespace byteps
