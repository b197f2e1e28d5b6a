#include "core/base/status.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

// One allocation: the message follows the object, so that freeing cannot fail and creating can fail in one place only.
struct bps_status {
  int32_t code;
  int32_t retryable;
  const char* message;
};

namespace byteps {
namespace {

constexpr char kRetryablePayload[] = "byteps/retryable";

constexpr bps_status kOutOfMemory = {BPS_RESOURCE_EXHAUSTED, 0, "out of memory"};

absl::string_view ToAbsl(std::string_view text) { return absl::string_view(text.data(), text.size()); }

}  // namespace

absl::Status Retryable(absl::Status status) {
  if (!status.ok() && !absl::IsUnavailable(status)) status.SetPayload(kRetryablePayload, absl::Cord("1"));
  return status;
}

bool IsRetryable(const absl::Status& status) {
  return !status.ok() && status.GetPayload(kRetryablePayload).has_value();
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  std::string message(context);
  message.append(": ").append(status.message().data(), status.message().size());
  absl::Status annotated(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

absl::Status MakeStatus(int32_t code, std::string_view message) {
  if (code == BPS_OK) return absl::OkStatus();
  if (code < BPS_OK || code > BPS_UNAUTHENTICATED) {
    std::string text(message);
    text.append(" (code ").append(std::to_string(code)).append(")");
    return absl::UnknownError(text);
  }
  return absl::Status(static_cast<absl::StatusCode>(code), ToAbsl(message));
}

int32_t StatusCode(const absl::Status& status) { return static_cast<int32_t>(status.code()); }

const char* StatusCodeName(int32_t code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  if (code < BPS_OK || code > BPS_UNAUTHENTICATED) return kNames[BPS_UNKNOWN];
  return kNames[code];
}

bps_status* OutOfMemoryStatus() noexcept { return const_cast<bps_status*>(&kOutOfMemory); }

bps_status* StatusToC(const absl::Status& status) noexcept {
  if (status.ok()) return nullptr;
  const absl::string_view message = status.message();
  void* memory = std::malloc(sizeof(bps_status) + message.size() + 1);
  if (memory == nullptr) return OutOfMemoryStatus();
  char* text = static_cast<char*>(memory) + sizeof(bps_status);
  if (!message.empty()) std::memcpy(text, message.data(), message.size());
  text[message.size()] = '\0';
  return new (memory) bps_status{StatusCode(status), IsRetryable(status) ? 1 : 0, text};
}

absl::Status StatusFromC(const bps_status* status) {
  if (status == nullptr) return absl::OkStatus();
  absl::Status result = MakeStatus(status->code, status->message);
  return status->retryable != 0 ? Retryable(std::move(result)) : result;
}

absl::Status TakeStatus(bps_status* status) {
  absl::Status result = StatusFromC(status);
  bps_status_free(status);
  return result;
}

}  // namespace byteps

int32_t bps_status_code(const bps_status* status) noexcept { return status == nullptr ? BPS_OK : status->code; }

const char* bps_status_message(const bps_status* status) noexcept { return status == nullptr ? "" : status->message; }

int32_t bps_status_retryable(const bps_status* status) noexcept { return status == nullptr ? 0 : status->retryable; }

void bps_status_free(bps_status* status) noexcept {
  if (status == byteps::OutOfMemoryStatus()) return;
  std::free(status);
}
