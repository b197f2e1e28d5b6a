// submit.h - hands an operation to the library.
//
//     bps_status* error = SubmitRound(library, args, &request, [&](const auto& with, bps_request** made) {
//       return library.bps_push_pull(session, &with, made);
//     });
//
// The operations of a name meet round by round. One that is refused because another of its name is in flight on this
// rank has failed in its framework, and is not submitted again; the other ranks may have come to it when nothing was in
// flight. So its round is given up: it fails there, too, and what comes later meets what belongs to it. So is, by
// GiveUpRound, that of one which its framework leaves out.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_COMMON_SUBMIT_H_
#define BYTEPS_FRAMEWORKS_COMMON_SUBMIT_H_

#include <cstdint>

#include "abi/byteps.h"
#include "frameworks/common/library.h"

namespace byteps::binding {

// The extension by which the ranks compare a number; 0: none.
class Match {
 public:
  explicit Match(uint64_t number) { match_.number = number; }
  const bps_ext* ext() const { return match_.number == 0 ? nullptr : &match_.ext; }

 private:
  bps_match match_ = BPS_MATCH_INIT;
};

// Calls `submit` with `args` as of a round that is given up, and with no request; its error. The end is told as `args`
// say.
template <typename Args, typename Submit>
bps_status* GiveUpRound(const Library& library, const Args& args, const char* reason, const Submit& submit) {
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  give_up.reason = reason;
  give_up.ext.next = args.ext;  // what the others compare is in it
  Args round = args;
  round.ext = &give_up.ext;
  bps_status* error = submit(round, nullptr);
  if (error == nullptr || library.bps_status_code(error) != BPS_INVALID_ARGUMENT) return error;
  // The reason may be the text of another error, cut in the middle of a character.
  library.bps_status_free(error);
  give_up.reason = nullptr;
  return submit(round, nullptr);
}

// Calls `submit` with `args` and `request`, which may be nullptr; its error.
template <typename Args, typename Submit>
bps_status* SubmitRound(const Library& library, const Args& args, bps_request** request, const Submit& submit) {
  bps_status* error = submit(args, request);
  if (error == nullptr || library.bps_status_code(error) != BPS_ALREADY_EXISTS) return error;
  Args round = args;
  round.done = nullptr;
  round.user = nullptr;
  library.bps_status_free(GiveUpRound(
      library, round, "its program submitted it while another operation of this name was in flight there", submit));
  return error;
}

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_SUBMIT_H_
