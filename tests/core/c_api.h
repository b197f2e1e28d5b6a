// c_api.h - the C ABI in tests: owners for its objects, statuses that print.
#ifndef BYTEPS_TESTS_CORE_C_API_H_
#define BYTEPS_TESTS_CORE_C_API_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {

// What a call of the C ABI said, freed.
struct Said {
  Said(bps_status* status)  // NOLINT(google-explicit-constructor)
      : code(bps_status_code(status)),
        message(bps_status_message(status)),
        retryable(bps_status_retryable(status) != 0) {
    bps_status_free(status);
  }
  bool ok() const { return code == BPS_OK; }
  bool Contains(const std::string& text) const { return message.find(text) != std::string::npos; }

  int32_t code;
  std::string message;
  bool retryable;
};

inline std::ostream& operator<<(std::ostream& out, const Said& said) {
  return out << "code " << said.code << ": " << said.message;
}

#define ASSERT_SAID_OK(expression)            \
  do {                                        \
    const ::byteps::Said said = (expression); \
    ASSERT_TRUE(said.ok()) << said;           \
  } while (false)
#define EXPECT_SAID_OK(expression)            \
  do {                                        \
    const ::byteps::Said said = (expression); \
    EXPECT_TRUE(said.ok()) << said;           \
  } while (false)

struct CloseSession {
  void operator()(bps_session* session) const { bps_status_free(bps_close(session)); }
};
struct FreeRequest {
  void operator()(bps_request* request) const { bps_request_free(request); }
};
using SessionOwner = std::unique_ptr<bps_session, CloseSession>;
using RequestOwner = std::unique_ptr<bps_request, FreeRequest>;

inline bps_tensor* DeclareTensor(bps_session* session, const std::string& name, uint32_t dtype,
                                 const std::vector<int64_t>& shape) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name.c_str();
  args.dtype = dtype;
  args.shape = shape.data();
  args.ndim = static_cast<int32_t>(shape.size());
  bps_tensor* tensor = nullptr;
  EXPECT_SAID_OK(bps_declare(session, &args, &tensor));
  return tensor;
}

inline bps_push_pull_args PushPullArgs(bps_tensor* tensor, const void* input, void* output, int32_t op = BPS_SUM) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = input;
  args.output = output;
  args.op = op;
  return args;
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_C_API_H_
