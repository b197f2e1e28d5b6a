// patience.h - how long others are waited for, and what is said of those that cannot be ended.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_PATIENCE_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_PATIENCE_H_

#include <chrono>

namespace byteps::shm {

// A caller greets at once.
inline constexpr auto kGreetingPatience = std::chrono::seconds(5);
// A process that was killed ends.
inline constexpr auto kKillPatience = std::chrono::seconds(5);

// A process that still writes into memory that was taken back.
inline constexpr char kDetached[] =
    ", and this process may not kill it: it writes into pages that are not used any more; their bytes were copied";
inline constexpr char kUnkillable[] =
    ", and this process may not kill it: until it ends it may write there. End it by hand, if it is stopped";

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_PATIENCE_H_
